r"""Sweeps of dual block ascent for the soft margin of many classes, with L2.

The multipliers of a row, one a class, are a point of a simplex. A visit moves them to the best point, all
other rows fixed: the projection of :math:`\beta + s / A`, for the slacks :math:`s_j = \Delta_{yj} + z_j` and
:math:`A = c\, |x|^2 / \lambda`. There is a sweep for each way in which the weights lie: those of a feature
together, in fours, for sparse rows; those of a class together for dense ones, where classes that are far
from being the maximum of a row are left out, since each costs a product. Damping is None where there is none:
then nothing of it is compiled.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.dual import LINE, NEAR, _draw, _prefetch
from riskmin.kernels.simplex import simplex_shift

ZERO, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT = (np.uintp(k) for k in range(9))
AHEAD = np.uintp(NEAR)
BEND, STEP = ZERO, ONE
"""The terms of a row: c |x|^2 / lam and c / lam."""
MOST, VISITS, MOVES, TOP, KEPT = range(5)
"""What a sweep leaves: the largest violation that it met, its visits, the rows it moved.

The last two go from one piece of a sweep to the next: its violation so far, and how many rows stay active.
"""
DUST = 4e-16
"""Smaller steps of a multiplier are rounding."""
DOZE = 0.1
"""A class is left out if its slack is this part of the largest violation below those with multipliers."""


# ---------------------------------------------------------------- one row
@njit(inline="always")
def row_step(beta: Any, slack: Any, k: Any, bend: float, damping: Any, change: Any, room: Any) -> bool:
    """Move the first k multipliers in beta; their changes are filled in. Whether there are any."""
    inverse, moved = 1.0 / bend, False
    for j in range(k):
        change[j] = beta[j] + slack[j] * inverse
    shift = simplex_shift(change, k, room)
    for j in range(k):
        new, old = max(change[j] - shift, 0.0), beta[j]
        change[j] = 0.0
        if abs(new - old) > DUST or (new == 0.0 and old > 0.0):
            change[j] = new - old
            beta[j] = new
            moved = True
    if damping is not None:
        _damp(beta, k, damping, change)
    return moved


@njit(inline="always")
def _damp(beta: Any, k: Any, damping: float, change: Any) -> None:
    """Take part of the step, or more than all of it, but no multiplier below zero."""
    for j in range(k):
        if change[j] < 0.0:
            damping = min(damping, (beta[j] - change[j]) / -change[j])
    for j in range(k):
        if change[j] != 0.0:
            old = beta[j] - change[j]
            beta[j] = max(old + damping * change[j], 0.0)
            change[j] = beta[j] - old


@njit(inline="always")
def judge(beta: Any, slack: Any, k: Any) -> tuple[float, float]:
    """How far the multipliers of a row are from their best, and by how much they are held where they are.

    The first is by how much the slack of a class that has a multiplier is below the largest, which is taken
    off all; the second is that of all others, where one class alone has a multiplier.
    """
    top = second = -math.inf
    low, held = math.inf, 0
    for j in range(k):
        s = slack[j]
        if s > top:
            top, second = s, top
        elif s > second:
            second = s
        if beta[j] > 0.0:
            low = min(low, s)
            held += 1
    for j in range(k):
        slack[j] -= top
    return top - low, (top - second if held == 1 and low == top else 0.0)


@njit(inline="always")
def _doze(awake: Any, i: Any, k: Any, mine: Any, slack: Any, least: float) -> Any:
    """Leave out the classes without multipliers whose slack is below the least; how many are left."""
    m = ZERO
    while m < k:
        if mine[m] == 0.0 and slack[m] < least:
            k -= ONE
            awake[i, m], awake[i, k] = awake[i, k], awake[i, m]
            mine[m], slack[m] = mine[k], slack[k]
        else:
            m += ONE
    return k


@njit(inline="always")
def _so_far(begins: bool, out: Any) -> tuple[float, Any]:
    """The violation that the pieces of a sweep before this one met, and how many rows they kept."""
    if begins:
        out[TOP] = out[KEPT] = 0.0
    return out[TOP], np.uintp(out[KEPT])


@njit(inline="always")
def _leave(most: float, kept: Any, ends: bool, active: int, out: Any) -> None:
    """Leave them to the next piece; after the last one, to whoever asked for the sweep."""
    out[TOP], out[KEPT] = most, kept
    if ends:
        out[MOST] = most
        out[VISITS] += active


# ---------------------------------------------------------------- sparse rows
@njit(inline="always")
def _slacks(indices: Any, data: Any, W: Any, start: Any, stop: Any, cost: Any, c: Any, slack: Any) -> None:
    """The cost of each class and its score, the sums of eight or four classes in registers."""
    k, j = np.uintp(len(slack)), ZERO
    while j < k:
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        if j + EIGHT <= k:
            for e in range(start, stop):
                x = np.float64(data[e])
                f = np.uintp(indices[e])
                s0 += x * W[f, j]
                s1 += x * W[f, j + ONE]
                s2 += x * W[f, j + TWO]
                s3 += x * W[f, j + THREE]
                s4 += x * W[f, j + FOUR]
                s5 += x * W[f, j + FIVE]
                s6 += x * W[f, j + SIX]
                s7 += x * W[f, j + SEVEN]
            slack[j + FOUR] = s4 + cost[c, j + FOUR]
            slack[j + FIVE] = s5 + cost[c, j + FIVE]
            slack[j + SIX] = s6 + cost[c, j + SIX]
            slack[j + SEVEN] = s7 + cost[c, j + SEVEN]
        else:
            for e in range(start, stop):
                x = np.float64(data[e])
                f = np.uintp(indices[e])
                s0 += x * W[f, j]
                s1 += x * W[f, j + ONE]
                s2 += x * W[f, j + TWO]
                s3 += x * W[f, j + THREE]
        slack[j] = s0 + cost[c, j]
        slack[j + ONE] = s1 + cost[c, j + ONE]
        slack[j + TWO] = s2 + cost[c, j + TWO]
        slack[j + THREE] = s3 + cost[c, j + THREE]
        j += EIGHT


@njit(inline="always")
def _few(
    indices: Any, data: Any, W: Any, start: Any, stop: Any, cost: Any, c: Any, at: Any, slack: Any
) -> None:
    """The same for the classes `at`, four of them, which may be equal."""
    a, b, g, d = at[0], at[1], at[2], at[3]
    s0 = s1 = s2 = s3 = 0.0
    for e in range(start, stop):
        x, f = np.float64(data[e]), np.uintp(indices[e])
        s0 += x * W[f, a]
        s1 += x * W[f, b]
        s2 += x * W[f, g]
        s3 += x * W[f, d]
    slack[0], slack[1], slack[2], slack[3] = (
        s0 + cost[c, a],
        s1 + cost[c, b],
        s2 + cost[c, g],
        s3 + cost[c, d],
    )


@njit(inline="always")
def _move(
    indices: Any, data: Any, W: Any, start: Any, stop: Any, steps: Any, touched: Any, used: Any
) -> None:
    """W -= x steps', of the touched classes."""
    if used == TWO:  # most often
        a, b, s, t = touched[0], touched[1], steps[0], steps[1]
        for e in range(start, stop):
            x, f = np.float64(data[e]), np.uintp(indices[e])
            W[f, a] -= s * x
            W[f, b] -= t * x
        return
    for e in range(start, stop):
        x, f = np.float64(data[e]), np.uintp(indices[e])
        for m in range(used):
            W[f, touched[m]] -= steps[m] * x


@njit(inline="always")
def _look_ahead(indptr: Any, indices: Any, data: Any, near: Any) -> None:
    """Ask for the entries of a row some visits from now."""
    for e in range(np.intp(indptr[near]), np.intp(indptr[near + ONE]), LINE // data.itemsize):
        _prefetch(data, e)
        _prefetch(indices, e)


@njit(fastmath={"contract"})
def sweep(
    indptr: Any, indices: Any, data: Any, W: Any, beta: Any, awake: Any, counts: Any, y: Any, terms: Any,
    cost: Any, order: Any, active: int, first: int, last: int, damping: Any, shrink: bool, shuffle: bool,
    rng: Any, full: Any, slack: Any, change: Any, room: Any, mine: Any, touched: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over order[:active], the weights of a feature together; how many rows stay active.

    It is done in pieces, from one place to another, and the first one begins at place 0. The first counts[i]
    classes in awake[i] are looked at for row i. The last but out are room, for a number a class.
    """
    size, begins = np.uintp(active), first == 0
    (most, kept), above = _so_far(begins, out), (out[MOST] or math.inf)
    for v in range(np.uintp(min(active, NEAR + 1)) if shuffle and begins else ZERO):
        _draw(order, v, size, rng)
    for v in range(np.uintp(first), np.uintp(last)):
        near = min(v + AHEAD, size - ONE)
        if shuffle and near + ONE < size:
            _draw(order, near + ONE, size, rng)
        _look_ahead(indptr, indices, data, np.uintp(order[near]))
        i = np.uintp(order[v])
        start, stop, k = np.uintp(indptr[i]), np.uintp(indptr[i + ONE]), np.uintp(counts[i])
        if k <= FOUR:
            for m in range(FOUR):
                touched[m] = awake[i, min(m, k - ONE)]
            _few(indices, data, W, start, stop, cost, y[i], touched, slack)
        else:
            _slacks(indices, data, W, start, stop, cost, y[i], full)
            for m in range(k):
                slack[m] = full[awake[i, m]]
        for m in range(k):
            mine[m] = beta[i, awake[i, m]]
        violation, hold = judge(mine, slack, k)
        if shrink and hold > DOZE * above:
            continue
        order[kept] = i
        kept += ONE
        most = max(most, violation)
        if shrink:
            k = _doze(awake, i, k, mine, slack, -violation - DOZE * above)
            counts[i] = k
        if violation > 0.0 and row_step(mine, slack, k, terms[i, BEND], damping, change, room):
            out[MOVES] += 1
            used = ZERO
            for m in range(k):
                if change[m] != 0.0:
                    beta[i, awake[i, m]] = mine[m]
                    touched[used], change[used] = awake[i, m], terms[i, STEP] * change[m]
                    used += ONE
            _move(indices, data, W, start, stop, change, touched, used)
    _leave(most, kept, last == active, active, out)
    return int(kept)


# ---------------------------------------------------------------- dense rows
@njit(fastmath={"contract", "reassoc", "nsz"})
def _dot(X: Any, i: Any, V: Any, j: Any) -> float:
    s = 0.0
    for f in range(np.uintp(X.shape[1])):
        s += X[i, f] * V[j, f]
    return s


@njit(inline="always")
def _add(X: Any, i: Any, V: Any, j: Any, t: float) -> None:
    for f in range(np.uintp(X.shape[1])):
        V[j, f] += t * X[i, f]


@njit(fastmath={"contract"})
def dense_sweep(
    X: Any, V: Any, beta: Any, awake: Any, counts: Any, y: Any, terms: Any, cost: Any,
    order: Any, active: int, first: int, last: int, damping: Any, shrink: bool, shuffle: bool, rng: Any,
    slack: Any, change: Any, room: Any, mine: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over order[:active], the weights of a class together; as `sweep`."""
    size = np.uintp(active)
    (most, kept), above = _so_far(first == 0, out), (out[MOST] or math.inf)
    for v in range(np.uintp(first), np.uintp(last)):
        if shuffle:
            _draw(order, v, size, rng)
        i = np.uintp(order[v])
        k = np.uintp(counts[i])
        for m in range(k):
            j = np.uintp(awake[i, m])
            slack[m], mine[m] = cost[y[i], j] + _dot(X, i, V, j), beta[i, j]
        violation, hold = judge(mine, slack, k)
        if shrink and hold > DOZE * above:
            continue
        order[kept] = i
        kept += ONE
        most = max(most, violation)
        if shrink:
            k = _doze(awake, i, k, mine, slack, -violation - DOZE * above)
            counts[i] = k
        if violation > 0.0 and row_step(mine, slack, k, terms[i, BEND], damping, change, room):
            out[MOVES] += 1
            for m in range(k):
                if change[m] != 0.0:
                    j = np.uintp(awake[i, m])
                    beta[i, j] = mine[m]
                    _add(X, i, V, j, -terms[i, STEP] * change[m])
    _leave(most, kept, last == active, active, out)
    return int(kept)
