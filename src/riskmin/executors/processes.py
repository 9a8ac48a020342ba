"""Shards in processes of their own: the data move once into shared memory, then only w and sums do."""

from __future__ import annotations

import contextlib
import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from time import perf_counter
from typing import Any, NamedTuple, NoReturn

from riskmin import blas, signals
from riskmin.deadline import GLANCE, Limit, check, checking, current
from riskmin.executors.errors import portable
from riskmin.executors.local import add, calls, check_shards, worker_count
from riskmin.spread import Unread
from riskmin.types import Memo, Shard

INLINE = 2**16
"""Messages below this many bytes go through the pipe; the arrays of larger ones through shared memory."""


class _Letter(NamedTuple):
    """A pickled object; its arrays lie in a shared segment at these spans."""

    head: bytes
    segment: str
    spans: list[tuple[int, int]]


class _Outbox:
    """The sending side: one shared segment, replaced by a larger one when a letter does not fit."""

    def __init__(self) -> None:
        self.memory: Any = None  # a SharedMemory

    def pack(self, thing: Any) -> bytes:
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
        raws = [b.raw() for b in buffers]
        total = sum(-(-len(r) // 64) * 64 for r in raws)
        if total < INLINE:
            return pickle.dumps(thing, protocol=5)
        if self.memory is None or self.memory.size < total:
            self.close()
            self.memory = SharedMemory(create=True, size=2 * total)
        spans, at = [], 0
        for raw in raws:
            self.memory.buf[at : at + len(raw)] = raw
            spans.append((at, at + len(raw)))
            at += -(-len(raw) // 64) * 64  # the next array starts on a cache line
        return pickle.dumps(_Letter(head, self.memory.name, spans))

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()
            self.memory.unlink()
            self.memory = None


class _Inbox:
    """The receiving side. Arrays are copied out, unless the sender leaves its segment alone from then on."""

    def __init__(self) -> None:
        self.memory: Any = None  # a SharedMemory

    def unpack(self, message: bytes, *, copy: bool = True) -> Any:
        thing = pickle.loads(message)
        if not isinstance(thing, _Letter):
            return thing
        if self.memory is None or self.memory.name != thing.segment:
            self.close()
            self.memory = SharedMemory(thing.segment)
        views = (self.memory.buf[i:j] for i, j in thing.spans)
        return pickle.loads(thing.head, buffers=[bytearray(v) if copy else v for v in views])

    def close(self) -> None:
        if self.memory is not None:
            with contextlib.suppress(BufferError):  # arrays that an error still holds go with it
                self.memory.close()
            self.memory = None


def _on_each(f: Callable[..., Any], shards: list[Shard], todo: list[tuple[Any, ...]]) -> list[Any]:
    return [f(s, *a) for s, a in checking(zip(shards, todo, strict=True))]


def _serve(conn: Connection) -> None:
    """A worker: receives its shards, then functions to run on them, until the pipe closes."""
    signals.mind_only(os.getppid())
    blas.ask(1)  # there is a worker a core already
    blas.one_each()
    data, inbox, outbox = _Inbox(), _Inbox(), _Outbox()
    with contextlib.suppress(EOFError, OSError):
        try:
            held = data.unpack(conn.recv_bytes(), copy=False)
            shards = [s.load() if isinstance(s, Unread) else Shard(s[0], s[1], s[2], Memo()) for s in held]
            reply = outbox.pack((True, None))
        except Exception as error:  # a part that cannot be read
            reply = outbox.pack((False, portable(error, "a worker process")))
        conn.send_bytes(reply)
        while True:
            message = conn.recv_bytes()
            try:
                f, todo, seconds = inbox.unpack(message)
                blas.renew()
                found = Limit(perf_counter() + seconds).call(_on_each, f, shards, todo)
                reply = outbox.pack((True, found))
            except Exception as error:  # also where a function or its result cannot be pickled
                reply = outbox.pack((False, portable(error, "a worker process")))
            conn.send_bytes(reply)
    outbox.close()
    os._exit(0)  # arrays still look into the shared data, so an orderly exit would complain about them


class _Worker:
    """The driver's end of one process."""

    def __init__(self, context: Any, shards: Sequence[Shard | Unread]) -> None:
        self.conn, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there,), daemon=True)
        with signals.withheld():
            self.process.start()
        there.close()
        self.inbox, self.outbox, self.data = _Inbox(), _Outbox(), _Outbox()
        self.conn.send_bytes(self.data.pack([s if isinstance(s, Unread) else s[:3] for s in shards]))
        self.owes = True  # a reply that was never taken: an interrupted call leaves one behind

    def send(self, thing: Any) -> None:
        if self.owes:
            self._take()
        try:
            self.conn.send_bytes(self.outbox.pack(thing))
        except OSError:
            self._died()
        self.owes = True

    def receive(self, *, copy: bool = True) -> Any:
        """The worker's reply; where its arrays are not copied, they are good until the next call."""
        return self.inbox.unpack(self._take(), copy=copy)

    def _take(self) -> bytes:
        """The worker's next message, taken before it is read: one that cannot be read is done with, too."""
        try:
            while not self.conn.poll(GLANCE):  # interrupts strike while waiting here, not within a message
                check()
            message: bytes = self.conn.recv_bytes()
        except (EOFError, OSError):
            self._died()
        self.owes = False
        return message

    def _died(self) -> NoReturn:
        self.process.join(1)
        raise RuntimeError(
            f"a worker process ended with exit code {self.process.exitcode} and its shard is lost with it; "
            "run again (with checkpoint=..., nothing but the last seconds is lost)"
        )

    def close(self) -> None:
        self.conn.close()
        self.process.join(1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.inbox.close()
        for box in (self.outbox, self.data):
            with contextlib.suppress(FileNotFoundError):
                box.close()


def _raise_first(replies: Sequence[tuple[bool, Any]]) -> None:
    """Raise the first error among replies."""
    for fine, reply in replies:
        if not fine:
            raise reply


def _close(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.close()


class Processes:
    """Shards in worker processes, for losses that hold the interpreter's lock. The data move once.

    Parameters
    ----------
    shards : sequence of Shard
        `linear_risk` fills it in when the executor is passed to it without.
    n_workers : int, optional
        How many processes; one a core by default, and no more than there are shards. It changes no bit of
        any result.

    Notes
    -----
    Processes are spawned, so a script that uses them needs the usual ``if __name__ == "__main__":``.
    """

    def __init__(self, shards: Sequence[Shard | Unread] = (), *, n_workers: int | None = None) -> None:
        check_shards("Processes", shards)
        self.n_workers = worker_count(n_workers)
        used = min(self.n_workers, len(shards))
        self._owner = [k * used // len(shards) for k in range(len(shards))]
        context = get_context("spawn")
        self._workers = [
            _Worker(context, [s for s, o in zip(shards, self._owner, strict=True) if o == k])
            for k in range(used)
        ]
        self.close = weakref.finalize(self, _close, self._workers)
        _raise_first([worker.receive() for worker in self._workers])

    def __call__(self, shards: Sequence[Shard | Unread]) -> Processes:
        """An executor with the same settings that holds these shards."""
        return Processes(shards, n_workers=self.n_workers)

    def __reduce__(self) -> tuple[Any, ...]:
        """Settings can be copied and pickled; workers and the shards that they hold cannot."""
        if self._workers:
            raise TypeError(
                "Processes that hold shards cannot be copied: copy the settings, "
                f"Processes(n_workers={self.n_workers}), and make the risk anew"
            )
        return partial(Processes, n_workers=self.n_workers), ()

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """[f(shard_k, *args, each_k) for k], side by side."""
        return self._ask(f, args, each, copy=True)

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The tuples of `map`, added up in shard order."""
        # sums are new arrays, and what they are of is better not copied: new memory costs more than the sum
        return add(self._ask(f, args, each, copy=len(self._owner) == 1))

    def _ask(
        self, f: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Any], *, copy: bool
    ) -> list[Any]:
        """All replies, in shard order."""
        todo = calls(len(self._owner), args, each)
        check()
        seconds = current().at - perf_counter()  # clocks of processes need not agree
        for k, worker in enumerate(self._workers):
            worker.send((f, [a for a, o in zip(todo, self._owner, strict=True) if o == k], seconds))
        replies = [worker.receive(copy=copy) for worker in self._workers]
        _raise_first(replies)
        return [x for _, reply in replies for x in reply]
