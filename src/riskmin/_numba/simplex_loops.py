"""Euclidean projection onto the probability simplex."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


@njit()
def simplex_shift(v: Any, k: Any, workspace: Any) -> float:
    """Subtract the largest entry from v[:k]; return the threshold s of the projection max(v - s, 0).

    s satisfies sum_j max(v_j - s, 0) = 1. Only entries less than 1 below the largest can stay positive. Of
    these, entries below the current threshold are dropped until there are none: far fewer comparisons than
    sorting. workspace has k entries.
    """
    one, used, before = np.uintp(1), np.uintp(0), np.uintp(0)
    total, shift, largest = 0.0, -1.0, -math.inf
    # relative to the largest entry, only entries that become zero lose digits
    for j in range(k):
        largest = max(largest, v[j])
    for j in range(k):
        v[j] -= largest
        # the threshold is at least -1: entries at or below that become zero
        if v[j] > -1.0:
            workspace[used] = v[j]
            used += one
            total += v[j]
    # threshold of the current candidates; drop those below it, and repeat
    while used != before:
        # s solves sum over the candidates of (v_j - s) = 1
        shift = (total - 1.0) / used if used else -1.0  # used = 0 only with NaN entries
        before, used, total = used, np.uintp(0), 0.0
        for m in range(before):
            if workspace[m] > shift:
                workspace[used] = workspace[m]
                used += one
                total += workspace[m]
    return shift


def project_rows(V: Any) -> None:
    """Replace each row of V by its Euclidean projection onto the probability simplex."""
    _project_rows(V, *np.empty((2, V.shape[1])))


@njit()
def _project_rows(V: Any, v: Any, workspace: Any) -> None:
    """As `project_rows`; v and workspace have one entry per column."""
    k = np.uintp(V.shape[1])
    for i in range(np.uintp(len(V))):
        for j in range(k):
            v[j] = V[i, j]
        shift = simplex_shift(v, k, workspace)
        for j in range(k):
            V[i, j] = max(v[j] - shift, 0.0)
