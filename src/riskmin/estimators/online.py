"""Classifiers that learn from their mistakes, a row at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, ClassifierMixin

from riskmin.estimators.base import check_number, scores
from riskmin.estimators.binary import two_classes
from riskmin.estimators.rows import FORMATS, checked_here
from riskmin.regularizers import get_regularizer
from riskmin.solvers.online import online
from riskmin.types import NDArray

sp: Any = scipy.sparse  # its types leave no room for what is sparse or dense


class OnlineClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""An online classifier of two classes: the Perceptron, Winnow or a p-norm algorithm.

    .. math:: v \leftarrow v + \eta\, y_i x_i \quad\text{if } y_i\, x_i^\top w \le 0,
              \qquad w = \nabla\Omega^*(v).

    Nothing is minimized, so nothing is proved. The large margin version of each is `LinearClassifier` with
    the same regularizer.

    Parameters
    ----------
    regularizer : str or Regularizer
        Which algorithm, by its transfer function: "l2" is the Perceptron, "entropy" and
        "unnormalized_entropy" are balanced Winnows, "qnorm:q=1.2" the p-norm algorithm with p = 6.
    rate : float
        The learning rate, above 0.
    epochs : int
        Passes over the rows, at most: one without a mistake is the last.
    fit_intercept : bool
        Whether to append a column of ones to X, whose weight is the intercept.
    shuffle : bool
        Whether each pass takes the rows in another order.
    random_state : int
        The seed of these orders.

    Attributes
    ----------
    classes_ : (2,) array
        The labels, in order.
    coef_ : (1, p) array
        w.
    intercept_ : (1,) array
        The weight of the column of ones.
    mistakes_ : int
        In the last pass.
    n_features_in_, feature_names_in_ : int, array
        As in all of scikit-learn.

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

    def __init__(
        self,
        regularizer: Any = "l2",
        *,
        rate: float = 0.01,
        epochs: int = 200,
        fit_intercept: bool = True,
        shuffle: bool = False,
        random_state: int = 0,
    ) -> None:
        self.regularizer = regularizer
        self.rate = rate
        self.epochs = epochs
        self.fit_intercept = fit_intercept
        self.shuffle = shuffle
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any) -> OnlineClassifier:
        """Learn from zero.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame
        y : (n,) array
            Labels of two classes: numbers or strings.

        Returns
        -------
        OnlineClassifier
            Itself.
        """
        X, y = checked_here(self, X, y, **FORMATS)
        classes = two_classes(y, None)
        return self._learn(X, y, classes, None, self.epochs)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> OnlineClassifier:
        """Learn from more rows, in one pass over them.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame
        y : (n,) array
            Labels, of one class or both.
        classes : (2,) array, optional
            Both labels, needed in the first call only.

        Returns
        -------
        OnlineClassifier
            Itself.
        """
        first = not hasattr(self, "v_")
        if first and classes is None:
            raise ValueError("the first call of partial_fit must be told both labels: give classes")
        X, y = checked_here(self, X, y, reset=first, **FORMATS)
        known = two_classes(np.asarray(classes), None) if classes is not None else self.classes_
        if not first and not np.array_equal(known, self.classes_):
            raise ValueError(f"classes={classes!r} differs from those of the first call, {self.classes_!r}")
        if not np.isin(y, known).all():
            raise ValueError(f"y holds labels that are not among the classes {known.tolist()}")
        return self._learn(X, y, known, None if first else self.v_, 1)

    def _learn(
        self, X: Any, y: NDArray, classes: NDArray, v: NDArray | None, epochs: int
    ) -> OnlineClassifier:
        check_number(self, "rate", "a finite number > 0", lambda a: 0 < a < math.inf)
        check_number(self, "epochs", "an integer >= 1", lambda a: a >= 1 and a == int(a))
        if self.fit_intercept:
            ones = np.ones((X.shape[0], 1), dtype=X.dtype)
            X = _beside(X, ones)
        found = online(
            X,
            np.where(y == classes[1], 1.0, -1.0),
            get_regularizer(self.regularizer),
            rate=float(self.rate),
            epochs=int(epochs),
            v0=v,
            shuffle=self.shuffle,
            seed=int(self.random_state or 0),
        )
        p = X.shape[1] - bool(self.fit_intercept)
        self.classes_, self.v_, self.mistakes_ = classes, found.v, found.mistakes
        self.coef_, self.intercept_ = found.w[None, :p], np.append(found.w[p:], 0.0)[:1]
        return self

    def decision_function(self, X: Any) -> NDArray:
        """The scores X @ w + b: above zero for ``classes_[1]``."""
        return scores(self, X)

    def predict(self, X: Any) -> NDArray:
        """The class of every row."""
        positive = self.decision_function(X) > 0
        labels: NDArray = self.classes_[positive.astype(np.intp)]
        return labels


def _beside(X: Any, ones: NDArray) -> Any:
    """X with a further column."""
    if not sp.issparse(X):
        return np.hstack([X, ones])
    return sp.hstack([X, sp.csr_array(ones)], format="csr")
