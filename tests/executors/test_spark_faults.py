"""Spark tasks killed, drivers interrupted and killed: runs continue, or resume from a checkpoint."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import riskmin as rm
from dask_forks import SlowHinge
from helpers import Problem, die, doze, pids, size
from riskmin import Bundle, Checkpoint, Hinge, SparkExecutor, minimize

TOL = 1e-3


def problem(executor=None, loss=None):
    """A problem whose fit takes a few dozen rounds of some milliseconds each."""
    return Problem(loss or SlowHinge(), lam=0.3, n=120, p=8).objective(executor=executor, n_shards=4)


@pytest.fixture
def executor(spark):
    """An executor that holds both cores of the session during a test."""
    held = SparkExecutor(spark)
    yield held
    held.close()


@pytest.fixture(scope="module")
def optimum():
    """The optimum, more accurate than the fits under test."""
    return minimize(problem(loss=Hinge()), Bundle(), tol=1e-8)


def check(result, optimum):
    assert result.status == "converged"
    assert result.lower <= result.value <= result.lower + TOL * result.value
    assert optimum.lower <= result.value * (1 + 1e-12)
    assert result.lower <= optimum.value * (1 + 1e-12)


def test_a_killed_worker_is_replaced_in_a_long_round(executor, optimum):
    J = problem(executor)
    placed = J.risk.executor
    before = placed.map(pids)
    timer = threading.Timer(0.2, os.kill, (before[0], signal.SIGKILL))
    timer.start()
    assert placed.map(doze, 0.4) == ["rested"] * 4
    assert not set(before) & set(placed.map(pids))  # Spark starts all tasks of a barrier stage again
    timer = threading.Timer(0.1, os.kill, (placed.map(pids)[-1], signal.SIGKILL))
    timer.start()
    check(minimize(J, Bundle(), tol=TOL), optimum)


def test_a_round_that_kills_its_workers_raises(executor):
    placed = problem(executor).risk.executor
    with pytest.raises(
        RuntimeError, match="6 times in a row a Spark task was lost in the same round"
    ) as caught:
        placed.map(die)
    assert "\n" not in str(caught.value)
    assert placed.map(size) == [30] * 4


def test_an_interrupted_driver_has_its_best_point_and_resumes(executor, optimum, tmp_path):
    save = Checkpoint(tmp_path / "run", every=0.0)
    J = problem(executor)

    def ctrl_c(iterate, row):
        if row["iteration"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    # Spark's own handler also cancels its jobs: the tasks start again
    interrupted = minimize(J, Bundle(), tol=TOL, checkpoint=save, callback=ctrl_c)
    assert interrupted.status == "interrupted"
    assert interrupted.lower <= optimum.value * (1 + 1e-12)
    check(minimize(J, Bundle(), tol=TOL, checkpoint=save), optimum)


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from spark_session import started
from test_spark_faults import problem, TOL
from riskmin import Bundle, Checkpoint, SparkExecutor, minimize
with started() as session:
    J = problem(SparkExecutor(session))
    minimize(J, Bundle(), tol=0.0, checkpoint=Checkpoint({path!r}, every=0.0), max_seconds=120)
"""


def test_a_killed_driver_resumes_in_another_session(executor, optimum, tmp_path):
    """It is killed with SIGKILL once its checkpoint is there; the workers of its session end with it."""
    save = tmp_path / "run"
    script = SCRIPT.format(paths=[p for p in sys.path if "tests" in p], path=str(save))
    driver = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 300
    while not save.exists() and driver.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    assert save.exists()
    check(minimize(problem(executor), Bundle(), tol=TOL, checkpoint=save), optimum)


def test_more_tasks_than_free_cores_are_refused(executor, spark):
    problem(executor)
    with pytest.raises(ConnectionError, match="0 of 3 Spark tasks started within 1 s: a barrier stage needs"):
        SparkExecutor(spark, n_workers=3, patience=1).place([])


def test_strangers_are_not_served(executor):
    """A connection without the token is dropped before anything is unpickled."""
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client

    placed = problem(executor).risk.executor
    address = placed.stage._program.address
    with pytest.raises((AuthenticationError, EOFError, ConnectionError)):
        Client(address, authkey=b"guess")
    assert placed.map(size) == [30] * 4


def test_closed_executors_say_so(spark):
    held = SparkExecutor(spark)
    other = problem(held).risk.executor
    held.close()
    with pytest.raises(RuntimeError, match="were closed: make X and the risk anew"):
        other.map(size)
    assert problem(held)(np.zeros(8))[0] == pytest.approx(1.0)  # new tasks
    held.close()
    assert rm.SparkExecutor(spark).spark is spark
