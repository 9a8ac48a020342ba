"""Threads: each item once, the same bits, and an end of every thread with its fit, however that ends."""

import ast
import contextlib
import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

from helpers import Problem, shards, size
from riskmin import Hinge, Logistic, Threads, get_solver, minimize


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


# ---------------------------------------------------------------- the end of threads
EARLIER_THREADS = set()  # of other tests, whose objects may live on


def own_threads():
    """The threads that executors of this test run."""
    new = set(threading.enumerate()) - EARLIER_THREADS
    return [t.name for t in new if t.name.startswith("riskmin_")]


@pytest.fixture
def no_collector():
    """Reference counts alone end threads: cycles would keep them until a collection."""
    gc.collect()
    EARLIER_THREADS.update(threading.enumerate())
    gc.disable()
    yield
    gc.enable()
    EARLIER_THREADS.clear()


def threaded_objective(loss=None, intercept=True):
    """Enough rows for two threads to share them, in calls of Python and in compiled ones."""
    problem = Problem(loss or Hinge(), n=30_000, p=20, intercept=intercept)
    return problem.objective(executor=Threads(2), n_shards=8)


@pytest.mark.parametrize("solver", ["bundle", "newton", "smoothing"])
def test_threads_end_with_the_fit(solver, no_collector):
    obj = threaded_objective()
    assert minimize(obj, solver, tol=1e-2).status == "converged"
    assert own_threads()
    del obj
    assert wait_until(lambda: not own_threads())


def test_threads_end_with_a_run_that_is_dropped(no_collector):
    steps = get_solver("smoothing").iterates(threaded_objective(), np.zeros(20))
    next(steps)
    assert own_threads()
    del steps
    assert wait_until(lambda: not own_threads())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_threads_end_after_an_interruption(error, no_collector):
    running = []

    def stop(it, entry):
        running.extend(own_threads())
        raise error

    # a run that Ctrl-C stops in its callback may end with a status instead
    with contextlib.suppress(error):
        minimize(threaded_objective(), "bundle", callback=stop)
    assert running
    assert wait_until(lambda: not own_threads())


@pytest.mark.slow  # not among the tests whose coverage is measured: a signal may strike a lock of its tracer
def test_ctrl_c_at_any_point_leaves_the_threads_usable(no_collector):
    # a signal every 2 ms, wherever the fit is: what it stops must not hinder the next call
    obj = threaded_objective(Logistic(), intercept=False)
    w = np.full(20, 0.1)
    expected, n_stopped = obj.risk(w), 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for k in range(60):
            signal.setitimer(signal.ITIMER_REAL, 2e-4 * (1 + k % 20))
            try:
                while True:
                    obj.risk(w)
            except KeyboardInterrupt:
                n_stopped += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert n_stopped == 60
    value, gradient = obj.risk(w)
    assert value == expected[0]
    assert gradient.tobytes() == expected[1].tobytes()
    del obj
    assert wait_until(lambda: not own_threads())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_fork_starts_threads_of_its_own():
    obj = threaded_objective()
    expected = minimize(obj, "bundle", tol=1e-2).value
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)  # a child that waits for threads of its parent would hang
        try:
            value = minimize(obj, "bundle", tol=1e-2).value
            started = sum(t.is_alive() for t in threading.enumerate() if t.name.startswith("riskmin_"))
            os.write(write, repr((value, started)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        value, started = ast.literal_eval(stream.read().decode())
    os.waitpid(child, 0)
    assert value == expected
    assert started == 2
    # the threads of this process still take part
    assert minimize(obj, "bundle", tol=1e-2).value == expected


def test_fits_without_further_threads_run_on_those_there_are(monkeypatch):
    def no_start(self):
        raise RuntimeError("can't start new thread")

    expected = minimize(threaded_objective(), "bundle", tol=1e-2).value
    monkeypatch.setattr(threading.Thread, "start", no_start)
    assert minimize(threaded_objective(), "bundle", tol=1e-2).value == expected


# ---------------------------------------------------------------- calls
def test_threads_that_slept_and_threads_of_two_fits_give_the_same_bits():
    obj, w = threaded_objective(Logistic()), np.full(20, 0.1)
    value, gradient = obj.risk(w)
    time.sleep(0.3)
    results = [obj.risk(w)]
    callers = [threading.Thread(target=lambda: results.append(obj.risk(w))) for _ in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert {result[0] for result in results} == {value}
    assert all(result[1].tobytes() == gradient.tobytes() for result in results)


def test_little_work_starts_no_thread(no_collector):
    executor = Threads(n_workers=4).place(shards())
    assert executor.map_local(abs, range(-9, 0), work=100.0) == list(range(9, 0, -1))
    assert not own_threads()
    assert executor.map_local(abs, range(-9, 0)) == list(range(9, 0, -1))
    assert own_threads()


def test_other_shards_share_the_threads(no_collector):
    executor = Threads(n_workers=3).place(shards())
    executor.map(size)
    before = own_threads()
    assert executor.with_shards(shards(2)).map(size) == [1, 2]
    assert own_threads() == before


def test_a_call_within_a_call_ends():
    executor = Threads(n_workers=2).place(shards())
    inner = executor.map_local(lambda i: sum(executor.map_local(abs, range(i))), range(20))
    assert inner == [i * (i - 1) // 2 for i in range(20)]
