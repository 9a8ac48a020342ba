"""Parameters of estimators in model files: JSON-compatible data, and the checks on loading."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from riskmin.core.former_names import FORMER_SOLVER_NAMES
from riskmin.core.registry import Registry, from_dict, to_dict
from riskmin.estimators._common.fit import resolve_loss, resolve_regularizer
from riskmin.estimators.persistence.records import (
    is_homogeneous,
    is_number,
    json_name,
    to_python_number,
)
from riskmin.linear_maps.tree import Tree
from riskmin.losses import LOSSES, Nu, Smoothed
from riskmin.problem.kernel.mercer import DotProduct, Polynomial, Rbf
from riskmin.regularizers import REGULARIZERS, Box, Quadratic, get_regularizer
from riskmin.solvers import SOLVERS, get_solver

SERIALIZABLE_KERNELS: dict[str, Any] = {kind.__name__: kind for kind in (Rbf, DotProduct, Polynomial)}
"""Kernel classes that model files can hold, by name."""


# ---------------------------------------------------------------- write and read all parameters
def params_to_dict(model: Any) -> dict[str, Any]:
    """Return the parameters of an estimator as JSON-compatible data; raise if one is user code."""
    given = {name: v for name, v in model.get_params(deep=False).items() if name not in _OF_ONE_PROCESS}
    special = {name: codec.write(model, given[name]) for name, codec in _CODECS.items() if name in given}
    return {"plain": {k: to_python_number(v) for k, v in given.items() if k not in _CODECS}} | special


def params_from_dict(kind: Any, written: dict[str, Any], trust: Collection[str]) -> dict[str, Any]:
    """Return the parameters that `params_to_dict` wrote, for an estimator of this class."""
    defaults = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
    params = dict(written["plain"])
    _check_types(kind.__name__, defaults, params)
    for name, codec in _CODECS.items():
        # files of format 1 have no regularizer, and mean l2
        if name in defaults and (name in written or name != "regularizer"):
            params[name] = codec.read(kind, written[name], trust)
    return params


# ---------------------------------------------------------------- losses, regularizers, solvers, kernels
def _loss_to_json(model: Any, given: Any) -> dict[str, Any]:
    loss = resolve_loss(model)
    # wrappers are written together with the loss inside them
    LOSSES.check_savable(loss.loss if type(loss) in (Nu, Smoothed) else loss)
    return LOSSES.to_dict(loss) | {"given": given if isinstance(given, str) else None}


def _loss_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    given = written["given"]
    alias = None if given is None else kind.loss_aliases.get(given, given)
    return _as_given(LOSSES, written, given, alias, trust)


def _regularizer_to_json(model: Any, given: Any) -> dict[str, Any]:
    reg = get_regularizer(given)
    if isinstance(reg, Quadratic):
        raise ValueError(
            "Quadratic holds a matrix, which is not written to model files: keep coef_ and intercept_ "
            "yourself, or pickle the model"
        )
    REGULARIZERS.check_savable(reg.reg if type(reg) is Box else reg)
    return REGULARIZERS.to_dict(reg) | {"given": given if isinstance(given, str) else None}


def _regularizer_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    return _as_given(REGULARIZERS, written, written["given"], written["given"], trust)


def _as_given(
    registry: Registry, written: dict[str, Any], given: Any, spelling: Any, trust: Collection[str]
) -> Any:
    """Return the text that the user gave if it still denotes the written object, else the object."""
    value = registry.from_dict(written, trust)
    if spelling is None:
        return value
    try:
        # a text in a file imports no more than the rest of the file does
        named = registry.lookup(spelling, trust) if isinstance(spelling, str) else spelling
    except ValueError:  # a name that is not registered in this process
        return value
    return given if registry.to_dict(named) == registry.to_dict(value) else value


def _solver_to_json(model: Any, solver: Any) -> Any:
    """Return a name, or class and parameters of a solver of riskmin; None for other solvers."""
    own = SOLVERS.own_classes.values()
    if type(solver) in own:
        return {"name": type(solver).__name__, "params": dataclasses.asdict(solver)}
    return solver if isinstance(solver, str) and type(get_solver(solver)) in own else None


def _solver_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    # a name, None, or a class with its settings
    if isinstance(written, dict):
        return SOLVERS.own_classes[written["name"]](**written["params"])
    if isinstance(written, str):
        SOLVERS.lookup(FORMER_SOLVER_NAMES.get(written, written), ())
    return written


def _class_weight_to_json(model: Any, given: Any) -> Any:
    """Return a dict as a list of pairs, since JSON keys are strings."""
    return (
        [[to_python_number(k), to_python_number(v)] for k, v in given.items()]
        if isinstance(given, dict)
        else given
    )


def _class_weight_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
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


def _kernel_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    return written if isinstance(written, str) else from_dict(written, _kernel_class)


def _kernel_class(name: str) -> Any:
    if name not in SERIALIZABLE_KERNELS:
        raise ValueError(f"{name} is not a kernel of riskmin, and no code is loaded from a file")
    return SERIALIZABLE_KERNELS[name]


def _hierarchy_to_json(model: Any, given: Any) -> Any:
    """Return the parameter `hierarchy` for JSON: pairs, since JSON keys are strings; None stays None."""
    if isinstance(given, Tree):
        return {"nodes": list(given.nodes), "parents": list(given.parents), "labels": list(given.labels)}
    return (
        [[json_name(node), json_name(parent)] for node, parent in given.items()]
        if given is not None
        else None
    )


def _hierarchy_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    """Return the parameter that `_hierarchy_to_json` wrote."""
    if isinstance(written, Mapping):
        return Tree(*(tuple(written[name]) for name in ("nodes", "parents", "labels")))
    return None if written is None else dict(written)


class _Codec(NamedTuple):
    """How a parameter with its own representation is written and read."""

    write: Callable[[Any, Any], Any]
    """``write(model, value)``"""
    read: Callable[[Any, Any, Collection[str]], Any]
    """``read(kind, record, trust)`` for an estimator of class `kind`; `trust` as in `load_model`"""


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
