r"""Exact steps of dual Gauss-Seidel on a small block of rows, and sums of stored rows of a kernel matrix.

A block is the program :math:`\min \tfrac12 \gamma^\top H \gamma + \sum_i s_i \gamma_i + e_i |\gamma_i| +
\tfrac12 m_i \gamma_i^2` over :math:`lower \le \gamma \le upper`, known by :math:`g = H \gamma + s`: the dual
of every loss whose conjugate is quadratic on an interval, and the Newton model of all others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

CHUNK = 1024
"""So many scores are added to at a time: they stay in a core's first cache while rows pass by."""


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def add_rows(store: Any, slots: Any, coef: Any, out: Any) -> None:
    """Out += coef @ store[slots], without a copy of the rows."""
    n = out.shape[0]
    m = slots.shape[0]
    for start in range(0, n, CHUNK):
        stop = min(start + CHUNK, n)
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


@njit(cache=True, nogil=True)
def _slope_up(x: float, kink: float) -> float:
    """The slope of kink |x| to the right."""
    return kink if x >= 0.0 else -kink


@njit(cache=True, nogil=True)
def _slope_down(x: float, kink: float) -> float:
    """The slope of kink |x| to the left."""
    return kink if x > 0.0 else -kink


@njit(cache=True, nogil=True)
def _walk(slope: float, bend: float, first: float, first_kink: float, second: float, second_kink: float) -> Any:
    """The d > 0 where a function of that slope and bend at 0 is least, its slope jumping at two places."""
    if first > second:
        first, second = second, first
        first_kink, second_kink = second_kink, first_kink
    d = 0.0
    for place, jump in ((first, first_kink), (second, second_kink)):
        if place > d and d - slope / bend > place:
            slope += bend * (place - d) + 2.0 * jump
            d = place
            if slope >= 0.0:
                return d
    return d - slope / bend


@njit(cache=True, nogil=True)
def pair_steps(
    H: Any, g: Any, gamma: Any, lower: Any, upper: Any, kink: Any, bend: Any, share: float, most: int
) -> int:
    """Steps that keep sum(gamma): the steepest ascent, and the partner that gains most by its parabola.

    In place, until the largest violation has fallen to that share of itself; the number of steps.
    """
    q = gamma.shape[0]
    goal = -1.0
    for step in range(most):
        i, least = -1, np.inf
        greatest = -np.inf
        for k in range(q):
            slope = g[k] + bend[k] * gamma[k]
            up = slope + _slope_up(gamma[k], kink[k])
            down = slope + _slope_down(gamma[k], kink[k])
            if gamma[k] < upper[k] and up < least:
                i, least = k, up
            if gamma[k] > lower[k] and down > greatest:
                greatest = down
        if i < 0:
            return step
        if goal < 0.0:
            goal = share * (greatest - least)
        if not greatest - least > goal:
            return step
        j, best, bent = -1, 0.0, 1.0
        row = H[i]
        for k in range(q):
            if gamma[k] > lower[k]:
                gain = g[k] + bend[k] * gamma[k] + _slope_down(gamma[k], kink[k]) - least
                if gain > 0.0:
                    h = max(row[i] + H[k, k] - 2.0 * row[k] + bend[i] + bend[k], 1e-12 * (row[i] + H[k, k]))
                    if h <= 0.0:
                        h = 1e-300
                    if gain * gain > best * h:
                        j, best, bent = k, gain * gain / h, h
        if j < 0:
            return step
        slope = least - (g[j] + bend[j] * gamma[j] + _slope_down(gamma[j], kink[j]))
        d = _walk(slope, bent, -gamma[i], kink[i], gamma[j], kink[j])
        room = min(upper[i] - gamma[i], gamma[j] - lower[j])
        # who reaches a bound is put there exactly, so that it counts as being there
        full_i, full_j = d >= upper[i] - gamma[i], d >= gamma[j] - lower[j]
        d = min(d, room)
        gamma[i] = upper[i] if full_i and d == upper[i] - gamma[i] else gamma[i] + d
        gamma[j] = lower[j] if full_j and d == gamma[j] - lower[j] else gamma[j] - d
        other = H[j]
        for k in range(q):
            g[k] += d * (row[k] - other[k])
    return most


@njit(cache=True, nogil=True)
def single_steps(
    H: Any, g: Any, gamma: Any, lower: Any, upper: Any, kink: Any, bend: Any, share: float, most: int
) -> int:
    """Steps of one row at a time, each the one that gains most; otherwise as `pair_steps`."""
    q = gamma.shape[0]
    goal = -1.0
    for step in range(most):
        i, best, worst, sign, steep = -1, 0.0, 0.0, 1.0, 0.0
        for k in range(q):
            slope = g[k] + bend[k] * gamma[k]
            up = -slope - _slope_up(gamma[k], kink[k]) if gamma[k] < upper[k] else 0.0
            down = slope + _slope_down(gamma[k], kink[k]) if gamma[k] > lower[k] else 0.0
            wish = max(up, down)
            if wish > 0.0:
                room = upper[k] - gamma[k] if up > down else gamma[k] - lower[k]
                h = max(H[k, k] + bend[k], 1e-300)
                d = min(wish / h, room)
                gain = d * (wish - 0.5 * h * d)
                worst = max(worst, wish)
                if gain > best:
                    i, best, sign, steep = k, gain, 1.0 if up > down else -1.0, wish
        if goal < 0.0:
            goal = share * worst
        if i < 0 or not worst > goal:
            return step
        d = _walk(-steep, max(H[i, i] + bend[i], 1e-300), -sign * gamma[i], kink[i], 0.0, 0.0)
        before = gamma[i]
        end = upper[i] if sign > 0.0 else lower[i]
        gamma[i] = end if d >= sign * (end - before) else before + sign * d
        change = gamma[i] - before
        row = H[i]
        for k in range(q):
            g[k] += change * row[k]
    return most
