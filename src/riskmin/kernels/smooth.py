"""Losses with exponentials, as Newton's method sees them: slopes and second derivatives.

The logistic loss has kernels of its own. The others are e^(a z) - r (1 + z - log r), a row's sign a and rate
r being -y and 0 for the exponential loss, 1 and y for Poisson's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.exponential import exponential, log_one_plus
from riskmin.kernels.newton import (
    ACROSS,
    BEND,
    CURVE,
    OFFSET,
    SIZE,
    SLOPE,
    TILT,
    TOTAL,
    TRUTH,
    TURN,
    WHOLE,
)

LARGEST = 0.5 * math.log(float(np.finfo(np.float64).max))
"""From here on e^x goes on as a straight line, as in the losses themselves."""


# ---------------------------------------------------------------- logistic
@njit(fastmath={"contract", "reassoc", "nsz"})
def logistic_along(z: Any, dz: Any, t: float, b: float, y: Any, c: Any, out: Any) -> None:
    """Slopes and second derivatives of the loss at z + t dz + b."""
    slope = across = bend = turn = curve = total = 0.0
    for i in range(len(z)):
        d = dz[i]
        s = z[i] + t * d + b
        e = exponential(-abs(s))
        r = 1.0 / (1.0 + e)
        q = e * r
        g, bent = -c[i] * y[i] * (q if y[i] * s > 0.0 else r), c[i] * (q * r)
        slope += g * d
        across += g
        total += abs(g)
        bend += bent * d * d
        turn += bent * d
        curve += bent
    out[SLOPE], out[ACROSS], out[TOTAL] = slope, across, total
    out[BEND], out[TURN], out[CURVE] = bend, turn, curve


@njit(fastmath={"contract", "reassoc", "nsz"})
def logistic_settle(z: Any, b: float, y: Any, c: Any, slopes: Any, bends: Any, out: Any) -> None:
    """The slopes and second derivatives of all rows at z + b, with c in them, and the sums of `out`."""
    truth = offset = size = tilt = whole = 0.0
    for i in range(len(z)):
        s = z[i] + b
        e = exponential(-abs(s))
        r = 1.0 / (1.0 + e)
        q = e * r
        margin = y[i] * s
        g = -c[i] * y[i] * (q if margin > 0.0 else r)
        slopes[i], bends[i] = g, c[i] * (q * r)
        value = c[i] * (log_one_plus(e) + (0.0 if margin > 0.0 else -margin))
        truth += value
        offset += value - g * s
        size += value + abs(g * s)
        tilt += g
        whole += abs(g)
    out[TRUTH], out[OFFSET], out[SIZE], out[TILT], out[WHOLE] = truth, offset, size, tilt, whole


# ---------------------------------------------------------------- others
@njit(fastmath={"contract", "reassoc", "nsz"})
def exponential_along(z: Any, dz: Any, t: float, b: float, sign: Any, rate: Any, c: Any, out: Any) -> None:
    """Slopes and second derivatives of the loss at z + t dz + b."""
    slope = across = bend = turn = curve = total = 0.0
    for i in range(len(z)):
        d = dz[i]
        x = sign[i] * (z[i] + t * d + b)
        bent = c[i] * exponential(x if x < LARGEST else LARGEST)
        g = sign[i] * bent - c[i] * rate[i]
        slope += g * d
        across += g
        total += abs(g)
        bend += bent * d * d
        turn += bent * d
        curve += bent
    out[SLOPE], out[ACROSS], out[TOTAL] = slope, across, total
    out[BEND], out[TURN], out[CURVE] = bend, turn, curve


@njit(fastmath={"contract", "reassoc", "nsz"})
def exponential_settle(
    z: Any, b: float, sign: Any, rate: Any, c: Any, log_rate: Any, slopes: Any, bends: Any, out: Any
) -> None:
    """The slopes and second derivatives of all rows at z + b, with c in them, and the sums of `out`."""
    truth = offset = size = tilt = whole = 0.0
    for i in range(len(z)):
        s = z[i] + b
        x = sign[i] * s
        e = exponential(x if x < LARGEST else LARGEST)
        g = c[i] * (sign[i] * e - rate[i])
        slopes[i], bends[i] = g, c[i] * e
        line = 1.0 + (x - LARGEST if x > LARGEST else 0.0)
        value = c[i] * (e * line - rate[i] - rate[i] * (s - log_rate[i]))
        truth += value
        offset += value - g * s
        size += abs(value) + abs(g * s)
        tilt += g
        whole += abs(g)
    out[TRUTH], out[OFFSET], out[SIZE], out[TILT], out[WHOLE] = truth, offset, size, tilt, whole


@njit(fastmath={"contract"})
def csr_squares(indptr: Any, indices: Any, data: Any, h: Any, out: Any) -> None:
    """Add the diagonal of X' diag(h) X to out."""
    for i in range(np.uintp(len(h))):
        if h[i] != 0.0:
            for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + np.uintp(1)])):
                out[indices[k]] += h[i] * data[k] * data[k]
