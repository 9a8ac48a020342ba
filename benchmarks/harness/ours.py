"""Solvers of riskmin: each runs once to the tightest level, and all times are read from its trace."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import riskmin as rm
from riskmin.core import UnsupportedProblem

FIRST = ("auto", "newton", "lbfgs", "dual", "coordinate_descent")
"""Solvers that approach the optimum quickly, where applicable."""


def solvers():
    """All names, fast solvers first."""
    quick = [name for name in FIRST if name in rm.SOLVERS]
    return [*quick, *(name for name in rm.SOLVERS if name not in FIRST)]


class Clock:
    """CPU and wall seconds since construction."""

    def __init__(self):
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def read(self):
        return time.process_time() - self.cpu, time.perf_counter() - self.wall


@dataclass
class Run:
    """A run of riskmin: CPU and wall seconds, J, certified gap and calls after each step."""

    result: Any
    point: tuple[Any, Any]
    """The weights and the intercepts."""
    points: list[tuple[float, float, float, float, int]] = field(repr=False)
    setup: float
    """Wall seconds of `linear_risk`, which the points include."""
    settle: tuple[float, float]
    """CPU and wall seconds of the final reevaluation of J."""

    def certified(self, level):
        """CPU and wall seconds of a run with this tolerance, or None."""
        at = next((point for point in self.points if point[3] <= level * point[2]), None)
        if at is None or at is self.points[-1]:  # the last point includes the reevaluation
            return at and at[:2]
        return at[0] + self.settle[0], at[1] + self.settle[1]

    def reached(self, level, best):
        """CPU and wall seconds until J is within the level of the best J."""
        return next((point[:2] for point in self.points if point[2] <= best * (1 + level)), None)


def budget(took, threads):
    """The limited one of CPU and wall seconds: wall time also measures other processes of a busy machine."""
    return took[0] if threads == 1 else took[1]


def executor(threads):
    return rm.Serial if threads == 1 else rm.Threads(n_workers=threads)


def run(X, y, task, lam, solver, tol, seconds, threads=1, max_iter=10**7):
    """Minimize from zero; None if the solver does not apply to this problem.

    The clock starts before the risk is built from X and y, and a point is recorded after each step.
    """
    start, points, near = Clock(), [], None
    risk = rm.linear_risk(X, y, task.loss, executor=executor(threads), fit_intercept=task.intercept)
    setup = start.read()[1]

    def note(it, row):
        nonlocal near
        near = it.intercept
        points.append((*start.read(), row["value"], row["gap"], int(row["calls"])))

        return budget(points[-1], threads) >= seconds

    limits = {"tol": tol, "max_iter": max_iter}
    obj = rm.Objective(risk, task.reg, lam)
    try:
        result = rm.minimize(obj, solver, callback=note, **limits)
    except UnsupportedProblem:
        return None
    last = Clock()
    # as the driver evaluates the last point
    obj.at_best_intercept(result.w, near)
    settle = last.read()
    n_outputs = task.columns(y)
    # the intercepts of classes are entries of w
    inside = n_outputs if task.intercept and n_outputs > 1 else 0
    w, b = np.split(result.w, [len(result.w) - inside]) if inside else (result.w, result.intercept)
    return Run(result, (w, b), points, setup, settle)


def warm_up(X, y, task, lam, solver, threads=1):
    """Compile or load the kernels, on some rows and on all; False if the solver does not apply."""
    some = slice(None, None, max(1, len(y) // 2000))
    for rows, steps in ((some, 30), (slice(None), 2)):
        part = (X, y) if rows == slice(None) else (X[rows], y[rows])
        if task.columns(part[1]) != task.columns(y):
            continue
        if run(*part, task, lam, solver, 1e-6, 2.0, threads, steps) is None:
            return False
    return True


@dataclass(frozen=True)
class Known:
    """The smallest known J, and a proved lower bound of min J."""

    best: float
    lower: float
    solver: str


def reference(X, y, task, lam, seconds, threads=1):
    """Untimed runs to a gap of 1e-9, with further solvers if the first does not come close."""
    best, lower, solver = float("inf"), 0.0, ""
    for name in (name for name in solvers() if name in FIRST):
        trial = run(X, y, task, lam, name, 1e-9, seconds, threads)
        if trial is None:
            continue
        J = task.objective(X, y, lam, *trial.point)
        if best > J:
            best, solver = J, trial.result.solver
        lower = max(lower, trial.result.lower)
        if best - lower <= 1e-7 * best:
            break
    return Known(best, lower, solver)
