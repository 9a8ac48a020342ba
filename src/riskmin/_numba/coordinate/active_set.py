"""Active sets of weights and their signs, with a Cholesky factor that is updated.

The model is that of `cycles.gram_epochs`: G is the Hessian of its smooth part and g its gradient; the rows of
`terms` are absolute, square, lower and upper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit

CONTINUE, DONE, GIVE_UP = range(3)
"""What `active_set_steps` returns."""
NO_PLACE = -1
"""What `_enter` returns if the factor is full, or all that violate depend on the active columns."""
OUTSIDE, ACTIVE, REFUSED, EMPTY = range(4)
"""Status of a w_j: `REFUSED` may not enter again, and `EMPTY` has a column of zeros."""


@njit(fastmath={"contract", "reassoc", "nsz"})
def _inner(a: Any, b: Any, n: int) -> float:
    total = 0.0
    for i in range(n):
        total += a[i] * b[i]
    return total


@njit()
def append_active(G: Any, terms: Any, index: Any, L: Any, k: int, j: int, rounding: float) -> bool:
    """Append column j to the Cholesky factor L of G + diag(square) over the first k of `index`.

    A column that depends on those up to rounding gets a pivot of that size. Returns False, without appending
    it, if there is such a column already: errors would grow from one to the next.
    """
    row, index[k] = L[k], j
    for a in range(k):
        row[a] = (G[j, index[a]] - _inner(L[a], row, a)) / L[a, a]
    pivot = G[j, j] + terms[1, j] - _inner(row, row, k)
    if not pivot > rounding * G[j, j]:
        pivot = rounding * G[j, j]
        for a in range(k):
            if L[a, a] * L[a, a] < 4.0 * rounding * G[index[a], index[a]]:
                return False
    row[k] = np.sqrt(pivot)
    return True


@njit()
def _remove_active(index: Any, L: Any, k: int, place: int) -> None:
    """Remove one of k columns from the factor, by rotations of pairs of its columns."""
    for i in range(place, k - 1):
        index[i] = index[i + 1]
        for m in range(i + 2):
            L[i, m] = L[i + 1, m]
    for i in range(place, k - 1):
        length = np.sqrt(L[i, i] * L[i, i] + L[i, i + 1] * L[i, i + 1])
        a, b = L[i, i] / length, L[i, i + 1] / length
        for m in range(i, k - 1):
            x, y = L[m, i], L[m, i + 1]
            L[m, i], L[m, i + 1] = a * x + b * y, a * y - b * x


@njit(inline="always")
def _reach(j: int, step: float, w: Any, terms: Any, sign: Any) -> tuple[float, float]:
    """Return where the range of w_j ends in the direction of the step, and the part of the step up to there.

    The range is that of its sign, where it has an absolute value; 2 stands for an end beyond the step.
    """
    end = terms[3, j] if step > 0.0 else terms[2, j]
    if terms[0, j] > 0.0 and step * sign[j] < 0.0:
        end = min(end, 0.0) if step > 0.0 else max(end, 0.0)
    return end, (end - w[j]) / step if abs(step) > abs(end - w[j]) else 2.0


@njit(fastmath={"contract"})
def _move(
    G: Any,
    g: Any,
    w: Any,
    terms: Any,
    sign: Any,
    status: Any,
    index: Any,
    L: Any,
    step: Any,
    k: int,
    alone: int,
) -> tuple[float, int]:
    """Take the step up to the first w_j that ends its range; return its length, and how many stay active."""
    t, left = 1.0, k
    for a in range(k):
        t = min(t, _reach(index[a], step[a], w, terms, sign)[1])
    for a in range(k - 1, -1, -1):
        j, row = index[a], G[index[a]]
        end, part = _reach(j, step[a], w, terms, sign)
        new = end if part <= t else w[j] + t * step[a]
        change, w[j] = new - w[j], new
        if change != 0.0:
            for m in range(len(w)):
                g[m] += change * row[m]
        if part <= t:
            # one that entered alone, in the wrong direction by rounding, may not enter again
            status[j] = REFUSED if t == 0.0 and alone else OUTSIDE
            _remove_active(index, L, left, a)
            left -= 1
    return t, left


@njit(fastmath={"contract"})
def _enter(
    G: Any, g: Any, w: Any, terms: Any, sign: Any, status: Any, index: Any, L: Any, tol: float,
    rounding: float, k: int, batch: int,
) -> int:  # fmt: skip
    """Let up to `batch` w_j of large violations enter; return the new number, or `NO_PLACE`."""
    worst, share, entered = tol, 0.5, False
    for entering in range(2):
        # first the largest violation, then all above a share of it
        for j in range(len(w)):
            if status[j] != OUTSIDE:
                continue
            smooth, side = g[j] + terms[1, j] * w[j], terms[0, j]
            right = -smooth - (side if w[j] >= 0.0 else -side) if w[j] < terms[3, j] else 0.0
            left = smooth + (side if w[j] > 0.0 else -side) if w[j] > terms[2, j] else 0.0
            if not entering:
                worst = max(worst, right, left)
            elif max(right, left) > max(tol, share * worst) and batch > 0:
                if k == len(L):
                    return k if entered else NO_PLACE
                sign[j] = np.sign(w[j]) if w[j] != 0.0 else (1.0 if right > left else -1.0)
                if append_active(G, terms, index, L, k, j, rounding):
                    status[j], k, batch, entered = ACTIVE, k + 1, batch - 1, True
    return k if entered or worst <= tol else NO_PLACE


@njit(fastmath={"contract", "reassoc", "nsz"})
def active_set_steps(
    G: Any, g: Any, w: Any, terms: Any, sign: Any, status: Any, index: Any, L: Any, step: Any, tol: float,
    rounding: float, steps: int, state: Any,
) -> int:  # fmt: skip
    """Minimize the model of `gram_epochs` by steps over an active set.

    state[0] of the w_j are active: `index`, with the Cholesky factor L. state[1] is how many may enter at
    once, and state[2] whether the last one entered alone. A call ends after some steps, or if they bring
    nothing more.
    """
    k, batch, before = state[0], state[1], np.inf
    for _ in range(steps):
        worst = 0.0
        for a in range(k):
            step[a] = -(g[index[a]] + terms[1, index[a]] * w[index[a]] + terms[0, index[a]] * sign[index[a]])
            worst = max(worst, abs(step[a]))
        if worst > tol:
            if worst > 0.5 * before:
                return GIVE_UP
            # L L' step = - slope
            for a in range(k):
                step[a] = (step[a] - _inner(L[a], step, a)) / L[a, a]
            for a in range(k - 1, -1, -1):
                step[a] /= L[a, a]
                for b in range(a):
                    step[b] -= L[a, b] * step[a]
            t, left = _move(G, g, w, terms, sign, status, index, L, step, k, state[2])
            before = worst if left == k else np.inf
            batch = max(batch // 4, 1) if t == 0.0 else batch
            k = left
        else:
            entered = _enter(G, g, w, terms, sign, status, index, L, tol, rounding, k, batch)
            if entered <= k:
                refused = entered == NO_PLACE
                for j in range(len(w)):
                    refused |= status[j] == REFUSED
                return GIVE_UP if refused else DONE
            batch, before, state[2] = max(batch, k // 2), np.inf, entered == k + 1
            k = entered
        state[0], state[1] = k, batch
    return CONTINUE
