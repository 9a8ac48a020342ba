"""Checks of one problem: bounds, values, convergence, and that errors are one-sentence refusals."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import riskmin as rm
from benchmarks.campaign import exact
from benchmarks.campaign.minimum import exact_minimum
from benchmarks.campaign.problems import Problem, draw
from riskmin.core import UnsupportedProblem
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.kernel.rkhs import coefficients
from riskmin.problem.objective import Objective
from riskmin.solvers import SOLVERS

LIMITS = {"max_iter": 40, "max_seconds": 0.25}
TOLS = (1e-3, 1e-6, 1e-9)
LINEAR_SOLVERS = [*(name for name in SOLVERS if name != "auto"), "auto"]
KERNEL_SOLVERS: list[Any] = ["bundle", "bmrm", "line_search_bmrm", rm.KernelDual(), "auto"]


@dataclass
class SolverResult:
    """The result of a solver, and J at its point in exact arithmetic."""

    name: str
    result: Any
    exact: Any
    w: Any
    b: Any


@dataclass
class Report:
    """Counts and failures of one problem."""

    problem: Problem
    fits: int = 0
    refused: int = 0
    minima: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, kind: str, solver: str, message: str) -> None:
        origin = {"seed": self.problem.seed, "problem": str(self.problem)}
        self.failures.append({"kind": kind, "solver": solver, "message": message} | origin)


def check(seed: int) -> Report:
    """Draw a problem, solve it with all applicable solvers, and check their results.

    Examples
    --------
    >>> report = check(1)
    >>> report.fits > 0, report.failures
    (True, [])
    """
    problem = draw(seed)
    report = Report(problem)
    rng = np.random.default_rng([seed, 17])
    tol = float(rng.choice(TOLS))
    try:
        objective = problem.objective
    except (ValueError, TypeError) as error:
        _refusal(report, "linear_risk", error)
        return report
    results = []
    for solver in KERNEL_SOLVERS if problem.kernel else LINEAR_SOLVERS:
        name = solver if isinstance(solver, str) else type(solver).__name__
        one = _fit(report, name, objective, solver, tol)
        results += [] if one is None else [one]
    if results:
        _judge(report, results, objective, tol)
    return report


def _refusal(report: Report, name: str, error: Exception) -> None:
    """Count a refusal: an error must be an UnsupportedProblem or a ValueError of one line."""
    if isinstance(error, (UnsupportedProblem, ValueError)) and "\n" not in str(error) and str(error):
        report.refused += 1
    else:
        report.fail("exception", name, f"{type(error).__name__}: {error}")


def _fit(report: Report, name: str, objective: Objective, solver: Any, tol: float) -> SolverResult | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = rm.minimize(objective, solver, tol=tol, **LIMITS)
    except Exception as error:
        _refusal(report, name, error)
        return None
    report.fits += 1
    w, b = parts(report.problem, objective, result.w, result.intercept)
    if not (np.all(np.isfinite(w)) and math.isfinite(result.value) and math.isfinite(result.lower)):
        report.fail("not finite", name, f"value {result.value}, lower {result.lower}")
        return None
    return SolverResult(name, result, report.problem.value(w, b), w, b)


def parts(problem: Problem, objective: Objective, w: Any, b: Any = None) -> tuple[Any, Any]:
    """The weights (or the coefficients of a kernel expansion) and the intercepts: b, or the best ones."""
    k, risk = objective.n_intercepts, objective.risk
    if k:
        return w[:-k], w[-k:]
    b = risk.best_intercept(w) if b is None else b
    return (coefficients(w) if problem.kernel else w), b


def _judge(report: Report, results: list[SolverResult], objective: Objective, tol: float) -> None:
    problem = report.problem
    best = min(results, key=lambda one: one.exact)
    minimum, by = best.exact, best.name
    proved = exact_minimum(problem)
    if proved is not None:
        report.minima += 1
        minimum, by = min((minimum, by), (proved, "exact arithmetic"))
    zero = 0.0 * results[0].result.w
    if not math.isfinite(objective.reg.value(zero)):
        zero = objective.reg.conjugate_grad(zero)
    start = problem.value(*parts(problem, objective, zero))
    with exact.precise():
        for one in results:
            _bound(report, one, minimum, by)
            _value(report, one, start)
            if one.result.status == "converged":
                _gap(report, one, minimum, start, tol, by)
            above = one.exact - start
            if one.name == "auto" and above > exact.number(1e-9, problem.q) * start + exact.number(
                1e-50, problem.q
            ):
                report.fail("worse than zero", one.name, f"J is {float(one.exact)}, {float(start)} at w = 0")


def _bound(report: Report, one: SolverResult, minimum: Any, by: str) -> None:
    """Check that the lower bound is at most J at every known point, exactly."""
    lower = exact.number(one.result.lower, report.problem.q)
    if lower > minimum:
        part = float((lower - minimum) / minimum) if minimum > 0 else math.inf
        message = f"lower is {one.result.lower!r}, above {float(minimum)!r} ({by}) by a share of {part:.2g}"
        report.fail("false bound", one.name, f"{message}; status {one.result.status}")


def _value(report: Report, one: SolverResult, start: Any) -> None:
    """Check that the reported value is J(w) up to the rounding of the scores and of an entropy."""
    problem, value = report.problem, exact.number(one.result.value, report.problem.q)
    off = abs(value - one.exact)
    slack = 1e-14 * problem.lam * len(one.w) if isinstance(problem.reg, rm.Entropy) else 0.0
    if problem.kernel:  # coefficients may cancel in the norm of the function
        K = np.abs(np.array(problem.rows, float))
        slack += 1e-14 * problem.lam * float(np.abs(one.w) @ K @ np.abs(one.w))
    if isinstance(problem.loss, rm.Poisson):  # its terms cancel near the minimum
        slack += 1e-14 * float(max(1.0, np.max(problem.y * (1 + np.log(np.maximum(problem.y, 1))))))
    if not getattr(problem.loss, "separable", True):  # sums over scores in which large terms cancel
        slack += 1e-15 * float(np.abs(problem.X @ one.w).sum()) if not problem.kernel else 0.0
    part, tiny = exact.number(1e-9, problem.q), exact.number(1e-14, problem.q)
    if off <= part * one.exact + tiny * start + exact.number(slack, problem.q):
        return
    rounding = _rounding(problem, one, 1e-12)
    if off > rounding:
        message = f"value is {one.result.value!r}, J(w) is {float(one.exact)!r}, rounding explains"
        report.fail("wrong value", one.name, f"{message} {float(rounding):.2g}")


def _rounding(problem: Problem, one: SolverResult, size: float) -> Any:
    """Sum over scores of the change of J if that score moves by `size` times its terms' magnitudes."""
    total = problem.q(0)
    for row, column in itertools.product(range(len(problem.rows)), range(problem.columns)):
        moves = [lambda i, j, s=s, cell=(row, column): s * ((i, j) == cell) for s in (size, -size)]
        total += max(abs(problem.value(one.w, one.b, move) - one.exact) for move in moves)
    return total


def _gap(report: Report, one: SolverResult, minimum: Any, start: Any, tol: float, by: str) -> None:
    """Check that a converged result is within the tolerance of the smallest known J, up to rounding."""
    q = report.problem.q
    slack = exact.number(1 + 1e-6, q) * exact.number(tol, q)
    rounding = exact.number(CUT_ROUNDING, q) * report.problem.value(0.0 * one.w, 0.0 * np.asarray(one.b))
    allowed = max(slack * one.exact, slack * start / 10**6, rounding)
    if one.exact - minimum > allowed and one.exact - minimum > allowed + _rounding(
        report.problem, one, 2.0**-51
    ):
        message = f"J is {float(one.exact)!r}, the smallest known is {float(minimum)!r} ({by})"
        report.fail("false convergence", one.name, f"{message}, by {one.result.criterion} of {tol}")
