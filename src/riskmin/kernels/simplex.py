"""The nearest points on simplices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit


@njit()
def simplex_shift(v: Any, k: Any, room: Any) -> float:
    """Take the largest entry off the first k of v; the number to be taken off, too, before the cut at zero.

    Only what is less than 1 below the largest can stay above zero. Of these, the ones below the mean shift
    are left out, again and again: far fewer comparisons than to sort them.
    """
    one, used, before = np.uintp(1), np.uintp(0), np.uintp(0)
    total, shift, largest = 0.0, -1.0, -math.inf
    for j in range(k):
        largest = max(largest, v[j])
    for j in range(k):
        v[j] -= largest
        if v[j] > -1.0:
            room[used] = v[j]
            used += one
            total += v[j]
    while used != before:
        shift = (total - 1.0) / used if used else -1.0  # none is used where some are no numbers
        before, used, total = used, np.uintp(0), 0.0
        for m in range(before):
            if room[m] > shift:
                room[used] = room[m]
                used += one
                total += room[m]
    return shift


def project_rows(V: Any) -> None:
    """Each row of V becomes the nearest point whose entries are >= 0 and of sum one."""
    _project_rows(V, *np.empty((2, V.shape[1])))


@njit()
def _project_rows(V: Any, v: Any, room: Any) -> None:
    k = np.uintp(V.shape[1])
    for i in range(np.uintp(len(V))):
        for j in range(k):
            v[j] = V[i, j]
        shift = simplex_shift(v, k, room)
        for j in range(k):
            V[i, j] = max(v[j] - shift, 0.0)
