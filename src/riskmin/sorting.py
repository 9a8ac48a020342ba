"""Sorting scores, and sums over what is sorted: what losses of pairs and of whole lists are made of."""

from __future__ import annotations

import numpy as np

from riskmin.arrays import namespace
from riskmin.deadline import check, pieces
from riskmin.types import Array

KEY = 16
"""Elementary operations that a number takes, a pass: it goes anywhere in memory."""
MANY = 4096
"""From so many numbers on, digits are faster than comparisons."""


def order(z: Array) -> Array:
    """The indices that sort z, lowest first, and equal numbers in the order they came.

    Examples
    --------
    >>> import numpy as np
    >>> order(np.array([3.0, 1.0, 2.0, 1.0])).tolist()
    [1, 3, 2, 0]
    """
    if not isinstance(z, np.ndarray):
        return namespace(z).argsort(z)
    if len(z) < MANY:
        return np.argsort(z, kind="stable")
    from riskmin.kernels import sort  # Numba is imported with the first long list

    n, keys = len(z), (z.astype(np.float64) + 0.0).view(np.uint64)  # a copy, in which -0 is 0
    count, order = np.zeros((sort.PASSES, sort.BUCKETS), np.int64), np.arange(n)
    spare, others = np.empty_like(keys), np.empty_like(order)
    for piece in pieces(0, n, KEY * n):
        sort.to_keys(keys, count, *piece)
    for q in range(sort.PASSES):
        if not sort.to_starts(count[q], n):
            for piece in pieces(0, n, KEY * n):
                sort.deal(keys, order, count[q], q, *piece, spare, others)
            keys, spare, order, others = spare, keys, others, order
    return order


def wider(z: Array) -> Array:
    """The numbers in float64: sums of many need its digits."""
    xp = namespace(z)
    return z if z.dtype == xp.float64 else xp.astype(z, xp.float64)


def ranks(s: Array, t: Array, side: str) -> Array:
    """How many of the sorted s lie before each of the sorted t: ``searchsorted`` of two sorted lists.

    Examples
    --------
    >>> import numpy as np
    >>> ranks(np.array([1.0, 2.0, 2.0]), np.array([0.0, 2.0]), side="right").tolist()
    [0, 3]
    """
    if not isinstance(s, np.ndarray) or len(t) < MANY:
        return namespace(s).searchsorted(s, t, side=side)
    from riskmin.kernels.sort import merge_ranks

    check()
    return merge_ranks(s, t, side == "right")


def prefix_sums(a: Array) -> Array:
    """0, a_0, a_0 + a_1, ... and the sum of all.

    Examples
    --------
    >>> import numpy as np
    >>> prefix_sums(np.array([1.0, 2.0, 4.0])).tolist()
    [0.0, 1.0, 3.0, 7.0]
    """
    if not isinstance(a, np.ndarray):
        return namespace(a).cumulative_sum(a, axis=0, include_initial=True)
    if len(a) > MANY:
        check()
    sums = np.empty((len(a) + 1, *a.shape[1:]), a.dtype)
    sums[0] = 0
    np.cumsum(a, axis=0, out=sums[1:])
    return sums
