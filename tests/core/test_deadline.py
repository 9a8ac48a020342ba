"""Limits that act within a step (time and Ctrl-C), and bit-equal results without them."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import doze, shards, size, spin, ticking_clock
from riskmin.core import deadline
from riskmin.core.deadline import OutOfTime, TimeLimit, check, chunk_ranges, interruptible_call
from riskmin.executors.base import Coordination, SerialExecutor


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
rng = np.random.default_rng(0)
D = rng.standard_normal((300, 12))
S = sp.csr_array(np.where(abs(D) > 0.8, D, 0.0))
SIGN = np.where(D[:, 0] + D[:, 1] + rng.standard_normal(300) > 0, 1.0, -1.0)
REAL = D @ rng.standard_normal(12) + rng.standard_normal(300)
CLASS = rng.integers(0, 3, 300).astype(float)
KINDS = {"dense": D, "by columns": np.asfortranarray(D), "csr": S, "csc": S.tocsc()}

RUNS = {
    "bundle": (SIGN, rm.Hinge(), rm.L2(), rm.Bundle(), {"fit_intercept": True}),
    "lbfgs": (SIGN, rm.Logistic(), rm.L2(), rm.Lbfgs(), {}),
    "newton": (SIGN, rm.Logistic(), rm.L2(), rm.Newton(), {"fit_intercept": True}),
    "semismooth": (REAL, rm.Quantile(0.3), rm.L2(), rm.Newton(), {"fit_intercept": True}),
    "sweeps": (SIGN, rm.Hinge(), rm.L2(), rm.DualCoordinateAscent(), {}),
    "logistic sweeps": (SIGN, rm.Logistic(), rm.L2(), rm.DualCoordinateAscent(), {}),
    "ordered sweeps": (
        REAL,
        rm.Huber(),
        rm.L2(),
        rm.DualCoordinateAscent(shuffle=False, shrink=False, damping=1.2),
        {},
    ),
    "gradient sweeps": (SIGN, rm.Hinge(), rm.Entropy(prior=0.1), rm.DualGaussSeidel(), {}),
    "lagrangian": (SIGN, rm.Hinge(), rm.L2(), rm.AugmentedLagrangian(), {"fit_intercept": True}),
    "dual": (SIGN, rm.Hinge(), rm.L2(), rm.DualAccelerated(), {"fit_intercept": True}),
    "columns": (SIGN, rm.Logistic(), rm.L1(), rm.CoordinateDescent(start=2), {"fit_intercept": True}),
    "squares": (REAL, rm.Squared(), rm.Elastic(), rm.CoordinateDescent(start=2), {}),
    "pairs": (SIGN, rm.RocArea(), rm.L2(), rm.Newton(), {}),
    "smoothed": (SIGN, rm.RocArea(), rm.L2(), rm.Smoothing(), {}),
    "f1": (SIGN, rm.FBeta(), rm.L2(), rm.Bundle(), {"fit_intercept": True}),
    "softmax": (CLASS, rm.Softmax(), rm.L2(), rm.Newton(), {"fit_intercept": True}),
    "blocks": (CLASS, rm.MulticlassHinge(), rm.L2(), rm.DualCoordinateAscent(), {}),
    "simplices": (CLASS, rm.MulticlassHinge(), rm.L2(), rm.Newton(), {}),
    "chains": (CLASS, rm.ChainMaxMargin(), rm.L2(), rm.ChainAscent(), {"lengths": [6] * 50}),
    "rankings": (CLASS, rm.Ndcg(k=3), rm.L2(), rm.Bundle(), {"qid": np.repeat(np.arange(30), 10)}),
}


def run(X, name):
    y, loss, reg, solver, settings = RUNS[name]
    result = rm.minimize(
        rm.Objective(rm.linear_risk(X, y, loss, **settings), reg, 1e-3),
        solver,
        tol=1e-5,
        max_iter=25,
        max_seconds=60,
    )
    return result.w.tobytes(), result.value, result.lower, result.status, result.n_iter


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_do_not_change_the_bits(kind, name, monkeypatch):
    expected = run(KINDS[kind], name)
    # data large enough for several chunks would take minutes
    monkeypatch.setattr(deadline, "MAX_KERNEL_OPERATIONS", 200)
    assert run(KINDS[kind], name) == expected


# ---------------------------------------------------------------- long steps
def banded(n, p, m):
    """Rows of m consecutive ones: conjugate gradients need many iterations."""
    start = np.random.default_rng(0).integers(0, p - m, n)
    indices = (start[:, None] + np.arange(m)).ravel().astype(np.int32)
    return sp.csr_array((np.ones(n * m), indices, np.arange(0, n * m + 1, m)), shape=(n, p))


def coin(n):
    return np.where(np.random.default_rng(1).random(n) < 0.5, 1.0, -1.0)


def newton(n):
    """Some hundred conjugate gradient iterations per Newton step."""
    return rm.Objective(
        rm.linear_risk(banded(n, n // 3, 60), coin(n), rm.Logistic()), rm.L2(), 1e-12
    ), rm.Newton()


def semismooth(n):
    """The same with a nonsmooth loss and an intercept: 11 seconds for the third step."""
    risk = rm.linear_risk(banded(n, n // 3, 60), coin(n), rm.Hinge(), fit_intercept=True)
    return rm.Objective(risk, rm.L2(), 1e-12), rm.Newton()


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


@pytest.mark.parametrize("name", ["columns", "squares"])
def test_a_run_ended_at_any_check_is_repeated_with_the_same_bits(name):
    """What the ended run had copied of the columns of X is complete in the next."""
    y, loss, reg, solver, settings = RUNS[name]
    obj = rm.Objective(rm.linear_risk(S, y, loss, **settings), reg, 1e-3)
    with ticking_clock() as clock:
        expected, n_checks = rm.minimize(obj, solver, tol=1e-5, max_seconds=60), clock.readings
    for limit in range(1, n_checks, 3):
        obj = rm.Objective(rm.linear_risk(S, y, loss, **settings), reg, 1e-3)
        with ticking_clock() as clock:
            ended = rm.minimize(obj, solver, tol=1e-5, max_seconds=limit * clock.TICK)
        assert ended.lower <= expected.value
        assert same_run(expected, rm.minimize(obj, solver, tol=1e-5, max_seconds=60))


@pytest.mark.slow
@pytest.mark.parametrize("make", [semismooth], ids=lambda v: v.__name__)
def test_ctrl_c_ends_a_step(make):
    """Sent 1.5 seconds after the first iterate, within a step that would take many seconds."""
    script = f"""
        import sys, time
        sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
        from riskmin import minimize
        from test_deadline import {make.__name__} as make
        minimize(*make(600), max_iter=3)
        obj, solver = make(60_000)
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
@pytest.mark.parametrize(
    "executor", [pytest.param(rm.Serial(), marks=pytest.mark.exhaustive), rm.Threads(n_workers=2)], ids=type
)
def test_the_time_limit_ends_the_search_for_an_intercept(executor):
    """A step has some hundred evaluations one after the other, which would take ten seconds."""
    risk = rm.linear_risk(D, SIGN, Slow(rm.Hinge(), 60), fit_intercept=True, executor=executor, n_shards=3)
    result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-6), rm.Bundle(), tol=1e-12, max_seconds=1.0)
    assert result.status == "max_seconds"


class SlowArgmaxModel:
    """A structured model with a slow argmax."""

    dim = 36

    def joint_feature(self, x, y):
        return np.outer(np.eye(3)[y], x).ravel()

    def cost(self, y, other):
        return float(y != other)

    def loss_augmented_argmax(self, x, y, w):
        time.sleep(0.002)
        return int(np.argmax(w.reshape(3, 12) @ x + (np.arange(3) != y)))


@pytest.mark.slow
def test_without_an_iterate_in_time_the_result_is_the_start():
    obj = rm.Objective(rm.Structured(SlowArgmaxModel()).risk(D, [int(k) for k in CLASS]), rm.L2(), 1e-3)
    w0 = np.full(36, 0.01)
    result = rm.minimize(obj, w0=w0, max_seconds=0.1)
    assert result.status == "max_seconds"
    assert np.array_equal(result.w, w0)
    assert result.value == obj.value(w0)
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
def test_threads_stop_at_the_time_limit():
    executor = rm.Threads(n_workers=3).place(shards(3))
    with pytest.raises(OutOfTime):
        limit_in(0.2).call(executor.map, spin)
    assert executor.map(size) == [1, 2, 3]


def test_threads_stop_when_one_of_them_fails():
    """When the error arrives, no thread is still working on a shard."""
    executor = rm.Threads(n_workers=3).place(shards(3))
    with pytest.raises(ValueError, match="no such shard"):
        executor.map(spin, -3600.0)
    assert executor.map(size) == [1, 2, 3]


def test_threads_stop_at_ctrl_c():
    executor = rm.Threads(n_workers=3).place(shards(3))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        executor.map(spin)
    assert executor.map(size) == [1, 2, 3]


@pytest.mark.slow
def test_processes_stop_at_the_time_limit():
    executor = rm.Processes(n_workers=2).place(shards(3))
    assert executor.map(spin, 0.01) == [1, 2, 3]
    with pytest.raises(OutOfTime):
        limit_in(0.2).call(executor.map, spin)
    assert executor.map(size) == [1, 2, 3]
    executor.close()


@pytest.mark.slow
def test_processes_that_do_not_check_the_clock_are_not_awaited():
    """Their pending results are received before the next call."""
    executor = rm.Processes(n_workers=2).place(shards(3))
    executor.map(size)
    with pytest.raises(OutOfTime):
        limit_in(0.2).call(executor.map, doze, 2.0)
    assert executor.map(size) == [1, 2, 3]
    executor.close()


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
