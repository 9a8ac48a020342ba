"""Newton's method for the softmax loss: the loss along a line, products with its Hessian, and cuts."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.exponential import exponential, log

ONE, ROWS_PER_BLOCK = np.uintp(1), np.uintp(64)


@njit(fastmath={"contract", "reassoc", "nsz"})
def softmax_line(Z: Any, D: Any, t: float, y: Any, c: Any, moved: Any, P: Any, flat: Any, sums: Any) -> None:
    """Compute the scores Z + t D and their probabilities P; add the loss and its derivatives in t to sums.

    sums: the loss, its derivative and its second derivative. `flat` is P as a vector: exponentials of many
    rows are one loop, since loops over few classes are hardly vectorized.
    """
    n, k = np.uintp(len(Z)), np.uintp(Z.shape[1])
    value = slope = curvature = 0.0
    for start in range(np.uintp(0), n, ROWS_PER_BLOCK):
        stop = min(start + ROWS_PER_BLOCK, n)
        for i in range(start, stop):
            largest = -np.inf
            for j in range(k):
                z = Z[i, j] + t * D[i, j]
                moved[i, j] = z
                largest = max(z, largest)
            # relative to the largest score of the row: no overflow
            for j in range(k):
                P[i, j] = moved[i, j] - largest
            value -= c[i] * P[i, y[i]]
        for e in range(start * k, stop * k):
            flat[e] = exponential(flat[e])
        for i in range(start, stop):
            total = first = second = 0.0
            for j in range(k):
                total += P[i, j]
            scale = 1.0 / total
            for j in range(k):
                p = scale * P[i, j]
                P[i, j] = p
                first += p * D[i, j]
                second += p * D[i, j] * D[i, j]
            value += c[i] * log(total)
            slope += c[i] * (first - D[i, y[i]])
            curvature += c[i] * (second - first * first)
    sums[0] += value
    sums[1] += slope
    sums[2] += curvature


@njit(fastmath={"contract", "reassoc", "nsz"})
def softmax_slopes(P: Any, Z: Any, y: Any, c: Any, dz: Any, sums: Any) -> None:
    """Compute the slopes dz = c (P - one_hot(y)) in the scores Z; add dz'z and sum |dz| |z| to sums."""
    k = np.uintp(P.shape[1])
    product = size = 0.0
    for i in range(np.uintp(len(P))):
        for j in range(k):
            dz[i, j] = c[i] * P[i, j]
        dz[i, y[i]] -= c[i]
        for j in range(k):
            term = dz[i, j] * Z[i, j]
            product += term
            size += abs(term)
    sums[0] += product
    sums[1] += size


@njit(fastmath={"contract", "reassoc", "nsz"})
def softmax_hessian_product(P: Any, c: Any, V: Any) -> None:
    """Replace each row v of V by c (diag(p) - p p') v."""
    k = np.uintp(P.shape[1])
    for i in range(np.uintp(len(P))):
        mean = 0.0
        for j in range(k):
            mean += P[i, j] * V[i, j]
        for j in range(k):
            V[i, j] = c[i] * P[i, j] * (V[i, j] - mean)


@njit(fastmath={"contract"})
def csr_softmax_hessian_product(
    indptr: Any, indices: Any, data: Any, D: Any, intercepts: bool, c: Any, z: Any, P: Any, start: int,
    stop: int, out: Any,
) -> None:  # fmt: skip
    """Add X' H X D of rows start to stop - 1 to out, with the Hessian H of their probabilities P.

    Each row of X is read once. D and out have one row per column of X and, with `intercepts`, a last row for
    them; z is a workspace with one entry per class.
    """
    k, b = np.uintp(P.shape[1]), np.uintp(len(D)) - ONE
    for i in range(np.uintp(start), np.uintp(stop)):
        p = P[i - np.uintp(start)]
        first, end = np.uintp(indptr[i]), np.uintp(indptr[i + ONE])
        for j in range(k):
            z[j] = D[b, j] if intercepts else 0.0
        for e in range(first, end):
            x, d = data[e], D[indices[e]]
            for j in range(k):
                z[j] += x * d[j]
        mean = 0.0
        for j in range(k):
            mean += p[j] * z[j]
        for j in range(k):
            z[j] = c[i] * p[j] * (z[j] - mean)
        if intercepts:
            for j in range(k):
                out[b, j] += z[j]
        for e in range(first, end):
            x, g = data[e], out[indices[e]]
            for j in range(k):
                g[j] += x * z[j]


@njit(fastmath={"contract"})
def csr_softmax_diagonal(
    indptr: Any, indices: Any, data: Any, c: Any, h: Any, P: Any, start: int, stop: int, out: Any
) -> None:
    """Add sum_i c_i x_if^2 p_ij (1 - p_ij) of rows start to stop - 1 to out[f, j]; h is a workspace."""
    k = np.uintp(P.shape[1])
    for i in range(np.uintp(start), np.uintp(stop)):
        p = P[i - np.uintp(start)]
        for j in range(k):
            h[j] = c[i] * p[j] * (1.0 - p[j])
        for e in range(np.uintp(indptr[i]), np.uintp(indptr[i + ONE])):
            square, g = data[e] * data[e], out[indices[e]]
            for j in range(k):
                g[j] += square * h[j]


@njit(fastmath={"contract", "reassoc", "nsz"})
def softmax_predicted_slopes(
    P: Any, Z: Any, V: Any, y: Any, c: Any, least: float, dz: Any, sums: Any
) -> None:
    """Compute the slopes dz = c (q - one_hot(y)) of probabilities q near P + (diag(p) - p p') V.

    q_j is p_j (1 + v_j - p'v), at least `least` p_j, and normalized. Added to sums: the offset of the cut,
    the entropy -sum c q log q, the sum of its terms without their signs, and sum |dz| |z|.
    """
    k = np.uintp(P.shape[1])
    offset = size = rounding = 0.0
    for i in range(np.uintp(len(P))):
        mean = total = 0.0
        for j in range(k):
            mean += P[i, j] * V[i, j]
        for j in range(k):
            factor = 1.0 + (V[i, j] - mean)
            q = P[i, j] * (factor if factor > least else least)
            dz[i, j] = q
            total += q
        scale = 1.0 / total
        for j in range(k):
            q = scale * dz[i, j]
            dz[i, j] = c[i] * q
            # q log q tends to 0 with q
            term = c[i] * q * log(q) if q > 0.0 else 0.0
            offset -= term
            size += abs(term)
        dz[i, y[i]] -= c[i]
        for j in range(k):
            rounding += abs(dz[i, j] * Z[i, j])
    sums[0] += offset
    sums[1] += size
    sums[2] += rounding
