"""Passes over all rows for dual coordinate ascent: filling the records, and the checks between sweeps.

A check reads X once, in order. For a loss with a piecewise quadratic conjugate it needs nothing else: the
loss is l(z) = max_v v z - l*(v), and the maximizer v is a subgradient of the loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.dual.sweep import (
    EIGHT,
    INVERSE,
    LOWER,
    MAX_SLOPE,
    MIN_SLOPE,
    SHIFT,
    SHRINK_SLOPE_RATIO,
    START,
    STEP,
    STOP,
    UPPER,
    U,
    _one_sided_slopes,
    dot,
)  # fmt: skip
from riskmin._numba.shards.items import next_item

SUM_BLOCK_ROWS = 1024
"""Sums are accumulated in blocks of this many rows, which limits the growth of rounding errors."""


@njit(fastmath={"contract"})
def squared_row_norms(indices: Any, data: Any, ends: Any, scale: Any, out: Any) -> None:
    """Compute out[i] = sum_j x_ij^2 / m_j, with scale = 1 / m, or None where m = 1."""
    for i in range(len(out)):
        start, stop = np.uintp(ends[i]), np.uintp(ends[i + 1])
        s = 0.0
        for k in range(start, stop):
            x = np.float64(data[k])
            x *= x
            if scale is not None:
                x *= scale[k - start if indices is None else indices[k]]
            s += x
        out[i] = s


@njit()
def squared_row_norms_of_ranges(
    progress: Any, memory: Any, range_ends: Any, indices: Any, data: Any, ends: Any, scale: Any, out: Any
) -> None:
    """Compute the entries range_ends[k] to range_ends[k + 1] - 1 of out, as `squared_row_norms` does."""
    k = next_item(progress)
    while k >= 0:
        i, j = range_ends[k], range_ends[k + 1]
        squared_row_norms(indices, data, ends[i : j + 1], scale, out[i:j])
        k = next_item(progress)


@njit()
def fill_records(ends: Any, q: Any, c: Any, lam: float, lower: Any, upper: Any, shift: Any, square: float,
            floats: Any, ints: Any, rows: Any) -> int:  # fmt: skip
    """Fill the records; list the rows that can move (not empty, of weight > 0) in rows; return their number.

    q holds the squared norms of the rows; step = c / lam, and curvature = step q is that of the dual in u_i.
    """
    n_rows = 0
    for i in range(len(q)):
        r = np.uintp(i) * EIGHT
        # u_i moves w by -(c_i / lam) x_i / m
        step = c[i] / lam
        curvature = step * q[i]
        floats[r + LOWER], floats[r + UPPER], floats[r + SHIFT] = lower[i], upper[i], shift[i]
        # rows that cannot move get 0: their step is zero
        floats[r + INVERSE] = 1.0 / (square + curvature) if curvature > 0 else 0.0
        floats[r + U], floats[r + STEP] = 0.0, step
        ints[r + START], ints[r + STOP] = ends[i], ends[i + 1]
        if curvature > 0:
            rows[n_rows] = i
            n_rows += 1
    return n_rows


@njit(inline="always")
def _slope(t: float, lower: float, upper: float, epsilon: float, square: float) -> float:
    """Return argmax over v in [lower, upper] of v t - epsilon |v| - square v^2 / 2."""
    # shrink t towards 0 by epsilon
    above = t - min(max(t, -epsilon), epsilon)
    if square > 0:
        return min(max(above / square, lower), upper)
    # linear in v: the maximizer is a bound, or 0 where both terms vanish
    return upper if above > 0 else (lower if above < 0 else 0.0)


@njit(fastmath={"contract"})
def evaluate_rows(indices: Any, data: Any, floats: Any, ints: Any, c: Any, w: Any, b: float,
          epsilon: float, square: float, fresh: bool, start_row: int, stop_row: int,
          z: Any, u: Any, a: Any, sums: Any) -> None:  # fmt: skip
    """One pass over X: the scores z = X w + b, the dual variables u, and a = sum_i c_i u_i x_i.

    The slots of sums accumulate R(w), the cut's offset -sum_i c_i l*(u_i), and the sum of the absolute values
    of its terms, which bounds the rounding error. If fresh, the dual variables are replaced by the
    subgradients of the loss at w. An empty w stands for zero. start_row must be a multiple of the block size.
    """
    for first in range(start_row, stop_row, SUM_BLOCK_ROWS):
        block_risk = block_offset = block_size = 0.0
        for i in range(np.uintp(first), np.uintp(min(first + SUM_BLOCK_ROWS, stop_row))):
            r = i * EIGHT
            start, stop = np.uintp(ints[r + START]), np.uintp(ints[r + STOP])
            s = b
            if len(w):
                s += dot(indices, data, w, start, stop)
            shift, weight = floats[r + SHIFT], c[i]
            # v is a subgradient of the loss at s; the next line adds c_i l(s) = c_i (v s - l*(v))
            v = _slope(s - shift, floats[r + LOWER], floats[r + UPPER], epsilon, square)
            block_risk += weight * (v * (s - shift) - epsilon * abs(v) - 0.5 * square * v * v)
            if fresh:
                floats[r + U] = v if weight > 0 else 0.0
            d = floats[r + U]
            z[i], u[i] = s, d
            if d == 0.0:
                continue
            # l*(d), the row's part of the cut's offset
            conjugate = shift * d + epsilon * abs(d) + 0.5 * square * d * d
            block_offset -= weight * conjugate
            # absolute values of the terms that cancel in the offset and in a @ w
            block_size += weight * (abs(conjugate) + abs(d) * (abs(s) + abs(shift)))
            # a += c_i u_i x_i
            d *= weight
            for k in range(start, stop):
                a[k - start if indices is None else indices[k]] += d * data[k]
        # one addition per block: R(w), the cut's offset, the sum of absolute terms
        sums[0] += block_risk
        sums[1] += block_offset
        sums[2] += block_size


@njit()
def evaluate_ranges(
    progress: Any, memory: Any, range_ends: Any, indices: Any, data: Any, floats: Any, ints: Any, c: Any,
    w: Any, b: float, epsilon: float, square: float, fresh: bool, z: Any, u: Any, a: Any, sums: Any,
) -> None:  # fmt: skip
    """Do what `evaluate_rows` does for each range k of rows, with its sums sums[k] and its part a[k]."""
    k = next_item(progress)
    while k >= 0:
        part = a[k]
        for j in range(len(part)):
            part[j] = 0.0
        evaluate_rows(
            indices, data, floats, ints, c, w, b, epsilon, square, fresh, range_ends[k], range_ends[k + 1],
            z, u, part, sums[k],
        )  # fmt: skip
        k = next_item(progress)


@njit()
def select_active_rows(
    floats: Any, z: Any, rows: Any, order: Any, epsilon: float, square: float, out: Any
) -> int:
    """Put the rows that can move, or nearly can, into order; return their number.

    out receives the range of the slopes. The shrinking rule is that of `sweep`.
    """
    high, low, active = 0.0, 0.0, 0
    # first pass: the range of the slopes along which a row can still move
    for i in rows:
        r = np.uintp(i) * EIGHT
        u = floats[r + U]
        left, right = _one_sided_slopes(floats[r + SHIFT] - z[i] + square * u, u, epsilon)
        if right < 0 and u < floats[r + UPPER]:
            low = min(low, right)
        elif left > 0 and u > floats[r + LOWER]:
            high = max(high, left)
    # second pass: leave out rows that are held at a bound by more than the threshold
    above, below = SHRINK_SLOPE_RATIO * high, SHRINK_SLOPE_RATIO * low
    for i in rows:
        r = np.uintp(i) * EIGHT
        u = floats[r + U]
        left, right = _one_sided_slopes(floats[r + SHIFT] - z[i] + square * u, u, epsilon)
        if not ((u == floats[r + LOWER] or left < below) and (u == floats[r + UPPER] or right > above)):
            order[active] = i
            active += 1
    out[MAX_SLOPE], out[MIN_SLOPE] = high, low
    return active
