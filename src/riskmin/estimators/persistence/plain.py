"""Conversion of estimator parameters to JSON-compatible data and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from riskmin.core.registry import from_dict, to_dict
from riskmin.estimators._common.fit import loss_by_name, resolve_loss
from riskmin.estimators.persistence.hierarchy_files import hierarchy_from_json, hierarchy_to_json
from riskmin.estimators.persistence.plain_checks import check_param_types
from riskmin.losses import LOSSES, Nu, Smoothed, loss_from_dict, loss_to_dict
from riskmin.problem.kernel.mercer import DotProduct, Polynomial, Rbf
from riskmin.regularizers import (
    REGULARIZERS,
    Box,
    Quadratic,
    get_regularizer,
    regularizer_from_dict,
    regularizer_to_dict,
)
from riskmin.solvers import SOLVERS, KernelDual

SERIALIZABLE_KERNELS: dict[str, Any] = {kind.__name__: kind for kind in (Rbf, DotProduct, Polynomial)}
"""Kernel classes that model files can hold, by name."""

_SPECIAL_PARAMS = {
    "loss",
    "regularizer",
    "solver",
    "class_weight",
    "kernel",
    "hierarchy",
    "callback",
    "checkpoint",
}
"""Parameters that have their own representation, or belong to one process and are not written."""


# ---------------------------------------------------------------- write
def params_to_dict(model: Any) -> dict[str, Any]:
    """Return the parameters of an estimator as JSON-compatible data; raise if one is user code."""
    given = model.get_params(deep=False)
    loss = resolve_loss(model)
    # wrappers are written together with the loss inside them, which must be one of riskmin's
    inner = loss.loss if type(loss) in (Nu, Smoothed) else loss
    if type(inner) not in {type(known) for known in LOSSES.values()}:
        raise ValueError(
            f"{type(inner).__name__} is a loss of your own, and code is not written to files: "
            "keep coef_ and intercept_ yourself, or pickle the model"
        )
    record = {
        "plain": {k: to_python_number(v) for k, v in given.items() if k not in _SPECIAL_PARAMS},
        "loss": loss_to_dict(loss) | {"given": given["loss"] if isinstance(given.get("loss"), str) else None},
        "solver": _solver_to_json(given["solver"]),
        "class_weight": _class_weight_to_json(given.get("class_weight")),
    }
    if "regularizer" in given:
        record["regularizer"] = _regularizer_to_json(given["regularizer"])
    if "kernel" in given:
        record["kernel"] = _kernel_to_json(given["kernel"])
    if "hierarchy" in given:
        record["hierarchy"] = hierarchy_to_json(given["hierarchy"])
    return record


def to_python_number(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers and sequences to lists; return anything else unchanged."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [to_python_number(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _regularizer_to_json(given: Any) -> dict[str, Any]:
    reg = get_regularizer(given)
    # exact types: a subclass is user code, whose behavior the file could not restore
    if type(reg) not in {Box, *(type(known) for known in REGULARIZERS.values())}:
        reason = "holds a matrix" if isinstance(reg, Quadratic) else "is a regularizer of your own"
        raise ValueError(
            f"{type(reg).__name__} {reason}, which is not written to model files: "
            "keep coef_ and intercept_ yourself, or pickle the model"
        )
    return regularizer_to_dict(reg) | {"given": given if isinstance(given, str) else None}


def _solver_classes() -> dict[str, Any]:
    kinds: list[Any] = [KernelDual, *(type(known) for known in SOLVERS.values())]
    return {kind.__name__: kind for kind in kinds}


def _solver_to_json(solver: Any) -> Any:
    """Return a name, or class and parameters of a solver of riskmin; None for other solvers."""
    if type(solver) in _solver_classes().values():
        return {"name": type(solver).__name__, "params": dataclasses.asdict(solver)}
    return solver if isinstance(solver, str) else None


def _class_weight_to_json(given: Any) -> Any:
    """Return a dict as a list of pairs, since JSON keys are strings."""
    return (
        [[to_python_number(k), to_python_number(v)] for k, v in given.items()]
        if isinstance(given, dict)
        else given
    )


def _kernel_to_json(given: Any) -> Any:
    if isinstance(given, str):
        return given
    if type(given) not in SERIALIZABLE_KERNELS.values():
        raise ValueError(
            "its kernel is a function of your own, and code is not written to files: pickle the model, "
            "or fit the matrix of the kernel with kernel='precomputed'"
        )
    return to_dict(given, SERIALIZABLE_KERNELS)


# ---------------------------------------------------------------- read
def params_from_dict(kind: Any, written: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that `params_to_dict` wrote, for an estimator of this class."""
    params = dict(written["plain"])
    check_param_types(kind, params)
    # a name, None, or a class with its settings
    solver = written["solver"]
    params["solver"] = (
        _solver_classes()[solver["name"]](**solver["params"]) if isinstance(solver, dict) else solver
    )
    if "regularizer" in written:
        params["regularizer"] = _as_given(
            regularizer_from_dict(written["regularizer"]), written["regularizer"]["given"], get_regularizer
        )
    if "kernel" in written:
        kernel = written["kernel"]
        params["kernel"] = (
            kernel if isinstance(kernel, str) else from_dict(kernel, SERIALIZABLE_KERNELS, "kernel")
        )
    if kind.task != "novelty":
        params["loss"] = _as_given(
            loss_from_dict(written["loss"]), written["loss"]["given"], partial(loss_by_name, kind)
        )
    if "hierarchy" in written:
        params["hierarchy"] = hierarchy_from_json(written["hierarchy"])
    if kind.task in ("classification", "hierarchy"):
        pairs = written["class_weight"]
        params["class_weight"] = dict(pairs) if isinstance(pairs, list) else pairs
    return params


def _as_given(value: Any, given: str | None, lookup: Callable[[Any], Any]) -> Any:
    """Return the name that the user gave if it still denotes the value, else the value."""
    return given if given is not None and lookup(given) == value else value
