"""Shards that the workers of a cluster hold: what they are built from, and groups of them on one worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from riskmin.arrays.devices.placement import shard_on_device
from riskmin.arrays.namespace import is_foreign, to_numpy
from riskmin.arrays.partitioned import LazyShard
from riskmin.core import Shard
from riskmin.executors.base import call_arguments, sum_tuples
from riskmin.executors.errors import portable
from riskmin.executors.local import ThreadExecutor


@dataclass(frozen=True)
class WorkerPartition:
    """Partition whose rows are on a worker: `data` is their future, or the rows themselves on the worker."""

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
        # the sender removed the future of the rows; the worker has the rows themselves
        if isinstance(shard.part, WorkerPartition):
            shard = replace(shard, part=replace(shard.part, data=rows))
        loaded: Shard = shard.load().without_cache()
        return loaded if self.device is None else shard_on_device(loaded, self.device)


def shard_spec(shard: Shard | LazyShard, device: Any = None) -> ShardSpec:
    """Return what is sent of a shard: neither its cache, nor the future of rows that the worker has."""
    if isinstance(shard.part, WorkerPartition):
        return ShardSpec(replace(shard, part=replace(shard.part, data=None)), device)
    return ShardSpec(shard.without_cache(), device)


class ShardGroup:
    """Shards that one worker holds, or the error with which reading them failed."""

    def __init__(self, shards: Sequence[Shard], n_threads: int, error: Exception | None = None) -> None:
        self.executor = ThreadExecutor(shards, n_threads)
        self.error = error
        self.last_round = -1

    @classmethod
    def build(
        cls, specs: Sequence[Any], rows: Sequence[Any], n_threads: int, unpack: Callable[[Any], ShardSpec]
    ) -> ShardGroup:
        """Build the shards in parallel, from messages with their `ShardSpec`.

        An error is stored in the group, whose method `run` raises it.
        """
        try:
            with ThreadPoolExecutor(n_threads) as pool:
                shards = pool.map(lambda spec, data: unpack(spec).build(data), specs, rows)
                return cls(list(shards), n_threads)
        except Exception as error:
            return cls([], n_threads, portable(error, "a worker process"))

    def run(
        self,
        number: int,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        each: Sequence[Any] | None,
        *,
        summed: bool = False,
    ) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k] with arrays in NumPy, or with `summed` their sum only.

        Parameters
        ----------
        number : int
            Number of the round, which increases from round to round.
        f, args
            The function, and the arguments that all shards have in common.
        each : sequence or None
            The last argument of each shard of the group, or None.
        summed : bool
            Whether to add up the replies on the worker.
        """
        if self.error is not None:
            raise self.error
        # Dask may rerun a task, but a cache must not be updated twice: cleared, it is rebuilt by the caller
        if number <= self.last_round:
            for shard in self.executor.shards:
                shard.cache.clear()
        self.last_round = number
        todo = call_arguments(len(self.executor.shards), args, () if each is None else each)
        replies: list[Any] = _on_host(self.executor.map(_apply, f, each=todo))
        return [sum_tuples(replies)] if summed else replies


def _apply(shard: Shard, f: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return f(shard, *arguments)


def _on_host(reply: Any) -> Any:
    """Return a reply with its arrays in NumPy, which can be sent."""
    if type(reply) in (list, tuple):
        return type(reply)(map(_on_host, reply))
    return to_numpy(reply) if is_foreign(reply) else reply


def touch_shard(shard: Shard) -> None:
    """Do nothing: a round of this function fails if a shard could not be built."""
