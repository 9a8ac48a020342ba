"""Rows with one dual variable each, for exact dual sweeps with L2: records, sweeps, evaluation of all rows.

`ExactAscent` runs on them if all rows are in this process, `Cocoa` on each shard of remote rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin._numba import lazy_module
from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense
from riskmin.core import NDArray, Shard
from riskmin.core.deadline import check_each, chunk_ranges
from riskmin.executors.base import Executor, SerialExecutor
from riskmin.losses.conjugate import IntervalConjugate
from riskmin.problem.design_operator import entry_ranges, row_major_matrix
from riskmin.solvers.dual.ascent import sweep_kernels
from riskmin.solvers.state_checks import check_row_order

check_kernels = lazy_module("dual.check")
"""Return the module of operations on all rows."""


def _indices_and_values(X: Csr | Dense) -> tuple[NDArray | None, NDArray]:
    """Return the column indices (None for dense rows) and the values of all rows, concatenated."""
    return X.indices if X.sparse else None, X.values


def _allocate_records(n: int) -> NDArray:
    """Allocate one record of 8 doubles per row, each aligned to a cache line of 64 bytes."""
    # NumPy does not guarantee this alignment: skip the doubles up to the next multiple of 64 bytes.
    buffer = np.empty(8 * n + 8)
    first = -buffer.ctypes.data % 64 // 8
    return buffer[first : first + 8 * n].reshape(n, 8)


def _record_views(records: NDArray) -> tuple[NDArray, NDArray]:
    """Return the records flattened, viewed as doubles and as integers."""
    flat = records.ravel()
    return flat, flat.view(np.int64)


def squared_norms(shard: Shard, X: Csr | Dense, scale: NDArray, executor: Executor) -> NDArray:
    """Return sum_j x_ij^2 / m_j per row; cached with the shard, since it does not depend on lam."""
    cached = shard.cache.get("norms")
    if cached is None or not np.array_equal(cached[0], scale):
        q, cuts = np.empty(X.shape[0]), entry_ranges(X)
        args = cuts, *_indices_and_values(X), X.row_ends, scale if len(scale) else None, q
        executor.share(check_kernels().squared_row_norms_of_ranges, args, len(cuts) - 1, float(X.nnz))
        cached = shard.cache["norms"] = scale, q
    norms: NDArray = cached[1]
    return norms


def scale_of(reg: Any, p: int) -> NDArray:
    """Return 1 / m for the regularizer's weights m; of length 0 if all are 1."""
    scale: NDArray = np.empty(0) if reg.unweighted else reg.conjugate_grad(np.ones(p))
    return scale


def rng_state(*seeds: int) -> NDArray:
    """Return the state of the random number generator for visiting orders."""
    # xorshift needs a nonzero state.
    return np.random.SeedSequence(seeds).generate_state(1, np.uint64) | np.uint64(1)


class ActiveRows:
    """The rows that the next sweep visits, which are first in `order`."""

    order: NDArray
    active: int

    @property
    def active_rows(self) -> NDArray:
        """The rows that the next sweep visits."""
        return self.order[: self.active]

    @active_rows.setter
    def active_rows(self, rows: NDArray) -> None:
        check_row_order(rows, len(self.order))
        self.active = len(rows)
        self.order[: self.active] = rows


@dataclass
class RowState(ActiveRows):
    """Rows of a shard with their dual variables, which are stored in the records."""

    OPS_PER_VISIT, OPS_PER_ENTRY = 64, 4
    """Elementary operations of a visit to a row, and per stored entry of it, scattered in memory."""

    shard: Shard
    loss: Any
    loss_conjugate: IntervalConjugate | None
    """None for the logistic loss."""
    X: Csr | Dense
    records: NDArray
    """One record of 8 doubles per row; the slots are named in `_numba.dual.sweep`."""
    scale: NDArray
    """1 / m for the regularizer's weights m; of length 0 if all are 1."""
    rows: NDArray
    """Rows that can move: not empty, and of positive weight."""
    order: NDArray
    """Active rows first, in visiting order."""
    rng: NDArray
    sweep_stats: NDArray
    """Extreme slopes, visits and moves of the last sweep; the slots are named in `_numba.dual.sweep`."""
    active: int
    """Number of active rows."""
    intercept: NDArray
    """b, and lam / rho for a proximal term rho (b - b_0)^2 / 2 around a center b_0; zeros without one."""
    executor: Executor
    """Its threads share the passes over all rows, which are not sweeps."""

    @classmethod
    def create(
        cls, shard: Shard, loss: Any, scale: NDArray, lam: float, rng: NDArray,
        intercept_share: float = 0.0, executor: Executor | None = None,
    ) -> Self:  # fmt: skip
        """Return the rows of a shard with all dual variables zero.

        A share > 0 adds an intercept: lam / rho is this share of the mean squared norm of the rows.
        """
        executor = executor or SerialExecutor()
        X, k, conjugate = row_major_matrix(shard), sweep_kernels(), loss.interval_conjugate(shard.y)
        n = X.shape[0]
        # Row i has the entries ends[i] to ends[i + 1] - 1, for dense rows too.
        ends = X.row_ends
        records, rows = _allocate_records(n), np.empty(n, np.uint32)
        q = squared_norms(shard, X, scale, executor)
        # The intercept is the weight of one more column, constant sqrt(lam / rho).
        intercept = np.array([0.0, intercept_share * (float(shard.c @ q) or 1.0)])
        q = q + intercept[1]
        # Slots LOWER, UPPER and SHIFT; for the logistic loss, LOWER is y, and `set_duals` overwrites SHIFT.
        bounds = (
            (shard.y, shard.y, shard.y, 0.0)
            if conjugate is None
            else (conjugate.lower, conjugate.upper, conjugate.shift, conjugate.square)
        )
        n_rows = check_kernels().fill_records(ends, q, shard.c, lam, *bounds, *_record_views(records), rows)
        if conjugate is None:
            # With the logistic loss, the slot INVERSE holds the curvature c |x|^2 / lam itself.
            records[:, k.INVERSE] = shard.c / lam * q
        rows = rows[:n_rows]
        return cls(
            shard, loss, conjugate, X, records, scale, rows, rows.copy(), rng, np.zeros(7), n_rows, intercept,
            executor,
        )  # fmt: skip

    # ------------------------------------------------------------ what a checkpoint holds
    @property
    def u(self) -> NDArray:
        """The dual variables."""
        u: NDArray = self.records[:, sweep_kernels().U]
        return u

    @u.setter
    def u(self, u: NDArray) -> None:
        # Dual variables outside of their domain would give false cuts; those of a run are inside.
        lower, upper = self.loss.conjugate(self.shard.y).lower, self.loss.conjugate(self.shard.y).upper
        self.records[:, sweep_kernels().U] = np.clip(u, lower, upper)

    @property
    def shift(self) -> NDArray:
        """The log-odds of the dual variables of the logistic loss."""
        shift: NDArray = self.records[:, sweep_kernels().SHIFT]
        return shift

    @shift.setter
    def shift(self, shift: NDArray) -> None:
        self.records[:, sweep_kernels().SHIFT] = shift

    def set_duals(self, u: NDArray) -> None:
        """Set the dual variables, clipped to their domains."""
        k, y = sweep_kernels(), self.shard.y
        if self.loss_conjugate is not None:
            self.records[:, k.U] = np.clip(u, self.loss_conjugate.lower, self.loss_conjugate.upper)
            return
        # The logistic loss stores the log-odds of a = -y u: a alone cannot represent values next to 1.
        # exp(700) is still finite in double precision.
        with np.errstate(divide="ignore"):
            a = np.clip(-y * u, 0.0, 1.0)
            log_odds = np.clip(np.log(a) - np.log1p(-a), -700.0, 700.0)
        self.records[:, k.SHIFT] = log_odds
        self.records[:, k.U] = -y / (1 + np.exp(-log_odds))

    def sweep(self, w: NDArray, settings: Any) -> None:
        """Visit the active rows once by exact steps, which update w; rows held at a bound may be skipped."""
        k, active = sweep_kernels(), 0
        scale = self.scale if len(self.scale) else None
        rows = self.order, self.active
        args = *_indices_and_values(self.X), *_record_views(self.records), *rows, w, scale, self.intercept
        tail = settings.shuffle, self.rng, self.sweep_stats
        operations = self.active * (
            self.OPS_PER_VISIT + self.OPS_PER_ENTRY * self.X.nnz / max(1, len(self.records))
        )
        # The kernel is called on ranges of rows so that deadlines are checked in between.
        for piece in chunk_ranges(0, self.active, operations):
            if self.loss_conjugate is None:
                active = k.logistic_sweep(*args, *piece, settings.damping, *tail)
            else:
                terms = (
                    settings.damping,
                    self.loss_conjugate.epsilon,
                    self.loss_conjugate.square,
                    settings.shrink,
                )
                active = k.sweep(*args, *piece, *terms, *tail)
        self.active = active

    def evaluate(
        self, w: NDArray, fresh: bool = False
    ) -> tuple[float, float, float, NDArray, NDArray, NDArray]:
        """Evaluate R(w, b) and the cut by one pass over X.

        Returns R(w, b), the offset of the cut, the sum of its absolute terms, the scores, the dual variables
        and the slope of the cut. With `fresh`, the dual variables are the slopes of the loss at w.
        """
        n, k, conjugate = len(self.records), check_kernels(), self.loss_conjugate
        z, u = np.empty(n), np.empty(n)
        if conjugate is None:
            a = np.zeros(len(w))
            return *self._evaluate_by_loss(w, fresh, z, u, a), z, u, a
        # An empty w stands for zero, which saves the products.
        args = (
            *_indices_and_values(self.X),
            *_record_views(self.records),
            self.shard.c,
            w if w.any() else w[:0],
            float(self.intercept[0]),
        )
        # Per range: R(w), the offset of the cut, and the sum of the absolute terms; and the slope of the cut.
        cuts, shape = entry_ranges(self.X, k.SUM_BLOCK_ROWS), (conjugate.epsilon, conjugate.square)
        sums, slopes = np.zeros((len(cuts) - 1, 3)), np.empty((len(cuts) - 1, len(w)))
        call = (cuts, *args, *shape, fresh, z, u, slopes, sums)
        self.executor.share(k.evaluate_ranges, call, len(sums), 2.0 * self.X.nnz)
        risk, offset, size = (float(v) for v in sums.sum(axis=0))
        return risk, offset, size, z, u, self.executor.total(list(slopes))

    def _evaluate_by_loss(
        self, w: NDArray, fresh: bool, z: NDArray, u: NDArray, a: NDArray
    ) -> tuple[float, float, float]:
        """Do the same by calls of the loss, for the logistic conjugate, and fill z, u and a."""
        y, c, step, risk = *self.shard[1:3], self.X.block_rows, 0.0
        if not fresh:
            u[:] = self.records[:, sweep_kernels().U]
        for i in check_each(range(0, len(u), step)):
            block = slice(i, min(i + step, len(u)))
            z[block] = self.X.scores(w, block.start, block.stop) + self.intercept[0]
            value, dz = self.loss.value_grad(z[block], y[block], c[block])
            risk += float(value)
            # The loss returns c_i l'(z_i): divide by the weight, and leave rows without weight at 0.
            if fresh:
                u[block] = np.where(c[block] > 0, dz / np.where(c[block] > 0, c[block], 1.0), 0.0)
            self.X.pullback(c[block] * u[block], block.start, block.stop, a)
        conjugate = self.loss.conjugate(y).value(u)
        # Magnitudes of the terms, for the bound on the rounding error.
        size = c @ (abs(conjugate) + abs(u) * (abs(z) + 1.0))
        return risk, -float(c @ conjugate), float(size)
