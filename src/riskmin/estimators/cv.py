"""Selection of the regularization strength by cross-validation, with a certified path for each fold."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import GroupKFold, check_cv

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
from riskmin.estimators._common.scoring import GradeError, default_score, measure_by_name, measure_for_loss
from riskmin.estimators._common.trivial import TrivialModelWarning
from riskmin.estimators.classifier import LinearClassifier
from riskmin.estimators.ordinal import OrdinalClassifier, declared_order
from riskmin.estimators.ranker import LinearRanker
from riskmin.estimators.regressor import LinearRegressor, validate_regression_data
from riskmin.estimators.scikit_learn import check_is_fitted
from riskmin.estimators.summary.table import CoefficientSummary
from riskmin.estimators.tagger.sequences_input import (
    EncodedTokens,
    check_lengths,
    flatten_labels,
    is_collection,
    normalize_sequence_weights,
    split_by_length,
)
from riskmin.estimators.tagger.tagger import ChainTagger
from riskmin.losses.labels import encode_queries
from riskmin.regularizers import L1, L2, Elastic


@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class _AlphaSearch:
    """Code shared by both searches: one path per fold, the best mean score, and a fit to all rows."""

    can_be_saved = False
    _estimator_class: ClassVar[Any]
    _search_params = ("alphas", "n_alphas", "l1_ratio", "alpha_range", "eps", "cv", "scoring", "rule")
    _fold_callback = None
    _range_progress = None

    alphas: Any = None
    n_alphas: int = 13
    l1_ratio: Any = None
    alpha_range: Any = None
    eps: float = 0.0
    cv: Any = None
    scoring: Any = None
    rule: str = "best"
    # parameters of a single fit
    alpha: float = field(default=1e-4, init=False)
    warm_start: bool = field(default=False, init=False)
    callback: Any = field(default=None, init=False)
    checkpoint: Any = field(default=None, init=False)
    verbose: bool = field(default=False, init=False)

    def _with_alpha(self, alpha: float) -> Any:
        """Return the estimator for one value of alpha, and the L1 ratio that was found, if any."""
        params = self.get_params(deep=False)  # type: ignore[attr-defined]
        single = {k: v for k, v in params.items() if k not in self._search_params}
        ratio = vars(self).get("l1_ratio_")
        if self.l1_ratio is not None and ratio is not None:
            single["regularizer"] = _elastic_net(ratio)
        return self._estimator_class(**single, alpha=alpha)

    def _ratios(self) -> list[float | None]:
        """Return the values of l1_ratio to try; None for the parameter `regularizer`."""
        if self.l1_ratio is None:
            return [None]
        ratios = np.ravel(np.asarray(self.l1_ratio, dtype=np.float64))
        if not len(ratios) or not ((ratios >= 0) & (ratios <= 1)).all():
            raise ValueError(
                f"l1_ratio={self.l1_ratio!r}, but {type(self).__name__} needs numbers from 0 to 1"
            )
        if self.alpha_range is not None or self.regularizer != "l2":  # type: ignore[attr-defined]
            raise ValueError("l1_ratio takes the place of regularizer, and of alpha_range: leave these out")
        return [float(ratio) for ratio in ratios]

    def _search(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, *, offset: Any = None, qid: Any = None
    ) -> None:
        ratios = self._ratios()
        self.__dict__.pop("l1_ratio_", None)
        # alpha = 1 is a placeholder, which every fit replaces
        template, weight = self._with_alpha(1.0), normalize_weights(sample_weight, len(y))
        offset = row_offset(offset, len(y))
        if offset is not None and (self.alpha_range is not None or self.cv == "loo"):
            raise ValueError("offset is not for alpha_range and cv='loo': give a grid and a number of folds")
        data = LabeledRows(X, y, weight, qid, offset)
        tasks, note = self._fit_tasks, ""  # type: ignore[attr-defined]
        if self.alpha_range is not None:
            self._search_range(template, data, groups)
        else:
            result = self._search_ratios(ratios, template, data, groups, tasks)
            _warn_not_converged(self, result.n_not_converged, result.scores.size)
            self.alphas_, self.scores_, self.n_not_converged_ = result[:3]
            self.alpha_, self.best_score_ = float(result.alphas[result.best_index]), result.mean
            note = result.note
        best = self._with_alpha(self.alpha_)
        best._fit_tasks = tasks.part(len(self.scores_), len(self.scores_) + 1)
        more = {"sample_weight": sample_weight, "offset": offset, "qid": qid}
        with warnings.catch_warnings():
            if note:  # which says more than that of the fit
                warnings.simplefilter("ignore", TrivialModelWarning)
            best.fit(X, y, **{name: value for name, value in more.items() if value is not None})
        if note:
            warnings.warn(f"{type(self).__name__} learned nothing: {note}", TrivialModelWarning, stacklevel=5)
        del best._fit_tasks
        self.best_estimator_ = best
        # expose the fit to all rows as the search's own fitted attributes
        fitted = vars(best).keys() - best.get_params(deep=False).keys()
        vars(self).update({name: vars(best)[name] for name in fitted})
        # `fit` passed a validated array without names on to the estimator
        if (names := vars(self).get("feature_names_in_")) is not None:
            self.best_estimator_.feature_names_in_ = names
        if edge := self.edge():
            message = f"the best alpha of {type(self).__name__}, {self.alpha_:.4g}, is the {edge} one tried"
            side = "smaller" if edge == "smallest" else "larger"
            warnings.warn(f"{message}: give {side} ones, too", stacklevel=4)

    def edge(self) -> str:
        """Return "smallest" or "largest" if the best alpha is at this end of a grid; else an empty string.

        Not where the scores of its neighbor are as good, within the standard error of the difference, nor
        where all weights are zero, as for any larger alpha.
        """
        check_is_fitted(self)
        order = np.argsort(self.alphas_)
        k, last = int(np.flatnonzero(self.alphas_[order] == self.alpha_)[0]), len(order) - 1
        if last < 2 or self.alpha_range is not None or self.rule != "best" or 0 < k < last:
            return ""
        if k and not np.any(self.best_estimator_.result_.w):
            return ""
        gain = self.scores_[:, order[k]] - self.scores_[:, order[1 if k == 0 else last - 1]]
        error = gain.std(ddof=1) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
        return ("largest" if k else "smallest") if gain.mean() > error else ""

    @property
    def cv_results_(self) -> dict[str, Any]:
        """The scores as a table, with the keys of scikit-learn's searches: one entry per alpha."""
        check_is_fitted(self)
        mean = self.scores_.mean(axis=0)
        table = {
            "param_alpha": self.alphas_,
            "params": [{"alpha": float(alpha)} for alpha in self.alphas_],
            "mean_test_score": mean,
            "std_test_score": self.scores_.std(axis=0),
            "rank_test_score": 1 + (mean[:, None] < mean).sum(axis=1),
        }
        return table | {f"split{k}_test_score": scores for k, scores in enumerate(self.scores_)}

    def _search_ratios(
        self, ratios: list[float | None], template: Any, data: LabeledRows, groups: Any, tasks: Any
    ) -> SearchResult:
        """Score a grid of alpha for each L1 ratio, on the same folds; return that of the best ratio."""
        if ratios == [None]:
            return self._search_grid(template, data, groups, tasks)
        splits = None if isinstance(self.cv, str) else list(self._splits(data, groups))
        results = []
        for ratio in ratios:
            self.l1_ratio_ = ratio
            results.append(self._search_grid(self._with_alpha(1.0), data, groups, tasks, splits))
        best = max(range(len(ratios)), key=lambda k: results[k].mean)
        self.l1_ratio_, self.ratio_scores_ = ratios[best], np.array([result.mean for result in results])
        return results[best]._replace(n_not_converged=sum(result.n_not_converged for result in results))

    def _splits(self, data: LabeledRows, groups: Any) -> Any:
        """Return the training and test rows of the folds."""
        return check_cv(self.cv, data.y, classifier=is_classifier(self)).split(data.X, data.y, groups)

    def _search_grid(
        self, template: Any, data: LabeledRows, groups: Any, tasks: Any, splits: Any = None
    ) -> SearchResult:
        """Score a grid of values of alpha."""
        scorer, grid = self._scorer(template, data.y), _alpha_grid(self)
        if self.cv == "loo" and isinstance(self.cv, str):
            if self.rule != "best":
                raise ValueError(f"rule={self.rule!r} needs the scores of folds: give 'loo' with rule='best'")
            return search_left_out(template, data, grid, scorer, groups, tasks)
        if isinstance(self.cv, str):
            raise ValueError(f"cv={self.cv!r}: give 'loo', a number of folds or a splitter")
        splits = self._splits(data, groups) if splits is None else splits
        return search_alphas(template, data, grid, splits, scorer, self._fold_callback, tasks, self.rule)

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

    def _scorer(self, template: Any, y: NDArray) -> Any:
        """Return the scorer of `scoring`; by default the metric of the loss, or the estimator's `score`."""
        scoring, measure = self.scoring, measure_for_loss(resolve_loss(template))
        if scoring is None:
            return self._default_scorer(y) if measure is None else measure.scorer
        if isinstance(scoring, str):
            scoring = measure_by_name(scoring, template.task).scorer
        return check_scoring(template, scoring=scoring)

    def _default_scorer(self, y: NDArray) -> Any:
        """Return the scorer of losses that bound no metric."""
        return default_score


class _SummarizedSearch(_AlphaSearch):
    """A search whose fit to all rows has a table of coefficients."""

    def summary(self, X: Any, y: Any, sample_weight: Any = None, **options: Any) -> CoefficientSummary:
        """Return the summary of the fit to all rows with the chosen alpha; see `LinearClassifier.summary`."""
        check_is_fitted(self)
        result: CoefficientSummary = self.best_estimator_.summary(X, y, sample_weight, **options)
        return result


def _elastic_net(ratio: float) -> Any:
    """Return r |w|_1 + (1 - r) |w|^2 / 2, as scikit-learn has it."""
    if ratio == 1:
        return L1()
    return L2() if ratio == 0 else Elastic(eps=ratio / (1 - ratio), weights=1 - ratio)


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
class LinearClassifierCV(_SummarizedSearch, LinearClassifier):
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
    l1_ratio : float, sequence of floats or None
        Values r from 0 to 1 to try with each alpha, in place of `regularizer`: the penalty is
        :math:`\alpha (r |w|_1 + (1 - r) |w|^2 / 2)`, as in scikit-learn's ElasticNet and in glmnet.
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
    rule : "best" or "one standard error"
        "one standard error" chooses the largest alpha whose mean score is within one standard error of the
        best one.
    n_jobs : int or None
        Number of folds that run at a time, in threads; the final fit uses as many threads.

    Attributes
    ----------
    alpha_ : float
        The best alpha; the largest one if several have the same score. A warning names the end of the grid if
        it is there.
    l1_ratio_ : float
        The best of `l1_ratio`, the first one if several have the same score; ``ratio_scores_`` has the best
        mean score of each.
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
    cv_results_ : dict
        The scores with the keys of scikit-learn's searches: ``pandas.DataFrame(search.cv_results_)``.
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
        resolve_loss(self)
        X, y = validate_local_rows(self, X, y, **VALIDATION_OPTIONS)
        # report invalid labels before the first fold
        self._encode(y, normalize_weights(sample_weight, len(y)))
        self._search(X, y, sample_weight, groups, offset=offset)
        return self


@estimator
class LinearRegressorCV(_SummarizedSearch, LinearRegressor):
    r"""A `LinearRegressor` whose alpha is chosen by cross-validation.

    Each fold is a path: one certified fit per alpha, warm-started from its neighbor (`riskmin.path`). The
    alpha with the best mean score is fitted to all rows; if y has several columns, they share one alpha.

    Parameters
    ----------
    alphas, n_alphas, l1_ratio, alpha_range, eps, cv, scoring, rule
        As in `LinearClassifierCV`; the score is R^2 by default.
    n_jobs : int or None
        Number of folds that run at a time, in threads; the final fit uses as many threads.

    Attributes
    ----------
    alpha_, l1_ratio_, alphas_, scores_, best_score_, cv_results_, best_estimator_
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
        self._search(X, y, sample_weight, groups, offset=offset)
        return self


@estimator
class OrdinalClassifierCV(_AlphaSearch, OrdinalClassifier):
    r"""An `OrdinalClassifier` whose alpha is chosen by cross-validation.

    Parameters
    ----------
    alphas, n_alphas, cv, scoring, rule
        As in `LinearClassifierCV`; the score is minus the mean absolute error in grades by default.
    alpha_range, eps
        Not for ordinal losses.
    n_jobs : int or None
        Number of folds that run at a time, in threads; the final fit uses as many threads.

    Attributes
    ----------
    alpha_, alphas_, scores_, best_score_, cv_results_, best_estimator_
        As in `LinearClassifierCV`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import OrdinalClassifierCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> grade = np.digitize(y, [90, 140, 200])
    >>> model = OrdinalClassifierCV(alphas=[1e-2, 1e-3, 1e-4, 1e-5], cv=3).fit(X, grade)
    >>> model.scores_.shape, bool(-0.8 < model.best_score_ < -0.5)
    ((3, 4), True)
    """

    _estimator_class = OrdinalClassifier

    loss: Any = field(default="ordinal", kw_only=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> OrdinalClassifierCV:
        """Choose alpha and fit all rows; the parameters are those of `LinearClassifierCV.fit`."""
        resolve_loss(self)
        declared = declared_order(y)
        X, y = validate_local_rows(self, X, y, **VALIDATION_OPTIONS)
        self._grades = self._encode(y, normalize_weights(sample_weight, len(y)), declared).known.values
        self._search(X, y, sample_weight, groups)
        return self

    def _with_alpha(self, alpha: float) -> Any:
        # a frame declares the order of grades, which arrays do not
        return super()._with_alpha(alpha).set_params(order=self._grades.tolist())

    def _default_scorer(self, y: NDArray) -> Any:
        return GradeError(self._grades)

    def _splits(self, data: LabeledRows, groups: Any) -> Any:
        # grades may be fractional numbers, which scikit-learn would not stratify
        return super()._splits(data._replace(y=np.unique(data.y, return_inverse=True)[1]), groups)


@estimator
class LinearRankerCV(_AlphaSearch, LinearRanker):
    r"""A `LinearRanker` whose alpha is chosen by cross-validation; the rows of a query stay in one fold.

    Parameters
    ----------
    alphas, n_alphas, scoring, rule
        As in `LinearClassifierCV`; the score is the metric of the loss by default, or NDCG@10.
    cv : int, splitter or None
        The number of folds of whole queries, five by default; or a splitter, whose groups are the queries.
    alpha_range, eps
        Not for losses of rankings.
    n_jobs : int or None
        Number of folds that run at a time, in threads; the final fit uses as many threads.

    Attributes
    ----------
    alpha_, alphas_, scores_, best_score_, cv_results_, best_estimator_
        As in `LinearClassifierCV`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import LinearRankerCV
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.standard_normal((200, 3)), np.repeat(np.arange(20), 10)
    >>> y = np.digitize(X @ [1.0, 0.5, 0.0], [0.5, 1.5])
    >>> model = LinearRankerCV(alphas=[10.0, 1.0, 0.1], cv=4).fit(X, y, qid=qid)
    >>> model.scores_.shape, model.best_score_ > 0.9
    ((4, 3), True)
    """

    _estimator_class = LinearRanker

    loss: Any = field(default="pairwise_hinge", kw_only=False)

    def fit(self, X: Any, y: Any, qid: Any = None, sample_weight: Any = None) -> LinearRankerCV:
        """Choose alpha and fit all rows; the parameters are those of `LinearRanker.fit`."""
        resolve_loss(self)
        X, y = validate_local_rows(self, X, y, y_numeric=True, ensure_min_samples=2, **VALIDATION_OPTIONS)
        ids = None if qid is None else encode_queries(qid, len(y))
        self._search(X, y, sample_weight, ids, qid=ids)
        return self

    def _splits(self, data: LabeledRows, groups: Any) -> Any:
        n_folds = 5 if self.cv is None else self.cv
        if groups is None or not isinstance(n_folds, int):
            yield from super()._splits(data, groups)
            return
        if (n := len(np.unique(groups))) < n_folds:
            raise ValueError(f"cv={n_folds} needs as many queries, but the data hold {n}: lower it")
        yield from GroupKFold(n_folds).split(data.X, data.y, groups)


@estimator
class ChainTaggerCV(_AlphaSearch, ChainTagger):
    r"""A `ChainTagger` whose alpha is chosen by cross-validation over sequences.

    Parameters
    ----------
    alphas, n_alphas, scoring, rule
        As in `LinearClassifierCV`; the score is the share of tokens with the right label by default.
    cv : int, splitter or None
        The number of folds of sequences, five by default; or a splitter.
    alpha_range, eps
        Not for losses of sequences.
    n_jobs : int or None
        Number of folds that run at a time, in threads; the final fit uses as many threads.

    Attributes
    ----------
    alpha_, alphas_, scores_, best_score_, cv_results_, best_estimator_
        As in `LinearClassifierCV`.

    Examples
    --------
    >>> from riskmin import ChainTaggerCV
    >>> X = [[{"word": "the"}, {"word": "cat"}], [{"word": "cat"}, {"word": "sleeps"}]] * 4
    >>> y = [["D", "N"], ["N", "V"]] * 4
    >>> model = ChainTaggerCV(alphas=[1.0, 1e-3], cv=2).fit(X, y)
    >>> model.predict([[{"word": "the"}, {"word": "cat"}]]), model.scores_.shape
    ([['D', 'N']], (2, 2))
    """

    _estimator_class = ChainTagger

    loss: Any = field(default="crf", kw_only=False)

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None, groups: Any = None
    ) -> ChainTaggerCV:
        """Choose alpha and fit all sequences.

        Parameters
        ----------
        X, y, sample_weight, lengths
            As in `ChainTagger.fit`, in this process.
        groups : (n,) array, optional
            For splitters that keep groups of sequences together.

        Returns
        -------
        ChainTaggerCV
            The fitted estimator itself.
        """
        resolve_loss(self)
        if lengths is not None:
            X = validate_local_rows(self, X, **VALIDATION_OPTIONS)
            tokens = EncodedTokens(X, check_lengths(lengths, X.shape[0]), True)
            y = split_by_length(flatten_labels(y, tokens), tokens.lengths)
            ends = np.cumsum(tokens.lengths)
            X = [tokens.X[end - length : end] for end, length in zip(ends, tokens.lengths, strict=True)]
        if not (is_collection(X) and is_collection(y) and len(X) == len(y)):
            raise ValueError("X and y must be lists with one item per sequence, or a matrix with lengths")
        self._search(list(X), list(y), normalize_sequence_weights(sample_weight, len(X)), groups)
        return self

    def _splits(self, data: LabeledRows, groups: Any) -> Any:
        return check_cv(self.cv).split(np.zeros(len(data.X)), None, groups)
