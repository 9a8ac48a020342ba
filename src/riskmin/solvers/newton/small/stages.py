r"""Newton's method on few rows and columns: dense rows in this process, and little work between products.

Each iterate is the end of a stage: the minimum of the objective smoothed by mu around a center, the
multipliers of the previous stage. The intercept is the weight of a column of ones, without penalty.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from riskmin._numba.newton import slots
from riskmin.core import Array, Cut, Iterate, NDArray
from riskmin.core.blas_threads import scipy_linalg
from riskmin.core.deadline import check
from riskmin.numerics.precision import CUT_ROUNDING, INTERCEPT_SLOPE_ROUNDING
from riskmin.problem.objective import Objective
from riskmin.solvers.newton.piecewise_quadratic import PiecewiseQuadratic, _kernels
from riskmin.solvers.newton.point import NewtonPoint, NewtonState
from riskmin.solvers.newton.score_problem import LINE_SEARCH_SLOPE_RATIO, ScoreEvaluation


class SmallProblem(PiecewiseQuadratic):
    """An objective with few rows and columns, L2, and a loss whose conjugate is quadratic on an interval."""

    MAX_ENTRIES = 2**17
    """Entries of X up to which calls cost more than sums over the rows."""
    MAX_COLUMNS = 128
    """Columns up to which a factorization in every step costs less than deciding whether it is needed."""
    MAX_STEPS = 50
    """Newton steps of a stage between two iterates."""
    MAX_GAP, GAP_SHARE = 1e-6, 1e-3
    """Without smoothing, a stage ends at the first relative gap, or at the second share of that before it."""
    MIN_RELATIVE_PENALTY = 1e-12
    """The smallest penalty in the linear system, as a share of the sum of the second derivatives."""
    MAX_VALUE_EXCESS = 0.01
    """By how much values may exceed J, as a share of the gap: the intercept is searched up to it."""
    PROBE_MU = 1e-3
    """The mu that gives the multipliers of the loss itself, nearly, as a share of the mean |z - shift|."""

    def __init__(self, obj: Objective) -> None:
        risk: Any = obj.risk
        super().__init__(risk, risk.intercept.profiled)
        (n, p), self.obj = self.design.shape, obj
        self.A = np.ones((n, p + self.intercept))
        self.A[:, :p] = self.design.dense_rows()
        self.penalty = np.zeros(p + self.intercept)
        self.penalty[:p] = obj.lam * obj.reg.terms(np.ones(p)).square
        self.kernels, self.solve_symmetric = _kernels(), scipy_linalg().lapack.dposv
        self.ones, self.sums = np.ones(n), np.empty(slots.N_CUT_SUMS)

    @classmethod
    def accepts(cls, obj: Objective, direct: int = MAX_COLUMNS) -> bool:
        """Whether X is small, the regularizer L2, and the conjugate of each row's loss of this form."""
        risk: Any = obj.risk
        n, p = risk.row_metadata.shape
        small = n * p <= cls.MAX_ENTRIES and p <= min(cls.MAX_COLUMNS, direct)
        # the squared loss needs no smoothing and no search: see `SmallSmoothProblem`
        one_step = risk.loss.constant_curvature
        return small and obj.reg.diagonal and not (risk.multi_output or one_step) and super().accepts(obj)

    # ------------------------------------------------------------ points
    def start(self, w: Array, center: NDArray | None = None, mu_share: float = 1.0) -> NewtonPoint:
        """The point of the weights w, with the first mu: its smoothing term is as large as the loss."""
        z, c, penalty = self.A[:, : len(w)] @ w, self.c, self.obj.lam * self.obj.reg.value(w)
        probe = 0.0 if self.smooth else self.PROBE_MU * float(c @ np.abs(z - self.shift)) or self.PROBE_MU
        evaluation = self.evaluate(z, probe, None, 0.0)
        a = evaluation.dz @ self.A[:, : len(w)]
        point = self._with_best_risk(NewtonPoint(w, z, evaluation, a, center, probe))
        risk, dz, h = point.evaluation.risk, evaluation.dz, np.asarray(evaluation.hessian_diagonal)
        mu, max_slope = 0.0, max(float(np.abs(self.lower).max()), float(np.abs(self.upper).max()))
        if not self.smooth:
            half_square = 0.5 * float((dz[c > 0] ** 2 / c[c > 0]).sum())
            ratio = risk / half_square if half_square else 0.0
            mu = max(ratio, risk + penalty) if risk > 0 else penalty or 1.0
            # near the minimum, a smoothing term beyond the gap of the point would only lead away from it
            gap = risk + penalty - self.obj.lower(point.cut)
            if w.any() and half_square and 0 < gap < mu * half_square:
                mu = gap / half_square
        # h_i is c_i / square in curved rows and 0 in others; unbounded multipliers are not smoothed
        elif float(h.sum()) * self.square < self.MIN_CURVED_WEIGHT * float(c.sum()) and max_slope < math.inf:
            mu = max(risk / max_slope**2, penalty, self.min_mu)
        return replace(point, mu=mu_share * mu, initial_mu=mu_share * mu)

    def evaluate(
        self, z: NDArray, mu: float, center: NDArray | None, b: float, slack: float = 0.0
    ) -> ScoreEvaluation:
        """The multipliers at the scores z and the best intercept, and the loss there; b is a guess of it."""
        if not self.intercept:
            return self.evaluate_with_cut(z, mu, center, 0.0)[0]
        b = self._best_intercept(z, self._zero_scores(mu, center), mu, b)
        evaluation, sums = self.evaluate_with_cut(z, mu, center, b)
        slope, abs_sum = float(sums[self.kernels.CUT_SLOPE_B]), float(sums[self.kernels.CUT_ABS_SUM])
        # a cut of min_b R must have slope 0 in b
        if abs(slope) > INTERCEPT_SLOPE_ROUNDING * abs_sum:
            evaluation = self._mixed(z, mu, center, evaluation, slope)
        return evaluation

    def evaluate_with_cut(
        self, z: NDArray, mu: float, center: NDArray | None, b: float
    ) -> tuple[ScoreEvaluation, NDArray]:
        """The evaluation at the intercept b, and the sums of the kernel."""
        k, sums, (dz, h) = self.kernels, self.sums, np.empty((2, len(z)))
        rows = self.shift, self._zero_scores(mu, center), self.lower, self.upper, self.c
        k.evaluate_with_cut(z, b, *rows, 1 / (self.square + mu), self.epsilon, self.square, dz, h, sums)
        offset = float(sums[k.CUT_OFFSET] - CUT_ROUNDING * sums[k.CUT_ABS_TERMS])
        return ScoreEvaluation(dz, offset, b, float(sums[k.VALUE]), h), sums

    def _best_intercept(self, z: NDArray, pull: NDArray, mu: float, b: float, excess: float = 0.0) -> float:
        """The intercept of least smoothed loss, up to rounding or an excess of the loss; b is a guess."""
        # shorter steps are rounding: the slope that is left is removed by mixing two cuts
        ends = 0.0, INTERCEPT_SLOPE_ROUNDING, excess, 1e-13 * (1 + abs(b))
        return self._minimize(z, self.ones, pull, mu, 0.0, 0.0, -1e300, b, *ends)

    def _minimize(self, z: NDArray, dz: NDArray, pull: NDArray, mu: float, *settings: float) -> float:
        """A minimizer along a line of scores: see the kernel."""
        rows = pull, self.lower, self.upper, self.c, 1 / (self.square + mu), self.epsilon
        return float(self.kernels.minimize_on_line(z, dz, *rows, *settings, self.sums))

    def _with_best_risk(self, point: NewtonPoint) -> NewtonPoint:
        """The point with the unsmoothed loss at its best intercept, up to a hundredth of the gap."""
        evaluation, obj = point.evaluation, self.obj
        if not (self.intercept and point.mu and 0 < evaluation.risk < math.inf):
            return point
        value = evaluation.risk + obj.lam * obj.reg.value(point.w)
        excess = self.MAX_VALUE_EXCESS * max(value - obj.lower(point.cut), 1e-15 * value)
        # half of it by smoothing, which subtracts at most mu sum_i c_i u_i^2 / 2
        square = float(self.c @ np.maximum(self.lower**2, self.upper**2))
        mu = max(min(excess / square, point.mu), sys.float_info.min) if square else point.mu
        b = self._best_intercept(point.z, self.shift, mu, evaluation.b, 0.5 * excess)
        risk = min(evaluation.risk, self.evaluate_with_cut(point.z, mu, None, b)[0].risk)
        return replace(point, evaluation=evaluation._replace(risk=risk))

    # ------------------------------------------------------------ stages
    def iterates(
        self, point: NewtonPoint, best: Cut, mu_decrease: float, mu_floor: float
    ) -> Iterator[Iterate]:
        """The iterates from a point: itself, then the ends of stages."""
        obj, stage_mu = self.obj, math.inf
        while True:
            value = point.evaluation.risk + obj.lam * obj.reg.value(point.w)
            obj.count.calls += 1 + point.steps
            info = {"mu": point.mu, "evaluations": 1.0 + point.steps}
            state = NewtonState(point, best, {"cg_steps": 0.0}).to_arrays
            near = point.evaluation.b if self.intercept and self.smooth else None
            yield Iterate(point.w, value, best, info, state, near)
            # the remaining gap is rounding
            if (not stage_mu and not point.steps) or 0 < point.mu <= mu_floor * point.initial_mu:
                return
            if point.full and point.mu:  # the stage has ended: the center moves to its multipliers
                mu = mu_decrease * point.mu
                point = replace(point, mu=mu if mu > self.min_mu else 0.0, center=point.evaluation.dz)
            stage_mu, gap = point.mu, 0.0
            if not point.mu and value > 0:
                gap = min(self.GAP_SHARE * (value - obj.lower(point.cut)) / value, self.MAX_GAP)
            point = self._stage(point, gap)
            best = max(best, point.cut, key=obj.lower)

    def _stage(self, point: NewtonPoint, gap: float) -> NewtonPoint:
        """The point after Newton steps with its mu and center: at a relative gap, or once mu must decrease.

        That is once stationarity is below half of complementarity, or where rounding allows no descent.
        """
        mu, center, penalty, p = point.mu, point.center, self.penalty, len(point.w)
        # v is w and the intercept; z are the scores without it
        v, z = np.append(point.w, point.evaluation.b)[: len(penalty)], self.A[:, :p] @ point.w
        evaluation, steps, stopped = point.evaluation, 0, False
        while True:
            check()
            evaluation = self.evaluate(z, mu, center, evaluation.b)
            v[p:] = evaluation.b
            a, penalty_slope = evaluation.dz @ self.A, penalty * v
            # the gap J(w) - (offset - lam Omega*(-a / lam)) is the sum of stationarity and complementarity
            g = a + penalty_slope
            stationarity = 0.5 * float(g[:p] @ (g[:p] / penalty[:p]))
            complementarity = evaluation.risk - float(a[:p] @ v[:p]) - evaluation.offset
            value = evaluation.risk + 0.5 * float(penalty_slope @ v)
            full = stopped or stationarity <= max(0.5 * complementarity, gap * value - complementarity)
            if full or steps == self.MAX_STEPS:
                moved = {"w": v[:p], "z": z, "a": a[:p], "full": full, "steps": steps}
                return self._with_best_risk(replace(point, evaluation=evaluation, **moved))
            g[p:] = 0.0  # at the best intercept
            d = self._direction(evaluation.hessian_diagonal, g)
            t, line, slope = 0.0, self.A @ d, float(g @ d)
            if -math.inf < slope < 0:
                along = float(penalty_slope @ d), float((penalty * d) @ d), 0.0, 1.0
                pull, tol = self._zero_scores(mu, center), -LINE_SEARCH_SLOPE_RATIO * slope
                t = self._minimize(z + evaluation.b, line, pull, mu, *along, tol, 0.0, 0.0, 0.0)
            before, v = v, v + t * d
            z = z + t * (line - (d[p] if self.intercept else 0.0))
            evaluation = evaluation._replace(b=float(v[-1]) if self.intercept else 0.0)
            stopped = bool((v == before).all())
            steps += not stopped

    def _direction(self, h: Any, g: NDArray) -> NDArray:
        """Newton's direction for second derivatives h and the gradient g: (P + A' H A) d = -g."""
        active = np.flatnonzero(h)
        h = h[active]
        # A' H A = S' S for S = H^1/2 A
        S = self.A[active] * np.sqrt(h)[:, None]
        G = S.T @ S
        diagonal = G.reshape(-1)[:: len(g) + 1]
        # penalties that vanish in rounding beside the second derivatives are raised to a share of them
        diagonal += np.maximum(self.penalty, self.MIN_RELATIVE_PENALTY * float(h.sum()))
        shift = 1e-14 * float(diagonal.max())
        while math.isfinite(shift):
            _, d, failed = self.solve_symmetric(G.T, -g, lower=True)
            if not failed:
                return np.asarray(d)
            diagonal += shift  # rounding has made the smallest eigenvalues negative
            shift *= 10
        return -g
