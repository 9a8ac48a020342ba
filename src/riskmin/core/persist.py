"""Named arrays and JSON metadata in one safetensors file, written atomically; without pickle, for safety."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.core import NDArray, atomic_files
from riskmin.core.messages import one_line


class FileError(ValueError):
    """Raised for a file that cannot be used; the message gives the cause and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def save_arrays(path: str | os.PathLike[str], arrays: dict[str, NDArray], meta: dict[str, Any]) -> None:
    """Write arrays and JSON-able metadata to path, atomically: a reader sees the old file or the new one.

    Parameters
    ----------
    path : path
    arrays : dict of ndarray
    meta : dict
        Anything `json.dumps` accepts; "kind" is the kind of the file.
    """
    write_atomically(path, to_bytes(arrays, meta))


def to_bytes(arrays: Mapping[str, NDArray], meta: dict[str, Any]) -> bytes:
    """Return the bytes of a safetensors file; equal contents have equal bytes.

    Examples
    --------
    >>> arrays, meta = from_bytes(to_bytes({"w": np.array([1.0, 2.0])}, {"kind": "point"}), max_header=1000)
    >>> arrays["w"], meta
    (array([1., 2.]), {'kind': 'point'})
    """
    from safetensors.numpy import save

    return save({k: np.ascontiguousarray(v) for k, v in arrays.items()}, {"riskmin": json.dumps(meta)})


def from_bytes(data: bytes, max_header: int) -> tuple[dict[str, NDArray], Any]:
    """Return arrays and metadata of `to_bytes`; raise a ValueError for other bytes, or a longer header."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(max_header, len(data) - 8):
        raise ValueError(f"its header has {length:,} bytes, more than allowed or than there are")
    try:
        text = parse_nested(json.loads, data[8 : 8 + length])["__metadata__"]["riskmin"]
        meta = parse_nested(partial(json.loads, parse_constant=_refuse_constant), text)
        return load(data), meta
    except (SafetensorError, ValueError, TypeError, LookupError):  # LookupError: NumPy lacks the type
        raise ValueError("its bytes are not metadata and the arrays that its header declares") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def write_atomically(path: str | os.PathLike[str], blob: bytes) -> None:
    """Write a file atomically, with the permissions of the file it replaces, or those of a new file.

    Parameters
    ----------
    path : path
        If it is a symbolic link, the file that it refers to is replaced, and the link stays.
    blob : bytes
    """
    try:
        with atomic_files.atomic_write(path) as file:
            file.write(blob)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {atomic_files.error_text(error)}") from None


def load_arrays(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, NDArray], dict[str, Any]]:
    """Read what `save_arrays` wrote.

    Parameters
    ----------
    path : path
    kind : str
        The expected entry "kind" of the metadata.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            meta = parse_nested(json.loads, (file.metadata() or {}).get("riskmin", "null"))
            arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise FileError(f"{path} does not exist: check the path") from None
    except (
        SafetensorError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
    ) as error:
        # dtypes that NumPy lacks, such as BF16, raise various errors
        raise FileError(f"{path} is not a whole riskmin file ({error}): it is truncated or damaged") from None
    if not isinstance(meta, dict) or meta.get("kind") != kind:
        raise FileError(f"{path} is not a riskmin {kind} file")
    return arrays, meta


def is_saved(path: Path) -> bool:
    """Whether a file begins as those of `save_arrays` do: with the length of a header, and its brace."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(9)
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size


def parse_nested(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    """Return what `json.loads` or `tomllib.loads` reads; nesting that is too deep is a ValueError.

    Examples
    --------
    >>> parse_nested(json.loads, "[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: its values are nested too deeply
    """
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def checksum(arrays: dict[str, NDArray], meta: dict[str, Any]) -> str:
    """Return the SHA-256 of the metadata and of every array, with names, dtypes and shapes."""
    # sorted keys and names: the order of a dictionary must not matter
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
