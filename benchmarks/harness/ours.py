"""Our solvers: each is run once to the tightest level, and all times are read off its trace."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import riskmin as rm
from riskmin.core import UnsupportedProblem

FIRST = ("auto", "newton", "lbfgs", "dual", "coordinate_descent")
"""Those that come near the optimum in time, where they can be used."""


def solvers():
    """All names, the quick ones first."""
    quick = [name for name in FIRST if name in rm.SOLVERS]
    return [*quick, *(name for name in rm.SOLVERS if name not in FIRST)]


class Clock:
    """CPU and wall seconds since it was made."""

    def __init__(self):
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def read(self):
        return time.process_time() - self.cpu, time.perf_counter() - self.wall


@dataclass
class Run:
    """A run of ours: after each step the CPU and wall seconds, J, the gap that is proved, and the calls."""

    result: Any
    points: list[tuple[float, float, float, float, int]] = field(repr=False)
    setup: float
    """Wall seconds of `linear_risk`; they are in the points too."""
    settle: tuple[float, float]
    """CPU and wall seconds of the value that a run computes from scratch before it ends."""

    def certified(self, level):
        """CPU and wall seconds that a run of this tolerance takes, or None."""
        at = next((point for point in self.points if point[3] <= level * point[2]), None)
        if at is None or at is self.points[-1]:  # the last step has settled already
            return at and at[:2]
        return at[0] + self.settle[0], at[1] + self.settle[1]

    def reached(self, level, best):
        """CPU and wall seconds until J is within the level of the best."""
        return next((point[:2] for point in self.points if point[2] <= best * (1 + level)), None)


def budget(took, threads):
    """Of CPU and wall seconds those that are limited: on a busy machine, wall seconds are others' too."""
    return took[0] if threads == 1 else took[1]


def executor(threads):
    return rm.Serial if threads == 1 else rm.Threads(n_workers=threads)


def run(X, y, task, lam, solver, tol, seconds, threads=1, max_iter=10**7):
    """Minimize from zero; None where the solver is not for this problem.

    The clock starts before the risk is made of X and y, and a point is taken after each step.
    """
    start, points = Clock(), []
    risk = rm.linear_risk(X, y, task.loss, executor=executor(threads))
    setup = start.read()[1]

    def note(it, row):
        points.append((*start.read(), row["value"], row["gap"], int(row["calls"])))

        return budget(points[-1], threads) >= seconds

    limits = {"tol": tol, "max_iter": max_iter}
    obj = rm.Objective(risk, task.reg, lam)
    try:
        found = rm.minimize(obj, solver, callback=note, **limits)
    except UnsupportedProblem:
        return None
    last = Clock()
    obj(found.w)
    return Run(found, points, setup, last.read())


def warm_up(X, y, task, lam, solver, threads=1):
    """Compile or load the kernels, on some of the rows and on all; False where the solver is not for this."""
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
    """The least J known, and a lower bound of min J that is proved."""

    best: float
    lower: float
    said: str


def reference(X, y, task, lam, seconds, threads=1):
    """Runs that are not timed, to 1e-9; of further solvers where the first does not come near that."""
    best, lower, said = float("inf"), 0.0, ""
    for name in (name for name in solvers() if name in FIRST):
        found = run(X, y, task, lam, name, 1e-9, seconds, threads)
        if found is None:
            continue
        J = task.objective(X, y, lam, found.result.w)
        if best > J:
            best, said = J, found.result.solver
        lower = max(lower, found.result.lower)
        if best - lower <= 1e-7 * best:
            break
    return Known(best, lower, said)
