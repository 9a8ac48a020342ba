r"""Sweeps of dual coordinate ascent with exact steps, for L2.

A row's numbers lie in one record of 64 bytes, a line of the cache, and its entries in X are `start` to
`stop` of the stored ones. What costs is waiting for memory, since rows are visited at random: records and
entries are asked for some visits ahead. Dense rows have None for indices, and weights that are all one None
for a scale: what is not needed is not compiled.
The helpers are inlined by Numba: as calls, with arrays as arguments, they cost up to a sixth of a visit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.prefetch import prefetch

ZERO, ONE, TWO, THREE, FOUR, EIGHT = (np.uintp(k) for k in (0, 1, 2, 3, 4, 8))
LOWER, UPPER, SHIFT, INVERSE, U, STEP, START, STOP = (np.uintp(k) for k in range(8))
"""The record of a row: bounds of u, the conjugate's shift, 1 / (square + bend), u, and c / lam.

With the logistic loss the label is in the place of the lower bound, the bend in that of its inverse, and
the log-odds of -y u in that of the shift: u alone does not tell 1 - 1e-20 from 1.
"""
HIGH, LOW, VISITS, MOVES, TOP, BOTTOM, KEPT = range(7)
"""What a sweep leaves: the largest and least slopes that it met, its visits, the coordinates it moved.

The last three go from one piece of a sweep to the next: its slopes so far, and how many rows stay active.
"""

FAR, NEAR = 12, 5
"""How many visits ahead a record and a row's entries are asked for.

The distances are not tuned; without it a visit takes 1.4 to 3.6 times as long.
"""
LINE = 64
TIGHT = 0.2
"""A row at a bound is left out if it is held there by more than this part of the most that others are pulled.

LIBLINEAR takes all of it; but what is left out by mistake is back after the next check, so less is quicker.
"""

_prefetch = prefetch(3)


# ---------------------------------------------------------------- rows
@njit(fastmath={"contract"})
def _sparse_dot(indices: Any, data: Any, w: Any, start: Any, stop: Any) -> float:
    """In four sums, for no addition to wait for the one before it."""
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
    z = 0.0
    for j in range(np.uintp(len(w))):
        z += data[start + j] * w[j]
    return z


@njit(inline="always")
def dot(indices: Any, data: Any, w: Any, start: Any, stop: Any) -> float:
    """The product of a row with w."""
    if indices is None:
        return _dense_dot(data, w, start)
    return _sparse_dot(indices, data, w, start, stop)


@njit(inline="always", fastmath={"contract"})
def _move(indices: Any, data: Any, w: Any, scale: Any, start: Any, stop: Any, t: float) -> None:
    """W -= t x / m, the scale being 1 / m."""
    for k in range(start, stop):
        j = k - start if indices is None else indices[k]
        if scale is None:
            w[j] -= t * data[k]
        else:
            w[j] -= t * data[k] * scale[j]


@njit(inline="always")
def _draw(order: Any, k: Any, active: Any, rng: Any) -> None:
    """Put one of order[k:active], drawn at random, in place k."""
    x = rng[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    rng[0] = x
    x = (x * np.uint64(2685821657736338717)) >> np.uint64(32)
    j = k + np.uintp((x * np.uint64(active - k)) >> np.uint64(32))
    order[k], order[j] = order[j], order[k]


@njit(inline="always")
def _look_ahead(
    order: Any, k: Any, active: Any, shuffle: bool, rng: Any, flat: Any, places: Any, indices: Any, data: Any
) -> None:
    """Draw the row of some visits from now, and ask for its record; for the entries of a nearer one."""
    j = k + np.uintp(FAR)
    if j < active:
        if shuffle:
            _draw(order, j, active, rng)
        _prefetch(flat, np.intp(order[j]) * 8)
    j = k + np.uintp(NEAR)
    if j < active:
        at = np.uintp(order[j]) * EIGHT
        start, stop = np.intp(places[at + START]), np.intp(places[at + STOP])
        step = LINE // data.itemsize
        _prefetch(data, start)
        _prefetch(data, min(start + step, stop - 1))
        _prefetch(data, stop - 1)
        for e in range(start + 2 * step, stop - 1, step):
            _prefetch(data, e)
        if indices is not None:
            _prefetch(indices, start)
            _prefetch(indices, stop - 1)
            for e in range(start + LINE // indices.itemsize, stop - 1, LINE // indices.itemsize):
                _prefetch(indices, e)


@njit(inline="always")
def _so_far(begins: bool, out: Any) -> tuple[float, float, Any]:
    """The slopes that the pieces of a sweep before this one met, and how many rows they kept."""
    if begins:
        out[TOP] = out[BOTTOM] = out[KEPT] = 0.0
    return out[TOP], out[BOTTOM], np.uintp(out[KEPT])


@njit(inline="always")
def _leave(high: float, low: float, kept: Any, ends: bool, active: int, out: Any) -> None:
    """Leave them to the next piece; after the last one, to whoever asked for the sweep."""
    out[TOP], out[BOTTOM], out[KEPT] = high, low, kept
    if ends:
        out[HIGH], out[LOW] = high, low
        out[VISITS] += active


# ---------------------------------------------------------------- quadratic conjugates
@njit(inline="always")
def quadratic_step(
    slope: float, u: float, epsilon: float, inverse: float, lower: float, upper: float
) -> float:
    """The v in [lower, upper] with the least slope (v - u) + epsilon |v| + (v - u)^2 / (2 inverse)."""
    v, most = u - slope * inverse, epsilon * inverse
    v = v - min(max(v, -most), most)
    return min(max(v, lower), upper)


@njit(inline="always")
def _sides(slope: float, u: float, epsilon: float) -> tuple[float, float]:
    """The slopes of the dual on the left and on the right of u, when that of its smooth part is known."""
    return slope + (epsilon if u > 0 else -epsilon), slope + (epsilon if u >= 0 else -epsilon)


@njit(fastmath={"contract"})
def sweep(
    indices: Any, data: Any, flat: Any, places: Any, order: Any, active: int, w: Any, scale: Any,
    first: int, last: int, damping: float, epsilon: float, square: float, shrink: bool, shuffle: bool,
    rng: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over order[:active] by exact steps, from one place to another; the rows that stay active.

    The pieces of a pass come one after the other, and the first one at place 0. The records are given twice,
    as numbers and as places.
    """
    size, begins = np.uintp(active), first == 0
    high, low, kept = _so_far(begins, out)
    above, below = TIGHT * (out[HIGH] or math.inf), TIGHT * (out[LOW] or -math.inf)
    for k in range(np.uintp(min(active, FAR)) if shuffle and begins else ZERO):
        _draw(order, k, size, rng)
    for k in range(np.uintp(first), np.uintp(last)):
        _look_ahead(order, k, size, shuffle, rng, flat, places, indices, data)
        i = order[k]
        r = np.uintp(i) * EIGHT
        lower, upper, u = flat[r + LOWER], flat[r + UPPER], flat[r + U]
        start, stop = np.uintp(places[r + START]), np.uintp(places[r + STOP])
        z = dot(indices, data, w, start, stop)
        slope = flat[r + SHIFT] - z + square * u
        left, right = _sides(slope, u, epsilon)
        pull = 0.0
        if right < 0 and u < upper:
            pull = right
            low = min(low, pull)
        elif left > 0 and u > lower:
            pull = left
            high = max(high, pull)
        elif shrink and (u == lower or left < below) and (u == upper or right > above):
            continue
        order[kept] = i
        kept += ONE
        if pull != 0.0:
            new = quadratic_step(slope, u, epsilon, flat[r + INVERSE], lower, upper)
            if damping != 1.0:
                new = min(max(u + damping * (new - u), lower), upper)
            if new != u:
                flat[r + U] = new
                out[MOVES] += 1
                _move(indices, data, w, scale, start, stop, flat[r + STEP] * (new - u))
    _leave(high, low, kept, last == active, active, out)
    return int(kept)


# ---------------------------------------------------------------- the logistic loss
@njit()
def _halves(s: float) -> tuple[float, float]:
    """The probabilities 1 / (1 + e^-s) and 1 / (1 + e^s), each to full precision."""
    e = math.exp(-abs(s))
    small, large = e / (1.0 + e), 1.0 / (1.0 + e)
    return (large, small) if s > 0 else (small, large)


@njit()
def _rise(s: float, a: float, b: float, a0: float, b0: float) -> float:
    """A - a0, from the smaller of the two halves."""
    return b0 - b if s > 0 else a - a0


@njit()
def logistic_step(margin: float, s0: float, bend: float) -> float:
    """The log-odds s of the a that minimizes a ln a + (1-a) ln(1-a) + margin a + bend (a - a0)^2 / 2.

    Newton's method for s + margin + bend (a(s) - a0) = 0, within a bracket that shrinks: its slope is
    between 1 and 1 + bend / 4, and in s, unlike in a, nothing is infinite.
    """
    a0, b0 = _halves(s0)
    lo, hi = -margin - bend * b0, -margin + bend * a0
    s, change = min(max(s0, lo), hi), hi - lo
    for _ in range(200):
        a, b = _halves(s)
        f = s + margin + bend * _rise(s, a, b, a0, b0)
        if f > 0:
            hi = s
        else:
            lo = s
        new = s - f / (1.0 + bend * a * b)
        newton = lo <= new <= hi and abs(new - s) <= 0.5 * change  # where it bends, they would go to and fro
        if not newton:
            new = 0.5 * (lo + hi)
        change = abs(new - s)
        s = new
        if change <= (1e-7 if newton else 1e-15) * (1.0 + abs(s)):  # Newton's next would be its square
            break
    return s


@njit(fastmath={"contract"})
def logistic_sweep(
    indices: Any, data: Any, flat: Any, places: Any, order: Any, active: int, w: Any, scale: Any,
    first: int, last: int, damping: float, shuffle: bool, rng: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over order[:active] by exact steps, from one place to another."""
    size, begins = np.uintp(active), first == 0
    high, low, _ = _so_far(begins, out)
    for k in range(np.uintp(min(active, FAR)) if shuffle and begins else ZERO):
        _draw(order, k, size, rng)
    for k in range(np.uintp(first), np.uintp(last)):
        _look_ahead(order, k, size, shuffle, rng, flat, places, indices, data)
        r = np.uintp(order[k]) * EIGHT
        start, stop = np.uintp(places[r + START]), np.uintp(places[r + STOP])
        y, s0 = flat[r + LOWER], flat[r + SHIFT]
        z = dot(indices, data, w, start, stop)
        pull = s0 + y * z
        high, low = max(high, pull), min(low, pull)
        s = logistic_step(y * z, s0, flat[r + INVERSE])
        (a0, b0), (a, b) = _halves(s0), _halves(s)
        rise = _rise(s, a, b, a0, b0)
        if damping != 1.0 and a0 + damping * rise > 0 and b0 - damping * rise > 0:
            rise *= damping
            s = math.log((a0 + rise) / (b0 - rise))
            a, b = _halves(s)
            rise = _rise(s, a, b, a0, b0)
        if s != s0:
            flat[r + SHIFT], flat[r + U] = s, -y * a
            out[MOVES] += 1
            _move(indices, data, w, scale, start, stop, -y * rise * flat[r + STEP])
    _leave(high, low, size, last == active, active, out)
    return active
