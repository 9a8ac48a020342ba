"""The driver: it alone knows of tolerances, time, the best point, traces, checkpoints and interruption."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.arrays import namespace
from riskmin.blas import threads, threads_of
from riskmin.checkpoint import Checkpoint
from riskmin.convexity import Watch, check, watch
from riskmin.deadline import Limit, OutOfTime
from riskmin.executors.company import Alone, Company, company_of
from riskmin.intercept import Profiled
from riskmin.objective import Count, Objective
from riskmin.persist import FileError
from riskmin.preconditioning import Conditioned, preconditioner
from riskmin.regularizers import penalized
from riskmin.rounding import allowance
from riskmin.scalar import ROUNDING
from riskmin.solvers import Auto, get_solver
from riskmin.solvers.auto import said
from riskmin.types import Array, Criterion, Cut, Iterate, Result, Resumable, Solver, Status

SOON = 1.0
"""Seconds after which a run is worth a checkpoint."""
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
class _Limits:
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
    slack: float = 0.0  # what rounding may have added to the cut: known once a point is settled
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

        Rounding may take J below zero; and a bound that it lifted above J shows how well bounds are known.
        """
        if self.doubt or not math.isfinite(self.value):
            return ""
        gap = self.value - self.lower + self.noise
        if gap <= self.limits.tol * max(self.value, 0.0):
            return "tol"
        return "atol" if gap <= self.atol else ""

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
        self.lower = min(max(self.lower, 0.0), self.value)
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
        if self.cut is not None and self.sound:
            if anew is not None:
                self.cut = self.cut._replace(a=until.call(anew, self.cut.a, True))
            self.slack = until.call(allowance, self.obj, w, self.cut, self.start()[3])
            self.lower = self._lower(self.cut)
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

    def resume(self, file: Checkpoint, solver: Solver, problem: Conditioned) -> Iterator[Iterate]:
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
            return self.limit.call(problem.resumed, solver, state)
        return self.limit.call(problem.iterates, solver, self.w)


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
    atol: float | None = None,
    max_iter: int = 10_000,
    max_seconds: float = math.inf,
    callback: Callback | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
) -> Result:
    r"""Minimize J until it is proved that :math:`J(w) - \min J \le \max(\text{tol} \cdot J(w), \text{atol})`.

    Solvers see the problem in variables in which its columns are centred (where J does not change by that)
    and of one size (see `Preconditioner`); all that is returned is of the problem as it was given.

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
    atol : float, optional
        The absolute gap that is as good as none; by default 1e-6 tol of the risk at w = 0 with its best
        intercept (1e-9 of it for the default tol). With 0, only tol counts. ``result.criterion`` says which
        of the two was met.
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
        Ctrl-C returns the best so far, with status ``interrupted``. Where points of the run show that a loss
        or a risk of your own is not convex, nothing is proved: ``note`` says so.

    Raises
    ------
    ValueError
        Also where a loss or a risk of your own is seen before the run not to be convex, or to be negative,
        or to have a gradient that is none.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Bundle, Hinge, L2, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> result = minimize(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.01), Bundle(), tol=1e-6)
    >>> result.status, result.lower <= result.value <= result.lower * (1 + 2e-6)
    ('converged', True)
    """
    began, objective = time.perf_counter(), replace(objective, count=Count())
    alone = isinstance(company_of(objective.risk), Alone)
    try:
        problem = Limit(began + max_seconds if alone else math.inf).call(conditioned, objective)
    except OutOfTime:
        problem = Conditioned.of(objective, None)
    save = Checkpoint(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint
    limits = {"tol": tol, "max_iter": max_iter, "max_seconds": max_seconds, "atol": atol}
    return run(problem, solver, w0, limits, callback, save, began)


def conditioned(objective: Objective) -> Conditioned:
    """The problem in variables that are good for solvers."""
    risk = objective.risk
    with company_of(risk).together(), threads(threads_of(risk)), np.errstate(over="ignore"):
        return Conditioned.of(objective, preconditioner(objective))


def run(
    problem: Conditioned,
    solver: Solver | str | None,
    w0: Array | None,
    limits: dict[str, Any],
    callback: Callback | None = None,
    save: Checkpoint | None = None,
    began: float | None = None,
) -> Result:
    """Minimize the objective of a problem whose variables are chosen."""
    began = time.perf_counter() if began is None else began
    company = company_of(problem.given.risk)
    with company.together(), threads(threads_of(problem.given.risk)):
        found = _Run(problem.given, company.agree(lambda: _Limits(**limits)), company, began=began)
        w0 = _start(found.obj, w0)
        check(found.obj.risk, found.obj.reg, w0)
        found.watch = watch(found.obj, w0)
        chosen, reason = get_solver(solver), ""
        if isinstance(chosen, Auto):
            chosen, reason = chosen.relay(problem.obj, found.limits.tol)
        if save is not None:
            company.once(save.check)
        with np.errstate(over="ignore"):  # far out, a square may be inf: no best value, no bound, no harm
            status = _drive(found, problem, chosen, w0, callback, save)
            with contextlib.suppress(*([KeyboardInterrupt] if status == "interrupted" else [])):
                found.no_worse_than_start()
    assert found.cut is not None
    told, criterion = said(chosen, reason, found.trace), found.criterion()
    best = found.w, found.value, found.lower, found.proof()
    return Result(*best, status, found.trace, told, criterion, found.doubt)


def _pause(save: Checkpoint, run: _Run, took: float) -> float:
    """Seconds between two checkpoints: few at first, ten times what one takes, up to what was asked for."""
    return min(save.every, max(SOON + 0.1 * run.seconds, 10 * took))


def _drive(
    run: _Run,
    problem: Conditioned,
    solver: Solver,
    w0: Array,
    callback: Callback | None,
    save: Checkpoint | None,
) -> Status:
    """Take steps until something says stop."""
    it: Iterate | None = None
    try:
        again = save is not None and run.company.once(Path(save.path).exists)
        begin = run.limit.call
        steps = run.resume(save, solver, problem) if save and again else begin(problem.iterates, solver, w0)
        status = run.status() if again else None
        if status is not None and run.watch is not None:  # what was saved on the way was not probed yet
            run.end()
            status = run.status()
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
        run.interrupt()
        with contextlib.suppress(KeyboardInterrupt):  # who asks twice gets the value as the solver knew it
            run.hurry()
    if save is not None and it is not None:
        run.save(save, solver, it)
    return status
