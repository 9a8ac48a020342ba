"""Sums over vectors with one entry per row, by ranges of rows that threads share.

The order of the sums is that of the ranges, which depend on the number of rows alone.
"""

from __future__ import annotations

from typing import Any

from riskmin._numba.compile_cache import njit
from riskmin._numba.shards.items import next_item


@njit(fastmath={"contract", "reassoc", "nsz"})
def inner(a: Any, b: Any) -> float:
    """sum_i a_i b_i."""
    s = 0.0
    for i in range(len(a)):
        s += a[i] * b[i]
    return s


@njit()
def nonzeros_of_ranges(progress: Any, memory: Any, ends: Any, a: Any, out: Any) -> None:
    """Set out[k, 0] to the number of entries other than 0 of rows ends[k] to ends[k + 1] - 1."""
    k = next_item(progress)
    while k >= 0:
        n = 0
        for i in range(ends[k], ends[k + 1]):
            n += a[i] != 0.0
        out[k, 0] = n
        k = next_item(progress)


@njit()
def gather_of_ranges(progress: Any, memory: Any, ends: Any, X: Any, index: Any, out: Any) -> None:
    """Set out[i] to row index[i] of X."""
    k = next_item(progress)
    while k >= 0:
        for i in range(ends[k], ends[k + 1]):
            row, copy = X[index[i]], out[i]
            for j in range(len(row)):
                copy[j] = row[j]
        k = next_item(progress)
