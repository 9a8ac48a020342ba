"""Answers as messages: numbers in one array, each array by its position, or all in one masked vector."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from riskmin.owners.protection.masks import from_parts
from riskmin.owners.wire.codec import OwnerMessage


class Answer(NamedTuple):
    """The result of an operation, and what the log records of it."""

    result: tuple[Any, ...]
    gradient_error: float = 0.0
    """The largest error of an entry of the gradient: by rounding, or a bound of noise."""
    value: float | None = None
    """The claimed objective on the owner's rows."""
    norm: float | None = None


def answer_message(answer: Answer) -> OwnerMessage:
    """Return the message of an answer: numbers in one array, and each array by its position."""
    layout = "".join("a" if isinstance(x, np.ndarray) else "s" for x in answer.result)
    scalars = [float(x) for x in answer.result if not isinstance(x, np.ndarray)]
    arrays = {str(k): x for k, x in enumerate(answer.result) if isinstance(x, np.ndarray)}
    return OwnerMessage(
        "answer",
        {"layout": layout, "gradient_error": answer.gradient_error},
        {"scalars": np.array(scalars, dtype=np.float64), **arrays},
    )


def answer_result(message: OwnerMessage) -> tuple[tuple[Any, ...], float]:
    """Return the result of an answer's message, and the error of its gradient."""
    scalars = iter(message.arrays["scalars"].tolist())
    layout = message.fields["layout"]
    result = tuple(message.arrays[str(k)] if kind == "a" else next(scalars) for k, kind in enumerate(layout))
    return result, float(message.fields["gradient_error"])


def unmasked_result(messages: list[OwnerMessage]) -> tuple[tuple[Any, ...], float]:
    """Return the sum of the results of masked answers, and of the errors of their gradients."""
    fields = messages[0].fields
    parts = [message.arrays["masked"] for message in messages]
    total = from_parts(np.add.reduce(parts, axis=0, dtype=np.uint64))
    layout, n = fields["layout"], fields["layout"].count("s")
    scalars, start = iter(total[:n].tolist()), n + 1
    result: list[Any] = []
    for k, kind in enumerate(layout):
        if kind == "s":
            result.append(next(scalars))
            continue
        shape = fields["shapes"][str(k)]
        size = int(np.prod(shape))
        result.append(total[start : start + size].reshape(shape))
        start += size
    return tuple(result), float(total[n])
