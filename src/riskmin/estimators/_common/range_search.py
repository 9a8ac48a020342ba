r"""The best alpha of a range by the scores of held-out rows, which are bounded for every alpha in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.namespace import is_sparse
from riskmin.certificates.alpha_range import HeldOutRows, RangeSearch
from riskmin.certificates.curvature import SingularHessian, column_sums
from riskmin.certificates.interpolation import Optimum
from riskmin.certificates.region import RowProblem
from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.driver.loop import minimize
from riskmin.estimators._common.cv_search import LabeledRows, fold_problem
from riskmin.estimators._common.fit import resolve_loss
from riskmin.losses import get_loss
from riskmin.problem.rounding import value_rounding

MAX_VALUES = 2000
"""The most values of alpha that are computed."""
NEAR_TOL = 1e-4
"""The gap of a run of a solver, relative to J, from which Newton steps go on."""
EXACT_TOL = 1e-12
"""The same without Newton steps: the square root of the gap is the error of a score."""
LEAST_SHARE = 1e-14
"""Of the largest penalty of a column, in its own units: below, a column counts as one without a penalty."""
MAX_STEPS = 100
"""The most iterations of such a run, since rounding may hide its gap."""


class RangeResult(NamedTuple):
    """The best alpha of a range, and what is proved about the others."""

    alpha: float
    best_score: float
    score_bound: float
    alphas: NDArray
    scores: NDArray
    """One row per fold, one column per alpha."""
    bounds: NDArray
    """(alpha from, alpha to, bound of the mean score) of each piece of the range."""


def _squared(z: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
    return (z - y) ** 2, 2 * (z - y)


def _absolute(z: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
    return np.abs(z - y), np.sign(z - y)


def _log_loss(z: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
    return np.logaddexp(0.0, -y * z), -y * scipy_module("special").expit(-y * z)


def _deviance(z: NDArray, y: NDArray) -> tuple[NDArray, NDArray]:
    mean = np.exp(z)
    return 2 * (mean - y * z + scipy_module("special").xlogy(y, y) - y), 2 * (mean - y)


SCORES: dict[str, Callable[[NDArray, NDArray], tuple[NDArray, NDArray]] | None] = {
    "accuracy": None,
    "neg_log_loss": _log_loss,
    "r2": _squared,
    "neg_mean_squared_error": _squared,
    "neg_mean_absolute_error": _absolute,
    "neg_mean_poisson_deviance": _deviance,
}
"""Scores of a sum over the rows, by the names of scikit-learn: the loss of a score, or None for errors."""
_OF_LOSS = {"logistic": ("accuracy", "neg_log_loss"), "poisson": ("neg_mean_poisson_deviance",)}
_OF_TASK = {
    "classification": ("accuracy",),
    "regression": ("r2", "neg_mean_squared_error", "neg_mean_absolute_error"),
}
"""Which of them bounds are known for, by the loss or by the task of others; the first is the default."""


def search_range(
    template: Any,
    data: LabeledRows,
    alpha_range: Any,
    eps: float,
    scoring: Any,
    splits: Iterable[tuple[Any, Any]],
    progress: Callable[[int, float, float], None] | None = None,
) -> RangeResult:
    """Find an alpha of a range such that no other has a mean score that is better by more than eps."""
    lo, hi = _range(alpha_range)
    scoring = _scoring(template, scoring, eps)
    problems = []
    for train, test in splits:
        problems.append(_held_out(template, data.subset(train), data.subset(test), scoring))
    folds = [fold for fold, _ in problems]

    def fit(k: int, alpha: float, start: NDArray | None) -> Optimum:
        obj = replace(problems[k][1], lam=alpha)
        tol, steps = (NEAR_TOL, int(template.max_iter)) if folds[k].is_expanded else (EXACT_TOL, MAX_STEPS)
        found = minimize(obj, w0=start, tol=tol, max_iter=steps)
        w, b = np.asarray(found.w), float(0.0 if found.intercept is None else found.intercept)
        return Optimum(w, b, found.cut, value_rounding(obj, w, b))

    search = RangeSearch(folds, fit, float(eps), MAX_VALUES, progress)
    try:
        search.run(lo, hi)
    except SingularHessian as error:
        raise ValueError(f"{error} (alpha_range needs exact optima: raise its lower end)") from None
    alphas = np.array(sorted(search.scores, reverse=True))
    scores = np.array([search.scores[alpha] for alpha in alphas.tolist()]).T
    pieces = [
        np.column_stack([ends[:-1], ends[1:], bounds]) for _, (ends, bounds) in sorted(search.pieces.items())
    ]
    return RangeResult(*search.best, search.bound, alphas, scores, np.vstack(pieces))


def _range(alpha_range: Any) -> tuple[float, float]:
    """The ends of the range; raise if they are none."""
    ends = np.ravel(np.asarray(alpha_range, dtype=np.float64))
    if ends.shape != (2,) or not (np.isfinite(ends).all() and 0 < ends[0] < ends[1]):
        raise ValueError(f"alpha_range={alpha_range!r}: give its ends, 0 < low < high")
    return float(ends[0]), float(ends[1])


def _scoring(template: Any, scoring: Any, eps: float) -> str:
    """The name of the score; raise for one without bounds."""
    loss = resolve_loss(template)
    name = next((name for name in _OF_LOSS if isinstance(loss, type(get_loss(name)))), None)
    names = _OF_TASK.get(loss.task, ()) if name is None else _OF_LOSS[name]
    if loss.multi_output or not loss.separable or not names or (name is None and loss.log_link):
        raise ValueError(
            f"alpha_range is for sums of losses of one score per row, such as 'logistic', 'hinge', 'squared' "
            f"and 'poisson', not for {template.loss!r}: give alphas"
        )
    scoring = names[0] if scoring is None else scoring
    if scoring not in names:
        raise ValueError(
            f"alpha_range has bounds of {', '.join(names)} for {template.loss!r}, not of {scoring!r}: choose "
            "one of these, or give alphas"
        )
    if not (isinstance(eps, (int, float)) and eps >= 0 and math.isfinite(eps)):
        raise ValueError(f"eps={eps!r}, but alpha_range needs a finite number >= 0")
    if eps == 0 and SCORES[scoring] is not None:
        raise ValueError(
            f"eps=0 is for scores that count errors, not for {scoring}: give eps > 0, such as 1e-3"
        )
    return str(scoring)


def _held_out(template: Any, train: LabeledRows, test: LabeledRows, scoring: str) -> tuple[HeldOutRows, Any]:
    """A fold: its problem for alpha = 1, its held-out rows, and its objective."""
    made = fold_problem(template, train)
    rows, objective = made.rows, made.objective
    if rows.loss.multi_output or np.ndim(rows.labels) > 1:
        raise ValueError("alpha_range takes two classes, or one column of y: give alphas")
    n = train.X.shape[0]
    c = np.full(n, 1 / n) if rows.weight is None else rows.weight / rows.weight.sum()
    intercept = bool(template.fit_intercept)
    y = np.asarray(rows.labels, dtype=np.float64)
    one = RowProblem.of(train.X, y, c, rows.loss, objective.reg, 1.0, intercept=intercept)
    if one.kinked.any():
        raise ValueError(
            f"alpha_range needs a smooth penalty, 'l2', not {template.regularizer!r}: give alphas"
        )
    # without a penalty, a column has the least positive one
    squares = column_sums(train.X.power(2) if is_sparse(train.X) else train.X**2, c)
    share = one.square / np.where(squares > 0, squares, math.inf)
    if math.isinf(one.concordance) and (share[squares > 0] < LEAST_SHARE * share.max()).any():
        raise ValueError(f"alpha_range with {template.loss!r} needs a penalty of all weights: give alphas")
    weight = np.ones(len(test.y)) if test.weight is None else test.weight
    weight, y = weight / weight.sum(), np.asarray(test.y)
    if rows.known.values is not None:
        y = np.where(y == rows.known.values[1], 1.0, -1.0)
    y, best = y.astype(np.float64), 1.0 if scoring in ("accuracy", "r2") else 0.0
    if scoring == "r2":
        total = float(weight @ (y - weight @ y) ** 2)
        if not total > 0:
            raise ValueError("the held-out rows of a fold have equal labels, so that they have no R^2")
        weight = weight / total
    return HeldOutRows(one, test.X, y, weight, best, SCORES[scoring]), objective
