"""Limited-memory BFGS: the last steps and gradient changes, and the inverse Hessian they model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy, zeros_for
from riskmin.core import Array, NDArray
from riskmin.executors.base import Executor, SerialExecutor


def _kernels() -> Any:
    from riskmin._numba.newton import pair_products  # Numba is imported on first use, not with the package

    return pair_products


class LbfgsMemory:
    """The last `memory` pairs (s, y) of steps and gradient changes, the memory of L-BFGS.

    The pairs are the rows of one array, and their inner products are cached. The two-loop recursion needs
    only these products, so it runs on coefficients, and a direction costs two passes over the rows. There is
    one more slot than `memory`, so that the pairs of the last iterate stay intact while the next is computed.

    Parameters
    ----------
    memory : int
        Number of pairs in use.
    w : array
        Prototype: the pairs have its length, array library and device.
    executor : Executor, optional
        Its threads share the passes over long pairs.
    """

    COMPILED_FROM_COLUMNS = 2**14
    """Pairs of at least this length are multiplied by compiled loops, which threads share."""
    RANGE_COLUMNS = 4096
    """Columns of a range: one row of it stays in cache."""

    def __init__(self, memory: int, w: Array, executor: Executor | None = None) -> None:
        self.memory = memory
        self.executor = executor or SerialExecutor()
        self.rows = zeros_for((2 * memory + 2, len(w)), w)
        self.inner = np.zeros((2 * memory + 2, 2 * memory + 2))
        # Slots in use, oldest first: slot i has its step s in row 2i, its gradient change y in row 2i + 1.
        self.slots: list[int] = []
        # Rows whose inner products have not been computed yet.
        self.pending_rows: list[int] = []

    @classmethod
    def from_arrays(
        cls, memory: int, w: Array, S: Array, Y: Array, inner: NDArray | None = None,
        executor: Executor | None = None,
    ) -> Self:  # fmt: skip
        """Restore the pairs of an earlier run; `inner` holds their inner products, if they were saved."""
        self = cls(memory, w, executor)
        pairs = list(zip(S, Y, strict=True))
        usable = [i for i, (s, y) in enumerate(pairs) if _satisfies_curvature(s, y)][-memory:]
        for slot, i in enumerate(usable):
            self.rows[2 * slot], self.rows[2 * slot + 1] = pairs[i]
        self.slots, n = list(range(len(usable))), 2 * len(usable)
        if inner is not None and len(usable) == len(pairs):
            self.inner[:n, :n] = inner
        elif usable:
            A = self.rows[:n]
            self.inner[:n, :n] = to_numpy(A @ A.T)
        return self

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, s: Array, y: Array) -> None:
        """Store a pair, unless its curvature s @ y is too small."""
        if not _satisfies_curvature(s, y):
            return
        # One of the memory + 1 slots is always free, since at most `memory` are in use.
        slot = next(i for i in range(self.memory + 1) if i not in self.slots)
        self.rows[2 * slot], self.rows[2 * slot + 1] = s, y
        self.slots = [*self.slots, slot][-self.memory :]
        self.pending_rows = [row for row in self.pending_rows if row // 2 != slot] + [2 * slot, 2 * slot + 1]

    def _products(self, g: Array, used: int) -> NDArray:
        """Return the inner products of the rows with g; compute those with new pairs in the same pass."""
        A = self.rows[:used]
        if not self.pending_rows:
            return np.asarray(to_numpy(A @ g), dtype=float)
        # Rows of pairs that were already discarded are left out.
        pending, self.pending_rows = [row for row in self.pending_rows if row < used], []
        products = self._inner_products(A, namespace(g).stack([g, *(A[row] for row in pending)]))
        self.inner[:used, pending], self.inner[pending, :used] = products[:, 1:], products[:, 1:].T
        return products[:, 0]

    def direction(self, g: Array) -> Array:
        """Return H g for the inverse Hessian model H, by the two-loop recursion on coefficients."""
        if not self.slots:
            return g
        used = 2 * max(self.slots) + 2
        rows_g = self._products(g, used)
        # The direction is scale * g + sum_r x_r rows_r: all updates of the recursion act on (scale, x).
        G, x, scale, stack = self.inner[:used, :used], np.zeros(used), 1.0, []
        # First loop, newest pair first: a = s'q / s'y, q -= a y.
        for slot in reversed(self.slots):
            i = 2 * slot
            a = float(G[i] @ x + rows_g[i]) / G[i, i + 1]
            x[i + 1] -= a
            stack.append(a)
        i = 2 * self.slots[-1]
        # Initial scaling s @ y / y @ y of the newest pair.
        scale = G[i, i + 1] / G[i + 1, i + 1]
        x *= scale
        # Second loop, oldest pair first: q += (a - y'q / s'y) s.
        for slot, a in zip(self.slots, reversed(stack), strict=True):
            i = 2 * slot
            x[i] += a - float(G[i + 1] @ x + scale * rows_g[i + 1]) / G[i, i + 1]
        A = self.rows[:used]
        if not self._is_compiled(A):
            return as_array_like(x, g) @ A + scale * g
        direction, ends = np.empty(len(g)), self._range_ends
        args = ends, x, A, float(scale), np.ascontiguousarray(g), direction
        self.executor.share(_kernels().mixture_of_ranges, args, len(ends) - 1, float(A.size))
        return direction

    # ------------------------------------------------------------ products with the rows
    def _is_compiled(self, A: Array) -> bool:
        """Whether compiled loops multiply these rows."""
        return namespace(A) is np and A.shape[1] >= self.COMPILED_FROM_COLUMNS

    @property
    def _range_ends(self) -> NDArray:
        """The ends of the ranges of columns."""
        p = self.rows.shape[1]
        return np.append(np.arange(0, p, self.RANGE_COLUMNS), p)

    def _inner_products(self, A: Array, R: Array) -> NDArray:
        """Return A R' for an R of few rows."""
        if not self._is_compiled(A):
            return _products(A, R)
        ends = self._range_ends
        out = np.empty((len(ends) - 1, len(A), len(R)))
        work = float(A.size * len(R))
        self.executor.share(_kernels().products_of_ranges, (ends, A, R, out), len(out), work)
        products: NDArray = out.sum(axis=0)
        return products

    def state(self, slots: Iterable[int]) -> dict[str, Array]:
        """Return the pairs of some slots, in that order, with their inner products, for a saved state."""
        order = list(slots)
        # Only for its side effect, the missing inner products: the vector is arbitrary.
        if self.pending_rows:
            self._products(self.rows[self.pending_rows[0]], 2 * max(self.slots) + 2)
        rows = [row for i in order for row in (2 * i, 2 * i + 1)]
        return {
            "S": self.rows[rows[::2]],
            "Y": self.rows[rows[1::2]],
            "inner": self.inner[np.ix_(rows, rows)],
        }


def _products(A: Array, R: Array) -> NDArray:
    """Return A R' for an R of few rows; in blocks that stay in cache, where NumPy is twice as fast."""
    if namespace(A) is not np:
        return np.asarray(to_numpy(A @ R.T), dtype=float)
    products = np.zeros((len(A), len(R)))
    width = LbfgsMemory.RANGE_COLUMNS
    for i in range(0, A.shape[1], width):
        products += A[:, i : i + width] @ R[:, i : i + width].T
    return products


def _satisfies_curvature(s: Array, y: Array) -> bool:
    """Return whether s @ y is large enough for a positive definite update."""
    # both products in one copy from a device
    curvature, square = (float(v) for v in to_numpy(namespace(y).stack([s @ y, y @ y])))
    # along other pairs rounding dominates the curvature
    return bool(curvature > 1e-14 * square > 0)
