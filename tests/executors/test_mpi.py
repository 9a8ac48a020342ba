"""MPI ranks: bitwise equal results, decisions shared by all ranks, errors that reach all ranks."""

import re
import textwrap
from pathlib import Path

import pytest

from helpers import Problem
from mpi_jobs import job, mpiexec
from riskmin import minimize
from riskmin.executors.base import Coordination, SerialExecutor

jobs = [pytest.mark.slow, pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")]


# ---------------------------------------------------------------- coordination
class Ranks(Coordination):
    """Records what a run takes from rank 0."""

    def __init__(self):
        self.broadcast = []

    def broadcast_from_root(self, f):
        value = f()
        self.broadcast.append(type(value).__name__)
        return value


class OnRanks(SerialExecutor):
    coordination = Ranks()


def test_a_run_takes_the_decisions_of_the_root():
    """A run broadcasts the limits, the time and the callback's return value, and nothing else."""
    obj = Problem(lam=0.1).objective(executor=OnRanks)
    OnRanks.coordination.broadcast.clear()
    result = minimize(obj, "bundle", max_iter=2, tol=0, callback=lambda it, row: None)
    assert OnRanks.coordination.broadcast == ["Limits", "float", "bool", "float", "float", "bool"]
    assert result.status == "max_iter"


# ---------------------------------------------------------------- jobs
def checks():
    """The names of the checks that ranks run."""
    from mpi_jobs import HERE

    return re.findall(r"@check\ndef (\w+)", (HERE / "mpi_checks.py").read_text(encoding="utf-8"))


class TestJobs:
    pytestmark = jobs

    @pytest.mark.parametrize("name", checks())
    def test_two_ranks(self, ranks, name):
        out, err, _, outcomes = ranks
        ends, errors = outcomes.get(name, ("missing", f"{out}\n{err}"))
        assert ends == "passed", errors

    def test_unrecoverable_error_ends_all_ranks(self, tmp_path):
        """A rank that fails during a reduction cannot notify the others: it aborts the job."""
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent("""
            import numpy as np
            from mpi_checks import Path, long_reply, ranks
            from riskmin import Shard, as_matrix

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

    def test_job_succeeds_and_only_the_root_prints(self, ranks):
        out, err, code, _ = ranks
        assert (code, out.count("once is enough"), err) == (0, 1, "once is enough\n")
