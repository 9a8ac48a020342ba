"""Code shared by multiclass classifiers: labels encoded for the loss, predictions from scores."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.utils.metaestimators import available_if

from riskmin.core import NDArray
from riskmin.estimators._common.fit import resolve_loss
from riskmin.estimators._common.input import DaskLabelsMixin
from riskmin.estimators._common.multi_output import is_multi_output, supports_multiclass, unpack_weights
from riskmin.estimators._common.two_classes import (
    BinaryMixin,
    apply_class_weight,
    has_probabilities,
    unique_classes,
)
from riskmin.losses import get_loss


class MulticlassMixin(DaskLabelsMixin, BinaryMixin):
    """A classifier whose `decision_function` has one column per class, one-dimensional for two classes."""

    coef_: NDArray
    intercept_: NDArray

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with contextlib.suppress(ValueError):  # before `fit`, the loss may be invalid
            tags.classifier_tags.multi_class = supports_multiclass(get_loss(self.loss))
        return tags

    def _encode_labels(self, y: NDArray, weight: NDArray | None) -> tuple[NDArray, NDArray | None, NDArray]:
        """Return the labels encoded for the loss, the row weights times class weights, and the classes."""
        classes = unique_classes(y, weight)
        loss = resolve_loss(self, len(classes))
        # rows of weight zero may have labels outside `classes`: clip their code, which has no effect
        codes = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        if self.class_weight is not None:
            weight = apply_class_weight(self.class_weight, classes, codes, weight)
        # multi-output losses take codes 0 to k - 1, binary losses take -1 and +1
        labels = codes.astype(np.float64)
        return labels if is_multi_output(loss) else 2 * labels - 1, weight, classes

    def _set_multi_output(self, w: NDArray, classes: NDArray, *, intercepts: bool) -> None:
        """Set the fitted attributes from the weight vector of a multi-output loss."""
        coef, b = unpack_weights(w, len(classes), intercepts=intercepts)
        if len(classes) == 2:  # as in scikit-learn: the score of the second class less that of the first
            coef, b = coef[1:] - coef[:1], b[1:] - b[:1]
        self.classes_, self.coef_, self.intercept_, self.threshold_ = classes, coef, b, 0.0

    def predict(self, X: Any) -> NDArray:
        """Predict the class of every row."""
        if len(getattr(self, "classes_", ())) <= 2:
            return super().predict(X)
        labels: NDArray = self.classes_[np.argmax(self.decision_function(X), axis=1)]
        return labels

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray:
        """Predict class probabilities, in the order of `classes_` (losses "logistic" and "softmax" only)."""
        if len(getattr(self, "classes_", ())) <= 2:
            pair: NDArray = super().predict_proba(X)
            return pair
        p: NDArray = softmax(self.decision_function(X), axis=1)
        return p

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> NDArray:
        """Predict log-probabilities, accurate also where the probabilities round to 0 or 1."""
        if len(getattr(self, "classes_", ())) <= 2:
            pair: NDArray = super().predict_log_proba(X)
            return pair
        p: NDArray = log_softmax(self.decision_function(X), axis=1)
        return p
