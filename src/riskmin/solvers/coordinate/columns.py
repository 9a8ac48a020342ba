"""The columns of X, dense or sparse, on which quadratic models are minimized."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.compressed import Csc, Csr
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.arrays.matrix import as_matrix, with_duplicates_summed
from riskmin.core import NDArray, Shard, deadline
from riskmin.core.deadline import check, check_each, chunk_ranges
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
    """A Gram matrix of m out of p columns costs about m^2 / (SQUARED_COLUMNS_PER_PASS p) passes over X."""

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
        # m^2 / (SQUARED_COLUMNS_PER_PASS p) = 1 for m columns.
        return max(int(np.sqrt(self.SQUARED_COLUMNS_PER_PASS * self.X.shape[1])) - len(in_use), 0)

    def solve(self, model: Model, prefetch: NDArray) -> Solution:
        """Return the minimizer of the model."""
        if len(model.columns) <= GRAM_MAX_COLUMNS:
            if self.gram is None or not self.gram.is_reusable_for(model):
                self.gram = ColumnGram(model.curvature, self._stride(model), single_precision=not model.exact)
            new = len(np.setdiff1d(model.columns, self.gram.columns))
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
        for i in check_each(range(0, n, self.GRAM_BLOCK_ROWS * gram.stride)):
            rows = slice(i, min(i + self.GRAM_BLOCK_ROWS * gram.stride, n), gram.stride)
            if self.X.by_columns:
                B = (self.X.array.T[:, rows][columns] * scale[rows]).astype(kind).T
            else:
                B = block[: len(scale[rows])]
                kernels().gather_columns(self.X.array[rows], columns, scale[rows], B)
            G += B[:, first:].T @ B
        return G


# ---------------------------------------------------------------- sparse
class ColumnStore:
    """The columns of a sparse X; columns of a CSR matrix are copied on first request."""

    OPS_PER_SPARSE_ENTRY = 8
    """Elementary operations per stored entry of a sparse column, whose rows are scattered in memory."""
    COPY_ALL_ABOVE_SHARE = 0.8
    """Copy all columns once the requested ones hold more than this share of X: several partial copies cost
    more."""

    def __init__(self, X: Csr | Csc) -> None:
        self.X = X
        self.n_rows, p = X.shape
        if X.by_columns:
            csc = with_duplicates_summed(X.as_scipy())
            ends, rows = csc.indptr.astype(np.int64), csc.indices.view(X.indices.dtype)
            self.start, self.stop, self.rows, self.values = ends[:-1], ends[1:], rows, csc.data
            self.count = np.diff(ends)
        else:
            self.count = np.zeros(p, dtype=np.int64)
            for i, j in chunk_ranges(0, len(X.indices), self.OPS_PER_SPARSE_ENTRY * len(X.indices)):
                kernels().count(X.indices[i:j], self.count)
            self.start, self.stop = np.full(p, -1, dtype=np.int64), np.zeros(p, dtype=np.int64)
            # Space for all columns: pages that are never written to take no physical memory.
            self.rows = np.empty(len(X.data), dtype=np.uint32)
            self.values = np.empty(len(X.data), dtype=X.data.dtype)
            self.n_copied = 0

    def fetch(self, columns: NDArray, prefetch: NDArray) -> None:
        """Copy missing columns, in one pass over X, which also copies the columns of `prefetch`."""
        if (self.start[columns] >= 0).all():
            return
        assert not self.X.by_columns
        wanted = np.union1d(columns, prefetch)
        if self.count[wanted].sum() > self.COPY_ALL_ABOVE_SHARE * self.count.sum():
            wanted = np.arange(len(self.start))
        new = wanted[self.start[wanted] < 0]
        # New columns are stored one after the other, behind those already copied.
        begins = self.n_copied + np.cumsum(self.count[new]) - self.count[new]
        position = np.full(self.X.shape[1], -1, dtype=np.int32)
        position[new] = np.arange(len(new))
        ends, n = begins.copy(), self.n_rows
        for i, j in chunk_ranges(0, n, self.OPS_PER_SPARSE_ENTRY * len(self.X.data)):
            args = self.X.indptr, self.X.indices, self.X.data, i, j, position, begins, ends
            kernels().copy_csr_columns(*args, self.rows, self.values)
        # Published only after the copy: an interrupt leaves no column marked as copied that is not.
        self.n_copied += int(self.count[new].sum())
        self.stop[new] = ends
        self.start[new] = begins

    def kernel_arrays(self, columns: NDArray) -> tuple[NDArray, ...]:
        """Return the columns as the kernels take them: starts, ends, row indices, values, column indices."""
        return self.start, self.stop, self.rows, self.values, columns

    def ranges(self, columns: NDArray) -> Iterable[slice]:
        """Split the columns into ranges short enough that deadlines are checked between kernel calls."""
        work = self.OPS_PER_SPARSE_ENTRY * float(self.count[columns].sum())
        return (slice(i, j) for i, j in chunk_ranges(0, len(columns), work))


@dataclass
class SparseColumns:
    """Minimizes models over the columns of a sparse X."""

    WORKING_SET_MAX_DATA_SHARE = 0.2
    """Fill a working set up to this share of the stored entries of X: another pass over X costs more."""
    MAX_CYCLES_PER_ROUND = 8
    """Cycles between two checks of the progress."""
    GRAM_USUAL_EPOCHS = 20
    """Cycles over a Gram matrix that usually minimize a model."""
    GRAM_REUSE_MAX_CYCLES = 50.0
    """Cost of these, in cycles over the columns, up to which the last matrix is used again at once."""
    CURVATURE_FLOOR_RATIO = 1e-12
    """Smallest curvature, relative to the largest: the slopes are divided by its square root."""

    store: ColumnStore
    gram: ColumnGram | None = None
    gram_is_cheap: bool = False
    """As for dense columns; always False, since a cycle over all columns costs more than one over some."""

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
        gram_cycles = self._gram_cost(arrays)
        chunk = min(max(gram_cycles // 2, 5), self.MAX_CYCLES_PER_ROUND)
        # track: w and the shift of the intercept, at the start of a round and after each of its cycles.
        shifts, track = root if model.has_intercept else NO_VALUES, np.zeros((chunk + 1, len(w) + 1))
        data = (*arrays[:3], model.columns, *scaled)
        b, first, epochs, active = 0.0, 0.0, 0, np.empty(len(w), np.bool_)
        while True:
            track[0, :-1] = w
            active[:] = True
            args = *data, r, h, w, model.terms, offset, shifts, model.tol, track, active
            moved, worst, done = run_cycles(kernels().sparse_epochs, *args)
            b, epochs, first = b + moved, epochs + done, first or worst
            if worst <= model.tol or epochs >= MAX_EPOCHS_PER_MODEL:
                break
            # Switch to a Gram matrix if it costs less than the remaining cycles at the observed linear rate.
            if gram_fits and epochs >= max(chunk + 1, gram_cycles // 2):
                # Decrease of log(violation) per cycle since the first round.
                rate = max(math.log(first / worst), 1e-3) / (epochs - chunk)
                if math.log(worst / model.tol) / rate > gram_cycles:
                    break
            b += self._extrapolate(data, model.terms, offset, track, w, r, shifts)
        cycle = float(self.store.count[model.columns].sum())
        start = Solution(w, b, NO_VALUES, epochs, model.curvature, work=epochs * cycle)
        if worst <= model.tol or epochs >= MAX_EPOCHS_PER_MODEL:
            return start
        if self.gram is None or not self.gram.is_reusable_for(model):
            self.gram = ColumnGram(model.curvature)
        start = start._replace(work=start.work + cycle * gram_cycles)
        return solve_by_gram(self, self.gram, model, start, r * root)

    def _extrapolate(
        self,
        data: tuple[Any, ...],
        terms: NDArray,
        offset: NDArray,
        track: NDArray,
        w: NDArray,
        r: NDArray,
        shifts: NDArray,
    ) -> float:
        """Move to the Anderson extrapolation of the last cycles if the model is lower there.

        The extrapolated point is the affine combination of the last iterates with the smallest combined
        change. w and r are changed in place; returns the change of the intercept.
        """
        # The weights minimize |sum_i weights_i steps_i| for sum_i weights_i = 1: (S S')^-1 1, normalized.
        steps = np.diff(track[-6:], axis=0)
        gram = steps @ steps.T
        # The ridge of 1e-10 keeps the solve defined where the steps are linearly dependent.
        weights = np.linalg.solve(gram + 1e-10 * np.trace(gram) * np.eye(len(gram)), np.ones(len(gram)))
        target = (weights / weights.sum()) @ track[-len(weights) :]
        target[:-1] = np.clip(target[:-1], terms[2], terms[3])
        step = target - track[-1]
        new = r + step[-1] * shifts if len(shifts) else r.copy()
        *arrays, columns, begin, values = data
        for part in self.store.ranges(columns):
            kernels().add_columns(*arrays, columns[part], begin[part], values, step[:-1][part], new)
        absolute, square = terms[0], terms[1]
        # Decrease of the model: least squares, linear part, and the penalty.
        decrease = 0.5 * float((r - new) @ (r + new)) - float(offset @ step[:-1])
        decrease += float(
            absolute @ (np.abs(w) - np.abs(target[:-1])) + 0.5 * square @ (w * w - target[:-1] ** 2)
        )
        if not decrease > 0:
            return 0.0
        w[:], r[:] = target[:-1], new
        return float(step[-1])

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
        out = np.empty(len(columns))
        for part in self.store.ranges(columns):
            kernels().sparse_pullback(*self.store.kernel_arrays(columns[part]), r, out[part])
        return out

    def gram_rows(self, columns: NDArray, first: int, gram: ColumnGram) -> NDArray:
        """Return the rows of X' D X from `first` on, over all the columns."""
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


def run_cycles(kernel: Any, *args: Any) -> tuple[float, float, int]:
    """Run a kernel of cycles to its end, checking the deadline in between.

    Returns the change of the intercept, the largest remaining violation, and the number of epochs.
    """
    k = kernels()
    state = np.zeros(5)
    while True:
        check()
        if kernel(*args, state, deadline.MAX_KERNEL_OPERATIONS // ColumnStore.OPS_PER_SPARSE_ENTRY):
            return float(state[k.INTERCEPT_SHIFT]), float(state[k.WORST_SLOPE]), int(state[k.EPOCH])


def every_nth_row(X: Any, stride: int) -> Any:
    """Return every `stride`-th row of X; None for a format without cheap access to rows."""
    if X.array is not None:
        return as_matrix(np.array(X.array[::stride], order="F" if X.by_columns else "C"))
    return None if X.one_block else X.as_scipy()[::stride]


def columns_of(rows: Shard) -> DenseColumns | SparseColumns:
    """Return the columns of a matrix in this process; copies of sparse columns are cached with the shard."""
    X: Any = rows.X
    if X.array is not None:
        return DenseColumns(X)
    if "columns" not in rows.cache:
        rows.cache["columns"] = ColumnStore(X if X.without_transpose is X else X.csc)
    return SparseColumns(rows.cache["columns"])
