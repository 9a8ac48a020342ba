"""Code shared by classifiers: labels encoded for the loss, class weights, predictions from scores."""

from __future__ import annotations

import contextlib
from typing import Any

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, NDArray
from riskmin.estimators._common.fit import supports_multiclass
from riskmin.estimators._common.offset import OffsetScoreMixin
from riskmin.estimators._common.outputs import unpack_weights
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

    def predict(self, X: Any) -> Array:
        """Predict the class of every row: that of the largest score if there are more than two."""
        return self._labels_of_scores(self.decision_function(X))

    def _labels_of_scores(self, z: Array) -> Array:
        """Return the class of each row of scores."""
        xp = namespace(z)
        return self._labels.decode(xp.astype(z > 0, xp.int64) if z.ndim == 1 else xp.argmax(z, axis=1))

    @available_if(has_probabilities)
    def predict_proba(self, X: Any) -> Array:
        """Predict class probabilities, in the order of `classes_` (losses "logistic" and "softmax" only)."""
        return self._probabilities(self.decision_function(X), log=False)

    @available_if(has_probabilities)
    def predict_log_proba(self, X: Any) -> Array:
        """Predict log-probabilities, accurate also where the probabilities round to 0 or 1."""
        return self._probabilities(self.decision_function(X), log=True)

    def _probabilities(self, z: Array, *, log: bool) -> Array:
        """Return the probabilities of the classes by the scores of the rows, where those are."""
        if z.ndim == 1:
            # the loss is minus the logarithm of the probability; z is the difference of two scores of softmax
            loss, one = get_loss(self.loss), 0.0 * z + 1.0
            loss = Logistic() if loss.multi_output else loss
            log_p = namespace(z).stack([-loss.values(z, y) for y in (-one, one)], axis=1)
            return log_p if log else namespace(z).exp(log_p)
        return self._class_probabilities(z, log=log)

    def _class_probabilities(self, z: Array, *, log: bool) -> Array:
        """Return the probabilities of more than two classes by their scores, or the logarithms."""
        xp = namespace(z)
        z = z - xp.max(z, axis=1, keepdims=True)
        log_p = z - xp.log(xp.sum(xp.exp(z), axis=1, keepdims=True))
        return log_p if log else xp.exp(log_p)


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
