"""Newton's method for multipliers on simplices (multiclass max-margin): line derivatives and cuts."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.simplex_loops import simplex_shift


@njit()
def simplex_line_derivatives(
    Z: Any, D: Any, t: Any, pull: Any, y: Any, c: Any, cost: Any, weight: Any, v: Any, workspace: Any,
    direction: Any, out: Any,
) -> None:  # fmt: skip
    """Add the slope and second derivative in t of the smoothed loss at Z + t D to out.

    The multipliers of a row are the projection onto the simplex of weight (pull + slack), weight = 1 / mu,
    with slack_j = cost_yj + z_j - z_y; `pull` is mu times the smoothing center. v, workspace and direction
    are workspaces with one entry per class.
    """
    k = np.uintp(Z.shape[1])
    slope = curvature = 0.0
    for i in range(np.uintp(len(Z))):
        y_i = y[i]
        z_y, d_y, cost_y = Z[i, y_i], D[i, y_i], cost[y_i]
        for j in range(k):
            # slack of class j along the line, divided by mu after adding the center
            direction[j] = D[i, j] - d_y
            v[j] = weight * (pull[i, j] + cost_y[j] + (Z[i, j] - z_y) + t * direction[j])
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
def simplex_evaluate_with_cut(
    Z: Any, pull: Any, y: Any, c: Any, cost: Any, weight: Any, v: Any, workspace: Any, slopes: Any,
    counts: Any, out: Any,
) -> None:  # fmt: skip
    """Compute slopes in Z and the number of positive multipliers per row; add the sums of a cut to out.

    out: the unsmoothed loss c max_j slack_j, the cut's offset c beta' cost, and the absolute sum of its
    terms.
    """
    k = np.uintp(Z.shape[1])
    value = offset = size = 0.0
    for i in range(np.uintp(len(Z))):
        y_i = y[i]
        z_y, cost_y, largest_slack = Z[i, y_i], cost[y_i], 0.0
        for j in range(k):
            slack = cost_y[j] + (Z[i, j] - z_y)
            largest_slack = max(largest_slack, slack)
            v[j] = weight * (pull[i, j] + slack)
        # multipliers beta_j = max(v_j - shift, 0)
        shift = simplex_shift(v, k, workspace)
        count, others, row_offset, row_size = 0, 0.0, 0.0, 0.0
        for j in range(k):
            b = max(v[j] - shift, 0.0)
            count += b > 0.0
            slopes[i, j] = c[i] * b
            if j != y_i:
                others += b
                row_offset += b * cost_y[j]
                row_size += b * (cost_y[j] + abs(Z[i, j]))
        # by this difference the slopes of a row sum to zero up to the last bit
        slopes[i, y_i] = -c[i] * others
        counts[i] = count
        value += c[i] * largest_slack
        offset += c[i] * row_offset
        size += c[i] * (row_size + others * abs(z_y))
    out[0] += value
    out[1] += offset
    out[2] += size
