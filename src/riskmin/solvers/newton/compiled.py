"""Score problems of separable losses whose derivatives are computed by compiled kernels.

A loss gives the derivatives along a line and the evaluation at a point; this module adds the intercept, which
is minimized out, and the line search.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import numpy as np

from riskmin._numba.newton import slots as k
from riskmin.arrays.namespace import namespace
from riskmin.core import Hessian, NDArray
from riskmin.losses.hessian import separable_hessian
from riskmin.numerics.precision import INTERCEPT_SLOPE_ROUNDING
from riskmin.problem.intercept import VANISHED_RISK_RATIO, newton_in_bracket
from riskmin.solvers.newton.score_problem import (
    LINE_SEARCH_SLOPE_RATIO,
    ScoreEvaluation,
    ScoreProblem,
    bracketed_newton,
)


class CompiledScoreProblem(ScoreProblem, ABC):
    """The loss of all rows, smoothed by mu around a center, one row at a time in compiled code."""

    VALUE_DISTANCE_SHARE = 0.05
    """How far an inexact intercept may raise the unsmoothed loss, as a share of its distance from the cut."""
    LINE_SEARCH_INTERCEPT_SLOPE = 1e-3
    """The slope in the intercept that is allowed during a line search, as a share of sum_i |c_i u_i|."""
    LINE_SEARCH_INTERCEPT_ERROR = 0.2
    """How far an inexact intercept may change the slope along a line, as a share of the slope at which line
    searches end."""

    @abstractmethod
    def line_derivatives(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray | None, t: float
    ) -> Callable[[float], NDArray]:
        """A function of the intercept b: the first and second derivatives in (t, b) at z + t dz + b."""

    @abstractmethod
    def evaluate_with_cut(
        self, z: NDArray, mu: float, center: NDArray | None, b: float
    ) -> tuple[ScoreEvaluation, NDArray]:
        """The evaluation at the intercept b, and the sums of the kernel."""

    def evaluate(
        self, z: NDArray, mu: float, center: NDArray | None, b: float, slack: float = 0.0
    ) -> ScoreEvaluation:
        """The multipliers at the scores z, the loss, and its second derivatives.

        The intercept is that of the smoothed loss, up to a slope that lowers the cut by at most `slack`.
        """
        evaluation, sums = self.evaluate_with_cut(z, mu, center, b if self.intercept else 0.0)
        if not self.intercept:
            return evaluation
        # scaled slopes lower the cut by at most |slope| / (their sum) of the loss
        share = max(slack / evaluation.risk if evaluation.risk > 0 else 0.0, INTERCEPT_SLOPE_ROUNDING)
        slope, curvature, adjustable = _intercept_slope(sums)
        if not abs(slope) <= min(share, 0.5) * adjustable:
            # at t = 0 the derivatives in b do not depend on the direction, so z stands in for it
            derivatives = self.line_derivatives(z, z, mu, center, 0.0)
            start = b - slope / curvature if abs(slope) < curvature else b
            tolerance = partial(_scaled_slope_sum, share=0.1 * share)
            b, _ = self.minimize_intercept(derivatives, z, start, tolerance)
            evaluation, sums = self.evaluate_with_cut(z, mu, center, b)
            slope, _, adjustable = _intercept_slope(sums)
        if abs(slope) > INTERCEPT_SLOPE_ROUNDING * float(sums[k.CUT_ABS_SUM]):
            feasible = abs(slope) <= 0.5 * adjustable
            evaluation = (
                _balanced(evaluation, sums) if feasible else self._mixed(z, mu, center, evaluation, slope)
            )
        if not mu:
            return evaluation  # the intercept of the smoothed loss is that of the loss itself
        # as closely as the smoothing of the cut allows: by its distance from the loss
        distance = max(evaluation.risk - float(evaluation.dz @ z) - evaluation.offset, 0.0)
        allowed = self.VALUE_DISTANCE_SHARE * distance if slack else 0.0
        search = allowed, float(sums[k.CUT_CURVATURE_B])
        return evaluation._replace(risk=self.unsmoothed_value(z, b, *search)[0])

    def value_at_zero(self) -> float:
        """The loss at scores of 0."""
        if not self.smooth:
            return super().value_at_zero()
        return self.evaluate_with_cut(np.zeros(len(self.c)), 0.0, None, 0.0)[0].risk

    def line_search(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float, b_slope: float = 0.0,
    ) -> tuple[float, float, int]:  # fmt: skip
        """The step length along dz, the intercept there, and the number of evaluations, by Newton steps.

        `line` gives the first and second derivative of lam Omega along the line. The intercept is minimized
        out at each t, as closely as the slope in t requires; `b_slope` predicts its change along the line.
        """
        last_t = 0.0
        allowed = self.LINE_SEARCH_INTERCEPT_ERROR * LINE_SEARCH_SLOPE_RATIO * abs(start)

        def tolerance(sums: NDArray) -> float:
            """The slope f_b in b whose effect f_tb f_b / f_bb on the slope in t is allowed."""
            effect, limit = (
                abs(float(sums[k.D_TB])),
                _scaled_slope_sum(sums, self.LINE_SEARCH_INTERCEPT_SLOPE),
            )
            return min(allowed * float(sums[k.D_BB]) / effect, limit) if effect > 0 else limit

        def derivatives(t: float) -> tuple[float, float]:
            nonlocal b, last_t, b_slope
            sums, (slope, curvature) = self.line_derivatives(z, dz, mu, center, t), line(t)
            if not self.intercept:
                current = sums(0.0)
                return float(current[k.D_T]) + slope, float(current[k.D_TT]) + curvature
            b, current = self.minimize_intercept(sums, z, b + b_slope * (t - last_t), tolerance)
            last_t, d_b, d_tb, d_bb = t, *(float(current[i]) for i in (k.D_B, k.D_TB, k.D_BB))
            # no minimum in b within reach: the scores are so long that t is beyond the minimum on the line
            if abs(d_b) > max(tolerance(current), INTERCEPT_SLOPE_ROUNDING * float(current[k.LINE_ABS_SUM])):
                return math.inf, 0.0
            # the derivatives of min_b f(t, b) are f_t at the best b, and f_tt - f_tb^2 / f_bb; one more step
            # in b changes f_t by f_tb (-f_b / f_bb)
            b_step, b_slope = (-d_b / d_bb, -d_tb / d_bb) if d_bb > 0 else (0.0, 0.0)
            b += b_step
            slope, curvature = slope + d_tb * b_step, curvature + d_tb * b_slope
            return float(current[k.D_T]) + slope, float(current[k.D_TT]) + curvature

        t, n_evaluations = bracketed_newton(derivatives, start)
        return t, b + b_slope * (t - last_t), n_evaluations

    def hessian(self, evaluation: ScoreEvaluation, z: NDArray, mu: float, center: NDArray | None) -> Hessian:
        """The Hessian in the scores; with a profiled intercept, less h h' / sum(h)."""
        assert evaluation.hessian_diagonal is not None
        return separable_hessian(evaluation.hessian_diagonal, self.intercept)

    def minimize_intercept(
        self,
        derivatives: Callable[[float], NDArray],
        z: NDArray,
        b: float,
        tolerance: Callable[[NDArray], float],
    ) -> tuple[float, NDArray]:
        """An intercept whose slope is within the tolerance at its derivatives, and these derivatives.

        Newton's method, safeguarded by a bracket that begins unbounded.
        """
        sums = np.empty(0)

        def slope_curvature(b: float) -> tuple[float, float, float]:
            nonlocal sums
            sums = derivatives(b)
            limit = max(tolerance(sums), INTERCEPT_SLOPE_ROUNDING * float(sums[k.LINE_ABS_SUM]))
            return float(sums[k.D_B]), float(sums[k.D_BB]), limit

        best, _, converged = newton_in_bracket(slope_curvature, b, 1.0)
        # where all multipliers underflow, the risk may have no minimizer in the intercept either
        if not converged or sums[k.LINE_ABS_SUM] <= VANISHED_RISK_RATIO:
            self.unsmoothed_value(z, b)  # raises where the risk has no minimizer in the intercept
        return best, sums

    def _mixed(
        self, z: NDArray, mu: float, center: NDArray | None, first: ScoreEvaluation, slope_b: float
    ) -> ScoreEvaluation:
        """A convex combination with an evaluation beyond the best intercept, whose slope in b is 0."""
        # step across the minimizer in b, by lengths that grow by a factor of 8, until the slope changes sign
        step = 1e-12 * (1 + abs(first.b))
        second, slope = first, slope_b
        while (slope > 0) == (slope_b > 0) and slope:
            # the slope has the same sign everywhere
            if step > 1e300:
                return first
            second, sums = self.evaluate_with_cut(z, mu, center, first.b - np.copysign(step, slope_b))
            slope, step = float(sums[k.CUT_SLOPE_B]), 8 * step
        # weight * slope_b + (1 - weight) * slope = 0
        weight = slope / (slope - slope_b)
        dz = weight * first.dz + (1 - weight) * second.dz
        return first._replace(dz=dz, offset=weight * first.offset + (1 - weight) * second.offset)


def _scaled_slope_sum(sums: NDArray, share: float) -> float:
    """A share of the sum of the absolute slopes."""
    return share * float(sums[k.LINE_ABS_SUM])


def _intercept_slope(sums: NDArray) -> tuple[float, float, float]:
    """The slope and the curvature of a cut in b, and the sum of the slopes that `_balanced` scales."""
    slope = float(sums[k.CUT_SLOPE_B])
    return slope, float(sums[k.CUT_CURVATURE_B]), float(sums[k.RISING_SUM if slope > 0 else k.FALLING_SUM])


def _balanced(evaluation: ScoreEvaluation, sums: NDArray) -> ScoreEvaluation:
    """The evaluation with slope 0 in b, as a cut of min_b R must have.

    Slopes of the sign of their sum are scaled down, in rows with nonzero second derivatives: since the loss
    of a row is nonnegative, a row's tangent times a number between 0 and 1 is a cut of it, too.
    """
    dz, h = evaluation.dz, evaluation.hessian_diagonal
    assert h is not None
    slope, _, adjustable = _intercept_slope(sums)
    reduction = abs(slope) / adjustable
    scaled = (dz > 0 if slope > 0 else dz < 0) & (h > 0)
    offset = float(sums[k.RISING_OFFSET if slope > 0 else k.FALLING_OFFSET])
    # CUT_ROUNDING of the absolute terms is subtracted already
    return evaluation._replace(
        dz=namespace(dz).where(scaled, (1 - reduction) * dz, dz),
        offset=evaluation.offset - reduction * offset,
    )
