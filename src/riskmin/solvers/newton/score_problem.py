r"""The risk as a smoothed function of the scores z = X w, as Newton's method needs it.

The loss is :math:`l(z) = \max_\beta \beta^\top A z - g(\beta)`. With :math:`\tfrac\mu2 |\beta - \bar\beta|^2`
subtracted inside the maximum it is differentiable, and its maximizer :math:`\beta` stays feasible for the
loss itself: :math:`A^\top \beta` is the gradient in the scores of a valid cut of the risk, for any
:math:`\mu`. The rows may be local or remote; vectors with one entry per row are kept in this process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import (
    NDArray,
)
from riskmin.core.deadline import check_each
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.risk import RECOMPUTE_WHEN_SHRUNK_BY, Risk

LINE_SEARCH_SLOPE_RATIO = 0.05
"""A line search ends at a slope of at most this share of that at t = 0: a closer one saves no steps."""


class ScoreEvaluation(NamedTuple):
    """The multipliers at a point, and the cut they prove: R >= ``dz @ z + offset`` for all scores z."""

    dz: NDArray
    """The gradient in the scores, sample weights included."""
    offset: float
    b: float
    """The intercept that minimizes the smoothed loss."""
    risk: float
    """The unsmoothed loss at an intercept near the best one, at which it may be lower: an upper bound."""
    hessian_diagonal: NDArray | None = None
    """The second derivatives, if they are computed together with the multipliers."""


class ScoreProblem:
    """The loss of all rows as a function of the scores: smoothed by mu, minimized in the intercept."""

    damp_below_step = 0.3
    """The next direction is damped after a line search that ended below this step length."""

    def __init__(self, risk: Risk, intercept: bool) -> None:
        self.design = DesignOperator(risk)
        self.y, self.c = self.design.row_metadata.y, self.design.row_metadata.c
        self.loss: Any = risk.loss
        self.risk = risk
        self.intercept = intercept
        self.smooth, self.uses_center = self.loss.smooth, self.loss.supports_center

    def weight_gradient(
        self, evaluation: ScoreEvaluation, previous: tuple[ScoreEvaluation, NDArray] | None = None
    ) -> NDArray:
        """X' dz of an evaluation, updated from the previous one: rows whose dz did not change cost nothing.

        It is recomputed from dz alone once it is much smaller than the previous one, since an update keeps
        the rounding errors of the larger numbers.
        """
        if previous is not None and self.design.updates_pay:
            last_evaluation, last_a = previous
            # X' dz is linear in dz
            a = last_a + self.design.adjoint(self.design.combination(evaluation.dz, -1.0, last_evaluation.dz))
            if RECOMPUTE_WHEN_SHRUNK_BY * np.max(np.abs(a)) >= np.max(np.abs(last_a)):
                return a
        return self.design.adjoint(evaluation.dz)

    def initial_mu(self, z: NDArray, penalty: float) -> float:
        """The mu whose smoothing term is as large as the loss at the scores z; 0 for smooth losses.

        At least J = loss + `penalty`: at the end point of a run for a larger lam, the loss may be nearly 0.
        """
        if self.smooth:
            return 0.0
        risk, b = self.unsmoothed_value(z, 0.0)
        if not risk > 0:
            return penalty or 1.0
        # the minorant offset for a small mu is mu |beta|^2 / 2, so half_square estimates |beta|^2 / 2, and
        # mu = risk / half_square makes this offset as large as the risk
        small_mu = 1e-3 * risk
        half_square = float(self._smoothed(z + b if b else z, small_mu, None)[2]) / small_mu
        return max(risk / half_square if half_square > 0 else 0.0, risk + penalty)

    def initial_center(self, z: NDArray) -> NDArray | None:
        """The first center; None stands for 0."""
        return None

    def intercept_slope(self, hessian: Any, dz: NDArray) -> float:
        """The derivative of the best intercept along dz: intercepts are entries of w."""
        return 0.0

    def unsmoothed_value(
        self, z: NDArray, b: float, slack: float = 0.0, curvature: float = 0.0
    ) -> tuple[float, float]:
        """The unsmoothed loss at its best intercept, up to the slack, and that intercept.

        The search starts at b; `curvature` estimates the second derivative there, if it is positive.
        """
        return float(self.loss.value_grad(z, self.y, self.c)[0]), 0.0

    def _smoothed(self, z: NDArray, mu: float, center: NDArray | None) -> tuple[Any, NDArray, Any]:
        """The loss smoothed by mu, its gradient in z, and the minorant offset; the loss itself for mu = 0."""
        if mu:
            smoothing = (mu,) if center is None else (mu, center)
            result: tuple[Any, NDArray, Any] = self.loss.smoothed_value_grad(z, self.y, self.c, *smoothing)
            return result
        return *self.loss.value_grad(z, self.y, self.c), 0.0


def bracketed_newton(
    derivatives: Callable[[float], tuple[float, float]], start: float, ratio: float = LINE_SEARCH_SLOPE_RATIO
) -> tuple[float, int]:
    """The minimizer of a convex function on t > 0 by its first two derivatives, and the evaluations.

    Newton's method from t = 1, safeguarded by a bracket that is at least halved every third evaluation: on
    exponentials, Newton's steps from above are short. `start` < 0 is the slope at t = 0, of which a share of
    `ratio` may be left.
    """
    # the slope is negative at lo and not at hi; `width` is that of the bracket at the last check
    lo, hi, t, width = 0.0, math.inf, 1.0, math.inf
    for n_evaluations in range(1, 61):
        slope, curvature = derivatives(t)
        if abs(slope) <= ratio * abs(start):
            return t, n_evaluations
        lo, hi = (t, hi) if slope < 0 else (lo, t)
        # where the second derivative vanishes, the step is infinite and leaves the bracket
        new = t - slope / curvature if curvature > 0 else math.inf
        # every third evaluation, a bracket that was not halved since the last check is bisected
        slow = n_evaluations % 3 == 0 and hi - lo > 0.5 * width
        # far too long steps, as where exponentials overflow, are shortened by powers of ten
        slow = slow or (lo == 0 and new > 0.5 * hi)
        width = hi - lo if n_evaluations % 3 == 0 else width
        if slow or not lo < new < hi:
            new = 10 * t if hi == math.inf else 0.1 * hi if lo == 0 else 0.5 * (lo + hi)
        new = min(new, 10 * t)
        if not lo < new < hi:
            break
        t = new
    # the function decreases up to lo, so that lo is a descent step; it is 0 where no slope was negative
    return lo or t, n_evaluations


def secant_search(slope: Callable[[float], float], start: float) -> tuple[float, int]:
    """The minimizer of a convex function on t > 0, near 1, by its slope, and the number of evaluations.

    The Illinois variant of regula falsi: the slope of the end that stays is halved when the other end moves
    twice in a row. `start` < 0 is the slope at t = 0.
    """
    # each end of the bracket is (t, slope there)
    lo, hi, t = (0.0, start), (math.inf, math.inf), 1.0
    last_moved = 0  # 1 where the upper end moved last, -1 where the lower one did
    for n_evaluations in check_each(range(1, 41)):
        current = slope(t)
        if abs(current) <= LINE_SEARCH_SLOPE_RATIO * abs(start):
            return t, n_evaluations
        if current > 0:
            hi, lo, last_moved = (t, current), (lo[0], 0.5 * lo[1]) if last_moved > 0 else lo, 1
        else:
            lo, hi, last_moved = (t, current), (hi[0], 0.5 * hi[1]) if last_moved < 0 else hi, -1
        if hi[0] == math.inf:
            # no upper end yet: extrapolate the slope to zero, by a factor between 2 and 10
            extrapolated = t * start / (start - current) if current > start else math.inf
            t = min(max(extrapolated, 2 * t), 10 * t)
        else:
            # the zero of the secant through the slopes of both ends
            t = (lo[0] * hi[1] - hi[0] * lo[1]) / (hi[1] - lo[1])
            if not lo[0] < t < hi[0]:
                break
    return lo[0], n_evaluations
