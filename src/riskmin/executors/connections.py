"""Calls over a connection: each message begins with its number, and the reply repeats it.

A call may be interrupted at any point, so that its reply comes after the next call began.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from riskmin.core import blas_threads
from riskmin.core.deadline import LIMIT_POLL_SECONDS, TimeLimit, check, current_limit
from riskmin.executors.errors import portable

NUMBER_BYTES = 8
"""Length of the number of a message."""


def numbered(number: int, message: bytes) -> bytes:
    """Return a message with its number."""
    return number.to_bytes(NUMBER_BYTES, "little") + message


def seconds_left() -> float:
    """Return the seconds until the deadline: they are sent, since the clocks of processes may differ."""
    return current_limit().deadline - time.perf_counter()


def answer(
    conn: Connection,
    unpack: Callable[[bytes], Any],
    pack: Callable[[Any], bytes],
    run: Callable[..., Any],
) -> bool:
    """Receive ``(*arguments, seconds)`` and reply ``(True, run(*arguments))`` or (False, the error).

    Return False for an empty message, by which the other side ends the worker.
    """
    message = conn.recv_bytes()
    if not message:
        return False
    try:
        *arguments, seconds = unpack(message[NUMBER_BYTES:])
        blas_threads.limit_new_libraries()
        results = TimeLimit(time.perf_counter() + seconds).call(run, *arguments)
        reply = pack((True, results))
    except Exception as error:  # also where a function or its result cannot be pickled
        reply = pack((False, portable(error, "a worker process")))
    conn.send_bytes(message[:NUMBER_BYTES] + reply)
    return True


class WorkerConnection(ABC):
    """The end of the connection to a worker that is in this process."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.number = 0  # of the last message

    @abstractmethod
    def raise_lost(self) -> NoReturn:
        """Raise the error for a worker that ended."""

    def send_message(self, message: bytes) -> None:
        """Send a message with the next number."""
        self.number += 1
        try:
            self.conn.send_bytes(numbered(self.number, message))
        except OSError:
            self.raise_lost()

    def receive_message(self) -> bytes:
        """Return the reply to the last message."""
        message = self._next_message()
        # replies to calls that were interrupted before they received them
        while not message.startswith(numbered(self.number, b"")):
            message = self._next_message()
        return message[NUMBER_BYTES:]

    def _next_message(self) -> bytes:
        """Receive the next message, before it is unpickled: one that cannot be unpickled is consumed, too."""
        try:
            while not self.conn.poll(
                LIMIT_POLL_SECONDS
            ):  # interrupts are raised in this wait, never within a message
                check()
            return self._receive_bytes()
        except (EOFError, OSError):
            self.raise_lost()

    def _receive_bytes(self) -> bytes:
        return self.conn.recv_bytes()


def raise_first(replies: list[tuple[bool, Any]]) -> None:
    """Raise the first error among replies."""
    for succeeded, reply in replies:
        if not succeeded:
            raise reply
