"""One solver that goes on where another falls behind: what is measured decides, not what was expected."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.objective import Objective
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, Resumable, Solver, Warm

TRIAL = 4.0
"""So many passes are done before anything is measured."""
SET_UP = 5.0
"""What it costs to change, in passes."""
DIGIT, MOST, FACTOR = 8.0, 1000.0, 6.0
"""Newton's method takes a digit in so many passes; at most so many; and numbers of X for p^3 operations."""
NEWS = 0.3
"""At a larger gap the first solver has found nothing that the second could use."""


@dataclass(frozen=True)
class HandOver:
    r"""Two solvers: the second goes on from what the first has found, once that one falls behind.

    The first one runs as long as the certified gap falls well. From the second half of its work, the digits
    that it gains a pass are known, and with the digits that are still missing,

    .. math:: \text{digits} = \log_{10} \frac{\text{gap}}{\text{tol} \cdot J}, \qquad
              \frac{\text{digits}}{\text{digits a pass}} > 5 + \text{digit} \cdot \text{digits},

    is when the second one takes over. The unit of work is a pass over X: an oracle call, or an epoch where
    the first solver counts them. No clock is asked, so a run gives the same bits each time.

    A second solver with a method ``warm`` that knows what the state of the first one holds starts from
    there: `SemismoothNewton` takes the dual variables. Others start from the best point; and where the gap is
    still above 0.3, nothing is found that would be worth it, so they start as they would by themselves.

    Parameters
    ----------
    first : Solver
        Fast at first, such as `DualGaussSeidel`.
    then : Solver
        Fast in the end, such as `SemismoothNewton`.
    tol : float
        The relative gap that is sought.
    digit : float, optional
        In how many passes the second solver is thought to gain a digit. By default the cost of Newton's
        method: 8 and what it takes to factor a matrix of the features, 1000 at most.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import DualGaussSeidel, HandOver, Hinge, L2, Objective, SemismoothNewton
    >>> from riskmin import linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 5))
    >>> y = np.where(X[:, 0] + rng.standard_normal(300) > 0, 1.0, -1.0)
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=1e-6)
    >>> result = minimize(J, HandOver(DualGaussSeidel(), SemismoothNewton(), tol=1e-6), tol=1e-6)
    >>> result.status, {row["solver"] for row in result.trace}
    ('converged', {1.0, 2.0})
    """

    first: Solver
    then: Solver
    tol: float = 1e-3
    digit: float | None = None

    def __repr__(self) -> str:
        """The two, and what is sought; the rest only where it was given."""
        rest = "" if self.digit is None else f", digit={self.digit!r}"
        return f"HandOver({self.first!r}, {self.then!r}, tol={self.tol!r}{rest})"

    def __post_init__(self) -> None:
        if not self.tol > 0:
            raise ValueError(f"tol must be > 0, the gap that is sought, not {self.tol}")
        if self.digit is not None and not self.digit > 0:
            raise ValueError(f"digit must be a number of passes > 0, not {self.digit}")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the first solver, and then of the second."""
        return self._first(obj, w0, self.first.iterates(obj, w0), _Progress())

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state, with the solver that it is of."""
        shapes = {"found": "4", "best": "d", "start?": "d", "cut": "e", "work": "m", "gaps": "m"}
        checked(state, shapes, d=obj.risk.dim, e=obj.risk.dim + 1)
        seen, own = _Progress.of(state), {k[4:]: v for k, v in state.items() if k.startswith("own.")}
        solver: Any = self.then if seen.handed else self.first
        if seen.handed:
            return self._second(obj, solver.resume(obj, own), seen)
        if seen.behind(self.tol, self._digit(obj)):
            return self._handed(obj, state["start"], own, seen)
        return self._first(obj, state["start"], solver.resume(obj, own), seen)

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from a run on the same risk, with the solver that ended it."""
        handed, own = _Progress.of(state).handed, {k[4:]: v for k, v in state.items() if k.startswith("own.")}
        solver: Any = self.then if handed else self.first
        w, known = state["best"], isinstance(solver, Warm)
        steps = solver.warm(obj, own, before) if known else solver.iterates(obj, w)
        seen = _Progress(handed=handed)
        return self._second(obj, steps, seen) if handed else self._first(obj, w, steps, seen)

    def account(self, trace: list[dict[str, float]]) -> str:
        """What was done, in words."""
        last = sum(row.get("solver") == 2 for row in trace)
        first, then = type(self.first).__name__, type(self.then).__name__
        if not last:
            return f"{first} to the end"
        return f"{first} for {len(trace) - last} steps, then {then} for {last}"

    def _first(
        self, obj: Objective, w0: Array, steps: Iterator[Iterate], seen: _Progress
    ) -> Iterator[Iterate]:
        """The first solver, until it falls behind or can get no further; then the second."""
        calls, before, digit = obj.count.calls, seen.calls, self._digit(obj)
        it: Iterate | None = None
        for it in steps:
            seen.calls = before + obj.count.calls - calls
            seen.take(obj, it)
            yield seen.told(it, self.first, {"start": w0})
            if seen.behind(self.tol, digit):
                break
        last = it.state() if it is not None and it.state is not None else {}
        yield from self._handed(obj, w0, last, seen)

    def _handed(
        self, obj: Objective, w0: Array, last: dict[str, Array], seen: _Progress
    ) -> Iterator[Iterate]:
        """The second solver, from what the first one has found if that is worth it."""
        seen.handed = True
        if seen.w is None or seen.gap > NEWS:
            return self._second(obj, self.then.iterates(obj, w0), seen)
        if last and isinstance(self.then, Warm):
            with contextlib.suppress(KeyError):  # the state has nothing that it knows of
                return self._second(obj, self.then.warm(obj, last, obj), seen)
        return self._second(obj, self.then.iterates(obj, seen.w), seen)

    def _second(self, obj: Objective, steps: Iterator[Iterate], seen: _Progress) -> Iterator[Iterate]:
        for it in steps:
            seen.take(obj, it)
            assert seen.cut is not None
            yield seen.told(it._replace(cut=seen.cut), self.then, {})

    def _digit(self, obj: Objective) -> float:
        return _newton(obj) if self.digit is None else self.digit


def _newton(obj: Objective) -> float:
    """In how many passes over X Newton's method gains a digit."""
    X = getattr(getattr(obj.risk, "rows", None), "X", None)
    held = getattr(X, "csr", X)
    size = getattr(getattr(held, "data", getattr(held, "X", None)), "size", 0)
    return min(MOST, DIGIT + obj.risk.dim**3 / (FACTOR * size)) if size else MOST


@dataclass
class _Progress:
    """What a run has found so far, and how its gap fell with its work."""

    value: float = math.inf
    lower: float = 0.0
    w: Array = None
    cut: Cut | None = None
    handed: bool = False
    """Whether the second solver is at work."""
    calls: int = 0
    """Oracle calls of the first solver."""
    work: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Relative ones, after each iterate of the first solver."""

    @classmethod
    def of(cls, state: dict[str, Array]) -> _Progress:
        value, lower, handed, calls = (float(v) for v in state["found"])
        cut = Cut(state["cut"][:-1], float(state["cut"][-1]))
        falls = [float(v) for v in state["work"]], [float(v) for v in state["gaps"]]
        return cls(value, lower, state["best"], cut, bool(handed), int(calls), *falls)

    @property
    def gap(self) -> float:
        return (self.value - self.lower) / self.value if self.value > 0 else 0.0

    def take(self, obj: Objective, it: Iterate) -> None:
        """Keep what is better, and note the gap."""
        if self.w is None or it.value < self.value:
            self.w, self.value = it.w, it.value
        lower = obj.lower(it.cut)
        if self.cut is None or lower > self.lower:
            self.cut, self.lower = it.cut, lower
        if not self.handed:
            self.work.append(self.calls + it.info.get("epochs", 0.0))
            self.gaps.append(self.gap)

    def behind(self, tol: float, digit: float) -> bool:
        """Whether the second solver is thought to get to tol with less work than the first."""
        work, gap = self.work[-1], self.gaps[-1]
        if work < TRIAL or gap <= 0:
            return False
        half = max(k for k, done in enumerate(self.work) if done <= work / 2 or k == 0)
        gained = math.log10(self.gaps[half] / gap)
        missing = max(math.log10(gap / tol), 1.0)  # who goes on beyond tol wants another digit
        return missing * (work - self.work[half]) > gained * (SET_UP + digit * missing)

    def told(self, it: Iterate, solver: Solver, more: dict[str, Array]) -> Iterate:
        """The iterate, with which solver it is of, and a state that has all of this in it."""
        info = dict(it.info) | {"solver": 2.0 if self.handed else 1.0}
        if it.state is None or not isinstance(solver, Resumable):
            return it._replace(info=info, state=None)
        inner, found = it.state, [self.value, self.lower, float(self.handed), float(self.calls)]
        work, gaps, cut, w = np.array(self.work), np.array(self.gaps), self.cut, self.w

        def state() -> dict[str, Array]:
            assert cut is not None
            own = {f"own.{name}": a for name, a in inner().items()}
            mine = {"found": np.array(found), "work": work, "gaps": gaps, "best": w}
            return own | mine | more | {"cut": np.append(cut.a, cut.b)}

        return it._replace(info=info, state=state)
