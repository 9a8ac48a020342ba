"""Minimization of convex functions of one variable by value and slope: line searches and intercepts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import check
from riskmin.numerics.precision import CUT_ROUNDING


class Tangent(NamedTuple):
    """Value and slope of a function at x; of a function of two variables, also the slope in the other."""

    x: float
    value: float
    slope: float
    other_slope: float = 0.0


def intersection(lo: Tangent, hi: Tangent) -> tuple[float, float]:
    """Return where two tangents with slopes <= 0 <= intersect, and the height, a lower bound of the minimum.

    The height is that of the tangents' mixture with slope zero, minus a rounding allowance, which is
    large if one of the tangents was computed far above the minimum.
    """
    best = best_tangent(lo, hi)
    # a zero slope is the minimum itself
    if lo.slope == 0 or hi.slope == 0:
        stationary = lo if lo.slope == 0 else hi
        return stationary.x, stationary.value
    height = abs_sum = 0.0
    for weight, t in zip(zero_slope_weights(lo, hi), (lo, hi), strict=True):
        change = t.slope * (best.x - t.x)
        height += weight * (t.value + change)
        abs_sum += weight * (abs(t.value) + abs(change))
    # intersection as a step from the lower of the two points: the shorter way, with less rounding
    x = best.x + (height - best.value) / best.slope
    return x, min(height - CUT_ROUNDING * abs_sum, best.value)


def zero_slope_weights(lo: Tangent, hi: Tangent) -> tuple[float, float]:
    """Return the weights of two tangents in their mixture with slope zero.

    Each is computed separately, not as one minus the other, since one of them may be tiny.
    """
    if lo.slope == 0 or hi.slope == 0:
        return (1.0, 0.0) if lo.slope == 0 else (0.0, 1.0)
    return hi.slope / (hi.slope - lo.slope), lo.slope / (lo.slope - hi.slope)


def best_tangent(*tangents: Tangent) -> Tangent:
    """Return the tangent with the least value."""
    return min(tangents, key=lambda t: t.value)


class NoMinimum(ValueError):
    """Raised if a function falls as far as it is followed."""


def bracket_minimum(
    f: Callable[[float], Tangent], start: Tangent, step: float, reach: float = math.inf
) -> tuple[Tangent, Tangent]:
    """Return two tangents with slopes <= 0 <= around the minimum, found by growing steps from the start.

    If the function still decreases at the end of its domain, at distance `reach` from the start, the slope
    there counts as zero: the end is the minimizer.
    """
    end = start.x + math.copysign(reach, -start.slope)
    point = start
    step = math.copysign(step, -start.slope)
    # each step is four times the last one: after 60 of them, the function counts as unbounded
    for _ in range(60):
        if point.slope == 0:
            return point, point
        check()
        at_end = abs(point.x + step - start.x) >= reach
        next_point = f(end if at_end else point.x + step)
        # still decreasing at the end of the domain
        if at_end and (next_point.slope > 0) == (point.slope > 0):
            next_point = next_point._replace(slope=0.0)
        if (next_point.slope > 0) != (point.slope > 0) or next_point.slope == 0:
            # the slope changed sign: the minimum lies between the two points
            return (point, next_point) if step > 0 else (next_point, point)
        point, step = next_point, 4 * step
    raise NoMinimum("the function has no minimum: it falls for ever")


def refine_bracket(
    f: Callable[[float], Tangent], lo: Tangent, hi: Tangent, converged: Callable[[float, float], bool]
) -> tuple[Tangent, Tangent]:
    """Narrow a bracket until converged(best value, lower bound of the minimum).

    Alternates between the secant of the slopes, which suits smooth functions, and the intersection of the
    tangents, which is exact for piecewise linear ones; bisects if neither halves the bracket.
    """
    width, best = hi.x - lo.x, best_tangent(lo, hi)
    for k in range(200):
        if lo.slope == 0 or hi.slope == 0 or hi.x <= lo.x:
            break
        x, bound = intersection(lo, hi)
        if converged(best.value, bound):
            break
        # every third step: bisect unless the bracket has halved since the last such step
        if k % 3 == 2 and hi.x - lo.x > 0.5 * width:
            x = 0.5 * (lo.x + hi.x)
        # zero of the secant through the slopes
        elif k % 2 == 0:
            x = lo.x - lo.slope * (hi.x - lo.x) / (hi.slope - lo.slope)
        if k % 3 == 2:
            width = hi.x - lo.x
        if not lo.x < x < hi.x:
            x = 0.5 * (lo.x + hi.x)
            if not lo.x < x < hi.x:  # no floating-point number lies between
                break
        check()
        new = f(x)
        best = best_tangent(best, new)
        lo, hi = (new, hi) if new.slope <= 0 else (lo, new)
    return lo, hi


def refine_on_grids(
    f: Callable[[NDArray], list[Tangent]],
    start: Tangent,
    points: NDArray,
    converged: Callable[[Tangent, Tangent], bool],
    reach: float = math.inf,
) -> tuple[Tangent, Tangent]:
    """Return two tangents with slopes <= 0 <= around the minimum, by evaluations at many points at a time.

    The slope is negative at the start, and the first points lie beyond it. Each further call takes as many
    points between the ends of the bracket, which becomes narrower by one more than their number; or beyond
    the last one, each the square root of 2 times the one before. At the distance `reach`, the slope counts
    as zero.
    """
    lo, hi, count = start, None, len(points)
    for _ in range(60):
        inside = points[points - start.x < reach]
        points = inside if len(inside) == len(points) else np.append(inside, start.x + reach)
        check()
        for new in f(points):
            if new.slope <= 0 and new.x > lo.x:
                lo = new
            # a slope that is not a number is that of an overflow, far beyond the minimum
            elif not new.slope <= 0 and (hi is None or new.x < hi.x):
                hi = new
        if lo.slope == 0:
            return lo, lo
        if hi is None and lo.x - start.x >= reach:
            return lo, lo._replace(slope=0.0)
        if hi is None:
            points = start.x + (lo.x - start.x) * 2.0 ** (0.5 * np.arange(1, count + 1))
            continue
        if converged(lo, hi):
            return lo, hi
        points = np.linspace(lo.x, hi.x, count + 2)[1:-1]
        if not lo.x < points[0] <= points[-1] < hi.x:
            return lo, hi
    if hi is None:
        raise ValueError("the function has no minimum: it falls for ever")
    return lo, hi


def refine_smooth_bracket(
    f: Callable[[float], Tangent], lo: Tangent, hi: Tangent, gap: Callable[[float], float]
) -> tuple[Tangent, Tangent]:
    """Narrow a bracket of a smooth function until best - bound <= gap(best), in pairs of steps.

    The first step of a pair goes to the minimizer of the cubic with the values and slopes of both ends. The
    second goes beyond the minimum, by twice the distance that slope and curvature predict, so that both ends
    are near it: the error of a pair is about the square of that of the last one.
    """
    best, width = best_tangent(lo, hi), hi.x - lo.x
    for k in range(90):
        step = (_cubic_minimizer, _beyond_minimum, _bisection)[k % 3]
        # far from the minimum a cubic may be a poor model: bisect unless the pair has halved the bracket
        if step is _bisection:
            halved, width = hi.x - lo.x <= 0.5 * width, hi.x - lo.x
            if halved:
                continue
        if lo.slope == 0 or hi.slope == 0 or best.value - intersection(lo, hi)[1] <= gap(best.value):
            return lo, hi
        x = step(lo, hi, gap(best.value))
        x = x if lo.x < x < hi.x else 0.5 * (lo.x + hi.x)
        if not lo.x < x < hi.x:  # no floating-point number lies between
            return lo, hi
        check()
        new = f(x)
        best = best_tangent(best, new)
        lo, hi = (new, hi) if new.slope <= 0 else (lo, new)
    return refine_bracket(f, lo, hi, lambda best, bound: best - bound <= gap(best))


def _bisection(lo: Tangent, hi: Tangent, gap: float) -> float:
    return 0.5 * (lo.x + hi.x)


def _cubic_minimizer(lo: Tangent, hi: Tangent, gap: float) -> float:
    """The minimizer of the cubic with the values and slopes of both ends."""
    width = hi.x - lo.x
    d1 = lo.slope + hi.slope - 3 * (hi.value - lo.value) / width
    # slopes of opposite sign: the root is real
    d2 = math.sqrt(d1 * d1 - lo.slope * hi.slope)
    return hi.x - width * (hi.slope + d2 - d1) / (hi.slope - lo.slope + 2 * d2)


def _beyond_minimum(lo: Tangent, hi: Tangent, gap: float) -> float:
    """A point on the other side of the minimum than the end with the smaller slope, and close to it."""
    near, sign = (lo, 1.0) if -lo.slope < hi.slope else (hi, -1.0)
    # the mean curvature; tangents at a distance of e give a gap of about curvature e^2 / 2
    curvature = (hi.slope - lo.slope) / (hi.x - lo.x)
    return near.x + sign * (2 * abs(near.slope) / curvature + 0.5 * math.sqrt(gap / curvature))


def bracketed_newton(
    derivatives: Callable[[float], tuple[float, float]], start: float, ratio: float
) -> tuple[float, int]:
    """Return the minimizer of a convex function on t > 0 by its first two derivatives, and the evaluations.

    Newton's method from t = 1, safeguarded by a bracket that is at least halved every third evaluation: on
    exponentials, Newton's steps from above are short. `start` < 0 is the slope at t = 0, of which a share of
    `ratio` may be left.
    """
    # the slope is negative at lo and not at hi; `width` is that of the bracket at the last check
    lo, hi, t, width = 0.0, math.inf, 1.0, math.inf
    for n_evaluations in range(1, 61):
        slope, curvature = derivatives(t)
        if abs(slope) <= ratio * abs(start):
            return t, n_evaluations
        lo, hi = (t, hi) if slope < 0 else (lo, t)
        # where the second derivative vanishes, the step is infinite and leaves the bracket
        new = t - slope / curvature if curvature > 0 else math.inf
        # every third evaluation, a bracket that was not halved since the last check is bisected
        slow = n_evaluations % 3 == 0 and hi - lo > 0.5 * width
        # far too long steps, as where exponentials overflow, are shortened by powers of ten
        slow = slow or (lo == 0 and new > 0.5 * hi)
        width = hi - lo if n_evaluations % 3 == 0 else width
        if slow or not lo < new < hi:
            new = 10 * t if hi == math.inf else 0.1 * hi if lo == 0 else 0.5 * (lo + hi)
        new = min(new, 10 * t)
        if not lo < new < hi:
            break
        t = new
    # the function decreases up to lo, so that lo is a descent step; it is 0 where no slope was negative
    return lo or t, n_evaluations
