"""The driver: it alone knows of tolerances, time, the best point, traces, checkpoints and interruption."""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.blas import threads, threads_of
from riskmin.checkpoint import Checkpoint
from riskmin.convexity import check, watch
from riskmin.deadline import Limit, OutOfTime
from riskmin.executors.company import Alone, company_of
from riskmin.objective import Count, Objective, start_of
from riskmin.preconditioning import Conditioned, preconditioner
from riskmin.run import Callback, Limits, Run
from riskmin.signals import finishing, until_saved
from riskmin.solvers import Auto, get_solver
from riskmin.solvers.auto import said
from riskmin.types import Array, Iterate, Result, Solver, Status

SOON = 1.0
"""Seconds after which a run is worth a checkpoint."""


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
        Ctrl-C returns the best so far, with status ``interrupted``; with a checkpoint, SIGTERM ends the
        program after a last one. Where points of the run show that a loss
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
    with until_saved(save is not None and alone):
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
        found = Run(problem.given, company.agree(lambda: Limits(**limits)), company, began=began)
        w0 = start_of(found.obj, w0)
        check(found.obj.risk, found.obj.reg, w0)
        found.watch = watch(found.obj, w0)
        chosen, reason = get_solver(solver), ""
        if isinstance(chosen, Auto):
            chosen, reason = chosen.relay(problem.obj, found.limits.tol)
        if save is not None:
            company.once(save.check)
        with np.errstate(over="ignore", invalid="ignore"):  # far out, squares are inf: no bound, no harm
            status = _drive(found, problem, chosen, w0, callback, save)
            with contextlib.suppress(*([KeyboardInterrupt] if status == "interrupted" else [])):
                found.no_worse_than_start()
    assert found.cut is not None
    told, criterion = said(chosen, reason, found.trace), found.criterion()
    best = found.w, found.value, found.lower, found.proof()
    return Result(*best, status, found.trace, told, criterion, found.doubt)


def _pause(save: Checkpoint, run: Run, took: float) -> float:
    """Seconds between two checkpoints: few at first, ten times what one takes, up to what was asked for."""
    return min(save.every, max(SOON + 0.1 * run.seconds, 10 * took))


def _drive(
    run: Run,
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
    except SystemExit:  # of a handler of the user's own: what was found is saved, and the program ends
        if save is not None and it is not None:
            run.save(save, solver, it)
        raise
    except KeyboardInterrupt:
        if run.w is None:  # nothing was found yet, so there is nothing to return
            raise
        status = "interrupted"
        run.interrupt()
        with contextlib.suppress(KeyboardInterrupt):  # who asks twice gets the value as the solver knew it
            run.hurry()
    if save is not None and it is not None:
        with finishing():
            run.save(save, solver, it)
    return status
