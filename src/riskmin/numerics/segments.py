"""Sums and scans over segments of an array, such as the rows of each query, in any array library."""

from __future__ import annotations

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array


def segment_starts(*keys: Array) -> Array:
    """Return the first index of each run of equal keys.

    Examples
    --------
    >>> segment_starts(np.array([3, 3, 5, 5]), np.array([1, 2, 2, 2])).tolist()
    [0, 1, 2]
    """
    xp = namespace(*keys)
    new = xp.zeros_like(keys[0], dtype=xp.bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return xp.nonzero(new)[0]


def segment_sizes(starts: Array, n: int) -> Array:
    """Return the number of entries of each segment, of n in all."""
    return namespace(starts).concat([starts[1:], 0 * starts[:1] + n]) - starts


def segment_numbers(starts: Array, like: Array) -> Array:
    """Return the number 0, 1, ... of the segment of each entry of an array."""
    xp = namespace(starts)
    first = xp.zeros_like(like, dtype=xp.int64)
    first[starts[1:]] = 1
    return xp.cumulative_sum(first)


def segment_sums(a: Array, starts: Array) -> Array:
    """Return the sum of each segment, without the rounding errors of prefix sums over all segments.

    Examples
    --------
    >>> segment_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 1])).tolist()
    [1.0, 6.0]
    """
    if namespace(a) is np:
        return np.add.reduceat(a, starts)
    return segment_cumsum(a, starts)[starts + segment_sizes(starts, len(a)) - 1]


def segment_cumsum(a: Array, starts: Array) -> Array:
    """Return the prefix sums of each segment, its own entry included.

    In steps that double the number of added entries: as many passes over a as the longest segment has bits.

    Examples
    --------
    >>> segment_cumsum(np.array([1.0, 2.0, 4.0]), np.array([0, 1])).tolist()
    [1.0, 2.0, 6.0]
    """
    xp, number = namespace(a), segment_numbers(starts, a)
    step, longest = 1, int(xp.max(segment_sizes(starts, len(a))))
    while step < longest:
        within = number[step:] == number[:-step]
        a = xp.concat([a[:step], a[step:] + xp.where(within, a[:-step], xp.zeros_like(a[step:]))])
        step *= 2
    return a
