"""Things with settings: looked up by name, described as plain data, compared and shown."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy.sparse import issparse


def named(text: str, table: dict[str, Any], what: str, example: str) -> Any:
    """The thing of the table that the text names, with the settings after its colon.

    Examples
    --------
    >>> from riskmin.losses import LOSSES
    >>> named("huber:delta=2", LOSSES, "loss", "huber:delta=2")
    Huber(delta=2.0)
    """
    name = text.partition(":")[0]
    if name.strip() not in table:
        raise ValueError(f"there is no {what} named {name.strip()!r}; the names are {', '.join(table)}")
    default = table[name.strip()]
    found = settings_of(text, what, example)
    return dataclasses.replace(default, **known(type(default), found))


def described(thing: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """A dataclass as plain data, fit for JSON: its class and its parameters."""
    kind: Any = type(thing)
    name = kind.__name__ if kind in classes.values() else f"{kind.__module__}.{kind.__qualname__}"
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    params = {f.name: getattr(thing, f.name) for f in fields}
    return {"name": name, "params": {k: _plain(v, classes) for k, v in params.items()}}


def _plain(value: Any, classes: dict[str, Any]) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return described(value, classes) if type(value) in classes.values() else value


def revived(data: dict[str, Any], classes: dict[str, Any], what: str) -> Any:
    """What `described` described."""
    name, kind = data["name"], classes.get(data["name"])
    if kind is None:
        raise ValueError(
            f"{name} is not a {what} of riskmin, and no code is loaded from a file; "
            f"make the {what} yourself and pass the object"
        )
    params = {k: revived(v, classes, what) if isinstance(v, dict) else v for k, v in data["params"].items()}
    return kind(**known(kind, params))


def known(kind: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The params, if the class has all of them."""
    names = [f.name for f in dataclasses.fields(kind)]
    if unknown := sorted(set(params) - set(names)):
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise ValueError(f"{kind.__name__} has no parameter {', '.join(unknown)}; {has}")
    return params


def settings_of(text: str, what: str, example: str) -> dict[str, float]:
    """The settings after the colon.

    Examples
    --------
    >>> settings_of("huber:delta=2", "loss", "huber:delta=2")
    {'delta': 2.0}
    """
    try:
        pairs = [item.split("=") for item in text.partition(":")[2].split(",") if item.strip()]
        return {key.strip(): float(value) for key, value in pairs}
    except ValueError:
        raise ValueError(f"{text!r} does not read as a {what}; write it like {example!r}") from None


class Comparable:
    """Equality of dataclasses some of whose settings are arrays; and what they are, without the defaults."""

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        shown = [
            (f.name, getattr(self, f.name)) for f in fields if not _same(getattr(self, f.name), f.default)
        ]
        return f"{type(self).__name__}({', '.join(f'{name}={_brief(value)}' for name, value in shown)})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return all(_same(getattr(self, n), getattr(other, n)) for n in names)

    def __hash__(self) -> int:
        return hash(type(self))


def _brief(value: Any) -> str:
    """A setting on one line, since it ends up in messages; only the shape of what is long."""
    text = repr(value)
    if len(text) <= 60 and "\n" not in text:
        return text
    shape = getattr(value, "shape", None)
    return f"<{type(value).__name__}{f' of shape {shape}' if shape else ''}>"


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if issparse(a) or issparse(b):
        return type(a) is type(b) and a.shape == b.shape and (a != b).nnz == 0
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    return bool(a == b)
