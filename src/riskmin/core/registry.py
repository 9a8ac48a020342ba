"""Dataclasses with settings: lookup by name, conversion to and from plain data, equality and repr.

And objects of user-defined classes as instances of the abstract bases: a plain class needs no base class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from types import new_class
from typing import Any

import numpy as np
from scipy.sparse import issparse


def lookup(text: str, table: dict[str, Any], category: str, example: str) -> Any:
    """Return the object of the table that the text names, with the settings that follow its colon.

    Examples
    --------
    >>> from riskmin.losses import LOSSES
    >>> lookup("huber:delta=2", LOSSES, "loss", "huber:delta=2")
    Huber(delta=2.0)
    """
    name = text.partition(":")[0]
    if name.strip() not in table:
        raise ValueError(f"there is no {category} named {name.strip()!r}; the names are {', '.join(table)}")
    default = table[name.strip()]
    settings = parse_settings(text, category, example)
    return dataclasses.replace(default, **check_params(type(default), settings))


def to_dict(thing: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """Return a dataclass as plain data that JSON can hold: the class name and the parameters."""
    kind: Any = type(thing)
    # classes of riskmin by their short name, custom ones by their full path
    name = kind.__name__ if kind in classes.values() else f"{kind.__module__}.{kind.__qualname__}"
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    params = {f.name: getattr(thing, f.name) for f in fields}
    return {"name": name, "params": {k: _plain_value(v, classes) for k, v in params.items()}}


def _plain_value(value: Any, classes: dict[str, Any]) -> Any:
    """Convert NumPy scalars, arrays and nested dataclasses to plain data."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return to_dict(value, classes) if type(value) in classes.values() else value


def from_dict(data: dict[str, Any], classes: dict[str, Any], category: str) -> Any:
    """Return the object from which `to_dict` made the data."""
    name, kind = data["name"], classes.get(data["name"])
    if kind is None:
        raise ValueError(
            f"{name} is not a {category} of riskmin, and no code is loaded from a file; "
            f"make the {category} yourself and pass the object"
        )
    params = {
        k: from_dict(v, classes, category) if isinstance(v, dict) else v for k, v in data["params"].items()
    }
    return kind(**check_params(kind, params))


def check_params(kind: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return the params; raise a ValueError if the class does not have all of them."""
    names = [f.name for f in dataclasses.fields(kind)]
    if unknown := sorted(set(params) - set(names)):
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise ValueError(f"{kind.__name__} has no parameter {', '.join(unknown)}; {has}")
    return params


def parse_settings(text: str, category: str, example: str) -> dict[str, float]:
    """Parse the settings after the colon.

    Examples
    --------
    >>> parse_settings("huber:delta=2", "loss", "huber:delta=2")
    {'delta': 2.0}
    """
    try:
        # a pair without "=" or with two fails to unpack, which is a ValueError as well
        pairs = [item.split("=") for item in text.partition(":")[2].split(",") if item.strip()]
        return {key.strip(): float(value) for key, value in pairs}
    except ValueError:
        raise ValueError(f"{text!r} does not read as a {category}; write it like {example!r}") from None


class ArrayDataclass:
    """Equality of dataclasses some of whose fields are arrays, and a repr that omits the defaults."""

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        changed = [
            (f.name, getattr(self, f.name)) for f in fields if not _equal(getattr(self, f.name), f.default)
        ]
        return (
            f"{type(self).__name__}({', '.join(f'{name}={_short_repr(value)}' for name, value in changed)})"
        )

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return all(_equal(getattr(self, n), getattr(other, n)) for n in names)

    # arrays are not hashable: equal objects must have equal hashes, so only the type is hashed
    def __hash__(self) -> int:
        return hash(type(self))


def _short_repr(value: Any) -> str:
    """Return the repr of a setting if it fits one line of a message, else only its type and shape."""
    text = repr(value)
    if len(text) <= 60 and "\n" not in text:
        return text
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}{f' of shape {shape}' if shape else ''}>"


def _equal(a: Any, b: Any) -> bool:
    """Compare two settings by value, arrays and sparse matrices included."""
    if a is b:
        return True
    # sparse matrices compare entry by entry, and have no truth value
    if issparse(a) or issparse(b):
        return type(a) is type(b) and a.shape == b.shape and (a != b).nnz == 0
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    return bool(a == b)


# ---------------------------------------------------------------- objects of user-defined classes
def adapted(thing: Any, base: type, adapt: Callable[[Any], Any]) -> Any:
    """Return the object as an instance of the base, which supplies the defaults that its class lacks.

    The new object has the attributes of the old one, and its class derives from that of the old one and from
    the base, under the old name: methods, repr and equality remain those of the user's class. `adapt` is the
    function that called this one; a pickle holds the original object and calls it.

    Examples
    --------
    >>> class Base:
    ...     smooth = False
    >>> class Mine:
    ...     scale = 2.0
    >>> mine = adapted(Mine(), Base, lambda thing: thing)
    >>> type(mine).__name__, mine.scale, mine.smooth, isinstance(mine, Mine)
    ('Mine', 2.0, False, True)
    """
    kind: Any = type(thing)
    # what the object has but its class has not, such as attributes that __getattr__ finds, goes to the class
    names = (name for name in dir(base) if not name.startswith("_") and not hasattr(kind, name))
    own = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    made = _class_with_attributes(kind, base, adapt, own) if own else _adapted_class(kind, base, adapt)
    return _with_state_of(thing, made, kind)


@cache
def _adapted_class(kind: Any, base: type, adapt: Callable[[Any], Any]) -> type:
    return _class_with_attributes(kind, base, adapt, {})


def _class_with_attributes(kind: type, base: type, adapt: Callable[[Any], Any], own: dict[str, Any]) -> type:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        return adapt, (_with_state_of(self, kind, kind),)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    statics = {name: staticmethod(v) if callable(v) else v for name, v in own.items()}
    body = {**names, **statics, "__reduce_ex__": reduce_ex}
    return new_class(kind.__name__, (kind, base), {}, lambda namespace: namespace.update(body))


def _with_state_of(thing: Any, made: Any, kind: type) -> Any:
    """Return a new object of the class `made` with the attributes of another: one dictionary, equal slots."""
    try:
        copy = object.__new__(made)
        if hasattr(thing, "__dict__") and hasattr(copy, "__dict__"):
            # past the __setattr__ of frozen dataclasses
            object.__setattr__(copy, "__dict__", thing.__dict__)
    except TypeError:  # a class that is not written in Python, such as SimpleNamespace
        copy = made.__new__(made)
        copy.__dict__.update(thing.__dict__)
    for cls in kind.__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                object.__setattr__(copy, name, getattr(thing, name))
    return copy
