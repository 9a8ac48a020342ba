"""Check that a matrix holds no NaN or infinity, and find the first one for the error message."""

from __future__ import annotations

import numpy as np

from riskmin.arrays.matrix import Csc, Csr, CsrWithTranspose, Dense, DenseFortran, ForeignArray
from riskmin.arrays.memory_map import release_between
from riskmin.arrays.namespace import namespace
from riskmin.core import Matrix, NDArray
from riskmin.core.limits import LIMITS


def check_finite(X: Matrix) -> None:
    """Raise a ValueError that names the row and column of a NaN or infinity in X, if there is one."""
    bad = _not_finite_in_foreign(X) if isinstance(X, ForeignArray) else _not_finite(X)
    if bad is not None:
        raise ValueError(
            f"X holds NaN or infinity (row {bad[0]}, column {bad[1]}): drop or impute such values first"
        )


def stored_values(X: Matrix) -> NDArray | None:
    """Return the stored values of a matrix of NumPy arrays, rows first; None for other matrices."""
    if isinstance(X, DenseFortran):
        return np.transpose(X.T)
    if isinstance(X, Dense):
        return X.X
    return X.data if isinstance(X, (Csr, Csc)) else None


def _not_finite(X: Matrix) -> tuple[int, int] | None:
    """Return row and column of a NaN or infinity in a matrix of NumPy arrays, or None."""
    X = X.csr if isinstance(X, CsrWithTranspose) else X
    data = stored_values(X)
    if data is None or _all_finite(data if data.flags.c_contiguous else data.T):
        return None
    first, *column = (int(k) for k in np.argwhere(~np.isfinite(data))[0])
    if not isinstance(X, (Csr, Csc)):
        return first, column[0]
    # compressed storage: the row (or column) whose range holds the entry, and its index
    outer, inner = int(np.searchsorted(X.indptr, first, side="right")) - 1, int(X.indices[first])
    return (outer, inner) if isinstance(X, Csr) else (inner, outer)


def _all_finite(data: NDArray) -> bool:
    """Whether all entries are finite, checked block by block."""
    # rows per block, for about LIMITS.finite_check_entries entries
    step = max(LIMITS.finite_check_entries // max(data[:1].size, 1), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        for i in release_between(range(0, len(data), step)):
            block = data[i : i + step]
            # a finite sum is the common case, and needs no temporary array
            if not np.isfinite(block.sum(dtype=np.float64)) and not np.isfinite(block).all():
                return False
    return True


def _not_finite_in_foreign(X: ForeignArray) -> tuple[int, int] | None:
    """Return row and column of a NaN or infinity in an array of another library, or None."""
    xp = namespace(X.X)
    if bool(xp.all(xp.isfinite(X.X))):
        return None
    rows, columns = xp.nonzero(~xp.isfinite(X.X))
    return int(rows[0]), int(columns[0])
