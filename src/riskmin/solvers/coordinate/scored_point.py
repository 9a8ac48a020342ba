"""Points of a linear risk with a smooth loss whose rows are in this process, with cached scores.

An evaluation takes one adjoint pass over X; the best intercept is found on the cached scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from riskmin.arrays.matrix import Csr, Dense
from riskmin.core import Array, Cut, NDArray, Shard
from riskmin.core.deadline import check_each, chunk_ranges
from riskmin.numerics.univariate import CUT_ROUNDING, Tangent, best_tangent, intersection, zero_slope_weights
from riskmin.problem.objective import Objective
from riskmin.problem.oracle import tangent


@dataclass
class ScoredPoint:
    """A point w with its scores z = X w and its intercept b."""

    w: NDArray
    z: NDArray
    b: float = 0.0
    n_moves: int = 0
    """Number of steps by which z was updated since it was computed from w."""


@dataclass
class PointEvaluation:
    """Evaluation at a point: J, a cut, the risk, and the risk's gradients in w (grad) and z (slope)."""

    value: float
    grad: NDArray
    cut: Cut
    risk: float
    slope: NDArray


class InterceptTangent(NamedTuple):
    """A tangent of the risk as a function of the intercept, with the derivatives in the scores there."""

    tangent: Tangent
    slopes: NDArray


TangentPair: TypeAlias = tuple[InterceptTangent, InterceptTangent] | tuple[None, None]


@dataclass
class PointEvaluator:
    """Evaluates an objective at points with cached scores."""

    obj: Objective
    rows: Shard
    loss: Any
    has_intercept: bool
    """Whether there is an unpenalized intercept."""

    def with_scores(self, w: Array) -> ScoredPoint:
        """Return the projection of w onto the domain, with newly computed scores."""
        w = self.obj.reg.prox(np.array(w, dtype=np.float64), 0.0)
        n = len(self.rows.y)
        return ScoredPoint(w, self.rows.X.scores(w, 0, n) if w.any() else np.zeros(n))

    def evaluate(self, point: ScoredPoint, guess: NDArray | None = None) -> PointEvaluation:
        """Evaluate J by one pass over X, and also the cut of `guess`, the slopes that a model predicted.

        At the exact minimizer of a model, the gradient X'(c guess) satisfies the optimality conditions on the
        working set, and the slopes of the risk differ from `guess` only to second order in the step. So the
        cut of `guess` proves about as much as the cut at the next point.
        """
        self.obj.count.calls += 1
        y, c = self.rows.y, self.rows.c
        if self.has_intercept:
            risk, slope, gap = self._profile(point)
        else:
            risk, slope = self.loss.value_grad(point.z, y, c)
            gap = 0.0
        # `guess` is per unit weight, `slope` includes the sample weights c.
        grad, guess_grad = self._pull_back(slope, None if guess is None else c * guess)
        # Bound on the rounding error of grad @ w, by the magnitudes of its terms.
        error = gap + CUT_ROUNDING * float(np.abs(slope) @ (np.abs(point.z) + abs(point.b)))
        value, grad, cut = self.obj.add_penalty(point.w, tangent(point.w, float(risk), grad, error))
        if guess is not None:
            predicted = self._cut_from_slopes(guess, guess_grad, point.z)
            cut = max(cut, predicted, key=self.obj.lower)
        return PointEvaluation(value, grad, cut, float(risk), slope)

    def _pull_back(self, slope: NDArray, guess: NDArray | None) -> tuple[NDArray, NDArray]:
        """Return X' slope and X' guess, in one pass over the rows."""
        X: Any = self.rows.X
        grad, guess_grad = np.zeros(X.shape[1]), np.zeros(X.shape[1])
        if guess is None or not isinstance(X, (Csr, Dense)):
            X.pullback(slope, 0, len(slope), grad)
            if guess is not None:
                X.pullback(guess, 0, len(slope), guess_grad)
            return grad, guess_grad
        # Both products in one pass over the rows.
        from riskmin._numba import products  # Numba is imported on first use, not with the package

        n, p = X.shape
        if isinstance(X, Dense):
            for i, j in chunk_ranges(0, n, 2 * n * p):
                products.dense_pullback_two(X.X[i:j], slope[i:j], guess[i:j], grad, guess_grad)
            return grad, guess_grad
        # Both gradients side by side, so that one access to memory serves both sums.
        both = np.zeros((p, 2))
        for i, j in chunk_ranges(0, n, 2 * len(X.data)):
            products.csr_pullback_two(X.indptr[i : j + 1], X.indices, X.data, slope[i:j], guess[i:j], both)
        grad, guess_grad = np.ascontiguousarray(both.T)
        return grad, guess_grad

    def _cut_from_slopes(self, u: NDArray, a: NDArray, z: NDArray) -> Cut:
        """Return the cut of the slopes u, by the conjugate of the loss, minus its rounding error."""
        y, c = self.rows.y, self.rows.c
        # By the Fenchel inequality l(z) >= u z - l*(u): R(v) >= a'v - sum_i c_i l*(u_i) with a = X'(c u).
        conjugate = np.where(c > 0, self.loss.conjugate(y).value(u), 0.0)
        dual = self.loss.interval_conjugate(y)
        # Bound on the terms u z and u shift per unit slope: rounding is relative to these.
        magnitude = np.abs(z) + (1.0 if dual is None else np.abs(dual.shift))
        return Cut(
            a, -float(c @ conjugate) - CUT_ROUNDING * float(c @ (np.abs(conjugate) + np.abs(u) * magnitude))
        )

    def feasible_slopes(self, slopes: NDArray) -> NDArray | None:
        """Return slopes per unit weight, clipped to the domain of the conjugate; None without a conjugate."""
        y, c = self.rows.y, self.rows.c
        dual = self.loss.conjugate(y)
        if dual is None:
            return None
        return np.clip(np.where(c > 0, slopes / np.where(c > 0, c, 1.0), 0.0), dual.lower, dual.upper)

    def _profile(self, point: ScoredPoint) -> tuple[float, NDArray, float]:
        """Find the best intercept; return the risk, slopes of sum zero, and how far their cut lies below.

        As in `InterceptProfile`, two tangents around the minimum are mixed to slope zero in b. Newton's
        method brings them closer together, which matters for the gradient where lam is small.
        """
        # Newton's method from the last intercept; then from the bracket of the profile; then a wider bracket.
        lo, hi = self._newton(point) if point.n_moves else (None, None)
        if lo is None or hi is None:
            bracket = self.obj.risk.cursor(point.w).profile.tangents(0.0)  # type: ignore[attr-defined]
            point.b = best_tangent(*bracket).x
            lo, hi = self._newton(point)
        if lo is None or hi is None:
            lo, hi = self._straddle(
                point, sum(t.x for t in bracket) / 2, (bracket[1].x - bracket[0].x) / 2, 12
            )
        if lo is None or hi is None:
            raise ValueError("rounding hides the best intercept: use Bundle, which needs it less exactly")
        best, (weight_lo, weight_hi) = (
            best_tangent(lo.tangent, hi.tangent),
            zero_slope_weights(lo.tangent, hi.tangent),
        )
        point.b = best.x
        # The cut of the mixture has the height of the intersection of both tangents.
        return (
            best.value,
            weight_lo * lo.slopes + weight_hi * hi.slopes,
            best.value - intersection(lo.tangent, hi.tangent)[1],
        )

    def _newton(self, point: ScoredPoint) -> TangentPair:
        """Return tangents around the best intercept, by Newton's method from the last intercept, or None."""
        y, c = self.rows.y, self.rows.c
        b, step = point.b, 1.0
        for _ in check_each(range(8)):
            slope = float(self.loss.value_grad(point.z + b, y, c)[1].sum())
            curvature = float(self.loss.hessian(point.z + b, y, c).diagonal.sum())
            step = abs(slope) / curvature if curvature > 0 else math.inf
            # Stop at rounding level, or where the step is too long for Newton's method to be safe.
            if not 1e-14 * (1 + abs(b)) < step < 1:
                break
            b -= slope / curvature
        # The error of b is about the last step: a bracket of four times that on either side.
        return self._straddle(point, b, 4 * step, 4) if step < 1e-6 else (None, None)

    def _straddle(self, point: ScoredPoint, b: float, radius: float, tries: int) -> TangentPair:
        """Return tangents on either side of b, as close as possible, with the minimum between them."""
        # At least the spacing of floating-point numbers near b.
        radius += 1e-15 * (1 + abs(b))
        for _ in check_each(range(tries)):
            lo, hi = self._intercept_tangent(point, b - radius), self._intercept_tangent(point, b + radius)
            if lo.tangent.slope <= 0 <= hi.tangent.slope:
                return lo, hi
            radius *= 8
        return None, None

    def _intercept_tangent(self, point: ScoredPoint, b: float) -> InterceptTangent:
        """Return the tangent of the risk at intercept b."""
        risk, slopes = self.loss.value_grad(point.z + b, self.rows.y, self.rows.c)
        return InterceptTangent(Tangent(b, float(risk), float(slopes.sum())), slopes)
