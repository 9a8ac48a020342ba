"""Learning to rank the rows of queries by a linear score."""

from __future__ import annotations

import functools
from dataclasses import field
from types import MethodType
from typing import Any, cast

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators._common.base import RowEstimator, estimator
from riskmin.estimators._common.fit import (
    decision_scores,
    resolve_loss,
    warn_unless_converged,
)
from riskmin.estimators._common.input import compute_if_dask, validate_rows
from riskmin.estimators._common.labels import Numbers
from riskmin.estimators._common.sparse_weights import SparseWeightsMixin
from riskmin.estimators.persistence.records import read_count
from riskmin.estimators.scikit_learn import check_is_fitted, routing_enabled
from riskmin.losses.labels import encode_queries
from riskmin.metrics import mean_ndcg_score


class _ScoredByQuery:
    """The method `score` of a ranker, which needs qid: scikit-learn's searches pass it by routing only.

    They access it before the first fit. Without routing this raises, in place of scores that are NaN for
    every fold.
    """

    def __init__(self, method: Any) -> None:
        self.method = method
        functools.update_wrapper(cast(Any, self), method)

    def __get__(self, model: Any, owner: Any = None) -> Any:
        if model is None:
            return self.method
        if "result_" not in vars(model) and is_scored_by_query(model) and not routing_enabled():
            name = type(model).__name__
            raise ValueError(
                f"this {name} is not fitted, and searches of scikit-learn pass its query ids by metadata "
                "routing only: call sklearn.set_config(enable_metadata_routing=True), and search with "
                f"{name}(...).set_fit_request(qid=True).set_score_request(qid=True)"
            )
        return MethodType(self.method, model)


def is_scored_by_query(model: Any) -> bool:
    """Whether the loss is one of rankings; not if it is invalid, which `fit` reports."""
    try:
        return bool(resolve_loss(model).task == "ranking")
    except (TypeError, ValueError):
        return False


@estimator
class LinearRanker(SparseWeightsMixin, RowEstimator):
    r"""A linear score that ranks the rows of each query, with a certified objective.

    .. math:: \min_w\; J(w) = \alpha\,\Omega(w) + R(w), \qquad z_i = x_i^\top w,

    where R compares the scores of the rows of each query with their grades. The fit stops when
    :math:`J - \min J \le \text{tol} \cdot J` is proved.

    Parameters
    ----------
    loss : str or Loss
        A name of `riskmin.LOSSES` for ranking ("pairwise_hinge", "ndcg", "mrr", "expected_rank_utility"),
        optionally with parameters (``"ndcg:k=5,weights=0.5"``), a loss object, or a loss for regression such
        as "squared", which fits the grades row by row and ignores queries.
    fit_intercept : bool
        Whether to fit an intercept with losses for regression. It has no effect on losses for ranking.

    Attributes
    ----------
    coef_ : (p,) array
        w.
    intercept_ : scalar
        Zero with losses for ranking, which do not depend on it.
    n_queries_ : int
        Number of queries fitted; 0 without `qid`.

    References
    ----------
    T. Joachims, Optimizing search engines using clickthrough data, KDD 2002.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import LinearRanker
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.standard_normal((200, 3)), np.repeat(np.arange(20), 10)
    >>> y = np.digitize(X @ [1.0, 0.5, 0.0], [0.5, 1.5])  # grades 0, 1 and 2
    >>> model = LinearRanker(alpha=1e-2).fit(X, y, qid=qid)
    >>> model.score(X, y, qid=qid) > 0.95, model.gap_ <= model.tol * model.objective_
    (True, True)

    In searches, keep the rows of each query together and route qid by metadata:

    >>> import sklearn
    >>> from sklearn.model_selection import GridSearchCV, GroupKFold
    >>> with sklearn.config_context(enable_metadata_routing=True):
    ...     model = LinearRanker().set_fit_request(qid=True).set_score_request(qid=True)
    ...     search = GridSearchCV(model, {"alpha": [1.0, 1e-2]}, cv=GroupKFold(4))
    ...     search = search.fit(X, y, qid=qid, groups=qid)
    >>> bool(search.best_score_ > 0.9)
    True
    """

    task = "ranking"
    _label_kind = Numbers
    extra_loss_tasks = ("regression",)

    loss: Any = field(default="pairwise_hinge", kw_only=False)
    fit_intercept: bool = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any, qid: Any = None, sample_weight: Any = None) -> LinearRanker:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.PartitionedMatrix` or Dask array or dataframe
            Float arrays in either order, CSR and CSC are not copied. Remote rows are not moved.
        y : (n,) array
            Grades: numbers, the higher the better.
        qid : (n,) array
            The query id of each row: numbers or strings, in any order. Losses for regression ignore it and
            do not need it.
        sample_weight : (n,) array, optional
            Weights >= 0. With "pairwise_hinge" the weight of a pair is the product of the weights of its
            rows; with other losses for ranking the weight of a query is the mean weight of its rows.

        Returns
        -------
        LinearRanker
            The fitted estimator itself.
        """
        loss = resolve_loss(self)  # report an invalid loss before reading y
        X, y = validate_rows(self, X, y, y_numeric=True, ensure_min_samples=2)
        ids = None if qid is None else encode_queries(compute_if_dask(qid), len(y))
        # losses for regression fit single rows
        self._fit_rows(X, y, sample_weight, queries=ids if loss.task == "ranking" else None)
        # queries are encoded as 0, 1, 2, ...
        self.n_queries_ = 0 if ids is None else int(ids.max()) + 1
        warn_unless_converged(self)
        return self

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        arrays, fitted = super()._state()
        return arrays, fitted | {"n_queries": self.n_queries_}

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        super()._restore(w, fitted, arrays)
        self.n_queries_ = read_count(fitted, "n_queries")

    def decision_function(self, X: Any) -> NDArray:
        """Return the scores X @ w: within a query, rows of higher score are ranked higher."""
        return decision_scores(self, X)

    def predict(self, X: Any) -> NDArray:
        """Return the scores, as `decision_function` does."""
        return decision_scores(self, X)

    @_ScoredByQuery
    def score(self, X: Any, y: Any, qid: Any = None, sample_weight: Any = None) -> float:
        """Return the mean NDCG@10 over the queries, see `riskmin.metrics.mean_ndcg_score`.

        Parameters
        ----------
        X, y, qid
            As in `fit`; queries without any grade above 0 are left out. All rows are one query for a model
            that was fitted without queries, if there are no ids.
        sample_weight : (n,) array, optional
            The weight of a query is the mean weight of its rows.

        Returns
        -------
        float
            1 for a perfect ranking.
        """
        check_is_fitted(self)
        y, qid, sample_weight = compute_if_dask(y), compute_if_dask(qid), compute_if_dask(sample_weight)
        if qid is None and self.n_queries_ == 0:
            qid = np.zeros(len(y))
        return mean_ndcg_score(y, self.predict(X), qid=qid, k=10, sample_weight=sample_weight)
