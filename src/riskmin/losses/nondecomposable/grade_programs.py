r"""Most violating rankings of all queries at once, by dynamic programming in the array library of the scores.

A state is a vector n of counts: how many rows of each grade are at the first :math:`t = \sum_g n_g`
positions. Rows of a grade are there in the order of their scores, and so are all rows behind, whatever their
grades; so the next row of grade g is its :math:`n_g`-th, and all states of t rows follow from those of t - 1.
With equal weights of pairs, a row that is taken passes the rows behind with higher scores, at a cost of
:math:`\tfrac1P \sum_r \max(0, z_r - z_d)` over them: the sum over all rows of the query, less those taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from riskmin.arrays.devices.gpu import as_cupy, from_cupy, on_stream_of, runs_kernels
from riskmin.arrays.namespace import as_indices_like, namespace
from riskmin.core import Array, NDArray
from riskmin.core.deadline import check
from riskmin.losses.nondecomposable.by_query import QueryRows, lexsort_rows
from riskmin.numerics.segments import segment_cumsum

MAX_STATES = 2**14
"""More states than this, of all queries alike, are left to the linear assignment problems of a CPU."""
MAX_GRADES = 32
MAX_ENTRIES = 2**25
"""States times queries times grades that are computed at a time."""
MAX_COUNT = 255
"""The most positions whose counts are bytes of a kernel."""


class StateLayer(NamedTuple):
    """The states of t rows: their counts, and for each grade the state before its last row was taken."""

    counts: NDArray
    """Of shape (states, grades)."""
    before: NDArray
    """Of shape (states, grades); 0 where the count is zero."""


def n_states(n_grades: int, k: int) -> int:
    """Return the number of vectors of counts with sum k at most."""
    return math.comb(k + n_grades, n_grades)


@lru_cache(maxsize=16)
def state_layers(n_grades: int, k: int) -> tuple[StateLayer, ...]:
    """Return the states of 0, 1, ..., k rows.

    Examples
    --------
    >>> state_layers(2, 2)[2].counts.tolist()
    [[0, 2], [1, 1], [2, 0]]
    >>> state_layers(2, 2)[2].before.tolist()  # among [0, 1] and [1, 0]
    [[0, 0], [0, 1], [1, 0]]
    """
    counts = [(0,) * n_grades]
    layers = [StateLayer(np.array(counts), np.array(counts))]
    for _ in range(k):
        index = {n: i for i, n in enumerate(counts)}
        counts = sorted({_changed(n, g, 1) for n in counts for g in range(n_grades)})
        before = [[index.get(_changed(n, g, -1), 0) for g in range(n_grades)] for n in counts]
        layers.append(StateLayer(np.array(counts), np.array(before)))
    return tuple(layers)


def _changed(n: tuple[int, ...], g: int, by: int) -> tuple[int, ...]:
    """Return counts with one of them changed."""
    return (*n[:g], n[g] + by, *n[g + 1 :])


def can_be_enumerated(q: QueryRows, k: int) -> bool:
    """Whether grades, and the states of the first k positions, are few enough."""
    n_grades = _max_grades(q)
    return n_grades <= MAX_GRADES and n_states(n_grades, min(k, q.max_rows)) <= MAX_STATES


def _max_grades(q: QueryRows) -> int:
    first = q.group[q.starts[:-1]]
    return int((q.group[q.starts[1:] - 1] - first).max()) + 1


class GradeTable(NamedTuple):
    """The best k rows of each grade of some queries, padded: arrays of shape (queries, grades, k)."""

    row: Array
    """Row numbers in the order of query, grade and score."""
    score: Array
    gain: Array
    passed: Array
    """The sum over rows of higher score of the difference of the scores; infinite where there is no row."""


def grade_table(q: QueryRows, s: Array, gain: Array, k: int) -> GradeTable:
    """Return the table of the sorted rows, for all queries."""
    xp = namespace(s)
    n_grades, last = _max_grades(q), len(s) - 1
    grades, places = (as_indices_like(np.arange(n), q.rows) for n in (n_grades, k))
    groups = q.group[q.starts[:-1]][:, None] + grades
    # queries of fewer grades have empty ones at the end
    there = groups <= q.group[q.starts[1:] - 1][:, None]
    groups = xp.where(there, groups, xp.zeros_like(groups))
    row = q.group_starts[groups][:, :, None] + places
    there = there[:, :, None] & (row < q.group_starts[groups + 1][:, :, None])
    row = xp.where(there, row, xp.zeros_like(row) + last)
    passed = _higher_scores(q, s)[row]
    return GradeTable(row, s[row], gain[row], xp.where(there, passed, xp.full_like(passed, math.inf)))


def _higher_scores(q: QueryRows, s: Array) -> Array:
    """Return, per row, the sum over the rows of its query with higher scores of the differences."""
    xp = namespace(s)
    order, higher = lexsort_rows(-s, q.query), xp.empty_like(s)
    t = s[order]
    # rows of the same score have differences of zero
    higher[order] = segment_cumsum(t, q.starts[:-1]) - xp.astype(q.position + 1, s.dtype) * t
    return higher


def best_places(q: QueryRows, s: Array, gain: Array, discount: NDArray, c: NDArray | None) -> Array:
    """Return the positions of the sorted rows in the maximizing rankings; k for those behind the first k.

    s and gain are sorted by query, grade and score; k is the length of `discount`. c has weights of
    positions, None stands for equal weights of pairs; both are in NumPy.
    """
    k = len(discount)
    table, places = grade_table(q, s, gain, k), namespace(s).zeros_like(q.rows) + k
    n_grades = table.row.shape[1]
    layers = state_layers(n_grades, k)
    if runs_kernels(s) and (chosen := _by_kernel(q, table, layers, discount, c)) is not None:
        position, there = 0 * chosen + as_indices_like(np.arange(k), chosen), chosen >= 0
        places[chosen[there]] = position[there]
        return places
    step = max(MAX_ENTRIES // (n_grades * len(layers[-1].counts)), 1)
    for i in range(0, len(q.sizes), step):
        check()
        some = slice(i, i + step)
        part = GradeTable(*(a[some] for a in table))
        costs = _pair_costs(part, 1 / q.pair_counts[some]) if c is None else _position_costs(part, c)
        for t, (row, taken) in enumerate(_chosen_rows(part, q.sizes[some], layers, discount, costs)):
            places[row[taken]] = t
    return places


def _by_kernel(
    q: QueryRows, table: GradeTable, layers: tuple[StateLayer, ...], discount: NDArray, c: NDArray | None
) -> Array | None:
    """Return the rows at the first positions of each query, -1 behind its last; None if it does not fit."""
    from riskmin._cuda import kernels, lists

    n, n_grades, k = table.row.shape
    if lists.ranking_bytes(layers, n_grades, k) > kernels.SHARED_BYTES or k > MAX_COUNT:
        return None
    xp = namespace(table.row)
    with on_stream_of(table.score):
        arrays = [as_cupy(a) for a in (table.score, table.passed, table.gain[:, :, 0], 1 / q.pair_counts)]
        sizes = as_cupy(q.sizes, np.int64)
        found = lists.best_rankings((arrays[0], arrays[1], arrays[2]), arrays[3], sizes, layers, discount, c)
        chosen = xp.astype(from_cupy(found, table.row), xp.int64)
    rows = xp.take_along_axis(xp.reshape(table.row, (n, -1)), xp.clip(chosen, 0, None), axis=1)
    return xp.where(chosen >= 0, rows, chosen)


Costs = Callable[[int, int, Array, list[Array]], Array]
"""The term of the scores for a next row: by grade, position, number of the row in its grade, and counts."""


def _pair_costs(table: GradeTable, share: Array) -> Costs:
    """Return the costs of passing the rows behind that have higher scores."""
    xp, score = namespace(table.score), table.score
    # excess[:, g, j, h, a]: sum over the first a rows of grade h of what they exceed row j of grade g by
    differences = xp.clip(score[:, None, None, :, :] - score[:, :, :, None, None], 0.0, None)
    excess = xp.concat([0 * differences[..., :1], xp.cumulative_sum(differences, axis=-1)], axis=-1)

    def costs(g: int, t: int, j: Array, counts: list[Array]) -> Array:
        taken = sum(excess[:, g, :, h, :][:, j, counts[h]] for h in range(len(counts)))
        return -share[:, None] * (table.passed[:, g, :][:, j] - taken)

    return costs


def _position_costs(table: GradeTable, c: NDArray) -> Costs:
    """Return the scores times the weights of their positions."""
    score = namespace(table.score).where(table.passed < math.inf, table.score, -math.inf)
    return lambda g, t, j, counts: _times(float(c[t]), score[:, g, :][:, j])


def _times(weight: float, score: Array) -> Array:
    """Return the products, minus infinity where there is no row, also for a weight of zero."""
    return weight * score if weight else namespace(score).where(score > -math.inf, 0.0, score)


def _chosen_rows(
    table: GradeTable, sizes: Array, layers: tuple[StateLayer, ...], discount: NDArray, costs: Costs
) -> list[tuple[Array, Array]]:
    """Return, per position, the row that each query has there, and whether it has that many rows."""
    xp, n_grades = namespace(table.score), table.score.shape[1]
    best, choices, ends = 0.0 * table.score[:, 0, :1], [], []
    for t, layer in enumerate(layers[1:]):
        counts, before = (as_indices_like(a, table.row) for a in layer)
        values = []
        for g in range(n_grades):
            # the counts before the row of grade g at position t was taken
            n = [xp.clip(counts[:, h] - int(h == g), 0, None) for h in range(n_grades)]
            j = xp.clip(n[g], 0, table.score.shape[2] - 1)
            value = best[:, before[:, g]] - float(discount[t]) * table.gain[:, g, :1] + costs(g, t, j, n)
            values.append(xp.where(counts[:, g] > 0, value, -math.inf))
        stacked = xp.stack(values)
        best = xp.max(stacked, axis=0)
        choices.append(xp.astype(xp.argmax(stacked, axis=0), xp.uint8))
        ends.append(xp.argmax(best, axis=1))
    return _backtrack(table, sizes, layers, choices, ends)


def _backtrack(
    table: GradeTable, sizes: Array, layers: tuple[StateLayer, ...], choices: list[Array], ends: list[Array]
) -> list[tuple[Array, Array]]:
    """Follow the choices from the last position of each query to its first."""
    xp, k = namespace(sizes), len(choices)
    query = xp.cumulative_sum(xp.ones_like(sizes)) - 1
    n_top, state, rows = xp.clip(sizes, None, k), 0 * sizes, []
    for t in range(k, 0, -1):
        counts, before = (as_indices_like(a, sizes) for a in layers[t])
        taken = n_top >= t
        # queries of t rows begin here; others wait at the state 0
        state = xp.where(n_top == t, ends[t - 1], state)
        g = xp.astype(choices[t - 1][query, state], xp.int64)
        rows.append((table.row[query, g, xp.clip(counts[state, g] - 1, 0, None)], taken))
        state = xp.where(taken, before[state, g], state)
    return rows[::-1]
