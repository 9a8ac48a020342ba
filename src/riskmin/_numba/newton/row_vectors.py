"""Sums over vectors with one entry per row, for several ranges of rows in one call.

The order of the sums is that of the ranges, which depend on the number of rows alone.
"""

from __future__ import annotations

from typing import Any

from riskmin._numba.compile_cache import njit


@njit(fastmath={"contract", "reassoc", "nsz"})
def _inner(a: Any, b: Any) -> float:
    """sum_i a_i b_i."""
    s = 0.0
    for i in range(len(a)):
        s += a[i] * b[i]
    return s


@njit(fastmath={"contract", "reassoc", "nsz"})
def _weighted_square(a: Any, b: Any) -> float:
    """sum_i a_i b_i^2."""
    s = 0.0
    for i in range(len(a)):
        s += a[i] * (b[i] * b[i])
    return s


@njit(fastmath={"contract", "reassoc", "nsz"})
def _total(a: Any) -> float:
    """sum_i a_i."""
    s = 0.0
    for i in range(len(a)):
        s += a[i]
    return s


@njit()
def inner_of_ranges(ends: Any, a: Any, b: Any, out: Any) -> None:
    """Set out[k, 0] to sum_i a_i b_i over rows ends[k] to ends[k + 1] - 1."""
    for k in range(len(ends) - 1):
        out[k, 0] = _inner(a[ends[k] : ends[k + 1]], b[ends[k] : ends[k + 1]])


@njit()
def weighted_square_of_ranges(ends: Any, a: Any, b: Any, out: Any) -> None:
    """Set out[k, 0] to sum_i a_i b_i^2 over rows ends[k] to ends[k + 1] - 1."""
    for k in range(len(ends) - 1):
        out[k, 0] = _weighted_square(a[ends[k] : ends[k + 1]], b[ends[k] : ends[k + 1]])


@njit()
def total_of_ranges(ends: Any, a: Any, out: Any) -> None:
    """Set out[k, 0] to sum_i a_i over rows ends[k] to ends[k + 1] - 1."""
    for k in range(len(ends) - 1):
        out[k, 0] = _total(a[ends[k] : ends[k + 1]])
