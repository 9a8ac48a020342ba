r"""The search for the best intercept on the cached scores of a cursor.

:math:`\tilde R(w) = \min_b R(w, b)` is computed on the cached scores: O(n) per evaluation, no pass over X.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from riskmin.numerics.univariate import Tangent, best_tangent, intersection, zero_slope_weights
from riskmin.problem.intercept.solve import bracket_intercept, is_best, refine_intercept

if TYPE_CHECKING:
    from riskmin.problem.risk import ScoreCursor


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

    def best(self, near: tuple[float, float] | None = None) -> tuple[float, float]:
        """A best intercept b of w, and R(w, b): one evaluation, if `near` is best up to rounding."""
        if near is not None:
            self.b, self.curvature = near
            start = self._tangent(0.0, self.b)
            if is_best(start.value, start.slope, self.curvature):
                return self.b, start.value
        best = best_tangent(*self.tangents(0.0))
        return best.x, best.value

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
