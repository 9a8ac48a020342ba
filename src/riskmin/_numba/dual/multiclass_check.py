"""Passes over all rows between sweeps of multiclass dual ascent: checks and evaluations along lines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.dual.multiclass_sweep import SHRINK_VIOLATION_RATIO, row_violation
from riskmin._numba.dual.sweep import MAX_SLOPE


@njit()
def evaluate_multiclass_rows(
    z: Any,
    beta: Any,
    y: Any,
    c: Any,
    cost: Any,
    first: int,
    slack: Any,
    row_beta: Any,
    D: Any,
    sums: Any,
    marks: Any,
) -> None:
    """Compute the slopes D of the rows from `first` on, given their scores z, and add up the sums of a check.

    D = c (beta - e_y) per row, with beta scaled into the simplex. sums: the loss c max_j s_j, the cut's
    offset c beta' cost, and the absolute values of its terms, for rounding. marks: each row's violation, and
    the lead of a single multiplier (`row_violation`). slack and row_beta are workspaces with one entry per
    class.
    """
    k = np.uintp(z.shape[1])
    for r in range(np.uintp(len(z))):
        i = np.uintp(first) + r
        y_i = y[i]
        total = offset = size = 0.0
        top = -math.inf
        for j in range(k):
            # slack relative to z_y enters the loss; `row_violation` needs differences only
            slack[j], row_beta[j] = cost[y_i, j] + z[r, j], beta[i, j]
            # loss of the row: max_j cost_yj + z_j - z_y
            top = max(top, slack[j] - z[r, y_i])
            if j != y_i:
                total += beta[i, j]
        total = max(total, 1.0)  # rounding may make it slightly larger than 1
        others = 0.0
        for j in range(k):
            if j != y_i:
                b = beta[i, j] / total
                offset += b * cost[y_i, j]
                size += b * (cost[y_i, j] + abs(z[r, j]) + abs(z[r, y_i]))
                D[r, j] = c[i] * b
                others += D[r, j]
        # the slopes of a row sum to zero
        D[r, y_i] = -others
        sums[0] += c[i] * top
        sums[1] += c[i] * offset
        sums[2] += c[i] * size
        marks[i, 0], marks[i, 1] = row_violation(row_beta, slack, k)


@njit()
def select_violating_rows(marks: Any, rows: Any, order: Any, out: Any) -> int:
    """Put the rows that can move, or nearly can, into order; return their number.

    A row with a single multiplier is left out if that leads by more than a fraction of the largest violation.
    """
    max_violation, active = 0.0, 0
    for i in rows:
        max_violation = max(max_violation, marks[i, 0])
    for i in rows:
        if marks[i, 1] <= SHRINK_VIOLATION_RATIO * max_violation:
            order[active] = i
            active += 1
    out[MAX_SLOPE] = max_violation
    return active


@njit(fastmath={"contract"})
def max_margin_along_line(Z: Any, D: Any, t: float, y: Any, c: Any, cost: Any) -> tuple[float, float]:
    """Return the loss at scores Z + t D, and its derivative in t."""
    k = np.uintp(Z.shape[1])
    value = slope = 0.0
    for i in range(np.uintp(len(Z))):
        y_i = y[i]
        base = Z[i, y_i] + t * D[i, y_i]
        top, best = -math.inf, y_i
        for j in range(k):
            # slack of class j at scores Z + t D
            s = cost[y_i, j] + (Z[i, j] + t * D[i, j]) - base
            if s > top:
                top, best = s, j
        value += c[i] * top
        slope += c[i] * (D[i, best] - D[i, y_i])
    return value, slope
