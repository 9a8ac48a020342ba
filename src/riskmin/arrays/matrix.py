"""The data matrix X in any storage format: dense in either order, CSR, CSC, or another array library.

There is one class per storage format, each with the two products of `Matrix`. Nothing is copied, except for
sparse data that are not in canonical form (see `sparse_checks`), and the stored transpose of sparse data with
very many columns, where scattering into the gradient dominates the cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.compressed import Csc, Csr, unsigned
from riskmin.arrays.dense import Dense, DenseFortran, even_ends
from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.devices.gpu import GpuDense
from riskmin.arrays.devices.gpu_sparse import GpuSparse
from riskmin.arrays.namespace import (
    COMPLEX_X_MESSAGE,
    as_floats,
    as_numpy,
    check_two_dimensions,
    is_foreign,
    is_gpu_sparse,
    namespace,
)
from riskmin.arrays.sparse_checks import check_size, native_indices, validated_sparse
from riskmin.core import Array, Matrix, NDArray
from riskmin.core.messages import is_whole_number

TRANSPOSE_FROM_COLUMNS = 2**20
"""Number of columns from which a stored transpose is used, if they hold four entries each or more.

A second pass over the data is then faster than scattering into the gradient.
"""


def _as_compressed(X: Any) -> Matrix:
    X = validated_sparse(X)
    # SciPy's arrays may be longer than the rows need
    size = int(X.indptr[-1])
    parts = (
        unsigned(native_indices(X.indptr)),
        unsigned(native_indices(X.indices)[:size]),
        as_floats(X.data[:size], X),
    )
    return Csr(*parts, X.shape[1]) if X.format == "csr" else Csc(*parts, X.shape[0])


def _as_foreign(X: Array) -> ForeignArray:
    xp = namespace(X)
    if xp.isdtype(X.dtype, "complex floating"):
        raise ValueError(COMPLEX_X_MESSAGE)
    # w is cast to the dtype of X, and an integer dtype would truncate it
    X = X if xp.isdtype(X.dtype, "real floating") else xp.astype(X, xp.float64)
    return GpuDense(X) if GpuDense.accepts(X) else ForeignArray(X)


def check_products(
    name: str, thing: Any, dim: int, ranges: list[tuple[int, int]], rtol: float = 1e-5
) -> None:
    """Raise a ValueError unless pullback is the adjoint of scores on ranges of rows, and both are repeatable.

    Bounds are made of both products: if they do not fit each other, bounds are false. The ranges are used
    twice, with d = X w, so that <X w, d> is a sum of squares; the pullbacks must add up to 2 X'd. Relative
    errors up to rtol are attributed to rounding, also in single precision.
    """
    w, out, total = np.random.default_rng(0).standard_normal(dim), np.zeros(dim), 0.0
    for start, stop in ranges:
        z, again = (np.array(thing.scores(w.copy(), start, stop), dtype=np.float64) for _ in range(2))
        if z.shape[:1] != (stop - start,) or z.shape != again.shape:
            raise ValueError(
                f"{name}.scores gives the shape {z.shape} for {stop - start} rows: give one score per row"
            )
        size = float(np.abs(z).max(initial=0.0))
        if not np.allclose(z, again, rtol=0, atol=rtol * size, equal_nan=True):
            raise ValueError(f"{name}.scores gives other scores when it is called again: make it repeatable")
        total += 2 * float(np.sum(z * z))
        for _ in range(2):
            thing.pullback(z.copy(), start, stop, out)
    if not np.isfinite(out).all():
        raise ValueError(f"{name}.pullback adds NaN or infinity: give X[start:stop].T @ dz of finite rows")
    if abs(float(out @ w) - total) > rtol * total:
        raise ValueError(
            f"{name}.pullback does not fit {name}.scores: for d = X w, <X w, d> is {total / 2:.6g}, but "
            f"<w, X'd> is {float(out @ w) / 2:.6g}; let it add X[start:stop].T @ dz to out, in place"
        )


class UserMatrix(Matrix):
    """A user-defined object with the properties and products of `Matrix`, checked on all of its rows."""

    def __init__(self, given: Any) -> None:
        self.given = given
        name, shape, step = type(given).__name__, given.shape, given.block_rows
        if np.shape(shape) != (2,) or not all(is_whole_number(k) for k in shape):
            raise ValueError(f"{name}.shape is {shape!r}: give (rows, columns)")
        if not is_whole_number(step, at_least=1):
            raise ValueError(f"{name}.block_rows is {step!r}: give how many rows to take at a time, >= 1")
        n, step = int(shape[0]), int(step)
        with np.errstate(over="ignore", invalid="ignore"):  # numbers whose squares overflow
            check_products(name, self, int(shape[1]), [(i, min(i + step, n)) for i in range(0, n, step)])

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.given.shape[0]), int(self.given.shape[1])

    @property
    def block_rows(self) -> int:
        return int(self.given.block_rows)

    def rows(self, start: int, stop: int) -> UserMatrix:
        return UserMatrix(self.given.rows(start, stop))

    def shard_ends(self, n_shards: int) -> NDArray:
        # the method `rows` is optional
        return even_ends(self.shape[0], n_shards if hasattr(self.given, "rows") else 1)

    def scores(self, w: Array, start: int, stop: int) -> Array:
        return self.given.scores(w, start, stop)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        self.given.pullback(dz, start, stop, out)


def as_matrix(X: Any) -> Matrix:
    """Wrap a 2-d container of numbers as a `Matrix`, without copying float32 or float64.

    Sparse data with unsorted indices or duplicate entries are copied.

    Parameters
    ----------
    X : ndarray, SciPy sparse matrix or array, 2-d array of another array library, frame, or list of rows
        A frame of pandas, polars or Arrow is converted to NumPy; a user-defined object with ``shape``,
        ``block_rows``, ``scores`` and ``pullback`` is adapted.

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
    if isinstance(X, Matrix):
        return X
    if all(hasattr(X, name) for name in ("scores", "pullback", "block_rows")):
        return UserMatrix(X)
    if is_gpu_sparse(X):
        check_two_dimensions(X.shape)
        check_size(X.shape)
        return GpuSparse.from_sparse(X)
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


def is_stored(X: Matrix) -> bool:
    """Return whether all entries are stored, in any array library: not those of rows that are computed."""
    return X.sparse or X.array is not None or X.score_like is not None


def as_row_matrix(X: Matrix) -> Csr | Dense:
    """Return X stored by rows, for solvers that visit rows one by one; copies only data stored by columns."""
    if X.array is not None:
        return Dense(np.ascontiguousarray(X.array))
    rows = X.as_scipy()
    assert rows is not None
    rows = rows.tocsr()
    return Csr(unsigned(rows.indptr), unsigned(rows.indices), rows.data, X.shape[1])
