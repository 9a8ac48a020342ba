"""Objects of users as regularizers."""

from __future__ import annotations

from typing import Any

from riskmin.core import has_method
from riskmin.core.registry import adapted
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.from_conjugate import FromConjugate


def as_regularizer(reg: Any) -> Regularizer:
    """Return an object with the four required methods as a `Regularizer`, with the defaults of the others.

    Of an object that has `conjugate` and `conjugate_grad` only, value and prox are found numerically.
    """
    if isinstance(reg, Regularizer):
        return reg
    by_conjugate = has_method(reg, "conjugate") and has_method(reg, "conjugate_grad")
    if by_conjugate and not (has_method(reg, "value") or has_method(reg, "prox")):
        return FromConjugate(reg)
    missing = [m for m in ("value", "prox", "conjugate", "conjugate_grad") if not has_method(reg, m)]
    if missing:
        raise TypeError(f"{reg!r} is not a regularizer: it has no method {', '.join(missing)}")
    result: Regularizer = adapted(reg, Regularizer, as_regularizer)
    return result
