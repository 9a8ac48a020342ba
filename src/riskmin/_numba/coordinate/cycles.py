"""Coordinate descent on a quadratic model, over sparse or dense columns of X or over a Gram matrix.

Each kernel minimizes, over the w_j of the given columns, a quadratic function of the scores plus

    sum_j absolute_j |w_j| + square_j w_j^2 / 2   for lower_j <= w_j <= upper_j,

one coordinate at a time. The rows of `terms` are absolute, square, lower and upper. Sparse columns are given
by ends, rows and values: column j has the entries ends[j] to ends[j + 1] of rows and values. Sums are in
float64, also for float32 data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit

# unsigned constants for index arithmetic: mixing int64 and uint64 gives float64 in Numba
ZERO, ONE, TWO, THREE, FOUR = (np.uintp(k) for k in range(5))


@njit(inline="always")
def _coordinate_minimizer(
    w: float, g: float, h: float, absolute: float, square: float, lower: float, upper: float
) -> float:
    """Return the minimizer in one coordinate, where the smooth part has slope g and curvature h at w.

        argmin_v g (v - w) + h (v - w)^2 / 2 + absolute |v| + square v^2 / 2   over [lower, upper]

    A column of zeros has g = h = 0, and its w_j becomes zero.
    """
    # a positive floor: 0 / 0 would be NaN for a column of zeros
    h = max(h, 1e-300)
    # shrink h w - g towards zero by `absolute`, then divide by the total curvature
    numerator = h * w - g
    if numerator > absolute:
        numerator -= absolute
    elif numerator < -absolute:
        numerator += absolute
    else:
        numerator = 0.0
    return min(max(numerator / (h + square), lower), upper)


EPOCH, COLUMN, WORST_SLOPE, INTERCEPT_SHIFT, NONZERO_ONLY = range(5)
"""Slots of `state`, which an interrupted call hands to the next one.

The epoch, the next column, the largest slope of this epoch, the sum of the intercept shifts, and whether the
epoch visits only the nonzero w_j.
"""


# ---------------------------------------------------------------- sparse columns
@njit()
def count(indices: Any, out: Any) -> None:
    """Add to out[j] how often index j occurs."""
    for k in range(len(indices)):
        out[indices[k]] += 1


@njit()
def copy_csr_columns(
    indptr: Any, indices: Any, data: Any, first: int, last: int, next_free: Any, rows: Any, values: Any
) -> None:  # fmt: skip
    """Copy a range of rows of a CSR matrix into columns.

    next_free[j] is where the next entry of column j goes in rows and values; ranges are passed in order.
    """
    for i in range(np.uintp(first), np.uintp(last)):
        for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + ONE])):
            j = indices[k]
            rows[next_free[j]] = i
            values[next_free[j]] = data[k]
            next_free[j] += 1


@njit(fastmath={"contract"})
def scale_columns(
    ends: Any, rows: Any, values: Any, columns: Any, scale: Any, r: Any, begin: Any, out: Any, h: Any,
    g: Any, place: int,
) -> int:  # fmt: skip
    """Copy the entries of the columns, times the scale of their rows, to out[place:], column by column.

    begin[k] receives where column k begins, h[k] the sum of its squares, and g[k] its inner product with r.
    Returns the place after the last entry.
    """
    position = np.uintp(place)
    for k in range(len(columns)):
        begin[k], s, t = position, 0.0, 0.0
        for e in range(np.uintp(ends[columns[k]]), np.uintp(ends[columns[k] + 1])):
            out[position] = scale[rows[e]] * values[e]
            # the rounded value (out may be float32), so that h and g fit the stored column
            v = out[position]
            s += v * v
            t += v * r[rows[e]]
            position += ONE
        h[k], g[k] = s, t
    return int(position)


@njit()
def sparse_scores(ends: Any, rows: Any, values: Any, columns: Any, w: Any, z: Any) -> None:
    """Compute z += X w over the columns."""
    for k in range(len(columns)):
        if w[k] != 0.0:
            for e in range(np.uintp(ends[columns[k]]), np.uintp(ends[columns[k] + 1])):
                z[rows[e]] += w[k] * values[e]


@njit(inline="always", fastmath={"contract"})
def _dot(values: Any, rows: Any, r: Any, position: Any, first: Any, n: Any) -> float:
    """Return sum_e values[position + e] r[rows[first + e]] over n entries.

    Four partial sums, so that no addition waits for the previous one.
    """
    a = b = c = d = 0.0
    e, last = ZERO, n - n % FOUR
    while e < last:
        a += values[position + e] * r[rows[first + e]]
        b += values[position + e + ONE] * r[rows[first + e + ONE]]
        c += values[position + e + TWO] * r[rows[first + e + TWO]]
        d += values[position + e + THREE] * r[rows[first + e + THREE]]
        e += FOUR
    while e < n:
        a += values[position + e] * r[rows[first + e]]
        e += ONE
    return (a + b) + (c + d)


@njit(fastmath={"contract"})
def sparse_epochs(
    ends: Any, rows: Any, columns: Any, begin: Any, values: Any, r: Any, h: Any, w: Any,
    terms: Any, offset: Any, shift: Any, tol: float, epochs: int, active: Any, state: Any, max_entries: int,
) -> bool:  # fmt: skip
    """Cycle over the columns until no slope met was larger than tol in a full cycle, or for `epochs` cycles.

    The values are those of `scale_columns`, scaled by the square roots of the curvatures; r is the slope of
    the model in the scores over these roots, so that the curvature in the scaled scores is one. offset[k] is
    the exact slope minus that of rounded values, and is added to each slope. With an intercept, `shift` holds
    the roots, and all scores are shifted once per epoch; without one it is empty. After a full cycle only the
    nonzero w_j are visited, until they have converged.

    After about `max_entries` entries the kernel returns, to be called again with the same `active` (all true
    at first) and `state` (zeros at first). Returns whether it is done.
    """
    epoch, k, worst, total_shift, full = (
        int(state[EPOCH]),
        int(state[COLUMN]),
        state[WORST_SLOPE],
        state[INTERCEPT_SHIFT],
        not state[NONZERO_ONLY],
    )
    total, entries_left, done = 0.0, max_entries, False
    # |shift|^2 is the curvature in the intercept
    for i in range(len(shift)):
        total += shift[i] * shift[i]
    while epoch < epochs and not done:
        while k < len(columns) and entries_left > 0:
            if full or active[k]:
                first, position = np.uintp(ends[columns[k]]), np.uintp(begin[k])
                n = np.uintp(ends[columns[k] + 1]) - first
                entries_left -= int(n) + 1
                # slope of the smooth part in w_k; then the exact minimizer
                g = _dot(values, rows, r, position, first, n) + offset[k]
                new = _coordinate_minimizer(w[k], g, h[k], terms[0, k], terms[1, k], terms[2, k], terms[3, k])
                step = new - w[k]
                if step != 0.0:
                    w[k] = new
                    # the slope that the step removed
                    worst = max(worst, abs(step) * (h[k] + terms[1, k]))
                    for e in range(n):
                        r[rows[first + e]] += step * values[position + e]
                active[k] = new != 0.0
            k += 1
        if k < len(columns):
            break
        if total > 0.0:
            step = 0.0
            for i in range(len(r)):
                # exact minimizer over the intercept: -(shift' r) / |shift|^2
                step -= r[i] * shift[i]
            step /= total
            total_shift += step
            worst = max(worst, abs(step) * total)
            for i in range(len(r)):
                r[i] += step * shift[i]
        epoch += 1
        # converged only if a full cycle found no large slope
        done = worst <= tol and full
        full = worst <= tol
        if epoch < epochs and not done:
            k, worst = 0, 0.0
    state[EPOCH], state[COLUMN], state[WORST_SLOPE], state[INTERCEPT_SHIFT], state[NONZERO_ONLY] = (
        epoch,
        k,
        worst,
        total_shift,
        not full,
    )
    return done or epoch == epochs


@njit()
def add_columns(ends: Any, rows: Any, columns: Any, begin: Any, values: Any, step: Any, out: Any) -> None:
    """Compute out += (scaled columns) @ step."""
    for k in range(len(columns)):
        first, position = np.uintp(ends[columns[k]]), np.uintp(begin[k])
        if step[k] != 0.0:
            for e in range(np.uintp(ends[columns[k] + 1]) - first):
                out[rows[first + e]] += step[k] * values[position + e]


@njit(fastmath={"contract"})
def scaled_pullback(ends: Any, rows: Any, columns: Any, begin: Any, values: Any, r: Any, out: Any) -> None:
    """Compute out = (scaled columns)' r."""
    for k in range(len(columns)):
        first = np.uintp(ends[columns[k]])
        out[k] = _dot(values, rows, r, np.uintp(begin[k]), first, np.uintp(ends[columns[k] + 1]) - first)


@njit(fastmath={"contract"})
def csr_gram(
    indptr: Any, indices: Any, data: Any, place: Any, d: Any, start_row: int, stop_row: int, first: int,
    column: Any, value: Any, squares: Any, G: Any,
) -> None:  # fmt: skip
    """Add the products of a range of rows of a CSR matrix to G, without copies of its columns.

    Column j has row place[j] - first of G if place[j] >= first, column place[j] if that is >= 0. Each pair of
    different entries of a row is added once, and pairs of equal ones to `squares`: the matrix of the columns
    from `first` on is G + G' + diag(squares) there. Hence entries may be in any order.
    `column` and `value` are buffers for the entries of the longest row.
    """
    longest = len(column)
    for i in range(start_row, stop_row):
        # the columns from `first` on, then, from behind, the others
        n_new, n_old = 0, longest
        for k in range(np.intp(indptr[i]), np.intp(indptr[i + 1])):
            j = place[indices[k]]
            if j >= first:
                column[n_new], value[n_new] = j, data[k]
                n_new += 1
            elif j >= 0:
                n_old -= 1
                column[n_old], value[n_old] = j, data[k]
        for a in range(n_new):
            row, v = G[column[a] - first], d[i] * value[a]
            squares[column[a] - first] += v * value[a]
            for b in range(a):
                row[column[b]] += v * value[b]
            for b in range(n_old, longest):
                row[column[b]] += v * value[b]


# ---------------------------------------------------------------- dense
@njit()
def gather_columns(X: Any, columns: Any, scale: Any, out: Any) -> None:
    """Compute out[i, k] = scale[i] X[i, columns[k]] for X in C order, or a slice of rows of such."""
    for i in range(len(out)):
        for k in range(len(columns)):
            out[i, k] = scale[i] * X[i, columns[k]]


@njit()
def scale_rows(X: Any, scale: Any, out: Any) -> None:
    """Compute out[i] = scale[i] X[i], which takes a third of the time of `gather_columns`."""
    for i in range(len(out)):
        row, target = X[i], out[i]
        for k in range(len(row)):
            target[k] = scale[i] * row[k]


@njit(fastmath={"contract", "reassoc", "nsz"})
def dense_epochs(
    T: Any, r: Any, d: Any, h: Any, w: Any, terms: Any, total: float, tol: float, epochs: int, state: Any,
    max_entries: int,
) -> bool:  # fmt: skip
    """Cycle over the rows of T (columns of X) until no slope was larger than tol, or for `epochs` cycles.

    r is the slope of the model in the scores, and d its curvature. If total = sum(d) > 0, all scores are
    shifted once per epoch. The kernel returns after about `max_entries` entries and goes on as
    `sparse_epochs` does.
    """
    epoch, k, worst, shift = int(state[EPOCH]), int(state[COLUMN]), state[WORST_SLOPE], state[INTERCEPT_SHIFT]
    n, entries_left, done = len(r), max_entries, False
    while epoch < epochs and not done:
        while k < len(T) and entries_left > 0:
            entries_left -= n + 1
            # slope of the smooth part in w_k; then the exact minimizer
            g = 0.0
            for i in range(n):
                g += T[k, i] * r[i]
            new = _coordinate_minimizer(w[k], g, h[k], terms[0, k], terms[1, k], terms[2, k], terms[3, k])
            step = new - w[k]
            if step != 0.0:
                w[k] = new
                # the slope that the step removed
                worst = max(worst, abs(step) * (h[k] + terms[1, k]))
                for i in range(n):
                    # the slope in the scores changes by curvature times change of the score
                    r[i] += d[i] * (step * T[k, i])
            k += 1
        # the budget of entries is used up: the next call continues at column k
        if k < len(T):
            break
        if total > 0.0:
            step = 0.0
            for i in range(n):
                # exact minimizer over the intercept: -sum(r) / sum(d)
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
    state[EPOCH], state[COLUMN], state[WORST_SLOPE], state[INTERCEPT_SHIFT] = epoch, k, worst, shift
    return done or epoch == epochs


# ---------------------------------------------------------------- Gram matrices
@njit(fastmath={"contract"})
def gram_epochs(
    G: Any, g: Any, w: Any, terms: Any, tol: float, epochs: int, active: Any
) -> tuple[float, int]:
    """Cycle as `sparse_epochs` does, where g is the slope of the model in w and G, symmetric, its Hessian.

    Returns the largest slope of the last epoch, and the number of epochs.
    """
    m, full, worst = len(w), True, 0.0
    for epoch in range(epochs):
        worst = 0.0
        for k in range(m):
            if not (full or active[k]):
                continue
            new = _coordinate_minimizer(
                w[k], g[k], G[k, k], terms[0, k], terms[1, k], terms[2, k], terms[3, k]
            )
            step = new - w[k]
            if step != 0.0:
                w[k] = new
                worst = max(worst, abs(step) * (G[k, k] + terms[1, k]))
                for j in range(m):
                    # slopes of all coordinates after the step
                    g[j] += step * G[k, j]
            active[k] = new != 0.0
        # nonzero coordinates have converged: check all of them once more
        if worst <= tol:
            if full:
                return worst, epoch + 1
            full = True
        else:
            full = False
    return worst, epochs
