"""The protocols: the interfaces of losses, regularizers and linear maps.

Every implementation provides one of the base protocols (`Loss`, `Regularizer`, `LinearMap`). The others are
optional capabilities, detected by ``isinstance``: an object has one if it has its methods. Risks derive from
`problem.oracle.Oracle`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from riskmin.core.records import Array, Cut, Hessian, IntervalConjugate


# ---------------------------------------------------------------- losses
@runtime_checkable
class Loss(Protocol):
    """A convex, nonnegative function of the scores z."""

    @property
    def separable(self) -> bool:
        """Whether the loss is a sum over rows, so that blocks of rows can be evaluated independently."""
        ...

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i l(z_i, y_i) and a subgradient in z, the weights c_i included."""
        ...


@runtime_checkable
class ChecksLabels(Protocol):
    """A loss that validates its labels."""

    def check_labels(self, y: Array) -> None:
        """Raise a ValueError that names the cause and the remedy, if y is not valid for the loss."""
        ...


@runtime_checkable
class HasRowValues(Protocol):
    """A loss that can return its value per row, as losses that wrap it (`Nu`) need."""

    def values(self, z: Array, y: Array) -> Array:
        """Return the array of l(z_i, y_i), one value per row."""
        ...


@runtime_checkable
class HasIntervalConjugate(Protocol):
    """A loss whose conjugate is quadratic on an interval, for each row."""

    def interval_conjugate(self, y: Array) -> IntervalConjugate | None:
        """Return the conjugates of all rows, lower <= 0 <= upper; None if the parameters give other ones."""
        ...


@runtime_checkable
class HasConjugate(Protocol):
    """A loss with a conjugate of any other form, and its derivative."""

    def conjugate(self, u: Array, y: Array) -> Array:
        """Return l*(u_i, y_i) = sup_z u_i z - l(z, y_i) per row; infinite outside the domain."""
        ...

    def conjugate_grad(self, u: Array, y: Array) -> Array:
        """Return the z that attains the supremum, per row; infinite at the ends where none does."""
        ...

    def conjugate_domain(self, y: Array) -> tuple[Array, Array]:
        """Return the lower and upper end of the domain of u per row; the domain contains 0."""
        ...


@runtime_checkable
class HasCurvature(Protocol):
    """A smooth loss with second derivatives."""

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """Return c_i l''(z_i, y_i) per row; the one-sided derivative where l'' jumps."""
        ...


@runtime_checkable
class Smoothable(Protocol):
    """A loss that is a maximum over multipliers and offers its Nesterov smoothing.

    The smoothed loss subtracts a proximity term, (mu / 2) times the squared norm of the multipliers (or an
    entropy), inside the maximum; it is a lower bound of the loss.
    """

    def smoothed_value_grad(self, z: Array, y: Array, c: Array, mu: float) -> tuple[Any, Array, Any]:
        """Return the smoothed loss, its gradient in z, and the minorant offset.

        The minorant offset is the value of the proximity term at the maximizer. The tangent plus this offset
        is a cut of the unsmoothed loss. A loss with one multiplier per row may set ``accepts_center = True``
        and take one more argument, an earlier gradient: the proximity term is then the squared distance to
        the multipliers of that gradient.
        """
        ...


@runtime_checkable
class HasHessian(Protocol):
    """A loss that offers the Hessian of its smoothed form, for Newton's method."""

    def hessian(self, z: Array, y: Array, c: Array, mu: float) -> Hessian:
        """Return the Hessian of the smoothed loss in z, one-sided where it jumps.

        The optional center is that of `Smoothable.smoothed_value_grad`.
        """
        ...


@runtime_checkable
class HasOffsetTangent(Protocol):
    """A surrogate loss whose tangents, each plus an offset, are minorants of another loss."""

    def offset_tangent(self, z: Array, y: Array, c: Array) -> tuple[Any, Array, Any]:
        """Return value and gradient of the surrogate, and the minorant offset of this tangent."""
        ...


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


# ---------------------------------------------------------------- regularizers
class Regularizer(Protocol):
    """A convex function Omega(w) with its conjugate. The regularization strength lam is not part of it."""

    def value(self, w: Array) -> float: ...
    def prox(self, v: Array, step: float) -> Array:
        """Return argmin_w step * Omega(w) + |w - v|^2 / 2; for step 0, the projection onto the domain."""
        ...

    def conjugate(self, u: Array) -> float: ...
    def conjugate_grad(self, u: Array) -> Array:
        """Return argmax_w u @ w - Omega(w): the transfer function of paper E."""
        ...

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the s in [0, 1] for which the cut (s a, s b) gives the best lower bound of min J.

        The scaled cut is valid because R >= 0.
        """
        ...

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """Return t -> (Omega(w + t d), its derivative in t), at O(1) per call where possible."""
        ...

    def reach(self, w: Array, d: Array) -> float:
        """Return the largest t for which w + t d is in the domain; usually infinite."""
        ...


@runtime_checkable
class Smooth(Protocol):
    """A differentiable regularizer."""

    def grad(self, w: Array) -> Array: ...


@runtime_checkable
class HasInverseMetric(Protocol):
    """A quadratic regularizer w' K w / 2.

    The master problem of a bundle method is then a quadratic program in the inner products of the cuts.
    """

    def inverse_metric_product(self, A: Array, a: Array) -> Array:
        """Return A K^-1 a: the inner products of a and the rows of A in the inverse metric."""
        ...


@runtime_checkable
class HasConjugateHessian(Protocol):
    """A regularizer whose conjugate has a Hessian: Newton's method solves the bundle's master problem."""

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A', where H is the Hessian of the conjugate (derivative of `conjugate_grad`) at u."""
        ...
