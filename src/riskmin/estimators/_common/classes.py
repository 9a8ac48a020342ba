"""Code shared by classifiers: labels encoded for the loss, class weights, predictions from scores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, count_by_index, in_float64, namespace, to_numpy
from riskmin.core import Array, NDArray
from riskmin.core.messages import format_label
from riskmin.estimators._common.base import RiskArguments
from riskmin.estimators._common.fit import loss_for_classes, supports_multiclass
from riskmin.estimators._common.input import EncodedLabels
from riskmin.estimators._common.offset import OffsetScoreMixin
from riskmin.estimators._common.outputs import unpack_weights
from riskmin.estimators.gpu_rows import on_host
from riskmin.estimators.scikit_learn import ClassifierMixin, available_if, check_classification_targets
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

    def _encode_labels(self, y: Any, weight: NDArray | None, loss: Any) -> EncodedLabels:
        classes = unique_two_classes(y, weight)
        codes = codes_of(classes, y)
        if self.class_weight is not None:
            weight = apply_class_weight(self.class_weight, classes, codes, weight)
        return EncodedLabels(2 * in_float64(codes) - 1, weight, classes, loss)

    def _decision_intercept(self, scores: Callable[[], NDArray], b: float, rows: EncodedLabels) -> NDArray:
        """Return the intercept of the decision function: b less the cutoff at which the metric is best."""
        self.threshold_, (y, weight, _, loss) = 0.0, rows[:4]
        # losses of metrics such as F-beta choose the threshold on the training scores, after the fit
        if self.fit_intercept and loss.has_cutoff:
            c = np.full(len(y), 1 / len(y)) if weight is None else on_host(weight)
            self.threshold_ = loss.cutoff(scores() + b, on_host(y), c)
        return np.array([b - self.threshold_])

    def _risk_intercept(self) -> float:
        return float(on_host(self.intercept_)[0]) + self.threshold_

    def _targets(self, y: Any, n_rows: int, weight: NDArray | None) -> tuple[NDArray, NDArray | None]:
        codes, weight = class_codes(self, y, weight)
        return codes if self._fitted_loss().multi_output else 2 * codes - 1, weight

    def _thresholds(self, at: RiskArguments) -> tuple[NDArray, NDArray]:
        loss, expected = get_loss(self.loss), 0.0
        if self.fit_intercept and loss.has_cutoff:
            expected = loss.cutoff(*at)
        return np.array([self.threshold_]), np.array([expected])

    def predict(self, X: Any) -> Array:
        """Predict the class of every row: that of the largest score if there are more than two."""
        return self._labels_of_scores(self.decision_function(X))

    def _labels_of_scores(self, z: Array) -> Array:
        """Return the class of each row of scores; numbers are where the scores are, text in this process."""
        if self.classes_.dtype.kind not in "biuf":
            z = on_host(z)
        xp = namespace(z)
        classes = self.classes_ if xp is np else as_array_like(self.classes_.astype(np.float64), z)
        labels: Array = classes[xp.astype(z > 0, xp.int64) if z.ndim == 1 else xp.argmax(z, axis=1)]
        return labels

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

    def _encode_labels(self, y: Any, weight: NDArray | None, loss: Any) -> EncodedLabels:
        classes = unique_classes(y, weight)
        loss = loss_for_classes(loss, len(classes))
        codes = codes_of(classes, y)
        if self.class_weight is not None:
            weight = apply_class_weight(self.class_weight, classes, codes, weight)
        # multi-output losses take codes 0 to k - 1, binary losses take -1 and +1
        labels = in_float64(codes)
        return EncodedLabels(labels if loss.multi_output else 2 * labels - 1, weight, classes, loss)

    def _set_multi_output(self, w: NDArray, classes: NDArray, *, intercepts: bool) -> None:
        """Set the fitted attributes from the weight vector of a multi-output loss."""
        coef, b = unpack_weights(w, len(classes), intercepts=intercepts)
        if len(classes) == 2:  # as in scikit-learn: the score of the second class less that of the first
            coef, b = coef[1:] - coef[:1], b[1:] - b[:1]
        self.classes_, self.coef_, self.intercept_, self.threshold_ = classes, coef, b, 0.0


def codes_of(classes: NDArray, y: Array) -> Array:
    """Return the index of each label among the sorted classes, where the labels are.

    Rows of weight zero may have other labels: any code will do, since it has no effect.
    """
    xp = namespace(y)
    if len(classes) == 2:
        return xp.astype(y == classes[1].item() if xp is not np else y == classes[1], xp.int64)
    here = classes if xp is np else as_array_like(classes, y)
    return xp.clip(xp.searchsorted(here, y), 0, len(classes) - 1)


def _distinct(y: Array) -> NDArray:
    """Return the sorted different labels, in this process.

    Two different numbers are the least and the largest, which takes no sort.
    """
    if namespace(y).isdtype(y.dtype, "numeric"):
        ends = [a.item() for a in (y.min(), y.max())]
        if bool(((y == ends[0]) | (y == ends[1])).all()):
            return np.unique(np.asarray(ends, dtype=to_numpy(y[:0]).dtype))
    distinct: NDArray = np.unique(y) if namespace(y) is np else to_numpy(namespace(y).unique_values(y))
    return distinct


def unique_classes(y: Array, weight: Array | None) -> NDArray:
    """Return the sorted classes of the rows of positive weight; raise if there are fewer than two."""
    # np.unique of labels that cannot be compared raises a TypeError without the cause
    if y.dtype == object:
        _check_sortable(y)
    classes = _distinct(y)
    # few different integers are classes for certain; scikit-learn would count them once more
    if classes.dtype.kind not in "biu" or 2 * len(classes) >= len(y):
        check_classification_targets(y if namespace(y) is np else classes)
    if weight is not None:
        classes = _distinct(y[weight > 0])
    if len(classes) < 2:
        content = f"only one class, {classes.tolist()[0]!r}" if len(classes) else "no class"
        among = "" if weight is None else ", in the rows whose weight is not zero"
        raise ValueError(f"y holds {content}{among}, but two are needed: add rows of another")
    return classes


def _check_sortable(y: NDArray) -> None:
    """Raise if the labels cannot be sorted, such as a mixture of strings and None."""
    try:
        np.unique(y)
    except TypeError:
        kinds = ", ".join(sorted({type(label).__name__ for label in y}))
        raise ValueError(
            f"y holds labels of several kinds ({kinds}): make all of them strings, or all numbers, "
            "and drop the rows that have none"
        ) from None


def unique_two_classes(y: NDArray, weight: NDArray | None) -> NDArray:
    """Return the two classes of the rows of positive weight; raise if there are more."""
    classes = unique_classes(y, weight)
    if len(classes) > 2:
        from sklearn.utils.multiclass import type_of_target

        raise ValueError(
            f"Only binary classification is supported. The type of the target is {type_of_target(classes)}: "
            "wrap the model in sklearn.multiclass.OneVsRestClassifier"
        )
    return classes


def class_codes(model: Any, y: Any, weight: NDArray | None) -> tuple[NDArray, NDArray | None]:
    """Return the indices of labels among the classes of a fitted model, and weights times class weights."""
    y, classes = np.asarray(y), model.classes_
    if unknown := sorted(set(np.unique(y).tolist()) - set(classes.tolist()), key=str):
        names = [format_label(label) for label in classes.tolist()]
        known = " and ".join(names) if len(names) == 2 else ", ".join(names[:9]) + ", ..." * (len(names) > 9)
        raise ValueError(
            f"the label {format_label(unknown[0])} is none of the model's, {known}: check the data"
        )
    # classes_ is sorted, and holds all labels of y
    codes = np.searchsorted(classes, y)
    if model.class_weight is not None:
        weight = apply_class_weight(model.class_weight, classes, codes, weight)
    return codes.astype(np.float64), weight


def apply_class_weight(given: Any, classes: NDArray, codes: Array, weight: Array | None) -> Array:
    """Return the row weights times the weights of their classes, where ``classes[codes]`` are the labels."""
    k = len(classes)
    weight = 0 * in_float64(codes) + 1 if weight is None else weight
    if given == "balanced":
        # factor = total weight / (k * weight of the class): all classes get the same sum
        factors = float(weight.sum()) / (k * to_numpy(count_by_index(codes, weight, k)))
    else:
        from sklearn.utils.class_weight import compute_class_weight

        # a dict needs no counts: each class occurs once in `y=classes`
        factors = compute_class_weight(given, classes=classes, y=classes)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        which = "both" if k == 2 else "all"
        raise ValueError(f"class_weight={given!r} must give {which} classes a finite weight > 0")
    product: Array = weight * as_array_like(factors, weight)[codes]
    return product
