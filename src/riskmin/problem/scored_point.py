"""Points of a linear risk with a smooth loss whose rows are in this process, with cached scores.

An evaluation takes one adjoint pass over X; the best intercept is found on the cached scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.core import Array, Cut, NDArray, Shard
from riskmin.losses.conjugate import Conjugate
from riskmin.numerics.precision import CUT_ROUNDING, sum_rounding
from riskmin.numerics.univariate import Tangent, best_tangent, intersection, zero_slope_weights
from riskmin.problem.certificate import balanced, multiplier_cut, scale_of_slopes, tangent
from riskmin.problem.intercept import newton_intercept, straddle
from riskmin.problem.objective import Objective


@dataclass
class ScoredPoint:
    """A point w with its scores z = X w and its intercept b."""

    w: NDArray
    z: NDArray
    b: float = 0.0
    n_moves: int = 0
    """Number of steps by which z was updated since it was computed from w."""
    known: tuple[float, NDArray] | None = None
    """The risk and its derivatives in the scores at z + b, if a line search has computed them."""


@dataclass
class PointEvaluation:
    """Evaluation at a point: J, a cut, the risk, and the risk's gradients in w (grad) and z (slope)."""

    value: float
    grad: NDArray
    cut: Cut
    risk: float
    slope: NDArray


@dataclass
class PointEvaluator:
    """Evaluates an objective at points with cached scores."""

    MAX_INTERCEPT_SLOPE = 1e-13
    """Slope in the intercept, as a share of its terms, that is removed by scaling."""

    obj: Objective
    rows: Shard
    loss: Any
    has_intercept: bool
    """Whether there is an unpenalized intercept."""
    rounding_matters: bool = False
    """Whether some slopes were so large relative to lam that their rounding may exceed lam."""

    SMALL_SCALE = 1e-6
    """Rounding matters after a cut of a smaller scale."""

    def with_scores(self, w: Array) -> ScoredPoint:
        """Return the projection of w onto the domain, with newly computed scores."""
        w = self.obj.reg.prox(np.array(w, dtype=np.float64), 0.0)
        n = len(self.rows.y)
        return ScoredPoint(w, self.rows.X.scores(w, 0, n) if w.any() else np.zeros(n))

    def evaluate(self, point: ScoredPoint, guess: NDArray | None = None) -> PointEvaluation:
        """Evaluate J, and also the cut of `guess`, the slopes that a model predicted.

        At the exact minimizer of a model, the gradient X'(c guess) satisfies the optimality conditions on the
        working set, and the slopes of the risk differ from `guess` only to second order in the step. So the
        cut of `guess` proves about as much as the cut at the next point.
        """
        self.obj.count.calls += 1
        c, gap = self.rows.c, 0.0
        if self.has_intercept:
            risk, slope, gap = self._profile(point)
        else:
            risk, slope = point.known or self.value_slopes(point.z)
        # `guess` is per unit weight, `slope` includes the sample weights c.
        grad, guess_grad = self._pull_back(slope), None if guess is None else self._pull_back(c * guess)
        # Bound on the rounding error of grad @ w, by the magnitudes of its terms.
        error = gap + CUT_ROUNDING * self._magnitude(point, slope)
        value, grad, cut = self.obj.add_penalty(point.w, tangent(point.w, risk, grad, error))
        cut = self._best_cut(cut, slope, guess, guess_grad, point.z + point.b)
        return PointEvaluation(value, grad, cut, risk, slope)

    def value_slopes(self, z: NDArray) -> tuple[float, NDArray]:
        """Return the risk and its derivatives in the scores."""
        value, slopes = self.loss.value_grad(z, self.rows.y, self.rows.c)
        return float(value), slopes

    @staticmethod
    def _magnitude(point: ScoredPoint, slope: NDArray) -> float:
        """Return the sum of |slope_i (z_i + b)|, at most."""
        size = np.abs(slope)
        return float(size @ np.abs(point.z)) + abs(point.b) * float(size.sum())

    def curvature(self, z: NDArray) -> NDArray:
        """Return the second derivatives of the risk in the scores."""
        if self.loss.constant_curvature:
            return self._constant_curvature
        return np.asarray(self.loss.hessian(z, self.rows.y, self.rows.c).diagonal)

    @cached_property
    def _constant_curvature(self) -> NDArray:
        y = self.rows.y
        return np.asarray(self.loss.hessian(np.zeros(len(y)), y, self.rows.c).diagonal)

    def _pull_back(self, slope: NDArray) -> NDArray:
        """Return X' slope."""
        grad = np.zeros(self.rows.X.shape[1])
        self.rows.X.pullback(slope, 0, len(slope), grad)
        return grad

    @cached_property
    def _conjugate(self) -> Conjugate | None:
        dual: Conjugate | None = self.loss.conjugate(self.rows.y)
        return dual

    def _best_cut(
        self, cut: Cut, slope: NDArray, guess: NDArray | None, guess_grad: NDArray | None, z: NDArray
    ) -> Cut:
        """Return the better of the cuts of the slopes and of the guess, each scaled.

        Where the conjugate of the regularizer is an indicator function, that is the one that is scaled less.
        """
        if self._conjugate is None:
            return cut
        s, t = self._scale(cut, lambda: self._per_weight(slope)), 0.0
        if guess is not None and guess_grad is not None:
            predicted = Cut(guess_grad, cut.b)
            t = self._scale(predicted, lambda: guess)
            if not self.obj.reg.polyhedral:
                own = self._with_scaled_slopes(cut, slope, s, z)
                other = self._cut_from_slopes(t * guess, t * guess_grad, z)
                return max(own, other, key=self.obj.lower)
            if t > s:
                return self._cut_from_slopes(t * guess, t * guess_grad, z)
        return self._with_scaled_slopes(cut, slope, s, z)

    def _scale(self, cut: Cut, slopes: Callable[[], NDArray]) -> float:
        """Return the best scale of a cut; its slopes per unit weight are used for their rounding alone."""
        s = scale_of_slopes(self.obj, cut)
        self.rounding_matters |= s < self.SMALL_SCALE
        if self.rounding_matters and self.obj.reg.polyhedral:
            size = math.sqrt(float(self.rows.c @ slopes() ** 2))
            s = scale_of_slopes(self.obj, cut, self._column_errors * size)
        return s

    def _with_scaled_slopes(self, cut: Cut, slope: NDArray, s: float, z: NDArray) -> Cut:
        """Return the cut of the slopes times s; the same cut if s is 1.

        Where the conjugate of the regularizer is an indicator function, s < 1 is the rule. The conjugate of
        the loss is convex, so that the cut of the scaled slopes proves more than the scaled cut: for
        `Squared` and s near 1, its bound is below J by (1 - s) lam |w|_1 instead of (1 - s) J.
        """
        if s in (0.0, 1.0):
            return cut
        return self._cut_from_slopes(s * self._per_weight(slope), s * cut.a, z)

    @cached_property
    def _column_errors(self) -> NDArray:
        """The rounding errors of X' (c u) for slopes u of a root mean square of one, per column."""
        X, c = self.rows.X, self.rows.c
        if (array := X.array) is not None:
            squares = np.einsum("ij,ij,i->j", array, array, c)
        else:
            squares = X.as_scipy().power(2).T @ c
        return np.asarray(sum_rounding(len(c)) * np.sqrt(squares))

    def _cut_from_slopes(self, u: NDArray, a: NDArray, z: NDArray) -> Cut:
        """Return the cut of the multipliers u, with a = X'(c u)."""
        c, dual = self.rows.c, self._conjugate
        assert dual is not None
        return multiplier_cut(a, dual, u, c, z=z)

    def feasible_slopes(self, slopes: NDArray) -> NDArray | None:
        """Return slopes per unit weight in the domain of the conjugate; None without a conjugate.

        With an intercept, their sum is zero, as a cut needs.
        """
        dual = self._conjugate
        if dual is None:
            return None
        u = np.clip(self._per_weight(slopes), dual.lower, dual.upper)
        return balanced(u, self.rows.c, dual) if self.has_intercept else u

    @cached_property
    def _has_zero_weights(self) -> bool:
        return not self.rows.c.all()

    def _per_weight(self, slopes: NDArray) -> NDArray:
        c = self.rows.c
        if not self._has_zero_weights:
            return np.asarray(slopes / c)
        return np.where(c > 0, slopes / np.where(c > 0, c, 1.0), 0.0)

    def _profile(self, point: ScoredPoint) -> tuple[float, NDArray, float]:
        """Find the best intercept; return the risk, slopes of sum zero, and how far their cut lies below.

        The search starts from the point's own b, which mostly is the minimizer of a model. Where rounding of
        b leaves a slope, two tangents around the minimum are mixed to slope zero, as in `InterceptProfile`.
        """
        evaluated = {point.b: point.known or self.value_slopes(point.z + point.b)}

        def value_slopes(b: float) -> tuple[float, NDArray]:
            if b not in evaluated:
                evaluated[b] = self.value_slopes(point.z + b)
            return evaluated[b]

        def tangent_at(b: float) -> Tangent:
            value, slopes = value_slopes(b)
            return Tangent(b, value, float(slopes.sum()))

        def slope_and_terms(b: float) -> tuple[float, float]:
            slopes = value_slopes(b)[1]
            return float(slopes.sum()), float(np.abs(slopes).sum())

        def curvature(b: float) -> float:
            return float(self.curvature(point.z + b).sum())

        tol = self.MAX_INTERCEPT_SLOPE
        point.b, step, _ = newton_intercept(tangent_at, slope_and_terms, curvature, point.b, tol)
        total, size = slope_and_terms(point.b)
        if abs(total) > tol * size:
            lo, hi = straddle(tangent_at, point.b, step)
            ends = zip(zero_slope_weights(lo, hi), (lo.x, hi.x), strict=True)
            mixed = sum(weight * value_slopes(b)[1] for weight, b in ends)
            best = best_tangent(lo, hi)
            point.b = best.x
            # the cut of the mixture has the height of the intersection of both tangents
            return best.value, np.asarray(mixed), best.value - intersection(lo, hi)[1]
        risk, slope = value_slopes(point.b)
        if not total:
            return risk, slope, 0.0
        # Slopes of the larger sign times 1 - t have the sum zero. Losses are nonnegative, so that a row's
        # tangent times 1 - t is a cut of the row, too. It is lower by at most t (l_i + |u_i (z_i + b)|).
        t = 2 * abs(total) / (size + abs(total))
        larger = slope > 0 if total > 0 else slope < 0
        return risk, np.where(larger, (1 - t) * slope, slope), t * (risk + self._magnitude(point, slope))
