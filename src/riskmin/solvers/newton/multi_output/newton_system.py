r"""The multi-output Newton system, :math:`(\lambda I + \sum_i x_i x_i^\top \otimes H_i)\, d = -g`.

Solved by preconditioned conjugate gradients. A better preconditioner is formed once the steps with the
current one have cost as much as forming it, and reused as long as it needs fewer steps than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.core import Array, NDArray
from riskmin.core.deadline import check_each
from riskmin.losses.block_hessian import BlockHessian
from riskmin.problem.design_operator import DesignOperator, mean_squared_norm, row_matrix
from riskmin.solvers.costs import PRODUCT_COSTS
from riskmin.solvers.newton.linear_system import LinearSystem
from riskmin.solvers.newton.multi_output import preconditioners as inverse
from riskmin.solvers.newton.multi_output.preconditioners import MultiOutputActiveRows, Solve
from riskmin.solvers.weights import feature_weights, outputs_share_weights

Norm = Callable[[NDArray], float]


class HessianInputs(NamedTuple):
    """The inputs of the Hessian: the gradient in the scores, mu, and the active rows (None for all)."""

    dz: NDArray
    mu: float
    active_rows: NDArray | None = None


class PreconditionerOption(NamedTuple):
    """A preconditioner that could be formed."""

    level: int
    """How close it is to the matrix of the system, from 0 on."""
    cost: float
    make: Callable[[MultiOutputActiveRows, NDArray], Solve]


class MultiOutputNewtonSystem(LinearSystem):
    """The linear system of one problem, for a sequence of points."""

    MAX_CG_STEPS = 500
    """Steps of conjugate gradients after which a direction is used as it is."""
    DROPPED_HESSIAN_SHARE = 1e-2
    """Rows with the smallest second derivatives are dropped, up to this share of the sum."""
    MAX_DROP_REDUCTIONS = 4
    """The number of times the share is divided by 10 because the residual is too large; then it is 0."""
    SMOOTH_CG_RESIDUAL, NONSMOOTH_CG_RESIDUAL = 0.15, 0.01
    """Residual, as a share of |g|, at which conjugate gradients stop: a smaller one saves no steps."""
    N_PRECONDITIONERS = 4
    """The number of levels of preconditioners, from 0 on."""
    DROPPED_ROWS_RESIDUAL = 0.2
    """Residual, as a share of the gradient, up to which rows may be dropped."""
    MIN_DROPPED_ROWS = 0.2
    """Rows are dropped only if they are at least this share of all: a copy of the others takes time."""
    SMOOTH_INTERCEPT_PENALTY = 1e-9
    """Artificial penalty of intercepts for smooth losses, relative to that for nonsmooth ones."""
    EXACT_MAX_COST = 10.0
    """For nonsmooth losses the exact matrix is used at once if it costs no more than this many steps: which
    rows are active at the next point depends on the residual."""
    MIN_RELATIVE_PENALTY = 1e-15
    """The smallest penalty of a weight, as a share of the sum of the second derivatives of a class."""
    REBUILD_MAX_COST = 4
    """A preconditioner that costs no more than this many steps is formed anew each time."""

    def __init__(self, design: DesignOperator, reg: Any, direct: int) -> None:
        self.design, self.reg, self.direct = design, reg, direct
        risk: Any = design.risk
        self.loss, self.linear_map = risk.loss, risk.linear_map
        self.preconditioner: Solve | None = None
        # of squared losses, one matrix of the features is the Hessian of each output: the system is solved
        self.level = int(self.loss.constant_curvature and design.shape[1] <= direct)
        """The level of the last preconditioner."""
        self.separate_sums: bool | None = None
        """Whether the sums of weights over the outputs are solved for alone; None before the first solve."""
        self.n_drop_reductions = 0
        """The number of times that too many rows were dropped."""
        self.skip_reuse = self.last_skip_reuse = 0
        """The number of solves that do not try the old preconditioner, and its last initial value."""

    def to_state(self) -> dict[str, Any]:
        """`n_drop_reductions` and `level`, as one number."""
        return {"cg_steps": float(self.N_PRECONDITIONERS * self.n_drop_reductions + self.level)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `to_state` returned."""
        self.n_drop_reductions, self.level = divmod(int(state["cg_steps"]), self.N_PRECONDITIONERS)

    @property
    def dropped_share(self) -> float:
        """The share of the second derivatives that is dropped."""
        return (
            self.DROPPED_HESSIAN_SHARE * 0.1**self.n_drop_reductions
            if self.n_drop_reductions < self.MAX_DROP_REDUCTIONS
            else 0.0
        )

    def residual_tolerance(self, g: Array, scaled_gap: float) -> float:
        """The residual norm that conjugate gradients may leave; `scaled_gap` is lam times complementarity."""
        return 0.3 * math.sqrt(scaled_gap)

    def solve(self, inputs: HessianInputs, lam: float, g: Array, tol: float) -> Array:
        """The direction d, up to a residual of norm `tol`, or a small share of that of g."""
        # the system is (diag(penalty) + sum_i x_i x_i' (x) H_i) d = -g
        weights = self._penalty_weights(g, inputs.mu)
        penalty = lam * weights
        # intercepts are improved after each step: their residual counts as that of a feature of typical size
        norm = _weighted_norm(self._penalty_weights(g, 1.0))
        g_norm = norm(g)
        # for a smooth loss, complementarity is rounding, and gives no tolerance
        cg_tol = (
            max(tol, self.NONSMOOTH_CG_RESIDUAL * g_norm) if inputs.mu else self.SMOOTH_CG_RESIDUAL * g_norm
        )
        tol, drop_tol = min(cg_tol, 0.5 * g_norm), self.DROPPED_ROWS_RESIDUAL * g_norm
        all_active = self._active_rows(inputs, inputs.active_rows)
        d, r = start = self._without_sums(g, penalty, all_active.hessian)
        while True:
            part = all_active if inputs.mu else self._without_negligible_rows(all_active, inputs)
            # nonsmooth losses have other active rows at each point
            self.preconditioner = None if inputs.mu else self.preconditioner
            d = self._descend(part, penalty, _CgRun(part, penalty, d, r, tol, norm), inputs.mu > 0)
            if part is all_active or not self.dropped_share:  # then dropped rows are not active
                return d
            # the residual of the system of all rows, which includes the error of dropped rows
            r = start[1] - penalty * (d - start[0]) - all_active.product(d)
            if norm(r) <= drop_tol:
                return d
            # continue with fewer rows dropped, from d unless only the dropped rows had limited its length
            d, r = (d, r) if norm(r) < norm(start[1]) else start
            self.n_drop_reductions += 1

    def _without_sums(self, g: Array, penalty: NDArray, hessian: BlockHessian) -> tuple[NDArray, NDArray]:
        """The direction in the sums of the weights of each column, and the right-hand side of the rest.

        Losses of classes do not depend on these sums: only penalties do, which in raw units are too small for
        a factorization of the whole matrix.
        """
        k = self.linear_map.columns
        if self.separate_sums is None:
            rest = np.abs(hessian.product(np.ones_like(hessian.diagonal), slice(None)))
            none = rest.max(initial=0.0) <= 1e-12 * hessian.diagonal.max(initial=0.0)
            self.separate_sums = bool(none) and outputs_share_weights(self.reg, k)
        if not self.separate_sums:
            return 0.0 * g, -g
        mean = np.repeat(g.reshape(-1, k).mean(axis=1), k)
        return np.divide(-mean, penalty, out=0.0 * g, where=penalty > self._negligible(hessian)), mean - g

    def _negligible(self, hessian: BlockHessian) -> float:
        """The penalty that vanishes in rounding beside the second derivatives."""
        return self.MIN_RELATIVE_PENALTY * float(hessian.diagonal.sum()) / int(self.linear_map.columns)

    def _penalty_weights(self, g: Array, mu: float) -> NDArray:
        """The factors of lam in the penalty, one per entry of w.

        Intercepts are not penalized, but those of classes without second derivatives would be undetermined:
        they get the weight of a feature of typical size, and with a smooth loss nearly none.
        """
        weights = self.reg.terms(g).square + 0.0 * g
        if self.linear_map.n_intercepts:
            weights[-self.linear_map.columns :] = self.intercept_weight * (
                1.0 if mu else self.SMOOTH_INTERCEPT_PENALTY
            )
        return np.asarray(weights)

    @cached_property
    def intercept_weight(self) -> float:
        """The artificial weight of intercepts, 1 / mean |x_i|^2."""
        assert self.design.rows is not None
        return 1 / mean_squared_norm(self.design.rows, feature_weights(self.reg, self.linear_map.columns))

    def _active_rows(self, inputs: HessianInputs, active: NDArray | None) -> MultiOutputActiveRows:
        """The active rows with their Hessian blocks; all rows if nearly all are active."""
        rows = self.design.rows
        assert rows is not None
        dz, y, c, X = inputs.dz, rows.y, rows.c, row_matrix(rows)
        if active is None or len(active) > (1 - self.MIN_DROPPED_ROWS) * len(y):
            hessian = self.loss.block_hessian(dz, y, c, inputs.mu)
            return MultiOutputActiveRows(X, hessian, self.linear_map, self.design)
        # a copy of the selected rows, in their order
        selected: Any = as_matrix(X.take(active))
        hessian = self.loss.block_hessian(dz[active], y[active], c[active], inputs.mu)
        return MultiOutputActiveRows(selected, hessian, self.linear_map, None)

    def _without_negligible_rows(
        self, all_active: MultiOutputActiveRows, inputs: HessianInputs
    ) -> MultiOutputActiveRows:
        """The active rows without the rows of the smallest Hessians, up to the dropped share of the sum."""
        size = all_active.hessian.diagonal.sum(axis=1)
        # rows by their trace of H_i; the largest prefix with at most the dropped share of the sum is dropped
        order = np.argsort(size)
        dropped = self.dropped_share * float(size.sum())
        n_dropped = int(np.searchsorted(np.cumsum(size[order]), dropped, side="right"))
        if n_dropped < self.MIN_DROPPED_ROWS * len(size):
            return all_active
        return self._active_rows(inputs, np.sort(order[n_dropped:]))

    def _descend(
        self, part: MultiOutputActiveRows, penalty: NDArray, run: _CgRun, nonsmooth: bool
    ) -> NDArray:
        """Reduce the residual below its tolerance, by preconditioners of increasing level; return d."""
        # penalties that vanish in rounding beside the second derivatives are left out
        P = np.where(penalty > self._negligible(part.hessian), penalty, 0.0)
        P = P.reshape(-1, self.linear_map.columns)
        step = inverse.cg_step_cost(part)
        options = self._options(part, P)
        # the last option is the best one: the exact matrix, unless that is too large
        if nonsmooth and options[-1].cost <= self.EXACT_MAX_COST * step:
            self.level = options[-1].level
        options = [option for option in options if option.level >= self.level] or options[-1:]
        # applying a factor of the whole matrix costs two triangular solves
        triangular = PRODUCT_COSTS.triangular_entry * penalty.size**2 if self.level == 3 else 0.0
        reuse_step = step + triangular
        if self.preconditioner is not None and options[0].cost > self.REBUILD_MAX_COST * reuse_step:
            self.skip_reuse -= 1
            if self.skip_reuse < 0:
                # as many steps as a new preconditioner would cost
                if run.run(self.preconditioner, _step_limit(options[0].cost / reuse_step)):
                    self.last_skip_reuse = 0
                    return run.d
                # back off: skip the next 1, then 3, then 7, ... solves while the attempts fail
                self.last_skip_reuse = self.skip_reuse = 2 * self.last_skip_reuse + 1
        for option, better in zip_longest(options, options[1:]):
            self.level, self.preconditioner = option.level, self._centered(option.make(part, P))
            # steps are limited by the cost of the next better preconditioner
            limit = self.MAX_CG_STEPS if better is None else _step_limit(better.cost / step)
            if run.run(self.preconditioner, limit):
                break
        return run.d

    def _centered(self, solve: Solve) -> Solve:
        """The preconditioner without the sums of the weights of each column, if they are solved for alone."""
        if not self.separate_sums:
            return solve
        k = self.linear_map.columns

        # the projection is applied on both sides, so that the preconditioner stays symmetric
        def centered(r: NDArray) -> NDArray:
            R = r.reshape(-1, k)
            return np.asarray(R - R.mean(axis=1, keepdims=True)).reshape(-1)

        return lambda r: centered(solve(centered(r)))

    def _options(self, part: MultiOutputActiveRows, P: NDArray) -> list[PreconditionerOption]:
        """The preconditioners from cheap to exact, without any that costs more than a better one."""
        rows = PreconditionerOption(
            3, inverse.row_solver_cost(part, P, self.direct), inverse.exact_row_solver
        )
        options = [PreconditionerOption(0, 0.0, inverse.diagonal_preconditioner)]
        # more features than `direct`: no matrix by features
        if part.X.shape[1] > self.direct:
            options.append(rows)
        else:
            gram_cost, inverses = inverse.gram_cost(part), inverse.inverses_cost(part)
            cost = inverse.feature_solver_cost(part, self.direct)
            features = PreconditionerOption(3, cost, inverse.exact_feature_solver)
            options += [
                PreconditionerOption(1, gram_cost + inverses, inverse.shared_preconditioner),
                PreconditionerOption(2, P.shape[1] * gram_cost + inverses, inverse.per_class_preconditioner),
                min(rows, features, key=lambda option: option.cost),
            ]
        return [
            option
            for i, option in enumerate(options)
            if option.cost < min((better.cost for better in options[i + 1 :]), default=np.inf)
        ]


class _CgRun:
    """Conjugate gradients that can continue with another preconditioner; d is always a descent direction."""

    DIVERGED_RESIDUAL_RATIO = 1e10
    """Growth of the residual that only rounding explains."""

    def __init__(
        self, part: MultiOutputActiveRows, penalty: NDArray, d: NDArray, r: NDArray, tol: float, norm: Norm
    ) -> None:
        self.part, self.penalty, self.d, self.r, self.tol, self.norm = part, penalty, d, r, tol, norm

    def run(self, solve: Solve, max_steps: int) -> bool:
        """Make at most `max_steps` steps; return whether the residual is small, or only rounding is left."""
        residual = self.norm(self.r)
        # best: the smallest residual norm so far, with its d and r
        diverged, best = self.DIVERGED_RESIDUAL_RATIO * residual, (residual, self.d, self.r)
        if residual <= self.tol:
            return True
        # s = M^-1 r for the preconditioner M, rho = r' M^-1 r
        s = solve(self.r)
        direction, rho = s, float(self.r @ s)
        for _ in check_each(range(max_steps)):
            image = self.penalty * direction + self.part.product(direction)
            curvature = float(direction @ image)
            if not (curvature > 0 and rho > 0):
                _, self.d, self.r = best
                return True  # nothing but rounding is left
            step = rho / curvature
            self.d, self.r = self.d + step * direction, self.r - step * image
            residual = self.norm(self.r)
            best = min(best, (residual, self.d, self.r), key=lambda point: point[0])
            if residual <= self.tol:
                return True
            # in directions without second derivatives and penalty, steps are rounding of any length
            if not residual <= diverged:
                _, self.d, self.r = best
                return True
            s = solve(self.r)
            rho, last_rho = float(self.r @ s), rho
            direction = s + (rho / last_rho) * direction
        return False


def _weighted_norm(weights: NDArray) -> Norm:
    """The dual norm |g|, |g|^2 = sum_j g_j^2 / weights_j; stationarity is |g|^2 / (2 lam).

    Equal weights are left out.
    """
    scale = 1.0 if np.ptp(weights) == 0 else 1 / np.sqrt(np.where(weights > 0, weights, 1.0))

    def norm(g: NDArray) -> float:
        scaled = scale * g
        return math.sqrt(float(scaled @ scaled))

    return norm


def _step_limit(steps: float) -> int:
    return int(min(max(steps, 2.0), MultiOutputNewtonSystem.MAX_CG_STEPS))
