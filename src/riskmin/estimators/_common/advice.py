"""Advice for a fit that did not converge: one or two sentences that name parameters and columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import Result
from riskmin.estimators._common.standardize import column_name
from riskmin.problem.column_moments import Moments, sampled_moments
from riskmin.problem.objective import Objective
from riskmin.solvers import SOLVERS, Auto
from riskmin.solvers.base import loss_of


class ParameterPhrases(NamedTuple):
    """Names of parameters and remedies as one user interface writes them."""

    alpha: str
    tol: str
    max_iter: str
    max_seconds: str
    solver: str
    standardize: str
    center: str
    resume: str


PYTHON_PHRASES = ParameterPhrases(
    "alpha",
    "tol",
    "max_iter",
    "max_seconds",
    "solver={!r}",
    "set standardize=True, or put a StandardScaler before it in a pipeline",
    "put a StandardScaler before it in a pipeline",
    "fit again with warm_start=True to continue from the current weights",
)
COMMAND_LINE_PHRASES = ParameterPhrases(
    "--lam",
    "--tol",
    "--max-iter",
    "--max-seconds",
    "--solver {}",
    "add --standardize",
    "subtract their means from them in the data",
    "the model saved is the best so far",
)


class FlaggedColumn(NamedTuple):
    """Index, mean and standard deviation of a column that makes a problem ill-conditioned."""

    j: int
    mean: float
    deviation: float


class ConvergenceHints(NamedTuple):
    """Likely reasons why a fit did not converge."""

    off_center: tuple[FlaggedColumn, ...] = ()
    """Columns whose mean is large relative to their standard deviation."""
    badly_scaled: tuple[FlaggedColumn, ...] = ()
    """Columns whose standard deviation is far from the median one."""
    ratio: float = 1.0
    """Ratio of the largest to the smallest standard deviation."""
    solver: str | None = None
    """Name of a suitable solver that was not tried."""
    regularizer: str = ""
    """A change of the regularizer."""


# ---------------------------------------------------------------- diagnosis
def diagnose_run(objective: Objective, result: Result, given: Any) -> ConvergenceHints:
    """Diagnose a run that has not converged."""
    moments = sampled_moments(objective.risk)
    # taggers, and risks that are not linear in the rows of a matrix, have no moments
    off_center, badly_scaled, ratio = ((), (), 1.0) if moments is None else ill_scaled(moments)
    solver, reg = untried_solver(objective, result, given), objective.reg.penalized_part.without_sizes
    return ConvergenceHints(off_center, badly_scaled, ratio, solver, reg.change_for_convergence)


def ill_scaled(moments: Moments) -> tuple[tuple[FlaggedColumn, ...], tuple[FlaggedColumn, ...], float]:
    """Find columns with a large mean, columns of extreme standard deviation, and the ratio of deviations.

    Large and extreme mean a ratio above 10^4. At most three columns of each kind are returned, for a message,
    the most extreme first; constant columns are left out.

    Examples
    --------
    >>> import numpy as np
    >>> mean, variance = np.array([0.0, 1e9, 0.0]), np.array([1.0, 4.0, 1e-12])
    >>> off_center, badly_scaled, ratio = ill_scaled(Moments(9, mean, variance))
    >>> [column.j for column in off_center], [column.j for column in badly_scaled], round(ratio)
    ([1], [2], 2000000)
    """
    extreme_ratio = 1e4
    deviation = np.sqrt(moments.variance)
    # constant columns have no scale; overflow makes a deviation infinite
    columns = np.flatnonzero((deviation > 0) & np.isfinite(deviation))
    mean, deviation = moments.mean[columns], deviation[columns]

    def leading(order: Any) -> tuple[FlaggedColumn, ...]:
        return tuple(FlaggedColumn(int(columns[k]), float(mean[k]), float(deviation[k])) for k in order[:3])

    # |mean| in units of the standard deviation
    offset = np.abs(mean) / deviation
    off_center = [k for k in np.argsort(-offset, kind="stable") if offset[k] > extreme_ratio]
    ratio = float(deviation.max() / deviation.min()) if len(columns) else 1.0
    if ratio <= extreme_ratio:
        return leading(off_center), (), ratio
    # |log(deviation / median)|: half of log(extreme_ratio) on either side of the median is too much
    log_ratio = np.abs(np.log(deviation / np.median(deviation)))
    threshold = min(np.log(extreme_ratio) / 2, log_ratio.max())
    badly_scaled = [k for k in np.argsort(-log_ratio, kind="stable") if log_ratio[k] >= threshold]
    return leading(off_center), leading(badly_scaled), ratio


def untried_solver(objective: Objective, result: Result, given: Any) -> str | None:
    """Return the name of a solver that supports the problem and was not tried, or None."""
    # a solver chosen by the user failed: the automatic selection was not tried
    if not (given is None or given == "auto" or type(given) is Auto):
        return "auto"
    loss, reg = loss_of(objective.risk), objective.reg.penalized_part.without_sizes
    problem = replace(objective, reg=reg)
    # candidates in order of preference
    smooth, candidates = loss is not None and loss.smooth, []
    if reg.diagonal and loss is not None and loss.has_hessian and not loss.multi_output:
        candidates.append("newton")
    if smooth and reg.smooth:
        candidates.append("lbfgs")
    if smooth and reg.sum_of_absolutes:
        candidates.append("owlqn")
    candidates.append("bundle")
    if not smooth and loss is not None and loss.can_be_smoothed and reg.smooth:
        candidates.append("smoothing")
    # result.solver names the classes of all solvers of the run
    untried = [name for name in candidates if type(SOLVERS[name]).__name__ not in result.solver]
    return next((name for name in untried if SOLVERS[name].supports(problem) is None), None)


# ---------------------------------------------------------------- messages
def describe_nonconvergence(model: Any, phrases: ParameterPhrases) -> str:
    """Describe how a fit ended and suggest a remedy."""
    result = model.result_
    gap = result.gap / result.value if result.value else 0.0
    above = f"above tol={model.tol:g}" if gap > model.tol else f"known no better than tol={model.tol:g}"
    outcome = f"stopped with status {result.status!r} at a certified relative gap of {gap:.2g}, {above}"
    if result.note:
        return f"{outcome}: {result.note}"
    parts = [f"{outcome}: {suggest_parameters(model, phrases)}", describe_ill_scaled_columns(model, phrases)]
    return ". ".join(part for part in parts if part)


def suggest_parameters(model: Any, phrases: ParameterPhrases) -> str:
    """Suggest which parameters to change."""
    result = model.result_
    if result.status == "interrupted":
        return phrases.resume
    # a smaller relative gap is limited by rounding, against which no solver and no limit helps
    if result.status == "stalled" and result.gap <= 1e-8 * abs(result.value):
        return f"raise {phrases.tol}, since double precision proves no smaller gap for this problem"
    limits = {"max_iter": f"{phrases.max_iter}, ", "max_seconds": f"{phrases.max_seconds}, "}
    text = f"raise {limits.get(result.status, '')}{phrases.tol} or {phrases.alpha}"
    solver, regularizer = model._hints.solver, model._hints.regularizer
    remedies = [f"try {phrases.solver.format(solver)}"] if solver is not None else []
    return ", or ".join([text, *remedies, *([regularizer] if regularizer else [])])


def describe_ill_scaled_columns(model: Any, phrases: ParameterPhrases) -> str:
    """Describe columns that make the problem ill-conditioned; return an empty string if there are none."""
    off_center, badly_scaled, ratio = model._hints[:3]
    if badly_scaled and model.can_standardize and not model.standardize:
        text = f"Standard deviations of columns differ by a factor of {ratio:.2g}"
        return f"{text} ({_describe_columns(model, badly_scaled)}): {phrases.standardize}"
    if off_center:
        columns = _describe_columns(model, off_center)
        return f"Columns have means far larger than their standard deviations ({columns}): {phrases.center}"
    return ""


def _describe_columns(model: Any, columns: tuple[FlaggedColumn, ...]) -> str:
    return "; ".join(
        f"{column_name(model, j)}: mean {mean:.3g}, standard deviation {deviation:.3g}"
        for j, mean, deviation in columns
    )
