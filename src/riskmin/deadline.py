"""Limits of time that act inside of a step: loops look at the clock, and long calls are made in pieces.

The driver sets a limit, `check` raises `OutOfTime` once that has passed, and the driver ends the run with
what was found before. The clock decides when a run ends, and nothing else: a run that ends before its limit
has the same bits with or without one. Ctrl-C gets through at the same places, since Python delivers it
between two calls and not within one.
"""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 2**26
"""Elementary operations of one call to a compiled loop, at most: they take from 0.03 to 0.15 seconds."""
GLANCE = 0.1
"""Seconds between two looks at a limit that another thread may change."""
LONG = 2**30
"""Those of one call to a library of linear algebra, which takes a tenth as long for each."""


class OutOfTime(Exception):
    """The limit has passed; the driver catches it, so that users never see it."""


class Limit:
    """A time by `time.perf_counter` after which `check` raises, in all that runs under the limit.

    Parameters
    ----------
    at : float
        It may be changed at any time, from other threads too.

    Examples
    --------
    >>> Limit().call(check)
    >>> Limit(at=0.0).call(check)
    Traceback (most recent call last):
    ...
    riskmin.deadline.OutOfTime
    """

    __slots__ = ("at",)

    def __init__(self, at: float = math.inf) -> None:
        self.at = at

    def call(self, f: Callable[..., T], *args: Any) -> T:
        """Call a function under this limit, in the place of the one that holds here."""
        token = _limit.set(self)
        try:
            return f(*args)
        finally:
            _limit.reset(token)


NEVER = math.inf
_limit: contextvars.ContextVar[Limit] = contextvars.ContextVar("limit", default=Limit())  # noqa: B039
current = _limit.get
"""The limit that holds here."""


def check() -> None:
    """Raise `OutOfTime` if the limit that holds here has passed."""
    at = current().at
    if at != NEVER and perf_counter() >= at:  # the clock is what costs most
        raise OutOfTime


def pieces(start: int, stop: int, work: float, of: int = 1) -> Iterable[tuple[int, int]]:
    """Ranges that make up the one from start to stop, with a look at the clock before each.

    Parameters
    ----------
    start, stop : int
    work : float
        How many elementary operations the whole range takes; a piece takes at most `MOST` of them, if they
        are spread evenly.
    of : int
        Pieces begin at multiples of this number, counted from the start.

    Examples
    --------
    >>> list(pieces(0, 10, 10.0)), list(pieces(0, 10, 2.5 * MOST, of=2))
    ([(0, 10)], [(0, 4), (4, 8), (8, 10)])
    """
    if work <= MOST:
        check()
        return ((start, stop),)
    step = max(int((stop - start) * (MOST / work)) // of, 1) * of
    return _checked(start, stop, step)


def _checked(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    for i in range(start, stop, step):
        check()
        yield i, min(i + step, stop)


def fill(kernel: Any, parts: tuple[Any, ...], v: Any, start: int, stop: int, out: Any, work: float) -> None:
    """``kernel(*parts, v, start, stop, out)``, which fills in an entry of `out` a row, in pieces."""
    if work <= MOST:
        check()
        kernel(*parts, v, start, stop, out)
        return
    for i, j in pieces(start, stop, work):
        kernel(*parts, v, i, j, out[i - start : j - start])


def scatter(
    kernel: Any, parts: tuple[Any, ...], v: Any, start: int, stop: int, out: Any, work: float
) -> None:
    """``kernel(*parts, v, start, stop, out)``, v having an entry a row, in pieces."""
    if work <= MOST:
        check()
        kernel(*parts, v, start, stop, out)
        return
    for i, j in pieces(start, stop, work):
        kernel(*parts, v[i - start : j - start], i, j, out)


def checking(things: Iterable[T]) -> Iterator[T]:
    """The same things, with a look at the clock before each."""
    for thing in things:
        check()
        yield thing


def aside(work: float, f: Callable[..., T], *args: Any, cancel: Callable[[], object] = lambda: None) -> T:
    """A call that cannot be made in pieces, of so many operations: a long one is made in another thread.

    There it is left behind when time runs out or Ctrl-C strikes. So it must let go of the interpreter's lock,
    and what it writes to must be of no use to anybody else.

    Parameters
    ----------
    work : float
        How many operations the call takes: from `LONG` on, it is made in another thread.
    f : callable
    *args : object
    cancel : callable
        Called where it is left behind.

    Examples
    --------
    >>> aside(1e12, sum, [1, 2])
    3
    """
    check()
    if work < LONG:
        return f(*args)
    found: list[T] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()  # NumPy keeps there how it treats overflows

    def run() -> None:
        try:
            found.append(context.run(f, *args))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="riskmin-aside", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(min(max(current().at - perf_counter(), 0.0), GLANCE))
            if thread.is_alive():
                check()
    except BaseException:
        cancel()
        raise
    if errors:
        raise errors[0]
    return found[0]


def product(A: Any, B: Any) -> Any:
    """A @ B of dense matrices.

    Examples
    --------
    >>> import numpy as np
    >>> product(np.eye(2), np.ones((2, 1))).tolist()
    [[1.0], [1.0]]
    """
    return aside(2.0 * A.shape[0] * A.shape[1] * B.shape[-1], A.__matmul__, B)
