"""Newton's method for smooth losses: a forward and an adjoint pass over X per step, few factorizations."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from riskmin.core import Array, Cut, HasCurvature, Iterate, NDArray, Solver, UnsupportedProblem
from riskmin.losses import Squared
from riskmin.problem.objective import Objective
from riskmin.problem.risk import RECOMPUTE_SCORES_EVERY
from riskmin.solvers.base import check_positive_int, mix_two
from riskmin.solvers.newton.hessian_reuse import ReusedHessian
from riskmin.solvers.newton.score_problem import ScoreEvaluation, ScoreProblem
from riskmin.solvers.newton.semismooth import SemismoothNewton
from riskmin.solvers.newton.subsampling import START_SAMPLE_ONE_ROW_IN, sampled_objective
from riskmin.solvers.state_checks import NO_INTEGER_ARRAYS, check_state, state_sizes

UNIT_STEP_MAX_SLOPE_LEFT, UNIT_STEP_MAX_SLOPE_REVERSED = 0.1, 0.9
"""The step t = 1 is accepted if the slope at its end, relative to that at t = 0, lies between -0.9 and 0.1.

Where the second derivative decreases along the line, a longer step pays; a shorter one does not."""
SMOOTH_SAMPLE_ROWS_PER_COLUMN = 10
"""Rows per column that a starting sample needs: fewer than for nonsmooth losses, as its run ends early."""
SMOOTH_SAMPLE_MAX_ITER = 30
"""Iterations on a starting sample."""


N_STATE_NUMBERS = 9
"""Length of the array `numbers` of a saved state; in states of `SemismoothNewton` it is longer."""


@dataclass(frozen=True)
class Newton(Solver):
    r"""Newton's method for smooth losses with second derivatives, such as `Logistic` and `SquaredHinge`.

    A step solves

    .. math:: (\lambda K + X^\top H X)\, d = -\nabla J(w),

    followed by a line search on cached scores. The tangent at each point is a cut, which certifies a gap of
    at most :math:`\|\nabla J(w)\|^2 / (2 \lambda)` with L2.

    The matrix is factorized, and reused as long as each step divides the squared gradient norm by 50. With
    many rows per column, the first point is the minimizer of a sample of the rows, and the matrix is that of
    a sample, unless the sample turns out to be too different. With many features, or if they cost less,
    conjugate gradients solve the system up to a residual of a fifth of the gradient norm, with two passes
    over X per step.

    For `L2` and `Quadratic`. Multi-output losses, such as `Softmax`, use preconditioned conjugate gradients,
    and need `L2` and local rows.

    Parameters
    ----------
    direct : int
        The largest number of features for which the matrix may be factorized.
    sampled : bool
        Whether steps may use samples of the rows; all certificates are for all rows.

    References
    ----------
    R.-E. Fan, K.-W. Chang, C.-J. Hsieh, X.-R. Wang, C.-J. Lin, LIBLINEAR: a library for large linear
    classification, Journal of Machine Learning Research 9, 2008. R. H. Byrd, G. M. Chin, W. Neveitt,
    J. Nocedal, On the use of stochastic Hessian information in optimization methods for machine learning,
    SIAM Journal on Optimization 21, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Logistic, Newton, Objective, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((500, 4)) * [1, 10, 100, 1000]
    >>> y = np.where(X @ [1, 0.1, 0.01, 0.001] + rng.standard_normal(500) > 0, 1.0, -1.0)
    >>> result = minimize(Objective(linear_risk(X, y, Logistic()), L2(), lam=1e-6), Newton(), tol=1e-9)
    >>> result.status, result.n_iter < 12
    ('converged', True)
    """

    direct: int = 2500
    sampled: bool = True

    def __post_init__(self) -> None:
        check_positive_int(self, "direct")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield one point per step."""
        if _is_multi_output(obj):
            return SemismoothNewton(self.direct).iterates(obj, w0)
        problem = self._score_problem(obj)
        if problem.initial_mu(problem.design.forward(w0), obj.lam * obj.reg.value(w0)):
            return SemismoothNewton(self.direct).iterates(obj, w0)  # too few active rows
        # one step solves the squared loss exactly, so a sample saves nothing
        sampled = self.sampled and not isinstance(problem.loss, Squared) and not w0.any()
        start = self._sampled_start(obj, w0) if sampled else w0
        point = _NewtonPoint.at_weights(problem, start)
        if start is not w0:  # J at w = 0 costs no pass, if the intercept is left at 0 as well
            zero = float(problem.loss.value_grad(np.zeros(len(problem.y)), problem.y, problem.c)[0])
            better = point.evaluation.risk + obj.lam * obj.reg.value(start) < zero
            point = point if better else _NewtonPoint.at_weights(problem, w0)
        return self._run(obj, problem, self._linear_system(obj, problem), point, point.cut)

    def _sampled_start(self, obj: Objective, w: Array) -> Array:
        """A point near the minimizer of a sample, as accurate as that minimizer is for all rows."""
        for one_in in START_SAMPLE_ONE_ROW_IN:
            sampled = sampled_objective(obj, one_in, SMOOTH_SAMPLE_ROWS_PER_COLUMN)
            if sampled is None:
                continue
            # the statistical error of a sample of m rows is about p / m of the objective
            error = len(w) * one_in / obj.risk.row_metadata.shape[0]
            with contextlib.suppress(ValueError):  # a sample of one class has no best intercept
                for it in islice(self._from(sampled, w), SMOOTH_SAMPLE_MAX_ITER):
                    w = it.w
                    if it.info["decrease"] <= error * it.value:
                        break
        return w

    def _score_problem(self, obj: Objective) -> ScoreProblem:
        """The score problem of an objective; raise UnsupportedProblem if its loss is not smooth."""
        risk = obj.risk
        loss = getattr(risk, "loss", None)
        if not (getattr(loss, "smooth", False) and isinstance(loss, HasCurvature)):
            raise UnsupportedProblem(
                f"Newton needs a smooth loss with second derivatives, not {type(loss or risk).__name__}: "
                "use SemismoothNewton or Auto"
            )
        return ScoreProblem.from_objective(self, obj)

    def _linear_system(self, obj: Objective, problem: ScoreProblem) -> ReusedHessian:
        """The linear system, without a matrix yet."""
        sampled = self.sampled and not isinstance(problem.loss, Squared)
        return ReusedHessian(problem.design, obj.reg, obj.lam, self.direct, problem.intercept, sampled)

    def _from(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates from w0, without a start on a sample."""
        problem = self._score_problem(obj)
        point = _NewtonPoint.at_weights(problem, w0)
        return self._run(obj, problem, self._linear_system(obj, problem), point, point.cut)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        if _is_multi_output(obj) or len(state.get("numbers", ())) != N_STATE_NUMBERS:
            return SemismoothNewton(self.direct).resume(obj, state)
        rows = dict.fromkeys(("z", "dz", "kept?", "hessian_diagonal?"), "n")
        shapes = rows | {"w": "d", "a": "d", "cut": "e", "numbers": "k"}
        check_state(state, shapes, NO_INTEGER_ARRAYS, **state_sizes(obj), k=N_STATE_NUMBERS)
        problem = self._score_problem(obj)
        system = self._linear_system(obj, problem)
        numbers = [float(v) for v in state["numbers"]]
        # the order in which `saved` stores them
        offset, b, risk, age, sampled, is_new, n_poor, system.last_square, system.steps = numbers
        system.hessian_diagonal, system.sampled, system.is_new = (
            state.get("kept"),
            bool(sampled),
            bool(is_new),
        )
        system.n_poor_steps = int(n_poor)
        evaluation = ScoreEvaluation(state["dz"], offset, b, risk, state.get("hessian_diagonal"))
        point = _NewtonPoint(state["w"], state["z"], evaluation, state["a"], int(age))
        iterates = self._run(obj, problem, system, point, Cut(state["cut"][:-1], float(state["cut"][-1])))
        next(iterates)  # the iterate that was saved
        return iterates

    def _run(
        self, obj: Objective, problem: ScoreProblem, system: ReusedHessian, point: _NewtonPoint, best: Cut
    ) -> Iterator[Iterate]:
        """The iterates from a point, a linear system and the best cut so far."""
        n_evaluations, decrease = 1, math.inf
        while True:
            obj.count.calls += 1
            value = point.evaluation.risk + obj.lam * obj.reg.value(point.w)
            info = {"evaluations": n_evaluations, "decrease": decrease}
            yield Iterate(point.w, value, best, info, point.saved(best, system))
            moved, n_evaluations, decrease = point.newton_step(obj, problem, system)
            # a reused or sampled matrix may have given no descent direction: once more with a better one
            if moved is None and system.discard():
                moved, n_evaluations, decrease = point.newton_step(obj, problem, system)
            if moved is None:
                return  # no descent is left in this precision
            point = moved
            # the convex combination of both cuts with the best lower bound, unless rounding makes it worse
            mixed, _ = mix_two(best, point.cut, obj)
            best = max(mixed, point.cut, key=obj.lower)


@dataclass(frozen=True)
class _NewtonPoint:
    """A point with its scores, and the gradient of the loss in the scores."""

    w: Array
    z: NDArray
    evaluation: ScoreEvaluation
    a: NDArray
    """X' dz of the evaluation."""
    age: int = 0
    """The number of updates of z since it was computed from w alone."""

    @classmethod
    def at_weights(cls, problem: ScoreProblem, w: Array) -> _NewtonPoint:
        """The point of the weights w, evaluated from scratch."""
        z = problem.design.forward(w)
        evaluation = problem.evaluate(z, 0.0, None, 0.0)
        return cls(w, z, evaluation, problem.design.adjoint(evaluation.dz))

    @property
    def cut(self) -> Cut:
        return Cut(self.a, self.evaluation.offset)

    def newton_step(
        self, obj: Objective, problem: ScoreProblem, system: ReusedHessian
    ) -> tuple[_NewtonPoint | None, int, float]:
        """A lower point along Newton's direction, the evaluations, and the predicted decrease of J.

        None in place of the point if there is no descent.
        """
        g = obj.lam * obj.reg.grad(self.w) + self.a  # type: ignore[attr-defined]
        h = problem.hessian(self.evaluation, self.z, 0.0, None).diagonal
        d = system.direction(h, g)
        # with the current Hessian, J is predicted to fall by -g'd / 2 on the unit step
        slope = float(g @ d)
        if not -math.inf < slope < 0:
            return None, 0, 0.0
        dz, line = problem.design.forward(d), obj.reg.line(self.w, d)
        system.check_sample(h, dz)
        # lam Omega is quadratic, so its second derivative along d is the difference of two slopes
        curvature = obj.lam * (line(1.0)[1] - line(0.0)[1])
        evaluation = problem.evaluate(self.z + dz, 0.0, None, self.evaluation.b)
        t, n_evaluations = 1.0, 1
        # first try the unit step: slope of J at its end, and change of J
        end = float(evaluation.dz @ dz) + obj.lam * line(1.0)[1]
        change = evaluation.risk - self.evaluation.risk + obj.lam * (line(1.0)[0] - line(0.0)[0])
        min_end, max_end = UNIT_STEP_MAX_SLOPE_LEFT * slope, -UNIT_STEP_MAX_SLOPE_REVERSED * slope
        if not (min_end <= end <= max_end and change < 0):

            def penalty_derivatives(t: float) -> tuple[float, float]:
                return obj.lam * line(t)[1], curvature

            b = self.evaluation.b
            t, searched = problem.line_search(self.z, dz, 0.0, None, b, penalty_derivatives, slope)
            evaluation = problem.evaluate(self.z + t * dz, 0.0, None, b)
            n_evaluations += searched
        w, z = self.w + t * d, self.z + t * dz
        if np.array_equal(w, self.w):
            return None, n_evaluations, 0.0
        fresh = self.age + 1 >= RECOMPUTE_SCORES_EVERY  # rounding errors of the updates must not accumulate
        if fresh:
            z = problem.design.forward(w)
            evaluation = problem.evaluate(z, 0.0, None, evaluation.b)
        # dz of a smooth loss changes in most rows, so an update of a would save little
        a = problem.design.adjoint(evaluation.dz)
        moved = replace(self, w=w, z=z, evaluation=evaluation, a=a, age=0 if fresh else self.age + 1)
        return moved, n_evaluations, -0.5 * slope

    def saved(self, best: Cut, system: ReusedHessian) -> Callable[[], dict[str, Array]]:
        """A function that returns the state: this point, the best cut, and what the matrix is made of."""
        evaluation = self.evaluation
        numbers = [evaluation.offset, evaluation.b, evaluation.risk, self.age]
        last_square = min(system.last_square, sys.float_info.max)  # a file holds finite numbers only
        numbers += [system.sampled, system.is_new, system.n_poor_steps, last_square, system.steps]
        optional = {"kept": system.hessian_diagonal, "hessian_diagonal": evaluation.hessian_diagonal}

        def state() -> dict[str, Array]:
            arrays = {"w": self.w, "z": self.z, "dz": evaluation.dz, "a": self.a}
            arrays |= {"numbers": np.array(numbers), "cut": np.append(best.a, best.b)}
            return arrays | {name: a for name, a in optional.items() if a is not None}

        return state


def _is_multi_output(obj: Objective) -> bool:
    """Whether the risk is multi-output, with a smooth loss."""
    return bool(getattr(obj.risk, "multi_output", False) and getattr(obj.risk.loss, "smooth", False))
