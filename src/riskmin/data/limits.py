"""How much memory a reader may take: a small file can stand for more than a machine has.

Compressed files, headers that declare huge shapes and lines that never end are stopped where what is held
of them passes the limit, not where the machine does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from riskmin.data.base import DataError
from riskmin.maps import allowed

_given: ContextVar[float | None] = ContextVar("max_memory", default=None)
given = _given.get
"""The limit that was given here, in megabytes; None for the default."""


@contextmanager
def limited(max_memory: float | None) -> Iterator[None]:
    """A block in which readers take so many megabytes at most; None leaves what holds here.

    Examples
    --------
    >>> with limited(2):
    ...     most()
    2097152
    """
    if max_memory is None:
        yield
        return
    if isinstance(max_memory, bool) or not 0 < max_memory < math.inf:
        raise ValueError(f"max_memory={max_memory!r}: give a finite number of megabytes > 0")
    token = _given.set(float(max_memory))
    try:
        yield
    finally:
        _given.reset(token)


def most() -> int:
    """How many bytes a reader may take: what was given, else what this process may have at all."""
    found = _given.get()
    return allowed() if found is None else int(found * 2**20)


class Room:
    """What a reader holds of a file, counted.

    Parameters
    ----------
    name : object
        The file.

    Examples
    --------
    >>> with limited(1):
    ...     room = Room("big.csv")
    >>> room.take(2**19)
    >>> room.need(2**20)
    Traceback (most recent call last):
    ...
    riskmin.data.base.DataError: big.csv: reading it takes more memory than the limit of 1 MB; ...
    """

    def __init__(self, name: object) -> None:
        self.name, self.most, self.held = name, most(), 0

    def take(self, size: int) -> None:
        """Hold so many bytes more."""
        self.need(size)
        self.held += size

    def need(self, size: int) -> None:
        """Raise where so many bytes more would be too many."""
        if self.held + size > self.most:
            problem = (
                f"reading it takes more memory than the limit of {self.most / 2**20:,.0f} MB; check that it "
                "is the right file, and raise the limit (--max-memory, max_memory=) if it is"
            )
            raise DataError(self.name, None, problem)
