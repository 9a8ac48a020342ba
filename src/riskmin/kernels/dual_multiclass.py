r"""Sweeps of dual block ascent for the soft margin of many classes, with L2.

The multipliers of a row, one a class, are a point of a simplex. A visit moves them to the best point, all
other rows fixed: the projection of :math:`\beta + s / A`, for the slacks :math:`s_j = \Delta_{yj} + z_j` and
:math:`A = c\, |x|^2 / \lambda`. There is a sweep for each way in which the weights lie: those of a feature
together, in fours, for sparse rows; those of a class together for dense ones, where classes that are far
from being the maximum of a row are left out, since each costs a product.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from riskmin.kernels.dual import FAR, LINE, NEAR, _draw, _prefetch
from riskmin.kernels.simplex import simplex_shift

BEND, STEP = (np.uintp(k) for k in range(2))
"""The terms of a row: c |x|^2 / lam and c / lam."""
MOST, VISITS, MOVES = range(3)
"""What a sweep leaves: the largest violation that it met, its visits, the rows it moved."""
DUST = 4e-16
"""Smaller steps of a multiplier are rounding."""


@njit(cache=True, nogil=True, fastmath={"contract"})
def norms(data: Any, ends: Any, out: Any) -> None:
    """|x_i|^2, for each row."""
    for i in range(len(out)):
        s = 0.0
        for e in range(np.uintp(ends[i]), np.uintp(ends[i + 1])):
            s += np.float64(data[e]) * data[e]
        out[i] = s


# ---------------------------------------------------------------- one row
@njit(cache=True, nogil=True)
def row_step(
    beta: Any, i: Any, slack: Any, bend: float, damping: float, change: Any, room: Any, touched: Any
) -> Any:
    """Move the multipliers of a row; how many classes are touched, which, and their changes are filled in."""
    k, used, inverse = np.uintp(len(slack)), np.uintp(0), 1.0 / bend
    for j in range(k):
        change[j] = beta[i, j] + slack[j] * inverse
    shift = simplex_shift(change, room)
    for j in range(k):
        new, old = max(change[j] - shift, 0.0), beta[i, j]
        if abs(new - old) > DUST or (new == 0.0 and old > 0.0):
            change[j] = new - old
            beta[i, j] = new
            touched[used] = j
            used += np.uintp(1)
    if damping != 1.0:
        _damp(beta, i, damping, change, touched, used)
    return used


@njit(cache=True, nogil=True)
def _damp(beta: Any, i: Any, damping: float, change: Any, touched: Any, used: Any) -> None:
    """Take part of the step, or more than all of it, but no multiplier below zero."""
    for m in range(used):
        j = touched[m]
        if change[j] < 0.0:
            damping = min(damping, (beta[i, j] - change[j]) / -change[j])
    for m in range(used):
        j = touched[m]
        old = beta[i, j] - change[j]
        beta[i, j] = max(old + damping * change[j], 0.0)
        change[j] = beta[i, j] - old


@njit(cache=True, nogil=True)
def _judge(beta: Any, i: Any, slack: Any) -> tuple[float, float]:
    """How far the multipliers of a row are from their best, and by how much they are held where they are.

    The first is by how much the slack of a class that has a multiplier is below the largest; the second is
    that of all others, where one class alone has a multiplier.
    """
    top = second = low = -math.inf
    low, held = math.inf, np.uintp(0)
    for j in range(np.uintp(len(slack))):
        s = slack[j]
        if s > top:
            top, second = s, top
        elif s > second:
            second = s
        if beta[i, j] > 0.0:
            low = min(low, s)
            held += np.uintp(1)
    for j in range(np.uintp(len(slack))):
        slack[j] -= top
    return top - low, (top - second if held == np.uintp(1) and low == top else 0.0)


# ---------------------------------------------------------------- sparse rows
@njit(cache=True, nogil=True, fastmath={"contract"})
def _slacks(indices: Any, data: Any, W: Any, start: Any, stop: Any, cost: Any, c: Any, slack: Any) -> None:
    """The cost of each class and its score, the sums of eight or four classes in registers."""
    k, j = np.uintp(len(slack)), np.uintp(0)
    one, two, three, four = np.uintp(1), np.uintp(2), np.uintp(3), np.uintp(4)
    five, six, seven, eight = np.uintp(5), np.uintp(6), np.uintp(7), np.uintp(8)
    dense = len(indices) == 0
    while j < k:
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        if j + eight <= k:
            for e in range(start, stop):
                x = np.float64(data[e])
                f = np.uintp(e - start) if dense else np.uintp(indices[e])
                s0 += x * W[f, j]
                s1 += x * W[f, j + one]
                s2 += x * W[f, j + two]
                s3 += x * W[f, j + three]
                s4 += x * W[f, j + four]
                s5 += x * W[f, j + five]
                s6 += x * W[f, j + six]
                s7 += x * W[f, j + seven]
            slack[j + four] = s4 + cost[c, j + four]
            slack[j + five] = s5 + cost[c, j + five]
            slack[j + six] = s6 + cost[c, j + six]
            slack[j + seven] = s7 + cost[c, j + seven]
        else:
            for e in range(start, stop):
                x = np.float64(data[e])
                f = np.uintp(e - start) if dense else np.uintp(indices[e])
                s0 += x * W[f, j]
                s1 += x * W[f, j + one]
                s2 += x * W[f, j + two]
                s3 += x * W[f, j + three]
        slack[j] = s0 + cost[c, j]
        slack[j + one] = s1 + cost[c, j + one]
        slack[j + two] = s2 + cost[c, j + two]
        slack[j + three] = s3 + cost[c, j + three]
        j += eight


@njit(cache=True, nogil=True, fastmath={"contract"})
def _move(
    indices: Any, data: Any, W: Any, start: Any, stop: Any, step: float, change: Any, touched: Any, used: Any
) -> None:
    """W -= step x change', of the touched classes."""
    dense = len(indices) == 0
    if used == np.uintp(2):
        a, b = touched[0], touched[1]
        s, t = step * change[a], step * change[b]
        for e in range(start, stop):
            x = np.float64(data[e])
            f = np.uintp(e - start) if dense else np.uintp(indices[e])
            W[f, a] -= s * x
            W[f, b] -= t * x
        return
    for e in range(start, stop):
        x = step * data[e]
        f = np.uintp(e - start) if dense else np.uintp(indices[e])
        for m in range(used):
            W[f, touched[m]] -= x * change[touched[m]]


@njit(cache=True, nogil=True)
def sweep(
    indptr: Any, indices: Any, data: Any, W: Any, beta: Any, y: Any, terms: Any, cost: Any,
    order: Any, active: int, damping: float, shrink: bool, shuffle: bool, rng: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over order[:active], the weights of a feature together; how many rows are active after it."""
    k, kept, size, flat = W.shape[1], np.uintp(0), np.uintp(active), W.ravel()
    slack, change, room, touched = np.empty(k), np.empty(k), np.empty(k), np.empty(k, np.uintp)
    most, above, one = 0.0, (out[MOST] or math.inf), np.uintp(1)
    for v in range(np.uintp(min(active, FAR)) if shuffle else np.uintp(0)):
        _draw(order, v, size, rng)
    for v in range(size):
        ahead = v + np.uintp(FAR)
        if shuffle and ahead < size:
            _draw(order, ahead, size, rng)
        ahead = v + np.uintp(NEAR)
        if ahead < size:
            i = np.uintp(order[ahead])
            for e in range(np.intp(indptr[i]), np.intp(indptr[i + one]), LINE // data.itemsize):
                _prefetch(data, e)
                if len(indices):
                    _prefetch(indices, e)
        ahead = v + one
        if ahead < size and len(indices):
            i = np.uintp(order[ahead])
            for e in range(np.uintp(indptr[i]), np.uintp(indptr[i + one])):
                at = np.intp(indices[e]) * k
                for line in range(at, at + k, LINE // W.itemsize):
                    _prefetch(flat, line)
        i = np.uintp(order[v])
        start, stop = np.uintp(indptr[i]), np.uintp(indptr[i + one])
        _slacks(indices, data, W, start, stop, cost, y[i], slack)
        violation, hold = _judge(beta, i, slack)
        if shrink and hold > above:
            continue
        order[kept] = i
        kept += one
        most = max(most, violation)
        if violation > 0.0:
            used = row_step(beta, i, slack, terms[i, BEND], damping, change, room, touched)
            if used:
                out[MOVES] += 1
                _move(indices, data, W, start, stop, terms[i, STEP], change, touched, used)
    out[MOST] = most
    out[VISITS] += active
    return int(kept)


# ---------------------------------------------------------------- dense rows
@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _dot(X: Any, i: Any, V: Any, j: Any) -> float:
    s = 0.0
    for f in range(np.uintp(X.shape[1])):
        s += X[i, f] * V[j, f]
    return s


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add(X: Any, i: Any, V: Any, j: Any, t: float) -> None:
    for f in range(np.uintp(X.shape[1])):
        V[j, f] += t * X[i, f]


@njit(cache=True, nogil=True)
def dense_sweep(
    X: Any, V: Any, beta: Any, asleep: Any, y: Any, terms: Any, cost: Any,
    order: Any, active: int, damping: float, shrink: bool, shuffle: bool, rng: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over order[:active], the weights of a class together; how many rows are active after it."""
    k, kept, size, one = np.uintp(len(V)), np.uintp(0), np.uintp(active), np.uintp(1)
    slack, change, room = np.empty(len(V)), np.empty(len(V)), np.empty(len(V))
    touched = np.empty(len(V), np.uintp)
    most, above = 0.0, (out[MOST] or math.inf)
    for v in range(size):
        if shuffle:
            _draw(order, v, size, rng)
        i = np.uintp(order[v])
        for j in range(k):
            slack[j] = -math.inf if asleep[i, j] else cost[y[i], j] + _dot(X, i, V, j)
        violation, hold = _judge(beta, i, slack)
        if shrink and hold > above:
            continue
        order[kept] = i
        kept += one
        most = max(most, violation)
        if shrink:
            for j in range(k):
                asleep[i, j] = beta[i, j] == 0.0 and slack[j] < -violation - above
        if violation > 0.0:
            used = row_step(beta, i, slack, terms[i, BEND], damping, change, room, touched)
            if used:
                out[MOVES] += 1
                for m in range(used):
                    _add(X, i, V, touched[m], -terms[i, STEP] * change[touched[m]])
    out[MOST] = most
    out[VISITS] += active
    return int(kept)


# ---------------------------------------------------------------- a check
@njit(cache=True, nogil=True)
def check(z: Any, beta: Any, y: Any, c: Any, cost: Any, first: int, D: Any, sums: Any, marks: Any) -> None:
    """The slopes D of the multipliers of the rows from `first` on, whose scores are z, and what they give.

    sums: the loss, the multipliers times the costs, and the sizes of what cancels there. marks: how far
    each row is from its best multipliers, and by how much it is held where it is.
    """
    k = np.uintp(z.shape[1])
    slack = np.empty(z.shape[1])
    for r in range(np.uintp(len(z))):
        i = np.uintp(first) + r
        own = y[i]
        total = gain = size = 0.0
        top = -math.inf
        for j in range(k):
            slack[j] = cost[own, j] + z[r, j]
            top = max(top, slack[j] - z[r, own])
            if j != own:
                total += beta[i, j]
        total = max(total, 1.0)  # by rounding, it may be more
        left = 0.0
        for j in range(k):
            if j != own:
                b = beta[i, j] / total
                gain += b * cost[own, j]
                size += b * (cost[own, j] + abs(z[r, j]) + abs(z[r, own]))
                D[r, j] = c[i] * b
                left += D[r, j]
        D[r, own] = -left
        sums[0] += c[i] * top
        sums[1] += c[i] * gain
        sums[2] += c[i] * size
        marks[i, 0], marks[i, 1] = _judge(beta, i, slack)


@njit(cache=True, nogil=True)
def select(marks: Any, rows: Any, order: Any, out: Any) -> int:
    """Put those rows into order that can move, or nearly so; how many.

    A row all of whose weight is on one class stays so if it is held there by more than any row is pulled.
    """
    most, active = 0.0, 0
    for i in rows:
        most = max(most, marks[i, 0])
    for i in rows:
        if marks[i, 1] <= most:
            order[active] = i
            active += 1
    out[MOST] = most
    return active


@njit(cache=True, nogil=True, fastmath={"contract"})
def along(Z: Any, D: Any, t: float, y: Any, c: Any, cost: Any) -> tuple[float, float]:
    """The loss at scores Z + t D, and its slope in t."""
    k = np.uintp(Z.shape[1])
    value = slope = 0.0
    for i in range(np.uintp(len(Z))):
        own = y[i]
        base = Z[i, own] + t * D[i, own]
        top, best = -math.inf, own
        for j in range(k):
            s = cost[own, j] + (Z[i, j] + t * D[i, j]) - base
            if s > top:
                top, best = s, j
        value += c[i] * top
        slope += c[i] * (D[i, best] - D[i, own])
    return value, slope


# ---------------------------------------------------------------- faces
@njit(cache=True, nogil=True)
def tangent(S: Any, beta: Any, scale: Any) -> None:
    """S of each row, less its mean over the classes with multipliers, times a scale; 0 for the others."""
    k = np.uintp(S.shape[1])
    for i in range(np.uintp(len(S))):
        total, count = 0.0, 0
        for j in range(k):
            if beta[i, j] > 0.0:
                total += S[i, j]
                count += 1
        mean = total / max(count, 1)
        for j in range(k):
            S[i, j] = scale[i] * (S[i, j] - mean) if beta[i, j] > 0.0 else 0.0
