"""Rows with a dual variable each, as exact sweeps for L2 visit them: records, a sweep, a look at all.

Where these rows are all there are, `dual_exact` runs on them; where they are one part of many, `dual_local`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.deadline import checking, pieces
from riskmin.losses.pieces import conjugate_of, dual_of
from riskmin.matrices import Csr, Dense
from riskmin.solvers.passes import rows_together
from riskmin.types import Dual, NDArray, Shard

VISIT, NUMBER = 64, 4
"""Elementary operations of a visit to a row, and of each number in it: they lie anywhere in memory."""


def kernels() -> Any:
    """The sweeps."""
    from riskmin.kernels import dual  # Numba is imported by the first sweep, not with the package

    return dual


def checks() -> Any:
    """What is done with all rows at a time."""
    from riskmin.kernels import dual_check

    return dual_check


def _parts(X: Csr | Dense) -> tuple[NDArray | None, NDArray]:
    """The indices and the numbers, of all rows in a row; dense ones have no indices."""
    return (None, X.X.ravel()) if isinstance(X, Dense) else (X.indices, X.data)


def numbers(X: Csr | Dense) -> int:
    """How many are stored."""
    return len(_parts(X)[1])


def _records(n: int) -> NDArray:
    """Room for a record a row, each a line of the cache."""
    room = np.empty(8 * n + 8)
    first = -room.ctypes.data % 64 // 8
    return room[first : first + 8 * n].reshape(n, 8)


def _twice(records: NDArray) -> tuple[NDArray, NDArray]:
    """The records one after the other, as numbers and as places."""
    flat = records.ravel()
    return flat, flat.view(np.int64)


def _norms(shard: Shard, X: Csr | Dense, ends: NDArray, scale: NDArray) -> NDArray:
    """sum_j x_ij^2 / m_j; kept with the shard, for other lam."""
    kept = shard.memo.get("lengths")
    if kept is None or not np.array_equal(kept[0], scale):
        q = np.empty(X.shape[0])
        shape = scale if len(scale) else None
        for i, j in pieces(0, len(q), numbers(X)):
            checks().norms(*_parts(X), ends[i : j + 1], shape, q[i:j])
        kept = shard.memo["lengths"] = scale, q
    found: NDArray = kept[1]
    return found


def scale_of(reg: Any, p: int) -> NDArray:
    """The 1 / m of the regularizer's weights m; of length 0 where these are 1."""
    found: NDArray = np.empty(0) if reg.plain else reg.conjugate_grad(np.ones(p))
    return found


def generator(*seeds: int) -> NDArray:
    """The state of the random orders."""
    return np.random.SeedSequence(seeds).generate_state(1, np.uint64) | np.uint64(1)


@dataclass
class SweptRows:
    """Rows with their dual variables, which are in the records."""

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
    active: int

    @classmethod
    def of(cls, shard: Shard, loss: Any, scale: NDArray, lam: float, rng: NDArray) -> Self:
        """The rows of a shard, all dual variables zero."""
        X, k, dual = rows_together(shard), kernels(), dual_of(loss, shard.y)
        n = X.shape[0]
        ends = X.indptr if isinstance(X, Csr) else np.arange(n + 1) * X.shape[1]
        records, rows = _records(n), np.empty(n, np.uint32)
        q = _norms(shard, X, ends, scale)
        bounds = (shard.y, shard.y, shard.y, 0.0) if dual is None else (*dual[:3], dual.square)
        many = checks().prepare(ends, q, shard.c, lam, *bounds, *_twice(records), rows)
        if dual is None:
            records[:, k.INVERSE] = shard.c / lam * q
        rows = rows[:many]
        return cls(shard, loss, dual, X, records, scale, rows, rows.copy(), rng, np.zeros(7), many)

    def put(self, u: NDArray) -> None:
        """Take these dual variables."""
        k, y = kernels(), self.shard.y
        if self.dual is not None:
            self.records[:, k.U] = np.clip(u, *self.dual[:2])
            return
        with np.errstate(divide="ignore"):
            a = np.clip(-y * u, 0.0, 1.0)
            odds = np.clip(np.log(a) - np.log1p(-a), -700.0, 700.0)
        self.records[:, k.SHIFT] = odds
        self.records[:, k.U] = -y / (1 + np.exp(-odds))

    def sweep(self, w: NDArray, how: Any) -> None:
        """Visit the active rows once by exact steps, which move w; those held at a bound may be left out."""
        k, kept = kernels(), 0
        scale = self.scale if len(self.scale) else None
        where = *_parts(self.X), *_twice(self.records), self.order, self.active, w, scale
        end = how.shuffle, self.rng, self.out
        work = self.active * (VISIT + NUMBER * numbers(self.X) / max(1, len(self.records)))
        for piece in pieces(0, self.active, work):
            if self.dual is None:
                kept = k.logistic_sweep(*where, *piece, how.damping, *end)
            else:
                terms = how.damping, self.dual.epsilon, self.dual.square, how.shrink
                kept = k.sweep(*where, *piece, *terms, *end)
        self.active = kept

    def look(self, w: NDArray, fresh: bool = False) -> tuple[float, float, float, NDArray, NDArray, NDArray]:
        """R(w), the offset of the cut and the size of its terms; scores, dual variables, and the cut's slope.

        One pass over X, as an oracle call. If the dual variables are to be fresh, they are slopes at w.
        """
        n, k = len(self.records), checks()
        z, u, a = np.empty(n), np.empty(n), np.zeros(len(w))
        if self.dual is None:
            return *self._plain_look(w, fresh, z, u, a), z, u, a
        at = *_parts(self.X), *_twice(self.records), self.shard.c, w if w.any() else w[:0]
        sums = np.zeros(3)
        for piece in pieces(0, n, 2 * numbers(self.X), of=k.BLOCK):
            k.check(*at, *self.dual[3:], fresh, *piece, z, u, a, sums)
        risk, offset, size = (float(v) for v in sums)
        return risk, offset, size, z, u, a

    def _plain_look(
        self, w: NDArray, fresh: bool, z: NDArray, u: NDArray, a: NDArray
    ) -> tuple[float, float, float]:
        """As the kernel does it, by a loss that has another conjugate."""
        y, c, step, risk = *self.shard[1:3], self.X.block_rows, 0.0
        if not fresh:
            u[:] = self.records[:, kernels().U]
        for i in checking(range(0, len(u), step)):
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
