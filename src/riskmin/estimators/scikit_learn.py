"""The base classes and checks that the estimators take from scikit-learn, and stand-ins for them.

Importing scikit-learn takes longer than a small fit, since it imports scipy.stats and pandas. The estimators
derive from its classes, except in a process of the command that has not imported it: there nothing but the
parameters and the fit is used of them. Whatever a stand-in does not cover is left to scikit-learn itself.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any

import numpy as np

from riskmin import estimators
from riskmin.arrays.sparse_checks import is_sparse

IS_REPLACED = estimators.stand_in and "sklearn" not in sys.modules
"""Whether the estimators of this process derive from stand-ins."""


class StandInBase:
    """`BaseEstimator`: the parameters are those of the constructor."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> StandInBase:
        """Set parameters by name."""
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator

        return BaseEstimator.__sklearn_tags__(self)


class StandInClassifier:
    """`ClassifierMixin`."""

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.target_tags.required = True
        return tags


class StandInRegressor:
    """`RegressorMixin`."""

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.target_tags.required = True
        return tags


class StandInOutlierDetector:
    """`OutlierMixin`."""


BaseEstimator: Any
ClassifierMixin: Any
RegressorMixin: Any
OutlierMixin: Any
if IS_REPLACED:
    BaseEstimator, ClassifierMixin = StandInBase, StandInClassifier
    RegressorMixin, OutlierMixin = StandInRegressor, StandInOutlierDetector
else:
    import sklearn.base

    BaseEstimator, ClassifierMixin = sklearn.base.BaseEstimator, sklearn.base.ClassifierMixin
    RegressorMixin, OutlierMixin = sklearn.base.RegressorMixin, sklearn.base.OutlierMixin


# ---------------------------------------------------------------- checks
def validate_data(model: Any, X: Any, y: Any = "no_validation", *, reset: bool = True, **options: Any) -> Any:
    """Validate X, or X and y; set or compare the number of columns and their names.

    The readers of the command return arrays of floats, which need no conversion.
    """
    if IS_REPLACED and _needs_no_conversion(X, y, options) and (reset or X.shape[1] == model.n_features_in_):
        if reset:
            model.n_features_in_ = X.shape[1]
        return X if isinstance(y, str) else (X, y)
    from sklearn.utils.validation import validate_data as validate

    return validate(model, X, y, reset=reset, **options)


def _needs_no_conversion(X: Any, y: Any, options: dict[str, Any]) -> bool:
    """Whether X is a matrix of floats in a format that `options` accept, and y a vector of finite labels."""
    if is_sparse(X):
        accepted = X.ndim == 2 and X.format in (options.get("accept_sparse") or ())
    else:
        accepted = type(X) is np.ndarray and X.ndim == 2 and options.get("order") is None
    if not accepted or X.dtype not in (np.float64, np.float32) or options.get("dtype") == np.float64:
        return False
    if min(X.shape) < 1 or X.shape[0] < options.get("ensure_min_samples", 1):
        return False
    if isinstance(y, str):
        return True
    is_vector = type(y) is np.ndarray and y.shape == X.shape[:1]
    return is_vector and (y.dtype.kind in "biuU" or (y.dtype.kind == "f" and bool(np.isfinite(y).all())))


def check_is_fitted(model: Any) -> None:
    """Raise `NotFittedError` unless the model has attributes that end with an underscore."""
    if not (IS_REPLACED and any(name.endswith("_") and name[:2] != "__" for name in vars(model))):
        from sklearn.utils.validation import check_is_fitted as check

        check(model)


def check_classification_targets(y: Any) -> None:
    """Raise if the labels are not classes, such as fractions."""
    if IS_REPLACED and (y.dtype.kind in "biuU" or (y.dtype.kind == "f" and bool((y == np.round(y)).all()))):
        return
    from sklearn.utils.multiclass import check_classification_targets as check

    check(y)


def convergence_warning() -> type[Warning]:
    """Return scikit-learn's `ConvergenceWarning`; the command, which prints its own message, needs none."""
    if IS_REPLACED:
        return UserWarning
    from sklearn.exceptions import ConvergenceWarning

    kind: type[Warning] = ConvergenceWarning
    return kind


# ---------------------------------------------------------------- methods on condition
class ConditionalMethod:
    """A method that an instance has only if a check of it does not raise an error."""

    def __init__(self, function: Callable[..., Any], check: Callable[[Any], Any]) -> None:
        self.function, self.check = function, check
        self.__doc__ = function.__doc__

    def __get__(self, model: Any, owner: Any = None) -> Any:
        if model is not None:
            self._check_available(model)
            return MethodType(self.function, model)

        @wraps(self.function)
        def method(model: Any, *args: Any, **kwargs: Any) -> Any:
            self._check_available(model)
            return self.function(model, *args, **kwargs)

        return method

    def _check_available(self, model: Any) -> None:
        """Raise AttributeError in scikit-learn's words, followed by those of the failed check."""
        try:
            self.check(model)
        except Exception as error:
            name = f"{type(model).__name__!r} has no attribute {self.function.__name__!r}"
            raise AttributeError(f"This {name}: {error}") from error


def available_if(check: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make a method available if ``check(model)`` does not raise an error."""
    return lambda function: ConditionalMethod(function, check)


def routing_enabled() -> bool:
    """Whether scikit-learn routes metadata; not in a process that has not imported it."""
    sklearn = sys.modules.get("sklearn")
    return sklearn is not None and bool(sklearn.get_config()["enable_metadata_routing"])
