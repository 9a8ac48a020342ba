"""Dual coordinate ascent by exact steps, for L2: one multiplier per row, all rows in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Shard
from riskmin.losses import Logistic
from riskmin.numerics.univariate import Tangent, best_tangent, zero_slope_weights
from riskmin.problem.certificate import balanced, lowered_cut
from riskmin.problem.intercept import bracket_intercept, refine_intercept
from riskmin.problem.objective import Objective
from riskmin.solvers.dual.ascent import BlockAscent, sweep_kernels
from riskmin.solvers.dual.row_state import RowState, check_kernels, rng_state, scale_of


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
class ExactAscent(RowState, BlockAscent):
    """State of a run by exact steps on all rows, with the w of their dual variables."""

    CHECK_SPACING_SHARE = 0.3
    """A check costs about as much as an epoch."""
    INTERCEPT_COLUMN_SHARE = 0.05
    """lam / rho of the proximal term of an intercept, relative to the mean squared norm of the rows: smaller
    ones need more moves of the center, larger ones slow the steps of the rows down."""
    INTERCEPT_GAP_SHARE = 0.05
    """A check minimizes J over b to this fraction of the gap."""
    SAVED = {"u": "n", "w": "d", "next": "d", "active_rows": "m", "rng": "1", "sweep_stats": "7"} | {
        "visits": float
    }

    solver: Any
    obj: Objective
    w: NDArray
    """The point of the last check."""
    next: NDArray
    """The weights of the dual variables."""
    distance: float = 0.0
    """b minus the center of its proximal term."""
    visits: float = 0.0

    @classmethod
    def for_shard(cls, solver: Any, obj: Objective, shard: Shard, loss: Any) -> Self:
        """Return the run on the rows of a shard."""
        p = shard.X.shape[1]
        share = cls.INTERCEPT_COLUMN_SHARE if obj.risk.intercept.profiled else 0.0
        rng = rng_state(solver.seed)
        state = RowState.create(shard, loss, scale_of(obj.reg, p), obj.lam, rng, share, obj.risk.executor)
        return cls(**vars(state), solver=solver, obj=obj, w=np.zeros(p), next=np.zeros(p))

    def saved(self) -> Mapping[str, Any]:
        """The log-odds of the logistic loss, and the intercept, only where there are any."""
        shift = {"shift": "n"} if self.loss_conjugate is None else {}
        return {**self.SAVED, **shift, **({"b": float} if self.has_intercept else {})}

    def _first(self, w0: Array, u0: Array | None) -> Iterate:
        """Set the dual variables, from u0 or the slopes of the loss at w0; return w0 with its cut."""
        self.w, start = np.array(w0, dtype=float), u0
        if self.has_intercept:
            slopes = self._start_intercept(self.w)
            start = slopes if u0 is None else u0
        if start is not None:
            self.set_duals(start)
        value, _, u, cut = self._evaluate_cut(self.w, fresh=start is None)
        # Given multipliers may be those of another lam.
        s = self.obj.reg.scale(cut, self.obj.lam)
        u = u.copy()  # the cut keeps those before
        # Empty rows have score zero: their slopes are already optimal.
        u[self.rows] *= s
        self.set_duals(u)
        # w = grad Omega*(-s a / lam), whatever the offset of the cut.
        self.next = self.obj.argmin(Cut(s * cut.a, 0.0))
        return self._iterate(self.w, value + self.obj.lam * self.obj.reg.value(self.w), cut)

    def _products(self) -> float:
        """Return the number of stored entries: one product each."""
        return float(self.X.nnz)

    def _sweep(self) -> None:
        """Visit the active rows; then the center moves to b, and the dual variables keep their distance."""
        self.intercept[0] += self.distance
        b = self.intercept[0]
        self.sweep(self.next, self.solver)
        self.distance += self.intercept[0] - b

    def _check(self) -> Iterate:
        """Evaluate the w of the dual variables, and select the active rows."""
        self.w, self.distance = self.next, 0.0
        value, z, _, cut = self._evaluate_cut(self.w)
        # Recomputed from the cut, so that rounding errors do not accumulate.
        self.next = self.obj.argmin(cut)
        if self.loss_conjugate is not None and self.solver.shrink:
            terms = self.loss_conjugate.epsilon, self.loss_conjugate.square
            self.active = check_kernels().select_active_rows(
                self.records.ravel(), z, self.rows, self.order, *terms, self.sweep_stats
            )
        return self._iterate(self.w, value + self.obj.lam * self.obj.reg.value(self.w), cut)

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

    @property
    def b(self) -> float:
        """The intercept."""
        return float(self.intercept[0])

    @b.setter
    def b(self, value: float) -> None:
        self.intercept[0] = value

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
