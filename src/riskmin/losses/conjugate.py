"""Elementary functions shared by the losses: exponentials, powers, logarithms, conjugates, dual domains."""

from __future__ import annotations

import math

from riskmin.arrays.namespace import largest_exponent, namespace
from riskmin.core import Array, HasConjugate, HasIntervalConjugate, IntervalConjugate, UnsupportedProblem


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
    # a = 1 is replaced before the logarithm: its term is 0
    below = xp.where(a < 1, a, 0.0 * a)
    return xlogx(a) + xp.where(a < 1, (1 - below) * xp.log1p(-below), 0.0 * a)


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
    xp = namespace(y)
    zero = xp.zeros_like(y)
    # l(z, y) = f(y z) with f nonincreasing: the derivative u has the sign of -y
    return xp.where(y > 0, -largest + zero, zero), xp.where(y > 0, zero, largest + zero)


def infinite_outside(u: Array, domain: tuple[Array, Array], inside: Array) -> Array:
    """Return the value `inside` for u in the domain, and infinity outside."""
    return namespace(u).where((u >= domain[0]) & (u <= domain[1]), inside, math.inf)


def symmetric_bounds(y: Array, largest: float) -> tuple[Array, Array]:
    """Return the domain -largest <= u <= largest, as (lower, upper)."""
    zero = namespace(y).zeros_like(y)
    return zero - largest, zero + largest


def interval_conjugate_of(loss: object, y: Array) -> IntervalConjugate | None:
    """Return the conjugate if it is quadratic on an interval, else None."""
    return loss.interval_conjugate(y) if isinstance(loss, HasIntervalConjugate) else None


def conjugate_of(loss: object, u: Array, y: Array) -> Array:
    """Return the conjugate sup_z u_i z - l(z, y_i) per row.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Squared
    >>> conjugate_of(Squared(), np.array([2.0]), np.array([3.0]))
    array([8.])
    """
    dual = interval_conjugate_of(loss, y)
    if dual is not None:
        xp = namespace(u)
        # shift u + epsilon |u| + q u^2 / 2 on [lower, upper]
        inside = dual.shift * u + dual.epsilon * xp.abs(u) + 0.5 * dual.square * u * u
        return infinite_outside(u, (dual.lower, dual.upper), inside)
    if isinstance(loss, HasConjugate):
        return loss.conjugate(u, y)
    raise UnsupportedProblem(f"{type(loss).__name__} gives no conjugate, which dual methods need: use Bundle")
