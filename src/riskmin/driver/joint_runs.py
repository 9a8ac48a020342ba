"""Paths whose runs are one: certified minimizers for all lam that share matrices and passes over X."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np

from riskmin.core import NDArray, Result, Solver
from riskmin.core.blas_threads import blas_thread_limit
from riskmin.core.limits import LIMITS
from riskmin.core.records import bounds_row
from riskmin.driver.run import Limits
from riskmin.executors.base import blas_threads_of
from riskmin.losses import Squared
from riskmin.problem.objective import Objective, is_builtin, is_foreign
from riskmin.problem.second_moments import SecondMoments, center_of
from riskmin.solvers import Auto, CoordinateDescent
from riskmin.solvers.coordinate.gram_path import Minimum, gram_path, minima, pays, terms_of
from riskmin.solvers.coordinate.newton_path import SmoothRows, newton_path

MAX_SMOOTH_ENTRIES = 2**18
"""Entries of X up to which a joint run of smooth losses and regularizers takes less than runs by Newton's
method: these make more calls, and fewer passes."""


def joint_results(
    objectives: list[Objective], solver: Solver, limits: dict[str, Any]
) -> Iterator[Result | None]:
    """One result for each of the objectives, which differ in lam alone, the largest first.

    None where the problem has no such form, or runs of its own cost less. A result without a criterion has
    not met the tolerances: rounding hides its gap, or it took too many steps.
    """
    checked = Limits(**limits)
    obj = _with_separate_columns(objectives, solver, checked)
    if obj is None:
        yield from repeat(None, len(objectives))
        return
    with blas_thread_limit(blas_threads_of(obj.risk)):
        found = _minima(obj, np.array([one.lam for one in objectives]), checked)
    if found is None:
        yield from repeat(None, len(objectives))
        return
    atol, steps = found
    name, before = repr(CoordinateDescent()), time.perf_counter()
    for one, minimum in zip(objectives, steps, strict=True):
        w, b, value, lower, cut = minimum
        now = time.perf_counter()
        row = {"iteration": 1, "seconds": now - before, "calls": 0} | bounds_row(value, lower)
        within = "tol" if value - lower <= checked.tol * value else "atol"
        criterion: Any = within if value - lower <= max(checked.tol * value, atol) else ""
        description = f"{name}: one run for all {len(objectives)} lam"
        known = w, value, lower, cut, "converged", [row | {"lam": one.lam}], description, criterion
        yield Result(*known, intercept=b)  # type: ignore[arg-type]
        before = now


def _with_separate_columns(objectives: list[Objective], solver: Solver, limits: Limits) -> Objective | None:
    """The first objective as a sum over columns, if coordinate descent may minimize all; else None."""
    if (
        len(objectives) < 2
        or limits.max_seconds < math.inf
        or not isinstance(solver, Auto | CoordinateDescent)
    ):
        return None
    first = objectives[0]
    if not all(one.reg is first.reg for one in objectives):
        return None
    # cuts of a user's code are watched in runs of their own
    if is_foreign(first.risk) or not is_builtin(first.reg):
        return None
    obj = replace(first, reg=first.reg.penalized_part.without_sizes)
    risk: Any = obj.risk
    if CoordinateDescent().supports(obj) is not None or risk.rows.X.array is None:
        return None
    n, p = risk.rows.X.shape
    return obj if risk.linear_map.is_identity and pays(n, p, len(objectives)) else None


def _minima(obj: Objective, lams: NDArray, limits: Limits) -> tuple[float, Iterator[Minimum]] | None:
    """The absolute tolerance, and the minimizers; None if the rows have no such form."""
    risk: Any = obj.risk
    rows, has_intercept, terms = risk.rows, risk.intercept.profiled, terms_of(obj.reg, lams, risk.dim)
    X = rows.X.array
    if type(risk.loss) is Squared:
        moments = SecondMoments.of_shards(risk.executor, center_of(X, rows.y, has_intercept))
        quadratic = moments.risk(has_intercept)
        if not (np.isfinite(quadratic.G).all() and math.isfinite(quadratic.R0)):
            return None
        atol = limits.absolute(quadratic.R0)
        return atol, minima(gram_path(quadratic, terms, limits.tol, atol), quadratic, terms)
    small = X.size <= (MAX_SMOOTH_ENTRIES if obj.reg.smooth else LIMITS.copy_max_entries)
    if not small or risk.loss.conjugate(rows.y) is None:
        return None
    smooth_rows = SmoothRows.of(rows, risk.loss, has_intercept)
    if not np.isfinite(smooth_rows.sizes).all():
        return None
    b = float(risk.best_intercept(np.zeros(risk.dim)))
    atol = limits.absolute(float(risk.loss.value_grad(np.full(len(X), b), rows.y, rows.c)[0]))
    steps = newton_path(smooth_rows, terms, b, limits.tol, atol)
    return atol, _with_blas_threads(steps, blas_threads_of(risk))


def _with_blas_threads(steps: Iterator[Minimum], n_threads: int | None) -> Iterator[Minimum]:
    """The same minimizers, with a limit of threads while they are computed, not between them."""
    while True:
        with blas_thread_limit(n_threads):
            one = next(steps, None)
        if one is None:
            return
        yield one
