"""Linear classification with any convex loss."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from riskmin.core import Array, NDArray
from riskmin.estimators._common.base import RowEstimator, estimator
from riskmin.estimators._common.classes import MulticlassMixin, has_probabilities
from riskmin.estimators._common.decision import Threshold
from riskmin.estimators._common.fit import (
    decision_scores,
    resolve_loss,
    warn_unless_converged,
)
from riskmin.estimators._common.input import (
    affine_scores,
    validate_rows,
)
from riskmin.estimators._common.labels import Classes
from riskmin.estimators._common.outputs import unpack_weights
from riskmin.estimators._common.sparse_weights import SparseWeightsMixin
from riskmin.estimators.evidence import ProofMixin
from riskmin.estimators.removal import RemovalMixin
from riskmin.estimators.scikit_learn import available_if
from riskmin.estimators.summary.table import SummaryMixin


@estimator
class LinearClassifier(
    SparseWeightsMixin, MulticlassMixin, ProofMixin, SummaryMixin, RemovalMixin, RowEstimator
):
    r"""A linear classifier of two or more classes for any convex loss, with a certified objective.

    .. math::
        \min_{w, b}\; J(w, b) = \alpha\,\Omega(w) + \sum_i c_i\, l(x_i^\top w + b, y_i),
        \qquad c_i = s_i / \textstyle\sum_j s_j,

    where :math:`y_i` is -1 for ``classes_[0]`` and +1 for ``classes_[1]``, and :math:`s_i` is the weight
    of a row, 1 by default. The intercept b is not penalized. The fit stops when
    :math:`J - \min J \le \text{tol} \cdot J` is proved.

    With more than two classes, each class has its own weights and intercept, and all are fitted jointly, as
    one problem with one certificate: the class with the largest score :math:`z_j = x^\top w_j + b_j` is
    predicted. In this case "hinge" is :math:`\max_{j \ne y} \max(0, 1 + z_j - z_y)`
    (`MulticlassHinge`), "squared_hinge" is `MulticlassSquaredHinge`, and "logistic" is `Softmax`; other
    binary losses have no multiclass form.

    With non-decomposable losses, R is not a sum over rows, and metrics such as the area under the ROC curve
    or the break-even point do not depend on the intercept. For these losses the threshold is chosen after
    the fit such that the metric itself is best on the training rows: for "f1" and "f_beta" F-beta is
    largest; for "prbep" as many rows are predicted positive as are positive; for "precision_at_k" and
    "recall_at_k" k rows are; for "roc_area" the balanced accuracy is largest. Without `fit_intercept` the
    threshold is 0.

    Parameters
    ----------
    loss : str or Loss
        A name of `riskmin.LOSSES` for classification, optionally with parameters
        (``"hinge:margin=2"``), or a loss object: one of riskmin's, or any object with ``separable`` and
        ``value_grad(z, y, c)``. "softmax", "multiclass_hinge", "multiclass_squared_hinge" and
        ``MulticlassHinge(cost)``, with a matrix of misclassification costs in the order of `classes_`, use
        one score per class also if there are two classes.
    alpha : float
        Regularization strength. With "l2" (and "l1"), the ``C`` of scikit-learn's
        LogisticRegression, of any number of classes, and of LinearSVC but for its penalized intercept, is
        ``1 / (alpha * n)`` for n rows; LinearSVC's squared hinge has no factor 1/2, so there it is
        ``1 / (2 * alpha * n)``. 0: no penalty; "logistic" then needs classes that overlap.
    fit_intercept : bool
        Whether to fit the intercept b; if False, b and the threshold are 0.
    class_weight : dict, "balanced" or None
        Factors for the row weights of each class; "balanced" gives all classes the same total weight. They
        have no effect on "roc_area"; the other non-decomposable losses count rows and reject them.

    Attributes
    ----------
    classes_ : (k,) array
        The labels, sorted.
    coef_ : (1, p) or (k, p) array
        w for two classes, one row per class for more. With a multi-output loss and two classes, it is the
        difference of the weights of the classes; ``result_.w`` holds both.
    intercept_ : (1,) or (k,) array
        Intercepts of the decision function. For two classes it is b - `threshold_`, such that rows with
        a score above zero are of ``classes_[1]``.
    threshold_ : float
        Threshold on the scores x^T w + b; nonzero only with non-decomposable losses.
    objective_ : float
        J at `coef_` and the best b, which is ``intercept_ + threshold_``. With `standardize`, J and its
        bound are those of the standardized problem.

    References
    ----------
    C. H. Teo, S. V. N. Vishwanathan, A. Smola, Q. V. Le, Bundle methods for regularized risk
    minimization, JMLR 11, 2010. K. Crammer, Y. Singer, On the algorithmic implementation of multiclass
    kernel-based vector machines, JMLR 2, 2001.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from riskmin import LinearClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), LinearClassifier("hinge", alpha=1e-2)).fit(X, y)
    >>> model.score(X, y) > 0.97
    True
    >>> svm = model[-1]
    >>> svm.gap_ <= svm.tol * svm.objective_
    True
    >>> same = LinearClassifier("hinge", alpha=1e-2, standardize=True).fit(X, y)  # with coef_ in units of X
    >>> abs(same.objective_ - svm.objective_) < 1e-3 * svm.objective_
    True
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearClassifier("logistic", alpha=1e-3).fit(X, y)  # three classes: one problem
    >>> model.coef_.shape, model.score(X, y) > 0.95, model.gap_ <= model.tol * model.objective_
    ((3, 4), True, True)
    """

    task = "classification"
    can_be_unpenalized = True
    _label_kind, _decision = Classes, Threshold()
    extra_loss_tasks = ("multiclass",)
    intercepts_in_w = True

    loss: Any = field(default="hinge", kw_only=False)
    fit_intercept: bool = True
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> LinearClassifier:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.PartitionedMatrix` or Dask array or dataframe
            Float arrays in either order, CSR and CSC are not copied. Remote rows are not moved.
        y : (n,) array
            Labels of two or more classes: numbers or strings.
        sample_weight : (n,) array, optional
            Weights >= 0; rows of weight zero have no effect on the fit.
        offset : (n,) array, optional
            Numbers that are added to the scores of the rows, for two classes and a loss that is a sum over
            rows. `predict` takes those of its rows; the model does not keep them.

        Returns
        -------
        LinearClassifier
            The fitted estimator itself.
        """
        resolve_loss(self)  # report an invalid loss before reading y
        X, y = validate_rows(self, X, y)
        self._fit_rows(X, y, sample_weight, offset=offset)
        warn_unless_converged(self)
        return self

    def _scores(self, X: Any) -> NDArray:
        if not self._fitted_loss().multi_output:
            return super()._scores(X)
        # `coef_` of two classes is a difference: unpack the weights of both classes from w
        w, k = np.asarray(self.result_.w), len(self.classes_)
        coef, b = unpack_weights(w, k, intercepts=self._n_unpenalized() > 0)
        return affine_scores(validate_rows(self, X, reset=False), np.ascontiguousarray(coef.T), b)

    def decision_function(self, X: Any, *, offset: Any = None) -> NDArray:
        """Return the scores X @ w + b: above zero for ``classes_[1]``, or one column per class if k > 2.

        An offset, one number per row, is added to them.
        """
        return decision_scores(self, X, offset)

    def predict(self, X: Any, *, offset: Any = None) -> Array:
        """Predict the class of every row: that of the largest score if there are more than two."""
        return self._labels_of_scores(self.decision_function(X, offset=offset))

    @available_if(has_probabilities)
    def predict_proba(self, X: Any, *, offset: Any = None) -> Array:
        """Predict class probabilities, in the order of `classes_` (losses "logistic" and "softmax" only)."""
        return self._probabilities(self.decision_function(X, offset=offset), log=False)

    @available_if(has_probabilities)
    def predict_log_proba(self, X: Any, *, offset: Any = None) -> Array:
        """Predict log-probabilities, accurate also where the probabilities round to 0 or 1."""
        return self._probabilities(self.decision_function(X, offset=offset), log=True)
