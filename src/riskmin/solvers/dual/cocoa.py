r"""Dual coordinate ascent for remote rows: each shard sweeps its own rows, and the results are combined.

The method is CoCoA+ (Ma, Smith, Jaggi, Jordan, Richtarik and Takac, 2015). A round sends w and the dual
variables of its rows to each shard. Shard k, without knowledge of the other shards' steps, increases

.. math:: \sum_{i \in k} -c_i\, l^*(u_i + d_i, y_i) + w^\top a_k - \frac{\sigma}{2 \lambda} \|a_k\|^2,
          \qquad a_k = \sum_{i \in k} c_i d_i x_i:

the sweeps of a single machine around w, with :math:`\lambda / \sigma` instead of lam. For any sigma up to the
number K of shards, moving sigma / K of the combined step raises the bound by that part of the shards' gains,
since :math:`\|\sum_k a_k\|^2 \le K \sum_k \|a_k\|^2`. In this implementation the end of the step gives a cut,
and the next dual variables are the best mixture of that cut and a few others: the bound never decreases, and
sigma can be what the last round would have needed, :math:`\|\sum_k a_k\|^2 / \sum_k \|a_k\|^2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Shard
from riskmin.core.limits import LIMITS
from riskmin.executors.base import row_ends, sum_tuples
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.numerics.simplex_qp import simplex_qp
from riskmin.problem.certificate import tangent as risk_tangent
from riskmin.problem.objective import Objective
from riskmin.solvers.dual.ascent import sweep_kernels
from riskmin.solvers.dual.row_state import RowState, rng_state, scale_of
from riskmin.solvers.state_checks import check_state


def cocoa_iterates(
    solver: Any, obj: Objective, w0: Array, u0: Array | None, state: dict[str, Array] | None
) -> Iterator[Iterate]:
    """Return the iterates of a run on the shards of a risk, from a saved state if there is one."""
    run = Cocoa.for_shard(solver, obj)
    if state is None:
        return run.start(w0, u0)
    # The state of a run on local rows has dual variables, too.
    return run.resume(state) if "rounds" in state else run.start(w0, state["u"])


# ---------------------------------------------------------------- work of a shard
class RoundTask(NamedTuple):
    """Settings of a round, equal for all shards."""

    loss: Any
    scale: NDArray
    """1 / m for the regularizer's weights m; of length 0 if all are 1."""
    lam: float
    """lam / sigma."""
    epochs: int
    damping: float
    shrink: bool
    shuffle: bool


class RoundSums(NamedTuple):
    """Sums of a round over some or all shards."""

    risk: float
    """R(v)."""
    grad: NDArray
    """Gradient of R at v."""
    terms: float
    """Sum of the absolute terms of its cut, which bounds the rounding error."""
    slope: NDArray
    """Slope of the cut of the dual variables."""
    offset: float
    """Offset of that cut."""
    size: float
    """Sum of its absolute terms, which bounds the rounding error."""
    change_sq: float
    """Sum over shards of |a_k|^2, the squared change of their slopes, in the norm of the regularizer's
    conjugate."""
    visits: float


def sweep_shard(
    shard: Shard, task: RoundTask, w: NDArray, v: NDArray, duals_and_seeds: tuple[NDArray, tuple[int, ...]]
) -> tuple[NDArray, NDArray, RoundSums]:
    """Sweep the rows of a shard around w, from their dual variables, and evaluate the risk at v.

    Returns the dual variables, the slopes of the loss at v, and sums. Nothing is cached but data derived from
    X alone.
    """
    (u, seeds), (y, c) = duals_and_seeds, shard[1:3]
    state = RowState.create(shard, task.loss, task.scale, task.lam, rng_state(*seeds))
    fixed = np.ones(len(u), dtype=bool)
    fixed[state.rows] = False
    # No visit moves empty rows, whose score is zero, or rows of weight zero: set their slopes here.
    if fixed.any():
        u = np.where(fixed, _slopes(task.loss, 0.0 * u, y), u)
    state.set_duals(u)
    # With lam / sigma, steps move w_local sigma times as far, to allow for the steps of the other shards.
    w_local = w.copy()
    for _ in range(task.epochs if state.active else 0):
        state.sweep(w_local, task)
    # w - w_local = (sigma / lam) a_k / m, so change = a_k / m, and change_sq = sum_j a_kj^2 / m_j.
    change = task.lam * (w - w_local)
    change_sq = float(change @ (change / task.scale if len(task.scale) else change))
    risk, offset, size, z, u, slope = state.evaluate(v)
    slopes, grad = _slopes(task.loss, z, y), np.zeros(len(v))
    state.X.pullback(c * slopes, 0, len(c), grad)
    # |g'v| <= sum_i c_i |l'(z_i) z_i|: the terms that cancel in the offset of the tangent at v.
    terms = float((c * abs(slopes)) @ abs(z))
    visits = float(state.sweep_stats[sweep_kernels().N_VISITS])
    return u, slopes, RoundSums(risk, grad, terms, slope, offset, size, change_sq, visits)


def _slopes(loss: Any, z: NDArray, y: NDArray) -> NDArray:
    slopes: NDArray = loss.value_grad(z, y, np.ones(len(z)))[1]
    return slopes


# ---------------------------------------------------------------- cuts
@dataclass
class CutPool:
    """A few cuts with their dual variables, and the weights x of their best mixture."""

    MAX_CUTS = 12
    """Maximum number of cuts in the mixture; each is stored with its dual variables, one per row."""

    reg: Any
    lam: float
    A: NDArray
    b: NDArray
    U: list[NDArray]
    x: NDArray

    @classmethod
    def create(cls, obj: Objective, n: int) -> Self:
        """Return a pool with the cut R >= 0."""
        return cls(obj.reg, obj.lam, np.zeros((1, obj.risk.dim)), np.zeros(1), [np.zeros(n)], np.ones(1))

    @property
    def cut(self) -> Cut:
        """The mixture."""
        return Cut(self.x @ self.A, float(self.x @ self.b))

    @property
    def u(self) -> NDArray:
        """Mixture of the dual variables; their own cut bounds no worse, since conjugates are convex."""
        mixed: NDArray = sum(t * u for t, u in zip(self.x, self.U, strict=True))
        return mixed

    def add_cuts(self, *more: tuple[Cut, NDArray]) -> None:
        """Add cuts and recompute the best mixture; drop the oldest of those without weight."""
        self.A = np.concatenate([self.A, [cut.a for cut, _ in more]])
        self.b = np.append(self.b, [cut.b for cut, _ in more])
        self.U += [u for _, u in more]
        # G = A K^-1 A' / lam, the quadratic form of the master problem.
        G = np.array([self.reg.inverse_metric_product(self.A, a) for a in self.A]) / self.lam
        self.x = simplex_qp(G, self.b, np.append(self.x, np.zeros(len(more))))
        max_cuts = min(max(LIMITS.stored_duals // max(1, len(self.U[0])), 3), self.MAX_CUTS)
        used = np.flatnonzero(self.x)
        # Merge the cuts of least weight into one.
        if len(used) > max_cuts:
            order = np.argsort(-self.x, kind="stable")
            self._merge(order[max_cuts - 1 : len(used)])
        # A cut without weight now may get weight together with later ones: keep the newest.
        # Cuts with weight rank above those without, and newer ones above older ones.
        rank = np.arange(len(self.x)) + len(self.x) * (self.x > 0)
        self._keep(np.sort(np.argsort(rank)[-max_cuts:]))

    def _merge(self, merged: NDArray) -> None:
        """Replace some cuts by their mixture, with the sum of their weights."""
        weight = float(self.x[merged].sum())
        x = self.x[merged] / weight
        a, b = x @ self.A[merged], float(x @ self.b[merged])
        u = sum(t * self.U[k] for t, k in zip(x, merged, strict=True))
        self._keep(np.setdiff1d(np.arange(len(self.x)), merged))
        self.A, self.b = np.concatenate([self.A, [a]]), np.append(self.b, b)
        self.U, self.x = [*self.U, u], np.append(self.x, weight)

    def _keep(self, keep: NDArray) -> None:
        self.A, self.b, self.x = self.A[keep], self.b[keep], self.x[keep]
        self.U = [self.U[k] for k in keep]


# ---------------------------------------------------------------- a run
@dataclass
class Cocoa:
    """State of a CoCoA+ run on shards."""

    EVALUATE_AT_FRACTION = 0.5
    """Evaluate J at this fraction of the segment from the best point to the w of the bound, which oscillates.
    Chosen, not tuned: a smaller fraction or more cuts may save some rounds, and half as many cuts take
    more."""

    solver: Any
    obj: Objective
    row_offsets: list[int]
    """First row of each shard, and the number of rows."""
    pool: CutPool
    sigma: float
    best: NDArray
    """Best point so far."""
    value: float = np.inf
    """J at the best point."""
    round: int = 0
    visits: float = 0.0

    @classmethod
    def for_shard(cls, solver: Any, obj: Objective) -> Self:
        """Return the run on the shards of a risk."""
        risk: Any = obj.risk
        row_offsets = row_ends(risk.executor)
        return cls(
            solver,
            obj,
            row_offsets,
            CutPool.create(obj, row_offsets[-1]),
            # sigma = K is safe for every partition of the rows.
            float(len(row_offsets) - 1),
            np.zeros(risk.dim),
        )

    def start(self, w0: Array, u0: Array | None = None) -> Iterator[Iterate]:
        """Start from given dual variables, or zero, and from the slopes of the loss at w0."""
        w0 = np.array(w0, dtype=float)
        # A round without epochs evaluates J and the cuts only.
        yield self._run_round(w0, w0, self.pool.u if u0 is None else u0, 0)
        yield from self._loop()

    def resume(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        shapes = {"u": "n", "w": "d", "best": "d", "cuts": "m e", "duals": "m n", "weights": "m"}
        check_state(
            state,
            shapes | {"rounds": "4"},
            n=self.row_offsets[-1],
            d=self.obj.risk.dim,
            e=self.obj.risk.dim + 1,
        )
        obj, cuts = self.obj, state["cuts"]
        duals = [row.copy() for row in state["duals"]]
        self.pool = CutPool(
            obj.reg, obj.lam, cuts[:, :-1].copy(), cuts[:, -1].copy(), duals, state["weights"]
        )
        self.best = state["best"]
        self.sigma, self.value, rounds, self.visits = (float(v) for v in state["rounds"])
        self.round = int(rounds)
        return self._loop()

    def _loop(self) -> Iterator[Iterate]:
        while True:
            w = self.obj.argmin(self.pool.cut)
            # The first w of a bound is evaluated itself: the best point is only the starting point then.
            fraction = self.EVALUATE_AT_FRACTION if self.round > 1 else 1.0
            yield self._run_round(
                w, self.best + fraction * (w - self.best), self.pool.u, self.solver.local_epochs
            )

    def _run_round(self, w: NDArray, v: NDArray, u: NDArray, epochs: int) -> Iterate:
        """Make a round: shards sweep around w and evaluate at v; their cuts enter the mixture."""
        obj, before = self.obj, self.pool.cut.a
        duals, slopes, sums = self._run_shards(w, v, u, epochs)
        value, _, tangent = obj.add_penalty(
            v, risk_tangent(v, sums.risk, sums.grad, CUT_ROUNDING * sums.terms)
        )
        # Minus a bound on the rounding error, by the magnitudes of the terms.
        self.pool.add_cuts(
            (Cut(sums.slope, sums.offset - CUT_ROUNDING * sums.size), duals), (tangent, slopes)
        )
        if value < self.value:
            self.best, self.value = v, value
        if sums.change_sq > 0:
            # sigma = |sum_k a_k|^2 / sum_k |a_k|^2, between 1 and the number of shards.
            # The conjugate of the regularizer is half of the squared norm.
            change = 2 * obj.reg.conjugate(sums.slope - before)
            self.sigma = min(max(change / sums.change_sq, 1.0), float(len(self.row_offsets) - 1))
        self.round += 1
        self.visits += sums.visits
        info = {"epochs": self.visits / max(1, self.row_offsets[-1]), "sigma": self.sigma}
        return Iterate(v, value, self.pool.cut, info, self._state(v))

    def _run_shards(
        self, w: NDArray, v: NDArray, u: NDArray, epochs: int
    ) -> tuple[NDArray, NDArray, RoundSums]:
        """Run a round on all shards; return the dual variables, the slopes at v, and the sums."""
        risk: Any = self.obj.risk
        s, scale = self.solver, scale_of(self.obj.reg, risk.dim)
        task = RoundTask(risk.loss, scale, self.obj.lam / self.sigma, epochs, s.damping, s.shrink, s.shuffle)
        # Each shard gets the dual variables of its rows, and a seed that depends on the round and the shard.
        per_shard = [(u[i:j], (s.seed, self.round, k)) for k, (i, j) in enumerate(pairwise(self.row_offsets))]
        self.obj.count.calls += 1
        duals, slopes, sums = zip(*risk.executor.map(sweep_shard, task, w, v, each=per_shard), strict=True)
        return np.concatenate(duals), np.concatenate(slopes), RoundSums(*sum_tuples(sums))

    def _state(self, v: NDArray) -> Any:
        pool, best = self.pool, self.best
        A, b, U, x = pool.A, pool.b, list(pool.U), pool.x
        numbers = np.array([self.sigma, self.value, self.round, self.visits])

        # The pool replaces its arrays and never changes them, so the state needs no copies.
        def state() -> dict[str, Array]:
            cuts, duals = np.column_stack([A, b]), np.array(U)
            return {
                "u": x @ duals,
                "w": v,
                "best": best,
                "cuts": cuts,
                "duals": duals,
                "weights": x,
                "rounds": numbers,
            }

        return state
