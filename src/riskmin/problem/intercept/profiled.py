r"""The unpenalized intercept, minimized out inside the risk, so that no solver has to handle it.

:math:`\tilde R(w) = \min_b R(w, b)` is computed on the cached scores: O(n) per evaluation, no pass over X.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from riskmin.core import Array, ShardCache
from riskmin.numerics.univariate import (
    Tangent,
    best_tangent,
    bracket_minimum,
    intersection,
    refine_bracket,
    zero_slope_weights,
)
from riskmin.problem.risk import Risk, ScoreCursor

INTERCEPT_RELATIVE_GAP = 1e-12
"""Relative gap, (value - bound) / value, to which min_b R(w, b) is computed."""
MAX_ABS_INTERCEPT = 1e150
"""Largest absolute intercept that is searched: its square does not overflow."""
VANISHED_RISK_RATIO = 1e-60
"""A risk that falls to this share of its start before it rises has its minimum at infinity."""
CONSTANT_RISK_SLOPE = 1e-11
"""Derivatives of the mean loss in b up to this size are taken for zero: they are rounding errors."""


@dataclass(frozen=True)
class ProfiledIntercept:
    r"""A risk with its unpenalized intercept minimized out, :math:`\tilde R(w) = \min_b R(w, b)`.

    Solvers do not see the intercept. It is found on the cached scores: O(n) per evaluation in b, and no
    further pass over X. The two tangents that bracket it, mixed so that the slope in b is zero, give a cut of
    R~. The value is R at the best b found, to a relative gap of 1e-12; the inexactness of the cut is that gap
    and rounding.

    Parameters
    ----------
    risk : Risk
        Its loss is a sum over rows, or a non-decomposable loss that changes with b, such as `FBeta`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute, linear_risk
    >>> risk = linear_risk(np.zeros((3, 1)), np.array([1.0, 2.0, 9.0]), Absolute(), fit_intercept=True)
    >>> risk.intercept(np.zeros(1))  # the median
    2.0
    """

    risk: Risk
    last_evaluation: ShardCache = field(default_factory=ShardCache, init=False, repr=False, compare=False)
    """The last evaluated w, with its b and value: they are needed again at the end of a run."""

    def __post_init__(self) -> None:
        if getattr(self.risk, "multi_output", False):
            raise ValueError(
                f"{type(self.risk.loss).__name__} has several scores per row, and one intercept is for one "
                "score: use linear_risk(..., fit_intercept=True), which adds one intercept per score"
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
        """R~(w), a subgradient, and the inexactness of its cut."""
        cursor = self.cursor(w)
        value, grad = cursor.value_grad()
        self.last_evaluation.update(w=1.0 * w, b=cursor.b, value=value)
        return value, grad, cursor.inexactness

    def cursor(self, w: Array) -> ProfiledCursor:
        """A cursor that keeps its scores at the shards, and its intercept."""
        return ProfiledCursor(self.risk.cursor(w))

    def cached_minimum(self, w: Array) -> tuple[float, float] | None:
        """A minimizing b and R(w, b), if w is the last point that was evaluated."""
        last = self.last_evaluation
        same = last.get("w") is not None and bool((last["w"] == w).all())
        return (last["b"], last["value"]) if same else None

    def intercept(self, w: Array) -> float:
        """The minimizing b; the midpoint if an interval minimizes."""
        return self.best_intercept(w)[0]

    def best_intercept(self, w: Array) -> tuple[float, float]:
        """The minimizing b, and R(w, b)."""
        smooth = getattr(self.risk.loss, "smooth", False)
        if smooth and (cached := self.cached_minimum(w)) is not None:
            return cached
        cursor = self.cursor(w)
        b = cursor.b
        if not smooth:  # the minimizers may be an interval, of which the search finds an arbitrary point
            # the midpoint is a function of the data alone
            b = 0.5 * (cursor.minimizer_interval_end(-1) + cursor.minimizer_interval_end(+1))
        return b, cursor.scores.evaluate_at(0.0, b)[0]


def without_intercept(risk: Any) -> Any:
    """The risk inside a profiled intercept, or the risk itself if it has none.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge(), fit_intercept=True)
    >>> type(risk).__name__, type(without_intercept(risk)).__name__
    ('ProfiledIntercept', 'Risk')
    """
    return risk.risk if isinstance(risk, ProfiledIntercept) else risk


class ProfiledCursor:
    """A cursor of a `ProfiledIntercept` risk: it keeps w, its scores and its intercept."""

    def __init__(self, scores: ScoreCursor) -> None:
        self.scores, self.slack, self.inexactness = scores, 0.0, 0.0
        self.brackets: dict[float, tuple[Tangent, Tangent]] = {}  # t -> tangents in b that bracket b(w + t d)
        self.b, self.curvature = 0.0, 1.0  # the intercept, and an estimate of the second derivative in b
        self.b = best_tangent(*self._bracketing_tangents(0.0)).x

    @property
    def w(self) -> Array:
        return self.scores.w

    @property
    def minorant_offset(self) -> float:
        return self.scores.minorant_offset

    def _tangent(self, t: float, b: float) -> Tangent:
        value, slope_t, slope_b = self.scores.evaluate_at(t, b)
        return Tangent(b, value, slope_b, slope_t)

    def _bracketing_tangents(self, t: float) -> tuple[Tangent, Tangent]:
        """The tangents in b that bracket b(w + t d), refined until their intersection bounds the risk."""
        # by convexity, the intersection of a tangent left and one right of the minimum bounds min_b R below
        f = partial(self._tangent, t)
        lo, hi = self.brackets[t] if t in self.brackets else self._bracket(f, self._guess(t))
        self.brackets[t] = refine_bracket(
            f, lo, hi, lambda best, bound: best - bound <= max(INTERCEPT_RELATIVE_GAP * best, self.slack)
        )
        return self.brackets[t]

    def minimizer_interval_end(self, side: int) -> float:
        """The end of the interval of best intercepts of w, on the side -1 or +1 of the known one.

        A piecewise linear risk may be minimal on a whole interval. A search may find any point of it, while
        its ends depend on the data alone. Newton's method for R(w, b) = min R, started outside of the
        interval, is exact after a few breakpoints.
        """
        # first a point outside of the interval of minimizers, by steps that grow by a factor of 4
        minimum, step = self._tangent(0.0, self.b).value, 1e-6 * (1 + abs(self.b))
        tangent = self._tangent(0.0, self.b + side * step)
        while side * tangent.slope <= CONSTANT_RISK_SLOPE:
            step *= 4
            if step > 1e12 * (1 + abs(self.b)):
                return self.b  # constant on this side: the interval has no end
            tangent = self._tangent(0.0, self.b + side * step)
        # then Newton steps for R(w, b) = minimum: from outside, convexity keeps them outside
        for _ in range(100):
            x = tangent.x - (tangent.value - minimum) / tangent.slope
            if side * (x - self.b) <= 0:
                return self.b
            if side * (tangent.x - x) <= 0:
                break
            tangent = self._tangent(0.0, x)
            if side * tangent.slope <= CONSTANT_RISK_SLOPE:
                break
        return tangent.x

    def _bracket(self, f: Callable[[float], Tangent], b: float) -> tuple[Tangent, Tangent]:
        """Two tangents in b that bracket the minimum of f; the search starts from b."""
        start = f(b)
        # a Newton step in b, 1.5 times as long so that it mostly ends beyond the minimum
        step = 1.5 * abs(start.slope) / self.curvature
        lo, hi = bracket_intercept_near(f, start, step)
        # the secant slope of R' is the curvature for the next search
        curvature = (hi.slope - lo.slope) / (hi.x - lo.x) if hi.x > lo.x else 0.0
        self.curvature = curvature if 1e-9 < curvature < math.inf else 1.0
        return lo, hi

    def _guess(self, t: float) -> float:
        """Linear extrapolation of b(w + t d) from t = 0 and the evaluated t that is nearest."""
        if len(self.brackets) < 2:
            return self.b
        nearest = min(self.brackets.keys() - {0.0}, key=lambda s: abs(s - t))
        # b(t) is taken for linear only up to 4 times the distance of the nearest known point
        factor = min(max(t / nearest, -4.0), 4.0)
        return self.b + factor * (best_tangent(*self.brackets[nearest]).x - self.b)

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        lo, hi = self._bracketing_tangents(t)
        # a mixture of two tangents of R(w, b) without a slope in b bounds R(w, b) for all b: a cut of min_b R
        mix = zip((lo.x, hi.x), zero_slope_weights(lo, hi), strict=True)
        _, grad = self.scores.pull_back(t, [(b, m) for b, m in mix if m])
        value = best_tangent(lo, hi).value
        # at w, the mixed cut has the height of the intersection of the tangents
        self.inexactness = value - intersection(lo, hi)[1] + self.scores.inexactness
        return value, grad

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        lo, hi = self._bracketing_tangents(0.0)
        self.scores.set_direction(d)
        self.slack = slack
        # the same tangents as before, now with their slopes along d, unless rounding has changed a sign
        lo, hi = self._tangent(0.0, lo.x), self._tangent(0.0, hi.x)
        self.brackets = {0.0: (lo, hi)} if lo.slope <= 0 <= hi.slope else {}

    def value_slope(self, t: float) -> tuple[float, float]:
        """R~(w + t d), up to the slack, and its derivative in t, from the tangents that bracket b."""
        lo, hi = self._bracketing_tangents(t)
        below, above = zero_slope_weights(lo, hi)
        return best_tangent(lo, hi).value, below * lo.other_slope + above * hi.other_slope

    def advance(self, t: float) -> None:
        bracketing = self._bracketing_tangents(t)
        self.scores.advance(t)
        # recomputed scores differ in their last bits, and so may the slopes at nonsmooth points
        self.brackets = {} if self.scores.scores_recomputed else {0.0: bracketing}
        self.b = best_tangent(*bracketing).x


def bracket_intercept_near(
    f: Callable[[float], Tangent], start: Tangent, step: float
) -> tuple[Tangent, Tangent]:
    """Two tangents that bracket the minimum of the risk over the intercept, by growing steps from a start.

    Examples
    --------
    >>> start = Tangent(0.0, 9.0, -6.0)
    >>> lo, hi = bracket_intercept_near(lambda b: Tangent(b, (b - 3) ** 2, 2 * (b - 3)), start, 1.0)
    >>> lo.x <= 3 <= hi.x
    True
    """
    if not math.isfinite(start.value) or abs(start.x) > MAX_ABS_INTERCEPT:
        raise ValueError(
            f"the risk is {start.value} at an intercept of {start.x:.3g}, beyond double precision: scale y"
        )
    # R >= 0, so the tangent's root bounds useful steps: far beyond it, steep losses overflow
    if start.slope:
        step = min(step, 4 * start.value / abs(start.slope))
    try:
        lo, hi = bracket_minimum(f, start, max(step, 1e-9 * (1 + abs(start.x))))
        vanished = (
            best_tangent(lo, hi).value == 0 < max(lo.value, hi.value) <= VANISHED_RISK_RATIO * start.value
        )
        if vanished and not _rises_beyond(f, best_tangent(lo, hi).x, start):
            raise ValueError("it is zero only by underflow")
    except ValueError:
        raise ValueError(
            "the risk falls for ever as the intercept grows, so no best intercept exists: "
            "check the labels (are all counts zero? are numbers beyond 1e30?) or fit without an intercept"
        ) from None
    return lo, hi


def _rises_beyond(f: Callable[[float], Tangent], flat_point: float, start: Tangent) -> bool:
    """Whether f increases again beyond a point where it is flat, in the direction away from the start."""
    # points flat_point + 2^k step, up to 2^39 times as far as the flat point is from the start
    step = flat_point - start.x
    return any(f(flat_point + step * 2.0**k).slope * step > 0 for k in range(40))
