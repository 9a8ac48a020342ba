"""Slots of the sums over rows that Newton's method computes: plain numbers, which need no Numba."""

from __future__ import annotations

D_T, D_B, D_TT, D_TB, D_BB, LINE_ABS_SUM = range(6)
"""Slots of `out` of line derivatives, for scores z + t dz + b.

First derivatives in t and in b, second derivatives in t t, t b and b b, and the sum of the absolute slopes.
"""
VALUE, CUT_OFFSET, CUT_ABS_TERMS, CUT_SLOPE_B, CUT_ABS_SUM, CUT_CURVATURE_B = range(6)
"""Slots of `out` at a point.

The unsmoothed loss, the cut's offset, the absolute sum of its terms, the cut's first and second derivative in
the intercept b, and the sum of the absolute slopes.
"""
RISING_SUM, RISING_OFFSET, FALLING_SUM, FALLING_OFFSET = range(6, 10)
"""More slots at a point: over the rows with nonzero second derivatives and positive (rising) or negative
(falling) slopes, the sum of the absolute slopes and the part of the cut's offset."""
N_CUT_SUMS = 10
"""The number of sums at a point."""
