"""Exponentials of whole arrays, a few at a time: the processor's own loop, as no compiled library has one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit

LEAST = -708.0
"""e^x for x below is taken for zero: it is hardly a number any more."""
PER_LOG2 = 1 / math.log(2)
LOG2, REST = 6.93145751953125e-01, 1.42860682030941723212e-06  # the first has few digits, so q LOG2 is exact
MAGIC = 1.5 * 2.0**52
"""Added to a number of moderate size, it leaves the nearest integer in the last bits."""
F = 1 / math.factorial(13)
COEFFICIENTS = tuple(1 / math.factorial(j) for j in range(12, -1, -1))


@njit(fastmath={"contract"})
def exponentials(x: Any, spare: Any) -> None:
    """e^x for x <= 700 in place of x, to the last digit but one; spare is as long.

    x = q log 2 + r, |r| <= log(2) / 2: a polynomial in r, times 2^q, whose bits are those of q, shifted.
    Three loops without branches or calls, so that the compiler takes four or eight numbers at a time.
    """
    n = len(x)
    for i in range(n):
        v = x[i] if x[i] > LEAST else LEAST
        m = v * PER_LOG2 + MAGIC
        q = m - MAGIC
        r = (v - q * LOG2) - q * REST
        p = F
        for f in COEFFICIENTS:
            p = p * r + f
        spare[i] = m
        x[i] = p if x[i] > LEAST else 0.0
    bits = spare.view(np.int64)
    for i in range(n):
        bits[i] = (bits[i] << 52) + (1023 << 52)
    for i in range(n):
        x[i] *= spare[i]
