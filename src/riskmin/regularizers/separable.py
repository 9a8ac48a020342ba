r"""Separable regularizers: sums over coordinates,

.. math:: \Omega(w) = \sum_j l_j |w_j| + \tfrac{m_j}2 w_j^2 \quad\text{for } lower_j \le w_j \le upper_j,

implemented once for `L1`, `L2`, `Elastic`, and each of these within a `Box`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut, NDArray
from riskmin.core.deadline import check_each
from riskmin.regularizers.base import (
    SAFE_SHARE,
    ArrayDataclass,
    Regularizer,
    as_setting,
    best_scale,
    by_feature,
    check_setting,
    quadratic_bound,
    quadratic_line,
    quadratic_scale,
)

Setting = float | NDArray


class SeparableTerms(NamedTuple):
    """The coefficients of a separable regularizer, each a number or an array with one entry per feature."""

    absolute: Any
    """The l_j."""
    square: Any
    """The m_j."""
    lower: Any
    upper: Any

    @property
    def unbounded(self) -> bool:
        """Whether no coordinate has a bound: both are infinite numbers."""
        return type(self.lower) is type(self.upper) is float and self.lower == -math.inf == -self.upper


UNPENALIZED_SHARE = 1e-9
"""A factor of 0 counts as this share of the largest one, and as its square where weights are squared.

Without any penalty of a weight, a cut proves nothing unless its slope there is exactly zero.
"""


def check_factors(reg: Any, share: float) -> None:
    """Check the penalty factors of a regularizer, and replace those of 0 by a share of the largest one."""
    check_setting(
        reg,
        "weights",
        lambda v: (v >= 0) & np.isfinite(v) & (v.max(initial=0.0) > 0),
        "numbers >= 0, and one of them > 0",
    )
    factors = reg.weights
    if type(factors) is not float and not factors.all():
        object.__setattr__(reg, "weights", as_setting(np.where(factors == 0, share * factors.max(), factors)))


class Separable(ArrayDataclass, Regularizer):
    """A separable regularizer with its conjugate, defined by its coefficients, `terms`."""

    def domain_support(self, a: Array) -> float:
        """Return the sum of the largest a_j w_j within the bounds."""
        xp, t = namespace(a), self.terms(a)
        zero = xp.zeros_like(a)
        ends = xp.where(a > 0, t.upper + zero, t.lower + zero)
        return float(xp.sum(xp.where(a != 0, a * xp.where(a != 0, ends, zero), zero)))

    @abstractmethod
    def terms(self, w: Array) -> SeparableTerms:
        """Return the coefficients, in the array library of w."""

    def value(self, w: Array) -> float:
        """Return Omega(w); infinite outside the box."""
        xp, t = namespace(w), self.terms(w)
        if not t.unbounded:
            # points outside by rounding errors count as inside
            slack = self.DOMAIN_TOLERANCE * (1 + xp.abs(w))
            if bool(xp.any(w < t.lower - slack)) or bool(xp.any(w > t.upper + slack)):
                return math.inf
        return float(xp.sum(t.absolute * xp.abs(w) + 0.5 * t.square * w * w))

    def slope(self, w: Array, d: Array) -> float:
        """Return the one-sided derivative of Omega at w along d."""
        xp, t = namespace(w), self.terms(w)
        # |w_j| at w_j = 0 has the one-sided derivative |d_j|
        signs = xp.where(w == 0, xp.sign(d), xp.sign(w))
        return float(xp.sum((t.absolute * signs + t.square * w) * d))

    def prox(self, v: Array, step: float) -> Array:
        """Return v, shrunk toward zero by step l_j, divided by 1 + step m_j, and clipped to the box."""
        t = self.terms(v)
        return clip_to_box(shrink(v, step * t.absolute) / (1 + step * t.square), t)

    def conjugate(self, u: Array) -> float:
        """Return sum_j max over w_j of u_j w_j - l_j |w_j| - m_j w_j^2 / 2."""
        w = self._conjugate_argmax(u)
        xp, t = namespace(u), self.terms(u)
        # an infinite maximizer: u_j w_j - l_j |w_j| grows without bound
        if not bool(xp.all(xp.isfinite(w))):
            return math.inf
        return float(xp.sum(u * w - t.absolute * xp.abs(w) - 0.5 * t.square * w * w))

    def conjugate_grad(self, u: Array) -> Array:
        """Return the w that attains the conjugate; raise a TypeError if none does."""
        w = self._conjugate_argmax(u)
        if self.polyhedral and not bool(namespace(w).all(namespace(w).isfinite(w))):
            raise TypeError(f"the conjugate of {self!r} is infinite at this point, so it has no gradient")
        return w

    def _conjugate_argmax(self, u: Array) -> Array:
        """Return the maximizer of u @ w - Omega(w), with infinite entries where there is none."""
        xp, t = namespace(u), self.terms(u)
        shrunk = shrink(u, t.absolute)
        # stationary point of u w - l |w| - m w^2 / 2; without a square, the maximum is at 0 or at a bound
        if not self.polyhedral:
            return clip_to_box(shrunk / t.square, t)
        infinity = math.inf + 0.0 * shrunk
        return clip_to_box(xp.where(shrunk > 0, infinity, xp.where(shrunk < 0, -infinity, shrunk)), t)

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the best scale; if the conjugate is an indicator function, the largest feasible one."""
        if self.polyhedral:
            return best_scale(self, cut, lam, self._largest_scale(cut.a, lam))
        t = self.terms(cut.a)
        return self._newton_scale(cut, lam, t) if t.unbounded else best_scale(self, cut, lam)

    def _newton_scale(self, cut: Cut, lam: float, t: SeparableTerms) -> float:
        """Return the best scale without bounds of w, the root in [0, 1] of the derivative of s -> bound,

        b - sum_j |a_j| max(s |a_j| / lam - l_j, 0) / m_j: concave and piecewise linear in s, so that Newton's
        steps from s = 1 end at the root from above.
        """
        if not cut.b > 0:
            return 0.0
        xp, size, s = namespace(cut.a), abs(cut.a), 1.0
        zero = 0.0 * size
        for _ in check_each(range(1000)):
            excess = s / lam * size - t.absolute
            active = excess > 0
            if cut.b >= float(xp.sum(size * xp.where(active, excess / t.square, zero))):
                break
            # the root of the linear piece
            steepness = float(xp.sum(size * xp.where(active, size / t.square, zero))) / lam
            if not 0 < steepness < math.inf:  # squares underflow or overflow
                return best_scale(self, cut, lam)
            kinks = float(xp.sum(size * xp.where(active, t.absolute / t.square + zero, zero)))
            new = (cut.b + kinks) / steepness
            if not new < s:
                break
            s = new
        return s

    def _largest_scale(self, a: Array, lam: float) -> float:
        """Return the largest s <= 1 for which Omega*(-s a / lam) is finite."""
        xp, t = namespace(a), self.terms(a)
        # coordinates in which -a points to an infinite bound
        open_side = (a < 0) & (t.upper == math.inf) | (a > 0) & (t.lower == -math.inf)
        # Omega* is finite iff |s a_j| / lam <= l_j in these coordinates
        size = xp.where(open_side, xp.abs(a) / (lam * t.absolute), 0.0 * a)
        largest = float(xp.max(size)) if len(a) else 0.0
        return 1.0 if largest < SAFE_SHARE else SAFE_SHARE / largest

    def reach(self, w: Array, d: Array) -> float:
        """Return the largest t for which w + t d is in the box."""
        xp, t = namespace(w), self.terms(w)
        # the distance to the bound in the direction of d_j, over |d_j|
        distance = xp.where(d > 0, t.upper - w, xp.where(d < 0, w - t.lower, math.inf))
        size = xp.abs(d)
        ahead = xp.where(
            size > 0, xp.maximum(distance, 0.0 * w) / xp.where(size > 0, size, 1.0 + size), math.inf
        )
        return float(xp.min(ahead))

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A' for the Hessian H of the conjugate: diagonal, 1 / m_j or 0 where w_j is constant."""
        xp, t = namespace(u), self.terms(u)
        w = self._conjugate_argmax(u)
        # w_j depends on u_j only where |u_j| exceeds l_j and w_j is strictly inside the box
        active = xp.nonzero((xp.abs(u) > t.absolute) & (w > t.lower) & (w < t.upper))[0]
        half = A[:, active] / xp.sqrt(t.square + 0.0 * u)[active]
        return half @ half.T


def shrink(v: Array, threshold: Any) -> Array:
    """Return v, shrunk toward zero by the threshold: v - clip(v, -threshold, threshold)."""
    xp = namespace(v)
    bound = threshold + xp.zeros_like(v)
    return v - xp.minimum(xp.maximum(v, -bound), bound)


def clip_to_box(w: Array, t: SeparableTerms) -> Array:
    """Return w, clipped to the bounds."""
    if t.unbounded:
        return w
    xp = namespace(w)
    zero = xp.zeros_like(w)
    return xp.minimum(xp.maximum(w, t.lower + zero), t.upper + zero)


@dataclass(frozen=True, eq=False, repr=False)
class L2(Separable):
    r"""The squared Euclidean norm, :math:`\Omega(w) = \tfrac12 \sum_j m_j w_j^2`; self-conjugate for m = 1.

    Parameters
    ----------
    weights : float or (p,) array
        The penalty factors :math:`m_j` of the features. A factor of 0 leaves a feature unpenalized, up to
        1e-18 of the largest factor, without which nothing could be proved.

    Examples
    --------
    >>> import numpy as np
    >>> L2().value(np.array([3.0, 4.0])), L2(weights=[1.0, 2.0]).value(np.array([3.0, 4.0]))
    (12.5, 20.5)
    """

    weights: Setting = 1.0

    can_be_bounded = True
    formula = "|w|^2 / 2"
    diagonal = True

    def __post_init__(self) -> None:
        check_factors(self, UNPENALIZED_SHARE**2)
        object.__setattr__(self, "unweighted", type(self.weights) is float and self.weights == 1.0)

    def terms(self, w: Array) -> SeparableTerms:
        return SeparableTerms(0.0, by_feature(self.weights, w, "weights"), -math.inf, math.inf)

    def value(self, w: Array) -> float:
        """Return sum_j m_j w_j^2 / 2."""
        return 0.5 * float(w @ (w if self.unweighted else self.terms(w).square * w))

    def grad(self, w: Array) -> Array:
        """Return m w."""
        return w if self.unweighted else self.terms(w).square * w

    def scaled(self, s: NDArray) -> L2:
        """Return the same function of v = w / s."""
        return L2(self.weights * s * s)

    def conjugate(self, u: Array) -> float:
        """Return sum_j u_j^2 / (2 m_j)."""
        return 0.5 * float(u @ (u if self.unweighted else u / self.terms(u).square))

    def conjugate_grad(self, u: Array) -> Array:
        """Return u / m."""
        return u if self.unweighted else u / self.terms(u).square

    def inverse_metric_product(self, A: Array, a: Array) -> Array:
        """Return A (a / m)."""
        return A @ self.conjugate_grad(a)

    scale = quadratic_scale
    bound = quadratic_bound
    line = quadratic_line

    def reach(self, w: Array, d: Array) -> float:
        """Return infinity: the domain is unbounded."""
        return math.inf


@dataclass(frozen=True, eq=False, repr=False)
class L1(Separable):
    r"""The sum of absolute values, :math:`\Omega(w) = \sum_j l_j |w_j|`, which makes w sparse.

    Its conjugate is 0 if :math:`|u_j| \le l_j` for all j, else infinite. The lower bound of a cut is
    therefore finite only if the cut is scaled into that box.

    Parameters
    ----------
    weights : float or (p,) array
        The penalty factors :math:`l_j` of the features. A factor of 0 leaves a feature unpenalized, up to
        1e-9 of the largest factor, without which nothing could be proved.

    Examples
    --------
    >>> import numpy as np
    >>> L1().value(np.array([3.0, -4.0]))
    7.0
    >>> L1().prox(np.array([3.0, -0.5]), 1.0).tolist()
    [2.0, 0.0]
    """

    weights: Setting = 1.0

    sum_of_absolutes = True
    can_be_bounded = True
    formula = "|w|_1"
    polyhedral = True

    def __post_init__(self) -> None:
        check_factors(self, UNPENALIZED_SHARE)

    def terms(self, w: Array) -> SeparableTerms:
        return SeparableTerms(by_feature(self.weights, w, "weights"), 0.0, -math.inf, math.inf)

    def value(self, w: Array) -> float:
        """Return sum_j l_j |w_j|."""
        return float(namespace(w).sum(self.terms(w).absolute * abs(w)))

    def scaled(self, s: NDArray) -> L1:
        """Return the same function of v = w / s, for s > 0."""
        return L1(self.weights * s)

    def conjugate(self, u: Array) -> float:
        """Return 0 if all |u_j| <= l_j, else infinity."""
        xp = namespace(u)
        return 0.0 if not len(u) or float(xp.max(xp.abs(u) - self.terms(u).absolute)) <= 0 else math.inf

    def _largest_scale(self, a: Array, lam: float) -> float:
        # the same numbers as for any bounds, in fewer operations: each step of a solver takes several scales
        xp = namespace(a)
        largest = float(xp.max(xp.abs(a) / (lam * self.terms(a).absolute))) if len(a) else 0.0
        return 1.0 if largest < SAFE_SHARE else SAFE_SHARE / largest

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the largest feasible s if b > 0, because the lower bound is s b; else 0."""
        return self._largest_scale(cut.a, lam) if cut.b > 0 else 0.0

    def bound(self, cut: Cut, lam: float) -> float:
        """Return s b: the conjugate is 0 at a feasible s."""
        return self._largest_scale(cut.a, lam) * cut.b if cut.b > 0 else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Elastic(Separable):
    r"""The elastic net, :math:`\Omega(w) = \sum_j m_j (\epsilon |w_j| + \tfrac12 w_j^2)`.

    With m = 1 this is the sparse regularization of Zhang (2002, equation 16): :math:`w_j` is zero if
    :math:`|v_j| \le \epsilon` in the dual. scikit-learn's ``ElasticNet(alpha, l1_ratio)`` corresponds to
    ``lam = alpha * (1 - l1_ratio)`` and ``eps = l1_ratio / (1 - l1_ratio)``.

    Parameters
    ----------
    eps : float or (p,) array
        The factor of the absolute values, >= 0.
    weights : float or (p,) array
        The penalty factors :math:`m_j > 0` of the features.

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

    sum_of_absolutes = True
    can_be_bounded = True
    formula = "eps |w|_1 + |w|^2 / 2"

    def __post_init__(self) -> None:
        check_setting(self, "eps", lambda v: (v >= 0) & np.isfinite(v), "a number >= 0")
        check_factors(self, UNPENALIZED_SHARE)

    def terms(self, w: Array) -> SeparableTerms:
        weights = by_feature(self.weights, w, "weights")
        return SeparableTerms(by_feature(self.eps, w, "eps") * weights, weights, -math.inf, math.inf)

    def scaled(self, s: NDArray) -> Elastic:
        """Return the same function of v = w / s, for s > 0."""
        # m (eps s |v| + s^2 v^2 / 2) = m s^2 (eps / s |v| + v^2 / 2)
        return Elastic(self.eps / s, self.weights * s * s)


@dataclass(frozen=True, eq=False, repr=False)
class Box(Separable):
    r"""A regularizer within bounds, :math:`\Omega(w)` for :math:`lower \le w \le upper`, else infinite.

    Parameters
    ----------
    reg : L1, L2 or Elastic
        The regularizer inside the bounds.
    lower, upper : float or (p,) array
        The bounds of the weights; 0 and infinity (nonnegative weights) by default.

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
        if not self.reg.can_be_bounded:
            raise TypeError(f"Box bounds L1(), L2() or Elastic(), not {self.reg!r}")
        object.__setattr__(self, "formula", f"{self.reg.formula}, lower <= w <= upper")
        object.__setattr__(self, "polyhedral", self.reg.polyhedral)
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

    def is_finite(self, dim: int) -> bool:
        """Whether no bound is finite."""
        return bool(np.all(np.isinf(self.lower)) and np.all(np.isinf(self.upper)))

    def scaled(self, s: NDArray) -> Box:
        """Return the same function of v = w / s, for s > 0, whose bounds are divided by s."""
        inner: Any = self.reg.scaled(s)
        return Box(inner, self.lower / s, self.upper / s)

    def terms(self, w: Array) -> SeparableTerms:
        inner = self.reg.terms(w)
        return SeparableTerms(
            inner.absolute,
            inner.square,
            by_feature(self.lower, w, "lower"),
            by_feature(self.upper, w, "upper"),
        )
