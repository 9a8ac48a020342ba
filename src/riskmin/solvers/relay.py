"""Solvers in turn: where the certified gap of one falls too slowly, the next goes on from the best point."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from riskmin.objective import Objective
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, Resumable, Solver, Unsuited, Warm

IDLE = 40
"""Iterates in a row that better neither the point nor the bound end a turn."""
NEWS = 0.3
"""At a larger gap nothing was found that another solver could use, so it starts where the first one did."""
TOLD = 4
"""So many turns are told one by one."""
LOOK = 0.05
"""The work of one look along a line, beside a pass over X."""


@dataclass(frozen=True)
class Relay:
    r"""Solvers in turn, the one expected to be the fastest first and one that always converges last.

    Each is watched by counted work (oracle calls, epochs, looks along lines; no clock is asked, so that a run
    gives the same bits each time). From the second half of a solver's work, the digits of the certified
    relative gap that it gains are known; where those that are missing would take more work than all that was
    done so far, or where the solver can get no further, the next one goes on from the best point (or from
    the start, where the gap is still above 0.3). The best point and bound are kept throughout. After the last
    one the first has its turn again, with twice the work.

    Parameters
    ----------
    solvers : tuple of Solver
    tol : float
        The relative gap that is sought.
    trial : float
        The work that a solver is given in its first turn before its progress is judged; twice that in the
        next.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Bundle, Hinge, L2, Lbfgs, Objective, Relay, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 3))
    >>> y = np.where(X[:, 0] + rng.standard_normal(80) > 0, 1.0, -1.0)
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=1e-3)
    >>> result = minimize(J, Relay((Lbfgs(), Bundle()), tol=1e-6), tol=1e-6)  # kinks stop the first
    >>> result.status, sorted({row["turn"] for row in result.trace})
    ('converged', [1.0, 2.0])
    """

    solvers: tuple[Solver, ...]
    tol: float = field(default=1e-3, repr=False)
    trial: float = field(default=100.0, repr=False)

    def __post_init__(self) -> None:
        if not self.solvers:
            raise ValueError("Relay needs at least one solver")
        if not self.tol > 0:
            raise ValueError(f"tol must be > 0, the gap that is sought, not {self.tol}")
        if not self.trial > 0:
            raise ValueError(f"trial must be > 0, the work before a judgement, not {self.trial}")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the solvers, one after the other."""
        return self._run(obj, _Found(w0, w0), 0, None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state, with the solver that it is of."""
        shapes = {"found": "3", "start": "d", "best": "d", "cut": "e", "turn": "1"}
        checked(state, shapes, d=obj.risk.dim, e=obj.risk.dim + 1)
        found, k, own = _Found.of(state), int(state["turn"][0]), _own(state)
        if not 0 <= k < len(self.solvers):
            raise ValueError(f"it is of solver {k + 1} of {len(self.solvers)}")
        solver: Any = self.solvers[k]
        steps = solver.resume(obj, own) if own and isinstance(solver, Resumable) else None
        return self._run(obj, found, k, steps)

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from a run on the same risk, with the solver that ended it."""
        found, k, own = _Found(state["best"], state["best"]), int(state["turn"][0]), _own(state)
        solver: Any = self.solvers[k]
        steps = solver.warm(obj, own, before) if own and isinstance(solver, Warm) else None
        return self._run(obj, found, k, steps)

    def account(self, trace: list[dict[str, float]]) -> str:
        """What was done, in words; nothing where the first solver did it all."""
        turns: list[tuple[int, int]] = []
        for k, rows in groupby(trace, lambda row: int(row.get("turn", 1)) - 1):
            turns.append((k, len(list(rows))))
        if len(turns) < 2:
            return ""
        told = ", then ".join(f"{type(self.solvers[k]).__name__} for {n} steps" for k, n in turns[:TOLD])
        return told if len(turns) <= TOLD else f"{told}, and so on, in {len(turns)} turns"

    def _run(
        self, obj: Objective, found: _Found, k: int, steps: Iterator[Iterate] | None
    ) -> Iterator[Iterate]:
        running: dict[int, Iterator[Iterate] | None] = {} if steps is None else {k: steps}
        budget, before = self.trial, math.inf
        while True:
            if k not in running:
                running[k] = self._started(
                    obj, self.solvers[k], found.w if found.gap <= NEWS else found.start
                )
            steps = running[k]
            if steps is not None:
                ended = yield from self._turn(obj, found, k, steps, budget)
                running[k] = None if ended else steps
            if len(running) == len(self.solvers) and all(s is None for s in running.values()):
                return  # none of them can get any further
            k += 1
            if k == len(self.solvers):
                if found.gap >= before:
                    return  # a whole round has bettered nothing
                k, budget, before = 0, 2 * budget, found.gap

    def _started(self, obj: Objective, solver: Solver, w: Array) -> Iterator[Iterate] | None:
        try:
            return solver.iterates(obj, w)
        except Unsuited:
            return None

    def _turn(self, obj: Objective, found: _Found, k: int, steps: Iterator[Iterate], budget: float) -> Any:
        """The iterates of one solver until it falls behind; whether it can get no further."""
        alone, resumes = len(self.solvers) == 1, isinstance(self.solvers[k], Resumable)
        calls, before, looks, watch = obj.count.calls, found.work, 0.0, _Watch()
        while True:
            try:
                it = next(steps, None)
            except (Unsuited, np.linalg.LinAlgError):
                it = None
            if it is None:
                return True
            better = found.take(obj, it)
            looks += it.info.get("looks", 0.0)
            work = obj.count.calls - calls + it.info.get("epochs", 0.0) + LOOK * looks
            watch.take(work, found.gap, better)
            found.work = before + watch.work[-1]
            yield _told(it, k, found, resumes)
            if not alone and watch.behind(self.tol, budget, found.work):
                return False


def _told(it: Iterate, k: int, found: _Found, resumes: bool) -> Iterate:
    """The iterate with the best cut, whose turn it is, and a state that has all of this in it."""
    assert found.cut is not None
    inner, now = it.state if resumes else None, replace(found)

    def state() -> dict[str, Array]:
        own = {} if inner is None else {f"turn.{name}": a for name, a in inner().items()}
        return now.state() | {"turn": np.array([float(k)])} | own

    return it._replace(cut=found.cut, info={**it.info, "turn": k + 1.0}, state=state)


def _own(state: dict[str, Array]) -> dict[str, Array]:
    """The part of a state that is the solver's."""
    return {name.removeprefix("turn."): a for name, a in state.items() if name.startswith("turn.")}


@dataclass
class _Found:
    """The best point and the best bound of all solvers so far, and where they started."""

    start: Array
    w: Array
    value: float = math.inf
    cut: Cut | None = None
    lower: float = -math.inf
    work: float = 0.0

    @classmethod
    def of(cls, state: dict[str, Array]) -> _Found:
        value, lower, work = (float(v) for v in state["found"])
        return cls(
            state["start"], state["best"], value, Cut(state["cut"][:-1], float(state["cut"][-1])), lower, work
        )

    @property
    def gap(self) -> float:
        return (self.value - max(self.lower, 0.0)) / self.value if self.value > 0 else 0.0

    def take(self, obj: Objective, it: Iterate) -> bool:
        """Keep what is better, and tell whether anything is."""
        nearer = it.value < self.value
        if nearer:
            self.w, self.value = it.w, it.value
        lower = obj.lower(it.cut)
        if better := self.cut is None or lower > self.lower:
            self.cut, self.lower = it.cut, lower
        return nearer or better

    def state(self) -> dict[str, Array]:
        assert self.cut is not None
        found = np.array([self.value, self.lower, self.work])
        return {"start": self.start, "best": self.w, "cut": np.append(self.cut.a, self.cut.b), "found": found}


@dataclass
class _Watch:
    """How the gap falls with the work of one turn."""

    work: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    idle: int = 0

    def take(self, work: float, gap: float, better: bool) -> None:
        self.work.append(work)
        self.gaps.append(gap)
        self.idle = 0 if better else self.idle + 1

    def behind(self, tol: float, budget: float, total: float) -> bool:
        """Whether the digits that are missing would take more work than all that was done so far."""
        work, gap = self.work[-1], self.gaps[-1]
        if self.idle >= IDLE:
            return True
        if work < budget or gap <= tol:
            return False
        half = max(k for k, done in enumerate(self.work) if done <= work / 2 or k == 0)
        gained = math.log10(self.gaps[half] / gap) if self.gaps[half] > gap else 0.0
        return math.log10(gap / tol) * (work - self.work[half]) > gained * max(total, budget)
