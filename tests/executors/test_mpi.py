"""Ranks of MPI jobs: the same bits as one process, decisions that all of them take, errors that reach all."""

import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from mpi_jobs import job, mpiexec
from riskmin import L2, Hinge, Objective, Serial, Spmd, linear_risk, minimize
from riskmin.executors.coordination import SingleProcess, coordination_of
from riskmin.executors.mpi.collective import FIRST_EXCHANGE_BYTES, HEADER_LAYOUT, arguments_checksum
from riskmin.executors.mpi.messages import INLINE_MESSAGE_BYTES, BufferPool, Message

jobs = [pytest.mark.slow, pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")]


# ---------------------------------------------------------------- what ranks send
@pytest.mark.parametrize("n", [0, 1, 20, 300, INLINE_MESSAGE_BYTES, 5000])
def test_letters_arrive(n):
    thing = ("x" * n, [np.arange(n), np.ones((n, 2), order="F")[::2], None], {"k": np.float32(n)})
    letter = Message.encode(thing)
    room = np.zeros(letter.size(), dtype=np.uint8)
    letter.write(room)
    back = (Message.read(room, len(letter.text)) if len(room) else letter).decode()
    assert back[0] == thing[0]
    assert back[2] == thing[2]
    for a, b in zip(back[1][:2], thing[1][:2], strict=True):
        np.testing.assert_array_equal(a, b)
        a += 1  # arrays that arrive are one's own


def test_the_first_exchange_has_the_same_size_in_every_version():
    assert FIRST_EXCHANGE_BYTES == 512
    assert HEADER_LAYOUT.unpack(HEADER_LAYOUT.pack(b"v", 1, 2, 3, 4, 5, b"n"))[0].startswith(b"v\0")


def test_memory_is_used_again_but_not_what_is_in_use():
    room = BufferPool()
    first = room.acquire(10_000)
    first[:] = 7
    view = first[100:200].reshape(10, 10)
    del first
    for k in range(20):
        room.acquire(10_000)[:] = k
        assert (view == 7).all()
    address = room.acquire(10_000).ctypes.data
    assert room.acquire(9_000).ctypes.data == address
    assert address % 64 == 0
    assert len(room.buffers) <= 3


def test_marks_tell_numbers_apart():
    x = np.random.default_rng(0).standard_normal(1000)
    other = x.copy()
    other[500] = np.nextafter(other[500], 9)
    marks = [
        arguments_checksum([x]),
        arguments_checksum([other]),
        arguments_checksum([-x]),
        arguments_checksum([x[::-1]]),
        arguments_checksum([x, 0.5]),
        arguments_checksum([x, 0.25]),
        arguments_checksum([]),
    ]
    assert len(set(marks)) == len(marks)
    assert arguments_checksum([x.copy(), 3, "word", None]) == arguments_checksum([x, 4])


# ---------------------------------------------------------------- who decides
def test_whose_company_a_risk_is_in():
    class Ranks(Serial):
        broadcast_from_root = on_root = synchronized = None

    X, y = np.eye(2), np.array([1.0, -1.0])
    ours = linear_risk(X, y, Hinge())
    assert isinstance(coordination_of(ours), SingleProcess)
    assert isinstance(coordination_of(lambda w: w), SingleProcess)
    held = Ranks()
    risk = type(ours)(ours.loss, ours.linear_map, held, 2)
    assert coordination_of(risk) is held
    assert coordination_of(Objective(risk, L2(), 0.1).risk) is held


def test_the_clock_of_another_decides(monkeypatch):
    """A run asks its company for the time, the callback's answer and the limits, and for nothing else."""

    said = []

    class Ranks(SingleProcess):
        def broadcast_from_root(self, f):
            found = f()
            said.append(type(found).__name__)
            return found

    ranks = Ranks()
    monkeypatch.setattr("riskmin.driver.loop.coordination_of", lambda risk: ranks)
    obj = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), 0.1)
    result = minimize(obj, "bundle", max_iter=2, tol=0, callback=lambda it, row: None)
    assert said == ["Limits", "float", "bool", "float", "float", "bool"]
    assert result.status == "max_iter"


def test_without_mpi4py_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"Spmd needs mpi4py and an MPI.*pip install riskmin\[mpi\]"):
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
"""What may depend on the number of ranks: three of them on two cores take turns."""


def run(folder, n, names=()):
    """What one job says of the checks: few launches, as they cost more than the checks."""
    with job(n, "mpi_checks.py", folder, *names) as process:
        out, err = process.communicate(timeout=90)
    return out, err, process.returncode


def check(outcome, name):
    out, err, _ = outcome
    ends = re.search(rf"^(passed|failed) {name} .*\n((?:    .*\n)*)", out, re.MULTILINE)
    assert ends is not None, f"{out}\n{err}"
    assert ends[1] == "passed", ends[2]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return run(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    return run(tmp_path_factory.mktemp("three"), 3, OF_THREE)


class TestJobs:
    pytestmark = jobs

    @pytest.mark.parametrize("name", checks())
    def test_two_ranks(self, of_two, name):
        check(of_two, name)

    @pytest.mark.parametrize("name", OF_THREE)
    def test_three_ranks(self, of_three, name):
        check(of_three, name)

    def test_where_there_is_no_way_back_all_end(self, tmp_path):
        """A rank that fails while numbers are under way cannot tell the others: it ends the job."""
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent("""
            import numpy as np
            from mpi_checks import Path, Shard, as_matrix, long_reply, ranks

            shards = [Shard(as_matrix(np.ones((2, 2))), np.ones(2), np.ones(2), {}) for _ in range(4)]
            placed = ranks(shards)
            print(Path("/proc/self/maps").read_text() if Path("/proc").exists() else "", flush=True)
            if ranks.rank == 1:
                placed.communicator.buffer_pool.acquire = lambda n: np.empty(10**17)
            placed.sum(long_reply, np.ones(5000))
            """)
        )
        with job(2, script) as process:
            out, err = process.communicate(timeout=60)
        for name in set(re.findall(r"/dev/shm/mpich_\w+", out)):
            Path(name).unlink(missing_ok=True)  # MPICH leaves its own memory behind
        assert process.returncode != 0
        assert "MemoryError" in err or "Unable to allocate" in err

    def test_all_were_well_and_one_was_heard(self, of_two):
        out, err, code = of_two
        assert (code, out.count("once is enough"), err) == (0, 1, "once is enough\n")
