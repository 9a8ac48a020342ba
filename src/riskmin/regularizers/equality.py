"""Directions that cost nothing: the general case of which an unpenalized intercept is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from riskmin.regularizers.base import Comparable
from riskmin.regularizers.norms import Quadratic
from riskmin.regularizers.separable import L2
from riskmin.types import Array, Cut, NDArray

SLACK = 1e-12
"""How far rounding may push a vector off the constraint, relative to its size."""


@dataclass(frozen=True, eq=False, repr=False)
class Equality(Comparable):
    r"""A quadratic regularizer that does not count the part of w in the span of the rows of C,

    .. math:: \Omega(w) = \min_s\; \Omega_0(w - C^\top s), \qquad
              \Omega^*(v) = \Omega_0^*(v) \text{ for } C v = 0,

    and infinite for other v: an equality constraint of the dual. Only cuts that meet it bound anything, so
    the solver for it is `DualGaussSeidel`, by an augmented Lagrangian.

    Parameters
    ----------
    reg : L2 or Quadratic
        :math:`\Omega_0`.
    C : (m, p) array
        The free directions, a row each, linearly independent.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002, appendix D.

    Examples
    --------
    >>> import numpy as np
    >>> reg = Equality(L2(), [[1.0, 1.0]])  # only the difference of the two weights counts
    >>> reg.value(np.array([5.0, 5.0])), reg.value(np.array([6.0, 4.0]))
    (0.0, 1.0)
    >>> reg.conjugate(np.array([1.0, -1.0])), reg.conjugate(np.array([1.0, 0.0]))
    (1.0, inf)
    """

    reg: L2 | Quadratic
    C: NDArray

    formula = "reg(w), but for the part of w in the rows of C"

    def __post_init__(self) -> None:
        if not isinstance(self.reg, (L2, Quadratic)):
            raise TypeError(f"Equality frees directions of L2() or Quadratic(K), not of {self.reg!r}")
        C = np.atleast_2d(np.array(self.C, dtype=np.float64))
        if C.ndim != 2 or not np.isfinite(C).all() or np.linalg.matrix_rank(C) < len(C):
            raise ValueError("Equality needs C to hold finite, linearly independent rows: drop the others")
        C.flags.writeable = False
        object.__setattr__(self, "C", C)

    @cached_property
    def _weighed(self) -> tuple[NDArray, NDArray]:
        """The rows of C K, and C K C'."""
        CK = np.stack([np.asarray(self.reg.grad(row)) for row in self.C])
        return CK, CK @ self.C.T

    def free(self, w: Array) -> Array:
        """The s for which w - C's costs least."""
        CK, G = self._weighed
        return np.linalg.solve(G, CK @ w)

    def value(self, w: Array) -> float:
        """What is left of the cost without the free part."""
        return float(self.reg.value(w - self.free(w) @ self.C))

    def grad(self, w: Array) -> Array:
        """The gradient, which is orthogonal to the rows of C."""
        return self.reg.grad(w - self.free(w) @ self.C)

    def prox(self, v: Array, step: float) -> Array:
        """argmin_w step Omega(w) + |w - v|^2 / 2."""
        if step == 0:
            return v
        CC = self.C @ self.C.T
        inside = v - np.linalg.solve(CC, self.C @ v) @ self.C
        B = np.stack([self.reg.prox(row, step) for row in self.C])  # (I + step K)^-1, by Woodbury's formula
        x = self.reg.prox(inside, step)
        x = x + np.linalg.solve(CC - B @ self.C.T, self.C @ x) @ B
        return x + np.linalg.solve(CC, self.C @ (v - x)) @ self.C

    def _meets(self, u: Array) -> bool:
        return bool(np.all(np.abs(self.C @ u) <= SLACK * np.abs(self.C).sum(axis=1) * np.abs(u).max()))

    def conjugate(self, u: Array) -> float:
        """That of what is freed where C u = 0, else infinite."""
        return float(self.reg.conjugate(u)) if self._meets(u) else math.inf

    def conjugate_grad(self, u: Array) -> Array:
        """The least of the points that attain the conjugate; TypeError where none does."""
        if not self._meets(u):
            raise TypeError("the conjugate of Equality is infinite where C u is not 0, so it has no gradient")
        return self.reg.conjugate_grad(u)

    def scale(self, cut: Cut, lam: float) -> float:
        """As for what is freed; a cut that does not meet the constraint bounds nothing."""
        return float(self.reg.scale(cut, lam)) if self._meets(cut.a) else 0.0

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> Omega(w + t d) and its slope, from three products."""
        g = self.grad(d)
        ww, wd, dd = 2 * self.value(w), float(w @ g), float(d @ g)
        return lambda t: (0.5 * ww + t * wd + 0.5 * t * t * dd, wd + t * dd)

    def reach(self, w: Array, d: Array) -> float:
        """Any distance."""
        return math.inf
