r"""Losses of generalized linear models with a logarithmic link: the mean of y is :math:`e^z`.

Each of them is half the unit deviance, whose minimum, at :math:`z = \log y`, is zero. `Poisson` is another.
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
    exp_with_derivative,
    log_or_minus_inf,
    negative_entropy,
    xlogx,
)
from riskmin.losses.labels import check_counts, check_positive


@dataclass(frozen=True)
class Gamma(Loss):
    r"""Gamma regression of amounts :math:`y > 0`, :math:`l(z, y) = y e^{-z} + z - \log y - 1`.

    The mean is :math:`e^z`, and the standard deviation is proportional to it.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Gamma().value_grad(np.zeros(2), np.array([1.0, 3.0]), np.ones(2))
    >>> round(float(value), 6), dz.round(6).tolist()
    (0.901388, [0.0, -2.0])
    """

    smooth = True
    task = "regression"
    formula = "y exp(-z) + z - log y - 1"
    log_link = True
    self_concordance = 1.0
    check_labels = check_positive

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i (y_i exp(-z_i) + z_i - log y_i - 1) and its gradient in z."""
        # t = z - log y: then y exp(-z) = exp(-t)
        t = z - namespace(z).log(y)
        value, slope = exp_with_derivative(-t)
        return c @ ((value - 1) + t), c * (1 - slope)

    def terms(self, z: Array, y: Array, c: Array) -> Any:
        """Return the sum of the absolute terms of the value, a scale for its rounding error."""
        xp = namespace(z)
        log_y = xp.log(y)
        return c @ (exp_with_derivative(log_y - z)[0] + 1 + xp.abs(z) + xp.abs(log_y))

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives c_i y_i exp(-z_i)."""
        return None if mu else Hessian(c * exp_with_derivative(namespace(z).log(y) - z)[1])

    def conjugate(self, y: Array) -> Conjugate:
        """Return u log y + u + (1 - u) log(1 - u), for u <= 1."""
        log_y = namespace(y).log(y)
        return ClosedFormConjugate(
            0 * y - math.inf,
            0 * y + 1,
            lambda u: u * log_y + u + xlogx(1 - u),
            lambda u: log_y - log_or_minus_inf(1 - u),
            lambda u: abs(u) * (1 + abs(log_y)) + abs(xlogx(1 - u)),
        )


@dataclass(frozen=True)
class Tweedie(Loss):
    r"""Tweedie regression of amounts :math:`y \ge 0`, many of which may be zero,

    .. math:: l(z, y) = \frac{y\, e^{(1 - p) z}}{p - 1} + \frac{e^{(2 - p) z}}{2 - p}
              - \frac{y^{2 - p}}{(p - 1)(2 - p)}.

    The mean is :math:`e^z`, and the variance is proportional to its power p: y is a sum of a Poisson number
    of gamma variables.

    Parameters
    ----------
    power : float
        p, between 1 (`Poisson`) and 2 (`Gamma`).

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Tweedie(power=1.5).value_grad(np.zeros(2), np.array([0.0, 4.0]), np.ones(2))
    >>> float(value), dz.tolist()
    (4.0, [1.0, -3.0])
    """

    power: float = 1.5

    smooth = True
    task = "regression"
    formula = "y exp((1 - power) z) / (power - 1) + exp((2 - power) z) / (2 - power) + a constant"
    log_link = True
    self_concordance = 1.0
    check_labels = check_counts

    def __post_init__(self) -> None:
        if not 1 < self.power < 2:
            raise ValueError(
                f"Tweedie needs 1 < power < 2, got {self.power}; use Poisson() for 1 and Gamma() for 2"
            )

    def _exponentials(self, z: Array) -> tuple[float, float, tuple[Array, Array], tuple[Array, Array]]:
        """Return a = p - 1, b = 2 - p, and exp(-a z) and exp(b z) with their derivatives in the exponent."""
        a, b = self.power - 1, 2 - self.power
        return a, b, exp_with_derivative(-a * z), exp_with_derivative(b * z)

    def values(self, z: Array, y: Array) -> Array:
        """Return the loss of each row."""
        a, b, (falling, _), (rising, _) = self._exponentials(z)
        return (y / a) * falling + rising / b - y**b / (a * b)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the sum of the losses of the rows, and its gradient in z."""
        _, _, (_, falling), (_, rising) = self._exponentials(z)
        return c @ self.values(z, y), c * (rising - y * falling)

    def terms(self, z: Array, y: Array, c: Array) -> Any:
        """Return the sum of the absolute terms of the value, a scale for its rounding error."""
        a, b = self.power - 1, 2 - self.power
        # the terms exceed the loss by twice the last one
        return c @ (self.values(z, y) + 2 / (a * b) * y**b)

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives c_i (a y_i exp(-a z_i) + b exp(b z_i)), a = p - 1 and b = 2 - p."""
        a, b, (_, falling), (_, rising) = self._exponentials(z)
        return None if mu else Hessian(c * (a * y * falling + b * rising))


@dataclass(frozen=True)
class NegativeBinomial(Loss):
    r"""Negative binomial regression of counts :math:`y \ge 0`, with r = 1 / dispersion and t = z - log r,

    .. math:: l(z, y) = (y + r) \log(1 + e^t) - y t + y \log y + r \log r - (y + r) \log(y + r).

    The mean is :math:`m = e^z`, and the variance is :math:`m + \text{dispersion} \cdot m^2`.

    Parameters
    ----------
    dispersion : float
        Above 0; `Poisson` is the limit 0.

    Examples
    --------
    >>> import numpy as np
    >>> loss = NegativeBinomial(dispersion=0.5)
    >>> value, dz = loss.value_grad(np.log([3.0, 3.0]), np.array([3.0, 8.0]), np.ones(2))
    >>> round(float(value), 6), dz.round(6).tolist()
    (0.915162, [0.0, -2.0])
    """

    dispersion: float = 1.0

    smooth = True
    task = "regression"
    formula = "(y + r) log(1 + exp(z) / r) - y z + a constant, with r = 1 / dispersion"
    log_link = True
    self_concordance = 1.0
    check_labels = check_counts

    def __post_init__(self) -> None:
        if not 0 < self.dispersion < math.inf:
            raise ValueError(
                f"NegativeBinomial needs dispersion > 0, got {self.dispersion}; use Poisson() for 0"
            )

    def _constant(self, y: Array) -> Array:
        """Return y log y + r log r - (y + r) log(y + r), which makes the minimum zero."""
        r = 1 / self.dispersion
        return xlogx(y) + r * math.log(r) - xlogx(y + r)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the sum of the losses of the rows, and its gradient in z."""
        xp, r = namespace(z), 1 / self.dispersion
        t = z - math.log(r)
        e = xp.exp(-xp.abs(t))  # at most 1
        softplus = xp.maximum(t, 0.0) + xp.log1p(e)
        share = xp.where(t >= 0, 1.0 + 0.0 * e, e) / (1 + e)  # 1 / (1 + exp(-t))
        return c @ ((y + r) * softplus - y * t + self._constant(y)), c * ((y + r) * share - y)

    def terms(self, z: Array, y: Array, c: Array) -> Any:
        """Return a bound on the sum of the absolute terms of the value, a scale for its rounding error."""
        r = 1 / self.dispersion
        sizes = abs(xlogx(y)) + abs(xlogx(y + r)) + abs(r * math.log(r))
        return c @ ((2 * y + r) * (1 + abs(z - math.log(r))) + sizes)

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives c_i (y_i + r) s_i (1 - s_i), with s = 1 / (1 + exp(-t))."""
        xp, r = namespace(z), 1 / self.dispersion
        e = xp.exp(-xp.abs(z - math.log(r)))
        return None if mu else Hessian(c * (y + r) * e / ((1 + e) * (1 + e)))

    def conjugate(self, y: Array) -> Conjugate:
        """Return (y + r) (a log a + (1 - a) log(1 - a)) + u log r less a constant, a = (y + u) / (y + r)."""
        r = 1 / self.dispersion

        def share(u: Array) -> Array:
            return (y + u) / (y + r)

        def score(u: Array) -> Array:
            return math.log(r) + log_or_minus_inf(share(u)) - log_or_minus_inf((r - u) / (y + r))

        constant, sizes = self._constant(y), abs(xlogx(y)) + abs(xlogx(y + r)) + abs(r * math.log(r))
        return ClosedFormConjugate(
            -y,
            0 * y + r,
            lambda u: (y + r) * negative_entropy(share(u)) + u * math.log(r) - constant,
            score,
            lambda u: abs(u) * (1 + abs(math.log(r))) + (y + r) + sizes,
        )
