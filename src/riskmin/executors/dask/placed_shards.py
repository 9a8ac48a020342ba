"""Executor over shards on Dask workers: one task per group of shards and round; lost groups are rebuilt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn

from riskmin.arrays.partitioned import LazyShard
from riskmin.core import Shard
from riskmin.core.limits import LIMITS
from riskmin.executors.base import Executor, sum_tuples
from riskmin.executors.dask.cluster import DaskCluster, WorkerStatus, worker_resources
from riskmin.executors.dask.worker_tasks import build_group, message_bytes, pack, run_round, unpack
from riskmin.executors.worker_shards import WorkerPartition, shard_spec, touch_shard


@dataclass(eq=False)
class ShardPlacement:
    """Assignment of a group of shards to one worker."""

    members: list[int]
    owner: str
    group: Any = None
    """Future of their `ShardGroup`; None while they are lost."""
    orphaned_at: float | None = None
    """Time at which their worker was first seen gone; None while it is alive."""
    auto_restart: bool = False
    deaths: int = 0


@dataclass(eq=False)
class PendingRound:
    """A round that was sent to one group of shards and not yet answered."""

    future: Any
    reply: futures.Future[list[Any]]

    @classmethod
    def start(cls, client: Any, future: Any) -> PendingRound:
        """Wait for the future in the client's event loop, where a wait can be cancelled at any time."""
        gathering = client.gather([future], errors="skip", asynchronous=True)
        import asyncio  # takes longer than the other imports of this module together

        return cls(future, asyncio.run_coroutine_threadsafe(gathering, client.loop.asyncio_loop))

    def result(self) -> list[Any] | None:
        """Return the reply, or None if it was lost; raise any error but the loss of a worker."""
        from distributed import KilledWorker

        if not self.reply.cancelled() and self.reply.exception() is None and self.reply.result():
            reply: list[Any] = self.reply.result()[0]
            return reply
        # errors of the cluster mean that the worker is lost; any other error is one of the task itself
        if self.future.status == "error":
            error = self.future.exception()
            if not isinstance(error, (KilledWorker, OSError, futures.CancelledError)):
                raise error
        return None


class DaskShards(Executor):
    """Executor that `DaskExecutor` returns for shards: holds them on the workers and sends rounds to them.

    Parameters
    ----------
    settings : DaskExecutor
    shards : sequence of Shard or LazyShard
        The client keeps them as well, so that those of a dead worker can be rebuilt on another one.
    """

    WORKER_CHECK_SECONDS = 2.0
    """Interval, in seconds, at which the workers are checked between rounds that are shorter than this."""
    ROUND_POLL_SECONDS = 0.2
    """Interval at which the workers are checked during a round."""
    RESTART_GRACE_SECONDS = 5.0
    """Time a restarted worker has to come back before another worker takes its shards."""
    MAX_DEATHS_PER_ROUND = 5
    """A round fails once more workers than this have died while they computed it for one group of shards."""

    def __init__(self, settings: Any, shards: Sequence[Shard | LazyShard]) -> None:
        self.settings, self.client = settings, settings.client
        # kernels of a GPU compile losses, and so do those of a CPU, but not other array libraries
        self.compiles_losses = not callable(settings.device)
        self._shards = list(shards)
        self._cluster = DaskCluster(self.client, settings.patience)
        self._round_numbers: Iterator[int] = count()
        self._checked_at = time.monotonic()
        self._placements = self._assign()
        self.map(touch_shard)  # raises now if a partition cannot be read

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"shards on the workers of a Dask cluster cannot be copied: copy the settings, "
            f"{self.settings!r}, and make the risk anew"
        )

    def close(self) -> None:
        """Release the shards on the workers; this also happens when the executor is garbage collected."""
        self._placements = []

    # ------------------------------------------------------------ rounds
    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k], computed in parallel."""
        results: list[Any] = [None] * len(self._shards)
        for placement, replies in self._round(f, args, each, summed=False):
            for k, reply in zip(placement.members, replies, strict=True):
                results[k] = reply
        return results

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the tuples of `map`, in shard order, or with `ordered=False` first by worker."""
        if self.settings.ordered:
            return sum_tuples(self.map(f, *args, each=each))
        return sum_tuples([replies[0] for _, replies in self._round(f, args, each, summed=True)])

    def _round(
        self, f: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Any], *, summed: bool
    ) -> list[tuple[ShardPlacement, list[Any]]]:
        """Send one task per placement and return the replies of each."""
        if not self._placements:
            raise RuntimeError("the shards on the Dask cluster were closed: make the risk anew")
        # what all shards have in common is packed once, the arguments of each shard per placement
        number, shared = next(self._round_numbers), pack((f, args))
        per_shard = {
            placement: pack([each[k] for k in placement.members] if len(each) else None)
            for placement in self._placements
        }
        common = self._scattered(shared)

        def send(placement: ShardPlacement) -> PendingRound:
            # after a death, the message itself: the worker that held its scattered copy may be the dead one
            future = self.client.submit(
                run_round, placement.group, number, common if placement.deaths == 0 else shared,
                per_shard[placement], summed, pure=False, resources=worker_resources(placement.owner),
            )  # fmt: skip
            return PendingRound.start(self.client, future)

        pending: dict[ShardPlacement, PendingRound] = {}
        try:
            self._check_workers(pending)
            replies = self._wait(pending, send)
        except Exception:
            self._cluster.check()  # a lost scheduler explains any other error
            raise
        finally:
            for sent in pending.values():
                sent.future.release()
        # all groups answered: deaths are counted per round
        for placement in self._placements:
            placement.deaths = 0
        for succeeded, reply in (replies[placement] for placement in self._placements):
            if not succeeded:
                raise reply
        return [(placement, replies[placement][1]) for placement in self._placements]

    def _scattered(self, message: list[Any]) -> Any:
        """Return the message, or the future of one that is too long to be sent to each worker directly."""
        self._cluster.check()
        # the client would send the message once per worker
        if message_bytes(message) * len(self._placements) <= LIMITS.scatter_above_bytes:
            return message
        try:
            return self.client.scatter([message], hash=False, timeout=1)[0]
        except Exception:  # the worker it was sent to died, or there is none: the round handles both
            return message

    def _wait(
        self, pending: dict[ShardPlacement, PendingRound], send: Callable[[ShardPlacement], PendingRound]
    ) -> dict[ShardPlacement, tuple[bool, Any]]:
        """Wait for the replies to a round; rebuild lost groups and send the round to them again."""
        replies: dict[ShardPlacement, tuple[bool, Any]] = {}
        while len(replies) < len(self._placements):
            # 1. send the round to all groups that are on a worker and have not received it
            for placement in self._placements:
                if placement.group is not None and placement.group.status in ("cancelled", "lost"):
                    self._drop(placement, pending)
                if placement not in replies and placement not in pending and placement.group is not None:
                    pending[placement] = send(placement)
            # 2. collect the replies that arrive within the polling interval
            unanswered = {placement: sent for placement, sent in pending.items() if placement not in replies}
            futures.wait([sent.reply for sent in unanswered.values()], timeout=self.ROUND_POLL_SECONDS)
            for placement, sent in unanswered.items():
                if sent.reply.done():
                    message = sent.result()
                    if message is None:
                        self._drop(placement, pending)
                    else:
                        replies[placement] = unpack(message)
            # 3. place the groups of dead workers on live ones; they get the round in the next pass
            if len(replies) < len(self._placements):
                self._recover(
                    {placement for placement in self._placements if placement not in replies}, pending
                )
            if not unanswered:
                time.sleep(self.ROUND_POLL_SECONDS)
        return replies

    # ------------------------------------------------------------ placement of shards
    def _assign(self) -> list[ShardPlacement]:
        """Assign contiguous shards to each worker, but shards whose rows are on a worker to that worker."""
        workers = self._cluster.wait_for_workers()
        addresses = list(workers)
        n, n_used = len(self._shards), min(len(addresses), len(self._shards))
        holders = self._row_holders()
        by_owner: dict[str, list[int]] = {}
        for k in range(n):
            # a worker that holds the rows, else the contiguous share k n_used / n
            nearest = [address for address in holders.get(k, ()) if address in workers]
            by_owner.setdefault(nearest[0] if nearest else addresses[k * n_used // n], []).append(k)
        return [
            ShardPlacement(members, owner, auto_restart=workers[owner].auto_restart)
            for owner, members in by_owner.items()
        ]

    def _row_holders(self) -> dict[int, Sequence[str]]:
        """Addresses of the workers that hold the rows of each shard, for rows that are on workers."""
        rows_of = {k: data for k in range(len(self._shards)) if (data := self._rows_future(k)) is not None}
        if not rows_of:
            return {}
        # one request to the scheduler for all shards
        holders = self.client.who_has(list(rows_of.values()))
        return {k: tuple(holders.get(data.key, ())) for k, data in rows_of.items()}

    def _rows_future(self, k: int) -> Any:
        """Return the future of a shard's rows, or None if they are not on a worker."""
        part = self._shards[k].part
        if not isinstance(part, WorkerPartition):
            return None
        if part.data.status == "cancelled":  # "lost" futures are about to be computed again
            raise RuntimeError(
                f"{part.name} is lost: the Dask workers that held it are gone, and it cannot be computed "
                "again; make X anew, from a collection or from files"
            )
        return part.data

    def _check_workers(self, pending: dict[ShardPlacement, PendingRound]) -> None:
        """Place lost shards on workers; at intervals, also use workers that joined the cluster."""
        lost = {placement for placement in self._placements if placement.group is None}
        if lost or time.monotonic() - self._checked_at > self.WORKER_CHECK_SECONDS:
            self._recover(lost, pending, balance=True)

    def _recover(
        self,
        waiting: set[ShardPlacement],
        pending: dict[ShardPlacement, PendingRound],
        *,
        balance: bool = False,
    ) -> None:
        """Place the shards of dead workers on live ones.

        Parameters
        ----------
        waiting : set of ShardPlacement
            Placements whose replies are missing.
        pending : dict
            The rounds under way.
        balance : bool
            Whether to move a group from the worker with the most groups to a worker without any.
        """
        self._cluster.check()
        self._checked_at = time.monotonic()
        # groups of dead or restarted workers are lost; rebuild the ones that are needed now
        live = self._cluster.live_workers()
        for placement in self._placements:
            worker = live.get(placement.owner)
            if worker is None or not worker.registered:
                self._orphaned(placement, pending)
            elif placement in waiting:
                self._cluster.check_not_paused(placement.owner, worker)
            if placement.group is None and (placement in waiting or balance):
                self._place(placement, live)
        # a worker that joined takes over one group of the worker with the most groups
        if (
            balance
            and len(spare := self._spare(live))
            and len({s.owner for s in self._placements}) < len(self._placements)
        ):
            owners = [placement.owner for placement in self._placements]
            busiest = max(self._placements, key=lambda placement: owners.count(placement.owner))
            if self._cluster.register({spare[0]: live[spare[0]]}):
                self._build(busiest, spare[0], live[spare[0]])

    def _orphaned(self, placement: ShardPlacement, pending: dict[ShardPlacement, PendingRound]) -> None:
        """Record that the worker of a placement is gone."""
        if placement.orphaned_at is None:
            placement.orphaned_at = time.monotonic()
            self._drop(placement, pending)

    def _drop(self, placement: ShardPlacement, pending: dict[ShardPlacement, PendingRound]) -> None:
        """Forget a lost group and the round that was sent to it."""
        placement.group = None
        placement.deaths += 1
        if placement.deaths > self.MAX_DEATHS_PER_ROUND:
            raise RuntimeError(
                f"{placement.deaths} Dask workers died of the same shards, {placement.members[0]} to "
                f"{placement.members[-1]}: they may need more memory than a worker has; spread smaller parts "
                "over more workers"
            )
        if sent := pending.pop(placement, None):
            sent.future.release()

    def _spare(self, live: dict[str, WorkerStatus]) -> list[str]:
        """Addresses of live workers that hold no shards."""
        owners = {placement.owner for placement in self._placements}
        return [a for a, worker in live.items() if not (a in owners and worker.registered)]

    def _place(self, placement: ShardPlacement, live: dict[str, WorkerStatus]) -> None:
        """Rebuild a group on its worker, else on a worker without groups, else on the one with the fewest."""
        owners = [s.owner for s in self._placements]
        if placement.orphaned_at is None:
            candidates = [placement.owner]
        elif not (candidates := self._spare(live)):
            # without a spare worker, a worker that restarts by itself gets some time to come back
            if not live or (
                placement.auto_restart
                and time.monotonic() - placement.orphaned_at < self.RESTART_GRACE_SECONDS
            ):
                return
            candidates = sorted(live, key=owners.count)
        if not self._cluster.register({candidates[0]: live[candidates[0]]}):
            return
        self._build(placement, candidates[0], live[candidates[0]])

    def _build(self, placement: ShardPlacement, owner: str, worker: WorkerStatus) -> None:
        """Build the shards of a placement on a worker, from rows in this process or on the workers."""
        row_futures = [self._rows_future(k) for k in placement.members]
        try:
            # one shard at a time, since the data pass through the scheduler
            specs = [
                self.client.scatter(
                    [pack(shard_spec(self._shards[k], self.settings.device))],
                    workers=[owner],
                    hash=False,
                    timeout=1,
                )
                for k in placement.members
            ]
        except Exception:
            if owner in self._cluster.live_workers():
                raise
            return  # it died in the meantime
        # the task requires the resource of this worker, so that the group is built and stays there
        placement.owner, placement.orphaned_at, placement.auto_restart = owner, None, worker.auto_restart
        placement.group = self.client.submit(
            build_group,
            [future for (future,) in specs],
            row_futures,
            pure=False,
            resources=worker_resources(owner),
        )
