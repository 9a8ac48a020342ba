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

from riskmin import L2, Objective, Threads, linear_risk, minimize
from riskmin._numba.newton import row_vectors
from riskmin._numba.shards import items
from riskmin._numba.shards import team as compiled_loops
from riskmin.executors.compiled_team import CompiledTeam
from riskmin.solvers import get_solver


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


# ---------------------------------------------------------------- compiled calls
def total_by_items(team, n_items, n_threads=4):
    """The sums of ranges of ones, computed by a compiled loop."""
    ends, out = np.arange(n_items + 1) * 3, np.zeros((n_items, 1))
    args = ends, np.ones(ends[-1]), out
    called = team.call(row_vectors.total_of_ranges, items.new_progress(0, n_items), args, 0, n_threads)
    return out if called else None


def test_threads_compute_each_item_once_also_after_they_slept():
    team = CompiledTeam(3)
    for n_items in (1, 2, 3, 40, 1000, 7):
        assert (total_by_items(team, n_items) == 3.0).all()
    asleep = wait_until(lambda: team.board[compiled_loops.N_ASLEEP] == 3)
    assert asleep
    assert (total_by_items(team, 100) == 3.0).all()


def test_calls_of_two_fits_at_the_same_time():
    team, results = CompiledTeam(2), []
    assert total_by_items(team, 5) is not None  # compiles

    def work():
        results.extend(total_by_items(team, 50, 3) for _ in range(200))

    callers = [threading.Thread(target=work) for _ in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    # the others compute alone, and nobody gets results of another
    done = [r for r in results if r is not None]
    assert len(results) == 600
    assert done
    assert all((r == 3.0).all() for r in done)


def test_the_threads_of_a_team_end_with_it():
    names = {t.name for t in threading.enumerate()}
    team = CompiledTeam(2)
    total_by_items(team, 3)
    del team
    gc.collect()
    assert wait_until(lambda: {t.name for t in threading.enumerate()} <= names)


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


def threaded_objective(loss="hinge", intercept=True):
    """Enough rows for two threads to share them, in calls of Python and in compiled ones."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60_000, 20))
    y = np.sign(X @ rng.standard_normal(20) + rng.standard_normal(60_000))
    risk = linear_risk(X, y, loss, executor=Threads(2), n_shards=8, fit_intercept=intercept)
    return Objective(risk, L2(), 1e-2)


@pytest.mark.parametrize("solver", ["auto", "bundle", "lbfgs", "newton", "smoothing"])
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
    obj = threaded_objective("logistic", intercept=False)
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
    team = obj.risk.executor._team.compiled
    assert not team.lock.locked()
    value, gradient = obj.risk(w)
    assert value == expected[0]
    assert gradient.tobytes() == expected[1].tobytes()
    del obj, team
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
