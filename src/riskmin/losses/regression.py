r"""Losses for regression, most of them functions of the residual (Table 1 of Teo et al., KDD 2007).

Each loss computes :math:`\sum_i c_i\, l(z_i, y_i)` and its subgradient in z. z, y and c have the same shape,
(n,), and the same dtype, which is also that of the subgradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Hessian
from riskmin.losses.base import Loss
from riskmin.losses.conjugate import (
    ClosedFormConjugate,
    Conjugate,
    IntervalConjugate,
    exp_with_derivative,
    log_or_minus_inf,
    power_conjugate,
    power_conjugate_derivative,
    power_derivative,
    power_second_derivative,
    symmetric_bounds,
    xlogx,
)
from riskmin.losses.labels import check_counts, check_finite


@dataclass(frozen=True)
class Squared(Loss):
    r"""Least squares, :math:`l(z, y) = \tfrac12 (z - y)^2`, which estimates the mean.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Squared().value_grad(np.array([3.0]), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (2.0, [2.0])
    """

    smooth = True
    task = "regression"
    formula = "(z - y)^2 / 2"
    of_residual = True
    likelihood = "normal"
    self_concordance = 0.0
    constant_curvature = True
    check_labels = check_finite

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i (z_i - y_i)^2 / 2 and its gradient in z."""
        r = z - y
        g = c * r
        return 0.5 * (g @ r), g

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives c_i / (1 + mu)."""
        return Hessian(c / (1 + mu))

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, l*(u, y) = y u + u^2 / 2."""
        return IntervalConjugate(*symmetric_bounds(y, math.inf), y, square=1.0)


@dataclass(frozen=True)
class Absolute(Loss):
    r"""Least absolute deviations, :math:`l(z, y) = |z - y|`, which estimates the median.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Absolute().value_grad(np.array([3.0]), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (2.0, [1.0])
    """

    task = "regression"
    formula = "|z - y|"
    of_residual = True
    check_labels = check_finite

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i |z_i - y_i| and a subgradient in z."""
        # subgradient 0 at the nonsmooth point r = 0; g r = c |r|
        r = z - y
        g = c * namespace(z).sign(r)
        return g @ r, g

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, l*(u, y) = y u for |u| <= 1."""
        return IntervalConjugate(*symmetric_bounds(y, 1.0), y)


@dataclass(frozen=True)
class Quantile(Loss):
    r"""The pinball loss, :math:`l(z, y) = \max(q (y - z), (q - 1)(y - z))`, which estimates the q-quantile.

    Parameters
    ----------
    level : float
        q, between 0 and 1: the fraction of the labels below the prediction.

    Notes
    -----
    Table 1 of Teo et al. exchanges the two slopes: its :math:`\tau` is 1 - q.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Quantile(level=0.75).value_grad(np.array([1.0]), np.array([3.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (1.5, [-0.75])
    """

    level: float = 0.5

    task = "regression"
    formula = "max(level (y - z), (level - 1) (y - z))"
    of_residual = True
    check_labels = check_finite

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"Quantile needs 0 < level < 1, got {self.level}; 0.9 is the 90% quantile")

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i max(level (y_i - z_i), (level - 1) (y_i - z_i)) and a subgradient in z."""
        xp = namespace(z)
        r = z - y
        # derivative 1 - level above the label, -level below it
        g = c * (xp.astype(r >= 0, z.dtype) - self.level)
        return g @ r, g

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, l*(u, y) = y u for -level <= u <= 1 - level."""
        # the two slopes of the loss are the ends of the interval
        zero = namespace(y).zeros_like(y)
        return IntervalConjugate(zero - self.level, zero + (1 - self.level), y)


@dataclass(frozen=True)
class Expectile(Loss):
    r"""Asymmetric squares, :math:`l(z, y) = |q - [z > y]|\, (z - y)^2`, which estimate the q-expectile.

    Parameters
    ----------
    level : float
        q, between 0 and 1; 0.5 is `Squared`.

    References
    ----------
    W. K. Newey, J. L. Powell, *Asymmetric least squares estimation and testing*, Econometrica 55, 1987.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Expectile(level=0.75).value_grad(np.array([1.0, 3.0]), np.array([3.0, 1.0]), np.ones(2))
    >>> float(value), dz.tolist()
    (4.0, [-3.0, 1.0])
    """

    level: float = 0.5

    smooth = True
    task = "regression"
    formula = "level (y - z)^2 if z <= y, else (1 - level) (z - y)^2"
    of_residual = True
    check_labels = check_finite

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"Expectile needs 0 < level < 1, got {self.level}; 0.5 is the mean")

    def _factors(self, r: Array) -> Array:
        """Return 1 - level where r > 0, else level."""
        return self.level + (1 - 2 * self.level) * namespace(r).astype(r > 0, r.dtype)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the sum of the losses of the rows, and its gradient in z."""
        r = z - y
        g = c * self._factors(r) * r
        return g @ r, 2 * g

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives 2 c_i |level - [z_i > y_i]|."""
        return None if mu else Hessian(2 * c * self._factors(z - y))

    def conjugate(self, y: Array) -> Conjugate:
        """Return y u + u^2 / (4 |level - [u > 0]|)."""
        return ClosedFormConjugate(
            *symmetric_bounds(y, math.inf),
            lambda u: y * u + u * u / (4 * self._factors(u)),
            lambda u: y + u / (2 * self._factors(u)),
            lambda u: abs(y * u),
        )


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    r"""The loss of support vector regression, :math:`l(z, y) = \tfrac1p \max(0, |z - y| - \epsilon)^p`.

    Parameters
    ----------
    epsilon : float
        Absolute residuals up to epsilon have zero loss.
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

    task = "regression"
    formula = "max(0, |z - y| - epsilon)^power / power"
    of_residual = True
    check_labels = check_finite

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"EpsilonInsensitive needs epsilon >= 0, got {self.epsilon}")
        if not 1 <= self.power < math.inf:
            raise ValueError(f"EpsilonInsensitive needs power >= 1 to be convex, got {self.power}")
        object.__setattr__(self, "smooth", self.power > 1)
        object.__setattr__(self, "finite_curvature", self.power >= 2)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i max(0, |z_i - y_i| - epsilon)^power / power and a subgradient in z."""
        xp = namespace(z)
        r = z - y
        # the excess of the absolute residual over epsilon
        m = xp.maximum(xp.abs(r) - self.epsilon, 0.0)
        g = c * power_derivative(m, self.power)
        # m^p = m^(p-1) m: one power serves value and gradient
        return (g @ m) / self.power, xp.sign(r) * g

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return c_i (power - 1) m^(power - 2) for m = |z_i - y_i| - epsilon > 0, and 0 for m <= 0."""
        if mu or self.power in (1, 2):
            return super().hessian(z, y, c, mu, center)
        # zero inside the insensitive zone, m <= 0
        m = namespace(z).abs(z - y) - self.epsilon
        return Hessian(c * power_second_derivative(m, self.power))

    def conjugate(self, y: Array) -> Conjugate:
        """Return y u + epsilon |u| + |u|^q / q, where 1/power + 1/q = 1; for power 1, if |u| <= 1."""
        lower, upper = symmetric_bounds(y, 1.0 if self.power == 1 else math.inf)
        if self.power in (1, 2):
            return IntervalConjugate(lower, upper, y, self.epsilon, self.power - 1.0)

        def score(u: Array) -> Array:
            xp = namespace(u)
            return y + xp.sign(u) * (self.epsilon + power_conjugate_derivative(xp.abs(u), self.power))

        # conjugates: y u of the shift by y, epsilon |u| of the insensitive zone, |u|^q / q of the power
        return ClosedFormConjugate(
            lower,
            upper,
            lambda u: y * u + self.epsilon * abs(u) + power_conjugate(abs(u), self.power),
            score,
            lambda u: abs(y * u),
            kink_at_zero=self.epsilon > 0,
        )


@dataclass(frozen=True)
class Huber(Loss):
    r"""Huber's robust loss: quadratic for small residuals r = z - y, linear for large ones,

    .. math:: l(z, y) = \tfrac12 r^2 \text{ if } |r| \le \delta, \text{ else } \delta |r| - \tfrac12 \delta^2.

    Parameters
    ----------
    delta : float
        The absolute residual at which the loss turns from quadratic to linear, above 0.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Huber(delta=1.0).value_grad(np.array([3.0]), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (1.5, [1.0])
    """

    delta: float = 1.0

    smooth = True
    task = "regression"
    formula = "r^2/2 if |r| <= delta, else delta |r| - delta^2/2"
    of_residual = True
    check_labels = check_finite

    def __post_init__(self) -> None:
        if not 0 < self.delta < math.inf:
            raise ValueError(
                f"Huber needs delta > 0, got {self.delta}; Absolute() is the limit of Huber / delta"
            )

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i huber(z_i - y_i) and its gradient in z."""
        xp = namespace(z)
        r = z - y
        # with the derivative a = clip(r, -delta, delta), the loss is a (r - a / 2) on both branches
        a = xp.minimum(xp.maximum(r, -self.delta), self.delta)
        g = c * a
        return g @ (r - 0.5 * a), g

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, l*(u, y) = y u + u^2 / 2 for |u| <= delta."""
        return IntervalConjugate(*symmetric_bounds(y, self.delta), y, square=1.0)


@dataclass(frozen=True)
class Poisson(Loss):
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

    smooth = True
    task = "regression"
    formula = "exp(z) - y z + y log y - y"
    log_link = True
    likelihood = "poisson"
    self_concordance = 1.0
    check_labels = check_counts

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i (exp(z_i) - y_i z_i + y_i log y_i - y_i) and its gradient in z."""
        xp = namespace(z)
        value, slope = exp_with_derivative(z)
        # for y = 0, a finite logarithm makes y log y = 0
        log_y = xp.log(xp.maximum(y, float(xp.finfo(y.dtype).smallest_normal)))
        # differences first: near the minimum z = log y the terms cancel
        excess = value - y - y * (z - log_y)
        return c @ excess, c * (slope - y)

    def terms(self, z: Array, y: Array, c: Array) -> Any:
        """Return the sum of the absolute terms of the value, a scale for its rounding error."""
        # the terms e^z, y, y z and y log y
        xp = namespace(z)
        return c @ (exp_with_derivative(z)[0] + y * (1 + xp.abs(z)) + xp.abs(xlogx(y)))

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives c_i exp(z_i)."""
        return None if mu else Hessian(c * exp_with_derivative(z)[1])

    def conjugate(self, y: Array) -> Conjugate:
        """Return phi(y + u) - phi(y) with phi(m) = m ln m - m, for u >= -y."""

        def value(u: Array) -> Array:
            # u z - l(z, y) is maximal at exp(z) = y + u = m
            m = y + u
            return xlogx(m) - m - xlogx(y) + y

        unbounded = namespace(y).zeros_like(y) + math.inf
        return ClosedFormConjugate(
            -y,
            unbounded,
            value,
            lambda u: log_or_minus_inf(y + u),
            lambda u: abs(u) + 2 * y + abs(xlogx(y)),
        )
