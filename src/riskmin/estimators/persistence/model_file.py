"""Model files of fitted estimators: arrays and JSON, without pickle, and a checksum of both.

A file holds the model and its certificate: the objective, the lower bound and the cut that proves it, which
`riskmin certify` checks against the data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from importlib import import_module
from typing import Any, get_args

import numpy as np

import riskmin
from riskmin import estimators
from riskmin.core import Criterion, Cut, NDArray, Result, Status
from riskmin.core.messages import printable
from riskmin.core.persist import FileError, checksum, load_arrays, save_arrays
from riskmin.core.registry import UntrustedCodeError
from riskmin.estimators._common.base import CertifiedEstimator
from riskmin.estimators._common.fit import resolve_loss, store_certificate
from riskmin.estimators.persistence.params import check_loaded_model, params_from_dict, params_to_dict
from riskmin.estimators.persistence.pipelines import (
    pipeline_from_array,
    pipeline_to_array,
    split_pipeline,
    with_last_step,
)
from riskmin.estimators.persistence.records import (
    read_count,
    read_feature_names,
    read_finite,
    read_flag,
    read_text,
    read_trace_row,
    read_vector,
    to_python_number,
)
from riskmin.estimators.scikit_learn import check_is_fitted

MODEL_FORMAT = 1
"""Version of the file layout, raised by incompatible changes: files of newer versions are refused."""

CLAIM_KEYS = (
    "objective",
    "lower_bound",
    "b",
    "status",
    "criterion",
    "n_rows",
    "weighted",
    "solver",
    "last",
    "value_error",
)
"""Keys of the certificate. Others are rejected, since `certify` would not check them."""


def _class_name(kind: type) -> str:
    """Return the name of a class in files: the name of an estimator of riskmin, or ``module:Class``."""
    own = estimators.MODULE_OF.get(kind.__name__)
    is_own = own is not None and kind.__module__ == f"riskmin.estimators.{own}"
    return kind.__name__ if is_own else f"{kind.__module__}:{kind.__qualname__}"


def _class_by_name(name: Any) -> type[CertifiedEstimator] | None:
    """Return a class by its name in a file; None if there is none. No module of others is imported."""
    if name in (*estimators.MODULE_OF,):
        import_module(f"riskmin.estimators.{estimators.MODULE_OF[name]}")
    # a class of others is known once its module was imported
    kinds = {_class_name(kind): kind for kind in _subclasses(CertifiedEstimator) if kind.can_be_saved}
    return None if str(name).startswith("riskmin.") else kinds.get(str(name))


def _names() -> str:
    return ", ".join(name for name in estimators.MODULE_OF if _class_by_name(name) is not None)


def _subclasses(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a file atomically.

    `callback`, `checkpoint` and user-defined solvers belong to this process: they are not written, and are
    None in the loaded estimator.

    Parameters
    ----------
    model : CertifiedEstimator, or Pipeline that ends in one
        An estimator of riskmin with a certificate, or a subclass of one, fitted, with a kernel given by name
        or by a class of riskmin: code is not written to files. Of a loss of your own, the file holds the
        module and name of its class and the parameters, which must be fields of a dataclass. The file of a
        kernel machine holds the support vectors, which are rows of the data. The other steps of a pipeline
        are stored by skops, and must be classes of packages.
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
    steps, model, step_name = split_pipeline(model)
    if not isinstance(model, CertifiedEstimator) or not model.can_be_saved:
        # the certificate of a search is that of its final fit
        is_search = "best_estimator_" in vars(model)
        remedy = "save its best_estimator_" if is_search else f"only {_names()} can"
        raise ValueError(f"{type(model).__name__} cannot be saved: {remedy}")
    check_is_fitted(model)
    arrays, fitted = model._state()
    arrays["cut"] = np.asarray(model.result_.cut.a)
    if model.can_standardize and model.scale_ is not None:
        arrays["scale"] = model.scale_
    fitted["n_features"] = int(model.n_features_in_)
    if "feature_names_in_" in vars(model):  # scikit-learn sets it where X has names
        fitted["feature_names"] = list(model.feature_names_in_)
    if model.preparation_ is not None:
        fitted["preparation"] = model.preparation_.to_dict()
    if step_name:
        fitted["step"] = step_name
        if steps is not None:
            arrays["pipeline"] = pipeline_to_array(steps)
    for key, value in (("command", model.command_), ("target", model.target_name_)):
        if value is not None:
            fitted[key] = value
    meta = {
        "kind": "model",
        "format": MODEL_FORMAT,
        "version": riskmin.__version__,
        "estimator": _class_name(type(model)),
        "params": params_to_dict(model),
        "fitted": fitted,
        "claim": _claim_record(model),
    }
    try:
        meta = json.loads(json.dumps(meta))  # as it will be read: the checksum is over this form
    except TypeError as error:
        raise ValueError(f"{type(model).__name__} has a parameter that is not plain data: {error}") from None
    save_arrays(path, arrays, meta | {"sha256": checksum(arrays, meta)})


def load_model(path: str | os.PathLike[str], trust: str | Collection[str] = ()) -> Any:
    """Read an estimator that `save_model` wrote.

    Parameters
    ----------
    path : path
    trust : str or collection of str
        Modules, or packages, that may be imported if the file names a loss or a regularizer in them. None by
        default: then the file of a model with a loss of your own is rejected, unless `register_loss` was
        called for it.

    Returns
    -------
    CertifiedEstimator or Pipeline
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
    kind = _class_by_name(meta.get("estimator"))
    if kind is None:
        name = meta.get("estimator")
        remedy = "import its module first" if ":" in str(name) else "upgrade riskmin"
        raise FileError(f"{path} holds an unknown kind of model, {name!r}: {remedy}")
    try:
        return _read_model(kind, arrays, meta, [trust] if isinstance(trust, str) else trust)
    except UntrustedCodeError as error:
        raise FileError(f"{path} was not loaded: {error}") from None
    except KeyError as error:
        raise FileError(f"{path} is not a sound riskmin model: {error} is missing") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise FileError(f"{path} is not a sound riskmin model: {error}") from None


# ---------------------------------------------------------------- write
def _claim_record(model: Any) -> dict[str, Any]:
    result = model.result_
    return {
        "objective": model.objective_,
        "lower_bound": model.lower_bound_,
        "b": result.cut.b,
        "status": result.status,
        "criterion": result.criterion,
        "n_rows": model.n_samples_fit_,
        "weighted": model.weighted_,
        "solver": result.solver,
        "last": {k: to_python_number(v) for k, v in result.trace[-1].items()},
    } | ({"value_error": result.value_error} if result.value_error else {})


# ---------------------------------------------------------------- read
def _read_model(
    kind: type[CertifiedEstimator], arrays: dict[str, NDArray], meta: dict[str, Any], trust: Collection[str]
) -> Any:
    fitted, claim = meta["fitted"], meta["claim"]
    model: Any = kind(**params_from_dict(kind, meta["params"], trust))
    check_loaded_model(model)
    p, n_rows = read_count(fitted, "n_features"), read_count(claim, "n_rows")
    w, a = read_vector(arrays, "coef"), read_vector(arrays, "cut")
    if unknown := sorted(set(claim) - set(CLAIM_KEYS)):
        raise ValueError(f"it claims {unknown[0]}, which models do not")
    store_certificate(
        model,
        _read_result(w, a, claim),
        n_rows=n_rows,
        weighted=read_flag(claim, "weighted"),
    )
    if model.can_standardize:
        model.scale_ = _read_scale(arrays, p)
    resolve_loss(model)  # raises if the loss is not for this task
    model.n_features_in_ = p
    model._restore(w, fitted, arrays)  # raises unless the length of w is that of the model
    read_vector(arrays, "cut", len(w))
    if "feature_names" in fitted:
        model.feature_names_in_ = read_feature_names(fitted["feature_names"], p)
    if "preparation" in fitted:
        from riskmin.data.raw_tables.preparation import TablePreparation

        model.preparation_ = TablePreparation.from_dict(fitted["preparation"], p)
    if "target" in fitted:
        model.target_name_ = read_text(fitted, "target")
    if "command" in fitted:
        model.command_ = printable(read_text(fitted, "command"))
    if "step" not in fitted:
        return model
    steps = pipeline_from_array(arrays["pipeline"], trust) if "pipeline" in arrays else None
    return with_last_step(steps, read_text(fitted, "step"), model)


def _read_result(w: NDArray, a: NDArray, claim: dict[str, Any]) -> Result:
    status = claim["status"]
    met = claim["criterion"]
    if status not in get_args(Status):
        raise ValueError(f"its status is {status!r}")
    if met not in get_args(Criterion) or (status == "converged" and not met):
        raise ValueError(f"its status is {status!r}, but the tolerance that it met is {met!r}")
    cut, last = Cut(a, read_finite(claim, "b")), [read_trace_row(claim["last"])]
    value, lower = read_finite(claim, "objective"), read_finite(claim, "lower_bound")
    error = read_finite(claim, "value_error") if "value_error" in claim else 0.0
    if not 0 <= error <= abs(value):
        raise ValueError(f"its value has an error of {error:g}, which is not between 0 and the value")
    return Result(w, value, lower, cut, status, last, str(claim["solver"]), met, value_error=error)


def _read_scale(arrays: dict[str, NDArray], p: int) -> NDArray | None:
    """Return the standard deviations of a model fitted to standardized columns; None for others."""
    if "scale" not in arrays:
        return None
    scale = read_vector(arrays, "scale", p)
    if not (scale > 0).all():
        raise ValueError("scale holds numbers that are not > 0")
    return scale
