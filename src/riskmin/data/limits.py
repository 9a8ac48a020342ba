"""Limits on the memory and time that readers may take: a small file can expand to more than a machine has.

Compressed files, headers with huge shapes and lines without an end raise an error once the memory held by the
reader exceeds the limit, before the memory of the machine is exhausted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from riskmin.arrays.memory_map import memory_limit_bytes
from riskmin.core.deadline import check
from riskmin.data.base import DataError

_max_memory: ContextVar[float | None] = ContextVar("max_memory", default=None)
current_max_memory = _max_memory.get
"""Return the current limit in megabytes; None for the default."""


@contextmanager
def memory_limited(max_memory: float | None) -> Iterator[None]:
    """Block in which readers may take at most `max_memory` megabytes; None keeps the current limit.

    Examples
    --------
    >>> with memory_limited(2):
    ...     max_bytes()
    2097152
    """
    if max_memory is None:
        yield
        return
    if isinstance(max_memory, bool) or not 0 < max_memory < math.inf:
        raise ValueError(f"max_memory={max_memory!r}: give a finite number of megabytes > 0")
    # a context variable: each thread and task has its own limit
    before = _max_memory.get()
    try:
        _max_memory.set(float(max_memory))
        yield
    finally:
        _max_memory.set(before)


def max_bytes() -> int:
    """Return the limit in bytes: the given one, or else the memory that is available to this process."""
    megabytes = _max_memory.get()
    return memory_limit_bytes() if megabytes is None else int(megabytes * 2**20)


class MemoryBudget:
    """Count of the memory that a reader of one file holds, with the current limit.

    Parameters
    ----------
    name : object
        The file.

    Examples
    --------
    >>> with memory_limited(1):
    ...     budget = MemoryBudget("big.csv")
    >>> budget.reserve(2**19)
    >>> budget.require(2**20)
    Traceback (most recent call last):
    ...
    riskmin.data.base.DataError: big.csv: reading it takes more memory than the limit of 1 MB; ...
    """

    def __init__(self, name: object) -> None:
        self.name, self.limit, self.used = name, max_bytes(), 0

    def reserve(self, size: int) -> None:
        """Add `size` bytes to the memory held; raise a DataError if that exceeds the limit."""
        self.require(size)
        self.used += size

    def require(self, size: int) -> None:
        """Raise a DataError if `size` more bytes would exceed the limit; check the time limit as well.

        Readers ask for the memory of each block of rows, so that the clock is checked several times a second.
        """
        check()
        if self.used + size > self.limit:
            problem = (
                f"reading it takes more memory than the limit of {self.limit / 2**20:,.0f} MB; check that it "
                "is the right file, and raise the limit (--max-memory, max_memory=) if it is"
            )
            raise DataError(self.name, None, problem)
