r"""Newton's method for `Softmax` with L2: several steps per iterate, by preconditioned conjugate gradients.

With the probabilities :math:`p_i` of the rows, a step solves

.. math:: \Big(\lambda I + \sum_i x_i x_i^\top \otimes H_i\Big)\, d = -\nabla J(w) - r, \qquad
   H_i = c_i (\mathrm{diag}(p_i) - p_i p_i^\top),

up to a residual r. A stage ends with a proof of its gap. The multipliers :math:`c_i (q_i - e_{y_i})` with
:math:`q_i = p_i + (\mathrm{diag}(p_i) - p_i p_i^\top)\, x_i^\top d` have
:math:`X^\top u = -\lambda (w + d) - r`, and the conjugate of the loss is
:math:`\sum_j q_{ij} \log q_{ij}`: the bound of their cut is less than J(w + d) by
:math:`|r|^2 / (2 \lambda)` and the errors of the quadratic model, while that of the tangent at a point with
the gradient g is less by :math:`|g|^2 / (2 \lambda)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Shard
from riskmin.core.deadline import check_each, scatter_in_chunks
from riskmin.linear_maps.linear import MultiOutput, WithIntercept
from riskmin.losses.multiclass import Softmax
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem import shard_ops
from riskmin.problem.design_operator import mean_squared_norm, row_matrix
from riskmin.problem.objective import Objective
from riskmin.solvers.newton.multi_output.softmax_preconditioners import SoftmaxPreconditioner
from riskmin.solvers.newton.point import NewtonPoint, NewtonState
from riskmin.solvers.newton.score_problem import ScoreEvaluation, bracketed_newton


class SoftmaxPosition(NamedTuple):
    """Weights, their scores and probabilities, and the risk."""

    w: NDArray
    z: NDArray
    p: NDArray
    risk: float


class SoftmaxStep(NamedTuple):
    """A direction d of conjugate gradients, its residual r, and the slope of J along it."""

    d: NDArray
    r: NDArray
    slope: float


class SoftmaxProblem:
    """An objective with the softmax loss of local rows, L2, and one weight per column and class."""

    MAX_GAP, GAP_SHARE = 5e-4, 1e-3
    """Stages end at the first relative gap, and at this share of that of the stage before."""
    CG_RESIDUAL = 0.35
    """Share of the gradient norm at which conjugate gradients stop, far from the end of a stage."""
    MAX_CG_STEPS = 500
    PROOF_SLOPE, RESIDUAL_SHARE = 0.7, 0.4
    """Where the slope of J along a direction is at most PROOF_SLOPE J (allowed gap / J)^(2/3), conjugate
    gradients continue until the residual takes this share of the allowed gap: the rest is left to the errors
    of the model, which are of the order of the slope to the power 3/2."""
    MAX_SLOPE = 2.0
    """Conjugate gradients stop once the slope exceeds this multiple of J: the model predicts that J falls by
    half of it, but J >= 0."""
    UNIT_STEP_SLOPE_RATIO, SLOPE_RATIO = 0.3, 0.1
    """The step t = 1 is accepted if the slope at its end is at most the first share of that at its start, and
    another one at the second."""
    LEAST_FACTOR = 0.1
    """A predicted probability is at least this share of the current one."""
    MAX_INTERCEPT_STEPS, MAX_INTERCEPT_SLOPE = 6, 1e-12
    """Newton steps in the intercepts of predicted probabilities, up to these slopes."""
    MEAN_SHARE = 0.1
    """The share of the mean of |x_i|^2 in the squared norm of a mean of rows with other weights."""
    ABSENT_CLASS_SCORE = -1e4
    """The intercept of a class without rows: its probability is 0."""
    ROUNDING_SLOPE = 1e-17
    """The slope, as a share of J, below which steps change J by less than its rounding."""
    ITERATE_OPERATIONS = 5e7
    """Multiplications from which on a point is an iterate before its stage ends: 10 ms or more."""
    MAX_SCORES = 2**26
    """Rows times classes up to which scores and probabilities are stored, each half a gigabyte."""
    MAX_STEPS = 20
    """Newton steps between two iterates."""
    MIN_PENALTY_RATIO = 1e-3
    """The smallest penalty of a weight relative to the largest: columns of other units have smaller ones."""

    def __init__(self, obj: Objective, problem: Any) -> None:
        self.obj, self.problem, self.design = obj, problem, problem.design
        risk: Any = obj.risk
        self.executor, self.linear_map = risk.executor, risk.linear_map
        self.k, self.n_intercepts = self.linear_map.columns, obj.n_intercepts
        self.y, self.c = problem.y.astype(np.uintp), problem.c
        penalty = obj.lam * obj.reg.terms(np.ones(risk.dim)).square + np.zeros(risk.dim)
        self.n_weights = risk.dim - self.n_intercepts
        penalty[self.n_weights :] = 0.0
        self.penalty = penalty
        self.starts = [part.start for part in self.design.shard_slices]
        self.intercept_scale = self._intercept_scale() if self.n_intercepts else 0.0
        fitted = bool(self.n_intercepts)
        self.preconditioner = SoftmaxPreconditioner(self.design, self.penalty, self.k, fitted)
        # new memory costs as much as its use
        shape = len(self.y), self.k
        self.free = [(np.empty(shape), np.empty(shape)) for _ in range(2)]
        """Memory for the scores and probabilities of the current and of the next point."""
        self.scores, self.dz = np.empty(shape), np.empty(shape)
        """The scores of the last direction, and the slopes in the scores of the last cut."""
        self.offset = 0.0
        """The offset of the last cut."""

    @classmethod
    def accepts(cls, obj: Objective) -> bool:
        """Whether the loss is `Softmax`, rows and weights are plain, and penalties of similar sizes.

        Conjugate gradients leave residuals, which lower the bound most in weights of the smallest penalties:
        these need the matrices of the general steps.
        """
        risk: Any = obj.risk
        if not (risk.multi_output and type(risk.loss) is Softmax and risk.rows is not None):
            return False
        linear_map = risk.linear_map
        inner = linear_map.inner if isinstance(linear_map, WithIntercept) else linear_map
        X: Any = row_matrix(risk.rows)
        few = len(risk.rows.y) * linear_map.columns <= cls.MAX_SCORES
        plain = type(inner) is MultiOutput and (X.sparse or X.array.dtype == float)
        if not (few and plain and obj.reg.penalized_part.diagonal):
            return False
        square = np.ravel(obj.reg.penalized_part.terms(np.ones(risk.dim - obj.n_intercepts)).square)
        return bool(square.min() >= cls.MIN_PENALTY_RATIO * square.max())

    def _intercept_scale(self) -> float:
        """The factor of squared residuals in intercepts: |sum_i h_i x_i|^2 for second derivatives h of sum 1.

        A Newton step in the intercepts alone moves a residual in them by this factor into the weights. h is
        near the weights of the rows, of which the mean of x_i is known.
        """
        risk: Any = self.obj.risk
        mean = risk.constant_prediction_cuts.sums.sum(axis=1)
        return float(mean @ mean) + self.MEAN_SHARE * mean_squared_norm(self.design.rows, 1.0)

    # ------------------------------------------------------------ iterates
    def start(self, w: Array) -> SoftmaxPosition:
        """The position of the weights w; from 0, intercepts are the logarithms of the shares of classes."""
        if self.n_intercepts and not w.any():
            risk: Any = self.obj.risk
            shares = risk.constant_prediction_cuts.weights
            present = np.log(np.where(shares > 0, shares, 1.0))
            present -= present.sum() / np.count_nonzero(shares)
            # a cut with a slope in the intercept of a class without rows would prove nothing
            w = np.append(w[: self.n_weights], np.where(shares > 0, present, self.ABSENT_CLASS_SCORE))
        return self.evaluated(w, self.problem.design.forward(w))

    def iterates(self, now: SoftmaxPosition, best: Cut | None = None) -> Iterator[Iterate]:
        """The iterates from a position: itself, the ends of stages, and on large data those between."""
        lower = self.obj.lower
        a, cut = self._tangent(now)
        best = cut if best is None else max(best, cut, key=lower)
        yield self._iterate(now, best, 1)
        n_steps, work = 0, 0.0
        while True:
            value = self._value(now)
            allowed = self._allowed_gap(value - lower(best), value)
            step, n_products = self._step(now, a + self.penalty * now.w, value, allowed)
            moved = self._moved(now, step)
            if moved is None:
                return  # the remaining gap is rounding
            n_steps, work = n_steps + 1, work + n_products * self.k * self.design.nnz
            predicted = self._predicted_cut(now, step, value, moved, allowed)
            best = best if predicted is None else max(best, predicted, key=lower)
            now, value = moved, self._value(moved)
            proved = value - lower(best) <= allowed
            if not proved:
                a, cut = self._tangent(now)
                best = max(best, cut, key=lower)
            if value - lower(best) <= allowed or work > self.ITERATE_OPERATIONS or n_steps == self.MAX_STEPS:
                yield self._iterate(now, best, n_steps)
                n_steps, work = 0, 0.0
            if proved:
                a, cut = self._tangent(now)

    def _iterate(self, now: SoftmaxPosition, best: Cut, n_steps: int) -> Iterate:
        """The iterate at a position; the memory of its scores is used again, so that its state has a copy."""
        self.preconditioner.renew()
        self.obj.count.calls += n_steps
        info = {"mu": 0.0, "evaluations": float(n_steps)}
        state = saved_state(self.problem, now.w, now.z.copy(), now.risk, best)
        return Iterate(now.w, self._value(now), best, info, state)

    def _allowed_gap(self, gap: float, value: float) -> float:
        """The gap at which a stage ends that starts from a gap: the next of 5e-4, 5e-7, ... times J."""
        allowed = self.MAX_GAP * value
        while 0 < gap <= allowed:
            allowed *= self.GAP_SHARE
        return allowed

    # ------------------------------------------------------------ points and cuts
    def evaluated(self, w: NDArray, z: NDArray) -> SoftmaxPosition:
        """The position of weights with known scores."""
        moved, p = self.free.pop()
        risk = self._line(z, z, 0.0, moved, p)[0]
        return SoftmaxPosition(w, moved, p, risk)

    def _value(self, now: SoftmaxPosition) -> float:
        """J."""
        return now.risk + 0.5 * float((self.penalty * now.w) @ now.w)

    def _line(self, z: NDArray, dz: NDArray, t: float, moved: NDArray, p: NDArray) -> list[float]:
        """Set the scores z + t dz and their probabilities; return the risk and two derivatives in t."""

        def partial_sums(s: slice) -> NDArray:
            sums, out = np.zeros(3), (moved[s], p[s], p[s].reshape(-1))
            _kernels().softmax_line(z[s], dz[s], t, self.y[s], self.c[s], *out, sums)
            return sums

        total: list[float] = sum(self.design.map_row_ranges(partial_sums)).tolist()
        return total

    def _tangent(self, now: SoftmaxPosition) -> tuple[NDArray, Cut]:
        """The gradient of the risk, and the tangent as a cut without slopes in the intercepts."""

        def partial_sums(s: slice) -> NDArray:
            sums = np.zeros(2)
            _kernels().softmax_slopes(now.p[s], now.z[s], self.y[s], self.c[s], self.dz[s], sums)
            return sums

        product, size = sum(self.design.map_row_ranges(partial_sums)).tolist()
        a = self._adjoint()
        self.offset = now.risk - product - CUT_ROUNDING * size
        cut = Cut(a, self.offset)
        return a, self.obj.project_out_intercepts(cut) if self.n_intercepts else cut

    def _adjoint(self) -> NDArray:
        """The gradient in w of the slopes dz in the scores."""
        each, zero = [self.dz[part] for part in self.design.shard_slices], np.zeros(len(self.penalty))
        (a,) = self.executor.sum(shard_ops.scatter, self.linear_map, zero, each=each)
        return np.asarray(a)

    def _predicted_cut(
        self, before: SoftmaxPosition, step: SoftmaxStep, value: float, now: SoftmaxPosition, allowed: float
    ) -> Cut | None:
        """The cut of the multipliers that a step predicts, if it may prove the allowed gap at its end."""
        # the minimum of the quadratic model is J + slope / 2, since residuals are orthogonal to directions
        residual = self._gap_of(step.r)
        if self._value(now) - value - 0.5 * step.slope + residual > allowed:
            return None
        sums = self._set_predicted_slopes(before, self.scores)
        if self.n_intercepts:
            # Newton steps in the intercepts alone: a cut may have no slopes in them
            inverse = self._inverse_intercept_hessian(before.p)
            scores, ones = self.scores, np.ones(len(self.dz))
            for _ in range(self.MAX_INTERCEPT_STEPS):
                slopes = ones @ self.dz
                if not float(abs(slopes).sum()) > self.MAX_INTERCEPT_SLOPE:
                    break
                scores = scores - inverse @ slopes
                sums = self._set_predicted_slopes(before, scores)
        offset, *sizes = sums
        self.offset = offset - CUT_ROUNDING * sum(sizes)
        cut = Cut(self._adjoint(), self.offset)
        return self.obj.project_out_intercepts(cut) if self.n_intercepts else cut

    def _set_predicted_slopes(self, before: SoftmaxPosition, scores: NDArray) -> list[float]:
        """Set the slopes of probabilities that a direction with these scores predicts; return their sums."""

        def partial_sums(s: slice) -> NDArray:
            sums, rows = np.zeros(3), (before.p[s], before.z[s], scores[s], self.y[s], self.c[s])
            _kernels().softmax_predicted_slopes(*rows, self.LEAST_FACTOR, self.dz[s], sums)
            return sums

        total: list[float] = sum(self.design.map_row_ranges(partial_sums)).tolist()
        return total

    def _inverse_intercept_hessian(self, p: NDArray) -> NDArray:
        """The pseudoinverse of the Hessian in the intercepts: only their differences matter."""
        scaled = p * self.c[:, None]
        total = np.diag(np.ones(len(p)) @ scaled) - scaled.T @ p
        return np.linalg.pinv(total, rcond=self.problem.INTERCEPT_RCOND, hermitian=True)

    def _gap_of(self, r: NDArray) -> float:
        """The gap |r|^2 / (2 lam) that a residual adds; one in intercepts ends up in the weights."""
        m = self.n_weights
        gap = 0.5 * float(r[:m] @ (r[:m] / self.penalty[:m]))
        return gap + 0.5 * self.intercept_scale / self.obj.lam * float(r[m:] @ r[m:])

    # ------------------------------------------------------------ steps
    def _step(
        self, now: SoftmaxPosition, g: NDArray, value: float, allowed: float
    ) -> tuple[SoftmaxStep, int]:
        """The direction at a position with the gradient g, and the number of products with the Hessian."""
        solve = self.preconditioner.at(now.p)
        proof_slope = self.PROOF_SLOPE * value * (allowed / value) ** (2 / 3) if value > 0 else 0.0
        d, r, slope = np.zeros_like(g), -g, 0.0
        enough = self.CG_RESIDUAL**2 * self._square(g)
        direction = solve(r)
        rho, n_steps = float(r @ direction), 0
        for _ in check_each(range(self.MAX_CG_STEPS)):
            image = self._product(now.p, direction)
            curvature = float(direction @ image)
            if not (curvature > 0 and rho > 0):
                break  # nothing but rounding is left
            t = rho / curvature
            d += t * direction
            image *= t
            r -= image
            slope, n_steps = slope - t * rho, n_steps + 1
            if -slope > proof_slope:
                if self._square(r) <= enough or -slope > self.MAX_SLOPE * value:
                    break
            elif self._gap_of(r) <= self.RESIDUAL_SHARE * allowed:
                break
            s = solve(r)
            rho, last_rho = float(r @ s), rho
            direction *= rho / last_rho
            direction += s
        self.preconditioner.count(n_steps)
        if self.n_intercepts:
            # the loss does not depend on the sum of all intercepts, which stays as it is
            d[self.n_weights :] -= d[self.n_weights :].mean()
        return SoftmaxStep(d, r, float(g @ d)), n_steps + 2

    def _square(self, r: NDArray) -> float:
        """The squared norm of a residual; intercepts count as a feature of typical size."""
        m = self.n_weights
        return float(r[:m] @ r[:m]) + self.intercept_scale * float(r[m:] @ r[m:])

    def _product(self, p: NDArray, d: NDArray) -> NDArray:
        """(lam I + sum_i x_i x_i' (x) H_i) d."""

        def part(shard: Shard, start: int) -> tuple[NDArray]:
            return (self._shard_product(shard, p[start : start + len(shard.y)], d),)

        (image,) = self.executor.sum(part, each=self.starts)
        image += self.penalty * d
        return np.asarray(image)

    def _shard_product(self, shard: Shard, p: NDArray, d: NDArray) -> NDArray:
        """(sum_i x_i x_i' (x) H_i) d of the rows of a shard: block by block, while in cache."""
        X, k = row_matrix(shard), self.k
        out = np.zeros_like(d)
        if X.sparse:
            stored, D = (X.indptr, X.indices, X.data), d.reshape(-1, k)
            parts = *stored, D, bool(self.n_intercepts), shard.c, np.empty(k)
            kernel, work = _kernels().csr_softmax_hessian_product, 2.0 * k * X.nnz
            scatter_in_chunks(kernel, parts, p, 0, len(p), out.reshape(-1, k), work)
            return out
        for i, j in shard_ops.blocks(shard, self.linear_map):
            z = self.linear_map.scores(shard.X, d, i, j)
            _kernels().softmax_hessian_product(p[i:j], shard.c[i:j], z)
            self.linear_map.pullback(shard.X, z, i, j, out)
        return out

    def _moved(self, now: SoftmaxPosition, step: SoftmaxStep) -> SoftmaxPosition | None:
        """The position after a line search; None if J does not decrease along the step."""
        d, slope = step.d, step.slope
        if not -math.inf < slope < -self.ROUNDING_SLOPE * now.risk:
            return None
        each = [self.scores[part] for part in self.design.shard_slices]
        self.executor.map(shard_ops.scores_into, self.linear_map, d, each=each)
        # lam Omega along the line: its slope at t = 0, and its second derivative
        first, second = float((self.penalty * now.w) @ d), float((self.penalty * d) @ d)
        z, p = self.free[-1]
        last: tuple[float, float, float] = (math.nan, 0.0, 0.0)

        def derivatives(t: float) -> tuple[float, float]:
            nonlocal last
            risk, in_t, in_tt = self._line(now.z, self.scores, t, z, p)
            last = t, risk, in_t + first + t * second
            return last[2], in_tt + second

        def change() -> float:
            t, risk, _ = last
            return risk - now.risk + t * (first + 0.5 * t * second)

        at_one, t = derivatives(1.0), 1.0
        if not (abs(at_one[0]) <= self.UNIT_STEP_SLOPE_RATIO * abs(slope) and change() <= 0):
            t, _ = bracketed_newton(lambda t: at_one if t == 1.0 else derivatives(t), slope, self.SLOPE_RATIO)
            if t != last[0]:
                derivatives(t)
        w = now.w + t * d
        # in rounding, J may stay the same while its slope still decreases
        if not (change() < 0 or abs(last[2]) < abs(slope)) or np.array_equal(w, now.w):
            return None
        self.free[-1] = now.z, now.p
        return SoftmaxPosition(w, z, p, last[1])


def saved_state(
    problem: Any, w: NDArray, z: NDArray, risk: float, best: Cut
) -> Callable[[], dict[str, Array]]:
    """A function that returns the state of a run at the weights w with scores z, and its best cut."""

    def state() -> dict[str, Array]:
        value, dz = problem.loss.value_grad(z, problem.y, problem.c)
        evaluation = ScoreEvaluation(dz, float(value) - shard_ops.inner(dz, z), 0.0, risk)
        point = NewtonPoint(w, z, evaluation, problem.design.adjoint(dz))
        return NewtonState(point, best, {"cg_steps": 0.0, "softmax": True}).to_arrays()

    return state


def _kernels() -> Any:
    from riskmin._numba.newton import softmax_rows  # Numba is imported by the first evaluation

    return softmax_rows
