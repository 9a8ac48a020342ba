"""The driver: it alone knows of tolerances, time, the best point, traces, checkpoints and interruption."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.arrays import namespace, to_numpy
from riskmin.objective import Count, Objective
from riskmin.persist import FileError, load_arrays, save_arrays
from riskmin.solvers.auto import Auto, loss_of
from riskmin.types import Array, Cut, Iterate, Result, Resumable, Solver, Status

PATIENCE = 100
"""So many iterations in a row that better neither bound by a single bit are a stall."""
VANISHED = 1e-30
"""Where J falls below this part of its first value, min J is 0 and no relative gap will ever be proved."""

Callback = Callable[[Iterate, dict[str, float]], Any]


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often to save a run.

    Parameters
    ----------
    path : path
        An existing file is resumed from; the file is replaced atomically.
    every : float
        Seconds between two writes.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from riskmin import L2, Checkpoint, Hinge, Objective, linear_risk, minimize
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save = Checkpoint(f"{folder}/run", every=1.0)
    ...     first = minimize(J, tol=1e-6, max_iter=2, checkpoint=save)
    ...     second = minimize(J, tol=1e-6, checkpoint=save)  # goes on where the first one stopped
    >>> first.status, second.status, second.n_iter > 2
    ('max_iter', 'converged', True)
    """

    path: str | os.PathLike[str]
    every: float = 30.0


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


@dataclass
class _Run:
    """What a run has found so far."""

    obj: Objective
    limits: _Limits
    w: Array = None
    value: float = math.inf
    cut: Cut | None = None
    lower: float = 0.0  # J >= 0
    sound: bool = True  # no cut has been refuted by a point
    trace: list[dict[str, float]] = field(default_factory=list)
    idle: int = 0
    before: float = 0.0  # seconds spent before a resumption
    start: float = field(default_factory=time.perf_counter)

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.start

    def status(self) -> Status | None:
        if self.value - self.lower <= self.limits.tol * max(
            self.value, 0.0
        ):  # rounding may take J below zero
            return "converged"
        if len(self.trace) >= self.limits.max_iter:
            return "max_iter"
        if self.seconds() >= self.limits.max_seconds:
            return "max_seconds"
        vanished = len(self.trace) > 1 and self.value <= VANISHED * self.trace[0]["value"]
        return "stalled" if self.idle >= PATIENCE or vanished else None

    def _bound(self, cut: Cut) -> None:
        """Keep the better cut. A bound that rounding lifts above J itself says no more than J does.

        One that lies further above J is none, so the oracle's cuts are wrong or its risk is not convex:
        from then on nothing is believed but that J >= 0.
        """
        lower = self.obj.lower(cut)
        if self.cut is None or (lower > self.lower and self.sound):
            self.cut, self.lower, self.idle = cut, lower, 0
        first = self.trace[0].get("value", self.value) if self.trace else self.value
        if self.lower - self.value > 1e-6 * abs(self.value) + 1e-12 * abs(first):
            self.cut, self.lower, self.sound = Cut(0.0 * cut.a, 0.0), 0.0, False
        self.lower = min(max(self.lower, 0.0), self.value)

    def settle(self) -> None:
        """Whatever ends a run is said of a value computed from scratch."""
        self.value, _, cut = self.obj(self.w)
        self._bound(cut)

    def take(self, it: Iterate) -> Status | None:
        """Keep what is better, add a row to the trace, and tell whether to stop."""
        self.idle += 1
        least = -1e-12 * abs(self.trace[0]["value"]) if self.trace else -math.inf  # J >= 0, but for rounding
        if self.w is None or least <= it.value < self.value:
            self.w, self.value, self.idle = it.w, it.value, 0
        self._bound(it.cut)
        self.trace.append({"iteration": len(self.trace) + 1})
        if self.status() is not None:
            self.settle()
        self.trace[-1] |= self._row() | dict(it.info)
        return self.status()

    def end(self) -> Status:
        """The solver can get no further."""
        self.settle()
        self.trace[-1] |= self._row()
        return "converged" if self.status() == "converged" else "stalled"

    def _row(self) -> dict[str, float]:
        return {
            "seconds": self.seconds(),
            "calls": self.obj.count.calls,
            "value": self.value,
            "lower": self.lower,
            "gap": self.value - self.lower,
        }

    def save(self, path: str | os.PathLike[str], solver: Solver, it: Iterate) -> None:
        assert self.cut is not None
        state = it.state() if it.state is not None else {}
        keys = sorted({k for row in self.trace for k in row})
        table = np.array([[row.get(k, math.nan) for k in keys] for row in self.trace])
        arrays = {"w": self.w, "cut": self.cut.a, "trace": table}
        arrays |= {f"state.{k}": v for k, v in state.items()}
        save_arrays(
            path,
            {k: to_numpy(v) for k, v in arrays.items()},
            _problem(self.obj, solver)
            | {"value": self.value, "lower": self.lower, "b": self.cut.b, "keys": keys, "idle": self.idle}
            | {"exact": _from_scratch(self.obj, self.w)},  # a solver may know its value up to a slack only
        )

    def restore(self, arrays: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
        """Take up a saved run; returns the solver's state."""
        self.w, self.value, self.lower = arrays["w"], meta["value"], meta["lower"]
        self.cut, self.idle = Cut(arrays["cut"], meta["b"]), meta["idle"]
        self.trace = [
            {k: v if k in _REALS else int(v) if v == int(v) else v for k, v in row.items() if v == v}
            for row in (dict(zip(meta["keys"], r, strict=True)) for r in arrays["trace"].tolist())
        ]
        self.obj.count.calls = int(self.trace[-1]["calls"])
        self.before = self.trace[-1]["seconds"]
        return {k.removeprefix("state."): v for k, v in arrays.items() if k.startswith("state.")}


_REALS = {"seconds", "value", "lower", "gap"}


def _problem(obj: Objective, solver: Solver) -> dict[str, Any]:
    """What a checkpoint must agree with."""
    loss = loss_of(obj.risk) or type(obj.risk).__name__
    return {
        "kind": "checkpoint",
        "problem": f"{loss!r}, {obj.reg!r}, lam={obj.lam!r}, dim={obj.risk.dim}",
        "solver": repr(solver),
    }


def _from_scratch(obj: Objective, w: Array) -> float:
    """J(w), by a call that does not count: it serves no solver."""
    return float(obj.at(w, *obj.risk(w))[0])


def _resume(run: _Run, solver: Solver, path: str | os.PathLike[str]) -> Iterator[Iterate]:
    """Take up the run that was saved there."""
    meta = _problem(run.obj, solver)
    arrays, found = load_arrays(path, "checkpoint")
    for what in ("problem", "solver"):
        if found.get(what) != meta[what]:
            raise FileError(
                f"{path} belongs to another {what} ({found.get(what)}, not {meta[what]}): "
                "delete it or give another checkpoint path"
            )
    state = run.restore(arrays, found)
    value = _from_scratch(run.obj, run.w)
    if not math.isclose(value, found["exact"], rel_tol=1e-6):
        raise FileError(
            f"{path} was written for other data: its point has objective {found['exact']!r} there and "
            f"{value!r} here; delete it or give another checkpoint path"
        )
    if state and isinstance(solver, Resumable):
        return solver.resume(run.obj, state)
    return solver.iterates(run.obj, run.w)


def _start(obj: Objective, w0: Array | None) -> Array:
    if w0 is None:
        return np.zeros(obj.risk.dim)
    w0 = namespace(w0).asarray(w0, copy=True)
    if isinstance(w0, np.ndarray):
        w0 = w0.astype(np.float64)
    if w0.shape != (obj.risk.dim,):
        raise ValueError(f"w0 has shape {tuple(w0.shape)}, but the risk takes ({obj.risk.dim},)")
    return w0


def minimize(
    objective: Objective,
    solver: Solver | None = None,
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
    solver : Solver, optional
        `Auto()` by default, which picks one and says why in ``result.solver``.
    w0 : array, optional
        Where to start; zero by default.
    tol : float
        The relative certified gap to reach: the same rule for every solver.
    max_iter, max_seconds : int, float
        Limits. Whichever strikes first ends the run with that status and the best point so far.
    callback : callable, optional
        ``callback(iterate, row)`` after every iteration, `row` being the new row of the trace; a true
        return value ends the run with status ``interrupted``.
    checkpoint : path or Checkpoint, optional
        Save the run there every 30 seconds (or as the `Checkpoint` says) and at its end. If the file
        exists, the run resumes from it.

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
    run = _Run(replace(objective, count=Count()), _Limits(tol, max_iter, max_seconds))
    reason = ""
    if solver is None or isinstance(solver, Auto):
        solver, reason = (solver or Auto()).choose(run.obj)
    save = Checkpoint(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint
    if save is not None and Path(save.path).exists():
        steps = _resume(run, solver, save.path)
    else:
        steps = solver.iterates(run.obj, _start(run.obj, w0))
    with np.errstate(over="ignore"):  # far out, a square may be inf: no best value, no bound, no harm
        status = _drive(run, solver, steps, callback, save)
    assert run.cut is not None
    said = f"{solver!r}: {reason}" if reason else repr(solver)
    return Result(run.w, run.value, run.lower, run.cut, status, run.trace, said)


def _drive(
    run: _Run, solver: Solver, steps: Iterator[Iterate], callback: Callback | None, save: Checkpoint | None
) -> Status:
    """Take steps until something says stop."""
    status = run.status() if run.trace else None
    written = time.perf_counter()
    it: Iterate | None = None
    try:
        while status is None:
            new = next(steps, None)
            if new is None:
                status = run.end()
                break
            it = new
            status = run.take(it)
            if callback is not None and callback(it, run.trace[-1]) and status is None:
                status = "interrupted"
            if save is not None and status is None and time.perf_counter() - written >= save.every:
                run.save(save.path, solver, it)
                written = time.perf_counter()
    except KeyboardInterrupt:
        if run.w is None:  # nothing was found yet, so there is nothing to return
            raise
        status = "interrupted"
    if save is not None and it is not None:
        run.save(save.path, solver, it)
    return status
