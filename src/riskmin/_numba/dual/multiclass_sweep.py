r"""Sweeps of dual block ascent for the multiclass max-margin loss, with L2 regularization.

The multipliers of a row, one per class, are a point beta of a simplex. A visit moves them to the optimum with
all other rows fixed: the projection onto the simplex of :math:`\beta + s / A`, for the slacks :math:`s_j =
\Delta_{yj} + z_j` and :math:`A = c\, |x|^2 / \lambda`. There is one sweep per layout of the weights.
For sparse rows, the weights of a feature are contiguous, padded to a multiple of four. For dense rows, the
weights of a class are contiguous, and classes far from attaining a row's maximum are left out, since each
costs an inner product. damping is None where it is 1, so that its code is not compiled.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.dual.sweep import CACHE_LINE_BYTES, PREFETCH_ENTRIES_AHEAD, _prefetch, _shuffle_step
from riskmin._numba.simplex_loops import simplex_shift

ZERO, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT = (np.uintp(k) for k in range(9))
ROWS_AHEAD = np.uintp(PREFETCH_ENTRIES_AHEAD)
CURVATURE, STEP_SIZE = ZERO, ONE
"""Columns of `terms`: the curvature A = c |x|^2 / lam, and the step size c / lam."""
MAX_VIOLATION, N_ROW_VISITS, N_ROW_MOVES, PARTIAL_MAX_VIOLATION, N_ROWS_KEPT = range(5)
"""Slots of `out`: the largest violation met in a sweep, the number of visits, the number of rows moved.

The last two carry a sweep over from one call to the next: its violation so far, and the number of rows that
stay active.
"""
MIN_MULTIPLIER_CHANGE = 4e-16
"""Smaller changes of a multiplier are rounding errors."""
SHRINK_VIOLATION_RATIO = 0.1
"""Shrinking threshold, as a fraction of the largest violation of the last sweep.

A class without a multiplier is left out if its slack is further than this below those with multipliers, and a
row if its only multiplier leads by more than this.
"""


# ---------------------------------------------------------------- one row
@njit(inline="always")
def row_step(
    beta: Any, slack: Any, k: Any, curvature: float, damping: Any, change: Any, workspace: Any
) -> bool:
    """Move the first k multipliers beta to their optimum and fill in their changes; return whether any moved.

    beta becomes the projection onto the simplex of beta + slack / curvature.
    """
    inverse, moved = 1.0 / curvature, False
    # `change` holds the point that is projected, then the changes of the multipliers
    for j in range(k):
        change[j] = beta[j] + slack[j] * inverse
    # threshold of the projection onto the simplex
    shift = simplex_shift(change, k, workspace)
    for j in range(k):
        # tiny changes are dropped, except those to exactly zero
        new, old = max(change[j] - shift, 0.0), beta[j]
        change[j] = 0.0
        if abs(new - old) > MIN_MULTIPLIER_CHANGE or (new == 0.0 and old > 0.0):
            change[j] = new - old
            beta[j] = new
            moved = True
    if damping is not None:
        _damp(beta, k, damping, change)
    return moved


@njit(inline="always")
def _damp(beta: Any, k: Any, damping: float, change: Any) -> None:
    """Scale the step by `damping`, which may exceed 1, reduced so that no multiplier falls below zero."""
    for j in range(k):
        if change[j] < 0.0:
            # largest factor that keeps beta_j >= 0
            damping = min(damping, (beta[j] - change[j]) / -change[j])
    for j in range(k):
        if change[j] != 0.0:
            old = beta[j] - change[j]
            beta[j] = max(old + damping * change[j], 0.0)
            change[j] = beta[j] - old


@njit(inline="always")
def row_violation(beta: Any, slack: Any, k: Any) -> tuple[float, float]:
    """Return the violation of a row's optimality conditions, and the lead of a single multiplier.

    The violation is the largest slack minus the least slack among classes with a multiplier > 0. If a single
    class has a multiplier, and the largest slack, its lead is the distance to the next slack, else 0. The
    largest slack is subtracted from all.
    """
    top = second = -math.inf
    low, n_positive = math.inf, 0
    for j in range(k):
        s = slack[j]
        # largest and second largest slack
        if s > top:
            top, second = s, top
        elif s > second:
            second = s
        if beta[j] > 0.0:
            low = min(low, s)
            n_positive += 1
    # slacks relative to the largest, as `_drop_classes` compares them
    for j in range(k):
        slack[j] -= top
    return top - low, (top - second if n_positive == 1 and low == top else 0.0)


@njit(inline="always")
def _drop_classes(active_classes: Any, i: Any, k: Any, row_beta: Any, slack: Any, threshold: float) -> Any:
    """Drop classes without a multiplier and with a slack below the threshold; return how many are left."""
    m = ZERO
    while m < k:
        if row_beta[m] == 0.0 and slack[m] < threshold:
            # swap the class behind the active ones
            k -= ONE
            active_classes[i, m], active_classes[i, k] = active_classes[i, k], active_classes[i, m]
            row_beta[m], slack[m] = row_beta[k], slack[k]
        else:
            m += ONE
    return k


@njit(inline="always")
def _load_progress(begins: bool, out: Any) -> tuple[float, Any]:
    """Return the violation that earlier calls of this sweep met, and the number of rows that they kept."""
    if begins:
        out[PARTIAL_MAX_VIOLATION] = out[N_ROWS_KEPT] = 0.0
    return out[PARTIAL_MAX_VIOLATION], np.uintp(out[N_ROWS_KEPT])


@njit(inline="always")
def _store_progress(violation: float, kept: Any, ends: bool, active: int, out: Any) -> None:
    """Store the sums of this call for the next one; after the last call, the results of the sweep."""
    out[PARTIAL_MAX_VIOLATION], out[N_ROWS_KEPT] = violation, kept
    if ends:
        out[MAX_VIOLATION] = violation
        out[N_ROW_VISITS] += active


# ---------------------------------------------------------------- sparse rows
@njit(inline="always")
def _slacks(indices: Any, data: Any, W: Any, start: Any, stop: Any, cost: Any, c: Any, slack: Any) -> None:
    """Compute slack_j = cost[c, j] + x @ W[:, j] for all classes, eight or four sums in registers."""
    k, j = np.uintp(len(slack)), ZERO
    while j < k:
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        # eight accumulators if at least eight classes are left, else four
        if j + EIGHT <= k:
            for e in range(start, stop):
                x = np.float64(data[e])
                f = np.uintp(indices[e])
                s0 += x * W[f, j]
                s1 += x * W[f, j + ONE]
                s2 += x * W[f, j + TWO]
                s3 += x * W[f, j + THREE]
                s4 += x * W[f, j + FOUR]
                s5 += x * W[f, j + FIVE]
                s6 += x * W[f, j + SIX]
                s7 += x * W[f, j + SEVEN]
            slack[j + FOUR] = s4 + cost[c, j + FOUR]
            slack[j + FIVE] = s5 + cost[c, j + FIVE]
            slack[j + SIX] = s6 + cost[c, j + SIX]
            slack[j + SEVEN] = s7 + cost[c, j + SEVEN]
        else:
            for e in range(start, stop):
                x = np.float64(data[e])
                f = np.uintp(indices[e])
                s0 += x * W[f, j]
                s1 += x * W[f, j + ONE]
                s2 += x * W[f, j + TWO]
                s3 += x * W[f, j + THREE]
        slack[j] = s0 + cost[c, j]
        slack[j + ONE] = s1 + cost[c, j + ONE]
        slack[j + TWO] = s2 + cost[c, j + TWO]
        slack[j + THREE] = s3 + cost[c, j + THREE]
        j += EIGHT


@njit(inline="always")
def _four_slacks(
    indices: Any, data: Any, W: Any, start: Any, stop: Any, cost: Any, c: Any, classes: Any, slack: Any
) -> None:
    """Compute the slacks of the four given classes, which may be equal."""
    a, b, g, d = classes[0], classes[1], classes[2], classes[3]
    s0 = s1 = s2 = s3 = 0.0
    for e in range(start, stop):
        x, f = np.float64(data[e]), np.uintp(indices[e])
        s0 += x * W[f, a]
        s1 += x * W[f, b]
        s2 += x * W[f, g]
        s3 += x * W[f, d]
    slack[0], slack[1], slack[2], slack[3] = (
        s0 + cost[c, a],
        s1 + cost[c, b],
        s2 + cost[c, g],
        s3 + cost[c, d],
    )


@njit(inline="always")
def _update_weights(
    indices: Any, data: Any, W: Any, start: Any, stop: Any, steps: Any, touched: Any, used: Any
) -> None:
    """Compute W[:, touched[m]] -= steps[m] x for the first `used` touched classes."""
    if used == TWO:  # the most frequent case
        a, b, s, t = touched[0], touched[1], steps[0], steps[1]
        for e in range(start, stop):
            x, f = np.float64(data[e]), np.uintp(indices[e])
            W[f, a] -= s * x
            W[f, b] -= t * x
        return
    for e in range(start, stop):
        x, f = np.float64(data[e]), np.uintp(indices[e])
        for m in range(used):
            W[f, touched[m]] -= steps[m] * x


@njit(inline="always")
def _prefetch_row(indptr: Any, indices: Any, data: Any, row: Any) -> None:
    """Prefetch the entries of a row to be visited soon."""
    for e in range(np.intp(indptr[row]), np.intp(indptr[row + ONE]), CACHE_LINE_BYTES // data.itemsize):
        _prefetch(data, e)
        _prefetch(indices, e)


@njit(fastmath={"contract"})
def sweep(
    indptr: Any, indices: Any, data: Any, W: Any, beta: Any, active_classes: Any, counts: Any, y: Any,
    terms: Any, cost: Any, order: Any, active: int, first: int, last: int, damping: Any, shrink: bool,
    shuffle: bool, rng: Any, full: Any, slack: Any, change: Any, workspace: Any, row_beta: Any, touched: Any,
    out: Any,
) -> int:  # fmt: skip
    """One pass over positions first to last - 1 of order[:active]; return the number of rows kept active.

    The weights W are (features, classes). The calls of a sweep follow each other, the first one with first =
    0. The first counts[i] classes in active_classes[i] are those considered for row i. full, slack, change,
    workspace, row_beta and touched are workspaces with one entry per class.
    """
    size, begins = np.uintp(active), first == 0
    (max_violation, kept), last_violation = _load_progress(begins, out), (out[MAX_VIOLATION] or math.inf)
    for v in range(np.uintp(min(active, PREFETCH_ENTRIES_AHEAD + 1)) if shuffle and begins else ZERO):
        _shuffle_step(order, v, size, rng)
    for v in range(np.uintp(first), np.uintp(last)):
        # the order is drawn one position beyond the prefetched row
        ahead = min(v + ROWS_AHEAD, size - ONE)
        if shuffle and ahead + ONE < size:
            _shuffle_step(order, ahead + ONE, size, rng)
        _prefetch_row(indptr, indices, data, np.uintp(order[ahead]))
        i = np.uintp(order[v])
        start, stop, k = np.uintp(indptr[i]), np.uintp(indptr[i + ONE]), np.uintp(counts[i])
        # few active classes: only their columns of W are read
        if k <= FOUR:
            # pad with the last class: `_four_slacks` always takes four
            for m in range(FOUR):
                touched[m] = active_classes[i, min(m, k - ONE)]
            _four_slacks(indices, data, W, start, stop, cost, y[i], touched, slack)
        else:
            _slacks(indices, data, W, start, stop, cost, y[i], full)
            for m in range(k):
                slack[m] = full[active_classes[i, m]]
        for m in range(k):
            row_beta[m] = beta[i, active_classes[i, m]]
        violation, lead = row_violation(row_beta, slack, k)
        # a row with a single multiplier that leads by more than the violations is left out
        if shrink and lead > SHRINK_VIOLATION_RATIO * last_violation:
            continue
        order[kept] = i
        kept += ONE
        max_violation = max(max_violation, violation)
        if shrink:
            k = _drop_classes(
                active_classes, i, k, row_beta, slack, -violation - SHRINK_VIOLATION_RATIO * last_violation
            )
            counts[i] = k
        if violation > 0.0 and row_step(row_beta, slack, k, terms[i, CURVATURE], damping, change, workspace):
            out[N_ROW_MOVES] += 1
            # W_j -= (c / lam) (change of beta_j) x_i, only for classes whose multiplier changed
            used = ZERO
            for m in range(k):
                if change[m] != 0.0:
                    beta[i, active_classes[i, m]] = row_beta[m]
                    touched[used], change[used] = active_classes[i, m], terms[i, STEP_SIZE] * change[m]
                    used += ONE
            _update_weights(indices, data, W, start, stop, change, touched, used)
    _store_progress(max_violation, kept, last == active, active, out)
    return int(kept)


# ---------------------------------------------------------------- dense rows
@njit(fastmath={"contract", "reassoc", "nsz"})
def _dot(X: Any, i: Any, V: Any, j: Any) -> float:
    """Return X[i] @ V[j]."""
    s = 0.0
    for f in range(np.uintp(X.shape[1])):
        s += X[i, f] * V[j, f]
    return s


@njit(inline="always")
def _add(X: Any, i: Any, V: Any, j: Any, t: float) -> None:
    """Compute V[j] += t X[i]."""
    for f in range(np.uintp(X.shape[1])):
        V[j, f] += t * X[i, f]


@njit(fastmath={"contract"})
def dense_sweep(
    X: Any, V: Any, beta: Any, active_classes: Any, counts: Any, y: Any, terms: Any, cost: Any,
    order: Any, active: int, first: int, last: int, damping: Any, shrink: bool, shuffle: bool, rng: Any,
    slack: Any, change: Any, workspace: Any, row_beta: Any, out: Any,
) -> int:  # fmt: skip
    """As `sweep` for dense rows; the weights V are (classes, features)."""
    size = np.uintp(active)
    (max_violation, kept), last_violation = _load_progress(first == 0, out), (out[MAX_VIOLATION] or math.inf)
    for v in range(np.uintp(first), np.uintp(last)):
        if shuffle:
            _shuffle_step(order, v, size, rng)
        i = np.uintp(order[v])
        k = np.uintp(counts[i])
        for m in range(k):
            j = np.uintp(active_classes[i, m])
            # one inner product per active class
            slack[m], row_beta[m] = cost[y[i], j] + _dot(X, i, V, j), beta[i, j]
        violation, lead = row_violation(row_beta, slack, k)
        # the shrinking rules of `sweep`, for rows and then for classes
        if shrink and lead > SHRINK_VIOLATION_RATIO * last_violation:
            continue
        order[kept] = i
        kept += ONE
        max_violation = max(max_violation, violation)
        if shrink:
            k = _drop_classes(
                active_classes, i, k, row_beta, slack, -violation - SHRINK_VIOLATION_RATIO * last_violation
            )
            counts[i] = k
        if violation > 0.0 and row_step(row_beta, slack, k, terms[i, CURVATURE], damping, change, workspace):
            out[N_ROW_MOVES] += 1
            # V_j -= (c / lam) (change of beta_j) x_i, for the classes whose multiplier changed
            for m in range(k):
                if change[m] != 0.0:
                    j = np.uintp(active_classes[i, m])
                    beta[i, j] = row_beta[m]
                    _add(X, i, V, j, -terms[i, STEP_SIZE] * change[m])
    _store_progress(max_violation, kept, last == active, active, out)
    return int(kept)
