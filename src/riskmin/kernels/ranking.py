"""Loops over the rows of each query: the hinges of all its pairs, and the worst rank of its first hit.

Each query has sums of its own, so that those of millions of rows take no digits from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def worst_first(s: Any, starts: Any, splits: Any, c: Any) -> Any:
    """How many irrelevant rows are best put before the first relevant one, in each query.

    Sorted by decreasing scores are the relevant rows ``s[starts[k]:splits[k]]`` and then the others. With the
    first r of the others in front, and all rows behind them in order, one more of them trades its place
    with all relevant rows of higher scores.
    """
    found = np.zeros(len(splits), np.int64)
    for k in range(len(splits)):
        v, u = s[starts[k] : splits[k]], s[splits[k] : starts[k + 1]]
        best = lead = 0.0
        higher = 0
        for r in range(len(u)):
            while higher < len(v) and v[higher] > u[r]:
                higher += 1
            for j in range(higher):  # they are in the places r, r + 1, ..., and u[r] comes next
                lead -= (c[r + j] - c[r + j + 1]) * (v[j] - u[r])
            value = lead + 1 - 1 / (r + 2)
            if value > best:
                best = value
                found[k] = r + 1
    return found


@njit(cache=True, nogil=True)
def hinges_of_queries(z: Any, c: Any, rank: Any, starts: Any, mu: float) -> Any:
    """The smoothed hinges of all pairs of different ranks, for each query.

    The rows of a query are sorted by z. Two ranks differ in a highest bit: bit by bit, those that have it are
    compared with those that do not and agree in all higher bits. Values, lifts and numbers of pairs come for
    each query, slopes for each row, all weighted by c_i c_j.
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
                    v, more, p = _hinges(z, c, rows[middle:stop], rows[start:middle], mu, dz)
                    value[k] += v
                    lift[k] += more
                    pairs[k] += p
                start = stop
    return value, lift, pairs, dz


@njit(cache=True, nogil=True)
def _sums(z: Any, c: Any, rows: Any, shift: float) -> Any:
    """The sums of c, c s and c s^2 over the first so many rows, for s = z - shift."""
    sums = np.zeros((len(rows) + 1, 3))
    for i in range(len(rows)):
        s, p = z[rows[i]] - shift, c[rows[i]]
        sums[i + 1, 0] = sums[i, 0] + p
        sums[i + 1, 1] = sums[i, 1] + p * s
        sums[i + 1, 2] = sums[i, 2] + p * s * s
    return sums


@njit(cache=True, nogil=True)
def _hinges(z: Any, c: Any, above: Any, below: Any, mu: float, dz: Any) -> Any:
    """The smoothed hinges of all pairs of two lists sorted by z, with the slopes added to dz.

    As `riskmin.losses.pairs.hinge_of_pairs`: the same comparisons of the same numbers serve both slopes.
    """
    na, nb = len(above), len(below)
    centre = z[below[nb // 2]]  # far from zero, squares would cancel
    m, w = _sums(z, c, below, centre), _sums(z, c, above, centre + 1)
    value = lift = 0.0
    first = over = 0
    for i in range(na):
        low, p = z[above[i]] - 1, c[above[i]]
        while over < nb and z[below[over]] <= low + mu:
            over += 1
        beta, x = m[nb, 0] - m[over, 0], z[above[i]] - (centre + 1)
        if mu:
            while first < over and z[below[first]] <= low:
                first += 1
            w0, w1, w2 = m[over, 0] - m[first, 0], m[over, 1] - m[first, 1], m[over, 2] - m[first, 2]
            lift += p * (0.5 / mu * (w2 - 2 * x * w1 + x * x * w0) + 0.5 * mu * beta)
            beta += (w1 - x * w0) / mu
        dz[above[i]] -= p * beta
        value -= p * beta * x
    last = under = 0
    for j in range(nb):
        s, q = z[below[j]], c[below[j]]
        while under < na and z[above[under]] - 1 + mu < s:
            under += 1
        gamma, x = w[under, 0], s - centre
        if mu:
            while last < na and (last < under or z[above[last]] - 1 < s):
                last += 1
            gamma += (x * (w[last, 0] - w[under, 0]) - (w[last, 1] - w[under, 1])) / mu
        dz[below[j]] += q * gamma
        value += q * gamma * x
    return value - lift, lift, w[na, 0] * m[nb, 0]
