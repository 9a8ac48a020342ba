"""Sums over the rows of a traced loss, smoothed or not, for Newton's method.

The loss of a block of rows is a compiled function at an address, see `_numba.traced`, so that each loop is
compiled once for all losses. With mu > 0 a second function gives the loss smoothed around 0, at the scores
z + mu u0 for the center u0: it sets c l*(u), the slope c u, the multiplier u and the second derivative.
"""

from __future__ import annotations

import math
from typing import Any

from riskmin._numba.compile_cache import njit
from riskmin._numba.shards.items import next_item
from riskmin._numba.traced import MAX_BLOCK_ROWS, STRIDE, call_block

VALUE, SLOPE, CURVATURE, CONJUGATE, INNER, PROXIMAL = range(6)
"""Slots: sum c l(z), sum s, sum h; smoothed, also sum c l*(u), sum s z and sum c mu (u - u0)^2 / 2."""
N_SUMS = 6


@njit()
def _load(z: Any, dz: Any, t: float, u0: Any, mu: float, start: int, n: int, scratch: Any) -> None:
    """Set the scores of a block to z + t dz + mu u0."""
    for i in range(n):
        scratch[i] = z[start + i]
    if t != 0.0:
        for i in range(n):
            scratch[i] += t * dz[start + i]
    if mu > 0.0:
        for i in range(n):
            scratch[i] += mu * u0[start + i]


@njit(fastmath={"contract", "reassoc", "nsz"})
def _add_smooth(scratch: Any, start: int, n: int, s: Any, h: Any, out: Any) -> None:
    value = slope = curvature = 0.0
    for i in range(n):
        s_i, h_i = scratch[2 * STRIDE + i], scratch[4 * STRIDE + i]
        s[start + i], h[start + i] = s_i, h_i
        value += scratch[STRIDE + i]
        slope += s_i
        curvature += h_i
    out[VALUE] += value
    out[SLOPE] += slope
    out[CURVATURE] += curvature


@njit(fastmath={"contract", "reassoc", "nsz"})
def _total(scratch: Any, n: int) -> float:
    total = 0.0
    for i in range(n):
        total += scratch[STRIDE + i]
    return total


@njit(fastmath={"contract", "reassoc", "nsz"})
def _add_smoothed(
    scratch: Any, z: Any, c: Any, u0: Any, mu: float, start: int, n: int, s: Any, h: Any, out: Any
) -> None:
    slope = curvature = conjugate = inner = proximal = 0.0
    for i in range(n):
        s_i, h_i = scratch[2 * STRIDE + i], scratch[4 * STRIDE + i]
        s[start + i], h[start + i] = s_i, h_i
        conjugate += scratch[STRIDE + i]
        slope += s_i
        curvature += h_i
        inner += s_i * z[start + i]
        change = scratch[3 * STRIDE + i] - u0[start + i]
        proximal += c[start + i] * change * change
    out[SLOPE] += slope
    out[CURVATURE] += curvature
    out[CONJUGATE] += conjugate
    out[INNER] += inner
    out[PROXIMAL] += 0.5 * mu * proximal


@njit()
def evaluate(
    z: Any, u0: Any, mu: float, y: Any, c: Any, loss: Any, address: int, smoothed: Any, smoothed_address: int,
    first: int, last: int, scratch: Any, s: Any, h: Any, out: Any,
) -> None:  # fmt: skip
    """Set slopes s and second derivatives h of rows first to last - 1, and add their sums to out."""
    for start in range(first, last, MAX_BLOCK_ROWS):
        n = min(MAX_BLOCK_ROWS, last - start)
        _load(z, z, 0.0, u0, 0.0, start, n, scratch)
        call_block(address, n, scratch, y, c, start, loss)
        if mu > 0.0:
            out[VALUE] += _total(scratch, n)
            _load(z, z, 0.0, u0, mu, start, n, scratch)
            call_block(smoothed_address, n, scratch, y, c, start, smoothed)
            _add_smoothed(scratch, z, c, u0, mu, start, n, s, h, out)
        else:
            _add_smooth(scratch, start, n, s, h, out)


@njit()
def evaluate_of_ranges(
    progress: Any, scratch: Any, ends: Any, z: Any, u0: Any, mu: float, y: Any, c: Any, loss: Any,
    address: int, smoothed: Any, smoothed_address: int, s: Any, h: Any, out: Any,
) -> None:  # fmt: skip
    """`evaluate` of each range of rows, with its sums in out[k]."""
    k = next_item(progress)
    while k >= 0:
        out[k, :] = 0.0
        evaluate(
            z, u0, mu, y, c, loss, address, smoothed, smoothed_address, ends[k], ends[k + 1], scratch, s, h,
            out[k],
        )  # fmt: skip
        k = next_item(progress)


@njit(fastmath={"contract", "reassoc", "nsz"})
def _add_line(scratch: Any, dz: Any, start: int, n: int, out: Any) -> None:
    slope = curvature = 0.0
    for i in range(n):
        d = dz[start + i]
        slope += scratch[2 * STRIDE + i] * d
        curvature += scratch[4 * STRIDE + i] * d * d
    out[0] += slope
    out[1] += curvature


@njit()
def along(
    z: Any, dz: Any, t: float, u0: Any, mu: float, y: Any, c: Any, loss: Any, address: int,
    first: int, last: int, scratch: Any, out: Any,
) -> None:  # fmt: skip
    """Add the first two derivatives in t of the loss of rows first to last - 1 at z + t dz to out."""
    for start in range(first, last, MAX_BLOCK_ROWS):
        n = min(MAX_BLOCK_ROWS, last - start)
        _load(z, dz, t, u0, mu, start, n, scratch)
        call_block(address, n, scratch, y, c, start, loss)
        _add_line(scratch, dz, start, n, out)


@njit()
def along_of_ranges(
    progress: Any, scratch: Any, ends: Any, z: Any, dz: Any, t: float, u0: Any, mu: float, y: Any, c: Any,
    loss: Any, address: int, out: Any,
) -> None:  # fmt: skip
    """`along` of each range of rows, in out[k]."""
    k = next_item(progress)
    while k >= 0:
        out[k, :] = 0.0
        along(z, dz, t, u0, mu, y, c, loss, address, ends[k], ends[k + 1], scratch, out[k])
        k = next_item(progress)


@njit()
def minimize_along(
    z: Any, dz: Any, u0: Any, mu: float, y: Any, c: Any, loss: Any, address: int, slope0: float,
    square0: float, enough: float, scratch: Any, out: Any,
) -> float:  # fmt: skip
    """A t > 0 at which the loss at z + t dz, plus slope0 t + square0 t^2 / 2, has |slope| <= enough.

    The search of `bracketed_newton`, without a call per evaluation.
    """
    lo, hi, t, width = 0.0, math.inf, 1.0, math.inf
    for k in range(1, 61):
        out[0] = slope0 + t * square0
        out[1] = square0
        along(z, dz, t, u0, mu, y, c, loss, address, 0, len(z), scratch, out)
        slope, curvature = out[0], out[1]
        if abs(slope) <= enough:
            return t
        if slope < 0.0:
            lo = t
        else:
            hi = t
        new = t - slope / curvature if curvature > 0.0 else math.inf
        slow = (k % 3 == 0 and hi - lo > 0.5 * width) or (lo == 0.0 and new > 0.5 * hi)
        if k % 3 == 0:
            width = hi - lo
        if slow or not lo < new < hi:
            new = 10.0 * t if hi == math.inf else 0.1 * hi if lo == 0.0 else 0.5 * (lo + hi)
        if hi == math.inf and new > 10.0 * t:
            new = 10.0 * t
        if not lo < new < hi:
            break
        t = new
    return lo if lo > 0.0 else t
