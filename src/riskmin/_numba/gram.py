r"""The products :math:`X^\top H X` of Newton's method: for diagonal H, and for pair blocks over sorted rows.

The windows of sorted rows slide: each sum follows from the one before by adding the rows that enter and
subtracting the rows that leave, so that a row is visited at most twice, however many windows contain it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


@njit()
def scaled_rows(X: Any, index: Any, h: Any, out: Any) -> None:
    """Compute out[k] = x_i sqrt(h_i) for the row i = index[k] of X in C order."""
    for k in range(len(index)):
        i = index[k]
        root = math.sqrt(h[i])
        for j in range(X.shape[1]):
            out[k, j] = X[i, j] * root


@njit(fastmath={"contract"})
def csr_gram(indptr: Any, indices: Any, data: Any, h: Any, out: Any) -> None:
    """Add half of the terms of sum_i h_i x_i x_i' to out; the other half is their transpose.

    Where the indices of each row are sorted, the terms are those of the upper triangle.
    """
    for i in range(np.uintp(len(h))):
        if h[i] != 0.0:
            end = np.uintp(indptr[i + np.uintp(1)])
            for k in range(np.uintp(indptr[i]), end):
                column, v = indices[k], h[i] * data[k]
                out_row = out[column]
                out_row[column] += v * data[k]
                for m in range(k + np.uintp(1), end):
                    # a column that occurs twice in a row contributes twice to the diagonal
                    out_row[indices[m]] += v * data[m] if indices[m] != column else 2.0 * v * data[m]


@njit(fastmath={"contract"})
def csr_pair_block_gram(
    indptr: Any,
    indices: Any,
    data: Any,
    rows: Any,
    p: Any,
    others: Any,
    q: Any,
    first: Any,
    last: Any,
    ends: Any,
    window: Any,
    out: Any,
) -> None:
    """Add sum_i p_i x_rows[i] (sum of q_j x_others[j] for first_i <= j < last_i)' to out.

    first and last are nondecreasing. window, the sum over the current window, and ends, its range, are zero
    at the first call and go from call to call.
    """
    n = out.shape[1]
    start, stop = ends[0], ends[1]
    for i in range(len(rows)):
        if first[i] == last[i] or p[i] == 0.0:
            continue
        if first[i] >= stop:  # the windows do not overlap: start from zero
            for k in range(n):
                window[k] = 0.0
            start = stop = first[i]
        # rows that enter the window
        for j in range(stop, last[i]):
            for k in range(np.uintp(indptr[others[j]]), np.uintp(indptr[others[j] + 1])):
                window[indices[k]] += q[j] * data[k]
        # rows that leave it
        for j in range(start, first[i]):
            for k in range(np.uintp(indptr[others[j]]), np.uintp(indptr[others[j] + 1])):
                window[indices[k]] -= q[j] * data[k]
        start, stop = first[i], last[i]
        for k in range(np.uintp(indptr[rows[i]]), np.uintp(indptr[rows[i] + 1])):
            # rank-one update p_i x_i window'
            v, out_row = p[i] * data[k], out[indices[k]]
            for m in range(n):
                out_row[m] += v * window[m]
    ends[0], ends[1] = start, stop


@njit(fastmath={"contract"})
def dense_window_sums(
    X: Any, others: Any, q: Any, first: Any, last: Any, ends: Any, window: Any, out: Any
) -> None:
    """Compute out_i = sum of q_j x_others[j] for first_i <= j < last_i.

    ends and window go from call to call, as in `csr_pair_block_gram`.
    """
    n = X.shape[1]
    start, stop = ends[0], ends[1]
    for i in range(len(first)):
        # rows that enter the window, then rows that leave it
        for j in range(stop, last[i]):
            for k in range(n):
                window[k] += q[j] * X[others[j], k]
        for j in range(start, first[i]):
            for k in range(n):
                window[k] -= q[j] * X[others[j], k]
        start, stop = first[i], last[i]
        for k in range(n):
            out[i, k] = window[k]
    ends[0], ends[1] = start, stop
