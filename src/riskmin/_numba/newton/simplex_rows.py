"""Newton's method for multipliers on simplices: the softmax and the smoothed multiclass hinge loss.

The Hessian of a row is size (diag(q) - q q') for q on the simplex. Arrays have one row per row of X and one
column per class.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.exponential import exponential, log
from riskmin._numba.simplex_loops import simplex_shift

ONE, ROWS_PER_BLOCK = np.uintp(1), np.uintp(64)


# ---------------------------------------------------------------- products with the Hessian
@njit(fastmath={"contract", "reassoc", "nsz"})
def hessian_product(Q: Any, size: Any, V: Any) -> None:
    """Replace each row v of V by size (diag(q) - q q') v."""
    k = np.uintp(Q.shape[1])
    for i in range(np.uintp(len(Q))):
        mean = 0.0
        for j in range(k):
            mean += Q[i, j] * V[i, j]
        for j in range(k):
            V[i, j] = size[i] * Q[i, j] * (V[i, j] - mean)


@njit(fastmath={"contract"})
def csr_hessian_product(
    indptr: Any, indices: Any, data: Any, D: Any, intercepts: bool, size: Any, z: Any, Q: Any, start: int,
    stop: int, out: Any,
) -> None:  # fmt: skip
    """Add X' H X D of rows start to stop - 1 to out; rows of size 0 cost nothing.

    Each row of X is read once. D and out have one row per column of X and, with `intercepts`, a last row for
    them; z is a workspace with one entry per class.
    """
    k, b = np.uintp(Q.shape[1]), np.uintp(len(D)) - ONE
    for i in range(np.uintp(start), np.uintp(stop)):
        if size[i] == 0.0:
            continue
        q = Q[i - np.uintp(start)]
        first, end = np.uintp(indptr[i]), np.uintp(indptr[i + ONE])
        for j in range(k):
            z[j] = D[b, j] if intercepts else 0.0
        for e in range(first, end):
            x, d = data[e], D[indices[e]]
            for j in range(k):
                z[j] += x * d[j]
        mean = 0.0
        for j in range(k):
            mean += q[j] * z[j]
        for j in range(k):
            z[j] = size[i] * q[j] * (z[j] - mean)
        if intercepts:
            for j in range(k):
                out[b, j] += z[j]
        for e in range(first, end):
            x, g = data[e], out[indices[e]]
            for j in range(k):
                g[j] += x * z[j]


# ---------------------------------------------------------------- softmax
@njit(fastmath={"contract", "reassoc", "nsz"})
def softmax_line(Z: Any, D: Any, t: float, y: Any, c: Any, P: Any, flat: Any, sums: Any) -> None:
    """Compute the probabilities P of the scores Z + t D; add the loss and its derivatives in t to sums.

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
                P[i, j] = z
                largest = max(z, largest)
            # relative to the largest score of the row: no overflow
            for j in range(k):
                P[i, j] -= largest
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
def softmax_predicted_slopes(P: Any, Z: Any, V: Any, y: Any, c: Any, least: float, S: Any, sums: Any) -> None:
    """Compute the slopes c (q - one_hot(y)) of probabilities q near P + (diag(p) - p p') V.

    q_j is p_j (1 + v_j - p'v), at least `least` p_j, and normalized. Added to sums: the offset of the cut,
    the entropy -sum c q log q, and the sum of its terms without their signs, with those of s'z.
    """
    k = np.uintp(P.shape[1])
    offset = size = 0.0
    for i in range(np.uintp(len(P))):
        mean = total = 0.0
        for j in range(k):
            mean += P[i, j] * V[i, j]
        for j in range(k):
            factor = 1.0 + (V[i, j] - mean)
            q = P[i, j] * (factor if factor > least else least)
            S[i, j] = q
            total += q
        scale = 1.0 / total
        for j in range(k):
            q = scale * S[i, j]
            S[i, j] = c[i] * q
            # q log q tends to 0 with q
            term = c[i] * q * log(q) if q > 0.0 else 0.0
            offset -= term
            size += abs(term)
        S[i, y[i]] -= c[i]
        for j in range(k):
            size += abs(S[i, j] * Z[i, j])
    sums[0] += offset
    sums[1] += size


# ---------------------------------------------------------------- multiclass hinge
@njit()
def hinge_line(
    Z: Any, D: Any, t: Any, center: Any, y: Any, c: Any, cost: Any, weight: Any, v: Any, workspace: Any,
    direction: Any, out: Any,
) -> None:  # fmt: skip
    """Add the slope and second derivative in t of the smoothed loss at Z + t D to out.

    The multipliers of a row are the projection onto the simplex of center + weight slack, weight = 1 / mu,
    with slack_j = cost_yj + z_j - z_y. v, workspace and direction have one entry per class.
    """
    k = np.uintp(Z.shape[1])
    slope = curvature = 0.0
    for i in range(np.uintp(len(Z))):
        y_i = y[i]
        z_y, d_y, cost_y = Z[i, y_i], D[i, y_i], cost[y_i]
        for j in range(k):
            direction[j] = D[i, j] - d_y
            v[j] = center[i, j] + weight * (cost_y[j] + (Z[i, j] - z_y) + t * direction[j])
        shift = simplex_shift(v, k, workspace)
        # on the positive multipliers: their number, sums of d_j and d_j^2, and beta'd
        count = first = second = total = 0.0
        for j in range(k):
            if v[j] > shift:
                count += 1.0
                first += direction[j]
                second += direction[j] * direction[j]
                total += (v[j] - shift) * direction[j]
        slope += c[i] * total
        if count > 1.0:
            # derivative of the projection: weight (I - 1 1' / count) on the classes above the threshold
            curvature += c[i] * weight * (second - first * first / count)
    out[0] += slope
    out[1] += curvature


@njit()
def hinge_rows(
    Z: Any, center: Any, y: Any, c: Any, cost: Any, weight: Any, v: Any, workspace: Any, S: Any, Q: Any,
    size: Any, sums: Any,
) -> None:  # fmt: skip
    """Compute the slopes S in Z, and the Hessians (Q, size); add to sums.

    sums: the loss c max_j slack_j, the offset c beta'cost of the cut, its inner product with the scores, and
    the proximal term c |beta - center|^2 / 2.
    """
    k = np.uintp(Z.shape[1])
    value = offset = inner = proximal = 0.0
    for i in range(np.uintp(len(Z))):
        y_i = y[i]
        z_y, cost_y, largest_slack = Z[i, y_i], cost[y_i], 0.0
        for j in range(k):
            slack = cost_y[j] + (Z[i, j] - z_y)
            largest_slack = max(largest_slack, slack)
            v[j] = center[i, j] + weight * slack
        # multipliers beta_j = max(v_j - shift, 0)
        shift = simplex_shift(v, k, workspace)
        count, others, row_offset, row_inner, row_proximal = 0, 0.0, 0.0, 0.0, 0.0
        for j in range(k):
            b = max(v[j] - shift, 0.0)
            count += b > 0.0
            S[i, j] = c[i] * b
            Q[i, j] = b > 0.0
            row_proximal += (b - center[i, j]) * (b - center[i, j])
            if j != y_i:
                others += b
                row_offset += b * cost_y[j]
                row_inner += b * (Z[i, j] - z_y)
        # by this difference the slopes of a row sum to zero up to the last bit
        S[i, y_i] = -c[i] * others
        for j in range(k):
            Q[i, j] /= count
        size[i] = c[i] * weight * count if count > 1 else 0.0
        value += c[i] * largest_slack
        offset += c[i] * row_offset
        inner += c[i] * row_inner
        proximal += 0.5 * c[i] * row_proximal
    sums[0] += value
    sums[1] += offset
    sums[2] += inner
    sums[3] += proximal
