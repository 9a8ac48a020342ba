"""The columns of X, dense or sparse: what models over them are minimized with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.matrices import Columns, Csc, Csr, Dense, Wide, as_scipy, merged
from riskmin.solvers.quadratic import CLOSE, MOST_EPOCHS, Gram, Model, Solution, away, by_gram, kernels
from riskmin.types import NDArray, Shard

MOST_GRAM = 3000
"""Up to this many columns a Gram matrix is worth its memory."""
BLOCK = 1024
"""The rows of a Gram matrix's product are taken in blocks that stay in cache."""
AWAY = 0.1
"""A curvature that is further than this from the last one is not near its end: some rows will do for it."""
SAMPLE = 64
"""How many rows a column a Gram matrix takes that will not serve for long."""
NOTHING = np.empty(0)


# ---------------------------------------------------------------- dense
@dataclass
class DenseColumns:
    """The columns of a dense X."""

    X: Dense | Columns
    gram: Gram | None = None

    def solve(self, model: Model, maybe: NDArray) -> Solution:
        """The minimizer of the model."""
        if len(model.columns) <= MOST_GRAM:
            if self.gram is None or not self.gram.serves(model):
                self.gram = Gram(model.bend, self._stride(model))
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
        b, _, epochs = kernels().dense_epochs(*args)
        return Solution(w, b, NOTHING, epochs)

    def pull(self, columns: NDArray, r: NDArray) -> NDArray:
        out = np.zeros(self.X.shape[1])
        self.X.pullback(r, 0, len(r), out)
        return out[columns]

    def products(self, columns: NDArray, first: int, bend: NDArray, stride: int) -> NDArray:
        n, scale = self.X.shape[0], np.sqrt(stride * bend)
        G = np.zeros((len(columns) - first, len(columns)))
        # a sample is not that exact anyway
        block = np.empty((BLOCK, len(columns)), dtype=np.float64 if stride == 1 else np.float32)
        for i in range(0, n, BLOCK * stride):
            at = slice(i, min(i + BLOCK * stride, n), stride)
            if isinstance(self.X, Columns):
                B = (self.X.T[:, at][columns] * scale[at]).T
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
        else:
            self.count = np.zeros(p, dtype=np.int64)
            kernels().count(X.indices, self.count)
            self.start, self.stop = np.full(p, -1, dtype=np.int64), np.zeros(p, dtype=np.int64)
            self.rows, self.values = np.empty(0, dtype=np.uint32), np.empty(0, dtype=X.data.dtype)

    def fetch(self, columns: NDArray, maybe: NDArray) -> None:
        """See to it that the columns are here; if that takes a pass over X, then `maybe` come along."""
        if (self.start[columns] >= 0).all():
            return
        assert isinstance(self.X, Csr)
        wanted = np.union1d(columns, maybe)
        new = wanted[self.start[wanted] < 0]
        held, begins = len(self.rows), np.cumsum(self.count[new]) - self.count[new]
        room = int(self.count[new].sum())
        place = np.full(self.X.shape[1], -1, dtype=np.int32)
        place[new] = np.arange(len(new))
        self.rows = np.concatenate([self.rows, np.empty(room, dtype=np.uint32)])
        self.values = np.concatenate([self.values, np.empty(room, dtype=self.values.dtype)])
        self.start[new], ends = held + begins, held + begins
        parts = self.X.indptr, self.X.indices, self.X.data, place, self.start[new], ends
        kernels().pick_columns(*parts, self.rows, self.values)
        self.stop[new] = ends

    def parts(self, columns: NDArray) -> tuple[NDArray, ...]:
        """As the kernels take them."""
        return self.start, self.stop, self.rows, self.values, columns


@dataclass
class SparseColumns:
    """Models over the columns of a sparse X."""

    store: Store
    gram: Gram | None = None
    last: NDArray | None = None
    """The curvature of the last model."""
    spent: int = 0
    """How many cycles were taken since it was a very different one."""

    def solve(self, model: Model, maybe: NDArray) -> Solution:
        """The minimizer of the model."""
        self.store.fetch(model.columns, maybe)
        small = len(model.columns) <= MOST_GRAM
        if small and self.gram is not None and self.gram.serves(model):
            found = by_gram(self, self.gram, model, Solution(model.w.copy(), 0.0, NOTHING, 0), None)
        else:
            found = self._cycle(model, small)
        u = np.zeros(self.store.n_rows)
        kernels().sparse_scores(*self.store.parts(model.columns), found.w - model.w, u)
        return found._replace(u=u)

    def _cycle(self, model: Model, small: bool) -> Solution:
        parts, w, r = self.store.parts(model.columns), model.w.copy(), model.slope.copy()
        h = np.empty(len(w))
        kernels().sparse_diagonal(*parts, model.bend, h)
        total = float(model.bend.sum()) if model.free else 0.0
        if self.last is None or away(model.bend, self.last) > CLOSE:
            self.spent = 0
        self.last = model.bend
        # cycles until they have cost as much as the Gram matrix would: at most twice what is needed
        patience = min(max(self._gram_cost(parts) - self.spent, 3), MOST_EPOCHS) if small else MOST_EPOCHS
        args = (r, model.bend, h, w, model.terms, total, model.tol, patience)
        b, worst, epochs = kernels().sparse_epochs(*parts, *args)
        start = Solution(w, b, NOTHING, epochs)
        self.spent += epochs
        if worst <= model.tol or patience == MOST_EPOCHS:
            return start
        self.gram = Gram(model.bend)
        return by_gram(self, self.gram, model, start, r)

    def _gram_cost(self, parts: tuple[NDArray, ...]) -> int:
        """How many cycles over the columns cost as much as their Gram matrix."""
        sizes = np.zeros(self.store.n_rows, dtype=np.int64)
        kernels().row_sizes(*parts, sizes)
        return 5 + int(sizes @ sizes) // (2 * max(int(sizes.sum()), 1))

    def pull(self, columns: NDArray, r: NDArray) -> NDArray:
        out = np.empty(len(columns))
        kernels().sparse_pull(*self.store.parts(columns), r, out)
        return out

    def products(self, columns: NDArray, first: int, bend: NDArray, stride: int) -> NDArray:
        parts, sizes = self.store.parts(columns), np.zeros(self.store.n_rows, dtype=np.int64)
        kernels().row_sizes(*parts, sizes)
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        G = np.zeros((len(columns), len(columns)))
        kernels().sparse_gram(*parts, bend, first, ends, G)
        low = G[first:]
        low[:, first:] += np.tril(low[:, first:], -1).T  # only the part up to the diagonal was added up
        return low


def columns_of(rows: Shard) -> DenseColumns | SparseColumns:
    """The columns of any matrix whose rows are here; what is copied of a sparse one stays with the rows."""
    X: Any = rows.X
    if isinstance(X, (Dense, Columns)):
        return DenseColumns(X)
    if "columns" not in rows.memo:
        rows.memo["columns"] = Store(X.csc if isinstance(X, Wide) else X)
    return SparseColumns(rows.memo["columns"])
