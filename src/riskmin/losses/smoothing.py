r"""Smoothed losses: a square of the multipliers, taken off inside of the maximum that a loss is.

.. math:: l(z) = \max_\beta\; \beta^\top A z - g(\beta), \qquad
          l_\mu(z) = \max_\beta\; \beta^\top A z - g(\beta) - \tfrac\mu2 |\beta|^2 \;\le\; l(z).

The gradient of :math:`l_\mu` is :math:`A^\top \beta` of the best :math:`\beta`, which is feasible for l too:
its tangent, lifted by :math:`\tfrac\mu2 |\beta|^2`, is a cut of the true loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from riskmin.arrays import namespace
from riskmin.losses.pieces import dual_of
from riskmin.types import Array, ChecksLabels, Dual, Smoothable, Unsuited


@dataclass(frozen=True)
class Smoothed:
    r"""A loss with :math:`\tfrac\mu2 |\beta|^2` taken off its multipliers: smooth, and nowhere above it.

    Parameters
    ----------
    loss : Loss
        One with a method ``soft(z, y, c, mu)``, such as `RocArea`, or with a quadratic ``dual``, such as
        `Hinge` and `Absolute`.
    mu : float
        Above 0.

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
        """As the loss is."""
        return bool(self.loss.separable)

    @property
    def invariant(self) -> bool:
        """As the loss is: else an intercept would be looked for where none is better than another."""
        return bool(getattr(self.loss, "invariant", False))

    @property
    def counted(self) -> bool:
        """As the loss is."""
        return bool(getattr(self.loss, "counted", False))

    @property
    def task(self) -> str:
        """That of the loss; it has none, if the loss has none."""
        return str(self.loss.task)

    @property
    def cutoff(self) -> Callable[[Array, Array, Array], float]:
        """That of the loss; it has none, if the loss has none."""
        return self.loss.cutoff  # type: ignore[no-any-return]

    @property
    def scorer(self) -> Callable[..., Any]:
        """That of the loss, for losses of many scores a row; it has none, if the loss has none."""
        return self.loss.scorer  # type: ignore[no-any-return]

    def check_labels(self, y: Array) -> None:
        """As the loss does."""
        if isinstance(self.loss, ChecksLabels):
            self.loss.check_labels(y)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The smoothed loss, and its gradient in z."""
        return soft(self.loss, z, y, c, self.mu)[:2]


@dataclass(frozen=True)
class Lifting(Smoothed):
    """A smoothed loss that stands for the loss itself: what is proved by its tangents is proved of that.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge
    >>> z, y, c = np.array([0.5, 2.0]), np.ones(2), np.full(2, 0.5)
    >>> value, dz, lift = Lifting(Hinge(), mu=1.0).tangent(z, y, c)
    >>> float(value), dz.tolist(), float(lift)  # the tangent, lifted, is a cut of the hinge
    (0.0625, [-0.25, 0.0], 0.0625)
    """

    def tangent(self, z: Array, y: Array, c: Array) -> tuple[Any, Array, Any]:
        """The smoothed loss, its gradient, and by how much the tangent may be lifted."""
        return soft(self.loss, z, y, c, self.mu)


def soft(
    loss: Any, z: Array, y: Array, c: Array, mu: float, centre: Array | None = None
) -> tuple[Any, Array, Any]:
    r"""The smoothed loss, its gradient in z, and its lift.

    With a centre, a gradient of before, it is the distance of the multipliers to those of the centre that is
    taken off: for losses with a multiplier a row.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute
    >>> value, dz, lift = soft(Absolute(), np.array([0.5]), np.zeros(1), np.ones(1), mu=2.0)
    >>> float(value), dz.tolist(), float(lift)
    (0.0625, [0.25], 0.0625)
    """
    if isinstance(loss, Smoothable):
        own: Any = loss.soft
        found: tuple[Any, Array, Any] = own(z, y, c, mu) if centre is None else own(z, y, c, mu, centre)
        return found
    dual = dual_of(loss, y)
    if dual is None:
        raise Unsuited(
            f"{type(loss).__name__} cannot be smoothed, as it has no method soft and no quadratic dual: "
            "use Bundle"
        )
    xp = namespace(z)
    t, start = pulls(dual, z, c, mu, centre)
    if dual.epsilon:
        t = xp.sign(t) * xp.maximum(xp.abs(t) - dual.epsilon, 0.0)
    u = xp.minimum(xp.maximum(t / (dual.square + mu), dual.lower), dual.upper)
    lift = 0.5 * mu * (c @ ((u - start) * (u - start)))
    conjugate = dual.shift * u + dual.epsilon * xp.abs(u) + 0.5 * dual.square * u * u
    return c @ (u * z - conjugate) - lift, c * u, lift


def pulls(dual: Dual, z: Array, c: Array, mu: float, centre: Array | None) -> tuple[Array, Array]:
    """What pulls at the multiplier of each row, and its place in the centre.

    Examples
    --------
    >>> import numpy as np
    >>> t, start = pulls(Dual(0.0, 1.0, 0.5), np.array([2.0]), np.array([0.5]), 1.0, np.array([0.25]))
    >>> t.tolist(), start.tolist()
    ([2.0], [0.5])
    """
    xp = namespace(z)
    start = 0.0 * z if centre is None else centre / xp.where(c > 0, c, 1.0 + 0.0 * c)
    return z - dual.shift + mu * start, start


def can_be_smoothed(loss: Any, y: Array) -> bool:
    """Whether `soft` works for the loss, with labels such as y.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, RocArea
    >>> can_be_smoothed(Hinge(), np.ones(1)), can_be_smoothed(RocArea(), np.ones(1))
    (True, True)
    """
    return isinstance(loss, Smoothable) or dual_of(loss, y) is not None


def takes_centre(loss: Any) -> bool:
    """Whether a loss has a multiplier a row, so that a gradient of before can be the centre.

    Those with a quadratic dual have; any other says ``centred = True``.

    Examples
    --------
    >>> from riskmin import Hinge, Prbep, RocArea
    >>> [takes_centre(loss) for loss in (Hinge(), Prbep(), RocArea())]
    [True, True, False]
    """
    return not isinstance(loss, Smoothable) or bool(getattr(loss, "centred", False))
