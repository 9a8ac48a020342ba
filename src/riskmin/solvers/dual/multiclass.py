r"""Dual block ascent for the multiclass hinge loss, with L2.

Each row has multipliers :math:`\beta_i` on a simplex, one per class. Together they define the cut
:math:`a = \sum_i c_i\, x_i (\beta_i - e_{y_i})^\top,\; b = \sum_i c_i\, \beta_i^\top \Delta_{y_i}`, and a
visit to a row maximizes the bound of that cut over its multipliers, with all others fixed. The reported point
is the best one between the weights of the multipliers and the previous such point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense
from riskmin.core import Array, Cut, Iterate, NDArray, Shard
from riskmin.core.deadline import chunk_ranges
from riskmin.losses.multiclass import MulticlassHinge
from riskmin.problem.certificate import lowered_cut
from riskmin.problem.design_operator import row_major_matrix
from riskmin.problem.objective import Objective
from riskmin.problem.shard_ops import blocks
from riskmin.solvers.dual.best_iterate import BestIterate
from riskmin.solvers.dual.exact import CHECK_AT_SLOPE_RATIO, MAX_ENTRIES_BETWEEN_CHECKS
from riskmin.solvers.state_checks import check_row_order, check_state
from riskmin.solvers.weights import outputs_share_weights


def _kernels() -> Any:
    from riskmin._numba.dual import multiclass_sweep  # Numba is imported on first use, not with the package

    return multiclass_sweep


def _checks() -> Any:
    from riskmin._numba.dual import multiclass_check

    return multiclass_check


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
class MulticlassAscent:
    """State of a run: the multipliers, their weights, and the best point."""

    MISSING_CLASS_COST = -1e300
    """Cost of the padding classes, which fill the last vector of four and never get weight."""
    OPS_PER_VISIT_AND_CLASS = 16
    """Elementary operations of a visit to a row, per class."""
    MULTICLASS_CHECK_SPACING_SHARE = 0.15
    """Visits between two checks, as a share of all visits before, at least one epoch."""
    MIN_PRODUCTS_AFTER_CHANGE = 2**16
    """Minimum number of products between checks once the problem has been changed during the run: on small
    data a check costs more than the sweeps."""

    solver: Any
    obj: Objective
    shard: Shard
    X: Csr | Dense
    y: NDArray
    """Class indices."""
    cost: NDArray
    """Cost of predicting column j for class i, padded to a multiple of four columns."""
    beta: NDArray
    """Multipliers, one row on the simplex per row of X."""
    terms: NDArray
    """c |x|^2 / lam and c / lam, per row."""
    rows: NDArray
    """Rows that can move: not empty, and of positive weight."""
    order: NDArray
    """Active rows first, in visiting order."""
    active_classes: NDArray
    """Classes that a visit considers, first in each row; all of them after a check."""
    n_active_classes: NDArray
    """Number of these, per row."""
    rng: NDArray
    sweep_stats: NDArray
    """Largest violation, moves and further counters; the slots are named in
    `_numba.dual.multiclass_sweep`."""
    W: NDArray
    """Weights in the layout of the sweep: (k, p) for dense X, (p, padded k) for sparse X."""
    active: int
    """Number of active rows."""
    best: BestIterate
    visits: float = 0.0
    visits_before_change: float = 0.0
    """Visits before the last change of the problem."""
    may_improve: bool = True
    """Whether a multiplier moved in the last sweeps, or the problem changed."""

    @classmethod
    def create(cls, solver: Any, obj: Objective) -> Self:
        """Return a run with all multipliers zero."""
        risk: Any = obj.risk
        shard, k = risk.rows, risk.linear_map.columns
        X = row_major_matrix(shard)
        n, p = X.shape
        dense = not X.sparse
        # Sparse rows process classes in vectors of four.
        padded_k = k if dense else -(-k // 4) * 4
        cost = np.full((k, padded_k), cls.MISSING_CLASS_COST)
        cost[:, :k] = 1.0 - np.eye(k) if risk.loss.cost is None else risk.loss.cost
        step = shard.c / obj.lam
        # c |x|^2 / lam is the curvature of the dual in the multipliers of a row.
        terms = np.column_stack([step * squared_norms(shard, X), step])
        rows = np.flatnonzero(terms[:, 0] > 0).astype(np.uint32)
        rng = np.random.SeedSequence(solver.seed).generate_state(1, np.uint64) | np.uint64(1)
        beta, W = np.zeros((n, padded_k)), np.zeros((k, p) if dense else (p, padded_k))
        # The smallest type that holds all classes: the array has one entry per row and class.
        active_classes = np.zeros((n, k), dtype=np.uint16 if k < 2**16 else np.uint32)
        n_active = np.zeros(len(active_classes), dtype=np.int64)
        arrays = (
            shard.y.astype(np.uintp),
            cost,
            beta,
            terms,
            rows,
            rows.copy(),
            active_classes,
            n_active,
            rng,
            np.zeros(5),
            W,
        )
        best = BestIterate(obj, (arrays[0], shard.c, cost), np.zeros(p * k), np.zeros((n, k)))
        return cls(solver, obj, shard, X, *arrays, len(rows), best)

    # ------------------------------------------------------------ weights and multipliers
    @property
    def k(self) -> int:
        """Number of classes."""
        return len(self.cost)

    def _weight_vector(self) -> NDArray:
        """Return a copy of the weights as the vector w."""
        return (self.W[:, : self.k] if self.X.sparse else self.W.T).flatten()

    def _set_weights(self, w: NDArray) -> None:
        """Store the vector w in the layout of the sweep."""
        W = w.reshape(-1, self.k)
        if self.X.sparse:
            self.W[:, : self.k] = W
        else:
            self.W[:] = W.T

    def _scale_multipliers(self, s: float) -> None:
        """Scale all multipliers but those of the true classes, which keep the sum at one."""
        # Multipliers of empty rows are already optimal.
        self.beta[self.rows] *= s
        # A row of multipliers lies on the simplex: that of the true class is one minus all others.
        true_class = np.arange(len(self.y)), self.y
        self.beta[true_class] = 0.0
        self.beta[true_class] = np.maximum(1.0 - self.beta.sum(axis=1), 0.0)

    def _start_at_largest_slack(self, w0: Array) -> None:
        """Put all weight of a row on its largest slack cost + score at w0, in equal parts on ties."""
        for i, j in self._blocks():
            slack = self.cost[self.y[i:j], : self.k]
            if w0.any():
                slack = slack + self.X.scores(w0.reshape(-1, self.k), i, j)
            best = slack == slack.max(axis=1, keepdims=True)
            self.beta[i:j, : self.k] = best / best.sum(axis=1, keepdims=True)

    # ------------------------------------------------------------ starts
    def start(self, w0: Array, beta: NDArray | None = None) -> Iterator[Iterate]:
        """Start from given multipliers, or from those of the loss at w0, scaled to the best bound."""
        obj, lam = self.obj, self.obj.lam
        if beta is None:
            self._start_at_largest_slack(w0)
        else:
            self.beta[:, : self.k] = beta
        risk, z, cut = self._check(w0)
        s = obj.reg.scale(cut, lam) if beta is None else 1.0
        self._scale_multipliers(s)
        self._set_weights(obj.argmin(Cut(s * cut.a, 0.0)))
        self.best.w, self.best.z = w0, z
        # All rows are active until the next check.
        self.active, self.order[:], self.sweep_stats[:] = len(self.rows), self.rows, 0.0
        yield self._iterate(risk + lam * obj.reg.value(w0), cut)
        yield from self._loop()

    def resume(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        # out: largest violation, visits, active rows.
        shapes = {"beta": "n k", "order": "m", "rng": "1", "w": "d", "next": "d", "out": "3"}
        limits = {"order": len(self.beta), "rng": 2**64}
        check_state(state, shapes, limits, n=len(self.beta), k=self.k, m=len(self.order), d=self.obj.risk.dim)
        self.beta[:, : self.k] = state["beta"]
        self.order, self.rng = state["order"].copy(), state["rng"].copy()
        self.best.w, self.best.z = state["w"].copy(), self._scores(state["w"])
        self._set_weights(state["next"])
        self.sweep_stats[0], self.visits, self.active = state["out"][0], *map(int, state["out"][1:])
        if not 0 <= self.active <= len(self.order):
            raise ValueError(f"its array out has {self.active} active rows of {len(self.order)}")
        check_row_order(self.order[: self.active], len(self.order))
        return self._loop()

    # ------------------------------------------------------------ a run
    def _loop(self) -> Iterator[Iterate]:
        """Yield iterates: sweeps, then a check."""
        k = _kernels()
        while self.may_improve:
            self._sweeps()
            self.may_improve = self.sweep_stats[k.N_ROW_MOVES] > 0
            w = self._weight_vector()
            risk, z, cut = self._check(w)
            # Recomputed from the cut, so that rounding errors do not accumulate.
            self._set_weights(self.obj.argmin(cut))
            value = self.best.update(w, z, risk, cut)
            yield self._iterate(value, cut)

    def _sweeps(self) -> None:
        """Make epochs over the active rows until a check is due."""
        k, n = _kernels(), len(self.rows)
        # Entries of X times classes, in units of four: that is the length of a vector operation.
        products = self.X.nnz * max(1.0, self.k / 4)
        visits = self.visits - self.visits_before_change
        min_epochs = max(1.0, self.MIN_PRODUCTS_AFTER_CHANGE / max(1.0, products))
        max_epochs = max(4.0, MAX_ENTRIES_BETWEEN_CHECKS / max(1.0, products))
        min_visits = n * min_epochs if self.visits_before_change else n
        budget = min(max(min_visits, self.MULTICLASS_CHECK_SPACING_SHARE * visits), max_epochs * n)
        slope_target = CHECK_AT_SLOPE_RATIO * self.sweep_stats[k.MAX_VIOLATION]
        self.sweep_stats[k.N_ROW_MOVES], goal = 0, self.visits + budget
        self._activate_all_classes()
        while self.active:
            self.active = self._sweep()
            if self.visits >= goal or self.sweep_stats[k.MAX_VIOLATION] <= slope_target:
                break

    def _activate_all_classes(self) -> None:
        """Consider all classes again."""
        self.active_classes[:], self.n_active_classes[:] = np.arange(self.k), self.k

    def _sweep(self) -> int:
        """Visit the active rows once; return how many remain active."""
        k, X, s = _kernels(), self.X, self.solver
        self.visits += self.active
        # Dense rows use one row of W per class, sparse rows one row of W per feature.
        run = k.sweep if X.sparse else k.dense_sweep
        data = (X.indptr, X.indices, X.data) if X.sparse else (X.X,)
        state = self.W, self.beta, self.active_classes, self.n_active_classes, self.y, self.terms, self.cost
        options = None if s.damping == 1.0 else s.damping, s.shrink, s.shuffle, self.rng
        workspace = [*np.empty((5 if X.sparse else 4, self.cost.shape[1]))]
        if X.sparse:
            workspace.append(np.zeros(self.cost.shape[1], np.uintp))
        # Kernels are called on ranges of rows so that deadlines are checked in between.
        entries_per_row = X.nnz / max(1, X.shape[0])
        operations = self.active * self.k * (self.OPS_PER_VISIT_AND_CLASS + entries_per_row)
        stats = self.sweep_stats
        for piece in chunk_ranges(0, self.active, operations):
            active = run(*data, *state, self.order, self.active, *piece, *options, *workspace, stats)
        return int(active)

    # ------------------------------------------------------------ checks
    def _blocks(self) -> Iterator[tuple[int, int]]:
        risk: Any = self.obj.risk
        yield from blocks(self.shard, risk.linear_map)

    def _scores(self, w: NDArray) -> NDArray:
        """Return X W for all rows."""
        return np.concatenate([self.X.scores(w.reshape(-1, self.k), i, j) for i, j in self._blocks()])

    def _check(self, w: NDArray) -> tuple[float, NDArray, Cut]:
        """Return R(w), the scores, and the cut, by one pass over X; select the active rows."""
        k, W, A = _checks(), w.reshape(-1, self.k), np.zeros((self.X.shape[1], self.k))
        sums, violations, z = np.zeros(3), np.empty((len(self.y), 2)), np.empty((len(self.y), self.k))
        workspace = np.empty((2, self.k))
        # One block of rows at a time: scores, then the kernel, then the adjoint product.
        for i, j in self._blocks():
            z[i:j], D = self.X.scores(W, i, j), np.empty((j - i, self.k))
            k.evaluate_multiclass_rows(
                z[i:j], self.beta, self.y, self.shard.c, self.cost, i, *workspace, D, sums, violations
            )
            self.X.pullback(D, i, j, A)
        self.obj.count.calls += 1
        if self.solver.shrink:
            self.active = k.select_violating_rows(violations, self.rows, self.order, self.sweep_stats)
        # b = sum_i c_i beta_i' cost_i, minus a bound on its rounding error.
        risk, gain, size = (float(v) for v in sums)
        return risk, z, lowered_cut(A.reshape(-1), gain, size)

    def _iterate(self, value: float, cut: Cut) -> Iterate:
        state = {
            "beta": self.beta[:, : self.k].copy(),
            "w": self.best.w,
            "next": self._weight_vector(),
            "order": self.order.copy(),
            "rng": self.rng.copy(),
            "out": np.array([self.sweep_stats[0], self.visits, self.active]),
        }
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        return Iterate(self.best.w, value, cut, info, lambda: state)


def squared_norms(shard: Shard, X: Csr | Dense) -> NDArray:
    """Return |x_i|^2 per row; cached with the shard, since it does not depend on lam."""
    if "norms" not in shard.cache:
        from riskmin._numba.dual.check import squared_row_norms

        n, q, ends, data = X.shape[0], np.empty(X.shape[0]), X.row_ends, X.values
        for i, j in chunk_ranges(0, n, len(data)):
            squared_row_norms(None, data, ends[i : j + 1], None, q[i:j])
        shard.cache["norms"] = q
    cached: NDArray = shard.cache["norms"]
    return cached
