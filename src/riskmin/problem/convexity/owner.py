"""Whether a risk is computed by riskmin's code, or by user code whose properties are unknown."""

from __future__ import annotations

from typing import Any

from riskmin.problem.oracle import Oracle


def is_builtin(thing: object) -> bool:
    """Whether the class of an object is defined in riskmin.

    Examples
    --------
    >>> from riskmin import Hinge
    >>> is_builtin(Hinge()), is_builtin(object())
    (True, False)
    """
    return type(thing).__module__.partition(".")[0] == "riskmin"


def loss_components(risk: Oracle) -> tuple[Any, ...]:
    """The loss of a risk, and the losses or the model that it wraps."""
    return () if risk.loss is None else risk.loss.components


def is_foreign(risk: Oracle) -> bool:
    """Whether user code computes the risk, so that its cuts may be invalid.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> class Mine(Hinge):
    ...     __module__ = "a_module_of_yours"
    >>> [is_foreign(linear_risk(np.eye(2), [1.0, -1.0], loss)) for loss in (Hinge(), Mine())]
    [False, True]
    """
    return not (is_builtin(risk.source) and all(is_builtin(part) for part in loss_components(risk)))


def describe(risk: Oracle) -> str:
    """The name of a user-defined loss or risk, for messages.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> from riskmin.problem.oracle import as_oracle
    >>> class Mine(Hinge):
    ...     __module__ = "a_module_of_yours"
    >>> describe(linear_risk(np.eye(2), [1.0, -1.0], Mine())), describe(as_oracle(lambda w: (0.0, w)))
    ('Mine', 'the risk')
    """
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
