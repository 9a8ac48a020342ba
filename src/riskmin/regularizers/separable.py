r"""Regularizers that are sums over coordinates,

.. math:: \Omega(w) = \sum_j l_j |w_j| + \tfrac{m_j}2 w_j^2 \quad\text{for } lower_j \le w_j \le upper_j,

written once for all of them: `L1`, `L2`, `Elastic`, and each of these within a `Box`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays import namespace
from riskmin.regularizers.base import SLACK, Comparable, best_scale, by_feature, by_values, check_setting
from riskmin.types import Array, Cut, NDArray

Setting = float | NDArray


class Terms(NamedTuple):
    """The coefficients of a sum over coordinates: each a number, or an array with one a feature."""

    absolute: Any
    square: Any
    lower: Any
    upper: Any


class Separable(Comparable, ABC):
    """All that duality asks of a sum over coordinates, from its `terms`."""

    @abstractmethod
    def terms(self, w: Array) -> Terms:
        """The coefficients, in w's library."""

    @property
    def polyhedral(self) -> bool:
        """Whether there is no square in it, so that the model of a bundle is a linear program."""
        return False

    def value(self, w: Array) -> float:
        """Omega(w); infinite outside the box."""
        xp, t = namespace(w), self.terms(w)
        slack = SLACK * (1 + xp.abs(w))
        if bool(xp.any(w < t.lower - slack)) or bool(xp.any(w > t.upper + slack)):
            return math.inf
        return float(xp.sum(t.absolute * xp.abs(w) + 0.5 * t.square * w * w))

    def slope(self, w: Array, d: Array) -> float:
        """The slope of Omega along d, ahead of w."""
        xp, t = namespace(w), self.terms(w)
        signs = xp.where(w == 0, xp.sign(d), xp.sign(w))
        return float(xp.sum((t.absolute * signs + t.square * w) * d))

    def prox(self, v: Array, step: float) -> Array:
        """The soft threshold of v, shrunk, within the box."""
        t = self.terms(v)
        return _clip(_soft(v, step * t.absolute) / (1 + step * t.square), t)

    def conjugate(self, u: Array) -> float:
        """sum_j max over w_j of u_j w_j - l_j |w_j| - m_j w_j^2 / 2."""
        w = self._best(u)
        xp, t = namespace(u), self.terms(u)
        if not bool(xp.all(xp.isfinite(w))):
            return math.inf
        return float(xp.sum(u * w - t.absolute * xp.abs(w) - 0.5 * t.square * w * w))

    def conjugate_grad(self, u: Array) -> Array:
        """The w that attains the conjugate; where that is no point, TypeError."""
        w = self._best(u)
        if self.polyhedral and not bool(namespace(w).all(namespace(w).isfinite(w))):
            raise TypeError(f"the conjugate of {self!r} is infinite there, so it has no gradient")
        return w

    def _best(self, u: Array) -> Array:
        xp, t = namespace(u), self.terms(u)
        soft = _soft(u, t.absolute)
        if not self.polyhedral:
            return _clip(soft / t.square, t)
        far = math.inf + 0.0 * soft
        return _clip(xp.where(soft > 0, far, xp.where(soft < 0, -far, soft)), t)

    def scale(self, cut: Cut, lam: float) -> float:
        """The best shrinkage: where the conjugate is an indicator, as large as it lets the cut be."""
        return best_scale(self, cut, lam, self._largest(cut.a, lam) if self.polyhedral else 1.0)

    def _largest(self, a: Array, lam: float) -> float:
        """The largest s <= 1 for which Omega*(-s a / lam) is finite."""
        xp, t = namespace(a), self.terms(a)
        # where -a pulls w to a side that has no bound
        open_side = (a < 0) & (t.upper == math.inf) | (a > 0) & (t.lower == -math.inf)
        size = xp.where(open_side, xp.abs(a) / (lam * t.absolute), 0.0 * a)
        largest = float(xp.max(size)) if len(a) else 0.0
        most = 1 - 8 * float(xp.finfo(a.dtype).eps)  # the bound must not become infinite by rounding
        return 1.0 if largest < most else most / largest

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> Omega(w + t d) and its slope."""
        return by_values(self, w, d)

    def reach(self, w: Array, d: Array) -> float:
        """How far w + t d stays in the box."""
        xp, t = namespace(w), self.terms(w)
        room = xp.where(d > 0, t.upper - w, xp.where(d < 0, w - t.lower, math.inf))
        size = xp.abs(d)
        ahead = xp.where(size > 0, xp.maximum(room, 0.0 * w) / xp.where(size > 0, size, 1.0 + size), math.inf)
        return float(xp.min(ahead))

    def conjugate_bend(self, u: Array, A: Array) -> Array:
        """A H A' for the derivative H of `conjugate_grad`: a diagonal, zero where w does not move."""
        xp, t = namespace(u), self.terms(u)
        w = self._best(u)
        moves = xp.nonzero((xp.abs(u) > t.absolute) & (w > t.lower) & (w < t.upper))[0]
        half = A[:, moves] / xp.sqrt(t.square + 0.0 * u)[moves]
        return half @ half.T


def _soft(v: Array, threshold: Any) -> Array:
    """V, nearer to zero by the threshold."""
    xp = namespace(v)
    most = threshold + xp.zeros_like(v)
    return v - xp.minimum(xp.maximum(v, -most), most)


def _clip(w: Array, t: Terms) -> Array:
    xp = namespace(w)
    zero = xp.zeros_like(w)
    return xp.minimum(xp.maximum(w, t.lower + zero), t.upper + zero)


@dataclass(frozen=True, eq=False, repr=False)
class L2(Separable):
    r"""The squared Euclidean norm, :math:`\Omega(w) = \tfrac12 \sum_j m_j w_j^2`, its own conjugate.

    Parameters
    ----------
    weights : float or (p,) array
        The :math:`m_j > 0`: how much each feature is penalized.

    Examples
    --------
    >>> import numpy as np
    >>> L2().value(np.array([3.0, 4.0])), L2(weights=[1.0, 2.0]).value(np.array([3.0, 4.0]))
    (12.5, 20.5)
    """

    weights: Setting = 1.0

    formula = "|w|^2 / 2"

    def __post_init__(self) -> None:
        check_setting(self, "weights", lambda v: (v > 0) & np.isfinite(v), "numbers > 0")

    @property
    def plain(self) -> bool:
        """Whether all features are penalized alike, with factor 1."""
        return isinstance(self.weights, float) and self.weights == 1.0

    def terms(self, w: Array) -> Terms:
        return Terms(0.0, by_feature(self.weights, w, "weights"), -math.inf, math.inf)

    def value(self, w: Array) -> float:
        """sum_j m_j w_j^2 / 2."""
        return 0.5 * float(w @ (w if self.plain else self.terms(w).square * w))

    def grad(self, w: Array) -> Array:
        """M w."""
        return w if self.plain else self.terms(w).square * w

    def scaled(self, s: NDArray) -> L2:
        """The same function of v = w / s."""
        return L2(self.weights * s * s)

    def conjugate(self, u: Array) -> float:
        """sum_j u_j^2 / (2 m_j)."""
        return 0.5 * float(u @ (u if self.plain else u / self.terms(u).square))

    def conjugate_grad(self, u: Array) -> Array:
        """U / m."""
        return u if self.plain else u / self.terms(u).square

    def gram(self, A: Array, a: Array) -> Array:
        """The inner products of the conjugate's norm."""
        return A @ self.conjugate_grad(a)

    def scale(self, cut: Cut, lam: float) -> float:
        """The maximizer of s b - s^2 |a|^2 / (2 lam) over [0, 1]."""
        q = 2 * self.conjugate(cut.a)
        return min(1.0, max(0.0, lam * cut.b / q)) if q else float(cut.b > 0)

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> |w + t d|^2 / 2 and its slope, from three inner products."""
        ww, wd, dd = 2 * self.value(w), float(self.grad(w) @ d), 2 * self.value(d)
        return lambda t: (0.5 * ww + t * wd + 0.5 * t * t * dd, wd + t * dd)

    def reach(self, w: Array, d: Array) -> float:
        """Any distance."""
        return math.inf


@dataclass(frozen=True, eq=False, repr=False)
class L1(Separable):
    r"""The sum of absolute values, :math:`\Omega(w) = \sum_j l_j |w_j|`, which makes w sparse.

    Its conjugate is 0 where :math:`|u_j| \le l_j` for all j and infinite elsewhere, so a cut bounds as far
    as it can be shrunk into that box.

    Parameters
    ----------
    weights : float or (p,) array
        The :math:`l_j > 0`: how much each feature is penalized.

    Examples
    --------
    >>> import numpy as np
    >>> L1().value(np.array([3.0, -4.0]))
    7.0
    >>> L1().prox(np.array([3.0, -0.5]), 1.0).tolist()
    [2.0, 0.0]
    """

    weights: Setting = 1.0

    formula = "|w|_1"
    polyhedral = True

    def __post_init__(self) -> None:
        check_setting(self, "weights", lambda v: (v > 0) & np.isfinite(v), "numbers > 0")

    def terms(self, w: Array) -> Terms:
        return Terms(by_feature(self.weights, w, "weights"), 0.0, -math.inf, math.inf)

    def scaled(self, s: NDArray) -> L1:
        """The same function of v = w / s, for s > 0."""
        return L1(self.weights * s)

    def conjugate(self, u: Array) -> float:
        """0 where all |u_j| <= l_j, else infinite."""
        xp = namespace(u)
        return 0.0 if not len(u) or float(xp.max(xp.abs(u) - self.terms(u).absolute)) <= 0 else math.inf

    def scale(self, cut: Cut, lam: float) -> float:
        """The bound is s b: as large an s as the conjugate allows."""
        return self._largest(cut.a, lam) if cut.b > 0 else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Elastic(Separable):
    r"""Absolute values and squares, :math:`\Omega(w) = \sum_j m_j (\epsilon |w_j| + \tfrac12 w_j^2)`.

    With m = 1 this is the sparse regularization of Zhang (2002, equation 16): :math:`w_j` is zero where
    :math:`|v_j| \le \epsilon` in the dual. scikit-learn's ``ElasticNet(alpha, l1_ratio)`` is
    ``lam = alpha * (1 - l1_ratio)`` and ``eps = l1_ratio / (1 - l1_ratio)``.

    Parameters
    ----------
    eps : float or (p,) array
        The share of the absolute values, >= 0.
    weights : float or (p,) array
        The :math:`m_j > 0`: how much each feature is penalized.

    Examples
    --------
    >>> import numpy as np
    >>> Elastic(eps=0.5).value(np.array([3.0, -4.0]))
    16.0
    >>> Elastic(eps=0.5).conjugate_grad(np.array([2.0, -0.3])).tolist()
    [1.5, 0.0]
    """

    eps: Setting = 0.5
    weights: Setting = 1.0

    formula = "eps |w|_1 + |w|^2 / 2"

    def __post_init__(self) -> None:
        check_setting(self, "eps", lambda v: (v >= 0) & np.isfinite(v), "a number >= 0")
        check_setting(self, "weights", lambda v: (v > 0) & np.isfinite(v), "numbers > 0")

    def terms(self, w: Array) -> Terms:
        weights = by_feature(self.weights, w, "weights")
        return Terms(by_feature(self.eps, w, "eps") * weights, weights, -math.inf, math.inf)

    def scaled(self, s: NDArray) -> Elastic:
        """The same function of v = w / s, for s > 0."""
        return Elastic(self.eps / s, self.weights * s * s)


@dataclass(frozen=True, eq=False, repr=False)
class Box(Separable):
    r"""A regularizer within bounds, :math:`\Omega(w)` for :math:`lower \le w \le upper`, else infinite.

    Parameters
    ----------
    reg : L1, L2 or Elastic
        What is bounded.
    lower, upper : float or (p,) array
        The bounds; nonnegative weights by default.

    Examples
    --------
    >>> import numpy as np
    >>> Box(L2()).conjugate_grad(np.array([2.0, -1.0])).tolist()
    [2.0, 0.0]
    >>> Box(L1(), -1.0, 1.0).prox(np.array([5.0, -1.5]), 1.0).tolist()
    [1.0, -0.5]
    """

    reg: Separable
    lower: Setting = 0.0
    upper: Setting = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.reg, (L1, L2, Elastic)):
            raise TypeError(f"Box bounds L1(), L2() or Elastic(), not {self.reg!r}")
        check_setting(self, "lower", lambda v: v < math.inf, "numbers below infinity")
        check_setting(self, "upper", lambda v: v > -math.inf, "numbers above minus infinity")
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        if lower.ndim and upper.ndim and lower.shape != upper.shape:
            raise ValueError(
                f"Box has bounds for {len(lower)} and for {len(upper)} features: give as many of both"
            )
        if not np.all(lower <= upper):
            raise ValueError(
                f"Box needs lower <= upper for every feature, not {self.lower!r} and {self.upper!r}"
            )

    @property
    def formula(self) -> str:
        """In one line of plain text."""
        return f"{self.reg.formula}, lower <= w <= upper"  # type: ignore[attr-defined]

    @property
    def polyhedral(self) -> bool:
        """As what is bounded."""
        return self.reg.polyhedral

    def scaled(self, s: NDArray) -> Box:
        """The same function of v = w / s, for s > 0."""
        inner: Any = self.reg
        return Box(inner.scaled(s), self.lower / s, self.upper / s)

    def terms(self, w: Array) -> Terms:
        inner = self.reg.terms(w)
        return Terms(
            inner.absolute,
            inner.square,
            by_feature(self.lower, w, "lower"),
            by_feature(self.upper, w, "upper"),
        )
