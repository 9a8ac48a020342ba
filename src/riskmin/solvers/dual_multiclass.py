r"""Dual block ascent for the soft margin of many classes, with L2.

Each row has multipliers :math:`\beta_i` on a simplex, one a class. Together they make the cut
:math:`a = \sum_i c_i\, x_i (\beta_i - e_{y_i})^\top,\; b = \sum_i c_i\, \beta_i^\top \Delta_{y_i}`, and a
visit to a row moves its multipliers to where the bound of that cut is the largest, all others fixed.
The point that is reported is the best one between the weights of the multipliers and the last such point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.deadline import pieces
from riskmin.losses.multiclass import MulticlassHinge
from riskmin.matrices import Csr, Dense
from riskmin.objective import Objective
from riskmin.regularizers import L2
from riskmin.scalar import ROUNDING
from riskmin.shards import blocks
from riskmin.solvers.dual_best import BestPoint
from riskmin.solvers.dual_exact import CALM, MOST_WORK
from riskmin.solvers.dual_faces import Face
from riskmin.solvers.dual_rows import numbers
from riskmin.solvers.passes import rows_together
from riskmin.solvers.states import check_places, checked
from riskmin.solvers.weights import alike
from riskmin.types import Array, Cut, Iterate, NDArray, Shard

NEVER = -1e300
"""The cost of a class that does not exist: those that fill up the last four."""
VISIT = 16
"""Elementary operations of a visit to a row, a class."""
SPACING = 0.15
"""Between two checks, visits are this part of all before, and an epoch at least."""
LEAST_WORK = 2**16
"""Once the problem was changed on the way, so many products at least: of small data, a check costs more."""
STAGES = 3.0
"""Before the first check lam falls to its value by this factor, with a sweep at each stage."""
LONG = 30.0
"""Faces are climbed after so many epochs: what takes less does not need it."""
POOR = 0.1
"""Where less than this part of a climb was taken, the next one has to wait, and twice as long each time."""


def _kernels() -> Any:
    from riskmin.kernels import dual_multiclass  # Numba is imported by the first sweep, not with the package

    return dual_multiclass


def _checks() -> Any:
    from riskmin.kernels import multiclass_checks

    return multiclass_checks


def unsuited(solver: Any, obj: Objective) -> str | None:
    """What this method cannot do with, and what to use instead; None where it is for the objective."""
    risk: Any = obj.risk
    name, loss = type(solver).__name__, getattr(risk, "loss", None)
    if not isinstance(loss, MulticlassHinge) or loss.rescaled:
        return (
            f"{name} takes no loss of many scores but MulticlassHinge, and that not rescaled, not {loss!r}: "
            "use Lbfgs where it is smooth, and Bundle where it is not"
        )
    if getattr(risk, "rows", None) is None:
        return f"{name} visits rows of X one by one, and they are elsewhere: use Smoothing"
    reg = getattr(obj.reg, "penalized", obj.reg)
    if not (isinstance(reg, L2) and alike(reg, risk.scorer.columns)):
        return f"{name} needs L2() for many scores, with one weight for all of a feature's: use Smoothing"
    return (
        f"{name} has no gradient steps for {loss!r}: use step='auto'" if solver.step == "gradient" else None
    )


@dataclass
class BlockAscent:
    """A run: the multipliers, the weights that belong to them, and the best point."""

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
    awake: NDArray
    """The classes that are looked at, first: all of them after a check."""
    counts: NDArray
    """How many they are."""
    rng: NDArray
    out: NDArray
    W: NDArray
    """The weights, as a sweep wants them."""
    active: int
    best: BestPoint
    visits: float = 0.0
    since: float = 0.0
    """How many visits there were before the problem was changed last."""
    wait: float = 0.0
    """How many checks there are to the next climb."""
    patience: float = 0.0
    """How many there were to wait for the last one."""
    fresh: bool = False
    """Whether no row was visited yet, and nothing is known from elsewhere."""
    moved: bool = True
    """Whether there may be more to gain: a multiplier moved at last, or the problem did."""

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
        terms = np.column_stack([step * squared_norms(shard, X), step])
        rows = np.flatnonzero(terms[:, 0] > 0).astype(np.uint32)
        rng = np.random.SeedSequence(solver.seed).generate_state(1, np.uint64) | np.uint64(1)
        beta, W = np.zeros((n, wide)), np.zeros((k, p) if dense else (p, wide))
        awake = np.zeros((n, k), dtype=np.uint16 if k < 2**16 else np.uint32)
        counts = np.zeros(len(awake), dtype=np.int64)
        parts = (
            shard.y.astype(np.uintp),
            cost,
            beta,
            terms,
            rows,
            rows.copy(),
            awake,
            counts,
            rng,
            np.zeros(5),
            W,
        )
        best = BestPoint(obj, (parts[0], shard.c, cost), np.zeros(p * k), np.zeros((n, k)))
        return cls(solver, obj, shard, X, *parts, len(rows), best)

    # ------------------------------------------------------------ weights and multipliers
    @property
    def k(self) -> int:
        return len(self.cost)

    def _flat(self) -> NDArray:
        """The weights as the vector w, a copy."""
        return (self.W.T if isinstance(self.X, Dense) else self.W[:, : self.k]).flatten()

    def _put(self, w: NDArray) -> None:
        W = w.reshape(-1, self.k)
        if isinstance(self.X, Dense):
            self.W[:] = W.T
        else:
            self.W[:, : self.k] = W

    def _shrink(self, s: float) -> None:
        """All multipliers less, but for those of the right classes: these of sum one again."""
        self.beta[self.rows] *= s  # those of empty rows are the best ones already
        own = np.arange(len(self.y)), self.y
        self.beta[own] = 0.0
        self.beta[own] = np.maximum(1.0 - self.beta.sum(axis=1), 0.0)

    def _widest(self, w0: Array) -> None:
        """All weight of a row on the largest of its slacks at w0, in equal parts if there are many."""
        for i, j in self._blocks():
            slack = self.cost[self.y[i:j], : self.k]
            if w0.any():
                slack = slack + self.X.scores(w0.reshape(-1, self.k), i, j)
            best = slack == slack.max(axis=1, keepdims=True)
            self.beta[i:j, : self.k] = best / best.sum(axis=1, keepdims=True)

    # ------------------------------------------------------------ starts
    def started(self, w0: Array, beta: NDArray | None = None) -> Iterator[Iterate]:
        """From those multipliers; or those of the loss at w0, as they are shrunk to bound best."""
        obj, lam = self.obj, self.obj.lam
        if beta is None:
            self._widest(w0)
        else:
            self.beta[:, : self.k] = beta
        risk, z, cut = self._check(w0)
        s = obj.reg.scale(cut, lam) if beta is None else 1.0
        self._shrink(s)
        self._put(obj.argmin(Cut(s * cut.a, 0.0)))
        self.best.w, self.best.z = w0, z
        self.active, self.order[:], self.out[:] = len(self.rows), self.rows, 0.0  # none is left out yet
        self.fresh = beta is None and not w0.any()
        yield self._iterate(risk + lam * obj.reg.value(w0), cut)
        yield from self._go(None)

    def _stages(self) -> None:
        """Sweeps with a larger lam first, where multipliers move all the way at once.

        A sweep moves those of a row by no more than about lam / (c |x|^2), so from nothing it takes many.
        Those for a larger lam, shrunk to bound best, are near to those for lam.
        """
        obj, terms = self.obj, self.terms
        now = obj.lam * float(np.mean(terms[self.rows, 0])) if len(self.rows) else 0.0
        if now <= obj.lam * STAGES:
            return
        self._shrink(0.0)
        self._wake()
        self.W[:] = 0.0
        while now > obj.lam:
            self.terms = terms * (obj.lam / now)
            self._sweep(shrink=False)
            before, now = now, max(now / STAGES, obj.lam)
            gain = float(
                np.einsum("ij,ij,i", self.beta[:, : self.k], self.cost[self.y, : self.k], self.shard.c)
            )
            size = before * before * float(np.vdot(self.W, self.W))
            s = min(1.0, now * gain / size) if size else 1.0
            self._shrink(s)
            self.W *= s * before / now
        self.terms, self.out[:] = terms, 0.0

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        shapes = {"beta": "n k", "order": "m", "rng": "1", "w": "d", "next": "d", "out": "6"}
        many = {"order": len(self.beta), "rng": 2**64}
        checked(state, shapes, many, n=len(self.beta), k=self.k, m=len(self.order), d=self.obj.risk.dim)
        self.beta[:, : self.k] = state["beta"]
        self.order, self.rng = state["order"].copy(), state["rng"].copy()
        self.best.w, self.best.z = state["w"].copy(), self._scores(state["w"])
        self._put(state["next"])
        most, self.visits, active, self.wait, self.patience, fresh = (float(v) for v in state["out"])
        self.out[0], self.active, self.fresh = most, int(active), fresh > 0
        check_places(self.order[: self.active], len(self.order))
        return self._go(self._scores(self._flat()))

    # ------------------------------------------------------------ a run
    def _go(self, z: NDArray | None) -> Iterator[Iterate]:
        """Iterates, from the scores z of the weights on where a face may be climbed."""
        k = _kernels()
        if self.fresh:
            self._stages()
        while self.moved:
            if z is not None and not self.fresh:
                self._climb(z)
            self.fresh = False
            self._sweeps()
            self.moved = self.out[k.MOVES] > 0
            w = self._flat()
            risk, z, cut = self._check(w)
            self._put(self.obj.argmin(cut))  # anew, so that rounding does not add up
            value = self.best.meet(w, z, risk, cut)
            yield self._iterate(value, cut)

    def _sweeps(self) -> None:
        """Epochs over the active rows, until a check is due."""
        k, n = _kernels(), len(self.rows)
        size = (self.X.data.size if isinstance(self.X, Csr) else self.X.X.size) * max(1.0, self.k / 4)
        known = self.visits - self.since
        least = n * max(1.0, LEAST_WORK / max(1.0, size)) if self.since else n
        budget = min(max(least, SPACING * known), max(4.0, MOST_WORK / max(1.0, size)) * n)
        calm = CALM * self.out[k.MOST]
        self.out[k.MOVES], goal = 0, self.visits + budget
        self._wake()
        while self.active:
            self.active = self._sweep(self.solver.shrink)
            if self.visits >= goal or self.out[k.MOST] <= calm:
                break

    def _wake(self) -> None:
        """Look at all classes again."""
        self.awake[:], self.counts[:] = np.arange(self.k), self.k

    def _sweep(self, shrink: bool) -> int:
        """Visit the active rows once; how many are active after that."""
        k, X, s = _kernels(), self.X, self.solver
        self.visits += self.active
        run = k.dense_sweep if isinstance(X, Dense) else k.sweep
        data = (X.X,) if isinstance(X, Dense) else (X.indptr, X.indices, X.data)
        state = self.W, self.beta, self.awake, self.counts, self.y, self.terms, self.cost
        how = None if s.damping == 1.0 else s.damping, shrink, s.shuffle, self.rng
        room = [*np.empty((4 if isinstance(X, Dense) else 5, self.cost.shape[1]))]
        if not isinstance(X, Dense):
            room.append(np.zeros(self.cost.shape[1], np.uintp))
        each = numbers(X) / max(1, X.shape[0])
        for piece in pieces(0, self.active, self.active * self.k * (VISIT + each)):
            kept = run(*data, *state, self.order, self.active, *piece, *how, *room, self.out)
        return int(kept)

    def _climb(self, z: NDArray) -> None:
        """Conjugate gradients on the face that the multipliers are on, if it is time for that."""
        if self.visits < LONG * len(self.rows) or self.wait > 0:
            self.wait = max(self.wait - 1, 0.0)
            return
        terms = self.shard.c, self.cost, self.terms[:, 0], self.obj.lam
        face = Face.of(self.X, self.beta, self.y, *terms)
        if not len(face.rows):
            return
        beta, W, t, passes = face.climb(z, self._flat().reshape(-1, self.k))
        self.beta[face.rows, : self.k] = beta
        self._put(W.reshape(-1))
        self.visits += passes * len(face.rows)
        self.patience = 2 * self.patience + 1 if t < POOR else 0.0
        self.wait = self.patience

    # ------------------------------------------------------------ checks
    def _blocks(self) -> Iterator[tuple[int, int]]:
        risk: Any = self.obj.risk
        yield from blocks(self.shard, risk.scorer)

    def _scores(self, w: NDArray) -> NDArray:
        return np.concatenate([self.X.scores(w.reshape(-1, self.k), i, j) for i, j in self._blocks()])

    def _check(self, w: NDArray) -> tuple[float, NDArray, Cut]:
        """R(w), the scores, and the cut of the multipliers, by one pass over X; and the rows to be active."""
        k, W, A = _checks(), w.reshape(-1, self.k), np.zeros((self.X.shape[1], self.k))
        sums, marks, z = np.zeros(3), np.empty((len(self.y), 2)), np.empty((len(self.y), self.k))
        room = np.empty((2, self.k))
        for i, j in self._blocks():
            z[i:j], D = self.X.scores(W, i, j), np.empty((j - i, self.k))
            k.check(z[i:j], self.beta, self.y, self.shard.c, self.cost, i, *room, D, sums, marks)
            self.X.pullback(D, i, j, A)
        self.obj.count.calls += 1
        if self.solver.shrink:
            self.active = k.select(marks, self.rows, self.order, self.out)
        risk, gain, size = (float(v) for v in sums)
        return risk, z, Cut(A.reshape(-1), gain - ROUNDING * size)

    def _iterate(self, value: float, cut: Cut) -> Iterate:
        state = {
            "beta": self.beta[:, : self.k].copy(),
            "w": self.best.w,
            "next": self._flat(),
            "order": self.order.copy(),
            "rng": self.rng.copy(),
            "out": np.array([self.out[0], self.visits, self.active, self.wait, self.patience, self.fresh]),
        }
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        return Iterate(self.best.w, value, cut, info, lambda: state)


def squared_norms(shard: Shard, X: Csr | Dense) -> NDArray:
    """|x_i|^2, kept with the shard for other lam."""
    if "norms" not in shard.memo:
        from riskmin.kernels.dual_check import norms

        n, q = X.shape[0], np.empty(X.shape[0])
        ends = X.indptr if isinstance(X, Csr) else np.arange(n + 1) * X.shape[1]
        data = X.data if isinstance(X, Csr) else X.X.ravel()
        for i, j in pieces(0, n, len(data)):
            norms(None, data, ends[i : j + 1], None, q[i:j])
        shard.memo["norms"] = q
    kept: NDArray = shard.memo["norms"]
    return kept
