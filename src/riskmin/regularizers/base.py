"""The base class of regularizers, and what they share: the best scale of a cut, parameter checks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array, Cut, NDArray, UnsupportedProblem
from riskmin.core.blas_threads import scipy_module
from riskmin.core.deadline import check_each
from riskmin.core.registry import ArrayDataclass as ArrayDataclass
from riskmin.numerics.univariate import Tangent, refine_bracket

SAFE_SHARE = 1 - 8 * float(np.finfo(np.float64).eps)
"""The share of a bound on slopes up to which they are scaled: rounding must not make a conjugate infinite."""


class Regularizer(ABC):
    """A convex function Omega(w) with its conjugate. The regularization strength lam is not part of it.

    Four methods are required. The others are capabilities that the traits announce, or have defaults. A
    regularizer of a user may be any object with the four methods: `as_regularizer` supplies the defaults.
    """

    DOMAIN_TOLERANCE = 1e-12
    """Points outside a domain by at most this, relative to its bounds, count as inside (rounding)."""
    DIFFERENCE_STEP = 1e-7
    """The step of the differences that replace a missing derivative along a line."""
    CENTRAL_DIFFERENCE_STEP = 6e-6
    """That of central differences, relative to the point."""

    polyhedral: bool = False
    """Whether the conjugate is infinite outside a polyhedron; the master problem of a separable one is a
    linear program."""
    diagonal: bool = False
    """Whether Omega is sum_j m_j w_j^2 / 2, with the weights m_j = `terms(w).square`."""
    unweighted: bool = False
    """Whether Omega is |w|^2 / 2, with the same weight 1 for all entries."""
    sum_of_absolutes: bool = False
    """Whether Omega is sum_j l_j |w_j| + m_j w_j^2 / 2 of all w, with the coefficients `terms(w)`."""
    can_be_bounded: bool = False
    """Whether `Box` knows the function with bounds."""
    positive_alternative: str = "Entropy()"
    """A similar regularizer of weights >= 0, for messages."""
    is_rescaled: bool = False
    """Whether Omega is a function of rescaled weights, with their `sizes`; see `Rescaled`."""
    change_for_convergence: str = ""
    """A change of its parameters that makes fits converge in fewer steps, for messages."""
    formula: str = ""
    """The formula in one line of plain text."""
    halves: bool = False
    """Whether points are pairs of vectors of which one determines the other: rounding makes them differ."""
    n_unpenalized: int = 0
    """How many of the last entries of w Omega does not depend on: intercepts."""

    @abstractmethod
    def value(self, w: Array) -> float:
        """Return Omega(w); infinite outside the domain."""

    @abstractmethod
    def prox(self, v: Array, step: float) -> Array:
        """Return argmin_w step * Omega(w) + |w - v|^2 / 2; for step 0, the projection onto the domain."""

    @abstractmethod
    def conjugate(self, u: Array) -> float:
        """Return sup_w u @ w - Omega(w)."""

    @abstractmethod
    def conjugate_grad(self, u: Array) -> Array:
        """Return argmax_w u @ w - Omega(w): the transfer function of paper E."""

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the s in [0, 1] for which the cut (s a, s b) gives the best lower bound of min J.

        The scaled cut is valid because R >= 0.
        """
        return best_scale(self, cut, lam)

    def bound(self, cut: Cut, lam: float) -> float:
        """Return the lower bound of min J that a cut proves, max_s s b - lam Omega*(-s a / lam)."""
        s = self.scale(cut, lam)
        if s == 0:  # the cut adds nothing to R >= 0; its entries may be infinite or NaN
            return -lam * self.conjugate(namespace(cut.a).zeros_like(cut.a)) + 0.0
        # the minimum over v of lam Omega(v) + s (a'v + b), by the conjugate
        return s * cut.b - lam * self.conjugate(-s / lam * cut.a)

    def slope(self, w: Array, d: Array) -> float:
        """Return the derivative of Omega at w along d, one-sided where it jumps."""
        if self.smooth:
            return float(self.grad(w) @ d)
        # a forward difference within the domain; the relative step balances rounding and curvature
        size = float(namespace(d).max(namespace(d).abs(d)))
        t = min(self.DIFFERENCE_STEP / (size or 1.0), self.reach(w, d))
        return (self.value(w + t * d) - self.value(w)) / t if t > 0 else math.inf

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """Return t -> (Omega(w + t d), its derivative in t), at O(1) per call where possible."""

        def value_and_slope(t: float) -> tuple[float, float]:
            point = w + t * d
            return self.value(point), self.slope(point, d)

        return value_and_slope

    def reach(self, w: Array, d: Array) -> float:
        """Return the largest t for which w + t d is in the domain; usually infinite."""
        return math.inf

    def domain_support(self, a: Array) -> float:
        """Return an upper bound of a @ w over the domain of Omega; by default, that of all w."""
        return math.inf if bool(namespace(a).any(a != 0)) else 0.0

    def is_finite(self, dim: int) -> bool:
        """Whether Omega has no domain but all of R^dim; by default, whether random points show none."""
        points = np.random.default_rng(0).standard_normal((30, dim))
        # sizes from 0.01 to 100
        return all(math.isfinite(self.value(10.0 ** (k % 5 - 2) * w)) for k, w in enumerate(points))

    # ------------------------------------------------------------ capabilities
    def grad(self, w: Array) -> Array:
        """Return the gradient, if Omega is differentiable."""
        raise UnsupportedProblem(f"{self!r} has no gradient")

    @property
    def smooth(self) -> bool:
        """Whether Omega is differentiable, and `grad` returns its gradient."""
        return type(self).grad is not Regularizer.grad

    def inverse_metric_product(self, A: Array, a: Array) -> Array:
        """Return A K^-1 a for Omega = w' K w / 2: inner products of a and rows of A in the inverse metric.

        The master problem of a bundle method is then a quadratic program in the inner products of the cuts.
        """
        raise UnsupportedProblem(f"{self!r} is not quadratic")

    @property
    def quadratic(self) -> bool:
        """Whether Omega is a quadratic form, and `inverse_metric_product` knows its inverse."""
        return type(self).inverse_metric_product is not Regularizer.inverse_metric_product

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A', where H is the Hessian of the conjugate (derivative of `conjugate_grad`) at u.

        By default, central differences of `conjugate_grad` along the rows of A.
        """
        xp = namespace(A)
        G = xp.stack([A @ self.conjugate_hessian_vector(u, a) for a in A])
        return 0.5 * (G + G.T)

    def conjugate_hessian_vector(self, u: Array, a: Array) -> Array:
        """Return H a by a central difference of `conjugate_grad`."""
        xp = namespace(a)
        size = float(xp.max(xp.abs(a)))
        if size == 0:
            return 0.0 * a
        # the cube root of the rounding error balances rounding and the third derivative
        h = self.CENTRAL_DIFFERENCE_STEP * (1.0 + float(xp.max(xp.abs(u)))) / size
        return (self.conjugate_grad(u + h * a) - self.conjugate_grad(u - h * a)) / (2 * h)

    @property
    def has_conjugate_hessian(self) -> bool:
        """Whether `conjugate_hessian_product` has a formula; by default it takes differences."""
        return type(self).conjugate_hessian_product is not Regularizer.conjugate_hessian_product

    @property
    def has_master_problem(self) -> bool:
        """Whether bundle methods have a master problem for it: a QP, one for Newton's method, or an LP."""
        return self.quadratic or self.has_conjugate_hessian or (self.separable and self.polyhedral)

    def conjugate_is_finite(self, dim: int) -> bool:
        """Whether the conjugate and its gradient are finite at random points of size 1 to 100."""
        rng = np.random.default_rng(0)
        for size in (1.0, 10.0, 100.0):
            u = size * rng.standard_normal(dim)
            with np.errstate(all="ignore"):
                if not (math.isfinite(self.conjugate(u)) and np.isfinite(self.conjugate_grad(u)).all()):
                    return False
        return True

    def terms(self, w: Array) -> Any:
        """Return the coefficients of a sum over coordinates (`SeparableTerms`); None if it is none."""
        return None

    @property
    def separable(self) -> bool:
        """Whether Omega is a sum over coordinates, with the coefficients `terms`."""
        return type(self).terms is not Regularizer.terms

    def scaled(self, s: NDArray) -> Regularizer | None:
        """Return the same function of v = w / s, for s > 0; None if riskmin has no such class."""
        return None

    @property
    def without_sizes(self) -> Regularizer:
        """The same function as one of its original class with other weights, if it is rescaled."""
        return self

    @property
    def free_directions(self) -> NDArray | None:
        """The linearly independent rows C along which Omega is constant, if there are such directions."""
        return None

    def strong_convexity(self, w: Array) -> float:
        """Return a modulus m >= 0 for which Omega - m |w|^2 / 2 is convex, as large as is cheaply known."""
        xp = namespace(w)
        return float(xp.min(self.terms(w).square + xp.zeros_like(w))) if self.separable else 0.0

    def recompute(self, w: Array, slope: bool = False) -> Array:
        """Return a point, or a slope, whose halves are consistent again, if it has `halves`."""
        return w

    def term_size(self, coefficients: Array) -> float:
        """Return the sum of the absolute terms of the squared norm of a point with `halves`, for rounding."""
        return 0.0

    @property
    def penalized_part(self) -> Regularizer:
        """The regularizer of the penalized entries of w: all but the last `n_unpenalized`."""
        return self


def best_scale(reg: Regularizer, cut: Cut, lam: float, s_max: float = 1.0) -> float:
    """Return the s in [0, s_max] that maximizes the lower bound s b - lam Omega*(-s a / lam).

    The bound is concave in s, with the derivative b + a @ w(s), where w(s) is the gradient of Omega* at
    -s a / lam.
    """

    def negative_bound(s: float) -> Tangent:
        u = -s / lam * cut.a
        slope = cut.b + float(cut.a @ reg.conjugate_grad(u))
        return Tangent(s, lam * reg.conjugate(u) - s * cut.b, -slope)

    hi, s_overflow = negative_bound(s_max), s_max
    # the negative bound is convex: a slope of one sign makes an end its minimizer
    if hi.slope <= 0 and hi.value < 1e100:
        return s_max
    lo = negative_bound(0.0)
    if lo.slope >= 0 or s_max <= 0:
        return 0.0
    # the conjugate may overflow for large s (exponentials): bisect until it is not too
    # large for a useful bound
    for _ in check_each(range(2000)):
        if not hi.value < 1e100:
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


def quadratic_scale(self: Regularizer, cut: Cut, lam: float) -> float:
    """Return `scale` of a quadratic form: argmax of s b - s^2 q / (2 lam) over [0, 1], q = 2 Omega*(a)."""
    # the unconstrained maximizer is lam b / q
    q = 2 * self.conjugate(cut.a)
    return min(1.0, max(0.0, lam * cut.b / q)) if q > 0 else float(cut.b > 0)


def quadratic_bound(self: Regularizer, cut: Cut, lam: float) -> float:
    """Return `bound` of a quadratic form, s b - s^2 q / (2 lam) at the s of `quadratic_scale`."""
    q = 2 * self.conjugate(cut.a)
    s = min(1.0, max(0.0, lam * cut.b / q)) if q > 0 else float(cut.b > 0)
    return s * (cut.b - 0.5 * s * q / lam) if s else 0.0


def quadratic_line(self: Regularizer, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
    """Return `line` of a quadratic form w'K w / 2, from three inner products."""
    # Omega(w + t d) = w'K w / 2 + t w'K d + t^2 d'K d / 2
    Kd = self.grad(d)
    ww, wd, dd = 2 * self.value(w), float(w @ Kd), float(d @ Kd)
    return lambda t: (0.5 * ww + t * wd + 0.5 * t * t * dd, wd + t * dd)


def find_root(f: Callable[[float], float], lo: float, hi: float) -> float:
    """Return the root of f in [lo, hi], at whose ends f has different signs, to full precision."""
    return float(scipy_module("optimize").brentq(f, lo, hi, xtol=1e-300, rtol=1e-15))


def as_setting(value: Any) -> Any:
    """Return a number as a float, and a sequence as a read-only array of floats."""
    a = np.array(value, dtype=np.float64)
    a.flags.writeable = False
    return float(a) if a.ndim == 0 else a


def by_feature(setting: Any, w: Array, name: str) -> Any:
    """Return a setting for use with w: a float unchanged, an array (one entry per feature) in w's library."""
    if type(setting) is float:
        return setting
    if setting.shape != (len(w),):
        raise ValueError(
            f"{name} has shape {setting.shape}, but w has {len(w)} entries: give a number, or one per entry"
        )
    # torch needs writable memory
    return setting if namespace(w) is np else as_array_like(setting.copy(), w)


def check_setting(reg: object, name: str, valid: Callable[[Any], Any], needs: str) -> None:
    """Convert a setting to a float or an array of floats; raise a ValueError unless all entries are valid."""
    value = as_setting(vars(reg)[name])
    object.__setattr__(reg, name, value)
    if not np.all(valid(np.asarray(value))):
        raise ValueError(f"{type(reg).__name__} needs {name} to be {needs}, not {value!r}")
