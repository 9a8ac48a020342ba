"""Quadratic regularizers with unpenalized directions, of which an unpenalized intercept is a special case."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from riskmin.core import Array, Cut, NDArray
from riskmin.regularizers.base import ArrayDataclass, Regularizer
from riskmin.regularizers.norms import Quadratic
from riskmin.regularizers.separable import L2


@dataclass(frozen=True, eq=False, repr=False)
class Equality(ArrayDataclass, Regularizer):
    r"""A quadratic regularizer that does not penalize the part of w in the span of the rows of C,

    .. math:: \Omega(w) = \min_s\; \Omega_0(w - C^\top s), \qquad
              \Omega^*(v) = \Omega_0^*(v) \text{ for } C v = 0,

    and infinite for other v: an equality constraint of the dual problem. Only cuts that satisfy it give a
    finite lower bound; the solver for it is `AugmentedLagrangian`.

    Parameters
    ----------
    reg : L2 or Quadratic
        :math:`\Omega_0`.
    C : (m, p) array
        The unpenalized directions, one per row, linearly independent.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002, appendix D.

    Examples
    --------
    >>> import numpy as np
    >>> reg = Equality(L2(), [[1.0, 1.0]])  # only the difference of the two weights is penalized
    >>> reg.value(np.array([5.0, 5.0])), reg.value(np.array([6.0, 4.0]))
    (0.0, 1.0)
    >>> reg.conjugate(np.array([1.0, -1.0])), reg.conjugate(np.array([1.0, 0.0]))
    (1.0, inf)
    """

    CONSTRAINT_TOLERANCE = 1e-12
    """A residual |C u| up to this, relative to the sizes of C and u, counts as zero (rounding)."""

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

    @property
    def free_directions(self) -> NDArray:
        """The rows of C."""
        return self.C

    @cached_property
    def _weighted_rows(self) -> tuple[NDArray, NDArray]:
        """The matrices C K and C K C', where Omega_0(w) = w' K w / 2."""
        CK = np.stack([np.asarray(self.reg.grad(row)) for row in self.C])
        return CK, CK @ self.C.T

    def free_coefficients(self, w: Array) -> Array:
        """Return the s that minimizes Omega_0(w - C's)."""
        # the gradient in s vanishes: C K (w - C's) = 0
        CK, G = self._weighted_rows
        return np.linalg.solve(G, CK @ w)

    def value(self, w: Array) -> float:
        """Return min_s Omega_0(w - C's)."""
        return float(self.reg.value(w - self.free_coefficients(w) @ self.C))

    def grad(self, w: Array) -> Array:
        """Return the gradient, which is orthogonal to the rows of C."""
        return self.reg.grad(w - self.free_coefficients(w) @ self.C)

    def prox(self, v: Array, step: float) -> Array:
        """Return argmin_w step Omega(w) + |w - v|^2 / 2."""
        if step == 0:
            return v
        # split v into its free part, which is unchanged, and the orthogonal part
        CC = self.C @ self.C.T
        orthogonal = v - np.linalg.solve(CC, self.C @ v) @ self.C
        # prox of Omega_0 is (I + step K)^-1; Woodbury's formula corrects it for the constraint
        B = np.stack([self.reg.prox(row, step) for row in self.C])
        x = self.reg.prox(orthogonal, step)
        # correct the orthogonal part; then replace the free part of x by that of v
        x = x + np.linalg.solve(CC - B @ self.C.T, self.C @ x) @ B
        return x + np.linalg.solve(CC, self.C @ (v - x)) @ self.C

    def _satisfies_constraint(self, u: Array) -> bool:
        """Whether C u = 0 up to rounding."""
        return bool(
            np.all(
                np.abs(self.C @ u) <= self.CONSTRAINT_TOLERANCE * np.abs(self.C).sum(axis=1) * np.abs(u).max()
            )
        )

    def conjugate(self, u: Array) -> float:
        """Return the conjugate of Omega_0 if C u = 0, else infinity."""
        return float(self.reg.conjugate(u)) if self._satisfies_constraint(u) else math.inf

    def conjugate_grad(self, u: Array) -> Array:
        """Return the point without free part that attains the conjugate; raise a TypeError if none does."""
        if not self._satisfies_constraint(u):
            raise TypeError("the conjugate of Equality is infinite where C u is not 0, so it has no gradient")
        return self.reg.conjugate_grad(u)

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the best scale for Omega_0; 0 for a cut that does not satisfy the constraint."""
        return float(self.reg.scale(cut, lam)) if self._satisfies_constraint(cut.a) else 0.0

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """Return t -> (Omega(w + t d), its derivative), from three inner products."""
        # Omega(w + t d) = Omega(w) + t w'g + t^2 d'g / 2, with g the gradient of Omega at d
        g = self.grad(d)
        ww, wd, dd = 2 * self.value(w), float(w @ g), float(d @ g)
        return lambda t: (0.5 * ww + t * wd + 0.5 * t * t * dd, wd + t * dd)
