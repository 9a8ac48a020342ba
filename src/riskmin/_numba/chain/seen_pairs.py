"""Emission scores and their adjoint for weights of some pairs of feature and label.

The weights of feature f are w[pair_ends[f]] to w[pair_ends[f + 1] - 1], and labels[j] is the label of w[j].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


@njit(fastmath={"contract"})
def pair_scores(
    indptr: Any, indices: Any, data: Any, pair_ends: Any, labels: Any, w: Any, start: int, stop: int, Z: Any
) -> None:
    """Compute Z[t, a] = sum_f X[t, f] w[f, a] over the pairs (f, a) that have weights, for a range of rows.

    Z has one row for each row of X from start to stop - 1.
    """
    for t in range(np.uintp(start), np.uintp(stop)):
        z = Z[t - np.uintp(start)]
        for b in range(len(z)):
            z[b] = 0.0
        for e in range(np.uintp(indptr[t]), np.uintp(indptr[t + np.uintp(1)])):
            f, v = np.uintp(indices[e]), data[e]
            for j in range(np.uintp(pair_ends[f]), np.uintp(pair_ends[f + np.uintp(1)])):
                z[np.uintp(labels[j])] += v * w[j]


@njit(fastmath={"contract"})
def pair_pullback(
    indptr: Any, indices: Any, data: Any, pair_ends: Any, labels: Any, D: Any, start: int, stop: int, out: Any
) -> None:
    """Add the adjoint to out: out[f, a] += sum_t X[t, f] D[t, a], for the pairs (f, a) that have weights."""
    for t in range(np.uintp(start), np.uintp(stop)):
        d = D[t - np.uintp(start)]
        for e in range(np.uintp(indptr[t]), np.uintp(indptr[t + np.uintp(1)])):
            f, v = np.uintp(indices[e]), data[e]
            for j in range(np.uintp(pair_ends[f]), np.uintp(pair_ends[f + np.uintp(1)])):
                out[j] += v * d[np.uintp(labels[j])]
