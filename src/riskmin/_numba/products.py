"""Scores X @ w and pullbacks X.T @ dz of blocks of rows: the only loops that touch the data.

They do not depend on the loss, so each is compiled once per storage format. Sums are in float64, also for
float32 data. Measured choices: sparse loops may contract but not reassociate (reassociation makes the
compiler emit gathers, which take twice as long); indices are unsigned (no sign extension on each load); rows
with dz = 0, frequent for hinge-type losses, are skipped; memory is prefetched. A matrix stored by columns is
a transpose stored by rows: it uses the same two loops, swapped.

`scores` and `pullback` take a matrix of any format as a tuple: (matrix,) in C order, (entries, step) by
columns, where column j begins at entries[j * step], or (indptr, indices, data). Numba compiles the branch of
its length alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.prefetch import prefetch

ONE, TWO, FOUR, ENTRIES_PER_CACHE_LINE = np.uintp(1), np.uintp(2), np.uintp(4), np.uintp(8)
PREFETCH_ENTRIES = np.uintp(256)
"""Number of entries ahead that are prefetched: lookups in w keep the processor from detecting the stream."""
MAX_BLOCK_ENTRIES = np.uintp(2**18)
"""Blocks of rows have at most this many entries; a longer range is not taken for a block."""
LONG_ROW_ENTRIES = np.uintp(32)
"""Mean entries per row from which skipped rows are prefetched."""

_prefetch_l2 = prefetch(2)


@njit(fastmath={"contract"})
def csr_scores(indptr: Any, indices: Any, data: Any, w: Any, start: int, stop: int, z: Any) -> None:
    """Compute z = X[start:stop] @ w; for a transpose, with columns in place of rows, X.T @ w."""
    for i in range(np.uintp(start), np.uintp(stop)):
        a = b = 0.0  # two sums, so that no addition waits for the previous one
        k, end = np.uintp(indptr[i]), np.uintp(indptr[i + ONE])
        while k + FOUR <= end:
            # prefetch the stream of entries, past the lookups in w
            _prefetch_l2(data, k + PREFETCH_ENTRIES)
            _prefetch_l2(indices, k + PREFETCH_ENTRIES)
            for m in range(k, k + FOUR, TWO):
                a += data[m] * w[indices[m]]
                b += data[m + ONE] * w[indices[m + ONE]]
            k += FOUR
        for m in range(k, end):
            a += data[m] * w[indices[m]]
        z[i - np.uintp(start)] = a + b


@njit(fastmath={"contract"})
def csr_pullback(indptr: Any, indices: Any, data: Any, dz: Any, start: int, stop: int, out: Any) -> None:
    """Compute out += X[start:stop].T @ dz; for a transpose, with columns in place of rows, X @ dz.

    The rows of a block are in cache after the scores, so the next block is prefetched.
    """
    n_rows, n = np.uintp(stop - start), np.uintp(indptr[stop]) - np.uintp(indptr[start])
    # one block ahead, if this range is a block
    ahead = n if n <= MAX_BLOCK_ENTRIES else PREFETCH_ENTRIES
    for i in range(np.uintp(start), np.uintp(stop)):
        g = dz[i - np.uintp(start)]
        k, end = np.uintp(indptr[i]), np.uintp(indptr[i + ONE])
        if g != 0.0:
            while k + FOUR <= end:
                _prefetch_l2(data, k + ahead)
                _prefetch_l2(indices, k + ahead)
                for m in range(k, k + FOUR):
                    out[indices[m]] += g * data[m]
                k += FOUR
            for m in range(k, end):
                out[indices[m]] += g * data[m]
        # a skipped row reads nothing, but its part of the next block is prefetched all the same
        elif n >= LONG_ROW_ENTRIES * n_rows:  # in short rows, one more loop costs more than it saves
            for m in range(k + ahead, end + ahead, ENTRIES_PER_CACHE_LINE):
                _prefetch_l2(data, m)
                _prefetch_l2(indices, m)


@njit(fastmath={"contract"})
def csr_hessian_product(
    indptr: Any, indices: Any, data: Any, d: Any, h: Any, start: int, stop: int, out: Any
) -> None:
    """Compute out += X' diag(h) X d for rows start to stop - 1, whose second derivatives are h.

    Each row is read once, with the sums of `csr_scores` and the terms of `csr_pullback`, in their order.
    """
    for i in range(np.uintp(start), np.uintp(stop)):
        a = b = 0.0
        k, end = np.uintp(indptr[i]), np.uintp(indptr[i + ONE])
        first = k
        while k + FOUR <= end:
            _prefetch_l2(data, k + PREFETCH_ENTRIES)
            _prefetch_l2(indices, k + PREFETCH_ENTRIES)
            for m in range(k, k + FOUR, TWO):
                a += data[m] * d[indices[m]]
                b += data[m + ONE] * d[indices[m + ONE]]
            k += FOUR
        for m in range(k, end):
            a += data[m] * d[indices[m]]
        g = h[i - np.uintp(start)] * (a + b)
        if g != 0.0:
            for m in range(first, end):
                out[indices[m]] += g * data[m]


@njit(fastmath={"contract", "reassoc", "nsz"})
def dense_scores(X: Any, w: Any, start: int, stop: int, z: Any) -> None:
    """Compute z = X[start:stop] @ w, X in C order."""
    p = X.shape[1]
    for i in range(start, stop):
        s = 0.0
        for j in range(p):
            s += X[i, j] * w[j]
        z[i - start] = s


@njit(fastmath={"contract"})
def dense_pullback(X: Any, dz: Any, start: int, stop: int, out: Any) -> None:
    """Compute out += X[start:stop].T @ dz, X in C order, row by row: one stream of memory."""
    p = X.shape[1]
    for i in range(start, stop):
        g = dz[i - start]
        # hinge-type losses have many rows with zero slope
        if g != 0.0:
            for j in range(p):
                out[j] += g * X[i, j]


@njit(inline="always")
def _four_columns(T: Any, step: int, j: int, start: int, stop: int) -> tuple[Any, Any, Any, Any]:
    """Return rows start to stop - 1 of the four columns j to j + 3."""
    first, last = j * step + start, j * step + stop
    a, b = T[first:last], T[first + step : last + step]
    return a, b, T[first + 2 * step : last + 2 * step], T[first + 3 * step : last + 3 * step]


@njit(fastmath={"contract"})
def columns_scores(T: Any, step: int, w: Any, start: int, stop: int, z: Any) -> None:
    """Compute z = X[start:stop] @ w, where column j of X begins at T[j * step].

    Four columns at a time: four streams of memory, and a quarter of the loads and stores of z.
    """
    z[:] = 0.0
    p, j = len(w), 0
    # columns in groups of four, then the remaining ones
    while j + 4 <= p:
        a, b, c, d = _four_columns(T, step, j, start, stop)
        for i in range(stop - start):
            # two pairs of products: a shorter chain of additions
            z[i] += w[j] * a[i] + w[j + 1] * b[i] + (w[j + 2] * c[i] + w[j + 3] * d[i])
        j += 4
    for k in range(j, p):
        a, v = T[k * step + start : k * step + stop], w[k]
        for i in range(stop - start):
            z[i] += v * a[i]


@njit(fastmath={"contract", "reassoc", "nsz"})
def columns_pullback(T: Any, step: int, dz: Any, start: int, stop: int, out: Any) -> None:
    """Compute out += X[start:stop].T @ dz, where column j of X begins at T[j * step]."""
    p, j = len(out), 0
    while j + 4 <= p:
        a, b, c, d = _four_columns(T, step, j, start, stop)
        # four columns per pass over dz
        s0 = s1 = s2 = s3 = 0.0
        for i in range(stop - start):
            g = dz[i]
            s0 += g * a[i]
            s1 += g * b[i]
            s2 += g * c[i]
            s3 += g * d[i]
        out[j] += s0
        out[j + 1] += s1
        out[j + 2] += s2
        out[j + 3] += s3
        j += 4
    for k in range(j, p):
        a, s = T[k * step + start : k * step + stop], 0.0
        for i in range(stop - start):
            s += dz[i] * a[i]
        out[k] += s


# ---------------------------------------------------------------- multi-output: several scores per row
@njit(fastmath={"contract"})
def csr_scores_multi_output(
    indptr: Any, indices: Any, data: Any, W: Any, start: int, stop: int, Z: Any
) -> None:
    """Compute Z = X[start:stop] @ W: the k weights of a feature are adjacent in memory."""
    k = np.uintp(W.shape[1])
    for i in range(np.uintp(start), np.uintp(stop)):
        z = Z[i - np.uintp(start)]
        for j in range(k):
            z[j] = 0.0
        for e in range(np.uintp(indptr[i]), np.uintp(indptr[i + np.uintp(1)])):
            # the inner loop over outputs is contiguous in W and Z
            v, w = data[e], W[indices[e]]
            for j in range(k):
                z[j] += v * w[j]


@njit(fastmath={"contract"})
def csr_pullback_multi_output(
    indptr: Any, indices: Any, data: Any, nonzero: Any, D: Any, start: int, stop: int, out: Any
) -> None:
    """Compute out += X[start:stop].T @ D.

    Rows with few nonzero slopes add only those; nonzero (one entry per output) is a workspace for their
    indices.
    """
    k = np.uintp(D.shape[1])
    for i in range(np.uintp(start), np.uintp(stop)):
        d = D[i - np.uintp(start)]
        n_nonzero = np.uintp(0)
        for j in range(k):
            if d[j] != 0.0:
                nonzero[n_nonzero] = j
                n_nonzero += np.uintp(1)
        # rows without a slope, frequent for hinge-type losses, read nothing
        if n_nonzero == np.uintp(0):
            continue
        # indexed access pays off below a quarter of the outputs
        is_sparse = np.uintp(4) * n_nonzero < k
        for e in range(np.uintp(indptr[i]), np.uintp(indptr[i + np.uintp(1)])):
            v, g = data[e], out[indices[e]]
            if is_sparse:
                for m in range(n_nonzero):
                    g[nonzero[m]] += v * d[nonzero[m]]
            else:
                for j in range(k):
                    g[j] += v * d[j]


# ---------------------------------------------------------------- any format
@njit()
def scores(X: Any, w: Any, start: int, stop: int, z: Any) -> None:
    """Compute z = X[start:stop] @ w."""
    if len(X) == 1:
        dense_scores(X[0], w, start, stop, z)
    elif len(X) == 2:
        columns_scores(X[0], X[1], w, start, stop, z[: stop - start])
    else:
        csr_scores(X[0], X[1], X[2], w, start, stop, z)


@njit()
def pullback(X: Any, dz: Any, start: int, stop: int, out: Any) -> None:
    """Compute out += X[start:stop].T @ dz."""
    if len(X) == 1:
        dense_pullback(X[0], dz, start, stop, out)
    elif len(X) == 2:
        columns_pullback(X[0], X[1], dz, start, stop, out)
    else:
        csr_pullback(X[0], X[1], X[2], dz, start, stop, out)
