r"""The objective :math:`J(w) = \lambda\,\Omega(w) + R(w)`, and the one function that certifies solvers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut, Evaluation, NDArray
from riskmin.core.deadline import check
from riskmin.numerics.univariate import Tangent
from riskmin.problem.convexity import refuse_nan
from riskmin.problem.oracle import Cursor, Oracle, OracleCursor, as_oracle
from riskmin.regularizers import unpenalized_tail
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.from_conjugate import as_regularizer


@dataclass
class CallCounter:
    """Counts the evaluations of the risk and its gradient, and keeps the failures of solvers."""

    calls: int = 0
    failures: list[str] = field(default_factory=list)
    """The solver and the exception of each failure."""


@dataclass(frozen=True)
class Objective:
    r"""A regularized risk, :math:`J(w) = \lambda\,\Omega(w) + R(w)`.

    Parameters
    ----------
    risk : Oracle
        ``risk(w)`` is R(w) >= 0 and a subgradient; `linear_risk` makes one from arrays. Any object with
        ``dim`` that can be called so is adapted.
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
        # user-defined risks and regularizers are adapted here, once
        object.__setattr__(self, "risk", as_oracle(self.risk))
        object.__setattr__(self, "reg", as_regularizer(self.reg))
        if self.risk.n_intercepts:  # the intercepts in w are not penalized
            object.__setattr__(self, "reg", unpenalized_tail(self.reg, self.risk.n_intercepts))

    @property
    def n_intercepts(self) -> int:
        """The number of intercepts at the end of w, in which cuts must have slope zero."""
        return self.risk.n_intercepts

    # isinstance with a protocol takes longer than an evaluation of a small risk: cache its result
    @cached_property
    def has_inverse_metric(self) -> bool:
        """Whether the regularizer is a squared norm with an inner product."""
        return self.reg.quadratic

    def project_out_intercepts(self, cut: Cut) -> Cut:
        """The cut, mixed with others so that its slopes in the intercepts of w are zero."""
        return self.risk.project_out_intercepts(cut)

    def __call__(self, w: Array, near: tuple[float, float] | None = None) -> Evaluation:
        """J(w), a subgradient of R, and the cut at w; `near` is an intercept near the best, see `Iterate`."""
        return self.add_penalty(w, self.evaluate_risk(w, near))

    def evaluate_risk(self, w: Array, near: tuple[float, float] | None = None) -> Evaluation:
        """R(w), a subgradient and a cut, which may have slopes in the intercepts of w."""
        self.count.calls += 1
        risk: Any = self.risk
        evaluation: Evaluation = risk.evaluate(w) if near is None else risk.evaluate(w, near)
        return evaluation

    def add_penalty(self, w: Array, evaluation: Evaluation, *, project: bool = True) -> Evaluation:
        """The evaluation of J at w, given that of R; its cut has no slopes in the intercepts of w."""
        r, g, cut = evaluation
        # NaN is the only number that differs from itself
        if r != r or (cut.b != cut.b and r < math.inf):
            refuse_nan(self.risk, r, float(g @ w))
        # a slope in an unpenalized intercept would make the bound minus infinity
        cut = self.risk.project_out_intercepts(cut) if project else cut
        return Evaluation(r + self.lam * self.reg.value(w), g, cut)

    def value(self, w: Array) -> float:
        """J(w)."""
        return self(w)[0]

    def value_near(self, w: Array, near: tuple[float, float] | None) -> float:
        """J(w), without a cut; `near` is an intercept near the best, see `Iterate`."""
        self.count.calls += 1
        r = self.risk.value_near(w, near)
        if r != r:
            refuse_nan(self.risk, r, math.nan)
        return r + self.lam * self.reg.value(w)

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

    def cursor(self, w: Array, *, try_steps: bool = False) -> ObjectiveCursor:
        """A cursor at w that caches its scores, for line searches.

        With `try_steps`, most steps are expected to be the first of their line search: then a risk that reads
        X once per call is called at each, and caches nothing.
        """
        tried = try_steps and self.risk.reads_once
        return ObjectiveCursor(self, OracleCursor(self.risk, w) if tried else self.risk.cursor(w))


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

    def __call__(self, t: float = 0.0, *, project: bool = True) -> Evaluation:
        """J(w + t d), a subgradient of R, and the cut there: see `Objective.add_penalty`."""
        check()
        self.obj.count.calls += 1
        return self.obj.add_penalty(self.risk.point(t), self.risk.evaluate(t), project=project)

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

    def tangents(self, points: NDArray) -> list[Tangent]:
        """J(w + t d) and its derivative in t at several points, in one launch on a GPU."""
        assert self.reg is not None, "set a direction first"
        found = zip(points.tolist(), self.risk.value_slopes(points), strict=True)
        lam, penalties = self.obj.lam, self.reg
        return [Tangent(t, r + lam * penalties(t)[0], dr + lam * penalties(t)[1]) for t, (r, dr) in found]

    def advance(self, t: float) -> None:
        """Step to w + t d."""
        self.risk.advance(t)

    def optimize_intercepts(self) -> None:
        """Approximately minimize over the intercepts that are entries of w, if there are any."""
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
        reg = obj.reg.penalized_part
        raise ValueError(
            f"w0 is outside the domain of {reg!r}: start from {type(reg).__name__}.prox(w0, 0.0)"
        )
    return w0
