"""Parameters of estimators in model files: JSON-compatible data, and the checks on loading."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from riskmin.core.registry import from_dict, to_dict
from riskmin.estimators._common.fit import loss_by_name, resolve_loss, resolve_regularizer
from riskmin.estimators.persistence.records import (
    is_homogeneous,
    is_number,
    json_name,
    to_python_number,
)
from riskmin.linear_maps.tree import Tree
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
from riskmin.solvers import SOLVERS, KernelDual, get_solver

SERIALIZABLE_KERNELS: dict[str, Any] = {kind.__name__: kind for kind in (Rbf, DotProduct, Polynomial)}
"""Kernel classes that model files can hold, by name."""


# ---------------------------------------------------------------- write and read all parameters
def params_to_dict(model: Any) -> dict[str, Any]:
    """Return the parameters of an estimator as JSON-compatible data; raise if one is user code."""
    given = {name: v for name, v in model.get_params(deep=False).items() if name not in _OF_ONE_PROCESS}
    special = {name: codec.write(model, given[name]) for name, codec in _CODECS.items() if name in given}
    return {"plain": {k: to_python_number(v) for k, v in given.items() if k not in _CODECS}} | special


def params_from_dict(kind: Any, written: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that `params_to_dict` wrote, for an estimator of this class."""
    defaults = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
    params = dict(written["plain"])
    _check_types(kind.__name__, defaults, params)
    for name, codec in _CODECS.items():
        # files of format 1 have no regularizer, and mean l2
        if name in defaults and (name in written or name != "regularizer"):
            params[name] = codec.read(kind, written[name])
    return params


# ---------------------------------------------------------------- losses, regularizers, solvers, kernels
def _loss_to_json(model: Any, given: Any) -> dict[str, Any]:
    loss = resolve_loss(model)
    # wrappers are written together with the loss inside them, which must be one of riskmin's
    inner = loss.loss if type(loss) in (Nu, Smoothed) else loss
    if type(inner) not in {type(known) for known in LOSSES.values()}:
        raise ValueError(
            f"{type(inner).__name__} is a loss of your own, and code is not written to files: "
            "keep coef_ and intercept_ yourself, or pickle the model"
        )
    return loss_to_dict(loss) | {"given": given if isinstance(given, str) else None}


def _loss_from_json(kind: Any, written: Any) -> Any:
    return _as_given(loss_from_dict(written), written["given"], partial(loss_by_name, kind))


def _regularizer_to_json(model: Any, given: Any) -> dict[str, Any]:
    reg = get_regularizer(given)
    # exact types: a subclass is user code, whose behavior the file could not restore
    if type(reg) not in {Box, *(type(known) for known in REGULARIZERS.values())}:
        reason = "holds a matrix" if isinstance(reg, Quadratic) else "is a regularizer of your own"
        raise ValueError(
            f"{type(reg).__name__} {reason}, which is not written to model files: "
            "keep coef_ and intercept_ yourself, or pickle the model"
        )
    return regularizer_to_dict(reg) | {"given": given if isinstance(given, str) else None}


def _regularizer_from_json(kind: Any, written: Any) -> Any:
    return _as_given(regularizer_from_dict(written), written["given"], get_regularizer)


def _solver_classes() -> dict[str, Any]:
    kinds: list[Any] = [KernelDual, *(type(known) for known in SOLVERS.values())]
    return {kind.__name__: kind for kind in kinds}


def _solver_to_json(model: Any, solver: Any) -> Any:
    """Return a name, or class and parameters of a solver of riskmin; None for other solvers."""
    if type(solver) in _solver_classes().values():
        return {"name": type(solver).__name__, "params": dataclasses.asdict(solver)}
    return solver if isinstance(solver, str) else None


def _solver_from_json(kind: Any, written: Any) -> Any:
    # a name, None, or a class with its settings
    return _solver_classes()[written["name"]](**written["params"]) if isinstance(written, dict) else written


def _class_weight_to_json(model: Any, given: Any) -> Any:
    """Return a dict as a list of pairs, since JSON keys are strings."""
    return (
        [[to_python_number(k), to_python_number(v)] for k, v in given.items()]
        if isinstance(given, dict)
        else given
    )


def _class_weight_from_json(kind: Any, written: Any) -> Any:
    return dict(written) if isinstance(written, list) else written


def _kernel_to_json(model: Any, given: Any) -> Any:
    if isinstance(given, str):
        return given
    if type(given) not in SERIALIZABLE_KERNELS.values():
        raise ValueError(
            "its kernel is a function of your own, and code is not written to files: pickle the model, "
            "or fit the matrix of the kernel with kernel='precomputed'"
        )
    return to_dict(given, SERIALIZABLE_KERNELS)


def _kernel_from_json(kind: Any, written: Any) -> Any:
    return written if isinstance(written, str) else from_dict(written, SERIALIZABLE_KERNELS, "kernel")


def _hierarchy_to_json(model: Any, given: Any) -> Any:
    """Return the parameter `hierarchy` for JSON: pairs, since JSON keys are strings; None stays None."""
    if isinstance(given, Tree):
        return {"nodes": list(given.nodes), "parents": list(given.parents), "labels": list(given.labels)}
    return (
        [[json_name(node), json_name(parent)] for node, parent in given.items()]
        if given is not None
        else None
    )


def _hierarchy_from_json(kind: Any, written: Any) -> Any:
    """Return the parameter that `_hierarchy_to_json` wrote."""
    if isinstance(written, Mapping):
        return Tree(*(tuple(written[name]) for name in ("nodes", "parents", "labels")))
    return None if written is None else dict(written)


def _as_given(value: Any, given: str | None, lookup: Callable[[Any], Any]) -> Any:
    """Return the name that the user gave if it still denotes the value, else the value."""
    return given if given is not None and lookup(given) == value else value


class _Codec(NamedTuple):
    """How a parameter with its own representation is written and read."""

    write: Callable[[Any, Any], Any]
    """``write(model, value)``"""
    read: Callable[[Any, Any], Any]
    """``read(kind, record)`` for an estimator of class `kind`"""


_CODECS = {
    "loss": _Codec(_loss_to_json, _loss_from_json),
    "solver": _Codec(_solver_to_json, _solver_from_json),
    "class_weight": _Codec(_class_weight_to_json, _class_weight_from_json),
    "regularizer": _Codec(_regularizer_to_json, _regularizer_from_json),
    "kernel": _Codec(_kernel_to_json, _kernel_from_json),
    "hierarchy": _Codec(_hierarchy_to_json, _hierarchy_from_json),
}
"""Parameters that have their own representation."""

_OF_ONE_PROCESS = ("callback", "checkpoint")
"""Parameters that are not written."""


# ---------------------------------------------------------------- checks
_PARAM_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "atol": ("a number or null", lambda v: v is None or is_number(v)),
    "n_jobs": ("a whole number or null", lambda v: v is None or type(v) is int),
    "gamma": ("a string or a number", lambda v: isinstance(v, str) or is_number(v)),
    "cost": ("a string or rows of numbers", lambda v: isinstance(v, str) or _is_square(v)),
    "constraints": ("a string, pairs or null", lambda v: v is None or isinstance(v, (str, list))),
    "template": ("'window' or null", lambda v: v in (None, "window")),
    "order": ("strings, numbers or null", lambda v: v is None or is_homogeneous(v)),
}
"""Parameters that allow several types: description of the types, and a predicate."""


def _is_square(value: Any) -> bool:
    rows = isinstance(value, list) and all(isinstance(row, list) and len(row) == len(value) for row in value)
    return rows and all(is_number(v) for row in value for v in row)


def _check_types(name_of_kind: str, defaults: dict[str, Any], params: dict[str, Any]) -> None:
    """Raise unless parameters read from a file have the types of the estimator's defaults."""
    for name, value in params.items():
        if name not in defaults:
            raise ValueError(f"{name_of_kind} has no parameter {name}")
        # parameters without an entry must have the type of their default
        needs, fits = _PARAM_TYPES.get(name, _type_of_default(defaults[name]))
        if not fits(value):
            raise ValueError(f"its parameter {name} is {value!r}, not {needs}")


def _type_of_default(default: Any) -> tuple[str, Callable[[Any], bool]]:
    if isinstance(default, bool):
        return "true or false", lambda v: isinstance(v, bool)
    if isinstance(default, str):
        return "a string", lambda v: isinstance(v, str)
    if default is None:
        return "a number or null", lambda v: v is None or is_number(v)
    return "a number", is_number


def check_loaded_model(model: Any) -> None:
    """Raise unless the parameters of a model read from a file are valid."""
    model._check_parameters()
    get_solver(model.solver)
    resolve_regularizer(model)
    _check_class_weight(model.class_weight)


def _check_class_weight(given: Any) -> None:
    if isinstance(given, dict):
        if not all(is_number(v) and 0 < v < math.inf for v in given.values()):
            raise ValueError("its class_weight holds values that are not finite numbers > 0")
    elif given not in (None, "balanced"):
        raise ValueError(f"its class_weight is {given!r}")
