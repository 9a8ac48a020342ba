"""State of a run: the best point and lower bound so far, the stopping criteria, and the final evaluation."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from riskmin.arrays.namespace import namespace
from riskmin.core import AnswersEnded, Array, Criterion, Cut, Iterate, Solver, Status
from riskmin.core.deadline import OutOfTime, TimeLimit
from riskmin.core.persist import FileError
from riskmin.core.records import bounds_row
from riskmin.driver.checkpoint import Checkpoint
from riskmin.driver.fingerprint import fingerprint, probe
from riskmin.executors.base import Coordination
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.convexity import CutMonitor
from riskmin.problem.explicit_intercepts import with_best_intercepts
from riskmin.problem.objective import Objective
from riskmin.problem.preconditioning import PreconditionedProblem
from riskmin.problem.rounding import rounding_allowance, value_rounding

Callback = Callable[[Iterate, dict[str, float]], Any]


@dataclass(frozen=True)
class Limits:
    """Limits of a run; checks that they are valid."""

    DEFAULT_ATOL_RATIO = 1e-6
    """The default atol is this multiple of tol times the risk at w = 0 with its best intercept."""
    tol: float
    max_iter: int
    max_seconds: float
    atol: float | None = None

    def __post_init__(self) -> None:
        if not self.tol >= 0:
            raise ValueError(f"tol must be >= 0, not {self.tol}")
        if self.atol is not None and not self.atol >= 0:
            raise ValueError(
                f"atol must be >= 0, or None for {self.DEFAULT_ATOL_RATIO} * tol times the risk at w = 0, "
                f"not {self.atol}"
            )
        if self.max_iter < 1:
            raise ValueError(f"max_iter must be at least 1, not {self.max_iter}")
        if not self.max_seconds >= 0:
            raise ValueError(f"max_seconds must be >= 0, not {self.max_seconds}")

    def absolute(self, risk_at_zero: float) -> float:
        """The absolute tolerance: `atol`, or its default."""
        return self.DEFAULT_ATOL_RATIO * self.tol * risk_at_zero if self.atol is None else self.atol


@dataclass
class RunState:
    """State of a run."""

    STALL_ITERATIONS = 100
    """Stop as stalled after this many consecutive iterations without an improvement of either bound."""
    GRACE_SECONDS = 0.2
    """Time for a last evaluation of the risk, once a run is out of time or interrupted."""
    ZERO_OBJECTIVE_RATIO = 1e-30
    """If J falls below this multiple of its first value, min J is 0 and no relative gap can be proved."""
    ATOL_AFTER_ITERATIONS = 30
    """After this many iterations, the evaluations of J and the risk at w = 0 cost little."""
    RISK_AT_ZERO_MAX_RATIO = 1e3
    """Bound on (risk at w = 0) / (first J) up to which the default atol is known not to matter before that.

    The first J may be well below the risk at w = 0: a run may start from a solution for a sample of the rows.
    """

    obj: Objective
    limits: Limits
    coordination: Coordination  # with several ranks, rank 0 decides for all
    problem: PreconditionedProblem | None = None  # the problem in the variables of solvers, too
    w: Array = None
    value: float = math.inf
    cut: Cut | None = None
    preconditioned: bool = False  # whether the cut was computed in preconditioned variables
    b: Any = None  # the intercept at which the value is J(w); during iterations, one near the best
    lower: float = 0.0  # J >= 0
    cuts_valid: bool = True  # no point with J below a cut has been found
    noise: float = 0.0  # largest amount by which rounding raised a lower bound above J
    slack: float = 0.0  # bound on the rounding errors of the cut; known after `reevaluate`
    value_error: float = 0.0  # bound on the rounding error of the value, likewise
    bound_reduction: float = 0.0  # by how much `slack` reduced the lower bound
    trace: list[dict[str, float]] = field(default_factory=list)
    origin: tuple[Array, float, Cut, float] | None = None  # see `reference_point`
    stalled_iterations: int = 0  # consecutive iterations without progress
    from_file: bool = False  # whether the solver goes on from a state in a file
    unverified: bool = False  # whether it does without recomputing its cuts, so that they are hints
    claimed: float = 0.0  # the lower bound of such hints
    probe: list[float | None] | None = None  # see `probed`
    ending: bool = False  # the run may end here, so that the absolute tolerance is computed
    seconds_before_resume: float = 0.0
    started_at: float = field(default_factory=lambda: time.perf_counter())
    seconds: float = 0.0
    watch: CutMonitor | None = None  # for a user-defined risk, whose cuts may be wrong
    limit: TimeLimit = field(default_factory=TimeLimit)
    """Time limit of the code that runs within an iteration."""
    refusal: str = ""  # why the risk gives no more answers
    in_grace_period: bool = False  # whether `limit` was extended by `GRACE_SECONDS`

    def __post_init__(self) -> None:
        # several ranks would reach the deadline at different places: they check it between iterations only
        if self.single_process:
            self.limit.deadline = self.started_at + self.limits.max_seconds

    @property
    def single_process(self) -> bool:
        """Whether the clock may end an iteration; ranks, each with a clock, must stop at the same place."""
        return self.coordination.single_process

    def remaining_seconds(self) -> float:
        """Time left for an evaluation between iterations; extended once to at least `GRACE_SECONDS`."""
        now, extends = time.perf_counter(), self.single_process and not self.in_grace_period
        if extends and self.limit.deadline < now + self.GRACE_SECONDS:
            self.limit.deadline, self.in_grace_period = now + self.GRACE_SECONDS, True
        return self.limit.deadline - now

    def expire(self) -> None:
        """Let the limit pass now, so that only the grace period is left."""
        if self.single_process and not self.in_grace_period:
            self.limit.deadline = -math.inf

    def update_seconds(self) -> float:
        """Read the clock, and store and return the seconds of the run."""
        self.seconds = self.coordination.broadcast_from_root(
            lambda: self.seconds_before_resume + time.perf_counter() - self.started_at
        )
        return self.seconds

    @property
    def atol(self) -> float:
        """The absolute tolerance; 0 as long as the default one is too small to matter.

        The default is atol = tol * `Limits.DEFAULT_ATOL_RATIO` * R(0), at least the rounding error of R(0).
        """
        if self.limits.atol is not None or self.refusal:
            return self.limits.atol or 0.0
        # computing R(0) costs an evaluation of the risk: skip it while the gap is far above any such atol
        first = self.trace[0]["value"] if self.trace else 0.0
        relative = self.limits.tol * Limits.DEFAULT_ATOL_RATIO
        if (
            len(self.trace) < self.ATOL_AFTER_ITERATIONS
            and not self.ending
            and self.value - self.lower > self.RISK_AT_ZERO_MAX_RATIO * relative * first
        ):
            return 0.0
        return max(relative * self.reference_point()[3], self.limits.tol and self.rounding)

    @cached_property
    def rounding(self) -> float:
        """Rounding error of the risk at w = 0 without an intercept.

        If y is constant, the best intercept makes the risk zero up to this error.
        """
        risk = self.obj.risk
        if not risk.intercept.profiled:
            return 0.0
        return CUT_ROUNDING * risk.with_zero_intercept()(0.0 * self.w)[0]

    @property
    def refutation(self) -> str:
        """Why nothing is proved, if a user-defined risk was found not to be convex; else empty."""
        return self.watch.refutation if self.watch is not None else ""

    def reference_point(self) -> tuple[Array, float, Cut, float]:
        """Return argmin Omega, J and the cut there, and R at w = 0, with the best intercepts; cached."""
        if self.origin is None:
            calls = self.obj.count.calls
            try:
                self.origin = TimeLimit(time.perf_counter() + self.remaining_seconds()).call(
                    self._evaluate_origin
                )
            except (OutOfTime, AnswersEnded):
                assert self.cut is not None
                self.origin = self.w, math.inf, self.cut, 0.0  # J = inf: no improvement
            self.obj.count.calls = calls  # evaluations that serve no solver are not counted
        return self.origin

    def _evaluate_origin(self) -> tuple[Array, float, Cut, float]:
        """Evaluate what `reference_point` returns."""
        # 0 * w keeps the array library and device of w
        zero = 0.0 * self.w
        if self.obj.n_intercepts:
            zero = with_best_intercepts(self.obj.risk, zero)
        evaluation = self.obj.evaluate_risk(zero)
        # some domains, such as that of a normalized entropy, do not contain 0
        w = zero if math.isfinite(self.obj.reg.value(zero)) else self.obj.reg.conjugate_grad(zero)
        value, _, cut = self.obj.add_penalty(w, evaluation) if w is zero else self.obj(w)
        return w, value, cut, max(evaluation.value, 0.0)

    def use_origin_if_better(self) -> None:
        """Replace the best point by the reference point, if J is lower there.

        By the cut, J(0) >= b: if b >= J(w), the reference point need not be evaluated.
        """
        if self.cut is not None and self.criterion() and self.origin is None and self.cut.b >= self.value:
            return
        if self.reference_point()[1] < self.value:
            self.w, self.value, cut, _ = self.reference_point()
            self.b = self.obj.risk.best_intercept(self.w)
            self._bound(cut)

    def _proves(self, value: float) -> bool:
        """Whether the lower bound proves that `value` is within tol of min J."""
        return value - self.lower <= self.limits.tol * value

    def criterion(self) -> Criterion:
        """Return the tolerance that is met, or "".

        The gap is compared to tol after adding the rounding errors of J and of the bound: `value_error`, the
        part of `slack` by which the bound was not reduced, and `noise`. Rounding may also make J negative.
        """
        if self.refutation or not math.isfinite(self.value):
            return ""
        gap, allowed = self.value - self.lower, self.limits.tol * max(self.value, 0.0)
        if gap <= allowed < gap + self.value_error:
            # the errors of scores count in rows at a kink only: bound them row by row
            self.value_error = min(self.value_error, value_rounding(self.obj, self.w, self._intercept()))
        # `lower` was already reduced by part of the slack: do not count that part twice
        error = max(self.slack - self.bound_reduction, self.value_error) if gap else 0.0
        if gap + max(self.noise, error) <= allowed:
            return "tol"
        return "atol" if gap + self.noise <= self.atol else ""

    def _intercept(self) -> Any:
        """Return the best intercept for w, or one near it."""
        if self.b is None:
            self.b = self.obj.risk.best_intercept(self.w)
        return self.b

    def check_finite(self) -> None:
        """Raise a ValueError if J is finite neither at the first point nor at w = 0."""
        if not math.isfinite(self.value) and not math.isfinite(self.reference_point()[1]):
            raise ValueError(
                "J is not finite at w = 0: numbers are too large for double precision, or a user-defined "
                "loss returns NaN; scale X and y (numbers from 1e-6 to 1e6 are safe)"
            )

    def status(self) -> Status | None:
        """Return the status with which the run stops now, or None if it goes on."""
        if self.refutation:
            return "stalled"  # no gap can be proved at any point
        if self.criterion():
            return "converged"
        if len(self.trace) >= self.limits.max_iter:
            return "max_iter"
        if self.seconds >= self.limits.max_seconds:
            return "max_seconds"
        # if min J = 0, the relative gap (J - 0) / J stays 1 as long as J > 0
        zero_objective = bool(self.trace) and self.value <= self.ZERO_OBJECTIVE_RATIO * self.trace[0]["value"]
        return "stalled" if self.stalled_iterations >= self.STALL_ITERATIONS or zero_objective else None

    def _bound(self, cut: Cut, preconditioned: bool = False) -> None:
        """Keep the cut with the greater lower bound; a bound that rounding raises above J is reduced to J.

        A bound above J by more than rounding shows that the oracle's cuts are wrong, or that its risk is not
        convex: from then on only J >= 0 is assumed.
        """
        lower, slack, reduction = self.obj.lower(cut), self.slack, self.bound_reduction
        if slack and lower > self.lower and self.cuts_valid:
            # the roundings of two cuts are hardly related
            lower, slack, reduction = self._lower_with_rounding(cut, preconditioned)
        if self.cut is None or (lower > self.lower and self.cuts_valid):
            self.cut, self.lower, self.stalled_iterations = cut, lower, 0
            self.preconditioned, self.slack, self.bound_reduction = preconditioned, slack, reduction
        self._reduce_to_value()

    def _reduce_to_value(self) -> None:
        """Check that the bound is below J, up to rounding, by which it is reduced."""
        assert self.cut is not None
        if self._bound_exceeds_value():
            # in columns of very different units, rounding may be most of a bound: estimate it
            if self.watch is None and self.cuts_valid:
                self.lower, _, _ = self._lower_with_rounding(self.cut)
            if self._bound_exceeds_value():
                self.cuts_valid = False
                if self.watch is not None:
                    self.watch.refute(f"J is {self.value:.4g}, below the bound {self.lower:.4g} of its cuts")
        if self.refutation or not self.cuts_valid:
            self.cut, self.lower, self.cuts_valid = Cut(0.0 * self.cut.a, 0.0), 0.0, False
        # a bound slightly above J is rounding: report one below J, and remember the difference
        self.noise = max(self.noise, self.lower - self.value)
        self.lower = min(max(self.lower, 0.0), self.value - CUT_ROUNDING * abs(self.value))
        # without R >= 0, not even 0 is a bound
        if self.watch is not None and self.watch.negative:
            self.lower = -math.inf

    def _bound_exceeds_value(self) -> bool:
        """Whether the bound is above J, beyond the rounding of J, and of the first J, which may be larger."""
        first = self.trace[0]["value"] if self.trace else self.value
        return self.lower - self.value > 1e-6 * abs(self.value) + 1e-12 * abs(first)

    def _lower_with_rounding(self, cut: Cut, preconditioned: bool = False) -> tuple[float, float, float]:
        """Lower bound min_w lam Omega(w) + a.w + b - slack of a cut, its slack, and the reduction by it."""
        # the roundings depend on the cut and on w
        b = self._intercept()
        slack, self.value_error = rounding_allowance(self.obj, self.w, b, cut)
        lower = self.obj.lower(cut._replace(b=cut.b - slack))
        if preconditioned and self.problem is not None and self.value - lower > self.limits.tol * self.value:
            # a smaller estimate, which takes one more pass over a sample of the rows
            variables = self.problem.preconditioned(self.w, b, cut)
            slack = min(slack, rounding_allowance(self.obj, self.w, b, cut, variables)[0])
            lower = self.obj.lower(cut._replace(b=cut.b - slack))
        return lower, slack, max(self.obj.lower(cut) - lower, 0.0)

    def reevaluate(self, seconds: float = math.inf) -> None:
        """Recompute J and the cut from scratch, at the best point projected onto the domain of Omega.

        Where a regularizer keeps vectors in two forms (method ``recompute``), one is recomputed from
        the other, for the point and for the cut.
        """
        limit = TimeLimit(time.perf_counter() + seconds)
        reg = self.obj.reg
        recompute = reg.recompute if reg.halves else None
        if recompute is not None:
            w = limit.call(recompute, self.w)
        else:
            # prox with step 0 is the projection onto the domain: all w, of a quadratic form
            w = self.w if self.obj.has_inverse_metric else reg.prox(self.w, 0.0)
        value, b, cut = limit.call(self.obj.at_best_intercept, w, self.b)
        self.w, self.value, self.b = w, value, b
        if self.cut is None:
            self._bound(limit.call(self.obj, w).cut if cut is None else cut)
        if self.cut is not None and self.cuts_valid:
            if recompute is not None:
                self.cut = self.cut._replace(a=limit.call(recompute, self.cut.a, True))
            self.lower, self.slack, self.bound_reduction = limit.call(
                self._lower_with_rounding, self.cut, self.preconditioned
            )
        if cut is None:
            self._reduce_to_value()
            if self.criterion():
                return  # the solver's cut proves enough: none at the best point is needed
            cut = limit.call(self.obj, w).cut
        self._bound(cut)

    def accept(self, it: Iterate) -> Status | None:
        """Update the best point and bound with an iterate, add a row to the trace, and return the status."""
        # another solver took over: the stall counts from its first iterate
        solver_changed = bool(self.trace) and self.trace[-1].get("solver_index") != it.info.get(
            "solver_index"
        )
        self.stalled_iterations = 0 if solver_changed else self.stalled_iterations + 1
        # J >= 0 up to rounding: an iterate with a lower value is not accepted
        min_value = -1e-12 * abs(self.trace[0]["value"]) if self.trace else -math.inf
        if self.w is None or min_value <= it.value < self.value:
            self.w, self.value, self.stalled_iterations, self.b = it.w, it.value, 0, it.intercept
        if self.watch is not None:
            self.watch.take(it.w, it.value, it.cut)
        # a run that starts at w = 0 evaluates the reference point by its first iterate
        exact = it.intercept is not None or not self.obj.risk.intercept.profiled
        may_be_zero = not self.trace and exact and not self.obj.n_intercepts
        if may_be_zero and not bool(namespace(it.w).any(it.w != 0)):
            risk = it.value - self.obj.lam * self.obj.reg.value(it.w)
            self.origin = it.w, it.value, it.cut, max(risk, 0.0)
        if not self.unverified:
            self._bound(it.cut, it.preconditioned)
        elif (claimed := self.obj.lower(it.cut)) > self.claimed:
            self.claimed, self.stalled_iterations = claimed, 0
        if not self.trace:
            self.check_finite()
        if self.origin is not None and self._proves(self.origin[1]):
            self.use_origin_if_better()
        row = {"iteration": len(self.trace) + 1} | self._row() | dict(it.info)
        self.trace.append(row)
        status = self.status()
        # the final evaluation may change J and the bound, hence the status
        if status == "max_seconds":
            self.finalize_within_grace()
        elif status is not None:
            self.finalize()
        return None if status is None else self.status()

    def next_iterate(self, iterates: Iterator[Iterate]) -> Iterate | None:
        """Return the next iterate; None at the end, or if a solver fails on a state from a file."""
        try:
            # the limit is set for each step: it holds only while the code of the solver runs
            new: Iterate | None = self.limit.call(next, iterates, None)
        except (ArithmeticError, ValueError, IndexError):
            if not self.from_file:
                raise
            self.unverified, new = True, None
        return new

    @property
    def claims_end(self) -> bool:
        """Whether hints from a file say that the run may end here."""
        gap, stalled = self.value - self.claimed, self.stalled_iterations >= self.STALL_ITERATIONS
        return self.unverified and (gap <= self.limits.tol * self.value or gap <= self.atol or stalled)

    def verify(self) -> Status | None:
        """Evaluate the best point, from where the solver starts again unless that proves the gap.

        From then on, all that the solver has was computed from the data.
        """
        self.from_file, self.unverified, self.stalled_iterations = False, False, 0
        self.finalize()
        return self.status()

    def finalize_within_grace(self) -> bool:
        """Finalize if that fits into the grace period, and return whether it did.

        If not, the solver's own value stays, and the bound is reduced by a coarse estimate of rounding.
        """
        try:
            self.finalize(self.remaining_seconds())
        except (OutOfTime, AnswersEnded):
            assert self.cut is not None
            # no time or answers to measure the rounding errors: a generous multiple of the magnitudes instead
            magnitude = abs(self.cut.b) + abs(self.value) + abs(self.trace[0]["value"])
            self.slack = max(self.slack, 1e-12 * magnitude)
            lower = self.obj.lower(self.cut._replace(b=self.cut.b - self.slack))
            self.lower = min(self.lower, max(lower, 0.0))
            self.trace[-1] |= self._row()
            return False
        return True

    def finalize(self, seconds: float = math.inf) -> Status:
        """Reevaluate the best point, probe a user-defined risk, and return "converged" or "stalled"."""
        limit, self.ending = TimeLimit(time.perf_counter() + seconds), True
        self.reevaluate(seconds)
        if self.watch is not None and self.cut is not None and self.lower > 0:
            before = self.w
            self.w, self.value = limit.call(self.watch.probe, self.w, self.value, self.lower, self.cut)
            self.b = self.b if self.w is before else None
            self._bound(self.cut)
        self.trace[-1] |= self._row()
        return "converged" if self.status() == "converged" else "stalled"

    def finalize_start(self, w0: Array) -> Status:
        """Finalize a run without any iterate: the result is w0."""
        self.w = w0
        self.reevaluate()
        self.check_finite()
        self.trace.append({"iteration": 1} | self._row())
        return "converged" if self.status() == "converged" else "stalled"

    def finalize_out_of_time(self, w0: Array) -> Status:
        """Finalize when time ran out within an iteration; without any iterate, the result is w0."""
        if self.w is None:
            finalized = bool(self.finalize_start(w0))
        else:
            try:
                finalized = self.finalize_within_grace()
            except KeyboardInterrupt:
                return "interrupted"
        return "converged" if finalized and self.status() == "converged" else "max_seconds"

    def certificate(self) -> Cut:
        """Return the cut that proves the reported bound, and reduce the bounds of the trace to that bound."""
        assert self.cut is not None
        # earlier bounds did not yet allow for rounding
        for row in self.trace:
            if row["lower"] > self.lower:
                row |= bounds_row(row["value"], self.lower)
        # without the multipliers, which have the length of the data: models are saved with their results
        return Cut(self.cut.a, self.cut.b - (self.slack if self.lower > 0 else 0.0))

    def stop_requested(self, callback: Callback, it: Iterate) -> bool:
        """Whether the callback ends the run."""
        return self.coordination.broadcast_from_root(lambda: bool(callback(it, self.trace[-1])))

    def _row(self) -> dict[str, float]:
        """Return the entries that every row of the trace has, but for the number of the iteration."""
        progress = {"seconds": self.update_seconds(), "calls": self.obj.count.calls}
        return progress | bounds_row(self.value, self.lower)

    @cached_property
    def data(self) -> str:
        """Fingerprint of the data, for checkpoints."""
        return fingerprint(self.obj)

    def probed(self, w: Array) -> list[float | None]:
        """Values of a user-defined risk at points in the library of w, for checkpoints; cached."""
        if self.probe is None:
            self.probe = probe(self.obj, w)
        return self.probe

    def save(self, file: Checkpoint, solver: Solver, it: Iterate) -> None:
        """Write a checkpoint; if that fails, warn and go on."""
        assert self.cut is not None
        fields: dict[str, Any] = {"noise": self.noise, "trace": self.trace, "probe": self.probed(self.w)}
        if self.problem is not None:
            fields["variables"] = self.problem.variables
        try:
            state = it.state() if it.state is not None else {}
            arrays = {"w": self.w} | {f"state.{k}": v for k, v in state.items()}
            file.write(self.obj, solver, arrays, fields, self.data)
        except (FileError, MemoryError) as error:
            reason = error if isinstance(error, FileError) else f"there is no memory to write {file.path}"
            warnings.warn(f"{reason}; the run goes on without a checkpoint", RuntimeWarning, stacklevel=4)

    def resume(
        self, file: Checkpoint, solver: Solver, problem: PreconditionedProblem, w0: Array, chosen: bool
    ) -> Iterator[Iterate]:
        """Restore a run from a checkpoint, which is a hint, and return the iterates that follow."""
        saved = file.read(self.obj, solver, lambda: self.data, lambda: self.probed(w0), chosen)
        self.w, self.value, self.noise, self.trace = saved.w, saved.value, saved.noise, saved.trace
        assert saved.cut is not None
        self._bound(saved.cut)
        self.obj.count.calls = int(self.trace[-1]["calls"])
        self.seconds_before_resume = self.seconds = self.trace[-1]["seconds"]
        # max_seconds limits the total of all processes that worked on the run
        self.limit.deadline -= self.seconds_before_resume
        # the state of a solver is in the variables of its run
        same = problem.in_variables(saved.variables) if saved.state else None
        if same is not None:
            self.problem = same
            with file.trusted():
                steps = self.limit.call(same.resumed, solver, saved.state)
            if steps is not None:
                self.from_file, self.unverified = True, not solver.verifies_states(same.obj)
                return steps
            self.problem = problem
        return self.limit.call(problem.iterates, solver, self.w)
