r"""What dual coordinate ascent does with all rows at a time: their records, and the checks between sweeps.

A check reads X once, in its order. Losses with a piecewise quadratic conjugate need nothing else: the loss
itself is the most that its conjugate leaves, and the slope that attains it is one of the loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.dual import (
    EIGHT,
    HIGH,
    INVERSE,
    LOW,
    LOWER,
    SHIFT,
    START,
    STEP,
    STOP,
    TIGHT,
    UPPER,
    U,
    _sides,
    dot,
)  # fmt: skip

BLOCK = 1024
"""Sums over the rows are taken in blocks of so many, so that rounding does not add up."""


@njit()
def repeats(ends: Any, indices: Any, first: int, last: int, seen: Any) -> bool:
    """Whether a row of a range names a column twice; seen are zeros at first, one a column."""
    for i in range(first, last):
        for k in range(np.uintp(ends[i]), np.uintp(ends[i + 1])):
            if seen[indices[k]] == i + 1:
                return True
            seen[indices[k]] = i + 1
    return False


@njit(fastmath={"contract"})
def norms(indices: Any, data: Any, ends: Any, scale: Any, out: Any) -> None:
    """sum_j x_ij^2 / m_j, for each row, the scale being 1 / m, or None where m = 1."""
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
def prepare(ends: Any, q: Any, c: Any, lam: float, lower: Any, upper: Any, shift: Any, square: float,
            flat: Any, places: Any, rows: Any) -> int:  # fmt: skip
    """Fill the records, and the list of the rows that can move: not empty, of weight > 0. How many."""
    many = 0
    for i in range(len(q)):
        r = np.uintp(i) * EIGHT
        step = c[i] / lam
        bend = step * q[i]
        flat[r + LOWER], flat[r + UPPER], flat[r + SHIFT] = lower[i], upper[i], shift[i]
        flat[r + INVERSE] = 1.0 / (square + bend) if bend > 0 else 0.0
        flat[r + U], flat[r + STEP] = 0.0, step
        places[r + START], places[r + STOP] = ends[i], ends[i + 1]
        if bend > 0:
            rows[many] = i
            many += 1
    return many


@njit(inline="always")
def _slope(t: float, lower: float, upper: float, epsilon: float, square: float) -> float:
    """The v in [lower, upper] with the largest v t - epsilon |v| - square v^2 / 2."""
    above = t - min(max(t, -epsilon), epsilon)
    if square > 0:
        return min(max(above / square, lower), upper)
    return upper if above > 0 else (lower if above < 0 else 0.0)


@njit(fastmath={"contract"})
def check(indices: Any, data: Any, flat: Any, places: Any, c: Any, w: Any, epsilon: float, square: float,
          fresh: bool, start_row: int, stop_row: int, z: Any, u: Any, a: Any, sums: Any) -> None:  # fmt: skip
    """One pass over X: the scores z of w, the dual variables u, and a = sum_i c_i u_i x_i.

    In the sums are R(w), the offset of the cut (a, b), and the size of its terms, by which rounding is
    bounded. If the dual variables are to be fresh, they are the slopes of the loss at w. No w stands for
    zero. The rows are those of a range that begins with a block.
    """
    for first in range(start_row, stop_row, BLOCK):
        some_risk = some_offset = some_size = 0.0
        for i in range(np.uintp(first), np.uintp(min(first + BLOCK, stop_row))):
            r = i * EIGHT
            start, stop = np.uintp(places[r + START]), np.uintp(places[r + STOP])
            s = 0.0
            if len(w):
                s = dot(indices, data, w, start, stop)
            shift, weight = flat[r + SHIFT], c[i]
            v = _slope(s - shift, flat[r + LOWER], flat[r + UPPER], epsilon, square)
            some_risk += weight * (v * (s - shift) - epsilon * abs(v) - 0.5 * square * v * v)
            if fresh:
                flat[r + U] = v if weight > 0 else 0.0
            d = flat[r + U]
            z[i], u[i] = s, d
            if d == 0.0:
                continue
            conjugate = shift * d + epsilon * abs(d) + 0.5 * square * d * d
            some_offset -= weight * conjugate
            some_size += weight * (abs(conjugate) + abs(d) * (abs(s) + abs(shift)))
            d *= weight
            for k in range(start, stop):
                a[k - start if indices is None else indices[k]] += d * data[k]
        sums[0] += some_risk
        sums[1] += some_offset
        sums[2] += some_size


@njit()
def select(flat: Any, z: Any, rows: Any, order: Any, epsilon: float, square: float, out: Any) -> int:
    """Put those rows into order that can move, or nearly so; how many. The range of their slopes is in out.

    The rule is that of the sweeps.
    """
    high, low, active = 0.0, 0.0, 0
    for i in rows:
        r = np.uintp(i) * EIGHT
        u = flat[r + U]
        left, right = _sides(flat[r + SHIFT] - z[i] + square * u, u, epsilon)
        if right < 0 and u < flat[r + UPPER]:
            low = min(low, right)
        elif left > 0 and u > flat[r + LOWER]:
            high = max(high, left)
    above, below = TIGHT * high, TIGHT * low
    for i in rows:
        r = np.uintp(i) * EIGHT
        u = flat[r + U]
        left, right = _sides(flat[r + SHIFT] - z[i] + square * u, u, epsilon)
        if not ((u == flat[r + LOWER] or left < below) and (u == flat[r + UPPER] or right > above)):
            order[active] = i
            active += 1
    out[HIGH], out[LOW] = high, low
    return active
