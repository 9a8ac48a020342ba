r"""Mercer kernels, and their matrix :math:`K_{ij} = k(x_i, x_j)`, computed by rows and cached within a limit.

A kernel is any callable: ``k(A, B)`` is the matrix of all :math:`k(a_i, b_j)`. It may also have a method
``diagonal(A)``. The kernels of this module take dense and sparse rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse

from riskmin._numba import lazy_module
from riskmin.arrays.sparse_checks import validated_sparse
from riskmin.core import Array, Matrix, NDArray, has_method
from riskmin.core.deadline import check_each, chunk_ranges, interruptible_matmul
from riskmin.core.limits import LIMITS

sp: Any = scipy.sparse  # its type stubs do not allow a variable to be sparse or dense

Kernel: TypeAlias = Callable[[Any, Any], NDArray]
"""k(A, B): a matrix with a row for each row of A, a column for each row of B."""


_kernels = lazy_module("dual.kernel_sweep")


def dense_product(A: Any, B: Any) -> NDArray:
    """The product A B', as a dense array in C order."""
    result = (
        interruptible_matmul(A, B.T) if isinstance(A, np.ndarray) and isinstance(B, np.ndarray) else A @ B.T
    )
    return np.ascontiguousarray(result.toarray() if sp.issparse(result) else result, dtype=np.float64)


def squared_norms(A: Any) -> NDArray:
    """The squared Euclidean norms of the rows."""
    if sp.issparse(A):
        return np.asarray(A.multiply(A).sum(axis=1), dtype=np.float64).ravel()
    norms: NDArray = np.einsum("ij,ij->i", A, A)
    return norms


def _check_positive(kernel: object, name: str) -> None:
    value = vars(kernel)[name]
    if not 0 < value < math.inf:
        raise ValueError(f"{type(kernel).__name__} needs {name} to be a finite number > 0, not {value!r}")


@dataclass(frozen=True)
class Rbf:
    r"""The Gaussian kernel, :math:`k(x, y) = e^{-\gamma |x - y|^2}`.

    Parameters
    ----------
    gamma : float
        Above 0; 1 / (2 sigma^2) for a width sigma.

    Examples
    --------
    >>> import numpy as np
    >>> Rbf(gamma=0.5)(np.array([[0.0], [2.0]]), np.array([[0.0]])).round(4).tolist()
    [[1.0], [0.1353]]
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "gamma")

    def __call__(self, A: Any, B: Any) -> NDArray:
        """The matrix of all k(a_i, b_j), by one product: |a - b|^2 = |a|^2 + |b|^2 - 2 a b."""
        K = dense_product(A, B)
        # in place, as K is large: 2 gamma a'b - gamma |a|^2 - gamma |b|^2 = -gamma |a - b|^2
        K *= 2 * self.gamma
        K -= self.gamma * squared_norms(A)[:, None]
        K -= self.gamma * squared_norms(B)
        np.minimum(K, 0.0, out=K)  # rounding may make a squared distance negative
        return np.exp(K, out=K)

    def diagonal(self, A: Any) -> NDArray:
        """The k(a_i, a_i), all of them 1."""
        return np.ones(A.shape[0])


@dataclass(frozen=True)
class DotProduct:
    r"""The linear kernel, :math:`k(x, y) = x^\top y`.

    Examples
    --------
    >>> import numpy as np
    >>> DotProduct()(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])).tolist()
    [[11.0]]
    """

    def __call__(self, A: Any, B: Any) -> NDArray:
        """A B'."""
        return dense_product(A, B)

    def diagonal(self, A: Any) -> NDArray:
        """The squared norms of the rows."""
        return squared_norms(A)


@dataclass(frozen=True)
class Polynomial:
    r"""The polynomial kernel, :math:`k(x, y) = (\gamma\, x^\top y + c)^d`.

    Parameters
    ----------
    degree : int
        The power d, at least 1.
    gamma : float
        Above 0.
    coef0 : float
        The constant c, at least 0.

    Examples
    --------
    >>> import numpy as np
    >>> Polynomial(degree=2, coef0=1.0)(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])).tolist()
    [[144.0]]
    """

    degree: int = 3
    gamma: float = 1.0
    coef0: float = 0.0

    def __post_init__(self) -> None:
        _check_positive(self, "gamma")
        if self.degree < 1 or self.degree != int(self.degree) or not 0 <= self.coef0 < math.inf:
            raise ValueError(f"{self!r} is not a Mercer kernel: give a whole degree >= 1 and coef0 >= 0")

    def __call__(self, A: Any, B: Any) -> NDArray:
        """The matrix of all k(a_i, b_j)."""
        K = dense_product(A, B)
        # (gamma a'b + c)^d, in place
        K *= self.gamma
        K += self.coef0
        return np.power(K, self.degree, out=K)

    def diagonal(self, A: Any) -> NDArray:
        """The k(a_i, a_i), from the squared norms of the rows."""
        powers: NDArray = (self.gamma * squared_norms(A) + self.coef0) ** self.degree
        return powers


def kernel_diagonal(kernel: Any, X: Any) -> NDArray:
    """The k(x_i, x_i), by the kernel's method `diagonal` if it has one."""
    if has_method(kernel, "diagonal"):
        return np.asarray(kernel.diagonal(X), dtype=np.float64)
    # by small diagonal blocks of K: 32 evaluations per entry, but vectorized
    starts = range(0, X.shape[0], 32)
    return np.concatenate([np.diagonal(kernel(X[i : i + 32], X[i : i + 32])) for i in starts]).astype(float)


class KernelMatrix(Matrix):
    r"""The kernel matrix of the rows of X, :math:`K_{ij} = k(x_i, x_j)`, by rows.

    Rows are computed on demand, many at a time, and cached; the least recently used ones are evicted first.
    It is a `Matrix`, too: the shard of a risk in feature space.

    Parameters
    ----------
    kernel : callable or "precomputed"
        ``kernel(A, B)`` is a matrix with a row for each row of A and a column for each row of B.
    X : (n, p) array or CSR matrix
        Or anything that an array of row numbers indexes; for "precomputed", the (n, n) matrix itself.
    cache_bytes : int
        Memory for cached rows, in bytes.
    """

    SAMPLED_ROWS = 256
    """Sums of absolute values over all rows are estimated from at most this many rows."""

    def __init__(self, kernel: Kernel | str, X: Any, cache_bytes: int = 2**28) -> None:
        n = int(X.shape[0])
        self.n, self.X, self.n_rows_computed = n, X, 0
        if isinstance(kernel, str):
            self.kernel: Kernel | None = None
            self.store = _precomputed(kernel, X)
            self.slot_of: NDArray = np.arange(n)
            return
        if sp.issparse(X):  # a dense product is much faster unless most entries are zero
            X = validated_sparse(X)
            self.X = X.toarray() if X.nnz > 0.2 * n * X.shape[1] else sp.csr_array(X)
        self.kernel = kernel
        # 8 bytes per entry, n entries per row
        slots = int(np.clip(cache_bytes // (8 * n), min(n, 64), n))
        self.store = np.empty((slots, n))  # cached rows of K, one per slot
        self.slot_of = np.full(n, -1)  # by row: its slot, -1 if it is not cached
        self.row_in = np.full(slots, -1)  # by slot: its row, -1 if it is empty
        self.used = np.zeros(slots, dtype=np.int64)  # by slot: the time of its last use
        self.clock = 0  # counts calls of `slots`

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns, which are equal."""
        return self.n, self.n

    @property
    def block_rows(self) -> int:
        """All rows at once: they are not read in order."""
        return self.shape[0]

    @cached_property
    def diagonal(self) -> NDArray:
        """The diagonal of K."""
        if self.kernel is None:
            return np.diagonal(self.store).copy()
        return kernel_diagonal(self.kernel, self.X)

    @property
    def capacity(self) -> int:
        """The number of rows that the cache holds."""
        return len(self.store)

    def slots(self, rows: NDArray) -> NDArray:
        """The slots of at most `capacity` rows in `store`; rows that are not cached are computed."""
        if self.kernel is None:
            return rows
        # mark the cached ones as used now, so that they are not evicted by the missing ones
        self.clock += 1
        self.used[self.slot_of[rows][self.slot_of[rows] >= 0]] = self.clock
        missing = rows[self.slot_of[rows] < 0]
        if len(missing):
            # evict the least recently used slots
            oldest = np.argpartition(self.used, len(missing) - 1)[: len(missing)]
            evicted = self.row_in[oldest]
            self.slot_of[evicted[evicted >= 0]] = -1
            for i in check_each(range(0, len(missing), self._chunk_rows)):
                part = slice(i, i + self._chunk_rows)
                self.store[oldest[part]] = self._compute(missing[part])
            # in this order an interrupt leaves no row assigned to a slot that holds another one
            self.row_in[oldest], self.used[oldest] = missing, self.clock
            self.slot_of[missing] = oldest
        return self.slot_of[rows]

    @property
    def _chunk_rows(self) -> int:
        return max(1, LIMITS.kernel_chunk_bytes // (8 * self.shape[0]))

    def _compute(self, rows: NDArray) -> NDArray:
        assert self.kernel is not None
        self.n_rows_computed += len(rows)
        block = np.asarray(self.kernel(self.X[rows], self.X), dtype=np.float64)
        if block.shape != (len(rows), self.shape[0]):
            raise ValueError(
                f"the kernel gives an array of shape {block.shape} for {len(rows)} and {self.shape[0]} rows: "
                "k(A, B) must have a row for each of A and a column for each of B"
            )
        # the sum is a cheap first test; it may overflow even if all entries are finite
        if not math.isfinite(block.sum()) and not np.isfinite(block).all():
            raise ValueError("the kernel gives NaN or infinity: scale the features or change its parameters")
        return block

    def block(self, rows: NDArray) -> NDArray:
        """K[rows, rows], from cached rows where possible; no further rows are cached."""
        slots = self.slot_of[rows]
        # positions in `rows`; the rows of K that are not cached are computed for these columns only
        cached, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        K_block = np.empty((len(rows), len(rows)))
        K_block[cached] = self.store[slots[cached][:, None], rows]
        if len(missing):
            assert self.kernel is not None
            K_block[missing] = self.kernel(self.X[rows[missing]], self.X[rows])
        return K_block

    def add_rows(self, rows: NDArray, coef: NDArray, out: NDArray) -> None:
        """Add coef @ K[rows] to out; the rows are cached as far as possible."""
        for i in range(0, len(rows), self.capacity):
            part = slice(i, i + self.capacity)
            self._add(self.slots(rows[part]), coef[part], out)

    def _add(self, slots: NDArray, coef: NDArray, out: NDArray) -> None:
        """Add coef @ store[slots] to out."""
        # in chunks of columns, between which the deadline is checked
        kernels = _kernels()
        for i, j in chunk_ranges(0, len(out), len(out) * len(slots), multiple=kernels.SCORE_CHUNK):
            kernels.add_rows(self.store, slots, coef, i, j, out)

    def product(self, v: NDArray) -> NDArray:
        """K v, from cached rows where possible; other rows are computed and not cached; skips zeros of v."""
        out = np.zeros(self.shape[0])
        # K is symmetric: K v is the sum of v_i times row i
        rows = np.flatnonzero(v)
        cached = rows[self.slot_of[rows] >= 0]
        self._add(self.slot_of[cached], v[cached], out)
        missing = rows[self.slot_of[rows] < 0]
        for i in check_each(range(0, len(missing), self._chunk_rows)):
            part = missing[i : i + self._chunk_rows]
            out += v[part] @ self._compute(part)
        return out

    def absolute_product(self, v: NDArray) -> NDArray:
        """sum_i v_i |K_ij| for v >= 0, estimated from an even sample of the rows."""
        n = self.shape[0]
        # evenly spaced rows, no more than fit into the cache
        rows = np.arange(0, n, max(n // min(self.capacity, self.SAMPLED_ROWS), 1))[: self.capacity]
        sums: NDArray = v[rows] @ abs(self.store[self.slots(rows)])
        # extrapolate by the share of v that the sample has
        sampled = float(v[rows].sum())
        return sums * (float(v.sum()) / sampled) if sampled > 0 else sums

    def scores(self, w: Array, start: int, stop: int) -> Array:
        """K[start:stop] @ w."""
        return self.product(w)[start:stop]

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add K[:, start:stop] @ dz to out, in place."""
        # K is symmetric, so that K' dz is a product with dz padded by zeros
        full = np.zeros(self.shape[0])
        full[start:stop] = dz
        out += self.product(full)


def _precomputed(kernel: str, K: Any) -> NDArray:
    """The precomputed matrix, after checking it."""
    if kernel != "precomputed":
        raise ValueError(f"there is no kernel named {kernel!r}: give a callable or 'precomputed'")
    K = validated_sparse(K).toarray() if sp.issparse(K) else K
    checked: NDArray = np.ascontiguousarray(K, dtype=np.float64)
    if checked.ndim != 2 or checked.shape[0] != checked.shape[1]:
        raise ValueError(f"a precomputed kernel is a square matrix, not one of shape {checked.shape}")
    # symmetric up to rounding: a relative deviation of 1e-8
    if not np.isfinite(checked).all() or abs(checked - checked.T).max() > 1e-8 * abs(checked).max():
        raise ValueError("a precomputed kernel is a symmetric matrix of finite numbers: give (K + K.T) / 2")
    return checked
