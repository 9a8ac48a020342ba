r"""Convex conjugates of the losses of single rows, and the elementary functions that they share.

.. math:: l^*(u, y_i) = \sup_z u z - l(z, y_i)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from riskmin.arrays.namespace import largest_exponent, namespace
from riskmin.core import Array, Hessian


class Conjugate(ABC):
    """The conjugates of all rows, each on an interval that contains zero."""

    lower: Array
    upper: Array
    kink_at_zero = False
    """Whether the conjugate has a kink at zero, as a term epsilon |u| has."""

    @abstractmethod
    def value(self, u: Array) -> Array:
        """Return l*(u_i, y_i) per row; infinite outside the interval."""

    @abstractmethod
    def grad(self, u: Array) -> Array:
        """Return the z that attains the supremum, per row; infinite at the ends where none does."""

    def cancelling(self, u: Array) -> Array:
        """Return a bound on the terms of l*(u_i) that others may cancel, per row."""
        return abs(u)


@dataclass(frozen=True)
class ClosedFormConjugate(Conjugate):
    """Conjugates given by formulas for u in the interval."""

    lower: Array
    upper: Array
    formula: Callable[[Array], Array]
    derivative: Callable[[Array], Array]
    cancelling: Callable[[Array], Array] = abs  # type: ignore[assignment]
    kink_at_zero: bool = False

    def value(self, u: Array) -> Array:
        return namespace(u).where((u >= self.lower) & (u <= self.upper), self.formula(u), math.inf)

    def grad(self, u: Array) -> Array:
        return self.derivative(u)


@dataclass(frozen=True)
class IntervalConjugate(Conjugate):
    r"""Conjugates of the rows that are quadratic on an interval,

    .. math:: l^*(u, y_i) = shift_i u + \epsilon |u| + \tfrac q2 u^2, \qquad lower_i \le u \le upper_i,

    with q the field `square`. Most losses have conjugates of this form, so that the same exact step of dual
    coordinate ascent, the same smoothing and the same Hessian apply to all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Squared
    >>> Hinge().conjugate(np.array([1.0, -1.0]))
    IntervalConjugate(lower=array([-1.,  0.]), upper=array([0., 1.]), shift=array([ 1., -1.]), epsilon=0.0,
                      square=0.0)
    >>> Squared().conjugate(np.array([3.0])).value(np.array([2.0]))
    array([8.])
    """

    lower: Array
    upper: Array
    shift: Array
    epsilon: float = 0.0
    square: float = 0.0

    def value(self, u: Array) -> Array:
        inside = self.inside(u)
        return namespace(u).where((u >= self.lower) & (u <= self.upper), inside, math.inf)

    @property
    def kink_at_zero(self) -> bool:  # type: ignore[override]
        return self.epsilon > 0

    def cancelling(self, u: Array) -> Array:
        return abs(self.shift * u)

    def inside(self, u: Array) -> Array:
        """Return l*(u) of multipliers between their bounds."""
        return self.shift * u + self.epsilon * namespace(u).abs(u) + 0.5 * self.square * u * u

    def grad(self, u: Array) -> Array:
        return self.shift + self.epsilon * namespace(u).sign(u) + self.square * u

    def smoothed(self, z: Array, c: Array, mu: float, center: Array | None = None) -> tuple[Any, Array, Any]:
        r"""Return the smoothed loss, its gradient in z, and the minorant offset; see `Loss.smoothed`.

        The multiplier of row i is its dual variable,
        :math:`u_i = \arg\max_u\; u z_i - l^*(u, y_i) - \tfrac\mu2 (u - u_{0i})^2`.
        """
        t, start = self._argument(z, c, mu, center)
        u, _ = self.proximal(t, mu)
        # the subtracted term, c mu (u - u_0)^2 / 2: adding it back makes the tangent a cut of the loss
        offset = 0.5 * mu * (c @ ((u - start) * (u - start)))
        # value u z - l*(u) - offset, gradient c u
        return c @ (u * z - self.inside(u)) - offset, c * u, offset

    def hessian(self, z: Array, c: Array, mu: float, center: Array | None = None) -> Hessian | None:
        r"""Return the Hessian of the smoothed loss, diagonal; None without curvature, q + mu = 0.

        The second derivative of row i is :math:`c_i / (q + \mu)` where the maximizer u is inside the interval
        and nonzero (if epsilon > 0), else 0.
        """
        if not self.square + mu:
            return None
        return Hessian(c * self.proximal(self._argument(z, c, mu, center)[0], mu)[1])

    def proximal(self, t: Array, mu: Any) -> tuple[Array, Array]:
        r"""Return :math:`\arg\max_u\; u\,(t + shift) - l^*(u) - \tfrac\mu2 u^2`, and its derivative in t."""
        xp, curvature = namespace(t), self.square + mu
        # shrink by epsilon, divide by the curvature q + mu, clip to the interval
        if self.epsilon:
            t = xp.sign(t) * xp.maximum(xp.abs(t) - self.epsilon, 0.0)
        u = t / curvature
        inside = (u > self.lower) & (u < self.upper)
        if self.epsilon:
            inside = inside & (t != 0.0)
        return xp.minimum(xp.maximum(u, self.lower), self.upper), xp.astype(inside, t.dtype) / curvature

    def _argument(self, z: Array, c: Array, mu: float, center: Array | None) -> tuple[Array, Array]:
        """Return t = z - shift + mu u_0 and the dual variables u_0 of the center (zero without a center).

        t is the linear coefficient of u in the maximum that defines the smoothed loss.
        """
        xp = namespace(z)
        # the gradient is c u: the dual variables of the center are its gradient over c
        start = 0.0 * z if center is None else center / xp.where(c > 0, c, 1.0 + 0.0 * c)
        # u z - shift u - mu (u - u_0)^2 / 2 = u t - mu u^2 / 2 + constant
        return z - self.shift + mu * start, start


# ---------------------------------------------------------------- elementary functions
def exp_with_derivative(t: Array) -> tuple[Array, Array]:
    """Return exp(t) and its derivative, continued by the tangent where exp(t) is close to overflow.

    The continuation is convex and at most exp(t), so that its cuts are cuts of the exact loss.
    """
    xp = namespace(t)
    # for t > T: e^T (1 + t - T), the tangent of exp at T
    below = xp.minimum(t, largest_exponent(t))
    e = xp.exp(below)
    return e * (1 + (t - below)), e


def power_derivative(m: Array, p: float) -> Array:
    """Return the derivative m^(p-1) of m^p / p for m >= 0; 0 at m = 0, also for p = 1."""
    xp = namespace(m)
    return xp.astype(m > 0, m.dtype) * m ** (p - 1)


def power_second_derivative(m: Array, p: float) -> Array:
    """Return the second derivative (p-1) m^(p-2) of m^p / p for m > 0, and 0 for m <= 0."""
    xp = namespace(m)
    positive = m > 0
    # the inner where keeps 0^(p-2) from dividing by zero in entries that are not used
    return xp.where(positive, (p - 1) * xp.where(positive, m, 1.0 + 0.0 * m) ** (p - 2), 0.0 * m)


def xlogx(a: Array) -> Array:
    """Return a ln a, and zero at a = 0."""
    xp = namespace(a)
    return xp.where(a > 0, a * xp.log(xp.where(a > 0, a, 1.0 + 0.0 * a)), 0.0 * a)


def negative_entropy(a: Array) -> Array:
    """Return a ln a + (1 - a) ln(1 - a) for 0 <= a <= 1.

    It uses log1p(-a): 1 - a loses the last digits of a small a, and a bound computed from it may be invalid.
    """
    xp = namespace(a)
    # a factor of 0 stands before the logarithms of numbers that are moved away from 0 and from 1
    eps, tiny = float(xp.finfo(a.dtype).eps), float(xp.finfo(a.dtype).smallest_normal)
    return a * xp.log(xp.maximum(a, tiny)) + (1 - a) * xp.log1p(-xp.minimum(a, 1 - eps))


def log_or_minus_inf(a: Array) -> Array:
    """Return ln a, and minus infinity for a <= 0."""
    xp = namespace(a)
    return xp.where(a > 0, xp.log(xp.where(a > 0, a, 1.0 + 0.0 * a)), -math.inf)


def power_conjugate(a: Array, p: float) -> Array:
    """Return the conjugate a^q / q of m^p / p over m >= 0, for a >= 0 and 1/p + 1/q = 1.

    For p = 1 it is 0, on [0, 1].
    """
    # q = p / (p - 1)
    return 0.0 * a if p == 1 else a ** (p / (p - 1)) * ((p - 1) / p)


def power_conjugate_derivative(a: Array, p: float) -> Array:
    """Return the derivative a^(q - 1) of `power_conjugate`."""
    # q - 1 = 1 / (p - 1)
    return 0.0 * a if p == 1 else a ** (1 / (p - 1))


def margin_bounds(y: Array, largest: float = 1.0) -> tuple[Array, Array]:
    """Return the domain of u for a loss of the margin: -largest <= y u <= 0, as (lower, upper)."""
    xp, positive, zero = namespace(y), y > 0, y - y
    # l(z, y) = f(y z) with f nonincreasing: the derivative u has the sign of -y
    return xp.where(positive, zero - largest, zero), xp.where(positive, zero, zero + largest)


def symmetric_bounds(y: Array, largest: float) -> tuple[Array, Array]:
    """Return the domain -largest <= u <= largest, as (lower, upper)."""
    zero = y - y
    return zero - largest, zero + largest
