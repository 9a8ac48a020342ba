"""Losses with exponentials for Newton's method: first and second derivatives.

The logistic loss has separate kernels. The other losses are e^(a z) - r (1 + z - log r), with the row's
sign a and rate r: a = -y, r = 0 for the exponential loss, and a = 1, r = y for the Poisson loss.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.exponential import exponential, log_one_plus
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

TANGENT_EXP_ABOVE = 0.5 * math.log(float(np.finfo(np.float64).max))
"""Above this, e^x is continued by its tangent, as in the losses themselves."""


# ---------------------------------------------------------------- logistic
@njit(fastmath={"contract", "reassoc", "nsz"})
def logistic_line_derivatives(z: Any, dz: Any, t: float, b: float, y: Any, c: Any, out: Any) -> None:
    """Compute the derivatives of sum_i c_i log(1 + e^(-y_i s_i)) at s = z + t dz + b.

    g = -c y / (1 + e^(y s)), h = c p (1 - p), in the slots of `piecewise_quadratic`, with p = 1 / (1 + e^s);
    e^(-|s|) is used, so that nothing overflows.
    """
    d_t = d_b = d_tt = d_tb = d_bb = abs_sum = 0.0
    for i in range(len(z)):
        d = dz[i]
        s = z[i] + t * d + b
        e = exponential(-abs(s))
        r = 1.0 / (1.0 + e)
        q = e * r
        # q and r are the smaller and the larger probability of the two labels
        g, h = -c[i] * y[i] * (q if y[i] * s > 0.0 else r), c[i] * (q * r)
        # first derivatives in t and b, then second derivatives
        d_t += g * d
        d_b += g
        abs_sum += abs(g)
        d_tt += h * d * d
        d_tb += h * d
        d_bb += h
    out[D_T], out[D_B], out[LINE_ABS_SUM] = d_t, d_b, abs_sum
    out[D_TT], out[D_TB], out[D_BB] = d_tt, d_tb, d_bb


@njit(fastmath={"contract", "reassoc", "nsz"})
def logistic_evaluate_with_cut(
    z: Any, b: float, y: Any, c: Any, slopes: Any, curvatures: Any, out: Any
) -> None:
    """Compute slopes and curvatures of all rows at z + b, weighted by c, and the sums of a cut in out.

    The cut is the tangent: its offset is sum_i (value_i - g_i s_i).
    """
    total_value = offset = abs_terms = slope_b = abs_sum = curvature_b = 0.0
    rising = rising_offset = 0.0
    for i in range(len(z)):
        s = z[i] + b
        e = exponential(-abs(s))
        r = 1.0 / (1.0 + e)
        q = e * r
        margin = y[i] * s
        g = -c[i] * y[i] * (q if margin > 0.0 else r)
        slopes[i], curvatures[i] = g, c[i] * (q * r)
        # log(1 + e^-m) = log(1 + e^-|m|) + max(-m, 0)
        value = c[i] * (log_one_plus(e) + (0.0 if margin > 0.0 else -margin))
        # the tangent at s_i: its offset, and the absolute values of the terms that cancel
        total_value += value
        offset += value - g * s
        # products with 0 or 1 in place of branches, which would not be vectorized
        up = 1.0 * (g > 0.0)
        rising += up * g
        rising_offset += up * (value - g * s)
        curvature_b += curvatures[i]
        abs_terms += value + abs(g * s)
        slope_b += g
        abs_sum += abs(g)
    out[VALUE], out[CUT_OFFSET] = total_value, offset
    out[CUT_ABS_TERMS], out[CUT_SLOPE_B] = abs_terms, slope_b
    out[CUT_ABS_SUM], out[CUT_CURVATURE_B] = abs_sum, curvature_b
    # all rows have nonzero second derivatives
    out[RISING_SUM], out[RISING_OFFSET] = rising, rising_offset
    out[FALLING_SUM], out[FALLING_OFFSET] = abs_sum - rising, offset - rising_offset


# ---------------------------------------------------------------- others
@njit(fastmath={"contract", "reassoc", "nsz"})
def exponential_line_derivatives(
    z: Any, dz: Any, t: float, b: float, sign: Any, rate: Any, c: Any, out: Any
) -> None:
    """Compute the derivatives of sum_i c_i (e^(a_i s_i) - r_i (1 + s_i - log r_i)) at s = z + t dz + b.

    g = a c e^(a s) - c r, h = c e^(a s), with the exponent cut off at `TANGENT_EXP_ABOVE`.
    """
    d_t = d_b = d_tt = d_tb = d_bb = abs_sum = 0.0
    for i in range(len(z)):
        d = dz[i]
        x = sign[i] * (z[i] + t * d + b)
        h = c[i] * exponential(x if x < TANGENT_EXP_ABOVE else TANGENT_EXP_ABOVE)
        # d/ds e^(a s) = a e^(a s), and a^2 = 1
        g = sign[i] * h - c[i] * rate[i]
        # first derivatives in t and b, then second derivatives
        d_t += g * d
        d_b += g
        abs_sum += abs(g)
        d_tt += h * d * d
        d_tb += h * d
        d_bb += h
    out[D_T], out[D_B], out[LINE_ABS_SUM] = d_t, d_b, abs_sum
    out[D_TT], out[D_TB], out[D_BB] = d_tt, d_tb, d_bb


@njit(fastmath={"contract", "reassoc", "nsz"})
def exponential_evaluate_with_cut(
    z: Any, b: float, sign: Any, rate: Any, c: Any, log_rate: Any, slopes: Any, curvatures: Any, out: Any
) -> None:
    """Compute slopes and curvatures of all rows at z + b, weighted by c, and the sums of a cut in out.

    The cut is the tangent: its offset is sum_i (value_i - g_i s_i).
    """
    total_value = offset = abs_terms = slope_b = abs_sum = curvature_b = 0.0
    rising = rising_offset = 0.0
    for i in range(len(z)):
        s = z[i] + b
        x = sign[i] * s
        e = exponential(x if x < TANGENT_EXP_ABOVE else TANGENT_EXP_ABOVE)
        g = c[i] * (sign[i] * e - rate[i])
        slopes[i], curvatures[i] = g, c[i] * e
        # beyond the cut-off the exponential is replaced by its tangent e (1 + x - cut-off)
        tangent = 1.0 + (x - TANGENT_EXP_ABOVE if x > TANGENT_EXP_ABOVE else 0.0)
        value = c[i] * (e * tangent - rate[i] - rate[i] * (s - log_rate[i]))
        # the tangent at s_i: its offset, and the absolute values of the terms that cancel
        total_value += value
        offset += value - g * s
        # products with 0 or 1 in place of branches, which would not be vectorized
        up = 1.0 * (g > 0.0)
        rising += up * g
        rising_offset += up * (value - g * s)
        curvature_b += curvatures[i]
        abs_terms += abs(value) + abs(g * s)
        slope_b += g
        abs_sum += abs(g)
    out[VALUE], out[CUT_OFFSET] = total_value, offset
    out[CUT_ABS_TERMS], out[CUT_SLOPE_B] = abs_terms, slope_b
    out[CUT_ABS_SUM], out[CUT_CURVATURE_B] = abs_sum, curvature_b
    # all rows have nonzero second derivatives
    out[RISING_SUM], out[RISING_OFFSET] = rising, rising_offset
    out[FALLING_SUM], out[FALLING_OFFSET] = abs_sum - rising, offset - rising_offset


# ---------------------------------------------------------------- ranges of rows that threads share
@njit()
def logistic_line_derivatives_of_ranges(
    progress: Any, memory: Any, ends: Any, z: Any, dz: Any, t: float, b: float, y: Any, c: Any, out: Any
) -> None:
    """Set out[k] to the line derivatives of rows ends[k] to ends[k + 1] - 1."""
    k = next_item(progress)
    while k >= 0:
        i, j = ends[k], ends[k + 1]
        logistic_line_derivatives(z[i:j], dz[i:j], t, b, y[i:j], c[i:j], out[k])
        k = next_item(progress)


@njit()
def logistic_evaluate_with_cut_of_ranges(
    progress: Any,
    memory: Any,
    ends: Any,
    z: Any,
    b: float,
    y: Any,
    c: Any,
    slopes: Any,
    curvatures: Any,
    out: Any,
) -> None:
    """Set slopes and curvatures, and out[k] to the sums of a cut over rows ends[k] to ends[k + 1] - 1."""
    k = next_item(progress)
    while k >= 0:
        i, j = ends[k], ends[k + 1]
        logistic_evaluate_with_cut(z[i:j], b, y[i:j], c[i:j], slopes[i:j], curvatures[i:j], out[k])
        k = next_item(progress)


@njit()
def exponential_line_derivatives_of_ranges(
    progress: Any,
    memory: Any,
    ends: Any,
    z: Any,
    dz: Any,
    t: float,
    b: float,
    sign: Any,
    rate: Any,
    c: Any,
    out: Any,
) -> None:
    """Set out[k] to the line derivatives of rows ends[k] to ends[k + 1] - 1."""
    k = next_item(progress)
    while k >= 0:
        i, j = ends[k], ends[k + 1]
        exponential_line_derivatives(z[i:j], dz[i:j], t, b, sign[i:j], rate[i:j], c[i:j], out[k])
        k = next_item(progress)


@njit()
def exponential_evaluate_with_cut_of_ranges(
    progress: Any, memory: Any,
    ends: Any, z: Any, b: float, sign: Any, rate: Any, c: Any, log_rate: Any, slopes: Any,
    curvatures: Any, out: Any,
) -> None:  # fmt: skip
    """Set slopes and curvatures, and out[k] to the sums of a cut over rows ends[k] to ends[k + 1] - 1."""
    k = next_item(progress)
    while k >= 0:
        i, j = ends[k], ends[k + 1]
        rows = sign[i:j], rate[i:j], c[i:j], log_rate[i:j]
        exponential_evaluate_with_cut(z[i:j], b, *rows, slopes[i:j], curvatures[i:j], out[k])
        k = next_item(progress)
