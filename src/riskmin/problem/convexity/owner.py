"""Whether a risk is computed by riskmin's code, or by user code whose properties are unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from riskmin.problem.objective import Oracle


def is_builtin(thing: object) -> bool:
    """Whether the class of an object is defined in riskmin."""
    return type(thing).__module__.partition(".")[0] == "riskmin"


def loss_components(risk: Oracle) -> tuple[Any, ...]:
    """The loss of a risk, and the losses or the model that it wraps."""
    return () if risk.loss is None else risk.loss.components


def is_foreign(risk: Oracle) -> bool:
    """Whether user code computes the risk, so that its cuts may be invalid."""
    return not (is_builtin(risk.source) and all(is_builtin(part) for part in loss_components(risk)))


def describe(risk: Oracle) -> str:
    """The name of a user-defined loss or risk, for messages."""
    if not is_builtin(risk.source):
        kind = type(risk.source)
        return "the risk" if kind.__module__ == "builtins" else f"the risk {kind.__name__}"
    return next(
        (type(part).__name__ for part in loss_components(risk) if not is_builtin(part)), type(risk).__name__
    )


def refuse_nan(risk: Oracle, value: float, product: float) -> None:
    """Raise a ValueError for a user-defined risk that is NaN, or whose product of gradient and point is."""
    if is_foreign(risk) and (value != value or product != product):
        what = f"the gradient of {describe(risk)}" if value == value else describe(risk)
        raise ValueError(
            f"{what} is NaN at a point that the run came to: return finite numbers for any w, "
            "or infinity as the value where numbers overflow"
        )
