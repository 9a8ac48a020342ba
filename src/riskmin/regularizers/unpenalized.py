"""Regularizers without a penalty of all of w, of its last entries (intercepts), or of directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut, NDArray
from riskmin.regularizers.base import ArrayDataclass, Regularizer, quadratic_line
from riskmin.regularizers.from_conjugate import as_regularizer
from riskmin.regularizers.norms import Quadratic
from riskmin.regularizers.separable import L2, SeparableTerms


@dataclass(frozen=True)
class NoPenalty(Regularizer):
    r"""No penalty, :math:`\Omega = 0`. Its conjugate counts as infinite but at 0: only constant cuts count.

    Parameters
    ----------
    domain : Regularizer, optional
        One whose bounds or linear constraints hold for w, without its penalty.
    """

    domain: Any = None

    formula = "0"

    def value(self, w: Array) -> float:
        """Return 0; infinity outside the domain."""
        inside = self.domain is None or math.isfinite(self.domain.value(w))
        return 0.0 if inside else math.inf

    def prox(self, v: Array, step: float) -> Array:
        """Return the point of the domain that is nearest to v."""
        return 1.0 * v if self.domain is None else self.domain.prox(v, 0.0)

    def reach(self, w: Array, d: Array) -> float:
        """Return the largest step along d within the domain."""
        return math.inf if self.domain is None else float(self.domain.reach(w, d))

    def conjugate(self, u: Array) -> float:
        """Return 0 for u = 0, else infinity."""
        return math.inf if bool(namespace(u).any(u != 0)) else 0.0

    def conjugate_grad(self, u: Array) -> Array:
        """Return zero, one of the points that attain the conjugate at u = 0."""
        return 0.0 * u

    def scale(self, cut: Cut, lam: float) -> float:
        """Return 1 for a constant cut, else 0."""
        return 0.0 if bool(namespace(cut.a).any(cut.a != 0)) else 1.0

    def grad(self, w: Array) -> Array:
        """Return zero."""
        return 0.0 * w


@dataclass(frozen=True)
class UnpenalizedTail(Regularizer):
    r"""A regularizer of all but the last m entries of w, :math:`\Omega(w_{1 \ldots d - m})`.

    Its conjugate is infinite unless u is zero in the last m entries. `Objective` wraps its regularizer in
    this class if the risk has intercepts in w.

    Parameters
    ----------
    penalized : Regularizer
        The regularizer of the first entries.
    m : int
        The number of unpenalized entries.
    """

    penalized: Any
    m: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalized", as_regularizer(self.penalized))
        object.__setattr__(self, "formula", self.penalized.formula or repr(self.penalized))
        object.__setattr__(self, "polyhedral", self.penalized.polyhedral)
        object.__setattr__(self, "n_unpenalized", self.m)

    @property
    def penalized_part(self) -> Regularizer:
        """The regularizer of the first entries."""
        result: Regularizer = self.penalized
        return result

    def _with(self, head: Array, tail: Array) -> Array:
        return namespace(head).concat([head, tail])

    def value(self, w: Array) -> float:
        """Return Omega of the penalized entries."""
        return float(self.penalized.value(w[: -self.m]))

    def prox(self, v: Array, step: float) -> Array:
        """Return the proximal point of the penalized entries; the others are unchanged."""
        return self._with(self.penalized.prox(v[: -self.m], step), v[-self.m :])

    def conjugate(self, u: Array) -> float:
        """Return the conjugate of the penalized entries if the other entries of u are zero, else infinity."""
        # sup over an unpenalized w_j of u_j w_j is infinite unless u_j = 0
        if bool(namespace(u).any(u[-self.m :] != 0)):
            return math.inf
        return float(self.penalized.conjugate(u[: -self.m]))

    def conjugate_grad(self, u: Array) -> Array:
        """Return the gradient for the penalized entries, and zero for the others, where u is zero.

        Any value of an unpenalized entry attains the conjugate.
        """
        return self._with(self.penalized.conjugate_grad(u[: -self.m]), 0.0 * u[-self.m :])

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the best scale; 0 for a cut that is not constant in the unpenalized entries."""
        # Omega*(-s a / lam) is finite only for s = 0 then
        if bool(namespace(cut.a).any(cut.a[-self.m :] != 0)):
            return 0.0
        return float(self.penalized.scale(Cut(cut.a[: -self.m], cut.b), lam))

    def bound(self, cut: Cut, lam: float) -> float:
        """Return the bound of the penalized entries; 0 for a cut that is not constant in the others."""
        if bool(namespace(cut.a).any(cut.a[-self.m :] != 0)):
            cut = Cut(0.0 * cut.a, 0.0)
        return float(self.penalized.bound(Cut(cut.a[: -self.m], cut.b), lam))

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """Return the line function of the penalized entries, t -> (Omega(w + t d), its derivative)."""
        result: Callable[[float], tuple[float, float]] = self.penalized.line(w[: -self.m], d[: -self.m])
        return result

    def reach(self, w: Array, d: Array) -> float:
        """Return the largest step of the penalized entries."""
        return float(self.penalized.reach(w[: -self.m], d[: -self.m]))

    def terms(self, w: Array) -> SeparableTerms:
        """Return the coefficients of the sum over coordinates, zero for the unpenalized entries."""
        # in the order of SeparableTerms: l = 0, m = 0 and no bounds for the unpenalized entries
        inner, xp = self.penalized.terms(w[: -self.m]), namespace(w)
        zero, tail = 0.0 * w[: -self.m], 0.0 * w[-self.m :]
        ends = (0.0, 0.0, -math.inf, math.inf)
        return SeparableTerms(
            *(xp.concat([t + zero, end + tail]) for t, end in zip(inner, ends, strict=True))
        )

    @property
    def separable(self) -> bool:
        """Whether the wrapped regularizer is a sum over coordinates."""
        return bool(self.penalized.separable)

    def grad(self, w: Array) -> Array:
        """Return the gradient, zero in the unpenalized entries."""
        return self._with(self.penalized.grad(w[: -self.m]), 0.0 * w[-self.m :])

    @property
    def smooth(self) -> bool:
        """Whether the wrapped regularizer is differentiable."""
        return bool(self.penalized.smooth)

    def inverse_metric_product(self, A: Array, a: Array) -> Array:
        """Return A K^-1 a for cuts whose slopes in the unpenalized entries are zero."""
        return self.penalized.inverse_metric_product(A[:, : -self.m], a[: -self.m])

    @property
    def quadratic(self) -> bool:
        """Whether the wrapped regularizer is a quadratic form."""
        return bool(self.penalized.quadratic)


def unpenalized_tail(reg: Regularizer, m: int) -> Regularizer:
    """Return the regularizer with the last m entries unpenalized; unchanged if m is 0 or they are already."""
    return reg if m == 0 or reg.n_unpenalized else UnpenalizedTail(reg, m)


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
    polyhedral = True

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

    line = quadratic_line
