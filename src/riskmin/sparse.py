"""Sparse matrices of SciPy, checked before any compiled code reads them.

SciPy's constructors look at lengths, not at indices, and its conversions trust both, as kernels do: an
index beyond a row is a read or a write beyond an array. So every sparse matrix that comes from outside passes
here first, once, which takes about as long as one sum over its indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.maps import passing
from riskmin.types import NDArray

BLOCK = 2**18
"""So many indices are looked at together."""
MOST = 2**32
"""So many rows and columns at most: some kernels keep their numbers in 32 bits."""


class Unsound(ValueError):
    """A sparse matrix whose arrays do not fit each other."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"X is no sound sparse matrix: {problem}; build it anew")


def sound(X: Any) -> Any:
    """The same matrix, in the CSR or CSC format, if its arrays fit each other.

    Parameters
    ----------
    X : SciPy sparse matrix or array of two dimensions
        CSR and CSC are not copied; others are checked, and then converted to CSR.

    Returns
    -------
    SciPy sparse matrix or array

    Raises
    ------
    ValueError
        That says what is wrong.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> X = sp.csr_array(np.eye(2))
    >>> sound(X) is X
    True
    >>> X.indices[1] = 7
    >>> sound(X)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    riskmin.sparse.Unsound: X is no sound sparse matrix: an index of its columns is 7, but it has 2; ...
    """
    n, p = X.shape
    if X.format in ("csr", "csc"):
        check_compressed(
            X, *((n, p) if X.format == "csr" else (p, n)), "columns" if X.format == "csr" else "rows"
        )
        return X
    if X.format == "bsr":
        _check_blocks(X)
    elif X.format == "dia":
        _check_diagonals(X)
    else:
        X = X.tocoo()  # by Python alone: what is wrong with its indices is found now
        for which, what, count in ((0, "rows", n), (1, "columns", p)):
            _check_range(X.coords[which], count, what)
        if not len(X.data) == len(X.coords[0]) == len(X.coords[1]):
            raise Unsound(f"it has {len(X.data)} numbers, but {len(X.coords[0])} indices")
    found = X.tocsr()
    check_compressed(found, n, p, "columns")
    return found


def check_compressed(X: Any, n: int, p: int, what: str) -> None:
    """Raise unless a matrix of n compressed rows with indices below p can be read."""
    check_arrays(X.indptr, X.indices, n, p, what)
    if np.ndim(X.data) != 1 or len(X.data) < int(X.indptr[-1]):
        raise Unsound(f"it has {np.shape(X.data)[0]} numbers, but its rows end at {int(X.indptr[-1])}")


def check_arrays(indptr: NDArray, indices: NDArray, n: int, p: int, what: str = "columns") -> None:
    """Raise unless indptr cuts the indices into n rows, and all of these are below p.

    Parameters
    ----------
    indptr, indices : array
        Of integers; there may be more indices than rows have.
    n, p : int
    what : str
        What the indices are the numbers of.
    """
    for name, a in (("indptr", indptr), ("indices", indices)):
        if not isinstance(a, np.ndarray) or a.ndim != 1 or a.dtype.kind not in "iu":
            raise Unsound(f"its {name} is {getattr(a, 'dtype', type(a).__name__)}, not a row of integers")
    if len(indptr) != n + 1:
        raise Unsound(f"its indptr has {len(indptr)} entries, not {n + 1}")
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0:
        raise Unsound(f"its indptr begins with {first}, not with 0")
    for i in passing(range(0, n, BLOCK)):
        ends = indptr[i : i + BLOCK + 1]
        if not (ends[1:] >= ends[:-1]).all():
            row = i + int(np.argmax(ends[1:] < ends[:-1]))
            raise Unsound(f"its indptr decreases after {'row' if what == 'columns' else 'column'} {row}")
    if not 0 <= last <= len(indices):
        raise Unsound(f"its indptr ends with {last}, but it has {len(indices)} indices")
    _check_range(indices[:last], p, what)


def _check_range(indices: NDArray, count: int, what: str) -> None:
    """Raise unless all indices are from 0 to count - 1; those of 64 bits in all of their bits."""
    if indices.dtype.kind not in "iu":
        raise Unsound(f"its indices are {indices.dtype}, not integers")
    native = indices.dtype.isnative and indices.dtype.kind == "i" and indices.flags.aligned
    # as unsigned numbers, negative ones are the largest: one maximum instead of two
    looked = indices.view(f"u{indices.dtype.itemsize}") if native else indices
    for i in passing(range(0, len(indices), BLOCK)):
        some = looked[i : i + BLOCK]
        if int(some.max()) >= count or (not native and int(some.min()) < 0):
            part = indices[i : i + BLOCK]
            bad = int(part[np.argmax((part < 0) | (part >= count))])
            raise Unsound(f"an index of its {what} is {bad}, but it has {count}")


def _check_blocks(X: Any) -> None:
    """Raise unless a BSR matrix can be read."""
    if np.ndim(X.data) != 3 or 0 in X.data.shape[1:]:
        raise Unsound(f"its blocks are of shape {np.shape(X.data)[1:]}")
    (n, p), (rows, columns) = X.shape, X.data.shape[1:]
    if n % rows or p % columns:
        raise Unsound(f"blocks of shape {(rows, columns)} do not make up a matrix of shape {(n, p)}")
    check_arrays(X.indptr, X.indices, n // rows, p // columns)
    if len(X.data) < int(X.indptr[-1]):
        raise Unsound(f"it has {len(X.data)} blocks, but its rows end at {int(X.indptr[-1])}")


def _check_diagonals(X: Any) -> None:
    """Raise unless a DIA matrix can be read."""
    (n, p), offsets = X.shape, X.offsets
    if np.ndim(X.data) != 2 or offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise Unsound(f"its diagonals are of shape {np.shape(X.data)}, at {offsets.dtype}")
    if len(X.data) != len(offsets) or len(np.unique(offsets)) != len(offsets):
        raise Unsound(f"it has {len(X.data)} diagonals for {len(offsets)} offsets, or one twice")
    if len(offsets) and not (-n <= int(offsets.min()) and int(offsets.max()) <= p):
        raise Unsound(f"its diagonals are from {offsets.min()} to {offsets.max()}, beyond its corners")


def native(a: NDArray) -> NDArray:
    """Indices that were checked, as kernels take them: of 32 or 64 bits, in the order of this machine."""
    if a.dtype.itemsize in (4, 8) and a.dtype.isnative and a.flags.aligned:
        return a
    return a.astype(np.int64)


def check_size(shape: tuple[int, ...]) -> None:
    """Raise where rows or columns are more than kernels can number."""
    for count, what in zip(shape, ("rows", "columns"), strict=True):
        if count > MOST:
            remedy = "hash the features into fewer" if what == "columns" else "fit fewer at a time"
            raise ValueError(f"X has {count:,} {what}, but riskmin takes {MOST:,} at most: {remedy}")


def is_sparse(X: Any) -> bool:
    """Whether X is a sparse matrix of SciPy's."""
    return bool(sp.issparse(X))
