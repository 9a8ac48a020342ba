"""Dense arrays of other libraries than NumPy, on any device; products are in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from riskmin.arrays.dense import even_ends
from riskmin.arrays.namespace import as_array_like, as_indices_like, namespace
from riskmin.core import Array, Matrix, NDArray
from riskmin.core.deadline import check


@dataclass(frozen=True)
class ForeignArray(Matrix):
    """A 2-d array of another library (torch, CuPy), on any device."""

    X: Array

    one_block = True
    COPIED_ENTRIES: ClassVar[int] = 2**22
    """Entries of a block of rows that is converted to double precision at a time."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[0], self.X.shape[1]

    @cached_property
    def score_like(self) -> Array:
        """An empty array of float64 beside X: scores and gradients are in double precision."""
        xp = namespace(self.X)
        return xp.astype(self.X[:0, 0], xp.float64)

    @property
    def block_rows(self) -> int:
        return max(int(self.X.shape[0]), 1)

    def rows(self, start: int, stop: int) -> ForeignArray:
        return ForeignArray(self.X[start:stop])

    def shard_ends(self, n_shards: int) -> NDArray:
        return even_ends(self.shape[0], n_shards)

    def absolute(self, start: int, stop: int) -> ForeignArray:
        return ForeignArray(abs(self.X[start:stop]))

    def take_double(self, index: NDArray) -> Array:
        """Some rows in double precision, on the device of X."""
        xp = namespace(self.X)
        return xp.astype(self.take_labels(self.X, index), xp.float64)

    def take_labels(self, a: Array, index: NDArray) -> Array:
        """Some entries of an array beside X, such as its labels."""
        return namespace(a).take(a, as_indices_like(index, a), axis=0)

    def double_blocks(self, start: int, stop: int) -> Iterator[tuple[int, int, Array]]:
        """Yield ranges of rows and their entries in float64: all rows at once if that is their dtype."""
        xp = namespace(self.X)
        if self.X.dtype == xp.float64:
            yield start, stop, self.X[start:stop]
            return
        # the copies of a block stay in the second-level cache of a GPU, or in that of a CPU
        step = max(self.COPIED_ENTRIES // max(self.shape[1], 1), 1)
        for i in range(start, max(stop, start + 1), step):  # one block of none, if there are no rows
            check()
            j = min(i + step, stop)
            yield i, j, xp.astype(self.X[i:j], xp.float64)

    def scores(self, w: Array, start: int, stop: int) -> Array:
        check()
        w = as_array_like(w, self.score_like)
        parts = [block @ w for _, _, block in self.double_blocks(start, stop)]
        return parts[0] if len(parts) == 1 else namespace(self.X).concat(parts)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        check()
        xp, total = namespace(self.X), None
        dz = as_array_like(dz, self.score_like)
        for i, j, block in self.double_blocks(start, stop):
            part = xp.matrix_transpose(block) @ dz[i - start : j - start]
            total = part if total is None else total + part
        # the product stays on the device of X; only the gradient is copied to that of out
        out += as_array_like(total, out)
