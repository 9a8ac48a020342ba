"""Time limits that act within an iteration: loops check the clock, and long calls are split into chunks.

The driver sets a limit, `check` raises `OutOfTime` once it has passed, and the driver ends the run with the
best point so far. Limits do not change results: a run that ends before its limit has the same bits as one
without a limit. Ctrl-C is handled at the same places, since Python runs signal handlers between two calls of
compiled code and not within one.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

MAX_KERNEL_OPERATIONS = 2**26
"""Largest number of elementary operations in one call of a compiled loop: from 0.03 to 0.15 seconds."""
LIMIT_POLL_SECONDS = 0.1
"""Interval in seconds at which a waiting thread checks its limit, which another thread may change."""
THREADED_CALL_OPERATIONS = 2**30
"""BLAS and LAPACK calls of at least this many operations run in another thread.

Their operations are about ten times as fast as those of compiled loops.
"""


class OutOfTime(Exception):
    """Raised once the limit has passed; the driver catches it, so that users never see it."""


class TimeLimit:
    """Deadline after which `check` raises, in all code that runs under the limit.

    Parameters
    ----------
    deadline : float
        Value of `time.perf_counter`. It may be changed at any time, also by other threads.
    """

    __slots__ = ("deadline",)

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline

    def call(self, f: Callable[..., T], *args: Any) -> T:
        """Call a function under this limit instead of the current one."""
        before = current_limit()
        try:
            # within the block: Ctrl-C strikes right after a call, and this limit must not outlive it
            _limit.set(self)
            return f(*args)
        finally:
            _limit.set(before)


NEVER = math.inf
"""The deadline of a limit that never passes."""
# A context variable: each thread has its current limit, and `TimeLimit.call` restores the previous one.
_limit: contextvars.ContextVar[TimeLimit] = contextvars.ContextVar("limit", default=TimeLimit())  # noqa: B039
current_limit = _limit.get
"""Return the current limit."""


def check() -> None:
    """Raise `OutOfTime` if the current limit has passed."""
    deadline = current_limit().deadline
    if deadline != NEVER and time.perf_counter() >= deadline:  # reading the clock is the expensive part
        raise OutOfTime


def chunk_ranges(start: int, stop: int, work: float, multiple: int = 1) -> Iterable[tuple[int, int]]:
    """Split the range from start to stop into consecutive ranges, with a check of the clock before each.

    Parameters
    ----------
    start, stop : int
    work : float
        Number of elementary operations for the whole range; each part has at most
        `MAX_KERNEL_OPERATIONS`, if they are evenly distributed.
    multiple : int
        Ranges begin at multiples of this number, counted from `start`.
    """
    if work <= MAX_KERNEL_OPERATIONS:
        check()
        return ((start, stop),)
    # Rows per chunk, rounded down to the multiple, but at least one multiple.
    step = max(int((stop - start) * (MAX_KERNEL_OPERATIONS / work)) // multiple, 1) * multiple
    return _checked(start, stop, step)


def _checked(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of `step` indices, with a check of the clock before each."""
    for i in range(start, stop, step):
        check()
        yield i, min(i + step, stop)


def fill_in_chunks(
    kernel: Any, parts: tuple[Any, ...], v: Any, start: int, stop: int, out: Any, work: float
) -> None:
    """Call ``kernel(*parts, v, start, stop, out)``, setting one entry of `out` per row, in chunks."""
    for i, j in chunk_ranges(start, stop, work):
        kernel(*parts, v, i, j, out[i - start : j - start])


def scatter_in_chunks(
    kernel: Any, parts: tuple[Any, ...], v: Any, start: int, stop: int, out: Any, work: float
) -> None:
    """Call ``kernel(*parts, v, start, stop, out)``, reading one entry of v per row, in chunks."""
    for i, j in chunk_ranges(start, stop, work):
        kernel(*parts, v[i - start : j - start], i, j, out)


def check_each(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items, with a check of the clock before each."""
    for item in items:
        check()
        yield item


def interruptible_call(
    work: float, f: Callable[..., T], *args: Any, cancel: Callable[[], object] = lambda: None
) -> T:
    """Call f(*args), which cannot be split into chunks; a long call runs in another thread.

    That thread is abandoned when time runs out or on Ctrl-C. So f must release the GIL, and nothing else may
    use the memory that it writes to.

    Parameters
    ----------
    work : float
        Number of operations of the call: from `THREADED_CALL_OPERATIONS` on, it runs in another thread.
    f : callable
    *args : object
    cancel : callable
        Called if the thread is abandoned.
    """
    check()
    if work < THREADED_CALL_OPERATIONS:
        return f(*args)
    # Lists that the thread fills: a thread has no return value, and its exceptions would be lost.
    results: list[T] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()  # it holds NumPy's error state

    def run() -> None:
        try:
            results.append(context.run(f, *args))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="riskmin-aside", daemon=True)
    thread.start()
    try:
        # A single join until the deadline would miss that another thread changes it.
        while thread.is_alive():
            thread.join(min(max(current_limit().deadline - time.perf_counter(), 0.0), LIMIT_POLL_SECONDS))
            if thread.is_alive():
                check()
    except BaseException:
        cancel()
        raise
    if errors:
        raise errors[0]
    return results[0]


def interruptible_matmul(A: Any, B: Any) -> Any:
    """Return A @ B for dense matrices, as an `interruptible_call`."""
    # m k n multiplications and as many additions
    return interruptible_call(2.0 * A.shape[0] * A.shape[1] * B.shape[-1], A.__matmul__, B)
