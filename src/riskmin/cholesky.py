r"""Incomplete Cholesky factors of kernel matrices, :math:`L L^\top \approx K`, that never form K.

Pivots are taken greedily, where the diagonal of what is left is large (Fine and Scheinberg, JMLR 2001), but
many at a time: all the work is then in products of matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from riskmin.types import NDArray

BLOCK, BLOCK_BYTES = 64, 2**23
"""So many rows are considered as pivots at a time, and fewer where those of K take more memory than that."""
GREED = 0.5
"""A pivot has at least this share of the largest rest on the diagonal when its block is begun."""
EXHAUSTED = 1e-13
"""What is left of the diagonal, relative to its largest entry, that is nothing but rounding."""


class Factor(NamedTuple):
    """An incomplete Cholesky factor: its transpose, the pivots in order, and the rest of the trace."""

    T: NDArray
    pivots: NDArray
    rest: float


def incomplete_cholesky(
    rows: Callable[[NDArray], NDArray], diagonal: NDArray, *, rank: int, tol: float, dtype: Any = np.float64
) -> Factor:
    r"""Factorize K until :math:`\mathrm{tr}(K - L L^\top) \le tol \cdot \mathrm{tr}\,K`, or to a rank.

    Parameters
    ----------
    rows : callable
        ``rows(i)`` is K[i], for an array i of row numbers.
    diagonal : (n,) array
        That of K.
    rank : int
        The most columns of L.
    tol : float
        The share of the trace that may be left.
    dtype : dtype
        Of the factor.

    Returns
    -------
    Factor
        With T = L'; the columns of L are stored one after the other.

    Examples
    --------
    >>> import numpy as np
    >>> K = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> T = incomplete_cholesky(lambda i: K[i], np.diag(K), rank=2, tol=0.0).T
    >>> bool(abs(T.T @ T - K).max() < 1e-12)
    True
    """
    n, total = len(diagonal), float(diagonal.sum())
    T = np.empty((min(rank, 128, n), n), dtype=dtype)
    rest, pivots = np.array(diagonal, dtype=np.float64), np.empty(0, dtype=np.intp)
    floor = EXHAUSTED * max(float(diagonal.max()), 0.0)
    block = int(np.clip(BLOCK_BYTES // (8 * n), 8, BLOCK))
    while len(pivots) < min(rank, n) and rest.sum() > tol * total and rest.max() > floor:
        r = len(pivots)
        chosen = _candidates(rest, min(block, rank - r))
        C = np.asarray(rows(chosen), dtype=np.float64)
        C -= T[:r, chosen].T @ T[:r]
        kept, small = _pivoted(C[:, chosen], max(GREED * rest.max(), floor))
        new = scipy.linalg.solve_triangular(small, C[kept], lower=True, overwrite_b=True, check_finite=False)
        left = rest.sum() - np.cumsum(np.einsum("ij,ij->i", new, new))
        count = min(len(new), int(np.sum(left > tol * total)) + 1)
        if r + count > len(T):  # grown in place: a copy would double the memory
            T.resize((min(rank, n, 2 * len(T)), n), refcheck=False)
        T[r : r + count] = new[:count]
        pivots = np.append(pivots, chosen[kept[:count]])
        rest = np.maximum(rest - np.einsum("ij,ij->j", new[:count], new[:count]), 0.0)
        rest[pivots] = 0.0
    T.resize((len(pivots), n), refcheck=False)
    return Factor(T, pivots, float(rest.sum()) / total if total > 0 else 0.0)


def _candidates(rest: NDArray, count: int) -> NDArray:
    """The row with the largest rest, and others with large ones, spread over the data."""
    large = np.flatnonzero(rest >= GREED * rest.max())
    spread = large[np.linspace(0, len(large) - 1, min(count, len(large))).astype(np.intp)]
    spread[np.argmax(rest[spread])] = np.argmax(rest)
    return np.unique(spread)


def _pivoted(B: NDArray, least: float) -> tuple[NDArray, NDArray]:
    """The rows of a small matrix in greedy order, as long as their rest is not below least; their factor."""
    m = len(B)
    L, rest, order = np.zeros((m, m)), np.diagonal(B).copy(), []
    for k in range(m):
        i = int(np.argmax(rest))
        if k and rest[i] < least:
            break
        L[:, k] = (B[:, i] - L[:, :k] @ L[i, :k]) / np.sqrt(rest[i])
        rest = rest - L[:, k] ** 2
        rest[i] = -np.inf
        order.append(i)
    kept = np.array(order, dtype=np.intp)
    return kept, np.tril(L[kept][:, : len(kept)])
