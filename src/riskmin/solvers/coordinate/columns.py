"""The columns of X, dense or sparse, on which quadratic models are minimized."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.core import NDArray, Shard
from riskmin.core.deadline import check_each, chunk_ranges
from riskmin.solvers.coordinate.quadratic_model import (
    MAX_EPOCHS_PER_MODEL,
    ColumnGram,
    Model,
    Solution,
    gram_work,
    kernels,
    relative_change,
    solve_by_gram,
)
from riskmin.solvers.coordinate.scaled_columns import ColumnStore, ModelPoint, ScaledColumns, run_cycles

GRAM_MAX_COLUMNS = 3000
"""Form a Gram matrix for at most this many columns, which bounds its memory."""
NO_VALUES = np.empty(0)


# ---------------------------------------------------------------- dense
@dataclass
class DenseColumns:
    """The columns of a dense X."""

    GRAM_BLOCK_ROWS = 1024
    """Rows of X per block of the Gram product, so that a block stays in cache."""
    SUBSAMPLE_ABOVE_CHANGE = 0.3
    """Subsample the rows of a Gram matrix if the curvature has changed by more than this since the last
    matrix:
    the matrix will not be reused for long."""
    SUBSAMPLE_ROWS_PER_COLUMN = 64
    """Rows per column in a subsampled Gram matrix."""
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

    def solve(self, model: Model, prefetch: NDArray) -> Solution:
        """Return the minimizer of the model."""
        if len(model.columns) <= GRAM_MAX_COLUMNS:
            if self.gram is None or not self.gram.is_reusable_for(model):
                # With fewer rows than columns the matrix is singular, and systems in it need more digits.
                single = not model.exact and len(model.columns) < self.X.shape[0]
                self.gram = ColumnGram(model.curvature, self._stride(model), single)
            new = len(self.gram.missing(model.columns))
            if new and self._copy_costs_more(len(model.columns), len(self.gram.columns) + new):
                self.gram = ColumnGram(model.curvature, self.gram.stride, self.gram.single_precision)
                new = len(model.columns)
            # The products of n rows with the new columns.
            build = new * len(model.columns) * (self.X.shape[0] / self.SQUARED_COLUMNS_PER_PASS)
            start = Solution(model.w.copy(), 0.0, NO_VALUES, 0, work=build / self.gram.stride)
            solution = solve_by_gram(self, self.gram, model, start, None)
        else:
            solution = self._minimize_by_cycles(model)
        # Change of the scores, X (w - w_0), in one pass over X.
        step = np.zeros(self.X.shape[1])
        step[model.columns] = solution.w - model.w
        return solution._replace(u=self.X.scores(step, 0, self.X.shape[0]))

    def _copy_costs_more(self, m: int, total: int) -> bool:
        """Whether a matrix of `total` columns takes longer to copy than one of m columns to compute."""
        return self.X.shape[0] * m**2 < self.SQUARED_COLUMNS_PER_PASS * self.GRAM_ENTRY_COST * (
            total**2 - m**2
        )

    def _stride(self, model: Model) -> int:
        """Return the row stride of a new Gram matrix: 1 if its curvature will be used for long."""
        stable = (
            self.gram is not None
            and relative_change(model.curvature, self.gram.curvature) <= self.SUBSAMPLE_ABOVE_CHANGE
        )
        return (
            1
            if stable or model.constant_curvature or model.exact
            else max(1, self.X.shape[0] // (self.SUBSAMPLE_ROWS_PER_COLUMN * max(len(model.columns), 16)))
        )

    def _minimize_by_cycles(self, model: Model) -> Solution:
        """Minimize the model by cycles over its columns, without a Gram matrix."""
        T = self.X.array.T[model.columns]
        # h_k = sum_i D_i x_ik^2, the second derivative in w_k.
        h = np.einsum("ki,ki,i->k", T, T, model.curvature)
        w, r = model.w.copy(), model.slope.copy()
        # The curvature in the intercept; 0 stands for none.
        total = float(model.curvature.sum()) if model.has_intercept else 0.0
        args = (
            np.ascontiguousarray(T),
            r,
            model.curvature,
            h,
            w,
            model.terms,
            total,
            model.tol,
            MAX_EPOCHS_PER_MODEL,
        )
        b, _, epochs = run_cycles(kernels().dense_epochs, *args)
        return Solution(w, b, NO_VALUES, epochs, model.curvature, work=float(epochs * T.size))

    def pull_back(self, columns: NDArray, r: NDArray) -> NDArray:
        """Return X' r over the columns."""
        out = np.zeros(self.X.shape[1])
        self.X.pullback(r, 0, len(r), out)
        return out[columns]

    def gram_rows(self, columns: NDArray, first: int, gram: ColumnGram) -> NDArray:
        """Return the rows of X' D X from `first` on, over all the columns."""
        # Single precision takes half the time, but may overflow or underflow.
        if gram.single_precision:
            G = self._gram_rows(columns, first, gram, np.float32)
            diagonal = G[:, first:].diagonal()
            if np.isfinite(G).all() and ((diagonal == 0) | (diagonal > 1e-30)).all():
                return G
        return self._gram_rows(columns, first, gram, np.float64)

    def _gram_rows(self, columns: NDArray, first: int, gram: ColumnGram, kind: Any) -> NDArray:
        """Return the rows of X' D X in the precision `kind`, by blocks of rows of sqrt(D) X."""
        # Every stride-th row represents `stride` rows.
        n, scale = self.X.shape[0], np.sqrt(gram.stride * gram.curvature)
        G = np.zeros((len(columns) - first, len(columns)))
        block = np.empty((self.GRAM_BLOCK_ROWS, len(columns)), dtype=kind)
        takes_all = len(columns) == self.X.shape[1] and bool((columns[1:] > columns[:-1]).all())
        for i in check_each(range(0, n, self.GRAM_BLOCK_ROWS * gram.stride)):
            rows = slice(i, min(i + self.GRAM_BLOCK_ROWS * gram.stride, n), gram.stride)
            if self.X.by_columns:
                B = (self.X.array.T[:, rows][columns] * scale[rows]).astype(kind).T
            else:
                B = block[: len(scale[rows])]
                if takes_all:
                    kernels().scale_rows(self.X.array[rows], scale[rows], B)
                else:
                    kernels().gather_columns(self.X.array[rows], columns, scale[rows], B)
            G += B[:, first:].T @ B
        return G


# ---------------------------------------------------------------- sparse
@dataclass
class SparseColumns:
    """Minimizes models over the columns of a sparse X."""

    WORKING_SET_MAX_DATA_SHARE = 1.0
    """Fill a working set up to this share of the stored entries of X: another pass over X costs more."""
    CYCLES = 10
    """Cycles over the columns before the solve over the nonzero w_j."""
    GRAM_MAX_CYCLES, EXACT_GRAM_MAX_CYCLES = 50, 200
    """Cost of a Gram matrix, in cycles over the columns, up to which it is preferred to conjugate gradients;
    the second where these made no progress."""
    GRAM_USUAL_EPOCHS = 20
    """Cycles over a Gram matrix that usually minimize a model."""
    GRAM_REUSE_MAX_CYCLES = 50.0
    """Cost of these, in cycles over the columns, up to which the last matrix is used again at once."""
    CURVATURE_FLOOR_RATIO = 1e-12
    """Smallest curvature, relative to the largest: the slopes are divided by its square root."""

    DIRECT_GRAM_MAX_CYCLES = 18
    """Cost of a Gram matrix, in cycles, up to which it is formed at once, from the rows of X."""

    store: ColumnStore
    gram: ColumnGram | None = None

    @property
    def gram_is_cheap(self) -> bool:
        """Whether the Gram matrix of all columns would be formed at once."""
        return self._forms_gram_at_once(np.arange(len(self.store.count)))

    @cached_property
    def _row_lengths(self) -> tuple[float, int]:
        """The sum of the squared numbers of entries of the rows, and the largest number."""
        lengths = np.diff(self.store.X.indptr.astype(np.float64))
        return float(lengths @ lengths), int(lengths.max(initial=0.0))

    def _forms_gram_at_once(self, columns: NDArray) -> bool:
        """Whether the matrix of the columns costs few cycles, if their entries are spread over all rows."""
        if self.store.X.by_columns or len(columns) > GRAM_MAX_COLUMNS:
            return False
        entries = max(int(self.store.count[columns].sum()), 1)
        products = 0.75 * self._row_lengths[0] * entries / self.n_entries**2
        descent = gram_work(len(columns), self.GRAM_USUAL_EPOCHS) / entries
        return products + descent <= self.DIRECT_GRAM_MAX_CYCLES

    @property
    def n_entries(self) -> int:
        """Number of stored entries of X: the work of a pass over it."""
        return max(int(self.store.count.sum()), 1)

    def max_new_columns(self, in_use: NDArray, order: NDArray) -> int:
        """Return how many columns of `order` to add to those in use: a bound on the entries per cycle."""
        budget = self.WORKING_SET_MAX_DATA_SHARE * float(self.store.count.sum()) - float(
            self.store.count[in_use].sum()
        )
        return int(np.searchsorted(np.cumsum(self.store.count[order]), budget))

    def solve(self, model: Model, prefetch: NDArray) -> Solution:
        """Return the minimizer of the model."""
        if self._forms_gram_at_once(model.columns):
            return self._solve_at_once(model)
        self.store.fetch(model.columns, prefetch)
        gram_fits = len(model.columns) <= GRAM_MAX_COLUMNS
        # A Gram matrix is first formed after cycles that converge slowly, and then reused while it is small.
        if gram_fits and self._has_cheap_gram(model):
            assert self.gram is not None
            solution = solve_by_gram(
                self, self.gram, model, Solution(model.w.copy(), 0.0, NO_VALUES, 0), None
            )
        else:
            solution = self._minimize_by_cycles(model, gram_fits)
        u, columns, step = np.zeros(self.store.n_rows), model.columns, solution.w - model.w
        for part in self.store.ranges(columns):
            kernels().sparse_scores(*self.store.kernel_arrays(columns[part]), step[part], u)
        return solution._replace(u=u)

    def _solve_at_once(self, model: Model) -> Solution:
        """Minimize the model on its Gram matrix, without copies of the columns."""
        X: Any = self.store.X
        if self.gram is None or not self.gram.is_reusable_for(model):
            self.gram = ColumnGram(model.curvature)
        start = Solution(model.w.copy(), 0.0, NO_VALUES, 0)
        solution = solve_by_gram(self, self.gram, model, start, None)
        step = np.zeros(X.shape[1])
        step[model.columns] = solution.w - model.w
        return solution._replace(u=X.scores(step, 0, self.store.n_rows))

    def _has_cheap_gram(self, model: Model) -> bool:
        """Whether the last Gram matrix can be used again, for about the cost of some cycles."""
        if self.gram is None or not self.gram.is_reusable_for(model):
            return False
        cycle = float(self.store.count[model.columns].sum())
        return gram_work(len(model.columns), self.GRAM_USUAL_EPOCHS) <= self.GRAM_REUSE_MAX_CYCLES * cycle

    def _minimize_by_cycles(self, model: Model, gram_fits: bool) -> Solution:
        """Minimize the model by cycles over its columns; switch to a Gram matrix if that is cheaper."""
        arrays, w = self.store.kernel_arrays(model.columns), model.w.copy()
        # With A = sqrt(D) X and r = s / sqrt(D), the model is 0.5 |r + A d|^2 up to a constant.
        root = np.sqrt(np.maximum(model.curvature, self.CURVATURE_FLOOR_RATIO * model.curvature.max()))
        r = model.slope / root
        scaled, h, g = self._scaled_columns(arrays, root, r)
        # Rounding to single precision may perturb the curvature of the model, but not its gradient.
        offset = model.grad - g
        shifts = root if model.has_intercept else NO_VALUES
        data = ScaledColumns(self.store, model.columns, *scaled, shifts)
        point = ModelPoint(w, 0.0, r)
        worst, epochs = data.cycle(point, h, model.terms, offset, model.tol, self.CYCLES)
        cycle = float(self.store.count[model.columns].sum())
        start = Solution(w, point.b, NO_VALUES, epochs, model.curvature, work=epochs * cycle)
        if worst <= model.tol:
            return start
        limit = (self.EXACT_GRAM_MAX_CYCLES if model.exact else self.GRAM_MAX_CYCLES) if gram_fits else 0
        if self._gram_cost(arrays) > limit:
            predicted = root * data.solve_free(h, model, offset, point)
            return start._replace(w=w, b=point.b, slope=predicted)
        if self.gram is None or not self.gram.is_reusable_for(model):
            self.gram = ColumnGram(model.curvature)
        return solve_by_gram(self, self.gram, model, start, r * root)

    def _scaled_columns(
        self, arrays: tuple[NDArray, ...], root: NDArray, r: NDArray
    ) -> tuple[tuple[NDArray, NDArray], NDArray, NDArray]:
        """Return the columns of sqrt(D) X (starts, values), their squared norms, and their products with r.

        Single precision is used unless it overflows or underflows.
        """
        columns = arrays[-1]
        begin, h, g = np.empty(len(columns), dtype=np.int64), np.empty(len(columns)), np.empty(len(columns))
        for kind in (np.float32, np.float64):
            out = np.empty(int((self.store.stop - self.store.start)[columns].sum()), dtype=kind)
            position = 0
            for part in self.store.ranges(columns):
                outputs = begin[part], out, h[part], g[part], position
                position = kernels().scale_columns(*arrays[:-1], columns[part], root, r, *outputs)
            positive = h[h > 0]
            if np.isfinite(h).all() and (
                not len(positive) or 1e-30 < positive.min() <= positive.max() < 1e30
            ):
                break
        return (begin, out), h, g

    def _gram_cost(self, arrays: tuple[NDArray, ...]) -> int:
        """Return the cost of minimizing a model by the Gram matrix of its columns, in cycles over these."""
        entries = self._entries_per_row(arrays[-1])
        # A row with e entries contributes e^2 products to the Gram matrix, and e to a cycle.
        products = 3 * int(entries @ entries) // 4
        descent = gram_work(len(arrays[-1]), self.GRAM_USUAL_EPOCHS)
        return 5 + int((products + descent) / max(int(entries.sum()), 1))

    def _entries_per_row(self, columns: NDArray) -> NDArray:
        """Return the number of stored entries of the columns in each row."""
        entries = np.zeros(self.store.n_rows, dtype=np.int64)
        for part in self.store.ranges(columns):
            kernels().count_row_entries(*self.store.kernel_arrays(columns[part]), entries)
        return entries

    def pull_back(self, columns: NDArray, r: NDArray) -> NDArray:
        """Return X' r over the columns."""
        if self._forms_gram_at_once(columns):
            all_columns = np.zeros(self.store.X.shape[1])
            self.store.X.pullback(r, 0, len(r), all_columns)
            return all_columns[columns]
        out = np.empty(len(columns))
        for part in self.store.ranges(columns):
            kernels().sparse_pullback(*self.store.kernel_arrays(columns[part]), r, out[part])
        return out

    def gram_rows(self, columns: NDArray, first: int, gram: ColumnGram) -> NDArray:
        """Return the rows of X' D X from `first` on, over all the columns."""
        if self._forms_gram_at_once(columns):
            return self._gram_rows_of_csr(columns, first, gram)
        # A matrix that was formed from the rows may have columns that were not copied yet.
        self.store.fetch(columns, columns)
        entries = self._entries_per_row(columns)
        # Where each row begins in the transposed copy; the kernel advances it to where the row ends.
        ends = np.cumsum(entries) - entries
        G, total = np.zeros((len(columns), len(columns))), int(entries.sum())
        column, value = np.empty(total, dtype=np.int32), np.empty(total)
        for part in self.store.ranges(columns):
            kernels().transpose_columns(
                *self.store.kernel_arrays(columns[part]), part.start, ends, column, value
            )
        for i, j in chunk_ranges(0, self.store.n_rows, float(entries @ entries)):
            kernels().sparse_gram(column, value, ends, gram.curvature, i, j, first, G)
        new_rows = G[first:]
        # The kernel accumulates only the part up to the diagonal.
        new_rows[:, first:] += np.tril(new_rows[:, first:], -1).T
        return new_rows

    def _gram_rows_of_csr(self, columns: NDArray, first: int, gram: ColumnGram) -> NDArray:
        """Return the same from the rows of X, which need not be transposed."""
        X: Any = self.store.X
        place = np.full(X.shape[1], -1, dtype=np.int32)
        place[columns] = np.arange(len(columns))
        G, squares = np.zeros((len(columns) - first, len(columns))), np.zeros(len(columns) - first)
        squared, longest = self._row_lengths
        buffers = np.empty(longest, dtype=np.int32), np.empty(longest)
        for i, j in chunk_ranges(0, self.store.n_rows, squared):
            args = X.indptr, X.indices, X.data, place, gram.curvature, i, j, first
            kernels().csr_gram(*args, *buffers, squares, G)
        new = G[:, first:]
        new += new.T.copy()
        new[np.diag_indices(len(new))] += squares
        return G


def columns_of(rows: Shard) -> DenseColumns | SparseColumns:
    """Return the columns of a matrix in this process; copies of sparse columns are cached with the shard."""
    X: Any = rows.X
    if X.array is not None:
        return DenseColumns(X)
    if "columns" not in rows.cache:
        rows.cache["columns"] = ColumnStore(X if X.without_transpose is X else X.csc)
    return SparseColumns(rows.cache["columns"])
