r"""Means and variances of the columns of X, computed per shard and combined.

.. math:: m_j = \sum_i c_i x_{ij}, \qquad s_j^2 = \sum_i c_i (x_{ij} - m_j)^2, \qquad \sum_i c_i = 1.

Differences to the mean are squared, never the entries themselves, so that columns far from zero keep digits.
Those of a sample of the rows are the offsets and sizes by which columns are preconditioned.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.matrix import as_matrix, is_stored
from riskmin.arrays.memory_map import release_between
from riskmin.arrays.namespace import as_array_like, as_indices_like, namespace, to_numpy
from riskmin.arrays.sequences import tokens_of
from riskmin.core import NDArray, Shard, ShardCache
from riskmin.core.limits import LIMITS
from riskmin.executors.base import QUICK_FUNCTIONS, Executor, SerialExecutor, row_ends
from riskmin.problem.design_operator import gather_rows

CONSTANT_COLUMN_TOL = 8 * float(np.finfo(np.float64).eps)
"""A column whose standard deviation is at most this share of its largest entry counts as constant."""


class Moments(NamedTuple):
    """Weighted mean and variance of each column, over rows of positive weight."""

    weight: float
    """The sum of the weights."""
    mean: NDArray
    variance: NDArray

    def combined_with(self, other: Moments) -> Moments:
        """The moments of the rows of both, by the pairwise update of Chan, Golub and LeVeque."""
        weight = self.weight + other.weight
        # m = m1 + t (m2 - m1),  s^2 = (1 - t) s1^2 + t s2^2 + t (1 - t) (m2 - m1)^2
        t, difference = other.weight / weight, other.mean - self.mean
        variance = (1 - t) * self.variance + t * other.variance + t * (1 - t) * difference * difference
        return Moments(weight, self.mean + t * difference, variance)


class ColumnMoments(NamedTuple):
    """The moments of each column, and its minimum and maximum, over the rows of positive weight."""

    weight: float
    mean: NDArray
    variance: NDArray
    minimum: NDArray
    maximum: NDArray

    @property
    def deviation(self) -> NDArray:
        """The standard deviations."""
        deviation: NDArray = np.sqrt(self.variance)
        return deviation

    @property
    def constant(self) -> NDArray:
        """Which columns are constant up to rounding."""
        size = np.maximum(np.abs(self.minimum), np.abs(self.maximum))
        constant: NDArray = self.deviation <= CONSTANT_COLUMN_TOL * size
        return constant

    @property
    def scale(self) -> NDArray:
        """The divisors of the columns: their standard deviations, and 1 for constant columns."""
        scale: NDArray = np.where(self.constant, 1.0, self.deviation)
        return scale

    def combined_with(self, other: ColumnMoments) -> ColumnMoments:
        """The moments and extremes of the rows of both."""
        extremes = np.minimum(self.minimum, other.minimum), np.maximum(self.maximum, other.maximum)
        return ColumnMoments(*Moments(*self[:3]).combined_with(Moments(*other[:3])), *extremes)


def column_moments(executor: Executor, weights: NDArray | bool = True) -> ColumnMoments:
    """The moments of all columns, by one reduction over the shards.

    Parameters
    ----------
    executor : Executor
        Holds the rows.
    weights : bool or (n,) array
        True for the weights of the shards, False for equal ones; an array needs one more call per shard.

    Returns
    -------
    ColumnMoments
    """
    if isinstance(weights, bool):
        parts = executor.map(shard_moments, weights)
    else:
        # the weights are cut like the rows
        each = [weights[i:j] for i, j in pairwise(row_ends(executor))]
        parts = executor.map(shard_moments, True, each=each)
    combined: ColumnMoments = reduce(
        ColumnMoments.combined_with, (part for part in parts if part is not None)
    )
    return combined


def column_scales(X: Any, weight: NDArray | None = None) -> NDArray:
    """The standard deviations of the columns of rows in this process, and 1 for constant columns.

    Examples
    --------
    >>> column_scales([[1.0, 5.0], [3.0, 5.0]]).tolist()
    [1.0, 1.0]
    >>> column_scales([[10.0], [30.0]]).tolist()
    [10.0]
    """
    rows = as_matrix(X)
    c = np.ones(rows.shape[0]) if weight is None else weight
    return column_moments(SerialExecutor([Shard(rows, c, c, ShardCache())])).scale


def shard_moments(shard: Shard, weighted: bool, given: NDArray | None = None) -> ColumnMoments | None:
    """The moments of a shard's columns; None if no row has a positive weight."""
    X: Any = tokens_of(shard.X)
    c = to_numpy(shard.c if given is None else given).astype(np.float64, copy=False)
    # equal weights for the rows of positive weight
    c = c if weighted else (c > 0).astype(np.float64)
    if not c.any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # where squares overflow, the deviation is infinite
        if X.array is not None:
            return reduce(ColumnMoments.combined_with, _of_blocks(X, c))
        if isinstance(X, ForeignArray):
            return reduce(ColumnMoments.combined_with, _of_foreign(X, c))
        if X.sparse:
            return _of_sparse(X.as_scipy(), c)
    raise TypeError(f"{type(X).__name__} has no columns in NumPy arrays: give X as an array of NumPy")


def _of_blocks(X: Any, c: NDArray) -> Iterator[ColumnMoments]:
    """The moments of blocks of dense rows; rows of weight zero are left out."""
    n, step = X.shape[0], X.block_rows
    for i in release_between(range(0, n, step)):
        weighted_rows = np.flatnonzero(c[i : i + step]) + i
        if not len(weighted_rows):
            continue
        # a slice is a view; an index array copies
        rows = slice(i, i + step) if len(weighted_rows) == min(step, n - i) else weighted_rows
        block = X.take(rows)
        # m = sum_i share_i x_i, s^2 = sum_i share_i (x_i - m)^2, with shares of sum one
        weight = float(c[rows].sum())
        share = c[rows] / weight
        mean = share @ block
        deviation = block - mean
        yield ColumnMoments(weight, mean, share @ (deviation * deviation), *_extremes(block))


def _extremes(rows: NDArray) -> tuple[NDArray, NDArray]:
    """The least and the largest entry of each column; by contiguous columns, if rows are short."""
    columns, axis = (np.ascontiguousarray(rows.T), 1) if len(rows) > rows.shape[1] else (rows, 0)
    return columns.min(axis), columns.max(axis)


def _of_foreign(X: Any, c: NDArray) -> Iterator[ColumnMoments]:
    """The moments of blocks of rows of another array library, computed on its device."""
    xp = namespace(X.X)
    for i, j, block in X.double_blocks(0, X.shape[0]):
        weighted_rows = np.flatnonzero(c[i:j])
        if not len(weighted_rows):
            continue
        if len(weighted_rows) < j - i:
            block = xp.take(block, as_indices_like(weighted_rows, block), axis=0)
        weight = float(c[i:j].sum())
        share = as_array_like(c[i:j][weighted_rows] / weight, X.score_like)
        mean = share @ block
        deviation = block - mean
        moments = mean, share @ (deviation * deviation), xp.min(block, axis=0), xp.max(block, axis=0)
        yield ColumnMoments(weight, *map(to_numpy, moments))


def _of_sparse(X: Any, c: NDArray) -> ColumnMoments:
    """The moments by two passes over the stored entries; all others are zeros."""
    p, weight = X.shape[1], float(c.sum())
    sums, stored_weight, count, squares = (np.zeros(p) for _ in range(4))
    least, largest = np.full(p, np.inf), np.full(p, -np.inf)
    for x, i, j in _chunks(X, c):
        # first pass: sums and extremes per column
        sums += np.bincount(j, c[i] * x, p)
        stored_weight += np.bincount(j, c[i], p)
        count += np.bincount(j, minlength=p)
        np.minimum.at(least, j, x)
        np.maximum.at(largest, j, x)
    mean = sums / weight
    for x, i, j in _chunks(X, c):
        # second pass: squared differences to the mean
        squares += np.bincount(j, c[i] * (x - mean[j]) ** 2, p)
    # columns with fewer stored entries than rows also contain zeros, each with the squared deviation mean^2
    has_zeros = count < np.count_nonzero(c)
    squares += np.where(has_zeros, np.maximum(weight - stored_weight, 0.0), 0.0) * mean * mean
    least[has_zeros] = np.minimum(least[has_zeros], 0.0)
    largest[has_zeros] = np.maximum(largest[has_zeros], 0.0)
    return ColumnMoments(weight, mean, squares / weight, least, largest)


def _chunks(X: Any, c: NDArray) -> Iterator[tuple[NDArray, NDArray, NDArray]]:
    """Chunks of stored entries of rows with a positive weight: values, row indices, column indices."""
    starts = X.indptr
    n_max, n_lines = max(LIMITS.chunk_entries, X.shape[1]), len(starts) - 1
    first = 0
    while first < n_lines:
        # the longest range of rows (or columns) with at most n_max entries in all, and at least one of them
        last = max(int(np.searchsorted(starts, starts[first] + n_max, side="right")) - 1, first + 1)
        entries = slice(int(starts[first]), int(starts[last]))
        line = np.repeat(np.arange(first, last), np.diff(starts[first : last + 1]))
        x, other = X.data[entries].astype(np.float64, copy=False), X.indices[entries]
        # of CSR, lines are rows; of CSC, columns
        i, j = (line, other) if X.format == "csr" else (other, line)
        weighted = c[i] > 0
        yield (x, i, j) if weighted.all() else (x[weighted], i[weighted], j[weighted])
        first = last


# ---------------------------------------------------------------- of a sample of the rows
def is_linear(risk: Any) -> bool:
    """Whether the scores of a risk are linear in the rows of a matrix."""
    return risk.linear_map is not None and risk.loss.task != "tagging"


def sampled_moments(risk: Any) -> Moments | None:
    """The moments of a sample of the rows, taken from all shards; None if there are no rows to sample."""
    if not is_linear(risk):
        return None
    try:
        n, p = (0, 1) if risk.row_metadata is None else risk.row_metadata.shape
        # entries per row; of sparse rows, a quarter is counted, so that their sample is 4 times as large
        row_entries = (
            p
            if risk.row_metadata is None or not risk.row_metadata.sparse
            else max(risk.row_metadata.nnz // (4 * n), 1)
        )
        # about this many entries, and at least this many rows, suffice to estimate means and sizes
        sample_rows = max(2**13 // row_entries, 64)
        parts = risk.executor.map(shard_sample_moments, sample_rows / max(n, 1))
    except TypeError:  # the shards hold objects without rows
        return None
    if None in parts:
        return None
    weighted = [part for part in parts if part.weight]
    return reduce(Moments.combined_with, weighted) if weighted else None


def shard_sample_moments(shard: Shard, share: float) -> Moments | None:
    """The moments of a sample of a shard's rows, relative to its first row: large offsets would cancel."""
    X: Any = tokens_of(shard.X)
    if not is_stored(X):
        return None
    step = max(int(1 / share), 1)
    if namespace(shard.c) is not np:  # only the weights of the sample are copied to this process
        candidates = np.arange(0, X.shape[0], step)
        sampled = to_numpy(shard.c[::step])
        rows_used, c = candidates[sampled > 0], np.zeros(0)
        weights = sampled[sampled > 0]
    else:
        c = to_numpy(shard.c)
        # every m-th row of positive weight, for m = 1 / share
        rows_used = (c > 0).nonzero()[0][::step]
        weights = c if len(rows_used) == len(c) else c[rows_used]
    if not len(rows_used):
        zero = np.zeros(X.shape[1])
        return Moments(0.0, zero, zero)
    # of few rows, the sample is all of them: no copy
    all_dense = X.array is not None and len(rows_used) == len(c)
    rows = X.take(slice(None)) if all_dense else _rows_of(shard._replace(X=X), rows_used)
    n = float(weights.sum())
    with np.errstate(over="ignore", invalid="ignore"):
        if X.sparse:
            return _sparse_moments(rows, weights if rows.format == "csr" else c)
        c = weights / n
        mean, variance = np.empty(rows.shape[1]), np.empty(rows.shape[1])
        # some columns at a time: new pages for copies of many take longer than the rest
        step = max(2**15 // len(rows), 1)
        for part in (slice(j, j + step) for j in range(0, rows.shape[1], step)):
            relative = rows[:, part] - rows[0, part]
            mean[part] = c @ relative
            relative -= mean[part]
            variance[part] = c @ np.square(relative, out=relative)
        return Moments(n, rows[0] + mean, variance)


QUICK_FUNCTIONS.add(shard_sample_moments)


def _rows_of(shard: Shard, index: NDArray) -> Any:
    """Some rows, as an array in double precision or a sparse SciPy array; all rows of sparse columns."""
    X: Any = shard.X
    if isinstance(X, ForeignArray):
        return to_numpy(X.take_double(index))
    if X.by_columns and X.sparse:  # there is no cheap access to some rows
        return X.as_scipy()
    return gather_rows(shard, index)


def _sparse_moments(rows: Any, c: NDArray) -> Moments:
    """The moments of sparse rows with weights c; zero for columns of < 5 entries, whose size is unknown."""
    n, p = float(c.sum()), rows.shape[1]
    lengths = np.diff(rows.indptr)
    if rows.format == "csr":
        column, weight = rows.indices, np.repeat(c, lengths)
    else:
        column, weight = np.repeat(np.arange(p), lengths), c[rows.indices]
    values = rows.data.astype(np.float64)
    # sums over the stored entries: all other entries are zeros
    mean, square = (np.bincount(column, weight * v, p) / n for v in (values, values**2))
    unknown = np.bincount(column, minlength=p) < min(5, rows.shape[0])
    mean, square = np.where(unknown, 0.0, mean), np.where(unknown, 0.0, square)
    variance = np.maximum(square - mean**2, 0.0)
    # a difference this small is rounding error: a constant column has variance zero
    return Moments(n, mean, np.where(variance <= 1e-12 * square, 0.0, variance))
