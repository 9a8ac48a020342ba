"""Limits that act inside of a step: time and Ctrl-C, whatever a step is doing, and the same bits without."""

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

from helpers import doze, size, spin
from riskmin import (
    L1,
    L2,
    Bundle,
    ChainAscent,
    ChainMaxMargin,
    CoordinateDescent,
    DualAccelerated,
    DualGaussSeidel,
    Elastic,
    Entropy,
    FBeta,
    Hinge,
    Huber,
    KernelDual,
    Lbfgs,
    Logistic,
    MulticlassHinge,
    Ndcg,
    Newton,
    Objective,
    Processes,
    Quantile,
    Rbf,
    RocArea,
    SemismoothNewton,
    Serial,
    Shard,
    Smoothing,
    Softmax,
    Squared,
    Structured,
    Threads,
    kernel_risk,
    linear_risk,
    minimize,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.core import deadline
from riskmin.core.deadline import (
    OutOfTime,
    TimeLimit,
    check,
    chunk_ranges,
    interruptible_call,
    interruptible_matmul,
)
from riskmin.executors.base import SerialExecutor
from riskmin.executors.coordination import Coordination
from riskmin.solvers.bundle.linear_program import LinearProgram

SOON = 0.6
"""Seconds in which a run ends that is out of time: a last piece, and a call of the risk, given up soon.

They are those of the processor: others may be at work on this machine."""


def shards(n=3):
    return [Shard(as_matrix(np.ones((k + 1, 2))), np.ones(k + 1), np.ones(k + 1), {}) for k in range(n)]


def passed(seconds=0.0):
    return TimeLimit(time.perf_counter() + seconds)


# ---------------------------------------------------------------- the pieces
def test_a_limit_holds_for_what_runs_under_it():
    check()
    with pytest.raises(OutOfTime):
        passed().call(check)
    passed().call(TimeLimit().call, check)  # the innermost one
    passed(60).call(check)
    check()


def test_a_limit_holds_for_the_steps_of_a_generator_that_is_asked_under_it():
    def steps():
        while True:
            check()
            yield 1

    running = steps()
    assert passed(60).call(next, running) == next(running) == 1
    with pytest.raises(OutOfTime):
        passed().call(next, running)


@pytest.mark.parametrize("of", [1, 4])
@pytest.mark.parametrize("work", [0.0, 1e3, 3.7e7, 1e9, 1e15, math.inf])
def test_pieces_are_the_whole(work, of):
    found = list(chunk_ranges(5, 105, work, of))
    assert [i for k in found for i in range(*k)] == list(range(5, 105))
    assert all((i - 5) % of == 0 for i, _ in found)
    assert work > deadline.MAX_KERNEL_OPERATIONS or len(found) == 1
    assert work <= deadline.MAX_KERNEL_OPERATIONS or max(j - i for i, j in found) <= max(
        of, 100 * deadline.MAX_KERNEL_OPERATIONS / work
    )


def test_pieces_look_at_the_clock():
    limit, seen = passed(60), []

    def run():
        for piece in chunk_ranges(0, 10, 5 * deadline.MAX_KERNEL_OPERATIONS):
            seen.append(piece)
            limit.deadline = 0.0

    with pytest.raises(OutOfTime):
        limit.call(run)
    assert seen == [(0, 2)]
    with pytest.raises(OutOfTime):
        passed().call(chunk_ranges, 0, 10, 0.0)


def test_what_is_done_aside_is_left_behind():
    left, there = threading.Event(), threading.Event()

    def wait():
        there.set()
        left.wait(30)

    started = time.perf_counter()
    with pytest.raises(OutOfTime):
        passed(0.1).call(lambda: interruptible_call(math.inf, wait, cancel=left.set))
    assert there.is_set()
    assert left.is_set()
    assert time.perf_counter() - started < 10
    assert interruptible_call(math.inf, divmod, 7, 2) == interruptible_call(0.0, divmod, 7, 2) == (3, 1)
    for work in (0.0, math.inf):
        with pytest.raises(ZeroDivisionError):
            interruptible_call(work, divmod, 1, 0)


def test_what_is_done_aside_treats_overflows_as_they_are_here():
    with np.errstate(over="ignore"):
        assert interruptible_call(math.inf, np.exp, np.float64(1e6)) == math.inf
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        interruptible_call(math.inf, np.exp, np.float64(1e6))


def test_large_products_are_the_same_aside(monkeypatch):
    A = np.random.default_rng(0).standard_normal((70, 50))
    here = A.T @ A
    monkeypatch.setattr(deadline, "THREADED_CALL_OPERATIONS", 1)
    assert np.array_equal(interruptible_matmul(A.T, A), here)


# ---------------------------------------------------------------- the same bits
rng = np.random.default_rng(0)
D = rng.standard_normal((300, 12))
S = sp.csr_array(np.where(abs(D) > 0.8, D, 0.0))
SIGN = np.where(D[:, 0] + D[:, 1] + rng.standard_normal(300) > 0, 1.0, -1.0)
REAL = D @ rng.standard_normal(12) + rng.standard_normal(300)
CLASS = rng.integers(0, 3, 300).astype(float)
KINDS = {"dense": D, "by columns": np.asfortranarray(D), "csr": S, "csc": S.tocsc()}

RUNS = {
    "bundle": (SIGN, Hinge(), L2(), Bundle(), {"fit_intercept": True}),
    "lbfgs": (SIGN, Logistic(), L2(), Lbfgs(), {}),
    "newton": (SIGN, Logistic(), L2(), Newton(), {"fit_intercept": True}),
    "semismooth": (REAL, Quantile(0.3), L2(), SemismoothNewton(), {"fit_intercept": True}),
    "sweeps": (SIGN, Hinge(), L2(), DualGaussSeidel(), {}),
    "logistic sweeps": (SIGN, Logistic(), L2(), DualGaussSeidel(), {}),
    "ordered sweeps": (REAL, Huber(), L2(), DualGaussSeidel(shuffle=False, shrink=False, damping=1.2), {}),
    "gradient sweeps": (SIGN, Hinge(), Entropy(prior=0.1), DualGaussSeidel(), {}),
    "lagrangian": (SIGN, Hinge(), L2(), DualGaussSeidel(), {"fit_intercept": True}),
    "dual": (SIGN, Hinge(), L2(), DualAccelerated(), {"fit_intercept": True}),
    "columns": (SIGN, Logistic(), L1(), CoordinateDescent(start=2), {"fit_intercept": True}),
    "squares": (REAL, Squared(), Elastic(), CoordinateDescent(start=2), {}),
    "pairs": (SIGN, RocArea(), L2(), SemismoothNewton(), {}),
    "smoothed": (SIGN, RocArea(), L2(), Smoothing(), {}),
    "f1": (SIGN, FBeta(), L2(), Bundle(), {"fit_intercept": True}),
    "softmax": (CLASS, Softmax(), L2(), Newton(), {"fit_intercept": True}),
    "blocks": (CLASS, MulticlassHinge(), L2(), DualGaussSeidel(), {}),
    "simplices": (CLASS, MulticlassHinge(), L2(), SemismoothNewton(), {}),
    "chains": (CLASS, ChainMaxMargin(), L2(), ChainAscent(), {"lengths": [6] * 50}),
    "rankings": (CLASS, Ndcg(k=3), L2(), Bundle(), {"qid": np.repeat(np.arange(30), 10)}),
}


def run(X, name):
    y, loss, reg, solver, more = RUNS[name]
    result = minimize(
        Objective(linear_risk(X, y, loss, **more), reg, 1e-3), solver, tol=1e-5, max_iter=25, max_seconds=60
    )
    return result.w.tobytes(), result.value, result.lower, result.status, result.n_iter


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_change_no_bit(kind, name, monkeypatch):
    whole = run(KINDS[kind], name)
    monkeypatch.setattr(deadline, "MAX_KERNEL_OPERATIONS", 200)
    assert run(KINDS[kind], name) == whole


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_pieces_change_no_bit_of_a_kernel_machine(loss, intercept, monkeypatch):
    found = []
    for most in (deadline.MAX_KERNEL_OPERATIONS, 500):
        monkeypatch.setattr(deadline, "MAX_KERNEL_OPERATIONS", most)
        risk, reg = kernel_risk(D, SIGN, loss, Rbf(0.1), fit_intercept=intercept)
        found.append(minimize(Objective(risk, reg, 1e-3), KernelDual(block=40), tol=1e-5).w.tobytes())
    assert found[0] == found[1]


def test_a_linear_program_that_can_be_given_up_has_the_same_solution(monkeypatch):
    obj = Objective(linear_risk(D, SIGN, Hinge()), L1(), 1e-3)
    whole = minimize(obj, Bundle(), tol=1e-6)
    monkeypatch.setattr("riskmin.solvers.bundle.linear_program.INTERRUPTIBLE_ABOVE_SIZE", 0)
    again = minimize(obj, Bundle(), tol=1e-6)
    assert np.array_equal(whole.w, again.w)
    assert whole.n_iter == again.n_iter


def test_a_linear_program_is_given_up(monkeypatch):
    """That of dense rows: seconds of simplex steps."""
    n = 400
    A, b = np.random.default_rng(0).standard_normal((n, n)), np.ones(n)
    program = LinearProgram(L1(), 0.01, n)
    for k in range(n):
        program.add(A[: k + 1], b[: k + 1])
    program._add_columns(np.arange(n), +1, A)
    program._add_columns(np.arange(n), -1, A)
    used = time.process_time()
    with pytest.raises(OutOfTime):
        passed(0.2).call(program.solve, A, b, np.zeros(n))
    assert time.process_time() - used < 0.2 + SOON


# ---------------------------------------------------------------- long steps
def banded(n, p, m):
    """Rows of m ones each, in a row: conjugate gradients take many steps."""
    start = np.random.default_rng(0).integers(0, p - m, n)
    at = (start[:, None] + np.arange(m)).ravel().astype(np.int32)
    return sp.csr_array((np.ones(n * m), at, np.arange(0, n * m + 1, m)), shape=(n, p))


def coin(n):
    return np.where(np.random.default_rng(1).random(n) < 0.5, 1.0, -1.0)


def newton(n):
    """Conjugate gradients: some hundred steps of theirs a step."""
    return Objective(linear_risk(banded(n, n // 3, 60), coin(n), Logistic()), L2(), 1e-12), Newton()


def semismooth(n):
    """The same with kinks, and an intercept: 11 seconds for the third step."""
    risk = linear_risk(banded(n, n // 3, 60), coin(n), Hinge(), fit_intercept=True)
    return Objective(risk, L2(), 1e-12), SemismoothNewton()


def chains(n):
    """Epochs over many sequences, of many labels each: 5 seconds for the third point."""
    rng = np.random.default_rng(0)
    at = rng.integers(0, 1000, n).astype(np.int32)
    X = sp.csr_array((np.ones(n), at, np.arange(n + 1)), shape=(n, 1000))
    risk = linear_risk(X, rng.integers(0, 60, n).astype(float), ChainMaxMargin(), lengths=[20] * (n // 20))
    return Objective(risk, L2(), 1e-5), ChainAscent()


def kernel(n):
    """Rows of a kernel matrix, for some blocks: 6 seconds a step."""
    X = np.random.default_rng(0).standard_normal((n, 20))
    risk, reg = kernel_risk(X, np.where(X[:, 0] > 0, 1.0, -1.0), "hinge", Rbf(0.05))
    return Objective(risk, reg, 1e-6), KernelDual()


def entropy(n):
    """Numbers that are 16000 times as large: the small program of a bundle takes 1 to 4 seconds."""
    rng = np.random.default_rng(0)
    X = 16000 * rng.standard_normal((n, n))
    y = np.where(X[:, 0] + 16000 * rng.standard_normal(n) > 0, 1.0, -1.0)
    reg = Entropy(prior=0.1, balanced=True)
    return Objective(linear_risk(X, y, Hinge(), fit_intercept=True), reg, 1e-4), Bundle()


def sweeps(n):
    """Gradient steps, a row at a time, with exponentials: 2 seconds a sweep."""
    X = np.tile(np.random.default_rng(0).standard_normal((n // 300 + 9, 100)).astype(np.float32), (300, 1))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    return Objective(linear_risk(X, y, Hinge()), Entropy(prior=0.1, balanced=True), 1e-6), DualGaussSeidel()


def many(n):
    """The matrix of all features, and its inverse: 2 seconds for the second step."""
    rng, p = np.random.default_rng(0), n // 2
    y = rng.integers(0, 5, n)
    X = rng.standard_normal((n, p)) + np.eye(5, p)[y]
    return Objective(linear_risk(X, y.astype(float), Softmax()), L2(), 1e-6), Newton()


LONG = [
    (newton, 60_000),
    (semismooth, 60_000),
    (kernel, 60_000),
    (entropy, 3000),
    (sweeps, 300_000),
    (many, 4000),
]


@pytest.mark.parametrize(("make", "n"), LONG, ids=lambda v: getattr(v, "__name__", ""))
def test_time_ends_a_step(make, n):
    minimize(*make(600), max_iter=3)  # compiles what is not compiled yet
    obj, solver = make(n)
    used = time.process_time()
    result = minimize(obj, solver, tol=1e-9, max_seconds=0.5)
    used = time.process_time() - used
    assert result.status == "max_seconds"
    assert used < 0.5 + SOON
    assert result.trace[-1]["seconds"] >= 0.5
    assert 0 <= result.lower <= result.value
    if make is not kernel:  # where a call of the risk takes a minute
        assert result.value == pytest.approx(obj.value(result.w), rel=1e-9)


def test_time_ends_the_epochs_of_chains():
    """After the first points, which cost as much as a call of the risk each."""
    minimize(*chains(600), max_iter=3)
    obj, solver = chains(400_000)
    steps = solver.iterates(obj, np.zeros(obj.risk.dim))
    assert len(list(islice(steps, 2))) == 2
    used = time.process_time()
    with pytest.raises(OutOfTime):
        passed(0.3).call(next, steps)
    assert time.process_time() - used < 0.3 + SOON


@pytest.mark.parametrize("make", [semismooth, kernel], ids=lambda v: v.__name__)
def test_ctrl_c_ends_a_step(make, tmp_path):
    """Sent half a second after the last point that comes soon: the next one would take many seconds."""
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
    sent = time.perf_counter()
    out, _ = run.communicate(timeout=60)
    assert time.perf_counter() - sent < 5  # others may be at work on this machine
    status, n_iter, sound = out.splitlines()[-1].split()
    assert (status, sound, run.returncode) == ("interrupted", "True", 0)
    assert int(n_iter) < 4


# ---------------------------------------------------------------- slow parts of a user's own
@dataclass(frozen=True)
class Slow:
    """A loss that takes its time, and forty times as much once it was asked so often."""

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


@pytest.mark.parametrize("executor", [Serial(), Threads(n_workers=2)], ids=type)
def test_time_ends_the_search_for_an_intercept(executor):
    """A step has some hundred looks, one after the other, which would take ten seconds."""
    risk = linear_risk(D, SIGN, Slow(Hinge(), 60), fit_intercept=True, executor=executor, n_shards=3)
    started = time.perf_counter()
    result = minimize(Objective(risk, L2(), 1e-6), Bundle(), tol=1e-12, max_seconds=1.0)
    assert result.status == "max_seconds"
    assert time.perf_counter() - started < 5


class Three:
    """A structured model whose argmax takes its time."""

    dim = 36

    def joint_feature(self, x, y):
        return np.outer(np.eye(3)[y], x).ravel()

    def cost(self, y, other):
        return float(y != other)

    def loss_augmented_argmax(self, x, y, w):
        time.sleep(0.002)
        return int(np.argmax(w.reshape(3, 12) @ x + (np.arange(3) != y)))


def test_where_nothing_is_found_in_time_it_is_the_start():
    obj = Objective(Structured(Three()).risk(D, [int(k) for k in CLASS]), L2(), 1e-3)
    w0 = np.full(36, 0.01)
    result = minimize(obj, w0=w0, max_seconds=0.1)
    assert result.status == "max_seconds"
    assert np.array_equal(result.w, w0)
    assert result.value == obj.value(w0)
    assert result.lower == pytest.approx(obj.lower(result.cut))
    assert result.n_iter == 1
    assert {"iteration", "seconds", "calls", "value", "lower", "gap"} <= result.trace[0].keys()


def test_a_start_that_is_the_optimum_is_one_whatever_the_time():
    obj = Objective(linear_risk(D, np.zeros(300), Squared()), L2(), 1e-3)
    result = minimize(obj, max_seconds=0.0)
    assert (result.status, result.value) == ("converged", 0.0)


def test_what_is_found_when_time_is_over_is_saved(tmp_path):
    risk = linear_risk(D, SIGN, Slow(Hinge(), 300), fit_intercept=True)
    obj, file = Objective(risk, L2(), 1e-6), tmp_path / "run"
    result = minimize(obj, Bundle(), tol=1e-12, max_seconds=1.0, checkpoint=file)
    assert result.status == "max_seconds"
    again = minimize(obj, Bundle(), tol=1e-12, max_seconds=0.5, checkpoint=file)  # it was over before
    assert again.status == "max_seconds"
    assert again.n_iter == result.n_iter
    assert result.lower <= again.value <= result.value * (1 + 1e-12)  # computed from scratch this time


class SeveralProcesses(Coordination):
    single_process = False


class Ranks(SerialExecutor):
    """An executor of several programs, as far as the driver can tell."""

    coordination = SeveralProcesses()


def test_ranks_leave_no_step_by_a_clock_of_their_own():
    """Each has one, so that one of them would leave a step which the others are still in."""
    risk = linear_risk(D, SIGN, Slow(Hinge()), fit_intercept=True, executor=Ranks)
    result = minimize(Objective(risk, L2(), 1e-6), Bundle(), tol=1e-12, max_seconds=0.01)
    assert result.status == "max_seconds"
    assert "cuts" in result.trace[0]  # a step of the solver's, which took longer
    assert result.trace[0]["seconds"] > 0.04


# ---------------------------------------------------------------- executors
def test_threads_stop_when_time_is_over():
    executor = Threads(n_workers=3).place(shards())
    started = time.perf_counter()
    with pytest.raises(OutOfTime):
        passed(0.2).call(executor.map, spin)
    assert time.perf_counter() - started < 5
    assert executor.map(size) == [1, 2, 3]


def test_threads_stop_when_one_of_them_fails():
    """And none is at work on a shard any more when the error arrives."""
    executor = Threads(n_workers=3).place(shards())
    started = time.perf_counter()
    with pytest.raises(ValueError, match="no such shard"):
        executor.map(spin, -60.0)
    assert time.perf_counter() - started < 5
    assert executor.map(size) == [1, 2, 3]


def test_threads_stop_at_ctrl_c():
    executor = Threads(n_workers=3).place(shards())
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        executor.map(spin)
    assert time.perf_counter() - started < 5
    assert executor.map(size) == [1, 2, 3]


def test_processes_stop_when_time_is_over():
    executor = Processes(n_workers=2).place(shards())
    assert executor.map(spin, 0.01) == [1, 2, 3]
    started = time.perf_counter()
    with pytest.raises(OutOfTime):
        passed(0.2).call(executor.map, spin)
    assert time.perf_counter() - started < 5
    assert executor.map(size) == [1, 2, 3]
    executor.close()


def test_processes_that_look_at_no_clock_are_not_waited_for():
    """What they owe is taken before the next call."""
    executor = Processes(n_workers=2).place(shards())
    executor.map(size)
    started = time.perf_counter()
    with pytest.raises(OutOfTime):
        passed(0.2).call(executor.map, doze, 2.0)
    assert time.perf_counter() - started < 2
    assert executor.map(size) == [1, 2, 3]
    executor.close()


def test_threads_see_a_signal_that_another_thread_got():
    """The system may hand it to any thread that does not block it, not only to the one that waits."""
    script = """
        import os, signal, sys, threading, time
        sys.path[:0] = sys.argv[1:]
        from helpers import spin
        from riskmin import Threads
        from test_deadline import shards
        executor = Threads(n_workers=3).place(shards())
        threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
        started = time.perf_counter()
        try:
            executor.map(spin, 20.0)
        except KeyboardInterrupt:
            print(time.perf_counter() - started < 10)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, Path(__file__).parents[:2])]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


# ---------------------------------------------------------------- what is kept
def test_columns_that_were_not_copied_in_time_are_none(monkeypatch):
    """They are kept with the risk, for the runs that come after one that was ended in the middle."""
    obj = Objective(linear_risk(S, SIGN, Logistic()), L1(), 1e-3)
    whole = minimize(Objective(linear_risk(S, SIGN, Logistic()), L1(), 1e-3), CoordinateDescent(), tol=1e-8)
    monkeypatch.setattr(deadline, "MAX_KERNEL_OPERATIONS", 100)
    from riskmin._numba import coordinate_loops

    pick, calls = coordinate_loops.copy_csr_columns, []

    def tired(*args):
        calls.append(0)
        if len(calls) == 3:
            raise OutOfTime
        pick(*args)

    monkeypatch.setattr(coordinate_loops, "copy_csr_columns", tired)
    assert minimize(obj, CoordinateDescent(), tol=1e-8).status == "max_seconds"
    monkeypatch.setattr(coordinate_loops, "copy_csr_columns", pick)
    assert np.array_equal(minimize(obj, CoordinateDescent(), tol=1e-8).w, whole.w)
