"""The two kinds of contenders: riskmin, with one run for all levels, and peers, with a ladder of settings."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.harness import ours
from benchmarks.harness.peers import Peer, Rung
from benchmarks.harness.tasks import Task

UNFINISHED = re.compile("converge|maximum number of iterations|max_iter", re.IGNORECASE)
"""Warnings of peers whose iteration limit ended a fit."""
LEVELS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@dataclass(frozen=True)
class Problem:
    """X, y, a task and a lam, with the limits of time and threads."""

    task: Task
    X: Any
    y: Any
    lam: float
    seconds: float
    threads: int = 1

    def spent(self, took):
        return ours.budget(took, self.threads)

    def J(self, point):
        """J at weights, or at weights and an intercept."""
        w, b = point if isinstance(point, tuple) else (point, 0.0)
        return self.task.objective(self.X, self.y, self.lam, w, b)


def key(level):
    """The key of a level in the results."""
    return f"{level:.0e}"


def fastest(pairs):
    """Minimum CPU and minimum wall seconds of the pairs; None if one of them is missing."""
    if not pairs or any(pair is None for pair in pairs):
        return None
    return {"cpu": min(pair[0] for pair in pairs), "wall": min(pair[1] for pair in pairs)}


@dataclass
class Mine:
    """A solver of riskmin."""

    name: str
    runs: list[ours.Run] = field(default_factory=list)
    kind = "ours"

    def warm_up(self, problem):
        return ours.warm_up(problem.X, problem.y, problem.task, problem.lam, self.name, problem.threads)

    def race(self, problem, known):
        at = (problem.X, problem.y, problem.task, problem.lam, self.name, LEVELS[-1])
        self.runs.append(ours.run(*at, problem.seconds, problem.threads))

    def seconds(self, best):
        """CPU seconds of one round."""
        return self.runs[0].points[-1][0]

    def values(self):
        return [run.result.value for run in self.runs]

    def summary(self, problem, best):
        last = min(self.runs, key=lambda run: run.points[-1][0])
        certified = {key(v): fastest([run.certified(v) for run in self.runs]) for v in LEVELS}
        reached = {key(v): fastest([run.reached(v, best) for run in self.runs]) for v in LEVELS}
        points = thinned(last.points)
        return {
            "kind": self.kind,
            "certified": certified,
            "reached": reached,
            "status": last.result.status,
            "solver": last.result.solver,
            "J": problem.J(last.point),
            "suboptimality": problem.J(last.point) / best - 1,
            "gap": last.result.gap / last.result.value,
            "calls": points[-1][4],
            "steps": last.result.n_iter,
            "setup": last.setup,
            "rounds": len(self.runs),
            "points": [[cpu, wall, J / best - 1, gap / J, calls] for cpu, wall, J, gap, calls in points],
        }


def thinned(points, most=300):
    """At most `most` points, including the last."""
    step = -(-len(points) // most)
    return points[::-1][::step][::-1]


@dataclass
class Climb:
    """A peer's fits with one setting: CPU and wall seconds, J, and whether the iteration limit ended it."""

    rung: Rung
    J: float
    took: list[tuple[float, float]]
    limited: bool

    def within(self, level, best):
        return best * (1 + level) >= self.J


@dataclass
class Theirs:
    """A peer: all settings are run in the first round, and only the useful ones in later rounds."""

    peer: Peer
    climbs: list[Climb] = field(default_factory=list)
    error: str = ""
    held: Any = None
    kind = "peer"

    @property
    def name(self):
        return self.peer.name

    def warm_up(self, problem):
        """Convert X to the peer's format, and fit once to some of the rows; False if that fails."""
        rows = np.random.default_rng(0).permutation(len(problem.y))[:500]
        rows = np.unique(np.concatenate([rows, *first_of_each(problem.task, problem.y)]))
        try:
            X, y = self.peer.hold(problem.X[rows], problem.y[rows])
            self._fit(X, y, problem, self.peer.ladder[0])
            self.held = self.peer.hold(problem.X, problem.y)
        except Exception as error:  # errors of a peer are reported and skipped
            self.error = f"{type(error).__name__}: {error}"
            return False
        return True

    def _fit(self, X, y, problem, rung):
        with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
            warnings.simplefilter("always")  # convergence warnings are part of the measurement
            w = self.peer.fit(X, y, problem.task, problem.lam, rung)
        return w, any(UNFINISHED.search(str(word.message)) for word in caught)

    def climb(self, problem, rung):
        clock = ours.Clock()
        w, limited = self._fit(*self.held, problem, rung)
        took = clock.read()
        return Climb(rung, problem.J(w), [took], limited)

    def idle(self, rung):
        """Whether an earlier fit that its iteration limit ended shows that this setting brings nothing new.

        A smaller tolerance with the same limit gives the same fit, unless the tolerance controls shrinking:
        then a much smaller one may differ. A higher limit is useful for tolerances that were not met.
        """
        limited = [climb.rung for climb in self.climbs if climb.limited]
        if not limited:
            return False
        if rung.steps == limited[-1].steps:
            return not self.peer.shrinks or rung.tol > 1e-2 * limited[-1].tol
        return rung.tol > max(one.tol for one in limited if one.steps == limited[-1].steps)

    def endless(self, rung, problem):
        """Whether a setting is predicted, in proportion to its limit, to take three times the time limit."""
        last = self.climbs[-1] if self.climbs else None
        if last is None or not (last.limited and last.rung.steps):
            return False
        return problem.spent(last.took[0]) * rung.steps / last.rung.steps > 3 * problem.seconds

    def race(self, problem, known):
        if self.climbs:
            for climb in self.useful(known):
                climb.took += self.climb(problem, climb.rung).took
            return
        for rung in self.peer.ladder:
            if self.idle(rung):
                continue
            if self.endless(rung, problem):
                break
            self.climbs.append(self.climb(problem, rung))
            spent = sum(problem.spent(climb.took[0]) for climb in self.climbs)
            if self.climbs[-1].within(LEVELS[-1], known) or spent > problem.seconds:
                break

    def useful(self, best):
        """The settings that reach some level first, by CPU seconds."""
        fastest = {}
        for level in LEVELS:
            good = [climb for climb in self.climbs if climb.within(level, best)]
            if good:
                first = min(good, key=lambda climb: min(climb.took)[0])
                fastest[first.rung] = first
        return list(fastest.values())

    def seconds(self, best):
        return sum(climb.took[0][0] for climb in self.useful(best)) if self.useful(best) else np.inf

    def values(self):
        return [climb.J for climb in self.climbs]

    def summary(self, problem, best):
        reached = {}
        for level in LEVELS:
            good = [fastest(climb.took) for climb in self.climbs if climb.within(level, best)]
            reached[key(level)] = min(good, key=lambda took: took["cpu"], default=None)
        rungs = [
            {"tol": c.rung.tol, "steps": c.rung.steps, "J": c.J, "suboptimality": c.J / best - 1}
            | {"limited": c.limited, "rounds": len(c.took)}
            | fastest(c.took)
            for c in self.climbs
        ]
        return {
            "kind": self.kind,
            "reached": reached,
            "suboptimality": min((c.J for c in self.climbs), default=np.inf) / best - 1,
            "longest": {at: max((rung[at] for rung in rungs), default=0.0) for at in ("cpu", "wall")},
            "rungs": rungs,
        }


def first_of_each(task, y):
    """The index of the first row of each class, if the labels are classes."""
    if task.labels not in ("signs", "classes"):
        return [np.array([], dtype=int)]
    return [np.flatnonzero(y == label)[:2] for label in np.unique(y)]
