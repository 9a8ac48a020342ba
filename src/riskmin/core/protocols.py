"""The protocols: the interfaces of matrices and linear maps.

Losses, regularizers, executors, risks and solvers have abstract bases: `losses.base.Loss`,
`regularizers.base.Regularizer`, `executors.Executor`, `problem.oracle.Oracle` and `core.Solver`.
"""

from __future__ import annotations

from typing import Protocol

from riskmin.core.records import Array


# ---------------------------------------------------------------- data and linear maps
class Matrix(Protocol):
    """The design matrix X of a shard in any storage format, as a linear operator on ranges of rows."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def block_rows(self) -> int:
        """Rows per block, chosen such that a block is still in cache for the adjoint product."""
        ...

    def scores(self, w: Array, start: int, stop: int) -> Array:
        """Return X[start:stop] @ w."""
        ...

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add X[start:stop].T @ dz to out, in place."""
        ...


class LinearMap(Protocol):
    """The linear map from the weights w to the scores, and its adjoint."""

    @property
    def columns(self) -> int:
        """The number of scores per row; scores have shape (n,) if it is one, else (n, columns)."""
        ...

    def dim(self, n_features: int) -> int: ...
    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array: ...
    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None: ...
