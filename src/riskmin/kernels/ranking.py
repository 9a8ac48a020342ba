"""Loops over the rows of each query: the hinges of all its pairs, and its worst rankings.

Each query has sums of its own, so that those of millions of rows take no digits from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit


@njit()
def worst_first(s: Any, starts: Any, splits: Any, share: Any, found: Any) -> None:
    """How many irrelevant rows are best put before the first relevant one, in each query.

    Sorted by decreasing scores are the relevant rows ``s[starts[k]:splits[k]]`` and then the others. All rows
    behind those in front are in order, so one more in front passes all relevant rows of higher scores.
    """
    for k in range(len(splits)):
        best = lead = above = 0.0
        higher, found[k] = starts[k], 0
        for r in range(splits[k], starts[k + 1]):
            while higher < splits[k] and s[higher] > s[r]:
                above += s[higher]
                higher += 1
            lead -= share[k] * (above - (higher - starts[k]) * s[r])
            value = lead + 1 - 1 / (r - splits[k] + 2)
            if value > best:
                best = value
                found[k] = r - splits[k] + 1


@njit(allocates=True)
def worst_places(
    s: Any, gain: Any, tied: Any, blocks: Any, share: Any, discount: Any, chosen: Any, first: int, last: int,
    place: Any,
) -> None:  # fmt: skip
    """The places of the rows that the worst ranking of their query has in its first k; others stay.

    The rows of a query are sorted by grade and score, highest first; its grades start at
    ``tied[blocks[q]:blocks[q + 1]]``. Only the chosen queries of a range are looked at. There are k
    discounts.
    """
    for q in range(first, last):
        if chosen[q]:
            _interleave(s, gain, tied[blocks[q] : blocks[q + 1] + 1], share[q], discount, place)


@njit(inline="always")
def _interleave(s: Any, gain: Any, tied: Any, share: float, discount: Any, place: Any) -> None:
    """Dynamic programming over how many rows of each grade are in front.

    Rows of the same grade are in the order of their scores, and so are all rows behind the first k, whatever
    their grades.
    """
    many, first = len(tied) - 1, tied[0]
    size = tied[many] - first
    few = len(discount) if len(discount) < size else size
    most, stride, n = np.empty(many, np.int64), np.empty(many, np.int64), np.empty(many, np.int64)
    cells = 1
    for g in range(many - 1, -1, -1):
        most[g], stride[g], n[g] = min(tied[g + 1] - tied[g], few), cells, 0
        cells *= most[g] + 1
    wide = few + 1 if few < size else 1
    rest, tails = np.empty(size + many), np.empty(many * many * wide * wide)
    best, came = np.empty(cells), np.empty(cells, np.int64)
    _rests(s, tied, rest)
    if few < size:
        _tails(s, tied, rest, most, wide, best, tails)  # there are no fewer cells than places in front
    best[0], top, end = 0.0, -np.inf, 0
    used = at = 0
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
                    value += share * ((tied[h + 1] - tied[h] - n[h]) * z - rest[tied[h] - first + h + n[h]])
                if value > best[at]:
                    best[at], came[at] = value, g
        if used == few:
            value = best[at]
            if few < size:
                for g in range(many):
                    for h in range(g):
                        value += share * tails[((h * many + g) * wide + n[h]) * wide + n[g]]
            if value > top:
                top, end = value, at
    for used in range(few - 1, -1, -1):
        g = came[end]
        place[tied[g] + end // stride[g] % (most[g] + 1) - 1] = used
        end -= stride[g]


@njit(inline="always")
def _rests(s: Any, tied: Any, rest: Any) -> None:
    """For each grade the sums of its scores from the first, the second, ... on, and zero."""
    for g in range(len(tied) - 1):
        total = 0.0
        rest[tied[g + 1] - tied[0] + g] = total
        for i in range(tied[g + 1] - 1, tied[g] - 1, -1):
            total += s[i]
            rest[i - tied[0] + g] = total


@njit(inline="always")
def _tails(s: Any, tied: Any, rest: Any, most: Any, wide: int, sums: Any, tails: Any) -> None:
    """What the pairs of two grades behind the first so many of each add up to, in the order of scores.

    Sums is room.
    """
    many = len(tied) - 1
    for g in range(many):
        first = tied[g] - tied[0] + g
        for h in range(g):
            for b in range(wide):
                sums[b] = 0.0
                for a in range(wide):
                    tails[((h * many + g) * wide + a) * wide + b] = 0.0
            higher = tied[g + 1] - tied[g]
            for i in range(tied[h + 1] - 1, tied[h] - 1, -1):
                while higher and s[tied[g] + higher - 1] <= s[i]:
                    higher -= 1
                for b in range(min(higher, most[g] + 1)):
                    sums[b] += rest[first + b] - rest[first + higher] - (higher - b) * s[i]
                if i - tied[h] <= most[h]:
                    for b in range(wide):
                        tails[((h * many + g) * wide + i - tied[h]) * wide + b] = sums[b]


def hinges_of_queries(z: Any, c: Any, rank: Any, starts: Any, mu: float, h: float) -> Any:
    """The smoothed hinges of all pairs of different ranks, for each query.

    The rows of a query are sorted by z. Two ranks differ in a highest bit: bit by bit, those that have it are
    compared with those that do not and agree in all higher bits. Values, lifts and numbers of pairs come for
    each query, slopes for each row, all weighted by c_i c_j. The h is a power of two, at least 2 mu.
    """
    n, many = len(z), len(starts) - 1
    found, dz = np.zeros((many, 3)), np.zeros(n)
    room = np.arange(n), np.empty(n, np.int64), np.empty((n + 1, 3)), np.empty((n + 1, 3))
    _hinges_of_queries(z, c, rank, starts, mu, h, mu or None, *room, found, dz)
    return *found.T, dz


@njit()
def _hinges_of_queries(
    z: Any, c: Any, rank: Any, starts: Any, mu: float, h: float, smooth: Any, rows: Any, spare: Any,
    m: Any, w: Any, found: Any, dz: Any,
) -> None:  # fmt: skip
    """If smooth is None, what smooths hinges is not compiled."""
    for k in range(len(starts) - 1):
        end, bits, some = starts[k + 1], 0, 0
        for i in range(starts[k], end):
            some |= rank[i]
        while some >> bits:
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
                for i in range(start, stop):
                    rows[i] = spare[i]
                if start < middle < stop:
                    above, below = rows[middle:stop], rows[start:middle]
                    _sums(z, c, below, 0.0, h, smooth, m)
                    _sums(z, c, above, 1.0, h, smooth, w)
                    centre = z[below[len(below) // 2]]  # far from zero, products would cancel
                    v, more = _from_above(z, c, above, below, mu, h, smooth, centre, m, dz)
                    v += _from_below(z, c, above, below, mu, h, smooth, centre, w, dz)
                    found[k, 0] += v
                    found[k, 1] += more
                    found[k, 2] += w[len(above), 0] * m[len(below), 0]
                start = stop


@njit()
def _sums(z: Any, c: Any, rows: Any, shift: float, h: float, smooth: Any, sums: Any) -> None:
    """The sums of c, c r and c r^2 over the first so many rows, for the places r of z - shift in cells."""
    p = q = r = 0.0
    for i in range(len(rows)):
        sums[i, 0], sums[i, 1], sums[i, 2] = p, q, r
        a = c[rows[i]]
        p += a
        if smooth is not None:
            s = z[rows[i]] - shift
            s -= h * np.floor(s / h)
            q += a * s
            r += a * s * s
    sums[len(rows), 0], sums[len(rows), 1], sums[len(rows), 2] = p, q, r


@njit(inline="always")
def _from_above(
    z: Any, c: Any, above: Any, below: Any, mu: float, h: float, smooth: Any, centre: float, m: Any, dz: Any
) -> tuple[float, float]:
    """The smoothed hinges of all pairs of two lists sorted by z: the slopes of those above, added to dz.

    As `riskmin.losses.pairs.hinge_of_pairs`: the same comparisons of the same numbers serve both slopes, and
    places in cells of width h keep the digits of differences.
    """
    nb = len(below)
    value = lift = 0.0
    first = over = split = 0
    for i in range(len(above)):
        low, p = z[above[i]] - 1, c[above[i]]
        while over < nb and z[below[over]] <= low + mu:
            over += 1
        beta = m[nb, 0] - m[over, 0]
        if smooth is not None:
            end = h * (np.floor(low / h) + 1)
            r = low - (end - h)
            while first < over and z[below[first]] <= low:
                first += 1
            while split < over and z[below[split]] < end:
                split += 1
            w0, w1, w2 = m[over, 0] - m[first, 0], m[over, 1] - m[first, 1], m[over, 2] - m[first, 2]
            place = split if split > first else first
            n0, n1 = m[over, 0] - m[place, 0], m[over, 1] - m[place, 1]
            squares = w2 - 2 * r * w1 + r * r * w0 + h * (2 * n1 + (h - 2 * r) * n0)
            lift += p * (0.5 / mu * squares + 0.5 * mu * beta)
            beta += (w1 - r * w0 + h * n0) / mu
        dz[above[i]] -= p * beta
        value -= p * beta * (z[above[i]] - (centre + 1))
    return value - lift, lift


@njit(inline="always")
def _from_below(
    z: Any, c: Any, above: Any, below: Any, mu: float, h: float, smooth: Any, centre: float, w: Any, dz: Any
) -> float:
    """The slopes of those below, and what they add to the value."""
    na, value = len(above), 0.0
    last = under = split = 0
    for j in range(len(below)):
        s, q = z[below[j]], c[below[j]]
        while under < na and z[above[under]] - 1 + mu < s:
            under += 1
        gamma = w[under, 0]
        if smooth is not None:
            start = h * np.floor(s / h)
            while last < na and (last < under or z[above[last]] - 1 < s):
                last += 1
            while split < last and z[above[split]] - 1 < start:
                split += 1
            place = split if split > under else under
            w0, w1 = w[last, 0] - w[under, 0], w[last, 1] - w[under, 1]
            gamma += ((s - start) * w0 - w1 + h * (w[place, 0] - w[under, 0])) / mu
        dz[below[j]] += q * gamma
        value += q * gamma * (s - centre)
    return value
