"""A regularizer that does not penalize the last entries of w: the intercepts of multi-output models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut, HasInverseMetric, Regularizer, Smooth
from riskmin.regularizers.separable import SeparableTerms


@dataclass(frozen=True)
class UnpenalizedTail:
    r"""A regularizer of all but the last m entries of w, :math:`\Omega(w_{1 \ldots d - m})`.

    Its conjugate is infinite unless u is zero in the last m entries. `Objective` wraps its regularizer in
    this class if the risk has intercepts in w.

    Parameters
    ----------
    penalized : Regularizer
        The regularizer of the first entries.
    m : int
        The number of unpenalized entries.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2
    >>> unpenalized_tail(L2(), 1).value(np.array([3.0, 100.0]))
    4.5
    """

    penalized: Any
    m: int

    @property
    def formula(self) -> str:
        """The formula of the wrapped regularizer."""
        return str(getattr(self.penalized, "formula", repr(self.penalized)))

    @property
    def polyhedral(self) -> bool:
        """Whether the wrapped regularizer is polyhedral."""
        return bool(getattr(self.penalized, "polyhedral", False))

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


@dataclass(frozen=True)
class SmoothUnpenalizedTail(UnpenalizedTail):
    """An `UnpenalizedTail` of a differentiable regularizer.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2
    >>> unpenalized_tail(L2(), 1).grad(np.array([3.0, 100.0])).tolist()
    [3.0, 0.0]
    """

    def grad(self, w: Array) -> Array:
        """Return the gradient, zero in the unpenalized entries."""
        return self._with(self.penalized.grad(w[: -self.m]), 0.0 * w[-self.m :])


@dataclass(frozen=True)
class QuadraticUnpenalizedTail(SmoothUnpenalizedTail):
    """An `UnpenalizedTail` of a quadratic regularizer w' K w / 2.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2
    >>> reg = unpenalized_tail(L2(), 1)
    >>> reg.inverse_metric_product(np.array([[3.0, 0.0]]), np.array([2.0, 0.0])).tolist()
    [6.0]
    """

    def inverse_metric_product(self, A: Array, a: Array) -> Array:
        """Return A K^-1 a for cuts whose slopes in the unpenalized entries are zero."""
        return self.penalized.inverse_metric_product(A[:, : -self.m], a[: -self.m])


def unpenalized_tail(reg: Regularizer, m: int) -> Any:
    """Return the regularizer with the last m entries unpenalized; unchanged if m is 0 or they are already.

    Examples
    --------
    >>> from riskmin import L1, L2
    >>> [type(unpenalized_tail(reg, 3)).__name__ for reg in (L2(), L1())], unpenalized_tail(L1(), 0)
    (['QuadraticUnpenalizedTail', 'UnpenalizedTail'], L1())
    """
    if m == 0 or isinstance(reg, UnpenalizedTail):
        return reg
    # the class that has the optional methods of the regularizer, and no others
    if not isinstance(reg, Smooth):
        return UnpenalizedTail(reg, m)
    return (
        QuadraticUnpenalizedTail(reg, m)
        if isinstance(reg, HasInverseMetric)
        else SmoothUnpenalizedTail(reg, m)
    )


def penalized_part(reg: Any) -> Any:
    """Return the wrapped regularizer of the penalized entries; any other regularizer unchanged.

    Examples
    --------
    >>> from riskmin import L1
    >>> penalized_part(unpenalized_tail(L1(), 3)), penalized_part(L1())
    (L1(), L1())
    """
    return reg.penalized if isinstance(reg, UnpenalizedTail) else reg
