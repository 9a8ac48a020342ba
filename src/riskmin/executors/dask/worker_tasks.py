"""Functions that run on the workers of a Dask cluster: they build groups of shards and run rounds on them.

A round is one call of a function on every shard; it reaches each worker as a single task.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.arrays.devices.placement import shard_on_device
from riskmin.arrays.namespace import is_foreign, to_numpy
from riskmin.core import Shard
from riskmin.core.limits import LIMITS
from riskmin.executors.base import sum_tuples
from riskmin.executors.errors import portable
from riskmin.executors.local import ThreadExecutor


def pack(obj: Any) -> list[Any]:
    """Serialize an object: its pickle, then the buffers of its arrays, which Dask sends without a copy."""
    from distributed.protocol import pickle as sender

    dumps: Any = sender.dumps
    buffers: list[pickle.PickleBuffer] = []
    header = dumps(obj, buffer_callback=buffers.append)
    raws = [buffer.raw() for buffer in buffers]
    # short arrays are pickled together with the object, as a single frame
    if raws and sum(map(len, raws)) < LIMITS.inline_array_bytes:
        return [dumps(obj)]
    return [header, *(np.frombuffer(raw, dtype=np.uint8) for raw in raws)]


ALIGNMENT = 16
"""The address of an array that NumPy allocates is a multiple of this number of bytes."""


def unpack(message: Sequence[Any]) -> Any:
    """Deserialize a message of `pack`, with writable and aligned arrays.

    Dask cuts messages that were sent together out of one buffer, at any byte. Sums over arrays that are not
    aligned are made by other loops, so that the bits of a fit would depend on what else was sent.
    """
    header, *buffers = message
    usable = [b if b.flags.writeable and b.ctypes.data % ALIGNMENT == 0 else b.copy() for b in buffers]
    return pickle.loads(header, buffers=usable)


def message_bytes(message: Sequence[Any]) -> int:
    """Length of a message in bytes."""
    return sum(len(frame) for frame in message)


@dataclass(frozen=True)
class WorkerPartition:
    """Partition whose rows are on a worker: `data` is their Dask future, or the rows within a task."""

    name: str
    shape: tuple[int, int]
    nnz: int
    sparse: bool
    data: Any = None
    pick: Callable[[Any], Any] | None = None
    columns: tuple[str, ...] | None = None

    def read(self) -> Any:
        """Return the rows, transferred from the worker if `data` is a future."""
        data = self.data.result() if hasattr(self.data, "result") else self.data
        return data if self.pick is None else self.pick(data)


@dataclass(frozen=True)
class ShardSpec:
    """Specification from which a worker builds a shard: the shard or a `LazyShard`, without its cache."""

    shard: Any
    device: Any = None
    """Where the worker puts the rows, as in `DaskExecutor`."""

    def build(self, rows: Any) -> Shard:
        """Build the shard with an empty cache; `rows` are the data of a partition that is on the workers."""
        shard = self.shard
        # the client removed the future of the rows; the task received the rows themselves
        if isinstance(shard.part, WorkerPartition):
            shard = replace(shard, part=replace(shard.part, data=rows))
        loaded: Shard = shard.load().without_cache()
        return loaded if self.device is None else shard_on_device(loaded, self.device)


class ShardGroup:
    """Shards that one worker holds, or the error with which reading them failed."""

    def __init__(self, shards: Sequence[Shard], error: Exception | None = None) -> None:
        self.executor = ThreadExecutor(shards, _threads())
        self.error = error
        self.last_round = -1

    def run(self, number: int, f: Callable[..., Any], todo: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return [f(shard, *arguments)] for round `number`, which increases from round to round."""
        if self.error is not None:
            raise self.error
        # Dask may rerun a task, but a cache must not be updated twice: cleared, it is rebuilt by the caller
        if number <= self.last_round:
            for shard in self.executor.shards:
                shard.cache.clear()
        self.last_round = number
        return self.executor.map(_apply, f, each=todo)


def _apply(shard: Shard, f: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return f(shard, *arguments)


def _threads() -> int:
    from distributed import get_worker

    return max(int(get_worker().state.nthreads), 1)


# ---------------------------------------------------------------- tasks
def build_group(specs: Sequence[list[Any]], rows: Sequence[Any]) -> ShardGroup:
    """Build a group of shards in parallel, from messages with their `ShardSpec`.

    An error is stored in the group, whose method `run` raises it.
    """
    try:
        with ThreadPoolExecutor(_threads()) as pool:
            return ShardGroup(list(pool.map(lambda spec, data: unpack(spec).build(data), specs, rows)))
    except Exception as error:
        return ShardGroup([], portable(error, "a worker process"))


def run_round(
    group: ShardGroup, number: int, shared: Sequence[Any], per_shard: Sequence[Any], summed: bool
) -> list[Any]:
    """Run one round on a group and serialize (True, the replies of its shards) or (False, the error).

    Parameters
    ----------
    group : ShardGroup
    number : int
        Number of the round.
    shared : message
        The function and the arguments that all shards have in common.
    per_shard : message
        The last argument of each shard of the group, or None.
    summed : bool
        Whether to add up the replies on the worker.
    """
    try:
        f, args = unpack(shared)
        each = unpack(per_shard)
        todo = [args] * len(group.executor.shards) if each is None else [(*args, e) for e in each]
        replies = _on_host(group.run(number, f, todo))
        return pack((True, [sum_tuples(replies)] if summed else replies))
    except Exception as error:  # also where a function or its result cannot be pickled
        return pack((False, portable(error, "a worker process")))


def _on_host(reply: Any) -> Any:
    """Return a reply with its arrays in NumPy, which can be sent."""
    if type(reply) in (list, tuple):
        return type(reply)(map(_on_host, reply))
    return to_numpy(reply) if is_foreign(reply) else reply


def touch_shard(shard: Shard) -> None:
    """Do nothing: a round of this function fails if a shard could not be built."""


async def greet(dask_worker: Any) -> str:
    """Give a worker the resource that pins tasks to it, and return its version of riskmin."""
    from riskmin import __version__

    # one unit of a resource that no other worker has: tasks that require it run here, one at a time
    name = worker_resource(dask_worker.address)
    if name not in dask_worker.state.total_resources:
        await dask_worker.set_resources(**{name: 1})
    return __version__


def worker_resource(address: str) -> str:
    """Name of the resource that only this worker has: tasks that require it run there, one at a time."""
    return f"riskmin-{address}"
