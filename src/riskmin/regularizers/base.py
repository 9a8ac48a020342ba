"""Functions shared by the regularizers: the best scale of a cut, line functions, parameter checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like
from riskmin.core import Array, Cut, NDArray, Regularizer
from riskmin.core.blas_threads import scipy_module
from riskmin.core.deadline import check_each
from riskmin.core.registry import ArrayDataclass as ArrayDataclass
from riskmin.numerics.univariate import Tangent, refine_bracket

DOMAIN_TOLERANCE = 1e-12
"""Points outside a domain by at most this, relative to its bounds, count as inside (rounding)."""

MAX_USED_CONJUGATE = 1e100
"""Scales at which the conjugate exceeds this value are not searched: their lower bounds are useless."""


def best_scale(reg: Regularizer, cut: Cut, lam: float, s_max: float = 1.0) -> float:
    """Return the s in [0, s_max] that maximizes the lower bound s b - lam Omega*(-s a / lam).

    The bound is concave in s, with the derivative b + a @ w(s), where w(s) is the gradient of Omega* at
    -s a / lam.
    """

    def negative_bound(s: float) -> Tangent:
        u = -s / lam * cut.a
        slope = cut.b + float(cut.a @ reg.conjugate_grad(u))
        return Tangent(s, lam * reg.conjugate(u) - s * cut.b, -slope)

    lo, hi, s_overflow = negative_bound(0.0), negative_bound(s_max), s_max
    # the negative bound is convex: a nonnegative slope at 0 makes 0 its minimizer
    if lo.slope >= 0 or s_max <= 0:
        return 0.0
    # the conjugate may overflow for large s (exponentials): bisect until it is finite
    for _ in check_each(range(2000)):
        if not hi.value < MAX_USED_CONJUGATE:
            s_overflow = hi.x
        elif hi.slope > 0 or s_overflow == s_max:
            break
        else:
            lo = hi
        hi = negative_bound(0.5 * (lo.x + s_overflow))
    if hi.slope <= 0:
        return hi.x
    # the derivative changes its sign in (lo, hi): refine by tangents to the relative precision 1e-14
    lo, hi = refine_bracket(negative_bound, lo, hi, lambda best, bound: best - bound <= 1e-14 * abs(best))
    return min(lo, hi, key=lambda t: t.value).x


def find_root(f: Callable[[float], float], lo: float, hi: float) -> float:
    """Return the root of f in [lo, hi], at whose ends f has different signs, to full precision."""
    return float(scipy_module("optimize").brentq(f, lo, hi, xtol=1e-300, rtol=1e-15))


def line_from_value_slope(reg: Any, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
    """Return t -> (Omega(w + t d), its derivative), by the methods `value` and `slope`: O(p) per call."""

    def value_and_slope(t: float) -> tuple[float, float]:
        point = w + t * d
        return reg.value(point), reg.slope(point, d)

    return value_and_slope


def as_setting(value: Any) -> Any:
    """Return a number as a float, and a sequence as a read-only array of floats."""
    if isinstance(value, (int, float, np.generic)):
        return float(value)
    a = np.array(value, dtype=np.float64)
    a.flags.writeable = False
    return float(a) if a.ndim == 0 else a


def by_feature(setting: float | NDArray, w: Array, name: str) -> Any:
    """Return a setting for use with w: a float unchanged, an array (one entry per feature) in w's library."""
    if isinstance(setting, float):
        return setting
    if setting.shape != (len(w),):
        raise ValueError(
            f"{name} has shape {setting.shape}, but w has {len(w)} entries: give a number, or one per entry"
        )
    # torch needs writable memory
    return setting if isinstance(w, np.ndarray) else as_array_like(setting.copy(), w)


def check_setting(reg: object, name: str, valid: Callable[[Any], Any], needs: str) -> None:
    """Convert a setting to a float or an array of floats; raise a ValueError unless all entries are valid."""
    value = as_setting(getattr(reg, name))
    object.__setattr__(reg, name, value)
    if not np.all(valid(np.asarray(value))):
        raise ValueError(f"{type(reg).__name__} needs {name} to be {needs}, not {getattr(reg, name)!r}")
