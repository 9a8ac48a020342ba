"""Code shared by classifiers: labels encoded for the loss, class weights, predictions from scores."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.estimators._common.fit import supports_multiclass
from riskmin.estimators._common.offset import OffsetScoreMixin
from riskmin.estimators._common.outputs import unpack_weights
from riskmin.estimators.gpu_rows import beside, on_host
from riskmin.estimators.scikit_learn import ClassifierMixin, available_if
from riskmin.losses import Logistic, get_loss


def has_probabilities(model: Any) -> bool:
    """Whether the loss is that of a probabilistic model; raise AttributeError otherwise."""
    if get_loss(model.loss).probabilistic:
        return True
    raise AttributeError(
        f"probabilities need loss='logistic', not {model.loss!r}; or calibrate the scores by "
        f"sklearn.calibration.CalibratedClassifierCV({type(model).__name__}({model.loss!r}))"
    )


class BinaryMixin(ClassifierMixin):  # type: ignore[misc] # scikit-learn has no types
    """A classifier whose `decision_function` is above zero for ``classes_[1]``, or has a column per class."""

    classes_: NDArray
    class_weight: Any
    decision_function: Any
    fit_intercept: bool
    intercept_: Any
    loss: Any
    threshold_: float
    _fitted_loss: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def predict(self, X: Any) -> NDArray:
        """Predict the class of every row: that of the largest score if there are more than two."""
        return self._predicted(self.decision_function(X), X)

    def _predicted(self, z: NDArray, X: Any) -> NDArray:
        """Return the class of each row, beside X."""
        labels: NDArray = beside(self._labels_of_scores(on_host(z)), X)
        return labels

    def _labels_of_scores(self, z: NDArray) -> NDArray:
        """Return the class of each row of scores."""
        labels: NDArray = self._labels.decode(
            (z > 0).astype(np.intp) if z.ndim == 1 else np.argmax(z, axis=1)
        )
        return labels

    @available_if(has_probabilities)
    def predict_proba(self, X: Any) -> NDArray:
        """Predict class probabilities, in the order of `classes_` (losses "logistic" and "softmax" only)."""
        return self._probabilities(self.decision_function(X), X, log=False)

    @available_if(has_probabilities)
    def predict_log_proba(self, X: Any) -> NDArray:
        """Predict log-probabilities, accurate also where the probabilities round to 0 or 1."""
        return self._probabilities(self.decision_function(X), X, log=True)

    def _probabilities(self, z: NDArray, X: Any, *, log: bool) -> NDArray:
        """Return the probabilities of the classes by the scores of the rows, beside X."""
        z = on_host(z)
        if z.ndim == 1:
            # the loss is minus the logarithm of the probability; z is the difference of two scores of softmax
            loss, one = get_loss(self.loss), np.ones(len(z))
            loss = Logistic() if loss.multi_output else loss
            log_p = np.stack([-loss.values(z, y) for y in (-one, one)], axis=1)
            p = log_p if log else np.exp(log_p)
        else:
            p = self._class_probabilities(z, log=log)
        result: NDArray = beside(p, X)
        return result

    def _class_probabilities(self, z: NDArray, *, log: bool) -> NDArray:
        """Return the probabilities of more than two classes by their scores, or the logarithms."""
        special = scipy_module("special")
        p: NDArray = (special.log_softmax if log else special.softmax)(z, axis=1)
        return p


class MulticlassMixin(OffsetScoreMixin, BinaryMixin):
    """A classifier whose classes are fitted jointly by a multi-output loss, unless there are two."""

    coef_: NDArray

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with contextlib.suppress(ValueError):  # before `fit`, the loss may be invalid
            tags.classifier_tags.multi_class = supports_multiclass(get_loss(self.loss))
        return tags

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        self.classes_, self.threshold_ = self._labels.values, float(cuts[0])
        if not self._fitted_loss().multi_output:
            self.coef_, self.intercept_ = w[None, :], b - self.threshold_
            return
        k = len(self.classes_)
        coef, b = unpack_weights(w, k, intercepts=len(w) > k * self.n_features_in_)
        if k == 2:  # as in scikit-learn: the score of the second class less that of the first
            coef, b = coef[1:] - coef[:1], b[1:] - b[:1]
        self.coef_, self.intercept_ = coef, b
