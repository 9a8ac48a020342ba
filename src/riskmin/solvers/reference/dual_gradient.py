r"""Dual ascent by gradient steps: Algorithm 1 of Zhang (2002) with any transfer function.

The step (11) is the same for every regularizer,

.. math:: u_i \leftarrow u_i - \eta_i \tfrac{\lambda}{c_i} \bigl(\nabla l^*(u_i, y_i) - x_i^\top w\bigr),
          \qquad w = \nabla\Omega^*(v), \quad v = -\tfrac1\lambda \sum_i c_i u_i x_i,

clipped to the domain of :math:`l^*`. The rate :math:`\eta_i` is given, or that of Newton's method on a
parabola that bounds the conjugate of the regularizer along :math:`x_i`, so that each row improves the dual.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import Array, Cut, Iterate, NDArray, Shard, Solver
from riskmin.core.deadline import chunk_ranges
from riskmin.core.messages import check_whole
from riskmin.core.registry import repr_of_changes
from riskmin.problem.certificate import multiplier_cut
from riskmin.problem.objective import Objective
from riskmin.regularizers import L2
from riskmin.solvers.base import BestOnSegments, local_rows_of, local_rows_reason
from riskmin.solvers.reference.gradient_updates import RowwiseAscent
from riskmin.solvers.reference.transfer import (
    RowConjugate,
    conjugate_for,
    conjugate_reason,
    inverse_metric_factor,
    row_arrays,
    transfer_for,
    transfer_reason,
)
from riskmin.solvers.state_checks import check_state

_kernels = lazy_module("dual.gradient_sweep")


@dataclass
class GradientAscent:
    """State of a run: the dual variables u, and the data of a pass over the rows."""

    LINEAR_OPS_PER_ENTRY, NONLINEAR_OPS_PER_ENTRY = 32, 128
    """Elementary operations per stored entry of a visited row, with a linear transfer function; and with
    others, which take powers and several trials."""
    CURVATURE_SAMPLE_ROWS = 256
    """Number of rows from which the mean curvature is estimated."""

    solver: Any
    obj: Objective
    shard: Shard
    loss: Any
    conjugate: RowConjugate
    reg: Any
    X: tuple[NDArray, NDArray, NDArray, int]
    """Rows as the kernel takes them: indptr, indices, data, dense."""
    C: NDArray
    """Unpenalized directions of `Equality`, one per row."""
    metric: NDArray | None
    """B with K^-1 = B B', if Omega = w' K w / 2: the kernel takes the rows x B and v B, with K = 1."""
    P: NDArray
    """Scores of the unpenalized directions, one column each; an intercept, if any, is the last, a column
    of ones."""
    u: NDArray
    rowwise: RowwiseAscent | None
    """Set for losses or regularizers without a kernel."""
    epoch: int = 0
    _last_pull_back: tuple[NDArray, NDArray] | None = None
    """The last dual variables u and X'(c u), cached because passes over X are expensive."""

    @classmethod
    def create(cls, solver: Any, obj: Objective, w0: Array, state: dict[str, Array] | None) -> GradientAscent:
        """Start from the dual variables of a state, or from the slopes of the loss at w0."""
        shard, loss, intercept = local_rows_of(obj.risk, solver)
        C = obj.reg.free_directions
        reg: Any = obj.reg if C is None else obj.reg.reg  # type: ignore[attr-defined]
        conjugate = conjugate_for(loss, shard.y)
        n, p = shard.X.shape
        # Unpenalized directions come from the regularizer, an unpenalized intercept from the risk.
        C = np.zeros((0, p)) if C is None else C
        # One column of scores per unpenalized direction, then a column of ones for the intercept.
        P = np.ones((n, len(C) + intercept))
        P[:, : len(C)] = np.transpose([_scores(shard, row) for row in C]) if len(C) else 0.0
        metric = inverse_metric_factor(reg, p) if conjugate.kernel is not None else None
        X = row_arrays(shard.X, metric)
        has_kernel = conjugate.kernel is not None and (metric is not None or transfer_for(reg, p) is not None)
        rowwise = None if has_kernel else RowwiseAscent(X, reg, loss, conjugate, shard.y, np.zeros(n))
        self = cls(solver, obj, shard, loss, conjugate, reg, X, C, metric, P, conjugate.start, rowwise)
        if state is not None:
            shapes = {"u": "n", "w?": "d", "epoch?": "1"}
            check_state(state, shapes, {"epoch": 2**62}, n=n, d=obj.risk.dim)
            self.u, self.epoch = np.array(state["u"], dtype=float), int(state.get("epoch", [0])[0])
        elif self.adaptive_steps and not len(C):
            self.u = self._slopes(w0, self.initial_intercept(w0))
        return self

    @property
    def adaptive_steps(self) -> bool:
        """Whether step sizes are adaptive; with a given rate or damping they are those of the paper."""
        return self.solver.rate is None and self.solver.damping == 1

    def initial_intercept(self, w0: Array) -> float:
        """Return the best intercept for w0; 0 without an intercept."""
        return float(self.obj.risk.best_intercept(w0))

    def _slopes(self, w0: Array, b: float) -> NDArray:
        """Return the slopes at w0, scaled to the best bound: 0 is in every domain."""
        y, c = self.shard.y, self.shard.c
        # Weights of one, since u_i is the slope of the unweighted loss.
        _, slopes = self.loss.value_grad(_scores(self.shard, w0) + b, y, np.ones(len(y)))
        u = np.clip(slopes, self.conjugate.lower, self.conjugate.upper)
        s = self.obj.reg.scale(self.cut(u), self.obj.lam)
        return np.where(c > 0, s * u, self.conjugate.start)

    def scores(self, w: Array) -> NDArray:
        """Return X @ w."""
        return _scores(self.shard, w)

    def v(self) -> NDArray:
        """Return the argument of the transfer function."""
        return np.asarray(-1 / self.obj.lam * self._pull_back(self.u))

    def _pull_back(self, u: NDArray) -> NDArray:
        """Return sum_i c_i u_i x_i."""
        if self._last_pull_back is None or self._last_pull_back[0] is not u:
            out = np.zeros(self.shard.X.shape[1])
            self.shard.X.pullback(self.shard.c * u, 0, len(u), out)
            self._last_pull_back = u, out
        return self._last_pull_back[1]

    def constraint_violation(self) -> NDArray:
        """Return -P'(c u) / lam, the violation of the linear constraints."""
        return np.asarray(-1 / self.obj.lam * ((self.shard.c * self.u) @ self.P))

    def sweep(self, s: NDArray, rho: float) -> tuple[NDArray, NDArray]:
        """Make one pass over the rows; return v and the constraint violation, recomputed after it."""
        solver, n = self.solver, len(self.u)
        # Seeded by the number of the pass, so that a resumed run visits the rows in the same order.
        rng = np.random.default_rng([solver.seed, self.epoch])
        order = rng.permutation(n) if solver.shuffle else np.arange(n)
        # A rate of 0 selects Newton's bound.
        weights, step_rule = self.shard.c / self.obj.lam, (float(solver.rate or 0.0), float(solver.damping))
        u, v, constraints = self.u.copy(), self.v(), (self.P, s, self.constraint_violation(), rho)
        if self.rowwise is not None:
            self.rowwise.ascend(order, weights, u, step_rule, v, constraints)
        else:
            reg, state = self._kernel_state(v)
            args = self.X, self.conjugate.kernel, reg, state, constraints
            ops_per_entry = (
                self.LINEAR_OPS_PER_ENTRY if reg[0] == _kernels().LINEAR else self.NONLINEAR_OPS_PER_ENTRY
            )
            # The kernel is called on ranges of rows so that deadlines are checked in between.
            for i, j in chunk_ranges(0, n, ops_per_entry * (n + len(self.X[2]))):
                _kernels().ascend(order[i:j], weights, u, step_rule, *args, i == 0)
        # v and the violation were updated row by row: recompute them, so that rounding does not accumulate.
        self.u, self.epoch = u, self.epoch + 1
        return self.v(), self.constraint_violation()

    def _kernel_state(self, v: NDArray) -> tuple[Any, Any]:
        """Return the transfer function and the arrays in which the kernel keeps its state."""
        longest = int(np.diff(self.X[0].astype(np.int64)).max(initial=0))
        reg = self.reg if self.metric is None else L2()
        v = v if self.metric is None else v @ self.metric
        return transfer_for(reg, len(v)), (v, np.zeros(len(v)), np.zeros(4), np.zeros(longest))

    def mean_curvature(self, v: NDArray) -> float:
        """Return the mean derivative of the scores of some rows when v moves along them."""
        # x_i' H x_i, with H the Hessian of Omega* at v; kappa estimates c_i / lam times that.
        rows = np.flatnonzero(self.shard.c > 0)[: self.CURVATURE_SAMPLE_ROWS]
        if self.rowwise is not None:
            return float(np.mean(self.rowwise.kappa[rows] * self.obj.lam / self.shard.c[rows]))
        return float(_kernels().mean_curvature(rows, self.X, *self._kernel_state(v)))

    def cut(self, u: NDArray, size: float = 0.0) -> Cut:
        """Return the cut of dual variables u; `size` bounds further scores that enter its rounding error."""
        conjugate = self.loss.conjugate(self.shard.y)
        return multiplier_cut(self._pull_back(u), conjugate, u, self.shard.c, z=size)

    def snapshot(self, **extra: Any) -> Callable[[], dict[str, Array]]:
        """Return a function that builds the state to resume from."""
        u, epoch = self.u, self.epoch
        return lambda: {"u": u, "epoch": np.array([epoch])} | {k: np.atleast_1d(a) for k, a in extra.items()}


def _scores(shard: Shard, w: Array) -> NDArray:
    return np.asarray(shard.X.scores(np.asarray(w, dtype=float), 0, shard.X.shape[0]))


def _unconstrained_iterates(run: GradientAscent, w: Array | None) -> Iterator[Iterate]:
    """Yield the iterates of a run without constraints, from the best point so far, if there is one."""
    no_multipliers, best = np.zeros(0), BestOnSegments(run.obj, w)
    while True:
        before = run.u
        # A rate that is too large diverges to infinity, which ends the run.
        with np.errstate(all="ignore"):
            v, _ = run.sweep(no_multipliers, 0.0)
            w = run.reg.conjugate_grad(v)
        if not (np.isfinite(run.u).all() and np.isfinite(w).all()):
            return
        # With the settings of the paper, the reported point is w itself, not the best on the segment.
        w, value = best.towards(w) if run.adaptive_steps else (w, run.obj.value(w))
        change = float(np.abs(run.u - before).max(initial=0.0))
        yield Iterate(w, value, run.cut(run.u), {"change": change}, run.snapshot(w=w))
        # No dual variable moved in a pass: the dual is optimal in this precision.
        if change == 0.0:
            return


@dataclass(frozen=True, repr=False)
class GradientSteps(Solver):
    """The settings of passes over the rows, and the checks that both methods of the paper share."""

    rate: float | None = None
    damping: float = 1.0
    shuffle: bool = True
    seed: int = 0

    __repr__ = repr_of_changes

    def __post_init__(self) -> None:
        # None stands for Newton's bound.
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be a number above 0, not {self.rate}")
        if not 0 < self.damping < math.inf:
            raise ValueError(f"damping must be a number above 0, not {self.damping}")
        check_whole(self, "seed", 0)

    def supports(self, obj: Objective) -> str | None:
        """None for local rows, a loss with a conjugate, and a regularizer with a transfer function."""
        free: Any = obj.reg if obj.reg.free_directions is not None else None
        if reason := local_rows_reason(self, obj):
            if free is None:
                return reason
            name = type(obj.reg).__name__
            return (
                f"{name} needs local rows, and a loss that is a sum over rows of one score: use {free.reg!r}"
            )
        shard, loss, intercept = local_rows_of(obj.risk, self)
        reg, constrained = (obj.reg, intercept) if free is None else (free.reg, True)
        return (
            conjugate_reason(self.name, loss, shard.y)
            or transfer_reason(self.name, reg)
            or self._constraints_reason(constrained)
        )

    @abstractmethod
    def _constraints_reason(self, constrained: bool) -> str | None:
        """Why a problem with or without linear constraints of the dual is not for this method."""

    @abstractmethod
    def _iterates(self, run: GradientAscent, w0: Array, saved: dict[str, Array]) -> Iterator[Iterate]:
        """The iterates of a run."""

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield one iterate per pass over the rows; with adaptive steps, the slopes at w0 are the start."""
        self.check_supports(obj)
        return self._iterates(GradientAscent.create(self, obj, w0, None), w0, {})

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        self.check_supports(obj)
        w = state.get("w", np.zeros(obj.risk.dim))
        return self._iterates(GradientAscent.create(self, obj, w, state), w, state)

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from the dual variables of a run on the same risk: its cut is valid for every lam."""
        self.check_supports(obj)
        saved = {"u": state["u"]}
        return self._iterates(GradientAscent.create(self, obj, state["w"], saved), state["w"], saved)


@dataclass(frozen=True, repr=False)
class DualGaussSeidel(GradientSteps):
    r"""The Gauss-Seidel method of Zhang (2002, Algorithm 1): gradient steps, with any transfer function.

    One row after the other takes the step (11) of the paper, for any loss with a conjugate and any
    regularizer with a transfer function :math:`\nabla\Omega^*`, such as `Elastic`, `Entropy` and `QNorm`. By
    default, the length of a step is Newton's on a parabola that bounds the conjugate of the regularizer, so
    that each row improves the dual. With a `rate` or a `damping`, all steps are those of the paper.

    For `L2` and `Quadratic`, whose conjugate is a parabola along a row, steps are exact: they minimize (13)
    with :math:`c_1 = \tfrac{c_i}\lambda x_i^\top K^{-1} x_i` and :math:`c_2 = x_i^\top w` (14). An intercept
    needs `AugmentedLagrangian`.

    Parameters
    ----------
    rate : float, optional
        Learning rate, the paper's eta; Newton's bound by default.
    damping : float
        Multiple t of a step that is taken, above 0. Below 2 each row improves the dual. From 2 on, as in
        figure 4 of the paper for t = 10, it need not: with bounded dual variables, such as those of `Hinge`,
        the steps oscillate between the bounds, the best cut so far still proves a gap, and the run may end
        as ``max_iter`` or ``stalled``; with unbounded ones (`Squared`) it may diverge, and ends then.
    shuffle : bool
        Visit the rows in a new random order in each pass, else in the given order.
    seed : int
        Seed of the random orders.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import DualGaussSeidel, Elastic, Hinge, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> J = Objective(linear_risk(X, y, Hinge()), Elastic(), lam=0.01)
    >>> minimize(J, DualGaussSeidel(), tol=1e-6).status
    'converged'
    """

    def _constraints_reason(self, constrained: bool) -> str | None:
        if constrained:
            return (
                "DualGaussSeidel has no intercept and no unpenalized directions: use AugmentedLagrangian or "
                "Bundle"
            )
        return None

    def _iterates(self, run: GradientAscent, w0: Array, saved: dict[str, Array]) -> Iterator[Iterate]:
        return _unconstrained_iterates(run, saved.get("w"))
