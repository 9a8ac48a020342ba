"""Run the chosen cells, in order or in several processes, print them and save the results."""

from __future__ import annotations

import json
import math
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import click
import numpy as np
import scipy.sparse as sp

from benchmarks.harness import data, memory, ours, report
from benchmarks.harness.cells import Plan, cell
from benchmarks.harness.machine import machine, set_threads, versions
from benchmarks.harness.peers import PEERS
from benchmarks.harness.tasks import TASKS
from benchmarks.unseen.tables import UNSEEN

INTERCEPTS = {"no": (False,), "yes": (True,), "both": (False, True)}


def chosen(names, known, what):
    """The requested names; the words `all` and `none` are allowed."""
    if names == ("none",):
        return ()
    if "all" in names:
        return tuple(known)
    wrong = [name for name in names if name not in known]
    if wrong:
        raise click.BadParameter(f"there is no {what} named {wrong[0]!r}; the names are {', '.join(known)}")
    return tuple(names)


def sets_of(task, names, half=None):
    """The data sets that suit a task: all, or the requested ones; of a half of the unseen sets, if any."""
    known = data.SETS if half is None else {n: one for n, one in data.UNSEEN_SETS.items() if in_half(n, half)}
    return [name for name in chosen(tuple(names), known, "set") if known[name].labels == task.labels]


def in_half(name, half):
    return half == "both" or UNSEEN[name].half == half


@dataclass(frozen=True)
class Job:
    """What a process needs to run one cell."""

    name: str
    folder: Path | None
    task: str
    intercept: bool
    lam: float
    plan: Plan
    memory: bool = False

    def run(self):
        """The cell; None if its data are not there."""
        loaded = read(self.name, self.folder)
        if isinstance(loaded, str):
            return None
        X, y = loaded
        task = TASKS[self.task].with_intercept() if self.intercept else TASKS[self.task]
        if self.name in UNSEEN and task.labels == "counts" and not self.intercept:
            X = with_ones(X)
        result = cell(self.name, X, y, task, self.lam, self.plan)
        if self.name in UNSEEN:
            result["half"] = UNSEEN[self.name].half
        if self.memory:
            memory.add(result, X, y, self.plan.seconds)
        return result


@lru_cache(maxsize=2)
def read(name, folder):
    """X and y of a set, kept for the next cells."""
    return data.read(name, folder)


def with_ones(X):
    """X with a column of ones: the mean of counts is not one."""
    ones = np.ones((X.shape[0], 1))
    return sp.csr_array(sp.hstack([X, ones])) if sp.issparse(X) else np.hstack([X, ones])


def jobs_of(tasks, names, lams, folder, plan, with_memory, intercept, half):
    """All cells, those of a set one after the other."""
    by_name = [TASKS[name] for name in chosen(tuple(tasks), TASKS, "task")]
    for name in dict.fromkeys(name for task in by_name for name in sets_of(task, names, half)):
        for task in (task for task in by_name if name in sets_of(task, names, half)):
            for with_intercept in INTERCEPTS[intercept]:
                if with_intercept and not task.takes_intercept:
                    continue
                # of the unseen sets, the two harder strengths
                for lam in lams or task.lams[-2 if half else 0 :]:
                    yield Job(name, folder, task.name, with_intercept, lam, plan, with_memory)


def results_of(jobs, processes):
    """The cells as they are finished."""
    if processes == 1:
        for job in jobs:
            loaded = read(job.name, job.folder)
            if isinstance(loaded, str):
                click.echo(loaded, err=True)
            else:
                yield job.run()
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), set_threads, (jobs[0].plan.threads,)) as pool:
        for done in as_completed([pool.submit(Job.run, job) for job in jobs]):
            if done.result() is not None:
                yield done.result()


def run_all(
    *, tasks, names, lams, folder, solvers, peers, seconds, rounds, threads, clock, memory, file,
    intercept="no", half=None, jobs=1, lines=None,
):  # fmt: skip
    """Run all cells; the file is rewritten after each of them, so that nothing is lost."""
    plan = Plan(
        chosen(tuple(solvers), ours.solvers(), "solver of ours"),
        chosen(tuple(peers), PEERS, "peer"),
        seconds,
        rounds,
        threads,
    )
    results = {
        "machine": machine(threads),
        "versions": versions(),
        "clock": clock,
        "seconds": seconds,
        "cells": [],
    }
    click.echo(f"{results['machine']['processor']}, {threads} thread(s), {clock} seconds\n\n{report.head()}")
    todo = list(jobs_of(tasks, names, lams, folder, plan, memory, intercept, half))
    with lines.open("a") if lines else nullcontext() as out:
        for one in results_of(todo, jobs) if todo else ():
            results["cells"].append(one)
            for line in [*report.lines(one, clock), *report.memory_lines(one)]:
                click.echo(line)
            if file:
                file.write_text(json.dumps(finite(results), indent=1))
            if out:
                out.write(json.dumps(finite(without_points(one))) + "\n")
                out.flush()
    click.echo("\n" + report.compact(results["cells"], clock))
    click.echo("\n" + report.summary(results["cells"], clock))
    return results


def without_points(one):
    """A cell without the curves of its runs."""
    solvers = {
        name: {key: value for key, value in result.items() if key not in ("points", "rungs")}
        for name, result in one["solvers"].items()
    }
    return one | {"solvers": solvers}


def finite(value):
    """Replace infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say_names():
    for task in TASKS.values():
        click.echo(f"task {task.name}: lam {', '.join(f'{lam:g}' for lam in task.lams)}; {task.labels}")
    for name, one in data.SETS.items():
        click.echo(f"set {name}: {one.labels}")
    for name, one in UNSEEN.items():
        click.echo(f"unseen set {name}, of {one.source}, to {one.half}: {one.labels}")
    click.echo(f"solvers of ours: {', '.join(ours.solvers())}")
    for peer in PEERS.values():
        missing = "" if peer.installed() else f" (not installed: {peer.package})"
        click.echo(f"peer {peer.name}: {', '.join(peer.tasks)}{missing}")
