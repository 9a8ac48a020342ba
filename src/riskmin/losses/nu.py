r"""The nu-trick as a loss: of the worst rows only, up to a given share of the weights.

.. math:: \min_{t \ge 0}\; \nu t + \sum_i c_i \max(0,\, l(z_i, y_i) - t)
          = \max_a \sum_i a_i\, l(z_i, y_i), \quad 0 \le a_i \le c_i,\; \sum_i a_i \le \nu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import namespace
from riskmin.losses.pieces import conjugate_of
from riskmin.types import Array, ChecksLabels, HasConjugate, HasDual, HasValues, Loss


def row_values(loss: Loss, z: Array, y: Array) -> Array:
    """The loss of each row: by `values` where the loss has it, else by its slopes and its conjugate.

    Where g is the slope at z, l(z) + l*(g) = g z, so all that is needed is a dual.
    """
    if isinstance(loss, HasValues):
        return loss.values(z, y)
    if not isinstance(loss, HasDual | HasConjugate):
        raise TypeError(
            f"{type(loss).__name__} tells no losses row by row: give it a method values(z, y), or a conjugate"
        )
    g = loss.value_grad(z, y, namespace(z).ones_like(z))[1]
    return g * z - conjugate_of(loss, g, y)


def tail(values: Array, c: Array, nu: float) -> tuple[Array, float]:
    """The weights of the worst rows, up to a sum of nu, and the value t from which on rows count.

    Rows that tie at t share what is left of nu, so that the order of the rows does not matter.
    """
    xp = namespace(values)
    order = xp.argsort(values, descending=True) if xp is not np else np.argsort(-values)
    k = int(xp.sum(xp.cumulative_sum(xp.take(c, order)) < nu))
    if k >= len(values):  # all weights together are no more than nu
        return c, 0.0
    t = xp.take(values, order)[k]
    above, at = xp.astype(values > t, c.dtype), xp.astype(values == t, c.dtype)
    share = (nu - float(xp.sum(c * above))) / float(xp.sum(c * at))
    return c * (above + min(max(share, 0.0), 1.0) * at), max(float(t), 0.0)


@dataclass(frozen=True)
class Nu:
    r"""A loss with an adaptive threshold, :math:`\min_{t \ge 0} \nu t + \sum_i c_i \max(0, l(z_i, y_i) - t)`.

    That is :math:`\nu` times the mean of the worst :math:`\nu`-share of the losses (their conditional value
    at risk), where the weights :math:`c_i` add up to one. It is no sum over rows, so it sees all scores at
    once. `Adaptive` wraps a risk, also one with an intercept.

    Parameters
    ----------
    loss : Loss
        A sum over rows that tells the loss of each: by a conjugate, or by a method ``values(z, y)``.
    nu : float
        Above 0, at most 1: the largest share of rows beyond the threshold; 1 is the loss itself.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute
    >>> z, y, c = np.array([1.0, 2.0, 3.0, 4.0]), np.zeros(4), np.full(4, 0.25)
    >>> value, dz = Nu(Absolute(), 0.5).value_grad(z, y, c)
    >>> float(value), dz.tolist()  # half of the mean of 3 and 4
    (1.75, [0.0, 0.0, 0.25, 0.25])
    >>> Nu(Absolute(), 0.5).threshold(z, y, c)  # any t from 2 to 3
    2.5
    """

    loss: Any
    nu: float = 0.5

    separable = False
    smooth = False

    def __post_init__(self) -> None:
        if not 0 < self.nu <= 1:
            raise ValueError(f"Nu needs 0 < nu <= 1, the share of rows beyond the threshold, not {self.nu!r}")
        if not getattr(self.loss, "separable", False):
            raise TypeError(f"Nu needs a loss that is a sum over rows, not {self.loss!r}")
        if hasattr(self.loss, "scorer"):
            raise TypeError(f"Nu needs a loss of one score a row, not {self.loss!r}: use the loss itself")
        row_values(self.loss, np.ones(1), np.ones(1))  # that it tells them

    @property
    def task(self) -> str:
        """That of the loss, if it says."""
        return str(self.loss.task)

    @property
    def formula(self) -> str:
        """In one line of plain text."""
        return f"min over t >= 0 of nu t + sum c max(0, {getattr(self.loss, 'formula', 'loss')} - t)"

    def check_labels(self, y: Array) -> None:
        """As the loss does."""
        if isinstance(self.loss, ChecksLabels):
            self.loss.check_labels(y)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The loss of the worst rows, and a subgradient in z."""
        a, _ = tail(row_values(self.loss, z, y), c, self.nu)
        value, dz = self.loss.value_grad(z, y, a)
        return value, dz

    def threshold(self, z: Array, y: Array, c: Array) -> float:
        """The best t; the middle, where the best are an interval."""
        values = row_values(self.loss, z, y)
        used = c > 0
        values, c = values[used], c[used]
        _, high = tail(values, c, (1 - 1e-12) * self.nu)
        _, low = tail(values, c, (1 + 1e-12) * self.nu)
        return 0.5 * (low + high)
