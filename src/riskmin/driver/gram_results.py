"""The results of a path whose runs share one matrix of second moments, and read X once."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from riskmin.core import Cut, Result, Solver
from riskmin.core.blas_threads import blas_thread_limit
from riskmin.core.records import bounds_row
from riskmin.driver.run import Limits
from riskmin.executors.base import blas_threads_of
from riskmin.losses import Squared
from riskmin.problem.objective import Objective
from riskmin.problem.second_moments import SecondMoments, center_of
from riskmin.solvers import Auto, CoordinateDescent
from riskmin.solvers.coordinate.gram_path import gram_path, pays, terms_of


def gram_results(objectives: list[Objective], solver: Solver, limits: dict[str, Any]) -> list[Result | None]:
    """One result for each of the objectives, which differ in lam alone, the largest first.

    None where the problem has no such form, or passes over X cost less. A result without a criterion has not
    met the tolerances: the rounding of the moments hides its gap.
    """
    checked, nothing = Limits(**limits), [None] * len(objectives)
    if not objectives or checked.max_seconds < math.inf or not isinstance(solver, (Auto, CoordinateDescent)):
        return list(nothing)
    obj = _with_separate_columns(objectives)
    if obj is None:
        return list(nothing)
    risk: Any = obj.risk
    started_at = time.perf_counter()
    with blas_thread_limit(blas_threads_of(risk)):
        rows, has_intercept = risk.rows, risk.intercept.profiled
        center = center_of(rows.X.array, rows.y, has_intercept)
        quadratic = SecondMoments.of_shards(risk.executor, center).risk(has_intercept)
        if not (np.isfinite(quadratic.G).all() and math.isfinite(quadratic.R0)):
            return list(nothing)
        lams = np.array([one.lam for one in objectives])
        tol = checked.tol
        atol = checked.DEFAULT_ATOL_RATIO * tol * quadratic.R0 if checked.atol is None else checked.atol
        found = gram_path(quadratic, terms_of(obj.reg, lams, risk.dim), tol, atol)
    intercepts, raised = quadratic.intercepts(found.W)
    values, seconds = found.value + raised, (time.perf_counter() - started_at) / len(lams)
    by_tol = values - found.lower <= tol * values
    by_atol = values - found.lower <= atol
    description = f"{CoordinateDescent()!r}: one matrix of second moments serves all {len(lams)} lam"
    results: list[Result | None] = []
    for k, lam in enumerate(lams.tolist()):
        value, lower = float(values[k]), float(found.lower[k])
        row = {"iteration": 1, "seconds": seconds, "calls": 0} | bounds_row(value, lower) | {"lam": lam}
        results.append(
            Result(
                found.W[k],
                value,
                lower,
                Cut(found.slope[k], float(found.offset[k])),
                "converged",
                [row],
                description,
                "tol" if by_tol[k] else "atol" if by_atol[k] else "",
                intercept=float(intercepts[k]),
            )
        )
    return results


def _with_separate_columns(objectives: list[Objective]) -> Objective | None:
    """The first objective as a sum over columns; None unless it is one, of squares of dense local rows."""
    first = objectives[0]
    risk: Any = first.risk
    if type(risk.loss) is not Squared or not all(one.reg is first.reg for one in objectives):
        return None
    obj = replace(first, reg=first.reg.penalized_part.without_sizes)
    if CoordinateDescent().supports(obj) is not None or risk.rows.X.array is None:
        return None
    n, p = risk.rows.X.shape
    return obj if risk.linear_map.is_identity and pays(n, p, len(objectives)) else None
