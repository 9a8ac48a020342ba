"""The minimum of a risk over its intercept: a bracket, and Newton steps in it where curvature is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import check_each
from riskmin.losses.conjugate import IntervalConjugate
from riskmin.numerics.precision import INTERCEPT_SLOPE_ROUNDING
from riskmin.numerics.univariate import (
    NoMinimum,
    Tangent,
    best_tangent,
    bracket_minimum,
    refine_bracket,
    refine_smooth_bracket,
)

INTERCEPT_RELATIVE_GAP = 1e-12
"""Relative gap, (value - bound) / value, to which min_b R(w, b) is computed."""
CONSTANT_RISK_SLOPE = 1e-11
"""Derivatives of the mean loss in b up to this size are taken for zero: they are rounding errors."""
VANISHED_RISK_RATIO = 1e-60
"""A risk that falls to this share of its start before it rises has its minimum at infinity."""

Derivatives: TypeAlias = Callable[[float], tuple[float, float, float]]
"""Maps b to the slope and the curvature of the risk, and to the sum of the absolute terms of the slope."""


def solve_intercept(
    f: Callable[[float], Tangent],
    b: float,
    derivatives: Derivatives | None = None,
    slack: float = 0.0,
    curvature: float = 0.0,
) -> tuple[Tangent, Tangent]:
    """Two tangents around the minimum of the risk over the intercept; the search starts at b.

    Without derivatives, their intersection proves a relative gap of 1e-12, or the minimum up to the slack.
    With them, they are as close to the minimum as rounding allows: their mixture is the gradient there.
    `curvature` is an estimate that gives the first step its length.
    """
    if derivatives is not None:
        slope, curvature, _ = derivatives(b)
        ends = -math.inf, math.inf
        if not abs(slope) < curvature:  # a long Newton step might end where a steep loss overflows
            lo, hi = bracket_intercept(f, f(b), 0.1)
            b, ends = best_tangent(lo, hi).x, (lo.x, hi.x)
        b, step, _ = newton_in_bracket(derivatives, b, INTERCEPT_SLOPE_ROUNDING, *ends)
        if (bracket := _straddle(f, b, 4 * step)) is not None:
            return bracket
    start = f(b)
    # a Newton step, 1.5 times as long so that it mostly ends beyond the minimum
    step = 1.5 * abs(start.slope) / curvature if curvature > 0 else 0.1
    return refine_intercept(f, *bracket_intercept(f, start, step), slack)


def newton_in_bracket(
    derivatives: Derivatives, b: float, tol: float, lo: float = -math.inf, hi: float = math.inf
) -> tuple[float, float, bool]:
    """The intercept whose slope is at most tol times its absolute terms, by Newton's method in a bracket.

    Also returns the length of the next Newton step, about the error, and whether it has converged: if not,
    the risk may have no minimum.
    """
    extension = 1.0
    for _ in check_each(range(100)):
        slope, curvature, terms = derivatives(b)
        step = abs(slope) / curvature if curvature > 0 else math.inf
        if abs(slope) <= tol * terms:
            return b, step, True
        # the slope is nondecreasing in b: its sign gives the side of the minimizer
        lo, hi = (b, hi) if slope < 0 else (lo, b)
        new = b - slope / curvature if curvature > 0 else math.inf
        if not lo < new < hi:
            # bisect a finite bracket; extend an infinite one by steps that grow by a factor of 4
            new = 0.5 * (lo + hi) if math.isfinite(hi - lo) else b - math.copysign(extension, slope)
            extension *= 4
        # shorter steps are rounding: the remaining slope is removed by mixing two cuts
        if not lo < new < hi or abs(new - b) <= 1e-13 * (1 + abs(b)):
            return b, step, True
        b = new
    return b, step, False


def _straddle(f: Callable[[float], Tangent], b: float, radius: float) -> tuple[Tangent, Tangent] | None:
    """Tangents on either side of b, as close as possible, with the minimum between them; None without."""
    # at least the spacing of floating-point numbers near b
    radius += 1e-15 * (1 + abs(b))
    for _ in check_each(range(12 if math.isfinite(radius) else 0)):
        lo, hi = f(b - radius), f(b + radius)
        if lo.slope <= 0 <= hi.slope:
            return lo, hi
        radius *= 8
    return None


def is_best(value: float, slope: float, curvature: float) -> bool:
    """Whether a Newton step in the intercept would lower the risk by slope^2 / (2 curvature) of rounding."""
    return slope**2 <= 0.5 * curvature * INTERCEPT_RELATIVE_GAP * value


def best_interval(rows: IntervalConjugate, z: NDArray, c: NDArray) -> tuple[float, float]:
    """The interval of best intercepts of a loss that is linear in each score but for kinks (square = 0).

    A search may find any point of it, while its ends depend on the data alone. An end at infinity is
    replaced by the other one.
    """
    # the slope of row i in b jumps from c_i lower_i to c_i upper_i; with epsilon, it is 0 between two kinks
    kinks, jumps = rows.shift - z, c * (rows.upper - rows.lower)
    if rows.epsilon:
        kinks = np.concatenate([kinks - rows.epsilon, kinks + rows.epsilon])
        jumps = np.concatenate([-c * rows.lower, c * rows.upper])
    order, slope = np.argsort(kinks), float(c @ rows.lower)
    # the slope of the risk beyond each kink
    slopes = slope + np.cumsum(jumps[order])
    left, right = (int(np.argmax(slopes > end)) for end in (-CONSTANT_RISK_SLOPE, CONSTANT_RISK_SLOPE))
    if not slopes[-1] > CONSTANT_RISK_SLOPE:
        right = left
    elif not slope < -CONSTANT_RISK_SLOPE:
        left = right
    return float(kinks[order[left]]), float(kinks[order[right]])


def refine_intercept(
    f: Callable[[float], Tangent], lo: Tangent, hi: Tangent, slack: float = 0.0, smooth: bool = False
) -> tuple[Tangent, Tangent]:
    """Two tangents within a bracket whose intersection proves the minimum, up to the slack."""

    def gap(best: float) -> float:
        return max(INTERCEPT_RELATIVE_GAP * abs(best), slack)

    if smooth:
        return refine_smooth_bracket(f, lo, hi, gap)
    return refine_bracket(f, lo, hi, lambda best, bound: best - bound <= gap(best))


def bracket_intercept(f: Callable[[float], Tangent], start: Tangent, step: float) -> tuple[Tangent, Tangent]:
    """Two tangents that bracket the minimum of the risk over the intercept, by growing steps from a start."""
    # the square of a larger intercept might overflow
    if not math.isfinite(start.value) or abs(start.x) > 1e150:
        raise ValueError(
            f"the risk is {start.value} at an intercept of {start.x:.3g}, beyond double precision: scale y"
        )
    # R >= 0, so the tangent's root bounds useful steps: far beyond it, steep losses overflow
    if start.slope:
        step = min(step, 4 * start.value / abs(start.slope))
    try:
        lo, hi = bracket_minimum(f, start, max(step, 1e-9 * (1 + abs(start.x))))
        vanished = (
            best_tangent(lo, hi).value == 0 < max(lo.value, hi.value) <= VANISHED_RISK_RATIO * start.value
        )
        if vanished and not _rises_beyond(f, best_tangent(lo, hi).x, start):
            raise NoMinimum("it is zero only by underflow")
    except NoMinimum:  # other errors are those of the risk, such as a refusal of data owners
        raise NoMinimum(
            "the risk falls for ever as the intercept grows, so no best intercept exists: "
            "check the labels (are all counts zero? are numbers beyond 1e30?) or fit without an intercept"
        ) from None
    return lo, hi


def _rises_beyond(f: Callable[[float], Tangent], flat_point: float, start: Tangent) -> bool:
    """Whether f increases again beyond a point where it is flat, in the direction away from the start."""
    # points flat_point + 2^k step, up to 2^39 times as far as the flat point is from the start
    step = flat_point - start.x
    return any(f(flat_point + step * 2.0**k).slope * step > 0 for k in range(40))
