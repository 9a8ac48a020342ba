"""What classifiers of any number of classes share: labels as losses take them, predictions from scores."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.utils.metaestimators import available_if

from riskmin.estimators.base import loss_of
from riskmin.estimators.binary import TwoClasses, classes_of, has_probabilities, with_class_weight
from riskmin.estimators.many import is_many, takes_many, unpacked
from riskmin.estimators.rows import LabelsHere
from riskmin.losses import get_loss
from riskmin.types import NDArray


class AnyClasses(LabelsHere, TwoClasses):
    """A classifier whose `decision_function` has a column a class, or is one number a row for two."""

    coef_: NDArray
    intercept_: NDArray

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with contextlib.suppress(ValueError):  # before `fit`, the loss may be none at all
            tags.classifier_tags.multi_class = takes_many(get_loss(self.loss))
        return tags

    def _rows(self, y: NDArray, weight: NDArray | None) -> tuple[NDArray, NDArray | None, NDArray]:
        """The labels as the loss takes them, the weights with those of the classes, and the classes."""
        classes = classes_of(y, weight)
        loss = loss_of(self, len(classes))
        # rows of weight zero may be of no class that counts: of which one they are then makes no difference
        number = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        if self.class_weight is not None:
            weight = with_class_weight(self.class_weight, classes, number, weight)
        labels = number.astype(np.float64)
        return labels if is_many(loss) else 2 * labels - 1, weight, classes

    def _unpack(self, w: NDArray, classes: NDArray, *, intercepts: bool) -> None:
        """Set what predictions need, from the vector that was fitted to a loss of many scores."""
        coef, b = unpacked(w, len(classes), intercepts=intercepts)
        if len(classes) == 2:  # as everywhere in scikit-learn: what speaks for the second one
            coef, b = coef[1:] - coef[:1], b[1:] - b[:1]
        self.classes_, self.coef_, self.intercept_, self.threshold_ = classes, coef, b, 0.0

    def predict(self, X: Any) -> NDArray:
        """The class of every row."""
        if len(getattr(self, "classes_", ())) <= 2:
            return super().predict(X)
        labels: NDArray = self.classes_[np.argmax(self.decision_function(X), axis=1)]
        return labels

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray:
        """The probabilities of the classes, in the order of `classes_`: for "logistic" and "softmax" only."""
        if len(getattr(self, "classes_", ())) <= 2:
            pair: NDArray = super().predict_proba(X)
            return pair
        p: NDArray = softmax(self.decision_function(X), axis=1)
        return p

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> NDArray:
        """The logarithms of the probabilities, exact where those round to 0 or 1."""
        if len(getattr(self, "classes_", ())) <= 2:
            pair: NDArray = super().predict_log_proba(X)
            return pair
        p: NDArray = log_softmax(self.decision_function(X), axis=1)
        return p
