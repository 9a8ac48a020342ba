r"""Losses of a real label, most of them of the residual (Table 1 of Teo et al., KDD 2007).

Each computes :math:`\sum_i c_i\, l(z_i, y_i)` and its subgradient in z. z, y and c have one shape, (n,),
and one dtype, which is also that of the subgradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from riskmin.arrays import namespace
from riskmin.losses.labels import check_counts, check_finite
from riskmin.losses.pieces import (
    curvature_of_power,
    exp_and_slope,
    log,
    outside,
    power_conjugate,
    power_conjugate_slope,
    slope_of_power,
    times_log,
    within,
)
from riskmin.types import Array, Dual


@dataclass(frozen=True)
class Squared:
    r"""Least squares, :math:`l(z, y) = \tfrac12 (z - y)^2`, which estimates the mean.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Squared().value_grad(np.array([3.0]), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (2.0, [2.0])
    """

    separable = True
    smooth = True
    task = "regression"
    formula = "(z - y)^2 / 2"
    check_labels = check_finite

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i (z_i - y_i)^2 / 2, and its gradient in z."""
        r = z - y
        g = c * r
        return 0.5 * (g @ r), g

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i."""
        return c

    def dual(self, y: Array) -> Dual:
        """l*(u, y) = y u + u^2 / 2."""
        return Dual(*within(y, math.inf), y, square=1.0)


@dataclass(frozen=True)
class Absolute:
    r"""Least absolute deviations, :math:`l(z, y) = |z - y|`, which estimates the median.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Absolute().value_grad(np.array([3.0]), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (2.0, [1.0])
    """

    separable = True
    smooth = False
    task = "regression"
    formula = "|z - y|"
    check_labels = check_finite

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i |z_i - y_i|, and a subgradient in z."""
        r = z - y
        g = c * namespace(z).sign(r)
        return g @ r, g

    def dual(self, y: Array) -> Dual:
        """l*(u, y) = y u for |u| <= 1."""
        return Dual(*within(y, 1.0), y)


@dataclass(frozen=True)
class Quantile:
    r"""The pinball loss, :math:`l(z, y) = \max(q (y - z), (q - 1)(y - z))`, which estimates the q-quantile.

    Parameters
    ----------
    level : float
        q, between 0 and 1: the share of the labels that shall lie below the prediction.

    Notes
    -----
    Table 1 of Teo et al. has the two slopes the other way round, so that its :math:`\tau` is 1 - q here.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Quantile(level=0.75).value_grad(np.array([1.0]), np.array([3.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (1.5, [-0.75])
    """

    level: float = 0.5

    separable = True
    smooth = False
    task = "regression"
    formula = "max(level (y - z), (level - 1) (y - z))"
    check_labels = check_finite

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"Quantile needs 0 < level < 1, got {self.level}; 0.9 is the 90% quantile")

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i max(level (y_i - z_i), (level - 1) (y_i - z_i)), and a subgradient in z."""
        xp = namespace(z)
        r = z - y
        g = c * (xp.astype(r >= 0, z.dtype) - self.level)
        return g @ r, g

    def dual(self, y: Array) -> Dual:
        """l*(u, y) = y u for -level <= u <= 1 - level."""
        zero = namespace(y).zeros_like(y)
        return Dual(zero - self.level, zero + (1 - self.level), y)


@dataclass(frozen=True)
class EpsilonInsensitive:
    r"""The loss of support vector regression, :math:`l(z, y) = \tfrac1p \max(0, |z - y| - \epsilon)^p`.

    Parameters
    ----------
    epsilon : float
        Residuals up to this cost nothing.
    power : float
        p, at least 1.

    References
    ----------
    T. Zhang, *On the dual formulation of regularized linear systems with convex risks*, Machine Learning,
    2002, section 5.2.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.array([1.0, 4.0]), np.array([1.25, 1.0]), np.array([0.5, 0.5])
    >>> value, dz = EpsilonInsensitive(epsilon=0.5).value_grad(z, y, c)
    >>> float(value), dz.tolist()
    (1.25, [-0.0, 0.5])
    """

    epsilon: float = 0.1
    power: float = 1.0

    separable = True
    task = "regression"
    formula = "max(0, |z - y| - epsilon)^power / power"
    check_labels = check_finite

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"EpsilonInsensitive needs epsilon >= 0, got {self.epsilon}")
        if not 1 <= self.power < math.inf:
            raise ValueError(f"EpsilonInsensitive needs power >= 1 to be convex, got {self.power}")

    @property
    def smooth(self) -> bool:
        """Whether the power is above 1."""
        return self.power > 1

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i max(0, |z_i - y_i| - epsilon)^power / power, and a subgradient in z."""
        xp = namespace(z)
        r = z - y
        m = xp.maximum(xp.abs(r) - self.epsilon, 0.0)
        g = c * slope_of_power(m, self.power)
        return (g @ m) / self.power, xp.sign(r) * g

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i (power - 1) m^(power - 2) for the excess m over epsilon; 0 within."""
        m = namespace(z).abs(z - y) - self.epsilon
        return c * curvature_of_power(m, self.power)

    def dual(self, y: Array) -> Dual | None:
        """l*(u, y) = y u + epsilon |u|, and u^2 / 2 for power 2 or |u| <= 1 for power 1."""
        if self.power not in (1, 2):
            return None
        return Dual(*self.conjugate_domain(y), y, self.epsilon, self.power - 1.0)

    def conjugate(self, u: Array, y: Array) -> Array:
        """Y u + epsilon |u| + |u|^q / q, where 1/power + 1/q = 1."""
        a = abs(u)
        return outside(u, self.conjugate_domain(y), y * u + self.epsilon * a + power_conjugate(a, self.power))

    def conjugate_grad(self, u: Array, y: Array) -> Array:
        """The score whose slope is u."""
        xp = namespace(u)
        return y + xp.sign(u) * (self.epsilon + power_conjugate_slope(xp.abs(u), self.power))

    def conjugate_domain(self, y: Array) -> tuple[Array, Array]:
        """Any slope; of size 1 at most for power 1."""
        return within(y, 1.0 if self.power == 1 else math.inf)


@dataclass(frozen=True)
class Huber:
    r"""Huber's robust loss: a parabola of the residual r = z - y that goes on in straight lines,

    .. math:: l(z, y) = \tfrac12 r^2 \text{ if } |r| \le \delta, \text{ else } \delta |r| - \tfrac12 \delta^2.

    Parameters
    ----------
    delta : float
        Where the parabola ends and the straight lines begin, above 0.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Huber(delta=1.0).value_grad(np.array([3.0]), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (1.5, [1.0])
    """

    delta: float = 1.0

    separable = True
    smooth = True
    task = "regression"
    formula = "r^2/2 if |r| <= delta, else delta |r| - delta^2/2"
    check_labels = check_finite

    def __post_init__(self) -> None:
        if not 0 < self.delta < math.inf:
            raise ValueError(
                f"Huber needs delta > 0, got {self.delta}; Absolute() is the limit of Huber / delta"
            )

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i huber(z_i - y_i), and its gradient in z."""
        xp = namespace(z)
        r = z - y
        a = xp.minimum(xp.maximum(r, -self.delta), self.delta)  # the slope: a (r - a / 2) is both branches
        g = c * a
        return g @ (r - 0.5 * a), g

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i where the residual is at most delta."""
        xp = namespace(z)
        return c * xp.astype(xp.abs(z - y) <= self.delta, z.dtype)

    def dual(self, y: Array) -> Dual:
        """l*(u, y) = y u + u^2 / 2 for |u| <= delta."""
        return Dual(*within(y, self.delta), y, square=1.0)


@dataclass(frozen=True)
class Poisson:
    r"""Poisson regression of counts :math:`y \ge 0`, :math:`l(z, y) = e^z - y z + y \log y - y`.

    The mean is :math:`e^z`. The last two terms, with :math:`0 \log 0 = 0`, are constant in z and make
    the minimum, at :math:`z = \log y`, zero.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Poisson().value_grad(np.zeros(2), np.array([0.0, 1.0]), np.ones(2))
    >>> float(value), dz.tolist()
    (1.0, [1.0, 0.0])
    """

    separable = True
    smooth = True
    task = "regression"
    formula = "exp(z) - y z + y log y - y"
    check_labels = check_counts

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i (exp(z_i) - y_i z_i + y_i log y_i - y_i), and its gradient in z."""
        xp = namespace(z)
        value, slope = exp_and_slope(z)
        log_y = xp.log(xp.maximum(y, float(xp.finfo(y.dtype).smallest_normal)))  # 0 log y is 0 for y = 0
        excess = value - y - y * (z - log_y)  # differences first: near the minimum they cancel
        return c @ excess, c * (slope - y)

    def terms(self, z: Array, y: Array, c: Array) -> Any:
        """The size of what cancels in the value, though its slopes vanish there."""
        xp = namespace(z)
        return c @ (exp_and_slope(z)[0] + y * (1 + xp.abs(z)) + xp.abs(times_log(y)))

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i exp(z_i)."""
        return c * exp_and_slope(z)[1]

    def conjugate(self, u: Array, y: Array) -> Array:
        """The difference of m ln m - m at m = y + u >= 0 and at y."""
        m = y + u
        return namespace(u).where(m >= 0, times_log(m) - m - times_log(y) + y, math.inf)

    def conjugate_grad(self, u: Array, y: Array) -> Array:
        """ln(y + u)."""
        return log(y + u)

    def conjugate_domain(self, y: Array) -> tuple[Array, Array]:
        """U >= -y."""
        return -y, namespace(y).zeros_like(y) + math.inf
