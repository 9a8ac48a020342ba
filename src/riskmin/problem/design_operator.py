r"""Products with the design matrix, X d, X' dz and X' H X, for rows in any executor.

Each product is a map over the shards, or a sum over them, so rows may be local or remote; arguments and
results are dense vectors of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.arrays.matrix import as_row_matrix
from riskmin.arrays.memory_map import exceeds_memory, release_between, row_batches
from riskmin.core import Array, NDArray, Shard
from riskmin.core.deadline import check_each, chunk_ranges
from riskmin.core.limits import LIMITS
from riskmin.executors.base import even_slices
from riskmin.linear_maps.linear import SingleOutput
from riskmin.problem import shard_ops
from riskmin.problem.risk import Risk


class DesignOperator:
    """The design matrix of a risk as a linear operator: its products, each one pass over the rows."""

    MAX_GRAM_ENTRIES = 2**25
    """Entries of the Gram matrices of all shards together that may be in memory at a time."""
    MAX_GATHERED_ENTRIES = 2**24
    """Stored entries of rows that may be copied into this process at a time."""
    MIN_ROWS_PER_RANGE = 2**14
    """Vectors of one entry per row are processed in ranges of at least this many rows, in parallel."""
    MAX_RANGES = 64
    """The largest number of such ranges, which depends on the data alone, as that of the shards."""

    def __init__(self, risk: Risk) -> None:
        assert risk.row_metadata is not None
        self.risk, self.rows, self.row_metadata = risk, risk.rows, risk.row_metadata
        self.shape = self.row_metadata.shape
        self.nnz = max(self.row_metadata.nnz, 1)
        """The stored entries of X; 1 where there are none, since costs are divided by it."""
        self.standardization: Any = risk.linear_map if risk.linear_map.standardized else None
        """The shift and the scale of the columns, where X is stored without them."""
        # the rows of shard i are shard_slices[i] of each vector of this process
        ends = np.cumsum([0, *risk.executor.map(shard_length)])
        self.shard_slices = [slice(i, j) for i, j in pairwise(ends.tolist())]
        n_ranges = min(self.shape[0] // self.MIN_ROWS_PER_RANGE, self.MAX_RANGES)
        self.range_ends = np.linspace(0, self.shape[0], max(n_ranges, 1) + 1).astype(np.int64)
        """Range k of rows is from range_ends[k] to range_ends[k + 1]."""
        self.row_ranges = [slice(i, j) for i, j in pairwise(self.range_ends.tolist())]

    def forward(self, d: Array) -> NDArray:
        """X d."""
        # the first point of most runs is 0, whose scores need no pass over X
        if not d.any():
            return np.zeros(self.shape[0])
        if self.rows is None or len(self.shard_slices) == 1:
            scores = self.risk.executor.map(shard_ops.scores, self.risk.linear_map, d)
            return scores[0] if len(scores) == 1 else np.concatenate(scores)
        # each thread writes the scores of its shards into the result
        out = np.empty(self.shape[0])
        each = [out[part] for part in self.shard_slices]
        self.risk.executor.map(shard_ops.scores_into, self.risk.linear_map, d, each=each)
        return out

    def adjoint(self, dz: Array) -> NDArray:
        """X' dz; rows whose dz is 0 cost nothing."""
        each, zero = [dz[part] for part in self.shard_slices], np.zeros(self.shape[1])
        (total,) = self.risk.executor.sum(shard_ops.scatter, self.risk.linear_map, zero, each=each)
        return np.asarray(total)

    def gram(self, h: NDArray, vectors: tuple[NDArray, ...] = ()) -> tuple[NDArray, list[NDArray]]:
        """X' diag(h) X, of which only the upper triangle is meaningful, and X' s for the vectors s."""
        if self.rows is not None and not self._grams_fit:
            G, *products = shard_gram(self.rows, (h, *vectors))
            return G, products
        each = [tuple(v[part] for v in (h, *vectors)) for part in self.shard_slices]
        G, *products = (np.asarray(total) for total in self.risk.executor.sum(shard_gram, each=each))
        if self.standardization is not None:
            # sum_i h_i (x_i - m)(x_i - m)' = G - m s' - s m' + (sum h) m m', for s = X' h
            m, s, d = self.standardization.shift, self._stored_adjoint(h), self.standardization.scale
            G = (G - np.outer(m, s) - np.outer(s - float(h.sum()) * m, m)) * d[:, None] * d
            products = [(q - float(v.sum()) * m) * d for q, v in zip(products, vectors, strict=True)]
        return G, products

    def gram_diagonal(self, h: NDArray) -> NDArray:
        """The diagonal of X' diag(h) X."""
        (total,) = self.risk.executor.sum(shard_gram_diagonal, each=[h[part] for part in self.shard_slices])
        q = np.asarray(total)
        if self.standardization is None:
            return q
        # sum_i h_i (x_ij - m_j)^2 = q_j - 2 m_j (X'h)_j + (sum h) m_j^2, which rounding may make negative
        m = self.standardization.shift
        centered = q - 2 * m * self._stored_adjoint(h) + float(h.sum()) * m * m
        total = np.maximum(centered, 0.0) * self.standardization.scale**2
        return np.asarray(total)

    def _stored_adjoint(self, h: NDArray) -> NDArray:
        """X' h of the columns as they are stored, without shift and scale."""
        assert self.standardization is not None
        each, zero = [h[part] for part in self.shard_slices], np.zeros(self.shape[1])
        (total,) = self.risk.executor.sum(shard_ops.scatter, self.standardization.inner, zero, each=each)
        return np.asarray(total)

    @property
    def linear_map(self) -> Any:
        """The linear map of rows returned by `gather`, whose columns are shifted and scaled already."""
        return self.risk.linear_map if self.standardization is None else self.standardization.inner

    @property
    def _grams_fit(self) -> bool:
        """Whether one Gram matrix per shard fits in memory."""
        return len(self.shard_slices) * self.shape[1] ** 2 <= self.MAX_GRAM_ENTRIES

    def can_form_gram(self, pair_blocks: bool) -> bool:
        """Whether X' H X can be formed: pair blocks of H combine any two rows, which must be local."""
        return self.rows is not None or (self._grams_fit and not pair_blocks)

    def can_gather(self, n_rows: int) -> bool:
        """Whether this many rows can be copied into this process."""
        if self.standardization is not None and self.row_metadata.sparse:
            return False  # shifted columns are dense
        local = self.rows is not None and not rows_exceed_memory(self.rows)
        return local or n_rows * self.nnz <= self.MAX_GATHERED_ENTRIES * self.shape[0]

    def gather(self, index: NDArray) -> Any:
        """The rows of a nondecreasing index, as an array or a sparse SciPy array."""
        if self.rows is not None:
            X = row_matrix(self.rows)
            return gather_rows(self.rows, index) if X.sparse or X.by_columns else self._gather_dense(X, index)
        # a nondecreasing index is cut into one range per shard, relative to its first row
        ends = np.searchsorted(index, [part.stop for part in self.shard_slices]).tolist()
        each = [
            index[i:j] - part.start
            for (i, j), part in zip(pairwise([0, *ends]), self.shard_slices, strict=True)
        ]
        gathered = self.risk.executor.map(gather_rows, each=each)
        if self.row_metadata.sparse:
            return sp.vstack(gathered, format="csr")
        rows = np.concatenate(gathered)
        if self.standardization is None:
            return rows
        return (rows - self.standardization.shift) * self.standardization.scale

    def _gather_dense(self, X: Any, index: NDArray) -> NDArray:
        """The rows of an index of a dense X in C order, copied in parallel."""
        out, executor = np.empty((len(index), self.shape[1])), self.risk.executor

        def copy(part: slice) -> None:
            # in batches, between which memory-mapped rows are released and time limits checked
            rows, start = index[part], part.start
            for batch in check_each(row_batches(rows)):
                into = out[start : start + len(batch)]
                if X.array.dtype == np.float64:
                    np.take(X.array, batch, axis=0, out=into, mode="clip")
                else:
                    into[:] = X.array[batch]
                start += len(batch)

        executor.map_local(copy, even_slices(len(index), executor.useful_threads(out.size)))
        return out

    def gather_dense(self) -> NDArray:
        """All rows as a dense array, with the shift and the scale of the columns."""
        rows = self.gather(np.arange(self.shape[0]))
        if not self.row_metadata.sparse:
            return np.asarray(rows)
        rows = rows.toarray()
        if self.standardization is None:
            return np.asarray(rows)
        return np.asarray((rows - self.standardization.shift) * self.standardization.scale)

    # ------------------------------------------------------------ vectors with one entry per row
    ROW_OPERATIONS = 4
    """Elementary operations of one row: its loss takes about as long as four entries of a pass over X."""

    @property
    def _row_work(self) -> float:
        """Elementary operations of an evaluation of the loss of all rows."""
        return float(self.ROW_OPERATIONS * self.shape[0] * self.risk.linear_map.columns)

    def map_row_ranges(self, f: Callable[[slice], Any]) -> list[Any]:
        """Call f on each range of rows, in parallel if the executor has threads."""
        return self.risk.executor.map_local(f, self.row_ranges, self._row_work)

    def range_sums(self, n_sums: int, f: Callable[[NDArray, NDArray], None]) -> NDArray:
        """The sum over all ranges of the sums that f(ends, out) sets, in the order of the ranges.

        f gets the ends of consecutive ranges and a row of `out` for each: all those of a thread at once.
        """
        n_ranges, executor = len(self.row_ranges), self.risk.executor
        out = np.empty((n_ranges, n_sums))
        n_groups = min(executor.useful_threads(self._row_work), n_ranges)

        def compute(group: slice) -> None:
            f(self.range_ends[group.start : group.stop + 1], out[group])

        executor.map_local(compute, even_slices(n_ranges, n_groups))
        total: Any = sum(out)
        return np.asarray(total)

    def map_by_threads(self, f: Callable[[slice], Any]) -> list[Any]:
        """Call f on one range of rows per thread: only for results that do not depend on the ranges."""
        n, executor = self.shape[0], self.risk.executor
        return executor.map_local(f, even_slices(n, executor.useful_threads(n)))

    def combination(self, a: NDArray, t: float, b: NDArray) -> NDArray:
        """The vector a + t b, for vectors with one entry per row."""
        out = np.empty(a.shape)

        def combine(part: slice) -> None:
            # t b first, then the sum: the same rounding as that of the formula
            np.multiply(b[part], t, out=out[part])
            np.add(a[part], out[part], out=out[part])

        self.map_by_threads(combine)
        return out

    def inner(self, a: NDArray, b: NDArray) -> float:
        """sum_i a_i b_i."""
        if len(self.row_ranges) == 1:
            return float(a @ b)
        kernel = _row_vectors().inner_of_ranges
        return float(self.range_sums(1, lambda ends, out: kernel(ends, a, b, out))[0])

    def weighted_square(self, a: NDArray, b: NDArray) -> float:
        """sum_i a_i b_i^2."""
        if len(self.row_ranges) == 1:
            return float(a @ (b * b))
        kernel = _row_vectors().weighted_square_of_ranges
        return float(self.range_sums(1, lambda ends, out: kernel(ends, a, b, out))[0])

    def total(self, a: NDArray) -> float:
        """sum_i a_i."""
        if len(self.row_ranges) == 1:
            return float(a.sum())
        kernel = _row_vectors().total_of_ranges
        return float(self.range_sums(1, lambda ends, out: kernel(ends, a, out))[0])

    def count_nonzero(self, a: NDArray) -> int:
        """The number of entries other than 0."""
        return sum(self.map_by_threads(lambda part: int(np.count_nonzero(a[part]))))


def _row_vectors() -> Any:
    from riskmin._numba.newton import row_vectors  # Numba is imported by the first use, not with the package

    return row_vectors


def mean_squared_norm(rows: Shard, weights: Any = 1.0) -> float:
    """The weighted mean of sum_j x_ij^2 / weights_j over the rows; 1 where all entries are 0."""
    # cached per column, so that other weights need no pass over X
    if "squares" not in rows.cache:
        rows.cache["squares"] = _column_mean_squares(rows)
    cached: NDArray = rows.cache["squares"]
    return float((cached / weights).sum()) or 1.0


def _column_mean_squares(rows: Shard) -> NDArray:
    """The weighted mean square of each column, sum_i c_i x_ij^2."""
    X, c = row_matrix(rows), rows.c
    if X.sparse:
        ends = X.indptr.astype(np.int64)
        # the weight c_i of its row, for each stored entry
        weights = np.repeat(c, ends[1:] - ends[:-1])
        return np.bincount(X.indices, weights * X.data * X.data, X.shape[1])
    total, n = np.zeros(X.shape[1]), len(c)
    for index in row_blocks(np.arange(n), X.shape[1]):
        part = X.take(index)
        total += c[index] @ (part * part)
    return total


def rows_exceed_memory(rows: Shard) -> bool:
    """Whether the rows are mapped from files that are larger than the memory available for them."""
    return exceeds_memory(rows.X.entries)


def shard_length(shard: Shard) -> int:
    """The number of rows of a shard."""
    return len(shard.c)


def gather_rows(shard: Shard, index: NDArray) -> Any:
    """Some rows of a shard, as an array or a sparse SciPy array."""
    X = row_matrix(shard)
    parts: list[Any] = [X.take(block) for block in check_each(row_batches(index))]
    if len(parts) == 1:
        return parts[0]
    return sp.vstack(parts, format="csr") if X.sparse else np.concatenate(parts)


def row_matrix(shard: Shard) -> Csr | Dense | DenseFortran:
    """X in a format whose rows can be gathered: dense in either order, or CSR."""
    X: Any = shard.X.without_transpose
    return X if X.has_row_ranges else row_major_matrix(shard)


def row_major_matrix(shard: Shard) -> Csr | Dense:
    """X by rows, without duplicate entries; cached with the shard."""
    if "rows" not in shard.cache:
        X = shard.X.without_transpose
        shard.cache["rows"] = X if _has_no_duplicates(X) else as_row_matrix(X)
    cached: Csr | Dense = shard.cache["rows"]
    return cached


def _has_no_duplicates(X: Any) -> bool:
    """Whether no row of a CSR matrix stores a column twice; the test is faster than sorting each row."""
    if not X.sparse or X.by_columns:
        return False
    from riskmin._numba.dual.check import has_repeated_column

    last_row, ranges = np.zeros(X.shape[1], int), chunk_ranges(0, X.shape[0], len(X.indices))
    return not any(has_repeated_column(X.indptr, X.indices, i, j, last_row) for i, j in ranges)


def shard_gram(shard: Shard, vectors: tuple[NDArray, ...]) -> tuple[NDArray, ...]:
    """The upper triangle of X' diag(h) X, and X' s, of one shard; the vectors are h and any number of s."""
    X, p, (h, *others) = row_matrix(shard), shard.X.shape[1], vectors
    out = np.zeros((p, p))
    if X.sparse:
        from riskmin._numba.gram import csr_gram

        for i, j in gram_row_ranges(X, h):
            csr_gram(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        # rows with unsorted columns have some of their products below the diagonal
        below = np.tril(out, -1)
        out += below.T if below.any() else 0.0
        return out, *(shard_ops.scatter(shard, SingleOutput(), np.zeros(p), s)[0] for s in others)
    # rows without any nonzero entry are skipped
    all_positive = len(h) > 0 and h.min() > 0
    index = np.arange(len(h)) if all_positive else np.flatnonzero(sum(abs(v) for v in vectors))
    products = [np.zeros(p) for _ in others]
    # equal second derivatives, as of the squared loss, are a factor of the product
    equal = float(h[0]) if len(h) and h.min() == h.max() else None
    if equal is None and not others and not X.by_columns and len(index) > _gathered_rows(p):
        return (_scaled_gram(X.array, index, h),)
    for rows in range_blocks(len(h), p) if len(index) == len(h) else row_blocks(index, p):
        block = X.take(rows)
        for q, s in zip(products, others, strict=True):
            q += s[rows] @ block
        # X' diag(h) X = Y' Y for Y = diag(h)^1/2 X
        scaled = block if equal is not None else block * np.sqrt(h[rows])[:, None]
        out += scaled.T @ scaled
    return out if equal is None else equal * out, *products


def _scaled_gram(X: NDArray, index: NDArray, h: NDArray) -> NDArray:
    """X' diag(h) X = Y' Y for Y = diag(h)^1/2 X, over the rows of an index, for X in C order.

    Y is computed block by block in one compiled call each: threads do not wait for each other in between.
    """
    from riskmin._numba.gram import scaled_rows

    p = X.shape[1]
    Y, product, out = np.empty((min(_gathered_rows(p), len(index)), p)), np.empty((p, p)), np.zeros((p, p))
    for rows in row_blocks(index, p):
        scaled = Y[: len(rows)]
        scaled_rows(X, rows, h, scaled)
        out += np.matmul(scaled.T, scaled, out=product)
    return out


def shard_gram_diagonal(shard: Shard, h: NDArray) -> tuple[NDArray]:
    """The diagonal of X' diag(h) X, of one shard."""
    X = row_matrix(shard)
    out = np.zeros(X.shape[1])
    if X.sparse:
        from riskmin._numba.newton.exponential_family import csr_gram_diagonal

        for i, j in chunk_ranges(0, len(h), 2 * len(X.data)):
            csr_gram_diagonal(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        return (out,)
    for rows in range_blocks(*X.shape):
        out += h[rows] @ X.take(rows) ** 2
    return (out,)


def gram_row_ranges(X: Csr, h: NDArray) -> Iterable[tuple[int, int]]:
    """Ranges of rows for X' diag(h) X, between which the deadline is checked."""
    # a row of k entries costs k^2 multiplications; rows with h_i = 0 cost nothing
    entries_per_row = len(X.data) / max(1, X.shape[0])
    return chunk_ranges(0, len(h), np.count_nonzero(h) * entries_per_row * entries_per_row)


def _gathered_rows(p: int) -> int:
    """How many rows of p columns fit in the cache."""
    return max(LIMITS.gathered_block_entries // p, 16)


def range_blocks(n: int, p: int) -> Iterable[slice]:
    """All n rows, split into ranges that fit in the cache with p columns; they are not copied."""
    step = _gathered_rows(p)
    return release_between(slice(i, min(i + step, n)) for i in check_each(range(0, n, step)))


def row_blocks(rows: NDArray, p: int) -> Iterable[NDArray]:
    """An index of rows, split into blocks that fit in the cache with p columns."""
    step = _gathered_rows(p)
    return release_between(rows[i : i + step] for i in check_each(range(0, len(rows), step)))
