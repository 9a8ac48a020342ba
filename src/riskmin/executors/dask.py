"""Shards on the workers of a Dask cluster, from local data, Dask's collections, or files that they read."""

from __future__ import annotations

import math
import numbers
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from riskmin.executors.dask_cluster import Cluster, connect
from riskmin.executors.dask_data import computed as computed
from riskmin.executors.dask_data import is_dask as is_dask
from riskmin.executors.dask_data import parts_of
from riskmin.executors.dask_held import DaskShards
from riskmin.executors.dask_tasks import Kept
from riskmin.spread import Part, Spread, Unread
from riskmin.types import Shard


class DaskExecutor:
    """Shards on the workers of a Dask cluster. What a dead worker held is made anew on another one.

    Parameters
    ----------
    client : distributed.Client or str, optional
        The client, or the address of the scheduler; the current client by default.
    ordered : bool
        Add up sums here, in shard order: the same bits as on one machine. Otherwise each worker adds up
        those of its own shards first, so that less is sent, and the last bits depend on who has which.
    patience : float
        How many seconds to wait for a worker while there is none, or none with free memory.

    Examples
    --------
    Rows that are here are sent to the workers by ``linear_risk(X, y, loss, executor=DaskExecutor(client))``;
    those that are there already are told of by ``linear_risk(DaskExecutor(client).spread(X), y, loss)``.

    >>> from riskmin import DaskExecutor
    >>> DaskExecutor("tcp://scheduler:8786", ordered=False)  # connects when it is first used
    DaskExecutor('tcp://scheduler:8786', ordered=False)
    """

    def __init__(self, client: Any = None, *, ordered: bool = True, patience: float = 60.0) -> None:
        if client is not None and not isinstance(client, str) and not hasattr(client, "scheduler_info"):
            raise TypeError(
                f"client={client!r:.60} is no client of Dask: give a distributed.Client, or the address of "
                "the scheduler, such as 'tcp://host:8786'"
            )
        if not isinstance(patience, numbers.Real) or not 0 <= patience < math.inf:
            raise ValueError(f"patience={patience!r}: give a number of seconds >= 0")
        self._given: Any = client
        self._client: Any = None
        self.ordered: bool = bool(ordered)
        self.patience: float = float(patience)

    @property
    def client(self) -> Any:
        """The client; connected when it is first asked for, where an address was given."""
        if self._client is None:
            self._client = connect(self._given)
            if isinstance(self._given, str):
                weakref.finalize(self, _close, self._client)
        return self._client

    def __call__(self, shards: Sequence[Shard | Unread]) -> DaskShards:
        """An executor with these settings that holds these shards."""
        return DaskShards(self, shards)

    def __repr__(self) -> str:
        said = [] if self._given is None else [repr(self._address())]
        said += [] if self.ordered else ["ordered=False"]
        said += [] if self.patience == 60 else [f"patience={self.patience:g}"]
        return f"DaskExecutor({', '.join(said)})"

    def _address(self) -> str | None:
        """That of the scheduler, which is all of a client that can be sent elsewhere."""
        if self._given is None or isinstance(self._given, str):
            return self._given
        return str(self._given.scheduler.address)

    def __deepcopy__(self, memo: Any) -> DaskExecutor:
        """The same client serves copies too."""
        return self.__copy__()

    def __copy__(self) -> DaskExecutor:
        return DaskExecutor(self._given, ordered=self.ordered, patience=self.patience)

    def __reduce__(self) -> tuple[Any, ...]:
        """Settings can be sent elsewhere, and connect from there."""
        return partial(DaskExecutor, self._address(), ordered=self.ordered, patience=self.patience), ()

    # ------------------------------------------------------------ data
    def spread(self, X: Any) -> Spread:
        """Rows that are on the workers, or are computed there, as parts of X.

        Parameters
        ----------
        X : Dask array, Dask dataframe, or list of delayed or futures
            An array in chunks of rows; a frame with columns of numbers; or arrays, sparse matrices and
            frames, one a part. They are computed once, and stay on the workers.

        Returns
        -------
        Spread
            What `linear_risk` and the estimators take in the place of X; a chunk is a shard.
        """
        cluster = Cluster(self.client, self.patience)
        cluster.some()
        return Spread(parts_of(X, cluster), executor=self)

    def keep(self, f: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Run f(item) on the workers, each having its share of the items; handles of the results, which stay.

        If a worker dies, f(item) is run again on another one.
        """
        addresses = list(Cluster(self.client, self.patience).some())
        return [
            self.client.submit(
                f, item, pure=False, workers=[addresses[k * len(addresses) // len(items)]],
                allow_other_workers=True,
            )
            for k, item in enumerate(items)
        ]  # fmt: skip

    def ask(self, handles: Sequence[Any], g: Callable[[Any], Any]) -> list[Any]:
        """[g(result)] for each handle, computed where the result is; an error of `keep` arrives here."""
        replies = [self.client.submit(g, handle, pure=False) for handle in handles]
        return Cluster(self.client, self.patience).gather(replies)

    def part(
        self,
        handle: Any,
        name: str,
        shape: tuple[int, int],
        numbers: int,
        sparse: bool,
        pick: Callable[[Any], Any] | None = None,
    ) -> Part:
        """A part of X whose rows are in a result that is kept: ``pick(result)``, or the result itself."""
        return Kept(name, shape, numbers, sparse, handle, pick)


def _close(client: Any) -> None:
    """Close a client of our own; one whose scheduler is gone has nothing to say any more."""
    client.close(timeout=2 if client.status == "running" else 0)
