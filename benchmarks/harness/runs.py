"""Run the chosen cells in order, print them and save the results."""

from __future__ import annotations

import json
import math

import click

from benchmarks.harness import data, memory, ours, report
from benchmarks.harness.cells import Plan, cell
from benchmarks.harness.machine import machine, versions
from benchmarks.harness.peers import PEERS
from benchmarks.harness.tasks import TASKS


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


def sets_of(task, names):
    """The data sets that suit a task: all, or the requested ones."""
    return [name for name in chosen(tuple(names), data.SETS, "set") if data.SETS[name].labels == task.labels]


def run_all(*, tasks, names, lams, folder, solvers, peers, seconds, rounds, threads, clock, memory, file):
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
    by_name = [TASKS[name] for name in chosen(tuple(tasks), TASKS, "task")]
    for name in dict.fromkeys(name for task in by_name for name in sets_of(task, names)):
        loaded = data.read(name, folder)
        if isinstance(loaded, str):
            click.echo(loaded, err=True)
            continue
        for task in (task for task in by_name if name in sets_of(task, names)):
            for lam in lams or task.lams:
                one(results, (name, *loaded, task, lam, plan), memory)
                if file:
                    file.write_text(json.dumps(finite(results), indent=1))
    click.echo("\n" + report.compact(results["cells"], clock))
    return results


def one(results, at, with_memory):
    """Run one cell and print it immediately."""
    result = cell(*at)
    _, X, y, _, _, plan = at
    if with_memory:
        memory.add(result, X, y, plan.seconds)
    results["cells"].append(result)
    for line in [*report.lines(result, results["clock"]), *report.memory_lines(result)]:
        click.echo(line)


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
    click.echo(f"solvers of ours: {', '.join(ours.solvers())}")
    for peer in PEERS.values():
        missing = "" if peer.installed() else f" (not installed: {peer.package})"
        click.echo(f"peer {peer.name}: {', '.join(peer.tasks)}{missing}")
