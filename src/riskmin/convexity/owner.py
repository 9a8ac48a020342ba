"""Whose code computes a risk: riskmin's, or a user's, of which nothing is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from riskmin.adaptive import Adaptive
from riskmin.intercept import Profiled


def is_own(thing: object) -> bool:
    """Whether the class of a thing is riskmin's.

    Examples
    --------
    >>> from riskmin import Hinge
    >>> is_own(Hinge()), is_own(object())
    (True, False)
    """
    return type(thing).__module__.partition(".")[0] == "riskmin"


def plain(risk: Any) -> Any:
    """The risk of the scores, whatever is minimized out of it."""
    return risk.risk if isinstance(risk, (Profiled, Adaptive)) else risk


def parts(risk: Any) -> Iterator[Any]:
    """The loss of a risk, and what that is made of: another loss, or a model."""
    thing = getattr(plain(risk), "loss", None)
    while thing is not None and not isinstance(thing, str):
        yield thing
        thing = getattr(thing, "model", getattr(thing, "loss", None))


def is_foreign(risk: Any) -> bool:
    """Whether code of a user's own computes the risk, so that its cuts may be none.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> class Mine(Hinge):
    ...     __module__ = "a_module_of_yours"
    >>> [is_foreign(linear_risk(np.eye(2), [1.0, -1.0], loss)) for loss in (Hinge(), Mine())]
    [False, True]
    """
    return not (is_own(risk) and all(is_own(part) for part in parts(risk)))


def named(risk: Any) -> str:
    """What a user calls the loss, or the risk where that is the user's own.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> class Mine(Hinge):
    ...     __module__ = "a_module_of_yours"
    >>> named(linear_risk(np.eye(2), [1.0, -1.0], Mine())), named(lambda w: (0.0, w))
    ('Mine', 'the risk')
    """
    if not is_own(risk):
        kind = type(risk)
        return "the risk" if kind.__module__ == "builtins" else f"the risk {kind.__name__}"
    return next((type(part).__name__ for part in parts(risk) if not is_own(part)), type(risk).__name__)


def refuse_nan(risk: Any, value: float) -> None:
    """Raise a ValueError for a risk of the user's own that is NaN, or finite with a gradient that is."""
    if is_foreign(risk):
        what = f"the gradient of {named(risk)}" if value == value else named(risk)
        raise ValueError(
            f"{what} is NaN at a point that the run came to: return finite numbers for any w, "
            "or infinity as the value where numbers overflow"
        )
