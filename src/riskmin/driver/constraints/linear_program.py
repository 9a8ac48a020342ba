"""The linear program of an L1-type regularizer under constraints on the scores, solved by HiGHS."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.driver.constraints.row_constraints import RowConstraints
from riskmin.regularizers.base import Regularizer


def linear_program(
    X: Any, constraints: RowConstraints, reg: Regularizer, intercept: bool, seconds: float
) -> tuple[NDArray, float, NDArray] | None:
    """Return w, the intercept and the multipliers; None without a solution. Nothing here is a proof."""
    sparse, p = scipy_module("sparse"), X.shape[1]
    rows = sparse.csc_array(X)
    # columns of the same size, since the tolerances of HiGHS are absolute
    sizes = np.ravel(abs(rows).max(axis=0).toarray())
    sizes = np.where(sizes > 0, sizes, 1.0)
    rows = rows @ sparse.diags_array(1 / sizes)
    terms = [v + np.zeros(p) for v in reg.terms(np.zeros(p))]
    cost, lower, upper = terms[0] / sizes, terms[2] * sizes, terms[3] * sizes
    # w = u - v with u, v >= 0
    blocks, costs = [rows, -rows], [cost, cost]
    limits = [np.maximum(lower, 0), np.maximum(upper, 0), np.maximum(-upper, 0), np.maximum(-lower, 0)]
    bounds = [np.column_stack(limits[:2]), np.column_stack(limits[2:])]
    if intercept:
        blocks.append(sparse.csc_array(np.ones((rows.shape[0], 1))))
        costs.append(np.zeros(1))
        bounds.append(np.array([[-math.inf, math.inf]]))
    A, t = sparse.hstack(blocks, format="csr"), constraints.target
    equal = np.isinf(constraints.lower) & np.isinf(constraints.upper)
    # z <= t as it is, z >= t with the other sign
    sign = np.where(np.isinf(constraints.upper), 1.0, -1.0)[~equal]
    result = scipy_module("optimize").linprog(
        np.concatenate(costs),
        *(sparse.diags_array(sign) @ A[~equal], sign * t[~equal], A[equal], t[equal], np.vstack(bounds)),
        options={"time_limit": seconds},
    )
    if result.status != 0:
        return None
    u = np.zeros(len(t))
    u[equal], u[~equal] = -result.eqlin.marginals, -sign * result.ineqlin.marginals
    b = float(result.x[-1]) if intercept else 0.0
    u = np.clip(u, constraints.lower, constraints.upper)
    return (result.x[:p] - result.x[p : 2 * p]) / sizes, b, u
