r"""Dual block ascent for the soft margin of many classes, with L2.

Each row has multipliers :math:`\beta_i` on a simplex, one a class. Together they make the cut
:math:`a = \sum_i c_i\, x_i (\beta_i - e_{y_i})^\top,\; b = \sum_i c_i\, \beta_i^\top \Delta_{y_i}`, and a
visit to a row moves its multipliers to where the bound of that cut is the largest, all others fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.losses.multiclass import MulticlassHinge
from riskmin.matrices import Csr, Dense
from riskmin.objective import Objective
from riskmin.regularizers import L2
from riskmin.scalar import ROUNDING
from riskmin.shards import blocks
from riskmin.solvers.dual_exact import CALM, MOST_WORK, SPACING, rows_together
from riskmin.types import Array, Balances, Cut, Iterate, NDArray, Shard, Unsuited

NEVER = -1e300
"""The cost of a class that does not exist: those that fill up the last four."""


def _kernels() -> Any:
    from riskmin.kernels import dual_multiclass  # Numba is imported by the first sweep, not with the package

    return dual_multiclass


def check_suited(solver: Any, obj: Objective) -> None:
    """Raise `Unsuited` where the risk is another than this method is for."""
    name, risk = type(solver).__name__, obj.risk
    loss: Any = getattr(risk, "loss", None)
    if isinstance(risk, Balances):
        raise Unsuited(f"{name} cannot do with intercepts of many classes: use Smoothing")
    if not isinstance(loss, MulticlassHinge) or loss.rescaled:
        raise Unsuited(
            f"{name} takes MulticlassHinge() of all losses of many scores, and not rescaled, not {loss!r}: "
            "use Lbfgs where it is smooth, and Bundle where it is not"
        )
    if getattr(risk, "rows", None) is None:
        raise Unsuited(f"{name} visits rows of X one by one, and they are elsewhere: use Smoothing")
    if not (isinstance(obj.reg, L2) and obj.reg.plain):
        raise Unsuited(f"{name} needs L2() for losses of many scores, not {obj.reg!r}: use Smoothing")
    if solver.step == "gradient":
        raise Unsuited(f"{name} has no gradient steps for {loss!r}: use step='auto'")


@dataclass
class BlockAscent:
    """A run: the multipliers, and the weights that belong to them."""

    solver: Any
    obj: Objective
    shard: Shard
    X: Csr | Dense
    y: NDArray
    """The classes, to be used as indices."""
    cost: NDArray
    beta: NDArray
    terms: NDArray
    rows: NDArray
    """Those that can move: not empty, and of weight > 0."""
    order: NDArray
    """The active rows first, in the order of their visits."""
    asleep: NDArray
    """The classes that are left out until the next check, of dense rows."""
    rng: NDArray
    out: NDArray
    W: NDArray
    """The weights, as a sweep wants them."""
    active: int
    visits: float = 0.0

    @classmethod
    def of(cls, solver: Any, obj: Objective) -> Self:
        risk: Any = obj.risk
        shard, k = risk.rows, risk.scorer.columns
        X = rows_together(shard)
        n, p = X.shape
        dense = isinstance(X, Dense)
        wide = k if dense else -(-k // 4) * 4
        cost = np.full((k, wide), NEVER)
        cost[:, :k] = 1.0 - np.eye(k) if risk.loss.cost is None else risk.loss.cost
        step = shard.c / obj.lam
        terms = np.column_stack([step * _norms(shard, X), step])
        rows = np.flatnonzero(terms[:, 0] > 0).astype(np.uint32)
        rng = np.random.SeedSequence(solver.seed).generate_state(1, np.uint64) | np.uint64(1)
        beta, W = np.zeros((n, wide)), np.zeros((k, p) if dense else (p, wide))
        asleep = np.zeros((n, wide) if dense else (0, 0), dtype=bool)
        parts = shard.y.astype(np.uintp), cost, beta, terms, rows, rows.copy(), asleep, rng, np.zeros(3), W
        return cls(solver, obj, shard, X, *parts, len(rows))

    # ------------------------------------------------------------ weights and multipliers
    @property
    def k(self) -> int:
        return len(self.cost)

    def _flat(self) -> NDArray:
        """The weights as the vector w, a copy."""
        W = self.W.T if isinstance(self.X, Dense) else self.W[:, : self.k]
        return W.flatten()

    def _put(self, w: NDArray) -> None:
        W = w.reshape(-1, self.k)
        if isinstance(self.X, Dense):
            self.W[:] = W.T
        else:
            self.W[:, : self.k] = W

    def started(self, w0: Array, beta: NDArray | None = None) -> Iterator[Iterate]:
        """From those multipliers; or those of the loss at w0, as they are shrunk to bound best."""
        own = np.arange(len(self.y)), self.y
        if beta is None:
            self._widest(w0)
        else:
            self.beta[:, : self.k] = beta
        value, cut = self._check(w0)
        if beta is None:
            s = self.obj.reg.scale(cut, self.obj.lam)
            self.beta[self.rows] *= s  # the best multipliers of empty rows are those at zero
            self.beta[own] += 1.0 - self.beta.sum(axis=1)
            self._put(self.obj.argmin(Cut(s * cut.a, 0.0)))
        else:
            self._put(self.obj.argmin(cut))
        self.active, self.order[:], self.out[:] = len(self.rows), self.rows, 0.0
        yield self._iterate(w0, value, cut)
        yield from self._go()

    def _widest(self, w0: Array) -> None:
        """All weight of a row on the largest of its slacks at w0, in equal parts if there are many."""
        for i, j in blocks(self.shard, self.obj.risk.scorer):  # type: ignore[attr-defined]
            slack = self.cost[self.y[i:j], : self.k]
            if w0.any():
                slack = slack + self.X.scores(w0.reshape(-1, self.k), i, j)
            best = slack == slack.max(axis=1, keepdims=True)
            self.beta[i:j, : self.k] = best / best.sum(axis=1, keepdims=True)

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        self.beta[:, : self.k] = state["beta"]
        self.order, self.rng = state["order"].copy(), state["rng"].copy()
        self._put(state["next"])
        self.out[0], self.visits, self.active = state["out"][0], float(state["out"][1]), int(state["out"][2])
        return self._go()

    # ------------------------------------------------------------ a run
    def _go(self) -> Iterator[Iterate]:
        k, moved = _kernels(), True
        while moved:
            self._sweeps()
            moved = self.out[k.MOVES] > 0
            w = self._flat()
            value, cut = self._check(w)
            self._put(self.obj.argmin(cut))  # anew, so that rounding does not add up
            yield self._iterate(w, value, cut)

    def _sweeps(self) -> None:
        """Epochs over the active rows, until a check is due."""
        k, s, n = _kernels(), self.solver, len(self.rows)
        X = self.X
        size = (X.data.size if isinstance(X, Csr) else X.X.size) * self.k
        budget = min(max(n, SPACING * self.visits), max(4.0, MOST_WORK / max(1, size)) * n)
        calm = CALM * self.out[k.MOST]
        self.out[k.VISITS] = self.out[k.MOVES] = 0
        self.asleep[:] = False
        while self.active:
            row = self.y, self.terms, self.cost, self.order, self.active
            how = s.damping, s.shrink, s.shuffle, self.rng, self.out
            if isinstance(X, Csr):
                self.active = k.sweep(X.indptr, X.indices, X.data, self.W, self.beta, *row, *how)
            else:
                self.active = k.dense_sweep(X.X, self.W, self.beta, self.asleep, *row, *how)
            if self.out[k.VISITS] >= budget or self.out[k.MOST] <= calm:
                break
        self.visits += self.out[k.VISITS]

    def _check(self, w: NDArray) -> tuple[float, Cut]:
        """R(w) and the cut of the multipliers, by one pass over X; the rows that are active from now on."""
        k, W, A = _kernels(), w.reshape(-1, self.k), np.zeros((self.X.shape[1], self.k))
        sums, marks = np.zeros(3), np.empty((len(self.y), 2))
        for i, j in blocks(self.shard, self.obj.risk.scorer):  # type: ignore[attr-defined]
            z = self.X.scores(W, i, j)
            k.check(z, self.beta, self.y, self.shard.c, self.cost, i, sums, marks)
            self.X.pullback(z, i, j, A)  # the slopes are in the place of the scores
        self.obj.count.calls += 1
        if self.solver.shrink:
            self.active = k.select(marks, self.rows, self.order, self.out)
        value, gain, size = (float(v) for v in sums)
        return value, Cut(A.reshape(-1), gain - ROUNDING * size)

    def _iterate(self, w: NDArray, risk: float, cut: Cut) -> Iterate:
        state = {
            "beta": self.beta[:, : self.k].copy(),
            "w": w,
            "next": self._flat(),
            "order": self.order.copy(),
            "rng": self.rng.copy(),
            "out": np.array([self.out[0], self.visits, self.active]),
        }
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        return Iterate(w, risk + self.obj.lam * self.obj.reg.value(w), cut, info, lambda: state)


def _norms(shard: Shard, X: Csr | Dense) -> NDArray:
    """|x_i|^2, kept with the shard for other lam."""
    if "norms" not in shard.memo:
        n = X.shape[0]
        ends = X.indptr if isinstance(X, Csr) else np.arange(n + 1, dtype=np.uintp) * np.uintp(X.shape[1])
        q = np.empty(n)
        _kernels().norms(X.data if isinstance(X, Csr) else X.X.ravel(), ends, q)
        shard.memo["norms"] = q
    kept: NDArray = shard.memo["norms"]
    return kept
