"""Dask workers and schedulers killed during fits: the certified optimum is the same."""

import os
import re
import signal
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from dask_forks import SlowHinge
from helpers import Problem, die, doze, pids, size
from riskmin import Bundle, Checkpoint, DaskExecutor, Hinge, linear_risk, minimize
from riskmin.arrays.partitioned import LazyShard

pytestmark = pytest.mark.slow

TOL = 1e-3
KILLS = 3


@contextmanager
def cluster(forks, n_workers=2):
    """A client, the pid of its scheduler, and the pids of its workers."""
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


def kill(*processes):
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def problem(executor=None, loss=None):
    """A problem whose fit takes a few dozen rounds of some milliseconds each."""
    return Problem(loss or SlowHinge(), lam=0.3, n=120, p=8).objective(executor=executor, n_shards=4)


@pytest.fixture(scope="module")
def optimum():
    """The optimum, more accurate than the fits under test."""
    return minimize(problem(loss=Hinge()), Bundle(), tol=1e-8)


def check(result, optimum):
    """Check that the result is certified and that its bounds are valid."""
    assert result.status == "converged"
    assert result.lower <= result.value <= result.lower + TOL * result.value
    assert optimum.lower <= result.value * (1 + 1e-12)
    assert result.lower <= optimum.value * (1 + 1e-12)
    assert result.value == pytest.approx(optimum.value, rel=2 * TOL)


# ---------------------------------------------------------------- workers
def test_shards_move_to_remaining_and_new_workers(forks, optimum):
    with cluster(forks) as (client, _, workers):
        J = problem(DaskExecutor(client))
        placed = J.risk.executor
        threading.Timer(0.3, kill, workers[:1]).start()
        check(minimize(J, Bundle(), tol=TOL), optimum)
        assert set(placed.map(pids)) == set(workers[1:])
        newcomer, _ = forks.worker(client.scheduler.address)
        workers.append(newcomer)
        end = time.monotonic() + 60
        while set(placed.map(pids)) != set(workers[1:]) and time.monotonic() < end:
            time.sleep(0.2)  # new workers are noticed from time to time
        assert set(placed.map(pids)) == set(workers[1:])


def test_worker_dies_during_a_long_round(forks):
    with cluster(forks) as (client, _, workers):
        placed = problem(DaskExecutor(client)).risk.executor
        threading.Timer(0.2, kill, workers[:1]).start()
        assert placed.map(doze, 0.4) == ["rested"] * 4


def test_round_that_kills_its_workers_raises(forks):
    with cluster(forks) as (client, _, workers):
        placed = problem(DaskExecutor(client)).risk.executor
        for _ in range(11):
            workers.append(forks.worker(client.scheduler.address)[0])
        with pytest.raises(RuntimeError, match=r"6 Dask workers died of the same shards, \d to \d: they"):
            placed.map(die)


def test_no_worker_remains(forks):
    with cluster(forks) as (client, _, workers):
        placed = problem(DaskExecutor(client, patience=0.5)).risk.executor
        kill(*workers)
        with pytest.raises(
            ConnectionError, match=r"had no worker for 0.5 s: run again .*checkpoint="
        ) as caught:
            placed.map(size)
        assert "\n" not in str(caught.value)
        workers.append(forks.worker(client.scheduler.address)[0])
        assert placed.map(size) == [30] * 4  # all shards are on the new worker


def test_rows_that_cannot_be_recomputed_are_reported_lost(forks):
    with cluster(forks) as (client, _, _):
        X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
        parts = [client.scatter([X[:2]], hash=False)[0], client.scatter([X[2:]], hash=False)[0]]
        executor = DaskExecutor(client)
        placed = linear_risk(executor.partition(parts), y, Hinge()).executor
        kill(placed.map(pids)[1])
        with pytest.raises(RuntimeError, match=r"part \d of X is lost: .* make X anew"):
            placed.map(doze, 0.5)


def test_persisted_results_are_recomputed_on_another_worker(forks):
    with cluster(forks) as (client, _, workers):
        executor = DaskExecutor(client)
        handles = executor.persist(np.ones, [(2, 3), (4, 3), (5, 3)])
        assert executor.apply(handles, np.sum) == [6, 12, 15]
        placed = executor.place(
            [
                LazyShard(executor.part(handle, "a part", (n, 3), 3 * n, False), np.ones(n), np.ones(n))
                for handle, n in zip(handles, (2, 4, 5), strict=True)
            ]
        )
        assert set(placed.map(pids)) == set(workers)
        kill(workers[0])
        assert placed.map(size) == [2, 4, 5]
        assert set(placed.map(pids)) == set(workers[1:])


# ---------------------------------------------------------------- the scheduler
def test_every_call_raises_without_a_scheduler(forks):
    with cluster(forks) as (client, scheduler, _):
        executor = DaskExecutor(client)
        handles = executor.persist(np.ones, [3, 4])
        placed = problem(executor).risk.executor
        assert executor.apply(handles, len) == [3, 4]
        kill(scheduler)
        for call in (
            lambda: executor.apply(handles, len),
            lambda: placed.map(size),
            lambda: problem(executor),
            lambda: executor.partition(handles),
            lambda: executor.persist(np.ones, [1]),
        ):
            with pytest.raises(ConnectionError, match=r"the Dask scheduler at .* is gone, .*: run again"):
                call()


def test_fits_resume_after_the_scheduler_is_killed(forks, optimum, tmp_path):
    """Each kill raises a one-sentence error at once; the run resumes from its checkpoint on a new cluster."""
    rng, kills = np.random.default_rng(2), 0
    save = Checkpoint(tmp_path / "run", every=0.0)
    while kills < KILLS:
        with cluster(forks, 1) as (client, scheduler, _):
            J = problem(DaskExecutor(client))
            timer = threading.Timer(rng.uniform(0.05, 0.5), kill, (scheduler,))
            timer.start()
            message = ""
            try:
                result = minimize(J, Bundle(), tol=TOL, checkpoint=save)
            except ConnectionError as error:
                message = str(error)
            timer.cancel()
        if message:
            assert re.fullmatch(r"the Dask scheduler at \S+ is gone, .*: run again .*checkpoint=.*", message)
            kills += 1
        else:
            check(result, optimum)
            save.path.unlink()
    with cluster(forks) as (client, _, _):
        check(minimize(problem(DaskExecutor(client)), Bundle(), tol=TOL, checkpoint=save), optimum)
