r"""Losses with exponentials, as Newton's method sees them: slopes and second derivatives, a block at a time.

Rows are taken in blocks that stay in the first cache, so that each loop over a block is without branches or
calls, and the compiler takes several rows at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.exponential import exponentials
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

LOGISTIC, EXPONENTIAL, POISSON = range(3)
BLOCK = 512
"""Rows a block: what is computed of it takes 24 kB."""
LARGEST = 0.5 * math.log(float(np.finfo(np.float64).max))
"""From here on e^x goes on as a straight line, as in the losses themselves."""
MIDDLE = 0.6
LOG_MIDDLE = math.log1p(MIDDLE)
LAST = 1 / 19
ODDS = tuple(1 / k for k in range(17, 0, -2))
"""The series of the area tangent, s + s^3 / 3 + ... + s^19 / 19, from its end."""


@njit(fastmath={"contract"})
def logs(e: Any, out: Any) -> None:
    """log(1 + e) for 0 <= e <= 1.

    Of a ratio m to 1 + e, it is log m and twice the area tangent of s = (1 + e - m) / (1 + e + m), whose
    series is short: m is 1 for small e, which keeps all of their digits, and else such that |s| <= 1/8.
    """
    for i in range(len(e)):
        v = e[i]
        m = MIDDLE if v > 0.25 else 0.0
        s = (v - m) / (v + (2.0 + m))
        q = s * s
        p = LAST
        for f in ODDS:
            p = p * q + f
        out[i] = (LOG_MIDDLE if v > 0.25 else 0.0) + 2.0 * s * p


@njit(fastmath={"contract"})
def curves(kind: int, s: Any, y: Any, log_y: Any, valued: bool, work: Any) -> None:
    """Of a block of scores: losses (if valued), slopes and second derivatives, in the rows of work."""
    n = len(s)
    value, slope, bend, x, spare = work[0, :n], work[1, :n], work[2, :n], work[3, :n], work[4, :n]
    if kind == LOGISTIC:
        for i in range(n):
            x[i] = -abs(s[i])
        exponentials(x, spare)
        for i in range(n):
            r = 1.0 / (1.0 + x[i])
            q = x[i] * r
            bend[i] = q * r
            slope[i] = -y[i] * (q if y[i] * s[i] > 0.0 else r)
        if valued:
            logs(x, value)
            for i in range(n):
                t = -y[i] * s[i]
                value[i] += t if t > 0.0 else 0.0
        return
    for i in range(n):
        t = s[i] if kind == POISSON else -y[i] * s[i]
        x[i] = t if t < LARGEST else LARGEST
        value[i] = t - x[i]
    exponentials(x, spare)
    for i in range(n):
        e = x[i]
        bend[i] = e
        whole = e * (1.0 + value[i])
        if kind == POISSON:
            value[i] = whole - y[i] - y[i] * (s[i] - log_y[i])
            slope[i] = e - y[i]
        else:
            value[i] = whole
            slope[i] = -y[i] * e


@njit(fastmath={"contract", "reassoc", "nsz"})
def along(kind: int, z: Any, dz: Any, t: float, b: float, y: Any, log_y: Any, c: Any, out: Any) -> None:
    """Slopes and second derivatives of the loss at z + t dz + b."""
    slope = across = bend = turn = curve = total = 0.0
    s, work = np.empty(BLOCK), np.empty((5, BLOCK))
    for i in range(0, len(z), BLOCK):
        n = min(BLOCK, len(z) - i)
        for k in range(n):
            s[k] = z[i + k] + t * dz[i + k] + b
        curves(kind, s[:n], y[i : i + n], log_y[i : i + n], False, work)
        for k in range(n):
            d, g, bent = dz[i + k], c[i + k] * work[1, k], c[i + k] * work[2, k]
            slope += g * d
            across += g
            total += abs(g)
            bend += bent * d * d
            turn += bent * d
            curve += bent
    out[SLOPE], out[ACROSS], out[TOTAL] = slope, across, total
    out[BEND], out[TURN], out[CURVE] = bend, turn, curve


@njit(fastmath={"contract", "reassoc", "nsz"})
def settle(
    kind: int, z: Any, b: float, y: Any, log_y: Any, c: Any, slopes: Any, bends: Any, out: Any
) -> None:
    """The slopes and second derivatives of all rows at z + b, with c in them, and the sums of `out`."""
    truth = offset = size = tilt = whole = 0.0
    s, work = np.empty(BLOCK), np.empty((5, BLOCK))
    for i in range(0, len(z), BLOCK):
        n = min(BLOCK, len(z) - i)
        for k in range(n):
            s[k] = z[i + k] + b
        curves(kind, s[:n], y[i : i + n], log_y[i : i + n], True, work)
        for k in range(n):
            slopes[i + k], bends[i + k] = c[i + k] * work[1, k], c[i + k] * work[2, k]
        # nothing is written in this loop, so that sums are added up in one way wherever arrays lie
        for k in range(n):
            w, g = c[i + k], c[i + k] * work[1, k]
            truth += w * work[0, k]
            offset += w * work[0, k] - g * s[k]
            size += w * abs(work[0, k]) + abs(g * s[k])
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
