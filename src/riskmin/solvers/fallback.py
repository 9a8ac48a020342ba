"""Solvers in turn: where the certified gap decreases too slowly, the next continues from the best point."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from riskmin.core import Array, Iterate, RunPaused, Solver, SolverFailed, UnsupportedProblem, as_solver
from riskmin.core.deadline import OutOfTime
from riskmin.problem.objective import Objective, is_foreign
from riskmin.solvers.state_checks import check_state


@dataclass(frozen=True)
class Fallback(Solver):
    r"""Solvers in turn, the one expected to be the fastest first and one that always converges last.

    Progress is measured by counted work (oracle calls, epochs, evaluations along lines; no time is measured,
    so a run is reproducible to the bit). The rate of a solver is the number of decimal digits of the
    certified relative gap that it gained in the second half of its work. If, at this rate, the missing digits
    would take more work than the whole run so far, or if the solver ends, the next one continues from the
    best point (or from the initial one, where the gap is still above 0.3). The best point and the best bound
    are never discarded. Of a `Switching`, only the second solver is judged, by its own work: the first one is
    already compared with it. After the last solver, the first has another turn, with twice the work. A round
    of turns that decreases the gap by less than 1 % ends the run.

    A solver that raises an exception has ended: the next one continues, a `SolverFailed` warning has the
    exception as its cause, and ``result.solver`` names both. Errors of the system (memory, files) end the
    run, and so does every exception of a run on rows elsewhere: a worker or an owner may have raised it.

    Parameters
    ----------
    solvers : tuple of Solver
    tol : float
        The relative gap to reach.
    trial : float
        The work of a solver's first turn before its progress is judged, in passes over X; it doubles with
        every round of turns.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Bundle, Hinge, L2, Lbfgs, Objective, Fallback, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 3))
    >>> y = np.where(X[:, 0] + rng.standard_normal(80) > 0, 1.0, -1.0)
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=1e-3)
    >>> result = minimize(J, Fallback((Lbfgs(), Bundle()), tol=1e-6), tol=1e-6)
    >>> result.status, sorted({row["solver_index"] for row in result.trace})
    ('converged', [1.0, 2.0])
    """

    RESTART_GAP = 0.3
    """Above this relative gap, the next solver starts from the initial point, since the best one is no
    better."""
    ROUND_PROGRESS = 0.01
    """A round of turns that decreases the gap by less than this fraction is the last one."""
    MAX_LISTED_TURNS = 4
    """Turns that the summary of a run lists one by one."""

    solvers: tuple[Solver, ...]
    tol: float = field(default=1e-3, repr=False)
    trial: float = field(default=100.0, repr=False)

    def __post_init__(self) -> None:
        if not self.solvers:
            raise ValueError(f"{type(self).__name__} needs at least one solver")
        object.__setattr__(self, "solvers", tuple(as_solver(solver) for solver in self.solvers))
        if not self.tol > 0:
            raise ValueError(f"tol must be > 0, the relative gap to reach, not {self.tol}")
        if not self.trial > 0:
            raise ValueError(f"trial must be > 0, the work before progress is judged, not {self.trial}")

    @cached_property
    def first(self) -> Solver:
        """The solver that starts."""
        return self.solvers[0]

    def supports(self, obj: Objective) -> str | None:
        """None for what one of the solvers supports; others are skipped."""
        reasons = [solver.supports(obj) for solver in self.solvers]
        return None if None in reasons else reasons[0]

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the solvers, one solver after the other."""
        return self._run(obj, _BestSoFar(w0, w0), 0, None)

    def verifies_states(self, obj: Objective) -> bool:
        """Whether all solvers do that."""
        return all(solver.verifies_states(obj) for solver in self.solvers)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state, with the solver that saved it."""
        # found: (value, lower, work)
        shapes = {"found": "3", "start": "d", "best": "d", "turn": "1"}
        check_state(state, shapes, d=obj.risk.dim)
        best, k, inner = _BestSoFar.from_state(state), int(state["turn"][0]), _inner_state(state)
        if not 0 <= k < len(self.solvers):
            raise ValueError(f"it belongs to solver {k + 1}, but there are {len(self.solvers)} solvers")
        return self._run(obj, best, k, self.solvers[k].resume(obj, inner) if inner else None)

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from a run on the same risk, with the solver that ended it."""
        best, k = _BestSoFar(state["best"], state["best"]), int(state["turn"][0])
        inner = _inner_state(state)
        return self._run(obj, best, k, self.solvers[k].warm_start(obj, inner, before) if inner else None)

    def summary(self, trace: list[dict[str, float]]) -> str:
        """The steps of each turn, as a sentence; empty if the first solver made all of them."""
        solvers = groupby([int(row.get("solver_index", 1)) - 1 for row in trace])
        turns = [(k, len(list(rows))) for k, rows in solvers]
        if len(turns) < 2:
            return ""
        listed = ", then ".join(
            f"{self.solvers[k].name} for {n} steps" for k, n in turns[: self.MAX_LISTED_TURNS]
        )
        return (
            listed if len(turns) <= self.MAX_LISTED_TURNS else f"{listed}, and so on, in {len(turns)} turns"
        )

    def _solver(self, k: int) -> Solver:
        """Solver k; the others need not be known yet for the first."""
        return self.solvers[k] if k else self.first

    def _run(
        self, obj: Objective, best: _BestSoFar, k: int, steps: Iterator[Iterate] | None
    ) -> Iterator[Iterate]:
        """The iterates from solver k on, whose iterator may be given; a solver that ended has None."""
        running: dict[int, Iterator[Iterate] | None] = {} if steps is None else {k: steps}
        # of the trial of the first round
        factor, excess = 1.0, math.inf
        while True:
            # solvers keep their iterators between turns, so that no progress is lost
            if k not in running:
                # a point with a large gap is no better a start than the initial one
                start = best.w if best.gap <= self.RESTART_GAP else best.start
                try:
                    running[k] = self._solver(k).iterates(obj, start)
                except Exception as error:
                    running[k] = None
                    _failure(obj, best, self._solver(k), error)
            steps = running[k]
            if steps is not None:
                ended = yield from self._turn(obj, best, k, steps, factor)
                running[k] = None if ended else steps
            if len(running) == len(self.solvers) and all(s is None for s in running.values()):
                if best.refusals and best.value == math.inf and not obj.count.failures:
                    raise UnsupportedProblem(best.refusals[0])
                return  # all solvers have ended
            k += 1
            if k == len(self.solvers):
                if best.excess > (1 - self.ROUND_PROGRESS) * excess:
                    return  # twice the work of the round before has gained nearly nothing
                k, factor, excess = 0, 2 * factor, best.excess

    def _turn(self, obj: Objective, best: _BestSoFar, k: int, steps: Iterator[Iterate], factor: float) -> Any:
        """The iterates of one solver until it is too slow; return whether it has ended."""
        monitor = _TurnMonitor(obj.count.calls, best.work)
        while True:
            calls = obj.count.calls
            try:
                it = next(steps, None)
            # a solver that fails in its course counts as ended
            except Exception as error:
                _failure(obj, best, self._solver(k), error)
                it = None
            if it is None:
                return True
            improved, stage = best.update(obj, it), int(it.info.get("solver", 0))
            if monitor.work and stage != monitor.stage:
                # the second solver of a `Switching` is judged by its own work
                monitor = _TurnMonitor(calls, best.work)
            monitor.stage = stage
            best.work = monitor.update(obj.count.calls, it, best.gap, improved)
            yield _with_turn_info(it, k, best)
            if monitor.is_too_slow(self, factor, best.work) and len(self.solvers) > 1:
                return False


def _failure(obj: Objective, best: _BestSoFar, solver: Solver, error: Exception) -> None:
    """Record the failure or refusal of a solver; raise an error that ends the run."""
    if isinstance(error, (OutOfTime, RunPaused, MemoryError, OSError)):
        raise error
    # rounding may make any matrix singular, and `supports` need not know everything: both are no defects
    if isinstance(error, (UnsupportedProblem, np.linalg.LinAlgError)):
        best.refusals.append(str(error))
        return
    # the code of a user, a worker or an owner may have raised it
    executor = obj.risk.executor
    if is_foreign(obj.risk) or (executor is not None and not executor.is_local):
        raise error
    if best.value == math.inf:
        obj.risk(best.start)  # a risk that cannot be evaluated raises its own error
    message = f"{solver.name} failed ({type(error).__name__}: {error})"
    obj.count.failures.append(message)
    warning = SolverFailed(f"{message}; the run goes on without it")
    warning.__cause__ = error
    warnings.warn(warning, stacklevel=2)


def _with_turn_info(it: Iterate, k: int, best: _BestSoFar) -> Iterate:
    """The iterate with the number of its solver, and a state that includes it and the best point."""
    # the best point changes, while the state may be saved later
    inner, start, w, found = it.state, best.start, best.w, (best.value, best.lower, best.work)

    def state() -> dict[str, Array]:
        inner_arrays = {} if inner is None else {f"turn.{name}": a for name, a in inner().items()}
        own = {"start": start, "best": w, "found": np.array(found), "turn": np.array([float(k)])}
        return own | inner_arrays

    return it._replace(info={**it.info, "solver_index": k + 1.0}, state=state)


def _inner_state(state: dict[str, Array]) -> dict[str, Array]:
    """The part of a state that belongs to the solver which was running."""
    return {name.removeprefix("turn."): a for name, a in state.items() if name.startswith("turn.")}


@dataclass
class _BestSoFar:
    """The best point and the best bound of all solvers so far, and the initial point."""

    start: Array
    w: Array
    value: float = math.inf
    lower: float = -math.inf
    work: float = 0.0
    refusals: list[str] = field(default_factory=list)
    """Why solvers ended that do not support the problem."""

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> _BestSoFar:
        value, lower, work = (float(v) for v in state["found"])
        return cls(state["start"], state["best"], value, lower, work)

    @property
    def excess(self) -> float:
        """The gap; 0 is a lower bound of J, too. Without a bound, it still shows whether J decreases."""
        return self.value - max(self.lower, 0.0)

    @property
    def gap(self) -> float:
        """The relative gap."""
        return self.excess / self.value if self.value > 0 else 0.0

    def update(self, obj: Objective, it: Iterate) -> bool:
        """Keep the better point and the better bound; return whether either is new."""
        better_point = it.value < self.value
        if better_point:
            self.w, self.value = it.w, it.value
        lower = obj.lower(it.cut)
        # a bound above J is rounding, in columns of very different units
        if better_bound := self.lower < lower <= self.value:
            self.lower = lower
        return better_point or better_bound


@dataclass
class _TurnMonitor:
    """The gap as a function of the work of one turn."""

    MAX_IDLE_ITERATES = 40
    """A turn ends after this many iterates in a row that improve neither the point nor the bound."""
    LINE_EVALUATION_WORK = 0.05
    """The work of one evaluation along a line, in passes over X."""

    calls: int
    """Oracle calls before the turn."""
    previous_work: float
    """The work before the turn."""
    stage: int = 0
    """Which solver of a `Switching` is running; 0 for any other solver."""
    evaluations: float = 0.0
    work: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    idle: int = 0
    """The number of last iterates that improved nothing."""

    def update(self, calls: int, it: Iterate, gap: float, improved: bool) -> float:
        """Record an iterate; return the work of the run so far."""
        self.evaluations += it.info.get("evaluations", 0.0)
        # an oracle call and an epoch are one pass over X each, unless a solver counts them itself
        passes = it.info.get("passes", it.info.get("epochs", 0.0))
        self.work.append(calls - self.calls + passes + self.LINE_EVALUATION_WORK * self.evaluations)
        self.gaps.append(gap)
        self.idle = 0 if improved else self.idle + 1
        return self.previous_work + self.work[-1]

    def is_too_slow(self, run: Fallback, factor: float, total: float) -> bool:
        """Whether the missing digits would take more work than the run so far."""
        work, gap, tol = self.work[-1], self.gaps[-1], run.tol
        if self.idle >= self.MAX_IDLE_ITERATES:
            return True
        # one iterate has no rate, and the first solver of a `Switching` is compared with its second one there
        if len(self.work) < 2 or self.stage == 1 or gap <= tol or work < (budget := factor * run.trial):
            return False
        # the last iterate of the first half of the work; the digits gained since then give the rate
        half = max(k for k, done in enumerate(self.work) if done <= work / 2 or k == 0)
        # missing / rate > total, multiplied by the digits gained, which may be 0
        gained = math.log10(self.gaps[half] / gap) if self.gaps[half] > gap else 0.0
        return math.log10(gap / tol) * (work - self.work[half]) > gained * max(total, budget)
