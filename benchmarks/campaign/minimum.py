r"""The exact minimum of small problems, by enumerating the pieces of the loss for each row.

A piecewise quadratic loss is, on each piece, :math:`\tfrac{q}2 z^2 + s z + r`; at the minimum of
:math:`\tfrac\lambda2 |w|^2 + \sum_i c_i l(z_i)` each row is inside a piece or at a
nonsmooth point. So the minimum is the smallest J among the solutions of one linear system per choice, in
rational arithmetic.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

from benchmarks.campaign.problems import Problem
from riskmin import L2

MAX_ROWS, MAX_CHOICES = 3, 200


def pieces(loss: Any, y: Fraction) -> tuple[list[tuple[Fraction, Fraction]], list[Fraction]] | None:
    """The (q, s) of each piece of the loss for a label, and the nonsmooth points; None for other losses.

    Examples
    --------
    >>> from riskmin import Hinge
    >>> pieces(Hinge(), Fraction(1))
    ([(Fraction(0, 1), Fraction(0, 1)), (Fraction(0, 1), Fraction(-1, 1))], [Fraction(1, 1)])
    """
    zero, one = Fraction(0), Fraction(1)

    def n(x: float) -> Fraction:
        return Fraction(float(x))

    def margin() -> Fraction:
        return y * n(loss.margin)

    def tube() -> tuple[Any, Any]:
        ends = [y - n(loss.epsilon), y + n(loss.epsilon)]
        if loss.power == 1:
            return [(zero, zero), (zero, -one), (zero, one)], ends
        return [(zero, zero), (one, -ends[0]), (one, -ends[1])], []

    by_name: dict[str, Any] = {
        "Hinge": lambda: ([(zero, zero), (zero, -y)], [margin()]),
        "Novelty": lambda: ([(zero, zero), (zero, -one)], [one]),
        "SquaredHinge": lambda: ([(zero, zero), (one, -margin())], []),
        "SmoothedHinge": lambda: ([(zero, zero), (1 / n(loss.mu), -y / n(loss.mu)), (zero, -y)], []),
        "Squared": lambda: ([(one, -y)], []),
        "Absolute": lambda: ([(zero, -one), (zero, one)], [y]),
        "Quantile": lambda: ([(zero, -n(loss.level)), (zero, 1 - n(loss.level))], [y]),
        "EpsilonInsensitive": tube,
        "Huber": lambda: ([(one, -y), (zero, n(loss.delta)), (zero, -n(loss.delta))], []),
    }
    chosen = by_name.get(type(loss).__name__)
    return None if chosen is None else chosen()


def exact_minimum(problem: Problem) -> Fraction | None:
    """The exact minimum; None if the problem is too large or not piecewise quadratic."""
    n = len(problem.rows) if problem.X.shape[0] <= MAX_ROWS else 0
    if not n or problem.kernel or problem.q is not Fraction or type(problem.reg) is not L2:
        return None
    if problem.columns > 1 or pieces(problem.loss, Fraction(1)) is None or problem.groups is not None:
        return None
    choices = []
    for y in problem.labels:
        smooth, nonsmooth_points = pieces(problem.loss, y)  # type: ignore[misc]
        choices.append([*smooth, *nonsmooth_points])
    if len(choices[0]) ** n > MAX_CHOICES:
        return None
    values = [_stationary_value(problem, choice) for choice in itertools.product(*choices)]
    return min((v for v in values if v is not None), default=None)


def _stationary_value(problem: Problem, choice: tuple[Any, ...]) -> Fraction | None:
    """J at the stationary point of these pieces, some rows being fixed at nonsmooth points.

    None if that point is not unique.
    """
    rows = [[*row, Fraction(int(problem.intercept))] for row in problem.rows]
    d, fixed_rows = len(rows[0]), [i for i, piece in enumerate(choice) if not isinstance(piece, tuple)]
    size = d + len(fixed_rows)
    A = [[Fraction(0)] * (size + 1) for _ in range(size)]
    lam = Fraction(problem.lam)
    weights = problem.reg.weights
    for j in range(d - 1):
        A[j][j] += lam * Fraction(
            float(weights if not hasattr(weights, "shape") or not weights.shape else weights[j])
        )
    if not problem.intercept:
        A[d - 1][d - 1] += 1
    for i, (row, piece) in enumerate(zip(rows, choice, strict=True)):
        if i in fixed_rows:
            k = d + fixed_rows.index(i)
            for j in range(d):
                A[j][k] += row[j]
                A[k][j] += row[j]
            A[k][size] += piece
            continue
        q, s = piece
        for j in range(d):
            for m in range(d):
                A[j][m] += problem.shares[i] * q * row[j] * row[m]
            A[j][size] -= problem.shares[i] * s * row[j]
    x = solve(A)
    return None if x is None else _value(problem, x[: d - 1], x[d - 1])


def _value(problem: Problem, w: list[Fraction], b: Fraction) -> Fraction:
    from benchmarks.campaign import exact

    scores = [sum((x * v for x, v in zip(row, w, strict=True)), b) for row in problem.rows]
    risk = exact.risk(problem.loss, scores, problem.labels, problem.shares, None)
    return Fraction(problem.lam) * exact.omega(problem.reg, w) + risk


def solve(A: list[list[Fraction]]) -> list[Fraction] | None:
    """The solution of a linear system [A | b], by elimination; None if it is singular.

    Examples
    --------
    >>> solve([[Fraction(2), Fraction(3)]])
    [Fraction(3, 2)]
    """
    n = len(A)
    for k in range(n):
        pivot = next((i for i in range(k, n) if A[i][k]), None)
        if pivot is None:
            return None
        A[k], A[pivot] = A[pivot], A[k]
        for i in range(n):
            if i != k and A[i][k]:
                f = A[i][k] / A[k][k]
                A[i] = [a - f * b for a, b in zip(A[i], A[k], strict=True)]
    return [A[k][n] / A[k][k] for k in range(n)]
