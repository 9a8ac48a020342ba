"""Ordinal classification: one linear score, and thresholds between adjacent grades."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators._common.base import RiskArguments, RowEstimator, estimator
from riskmin.estimators._common.decision import Decision
from riskmin.estimators._common.fit import (
    decision_scores,
    resolve_loss,
    warn_unless_converged,
)
from riskmin.estimators._common.input import compute_if_dask, validate_rows
from riskmin.estimators._common.labels import Grades, Labels
from riskmin.estimators._common.sparse_weights import SparseWeightsMixin
from riskmin.estimators.scikit_learn import ClassifierMixin
from riskmin.losses.thresholds import distinct_cuts, midpoint_threshold
from riskmin.numerics.sorting import prefix_sums, stable_argsort

THRESHOLD_METRICS = ("absolute", "zero_one")


class GradeThresholds(Decision):
    """The thresholds between neighboring grades."""

    attribute = "thresholds_"

    def n_cuts(self, labels: Labels) -> int:
        return len(labels.values) - 1

    def best_cuts(self, model: Any, at: Callable[[], RiskArguments]) -> NDArray:
        z, grade, c = at()
        return thresholds(z, grade.astype(np.intp), c, model.metric)


@estimator
class OrdinalClassifier(SparseWeightsMixin, ClassifierMixin, RowEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""A linear classifier of ordered grades, with a certified objective.

    .. math::
        \min_w\; J(w) = \alpha\,\Omega(w) + R(w), \qquad
        \hat y = \text{the grade } k \text{ with } t_k < x^\top w \le t_{k+1}.

    R is by default the mean hinge loss over all pairs of rows of different grades,
    :math:`\max(0, 1 - (z_i - z_j))` for grades :math:`y_i > y_j`, with weight :math:`c_i c_j` (see
    `riskmin.Ordinal`). The fit of w stops when :math:`J - \min J \le \text{tol} \cdot J` is proved. Then the
    thresholds :math:`t_1 \le t_2 \le \dots` between the grades are those that minimize the training error
    of `metric` exactly, in O(n g) for n rows and g grades, by dynamic programming over the sorted scores.

    Parameters
    ----------
    loss : str or Loss
        "ordinal", ``riskmin.Ordinal(costs=...)``, or a loss for regression, such as "absolute" or
        "squared", whose labels are the ranks 0, 1, ... of the grades.
    metric : "absolute" or "zero_one"
        The error that the thresholds minimize: the distance in grades, or the number of wrong predictions.
    order : sequence of labels or None
        All grades from the lowest to the highest, such as ``["poor", "fair", "good"]``. None for the order of
        a pandas ordered categorical or a polars Enum, and for the sorted order of other labels.
    fit_intercept : bool
        Whether to fit an intercept with losses for regression. It has no effect on the default loss.

    Attributes
    ----------
    classes_ : (g,) array
        The grades that occur in y, from the lowest to the highest.
    coef_ : (p,) array
        w.
    intercept_ : scalar
        Zero with the default loss.
    thresholds_ : (g - 1,) array
        A row is above grade ``classes_[k]`` if its score is above ``thresholds_[k]``. They do not decrease;
        if two are equal, the grade between them is never predicted.

    References
    ----------
    T. Joachims, Training linear SVMs in linear time, KDD 2006.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import OrdinalClassifier
    >>> X, y = load_diabetes(return_X_y=True)
    >>> grade = np.digitize(y, [90, 140, 200])  # four grades of progression
    >>> model = OrdinalClassifier(alpha=1e-4).fit(X, grade)
    >>> bool(np.abs(model.predict(X) - grade).mean() < 0.65), model.thresholds_.shape
    (True, (3,))
    >>> model.gap_ <= model.tol * model.objective_
    True
    """

    task = "ordinal"
    _label_kind, _decision = Grades, GradeThresholds()
    extra_loss_tasks = ("regression",)

    loss: Any = field(default="ordinal", kw_only=False)
    metric: str = "absolute"
    order: Any = None
    fit_intercept: bool = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # scikit-learn checks scores on unordered classes
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> OrdinalClassifier:
        """Fit the weights, then the thresholds.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.PartitionedMatrix` or Dask array or dataframe
            Float arrays in either order, CSR and CSC are not copied. Remote rows are not moved.
        y : (n,) array
            Grades: numbers, also fractional ones such as 0.5, or strings; at least two different ones.
        sample_weight : (n,) array, optional
            Weights >= 0; rows of weight zero have no effect on the fit.

        Returns
        -------
        OrdinalClassifier
            The fitted estimator itself.
        """
        resolve_loss(self)  # report an invalid loss before reading y
        if self.metric not in THRESHOLD_METRICS:
            raise ValueError(f"metric={self.metric!r}, but the metrics are {' and '.join(THRESHOLD_METRICS)}")
        # before validation, which converts y to a NumPy array
        declared = declared_order(y)
        X, y = validate_rows(self, X, y)
        self._fit_rows(X, y, sample_weight, order=declared)
        warn_unless_converged(self)
        return self

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        super()._set_weights(w, b, cuts)
        self.classes_, self.thresholds_ = self._labels.values, cuts

    def score_samples(self, X: Any) -> NDArray:
        """Return the scores X @ w: the higher, the higher the grade."""
        return decision_scores(self, X)

    def decision_function(self, X: Any) -> NDArray:
        """Return the signed distance of each score to the thresholds of each grade, positive inside them.

        One column per grade; for two, as in scikit-learn, one number per row, above zero for the higher.
        """
        z = decision_scores(self, X)
        # grade k is predicted for scores in (bounds[k], bounds[k + 1]]
        bounds = np.concatenate([[-np.inf], self.thresholds_, [np.inf]])
        # signed distance to the nearer of the two thresholds
        margin: NDArray = np.minimum(z[:, None] - bounds[:-1], bounds[1:] - z[:, None])
        return margin[:, 1] if len(self.classes_) == 2 else margin

    def predict(self, X: Any) -> NDArray:
        """Predict the grade of every row."""
        z = decision_scores(self, X)
        labels: NDArray = self.classes_[np.searchsorted(self.thresholds_, z, side="left")]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; unlike in scikit-learn's mixin, grades may be fractional numbers."""
        from sklearn.utils.validation import check_consistent_length, column_or_1d

        y_pred = self.predict(X)
        y_true = column_or_1d(compute_if_dask(y))
        sample_weight = compute_if_dask(sample_weight)
        check_consistent_length(y_pred, y_true, sample_weight)
        return float(np.average(y_pred == y_true, weights=sample_weight))


def declared_order(y: Any) -> Any:
    """Return the grades of an ordered categorical column, from the lowest to the highest; None for others."""
    kind = getattr(y, "dtype", None)
    ordered = getattr(kind, "ordered", type(kind).__name__ == "Enum")  # pandas, polars
    return list(kind.categories) if ordered and kind is not None else None


def thresholds(z: NDArray, grade: NDArray, c: NDArray, metric: str) -> NDArray:
    r"""Return the thresholds on the scores z that minimize the weighted error of the grades.

    With :math:`S_k(p)` the cost of assigning grade k to the p lowest scores, the least cost of assigning
    grades up to k to them is :math:`F_k(p) = S_k(p) + \min_{q \le p} F_{k-1}(q) - S_k(q)`.
    """
    rows = stable_argsort(z)
    z, grade, c = z[rows], grade[rows], c[rows]
    # p runs over the counts at which distinct scores can be separated
    counts = distinct_cuts(z)

    def sums(k: int) -> NDArray:
        """Return S_k at all counts."""
        error = np.abs(grade - k)
        S: NDArray = prefix_sums(c * (error if metric == "absolute" else error > 0))[counts]
        return S

    # predecessors[k - 1][p] is the minimizing q of F_k(p), best is F_k
    predecessors, best = [], sums(0)
    for k in range(1, int(grade.max()) + 1):
        # F_k = S_k + running minimum of F_{k-1} - S_k
        cost = sums(k)
        # rounded, so that rounding errors do not break ties of equal costs
        difference = np.round(best - cost, 12)
        running_min = np.minimum.accumulate(difference)
        is_new = np.concatenate([[False], running_min[1:] < running_min[:-1]])
        predecessors.append(np.maximum.accumulate(np.where(is_new, np.arange(len(counts)), 0)))
        best = cost + running_min
    # backtrack from all n rows: the count below each threshold, from the highest to the lowest
    position, cuts = len(counts) - 1, []
    for q in reversed(predecessors):
        position = int(q[position])
        cuts.append(midpoint_threshold(z, int(counts[position])))
    return np.array(cuts[::-1])
