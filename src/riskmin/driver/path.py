r"""Regularization paths: one risk, a sequence of regularization strengths lam, each fit certified by itself.

A cut bounds R alone, so the cuts of one run are valid for every lam and every regularizer. Each run of a
path is warm-started with the cuts, w, and any further state of the run with the next larger lam.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace, to_numpy
from riskmin.core import Array, Iterate, NDArray, Result, Solver
from riskmin.core.records import bounds_row
from riskmin.driver.loop import minimize, minimize_preconditioned, precondition
from riskmin.driver.run import Callback
from riskmin.problem.linear_risk import linear_risk
from riskmin.problem.objective import CallCounter, Objective, Oracle, as_oracle
from riskmin.problem.preconditioning import PreconditionedProblem
from riskmin.regularizers import L2
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.from_conjugate import as_regularizer
from riskmin.solvers import Auto, get_solver
from riskmin.solvers.auto import describe_solver


# ---------------------------------------------------------------- choice of lam
def lam_max(risk: Oracle, reg: Regularizer) -> float:
    r"""The lam at and above which the minimizer of Omega is optimal; with `L1`, all weights are zero.

    .. math:: \lambda_{\max} = \max_j |g_j| / l_j, \qquad g \in \partial R(0),

    for :math:`\Omega` with the terms :math:`l_j |w_j|`. In general :math:`-g_j / \lambda` must lie between
    the left and the right derivative of :math:`\Omega` in :math:`w_j`. The value is the smallest such lam if
    the risk is differentiable at that point, else an upper bound of it. Intercepts are optimal there.

    Parameters
    ----------
    risk : Oracle
    reg : L1, Elastic, or a Box around one of them
        For other regularizers, which have no l1 term, weights are zero for no lam: a ValueError is raised.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Hinge, Objective, lam_max, linear_risk, minimize
    >>> risk = linear_risk(np.array([[3.0, 1.0], [-1.0, 1.0]]), np.array([1.0, -1.0]), Hinge())
    >>> lam_max(risk, L1())
    2.0
    >>> [float(minimize(Objective(risk, L1(), lam)).w[0]) > 0 for lam in (2.01, 1.99)]
    [False, True]
    """
    reg = as_regularizer(reg)
    if not reg.separable:
        raise ValueError(f"{reg!r} has no l1 term, so there is no lam_max: choose the largest lam yourself")
    risk = as_oracle(risk)
    if risk.n_intercepts:
        w = reg.conjugate_grad(np.zeros(risk.dim - risk.n_intercepts))
        g = _gradient_at_zero(risk, w)
    else:
        w = reg.conjugate_grad(np.zeros(risk.dim))
        g = to_numpy(risk(w)[1])
    # terms: the l1 weight, the squared weight, and the bounds of each w_j
    t = reg.terms(w)
    l1, lower, upper = (np.broadcast_to(np.asarray(v), w.shape) for v in (t[0], t[2], t[3]))
    slope = t.square * w
    # the right and the left derivative of Omega in each w_j; infinite at a bound
    right = np.where(w >= upper, math.inf, slope + np.where(w >= 0, l1, -l1))
    left = np.where(w <= lower, -math.inf, slope - np.where(w <= 0, l1, -l1))
    # w stays optimal while |g_j| <= lam * margin_j
    margin = np.where(g < 0, right, -left)
    # without an l1 term a nonzero g_j moves w_j for every lam
    if bool(np.any((margin <= 0) & (g != 0))):
        raise ValueError(f"{reg!r} has no l1 term, so there is no lam_max: choose the largest lam yourself")
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.max(np.where(g == 0, 0.0, np.abs(g) / margin), initial=0.0))


def _gradient_at_zero(risk: Any, w: NDArray) -> NDArray:
    """The gradient in w, at w = 0, of a cut that touches the risk at the optimal intercepts.

    The cut has slope zero in the intercepts. At w = 0 all rows of a class have the same scores, so a problem
    with one row per class, weighted by the classes' total weights, has the same multipliers.
    """
    k = risk.n_intercepts
    if np.any(w) or not risk.linear_map.separate_outputs:
        raise ValueError("its intercepts are not known there, so there is no lam_max: choose the largest lam")
    # features so small that the weights change the scores by less than rounding
    constants, tiny = risk.constant_prediction_cuts, 1e-6
    rows = linear_risk(
        tiny * np.eye(k), np.arange(float(k)), risk.loss, sample_weight=constants.weights, fit_intercept=True
    )
    a = minimize(Objective(rows, L2(), 1.0), tol=1e-12, max_iter=500).cut.a
    # entry (i, j): the derivative of the loss of a row of class i in the score of class j
    multipliers = a[: k * k].reshape(k, k)
    multipliers = multipliers / (tiny * np.where(constants.weights > 0, constants.weights, 1.0)[:, None])
    return np.ravel(to_numpy(constants.sums) @ multipliers)


def lam_grid(risk: Oracle, reg: Regularizer, n: int = 13) -> NDArray:
    """The default grid of lam: geometric, the largest first.

    From `lam_max` down to a thousandth of it if it exists, else from 1 to 1e-6.

    Parameters
    ----------
    risk : Oracle
    reg : Regularizer
    n : int
        The number of values.

    Returns
    -------
    (n,) array

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, linear_risk
    >>> lam_grid(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), 3).tolist()
    [1.0, 0.001, 1e-06]
    """
    if n < 1:
        raise ValueError(f"a grid needs at least one lam, not {n}")
    try:
        top = lam_max(risk, reg)
    except ValueError:
        return np.geomspace(1.0, 1e-6, n)
    # top = 0 if the gradient at the minimizer of Omega is zero
    return np.geomspace(top, 1e-3 * top, n) if top > 0 else np.geomspace(1.0, 1e-6, n)


# ---------------------------------------------------------------- the path
LEAST_RATIO = 1 + 1e-6
"""Of neighboring lam: runs that do not reach their tolerance would divide a range forever."""


@dataclass(frozen=True)
class _WarmStartedSolver(Solver):
    """A solver that starts from the final state of another run."""

    solver: Any
    # not in the repr: to print the arrays of a state takes longer than a small fit
    state: dict[str, Array] = field(repr=False)
    before: Objective = field(repr=False)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        steps: Iterator[Iterate] | None = self.solver.warm_start(obj, self.state, self.before)
        return self.solver.iterates(obj, w0) if steps is None else steps


@dataclass(frozen=True)
class _FinishedRun:
    """A finished run: its problem, solver, result, and the state that the next run may start from."""

    problem: PreconditionedProblem
    solver: Any
    result: Result
    state: dict[str, Array] | None

    @property
    def risk(self) -> float:
        """R at the best point."""
        obj = self.problem.original
        return self.result.value - obj.lam * obj.reg.value(self.result.w)


def path(
    risk: Oracle,
    reg: Regularizer | Sequence[Regularizer],
    lams: Sequence[float] | NDArray,
    *,
    solver: Solver | str | None = None,
    tol: float = 1e-3,
    atol: float | None = None,
    max_iter: int = 10_000,
    max_seconds: float = math.inf,
    callback: Callback | None = None,
    eps: float | None = None,
) -> list[Result]:
    r"""Minimize :math:`\lambda\,\Omega(w) + R(w)` for a sequence of lam, each run warm-started.

    The largest lam comes first, whatever the order of `lams`: it is the easiest. Every other run starts from
    the run with the next larger lam: from its w, its cuts (`Bundle`) or its curvature pairs (`Lbfgs`), as far
    as the solver can use them. A warm start affects the speed only: each result has its own certificate.

    Parameters
    ----------
    risk : Oracle
    reg : Regularizer, or a sequence of them
        One for all, or one for each lam.
    lams : sequence of floats
        The regularization strengths, in any order.
    solver : Solver or str, optional
        As in `minimize`; `Auto` selects a solver for each lam.
    tol, atol, max_iter, max_seconds : float, float, int, float
        As in `minimize`, for each lam.
    callback : callable, optional
        ``callback(iterate, row)`` after every iteration; ``row["lam"]`` is the lam of the run. A true return
        value ends the path.
    eps : float, optional
        Cover all lam between the least and the largest of `lams`, instead of these only: for each of them,
        the result of the next larger lam in the list, the largest first, has an objective that is within a
        share eps of the minimum. `tol` is then at most half of eps.

    Returns
    -------
    list of Result
        One for each lam, in the given order; each row of their traces has the ``lam``. Ctrl-C ends
        the path. The results that were not reached then have the status ``interrupted``, too, the best point
        and the best bound that follow from the finished runs, and a trace of one row.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Hinge, lam_max, linear_risk, path
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 10))
    >>> risk = linear_risk(X, np.sign(X[:, 0] + X[:, 1] + rng.normal(size=200)), Hinge())
    >>> top = lam_max(risk, L1())
    >>> results = path(risk, L1(), [top, top / 3, top / 100])
    >>> [int(np.count_nonzero(result.w)) for result in results]
    [0, 2, 10]
    >>> all(result.gap <= 1e-3 * result.value for result in results)
    True
    >>> len(path(risk, L1(), [top, top / 100], eps=0.1))  # models for all lam between
    6
    """
    strengths = [float(lam) for lam in np.ravel(np.asarray(lams, dtype=float))]
    if eps is not None:
        if isinstance(reg, Sequence) or not strengths or not 0 < eps < math.inf:
            raise ValueError(
                "eps covers a range of lam: give a number > 0, one regularizer, and its two ends"
            )
        limits = {"tol": min(tol, eps / 2), "max_iter": max_iter, "max_seconds": max_seconds, "atol": atol}
        return _path_within(
            Objective(risk, reg, min(strengths)), max(strengths), eps, solver, callback, limits
        )
    regs = list(reg) if isinstance(reg, Sequence) else [reg] * len(strengths)
    if len(regs) != len(strengths):
        raise ValueError(f"there are {len(regs)} regularizers for {len(strengths)} lams: give one for each")
    objectives = [Objective(risk, r, lam) for r, lam in zip(regs, strengths, strict=True)]
    limits = {"tol": tol, "max_iter": max_iter, "max_seconds": max_seconds, "atol": atol}
    order = sorted(range(len(strengths)), key=lambda k: -strengths[k])
    # states are passed from run to run, so all runs use the preconditioner of the smallest lam
    hardest = precondition(objectives[order[-1]]) if order else None
    results: dict[int, Result] = {}
    runs: list[_FinishedRun] = []
    for k in order:
        try:
            assert hardest is not None
            problem = hardest.with_objective(replace(objectives[k], count=CallCounter()))
            runs.append(_run(problem, solver, runs[-1] if runs else None, callback, limits))
        except KeyboardInterrupt:
            if not runs:
                raise
            break
        results[k] = runs[-1].result
        if runs[-1].result.status == "interrupted":
            break
    return [
        results[k] if k in results else _result_from_others(objectives[k], runs)
        for k in range(len(strengths))
    ]


def _path_within(
    obj: Objective, hi: float, eps: float, solver: Any, callback: Callback | None, limits: dict[str, Any]
) -> list[Result]:
    """Return results from hi down to the lam of obj, each within eps for all lam down to the next one.

    min J is concave in lam, a minimum of linear functions, so that lower bounds at two values of lam bound it
    between them by their chord. J of a w is linear: what holds for both at the ends holds between them.
    """
    hardest = precondition(obj)

    def run(lam: float, previous: _FinishedRun | None) -> _FinishedRun:
        problem = hardest.with_objective(replace(obj, lam=lam, count=CallCounter()))
        return _run(problem, solver, previous, callback, limits)

    def between(upper: _FinishedRun, lower: _FinishedRun) -> list[_FinishedRun]:
        at, top = lower.problem.original.lam, upper.problem.original.lam
        value = upper.risk + at * obj.reg.value(upper.result.w)
        stopped = upper.result.status == "interrupted" or lower.result.status == "interrupted"
        if stopped or value - lower.result.lower <= eps * value or top <= at * LEAST_RATIO:
            return [lower]
        middle = run(math.sqrt(at * top), upper)
        return between(upper, middle) + between(middle, lower)

    first = run(hi, None)
    runs = [first] if hi <= obj.lam else [first, *between(first, run(obj.lam, first))]
    return [finished.result for finished in runs]


def _run(
    problem: PreconditionedProblem,
    given: Solver | str | None,
    previous: _FinishedRun | None,
    callback: Callback | None,
    limits: dict[str, Any],
) -> _FinishedRun:
    """Minimize for one lam, warm-started from the previous run if there is one."""
    solver: Any = get_solver(given)
    obj, reason = problem.original, ""
    if isinstance(solver, Auto):
        solver, reason = solver.portfolio(problem.obj, limits["tol"])
    final: Iterate | None = None

    def record(iterate: Iterate, row: dict[str, float]) -> Any:
        nonlocal final
        final = iterate
        row["lam"] = obj.lam
        return callback is not None and callback(iterate, row)

    start, w0 = solver, None
    if previous is not None:
        w0 = _project_to_domain(obj.reg, previous.result.w)
        # a state is valid only for the same solver with the same settings
        if previous.state is not None and solver == previous.solver:
            start = _WarmStartedSolver(solver, previous.state, previous.problem.obj)
    result = minimize_preconditioned(problem, start, w0, limits, record)
    state = final.state() if final is not None and final.state is not None else None
    return _FinishedRun(
        problem, solver, replace(result, solver=describe_solver(solver, reason, result.trace)), state
    )


def _project_to_domain(reg: Regularizer, w: Array) -> Array:
    """Return w, or the nearest point of the regularizer's domain if w lies outside."""
    return w if math.isfinite(reg.value(w)) else reg.prox(w, 0.0)


def _result_from_others(obj: Objective, runs: list[_FinishedRun]) -> Result:
    """The result for a lam that was not reached: risks and cuts of finished runs are valid for it, too."""
    known = [(finished.risk, finished.result) for finished in runs]
    # J = R + lam Omega: the risk of a finished run is known, only Omega is evaluated
    values = [risk + obj.lam * obj.reg.value(result.w) for risk, result in known]
    if math.isfinite(min(values)):
        value = min(values)
        w, b = known[values.index(value)][1].w, known[values.index(value)][1].intercept
    else:  # the domain of another regularizer may hold none of the points
        w = _project_to_domain(obj.reg, known[-1][1].w)
        value, b, _ = obj.at_best_intercept(w)
    # a cut bounds R, so each finished run gives a lower bound for this lam
    cut = max((finished.result.cut for finished in runs), key=obj.lower)
    lower = min(max(obj.lower(cut), 0.0), value)
    row = {"iteration": 0, "seconds": 0.0, "calls": 0} | bounds_row(value, lower)
    w, trace = namespace(w).asarray(w), [row | {"lam": obj.lam}]
    return Result(w, value, lower, cut, "interrupted", trace, intercept=b)
