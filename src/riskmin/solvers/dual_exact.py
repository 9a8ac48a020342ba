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
from riskmin.matrices import Csr, Dense
from riskmin.objective import Objective
from riskmin.scalar import ROUNDING
from riskmin.solvers.passes import rows_together
from riskmin.types import Array, Cut, Dual, Iterate, NDArray, Shard

SPACING = 0.3
"""Between two checks, visits are this part of all before, and an epoch at least: a check costs about one."""
CALM = 0.1
"""A check is due, too, when the slopes have shrunk to this part of those at the last one."""
MOST_WORK = 3e8
"""But no more numbers of X than this are read between two checks: about a second."""
MEAN = 4
"""The w of a check is a mean, of so many or more in the second half of the sweeps before it.

The dual variables are at their best long before w is, which goes to and fro around its own.
"""


def _kernels() -> Any:
    from riskmin.kernels import dual  # Numba is imported by the first sweep, not with the package

    return dual


def _checks() -> Any:
    from riskmin.kernels import dual_check

    return dual_check


# ---------------------------------------------------------------- rows
def _parts(X: Csr | Dense) -> tuple[NDArray, NDArray]:
    """The indices and the numbers, of all rows in a row; dense ones have no indices."""
    if isinstance(X, Dense):
        return np.empty(0, np.uint32), X.X.ravel()
    if not len(X.indices):  # one that no row has, so that rows are not taken for dense ones
        return np.zeros(1, X.indices.dtype), np.zeros(1, X.data.dtype)
    return X.indices, X.data


def _records(n: int) -> NDArray:
    """Room for a record a row, each a line of the cache."""
    room = np.empty(8 * n + 8)
    first = -room.ctypes.data % 64 // 8
    return room[first : first + 8 * n].reshape(n, 8)


def _norms(shard: Shard, X: Csr | Dense, ends: NDArray, scale: NDArray) -> NDArray:
    """sum_j x_ij^2 / m_j; kept with the shard where m = 1, for other lam."""
    if not len(scale) and "norms" in shard.memo:
        kept: NDArray = shard.memo["norms"]
        return kept
    q = np.empty(X.shape[0])
    _checks().norms(*_parts(X), ends, scale, q)
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
        X, k, reg = rows_together(shard), _kernels(), obj.reg
        n, zero, dual = X.shape[0], np.zeros(X.shape[1]), dual_of(loss, shard.y)
        scale = zero[:0] if reg.plain else reg.conjugate_grad(zero + 1.0)  # type: ignore[attr-defined]
        ends = X.indptr if isinstance(X, Csr) else np.arange(n + 1) * X.shape[1]
        records, rows = _records(n), np.empty(n, np.uint32)
        q = _norms(shard, X, ends, scale)
        bounds = (shard.y, shard.y, shard.y, 0.0) if dual is None else (*dual[:3], dual.square)
        many = _checks().prepare(ends, q, shard.c, obj.lam, *bounds, records, rows)
        if dual is None:
            records[:, k.INVERSE] = shard.c / obj.lam * q
        rows = rows[:many]
        rng = np.random.SeedSequence(solver.seed).generate_state(1, np.uint64) | np.uint64(1)
        parts = dual, X, records, scale, rows, rows.copy(), rng, np.zeros(4), zero, len(rows)
        return cls(solver, obj, shard, loss, *parts)

    def started(self, w0: Array, u0: Array | None = None) -> Iterator[Iterate]:
        """From those dual variables; or the slopes of the loss at w0, as they are shrunk to bound best."""
        k = _kernels()
        if u0 is not None:
            self.records[:, k.U] = u0 if self.dual is None else np.clip(u0, *self.dual[:2])
        value, _, u, cut = self._pass(np.array(w0, dtype=float), u0 is None)
        s = self.obj.reg.scale(cut, self.obj.lam) if u0 is None else 1.0
        if s != 1.0:
            u[self.rows] *= s  # the best slopes of empty rows are those at zero
            self.records[:, k.U] = u
        if self.dual is None:
            y = self.shard.y
            with np.errstate(divide="ignore"):
                odds = np.clip(np.log(-y * u) - np.log1p(y * u), -700.0, 700.0)
            self.records[:, k.SHIFT] = odds
            self.records[:, k.U] = -y / (1 + np.exp(-odds))
        self.w = self.obj.argmin(Cut(s * cut.a, 0.0))
        yield self._iterate(w0, value, u, cut)
        yield from self._go()

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        k = _kernels()
        self.records[:, k.U] = state["u"]
        if self.dual is None:
            self.records[:, k.SHIFT] = state["shift"]
        self.active = len(state["order"])
        self.order[: self.active] = state["order"]
        self.rng, self.w = state["rng"].copy(), state["next"].copy()
        self.out[:2] = state["out"]
        self.visits = float(state["visits"][0])
        return self._go()

    def _go(self) -> Iterator[Iterate]:
        k, moved = _kernels(), True
        while moved:
            self._sweeps()
            moved = self.out[k.MOVES] > 0
            w = self.w
            value, z, u, cut = self._pass(w)
            self.w = self.obj.argmin(cut)  # anew, so that rounding does not add up
            if self.dual is not None and self.solver.shrink:
                terms = self.dual.epsilon, self.dual.square
                self.active = _checks().select(self.records, z, self.rows, self.order, *terms, self.out)
            yield self._iterate(w, value, u, cut)

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
        half, since, mean, terms = 0.5 * budget, 0.0, np.zeros(len(self.w)), 0
        length = len(data) / max(1, len(self.records))
        while self.active:
            before = self.active
            where = indices, data, *how, self.active, self.w, self.scale, s.damping
            if self.dual is None:
                k.logistic_sweep(*where, *end)
            else:
                self.active = k.sweep(*where, self.dual.epsilon, self.dual.square, s.shrink, *end)
            since += before * length
            if self.out[k.VISITS] >= half and since >= 4 * len(mean):
                mean += self.w
                terms += 1
                since = 0.0
            if self.out[k.VISITS] >= budget or self.out[k.HIGH] - self.out[k.LOW] <= calm:
                break
        self.visits += self.out[k.VISITS]
        if terms >= MEAN:
            self.w = mean / terms

    def _pass(self, w: NDArray, fresh: bool = False) -> tuple[float, NDArray, NDArray, Cut]:
        """R(w), the scores, the dual variables and their cut: one pass over X, as an oracle call."""
        n = len(self.records)
        z, u, a = np.empty(n), np.empty(n), np.zeros(len(w))
        self.obj.count.calls += 1
        if self.dual is None:
            risk, offset, size = self._plain_pass(w, fresh, z, u, a)
        else:
            at = *_parts(self.X), self.records, self.shard.c, w if w.any() else w[:0]
            risk, offset, size = _checks().check(*at, *self.dual[3:], fresh, z, u, a)
        # less what rounding may add: by the sizes of its terms
        return risk, z, u, Cut(a, offset - ROUNDING * size)

    def _plain_pass(
        self, w: NDArray, fresh: bool, z: NDArray, u: NDArray, a: NDArray
    ) -> tuple[float, float, float]:
        """As the kernel does it, by a loss that has another conjugate."""
        y, c, step, risk = *self.shard[1:3], self.X.block_rows, 0.0
        if not fresh:
            u[:] = self.records[:, _kernels().U]
        for i in range(0, len(u), step):
            at = slice(i, min(i + step, len(u)))
            z[at] = self.X.scores(w, at.start, at.stop)
            value, dz = self.loss.value_grad(z[at], y[at], c[at])
            risk += float(value)
            if fresh:
                u[at] = np.where(c[at] > 0, dz / np.where(c[at] > 0, c[at], 1.0), 0.0)
            self.X.pullback(c[at] * u[at], at.start, at.stop, a)
        conjugate = conjugate_of(self.loss, u, y)
        size = c @ (abs(conjugate) + abs(u) * (abs(z) + 1.0))
        return risk, -float(c @ conjugate), float(size)

    def _iterate(self, w: NDArray, risk: float, u: NDArray, cut: Cut) -> Iterate:
        state = {
            "u": u,
            "w": w,
            "next": self.w.copy(),
            "order": self.order[: self.active].copy(),
            "rng": self.rng.copy(),
            "out": self.out[:2].copy(),
            "visits": np.array([self.visits]),
        }
        if self.dual is None:
            state["shift"] = self.records[:, _kernels().SHIFT].copy()
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        return Iterate(w, risk + self.obj.lam * self.obj.reg.value(w), cut, info, lambda: state)
