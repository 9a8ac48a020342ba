r"""The objective :math:`J(w) = \lambda\,\Omega(w) + R(w)`, and the one function that certifies solvers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import (
    Array,
    Cursor,
    Cut,
    HasIntercepts,
    HasInverseMetric,
    InexactOracle,
    Oracle,
    Regularizer,
)
from riskmin.core.deadline import check
from riskmin.numerics.univariate import CUT_ROUNDING
from riskmin.problem.convexity import refuse_nan
from riskmin.problem.risk import Risk, cursor_of
from riskmin.regularizers import penalized_part, unpenalized_tail

DOT_ROUNDING = 2.0**-50
"""Relative rounding error of inner products, times the sum of the absolute values of their terms."""


@dataclass
class CallCounter:
    """Counts the evaluations of the risk and its gradient."""

    calls: int = 0


@dataclass(frozen=True)
class Objective:
    r"""A regularized risk, :math:`J(w) = \lambda\,\Omega(w) + R(w)`.

    Parameters
    ----------
    risk : Oracle
        ``risk(w)`` is R(w) >= 0 and a subgradient; `linear_risk` makes one from arrays.
    reg : Regularizer
    lam : float
        The regularization strength, > 0.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, L2, Objective, linear_risk
    >>> X, y = np.array([[1.0], [-2.0]]), np.array([1.0, -1.0])
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=0.1)
    >>> J.value(np.array([0.0]))
    1.0
    >>> J.lower(J.cut(np.array([0.0]))) <= J.value(np.array([0.5]))
    True
    """

    risk: Oracle
    reg: Regularizer
    lam: float
    count: CallCounter = field(default_factory=CallCounter, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.lam > 0 and math.isfinite(self.lam)):
            raise ValueError(f"lam must be a finite number > 0, not {self.lam}")
        if self.has_intercepts:  # the intercepts in w are not penalized
            object.__setattr__(self, "reg", unpenalized_tail(self.reg, self.n_intercepts))

    # isinstance with a protocol takes longer than an evaluation of a small risk: cache its results
    @cached_property
    def has_intercepts(self) -> bool:
        """Whether the last entries of w are intercepts, in which cuts must have slope zero."""
        return isinstance(self.risk, HasIntercepts)

    @cached_property
    def n_intercepts(self) -> int:
        """The number of intercepts at the end of w."""
        return int(self.risk.n_intercepts) if self.has_intercepts else 0  # type: ignore[attr-defined]

    @cached_property
    def has_inverse_metric(self) -> bool:
        """Whether the regularizer is a squared norm with an inner product."""
        return isinstance(self.reg, HasInverseMetric)

    @cached_property
    def _is_inexact(self) -> bool:
        return isinstance(self.risk, InexactOracle)

    @cached_property
    def _is_nonseparable(self) -> bool:
        return isinstance(self.risk, Risk) and not self.risk.loss.separable

    @cached_property
    def _is_shift_invariant(self) -> bool:
        return isinstance(self.risk, Risk) and bool(getattr(self.risk.loss, "shift_invariant", False))

    @cached_property
    def _split_dot(self) -> Callable[[Array, Array], float] | None:
        """The regularizer's inner product of slopes and points that are stored in two halves, or None."""
        return getattr(self.reg, "score_dot", None)

    def project_out_intercepts(self, cut: Cut) -> Cut:
        """The cut, mixed with others so that its slopes in the intercepts of w are zero."""
        return self.risk.project_out_intercepts(cut) if self.has_intercepts else cut  # type: ignore[attr-defined]

    def __call__(self, w: Array) -> tuple[float, Array, Cut]:
        """J(w), a subgradient of R, and the cut at w."""
        return self.value_grad_cut(w, *self.evaluate_risk(w))

    def evaluate_risk(self, w: Array) -> tuple[float, Array, float]:
        """R(w), a subgradient, and the inexactness of its cut."""
        check()  # user-defined risks do not check the deadline
        self.count.calls += 1
        if self._is_nonseparable:
            return self.risk.evaluate_nonseparable(w)  # type: ignore[attr-defined, no-any-return]
        if self._is_shift_invariant:  # a shift of all scores of a query cancels, but not its rounding error
            point = cursor_of(self.risk, w)
            return *point.value_grad(), point.inexactness
        return self.risk.evaluate(w) if self._is_inexact else (*self.risk(w), 0.0)  # type: ignore[attr-defined]

    def value_grad_cut(
        self, w: Array, r: float, g: Array, inexactness: float = 0.0
    ) -> tuple[float, Array, Cut]:
        """J(w), the subgradient and the cut at w, given R(w) = r, g and the inexactness of the cut of g."""
        # a slope in an unpenalized intercept would make the bound minus infinity
        cut = self.project_out_intercepts(self.tangent(w, r, g, inexactness))
        return r + self.lam * self.reg.value(w), g, cut

    def tangent(self, w: Array, r: float, g: Array, inexactness: float = 0.0) -> Cut:
        """The cut before intercepts are projected out: it may have slopes in the intercepts of w."""
        # the tangent at w: R(v) >= r + g'(v - w) = g'v + (r - g'w)
        gw = float(g @ w) if self._split_dot is None else self._split_dot(g, w)
        # NaN is the only number that differs from itself
        if r != r or (gw != gw and r < math.inf):
            refuse_nan(self.risk, r)
        # far out, R and g @ w are huge and cancel: what rounding may have added must not become a bound;
        # errors are relative to r and g'w, and to the terms |g_j w_j| of the inner product
        inexactness += CUT_ROUNDING * (abs(r) + abs(gw)) + DOT_ROUNDING * float(abs(g) @ abs(w))
        return Cut(g, r - gw - inexactness)

    def value(self, w: Array) -> float:
        """J(w)."""
        return self(w)[0]

    def cut(self, w: Array) -> Cut:
        """The cut at w."""
        return self(w)[2]

    def lower(self, cut: Cut) -> float:
        r"""A lower bound of min J, by Fenchel duality with the cut as dual point.

        .. math:: \max_{0 \le s \le 1}\; s\,b - \lambda\,\Omega^*(-s\,a / \lambda)

        A cut scaled by s is still a cut, since R >= 0.
        """
        s = self.reg.scale(cut, self.lam)
        if s == 0:  # the cut adds nothing to R >= 0; its entries may be infinite or NaN
            return -self.lam * self.reg.conjugate(namespace(cut.a).zeros_like(cut.a)) + 0.0
        # the minimum over v of lam Omega(v) + s (a'v + b), by the conjugate
        return s * cut.b - self.lam * self.reg.conjugate(-s / self.lam * cut.a)

    def argmin(self, cut: Cut) -> Array:
        """The minimizer of lam * Omega(w) + a @ w + b."""
        return self.reg.conjugate_grad(-1 / self.lam * cut.a)

    def cursor(self, w: Array) -> ObjectiveCursor:
        """A cursor at w that caches its scores, for line searches."""
        return ObjectiveCursor(self, cursor_of(self.risk, w))


class ObjectiveCursor:
    """A cursor of the risk together with the regularizer."""

    def __init__(self, obj: Objective, risk: Cursor) -> None:
        self.obj, self.risk = obj, risk
        self.d: Array = None
        self.reach = math.inf
        self.reg: Callable[[float], tuple[float, float]] | None = None

    @property
    def w(self) -> Array:
        return self.risk.w

    def __call__(self, t: float = 0.0) -> tuple[float, Array, Cut]:
        """J(w + t d), a subgradient of R, and the cut there."""
        check()
        self.obj.count.calls += 1
        w = self.risk.w + t * self.d if t else self.risk.w
        r, g = self.risk.value_grad(t)
        return self.obj.value_grad_cut(w, r, g, self.risk.inexactness)

    def tangent(self, t: float = 0.0) -> tuple[float, Cut]:
        """J(w + t d) and the cut before intercepts are projected out: see `Objective.tangent`."""
        self.obj.count.calls += 1
        w = self.risk.w + t * self.d if t else self.risk.w
        r, g = self.risk.value_grad(t)
        return r + self.obj.lam * self.obj.reg.value(w), self.obj.tangent(w, r, g, self.risk.inexactness)

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        """Set the direction d; line evaluations may overestimate J by up to slack."""
        self.d = d
        # the regularizer along the line, at O(1) per evaluation where possible
        self.reg = self.obj.reg.line(self.risk.w, d)
        self.reach = self.obj.reg.reach(self.risk.w, d)
        self.risk.set_direction(d, slack)

    def value_slope(self, t: float) -> tuple[float, float]:
        """J(w + t d) and its derivative in t."""
        assert self.reg is not None, "set a direction first"
        # R and Omega with their derivatives in t
        (r, dr), (o, do) = self.risk.value_slope(t), self.reg(t)
        return r + self.obj.lam * o, dr + self.obj.lam * do

    def advance(self, t: float) -> None:
        """Step to w + t d."""
        self.risk.advance(t)

    def optimize_intercepts(self) -> None:
        """Approximately minimize over the explicit intercepts in w, if the cursor can."""
        if hasattr(self.risk, "optimize_intercepts"):
            self.risk.optimize_intercepts()


def starting_point(obj: Objective, w0: Array | None) -> Array:
    """The starting point of a run: a copy of w0, which must be in the domain; or the minimizer of Omega."""
    if w0 is None:
        # argmax_w 0'w - Omega(w), the minimizer of Omega: zero for most regularizers
        return obj.reg.conjugate_grad(np.zeros(obj.risk.dim))
    if isinstance(w0, (list, tuple, np.ndarray)):
        w0 = np.array(w0, dtype=np.float64)
    else:
        w0 = namespace(w0).asarray(w0, copy=True)
    if w0.shape != (obj.risk.dim,):
        raise ValueError(f"w0 has shape {tuple(w0.shape)}, but the risk takes ({obj.risk.dim},)")
    if not bool(namespace(w0).all(namespace(w0).isfinite(w0))):
        raise ValueError("w0 holds NaN or infinity: start from finite numbers")
    if not math.isfinite(obj.reg.value(w0)):
        reg = penalized_part(obj.reg)
        raise ValueError(
            f"w0 is outside the domain of {reg!r}: start from {type(reg).__name__}.prox(w0, 0.0)"
        )
    return w0
