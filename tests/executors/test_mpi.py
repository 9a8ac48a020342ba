"""MPI ranks: bitwise equal results, decisions shared by all ranks, errors that reach all ranks."""

import re
from pathlib import Path

import pytest

from mpi_jobs import HERE, job, mpiexec

pytestmark = pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")
CHECKS = re.findall(r"@check\ndef (\w+)", (HERE / "mpi_checks.py").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(ranks, name):
    out, err, _, outcomes = ranks
    ends, errors = outcomes.get(name, ("missing", f"{out}\n{err}"))
    assert ends == "passed", errors


FAILS_AT_RANK_1 = """
import numpy as np
from helpers import shards
from mpi_checks import Path, long_reply, ranks

placed = ranks.place(shards())
print(Path("/proc/self/maps").read_text() if Path("/proc").exists() else "", flush=True)
if ranks.rank == 1:
    placed.communicator.buffer_pool.acquire = lambda n: np.empty(10**17)
placed.sum(long_reply, np.ones(5000))
"""


def test_unrecoverable_error_ends_all_ranks(tmp_path):
    """A rank that fails during a reduction cannot notify the others: it aborts the job."""
    (tmp_path / "script.py").write_text(FAILS_AT_RANK_1)
    with job(2, tmp_path / "script.py") as process:
        out, err = process.communicate(timeout=60)
    for name in set(re.findall(r"/dev/shm/mpich_\w+", out)):
        Path(name).unlink(missing_ok=True)  # MPICH does not remove its shared memory
    assert process.returncode != 0
    assert "MemoryError" in err or "Unable to allocate" in err


def test_job_succeeds_and_only_the_root_prints(ranks):
    out, err, code, _ = ranks
    assert (code, out.count("once is enough"), err) == (0, 1, "once is enough\n")
