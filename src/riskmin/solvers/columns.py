"""The columns of X, dense or sparse: what models over them are minimized with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin import deadline
from riskmin.deadline import check, checking, pieces
from riskmin.matrices import Columns, Csc, Csr, Dense, Wide, as_scipy, merged
from riskmin.solvers.quadratic import MOST_EPOCHS, Gram, Model, Solution, away, by_gram, kernels
from riskmin.types import NDArray, Shard

MOST_GRAM = 3000
"""Up to this many columns a Gram matrix is worth its memory."""
BLOCK = 1024
"""The rows of a Gram matrix's product are taken in blocks that stay in cache."""
AWAY = 0.3
"""A curvature that is further than this from the last one is not near its end: some rows will do for it."""
SAMPLE = 64
"""How many rows a column a Gram matrix takes that will not serve for long."""
SHARE = 0.2
"""A working set may hold this part of a sparse X, however few its best features are: looks cost more."""
PER_LOOK = 160
"""A Gram matrix of m columns costs about m * m / (this * p) looks."""
MUCH = 0.8
"""Who may need this part of X gets all columns: to fetch some, and then others, costs more."""
CHUNK = 8
"""After so many cycles it is looked how far they came."""
LEAST = 1e-12
"""Curvatures below this part of the largest are taken for it: they are divided by."""
NUMBER = 8
"""Elementary operations that a number of a sparse column takes: its row lies anywhere in memory."""
NOTHING = np.empty(0)


# ---------------------------------------------------------------- dense
@dataclass
class DenseColumns:
    """The columns of a dense X."""

    X: Dense | Columns
    gram: Gram | None = None

    @property
    def few(self) -> bool:
        """Whether a Gram matrix of all columns costs about a look more than that of some."""
        return self.X.shape[1] <= PER_LOOK

    def room(self, held: NDArray, order: NDArray) -> int:
        """How many columns are worth a place beside those held: their Gram matrix costs about a look more."""
        return max(int(np.sqrt(PER_LOOK * self.X.shape[1])) - len(held), 0)

    def solve(self, model: Model, maybe: NDArray) -> Solution:
        """The minimizer of the model."""
        if len(model.columns) <= MOST_GRAM:
            if self.gram is None or not self.gram.serves(model):
                self.gram = Gram(model.bend, self._stride(model), rough=not model.exact)
            start = Solution(model.w.copy(), 0.0, NOTHING, 0)
            found = by_gram(self, self.gram, model, start, None)
        else:
            found = self._cycle(model)
        step = np.zeros(self.X.shape[1])
        step[model.columns] = found.w - model.w
        return found._replace(u=self.X.scores(step, 0, self.X.shape[0]))

    def _stride(self, model: Model) -> int:
        """How many rows a new Gram matrix may leave out: few if its curvature will last."""
        settled = self.gram is not None and away(model.bend, self.gram.bend) <= AWAY
        return (
            1
            if settled or model.lasts or model.exact
            else max(1, self.X.shape[0] // (SAMPLE * max(len(model.columns), 16)))
        )

    def _cycle(self, model: Model) -> Solution:
        T = self.X.T[model.columns] if isinstance(self.X, Columns) else self.X.X.T[model.columns]
        h = np.einsum("ki,ki,i->k", T, T, model.bend)
        w, r = model.w.copy(), model.slope.copy()
        total = float(model.bend.sum()) if model.free else 0.0
        args = (np.ascontiguousarray(T), r, model.bend, h, w, model.terms, total, model.tol, MOST_EPOCHS)
        b, _, epochs = cycles(kernels().dense_epochs, *args)
        return Solution(w, b, NOTHING, epochs, model.bend)

    def pull(self, columns: NDArray, r: NDArray) -> NDArray:
        out = np.zeros(self.X.shape[1])
        self.X.pullback(r, 0, len(r), out)
        return out[columns]

    def products(self, columns: NDArray, first: int, gram: Gram) -> NDArray:
        if gram.rough:  # half the time, if nothing is too large for it or too small
            G = self._products(columns, first, gram, np.float32)
            some = G[:, first:].diagonal()
            if np.isfinite(G).all() and ((some == 0) | (some > 1e-30)).all():
                return G
        return self._products(columns, first, gram, np.float64)

    def _products(self, columns: NDArray, first: int, gram: Gram, kind: Any) -> NDArray:
        n, scale = self.X.shape[0], np.sqrt(gram.stride * gram.bend)
        G = np.zeros((len(columns) - first, len(columns)))
        block = np.empty((BLOCK, len(columns)), dtype=kind)
        for i in checking(range(0, n, BLOCK * gram.stride)):
            at = slice(i, min(i + BLOCK * gram.stride, n), gram.stride)
            if isinstance(self.X, Columns):
                B = (self.X.T[:, at][columns] * scale[at]).astype(kind).T
            else:
                B = block[: len(scale[at])]
                kernels().gather(self.X.X[at], columns, scale[at], B)
            G += B[:, first:].T @ B
        return G


# ---------------------------------------------------------------- sparse
class Store:
    """The columns of a sparse X. Those of a CSR matrix are copied out of it when they are first asked for."""

    def __init__(self, X: Csr | Csc) -> None:
        self.X = X
        self.n_rows, p = X.shape
        if isinstance(X, Csc):
            csc = merged(as_scipy(X))
            ends, rows = csc.indptr.astype(np.int64), csc.indices.view(X.indices.dtype)
            self.start, self.stop, self.rows, self.values = ends[:-1], ends[1:], rows, csc.data
            self.count = np.diff(ends)
        else:
            self.count = np.zeros(p, dtype=np.int64)
            for i, j in pieces(0, len(X.indices), NUMBER * len(X.indices)):
                kernels().count(X.indices[i:j], self.count)
            self.start, self.stop = np.full(p, -1, dtype=np.int64), np.zeros(p, dtype=np.int64)
            # room for all of them: what is never written to takes no memory
            self.rows = np.empty(len(X.data), dtype=np.uint32)
            self.values = np.empty(len(X.data), dtype=X.data.dtype)
            self.held = 0

    def fetch(self, columns: NDArray, maybe: NDArray) -> None:
        """See to it that the columns are here; if that takes a pass over X, then `maybe` come along."""
        if (self.start[columns] >= 0).all():
            return
        assert isinstance(self.X, Csr)
        wanted = np.union1d(columns, maybe)
        if self.count[wanted].sum() > MUCH * self.count.sum():
            wanted = np.arange(len(self.start))
        new = wanted[self.start[wanted] < 0]
        begins = self.held + np.cumsum(self.count[new]) - self.count[new]
        place = np.full(self.X.shape[1], -1, dtype=np.int32)
        place[new] = np.arange(len(new))
        ends, n = begins.copy(), self.n_rows
        for i, j in pieces(0, n, NUMBER * len(self.X.data)):
            parts = self.X.indptr, self.X.indices, self.X.data, i, j, place, begins, ends
            kernels().pick_columns(*parts, self.rows, self.values)
        # not before they are: who is interrupted has none of them, and no other run takes them for copied
        self.held += int(self.count[new].sum())
        self.stop[new] = ends
        self.start[new] = begins

    def parts(self, columns: NDArray) -> tuple[NDArray, ...]:
        """As the kernels take them."""
        return self.start, self.stop, self.rows, self.values, columns

    def pieces(self, columns: NDArray) -> Iterable[slice]:
        """Ranges of the columns, each of which takes a kernel no longer than a moment."""
        work = NUMBER * float(self.count[columns].sum())
        return (slice(i, j) for i, j in pieces(0, len(columns), work))


@dataclass
class SparseColumns:
    """Models over the columns of a sparse X."""

    store: Store
    gram: Gram | None = None
    few: bool = False
    """As of dense ones: cycles over all columns cost more than those over some."""

    def room(self, held: NDArray, order: NDArray) -> int:
        """How many of the columns, best first, are worth a place beside those held: so much costs a cycle."""
        most = SHARE * float(self.store.count.sum()) - float(self.store.count[held].sum())
        return int(np.searchsorted(np.cumsum(self.store.count[order]), most))

    def solve(self, model: Model, maybe: NDArray) -> Solution:
        """The minimizer of the model."""
        self.store.fetch(model.columns, maybe)
        small = len(model.columns) <= MOST_GRAM
        if small and self.gram is not None and self.gram.serves(model):
            found = by_gram(self, self.gram, model, Solution(model.w.copy(), 0.0, NOTHING, 0), None)
        else:
            found = self._cycle(model, small)
        u, columns, step = np.zeros(self.store.n_rows), model.columns, found.w - model.w
        for at in self.store.pieces(columns):
            kernels().sparse_scores(*self.store.parts(columns[at]), step[at], u)
        return found._replace(u=u)

    def _cycle(self, model: Model, small: bool) -> Solution:
        parts, w = self.store.parts(model.columns), model.w.copy()
        root = np.sqrt(np.maximum(model.bend, LEAST * model.bend.max()))
        r = model.slope / root
        scaled, h, g = self._scaled(parts, root, r)
        offset = model.grad - g  # single precision may bend the model a little, but not tilt it
        cost = self._gram_cost(parts)
        chunk = min(max(cost // 2, 5), CHUNK)
        shifts, track = root if model.free else NOTHING, np.zeros((chunk + 1, len(w) + 1))
        where = (*parts[:3], model.columns, *scaled)
        b, first, epochs, active = 0.0, 0.0, 0, np.empty(len(w), np.bool_)
        while True:
            track[0, :-1] = w
            active[:] = True
            args = *where, r, h, w, model.terms, offset, shifts, model.tol, track, active
            shift, worst, taken = cycles(kernels().sparse_epochs, *args)
            b, epochs, first = b + shift, epochs + taken, first or worst
            if worst <= model.tol or epochs >= MOST_EPOCHS:
                break
            # a Gram matrix, if that costs less than the cycles which seem to be left
            if small and epochs >= max(chunk + 1, cost // 2):
                rate = max(math.log(first / worst), 1e-3) / (epochs - chunk)
                if math.log(worst / model.tol) / rate > cost:
                    break
            b += self._extrapolate(where, model.terms, offset, track, w, r, shifts)
        start = Solution(w, b, NOTHING, epochs, model.bend)
        if worst <= model.tol or epochs >= MOST_EPOCHS:
            return start
        self.gram = Gram(model.bend)
        return by_gram(self, self.gram, model, start, r * root)

    def _extrapolate(
        self,
        where: tuple[Any, ...],
        terms: NDArray,
        offset: NDArray,
        track: NDArray,
        w: NDArray,
        r: NDArray,
        shifts: NDArray,
    ) -> float:
        """Go where the cycles seem to lead, if that is lower; in place, and the shift of that is returned.

        It is the affine combination of what they found that changed least: Anderson's extrapolation.
        """
        steps = np.diff(track[-6:], axis=0)
        gram = steps @ steps.T
        mix = np.linalg.solve(gram + 1e-10 * np.trace(gram) * np.eye(len(gram)), np.ones(len(gram)))
        far = (mix / mix.sum()) @ track[-len(mix) :]
        far[:-1] = np.clip(far[:-1], terms[2], terms[3])
        step = far - track[-1]
        new = r + step[-1] * shifts if len(shifts) else r.copy()
        *ends, columns, begin, values = where
        for at in self.store.pieces(columns):
            kernels().add_columns(*ends, columns[at], begin[at], values, step[:-1][at], new)
        absolute, square = terms[0], terms[1]
        fall = 0.5 * float((r - new) @ (r + new)) - float(offset @ step[:-1])
        fall += float(absolute @ (np.abs(w) - np.abs(far[:-1])) + 0.5 * square @ (w * w - far[:-1] ** 2))
        if not fall > 0:
            return 0.0
        w[:], r[:] = far[:-1], new
        return float(step[-1])

    def _scaled(
        self, parts: tuple[NDArray, ...], root: NDArray, r: NDArray
    ) -> tuple[tuple[NDArray, NDArray], NDArray, NDArray]:
        """Where the columns begin, they themselves times the roots, the sums of their squares, and X' r.

        Single precision is enough for a model, where nothing is too large for it or too small.
        """
        columns = parts[-1]
        begin, h, g = np.empty(len(columns), dtype=np.int64), np.empty(len(columns)), np.empty(len(columns))
        for kind in (np.float32, np.float64):
            out = np.empty(int((self.store.stop - self.store.start)[columns].sum()), dtype=kind)
            place = 0
            for at in self.store.pieces(columns):
                to = begin[at], out, h[at], g[at], place
                place = kernels().scale_columns(*parts[:-1], columns[at], root, r, *to)
            some = h[h > 0]
            if np.isfinite(h).all() and (not len(some) or 1e-30 < some.min() <= some.max() < 1e30):
                break
        return (begin, out), h, g

    def _gram_cost(self, parts: tuple[NDArray, ...]) -> int:
        """How many cycles over the columns cost as much as their Gram matrix."""
        sizes = self._sizes(parts[-1])
        return 5 + 3 * int(sizes @ sizes) // (4 * max(int(sizes.sum()), 1))

    def _sizes(self, columns: NDArray) -> NDArray:
        """How many numbers of the columns are in each row."""
        sizes = np.zeros(self.store.n_rows, dtype=np.int64)
        for at in self.store.pieces(columns):
            kernels().row_sizes(*self.store.parts(columns[at]), sizes)
        return sizes

    def pull(self, columns: NDArray, r: NDArray) -> NDArray:
        out = np.empty(len(columns))
        for at in self.store.pieces(columns):
            kernels().sparse_pull(*self.store.parts(columns[at]), r, out[at])
        return out

    def products(self, columns: NDArray, first: int, gram: Gram) -> NDArray:
        sizes = self._sizes(columns)
        ends = np.cumsum(sizes) - sizes
        G, total = np.zeros((len(columns), len(columns))), int(sizes.sum())
        which, value = np.empty(total, dtype=np.int32), np.empty(total)
        for at in self.store.pieces(columns):
            kernels().to_rows(*self.store.parts(columns[at]), at.start, ends, which, value)
        for i, j in pieces(0, self.store.n_rows, float(sizes @ sizes)):
            kernels().sparse_gram(which, value, ends, gram.bend, i, j, first, G)
        low = G[first:]
        low[:, first:] += np.tril(low[:, first:], -1).T  # only the part up to the diagonal was added up
        return low


def cycles(kernel: Any, *args: Any) -> tuple[float, float, int]:
    """Run a kernel of cycles to its end, with looks at the clock; the shift, the worst slope, the epochs."""
    k = kernels()
    state = np.zeros(5)
    while True:
        check()
        if kernel(*args, state, deadline.MOST // NUMBER):
            return float(state[k.MOVED]), float(state[k.WORST]), int(state[k.EPOCH])


def every(X: Any, stride: int) -> Any:
    """Every so many-th row of X; None where its rows are not together."""
    if isinstance(X, Columns):
        return Columns(np.ascontiguousarray(X.T[:, ::stride]))
    if isinstance(X, Dense):
        return Dense(np.ascontiguousarray(X.X[::stride]))
    return as_scipy(X)[::stride] if isinstance(X, Csr) else None


def columns_of(rows: Shard) -> DenseColumns | SparseColumns:
    """The columns of any matrix whose rows are here; what is copied of a sparse one stays with the rows."""
    X: Any = rows.X
    if isinstance(X, (Dense, Columns)):
        return DenseColumns(X)
    if "columns" not in rows.memo:
        rows.memo["columns"] = Store(X.csc if isinstance(X, Wide) else X)
    return SparseColumns(rows.memo["columns"])
