r"""The objective :math:`J(w) = \lambda\,\Omega(w) + R(w)`, and the one function that certifies solvers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from riskmin.arrays import namespace
from riskmin.convexity import refuse_nan
from riskmin.deadline import check
from riskmin.regularizers import free, penalized
from riskmin.risk import Risk, cursor
from riskmin.scalar import ROUNDING
from riskmin.types import Array, Balances, Cursor, Cut, Euclidean, Oracle, Regularizer, Slips

PRODUCTS = 2.0**-50
"""How well inner products are known, relative to their terms."""


@dataclass
class Count:
    """How often the risk was asked for a value and a gradient."""

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
        The strength of the regularizer, > 0.

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
    count: Count = field(default_factory=Count, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.lam > 0 and math.isfinite(self.lam)):
            raise ValueError(f"lam must be a finite number > 0, not {self.lam}")
        if self.balances:  # the intercepts in w are not penalized
            object.__setattr__(self, "reg", free(self.reg, self.n_intercepts))

    # protocols are asked once: it takes longer than a look at a small risk
    @cached_property
    def balances(self) -> bool:
        """Whether w holds intercepts, in which cuts must not slope."""
        return isinstance(self.risk, Balances)

    @cached_property
    def n_intercepts(self) -> int:
        """How many of the last entries of w are intercepts."""
        return int(self.risk.n_intercepts) if self.balances else 0  # type: ignore[attr-defined]

    @cached_property
    def euclidean(self) -> bool:
        """Whether the regularizer is the square of a norm with inner products."""
        return isinstance(self.reg, Euclidean)

    @cached_property
    def _slips(self) -> bool:
        return isinstance(self.risk, Slips)

    @cached_property
    def _of_lists(self) -> bool:
        return isinstance(self.risk, Risk) and not self.risk.loss.separable

    @cached_property
    def _of_queries(self) -> bool:
        return isinstance(self.risk, Risk) and bool(getattr(self.risk.loss, "invariant", False))

    @cached_property
    def _paired(self) -> Callable[[Array, Array], float] | None:
        """Inner products of slopes and points that are known by two halves."""
        return getattr(self.reg, "by_scores", None)

    def balanced(self, cut: Cut) -> Cut:
        """A cut without a slope in the intercepts that w holds."""
        return self.risk.balanced(cut) if self.balances else cut  # type: ignore[attr-defined]

    def __call__(self, w: Array) -> tuple[float, Array, Cut]:
        """J(w), a subgradient of R, and the cut at w."""
        return self.at(w, *self.look(w))

    def look(self, w: Array) -> tuple[float, Array, float]:
        """R(w), a subgradient, and up to which slip that is known."""
        check()  # a risk of a user's own looks at no clock
        self.count.calls += 1
        if self._of_lists:
            return self.risk.of_lists(w)  # type: ignore[attr-defined, no-any-return]
        if self._of_queries:  # what all scores of a query have in common cancels: its size is that of scores
            at = cursor(self.risk, w)
            return *at.value_grad(), at.slip
        return self.risk.evaluate(w) if self._slips else (*self.risk(w), 0.0)  # type: ignore[attr-defined]

    def at(self, w: Array, r: float, g: Array, slip: float = 0.0) -> tuple[float, Array, Cut]:
        """J(w), the subgradient and the cut at w, when R(w) = r and g are known, and g's cut up to a slip."""
        cut = self.balanced(self.tangent(w, r, g, slip))
        return r + self.lam * self.reg.value(w), g, cut

    def tangent(self, w: Array, r: float, g: Array, slip: float = 0.0) -> Cut:
        """The cut as it comes: with slopes in the intercepts that w holds, if it holds any."""
        gw = float(g @ w) if self._paired is None else self._paired(g, w)
        if r != r or (gw != gw and r < math.inf):
            refuse_nan(self.risk, r)
        # far out, R and g @ w are huge and cancel: what rounding may have added must not become a bound
        slip += ROUNDING * (abs(r) + abs(gw)) + PRODUCTS * float(abs(g) @ abs(w))
        return Cut(g, r - gw - slip)

    def value(self, w: Array) -> float:
        """J(w)."""
        return self(w)[0]

    def cut(self, w: Array) -> Cut:
        """The cut at w."""
        return self(w)[2]

    def lower(self, cut: Cut) -> float:
        r"""A lower bound of min J, by Fenchel duality at the dual point that the cut is.

        .. math:: \max_{0 \le s \le 1}\; s\,b - \lambda\,\Omega^*(-s\,a / \lambda)

        Shrinking by s keeps a cut a cut, since R >= 0.
        """
        s = self.reg.scale(cut, self.lam)
        if s == 0:  # then a cut says no more than R >= 0 does; it may hold what is no number
            return -self.lam * self.reg.conjugate(namespace(cut.a).zeros_like(cut.a)) + 0.0
        return s * cut.b - self.lam * self.reg.conjugate(-s / self.lam * cut.a)

    def argmin(self, cut: Cut) -> Array:
        """The minimizer of lam * Omega(w) + a @ w + b."""
        return self.reg.conjugate_grad(-1 / self.lam * cut.a)

    def cursor(self, w: Array) -> ObjectiveCursor:
        """A point that keeps its scores, for line searches."""
        return ObjectiveCursor(self, cursor(self.risk, w))


class ObjectiveCursor:
    """A cursor of the risk, with the regularizer along."""

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
        return self.obj.at(w, r, g, self.risk.slip)

    def tangent(self, t: float = 0.0) -> tuple[float, Cut]:
        """J(w + t d), and the cut there as it comes: see `Objective.tangent`."""
        self.obj.count.calls += 1
        w = self.risk.w + t * self.d if t else self.risk.w
        r, g = self.risk.value_grad(t)
        return r + self.obj.lam * self.obj.reg.value(w), self.obj.tangent(w, r, g, self.risk.slip)

    def aim(self, d: Array, slack: float = 0.0) -> None:
        """Look along w + t d; the looks may be too high by as much as slack."""
        self.d = d
        self.reg = self.obj.reg.line(self.risk.w, d)
        self.reach = self.obj.reg.reach(self.risk.w, d)
        self.risk.aim(d, slack)

    def along(self, t: float) -> tuple[float, float]:
        """J(w + t d) and its slope."""
        assert self.reg is not None, "aim first"
        (r, dr), (o, do) = self.risk.along(t), self.reg(t)
        return r + self.obj.lam * o, dr + self.obj.lam * do

    def move(self, t: float) -> None:
        """Go to w + t d."""
        self.risk.move(t)

    def balance(self) -> None:
        """Put intercepts that are entries of w near their best, where the cursor can."""
        if hasattr(self.risk, "balance"):
            self.risk.balance()


def start_of(obj: Objective, w0: Array | None) -> Array:
    """Where a run starts: a copy of w0, if it is a point of the domain; else where Omega is least."""
    if w0 is None:
        return obj.reg.conjugate_grad(np.zeros(obj.risk.dim))  # the least Omega: zero, mostly
    if isinstance(w0, (list, tuple, np.ndarray)):
        w0 = np.array(w0, dtype=np.float64)
    else:
        w0 = namespace(w0).asarray(w0, copy=True)
    if w0.shape != (obj.risk.dim,):
        raise ValueError(f"w0 has shape {tuple(w0.shape)}, but the risk takes ({obj.risk.dim},)")
    if not bool(namespace(w0).all(namespace(w0).isfinite(w0))):
        raise ValueError("w0 holds NaN or infinity: start from finite numbers")
    if not math.isfinite(obj.reg.value(w0)):
        reg = penalized(obj.reg)
        raise ValueError(
            f"w0 is outside the domain of {reg!r}: start from {type(reg).__name__}.prox(w0, 0.0)"
        )
    return w0
