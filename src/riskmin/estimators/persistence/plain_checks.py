"""Validation of the content of model files: a checksum detects damage, but not invalid values."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators._common.fit import check_number, check_parameters, resolve_regularizer
from riskmin.solvers import get_solver

_PARAM_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "atol": ("a number or null", lambda v: v is None or _is_number(v)),
    "n_jobs": ("a whole number or null", lambda v: v is None or type(v) is int),
    "gamma": ("a string or a number", lambda v: isinstance(v, str) or _is_number(v)),
    "cost": ("a string or rows of numbers", lambda v: isinstance(v, str) or _is_square(v)),
    "constraints": ("a string, pairs or null", lambda v: v is None or isinstance(v, (str, list))),
    "template": ("'window' or null", lambda v: v in (None, "window")),
    "order": ("strings, numbers or null", lambda v: v is None or _is_homogeneous(v)),
}
"""Parameters that allow several types: description of the types, and a predicate."""


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_homogeneous(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(v, str) for v in value) or all(_is_number(v) for v in value)


def _is_square(value: Any) -> bool:
    rows = isinstance(value, list) and all(isinstance(row, list) and len(row) == len(value) for row in value)
    return rows and all(_is_number(v) for row in value for v in row)


def check_param_types(kind: Any, params: dict[str, Any]) -> None:
    """Raise unless parameters read from a file have the types of the estimator's defaults."""
    defaults = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
    for name, value in params.items():
        if name not in defaults:
            raise ValueError(f"{kind.__name__} has no parameter {name}")
        default = defaults[name]
        # parameters without an entry must have the type of their default
        needs, fits = _PARAM_TYPES.get(name, _type_of_default(default))
        if not fits(value):
            raise ValueError(f"its parameter {name} is {value!r}, not {needs}")


def _type_of_default(default: Any) -> tuple[str, Callable[[Any], bool]]:
    if isinstance(default, bool):
        return "true or false", lambda v: isinstance(v, bool)
    if isinstance(default, str):
        return "a string", lambda v: isinstance(v, str)
    if default is None:
        return "a number or null", lambda v: v is None or _is_number(v)
    return "a number", _is_number


def check_loaded_model(model: Any) -> None:
    """Raise unless the parameters of a model read from a file are valid."""
    check_parameters(model)
    get_solver(model.solver)
    resolve_regularizer(model)
    for name, needs, fits in (
        ("cache_size", "a finite number > 0", lambda v: 0 < v < math.inf),
        ("min_count", "an integer >= 1", lambda v: v >= 1 and v == int(v)),
        ("contamination", "a number from 0 to 1", lambda v: 0 <= v <= 1),
    ):
        if getattr(model, name, None) is not None:
            check_number(model, name, needs, fits)
    _check_class_weight(model.class_weight)


def _check_class_weight(given: Any) -> None:
    if isinstance(given, dict):
        if not all(_is_number(v) and 0 < v < math.inf for v in given.values()):
            raise ValueError("its class_weight holds values that are not finite numbers > 0")
    elif given not in (None, "balanced"):
        raise ValueError(f"its class_weight is {given!r}")


def read_count(record: dict[str, Any], name: str) -> int:
    """Return an entry that must be an integer >= 0."""
    value = record[name]
    # `type`, not isinstance: a bool is not a count
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}, not a whole number >= 0")
    return value


def read_flag(record: dict[str, Any], name: str, default: bool | None = None) -> bool:
    """Return an entry that must be a bool."""
    value = record[name] if default is None else record.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, neither true nor false")
    return value


def read_classes(record: dict[str, Any], *, in_order: bool = True) -> NDArray:
    """Return the classes, which must be distinct; and sorted, unless a parameter defines their order."""
    values, dtype = record["values"], np.dtype(record["dtype"])
    # boolean classes count as numbers
    as_numbers = [int(v) if isinstance(v, bool) else v for v in values]
    if dtype.kind not in "biufUSO" or not _is_homogeneous(as_numbers):
        raise ValueError(f"its classes are of {dtype}, or not all strings or all numbers")
    classes: NDArray = np.array(values, dtype=dtype)
    if classes.ndim != 1 or len(np.unique(classes)) != len(classes):
        raise ValueError("its classes are not each named once")
    if classes.dtype.kind == "f" and not np.isfinite(classes).all():
        raise ValueError("its classes are not all finite")
    if in_order and not np.array_equal(np.unique(classes), classes):
        raise ValueError("its classes are not sorted")
    return classes


def read_feature_names(values: Any, p: int) -> NDArray:
    """Return the names of p features, which must be strings."""
    if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
        raise ValueError("the names of its features are not all strings")
    if len(values) != p:
        raise ValueError(f"it names {len(values)} features, but has {p}")
    return np.array(values, dtype=object)


def read_trace_row(record: Any) -> dict[str, Any]:
    """Return the last row of the trace, a dict of numbers and strings."""
    row = dict(record)
    if not all(v is None or isinstance(v, (int, float, str)) for v in row.values()):
        raise ValueError("the last row of its trace holds values that are neither numbers nor strings")
    for name in ("iteration", "seconds"):
        if name in row and (not _is_number(row[name]) or not math.isfinite(row[name])):
            raise ValueError(f"the entry {name} of its trace is {row[name]!r}, not a finite number")
    return row
