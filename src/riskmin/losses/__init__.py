"""Convex losses of the scores: each is written once, in the array namespace of its scores."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from riskmin.losses.margin import Exponential as Exponential
from riskmin.losses.margin import Hinge as Hinge
from riskmin.losses.margin import Logistic as Logistic
from riskmin.losses.margin import Novelty as Novelty
from riskmin.losses.margin import PowerHinge as PowerHinge
from riskmin.losses.margin import SmoothedHinge as SmoothedHinge
from riskmin.losses.margin import SquaredHinge as SquaredHinge
from riskmin.losses.regression import Absolute as Absolute
from riskmin.losses.regression import EpsilonInsensitive as EpsilonInsensitive
from riskmin.losses.regression import Huber as Huber
from riskmin.losses.regression import Poisson as Poisson
from riskmin.losses.regression import Quantile as Quantile
from riskmin.losses.regression import Squared as Squared
from riskmin.types import Loss

LOSSES: dict[str, Any] = {
    "hinge": Hinge(),
    "perceptron": Hinge(margin=0.0),
    "squared_hinge": SquaredHinge(),
    "power_hinge": PowerHinge(),
    "smoothed_hinge": SmoothedHinge(),
    "exponential": Exponential(),
    "logistic": Logistic(),
    "novelty": Novelty(),
    "squared": Squared(),
    "absolute": Absolute(),
    "quantile": Quantile(),
    "epsilon_insensitive": EpsilonInsensitive(),
    "squared_epsilon_insensitive": EpsilonInsensitive(power=2.0),
    "huber": Huber(),
    "poisson": Poisson(),
}
"""The names for commands and estimators, each with the loss it stands for."""


def get_loss(loss: str | Loss) -> Any:
    """The loss that a name stands for; a loss object stands for itself.

    Parameters
    ----------
    loss : str or Loss
        A name of `LOSSES`, with parameters after a colon where others than the defaults are wanted
        (``"huber:delta=2"``, ``"epsilon_insensitive:epsilon=0.5,power=2"``), or a loss object.

    Returns
    -------
    Loss
        The loss.

    Examples
    --------
    >>> get_loss("quantile:level=0.9")
    Quantile(level=0.9)
    >>> get_loss(Hinge(margin=2.0))
    Hinge(margin=2.0)
    """
    if isinstance(loss, str):
        name, _, settings = loss.partition(":")
        if name.strip() not in LOSSES:
            raise ValueError(f"there is no loss named {name.strip()!r}; the names are {', '.join(LOSSES)}")
        default = LOSSES[name.strip()]
        return dataclasses.replace(default, **_known(type(default), _settings(loss, settings)))
    if isinstance(loss, type):
        raise ValueError(f"{loss.__name__} is a class, not a loss; give an instance: {loss.__name__}()")
    if not isinstance(loss, Loss):
        raise ValueError(
            f"{loss!r} is no loss: pass an object with separable and value_grad, "
            f"or one of the names {', '.join(LOSSES)}"
        )
    return loss


def formula(loss: Loss) -> str:
    """The formula of a loss in one line of plain text.

    Examples
    --------
    >>> formula(Hinge())
    'max(0, margin - y z)'
    """
    return str(getattr(loss, "formula", repr(loss)))


def spec(loss: Loss) -> dict[str, Any]:
    """A loss as plain data, fit for JSON: its class and its parameters.

    Examples
    --------
    >>> spec(Huber(delta=2.0))
    {'name': 'Huber', 'params': {'delta': 2.0}}
    """
    kind: Any = type(loss)
    name = kind.__name__ if kind in _classes().values() else f"{kind.__module__}.{kind.__qualname__}"
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    params = {f.name: getattr(loss, f.name) for f in fields}
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in params.items()}
    return {"name": name, "params": plain}


def from_spec(data: dict[str, Any]) -> Any:
    """The loss that `spec` described.

    Examples
    --------
    >>> from_spec({"name": "Huber", "params": {"delta": 2.0}})
    Huber(delta=2.0)
    """
    name, kind = data["name"], _classes().get(data["name"])
    if kind is None:
        raise ValueError(
            f"{name} is not a loss of riskmin, and no code is loaded from a file; "
            "make the loss yourself and pass the object"
        )
    return kind(**_known(kind, data["params"]))


def _classes() -> dict[str, Any]:
    return {type(loss).__name__: type(loss) for loss in LOSSES.values()}


def _settings(text: str, settings: str) -> dict[str, float]:
    """{"delta": 2.0} from "delta=2"; the text is what the user wrote, for the message."""
    try:
        pairs = [item.split("=") for item in settings.split(",") if item.strip()]
        return {key.strip(): float(value) for key, value in pairs}
    except ValueError:
        raise ValueError(f"{text!r} does not read as a loss; write it like 'huber:delta=2'") from None


def _known(kind: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The params, if the class has all of them."""
    names = [f.name for f in dataclasses.fields(kind)]
    if unknown := sorted(set(params) - set(names)):
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise ValueError(f"{kind.__name__} has no parameter {', '.join(unknown)}; {has}")
    return params
