"""Dual ascent one row at a time, for any transfer function: Algorithms 1 to 3 of Zhang (2002).

A visit to row i changes v, the argument of the transfer function w = grad Omega*(v), only in the columns of
x_i. The kernels store r with w = factor * r instead of w: the one number that couples all columns (the
normalizer of an entropy, a norm) is in the factor, so that a visit costs O(number of entries of x_i).

Tuples group the arguments:

    X     indptr, indices, data, dense (1: every row has all columns, in order; indices are those of one row)
    loss  kind, rows (lower, upper, base, sign of each), shape (epsilon, size, power)
    reg   code, terms (one row per column of X, or one row for all), parameters (total or p, power, balanced)
    state v, r, normalizer (top, sum, sum when last recomputed, e^-top), workspace for the new r of a row
    constraints  P, s, gap, rho: linear constraints gap = 0 on v, P = X C', by an augmented Lagrangian
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.dual.conjugate_loops import MAX_EXPONENT, POWER, gradient_step, proximal_step

LINEAR, CLIPPED, EXPS, SOFTMAX, NORM = 0, 1, 2, 3, 4
"""Transfer functions w(v).

LINEAR: v / m; CLIPPED: clip(shrink(v, absolute) / square, lower, upper); EXPS: mu e^v; SOFTMAX: mu e^v scaled
to a given sum; NORM: gradient of a power of the p-norm, p dual to q. Columns of `terms`: for LINEAR, 1 is m;
for CLIPPED, 0 to 3 are absolute, square, lower and upper; for EXPS and SOFTMAX, 0 is mu.
"""


# ---------------------------------------------------------------- transfer function
@njit()
def _raw(code: int, v: float, normalizer: Any, terms: Any, column: Any, parameters: Any) -> Any:
    """Return r of one column of X, w = factor * r; the column's parameters are terms[column].

    LINEAR: v / m; CLIPPED: see above; NORM: sign(v) (|v| / top)^(p - 1); else mu e^(v - top), or, balanced,
    mu (e^v - e^-v) e^-top.
    """
    top = normalizer[0]
    if code == LINEAR:
        return v / terms[column, 1]
    if code == CLIPPED:
        shrunk = math.copysign(max(abs(v) - terms[column, 0], 0.0), v) / terms[column, 1]
        return min(max(shrunk, terms[column, 2]), terms[column, 3])
    if code == NORM:
        return math.copysign((abs(v) / top) ** (parameters[0] - 1), v) if top > 0 else 0.0
    # exponentials; the exponent is cut off before it overflows
    if not parameters[2]:
        return terms[column, 0] * math.exp(min(v - top, MAX_EXPONENT))
    # balanced: e^(|v| - top), and the other exponential e^(-|v| - top) = (e^-top)^2 / large
    large = math.exp(min(abs(v) - top, MAX_EXPONENT))
    return (
        math.copysign(terms[column, 0] * (large - normalizer[3] * normalizer[3] / large), v)
        if large > 0
        else 0.0
    )


@njit()
def _normalizer_term(
    code: int, v: float, r: float, normalizer: Any, terms: Any, column: Any, parameters: Any
) -> Any:
    """Return the column's term of the sum in the factor.

    NORM: (|v| / top)^p; exponentials: w, or, balanced, mu (e^v + e^-v) e^-top = sqrt(r^2 + (2 mu e^-top)^2).
    """
    if code == NORM:
        return abs(r) * abs(v) / normalizer[0] if normalizer[0] > 0 else 0.0
    if parameters[2]:
        both_sides = 2 * terms[column, 0] * normalizer[3]
        return math.sqrt(r * r + both_sides * both_sides)
    return r


@njit()
def _factor(code: int, total: float, top: float, parameters: Any) -> Any:
    """Return the factor of w = factor * r.

    SOFTMAX: total / sum; NORM: top^(power - 1) sum^(power / p - 1); otherwise 1.
    """
    if code == SOFTMAX:
        # total = 0: every term underflowed, and `commit` recomputes the sum
        return parameters[0] / total if total > 0 else 0.0
    if code == NORM:
        return top ** (parameters[1] - 1) * total ** (parameters[1] / parameters[0] - 1) if total > 0 else 0.0
    return 1.0


@njit()
def refresh(reg: Any, state: Any) -> None:
    """Recompute r, its scale top = max v (or max |v|) and its sum from v."""
    code, terms, parameters = reg
    v, r, normalizer, _ = state
    one_row_for_all, top = terms.shape[0] == 1, 0.0
    if code >= SOFTMAX:
        # scale by the largest exponent (or absolute value), so that nothing overflows
        top = -math.inf
        for j in range(len(v)):
            top = max(top, abs(v[j]) if code == NORM or parameters[2] else v[j])
    total = 0.0
    normalizer[0], normalizer[3] = top, math.exp(-top) if code != NORM else 0.0
    for j in range(len(v)):
        column = np.uintp(0) if one_row_for_all else np.uintp(j)
        r[j] = _raw(code, v[j], normalizer, terms, column, parameters)
        if code >= SOFTMAX:
            total += _normalizer_term(code, v[j], r[j], normalizer, terms, column, parameters)
    normalizer[1], normalizer[2] = total, total


@njit()
def _diagonal_derivative(
    code: int, v: float, r: float, factor: float, normalizer: Any, terms: Any, column: Any, parameters: Any
) -> Any:
    """Return dw_j / dv_j of one column, the factor held fixed."""
    if code == LINEAR:
        return 1 / terms[column, 1]
    if code == CLIPPED:
        return (
            1 / terms[column, 1]
            if abs(v) > terms[column, 0] and terms[column, 2] < r < terms[column, 3]
            else 0.0
        )
    if code == NORM:
        return (parameters[0] - 1) * factor * abs(r) / abs(v) if v != 0.0 else 0.0
    return factor * _normalizer_term(code, v, r, normalizer, terms, column, parameters)


@njit()
def score(i: int, X: Any, reg: Any, state: Any) -> Any:
    """Return x_i @ w."""
    indptr, indices, data, dense = X
    start = np.uintp(indptr[i])
    base = start if dense else np.uintp(0)
    z, r, normalizer = 0.0, state[1], state[2]
    for k in range(start, np.uintp(indptr[i + 1])):
        z += data[k] * r[indices[k - base]]
    return z * _factor(reg[0], normalizer[1], normalizer[0], reg[2])


@njit()
def score_and_curvature(i: int, X: Any, reg: Any, state: Any) -> tuple[float, float]:
    """Return the score z = x_i @ w and the curvature x_i' (dw / dv) x_i, the derivative of z along v + t x_i.

    The diagonal part of dw / dv plus a rank-one correction for the factor (SOFTMAX, NORM).
    """
    indptr, indices, data, dense = X
    code, terms, parameters = reg
    v, r, normalizer, _ = state
    start, one_row_for_all = np.uintp(indptr[i]), terms.shape[0] == 1
    base = start if dense else np.uintp(0)
    factor = _factor(code, normalizer[1], normalizer[0], parameters)
    z = curvature = 0.0
    for k in range(start, np.uintp(indptr[i + 1])):
        j, x = indices[k - base], data[k]
        z += x * r[j]
        curvature += (
            x
            * x
            * _diagonal_derivative(
                code,
                v[j],
                r[j],
                factor,
                normalizer,
                terms,
                np.uintp(0) if one_row_for_all else np.uintp(j),
                parameters,
            )
        )
    # rank-one terms: derivative of the normalizer along x_i
    z *= factor
    if code == SOFTMAX:
        curvature -= z * z / parameters[0]
    elif code == NORM and normalizer[1] > 0:
        norm = normalizer[0] * normalizer[1] ** (1 / parameters[0])
        curvature += (parameters[1] - parameters[0]) * z * (z / norm ** parameters[1])
    return z, max(curvature, 0.0)


@njit()
def trial(i: int, step: float, X: Any, reg: Any, state: Any) -> tuple[float, float]:
    """Return the score of row i and the sum of the factor if step * x_i were added to v."""
    indptr, indices, data, dense = X
    code, terms, parameters = reg
    v, r, normalizer, workspace = state
    start, stop, one_row_for_all = np.uintp(indptr[i]), np.uintp(indptr[i + 1]), terms.shape[0] == 1
    base = start if dense else np.uintp(0)
    if code == NORM and normalizer[0] == 0.0:  # v is zero, so any scale is valid
        for k in range(start, stop):
            normalizer[0] = max(normalizer[0], abs(step * data[k]))
    z = old_sum = new_sum = 0.0
    for k in range(start, stop):
        j, x = indices[k - base], data[k]
        column = np.uintp(0) if one_row_for_all else np.uintp(j)
        new_v = v[j] + step * x
        r_new = _raw(code, new_v, normalizer, terms, column, parameters)
        workspace[k - start] = r_new
        z += x * r_new
        if code >= SOFTMAX:
            old_sum += _normalizer_term(code, v[j], r[j], normalizer, terms, column, parameters)
            new_sum += _normalizer_term(code, new_v, r_new, normalizer, terms, column, parameters)
    # only the columns of x_i change the sum
    total = max(normalizer[1] - old_sum, 0.0) + new_sum
    return z * _factor(code, total, normalizer[0], parameters), total


@njit()
def commit(i: int, step: float, total: float, X: Any, reg: Any, state: Any) -> None:
    """Add step * x_i to v, after the `trial` of the same step, which left the new r in the workspace."""
    indptr, indices, data, dense = X
    v, r, normalizer, workspace = state
    start = np.uintp(indptr[i])
    base = start if dense else np.uintp(0)
    for k in range(start, np.uintp(indptr[i + 1])):
        j = indices[k - base]
        v[j] += step * data[k]
        r[j] = workspace[k - start]
    if reg[0] >= SOFTMAX:
        normalizer[1] = total
        # after cancellation of much larger terms the sum is mostly rounding error: recompute it
        if not 1e-6 * normalizer[2] <= total <= 1e200:
            refresh(reg, state)


# ---------------------------------------------------------------- passes over rows
@njit()
def _visit(
    i: int, weight: float, u: float, X: Any, loss: Any, reg: Any, state: Any, constraints: Any, length: float
) -> Any:
    """Return the new u_i of a Newton step that is guaranteed to improve the dual, if its length is 1.

    weight is c_i / lam. The step minimizes l*(t) - z t + kappa (t - u)^2 / 2: the exact conjugate plus a
    parabola in place of the regularizer's part. By convexity the parabola is an upper bound along the step if
    the score falls by at most kappa |t - u|; otherwise kappa is increased.
    """
    kind, rows, shape = loss
    P, s, gap, rho = constraints
    z, curvature = score_and_curvature(i, X, reg, state)
    constraint_curvature = 0.0
    for k in range(P.shape[1]):
        # the augmented Lagrangian adds curvature rho |P_i|^2 and shifts the score
        constraint_curvature += rho * P[i, k] * P[i, k]
        z += P[i, k] * (s[k] + rho * gap[k])
    # rounding error of the score, which the test below tolerates
    noise = 4e-15 * (1 + abs(z))
    kappa = weight * (curvature + constraint_curvature)
    for _ in range(60):  # increases of the curvature, at most
        new = proximal_step(u, z, kappa / length, kind, rows[i], shape)
        move = new - u
        # for a linear transfer function the parabola is exact
        if move == 0.0 or reg[0] == LINEAR:
            return new
        new_z, _ = trial(i, -move * weight, X, reg, state)
        for k in range(P.shape[1]):
            # the constraint's part of the score, after the step
            new_z += P[i, k] * (s[k] + rho * (gap[k] - move * weight * P[i, k]))
        fall = (z - new_z) * math.copysign(1.0, move)
        if fall <= kappa * abs(move) * (1 + 1e-9) + noise:
            return new
        # the observed fall per unit step is a lower bound of the curvature needed
        kappa = max(1.5 * kappa, fall / abs(move))
    return u


@njit()
def ascend(
    order: Any,
    weights: Any,
    u: Any,
    step_rule: Any,
    X: Any,
    loss: Any,
    reg: Any,
    state: Any,
    constraints: Any,
    begins: bool,
) -> None:
    """Visit the rows in the given order: by gradient steps if rate > 0, else by `_visit`.

    step_rule is (rate, damping); weights are c_i / lam, and rows of weight 0 are skipped. A pass may be split
    into calls; `begins` marks the first one.
    """
    kind, rows, shape = loss
    P, s, gap, rho = constraints
    rate, damping = step_rule
    # where the dual is a parabola along a row, the step before it is clipped is scaled, as in figure 4
    exact = reg[0] == LINEAR and kind == POWER and shape[1] == 0.0 and P.shape[1] == 0
    length = damping if exact else 1.0
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
            new = gradient_step(u[i], z, rate / weight, kind, rows[i], shape)
        else:
            new = _visit(i, weight, u[i], X, loss, reg, state, constraints, length)
        # relaxation: a fraction of the step, or more than all of it, within the bounds
        if damping != 1 and (rate > 0 or not exact):
            new = min(max(u[i] + damping * (new - u[i]), rows[i, 0]), rows[i, 1])
        if new == u[i]:
            continue
        # v = -(1 / lam) sum_i c_i u_i x_i follows u
        step = -(new - u[i]) * weight
        _, total = trial(i, step, X, reg, state)
        commit(i, step, total, X, reg, state)
        for k in range(P.shape[1]):
            # the constraints are linear in v
            gap[k] += step * P[i, k]
        u[i] = new


@njit()
def mean_curvature(rows: Any, X: Any, reg: Any, state: Any) -> Any:
    """Return the mean over some rows of the curvature x_i' (dw / dv) x_i."""
    refresh(reg, state)
    total = 0.0
    for i in rows:
        total += score_and_curvature(i, X, reg, state)[1]
    return total / max(len(rows), 1)


@njit()
def online_pass(order: Any, y: Any, rate: float, X: Any, reg: Any, state: Any) -> int:
    """Online pass, (24) of Zhang (2002): v += rate y_i x_i at each mistake; return the number of mistakes."""
    refresh(reg, state)
    mistakes = 0
    # a mistake: the score does not have the sign of the label
    for i in order:
        if y[i] * score(i, X, reg, state) <= 0:
            _, total = trial(i, rate * y[i], X, reg, state)
            commit(i, rate * y[i], total, X, reg, state)
            mistakes += 1
    return mistakes
