"""A task of the barrier stage: it reads its partition of the rows, connects to the driver, and answers calls.

The connection is one of `multiprocessing`: both sides prove that they know a random token before anything is
unpickled.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, NamedTuple

from riskmin.core import blas_threads
from riskmin.executors.connections import answer
from riskmin.executors.errors import portable
from riskmin.executors.worker_shards import ShardGroup


class Hello(NamedTuple):
    """First message of a task to the driver."""

    partition: int
    """Number of the partition."""
    version: str
    """Version of riskmin."""
    summary: Any
    """What `TaskProgram.read` returned beside the rows, or the error that it raised."""


class TaskState:
    """The rows of a task, and the groups of shards that it holds."""

    def __init__(self, data: Any, n_threads: int) -> None:
        self.data, self.n_threads = data, n_threads
        self.groups: dict[int, ShardGroup] = {}

    def build(self, group: int, specs: Sequence[bytes]) -> None:
        """Build a group of shards, from the rows of this task or from those in the specifications."""
        rows = [self.data] * len(specs)
        self.groups[group] = ShardGroup.build(specs, rows, self.n_threads, pickle.loads)

    def round(
        self, group: int, number: int, shared: bytes, each: Sequence[Any] | None, dead: Sequence[int]
    ) -> list[Any]:
        """Run one round on a group, and free groups that nothing refers to any more; see `ShardGroup.run`."""
        for k in dead:
            self.groups.pop(k, None)
        f, args = pickle.loads(shared)
        return self.groups[group].run(number, f, args, each)

    def rows(self) -> Any:
        """Return the rows of this task."""
        return self.data

    def run(self, operation: str, *args: Any) -> Any:
        """Run one of the other methods, by its name."""
        return getattr(self, operation)(*args)


@dataclass(frozen=True)
class TaskProgram:
    """What every task of the stage runs, as the function of `DataFrame.mapInArrow`."""

    address: tuple[str, int]
    """Host and port at which the driver listens."""
    token: bytes
    read: Callable[[int, Iterator[Any]], tuple[Any, Any]] | None
    """Returns rows and their summary, given the number of a partition and its Arrow batches; None if there
    are no rows."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Serve the driver until it ends the stage; a lost connection is an error, so that Spark retries."""
        from pyspark import TaskContext

        from riskmin import __version__

        context: Any = TaskContext.get()
        data, summary = self._read(context.partitionId(), batches)
        blas_threads.request_threads(1)
        blas_threads.limit_worker_to_one_thread()
        conn = connect(self.address, self.token)
        with contextlib.closing(conn):
            conn.send_bytes(pickle.dumps(Hello(context.partitionId(), __version__, summary)))
            state = TaskState(data, max(context.cpus(), 1))
            del data
            while answer(conn, pickle.loads, _dumps, state.run):
                pass
        yield from ()

    def _read(self, index: int, batches: Iterator[Any]) -> tuple[Any, Any]:
        """Return the rows and their summary; an error of the data is sent to the driver instead."""
        if self.read is None:
            return None, None
        try:
            return self.read(index, batches)
        except ValueError as error:
            return None, portable(error, "a Spark task")


def _dumps(reply: Any) -> bytes:
    return pickle.dumps(reply, protocol=5)


# ---------------------------------------------------------------- connections
def connect(address: tuple[str, int], token: bytes) -> Connection:
    """Connect to the driver."""
    try:
        opened = socket.create_connection(address, timeout=60)
    except OSError as error:
        raise ConnectionError(
            f"a Spark task cannot reach the driver at {address[0]}:{address[1]} ({error}): "
            "give SparkExecutor the host= by which the workers reach the driver, and open its ports"
        ) from None
    conn = _without_delay(opened)
    answer_challenge(conn, token)
    deliver_challenge(conn, token)
    return conn


def accept(opened: socket.socket, token: bytes) -> tuple[Connection, Hello]:
    """Authenticate a task that connected, and return its first message."""
    conn = _without_delay(opened)
    try:
        deliver_challenge(conn, token)
        answer_challenge(conn, token)
        hello: Hello = pickle.loads(conn.recv_bytes())
    except BaseException:
        conn.close()
        raise
    return conn, hello


def _without_delay(opened: socket.socket) -> Connection:
    """Return a connection that sends short messages at once."""
    opened.settimeout(None)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(opened.detach())
