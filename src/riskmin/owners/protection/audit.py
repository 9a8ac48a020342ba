"""The owner's log of all answers: one JSON object per line, each with a keyed hash of the chain so far.

.. math:: h_n = \\mathrm{HMAC}_k(h_{n-1} \\,\\|\\, \\text{line}_n),

with a key k that is derived from the owner's private key. A changed, inserted or removed line breaks the
chain from there on, and nobody without the key can compute another one. Lines cut off at the end, or a
chain that the owner itself has written again, are noticed by heads :math:`(n, h_n)` in other places:
owners exchange theirs at the start of each run, and write those of the others into their logs.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from riskmin.core.persist import parse_nested

START = "0" * 64
"""The hash before the first line."""


class LogNotWritten(OSError):
    """Raised if a line is not on the disk: the answer that it records must not go out."""


class AuditError(ValueError):
    """Raised if the chain of a log is broken; the message names the line."""


def chain_key(private_key: bytes) -> bytes:
    """Return the key of an owner's chain, from the bytes of its private key file."""
    return hashlib.sha256(b"riskmin audit chain\0" + private_key).digest()


def read_log(path: Path, key: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the entries of a log, and raise `AuditError` at the first line that breaks the chain."""
    last = START
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            entry = _parse(line)
            if entry is not None and entry.get("keyed", False) is not bool(key):
                raise AuditError(
                    f"{path}, line {number}: the chain is {'not ' if key else ''}keyed: give the key of the "
                    "owner that wrote the log, or no key for a log without one"
                )
            if entry is None or entry.get("hash") != _line_hash(last, entry, key):
                raise AuditError(
                    f"{path}, line {number}: the line was changed, one before it was removed, or the key is "
                    "another one"
                )
            last = entry["hash"]
            yield entry


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = parse_nested(lambda text: json.loads(text, object_pairs_hook=_without_duplicates), line)
    except ValueError:
        return None
    return entry if type(entry) is dict and line.endswith(b"\n") else None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        raise ValueError("a name occurs twice")
    return entry


def _line_hash(last: str, entry: dict[str, Any], key: bytes) -> str:
    body = (last + json.dumps({k: v for k, v in entry.items() if k != "hash"}, sort_keys=True)).encode()
    return hmac.new(key, body, "sha256").hexdigest() if key else hashlib.sha256(body).hexdigest()


def missing_heads(name: str, own: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of an owner's lines that another owner has seen, but that are not in its log."""
    hashes = {entry["n"]: entry["hash"] for entry in own}
    seen = [entry["heads"][name] for entry in other if name in entry.get("heads", {})]
    return sorted({n for n, head in seen if n and hashes.get(n) != head})


class AuditLog:
    """An append-only log in a file; without a file, in memory.

    Parameters
    ----------
    path : path, optional
        Created if it does not exist; a chain that is broken is refused.
    key : bytes
        The key of the chain; without it, anyone can compute the hashes.

    Examples
    --------
    >>> log = AuditLog()
    >>> _ = log.append(who="coordinator", what="pull_back", decision="answered", value=0.5)
    >>> log.entries[0]["who"], len(log.entries[0]["hash"])
    ('coordinator', 64)
    """

    def __init__(self, path: Path | None = None, key: bytes = b"") -> None:
        self.path, self.key, self.n, self.last = path, key, 0, START
        self.entries: list[dict[str, Any]] = []
        self.last_entry: dict[str, Any] | None = None
        self._file: Any = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = self._remove_torn_line(path) if path.exists() else 0
        for entry in self.read():
            self.n, self.last, self.last_entry = self.n + 1, entry["hash"], entry
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        if torn:
            self.append(
                who="", what="start", decision="repaired", reason=f"{torn} bytes of a torn line removed"
            )

    @staticmethod
    def _remove_torn_line(path: Path) -> int:
        """Remove what follows the last line end: a line that was written when the process was killed."""
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
        return len(data) - whole

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield all entries; those of a file are not held in memory."""
        if self.path is None:
            yield from self.entries
        elif self.path.exists():
            yield from read_log(self.path, self.key)

    @property
    def head(self) -> list[Any]:
        """The number and the hash of the last line."""
        return [self.n, self.last]

    def append(self, **entry: Any) -> dict[str, Any]:
        """Add an entry with the time and the hash of the chain, and return it once it is on the disk."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        full = {"n": self.n + 1, "time": now, **entry} | ({"keyed": True} if self.key else {})
        full["hash"] = _line_hash(self.last, full, self.key)
        if self._file is not None:
            self._write(json.dumps(full, sort_keys=True).encode() + b"\n")
        else:
            self.entries.append(full)
        self.n, self.last, self.last_entry = self.n + 1, full["hash"], full
        return full

    def _write(self, line: bytes) -> None:
        """Write a line and wait for the disk; where that fails, remove what was written of it, and raise."""
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError("the disk is full")
            os.fsync(self._file.fileno())
        except OSError as error:
            os.ftruncate(self._file.fileno(), size)
            raise LogNotWritten(
                f"the audit log cannot be written ({error.strerror or error}): free space on its disk, "
                "since no answer is given before"
            ) from None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
