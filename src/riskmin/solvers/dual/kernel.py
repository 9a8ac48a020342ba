r"""Dual Gauss-Seidel with Mercer kernels (Zhang 2002, equation 15), one block of rows at a time.

.. math:: \min_\gamma\; D(\gamma) = \tfrac1{2\lambda} \gamma^\top K \gamma + \sum_i c_i\, l^*(\gamma_i / c_i),
          \qquad f = -\tfrac1\lambda \sum_i \gamma_i\, k(x_i, \cdot),

subject to :math:`\sum_i \gamma_i = 0` with an intercept. The rows with the largest gains form a block; its
part of K fits into cache, where exact steps solve it. Then the scores of all rows are updated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import Array, Iterate, NDArray, Solver
from riskmin.core.deadline import chunk_ranges
from riskmin.core.messages import check_whole
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.certificate import lowered_cut
from riskmin.problem.kernel.mercer import KernelMatrix
from riskmin.problem.kernel.rkhs import SQRT2, RkhsMap, as_pair, coefficients
from riskmin.problem.objective import Objective
from riskmin.solvers.dual.kernel_conjugates import DualTerms, ExactTerms, NewtonTerms, has_conjugate
from riskmin.solvers.state_checks import check_row_order, check_state

_kernels = lazy_module("dual.kernel_sweep")


@dataclass
class DualPoint:
    """A dual point: gamma, its scores z = -K gamma / lam, the last block, and the size of the next."""

    gamma: NDArray
    z: NDArray
    rows: NDArray
    size: int


@dataclass(frozen=True)
class KernelDual(Solver):
    r"""Dual Gauss-Seidel for kernels: exact steps on blocks of rows, for every loss with a conjugate.

    For losses whose conjugate is quadratic on an interval the steps are exact; for the others, such as
    `Logistic`, they are safeguarded Newton steps. With an intercept, rows are updated in pairs, so that its
    constraint always holds. Rows of K are computed when a block needs them, and stored in the cache of
    `kernel_risk`.

    Parameters
    ----------
    block : int
        Maximum number of rows per block; blocks are smaller where few steps solve them.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002. R.-E. Fan, P.-H. Chen, C.-J. Lin, Working set selection using second order information for training
    support vector machines, JMLR 6, 2005.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import KernelDual, Objective, Rbf, kernel_risk, minimize
    >>> X, y = np.array([[-1.0], [0.0], [1.0]]), np.array([-1.0, 1.0, -1.0])
    >>> J = Objective(*kernel_risk(X, y, "hinge", Rbf(gamma=1.0), fit_intercept=True), lam=0.01)
    >>> minimize(J, KernelDual(), tol=1e-6).status
    'converged'
    """

    block: int = 1024

    def __post_init__(self) -> None:
        check_whole(self, "block")

    def supports(self, obj: Objective) -> str | None:
        """None for a `kernel_risk` whose loss has a conjugate."""
        if not isinstance(obj.risk.linear_map, RkhsMap):
            return "KernelDual minimizes a kernel_risk: use Auto for other risks"
        if not has_conjugate(obj.risk.loss):
            return f"{type(obj.risk.loss).__name__} gives no conjugate, as KernelDual needs: use Bundle"
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the functions of the dual points."""
        run = _KernelDualRun.create(self, obj)
        return run.iterates(run.start(-obj.lam * coefficients(w0)))

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        run = _KernelDualRun.create(self, obj)
        n, limits = run.gram.shape[0], {"rows": run.gram.shape[0], "size": 2**62}
        check_state(state, {"gamma": "n", "rows": "m", "size": "1"}, limits, n=n)
        check_row_order(state["rows"], n)
        steps = run.iterates(
            run.dual_point(state["gamma"], state["rows"].astype(np.intp), int(state["size"][0]))
        )
        # The first iterate repeats the saved one.
        next(steps)
        return steps


@dataclass
class _KernelDualRun:
    """A kernel problem in dual form."""

    FIRST_BLOCK_ROWS = 256
    """Size of the first block: small blocks are cheap where few steps solve them."""
    BLOCK_TOL_RATIO = 0.1
    """Solve a block until its largest violation has fallen to this fraction."""

    obj: Objective
    gram: KernelMatrix
    model: ExactTerms | NewtonTerms
    paired: bool
    """Whether an intercept adds the constraint sum(gamma) = 0, so that rows move in pairs."""
    block: int

    @classmethod
    def create(cls, solver: KernelDual, obj: Objective) -> _KernelDualRun:
        solver.check_supports(obj)
        risk: Any = obj.risk
        (shard,) = risk.executor.shards  # that of kernel_risk
        dual = risk.loss.interval_conjugate(shard.y)
        model = NewtonTerms(risk.loss, shard.y, shard.c) if dual is None else ExactTerms(dual, shard.c)
        block = min(solver.block, shard.X.shape[0])
        return cls(obj, shard.X, model, obj.risk.intercept.profiled, block)

    # ------------------------------------------------------------ points
    def dual_point(
        self, gamma: NDArray, rows: NDArray | None = None, size: int = FIRST_BLOCK_ROWS
    ) -> DualPoint:
        """Return the dual point of gamma, with its scores."""
        z = self.gram.product(gamma) / -self.obj.lam
        return DualPoint(
            gamma, z, np.empty(0, dtype=np.intp) if rows is None else rows, min(size, self.block)
        )

    def start(self, gamma: NDArray) -> DualPoint:
        """Return the point if it is feasible; else zero, or a scaled gradient if zero has infinite slopes."""
        t = self.model.quadratic_model(gamma)
        inside = bool(((gamma >= t.lower) & (gamma <= t.upper)).all() and np.isfinite(t.shift).all())
        sums_to_zero = not self.paired or abs(gamma.sum()) <= CUT_ROUNDING * abs(gamma).sum()
        if inside and sums_to_zero:
            return self.dual_point(gamma)
        if isinstance(self.model, ExactTerms):
            return self.dual_point(np.zeros_like(gamma))
        # The gradient at zero, scaled to the best bound: unscaled, its scores may be enormous.
        _, _, cut = self.obj(np.zeros(2 * len(gamma)))
        slope = self.obj.reg.scale(cut, self.obj.lam) * SQRT2 * cut.a
        # The first half of the slope pair is gamma, the second K gamma = -lam z.
        none = np.empty(0, dtype=np.intp)
        size = min(self.FIRST_BLOCK_ROWS, self.block)
        return DualPoint(slope[: len(gamma)], slope[len(gamma) :] / -self.obj.lam, none, size)

    def iterate(self, p: DualPoint, info: dict[str, float]) -> Iterate:
        """Return the function of a dual point, with the cut that the point proves."""
        lam, saved = self.obj.lam, {"gamma": p.gamma, "rows": p.rows, "size": np.array([p.size])}
        # The cut of slope gamma has the offset -sum_i c_i l*(gamma_i / c_i).
        total, size = self.model.value(p.gamma)
        # A slope is the pair (gamma, K gamma), a function the pair (z, coefficients), with K gamma = -lam z.
        cut = lowered_cut(as_pair(p.gamma, -lam * p.z), -total, size)
        w = as_pair(p.z, p.gamma / -lam)
        # The scores are part of w: evaluating the risk needs no product with K.
        risk, _ = self.obj.cursor(w).risk.value_slope(0.0)
        return Iterate(w, risk + lam * self.obj.reg.value(w), cut, info, saved.copy)

    # ------------------------------------------------------------ steps
    def iterates(self, p: DualPoint) -> Iterator[Iterate]:
        """Solve blocks indefinitely; evaluate the bounds, as expensive as several blocks, every few."""
        n_steps = n_blocks = 0
        while True:
            yield self.iterate(p, {"blocks": n_blocks, "steps": n_steps, "rows": self.gram.n_rows_computed})
            for _ in range(max(1, self.gram.shape[0] // (8 * p.size))):
                block_steps = self.solve_block(p)
                if not block_steps:
                    yield self.iterate(
                        p, {"blocks": n_blocks, "steps": n_steps, "rows": self.gram.n_rows_computed}
                    )
                    return
                n_steps, n_blocks = n_steps + block_steps, n_blocks + 1

    def solve_block(self, p: DualPoint) -> int:
        """Choose a block and solve it; return the number of steps, 0 at the optimum."""
        t = self.model.quadratic_model(p.gamma)
        rows = self.choose_block(p, t)
        if not len(rows):
            return 0
        lam = self.obj.lam
        H = self.gram.block(rows) / lam
        diagonal, workspace = H.diagonal().copy(), np.empty((3 if self.paired else 4, len(rows)))
        old, scores, total_steps = p.gamma[rows], p.z[rows], 0
        # g = shift + K gamma / lam: the gradient of the dual, without curvature and absolute terms.
        gamma, g = old.copy(), t.shift[rows] - scores
        step = _kernels().pair_steps if self.paired else _kernels().single_steps
        # One round for quadratic conjugates; several Newton rounds for the others.
        for k in range(self.model.rounds):
            if k:
                t = self.model.quadratic_model(_with_values(p.gamma, rows, gamma))
                g = t.shift[rows] - scores
            part, before, new = t.take_rows(rows), g.copy(), gamma.copy()
            args = (
                H,
                diagonal,
                g,
                new,
                part.lower,
                part.upper,
                part.absolute,
                part.curvature,
                self.BLOCK_TOL_RATIO,
            )
            n_steps = _run_steps(step, args, workspace, 50 * self.block)
            # The kernel updates g by H times the step, so change = H direction.
            direction, change = new - gamma, g - before
            step_size = self.model.step_length(
                rows, gamma, direction, -float(scores @ direction), float(direction @ change)
            )
            if not n_steps or not step_size:
                break
            total_steps += n_steps
            gamma = new if step_size == 1.0 else gamma + step_size * direction
            scores = scores - step_size * change
        if self.paired:
            gamma = self.restore_zero_sum(p, rows, gamma, t)
        moved = np.flatnonzero(gamma != old)
        if not len(moved):
            return 0
        # z -= K (gamma - old) / lam, by the rows of K that moved.
        self.gram.add_rows(rows[moved], (gamma - old)[moved] / -lam, p.z)
        p.gamma, p.rows = _with_values(p.gamma, rows, gamma), rows
        # A block that many steps solved may be larger next time.
        p.size = min(max(8 * total_steps, self.FIRST_BLOCK_ROWS // 2), self.block)
        return total_steps

    def restore_zero_sum(self, p: DualPoint, rows: NDArray, gamma: NDArray, t: DualTerms) -> NDArray:
        """Return the block with the sum of all gamma restored to zero: rounding errors accumulate."""
        excess = math.fsum(_with_values(p.gamma, rows, gamma))
        slack = np.minimum(gamma - t.lower[rows], t.upper[rows] - gamma)
        # The correction must not move a row away from its breakpoint at 0.
        slack = np.where(t.absolute[rows] > 0, np.minimum(slack, abs(gamma)), slack)
        k = int(np.argmax(slack))
        return _with_values(gamma, np.array([k]), gamma[k] - excess) if slack[k] > abs(excess) else gamma

    def choose_block(self, p: DualPoint, t: DualTerms) -> NDArray:
        """Return the rows with the largest gains, and up to half of the last block inside its bounds."""
        slope = t.shift + t.curvature * p.gamma - p.z
        # One-sided derivatives of the dual in gamma_i, upwards and downwards.
        up = slope + np.where(p.gamma >= 0, t.absolute, -t.absolute)
        down = slope + np.where(p.gamma > 0, t.absolute, -t.absolute)
        can_rise, can_fall = p.gamma < t.upper, p.gamma > t.lower
        level = 0.0
        if self.paired:
            min_up = np.min(up, initial=np.inf, where=can_rise)
            max_down = np.max(down, initial=-np.inf, where=can_fall)
            # The slope of a pair step is up_i - down_j: if none is negative, the dual is optimal.
            if not max_down > min_up:
                return np.empty(0, dtype=np.intp)
            # Estimate of the multiplier of the sum constraint: the middle of the violating interval.
            level = 0.5 * (min_up + max_down)
        # Second derivative of the dual in gamma_i; the tiny term guards against division by zero.
        curvature = self.gram.diagonal / self.obj.lam + t.curvature + 1e-300
        # Gain of an exact step in one coordinate: slope^2 / (2 curvature), up to the factor.
        rise = np.where(can_rise, np.maximum(level - up, 0.0), 0.0) ** 2 / curvature
        fall = np.where(can_fall, np.maximum(down - level, 0.0), 0.0) ** 2 / curvature
        # A pair needs a row that rises and one that falls: half of the new rows each.
        least = 2 if self.paired else 1
        size = max(p.size, least)
        carried = p.rows[(can_rise & can_fall)[p.rows]][: size - max(size - size // 2, least)]
        n_new = size - len(carried)
        if self.paired:
            largest = [_largest(rise, n_new // 2), _largest(fall, n_new - n_new // 2)]
            return np.unique(np.concatenate([*largest, carried]))
        return np.unique(np.concatenate([_largest(np.maximum(rise, fall), n_new), carried]))


def _run_steps(step: Any, args: tuple[Any, ...], workspace: NDArray, max_steps: int) -> int:
    """Run at most `max_steps` steps of a kernel, checking the deadline in between; return their number."""
    # The kernel stores its target violation in `goals` at the first step, for the calls that follow.
    goals, done = np.zeros(1), 0
    # 4 elementary operations of one step, per row of the block
    for i, j in chunk_ranges(0, max_steps, 4 * max_steps * len(args[0])):
        done = step(*args, i, j, goals, *workspace)
        if done < j:
            break
    return int(done)


def _largest(gain: NDArray, count: int) -> NDArray:
    """Return the `count` rows with the largest positive gains."""
    rows = np.flatnonzero(gain > 0)
    if len(rows) <= count:
        return rows
    largest: NDArray = rows[np.argpartition(gain[rows], len(rows) - count)[len(rows) - count :]]
    return largest


def _with_values(gamma: NDArray, rows: NDArray, values: NDArray) -> NDArray:
    """Return a copy of gamma with other values in some rows."""
    new = gamma.copy()
    new[rows] = values
    return new
