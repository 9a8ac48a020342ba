"""Whether a risk is computed by riskmin's code, or by user code whose properties are unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from riskmin.problem.oracle import UserOracle


def is_builtin(thing: object) -> bool:
    """Whether the class of an object is defined in riskmin."""
    return type(thing).__module__.partition(".")[0] == "riskmin"


def user_object(risk: Any) -> Any:
    """The object that the user gave as the risk."""
    return risk.given if isinstance(risk, UserOracle) else risk


def loss_components(risk: Any) -> Iterator[Any]:
    """The loss of a risk, and the losses or the model that it wraps."""
    # a chain of attributes `model` or `loss`; the `loss` of `Structured` is a string
    thing = getattr(risk, "loss", None)
    while thing is not None and not isinstance(thing, str):
        yield thing
        thing = getattr(thing, "model", getattr(thing, "loss", None))


def is_foreign(risk: Any) -> bool:
    """Whether user code computes the risk, so that its cuts may be invalid."""
    return not (is_builtin(user_object(risk)) and all(is_builtin(part) for part in loss_components(risk)))


def describe(risk: Any) -> str:
    """The name of a user-defined loss or risk, for messages."""
    if not is_builtin(user_object(risk)):
        kind = type(user_object(risk))
        return "the risk" if kind.__module__ == "builtins" else f"the risk {kind.__name__}"
    return next(
        (type(part).__name__ for part in loss_components(risk) if not is_builtin(part)), type(risk).__name__
    )


def refuse_nan(risk: Any, value: float, product: float) -> None:
    """Raise a ValueError for a user-defined risk that is NaN, or whose product of gradient and point is."""
    if is_foreign(risk) and (value != value or product != product):
        what = f"the gradient of {describe(risk)}" if value == value else describe(risk)
        raise ValueError(
            f"{what} is NaN at a point that the run came to: return finite numbers for any w, "
            "or infinity as the value where numbers overflow"
        )
