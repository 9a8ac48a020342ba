"""A Dask cluster as the driver sees it: which workers live, and whether they are of the same version."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from riskmin.executors.dask_tasks import greet, resource

ANSWER = 10.0
"""Seconds within which a scheduler has to answer."""
RESUME = "run again on a cluster that is up (with checkpoint=..., nothing but the last seconds is lost)"


def connect(client: Any) -> Any:
    """A client: that one, a new one for the scheduler at that address, or the current one."""
    import distributed

    if client is None:
        try:
            client = distributed.get_client()
        except ValueError:
            raise ValueError(
                "there is no Dask client: start one, such as Client('tcp://host:8786'), or give it to "
                "DaskExecutor(client)"
            ) from None
    elif isinstance(client, str):
        try:
            made: Any = distributed.Client
            client = made(client, timeout=ANSWER, set_as_default=False)
        except (OSError, TypeError, ValueError, RuntimeError) as error:
            raise ConnectionError(
                f"no Dask scheduler answers at {client} ({error}): check the address, and for tls:// that "
                "the certificates in Dask's configuration are those of the cluster"
            ) from None
    if client.asynchronous:
        raise TypeError("the Dask client is asynchronous: give one made without asynchronous=True")
    return client


@dataclass(frozen=True)
class Worker:
    """What is known of a worker."""

    nanny: bool
    """Whether it is started anew when it dies."""
    paused: bool
    greeted: bool
    """Whether it has the resource of its tasks: one that was started anew at its address has not."""

    @classmethod
    def of(cls, address: str, told: Any) -> Worker:
        """Of what the scheduler tells."""
        return cls(bool(told["nanny"]), told["status"] == "paused", resource(address) in told["resources"])


class Cluster:
    """The workers behind a client.

    Parameters
    ----------
    client : distributed.Client
    patience : float
        How many seconds to wait for a worker while there is none.
    """

    def __init__(self, client: Any, patience: float) -> None:
        self.client, self.patience = client, patience
        self.address = client.scheduler.address if client.scheduler is not None else "an unknown address"
        self.since: dict[str, float] = {}
        """Since when a worker is paused; under "", since when there is none."""
        self.known: set[str] = set()
        """Workers that are of the same version."""

    def check(self) -> None:
        """Raise an error if the scheduler is gone, at once: Dask itself would try for half a minute."""
        if self.client.status != "running":
            raise self.gone()

    def gone(self) -> ConnectionError:
        """The error for a scheduler that is gone."""
        return ConnectionError(
            f"the Dask scheduler at {self.address} is gone, or its client closed, and what the workers held "
            f"is lost: {RESUME}"
        )

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """The results of tasks, or the first error among them."""
        try:
            found: list[Any] = self.client.gather(futures)
        except Exception:
            self.check()
            raise
        return found

    def living(self) -> dict[str, Worker]:
        """The workers; an error once there was none for too long."""
        self.check()
        try:
            seen = self.client.sync(self.client.scheduler.identity, callback_timeout=ANSWER)["workers"]
        except Exception:
            raise self.gone() from None
        found = {a: Worker.of(a, w) for a, w in seen.items() if w.get("status") in ("running", "paused")}
        if self._lasts("", not found):
            raise ConnectionError(
                f"the Dask cluster at {self.address} had no worker for {self.patience:g} s: {RESUME}"
            )
        return found

    def wait_for(self, address: str, worker: Worker) -> None:
        """Raise an error once a worker was paused for too long: it starts no task meanwhile."""
        if self._lasts(address, worker.paused):
            raise MemoryError(
                f"the Dask worker {address} is paused for {self.patience:g} s, since its memory is full: "
                "have more workers or larger ones, or spread smaller parts over them"
            )

    def _lasts(self, what: str, bad: bool) -> bool:
        """Whether something is bad for too long."""
        if not bad:
            self.since.pop(what, None)
            return False
        if time.monotonic() - self.since.setdefault(what, time.monotonic()) <= self.patience:
            return False
        del self.since[what]  # who asks again waits again
        return True

    def some(self) -> dict[str, Worker]:
        """The same, after a wait for one that can be used at least."""
        while not (found := self.greet(self.living())):
            time.sleep(0.1)
        return found

    def greet(self, workers: dict[str, Worker]) -> dict[str, Worker]:
        """Those of the workers that answer; an error where one has another version of the library."""
        from riskmin import __version__

        new = [a for a, worker in workers.items() if not (worker.greeted and a in self.known)]
        answers = self.client.run(greet, workers=new, on_error="return") if new else {}
        for address, answer in answers.items():
            if isinstance(answer, OSError):
                continue  # it died just now
            if isinstance(answer, Exception):
                raise RuntimeError(
                    f"the Dask worker {address} cannot run riskmin {__version__} ({answer}): install it there"
                )
            if answer != __version__:
                raise RuntimeError(
                    f"the Dask worker {address} has riskmin {answer}, but here it is {__version__}: "
                    "install the same version there"
                )
            self.known.add(address)
        gone = {address for address, answer in answers.items() if isinstance(answer, OSError)}
        return {a: replace(w, greeted=True) for a, w in workers.items() if a in self.known - gone}


def pin(address: str) -> dict[str, float]:
    """What tasks need that are to run there."""
    return {resource(address): 1}
