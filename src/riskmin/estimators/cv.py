"""Selection of the regularization strength by cross-validation, with a certified path for each fold."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv

from riskmin.certificates.alpha_range import ROUNDING
from riskmin.core import NDArray
from riskmin.estimators._common.base import estimator
from riskmin.estimators._common.cv_search import LabeledRows, SearchResult, search_alphas, search_left_out
from riskmin.estimators._common.fit import (
    check_number,
    normalize_weights,
    resolve_loss,
)
from riskmin.estimators._common.input import VALIDATION_OPTIONS, validate_local_rows
from riskmin.estimators._common.offset import row_offset
from riskmin.estimators._common.range_search import search_range
from riskmin.estimators._common.scoring import default_score, measure_by_name, measure_for_loss
from riskmin.estimators.classifier import LinearClassifier
from riskmin.estimators.regressor import LinearRegressor, validate_regression_data
from riskmin.estimators.scikit_learn import check_is_fitted
from riskmin.estimators.summary.table import CoefficientSummary

_FITTED_ATTRIBUTES = (
    "coef_",
    "intercept_",
    "objective_",
    "lower_bound_",
    "gap_",
    "n_iter_",
    "result_",
    "n_samples_fit_",
    "weighted_",
    "scale_",
)


@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class _AlphaSearch:
    """Code shared by both searches: one path per fold, the best mean score, and a fit to all rows."""

    can_be_saved = False
    _estimator_class: ClassVar[Any]
    _search_params = ("alphas", "n_alphas", "alpha_range", "eps", "cv", "scoring")
    _fold_callback = None
    _range_progress = None

    alphas: Any = None
    n_alphas: int = 13
    alpha_range: Any = None
    eps: float = 0.0
    cv: Any = None
    scoring: Any = None
    # parameters of a single fit
    alpha: float = field(default=1e-4, init=False)
    warm_start: bool = field(default=False, init=False)
    callback: Any = field(default=None, init=False)
    checkpoint: Any = field(default=None, init=False)
    verbose: bool = field(default=False, init=False)

    def _with_alpha(self, alpha: float) -> Any:
        """Return the estimator for one value of alpha."""
        params = self.get_params(deep=False)  # type: ignore[attr-defined]
        return self._estimator_class(
            **{k: v for k, v in params.items() if k not in self._search_params}, alpha=alpha
        )

    def _search(self, X: Any, y: NDArray, sample_weight: Any, groups: Any, offset: Any) -> None:
        # alpha = 1 is a placeholder, which every fit replaces
        template, weight = self._with_alpha(1.0), normalize_weights(sample_weight, len(y))
        offset = row_offset(offset, len(y))
        if offset is not None and (self.alpha_range is not None or self.cv == "loo"):
            raise ValueError("offset is not for alpha_range and cv='loo': give a grid and a number of folds")
        data = LabeledRows(X, y, weight, offset=offset)
        tasks = self._fit_tasks  # type: ignore[attr-defined]
        if self.alpha_range is not None:
            self._search_range(template, data, groups)
        else:
            result = self._search_grid(template, data, groups, tasks)
            _warn_not_converged(self, result.n_not_converged, result.scores.size)
            self.alphas_, self.scores_, self.n_not_converged_ = result[:3]
            self.alpha_, self.best_score_ = float(result.alphas[result.best_index]), result.mean
        best = self._with_alpha(self.alpha_)
        best._fit_tasks = tasks.part(len(self.scores_), len(self.scores_) + 1)
        self.best_estimator_ = best.fit(X, y, sample_weight, offset=offset)
        del best._fit_tasks
        # expose the fit to all rows as the search's own fitted attributes
        for name in _FITTED_ATTRIBUTES + (("classes_", "threshold_") if is_classifier(self) else ()):
            setattr(self, name, getattr(self.best_estimator_, name))
        # `fit` passed a validated array without names on to the estimator
        if (names := vars(self).get("feature_names_in_")) is not None:
            self.best_estimator_.feature_names_in_ = names

    def _splits(self, data: LabeledRows, groups: Any) -> Any:
        """Return the training and test rows of the folds."""
        return check_cv(self.cv, data.y, classifier=is_classifier(self)).split(data.X, data.y, groups)

    def _search_grid(self, template: Any, data: LabeledRows, groups: Any, tasks: Any) -> SearchResult:
        """Score a grid of values of alpha."""
        scorer, grid = self._scorer(template), _alpha_grid(self)
        if self.cv == "loo" and isinstance(self.cv, str):
            return search_left_out(template, data, grid, scorer, groups, tasks)
        if isinstance(self.cv, str):
            raise ValueError(f"cv={self.cv!r}: give 'loo', a number of folds or a splitter")
        splits = self._splits(data, groups)
        return search_alphas(template, data, grid, splits, scorer, self._fold_callback, tasks)

    def _search_range(self, template: Any, data: LabeledRows, groups: Any) -> None:
        """Find the best alpha of a range, and store what is proved about the others."""
        if self.alphas is not None or isinstance(self.cv, str):
            raise ValueError(
                "alpha_range takes the place of alphas, and folds: leave out alphas and cv='loo'"
            )
        splits = self._splits(data, groups)
        result = search_range(
            template, data, self.alpha_range, self.eps, self.scoring, splits, self._range_progress
        )
        self.alpha_, self.best_score_, self.score_bound_ = result[:3]
        self.alphas_, self.scores_, self.range_bounds_ = result[3:]
        self.n_not_converged_ = 0
        if self.score_bound_ > self.best_score_ + self.eps + ROUNDING * abs(self.best_score_):
            warnings.warn(
                f"{type(self).__name__} proves that no alpha of the range scores above "
                f"{self.score_bound_:.6g}, but the best one found scores {self.best_score_:.6g}: raise eps",
                ConvergenceWarning,
                stacklevel=5,
            )

    def summary(self, X: Any, y: Any, sample_weight: Any = None, **options: Any) -> CoefficientSummary:
        """Return the summary of the fit to all rows with the chosen alpha; see `LinearClassifier.summary`."""
        check_is_fitted(self)
        result: CoefficientSummary = self.best_estimator_.summary(X, y, sample_weight, **options)
        return result

    def _scorer(self, template: Any) -> Any:
        """Return the scorer of `scoring`; by default the metric of the loss, or the estimator's `score`."""
        scoring, measure = self.scoring, measure_for_loss(resolve_loss(template))
        if scoring is None:
            return default_score if measure is None else measure.scorer
        if isinstance(scoring, str):
            scoring = measure_by_name(scoring, template.task).scorer
        return check_scoring(template, scoring=scoring)


def _alpha_grid(model: Any) -> NDArray | int:
    """Return the values of alpha to try, or the size of the default grid."""
    if model.alphas is None:
        check_number(model, "n_alphas", "an integer >= 1", lambda v: v >= 1 and v == int(v))
        return int(model.n_alphas)
    alphas: NDArray = np.ravel(np.asarray(model.alphas, dtype=np.float64))
    if not (len(alphas) and np.isfinite(alphas).all() and (alphas > 0).all()):
        raise ValueError(f"alphas={model.alphas!r}, but {type(model).__name__} needs finite numbers > 0")
    return alphas


def _warn_not_converged(model: Any, n_failed: int, total: int) -> None:
    if n_failed:
        message = (
            f"{n_failed} of {total} fits of the folds of {type(model).__name__} did not reach "
            f"tol={model.tol:g}: raise max_iter, max_seconds, tol or the smallest of alphas"
        )
        warnings.warn(message, ConvergenceWarning, stacklevel=6)


@estimator
class LinearClassifierCV(_AlphaSearch, LinearClassifier):
    r"""A `LinearClassifier` whose alpha is chosen by cross-validation.

    Each fold is a path: one certified fit per alpha, warm-started from its neighbor (`riskmin.path`). The
    alpha with the best mean score is fitted to all rows. With `standardize`, the standard deviations of a
    fold are computed from its training rows.

    Parameters
    ----------
    alphas : sequence of floats or None
        The values of alpha to try; None for a grid from `riskmin.lam_max` to a thousandth of it for
        sparsity-inducing regularizers, else from 1 to 1e-6.
    n_alphas : int
        Size of the default grid, if `alphas` is None.
    alpha_range : (low, high) or None
        Instead of a grid, find the best alpha of all between these two, with "l2". The scores of the folds
        are bounded between the values that are computed: tightly for "logistic", "squared" and "poisson",
        well for "hinge" and other piecewise linear losses, and coarsely for "huber" or "squared_hinge".
    eps : float
        With `alpha_range`, by how much another alpha may be better at most; 0 for scores that count errors.
    cv : int, splitter, iterable, "loo" or None
        As in scikit-learn: five folds, stratified, by default. "loo" leaves out each row, or each of the
        `groups` of `fit`, and predicts it by `leave_one_out`: its scores are those of all rows together.
    scoring : str, callable or None
        As in scikit-learn, and the names of `riskmin.get_scorer`. By default the accuracy; for losses that
        bound a metric, that metric: the ROC area for "roc_area", F1 for "f1", and so on.
    n_jobs : int or None
        Number of folds that run at a time, in threads; the final fit uses as many threads.

    Attributes
    ----------
    alpha_ : float
        The best alpha; the largest one if several have the same score.
    alphas_ : (k,) array
        All values of alpha tried, in the order of the columns of `scores_`.
    scores_ : (folds, k) array
        The score of each alpha on the held-out rows of each fold.
    best_score_ : float
        The mean score of `alpha_` over the folds.
    score_bound_ : float
        With `alpha_range`, the mean score that no alpha of the range exceeds.
    range_bounds_ : (k, 3) array
        With `alpha_range`, bounds of the mean score between two values of alpha: from, to, bound.
    best_estimator_ : LinearClassifier
        The fit to all rows, which `riskmin.save_model` can save.
    n_not_converged_ : int
        Number of fits in the folds that stopped before their gap was within tol.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from riskmin import LinearClassifierCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LinearClassifierCV("hinge", alphas=[1.0, 1e-1, 1e-2, 1e-3], cv=3).fit(scale(X), y)
    >>> model.alpha_, model.scores_.shape, model.best_score_ > 0.97
    (0.1, (3, 4), True)
    """

    _estimator_class = LinearClassifier

    loss: Any = field(default="hinge", kw_only=False)

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, offset: Any = None
    ) -> LinearClassifierCV:
        """Choose alpha and fit all rows.

        Parameters
        ----------
        X, y, sample_weight
            As in `LinearClassifier.fit`. Scores are weighted, too, if the scorer takes weights.
        groups : (n,) array, optional
            For splitters that keep groups together, and cv="loo".
        offset : (n,) array, optional
            As in `LinearClassifier.fit`; any scorer sees predictions at the offset of its rows.

        Returns
        -------
        LinearClassifierCV
            The fitted estimator itself.
        """
        loss = resolve_loss(self)
        X, y = validate_local_rows(self, X, y, **VALIDATION_OPTIONS)
        # report invalid labels before the first fold
        self._encode_labels(y, normalize_weights(sample_weight, len(y)), loss)
        self._search(X, y, sample_weight, groups, offset)
        return self


@estimator
class LinearRegressorCV(_AlphaSearch, LinearRegressor):
    r"""A `LinearRegressor` whose alpha is chosen by cross-validation.

    Each fold is a path: one certified fit per alpha, warm-started from its neighbor (`riskmin.path`). The
    alpha with the best mean score is fitted to all rows; if y has several columns, they share one alpha.

    Parameters
    ----------
    alphas, n_alphas, alpha_range, eps, cv, scoring
        As in `LinearClassifierCV`; the score is R^2 by default.
    n_jobs : int or None
        Number of folds that run at a time, in threads; the final fit uses as many threads.

    Attributes
    ----------
    alpha_, alphas_, scores_, best_score_, best_estimator_
        As in `LinearClassifierCV`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import LinearRegressorCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = LinearRegressorCV("huber:delta=50", regularizer="l1", n_alphas=5, cv=3).fit(X, y)
    >>> bool(0.4 < model.best_score_ < 0.6), model.gap_ <= 1e-3 * model.objective_
    (True, True)
    """

    _estimator_class = LinearRegressor

    loss: Any = field(default="squared", kw_only=False)

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, *, offset: Any = None
    ) -> LinearRegressorCV:
        """Choose alpha and fit all rows; the parameters are those of `LinearClassifierCV.fit`."""
        resolve_loss(self)
        X, y = validate_regression_data(self, X, y, partial(validate_local_rows, **VALIDATION_OPTIONS))
        self._search(X, y, sample_weight, groups, offset)
        return self
