"""The driver: it alone knows of tolerances, time, the best point, traces, checkpoints and interruption."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.arrays import namespace
from riskmin.blas import threads, threads_of
from riskmin.checkpoint import Checkpoint
from riskmin.deadline import Limit, OutOfTime
from riskmin.executors.company import Alone, Company, company_of
from riskmin.objective import Count, Objective
from riskmin.persist import FileError
from riskmin.regularizers import penalized
from riskmin.solvers import Auto, HandOver, get_solver
from riskmin.types import Array, Cut, Iterate, Result, Resumable, Solver, Status

SOON = 1.0
"""Seconds after which a run is worth a checkpoint."""
PATIENCE = 100
"""So many iterations in a row that better neither bound by a single bit are a stall."""
MOMENT = 0.2
"""Seconds for a call of the risk, once a run is out of time or interrupted."""
VANISHED = 1e-30
"""Where J falls below this part of its first value, min J is 0 and no relative gap will ever be proved."""

Callback = Callable[[Iterate, dict[str, float]], Any]


@dataclass(frozen=True)
class _Limits:
    """When to stop."""

    tol: float
    max_iter: int
    max_seconds: float

    def __post_init__(self) -> None:
        if not self.tol >= 0:
            raise ValueError(f"tol must be >= 0, not {self.tol}")
        if self.max_iter < 1:
            raise ValueError(f"max_iter must be at least 1, not {self.max_iter}")
        if not self.max_seconds >= 0:
            raise ValueError(f"max_seconds must be >= 0, not {self.max_seconds}")


@dataclass
class _Run:
    """What a run has found so far."""

    obj: Objective
    limits: _Limits
    company: Company  # ranks that run this too decide as the first of them does
    w: Array = None
    value: float = math.inf
    cut: Cut | None = None
    lower: float = 0.0  # J >= 0
    sound: bool = True  # no cut has been refuted by a point
    noise: float = 0.0  # how far above J rounding has lifted a bound
    trace: list[dict[str, float]] = field(default_factory=list)
    idle: int = 0
    before: float = 0.0  # seconds spent before a resumption
    start: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    limit: Limit = field(default_factory=Limit)
    """That of what runs inside of a step."""

    def __post_init__(self) -> None:
        if self.alone:
            self.limit.at = self.start + self.limits.max_seconds

    @property
    def alone(self) -> bool:
        """Whether a clock may end a step: ranks must leave it at the same place, and each has its own."""
        return isinstance(self.company, Alone)

    def tick(self) -> float:
        """Look at the clock."""
        self.seconds = self.company.agree(lambda: self.before + time.perf_counter() - self.start)
        return self.seconds

    def status(self) -> Status | None:
        # rounding may take J below zero; and a bound that it lifted above J shows how well bounds are known
        if self.value - self.lower + self.noise <= self.limits.tol * max(self.value, 0.0):
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
        lower = self.obj.lower(cut)
        if self.cut is None or (lower > self.lower and self.sound):
            self.cut, self.lower, self.idle = cut, lower, 0
        first = self.trace[0]["value"] if self.trace else self.value
        if self.lower - self.value > 1e-6 * abs(self.value) + 1e-12 * abs(first):
            self.cut, self.lower, self.sound = Cut(0.0 * cut.a, 0.0), 0.0, False
        self.noise = max(self.noise, self.lower - self.value)
        self.lower = min(max(self.lower, 0.0), self.value)

    def settle(self, seconds: float = math.inf) -> None:
        """Whatever ends a run is said of a value computed from scratch, and of a point of the domain."""
        w = self.obj.reg.prox(self.w, 0.0)
        value, _, cut = Limit(time.perf_counter() + seconds).call(self.obj, w)
        self.w, self.value = w, value
        self._bound(cut)

    def take(self, it: Iterate) -> Status | None:
        """Keep what is better, add a row to the trace, and tell whether to stop."""
        self.idle += 1
        least = -1e-12 * abs(self.trace[0]["value"]) if self.trace else -math.inf  # J >= 0, but for rounding
        if self.w is None or least <= it.value < self.value:
            self.w, self.value, self.idle = it.w, it.value, 0
        self._bound(it.cut)
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
            self.end(MOMENT if self.alone else math.inf)
        except OutOfTime:
            self.trace[-1] |= self._row()
            return False
        return True

    def end(self, seconds: float = math.inf) -> Status:
        """Settle what was found; whether that is convergence, or else a stall."""
        self.settle(seconds)
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

    def asked(self, callback: Callback, it: Iterate) -> bool:
        """Whether the callback ends the run."""
        return self.company.agree(lambda: bool(callback(it, self.trace[-1])))

    def _row(self) -> dict[str, float]:
        return {
            "seconds": self.tick(),
            "calls": self.obj.count.calls,
            "value": self.value,
            "lower": self.lower,
            "gap": self.value - self.lower,
        }

    def save(self, file: Checkpoint, solver: Solver, it: Iterate) -> None:
        """Write a checkpoint. That it cannot be written ends no run: what was found is still there."""
        assert self.cut is not None
        state = it.state() if it.state is not None else {}
        arrays = {"w": self.w, "cut": self.cut.a} | {f"state.{k}": v for k, v in state.items()}
        numbers = {"value": self.value, "lower": self.lower, "b": self.cut.b, "noise": self.noise}
        try:
            file.write(self.obj, solver, arrays, numbers | {"idle": self.idle, "trace": self.trace})
        except FileError as error:
            warnings.warn(f"{error}; the run goes on without a checkpoint", RuntimeWarning, stacklevel=4)

    def resume(self, file: Checkpoint, solver: Solver) -> Iterator[Iterate]:
        """Take up the run that was saved there."""
        arrays, found = file.read(self.obj, solver)
        self.cut, self.w = Cut(arrays["cut"], found["b"]), arrays["w"]
        self.value, self.lower, self.noise = found["value"], found["lower"], found["noise"]
        self.idle, self.trace = found["idle"], found["trace"]
        self.obj.count.calls = int(self.trace[-1]["calls"])
        self.before = self.seconds = self.trace[-1]["seconds"]
        self.limit.at -= self.before
        state = {k.removeprefix("state."): v for k, v in arrays.items() if k.startswith("state.")}
        if state and isinstance(solver, Resumable):
            return self.limit.call(solver.resume, self.obj, state)
        return self.limit.call(solver.iterates, self.obj, self.w)


def _start(obj: Objective, w0: Array | None) -> Array:
    if w0 is None:
        return obj.reg.conjugate_grad(np.zeros(obj.risk.dim))  # the least Omega: zero, mostly
    if isinstance(w0, (list, tuple, np.ndarray)):
        w0 = np.array(w0, dtype=np.float64)
    else:
        w0 = namespace(w0).asarray(w0, copy=True)
    if w0.shape != (obj.risk.dim,):
        raise ValueError(f"w0 has shape {tuple(w0.shape)}, but the risk takes ({obj.risk.dim},)")
    if not bool(namespace(w0).all(namespace(w0).isfinite(w0))):
        raise ValueError("w0 holds NaN or infinity: start from finite numbers")
    if not math.isfinite(obj.reg.value(w0)):
        reg = penalized(obj.reg)
        raise ValueError(
            f"w0 is outside the domain of {reg!r}: start from {type(reg).__name__}.prox(w0, 0.0)"
        )
    return w0


def minimize(
    objective: Objective,
    solver: Solver | str | None = None,
    w0: Array | None = None,
    *,
    tol: float = 1e-3,
    max_iter: int = 10_000,
    max_seconds: float = math.inf,
    callback: Callback | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
) -> Result:
    r"""Minimize J until it is proved that :math:`J(w) - \min J \le \text{tol} \cdot J(w)`.

    Parameters
    ----------
    objective : Objective
    solver : Solver or str, optional
        A solver, or the name of one ("bundle", "lbfgs", ...); `Auto()` by default, which picks one and says
        why in ``result.solver``.
    w0 : array, optional
        Where to start; zero by default.
    tol : float
        The relative certified gap to reach: the same rule for every solver.
    max_iter, max_seconds : int, float
        Limits. Whichever strikes first ends the run with that status and the best point so far. Time is
        looked at inside of steps, too, several times a second; a run that has found nothing when it is over
        returns w0, for which it takes a call of the risk.
    callback : callable, optional
        ``callback(iterate, row)`` after every iteration, `row` being the new row of the trace; a true
        return value ends the run with status ``interrupted``.
    checkpoint : path or Checkpoint, optional
        Save the run there after a second, then ever less often, up to every 30 seconds (or as the
        `Checkpoint` says), and at its end. If the file exists, the run resumes from it.

    Returns
    -------
    Result
        Ctrl-C returns the best so far, with status ``interrupted``.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Bundle, Hinge, L2, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> result = minimize(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.01), Bundle(), tol=1e-6)
    >>> result.status, result.lower <= result.value <= result.lower * (1 + 2e-6)
    ('converged', True)
    """
    company = company_of(objective.risk)
    with company.together(), threads(threads_of(objective.risk)):
        limits = company.agree(lambda: _Limits(tol, max_iter, max_seconds))
        run = _Run(replace(objective, count=Count()), limits, company)
        chosen, reason = get_solver(solver), ""
        if isinstance(chosen, Auto):
            chosen, reason = chosen.choose(run.obj, tol)
        save = Checkpoint(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint
        if save is not None:
            company.once(save.check)
        w0 = _start(run.obj, w0)
        with np.errstate(over="ignore"):  # far out, a square may be inf: no best value, no bound, no harm
            status = _drive(run, chosen, w0, callback, save)
    assert run.cut is not None
    return Result(run.w, run.value, run.lower, run.cut, status, run.trace, said(chosen, reason, run.trace))


def said(solver: Solver, reason: str, trace: list[dict[str, float]]) -> str:
    """A solver, why it was taken, and what it did if it can tell: one that hands over can."""
    parts = [f"{solver!r}: {reason}" if reason else repr(solver)]
    if isinstance(solver, HandOver):
        parts.append(solver.account(trace))
    return "; ".join(parts)


def _pause(save: Checkpoint, run: _Run, took: float) -> float:
    """Seconds between two checkpoints: few at first, ten times what one takes, up to what was asked for."""
    return min(save.every, max(SOON + 0.1 * run.seconds, 10 * took))


def _drive(
    run: _Run, solver: Solver, w0: Array, callback: Callback | None, save: Checkpoint | None
) -> Status:
    """Take steps until something says stop."""
    it: Iterate | None = None
    try:
        again = save is not None and run.company.once(Path(save.path).exists)
        begin = run.limit.call
        steps = run.resume(save, solver) if save and again else begin(solver.iterates, run.obj, w0)
        status = run.status() if again else None
        written, took = run.seconds, 0.0
        while status is None:
            new = run.limit.call(next, steps, None)
            if new is None:
                status = run.end()
                break
            it = new
            status = run.take(it)
            if callback is not None and run.asked(callback, it) and status is None:
                status = "interrupted"
                run.end()
            if save is not None and status is None and run.seconds - written >= _pause(save, run, took):
                took = -run.tick()
                run.save(save, solver, it)
                written = run.tick()
                took += written
    except OutOfTime:
        status = run.late(w0)
    except KeyboardInterrupt:
        if run.w is None:  # nothing was found yet, so there is nothing to return
            raise
        status = "interrupted"
        with contextlib.suppress(KeyboardInterrupt):  # who asks twice gets the value as the solver knew it
            run.hurry()
    if save is not None and it is not None:
        run.save(save, solver, it)
    return status
