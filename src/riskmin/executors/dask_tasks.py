"""What runs on the workers of a Dask cluster: groups of shards are held there, and rounds run on a group."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.executors.errors import portable
from riskmin.executors.local import Threads, add
from riskmin.spread import Unread
from riskmin.types import Memo, Shard

INLINE = 2**16
"""Messages below this many bytes are pickled in one piece; the arrays of larger ones travel beside them."""


def pack(thing: Any) -> list[Any]:
    """A pickled object, and the arrays in it, which Dask sends without a copy."""
    from distributed.protocol import pickle as sender

    dumps: Any = sender.dumps
    buffers: list[pickle.PickleBuffer] = []
    head = dumps(thing, buffer_callback=buffers.append)
    raws = [buffer.raw() for buffer in buffers]
    if raws and sum(map(len, raws)) < INLINE:
        return [dumps(thing)]
    return [head, *(np.frombuffer(raw, dtype=np.uint8) for raw in raws)]


def unpack(letter: Sequence[Any]) -> Any:
    """What `pack` packed, with arrays that can be written to."""
    head, *buffers = letter
    return pickle.loads(head, buffers=[b if b.flags.writeable else b.copy() for b in buffers])


def size(letter: Sequence[Any]) -> int:
    """How many bytes it has."""
    return sum(len(piece) for piece in letter)


@dataclass(frozen=True)
class Kept:
    """A part whose rows are on a worker: a Dask future for them, or they themselves once a task has them."""

    name: str
    shape: tuple[int, int]
    numbers: int
    sparse: bool
    data: Any = None
    pick: Callable[[Any], Any] | None = None
    columns: tuple[str, ...] | None = None

    def read(self) -> Any:
        """The rows; brought here where they are on a worker."""
        data = self.data.result() if hasattr(self.data, "result") else self.data
        return data if self.pick is None else self.pick(data)


@dataclass(frozen=True)
class Recipe:
    """What a worker makes a shard of: the shard itself, or one to be read. Its memo is never sent."""

    shard: Any

    def make(self, given: Any) -> Shard:
        """The shard, from the rows that a task was given if they are kept on workers."""
        shard = self.shard
        if not isinstance(shard, Unread):
            return Shard(shard[0], shard[1], shard[2], Memo())
        if isinstance(shard.part, Kept):
            shard = replace(shard, part=replace(shard.part, data=given))
        return shard.load()


class Group:
    """The shards that one worker holds together, or why they could not be read."""

    def __init__(self, shards: Sequence[Shard], error: Exception | None = None) -> None:
        self.inner = Threads(shards, n_workers=_threads())
        self.error = error
        self.last = -1

    def run(self, number: int, f: Callable[..., Any], todo: Sequence[tuple[Any, ...]]) -> list[Any]:
        """[f(shard, *arguments)], in a round of that number."""
        if self.error is not None:
            raise self.error
        if number <= self.last:  # Dask may run a task again: what is remembered must not change twice
            for shard in self.inner.shards:
                shard.memo.clear()
        self.last = number
        return self.inner.map(_apply, f, each=todo)


def _apply(shard: Shard, f: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return f(shard, *arguments)


def _threads() -> int:
    from distributed import get_worker

    return max(int(get_worker().state.nthreads), 1)


# ---------------------------------------------------------------- tasks
def hold(recipes: Sequence[Recipe], given: Sequence[Any]) -> Group:
    """A group of shards, read side by side. An error is kept to be told: Dask would tell of its own."""
    try:
        with ThreadPoolExecutor(_threads()) as pool:
            return Group(list(pool.map(Recipe.make, recipes, given)))
    except Exception as error:
        return Group([], portable(error, "a worker process"))


def run(group: Group, number: int, shared: Sequence[Any], own: Sequence[Any], summed: bool) -> list[Any]:
    """One round on a group: whether all went well, with the replies of its shards or the error."""
    try:
        f, args = unpack(shared)
        each = unpack(own)
        todo = [args] * len(group.inner.shards) if each is None else [(*args, e) for e in each]
        replies = group.run(number, f, todo)
        return pack((True, [add(replies)] if summed else replies))
    except Exception as error:  # also where a function or its result cannot be pickled
        return pack((False, portable(error, "a worker process")))


def nothing(shard: Shard) -> None:
    """What is run to see that a shard is there."""


async def greet(dask_worker: Any) -> str:
    """Have a worker take tasks of its own; its version of the library."""
    from riskmin import __version__

    name = resource(dask_worker.address)
    if name not in dask_worker.state.total_resources:
        await dask_worker.set_resources(**{name: 1})
    return __version__


def resource(address: str) -> str:
    """The resource that only that worker has: tasks that need it run there, one at a time."""
    return f"riskmin-{address}"
