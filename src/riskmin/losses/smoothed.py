r"""Nesterov smoothing: losses that are maxima, minus a squared norm of the multipliers in the maximum.

.. math:: l(z) = \max_\beta\; \beta^\top A z - g(\beta), \qquad
          l_\mu(z) = \max_\beta\; \beta^\top A z - g(\beta) - \tfrac\mu2 |\beta|^2 \;\le\; l(z).

The gradient of :math:`l_\mu` is :math:`A^\top \beta` for the maximizer :math:`\beta`, which is feasible for l
too: the tangent of :math:`l_\mu` plus the offset :math:`\tfrac\mu2 |\beta|^2` is a cut of the loss l.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, ChecksLabels, IntervalConjugate, Smoothable, UnsupportedProblem
from riskmin.losses.conjugate import interval_conjugate_of


@dataclass(frozen=True)
class Smoothed:
    r"""A loss minus :math:`\tfrac\mu2 |\beta|^2` of its multipliers: smooth, and a lower bound of the loss.

    Parameters
    ----------
    loss : Loss
        One with a method ``smoothed_value_grad(z, y, c, mu)``, such as `RocArea`, or with an
        ``interval_conjugate``, such as `Hinge` and `Absolute`.
    mu : float
        The smoothing parameter, above 0.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge
    >>> z, y, c = np.array([0.5, 2.0]), np.ones(2), np.full(2, 0.5)
    >>> value, dz = Smoothed(Hinge(), mu=1.0).value_grad(z, y, c)
    >>> float(value), dz.tolist()
    (0.0625, [-0.25, 0.0])
    """

    loss: Any
    mu: float

    smooth = True

    def __post_init__(self) -> None:
        if not self.mu > 0:
            raise ValueError(f"Smoothed needs mu > 0, not {self.mu!r}")

    @property
    def separable(self) -> bool:
        """Whether the wrapped loss is a sum over rows."""
        return bool(self.loss.separable)

    @property
    def shift_invariant(self) -> bool:
        """Whether the wrapped loss is invariant to an intercept, so that none is fitted."""
        return bool(getattr(self.loss, "shift_invariant", False))

    @property
    def fixed_positive_count(self) -> bool:
        """Whether the wrapped loss fixes the number of predicted positives: it has no best intercept."""
        return bool(getattr(self.loss, "fixed_positive_count", False))

    @property
    def task(self) -> str:
        """The task of the wrapped loss; an AttributeError if it has none."""
        return str(self.loss.task)

    @property
    def cutoff(self) -> Callable[[Array, Array, Array], float]:
        """The cutoff of the wrapped loss; an AttributeError if it has none."""
        return self.loss.cutoff  # type: ignore[no-any-return]

    @property
    def linear_map(self) -> Callable[..., Any]:
        """The linear map of a wrapped multi-output loss; an AttributeError if it has none."""
        return self.loss.linear_map  # type: ignore[no-any-return]

    def check_labels(self, y: Array) -> None:
        """Check the labels by the wrapped loss."""
        if isinstance(self.loss, ChecksLabels):
            self.loss.check_labels(y)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the smoothed loss and its gradient in z."""
        # without the offset: the tangent itself is a cut of the smoothed loss
        return smoothed_value_grad(self.loss, z, y, c, self.mu)[:2]


@dataclass(frozen=True)
class OffsetSmoothed(Smoothed):
    """A smoothed loss whose offset tangents are cuts of the unsmoothed loss.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge
    >>> z, y, c = np.array([0.5, 2.0]), np.ones(2), np.full(2, 0.5)
    >>> value, dz, offset = OffsetSmoothed(Hinge(), mu=1.0).offset_tangent(z, y, c)
    >>> float(value), dz.tolist(), float(offset)  # the tangent plus the offset is a cut of the hinge loss
    (0.0625, [-0.25, 0.0], 0.0625)
    """

    def offset_tangent(self, z: Array, y: Array, c: Array) -> tuple[Any, Array, Any]:
        """Return the smoothed loss, its gradient, and the offset that makes the tangent a cut of the loss."""
        return smoothed_value_grad(self.loss, z, y, c, self.mu)


def smoothed_value_grad(
    loss: Any, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
) -> tuple[Any, Array, Any]:
    r"""Return the smoothed loss, its gradient in z, and the minorant offset.

    With a center (an earlier gradient), the squared distance of the multipliers to those of the center is
    subtracted; this is for losses with one multiplier per row. For a loss with an `IntervalConjugate`, the
    multiplier of row i is its dual variable,

    .. math:: u_i = \arg\max_u\; u z_i - l^*(u, y_i) - \tfrac\mu2 (u - u_{0i})^2.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute
    >>> value, dz, offset = smoothed_value_grad(Absolute(), np.array([0.5]), np.zeros(1), np.ones(1), mu=2.0)
    >>> float(value), dz.tolist(), float(offset)
    (0.0625, [0.25], 0.0625)
    """
    # losses with another structure of multipliers have a method for it
    if isinstance(loss, Smoothable):
        method: Any = loss.smoothed_value_grad
        result: tuple[Any, Array, Any] = (
            method(z, y, c, mu) if center is None else method(z, y, c, mu, center)
        )
        return result
    dual = interval_conjugate_of(loss, y)
    if dual is None:
        raise UnsupportedProblem(
            f"{type(loss).__name__} cannot be smoothed, as it has neither a method smoothed_value_grad nor "
            "an interval_conjugate: use Bundle"
        )
    xp = namespace(z)
    t, start = dual_argument(dual, z, c, mu, center)
    # shrink by epsilon, divide by the curvature q + mu, clip to the interval
    if dual.epsilon:
        t = xp.sign(t) * xp.maximum(xp.abs(t) - dual.epsilon, 0.0)
    u = xp.minimum(xp.maximum(t / (dual.square + mu), dual.lower), dual.upper)
    # the subtracted term, c mu (u - u_0)^2 / 2: adding it back makes the tangent a cut of the loss
    offset = 0.5 * mu * (c @ ((u - start) * (u - start)))
    # value u z - l*(u) - offset, gradient c u
    conjugate = dual.shift * u + dual.epsilon * xp.abs(u) + 0.5 * dual.square * u * u
    return c @ (u * z - conjugate) - offset, c * u, offset


def dual_argument(
    dual: IntervalConjugate, z: Array, c: Array, mu: float, center: Array | None
) -> tuple[Array, Array]:
    """Return t = z - shift + mu u_0 and the dual variables u_0 of the center (zero without a center).

    t is the linear coefficient of u in the maximum that defines the smoothed loss.

    Examples
    --------
    >>> import numpy as np
    >>> z, c, center = np.array([2.0]), np.array([0.5]), np.array([0.25])
    >>> t, start = dual_argument(IntervalConjugate(0.0, 1.0, 0.5), z, c, 1.0, center)
    >>> t.tolist(), start.tolist()
    ([2.0], [0.5])
    """
    xp = namespace(z)
    # the gradient is c u: the dual variables of the center are its gradient over c
    start = 0.0 * z if center is None else center / xp.where(c > 0, c, 1.0 + 0.0 * c)
    # u z - shift u - mu (u - u_0)^2 / 2 = u t - mu u^2 / 2 + constant
    return z - dual.shift + mu * start, start


def can_be_smoothed(loss: Any, y: Array) -> bool:
    """Whether `smoothed_value_grad` supports the loss, with labels y.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, RocArea
    >>> can_be_smoothed(Hinge(), np.ones(1)), can_be_smoothed(RocArea(), np.ones(1))
    (True, True)
    """
    return isinstance(loss, Smoothable) or interval_conjugate_of(loss, y) is not None


def supports_center(loss: Any) -> bool:
    """Whether a loss has one multiplier per row, so that an earlier gradient can be the center.

    Losses with an interval conjugate have one; any other loss declares it by ``accepts_center = True``.

    Examples
    --------
    >>> from riskmin import Hinge, Prbep, RocArea
    >>> [supports_center(loss) for loss in (Hinge(), Prbep(), RocArea())]
    [True, True, False]
    """
    return not isinstance(loss, Smoothable) or bool(getattr(loss, "accepts_center", False))
