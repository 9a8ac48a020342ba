"""The owner's log of all requests: one JSON object per line, each with the hash of the line before.

.. math:: h_n = \\mathrm{SHA256}(h_{n-1} \\,\\|\\, \\text{line}_n).

A changed, inserted or removed line breaks the chain from there on. Lines cut off at the end are not noticed
by the chain alone: keep the last hash, which `riskmin audit log` prints, in another place.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from riskmin.core.persist import parse_nested

START = "0" * 64
"""The hash before the first line."""


class AuditError(ValueError):
    """Raised if the chain of a log is broken; the message names the line."""


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log, and raise `AuditError` at the first line that breaks the chain."""
    last = START
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            entry = _parse(line)
            if entry is None or entry.get("hash") != _line_hash(last, entry):
                raise AuditError(f"{path}, line {number}: the line was changed, or one before it was removed")
            last = entry["hash"]
            yield entry


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = parse_nested(json.loads, line)
    except ValueError:
        return None
    return entry if type(entry) is dict and line.endswith(b"\n") else None


def _line_hash(last: str, entry: dict[str, Any]) -> str:
    body = json.dumps({k: v for k, v in entry.items() if k != "hash"}, sort_keys=True)
    return hashlib.sha256((last + body).encode()).hexdigest()


class AuditLog:
    """An append-only log in a file; without a file, in memory.

    Parameters
    ----------
    path : path, optional
        Created if it does not exist; a chain that is broken is refused.

    Examples
    --------
    >>> log = AuditLog()
    >>> _ = log.append(who="coordinator", what="pull_back", decision="answered", value=0.5)
    >>> log.entries[0]["who"], len(log.entries[0]["hash"])
    ('coordinator', 64)
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.n, self.last = path, 0, START
        self.entries: list[dict[str, Any]] = []
        self.last_entry: dict[str, Any] | None = None
        self._file: Any = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = self._remove_torn_line(path) if path.exists() else 0
        for entry in self.read():
            self.n, self.last, self.last_entry = self.n + 1, entry["hash"], entry
        # one write call per line: a process that is killed leaves at most one incomplete line
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
            yield from read_log(self.path)

    def append(self, **entry: Any) -> dict[str, Any]:
        """Add an entry with the time and the hash of the chain, and return it."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        full = {"n": self.n + 1, "time": now, **entry}
        full["hash"] = _line_hash(self.last, full)
        if self._file is not None:
            self._file.write(json.dumps(full, sort_keys=True).encode() + b"\n")
        else:
            self.entries.append(full)
        self.n, self.last, self.last_entry = self.n + 1, full["hash"], full
        return full

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
