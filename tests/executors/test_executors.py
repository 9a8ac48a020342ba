"""Executors: one contract for every kind, propagated errors, interruptions, lost workers, no leaks."""

import contextlib
import copy
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import riskmin as rm
from helpers import (
    Needy,
    Problem,
    Stuck,
    Trap,
    doze,
    echo,
    fail,
    interrupt,
    need,
    pids,
    refusals,
    shards,
    size,
    stick,
    trapped,
    unsendable,
)
from riskmin.executors.base import SerialExecutor

SHARED = Path("/dev/shm")
SIZES = [1, 2, 3, 4, 5]
slow = pytest.mark.slow


def segments(*processes):
    """The shared memory segments mapped by these processes, not those of others on this machine."""
    text = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in processes)
    return {SHARED / name for name in re.findall(r"/dev/shm/(\S+)", text) if "psm" in name}


# ---------------------------------------------------------------- the contract
class Pool(rm.Executor):
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


@pytest.mark.parametrize("executor", [rm.Serial, rm.Threads(n_workers=9), Pool])
def test_contract_of_local_executors(executor):
    rm.check_executor(executor)


def test_contract(backend):
    rm.check_executor(backend)


@pytest.mark.parametrize(
    ("reg", "solver"), [(rm.L1(), "coordinate_descent"), (rm.L2(), "newton"), (rm.L2(), "dual")], ids=str
)
def test_solvers_visit_the_rows_of_a_third_party(reg, solver):
    """Its rows are in this process. Plain sums are not those of riskmin, bit for bit."""
    problem = Problem(rm.Logistic(), reg, n=60)
    local, plain = (rm.minimize(problem.objective(executor=e, n_shards=3), solver) for e in (None, Plain()))
    assert plain.status == "converged"
    np.testing.assert_allclose(plain.w, local.w, rtol=1e-6)


def test_rows_are_remote_unless_declared_local():
    X, y = np.eye(4), np.array([1.0, -1.0, 1.0, -1.0])
    assert rm.linear_risk(X, y, rm.Hinge(), executor=Plain.PlacedShards, n_shards=3).rows is None
    assert rm.linear_risk(X, y, rm.Hinge(), executor=Plain(), n_shards=3).rows is not None


class TurnsRound(SerialExecutor):
    def map(self, f, *args, each=()):
        return super().map(f, *args, each=each)[::-1]


class Forgets(SerialExecutor):
    def map(self, f, *args, each=()):
        for shard in self.shards:
            shard.cache.clear()
        return super().map(f, *args, each=each)


class Swallows(SerialExecutor):
    def map(self, f, *args, each=()):
        with contextlib.suppress(ZeroDivisionError):
            return super().map(f, *args, each=each)


class AddsOtherwise(SerialExecutor):
    def sum(self, f, *args, each=()):
        parts = zip(*self.map(f, *args, each=each), strict=True)
        return tuple(sum(reversed(part[:-1]), start=part[-1]) for part in parts)


WRONG = {TurnsRound: "out of order", Forgets: "k", Swallows: "is lost", AddsOtherwise: "bit for bit"}


@pytest.mark.parametrize("executor", WRONG)
def test_contract_refuses(executor):
    with pytest.raises((AssertionError, KeyError), match=WRONG[executor]):
        rm.check_executor(executor)


# ---------------------------------------------------------------- messages
@pytest.mark.parametrize("n", [0, 1, 2**13 - 1, 2**13 + 1, 300_000])
def test_messages_of_every_size(placed, n):
    message = {"a": np.arange(n, dtype=float), "b": [np.asfortranarray(np.ones((3, n))), "text"]}
    for reply in placed.map(echo, message):
        np.testing.assert_array_equal(reply["a"], message["a"])
        np.testing.assert_array_equal(reply["b"][0], message["b"][0])
        assert reply["b"][1:] == ["text"]
        assert reply["a"].flags.writeable


def test_replies_are_not_overwritten_by_later_ones(placed):
    first = placed.map(echo, np.full(50_000, 1.0))
    placed.map(echo, np.full(50_000, 2.0))
    assert all((x == 1.0).all() for x in first)


def test_each_shard_gets_its_argument_on_its_worker(placed):
    assert placed.map(echo, each=list("abcde")) == list("abcde")
    assert placed.map(size) == SIZES
    processes = placed.map(pids)
    assert placed.map(pids) == processes
    if placed.is_local:
        assert set(processes) == {os.getpid()}
    else:
        assert len(set(processes)) == 2
        assert os.getpid() not in processes


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize("failing_size", [1, 5, -1])
def test_exceptions_keep_their_type(placed, failing_size):
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            placed.map(fail, failing_size)
        assert placed.map(size) == SIZES


@pytest.mark.parametrize(
    ("f", "error", "words"),
    [(need, Needy, "bread is missing at home"), (stick, Stuck, "in the mud")],
)
def test_exceptions_that_cannot_be_sent_are_described(placed, f, error, words):
    if placed.is_local:
        with pytest.raises(error, match=words):
            placed.map(f)
    else:
        with pytest.raises(RuntimeError, match=rf"raised helpers.{error.__name__}: {words}\n") as caught:
            placed.map(f)
        assert f"in {f.__name__}\n" in str(caught.value)  # the function that raised
    assert placed.map(size) == SIZES


@pytest.mark.parametrize(
    ("f", "argument", "error", "words"),
    [
        (unsendable, (), (TypeError, pickle.PicklingError), "pickle"),
        (echo, (Trap(os.getpid()),), ImportError, "no such module here"),
        (trapped, (), ImportError, "no such module here"),
    ],
    ids=["reply", "argument", "unreadable"],
)
def test_workers_survive_messages_that_cannot_be_sent(placed, f, argument, error, words):
    if not placed.is_local:
        with pytest.raises(error, match=words):
            placed.map(f, *argument)
    assert placed.map(size) == SIZES


def test_ctrl_c_during_a_call_leaves_workers_usable(placed):
    """Replies to the interrupted call must not be taken for replies to the next call."""
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            placed.map(interrupt, os.getpid())
        assert placed.map(size) == SIZES


def test_placed_shards_are_copied_only_in_this_process(placed):
    if placed.is_local:
        assert copy.deepcopy(placed).map(size) == SIZES
    else:
        for again in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"cannot be (copied|pickled): copy the settings, \w+\("):
                again(placed)
    assert placed.map(size) == SIZES


@slow
def test_a_killed_worker_is_reported_in_one_sentence():
    executor = rm.Processes(n_workers=2).place(shards())
    threading.Timer(0.3, os.kill, (executor.map(pids)[-1], signal.SIGKILL)).start()
    for f, *args in ((doze, 5.0), (size,)):  # the next use raises as well
        with pytest.raises(RuntimeError, match=r"a worker process ended with exit code -9 .*lost") as caught:
            executor.map(f, *args)
        assert "\n" not in str(caught.value)
    executor.close()


# ---------------------------------------------------------------- settings
@pytest.mark.parametrize("kind", [rm.Threads, rm.Processes])
def test_the_number_of_workers(kind):
    assert kind().n_workers == kind(n_workers=None).n_workers == (os.cpu_count() or 1)
    assert kind(n_workers=np.int64(3)).n_workers == 3
    assert kind(2) == kind(n_workers=2)
    assert repr(kind(2)) == f"{kind.__name__}(n_workers=2)"


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (rm.Serial(), "Serial()"),
        (rm.Threads(n_workers=3), "Threads(n_workers=3)"),
        (rm.Processes(n_workers=3), "Processes(n_workers=3)"),
        (rm.Spmd(ordered=False), "Spmd(ordered=False)"),
        (rm.SparkExecutor(), "SparkExecutor()"),
        (
            rm.SparkExecutor(n_workers=8, host="here", patience=5),
            "SparkExecutor(n_workers=8, host='here', patience=5)",
        ),
        (rm.DaskExecutor(), "DaskExecutor()"),
        (
            rm.DaskExecutor("tcp://there:8786", ordered=False, patience=5),
            "DaskExecutor('tcp://there:8786', ordered=False, patience=5)",
        ),
        (rm.DaskExecutor("tcp://it:8786", device="cuda:1"), "DaskExecutor('tcp://it:8786', device='cuda:1')"),
    ],
)
def test_settings_are_shown_and_copied(settings, text, copy_of):
    assert repr(copy_of(settings)) == repr(settings) == text


def place(executor):
    return rm.linear_risk(np.eye(2), np.array([1.0, -1.0]), rm.Hinge(), executor=executor)


def without_mpi():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mpi4py", None)
        return rm.Spmd().rank


def without_spark():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyspark.sql", None)
        return rm.SparkExecutor().spark


NUMBERS = [(rm.Threads, 0), (rm.Threads, 2.5), (rm.Threads, "2"), (rm.Processes, -1), (rm.Processes, True)]
VALUES = [
    *((partial(kind, n_workers=n), "n_workers=.*: give a whole number >= 1, or") for kind, n in NUMBERS),
    (lambda: rm.Threads(shards()), "give a whole number"),
    (lambda: rm.DaskExecutor(patience=-1), "patience=-1: give a number of seconds >= 0"),
    (lambda: rm.DaskExecutor(device="tpu"), "device='tpu' is no device: give 'cuda'"),
    (lambda: rm.SparkExecutor(n_workers=0), "n_workers=0: give a whole number >= 1"),
    (lambda: rm.SparkExecutor(patience=-1), "patience=-1: give a number of seconds >= 0"),
    (lambda: place(rm.DaskExecutor()), "there is no Dask client: start one.*or give it to DaskExecutor"),
]
EXECUTOR = r"is no executor: give one such as Threads\(n_workers=2\)"
TYPES = [
    *((partial(place, thing), EXECUTOR) for thing in (3, object(), SerialExecutor([]))),
    (lambda: place(list), "has no method map"),
    (lambda: rm.SparkExecutor(3), "spark=3 is no session of Spark: give a pyspark.sql.SparkSession"),
    (lambda: rm.DaskExecutor(3), "client=3 is no client of Dask: give a distributed.Client"),
]
MORE = [
    (lambda: rm.DaskExecutor(patience="long"), "patience='long': give a number"),
    (without_spark, r"SparkExecutor needs PySpark and Java.*pip install 'riskmin\[spark\]'"),
    (without_mpi, r"Spmd needs mpi4py and an MPI.*pip install 'riskmin\[mpi\]'"),
]
test_refusals = refusals(
    (VALUES, ValueError), (TYPES, TypeError), (MORE, (TypeError, ValueError, ImportError))
)


# ---------------------------------------------------------------- leaks
@slow
@pytest.mark.skipif(not SHARED.exists(), reason="no listing of shared memory on this system")
def test_shared_memory_is_released():
    rows = np.ones(10_000)
    big = [rm.Shard(rm.as_matrix(np.ones((10_000, 10))), rows, rows, {})] * 2
    others, executor = segments(os.getpid()), rm.Processes(n_workers=2).place(big)
    executor.map(echo, np.ones(100_000))
    children = executor.map(pids)
    used = segments(os.getpid(), *children) - others
    assert len(used) >= 4  # data and replies of each worker
    close = executor.close
    del executor  # closes
    gc.collect()
    close()  # once more is harmless
    assert not any(path.exists() for path in used)
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@slow
@pytest.mark.skipif(not SHARED.exists(), reason="no listing of shared memory on this system")
def test_the_end_of_a_script_releases_shared_memory_silently(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, riskmin\n"
        "if __name__ == '__main__':\n"
        "    X, y = np.ones((30_000, 4)), np.where(np.arange(30_000) % 2, 1.0, -1.0)\n"
        "    risk = riskmin.linear_risk(X, y, riskmin.Hinge(), executor=riskmin.Processes(1), n_shards=2)\n"
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
