"""Dual ascent a row at a time, for any transfer function: Algorithms 1 to 3 of Zhang (2002).

A visit to row i changes v, the argument of the transfer function w = grad Omega*(v), in the columns of x_i
only. What is kept is not w but r with w = factor * r: the one number that ties all columns together (the
normalizer of an entropy, a norm) is in the factor, so that a visit costs as much as x_i has numbers.

Tuples hold what belongs together:

    X     indptr, indices, data, dense (1: every row has all columns, in order; indices are just those)
    loss  kind, rows (lower, upper, base, sign of each), shape (epsilon, size, power)
    reg   code, terms (a row a column of X, or one row for all), numbers (total or p, power, balanced)
    state v, r, mass (top, sum, sum when computed anew, e^-top), room for the new r of a row
    tie   P, s, gap, rho: linear constraints gap = 0 on v, P = X C', by an augmented Lagrangian
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.conjugates import LARGEST, explicit, implicit

LINEAR, CLIPPED, EXPS, SOFTMAX, NORM = 0, 1, 2, 3, 4
"""Transfer functions: v / m; that of v less a threshold, within bounds; mu e^v; normalized; of a q-norm."""

TRIES = 60


# ---------------------------------------------------------------- the transfer function
@njit()
def _raw(code: int, v: float, mass: Any, terms: Any, k: Any, numbers: Any) -> Any:
    """R of one column."""
    top = mass[0]
    if code == LINEAR:
        return v / terms[k, 1]
    if code == CLIPPED:
        soft = math.copysign(max(abs(v) - terms[k, 0], 0.0), v) / terms[k, 1]
        return min(max(soft, terms[k, 2]), terms[k, 3])
    if code == NORM:
        return math.copysign((abs(v) / top) ** (numbers[0] - 1), v) if top > 0 else 0.0
    if not numbers[2]:
        return terms[k, 0] * math.exp(min(v - top, LARGEST))
    large = math.exp(min(abs(v) - top, LARGEST))  # the other exponential is e^(-2 top) over this one
    return math.copysign(terms[k, 0] * (large - mass[3] * mass[3] / large), v) if large > 0 else 0.0


@njit()
def _share(code: int, v: float, r: float, mass: Any, terms: Any, k: Any, numbers: Any) -> Any:
    """What a column adds to the sum in the factor; for exponentials, w+ + w- or w."""
    if code == NORM:
        return abs(r) * abs(v) / mass[0] if mass[0] > 0 else 0.0
    if numbers[2]:
        both = 2 * terms[k, 0] * mass[3]
        return math.sqrt(r * r + both * both)
    return r


@njit()
def _factor(code: int, total: float, top: float, numbers: Any) -> Any:
    if code == SOFTMAX:
        return numbers[0] / total if total > 0 else 0.0  # all has underflowed: `commit` sums anew
    if code == NORM:
        return top ** (numbers[1] - 1) * total ** (numbers[1] / numbers[0] - 1) if total > 0 else 0.0
    return 1.0


@njit()
def refresh(reg: Any, state: Any) -> None:
    """R and its sum anew from v."""
    code, terms, numbers = reg
    v, r, mass, _ = state
    shared, top = terms.shape[0] == 1, 0.0
    if code >= SOFTMAX:
        top = -math.inf
        for j in range(len(v)):
            top = max(top, abs(v[j]) if code == NORM or numbers[2] else v[j])
    total = 0.0
    mass[0], mass[3] = top, math.exp(-top) if code != NORM else 0.0
    for j in range(len(v)):
        at = np.uintp(0) if shared else np.uintp(j)
        r[j] = _raw(code, v[j], mass, terms, at, numbers)
        if code >= SOFTMAX:
            total += _share(code, v[j], r[j], mass, terms, at, numbers)
    mass[1], mass[2] = total, total


@njit()
def _bend(code: int, v: float, r: float, factor: float, mass: Any, terms: Any, k: Any, numbers: Any) -> Any:
    """The slope of the transfer function in its own column, the factor held."""
    if code == LINEAR:
        return 1 / terms[k, 1]
    if code == CLIPPED:
        return 1 / terms[k, 1] if abs(v) > terms[k, 0] and terms[k, 2] < r < terms[k, 3] else 0.0
    if code == NORM:
        return (numbers[0] - 1) * factor * abs(r) / abs(v) if v != 0.0 else 0.0
    return factor * _share(code, v, r, mass, terms, k, numbers)


@njit()
def score(i: int, X: Any, reg: Any, state: Any) -> Any:
    """x_i @ w."""
    indptr, indices, data, dense = X
    start = np.uintp(indptr[i])
    base = start if dense else np.uintp(0)
    z, r, mass = 0.0, state[1], state[2]
    for k in range(start, np.uintp(indptr[i + 1])):
        z += data[k] * r[indices[k - base]]
    return z * _factor(reg[0], mass[1], mass[0], reg[2])


@njit()
def look(i: int, X: Any, reg: Any, state: Any) -> tuple[float, float]:
    """The score of a row, and how fast it changes with v along the row."""
    indptr, indices, data, dense = X
    code, terms, numbers = reg
    v, r, mass, _ = state
    start, shared = np.uintp(indptr[i]), terms.shape[0] == 1
    base = start if dense else np.uintp(0)
    factor = _factor(code, mass[1], mass[0], numbers)
    z = bend = 0.0
    for k in range(start, np.uintp(indptr[i + 1])):
        j, x = indices[k - base], data[k]
        z += x * r[j]
        bend += (
            x
            * x
            * _bend(code, v[j], r[j], factor, mass, terms, np.uintp(0) if shared else np.uintp(j), numbers)
        )
    z *= factor
    if code == SOFTMAX:
        bend -= z * z / numbers[0]
    elif code == NORM and mass[1] > 0:
        norm = mass[0] * mass[1] ** (1 / numbers[0])
        bend += (numbers[1] - numbers[0]) * z * (z / norm ** numbers[1])
    return z, max(bend, 0.0)


@njit()
def trial(i: int, step: float, X: Any, reg: Any, state: Any) -> tuple[float, float]:
    """The score of row i and the sum of the factor if step * x_i were added to v."""
    indptr, indices, data, dense = X
    code, terms, numbers = reg
    v, r, mass, room = state
    start, stop, shared = np.uintp(indptr[i]), np.uintp(indptr[i + 1]), terms.shape[0] == 1
    base = start if dense else np.uintp(0)
    if code == NORM and mass[0] == 0.0:  # v is zero, so any scale will do
        for k in range(start, stop):
            mass[0] = max(mass[0], abs(step * data[k]))
    z = old = new = 0.0
    for k in range(start, stop):
        j, x = indices[k - base], data[k]
        at = np.uintp(0) if shared else np.uintp(j)
        there = v[j] + step * x
        here = _raw(code, there, mass, terms, at, numbers)
        room[k - start] = here
        z += x * here
        if code >= SOFTMAX:
            old += _share(code, v[j], r[j], mass, terms, at, numbers)
            new += _share(code, there, here, mass, terms, at, numbers)
    total = max(mass[1] - old, 0.0) + new
    return z * _factor(code, total, mass[0], numbers), total


@njit()
def commit(i: int, step: float, total: float, X: Any, reg: Any, state: Any) -> None:
    """Add step * x_i to v, after its trial."""
    indptr, indices, data, dense = X
    v, r, mass, room = state
    start = np.uintp(indptr[i])
    base = start if dense else np.uintp(0)
    for k in range(start, np.uintp(indptr[i + 1])):
        j = indices[k - base]
        v[j] += step * data[k]
        r[j] = room[k - start]
    if reg[0] >= SOFTMAX:
        mass[1] = total
        if not 1e-6 * mass[2] <= total <= 1e200:  # what is left of a sum of larger terms is mostly rounding
            refresh(reg, state)


# ---------------------------------------------------------------- a pass
@njit()
def _visit(i: int, weight: float, u: float, X: Any, loss: Any, reg: Any, state: Any, tie: Any) -> Any:
    """Move u by the Newton bound: no further than where the dual is sure to have improved.

    weight is c_i / lam. The step is that of the true conjugate and of a parabola above the regularizer's;
    the latter is sure enough if the score falls no faster than the parabola says, by convexity.
    """
    kind, rows, shape = loss
    P, s, gap, rho = tie
    z, bend = look(i, X, reg, state)
    fixed = 0.0
    for k in range(P.shape[1]):
        fixed += rho * P[i, k] * P[i, k]
        z += P[i, k] * (s[k] + rho * gap[k])
    noise = 4e-15 * (1 + abs(z))
    kappa = weight * (bend + fixed)
    for _ in range(TRIES):
        new = implicit(u, z, kappa, kind, rows[i], shape)
        move = new - u
        if move == 0.0 or reg[0] == LINEAR:
            return new
        at, _ = trial(i, -move * weight, X, reg, state)
        for k in range(P.shape[1]):
            at += P[i, k] * (s[k] + rho * (gap[k] - move * weight * P[i, k]))
        fall = (z - at) * math.copysign(1.0, move)
        if fall <= kappa * abs(move) * (1 + 1e-9) + noise:
            return new
        kappa = max(1.5 * kappa, fall / abs(move))
    return u


@njit()
def ascend(
    order: Any,
    weights: Any,
    u: Any,
    pace: Any,
    X: Any,
    loss: Any,
    reg: Any,
    state: Any,
    tie: Any,
    begins: bool,
) -> None:
    """Visit the rows in that order: by the gradient step of a rate, or for rate 0 by the Newton bound.

    pace is the rate and the damping; weights are c_i / lam, and a row of weight 0 is left out. A pass may be
    made in pieces, of which the first one begins.
    """
    kind, rows, shape = loss
    P, s, gap, rho = tie
    rate, damping = pace
    if begins:
        refresh(reg, state)
    for i in order:
        weight = weights[i]
        if weight == 0.0:
            continue
        if rate > 0:
            z = score(i, X, reg, state)
            for k in range(P.shape[1]):
                z += P[i, k] * (s[k] + rho * gap[k])
            new = explicit(u[i], z, rate / weight, kind, rows[i], shape)
        else:
            new = _visit(i, weight, u[i], X, loss, reg, state, tie)
        if damping != 1:
            new = min(max(u[i] + damping * (new - u[i]), rows[i, 0]), rows[i, 1])
        if new == u[i]:
            continue
        step = -(new - u[i]) * weight
        _, total = trial(i, step, X, reg, state)
        commit(i, step, total, X, reg, state)
        for k in range(P.shape[1]):
            gap[k] += step * P[i, k]
        u[i] = new


@njit()
def mean_bend(rows: Any, X: Any, reg: Any, state: Any) -> Any:
    """How fast the scores of some rows change with v along them, on average."""
    refresh(reg, state)
    total = 0.0
    for i in rows:
        total += look(i, X, reg, state)[1]
    return total / max(len(rows), 1)


@njit()
def learn(order: Any, y: Any, rate: float, X: Any, reg: Any, state: Any) -> int:
    """The online update (24): rate * y_i * x_i is added to v at each mistake. How many they were."""
    refresh(reg, state)
    mistakes = 0
    for i in order:
        if y[i] * score(i, X, reg, state) <= 0:
            _, total = trial(i, rate * y[i], X, reg, state)
            commit(i, rate * y[i], total, X, reg, state)
            mistakes += 1
    return mistakes
