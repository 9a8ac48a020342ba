"""The driver loop: tolerances, time limits, the best point, traces, checkpoints and interruption.

Solvers only yield iterates; all decisions of when to stop are made by this module and
`riskmin.minimize_preconditioned`.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.core import AnswersEnded, Array, Iterate, Result, RunPaused, Solver, Status
from riskmin.core.blas_threads import blas_thread_limit
from riskmin.core.deadline import OutOfTime, TimeLimit
from riskmin.core.signals import deferred_termination, ignore_interrupts
from riskmin.driver.checkpoint import Checkpoint
from riskmin.driver.run import Callback, Limits, RunState
from riskmin.executors.base import blas_threads_of, coordination_of
from riskmin.problem.convexity import check, monitor_for
from riskmin.problem.objective import Objective, is_builtin, is_foreign, starting_point
from riskmin.problem.preconditioning import PreconditionedProblem, preconditioner
from riskmin.solvers import Auto, get_solver
from riskmin.solvers.auto import describe_solver


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

    Solvers work in variables for which the columns of X are centered (if that leaves J unchanged) and scaled
    (see `Preconditioner`); the result refers to the problem as it was given.

    Parameters
    ----------
    objective : Objective
    solver : Solver or str, optional
        A solver, or the name of one ("bundle", "lbfgs", ...); `Auto()` by default, which selects one and
        gives the reason in ``result.solver``.
    w0 : array, optional
        Starting point; zero by default.
    tol : float
        The relative certified gap to reach: the same stopping rule for every solver.
    atol : float, optional
        The absolute certified gap to reach; by default 1e-6 * tol times the risk at w = 0 with its best
        intercept (1e-9 of it for the default tol). With 0, only tol counts. ``result.criterion`` is the
        tolerance that was met.
    max_iter, max_seconds : int, float
        Limits. The first one that is reached ends the run with that status and the best point so far. Time
        is checked within iterations, too, several times per second; a run that has no iterate when time is
        over returns w0, after one evaluation of the risk.
    callback : callable, optional
        ``callback(iterate, row)`` after every iteration, `row` being the new row of the trace; a true
        return value ends the run with status ``interrupted``.
    checkpoint : path or Checkpoint, optional
        Save the run to this file after a second, then at increasing intervals of at most 30 seconds (or
        ``Checkpoint.every``), and at its end. If the file exists, the run resumes from it.

    Returns
    -------
    Result
        Ctrl-C returns the best point so far, with status ``interrupted``; with a checkpoint, SIGTERM ends
        the program after a last checkpoint. Where data owners refuse further answers, the result is the best
        point so far, with status ``stalled`` and their reason in ``note``. If points of the run show that a
        user-defined loss or risk is not convex, nothing is proved, and ``note`` describes the violation.

    Raises
    ------
    ValueError
        Also if tests before the run show that a user-defined loss or risk is not convex, or is negative, or
        has a wrong gradient, or that the conjugate of a user-defined regularizer does not fit it.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Bundle, Hinge, L2, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> result = minimize(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.01), Bundle(), tol=1e-6)
    >>> result.status, result.lower <= result.value <= result.lower * (1 + 2e-6)
    ('converged', True)
    """
    started_at, objective = time.perf_counter(), objective.with_new_count()
    single_process = coordination_of(objective.risk).single_process
    saved_in = Checkpoint(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else checkpoint
    limits = {"tol": tol, "max_iter": max_iter, "max_seconds": max_seconds, "atol": atol}
    with _controlled(objective.risk):
        limit = TimeLimit(started_at + max_seconds if single_process else math.inf)
        try:
            problem = limit.call(_precondition, objective)
        except OutOfTime:
            # no time is left for iterations either: go on without a preconditioner
            problem = PreconditionedProblem.from_objective(objective, None)
        saves = saved_in is not None and single_process
        with deferred_termination() if saves else contextlib.nullcontext():
            return _minimize(problem, solver, w0, limits, callback, saved_in, started_at)


@contextlib.contextmanager
def _controlled(risk: Any) -> Iterator[None]:
    """All processes of a run leave the block in the same way, and BLAS uses one thread per worker in it."""
    with coordination_of(risk).synchronized(), blas_thread_limit(blas_threads_of(risk)):
        yield


def precondition(objective: Objective) -> PreconditionedProblem:
    """Return the problem in preconditioned variables."""
    with _controlled(objective.risk):
        return _precondition(objective)


def _precondition(objective: Objective) -> PreconditionedProblem:
    with np.errstate(over="ignore"):
        return PreconditionedProblem.from_objective(objective, preconditioner(objective))


def minimize_preconditioned(
    problem: PreconditionedProblem,
    solver: Solver | str | None,
    w0: Array | None,
    limits: dict[str, Any],
    callback: Callback | None = None,
) -> Result:
    """Minimize the objective of a problem that is already preconditioned."""
    with _controlled(problem.original.risk):
        return _minimize(problem, solver, w0, limits, callback, None, time.perf_counter())


def _minimize(
    problem: PreconditionedProblem,
    solver: Solver | str | None,
    w0: Array | None,
    limits: dict[str, Any],
    callback: Callback | None,
    checkpoint: Checkpoint | None,
    started_at: float,
) -> Result:
    obj, coordination = problem.original, coordination_of(problem.original.risk)
    checked = coordination.broadcast_from_root(lambda: Limits(**limits))
    state = RunState(obj, checked, coordination, problem, started_at=started_at)
    w0 = starting_point(obj, w0)
    # riskmin's own losses and regularizers are convex: its tests check them
    foreign = is_foreign(obj.risk)
    if foreign or not is_builtin(obj.reg.penalized_part):
        check(obj.risk, obj.reg, w0)
    if foreign:
        state.watch = monitor_for(obj, w0)
    # solvers work on problem.obj, the driver evaluates problem.original
    selected, reason = get_solver(solver), ""
    if isinstance(selected, Auto):
        selected, reason = selected.portfolio(problem.obj, state.limits.tol)
    if checkpoint is not None:
        coordination.on_root(checkpoint.check)
    # far from the solution, squares overflow to inf: such a cut gives no bound, which does no harm
    with np.errstate(over="ignore", invalid="ignore"):
        status = _drive(state, problem, selected, w0, callback, checkpoint, bool(reason))
        # J(0) may be below J of every iterate, for example if the run was stopped early
        with contextlib.suppress(*([KeyboardInterrupt] if status == "interrupted" else [])):
            state.use_origin_if_better()
            if status in ("stalled", "max_iter", "max_seconds") and state.criterion():
                status = "converged"
    assert state.cut is not None
    description, criterion = describe_solver(selected, reason, state.trace), state.criterion()
    description = "; ".join([description, *state.obj.count.failures])
    best, note = (state.w, state.value, state.lower, state.certificate()), state.refutation or state.refusal
    multipliers = state.cut.u if state.lower > 0 else None
    return Result(
        *best, status, state.trace, description, criterion, note, intercept=state.b, multipliers=multipliers
    )


def _checkpoint_interval(checkpoint: Checkpoint, state: RunState, took: float) -> float:
    """Seconds until the next checkpoint; `took` is the time that the last one took to write.

    It grows with the run, from one second, and is at least ten times `took`, so that checkpoints cost at most
    about a tenth of the time; it is at most the interval of the `Checkpoint`.
    """
    return min(checkpoint.every, max(1.0 + 0.1 * state.seconds, 10 * took))


def _drive(
    state: RunState,
    problem: PreconditionedProblem,
    solver: Solver,
    w0: Array,
    callback: Callback | None,
    checkpoint: Checkpoint | None,
    chosen: bool,
) -> Status:
    """Iterate until a stopping criterion holds, and return the status; `Auto` may have chosen the solver."""
    it: Iterate | None = None
    try:
        resuming = checkpoint is not None and state.coordination.on_root(Path(checkpoint.path).exists)
        call = state.limit.call
        iterates = (
            state.resume(checkpoint, solver, problem, w0, chosen)
            if checkpoint and resuming
            else call(problem.iterates, solver, w0)
        )
        status = state.status() if resuming else None
        # the point in a checkpoint written during the run was not yet probed for convexity
        if status is not None and state.watch is not None:
            state.finalize()
            status = state.status()
        saved_at, took = state.seconds, 0.0
        while status is None:
            new = state.next_iterate(iterates)
            if new is None and not state.unverified:
                status = state.finalize_start(w0) if state.w is None else state.finalize()
                break
            if new is not None:
                it = new
                status = state.accept(it)
                if callback is not None and state.stop_requested(callback, it) and status is None:
                    status = "interrupted"
                    state.finalize()
            # hints from a file end no run: the solver starts again from the best point, unless that proves it
            if new is None or (status in (None, "stalled") and state.claims_end):
                status = state.verify()
                iterates = iterates if status else call(problem.iterates, solver, state.w)
            if (
                checkpoint is not None
                and it is not None
                and status is None
                and state.seconds - saved_at >= _checkpoint_interval(checkpoint, state, took)
            ):
                # measured by the clock of rank 0, so that all ranks write at the same iterations
                took = -state.update_seconds()
                state.save(checkpoint, solver, it)
                saved_at = state.update_seconds()
                took += saved_at
    except OutOfTime:
        status = state.finalize_out_of_time(w0)
    # raised by a signal handler of the user, or by an executor without its rows: save the run first
    except (SystemExit, RunPaused):
        if checkpoint is not None and it is not None:
            state.save(checkpoint, solver, it)
        raise
    except AnswersEnded as refusal:
        if state.w is None:
            raise
        status, state.refusal = "stalled", str(refusal)
        state.finalize_within_grace()
    except KeyboardInterrupt:
        if state.w is None:  # there is no iterate yet, so there is nothing to return
            raise
        status = "interrupted"
        state.expire()
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C keeps the solver's own value
            state.finalize_within_grace()
    if checkpoint is not None and it is not None:
        with ignore_interrupts():
            state.save(checkpoint, solver, it)
    return status
