r"""The stages of Newton's method for several outputs: W and the intercepts together are v.

Only the model of the rows, the columns and the linear systems differ from one score per row, and intercepts:
there are k of them, entries of w. The multipliers of a cut have the sum 0 for each output, by Newton steps in
the intercepts alone; constant predictions take up what these leave.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray
from riskmin.problem.certificate import lowered_cut
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.explicit_intercepts import with_best_intercepts
from riskmin.problem.objective import Objective
from riskmin.problem.shard_ops import inner
from riskmin.solvers.newton.multi_output.blocks import Blocks, LossBlocks
from riskmin.solvers.newton.multi_output.columns import OutputColumns
from riskmin.solvers.newton.multi_output.row_models import OutputRows
from riskmin.solvers.newton.multi_output.systems import INTERCEPT_RCOND, OutputSystem
from riskmin.solvers.newton.penalty import Penalty
from riskmin.solvers.newton.stages import Point, Run, StagedNewton
from riskmin.solvers.weights import feature_weights, outputs_share_weights


@dataclass
class MultiOutputNewton(StagedNewton):
    """Newton's method for an objective with L2 and local rows of several scores."""

    model: Any
    X: Any = field(init=False)

    NONSMOOTH_ROWS_PER_COLUMN = 10
    """The first steps on all rows are expensive."""
    MAX_PREDICTIONS = 5
    """Times that multipliers are predicted from predicted ones."""
    MAX_INTERCEPT_STEPS, MAX_INTERCEPT_SLOPE = 6, 1e-12
    """Newton steps in the intercepts of predicted multipliers, up to these slopes."""

    def __post_init__(self) -> None:
        obj, X = self.obj, OutputColumns.of(self.model.design)
        self.X, self.P = X, Penalty(obj, X.p, X.size)
        penalty = np.asarray(self.P.diagonal)
        self.intercept = False  # none beside v
        self.alike = outputs_share_weights(obj.reg, X.k)
        inverse = np.full(X.size, self._intercept_factor() if X.intercepts else 0.0)
        inverse[: X.p] = 1 / penalty[: X.p]
        self.system: Any = OutputSystem(X, penalty, inverse, self.alike, self.model.smooth, self.direct)
        self.max_steps = min(max(self.ITERATE_ENTRIES // (X.nnz * X.k), 1), self.MAX_STEPS)

    @classmethod
    def of(cls, obj: Objective, direct: int, mu_decrease: float) -> MultiOutputNewton:
        """The method for an objective with several outputs that `multi_output_reason` accepts."""
        risk: Any = obj.risk
        return cls(obj, direct, mu_decrease, OutputRows.of(DesignOperator(risk)))

    def _intercept_factor(self) -> float:
        """The factor of squared residuals in intercepts: |sum_i h_i x_i|^2 / P, for h of sum 1.

        A Newton step in the intercepts alone moves a residual in them by this factor into the weights. The
        mean of the rows with weights h is near those of the classes.
        """
        cuts: Any = self.obj.risk.constant_prediction_cuts  # type: ignore[attr-defined]
        scaled = cuts.sums**2 @ (1 / np.where(cuts.weights > 0, cuts.weights, 1.0))
        return float((scaled / feature_weights(self.obj.reg, self.X.k)).sum()) / self.obj.lam

    # ------------------------------------------------------------ points
    def augmented(self, w: NDArray) -> NDArray:
        """The weights w, which hold the intercepts."""
        return w

    def start(
        self, v: NDArray, mu: float = 0.0, center: NDArray | None = None, target: float | None = None
    ) -> Run:
        """The first point of a run; mu = 0 stands for a smoothing term as large as J."""
        risk: Any = self.obj.risk
        model, target = self.model, target or self.FIRST_GAP
        if self.X.intercepts:
            cuts = risk.constant_prediction_cuts
            if not v.any():
                v = with_best_intercepts(risk, v)
                v[self.X.p :] -= v[self.X.p :][cuts.weights > 0].mean()  # only differences matter
            v = cuts.lower_absent_classes(v)
        z = self.X.forward(v)
        if not mu and not model.smooth:
            value = float(model.loss.value_grad(z, model.y, model.c)[0])
            mu = value + 0.5 * float(self.P.product(v) @ v) or 1.0
            mu *= 1.0 if center is None else self.mu_decrease  # known multipliers: one stage less
        u0 = model.first_center(z) if center is None else center
        x, self.system.keeps = self.at(v, z, mu, u0), not mu
        share = 0.0 if model.loss.constant_curvature else self.FIRST_SHARE
        share = self.FIRST_SMOOTHED_SHARE if mu else share
        run = Run(x, mu, u0, Cut(np.zeros(self.X.size), 0.0), target, mu, share)
        self._prove_start(run, x)
        return run

    # ------------------------------------------------------------ proofs
    def _stationarity(self, x: Point, g: NDArray) -> float:
        stationarity = super()._stationarity(x, g)
        if not self.X.intercepts or self.model.smooth:
            return stationarity
        g_b, H = g[self.X.p :], cast("Blocks", x.h)
        return stationarity + 0.5 * float(g_b @ np.linalg.pinv(H.total(), INTERCEPT_RCOND, True) @ g_b)

    def _cut(self, x: Point, dz: NDArray, new: Point, allowed: float = math.inf) -> Cut | None:
        """The cut of the multipliers that a change dz of the scores of x predicts for the point there.

        None if their complementarity alone exceeds the allowed gap.
        """
        model, z, H = self.model, new.z, cast("Blocks", x.h)
        if (found := model.predicted(z, x.s, H, dz)) is None:  # the tangent
            offset = new.sums.value - new.sums.complementarity - inner(new.s, z)
            cut = lowered_cut(self.X.adjoint(new.s), offset, inner(abs(new.s), abs(z)) + abs(new.sums.value))
            return self._without_intercepts(cut)
        if self.X.intercepts:
            ones, inverse = np.ones(len(dz)), None
            for _ in range(self.MAX_INTERCEPT_STEPS):
                slopes = ones @ found[0]
                if not float(abs(slopes).sum()) > self.MAX_INTERCEPT_SLOPE:
                    break
                if inverse is None:
                    inverse = np.linalg.pinv(H.total(), rcond=INTERCEPT_RCOND, hermitian=True)
                dz = dz - inverse @ slopes
                found = model.predicted(z, x.s, H, dz)
        s, offset, size = found
        # known without a pass over X, as the multipliers are stationary at the new point
        if not new.sums.value - offset - inner(s, z) <= allowed:
            return None
        return self._without_intercepts(lowered_cut(self.system.centered(self.X.adjoint(s)), offset, size))

    def _without_intercepts(self, cut: Cut) -> Cut:
        return self.obj.project_out_intercepts(cut) if self.X.intercepts else cut

    def _prove_step(self, run: Run, dz: NDArray, new: Point, residual: float, target: float) -> bool:
        """Whether the multipliers that a step predicts prove the target at its end."""
        allowed = target * abs(new.value)
        cut = self._cut(run.x, dz, new, allowed - residual)
        return cut is not None and self._raise_bound(run, cut, new, allowed)

    def _prove_stage(self, run: Run, x: Point, g: NDArray) -> bool:
        """Keep the cut of the slopes at a point; whether it proves anything."""
        cut: Any = self._cut(x, np.zeros_like(x.z), x)
        self._raise_bound(run, cut, x, math.inf)
        if run.mu and run.lost:
            self._refine(run, x)
        return True

    def _refine(self, run: Run, x: Point) -> None:
        """Predict multipliers again and again, from those that were moved back into their domain.

        In columns of large units, which are hardly penalized, any slope that is left costs the whole bound.
        """
        v, s, model, H = x.v, x.s, self.model, cast("Blocks", x.h)
        allowed = 2 * x.sums.complementarity + run.target * abs(x.value)
        for _ in range(self.MAX_PREDICTIONS):
            if x.value - self.obj.lower(run.best) <= allowed:
                return
            d = self.system.solve(H, self.P.product(v) + self.X.adjoint(s), 0.0, math.inf).v
            found = model.predicted(x.z, s, H, self.X.forward(d))
            if found is None:
                return
            v, (s, offset, size) = v + d, found
            H = LossBlocks(model.loss, s, model.y, model.c, run.mu)
            cut = lowered_cut(self.system.centered(self.X.adjoint(s)), offset, size)
            self._raise_bound(run, self._without_intercepts(cut), x, math.inf)

    # ------------------------------------------------------------ states
    SHAPES: ClassVar[dict[str, str]] = {"v": "m", "w": "d", "u": "n k", "system": "1"}

    def warm_started(self, state: dict[str, Array]) -> Iterator[Iterate] | None:
        """The iterates from the point and the multipliers of another run, also of dual ascent."""
        if self.model.smooth:
            return None
        w = state["next"] if "next" in state else state["w"]
        return self.iterates(self.start(w, 0.0, self._saved_center(state)))

    def _saved_center(self, state: dict[str, Array]) -> NDArray | None:
        beta = state.get("beta")
        if beta is None:
            return state.get("u")
        # slopes c beta of the wrong classes; that of the right class makes the sum of a row 0
        right = np.arange(len(beta)), self.model.y.astype(np.intp)
        s: NDArray = beta * self.model.c[:, None]
        s[right] = 0.0
        s[right] = -s.sum(axis=1)
        return self.model.multipliers(s)  # type: ignore[no-any-return]


def multi_output_reason(obj: Objective) -> str | None:
    """Why Newton's method cannot minimize a multi-output objective, and what can; None if it can."""
    risk: Any = obj.risk
    reg, linear_map = obj.reg.penalized_part, risk.linear_map
    if risk.rows is None:
        return "Newton needs a linear_risk with local rows: use Lbfgs or Smoothing"
    if not risk.loss.has_hessian or not linear_map.separate_outputs:
        return f"{type(risk.loss).__name__} has no second derivatives for Newton: use Lbfgs or Smoothing"
    if not reg.diagonal:
        return f"Newton needs L2() for multi-output losses, not {reg!r}: use Lbfgs or Smoothing"
    return None
