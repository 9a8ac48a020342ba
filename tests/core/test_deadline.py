"""Limits that act within a step (time and Ctrl-C), and bit-equal results without them."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem, doze, name_of, problem, shards, size, spin, ticking_clock
from riskmin.core import deadline
from riskmin.core.deadline import OutOfTime, TimeLimit, check, chunk_ranges, interruptible_call
from riskmin.executors.base import Coordination, SerialExecutor
from solver_cases import REGISTERED


def limit_in(seconds=0.0):
    return TimeLimit(time.perf_counter() + seconds)


# ---------------------------------------------------------------- chunks and limits
def test_a_limit_holds_for_calls_under_it():
    check()
    with pytest.raises(OutOfTime):
        limit_in().call(check)
    limit_in().call(TimeLimit().call, check)  # the innermost limit holds
    limit_in(60).call(check)
    check()


def test_a_limit_holds_for_generator_steps_taken_under_it():
    def steps():
        while True:
            check()
            yield 1

    running = steps()
    assert limit_in(60).call(next, running) == next(running) == 1
    with pytest.raises(OutOfTime):
        limit_in().call(next, running)


@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("work", [0.0, 1e3, 3.7e7, 1e9, 1e15, math.inf])
def test_chunks_cover_the_range(work, multiple):
    chunks = list(chunk_ranges(5, 105, work, multiple))
    assert [i for k in chunks for i in range(*k)] == list(range(5, 105))
    assert all((i - 5) % multiple == 0 for i, _ in chunks)
    assert work > deadline.MAX_KERNEL_OPERATIONS or len(chunks) == 1
    assert work <= deadline.MAX_KERNEL_OPERATIONS or max(j - i for i, j in chunks) <= max(
        multiple, 100 * deadline.MAX_KERNEL_OPERATIONS / work
    )


def test_chunks_check_the_clock():
    limit, chunks = limit_in(60), []

    def run():
        for piece in chunk_ranges(0, 10, 5 * deadline.MAX_KERNEL_OPERATIONS):
            chunks.append(piece)
            limit.deadline = 0.0

    with pytest.raises(OutOfTime):
        limit.call(run)
    assert chunks == [(0, 2)]
    with pytest.raises(OutOfTime):
        limit_in().call(chunk_ranges, 0, 10, 0.0)


def test_an_interruptible_call_is_abandoned():
    cancelled, entered = threading.Event(), threading.Event()

    def wait():
        entered.set()
        cancelled.wait(30)

    with pytest.raises(OutOfTime):
        limit_in(0.1).call(lambda: interruptible_call(math.inf, wait, cancel=cancelled.set))
    assert entered.is_set()
    assert cancelled.is_set()
    assert interruptible_call(math.inf, divmod, 7, 2) == interruptible_call(0.0, divmod, 7, 2) == (3, 1)
    for work in (0.0, math.inf):
        with pytest.raises(ZeroDivisionError):
            interruptible_call(work, divmod, 1, 0)


def test_an_interruptible_call_uses_the_callers_error_state():
    with np.errstate(over="ignore"):
        assert interruptible_call(math.inf, np.exp, np.float64(1e6)) == math.inf
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        interruptible_call(math.inf, np.exp, np.float64(1e6))


# ---------------------------------------------------------------- bit-equal results
STORES = [np.asarray, np.asfortranarray, sp.csr_array, sp.csc_array]
OF_ROWS = [case for cases in REGISTERED.values() for case in cases]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", OF_ROWS, ids=repr)
@pytest.mark.parametrize("store", STORES, ids=name_of)
def test_chunks_do_not_change_the_bits(case, store, monkeypatch):
    problem = replace(case.problem, n=300, p=12, lam=1e-3)
    problem.X = store(problem.X)

    def run():
        J = problem.objective()
        result = rm.minimize(J, case.solver, tol=1e-5, max_iter=25, max_seconds=60)
        return result.w.tobytes(), result.value, result.lower, result.status, result.n_iter

    expected = run()
    # data large enough for several chunks would take minutes
    monkeypatch.setattr(deadline, "MAX_KERNEL_OPERATIONS", 200)
    assert run() == expected


# ---------------------------------------------------------------- long steps
def banded(n, p, m):
    """Rows of m consecutive ones: conjugate gradients need many iterations."""
    start = np.random.default_rng(0).integers(0, p - m, n)
    indices = (start[:, None] + np.arange(m)).ravel().astype(np.int32)
    return sp.csr_array((np.ones(n * m), indices, np.arange(0, n * m + 1, m)), shape=(n, p))


def coin(n):
    return np.where(np.random.default_rng(1).random(n) < 0.5, 1.0, -1.0)


def newton(n, loss="logistic", **settings):
    """Some hundred conjugate gradient iterations per Newton step."""
    risk = rm.linear_risk(banded(n, n // 3, 60), coin(n), loss, **settings)
    return rm.Objective(risk, rm.L2(), 1e-12), rm.Newton()


def semismooth(n):
    """The same with a nonsmooth loss and an intercept: 11 seconds for the third step."""
    return newton(n, "hinge", fit_intercept=True)


def chains(n):
    """Epochs over many sequences with many labels: 5 seconds for the third iterate."""
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 1000, n).astype(np.int32)
    X = sp.csr_array((np.ones(n), indices, np.arange(n + 1)), shape=(n, 1000))
    risk = rm.linear_risk(
        X, rng.integers(0, 60, n).astype(float), rm.ChainMaxMargin(), lengths=[20] * (n // 20)
    )
    return rm.Objective(risk, rm.L2(), 1e-5), rm.ChainAscent()


def kernel(n):
    """Rows of a kernel matrix, computed in blocks: 6 seconds per step."""
    X = np.random.default_rng(0).standard_normal((n, 20))
    risk, reg = rm.kernel_risk(X, np.where(X[:, 0] > 0, 1.0, -1.0), "hinge", rm.Rbf(0.05))
    return rm.Objective(risk, reg, 1e-6), rm.KernelDual()


def entropy(n):
    """Features of size 16000: the master problem of the bundle takes 1 to 4 seconds."""
    rng = np.random.default_rng(0)
    X = 16000 * rng.standard_normal((n, n))
    y = np.where(X[:, 0] + 16000 * rng.standard_normal(n) > 0, 1.0, -1.0)
    reg = rm.Entropy(prior=0.1, balanced=True)
    return rm.Objective(rm.linear_risk(X, y, rm.Hinge(), fit_intercept=True), reg, 1e-4), rm.Bundle()


def sweeps(n):
    """Gradient steps, one row at a time, with exponentials: 2 seconds per sweep."""
    X = np.tile(np.random.default_rng(0).standard_normal((n // 300 + 9, 100)).astype(np.float32), (300, 1))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    return rm.Objective(
        rm.linear_risk(X, y, rm.Hinge()), rm.Entropy(prior=0.1, balanced=True), 1e-6
    ), rm.DualGaussSeidel()


def multi_output(n):
    """The Hessian over all features and its inverse: 2 seconds for the second step."""
    rng, p = np.random.default_rng(0), n // 2
    y = rng.integers(0, 5, n)
    X = rng.standard_normal((n, p)) + np.eye(5, p)[y]
    return rm.Objective(rm.linear_risk(X, y.astype(float), rm.Softmax()), rm.L2(), 1e-6), rm.Newton()


LONG = [
    (newton, 6000, 100),
    (semismooth, 6000, 300),
    (kernel, 6000, 30),
    (entropy, 600, 120),
    (sweeps, 30_000, 30),
    (multi_output, 1000, 40),
]


@pytest.mark.parametrize(("make", "n", "limit"), LONG, ids=lambda v: getattr(v, "__name__", ""))
def test_the_time_limit_ends_a_step(make, n, limit):
    """A step reads the clock many times, and ends when the limit passes."""
    rm.minimize(*make(600), max_iter=3)  # compiles, which reads the clock
    obj, solver = make(n)
    at_iterates = [0]
    with ticking_clock() as clock:
        result = rm.minimize(
            obj,
            solver,
            tol=1e-9,
            max_seconds=limit * clock.TICK,
            callback=lambda it, row: at_iterates.append(clock.readings),
        )
    assert result.status == "max_seconds"
    # the limit may pass at an iterate, by chance, but steps read the clock, too
    assert max(np.diff([*at_iterates, clock.readings])) >= 3
    assert limit <= clock.readings < 3 * limit
    assert 0 <= result.lower <= result.value
    assert result.value == pytest.approx(obj.value(result.w), rel=1e-9)


def test_the_time_limit_ends_the_epochs_of_chains():
    """After the first two iterates, each of which costs as much as a call of the risk."""
    rm.minimize(*chains(600), max_iter=3)
    obj, solver = chains(40_000)
    steps = solver.iterates(obj, np.zeros(obj.risk.dim))
    assert len(list(islice(steps, 2))) == 2
    with ticking_clock() as clock:
        with pytest.raises(OutOfTime):
            limit_in(10 * clock.TICK).call(next, steps)
        assert clock.readings <= 13


def linear_programs():
    """Thousands of columns and an L1 norm: the linear programs of the last cuts take long."""
    X = np.random.default_rng(0).standard_normal((60, 3000))
    return rm.Objective(rm.linear_risk(X, np.sign(X[:, 0]), rm.Hinge()), rm.L1(), 1e-5)


def same_run(first, second):
    return (first.w.tobytes(), first.trace[-1]["lower"]) == (second.w.tobytes(), second.trace[-1]["lower"])


def test_the_time_limit_ends_linear_programs_and_does_not_change_them():
    obj, settings = linear_programs(), {"tol": 1e-9, "max_iter": 40}
    at_iterates = []
    with ticking_clock() as clock:
        free = rm.minimize(
            obj, rm.Bundle(), **settings, callback=lambda it, row: at_iterates.append(clock.readings)
        )
    assert same_run(free, rm.minimize(obj, rm.Bundle(), **settings, max_seconds=3600))
    for after in range(3, 15, 4):
        with ticking_clock() as clock:
            limit = at_iterates[32] + after
            ended = rm.minimize(obj, rm.Bundle(), **settings, max_seconds=limit * clock.TICK)
        assert ended.status == "max_seconds"
        assert clock.readings < limit + 40
        assert ended.lower <= free.value
        assert ended.value >= free.lower
        assert ended.value == pytest.approx(obj.value(ended.w), rel=1e-9)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(rm.Logistic(), rm.L1(), 1e-3, n=300, p=12, intercept=True, sparse=True),
        Problem(rm.Squared(), rm.Elastic(), 1e-3, n=300, p=12, sparse=True),
    ],
    ids=["columns", "squares"],
)
def test_a_run_ended_at_any_check_is_repeated_with_the_same_bits(problem):
    """What the ended run had copied of the columns of X is complete in the next."""
    solver = rm.CoordinateDescent(start=2)
    with ticking_clock() as clock:
        expected = rm.minimize(problem.objective(), solver, tol=1e-5, max_seconds=60)
        n_checks = clock.readings
    for limit in range(1, n_checks, 3):
        obj = problem.objective()
        with ticking_clock() as clock:
            ended = rm.minimize(obj, solver, tol=1e-5, max_seconds=limit * clock.TICK)
        assert ended.lower <= expected.value
        assert same_run(expected, rm.minimize(obj, solver, tol=1e-5, max_seconds=60))


@pytest.mark.slow
def test_ctrl_c_ends_a_step():
    """Sent 1.5 seconds after the first iterate, within a step that would take many seconds."""
    script = f"""
        import sys, time
        sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
        from riskmin import minimize
        from test_deadline import semismooth
        minimize(*semismooth(600), max_iter=3)
        obj, solver = semismooth(60_000)
        def callback(it, row):
            print(row["iteration"], flush=True)
        result = minimize(obj, solver, tol=1e-9, callback=callback)
        print(result.status, result.n_iter, result.lower <= result.value, flush=True)
    """
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "1\n"
    time.sleep(1.5)
    os.kill(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=600)
    status, n_iter, bounds_hold = out.splitlines()[-1].split()
    assert (status, bounds_hold, run.returncode) == ("interrupted", "True", 0)
    assert int(n_iter) < 4


# ---------------------------------------------------------------- slow user objects
D, SIGN, _ = problem(rm.Hinge(), 300, 12)


@dataclass(frozen=True)
class Slow:
    """A loss whose evaluations take 1 ms for the first `fast` calls, and 40 ms afterwards."""

    loss: Any
    fast: int = 0
    calls: list = field(default_factory=list, compare=False, repr=False)

    separable = True
    smooth = False
    task = "classification"

    def check_labels(self, y):
        return y

    def value_grad(self, z, y, c):
        self.calls.append(0)
        time.sleep(0.04 if len(self.calls) > self.fast else 0.001)
        return self.loss.value_grad(z, y, c)


@pytest.mark.slow
def test_without_an_iterate_in_time_the_result_is_the_start():
    """The search for an intercept takes longer."""
    obj = rm.Objective(rm.linear_risk(D, SIGN, Slow(rm.Hinge()), fit_intercept=True), rm.L2(), 1e-3)
    w0 = np.full(12, 0.01)
    result = rm.minimize(obj, rm.Bundle(), w0, max_seconds=0.1)
    assert result.status == "max_seconds"
    assert np.array_equal(result.w, w0)
    # both searches for the best intercept end at a relative gap of 1e-12
    assert result.value == pytest.approx(obj.value(w0), rel=1e-12)
    assert result.lower == pytest.approx(obj.lower(result.cut))
    assert result.n_iter == 1
    assert {"iteration", "seconds", "calls", "value", "lower", "gap"} <= result.trace[0].keys()


def test_an_optimal_start_converges_within_any_time_limit():
    obj = rm.Objective(rm.linear_risk(D, np.zeros(300), rm.Squared()), rm.L2(), 1e-3)
    result = rm.minimize(obj, max_seconds=0.0)
    assert (result.status, result.value) == ("converged", 0.0)


@pytest.mark.slow
def test_the_last_iterate_at_the_time_limit_is_saved(tmp_path):
    risk = rm.linear_risk(D, SIGN, Slow(rm.Hinge(), 300), fit_intercept=True)
    obj, file = rm.Objective(risk, rm.L2(), 1e-6), tmp_path / "run"
    result = rm.minimize(obj, rm.Bundle(), tol=1e-12, max_seconds=1.0, checkpoint=file)
    assert result.status == "max_seconds"
    # the limit had passed
    resumed = rm.minimize(obj, rm.Bundle(), tol=1e-12, max_seconds=0.5, checkpoint=file)
    assert resumed.status == "max_seconds"
    assert resumed.n_iter == result.n_iter
    assert result.lower <= resumed.value <= result.value * (1 + 1e-12)  # recomputed from scratch


class SeveralProcesses(Coordination):
    single_process = False


class Ranks(SerialExecutor):
    """An executor that the driver takes for several coordinated processes."""

    coordination = SeveralProcesses()


@pytest.mark.slow
def test_ranks_do_not_interrupt_a_step_by_their_own_clocks():
    """Clocks differ: one rank would leave a step in which the others remain."""
    risk = rm.linear_risk(D, SIGN, Slow(rm.Hinge()), fit_intercept=True, executor=Ranks)
    result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-6), rm.Bundle(), tol=1e-12, max_seconds=0.01)
    assert result.status == "max_seconds"
    assert "cuts" in result.trace[0]  # from a step of the solver, which took longer than the limit
    assert result.trace[0]["seconds"] > 0.04


# ---------------------------------------------------------------- executors
@pytest.mark.parametrize(
    ("backend", "call"),
    [
        (rm.Threads(n_workers=3), (spin,)),
        pytest.param(rm.Processes(n_workers=2), (spin,), marks=pytest.mark.slow),
        pytest.param(rm.Processes(n_workers=2), (doze, 2.0), marks=pytest.mark.slow),
    ],
)
def test_executors_stop_at_the_time_limit(backend, call):
    """Processes that do not check the clock are not awaited: the next call receives their results."""
    executor = backend.place(shards(3))
    assert executor.map(size) == [1, 2, 3]
    with pytest.raises(OutOfTime):
        limit_in(0.2).call(executor.map, *call)
    assert executor.map(size) == [1, 2, 3]
    if isinstance(backend, rm.Processes):
        executor.close()


def test_threads_stop_when_one_of_them_fails_and_at_ctrl_c():
    """When the error arrives, no thread is still working on a shard."""
    executor = rm.Threads(n_workers=3).place(shards(3))
    with pytest.raises(ValueError, match="no such shard"):
        executor.map(spin, -3600.0)
    assert executor.map(size) == [1, 2, 3]
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        executor.map(spin)
    assert executor.map(size) == [1, 2, 3]


@pytest.mark.slow
def test_threads_see_a_signal_delivered_to_another_thread():
    """The system may deliver it to any thread that does not block it, not only to the waiting one."""
    script = """
        import os, signal, sys, threading, time
        sys.path[:0] = sys.argv[1:]
        from helpers import shards, spin
        from riskmin import Threads
        executor = Threads(n_workers=3).place(shards(3))
        threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
        try:
            executor.map(spin, 20.0)
        except KeyboardInterrupt:
            print("interrupted")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, Path(__file__).parents[:2])]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "interrupted\n"


@pytest.mark.slow  # as other tests that send signals at any moment
def test_a_limit_ends_with_its_call_wherever_ctrl_c_strikes():
    limit, n_stopped = TimeLimit(0.0), 0

    def interrupted(seconds):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            limit.call(int)

    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for k in range(300):
            with pytest.raises(KeyboardInterrupt):
                interrupted(1e-4 + 1e-6 * (k % 50))
            check()
            n_stopped += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert n_stopped == 300
