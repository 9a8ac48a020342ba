r"""Dual block ascent for the multiclass hinge with intercepts, and with feature weights.

A step of the proximal point method adds :math:`\tfrac\lambda{2 s^2} |b - b_0|^2` for the intercepts b around
a center :math:`b_0`. This is equivalent to one more column of X, constant s, and shifted costs
:math:`\Delta_{yj} + b_{0j} - b_{0y}`, so that dual block ascent without intercepts solves it. Then the center
moves to the solution, and the penalty vanishes in the limit. Feature weights are removed by dividing the
features by the square roots of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.matrix import as_matrix
from riskmin.core import Array, Cut, Iterate, NDArray, Shard
from riskmin.executors.base import SerialExecutor
from riskmin.linear_maps.linear import MultiOutput
from riskmin.problem.design_operator import mean_squared_norm, row_major_matrix
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.regularizers import L2
from riskmin.solvers.base import mix_two
from riskmin.solvers.dual.multiclass import MulticlassAscent, squared_norms
from riskmin.solvers.state_checks import check_state
from riskmin.solvers.weights import feature_weights, scale_features


class FeatureWeightedAscent:
    """A run on features divided by the square roots of their weights, under an unweighted L2."""

    def __init__(self, solver: Any, obj: Objective) -> None:
        self.obj, risk = obj, obj.risk
        assert isinstance(risk, Risk)
        shard: Any = risk.rows
        self.k, self.roots = (
            risk.linear_map.columns,
            np.sqrt(feature_weights(obj.reg, risk.linear_map.columns)),
        )
        # w is a (features, k) matrix in row-major order: each root applies to k entries.
        self.entry_roots = np.repeat(self.roots, self.k) if np.ndim(self.roots) else self.roots
        X = row_major_matrix(shard)
        rows = self._prepare_rows(
            X if obj.reg.penalized_part.unweighted else as_matrix(scale_features(X, self.roots)), shard
        )
        dim = self.k * rows.X.shape[1]
        inner = Risk(risk.loss, MultiOutput(self.k), SerialExecutor([rows]), dim, rows)
        self.inner = Objective(inner, L2(), obj.lam, obj.count)
        self.block = MulticlassAscent.create(solver, self.inner)

    def _prepare_rows(self, X: Any, shard: Shard) -> Shard:
        """Return the rows that block ascent visits."""
        return Shard(X, shard.y, shard.c, {})

    def start(self, w0: Array, beta: NDArray | None = None) -> Iterator[Iterate]:
        """Start from w0, and from the multipliers of an earlier run, if given."""
        return self._run(self.block.start(self.entry_roots * w0, beta), None)

    def resume(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        check_state(state, {"best": "d", "w": "d"}, d=self.obj.risk.dim)
        return self._run(self.block.resume(state | {"w": state["best"]}), None)

    def _run(self, steps: Iterator[Iterate], best: Cut | None) -> Iterator[Iterate]:
        for it in steps:
            # The inner weights are v = sqrt(m) w, so slopes in w are sqrt(m) times those in v.
            w, cut, inner = it.w / self.entry_roots, Cut(it.cut.a * self.entry_roots, it.cut.b), it.state
            assert inner is not None
            state = inner() | {"w": w, "best": it.w}
            yield Iterate(w, it.value, cut, it.info, state.copy)


class ProximalIntercepts(FeatureWeightedAscent):
    """A run: dual block ascent with one more column, and the center of the intercepts."""

    INTERCEPT_COLUMN_SCALE = 0.6
    """The constant s of the intercept column, relative to the RMS norm of the rows."""
    MOVE_CENTER_AT_GAP_SHARE = 0.6
    """Move the center once the gap of the proximal problem is this share of the whole gap."""
    MIN_CENTER_MOVE = 1e-12
    """Moves smaller than this, relative to 1 plus the center, are rounding."""

    def __init__(self, solver: Any, obj: Objective) -> None:
        self.risk = obj.risk
        super().__init__(solver, obj)
        shard: Any = obj.risk.rows
        self.center = np.zeros(self.k)
        self.empty_classes = np.bincount(shard.y.astype(np.intp), shard.c, self.k) == 0

    def _prepare_rows(self, X: Any, shard: Shard) -> Shard:
        self.column_value = (
            self.INTERCEPT_COLUMN_SCALE
            * mean_squared_norm(shard, feature_weights(self.obj.reg, self.k)) ** 0.5
        )
        return Shard(as_matrix(_with_constant_column(X, self.column_value)), shard.y, shard.c, {})

    def move_center(self, shift: NDArray) -> None:
        """Move the center; scores and best point stay the same, and all rows become active again."""
        block, k = self.block, self.k
        self.center = self.center + shift
        # Delta_yj + b_0j - b_0y: entry (y, j) changes by shift_j - shift_y.
        block.cost[:, :k] += shift - shift[:, None]
        # The intercepts b = b_0 + s v stay the same, so v falls by shift / s, and the scores without b_0
        # fall by shift.
        block.best.w = np.append(block.best.w[:-k], block.best.w[-k:] - shift / self.column_value)
        block.best.z = block.best.z - shift
        block.active, block.order[:], block.visits_before_change = len(block.rows), block.rows, block.visits
        # Multipliers that are optimal for one center are not for another, unless they agree up to rounding.
        block.may_improve |= bool(
            np.abs(shift).max() > self.MIN_CENTER_MOVE * (1.0 + np.abs(self.center).max())
        )

    def start(self, w0: Array, beta: NDArray | None = None) -> Iterator[Iterate]:
        """Start from w0, and from the multipliers of an earlier run, if given."""
        # The intercepts of w0 become the center; the deviations from it start at zero.
        self.move_center(w0[-self.k :])
        scaled_w0 = np.append(self.entry_roots * w0[: -self.k], np.zeros(self.k))
        return self._run(self.block.start(scaled_w0, beta), None)

    def resume(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        shapes = {"best": "d", "w": "d", "center": "k", "since": "1", "cut": "e"}
        check_state(state, shapes, d=self.obj.risk.dim, k=self.k, e=self.obj.risk.dim + 1)
        self.center = state["center"]
        self.block.cost[:, : self.k] += self.center - self.center[:, None]
        self.block.visits_before_change = float(state["since"][0])
        cut = Cut(state["cut"][:-1], float(state["cut"][-1]))
        return self._run(self.block.resume(state | {"w": state["best"]}), cut)

    def _run(self, steps: Iterator[Iterate], best: Cut | None) -> Iterator[Iterate]:
        obj, inner, k = self.obj, self.inner, self.k
        for it in steps:
            # The last k weights are v = (b - b_0) / s, one per class.
            v = it.w[-k:]
            # The proximal penalty of the intercepts is not part of J.
            value = it.value - obj.lam * 0.5 * float(v @ v)
            best, _ = mix_two(best, self.risk.project_out_intercepts(self._risk_cut(it.cut)), obj)
            w = np.append(it.w[:-k] / self.entry_roots, self.center + self.column_value * v)
            yield Iterate(w, value, best, it.info, self._state(it, w, best))
            # Once the proximal problem is solved to a share of the whole gap, its solution is the new center.
            if it.value - inner.lower(it.cut) <= self.MOVE_CENTER_AT_GAP_SHARE * (value - obj.lower(best)):
                self.move_center(self.column_value * v - self._lower_empty_classes(it.cut))

    def _lower_empty_classes(self, cut: Cut) -> NDArray:
        """Return by how much to lower the center of classes without weight whose slope is positive.

        No other slope offsets theirs, so that any of them, however small, would invalidate the cut.
        """
        return np.where(self.empty_classes & (cut.a[-self.k :] > 0), 1.0 + np.abs(self.center), 0.0)

    def _risk_cut(self, cut: Cut) -> Cut:
        """Return the cut of the risk with intercepts that the multipliers define."""
        # The slope in b is that of the extra column divided by s; the offset moves from the center to b = 0.
        slopes = cut.a[-self.k :] / self.column_value
        return Cut(
            np.append(cut.a[: -self.k] * self.entry_roots, slopes), cut.b - float(slopes @ self.center)
        )

    def _state(self, it: Iterate, w: NDArray, best: Cut) -> Any:
        center, visits, inner = self.center, np.array([self.block.visits_before_change]), it.state
        assert inner is not None
        return lambda: (
            inner()
            | {"w": w, "best": it.w, "center": center, "since": visits, "cut": np.append(best.a, best.b)}
        )


def rms_row_norm(shard: Shard) -> float:
    """Return the weighted RMS norm of the rows; 1 if all are empty."""
    X = row_major_matrix(shard)
    return float(np.sqrt(shard.c @ squared_norms(shard, X))) or 1.0


def _with_constant_column(X: Any, s: float) -> Any:
    """Return X with one more column, constant s."""
    if X.sparse:
        parts: Any = [X.as_scipy(), sp.csr_array(np.full((X.shape[0], 1), s, dtype=X.data.dtype))]
        return sp.hstack(parts, format="csr")
    return np.hstack([X.X, np.full((X.shape[0], 1), s, dtype=X.X.dtype)])
