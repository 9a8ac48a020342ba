r"""Dual block ascent for the multiclass hinge loss, with L2: one multiplier per row and class.

The multipliers :math:`\beta_i` of a row are on a simplex. Together they define the cut
:math:`a = \sum_i c_i\, x_i (\beta_i - e_{y_i})^\top,\; b = \sum_i c_i\, \beta_i^\top \Delta_{y_i}`, and a
visit to a row maximizes the bound of that cut over its multipliers, with all others fixed. The reported point
is the best one between the weights of the multipliers and the previous such point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin._numba import lazy_module
from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense
from riskmin.core import Array, Cut, Iterate, NDArray, Shard
from riskmin.core.deadline import chunk_ranges
from riskmin.losses.multiclass import MulticlassHinge
from riskmin.numerics.univariate import Tangent, best_tangent, refine_bracket
from riskmin.problem.certificate import lowered_cut
from riskmin.problem.design_operator import row_major_matrix
from riskmin.problem.objective import Objective
from riskmin.problem.shard_ops import blocks
from riskmin.solvers.base import mix_two
from riskmin.solvers.dual.ascent import BlockAscent, sweep_kernels
from riskmin.solvers.dual.row_state import ActiveRows, rng_state, scale_of, squared_norms
from riskmin.solvers.state_checks import CUT
from riskmin.solvers.weights import outputs_share_weights

_kernels = lazy_module("dual.multiclass_sweep")
_checks = lazy_module("dual.multiclass_check")


def multiclass_reason(obj: Objective) -> str | None:
    """Return why block ascent does not support the objective, and an alternative; None if it does."""
    risk: Any = obj.risk
    if not isinstance(risk.loss, MulticlassHinge) or risk.loss.rescaled:
        return (
            "DualCoordinateAscent supports no multi-output loss but MulticlassHinge without rescaling, not "
            f"{risk.loss!r}: use Lbfgs if it is smooth, else Bundle"
        )
    if risk.rows is None:
        return "DualCoordinateAscent visits rows of X one by one, but these are remote: use Smoothing"
    reg = obj.reg.penalized_part
    if not (reg.diagonal and outputs_share_weights(reg, risk.linear_map.columns)):
        return (
            "DualCoordinateAscent needs L2() for multi-output models, with one weight per feature: "
            "use Smoothing"
        )
    return None


@dataclass
class MulticlassAscent(ActiveRows, BlockAscent):
    """State of a run: the multipliers, their weights, and the best point."""

    MISSING_CLASS_COST = -1e300
    """Cost of the padding classes, which fill the last vector of four and never get weight."""
    OPS_PER_VISIT_AND_CLASS = 16
    """Elementary operations of a visit to a row, per class."""
    CHECK_SPACING_SHARE = 0.15
    """A check costs less than an epoch, as does the point that it finds."""
    INTERCEPT_COLUMN_SHARE = 0.36
    """lam / rho of the proximal term of the intercepts, relative to the mean squared norm of the rows."""
    MOVE_CENTER_AT_GAP_SHARE = 0.6
    """The center moves once the gap of the proximal problem is this share of the whole gap."""
    MIN_CENTER_MOVE = 1e-12
    """Moves of the center smaller than this, relative to 1 plus the center, are rounding."""
    LINE_SEARCH_GAP_SHARE = 0.01
    """The search for the best point ends within this fraction of the gap."""
    SAVED = {"beta": "n k", "w": "d", "next": "d", "active_rows": "m", "rng": "1", "sweep_stats": "7"} | {
        "visits": float, "cut": CUT
    }  # fmt: skip

    solver: Any
    obj: Objective
    shard: Shard
    X: Csr | Dense
    y: NDArray
    """Class indices."""
    cost: NDArray
    """Cost of predicting column j for class i, padded to a multiple of four columns."""
    scale: NDArray | None
    """1 / m for the weights m of the features, if there are any."""
    b_scale: float
    """lam / rho for a proximal term rho |b - b_0|^2 / 2 of the intercepts; 0 without intercepts."""
    multipliers: NDArray
    """One row on the simplex per row of X, padded as the costs are."""
    terms: NDArray
    """c |x|^2 / lam and c / lam, per row."""
    rows: NDArray
    order: NDArray
    """Active rows first, in visiting order."""
    active_classes: NDArray
    """Classes that a visit considers, first in each row; all of them after a check."""
    n_active_classes: NDArray
    """Number of these, per row."""
    rng: NDArray
    sweep_stats: NDArray
    W: NDArray
    """Weights in the layout of the sweep: (k, p) for dense X, (p, padded k) for sparse X."""
    b: NDArray
    """Intercepts of the sweep, padded as the costs are."""
    center: NDArray
    """The center b_0; of length 0 without intercepts."""
    w: NDArray
    """The best point."""
    active: int
    z: NDArray | None = None
    """The scores of the best point."""
    cut: Any = None
    """The cut of the best bound."""
    visits: float = 0.0

    @classmethod
    def create(cls, solver: Any, obj: Objective) -> Self:
        """Return a run with all multipliers zero."""
        risk: Any = obj.risk
        shard, k = risk.rows, risk.linear_map.columns
        X = row_major_matrix(shard)
        n, p = X.shape
        # Sparse rows process classes in vectors of four.
        padded_k = -(-k // 4) * 4 if X.sparse else k
        cost = np.full((k, padded_k), cls.MISSING_CLASS_COST)
        cost[:, :k] = 1.0 - np.eye(k) if risk.loss.cost is None else risk.loss.cost
        scale = scale_of(obj.reg.penalized_part, p * k)[::k]
        squares, step = squared_norms(shard, X, scale, risk.executor), shard.c / obj.lam
        b_scale = cls.INTERCEPT_COLUMN_SHARE * (float(shard.c @ squares) or 1.0) if obj.n_intercepts else 0.0
        # c |x|^2 / lam is the curvature of the dual in the multipliers of a row.
        terms = np.column_stack([step * (squares + b_scale), step])
        rows = np.flatnonzero(terms[:, 0] > 0).astype(np.uint32)
        return cls(
            solver, obj, shard, X, shard.y.astype(np.uintp), cost, scale if len(scale) else None, b_scale,
            multipliers=np.zeros((n, padded_k)), terms=terms, rows=rows, order=rows.copy(),
            # the smallest type that holds all classes: the array has one entry per row and class
            active_classes=np.zeros((n, k), dtype=np.uint16 if k < 2**16 else np.uint32),
            n_active_classes=np.zeros(n, dtype=np.int64), rng=rng_state(solver.seed), sweep_stats=np.zeros(7),
            W=np.zeros((p, padded_k) if X.sparse else (k, p)), b=np.zeros(padded_k),
            center=np.zeros(obj.n_intercepts), w=np.zeros(risk.dim), active=len(rows),
        )  # fmt: skip

    def saved(self) -> Mapping[str, Any]:
        """The center, whose length is 0 without intercepts, with the others."""
        return {**self.SAVED, "center": str(len(self.center))}

    # ------------------------------------------------------------ weights and multipliers
    @property
    def k(self) -> int:
        """Number of classes."""
        return len(self.cost)

    @property
    def beta(self) -> NDArray:
        """The multipliers of the classes."""
        return self.multipliers[:, : self.k]

    @beta.setter
    def beta(self, beta: NDArray) -> None:
        self.multipliers[:, : self.k] = beta

    @property
    def next(self) -> NDArray:
        """The weights of the multipliers, and the intercepts, as the vector w."""
        W = self.W[:, : self.k] if self.X.sparse else self.W.T
        return np.append(W, self.b[: len(self.center)])

    @next.setter
    def next(self, w: NDArray) -> None:
        m = len(self.center)
        W, self.b[:m] = w[: len(w) - m].reshape(-1, self.k), w[len(w) - m :]
        if self.X.sparse:
            self.W[:, : self.k] = W
        else:
            self.W[:] = W.T

    def _set_weights(self, cut: Cut) -> None:
        """Set the weights to those of the cut of the multipliers, so that rounding does not accumulate."""
        m = len(self.center)
        w = self.obj.argmin(cut)
        w[len(w) - m :] = self.center - self.b_scale / self.obj.lam * cut.a[len(w) - m :]
        self.next = w

    def _scale_multipliers(self, s: float) -> None:
        """Scale all multipliers but those of the true classes, which keep the sum at one."""
        # Multipliers of empty rows are already optimal.
        self.multipliers[self.rows] *= s
        # A row of multipliers lies on the simplex: that of the true class is one minus all others.
        true_class = np.arange(len(self.y)), self.y
        self.multipliers[true_class] = 0.0
        self.multipliers[true_class] = np.maximum(1.0 - self.multipliers.sum(axis=1), 0.0)

    def _start_at_largest_slack(self, z: NDArray) -> None:
        """Put all weight of a row on its largest slack cost + score, in equal parts on ties."""
        for i, j in self._blocks():
            slack = self.cost[self.y[i:j], : self.k] + z[i:j]
            best = slack == slack.max(axis=1, keepdims=True)
            self.beta[i:j] = best / best.sum(axis=1, keepdims=True)

    # ------------------------------------------------------------ a run
    def _first(self, w0: Array, u0: Array | None) -> Iterate:
        """Set the multipliers, from u0 or those of the loss at w0; return w0 with its cut."""
        obj, m = self.obj, len(self.center)
        self.w = np.array(w0, dtype=float)
        self.z, self.center = self._scores(self.w), self.w[len(w0) - m :].copy()
        if u0 is None:
            self._start_at_largest_slack(self.z)
        else:
            self.beta = u0
        risk, cut = self._evaluate(self.z)
        # Given multipliers may be those of another lam.
        s = obj.reg.penalized_part.scale(self._proximal(cut), obj.lam)
        self._scale_multipliers(s)
        self._set_weights(Cut(s * cut.a, 0.0))
        self._mix(cut)
        # All rows are active until the next check.
        self.active, self.order[:], self.sweep_stats[:] = len(self.rows), self.rows, 0.0
        return self._iterate(self.w, risk + obj.lam * obj.reg.value(self.w), self.cut)

    def _products(self) -> float:
        """Return entries of X times classes, in units of four: that is the length of a vector operation."""
        return float(self.X.nnz * max(1.0, self.k / 4))

    def _sweeps(self) -> None:
        """Consider all classes again, and make epochs."""
        self.active_classes[:], self.n_active_classes[:] = np.arange(self.k), self.k
        super()._sweeps()

    def _sweep(self) -> None:
        """Visit the active rows once."""
        X, s = self.X, self.solver
        data = X.row_ends, X.indices if X.sparse else None, X.values
        b = self.b if len(self.center) else None
        state = self.multipliers, self.active_classes, self.n_active_classes, self.y, self.terms, self.cost
        options = None if s.damping == 1.0 else s.damping, s.shrink, s.shuffle, self.rng
        size = self.cost.shape[1]
        workspace = *np.empty((5, size)), np.zeros(size, np.uintp)
        # Kernels are called on ranges of rows so that deadlines are checked in between.
        entries_per_row = X.nnz / max(1, X.shape[0])
        operations = self.active * self.k * (self.OPS_PER_VISIT_AND_CLASS + entries_per_row)
        active = 0
        for piece in chunk_ranges(0, self.active, operations):
            active = _kernels().sweep(
                *data, self.W, self.scale, b, self.b_scale, *state, self.order, self.active, *piece, *options,
                *workspace, self.sweep_stats,
            )  # fmt: skip
        self.active = active

    def _check(self) -> Iterate:
        """Evaluate the weights of the multipliers, and the best point between them and the last one."""
        w = self.next
        z = self._scores(w)
        risk, cut = self._evaluate(z)
        self._mix(cut)
        value = self._move(w, z, risk)
        if len(self.center):
            self._move_center(cut, w, risk, value)
        self._set_weights(cut)
        return self._iterate(self.w, value, self.cut)

    # ------------------------------------------------------------ checks
    def _blocks(self) -> Iterator[tuple[int, int]]:
        risk: Any = self.obj.risk
        yield from blocks(self.shard, risk.linear_map)

    def _scores(self, w: NDArray) -> NDArray:
        """Return X W + b for all rows."""
        risk: Any = self.obj.risk
        z = np.zeros((len(self.y), self.k))
        for i, j in self._blocks() if w.any() else ():
            z[i:j] = risk.linear_map.scores(self.X, w, i, j)
        return z

    def _evaluate(self, z: NDArray) -> tuple[float, Cut]:
        """Return the risk at scores, and the cut of the multipliers; select the active rows."""
        k, risk, a = _checks(), self.obj.risk, np.zeros(self.obj.risk.dim)
        sums, violations, workspace = np.zeros(3), np.empty((len(self.y), 2)), np.empty((2, self.k))
        for i, j in self._blocks():
            D = np.empty((j - i, self.k))
            k.evaluate_multiclass_rows(
                z[i:j], self.multipliers, self.y, self.shard.c, self.cost, i, *workspace, D, sums, violations
            )
            risk.linear_map.pullback(self.X, D, i, j, a)
        self.obj.count.calls += 1
        if self.solver.shrink:
            self.active = k.select_violating_rows(violations, self.rows, self.order, self.sweep_stats)
        # b = sum_i c_i beta_i' cost_i, minus a bound on its rounding error.
        value, gain, size = (float(v) for v in sums)
        return value, lowered_cut(a, gain, size)

    def _move(self, w: NDArray, z: NDArray, risk: float) -> float:
        """Move the best point to the minimum of J on the segment to w, whose scores are z; return J there.

        While the lower bound rises monotonically, J at the weights of the multipliers oscillates; on these
        segments it decreases. A line evaluation costs O(n k), and no pass over X.
        """
        obj, d = self.obj, w - self.w
        if self.z is None:  # after a resumption
            self.z = self._scores(self.w)
        dz, line, terms = z - self.z, obj.reg.line(self.w, d), (self.y, self.shard.c, self.cost)

        # J along w + t d: the loss at the scores z + t dz, the regularizer by its restriction to the line.
        def evaluate(t: float) -> Tangent:
            (r, dr), (o, do) = _checks().max_margin_along_line(self.z, dz, t, *terms), line(t)
            return Tangent(t, r + obj.lam * o, dr + obj.lam * do)

        # R(w) was computed by the check: only the slope at t = 1 is needed.
        start, end = evaluate(0.0), Tangent(1.0, risk + obj.lam * obj.reg.value(w), evaluate(1.0).slope)
        minimum = best_tangent(start, end)
        # The minimum is inside the segment only if J decreases at its start and increases at its end.
        if start.slope < 0 < end.slope:
            slack = self.LINE_SEARCH_GAP_SHARE * (minimum.value - obj.lower(self.cut))
            minimum = best_tangent(
                minimum, *refine_bracket(evaluate, start, end, lambda best, bound: best - bound <= slack)
            )
        # The scores are linear in w, so those of the new point need no pass over X.
        if minimum.x == 1:
            self.w, self.z = w, z
        elif minimum.x > 0:
            self.w, self.z = self.w + minimum.x * d, self.z + minimum.x * dz
        return minimum.value

    # ------------------------------------------------------------ intercepts
    def _mix(self, cut: Cut) -> None:
        """Mix the cut of the multipliers into the best one, if its slopes in the intercepts are not zero."""
        if len(self.center):
            risk: Any = self.obj.risk
            cut = mix_two(self.cut, risk.project_out_intercepts(cut), self.obj)[0]
        self.cut = cut

    def _proximal(self, cut: Cut) -> Cut:
        """Return the cut of the problem with proximal terms, at its best intercepts."""
        m = len(self.center)
        a, slopes = cut.a[: len(cut.a) - m], cut.a[len(cut.a) - m :]
        least = slopes @ self.center - 0.5 * self.b_scale / self.obj.lam * (slopes @ slopes)
        return Cut(a, cut.b + float(least))

    def _move_center(self, cut: Cut, w: NDArray, risk: float, value: float) -> None:
        """Move the center once the proximal problem is solved to a share of the gap; activate all rows."""
        obj, k, before = self.obj, self.k, self.center
        half = 0.5 * obj.lam / self.b_scale
        values = (risk + obj.lam * obj.reg.value(w), w), (value, self.w)
        upper = min(v + half * float(((x[-k:] - before) ** 2).sum()) for v, x in values)
        gap = upper - obj.reg.penalized_part.bound(self._proximal(cut), obj.lam)
        if gap > self.MOVE_CENTER_AT_GAP_SHARE * (value - obj.lower(self.cut)):
            return
        self.center = self.b[:k].copy()
        # No other slope offsets that of a class without weight: any, however small, would invalidate the cut.
        empty = np.bincount(self.y, self.shard.c, k) == 0
        self.center -= np.where(empty & (cut.a[-k:] > 0), 1.0 + np.abs(self.center), 0.0)
        self.active, self.order[:] = len(self.rows), self.rows
        # Multipliers that are optimal for one center are not for another, unless they agree up to rounding.
        if np.abs(self.center - before).max() > self.MIN_CENTER_MOVE * (1.0 + np.abs(self.center).max()):
            self.sweep_stats[sweep_kernels().N_MOVES] += 1
