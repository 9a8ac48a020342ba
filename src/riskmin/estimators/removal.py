r"""Models without some of their rows: predictions of each row by the model of all others, and removal."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.certificates.ball import ball_of_multipliers
from riskmin.certificates.curvature import SingularHessian, column_sums
from riskmin.certificates.leave_one_out import HeldOut, held_out_scores
from riskmin.certificates.region import CenteredRows, RowProblem, ellipsoid
from riskmin.core import NDArray
from riskmin.estimators._common.fit import decision_scores, fitted_regularizer, normalize_weights
from riskmin.estimators._common.input import compute_if_dask, select_rows
from riskmin.estimators._common.training_rows import training_rows
from riskmin.estimators.gpu_rows import dense_weights
from riskmin.estimators.region import gap_point, region_of_rows
from riskmin.estimators.scikit_learn import check_is_fitted

TIGHTER = 1e-6, 1e-10
"""Tolerances of fits without rows whose labels are not certain."""
LEAST_VARIANCE = 1e-6
"""Of what is left of the variance of a column without a group: below, its scale is computed anew."""


@dataclass(frozen=True)
class LeaveOneOut:
    """Predictions of each row by the model that is fitted to all others; `leave_one_out` makes it.

    Attributes
    ----------
    scores : (n,) or (n, k) array
        The decision scores of each row by the exact optimum without its group.
    bounds : (n,) array
        How far the scores are from those of the exact optimum, at most. Infinite with several classes, where
        the scores are those of a fit within `tol`.
    labels : (n,) array
        What the model without the row predicts for it: a label, or a number for regressions.
    refitted : (n,) array of bool
        The rows for which a model was fitted; the others follow from the model of all rows.

    Examples
    --------
    >>> from riskmin import LinearRegressor
    >>> X, y = np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 1.0, 5.0])
    >>> found = LinearRegressor("squared", alpha=1.0, tol=1e-9).fit(X, y).leave_one_out(X, y)
    >>> np.round(found.scores, 3).tolist(), bool(found.bounds.max() < 1e-3)
    ([1.8, 2.5, 0.8], True)
    """

    scores: NDArray
    bounds: NDArray
    labels: NDArray
    refitted: NDArray


class RemovalMixin:
    """The methods `leave_one_out` and `without` of linear estimators of rows."""

    def leave_one_out(
        self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, tol: float = 1e-2
    ) -> LeaveOneOut:
        r"""Predict each row by the model that is fitted to all others, mostly without fitting it.

        The labels are those of ``cross_val_predict(model, X, y, cv=LeaveOneOut())``, or of
        ``LeaveOneGroupOut()`` with `groups`, if each of these fits is exact: same alpha, and a mean over the
        rows that are left. For "squared", "logistic" and "poisson" with "l2", a Newton step from the optimum
        of all rows has a proved distance to that without a row; models are fitted only where that does not
        decide a label, and for other losses. With "hinge", rows that certainly have no weight in the optimum
        need no fit.

        Parameters
        ----------
        X, y
            The training data, as given to `fit`, in this process.
        sample_weight : (n,) array, optional
            As given to `fit`.
        groups : (n,) array, optional
            The group of each row, such as a person: all of its rows are left out together.
        tol : float
            The largest error of a score of "squared", "logistic" and "poisson".

        Returns
        -------
        LeaveOneOut

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.preprocessing import scale
        >>> from riskmin import LinearClassifier
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = LinearClassifier("logistic", alpha=1e-2).fit(scale(X), y)
        >>> found = model.leave_one_out(scale(X), y)
        >>> int((found.labels != y).sum()), int(found.refitted.sum()), bool(found.bounds.max() <= 1e-2)
        (13, 0, True)
        """
        check_is_fitted(self)
        if not tol > 0:
            raise ValueError(f"tol={tol!r}, but leave_one_out needs a number > 0")
        return _leave_out(self, X, y, sample_weight, groups, tol)

    def without(self, rows: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Return the model that is fitted to the other rows, with a certificate of its own.

        The fit starts at the weights of this model, which does not change.

        Parameters
        ----------
        rows : (k,) array of int, or (n,) array of bool
            The rows to leave out.
        X, y, sample_weight
            All training data, as given to `fit`.

        Returns
        -------
        estimator
            Of the same class and parameters. Its `previous_gap_` is how far the objective of the weights of
            this model is above the minimum on the rows that are left, at most.

        Examples
        --------
        >>> from sklearn.datasets import load_diabetes
        >>> from riskmin import LinearRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = LinearRegressor("huber:delta=50", alpha=1e-4).fit(X, y)
        >>> less = model.without([0, 7], X, y)
        >>> less.n_samples_fit_, less.gap_ <= less.tol * less.objective_
        (440, True)
        >>> bool(0 <= less.previous_gap_ < 0.01 * less.objective_)
        True
        """
        check_is_fitted(self)
        keep = np.ones(X.shape[0] if hasattr(X, "shape") else len(X), dtype=bool)
        index = np.asarray(rows)
        keep[index if index.size else slice(0)] = False
        if keep.all() or not keep.any():
            raise ValueError(
                f"rows leave out {'no row' if keep.all() else 'all rows'} of {len(keep)}: name some"
            )
        model: Any = copy.copy(self)
        model.warm_start, model.checkpoint, model.callback = True, None, None
        X, y = np.asarray(X) if isinstance(X, list) else X, np.asarray(compute_if_dask(y))
        rest = select_rows(X, keep), y[keep]
        weight = None if sample_weight is None else np.asarray(compute_if_dask(sample_weight))[keep]
        model.fit(*rest, weight)
        for name in ("warm_start", "checkpoint", "callback"):
            setattr(model, name, vars(self)[name])
        before = copy.copy(model)
        for name in ("coef_", "intercept_", "threshold_", "result_"):
            if name in vars(self):
                setattr(before, name, vars(self)[name])
        at = before._risk_arguments(*rest, normalize_weights(weight, len(rest[1])))
        value = float(model._fitted_loss().value_grad(*at)[0])
        value += float(model.alpha) * float(model._penalty().value(np.asarray(before.result_.w)))
        model.previous_gap_ = max(value - model.lower_bound_, 0.0)
        return model


def _leave_out(model: Any, X: Any, y: Any, sample_weight: Any, groups: Any, tol: float) -> LeaveOneOut:
    y = np.asarray(compute_if_dask(y))
    n = len(y)
    blocks = _groups(groups, n)
    binary = not model._fitted_loss().multi_output
    found = HeldOut(np.zeros(n), np.full(n, np.inf), np.zeros(n, dtype=bool))
    open_rows = np.ones(n, dtype=bool)
    if binary and model.class_weight != "balanced":
        found = _from_all_rows(model, X, y, sample_weight, blocks, tol)
        open_rows = found.bounds > tol
        if model.task == "classification":
            open_rows |= np.abs(found.scores) <= found.bounds
            if np.isinf(model._fitted_loss().self_concordance):  # a ball is no estimate of a score
                open_rows = np.abs(found.scores) <= found.bounds
    scores = found.scores if binary else np.zeros((n, len(model.classes_)))
    bounds, refitted = found.bounds, np.zeros(n, dtype=bool)
    for rows in [group for block in blocks for group in block[open_rows[block].any(axis=1)]]:
        scores[rows], bounds[rows] = _refitted_scores(model, rows, X, y, sample_weight)
        refitted[rows] = True
    given, rows = model_of_scores(model, scores)
    return LeaveOneOut(scores, bounds, np.asarray(given.predict(rows)), refitted)


def _groups(groups: Any, n: int) -> list[NDArray]:
    """The rows of the groups: for each size, an array with one group per row. By default, each row is one."""
    if groups is None:
        return [np.arange(n)[:, None]]
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise ValueError(f"groups has shape {labels.shape}, but X has {n} rows: give the group of each row")
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise ValueError("all rows are of one group: leave-one-out needs at least two")
    order = np.argsort(sizes[codes] * len(sizes) + codes, kind="stable")
    return [order[sizes[codes][order] == size].reshape(-1, size) for size in np.unique(sizes)]


def _from_all_rows(
    model: Any, X: Any, y: NDArray, sample_weight: Any, blocks: Sequence[NDArray], tol: float
) -> HeldOut:
    """What the optimum of all rows proves about those without each group; infinite bounds where nothing."""
    n = len(y)
    rows, at, _ = training_rows(model, X, y, sample_weight)
    found = HeldOut(np.zeros(n), np.full(n, np.inf), np.zeros(n, dtype=bool))
    if model.task == "classification":
        of_class = y[:, None] == model.classes_
        totals = of_class.sum(axis=0)
        if any(np.any(of_class[block].sum(axis=1) == totals) for block in blocks):
            raise ValueError("a class has rows in one group only, so that it is unknown without it: add rows")
    if rows.shape[0] < n:  # rows of weight zero: their groups are others
        return found
    reg, lam, loss = fitted_regularizer(model), float(model.alpha), model._fitted_loss()
    if not loss.separable or not lam:
        return found
    if not np.isfinite(loss.self_concordance):
        return _from_ball(model, rows, at, blocks, sample_weight, found)
    try:
        intercept = bool(model.fit_intercept)
        problem = RowProblem.of(rows, at.labels, at.weights, loss, reg, lam, intercept=intercept)
        if problem.kinked.any():
            return found
        w, b = (
            np.ravel(dense_weights(model)).astype(float),
            float(model._intercepts()[0]) if model.fit_intercept else 0.0,
        )
        region = ellipsoid(problem, *ellipsoid(problem, w, b).point)  # with the Hessian at the optimum itself
    except (SingularHessian, ValueError):
        return found
    ratios = _penalty_ratios(model, problem, blocks, sample_weight)
    return held_out_scores(
        region, list(zip(blocks, ratios, strict=True)), tol, signs=model.task == "classification"
    )


def _penalty_ratios(
    model: Any, problem: RowProblem, blocks: Sequence[NDArray], sample_weight: Any
) -> list[NDArray]:
    """The factors of the penalty without each group, by column: 1 - C, times the change of the variance."""
    c, n, p = problem.c, len(problem.y), len(problem.square)
    ratios = [np.repeat(1 - c[block].sum(axis=1)[:, None], p, axis=1) for block in blocks]
    if model.scale_ is None:
        return ratios
    weight = normalize_weights(sample_weight, n)
    r = np.full(n, 1 / n) if weight is None else weight
    inverse = np.vstack([np.zeros(p), np.diag(1 / model.scale_)])
    D = CenteredRows(problem.X, column_sums(problem.X, r)).times(inverse)
    varies = np.abs(D).max(axis=0) > 0
    for block, ratio in zip(blocks, ratios, strict=True):
        left = 1 - r[block].sum(axis=1)[:, None]
        totals, squares = (np.einsum("ms,msp->mp", r[block], E[block]) for E in (D, D * D))
        variance = (1 - squares - totals**2 / left) / left
        # without the group the column may be constant: no factor describes that
        ratio *= np.where(varies, np.where(variance > LEAST_VARIANCE, variance, np.nan), 1.0)
    return ratios


def _from_ball(
    model: Any, rows: Any, at: Any, blocks: Sequence[NDArray], sample_weight: Any, found: HeldOut
) -> HeldOut:
    """The scores of rows that have no weight in the optimum: one ball holds all optima without one of them.

    Without a row of loss and multiplier zero, w and the multipliers prove a gap for the penalty times 1 - c.
    """
    if sample_weight is not None or model.scale_ is not None or blocks[0].shape != (len(found.scores), 1):
        return found
    try:
        obj, X, w, b, u = gap_point(model, rows, at)
        share = 1 / len(at.weights)
        # J without a row, times 1 - c, has the penalty times 1 - c
        region = ball_of_multipliers(replace(obj, lam=(1 - share) * obj.lam), X, w, b, u)
    except ValueError:
        return found
    lower, upper = region.scores(rows)
    unused = u == 0
    for z in (lower, at.scores, upper):
        value_of_rows = model._fitted_loss().values(z, at.labels)
        unused &= value_of_rows == 0
    found.scores[unused] = 0.5 * (lower + upper)[unused]
    found.bounds[unused] = 0.5 * (upper - lower)[unused]
    return found


def _refitted_scores(
    model: Any, rows: NDArray, X: Any, y: NDArray, sample_weight: Any
) -> tuple[NDArray, Any]:
    """The scores of rows by the model without them, and how far they are from those of the optimum.

    Where the tolerance of the model leaves a label open, it is decreased.
    """
    rest = np.ones(len(y), dtype=bool)
    rest[rows] = False
    X = np.asarray(X) if isinstance(X, list) else X
    chosen, others = select_rows(X, rows), select_rows(X, rest)
    weight = None if sample_weight is None else np.asarray(sample_weight)[rest]
    less, scores, bound = model, np.zeros(len(rows)), np.full(len(rows), np.inf)
    for tol in (model.tol, *(tol for tol in TIGHTER if tol < model.tol)):
        start = copy.copy(model)
        start.tol, start.atol = tol, model.atol if tol == model.tol else 0.0
        with warnings.catch_warnings():
            if tol < model.tol:  # it may be beyond rounding
                warnings.simplefilter("ignore")
            less = start.without(rows, X, y, sample_weight)
        scores = decision_scores(less, chosen)
        if less._fitted_loss().multi_output:
            return scores, np.inf
        try:
            found = training_rows(less, others, y[rest], weight)
            lower, upper = region_of_rows(less, *found).decision_interval(chosen).T
        except ValueError:
            return scores, np.inf
        scores = np.clip(scores, lower, upper)
        bound = np.maximum(upper - scores, scores - lower)
        if model.task != "classification" or np.all(np.abs(scores) > bound):
            break
    return scores, bound


def model_of_scores(model: Any, scores: NDArray) -> tuple[Any, NDArray]:
    """Return a model like a fitted one, and rows to which it gives these scores."""
    rows = scores.reshape(len(scores), -1)
    given, k = copy.copy(model), rows.shape[1]
    if model.task == "classification":
        given.coef_, given.intercept_, given.threshold_ = np.eye(k), np.zeros(k), 0.0
    else:
        given.coef_, given.intercept_ = np.ones(1), 0.0
    given.n_features_in_ = k
    vars(given).pop("feature_names_in_", None)
    return given, rows
