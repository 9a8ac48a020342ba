r"""Newton's method for smooth losses on few entries of X, in the weights and the intercept together.

A step solves

.. math:: \begin{pmatrix} X^\top H X + P & X^\top h \\ h^\top X & 1^\top h \end{pmatrix}
   \begin{pmatrix} d \\ e \end{pmatrix} = -\begin{pmatrix} \nabla_w J \\ \nabla_b J \end{pmatrix}

for the diagonal matrix H of the second derivatives h, and P = lam K. Each iterate is the end of
a stage of several steps: most of the time of a step would be spent on certificates that no run ends with.
A stage ends with a proof of its gap: the multipliers dz + H (X d + e) that a step (d, e) predicts have
X' (dz + H (X d + e)) = -P (w + d) and the sum 0, so that the bound of their cut is near J(w + d) for any lam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from riskmin._numba.newton import slots
from riskmin.core import Array, Cut, Iterate, NDArray
from riskmin.core.blas_threads import cholesky, scipy_linalg
from riskmin.core.deadline import check
from riskmin.problem.intercept import INTERCEPT_RELATIVE_GAP
from riskmin.problem.objective import Objective
from riskmin.solvers.base import beside_another_library
from riskmin.solvers.newton.hessian_reuse import ReusedHessian
from riskmin.solvers.newton.point import NewtonPoint, NewtonState
from riskmin.solvers.newton.score_problem import ScoreEvaluation, ScoreProblem, bracketed_newton


class _Position(NamedTuple):
    """Weights and scores, and the evaluation there."""

    w: Array
    z: NDArray
    evaluation: ScoreEvaluation
    sums: NDArray
    """The sums of the kernel, see `slots`."""


class SmallSmoothProblem:
    """An objective with few dense rows and columns, L2, and a smooth loss with compiled derivatives."""

    MAX_ENTRIES = 2**20
    """Entries of X up to which calls cost about as much as sums over the rows."""
    SMOOTHER_RATIO = 2
    """By how much there may be more of them if second derivatives change without jumps."""
    MAX_COLUMNS = 256
    """Columns up to which a factorization costs less than deciding whether it is needed."""
    MAX_ROW_ENTRIES, MAX_SPARSE_ROW_ENTRIES = 128, 16
    """Entries of a row up to which a matrix X' H X costs less than six steps of conjugate gradients."""
    MAX_STEPS = 50
    """Newton steps of a stage."""
    MAX_GAP, GAP_SHARE = 5e-4, 1e-3
    """A stage ends at the first relative gap, or at the second share of that before it."""
    LAST_STEPS, LAST_STEPS_SLOPE = 2, 10.0
    """So many steps with an old matrix cost less than a new one, for slopes of this multiple of the gap."""
    MAX_INTERCEPT_STEPS = 3
    """Newton steps in the intercept alone, once the gap is proved."""
    INTERCEPT_SHARE = 0.1
    """The share of the gap at the end of a stage by which an inexact intercept may lower its cut."""

    def __init__(self, obj: Objective, problem: Any) -> None:
        self.obj, self.problem, self.design = obj, problem, problem.design
        self.intercept = problem.intercept
        design, p = self.design, self.design.shape[1]
        self.forward: Callable[[NDArray], NDArray] = design.forward
        """X d."""
        self.adjoint: Callable[[NDArray], NDArray] = design.adjoint
        """X' dz."""
        if not design.row_metadata.sparse:
            # fewer calls
            X = design.dense_rows()
            self.forward, self.adjoint = X.__matmul__, X.__rmatmul__
        self.kept: tuple[NDArray, NDArray] | None = None
        """The second derivatives of the rows for the last matrix, and that matrix."""
        self.pulled_back: tuple[NDArray, NDArray] | None = None
        """The last dz, and X' dz."""
        self.penalty = obj.lam * obj.reg.terms(np.ones(p)).square + np.zeros(p)

    @classmethod
    def accepts(cls, obj: Objective, direct: int, problem: ScoreProblem) -> bool:
        """Whether X is small, the regularizer L2, and the derivatives of the loss are compiled."""
        design, (n, p) = problem.design, problem.design.shape
        row_entries = cls.MAX_SPARSE_ROW_ENTRIES if design.row_metadata.sparse else cls.MAX_ROW_ENTRIES
        entries = cls.MAX_ENTRIES * (cls.SMOOTHER_RATIO if problem.smoother else 1)
        small = design.nnz <= min(entries, n * row_entries) and p <= min(cls.MAX_COLUMNS, direct)
        numpy = not beside_another_library(obj.risk)
        return small and numpy and bool(obj.reg.diagonal) and problem.compiled and problem.smooth

    # ------------------------------------------------------------ iterates
    def start(self, w: Array, b: float = 0.0) -> NewtonPoint:
        """The point of the weights w; b is a guess of its intercept."""
        z = self.forward(w) if w.any() else np.zeros(self.design.shape[0])
        b = b if w.any() or not self.intercept else self.problem.constant_intercept()
        evaluation = self.problem.evaluate(z, 0.0, None, b)
        return NewtonPoint(w, z, evaluation, self._pull_back(evaluation.dz))

    def iterates(self, point: NewtonPoint, best: Cut, warm: bool = False) -> Iterator[Iterate]:
        """The iterates from a point: itself, then the ends of stages."""
        obj = self.obj
        while True:
            value = point.evaluation.risk + obj.lam * obj.reg.value(point.w)
            obj.count.calls += 1 + point.steps
            info = {"mu": 0.0, "evaluations": 1.0 + point.steps}
            kept = dict(zip(("kept", "matrix"), self.kept or (), strict=False))
            state = NewtonState(point, best, {"cg_steps": 0.0, "small": True} | kept).to_arrays
            near = point.evaluation.b if self.intercept else None
            yield Iterate(point.w, value, best, info, state, near)
            gap = (value - obj.lower(point.cut)) / value if value > 0 else 0.0
            point = self._stage(point, self.GAP_SHARE * gap if gap <= self.MAX_GAP else self.MAX_GAP, warm)
            warm = False
            last, best = best, max(best, point.cut, key=obj.lower)
            if not point.steps and best is last:  # rounding allows no descent, nor a better intercept
                return

    def _stage(self, point: NewtonPoint, gap: float, warm: bool) -> NewtonPoint:
        """The point after Newton steps up to a relative gap, or where rounding allows no descent.

        With `warm`, the first step uses the matrix that was kept.
        """
        z, b, steps = point.z, point.evaluation.b, 0
        now = _Position(point.w, z, *self.problem.evaluate_with_cut(z, 0.0, None, b))
        h, solve, last_square, n_slow = None, None, math.inf, 0
        if warm and self.kept is not None:
            h, solve = self.kept[0], self._factorized(self.kept[1])
        while True:
            check()
            evaluation, allowed = now.evaluation, gap * self._value(now)
            a, slope_b = self._pull_back(evaluation.dz), float(now.sums[slots.CUT_SLOPE_B]) * self.intercept
            g = np.append(a + self.penalty * now.w, slope_b)
            square = float(g @ g)
            if steps == self.MAX_STEPS or self._estimated_gap(g, now.sums) <= allowed:
                break
            # a matrix is used again while each step divides the squared gradient norm by 50, or near the end
            direction = g if solve is None else solve(-g)
            n_slow += square > last_square / ReusedHessian.REUSE_DECREASE
            last = n_slow <= self.LAST_STEPS and -float(g @ direction) <= self.LAST_STEPS_SLOPE * allowed
            if solve is None or (n_slow and not last):
                h, n_slow = evaluation.hessian_diagonal, 0
                solve = self._factorized(self._matrix(h))
                direction = solve(-g)
            dz, slope, last_square = self.forward(direction[:-1]), float(g @ direction), square
            if (proved := self._proved(now, h * (dz + direction[-1]), slope, allowed)) is not None:
                return replace(point, w=now.w, z=now.z, evaluation=proved[0], a=proved[1], steps=steps)
            moved = self._step(now, direction, dz, slope)
            if moved is not None:
                now, steps = moved, steps + 1
            elif h is evaluation.hessian_diagonal:
                break
            else:
                solve = None
        if self.intercept:
            # the best intercept, and a cut of slope 0 in it
            evaluation = self.problem.evaluate(now.z, 0.0, None, evaluation.b, self.INTERCEPT_SHARE * allowed)
            a = self._pull_back(evaluation.dz)
        return replace(point, w=now.w, z=now.z, evaluation=evaluation, a=a, steps=steps)

    def _pull_back(self, dz: NDArray) -> NDArray:
        """X' dz, without a product if dz is that of the last call, as where a stage starts or ends."""
        if self.pulled_back is None or not np.array_equal(dz, self.pulled_back[0]):
            self.pulled_back = dz, self.adjoint(dz)
        return self.pulled_back[1]

    def _proved(
        self, now: _Position, change: NDArray, slope: float, allowed: float
    ) -> tuple[ScoreEvaluation, NDArray] | None:
        """The evaluation with the cut of the multipliers that a step predicts, if it proves an allowed gap.

        X' of these multipliers is -P (w + d): the bound is less than J(w) by half of the slope of the step,
        and by about as much again, by which their conjugates exceed the quadratic model.
        """
        if -1.5 * slope > allowed:
            return None
        predicted = self.problem.with_multipliers(now.z, now.evaluation, change)
        if predicted is None:
            return None
        a = self.adjoint(predicted.dz)
        if self._value(now) - self.obj.lower(Cut(a, predicted.offset)) > allowed:
            return None
        return self._with_better_intercept(now, predicted), a

    def _with_better_intercept(self, now: _Position, proved: ScoreEvaluation) -> ScoreEvaluation:
        """The evaluation with the same cut, at an intercept so close to the best that the driver takes it.

        That is one at which a Newton step would decrease the risk by less than what it asks for.
        """
        evaluation, sums = now.evaluation, now.sums
        for _ in range(self.MAX_INTERCEPT_STEPS * self.intercept):
            slope, curvature = float(sums[slots.CUT_SLOPE_B]), float(sums[slots.CUT_CURVATURE_B])
            if slope * slope <= 0.1 * INTERCEPT_RELATIVE_GAP * curvature * evaluation.risk:
                break
            b = evaluation.b - slope / curvature
            better, sums = self.problem.evaluate_with_cut(now.z, 0.0, None, b)
            if not better.risk < evaluation.risk:
                break
            evaluation = better
        return evaluation._replace(dz=proved.dz, offset=proved.offset)

    def _estimated_gap(self, g: NDArray, sums: NDArray) -> float:
        """The certified gap at a point with the gradient g in (w, b), once the intercept is minimized out."""
        gap = 0.5 * float(g[:-1] @ (g[:-1] / self.penalty))
        # a step in b alone decreases the risk by the squared slope over twice the second derivative
        curvature = float(sums[slots.CUT_CURVATURE_B])
        return gap + (0.5 * float(g[-1]) ** 2 / curvature if g[-1] and curvature > 0 else 0.0)

    # ------------------------------------------------------------ steps
    def _value(self, now: _Position) -> float:
        """J at the intercept of an evaluation."""
        return now.evaluation.risk + 0.5 * float((self.penalty * now.w) @ now.w)

    def _step(self, now: _Position, direction: NDArray, dz: NDArray, slope: float) -> _Position | None:
        """The position after a step along a direction, with the scores dz; None without descent."""
        w, z, evaluation, _ = now
        d, e, b = direction[:-1], float(direction[-1]), evaluation.b
        if not -math.inf < slope < 0:
            return None
        # lam Omega along the line: its slope at t = 0, and its second derivative
        first, second = float((self.penalty * w) @ d), float((self.penalty * d) @ d)

        def moved(t: float) -> tuple[NDArray, ScoreEvaluation, NDArray, float, float]:
            """The scores and the evaluation at t, the slope of J there, and the change of J."""
            scores = z + t * dz
            at, sums = self.problem.evaluate_with_cut(scores, 0.0, None, b + t * e)
            end = float(at.dz @ dz) + e * float(sums[slots.CUT_SLOPE_B]) + first + t * second
            return scores, at, sums, end, at.risk - evaluation.risk + t * (first + 0.5 * t * second)

        def derivatives(t: float) -> tuple[float, float]:
            sums = self.problem.line_derivatives(z, dz + e, 0.0, None, t)(b)
            return float(sums[slots.D_T]) + first + t * second, float(sums[slots.D_TT]) + second

        t = 1.0
        scores, at, sums, end, change = moved(t)
        low, high = NewtonPoint.UNIT_STEP_MAX_SLOPE_LEFT, NewtonPoint.UNIT_STEP_MAX_SLOPE_REVERSED
        if not (low * slope <= end <= -high * slope and change < 0):
            t, _ = bracketed_newton(derivatives, slope)
            scores, at, sums, end, change = moved(t)
        new = w + t * d
        # in rounding, J may stay the same while its slope still decreases
        if not (change < 0 or abs(end) < abs(slope)) or (at.b == b and np.array_equal(new, w)):
            return None
        return _Position(new, scores, at, sums)

    def _matrix(self, h: Any) -> NDArray:
        """The second derivatives of the risk in (w, b), for those of the rows."""
        p = self.design.shape[1]
        G = np.zeros((p + 1, p + 1))
        G[:p, :p] = self.design.gram(h)
        if self.intercept:
            G[:p, p], G[p, p] = self.adjoint(h), float(h.sum())
        else:
            G[p, p] = 1.0
        self.kept = h, G
        return G

    def _factorized(self, matrix: NDArray) -> Callable[[NDArray], NDArray]:
        """A function that solves Newton's system in (w, b) with the matrix of the risk."""
        G, lapack = matrix.copy(), scipy_linalg().lapack
        diagonal = G.reshape(-1)[:: len(G) + 1]
        shift = 1e-14 * float(diagonal.max())  # the rounding error of sums that cancel
        diagonal[:-1] += self.penalty
        factor = cholesky(G.T, diagonal, shift)
        if factor is None:
            return lambda g: g
        return lambda g: np.asarray(lapack.dpotrs(factor[0], g, lower=True)[0])
