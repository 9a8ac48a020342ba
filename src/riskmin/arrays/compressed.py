"""Sparse matrices of SciPy: CSR, CSC, and CSR with a stored transpose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.dense import (
    Dense,
    DenseFortran,
    check_weight_count,
    even_ends,
    product_kernels,
    rows_per_block,
)
from riskmin.arrays.namespace import as_writable_view
from riskmin.core import Array, Matrix, NDArray, deadline
from riskmin.core.deadline import fill_in_chunks, scatter_in_chunks


def unsigned(a: NDArray) -> NDArray:
    """View indices as unsigned integers of the same width: valid, since they are not negative."""
    return as_writable_view(a).view(np.uint32 if a.dtype.itemsize == 4 else np.uint64)


@dataclass(frozen=True)
class Csr(Matrix):
    """A SciPy CSR matrix in canonical form; indices are unsigned."""

    indptr: NDArray
    indices: NDArray
    data: NDArray
    n_features: int

    sparse: ClassVar[Literal[True]] = True

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indptr) - 1, self.n_features

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return self.data.size

    @property
    def row_ends(self) -> NDArray:
        """Row i has the stored entries row_ends[i] to row_ends[i + 1] - 1."""
        return self.indptr

    @property
    def values(self) -> NDArray:
        """The stored entries, row by row."""
        return self.data

    def as_scipy(self) -> Any:
        return _as_scipy(self, sp.csr_array)

    def take(self, index: NDArray) -> Any:
        """Some rows, as a sparse SciPy array."""
        return self.as_scipy()[index]

    @cached_property
    def block_rows(self) -> int:
        return rows_per_block(len(self.indptr) - 1, self.data.nbytes + self.indices.nbytes)

    def rows(self, start: int, stop: int) -> Csr:
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        # row pointers of the slice, relative to its first entry
        indptr = self.indptr[start : stop + 1] - self.indptr[start]
        return Csr(indptr, self.indices[first:last], self.data[first:last], self.n_features)

    def shard_ends(self, n_shards: int) -> NDArray:
        return even_ends(len(self.indptr) - 1, n_shards)

    def absolute(self, start: int, stop: int) -> Csr:
        rows = self.rows(start, stop)
        return replace(rows, data=abs(rows.data))

    def _work(self, start: int, stop: int, v: Array) -> int:
        """Return the number of multiplications for a range of rows, or an upper bound if that is small."""
        n_outputs = v.shape[1] if v.ndim == 2 else 1
        upper_bound = self.data.size * n_outputs
        return (
            upper_bound
            if upper_bound <= deadline.MAX_KERNEL_OPERATIONS
            else int(self.indptr[stop] - self.indptr[start]) * n_outputs
        )

    def scores(self, w: Array, start: int, stop: int) -> Array:
        check_weight_count(w, self.n_features)
        z = np.empty((stop - start, *w.shape[1:]))
        kernel = product_kernels().csr_scores if w.ndim == 1 else product_kernels().csr_scores_multi_output
        parts = self.indptr, self.indices, self.data
        fill_in_chunks(kernel, parts, w, start, stop, z, self._work(start, stop, w))
        return z

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        # multi-output pullbacks need a workspace for the nonzero slopes of a row
        kernel = (
            product_kernels().csr_pullback if dz.ndim == 1 else product_kernels().csr_pullback_multi_output
        )
        workspace = () if dz.ndim == 1 else (np.empty(dz.shape[1], np.uintp),)
        parts = self.indptr, self.indices, self.data, *workspace
        scatter_in_chunks(kernel, parts, dz, start, stop, out, self._work(start, stop, dz))

    def hessian_product(self, d: Array, h: Array) -> Array:
        """X' diag(h) X d, row by row."""
        out, parts = np.zeros(self.n_features), (self.indptr, self.indices, self.data, d)
        kernel, n = product_kernels().csr_hessian_product, len(h)
        scatter_in_chunks(kernel, parts, h, 0, n, out, 2 * self._work(0, n, h))
        return out


@dataclass(frozen=True)
class Csc(Matrix):
    """A SciPy CSC matrix in canonical form, processed as a whole: its rows are not contiguous."""

    indptr: NDArray
    indices: NDArray
    data: NDArray
    n_rows: int

    sparse: ClassVar[Literal[True]] = True
    by_columns = True
    one_block = True  # products read all columns, whatever the range of rows

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_rows, len(self.indptr) - 1

    @property
    def nnz(self) -> int:
        return self.data.size

    def as_scipy(self) -> Any:
        return _as_scipy(self, sp.csc_array)

    def absolute(self, start: int, stop: int) -> Csc:
        return replace(self, data=abs(self.data))

    @property
    def block_rows(self) -> int:
        return max(self.n_rows, 1)

    def scores(self, w: Array, start: int, stop: int) -> Array:
        check_weight_count(w, len(self.indptr) - 1)
        if w.ndim == 2:  # only in predictions: `linear_risk` stores multi-output data by rows
            Z: Array = self.as_scipy() @ w
            return Z[start:stop]
        # columns in place of rows: scores are a pullback with the transpose
        z, parts = np.zeros(self.n_rows), (self.indptr, self.indices, self.data)
        scatter_in_chunks(product_kernels().csr_pullback, parts, w, 0, len(w), z, self.data.size)
        return z[start:stop]

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        full = dz
        # the transpose needs all rows: pad the slopes with zeros
        if stop - start < self.n_rows:
            full = np.zeros(self.n_rows)
            full[start:stop] = dz
        # X' dz is the score kernel of the transpose, with columns in place of rows
        gradient, parts = np.empty(len(out)), (self.indptr, self.indices, self.data)
        fill_in_chunks(product_kernels().csr_scores, parts, full, 0, len(out), gradient, self.data.size)
        out += gradient


@dataclass(frozen=True)
class CsrWithTranspose(Matrix):
    """A CSR matrix for scores, and its stored transpose for pullbacks."""

    csr: Csr
    csc: Csc

    sparse: ClassVar[Literal[True]] = True
    one_block = True  # pullbacks read the stored transpose, as in `Csc`

    @property
    def shape(self) -> tuple[int, int]:
        return self.csr.shape

    @property
    def nnz(self) -> int:
        return self.csr.nnz

    def as_scipy(self) -> Any:
        return self.csr.as_scipy()

    def absolute(self, start: int, stop: int) -> Csr:
        return self.csr.absolute(start, stop)

    @property
    def block_rows(self) -> int:
        return self.csc.block_rows

    def scores(self, w: Array, start: int, stop: int) -> Array:
        return self.csr.scores(w, start, stop)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        self.csc.pullback(dz, start, stop, out)


def _as_scipy(X: Csr | Csc, kind: Any) -> Any:
    """Return the same arrays as SciPy takes them: with signed integers, and known to be in canonical form.

    SciPy would otherwise search for unsorted or duplicate entries, and change the arrays in place.
    """
    signed = (a.view(np.int32 if a.dtype.itemsize == 4 else np.int64) for a in (X.indices, X.indptr))
    result = kind((X.data, *signed), shape=X.shape)
    result.has_canonical_format = True
    return result


def with_transpose(X: Matrix) -> Matrix:
    """Return X with a stored transpose, if its rows are sparse; else X."""
    if not isinstance(X, Csr):
        return X
    csc = X.as_scipy().tocsc()
    return CsrWithTranspose(X, Csc(unsigned(csc.indptr), unsigned(csc.indices), csc.data, csc.shape[0]))


def without_transpose(X: Matrix) -> Matrix:
    """Return X without its stored transpose, if it has one; else X."""
    return X.csr if isinstance(X, CsrWithTranspose) else X


ROW_RANGE_FORMATS = (Csr, Dense, DenseFortran)
"""The formats of which any range of rows can be read from NumPy's arrays."""
