r"""A cutting-plane model whose cuts have slopes in intercepts, which are not penalized.

The model (not the objective) keeps the intercepts near their current values :math:`b_0` by
:math:`\tfrac\rho2 |b - b_0|^2`. It is then the same master problem with one more coordinate per intercept and
offsets :math:`b_t + \beta_t^\top b_0`, where :math:`\beta_t` are the slopes of cut t. The mixture bounds J
once its slopes in the intercepts are projected out; they vanish on convergence, since they are :math:`\rho`
times the step of the intercepts. The cuts of constant predictions ("always predict class j") are in the model
from the start, so that the master problem itself removes most of these slopes.

Rows are centered, that is, b is the score of the mean row: otherwise each step of the weights would require
a compensating step of the intercepts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.namespace import as_array_like, namespace, to_numpy, zeros_for
from riskmin.core import Array, Cut, LinearMap, NDArray, Shard
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.problem.shard_ops import blocks
from riskmin.solvers.bundle.cutting_planes import CuttingPlaneModel, NewtonProgram, QuadraticProgram
from riskmin.solvers.bundle.linear_program import LinearProgram


# ---------------------------------------------------------------- the regularizer of the model
@dataclass(frozen=True)
class WithInterceptPenalty:
    """A regularizer of the weights plus weight |b|^2 / 2 of the k intercepts at the end of w."""

    reg: Any
    k: int
    weight: float

    def conjugate(self, u: Array) -> float:
        """Return the sum of both conjugates at u."""
        # The conjugate of weight |b|^2 / 2 is |u|^2 / (2 weight).
        tail = u[-self.k :]
        return float(self.reg.conjugate(u[: -self.k])) + 0.5 / self.weight * float(tail @ tail)

    def conjugate_grad(self, u: Array) -> Array:
        """Return the gradient of the conjugate at u."""
        head = self.reg.conjugate_grad(u[: -self.k])
        return namespace(u).concat([head, u[-self.k :] / self.weight])

    def inverse_metric_product(self, A: Array, a: Array) -> Array:
        """Return A K^-1 a: the inner products of the conjugate's norm."""
        k = self.k
        return self.reg.inverse_metric_product(A[:, :-k], a[:-k]) + A[:, -k:] @ (a[-k:] / self.weight)

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A', where H is the Hessian of the conjugate at u."""
        k = self.k
        return self.reg.conjugate_hessian_product(u[:-k], A[:, :-k]) + A[:, -k:] @ A[:, -k:].T / self.weight


# ---------------------------------------------------------------- centered rows
@dataclass(frozen=True)
class CenteredFrame:
    """Transforms cuts and points to centered rows (x_i minus their mean), and back."""

    inner: Any
    """Linear map without intercepts."""
    mean: Array
    k: int

    @classmethod
    def from_risk(cls, risk: Risk, w: Array) -> CenteredFrame:
        """Return the frame of a risk, with the weighted mean of its rows."""
        class_sums, linear_map = risk.constant_prediction_cuts, risk.linear_map
        # Weighted mean of the rows: the sums over the classes, divided by the total weight.
        mean = to_numpy(namespace(class_sums.sums).sum(class_sums.sums, axis=1)) / class_sums.weights.sum()
        inner: Any = linear_map.without_intercepts
        # The mean is that of the standardized columns.
        inner = inner.inner if inner.standardized else inner
        return cls(inner, as_array_like(mean, w), risk.n_intercepts)

    def to_centered(self, cut: Cut) -> Cut:
        """Transform a cut of the risk to centered rows."""
        # a'w + beta'b = (a - mean beta')'w + beta'(b + mean'w), and b + mean'w is the score of the mean row.
        slopes = cut.a[-self.k :]
        return Cut(
            namespace(cut.a).concat([cut.a[: -self.k] - self._mean_row_product(slopes), slopes]), cut.b
        )

    def from_centered(self, cut: Cut) -> Cut:
        """Transform a cut back from centered rows."""
        slopes = cut.a[-self.k :]
        return Cut(
            namespace(cut.a).concat([cut.a[: -self.k] + self._mean_row_product(slopes), slopes]), cut.b
        )

    def _mean_row_product(self, slopes: Array) -> Array:
        """Return the gradient in the weights of slopes'z, for the scores z of the mean row."""
        return self.inner.grad_from_outputs(self.mean[:, None] * slopes[None, :])

    def mean_row_scores(self, w: Array) -> Array:
        """Return the scores of the mean row, including the intercepts."""
        return w[-self.k :] + self._mean_row_scores(w[: -self.k])

    def from_mean_row_scores(self, w: Array, b: Array) -> Array:
        """Return the point with weights w whose mean row has the scores b."""
        return namespace(w).concat([w, b - self._mean_row_scores(w)])

    def _mean_row_scores(self, w: Array) -> Array:
        """Return the scores of the mean row for the weights w, without the intercepts."""
        return as_array_like(self.inner.scores(as_matrix(self.mean[None, :]), w, 0, 1)[0], w)


def score_moments(shard: Shard, linear_map: LinearMap, w: Array) -> tuple[NDArray, NDArray]:
    """Return the weighted sums of the scores X w, and of their squares, per output."""
    first, second = np.zeros(linear_map.columns), np.zeros(linear_map.columns)
    for i, j in blocks(shard, linear_map):
        z = linear_map.scores(shard.X, w, i, j)
        first += to_numpy(shard.c[i:j] @ z)
        second += to_numpy(shard.c[i:j] @ (z * z))
    return first, second


def mean_squared_row_norm(obj: Objective, w: Array) -> float:
    """Return the mean squared norm of the centered rows, estimated by random weights; 1 where it is 0."""
    risk: Any = obj.risk
    # For standard normal weights v, the variance of x'v over the rows has the expectation mean |x - mean|^2.
    draw = np.random.default_rng(0).standard_normal(len(w) - risk.n_intercepts)
    reg = obj.reg.penalized_part
    if reg.diagonal:
        # Scale to the norm of the regularizer, in which row norms are measured.
        draw /= np.sqrt(reg.terms(draw).square)
    inner = risk.linear_map.inner
    first, second = risk.executor.sum(score_moments, inner, as_array_like(draw, w))
    variance = float(np.mean(second - first * first))
    # rows whose variance is a smaller share of their mean square are equal up to rounding
    return variance if variance > 1e-12 * float(np.mean(second)) else 1.0


# ---------------------------------------------------------------- the cuts
@dataclass
class InterceptCuttingPlaneModel(CuttingPlaneModel):
    """Cuts with slopes in the intercepts, which the model keeps near their current values."""

    INTERCEPT_PENALTY = 0.1
    """Penalty of the intercepts in the model, relative to a feature whose size is the RMS norm of the
    rows."""
    MAX_CONSTANT_CUTS = 64
    """Largest number of classes for which the cuts of constant predictions are stored: each is as long as
    w."""

    obj: Any = None
    frame: Any = None
    model_reg: Any = None
    n_constant_cuts: int = 0
    """Number of cuts of constant predictions at the front, which are never dropped."""
    center: Any = None
    """Scores of the mean row around which the intercepts are penalized."""

    @classmethod
    def empty(cls, obj: Objective, w: Array) -> InterceptCuttingPlaneModel:
        """Return a model with the cuts of constant predictions, unless there are too many classes."""
        model = cls._with_state(obj, w, {})
        risk: Any = obj.risk
        if model.frame.k <= cls.MAX_CONSTANT_CUTS:
            model.n_constant_cuts = model.frame.k
            for j in range(model.n_constant_cuts):
                cut = risk.constant_prediction_cuts.cut(j)
                model.add(Cut(as_array_like(cut.a, w), cut.b))
        return model

    @classmethod
    def _with_state(cls, obj: Objective, w: Array, state: dict[str, Array]) -> InterceptCuttingPlaneModel:
        """Return a model without cuts; its penalty is that of the saved state, if there is one."""
        risk: Any = obj.risk
        frame, reg = CenteredFrame.from_risk(risk, w), obj.reg.penalized_part
        weight = float(state["weight"][0]) if state else cls.INTERCEPT_PENALTY / mean_squared_row_norm(obj, w)
        program: Any
        model_reg = WithInterceptPenalty(reg, frame.k, weight)
        if reg.quadratic:
            program = QuadraticProgram(model_reg, obj.lam, np.empty((0, 0)))
        elif reg.separable and reg.polyhedral:
            program = LinearProgram(reg, obj.lam, len(w), frame.k)
        else:
            program = NewtonProgram(model_reg, obj.lam)
        empty = np.empty(0)
        model = cls(program, zeros_for((8, len(w)), w), empty, empty, empty)
        model.obj, model.frame, model.model_reg = obj, frame, model_reg
        model.center = frame.mean_row_scores(w)
        return model

    def initial_point(self, w: Array) -> Array:
        """Return w with very low intercepts for classes without rows."""
        start: Array = self.obj.risk.constant_prediction_cuts.lower_absent_classes(w)
        return start

    def add(self, cut: Cut, point: Array | None = None) -> None:
        """Append a cut of the risk, given for rows that are not centered."""
        # All cuts are stored for centered rows.
        super().add(self.frame.to_centered(cut), point)

    def best_mixture(self, w: Array = None, value: float = math.inf) -> Cut:
        """Return the best mixture for intercepts near those of w, with slope zero in them."""
        self.center = self.frame.mean_row_scores(w)
        A, k = self.A[: len(self.b)], self.frame.k
        # The linear program has the intercepts as bounded variables, the others penalize them.
        if isinstance(self.master, LinearProgram):
            self.master.set_center(to_numpy(self.center))
            offsets = self.b
        else:
            # Offsets of the cuts at the center of the penalty: b_t + beta_t @ center.
            offsets = self.b + to_numpy(A[:, -k:] @ self.center)
        self.alpha, self.w = self.master.solve(A, offsets, self.alpha)
        self.inactive_for = np.where(self.alpha > 0, 0, self.inactive_for + 1)
        # Cuts of constant predictions are never dropped.
        self.inactive_for[: self.n_constant_cuts] = 0
        return self.mixture()

    def mixture(self) -> Cut:
        """Return the cuts mixed by their multipliers, with the intercepts projected out."""
        cut: Cut = self.obj.project_out_intercepts(self.frame.from_centered(super().mixture()))
        return cut

    def minimizer(self, obj: Objective, best: Cut) -> Array:
        """Return the minimizer of the model."""
        k = self.frame.k
        if self.w is not None:
            return self.frame.from_mean_row_scores(self.w[:-k], self.w[-k:])
        # The intercepts of the model are differences from the center.
        w = self.model_reg.conjugate_grad(-1 / obj.lam * super().mixture().a)
        return self.frame.from_mean_row_scores(w[:-k], self.center + w[-k:])

    def contains(self, cut: Cut, w: Array, best: Cut, value: float) -> bool:
        """Return whether a cut is no higher at the minimizer than the model."""
        return super().contains(cut, w, self.frame.from_centered(super().mixture()), value)

    def state(self) -> dict[str, Array]:
        """Return the arrays of a saved state."""
        extra = {"weight": np.array([self.model_reg.weight]), "first": np.array([self.n_constant_cuts])}
        return super().state() | extra

    @classmethod
    def from_state(cls, obj: Objective, s: dict[str, Array]) -> InterceptCuttingPlaneModel:
        """Return the model with the cuts of a state of this process."""
        model = cls._with_state(obj, s["w"], s)
        model.A, model.n_constant_cuts = s["A"], int(s["first"][0])
        if isinstance(model.master, QuadraticProgram) and "G" in s:
            model.master.G = s["G"]
        else:
            for m in range(len(s["b"])):
                model.master.add(s["A"][: m + 1], s["b"][: m + 1])
        model.b, model.alpha, model.inactive_for, model.w = s["b"], s["alpha"], s["idle"], s.get("model")
        model.points = [None] * len(model.b)
        return model

    @classmethod
    def from_previous_run(
        cls, obj: Objective, s: dict[str, Array], before: Objective
    ) -> InterceptCuttingPlaneModel:
        """Return the cuts of a run on the same risk, for another lam or regularizer."""
        # The Gram matrix and the minimizer belong to the old lam and regularizer.
        arrays = {name: a for name, a in s.items() if name not in ("G", "model")}
        # A linear program may have put all weight on R >= 0.
        if not s["alpha"].sum() > 0:
            arrays["alpha"] = np.full(len(s["alpha"]), 1 / len(s["alpha"]))
        return cls.from_state(obj, arrays)
