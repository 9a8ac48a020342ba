"""The order of numbers by their digits, five times as fast as comparing them where there are many.

The steps are taken one by one, in ranges: `riskmin.sorting` does that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit

DIGIT = 8
"""Bits a pass; the counters of 2^8 buckets stay in the innermost cache."""
PASSES, BUCKETS = 64 // DIGIT, 1 << DIGIT
MASK, SIGN = np.uint64(BUCKETS - 1), np.uint64(1 << 63)


@njit()
def to_keys(keys: Any, count: Any, first: int, last: int) -> None:
    """Floats, read as unsigned integers, as keys that are in order, and how often each digit occurs in them.

    They are in order once the sign bit is turned over, and all other bits too where it was set.
    """
    for i in range(first, last):
        k = keys[i]
        k = ~k if k & SIGN else k | SIGN
        keys[i] = k
        for q in range(PASSES):
            count[q, (k >> np.uint64(q * DIGIT)) & MASK] += 1


@njit()
def to_starts(count: Any, n: int) -> bool:
    """Counts as where each digit begins; whether all n keys have the same digit."""
    before, alike = 0, False
    for d in range(BUCKETS):
        many = count[d]
        alike |= many == n
        count[d] = before
        before += many
    return alike


@njit()
def deal(
    keys: Any, order: Any, start: Any, q: int, first: int, last: int, to_keys: Any, to_order: Any
) -> None:
    """Put a range of the keys, and their indices, where their digit q belongs."""
    shift = np.uint64(q * DIGIT)
    for i in range(first, last):
        k = keys[i]
        d = (k >> shift) & MASK
        to = start[d]
        start[d] = to + 1
        to_keys[to] = k
        to_order[to] = order[i]


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
