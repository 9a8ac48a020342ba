r"""Exact steps of dual coordinate ascent on a block of kernel rows, and sums of rows of a kernel matrix.

A block is the program :math:`\min \tfrac12 \gamma^\top H \gamma + \sum_i s_i \gamma_i + a_i |\gamma_i| +
\tfrac12 m_i \gamma_i^2` over :math:`lower \le \gamma \le upper`, represented by :math:`g = H \gamma + s`: the
dual of every loss whose conjugate is quadratic on an interval, and the Newton model of all others. The arrays
`absolute` and `square` hold a and m.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit

SCORE_CHUNK = 1024
"""Number of scores updated at a time: they stay in a core's first-level cache while the rows stream by."""


VIOLATION_ROUNDING = 1e-15
"""Violations smaller than this, relative to the slopes, are rounding errors."""


@njit(fastmath={"contract", "reassoc"})
def add_rows(store: Any, slots: Any, coef: Any, first: int, last: int, out: Any) -> None:
    """Compute out[first:last] += (coef @ store[slots])[first:last] without copying the rows.

    first must be a multiple of the chunk size.
    """
    m = slots.shape[0]
    for start in range(first, last, SCORE_CHUNK):
        stop = min(start + SCORE_CHUNK, last)
        k = 0
        # four rows at a time: a quarter of the loads and stores of out
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


# Slopes may be infinite but are never NaN: with "nnan" the compiler vectorizes the following loops.
@njit(fastmath={"nnan", "nsz", "reassoc"})
def _argmax(a: Any) -> tuple[int, float]:
    """Return the index and the value of the largest entry."""
    # first the maximum, in a loop that vectorizes, then its first index
    maximum = -np.inf
    for k in range(a.shape[0]):
        maximum = max(maximum, a[k])
    k = 0
    while k < a.shape[0] - 1 and a[k] != maximum:
        k += 1
    return k, maximum


@njit(fastmath={"nnan", "nsz", "reassoc"})
def _add_row(a: Any, b: Any, c: Any, by: float, row: Any) -> None:
    """Compute a += by row, b -= by row, c += by row."""
    for k in range(row.shape[0]):
        change = by * row[k]
        a[k] += change
        b[k] -= change
        c[k] += change


@njit()
def _piecewise_minimizer(
    slope: float, curvature: float, first: float, first_jump: float, second: float, second_jump: float
) -> Any:
    """Return the minimizer d > 0 of a convex function of one variable, given slope and curvature at 0.

    Its slope jumps by twice `first_jump` at `first`, and by twice `second_jump` at `second`: the points
    at which the argument of an absolute value changes sign.
    """
    if first > second:
        first, second = second, first
        first_jump, second_jump = second_jump, first_jump
    d = 0.0
    for turn in range(2):
        position, jump = (second, second_jump) if turn else (first, first_jump)
        # the parabola's minimizer lies beyond this breakpoint: go there, and add the jump
        if position > d and d - slope / curvature > position:
            slope += curvature * (position - d) + 2.0 * jump
            d = position
            if slope >= 0.0:
                return d
    return d - slope / curvature


@njit()
def _directional_slopes(
    k: int, g: Any, gamma: Any, lower: Any, upper: Any, absolute: Any, square: Any, rise: Any, fall: Any
) -> None:
    """Compute how steeply the objective falls if gamma_k rises (rise) or falls (fall); -inf at a bound.

    The term jump |x| has different left and right derivatives at x = 0.
    """
    x, jump = gamma[k], absolute[k]
    slope = g[k] + square[k] * x
    # minus the right derivative, and the left derivative
    rise[k] = -slope - (jump if x >= 0.0 else -jump) if x < upper[k] else -np.inf
    fall[k] = slope + (jump if x > 0.0 else -jump) if x > lower[k] else -np.inf


@njit(fastmath={"nnan", "nsz", "contract"})
def _partner(
    i: int, steep: float, row: Any, diagonal: Any, square: Any, fall: Any, gain: Any
) -> tuple[int, float]:
    """Return the row j of largest gain if gamma_j falls by the amount gamma_i rises, and the curvature.

    The gain is estimated by d^2 / h, with d = rise_i + fall_j and h = H_ii + m_i + H_jj + m_j - 2 H_ij.
    """
    h_i = diagonal[i] + square[i]
    for k in range(row.shape[0]):
        d = max(fall[k] + steep, 0.0)
        h = h_i + diagonal[k] + square[k]
        # the lower bound on h guards against a singular pair
        gain[k] = d * d / max(h - 2.0 * row[k], 1e-12 * h + 1e-300)
    j, _ = _argmax(gain)
    h = h_i + diagonal[j] + square[j]
    return j, max(h - 2.0 * row[j], 1e-12 * h + 1e-300)


@njit()
def pair_steps(
    H: Any, diagonal: Any, g: Any, gamma: Any, lower: Any, upper: Any, absolute: Any, square: Any,
    share: float, first: int, last: int, goals: Any, rise: Any, fall: Any, gain: Any,
) -> int:  # fmt: skip
    """Exact pair steps that keep sum(gamma): the steepest ascending row, and the partner of largest gain.

    Works in place until the largest violation has fallen to `share` times its first value, or to rounding;
    returns the number of steps. One call covers steps first to last - 1; goals (the target violation, one
    entry) and rise, fall, gain (one entry per row) go from call to call. The diagonal of H is passed
    separately, since each of its entries in H would be a cache miss.
    """
    size, goal = 0.0, goals[0]
    for k in range(len(gamma) if first == 0 else 0):
        _directional_slopes(k, g, gamma, lower, upper, absolute, square, rise, fall)
        size = max(size, abs(g[k]))
    for step in range(first, last):
        i, steep = _argmax(rise)
        # largest violation of optimality over all pairs
        worst = steep + _argmax(fall)[1]
        if step == 0:
            goal = goals[0] = max(share * worst, VIOLATION_ROUNDING * size)
        if not worst > goal:
            return step
        row = H[i]
        j, h = _partner(i, steep, row, diagonal, square, fall, gain)
        # gamma_i rises and gamma_j falls by d; signs change at -gamma_i and gamma_j
        d = _piecewise_minimizer(-steep - fall[j], h, -gamma[i], absolute[i], gamma[j], absolute[j])
        above, below = upper[i] - gamma[i], gamma[j] - lower[j]
        d = min(d, above, below)
        # a row that reaches its bound is set to it exactly, so that later tests for equality hold
        gamma[i] = upper[i] if d == above else gamma[i] + d
        gamma[j] = lower[j] if d == below else gamma[j] - d
        _add_row(g, rise, fall, d, row)
        _add_row(g, rise, fall, -d, H[j])
        _directional_slopes(i, g, gamma, lower, upper, absolute, square, rise, fall)
        _directional_slopes(j, g, gamma, lower, upper, absolute, square, rise, fall)
    return last


@njit(fastmath={"nnan", "nsz", "contract"})
def _gains(gamma: Any, lower: Any, upper: Any, curvature: Any, rise: Any, fall: Any, gain: Any) -> None:
    """Compute the objective's decrease if a row moves to its optimum, ignoring sign changes on the way."""
    for k in range(gamma.shape[0]):
        steepest = max(rise[k], fall[k], 0.0)
        available = upper[k] - gamma[k] if rise[k] >= fall[k] else gamma[k] - lower[k]
        # Newton step, at most up to the bound
        d = min(steepest / curvature[k], available)
        gain[k] = d * (steepest - 0.5 * curvature[k] * d)


@njit()
def single_steps(
    H: Any, diagonal: Any, g: Any, gamma: Any, lower: Any, upper: Any, absolute: Any, square: Any,
    share: float, first: int, last: int, goals: Any, rise: Any, fall: Any, gain: Any, curvature: Any,
) -> int:  # fmt: skip
    """Exact steps of one row at a time, each of largest gain; otherwise as `pair_steps`."""
    size, goal = 0.0, goals[0]
    for k in range(len(gamma) if first == 0 else 0):
        _directional_slopes(k, g, gamma, lower, upper, absolute, square, rise, fall)
        curvature[k] = max(diagonal[k] + square[k], 1e-300)
        size = max(size, abs(g[k]))
    for step in range(first, last):
        worst = max(_argmax(rise)[1], _argmax(fall)[1])
        if step == 0:
            goal = goals[0] = max(share * worst, VIOLATION_ROUNDING * size)
        if not worst > goal:
            return step
        _gains(gamma, lower, upper, curvature, rise, fall, gain)
        i, _ = _argmax(gain)
        # the direction of steepest descent; |gamma_i| has its nonsmooth point at gamma_i = 0
        sign = 1.0 if rise[i] >= fall[i] else -1.0
        d = _piecewise_minimizer(
            -max(rise[i], fall[i]), curvature[i], -sign * gamma[i], absolute[i], 0.0, 0.0
        )
        before, end = gamma[i], upper[i] if sign > 0.0 else lower[i]
        # a bound that is reached is set exactly
        gamma[i] = end if d >= sign * (end - before) else before + sign * d
        _add_row(g, rise, fall, gamma[i] - before, H[i])
        _directional_slopes(i, g, gamma, lower, upper, absolute, square, rise, fall)
    return last
