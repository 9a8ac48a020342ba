r"""Newton's method for nonsmooth losses: a sequence of smoothed problems with decreasing mu.

Each stage smooths the loss around a center, the multipliers at the end of the previous stage. This is the
proximal point method for the dual problem, with a semismooth Newton method for each subproblem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.problem.objective import Objective
from riskmin.problem.risk import RECOMPUTE_SCORES_EVERY
from riskmin.solvers.base import check_positive_int, mix_two
from riskmin.solvers.newton.linear_system import NewtonSystem
from riskmin.solvers.newton.score_problem import ScoreEvaluation, ScoreProblem
from riskmin.solvers.newton.subsampling import sampled_start
from riskmin.solvers.state_checks import NO_INTEGER_ARRAYS, check_state, state_sizes

MU_FLOOR = 1e-13
"""The run ends once mu is below this share of the initial mu: the remaining gap is rounding."""

MU_DECREASE, MU_DECREASE_SLOW, SLOW_AFTER_STEPS = 0.3, 0.5, 4
"""Factors by which mu decreases after a stage: the second one if it took more than SLOW_AFTER_STEPS steps."""

FULL_STEP_ABOVE, RELAX_DAMPING_ABOVE = 0.3, 0.9
"""Step lengths above which a step counts as full, and above which the damping is reduced."""

WARM_MU_SHARE = 0.1
"""The initial mu of a start around known multipliers, as a share of that of a cold start."""

EARLY_COMPLEMENTARITY = 0.005
"""Without a center, mu decreases after any full step while complementarity / initial mu is above this."""


@dataclass(frozen=True)
class SemismoothNewton(Solver):
    r"""Newton's method on the smoothed objective, with a certificate for the unsmoothed one.

    A loss that is a maximum over multipliers becomes smooth when :math:`\tfrac\mu2 |\beta - \bar\beta|^2` is
    subtracted inside the maximum. Newton's method minimizes the result, with directions from

    .. math:: (\lambda K + X^\top H X)\, d = -(\lambda K w + a),

    a line search on cached scores, and one forward and one adjoint pass over X per step. The multipliers of
    any point are feasible for the unsmoothed loss, so each step gives a cut of the risk itself. The certified
    gap is the sum of two terms: complementarity, which only a smaller :math:`\mu` or another
    center :math:`\bar\beta` decreases, and stationarity, which only more steps decrease. As soon as
    stationarity is below half of complementarity, the center moves to the multipliers of the point and
    :math:`\mu` decreases. Losses of pairs have too many multipliers to store, so their center stays 0, and
    :math:`\mu` decreases after each full step as long as complementarity is large. For a smooth loss this is
    Newton's method. From w = 0 with many rows per column, a run starts at the end of runs on samples of the
    rows; all certificates are for all rows.

    For `L2` and `Quadratic`. Multi-output losses, such as `MulticlassHinge`, need `L2` and local rows; their
    intercepts are unknowns of the linear system like the weights, but not penalized.

    Parameters
    ----------
    direct : int
        The largest dimension of a factorized matrix. The linear system is solved by conjugate gradients if
        few steps suffice, else by factorizing the matrix of all features, or that of the rows with nonzero
        second derivatives, if its dimension is at most this.

    References
    ----------
    X. Li, D. Sun, K.-C. Toh, A highly efficient semismooth Newton augmented Lagrangian method for solving
    Lasso problems, SIAM Journal on Optimization 28, 2018. O. Chapelle, S. S. Keerthi, Efficient algorithms
    for ranking with SVMs, Information Retrieval 13, 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective, RocArea, SemismoothNewton, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((200, 3)), np.where(rng.random(200) < 0.3, 1.0, -1.0)
    >>> X[y > 0] += 1
    >>> J = Objective(linear_risk(X, y, RocArea()), L2(), lam=1e-5)
    >>> result = minimize(J, SemismoothNewton(), tol=1e-5)
    >>> result.status, result.n_iter < 40
    ('converged', True)
    """

    direct: int = 2500

    def __post_init__(self) -> None:
        check_positive_int(self, "direct")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield one point per Newton step, and one whenever mu decreases."""
        ScoreProblem.from_objective(self, obj)  # raises UnsupportedProblem
        w, mu = sampled_start(obj, w0, self._from)
        risk: Any = obj.risk
        w = risk.constant_prediction_cuts.lower_absent_classes(w) if obj.n_intercepts else w
        return self._from(obj, w, mu)

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from the point and the multipliers of a run on the same risk, of this or a dual method."""
        problem = ScoreProblem.from_objective(self, obj)
        # in states of dual ascent, "next" is the primal point of the dual variables u
        w = state["next"] if "u" in state and "next" in state else state["w"]
        return self._from(obj, w, 0.0, problem.saved_score_gradient(state) if problem.uses_center else None)

    def _from(self, obj: Objective, w: Array, mu: float, center: NDArray | None = None) -> Iterator[Iterate]:
        """The iterates from a point and a center; mu = 0 stands for the initial mu of the problem."""
        problem = ScoreProblem.from_objective(self, obj)
        z = problem.design.forward(w)
        # known multipliers are near the optimal ones, so less smoothing suffices
        mu_share = 1.0 if center is None else WARM_MU_SHARE
        mu = mu or mu_share * problem.initial_mu(z, obj.lam * obj.reg.value(w))
        center = problem.initial_center(z) if center is None else center
        evaluation = problem.evaluate(z, mu, center, 0.0)
        point = _SemismoothPoint(w, z, mu, center, evaluation, problem.weight_gradient(evaluation), mu)
        return self._run(obj, problem, point, obj.project_out_intercepts(point.cut), 0.0)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        problem, outputs = (
            ScoreProblem.from_objective(self, obj),
            " k" * obj.risk.multi_output,
        )
        rows = dict.fromkeys(("z", "dz", "center?"), f"n{outputs}") | {"hessian_diagonal?": "n"}
        shapes = rows | {"w": "d", "a": "d", "cut": "e", "numbers": "10"}
        check_state(state, shapes, NO_INTEGER_ARRAYS, **state_sizes(obj))
        mu, initial_mu, offset, b, risk, damping, age, cost, full, steps = (
            float(v) for v in state["numbers"]
        )
        evaluation = ScoreEvaluation(state["dz"], offset, b, risk, state.get("hessian_diagonal"))
        # the fields of the point from `initial_mu` on
        counters = initial_mu, damping, int(age), bool(full), int(steps)
        point = _SemismoothPoint(
            state["w"], state["z"], mu, state.get("center"), evaluation, state["a"], *counters
        )
        iterates = self._run(obj, problem, point, Cut(state["cut"][:-1], float(state["cut"][-1])), cost)
        next(iterates)  # the iterate that was saved
        return iterates

    def _run(
        self, obj: Objective, problem: ScoreProblem, point: _SemismoothPoint, best: Cut, cost: float
    ) -> Iterator[Iterate]:
        """The iterates from a point, a best cut, and the saved cost estimate of the linear system."""
        system = problem.newton_system(obj.reg, self.direct, cost)
        n_evaluations = 1
        while True:
            obj.count.calls += 1
            risk = point.evaluation.risk
            value = risk + obj.lam * obj.reg.value(point.w)
            info = {"mu": point.mu, "evaluations": n_evaluations}
            yield Iterate(point.w, value, best, info, point.saved(best, system.steps))
            # R(w) - a'w - b, the height of the risk above its cut at w
            complementarity = max(risk - float(point.a @ point.w) - point.evaluation.offset, 0.0)
            # a center must be the multipliers at the end of a stage, but without one a stage may end early
            large = complementarity > EARLY_COMPLEMENTARITY * point.initial_mu
            early = point.full and not problem.uses_center and large
            moved = None
            if not point.mu or not (early or point.stationary(obj, value, complementarity)):
                moved, n_evaluations = point.newton_step(obj, problem, system, complementarity)
            if moved is None:  # the stage ends, or no descent is left in this precision
                if point.mu <= MU_FLOOR * point.initial_mu:
                    return  # the remaining gap is rounding
                moved, n_evaluations = point.decrease_mu(problem), 1
            point = moved
            cut = obj.project_out_intercepts(point.cut)
            # the convex combination of both cuts with the best lower bound, unless rounding makes it worse
            mixed, _ = mix_two(best, cut, obj)
            best = max(mixed, cut, key=obj.lower)


@dataclass(frozen=True)
class _SemismoothPoint:
    """A point with its scores, and its multipliers for a mu and a center."""

    w: Array
    z: NDArray
    mu: float
    center: NDArray | None
    evaluation: ScoreEvaluation
    a: NDArray
    """X' dz of the evaluation."""
    initial_mu: float
    """The mu of the first stage."""
    damping: float = 0.0
    """The linear system is solved with (1 + damping) lam in place of lam."""
    age: int = 0
    """The number of updates of z and a since they were computed from w and dz alone."""
    full: bool = False
    """Whether a full step was made since mu decreased."""
    steps: int = 0
    """The number of steps since mu decreased."""

    @property
    def cut(self) -> Cut:
        return Cut(self.a, self.evaluation.offset)

    def stationary(self, obj: Objective, value: float, complementarity: float) -> bool:
        """Whether stationarity is below half of complementarity, which only a smaller mu decreases.

        The cut is not scaled down, as it is for the certified bound if R >= 0 is the better cut: such a point
        is far from the end of its stage, and its multipliers are no good center.
        """
        cut = obj.project_out_intercepts(self.cut)
        # J(w) - (b - lam Omega*(-a / lam)) is the sum of stationarity and complementarity
        return value - cut.b + obj.lam * obj.reg.conjugate(-1 / obj.lam * cut.a) <= 1.5 * complementarity

    def decrease_mu(self, problem: ScoreProblem) -> _SemismoothPoint:
        """The same point with a smaller mu; the center moves to the multipliers of the point."""
        slow = self.steps > SLOW_AFTER_STEPS and problem.uses_center
        mu = (MU_DECREASE_SLOW if slow else MU_DECREASE) * self.mu
        # below min_mu the smooth loss itself is used
        mu = mu if mu > problem.min_mu else 0.0
        center = self.evaluation.dz if problem.uses_center else None
        return replace(self, mu=mu, center=center, full=False, steps=0)._evaluated(problem)

    def newton_step(
        self, obj: Objective, problem: ScoreProblem, system: NewtonSystem, complementarity: float
    ) -> tuple[_SemismoothPoint | None, int]:
        """The minimizer along Newton's direction, and the evaluations; None if there is no descent.

        Conjugate gradients, if used, end once the residual adds little to the gap beside complementarity.
        """
        d, start = self._direction(obj, problem, system, complementarity)
        if not -math.inf < start < 0:
            return None, 0
        dz, line = problem.design.forward(d), obj.reg.line(self.w, d)
        # lam Omega is quadratic, so its second derivative along d is the difference of two slopes
        curvature = obj.lam * (line(1.0)[1] - line(0.0)[1])

        def penalty_derivatives(t: float) -> tuple[float, float]:
            return obj.lam * line(t)[1], curvature

        t, n_evaluations = problem.line_search(
            self.z, dz, self.mu, self.center, self.evaluation.b, penalty_derivatives, start
        )
        w = self.w + t * d
        # the step is lost in rounding
        if np.array_equal(w, self.w):
            return None, n_evaluations
        damping = self._next_damping(t, problem.damp_below_step)
        z, full = self.z + t * dz, t > FULL_STEP_ABOVE
        moved = replace(self, w=w, z=z, damping=damping, full=full, steps=self.steps + 1)
        return moved._evaluated(problem), n_evaluations

    def _direction(
        self, obj: Objective, problem: ScoreProblem, system: NewtonSystem, complementarity: float
    ) -> tuple[Array, float]:
        """Newton's direction, and the slope of the smoothed objective along it.

        After the center has moved and mu has decreased, multipliers leave the faces they were on, and few
        rows are active (have nonzero second derivatives). So the first direction of a stage is that of a
        model in which the multipliers stay on these faces.
        """
        penalty_gradient = obj.lam * obj.reg.grad(self.w)  # type: ignore[attr-defined]
        # the gradient of the smoothed objective
        g = penalty_gradient + self.a
        lam, tol = obj.lam * (1 + self.damping), system.residual_tolerance(g, obj.lam * complementarity)
        model = None
        if self.center is not None and not self.steps:
            model = problem.face_model(self.z, self.mu, self.center)
        # the model's direction is used if it is one of descent for the smoothed objective itself
        if model is not None:
            d = system.solve(model[1], lam, penalty_gradient + problem.design.adjoint(model[0]), tol)
            if -math.inf < float(g @ d) < 0:
                return d, float(g @ d)
        hessian = problem.hessian(self.evaluation, self.z, self.mu, self.center)
        d = system.solve(hessian, lam, g, tol)
        return d, float(g @ d)

    def _next_damping(self, t: float, damp_below_step: float) -> float:
        """The damping after a step of length t.

        If the active rows do not determine d, it is long in directions in which J has the curvature of
        lam Omega alone. A short step shortens all of d, while damping shortens that part alone.
        """
        # 1, 4, 16, ... while steps are short; divided by 4 after each long step, and 0 once at most 1/2
        if t < damp_below_step:
            return max(4 * self.damping, 1.0)
        if t > RELAX_DAMPING_ABOVE and self.damping > 0.5:
            return 0.25 * self.damping
        return self.damping * (t <= RELAX_DAMPING_ABOVE)

    def _evaluated(self, problem: ScoreProblem) -> _SemismoothPoint:
        """The point with the evaluation at its z, mu and center; rows whose dz is unchanged cost nothing."""
        fresh = self.age + 1 >= RECOMPUTE_SCORES_EVERY  # rounding errors of the updates must not accumulate
        z = problem.design.forward(self.w) if fresh else self.z
        evaluation = problem.evaluate(z, self.mu, self.center, self.evaluation.b)
        a = problem.weight_gradient(evaluation, None if fresh else (self.evaluation, self.a))
        return replace(self, z=z, evaluation=evaluation, a=a, age=0 if fresh else self.age + 1)

    def saved(self, best: Cut, cost: float) -> Callable[[], dict[str, Array]]:
        """A function that returns the state: this point, the best cut, and the cost of the linear system."""

        def state() -> dict[str, Array]:
            arrays = {"w": self.w, "z": self.z, "dz": self.evaluation.dz, "a": self.a}
            # in the order in which `resume` reads them
            numbers = [
                self.mu,
                self.initial_mu,
                self.evaluation.offset,
                self.evaluation.b,
                self.evaluation.risk,
                self.damping,
                self.age,
                cost,
                self.full,
                self.steps,
            ]
            arrays["numbers"] = np.array(numbers)
            arrays["cut"] = np.append(best.a, best.b)
            optional = {"center": self.center, "hessian_diagonal": self.evaluation.hessian_diagonal}
            return arrays | {name: a for name, a in optional.items() if a is not None}

        return state
