"""What is computed over all rows between sweeps of dual block ascent: checks, looks along lines, faces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.dual_multiclass import DOZE, MOST, judge


@njit()
def check(
    z: Any,
    beta: Any,
    y: Any,
    c: Any,
    cost: Any,
    first: int,
    slack: Any,
    mine: Any,
    D: Any,
    sums: Any,
    marks: Any,
) -> None:
    """The slopes D of the multipliers of the rows from `first` on, whose scores are z, and what they give.

    sums: the loss, the multipliers times the costs, and the sizes of what cancels there. marks: how far
    each row is from its best multipliers, and by how much it is held where it is. Slack and mine
    are room, for a number a class.
    """
    k = np.uintp(z.shape[1])
    for r in range(np.uintp(len(z))):
        i = np.uintp(first) + r
        own = y[i]
        total = gain = size = 0.0
        top = -math.inf
        for j in range(k):
            slack[j], mine[j] = cost[own, j] + z[r, j], beta[i, j]
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
        marks[i, 0], marks[i, 1] = judge(mine, slack, k)


@njit()
def select(marks: Any, rows: Any, order: Any, out: Any) -> int:
    """Put those rows into order that can move, or nearly so; how many.

    A row all of whose weight is on one class stays so if it is held there by more than any row is pulled.
    """
    most, active = 0.0, 0
    for i in rows:
        most = max(most, marks[i, 0])
    for i in rows:
        if marks[i, 1] <= DOZE * most:
            order[active] = i
            active += 1
    out[MOST] = most
    return active


@njit(fastmath={"contract"})
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
@njit()
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
