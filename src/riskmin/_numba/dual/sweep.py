"""Sweeps of dual coordinate ascent with exact steps, for L2 regularization.

The dual variables u_i determine w = -(1 / lam) sum_i c_i u_i x_i / m. A row's parameters are in one record of
64 bytes, a cache line, and its entries are `start` to `stop` of indices and data. The cost is memory latency,
since rows are visited in random order: records and entries are prefetched some visits ahead. Dense rows have
None for indices, and regularizers with m = 1 None for scale, so that unused code is not compiled. The helpers
are inlined by Numba: calls with array arguments would take up to a sixth of the time of a visit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.prefetch import prefetch

ZERO, ONE, TWO, THREE, FOUR, EIGHT = (np.uintp(k) for k in (0, 1, 2, 3, 4, 8))
LOWER, UPPER, SHIFT, INVERSE, U, STEP, START, STOP = (np.uintp(k) for k in range(8))
"""Slots of a row's record: bounds of u, shift of the conjugate, 1 / (square + c |x|^2 / lam), u, c / lam.

START and STOP are the range of the row's entries. The conjugate is l*(u) = shift u + epsilon |u| +
square u^2 / 2 on [lower, upper]. For the logistic loss, LOWER holds the label y, INVERSE the curvature
c |x|^2 / lam, and SHIFT the log-odds of a = -y u, since u itself does not distinguish 1 - 1e-20 from 1.
"""
MAX_SLOPE, MIN_SLOPE, N_VISITS, N_MOVES, PARTIAL_MAX_SLOPE, PARTIAL_MIN_SLOPE, N_KEPT = range(7)
"""Slots of `out`: largest and least slopes met in a sweep, number of visits, number of coordinates moved.

The last three carry a sweep over from one call to the next: its slopes so far, and the number of rows that
stay active.
"""

PREFETCH_RECORDS_AHEAD, PREFETCH_ENTRIES_AHEAD = 12, 5
"""Number of visits ahead at which a record (first) and a row's entries (second) are prefetched.

The distances are not tuned; without prefetching a visit takes 1.4 to 3.6 times as long.
"""
CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""
SHRINK_SLOPE_RATIO = 0.2
"""A row at a bound is left out if its slope exceeds this fraction of the largest slope of the last sweep.

LIBLINEAR uses 1. Rows left out by mistake return after the next check, so a smaller fraction is faster.
"""

_prefetch = prefetch(3)


# ---------------------------------------------------------------- products with rows
@njit(fastmath={"contract"})
def _sparse_dot(indices: Any, data: Any, w: Any, start: Any, stop: Any) -> float:
    """Return sum_k data[k] w[indices[k]] for start <= k < stop.

    Four partial sums, so that no addition waits for the previous one.
    """
    a = b = c = d = 0.0
    k = start
    while k + FOUR <= stop:
        a += data[k] * w[indices[k]]
        b += data[k + ONE] * w[indices[k + ONE]]
        c += data[k + TWO] * w[indices[k + TWO]]
        d += data[k + THREE] * w[indices[k + THREE]]
        k += FOUR
    while k < stop:
        a += data[k] * w[indices[k]]
        k += ONE
    return (a + b) + (c + d)


@njit(fastmath={"contract", "reassoc", "nsz"})
def _dense_dot(data: Any, w: Any, start: Any) -> float:
    """Return the inner product of a dense row with w."""
    z = 0.0
    for j in range(np.uintp(len(w))):
        z += data[start + j] * w[j]
    return z


@njit(inline="always")
def dot(indices: Any, data: Any, w: Any, start: Any, stop: Any) -> float:
    """Return x_i @ w for a sparse or dense row."""
    if indices is None:
        return _dense_dot(data, w, start)
    return _sparse_dot(indices, data, w, start, stop)


@njit(inline="always", fastmath={"contract"})
def _update_w(indices: Any, data: Any, w: Any, scale: Any, start: Any, stop: Any, t: float) -> None:
    """Compute w -= t x / m, with scale = 1 / m."""
    for k in range(start, stop):
        j = k - start if indices is None else indices[k]
        if scale is None:
            w[j] -= t * data[k]
        else:
            w[j] -= t * data[k] * scale[j]


@njit(inline="always")
def _shuffle_step(order: Any, k: Any, active: Any, rng: Any) -> None:
    """Swap a random one of order[k:active] into place k: one step of a Fisher-Yates shuffle.

    rng[0] is the state of a xorshift64* generator.
    """
    # xorshift64*; the product's upper half scales to [0, active - k) without division
    x = rng[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    rng[0] = x
    x = (x * np.uint64(2685821657736338717)) >> np.uint64(32)
    j = k + np.uintp((x * np.uint64(active - k)) >> np.uint64(32))
    order[k], order[j] = order[j], order[k]


@njit(inline="always")
def _prefetch_ahead(
    order: Any, k: Any, active: Any, shuffle: bool, rng: Any, floats: Any, ints: Any, indices: Any, data: Any
) -> None:
    """Draw the row of a later visit if shuffled, and prefetch its record and a nearer row's entries."""
    j = k + np.uintp(PREFETCH_RECORDS_AHEAD)
    if j < active:
        if shuffle:
            _shuffle_step(order, j, active, rng)
        _prefetch(floats, np.intp(order[j]) * 8)
    j = k + np.uintp(PREFETCH_ENTRIES_AHEAD)
    if j < active:
        record = np.uintp(order[j]) * EIGHT
        start, stop = np.intp(ints[record + START]), np.intp(ints[record + STOP])
        step = CACHE_LINE_BYTES // data.itemsize
        # first two and last cache line of the entries, then the lines in between
        _prefetch(data, start)
        _prefetch(data, min(start + step, stop - 1))
        _prefetch(data, stop - 1)
        for e in range(start + 2 * step, stop - 1, step):
            _prefetch(data, e)
        if indices is not None:
            _prefetch(indices, start)
            _prefetch(indices, stop - 1)
            for e in range(
                start + CACHE_LINE_BYTES // indices.itemsize, stop - 1, CACHE_LINE_BYTES // indices.itemsize
            ):
                _prefetch(indices, e)


@njit(inline="always")
def _load_progress(begins: bool, out: Any) -> tuple[float, float, Any]:
    """Return the slopes that earlier calls of this sweep met, and the number of rows that they kept."""
    if begins:
        out[PARTIAL_MAX_SLOPE] = out[PARTIAL_MIN_SLOPE] = out[N_KEPT] = 0.0
    return out[PARTIAL_MAX_SLOPE], out[PARTIAL_MIN_SLOPE], np.uintp(out[N_KEPT])


@njit(inline="always")
def _store_progress(high: float, low: float, kept: Any, ends: bool, active: int, out: Any) -> None:
    """Store the sums of this call for the next one; after the last call, the results of the sweep."""
    out[PARTIAL_MAX_SLOPE], out[PARTIAL_MIN_SLOPE], out[N_KEPT] = high, low, kept
    if ends:
        out[MAX_SLOPE], out[MIN_SLOPE] = high, low
        out[N_VISITS] += active


# ---------------------------------------------------------------- quadratic conjugates
@njit(inline="always")
def quadratic_step(
    slope: float, u: float, epsilon: float, inverse: float, lower: float, upper: float
) -> float:
    """Return argmin over v in [lower, upper] of slope (v-u) + epsilon |v| + (v-u)^2 / (2 inverse)."""
    # shrink towards 0 by epsilon inverse, then clip
    v, threshold = u - slope * inverse, epsilon * inverse
    v = v - min(max(v, -threshold), threshold)
    return min(max(v, lower), upper)


@njit(inline="always")
def _one_sided_slopes(slope: float, u: float, epsilon: float) -> tuple[float, float]:
    """Return the left and right derivatives of the dual at u, given the slope of its smooth part."""
    return slope + (epsilon if u > 0 else -epsilon), slope + (epsilon if u >= 0 else -epsilon)


@njit(fastmath={"contract"})
def sweep(
    indices: Any, data: Any, floats: Any, ints: Any, order: Any, active: int, w: Any, scale: Any,
    intercept: Any, first: int, last: int, damping: float, epsilon: float, square: float, shrink: bool,
    shuffle: bool, rng: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over positions first to last - 1 of order[:active]; return the number of rows kept active.

    The calls of a sweep follow each other, the first one with first = 0. floats and ints are views of the
    same records as float64 and int64. For each row the kernel minimizes l*(v) - z v + c |x|^2 (v - u)^2 / (2
    lam) over v and updates w; rows that stay active are moved to the front of order. intercept holds b and
    lam / rho: with a proximal term rho (b - b_0)^2 / 2, b is the weight of one more column, constant
    sqrt(lam / rho), and |x|^2 includes its square; both are zero without an intercept.
    """
    size, begins = np.uintp(active), first == 0
    b, b_scale = intercept[0], intercept[1]
    high, low, kept = _load_progress(begins, out)
    # shrinking thresholds from the slopes of the last sweep; infinite if it met none
    above, below = (
        SHRINK_SLOPE_RATIO * (out[MAX_SLOPE] or math.inf),
        SHRINK_SLOPE_RATIO * (out[MIN_SLOPE] or -math.inf),
    )
    for k in range(np.uintp(min(active, PREFETCH_RECORDS_AHEAD)) if shuffle and begins else ZERO):
        _shuffle_step(order, k, size, rng)
    for k in range(np.uintp(first), np.uintp(last)):
        _prefetch_ahead(order, k, size, shuffle, rng, floats, ints, indices, data)
        i = order[k]
        r = np.uintp(i) * EIGHT
        lower, upper, u = floats[r + LOWER], floats[r + UPPER], floats[r + U]
        start, stop = np.uintp(ints[r + START]), np.uintp(ints[r + STOP])
        z = dot(indices, data, w, start, stop) + b
        # derivative of the smooth part of the dual: shift - z + square u
        slope = floats[r + SHIFT] - z + square * u
        left, right = _one_sided_slopes(slope, u, epsilon)
        active_slope = 0.0
        # slope in the direction in which the dual can still be decreased, zero at a minimum
        if right < 0 and u < upper:
            active_slope = right
            low = min(low, active_slope)
        elif left > 0 and u > lower:
            active_slope = left
            high = max(high, active_slope)
        # held at a bound (or at the nonsmooth point u = 0) by more than the threshold on both sides
        elif shrink and (u == lower or left < below) and (u == upper or right > above):
            continue
        order[kept] = i
        kept += ONE
        if active_slope != 0.0:
            new = quadratic_step(slope, u, epsilon, floats[r + INVERSE], lower, upper)
            # relaxation: a fraction of the step, or more than all of it
            if damping != 1.0:
                new = min(max(u + damping * (new - u), lower), upper)
            if new != u:
                floats[r + U] = new
                out[N_MOVES] += 1
                # w = -(1 / lam) sum_i c_i u_i x_i / m follows u, and b = b_0 - (1 / rho) sum_i c_i u_i
                t = floats[r + STEP] * (new - u)
                _update_w(indices, data, w, scale, start, stop, t)
                b -= t * b_scale
    intercept[0] = b
    _store_progress(high, low, kept, last == active, active, out)
    return int(kept)


# ---------------------------------------------------------------- logistic loss
@njit()
def _sigmoid_pair(s: float) -> tuple[float, float]:
    """Return the probabilities 1 / (1 + e^-s) and 1 / (1 + e^s), each to full precision."""
    # the exponent is at most zero: nothing overflows, and the smaller probability keeps its digits
    e = math.exp(-abs(s))
    small, large = e / (1.0 + e), 1.0 / (1.0 + e)
    return (large, small) if s > 0 else (small, large)


@njit()
def _probability_difference(s: float, a: float, b: float, a0: float, b0: float) -> float:
    """Return a - a0, computed from the smaller of the two probabilities a and b = 1 - a."""
    return b0 - b if s > 0 else a - a0


@njit()
def logistic_step(margin: float, s0: float, curvature: float) -> float:
    """Return log-odds s of the a that minimizes a ln a + (1-a) ln(1-a) + margin a + curvature (a - a0)^2 / 2.

    Newton's method for s + margin + curvature (a(s) - a0) = 0 within a shrinking bracket: its derivative lies
    between 1 and 1 + curvature / 4, and in s, unlike in a, all derivatives are finite.
    """
    a0, b0 = _sigmoid_pair(s0)
    # a(s) - a0 lies in [-a0, b0], which brackets the root
    lo, hi = -margin - curvature * b0, -margin + curvature * a0
    s, change = min(max(s0, lo), hi), hi - lo
    for _ in range(200):
        a, b = _sigmoid_pair(s)
        f = s + margin + curvature * _probability_difference(s, a, b, a0, b0)
        if f > 0:
            hi = s
        else:
            lo = s
        new = s - f / (1.0 + curvature * a * b)
        # bisect unless the steps halve: Newton's method may cycle around the inflection point
        newton = lo <= new <= hi and abs(new - s) <= 0.5 * change
        if not newton:
            new = 0.5 * (lo + hi)
        change = abs(new - s)
        s = new
        # quadratic convergence: after a Newton step of relative size 1e-7 the next is about its square
        if change <= (1e-7 if newton else 1e-15) * (1.0 + abs(s)):
            break
    return s


@njit(fastmath={"contract"})
def logistic_sweep(
    indices: Any, data: Any, floats: Any, ints: Any, order: Any, active: int, w: Any, scale: Any,
    intercept: Any, first: int, last: int, damping: float, shuffle: bool, rng: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over order[:active] by exact steps for the logistic loss, positions first to last - 1.

    The dual variable is a = -y u in (0, 1), stored by its log-odds s; b = 1 - a. For each row the kernel
    minimizes a ln a + (1 - a) ln(1 - a) + y z a + c |x|^2 (a - a0)^2 / (2 lam) over a and updates w.
    The intercept is that of `sweep`.
    """
    size, begins = np.uintp(active), first == 0
    high, low, _ = _load_progress(begins, out)
    for k in range(np.uintp(min(active, PREFETCH_RECORDS_AHEAD)) if shuffle and begins else ZERO):
        _shuffle_step(order, k, size, rng)
    for k in range(np.uintp(first), np.uintp(last)):
        _prefetch_ahead(order, k, size, shuffle, rng, floats, ints, indices, data)
        r = np.uintp(order[k]) * EIGHT
        start, stop = np.uintp(ints[r + START]), np.uintp(ints[r + STOP])
        y, s0 = floats[r + LOWER], floats[r + SHIFT]
        z = dot(indices, data, w, start, stop) + intercept[0]
        # derivative of the dual in a: log-odds + y z
        slope = s0 + y * z
        high, low = max(high, slope), min(low, slope)
        s = logistic_step(y * z, s0, floats[r + INVERSE])
        (a0, b0), (a, b) = _sigmoid_pair(s0), _sigmoid_pair(s)
        difference = _probability_difference(s, a, b, a0, b0)
        # a damped step must keep both probabilities positive
        if damping != 1.0 and a0 + damping * difference > 0 and b0 - damping * difference > 0:
            difference *= damping
            s = math.log((a0 + difference) / (b0 - difference))
            a, b = _sigmoid_pair(s)
            difference = _probability_difference(s, a, b, a0, b0)
        if s != s0:
            floats[r + SHIFT], floats[r + U] = s, -y * a
            out[N_MOVES] += 1
            # u changes by -y (a - a0)
            t = -y * difference * floats[r + STEP]
            _update_w(indices, data, w, scale, start, stop, t)
            intercept[0] -= t * intercept[1]
    _store_progress(high, low, size, last == active, active, out)
    return active
