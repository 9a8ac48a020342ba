"""Online classification: mistake-driven updates, one row at a time."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

import numpy as np
import scipy.sparse

from riskmin.core import NDArray
from riskmin.estimators._common.base import estimator
from riskmin.estimators._common.fit import check_number, decision_scores
from riskmin.estimators._common.input import VALIDATION_OPTIONS, validate_local_rows
from riskmin.estimators._common.labels import unique_two_classes
from riskmin.estimators.scikit_learn import BaseEstimator, CallbackSupportMixin, ClassifierMixin
from riskmin.regularizers import get_regularizer
from riskmin.solvers.reference.online import online

sp: Any = scipy.sparse  # untyped: arrays are sparse or dense


@estimator
class OnlineClassifier(CallbackSupportMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""An online classifier of two classes: the Perceptron, Winnow or a p-norm algorithm.

    .. math:: v \leftarrow v + \eta\, y_i x_i \quad\text{if } y_i\, x_i^\top w \le 0,
              \qquad w = \nabla\Omega^*(v).

    No objective is minimized, so there is no certificate. The large-margin counterpart of each algorithm is
    `LinearClassifier` with the same regularizer.

    Parameters
    ----------
    regularizer : str or Regularizer
        Selects the algorithm by its transfer function: "l2" is the Perceptron, "entropy" and
        "unnormalized_entropy" are balanced Winnows, "qnorm:q=1.2" the p-norm algorithm with p = 6.
    rate : float
        The learning rate, above 0.
    epochs : int
        Largest number of passes over the rows; a pass without a mistake is the last.
    fit_intercept : bool
        Whether to append a column of ones to X, whose weight is the intercept.
    shuffle : bool
        Whether to permute the rows anew in each pass.
    random_state : int
        Seed of the permutations.
    max_seconds : float or None
        Time limit of a fit, or None; the weights are then those of the last row that was visited.

    Attributes
    ----------
    classes_ : (2,) array
        The labels, sorted.
    coef_ : (1, p) array
        w.
    intercept_ : (1,) array
        The weight of the column of ones.
    mistakes_ : int
        Number of mistakes in the last whole pass.
    n_features_in_, feature_names_in_ : int, array
        As in every scikit-learn estimator.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002, section 5.2.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import OnlineClassifier
    >>> X, y = np.array([[2.0, 1.0], [1.0, 2.0], [3.0, 1.0], [1.0, 3.0]]), np.array(["a", "b", "a", "b"])
    >>> OnlineClassifier("unnormalized_entropy").fit(X, y).predict([[5.0, 1.0]]).tolist()
    ['a']
    """

    task = "classification"

    regularizer: Any = field(default="l2", kw_only=False)
    rate: float = 0.01
    epochs: int = 200
    fit_intercept: bool = True
    shuffle: bool = False
    random_state: int = 0
    max_seconds: float | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any) -> OnlineClassifier:
        """Fit the model, starting from zero weights.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame
        y : (n,) array
            Labels of two classes: numbers or strings.

        Returns
        -------
        OnlineClassifier
            The fitted estimator itself.
        """
        X, y = validate_local_rows(self, X, y, **VALIDATION_OPTIONS)
        classes = unique_two_classes(y, None)
        return self._run_epochs(X, y, classes, None, self.epochs)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> OnlineClassifier:
        """Update the model with one pass over further rows.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame
        y : (n,) array
            Labels of one or both classes.
        classes : (2,) array, optional
            Both labels; required in the first call only.

        Returns
        -------
        OnlineClassifier
            The fitted estimator itself.
        """
        # v_ is the dual vector, from which the next call continues
        first = "v_" not in vars(self)
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs both labels: give classes")
        X, y = validate_local_rows(self, X, y, reset=first, **VALIDATION_OPTIONS)
        known = unique_two_classes(np.asarray(classes), None) if classes is not None else self.classes_
        if not first and not np.array_equal(known, self.classes_):
            raise ValueError(f"classes={classes!r} differs from those of the first call, {self.classes_!r}")
        if not np.isin(y, known).all():
            raise ValueError(f"y holds labels that are not among the classes {known.tolist()}")
        return self._run_epochs(X, y, known, None if first else self.v_, 1)

    def _run_epochs(
        self, X: Any, y: NDArray, classes: NDArray, v: NDArray | None, epochs: int
    ) -> OnlineClassifier:
        check_number(self, "rate", "a finite number > 0", lambda a: 0 < a < math.inf)
        check_number(self, "epochs", "an integer >= 1", lambda a: a >= 1 and a == int(a))
        if self.max_seconds is not None:
            check_number(self, "max_seconds", "None or a number > 0", lambda a: a > 0)
        if self.fit_intercept:
            ones = np.ones((X.shape[0], 1), dtype=X.dtype)
            X = _append_column(X, ones)
        result = online(
            X,
            np.where(y == classes[1], 1.0, -1.0),
            get_regularizer(self.regularizer),
            rate=float(self.rate),
            epochs=int(epochs),
            v0=v,
            shuffle=self.shuffle,
            seed=int(self.random_state or 0),
            max_seconds=math.inf if self.max_seconds is None else float(self.max_seconds),
        )
        # w[p] is the weight of the column of ones; without that column the intercept is 0
        p = X.shape[1] - bool(self.fit_intercept)
        self.classes_, self.v_, self.mistakes_ = classes, result.v, result.mistakes
        self.coef_, self.intercept_ = result.w[None, :p], np.append(result.w[p:], 0.0)[:1]
        return self

    def decision_function(self, X: Any) -> NDArray:
        """Return the scores X @ w + b: above zero for ``classes_[1]``."""
        return decision_scores(self, X)

    def predict(self, X: Any) -> NDArray:
        """Predict the class of every row."""
        positive = self.decision_function(X) > 0
        labels: NDArray = self.classes_[positive.astype(np.intp)]
        return labels


def _append_column(X: Any, ones: NDArray) -> Any:
    """Return X with a column of ones appended."""
    if not sp.issparse(X):
        return np.hstack([X, ones])
    return sp.hstack([X, sp.csr_array(ones)], format="csr")
