"""Check that a matrix holds no NaN or infinity, and find the first one for the error message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from riskmin.arrays.memory_map import release_between
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
    bad = X.first_not_finite()
    if bad is not None:
        raise NotFiniteError(*bad)


def first_not_finite(data: NDArray) -> tuple[Any, ...] | None:
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
