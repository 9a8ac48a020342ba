"""What regularizers share: the best shrinkage of a cut, looks along a line, and checks of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.arrays import like
from riskmin.blas import scipy
from riskmin.deadline import checking
from riskmin.registry import Comparable as Comparable
from riskmin.scalar import Tangent, shrink
from riskmin.types import Array, Cut, NDArray, Regularizer

SLACK = 1e-12
"""How far rounding may push a point out of a domain, relative to its bounds."""

FAR = 1e100
"""Beyond this, the conjugate is not looked at: no bound comes from there."""


def best_scale(reg: Regularizer, cut: Cut, lam: float, most: float = 1.0) -> float:
    """The s in [0, most] that maximizes s b - lam Omega*(-s a / lam): concave, of slope b + a @ w(s)."""

    def look(s: float) -> Tangent:
        u = -s / lam * cut.a
        slope = cut.b + float(cut.a @ reg.conjugate_grad(u))
        return Tangent(s, lam * reg.conjugate(u) - s * cut.b, -slope)

    lo, hi, far = look(0.0), look(most), most
    if lo.slope >= 0 or most <= 0:
        return 0.0
    for _ in checking(range(2000)):  # exponentials overflow far out: go back until they are numbers
        if not hi.value < FAR:
            far = hi.x
        elif hi.slope > 0 or far == most:
            break
        else:
            lo = hi
        hi = look(0.5 * (lo.x + far))
    if hi.slope <= 0:
        return hi.x
    lo, hi = shrink(look, lo, hi, lambda best, bound: best - bound <= 1e-14 * abs(best))
    return min(lo, hi, key=lambda t: t.value).x


def root(f: Callable[[float], float], lo: float, hi: float) -> float:
    """Where f is zero between two numbers at which its signs differ, to the last digits."""
    return float(scipy("optimize").brentq(f, lo, hi, xtol=1e-300, rtol=1e-15))


def by_values(reg: Any, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
    """T -> Omega(w + t d) and its slope, by the regularizer's own value and slope: O(p) a look."""

    def look(t: float) -> tuple[float, float]:
        there = w + t * d
        return reg.value(there), reg.slope(there, d)

    return look


def as_setting(value: Any) -> Any:
    """A number as a float, anything longer as an array of floats that cannot be written to."""
    if isinstance(value, (int, float, np.generic)):
        return float(value)
    a = np.array(value, dtype=np.float64)
    a.flags.writeable = False
    return float(a) if a.ndim == 0 else a


def by_feature(setting: float | NDArray, w: Array, name: str) -> Any:
    """A setting beside w: a number as it is, an array in w's library, if it has an entry a feature."""
    if isinstance(setting, float):
        return setting
    if setting.shape != (len(w),):
        raise ValueError(
            f"{name} has shape {setting.shape}, but w has {len(w)} entries: give a number, or one an entry"
        )
    return setting if isinstance(w, np.ndarray) else like(setting.copy(), w)  # torch wants to own its numbers


def check_setting(reg: object, name: str, fits: Callable[[Any], Any], needs: str) -> None:
    """Make the setting a float or an array of floats, and raise unless all of it fits."""
    value = as_setting(getattr(reg, name))
    object.__setattr__(reg, name, value)
    if not np.all(fits(np.asarray(value))):
        raise ValueError(f"{type(reg).__name__} needs {name} to be {needs}, not {getattr(reg, name)!r}")
