"""A run: the best point and bound so far, when to stop, and what is said of it at its end."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from riskmin.arrays import namespace
from riskmin.checkpoint import Checkpoint
from riskmin.convexity import Watch
from riskmin.deadline import Limit, OutOfTime
from riskmin.executors.company import Alone, Company
from riskmin.fingerprint import fingerprint
from riskmin.intercept import Profiled
from riskmin.objective import Objective
from riskmin.persist import FileError
from riskmin.preconditioning import Conditioned
from riskmin.rounding import ROUGHLY, allowance
from riskmin.scalar import ROUNDING
from riskmin.types import Array, Criterion, Cut, Iterate, Resumable, Solver, Status

PATIENCE = 100
"""So many iterations in a row that better neither bound by a single bit are a stall."""
MOMENT = 0.2
"""Seconds for a call of the risk, once a run is out of time or interrupted."""
VANISHED = 1e-30
"""Where J falls below this part of its first value, min J is 0 and no relative gap will ever be proved."""
SMALL = 1e-6
"""By default tol is relative to J, or to this part of the risk at w = 0 where J is less than that."""
SOME = 300
"""After so many iterations, two more calls of the risk are cheap."""
FAR_BELOW = 1e3
"""The first J is no further below the risk at w = 0 than this: runs may start from samples of the rows."""

Callback = Callable[[Iterate, dict[str, float]], Any]


@dataclass(frozen=True)
class Limits:
    """When to stop."""

    tol: float
    max_iter: int
    max_seconds: float
    atol: float | None = None

    def __post_init__(self) -> None:
        if not self.tol >= 0:
            raise ValueError(f"tol must be >= 0, not {self.tol}")
        if self.atol is not None and not self.atol >= 0:
            raise ValueError(
                f"atol must be >= 0, or None for {SMALL} tol of the risk at w = 0, not {self.atol}"
            )
        if self.max_iter < 1:
            raise ValueError(f"max_iter must be at least 1, not {self.max_iter}")
        if not self.max_seconds >= 0:
            raise ValueError(f"max_seconds must be >= 0, not {self.max_seconds}")


@dataclass
class Run:
    """What a run has found so far."""

    obj: Objective
    limits: Limits
    company: Company  # ranks that run this too decide as the first of them does
    w: Array = None
    value: float = math.inf
    cut: Cut | None = None
    lower: float = 0.0  # J >= 0
    sound: bool = True  # no cut has been refuted by a point
    noise: float = 0.0  # how far above J rounding has lifted a bound
    slack: float = 0.0  # what rounding may have added to the cut, and taken from J, known once one is settled
    taken: float = 0.0  # by how much the bound is less for that
    trace: list[dict[str, float]] = field(default_factory=list)
    origin: tuple[Array, float, Cut, float] | None = None  # see `start`
    idle: int = 0
    before: float = 0.0  # seconds spent before a resumption
    began: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    watch: Watch | None = None  # of a risk of the user's own, whose cuts may be none
    limit: Limit = field(default_factory=Limit)
    """That of what runs inside of a step."""
    hurries: bool = False  # the limit is that of the run's last moment

    def __post_init__(self) -> None:
        if self.alone:
            self.limit.at = self.began + self.limits.max_seconds

    @property
    def alone(self) -> bool:
        """Whether a clock may end a step: ranks must leave it at the same place, and each has its own."""
        return isinstance(self.company, Alone)

    def rest(self) -> float:
        """Seconds for a call of the risk between steps: what is left, or a moment more, but that once."""
        now = time.perf_counter()
        if self.alone and not self.hurries and self.limit.at < now + MOMENT:
            self.limit.at, self.hurries = now + MOMENT, True
        return self.limit.at - now

    def interrupt(self) -> None:
        """There is but a moment left, whatever the limit was."""
        if self.alone and not self.hurries:
            self.limit.at = -math.inf

    def tick(self) -> float:
        """Look at the clock."""
        self.seconds = self.company.agree(lambda: self.before + time.perf_counter() - self.began)
        return self.seconds

    @property
    def atol(self) -> float:
        """The absolute gap that is as good as none; 0 as long as it would not matter."""
        if self.limits.atol is not None:
            return self.limits.atol
        first = self.trace[0]["value"] if self.trace else 0.0
        small = self.limits.tol * SMALL
        if len(self.trace) < SOME and self.value - self.lower > FAR_BELOW * small * first:
            return 0.0
        return max(small * self.start()[3], self.limits.tol and self.rounding)

    @cached_property
    def rounding(self) -> float:
        """What rounding leaves of the risk of w = 0 without an intercept: all of it, where y is constant."""
        risk = self.obj.risk
        return ROUNDING * risk.risk(0.0 * self.w)[0] if isinstance(risk, Profiled) else 0.0

    @property
    def doubt(self) -> str:
        """Why nothing is proved, where a risk of the user's own was seen not to be convex."""
        return self.watch.said if self.watch is not None else ""

    def start(self) -> tuple[Array, float, Cut, float]:
        """Where Omega is least, J and the cut there; R at w = 0 with the best intercept. Computed once."""
        if self.origin is None:
            calls = self.obj.count.calls
            try:
                self.origin = Limit(time.perf_counter() + self.rest()).call(self._origin)
            except OutOfTime:
                assert self.cut is not None
                self.origin = self.w, math.inf, self.cut, 0.0  # which betters nothing
            self.obj.count.calls = calls  # they serve no solver
        return self.origin

    def _origin(self) -> tuple[Array, float, Cut, float]:
        zero = 0.0 * self.w
        r, g, slip = self.obj.look(zero)
        w = zero if math.isfinite(self.obj.reg.value(zero)) else self.obj.reg.conjugate_grad(zero)
        value, _, cut = self.obj.at(w, r, g, slip) if w is zero else self.obj(w)
        return w, value, cut, max(r, 0.0)

    def no_worse_than_start(self) -> None:
        """Where J is lower at w = 0, with the best intercept, that is what was found.

        The cut says that J(0) is at least its b: where that is no less than J, there is nothing to look at.
        """
        if self.cut is not None and self.criterion() and self.origin is None and self.cut.b >= self.value:
            return
        if self.start()[1] < self.value:
            self.w, self.value, cut, _ = self.start()
            self._bound(cut)

    def criterion(self) -> Criterion:
        """Which of the two tolerances is met; none is "".

        Rounding may take J below zero. What it may have added to bounds, J may lack; and a bound that it
        lifted above J shows how well bounds are known.
        """
        if self.doubt or not math.isfinite(self.value):
            return ""
        gap = self.value - self.lower
        known = gap + max(self.noise, self.slack - self.taken if gap else 0.0)
        if known <= self.limits.tol * max(self.value, 0.0):
            return "tol"
        return "atol" if gap + self.noise <= self.atol else ""

    def check_finite(self) -> None:
        """Raise where J is not finite, neither at the first point nor at w = 0."""
        if not math.isfinite(self.value) and not math.isfinite(self.start()[1]):
            raise ValueError(
                "J is not finite at w = 0: numbers are too large for double precision, or a loss of your own "
                "returns NaN; scale X and y (numbers from 1e-6 to 1e6 are safe)"
            )

    def status(self) -> Status | None:
        if self.doubt:
            return "stalled"  # whatever it would find, no gap could be proved
        if self.criterion():
            return "converged"
        if len(self.trace) >= self.limits.max_iter:
            return "max_iter"
        if self.seconds >= self.limits.max_seconds:
            return "max_seconds"
        vanished = bool(self.trace) and self.value <= VANISHED * self.trace[0]["value"]
        return "stalled" if self.idle >= PATIENCE or vanished else None

    def _bound(self, cut: Cut) -> None:
        """Keep the better cut. A bound that rounding lifts above J itself says no more than J does.

        One that lies further above J is none, so the oracle's cuts are wrong or its risk is not convex:
        from then on nothing is believed but that J >= 0.
        """
        lower = self._lower(cut)
        if self.cut is None or (lower > self.lower and self.sound):
            self.cut, self.lower, self.idle = cut, lower, 0
        first = self.trace[0]["value"] if self.trace else self.value
        if self.lower - self.value > 1e-6 * abs(self.value) + 1e-12 * abs(first):
            self.sound = False
            if self.watch is not None:
                self.watch.refute(f"J is {self.value:.4g}, below the bound {self.lower:.4g} of its cuts")
        if self.doubt or not self.sound:
            self.cut, self.lower, self.sound = Cut(0.0 * cut.a, 0.0), 0.0, False
        self.noise = max(self.noise, self.lower - self.value)
        self.lower = min(max(self.lower, 0.0), self.value - ROUNDING * abs(self.value))
        if self.watch is not None and self.watch.negative:
            self.lower = -math.inf

    def _lower(self, cut: Cut) -> float:
        """What a cut proves, less what rounding may have added."""
        return self.obj.lower(cut._replace(b=cut.b - self.slack))

    def settle(self, seconds: float = math.inf) -> None:
        """Whatever ends a run is said of a value computed from scratch, and of a point of the domain.

        Where vectors are kept in two forms, one is made anew from the other: the same holds for the cut.
        """
        until, anew = Limit(time.perf_counter() + seconds), getattr(self.obj.reg, "anew", None)
        w = self.obj.reg.prox(self.w, 0.0) if anew is None else until.call(anew, self.w)
        value, _, cut = until.call(self.obj, w)
        self.w, self.value = w, value
        if self.cut is None:
            self._bound(cut)
        if self.cut is not None and self.sound:
            if anew is not None:
                self.cut = self.cut._replace(a=until.call(anew, self.cut.a, True))
            self.slack = until.call(allowance, self.obj, w, self.cut)
            self.lower = self._lower(self.cut)
            self.taken = max(self.obj.lower(self.cut) - self.lower, 0.0)
        self._bound(cut)

    def take(self, it: Iterate) -> Status | None:
        """Keep what is better, add a row to the trace, and tell whether to stop."""
        changed = bool(self.trace) and self.trace[-1].get("turn") != it.info.get("turn")
        self.idle = 0 if changed else self.idle + 1  # another solver has its turn
        least = -1e-12 * abs(self.trace[0]["value"]) if self.trace else -math.inf  # J >= 0, but for rounding
        if self.w is None or least <= it.value < self.value:
            self.w, self.value, self.idle = it.w, it.value, 0
        if self.watch is not None:
            self.watch.take(it.w, it.value, it.cut)
        if not self.trace and not bool(namespace(it.w).any(it.w != 0)):
            risk = it.value - self.obj.lam * self.obj.reg.value(it.w)
            self.origin = it.w, it.value, it.cut, max(risk, 0.0)
        self._bound(it.cut)
        if not self.trace:
            self.check_finite()
        row = {"iteration": len(self.trace) + 1} | self._row() | dict(it.info)
        self.trace.append(row)
        status = self.status()
        if status == "max_seconds":
            self.hurry()
        elif status is not None:
            self.end()
        return self.status()

    def hurry(self) -> bool:
        """Settle what was found if that takes no more than a moment, else it stays as the solver knew it."""
        try:
            self.end(self.rest())
        except OutOfTime:
            assert self.cut is not None
            size = abs(self.cut.b) + abs(self.value) + abs(self.trace[0]["value"])
            self.slack = max(self.slack, ROUGHLY * size)
            self.lower = min(self.lower, max(self._lower(self.cut), 0.0))
            self.trace[-1] |= self._row()
            return False
        return True

    def end(self, seconds: float = math.inf) -> Status:
        """Settle what was found; whether that is convergence, or else a stall."""
        until = Limit(time.perf_counter() + seconds)
        self.settle(seconds)
        if self.watch is not None and self.cut is not None and self.lower > 0:
            self.w, self.value = until.call(self.watch.probe, self.w, self.value, self.lower, self.cut)
            self._bound(self.cut)
        self.trace[-1] |= self._row()
        return "converged" if self.status() == "converged" else "stalled"

    def late(self, w0: Array) -> Status:
        """Settle what was found when time ran out inside of a step; that is w0, if nothing was yet."""
        if self.w is None:
            self.w = w0
            self.settle()
            self.trace.append({"iteration": 1} | self._row())
            settled = True
        else:
            try:
                settled = self.hurry()
            except KeyboardInterrupt:
                return "interrupted"
        return "converged" if settled and self.status() == "converged" else "max_seconds"

    def proof(self) -> Cut:
        """The cut that proves the bound, as it is reported; and no row of the trace says more than that."""
        assert self.cut is not None
        for row in self.trace:
            if row["lower"] > self.lower:
                row |= {"lower": self.lower, "gap": row["value"] - self.lower}
        return self.cut._replace(b=self.cut.b - self.slack) if self.lower > 0 else self.cut

    def asked(self, callback: Callback, it: Iterate) -> bool:
        """Whether the callback ends the run."""
        return self.company.agree(lambda: bool(callback(it, self.trace[-1])))

    def _row(self) -> dict[str, float]:
        done = {"seconds": self.tick(), "calls": self.obj.count.calls}
        return done | {"value": self.value, "lower": self.lower, "gap": self.value - self.lower}

    @cached_property
    def data(self) -> str:
        """The fingerprint of the data, for checkpoints."""
        return fingerprint(self.obj)

    def save(self, file: Checkpoint, solver: Solver, it: Iterate) -> None:
        """Write a checkpoint. That it cannot be written ends no run: what was found is still there."""
        assert self.cut is not None
        found = {"b": self.cut.b - self.slack, "noise": self.noise, "idle": self.idle, "trace": self.trace}
        try:
            state = it.state() if it.state is not None else {}
            arrays = {"w": self.w, "cut": self.cut.a} | {f"state.{k}": v for k, v in state.items()}
            file.write(self.obj, solver, arrays, found, self.data)
        except (FileError, MemoryError) as error:
            why = error if isinstance(error, FileError) else f"there is no memory to write {file.path}"
            warnings.warn(f"{why}; the run goes on without a checkpoint", RuntimeWarning, stacklevel=4)

    def resume(self, file: Checkpoint, solver: Solver, problem: Conditioned) -> Iterator[Iterate]:
        """Take up the run that was saved there."""
        saved = file.read(self.obj, solver, lambda: self.data)
        self.w, self.value, self.noise, self.trace = saved.w, saved.value, saved.noise, saved.trace
        self._bound(saved.cut)
        self.idle = saved.idle
        self.obj.count.calls = int(self.trace[-1]["calls"])
        self.before = self.seconds = self.trace[-1]["seconds"]
        self.limit.at -= self.before
        if saved.state and isinstance(solver, Resumable):
            with file.trusted():
                return self.limit.call(problem.resumed, solver, saved.state)
        return self.limit.call(problem.iterates, solver, self.w)
