"""One cell of the table: a data set, a task and a lam, and all contenders in interleaved rounds."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.sparse as sp

from benchmarks.harness import ours
from benchmarks.harness.peers import PEERS
from benchmarks.harness.racers import Mine, Problem, Theirs

SHORT, MIDDLE = 0.5, 2.0
"""Seconds per round below which a contender runs in all rounds, or in two; slower ones run once."""


@dataclass(frozen=True)
class Plan:
    """The contenders and the time limits."""

    solvers: tuple[str, ...] = ("auto",)
    peers: tuple[str, ...] = tuple(PEERS)
    seconds: float = 5.0
    rounds: int = 3
    threads: int = 1


def contenders(problem, plan):
    """The applicable contenders, warmed up, and the reasons why others cannot run."""
    racers_ready, out = [], {}
    for name in plan.solvers:
        contender = Mine(name)
        if contender.warm_up(problem):
            racers_ready.append(contender)
    for name in plan.peers:
        peer = PEERS[name]
        if not peer.takes(problem.task, problem.X, problem.lam):
            continue
        if not peer.installed():
            out[name] = f"{peer.package} is not installed"
            continue
        theirs = Theirs(peer)
        if theirs.warm_up(problem):
            racers_ready.append(theirs)
        else:
            out[name] = theirs.error
    return racers_ready, out


def rounds_of(racer, best, most):
    """Number of rounds of a contender."""
    seconds = racer.seconds(best)
    return most if seconds < SHORT else min(most, 2) if seconds < MIDDLE else 1


def race(racers, problem, known, most):
    """Run interleaved rounds: all contenders once, then the fast ones again.

    Returns the smallest known J, and the errors of peers.
    """
    out = {}
    for at in range(most):
        for racer in list(racers):
            if at and rounds_of(racer, known, most) <= at:
                continue
            try:
                racer.race(problem, known)
            except Exception as error:  # an error of one peer must not end the others
                if racer.kind == "ours":
                    raise
                out[racer.name] = f"{type(error).__name__}: {error}"
                racers.remove(racer)
        known = min([known, *(J for racer in racers for J in racer.values())])
    return known, out


def size(X):
    """Bytes of X."""
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if sp.issparse(X) else X.nbytes)


def cell(name, X, y, task, lam, plan):
    """All results of one cell, as plain data."""
    strength = task.strength(X, y, lam)
    problem = Problem(task, X, y, strength, plan.seconds, plan.threads)
    known = ours.reference(X, y, task, strength, plan.seconds, plan.threads)
    racers, out = contenders(problem, plan)
    best, more = race(racers, problem, known.best, plan.rounds)
    return {
        "data": name,
        "task": task.name,
        "intercept": task.intercept,
        "seconds": plan.seconds,
        "lam": lam,
        "strength": strength,
        "rows": X.shape[0],
        "columns": X.shape[1],
        "numbers": int(X.nnz if sp.issparse(X) else X.size),
        "sparse": bool(sp.issparse(X)),
        "bytes": size(X),
        "best": best,
        "lower": min(known.lower, best),
        "known": max(0.0, 1 - known.lower / best) if best > 0 else 0.0,
        "reference": known.solver,
        "left_out": out | more,
        "solvers": {racer.name: racer.summary(problem, best) for racer in racers},
    }
