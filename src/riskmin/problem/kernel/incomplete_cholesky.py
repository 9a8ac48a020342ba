r"""Incomplete Cholesky factors of kernel matrices, :math:`L L^\top \approx K`, that never form K.

Pivots are chosen greedily, where the diagonal of the residual is large (Fine and Scheinberg, JMLR 2001), but
in blocks, so that all the work is in matrix products.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from riskmin.core import NDArray
from riskmin.numerics.precision import RESIDUAL_ROUNDING


class Factor(NamedTuple):
    """An incomplete Cholesky factor: its transpose, the pivots in order, and the residual trace share."""

    T: NDArray
    pivots: NDArray
    residual: float


def incomplete_cholesky(
    rows: Callable[[NDArray], NDArray],
    diagonal: NDArray,
    *,
    rank: int,
    tol: float,
    dtype: Any = np.float64,
    max_seconds: float = math.inf,
) -> Factor:
    r"""Factorize K until :math:`\mathrm{tr}(K - L L^\top) \le tol \cdot \mathrm{tr}\,K`, or to a rank.

    Parameters
    ----------
    rows : callable
        ``rows(i)`` is K[i], for an array i of row numbers.
    diagonal : (n,) array
        The diagonal of K.
    rank : int
        The largest number of columns of L.
    tol : float
        The share of the trace that may remain.
    dtype : dtype
        The data type of the factor.
    max_seconds : float
        The time after which no block of pivots is added to the first one.

    Returns
    -------
    Factor
        With T = L' in C order: each column of L is contiguous.
    """
    n, total, deadline = len(diagonal), float(diagonal.sum()), time.perf_counter() + max_seconds
    # T holds one column of L per row; it starts small and doubles
    T = np.empty((min(rank, 128, n), n), dtype=dtype)
    residual, pivots = np.array(diagonal, dtype=np.float64), np.empty(0, dtype=np.intp)
    floor = RESIDUAL_ROUNDING * max(float(diagonal.max()), 0.0)
    # 8 to 64 candidates per block: up to 8 MB of rows of K, n entries of 8 bytes each
    block = int(np.clip(2**23 // (8 * n), 8, 64))
    while len(pivots) < min(rank, n) and residual.sum() > tol * total and residual.max() > floor:
        r = len(pivots)
        # a pivot's residual is at least half of the largest one at the beginning of its block
        large = 0.5 * residual.max()
        candidates = _candidates(residual, large, min(block, rank - r))
        C = np.asarray(rows(candidates), dtype=np.float64)
        C -= T[:r, candidates].T @ T[:r]  # the rows of the residual K - L L'
        accepted, factor = _pivoted(C[:, candidates], max(large, floor))
        # new columns of L: the residual rows of the pivots, times the inverse of their factor
        columns = scipy.linalg.solve_triangular(
            factor, C[accepted], lower=True, overwrite_b=True, check_finite=False
        )
        # the trace that would remain after each column: stop at the first that reaches tol
        remaining = residual.sum() - np.cumsum(np.einsum("ij,ij->i", columns, columns))
        count = min(len(columns), int(np.sum(remaining > tol * total)) + 1)
        if r + count > len(T):  # resize in place: a copy would double the memory
            T.resize((min(rank, n, 2 * len(T)), n), refcheck=False)
        T[r : r + count] = columns[:count]
        pivots = np.append(pivots, candidates[accepted[:count]])
        # diag(K - L L'), at least zero despite rounding; exactly zero at pivots
        residual = np.maximum(residual - np.einsum("ij,ij->j", columns[:count], columns[:count]), 0.0)
        residual[pivots] = 0.0
        if time.perf_counter() >= deadline:
            break
    T.resize((len(pivots), n), refcheck=False)
    return Factor(T, pivots, float(residual.sum()) / total if total > 0 else 0.0)


def _candidates(residual: NDArray, least: float, count: int) -> NDArray:
    """The row of the largest residual, and others of residuals >= `least`, evenly spaced over the data."""
    large = np.flatnonzero(residual >= least)
    candidates = large[np.linspace(0, len(large) - 1, min(count, len(large))).astype(np.intp)]
    candidates[np.argmax(residual[candidates])] = np.argmax(residual)
    return np.unique(candidates)


def _pivoted(B: NDArray, floor: float) -> tuple[NDArray, NDArray]:
    """Greedy pivots of a small matrix, while the residual is at least floor, and their Cholesky factor."""
    m = len(B)
    L, residual, order = np.zeros((m, m)), np.diagonal(B).copy(), []
    for k in range(m):
        i = int(np.argmax(residual))
        if k and residual[i] < floor:
            break
        # column k of the factor with pivot i
        L[:, k] = (B[:, i] - L[:, :k] @ L[i, :k]) / np.sqrt(residual[i])
        residual = residual - L[:, k] ** 2
        # exclude row i from later pivots
        residual[i] = -np.inf
        order.append(i)
    accepted = np.array(order, dtype=np.intp)
    return accepted, np.tril(L[accepted][:, : len(accepted)])
