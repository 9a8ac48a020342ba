"""Sorting, ranks and prefix sums of scores: the building blocks of pairwise and listwise losses."""

from __future__ import annotations

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array
from riskmin.core.deadline import check, chunk_ranges

RADIX_SORT_FROM = 4096
"""From this many numbers on, radix sort is faster than comparison sort."""


def stable_argsort(z: Array) -> Array:
    """Return the indices that sort z in increasing order; equal numbers keep their order."""
    if namespace(z) is not np:
        return namespace(z).argsort(z)
    if len(z) < RADIX_SORT_FROM:
        return np.argsort(z, kind="stable")
    from riskmin._numba.sorting import (
        radix_sort,  # Numba is imported by the first long sort, not with the package
    )

    # adding 0.0 makes a copy in which -0.0 is 0.0
    n, keys = len(z), (z.astype(np.float64) + 0.0).view(np.uint64)
    count, index = np.zeros((radix_sort.RADIX_PASSES, radix_sort.RADIX_BUCKETS), np.int64), np.arange(n)
    next_keys, next_index = np.empty_like(keys), np.empty_like(index)
    work = 16 * n  # elementary operations of a pass: each write goes to a random place in memory
    for piece in chunk_ranges(0, n, work):
        radix_sort.floats_to_keys(keys, count, *piece)
    # stable passes from the least significant digit to the most significant one
    for q in range(radix_sort.RADIX_PASSES):
        # a pass in which all keys have the same digit would change nothing
        if not radix_sort.counts_to_starts(count[q], n):
            for piece in chunk_ranges(0, n, work):
                radix_sort.scatter_by_digit(keys, index, count[q], q, *piece, next_keys, next_index)
            keys, next_keys, index, next_index = next_keys, keys, next_index, index
    return index


def as_float64(z: Array) -> Array:
    """Return z in float64: long sums need its digits."""
    xp = namespace(z)
    return z if z.dtype == xp.float64 else xp.astype(z, xp.float64)


def ranks_in_sorted(s: Array, t: Array, side: str) -> Array:
    """Return how many of the sorted s come before each of the sorted t: ``searchsorted`` of sorted arrays."""
    # short lists: one binary search per entry; long ones are merged, in O(n + m)
    if namespace(s) is not np or len(t) < RADIX_SORT_FROM:
        return namespace(s).searchsorted(s, t, side=side)
    from riskmin._numba.sorting.radix_sort import merge_ranks

    check()
    return merge_ranks(s, t, side == "right")


def prefix_sums(a: Array) -> Array:
    """Return the prefix sums 0, a_0, a_0 + a_1, ..., up to the sum of all."""
    if namespace(a) is not np:
        return namespace(a).cumulative_sum(a, axis=0, include_initial=True)
    if len(a) > RADIX_SORT_FROM:
        check()
    sums = np.empty((len(a) + 1, *a.shape[1:]), a.dtype)
    sums[0] = 0
    np.cumsum(a, axis=0, out=sums[1:])
    return sums
