"""Fitted estimators as files: arrays and JSON, no pickle, and a checksum over both.

A file holds the model and its claim: the objective, the lower bound and the cut that proves it, for
`riskmin certify` to check against the data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from sklearn.utils.validation import check_is_fitted

import riskmin
from riskmin.estimators.base import keep_claim, loss_of
from riskmin.estimators.classifier import LinearClassifier
from riskmin.estimators.novelty import NoveltyDetector
from riskmin.estimators.regressor import LinearRegressor
from riskmin.losses import LOSSES, from_spec, get_loss, spec
from riskmin.persist import FileError, load_arrays, save_arrays
from riskmin.regularizers import (
    REGULARIZERS,
    Box,
    Quadratic,
    get_regularizer,
    regularizer_from_spec,
    regularizer_spec,
)
from riskmin.solvers import SOLVERS
from riskmin.types import Cut, NDArray, Result, Status

FORMAT = 2
"""The version of the file's layout: raised when a file could not be read as before.

Files of format 1 know of no regularizer but L2.
"""

CLAIM = ("objective", "lower_bound", "value", "b", "status", "n_rows", "weighted", "solver", "last")
"""What a file claims beside its parameters. Nothing else may stand there: `certify` would not check it."""

ESTIMATORS: dict[str, Any] = {c.__name__: c for c in (LinearClassifier, LinearRegressor, NoveltyDetector)}

_HERE_ONLY = {"loss", "regularizer", "solver", "class_weight", "callback", "checkpoint"}
"""Parameters that are written in a form of their own, or belong to one machine and are not written."""


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file, whole or not at all.

    `callback`, `checkpoint` and a solver that is not riskmin's belong to this process: they are not
    written, and are None in the loaded estimator.

    Parameters
    ----------
    model : LinearClassifier, LinearRegressor or NoveltyDetector
        Fitted, with a loss of riskmin's: code is not written to files.
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
        inside = hasattr(model, "best_estimator_")
        remedy = "save its best_estimator_" if inside else f"only {', '.join(ESTIMATORS)} can"
        raise ValueError(f"{type(model).__name__} cannot be saved: {remedy}")
    check_is_fitted(model)
    arrays = {"coef": np.ravel(model.coef_), "cut": np.asarray(model.result_.cut.a)}
    meta = {
        "kind": "model",
        "format": FORMAT,
        "version": riskmin.__version__,
        "estimator": type(model).__name__,
        "params": _params(model),
        "fitted": _fitted(model),
        "claim": _claim(model),
    }
    try:
        meta = json.loads(json.dumps(meta))  # as it will be read
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
    LinearClassifier, LinearRegressor or NoveltyDetector
        It predicts as the saved one did, has its claim, and can be fitted again. Its ``result_`` has the
        last row of the trace.

    Raises
    ------
    FileError
        If the file is no model, is truncated or damaged, or comes from a newer riskmin.

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
    if not isinstance(version, int):
        raise FileError(f"{path} is not a sound riskmin model: its format is {version!r}")
    if version > FORMAT:
        raise FileError(
            f"{path} was written by riskmin {meta.get('version')} in format {version}, which is newer than "
            f"{FORMAT}: upgrade riskmin"
        )
    if meta.pop("sha256", None) != checksum(arrays, meta):
        raise FileError(f"{path} is damaged: its checksum does not match its content")
    if meta.get("estimator") not in ESTIMATORS:
        raise FileError(f"{path} holds an unknown kind of model, {meta.get('estimator')!r}: upgrade riskmin")
    try:
        return _model(arrays, meta)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{path} is not a sound riskmin model: {said}") from None


def checksum(arrays: dict[str, NDArray], meta: dict[str, Any]) -> str:
    """SHA-256 of the metadata and of every array."""
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


# ---------------------------------------------------------------- to plain data
def _params(model: Any) -> dict[str, Any]:
    given = model.get_params(deep=False)
    loss = loss_of(model)
    if type(loss) not in {type(known) for known in LOSSES.values()}:
        raise ValueError(
            f"{type(loss).__name__} is a loss of your own, and code is not written to files: "
            "keep coef_ and intercept_ yourself, or pickle the model"
        )
    return {
        "plain": {k: _scalar(v) for k, v in given.items() if k not in _HERE_ONLY},
        "loss": spec(loss) | {"given": given["loss"] if isinstance(given.get("loss"), str) else None},
        "regularizer": _regularizer(given["regularizer"]),
        "solver": _solver(given["solver"]),
        "class_weight": _class_weight(given.get("class_weight")),
    }


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _regularizer(given: Any) -> dict[str, Any]:
    reg = get_regularizer(given)
    if type(reg) not in {Box, *(type(known) for known in REGULARIZERS.values())}:
        holds = "holds a matrix" if isinstance(reg, Quadratic) else "is a regularizer of your own"
        raise ValueError(
            f"{type(reg).__name__} {holds}, which is not written to model files: "
            "keep coef_ and intercept_ yourself, or pickle the model"
        )
    return regularizer_spec(reg) | {"given": given if isinstance(given, str) else None}


def _solver(solver: Any) -> Any:
    """A name, or the class and the parameters of one of riskmin's; None for others."""
    if type(solver) in {type(known) for known in SOLVERS.values()}:
        return {"name": type(solver).__name__, "params": dataclasses.asdict(solver)}
    return solver if isinstance(solver, str) else None


def _class_weight(given: Any) -> Any:
    """Pairs, since the keys of JSON are strings."""
    return [[_scalar(k), _scalar(v)] for k, v in given.items()] if isinstance(given, dict) else given


def _fitted(model: Any) -> dict[str, Any]:
    fitted: dict[str, Any] = {"n_features": int(model.n_features_in_)}
    if hasattr(model, "feature_names_in_"):  # scikit-learn sets it where X has names
        fitted["feature_names"] = list(model.feature_names_in_)
    if model.task == "novelty":
        return fitted | {"offset": model.offset_}
    fitted["intercept"] = float(np.ravel(model.intercept_)[0])
    if model.task == "classification":
        fitted["classes"] = {"values": model.classes_.tolist(), "dtype": model.classes_.dtype.str}
    return fitted


def _claim(model: Any) -> dict[str, Any]:
    result = model.result_
    return {
        "objective": model.objective_,
        "lower_bound": model.lower_bound_,
        "value": result.value,
        "b": result.cut.b,
        "status": result.status,
        "n_rows": model.n_samples_fit_,
        "weighted": model.weighted_,
        "solver": result.solver,
        "last": {k: _scalar(v) for k, v in result.trace[-1].items()},
    }


# ---------------------------------------------------------------- and back
def _model(arrays: dict[str, NDArray], meta: dict[str, Any]) -> Any:
    kind, fitted, claim = ESTIMATORS[meta["estimator"]], meta["fitted"], meta["claim"]
    model = kind(**_parameters(kind, meta["params"]))
    p = int(fitted["n_features"])
    w, a = (_vector(arrays, name, p) for name in ("coef", "cut"))
    if strange := sorted(set(claim) - set(CLAIM)):
        raise ValueError(f"it claims {strange[0]}, which models do not")
    if claim["status"] not in get_args(Status):
        raise ValueError(f"its status is {claim['status']!r}")
    cut = Cut(a, _finite(claim, "b"))
    value, lower = _finite(claim, "value"), _finite(claim, "lower_bound")
    result = Result(w, value, lower, cut, claim["status"], [dict(claim["last"])], str(claim["solver"]))
    keep_claim(
        model,
        result,
        _finite(claim, "objective"),
        n_rows=int(claim["n_rows"]),
        weighted=bool(claim["weighted"]),
    )
    _put_back[model.task](model, w, fitted)
    model.n_features_in_ = p
    if "feature_names" in fitted:
        model.feature_names_in_ = np.array(fitted["feature_names"], dtype=object)
        if model.feature_names_in_.shape != (p,):
            raise ValueError(f"it names {len(fitted['feature_names'])} features, but has {p}")
    return model


def _parameters(kind: Any, written: dict[str, Any]) -> dict[str, Any]:
    params = dict(written["plain"])
    solver = written["solver"]
    if isinstance(solver, dict):
        known = {type(s).__name__: type(s) for s in SOLVERS.values()}
        solver = known[solver["name"]](**solver["params"])
    params["solver"] = solver
    if "regularizer" in written:
        params["regularizer"] = _as_given(
            regularizer_from_spec(written["regularizer"]), written["regularizer"]["given"], get_regularizer
        )
    if kind is not NoveltyDetector:
        params["loss"] = _as_given(from_spec(written["loss"]), written["loss"]["given"], get_loss)
    if kind is LinearClassifier:
        pairs = written["class_weight"]
        params["class_weight"] = dict(pairs) if isinstance(pairs, list) else pairs
    return params


def _as_given(thing: Any, given: str | None, named: Callable[[Any], Any]) -> Any:
    """The name that the user gave, where it still stands for the thing."""
    return given if given is not None and named(given) == thing else thing


def _put_back_classifier(model: Any, w: NDArray, fitted: dict[str, Any]) -> None:
    loss_of(model)
    model.coef_, model.intercept_ = w[None, :], np.array([_finite(fitted, "intercept")])
    dtype = np.dtype(fitted["classes"]["dtype"])
    model.classes_ = np.array(fitted["classes"]["values"], dtype=dtype)
    if model.classes_.shape != (2,):
        raise ValueError(f"it has {model.classes_.size} classes, not 2")


def _put_back_regressor(model: Any, w: NDArray, fitted: dict[str, Any]) -> None:
    loss_of(model)
    model.coef_, model.intercept_ = w, _finite(fitted, "intercept")


def _put_back_detector(model: Any, w: NDArray, fitted: dict[str, Any]) -> None:
    model.coef_, model.offset_ = w, _finite(fitted, "offset")


_put_back: dict[str, Callable[[Any, NDArray, dict[str, Any]], None]] = {
    "classification": _put_back_classifier,
    "regression": _put_back_regressor,
    "novelty": _put_back_detector,
}


def _vector(arrays: dict[str, NDArray], name: str, p: int) -> NDArray:
    array = arrays[name]
    if array.shape != (p,) or array.dtype != np.float64:
        raise ValueError(f"{name} is {array.dtype}{array.shape}, not float64({p},)")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return array


def _finite(record: dict[str, Any], name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ValueError(f"{name} is {value!r}, not a finite number")
    return float(value)
