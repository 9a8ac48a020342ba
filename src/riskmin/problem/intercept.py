r"""Intercepts: how a risk has one, and the search for the best one, :math:`\tilde R(w) = \min_b R(w, b)`.

An intercept b is never penalized. The search takes O(n) per evaluation in b on known scores, and no pass over
X: a bracket of two tangents, and Newton steps in it where the curvature is known.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array
from riskmin.core.deadline import check_each
from riskmin.losses.conjugate import IntervalConjugate
from riskmin.numerics.univariate import (
    NoMinimum,
    Tangent,
    best_tangent,
    bracket_minimum,
    intersection,
    refine_bracket,
    refine_smooth_bracket,
    zero_slope_weights,
)

if TYPE_CHECKING:
    from riskmin.problem.risk import ScoreCursor

INTERCEPT_RELATIVE_GAP = 1e-12
"""Relative gap, (value - bound) / value, to which min_b R(w, b) is computed."""
CONSTANT_RISK_SLOPE = 1e-11
"""Derivatives of the mean loss in b up to this size are taken for zero: they are rounding errors."""
VANISHED_RISK_RATIO = 1e-60
"""A risk that falls to this share of its start before it rises has its minimum at infinity."""

VANISHED_RISK = 1e-200
"""A smaller risk may be an underflow where there is no minimum: a bracket from b = 0 tells."""
FINAL_SLOPE = 1e-9
"""The slope in b of a fitted model, as a share of its terms: the risk is best to about its square."""

Derivatives: TypeAlias = Callable[[float], tuple[float, float, float]]
"""Maps b to the slope and the curvature of the risk, and to the sum of the absolute terms of the slope."""


# ---------------------------------------------------------------- the kinds of intercepts
class Intercept:
    """The base of the strategies, with the answers of a risk that has no intercept."""

    fitted: ClassVar[bool] = True
    """Whether there is an intercept, so that a shift of the columns of X does not change min J."""
    profiled: ClassVar[bool] = False
    """Whether b is minimized out inside the risk at each evaluation."""
    relative_gap: ClassVar[float] = 0.0
    """The relative gap to which b is minimized out."""
    n_entries: int = 0
    """The number of intercepts that are entries of w, its last ones."""

    def of_means(self, linear_map: Any, w: Array) -> Any:
        """The best intercepts, where the means of the columns give them; else 0.0."""
        return 0.0


@dataclass(frozen=True)
class NoIntercept(Intercept):
    """No intercept.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import NoIntercept, Squared, linear_risk
    >>> risk = linear_risk(np.eye(2), np.ones(2), Squared())
    >>> risk.intercept, risk.best_intercept(np.zeros(2))
    (NoIntercept(), 0.0)
    """

    fitted = False


NO_INTERCEPT = NoIntercept()


@dataclass(frozen=True)
class ProfiledIntercept(Intercept):
    r"""One intercept, minimized out inside the risk, :math:`\tilde R(w) = \min_b R(w, b)`.

    Solvers do not see it. It is found on the cached scores: O(n) per evaluation in b, and no further pass
    over X. The two tangents that bracket it, mixed so that the slope in b is zero, give a cut of R~. The
    value is R at the best b found, to a relative gap of 1e-12, by which the cut is lower.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute, linear_risk
    >>> risk = linear_risk(np.zeros((3, 1)), np.array([1.0, 2.0, 9.0]), Absolute(), fit_intercept=True)
    >>> risk.intercept, round(risk.best_intercept(np.zeros(1)), 9)  # the median
    (ProfiledIntercept(), 2.0)
    """

    profiled = True
    relative_gap = INTERCEPT_RELATIVE_GAP


@dataclass(frozen=True)
class ExplicitIntercepts(Intercept):
    """One intercept per output, as the last entries of w: `Objective` does not penalize them."""

    n_entries: int = 0


@dataclass(frozen=True)
class CenteredIntercepts(Intercept):
    """The intercepts of multi-output squared losses: minimized out by centered rows and targets."""

    target: Any = field(default=None, compare=False)
    """The means of the targets."""

    def of_means(self, linear_map: Any, w: Array) -> Array:
        # b = mean(y) - W' mean(x): the minimizer for squared losses
        mean = as_array_like(linear_map.mean, w)
        return self.target - mean @ w.reshape(-1, linear_map.columns)


# ---------------------------------------------------------------- the search
def solve_intercept(
    f: Callable[[float], Tangent],
    b: float,
    slack: float = 0.0,
    curvature: float = 0.0,
) -> tuple[Tangent, Tangent]:
    """Two tangents around the minimum of the risk over the intercept; the search starts at b.

    Their intersection proves a relative gap of 1e-12, or the minimum up to the slack. `curvature` is an
    estimate that gives the first step its length.
    """
    start = f(b)
    # a Newton step, 1.5 times as long so that it mostly ends beyond the minimum
    step = 1.5 * abs(start.slope) / curvature if curvature > 0 else 0.1
    return refine_intercept(f, *bracket_intercept(f, start, step), slack)


def intercept_of_scores(loss: Any, z: Array, y: Array, c: Array, b: float) -> tuple[float, float]:
    """The b that minimizes the loss of the scores z + b, and the loss there; the search starts at b.

    Where a loss of single rows is piecewise linear, an interval of b may be best: then b is its midpoint.
    """
    rows = loss.interval_conjugate(y) if loss.separable else None
    if rows is not None and not rows.square:
        b = 0.5 * sum(best_interval(rows, z, c))
        value = float(loss.value_grad(z + b, y, c)[0])
        if math.isfinite(value):  # the search raises beyond double precision
            return b, value
    evaluated: dict[float, tuple[float, Array]] = {}

    def evaluate(b: float) -> tuple[float, Array]:
        if b not in evaluated:
            value, slopes = loss.value_grad(z + b, y, c)
            evaluated[b] = float(value), slopes
        return evaluated[b]

    def tangent_at(b: float) -> Tangent:
        value, slopes = evaluate(b)
        return Tangent(b, value, float(slopes.sum()))

    def slope_and_terms(b: float) -> tuple[float, float]:
        slopes = evaluate(b)[1]
        return float(slopes.sum()), float(abs(slopes).sum())

    def curvature(b: float) -> float:
        return float(loss.hessian(z + b, y, c).diagonal.sum())

    if loss.smooth and loss.separable and loss.has_hessian:
        best, _, converged = newton_intercept(tangent_at, slope_and_terms, curvature, b, FINAL_SLOPE)
        if converged and evaluate(best)[0] > VANISHED_RISK:
            return best, evaluate(best)[0]
    found = best_tangent(*solve_intercept(tangent_at, b if evaluate(b)[0] > VANISHED_RISK else 0.0))
    return found.x, found.value


def newton_intercept(
    f: Callable[[float], Tangent],
    slope_and_terms: Callable[[float], tuple[float, float]],
    curvature: Callable[[float], float],
    b: float,
    tol: float,
) -> tuple[float, float, bool]:
    """The best intercept by Newton's method from b, see `newton_in_bracket`."""
    slope, terms = slope_and_terms(b)
    if abs(slope) <= tol * terms:  # no second derivatives are needed
        return b, 0.0, True
    curvature, ends = cache(curvature), (-math.inf, math.inf)
    if not abs(slope) < curvature(b):  # a long Newton step might end where a steep loss overflows
        lo, hi = bracket_intercept(f, f(b), 1.5 * abs(slope))
        b, ends = best_tangent(lo, hi).x, (lo.x, hi.x)

    def derivatives(b: float) -> tuple[float, float, float]:
        slope, terms = slope_and_terms(b)
        return slope, curvature(b), terms

    return newton_in_bracket(derivatives, b, tol, *ends)


def newton_in_bracket(
    derivatives: Derivatives, b: float, tol: float, lo: float = -math.inf, hi: float = math.inf
) -> tuple[float, float, bool]:
    """The intercept whose slope is at most tol times its absolute terms, by Newton's method in a bracket.

    Also returns the length of the next Newton step, about the error, and whether it has converged: if not,
    the risk may have no minimum.
    """
    extension = 1.0
    for _ in check_each(range(100)):
        slope, curvature, terms = derivatives(b)
        step = abs(slope) / curvature if curvature > 0 else math.inf
        if abs(slope) <= tol * terms:
            return b, step, True
        # the slope is nondecreasing in b: its sign gives the side of the minimizer
        lo, hi = (b, hi) if slope < 0 else (lo, b)
        new = b - slope / curvature if curvature > 0 else math.inf
        if not lo < new < hi:
            # bisect a finite bracket; extend an infinite one by steps that grow by a factor of 4
            new = 0.5 * (lo + hi) if math.isfinite(hi - lo) else b - math.copysign(extension, slope)
            extension *= 4
        # shorter steps are rounding: the remaining slope is removed by mixing two cuts
        if not lo < new < hi or abs(new - b) <= 1e-13 * (1 + abs(b)):
            return b, step, True
        b = new
    return b, step, False


def straddle(f: Callable[[float], Tangent], b: float, step: float) -> tuple[Tangent, Tangent]:
    """Tangents on either side of b, as close as rounding allows, with the minimum between them.

    `step` is the length of a Newton step at b, which has nearly converged.
    """
    # at least the spacing of floating-point numbers near b
    radius = 4 * step + 1e-15 * (1 + abs(b))
    for _ in check_each(range(12 if math.isfinite(radius) else 0)):
        lo, hi = f(b - radius), f(b + radius)
        if lo.slope <= 0 <= hi.slope:
            return lo, hi
        radius *= 8
    return solve_intercept(f, b)


def best_interval(rows: IntervalConjugate, z: Array, c: Array) -> tuple[float, float]:
    """The interval of best intercepts of a loss that is linear in each score but for kinks (square = 0).

    A search may find any point of it, while its ends depend on the data alone. An end at infinity is
    replaced by the other one.
    """
    # the slope of row i in b jumps from c_i lower_i to c_i upper_i; with epsilon, it is 0 between two kinks
    xp, kinks, jumps = namespace(z), rows.shift - z, c * (rows.upper - rows.lower)
    if rows.epsilon:
        kinks = xp.concat([kinks - rows.epsilon, kinks + rows.epsilon])
        jumps = xp.concat([-c * rows.lower, c * rows.upper])
    order, slope = xp.argsort(kinks), float(c @ rows.lower)
    # the slope of the risk beyond each kink
    slopes = slope + xp.cumulative_sum(jumps[order])
    # the first kinks beyond which the slope is above each number
    ends = as_array_like(np.array([-CONSTANT_RISK_SLOPE, CONSTANT_RISK_SLOPE]), slopes)
    left, right = xp.searchsorted(slopes, ends, side="right").tolist()
    if not slopes[-1] > CONSTANT_RISK_SLOPE:
        right = left
    elif not slope < -CONSTANT_RISK_SLOPE:
        left = right
    last = len(order) - 1  # beyond all of them by rounding
    return float(kinks[order[min(left, last)]]), float(kinks[order[min(right, last)]])


def refine_intercept(
    f: Callable[[float], Tangent], lo: Tangent, hi: Tangent, slack: float = 0.0, smooth: bool = False
) -> tuple[Tangent, Tangent]:
    """Two tangents within a bracket whose intersection proves the minimum, up to the slack."""

    def gap(best: float) -> float:
        return max(INTERCEPT_RELATIVE_GAP * abs(best), slack)

    if smooth:
        return refine_smooth_bracket(f, lo, hi, gap)
    return refine_bracket(f, lo, hi, lambda best, bound: best - bound <= gap(best))


def bracket_intercept(f: Callable[[float], Tangent], start: Tangent, step: float) -> tuple[Tangent, Tangent]:
    """Two tangents that bracket the minimum of the risk over the intercept, by growing steps from a start."""
    # the square of a larger intercept might overflow
    if not math.isfinite(start.value) or abs(start.x) > 1e150:
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
            raise NoMinimum("it is zero only by underflow")
    except NoMinimum:  # other errors are those of the risk, such as a refusal of data owners
        raise NoMinimum(
            "the risk falls for ever as the intercept grows, so no best intercept exists: "
            "check the labels (are all counts zero? are numbers beyond 1e30?) or fit without an intercept"
        ) from None
    return lo, hi


def _rises_beyond(f: Callable[[float], Tangent], flat_point: float, start: Tangent) -> bool:
    """Whether f increases again beyond a point where it is flat, in the direction away from the start."""
    # points flat_point + 2^k step, up to 2^39 times as far as the flat point is from the start
    step = flat_point - start.x
    return any(f(flat_point + step * 2.0**k).slope * step > 0 for k in range(40))


# ---------------------------------------------------------------- along the line of a cursor
class InterceptProfile:
    """The best intercepts b(w + t d) along the line of a cursor, each between two tangents in b."""

    def __init__(self, cursor: ScoreCursor) -> None:
        # weak: the cursor owns this search, and a cycle would keep the shards and their threads alive
        self.cursor: ScoreCursor = weakref.proxy(cursor)
        self.slack = 0.0
        # by how much values may always be too high: where an evaluation is a round over a network
        self.min_slack = 0.0
        self.brackets: dict[float, tuple[Tangent, Tangent]] = {}  # t -> tangents in b that bracket b(w + t d)
        # the intercept at t = 0, where searches start, and an estimate of the second derivative in b
        self.b, self.curvature = 0.0, 1.0
        self.searched = False

    def _tangent(self, t: float, b: float) -> Tangent:
        value, slope_t, slope_b = self.cursor.evaluate_at(t, b)
        return Tangent(b, value, slope_b, slope_t)

    def tangents(self, t: float) -> tuple[Tangent, Tangent]:
        """The tangents in b that bracket b(w + t d), refined until their intersection bounds the risk."""
        # by convexity, the intersection of a tangent left and one right of the minimum bounds min_b R below
        f = partial(self._tangent, t)
        lo, hi = self.brackets[t] if t in self.brackets else self._bracket(f, self._guess(t))
        slack = max(self.slack, self.min_slack)
        self.brackets[t] = bracket = refine_intercept(f, lo, hi, slack, self.cursor.loss.smooth)
        if not self.searched:  # the first search is at t = 0
            self.searched, self.b = True, best_tangent(*bracket).x
        return bracket

    @property
    def best(self) -> Tangent:
        """The tangent in b at the best intercept of w that was found."""
        return best_tangent(*self.brackets[0.0])

    def mixture(self, t: float) -> tuple[float, float, list[tuple[float, float]]]:
        """The least R(w + t d, b) found, how far the mixed cut lies below it, and the mixture of tangents.

        A mixture of two tangents of R(w, b) without a slope in b bounds R(w, b) for all b: a cut of min_b R.
        It is given by the intercepts of the tangents and their weights.
        """
        lo, hi = self.tangents(t)
        value = best_tangent(lo, hi).value
        mix = zip((lo.x, hi.x), zero_slope_weights(lo, hi), strict=True)
        # at w, the mixed cut has the height of the intersection of the tangents
        return value, value - intersection(lo, hi)[1], [(b, m) for b, m in mix if m]

    def value_slope(self, t: float) -> tuple[float, float]:
        """min_b R(w + t d, b), up to the slack, and its derivative in t, from the tangents that bracket b."""
        lo, hi = self.tangents(t)
        below, above = zero_slope_weights(lo, hi)
        return best_tangent(lo, hi).value, below * lo.other_slope + above * hi.other_slope

    def set_direction(self, bracket: tuple[Tangent, Tangent], slack: float) -> None:
        """Follow the cursor, whose direction has changed; `bracket` is that of w."""
        self.slack = slack
        # the same tangents as before, now with their slopes along d, unless rounding has changed a sign
        lo, hi = (self._tangent(0.0, end.x) for end in bracket)
        self.brackets = {0.0: (lo, hi)} if lo.slope <= 0 <= hi.slope else {}

    def advance(self, bracket: tuple[Tangent, Tangent], scores_recomputed: bool) -> None:
        """Follow the cursor to a point whose tangents are known."""
        # recomputed scores differ in their last bits, and so may the slopes at nonsmooth points
        self.brackets = {} if scores_recomputed else {0.0: bracket}
        self.b = best_tangent(*bracket).x

    def _bracket(self, f: Callable[[float], Tangent], b: float) -> tuple[Tangent, Tangent]:
        """Two tangents in b that bracket the minimum of f; the search starts from b."""
        start = f(b)
        # a Newton step in b, 1.5 times as long so that it mostly ends beyond the minimum
        step = 1.5 * abs(start.slope) / self.curvature
        lo, hi = bracket_intercept(f, start, step)
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
