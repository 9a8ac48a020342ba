"""Workers and schedulers of Dask that are killed in the middle of fits: the same certified optimum."""

import os
import re
import signal
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from dask_forks import Forks, SlowHinge
from helpers import die, doze, pids, size
from riskmin import L2, Bundle, Checkpoint, DaskExecutor, Hinge, Objective, linear_risk, minimize
from riskmin.arrays.partitioned import LazyShard

pytestmark = pytest.mark.slow

TOL = 1e-3
KILLS = 8


@pytest.fixture(scope="module")
def forks():
    with Forks() as found:
        yield found


@contextmanager
def cluster(forks, n_workers=2):
    """A client, the process of its scheduler, and those of its workers."""
    from distributed import Client

    scheduler, address = forks.scheduler()
    workers = [forks.worker(address)[0] for _ in range(n_workers)]
    client = Client(address, set_as_default=False)
    client.wait_for_workers(n_workers)
    try:
        yield client, scheduler, workers
    finally:
        if client.status == "running":
            client.close()
        kill(*workers, scheduler)
        client.close()


@contextmanager
def preloaded(module):
    """Have the workers of nannies forked from a process that has imported that module."""
    from distributed.utils import get_mp_context

    get_mp_context().set_forkserver_preload(["distributed", module])
    yield


def kill(*processes):
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def problem(executor=None, loss=None):
    """One whose fit takes a few dozen rounds, each of some milliseconds."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 8))
    y = np.where(X @ rng.standard_normal(8) + rng.standard_normal(120) > 0, 1.0, -1.0)
    risk = linear_risk(X, y, loss or SlowHinge(), executor=executor, n_shards=4)
    return Objective(risk, L2(), 0.3)


@pytest.fixture(scope="module")
def want():
    """The optimum, to more digits than is asked for."""
    return minimize(problem(loss=Hinge()), Bundle(), tol=1e-8)


def check(found, want):
    """What was found is certified, and the certificate is true."""
    assert found.status == "converged"
    assert found.lower <= found.value <= found.lower + TOL * found.value
    assert want.lower <= found.value * (1 + 1e-12)
    assert found.lower <= want.value * (1 + 1e-12)
    assert found.value == pytest.approx(want.value, rel=2 * TOL)


# ---------------------------------------------------------------- workers
def test_a_worker_is_killed_many_times_in_the_middle_of_fits(want):
    """At random moments, several times in one fit; its nanny starts it anew."""
    import dask
    from distributed import Client, LocalCluster

    rng, killed, stop = np.random.default_rng(1), [], threading.Event()
    steps, seen = [], [-1]

    def strike():
        while len(killed) < KILLS and not stop.wait(rng.uniform(0.05, 0.5)):
            nanny = cluster.workers[int(rng.integers(2))]
            # a round that kills its workers again and again would be blamed, so one goes well in between
            if nanny.pid is not None and nanny.pid not in killed and len(steps) > seen[0]:
                seen[0] = len(steps)
                killed.append(nanny.pid)
                kill(nanny.pid)

    # forked from one process that has imported all: as real, and started sooner
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        preloaded("dask_warm"),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=60) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        J = problem(DaskExecutor(client))
        striker = threading.Thread(target=strike)
        striker.start()
        fits = 0
        try:
            while len(killed) < KILLS:
                check(minimize(J, Bundle(), tol=TOL, callback=lambda it, row: steps.append(1)), want)
                fits += 1
        finally:
            stop.set()
            striker.join()
        check(minimize(J, Bundle(), tol=TOL), want)
        assert fits < KILLS  # several in one


def test_shards_go_to_a_worker_that_is_left_and_to_one_that_comes(forks, want, monkeypatch):
    monkeypatch.setattr("riskmin.executors.dask.placed_shards.WORKER_CHECK_SECONDS", 0.2)
    with cluster(forks) as (client, _, workers):
        J = problem(DaskExecutor(client))
        there = J.risk.executor
        threading.Timer(0.3, kill, workers[:1]).start()
        check(minimize(J, Bundle(), tol=TOL), want)
        assert set(there.map(pids)) == set(workers[1:])
        newcomer, _ = forks.worker(client.scheduler.address)
        workers.append(newcomer)
        client.wait_for_workers(2)
        time.sleep(0.3)
        there.map(size)
        assert set(there.map(pids)) == set(workers[1:])


def test_a_worker_dies_in_the_middle_of_a_long_round(forks):
    with cluster(forks) as (client, _, workers):
        there = problem(DaskExecutor(client)).risk.executor
        threading.Timer(0.2, kill, workers[:1]).start()
        started = time.monotonic()
        assert there.map(doze, 0.4) == ["rested"] * 4
        assert time.monotonic() - started < 10


def test_a_round_that_kills_whoever_runs_it_is_blamed(forks):
    with cluster(forks) as (client, _, workers):
        there = problem(DaskExecutor(client)).risk.executor
        for _ in range(11):
            workers.append(forks.worker(client.scheduler.address)[0])
        with pytest.raises(RuntimeError, match=r"6 Dask workers died of the same shards, \d to \d: they"):
            there.map(die)


def test_no_worker_is_left(forks):
    with cluster(forks) as (client, _, workers):
        there = problem(DaskExecutor(client, patience=0.5)).risk.executor
        kill(*workers)
        started = time.monotonic()
        with pytest.raises(
            ConnectionError, match=r"had no worker for 0.5 s: run again .*checkpoint="
        ) as caught:
            there.map(size)
        assert time.monotonic() - started < 5
        assert "\n" not in str(caught.value)
        workers.append(forks.worker(client.scheduler.address)[0])
        assert there.map(size) == [30] * 4  # all of them, on the one that came


def test_rows_that_nobody_can_make_again_are_said_to_be_lost(forks):
    with cluster(forks) as (client, _, _):
        X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
        parts = [client.scatter([X[:2]], hash=False)[0], client.scatter([X[2:]], hash=False)[0]]
        executor = DaskExecutor(client)
        there = linear_risk(executor.partition(parts), y, Hinge()).executor
        kill(there.map(pids)[1])
        with pytest.raises(RuntimeError, match=r"part \d of X is lost: .* make X anew"):
            there.map(doze, 0.5)


def test_what_is_kept_is_made_again_elsewhere(forks):
    with cluster(forks) as (client, _, workers):
        executor = DaskExecutor(client)
        handles = executor.persist(np.ones, [(2, 3), (4, 3), (5, 3)])
        assert executor.apply(handles, np.sum) == [6, 12, 15]
        there = executor.place(
            [
                LazyShard(executor.part(handle, "a part", (n, 3), 3 * n, False), np.ones(n), np.ones(n))
                for handle, n in zip(handles, (2, 4, 5), strict=True)
            ]
        )
        assert set(there.map(pids)) == set(workers)
        kill(workers[0])
        assert there.map(size) == [2, 4, 5]
        assert set(there.map(pids)) == set(workers[1:])


# ---------------------------------------------------------------- the scheduler
def test_whatever_is_asked_of_a_scheduler_that_is_gone(forks):
    with cluster(forks) as (client, scheduler, _):
        executor = DaskExecutor(client)
        handles = executor.persist(np.ones, [3, 4])
        there = problem(executor).risk.executor
        assert executor.apply(handles, len) == [3, 4]
        kill(scheduler)
        for ask in (
            lambda: executor.apply(handles, len),
            lambda: there.map(size),
            lambda: problem(executor),
            lambda: executor.partition(handles),
            lambda: executor.persist(np.ones, [1]),
        ):
            started = time.monotonic()
            with pytest.raises(ConnectionError, match=r"the Dask scheduler at .* is gone, .*: run again"):
                ask()
            assert time.monotonic() - started < 10


def test_the_scheduler_is_killed_many_times_in_the_middle_of_fits(forks, want, tmp_path):
    """Each time: an error at once, in one sentence; then the run goes on from its checkpoint, elsewhere."""
    rng, kills = np.random.default_rng(2), 0
    save = Checkpoint(tmp_path / "run", every=0.0)
    while kills < KILLS:
        with cluster(forks, 1) as (client, scheduler, _):
            J = problem(DaskExecutor(client))
            timer = threading.Timer(rng.uniform(0.05, 0.5), kill, (scheduler,))
            timer.start()
            said = ""
            try:
                found = minimize(J, Bundle(), tol=TOL, checkpoint=save)
            except ConnectionError as error:
                said = str(error)
            timer.cancel()
        if said:
            assert re.fullmatch(r"the Dask scheduler at \S+ is gone, .*: run again .*checkpoint=.*", said)
            kills += 1
        else:
            check(found, want)
            save.path.unlink()
    with cluster(forks) as (client, _, _):
        check(minimize(problem(DaskExecutor(client)), Bundle(), tol=TOL, checkpoint=save), want)
