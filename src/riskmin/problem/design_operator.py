r"""Products with the design matrix, X d, X' dz and X' H X, for rows in any executor.

Each product is a map over the shards, or a sum over them, so rows may be local or remote; arguments and
results are dense vectors of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.compressed import ROW_RANGE_FORMATS, Csr, without_transpose
from riskmin.arrays.dense import Dense, DenseFortran, even_ends
from riskmin.arrays.matrix import as_row_matrix
from riskmin.arrays.memory_map import exceeds_memory, maps_exceed_budget, release_between, row_batches
from riskmin.arrays.sequences import tokens_of
from riskmin.core import Array, Hessian, NDArray, Shard
from riskmin.core.blas_threads import scipy_linalg
from riskmin.core.deadline import MAX_KERNEL_OPERATIONS, check_each, chunk_ranges
from riskmin.core.limits import LIMITS
from riskmin.executors.base import RowParts, row_ends
from riskmin.losses.hessian import hessian_product
from riskmin.problem import shard_ops
from riskmin.problem.compiled.range_forms import ROW_OPERATIONS, SharedRows, form_of, joined, range_kernels
from riskmin.problem.compiled.row_loops import stored_parts
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

    updates_pay = True
    """Whether an adjoint product costs less if most entries of its vector are 0."""

    def __init__(self, risk: Risk) -> None:
        assert risk.row_metadata is not None
        self.risk, self.rows, self.row_metadata = risk, risk.rows, risk.row_metadata
        self.shape = self.row_metadata.shape
        self.nnz = max(self.row_metadata.nnz, 1)
        """The stored entries of X; 1 where there are none, since costs are divided by it."""
        self.standardization: Any = risk.linear_map if risk.linear_map.standardized else None
        """The shift and the scale of the columns, where X is stored without them."""
        # the rows of shard i are shard_slices[i] of each vector of this process
        self.shard_ends = np.array(row_ends(risk.executor))
        self.shard_slices = [slice(i, j) for i, j in pairwise(self.shard_ends.tolist())]
        n_ranges = min(self.shape[0] // self.MIN_ROWS_PER_RANGE, self.MAX_RANGES)
        self.range_ends = even_ends(self.shape[0], max(n_ranges, 1))
        """Range k of rows is from range_ends[k] to range_ends[k + 1]."""
        self.row_ranges = [slice(i, j) for i, j in pairwise(self.range_ends.tolist())]
        self._row_work = float(ROW_OPERATIONS * self.shape[0] * risk.linear_map.columns)
        """Elementary operations of an evaluation of the loss of all rows."""

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
        each = RowParts(out, self.shard_ends)
        self.risk.executor.map(shard_ops.scores_into, self.risk.linear_map, d, each=each)
        return out

    def adjoint(self, dz: Array) -> NDArray:
        """X' dz; rows whose dz is 0 cost nothing."""
        each, zero = RowParts(dz, self.shard_ends), np.zeros(self.shape[1])
        (total,) = self.risk.executor.sum(shard_ops.scatter, self.risk.linear_map, zero, each=each)
        return np.asarray(total)

    def hessian_product(self, hessian: Hessian, d: Array) -> Array:
        """X' H X d; of a diagonal H in one read of X, where there is a kernel for it."""
        if hessian.low_rank or hessian.pair_blocks:
            return self.adjoint(hessian_product(hessian, self.forward(d)))
        each = RowParts(hessian.diagonal, self.shard_ends)
        (image,) = self.risk.executor.sum(shard_ops.hessian_product, self.risk.linear_map, d, each=each)
        return image

    def gram(self, h: NDArray) -> NDArray:
        """X' diag(h) X, of which only the upper triangle is meaningful."""
        if self.rows is not None and not self._grams_fit:
            return shard_gram(self.rows, h)[0]
        (total,) = self.risk.executor.sum(shard_gram, each=RowParts(h, self.shard_ends))
        G = np.asarray(total)
        if self.standardization is None:
            return G
        # sum_i h_i (x_i - m)(x_i - m)' = G - m s' - s m' + (sum h) m m', for s = X' h
        m, s, d = self.standardization.shift, self._stored_adjoint(h), self.standardization.scale
        centered: NDArray = (G - np.outer(m, s) - np.outer(s - float(h.sum()) * m, m)) * d[:, None] * d
        return centered

    def centered_gram(self, h: NDArray) -> NDArray:
        """The upper triangle of X' diag(h) X, of columns less their means with the weights h."""
        G, total, sums = self.gram(h), float(h.sum()), self.adjoint(h)
        return G - np.outer(sums, sums) / total if total > 0 else G

    def gram_diagonal(self, h: NDArray) -> NDArray | None:
        """The diagonal of X' diag(h) X; None if it is not available beside X."""
        (total,) = self.risk.executor.sum(shard_gram_diagonal, each=RowParts(h, self.shard_ends))
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
        each, zero = RowParts(h, self.shard_ends), np.zeros(self.shape[1])
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

    def can_sample(self, n_rows: int) -> bool:
        """Whether a sample of so many rows can be copied to where solvers use it."""
        return self.can_gather(n_rows)

    def can_solve_rows(self, n_rows: int) -> bool:
        """Whether there is memory for the linear system of so many rows."""
        return self.can_gather(n_rows)

    def gather(self, index: NDArray) -> Any:
        """The rows of a nondecreasing index, as an array or a sparse SciPy array."""
        if self.rows is not None:
            X, n_entries = row_matrix(self.rows), float(len(index) * self.shape[1])
            alone = X.sparse or X.by_columns or self.risk.executor.useful_threads(n_entries) == 1
            return gather_rows(self.rows, index) if alone else self._gather_dense(X, index)
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
        out, start = np.empty((len(index), self.shape[1])), 0
        # in batches, between which memory-mapped rows are released
        for batch in row_batches(index):
            into = out[start : start + len(batch)]
            ends = np.linspace(0, len(batch), self.MAX_RANGES + 1).astype(np.int64)
            args = ends, X.array, batch, into
            self.risk.executor.share(_row_vectors().gather_of_ranges, args, self.MAX_RANGES, into.size)
            start += len(batch)
        return out

    def dense_rows(self) -> NDArray:
        """All rows as a dense array in C order, with the shift and the scale of the columns.

        X itself, if it is stored in this way.
        """
        if self.rows is not None and self.standardization is None and not self.row_metadata.sparse:
            X: Any = row_matrix(self.rows).array
            if X.dtype == np.float64 and X.flags.c_contiguous:
                return np.asarray(X)
        rows = self.gather(np.arange(self.shape[0]))
        if not self.row_metadata.sparse:
            return np.asarray(rows)
        rows = rows.toarray()
        if self.standardization is None:
            return np.asarray(rows)
        return np.asarray((rows - self.standardization.shift) * self.standardization.scale)

    # ------------------------------------------------------------ vectors with one entry per row
    def map_row_ranges(self, f: Callable[[slice], Any]) -> list[Any]:
        """Call f on each range of rows, in parallel if the executor has threads."""
        return self.risk.executor.map_local(f, self.row_ranges, self._row_work)

    def run_ranges(self, kernel: Callable[..., None], *args: Any, memory: int = 0) -> None:
        """Call a compiled loop over ranges of rows, which threads share, with their ends and arguments."""
        shared = (self.range_ends, *args)
        self.risk.executor.share(kernel, shared, len(self.row_ranges), self._row_work, memory)

    def range_sums(self, n_sums: int, kernel: Callable[..., None], *args: Any, memory: int = 0) -> NDArray:
        """The sums over all rows of a compiled loop that sets out[k], its last argument, for range k."""
        out = np.empty((len(self.row_ranges), n_sums))
        self.run_ranges(kernel, *args, out, memory=memory)
        total: NDArray = out[0] if len(out) == 1 else out.sum(axis=0)
        return total

    def count_nonzero(self, a: NDArray) -> int:
        """The number of entries other than 0."""
        if len(self.row_ranges) == 1:
            return int(np.count_nonzero(a))
        return int(self.range_sums(1, _row_vectors().nonzeros_of_ranges, a)[0])


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
    if not maps_exceed_budget():
        return False
    X = tokens_of(rows.X)
    return exceeds_memory(X.as_scipy().data if X.sparse else X.array)


def gather_rows(shard: Shard, index: NDArray) -> Any:
    """Some rows of a shard, as an array or a sparse SciPy array."""
    X = row_matrix(shard)
    parts: list[Any] = [X.take(block) for block in check_each(row_batches(index))]
    if len(parts) == 1:
        return parts[0]
    return sp.vstack(parts, format="csr") if X.sparse else np.concatenate(parts)


def row_matrix(shard: Shard) -> Csr | Dense | DenseFortran:
    """X in a format whose rows can be gathered: dense in either order, or CSR."""
    X = without_transpose(shard.X)
    return X if isinstance(X, ROW_RANGE_FORMATS) else row_major_matrix(shard)


def row_major_matrix(shard: Shard) -> Csr | Dense:
    """X by rows; cached with the shard."""
    if "rows" not in shard.cache:
        X = without_transpose(shard.X)
        shard.cache["rows"] = X if X.sparse and not X.by_columns else as_row_matrix(X)
    cached: Csr | Dense = shard.cache["rows"]
    return cached


def entry_ranges(X: Any, multiple: int = 1) -> NDArray:
    """The ends of ranges of rows that threads share, which depend on the data alone.

    A range has enough stored entries per column to outweigh a sum or a search over the columns. The ends are
    multiples of a number of rows.
    """
    n, p = X.shape
    n_ranges = min(X.nnz // max(LIMITS.shard_entries, 4 * p), DesignOperator.MAX_RANGES)
    if n_ranges < 2:
        return np.array([0, n])
    ends = multiple * np.linspace(0, n // multiple, n_ranges + 1).astype(np.int64)
    ends[-1] = n
    return ends


GRAM_OPERATIONS = 1 / 16
"""Elementary operations of a product of two entries of a row: half of them, at the speed of BLAS."""


def shard_gram(shard: Shard, h: NDArray) -> tuple[NDArray]:
    """The upper triangle of X' diag(h) X of one shard."""
    X, p = row_matrix(shard), shard.X.shape[1]
    out = np.zeros((p, p))
    if X.sparse:
        from riskmin._numba.gram import csr_gram

        for i, j in gram_row_ranges(X, h):
            csr_gram(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        return (out,)
    from riskmin._numba.gram import gram

    parts, syrk, rows = stored_parts(X), syrk_address(), gram_block_rows(p)
    memory = np.empty(gram_memory(p))
    for i, j in _gram_ranges(h, p, rows):
        gram(parts, h, i, j, syrk, memory, rows, out)
    return (out,)


@cache
def syrk_address() -> int:
    """The address of BLAS's dsyrk, which kernels call; during a fit with one thread, as all of BLAS."""
    from riskmin._numba import gram

    scipy_linalg()  # finds the library and limits its threads
    return int(gram.syrk_address())


def gram_block_rows(p: int) -> int:
    """The rows of p columns that are scaled together: they stay in cache, and enough to pay for the sums."""
    return max(LIMITS.scaled_block_entries // p, 256)


def gram_memory(p: int) -> int:
    """The numbers of memory for them; by columns, also for their positions."""
    return gram_block_rows(p) * (p + 1)


def _gram_ranges(h: NDArray, p: int, block_rows: int) -> Iterable[tuple[int, int]]:
    """Ranges of rows for X' diag(h) X, between which the deadline is checked.

    They end where a block of rows with h != 0 does, so that the blocks and the bits of the sums stay.
    """
    fitting = 0 if maps_exceed_budget() else MAX_KERNEL_OPERATIONS / (GRAM_OPERATIONS * p * p * block_rows)
    blocks = max(int(fitting), 1)
    if np.count_nonzero(h) <= blocks * block_rows:
        return check_each([(0, len(h))])
    ends = np.flatnonzero(h)[blocks * block_rows :: blocks * block_rows]
    return release_between(check_each(pairwise([0, *ends.tolist(), len(h)])))


@form_of(shard_gram)
def _grams(rows: SharedRows, each: Sequence[NDArray]) -> list[tuple[NDArray]] | None:
    """`shard_gram` of each shard of dense rows; sparse ones are computed shard by shard."""
    n, p = len(rows.ranges), rows.X.shape[1]
    work = GRAM_OPERATIONS * rows.X.nnz * p
    if rows.X.sparse or work > n * MAX_KERNEL_OPERATIONS:
        return None
    out = np.empty((n, p, p))
    args = rows.ends, rows.stored.X, joined(each), syrk_address(), gram_block_rows(p), out
    rows.share(range_kernels().gram_of_ranges, *args, work=work, memory=gram_memory(p))
    return [(G,) for G in out]


def shard_gram_diagonal(shard: Shard, h: NDArray) -> tuple[NDArray]:
    """The diagonal of X' diag(h) X, of one shard."""
    X = row_matrix(shard)
    out = np.zeros(X.shape[1])
    if X.sparse:
        from riskmin._numba.gram import csr_gram_diagonal

        for i, j in chunk_ranges(0, len(h), 2 * len(X.data)):
            csr_gram_diagonal(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        return (out,)
    for rows in range_blocks(*X.shape):
        out += h[rows] @ X.take(rows) ** 2
    return (out,)


@form_of(shard_gram_diagonal)
def _gram_diagonals(rows: SharedRows, each: Sequence[NDArray]) -> list[tuple[NDArray]] | None:
    """`shard_gram_diagonal` of each shard of sparse rows."""
    if not rows.X.sparse:
        return None
    p = rows.X.shape[1]
    out = rows.results(p)
    rows.share(range_kernels().gram_diagonal_of_ranges, rows.ends, rows.stored.X, joined(each), p, out)
    return [(diagonal,) for diagonal in out[:, :p]]


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
