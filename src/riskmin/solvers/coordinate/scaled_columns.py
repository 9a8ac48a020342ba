r"""The columns of a sparse X, and of :math:`A = \sqrt D X` for the curvatures D of a quadratic model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.arrays.compressed import Csc, Csr
from riskmin.core import NDArray, deadline
from riskmin.core.deadline import check, chunk_ranges
from riskmin.numerics.linear_systems import CgState, cg
from riskmin.solvers.coordinate.active_set import FreeCoordinates
from riskmin.solvers.coordinate.quadratic_model import Model, kernels


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
            ends = X.indptr.astype(np.int64)
            self.start, self.stop, self.rows, self.values = ends[:-1], ends[1:], X.indices, X.data
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
            args = self.X.indptr, self.X.indices, self.X.data, i, j, position, ends
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
class ModelPoint:
    """A point of a model: w over its columns, the shift b of the intercept, the slopes r in the scores."""

    w: NDArray
    b: float
    r: NDArray


@dataclass(frozen=True)
class ScaledColumns:
    """Columns of sqrt(D) X, and behind them the column of the intercept, if there is one."""

    CG_TOLERANCE = 0.1
    """Relative size of the residual at which conjugate gradients end."""

    MAX_FREE_SOLVES = 2
    """Solves over the nonzero w_j between two rounds; the next is without those that became zero."""
    MAX_CONJUGATE_GRADIENTS = 10
    """Steps of conjugate gradients between two rounds."""

    store: ColumnStore
    columns: NDArray
    begin: NDArray
    """Where each column begins in the values; its rows are those of the stored column."""
    values: NDArray
    shifts: NDArray
    """Column of the intercept, or empty."""

    def take(self, index: NDArray) -> ScaledColumns:
        """Return some of the columns, with the intercept."""
        return replace(self, columns=self.columns[index], begin=self.begin[index])

    def _parts(self) -> Iterator[tuple[slice, tuple[NDArray, ...]]]:
        """Yield ranges of the columns, short enough for one call of a kernel, with its arguments."""
        store = self.store
        for part in store.ranges(self.columns):
            data = self.columns[part], self.begin[part], self.values
            yield part, (store.start, store.stop, store.rows, *data)

    def cycle(
        self,
        point: ModelPoint,
        h: NDArray,
        terms: NDArray,
        offset: NDArray,
        tol: float,
        epochs: int,
        index: NDArray | None = None,
    ) -> tuple[float, int]:
        """Minimize over one w_j at a time; return the largest slope met in the last cycle, and the cycles.

        `index` are the entries of point.w that belong to the columns; None stands for all.
        """
        store, w = self.store, point.w if index is None else point.w[index]
        data = store.start, store.stop, store.rows, self.columns, self.begin, self.values
        active, terms = np.ones(len(w), np.bool_), np.ascontiguousarray(terms)
        args = *data, point.r, h, w, terms, offset, self.shifts, tol, epochs, active
        b, worst, done = run_cycles(kernels().sparse_epochs, *args)
        if index is not None:
            point.w[index] = w
        point.b += b
        return worst, done

    def pull_back(self, r: NDArray) -> NDArray:
        """Return the products of the columns with r."""
        out = np.empty(len(self.columns) + bool(len(self.shifts)))
        for part, args in self._parts():
            kernels().scaled_pullback(*args, r, out[part])
        if len(self.shifts):
            out[-1] = self.shifts @ r
        return out

    def scores(self, step: NDArray, out: NDArray) -> NDArray:
        """Set `out` to the columns times the step, and return it."""
        if len(self.shifts):
            np.multiply(step[-1], self.shifts, out=out)
        else:
            out.fill(0.0)
        for part, args in self._parts():
            kernels().add_columns(*args, step[part], out)
        return out

    def conjugate_gradients(
        self, g: NDArray, square: NDArray, diagonal: NDArray, max_steps: int, tol: float
    ) -> tuple[NDArray, NDArray]:
        """Approximately minimize g'd + |A d|^2 / 2 + square'd^2 / 2; return d and A d.

        A are the columns; the diagonal of the Hessian is the preconditioner.
        """
        # vectors of n entries stay: new pages take as long as a pass over sparse columns
        Ad = np.empty(self.store.n_rows)
        first = float(g @ (g / diagonal))

        def product(p: NDArray) -> NDArray:
            return np.asarray(self.pull_back(self.scores(p, Ad)) + square * p)

        def stop(at: CgState) -> bool:
            return not at.square > self.CG_TOLERANCE**2 * first or np.abs(at.residual).max() <= 0.3 * tol

        d = cg(product, -g, lambda r: r / diagonal, stop, max_steps=max_steps).x
        return d, self.scores(d, Ad)

    def solve_free(self, h: NDArray, model: Model, offset: NDArray, point: ModelPoint) -> NDArray:
        """Step to the minimizer of the model over the w_j != 0, by conjugate gradients, in place.

        Cycles determine which w_j are zero, but hardly move along directions in which columns of many
        entries and those of few compensate each other. Those that would change their sign stop at zero, are
        minimized over one at a time, and the solve is repeated. Returns the slopes in the scaled scores at
        the minimizer of the last solve, whatever its signs: a dual point needs none.
        """
        terms, predicted = model.terms, point.r
        for _ in range(self.MAX_FREE_SOLVES):
            free = FreeCoordinates.of(point.w, terms, h)
            stopped, predicted = self.take(free.index)._free_step(free, h, model, offset, point)
            if not len(stopped):
                break
            self.take(stopped).cycle(point, h[stopped], terms[:, stopped], offset[stopped], 0.0, 1, stopped)
        return predicted

    def _free_step(
        self,
        free: FreeCoordinates,
        h: NDArray,
        model: Model,
        offset: NDArray,
        point: ModelPoint,
    ) -> tuple[NDArray, NDArray]:
        """Take one such step; return the coordinates that stopped at an end, and the predicted slopes."""
        k, terms = len(free.w), model.terms
        g = self.pull_back(point.r)
        g[:k] += offset[free.index] + free.penalty_slope
        intercept = np.full(len(g) - k, self.shifts @ self.shifts)
        square = np.append(terms[1, free.index], 0 * intercept)
        diagonal = np.append(h[free.index], intercept) + square
        step, change = self.conjugate_gradients(g, square, diagonal, self.MAX_CONJUGATE_GRADIENTS, model.tol)
        predicted = point.r + change
        new = free.projected(step[:k])
        stopped = free.index[new != free.w + step[:k]]
        if len(stopped):
            full = np.append(new - free.w, step[k:])
            moved = self.scores(full, np.empty(self.store.n_rows))
            if not float(g @ full + 0.5 * (moved @ moved) + 0.5 * square @ (full * full)) < 0:
                t, new = free.shortened(step[:k])
                full, moved = t * step, t * change
            step, change = full, moved
        point.w[free.index] = new
        point.r += change
        point.b += float(step[k:].sum())
        return stopped, predicted


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
