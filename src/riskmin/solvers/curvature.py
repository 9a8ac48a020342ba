"""What the last steps say of the curvature: the model of L-BFGS."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np

from riskmin.arrays import like, namespace, to_numpy, zeros_beside
from riskmin.types import Array, NDArray

LEAST = 1e-14
"""Steps along which the gradient changes by less, relative to its change at all, say nothing."""

PIECE = 4096


class Pairs:
    """The last steps s, and the changes y of the gradient over them.

    They are the rows of one array, and their inner products are kept: those are all that the two-loop
    recursion asks of them, so it runs on coefficients, and a direction costs two passes over the rows. There
    is room for one more pair than is used, so that the pairs of the last iterate stay as they are while the
    next one is made.

    Parameters
    ----------
    memory : int
        How many pairs are used.
    w : array
        In whose library, and of which length, they are.

    Examples
    --------
    >>> import numpy as np
    >>> pairs = Pairs(5, np.zeros(2))
    >>> pairs.add(np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    >>> pairs.add(np.array([0.0, 1.0]), np.array([0.0, 4.0]))
    >>> pairs.direction(np.array([2.0, 4.0])).tolist()  # of a square with second derivatives 2 and 4
    [1.0, 1.0]
    """

    def __init__(self, memory: int, w: Array) -> None:
        self.memory = memory
        self.rows = zeros_beside((2 * memory + 2, len(w)), w)
        self.inner = np.zeros((2 * memory + 2, 2 * memory + 2))
        self.slots: list[int] = []  # oldest first: slot i has its step in row 2 i, its change in row 2 i + 1
        self.new: list[int] = []  # the rows whose inner products are not yet known

    @classmethod
    def of(cls, memory: int, w: Array, S: Array, Y: Array, inner: NDArray | None = None) -> Self:
        """Those of a run of before; `inner` are their products, where they are known."""
        self = cls(memory, w)
        pairs = list(zip(S, Y, strict=True))
        fit = [i for i, (s, y) in enumerate(pairs) if _says(s, y)][-memory:]
        for slot, i in enumerate(fit):
            self.rows[2 * slot], self.rows[2 * slot + 1] = pairs[i]
        self.slots, n = list(range(len(fit))), 2 * len(fit)
        if inner is not None and len(fit) == len(pairs):
            self.inner[:n, :n] = inner
        elif fit:
            A = self.rows[:n]
            self.inner[:n, :n] = to_numpy(A @ A.T)
        return self

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, s: Array, y: Array) -> None:
        """Take note of a step, if it says something."""
        if not _says(s, y):
            return
        slot = next(i for i in range(self.memory + 1) if i not in self.slots)
        self.rows[2 * slot], self.rows[2 * slot + 1] = s, y
        self.slots = [*self.slots, slot][-self.memory :]
        self.new = [row for row in self.new if row // 2 != slot] + [2 * slot, 2 * slot + 1]

    def _products(self, g: Array, used: int) -> NDArray:
        """The inner products of the rows with g; those with a new pair are found in the same pass."""
        A = self.rows[:used]
        if not self.new:
            return np.asarray(to_numpy(A @ g), dtype=float)
        at, self.new = [row for row in self.new if row < used], []  # some may be dropped already
        found = _products(A, namespace(g).stack([g, *(A[row] for row in at)]))
        self.inner[:used, at], self.inner[at, :used] = found[:, 1:], found[:, 1:].T
        return found[:, 0]

    def direction(self, g: Array) -> Array:
        """The inverse Hessian's model, times g, by the two-loop recursion on coefficients."""
        if not self.slots:
            return g
        used = 2 * max(self.slots) + 2
        against = self._products(g, used)
        G, x, own, stack = self.inner[:used, :used], np.zeros(used), 1.0, []
        for slot in reversed(self.slots):
            i = 2 * slot
            a = float(G[i] @ x + against[i]) / G[i, i + 1]
            x[i + 1] -= a
            stack.append(a)
        i = 2 * self.slots[-1]
        own = G[i, i + 1] / G[i + 1, i + 1]
        x *= own
        for slot, a in zip(self.slots, reversed(stack), strict=True):
            i = 2 * slot
            x[i] += a - float(G[i + 1] @ x + own * against[i + 1]) / G[i, i + 1]
        return like(x, g) @ self.rows[:used] + own * g

    def state(self, slots: Iterable[int]) -> dict[str, Array]:
        """The pairs of some slots, in that order, with their inner products: to be saved."""
        order = list(slots)
        if self.new:
            self._products(self.rows[self.new[0]], 2 * max(self.slots) + 2)
        at = [row for i in order for row in (2 * i, 2 * i + 1)]
        return {"S": self.rows[at[::2]], "Y": self.rows[at[1::2]], "inner": self.inner[np.ix_(at, at)]}


def _products(A: Array, R: Array) -> NDArray:
    """A R', for few rows of R; in pieces that stay in cache, for which NumPy's product is twice as fast."""
    if not isinstance(A, np.ndarray):
        return np.asarray(to_numpy(A @ R.T), dtype=float)
    found = np.zeros((len(A), len(R)))
    for i in range(0, A.shape[1], PIECE):
        found += A[:, i : i + PIECE] @ R[:, i : i + PIECE].T
    return found


def _says(s: Array, y: Array) -> bool:
    return bool(float(s @ y) > LEAST * float(y @ y) > 0)
