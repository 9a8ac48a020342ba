"""The protocols: the interfaces of matrices, linear maps and risks.

Losses, regularizers, executors and solvers have abstract bases: `riskmin.losses.base.Loss`,
`riskmin.regularizers.base.Regularizer`, `riskmin.executors.Executor` and `riskmin.core.Solver`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from riskmin.core.records import Array, Cut


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


# ---------------------------------------------------------------- risks
@runtime_checkable
class Oracle(Protocol):
    """A risk R(w), as every solver can evaluate it."""

    @property
    def dim(self) -> int: ...

    def __call__(self, w: Array) -> tuple[float, Array]:
        """Return R(w) and a subgradient."""
        ...


@runtime_checkable
class InexactOracle(Protocol):
    """A risk evaluated only approximately (an inner minimization).

    It returns an upper bound of R(w) and a cut that is valid despite the inner error.
    """

    def evaluate(self, w: Array) -> tuple[float, Array, float]:
        """Return an upper bound of R(w), a subgradient, and by how much the cut at w is below that bound."""
        ...


@runtime_checkable
class HasMinorantOffset(Protocol):
    """A surrogate risk (a smoothed one) that is a lower bound of another risk.

    Its tangents plus an offset are cuts of that other risk.
    """

    def minorant_offset(self, w: Array) -> float:
        """Return by how much the cut at w is above the tangent at w."""
        ...


@runtime_checkable
class HasIntercepts(Protocol):
    """A risk whose last entries of w are intercepts, which are not penalized."""

    @property
    def n_intercepts(self) -> int: ...

    def project_out_intercepts(self, cut: Cut) -> Cut:
        """Return a valid cut made from this one whose slope in the intercepts is zero.

        A cut with a slope in unpenalized entries gives the lower bound minus infinity.
        """
        ...


@runtime_checkable
class Cursor(Protocol):
    """A point w with cached scores, so that a line-search step costs O(n) and no pass over X."""

    inexactness: float
    """By how much the cut of the last `value_grad` is below its value (zero if exact)."""

    @property
    def w(self) -> Array: ...

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        """Return R(w + t d) and a subgradient: one adjoint pass (X' dz)."""
        ...

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        """Set the search direction d: one forward pass (X d).

        Later line evaluations may overestimate by up to `slack`.
        """
        ...

    def value_slope(self, t: float) -> tuple[float, float]:
        """Return R(w + t d) and its derivative in t."""
        ...

    def advance(self, t: float) -> None:
        """Set w to w + t d."""
        ...


@runtime_checkable
class HasCursor(Protocol):
    """A risk that offers cursors: points with cached scores."""

    def cursor(self, w: Array) -> Cursor: ...
