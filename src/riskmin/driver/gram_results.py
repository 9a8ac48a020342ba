"""The results of a path whose runs share one matrix of second moments, and read X once."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from riskmin.core import Cut, NDArray, Result, Solver
from riskmin.core.blas_threads import blas_thread_limit
from riskmin.core.records import bounds_row
from riskmin.driver.run import Limits
from riskmin.executors.base import blas_threads_of
from riskmin.losses import Squared
from riskmin.problem.objective import Objective
from riskmin.problem.second_moments import SecondMoments, center_of
from riskmin.solvers import Auto, CoordinateDescent
from riskmin.solvers.coordinate.gram_path import GramPath, gram_path, pays, terms_of
from riskmin.solvers.coordinate.newton_path import SmoothRows, newton_path


Found: TypeAlias = tuple[GramPath, NDArray, NDArray, float]
"""The path, the intercepts, the values of J at these, and the absolute tolerance."""
SHARED = {True: "one matrix of second moments serves", False: "one run has"}
"""What the results share, of squared errors and of other losses."""
MAX_ENTRIES = 2**20
"""Passes over more entries of X cost more than the calls that runs of their own take."""


def gram_results(objectives: list[Objective], solver: Solver, limits: dict[str, Any]) -> list[Result | None]:
    """One result for each of the objectives, which differ in lam alone, the largest first.

    None where the problem has no such form, or passes over X cost less. A result without a criterion has not
    met the tolerances: the rounding of the moments hides its gap.
    """
    checked, nothing = Limits(**limits), [None] * len(objectives)
    if (
        len(objectives) < 2
        or checked.max_seconds < math.inf
        or not isinstance(solver, Auto | CoordinateDescent)
    ):
        return list(nothing)
    obj, started_at = _with_separate_columns(objectives), time.perf_counter()
    if obj is None:
        return list(nothing)
    lams = np.array([one.lam for one in objectives])
    with blas_thread_limit(blas_threads_of(obj.risk)):
        squared = type(obj.risk.loss) is Squared
        found = (_of_squares if squared else _of_smooth_losses)(
            obj.risk, terms_of(obj.reg, lams, obj.risk.dim), checked
        )
    if found is None:
        return list(nothing)
    path, intercepts, values, atol = found
    seconds = (time.perf_counter() - started_at) / len(lams)
    by_tol = values - path.lower <= checked.tol * values
    by_atol = values - path.lower <= atol
    description = f"{CoordinateDescent()!r}: {SHARED[squared]} all {len(lams)} lam"
    results: list[Result | None] = []
    for k, lam in enumerate(lams.tolist()):
        value, lower = float(values[k]), float(path.lower[k])
        row = {"iteration": 1, "seconds": seconds, "calls": 0} | bounds_row(value, lower) | {"lam": lam}
        cut, criterion = (
            Cut(path.slope[k], float(path.offset[k])),
            "tol" if by_tol[k] else "atol" if by_atol[k] else "",
        )
        found = path.W[k], value, lower, cut, "converged", [row], description, criterion
        results.append(Result(*found, intercept=float(intercepts[k])))
    return results


def _with_separate_columns(objectives: list[Objective]) -> Objective | None:
    """The first objective as a sum over columns; None unless it is one, of squares of dense local rows."""
    first = objectives[0]
    if not all(one.reg is first.reg for one in objectives):
        return None
    obj = replace(first, reg=first.reg.penalized_part.without_sizes)
    risk: Any = obj.risk
    if CoordinateDescent().supports(obj) is not None or risk.rows.X.array is None:
        return None
    n, p = risk.rows.X.shape
    return obj if risk.linear_map.is_identity and pays(n, p, len(objectives)) else None


def _of_squares(risk: Any, terms: NDArray, limits: Limits) -> Found | None:
    """The path of a risk of squared errors."""
    rows, has_intercept = risk.rows, risk.intercept.profiled
    center = center_of(rows.X.array, rows.y, has_intercept)
    quadratic = SecondMoments.of_shards(risk.executor, center).risk(has_intercept)
    if not (np.isfinite(quadratic.G).all() and math.isfinite(quadratic.R0)):
        return None
    atol = limits.absolute(quadratic.R0)
    path = gram_path(quadratic, terms, limits.tol, atol)
    intercepts, raised = quadratic.intercepts(path.W)
    return path, intercepts, path.value + raised, atol


def _of_smooth_losses(risk: Any, terms: NDArray, limits: Limits) -> Found | None:
    """The path of a risk with another smooth loss."""
    shard = risk.rows
    X = shard.X.array
    if X.size > MAX_ENTRIES or not shard.c.all() or risk.loss.conjugate(shard.y) is None:
        return None
    center = center_of(X, shard.y, risk.intercept.profiled)[:-1]
    rows = SmoothRows(X - center, shard.y, shard.c, risk.loss, risk.intercept.profiled)
    b = float(risk.best_intercept(np.zeros(risk.dim)))
    atol = limits.absolute(float(risk.loss.value_grad(np.full(len(X), b), shard.y, shard.c)[0]))
    path, intercepts, slopes = newton_path(rows, terms, b, limits.tol, atol)
    if not rows.has_intercept:
        return path, intercepts, path.value, atol
    # the intercept of the columns as they are has the rounding of its terms
    error = rows.rounding * (abs(intercepts) + abs(path.W) @ abs(center))
    return path, intercepts - path.W @ center, path.value + 2 * error * slopes, atol
