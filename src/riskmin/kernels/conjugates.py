"""One step of a dual variable: by the gradient, or to the minimum with a parabola in place of the rest.

The conjugates are of three kinds, each with its numbers: those of a row (lower, upper, base, sign) and a
shape (epsilon, size, power) for all rows.
"""

from __future__ import annotations

import math
from typing import Any

from riskmin.kernels.compiled import njit

POWER, EXPONENTIAL, LOGISTIC = 0, 1, 2
"""base u + epsilon |u| + size |u|^power / power; for a = base + sign u, a ln a - a and that of 1 - a too."""
LARGEST = 690.0
"""Exponents beyond it are no numbers."""


@njit()
def _limits(kind: int, base: float) -> tuple[float, float]:
    """The a of open domains that are still apart from their ends, where slopes are infinite."""
    return max(1e-300, 4.5e-16 * base), 1 - 1.2e-16 if kind == LOGISTIC else math.inf


@njit()
def explicit(u: float, z: float, rate: float, kind: int, row: Any, shape: Any) -> Any:
    """The gradient step (11) of that rate, within the domain."""
    lower, upper, base, sign = row[0], row[1], row[2], row[3]
    if kind == POWER:
        epsilon, lack = shape[0], z - base
        if u == 0.0 and abs(lack) <= epsilon:
            return 0.0
        side = u if u != 0.0 else lack
        step = rate * (lack - math.copysign(epsilon + shape[1] * abs(u) ** (shape[2] - 1), side))
        if abs(lack) < epsilon:  # it should go to zero, and must not oscillate around it
            step = min(max(step, -abs(u)), abs(u))
        return min(max(u + step, lower), upper)
    a = base + sign * u
    least, most = _limits(kind, base)
    a = min(max(a, least), most)
    slope = math.log(a) - (math.log(1 - a) if kind == LOGISTIC else 0.0)
    new = max(a + rate * (sign * z - slope), 0.1 * a)  # no further than most of the way to an infinite slope
    if kind == LOGISTIC:
        new = min(new, 1 - 0.1 * (1 - a))
    return sign * (min(max(new, least), most) - base)


@njit()
def implicit(u: float, z: float, kappa: float, kind: int, row: Any, shape: Any) -> Any:
    """The minimizer of l*(t) - z t + kappa (t - u)^2 / 2 over t."""
    base, sign = row[2], row[3]
    if kind == POWER:
        t = z - base + kappa * u
        size = abs(t) - shape[0]
        if size <= 0:
            return 0.0
        new = math.copysign(_power_root(size, kappa, shape[1], shape[2] - 1), t)
        return min(max(new, row[0]), row[1])
    a0 = base + sign * u
    t = sign * z + kappa * a0
    if kind == EXPONENTIAL:
        a = math.exp(min(_exponent(t, kappa), LARGEST))
    else:
        a = 1 / (1 + math.exp(-_logit(t, kappa)))
    least, most = _limits(kind, base)
    return sign * (min(max(a, least), most) - base)


@njit()
def _power_root(m: float, kappa: float, size: float, e: float) -> Any:
    """The a >= 0 with size a^e + kappa a = m."""
    if size == 0.0 or e == 1.0:
        return m / (kappa + size) if kappa + size > 0 else math.inf
    hi = (m / size) ** (1 / e)
    if kappa == 0.0:
        return hi
    lo, hi = 0.0, min(hi, m / kappa)
    a = hi
    for _ in range(200):
        over = size * a**e + kappa * a - m
        lo, hi = (lo, a) if over > 0 else (a, hi)
        new = a - over / (size * e * a ** (e - 1) + kappa)
        if not lo < new < hi:
            new = 0.5 * (lo + hi)
        if abs(new - a) <= 1e-16 * a:
            break
        a = new
    return a


@njit()
def _exponent(t: float, kappa: float) -> Any:
    """The b with kappa e^b + b = t, by Newton's method from its right, where it is convex."""
    if kappa == 0.0:
        return t
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
    """The b with kappa sigma(b) + b = t, bracketed."""
    lo, hi = t - kappa, t
    b, change = 0.5 * (lo + hi), hi - lo
    for _ in range(200):
        a = 1 / (1 + math.exp(-b)) if b > -LARGEST else 0.0
        over = kappa * a + b - t
        lo, hi = (lo, b) if over > 0 else (b, hi)
        new = b - over / (kappa * a * (1 - a) + 1)
        if not (lo < new < hi and abs(new - b) <= 0.5 * change):  # where it bends, they would go to and fro
            new = 0.5 * (lo + hi)
        change = abs(new - b)
        if change <= 1e-15 * max(1.0, abs(b)):
            break
        b = new
    return max(b, -LARGEST)
