"""Compare `Auto` with each of our solvers: seconds to a certified gap, in interleaved runs.

    python -m benchmarks.auto --data FOLDER [--unseen report] [--task hinge] [--set cells] [--jobs 14]

A cell is a set, a task, a lam, and whether there is an intercept. All its runs are in one process with one
thread: `Auto` first, then every other solver that supports the problem, each until 1.1 times the best time so
far. The solvers that are near the best time run again, in turn with `Auto`, and the smallest time counts.
`Auto` is near in a cell if it is within 1.2 times of the best solver, or within 3 ms. Cells that no solver
proves within the time limit are listed, and not counted. Seconds are those of the CPU; with --wall, those of
the wall, for machines whose clock of the CPU is coarse.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.harness.machine import set_threads

set_threads(1)  # before NumPy is imported

import numpy as np  # noqa: E402

import riskmin as rm  # noqa: E402
from benchmarks.harness import data  # noqa: E402
from benchmarks.harness.runs import INTERCEPTS, sets_of, with_ones  # noqa: E402
from benchmarks.harness.tasks import TASKS, Task, squared  # noqa: E402
from riskmin.core import UnsupportedProblem  # noqa: E402

NEAR, NEAR_SECONDS = 1.2, 3e-3
"""`Auto` is near the best solver if it takes at most this many times its time, or this much longer."""
DEADLINE, MIN_DEADLINE = 1.1, 0.02
"""A run ends at this many times the best time of a cell so far, or after these seconds: slower solvers do not
matter."""
AGAIN = 1.6
"""Solvers whose first time is within this of the best run again."""
SHORT, SHORT_ROUNDS = 0.05, 3
"""Cells whose best time is shorter have this many times as many rounds."""
SOLVERS = ("newton", "dual", "lbfgs", "bundle", "smoothing", "coordinate_descent", "owlqn", "interior_point")
SOLVERS += ("proximal_gradient",)
"""All solvers except those of solvers/reference/, which are there for the theorems of papers."""


class ElasticNet(Task):
    """The squared loss with the elastic net |w|_1 + |w|^2 / 2."""

    reg = rm.Elastic(eps=1.0)


LASSO = TASKS["lasso"]
ALL = {name: task for name, task in TASKS.items() if name != "prbep"} | {
    "elastic": ElasticNet("elastic", rm.Squared(), squared, "numbers", LASSO.slope, lams=LASSO.lams)
}


# ---------------------------------------------------------------- one run
class OutOfTime(BaseException):
    """The seconds of a run are spent."""


def stop(*_):
    raise OutOfTime


class Clock(NamedTuple):
    """A clock, and its timer and signal."""

    read: Callable[[], float]
    timer: int
    signal: int


# of the thread: while a timer of the CPU is set, Linux reads that of the process in ticks of 4 ms
CPU = Clock(time.thread_time, signal.ITIMER_PROF, signal.SIGPROF)
WALL = Clock(time.perf_counter, signal.ITIMER_REAL, signal.SIGALRM)


def run_to_proof(X, y, task, lam, solver, tol, limit, clock, patience=1.0):
    """The result of a run from zero to a proof; None if it was interrupted.

    A step that is still running at 1.5 times the limit is interrupted, but not before `patience` seconds.
    """
    signal.signal(clock.signal, stop)
    # repeated, since Python discards exceptions in finalizers
    signal.setitimer(clock.timer, max(1.5 * limit, patience), 0.1)
    start = clock.read()
    try:
        risk = rm.linear_risk(X, y, task.loss, executor=rm.Serial, fit_intercept=task.intercept)
        obj = rm.Objective(risk, task.reg, lam)
        return rm.minimize(
            obj, solver, tol=tol, max_iter=10**7, callback=lambda it, row: clock.read() - start > limit
        )
    except OutOfTime:
        return None
    finally:
        signal.setitimer(clock.timer, 0)


def seconds_to(X, y, task, lam, solver, tol, limit, clock, patience=1.0):
    """Seconds of such a run, and what ran; no seconds if it was stopped or stalled."""
    start = clock.read()
    result = run_to_proof(X, y, task, lam, solver, tol, limit, clock, patience)
    if result is None:
        return None, ""
    return (clock.read() - start if result.status == "converged" else None), result.solver


def warm_up(X, y, task, lam, solver, clock):
    """Compile or load the kernels, on some of the rows; False if the solver does not support the problem."""
    some = slice(None, None, max(1, len(y) // 2000))
    part = (X[some], y[some]) if task.columns(y[some]) == task.columns(y) else (X, y)
    try:
        seconds_to(*part, task, lam, solver, 1e-6, 0.5, clock, patience=30.0)
    except UnsupportedProblem:
        return False
    return True


# ---------------------------------------------------------------- cells
class Plan(NamedTuple):
    """What is run in each cell."""

    lams: tuple[float, ...]
    """If empty, those of the task."""
    tols: tuple[float, ...]
    solvers: tuple[str, ...]
    seconds: float
    rounds: int
    wall: bool
    lines: Path | None
    """A file to which each cell is appended."""


@dataclass(frozen=True)
class Job:
    """The cells of a set and a task, which a process runs one after the other."""

    name: str
    folder: Path | None
    task: str
    intercept: bool
    plan: Plan

    def run(self):
        """The cells as plain data; none without the data."""
        loaded = read(self.name, self.folder)
        if isinstance(loaded, str):
            return []
        X, y = loaded
        task, plan = ALL[self.task].with_intercept() if self.intercept else ALL[self.task], self.plan
        if task.labels == "counts" and not task.intercept:
            X = with_ones(X)
        clock = WALL if plan.wall else CPU
        lams = {lam: task.strength(X, y, lam) for lam in plan.lams or task.lams}
        middle = sorted(lams.values())[len(lams) // 2]
        solvers = [name for name in ("auto", *plan.solvers) if warm_up(X, y, task, middle, name, clock)]
        cells = []
        for lam, strength in lams.items():
            for tol in sorted(plan.tols, reverse=True):
                facts = {"data": self.name, "task": task.name, "intercept": task.intercept, "lam": lam}
                cell = facts | {"tol": tol} | race((X, y, task, strength), tol, solvers, plan, clock)
                cells.append(cell)
                if plan.lines:
                    with plan.lines.open("a") as out:
                        out.write(json.dumps(cell) + "\n")
                if not cell["times"]:
                    break  # nor is a smaller gap proved
        return cells


@lru_cache(maxsize=2)
def read(name, folder):
    """X and y of a set, kept for the next cells."""
    return data.read(name, folder)


def race(problem, tol, solvers, plan, clock):
    """The smallest times of interleaved rounds, of all solvers first, then of those near the best time."""
    times, ran, rounds, most, at = {}, "", plan.rounds, 6 * plan.rounds, 0
    while at <= rounds:
        for solver in solvers:
            limit = min(max(DEADLINE * min(times.values(), default=np.inf), MIN_DEADLINE), plan.seconds)
            try:
                took, what = seconds_to(*problem, solver, tol, limit, clock)
            except UnsupportedProblem:  # by its number of rows, of which `warm_up` took some
                continue
            if took is not None:
                times[solver] = min(took, times.get(solver, np.inf))
                ran = what if solver == "auto" else ran
        best = min(times.values(), default=np.inf)
        if not at:
            near = [name for name, t in times.items() if t <= max(AGAIN * best, best + MIN_DEADLINE)]
            solvers = list(dict.fromkeys([*(("auto",) if "auto" in times else ()), *near]))
            rounds *= SHORT_ROUNDS if best < SHORT else 1
        at += 1
        if at > rounds and rounds < most and "auto" in times and not is_near({"times": times}):
            rounds = most  # of two equal runs, one may have been disturbed
    return {"times": times, "ran": ran}


def jobs_of(tasks, names, folder, half, intercept, plan):
    """All jobs, those of a set one after the other."""
    chosen = [ALL[name] for name in tasks or ALL]
    for name in dict.fromkeys(name for task in chosen for name in sets_of(task, names, half)):
        for task in (task for task in chosen if name in sets_of(task, names, half)):
            for with_intercept in INTERCEPTS[intercept]:
                if task.takes_intercept or not with_intercept:
                    yield Job(name, folder, task.name, with_intercept, plan)


def results(jobs, processes):
    """The cells of each job as it is finished."""
    if processes == 1:
        yield from map(Job.run, jobs)
        return
    random.Random(0).shuffle(jobs)  # a run that is interrupted has cells of all kinds
    with ProcessPoolExecutor(processes, get_context("spawn"), set_threads, (1,)) as pool:
        for done in as_completed([pool.submit(Job.run, job) for job in jobs]):
            yield done.result()


# ---------------------------------------------------------------- the report
def is_near(cell):
    """Whether `Auto` is near the best solver of a cell that one of them proved."""
    best, auto = min(cell["times"].values()), cell["times"].get("auto", np.inf)
    return auto <= max(NEAR * best, best + NEAR_SECONDS)


def label(cell):
    with_intercept = ", intercept" if cell["intercept"] else ""
    return f"{cell['data']} | {cell['task']}{with_intercept} | {cell['lam']:g} | {cell['tol']:g}"


def share(some):
    return f"{sum(map(is_near, some))} of {len(some)}" if some else "-"


def report(done):
    """Shares per task, the cells in which `Auto` is not near, and those that no solver proved."""
    proved = [cell for cell in done if cell["times"]]
    keys = sorted({(cell["tol"], cell["intercept"]) for cell in proved}, key=lambda k: (-k[0], k[1]))
    heads = [f"{tol:g}{', intercept' if with_intercept else ''}" for tol, with_intercept in keys]
    yield f"\n| task | {' | '.join(heads)} | all |\n|---|{'---|' * len(heads)}---|"
    for task in [*dict.fromkeys(cell["task"] for cell in proved), None]:
        some = [cell for cell in proved if task in (None, cell["task"])]
        parts = [share([c for c in some if (c["tol"], c["intercept"]) == key]) for key in keys]
        yield f"| {task or '**all**'} | {' | '.join(parts)} | {share(some)} |"
    for tol in sorted({cell["tol"] for cell in proved}, reverse=True):
        some = [cell for cell in proved if cell["tol"] == tol]
        yield f"\nto {tol:g}: {share(some)} cells, {100 * sum(map(is_near, some)) / len(some):.1f} %"
    yield "\n| data | task | lam | to | Auto, s | best, s | ratio | what Auto ran |\n" + "|---" * 8 + "|"
    for cell in sorted((c for c in proved if not is_near(c)), key=label):
        solver, best = min(cell["times"].items(), key=lambda one: one[1])
        auto = cell["times"].get("auto", np.inf)
        ratio = auto / max(best, 1e-9)  # a coarse clock may show no time at all
        yield f"| {label(cell)} | {auto:.4f} | {solver} {best:.4f} | {ratio:.1f} | {cell['ran']} |"
    yield "\nNot proved by any solver within the limit:"
    for cell in sorted((c for c in done if not c["times"]), key=label):
        yield f"- {label(cell)}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--data", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--unseen", "half", type=click.Choice(["choose", "report", "both"]), help="default: other sets")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(ALL)), help="default: all")
@click.option("--set", "names", multiple=True, default=["all"])
@click.option("--intercept", type=click.Choice(list(INTERCEPTS)), default="both", show_default=True)
@click.option("--lam", "lams", multiple=True, type=float, help="default: the task's own")
@click.option("--tol", "tols", multiple=True, type=float, default=[1e-3, 1e-6], show_default=True)
@click.option("--solver", "solvers", multiple=True, default=SOLVERS)
@click.option("--seconds", type=float, default=4.0, show_default=True, help="limit per run")
@click.option("--rounds", type=int, default=3, show_default=True, help="after the first one")
@click.option("--wall", is_flag=True, help="measure seconds of the wall, not of the CPU")
@click.option("--jobs", "processes", type=int, default=1, show_default=True, help="processes at a time")
@click.option(
    "--lines", type=click.Path(dir_okay=False, path_type=Path), help="append a line of JSON per cell"
)
def main(folder, half, tasks, names, intercept, processes, **plan):
    """Measure all cells, and print how often `Auto` is near the best solver."""
    jobs = list(jobs_of(tasks, names, folder, half, intercept, Plan(**plan)))
    for line in report([cell for cells in results(jobs, processes) for cell in cells]):
        click.echo(line)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.auto")
