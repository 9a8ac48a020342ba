"""Parameters of estimators in model files: JSON-compatible data, and the checks on loading."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from riskmin.core.registry import Registry, from_dict, to_dict
from riskmin.estimators._common.fit import resolve_loss, resolve_regularizer
from riskmin.estimators.persistence.records import (
    JSON_KINDS,
    is_homogeneous,
    is_list_of,
    json_kind,
    json_name,
    to_python_number,
)
from riskmin.linear_maps.tree import Tree
from riskmin.losses import LOSSES, Nu, Smoothed
from riskmin.problem.kernel.mercer import DotProduct, Polynomial, Rbf
from riskmin.regularizers import REGULARIZERS, Box, LinearConstraints, Quadratic, get_regularizer
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
    # JSON has no tuples
    params |= {name: tuple(v) for name, v in params.items() if isinstance(defaults[name], tuple)}
    for name, codec in _CODECS.items():
        if name in defaults:
            params[name] = codec.read(kind, written[name], trust)
    return params


# ---------------------------------------------------------------- losses, regularizers, solvers, kernels
def _loss_to_json(model: Any, given: Any) -> dict[str, Any]:
    loss = resolve_loss(model)
    # wrappers are written together with the loss inside them
    LOSSES.check_savable(loss.loss if type(loss) in (Nu, Smoothed) else loss)
    return LOSSES.to_dict(loss) | {"given": _text(given)}


def _loss_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    given = written["given"]
    alias = None if given is None else kind.loss_aliases.get(given, given)
    return _as_given(LOSSES, written, given, alias, trust)


def _regularizer_to_json(model: Any, given: Any) -> dict[str, Any]:
    reg = get_regularizer(given)
    if type(reg) is Quadratic:
        raise ValueError(
            "Quadratic holds a matrix, which is not written to model files: keep coef_ and intercept_ "
            "yourself, or pickle the model"
        )
    REGULARIZERS.check_savable(reg.reg if type(reg) in (Box, LinearConstraints) else reg)
    return REGULARIZERS.to_dict(reg) | {"given": _text(given)}


def _text(given: Any) -> str | None:
    """Return the name that a user gave; None if it was an object."""
    return given if isinstance(given, str) else None


def _regularizer_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    return _as_given(REGULARIZERS, written, written["given"], written["given"], trust)


def _as_given(
    registry: Registry, written: dict[str, Any], given: Any, spelling: Any, trust: Collection[str]
) -> Any:
    """Return the text that the user gave if it still denotes the written object, else the object.

    `spelling` is the name for which `given` stands, or the object itself.
    """
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
    return _text(solver) if type(get_solver(solver)) in own else None


def _solver_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    # a name, None, or a class with its settings
    if json_kind(written) == "an object":
        return SOLVERS.own_classes[written["name"]](**written["params"])
    if written is not None:
        SOLVERS.lookup(written, ())
    return written


def _class_weight_to_json(model: Any, given: Any) -> Any:
    """Return a dict as a list of pairs, since JSON keys are strings."""
    return given if given in (None, "balanced") else [to_python_number(pair) for pair in given.items()]


def _class_weight_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    return dict(written) if json_kind(written) == "a list" else written


def _kernel_to_json(model: Any, given: Any) -> Any:
    if _text(given) is not None:
        return given
    if type(given) not in SERIALIZABLE_KERNELS.values():
        raise ValueError(
            "its kernel is a function of your own, and code is not written to files: pickle the model, "
            "or fit the matrix of the kernel with kernel='precomputed'"
        )
    return to_dict(given, SERIALIZABLE_KERNELS)


def _kernel_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    return written if json_kind(written) == "a string" else from_dict(written, _kernel_class)


def _kernel_class(name: str) -> Any:
    if name not in SERIALIZABLE_KERNELS:
        raise ValueError(f"{name} is not a kernel of riskmin, and no code is loaded from a file")
    return SERIALIZABLE_KERNELS[name]


def _hierarchy_to_json(model: Any, given: Any) -> Any:
    """Return the parameter `hierarchy` for JSON: pairs, since JSON keys are strings; None stays None."""
    if type(given) is Tree:
        return {"nodes": list(given.nodes), "parents": list(given.parents), "labels": list(given.labels)}
    return (
        [[json_name(node), json_name(parent)] for node, parent in given.items()]
        if given is not None
        else None
    )


def _hierarchy_from_json(kind: Any, written: Any, trust: Collection[str]) -> Any:
    """Return the parameter that `_hierarchy_to_json` wrote."""
    if json_kind(written) == "an object":
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

_OF_ONE_PROCESS = ("callback", "checkpoint", "device")
"""Parameters that are not written."""


# ---------------------------------------------------------------- checks
_PARAM_KINDS: dict[str, tuple[str, ...]] = {
    "alpha": ("a number", "a list"),
    "atol": ("a number", "null"),
    "gamma": ("a string", "a number"),
    "cost": ("a string", "a list"),
    "constraints": ("a string", "a list", "null"),
    "template": ("a string", "null"),
    "order": ("a list", "null"),
    "n_jobs": ("a number", "null"),
    "levels": ("a list",),
    "box": ("a list", "null"),
}
"""Parameters that allow several kinds of values; others allow that of their default, or a number or null."""
_PARAM_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "alpha": (
        "a number or several",
        lambda v: json_kind(v) == "a number" or is_list_of(v, "a number"),
    ),
    "n_jobs": ("a whole number or null", lambda v: v is None or type(v) is int),
    "cost": ("a string or rows of numbers", lambda v: json_kind(v) == "a string" or _is_square(v)),
    "template": ("'window' or null", lambda v: v in (None, "window")),
    "levels": ("numbers", lambda v: is_list_of(v, "a number")),
    "box": (
        "pairs of numbers or null",
        lambda v: v is None or all(is_list_of(ends, "a number") for ends in v),
    ),
    "order": ("strings, numbers or null", lambda v: v is None or is_homogeneous(v)),
}
"""Further conditions on some of them."""


def _is_square(value: Any) -> bool:
    return all(is_list_of(row, "a number") and len(row) == len(value) for row in value)


def _check_types(name_of_kind: str, defaults: dict[str, Any], params: dict[str, Any]) -> None:
    """Raise unless parameters read from a file have the types of the estimator's defaults."""
    for name, value in params.items():
        if name not in defaults:
            raise ValueError(f"{name_of_kind} has no parameter {name}")
        kinds = _PARAM_KINDS.get(name, _kinds_of_default(defaults[name]))
        needs, fits = _PARAM_CHECKS.get(name, (" or ".join(kinds), lambda _: True))
        if json_kind(value) not in kinds or not fits(value):
            raise ValueError(f"its parameter {name} is {value!r}, not {needs}")


def _kinds_of_default(default: Any) -> tuple[str, ...]:
    return ("a number", "null") if default is None else (JSON_KINDS.get(type(default), "a number"),)


def check_loaded_model(model: Any) -> None:
    """Raise unless the parameters of a model read from a file are valid."""
    model._check_parameters()
    get_solver(model.solver)
    resolve_regularizer(model)
    _check_class_weight(model.class_weight)


def _check_class_weight(given: Any) -> None:
    if json_kind(given) == "an object":
        if not all(json_kind(v) == "a number" and 0 < v < math.inf for v in given.values()):
            raise ValueError("its class_weight holds values that are not finite numbers > 0")
    elif given not in (None, "balanced"):
        raise ValueError(f"its class_weight is {given!r}")
