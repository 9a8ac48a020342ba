"""All strengths of a regularizer from one Gram matrix: certified minimizers for squared losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import Cut, NDArray
from riskmin.core.deadline import MAX_KERNEL_OPERATIONS, check
from riskmin.problem.second_moments import QuadraticRisk
from riskmin.regularizers.base import Regularizer
from riskmin.solvers.coordinate.columns import GRAM_MAX_COLUMNS

kernels = lazy_module("coordinate.gram_path")
"""Return the compiled loops."""

COLUMNS_PER_FIT = 30
"""Columns whose second moments cost as much as a fit that starts from its neighbor: three passes over X."""


class Minimum(NamedTuple):
    """A minimizer of J for one penalty, with its bounds and the cut that proves the lower one."""

    w: NDArray
    b: float
    value: float
    """An upper bound of J(w, b)."""
    lower: float
    cut: Cut


class GramPath(NamedTuple):
    """Minimizers for several penalties, with the bounds and the cuts that prove them."""

    W: NDArray
    """Weights, one row per penalty."""
    value: NDArray
    """Upper bounds of J(w)."""
    lower: NDArray
    """Lower bounds of min J."""
    slope: NDArray
    offset: NDArray
    """The cuts a'v + b of R that prove these."""

    def accepted(self, tol: float, atol: float) -> NDArray:
        """Which gaps are proved to be within the tolerances."""
        return np.asarray(self.value - self.lower <= np.maximum(tol * self.value, atol))


def pays(n: int, p: int, n_fits: int) -> bool:
    """Whether so many fits to dense rows cost less by one matrix of their second moments than by passes."""
    return 0 < p <= min(n, GRAM_MAX_COLUMNS) and p <= COLUMNS_PER_FIT * n_fits


def terms_of(reg: Regularizer, lams: NDArray, p: int) -> NDArray:
    """Each lam times the regularizer: four rows (absolute, square, lower, upper), one entry per column."""
    zero = np.zeros(p)
    one = np.stack([zero + term for term in reg.terms(zero)])
    terms = np.repeat(one[None], len(lams), axis=0)
    terms[:, :2] *= np.asarray(lams)[:, None, None]
    return terms


def gram_path(
    risk: QuadraticRisk, terms: NDArray, tol: float, atol: float, start: NDArray | None = None
) -> GramPath:
    """Minimize the risk with each penalty in turn, the strongest first, until its gap is within a tolerance.

    A gap that rounding keeps above it is returned as it is.
    """
    k, p = len(terms), len(risk.q)
    W, slope, out = np.zeros((k, p)), np.empty((k, p)), np.empty((k, 4))
    if start is not None:
        W[0] = start
    index, state = np.zeros(p, np.int64), np.zeros(4, np.int64)
    factor = (
        *(np.zeros(p), np.zeros(p, np.int8), index, np.zeros((p, p)), np.zeros(p), np.zeros(p, np.bool_)),
        state,
    )
    data: Any = risk.G, risk.q, terms, risk.R0, risk.sizes, risk.size_y, risk.rounding, tol, atol
    done = 0
    while done < k:
        check()
        done = kernels().minimize_models(
            *data, np.empty((4, p)), factor, done, float(MAX_KERNEL_OPERATIONS), W, slope, out
        )
    loops = kernels()
    slope *= out[:, loops.SCALE, None]
    return GramPath(W, out[:, loops.VALUE], out[:, loops.LOWER], slope, out[:, loops.OFFSET])


def minima(path: GramPath, risk: QuadraticRisk, terms: NDArray) -> Iterator[Minimum]:
    """The minimizers with their intercepts, whose rounding raises J."""
    W, (intercepts, raised) = path.W, risk.intercepts(path.W)
    values = path.value + raised
    # none is worse than w = 0, where the bounds allow it
    b, raised_at_zero = risk.intercepts(np.zeros_like(W[:1]))
    at_zero = risk.R0 + risk.rounding * risk.size_y**2 + raised_at_zero[0]
    worse = (values > at_zero) & (terms[:, 2] <= 0).all(axis=1) & (terms[:, 3] >= 0).all(axis=1)
    if worse.any():
        W = np.where(worse[:, None], 0.0, W)
        intercepts, values = np.where(worse, b, intercepts), np.where(worse, at_zero, values)
    bounds = (intercepts, values, path.lower, path.offset)
    for w, a, b, value, lower, offset in zip(W, path.slope, *(v.tolist() for v in bounds), strict=True):
        yield Minimum(w, b, value, lower, Cut(a, offset))
