r"""Bundle methods: minimize :math:`\lambda\,\Omega(w) + \max_t (a_t^\top w + b_t)`, add a cut, repeat.

`Bmrm` and `LineSearchBmrm` follow the papers exactly. `Bundle` is the default: it searches the exact
objective along the segment to the minimizer of the model, on cached scores, and takes its next cut at the
best point of that line.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.core.messages import check_whole
from riskmin.numerics.univariate import (
    Tangent,
    best_tangent,
    bracket_minimum,
    intersection,
    refine_bracket,
    refine_on_grids,
)
from riskmin.problem.objective import Objective, ObjectiveCursor
from riskmin.problem.rounding import lowered_by_scores
from riskmin.solvers.base import intercepts_reason, mix_two
from riskmin.solvers.bundle.cutting_planes import CuttingPlaneModel, master_problem_reason
from riskmin.solvers.bundle.stored_cuts import InterceptCuttingPlaneModel
from riskmin.solvers.state_checks import check_state

STATE_SHAPES = {"w": "d", "points?": "k d", "alpha": "m", "idle": "m", "model?": "d"}
"""Shapes of the arrays from which a bundle of m cuts in d dimensions is rebuilt; k of them have points."""
STATE_SHAPES |= {"A?": "m d", "b?": "m", "G?": "m m", "weight?": "1", "first?": "1"}
"""Those that `warm_start` uses: cuts in a file are not trusted."""


def _model_class(obj: Objective) -> type[CuttingPlaneModel]:
    """Return the class of cutting-plane model that the objective needs."""
    return InterceptCuttingPlaneModel if obj.reg.n_unpenalized else CuttingPlaneModel


@dataclass
class _Tangents:
    """The tangents at the minimizers of models, which may be far out while there are few cuts.

    Where J is above that of an earlier point, a tangent is lowered by the rounding of the scores.
    """

    obj: Objective
    least: float = math.inf

    def at(self, w: Array) -> tuple[float, Cut]:
        """J(w), and the cut there."""
        value, _, cut = self.obj(w)
        far, self.least = value > self.least, min(value, self.least)
        return value, lowered_by_scores(self.obj, w, cut) if far else cut


@dataclass(frozen=True)
class Bmrm(Solver):
    r"""The bundle method of the papers: each cut is taken at the minimizer of the model of all earlier cuts.

    Parameters
    ----------
    floor : bool
        Also use R >= 0 as a cut from the start, as Teo et al. (2007) do; Zhang et al. (2010) do not.

    References
    ----------
    C. H. Teo, S. V. N. Vishwanathan, A. Smola, Q. V. Le, Bundle methods for regularized risk
    minimization, JMLR 11, 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Bmrm, Hinge, Objective, linear_risk
    >>> X, y = np.array([[1.0], [-0.5]]), np.array([1.0, -1.0])
    >>> steps = Bmrm().iterates(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.25), np.zeros(1))
    >>> for _ in range(4):
    ...     it = next(steps)
    ...     print(f"w = {it.w[0]:.3f}, J(w) = {it.value:.3f}")
    w = 0.000, J(w) = 1.000
    w = 3.000, J(w) = 1.125
    w = 1.333, J(w) = 0.389
    w = 1.000, J(w) = 0.375
    """

    floor: bool = False

    def supports(self, obj: Objective) -> str | None:
        """None for regularizers with a master problem, without intercepts in w."""
        return intercepts_reason(self.name, obj) or master_problem_reason(self.name, obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points w_0, w_1, ... of the method."""
        self.check_supports(obj)
        return self._run(obj, self._empty(obj, w0), w0, _Tangents(obj))

    def _empty(self, obj: Objective, w: Array) -> CuttingPlaneModel:
        """The model before the first cut."""
        model = CuttingPlaneModel.empty(obj, w)
        if self.floor:
            model.add(Cut(namespace(w).zeros_like(w), 0.0))
        return model

    def verifies_states(self, obj: Objective) -> bool:
        """True: cuts are taken at their points again."""
        return True

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state; one without the points of its cuts gives the first point only."""
        check_state(state, STATE_SHAPES, d=obj.risk.dim)
        model, tangents = self._empty(obj, state["w"]), _Tangents(obj)
        if "points" in state:
            model.restore(state, lambda point: tangents.at(point)[1])
        return self._run(obj, model, state["w"], tangents)

    def _run(
        self, obj: Objective, model: CuttingPlaneModel, w: Array, tangents: _Tangents
    ) -> Iterator[Iterate]:
        """Yield iterates from w: a cut at w, the best mixture, then the minimizer of the model."""
        while True:
            value, cut = tangents.at(w)
            model.add(cut, w)
            best = model.best_mixture()
            new = model.minimizer(obj, best)
            saved = model.stacked(model.state() | {"w": new})
            yield Iterate(w, value, best, {"cuts": len(model.b)}, saved)
            w = new


@dataclass(frozen=True)
class LineSearchBmrm(Solver):
    r"""The line search variant of the bundle method: it stores no gradients and solves no quadratic program.

    The model is the best mixture of the last model and the new cut, so its minimizer is
    :math:`w_{k+1} = (1 - \eta) w_k - \eta\, a_{k+1} / \lambda` with a closed-form :math:`\eta`.

    References
    ----------
    A. Smola, S. V. N. Vishwanathan, Q. V. Le, Bundle methods for machine learning, NIPS 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, LineSearchBmrm, Logistic, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0], [-0.5]]), np.array([1.0, -1.0])
    >>> minimize(Objective(linear_risk(X, y, Logistic()), L2(), lam=0.25), LineSearchBmrm()).status
    'converged'
    """

    def supports(self, obj: Objective) -> str | None:
        """None for regularizers with a differentiable conjugate, without intercepts in w."""
        if obj.reg.polyhedral:
            kind = type(obj.reg).__name__
            return f"LineSearchBmrm needs a differentiable conjugate, not that of {kind}(): use Bundle"
        return intercepts_reason(self.name, obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points w_0, w_1, ... of the method."""
        self.check_supports(obj)
        return self._run(obj, None, w0)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        check_state(state, {"a": "d", "b": "1", "w": "d"}, d=obj.risk.dim)
        return self._run(obj, Cut(state["a"], float(state["b"][0])), state["w"])

    def _run(self, obj: Objective, model: Cut | None, w: Array) -> Iterator[Iterate]:
        """Yield iterates from w; the model is one cut, mixed with the cut at each new point."""
        tangents = _Tangents(obj)
        while True:
            value, cut = tangents.at(w)
            # w = -a / lam for L2, so that mixing cuts mixes their minimizers.
            model, eta = mix_two(model, cut, obj)
            new = obj.argmin(model)
            saved = {"a": model.a, "b": np.array([model.b]), "w": new}
            yield Iterate(w, value, model, {"eta": eta}, saved.copy)
            w = new


@dataclass(frozen=True)
class Bundle(Solver):
    r"""The accelerated bundle method, and the default for losses that are not smooth.

    Like `Bmrm`, but each step searches the *exact* objective from the best point so far towards the
    minimizer of the model, on cached scores, and takes the next cut at the best point of that line. Cuts
    whose multiplier has been zero for `keep` steps are dropped.

    For multi-output models with intercepts, the model (not the objective) penalizes the distance of the
    intercepts from their current values; convergence is the same as without intercepts.

    Parameters
    ----------
    keep : int
        Number of steps after which a cut with multiplier zero is dropped.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Bundle, Hinge, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0], [-0.5]]), np.array([1.0, -1.0])
    >>> result = minimize(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.25), Bundle(), tol=1e-9)
    >>> round(float(result.w[0]), 6), round(result.value, 6), round(result.lower, 6)
    (1.0, 0.375, 0.375)
    """

    RECOMPUTE_DIRECTION_ABOVE_STEP = 4.0
    """Step length above which a direction in a feature space is recomputed from its coefficients, and
    searched
    again: beyond this multiple of the model's step, rounding dominates its scores."""

    FIRST_POINTS = np.append(0.0, 2.0 ** np.arange(-5, 2.5, 0.5))
    """The first 16 points of a line search that evaluates many points at a time."""

    keep: int = 20

    def __post_init__(self) -> None:
        check_whole(self, "keep")

    def supports(self, obj: Objective) -> str | None:
        """None for regularizers with a master problem."""
        if _model_class(obj) is CuttingPlaneModel or not obj.risk.intercept.n_entries:
            return intercepts_reason(self.name, obj) or master_problem_reason(self.name, obj)
        return master_problem_reason(self.name, obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the best points."""
        self.check_supports(obj)
        model = _model_class(obj).empty(obj, w0)
        cursor = obj.cursor(model.initial_point(w0))
        value, _, cut = cursor(project=False)
        model.add(cut, cursor.w)
        return self._run(obj, model, cursor, value, model.best_mixture(cursor.w, value))

    def verifies_states(self, obj: Objective) -> bool:
        """True: cuts are taken at their points again."""
        return True

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state; one without the points of its cuts gives the first point only."""
        limits = {"first": len(state.get("b", ())) + 1}
        check_state(state, STATE_SHAPES | {"value": "1"}, limits, d=obj.risk.dim)
        if "points" not in state:
            return self.iterates(obj, state["w"])
        model, cursor = _model_class(obj).empty(obj, state["w"]), obj.cursor(state["w"])
        model.restore(state, lambda point: obj.cursor(point)(project=False).cut)
        steps = self._run(obj, model, cursor, float(state["value"][0]), model.mixture())
        # The first iterate repeats the saved one.
        next(steps)
        return steps

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start with the cuts of a run on the same risk: they do not depend on the regularizer."""
        model = _model_class(obj).from_previous_run(obj, state, before)
        w = state["w"]
        # Only lam Omega has changed: J at w needs no evaluation of the risk.
        risk = float(state["value"][0]) - before.lam * before.reg.value(w)
        value = risk + obj.lam * obj.reg.value(w)
        # The old point may lie outside the domain of the new regularizer: project it.
        cursor = obj.cursor(w if math.isfinite(value) else obj.reg.prox(w, 0.0))
        if not math.isfinite(value):
            value, _, cut = cursor(project=False)
            model.add(cut, cursor.w)
        return self._run(obj, model, cursor, value, model.best_mixture(cursor.w, value))

    def _run(
        self, obj: Objective, model: CuttingPlaneModel, cursor: ObjectiveCursor, value: float, best: Cut
    ) -> Iterator[Iterate]:
        """Yield iterates from the cursor's point, of objective `value`, and the best mixture so far."""
        # Regularizers of a feature space have `recompute`, which restores a direction from its coefficients.
        n_evaluations, recompute = 0, obj.reg.recompute if obj.reg.halves else None
        while True:
            saved = model.stacked(model.state() | {"w": cursor.w, "value": np.array([value])})
            info = {"cuts": len(model.b), "evaluations": n_evaluations}
            yield Iterate(cursor.w, value, best, info, saved)
            w, gap = model.minimizer(obj, best), value - obj.lower(best)
            # Search from the best point towards the minimizer; values may be too high by 1 % of the gap.
            cursor.set_direction(w - cursor.w, 0.01 * gap)
            search = self._search_on_grids if cursor.risk.points_at_a_time > 1 else self._search
            new, beyond, n_evaluations = search(cursor, gap)
            if new.x > self.RECOMPUTE_DIRECTION_ABOVE_STEP and recompute is not None:
                cursor.set_direction(recompute(cursor.d), 0.01 * gap)
                new, beyond, n_evaluations = search(cursor, gap)
            # If no step decreases J, the model lacks the cut just beyond the nonsmooth point at t = 0.
            cut, point = cursor(new.x or beyond, project=False).cut, cursor.risk.point(new.x or beyond)
            if new.x:
                cursor.advance(new.x)
            elif new.value >= value and model.contains(cut, w, best, value):
                # The model already contains this cut: the remaining gap is rounding.
                return
            if not math.isfinite(float(cut.a @ cut.a)):
                # The squared norm enters the Gram matrix of the cuts; it overflows double precision.
                return
            # Also without a step: this evaluation is closer than the previous one and may be lower.
            value = new.value
            # A null step adds its cut, too: it improves the model.
            model.add(cut, point)
            best = model.best_mixture(cursor.w, value)
            model.prune(self.keep)

    def _search(self, cursor: ObjectiveCursor, gap: float) -> tuple[Tangent, float, int]:
        """Return the best point on the line, a step just beyond the minimum, and the number of evaluations.

        The search ends when the bracket's uncertainty is at most 10 % of the decrease so far, or 0.1 % of
        the gap.
        """
        evaluations: list[Tangent] = []

        def evaluate(t: float) -> Tangent:
            evaluations.append(Tangent(t, *cursor.value_slope(t)))
            return evaluations[-1]

        def converged(best: float, bound: float) -> bool:
            return best - bound <= 0.1 * max(start.value - best, 0.01 * gap)

        start = evaluate(0.0)
        beyond = 0.0
        if start.slope < 0:
            # J is coercive along the line, but floating-point values need not show where it rises.
            with contextlib.suppress(ValueError):
                beyond = refine_bracket(
                    evaluate, *bracket_minimum(evaluate, start, 1.0, cursor.reach), converged
                )[1].x
        return best_tangent(*evaluations), beyond, len(evaluations)

    def _search_on_grids(self, cursor: ObjectiveCursor, gap: float) -> tuple[Tangent, float, int]:
        """The same with many points at a time, in one launch on a GPU; the evaluations are launches."""
        known: dict[float, Tangent] = {}
        n_launches = 0

        def evaluate(points: NDArray) -> list[Tangent]:
            nonlocal n_launches
            if not all(t in known for t in points.tolist()):
                n_launches += 1
                known.update({tangent.x: tangent for tangent in cursor.tangents(points)})
            return [known[t] for t in points.tolist()]

        def converged(lo: Tangent, hi: Tangent) -> bool:
            best = best_tangent(*known.values()).value
            return best - intersection(lo, hi)[1] <= 0.1 * max(start.value - best, 0.01 * gap)

        points = self.FIRST_POINTS[cursor.reach > self.FIRST_POINTS]
        start, beyond = evaluate(points)[0], 0.0
        if start.slope < 0:
            with contextlib.suppress(ValueError):
                beyond = refine_on_grids(evaluate, start, points[1:], converged, cursor.reach)[1].x
        return best_tangent(*known.values()), beyond, n_launches
