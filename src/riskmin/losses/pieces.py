"""What several losses are made of: exponentials, powers, logarithms, the slopes their duals allow."""

from __future__ import annotations

import math

from riskmin.arrays import largest_exponent, namespace
from riskmin.types import Array, Dual, HasConjugate, HasDual, Unsuited


def exp_and_slope(t: Array) -> tuple[Array, Array]:
    """exp(t) and its derivative, continued by the tangent where exp(t) nears overflow.

    The continuation is convex and nowhere above exp, so the cuts it gives are cuts of the true loss.
    """
    xp = namespace(t)
    below = xp.minimum(t, largest_exponent(t))
    e = xp.exp(below)
    return e * (1 + (t - below)), e


def slope_of_power(m: Array, p: float) -> Array:
    """The derivative m^(p-1) of m^p / p for m >= 0, and 0 at m = 0 for p = 1 too."""
    xp = namespace(m)
    return xp.astype(m > 0, m.dtype) * m ** (p - 1)


def curvature_of_power(m: Array, p: float) -> Array:
    """The second derivative (p-1) m^(p-2) of m^p / p for m > 0, and 0 elsewhere."""
    xp = namespace(m)
    above = m > 0
    return xp.where(above, (p - 1) * xp.where(above, m, 1.0 + 0.0 * m) ** (p - 2), 0.0 * m)


def times_log(a: Array) -> Array:
    """A ln a, zero at a = 0."""
    xp = namespace(a)
    return xp.where(a > 0, a * xp.log(xp.where(a > 0, a, 1.0 + 0.0 * a)), 0.0 * a)


def minus_entropy(a: Array) -> Array:
    """A ln a + (1 - a) ln(1 - a) for 0 <= a <= 1.

    By ln(1 - a) as such: 1 - a has lost the last digits of a small a, and a bound made of that may be false.
    """
    xp = namespace(a)
    below = xp.where(a < 1, a, 0.0 * a)
    return times_log(a) + xp.where(a < 1, (1 - below) * xp.log1p(-below), 0.0 * a)


def log(a: Array) -> Array:
    """Ln a, minus infinity at 0 and below."""
    xp = namespace(a)
    return xp.where(a > 0, xp.log(xp.where(a > 0, a, 1.0 + 0.0 * a)), -math.inf)


def power_conjugate(a: Array, p: float) -> Array:
    """The conjugate a^q / q of m^p / p over m >= 0, for a >= 0 and 1/p + 1/q = 1; 0 on [0, 1] for p = 1."""
    return 0.0 * a if p == 1 else a ** (p / (p - 1)) * ((p - 1) / p)


def power_conjugate_slope(a: Array, p: float) -> Array:
    """Its derivative, a^(q - 1)."""
    return 0.0 * a if p == 1 else a ** (1 / (p - 1))


def against(y: Array, most: float = 1.0) -> tuple[Array, Array]:
    """The slopes that a loss of the margin can have: against the label y, of a size up to most."""
    xp = namespace(y)
    zero = xp.zeros_like(y)
    return xp.where(y > 0, -most + zero, zero), xp.where(y > 0, zero, most + zero)


def outside(u: Array, domain: tuple[Array, Array], inside: Array) -> Array:
    """The value inside, and infinity outside of the domain."""
    return namespace(u).where((u >= domain[0]) & (u <= domain[1]), inside, math.inf)


def within(y: Array, most: float) -> tuple[Array, Array]:
    """Slopes of either sign, of a size up to most."""
    zero = namespace(y).zeros_like(y)
    return zero - most, zero + most


def dual_of(loss: object, y: Array) -> Dual | None:
    """The conjugate where it is quadratic on an interval; None elsewhere."""
    return loss.dual(y) if isinstance(loss, HasDual) else None


def conjugate_of(loss: object, u: Array, y: Array) -> Array:
    """sup_z u_i z - l(z, y_i), a row at a time.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Squared
    >>> conjugate_of(Squared(), np.array([2.0]), np.array([3.0]))
    array([8.])
    """
    dual = dual_of(loss, y)
    if dual is not None:
        xp = namespace(u)
        inside = dual.shift * u + dual.epsilon * xp.abs(u) + 0.5 * dual.square * u * u
        return outside(u, (dual.lower, dual.upper), inside)
    if isinstance(loss, HasConjugate):
        return loss.conjugate(u, y)
    raise Unsuited(f"{type(loss).__name__} gives no conjugate, which dual methods need: use Bundle")
