"""Loops over the rows of each query: the hinges of all its pairs, and its worst rankings.

Each query has sums of its own, so that those of millions of rows take no digits from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def worst_first(s: Any, starts: Any, splits: Any, share: Any) -> Any:
    """How many irrelevant rows are best put before the first relevant one, in each query.

    Sorted by decreasing scores are the relevant rows ``s[starts[k]:splits[k]]`` and then the others. All rows
    behind those in front are in order, so one more in front passes all relevant rows of higher scores.
    """
    found = np.zeros(len(splits), np.int64)
    for k in range(len(splits)):
        best = lead = above = 0.0
        higher = starts[k]
        for r in range(splits[k], starts[k + 1]):
            while higher < splits[k] and s[higher] > s[r]:
                above += s[higher]
                higher += 1
            lead -= share[k] * (above - (higher - starts[k]) * s[r])
            value = lead + 1 - 1 / (r - splits[k] + 2)
            if value > best:
                best = value
                found[k] = r - splits[k] + 1
    return found


@njit(cache=True, nogil=True)
def worst_places(
    s: Any, gain: Any, tied: Any, blocks: Any, share: Any, discount: Any, k: int, chosen: Any, first: int,
    last: int, place: Any,
) -> None:  # fmt: skip
    """Fill in the places of the rows that the worst ranking of their query has in its first k.

    The rows of a query are sorted by grade and score, highest first; its grades start at
    ``tied[blocks[q]:blocks[q + 1]]``. Only the chosen queries of a range are looked at.
    """
    for q in range(first, last):
        if chosen[q]:
            _interleave(s, gain, tied[blocks[q] : blocks[q + 1] + 1], share[q], discount, k, place)


@njit(cache=True, nogil=True)
def _interleave(s: Any, gain: Any, tied: Any, share: float, discount: Any, k: int, place: Any) -> None:
    """Dynamic programming over how many rows of each grade are in front.

    Rows of the same grade are in the order of their scores, and so are all rows behind the first k, whatever
    their grades.
    """
    many, size = len(tied) - 1, tied[-1] - tied[0]
    few = min(k, size)
    most, stride = np.minimum(np.diff(tied), few), np.ones(many, np.int64)
    for g in range(many - 2, -1, -1):
        stride[g] = stride[g + 1] * (most[g + 1] + 1)
    rest = _rests(s, tied)
    tails = _tails(s, tied, rest, most, few if few < size else 0)
    best, came = np.empty(stride[0] * (most[0] + 1)), np.empty(stride[0] * (most[0] + 1), np.int64)
    best[0], top, end = 0.0, -np.inf, 0
    n, used, at = np.zeros(many, np.int64), 0, 0
    while True:
        g = many - 1
        while g >= 0 and (used == few or n[g] == most[g]):
            used, at, n[g] = used - n[g], at - n[g] * stride[g], 0
            g -= 1
        if g < 0:
            break
        used, at, n[g] = used + 1, at + stride[g], n[g] + 1
        best[at] = -np.inf
        for g in range(many):
            if n[g]:  # the last row in front may be of this grade, ahead of all better ones that are not
                z, value = s[tied[g] + n[g] - 1], best[at - stride[g]] - discount[used - 1] * gain[tied[g]]
                for h in range(g):
                    value += share * ((tied[h + 1] - tied[h] - n[h]) * z - rest[tied[h] - tied[0] + h + n[h]])
                if value > best[at]:
                    best[at], came[at] = value, g
        if used == few:
            value = best[at]
            if few < size:
                for g in range(many):
                    for h in range(g):
                        value += share * tails[h, g, n[h], n[g]]
            if value > top:
                top, end = value, at
    for used in range(few - 1, -1, -1):
        g = came[end]
        place[tied[g] + end // stride[g] % (most[g] + 1) - 1] = used
        end -= stride[g]


@njit(cache=True, nogil=True)
def _rests(s: Any, tied: Any) -> Any:
    """For each grade the sums of its scores from the first, the second, ... on, and zero."""
    rest = np.zeros(tied[-1] - tied[0] + len(tied) - 1)
    for g in range(len(tied) - 1):
        for i in range(tied[g + 1] - 1, tied[g] - 1, -1):
            rest[i - tied[0] + g] = rest[i - tied[0] + g + 1] + s[i]
    return rest


@njit(cache=True, nogil=True)
def _tails(s: Any, tied: Any, rest: Any, most: Any, few: int) -> Any:
    """What the pairs of two grades behind the first so many of each add up to, in the order of scores."""
    many = len(tied) - 1
    tails = np.zeros((many, many, few + 1, few + 1))
    for g in range(many if few else 0):
        first, sums = tied[g] - tied[0] + g, np.zeros(few + 1)
        for h in range(g):
            sums[:] = 0.0
            higher = tied[g + 1] - tied[g]
            for i in range(tied[h + 1] - 1, tied[h] - 1, -1):
                while higher and s[tied[g] + higher - 1] <= s[i]:
                    higher -= 1
                for b in range(min(higher, most[g] + 1)):
                    sums[b] += rest[first + b] - rest[first + higher] - (higher - b) * s[i]
                if i - tied[h] <= most[h]:
                    tails[h, g, i - tied[h]] = sums
    return tails


@njit(cache=True, nogil=True)
def hinges_of_queries(z: Any, c: Any, rank: Any, starts: Any, mu: float, h: float) -> Any:
    """The smoothed hinges of all pairs of different ranks, for each query.

    The rows of a query are sorted by z. Two ranks differ in a highest bit: bit by bit, those that have it are
    compared with those that do not and agree in all higher bits. Values, lifts and numbers of pairs come for
    each query, slopes for each row, all weighted by c_i c_j. The h is a power of two, at least 2 mu.
    """
    n, many = len(z), len(starts) - 1
    value, lift, pairs, dz = np.zeros(many), np.zeros(many), np.zeros(many), np.zeros(n)
    rows, spare = np.arange(n), np.empty(n, np.int64)
    for k in range(many):
        end, bits = starts[k + 1], 0
        while np.max(rank[starts[k] : end]) >> bits:
            bits += 1
        for b in range(bits - 1, -1, -1):
            start = starts[k]
            while start < end:
                group = rank[rows[start]] >> (b + 1)
                stop = middle = start
                while stop < end and rank[rows[stop]] >> (b + 1) == group:
                    if not (rank[rows[stop]] >> b) & 1:
                        spare[middle] = rows[stop]
                        middle += 1
                    stop += 1
                fill = middle
                for i in range(start, stop):
                    if (rank[rows[i]] >> b) & 1:
                        spare[fill] = rows[i]
                        fill += 1
                rows[start:stop] = spare[start:stop]
                if start < middle < stop:
                    v, more, p = _hinges(z, c, rows[middle:stop], rows[start:middle], mu, h, dz)
                    value[k] += v
                    lift[k] += more
                    pairs[k] += p
                start = stop
    return value, lift, pairs, dz


@njit(cache=True, nogil=True)
def _sums(z: Any, c: Any, rows: Any, shift: float, h: float) -> Any:
    """The sums of c, c r and c r^2 over the first so many rows, for the places r of z - shift in cells."""
    sums = np.zeros((len(rows) + 1, 3))
    for i in range(len(rows)):
        s, p = z[rows[i]] - shift, c[rows[i]]
        r = s - h * np.floor(s / h)
        sums[i + 1, 0] = sums[i, 0] + p
        sums[i + 1, 1] = sums[i, 1] + p * r
        sums[i + 1, 2] = sums[i, 2] + p * r * r
    return sums


@njit(cache=True, nogil=True)
def _hinges(z: Any, c: Any, above: Any, below: Any, mu: float, h: float, dz: Any) -> Any:
    """The smoothed hinges of all pairs of two lists sorted by z, with the slopes added to dz.

    As `riskmin.losses.pairs.hinge_of_pairs`: the same comparisons of the same numbers serve both slopes, and
    places in cells of width h keep the digits of differences.
    """
    na, nb = len(above), len(below)
    centre = z[below[nb // 2]]  # far from zero, products would cancel
    m, w = _sums(z, c, below, 0.0, h), _sums(z, c, above, 1.0, h)
    value = lift = 0.0
    first = over = split = 0
    for i in range(na):
        low, p = z[above[i]] - 1, c[above[i]]
        while over < nb and z[below[over]] <= low + mu:
            over += 1
        beta = m[nb, 0] - m[over, 0]
        if mu:
            end = h * (np.floor(low / h) + 1)
            r = low - (end - h)
            while first < over and z[below[first]] <= low:
                first += 1
            while split < over and z[below[split]] < end:
                split += 1
            w0, w1, w2 = m[over] - m[first]
            n0, n1, _ = m[over] - m[max(split, first)]
            squares = w2 - 2 * r * w1 + r * r * w0 + h * (2 * n1 + (h - 2 * r) * n0)
            lift += p * (0.5 / mu * squares + 0.5 * mu * beta)
            beta += (w1 - r * w0 + h * n0) / mu
        dz[above[i]] -= p * beta
        value -= p * beta * (z[above[i]] - (centre + 1))
    last = under = split = 0
    for j in range(nb):
        s, q = z[below[j]], c[below[j]]
        while under < na and z[above[under]] - 1 + mu < s:
            under += 1
        gamma = w[under, 0]
        if mu:
            start = h * np.floor(s / h)
            while last < na and (last < under or z[above[last]] - 1 < s):
                last += 1
            while split < last and z[above[split]] - 1 < start:
                split += 1
            w0, w1, _ = w[last] - w[under]
            gamma += ((s - start) * w0 - w1 + h * (w[max(split, under), 0] - w[under, 0])) / mu
        dz[below[j]] += q * gamma
        value += q * gamma * (s - centre)
    return value - lift, lift, w[na, 0] * m[nb, 0]
