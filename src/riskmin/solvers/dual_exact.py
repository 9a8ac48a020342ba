r"""Dual coordinate ascent by exact steps, for L2.

A sweep visits rows; a check, every few sweeps, is a pass over X as an oracle call: the scores give J(w), the
dual variables the cut, and the two together which rows can be left out until the next check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.losses.pieces import conjugate_of, dual_of
from riskmin.matrices import Csr, Dense, by_rows
from riskmin.objective import Objective
from riskmin.scalar import ROUNDING
from riskmin.types import Array, Cut, Dual, Iterate, NDArray, Shard

SPACING = 0.3
"""Between two checks, visits are this part of all before, and an epoch at least: a check costs about one."""
CALM = 0.1
"""A check is due, too, when the slopes have shrunk to this part of those at the last one."""
MOST_WORK = 3e8
"""But no more numbers of X than this are read between two checks: about a second."""


def _kernels() -> Any:
    from riskmin.kernels import dual  # Numba is imported by the first sweep, not with the package

    return dual


# ---------------------------------------------------------------- rows
def rows_together(shard: Shard) -> Csr | Dense:
    """X with its rows together, kept with the shard."""
    if "rows" not in shard.memo:
        shard.memo["rows"] = by_rows(shard.X)
    kept: Csr | Dense = shard.memo["rows"]
    return kept


def _parts(X: Csr | Dense) -> tuple[NDArray, NDArray]:
    """The indices and the numbers, of all rows in a row; dense ones have no indices."""
    return (X.indices, X.data) if isinstance(X, Csr) else (np.empty(0, np.uint32), X.X.ravel())


def _records(X: Csr | Dense) -> NDArray:
    """A record a row, each a line of the cache; where its numbers are is filled in."""
    n, k = X.shape[0], _kernels()
    room = np.zeros(8 * n + 8)
    first = -room.ctypes.data % 64 // 8
    records = room[first : first + 8 * n].reshape(n, 8)
    ends = X.indptr if isinstance(X, Csr) else np.arange(n + 1) * X.shape[1]
    records[:, k.START], records[:, k.STOP] = ends[:-1], ends[1:]
    return records


def _norms(shard: Shard, X: Csr | Dense, records: NDArray, scale: NDArray) -> NDArray:
    """sum_j x_ij^2 / m_j; kept with the shard where m = 1, for other lam."""
    if not len(scale) and "norms" in shard.memo:
        kept: NDArray = shard.memo["norms"]
        return kept
    k, q = _kernels(), np.empty(X.shape[0])
    k.norms(*_parts(X), records[:, k.START], records[:, k.STOP], scale, q)
    if not len(scale):
        shard.memo["norms"] = q
    return q


# ---------------------------------------------------------------- a run
@dataclass
class ExactAscent:
    """A run by exact steps: the dual variables, in the records, and the w that belongs to them."""

    solver: Any
    obj: Objective
    shard: Shard
    loss: Any
    dual: Dual | None
    """None for the logistic loss."""
    X: Csr | Dense
    records: NDArray
    scale: NDArray
    rows: NDArray
    """Those that can move: not empty, and of weight > 0."""
    order: NDArray
    """The active rows first, in the order of their visits."""
    rng: NDArray
    out: NDArray
    w: NDArray
    active: int
    visits: float = 0.0

    @classmethod
    def of(cls, solver: Any, obj: Objective, shard: Shard, loss: Any) -> Self:
        X, k = rows_together(shard), _kernels()
        reg: Any = obj.reg
        zero = np.zeros(X.shape[1])
        scale = zero[:0] if reg.plain else reg.conjugate_grad(zero + 1.0)
        records = _records(X)
        records[:, k.STEP] = shard.c / obj.lam
        bend = records[:, k.STEP] * _norms(shard, X, records, scale)
        dual = dual_of(loss, shard.y)
        if dual is None:
            records[:, k.LOWER], records[:, k.INVERSE] = shard.y, bend
        else:
            records[:, k.LOWER], records[:, k.UPPER], records[:, k.SHIFT] = dual.lower, dual.upper, dual.shift
            with np.errstate(divide="ignore"):  # the row is empty, and never visited
                records[:, k.INVERSE] = 1 / (dual.square + bend)
        rows = np.flatnonzero(bend > 0).astype(np.uint32)
        rng = np.random.SeedSequence(solver.seed).generate_state(1, np.uint64) | np.uint64(1)
        parts = dual, X, records, scale, rows, rows.copy(), rng, np.zeros(4), zero, len(rows)
        return cls(solver, obj, shard, loss, *parts)

    def started(self, w0: Array, u0: Array | None = None) -> Iterator[Iterate]:
        """From those dual variables; or the slopes of the loss at w0, as they are shrunk to bound best."""
        k, (y, c) = _kernels(), self.shard[1:3]
        z = self.X.scores(w0, 0, len(y)) if w0.any() else np.zeros(len(y))
        value, dz = self.loss.value_grad(z, y, c)
        u = np.where(c > 0, dz / np.where(c > 0, c, 1.0), 0.0)
        u = u if u0 is None else np.array(u0)
        u = np.clip(u, *(self.loss.conjugate_domain(y) if self.dual is None else self.dual[:2]))
        a = np.zeros(len(w0))
        self.X.pullback(c * u, 0, len(y), a)
        cut = self._cut(u, z, a)
        s = self.obj.reg.scale(cut, self.obj.lam) if u0 is None else 1.0
        u[self.rows] *= s  # the best slopes of empty rows are those at zero
        if self.dual is None:
            with np.errstate(divide="ignore"):
                odds = np.clip(np.log(-y * u) - np.log1p(y * u), -700.0, 700.0)
            self.records[:, k.SHIFT] = odds
            u = -y / (1 + np.exp(-odds))
        self.records[:, k.U] = u
        self.w = self.obj.argmin(Cut(s * a, 0.0))
        self.obj.count.calls += 1
        yield self._iterate(w0, float(value), cut)
        yield from self._go()

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        k = _kernels()
        self.records[:, k.U], self.records[:, k.SHIFT] = state["u"], state["shift"]
        self.order, self.rng, self.w = state["order"].copy(), state["rng"].copy(), state["next"].copy()
        self.out[:2] = state["out"]
        self.visits, self.active = float(state["visits"][0]), int(state["active"][0])
        return self._go()

    def _go(self) -> Iterator[Iterate]:
        k, moved = _kernels(), True
        while moved:
            self._sweeps()
            moved = self.out[k.MOVES] > 0
            w, u = self.w, self.records[:, k.U].copy()
            value, z, a = self._pass(w, u)
            cut = self._cut(u, z, a)
            self.w = self.obj.argmin(cut)  # anew, so that rounding does not add up
            if self.dual is not None and self.solver.shrink:
                terms = self.dual.epsilon, self.dual.square
                self.active = k.select(self.records, z, self.rows, self.order, *terms, self.out)
            yield self._iterate(w, value, cut)

    def _sweeps(self) -> None:
        """Epochs over the active rows, until a check is due."""
        k, s, n = _kernels(), self.solver, len(self.rows)
        indices, data = _parts(self.X)
        most = max(4.0, MOST_WORK / max(1, len(data))) * n
        budget = min(max(n, SPACING * self.visits), most)
        calm = CALM * (self.out[k.HIGH] - self.out[k.LOW])
        how = self.records, self.order
        end = s.shuffle, self.rng, self.out
        self.out[k.VISITS] = self.out[k.MOVES] = 0
        while self.active:
            where = indices, data, *how, self.active, self.w, self.scale, s.damping
            if self.dual is None:
                k.logistic_sweep(*where, *end)
            else:
                self.active = k.sweep(*where, self.dual.epsilon, self.dual.square, s.shrink, *end)
            if self.out[k.VISITS] >= budget or self.out[k.HIGH] - self.out[k.LOW] <= calm:
                break
        self.visits += self.out[k.VISITS]

    def _pass(self, w: NDArray, u: NDArray) -> tuple[float, NDArray, NDArray]:
        """R(w), the scores, and sum_i c_i u_i x_i: one pass over X, as an oracle call."""
        (y, c), n, step = self.shard[1:3], len(u), self.X.block_rows
        value, z, a, du = 0.0, np.empty(n), np.zeros(len(w)), c * u
        for i in range(0, n, step):
            at = slice(i, min(i + step, n))
            z[at] = self.X.scores(w, at.start, at.stop)
            value += float(self.loss.value_grad(z[at], y[at], c[at])[0])
            self.X.pullback(du[at], at.start, at.stop, a)
        self.obj.count.calls += 1
        return value, z, a

    def _cut(self, u: NDArray, z: NDArray, a: NDArray) -> Cut:
        """The cut of the dual variables, less what rounding may add: by the sizes of its terms."""
        y, c = self.shard[1:3]
        conjugate = conjugate_of(self.loss, u, y)
        shift = 1.0 if self.dual is None else abs(self.dual.shift)
        size = c @ (abs(conjugate) + abs(u) * (abs(z) + shift))
        return Cut(a, -float(c @ conjugate) - ROUNDING * float(size))

    def _iterate(self, w: NDArray, risk: float, cut: Cut) -> Iterate:
        k = _kernels()
        state = {
            "u": self.records[:, k.U].copy(),
            "shift": self.records[:, k.SHIFT].copy(),
            "w": w,
            "next": self.w.copy(),
            "order": self.order.copy(),
            "rng": self.rng.copy(),
            "out": self.out[:2].copy(),
            "visits": np.array([self.visits]),
            "active": np.array([self.active]),
        }
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        return Iterate(w, risk + self.obj.lam * self.obj.reg.value(w), cut, info, lambda: state)
