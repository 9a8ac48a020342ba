"""Loops over the rows of each query: hinges of all its pairs, and its most violating rankings.

Sums are taken per query: in sums over millions of other rows, digits would be lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


@njit()
def most_violating_first(s: Any, starts: Any, splits: Any, share: Any, n_before: Any) -> None:
    """Find, per query, how many irrelevant rows the most violating ranking has before its first relevant one.

    ``s[starts[k]:splits[k]]`` are the scores of the relevant rows, in decreasing order, and the other rows
    follow, in decreasing order too. All rows behind those in front are in order of their scores, so one more
    row in front passes all relevant rows of higher scores. The loss of first rank q is 1 - 1 / q, minus share
    times the score differences of the passed pairs.
    """
    for k in range(len(splits)):
        best = lead = above = 0.0
        higher, n_before[k] = starts[k], 0
        for r in range(splits[k], starts[k + 1]):
            # relevant rows of higher score than r: their number, and the sum of their scores
            while higher < splits[k] and s[higher] > s[r]:
                above += s[higher]
                higher += 1
            # one more irrelevant row passes `higher - starts[k]` relevant ones
            lead -= share[k] * (above - (higher - starts[k]) * s[r])
            value = lead + 1 - 1 / (r - splits[k] + 2)
            if value > best:
                best = value
                n_before[k] = r - splits[k] + 1


@njit()
def most_violating_weighted_first(s: Any, starts: Any, splits: Any, c: Any, n_before: Any) -> None:
    """As `most_violating_first`, but with weights c of the positions instead of shares of pairs.

    The loss of first rank r + 1 is 1 - 1 / (r + 1) plus the sum of c_i times the score at position i, for the
    r irrelevant rows of highest score and then all others in order.
    """
    for k in range(len(splits)):
        best = -np.inf
        n_before[k] = 0
        for n_front in range(starts[k + 1] - splits[k] + 1):
            value = 1 - 1 / (n_front + 1)
            for i in range(n_front):
                value += c[i] * s[splits[k] + i]
            # merge the relevant rows with the irrelevant ones that are not in front
            i, j = starts[k], splits[k] + n_front
            for place in range(n_front, starts[k + 1] - starts[k]):
                if j == starts[k + 1] or (i < splits[k] and s[i] >= s[j]):
                    value += c[place] * s[i]
                    i += 1
                else:
                    value += c[place] * s[j]
                    j += 1
            if value > best:
                best, n_before[k] = value, n_front


@njit(allocates=True)
def most_violating_places(
    s: Any, gain: Any, tied: Any, blocks: Any, share: Any, discount: Any, chosen: Any, first: int, last: int,
    place: Any,
) -> None:  # fmt: skip
    """Fill place for the rows that are among the first k in the most violating ranking of their query.

    The rows of a query are sorted by grade and score, highest first; its grades start at
    ``tied[blocks[q]:blocks[q + 1]]``. Only the chosen queries of the range are visited. discount has length
    k. The places of all other rows are not changed.
    """
    for q in range(first, last):
        if chosen[q]:
            _interleave_grades(s, gain, tied[blocks[q] : blocks[q + 1] + 1], share[q], discount, place)


@njit(inline="always")
def _interleave_grades(s: Any, gain: Any, tied: Any, share: float, discount: Any, place: Any) -> None:
    """Dynamic programming over how many rows of each grade are among the first k.

    Rows of the same grade are in the order of their scores, and so are all rows behind the first k, whatever
    their grades. A cell is a vector n of counts per grade, numbered by mixed radix with `stride`.
    """
    n_grades, first = len(tied) - 1, tied[0]
    size = tied[n_grades] - first
    n_top = len(discount) if len(discount) < size else size
    max_count, stride, n = (
        np.empty(n_grades, np.int64),
        np.empty(n_grades, np.int64),
        np.empty(n_grades, np.int64),
    )
    # cell number: sum_g n_g stride_g, with 0 <= n_g <= max_count_g
    cells = 1
    for g in range(n_grades - 1, -1, -1):
        max_count[g], stride[g], n[g] = min(tied[g + 1] - tied[g], n_top), cells, 0
        cells *= max_count[g] + 1
    width = n_top + 1 if n_top < size else 1
    suffix_sums, tails = np.empty(size + n_grades), np.empty(n_grades * n_grades * width * width)
    best, last_grade = np.empty(cells), np.empty(cells, np.int64)
    _suffix_sums(s, tied, suffix_sums)
    if n_top < size:
        # `best` serves as workspace: it has at least as many cells as there are places in front
        _tail_pair_sums(s, tied, suffix_sums, max_count, width, best, tails)
    best[0], best_value, end = 0.0, -np.inf, 0
    used = cell = 0
    while True:
        g = n_grades - 1
        # next vector n of counts with sum <= n_top, in lexicographic order
        while g >= 0 and (used == n_top or n[g] == max_count[g]):
            used, cell, n[g] = used - n[g], cell - n[g] * stride[g], 0
            g -= 1
        if g < 0:
            break
        used, cell, n[g] = used + 1, cell + stride[g], n[g] + 1
        best[cell] = -np.inf
        for g in range(n_grades):
            if n[g]:  # the last row in front is of this grade, ahead of all rows of better grades behind
                z, value = s[tied[g] + n[g] - 1], best[cell - stride[g]] - discount[used - 1] * gain[tied[g]]
                # it passes the rows of better grades h that are still behind: sum of z - s_i over them
                for h in range(g):
                    value += share * (
                        (tied[h + 1] - tied[h] - n[h]) * z - suffix_sums[tied[h] - first + h + n[h]]
                    )
                # true for NaN as well: every visited cell has a last grade
                if not value <= best[cell]:
                    best[cell], last_grade[cell] = value, g
        # all places are taken: add the pairs behind, in the order of their scores
        if used == n_top:
            value = best[cell]
            if n_top < size:
                for g in range(n_grades):
                    for h in range(g):
                        value += share * tails[((h * n_grades + g) * width + n[h]) * width + n[g]]
            if not value <= best_value:
                best_value, end = value, cell
    # backtrack: which grade took each place
    for used in range(n_top - 1, -1, -1):
        g = last_grade[end]
        place[tied[g] + end // stride[g] % (max_count[g] + 1) - 1] = used
        end -= stride[g]


@njit(inline="always")
def _suffix_sums(s: Any, tied: Any, suffix_sums: Any) -> None:
    """Compute, per grade, the sums of its scores from the first, second, ... row on, ending with zero."""
    for g in range(len(tied) - 1):
        total = 0.0
        suffix_sums[tied[g + 1] - tied[0] + g] = total
        for i in range(tied[g + 1] - 1, tied[g] - 1, -1):
            total += s[i]
            suffix_sums[i - tied[0] + g] = total


@njit(inline="always")
def _tail_pair_sums(
    s: Any, tied: Any, suffix_sums: Any, max_count: Any, width: int, sums: Any, tails: Any
) -> None:
    """Compute the sums over pairs of two grades behind the first rows of each, in the order of scores.

    tails[h, g, a, b], flat: sum of max(s_j - s_i, 0) over the rows i >= a of grade h and j >= b of the lower
    grade g. sums is a workspace.
    """
    n_grades = len(tied) - 1
    for g in range(n_grades):
        first = tied[g] - tied[0] + g
        for h in range(g):
            for b in range(width):
                sums[b] = 0.0
                for a in range(width):
                    tails[((h * n_grades + g) * width + a) * width + b] = 0.0
            higher = tied[g + 1] - tied[g]
            for i in range(tied[h + 1] - 1, tied[h] - 1, -1):
                # rows of grade g with a higher score than i are the first `higher` ones
                while higher and s[tied[g] + higher - 1] <= s[i]:
                    higher -= 1
                for b in range(min(higher, max_count[g] + 1)):
                    sums[b] += suffix_sums[first + b] - suffix_sums[first + higher] - (higher - b) * s[i]
                if i - tied[h] <= max_count[h]:
                    for b in range(width):
                        tails[((h * n_grades + g) * width + i - tied[h]) * width + b] = sums[b]


def query_pair_hinges(z: Any, c: Any, rank: Any, starts: Any, mu: float, h: float) -> Any:
    """Return values, minorant offsets and pair counts per query, and slopes per row, of smoothed hinges.

    The rows of a query are sorted by z. Two different ranks differ in a highest bit: for each bit, the rows
    that have it are compared with those that do not and agree in all higher bits. All sums are weighted by
    c_i c_j. h is a power of two, at least 2 mu.
    """
    n, n_queries = len(z), len(starts) - 1
    sums, dz = np.zeros((n_queries, 3)), np.zeros(n)
    workspaces = np.arange(n), np.empty(n, np.int64), np.empty((n + 1, 3)), np.empty((n + 1, 3))
    _query_pair_hinges(z, c, rank, starts, mu, h, mu or None, *workspaces, sums, dz)
    return *sums.T, dz


@njit()
def _query_pair_hinges(
    z: Any, c: Any, rank: Any, starts: Any, mu: float, h: float, smooth: Any, rows: Any, spare: Any,
    m: Any, w: Any, sums: Any, dz: Any,
) -> None:  # fmt: skip
    """As `query_pair_hinges`; if smooth is None, the smoothing code is not compiled.

    rows, spare (n), m and w (n + 1, 3) are workspaces; sums[k] receives value, minorant offset and number of
    pairs.
    """
    for k in range(len(starts) - 1):
        end, bits, all_bits = starts[k + 1], 0, 0
        for i in range(starts[k], end):
            all_bits |= rank[i]
        # number of bits of the largest rank
        while all_bits >> bits:
            bits += 1
        for b in range(bits - 1, -1, -1):
            start = starts[k]
            while start < end:
                group = rank[rows[start]] >> (b + 1)
                # stable partition of the group by bit b: rows without it first
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
                    # prefix sums of both sides; those above are shifted by the margin 1
                    _sums(z, c, below, 0.0, h, smooth, m)
                    _sums(z, c, above, 1.0, h, smooth, w)
                    # scores relative to a center: far from zero, the products below would cancel
                    center = z[below[len(below) // 2]]
                    v, offset = _from_above(z, c, above, below, mu, h, smooth, center, m, dz)
                    v += _from_below(z, c, above, below, mu, h, smooth, center, w, dz)
                    sums[k, 0] += v
                    sums[k, 1] += offset
                    sums[k, 2] += w[len(above), 0] * m[len(below), 0]
                start = stop


@njit()
def _sums(z: Any, c: Any, rows: Any, shift: float, h: float, smooth: Any, sums: Any) -> None:
    """Compute prefix sums of c, c r and c r^2, where r is the remainder of z - shift in cells of width h."""
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
    z: Any, c: Any, above: Any, below: Any, mu: float, h: float, smooth: Any, center: float, m: Any, dz: Any
) -> tuple[float, float]:
    """Add the slopes of the higher-ranked rows to dz; return their part of the value, and the offset.

    A pair (i above, j below) has t = z_j - (z_i - 1) and the multiplier clip(t / mu, 0, 1); the offset is mu
    / 2 times the sum of squared multipliers, and is subtracted from the value. As in
    `riskmin.losses.nondecomposable.pairwise.smoothed_pair_hinges`, the same comparisons of the same numbers
    serve both slopes, and remainders in cells of width h keep the digits of differences.
    """
    nb = len(below)
    value = offset = 0.0
    first = over = split = 0
    for i in range(len(above)):
        low, p = z[above[i]] - 1, c[above[i]]
        while over < nb and z[below[over]] <= low + mu:
            over += 1
        # pairs with t >= mu have multiplier 1
        beta = m[nb, 0] - m[over, 0]
        if smooth is not None:
            # pairs with 0 < t <= mu: rows first to over - 1; from `split` on they are in the next cell
            end = h * (np.floor(low / h) + 1)
            r = low - (end - h)
            while first < over and z[below[first]] <= low:
                first += 1
            while split < over and z[below[split]] < end:
                split += 1
            w0, w1, w2 = m[over, 0] - m[first, 0], m[over, 1] - m[first, 1], m[over, 2] - m[first, 2]
            place = split if split > first else first
            n0, n1 = m[over, 0] - m[place, 0], m[over, 1] - m[place, 1]
            # sum of t^2 over pairs with 0 < t < mu; those in the next cell have remainders larger by h
            squares = w2 - 2 * r * w1 + r * r * w0 + h * (2 * n1 + (h - 2 * r) * n0)
            offset += p * (0.5 / mu * squares + 0.5 * mu * beta)
            beta += (w1 - r * w0 + h * n0) / mu
        dz[above[i]] -= p * beta
        value -= p * beta * (z[above[i]] - (center + 1))
    return value - offset, offset


@njit(inline="always")
def _from_below(
    z: Any, c: Any, above: Any, below: Any, mu: float, h: float, smooth: Any, center: float, w: Any, dz: Any
) -> float:
    """Add the slopes of the lower-ranked rows to dz; return their part of the value."""
    na, value = len(above), 0.0
    last = under = split = 0
    for j in range(len(below)):
        s, q = z[below[j]], c[below[j]]
        while under < na and z[above[under]] - 1 + mu < s:
            under += 1
        # pairs with t >= mu have multiplier 1
        gamma = w[under, 0]
        if smooth is not None:
            # pairs with 0 < t <= mu: rows under to last - 1; those before `split` are in the cell before
            start = h * np.floor(s / h)
            while last < na and (last < under or z[above[last]] - 1 < s):
                last += 1
            while split < last and z[above[split]] - 1 < start:
                split += 1
            place = split if split > under else under
            w0, w1 = w[last, 0] - w[under, 0], w[last, 1] - w[under, 1]
            gamma += ((s - start) * w0 - w1 + h * (w[place, 0] - w[under, 0])) / mu
        dz[below[j]] += q * gamma
        value += q * gamma * (s - center)
    return value
