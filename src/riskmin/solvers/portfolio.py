"""Solvers in turn: where the certified gap decreases too slowly, the next one continues."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from typing import Any

import numpy as np

from riskmin.core import Array, Iterate, RunPaused, Solver, SolverFailed, UnsupportedProblem, as_solver
from riskmin.core.deadline import OutOfTime
from riskmin.problem.objective import Objective, is_foreign
from riskmin.solvers.state_checks import check_state


@dataclass(frozen=True)
class Portfolio(Solver):
    r"""Solvers in turn: the one expected to be the fastest first, one that always converges last.

    The rate of a solver is the number of decimal digits of the certified relative gap that it gained per
    unit of work, in the second half of its work. At this rate, the digits that are missing to tol take

    .. math:: \frac{\log_{10} (\text{gap} / (\text{tol} \cdot J))}{\text{digits per unit of work}}

    more work. The next solver continues once that exceeds the work which the next solver is expected to need
    (`Solver.passes_per_digit`); where nothing is known about it, once it exceeds the work of the whole run so
    far. The unit of work is a pass over X: an oracle call, an epoch, or 20 evaluations along a line. No time
    is measured, so that a run is reproducible to the bit.

    A solver starts from the state of the one before it if it can, such as `Newton` from the dual variables of
    `DualCoordinateAscent`; otherwise from the best point; and from the initial point if the relative gap is
    still above 0.3. The best point and the best bound are never discarded. After the last solver, the first
    has another turn, with twice the work. A round of turns that decreases the gap by less than 1 % ends the
    run.

    A solver that raises an exception has ended: the next one continues, a `SolverFailed` warning has the
    exception as its cause, and ``result.solver`` names both. Errors of the system (memory, files) end the
    run, and so does every exception of a run on rows elsewhere: a worker or an owner may have raised it.

    Parameters
    ----------
    solvers : tuple of Solver
    tol : float
        The relative gap to reach.
    trial : float
        The work of a solver's first turn before it is compared with the whole run, in passes over X; it
        doubles with every round of turns.
    others : callable
        Returns further solvers, which are looked up once all of `solvers` are too slow.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import DualCoordinateAscent, Hinge, L2, Newton, Objective, Portfolio
    >>> from riskmin import linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 5))
    >>> y = np.where(X[:, 0] + rng.standard_normal(300) > 0, 1.0, -1.0)
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=1e-6)
    >>> result = minimize(J, Portfolio((DualCoordinateAscent(), Newton()), tol=1e-6), tol=1e-6)
    >>> result.status, sorted({row["solver_index"] for row in result.trace})
    ('converged', [1.0, 2.0])
    """

    RESTART_GAP = 0.3
    """Above this relative gap, the best point is no better a start than the initial one."""
    ROUND_PROGRESS = 0.01
    """A round of turns that decreases the gap by less than this fraction is the last one."""
    MAX_LISTED_TURNS = 4
    """Turns that the summary of a run lists one by one."""

    solvers: tuple[Solver, ...]
    tol: float = field(default=1e-3, repr=False)
    trial: float = field(default=100.0, repr=False)
    others: Callable[[], Sequence[Solver]] = field(default=tuple, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.solvers:
            raise ValueError(f"{type(self).__name__} needs at least one solver")
        object.__setattr__(self, "solvers", tuple(as_solver(solver) for solver in self.solvers))
        if not self.tol > 0:
            raise ValueError(f"tol must be > 0, the relative gap to reach, not {self.tol}")
        if not self.trial > 0:
            raise ValueError(f"trial must be > 0, the work before progress is judged, not {self.trial}")

    @cached_property
    def every(self) -> tuple[Solver, ...]:
        """All solvers in turn."""
        return (*self.solvers, *self.others())

    def supports(self, obj: Objective) -> str | None:
        """None for what one of the solvers supports; others are skipped."""
        reasons = [solver.supports(obj) for solver in self.solvers]
        return None if None in reasons else reasons[0]

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the solvers, one solver after the other."""
        return self._run(obj, _BestSoFar(w0, w0), _Turn(0, obj.count.calls), None)

    def verifies_states(self, obj: Objective) -> bool:
        """Whether all solvers do that."""
        return all(solver.verifies_states(obj) for solver in self.every)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state, with the solver that saved it."""
        check_state(state, STATE_SHAPES, d=obj.risk.dim)
        k, inner = int(state["turn"][0]), _inner_state(state)
        if not 0 <= k < len(self.every):
            raise ValueError(f"it belongs to solver {k + 1}, but there are {len(self.every)} solvers")
        steps, best = self.every[k].resume(obj, inner) if inner else None, _BestSoFar.from_state(state)
        best.state = (lambda: inner) if inner else None
        return self._run(obj, best, _Turn.from_state(state, obj), steps)

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from a run on the same risk, with the solver that ended it."""
        k, inner = int(state["turn"][0]), _inner_state(state)
        steps = self.every[k].warm_start(obj, inner, before) if inner else None
        return self._run(obj, _BestSoFar(state["best"], state["best"]), _Turn(k, obj.count.calls), steps)

    def for_tolerance(self, tol: float) -> Portfolio:
        """The solvers for a relative gap of tol, and this tol as the gap to reach."""
        return replace(self, solvers=tuple(solver.for_tolerance(tol) for solver in self.solvers), tol=tol)

    def summary(self, trace: list[dict[str, float]]) -> str:
        """The steps of each turn, as a sentence; empty if the first solver made all of them."""
        solvers = groupby([int(row.get("solver_index", 1)) - 1 for row in trace])
        turns = [(k, len(list(rows))) for k, rows in solvers]
        if len(turns) < 2:
            return ""
        listed = ", then ".join(
            f"{self.every[k].name} for {n} steps" for k, n in turns[: self.MAX_LISTED_TURNS]
        )
        return (
            listed if len(turns) <= self.MAX_LISTED_TURNS else f"{listed}, and so on, in {len(turns)} turns"
        )

    def _run(
        self, obj: Objective, best: _BestSoFar, turn: _Turn, steps: Iterator[Iterate] | None
    ) -> Iterator[Iterate]:
        """The iterates from a turn on, whose iterator may be given; a solver that ended has None."""
        k = turn.k
        running: dict[int, Iterator[Iterate] | None] = {} if steps is None else {k: steps}
        budget, excess = self.trial, math.inf
        while True:
            # solvers keep their iterators between turns, so that no progress is lost
            if k not in running:
                running[k] = self._started(obj, best, k)
            current = running[k]
            if current is not None:
                ended = yield from self._turn(obj, best, turn, current, budget)
                running[k] = None if ended else current
            if len(running) == len(self.every) and all(s is None for s in running.values()):
                if best.refusals and best.value == math.inf and not obj.count.failures:
                    raise UnsupportedProblem(best.refusals[0])
                return  # all solvers have ended
            k += 1
            if k == len(self.every):
                if best.excess > (1 - self.ROUND_PROGRESS) * excess:
                    return  # twice the work of the round before has gained nearly nothing
                k, budget, excess = 0, 2 * budget, best.excess
            turn = _Turn(k, obj.count.calls, best.work)

    def _started(self, obj: Objective, best: _BestSoFar, k: int) -> Iterator[Iterate] | None:
        """The iterates of a solver from the last state or a point; None if it fails."""
        solver, useful = self.every[k], best.gap <= self.RESTART_GAP
        try:
            if useful and best.state is not None:
                # a state has the arrays of its own solver, of which few others make use
                with contextlib.suppress(KeyError):
                    steps = solver.warm_start(obj, best.state(), obj)
                    if steps is not None:
                        return steps
            return solver.iterates(obj, best.w if useful else best.start)
        except Exception as error:
            _failure(obj, best, solver, error)
            return None

    def _turn(
        self, obj: Objective, best: _BestSoFar, turn: _Turn, steps: Iterator[Iterate], budget: float
    ) -> Any:
        """The iterates of one solver until it is too slow; return whether it has ended."""
        expected = cache(lambda: self._expected(obj, turn.k + 1))
        while not turn.is_too_slow(self.tol, expected, budget, best.work) or len(self.every) == 1:
            try:
                it = next(steps, None)
            # a solver that fails in its course counts as ended
            except Exception as error:
                _failure(obj, best, self.every[turn.k], error)
                it = None
            if it is None:
                return True
            improved = best.update(obj, it)
            best.work = turn.update(obj.count.calls, it, best.gap, improved)
            best.state = it.state
            yield _with_turn_info(it, turn, best)
        return False

    def _expected(self, obj: Objective, k: int) -> float | None:
        """The passes in which solver k is expected to gain a digit; None if that is not known."""
        return self.every[k].passes_per_digit(obj) if k < len(self.every) else None


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


STATE_SHAPES = {"found": "3", "start": "d", "best": "d", "turn": "4", "work": "m", "gaps": "m"}
"""found: value, lower and work; turn: the index of the solver, calls, evaluations and idle iterates."""


def _with_turn_info(it: Iterate, turn: _Turn, best: _BestSoFar) -> Iterate:
    """The iterate with the number of its solver, and a state that includes the turn and the best point."""
    # these change, while the state may be saved later
    inner, own = it.state, best.to_arrays() | turn.to_arrays()

    def state() -> dict[str, Array]:
        return own | ({} if inner is None else {f"turn.{name}": a for name, a in inner().items()})

    return it._replace(info={**it.info, "solver_index": turn.k + 1.0}, state=state)


def _inner_state(state: dict[str, Array]) -> dict[str, Array]:
    """The part of a state that belongs to the solver which was running."""
    return {name.removeprefix("turn."): a for name, a in state.items() if name.startswith("turn.")}


@dataclass
class _BestSoFar:
    """The best point and the best bound of all solvers so far, the initial point, and the last state."""

    start: Array
    w: Array
    value: float = math.inf
    lower: float = -math.inf
    work: float = 0.0
    state: Any = None
    """The function that returns the state at the last iterate."""
    refusals: list[str] = field(default_factory=list)
    """Why solvers ended that do not support the problem."""

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> _BestSoFar:
        value, lower, work = (float(v) for v in state["found"])
        return cls(state["start"], state["best"], value, lower, work)

    def to_arrays(self) -> dict[str, Array]:
        """What `from_state` reads."""
        return {
            "start": self.start, "best": self.w, "found": np.array([self.value, self.lower, self.work])
        }  # fmt: skip

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
class _Turn:
    """The relative gap as a function of the work of one turn of a solver."""

    MAX_IDLE_ITERATES = 40
    """A turn ends after this many iterates in a row that improve neither the point nor the bound."""
    LINE_EVALUATION_WORK = 0.05
    """The work of one evaluation along a line, in passes over X."""
    TRIAL_PASSES = 4.0
    """Passes over X before progress is compared with what the next solver is expected to need."""
    SWITCH_PASSES = 5.0
    """The cost of a change of solvers, in passes."""
    FIRST_PHASE_GAP = 0.5
    """Above this relative gap, the share of J that is proved is extrapolated, and not the digits."""

    k: int
    calls: int
    """Oracle calls before the turn."""
    previous_work: float = 0.0
    """The work before the turn."""
    own_calls: int = 0
    """Oracle calls of the turn."""
    evaluations: float = 0.0
    """Evaluations along lines."""
    idle: int = 0
    """The number of last iterates that improved nothing."""
    work: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @classmethod
    def from_state(cls, state: dict[str, Array], obj: Objective) -> _Turn:
        k, own_calls, evaluations, idle = (float(v) for v in state["turn"])
        work, gaps = state["work"].tolist(), state["gaps"].tolist()
        before = float(state["found"][2]) - (work[-1] if work else 0.0)
        calls = obj.count.calls - int(own_calls)
        return cls(int(k), calls, before, int(own_calls), evaluations, int(idle), work, gaps)

    def to_arrays(self) -> dict[str, Array]:
        """What `from_state` reads."""
        turn = np.array([self.k, self.own_calls, self.evaluations, self.idle], float)
        return {"turn": turn, "work": np.array(self.work), "gaps": np.array(self.gaps)}

    def update(self, calls: int, it: Iterate, gap: float, improved: bool) -> float:
        """Record an iterate; return the work of the run so far."""
        self.own_calls = calls - self.calls
        self.evaluations += it.info.get("evaluations", 0.0)
        # an oracle call and an epoch are one pass over X each, unless a solver counts them itself
        passes = it.info.get("passes", it.info.get("epochs", 0.0))
        self.work.append(self.own_calls + passes + self.LINE_EVALUATION_WORK * self.evaluations)
        self.gaps.append(gap)
        self.idle = 0 if improved else self.idle + 1
        return self.previous_work + self.work[-1]

    def is_too_slow(
        self, tol: float, expected: Callable[[], float | None], budget: float, total: float
    ) -> bool:
        """Whether the missing digits take more work than the next solver needs, or than the run so far.

        `expected` returns the passes in which the next solver gains a digit; None if that is not known.
        """
        if len(self.work) < 2:
            return False  # one iterate has no rate
        work, gap = self.work[-1], self.gaps[-1]
        if self.idle >= self.MAX_IDLE_ITERATES:
            return True
        if work < min(budget, self.TRIAL_PASSES) or gap <= 0:
            return False
        # a run that continues beyond tol needs another digit
        missing = self._missing_work(tol, 1.0)
        if missing <= self.SWITCH_PASSES:
            return False  # whatever the next solver needs
        if (passes := expected()) is None:
            return work >= budget and gap > tol and self._missing_work(tol, 0.0) > max(total, budget)
        return missing > self.SWITCH_PASSES + passes * max(math.log10(gap / tol), 1.0)

    def _missing_work(self, tol: float, min_digits: float) -> float:
        """The work up to tol at the rate of the second half of the work; infinite without progress."""
        # the last iterate of the first half
        half = max(k for k, done in enumerate(self.work) if done <= self.work[-1] / 2 or k == 0)
        spent, before, gap = self.work[-1] - self.work[half], self.gaps[half], self.gaps[-1]
        if gap > self.FIRST_PHASE_GAP:
            return self._first_phase(1.0 - before, 1.0 - gap, spent, tol)
        digits = max(math.log10(gap / tol), min_digits)
        return digits * spent / math.log10(before / gap) if before > gap else math.inf

    def _first_phase(self, before: float, proved: float, spent: float, tol: float) -> float:
        """The missing work while the gap is above half of J, from the share of J that is proved."""
        if not 0 < before < proved:
            return math.inf
        # to the end of this phase at the rate of the logarithm, and as much again for each digit after it
        rest = spent * math.log10((1.0 - self.FIRST_PHASE_GAP) / proved) / math.log10(proved / before)
        return rest + (self.work[-1] + rest) * max(math.log10(self.FIRST_PHASE_GAP / tol), 1.0)
