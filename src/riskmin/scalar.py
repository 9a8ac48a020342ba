"""Convex functions of one variable, each known by value and slope: the line search, and the intercept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from riskmin.deadline import check

ROUNDING = 2.0**-48
"""How well sums over the data are known, relative to their terms: some units in the last place."""


class Tangent(NamedTuple):
    """A function at x: its value and a slope; and, for a function of more variables, a slope across."""

    x: float
    value: float
    slope: float
    across: float = 0.0


def crossing(lo: Tangent, hi: Tangent) -> tuple[float, float]:
    """Where two tangents of slopes <= 0 <= meet, and the height there: a lower bound of the minimum.

    The height is taken from the lower of the two, and less what rounding may have added, which is much
    where one of them comes from far up.
    """
    best = lowest(lo, hi)
    if lo.slope == 0 or hi.slope == 0:
        flat = lo if lo.slope == 0 else hi
        return flat.x, flat.value
    height = size = 0.0
    for part, t in zip(balance(lo, hi), (lo, hi), strict=True):
        fall = t.slope * (best.x - t.x)
        height += part * (t.value + fall)
        size += part * (abs(t.value) + abs(fall))
    x = best.x + (height - best.value) / best.slope
    return x, min(height - ROUNDING * size, best.value)


def balance(lo: Tangent, hi: Tangent) -> tuple[float, float]:
    """The shares of two tangents in their mixture that is flat; each by itself, as one may be tiny."""
    if lo.slope == 0 or hi.slope == 0:
        return (1.0, 0.0) if lo.slope == 0 else (0.0, 1.0)
    return hi.slope / (hi.slope - lo.slope), lo.slope / (lo.slope - hi.slope)


def lowest(*tangents: Tangent) -> Tangent:
    """The one with the least value."""
    return min(tangents, key=lambda t: t.value)


def bracket(
    f: Callable[[float], Tangent], start: Tangent, step: float, reach: float = math.inf
) -> tuple[Tangent, Tangent]:
    """Two tangents with slopes <= 0 <= around the minimum, found by growing steps from the start.

    Where the function still falls at the end of its domain, `reach` from the start, its slope there counts
    as zero: that is its minimum.
    """
    end = start.x + math.copysign(reach, -start.slope)
    here = start
    step = math.copysign(step, -start.slope)
    for _ in range(60):
        if here.slope == 0:
            return here, here
        check()
        last = abs(here.x + step - start.x) >= reach
        there = f(end if last else here.x + step)
        if last and (there.slope > 0) == (here.slope > 0):
            there = there._replace(slope=0.0)
        if (there.slope > 0) != (here.slope > 0) or there.slope == 0:
            return (here, there) if step > 0 else (there, here)
        here, step = there, 4 * step
    raise ValueError("the function has no minimum: it falls for ever")


def shrink(
    f: Callable[[float], Tangent], lo: Tangent, hi: Tangent, enough: Callable[[float, float], bool]
) -> tuple[Tangent, Tangent]:
    """Narrow a bracket until enough(best value, lower bound of the minimum).

    By turns the secant of the slopes, which is right for smooth functions, and the crossing of the
    tangents, which is exact for piecewise linear ones; the middle, when neither halves the bracket.
    """
    width, best = hi.x - lo.x, lowest(lo, hi)
    for k in range(200):
        if lo.slope == 0 or hi.slope == 0 or hi.x <= lo.x:
            break
        x, bound = crossing(lo, hi)
        if enough(best.value, bound):
            break
        if k % 3 == 2 and hi.x - lo.x > 0.5 * width:
            x = 0.5 * (lo.x + hi.x)
        elif k % 2 == 0:
            x = lo.x - lo.slope * (hi.x - lo.x) / (hi.slope - lo.slope)
        if k % 3 == 2:
            width = hi.x - lo.x
        if not lo.x < x < hi.x:
            x = 0.5 * (lo.x + hi.x)
            if not lo.x < x < hi.x:  # no number lies between
                break
        check()
        new = f(x)
        best = lowest(best, new)
        lo, hi = (new, hi) if new.slope <= 0 else (lo, new)
    return lo, hi
