"""Shards on the workers of a Dask cluster, from local arrays, Dask collections, or files the workers read."""

from __future__ import annotations

import math
import numbers
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from riskmin.arrays.partitioned import LazyShard, PartitionedMatrix
from riskmin.core import Shard
from riskmin.executors.base import Backend
from riskmin.executors.dask.cluster import DaskCluster, connect_client
from riskmin.executors.dask.collections import is_dask as is_dask
from riskmin.executors.dask.collections import partitions_of
from riskmin.executors.dask.collections import to_local_array as to_local_array
from riskmin.executors.dask.placed_shards import DaskShards
from riskmin.executors.worker_shards import WorkerPartition


class DaskExecutor(Backend):
    """Shards on the workers of a Dask cluster; those of a dead worker are rebuilt on another.

    Parameters
    ----------
    client : distributed.Client or str, optional
        The client, or the address of the scheduler; the current client by default.
    ordered : bool
        Reduce sums in the client, in shard order: bitwise the same result as on one machine. If False, each
        worker first adds up the terms of its shards: less is transferred, but the last bits of a sum depend
        on which worker holds which shard.
    patience : float
        Timeout in seconds while no worker is available, or none with free memory.
    device : str or callable, optional
        ``"cuda"``: each worker copies its shards to its GPU, where they stay. A GPU per worker is what
        dask-cuda sets up; ``"cuda:1"`` is the second one that a worker can use. Or a function, which can be
        pickled, of an array or a sparse matrix that returns it in another library, such as
        ``torch.asarray``.

    Examples
    --------
    ``linear_risk(X, y, loss, executor=DaskExecutor(client))`` sends local rows to the workers;
    ``linear_risk(DaskExecutor(client).partition(X), y, loss)`` uses rows that are on the workers already.

    >>> from riskmin import DaskExecutor
    >>> DaskExecutor("tcp://scheduler:8786", ordered=False)  # connects when it is first used
    DaskExecutor('tcp://scheduler:8786', ordered=False)
    """

    partition_class = WorkerPartition

    def __init__(
        self,
        client: Any = None,
        *,
        ordered: bool = True,
        patience: float = 60.0,
        device: str | Callable[[Any], Any] | None = None,
    ) -> None:
        if client is not None and not isinstance(client, str) and not hasattr(client, "scheduler_info"):
            raise TypeError(
                f"client={client!r:.60} is no client of Dask: give a distributed.Client, or the address of "
                "the scheduler, such as 'tcp://host:8786'"
            )
        if not isinstance(patience, numbers.Real) or not 0 <= patience < math.inf:
            raise ValueError(f"patience={patience!r}: give a number of seconds >= 0")
        if not (device is None or callable(device) or str(device).partition(":")[0] == "cuda"):
            raise ValueError(f"device={device!r} is no device: give 'cuda', a function of rows, or None")
        self._client_or_address: Any = client
        self._client: Any = None
        self.ordered: bool = bool(ordered)
        self.patience: float = float(patience)
        self.device: str | Callable[[Any], Any] | None = device

    @property
    def client(self) -> Any:
        """The client; if an address was given, it connects on first access."""
        if self._client is None:
            self._client = connect_client(self._client_or_address)
            # a client that was opened here is closed with the executor; a given one stays open
            if isinstance(self._client_or_address, str):
                weakref.finalize(self, _close, self._client)
        return self._client

    def place(self, shards: Sequence[Shard | LazyShard]) -> DaskShards:
        """Return an executor with these settings that holds these shards."""
        return DaskShards(self, shards)

    def __repr__(self) -> str:
        arguments = [] if self._client_or_address is None else [repr(self._address())]
        arguments += [] if self.ordered else ["ordered=False"]
        arguments += [] if self.patience == 60 else [f"patience={self.patience:g}"]
        arguments += [] if self.device is None else [f"device={self.device!r}"]
        return f"DaskExecutor({', '.join(arguments)})"

    def _address(self) -> str | None:
        """Address of the scheduler: the only part of a client that can be pickled."""
        if self._client_or_address is None or isinstance(self._client_or_address, str):
            return self._client_or_address
        return str(self._client_or_address.scheduler.address)

    def __deepcopy__(self, memo: Any) -> DaskExecutor:
        """Return a copy that shares the client."""
        return self.__copy__()

    def __copy__(self) -> DaskExecutor:
        return DaskExecutor(self._client_or_address, **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {"ordered": self.ordered, "patience": self.patience, "device": self.device}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings; the unpickled executor opens its own connection."""
        return partial(DaskExecutor, self._address(), **self._settings()), ()

    # ------------------------------------------------------------ data
    def partition(self, X: Any) -> PartitionedMatrix:
        """Return rows that are on the workers, or are computed there, as a partitioned X.

        Parameters
        ----------
        X : Dask array, Dask dataframe, or list of delayed or futures
            An array in chunks of rows; a dataframe with numeric columns; or arrays, sparse matrices and
            dataframes, one per partition. They are computed once and stay on the workers.

        Returns
        -------
        PartitionedMatrix
            Accepted by `linear_risk` and the estimators in the place of X; each chunk is a shard.
        """
        cluster = DaskCluster(self.client, self.patience)
        cluster.wait_for_workers()
        return PartitionedMatrix(partitions_of(X, cluster), executor=self)

    def persist(self, f: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Run f(item) on the workers, in contiguous blocks of items, and return handles of the results.

        The results stay on the workers. If a worker dies, f(item) is run again on another one.
        """
        # pure=False: two calls with equal arguments are two tasks, each with its own result
        addresses = list(DaskCluster(self.client, self.patience).wait_for_workers())
        return [
            self.client.submit(
                f, item, pure=False, workers=[addresses[k * len(addresses) // len(items)]],
                allow_other_workers=True,
            )
            for k, item in enumerate(items)
        ]  # fmt: skip

    def apply(self, handles: Sequence[Any], g: Callable[[Any], Any]) -> list[Any]:
        """Return [g(result)] for each handle, computed on the worker that holds the result.

        An error that f raised in `persist` is raised by this call.
        """
        # Dask runs a task where its argument is
        pending = [self.client.submit(g, handle, pure=False) for handle in handles]
        return DaskCluster(self.client, self.patience).gather(pending)


def _close(client: Any) -> None:
    """Close a client that this module opened, without waiting if its scheduler is gone."""
    client.close(timeout=2 if client.status == "running" else 0)
