r"""Exact steps of dual Gauss-Seidel on a small block of rows, and sums of stored rows of a kernel matrix.

A block is the program :math:`\min \tfrac12 \gamma^\top H \gamma + \sum_i s_i \gamma_i + e_i |\gamma_i| +
\tfrac12 m_i \gamma_i^2` over :math:`lower \le \gamma \le upper`, known by :math:`g = H \gamma + s`: the dual
of every loss whose conjugate is quadratic on an interval, and the Newton model of all others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit

CHUNK = 1024
"""So many scores are added to at a time: they stay in a core's first cache while rows pass by."""


NOISE = 1e-15
"""A violation that is smaller, relative to the slopes, is a rounding error."""


@njit(fastmath={"contract", "reassoc"})
def add_rows(store: Any, slots: Any, coef: Any, first: int, last: int, out: Any) -> None:
    """Out += coef @ store[slots], without a copy of the rows; a range of it, which begins with a chunk."""
    m = slots.shape[0]
    for start in range(first, last, CHUNK):
        stop = min(start + CHUNK, last)
        k = 0
        while k + 4 <= m:
            a, b, c, d = coef[k], coef[k + 1], coef[k + 2], coef[k + 3]
            r0, r1, r2, r3 = store[slots[k]], store[slots[k + 1]], store[slots[k + 2]], store[slots[k + 3]]
            for j in range(start, stop):
                out[j] += a * r0[j] + b * r1[j] + c * r2[j] + d * r3[j]
            k += 4
        while k < m:
            a, r0 = coef[k], store[slots[k]]
            for j in range(start, stop):
                out[j] += a * r0[j]
            k += 1


# No slope is NaN, though some are infinite: told so, the compiler makes vector code of what follows.
@njit(fastmath={"nnan", "nsz", "reassoc"})
def _most(a: Any) -> tuple[int, float]:
    """Where the largest entry is, and what it is."""
    most = -np.inf
    for k in range(a.shape[0]):
        most = max(most, a[k])
    k = 0
    while k < a.shape[0] - 1 and a[k] != most:
        k += 1
    return k, most


@njit(fastmath={"nnan", "nsz", "reassoc"})
def _shift(a: Any, b: Any, c: Any, by: float, row: Any) -> None:
    """Add by * row to a and c, and take it from b."""
    for k in range(row.shape[0]):
        change = by * row[k]
        a[k] += change
        b[k] -= change
        c[k] += change


@njit()
def _walk(
    slope: float, bend: float, first: float, first_kink: float, second: float, second_kink: float
) -> Any:
    """The d > 0 where a function of that slope and bend at 0 is least, its slope jumping at two places."""
    if first > second:
        first, second = second, first
        first_kink, second_kink = second_kink, first_kink
    d = 0.0
    for turn in range(2):
        place, jump = (second, second_kink) if turn else (first, first_kink)
        if place > d and d - slope / bend > place:
            slope += bend * (place - d) + 2.0 * jump
            d = place
            if slope >= 0.0:
                return d
    return d - slope / bend


@njit()
def _slopes(
    k: int, g: Any, gamma: Any, lower: Any, upper: Any, kink: Any, bend: Any, rise: Any, fall: Any
) -> None:
    """How steeply the dual falls if the row rises, and if it falls; minus infinity where there is no way."""
    x, jump = gamma[k], kink[k]  # of jump |x|, whose slope on the right may be another than that on the left
    slope = g[k] + bend[k] * x
    rise[k] = -slope - (jump if x >= 0.0 else -jump) if x < upper[k] else -np.inf
    fall[k] = slope + (jump if x > 0.0 else -jump) if x > lower[k] else -np.inf


@njit(fastmath={"nnan", "nsz", "contract"})
def _partner(
    i: int, steep: float, row: Any, diagonal: Any, bend: Any, fall: Any, gain: Any
) -> tuple[int, float]:
    """The row that gains most if it falls as much as row i rises, and the bend along that way."""
    own = diagonal[i] + bend[i]
    for k in range(row.shape[0]):
        d = max(fall[k] + steep, 0.0)
        h = own + diagonal[k] + bend[k]
        gain[k] = d * d / max(h - 2.0 * row[k], 1e-12 * h + 1e-300)
    j, _ = _most(gain)
    h = own + diagonal[j] + bend[j]
    return j, max(h - 2.0 * row[j], 1e-12 * h + 1e-300)


@njit()
def pair_steps(
    H: Any, diagonal: Any, g: Any, gamma: Any, lower: Any, upper: Any, kink: Any, bend: Any, share: float,
    first: int, last: int, goals: Any, rise: Any, fall: Any, gain: Any,
) -> int:  # fmt: skip
    """Steps that keep sum(gamma): the steepest ascent, and the partner that gains most by its parabola.

    In place, until the largest violation has fallen to that share of itself, or to what rounding leaves; how
    many steps there were. They are those of a range of steps, and what is in the last arrays, as long as the
    diagonal of H but for the one goal, goes from one range to the next. That diagonal is given beside H,
    without which each entry of it would be a cache miss.
    """
    size, goal = 0.0, goals[0]
    for k in range(len(gamma) if first == 0 else 0):
        _slopes(k, g, gamma, lower, upper, kink, bend, rise, fall)
        size = max(size, abs(g[k]))
    for step in range(first, last):
        i, steep = _most(rise)
        worst = steep + _most(fall)[1]
        if step == 0:
            goal = goals[0] = max(share * worst, NOISE * size)
        if not worst > goal:
            return step
        row = H[i]
        j, h = _partner(i, steep, row, diagonal, bend, fall, gain)
        d = _walk(-steep - fall[j], h, -gamma[i], kink[i], gamma[j], kink[j])
        above, below = upper[i] - gamma[i], gamma[j] - lower[j]
        d = min(d, above, below)
        # who reaches a bound is put there exactly, so that it counts as being there
        gamma[i] = upper[i] if d == above else gamma[i] + d
        gamma[j] = lower[j] if d == below else gamma[j] - d
        _shift(g, rise, fall, d, row)
        _shift(g, rise, fall, -d, H[j])
        _slopes(i, g, gamma, lower, upper, kink, bend, rise, fall)
        _slopes(j, g, gamma, lower, upper, kink, bend, rise, fall)
    return last


@njit(fastmath={"nnan", "nsz", "contract"})
def _gains(gamma: Any, lower: Any, upper: Any, bent: Any, rise: Any, fall: Any, gain: Any) -> None:
    """By how much the dual falls if a row steps to its best place, kinks on the way not counted."""
    for k in range(gamma.shape[0]):
        wish = max(rise[k], fall[k], 0.0)
        room = upper[k] - gamma[k] if rise[k] >= fall[k] else gamma[k] - lower[k]
        d = min(wish / bent[k], room)
        gain[k] = d * (wish - 0.5 * bent[k] * d)


@njit()
def single_steps(
    H: Any, diagonal: Any, g: Any, gamma: Any, lower: Any, upper: Any, kink: Any, bend: Any, share: float,
    first: int, last: int, goals: Any, rise: Any, fall: Any, gain: Any, bent: Any,
) -> int:  # fmt: skip
    """Steps of one row at a time, each the one that gains most; otherwise as `pair_steps`."""
    size, goal = 0.0, goals[0]
    for k in range(len(gamma) if first == 0 else 0):
        _slopes(k, g, gamma, lower, upper, kink, bend, rise, fall)
        bent[k] = max(diagonal[k] + bend[k], 1e-300)
        size = max(size, abs(g[k]))
    for step in range(first, last):
        worst = max(_most(rise)[1], _most(fall)[1])
        if step == 0:
            goal = goals[0] = max(share * worst, NOISE * size)
        if not worst > goal:
            return step
        _gains(gamma, lower, upper, bent, rise, fall, gain)
        i, _ = _most(gain)
        sign = 1.0 if rise[i] >= fall[i] else -1.0
        d = _walk(-max(rise[i], fall[i]), bent[i], -sign * gamma[i], kink[i], 0.0, 0.0)
        before, end = gamma[i], upper[i] if sign > 0.0 else lower[i]
        gamma[i] = end if d >= sign * (end - before) else before + sign * d
        _shift(g, rise, fall, gamma[i] - before, H[i])
        _slopes(i, g, gamma, lower, upper, kink, bend, rise, fall)
    return last
