"""Score problems of separable losses whose derivatives are computed by compiled kernels.

A loss gives the derivatives along a line and the evaluation at a point; this module adds the intercept, which
is minimized out, and the line search.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.core import Hessian, NDArray
from riskmin.losses.hessian import separable_hessian
from riskmin.numerics.precision import INTERCEPT_SLOPE_ROUNDING
from riskmin.problem.intercept.solve import VANISHED_RISK_RATIO, newton_in_bracket
from riskmin.solvers.newton.score_problem import ScoreEvaluation, ScoreProblem, bracketed_newton


def _slots() -> Any:
    from riskmin._numba.newton import (
        piecewise_quadratic,  # Numba is imported by the first step, not with the package
    )

    return piecewise_quadratic


class CompiledScoreProblem(ScoreProblem, ABC):
    """The loss of all rows, smoothed by mu around a center, one row at a time in compiled code."""

    LINE_SEARCH_INTERCEPT_SLOPE = 1e-6
    """The slope in the intercept that is allowed during a line search, as a share of sum_i |c_i u_i|."""

    @abstractmethod
    def line_derivatives(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray | None, t: float
    ) -> Callable[[float], NDArray]:
        """A function of the intercept b: the first and second derivatives in (t, b) at z + t dz + b."""

    @abstractmethod
    def evaluate_with_cut(
        self, z: NDArray, mu: float, center: NDArray | None, b: float
    ) -> tuple[ScoreEvaluation, float, float]:
        """The evaluation at the intercept b, the slope of its cut in b, and the sum of |dz|."""

    def evaluate(self, z: NDArray, mu: float, center: NDArray | None, b: float) -> ScoreEvaluation:
        """The multipliers at the scores z, the loss, and its second derivatives."""
        if not self.intercept:
            return self.evaluate_with_cut(z, mu, center, 0.0)[0]
        # at t = 0 the derivatives in b do not depend on the direction, so z stands in for it
        derivatives = self.line_derivatives(z, z, mu, center, 0.0)
        b, _ = self.minimize_intercept(derivatives, z, b, INTERCEPT_SLOPE_ROUNDING)
        evaluation, slope_b, abs_sum = self.evaluate_with_cut(z, mu, center, b)
        # a cut of min_b R must have slope 0 in b
        if abs(slope_b) > INTERCEPT_SLOPE_ROUNDING * abs_sum:
            evaluation = self._mixed(z, mu, center, evaluation, slope_b)
        if not mu:
            return evaluation  # its risk is that of the unsmoothed loss at the same intercept
        risk, _ = self.unsmoothed_value(z, b)
        return evaluation._replace(risk=risk)

    def line_search(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float,
    ) -> tuple[float, int]:  # fmt: skip
        """The step length along dz, and the number of evaluations, by safeguarded Newton steps.

        `line` gives the first and second derivative of lam Omega along the line. The intercept is minimized
        out at each t.
        """
        k, last_t = _slots(), 0.0
        previous = self.line_derivatives(z, dz, mu, center, 0.0)(b) if self.intercept else None

        def derivatives(t: float) -> tuple[float, float]:
            nonlocal b, last_t, previous
            sums = self.line_derivatives(z, dz, mu, center, t)
            if previous is None:
                current = sums(0.0)
            else:
                predicted = b + _intercept_change(previous, t - last_t)
                b, current = self.minimize_intercept(sums, z, predicted, self.LINE_SEARCH_INTERCEPT_SLOPE)
                last_t, previous = t, current
            slope, curvature = line(t)
            # the derivative of min_b f(t, b) is f_t at the best b
            slope, curvature = current[k.D_T] + slope, current[k.D_TT] + curvature
            # its second derivative is f_tt - f_tb^2 / f_bb
            if self.intercept and current[k.D_BB] > 0:
                curvature -= current[k.D_TB] ** 2 / current[k.D_BB]
            return float(slope), float(curvature)

        return bracketed_newton(derivatives, start)

    def hessian(self, evaluation: ScoreEvaluation, z: NDArray, mu: float, center: NDArray | None) -> Hessian:
        """The Hessian in the scores; with a profiled intercept, less h h' / sum(h)."""
        assert evaluation.hessian_diagonal is not None
        return separable_hessian(evaluation.hessian_diagonal, self.intercept)

    def minimize_intercept(
        self, derivatives: Callable[[float], NDArray], z: NDArray, b: float, tol: float
    ) -> tuple[float, NDArray]:
        """The intercept whose slope is at most tol times the sum of |c_i u_i|, and the derivatives at it.

        Newton's method, safeguarded by a bracket that begins unbounded.
        """
        k, sums = _slots(), np.empty(0)

        def slope_curvature(b: float) -> tuple[float, float, float]:
            nonlocal sums
            sums = derivatives(b)
            return float(sums[k.D_B]), float(sums[k.D_BB]), float(sums[k.LINE_ABS_SUM])

        best, _, converged = newton_in_bracket(slope_curvature, b, tol)
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
            second, slope, _ = self.evaluate_with_cut(z, mu, center, first.b - np.copysign(step, slope_b))
            step *= 8
        # weight * slope_b + (1 - weight) * slope = 0
        weight = slope / (slope - slope_b)
        dz = weight * first.dz + (1 - weight) * second.dz
        return first._replace(dz=dz, offset=weight * first.offset + (1 - weight) * second.offset)


def _intercept_change(sums: NDArray, step: float) -> float:
    """The change of the best intercept along a step in t, to first order: -step f_tb / f_bb."""
    k = _slots()
    return -step * float(sums[k.D_TB] / sums[k.D_BB]) if sums[k.D_BB] > 0 else 0.0
