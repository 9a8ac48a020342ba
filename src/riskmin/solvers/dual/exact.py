"""Dual coordinate ascent by exact steps, for L2.

A sweep visits the active rows. A check, every few sweeps, is one pass over X, as expensive as an oracle call:
the scores give J(w), the dual variables the cut, and both together the rows to skip until the next check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Shard
from riskmin.losses import Logistic
from riskmin.numerics.precision import CUT_ROUNDING
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
    MIN_AVERAGED_SWEEPS = 4
    """Average w over the second half of the sweeps before a check if it has at least this many terms. The
    dual variables converge long before w, which oscillates around its optimum."""

    solver: Any
    obj: Objective
    w: NDArray
    visits: float = 0.0
    """Visits to rows so far."""

    @classmethod
    def for_shard(cls, solver: Any, obj: Objective, shard: Shard, loss: Any) -> Self:
        """Return the run on the rows of a shard."""
        scale = scale_of(obj.reg, shard.X.shape[1])
        state = RowState.create(shard, loss, scale, obj.lam, rng_state(solver.seed))
        return cls(**vars(state), solver=solver, obj=obj, w=np.zeros(shard.X.shape[1]))

    def start(self, w0: Array, u0: Array | None = None) -> Iterator[Iterate]:
        """Start from given dual variables, or from the slopes of the loss at w0, scaled to the best bound."""
        if u0 is not None:
            self.set_duals(u0)
        value, _, u, cut = self._evaluate_cut(np.array(w0, dtype=float), u0 is None)
        s = self.obj.reg.scale(cut, self.obj.lam) if u0 is None else 1.0
        if u0 is None:
            # Empty rows have score zero: their slopes are already optimal.
            u[self.rows] *= s
            self.set_duals(u)
        # w = grad Omega*(-s a / lam), whatever the offset of the cut.
        self.w = self.obj.argmin(Cut(s * cut.a, 0.0))
        yield self._iterate(w0, value, u, cut)
        yield from self._loop()

    def resume(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        n, limits = len(self.records), {"order": len(self.records), "rng": 2**64}
        # next: the w of the dual variables (`w` may be an average); out: the largest and least slope.
        shapes = {"u": "n", "w": "d", "order": "m", "rng": "1", "next": "d", "out": "2", "visits": "1"}
        shapes |= {} if self.loss_conjugate is not None else {"shift": "n"}
        check_state(state, shapes, limits, n=n, d=len(self.w))
        check_row_order(state["order"], len(self.order))
        k = sweep_kernels()
        self.records[:, k.U] = state["u"]
        if self.loss_conjugate is None:
            self.records[:, k.SHIFT] = state["shift"]
        self.active = len(state["order"])
        self.order[: self.active] = state["order"]
        self.rng, self.w = state["rng"].copy(), state["next"].copy()
        self.sweep_stats[:2] = state["out"]
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
        # w is averaged over the second half of the visits, where it oscillates around its optimum.
        average_from, entries_since, w_sum, n_terms = 0.5 * budget, 0.0, np.zeros(len(self.w)), 0
        entries_per_row = n_entries / max(1, len(self.records))
        while self.active:
            before = self.active
            self.sweep(self.w, self.solver)
            # Sweeps drop rows from the active ones: count the rows that were visited.
            entries_since += before * entries_per_row
            # Adding w to the average costs O(p): only after at least 4 p entries have been read.
            if self.sweep_stats[k.N_VISITS] >= average_from and entries_since >= 4 * len(w_sum):
                w_sum += self.w
                n_terms += 1
                entries_since = 0.0
            if (
                self.sweep_stats[k.N_VISITS] >= budget
                or self.sweep_stats[k.MAX_SLOPE] - self.sweep_stats[k.MIN_SLOPE] <= slope_target
            ):
                break
        self.visits += self.sweep_stats[k.N_VISITS]
        if n_terms >= self.MIN_AVERAGED_SWEEPS:
            self.w = w_sum / n_terms

    def _evaluate_cut(self, w: NDArray, fresh: bool = False) -> tuple[float, NDArray, NDArray, Cut]:
        """Return R(w), the scores, the dual variables and their cut."""
        self.obj.count.calls += 1
        risk, offset, size, z, u, a = self.evaluate(w, fresh)
        # a = sum_i c_i u_i x_i and b = -sum_i c_i l*(u_i), minus a bound on its rounding error.
        return risk, z, u, Cut(a, offset - CUT_ROUNDING * size)

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
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        return Iterate(w, risk + self.obj.lam * self.obj.reg.value(w), cut, info, lambda: state)
