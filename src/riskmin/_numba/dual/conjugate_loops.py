"""One step of a dual variable u: a gradient step, or the minimizer of the conjugate plus a quadratic model.

Conjugates l* are of three kinds. Each row has the parameters (lower, upper, base, sign), and all rows share
the shape (epsilon, size, power).
"""

from __future__ import annotations

import math
from typing import Any

from riskmin._numba.compile_cache import njit

POWER, EXPONENTIAL, LOGISTIC = 0, 1, 2
"""Kinds of conjugates.

POWER: l*(u) = base u + epsilon |u| + size |u|^power / power on [lower, upper]. With a = base + sign u:
EXPONENTIAL: l*(u) = a ln a - a; LOGISTIC: a ln a + (1 - a) ln(1 - a).
"""
MAX_EXPONENT = 690.0
"""Exponents are cut off here: beyond about 709, e^x overflows."""


@njit()
def _limits(kind: int, base: float) -> tuple[float, float]:
    """Return the smallest and largest a inside the open domain: l*' is infinite at the ends."""
    return max(1e-300, 4.5e-16 * base), 1 - 1.2e-16 if kind == LOGISTIC else math.inf


@njit()
def gradient_step(u: float, z: float, rate: float, kind: int, row: Any, shape: Any) -> Any:
    """Return u after the gradient step u + rate (z - l*'(u)), (11) of Zhang (2002), within the domain."""
    lower, upper, base, sign = row[0], row[1], row[2], row[3]
    if kind == POWER:
        epsilon, residual = shape[0], z - base
        if u == 0.0 and abs(residual) <= epsilon:
            return 0.0
        side = u if u != 0.0 else residual
        # gradient of the dual at u: z - base - (epsilon + size |u|^(power - 1)) sign(u)
        step = rate * (residual - math.copysign(epsilon + shape[1] * abs(u) ** (shape[2] - 1), side))
        # the minimizer is u = 0: the step must not cross it, or the iterates would oscillate
        if abs(residual) < epsilon:
            step = min(max(step, -abs(u)), abs(u))
        return min(max(u + step, lower), upper)
    a = base + sign * u
    a_min, a_max = _limits(kind, base)
    a = min(max(a, a_min), a_max)
    slope = math.log(a) - (math.log(1 - a) if kind == LOGISTIC else 0.0)
    # at most 90 % of the way to an end of the domain, where the slope is infinite
    new = max(a + rate * (sign * z - slope), 0.1 * a)
    if kind == LOGISTIC:
        new = min(new, 1 - 0.1 * (1 - a))
    return sign * (min(max(new, a_min), a_max) - base)


@njit()
def proximal_step(u: float, z: float, kappa: float, kind: int, row: Any, shape: Any) -> Any:
    """Return the minimizer of l*(t) - z t + kappa (t - u)^2 / 2 over t (a proximal step)."""
    base, sign = row[2], row[3]
    if kind == POWER:
        # optimality: size |t|^(power - 1) sign(t) + epsilon sign(t) + kappa t = z - base + kappa u
        t = z - base + kappa * u
        size = abs(t) - shape[0]
        if size <= 0:
            return 0.0
        new = math.copysign(_power_root(size, kappa, shape[1], shape[2] - 1), t)
        return min(max(new, row[0]), row[1])
    a0 = base + sign * u
    # in a = base + sign t: ln a (- ln(1 - a)) + kappa a = sign z + kappa a0
    t = sign * z + kappa * a0
    if kind == EXPONENTIAL:
        a = math.exp(min(_exponent(t, kappa), MAX_EXPONENT))
    else:
        a = 1 / (1 + math.exp(-_logit(t, kappa)))
    a_min, a_max = _limits(kind, base)
    return sign * (min(max(a, a_min), a_max) - base)


@njit()
def _power_root(m: float, kappa: float, size: float, e: float) -> Any:
    """Return the a >= 0 with size a^e + kappa a = m, by Newton's method within a bracket."""
    if size == 0.0 or e == 1.0:
        return m / (kappa + size) if kappa + size > 0 else math.inf
    # either term alone gives an upper bound
    hi = (m / size) ** (1 / e)
    if kappa == 0.0:
        return hi
    lo, hi = 0.0, min(hi, m / kappa)
    a = hi
    for _ in range(200):
        excess = size * a**e + kappa * a - m
        lo, hi = (lo, a) if excess > 0 else (a, hi)
        new = a - excess / (size * e * a ** (e - 1) + kappa)
        if not lo < new < hi:
            new = 0.5 * (lo + hi)
        if abs(new - a) <= 1e-16 * a:
            break
        a = new
    return a


@njit()
def _exponent(t: float, kappa: float) -> Any:
    """Return the b with kappa e^b + b = t.

    Newton's method from the right of the root: the function is convex, so the iterates decrease to it.
    """
    if kappa == 0.0:
        return t
    # start to the right of the root: b <= t, and kappa e^b <= t for b >= 0
    b = t if t <= 0 else min(t, max(math.log(t / kappa), 0.0))
    for _ in range(100):
        e = kappa * math.exp(b)
        step = (e + b - t) / (e + 1)
        b -= step
        if step <= 1e-15 * max(1.0, abs(b)):
            break
    return b


@njit()
def _logit(t: float, kappa: float) -> Any:
    """Return the b with kappa sigma(b) + b = t, by Newton's method within a bracket."""
    lo, hi = t - kappa, t
    b, change = 0.5 * (lo + hi), hi - lo
    for _ in range(200):
        a = 1 / (1 + math.exp(-b)) if b > -MAX_EXPONENT else 0.0
        excess = kappa * a + b - t
        lo, hi = (lo, b) if excess > 0 else (b, hi)
        new = b - excess / (kappa * a * (1 - a) + 1)
        # bisect unless the steps halve: Newton's method may cycle around the inflection point of sigma
        if not (lo < new < hi and abs(new - b) <= 0.5 * change):
            new = 0.5 * (lo + hi)
        change = abs(new - b)
        if change <= 1e-15 * max(1.0, abs(b)):
            break
        b = new
    return max(b, -MAX_EXPONENT)
