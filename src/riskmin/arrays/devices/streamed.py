"""Dense rows that do not fit on a device: some stay there, and the others are copied in blocks in every pass.

Each block is a shard. While the rows of one block are computed, those of the next are copied into the second
of two buffers; so a pass takes as long as its copies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.devices.gpu import STORAGE, GpuDense, copied_to_gpu, pin
from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array, Matrix, NDArray

BLOCK_BYTES = 2**28
"""Bytes of a block: long enough for the full bandwidth of the link, short enough for two buffers."""
BYTES_PER_ROW = 80
"""Memory of vectors beside X, per row: labels, weights, scores, directions and slopes in double precision."""


class BlockCopies:
    """Copies of blocks of host memory in two buffers on a device, in any array library.

    Parameters
    ----------
    host : (n, p) array
        In rows.
    ends : sequence of int
        Block k has the rows ends[k] to ends[k + 1] - 1.
    like : array
        An array of the library, dtype and device of the copies.
    """

    def __init__(self, host: NDArray, ends: NDArray, like: Array) -> None:
        self.blocks = [host[i:j] for i, j in pairwise(ends)]
        self.like = like
        self.held = [-1, -1]
        """The blocks in the two buffers."""
        self.buffers: list[Array] = [None, None]

    def block(self, k: int) -> Array:
        """Return the rows of block k on the device, and begin to copy those of the block after it."""
        if k not in self.held:
            self._begin(k, 0)
        slot = self.held.index(k)
        self._wait(slot)
        following = (k + 1) % len(self.blocks)
        if following not in self.held:
            self._begin(following, 1 - slot)
        return self.buffers[slot][: len(self.blocks[k])]

    def _begin(self, k: int, slot: int) -> None:
        self._copy(k, slot)
        self.held[slot] = k

    def _copy(self, k: int, slot: int) -> None:
        """Copy block k to a buffer; the default returns when it is there."""
        self.buffers[slot] = as_array_like(self.blocks[k], self.like)

    def _wait(self, slot: int) -> None:
        """Let the device wait until a buffer is filled."""

    def bandwidth(self) -> float:
        """Return the bytes per second of a copy, measured on the first block."""
        self._copy(0, 0)
        self.held = [-1, -1]
        self._synchronize()
        start = time.perf_counter()
        self._copy(0, 0)
        self._synchronize()
        return self.blocks[0].nbytes / max(time.perf_counter() - start, 1e-9)

    def _synchronize(self) -> None:
        """Wait in this process until all copies are done."""


class PinnedCopies(BlockCopies):
    """Copies to a GPU by CuPy, beside computations if host memory is pinned."""

    def __init__(self, host: NDArray, ends: NDArray, like: Array) -> None:
        import cupy

        super().__init__(host, ends, like)
        longest = max(len(block) for block in self.blocks)
        with like.device:
            self.buffers = [cupy.empty((longest, host.shape[1]), dtype=host.dtype) for _ in range(2)]
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self.filled = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]

    def _copy(self, k: int, slot: int) -> None:
        import cupy

        with self.like.device:
            # what was computed so far may still read the buffer
            self.stream.wait_event(cupy.cuda.get_current_stream().record())
            with self.stream:
                self.buffers[slot][: len(self.blocks[k])].set(self.blocks[k], stream=self.stream)
                self.filled[slot].record(self.stream)

    def _wait(self, slot: int) -> None:
        import cupy

        with self.like.device:
            cupy.cuda.get_current_stream().wait_event(self.filled[slot])

    def _synchronize(self) -> None:
        self.stream.synchronize()


class _Streamed:
    """The rows of one block, copied when a product needs them; a base of matrices of any library."""

    copies: BlockCopies
    k: int

    def __init__(self, copies: BlockCopies, k: int) -> None:
        # the matrices are frozen
        vars(self).update(copies=copies, k=k)

    @property
    def X(self) -> Array:
        return self.copies.block(self.k)

    @property
    def shape(self) -> tuple[int, int]:
        n, p = self.copies.blocks[self.k].shape
        return n, p

    @property
    def block_rows(self) -> int:
        return max(self.shape[0], 1)

    @cached_property
    def score_like(self) -> Array:
        """An empty array of float64 on the device."""
        xp = namespace(self.copies.like)
        return xp.astype(self.copies.like, xp.float64)


class StreamedArray(_Streamed, ForeignArray):
    """A block of rows for array code."""


class StreamedGpuDense(_Streamed, GpuDense):
    """A block of rows for the kernels of a GPU."""

    @property
    def kernels(self) -> Any:
        """The kernels of the entries; not kept, as a buffer holds other rows later."""
        return GpuDense(self.X).kernels

    _double = None

    @property
    def _column_blocks(self) -> list[tuple[slice, Any]]:
        return GpuDense(self.X)._column_blocks


class StreamedRows(Matrix):
    """Rows in host memory, of which the first stay on a device and the others are copied in every pass.

    Parameters
    ----------
    host : (n, p) array
        Of float32 or float64.
    resident_rows : int
        How many of the first rows stay on the device.
    like : array
        An empty array of the library and on the device.
    block_bytes : int, optional
        At most this many bytes are copied at a time.
    """

    one_block = True

    def __init__(
        self, host: NDArray, resident_rows: int, like: Array, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        host = np.ascontiguousarray(host)
        step = max(block_bytes // max(host[0].nbytes, 1), 1)
        first = min(resident_rows, len(host) - 2)
        # two blocks at least: one is computed while the other is copied
        n_blocks = max(-(-(len(host) - first) // step), 2)
        self.ends = np.unique(np.linspace(first, len(host), n_blocks + 1).astype(np.int64))
        self.host, self.like = host, namespace(like).astype(like[:0], _dtype_like(host, like))
        from array_api_compat import is_cupy_array

        self.on_gpu = is_cupy_array(like) and host.dtype.name in STORAGE
        # pinned host memory is copied at the full bandwidth of the link, and beside computations
        self.pinned = self.on_gpu and pin(self, host)
        kind = PinnedCopies if self.on_gpu else BlockCopies
        self.copies = kind(host[first:], self.ends - first, self.like)
        self.resident: Any = None
        if first and self.on_gpu:
            self.resident = GpuDense(copied_to_gpu(host[:first], self.like.device.id))
        elif first:
            self.resident = ForeignArray(as_array_like(host[:first], self.like))

    @property
    def shape(self) -> tuple[int, int]:
        return self.host.shape[0], self.host.shape[1]

    @property
    def block_rows(self) -> int:
        return int(np.diff(self.ends).max())

    @property
    def one_pass(self) -> bool:
        """Whether value and gradient take one read of X."""
        return self.on_gpu and all(matrix.one_pass for matrix in self._blocks())

    @cached_property
    def score_like(self) -> Array:
        xp = namespace(self.like)
        return xp.astype(self.like, xp.float64)

    def _blocks(self) -> Iterator[Any]:
        """Yield the rows that stay, then the blocks that are copied."""
        if self.resident is not None:
            yield self.resident
        kind = StreamedGpuDense if self.on_gpu else StreamedArray
        yield from (kind(self.copies, k) for k in range(len(self.ends) - 1))

    def shard_ends(self, n_shards: int) -> NDArray:
        """The ends of the blocks, whatever the number of shards."""
        return self.ends if self.resident is None else np.append(0, self.ends)

    def rows(self, start: int, stop: int) -> Matrix:
        block: Matrix = list(self._blocks())[int(np.searchsorted(self.shard_ends(0), start))]
        return block

    def scores(self, w: Array, start: int, stop: int) -> Array:
        parts = []
        for block, (i, j) in zip(self._blocks(), pairwise(self.shard_ends(0).tolist()), strict=True):
            if max(i, start) < min(j, stop):
                parts.append(block.scores(w, max(start - i, 0), min(stop, j) - i))
        return namespace(self.like).concat(parts)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        for block, (i, j) in zip(self._blocks(), pairwise(self.shard_ends(0).tolist()), strict=True):
            if (first := max(i, start)) < (last := min(j, stop)):
                block.pullback(dz[first - start : last - start], first - i, last - i, out)

    @property
    def streamed_bytes(self) -> int:
        """The bytes that every pass copies."""
        return sum(block.nbytes for block in self.copies.blocks)


def _dtype_like(host: NDArray, like: Array) -> Any:
    return getattr(namespace(like), host.dtype.name)
