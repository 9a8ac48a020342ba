"""Validation of SciPy sparse matrices before any compiled code reads them.

SciPy's constructors check lengths but not indices, and neither its conversions nor the kernels check them: an
index out of range would read or write beyond an array. Therefore every sparse matrix that a user passes is
validated once by this module, which takes about as long as two sums over its indices.

SciPy sorts the indices and sums duplicate entries of a matrix in place, in methods as harmless as `power` and
`max`. Therefore the validated matrix is in canonical form, so that SciPy changes nothing of it; it is a copy
where the given one is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.memory_map import release_between
from riskmin.arrays.namespace import as_floats
from riskmin.core import NDArray
from riskmin.core.limits import LIMITS

MAX_ROWS_OR_COLUMNS = 2**32
"""Largest number of rows or columns: some kernels store row and column indices in 32 bits."""


class InvalidSparseMatrix(ValueError):
    """A sparse matrix whose arrays are inconsistent."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"X is not a valid sparse matrix: {problem}; rebuild it")


def validated_sparse(X: Any) -> Any:
    """Return X in canonical CSR or CSC format after checking that its arrays are consistent.

    Parameters
    ----------
    X : SciPy sparse matrix or array of two dimensions
        CSR and CSC in canonical form (sorted indices, no duplicates) are not copied; others are checked,
        and then converted to CSR or copied.

    Returns
    -------
    SciPy sparse matrix or array
        X itself, or a copy with sorted indices and the sums of duplicate entries.

    Raises
    ------
    ValueError
        Naming the first inconsistency.
    """
    n, p = X.shape
    # compressed formats are checked in place, the others before their conversion
    if X.format in ("csr", "csc"):
        check_compressed(
            X, *((n, p) if X.format == "csr" else (p, n)), "columns" if X.format == "csr" else "rows"
        )
        return _canonical(X)
    if X.format == "bsr":
        _check_blocks(X)
    elif X.format == "dia":
        _check_diagonals(X)
    else:
        # LIL, DOK and COO are converted to COO by Python code: its indices are checked before compiled code
        X = X.tocoo()
        for axis, what, count in ((0, "rows", n), (1, "columns", p)):
            _check_range(X.coords[axis], count, what)
        if not len(X.data) == len(X.coords[0]) == len(X.coords[1]):
            raise InvalidSparseMatrix(f"it has {len(X.data)} numbers, but {len(X.coords[0])} indices")
    # the result of the conversion is checked, too
    result = X.tocsr()
    check_compressed(result, n, p, "columns")
    return _canonical(result)


def _canonical(X: Any) -> Any:
    """Return a valid CSR or CSC matrix itself, or a copy in canonical form if it is not."""
    size = int(X.indptr[-1])
    if _increases_in_rows(X.indptr, X.indices[:size]):
        return X
    # entries are summed in the dtype of X, as SciPy does, where SciPy can
    data = X.data[:size] if X.data.dtype.kind in "biu" else as_floats(X.data[:size], X)
    copy = type(X)((data, X.indices[:size], X.indptr), shape=X.shape, copy=True)
    copy.sum_duplicates()
    return copy


def _increases_in_rows(indptr: NDArray, indices: NDArray) -> bool:
    """Return whether indices increase strictly in each row; flags of SciPy's objects may be out of date."""
    for i in release_between(range(0, len(indices), LIMITS.index_check_entries)):
        block = indices[i : i + LIMITS.index_check_entries + 1]
        falls = block[1:] <= block[:-1]
        # the first entries of rows, among the entries from i + 1 on
        first, last = np.searchsorted(indptr, (i + 1, i + len(block)))
        falls[indptr[first:last] - (i + 1)] = False
        if falls.any():
            return False
    return True


def check_compressed(X: Any, n: int, p: int, what: str) -> None:
    """Raise unless X is a valid matrix of n compressed rows with indices below p."""
    check_arrays(X.indptr, X.indices, n, p, what)
    if np.ndim(X.data) != 1 or len(X.data) < int(X.indptr[-1]):
        raise InvalidSparseMatrix(
            f"it has {np.shape(X.data)[0]} numbers, but its rows end at {int(X.indptr[-1])}"
        )


def check_arrays(indptr: NDArray, indices: NDArray, n: int, p: int, what: str = "columns") -> None:
    """Raise unless indptr splits the indices into n rows and all indices are below p.

    Parameters
    ----------
    indptr, indices : array
        Integers; indices may be longer than the rows need.
    n, p : int
    what : str
        "columns" or "rows": what the indices count, for the message.
    """
    for name, a in (("indptr", indptr), ("indices", indices)):
        if not isinstance(a, np.ndarray) or a.ndim != 1 or a.dtype.kind not in "iu":
            raise InvalidSparseMatrix(
                f"its {name} is {getattr(a, 'dtype', type(a).__name__)}, not a 1-d array of integers"
            )
    if len(indptr) != n + 1:
        raise InvalidSparseMatrix(f"its indptr has {len(indptr)} entries, not {n + 1}")
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0:
        raise InvalidSparseMatrix(f"its indptr begins with {first}, not with 0")
    # row ends must not decrease; in blocks, so that large maps can be released in between
    for i in release_between(range(0, n, LIMITS.index_check_entries)):
        ends = indptr[i : i + LIMITS.index_check_entries + 1]
        if not (ends[1:] >= ends[:-1]).all():
            row = i + int(np.argmax(ends[1:] < ends[:-1]))
            raise InvalidSparseMatrix(
                f"its indptr decreases after {'row' if what == 'columns' else 'column'} {row}"
            )
    if not 0 <= last <= len(indices):
        raise InvalidSparseMatrix(f"its indptr ends with {last}, but it has {len(indices)} indices")
    _check_range(indices[:last], p, what)


def _check_range(indices: NDArray, count: int, what: str) -> None:
    """Raise unless all indices are from 0 to count - 1, checked in full width."""
    if indices.dtype.kind not in "iu":
        raise InvalidSparseMatrix(f"its indices are {indices.dtype}, not integers")
    is_native = indices.dtype.isnative and indices.dtype.kind == "i" and indices.flags.aligned
    # as unsigned integers, negative ones are the largest: one maximum replaces a minimum and a maximum
    unsigned = indices.view(f"u{indices.dtype.itemsize}") if is_native else indices
    for i in release_between(range(0, len(indices), LIMITS.index_check_entries)):
        block = unsigned[i : i + LIMITS.index_check_entries]
        if int(block.max()) >= count or (not is_native and int(block.min()) < 0):
            signed_block = indices[i : i + LIMITS.index_check_entries]
            bad = int(signed_block[np.argmax((signed_block < 0) | (signed_block >= count))])
            raise InvalidSparseMatrix(f"an index of its {what} is {bad}, but it has {count}")


def _check_blocks(X: Any) -> None:
    """Raise unless a BSR matrix is valid."""
    if np.ndim(X.data) != 3 or 0 in X.data.shape[1:]:
        raise InvalidSparseMatrix(f"its blocks are of shape {np.shape(X.data)[1:]}")
    (n, p), (rows, columns) = X.shape, X.data.shape[1:]
    if n % rows or p % columns:
        raise InvalidSparseMatrix(
            f"blocks of shape {(rows, columns)} do not make up a matrix of shape {(n, p)}"
        )
    # indptr and indices count blocks
    check_arrays(X.indptr, X.indices, n // rows, p // columns)
    if len(X.data) < int(X.indptr[-1]):
        raise InvalidSparseMatrix(f"it has {len(X.data)} blocks, but its rows end at {int(X.indptr[-1])}")


def _check_diagonals(X: Any) -> None:
    """Raise unless a DIA matrix is valid."""
    (n, p), offsets = X.shape, X.offsets
    if np.ndim(X.data) != 2 or offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise InvalidSparseMatrix(f"its diagonals are of shape {np.shape(X.data)}, at {offsets.dtype}")
    if len(X.data) != len(offsets) or len(np.unique(offsets)) != len(offsets):
        raise InvalidSparseMatrix(f"it has {len(X.data)} diagonals for {len(offsets)} offsets, or one twice")
    # diagonal 0 is the main one, k > 0 lies above it and k < 0 below
    if len(offsets) and not (-n <= int(offsets.min()) and int(offsets.max()) <= p):
        raise InvalidSparseMatrix(
            f"its diagonals are from {offsets.min()} to {offsets.max()}, beyond its corners"
        )


def native_indices(a: NDArray) -> NDArray:
    """Return validated indices in the form that kernels expect: 32 or 64 bits, native byte order."""
    if a.dtype.itemsize in (4, 8) and a.dtype.isnative and a.flags.aligned:
        return a
    return a.astype(np.int64)


def check_size(shape: tuple[int, ...]) -> None:
    """Raise if X has more rows or columns than kernels can index."""
    for count, what in zip(shape, ("rows", "columns"), strict=True):
        if count > MAX_ROWS_OR_COLUMNS:
            remedy = "hash the features into fewer" if what == "columns" else "fit fewer at a time"
            raise ValueError(
                f"X has {count:,} {what}, but riskmin takes {MAX_ROWS_OR_COLUMNS:,} at most: {remedy}"
            )
