"""MPI ranks: bitwise equal results, decisions shared by all ranks, errors that reach all ranks."""

import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from mpi_jobs import job, mpiexec
from riskmin import L2, Hinge, Objective, Spmd, linear_risk, minimize
from riskmin.executors.base import SerialExecutor
from riskmin.executors.coordination import Coordination, coordination_of
from riskmin.executors.mpi.collective import FIRST_EXCHANGE_BYTES, HEADER_LAYOUT, arguments_checksum
from riskmin.executors.mpi.messages import INLINE_MESSAGE_BYTES, BufferPool, Message

jobs = [pytest.mark.slow, pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")]


# ---------------------------------------------------------------- messages
@pytest.mark.parametrize("n", [0, 1, 20, 300, INLINE_MESSAGE_BYTES, 5000])
def test_messages_round_trip(n):
    content = ("x" * n, [np.arange(n), np.ones((n, 2), order="F")[::2], None], {"k": np.float32(n)})
    message = Message.encode(content)
    buffer = np.zeros(message.size(), dtype=np.uint8)
    message.write(buffer)
    back = (Message.read(buffer, len(message.text)) if len(buffer) else message).decode()
    assert back[0] == content[0]
    assert back[2] == content[2]
    for a, b in zip(back[1][:2], content[1][:2], strict=True):
        np.testing.assert_array_equal(a, b)
        a += 1  # received arrays are writable


def test_the_first_exchange_has_the_same_size_in_every_version():
    assert FIRST_EXCHANGE_BYTES == 512
    assert HEADER_LAYOUT.unpack(HEADER_LAYOUT.pack(b"v", 1, 2, 3, 4, 5, b"n"))[0].startswith(b"v\0")


def test_buffer_pool_reuses_free_buffers_only():
    buffer = BufferPool()
    first = buffer.acquire(10_000)
    first[:] = 7
    view = first[100:200].reshape(10, 10)
    del first
    for k in range(20):
        buffer.acquire(10_000)[:] = k
        assert (view == 7).all()
    address = buffer.acquire(10_000).ctypes.data
    assert buffer.acquire(9_000).ctypes.data == address
    assert address % 64 == 0
    assert len(buffer.buffers) <= 3


def test_arguments_checksum_distinguishes_numbers():
    x = np.random.default_rng(0).standard_normal(1000)
    other = x.copy()
    other[500] = np.nextafter(other[500], 9)
    checksums = [
        arguments_checksum([x]),
        arguments_checksum([other]),
        arguments_checksum([-x]),
        arguments_checksum([x[::-1]]),
        arguments_checksum([x, 0.5]),
        arguments_checksum([x, 0.25]),
        arguments_checksum([]),
    ]
    assert len(set(checksums)) == len(checksums)
    assert arguments_checksum([x.copy(), 3, "word", None]) == arguments_checksum([x, 4])


# ---------------------------------------------------------------- coordination
def test_coordination_of_a_risk():
    class Ranks(SerialExecutor):
        coordination = Coordination()

    X, y = np.eye(2), np.array([1.0, -1.0])
    local = linear_risk(X, y, Hinge())
    assert coordination_of(local).single_process
    assert coordination_of(Objective(lambda w: (w @ w, 2 * w), L2(), 0.1).risk).single_process
    ranks = Ranks()
    risk = type(local)(local.loss, local.linear_map, ranks, 2)
    assert coordination_of(risk) is ranks.coordination
    assert coordination_of(Objective(risk, L2(), 0.1).risk) is ranks.coordination


def test_run_takes_the_decisions_of_the_root(monkeypatch):
    """A run broadcasts the limits, the time and the callback's return value, and nothing else."""

    broadcast = []

    class Ranks(Coordination):
        def broadcast_from_root(self, f):
            value = f()
            broadcast.append(type(value).__name__)
            return value

    ranks = Ranks()
    monkeypatch.setattr("riskmin.driver.loop.coordination_of", lambda risk: ranks)
    obj = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), 0.1)
    result = minimize(obj, "bundle", max_iter=2, tol=0, callback=lambda it, row: None)
    assert broadcast == ["Limits", "float", "bool", "float", "float", "bool"]
    assert result.status == "max_iter"


def test_missing_mpi4py_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"Spmd needs mpi4py and an MPI.*pip install 'riskmin\[mpi\]'"):
        _ = Spmd().rank


# ---------------------------------------------------------------- jobs
def checks():
    """The names of the checks that ranks run."""
    from mpi_jobs import HERE

    return re.findall(r"@check\ndef (\w+)", (HERE / "mpi_checks.py").read_text(encoding="utf-8"))


OF_THREE = [
    "contract",
    "long_sums_have_them",
    "replies_of_any_length_and_kind_arrive",
    "rows_of_each_rank",
    "a_rank_may_have_no_rows",
    "errors_at_one_rank_reach_all",
    "errors_between_calls_reach_all",
    "ranks_that_differ_are_told",
    "time_limits_agree",
    "other_communicators",
]
"""Checks that may depend on the number of ranks; only these run on three ranks, which share two cores."""


def run(folder, n, names=()):
    """Output of one job that runs all checks: a launch costs more than the checks."""
    with job(n, "mpi_checks.py", folder, *names) as process:
        out, err = process.communicate(timeout=90)
    return out, err, process.returncode


def check(outcome, name):
    out, err, _ = outcome
    ends = re.search(rf"^(passed|failed) {name} .*\n((?:    .*\n)*)", out, re.MULTILINE)
    assert ends is not None, f"{out}\n{err}"
    assert ends[1] == "passed", ends[2]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return run(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory):
    return run(tmp_path_factory.mktemp("three"), 3, OF_THREE)


class TestJobs:
    pytestmark = jobs

    @pytest.mark.parametrize("name", checks())
    def test_two_ranks(self, two_ranks, name):
        check(two_ranks, name)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", OF_THREE)
    def test_three_ranks(self, three_ranks, name):
        check(three_ranks, name)

    def test_unrecoverable_error_ends_all_ranks(self, tmp_path):
        """A rank that fails during a reduction cannot notify the others: it aborts the job."""
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent("""
            import numpy as np
            from mpi_checks import Path, Shard, as_matrix, long_reply, ranks

            shards = [Shard(as_matrix(np.ones((2, 2))), np.ones(2), np.ones(2), {}) for _ in range(4)]
            placed = ranks.place(shards)
            print(Path("/proc/self/maps").read_text() if Path("/proc").exists() else "", flush=True)
            if ranks.rank == 1:
                placed.communicator.buffer_pool.acquire = lambda n: np.empty(10**17)
            placed.sum(long_reply, np.ones(5000))
            """)
        )
        with job(2, script) as process:
            out, err = process.communicate(timeout=60)
        for name in set(re.findall(r"/dev/shm/mpich_\w+", out)):
            Path(name).unlink(missing_ok=True)  # MPICH does not remove its shared memory
        assert process.returncode != 0
        assert "MemoryError" in err or "Unable to allocate" in err

    def test_job_succeeds_and_only_the_root_prints(self, two_ranks):
        out, err, code = two_ranks
        assert (code, out.count("once is enough"), err) == (0, 1, "once is enough\n")
