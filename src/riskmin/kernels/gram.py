r"""The products :math:`X^\top H X` of Newton's method: of rows, and of windows of sorted rows.

A window slides: the sum of the rows in it gains those that enter and loses those that leave, so that all
sums of all windows take one visit to each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit


@njit(fastmath={"contract"})
def csr_gram(indptr: Any, indices: Any, data: Any, h: Any, out: Any) -> None:
    """Add one half of the terms of sum_i h_i x_i x_i' to out, the others being their mirror images.

    Where the indices of a row are sorted they are those of the upper triangle.
    """
    for i in range(np.uintp(len(h))):
        if h[i] != 0.0:
            end = np.uintp(indptr[i + np.uintp(1)])
            for k in range(np.uintp(indptr[i]), end):
                at, v = indices[k], h[i] * data[k]
                line = out[at]
                line[at] += v * data[k]
                for m in range(k + np.uintp(1), end):
                    line[indices[m]] += v * data[m] if indices[m] != at else 2.0 * v * data[m]


@njit(fastmath={"contract"})
def csr_windows(
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

    `ends` and `window`, zeros at first, go from call to call.
    """
    n = out.shape[1]
    start, stop = ends[0], ends[1]
    for i in range(len(rows)):
        if first[i] == last[i] or p[i] == 0.0:
            continue
        if first[i] >= stop:  # nothing of what was summed up is left
            for k in range(n):
                window[k] = 0.0
            start = stop = first[i]
        for j in range(stop, last[i]):
            for k in range(np.uintp(indptr[others[j]]), np.uintp(indptr[others[j] + 1])):
                window[indices[k]] += q[j] * data[k]
        for j in range(start, first[i]):
            for k in range(np.uintp(indptr[others[j]]), np.uintp(indptr[others[j] + 1])):
                window[indices[k]] -= q[j] * data[k]
        start, stop = first[i], last[i]
        for k in range(np.uintp(indptr[rows[i]]), np.uintp(indptr[rows[i] + 1])):
            v, line = p[i] * data[k], out[indices[k]]
            for m in range(n):
                line[m] += v * window[m]
    ends[0], ends[1] = start, stop


@njit(fastmath={"contract"})
def dense_windows(
    X: Any, others: Any, q: Any, first: Any, last: Any, ends: Any, window: Any, out: Any
) -> None:
    """out_i = sum of q_j x_others[j] for first_i <= j < last_i; `ends` and `window` go from call to call."""
    n = X.shape[1]
    start, stop = ends[0], ends[1]
    for i in range(len(first)):
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
