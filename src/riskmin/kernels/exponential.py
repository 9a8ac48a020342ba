"""Exponentials and logarithms without branches or calls, so that loops over them take several at a time.

Numba's own are calls of the C library, one number at a time. These are inlined, and the compiler makes vector
code of the loop around them.
"""

from __future__ import annotations

import math

import numpy as np

from riskmin.kernels.compiled import njit

LEAST = -708.0
"""e^x for x below is taken for zero: it is hardly a number any more."""
PER_LOG2 = 1 / math.log(2)
LOG2, REST = 6.93145751953125e-01, 1.42860682030941723212e-06  # the first has few digits, so q LOG2 is exact
MAGIC = 1.5 * 2.0**52
"""Added to a number of moderate size, it leaves the nearest integer in the last bits."""
ONE = 1023 << 52
"""The bits of the exponent of 1.0."""
F = 1 / math.factorial(13)
COEFFICIENTS = tuple(1 / math.factorial(j) for j in range(12, -1, -1))

MIDDLE = 0.6
LOG_MIDDLE = math.log1p(MIDDLE)
LAST = 1 / 19
ODDS = tuple(1 / k for k in range(17, 0, -2))
"""The series of the area tangent, s + s^3 / 3 + ... + s^19 / 19, from its end."""


@njit(fastmath={"contract"})
def exponential(x: float) -> float:
    """e^x for x <= 700, to the last digit but one.

    x = q log 2 + r, |r| <= log(2) / 2: a polynomial in r, times 2^q, whose bits are those of q, shifted.
    """
    v = x if x > LEAST else LEAST
    m = v * PER_LOG2 + MAGIC
    q = m - MAGIC
    r = (v - q * LOG2) - q * REST
    p = F
    for f in COEFFICIENTS:
        p = p * r + f
    scale = np.int64((np.float64(m).view(np.int64) << 52) + ONE).view(np.float64)
    return p * scale if x > LEAST else 0.0


@njit(fastmath={"contract"})
def log_one_plus(e: float) -> float:
    """log(1 + e) for 0 <= e <= 1.

    Of a ratio m to 1 + e, it is log m and twice the area tangent of s = (1 + e - m) / (1 + e + m), whose
    series is short: m is 1 for small e, which keeps all of their digits, and else such that |s| <= 1/8.
    """
    m = MIDDLE if e > 0.25 else 0.0
    s = (e - m) / (e + (2.0 + m))
    q = s * s
    p = LAST
    for f in ODDS:
        p = p * q + f
    return (LOG_MIDDLE if e > 0.25 else 0.0) + 2.0 * s * p
