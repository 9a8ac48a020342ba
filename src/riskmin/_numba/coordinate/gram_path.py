r"""Certified minimizers of a quadratic risk for many penalties, from its Gram matrix alone.

.. math:: \min_w\; R_0 - q^\top w + \tfrac12 w^\top G w + \sum_j absolute_j |w_j| + \tfrac12 square_j w_j^2,
          \qquad lower \le w \le upper,

by the cycles and active sets of this folder, which keep the slopes g = G w - q. With r_j and r_y, the norms
of the columns and of y before their means are subtracted, entry jk of G errs by at most gamma r_j r_k, q_j by
gamma r_j r_y and R_0 by gamma r_y^2 / 2. With U = r_y + sum_j r_j |w_j|, hence R errs by gamma U^2 / 2, and
g_j by gamma r_j U. All bounds allow for these errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.coordinate.active_set import (
    ACTIVE,
    CONTINUE,
    EMPTY,
    GIVE_UP,
    OUTSIDE,
    active_set_steps,
    append_active,
)
from riskmin._numba.coordinate.cycles import gram_epochs

VALUE, LOWER, SCALE, OFFSET = range(4)
"""The bounds of min J, and the cut that proves the lower one: SCALE times g is its slope."""
EPOCHS_PER_ROUND, MAX_ROUNDS = 4, 100
"""Cycles between two evaluations of the gap, and evaluations until the path leaves a penalty to others."""
ACTIVE_SET_BATCH, ACTIVE_SET_STEPS, GRAM_ROUNDING = 32, 400, 1e-11
"""As in `solvers.coordinate.active_set`; steps per evaluation of the gap."""
SAFE_SCALE = 1.0 - 2.0**-48
"""Rounding of a scaled slope must not leave the domain of the conjugate."""


@njit()
def slopes(G: Any, q: Any, w: Any, g: Any) -> None:
    """Compute g = G w - q."""
    for j in range(len(w)):
        g[j] = -q[j]
    for k in range(len(w)):
        if w[k] != 0.0:
            row = G[k]
            for j in range(len(w)):
                g[j] += w[k] * row[j]


@njit(inline="always")
def _least(x: float, absolute: float, square: float, lower: float, upper: float) -> float:
    """Return min_v absolute |v| + square v^2 / 2 + x v over [lower, upper]."""
    excess = abs(x) - absolute
    v = 0.0
    if excess > 0.0:
        v = excess / square if square > 0.0 else np.inf
        v = -v if x > 0.0 else v
    v = min(max(v, lower), upper)
    return 0.0 if v == 0.0 else absolute * abs(v) + 0.5 * square * v * v + x * v


@njit()
def largest_scale(g: Any, error: float, sizes: Any, terms: Any) -> float:
    """Return the largest t <= 1 for which the slopes t (g_j +- error sizes_j) have a finite minimum."""
    t = 1.0
    for j in range(len(g)):
        up, down = error * sizes[j] - g[j], error * sizes[j] + g[j]
        if terms[1, j] == 0.0:
            # where the range of w_j is unbounded, slopes of at most `absolute` have one
            if terms[3, j] == np.inf and t * up > terms[0, j]:
                t = SAFE_SCALE * terms[0, j] / up
            if terms[2, j] == -np.inf and t * down > terms[0, j]:
                t = SAFE_SCALE * terms[0, j] / down
    return t


@njit()
def least_over(t: float, g: Any, error: float, sizes: Any, terms: Any) -> tuple[float, float]:
    """Return the minimum over w of the penalty plus t g'w, for the worst slopes g_j +- error sizes_j.

    The second number is how far the minimum for g itself lies above.
    """
    total, loss = 0.0, 0.0
    for j in range(len(g)):
        e, a, m, low, high = error * sizes[j], terms[0, j], terms[1, j], terms[2, j], terms[3, j]
        least = min(_least(t * (g[j] - e), a, m, low, high), _least(t * (g[j] + e), a, m, low, high))
        total += least
        loss += _least(t * g[j], a, m, low, high) - least
    return total, loss


@njit()
def certificate(
    q: Any, w: Any, g: Any, terms: Any, R0: float, sizes: Any, size_y: float, gamma: float, out: Any
) -> None:
    """Bound J(w) from above and min J from below, despite the rounding of G, q, g and R_0.

    The residuals of w, times t, are a dual point: the cut of slope t g and offset t (2 - t) R - t g'w. Slopes
    of g_j +- gamma r_j U may be those of the risk: the worst of both counts.
    """
    twice, gw, penalty, V = 2.0 * R0, 0.0, 0.0, 0.0
    for j in range(len(w)):
        twice += (g[j] - q[j]) * w[j]
        gw += g[j] * w[j]
        penalty += terms[0, j] * abs(w[j]) + 0.5 * terms[1, j] * w[j] * w[j]
        V += sizes[j] * abs(w[j])
    U, R = size_y + V, max(0.5 * twice, 0.0)
    t = largest_scale(g, gamma * U, sizes, terms)
    total, loss = least_over(t, g, gamma * U, sizes, terms)
    radius = gamma * U * (U + 2.0 * V) - gamma * total
    out[VALUE] = R + (1.0 + gamma) * penalty + gamma * U * U
    out[SCALE], out[OFFSET] = t, t * (2.0 - t) * R - t * gw - radius - loss
    # w = 0 proves that min J >= 0
    out[LOWER] = out[OFFSET] + total + loss
    if not out[LOWER] > 0.0:
        out[LOWER] = out[SCALE] = out[OFFSET] = 0.0


@njit()
def _slope_tolerance(terms: Any, tol: float, value: float) -> float:
    """Return slopes at which the gap is a small part of tol times the value.

    Slopes of a share s of `absolute` cost s J, and those of v without it v^2 / (2 square).
    """
    absolute, square = np.inf, np.inf
    for j in range(terms.shape[1]):
        if terms[0, j] < 1e300:
            absolute = min(absolute, terms[0, j])
            square = min(square, terms[1, j])
    by_share, by_square = 0.1 * tol * absolute, np.sqrt(0.2 * square * tol * value / terms.shape[1])
    if square == 0.0:
        return float(by_share)
    return float(by_square) if absolute == 0.0 else min(by_share, float(by_square))


@njit()
def _factorize(G: Any, w: Any, terms: Any, sign: Any, status: Any, index: Any, L: Any, state: Any) -> None:
    """Start an active set at the w_j that are not zero, or have no absolute value."""
    k = 0
    for j in range(len(w)):
        inside = w[j] > terms[2, j] and w[j] < terms[3, j]
        status[j] = EMPTY if terms[0, j] >= 1e300 else OUTSIDE
        sign[j] = np.sign(w[j])
        if status[j] == OUTSIDE and inside and (w[j] != 0.0 or terms[0, j] == 0.0):
            if append_active(G, terms, index, L, k, j, GRAM_ROUNDING):
                status[j], k = ACTIVE, k + 1
            elif terms[0, j] > 0.0:
                w[j] = min(max(0.0, terms[2, j]), terms[3, j])
    state[0], state[1], state[2] = k, ACTIVE_SET_BATCH, 0


@njit()
def minimize_model(
    G: Any, q: Any, terms: Any, R0: float, sizes: Any, size_y: float, gamma: float, tol: float, atol: float,
    w: Any, g: Any, barred: Any, factor: Any, out: Any,
) -> float:  # fmt: skip
    """Minimize for one penalty, from w and the active set of the last penalty; return the work.

    `barred` are the terms that keep columns at zero whose squares are rounding errors: their absolute value
    is huge. Cycles go first; an active set follows once its factor costs no more than they did, or at once
    if the squares are those of its factor: state[3] is whether they are.
    """
    sign, status, index, L, step, active, state = factor
    p, work, since, failures = len(w), 0.0, 0, 0
    for _ in range(MAX_ROUNDS):
        slopes(G, q, w, g)
        certificate(q, w, g, terms, R0, sizes, size_y, gamma, out)
        used = 0
        for j in range(p):
            used += w[j] != 0.0
        work += p * (used + 4.0)
        if out[VALUE] - out[LOWER] <= max(tol * out[VALUE], atol) or failures == 2:
            break
        slope = _slope_tolerance(barred, max(tol, atol / out[VALUE]), out[VALUE])
        if state[3] or 6.0 * since * p >= float(used) * used:
            if not state[3]:
                _factorize(G, w, barred, sign, status, index, L, state)
                slopes(G, q, w, g)
                work += float(state[0]) ** 3 / 6.0
                state[3] = 1
            state[1], state[2] = ACTIVE_SET_BATCH, 0
            k = float(state[0])
            result = active_set_steps(
                G, g, w, barred, sign, status, index, L, step, slope, GRAM_ROUNDING, ACTIVE_SET_STEPS, state
            )
            work += 8.0 * (k + 1.0) * (k + p)
            if result != CONTINUE:
                # at the precision of the matrix, or at a dependent column: cycles, then a new factor
                failures += 1
            if result == GIVE_UP:
                state[3], since = 0, 0
        else:
            gram_epochs(G, g, w, barred, slope, EPOCHS_PER_ROUND, active)
            since += EPOCHS_PER_ROUND
            work += float(EPOCHS_PER_ROUND * p) * (used + 1.0)
    return work


@njit()
def minimize_models(
    G: Any, q: Any, all_terms: Any, R0: float, sizes: Any, size_y: float, gamma: float, tol: float,
    atol: float, barred: Any, factor: Any, first: int, max_work: float, W: Any, slopes_of: Any, out: Any,
) -> int:  # fmt: skip
    """Minimize for the penalties from `first` on, each from the minimizer of the one before.

    Returns the next penalty after about max_work multiplications.
    """
    work, p, k, state = 0.0, len(q), first, factor[6]
    while k < len(W) and work <= max_work:
        terms = all_terms[k]
        for j in range(p):
            for i in range(1, 4):
                # a factor of other squares is no factor of this model, and bounds decide what is active
                if k == first or terms[i, j] != all_terms[k - 1][i, j]:
                    state[3] = 0
            # the first row holds the start
            W[k, j] = min(max(W[max(k - 1, 0), j], terms[2, j]), terms[3, j])
            is_empty = G[j, j] <= 4.0 * gamma * sizes[j] * sizes[j]
            barred[0, j] = 1e300 if is_empty else terms[0, j]
            for i in range(1, 4):
                barred[i, j] = terms[i, j]
        g = slopes_of[k]
        work += minimize_model(
            G, q, terms, R0, sizes, size_y, gamma, tol, atol, W[k], g, barred, factor, out[k]
        )
        k += 1
    return k
