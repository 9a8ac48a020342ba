"""An interior-point method for losses of single rows with L1-type regularizers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Shard, Solver
from riskmin.core.deadline import check_each
from riskmin.numerics.barrier import BarrierVariables, interior_point_of
from riskmin.numerics.precision import sum_rounding
from riskmin.numerics.saddle_point import SaddlePoint
from riskmin.problem.certificate import balanced, multiplier_cut, scale_of_slopes
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.problem.scored_point import PointEvaluation, PointEvaluator, ScoredPoint
from riskmin.solvers.base import (
    BestOnSegments,
    bounded_curvature,
    intercepts_reason,
    local_rows_of,
    local_rows_reason,
)
from riskmin.solvers.interior_point.several_outputs import (
    WeightModel,
    several_outputs_reason,
    weight_hessian,
)


@dataclass(frozen=True)
class InteriorPoint(Solver):
    r"""A primal-dual interior-point method, for L1-type regularizers and columns of any size.

    Each step solves a linear system with :math:`X^\top D X + E`, where D and E are diagonal, by a
    factorization. Newton's method does not depend on the scale of the columns, nor does the number of steps:
    10 to 30 to a relative gap of 1e-6, where methods of first order take thousands on columns of very
    different sizes, or nearly collinear ones.

    A loss whose conjugate is quadratic on an interval (`Hinge`, `Quantile`, `Huber`, ...) makes a quadratic
    program, which Mehrotra's predictor-corrector method solves in the weights and multipliers together; the
    multipliers are a cut. For any other smooth loss, such as `Logistic`, each step minimizes lam Omega plus
    a quadratic model of the risk by this method, and searches J on the segment to its minimizer. Weights
    that are zero at the minimum are set to zero.

    Supports separable regularizers with a term :math:`|w_j|` or bounds: `L1`, `Elastic`, and `Box`. Smooth
    losses of several outputs, such as `Softmax`, have models of all weights and intercepts together;
    `Smoothing` extends this to `MulticlassHinge`.

    Parameters
    ----------
    max_size : int
        The largest number of rows or columns, whichever is smaller: the size of the matrix. With several
        outputs, 0.4 times this is the largest number of weights.
    tol : float
        The relative gap from which on weights that are zero at the minimum are set to zero.

    References
    ----------
    S. Mehrotra, On the implementation of a primal-dual interior point method, SIAM J. Optimization 2, 1992.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute, InteriorPoint, L1, Objective, linear_risk, minimize
    >>> X = np.array([[1e6, 1e-6], [2e6, 3e-6], [3e6, 2e-6]])
    >>> J = Objective(linear_risk(X, np.array([1.0, 2.0, 3.5]), Absolute()), L1(), lam=1e-3)
    >>> minimize(J, InteriorPoint(), tol=1e-6).status
    'converged'
    """

    ZERO_WEIGHT_MU = 10.0
    """Weights whose penalty is below this multiple of mu are set to zero."""
    FIRST_GAP = 0.1
    """J is evaluated once barriers keep it above its minimum by less than this share of it."""
    SPARSE_MAX_STEPS = 20
    """The largest number of steps without the small weights."""
    MODEL_MAX_STEPS = 50
    """The largest number of steps for one quadratic model."""
    MODEL_TOLERANCE = 1e-9
    """The mu at which a model is solved, relative to the first one."""
    MIN_CURVATURE = 1e-12
    """The least second derivative of a row in a model, relative to the largest."""
    SEVERAL_OUTPUTS_SHARE = 0.4
    """With several outputs, all weights and intercepts are at most this share of `max_size`."""
    MIN_MU = 1e-25
    """The run ends with a mu that is smaller, relative to J."""

    max_size: int = 2500
    tol: float = field(default=1e-3, repr=False)

    def for_tolerance(self, tol: float) -> InteriorPoint:
        """The solver that sets weights to zero at a relative gap of tol."""
        return replace(self, tol=tol)

    def supports(self, obj: Objective) -> str | None:
        """None for local rows, a quadratic conjugate or second derivatives, and a separable regularizer."""
        several = bool(obj.risk.multi_output) and obj.risk.linear_map is not None
        if several:
            reason = several_outputs_reason(obj, round(self.SEVERAL_OUTPUTS_SHARE * self.max_size))
        else:
            reason = intercepts_reason(self.name, obj) or local_rows_reason(self, obj)
        if reason:
            return reason
        if not obj.reg.separable:
            return f"InteriorPoint needs a sum over coordinates, such as L1(), not {obj.reg!r}: use Bundle"
        t, p = obj.reg.terms(np.ones(obj.risk.dim)), obj.risk.dim
        bounded = np.isfinite(t.lower) | np.isfinite(t.upper)
        if not np.any((np.asarray(t.absolute) > 0) | bounded):
            return f"InteriorPoint is for regularizers such as L1() and Box(), not {obj.reg!r}: use Newton"
        if np.any(np.asarray(t.lower) >= t.upper):
            return "InteriorPoint needs lower < upper: drop columns whose weights are fixed, or use Bundle"
        if several:
            return None
        if min(p, len(obj.risk.rows.y)) > self.max_size:
            return f"InteriorPoint factorizes a matrix of {p} columns: raise max_size, or use Auto"
        loss = obj.risk.loss
        if not loss.quadratic_conjugate and not bounded_curvature(loss):
            return f"InteriorPoint needs a quadratic conjugate or a Hessian, not {loss!r}: use Bundle"
        return None

    def passes_per_digit(self, obj: Objective) -> float | None:
        """About six factorizations of a matrix of the rows or columns, whichever are fewer; for local X."""
        rows = obj.risk.rows
        return None if rows is None or obj.risk.multi_output else float(8 + min(rows.X.shape))

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points of the method, with weights near zero set to zero."""
        self.check_supports(obj)
        w = obj.reg.prox(np.array(w0, dtype=np.float64), 0.0)
        if obj.risk.multi_output:
            return self._of_several_outputs(obj, w)
        quadratic = obj.risk.loss.quadratic_conjugate
        return self._quadratic_program(obj, w) if quadratic else self._by_models(obj, w)

    # ------------------------------------------------------------ losses with a quadratic conjugate
    def _quadratic_program(self, obj: Objective, w: NDArray) -> Iterator[Iterate]:
        """The steps for the problem itself, each with the cut of its multipliers."""
        shard = local_rows_of(obj.risk, self)[0]
        value, _, cut = obj(w)
        yield Iterate(w, value, cut, {"passes": 0.0})
        # a point near the boundary is no start: barriers keep variables near it
        point = self._start(obj, obj.reg.prox(np.zeros(len(w)), 0.0), value)
        passes, lower, p = 0.0, obj.lower(cut), len(w)
        squares = cast(NDArray, point.design.gram_diagonal(shard.c))
        errors = sum_rounding(len(shard.c)) * np.sqrt(squares)
        while True:
            t = point.step()
            if t and point.mu * point.count > self.FIRST_GAP * value:
                continue  # far from the minimum, J would only cost time
            w = np.asarray(obj.reg.prox(point.weights.x, 0.0))
            value, _, tangent = obj(w)
            for candidate in (tangent, _multiplier_cut(point, shard, obj, errors)):
                if (bound := obj.lower(candidate)) > lower:
                    cut, lower = candidate, bound
            # the minimum has zeros, which this point only approaches
            if value - lower <= self.tol * value:
                w, value = self._sparse_point(obj, point, lower / (1 - self.tol)) or (w, value)
            passes += 6.0 + p / 32
            yield Iterate(w, value, cut, {"mu": point.mu, "passes": passes})
            if not t or not point.mu > self.MIN_MU * abs(value):
                return  # the rest of the gap is rounding

    def _start(self, obj: Objective, w: NDArray, value: float) -> SaddlePoint:
        """The problem, at w and multipliers inside their intervals, with a mu of the size of J."""
        shard, loss, intercept = local_rows_of(obj.risk, self)
        design, dual = DesignOperator(cast(Risk, obj.risk)), loss.interval_conjugate(shard.y)
        b = float(obj.risk.best_intercept(w)) if intercept else 0.0
        # rows without weight have no multiplier
        rows = np.flatnonzero(shard.c > 0)
        c, lower, upper = shard.c[rows], dual.lower[rows], dual.upper[rows]
        slopes = loss.value_grad(design.forward(w) + b, shard.y, np.ones(len(shard.y)))[1][rows]
        u = interior_point_of(slopes, lower, upper, float(np.abs(slopes).mean()) or 1.0)
        mu = max(value, 1e-100) / (2 * (len(rows) + len(w)))
        multipliers = BarrierVariables(
            c * u,
            mu,
            shift=dual.shift[rows],
            epsilon=dual.epsilon,
            square=dual.square / c,
            lower=c * lower,
            upper=c * upper,
        )
        return SaddlePoint(
            design, rows, (penalty_variables(obj, w, mu), multipliers), intercept=intercept, b=b
        )

    def _sparse_point(
        self, obj: Objective, point: SaddlePoint, max_value: float
    ) -> tuple[NDArray, float] | None:
        """A point with J <= max_value and without the weights that are small; None if there is none.

        The other weights are minimized over again: many small weights together are not small.
        """
        weights = point.weights
        small = (weights.epsilon > 0) & (weights.epsilon * np.abs(weights.x) < self.ZERO_WEIGHT_MU * point.mu)
        if not small.any():
            return None
        reduced = point.without(small)
        for _ in range(self.SPARSE_MAX_STEPS):
            w = np.asarray(obj.reg.prox(np.where(small, 0.0, reduced.weights.x), 0.0))
            if (value := obj.value(w)) <= max_value:
                return w, value
            if not reduced.step():
                return None
        return None

    # ------------------------------------------------------------ other smooth losses
    def _by_models(self, obj: Objective, w: NDArray) -> Iterator[Iterate]:
        """Newton's method: each step minimizes lam Omega plus a quadratic model of the risk."""
        shard, loss, intercept = local_rows_of(obj.risk, self)
        design, points = DesignOperator(cast(Risk, obj.risk)), PointEvaluator(obj, shard, loss, intercept)
        point, predicted, passes, before = points.with_scores(w), None, 0.0, np.inf
        # a start where second derivatives vanish is no better than zero
        if not loss.hessian(point.z + point.b, shard.y, shard.c).diagonal.any():
            point = points.with_scores(np.asarray(obj.reg.prox(np.zeros(len(w)), 0.0)))
        best = BestOnSegments(obj, point.w)
        while True:
            at = points.evaluate(point, predicted)
            yield Iterate(point.w, at.value, at.cut, {"passes": passes})
            if not at.value < before:
                return  # no descent is left in this precision
            h = loss.hessian(point.z + point.b, shard.y, shard.c).diagonal
            if not h.any():
                return  # all scores are far out: the risk is linear there
            model = self._row_model(obj, design, point, at, np.maximum(h, self.MIN_CURVATURE * h.max()))
            v = self._model_minimizer(obj, model)
            # the slopes at the model's minimizer prove more than those at the next point
            predicted = points.feasible_slopes(model.scattered(model.multipliers.x))
            before, w = at.value, best.towards(v)[0]
            point, passes = points.with_scores(w), passes + 4.0 + len(w) / 32

    def _of_several_outputs(self, obj: Objective, w: NDArray) -> Iterator[Iterate]:
        """Newton's method with models of all weights of several outputs."""
        best, passes, before, cut = BestOnSegments(obj, w), 0.0, np.inf, None
        while True:
            value, g, tangent = obj(w)
            cut = tangent if cut is None else max(cut, tangent, key=obj.lower)
            yield Iterate(w, value, cut, {"passes": passes})
            if not value < before:
                return  # no descent is left in this precision
            variables = penalty_variables(obj, w, max(value, 1e-100) / (2 * len(w)))
            model = WeightModel(w, np.asarray(g), weight_hessian(obj.risk, w), variables)
            sparse = self._model_minimizer(obj, model)
            # many weights near zero together change the slopes by more than lam
            v = np.asarray(obj.reg.prox(model.weights.x, 0.0))
            cut = max(cut, _tangent_with_multipliers(v, obj), key=obj.lower)
            before, w = value, best.towards(sparse)[0]
            passes += 4.0 + len(w) / 32

    def _model_minimizer(self, obj: Objective, model: SaddlePoint | WeightModel) -> NDArray:
        """The weights that minimize a model; those whose penalty and quadratic term are small are zero."""
        first = model.mu
        for _ in check_each(range(self.MODEL_MAX_STEPS)):
            if not model.step() or model.mu <= self.MODEL_TOLERANCE * first:
                break
        x, epsilon = model.weights.x, model.weights.epsilon
        effect = np.maximum(epsilon * np.abs(x), model.weight_curvature * x * x)
        small = (epsilon > 0) & (effect < self.ZERO_WEIGHT_MU * model.mu)
        return np.asarray(obj.reg.prox(np.where(small, 0.0, x), 0.0))

    def _row_model(
        self, obj: Objective, design: DesignOperator, point: ScoredPoint, at: PointEvaluation, h: NDArray
    ) -> SaddlePoint:
        """The problem of a quadratic model of the risk.

        The model of row i has the slope a_i + h_i (z - z_i): its conjugate is quadratic.
        """
        rows = np.flatnonzero(h > 0)
        h, slopes, mu = h[rows], at.slope[rows], max(at.value, 1e-100) / (2 * len(point.w))
        multipliers = BarrierVariables(slopes, mu, shift=(point.z + point.b)[rows] - slopes / h, square=1 / h)
        variables = penalty_variables(obj, point.w, mu), multipliers
        return SaddlePoint(design, rows, variables, intercept=obj.risk.intercept.profiled, b=point.b)


def _tangent_with_multipliers(w: NDArray, obj: Objective) -> Cut:
    """The cut at w, and the slopes of rows and outputs that it is made of."""
    risk = cast(Risk, obj.risk)
    X, y, c = cast(Shard, risk.rows)[:3]
    dz = risk.loss.value_grad(risk.linear_map.scores(X, w, 0, len(c)), y, c)[1]
    return obj.cut(w)._replace(u=dz / np.where(c > 0, c, 1.0)[:, None])


def _multiplier_cut(point: SaddlePoint, shard: Shard, obj: Objective, errors: NDArray) -> Cut:
    """The cut of the multipliers, whose sum is made zero if there is an intercept.

    `errors` are those of the columns, for multipliers per unit weight of a root mean square of one.
    """
    rows = point.rows
    c, dual = shard.c[rows], obj.risk.loss.interval_conjugate(shard.y[rows])
    u = np.clip(point.multipliers.x / c, dual.lower, dual.upper)
    u = balanced(u, c, dual) if point.intercept else u
    a = point.adjoint(c * u)
    if obj.reg.polyhedral:
        s = scale_of_slopes(obj, Cut(a, 1.0), errors * np.sqrt(c @ u**2))
        u, a = s * u, s * a
    cut = multiplier_cut(a, dual, u, c, z=abs(point.b) + 1.0)
    return cut._replace(u=point.scattered(u))


def penalty_variables(obj: Objective, w: NDArray, mu: float) -> BarrierVariables:
    """The weights with the barriers of lam Omega, from the point nearest to w inside the bounds."""
    t, lam = obj.reg.terms(w), obj.lam
    lower, upper = np.broadcast_to(t.lower, w.shape), np.broadcast_to(t.upper, w.shape)
    w = interior_point_of(w, lower, upper, 1.0)
    absolute, square = lam * np.asarray(t.absolute), lam * np.asarray(t.square)
    return BarrierVariables(w, mu, epsilon=absolute, square=square, lower=lower, upper=upper)
