"""Handlers that treat SIGTERM and SIGHUP, sent by clusters, services and closed terminals, like Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

TERMINATION_SIGNALS: tuple[int, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Signals other than SIGINT that ask a program to end."""
_last = 0
"""The last signal of `TERMINATION_SIGNALS` that interrupted; 0 if SIGINT came last."""


def last_signal() -> int:
    """Return the signal of the last interrupt; SIGINT unless it was one of `TERMINATION_SIGNALS`."""
    return _last or signal.SIGINT


def record_signal(number: int) -> None:
    """Record the signal of an interrupt."""
    global _last
    _last = 0 if number == signal.SIGINT else number


class _InterruptHandler:
    """Signal handler that raises KeyboardInterrupt, once per `REPEAT_SECONDS`."""

    REPEAT_SECONDS = 1.0
    """Repeated signals are ignored for this time: `timeout` sends each to the process and to its group."""

    def __init__(self) -> None:
        self.raised_at, self.number = float("-inf"), 0

    def __call__(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if now - self.raised_at < self.REPEAT_SECONDS:
            return
        self.raised_at, self.number = now, number
        record_signal(number)
        raise KeyboardInterrupt


def _in_main_thread() -> bool:
    """Whether this thread may set signal handlers."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _raising() -> Iterator[_InterruptHandler]:
    """Block in which those of `TERMINATION_SIGNALS` that have the default handler raise KeyboardInterrupt."""
    handler = _InterruptHandler()
    # signals that the program handles or ignores stay as they are; only the main thread may set handlers
    unhandled = [
        number
        for number in TERMINATION_SIGNALS
        if _in_main_thread() and signal.getsignal(number) is signal.SIG_DFL
    ]
    try:
        for number in unhandled:
            signal.signal(number, handler)
        yield handler
    finally:
        for number in unhandled:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """Block, for commands, in which SIGTERM and SIGHUP act like Ctrl-C.

    A signal that is ignored (as under `nohup`) or has a handler is left unchanged.

    Examples
    --------
    >>> with as_interrupts():
    ...     try:
    ...         signal.raise_signal(signal.SIGTERM)
    ...     except KeyboardInterrupt:
    ...         print("ended by signal", int(last_signal()))
    ended by signal 15
    """
    record_signal(signal.SIGINT)
    with _raising():
        yield


@contextlib.contextmanager
def deferred_termination() -> Iterator[None]:
    """Block, for library code, in which SIGTERM and SIGHUP act like Ctrl-C and are raised again at its end.

    The program ends by the signal, as it would have without this block, but after its results are saved.
    Handlers stay unchanged where the program handles the signals itself, and outside of the main thread.
    """
    with _raising() as handler:
        try:
            yield
        finally:
            # the default handler ends the program with the exit status of the signal
            if handler.number:
                signal.signal(handler.number, signal.SIG_DFL)
                signal.raise_signal(handler.number)


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Block that writes results: interrupts are ignored in it.

    An interrupt a second or more after the first one is not ignored: a disk may not answer.
    """
    previous: dict[int, Any] = {}
    received: list[float] = []

    def defer(number: int, frame: Any) -> None:
        received.append(time.monotonic())
        # an interrupt a second later goes to the handler from before the block
        if received[-1] - received[0] >= _InterruptHandler.REPEAT_SECONDS:
            previous[number](number, frame)

    try:
        if _in_main_thread():
            for number in interrupting_signals():
                previous[number] = signal.signal(number, defer)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def interrupting_signals() -> list[int]:
    """Return the signals that currently raise KeyboardInterrupt: SIGINT, and those set by this module."""
    set_here = [
        number for number in TERMINATION_SIGNALS if isinstance(signal.getsignal(number), _InterruptHandler)
    ]
    # SIGINT may be ignored, as in background jobs of a shell
    return [signal.SIGINT, *set_here] if callable(signal.getsignal(signal.SIGINT)) else set_here


# ---------------------------------------------------------------- worker processes
@contextlib.contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Block that starts processes in which SIGTERM is blocked until they call `terminate_by_parent_only`."""
    if not hasattr(signal, "sigwaitinfo"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it within the block would change the mask
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def terminate_by_parent_only(parent: int) -> None:
    """In a worker process, ignore interrupts, and accept SIGTERM from the parent process only.

    The parent handles signals that are sent to all processes of a run: it still needs the workers for its
    last evaluation, and ends them by the SIGTERM of `Process.terminate`. Where the system does not report
    the sender of a signal, any SIGTERM ends the worker.

    Parameters
    ----------
    parent : int
        Process id of the parent.
    """
    for number in (signal.SIGINT, *TERMINATION_SIGNALS):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_await_sigterm, args=(parent,), daemon=True).start()


def _await_sigterm(parent: int) -> None:
    """Wait for a SIGTERM from the parent, and end by it."""
    # the signal is blocked, so that it waits here with the id of its sender
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)
