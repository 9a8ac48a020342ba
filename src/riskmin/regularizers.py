"""Regularizers: convex functions of w alone, with their conjugates. The strength lam is not in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from riskmin.types import Array, Cut


@dataclass(frozen=True)
class L2:
    r"""The squared Euclidean norm, :math:`\Omega(w) = \tfrac12 \|w\|_2^2`; its own conjugate.

    Examples
    --------
    >>> import numpy as np
    >>> L2().value(np.array([3.0, 4.0]))
    12.5
    """

    formula = "|w|^2 / 2"

    def value(self, w: Array) -> float:
        """|w|^2 / 2."""
        return 0.5 * float(w @ w)

    def grad(self, w: Array) -> Array:
        """W."""
        return w

    def prox(self, v: Array, step: float) -> Array:
        """V / (1 + step)."""
        return v / (1 + step)

    def conjugate(self, u: Array) -> float:
        """|u|^2 / 2."""
        return 0.5 * float(u @ u)

    def conjugate_grad(self, u: Array) -> Array:
        """U."""
        return u

    def scale(self, cut: Cut, lam: float) -> float:
        """The maximizer of s b - s^2 |a|^2 / (2 lam) over [0, 1]."""
        q = float(cut.a @ cut.a)
        return min(1.0, max(0.0, lam * cut.b / q)) if q else float(cut.b > 0)

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> |w + t d|^2 / 2 and its slope, from three inner products."""
        ww, wd, dd = float(w @ w), float(w @ d), float(d @ d)
        return lambda t: (0.5 * ww + t * wd + 0.5 * t * t * dd, wd + t * dd)
