"""Things with names: looked up with their settings, and described as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


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
