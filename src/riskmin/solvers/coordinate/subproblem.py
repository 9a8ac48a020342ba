"""An objective as coordinate descent needs it: optimality violations, a model of the risk, a line search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from riskmin.core import NDArray
from riskmin.numerics.univariate import Tangent, best_tangent, refine_bracket
from riskmin.problem.objective import Objective
from riskmin.problem.risk import RECOMPUTE_SCORES_EVERY
from riskmin.problem.scored_point import PointEvaluation, PointEvaluator, ScoredPoint
from riskmin.solvers.base import local_rows_of
from riskmin.solvers.coordinate.active_set import one_sided_slopes
from riskmin.solvers.coordinate.columns import DenseColumns, SparseColumns, columns_of
from riskmin.solvers.coordinate.quadratic_model import Model, Solution

NO_COLUMNS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class InexactSchedule:
    """How exactly to minimize the next model, adapted from the steps so far."""

    FORCING_MAX = 0.3
    """The tolerance of a model is at most this share of the largest violation of J."""
    FORCING_MIN = 1e-3
    """Smallest value of that share: a more exact minimizer of the model does not pay."""

    damping: float = 0.0
    """Curvature to add, relative to the mean, after full steps that overshot."""
    forcing: float = FORCING_MAX
    """Minimize a model until its violations are this share of the largest violation of J."""
    last_violation: float = math.inf
    """Largest violation when the last model was made."""
    slow: float = 0.0
    """1 if that model left more than half of the violation, else 0."""
    max_curvature: float = 0.0
    """Largest mean curvature so far: the current one may be that of a few rows only."""

    def updated(self, largest: float, remaining: float | None) -> InexactSchedule:
        """Tighten the tolerance if the last model left much violation in its working set, or nearly none.

        In the second case the model was almost the risk, and a more exact minimizer pays.
        """
        # No model has been made yet.
        if remaining is None:
            return replace(self, last_violation=largest)
        rate = max(remaining, 0.0) / self.last_violation
        # Near the minimum the next model is more accurate by about this rate, so it is minimized further.
        forcing = 0.2 * self.forcing if rate > 0.5 else rate**2
        forcing = min(max(forcing, self.FORCING_MIN), self.FORCING_MAX)
        return replace(self, forcing=forcing, last_violation=largest, slow=float(rate > 0.5))

    def with_step(self, t: float) -> InexactSchedule:
        """Raise the damping if only a part t < 1 of a step could be taken, else lower it."""
        damping = max(4 * self.damping, 0.01) if t < 1 else (self.damping / 4 if self.damping > 1e-4 else 0.0)
        return replace(self, damping=damping)


@dataclass
class CoordinateProblem:
    """An objective with an evaluator for its points and the columns of its X."""

    CURVATURE_FLOOR_SHARE = 1e-3
    """Curvature assigned to rows whose loss has none, as a share of the mean: it bounds the step there."""
    NEAR_VIOLATION_SHARE = 0.5
    """Include features whose slack in the optimality condition is below this share of the largest
    violation."""
    SUFFICIENT_DECREASE = 0.1
    """Accept a full step that achieves this share of the decrease predicted to first order."""

    points: PointEvaluator
    columns: DenseColumns | SparseColumns
    terms: NDArray
    """Lam times the regularizer: four rows (absolute, square, lower, upper), one entry per column."""

    @classmethod
    def create(cls, solver: object, obj: Objective) -> CoordinateProblem:
        """Build the problem of an objective that the solver supports."""
        rows, loss, has_intercept = local_rows_of(obj.risk, solver)
        terms = np.empty((4, rows.X.shape[1]))
        t = obj.reg.terms(terms[0])
        terms[0], terms[1], terms[2], terms[3] = obj.lam * t.absolute, obj.lam * t.square, t.lower, t.upper
        return cls(PointEvaluator(obj, rows, loss, has_intercept), columns_of(rows), terms)

    def violation(self, w: NDArray, grad: NDArray) -> NDArray:
        """Return how fast J falls along each coordinate, in the better direction; at most 0 at a minimum.

        That is -(grad_j + square_j w_j) minus or plus the derivative of absolute_j |w_j| on that side.
        """
        return np.maximum(*one_sided_slopes(w, grad, self.terms))

    def choose(self, w: NDArray, worst: NDArray, start: int) -> NDArray:
        """Choose the working set: nonzero w_j inside their bounds, and as many of the largest violations."""
        inside = (w != 0) & (w > self.terms[2]) & (w < self.terms[3])
        # Also features that nearly violate optimality: a step may make them violate it.
        margin = np.minimum(self.NEAR_VIOLATION_SHARE * worst.max(), 0.25 * self.terms[0])
        outside, in_use = np.flatnonzero(~inside & (worst > -margin)), np.flatnonzero(inside)
        # Most columns would be chosen, and the Gram matrix of all of them costs little more.
        if self.columns.gram_is_cheap and len(outside) + len(in_use) > 0.75 * len(w):
            return np.arange(len(w))
        # The largest violations first.
        order = outside[np.argsort(-worst[outside], kind="stable")]
        size = max(start, len(in_use), self.columns.max_new_columns(in_use, order))
        return np.sort(np.concatenate([in_use, order[:size]]))

    def model(
        self, point: ScoredPoint, evaluation: PointEvaluation, columns: NDArray, schedule: InexactSchedule
    ) -> tuple[Model, InexactSchedule]:
        """Return the quadratic model of the risk over the columns, and the updated schedule."""
        c, curvature = self.points.rows.c, self.points.curvature(point.z + point.b)
        schedule = replace(schedule, max_curvature=max(schedule.max_curvature, float(curvature.sum())))
        constant = self.points.loss.constant_curvature
        if not curvature.all():
            # The weights c have sum one, so that the sum of c_i l'' is the mean of l''.
            floor = self.CURVATURE_FLOOR_SHARE * (float(curvature.sum()) or 1.0) * c
            curvature = np.where(curvature > 0, curvature, floor)
        if schedule.damping:
            curvature = curvature + schedule.damping * (schedule.max_curvature or 1.0) * c
        terms = np.ascontiguousarray(self.terms[:, columns])
        # A model of constant curvature is the risk itself: minimize it more exactly.
        tol = (0.1 if constant else 1.0) * schedule.forcing * schedule.last_violation
        w, grad, slope = point.w[columns], evaluation.grad[columns], evaluation.slope
        flags = self.points.has_intercept, tol, constant, schedule.slow > 0
        return Model(columns, w, grad, slope, curvature, terms, *flags), schedule

    def predicted_slopes(self, model: Model, solution: Solution) -> NDArray | None:
        """Return the slopes in the scores that the model predicts at its minimizer; None if they are no use.

        A model of constant curvature is the risk itself, which has the same cut at the new point. With an
        intercept, the slopes of a cut must have sum zero: another exact step in the intercept of the model.
        """
        slope = solution.slope
        if slope is None:
            if model.constant_curvature:
                return None
            # s + D u, the gradient of the model in the scores.
            slope = model.slope + model.curvature * (solution.u + solution.b)
        if model.has_intercept:
            slope = slope - slope.sum() / model.curvature.sum() * model.curvature
        return self.points.feasible_slopes(slope)

    def search(
        self, point: ScoredPoint, evaluation: PointEvaluation, model: Model, solution: Solution
    ) -> tuple[ScoredPoint | None, float]:
        """Take the step to the model's minimizer, or a shorter one where J decreases less than predicted.

        J is evaluated relative to its value at the point, so that a small decrease is not lost in a large J.
        Returns the new point (None if no step decreases J) and the step length.
        """
        known: dict[float, tuple[float, NDArray]] = {}
        absolute, square = model.terms[0], model.terms[1]
        step, u = solution.w - model.w, solution.u + solution.b
        old_penalty = float(absolute @ np.abs(model.w) + 0.5 * square @ (model.w * model.w))

        def evaluate(t: float) -> Tangent:
            w = model.w + t * step if t < 1 else solution.w
            risk, slope = known[t] = self.points.value_slopes(point.z + point.b + t * u)
            # One-sided derivatives of |w_j| in the direction of the step.
            signs = np.where(w == 0, np.sign(step), np.sign(w))
            penalty = float(absolute @ np.abs(w) + 0.5 * square @ (w * w))
            value = penalty - old_penalty + (risk - evaluation.risk)
            return Tangent(t, value, float(slope @ u) + float((absolute * signs + square * w) @ step))

        end, noise = evaluate(1.0), 1e-14 * evaluation.value
        new_penalty = float(absolute @ np.abs(solution.w) + 0.5 * square @ solution.w**2)
        # Decrease for t = 1 to first order in the risk, with the exact change of the penalty.
        predicted = float(evaluation.slope @ u) + new_penalty - old_penalty
        if not (np.any(step) and predicted < noise):
            return None, 0.0
        t = 1.0 if end.value <= self.SUFFICIENT_DECREASE * predicted + noise else _shorter(evaluate, end)
        if t == 0:
            return None, 0.0
        w = point.w.copy()
        w[model.columns] = solution.w if t == 1 else model.w + t * step
        # Scores are updated linearly, and recomputed every RECOMPUTE_SCORES_EVERY moves.
        z, b, n_moves = point.z + t * solution.u, point.b + t * solution.b, point.n_moves + 1
        if n_moves % RECOMPUTE_SCORES_EVERY == 0:
            return self.points.with_scores(w), t
        return ScoredPoint(w, z, b, n_moves, known[t]), t


def _shorter(evaluate: Callable[[float], Tangent], end: Tangent) -> float:
    """Return a nearly optimal step in (0, end.x]; 0 if no step decreases J."""
    start = evaluate(0.0)
    # Shorten steps at which J overflows.
    while not (math.isfinite(end.value) and math.isfinite(end.slope)) and end.x > 1e-30:
        end = evaluate(0.25 * end.x)
    # J is convex: it does not decrease if its slope is nonnegative at 0, and decreases up to an end with a
    # nonpositive slope.
    if start.slope >= 0 or end.slope <= 0:
        return 0.0 if start.slope >= 0 or end.value >= 0 else end.x
    bracket = refine_bracket(evaluate, start, end, lambda best, bound: best - bound <= -0.1 * best)
    return best_tangent(*bracket).x if best_tangent(*bracket).value < 0 else 0.0
