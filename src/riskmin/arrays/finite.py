"""Check that a matrix holds no NaN or infinity, and find the first one for the error message."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from riskmin.arrays.compressed import Csc, Csr, CsrWithTranspose
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.devices.gpu import on_stream_of
from riskmin.arrays.devices.gpu_sparse import GpuSparse
from riskmin.arrays.devices.streamed import StreamedRows
from riskmin.arrays.matrix import as_row_matrix
from riskmin.arrays.memory_map import release_between
from riskmin.arrays.namespace import namespace
from riskmin.arrays.sequences import Sequences
from riskmin.core import Matrix, NDArray
from riskmin.core.limits import LIMITS

if TYPE_CHECKING:
    from riskmin.arrays.partitioned import PartitionedMatrix


class NotFiniteError(ValueError):
    """X holds NaN or infinity at this row and column, which has a name if X is a table."""

    def __init__(self, row: int, column: int, name: object = None) -> None:
        super().__init__(row, column, name)
        self.row, self.column, self.name = row, column, name

    def __str__(self) -> str:
        column = self.column if self.name is None else repr(self.name)
        return f"X holds NaN or infinity (row {self.row}, column {column}): drop or impute such values first"


def check_finite(X: Matrix | PartitionedMatrix) -> None:
    """Raise a ValueError that names the row and column of a NaN or infinity in X, if there is one."""
    bad = first_not_finite(X)
    if bad is not None:
        raise NotFiniteError(*bad)


@singledispatch
def first_not_finite(X: Any) -> tuple[int, ...] | None:
    """Return the row and the column of a NaN or infinity in X; None if there is none, or X is computed."""
    return None


@first_not_finite.register(Dense)
@first_not_finite.register(DenseFortran)
def _(X: Any) -> tuple[int, ...] | None:
    return _index_of_not_finite(X.array)


@first_not_finite.register(Csr)
@first_not_finite.register(Csc)
def _(X: Any) -> tuple[int, ...] | None:
    found = _index_of_not_finite(X.data)
    if found is None:
        return None
    # the row, or column, whose range holds the entry
    place = int(np.searchsorted(X.indptr, found[0], side="right")) - 1, int(X.indices[found[0]])
    return place[::-1] if X.by_columns else place


@first_not_finite.register
def _(X: CsrWithTranspose) -> tuple[int, ...] | None:
    return first_not_finite(X.csr)


@first_not_finite.register
def _(X: Sequences) -> tuple[int, ...] | None:
    return first_not_finite(X.tokens)


@first_not_finite.register
def _(X: ForeignArray) -> tuple[int, ...] | None:
    xp = namespace(X.X)
    if bool(xp.all(xp.isfinite(X.X))):
        return None
    rows, columns = xp.nonzero(~xp.isfinite(X.X))
    return int(rows[0]), int(columns[0])


@first_not_finite.register
def _(X: GpuSparse) -> tuple[int, ...] | None:
    with on_stream_of(X.score_like):
        return None if X.kernels.is_finite() else first_not_finite(as_row_matrix(X))


@first_not_finite.register
def _(X: StreamedRows) -> tuple[int, ...] | None:
    return _index_of_not_finite(X.host)


def _index_of_not_finite(data: NDArray) -> tuple[int, ...] | None:
    """Return the index of a NaN or infinity in an array, or None."""
    if _all_finite(data if data.flags.c_contiguous else data.T):
        return None
    return tuple(np.argwhere(~np.isfinite(data))[0].tolist())


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
