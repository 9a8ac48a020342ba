"""The data matrix X in any storage format: dense in either order, CSR, CSC, or another array library.

There is one class per storage format, each with the two products of `Matrix`. Nothing is copied, except for
the stored transpose of sparse data with very many columns, where scattering into the gradient dominates the
cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.namespace import (
    COMPLEX_X_MESSAGE,
    as_array_like,
    as_floats,
    as_numpy,
    as_writable_view,
    check_two_dimensions,
    is_foreign,
    namespace,
)
from riskmin.arrays.sparse_checks import check_size, native_indices, validated_sparse
from riskmin.core import Array, Matrix, NDArray, deadline
from riskmin.core.deadline import check, chunk_ranges, fill_in_chunks, interruptible_matmul, scatter_in_chunks
from riskmin.core.limits import LIMITS

TRANSPOSE_FROM_COLUMNS = 2**20
"""Number of columns from which a stored transpose is used, if they hold four entries each or more.

A second pass over the data is then faster than scattering into the gradient.
"""


@cache
def _kernels() -> Any:
    from riskmin._numba import products  # Numba is imported by the first product, not with the package

    return products


def _block_rows(n_rows: int, n_bytes: int) -> int:
    """Return the number of rows per block, for about `LIMITS.block_bytes` per block."""
    # between 16 and 8192 rows
    return int(np.clip(LIMITS.block_bytes * n_rows // max(n_bytes, 1), 16, 8192))


def _check_weight_count(w: Array, p: int) -> None:
    """Raise unless w has one weight per column: kernels do not check its length."""
    if len(w) != p:
        raise ValueError(f"w has {len(w)} weights, but X has {p} columns: give one per column")


@dataclass(frozen=True)
class Dense:
    """A NumPy array in C order."""

    X: NDArray

    is_sparse: ClassVar[Literal[False]] = False

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
        return _block_rows(len(self.X), self.X.nbytes)

    def rows(self, start: int, stop: int) -> Dense:
        return Dense(self.X[start:stop])

    def scores(self, w: Array, start: int, stop: int) -> Array:
        _check_weight_count(w, self.X.shape[1])
        if w.ndim == 2:
            # multi-output: a matrix product by BLAS
            return interruptible_matmul(self.X[start:stop], w)
        # in chunks, between which time limits and interrupts are checked
        z = np.empty(stop - start)
        fill_in_chunks(_kernels().dense_scores, (self.X,), w, start, stop, z, len(z) * self.X.shape[1])
        return z

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        if dz.ndim == 2:
            out += interruptible_matmul(self.X[start:stop].T, dz)
        else:
            scatter_in_chunks(
                _kernels().dense_pullback, (self.X,), dz, start, stop, out, len(dz) * self.X.shape[1]
            )


@dataclass(frozen=True)
class DenseFortran:
    """A NumPy array in Fortran order, stored as its transpose T."""

    T: NDArray

    is_sparse: ClassVar[Literal[False]] = False

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
        return _block_rows(self.T.shape[1], self.T.nbytes)

    def rows(self, start: int, stop: int) -> DenseFortran:
        return DenseFortran(self.T[:, start:stop])

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
        _check_weight_count(w, len(self.T))
        if w.ndim == 2:
            return interruptible_matmul(self.T[:, start:stop].T, w)
        z = np.empty(stop - start)
        fill_in_chunks(_kernels().columns_scores, self.flat(), w, start, stop, z, len(z) * len(w))
        return z

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        if dz.ndim == 2:
            out += interruptible_matmul(self.T[:, start:stop], dz)
            return
        T, step = self.flat()
        # pieces of columns, not of rows: partial sums over rows would be rounded differently
        for i, j in chunk_ranges(0, len(out), len(dz) * len(out), multiple=4):
            _kernels().columns_pullback(T[i * step :], step, dz, start, stop, out[i:j])


@dataclass(frozen=True)
class Csr:
    """A SciPy CSR matrix; indices are unsigned."""

    indptr: NDArray
    indices: NDArray
    data: NDArray
    n_features: int

    is_sparse: ClassVar[Literal[True]] = True

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

    def take(self, index: NDArray) -> Any:
        """Some rows, as a sparse SciPy array."""
        return as_scipy(self)[index]

    @cached_property
    def block_rows(self) -> int:
        return _block_rows(len(self.indptr) - 1, self.data.nbytes + self.indices.nbytes)

    def rows(self, start: int, stop: int) -> Csr:
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        # row pointers of the slice, relative to its first entry
        indptr = self.indptr[start : stop + 1] - self.indptr[start]
        return Csr(indptr, self.indices[first:last], self.data[first:last], self.n_features)

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
        _check_weight_count(w, self.n_features)
        z = np.empty((stop - start, *w.shape[1:]))
        kernel = _kernels().csr_scores if w.ndim == 1 else _kernels().csr_scores_multi_output
        parts = self.indptr, self.indices, self.data
        fill_in_chunks(kernel, parts, w, start, stop, z, self._work(start, stop, w))
        return z

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        # multi-output pullbacks need a workspace for the nonzero slopes of a row
        kernel = _kernels().csr_pullback if dz.ndim == 1 else _kernels().csr_pullback_multi_output
        workspace = () if dz.ndim == 1 else (np.empty(dz.shape[1], np.uintp),)
        parts = self.indptr, self.indices, self.data, *workspace
        scatter_in_chunks(kernel, parts, dz, start, stop, out, self._work(start, stop, dz))


@dataclass(frozen=True)
class Csc:
    """A SciPy CSC matrix, processed as a whole: its rows are not contiguous."""

    indptr: NDArray
    indices: NDArray
    data: NDArray
    n_rows: int

    # products read all columns, whatever the range of rows: one range of all rows
    whole = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_rows, len(self.indptr) - 1

    @property
    def block_rows(self) -> int:
        return max(self.n_rows, 1)

    def scores(self, w: Array, start: int, stop: int) -> Array:
        _check_weight_count(w, len(self.indptr) - 1)
        if w.ndim == 2:  # only in predictions: `linear_risk` stores multi-output data by rows
            Z: Array = as_scipy(self) @ w
            return Z[start:stop]
        # columns in place of rows: scores are a pullback with the transpose
        z, parts = np.zeros(self.n_rows), (self.indptr, self.indices, self.data)
        scatter_in_chunks(_kernels().csr_pullback, parts, w, 0, len(w), z, self.data.size)
        return z[start:stop]

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        full = dz
        # the transpose needs all rows: pad the slopes with zeros
        if stop - start < self.n_rows:
            full = np.zeros(self.n_rows)
            full[start:stop] = dz
        # X' dz is the score kernel of the transpose, with columns in place of rows
        gradient, parts = np.empty(len(out)), (self.indptr, self.indices, self.data)
        fill_in_chunks(_kernels().csr_scores, parts, full, 0, len(out), gradient, self.data.size)
        out += gradient


@dataclass(frozen=True)
class CsrWithTranspose:
    """A CSR matrix for scores, and its stored transpose for pullbacks."""

    csr: Csr
    csc: Csc

    # pullbacks read the stored transpose, as in `Csc`
    whole = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.csr.shape

    @property
    def block_rows(self) -> int:
        return self.csc.block_rows

    def scores(self, w: Array, start: int, stop: int) -> Array:
        return self.csr.scores(w, start, stop)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        self.csc.pullback(dz, start, stop, out)


@dataclass(frozen=True)
class ForeignArray:
    """A 2-d array of another library (torch, CuPy), on any device."""

    X: Array

    whole = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[0], self.X.shape[1]

    @property
    def block_rows(self) -> int:
        return max(int(self.X.shape[0]), 1)

    def rows(self, start: int, stop: int) -> ForeignArray:
        return ForeignArray(self.X[start:stop])

    def scores(self, w: Array, start: int, stop: int) -> Array:
        check()
        return self.X[start:stop] @ as_array_like(w, self.X)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        check()
        # the product stays on the device of X; only the gradient is copied to that of out
        out += as_array_like(namespace(dz).matrix_transpose(self.X[start:stop]) @ dz, out)


def _unsigned(a: NDArray) -> NDArray:
    """View indices as unsigned integers of the same width: valid, since they are not negative."""
    return as_writable_view(a).view(np.uint32 if a.dtype.itemsize == 4 else np.uint64)


def _as_compressed(X: Any) -> Matrix:
    X = validated_sparse(X)
    # SciPy's arrays may be longer than the rows need
    size = int(X.indptr[-1])
    parts = (
        _unsigned(native_indices(X.indptr)),
        _unsigned(native_indices(X.indices)[:size]),
        as_floats(X.data[:size], X),
    )
    return Csr(*parts, X.shape[1]) if X.format == "csr" else Csc(*parts, X.shape[0])


def _as_foreign(X: Array) -> ForeignArray:
    xp = namespace(X)
    if xp.isdtype(X.dtype, "complex floating"):
        raise ValueError(COMPLEX_X_MESSAGE)
    # w is cast to the dtype of X, and an integer dtype would truncate it
    return ForeignArray(X if xp.isdtype(X.dtype, "real floating") else xp.astype(X, xp.float64))


STORED_MATRICES = (Dense, DenseFortran, Csr, Csc, CsrWithTranspose, ForeignArray)
"""The matrix classes of this module, which store their entries."""


def is_custom_matrix(X: Any) -> bool:
    """Whether X is a user-defined `Matrix`, whose rows may be generated on demand."""
    return all(callable(getattr(X, name, None)) for name in ("scores", "pullback")) and hasattr(
        X, "block_rows"
    )


def as_matrix(X: Any) -> Matrix:
    """Wrap a 2-d container of numbers as a `Matrix`, without copying float32 or float64.

    Parameters
    ----------
    X : ndarray, SciPy sparse matrix or array, 2-d array of another array library, frame, or list of rows
        A frame of pandas, polars or Arrow is converted to NumPy; an object that implements `Matrix` is
        returned as it is.

    Returns
    -------
    Matrix
        With ``scores(w, start, stop)``, ``pullback(dz, start, stop, out)`` and ``shape``.

    Examples
    --------
    >>> import numpy as np
    >>> as_matrix(np.eye(3)).scores(np.array([1.0, 2.0, 3.0]), 0, 2)
    array([1., 2.])
    """
    if isinstance(X, STORED_MATRICES) or is_custom_matrix(X):
        matrix: Matrix = X
        return matrix
    if sp.issparse(X) or is_foreign(X):
        check_two_dimensions(X.shape)
        check_size(X.shape)
        return _as_compressed(X) if sp.issparse(X) else _as_foreign(X)
    a = as_numpy(X, "X")
    check_two_dimensions(a.shape)
    a = as_floats(a, X)
    # Fortran order is kept; any other layout is made C-contiguous
    if a.flags.f_contiguous and not a.flags.c_contiguous:
        return DenseFortran(a.T)
    return Dense(np.ascontiguousarray(a))


def as_scipy(X: Csr | Csc) -> Any:
    """Return the same arrays as a SciPy matrix, with signed indices."""
    signed = (a.view(np.int32 if a.dtype.itemsize == 4 else np.int64) for a in (X.indices, X.indptr))
    parts: Any = (X.data, *signed)
    return (sp.csr_array if isinstance(X, Csr) else sp.csc_array)(parts, shape=X.shape)


def with_duplicates_summed(X: Any) -> Any:
    """Return a SciPy sparse matrix with duplicate entries summed; a copy only if there are any."""
    if not X.has_canonical_format:
        X = X.copy()  # the caller's arrays stay as they are
        X.sum_duplicates()
    return X


def as_row_matrix(X: Matrix) -> Csr | Dense:
    """Return X stored by rows, with duplicate entries summed: for solvers that visit rows one by one.

    Copies only data that are stored by columns or have duplicate entries.
    """
    # X.T is the stored transpose, so that X.T.T is X itself
    if isinstance(X, DenseFortran):
        return Dense(np.ascontiguousarray(X.T.T))
    if isinstance(X, Dense):
        return X
    X = without_transpose(X)
    assert isinstance(X, (Csr, Csc))
    # SciPy converts to CSR, and sums duplicates
    rows = as_scipy(X)
    rows = with_duplicates_summed(rows if isinstance(X, Csr) else rows.tocsr())
    return Csr(_unsigned(rows.indptr), _unsigned(rows.indices), rows.data, X.shape[1])


def without_transpose(X: Any) -> Any:
    """Return X without its stored transpose, if it has one."""
    return X.csr if isinstance(X, CsrWithTranspose) else X


def with_transpose(X: Csr) -> CsrWithTranspose:
    """Return X together with its stored transpose."""
    csc = as_scipy(X).tocsc()
    return CsrWithTranspose(X, Csc(_unsigned(csc.indptr), _unsigned(csc.indices), csc.data, csc.shape[0]))
