"""Gauss-Seidel sweeps on A = square + S X X' S, and products with A, without forming it.

S is a diagonal matrix of scales s_i, and D the diagonal of A. With L the part of A below its diagonal, a
forward sweep solves (D + L) q = r and a backward one (D + L') p = D q: together, the symmetric Gauss-Seidel
preconditioner. X is (indptr, indices, data, dense), as in `gradient_sweep`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


@njit()
def _score(i: int, X: Any, v: Any) -> Any:
    indptr, indices, data, dense = X
    start = np.uintp(indptr[i])
    base = start if dense else np.uintp(0)
    total = 0.0
    for k in range(start, np.uintp(indptr[i + 1])):
        total += data[k] * v[indices[k - base]]
    return total


@njit()
def _add_row(i: int, step: float, X: Any, v: Any) -> None:
    indptr, indices, data, dense = X
    start = np.uintp(indptr[i])
    base = start if dense else np.uintp(0)
    for k in range(start, np.uintp(indptr[i + 1])):
        v[indices[k - base]] += step * data[k]


@njit()
def diagonal(X: Any, scales: Any, square: float, out: Any) -> None:
    """Set out to D, square + s_i^2 |x_i|^2."""
    indptr, _, data, _ = X
    for i in range(len(scales)):
        total = 0.0
        for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + 1])):
            total += data[k] * data[k]
        out[i] = square + scales[i] * scales[i] * total


@njit()
def product(X: Any, scales: Any, square: float, p: Any, v: Any, out: Any) -> None:
    """Set v to X' S p and out to A p."""
    v[:] = 0.0
    for i in range(len(p)):
        _add_row(i, scales[i] * p[i], X, v)
    for i in range(len(p)):
        out[i] = square * p[i] + scales[i] * _score(i, X, v)


@njit()
def precondition(X: Any, scales: Any, D: Any, r: Any, v: Any, out: Any) -> None:
    """Set out to M^-1 r, M = (D + L) D^-1 (D + L'), by a forward and a backward sweep; v is scratch."""
    v[:] = 0.0
    for i in range(len(r)):
        out[i] = (r[i] - scales[i] * _score(i, X, v)) / D[i]
        _add_row(i, scales[i] * out[i], X, v)
    v[:] = 0.0
    for i in range(len(r) - 1, -1, -1):
        out[i] -= scales[i] * _score(i, X, v) / D[i]
        _add_row(i, scales[i] * out[i], X, v)
