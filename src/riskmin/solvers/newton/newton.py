r"""Newton's method, for smooth losses and for a sequence of smoothed problems with decreasing mu.

Each stage of a nonsmooth loss smooths it around a center, the multipliers at the end of the previous stage.
This is the proximal point method for the dual problem, with a semismooth Newton method for each subproblem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.core.messages import check_whole
from riskmin.core.registry import repr_of_changes
from riskmin.problem.objective import Objective
from riskmin.solvers.base import mix_two
from riskmin.solvers.newton.linear_system import LinearSystem
from riskmin.solvers.newton.multi_output.row_span import softmax_iterates
from riskmin.solvers.newton.multi_output.score_problems import (
    MultiOutputScoreProblem,
    SimplexDual,
    multi_output_reason,
)
from riskmin.solvers.newton.multi_output.softmax import SoftmaxProblem
from riskmin.solvers.newton.point import NewtonPoint, NewtonState
from riskmin.solvers.newton.row_model import has_multipliers, has_score_hessian
from riskmin.solvers.newton.stages import StagedNewton
from riskmin.solvers.newton.subsampling import sampled_start


@dataclass(frozen=True, repr=False)
class Newton(Solver):
    r"""Newton's method, with a certificate; for nonsmooth losses, on the smoothed objective.

    A step solves

    .. math:: (\lambda K + X^\top H X)\, d = -\nabla J(w),

    followed by a line search on cached scores: one forward and one adjoint pass over X.

    **Losses of one score per row** have one loop, in the weights and the intercept together. A step is solved
    by factorizing the matrix of the columns or that of the rows with nonzero second derivatives, or by
    conjugate gradients with the last factorization or the diagonal as preconditioner, whichever has the least
    counted cost; a factorization is used again while the squared gradient norm falls a hundredfold per step.
    The multipliers that a step predicts are stationary at its end, so that the complementarity there is their
    gap. Losses without conjugates have tangents as cuts instead. Iterates are the start and points with a
    proved gap: 5e-4 first, then a thousandth of the last one.

    **Nonsmooth losses** that are a maximum over multipliers, such as `Hinge` and `RocArea`, become smooth
    when :math:`\tfrac\mu2 |\beta - \bar\beta|^2` is subtracted inside the maximum. The multipliers of
    any point are feasible for the unsmoothed loss, so each step gives a cut of the risk
    itself. The certified gap is the sum of two terms: complementarity, which only a smaller :math:`\mu` or
    another center :math:`\bar\beta` decreases, and stationarity, which only more steps decrease. As soon as
    stationarity is below half of complementarity, the center moves to the multipliers of the point and
    :math:`\mu` decreases. Losses of pairs have too many multipliers to store, so their center stays 0.

    `Softmax` with `L2` takes such stages at any size: conjugate gradients, preconditioned by the diagonal or
    by one matrix for all classes, end once their residual leaves enough of the gap, and the probabilities
    that a step predicts prove the rest.

    If X is an array of torch or CuPy, vectors with one entry per row stay beside it, and float32 matrices are
    multiplied by tensor cores; one score per row is supported there.

    From w = 0 with many rows per column, a run starts at the end of runs on samples of the rows; all
    certificates are for all rows. For `L2` and `Quadratic`. Multi-output losses need `L2` and local rows;
    their intercepts are unknowns of the linear system like the weights, but not penalized.

    Parameters
    ----------
    direct : int
        The largest dimension of a factorized matrix: of the features, or of the rows with nonzero second
        derivatives.
    sampled : bool
        Whether starting points and matrices may be computed from samples of the rows.
    mu_decrease : float
        The factor by which mu decreases after a stage, between 0 and 1, for nonsmooth losses.

    References
    ----------
    R.-E. Fan, K.-W. Chang, C.-J. Hsieh, X.-R. Wang, C.-J. Lin, LIBLINEAR: a library for large linear
    classification, Journal of Machine Learning Research 9, 2008. R. H. Byrd, G. M. Chin, W. Neveitt,
    J. Nocedal, On the use of stochastic Hessian information in optimization methods for machine learning,
    SIAM Journal on Optimization 21, 2011. X. Li, D. Sun, K.-C. Toh, A highly efficient semismooth Newton
    augmented Lagrangian method for solving Lasso problems, SIAM Journal on Optimization 28, 2018.
    O. Chapelle, S. S. Keerthi, Efficient algorithms for ranking with SVMs, Information Retrieval 13, 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, L2, Logistic, Newton, Objective, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((500, 4)) * [1, 10, 100, 1000]
    >>> y = np.where(X @ [1, 0.1, 0.01, 0.001] + rng.standard_normal(500) > 0, 1.0, -1.0)
    >>> for loss in (Logistic(), Hinge()):
    ...     result = minimize(Objective(linear_risk(X, y, loss), L2(), lam=1e-6), Newton(), tol=1e-9)
    ...     print(result.status, result.n_iter < 50)
    converged True
    converged True
    """

    # class attributes, not settings: shares of the initial mu, and numbers of steps
    MU_FLOOR = 1e-13
    WARM_MU_SHARE = 0.1
    EARLY_COMPLEMENTARITY = 0.005
    SLOW_MU_DECREASE = 0.5
    SLOW_AFTER_STEPS = 4
    PREDICTED_GAP_SHARE = 0.3  # a cut of predicted multipliers is worth an iterate if it leaves this share
    INTERCEPT_GAP_SHARE = 1e-5  # the share of the gap by which an inexact intercept may lower a cut
    # passes per digit without a factorization; nearly all rows of a nonsmooth loss are active there
    WIDE_PASSES_PER_DIGIT, WIDE_NONSMOOTH_PASSES_PER_DIGIT = 20.0, 1000.0

    direct: int = 2500
    sampled: bool = True
    mu_decrease: float = 0.3

    __repr__ = repr_of_changes

    def __post_init__(self) -> None:
        check_whole(self, "direct")
        if not 0 < self.mu_decrease < 1:
            raise ValueError(f"Newton needs mu_decrease between 0 and 1, not {self.mu_decrease!r}")

    def supports(self, obj: Objective) -> str | None:
        """None for local or remote rows with second derivatives and a quadratic regularizer."""
        risk: Any = obj.risk
        if risk.multi_output:
            return multi_output_reason(obj)
        table = risk.row_metadata
        if table is None:
            return "Newton needs a linear_risk, with one score per row: use Auto, Smoothing or Bundle"
        if not (obj.reg.quadratic and obj.reg.smooth):
            return f"Newton needs L2() or Quadratic(K), not {obj.reg!r}: use Bundle"
        name = type(risk.loss.chosen).__name__
        # beside X there is one multiplier per row
        if namespace(table.y) is not np and not has_multipliers(risk.loss):
            return f"Newton on arrays of torch or CuPy needs a loss of single rows, not {name}: use Auto"
        if not has_score_hessian(risk.loss):
            return (
                f"Newton needs second derivatives, and {name} has none: "
                "use Bundle, or Lbfgs if the loss is smooth"
            )
        return None

    def passes_per_digit(self, obj: Objective) -> float | None:
        """About 20 factorizations of the matrix of the features, besides 8 passes; for local X."""
        risk: Any = obj.risk
        if risk.rows is None or risk.multi_output or not risk.rows.X.nnz:
            return None
        (n, p), nnz = risk.rows.X.shape, risk.rows.X.nnz
        if p <= self.direct and n >= p:
            # a factorization takes the time of p^3 / 6 entries, a pass that of nnz entries
            return float(8.0 + risk.dim**3 / (6.0 * nnz))
        return self.WIDE_PASSES_PER_DIGIT if risk.loss.smooth else self.WIDE_NONSMOOTH_PASSES_PER_DIGIT

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the start, then points with proved gaps; in the general form, one point per step."""
        self.check_supports(obj)
        if namespace(w0) is not np:  # vectors with one entry per column are NumPy's
            return (_beside(w0, it) for it in self.iterates(obj, to_numpy(w0)))
        staged = self._staged(obj)
        if staged is not None:
            if self.sampled and not w0.any():
                return staged.iterates(staged.sampled_start())
            return staged.iterates(staged.start(staged.augmented(w0)))
        problem = choose_score_problem(obj)
        if SoftmaxProblem.accepts(obj):
            return softmax_iterates(obj, problem, w0)
        w, mu = w0, 0.0
        if self.sampled and not w0.any():
            w, mu = sampled_start(obj, w0, self._run_sampled)
        sampled, risk = w is not w0, obj.risk
        if obj.n_intercepts:
            w, w0 = (risk.constant_prediction_cuts.lower_absent_classes(v) for v in (w, w0))  # type: ignore[attr-defined]
        point = self._point(obj, problem, w, mu)
        if sampled:  # J at w = 0 costs no pass, if the intercept is left at 0 as well
            zero = problem.value_at_zero()
            better = point.evaluation.risk + obj.lam * obj.reg.value(w) < zero
            point = point if better else self._point(obj, problem, w0, 0.0)
        return self._run_from(obj, problem, point)

    def _staged(self, obj: Objective) -> StagedNewton | None:
        """The loop for one score per row; None for several outputs."""
        if obj.risk.multi_output:
            return None
        return StagedNewton.of(obj, self.direct, self.mu_decrease)

    def warm_start(
        self, obj: Objective, state: dict[str, Array], before: Objective
    ) -> Iterator[Iterate] | None:
        """Start from the point and the multipliers of a run on the same risk, of this or a dual method."""
        self.check_supports(obj)
        staged = self._staged(obj)
        if staged is not None:
            return staged.warm_started(state)
        if obj.risk.loss.smooth:
            return None
        # in states of dual ascent, "next" is the primal point of the dual variables u
        w = state["next"] if "u" in state and "next" in state else state["w"]
        problem = choose_score_problem(obj)
        center = problem.saved_score_gradient(state) if problem.uses_center else None
        return self._run_from(obj, problem, self._point(obj, problem, w, 0.0, center))

    def verifies_states(self, obj: Objective) -> bool:
        """For losses of one score per row: scores and cuts are computed again."""
        return self._staged(obj) is not None

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        self.check_supports(obj)
        staged = self._staged(obj)
        if staged is not None:  # no state of another form, whose cuts are not computed again
            return staged.iterates(staged.restored(state), resumed=True)
        saved = NewtonState.from_arrays(obj, state)
        problem = choose_score_problem(obj)
        if "softmax" in saved.system:
            iterates = softmax_iterates(obj, problem, saved.point.w, saved.point.z, saved.best)
            next(iterates)
            return iterates
        system = problem.newton_system(obj.reg, self.direct)
        system.restore(saved.system)
        iterates = self._run(obj, problem, system, saved.point, saved.best)
        next(iterates)  # the iterate that was saved
        return iterates

    def _run_sampled(self, obj: Objective, w: Array, mu: float) -> Iterator[Iterate]:
        """The iterates on a sample of the rows."""
        problem = choose_score_problem(obj)
        return self._run_from(obj, problem, self._point(obj, problem, w, mu))

    def _point(
        self, obj: Objective, problem: MultiOutputScoreProblem, w: Array, mu: float,
        center: NDArray | None = None,
    ) -> NewtonPoint:  # fmt: skip
        """The point of the weights w; mu = 0 stands for the initial mu of the problem."""
        z = problem.design.forward(w)
        # known multipliers are near the optimal ones, so less smoothing suffices
        mu_share = 1.0 if center is None else self.WARM_MU_SHARE
        mu = mu or mu_share * problem.initial_mu(z, obj.lam * obj.reg.value(w))
        center = problem.initial_center(z) if center is None else center
        evaluation = problem.evaluate(z, mu, center, 0.0)
        return NewtonPoint(w, z, evaluation, problem.weight_gradient(evaluation), center, mu, mu)

    def _run_from(
        self, obj: Objective, problem: MultiOutputScoreProblem, point: NewtonPoint
    ) -> Iterator[Iterate]:
        """The iterates from a point."""
        system = problem.newton_system(obj.reg, self.direct)
        return self._run(obj, problem, system, point, obj.project_out_intercepts(point.cut))

    def _run(
        self,
        obj: Objective,
        problem: MultiOutputScoreProblem,
        system: LinearSystem,
        point: NewtonPoint,
        best: Cut,
    ) -> Iterator[Iterate]:
        """The iterates from a point, a linear system and the best cut so far."""
        n_evaluations, decrease = 1, math.inf
        while True:
            obj.count.calls += 1
            value = point.evaluation.risk + obj.lam * obj.reg.value(point.w)
            info = {"mu": point.mu, "evaluations": n_evaluations, "decrease": decrease}
            system_state = system.to_state()
            state = NewtonState(point, best, system_state).to_arrays
            near = point.evaluation.b if problem.intercept and problem.smooth else None
            yield Iterate(point.w, value, best, info, state, near)
            complementarity, moved = point.complementarity(), None
            fitted = problem.intercept or obj.n_intercepts
            slack = self.INTERCEPT_GAP_SHARE * max(value - obj.lower(best), 0.0) if fitted else 0.0
            # a center must be the multipliers at the end of a stage, but without one a stage may end early
            large = complementarity > self.EARLY_COMPLEMENTARITY * point.initial_mu
            early = point.full and not problem.uses_center and large
            if not point.mu or not (early or point.stationary(obj, value, complementarity)):
                step = obj, problem, system
                direction = point.direction(*step, complementarity)
                gap = value - obj.lower(best)
                cut = point.predicted_cut(*step, direction, value, gap)
                if cut is not None and obj.lower(cut) > value - self.PREDICTED_GAP_SHARE * gap:
                    # the same point with a better bound, before it moves
                    best, n_evaluations = cut, 0
                    state = NewtonState(point, best, system_state).to_arrays
                    yield Iterate(point.w, value, best, info, state, near)
                elif cut is not None:
                    best = max(best, cut, key=obj.lower)
                # with mu, a stage ends where its steps are rounding: its multipliers are the next center
                if not point.mu or -direction.slope > point.ROUNDING_SLOPE * value:
                    moved, n_evaluations, decrease = point.newton_step(*step, direction, slack)
                # a reused or sampled matrix may have given no descent direction: once more with a better one
                if moved is None and system.discard():
                    direction = point.direction(*step, complementarity)
                    moved, n_evaluations, decrease = point.newton_step(*step, direction, slack)
            if moved is None:  # the stage ends, or no descent is left in this precision
                if point.mu <= self.MU_FLOOR * point.initial_mu:
                    return  # the remaining gap is rounding
                moved, n_evaluations = point.with_mu(self._next_mu(point, problem), problem, slack), 1
            point = moved
            cut = obj.project_out_intercepts(point.cut)
            # the convex combination of both cuts with the best lower bound, unless rounding makes it worse
            mixed, _ = mix_two(best, cut, obj)
            best = max(mixed, cut, key=obj.lower)

    def _next_mu(self, point: NewtonPoint, problem: MultiOutputScoreProblem) -> float:
        """The mu of the next stage: a larger one if this stage took many steps."""
        slow = point.steps > self.SLOW_AFTER_STEPS and problem.uses_center
        return (max(self.SLOW_MU_DECREASE, self.mu_decrease) if slow else self.mu_decrease) * point.mu


def _beside(w0: Array, it: Iterate) -> Iterate:
    """An iterate whose point and cut are in the library of w0."""
    return it._replace(w=as_array_like(it.w, w0), cut=Cut(as_array_like(it.cut.a, w0), it.cut.b))


def choose_score_problem(obj: Objective) -> MultiOutputScoreProblem:
    """The score problem of an objective with several outputs."""
    kind = SimplexDual if SimplexDual.accepts(obj) else MultiOutputScoreProblem
    return kind.from_objective(obj)
