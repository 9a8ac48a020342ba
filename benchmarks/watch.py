"""Runs of a solver timed in CPU seconds, and the paper's smoothing with a fixed mu."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import riskmin as rm
from riskmin.problem.smoothed_risk import SmoothedRisk


class Watch:
    """CPU seconds since its start, without those of the measurement itself."""

    def __init__(self) -> None:
        self.start, self.off = time.process_time(), 0.0

    def seconds(self) -> float:
        return time.process_time() - self.start - self.off

    @contextmanager
    def paused(self) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.off += time.process_time() - begun


@dataclass(frozen=True)
class Sms:
    """Smoothing as in the paper: a fixed mu, and no bound on the distance from the optimum.

    The unsmoothed J is computed for the table only, while the clock is paused.
    """

    mu: float
    inner: Any = field(default_factory=rm.Lbfgs)
    watch: Watch = field(default_factory=Watch)

    def iterates(self, obj, w0):
        soft = SmoothedRisk.from_risk(obj.risk, self.mu)
        for it in self.inner.iterates(rm.Objective(soft, obj.reg, obj.lam, obj.count), w0):
            with self.watch.paused():
                value = soft.unsmoothed_value(it.w) + obj.lam * obj.reg.value(it.w)
            yield rm.Iterate(it.w, value, it.cut, it.info)


def paper_mu(loss: str, eps: float = 1e-3) -> float:
    """The paper's 10 eps / D in our units, in which D is 1/2 for the pairs of ROC area and 1 for PRBEP.

    The paper subtracts mu / 2 |beta|^2, with D = m / 2 for m pairs and D = n / 2 for n rows; the mu of
    riskmin is in units of 1 / m and 2 / n.
    """
    return 10 * eps / {"roc_area": 0.5, "prbep": 1.0}[loss]


class Row(NamedTuple):
    """The state of a run after a step."""

    seconds: float
    calls: int
    value: float
    lower: float
    score: float | None = None


class Run(NamedTuple):
    """The steps and the result of a run."""

    rows: list[Row]
    result: rm.Result

    def reached(self, goal: float) -> Row | None:
        """The first step with J at or below the goal."""
        return next((row for row in self.rows if row.value <= goal), None)

    def proved(self, tol: float) -> Row | None:
        """The first step with a certified relative gap of at most tol."""
        return next((row for row in self.rows if row.value - row.lower <= tol * row.value), None)


def run(
    obj: rm.Objective,
    make: Any,
    seconds: float,
    goal: float = 0.0,
    tol: float = 0.0,
    score: Callable[[Any], float] | None = None,
) -> Run:
    """Run the solver ``make(watch)`` for some CPU seconds, or until J reaches the goal.

    The score of each iterate's weights is computed while the clock is paused.
    """
    rows: list[Row] = []
    watch = Watch()

    def record(it, row):
        now = watch.seconds()
        with watch.paused():
            scored = score(it.w) if score else None
        rows.append(Row(now, int(row["calls"]), row["value"], row["lower"], scored))
        return row["value"] <= goal or now > seconds

    # the clock of minimize cannot be paused
    limit = math.inf if score else 5 * seconds + 5
    result = rm.minimize(obj, make(watch), tol=tol, max_iter=1_000_000, max_seconds=limit, callback=record)
    return Run(rows, result)


def short(row: Row | None, otherwise: str = "-") -> str:
    """Seconds and calls as a table entry."""
    return otherwise if row is None else f"{row.seconds:.3g} ({row.calls})"
