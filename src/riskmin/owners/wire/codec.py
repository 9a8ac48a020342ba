"""Messages between coordinator and owner: a JSON header with typed fields, then arrays of declared shape.

A message is ``RMO1``, the length of the header (4 bytes, little-endian), the header, and the entries of the
arrays in its order. The header declares dtype and shape of each array. Nothing in a message is executed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.core import NDArray

MAGIC = b"RMO1"
DTYPES = {name: np.dtype(name) for name in ("<f8", "<u8", "<i8")}
"""The types of entries that a message may hold."""


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
    """Return the bytes of a message."""
    arrays = {name: _wire_array(name, a) for name, a in message.arrays.items()}
    declared = [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]
    header = json.dumps(
        {"kind": message.kind, "fields": dict(message.fields), "arrays": declared}, separators=(",", ":")
    ).encode()
    # the arrays begin at a multiple of 8 bytes, so that those of the receiver are aligned
    header += b" " * (-len(header) % 8)
    return b"".join([MAGIC, struct.pack("<I", len(header)), header, *(a.tobytes() for a in arrays.values())])


def _wire_array(name: str, a: NDArray) -> NDArray:
    kind = {"f": "<f8", "u": "<u8"}.get(a.dtype.kind, "<i8")
    if a.dtype.kind not in "fui":
        raise MessageError(f"the array {name!r} holds {a.dtype}, which is not sent: give numbers")
    return np.ascontiguousarray(a, dtype=DTYPES[kind])


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
    if len(data) < 8 or data[:4] != MAGIC:
        raise MessageError("the message does not begin like one: it is no message of riskmin")
    (length,) = struct.unpack_from("<I", data, 4)
    if length > MAX_HEADER or 8 + length > len(data):
        raise MessageError(f"the header has {length:,} bytes, more than allowed or than were sent")
    kind, fields, declared = _parse_header(data[8 : 8 + length])
    arrays, start = {}, 8 + length
    for entry in declared:
        name, dtype, shape = _check_declaration(entry)
        n = math.prod(shape)
        if name in arrays or start + n * 8 > len(data):
            raise MessageError(f"the array {name!r} is declared twice, or with more entries than were sent")
        arrays[name] = np.frombuffer(data, dtype, n, start).reshape(shape)
        start += n * 8
    if start != len(data):
        raise MessageError(f"{len(data) - start:,} bytes follow the arrays that the header declares")
    return OwnerMessage(kind, fields, arrays)


def _parse_header(data: bytes) -> tuple[str, dict[str, Any], list[Any]]:
    try:
        header = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError, too
        raise MessageError("the header is not JSON") from None
    if type(header) is not dict or set(header) != {"kind", "fields", "arrays"}:
        raise MessageError("the header has other entries than kind, fields and arrays")
    kind, fields, arrays = header["kind"], header["fields"], header["arrays"]
    if type(kind) is not str or type(fields) is not dict or type(arrays) is not list:
        raise MessageError("the header has entries of wrong types")
    if len(arrays) > MAX_ARRAYS or len(kind) > 64:
        raise MessageError("the header declares too many arrays, or a kind that is too long")
    return kind, fields, arrays


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _check_declaration(entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    """Return name, dtype and shape of a declared array."""
    valid = (
        type(entry) is list
        and len(entry) == 3
        and type(entry[0]) is str
        and type(entry[1]) is str
        and entry[1] in DTYPES
        and type(entry[2]) is list
        and 1 <= len(entry[2]) <= 2
        and all(type(n) is int and 0 <= n < 2**48 for n in entry[2])
    )
    if not valid:
        raise MessageError("an array is declared without a name, a dtype that is sent, or a shape")
    return entry[0], DTYPES[entry[1]], tuple(entry[2])
