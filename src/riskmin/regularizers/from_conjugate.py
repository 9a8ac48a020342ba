r"""A regularizer that is known by its conjugate alone, as in Theorem 2 of Smola et al. (NIPS 2007):

.. math:: \Omega(w) = \max_u\; u^\top w - \Omega^*(u), \qquad \nabla\Omega(w) = \arg\max_u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.core import Array, NDArray, has_method
from riskmin.core.deadline import check_each
from riskmin.core.registry import adapted
from riskmin.regularizers.base import Regularizer


@dataclass(frozen=True)
class FromConjugate(Regularizer):
    r"""The regularizer with a given conjugate, an object with `conjugate` and `conjugate_grad`.

    The value, its gradient and the prox are found by Newton's method on the concave function of u above, with
    differences of `conjugate_grad` as second derivatives. `as_regularizer` makes one of objects without
    `value` and `prox`. The conjugate must be finite and differentiable.
    """

    MAX_NEWTON_STEPS = 200
    """After this many steps the maximum is not finite, or not attained."""
    MAX_CG_STEPS = 50
    """Steps of conjugate gradients per Newton step."""
    FAR = 1e9
    """The size of u, times that of v, from which a linear increase has no end."""
    RESIDUAL = 1e-10
    """Relative accuracy of the gradient; the value is accurate to its square."""

    given: Any
    _last: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def conjugate(self, u: Array) -> float:
        """That of the given object."""
        return float(self.given.conjugate(u))

    def conjugate_grad(self, u: Array) -> Array:
        """That of the given object."""
        return self.given.conjugate_grad(u)

    @property
    def has_master_problem(self) -> bool:
        """True: the dual of a bundle method needs the conjugate only."""
        return True

    def value(self, w: Array) -> float:
        """Return the maximum of u'w - Omega*(u), plus its error by Newton's decrement; infinite outside."""
        return float(self._solve(w)[1])

    def grad(self, w: Array) -> Array:
        """Return the maximizer u."""
        return self._solve(w)[0]

    def prox(self, v: Array, step: float) -> Array:
        """Return the gradient of the conjugate at the minimizer of Omega*(u) + step |u|^2 / 2 - v'u."""
        if step == 0:
            # a point of the domain is its own projection; others move to a point of the domain near it
            if math.isfinite(self.value(v)):
                return v
            step = 1e-3
        u, _ = self._maximize(np.asarray(v, dtype=float), step)
        return self.conjugate_grad(u)

    def slope(self, w: Array, d: Array) -> float:
        """Return the derivative of Omega at w along d, by the maximizer."""
        return float(self.grad(w) @ d)

    @property
    def smooth(self) -> bool:
        """False: `grad` returns a subgradient, and Omega may be infinite, or have jumps in its slope."""
        return False

    def reach(self, w: Array, d: Array) -> float:
        """Return a t for which w + t d is in the domain: infinity, 1, or the largest by bisection."""
        if not np.any(d) or math.isfinite(self.value(w + 1e3 * d)):
            return math.inf
        # bundle methods search between two points of the domain; beyond them, its end is not needed
        if math.isfinite(self.value(w + d)):
            return 1.0
        lo, hi = 0.0, 1.0
        for _ in check_each(range(40)):
            mid = 0.5 * (lo + hi)
            lo, hi = (mid, hi) if math.isfinite(self.value(w + mid * d)) else (lo, mid)
        return lo

    # ------------------------------------------------------------ the inner maximum
    def _solve(self, w: Array) -> tuple[NDArray, float]:
        """Return the maximizer and the maximum at w; those of the last w are cached."""
        w = np.asarray(w, dtype=float)
        if "w" not in self._last or not np.array_equal(self._last["w"], w):
            self._last.update(w=w.copy(), result=self._maximize(w, 0.0))
        result: tuple[NDArray, float] = self._last["result"]
        return result

    def _maximize(self, v: NDArray, s: float) -> tuple[NDArray, float]:
        """Return the maximizer of v'u - Omega*(u) - s |u|^2 / 2, and the maximum, infinite if it diverges."""
        u = np.zeros_like(v)
        size = float(np.abs(v).max(initial=0.0)) or 1.0
        for _ in check_each(range(self.MAX_NEWTON_STEPS)):
            residual = v - self.conjugate_grad(u) - s * u
            d = self._newton_direction(u, residual, s)
            value, decrement = self._value(v, u, s), float(residual @ d)
            if float(np.abs(residual).max()) <= self.RESIDUAL * size or decrement <= 1e-17 * abs(value):
                return u, value + 0.5 * max(decrement, 0.0)
            t = self._line_search(v, u, d, s, value, decrement)
            # no increase in this precision, or a linear one without end: v is outside the domain
            distance = float(np.abs(u).sum())
            endless = distance > self.FAR / size and float(residual @ u) > 1e-9 * size * distance
            if t == 0 or (endless and s == 0):
                break
            u = u + t * d
        stationary = float(np.abs(residual).max()) <= 1e-6 * size
        return u, (value + 0.5 * max(decrement, 0.0) if stationary else math.inf)

    def _value(self, v: NDArray, u: NDArray, s: float) -> float:
        with np.errstate(over="ignore"):
            return float(v @ u) - self.conjugate(u) - 0.5 * s * float(u @ u)

    def _line_search(
        self, v: NDArray, u: NDArray, d: NDArray, s: float, value: float, decrement: float
    ) -> float:
        """Return a step by halving that increases the value enough; 0 if there is none."""
        t = 1.0
        while t > 1e-12:
            new = self._value(v, u + t * d, s)
            if new >= value + 1e-4 * t * decrement - 1e-14 * abs(value):
                return t
            t *= 0.5
        return 0.0

    def _newton_direction(self, u: NDArray, residual: NDArray, s: float) -> NDArray:
        """Return an approximate solution of (H + s) d = residual by conjugate gradients."""
        d, r, p = np.zeros_like(u), residual.copy(), residual.copy()
        rr = float(r @ r)
        goal = min(0.1, math.sqrt(math.sqrt(rr))) ** 2 * rr
        for _ in range(self.MAX_CG_STEPS):
            if rr <= goal:
                break
            Hp = self.conjugate_hessian_vector(u, p) + s * p
            curvature = float(p @ Hp)
            # flat as far as differences show: a step along the gradient that doubles u
            if curvature <= (0.0 if s else 1e-12) * float(p @ p):
                return d if d.any() else (1.0 + float(np.abs(u).max())) / float(np.abs(p).max()) * p
            step = rr / curvature
            d, r = d + step * p, r - step * Hp
            rr, old = float(r @ r), rr
            p = r + rr / old * p
        return d


def as_regularizer(reg: Any) -> Regularizer:
    """Return an object with the four required methods as a `Regularizer`, with the defaults of the others.

    Of an object that has `conjugate` and `conjugate_grad` only, value and prox are found numerically.
    """
    if isinstance(reg, Regularizer):
        return reg
    by_conjugate = has_method(reg, "conjugate") and has_method(reg, "conjugate_grad")
    if by_conjugate and not (has_method(reg, "value") or has_method(reg, "prox")):
        return FromConjugate(reg)
    missing = [m for m in ("value", "prox", "conjugate", "conjugate_grad") if not has_method(reg, m)]
    if missing:
        raise TypeError(f"{reg!r} is not a regularizer: it has no method {', '.join(missing)}")
    result: Regularizer = adapted(reg, Regularizer, as_regularizer)
    return result
