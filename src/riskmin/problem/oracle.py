"""Oracles evaluate a risk and return a cut, cursors do so along a line; user-defined risks are adapted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from riskmin.core import Array, Cut, Evaluation, has_method
from riskmin.core.deadline import check
from riskmin.losses.base import Loss
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.certificate import tangent
from riskmin.problem.intercept.strategies import NO_INTERCEPT, Intercept


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

    def value_near(self, w: Array, near: tuple[float, float] | None) -> float:
        """R(w), given an intercept near the best one, see `Iterate`."""
        return self.evaluate(w).value

    def value_is_cheaper(self, near: tuple[float, float] | None) -> bool:
        """Whether `value_near` takes less than `evaluate`."""
        return False

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
