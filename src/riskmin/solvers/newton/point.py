"""A point of Newton's method with its scores and multipliers, the step from it, and what is saved of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import Array, Cut, NDArray
from riskmin.problem.objective import Objective
from riskmin.problem.risk import RECOMPUTE_SCORES_EVERY
from riskmin.solvers.newton.linear_system import LinearSystem
from riskmin.solvers.newton.score_problem import ScoreEvaluation
from riskmin.solvers.state_checks import NO_INTEGER_ARRAYS, check_state, state_sizes


class Direction(NamedTuple):
    """Newton's direction d at a point."""

    d: Array
    hessian: Any
    """The Hessian in the scores, of the point itself."""
    slope: float
    """The derivative of the smoothed objective along d."""
    dz: NDArray | None
    """X d; None if J does not decrease along d."""


@dataclass(frozen=True)
class NewtonPoint:
    """A point with its scores, and its multipliers for a mu and a center."""

    # class attributes, not fields: thresholds of step lengths and slopes
    FULL_STEP_ABOVE = 0.3
    RELAX_DAMPING_ABOVE = 0.9
    UNIT_STEP_MAX_SLOPE_LEFT = 0.1
    UNIT_STEP_MAX_SLOPE_REVERSED = 0.9
    ROUNDING_SLOPE = 1e-17  # the slope of a direction, as a share of J, that is rounding
    PREDICTED_GAP_SHARE, MAX_PREDICTED_GAP, MAX_PREDICTIONS = 0.1, 1e-3, 5

    w: Array
    z: NDArray
    evaluation: ScoreEvaluation
    a: NDArray
    """X' dz of the evaluation."""
    center: NDArray | None = None
    mu: float = 0.0
    """The smoothing; 0 for the loss itself."""
    initial_mu: float = 0.0
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

    def complementarity(self) -> float:
        """R(w) - a'w - b, the height of the risk above its cut at w, which only a smaller mu decreases."""
        return max(self.evaluation.risk - float(self.a @ self.w) - self.evaluation.offset, 0.0)

    def stationary(self, obj: Objective, value: float, complementarity: float) -> bool:
        """Whether stationarity is below half of complementarity, which only a smaller mu decreases.

        The cut is not scaled down, as it is for the certified bound if R >= 0 is the better cut: such a point
        is far from the end of its stage, and its multipliers are no good center.
        """
        cut = obj.project_out_intercepts(self.cut)
        # J(w) - (b - lam Omega*(-a / lam)) is the sum of stationarity and complementarity
        return value - cut.b + obj.lam * obj.reg.conjugate(-1 / obj.lam * cut.a) <= 1.5 * complementarity

    def with_mu(self, mu: float, problem: Any, slack: float = 0.0) -> NewtonPoint:
        """The same point with another mu; the center moves to the multipliers of the point."""
        center = self.evaluation.dz if problem.uses_center else None
        return replace(self, mu=mu, center=center, full=False, steps=0)._evaluated(problem, slack=slack)

    def direction(
        self, obj: Objective, problem: Any, system: LinearSystem, complementarity: float
    ) -> Direction:
        """Newton's direction, with its scores where it is one of descent.

        Conjugate gradients, if used, end once the residual adds little to the gap beside complementarity.
        """
        d, hessian, slope = self._direction(obj, problem, system, complementarity)
        descent = -math.inf < slope < 0
        return Direction(d, hessian, slope, problem.design.forward(d) if descent else None)

    def predicted_cut(
        self,
        obj: Objective,
        problem: Any,
        system: LinearSystem,
        direction: Direction,
        value: float,
        gap: float,
    ) -> Cut | None:
        """The cut of the multipliers dz + H X d that the linear model of several outputs predicts.

        Where lam K d + X' H X d = -g, X' of them is -lam K (w + d): the bound is below J at the end of a
        unit step only by the errors of the model, about the slope.
        """
        enough = min(self.PREDICTED_GAP_SHARE * gap, self.MAX_PREDICTED_GAP * value)
        enough = self.ROUNDING_SLOPE * value if self.mu else enough
        if not obj.risk.multi_output or direction.dz is None or -direction.slope > enough:
            return None
        return self._refined_cut(obj, problem, system, direction, enough)

    def _refined_cut(
        self, obj: Objective, problem: Any, system: LinearSystem, direction: Direction, allowed: float
    ) -> Cut | None:
        """The best cut of predicted multipliers of several outputs.

        Multipliers that leave their bounds are moved back, and others are predicted again from there: in
        columns of large units, which are nearly unpenalized, any slope that is left would cost the bound.
        """
        w, evaluation, d, dz, best = self.w, self.evaluation, direction.d, direction.dz, None
        value = evaluation.risk + obj.lam * obj.reg.value(w)
        for _ in range(self.MAX_PREDICTIONS):
            w, evaluation = w + d, problem.predicted(evaluation, dz, self.mu)
            if evaluation is None:
                return None
            a = problem.weight_gradient(evaluation)
            cut = obj.project_out_intercepts(Cut(a, evaluation.offset))
            best = cut if best is None else max(best, cut, key=obj.lower)
            if value - obj.lower(best) <= allowed:
                break
            g = obj.lam * obj.reg.grad(w) + a
            d = system.solve(problem.predicted_hessian(evaluation, self.mu), obj.lam, g, 0.0)
            dz = problem.design.forward(d)
        return best

    def newton_step(
        self,
        obj: Objective,
        problem: Any,
        system: LinearSystem,
        direction: Direction,
        slack: float = 0.0,
    ) -> tuple[NewtonPoint | None, int, float]:
        """A lower point along Newton's direction, the evaluations, and the predicted decrease of J.

        None in place of the point if there is no descent. An inexact intercept may lower the cut by `slack`.
        """
        d, hessian, slope, dz = direction
        if dz is None:
            return None, 0, 0.0
        line, b = obj.reg.line(self.w, d), self.evaluation.b
        b_slope = problem.intercept_slope(hessian, dz)
        evaluation, t, n_evaluations = None, 1.0, 0
        if system.tries_unit_step:
            unit = problem.design.combination(self.z, 1.0, dz), self.mu, self.center, b + b_slope, slack
            evaluation, n_evaluations = problem.evaluate(*unit), 1
            # slope of J at the end of the step, and change of J
            end = problem.design.inner(evaluation.dz, dz) + obj.lam * line(1.0)[1]
            change = evaluation.risk - self.evaluation.risk + obj.lam * (line(1.0)[0] - line(0.0)[0])
            # where the second derivative decreases along the line, a longer step pays; a shorter one does not
            bounds = self.UNIT_STEP_MAX_SLOPE_LEFT * slope, -self.UNIT_STEP_MAX_SLOPE_REVERSED * slope
            evaluation = evaluation if bounds[0] <= end <= bounds[1] and change < 0 else None
        if evaluation is None:
            # lam Omega is quadratic, so its second derivative along d is the difference of two slopes
            curvature = obj.lam * (line(1.0)[1] - line(0.0)[1])

            def penalty_derivatives(t: float) -> tuple[float, float]:
                return obj.lam * line(t)[1], curvature

            search = self.z, dz, self.mu, self.center, b, penalty_derivatives, slope, b_slope
            t, b, searched = problem.line_search(*search)
            n_evaluations += searched
        system.check_direction(hessian, dz, t)
        w = self.w + t * d
        # the step is lost in rounding
        if np.array_equal(w, self.w):
            return None, n_evaluations, 0.0
        damping = self._next_damping(t, 0.0 if system.tries_unit_step else problem.damp_below_step)
        full = t > self.FULL_STEP_ABOVE
        # the scores of the unit step are there already
        z = unit[0] if evaluation is not None else problem.design.combination(self.z, t, dz)
        moved = replace(self, w=w, z=z, damping=damping, full=full, steps=self.steps + 1)
        # with the current Hessian, J is predicted to fall by -g'd / 2 on the unit step
        moved = moved._evaluated(problem, evaluation, system.tries_unit_step, b, slack)
        return moved, n_evaluations, -0.5 * slope

    def _direction(
        self, obj: Objective, problem: Any, system: LinearSystem, complementarity: float
    ) -> tuple[Array, Any, float]:
        """Newton's direction, its Hessian, and the slope of the smoothed objective along it."""
        # the gradient of the smoothed objective
        g = obj.lam * obj.reg.grad(self.w) + self.a
        lam, tol = obj.lam * (1 + self.damping), system.residual_tolerance(g, obj.lam * complementarity)
        hessian = problem.hessian(self.evaluation, self.z, self.mu, self.center)
        d = system.solve(hessian, lam, g, tol)
        return d, hessian, float(g @ d)

    def _next_damping(self, t: float, damp_below_step: float) -> float:
        """The damping after a step of length t.

        If the active rows do not determine d, it is long in directions in which J has the curvature of
        lam Omega alone. A short step shortens all of d, while damping shortens that part alone.
        """
        # 1, 4, 16, ... while steps are short; divided by 4 after each long step, and 0 once at most 1/2
        if t < damp_below_step:
            return max(4 * self.damping, 1.0)
        if t > self.RELAX_DAMPING_ABOVE and self.damping > 0.5:
            return 0.25 * self.damping
        return self.damping * (t <= self.RELAX_DAMPING_ABOVE)

    def _evaluated(
        self,
        problem: Any,
        evaluation: ScoreEvaluation | None = None,
        anew: bool = False,
        b: float | None = None,
        slack: float = 0.0,
    ) -> NewtonPoint:
        """The point with the evaluation at its z, mu and center, which may be known, as may an intercept b.

        X' dz is updated, so that rows whose dz is unchanged cost nothing; or computed `anew`: dz of a smooth
        loss changes in most rows.
        """
        fresh = self.age + 1 >= RECOMPUTE_SCORES_EVERY  # rounding errors of the updates must not accumulate
        z = problem.design.forward(self.w) if fresh else self.z
        if fresh or evaluation is None:
            b = evaluation.b if evaluation is not None else self.evaluation.b if b is None else b
            evaluation = problem.evaluate(z, self.mu, self.center, b, slack)
        w, z, evaluation = problem.improve_intercepts(self.w, z, evaluation, slack)
        a = problem.weight_gradient(evaluation, None if fresh or anew else (self.evaluation, self.a))
        return replace(self, w=w, z=z, evaluation=evaluation, a=a, age=0 if fresh else self.age + 1)


SYSTEM_ARRAYS = ("kept", "matrix")
"""The arrays of a linear system: second derivatives of rows, and for few columns the matrix of them."""
POINT_NUMBERS = [f.name for f in fields(NewtonPoint)][5:]
"""The fields of a point that are numbers, from `mu` on."""


@dataclass(frozen=True)
class NewtonState:
    """What a run continues from: its point, the best cut, and the arrays of the linear system."""

    point: NewtonPoint
    best: Cut
    system: dict[str, Any]
    """Numbers and arrays by name, as `LinearSystem.to_state` returns them."""

    def to_arrays(self) -> dict[str, Array]:
        """The arrays of a saved state; numbers have names that begin with ``number.``."""
        p, evaluation = self.point, self.point.evaluation
        arrays = {"w": p.w, "z": p.z, "dz": evaluation.dz, "a": p.a, "center": p.center}
        arrays |= {"cut": np.append(self.best.a, self.best.b)}
        arrays |= {name: self.system.get(name) for name in SYSTEM_ARRAYS}
        arrays |= {"hessian_diagonal": evaluation.hessian_diagonal}
        numbers = {name: getattr(p, name) for name in POINT_NUMBERS}
        numbers |= {"offset": evaluation.offset, "b": evaluation.b, "risk": evaluation.risk}
        numbers |= {name: v for name, v in self.system.items() if name not in SYSTEM_ARRAYS}
        arrays |= {f"number.{name}": np.array([float(v)]) for name, v in numbers.items()}
        return {name: a for name, a in arrays.items() if a is not None}

    @classmethod
    def from_arrays(cls, obj: Objective, arrays: dict[str, Array]) -> NewtonState:
        """The state in these arrays, after checks."""
        state = dict(arrays)
        rows = f"n{' k' * obj.risk.multi_output}"
        shapes = {"w": "d", "a": "d", "cut": "e", "z": rows, "dz": rows, "center?": rows}
        shapes |= {"hessian_diagonal?": "n", "kept?": "n", "matrix?": "e e"}
        shapes |= {f"number.{name}": "one" for name in (*POINT_NUMBERS, "offset", "b", "risk", "cg_steps")}
        shapes |= {name: "one" for name in state if name.startswith("number.")}
        check_state(state, shapes, NO_INTEGER_ARRAYS, **state_sizes(obj), one=1)
        n = {k.removeprefix("number."): float(v[0]) for k, v in state.items() if k.startswith("number.")}
        for name in ("mu", "initial_mu", "damping"):
            # a loss that is not smooth has second derivatives only if it is smoothed
            if n[name] < 0 or (name == "mu" and not (n[name] or obj.risk.loss.smooth)):
                raise ValueError(f"its number {name} is {n[name]:g}")
        evaluation = ScoreEvaluation(
            state["dz"], n.pop("offset"), n.pop("b"), n.pop("risk"), state.get("hessian_diagonal")
        )
        kinds = {"age": int, "full": bool, "steps": int}
        own: dict[str, Any] = {name: kinds.get(name, float)(n.pop(name)) for name in POINT_NUMBERS}
        point = NewtonPoint(state["w"], state["z"], evaluation, state["a"], state.get("center"), **own)
        system = n | {name: state[name] for name in SYSTEM_ARRAYS if name in state}
        return cls(point, Cut(state["cut"][:-1], float(state["cut"][-1])), system)
