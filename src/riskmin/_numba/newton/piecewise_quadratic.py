r"""Multipliers of smoothed losses, row by row, for conjugates that are quadratic on an interval.

The conjugate is :math:`l^*(u) = shift\, u + \epsilon |u| + \tfrac12 square\, u^2` on [lower, upper]. The
multiplier of a row is :math:`u = \mathrm{clip}(\mathrm{shrink}(z - pull, \epsilon) \cdot inverse)`, where
shrink(r, epsilon) moves r towards 0 by epsilon, `pull` is the conjugate's shift minus mu times the smoothing
center, and `inverse` is 1 / (square + mu).
"""

from __future__ import annotations

from typing import Any

from riskmin._numba.compile_cache import njit
from riskmin._numba.newton.slots import (
    CUT_ABS_SUM,
    CUT_ABS_TERMS,
    CUT_CURVATURE_B,
    CUT_OFFSET,
    CUT_SLOPE_B,
    D_B,
    D_BB,
    D_T,
    D_TB,
    D_TT,
    FALLING_OFFSET,
    FALLING_SUM,
    LINE_ABS_SUM,
    RISING_OFFSET,
    RISING_SUM,
    VALUE,
)
from riskmin._numba.shards.items import next_item


@njit(inline="always")
def _multiplier(r: float, lower: float, upper: float, inverse: float, epsilon: float) -> tuple[float, float]:
    """Return u and du/dz of one row, for r = z - pull."""
    # shrink r by epsilon, scale, then clip; the derivative is zero at a bound and inside [-epsilon, epsilon]
    offset = -epsilon if r > 0.0 else epsilon
    v = (r + offset) * inverse
    derivative = inverse
    if v >= upper:
        v = upper
        derivative = 0.0
    if v <= lower:
        v = lower
        derivative = 0.0
    if r <= epsilon and r >= -epsilon and epsilon > 0.0:
        v = 0.0
        derivative = 0.0
    return v, derivative


@njit(fastmath={"contract", "reassoc", "nsz"})
def smoothed_line_derivatives(
    z: Any, dz: Any, t: float, b: float, pull: Any, lower: Any, upper: Any, c: Any,
    inverse: float, epsilon: float, out: Any,
) -> None:  # fmt: skip
    """Compute the derivatives of the smoothed loss at z + t dz + b, sum_i c_i l_mu(z_i + t dz_i + b).

    out: sums of g d, g, |g| with g = c u, and of h d^2, h d, h with h = c du/dz, in the slots above.
    """
    d_t = d_b = d_tt = d_tb = d_bb = abs_sum = 0.0
    for i in range(len(z)):
        d = dz[i]
        v, h = _multiplier((z[i] + t * d + b) - pull[i], lower[i], upper[i], inverse, epsilon)
        h *= c[i]
        g = c[i] * v
        # first derivatives in t and b
        d_t += g * d
        d_b += g
        abs_sum += abs(g)
        # second derivatives
        d_tt += h * d * d
        d_tb += h * d
        d_bb += h
    out[D_T], out[D_B], out[LINE_ABS_SUM] = d_t, d_b, abs_sum
    out[D_TT], out[D_TB], out[D_BB] = d_tt, d_tb, d_bb


@njit(fastmath={"contract", "reassoc", "nsz"})
def evaluate_with_cut(
    z: Any, b: float, shift: Any, pull: Any, lower: Any, upper: Any, c: Any,
    inverse: float, epsilon: float, square: float, slopes: Any, curvatures: Any, out: Any,
) -> None:  # fmt: skip
    """Compute slopes c u and curvatures c du/dz of all rows at z + b, and the sums of a cut in out.

    The cut's offset is -sum_i c_i l*(u_i); the value is the unsmoothed loss sum_i c_i max_u (u s_i - l*(u)).
    """
    value = offset = abs_terms = slope_b = abs_sum = curvature_b = 0.0
    rising = rising_offset = falling = falling_offset = 0.0
    for i in range(len(z)):
        s = z[i] + b
        v, h = _multiplier(s - pull[i], lower[i], upper[i], inverse, epsilon)
        h *= c[i]
        slopes[i], curvatures[i] = c[i] * v, h
        # l*(u) of the unsmoothed conjugate: its cut is valid for the loss itself
        conjugate = shift[i] * v + epsilon * abs(v) + 0.5 * square * v * v
        offset -= c[i] * conjugate
        slope_b += c[i] * v
        curvature_b += h
        # products with 0 or 1 in place of branches, which would not be vectorized
        up, down = 1.0 * (h > 0.0) * (v > 0.0), 1.0 * (h > 0.0) * (v < 0.0)
        rising += up * (c[i] * v)
        rising_offset -= up * (c[i] * conjugate)
        falling -= down * (c[i] * v)
        falling_offset -= down * (c[i] * conjugate)
        abs_sum += c[i] * abs(v)
        # absolute values of the terms that cancel, for the bound on rounding errors
        abs_terms += c[i] * (abs(v) * (abs(s) + abs(shift[i])) + abs(conjugate))
        # unsmoothed loss: maximize u e - epsilon |u| - square u^2 / 2 over [lower, upper]
        e = s - shift[i]
        e = e - epsilon if e > epsilon else (e + epsilon if e < -epsilon else 0.0)
        if square > 0.0:
            u = e / square
            u = upper[i] if u > upper[i] else (lower[i] if u < lower[i] else u)
            value += c[i] * (u * e - 0.5 * square * u * u)
        elif e != 0.0:
            value += c[i] * e * (upper[i] if e > 0.0 else lower[i])
    out[VALUE], out[CUT_OFFSET], out[CUT_ABS_TERMS], out[CUT_SLOPE_B] = value, offset, abs_terms, slope_b
    out[CUT_ABS_SUM], out[CUT_CURVATURE_B] = abs_sum, curvature_b
    out[RISING_SUM], out[RISING_OFFSET] = rising, rising_offset
    out[FALLING_SUM], out[FALLING_OFFSET] = falling, falling_offset


@njit(fastmath={"contract", "reassoc", "nsz"})
def unsmoothed_value_slope(
    z: Any, b: float, shift: Any, lower: Any, upper: Any, c: Any, epsilon: float, square: float, out: Any
) -> None:
    """Compute the unsmoothed loss at z + b (out[0]) and its derivative in b (out[1]).

    A row at a nonsmooth point contributes zero to the derivative.
    """
    value = slope_b = 0.0
    for i in range(len(z)):
        # maximize u e - epsilon |u| - square u^2 / 2 over [lower, upper], as in `evaluate_with_cut`
        e = z[i] + b - shift[i]
        e = e - epsilon if e > epsilon else (e + epsilon if e < -epsilon else 0.0)
        if square > 0.0:
            u = e / square
            u = upper[i] if u > upper[i] else (lower[i] if u < lower[i] else u)
        else:
            u = 0.0 if e == 0.0 else (upper[i] if e > 0.0 else lower[i])
        value += c[i] * (u * e - 0.5 * square * u * u)
        slope_b += c[i] * u
    out[0], out[1] = value, slope_b


# ---------------------------------------------------------------- ranges of rows that threads share
@njit()
def smoothed_line_derivatives_of_ranges(
    progress: Any, memory: Any,
    ends: Any, z: Any, dz: Any, t: float, b: float, pull: Any, lower: Any, upper: Any, c: Any,
    inverse: float, epsilon: float, out: Any,
) -> None:  # fmt: skip
    """Set out[k] to the line derivatives of rows ends[k] to ends[k + 1] - 1."""
    k = next_item(progress)
    while k >= 0:
        i, j = ends[k], ends[k + 1]
        rows = pull[i:j], lower[i:j], upper[i:j], c[i:j]
        smoothed_line_derivatives(z[i:j], dz[i:j], t, b, *rows, inverse, epsilon, out[k])
        k = next_item(progress)


@njit()
def evaluate_with_cut_of_ranges(
    progress: Any, memory: Any,
    ends: Any, z: Any, b: float, shift: Any, pull: Any, lower: Any, upper: Any, c: Any,
    inverse: float, epsilon: float, square: float, slopes: Any, curvatures: Any, out: Any,
) -> None:  # fmt: skip
    """Set slopes and curvatures, and out[k] to the sums of a cut over rows ends[k] to ends[k + 1] - 1."""
    k = next_item(progress)
    while k >= 0:
        i, j = ends[k], ends[k + 1]
        rows = shift[i:j], pull[i:j], lower[i:j], upper[i:j], c[i:j]
        results = slopes[i:j], curvatures[i:j], out[k]
        evaluate_with_cut(z[i:j], b, *rows, inverse, epsilon, square, *results)
        k = next_item(progress)


@njit()
def unsmoothed_value_slope_of_ranges(
    progress: Any, memory: Any,
    ends: Any, z: Any, b: float, shift: Any, lower: Any, upper: Any, c: Any, epsilon: float,
    square: float, out: Any,
) -> None:  # fmt: skip
    """Set out[k] to the unsmoothed loss of rows ends[k] to ends[k + 1] - 1 and its derivative in b."""
    k = next_item(progress)
    while k >= 0:
        i, j = ends[k], ends[k + 1]
        rows = shift[i:j], lower[i:j], upper[i:j], c[i:j]
        unsmoothed_value_slope(z[i:j], b, *rows, epsilon, square, out[k])
        k = next_item(progress)


@njit()
def pull_of_ranges(
    progress: Any, memory: Any, ends: Any, shift: Any, c: Any, center: Any, mu: float, pull: Any
) -> None:
    """Set pull to shift - mu center / c; rows without weight have no multiplier."""
    k = next_item(progress)
    while k >= 0:
        for i in range(ends[k], ends[k + 1]):
            start = center[i] / c[i] if c[i] > 0.0 else 0.0
            pull[i] = shift[i] - mu * start
        k = next_item(progress)


# ---------------------------------------------------------------- a line
@njit()
def minimize_on_line(
    z: Any, dz: Any, pull: Any, lower: Any, upper: Any, c: Any, inverse: float, epsilon: float,
    slope0: float, square0: float, lo: float, t: float,
    tol: float, relative_tol: float, min_decrease: float, min_step: float, out: Any,
) -> float:  # fmt: skip
    """Return the t > lo that minimizes the smoothed loss at z + t dz, plus slope0 t + square0 t^2 / 2.

    Newton's method in a bracket, up to a slope of `tol`, or of `relative_tol` times its absolute terms,
    or until at most `min_decrease` is left, or steps are below `min_step`. out: the last derivatives.
    """
    hi, first, width, extension = 1e300, lo, 1e300, 1.0
    for k in range(1, 201):
        smoothed_line_derivatives(z, dz, t, 0.0, pull, lower, upper, c, inverse, epsilon, out)
        slope, curvature = out[D_T] + slope0 + t * square0, out[D_TT] + square0
        if slope < 0.0:
            lo = t
        else:
            hi = t
        # by convexity, the minimum is at most |slope| (hi - lo) below
        enough = max(tol, relative_tol * out[LINE_ABS_SUM])
        if abs(slope) <= enough or abs(slope) * (hi - lo) <= min_decrease:
            return t
        new = t - slope / curvature if curvature > 0.0 else 1e300
        if abs(new - t) <= min_step:
            return t
        # every third evaluation, a bracket that was not halved since the last check is bisected
        slow = k % 3 == 0 and hi - lo > 0.5 * width
        width = hi - lo if k % 3 == 0 else width
        if slow or not lo < new < hi:
            if hi - lo < 1e300:
                new = 0.5 * (lo + hi)
            else:  # extend an infinite bracket
                new = t + extension if slope < 0.0 else t - extension
                extension *= 4.0
        if not lo < new < hi:
            break
        t = new
    return lo if lo > first else t
