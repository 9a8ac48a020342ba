"""Rounding: the unit of double precision, and allowances for the errors of sums."""

from __future__ import annotations

import math

CUT_ROUNDING = 2.0**-48
"""Relative rounding error of sums over the data, as a fraction of the sum of their absolute terms."""

DOT_ROUNDING = 2.0**-50
"""Relative rounding error of inner products, times the sum of the absolute values of their terms."""

SUM_ROUNDING = 2.0**-50
"""Relative rounding error of the slopes of non-decomposable losses, times the largest possible slope."""

INTERCEPT_SLOPE_ROUNDING = 2.0**-49
"""The slope in the intercept, sum_i c_i u_i, counts as 0 up to this share of sum_i |c_i u_i|."""

EPSILON = 2.0**-52
"""The distance from 1 to the next number of double precision."""

ULPS_PER_TERM = 4.0
"""Error of each term of a sum, in units in the last place."""


def sum_rounding(n: int) -> float:
    """The rounding error of a sum of n terms, relative to the sum of their absolute values."""
    # most errors cancel: what is left of them grows with sqrt(n)
    return EPSILON * (ULPS_PER_TERM + 0.25 * math.sqrt(n))


RESIDUAL_ROUNDING = 1e-13
"""A residual diagonal up to this size, relative to its largest initial entry, is only rounding error."""
