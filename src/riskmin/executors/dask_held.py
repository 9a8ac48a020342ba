"""Shards on the workers of a Dask cluster: one task a worker and round, and what died is made anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NoReturn

from riskmin.executors.dask_cluster import Cluster, Worker, pin
from riskmin.executors.dask_tasks import Kept, Recipe, hold, nothing, pack, run, size, unpack
from riskmin.executors.local import add
from riskmin.spread import Unread
from riskmin.types import Shard

POLL = 0.2
"""Seconds between two looks at the workers while a round lasts."""
LOOK = 2.0
"""Seconds between two looks at them while rounds are shorter than that."""
GRACE = 5.0
"""Seconds in which a worker that is started anew should be back, before another one takes its shards."""
MOST_DEATHS = 5
"""So many workers may die of one round of a group; one more, and the round is to blame."""
SCATTER = 2**25
"""Arguments of more bytes than this, over all workers, go to one of them, and from there to the others."""


@dataclass(eq=False)
class Slot:
    """Shards that are held together on one worker."""

    members: list[int]
    owner: str
    group: Any = None
    """The future of them; none while they are lost."""
    orphan: float | None = None
    """Since when their worker is gone."""
    nanny: bool = False
    deaths: int = 0


@dataclass(eq=False)
class Flight:
    """A round on its way to a slot and back."""

    future: Any
    reply: futures.Future[list[Any]]

    @classmethod
    def start(cls, client: Any, future: Any) -> Flight:
        """Wait for it on the client's loop: there a wait can be given up at any time."""
        ask = client.gather([future], errors="skip", asynchronous=True)
        return cls(future, asyncio.run_coroutine_threadsafe(ask, client.loop.asyncio_loop))

    def take(self) -> list[Any] | None:
        """The reply; none if it was lost on the way. An error that is not of a shard is raised."""
        from distributed import KilledWorker

        if not self.reply.cancelled() and self.reply.exception() is None and self.reply.result():
            found: list[Any] = self.reply.result()[0]
            return found
        if self.future.status == "error":
            error = self.future.exception()
            if not isinstance(error, (KilledWorker, OSError, futures.CancelledError)):
                raise error
        return None


class DaskShards:
    """What `DaskExecutor` makes of shards: they are on the workers, this sends rounds to them.

    Parameters
    ----------
    settings : DaskExecutor
    shards : sequence of Shard or Unread
        They stay known here, so that those of a dead worker can be made anew elsewhere.
    """

    def __init__(self, settings: Any, shards: Sequence[Shard | Unread]) -> None:
        self.settings, self.client = settings, settings.client
        self._shards = list(shards)
        self._cluster = Cluster(self.client, settings.patience)
        self._numbers: Iterator[int] = count()
        self._looked = time.monotonic()
        self._slots = self._assign()
        self.map(nothing)  # so that what cannot be read is told of now

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"shards on the workers of a Dask cluster cannot be copied: copy the settings, "
            f"{self.settings!r}, and make the risk anew"
        )

    def close(self) -> None:
        """Let the workers forget the shards; they do so as well when nothing refers to this any more."""
        self._slots = []

    # ------------------------------------------------------------ rounds
    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """[f(shard_k, *args, each_k) for k], side by side."""
        found: list[Any] = [None] * len(self._shards)
        for slot, replies in self._round(f, args, each, summed=False):
            for k, reply in zip(slot.members, replies, strict=True):
                found[k] = reply
        return found

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The tuples of `map`, added up in shard order; by workers at first, if the order may change."""
        if self.settings.ordered:
            return add(self.map(f, *args, each=each))
        return add([replies[0] for _, replies in self._round(f, args, each, summed=True)])

    def _round(
        self, f: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Any], *, summed: bool
    ) -> list[tuple[Slot, list[Any]]]:
        """The replies of each slot, to one task a slot."""
        if not self._slots:
            raise RuntimeError("the shards on the Dask cluster were closed: make the risk anew")
        number, shared = next(self._numbers), pack((f, args))
        own = {slot: pack([each[k] for k in slot.members] if len(each) else None) for slot in self._slots}
        lot = self._given_out(shared)

        def send(slot: Slot) -> Flight:
            future = self.client.submit(
                run, slot.group, number, lot if slot.deaths == 0 else shared, own[slot], summed,
                pure=False, resources=pin(slot.owner),
            )  # fmt: skip
            return Flight.start(self.client, future)

        flights: dict[Slot, Flight] = {}
        try:
            self._look(flights)
            replies = self._wait(flights, send)
        except Exception:
            self._cluster.check()  # a scheduler that is gone explains whatever came of it
            raise
        finally:
            for flight in flights.values():
                flight.future.release()
        for slot in self._slots:
            slot.deaths = 0
        for fine, reply in (replies[slot] for slot in self._slots):
            if not fine:
                raise reply
        return [(slot, replies[slot][1]) for slot in self._slots]

    def _given_out(self, letter: list[Any]) -> Any:
        """The letter, or, of one that is too long to be sent to each worker from here, the future of it."""
        self._cluster.check()
        if size(letter) * len(self._slots) <= SCATTER:
            return letter
        try:
            return self.client.scatter([letter], hash=False, timeout=1)[0]
        except Exception:  # the worker that was to have it died, or there is none: the round sees to that
            return letter

    def _wait(
        self, flights: dict[Slot, Flight], send: Callable[[Slot], Flight]
    ) -> dict[Slot, tuple[bool, Any]]:
        """The replies to a round. What was lost is made anew and sent again."""
        replies: dict[Slot, tuple[bool, Any]] = {}
        while len(replies) < len(self._slots):
            for slot in self._slots:
                if slot.group is not None and slot.group.status in ("cancelled", "lost"):
                    self._drop(slot, flights)
                if slot not in replies and slot not in flights and slot.group is not None:
                    flights[slot] = send(slot)
            open_ = {slot: flight for slot, flight in flights.items() if slot not in replies}
            futures.wait([flight.reply for flight in open_.values()], timeout=POLL)
            for slot, flight in open_.items():
                if flight.reply.done():
                    letter = flight.take()
                    if letter is None:
                        self._drop(slot, flights)
                    else:
                        replies[slot] = unpack(letter)
            if len(replies) < len(self._slots):
                self._mend({slot for slot in self._slots if slot not in replies}, flights)
            if not open_:
                time.sleep(POLL)
        return replies

    # ------------------------------------------------------------ who holds what
    def _assign(self) -> list[Slot]:
        """Shards in a row to each worker; those that are made of what is on a worker, to that one."""
        workers = self._cluster.some()
        addresses = list(workers)
        n, used = len(self._shards), min(len(addresses), len(self._shards))
        homes = self._homes()
        by_owner: dict[str, list[int]] = {}
        for k in range(n):
            there = [address for address in homes.get(k, ()) if address in workers]
            by_owner.setdefault(there[0] if there else addresses[k * used // n], []).append(k)
        return [Slot(members, owner, nanny=workers[owner].nanny) for owner, members in by_owner.items()]

    def _homes(self) -> dict[int, Sequence[str]]:
        """Where the rows of each shard are, of those on workers."""
        kept = {k: data for k in range(len(self._shards)) if (data := self._kept(k)) is not None}
        if not kept:
            return {}
        where = self.client.who_has(list(kept.values()))
        return {k: tuple(where.get(data.key, ())) for k, data in kept.items()}

    def _kept(self, k: int) -> Any:
        """The future of a shard's rows, if they are on a worker."""
        part = getattr(self._shards[k], "part", None)
        if not isinstance(part, Kept):
            return None
        if part.data.status == "cancelled":  # what is "lost" is about to be computed again
            raise RuntimeError(
                f"{part.name} is lost: the Dask workers that held it are gone, and nothing tells how to make "
                "it again; make X anew, from a collection or from files"
            )
        return part.data

    def _look(self, flights: dict[Slot, Flight]) -> None:
        """Give shards that have none to a worker; now and then, see whether a new one came."""
        lost = {slot for slot in self._slots if slot.group is None}
        if lost or time.monotonic() - self._looked > LOOK:
            self._mend(lost, flights, balance=True)

    def _mend(self, waiting: set[Slot], flights: dict[Slot, Flight], *, balance: bool = False) -> None:
        """Give the shards of dead workers to living ones."""
        self._cluster.check()
        self._looked = time.monotonic()
        living = self._cluster.living()
        for slot in self._slots:
            there = living.get(slot.owner)
            if there is None or not there.greeted:
                self._orphaned(slot, flights)
            elif slot in waiting:
                self._cluster.wait_for(slot.owner, there)
            if slot.group is None and (slot in waiting or balance):
                self._place(slot, living)
        if (
            balance
            and len(spare := self._spare(living))
            and len({s.owner for s in self._slots}) < len(self._slots)
        ):
            owners = [slot.owner for slot in self._slots]
            crowded = max(self._slots, key=lambda slot: owners.count(slot.owner))
            if self._cluster.greet({spare[0]: living[spare[0]]}):
                self._make(crowded, spare[0], living[spare[0]])

    def _orphaned(self, slot: Slot, flights: dict[Slot, Flight]) -> None:
        """Note that a slot's worker is gone."""
        if slot.orphan is None:
            slot.orphan = time.monotonic()
            self._drop(slot, flights)

    def _drop(self, slot: Slot, flights: dict[Slot, Flight]) -> None:
        """Forget a group that is lost, and what was asked of it."""
        slot.group = None
        slot.deaths += 1
        if slot.deaths > MOST_DEATHS:
            raise RuntimeError(
                f"{slot.deaths} Dask workers died of the same shards, {slot.members[0]} to {slot.members[-1]}"
                ": they may need more memory than a worker has; spread smaller parts over more workers"
            )
        if flight := flights.pop(slot, None):
            flight.future.release()

    def _spare(self, living: dict[str, Worker]) -> list[str]:
        owners = {slot.owner for slot in self._slots}
        return [a for a, worker in living.items() if not (a in owners and worker.greeted)]

    def _place(self, slot: Slot, living: dict[str, Worker]) -> None:
        """Make a group anew: where it was, at a worker that has none, or at the one with the fewest."""
        owners = [s.owner for s in self._slots]
        if slot.orphan is None:
            choice = [slot.owner]
        elif not (choice := self._spare(living)):
            if not living or (slot.nanny and time.monotonic() - slot.orphan < GRACE):
                return
            choice = sorted(living, key=owners.count)
        if not self._cluster.greet({choice[0]: living[choice[0]]}):
            return
        self._make(slot, choice[0], living[choice[0]])

    def _make(self, slot: Slot, owner: str, worker: Worker) -> None:
        """Have a worker hold the shards of a slot. Their rows are known here, or by the tasks of others."""
        given = [self._kept(k) for k in slot.members]
        try:
            # one by one, since they pass through the scheduler
            sent = [
                self.client.scatter([Recipe(_bare(self._shards[k]))], workers=[owner], hash=False, timeout=1)
                for k in slot.members
            ]
        except Exception:
            if owner in self._cluster.living():
                raise
            return  # it died just now
        slot.owner, slot.orphan, slot.nanny = owner, None, worker.nanny
        slot.group = self.client.submit(
            hold, [future for (future,) in sent], given, pure=False, resources=pin(owner)
        )


def _bare(shard: Shard | Unread) -> Shard | Unread:
    """A shard without what cannot be sent: its memo, and the future of its rows, which the task is given."""
    if isinstance(shard, Unread):
        part: Any = shard.part
        return replace(shard, part=replace(part, data=None)) if isinstance(part, Kept) else shard
    return Shard(*shard[:3], {})
