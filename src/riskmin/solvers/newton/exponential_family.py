"""Score problems of the smooth losses with exponentials, by compiled kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin._numba.newton import slots
from riskmin.core import NDArray
from riskmin.losses import Exponential, Logistic, Poisson
from riskmin.numerics.precision import CUT_ROUNDING, INTERCEPT_SLOPE_ROUNDING
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.solvers.newton.compiled import CompiledScoreProblem
from riskmin.solvers.newton.score_problem import ScoreEvaluation


def _kernels() -> Any:
    from riskmin._numba.newton import (
        exponential_family,  # Numba is imported by the first step, not with the package
    )

    return exponential_family


class ExponentialFamily(CompiledScoreProblem):
    """The loss of all rows; it is smooth, so mu is 0 and there is no center."""

    smoother = True
    MAX_RELATIVE_CHANGE = 0.9
    """By how much a row's multiplier may differ from its slope, as a share of the second derivative."""
    MAX_CLOSED_FORM_STEPS = 30
    """Steps to the intercept, each of which changes the exponents by 36, or 18 for two exponentials."""

    def __init__(self, risk: Risk, intercept: bool) -> None:
        super().__init__(risk, intercept)
        k, y = _kernels(), np.ascontiguousarray(self.y, dtype=np.float64)
        if isinstance(risk.loss, Logistic):
            self.line_kernel = k.logistic_line_derivatives_of_ranges
            self.point_kernel = k.logistic_evaluate_with_cut_of_ranges
            self.args: tuple[NDArray, ...] = y, self.c
            self.point_args: tuple[NDArray, ...] = ()
            return
        # e^(sign z) - rate (1 + z - log rate): sign = -y, rate = 0 for Exponential; 1 and y for Poisson
        self.line_kernel = k.exponential_line_derivatives_of_ranges
        self.point_kernel = k.exponential_evaluate_with_cut_of_ranges
        if isinstance(risk.loss, Poisson):
            tiny = np.finfo(np.float64).smallest_normal  # keeps y log y = 0 for y = 0
            self.args, self.point_args = (np.ones(len(y)), y, self.c), (np.log(np.maximum(y, tiny)),)
        else:
            zeros = np.zeros(len(y))
            self.args, self.point_args = (-y, zeros, self.c), (zeros,)

    @classmethod
    def accepts(cls, obj: Objective) -> bool:
        """Whether the loss has kernels; a subclass may compute something else."""
        return type(obj.risk.loss) in (Logistic, Exponential, Poisson)

    def line_derivatives(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray | None, t: float
    ) -> Callable[[float], NDArray]:
        """A function of the intercept b: the first and second derivatives in (t, b) at z + t dz + b."""
        return lambda b: self.design.range_sums(6, self.line_kernel, z, dz, t, b, *self.args)

    def evaluate_with_cut(
        self, z: NDArray, mu: float, center: NDArray | None, b: float
    ) -> tuple[ScoreEvaluation, NDArray]:
        """The evaluation at the intercept b, and the sums of the kernel."""
        k, dz, h = _kernels(), np.empty_like(z), np.empty_like(z)
        args = z, b, *self.args, *self.point_args
        sums = self.design.range_sums(slots.N_CUT_SUMS, self.point_kernel, *args, dz, h)
        offset = float(sums[k.CUT_OFFSET] - CUT_ROUNDING * sums[k.CUT_ABS_TERMS])
        return ScoreEvaluation(dz, offset, b, float(sums[k.VALUE]), h), sums

    def with_multipliers(self, z: NDArray, evaluation: ScoreEvaluation, r: NDArray) -> ScoreEvaluation | None:
        """The evaluation with the cut of the multipliers dz + r, with slope 0 in the intercept.

        l*(u) <= u z - l(z) + q^2 (1 + q) l''(z) / 2 for q = |u - l'(z)| / l''(z) <= 1, to which r is cut off:
        (1 + t) log(1 + t) - t <= t^2 (1 + |t|) / 2 for |t| <= 1 bounds the Kullback-Leibler divergence of
        rates, and of two probabilities.
        """
        h, s = evaluation.hessian_diagonal, z + evaluation.b
        assert h is not None
        bound = self.MAX_RELATIVE_CHANGE * h
        r = np.clip(r, -bound, bound)
        u = evaluation.dz + r
        if self.intercept:
            shift = float(u.sum()) / float(h.sum())
            r -= shift * h
            u -= shift * h
            rest = abs(float(u.sum())) - INTERCEPT_SLOPE_ROUNDING * float(np.abs(u).sum())
            if rest > 0 or not abs(shift) <= 1 - self.MAX_RELATIVE_CHANGE:
                return None
        # beyond the largest exponent, the loss is another one
        if not max(float(s.max()), -float(s.min())) < _kernels().TANGENT_EXP_ABOVE:
            return None
        r = np.abs(r)
        q = r / np.maximum(h, np.finfo(np.float64).smallest_normal)  # r = 0 where h = 0
        excess = 0.5 * (float(q @ r) + float((q * q) @ r))
        # by Cauchy and Schwarz, an upper bound of the sum of the absolute terms
        terms = evaluation.risk + excess + math.sqrt(float(u @ u) * float(s @ s))
        return evaluation._replace(
            dz=u, offset=evaluation.risk - float(u @ s) - excess - CUT_ROUNDING * terms
        )

    def constant_intercept(self) -> float:
        """log(mean) for `Poisson`, the log-odds for `Logistic`, and half of these for `Exponential`."""
        if isinstance(self.loss, Poisson):
            rise, fall = float(self.c @ self.y), 1.0
        else:
            rise, fall = float(self.c @ (self.y > 0)), float(self.c @ (self.y < 0))
        b = math.log(rise / fall) if rise > 0 and fall > 0 else 0.0
        return 0.5 * b if isinstance(self.loss, Exponential) else b

    def minimize_intercept(
        self,
        derivatives: Callable[[float], NDArray],
        z: NDArray,
        b: float,
        tolerance: Callable[[NDArray], float],
    ) -> tuple[float, NDArray]:
        """The best intercept and the derivatives at it; in closed form except for the logistic loss."""
        if not isinstance(self.loss, Logistic):
            b = self._intercept_in_closed_form(derivatives, b)
        return super().minimize_intercept(derivatives, z, b, tolerance)

    def _intercept_in_closed_form(self, derivatives: Callable[[float], NDArray], b: float) -> float:
        """The intercept at which the slope of a sum of exponentials is zero, from the derivatives at b.

        The slope after a change s of b is rise e^s - fall (Poisson) or rise e^s - fall e^-s (Exponential),
        with the root s = log(fall / rise), or half of it; Newton's method would take many steps to it, or
        too long ones.
        """
        k, n_exponentials, eps = _kernels(), 1 + isinstance(self.loss, Exponential), np.finfo(float).eps
        # far from the root, one of the two is lost in the rounding of the other: a step for eps in its place
        # is a safe one, after which the next is exact or as long again
        for _ in range(self.MAX_CLOSED_FORM_STEPS):
            sums = derivatives(b)
            # D_BB is rise (Poisson) or their sum (Exponential, for which both are doubled here) at this b
            total, slope = float(sums[k.D_BB]), float(sums[k.D_B])
            if not 0 < total < math.inf:
                break
            fall, rise = total - slope, total + slope * (n_exponentials - 1)
            b += math.log(max(fall, eps * total) / max(rise, eps * total)) / n_exponentials
            if min(fall, rise) > eps * total:
                break
        return b
