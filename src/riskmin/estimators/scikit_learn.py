"""The base classes and checks that the estimators take from scikit-learn, and stand-ins for them.

Importing scikit-learn takes longer than a small fit, since it imports scipy.stats and pandas. The estimators
derive from its classes, except in a process of the command that has not imported it: there nothing but the
parameters and the fit is used of them. Whatever a stand-in does not cover is left to scikit-learn itself.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any

import numpy as np

from riskmin import estimators
from riskmin.arrays.namespace import is_sparse
from riskmin.report.progress import share_done

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

    def __repr__(self) -> str:
        """Return the parameters that differ from their defaults, in the order of their names."""
        defaults = inspect.signature(type(self)).parameters
        given = {
            k: repr(v) for k, v in sorted(self.get_params().items()) if repr(v) != repr(defaults[k].default)
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in given.items())})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator

        return BaseEstimator.__sklearn_tags__(self)


class StandInClassifier:
    """`ClassifierMixin`."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy."""
        from sklearn.base import ClassifierMixin

        return float(ClassifierMixin.score(self, X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.target_tags.required = True
        return tags


class StandInRegressor:
    """`RegressorMixin`."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2."""
        from sklearn.base import RegressorMixin

        return float(RegressorMixin.score(self, X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.target_tags.required = True
        return tags


class StandInOutlierDetector:
    """`OutlierMixin`."""


class StandInCallbackSupport:
    """`CallbackSupportMixin`, which scikit-learn has from version 1.9 on: no callbacks can be set."""


BaseEstimator: Any
ClassifierMixin: Any
RegressorMixin: Any
OutlierMixin: Any
CallbackSupportMixin: Any = StandInCallbackSupport
if IS_REPLACED:
    BaseEstimator, ClassifierMixin = StandInBase, StandInClassifier
    RegressorMixin, OutlierMixin = StandInRegressor, StandInOutlierDetector
else:
    import sklearn.base

    BaseEstimator, ClassifierMixin = sklearn.base.BaseEstimator, sklearn.base.ClassifierMixin
    RegressorMixin, OutlierMixin = sklearn.base.RegressorMixin, sklearn.base.OutlierMixin
    with contextlib.suppress(ImportError):
        import sklearn.callback

        CallbackSupportMixin = sklearn.callback.CallbackSupportMixin


# ---------------------------------------------------------------- checks
def validate_data(model: Any, X: Any, y: Any = "no_validation", *, reset: bool = True, **options: Any) -> Any:
    """Validate X, or X and y; set or compare the number of columns and their names.

    Arrays of floats need no conversion; scikit-learn takes a tenth of a small fit to find that out.
    """
    if _needs_no_conversion(X, y, options) and _has_columns(model, X, reset):
        if reset:
            model.n_features_in_ = X.shape[1]
        return X if isinstance(y, str) else (X, y)
    from sklearn.utils.validation import validate_data as validate

    return validate(model, X, y, reset=reset, **options)


def _has_columns(model: Any, X: Any, reset: bool) -> bool:
    """Whether X without names has the columns of a model that knows no names."""
    fitted = vars(model)
    return "feature_names_in_" not in fitted and (reset or fitted.get("n_features_in_") == X.shape[1])


def _needs_no_conversion(X: Any, y: Any, options: dict[str, Any]) -> bool:
    """Whether X is a matrix of floats in a format that `options` accept, and y a vector of finite labels."""
    if is_sparse(X):
        accepted = X.ndim == 2 and X.format in (options.get("accept_sparse") or ())
    else:
        accepted = type(X) is np.ndarray and X.ndim == 2 and options.get("order") is None
    if not accepted or X.dtype not in (np.float64, np.float32) or options.get("dtype") == np.float64:
        return False
    if options.get("ensure_all_finite", True):
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


# ---------------------------------------------------------------- callbacks
class FitTasks:
    r"""The tasks of a fit that scikit-learn's callbacks are called for, each a hundredth of the way to tol.

    The number of iterations is not known in advance, but the gap is, and it falls geometrically. At a gap g
    the share of the way is

    .. math:: \log(g_0 / g) / \log(g_0 / t), \qquad t = \max(\mathrm{tol}\, J,\ \mathrm{atol}),

    where :math:`g_0` is the first gap and t the gap at which the fit ends. So a progress bar is proportional
    to the number of proved digits. If a fit consists of several problems, each has an equal share of the way.

    Parameters
    ----------
    model : estimator
    context : sklearn.callback.CallbackContext or None
        The task of the whole fit; None without callbacks.
    data : dict
        X, y and metadata of the fit, for the callbacks.
    """

    N_STEPS = 100

    def __init__(self, model: Any = None, context: Any = None, data: dict[str, Any] | None = None) -> None:
        self.model, self.context, self.data = model, context, data or {}
        # the shares of the whole fit at which this problem begins and ends
        self.whole, self.start, self.end = self, 0.0, 1.0
        self.first_gap = math.inf
        self.n_done = 0
        self.step: Any = None
        self.lock = threading.Lock()  # folds run in threads

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy of the estimator, such as one that a callback saves during the fit, reports nothing
        return FitTasks, ()

    def part(self, j: int, k: int) -> FitTasks:
        """Return the tasks of problem j of k."""
        part, length = FitTasks(self.model, self.context, self.data), (self.end - self.start) / k
        part.whole, part.start, part.end = self.whole, self.start + j * length, self.start + (j + 1) * length
        return part

    def callback(self, given: Any, fitted: Callable[[Any], dict[str, Any]] | None = None) -> Any:
        """Return a callback of `minimize` that calls the given one and ends the steps that are done.

        ``fitted(w)`` are the fitted attributes at w, for callbacks that evaluate a fit.
        """
        if self.context is None:
            return given

        def both(iterate: Any, row: dict[str, float]) -> bool:
            stop = given is not None and bool(given(iterate, row))
            # the weights of one of several problems are no model
            at_w = (lambda: fitted(iterate.w)) if fitted is not None and self.whole is self else None
            return self.advance(self._share(row), at_w) or stop

        return both

    def _share(self, row: dict[str, float]) -> float:
        """Return the share of the way to the end of this problem, at most 1."""
        self.first_gap = row["gap"] if math.isinf(self.first_gap) else self.first_gap
        target = max(self.model.tol * abs(row["value"]), self.model.atol or 0.0)
        return share_done(self.first_gap, row["gap"], target)

    def advance(self, share: float, fitted: Callable[[], dict[str, Any]] | None = None) -> bool:
        """End all steps up to this share of this problem; True if a callback asks to stop."""
        whole, stop = self.whole, False
        if self.context is None:
            return stop
        with whole.lock:
            # 1e-9 absorbs the rounding of products
            last = math.floor((self.start + (self.end - self.start) * share) * self.N_STEPS + 1e-9)
            while whole.n_done < min(last, self.N_STEPS):
                # an iterate that ends several steps is evaluated once, for the last of them
                attributes = fitted if whole.n_done == last - 1 else None
                stop |= whole._end_step(attributes)
        return stop

    def _begin_step(self) -> None:
        self.step = self.context.subcontext(task_name="step towards tol")
        self.step.call_on_fit_task_begin(estimator=self.model, **self.data)

    def _end_step(self, fitted: Callable[[], dict[str, Any]] | None) -> bool:
        """End the current step and begin the next; True if a callback asks to stop."""
        self.n_done += 1
        stop: bool = self.step.call_on_fit_task_end(
            estimator=self.model, **self.data, reconstruction_attributes=fitted
        )
        if self.n_done < self.N_STEPS:
            self._begin_step()
        return stop

    def run(self, fit: Callable[[], Any]) -> Any:
        """Call `fit` as the whole task."""
        self.context.call_on_fit_task_begin(estimator=self.model, **self.data)
        self._begin_step()
        result = fit()
        self.advance(1.0)
        self.context.call_on_fit_task_end(estimator=self.model, **self.data, reconstruction_attributes={})
        return result


def with_fit_tasks(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Let scikit-learn's callbacks follow a method that fits: `fit` or `fit_transform`."""

    @wraps(fit)
    def followed(self: Any, X: Any, y: Any = None, *args: Any, **keywords: Any) -> Any:
        # `fit` may call `fit_transform`, which is then followed already
        if not vars(self).get("_skl_callbacks") or "_fit_tasks" in vars(self):
            return fit(self, X, y, *args, **keywords)
        return _fit_with_callbacks(fit, self, X, y, *args, **keywords)

    return followed


def _fit_with_callbacks(fit: Callable[..., Any], model: Any, X: Any, y: Any, *args: Any, **more: Any) -> Any:
    """Call `fit` with the callbacks set up before and torn down after it, also after an error."""
    from sklearn.callback import with_callbacks

    given = inspect.signature(fit).bind(model, X, y, *args, **more).arguments
    metadata = {k: v for k, v in given.items() if k not in ("self", "X", "y") and v is not None}

    def followed(model: Any) -> Any:
        context = model._init_callback_context(max_subtasks=FitTasks.N_STEPS)
        model._fit_tasks = FitTasks(model, context, {"X": X, "y": y, "metadata": metadata or None})
        try:
            return model._fit_tasks.run(lambda: fit(model, X, y, *args, **more))
        finally:
            del model._fit_tasks

    return with_callbacks(followed)(model)
