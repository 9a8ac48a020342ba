"""Coordinate descent on a quadratic model, over sparse or dense columns of X or over a Gram matrix.

All of them minimize, over the w_j of some columns, a quadratic function of the scores plus

    sum_j absolute_j |w_j| + square_j w_j^2 / 2   for lower_j <= w_j <= upper_j,

one coordinate at a time. Sums are in float64, also for float32 data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit

ZERO, ONE, TWO, THREE, FOUR = (np.uintp(k) for k in range(5))


@njit(inline="always")
def _best(w: float, g: float, h: float, absolute: float, square: float, lower: float, upper: float) -> float:
    """The minimizer in one coordinate, where the smooth part has slope g and curvature h at w.

    A column of zeros has neither, and its w_j belongs at zero.
    """
    h = max(h, 1e-300)
    v = h * w - g
    if v > absolute:
        v -= absolute
    elif v < -absolute:
        v += absolute
    else:
        v = 0.0
    return min(max(v / (h + square), lower), upper)


EPOCH, AT, WORST, MOVED, PART = range(5)
"""Where cycles stopped: the epoch, the column, the worst slope of the epoch, the shift of the scores; and
whether it visits the nonzero w_j alone."""


# ---------------------------------------------------------------- sparse columns
@njit()
def count(indices: Any, out: Any) -> None:
    """Add to out how often each index occurs."""
    for k in range(len(indices)):
        out[indices[k]] += 1


@njit()
def pick_columns(
    indptr: Any, indices: Any, data: Any, first: int, last: int, place: Any, begins: Any, ends: Any,
    rows: Any, values: Any,
) -> None:  # fmt: skip
    """Copy columns out of a CSR matrix: column j of place[j] >= 0 fills its part of rows and values.

    Rows are those of a range, one range after the other. `ends` holds where each of these parts begins, and
    afterwards where it ends. Of numbers that are stored twice, the sum is taken.
    """
    for i in range(np.uintp(first), np.uintp(last)):
        for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + ONE])):
            slot = place[indices[k]]
            if slot >= 0:
                at = ends[slot]
                if at > begins[slot] and rows[at - 1] == i:
                    values[at - 1] += data[k]
                else:
                    rows[at] = i
                    values[at] = data[k]
                    ends[slot] = at + 1


@njit(fastmath={"contract"})
def scale_columns(
    start: Any, stop: Any, rows: Any, values: Any, columns: Any, scale: Any, r: Any, begin: Any, out: Any,
    h: Any, g: Any, place: int,
) -> int:  # fmt: skip
    """Copy the numbers of the columns, each times the scale of its row, one column after the other.

    `begin` gets where each of them begins, h the sum of its squares, and g its product with r. They are
    copied to that place, and the next one is returned.
    """
    at = np.uintp(place)
    for k in range(len(columns)):
        begin[k], s, t = at, 0.0, 0.0
        for e in range(np.uintp(start[columns[k]]), np.uintp(stop[columns[k]])):
            out[at] = scale[rows[e]] * values[e]
            v = out[at]
            s += v * v
            t += v * r[rows[e]]
            at += ONE
        h[k], g[k] = s, t
    return int(at)


@njit(fastmath={"contract"})
def sparse_pull(start: Any, stop: Any, rows: Any, values: Any, columns: Any, r: Any, out: Any) -> None:
    """Out = X' r, over the columns."""
    for k in range(len(columns)):
        s = 0.0
        for at in range(np.uintp(start[columns[k]]), np.uintp(stop[columns[k]])):
            s += r[rows[at]] * values[at]
        out[k] = s


@njit()
def sparse_scores(start: Any, stop: Any, rows: Any, values: Any, columns: Any, w: Any, z: Any) -> None:
    """Z += X w, over the columns."""
    for k in range(len(columns)):
        if w[k] != 0.0:
            for at in range(np.uintp(start[columns[k]]), np.uintp(stop[columns[k]])):
                z[rows[at]] += w[k] * values[at]


@njit(inline="always", fastmath={"contract"})
def _dot(values: Any, rows: Any, r: Any, at: Any, first: Any, n: Any) -> float:
    """The product of n values with r at their rows, in four sums, so that none waits for itself."""
    a = b = c = d = 0.0
    e, last = ZERO, n - n % FOUR
    while e < last:
        a += values[at + e] * r[rows[first + e]]
        b += values[at + e + ONE] * r[rows[first + e + ONE]]
        c += values[at + e + TWO] * r[rows[first + e + TWO]]
        d += values[at + e + THREE] * r[rows[first + e + THREE]]
        e += FOUR
    while e < n:
        a += values[at + e] * r[rows[first + e]]
        e += ONE
    return (a + b) + (c + d)


@njit(fastmath={"contract"})
def sparse_epochs(
    start: Any, stop: Any, rows: Any, columns: Any, begin: Any, values: Any, r: Any, h: Any, w: Any,
    terms: Any, offset: Any, shift: Any, tol: float, track: Any, active: Any, state: Any, most: int,
) -> bool:  # fmt: skip
    """Cycles over the columns, until no slope was worse than tol when it was met, or track is full.

    It gets w and the shift after each cycle, a row each; the first row is for those before. The values are
    those of `scale_columns`, by the roots of the curvatures, and r is the slope of the model in the scores
    over these roots: so its curvature is one everywhere. The offset, what the exact slopes are above those
    of rounded values, is added to each. With an intercept, shift holds the roots, and all scores are shifted
    too, once an epoch; it is empty without. After a full cycle only the nonzero w_j are visited, until they
    are done.

    After `most` numbers or so it stops, to be called again with what it left in `active`, all true at first,
    and `state`, all zero at first. Returns whether it is done.
    """
    epoch, k, worst, moved, full = (
        int(state[EPOCH]),
        int(state[AT]),
        state[WORST],
        state[MOVED],
        not state[PART],
    )
    total, epochs, left, done = 0.0, len(track) - 1, most, False
    for i in range(len(shift)):
        total += shift[i] * shift[i]
    while epoch < epochs and not done:
        while k < len(columns) and left > 0:
            if full or active[k]:
                first, at = np.uintp(start[columns[k]]), np.uintp(begin[k])
                n = np.uintp(stop[columns[k]]) - first
                left -= int(n) + 1
                g = _dot(values, rows, r, at, first, n) + offset[k]
                new = _best(w[k], g, h[k], terms[0, k], terms[1, k], terms[2, k], terms[3, k])
                step = new - w[k]
                if step != 0.0:
                    w[k] = new
                    worst = max(worst, abs(step) * (h[k] + terms[1, k]))
                    for e in range(n):
                        r[rows[first + e]] += step * values[at + e]
                active[k] = new != 0.0
            k += 1
        if k < len(columns):
            break
        if total > 0.0:
            step = 0.0
            for i in range(len(r)):
                step -= r[i] * shift[i]
            step /= total
            moved += step
            worst = max(worst, abs(step) * total)
            for i in range(len(r)):
                r[i] += step * shift[i]
        for j in range(len(w)):
            track[epoch + 1, j] = w[j]
        track[epoch + 1, len(w)] = moved
        epoch += 1
        done = worst <= tol and full
        full = worst <= tol
        if epoch < epochs and not done:
            k, worst = 0, 0.0
    state[EPOCH], state[AT], state[WORST], state[MOVED], state[PART] = epoch, k, worst, moved, not full
    return done or epoch == epochs


@njit()
def add_columns(
    start: Any, stop: Any, rows: Any, columns: Any, begin: Any, values: Any, step: Any, out: Any
) -> None:
    """Add the scaled columns times their steps to out."""
    for k in range(len(columns)):
        first, at = np.uintp(start[columns[k]]), np.uintp(begin[k])
        if step[k] != 0.0:
            for e in range(np.uintp(stop[columns[k]]) - first):
                out[rows[first + e]] += step[k] * values[at + e]


@njit()
def row_sizes(start: Any, stop: Any, rows: Any, values: Any, columns: Any, out: Any) -> None:
    """Add to out how many numbers of the columns are in each row."""
    for k in range(len(columns)):
        for at in range(np.uintp(start[columns[k]]), np.uintp(stop[columns[k]])):
            out[rows[at]] += 1


@njit()
def to_rows(
    start: Any, stop: Any, rows: Any, values: Any, columns: Any, first: int, ends: Any, which: Any, value: Any
) -> None:
    """Turn columns into rows, whose places begin at `ends`, and afterwards end there.

    The columns are numbered from `first` on; which of them a number is of, and the number itself, are put
    into their places.
    """
    for k in range(len(columns)):
        for at in range(np.uintp(start[columns[k]]), np.uintp(stop[columns[k]])):
            i = rows[at]
            which[ends[i]], value[ends[i]] = first + k, values[at]
            ends[i] += 1


@njit(fastmath={"contract"})
def sparse_gram(
    which: Any, value: Any, ends: Any, d: Any, start_row: int, stop_row: int, first: int, G: Any
) -> None:
    """Add X' D X to the rows of G from the first on, up to its diagonal: the products of a range of rows."""
    begin = ends[start_row - 1] if start_row else 0
    for i in range(start_row, stop_row):
        for a in range(ends[i] - 1, begin - 1, -1):  # the columns of a row are in order, the new ones last
            j = which[a]
            if j < first:
                break
            v = d[i] * value[a]
            for b in range(begin, a + 1):
                G[j, which[b]] += v * value[b]
        begin = ends[i]


# ---------------------------------------------------------------- dense
@njit()
def gather(X: Any, columns: Any, scale: Any, out: Any) -> None:
    """Some columns of X, which is in C order or leaves out rows of such, each row times its scale."""
    for i in range(len(out)):
        for k in range(len(columns)):
            out[i, k] = scale[i] * X[i, columns[k]]


@njit(fastmath={"contract", "reassoc", "nsz"})
def dense_epochs(
    T: Any, r: Any, d: Any, h: Any, w: Any, terms: Any, total: float, tol: float, epochs: int, state: Any,
    most: int,
) -> bool:  # fmt: skip
    """Cycles over the rows of T, columns of X, until no slope was worse than tol, or for so many epochs.

    r is the slope of the model in the scores, and d its curvature. With total > 0, the sum of d, all scores
    are shifted too, once an epoch. It stops after `most` numbers or so, and goes on as `sparse_epochs` does.
    """
    epoch, k, worst, shift = int(state[EPOCH]), int(state[AT]), state[WORST], state[MOVED]
    n, left, done = len(r), most, False
    while epoch < epochs and not done:
        while k < len(T) and left > 0:
            left -= n + 1
            g = 0.0
            for i in range(n):
                g += T[k, i] * r[i]
            new = _best(w[k], g, h[k], terms[0, k], terms[1, k], terms[2, k], terms[3, k])
            step = new - w[k]
            if step != 0.0:
                w[k] = new
                worst = max(worst, abs(step) * (h[k] + terms[1, k]))
                for i in range(n):
                    r[i] += d[i] * (step * T[k, i])
            k += 1
        if k < len(T):
            break
        if total > 0.0:
            step = 0.0
            for i in range(n):
                step -= r[i]
            step /= total
            shift += step
            worst = max(worst, abs(step) * total)
            for i in range(n):
                r[i] += step * d[i]
        epoch += 1
        done = worst <= tol
        if epoch < epochs and not done:
            k, worst = 0, 0.0
    state[EPOCH], state[AT], state[WORST], state[MOVED] = epoch, k, worst, shift
    return done or epoch == epochs


# ---------------------------------------------------------------- Gram matrices
@njit(fastmath={"contract"})
def gram_epochs(
    G: Any, g: Any, w: Any, terms: Any, tol: float, epochs: int, active: Any
) -> tuple[float, int]:
    """As `sparse_epochs`, where g is the slope of the model in w, and G, symmetric, its curvature."""
    m, full, worst = len(w), True, 0.0
    for epoch in range(epochs):
        worst = 0.0
        for k in range(m):
            if not (full or active[k]):
                continue
            new = _best(w[k], g[k], G[k, k], terms[0, k], terms[1, k], terms[2, k], terms[3, k])
            step = new - w[k]
            if step != 0.0:
                w[k] = new
                worst = max(worst, abs(step) * (G[k, k] + terms[1, k]))
                for j in range(m):
                    g[j] += step * G[k, j]
            active[k] = new != 0.0
        if worst <= tol:
            if full:
                return worst, epoch + 1
            full = True
        else:
            full = False
    return worst, epochs
