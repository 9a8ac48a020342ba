"""Dense matrices of NumPy in C or Fortran order, and what all stored matrices share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import Array, Matrix, NDArray
from riskmin.core.deadline import chunk_ranges, fill_in_chunks, interruptible_matmul, scatter_in_chunks
from riskmin.core.limits import LIMITS

product_kernels = lazy_module("products")
"""Return the compiled products."""


def rows_per_block(n_rows: int, n_bytes: int) -> int:
    """Return the number of rows per block, for about `LIMITS.block_bytes` per block."""
    # between 16 and 8192 rows
    return min(max(LIMITS.block_bytes * n_rows // max(n_bytes, 1), 16), 8192)


def even_ends(n: int, n_shards: int) -> NDArray:
    """Return the row numbers 0 to n at which shards of equal size begin and end."""
    if n_shards == 1:
        return np.array([0, n])
    ends: NDArray = np.linspace(0, n, n_shards + 1).astype(int)
    return ends


def check_weight_count(w: Array, p: int) -> None:
    """Raise unless w has one weight per column: kernels do not check its length."""
    if len(w) != p:
        raise ValueError(f"w has {len(w)} weights, but X has {p} columns: give one per column")


@dataclass(frozen=True)
class Dense(Matrix):
    """A NumPy array in C order."""

    X: NDArray

    sparse: ClassVar[Literal[False]] = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[0], self.X.shape[1]

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return self.X.size

    @property
    def array(self) -> NDArray:
        """The entries, of shape (n, p)."""
        return self.X

    @property
    def row_ends(self) -> NDArray:
        """Row i has the stored entries row_ends[i] to row_ends[i + 1] - 1."""
        ends: NDArray = np.arange(len(self.X) + 1) * self.X.shape[1]
        return ends

    @property
    def values(self) -> NDArray:
        """The stored entries, row by row."""
        return self.X.ravel()

    def take(self, index: NDArray | slice) -> NDArray:
        """Some rows, in double precision."""
        return self.X[index].astype(np.float64, copy=False)

    @cached_property
    def block_rows(self) -> int:
        return rows_per_block(len(self.X), self.X.nbytes)

    def rows(self, start: int, stop: int) -> Dense:
        return Dense(self.X[start:stop])

    def shard_ends(self, n_shards: int) -> NDArray:
        return even_ends(len(self.X), n_shards)

    def absolute(self, start: int, stop: int) -> Dense:
        return Dense(abs(self.X[start:stop]))

    def scores(self, w: Array, start: int, stop: int) -> Array:
        check_weight_count(w, self.X.shape[1])
        if w.ndim == 2:
            # multi-output: a matrix product by BLAS
            return interruptible_matmul(self.X[start:stop], w)
        # in chunks, between which time limits and interrupts are checked
        z = np.empty(stop - start)
        fill_in_chunks(product_kernels().dense_scores, (self.X,), w, start, stop, z, len(z) * self.X.shape[1])
        return z

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        if dz.ndim == 2:
            out += interruptible_matmul(self.X[start:stop].T, dz)
        else:
            scatter_in_chunks(
                product_kernels().dense_pullback, (self.X,), dz, start, stop, out, len(dz) * self.X.shape[1]
            )


@dataclass(frozen=True)
class DenseFortran(Matrix):
    """A NumPy array in Fortran order, stored as its transpose T."""

    T: NDArray

    sparse: ClassVar[Literal[False]] = False
    by_columns = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.T.shape[1], self.T.shape[0]

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return self.T.size

    @property
    def array(self) -> NDArray:
        """The entries, of shape (n, p)."""
        return self.T.T

    def take(self, index: NDArray | slice) -> NDArray:
        """Some rows, in double precision."""
        return self.T[:, index].T.astype(np.float64, copy=False)

    @cached_property
    def block_rows(self) -> int:
        return rows_per_block(self.T.shape[1], self.T.nbytes)

    def rows(self, start: int, stop: int) -> DenseFortran:
        return DenseFortran(self.T[:, start:stop])

    def shard_ends(self, n_shards: int) -> NDArray:
        return even_ends(self.T.shape[1], n_shards)

    def absolute(self, start: int, stop: int) -> DenseFortran:
        return DenseFortran(abs(self.T[:, start:stop]))

    def flat(self) -> tuple[NDArray, int]:
        """Return the entries as a flat array, also for a range of rows, and the stride of a column."""
        (p, n), (step, size) = self.T.shape, self.T.strides
        # column j of X is row j of T, which begins at j * stride
        if self.T.flags.c_contiguous:
            return self.T.reshape(-1), n
        # a range of rows is not contiguous: view the memory from its first to its last entry
        step //= size
        return np.lib.stride_tricks.as_strided(self.T, ((p - 1) * step + n,), (size,)), step

    def scores(self, w: Array, start: int, stop: int) -> Array:
        check_weight_count(w, len(self.T))
        if w.ndim == 2:
            return interruptible_matmul(self.T[:, start:stop].T, w)
        z = np.empty(stop - start)
        fill_in_chunks(product_kernels().columns_scores, self.flat(), w, start, stop, z, len(z) * len(w))
        return z

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        if dz.ndim == 2:
            out += interruptible_matmul(self.T[:, start:stop], dz)
            return
        T, step = self.flat()
        # pieces of columns, not of rows: partial sums over rows would be rounded differently
        for i, j in chunk_ranges(0, len(out), len(dz) * len(out), multiple=4):
            product_kernels().columns_pullback(T[i * step :], step, dz, start, stop, out[i:j])
