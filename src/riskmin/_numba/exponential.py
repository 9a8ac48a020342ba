"""Branch-free exponential and logarithm, so that the compiler vectorizes the loops around them.

Numba's exponential and logarithm call the C library for one number at a time.
"""

from __future__ import annotations

import math

import numpy as np

from riskmin._numba.compile_cache import njit

EXP_ZERO_BELOW = -708.0
"""e^x is taken as zero for x at or below this, close to the underflow of float64."""
PER_LOG2 = 1 / math.log(2)
# log 2 = LOG2_HIGH + LOG2_LOW; LOG2_HIGH has few significant bits, so that q LOG2_HIGH is exact
LOG2_HIGH, LOG2_LOW = 6.93145751953125e-01, 1.42860682030941723212e-06
ROUNDING_SHIFT = 1.5 * 2.0**52
"""Adding it to a number of moderate size leaves the nearest integer in the lowest bits."""
BITS_OF_ONE = 1023 << 52
"""The bits of 1.0: its biased exponent, shifted to its place."""
# Taylor coefficients of e^r from r^13 down to r^0
EXP_HIGHEST = 1 / math.factorial(13)
EXP_COEFFICIENTS = tuple(1 / math.factorial(j) for j in range(12, -1, -1))

# range reduction of log(1 + e), see `log_one_plus`
LOG_REDUCTION = 0.6
LOG_REDUCTION_LOG = math.log1p(LOG_REDUCTION)
ARTANH_HIGHEST = 1 / 19
ARTANH_COEFFICIENTS = tuple(1 / k for k in range(17, 0, -2))
"""Coefficients of artanh(s) / s = 1 + s^2 / 3 + ... + s^18 / 19, from the highest but one down."""


@njit(fastmath={"contract"})
def exponential(x: float) -> float:
    """Return e^x for x <= 700, accurate to about one unit in the last place.

    x = q log 2 + r with integer q and |r| <= log(2) / 2; e^x = 2^q p(r), where p is a polynomial and 2^q is
    made by shifting q into the exponent bits.
    """
    v = x if x > EXP_ZERO_BELOW else EXP_ZERO_BELOW
    # q is v / log 2, rounded to an integer, which is also in the lowest bits of m
    m = v * PER_LOG2 + ROUNDING_SHIFT
    q = m - ROUNDING_SHIFT
    r = (v - q * LOG2_HIGH) - q * LOG2_LOW
    # Horner's scheme for the Taylor polynomial of e^r
    p = EXP_HIGHEST
    for coefficient in EXP_COEFFICIENTS:
        p = p * r + coefficient
    # 2^q: q in the exponent field, added to the exponent of 1.0
    scale = np.int64((np.float64(m).view(np.int64) << 52) + BITS_OF_ONE).view(np.float64)
    return p * scale if x > EXP_ZERO_BELOW else 0.0


@njit(fastmath={"contract"})
def log_one_plus(e: float) -> float:
    """Return log(1 + e) for 0 <= e <= 1.

    log(1 + e) = log(1 + m) + 2 artanh(s) with s = (e - m) / (2 + e + m). m is 0 for e <= 0.25, which keeps
    the relative accuracy of small e, and else 0.6, so that |s| <= 1/8 and the series is short.
    """
    m = LOG_REDUCTION if e > 0.25 else 0.0
    s = (e - m) / (e + (2.0 + m))
    q = s * s
    # Horner's scheme for artanh(s) / s in s^2
    p = ARTANH_HIGHEST
    for coefficient in ARTANH_COEFFICIENTS:
        p = p * q + coefficient
    return (LOG_REDUCTION_LOG if e > 0.25 else 0.0) + 2.0 * s * p


# ---------------------------------------------------------------- all of double precision
MIN_EXPONENT, MAX_EXPONENT = -746.0, 710.0
"""e^x is zero below and infinite above."""
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
"""The bits of sqrt(1/2)."""
MANTISSA_BITS = (1 << 52) - 1
SMALLEST_NORMAL = 2.0**-1022


@njit(inline="always")
def _power_of_two(shifted: float) -> float:
    """Return 2^q, for q + `ROUNDING_SHIFT` with |q| <= 1022."""
    return np.int64((np.float64(shifted).view(np.int64) << 52) + BITS_OF_ONE).view(np.float64)


@njit(fastmath={"contract"})
def exp(x: float) -> float:
    """Return e^x for any x, as `exponential`; 2^q in two factors, since q may exceed the exponent's range."""
    v = MIN_EXPONENT if x < MIN_EXPONENT else (MAX_EXPONENT if x > MAX_EXPONENT else x)  # NaN stays NaN
    q = (v * PER_LOG2 + ROUNDING_SHIFT) - ROUNDING_SHIFT
    r = (v - q * LOG2_HIGH) - q * LOG2_LOW
    p = EXP_HIGHEST
    for coefficient in EXP_COEFFICIENTS:
        p = p * r + coefficient
    half = 0.5 * q + ROUNDING_SHIFT
    rest = (q - (half - ROUNDING_SHIFT)) + ROUNDING_SHIFT
    return p * _power_of_two(half) * _power_of_two(rest)


@njit(fastmath={"contract"})
def log(x: float) -> float:
    """Return log x for any x.

    x = 2^k f with sqrt(1/2) <= f < sqrt(2), and log f = 2 artanh((f - 1) / (f + 1)).
    """
    subnormal = x < SMALLEST_NORMAL
    bits = np.float64(x * 2.0**54 if subnormal else x).view(np.int64)
    # the exponent of x relative to sqrt(1/2), so that f lies around 1
    offset = np.int64(bits - SQRT_HALF_BITS)
    k = np.float64(offset >> 52) - (54.0 if subnormal else 0.0)
    f = np.int64((offset & MANTISSA_BITS) + SQRT_HALF_BITS).view(np.float64)
    s = (f - 1.0) / (f + 1.0)
    q = s * s
    p = ARTANH_HIGHEST
    for coefficient in ARTANH_COEFFICIENTS:
        p = p * q + coefficient
    y: float = k * LOG2_HIGH + (2.0 * s * p + k * LOG2_LOW)
    # zero, negative numbers and NaN, infinity
    y = -math.inf if x == 0.0 else y
    y = math.nan if not x >= 0.0 else y
    return x if x == math.inf else y


@njit()
def log1p(x: float) -> float:
    """Return log(1 + x) for any x, with the part of x that 1 + x rounds off."""
    u = 1.0 + x
    y = log(u)
    correction = (x - (u - 1.0)) / u
    return y + correction if abs(correction) < 1.0 else y
