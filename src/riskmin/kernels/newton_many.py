"""Looks of Newton's method at rows whose multipliers are on simplices: those of many classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.simplex import simplex_shift

SLOPE, BEND = 0, 1
TRUTH, GAIN, SIZE = 0, 1, 2


@njit()
def along(
    Z: Any, D: Any, t: Any, pull: Any, y: Any, c: Any, cost: Any, weight: Any, v: Any, room: Any, ahead: Any,
    out: Any,
) -> None:  # fmt: skip
    """Add slope and second derivative of the smoothed loss along Z + t D; `pull` is the centre, times mu.

    The last but out are room, for a number a class.
    """
    k = np.uintp(Z.shape[1])
    slope = bend = 0.0
    for i in range(np.uintp(len(Z))):
        own = y[i]
        own_z, own_d, own_cost = Z[i, own], D[i, own], cost[own]
        for j in range(k):
            ahead[j] = D[i, j] - own_d
            v[j] = weight * (pull[i, j] + own_cost[j] + (Z[i, j] - own_z) + t * ahead[j])
        shift = simplex_shift(v, k, room)
        count = first = second = total = 0.0
        for j in range(k):
            if v[j] > shift:
                count += 1.0
                first += ahead[j]
                second += ahead[j] * ahead[j]
                total += (v[j] - shift) * ahead[j]
        slope += c[i] * total
        if count > 1.0:
            bend += c[i] * weight * (second - first * first / count)
    out[SLOPE] += slope
    out[BEND] += bend


@njit()
def settle(
    Z: Any, pull: Any, y: Any, c: Any, cost: Any, weight: Any, v: Any, room: Any, slopes: Any, counts: Any,
    out: Any,
) -> None:  # fmt: skip
    """The slopes in Z, and how many multipliers of a row are above zero; of all rows, add up the loss itself,
    the offset of the cut, and the size of what that is made of.
    """
    k = np.uintp(Z.shape[1])
    truth = gain = size = 0.0
    for i in range(np.uintp(len(Z))):
        own = y[i]
        own_z, own_cost, most = Z[i, own], cost[own], 0.0
        for j in range(k):
            slack = own_cost[j] + (Z[i, j] - own_z)
            most = max(most, slack)
            v[j] = weight * (pull[i, j] + slack)
        shift = simplex_shift(v, k, room)
        count, rest, part, made = 0, 0.0, 0.0, 0.0
        for j in range(k):
            b = max(v[j] - shift, 0.0)
            count += b > 0.0
            slopes[i, j] = c[i] * b
            if j != own:
                rest += b
                part += b * own_cost[j]
                made += b * (own_cost[j] + abs(Z[i, j]))
        slopes[i, own] = -c[i] * rest  # so that the slopes of a row are of sum zero, up to the last bit
        counts[i] = count
        truth += c[i] * most
        gain += c[i] * part
        size += c[i] * (made + rest * abs(own_z))
    out[TRUTH] += truth
    out[GAIN] += gain
    out[SIZE] += size
