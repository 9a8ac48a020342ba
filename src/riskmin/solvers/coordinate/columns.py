"""The columns of X, dense or sparse, on which quadratic models are minimized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.compressed import Csc, Csr
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.core import NDArray, Shard
from riskmin.core.deadline import check_each, chunk_ranges
from riskmin.solvers.coordinate.quadratic_model import (
    MAX_EPOCHS_PER_MODEL,
    NO_VALUES,
    ColumnGram,
    Model,
    Solution,
    gram_work,
    kernels,
    reusable,
    solve_by_gram,
)
from riskmin.solvers.coordinate.scaled_columns import (
    OPS_PER_SPARSE_ENTRY,
    ModelPoint,
    ScaledColumns,
    run_cycles,
)

GRAM_MAX_COLUMNS = 3000
"""Form a Gram matrix for at most this many columns, which bounds its memory."""


# ---------------------------------------------------------------- dense
@dataclass
class DenseColumns:
    """The columns of a dense X."""

    GRAM_BLOCK_ROWS = 1024
    """Rows of X per block of the Gram product, so that a block stays in cache."""
    SQUARED_COLUMNS_PER_PASS = 160
    """The products of m out of p columns cost about m^2 / (SQUARED_COLUMNS_PER_PASS p) passes over X."""
    GRAM_ENTRY_COST = 6
    """Entries of X that take as long to read as an entry of a Gram matrix takes to allocate and copy."""

    X: Dense | DenseFortran
    gram: ColumnGram | None = None

    @property
    def n_entries(self) -> int:
        """Number of entries of X: the work of a pass over it."""
        return self.X.shape[0] * self.X.shape[1]

    @property
    def gram_is_cheap(self) -> bool:
        """Whether a Gram matrix of all columns costs at most about one pass over X."""
        return self.X.shape[1] <= self.SQUARED_COLUMNS_PER_PASS

    def max_new_columns(self, in_use: NDArray, order: NDArray) -> int:
        """Return how many columns to add: with those in use, the Gram matrix costs about one pass over X."""
        n, p = self.X.shape
        # For m columns m^2 / p times this is 1: the products, and the m^2 entries themselves.
        cost = 1 / self.SQUARED_COLUMNS_PER_PASS + self.GRAM_ENTRY_COST / n
        return max(int(np.sqrt(p / cost)) - len(in_use), 0)

    def solve(self, model: Model) -> Solution:
        """Return the minimizer of the model."""
        solution = self._by_gram(model) if len(model.columns) <= GRAM_MAX_COLUMNS else self._by_cycles(model)
        # Change of the scores, X (w - w_0), in one pass over X.
        step = np.zeros(self.X.shape[1])
        step[model.columns] = solution.w - model.w
        return solution._replace(u=self.X.scores(step, 0, self.X.shape[0]))

    def _by_gram(self, model: Model) -> Solution:
        """Minimize the model on its Gram matrix, which a model of constant curvature extends."""
        m, self.gram = len(model.columns), reusable(self.gram, model)
        new = len(self.gram.missing(model.columns))
        if new and self._copy_costs_more(m, len(self.gram.columns) + new):
            self.gram, new = ColumnGram(model.curvature), m
        # The products of n rows with the new columns.
        build = new * m * (self.X.shape[0] / self.SQUARED_COLUMNS_PER_PASS)
        return solve_by_gram(self, self.gram, model, build)

    def _copy_costs_more(self, m: int, total: int) -> bool:
        """Whether a matrix of `total` columns takes longer to copy than one of m columns to compute."""
        return self.X.shape[0] * m**2 < self.SQUARED_COLUMNS_PER_PASS * self.GRAM_ENTRY_COST * (
            total**2 - m**2
        )

    def _by_cycles(self, model: Model) -> Solution:
        """Minimize the model by cycles over its columns, without a Gram matrix."""
        T = np.ascontiguousarray(self.X.array.T[model.columns])
        # h_k = sum_i D_i x_ik^2, the second derivative in w_k.
        h = np.einsum("ki,ki,i->k", T, T, model.curvature)
        w, r = model.w.copy(), model.slope.copy()
        # The curvature in the intercept; 0 stands for none.
        total = float(model.curvature.sum()) if model.has_intercept else 0.0
        args = T, r, model.curvature, h, w, model.terms, total, model.tol, MAX_EPOCHS_PER_MODEL
        b, _, epochs = run_cycles(kernels().dense_epochs, *args)
        return Solution(w, b, NO_VALUES, epochs, float(epochs * T.size))

    def pull_back(self, columns: NDArray, r: NDArray) -> NDArray:
        """Return X' r over the columns."""
        return _pull_back(self.X, columns, r)

    def gram_rows(self, columns: NDArray, first: int, curvature: NDArray) -> NDArray:
        """Return the rows of X' D X from `first` on, by blocks of rows of sqrt(D) X."""
        n, scale = self.X.shape[0], np.sqrt(curvature)
        G = np.zeros((len(columns) - first, len(columns)))
        block = np.empty((self.GRAM_BLOCK_ROWS, len(columns)))
        takes_all = len(columns) == self.X.shape[1] and bool((columns[1:] > columns[:-1]).all())
        for i in check_each(range(0, n, self.GRAM_BLOCK_ROWS)):
            rows = slice(i, min(i + self.GRAM_BLOCK_ROWS, n))
            if self.X.by_columns:
                B = (self.X.array.T[:, rows][columns] * scale[rows]).T
            else:
                B = block[: len(scale[rows])]
                if takes_all:
                    kernels().scale_rows(self.X.array[rows], scale[rows], B)
                else:
                    kernels().gather_columns(self.X.array[rows], columns, scale[rows], B)
            G += B[:, first:].T @ B
        return G


# ---------------------------------------------------------------- sparse
class ColumnStore:
    """A sparse X by columns and by rows; the form that was not given is copied when it is first needed."""

    def __init__(self, X: Csr | Csc) -> None:
        self.X = X
        self.n_rows, p = X.shape
        if X.by_columns:
            self.count = np.diff(X.indptr.astype(np.int64))
        else:
            self.count = np.zeros(p, dtype=np.int64)
            for i, j in chunk_ranges(0, len(X.indices), OPS_PER_SPARSE_ENTRY * len(X.indices)):
                kernels().count(X.indices[i:j], self.count)

    @cached_property
    def by_columns(self) -> tuple[NDArray, NDArray, NDArray]:
        """Where the columns end (with a 0 before the first), the rows of their entries, and the values."""
        X, ends = self.X, np.concatenate([[0], np.cumsum(self.count)])
        if X.by_columns:
            return ends, X.indices, X.data
        rows, values, next_free = np.empty(len(X.data), np.uint32), np.empty_like(X.data), ends[:-1].copy()
        for i, j in chunk_ranges(0, self.n_rows, OPS_PER_SPARSE_ENTRY * len(X.data)):
            kernels().copy_csr_columns(X.indptr, X.indices, X.data, i, j, next_free, rows, values)
        return ends, rows, values

    @cached_property
    def by_rows(self) -> tuple[NDArray, NDArray, NDArray]:
        """The same of the rows."""
        X = self.X.as_scipy().tocsr() if self.X.by_columns else self.X
        return X.indptr, X.indices, X.data

    @cached_property
    def row_lengths(self) -> tuple[float, int]:
        """The sum of the squared numbers of entries of the rows, and the largest number."""
        lengths = np.diff(self.by_rows[0].astype(np.float64))
        return float(lengths @ lengths), int(lengths.max(initial=0.0))

    def ranges(self, columns: NDArray) -> Iterable[slice]:
        """Split the columns into ranges short enough that deadlines are checked between kernel calls."""
        work = OPS_PER_SPARSE_ENTRY * float(self.count[columns].sum())
        return (slice(i, j) for i, j in chunk_ranges(0, len(columns), work))


@dataclass
class SparseColumns:
    """Minimizes models over the columns of a sparse X."""

    CYCLES = 10
    """Cycles over the columns per model, where a Gram matrix would cost more."""
    GRAM_USUAL_EPOCHS = 20
    """Cycles over a Gram matrix that usually minimize a model."""
    GRAM_MAX_CYCLES, SLOW_GRAM_MAX_CYCLES = 18, 250
    """Cost of a Gram matrix, in cycles over its columns, up to which it is formed; the second where the last
    model left much of the violation."""
    CURVATURE_FLOOR_RATIO = 1e-12
    """Smallest curvature, relative to the largest: the slopes are divided by its square root."""

    store: ColumnStore
    gram: ColumnGram | None = None

    @property
    def gram_is_cheap(self) -> bool:
        """Whether the Gram matrix of all columns would be formed."""
        return self._forms_gram(np.arange(len(self.store.count)), self.GRAM_MAX_CYCLES)

    def _forms_gram(self, columns: NDArray, max_cycles: float) -> bool:
        """Whether the matrix of the columns costs few cycles, if their entries are spread over all rows."""
        if len(columns) > GRAM_MAX_COLUMNS:
            return False
        entries = max(int(self.store.count[columns].sum()), 1)
        # A row with e entries contributes e^2 products to the matrix, and e to a cycle.
        products = 0.75 * self.store.row_lengths[0] * entries / self.n_entries**2
        return products + gram_work(len(columns), self.GRAM_USUAL_EPOCHS) / entries <= max_cycles

    @property
    def n_entries(self) -> int:
        """Number of stored entries of X: the work of a pass over it."""
        return max(int(self.store.count.sum()), 1)

    def max_new_columns(self, in_use: NDArray, order: NDArray) -> int:
        """Return how many columns of `order` to add: a cycle visits as many entries as a pass over X."""
        budget = float(self.store.count.sum() - self.store.count[in_use].sum())
        return int(np.searchsorted(np.cumsum(self.store.count[order]), budget))

    def solve(self, model: Model) -> Solution:
        """Return the minimizer of the model."""
        max_cycles = self.SLOW_GRAM_MAX_CYCLES if model.slow else self.GRAM_MAX_CYCLES
        if not self._forms_gram(model.columns, max_cycles):
            return self._by_cycles(model)
        self.gram = reusable(self.gram, model)
        solution = solve_by_gram(self, self.gram, model, 0.0)
        step = np.zeros(self.store.X.shape[1])
        step[model.columns] = solution.w - model.w
        return solution._replace(u=self.store.X.scores(step, 0, self.store.n_rows))

    def _by_cycles(self, model: Model) -> Solution:
        """Minimize the model by cycles over its columns, then by a step of all nonzero weights."""
        store, columns = self.store, model.columns
        root = np.sqrt(np.maximum(model.curvature, self.CURVATURE_FLOOR_RATIO * model.curvature.max()))
        point = ModelPoint(model.w.copy(), 0.0, model.slope / root)
        (begin, values), h, g = self._scaled_columns(columns, root, point.r)
        ends, rows, entries = store.by_columns
        # Rounding to single precision may perturb the curvature of the model, but not its gradient.
        offset, shifts = model.grad - g, root if model.has_intercept else NO_VALUES
        data = ScaledColumns(ends, rows, columns, begin, values, h, offset, shifts)
        worst, epochs = data.cycle(point, model.terms, model.tol, self.CYCLES)
        slope = None
        if worst > model.tol:
            slope = root * data.move_nonzero_weights(point, model.terms, model.tol)
        u, step = np.zeros(store.n_rows), point.w - model.w
        for part in store.ranges(columns):
            kernels().sparse_scores(ends, rows, entries, columns[part], step[part], u)
        return Solution(point.w, point.b, u, epochs, epochs * float(store.count[columns].sum()), slope=slope)

    def _scaled_columns(
        self, columns: NDArray, root: NDArray, r: NDArray
    ) -> tuple[tuple[NDArray, NDArray], NDArray, NDArray]:
        """Return the columns of sqrt(D) X (starts, values), their squared norms, and their products with r.

        Single precision is used unless it overflows or underflows.
        """
        begin, h, g = np.empty(len(columns), dtype=np.int64), np.empty(len(columns)), np.empty(len(columns))
        for kind in (np.float32, np.float64):
            out = np.empty(int(self.store.count[columns].sum()), dtype=kind)
            position = 0
            for part in self.store.ranges(columns):
                outputs = begin[part], out, h[part], g[part], position
                args = *self.store.by_columns, columns[part], root, r
                position = kernels().scale_columns(*args, *outputs)
            positive = h[h > 0]
            if np.isfinite(h).all() and (
                not len(positive) or 1e-30 < positive.min() <= positive.max() < 1e30
            ):
                break
        return (begin, out), h, g

    def pull_back(self, columns: NDArray, r: NDArray) -> NDArray:
        """Return X' r over the columns."""
        return _pull_back(self.store.X, columns, r)

    def gram_rows(self, columns: NDArray, first: int, curvature: NDArray) -> NDArray:
        """Return the rows of X' D X from `first` on, over all the columns."""
        place = np.full(self.store.X.shape[1], -1, dtype=np.int32)
        place[columns] = np.arange(len(columns))
        G, squares = np.zeros((len(columns) - first, len(columns))), np.zeros(len(columns) - first)
        squared, longest = self.store.row_lengths
        buffers = np.empty(longest, dtype=np.int32), np.empty(longest)
        for i, j in chunk_ranges(0, self.store.n_rows, squared):
            args = *self.store.by_rows, place, curvature, i, j, first
            kernels().csr_gram(*args, *buffers, squares, G)
        new = G[:, first:]
        new += new.T.copy()
        new[np.diag_indices(len(new))] += squares
        return G


def _pull_back(X: Any, columns: NDArray, r: NDArray) -> NDArray:
    """Return X' r over the columns."""
    out = np.zeros(X.shape[1])
    X.pullback(r, 0, len(r), out)
    return out[columns]


def columns_of(rows: Shard) -> DenseColumns | SparseColumns:
    """Return the columns of a matrix in this process; copies of sparse columns are cached with the shard."""
    X: Any = rows.X
    if X.array is not None:
        return DenseColumns(X)
    if "columns" not in rows.cache:
        rows.cache["columns"] = ColumnStore(X)
    return SparseColumns(rows.cache["columns"])
