"""Score problems of multi-output losses, with k scores per row, for Newton's method."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.core import Array, NDArray
from riskmin.losses.multiclass import MulticlassHinge
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem import shard_ops
from riskmin.problem.design_operator import DesignOperator, mean_squared_norm
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.problem.shard_ops import inner
from riskmin.solvers.newton.linear_system import LinearSystem
from riskmin.solvers.newton.multi_output.newton_system import HessianInputs, MultiOutputNewtonSystem
from riskmin.solvers.newton.score_problem import (
    ScoreEvaluation,
    ScoreProblem,
    bracketed_newton,
    secant_search,
)
from riskmin.solvers.weights import feature_weights


class MultiOutputDesignOperator(DesignOperator):
    """The products with the rows of a multi-output risk."""

    def forward(self, d: Array) -> NDArray:
        """The scores of d, of shape (n, k)."""
        if not d.any():
            return np.zeros((self.shape[0], self.risk.linear_map.columns))
        scores = self.risk.executor.map(shard_ops.scores, self.risk.linear_map, d)
        return scores[0] if len(scores) == 1 else np.concatenate(scores)

    def adjoint(self, dz: Array) -> NDArray:
        """The gradient in w of a gradient in the scores, of shape (n, k)."""
        # the sum over the shards, each of which gets the rows of dz that belong to it
        each, zero = [dz[part] for part in self.shard_slices], np.zeros(self.risk.dim)
        (total,) = self.risk.executor.sum(shard_ops.scatter, self.risk.linear_map, zero, each=each)
        return np.asarray(total)


class MultiOutputScoreProblem(ScoreProblem):
    """The loss of all rows, smoothed by mu around a center if it is nonsmooth; intercepts are part of w."""

    UNIT_STEP_SLOPE_RATIO = 0.3
    """For a smooth loss, the step t = 1 is accepted if |slope| falls to this share of that at t = 0."""

    INTERCEPT_RCOND = 1e-10
    """Second derivatives in intercepts below this share of the largest one count as 0."""

    damp_below_step = 0.0
    dual_curvature = 0.0
    """Mean of |x_i|^2 / (n lam): the second derivative of the dual objective in one row's multipliers."""

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk, False)
        self.design = MultiOutputDesignOperator(risk)
        self.n_intercepts = risk.linear_map.n_intercepts
        self.last_evaluation: tuple[Any, ...] = ()
        """Scores, mu, id of the center and result of the last line evaluation: a step often ends there."""

    @classmethod
    def accepts(cls, obj: Objective) -> bool:
        """Whether there are several scores per row."""
        return obj.risk.multi_output

    @classmethod
    def from_objective(cls, obj: Objective) -> MultiOutputScoreProblem:
        """The score problem of an objective that this class accepts."""
        risk: Any = obj.risk
        problem = cls(risk)
        if not problem.smooth:
            weights = feature_weights(obj.reg, risk.linear_map.columns)
            problem.dual_curvature = mean_squared_norm(risk.rows, weights) / (obj.lam * len(risk.rows.c))
        return problem

    @property
    def can_reuse_hessian(self) -> bool:
        """False: the Hessian has blocks, for which there are preconditioners."""
        return False

    def value_at_zero(self) -> float:
        """The loss at scores of 0."""
        zero = np.zeros((len(self.y), self.risk.linear_map.columns))
        return float(self.loss.value_grad(zero, self.y, self.c)[0])

    def newton_system(self, reg: Any, direct: int) -> LinearSystem:
        """The linear system of Newton's method."""
        return MultiOutputNewtonSystem(self.design, reg, direct)

    def saved_score_gradient(self, state: dict[str, Array]) -> NDArray | None:
        """The gradient in the scores from the multipliers in a saved state of this or a dual method."""
        beta = state.get("beta")
        if beta is None:
            return state.get("dz")
        # dz_ij = c_i beta_ij for the wrong classes; that of the right class makes the sum of a row 0
        right = np.arange(len(beta)), self.y.astype(np.intp)
        dz: NDArray = beta * self.c[:, None]
        dz[right] = 0.0
        dz[right] = -dz.sum(axis=1)
        return dz

    def weight_gradient(
        self, evaluation: ScoreEvaluation, previous: tuple[ScoreEvaluation, NDArray] | None = None
    ) -> NDArray:
        """The gradient in w; its entries for the intercepts are always recomputed from dz.

        If no row is of a class, the gradient in its intercept must not keep even a rounding error of the
        updates, since no other term compensates for it. Slopes of classes in the scores of a row have a sum
        of zero, and so have those in the weights of a column, where penalties may be below rounding.
        """
        a = super().weight_gradient(evaluation, previous)
        if self.n_intercepts:
            a[-self.n_intercepts :] = np.ones(len(evaluation.dz)) @ evaluation.dz
        if self.loss.task == "multiclass":
            A = a.reshape(-1, evaluation.dz.shape[1])
            A -= A.mean(axis=1, keepdims=True)
        return a

    def evaluate(
        self, z: NDArray, mu: float, center: NDArray | None, b: float, slack: float = 0.0
    ) -> ScoreEvaluation:
        """The gradient in the scores z, the offset of its cut, and the loss."""
        last = self.last_evaluation
        if last and last[1:3] == (mu, id(center)) and np.array_equal(last[0], z):
            value, dz, offset_gain = last[3]
        else:
            value, dz, offset_gain = self._smoothed(z, mu, center)
        # R >= value + offset_gain + dz @ (z' - z), less what rounding may have added
        offset = float(value + offset_gain) - inner(dz, z) - CUT_ROUNDING * inner(abs(dz), abs(z))
        # a smooth loss is not smoothed further: its value is that of the loss itself
        risk = float(value) if self.smooth else self.unsmoothed_value(z, 0.0)[0]
        return ScoreEvaluation(dz, offset, 0.0, risk)

    def improve_intercepts(
        self, w: Array, z: NDArray, evaluation: ScoreEvaluation, slack: float
    ) -> tuple[Array, NDArray, ScoreEvaluation]:
        """The point after a Newton step in the intercepts alone, on its scores, if the loss is smooth.

        A slope s in weights adds the order of s^2 to the gap, but in intercepts that of |s|, since a cut is
        mixed with constant ones until it has none.
        """
        k, dz = self.n_intercepts, evaluation.dz
        if not k or not self.smooth:
            return w, z, evaluation
        slopes = np.ones(len(dz)) @ dz
        if not float(abs(slopes).sum()) * evaluation.risk > slack:
            return w, z, evaluation
        H = self.loss.block_hessian(dz, self.y, self.c).total()
        # only differences of intercepts matter, so that H is singular
        change = -np.linalg.pinv(H, rcond=self.INTERCEPT_RCOND, hermitian=True) @ slopes
        moved = z + change
        new = self.evaluate(moved, 0.0, None, 0.0)
        if not new.risk <= evaluation.risk:
            return w, z, evaluation
        return np.concatenate([w[:-k], w[-k:] + change]), moved, new

    def line_search(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float, b_slope: float = 0.0,
    ) -> tuple[float, float, int]:  # fmt: skip
        """The step length along dz, b, and the number of evaluations; `line` gives the slope of lam Omega."""

        def slope(t: float) -> float:
            scores = z + t * dz
            result = self._smoothed(scores, mu, center)
            self.last_evaluation = scores, mu, id(center), result
            return line(t)[0] + inner(result[1], dz)

        # the slope at the end of a full Newton step, at which the secant search begins, too
        unit_slope = slope(1.0)
        if abs(unit_slope) <= self.UNIT_STEP_SLOPE_RATIO * abs(start) and self.smooth:
            return 1.0, b, 1
        t, n_evaluations = secant_search(lambda t: unit_slope if t == 1.0 else slope(t), start)
        return t, b, n_evaluations

    def hessian(self, evaluation: ScoreEvaluation, z: NDArray, mu: float, center: NDArray | None) -> Any:
        """The inputs from which the Hessian in the scores is computed."""
        return HessianInputs(evaluation.dz, mu)

    def predicted(self, evaluation: ScoreEvaluation, change: NDArray, mu: float) -> ScoreEvaluation | None:
        """The cut of the multipliers that the linear model predicts for a change of the scores."""
        hessian = self.loss.block_hessian(evaluation.dz, self.y, self.c, mu)
        found = self.loss.multiplier_cut(evaluation.dz + hessian.product(change, slice(None)), self.y, self.c)
        if found is None:
            return None
        dz, offset, size = found
        return ScoreEvaluation(dz, float(offset) - CUT_ROUNDING * float(size), 0.0, evaluation.risk)

    def predicted_hessian(self, evaluation: ScoreEvaluation, mu: float) -> HessianInputs:
        """The inputs of the Hessian at predicted multipliers."""
        return HessianInputs(evaluation.dz, mu)

    def initial_center(self, z: NDArray) -> NDArray | None:
        """All weight on the right classes: the smoothed loss is then quadratic in the margin violations."""
        return None if self.smooth else np.zeros_like(z)


class SimplexDual(MultiOutputScoreProblem):
    """The score problem of a loss with multipliers on one simplex per row, by compiled kernels."""

    DUAL_CURVATURE_SHARE = 0.1
    """The initial mu is the geometric mean of J and this share of the dual's curvature, if that exceeds J."""
    MAX_INITIAL_MU = 10.0
    """The largest initial mu, in units of J: a few raw columns of large numbers make the mean curvature
    large, and a larger mu takes further stages."""

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk)
        k, cost = risk.linear_map.columns, self.loss.cost
        self.cost = 1.0 - np.eye(k) if cost is None else cost
        self.labels = self.y.astype(np.uintp)
        self._scaled: tuple[float, NDArray | None, NDArray] = (0.0, None, np.zeros((len(self.y), k)))
        """The last mu and center, and mu times the multipliers of that center."""

    @classmethod
    def accepts(cls, obj: Objective) -> bool:
        """The kernels support margin rescaling (cost + z_j - z_y), but not slack rescaling."""
        loss = obj.risk.loss if super().accepts(obj) else None
        return isinstance(loss, MulticlassHinge) and not loss.rescaled

    def initial_mu(self, z: NDArray, penalty: float) -> float:
        """J at the scores z: with this mu, all wrong classes have positive multipliers at z = 0.

        It is larger where the dual's curvature is large: a small mu would put the multipliers of most rows on
        a single class, and leave few active rows.
        """
        # 1 in place of J = 0, since mu divides; then the geometric mean of J and a share of the curvature
        value = self.unsmoothed_value(z, 0.0)[0] + penalty or 1.0
        mean = math.sqrt(self.DUAL_CURVATURE_SHARE * self.dual_curvature * value)
        return min(max(value, mean), self.MAX_INITIAL_MU * value)

    def evaluate(
        self, z: NDArray, mu: float, center: NDArray | None, b: float, slack: float = 0.0
    ) -> ScoreEvaluation:
        """The gradient in the scores z, the offset of its cut, and the loss."""
        dz, counts = np.empty_like(z), np.empty(len(z))
        scaled_center = self._scaled_center(mu, center)

        def partial_sums(s: slice) -> NDArray:
            # each call gets its own workspaces, since ranges of rows run in parallel
            out, work = np.zeros(3), np.empty((2, z.shape[1]))
            rows = z[s], scaled_center[s], self.labels[s], self.c[s]
            _kernels().simplex_evaluate_with_cut(*rows, self.cost, 1 / mu, *work, dz[s], counts[s], out)
            return out

        value, offset, abs_terms = (float(v) for v in sum(self.design.map_row_ranges(partial_sums)))
        # in place of second derivatives, the number of positive multipliers per row
        return ScoreEvaluation(dz, offset - CUT_ROUNDING * abs_terms, 0.0, value, counts)

    def line_search(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float, b_slope: float = 0.0,
    ) -> tuple[float, float, int]:  # fmt: skip
        """The step length along dz, b, and the number of evaluations, by safeguarded Newton steps."""
        scaled_center = self._scaled_center(mu, center)

        def derivatives(t: float) -> tuple[float, float]:
            def partial_sums(s: slice) -> NDArray:
                out, work = np.zeros(2), np.empty((3, z.shape[1]))
                rows = z[s], dz[s], t, scaled_center[s], self.labels[s], self.c[s]
                _kernels().simplex_line_derivatives(*rows, self.cost, 1 / mu, *work, out)
                return out

            # slots: slope and second derivative of the loss in t
            sums, penalty = sum(self.design.map_row_ranges(partial_sums)), line(t)
            return float(sums[0]) + penalty[0], float(sums[1]) + penalty[1]

        t, n_evaluations = bracketed_newton(derivatives, start)
        return t, b, n_evaluations

    def hessian(self, evaluation: ScoreEvaluation, z: NDArray, mu: float, center: NDArray | None) -> Any:
        """The inputs of the Hessian; it is zero in rows with at most one positive multiplier."""
        assert evaluation.hessian_diagonal is not None
        return HessianInputs(evaluation.dz, mu, np.flatnonzero(evaluation.hessian_diagonal > 1))

    def _scaled_center(self, mu: float, center: NDArray | None) -> NDArray:
        """Mu times the multipliers of the center, cached until mu or the center changes."""
        if center is not None and (self._scaled[0] != mu or self._scaled[1] is not center):
            # the center is c_i (beta_i - e_y), a gradient in the scores
            scaled = center * (mu / np.where(self.c > 0, self.c, 1.0))[:, None]
            scaled[np.arange(len(scaled)), self.labels] += mu
            self._scaled = mu, center, scaled
        return self._scaled[2]


def _kernels() -> Any:
    from riskmin._numba.newton import (
        multi_output_blocks,  # Numba is imported by the first evaluation, not with the package
    )

    return multi_output_blocks


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
