"""Rows grouped by query and sorted by grade: the data structure of all ranking losses.

It is in the array library of the labels: on a GPU, labels, scores and rankings stay there.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, as_indices_like, namespace, to_numpy
from riskmin.core import Array, NDArray, UnsupportedProblem
from riskmin.core.blas_threads import scipy_module
from riskmin.core.limits import LIMITS
from riskmin.core.registry import settings_of
from riskmin.losses.base import Loss
from riskmin.losses.labels import check_finite
from riskmin.numerics.segments import segment_numbers, segment_sizes, segment_starts, segment_sums
from riskmin.numerics.sorting import as_float64, stable_argsort

DP_ALWAYS_BELOW_STEPS = 2**12
"""A query of m rows is solved by dynamic programming if it takes fewer steps than this or than m^3."""


def check_ranking_labels(loss: object, y: Array) -> None:
    """Require grades and query numbers, with two different grades in at least one query."""
    _check_grade_and_query(loss, y)
    labels = np.asarray(to_numpy(y))
    # sorted by query and grade, two different grades of a query are adjacent; usually they are in any order
    if not _grades_differ(labels) and not _grades_differ(labels[lexsort_rows(labels[:, 0], labels[:, 1])]):
        raise ValueError(
            f"no query has rows of two different grades, but {type(loss).__name__} compares rows of a query: "
            "check that qid and y belong together"
        )


def _grades_differ(labels: NDArray) -> bool:
    """Whether two adjacent rows belong to the same query and have different grades."""
    grades, ids = labels.T
    return bool(np.any((ids[1:] == ids[:-1]) & (grades[1:] != grades[:-1])))


def check_nonnegative_grades(loss: object, y: Array) -> None:
    """Require grades >= 0 in addition to `check_ranking_labels`."""
    _check_nonnegative(loss, y)
    check_ranking_labels(loss, y)


def check_relevance_labels(loss: object, y: Array) -> None:
    """Require grades >= 0 and query numbers, with relevant and irrelevant rows in at least one query."""
    _check_nonnegative(loss, y)
    labels = np.asarray(to_numpy(y))
    # queries of relevant rows that also have irrelevant ones
    relevant = labels[:, 0] > 0
    if not np.isin(labels[relevant, 1], labels[~relevant, 1]).any():
        raise ValueError(
            f"no query has both rows of grade 0 and rows above, but {type(loss).__name__} takes 0 for not "
            "relevant: subtract the lowest grade of your scale from y"
        )


def _check_grade_and_query(loss: object, y: Array) -> None:
    if y.ndim != 2 or y.shape[1] != 2:
        raise ValueError(
            f"{type(loss).__name__} needs grades and queries: call linear_risk with qid, the id of its query "
            "for each row"
        )
    check_finite(loss, y)


def _check_nonnegative(loss: object, y: Array) -> None:
    _check_grade_and_query(loss, y)
    lowest = float(y[:, 0].min())
    if lowest < 0:
        raise ValueError(
            f"{type(loss).__name__} needs grades >= 0, but y holds {lowest:g}: subtract the lowest from all"
        )


@dataclass(frozen=True)
class QueryRows:
    """The rows of the queries that have at least two different grades, grouped by query.

    The weight of a query is the mean weight of its rows, normalized such that all queries have sum one.

    Parameters
    ----------
    rows : (m,) array
        The row indices, sorted by query and, within a query, by decreasing grade.
    grade : (m,) array
        The grades of these rows.
    query : (m,) array
        The query of each of these rows, numbered from 0 among the queries with different grades.
    starts : (q + 1,) array
        The start of each query in `rows`, and the end of the last one.
    mean : (q,) array
        The mean weight of the rows of each query.
    sum_of_means : float
        The sum of the mean weights of all queries, of which these may be only a part.
    """

    rows: Array
    grade: Array
    query: Array
    starts: Array
    mean: Array
    sum_of_means: float

    @classmethod
    def from_labels(
        cls, loss: object, y: Array, c: Array, *, relevant: bool = False, total: float = 0.0
    ) -> QueryRows:
        """Group the rows by labels and weights; with `relevant`, all grades above 0 count as the same.

        If the rows belong to only some of the queries (possibly to none), `total` is the sum of the mean
        weights of all queries.
        """
        xp, weights = namespace(y), as_float64(c)
        grade, ids = as_float64(y[:, 0]), y[:, 1]
        if relevant:
            grade = xp.astype(grade > 0, xp.float64)
        rows = lexsort_rows(-grade, ids)
        starts = segment_starts(ids[rows])
        sizes, number = segment_sizes(starts, len(rows)), segment_numbers(starts, rows)
        # the first and last row of a query have its highest and lowest grade: keep it if they differ
        informative = grade[rows[starts]] > grade[rows[starts + sizes - 1]]
        # weight of a query: the mean of its rows
        mean = (segment_sums(weights[rows], starts) / sizes)[informative]
        total = total or float(xp.sum(mean))
        if not total > 0:
            raise ValueError(
                f"{type(loss).__name__} needs weight on queries of different grades: give their rows some"
            )
        kept = informative[number]
        rows, ends = rows[kept], xp.cumulative_sum(sizes[informative])
        query = (xp.cumulative_sum(xp.astype(informative, xp.int64)) - 1)[number[kept]]
        return cls(rows, grade[rows], query, xp.concat([0 * starts[:1], ends]), mean, total)

    def on_host(self) -> QueryRows:
        """Return the same rows in NumPy."""
        if namespace(self.rows) is np:
            return self
        arrays = {
            name: to_numpy(getattr(self, name)) for name in ("rows", "grade", "query", "starts", "mean")
        }
        return replace(self, **arrays)  # type: ignore[arg-type]

    @cached_property
    def weight(self) -> Array:
        """The normalized weights of the queries."""
        return self.mean / self.sum_of_means

    @cached_property
    def sizes(self) -> Array:
        """The number of rows of each query."""
        return self.starts[1:] - self.starts[:-1]

    @cached_property
    def position(self) -> Array:
        """The positions 0, 1, ... of the rows within their queries."""
        return self._counts - self.starts[self.query]

    @cached_property
    def _counts(self) -> Array:
        """The numbers 0, 1, ... of the rows."""
        xp = namespace(self.rows)
        return xp.cumulative_sum(xp.ones_like(self.rows)) - 1

    @cached_property
    def group_starts(self) -> Array:
        """The starts of the groups of rows of the same query and grade, and the end of the last group."""
        # a group begins where the query or the grade changes
        starts = segment_starts(self.query, self.grade)
        return namespace(starts).concat([starts, self.starts[-1:]])

    @cached_property
    def group(self) -> Array:
        """The number of the group of each row, highest grade of the first query first."""
        return segment_numbers(self.group_starts[:-1], self.rows)

    @cached_property
    def grade_ranks(self) -> Array:
        """The ranks 0, 1, ... of the grades of the rows within their queries, lowest grade first."""
        # the last group of a query is that of the lowest grade
        return self.group[self.starts[1:] - 1][self.query] - self.group

    @cached_property
    def pair_counts(self) -> Array:
        """The number of pairs of different grades per query."""
        # rows of lower grades in the same query, per row
        worse = self.starts[self.query + 1] - self.group_starts[1:][self.group]
        return self.query_sums(namespace(worse).astype(worse, self.grade.dtype))

    @cached_property
    def max_rows(self) -> int:
        """The number of rows of the largest query."""
        return int(self.sizes.max())

    def query_sums(self, a: Array) -> Array:
        """Return the sums of a over the rows of each query."""
        return segment_sums(a, self.starts[:-1])

    def tie_means(self, a: Array) -> Array:
        """Return, for each row, the mean of a over the rows of the same query and grade."""
        return group_means(a, self._counts, self.query, self.grade)

    def scores(self, z: Array) -> Array:
        """Return the scores of the rows in float64, centered per query: sums of large ones would cancel."""
        # the loss is invariant to a shift per query
        s = as_float64(as_array_like(z, self.grade))[self.rows]
        return s - (self.query_sums(s) / self.sizes)[self.query]

    def scattered(self, slope: Array, z: Array) -> Array:
        """Return the gradient in z: `slope` for these rows, zero for all others."""
        xp = namespace(z)
        dz = xp.zeros_like(z)
        dz[as_indices_like(self.rows, z)] = xp.astype(as_array_like(slope, z), z.dtype)
        return dz


class QueryLoss(Loss):
    """A ranking loss that is a mean over queries and can be evaluated on a part of them."""

    separable = False
    task = "ranking"
    shift_invariant = True
    relevant: bool = False
    """Whether only relevance matters, so that all grades above 0 count as the same."""

    def __repr__(self) -> str:
        # settings that are None are not shown
        shown = [f"{name}={value!r}" for name, value in settings_of(self).items() if value is not None]
        return f"{type(self).__name__}({', '.join(shown)})"

    @abstractmethod
    def value_grad_of_queries(self, q: QueryRows, z: Array) -> tuple[Any, Array]:
        """Return the contribution of these queries to the mean, and a subgradient in z."""

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the mean over queries and a subgradient in z."""
        return self.value_grad_of_queries(QueryRows.from_labels(self, y, c, relevant=self.relevant), z)

    def smoothed_of_queries(self, q: QueryRows, z: Array, mu: float) -> tuple[Any, Array, Any]:
        """Return the contribution of these queries to the smoothed mean, its gradient and minorant offset."""
        raise UnsupportedProblem(
            f"{self!r} cannot be smoothed: use Bundle, or a loss that can, such as Ndcg(weights='discount')"
        )

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the smoothed mean over queries, its gradient, and the minorant offset."""
        return self.smoothed_of_queries(QueryRows.from_labels(self, y, c, relevant=self.relevant), z, mu)

    @property
    def can_be_smoothed(self) -> bool:
        """Whether `smoothed_of_queries` is there."""
        return type(self).smoothed_of_queries is not QueryLoss.smoothed_of_queries

    def by_query(self, y: Array, c: Array) -> QuerySeparable:
        """Return the loss as a sum over queries."""
        return QuerySeparable.from_labels(self, y, c)


@dataclass(frozen=True)
class QuerySeparable(Loss):
    """A ranking loss as a separable loss, for shards and blocks that hold whole queries.

    Parameters
    ----------
    loss : QueryLoss
        Such as `Ndcg`.
    total : float
        The sum of the mean weights of all queries with different grades.
    """

    loss: Any
    total: float

    task = "ranking"
    shift_invariant = True

    @property
    def chosen(self) -> Loss:
        """The ranking loss itself."""
        result: Loss = self.loss
        return result

    @property
    def components(self) -> tuple[Any, ...]:
        """The separable form, and the ranking loss."""
        return self, *self.loss.components

    @classmethod
    def from_labels(cls, loss: Any, y: Array, c: Array) -> QuerySeparable:
        """Build the separable loss from the labels and weights of all rows."""
        return cls(loss, QueryRows.from_labels(loss, y, c, relevant=loss.relevant).sum_of_means)

    def _rows(self, y: Array, c: Array) -> QueryRows:
        return QueryRows.from_labels(self.loss, y, c, relevant=self.loss.relevant, total=self.total)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the contribution of these queries and a subgradient in z."""
        # a block may hold only queries with a single grade: they contribute zero
        if not len((q := self._rows(y, c)).mean):
            return 0.0, 0.0 * z
        result: tuple[Any, Array] = self.loss.value_grad_of_queries(q, z)
        return result

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the contribution of these queries, smoothed, its gradient, and the minorant offset."""
        if not len((q := self._rows(y, c)).mean):
            return 0.0, 0.0 * z, 0.0
        result: tuple[Any, Array, Any] = self.loss.smoothed_of_queries(q, z, mu)
        return result

    @property
    def can_be_smoothed(self) -> bool:
        """Whether the ranking loss can be smoothed."""
        return bool(self.loss.can_be_smoothed)


def dynamic_programs(q: QueryRows, k: int) -> tuple[NDArray, float, NDArray]:
    """Decide which queries are solved by dynamic programming over the grades in the first k places.

    Returns the first group of each query and the end, the steps of these programs, and the decisions; the
    other queries are linear assignment problems, of m^3 steps for m rows.
    """
    gammaln = scipy_module("special").gammaln
    # logarithms of the table size, prod_g (min(size_g, k) + 1), and of the number of states, at most
    # binomial(k + g, g); a step is one state times one grade
    blocks: NDArray = np.asarray(np.searchsorted(q.group_starts, q.starts))
    table = np.add.reduceat(np.log(np.minimum(np.diff(q.group_starts), k) + 1.0), blocks[:-1])
    grades, size = np.diff(blocks), np.diff(q.starts)
    compositions = (
        gammaln(np.minimum(k, size) + grades + 1) - gammaln(np.minimum(k, size) + 1) - gammaln(grades + 1)
    )
    steps = np.minimum(table, compositions) + np.log(grades)
    fast = steps < np.maximum(3 * np.log(size), math.log(DP_ALWAYS_BELOW_STEPS))
    by_dp = fast & (table < math.log(LIMITS.dp_max_table_entries))
    return blocks, float(np.exp(steps[by_dp]).sum()), by_dp


def query_ends(y: NDArray) -> NDArray | None:
    """Return the ends of the queries if the rows of each query are contiguous, else None."""
    ids = y[:, 1]
    # contiguous iff there are as many runs of equal ids as different ids
    ends = np.append(np.flatnonzero(np.diff(ids)) + 1, len(ids))
    return ends if len(ends) == len(np.unique(ids)) else None


def lexsort_rows(*keys: Array) -> Array:
    """Return the stable order of the rows by the last key, ties by the key before it, and so on."""
    # stable sorts from the least to the most significant key
    rows = stable_argsort(keys[0])
    for key in keys[1:]:
        rows = rows[stable_argsort(key[rows])]
    return rows


def group_means(a: Array, rows: Array, *keys: Array) -> Array:
    """Return, for each row, the mean of a over the rows with the same keys.

    `rows` is an order in which rows with the same keys are contiguous.
    """
    # a new group begins where any key changes
    starts = segment_starts(*(key[rows] for key in keys))
    means = namespace(a).empty_like(a)
    means[rows] = (segment_sums(a[rows], starts) / segment_sizes(starts, len(a)))[
        segment_numbers(starts, rows)
    ]
    return means
