"""The order of numbers by their digits, five times as fast as comparing them where there are many."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit

DIGIT = 8
"""Bits a pass; the counters of 2^8 buckets stay in the innermost cache."""


@njit(allocates=True)
def radix_order(z: Any) -> Any:
    """The indices that sort float64 numbers, equal ones in the order they came; z is written over.

    Read as unsigned integers, floats are in order once the sign bit is turned over, and all other bits too
    where it was set.
    """
    n = len(z)
    buckets, passes = 1 << DIGIT, 64 // DIGIT
    mask, sign = np.uint64(buckets - 1), np.uint64(1 << 63)
    keys = z.view(np.uint64)
    count = np.zeros((passes, buckets), np.int64)
    for i in range(n):
        k = keys[i]
        k = ~k if k & sign else k | sign
        keys[i] = k
        for q in range(passes):
            count[q, (k >> np.uint64(q * DIGIT)) & mask] += 1
    order, others, spare = np.arange(n), np.empty(n, np.int64), np.empty(n, np.uint64)
    for q in range(passes):
        start, before = count[q], 0
        alike = False
        for d in range(buckets):
            many = start[d]
            alike |= many == n
            start[d] = before
            before += many
        if alike:  # all have the same digit
            continue
        shift = np.uint64(q * DIGIT)
        for i in range(n):
            k = keys[i]
            d = (k >> shift) & mask
            to = start[d]
            start[d] = to + 1
            spare[to] = k
            others[to] = order[i]
        keys, spare = spare, keys
        order, others = others, order
    return order


@njit(allocates=True)
def merge_ranks(s: Any, t: Any, after: bool) -> Any:
    """How many of the sorted s lie before each of the sorted t, those equal to it among them or not."""
    ranks = np.empty(len(t), np.int64)
    k, m = 0, len(s)
    for i in range(len(t)):
        if after:
            while k < m and s[k] <= t[i]:
                k += 1
        else:
            while k < m and s[k] < t[i]:
                k += 1
        ranks[i] = k
    return ranks
