r"""Dual coordinate ascent by exact steps, for L2.

A sweep visits the active rows. A check, every few sweeps, is one pass over X, as expensive as an oracle call:
the scores give J(w), the dual variables the cut, and both together the rows to skip until the next check.

An unpenalized intercept b is found by the proximal point method: with :math:`\tfrac\rho2 (b - b_0)^2` around
a center :math:`b_0`, it is the weight of one more column, :math:`b = b_0 - \tfrac1\rho \sum_i c_i u_i`. After
a sweep the center moves to b. A check changes the dual variables so that :math:`\sum_i c_i u_i = 0`, as the
cut of :math:`\min_b R(w, b)` requires, and takes J at the best b.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Shard
from riskmin.losses import Logistic
from riskmin.numerics.univariate import Tangent, best_tangent, zero_slope_weights
from riskmin.problem.certificate import balanced, lowered_cut
from riskmin.problem.intercept import bracket_intercept, refine_intercept
from riskmin.problem.objective import Objective
from riskmin.solvers.dual.row_state import RowState, check_kernels, rng_state, scale_of, sweep_kernels
from riskmin.solvers.state_checks import check_row_order, check_state

CHECK_AT_SLOPE_RATIO = 0.1
"""Check also once the range of slopes has fallen to this fraction of that at the last check."""
MAX_ENTRIES_BETWEEN_CHECKS = 3e8
"""Maximum number of stored entries of X read between two checks: about one second."""


def exact_steps_reason(rows: str, obj: Objective) -> str | None:
    """Why there are no exact steps for an objective, and an alternative; None if there are."""
    risk: Any = obj.risk
    loss, reg, y = risk.loss, obj.reg, risk.row_metadata.y[:1]
    # Exact steps exist for conjugates that are quadratic on an interval, and for the logistic loss.
    if reg.diagonal and (isinstance(loss, Logistic) or loss.interval_conjugate(y) is not None):
        return None
    if loss.conjugate(y) is None:
        return f"{type(loss.chosen).__name__} gives no conjugate, which dual methods need: use Bundle"
    return (
        f"{rows}DualCoordinateAscent takes exact steps, which need L2() and a loss with a "
        f"piecewise quadratic conjugate, or Logistic(), not {loss!r} with {reg!r}: "
        f"use Auto{' or Bundle' if rows else ', or DualGaussSeidel with a transfer function'}"
    )


@dataclass
class ExactAscent(RowState):
    """State of a run by exact steps on all rows, with the w of their dual variables."""

    CHECK_SPACING_SHARE = 0.3
    """Visits between two checks, as a share of all visits before, at least one epoch: a check costs about as
    much as an epoch."""
    INTERCEPT_COLUMN_SHARE = 0.05
    """lam / rho of the proximal term of an intercept, relative to the mean squared norm of the rows: smaller
    ones need more moves of the center, larger ones slow the steps of the rows down."""
    INTERCEPT_GAP_SHARE = 0.05
    """A check minimizes J over b to this fraction of the gap."""

    solver: Any
    obj: Objective
    w: NDArray
    visits: float = 0.0
    """Visits to rows so far."""

    @classmethod
    def for_shard(cls, solver: Any, obj: Objective, shard: Shard, loss: Any) -> Self:
        """Return the run on the rows of a shard."""
        scale = scale_of(obj.reg, shard.X.shape[1])
        share = cls.INTERCEPT_COLUMN_SHARE if obj.risk.intercept.profiled else 0.0
        rng = rng_state(solver.seed)
        state = RowState.create(shard, loss, scale, obj.lam, rng, share, obj.risk.executor)
        return cls(**vars(state), solver=solver, obj=obj, w=np.zeros(shard.X.shape[1]))

    def start(self, w0: Array, u0: Array | None = None) -> Iterator[Iterate]:
        """Start from given dual variables, or from the slopes of the loss at w0, scaled to the best bound."""
        w0 = np.array(w0, dtype=float)
        start = u0
        if self.has_intercept:
            slopes = self._start_intercept(w0)
            start = slopes if u0 is None else u0
        if start is not None:
            self.set_duals(start)
        value, _, u, cut = self._evaluate_cut(w0, fresh=start is None)
        s = self.obj.reg.scale(cut, self.obj.lam) if u0 is None else 1.0
        if u0 is None:
            # Empty rows have score zero: their slopes are already optimal.
            u = u.copy()  # the cut keeps those before
            u[self.rows] *= s
            self.set_duals(u)
        # w = grad Omega*(-s a / lam), whatever the offset of the cut.
        self.w = self.obj.argmin(Cut(s * cut.a, 0.0))
        yield self._iterate(w0, value, u, cut)
        yield from self._loop()

    def resume(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        n, limits = len(self.records), {"order": len(self.records), "rng": 2**64}
        # next: the w of the dual variables; out: the largest and least slope.
        shapes = {"u": "n", "w": "d", "order": "m", "rng": "1", "next": "d", "out": "2", "visits": "1"}
        shapes |= {} if self.loss_conjugate is not None else {"shift": "n"}
        shapes |= {"b": "1"} if self.has_intercept else {}
        check_state(state, shapes, limits, n=n, d=len(self.w))
        check_row_order(state["order"], len(self.order))
        k, y = sweep_kernels(), self.shard.y
        # Dual variables outside of their domain would give false cuts; those of a run are inside.
        if self.loss_conjugate is None:
            self.records[:, k.U] = -y * np.clip(-y * state["u"], 0.0, 1.0)
            self.records[:, k.SHIFT] = state["shift"]
        else:
            self.set_duals(state["u"])
        self.active = len(state["order"])
        self.order[: self.active] = state["order"]
        self.rng, self.w = state["rng"].copy(), state["next"].copy()
        self.sweep_stats[:2] = state["out"]
        if self.has_intercept:
            self.intercept[0] = state["b"][0]
        self.visits = float(state["visits"][0])
        return self._loop()

    def _loop(self) -> Iterator[Iterate]:
        # The run ends once no visit moves a dual variable: the dual is optimal in this precision.
        k, moved = sweep_kernels(), True
        while moved:
            self._sweeps()
            moved = self.sweep_stats[k.N_MOVES] > 0
            w = self.w
            value, z, u, cut = self._evaluate_cut(w)
            # Recomputed from the cut, so that rounding errors do not accumulate.
            self.w = self.obj.argmin(cut)
            if self.loss_conjugate is not None and self.solver.shrink:
                terms = self.loss_conjugate.epsilon, self.loss_conjugate.square
                self.active = check_kernels().select_active_rows(
                    self.records.ravel(), z, self.rows, self.order, *terms, self.sweep_stats
                )
            yield self._iterate(w, value, u, cut)

    def _sweeps(self) -> None:
        """Make epochs over the active rows until a check is due."""
        k, n, n_entries = sweep_kernels(), len(self.rows), self.X.nnz
        # At most four epochs, or about a second of them where that is more.
        max_visits = max(4.0, MAX_ENTRIES_BETWEEN_CHECKS / max(1, n_entries)) * n
        budget = min(max(n, self.CHECK_SPACING_SHARE * self.visits), max_visits)
        slope_target = CHECK_AT_SLOPE_RATIO * (self.sweep_stats[k.MAX_SLOPE] - self.sweep_stats[k.MIN_SLOPE])
        self.sweep_stats[k.N_VISITS] = self.sweep_stats[k.N_MOVES] = 0
        # b minus the center of its proximal term
        distance = 0.0
        while self.active:
            # The center moves to b. The dual variables stay the same, and with them the distance.
            self.intercept[0] += distance
            b = self.intercept[0]
            self.sweep(self.w, self.solver)
            distance += self.intercept[0] - b
            if (
                self.sweep_stats[k.N_VISITS] >= budget
                or self.sweep_stats[k.MAX_SLOPE] - self.sweep_stats[k.MIN_SLOPE] <= slope_target
            ):
                break
        self.visits += self.sweep_stats[k.N_VISITS]

    def _evaluate_cut(self, w: NDArray, fresh: bool = False) -> tuple[float, NDArray, NDArray, Cut]:
        """Return R(w), the scores, the dual variables and their cut."""
        self.obj.count.calls += 1
        if self.has_intercept:
            self._balance_duals()
        risk, offset, size, z, u, a = self.evaluate(w, fresh)
        if self.has_intercept:
            size += abs(self.intercept[0]) * float(self.shard.c @ abs(u))
        # a = sum_i c_i u_i x_i and b = -sum_i c_i l*(u_i), less its rounding error.
        cut = lowered_cut(a, offset, size, u)
        if self.has_intercept:
            gap = risk + self.obj.lam * self.obj.reg.value(w) - self.obj.lower(cut)
            b = float(self.intercept[0])
            lo, hi = self._bracket_intercept(z - b, b, self.INTERCEPT_GAP_SHARE * gap)
            risk = min(risk, best_tangent(lo, hi).value)
        return risk, z, u, cut

    # ------------------------------------------------------------ the intercept
    @property
    def has_intercept(self) -> bool:
        """Whether there is an unpenalized intercept."""
        return bool(self.intercept[1] > 0)

    def _start_intercept(self, w0: NDArray) -> NDArray:
        """Start from the best b of w0; return slopes of the loss there whose weighted sum is zero."""
        n, (y, c) = len(self.records), self.shard[1:3]
        z = self.X.scores(w0, 0, n) if w0.any() else np.zeros(n)
        lo, hi = self._bracket_intercept(z, 0.0, 0.0)
        self.intercept[0] = best_tangent(lo, hi).x
        weights = zero_slope_weights(lo, hi)
        # The loss returns c_i l'(z_i): rows without weight have slope 0.
        dz = sum(m * self.loss.value_grad(z + t.x, y, c)[1] for m, t in zip(weights, (lo, hi), strict=True))
        return np.where(c > 0, dz / np.where(c > 0, c, 1.0), 0.0)

    def _bracket_intercept(self, z: NDArray, b: float, slack: float) -> tuple[Tangent, Tangent]:
        """Return two tangents of R in b around its minimum, to the slack; z are the scores without b."""
        y, c = self.shard[1:3]

        def evaluate(b: float) -> Tangent:
            value, dz = self.loss.value_grad(z + b, y, c)
            return Tangent(b, float(value), float(dz.sum()))

        return refine_intercept(evaluate, *bracket_intercept(evaluate, evaluate(b), 0.1), slack)

    def _balance_duals(self) -> None:
        """Change the dual variables so that sum_i c_i u_i = 0, which keeps the cut valid for every b."""
        u, c, conjugate = self.records[:, sweep_kernels().U], self.shard.c, self.loss_conjugate
        domain = self.loss.conjugate(self.shard.y) if conjugate is None else conjugate
        zero_sum = balanced(u, c, domain)
        if zero_sum is not u:
            self.set_duals(zero_sum)

    def _iterate(self, w: NDArray, risk: float, u: NDArray, cut: Cut) -> Iterate:
        state = {
            "u": u,
            "w": w,
            "next": self.w.copy(),
            "order": self.order[: self.active].copy(),
            "rng": self.rng.copy(),
            "out": self.sweep_stats[:2].copy(),
            "visits": np.array([self.visits]),
        }
        if self.loss_conjugate is None:
            state["shift"] = self.records[:, sweep_kernels().SHIFT].copy()
        if self.has_intercept:
            state["b"] = self.intercept[:1].copy()
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        value = risk + self.obj.lam * self.obj.reg.value(w)
        return Iterate(w, value, cut, info, lambda: state)
