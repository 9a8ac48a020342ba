"""Paper C: Table 1 as exponents, fitted to the iterations that the papers' constructions take."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.papers.page import Lab, Panel, Part, table

FOUR = np.array([[-1.0], [-0.5], [0.5], [1.0]]), np.array([-1.0, -1.0, 1.0, 1.0])


class ChosenSubgradient:
    """A risk whose subgradient is the one that the proofs choose: one row at a time at the margin.

    The scores are perturbed by 1e-6 in favour of the first of the negative rows with the highest score, whose
    tangent is a subgradient at the scores themselves, too.
    """

    def __init__(self, X: Any, y: Any, loss: Any) -> None:
        self.X, self.y, self.loss, self.dim = X, y, loss, X.shape[1]
        self.c = np.full(len(y), 1 / len(y))

    def __call__(self, w: Any) -> tuple[float, Any]:
        z = self.X @ w
        value, _ = self.loss.value_grad(z, self.y, self.c)
        negative = np.flatnonzero(self.y < 0)
        first = negative[z[negative] >= z[negative].max() - 1e-8][0]
        perturbed = z.copy()
        perturbed[first] += 1e-6
        perturbed[self.y > 0] += 1e-6
        _, dz = self.loss.value_grad(perturbed, self.y, self.c)
        return float(value), self.X.T @ dz


class OneByOneHinge:
    """The mean hinge loss of theorem 5, with the subgradient of the first row on the margin."""

    def __init__(self, n: int) -> None:
        self.n, self.dim = n, n + 1

    def __call__(self, w: Any) -> tuple[float, Any]:
        margins = 1 - math.sqrt(self.n) * w[0] - self.n * w[1:]
        grad = np.zeros(self.dim)
        active = np.flatnonzero(margins > 1e-9)
        on_margin = np.flatnonzero(np.abs(margins) <= 1e-9)[:1]
        for i in [*active, *on_margin]:
            grad[0] -= 1 / math.sqrt(self.n)
            grad[i + 1] -= 1.0
        return float(np.maximum(margins, 0).mean()), grad


def hinge_rows(n: int) -> tuple[Any, Any]:
    """The rows of theorem 5: y_i x_i = sqrt(n) e_1 + n e_(i+1), with both labels in turn."""
    y = np.where(np.arange(n) % 2, -1.0, 1.0)
    return y[:, None] * np.hstack([np.full((n, 1), math.sqrt(n)), n * np.eye(n)]), y


def f1_rows(n: int) -> tuple[Any, Any]:
    """The rows of theorem 6: n - 1 negative ones and a positive one."""
    X = np.zeros((n, n + 1))
    X[: n - 1, 0] = -n / (2 * math.sqrt(3))
    X[np.arange(n - 1), np.arange(1, n)] = -n / 2
    X[n - 1, 0], X[n - 1, n] = math.sqrt(3) * n / 2, n / 2
    return X, np.append(-np.ones(n - 1), 1.0)


def steps_to(obj: rm.Objective, solver: Any, w0: Any, best: float, eps: float, most: int) -> int | None:
    """The first iteration whose best J is within eps of the minimum.

    The start does not count, as in the theorems: that of the proofs is itself near the minimum.
    """
    lowest = math.inf
    for k, it in enumerate(islice(solver.iterates(obj, w0), most)):
        lowest = min(lowest, it.value) if k else lowest
        if lowest - best <= eps:
            return k
    return None


def four_points(solver: Any, eps: float) -> int | None:
    obj = rm.Objective(rm.linear_risk(*FOUR, rm.Hinge()), rm.L2(), 1 / 16)
    return steps_to(obj, solver, np.zeros(1), 1 / 8, eps, 60_000)


def hinge_construction(solver: Any, eps: float, chosen: bool = True) -> int | None:
    n = math.ceil(1 / eps)
    w0 = np.zeros(n + 1)
    w0[0] = 1 / math.sqrt(n) if isinstance(solver, rm.Bmrm) else 0.0  # the start of the proof
    risk = OneByOneHinge(n) if chosen else rm.linear_risk(*hinge_rows(n), rm.Hinge())
    return steps_to(rm.Objective(risk, rm.L2(), 1.0), solver, w0, 1 / (4 * n), eps, 4 * n)


def f1_construction(solver: Any, eps: float, chosen: bool = True) -> int | None:
    n = math.ceil(1 / eps) + 1
    X, y = f1_rows(n)
    w0 = np.zeros(n + 1)
    w0[0] = 1 / math.sqrt(3) if isinstance(solver, rm.Bmrm) else 0.0
    best = rm.minimize(rm.Objective(rm.linear_risk(X, y, rm.FBeta()), rm.L2(), 1.0), tol=1e-9).value
    risk = ChosenSubgradient(X, y, rm.FBeta()) if chosen else rm.linear_risk(X, y, rm.FBeta())
    return steps_to(rm.Objective(risk, rm.L2(), 1.0), solver, w0, best, eps, 4 * n)


def chain(eps: float, n: int = 1000, lam: float = 1e-3) -> int | None:
    """The steps of the accelerated dual method to a proved gap of eps, without restarts.

    The rows are y_i x_i = sqrt(n) (e_i - e_(i+1)): the dual is Nesterov's chain, on which a step moves the
    multipliers of neighbours only.
    """
    y = np.where(np.arange(n) % 2, -1.0, 1.0)
    rows = sp.diags_array([np.ones(n), -np.ones(n)], offsets=[0, 1], shape=(n, n + 1))
    X = sp.csr_array(math.sqrt(n) * sp.diags_array(y) @ rows)
    obj = rm.Objective(rm.linear_risk(X, y, rm.Hinge()), rm.L2(), lam)
    lowest = math.inf
    steps = rm.DualAccelerated(restart=math.inf).iterates(obj, np.zeros(n + 1))
    for k, it in enumerate(islice(steps, 2000)):
        lowest = min(lowest, it.value - obj.lower(it.cut))
        if lowest <= eps:
            return k
    return None


def slope(points: list[tuple[float, float]]) -> float:
    """The exponent of iterations against 1 / eps, by least squares."""
    return float(np.polyfit(*np.log(np.array(points)).T, 1)[0])


CASES = {
    "four points, line search (theorem 2)": (
        lambda eps: four_points(rm.LineSearchBmrm(), eps), [10.0**-k for k in np.arange(2, 5.1, 0.5)], 1.0,
    ),
    "hinge construction, BMRM (theorem 5)": (
        lambda eps: hinge_construction(rm.Bmrm(), eps), [0.2, 0.1, 0.05, 0.02, 0.01, 0.005], 1.0,
    ),
    "F1 construction, BMRM (theorem 6)": (
        lambda eps: f1_construction(rm.Bmrm(), eps), [0.02, 0.01, 0.005, 0.003], 1.0,
    ),
    "chain of 1000 rows, accelerated dual (section 5)": (
        chain, [10.0**-k for k in np.arange(0.5, 3.1, 0.5)], 0.5,
    ),
}  # fmt: skip
"""For each row of the table: the number of steps for eps, the values of eps, and the exponent of theory."""


def table_1(lab: Lab) -> str:
    rows, curves = [], {}
    for name, (steps, accuracies, theory) in CASES.items():
        points = [
            (1 / eps, max(done, 1))
            for eps in accuracies
            if (done := lab.once(f"{name} {eps:.3g}", lambda eps=eps, steps=steps: steps(eps))) is not None
        ]
        curves[name.split(",")[1].strip()] = points
        fitted = f"{slope(points):.2f}" if len(points) > 2 else "-"
        rows.append([name, f"{theory:g}", fitted, f"{points[-1][0]:.3g}", points[-1][1]])
    head = ["construction and method", "exponent of theory", "fitted", "largest 1/eps", "steps there"]
    panel = Panel("Steps against 1 / eps", curves, "1 / eps")
    return (
        "Table 1 of the paper has the orders of growth of the number of steps in 1 / eps. Here the steps "
        "are counted on "
        "the constructions of its proofs, and the exponent is fitted in log-log scale.\n\n"
        + table(head, rows) + "\n" + lab.figure("Steps against 1 / eps", [panel])
    )  # fmt: skip


PARTS = (Part("c-table-1", "Table 1: rates as fitted exponents", table_1),)
