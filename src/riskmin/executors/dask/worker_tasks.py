"""Functions that run on the workers of a Dask cluster: they build groups of shards and run rounds on them.

A round is one call of a function on every shard; it reaches each worker as a single task.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from riskmin.core.limits import LIMITS
from riskmin.executors.errors import portable
from riskmin.executors.worker_shards import ShardGroup


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


def _threads() -> int:
    from distributed import get_worker

    return max(int(get_worker().state.nthreads), 1)


# ---------------------------------------------------------------- tasks
def build_group(specs: Sequence[list[Any]], rows: Sequence[Any]) -> ShardGroup:
    """Build a group of shards, from messages with their `ShardSpec`."""
    return ShardGroup.build(specs, rows, _threads(), unpack)


def run_round(
    group: ShardGroup, number: int, shared: Sequence[Any], per_shard: Sequence[Any], summed: bool
) -> list[Any]:
    """Run one round on a group and serialize (True, the replies of its shards) or (False, the error).

    `shared` is a message with the function and the arguments that all shards have in common, `per_shard` one
    with the last argument of each shard of the group, or None; see `ShardGroup.run`.
    """
    try:
        f, args = unpack(shared)
        return pack((True, group.run(number, f, args, unpack(per_shard), summed=summed)))
    except Exception as error:  # also where a function or its result cannot be pickled
        return pack((False, portable(error, "a worker process")))


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
