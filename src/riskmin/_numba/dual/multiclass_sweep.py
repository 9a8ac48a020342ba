r"""Sweeps of dual block ascent for the multiclass max-margin loss, with L2 regularization.

The multipliers of a row, one per class, are a point beta of a simplex. A visit moves them to the optimum with
all other rows fixed: the projection onto the simplex of :math:`\beta + s / A`, for the slacks :math:`s_j =
\Delta_{yj} + z_j` and :math:`A = c\, |x|^2 / \lambda`. For sparse rows, the weights of a feature are
contiguous, padded to a multiple of four; for dense rows, indices are None, and the weights of a class are
contiguous. Classes far from attaining a row's maximum are left out. damping is None where it is 1, scale
where the regularizer has no weights, and b without intercepts, so that their code is not compiled.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.dual.sweep import (
    CACHE_LINE_BYTES,
    MAX_SLOPE,
    N_MOVES,
    PREFETCH_ENTRIES_AHEAD,
    _load_progress,
    _prefetch,
    _shuffle_step,
    _store_progress,
)
from riskmin._numba.simplex_loops import simplex_shift

ZERO, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT = (np.uintp(k) for k in range(9))
ROWS_AHEAD = np.uintp(PREFETCH_ENTRIES_AHEAD)
CURVATURE, STEP_SIZE = ZERO, ONE
"""Columns of `terms`: the curvature A = c |x|^2 / lam, and the step size c / lam."""
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
    indices: Any, data: Any, W: Any, scale: Any, start: Any, stop: Any, steps: Any, touched: Any, used: Any
) -> None:
    """Compute W[:, touched[m]] -= steps[m] x / m for the first `used` touched classes, with scale = 1 / m."""
    if used == TWO:  # the most frequent case
        a, b, s, t = touched[0], touched[1], steps[0], steps[1]
        for e in range(start, stop):
            x, f = np.float64(data[e]), np.uintp(indices[e])
            if scale is not None:
                x *= scale[f]
            W[f, a] -= s * x
            W[f, b] -= t * x
        return
    for e in range(start, stop):
        x, f = np.float64(data[e]), np.uintp(indices[e])
        if scale is not None:
            x *= scale[f]
        for m in range(used):
            W[f, touched[m]] -= steps[m] * x


@njit(inline="always")
def _prefetch_row(indptr: Any, indices: Any, data: Any, row: Any) -> None:
    """Prefetch the entries of a row to be visited soon."""
    for e in range(np.intp(indptr[row]), np.intp(indptr[row + ONE]), CACHE_LINE_BYTES // data.itemsize):
        _prefetch(data, e)
        _prefetch(indices, e)


# ---------------------------------------------------------------- dense rows
@njit(fastmath={"contract", "reassoc", "nsz"})
def _dot(data: Any, start: Any, V: Any, j: Any) -> float:
    """Return x @ V[j] for the dense row x that begins at data[start]."""
    s = 0.0
    for f in range(np.uintp(V.shape[1])):
        s += data[start + f] * V[j, f]
    return s


@njit(inline="always")
def _subtract(data: Any, start: Any, V: Any, scale: Any, j: Any, t: float) -> None:
    """Compute V[j] -= t x / m for a dense row x, with scale = 1 / m."""
    for f in range(np.uintp(V.shape[1])):
        if scale is None:
            V[j, f] -= t * data[start + f]
        else:
            V[j, f] -= t * data[start + f] * scale[f]


# ---------------------------------------------------------------- a sweep
@njit(fastmath={"contract"})
def sweep(
    indptr: Any, indices: Any, data: Any, W: Any, scale: Any, b: Any, b_scale: float,
    beta: Any, active_classes: Any, counts: Any, y: Any, terms: Any, cost: Any, order: Any, active: int,
    first: int, last: int, damping: Any, shrink: bool, shuffle: bool, rng: Any,
    full: Any, slack: Any, change: Any, workspace: Any, row_beta: Any, touched: Any, out: Any,
) -> int:  # fmt: skip
    """One pass over positions first to last - 1 of order[:active]; return the number of rows kept active.

    The calls of a sweep follow each other, the first one with first = 0. The weights W are (features,
    classes), or (classes, features) for dense rows, where indices are None.
    The intercepts b are the weights of one more column, constant sqrt(b_scale). The first counts[i] classes
    in active_classes[i] are those considered for row i. full, slack, change, workspace, row_beta and touched
    are workspaces with one entry per class. The slots of out are those of `dual.sweep`.
    """
    size, begins = np.uintp(active), first == 0
    (max_violation, _, kept), last_violation = _load_progress(begins, out), (out[MAX_SLOPE] or math.inf)
    for v in range(np.uintp(min(active, PREFETCH_ENTRIES_AHEAD + 1)) if shuffle and begins else ZERO):
        _shuffle_step(order, v, size, rng)
    for v in range(np.uintp(first), np.uintp(last)):
        # the order is drawn one position beyond the prefetched row
        ahead = min(v + ROWS_AHEAD, size - ONE)
        if shuffle and ahead + ONE < size:
            _shuffle_step(order, ahead + ONE, size, rng)
        i = np.uintp(order[v])
        start, stop, k = np.uintp(indptr[i]), np.uintp(indptr[i + ONE]), np.uintp(counts[i])
        if indices is None:
            for m in range(k):
                # one inner product per active class
                j = np.uintp(active_classes[i, m])
                slack[m] = cost[y[i], j] + _dot(data, start, W, j)
        else:
            _prefetch_row(indptr, indices, data, np.uintp(order[ahead]))
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
            if b is not None:
                slack[m] += b[active_classes[i, m]]
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
            out[N_MOVES] += 1
            # W_j -= (c / lam) (change of beta_j) x_i, only for classes whose multiplier changed
            used = ZERO
            for m in range(k):
                if change[m] != 0.0:
                    beta[i, active_classes[i, m]] = row_beta[m]
                    touched[used], change[used] = active_classes[i, m], terms[i, STEP_SIZE] * change[m]
                    used += ONE
            if indices is None:
                for m in range(used):
                    _subtract(data, start, W, scale, touched[m], change[m])
            else:
                _update_weights(indices, data, W, scale, start, stop, change, touched, used)
            if b is not None:
                for m in range(used):
                    b[touched[m]] -= b_scale * change[m]
    _store_progress(max_violation, 0.0, kept, last == active, active, out)
    return int(kept)
