"""Where a matrix holds NaN or infinity, if it does."""

from __future__ import annotations

import numpy as np

from riskmin.arrays import namespace
from riskmin.maps import passing
from riskmin.matrices import Columns, Csc, Csr, Dense, Plain, Wide
from riskmin.types import Matrix, NDArray

BLOCK = 2**17
"""So many numbers are looked at together."""


def check_finite(X: Matrix) -> None:
    """Raise a ValueError that names a row and column of X where NaN or infinity is, if there are any."""
    bad = _plain_not_finite(X) if isinstance(X, Plain) else _not_finite(X)
    if bad is not None:
        raise ValueError(
            f"X holds NaN or infinity (row {bad[0]}, column {bad[1]}): drop or impute such values first"
        )


def stored(X: Matrix) -> NDArray | None:
    """The numbers that a matrix of NumPy arrays holds, rows first; None for other matrices."""
    if isinstance(X, Columns):
        return np.transpose(X.T)
    if isinstance(X, Dense):
        return X.X
    return X.data if isinstance(X, (Csr, Csc)) else None


def _not_finite(X: Matrix) -> tuple[int, int] | None:
    """Where NaN or infinity is in a matrix of NumPy arrays."""
    X = X.csr if isinstance(X, Wide) else X
    data = stored(X)
    if data is None or _all_finite(data if data.flags.c_contiguous else data.T):
        return None
    first, *rest = (int(k) for k in np.argwhere(~np.isfinite(data))[0])
    if not isinstance(X, (Csr, Csc)):
        return first, rest[0]
    outer, inner = int(np.searchsorted(X.indptr, first, side="right")) - 1, int(X.indices[first])
    return (outer, inner) if isinstance(X, Csr) else (inner, outer)


def _all_finite(data: NDArray) -> bool:
    """Whether all numbers are finite; looked at in blocks, as all passes over X are."""
    step = max(BLOCK // max(data[:1].size, 1), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        for i in passing(range(0, len(data), step)):
            some = data[i : i + step]
            # a finite sum is the common case, and costs no temporary
            if not np.isfinite(some.sum(dtype=np.float64)) and not np.isfinite(some).all():
                return False
    return True


def _plain_not_finite(X: Plain) -> tuple[int, int] | None:
    """Where NaN or infinity is in an array of another library."""
    xp = namespace(X.X)
    if bool(xp.all(xp.isfinite(X.X))):
        return None
    rows, columns = xp.nonzero(~xp.isfinite(X.X))
    return int(rows[0]), int(columns[0])
