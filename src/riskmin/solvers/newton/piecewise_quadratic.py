r"""Score problems of losses whose conjugate is quadratic on an interval, by compiled kernels.

The conjugate of a row's loss is :math:`l^*(u) = shift\, u + \epsilon |u| + \tfrac{square}2 u^2` for u between
`lower` and `upper`: hinge, quantile, Huber, squared hinge and the like. Smoothing adds
:math:`\tfrac\mu2 (u - \bar u)^2`, which leaves it of the same form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin._numba.newton import slots
from riskmin.arrays.namespace import namespace
from riskmin.core import NDArray
from riskmin.numerics.precision import CUT_ROUNDING, INTERCEPT_SLOPE_ROUNDING
from riskmin.numerics.univariate import Tangent, best_tangent
from riskmin.problem.intercept import solve_intercept
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.solvers.newton.compiled import CompiledScoreProblem
from riskmin.solvers.newton.score_problem import ScoreEvaluation


def _kernels() -> Any:
    from riskmin._numba.newton import (
        piecewise_quadratic,  # Numba is imported by the first step, not with the package
    )

    return piecewise_quadratic


class PiecewiseQuadratic(CompiledScoreProblem):
    """The loss of all rows, smoothed by mu around a center; one multiplier per row, between bounds."""

    MIN_CURVED_WEIGHT = 0.1
    """A smooth loss is smoothed further at first if active rows have less than this share of the weight."""
    MAX_BOUND = 1e300
    """Stands for an infinite bound of the multipliers, where it is multiplied by weights."""
    MIN_MU_PER_SQUARE = 0.1
    """The smallest mu of a smooth loss, as a share of the coefficient `square` of its conjugate."""

    damp_below_step = 0.0  # a line crosses thousands of nonsmooth points: short steps show no bad direction

    def __init__(self, risk: Risk, intercept: bool) -> None:
        super().__init__(risk, intercept)
        self.shift, self.lower, self.upper = (np.empty(self.c.shape) for _ in range(3))

        def conjugate(part: slice) -> Any:
            """The conjugate of a range of rows, whose numbers are copied: some are read-only views of one."""
            dual = risk.loss.interval_conjugate(self.y[part])
            assert dual is not None
            self.shift[part], self.lower[part], self.upper[part] = dual.shift, dual.lower, dual.upper
            return dual

        dual = self.design.map_by_threads(conjugate)[0]
        self.epsilon, self.square = float(dual.epsilon), float(dual.square)
        self.smoother = risk.loss.constant_curvature
        self._target: tuple[float, NDArray | None, NDArray] = (0.0, None, self.shift)
        """The last mu and center, and the scores at which their multipliers are 0."""

    @classmethod
    def accepts(cls, obj: Objective) -> bool:
        """Whether the conjugate of each row's loss is quadratic on an interval."""
        loss, y = obj.risk.loss, obj.risk.row_metadata.y[:1]
        return namespace(y) is np and loss.interval_conjugate(y) is not None

    @property
    def min_mu(self) -> float:
        """A share of `square` for smooth losses, such as Huber's: a smaller mu smooths them no further."""
        return self.MIN_MU_PER_SQUARE * self.square if self.smooth else 0.0

    def initial_mu(self, z: NDArray, penalty: float) -> float:
        """0 for a smooth loss, unless too few rows have nonzero second derivatives to give steps a scale."""
        if not self.smooth:
            return super().initial_mu(z, penalty)
        max_slope = max(float(np.abs(self.lower).max()), float(np.abs(self.upper).max()))
        # what smoothing subtracts from the loss has no bound if the multipliers have none
        if not np.isfinite(max_slope):
            return 0.0
        h = self.evaluate(z, 0.0, None, 0.0).hessian_diagonal
        assert h is not None
        # h_i is c_i / square in curved rows and 0 in others
        if float(h.sum()) * self.square >= self.MIN_CURVED_WEIGHT * float(self.c.sum()):
            return 0.0
        # smoothing subtracts at most mu max_slope^2 / 2: half of the risk for mu = risk / max_slope^2
        return max(self.unsmoothed_value(z, 0.0)[0] / max_slope**2, penalty, self.min_mu)

    def unsmoothed_value(
        self, z: NDArray, b: float, slack: float = 0.0, curvature: float = 0.0
    ) -> tuple[float, float]:
        """The unsmoothed loss at its best intercept, up to the slack, and that intercept.

        The search starts at b; `curvature` estimates the second derivative there, if it is positive.
        """
        k = _kernels()
        rows = self.shift, self.lower, self.upper, self.c

        def tangent_at(b: float) -> Tangent:
            args = z, b, *rows, self.epsilon, self.square
            value, slope = self.design.range_sums(2, k.unsmoothed_value_slope_of_ranges, *args)
            return Tangent(b, float(value), float(slope))

        if not self.intercept:
            return tangent_at(0.0).value, 0.0
        best = best_tangent(*solve_intercept(tangent_at, b, slack=slack, curvature=curvature))
        return best.value, best.x

    # ------------------------------------------------------------ evaluations
    def _zero_scores(self, mu: float, center: NDArray | None) -> NDArray:
        """The shift less mu times the multipliers of the center, cached until mu or the center changes."""
        if center is None:
            return self.shift
        if self._target[0] != mu or self._target[1] is not center:
            pull = np.empty(len(center))
            # the center is a gradient c u in the scores
            self.design.run_ranges(_kernels().pull_of_ranges, self.shift, self.c, center, mu, pull)
            self._target = mu, center, pull
        return self._target[2]

    def line_derivatives(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray | None, t: float
    ) -> Callable[[float], NDArray]:
        """A function of the intercept b: the first and second derivatives in (t, b) at z + t dz + b."""
        k, inverse = _kernels(), 1 / (self.square + mu)
        # with mu, the conjugate has the coefficient square + mu and the shift of _zero_scores
        rows = self._zero_scores(mu, center), self.lower, self.upper, self.c

        def derivatives(b: float) -> NDArray:
            args = z, dz, t, b, *rows, inverse, self.epsilon
            return self.design.range_sums(6, k.smoothed_line_derivatives_of_ranges, *args)

        return derivatives

    def evaluate_with_cut(
        self, z: NDArray, mu: float, center: NDArray | None, b: float
    ) -> tuple[ScoreEvaluation, NDArray]:
        """The evaluation at the intercept b, and the sums of the kernel."""
        k, inverse, dz, h = _kernels(), 1 / (self.square + mu), np.empty_like(z), np.empty_like(z)
        rows = self.shift, self._zero_scores(mu, center), self.lower, self.upper, self.c
        args = z, b, *rows, inverse, self.epsilon, self.square, dz, h
        sums = self.design.range_sums(slots.N_CUT_SUMS, k.evaluate_with_cut_of_ranges, *args)
        offset = float(sums[k.CUT_OFFSET] - CUT_ROUNDING * sums[k.CUT_ABS_TERMS])
        return ScoreEvaluation(dz, offset, b, float(sums[k.VALUE]), h), sums

    def with_multipliers(self, z: NDArray, evaluation: ScoreEvaluation, r: NDArray) -> ScoreEvaluation | None:
        """The evaluation with the cut of the multipliers dz + r, cut off at their bounds; for smooth losses.

        None if they have a slope in the intercept then.
        """
        h, c = evaluation.hessian_diagonal, self.c
        assert h is not None
        # bounds may be infinite, and weights 0
        low, high = c * np.maximum(self.lower, -self.MAX_BOUND), c * np.minimum(self.upper, self.MAX_BOUND)
        u = np.clip(evaluation.dz + r, low, high)
        if self.intercept:
            total = float(h.sum())
            u = np.clip(u - (float(u.sum()) / total if total > 0 else 0.0) * h, low, high)
            if abs(float(u.sum())) > INTERCEPT_SLOPE_ROUNDING * float(np.abs(u).sum()):
                return None
        size = np.abs(u)
        # c l*(u / c) = shift u + epsilon |u| + square u^2 / (2 c)
        inner = self.epsilon * float(size.sum()) + 0.5 * self.square * float(
            np.divide(u * u, c, out=np.zeros_like(u), where=c > 0).sum()
        )
        rounding = CUT_ROUNDING * (float(size @ np.abs(self.shift)) + inner)
        return evaluation._replace(dz=u, offset=-float(u @ self.shift) - inner - rounding)
