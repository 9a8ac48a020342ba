"""Model files of fitted estimators: arrays and JSON, without pickle, and a checksum of both.

A file holds the model and its certificate: the objective, the lower bound and the cut that proves it, which
`riskmin certify` checks against the data.
"""

from __future__ import annotations

import json
import os
from typing import Any, get_args

import numpy as np
from sklearn.utils.validation import check_is_fitted

import riskmin
from riskmin.core import Criterion, Cut, NDArray, Result, Status
from riskmin.core.persist import FileError, checksum, load_arrays, save_arrays
from riskmin.estimators._common.fit import resolve_loss, store_certificate
from riskmin.estimators.classifier import LinearClassifier
from riskmin.estimators.hierarchy import HierarchicalClassifier
from riskmin.estimators.kernel import KernelClassifier, KernelRegressor
from riskmin.estimators.novelty import NoveltyDetector
from riskmin.estimators.ordinal import OrdinalClassifier
from riskmin.estimators.persistence.hierarchy_files import restore_tree, tree_metadata, tree_weights_size
from riskmin.estimators.persistence.multi_output_files import (
    is_multi_output_model,
    multi_output_metadata,
    multi_output_weights_size,
    restore_multi_output,
)
from riskmin.estimators.persistence.plain import params_from_dict, params_to_dict, to_python_number
from riskmin.estimators.persistence.plain_checks import (
    check_loaded_model,
    read_classes,
    read_count,
    read_feature_names,
    read_flag,
    read_trace_row,
)
from riskmin.estimators.persistence.support_vectors import resolved_gamma, restore_support, support_arrays
from riskmin.estimators.persistence.tagger_files import (
    restore_tagger,
    tagger_arrays,
    tagger_metadata,
    tagger_weights_size,
)
from riskmin.estimators.ranker import LinearRanker
from riskmin.estimators.regressor import LinearRegressor
from riskmin.estimators.tagger.tagger import ChainTagger

MODEL_FORMAT = 4
"""Version of the file layout, raised by incompatible changes.

Format 1 supports only the regularizer L2, format 2 only one score per row, and format 3 neither standardized
columns nor absolute tolerances.
"""

CLAIM_KEYS = (
    "objective",
    "lower_bound",
    "value",
    "b",
    "status",
    "criterion",
    "n_rows",
    "weighted",
    "solver",
    "last",
)
"""Keys of the certificate. Others are rejected, since `certify` would not check them."""

KERNEL_MACHINES = (KernelClassifier, KernelRegressor)

LINEAR_MODELS = (LinearClassifier, LinearRegressor, NoveltyDetector, OrdinalClassifier, LinearRanker)

CHAIN_MODELS = (ChainTagger,)

TREE_MODELS = (HierarchicalClassifier,)

ESTIMATORS: dict[str, Any] = {
    kind.__name__: kind for kind in (*LINEAR_MODELS, *TREE_MODELS, *CHAIN_MODELS, *KERNEL_MACHINES)
}


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file atomically.

    `callback`, `checkpoint` and user-defined solvers belong to this process: they are not written, and are
    None in the loaded estimator.

    Parameters
    ----------
    model : LinearClassifier, LinearRegressor, OrdinalClassifier, LinearRanker, NoveltyDetector, \
            HierarchicalClassifier, ChainTagger, KernelClassifier or KernelRegressor
        Fitted, with a loss of riskmin and a kernel given by name or by a class of riskmin: code is not
        written to files. The file of a kernel machine holds the support vectors, which are rows of the data.
    path : path
        An existing file is replaced.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin.estimators import LinearRegressor, load_model, save_model
    >>> X, y = load_diabetes(return_X_y=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model.safetensors"
    ...     save_model(LinearRegressor("huber:delta=50").fit(X, y), path)
    ...     model = load_model(path)
    >>> model.loss, model.gap_ <= model.tol * model.objective_
    ('huber:delta=50', True)
    """
    if type(model) not in ESTIMATORS.values():
        # the certificate of a search is that of its final fit
        is_search = hasattr(model, "best_estimator_")
        remedy = "save its best_estimator_" if is_search else f"only {', '.join(ESTIMATORS)} can"
        raise ValueError(f"{type(model).__name__} cannot be saved: {remedy}")
    check_is_fitted(model)
    is_kernel = type(model) in KERNEL_MACHINES
    # of these models `coef_` does not determine w
    stores_w = is_kernel or type(model) in (*CHAIN_MODELS, *TREE_MODELS) or is_multi_output_model(model)
    arrays = {
        "coef": np.asarray(model.result_.w) if stores_w else np.ravel(model.coef_),
        "cut": np.asarray(model.result_.cut.a),
        **(support_arrays(model) if is_kernel else {}),
        **({} if getattr(model, "scale_", None) is None else {"scale": model.scale_}),
        **(tagger_arrays(model) if type(model) in CHAIN_MODELS else {}),
    }
    meta = {
        "kind": "model",
        "format": MODEL_FORMAT,
        "version": riskmin.__version__,
        "estimator": type(model).__name__,
        "params": params_to_dict(model),
        "fitted": _fitted_record(model),
        "claim": _claim_record(model),
    }
    try:
        meta = json.loads(json.dumps(meta))  # as it will be read: the checksum is over this form
    except TypeError as error:
        raise ValueError(f"{type(model).__name__} has a parameter that is not plain data: {error}") from None
    save_arrays(path, arrays, meta | {"sha256": checksum(arrays, meta)})


def load_model(path: str | os.PathLike[str]) -> Any:
    """Read an estimator that `save_model` wrote.

    Parameters
    ----------
    path : path

    Returns
    -------
    LinearClassifier, LinearRegressor, OrdinalClassifier, LinearRanker, NoveltyDetector, \
            HierarchicalClassifier, ChainTagger, KernelClassifier or KernelRegressor
        It predicts as the saved one did, has its certificate, and can be fitted again. Its ``result_`` has
        the last row of the trace.

    Raises
    ------
    FileError
        If the file is not a model, is truncated or damaged, or was written by a newer riskmin.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import LinearRegressor, load_model, save_model
    >>> X, y = load_diabetes(return_X_y=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(LinearRegressor().fit(X, y), f"{folder}/model.rsk")
    ...     model = load_model(f"{folder}/model.rsk")
    >>> model.gap_ <= model.tol * model.objective_
    True
    """
    arrays, meta = load_arrays(path, "model")
    version = meta.get("format")
    if type(version) is not int:
        raise FileError(f"{path} is not a sound riskmin model: its format is {version!r}")
    if version > MODEL_FORMAT:
        raise FileError(
            f"{path} was written by riskmin {meta.get('version')} in format {version}, which is newer than "
            f"{MODEL_FORMAT}: upgrade riskmin"
        )
    # after the format, so that a file of a newer version is not reported as damaged
    if meta.pop("sha256", None) != checksum(arrays, meta):
        raise FileError(f"{path} is damaged: its checksum does not match its content")
    if not isinstance(meta.get("estimator"), str) or meta["estimator"] not in ESTIMATORS:
        raise FileError(f"{path} holds an unknown kind of model, {meta.get('estimator')!r}: upgrade riskmin")
    try:
        return _read_model(arrays, meta)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{path} is not a sound riskmin model: {reason}") from None


# ---------------------------------------------------------------- write
def _fitted_record(model: Any) -> dict[str, Any]:
    fitted: dict[str, Any] = {"n_features": int(model.n_features_in_)}
    if hasattr(model, "feature_names_in_"):  # scikit-learn sets it where X has names
        fitted["feature_names"] = list(model.feature_names_in_)
    if model.task == "novelty":
        return fitted | {"offset": model.offset_}
    if type(model) in CHAIN_MODELS:
        return fitted | tagger_metadata(model)
    if type(model) in TREE_MODELS:
        return fitted | tree_metadata(model)
    if is_multi_output_model(model):
        return fitted | multi_output_metadata(model)
    fitted["intercept"] = float(np.ravel(model.intercept_)[0])
    if hasattr(model, "classes_"):
        fitted["classes"] = {"values": model.classes_.tolist(), "dtype": model.classes_.dtype.str}
    if model.task == "classification":
        fitted["threshold"] = model.threshold_
    if model.task == "ordinal":
        fitted["thresholds"] = model.thresholds_.tolist()
    if model.task == "ranking":
        fitted["n_queries"] = model.n_queries_
    if type(model) in KERNEL_MACHINES:
        fitted["gamma"] = resolved_gamma(model)
    return fitted


def _claim_record(model: Any) -> dict[str, Any]:
    result = model.result_
    return {
        "objective": model.objective_,
        "lower_bound": model.lower_bound_,
        "value": result.value,
        "b": result.cut.b,
        "status": result.status,
        "criterion": result.criterion,
        "n_rows": model.n_samples_fit_,
        "weighted": model.weighted_,
        "solver": result.solver,
        "last": {k: to_python_number(v) for k, v in result.trace[-1].items()},
    }


# ---------------------------------------------------------------- read
def _read_model(arrays: dict[str, NDArray], meta: dict[str, Any]) -> Any:
    kind, fitted, claim = ESTIMATORS[meta["estimator"]], meta["fitted"], meta["claim"]
    model = kind(**params_from_dict(kind, meta["params"]))
    check_loaded_model(model)
    p, n_rows = read_count(fitted, "n_features"), read_count(claim, "n_rows")
    # the length of w: (K beta, beta) for kernel machines, one weight per feature for linear models
    size = 2 * n_rows if kind in KERNEL_MACHINES else p
    size = (
        tagger_weights_size(fitted)
        if kind in CHAIN_MODELS
        else tree_weights_size(fitted)
        if kind in TREE_MODELS
        else size
    )
    size = multi_output_weights_size(fitted) if "outputs" in fitted else size
    w, a = (_read_vector(arrays, name, size) for name in ("coef", "cut"))
    if unknown := sorted(set(claim) - set(CLAIM_KEYS)):
        raise ValueError(f"it claims {unknown[0]}, which models do not")
    store_certificate(
        model,
        _read_result(w, a, claim),
        _read_finite(claim, "objective"),
        n_rows=n_rows,
        weighted=read_flag(claim, "weighted"),
    )
    if model.can_standardize:
        model.scale_ = _read_scale(arrays, p)
    _restore(model, w, fitted, arrays)
    model.n_features_in_ = p
    if "feature_names" in fitted:
        model.feature_names_in_ = read_feature_names(fitted["feature_names"], p)
    return model


def _read_result(w: NDArray, a: NDArray, claim: dict[str, Any]) -> Result:
    status = claim["status"]
    met = claim.get("criterion", "tol" if status == "converged" else "")  # absent in older formats
    if status not in get_args(Status):
        raise ValueError(f"its status is {status!r}")
    if met not in get_args(Criterion) or (status == "converged" and not met):
        raise ValueError(f"its status is {status!r}, but the tolerance that it met is {met!r}")
    cut, last = Cut(a, _read_finite(claim, "b")), [read_trace_row(claim["last"])]
    value, lower = _read_finite(claim, "value"), _read_finite(claim, "lower_bound")
    return Result(w, value, lower, cut, status, last, str(claim["solver"]), met)


def _read_scale(arrays: dict[str, NDArray], p: int) -> NDArray | None:
    """Return the standard deviations of a model fitted to standardized columns; None for others."""
    if "scale" not in arrays:
        return None
    scale = _read_vector(arrays, "scale", p)
    if not (scale > 0).all():
        raise ValueError("scale holds numbers that are not > 0")
    return scale


def _restore(model: Any, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
    """Set the fitted attributes that predictions need."""
    if model.task == "novelty":
        model.coef_, model.offset_ = w, _read_finite(fitted, "offset")
        return
    resolve_loss(model)  # raises if the loss is not for this task
    if type(model) in CHAIN_MODELS:
        restore_tagger(model, w, fitted, arrays)
        return
    if type(model) in TREE_MODELS:
        restore_tree(model, w, fitted)
        return
    if "outputs" in fitted:
        restore_multi_output(model, w, fitted)
        return
    # single-output models
    name, coef, b = "coef_", w, _read_finite(fitted, "intercept")
    if type(model) in KERNEL_MACHINES:
        gamma = None if fitted["gamma"] is None else _read_finite(fitted, "gamma")
        name, coef = "dual_coef_", restore_support(model, w, int(fitted["n_features"]), arrays, gamma)
    setattr(model, name, coef[None, :] if model.task == "classification" else coef)
    model.intercept_ = np.array([b]) if model.task == "classification" else b
    if model.task == "classification":
        model.classes_ = _read_n_classes(fitted, 2)
        model.threshold_ = _read_finite({"threshold": 0.0} | fitted, "threshold")  # absent in older formats
    if model.task == "ordinal":
        model.thresholds_ = np.array(
            [_read_finite({"threshold": t}, "threshold") for t in fitted["thresholds"]]
        )
        model.classes_ = _read_n_classes(fitted, len(model.thresholds_) + 1, in_order=False)
        if np.any(np.diff(model.thresholds_) < 0):
            raise ValueError("its thresholds decrease")
    if model.task == "ranking":
        model.n_queries_ = read_count(fitted, "n_queries")


def _read_n_classes(fitted: dict[str, Any], n_classes: int, *, in_order: bool = True) -> NDArray:
    classes = read_classes(fitted["classes"], in_order=in_order)
    if classes.shape != (n_classes,):
        raise ValueError(f"it has {classes.size} classes, not {n_classes}")
    return classes


def _read_vector(arrays: dict[str, NDArray], name: str, p: int) -> NDArray:
    array = arrays[name]
    if array.shape != (p,) or array.dtype != np.float64:
        raise ValueError(f"{name} is {array.dtype}{array.shape}, not float64({p},)")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return array


def _read_finite(record: dict[str, Any], name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ValueError(f"{name} is {value!r}, not a finite number")
    return float(value)
