"""Two solvers in sequence: measured progress, not an expectation, decides when to switch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from riskmin.core import Array, Cut, Iterate, Solver, as_solver
from riskmin.problem.objective import Objective
from riskmin.solvers.newton.newton import Newton
from riskmin.solvers.state_checks import check_state

SLOW_NEWTON_PASSES_PER_DIGIT = 1000.0
"""Passes in which Newton's method gains a digit where no matrix is small enough for a factorization, and on
fewer rows than columns, where nearly all rows are active and the steps are many."""


@dataclass(frozen=True)
class Switching(Solver):
    r"""Two solvers: the second continues from the result of the first, once that one is too slow.

    The first solver runs as long as the certified gap decreases fast enough. Its rate is the number of
    decimal digits of the gap that it gains per pass, measured in the second half of its work. With the digits
    that are still missing,

    .. math:: \text{digits} = \log_{10} \frac{\text{gap}}{\text{tol} \cdot J}, \qquad
              \frac{\text{digits}}{\text{digits per pass}} > 5 + \text{passes per digit} \cdot \text{digits}

    is the condition for the second one to take over. While the gap is still above half of J, the digits tell
    nothing: there the logarithm of the ratio of the bound to J predicts the work up to one half, and a digit
    is assumed to take as much again. The unit of work is a pass over X: an oracle call, or an
    epoch where the first solver counts epochs. No time is measured, so a run is reproducible to the bit.

    A second solver with a method ``warm_start`` that supports the state of the first one starts from that:
    `Newton` uses the dual variables of nonsmooth losses. Others start from the best point. Where the gap is
    still above 0.3, the second solver starts from the initial point instead.

    Parameters
    ----------
    fast : Solver
        Fast at first, such as `DualCoordinateAscent`.
    accurate : Solver
        Fast in the end, such as `Newton`.
    tol : float
        The relative gap to reach.
    passes_per_digit : float, optional
        The passes in which the second solver is expected to gain a decimal digit. By default the cost of
        Newton's method: 8, plus that of factorizing a matrix of the features; 1000 for more
        than 2500 of them, or more than rows.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import DualCoordinateAscent, Switching, Hinge, L2, Newton, Objective
    >>> from riskmin import linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 5))
    >>> y = np.where(X[:, 0] + rng.standard_normal(300) > 0, 1.0, -1.0)
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=1e-6)
    >>> result = minimize(J, Switching(DualCoordinateAscent(), Newton(), tol=1e-6), tol=1e-6)
    >>> result.status, {row["solver"] for row in result.trace}
    ('converged', {1.0, 2.0})
    """

    USEFUL_GAP = 0.3
    """Above this relative gap, the first solver has found nothing that the second could use."""

    fast: Solver
    accurate: Solver
    tol: float = 1e-3
    passes_per_digit: float | None = None

    def __repr__(self) -> str:
        """Both solvers and tol; `passes_per_digit` only if it was given."""
        optional = "" if self.passes_per_digit is None else f", passes_per_digit={self.passes_per_digit!r}"
        return f"{type(self).__name__}({self.fast!r}, {self.accurate!r}, tol={self.tol!r}{optional})"

    def __post_init__(self) -> None:
        for name in ("fast", "accurate"):
            object.__setattr__(self, name, as_solver(vars(self)[name]))
        if not self.tol > 0:
            raise ValueError(f"tol must be > 0, the relative gap to reach, not {self.tol}")
        if self.passes_per_digit is not None and not self.passes_per_digit > 0:
            raise ValueError(f"passes_per_digit must be a number of passes > 0, not {self.passes_per_digit}")

    def supports(self, obj: Objective) -> str | None:
        """None for what both solvers support."""
        return self.fast.supports(obj) or self.accurate.supports(obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the first solver, followed by those of the second."""
        return self._run_first(obj, w0, self.fast.iterates(obj, w0), _SwitchingProgress())

    def verifies_states(self, obj: Objective) -> bool:
        """Whether both solvers do that."""
        return self.fast.verifies_states(obj) and self.accurate.verifies_states(obj)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state, with the solver that saved it."""
        # found: (value, lower, switched, calls)
        shapes = {"found": "4", "best": "d", "start?": "d", "work": "m", "gaps": "m"}
        check_state(state, shapes, d=obj.risk.dim)
        progress, inner = _SwitchingProgress.from_state(state), _inner_state(state)
        # the state is that of the solver that was running
        solver = self.accurate if progress.switched else self.fast
        steps = solver.resume(obj, inner) or solver.iterates(obj, state["best"])
        if progress.switched:
            return self._run_second(obj, steps, progress)
        if progress.should_switch(self.tol, self._passes_per_digit(obj)):
            return self._switch(obj, state["start"], inner, progress)
        return self._run_first(obj, state["start"], steps, progress)

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from a run on the same risk, with the solver that ended it."""
        switched, inner = _SwitchingProgress.from_state(state).switched, _inner_state(state)
        solver, w = self.accurate if switched else self.fast, state["best"]
        steps = solver.warm_start(obj, inner, before) or solver.iterates(obj, w)
        progress = _SwitchingProgress(switched=switched)
        if switched:
            return self._run_second(obj, steps, progress)
        return self._run_first(obj, w, steps, progress)

    def for_tolerance(self, tol: float) -> Switching:
        """Both solvers, with this tol as the gap to reach."""
        return replace(self, tol=tol)

    def summary(self, trace: list[dict[str, float]]) -> str:
        """The steps of each solver, as a sentence."""
        n_second = sum(row.get("solver") == 2 for row in trace)
        first, second = self.fast.name, self.accurate.name
        if not n_second:
            return f"{first} to the end"
        return f"{first} for {len(trace) - n_second} steps, then {second} for {n_second}"

    def _run_first(
        self, obj: Objective, w0: Array, steps: Iterator[Iterate], progress: _SwitchingProgress
    ) -> Iterator[Iterate]:
        """The first solver, until it is too slow or ends; then the second."""
        calls = obj.count.calls
        previous_calls = progress.calls
        passes_per_digit = self._passes_per_digit(obj)
        it: Iterate | None = None
        for it in steps:
            progress.calls = previous_calls + obj.count.calls - calls
            progress.update(obj, it)
            yield progress.with_progress_info(it, {"start": w0})
            if progress.should_switch(self.tol, passes_per_digit):
                break
        last_state = it.state() if it is not None and it.state is not None else {}
        yield from self._switch(obj, w0, last_state, progress)

    def _switch(
        self, obj: Objective, w0: Array, last_state: dict[str, Array], progress: _SwitchingProgress
    ) -> Iterator[Iterate]:
        """The second solver, from the result of the first one if that is useful."""
        progress.switched = True
        # no point, or one whose gap is no better than that of the initial point
        if progress.w is None or progress.gap > self.USEFUL_GAP:
            return self._run_second(obj, self.accurate.iterates(obj, w0), progress)
        steps: Iterator[Iterate] | None = None
        if last_state:
            with contextlib.suppress(KeyError):  # the state has no array that the second solver supports
                steps = self.accurate.warm_start(obj, last_state, obj)
        return self._run_second(obj, steps or self.accurate.iterates(obj, progress.w), progress)

    def _run_second(
        self, obj: Objective, steps: Iterator[Iterate], progress: _SwitchingProgress
    ) -> Iterator[Iterate]:
        """The iterates of the second solver, with the best cut of both."""
        for it in steps:
            progress.update(obj, it)
            assert progress.cut is not None
            # the cut of the first solver may still be the better one
            yield progress.with_progress_info(it._replace(cut=progress.cut), {})

    def _passes_per_digit(self, obj: Objective) -> float:
        return _newton_passes_per_digit(obj) if self.passes_per_digit is None else self.passes_per_digit


def _newton_passes_per_digit(obj: Objective) -> float:
    """The passes over X in which Newton's method is expected to gain a decimal digit."""
    rows, dim = obj.risk.rows, obj.risk.dim
    if rows is None or not rows.X.nnz or dim > Newton().direct or rows.X.shape[0] < dim:
        return SLOW_NEWTON_PASSES_PER_DIGIT
    # about 20 factorizations per digit take the time of p^3 / 6 entries; a pass takes that of nnz entries
    return 8.0 + dim**3 / (6.0 * rows.X.nnz)  # type: ignore[no-any-return]


def _inner_state(state: dict[str, Array]) -> dict[str, Array]:
    """The part of a state that belongs to the solver which was running."""
    # its arrays have the prefix "own."
    return {k[4:]: v for k, v in state.items() if k.startswith("own.")}


@dataclass
class _SwitchingProgress:
    """The best point and cut of a run, and its gap as a function of its work."""

    TRIAL_PASSES = 4.0
    """Passes over X before progress is measured."""
    SWITCH_PASSES = 5.0
    """The cost of switching, in passes."""
    FIRST_PHASE_GAP = 0.5
    """Above this relative gap, the share of J that is proved is extrapolated, and not the digits."""

    value: float = math.inf
    lower: float = 0.0
    w: Array = None
    cut: Cut | None = None
    switched: bool = False
    """Whether the second solver is running."""
    calls: int = 0
    """Oracle calls of the first solver."""
    work: list[float] = field(default_factory=list)
    """Passes, up to each iterate of the first solver."""
    gaps: list[float] = field(default_factory=list)
    """Relative gaps, after each iterate of the first solver."""

    @classmethod
    def from_state(cls, state: dict[str, Array]) -> _SwitchingProgress:
        value, lower, switched, calls = (float(v) for v in state["found"])
        history = [float(v) for v in state["work"]], [float(v) for v in state["gaps"]]
        return cls(value, lower, state["best"], None, bool(switched), int(calls), *history)

    @property
    def gap(self) -> float:
        return (self.value - self.lower) / self.value if self.value > 0 else 0.0

    def update(self, obj: Objective, it: Iterate) -> None:
        """Keep the better point and the better cut, and record the gap."""
        if self.w is None or it.value < self.value:
            self.w, self.value = it.w, it.value
        # the minimum over w of lam Omega(w) + a'w + b
        lower = obj.lower(it.cut)
        if self.cut is None or lower > self.lower:
            self.cut, self.lower = it.cut, lower
        if not self.switched:
            self.work.append(self.calls + it.info.get("epochs", 0.0))
            self.gaps.append(self.gap)

    def should_switch(self, tol: float, passes_per_digit: float) -> bool:
        """Whether the second solver is expected to reach tol with less work than the first."""
        work, gap = self.work[-1], self.gaps[-1]
        if work < self.TRIAL_PASSES or gap <= 0:
            return False
        missing = max(math.log10(gap / tol), 1.0)  # a run that continues beyond tol needs another digit
        second = self.SWITCH_PASSES + passes_per_digit * missing
        if gap > self.FIRST_PHASE_GAP:
            return self._first_phase_estimate(tol) > second
        half = self._half()
        gained = math.log10(self.gaps[half] / gap)
        # missing / rate > second, multiplied by the digits gained
        return missing * (work - self.work[half]) > gained * second

    def _half(self) -> int:
        """The last iterate of the first half of the work; the progress since then gives the rate."""
        return max(k for k, done in enumerate(self.work) if done <= self.work[-1] / 2 or k == 0)

    def _first_phase_estimate(self, tol: float) -> float:
        """The remaining work while the gap is above half of J, from the share of J that is proved."""
        half, work, proved = self._half(), self.work[-1], 1.0 - self.gaps[-1]
        earlier = 1.0 - self.gaps[half]
        if not 0 < earlier < proved:
            return math.inf
        # to the end of this phase at the rate of the logarithm, and as much again for each digit after it
        rate = math.log10(proved / earlier) / (work - self.work[half])
        rest = max(math.log10((1.0 - self.FIRST_PHASE_GAP) / proved), 0.0) / rate
        return rest + (work + rest) * max(math.log10(self.FIRST_PHASE_GAP / tol), 1.0)

    def with_progress_info(self, it: Iterate, arrays: dict[str, Array]) -> Iterate:
        """The iterate with the number of its solver, and a state that includes this progress and `arrays`."""
        info = dict(it.info) | {"solver": 2.0 if self.switched else 1.0}
        if it.state is None:
            return it._replace(info=info, state=None)
        inner, numbers = it.state, [self.value, self.lower, float(self.switched), float(self.calls)]
        # copies: the lists grow while the state may be saved later
        work, gaps, w = np.array(self.work), np.array(self.gaps), self.w

        def state() -> dict[str, Array]:
            inner_arrays = {f"own.{name}": a for name, a in inner().items()}
            progress = {"found": np.array(numbers), "work": work, "gaps": gaps, "best": w}
            return inner_arrays | progress | arrays

        return it._replace(info=info, state=state)
