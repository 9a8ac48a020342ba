r"""The intercept: never penalized, and no solver's business. It is minimized out inside the risk.

:math:`\tilde R(w) = \min_b R(w, b)` is found on the kept scores, at O(n) a look and no further pass over X.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from riskmin.risk import Risk, ScoreCursor
from riskmin.scalar import Tangent, balance, bracket, crossing, lowest, shrink
from riskmin.types import Array, Memo

CLOSE = 1e-12
"""How closely an intercept is found, relative to the risk."""
LARGEST = 1e150
"""Intercepts are sought up to this size: its square is a number, too."""
VANISHED = 1e-60
"""A risk that fell to this share before it turned has its minimum at infinity."""
FLAT = 1e-11
"""Where the mean loss changes slower than this with the intercept, it is constant but for rounding."""


@dataclass(frozen=True)
class Profiled:
    r"""A risk with its unpenalized intercept minimized out, :math:`\tilde R(w) = \min_b R(w, b)`.

    No solver knows of the intercept. It is found on the kept scores, at O(n) a look and no further pass
    over X; the two tangents that bracket it, mixed so that the slope in b is zero, give a cut of R~.
    The value is R at the best b found, to 1e-12; the cut lies below it by a slip, which is all rounding.

    Parameters
    ----------
    risk : Risk
        With a loss that is a sum over rows, or one of all rows together that changes with b, as `FBeta`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute, linear_risk
    >>> risk = linear_risk(np.zeros((3, 1)), np.array([1.0, 2.0, 9.0]), Absolute(), fit_intercept=True)
    >>> risk.intercept(np.zeros(1))  # the median
    2.0
    """

    risk: Risk
    seen: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)
    """The last point that was evaluated, its intercept and its value: asked for again at a run's end."""

    def __post_init__(self) -> None:
        if getattr(self.risk, "many", False):
            raise ValueError(
                f"{type(self.risk.loss).__name__} has many scores a row, and one intercept is for one score: "
                "use linear_risk(..., fit_intercept=True), which adds one a score"
            )

    @property
    def dim(self) -> int:
        """The length of w, the intercept not counted."""
        return self.risk.dim

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R~(w) and a subgradient."""
        value, grad, _ = self.evaluate(w)
        return value, grad

    def evaluate(self, w: Array) -> tuple[float, Array, float]:
        """R~(w), a subgradient, and by how much its cut lies below."""
        cursor = self.cursor(w)
        value, grad = cursor.value_grad()
        self.seen.update(w=1.0 * w, b=cursor.b, value=value)
        return value, grad, cursor.slip

    def cursor(self, w: Array) -> ProfiledCursor:
        """A point that keeps its scores at the shards, and its intercept."""
        return ProfiledCursor(self.risk.cursor(w))

    def remembered(self, w: Array) -> tuple[float, float] | None:
        """A minimizing b and R(w, b), if w was the last point that was evaluated."""
        last = self.seen.get("w")
        return (self.seen["b"], self.seen["value"]) if last is not None and bool((last == w).all()) else None

    def intercept(self, w: Array) -> float:
        """The minimizing b; the middle of the interval, where a whole interval minimizes."""
        return self.best(w)[0]

    def best(self, w: Array) -> tuple[float, float]:
        """The minimizing b, and R(w, b)."""
        smooth = getattr(self.risk.loss, "smooth", False)
        if smooth and (found := self.remembered(w)) is not None:
            return found
        cursor = self.cursor(w)
        b = cursor.b
        if not smooth:
            b = 0.5 * (cursor.last_best(-1) + cursor.last_best(+1))
        return b, cursor.scores.at(0.0, b)[0]


def without_intercept(risk: Any) -> Any:
    """The risk whose intercept is minimized out, or the risk itself.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge(), fit_intercept=True)
    >>> type(risk).__name__, type(without_intercept(risk)).__name__
    ('Profiled', 'Risk')
    """
    return risk.risk if isinstance(risk, Profiled) else risk


class ProfiledCursor:
    """A cursor of a `Profiled` risk: it keeps w, its scores and its intercept."""

    def __init__(self, scores: ScoreCursor) -> None:
        self.scores, self.slack, self.slip = scores, 0.0, 0.0
        self.known: dict[float, tuple[Tangent, Tangent]] = {}  # by t, the tangents around b(w + t d)
        self.b, self.bend = 0.0, 1.0  # the intercept, and how fast the slope changed around the last one
        self.b = lowest(*self._around(0.0)).x

    @property
    def w(self) -> Array:
        return self.scores.w

    @property
    def lift(self) -> float:
        return self.scores.lift

    def _tangent(self, t: float, b: float) -> Tangent:
        value, slope_t, slope_b = self.scores.at(t, b)
        return Tangent(b, value, slope_b, slope_t)

    def _around(self, t: float) -> tuple[Tangent, Tangent]:
        """The tangents around b(w + t d), narrowed until their crossing is that close to the risk."""
        f = partial(self._tangent, t)
        lo, hi = self.known[t] if t in self.known else self._bracket(f, self._guess(t))
        self.known[t] = shrink(f, lo, hi, lambda best, bound: best - bound <= max(CLOSE * best, self.slack))
        return self.known[t]

    def last_best(self, side: int) -> float:
        """The last of the best intercepts of w on one side of the one that is known.

        Piecewise linear risks are least on a whole interval, of which a search may find any point, while its
        ends depend on the data alone. The way there is Newton's, from outside: exact after a few kinks.
        """
        least, step = self._tangent(0.0, self.b).value, 1e-6 * (1 + abs(self.b))
        at = self._tangent(0.0, self.b + side * step)
        while side * at.slope <= FLAT:
            step *= 4
            if step > 1e12 * (1 + abs(self.b)):
                return self.b  # it is flat for ever, and has no last point
            at = self._tangent(0.0, self.b + side * step)
        for _ in range(100):
            x = at.x - (at.value - least) / at.slope
            if side * (x - self.b) <= 0:
                return self.b
            if side * (at.x - x) <= 0:
                break
            at = self._tangent(0.0, x)
            if side * at.slope <= FLAT:
                break
        return at.x

    def _bracket(self, f: Callable[[float], Tangent], b: float) -> tuple[Tangent, Tangent]:
        """Two tangents in b around the minimum of f, looked for from b on."""
        start = f(b)
        step = 1.5 * abs(start.slope) / self.bend
        lo, hi = around_least(f, start, step)
        bend = (hi.slope - lo.slope) / (hi.x - lo.x) if hi.x > lo.x else 0.0
        self.bend = bend if 1e-9 < bend < math.inf else 1.0
        return lo, hi

    def _guess(self, t: float) -> float:
        """b(w + t d), by the straight line from t = 0 to the nearest t that was looked at."""
        if len(self.known) < 2:
            return self.b
        near = min(self.known.keys() - {0.0}, key=lambda s: abs(s - t))
        reach = min(max(t / near, -4.0), 4.0)  # no further: a short line says nothing about far away
        return self.b + reach * (lowest(*self.known[near]).x - self.b)

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        lo, hi = self._around(t)
        mix = zip((lo.x, hi.x), balance(lo, hi), strict=True)
        _, grad = self.scores.pull(t, [(b, m) for b, m in mix if m])
        value = lowest(lo, hi).value
        self.slip = value - crossing(lo, hi)[1] + self.scores.slip
        return value, grad

    def aim(self, d: Array, slack: float = 0.0) -> None:
        lo, hi = self._around(0.0)
        self.scores.aim(d)
        self.slack = slack
        # the same tangents as before, now with their slopes along d, unless rounding has turned one over
        lo, hi = self._tangent(0.0, lo.x), self._tangent(0.0, hi.x)
        self.known = {0.0: (lo, hi)} if lo.slope <= 0 <= hi.slope else {}

    def along(self, t: float) -> tuple[float, float]:
        """R~(w + t d), up to the slack, and its slope, by the tangents around the intercept there."""
        lo, hi = self._around(t)
        below, above = balance(lo, hi)
        return lowest(lo, hi).value, below * lo.across + above * hi.across

    def move(self, t: float) -> None:
        around = self._around(t)
        self.scores.move(t)
        # scores that were computed anew have other last bits, so other slopes at their kinks
        self.known = {} if self.scores.fresh else {0.0: around}
        self.b = lowest(*around).x


def around_least(f: Callable[[float], Tangent], start: Tangent, step: float) -> tuple[Tangent, Tangent]:
    """Two tangents around the least risk of all intercepts, looked for from a start by growing steps.

    Examples
    --------
    >>> lo, hi = around_least(lambda b: Tangent(b, (b - 3) ** 2, 2 * (b - 3)), Tangent(0.0, 9.0, -6.0), 1.0)
    >>> lo.x <= 3 <= hi.x
    True
    """
    if not math.isfinite(start.value) or abs(start.x) > LARGEST:
        raise ValueError(
            f"the risk is {start.value} at an intercept of {start.x:.3g}, beyond double precision: scale y"
        )
    if start.slope:  # R >= 0: far beyond the root of the tangent, steep losses overflow
        step = min(step, 4 * start.value / abs(start.slope))
    try:
        lo, hi = bracket(f, start, max(step, 1e-9 * (1 + abs(start.x))))
        gone = lowest(lo, hi).value == 0 < max(lo.value, hi.value) <= VANISHED * start.value
        if gone and not _rises(f, lowest(lo, hi).x, start):
            raise ValueError("it is flat only because it is too small to be a number")
    except ValueError:
        raise ValueError(
            "the risk falls for ever as the intercept grows, so no best intercept exists: "
            "look at the labels (are all counts zero? are numbers beyond 1e30?) or fit without an intercept"
        ) from None
    return lo, hi


def _rises(f: Callable[[float], Tangent], flat: float, start: Tangent) -> bool:
    """Whether f rises again somewhere beyond a point where it is flat, as seen from the start."""
    step = flat - start.x
    return any(f(flat + step * 2.0**k).slope * step > 0 for k in range(40))
