"""State of a Dask cluster: which workers are alive, and whether they run the same version of riskmin."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from riskmin.executors.dask.worker_tasks import greet, worker_resource

RESUME_HINT = "run again on a cluster that is up (with checkpoint=..., nothing but the last seconds is lost)"


def connect_client(client: Any) -> Any:
    """Return the client: `client` itself, a new one for a scheduler address, or the current one if None."""
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
            make_client: Any = distributed.Client
            client = make_client(client, timeout=DaskCluster.SCHEDULER_TIMEOUT_SECONDS, set_as_default=False)
        except (OSError, TypeError, ValueError, RuntimeError) as error:
            raise ConnectionError(
                f"no Dask scheduler answers at {client} ({error}): check the address, and for tls:// that "
                "the certificates in Dask's configuration are those of the cluster"
            ) from None
    if client.asynchronous:
        raise TypeError("the Dask client is asynchronous: give one made without asynchronous=True")
    return client


@dataclass(frozen=True)
class WorkerStatus:
    """Status of a worker."""

    auto_restart: bool
    """Whether a Dask nanny process restarts it when it dies."""
    paused: bool
    registered: bool
    """Whether it has the resource that its tasks require; a restarted worker at the same address lacks it."""

    @classmethod
    def from_info(cls, address: str, info: Any) -> WorkerStatus:
        """Read the status from the scheduler's entry of a worker."""
        return cls(
            bool(info["nanny"]), info["status"] == "paused", worker_resource(address) in info["resources"]
        )


class DaskCluster:
    """The workers behind a client.

    Parameters
    ----------
    client : distributed.Client
    timeout : float
        Seconds after which a cluster without workers, or a paused worker, is an error.
    """

    SCHEDULER_TIMEOUT_SECONDS = 10.0
    """Timeout of requests to the scheduler."""

    def __init__(self, client: Any, timeout: float) -> None:
        self.client, self.timeout = client, timeout
        self.address = client.scheduler.address if client.scheduler is not None else "an unknown address"
        self.failing_since: dict[str, float] = {}
        """Time at which each worker was first seen paused; under "", at which no worker was left."""
        self.same_version: set[str] = set()
        """Addresses of workers with the same version of riskmin."""

    def check(self) -> None:
        """Raise an error at once if the scheduler is gone: Dask itself would retry for half a minute."""
        if self.client.status != "running":
            raise self.connection_lost()

    def connection_lost(self) -> ConnectionError:
        """Return the error for a scheduler that is gone."""
        return ConnectionError(
            f"the Dask scheduler at {self.address} is gone, or its client closed, and the shards on the "
            f"workers are lost: {RESUME_HINT}"
        )

    def gather(self, futures: Sequence[Any]) -> list[Any]:
        """Return the results of tasks, or raise the first error among them."""
        try:
            results: list[Any] = self.client.gather(futures)
        except Exception:
            self.check()
            raise
        return results

    def live_workers(self) -> dict[str, WorkerStatus]:
        """Return the workers by address; raise a ConnectionError after `timeout` seconds without a worker."""
        self.check()
        try:
            infos = self.client.sync(
                self.client.scheduler.identity, callback_timeout=self.SCHEDULER_TIMEOUT_SECONDS
            )["workers"]
        except Exception:
            raise self.connection_lost() from None
        # workers that are starting, closing or failed are not usable
        workers = {
            a: WorkerStatus.from_info(a, w)
            for a, w in infos.items()
            if w.get("status") in ("running", "paused")
        }
        if self._timed_out("", not workers):
            raise ConnectionError(
                f"the Dask cluster at {self.address} had no worker for {self.timeout:g} s: {RESUME_HINT}"
            )
        return workers

    def check_not_paused(self, address: str, worker: WorkerStatus) -> None:
        """Raise a MemoryError if a worker has been paused for `timeout` seconds: it starts no tasks."""
        if self._timed_out(address, worker.paused):
            raise MemoryError(
                f"the Dask worker {address} is paused for {self.timeout:g} s, since its memory is full: "
                "use more workers, or workers with more memory, or smaller partitions"
            )

    def _timed_out(self, key: str, failing: bool) -> bool:
        """Whether the condition `key` has been failing for more than `timeout` seconds."""
        if not failing:
            self.failing_since.pop(key, None)
            return False
        if time.monotonic() - self.failing_since.setdefault(key, time.monotonic()) <= self.timeout:
            return False
        # the next call starts a new timeout
        del self.failing_since[key]
        return True

    def wait_for_workers(self) -> dict[str, WorkerStatus]:
        """Return the usable workers by address, after a wait for at least one of them."""
        while not (usable := self.register(self.live_workers())):
            time.sleep(0.1)
        return usable

    def register(self, workers: dict[str, WorkerStatus]) -> dict[str, WorkerStatus]:
        """Return the workers that answer; raise a RuntimeError if one has another version of riskmin."""
        from riskmin import __version__

        # workers that joined, or were restarted without the resource that pins tasks to them
        new = [a for a, worker in workers.items() if not (worker.registered and a in self.same_version)]
        answers = self.client.run(greet, workers=new, on_error="return") if new else {}
        for address, answer in answers.items():
            # a lost connection: the worker died in the meantime
            if isinstance(answer, OSError):
                continue
            if isinstance(answer, Exception):
                raise RuntimeError(
                    f"the Dask worker {address} cannot run riskmin {__version__} ({answer}): install it there"
                )
            if answer != __version__:
                raise RuntimeError(
                    f"the Dask worker {address} has riskmin {answer}, but the client has {__version__}: "
                    "install the same version there"
                )
            self.same_version.add(address)
        # a worker that died may still be in same_version from before
        died = {address for address, answer in answers.items() if isinstance(answer, OSError)}
        return {a: replace(w, registered=True) for a, w in workers.items() if a in self.same_version - died}


def worker_resources(address: str) -> dict[str, float]:
    """Return the resources that a task requires in order to run on the worker at `address`."""
    return {worker_resource(address): 1}
