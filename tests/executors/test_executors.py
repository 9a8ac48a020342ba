"""Executors: bitwise equal results wherever the shards are, propagated errors, no leaks."""

import copy
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import Trap, die, doze, echo, fail, interrupt, need, pids, size, stick, unsendable
from riskmin import (
    L1,
    L2,
    Bundle,
    Hinge,
    Lbfgs,
    Logistic,
    Objective,
    Processes,
    Serial,
    Shard,
    Threads,
    linear_risk,
    minimize,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.executors import Executor, as_backend
from riskmin.executors.base import SerialExecutor
from riskmin.executors.team import JointCall
from riskmin.testing import check_executor

SHARED = Path("/dev/shm")


def shards(n=5):
    return [Shard(as_matrix(np.ones((k + 1, 2))), np.ones(k + 1), np.ones(k + 1), {}) for k in range(n)]


def segments(*processes):
    """The shared memory segments mapped by these processes, not those of others on this machine."""
    text = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in processes)
    return {SHARED / name for name in re.findall(r"/dev/shm/(\S+)", text) if "psm" in name}


@pytest.fixture(scope="module")
def workers():
    """Two processes with five shards, shared by all tests that leave them usable."""
    with_shards = Processes(n_workers=2).place(shards())
    yield with_shards
    with_shards.close()


# ---------------------------------------------------------------- the contract
@pytest.mark.parametrize("executor", [Serial, Serial(), Threads, Threads(n_workers=1), Threads(n_workers=9)])
def test_contract(executor):
    check_executor(executor)


@pytest.mark.slow
def test_contract_of_processes():
    check_executor(Processes(n_workers=2))


class Pool(Executor):
    """A third party's executor: threads of this process, which it declares by `is_local`."""

    is_local = True

    def __init__(self, shards):
        self.shards = shards

    def map(self, f, *args, each=()):
        todo = each if len(each) else [None] * len(self.shards)
        calls = [(s, *args) if x is None else (s, *args, x) for s, x in zip(self.shards, todo, strict=True)]
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda call: f(*call), calls))


class Plain:
    """The same with nothing of riskmin's, and a factory of its own."""

    is_local = True

    class PlacedShards:
        __init__, map = Pool.__init__, Pool.map

        def sum(self, f, *args, each=()):
            first, *more = self.map(f, *args, each=each)
            for term in more:
                first = tuple(a + b for a, b in zip(first, term, strict=True))
            return first

    def place(self, shards):
        return self.PlacedShards(shards)


def test_contract_of_a_third_party():
    """CoordinateDescent, Newton and dual ascent run with it, since its rows are in this process."""
    check_executor(Pool)
    X, y = data()
    for reg, solver in ((L1(), "coordinate_descent"), (L2(), "newton"), (L2(), "dual")):
        local, pooled = (
            minimize(Objective(linear_risk(X, y, Logistic(), executor=e, n_shards=3), reg, 0.01), solver)
            for e in (None, Pool)
        )
        assert pooled.status == "converged"
        assert np.array_equal(local.w, pooled.w)


def test_foreign_executors_are_adapted_once():
    X, y = data()
    backend = as_backend(Plain())
    assert backend.is_local
    assert as_backend(backend) is backend
    risk = linear_risk(X, y, Logistic(), executor=Plain(), n_shards=3, fit_intercept=True)
    result = minimize(Objective(risk, L1(), 0.01), "coordinate_descent")
    assert result.status == "converged"
    remote = linear_risk(X, y, Logistic(), executor=Plain.PlacedShards, n_shards=3)  # has no `is_local`
    assert remote.rows is None
    for wrong in (3, object(), SerialExecutor([])):
        with pytest.raises(TypeError, match=r"is no executor: give one such as Threads\(n_workers=2\)"):
            linear_risk(X, y, Hinge(), executor=wrong)
    with pytest.raises(TypeError, match=r"has no method map"):
        linear_risk(X, y, Hinge(), executor=list)


class Broken(SerialExecutor):
    """An executor with a deliberate fault."""

    def __init__(self, shards=(), fault=""):
        super().__init__(shards)
        self.fault = fault

    def __call__(self, shards):
        return Broken(shards, self.fault)

    def map(self, f, *args, each=()):
        if self.fault == "forgets":
            for s in self.shards:
                s.cache.clear()
        try:
            replies = super().map(f, *args, each=each)
        except ZeroDivisionError:
            if self.fault == "swallows":
                return []
            raise
        return replies[::-1] if self.fault == "turns round" else replies

    def sum(self, f, *args, each=()):
        parts = self.map(f, *args, each=each)
        if self.fault == "adds otherwise":
            return tuple(sum(reversed(p[:-1]), start=p[-1]) for p in zip(*parts, strict=True))
        return super().sum(f, *args, each=each)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("turns round", "out of order"),
        ("forgets", "memo"),
        ("swallows", "is lost"),
        ("adds otherwise", "bit for bit"),
    ],
)
def test_contract_refuses(fault, message):
    with pytest.raises((AssertionError, KeyError), match="k" if fault == "forgets" else message):
        check_executor(Broken(fault=fault))


# ---------------------------------------------------------------- bitwise equal results
def data(sparse=False):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 6))
    y = np.where(X @ rng.standard_normal(6) + rng.standard_normal(200) > 0, 1.0, -1.0)
    return (sp.csr_array(np.where(np.abs(X) > 0.8, X, 0.0)) if sparse else X), y


@pytest.mark.slow
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("solver", "loss"), [(Bundle(), Hinge()), (Lbfgs(), Logistic())], ids=repr)
def test_fits_are_bitwise_equal(solver, loss, intercept):
    X, y = data(sparse=intercept)
    results = []
    kinds = [Serial, Threads(n_workers=1), Threads(n_workers=3), Processes(n_workers=2)]
    for executor in kinds if intercept else kinds[:3]:
        risk = linear_risk(X, y, loss, fit_intercept=intercept, executor=executor, n_shards=4)
        results.append(minimize(Objective(risk, L2(), 0.01), solver, tol=1e-6))
    first = results[0]
    assert first.status == "converged"
    for other in results[1:]:
        assert other.value == first.value
        assert other.lower == first.lower
        np.testing.assert_array_equal(other.w, first.w)
        assert [r["value"] for r in other.trace] == [r["value"] for r in first.trace]


@pytest.mark.exhaustive
@pytest.mark.parametrize("n_workers", [1, 7])
def test_number_of_processes_does_not_change_results(n_workers):
    X, y = data()
    for n_shards in (1, 4):
        one, two = (
            linear_risk(X, y, Hinge(), executor=e, n_shards=n_shards)
            for e in (Serial, Processes(n_workers=n_workers))
        )
        for w in np.random.default_rng(1).standard_normal((5, 6)):
            assert one(w)[0] == two(w)[0]
            np.testing.assert_array_equal(one(w)[1], two(w)[1])


@pytest.mark.parametrize("n_workers", [2, 3, 64])
def test_long_gradients_are_summed_in_parallel_bitwise_equal(n_workers):
    rng = np.random.default_rng(0)
    X, y, w = rng.standard_normal((6, 2**16 + 3)), np.array([1.0, -1.0] * 3), np.full(2**16 + 3, 1e-4)
    value, grad = linear_risk(X, y, Hinge(), n_shards=6)(w)
    result = linear_risk(X, y, Hinge(), n_shards=6, executor=Threads(n_workers=n_workers))(w)
    assert result[0] == value
    np.testing.assert_array_equal(result[1], grad)


def test_number_of_shards_changes_rounding_only():
    X, y = data()
    w = np.ones(6)
    values = [linear_risk(X, y, Logistic(), n_shards=k)(w)[0] for k in (1, 2, 7, 200)]
    np.testing.assert_allclose(values, values[0], rtol=1e-14)


# ---------------------------------------------------------------- messages
@pytest.mark.parametrize("n", [0, 1, 100, 2**13 - 1, 2**13, 2**13 + 1, 10**6])
def test_messages_of_every_size(workers, n):
    message = {"a": np.arange(n, dtype=float), "b": [np.arange(n) % 7, "text"], "c": np.float32(2)}
    for reply in workers.map(echo, message):
        np.testing.assert_array_equal(reply["a"], message["a"])
        np.testing.assert_array_equal(reply["b"][0], message["b"][0])
        assert reply["b"][1:] == ["text"]


def test_replies_are_not_overwritten_by_later_ones(workers):
    first = workers.map(echo, np.full(50_000, 1.0))
    workers.map(echo, np.full(50_000, 2.0))
    assert all((x == 1.0).all() for x in first)


def test_each_shard_gets_its_argument_on_its_worker(workers):
    assert workers.map(echo, each=list("abcde")) == list("abcde")
    assert workers.map(size) == [1, 2, 3, 4, 5]
    processes = workers.map(pids)
    assert len(set(processes)) == 2
    assert os.getpid() not in processes


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize("executor", [Serial, Threads])
def test_exceptions_keep_their_type(executor):
    with_shards = executor().place(shards())
    with pytest.raises(ValueError, match="on purpose"):
        with_shards.map(fail, 3)
    assert with_shards.map(size) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("failing_size", [1, 5, -1])
def test_exceptions_of_worker_processes_keep_their_type(workers, failing_size):
    for _ in range(3):
        with pytest.raises(ValueError, match="on purpose"):
            workers.map(fail, failing_size)
        assert workers.map(size) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (need, r"a worker process raised helpers.Needy: bread is missing at home\n"),
        (stick, r"a worker process raised helpers.Stuck: in the mud\n"),
    ],
)
def test_unpicklable_exceptions_are_described(workers, f, message):
    with pytest.raises(RuntimeError, match=message) as caught:
        workers.map(f)
    assert f"in {f.__name__}\n" in str(caught.value)  # the function that raised
    assert workers.map(size) == [1, 2, 3, 4, 5]


def test_workers_survive_unpicklable_messages(workers):
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        workers.map(unsendable)
    assert workers.map(size) == [1, 2, 3, 4, 5]
    with pytest.raises(ImportError, match="no such module here"):
        workers.map(echo, Trap(os.getpid()))
    assert workers.map(size) == [1, 2, 3, 4, 5]


def test_unreadable_reply_is_consumed(workers):
    with pytest.raises(ImportError, match="no such module here"):
        workers.map(trapped)
    assert workers.map(size) == [1, 2, 3, 4, 5]


def trapped(shard):
    return Trap(os.getpid())


@pytest.mark.slow
def test_a_killed_worker_is_reported_in_one_sentence():
    workers_with_shards = Processes(n_workers=2).place(shards())
    for _ in range(2):  # the second use raises as well
        with pytest.raises(RuntimeError, match=r"a worker process ended with exit code -9 .* lost") as caught:
            workers_with_shards.map(die) if _ == 0 else workers_with_shards.map(size)
        assert "\n" not in str(caught.value)
    workers_with_shards.close()


@pytest.mark.slow
def test_worker_killed_during_a_call():
    workers_with_shards = Processes(n_workers=2).place(shards())
    victim = workers_with_shards.map(pids)[-1]
    threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
    with pytest.raises(RuntimeError, match="exit code -9"):
        workers_with_shards.map(doze, 1.0)
    workers_with_shards.close()


@pytest.mark.slow
def test_ctrl_c_during_a_call_leaves_workers_usable(workers):
    """Replies to the interrupted call must not be taken for replies to the next call."""
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            workers.map(interrupt, os.getpid())
        assert workers.map(size) == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------- settings
@pytest.mark.parametrize("kind", [Threads, Processes])
def test_n_workers(kind):
    assert kind().n_workers == kind(n_workers=None).n_workers == (os.cpu_count() or 1)
    assert kind(n_workers=np.int64(3)).n_workers == 3
    for wrong in (0, -1, 2.5, True, "2"):
        with pytest.raises(ValueError, match=r"n_workers=.*: give a whole number >= 1, or None"):
            kind(n_workers=wrong)


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("executor", [Serial(), Threads(n_workers=3), Processes(n_workers=3)], ids=type)
def test_settings_can_be_copied(executor, copy_of):
    other = copy_of(executor)
    assert type(other) is type(executor)
    assert getattr(other, "n_workers", 0) == getattr(executor, "n_workers", 0)


def test_threads_with_shards_can_be_copied():
    with_shards = Threads(n_workers=2).place(shards())
    assert with_shards.map(size) == [1, 2, 3, 4, 5]
    other = copy.deepcopy(with_shards)
    del with_shards
    gc.collect()
    assert other.map(size) == [1, 2, 3, 4, 5]


def test_processes_with_shards_cannot_be_copied(workers):
    with pytest.raises(TypeError, match=r"copy the settings, Processes\(n_workers=2\)"):
        copy.deepcopy(workers)
    assert workers.map(size) == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------- teams of threads
def test_little_work_wakes_no_thread():
    executor = Threads(n_workers=4).place(shards())
    unit = executor.MIN_WORK_PER_THREAD
    assert [executor.useful_threads(w) for w in (0, unit, 2 * unit, 3.5 * unit, 99 * unit)] == [1, 1, 2, 3, 4]
    assert executor.map_local(abs, range(-9, 0), work=unit) == list(range(9, 0, -1))
    assert executor._team.n_started == 0
    assert executor.map_local(abs, range(-9, 0), work=2 * unit) == list(range(9, 0, -1))
    assert executor._team.n_started == 1
    assert executor.map_local(abs, range(-9, 0)) == list(range(9, 0, -1))
    assert executor._team.n_started == 3


def test_other_shards_share_the_threads():
    executor = Threads(n_workers=3).place(shards())
    other = executor.with_shards(shards()[:2])
    assert other.map(size) == [1, 2]
    assert executor._team is other._team


def test_a_call_within_a_call_ends():
    executor = Threads(n_workers=2).place(shards())
    inner = executor.map_local(lambda i: sum(executor.map_local(abs, range(i))), range(20))
    assert inner == [i * (i - 1) // 2 for i in range(20)]


def test_a_thread_that_comes_late_is_not_waited_for():
    calls = []
    call = JointCall(lambda: calls.append(1))
    call.close()
    call.join()
    assert not calls


def test_a_call_waits_for_the_threads_that_have_joined():
    done, started = [], threading.Event()

    def work():
        started.set()
        time.sleep(0.1)
        done.append(1)

    call = JointCall(work)
    thread = threading.Thread(target=call.join)
    thread.start()
    assert started.wait(10)
    call.close()
    assert done == [1]
    call.close()  # once more, as after Ctrl-C
    thread.join()


@pytest.mark.slow
def test_the_first_error_of_any_thread_is_raised():
    executor = Threads(n_workers=3).place(shards())

    def fail(i):
        if i == 7:
            raise KeyError(i)
        return i

    for _ in range(20):
        with pytest.raises(KeyError, match="7"):
            executor.map_local(fail, range(50))
        assert executor.map_local(abs, range(3)) == [0, 1, 2]


def test_sums_of_long_arrays_have_the_same_bits():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((400, 900)) for _ in range(5)]
    expected = arrays[0] + arrays[1] + arrays[2] + arrays[3] + arrays[4]
    for k in (1, 2, 3, 5):
        executor = Threads(n_workers=k).place(shards())
        (total,) = executor.sum(lambda shard, a: (a,), each=arrays)
        assert total.tobytes() == expected.tobytes()


# ---------------------------------------------------------------- leaks
def test_settings_start_no_thread():
    before = threading.active_count()
    settings = [Threads(n_workers=4) for _ in range(20)]
    assert threading.active_count() == before
    del settings


@pytest.mark.exhaustive
@pytest.mark.skipif(not SHARED.exists(), reason="no listing of shared memory on this system")
def test_shared_memory_is_released():
    def use():
        X = np.ones((20_000, 10))
        big = [Shard(as_matrix(X[:10_000]), np.ones(10_000), np.ones(10_000), {})] * 2
        workers_with_shards = Processes(n_workers=2).place(big)
        workers_with_shards.map(echo, np.ones(100_000))
        children = workers_with_shards.map(pids)
        return workers_with_shards, children

    others = segments(os.getpid())
    workers_with_shards, children = use()
    used = segments(os.getpid(), *children) - others
    assert len(used) >= 4  # data and replies of each worker
    workers_with_shards.close()
    workers_with_shards.close()  # closing twice is harmless
    assert not any(path.exists() for path in used)
    workers_with_shards, more = use()
    used = segments(os.getpid(), *more) - others
    del workers_with_shards
    gc.collect()
    assert not any(path.exists() for path in used)
    for pid in children + more:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="no listing of shared memory on this system")
def test_script_exit_releases_shared_memory_silently(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, riskmin\n"
        "if __name__ == '__main__':\n"
        "    X, y = np.ones((30_000, 4)), np.where(np.arange(30_000) % 2, 1.0, -1.0)\n"
        "    risk = riskmin.linear_risk(X, y, riskmin.Hinge(), executor=riskmin.Processes, n_shards=2)\n"
        "    assert abs(risk(np.zeros(4))[0] - 1) < 1e-12\n"
        "    print(open('/proc/self/maps').read())\n"
    )
    completed = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    used = {SHARED / name for name in re.findall(r"/dev/shm/(psm_\S+)", completed.stdout)}
    assert used
    assert not any(path.exists() for path in used)
    assert completed.stderr == ""


@pytest.mark.parametrize("kind", [Threads, Processes])
def test_the_number_of_workers_needs_no_name(kind):
    assert kind(2) == kind(n_workers=2)
    assert repr(kind(2)) == f"{kind.__name__}(n_workers=2)"
    with pytest.raises(ValueError, match="give a whole number"):
        kind(shards())
