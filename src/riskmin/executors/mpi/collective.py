"""Checked message exchange among the ranks of an MPI job, which keeps all ranks at the same program step."""

from __future__ import annotations

import contextlib
import signal
import struct
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import signals
from riskmin.executors.errors import portable
from riskmin.executors.mpi.messages import INLINE_MESSAGE_BYTES, BufferPool, Message

HEADER_LAYOUT = struct.Struct("<16sqqQqq48s")
"""Binary layout of the fields of `_MessageHeader`."""
FIRST_EXCHANGE_BYTES = HEADER_LAYOUT.size + INLINE_MESSAGE_BYTES
"""Bytes per rank of the first exchange: the header, and the message if it fits. The same in every version."""
FINE, FAILED, STOPPED = range(3)


class _MessageHeader(NamedTuple):
    """Header of a message; ranks must agree on all fields but the state and the lengths."""

    version: bytes
    """Version of riskmin."""
    number: int
    """Number of the exchange, counted by each rank."""
    state: int
    """`FINE`, `FAILED` (the message is an error) or `STOPPED` (interrupted by the user)."""
    checksum: int
    """Checksum of the arguments."""
    length: int
    """Bytes of the pickle."""
    second_bytes: int
    """Bytes of the second exchange; 0 if the message fits into the first."""
    name: bytes
    """Name of the operation."""


class _DeferredInterrupt:
    """Context that defers SIGINT, and SIGTERM where `signals` treats it as an interrupt.

    The interrupt travels with the next message, so that all ranks stop at the same point.
    """

    INTERRUPT_SPREAD_SECONDS = 1.0
    """One Ctrl-C reaches the ranks one after the other, within this time."""

    def __init__(self) -> None:
        self.depth = 0
        self.requested = False
        self.ignored_until = 0.0
        self.previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> None:
        # blocks may be nested: only the outermost one sets handlers; Python allows it in the main thread only
        if self.depth == 0 and threading.current_thread() is threading.main_thread():
            numbers = {signal.SIGINT, *signals.interrupting_signals()}
            self.previous_handlers = {number: signal.signal(number, self._handle) for number in numbers}
        self.depth += 1

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            for number, handler in self.previous_handlers.items():
                signal.signal(number, handler)
            self.previous_handlers = {}

    def _handle(self, number: int, frame: Any) -> None:
        signals.record_signal(number)
        self.requested = self.requested or time.monotonic() >= self.ignored_until

    def acknowledge(self) -> None:
        """Reset the request, now that all ranks have it, and ignore signals of the same key press."""
        self.requested, self.ignored_until = False, time.monotonic() + self.INTERRUPT_SPREAD_SECONDS


class Communicator:
    """Communication of one rank with all others.

    Each exchange begins with blocks of the same size, whatever its content. So ranks that failed, or are at
    different steps of the program, detect that from the headers, and none waits for data never sent.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.number = 0
        self.interrupts, self.buffer_pool = _DeferredInterrupt(), BufferPool()
        self.shared_error: BaseException | None = None  # the last error that was raised on all ranks

    def exchange(self, name: str, checksum: int, make: Callable[[], Any]) -> list[Any]:
        """Call `make` on each rank and return the results of all ranks; an error on one is raised on all.

        Parameters
        ----------
        name : str
            Name of the operation.
        checksum : int
            Checksum of its arguments; an error is raised if ranks have different ones.
        make : callable
            Returns the object that this rank sends.
        """
        with self.interrupts:
            error: BaseException | None = None
            state = FINE
            try:
                message = Message.encode(make())
            except BaseException as caught:
                error, state = caught, FAILED
                message = Message.encode(portable(caught, f"rank {self.rank}"))
            # an interrupt that was deferred during `make` is sent to all ranks with this header
            if self.interrupts.requested or isinstance(error, KeyboardInterrupt):
                state = STOPPED
            self.number += 1
            # the exchange takes place even after an error on this rank: the others wait for its header
            sizes = len(message.text), message.size()
            headers, messages = self._post(
                _MessageHeader(_version(), self.number, state, checksum, *sizes, _padded(name)), message
            )
        self._raise(headers, messages, error)
        self.shared_error = _difference(headers)
        if self.shared_error is not None:
            raise self.shared_error
        return [received.decode() for received in messages]

    def _post(self, header: _MessageHeader, message: Message) -> tuple[list[_MessageHeader], list[Message]]:
        """Exchange the headers and messages of all ranks; long messages follow in a second exchange."""
        # first exchange: a block of the same length from each rank
        outgoing, incoming = bytearray(FIRST_EXCHANGE_BYTES), bytearray(FIRST_EXCHANGE_BYTES * self.size)
        HEADER_LAYOUT.pack_into(outgoing, 0, *header)
        if not header.second_bytes:
            outgoing[HEADER_LAYOUT.size : HEADER_LAYOUT.size + header.length] = message.text
        self.comm.Allgather(outgoing, incoming)
        headers = [
            _MessageHeader(*HEADER_LAYOUT.unpack_from(incoming, k * FIRST_EXCHANGE_BYTES))
            for k in range(self.size)
        ]
        self.shared_error = _other_version(headers)
        if self.shared_error is not None:
            raise self.shared_error
        # the block of rank k: its header, then a short message
        starts = [k * FIRST_EXCHANGE_BYTES + HEADER_LAYOUT.size for k in range(self.size)]
        messages = [Message(incoming[i : i + h.length], []) for i, h in zip(starts, headers, strict=True)]
        # second exchange: all ranks know its sizes from the headers, so that all of them take part or none
        sizes = [h.second_bytes for h in headers]
        if any(sizes):
            with self.abort_on_error():
                long_message = self.buffer_pool.acquire(header.second_bytes)
                long_messages = self.buffer_pool.acquire(sum(sizes))
                message.write(long_message)
                self.comm.Allgatherv(long_message, [long_messages, sizes])
            ends = np.cumsum([0, *sizes])
            for k, h in enumerate(headers):
                if h.second_bytes:
                    messages[k] = Message.read(long_messages[ends[k] : ends[k + 1]], h.length)
        return headers, messages

    def _raise(
        self, headers: list[_MessageHeader], messages: list[Message], local_error: BaseException | None
    ) -> None:
        """Raise the interrupt of any rank, or the error of the first rank that has one.

        `local_error` is that of this rank, which has its traceback.
        """
        # an interrupt on any rank takes precedence over errors
        if any(h.state == STOPPED for h in headers):
            self.interrupts.acknowledge()
            self.shared_error = KeyboardInterrupt()
            raise self.shared_error from local_error
        for k, header in enumerate(headers):
            if header.state == FAILED:
                self.shared_error = messages[k].decode()
                if (
                    k == self.rank
                    and local_error is not None
                    and type(local_error) is type(self.shared_error)
                ):
                    # the same error as on the other ranks, but with the traceback of this rank
                    self.shared_error = local_error
                raise self.shared_error from (None if self.shared_error is local_error else local_error)

    @contextlib.contextmanager
    def abort_on_error(self) -> Iterator[None]:
        """Block of collective calls: an error aborts the job, since the other ranks would wait forever."""
        try:
            yield
        except BaseException:
            traceback.print_exc()
            self.comm.Abort(1)
            raise

    @contextlib.contextmanager
    def synchronized(self) -> Iterator[None]:
        """Block that all ranks leave in the same way."""
        with self.interrupts:
            error: BaseException | None = None
            try:
                yield
            except BaseException as caught:
                # an error that was raised on all ranks needs no further exchange
                if caught is self.shared_error:
                    raise
                error = caught
            self.exchange("the end", 0, partial(_end, error))


def _end(error: BaseException | None) -> None:
    if error is not None:
        raise error


def _version() -> bytes:
    from riskmin import __version__

    return _padded(__version__, 16)


def _padded(text: str, n_bytes: int = 48) -> bytes:
    """Encode a text, cut or padded with zero bytes to a fixed length."""
    return text.encode()[:n_bytes].ljust(n_bytes, b"\0")


def _text(padded: bytes) -> str:
    """Decode what `_padded` encoded."""
    return padded.rstrip(b"\0").decode(errors="replace")


def _other_version(headers: list[_MessageHeader]) -> RuntimeError | None:
    """Return the error for ranks with different versions of riskmin, if they differ."""
    for k, header in enumerate(headers):
        if header.version != headers[0].version:
            ours, theirs = _text(header.version), _text(headers[0].version)
            return RuntimeError(
                f"rank {k} runs riskmin {ours}, but rank 0 runs {theirs}: install the same version everywhere"
            )
    return None


def _difference(headers: list[_MessageHeader]) -> RuntimeError | None:
    """Return the error for ranks at different steps, or with different arguments, if there are any."""
    first = headers[0]
    for k, header in enumerate(headers):
        # same step, same operation, same arguments
        if (header.number, header.name, header.checksum) == (first.number, first.name, first.checksum):
            continue
        ours, theirs = _text(header.name), _text(first.name)
        if (header.number, header.name) != (first.number, first.name):
            return RuntimeError(
                f"rank {k} came to {ours!r} as step {header.number}, but rank 0 to {theirs!r} as step "
                f"{first.number}: have all ranks run the same program on the same data"
            )
        return RuntimeError(
            f"rank {k} came to {ours!r} with other numbers than rank 0: have all ranks run the same program "
            "on the same data, on processors that round alike, with as many threads each"
        )
    return None


def arguments_checksum(values: Sequence[Any]) -> int:
    """Return the CRC-32 of the bits of the arrays and floats among `values`.

    Integers are left out: they are keys from counters, which may differ between ranks.
    """
    # of the bits, not of the values: ranks must agree in every digit
    crc = 0
    for x in values:
        if isinstance(x, float):
            crc = zlib.crc32(struct.pack("<d", x), crc)
        elif isinstance(x, np.ndarray) and x.dtype.kind in "fiub":
            crc = zlib.crc32(np.ascontiguousarray(x).data, crc)
    return crc
