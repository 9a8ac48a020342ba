"""The shift that brings a clipped weighted sum to a given total, by quickselect over breakpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


@njit(allocates=True)
def shift_to_sum(t: Any, c: Any, lower: Any, upper: Any, total: Any) -> Any:
    """Return the s with sum_i c_i clip(t_i - s, lower_i, upper_i) = total, which must be attainable; c_i > 0.

    The sum is piecewise linear and nonincreasing in s, with breakpoints t_i - upper_i and t_i - lower_i. Each
    round evaluates it at a breakpoint of a random row and keeps the rows with a breakpoint on the side of the
    root: O(n) on average.
    """
    rows = np.arange(len(t))
    lo, hi = np.inf, -np.inf
    for i in rows:
        lo, hi = min(lo, t[i] - upper[i]), max(hi, t[i] - lower[i])
    # Rows without a breakpoint inside (lo, hi) are summed once: `fixed` is the sum of c times the bound they
    # are at; `linear` and `weight` are the sums of c t and of c over rows between their bounds.
    fixed = linear = weight = 0.0
    active, seed = len(rows), np.uint64(88172645463325252)
    while active:
        # xorshift64 generator
        seed ^= seed << np.uint64(13)
        seed ^= seed >> np.uint64(7)
        seed ^= seed << np.uint64(17)
        i = rows[seed % np.uint64(active)]
        # a breakpoint of the row, inside (lo, hi) if possible; if both are inside, a random bit chooses
        pivot = t[i] - upper[i]
        if not lo < pivot < hi or (lo < t[i] - lower[i] < hi and seed >> np.uint64(63)):
            pivot = t[i] - lower[i]
        # the sum at the pivot, minus the target: positive to the left of the root
        value = fixed + linear - pivot * weight - total
        for k in range(active):
            i = rows[k]
            value += c[i] * min(max(t[i] - pivot, lower[i]), upper[i])
        if value > 0:
            lo = max(lo, pivot)
        elif value < 0:
            hi = min(hi, pivot)
        else:
            return pivot
        # rows without a breakpoint inside the new bracket join the fixed or the linear part
        kept = 0
        for k in range(active):
            i = rows[k]
            first, last = t[i] - upper[i], t[i] - lower[i]
            if last <= lo:
                fixed += c[i] * lower[i]
            elif first >= hi:
                fixed += c[i] * upper[i]
            elif first <= lo and last >= hi:
                linear, weight = linear + c[i] * t[i], weight + c[i]
            else:
                rows[kept] = i
                kept += 1
        active = kept
    # no breakpoint is left inside (lo, hi): the sum is linear there, or constant if weight = 0
    if not weight > 0:
        return lo if np.isfinite(lo) else 0.0
    return min(max((fixed + linear - total) / weight, lo), hi)
