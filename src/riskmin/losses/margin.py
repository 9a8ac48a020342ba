r"""Losses of the margin :math:`y z`, for labels y of -1 and +1 (Table 1 of Teo et al., KDD 2007).

Each computes :math:`\sum_i c_i\, l(z_i, y_i)` and its subgradient in z in a handful of array operations
that serve NumPy, torch and CuPy alike. They run on blocks of rows, inside the innermost loop of every
solver. z, y and c have one shape, (n,), and one dtype, which is also that of the subgradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from riskmin.arrays import namespace
from riskmin.losses.labels import check_nothing, check_signs
from riskmin.losses.pieces import (
    against,
    curvature_of_power,
    exp_and_slope,
    log,
    minus_entropy,
    outside,
    power_conjugate,
    power_conjugate_slope,
    slope_of_power,
    times_log,
)
from riskmin.types import Array, Dual


@dataclass(frozen=True)
class Hinge:
    r"""The soft margin of support vector machines, :math:`l(z, y) = \max(0, \rho - y z)`.

    Parameters
    ----------
    margin : float
        :math:`\rho \ge 0`; 0 is the perceptron's loss.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.array([0.25, 3.0]), np.array([1.0, 1.0]), np.array([0.5, 0.5])
    >>> value, dz = Hinge().value_grad(z, y, c)
    >>> float(value), dz.tolist()
    (0.375, [-0.5, -0.0])
    """

    margin: float = 1.0

    separable = True
    smooth = False
    task = "classification"
    formula = "max(0, margin - y z)"
    check_labels = check_signs

    def __post_init__(self) -> None:
        _check_margin(self, self.margin)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i max(0, margin - y_i z_i), and a subgradient in z."""
        m = self.margin - y * z
        g = c * namespace(z).astype(m > 0, z.dtype)
        return g @ m, -y * g

    def dual(self, y: Array) -> Dual:
        """l*(u, y) = margin y u for -1 <= y u <= 0."""
        return Dual(*against(y), self.margin * y)


@dataclass(frozen=True)
class SquaredHinge:
    r"""The squared soft margin, :math:`l(z, y) = \tfrac12 \max(0, \rho - y z)^2`.

    Parameters
    ----------
    margin : float
        :math:`\rho \ge 0`.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = SquaredHinge().value_grad(np.array([-1.0]), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (2.0, [-2.0])
    """

    margin: float = 1.0

    separable = True
    smooth = True
    task = "classification"
    formula = "max(0, margin - y z)^2 / 2"
    check_labels = check_signs

    def __post_init__(self) -> None:
        _check_margin(self, self.margin)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i max(0, margin - y_i z_i)^2 / 2, and its gradient in z."""
        m = namespace(z).maximum(self.margin - y * z, 0.0)
        g = c * m
        return 0.5 * (g @ m), -y * g

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i where the margin is not met."""
        return c * namespace(z).astype(self.margin - y * z > 0, z.dtype)

    def dual(self, y: Array) -> Dual:
        """l*(u, y) = margin y u + u^2 / 2 for y u <= 0."""
        return Dual(*against(y, math.inf), self.margin * y, square=1.0)


@dataclass(frozen=True)
class PowerHinge:
    r"""A power of the soft margin, :math:`l(z, y) = \tfrac1p \max(0, \rho - y z)^p`.

    Parameters
    ----------
    p : float
        The power, at least 1: 1 is `Hinge`, 2 is `SquaredHinge`.
    margin : float
        :math:`\rho \ge 0`.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = PowerHinge(p=3).value_grad(np.array([-1.0]), np.array([1.0]), np.ones(1))
    >>> round(float(value), 4), dz.tolist()
    (2.6667, [-4.0])
    """

    p: float = 1.5
    margin: float = 1.0

    separable = True
    task = "classification"
    formula = "max(0, margin - y z)^p / p"
    check_labels = check_signs

    def __post_init__(self) -> None:
        if not 1 <= self.p < math.inf:
            raise ValueError(f"PowerHinge needs p >= 1 to be convex, got {self.p}")
        _check_margin(self, self.margin)

    @property
    def smooth(self) -> bool:
        """Whether the power is above 1."""
        return self.p > 1

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i max(0, margin - y_i z_i)^p / p, and a subgradient in z."""
        m = namespace(z).maximum(self.margin - y * z, 0.0)
        g = c * slope_of_power(m, self.p)
        return (g @ m) / self.p, -y * g

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i (p - 1) m^(p - 2) for the lack m of the margin; 0 where it is met."""
        return c * curvature_of_power(self.margin - y * z, self.p)

    def dual(self, y: Array) -> Dual | None:
        """As `Hinge` and `SquaredHinge` for p = 1 and 2."""
        if self.p not in (1, 2):
            return None
        return Dual(*self.conjugate_domain(y), self.margin * y, square=self.p - 1.0)

    def conjugate(self, u: Array, y: Array) -> Array:
        """|u|^q / q + margin y u for y u <= 0, where 1/p + 1/q = 1."""
        return outside(u, self.conjugate_domain(y), power_conjugate(abs(u), self.p) + self.margin * y * u)

    def conjugate_grad(self, u: Array, y: Array) -> Array:
        """The score whose slope is u."""
        return y * (self.margin - power_conjugate_slope(abs(u), self.p))

    def conjugate_domain(self, y: Array) -> tuple[Array, Array]:
        """Slopes against the label, of size 1 at most for p = 1."""
        return against(y, 1.0 if self.p == 1 else math.inf)


@dataclass(frozen=True)
class SmoothedHinge:
    r"""The soft margin smoothed in its dual,

    .. math:: l(z, y) = \max_{0 \le a \le 1} a (1 - y z) - \tfrac\mu2 a^2.

    It lies between `Hinge` less :math:`\mu / 2` and `Hinge`.

    Parameters
    ----------
    mu : float
        The width of the quadratic part, above 0.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = SmoothedHinge(mu=0.5).value_grad(np.array([0.75]), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (0.0625, [-0.5])
    """

    mu: float = 0.5

    separable = True
    smooth = True
    task = "classification"
    formula = "max over 0 <= a <= 1 of a (1 - y z) - mu a^2 / 2"
    check_labels = check_signs

    def __post_init__(self) -> None:
        if not 0 < self.mu < math.inf:
            raise ValueError(f"SmoothedHinge needs mu > 0, got {self.mu}; Hinge() is the loss for mu = 0")

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i max_a [a (1 - y_i z_i) - mu a^2 / 2], and its gradient in z."""
        xp = namespace(z)
        m = 1 - y * z
        a = xp.minimum(xp.maximum(m / self.mu, 0.0), 1.0)
        g = c * a
        return g @ (m - 0.5 * self.mu * a), -y * g

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i / mu on the quadratic part."""
        m = 1 - y * z
        return c / self.mu * namespace(z).astype((m > 0) & (m < self.mu), z.dtype)

    def dual(self, y: Array) -> Dual:
        """l*(u, y) = y u + mu u^2 / 2 for -1 <= y u <= 0."""
        return Dual(*against(y), y, square=self.mu)


@dataclass(frozen=True)
class Exponential:
    r"""The loss of boosting, :math:`l(z, y) = e^{-y z}`.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Exponential().value_grad(np.zeros(1), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (1.0, [-1.0])
    """

    separable = True
    smooth = True
    task = "classification"
    formula = "exp(-y z)"
    check_labels = check_signs

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i exp(-y_i z_i), and its gradient in z."""
        value, slope = exp_and_slope(-y * z)
        return c @ value, -y * c * slope

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i exp(-y_i z_i)."""
        return c * exp_and_slope(-y * z)[1]

    def conjugate(self, u: Array, y: Array) -> Array:
        """A ln a - a for a = -y u >= 0."""
        a = -y * u
        return outside(u, self.conjugate_domain(y), times_log(a) - a)

    def conjugate_grad(self, u: Array, y: Array) -> Array:
        """-y ln(-y u)."""
        return -y * log(-y * u)

    def conjugate_domain(self, y: Array) -> tuple[Array, Array]:
        """Slopes against the label."""
        return against(y, math.inf)


@dataclass(frozen=True)
class Logistic:
    r"""The negative log-likelihood of logistic regression, :math:`l(z, y) = \log(1 + e^{-y z})`.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Logistic().value_grad(np.zeros(1), np.array([1.0]), np.ones(1))
    >>> round(float(value), 4), dz.tolist()
    (0.6931, [-0.5])
    """

    separable = True
    smooth = True
    task = "classification"
    formula = "log(1 + exp(-y z))"
    check_labels = check_signs

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i log(1 + exp(-y_i z_i)), and its gradient in z."""
        xp = namespace(z)
        t = -y * z
        below = xp.minimum(t, 40.0)  # beyond 40, log(1 + e^t) is t and its slope 1 to the last bit
        e = xp.exp(below)
        return c @ (xp.log1p(e) + (t - below)), -y * (c * e / (1 + e))

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i times the probabilities of both classes."""
        xp = namespace(z)
        e = xp.exp(-xp.abs(z))
        return c * e / ((1 + e) * (1 + e))

    def conjugate(self, u: Array, y: Array) -> Array:
        """A ln a + (1 - a) ln(1 - a) for 0 <= a = -y u <= 1."""
        return outside(u, self.conjugate_domain(y), minus_entropy(-y * u))

    def conjugate_grad(self, u: Array, y: Array) -> Array:
        """The log-odds -y ln(a / (1 - a)) for a = -y u."""
        a = -y * u
        return -y * (log(a) - log(1 - a))

    def conjugate_domain(self, y: Array) -> tuple[Array, Array]:
        """Slopes against the label, of size 1 at most."""
        return against(y)


@dataclass(frozen=True)
class Novelty:
    r"""The one-class loss of novelty detection, :math:`l(z) = \max(0, 1 - z)`, which ignores the labels.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Novelty().value_grad(np.array([0.25]), np.zeros(1), np.ones(1))
    >>> float(value), dz.tolist()
    (0.75, [-1.0])
    """

    separable = True
    smooth = False
    task = "novelty"
    formula = "max(0, 1 - z)"
    check_labels = check_nothing

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i max(0, 1 - z_i), and a subgradient in z."""
        m = 1 - z
        g = c * namespace(z).astype(m > 0, z.dtype)
        return g @ m, -g

    def dual(self, y: Array) -> Dual:
        """l*(u) = u for -1 <= u <= 0."""
        one = namespace(y).ones_like(y)
        return Dual(-one, 0 * one, one)


def _check_margin(loss: object, margin: float) -> None:
    if not 0 <= margin < math.inf:
        raise ValueError(f"{type(loss).__name__} needs margin >= 0, got {margin}")
