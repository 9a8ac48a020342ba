r"""The columns of :math:`A = \sqrt D X` for the curvatures D of a quadratic model, with sparse X.

With r = s / sqrt(D), the model of slopes s and curvatures D is :math:`\tfrac12 |r + A d|^2` up to a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.core import NDArray, deadline
from riskmin.core.deadline import check, chunk_ranges
from riskmin.numerics.linear_systems import CgState, cg
from riskmin.solvers.coordinate.quadratic_model import kernels

OPS_PER_SPARSE_ENTRY = 8
"""Elementary operations per stored entry of a sparse column, whose rows are scattered in memory."""


def run_cycles(kernel: Any, *args: Any) -> tuple[float, float, int]:
    """Run a kernel of cycles to its end, checking the deadline in between.

    Returns the change of the intercept, the largest remaining violation, and the number of epochs.
    """
    k = kernels()
    state = np.zeros(5)
    while True:
        check()
        if kernel(*args, state, deadline.MAX_KERNEL_OPERATIONS // OPS_PER_SPARSE_ENTRY):
            return float(state[k.INTERCEPT_SHIFT]), float(state[k.WORST_SLOPE]), int(state[k.EPOCH])


@dataclass
class ModelPoint:
    """A point of a model: w over its columns, the shift b of the intercept, and r."""

    w: NDArray
    b: float
    r: NDArray


@dataclass(frozen=True)
class ScaledColumns:
    """Columns of sqrt(D) X, and behind them the column of the intercept, if there is one."""

    CG_TOLERANCE = 0.1
    """Relative size of the residual at which conjugate gradients end."""
    MAX_CONJUGATE_GRADIENTS = 10
    """Steps of conjugate gradients per model."""

    ends: NDArray
    """Where the stored columns of X end, with a 0 before the first."""
    rows: NDArray
    """Rows of their entries."""
    columns: NDArray
    begin: NDArray
    """Where each column begins in the values."""
    values: NDArray
    h: NDArray
    """Squared norms of the columns."""
    offset: NDArray
    """The exact slopes at the start, less those of the rounded values."""
    shifts: NDArray
    """Column of the intercept, or empty."""

    def take(self, index: NDArray) -> ScaledColumns:
        """Return some of the columns, with the intercept."""
        taken = {name: getattr(self, name)[index] for name in ("columns", "begin", "h", "offset")}
        return replace(self, **taken)

    def _parts(self) -> Iterator[tuple[slice, tuple[NDArray, ...]]]:
        """Yield ranges of the columns, short enough for one call of a kernel, with its arguments."""
        work = OPS_PER_SPARSE_ENTRY * float((self.ends[self.columns + 1] - self.ends[self.columns]).sum())
        for i, j in chunk_ranges(0, len(self.columns), work):
            yield slice(i, j), (self.ends, self.rows, self.columns[i:j], self.begin[i:j], self.values)

    def cycle(self, point: ModelPoint, terms: NDArray, tol: float, epochs: int) -> tuple[float, int]:
        """Minimize over one w_j at a time; return the largest slope met in the last cycle, and the cycles."""
        data = self.ends, self.rows, self.columns, self.begin, self.values, point.r, self.h, point.w
        active = np.ones(len(point.w), np.bool_)
        args = *data, terms, self.offset, self.shifts, tol, epochs, active
        b, worst, done = run_cycles(kernels().sparse_epochs, *args)
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

    def move_nonzero_weights(self, point: ModelPoint, terms: NDArray, tol: float) -> NDArray:
        """Step towards the minimizer over the w_j != 0, by conjugate gradients, in place.

        Cycles determine which w_j are zero, but hardly move along directions in which columns of many
        entries and those of few compensate each other. Those that would change
        their sign end at zero; if the model is not lower there, the step ends at the first of them. Returns
        r at the minimizer, whatever its signs: a dual point needs none.
        """
        absolute, square, lower, upper = terms
        w = point.w
        index = np.flatnonzero(((w != 0) | (absolute == 0)) & (w > lower) & (w < upper) & (self.h > 0))
        free, start, sign, k = self.take(index), w[index], np.sign(w[index]), len(index)
        g = free.pull_back(point.r)
        g[:k] += free.offset + square[index] * start + absolute[index] * sign
        extra = np.full(len(g) - k, self.shifts @ self.shifts)
        step, change = free._minimizer(g, np.append(square[index], 0 * extra), extra, tol, len(point.r))
        # An absolute value is differentiable only up to zero: zero is the end of the range on its side.
        bent = absolute[index] > 0
        low = np.where(bent & (sign > 0), np.maximum(lower[index], 0.0), lower[index])
        high = np.where(bent & (sign < 0), np.minimum(upper[index], 0.0), upper[index])
        predicted, new = point.r + change, np.clip(start + step[:k], low, high)
        if not np.array_equal(new, start + step[:k]):
            full = np.append(new - start, step[k:])
            moved = free.scores(full, np.empty(len(point.r)))
            if float(g @ full + 0.5 * (moved @ moved) + 0.5 * square[index] @ full[:k] ** 2) < 0:
                step, change = full, moved
            else:
                # up to the first that ends at zero or a bound
                end = np.where(step[:k] < 0, low, high)
                with np.errstate(divide="ignore", invalid="ignore"):
                    reach = np.where(step[:k] == 0, np.inf, (end - start) / step[:k])
                t = min(1.0, float(reach.min()))
                new, step, change = np.where(reach <= t, end, start + t * step[:k]), t * step, t * change
        w[index] = new
        point.r += change
        point.b += float(step[k:].sum())
        return predicted

    def _minimizer(
        self, g: NDArray, square: NDArray, extra: NDArray, tol: float, n_rows: int
    ) -> tuple[NDArray, NDArray]:
        """Approximately minimize g'd + |A d|^2 / 2 + square'd^2 / 2; return d and A d.

        The diagonal of the Hessian is the preconditioner; `extra` is that of the intercept.
        """
        # vectors of n entries stay: new pages take as long as a pass over sparse columns
        diagonal, Ad = np.append(self.h, extra) + square, np.empty(n_rows)
        first = float(g @ (g / diagonal))

        def product(p: NDArray) -> NDArray:
            return np.asarray(self.pull_back(self.scores(p, Ad)) + square * p)

        def stop(at: CgState) -> bool:
            return not at.square > self.CG_TOLERANCE**2 * first or np.abs(at.residual).max() <= 0.3 * tol

        d = cg(product, -g, lambda r: r / diagonal, stop, max_steps=self.MAX_CONJUGATE_GRADIENTS).x
        return d, self.scores(d, Ad)
