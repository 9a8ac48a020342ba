"""Projections onto permutahedra, the convex hulls of all permutations of some weights."""

from __future__ import annotations

from typing import Any

from riskmin._numba.compile_cache import njit


@njit()
def permutahedron_projections(
    v: Any, starts: Any, weights: Any, mu: float, first: Any, total: Any, p: Any
) -> None:
    """Fill p, per query, with the point nearest to v / mu in the convex hull of the permutations of weights.

    The rows of a query, starts[k] to starts[k + 1], are sorted by decreasing v, and the weights decrease; a
    query of m rows has the first m of them. The point is v / mu less the nearest decreasing sequence to
    v / mu - weights, which is constant on blocks of rows and found by pooling adjacent violators: O(m). first
    and total (n) are workspaces: the first row of each block, and its sum of v / mu - weights.
    """
    for k in range(len(starts) - 1):
        lo, hi = starts[k], starts[k + 1]
        # rows so far apart are never in one block; sums within a segment of closer rows lose no digits
        spread = mu * (weights[0] - weights[hi - lo - 1])
        n_blocks = segment = 0
        origin = v[lo]
        for i in range(lo, hi):
            if i > lo and v[i - 1] - v[i] >= spread:
                segment, origin = n_blocks, v[i]
            first[n_blocks], total[n_blocks] = i, (v[i] - origin) / mu - weights[i - lo]
            n_blocks += 1
            end = i + 1
            while n_blocks - 1 > segment:
                before, last = first[n_blocks - 2], first[n_blocks - 1]
                # means of the last two blocks: decreasing means stay apart
                if total[n_blocks - 2] / (last - before) > total[n_blocks - 1] / (end - last):
                    break
                n_blocks -= 1
                total[n_blocks - 1] += total[n_blocks]
        for b in range(n_blocks):
            start, end = first[b], first[b + 1] if b + 1 < n_blocks else hi
            mean = 0.0
            # mean of weights - v / mu in the block, relative to its first row
            for i in range(start, end):
                mean += weights[i - lo] - (v[i] - v[start]) / mu
            mean /= end - start
            for i in range(start, end):
                p[i] = (v[i] - v[start]) / mu + mean
