"""Sparse matrices on the device: columns by frequency, in blocks that fit into shared memory (see sparse.cu).

One copy of the entries serves both products: 6 bytes per entry of a frequent column and 10 per other entry
in float32, 4 more in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from riskmin._cuda.kernels import compiled, cupy, n_multiprocessors

BLOCK_COLUMNS = 28 * 1024
"""Columns of a block: their numbers in double precision take 224 KiB of shared memory."""
CHUNK_ROWS = 2**21
"""Rows that are laid out together: their scores stay in the second-level cache."""
FIXED_POINT_BITS = 61.0
"""Bits of the sums in fixed point, without the sign and one bit for rounding."""
THREADS = 1024
UNROLL = 1
TINY = 2.0**-900
"""Sums of zeros have this bound, whose unit in fixed point is still a number."""


class SparseChunk(NamedTuple):
    """Some rows: entries of the frequent columns by row, and all others by blocks of columns."""

    n: int
    ends: Any
    """Row i has the groups ends[i] to ends[i + 1] - 1, of four entries each."""
    columns: Any
    values: Any
    lanes: int
    """Threads that share a row."""
    tail_ends: Any
    """Block b has the groups tail_ends[b] to tail_ends[b + 1] - 1."""
    tail_rows: Any
    tail_columns: Any
    tail_values: Any


def _row_numbers(indptr: Any, size: int) -> Any:
    """Return the row of each stored entry."""
    xp = cupy()
    starts = xp.bincount(indptr[1:-1], minlength=size + 1)[:size]
    return xp.cumsum(starts, dtype=xp.int32)


def _by_rows(rows: Any, columns: Any, values: Any, n: int) -> tuple[Any, Any, Any]:
    """Return ends, columns and values of entries in the order of rows, each row padded to groups of four."""
    xp = cupy()
    counts = xp.bincount(rows, minlength=n)[:n]
    ends = xp.zeros(n + 1, dtype=xp.int64)
    xp.cumsum((counts + 3) // 4, out=ends[1:])
    # the position of the first entry of each row, without padding
    firsts = xp.cumsum(counts) - counts
    position = 4 * ends[rows] + xp.arange(len(rows)) - firsts[rows]
    size = max(4 * int(ends[-1]), 4)
    padded = xp.zeros(size, dtype=xp.uint16), xp.zeros(size, dtype=values.dtype)
    padded[0][position], padded[1][position] = columns.astype(xp.uint16), values
    return ends, *padded


def _by_blocks(rows: Any, columns: Any, values: Any, n_blocks: int) -> tuple[Any, Any, Any, Any]:
    """Return ends, rows, columns and values by blocks of columns, each padded to groups of four."""
    xp = cupy()
    block = columns // BLOCK_COLUMNS - 1
    order = xp.argsort(block.astype(xp.uint16), kind="stable")
    counts = xp.bincount(block, minlength=n_blocks)[:n_blocks]
    ends = xp.zeros(n_blocks + 1, dtype=xp.int64)
    xp.cumsum((counts + 3) // 4, out=ends[1:])
    firsts, block = xp.cumsum(counts) - counts, block[order]
    position = 4 * ends[block] + xp.arange(len(rows)) - firsts[block]
    size = max(4 * int(ends[-1]), 4)
    padded = (
        xp.full(size, -1, dtype=xp.int32),
        xp.zeros(size, dtype=xp.uint16),
        xp.zeros(size, dtype=values.dtype),
    )
    padded[0][position] = rows[order]
    padded[1][position] = (columns[order] % BLOCK_COLUMNS).astype(xp.uint16)
    padded[2][position] = values[order]
    return ends, *padded


def _chunk(indptr: Any, indices: Any, values: Any, rank: Any, n_blocks: int) -> SparseChunk:
    """Return the layout of some rows, given the rank of each column by frequency."""
    n, size = len(indptr) - 1, len(values)
    rows, columns = _row_numbers(indptr, size), rank[indices]
    hot = columns < BLOCK_COLUMNS
    ends, hot_columns, hot_values = _by_rows(rows[hot], columns[hot], values[hot], n)
    lanes, groups = 1, int(ends[-1]) / max(n, 1)
    while lanes < 32 and 1.5 * lanes < groups:
        lanes *= 2
    cold = ~hot
    tail = _by_blocks(rows[cold], columns[cold], values[cold], n_blocks)
    return SparseChunk(n, ends, hot_columns, hot_values, lanes, *tail)


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix on the device, as products need it."""

    shape: tuple[int, int]
    nnz: int
    order: Any
    """The columns by frequency."""
    chunks: list[SparseChunk]
    row_size: float
    """The largest sum of absolute entries of a row."""
    block_sizes: Any = field(repr=False)
    """The largest sum of absolute entries of a column, in each block of columns."""

    @classmethod
    def from_csr(cls, indptr: Any, indices: Any, values: Any, p: int) -> SparseRows:
        """Return the layout of a CSR matrix, built on the device."""
        xp, n = cupy(), len(indptr) - 1
        counts = xp.bincount(indices, minlength=p) if len(indices) else xp.zeros(p, dtype=xp.int64)
        order = xp.argsort(-counts)
        rank = xp.empty(p, dtype=xp.int32)
        rank[order] = xp.arange(p, dtype=xp.int32)
        n_blocks = max(-(-p // BLOCK_COLUMNS) - 1, 0)
        ends, chunks, row_size = [*xp.asnumpy(indptr[:-1:CHUNK_ROWS]).tolist(), len(values)], [], 0.0
        column_sizes = xp.zeros(p)
        for i in range(0, n, CHUNK_ROWS):
            first, last = ends[i // CHUNK_ROWS], ends[i // CHUNK_ROWS + 1]
            part = indptr[i : i + CHUNK_ROWS + 1] - first
            sizes = xp.abs(values[first:last]).astype(xp.float64)
            chunks.append(_chunk(part, indices[first:last], values[first:last], rank, n_blocks))
            if last > first:
                column_sizes += xp.bincount(indices[first:last], sizes, minlength=p)
                rows = _row_numbers(part, last - first)
                row_size = max(row_size, float(xp.bincount(rows, sizes).max()))
        padded = xp.zeros((n_blocks + 1) * BLOCK_COLUMNS)
        padded[:p] = column_sizes[order]
        block_sizes = padded.reshape(-1, BLOCK_COLUMNS).max(axis=1)
        return cls((n, p), len(values), order, chunks, row_size, block_sizes)

    @property
    def itemsize(self) -> int:
        return int(self.chunks[0].values.itemsize)

    @cached_property
    def _width(self) -> int:
        return min(BLOCK_COLUMNS, self.shape[1])

    def _launch(self, name: str, chunk: SparseChunk, arguments: tuple[Any, ...], size: int) -> None:
        wide = self.itemsize == 8
        macros = (
            f"-DVALUE={'double' if wide else 'float'}", f"-DWIDE={int(wide)}", f"-DLANES={chunk.lanes}",
            f"-DUNROLL={UNROLL}", f"-DTPB={THREADS}", f"-DHC={BLOCK_COLUMNS}",
        )  # fmt: skip
        function = compiled(name, "sparse", "", *macros)
        shared = 8 * BLOCK_COLUMNS
        function.max_dynamic_shared_size_bytes = shared
        blocks = min(n_multiprocessors(cupy().cuda.runtime.getDevice()), -(-size // THREADS))
        function((max(blocks, 1),), (THREADS,), arguments, shared_mem=shared)

    def _tail(self, chunk: SparseChunk) -> tuple[Any, ...]:
        n_blocks = np.int32(len(chunk.tail_ends) - 1)
        return chunk.tail_ends, n_blocks, chunk.tail_rows, chunk.tail_columns, chunk.tail_values

    def scores(self, w: Any) -> Any:
        """Return X w in double precision."""
        xp, (n, p) = cupy(), self.shape
        w = xp.ascontiguousarray(w[self.order])
        z = xp.empty(n)
        # |sum| <= row_size max |w| < 2^61 units
        bound = xp.maximum(self.row_size * xp.abs(w).max(), TINY)
        scale = xp.exp2(xp.floor(FIXED_POINT_BITS - xp.log2(bound))).reshape(1)
        start = 0
        for chunk in self.chunks:
            part = z[start : start + chunk.n]
            hot = chunk.ends, chunk.columns, chunk.values, w, np.int32(self._width), part, np.int32(chunk.n)
            self._launch("hot_scores", chunk, hot, chunk.n)
            if len(chunk.tail_ends) > 1:
                sums = xp.zeros(chunk.n, dtype=xp.int64)
                tail = *self._tail(chunk), w, scale, sums, np.int32(p)
                self._launch("tail_scores", chunk, tail, len(chunk.tail_values) // 4)
                part += sums / scale
            start += chunk.n
        return z

    def pullback(self, g: Any) -> Any:
        """Return X' g in double precision; the same bits whatever the order of additions."""
        xp, p = cupy(), self.shape[1]
        bound = xp.maximum(self.block_sizes * xp.abs(g).max(), TINY)
        scales = xp.exp2(xp.floor(FIXED_POINT_BITS - xp.log2(bound)))
        sums, start = xp.zeros(p, dtype=xp.int64), 0
        for chunk in self.chunks:
            part = g[start : start + chunk.n]
            hot = (
                chunk.ends, chunk.columns, chunk.values, part, scales, np.int32(self._width), sums,
                np.int32(chunk.n),
            )  # fmt: skip
            self._launch("hot_pullback", chunk, hot, chunk.n)
            if len(chunk.tail_ends) > 1:
                tail = *self._tail(chunk), part, scales, sums, np.int32(p)
                self._launch("tail_pullback", chunk, tail, len(chunk.tail_values) // 4)
            start += chunk.n
        out = xp.empty(p)
        out[self.order] = sums / xp.repeat(scales, BLOCK_COLUMNS)[:p]
        return out

    def is_finite(self) -> bool:
        """Whether no entry is NaN or infinite."""
        xp = cupy()
        return all(bool(xp.isfinite(a).all()) for c in self.chunks for a in (c.values, c.tail_values))

    def to_scipy(self) -> Any:
        """Return the matrix as one of SciPy in COO format, on the host."""
        import scipy.sparse as sp

        xp, parts, start = cupy(), [], 0
        order = xp.asnumpy(self.order)
        for c in self.chunks:
            stored, kept = int(c.ends[-1]), c.tail_rows >= 0
            hot = xp.asnumpy(c.columns[: 4 * stored]), xp.asnumpy(c.values[: 4 * stored])
            rows = np.repeat(np.arange(c.n), 4 * np.diff(xp.asnumpy(c.ends)))
            used = hot[1] != 0
            parts.append((start + rows[used], order[hot[0][used]], hot[1][used]))
            blocks = np.repeat(np.arange(len(c.tail_ends) - 1), 4 * np.diff(xp.asnumpy(c.tail_ends)))
            columns = xp.asnumpy(c.tail_columns)[: len(blocks)] + BLOCK_COLUMNS * (blocks + 1)
            used = xp.asnumpy(kept)[: len(blocks)]
            tail_rows = xp.asnumpy(c.tail_rows)[: len(blocks)]
            values = xp.asnumpy(c.tail_values)[: len(blocks)]
            parts.append((start + tail_rows[used], order[columns[used]], values[used]))
            start += c.n
        rows, columns, values = (np.concatenate(each) for each in zip(*parts, strict=True))
        return sp.coo_array((values, (rows, columns)), shape=self.shape)

    def absolute(self) -> SparseRows:
        """Return the matrix of absolute entries, in the same layout."""
        xp = cupy()
        chunks = [c._replace(values=xp.abs(c.values), tail_values=xp.abs(c.tail_values)) for c in self.chunks]
        return SparseRows(self.shape, self.nnz, self.order, chunks, self.row_size, self.block_sizes)
