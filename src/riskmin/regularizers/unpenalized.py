"""No penalty at all, or none of the last entries of w: the intercepts of multi-output models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut
from riskmin.regularizers.adapt import as_regularizer
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.separable import SeparableTerms


@dataclass(frozen=True)
class NoPenalty(Regularizer):
    r"""No penalty, :math:`\Omega = 0`. Its conjugate is infinite but at 0: only constant cuts count."""

    formula = "0"

    def value(self, w: Array) -> float:
        """Return 0."""
        return 0.0

    def prox(self, v: Array, step: float) -> Array:
        """Return v itself."""
        return 1.0 * v

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
