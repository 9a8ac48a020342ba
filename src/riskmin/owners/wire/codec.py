"""Messages between coordinator and owner: a kind, fields and arrays, in the bytes of a safetensors file.

Kind and fields are JSON in the metadata of its header. Nothing in a message is executed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.persist import from_bytes, to_bytes

DTYPES = {"f": np.dtype("<f8"), "u": np.dtype("<u8"), "i": np.dtype("<i8")}
"""The types of the entries that are sent, by the kind of those given."""


class MessageError(ValueError):
    """Raised for bytes that are not a valid message."""


@dataclass(frozen=True)
class OwnerMessage:
    """A request or a reply.

    Parameters
    ----------
    kind : str
        The operation, or the kind of a reply.
    fields : dict
        JSON-compatible values.
    arrays : dict
        Arrays by name.

    Examples
    --------
    >>> import numpy as np
    >>> same = decode(encode(OwnerMessage("point", {"key": 3}, {"w": np.array([1.0, 2.0])})))
    >>> same.kind, same.fields, same.arrays["w"]
    ('point', {'key': 3}, array([1., 2.]))
    """

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray] = field(default_factory=dict)


def encode(message: OwnerMessage) -> bytes:
    """Return the bytes of a message; equal messages have equal bytes."""
    arrays = {name: _sent(name, a) for name, a in message.arrays.items()}
    return to_bytes(arrays, {"kind": message.kind, "fields": dict(message.fields)})


def _sent(name: str, a: NDArray) -> NDArray:
    if a.dtype.kind not in DTYPES:
        raise MessageError(f"the array {name!r} holds {a.dtype}, which is not sent: give numbers")
    return a.astype(DTYPES[a.dtype.kind])


MAX_HEADER = 2**20
"""The longest header in bytes: lists of class names and feature names are in it."""
MAX_ARRAYS = 16


def decode(data: bytes, max_bytes: float = math.inf) -> OwnerMessage:
    """Return the message of some bytes; raise `MessageError` unless they are exactly one.

    Parameters
    ----------
    data : bytes
    max_bytes : float
        The largest length that is accepted.
    """
    if len(data) > max_bytes:
        raise MessageError(f"the message has {len(data):,} bytes, more than the {max_bytes:,.0f} allowed")
    try:
        arrays, content = from_bytes(data, MAX_HEADER)
    except ValueError as error:
        raise MessageError(f"the message is not one of riskmin: {error}") from None
    if type(content) is not dict or set(content) != {"kind", "fields"}:
        raise MessageError("the header has other entries than kind and fields")
    kind, fields = content["kind"], content["fields"]
    if type(kind) is not str or type(fields) is not dict:
        raise MessageError("the header has entries of wrong types")
    if len(arrays) > MAX_ARRAYS or len(kind) > 64:
        raise MessageError("the header declares too many arrays, or a kind that is too long")
    if any(a.dtype not in DTYPES.values() or not 1 <= a.ndim <= 2 for a in arrays.values()):
        raise MessageError("an array is declared with a dtype or a shape that is not sent")
    return OwnerMessage(kind, fields, arrays)
