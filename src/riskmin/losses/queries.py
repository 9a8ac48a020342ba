"""The rows of each query together, better grades first: what all losses of rankings begin with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from riskmin.arrays import to_numpy
from riskmin.losses.labels import check_finite
from riskmin.sorting import order
from riskmin.types import Array, NDArray


def check_ranks(loss: object, y: Array) -> None:
    """Grades and numbers of queries, at least one query with two different grades."""
    _check_two(loss, y)
    labels = np.asarray(to_numpy(y))
    rows = arranged(labels[:, 0], labels[:, 1])
    grades, ids = labels[rows, 0], labels[rows, 1]
    if not np.any((ids[1:] == ids[:-1]) & (grades[1:] != grades[:-1])):
        raise ValueError(
            f"no query has rows of two different grades, but {type(loss).__name__} compares rows of a query: "
            "check that qid and y belong together"
        )


def check_gains(loss: object, y: Array) -> None:
    """As `check_ranks`, and no grade is below 0."""
    _check_low(loss, y)
    check_ranks(loss, y)


def check_relevance(loss: object, y: Array) -> None:
    """Grades and numbers of queries, at least one query with relevant rows and others."""
    _check_low(loss, y)
    labels = np.asarray(to_numpy(y))
    relevant = labels[:, 0] > 0
    if not np.isin(labels[relevant, 1], labels[~relevant, 1]).any():
        raise ValueError(
            f"no query has both rows of grade 0 and rows above, but {type(loss).__name__} takes 0 for not "
            "relevant: subtract from y what your scale starts with"
        )


def _check_two(loss: object, y: Array) -> None:
    if y.ndim != 2 or y.shape[1] != 2:
        raise ValueError(
            f"{type(loss).__name__} needs grades and queries: call linear_risk with qid, the id of its query "
            "for each row"
        )
    check_finite(loss, y)


def _check_low(loss: object, y: Array) -> None:
    _check_two(loss, y)
    lowest = float(y[:, 0].min())
    if lowest < 0:
        raise ValueError(
            f"{type(loss).__name__} needs grades >= 0, but y holds {lowest:g}: subtract the lowest from all"
        )


@dataclass(frozen=True)
class Queries:
    """The rows of the queries that have two different grades, a query after the other.

    A query weighs as its rows do on average, and the weights of all queries have sum one.

    Parameters
    ----------
    rows : (m,) array
        Their numbers, those of better grades first in each query.
    grade : (m,) array
        Their grades.
    query : (m,) array
        The numbers of their queries among these queries.
    starts : (q + 1,) array
        Where each query starts, and where the last one ends.
    mean : (q,) array
        The mean weights of the rows of each query.
    sum_of_means : float
        That of all queries, where these are some of them.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[0.0, 7], [1, 5], [2, 7], [1, 5]])
    >>> q = Queries.of(None, y, np.ones(4))
    >>> q.rows.tolist(), q.starts.tolist(), q.weight.tolist()  # all rows of query 5 have the same grade
    ([2, 0], [0, 2], [1.0])
    """

    rows: NDArray
    grade: NDArray
    query: NDArray
    starts: NDArray
    mean: NDArray
    sum_of_means: float

    @classmethod
    def of(cls, loss: object, y: Array, c: Array, *, relevant: bool = False, total: float = 0.0) -> Queries:
        """Of labels and weights; where only relevance matters, all grades above 0 are the same.

        With a total, that of the mean weights of all queries, these are some of them, or none.
        """
        labels, weights = to_numpy(y), to_numpy(c).astype(np.float64)
        grade, ids = labels[:, 0].astype(np.float64), labels[:, 1]
        if relevant:
            grade = (grade > 0).astype(np.float64)
        rows = arranged(-grade, ids)
        starts = np.flatnonzero(np.append(True, np.diff(ids[rows]) != 0))
        ends = np.append(starts[1:], len(rows))
        sizes = ends - starts
        kept = grade[rows[starts]] > grade[rows[ends - 1]]
        mean = (np.add.reduceat(weights[rows], starts) / sizes)[kept]
        total = total or float(mean.sum())
        if not total > 0:
            raise ValueError(
                f"{type(loss).__name__} finds no weight on queries of different grades: give their rows some"
            )
        rows, sizes = rows[np.repeat(kept, sizes)], sizes[kept]
        query = np.repeat(np.arange(len(sizes)), sizes)
        return cls(rows, grade[rows], query, np.append(0, np.cumsum(sizes)), mean, total)

    @cached_property
    def weight(self) -> NDArray:
        """The weights of the queries; those of all of them have sum one."""
        weight: NDArray = self.mean / self.sum_of_means
        return weight

    @cached_property
    def place(self) -> NDArray:
        """The places 0, 1, ... of the rows within their queries."""
        return np.arange(len(self.rows)) - self.starts[self.query]

    @cached_property
    def tied(self) -> NDArray:
        """Where the rows of each query and grade start, and the end."""
        new = (np.diff(self.query) != 0) | (np.diff(self.grade) != 0)
        return np.append(np.flatnonzero(np.append(True, new)), len(self.rows))

    @cached_property
    def ranks(self) -> NDArray:
        """The ranks 0, 1, ... of the rows' grades in their queries, lowest first."""
        number = np.repeat(np.arange(len(self.tied) - 1), np.diff(self.tied))
        ranks: NDArray = number[self.starts[1:] - 1][self.query] - number
        return ranks

    @cached_property
    def pairs(self) -> NDArray:
        """The numbers of pairs of different grades in each query."""
        worse = self.starts[self.query + 1] - np.repeat(self.tied[1:], np.diff(self.tied))
        return self.total(worse.astype(np.float64))

    @cached_property
    def most(self) -> int:
        """The number of rows of the longest query."""
        return int(np.diff(self.starts).max())

    def total(self, a: NDArray) -> NDArray:
        """The sums of a over the rows of each query."""
        return np.add.reduceat(a, self.starts[:-1])

    def shared(self, a: NDArray) -> NDArray:
        """The means of a over rows of the same query and grade, for each row."""
        return averaged(a, np.arange(len(a)), self.query, self.grade)

    def scores(self, z: Array) -> NDArray:
        """The scores of the rows in float64, less their mean in each query: large ones would cancel."""
        s = to_numpy(z).astype(np.float64)[self.rows]
        return s - (self.total(s) / np.diff(self.starts))[self.query]


@runtime_checkable
class OfQueries(Protocol):
    """A loss of rankings that is a mean over queries, and can be asked for the part of some of them."""

    @property
    def relevant(self) -> bool:
        """Whether only relevance matters: all grades above 0 are the same."""
        ...

    def at(self, q: Queries, z: Array) -> tuple[Any, Array]:
        """Their part of the mean, and a subgradient in z."""
        ...


@dataclass(frozen=True)
class ByQuery:
    """A loss of rankings where whole queries are together: a sum over them, each evaluated where it is.

    Parameters
    ----------
    loss : OfQueries
        Such as `Ndcg`.
    total : float
        The sum of the mean weights of all queries that count.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Mrr
    >>> y, c = np.array([[1.0, 0], [0, 0], [1, 1], [0, 1]]), np.ones(4) / 4
    >>> z = np.array([0.25, 0.0, 1.0, 0.0])
    >>> whole, parts = Mrr(), ByQuery.of(Mrr(), y, c)
    >>> at = slice(0, 2), slice(2, 4)
    >>> float(whole.value_grad(z, y, c)[0]), [float(parts.value_grad(z[s], y[s], c[s])[0]) for s in at]
    (0.125, [0.125, 0.0])
    """

    loss: Any
    total: float

    separable = True
    smooth = False
    task = "ranking"
    invariant = True

    @classmethod
    def of(cls, loss: Any, y: Array, c: Array) -> ByQuery:
        """For the labels and weights of all rows."""
        return cls(loss, Queries.of(loss, y, c, relevant=loss.relevant).sum_of_means)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The part of these queries, and a subgradient in z."""
        q = Queries.of(self.loss, y, c, relevant=self.loss.relevant, total=self.total)
        if not len(q.mean):
            return 0.0, 0.0 * z
        found: tuple[Any, Array] = self.loss.at(q, z)
        return found


def named(loss: Any) -> Any:
    """The loss that a user named, of one that stands for it.

    Examples
    --------
    >>> from riskmin import Mrr
    >>> named(ByQuery(Mrr(), 1.0)), named(Mrr())
    (Mrr(), Mrr())
    """
    return loss.loss if isinstance(loss, ByQuery) else loss


def ends_of_queries(y: NDArray) -> NDArray | None:
    """Where queries end, if the rows of each are together; else None.

    Examples
    --------
    >>> import numpy as np
    >>> ends_of_queries(np.array([[0.0, 1], [2, 1], [1, 0]])).tolist()
    [2, 3]
    >>> ends_of_queries(np.array([[0.0, 1], [2, 0], [1, 1]])) is None
    True
    """
    ids = y[:, 1]
    ends = np.append(np.flatnonzero(np.diff(ids)) + 1, len(ids))
    return ends if len(ends) == len(np.unique(ids)) else None


def arranged(*keys: NDArray) -> NDArray:
    """The order of the rows by the last key, and where that is equal by the one before it, and so on.

    Examples
    --------
    >>> import numpy as np
    >>> arranged(np.array([2.0, 1.0, 0.0]), np.array([0, 0, 1])).tolist()
    [1, 0, 2]
    """
    rows: NDArray = order(keys[0])
    for key in keys[1:]:
        rows = rows[order(key[rows])]
    return rows


def averaged(a: NDArray, rows: NDArray, *keys: NDArray) -> NDArray:
    """The means of a over the rows with the same keys, for each row, where these are together in that order.

    Examples
    --------
    >>> import numpy as np
    >>> averaged(np.array([1.0, 2, 5]), np.array([1, 0, 2]), np.array([7, 5, 7])).tolist()
    [3.0, 2.0, 3.0]
    """
    new = np.zeros(len(a), bool)
    new[:1] = True
    for key in keys:
        new[1:] |= np.diff(key[rows]) != 0
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(a)))
    means = np.empty_like(a)
    means[rows] = np.repeat(np.add.reduceat(a[rows], starts) / sizes, sizes)
    return means
