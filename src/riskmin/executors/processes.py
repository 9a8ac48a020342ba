"""Shards in worker processes: the data are copied once into shared memory; later only w and sums are sent."""

from __future__ import annotations

import contextlib
import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple, NoReturn

from riskmin.arrays.partitioned import LazyShard
from riskmin.core import Shard, blas_threads, signals
from riskmin.core.deadline import check, check_each
from riskmin.core.limits import LIMITS
from riskmin.executors.base import Backend, Executor, call_arguments, sum_tuples
from riskmin.executors.connections import WorkerConnection, answer, numbered, raise_first, seconds_left
from riskmin.executors.errors import portable
from riskmin.executors.local import worker_count


class _SharedMessage(NamedTuple):
    """A pickled object whose arrays are in a segment of shared memory, at byte ranges `spans`."""

    head: bytes
    segment: str
    spans: list[tuple[int, int]]


class _SendBuffer:
    """Sending side: one segment of shared memory, replaced by a larger one when a message does not fit."""

    def __init__(self) -> None:
        self.memory: Any = None  # a SharedMemory

    def pack(self, obj: Any) -> bytes:
        """Serialize an object, with its arrays in the segment if they are large."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
        raws = [b.raw() for b in buffers]
        # each array is padded to a multiple of a cache line, 64 bytes
        n_bytes = sum(-(-len(r) // 64) * 64 for r in raws)
        if n_bytes < LIMITS.inline_array_bytes:
            return pickle.dumps(obj, protocol=5)
        # twice the size, so that slightly longer messages need no new segment
        if self.memory is None or self.memory.size < n_bytes:
            self.close()
            self.memory = SharedMemory(create=True, size=2 * n_bytes)
        spans, offset = [], 0
        for raw in raws:
            self.memory.buf[offset : offset + len(raw)] = raw
            spans.append((offset, offset + len(raw)))
            offset += -(-len(raw) // 64) * 64  # the next array starts on a cache line
        return pickle.dumps(_SharedMessage(head, self.memory.name, spans))

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()
            self.memory.unlink()
            self.memory = None


class _ReceiveBuffer:
    """Receiving side: opens the segment that a message names."""

    def __init__(self) -> None:
        self.memory: Any = None  # a SharedMemory

    def unpack(self, message: bytes, *, copy: bool = True) -> Any:
        """Deserialize a message.

        Without `copy`, its arrays are views of the segment, valid until the sender writes the next message.
        """
        received = pickle.loads(message)
        if not isinstance(received, _SharedMessage):
            return received
        # the sender has replaced its segment by a larger one
        if self.memory is None or self.memory.name != received.segment:
            self.close()
            self.memory = SharedMemory(received.segment)
        views = (self.memory.buf[i:j] for i, j in received.spans)
        return pickle.loads(received.head, buffers=[bytearray(v) if copy else v for v in views])

    def close(self) -> None:
        if self.memory is not None:
            with contextlib.suppress(BufferError):  # an array in a traceback may still view the segment
                self.memory.close()
            self.memory = None


def _on_each(f: Callable[..., Any], shards: list[Shard], todo: list[tuple[Any, ...]]) -> list[Any]:
    return [f(s, *a) for s, a in check_each(zip(shards, todo, strict=True))]


def _serve(conn: Connection) -> None:
    """Main loop of a worker: receive the shards, then functions to run on them, until the pipe closes."""
    signals.terminate_by_parent_only(os.getppid())
    blas_threads.request_threads(1)  # there is one worker per core already
    blas_threads.limit_worker_to_one_thread()
    data_buffer, receiver, sender = _ReceiveBuffer(), _ReceiveBuffer(), _SendBuffer()
    with contextlib.suppress(EOFError, OSError):
        try:
            received = data_buffer.unpack(conn.recv_bytes(), copy=False)
            shards = [shard.load() for shard in received]
            reply = sender.pack((True, None))
        except Exception as error:  # a partition that cannot be read
            reply = sender.pack((False, portable(error, "a worker process")))
        conn.send_bytes(numbered(0, reply))
        while answer(conn, receiver.unpack, sender.pack, lambda f, todo: _on_each(f, shards, todo)):
            pass
    sender.close()
    # a regular exit would warn about arrays that still view the shared memory
    os._exit(0)


class _WorkerHandle(WorkerConnection):
    """Parent's end of the connection to one worker process."""

    def __init__(self, context: Any, shards: Sequence[Shard | LazyShard]) -> None:
        # the child end is closed here, so that recv raises EOFError once the worker has ended
        conn, child_conn = context.Pipe()
        super().__init__(conn)
        self.process = context.Process(target=_serve, args=(child_conn,), daemon=True)
        with signals.sigterm_blocked():
            self.process.start()
        child_conn.close()
        self.receiver, self.sender, self.data = _ReceiveBuffer(), _SendBuffer(), _SendBuffer()
        self.conn.send_bytes(self.data.pack([shard.without_cache() for shard in shards]))

    def receive(self, *, copy: bool = True) -> Any:
        """Return the worker's reply; without `copy`, its arrays are valid until the next call."""
        return self.receiver.unpack(self.receive_message(), copy=copy)

    def raise_lost(self) -> NoReturn:
        """Raise the error for a worker that ended."""
        self.process.join(1)
        raise RuntimeError(
            f"a worker process ended with exit code {self.process.exitcode} and its shard is lost with it; "
            "run again (with checkpoint=..., nothing but the last seconds is lost)"
        )

    def close(self) -> None:
        """End the worker and free its shared memory."""
        # the worker ends when the pipe closes; after a second, it is killed
        self.conn.close()
        self.process.join(1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.receiver.close()
        for buffer in (self.sender, self.data):
            with contextlib.suppress(FileNotFoundError):
                buffer.close()


def _close(workers: list[_WorkerHandle]) -> None:
    for worker in workers:
        worker.close()


@dataclass(frozen=True)
class Processes(Backend):
    """Shards in worker processes, for losses that hold the GIL; the data are sent once.

    Parameters
    ----------
    n_workers : int, optional
        Number of processes; one per core by default, and at most one per shard. Results are bitwise the
        same for any number.

    Notes
    -----
    Processes are spawned, so a script that uses them needs the usual ``if __name__ == "__main__":``.
    """

    n_workers: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_workers", worker_count(self.n_workers))

    def place(self, shards: Sequence[Shard | LazyShard]) -> ProcessExecutor:
        """Return an executor that holds these shards."""
        return ProcessExecutor(shards, worker_count(self.n_workers))


class ProcessExecutor(Executor):
    """Runs functions on the shards in worker processes, which hold them."""

    def __init__(self, shards: Sequence[Shard | LazyShard], n_workers: int) -> None:
        self.n_workers = n_workers
        n_used = min(n_workers, len(shards))
        # shard k belongs to worker _owner[k]: contiguous ranges of about equal size
        self._owner = [k * n_used // len(shards) for k in range(len(shards))]
        context = get_context("spawn")
        self._workers = [
            _WorkerHandle(context, [s for s, o in zip(shards, self._owner, strict=True) if o == k])
            for k in range(n_used)
        ]
        self.close = weakref.finalize(self, _close, self._workers)
        raise_first([worker.receive() for worker in self._workers])

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "Processes that hold shards cannot be copied: copy the settings, "
            f"Processes(n_workers={self.n_workers}), and make the risk anew"
        )

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k], computed in parallel."""
        return self._run(f, args, each, copy=True)

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the tuples of `map`, in shard order."""
        # the sum is a new array, so its terms need no copy: allocating one would cost more than the addition
        return sum_tuples(self._run(f, args, each, copy=len(self._owner) == 1))

    def _run(
        self, f: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Any], *, copy: bool
    ) -> list[Any]:
        """Run f on all shards and return the replies in shard order."""
        todo = call_arguments(len(self._owner), args, each)
        check()
        seconds = seconds_left()
        for k, worker in enumerate(self._workers):
            own = [a for a, o in zip(todo, self._owner, strict=True) if o == k]
            worker.send_message(worker.sender.pack((f, own, seconds)))
        replies = [worker.receive(copy=copy) for worker in self._workers]
        raise_first(replies)
        # workers hold contiguous shards, so that their replies are in shard order
        return [x for _, reply in replies for x in reply]
