"""Grades in an order, one score for all of them, and thresholds between neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from riskmin.estimators.base import (
    as_weights,
    fit_linear,
    loss_of,
    raw_scores,
    scores,
    warn_unless_converged,
)
from riskmin.estimators.rows import checked, here, picked
from riskmin.losses.cutoffs import middle, partings
from riskmin.sorting import order, prefix_sums
from riskmin.types import NDArray

METRICS = ("absolute", "zero_one")


class OrdinalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""A linear classifier of ordered grades, with a certified objective.

    .. math::
        \min_w\; J(w) = \alpha\,\Omega(w) + R(w), \qquad
        \hat y = \text{the grade } k \text{ with } t_k < x^\top w \le t_{k+1}.

    R is by default the mean hinge of all pairs of rows of different grades, :math:`\max(0, 1 - (z_i - z_j))`
    for grades :math:`y_i > y_j`, each pair :math:`c_i c_j` (see `riskmin.Ordinal`). The fit of w ends when
    :math:`J - \min J \le \text{tol} \cdot J` is proved. Then the thresholds :math:`t_1 \le t_2 \le \dots`
    between the grades are those with the least training error, whichever `metric` says: of all that there
    are, in O(n g) for n rows and g grades, by dynamic programming over the sorted scores.

    Parameters
    ----------
    loss : str or Loss
        "ordinal", ``riskmin.Ordinal(costs=...)``, or a loss for regression, such as "absolute" or
        "squared", whose labels are the numbers 0, 1, ... of the grades.
    alpha : float
        The strength of the regularizer.
    metric : "absolute" or "zero_one"
        What the thresholds minimize: by how many grades the predictions are off, or how many are wrong.
    order : sequence of labels or None
        All grades from the lowest to the highest, such as ``["poor", "fair", "good"]``; None for that of an
        ordered categorical of pandas or an Enum of polars, and else for the sorted order of the labels.
    fit_intercept : bool
        For losses for regression: whether to fit an intercept. To the default loss it makes no difference.
    regularizer, positive, standardize
        As in `LinearClassifier`.
    solver, tol, atol, max_iter, max_seconds, warm_start, n_jobs, callback, checkpoint, verbose
        As in `LinearClassifier`.

    Attributes
    ----------
    classes_ : (g,) array
        The grades in the rows, from the lowest to the highest.
    coef_ : (p,) array
        w.
    intercept_ : float
        Zero with the default loss.
    thresholds_ : (g - 1,) array
        A row is above grade ``classes_[k]`` if its score is above ``thresholds_[k]``. They do not decrease;
        where two are equal, the grade between them is never predicted.
    scale_ : (p,) array or None
        The standard deviations of the columns; None without `standardize`.
    objective_, lower_bound_, gap_ : float
        J at `coef_`, what min J is proved not to be below, and their difference.
    n_iter_, result_, n_samples_fit_, weighted_, n_features_in_, feature_names_in_
        As in `LinearClassifier`.

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
    also_for = ("regression",)

    def __init__(
        self,
        loss: Any = "ordinal",
        *,
        alpha: float = 1e-4,
        metric: str = "absolute",
        order: Any = None,
        regularizer: Any = "l2",
        positive: bool = False,
        standardize: bool = False,
        fit_intercept: bool = True,
        solver: Any = None,
        tol: float = 1e-3,
        atol: float | None = None,
        max_iter: int = 10_000,
        max_seconds: float | None = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        callback: Any = None,
        checkpoint: Any = None,
        verbose: bool = False,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.metric = metric
        self.order = order
        self.regularizer = regularizer
        self.positive = positive
        self.standardize = standardize
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.atol = atol
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.callback = callback
        self.checkpoint = checkpoint
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.poor_score = True  # scikit-learn checks it on classes that are in no order
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> OrdinalClassifier:
        """Fit the weights, then the thresholds.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.Spread` or Dask array or dataframe
            Float arrays in either order, CSR and CSC are not copied. Rows that are elsewhere stay there.
        y : (n,) array
            Grades: at least two different ones, numbers (also such as 0.5) or strings.
        sample_weight : (n,) array, optional
            Weights >= 0; a row of weight zero might as well not be there.

        Returns
        -------
        OrdinalClassifier
            Itself.
        """
        loss_of(self)  # what is wrong with it is said before y is looked at
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r}, but the metrics are {' and '.join(METRICS)}")
        own = order_of(y)
        X, y = checked(self, X, y)
        if y.dtype.kind != "f" or 2 * len(np.unique(y)) > len(y):  # grades repeat, whatever numbers they are
            check_classification_targets(y)
        n_rows, weight = len(y), as_weights(sample_weight, len(y))
        if weight is not None and not weight.all():  # a grade without weight is none
            X, y, weight = picked(X, weight > 0), y[weight > 0], weight[weight > 0]
        grade, weight, classes = self._rows(y, weight, own)
        w, b, X = fit_linear(self, X, grade, weight, row_weight=weight, fit_intercept=self.fit_intercept)
        self._keep(w, b, classes, X, grade, weight)
        self.n_samples_fit_ = n_rows
        warn_unless_converged(self)
        return self

    def _rows(
        self, y: NDArray, weight: NDArray | None, own: Any = None
    ) -> tuple[NDArray, NDArray | None, NDArray]:
        """The numbers of the grades as floats, the weights, and the grades."""
        classes, grade = grades_of(y, own if self.order is None else self.order)
        return grade.astype(np.float64), weight, classes

    def _keep(
        self, w: NDArray, b: float, classes: NDArray, X: Any, grade: NDArray, weight: NDArray | None
    ) -> None:
        self.classes_, self.coef_, self.intercept_ = classes, w, b
        self.thresholds_ = thresholds(raw_scores(self, X), grade.astype(np.intp), weight, self.metric)

    def score_samples(self, X: Any) -> NDArray:
        """The scores X @ w: the higher, the higher the grade."""
        return scores(self, X)

    def decision_function(self, X: Any) -> NDArray:
        """How far within its grade's thresholds a row's score is, negative for the grades that it is not of.

        A column a grade; for two grades, as everywhere in scikit-learn, a number above zero for the higher.
        """
        z = scores(self, X)
        ends = np.concatenate([[-np.inf], self.thresholds_, [np.inf]])
        within: NDArray = np.minimum(z[:, None] - ends[:-1], ends[1:] - z[:, None])
        return within[:, 1] if len(self.classes_) == 2 else within

    def predict(self, X: Any) -> NDArray:
        """The grade of every row."""
        z = scores(self, X)
        labels: NDArray = self.classes_[np.searchsorted(self.thresholds_, z, side="left")]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows whose grade is predicted, which may be no whole number."""
        said, truth, sample_weight = self.predict(X), column_or_1d(here(y)), here(sample_weight)
        check_consistent_length(said, truth, sample_weight)
        return float(np.average(said == truth, weights=sample_weight))


def order_of(y: Any) -> Any:
    """The grades of a column that knows their order, from the lowest to the highest; None for others."""
    kind = getattr(y, "dtype", None)
    ordered = getattr(kind, "ordered", type(kind).__name__ == "Enum")  # of pandas, of polars
    return list(kind.categories) if ordered and kind is not None else None


def grades_of(y: NDArray, given: Any) -> tuple[NDArray, NDArray]:
    """The grades that are in y, in their order, and the number of that of each row."""
    classes, grade = np.unique(y, return_inverse=True)
    if given is not None:
        rank = {label: k for k, label in enumerate(given)}
        if len(rank) != len(given) or (strange := [c for c in classes.tolist() if c not in rank]):
            held = f"y holds {strange[0]!r}" if len(rank) == len(given) else "one is there twice"
            raise ValueError(f"order={given!r} must name every grade once, but {held}: add or drop it")
        places = np.argsort([rank[c] for c in classes.tolist()])
        classes, grade = classes[places], np.argsort(places)[grade]
    if len(classes) < 2:
        raise ValueError(
            f"y holds only one class, {classes.tolist()[0]!r}, but two are needed: add rows of another grade"
        )
    return classes, grade


def thresholds(z: NDArray, grade: NDArray, weight: NDArray | None, metric: str) -> NDArray:
    r"""The thresholds on the scores z with the least weighted error of the grades.

    With :math:`S_k(p)` for the cost of giving grade k to the p lowest scores, the least cost of giving grades
    up to k to them is :math:`F_k(p) = S_k(p) + \min_{q \le p} F_{k-1}(q) - S_k(q)`.
    """
    rows, n = order(z), len(z)
    z, grade = z[rows], grade[rows]
    c = np.full(n, 1 / n) if weight is None else weight[rows]
    counts = partings(z)

    def sums(k: int) -> NDArray:
        """S_k, where scores can be parted."""
        off = np.abs(grade - k)
        found: NDArray = prefix_sums(c * (off if metric == "absolute" else off > 0))[counts]
        return found

    before, best = [], sums(0)
    for k in range(1, int(grade.max()) + 1):
        cost = sums(k)
        short = np.round(best - cost, 12)  # what is the same in exact numbers must not differ here
        least = np.minimum.accumulate(short)
        new = np.concatenate([[False], least[1:] < least[:-1]])
        before.append(np.maximum.accumulate(np.where(new, np.arange(len(counts)), 0)))
        best = cost + least
    at, found = len(counts) - 1, []
    for last in reversed(before):
        at = int(last[at])
        found.append(middle(z, int(counts[at])))
    return np.array(found[::-1])
