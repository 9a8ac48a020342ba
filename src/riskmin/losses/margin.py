r"""Losses of the margin :math:`y z`, for labels y of -1 and +1 (Table 1 of Teo et al., KDD 2007).

Each loss computes :math:`\sum_i c_i\, l(z_i, y_i)` and its subgradient in z in a few array operations that
are the same for NumPy, torch and CuPy. They run on blocks of rows, in the innermost loop of every solver. z,
y and c have the same shape, (n,), and the same dtype, which is also that of the subgradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace, special_function
from riskmin.core import Array, Hessian
from riskmin.losses.base import Loss
from riskmin.losses.conjugate import (
    ClosedFormConjugate,
    Conjugate,
    IntervalConjugate,
    exp_with_derivative,
    log_or_minus_inf,
    margin_bounds,
    negative_entropy,
    power_conjugate,
    power_conjugate_derivative,
    power_derivative,
    power_second_derivative,
    xlogx,
)
from riskmin.losses.labels import accept_any_labels, check_signs
from riskmin.losses.multiclass import MulticlassHinge, MulticlassSquaredHinge, Softmax


@dataclass(frozen=True)
class Hinge(Loss):
    r"""The hinge loss of support vector machines, :math:`l(z, y) = \max(0, \rho - y z)`.

    Parameters
    ----------
    margin : float
        :math:`\rho \ge 0`; 0 is the perceptron loss.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.array([0.25, 3.0]), np.array([1.0, 1.0]), np.array([0.5, 0.5])
    >>> value, dz = Hinge().value_grad(z, y, c)
    >>> float(value), dz.tolist()
    (0.375, [-0.5, -0.0])
    """

    margin: float = 1.0

    task = "classification"
    formula = "max(0, margin - y z)"
    check_labels = check_signs

    def __post_init__(self) -> None:
        _check_margin(self, self.margin)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i max(0, margin - y_i z_i) and a subgradient in z."""
        # subgradient 0 at the nonsmooth point m = 0
        m = self.margin - y * z
        g = c * namespace(z).astype(m > 0, z.dtype)
        return g @ m, -y * g

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, l*(u, y) = margin y u for -1 <= y u <= 0."""
        return IntervalConjugate(*margin_bounds(y), self.margin * y)

    def for_classes(self, k: int) -> Loss:
        """Return the multiclass hinge, in which a margin m is a cost of m for every mistake."""
        if k <= 2:
            return self
        return MulticlassHinge(None if self.margin == 1 else self.margin * (1 - np.eye(k)))


@dataclass(frozen=True)
class SquaredHinge(Loss):
    r"""The squared hinge loss, :math:`l(z, y) = \tfrac12 \max(0, \rho - y z)^2`.

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

    smooth = True
    task = "classification"
    formula = "max(0, margin - y z)^2 / 2"
    check_labels = check_signs

    def __post_init__(self) -> None:
        _check_margin(self, self.margin)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i max(0, margin - y_i z_i)^2 / 2 and its gradient in z."""
        # m is the margin violation; dl/dz = -y m
        m = namespace(z).maximum(self.margin - y * z, 0.0)
        g = c * m
        return 0.5 * (g @ m), -y * g

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, l*(u, y) = margin y u + u^2 / 2 for y u <= 0."""
        return IntervalConjugate(*margin_bounds(y, math.inf), self.margin * y, square=1.0)

    def for_classes(self, k: int) -> Loss | None:
        """Return the multiclass squared hinge, whose margin is 1."""
        return self if k <= 2 else MulticlassSquaredHinge() if self.margin == 1 else None


@dataclass(frozen=True)
class PowerHinge(Loss):
    r"""A power of the hinge loss, :math:`l(z, y) = \tfrac1p \max(0, \rho - y z)^p`.

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

    task = "classification"
    formula = "max(0, margin - y z)^p / p"
    check_labels = check_signs

    def __post_init__(self) -> None:
        if not 1 <= self.p < math.inf:
            raise ValueError(f"PowerHinge needs p >= 1 to be convex, got {self.p}")
        _check_margin(self, self.margin)
        object.__setattr__(self, "smooth", self.p > 1)
        object.__setattr__(self, "finite_curvature", self.p >= 2)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i max(0, margin - y_i z_i)^p / p and a subgradient in z."""
        m = namespace(z).maximum(self.margin - y * z, 0.0)
        # m^p = m^(p-1) m: one power serves value and gradient
        g = c * power_derivative(m, self.p)
        return (g @ m) / self.p, -y * g

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return c_i (p - 1) m^(p - 2) for m = margin - y_i z_i > 0, and 0 for m <= 0."""
        if mu or self.p in (1, 2):
            return super().hessian(z, y, c, mu, center)
        return Hessian(c * power_second_derivative(self.margin - y * z, self.p))

    def conjugate(self, y: Array) -> Conjugate:
        """Return |u|^q / q + margin y u for y u <= 0, where 1/p + 1/q = 1; for p = 1 also |u| <= 1."""
        lower, upper = margin_bounds(y, 1.0 if self.p == 1 else math.inf)
        if self.p in (1, 2):
            return IntervalConjugate(lower, upper, self.margin * y, square=self.p - 1.0)
        # with m = margin - y z and a = -y u: sup_m a m - m^p / p, plus the linear term margin y u
        return ClosedFormConjugate(
            lower,
            upper,
            lambda u: power_conjugate(abs(u), self.p) + self.margin * y * u,
            lambda u: y * (self.margin - power_conjugate_derivative(abs(u), self.p)),
            lambda u: self.margin * abs(u),
        )


@dataclass(frozen=True)
class SmoothedHinge(Loss):
    r"""The hinge loss smoothed in its dual (Nesterov smoothing),

    .. math:: l(z, y) = \max_{0 \le a \le 1} a (1 - y z) - \tfrac\mu2 a^2.

    Its value lies between that of `Hinge` minus :math:`\mu / 2` and that of `Hinge`.

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

    smooth = True
    task = "classification"
    formula = "max over 0 <= a <= 1 of a (1 - y z) - mu a^2 / 2"
    check_labels = check_signs

    def __post_init__(self) -> None:
        if not 0 < self.mu < math.inf:
            raise ValueError(f"SmoothedHinge needs mu > 0, got {self.mu}; Hinge() is the loss for mu = 0")

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i max_a [a (1 - y_i z_i) - mu a^2 / 2] and its gradient in z."""
        xp = namespace(z)
        m = 1 - y * z
        # the maximizer a = clip(m / mu, 0, 1)
        a = xp.minimum(xp.maximum(m / self.mu, 0.0), 1.0)
        g = c * a
        # a m - mu a^2 / 2 = a (m - mu a / 2)
        return g @ (m - 0.5 * self.mu * a), -y * g

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, l*(u, y) = y u + mu u^2 / 2 for -1 <= y u <= 0."""
        return IntervalConjugate(*margin_bounds(y), y, square=self.mu)


@dataclass(frozen=True)
class Exponential(Loss):
    r"""The loss of boosting, :math:`l(z, y) = e^{-y z}`.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Exponential().value_grad(np.zeros(1), np.array([1.0]), np.ones(1))
    >>> float(value), dz.tolist()
    (1.0, [-1.0])
    """

    smooth = True
    task = "classification"
    formula = "exp(-y z)"
    check_labels = check_signs

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i exp(-y_i z_i) and its gradient in z."""
        # with t = -y z: l = exp(t), continued linearly close to overflow, and dl/dz = -y dl/dt
        value, slope = exp_with_derivative(-y * z)
        return c @ value, -y * c * slope

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives c_i exp(-y_i z_i)."""
        return None if mu else Hessian(c * exp_with_derivative(-y * z)[1])

    def conjugate(self, y: Array) -> Conjugate:
        """Return a ln a - a for a = -y u >= 0."""
        # with t = -y z: sup_t a t - e^t, attained at t = ln a
        return ClosedFormConjugate(
            *margin_bounds(y, math.inf),
            lambda u: xlogx(-y * u) + y * u,
            lambda u: -y * log_or_minus_inf(-y * u),
        )


@dataclass(frozen=True)
class Logistic(Loss):
    r"""The negative log-likelihood of logistic regression, :math:`l(z, y) = \log(1 + e^{-y z})`.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Logistic().value_grad(np.zeros(1), np.array([1.0]), np.ones(1))
    >>> round(float(value), 4), dz.tolist()
    (0.6931, [-0.5])
    """

    smooth = True
    probabilistic = True
    likelihood = "binomial"
    self_concordance = 1.0
    task = "classification"
    formula = "log(1 + exp(-y z))"
    check_labels = check_signs

    def values(self, z: Array, y: Array) -> Array:
        """Return log(1 + exp(-y_i z_i)) per row."""
        return namespace(z).logaddexp(0.0 * z, -y * z)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i log(1 + exp(-y_i z_i)) and its gradient in z."""
        xp = namespace(z)
        t = -y * z
        # for t > 40, log(1 + e^t) is t and its derivative 1 in double precision: no overflow of e^t
        below = xp.minimum(t, 40.0)
        e = xp.exp(below)
        return c @ (xp.log1p(e) + (t - below)), -y * (c * e / (1 + e))

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return c_i p_i (1 - p_i), with p_i the probability of one class."""
        if mu:
            return None
        xp = namespace(z)
        # p (1 - p) is even in z: with e = exp(-|z|) <= 1 nothing overflows
        e = xp.exp(-xp.abs(z))
        return Hessian(c * e / ((1 + e) * (1 + e)))

    def conjugate(self, y: Array) -> Conjugate:
        """Return a ln a + (1 - a) ln(1 - a) for 0 <= a = -y u <= 1."""

        def score(u: Array) -> Array:
            # the log-odds of a, times -y; infinite at the ends of the domain
            a = -y * u
            return -y * (log_or_minus_inf(a) - log_or_minus_inf(1 - a))

        return ClosedFormConjugate(*margin_bounds(y), lambda u: negative_entropy(-y * u), score)

    def for_classes(self, k: int) -> Loss:
        """Return the multinomial logistic loss."""
        return self if k <= 2 else Softmax()


@dataclass(frozen=True)
class Probit(Loss):
    r"""The negative log-likelihood of probit regression, :math:`l(z, y) = -\log \Phi(y z)`.

    :math:`\Phi` is the distribution function of the standard normal distribution.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Probit().value_grad(np.zeros(1), np.array([1.0]), np.ones(1))
    >>> round(float(value), 4), dz.round(4).tolist()
    (0.6931, [-0.7979])
    """

    smooth = True
    probabilistic = True
    likelihood = "binomial"
    task = "classification"
    formula = "-log Phi(y z)"
    check_labels = check_signs

    def values(self, z: Array, y: Array) -> Array:
        """Return -log Phi(y_i z_i) per row."""
        return -special_function("log_ndtr", y * z)

    def _ratios(self, m: Array) -> Array:
        """Return phi(m) / Phi(m), the inverse of Mills' ratio at -m."""
        return math.sqrt(2 / math.pi) / special_function("erfcx", -math.sqrt(0.5) * m)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return -sum_i c_i log Phi(y_i z_i) and its gradient in z."""
        return c @ self.values(z, y), -y * c * self._ratios(y * z)

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return c_i h (h + m) for m = y_i z_i and h = phi(m) / Phi(m)."""
        xp, m = namespace(z), y * z
        h = self._ratios(m)
        # between 0 and 1, where rounding leaves its sum no digits
        return None if mu else Hessian(c * xp.minimum(xp.maximum(h * (h + m), 0.0), 1.0))


@dataclass(frozen=True)
class Novelty(Loss):
    r"""The one-class loss of novelty detection, :math:`l(z) = \max(0, 1 - z)`, which ignores the labels.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Novelty().value_grad(np.array([0.25]), np.zeros(1), np.ones(1))
    >>> float(value), dz.tolist()
    (0.75, [-1.0])
    """

    task = "novelty"
    formula = "max(0, 1 - z)"
    check_labels = accept_any_labels

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i max(0, 1 - z_i) and a subgradient in z."""
        # the hinge with y = 1 in all rows
        m = 1 - z
        g = c * namespace(z).astype(m > 0, z.dtype)
        return g @ m, -g

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, l*(u) = u for -1 <= u <= 0."""
        # the conjugate of the hinge for y = 1
        one = namespace(y).ones_like(y)
        return IntervalConjugate(-one, 0 * one, one)


def _check_margin(loss: object, margin: float) -> None:
    if not 0 <= margin < math.inf:
        raise ValueError(f"{type(loss).__name__} needs margin >= 0, got {margin}")
