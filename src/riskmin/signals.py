"""SIGTERM and SIGHUP, by which clusters, services and closed terminals end programs, treated as Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

ENDING: tuple[int, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that ask a program to end, beside Ctrl-C."""
SAME_REQUEST = 1.0
"""Seconds in which a signal that comes again is the same: `timeout` sends it to a process and its group."""
_last = 0


def last() -> int:
    """The signal that interrupted last; SIGINT unless it was one of `ENDING`."""
    return _last or signal.SIGINT


def note(number: int) -> None:
    """Remember which signal interrupts."""
    global _last
    _last = 0 if number == signal.SIGINT else number


class _Raiser:
    """A handler that raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.at, self.number = float("-inf"), 0

    def __call__(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if now - self.at < SAME_REQUEST:
            return
        self.at, self.number = now, number
        note(number)
        raise KeyboardInterrupt


def _in_main_thread() -> bool:
    """Whether handlers can be set here."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _raising() -> Iterator[_Raiser]:
    """A block in which signals of `ENDING` that nobody handles raise KeyboardInterrupt."""
    handler = _Raiser()
    free = [number for number in ENDING if _in_main_thread() and signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in free:
            signal.signal(number, handler)
        yield handler
    finally:
        for number in free:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """A block, of a command, in which SIGTERM and SIGHUP are Ctrl-C.

    One that is ignored (as `nohup` has it) or has a handler stays so.

    Examples
    --------
    >>> with as_interrupts():
    ...     try:
    ...         signal.raise_signal(signal.SIGTERM)
    ...     except KeyboardInterrupt:
    ...         print("ended by signal", int(last()))
    ended by signal 15
    """
    note(signal.SIGINT)
    with _raising():
        yield


@contextlib.contextmanager
def until_saved(wanted: bool) -> Iterator[None]:
    """A block, of a library, in which SIGTERM and SIGHUP are Ctrl-C; after it, they do what they would have.

    The program ends by the signal as it would have ended without us, but what is found is saved before.

    Parameters
    ----------
    wanted : bool
        Whether there is anything to save to; if not, signals are left alone. So they are where the program
        handles them itself, and outside of the main thread.
    """
    if not wanted:
        yield
        return
    with _raising() as handler:
        try:
            yield
        finally:
            if handler.number:
                signal.signal(handler.number, signal.SIG_DFL)
                signal.raise_signal(handler.number)


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """A block that writes what was found: signals that would interrupt it come too late to.

    Who asks again after a second gets through: a disk may not answer.
    """
    before: dict[int, Any] = {}
    seen: list[float] = []

    def late(number: int, frame: Any) -> None:
        seen.append(time.monotonic())
        if seen[-1] - seen[0] >= SAME_REQUEST:
            before[number](number, frame)

    try:
        if _in_main_thread():
            for number in interrupting():
                before[number] = signal.signal(number, late)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupting() -> list[int]:
    """The signals that raise KeyboardInterrupt now: Ctrl-C, and those that we made so."""
    ours = [number for number in ENDING if isinstance(signal.getsignal(number), _Raiser)]
    return [signal.SIGINT, *ours] if callable(signal.getsignal(signal.SIGINT)) else ours


# ---------------------------------------------------------------- worker processes
@contextlib.contextmanager
def withheld() -> Iterator[None]:
    """A block that starts processes which do not hear SIGTERM until they call `mind_only`."""
    if not hasattr(signal, "sigwaitinfo"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # which would change the mask, if it were started within
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def mind_only(parent: int) -> None:
    """In a worker process: a signal to all processes of a run is the driver's to handle.

    It still needs us for its last point, and we end when it does. Only its own SIGTERM, that of `terminate`,
    ends us. Where the system does not tell who sent a signal, SIGTERM ends us whoever sent it.

    Parameters
    ----------
    parent : int
        The process id of the driver.
    """
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(parent,), daemon=True).start()


def _obey(parent: int) -> None:
    """Wait for the SIGTERM of one process, and end by it."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
