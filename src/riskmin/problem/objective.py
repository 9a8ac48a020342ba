r"""The objective :math:`J(w) = \lambda\,\Omega(w) + R(w)`, and the one function that certifies solvers.

Oracles evaluate its risk and return a cut, cursors do so along a line; user-defined risks are adapted.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut, Evaluation, NDArray, has_method
from riskmin.core.deadline import check
from riskmin.losses.base import Loss
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.numerics.univariate import Tangent
from riskmin.problem.certificate import tangent
from riskmin.problem.intercept import NO_INTERCEPT, Intercept
from riskmin.regularizers import unpenalized_tail
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.from_conjugate import as_regularizer


# ---------------------------------------------------------------- the risk
class Oracle(ABC):
    """A risk R(w) >= 0 as solvers evaluate it: `dim` and `evaluate` suffice, all else has defaults.

    `Objective` also accepts any object with `dim` whose call returns a value and a subgradient.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Cut, Evaluation, Objective, Oracle, minimize
    >>> class Largest(Oracle):
    ...     "The largest of a few affine functions, which are cuts themselves."
    ...     dim, A, b = 1, np.array([[1.0], [-2.0]]), np.array([0.0, 3.0])
    ...     def evaluate(self, w):
    ...         heights = self.A @ w + self.b
    ...         k = int(heights.argmax())
    ...         return Evaluation(float(heights[k]), self.A[k], Cut(self.A[k], float(self.b[k])))
    >>> minimize(Objective(Largest(), L2(), lam=1e-3), tol=1e-6).w.round(4).tolist()
    [1.0]
    """

    dim: int
    """The length of w."""
    loss: Any = None
    """The loss of the scores; None if the risk is no function of scores."""
    linear_map: Any = None
    """The map from w to scores; None if the risk is no function of scores."""
    executor: Any = None
    rows: Any = None
    """All rows, if they are in this process."""
    row_metadata: Any = None
    """Shape, labels and weights of rows that may be remote."""
    intercept: Intercept = NO_INTERCEPT
    caches_outputs: bool = False
    """Whether there is a method `restricted_risk`, as `WorkingSet` needs."""
    reads_once: bool = False
    """Whether a call takes one read of X on a GPU, as long as the scores of a direction alone."""
    cuts_always_valid: bool = False
    """Whether cuts are valid whatever the user's code returns, such as an output that is not the best."""

    @abstractmethod
    def evaluate(self, w: Array) -> Evaluation:
        """R(w), a subgradient, and a cut."""

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R(w) and a subgradient."""
        value, gradient, _ = self.evaluate(w)
        return value, gradient

    def at_best_intercept(self, w: Array, near: float | None = None) -> tuple[float, Any, Cut | None]:
        """R(w), the intercept at which the risk has this value, and a cut if it takes no further pass.

        `near` is an intercept near the best one. Intercepts that are entries of w are left out: b is 0.0.
        """
        value, _, cut = self.evaluate(w)
        return value, 0.0, cut

    def cursor(self, w: Array) -> Cursor:
        """A cursor at w, for line searches."""
        return OracleCursor(self, w)

    @property
    def source(self) -> Any:
        """The object that the user gave as the risk."""
        return self

    @property
    def multi_output(self) -> bool:
        """Whether scores are two-dimensional, (n, k)."""
        return False

    @property
    def n_intercepts(self) -> int:
        """The number of intercepts at the end of w, which are not penalized."""
        return self.intercept.n_entries

    @property
    def relative_error(self) -> float:
        """The relative error of the values."""
        return max(self.intercept.relative_gap, CUT_ROUNDING)

    def project_out_intercepts(self, cut: Cut) -> Cut:
        """A valid cut made from this one whose slope in the intercepts of w is zero.

        A cut with a slope in unpenalized entries gives the lower bound minus infinity.
        """
        return cut

    def with_zero_intercept(self) -> Oracle:
        """The risk with b = 0 in place of the best intercept; itself if b is not minimized out."""
        return self

    def best_intercept(self, w: Array) -> Any:
        """The best intercept for w, if it is no entry of w; else 0.0."""
        return 0.0


# ---------------------------------------------------------------- code of users
def is_builtin(thing: object) -> bool:
    """Whether the class of an object is defined in riskmin."""
    return type(thing).__module__.partition(".")[0] == "riskmin"


def loss_components(risk: Oracle) -> tuple[Any, ...]:
    """The loss of a risk, and the losses or the model that it wraps."""
    return () if risk.loss is None else risk.loss.components


def is_foreign(risk: Oracle) -> bool:
    """Whether user code computes the risk, so that its cuts may be invalid."""
    return not all(map(is_builtin, (risk.source, *loss_components(risk))))


def describe(risk: Oracle) -> str:
    """The name of a user-defined loss or risk, for messages."""
    if not is_builtin(risk.source):
        kind = type(risk.source)
        return "the risk" if kind.__module__ == "builtins" else f"the risk {kind.__name__}"
    return next(
        (type(part).__name__ for part in loss_components(risk) if not is_builtin(part)), type(risk).__name__
    )


def refuse_nan(risk: Oracle, value: float, product: float) -> None:
    """Raise a ValueError for a user-defined risk that is NaN, or whose product of gradient and point is."""
    if is_foreign(risk) and (value != value or product != product):
        what = f"the gradient of {describe(risk)}" if value == value else describe(risk)
        raise ValueError(
            f"{what} is NaN at a point that the run came to: return finite numbers for any w, "
            "or infinity as the value where numbers overflow"
        )


class UserOracle(Oracle):
    """A user-defined risk as an oracle: its tangents, less rounding, are its cuts."""

    def __init__(self, given: Any) -> None:
        self.given, loss = given, getattr(given, "loss", None)
        self.loss = loss if isinstance(loss, Loss) else None
        self.executor = getattr(given, "executor", None)
        self.caches_outputs = has_method(given, "restricted_risk")

    @property
    def dim(self) -> int:  # type: ignore[override]
        return int(self.given.dim)

    @property
    def source(self) -> Any:
        """The user's object."""
        return self.given

    def evaluate(self, w: Array) -> Evaluation:
        """The value and gradient that the user's object returns, with their tangent; or its own cut, too."""
        check()  # user code does not check the deadline
        evaluation = self.given(w)
        return Evaluation(*evaluation) if len(evaluation) == 3 else tangent(w, *evaluation)

    def __repr__(self) -> str:
        return repr(self.given)

    def __eq__(self, other: object) -> bool:
        return type(other) is UserOracle and bool(self.given == other.given)

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        # further methods of the user's object, such as those that `WorkingSet` asks for
        if name.startswith("__") or name == "given":
            raise AttributeError(name)
        if name == "dim" and not hasattr(self.given, "dim"):
            raise AttributeError(f"{self.given!r} has no attribute dim: set it to the number of weights")
        return getattr(self.given, name)


def as_oracle(risk: Any) -> Oracle:
    """The risk itself, or a user-defined one as an oracle."""
    return risk if isinstance(risk, Oracle) else UserOracle(risk)


class Cursor(ABC):
    """A point w that moves along lines w + t d."""

    w: Array
    d: Array = None
    _ahead: tuple[float, Array] | None = None

    def point(self, t: float) -> Array:
        """W + t d; computed once for the last t."""
        if not t:
            return self.w
        if self._ahead is None or self._ahead[0] != t:
            self._ahead = t, self.w + t * self.d
        return self._ahead[1]

    @abstractmethod
    def evaluate(self, t: float = 0.0) -> Evaluation:
        """R(w + t d), a subgradient and a cut: one adjoint pass (X' dz)."""

    @abstractmethod
    def value_slope(self, t: float) -> tuple[float, float]:
        """R(w + t d) and its derivative in t: O(n) where scores are cached, and no pass over X."""

    @property
    def points_at_a_time(self) -> int:
        """How many points of a line are evaluated for the price of about one."""
        return 1

    def value_slopes(self, points: Array) -> list[tuple[float, float]]:
        """R(w + t d) and its derivative in t at several points: up to `points_at_a_time` in one launch."""
        return [self.value_slope(t) for t in points.tolist()]

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        """Set the search direction d; later line evaluations may overestimate by up to `slack`."""
        self.d, self._ahead = d, None

    def advance(self, t: float) -> None:
        """Set w to w + t d."""
        self.w, self._ahead = self.point(t), None

    def optimize_intercepts(self) -> None:  # noqa: B027 (most cursors have none)
        """Approximately minimize over the intercepts that are entries of w, if there are any."""


class OracleCursor(Cursor):
    """A cursor of any oracle: every evaluation along the line is an oracle call."""

    def __init__(self, risk: Oracle, w: Array) -> None:
        self.risk, self.w = risk, w
        # the last t and evaluation: a step usually ends at the last evaluation and then costs no call
        self.last_evaluation: tuple[float, Evaluation] | None = None

    def evaluate(self, t: float = 0.0) -> Evaluation:
        if self.last_evaluation is None or self.last_evaluation[0] != t:
            self.last_evaluation = t, self.risk.evaluate(self.point(t))
        return self.last_evaluation[1]

    def value_slope(self, t: float) -> tuple[float, float]:
        value, gradient, _ = self.evaluate(t)
        return value, float(gradient @ self.d)

    def advance(self, t: float) -> None:
        super().advance(t)
        # the evaluation at t is the evaluation at 0 of the new point
        last = self.last_evaluation
        self.last_evaluation = (0.0, last[1]) if last is not None and last[0] == t else None


# ---------------------------------------------------------------- the objective
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

    def with_new_count(self) -> Objective:
        """The same objective, whose calls are counted from zero."""
        new = object.__new__(type(self))
        vars(new).update(vars(self), count=CallCounter())
        return new

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

    def __call__(self, w: Array) -> Evaluation:
        """J(w), a subgradient of R, and the cut at w."""
        return self.add_penalty(w, self.evaluate_risk(w))

    def evaluate_risk(self, w: Array) -> Evaluation:
        """R(w), a subgradient and a cut, which may have slopes in the intercepts of w."""
        self.count.calls += 1
        return self.risk.evaluate(w)

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

    def at_best_intercept(self, w: Array, near: float | None = None) -> tuple[float, Any, Cut | None]:
        """J(w), the intercept at which J has this value, and a cut if it is known: see `Oracle`."""
        self.count.calls += 1
        r, b, cut = self.risk.at_best_intercept(w, near)
        if r != r:
            refuse_nan(self.risk, r, math.nan)
        return r + self.lam * self.reg.value(w), b, None if cut is None else self.project_out_intercepts(cut)

    def cut(self, w: Array) -> Cut:
        """The cut at w."""
        return self(w)[2]

    def lower(self, cut: Cut) -> float:
        r"""A lower bound of min J, by Fenchel duality with the cut as dual point.

        .. math:: \max_{0 \le s \le 1}\; s\,b - \lambda\,\Omega^*(-s\,a / \lambda)

        A cut scaled by s is still a cut, since R >= 0.
        """
        return self.reg.bound(cut, self.lam)

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
