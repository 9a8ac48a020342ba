r"""Means and variances of the columns of X, wherever its rows are: those of each shard, put together.

.. math:: m_j = \sum_i c_i x_{ij}, \qquad s_j^2 = \sum_i c_i (x_{ij} - m_j)^2, \qquad \sum_i c_i = 1.

Differences are squared, never the numbers themselves, so that columns far from zero keep their digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from riskmin.maps import passing
from riskmin.matrices import Columns, Csc, Csr, Dense, Wide, as_scipy, merged
from riskmin.types import Executor, NDArray, Shard

NUMBERS = 2**20
"""So many of a sparse matrix are looked at together; and as many as it has columns at least."""
LAST_DIGITS = 8 * float(np.finfo(np.float64).eps)
"""A column that varies by no more than this part of its largest number is taken for a constant."""


class Moments(NamedTuple):
    """Of each column of the rows with a weight: weighted mean and variance, least and largest number."""

    weight: float
    """The sum of the weights."""
    mean: NDArray
    variance: NDArray
    least: NDArray
    largest: NDArray

    @property
    def deviation(self) -> NDArray:
        """The standard deviations."""
        found: NDArray = np.sqrt(self.variance)
        return found

    @property
    def constant(self) -> NDArray:
        """Which columns are the same number in all rows, but for its last digits."""
        size = np.maximum(np.abs(self.least), np.abs(self.largest))
        found: NDArray = self.deviation <= LAST_DIGITS * size
        return found

    @property
    def scale(self) -> NDArray:
        """The standard deviations, with 1 for columns that are constant: what columns are divided by."""
        found: NDArray = np.where(self.constant, 1.0, self.deviation)
        return found

    def joined(self, other: Moments) -> Moments:
        """Those of the rows of both."""
        weight = self.weight + other.weight
        t, off = other.weight / weight, other.mean - self.mean
        return Moments(
            weight,
            self.mean + t * off,
            (1 - t) * self.variance + t * other.variance + t * (1 - t) * off * off,
            np.minimum(self.least, other.least),
            np.maximum(self.largest, other.largest),
        )


def moments(executor: Executor, weights: NDArray | bool = True) -> Moments:
    """The moments of all columns, by one round over the shards.

    Parameters
    ----------
    executor : Executor
        Holds the rows.
    weights : bool or (n,) array
        Those of the shards; equal ones, if False; or these, which takes a round more.

    Returns
    -------
    Moments

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Squared, linear_risk
    >>> risk = linear_risk(np.array([[1.0, 5.0], [3.0, 5.0]]), np.zeros(2), Squared(), n_shards=2)
    >>> found = moments(risk.executor)
    >>> found.mean.tolist(), found.deviation.tolist(), found.constant.tolist()
    ([2.0, 5.0], [1.0, 0.0], [False, True])
    """
    if isinstance(weights, bool):
        parts = executor.map(_of_shard, weights)
    else:
        ends = np.cumsum([0, *executor.map(_length)])
        parts = executor.map(_of_shard, True, each=[weights[i:j] for i, j in pairwise(ends)])
    found: Moments = reduce(Moments.joined, (part for part in parts if part is not None))
    return found


def _length(shard: Shard) -> int:
    return int(shard.X.shape[0])


def _of_shard(shard: Shard, weighted: bool, given: NDArray | None = None) -> Moments | None:
    """The moments of a shard's columns; None where no row has a weight."""
    X: Any = getattr(shard.X, "tokens", shard.X)
    c = np.asarray(shard.c if given is None else given, dtype=np.float64)
    c = c if weighted else (c > 0).astype(np.float64)
    if not c.any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # where squares overflow, the deviation says so
        if isinstance(X, (Dense, Columns)):
            return reduce(Moments.joined, _of_blocks(X, c))
        if isinstance(X, (Csr, Csc, Wide)):
            return _of_sparse(merged(as_scipy(X.csr if isinstance(X, Wide) else X)), c)
    raise TypeError(f"{type(X).__name__} has no columns of NumPy's to look at: give X as an array of NumPy")


def _of_blocks(X: Dense | Columns, c: NDArray) -> Iterator[Moments]:
    n, step = X.shape[0], X.block_rows
    for i in passing(range(0, n, step)):
        live = np.flatnonzero(c[i : i + step]) + i
        if not len(live):
            continue
        some = slice(i, i + step) if len(live) == min(step, n - i) else live
        block = np.asarray(X.X[some] if isinstance(X, Dense) else X.T[:, some].T, dtype=np.float64)
        weight = float(c[some].sum())
        share = c[some] / weight
        mean = share @ block
        off = block - mean
        yield Moments(weight, mean, share @ (off * off), block.min(0), block.max(0))


def _of_sparse(X: Any, c: NDArray) -> Moments:
    """By two passes over the numbers that are stored; the others are zeros."""
    p, weight = X.shape[1], float(c.sum())
    sums, stored, count, squares = (np.zeros(p) for _ in range(4))
    least, largest = np.full(p, np.inf), np.full(p, -np.inf)
    for x, i, j in _chunks(X, c):
        sums += np.bincount(j, c[i] * x, p)
        stored += np.bincount(j, c[i], p)
        count += np.bincount(j, minlength=p)
        np.minimum.at(least, j, x)
        np.maximum.at(largest, j, x)
    mean = sums / weight
    for x, i, j in _chunks(X, c):
        squares += np.bincount(j, c[i] * (x - mean[j]) ** 2, p)
    holes = count < np.count_nonzero(c)
    squares += np.where(holes, np.maximum(weight - stored, 0.0), 0.0) * mean * mean
    least[holes], largest[holes] = np.minimum(least[holes], 0.0), np.maximum(largest[holes], 0.0)
    return Moments(weight, mean, squares / weight, least, largest)


def _chunks(X: Any, c: NDArray) -> Iterator[tuple[NDArray, NDArray, NDArray]]:
    """Numbers of rows with a weight, their rows and their columns, some at a time."""
    starts = X.indptr
    most, lines = max(NUMBERS, X.shape[1]), len(starts) - 1
    first = 0
    while first < lines:
        last = max(int(np.searchsorted(starts, starts[first] + most, side="right")) - 1, first + 1)
        at = slice(int(starts[first]), int(starts[last]))
        line = np.repeat(np.arange(first, last), np.diff(starts[first : last + 1]))
        x, other = X.data[at].astype(np.float64, copy=False), X.indices[at]
        i, j = (line, other) if X.format == "csr" else (other, line)
        live = c[i] > 0
        yield (x, i, j) if live.all() else (x[live], i[live], j[live])
        first = last
