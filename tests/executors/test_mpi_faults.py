"""Ranks killed by SIGKILL at random moments of a fit: no checkpoint is lost and nothing leaks."""

import contextlib
import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

import mpi_fit
from mpi_jobs import job, mpiexec
from riskmin import Bundle, Serial, minimize
from riskmin.core.persist import load_arrays

KILLS = 2


def progress_of(file):
    """The number of iterations in a checkpoint, and the last value and lower bound."""
    if not file.exists():
        return 0, float("inf"), 0.0
    arrays, meta = load_arrays(file, "checkpoint")
    value, lower = (arrays["trace"][-1, meta["keys"].index(key)] for key in ("value", "lower"))
    return len(arrays["trace"]), value, lower


def check_progress(before, after):
    """Nothing is lost; a resumed run sums the same rows over other ranks: the last bits may differ."""
    assert after[0] >= before[0]
    assert after[1] <= before[1] * (1 + 1e-12)
    assert after[2] >= before[2] * (1 - 1e-12)


def is_alive(pid):
    """Whether a process runs; zombies do not count."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def wait_for_end(pids, seconds=10.0):
    """Whether all these processes end within the given seconds."""
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.005)
    return not any(map(is_alive, pids))


def wait_for_start(process):
    """The pids of both ranks, once the fit takes steps."""
    pids = []
    for line in process.stdout:
        pids += [int(pid) for pid in re.findall(r"<go (\d+)>", line)]  # mpiexec may join lines of two ranks
        if len(pids) == 2:
            return pids
    raise AssertionError(process.stderr.read())


@pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")
def test_fit_resumes_after_killed_ranks(tmp_path):
    undisturbed = minimize(mpi_fit.objective(Serial), Bundle(), tol=mpi_fit.TOL)
    moments, file = random.Random(1), tmp_path / "run"
    saved = progress_of(file)
    for _ in range(KILLS):
        with job(2, "mpi_fit.py", file) as process:
            pids = wait_for_start(process)
            maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
            time.sleep(moments.uniform(0, 0.1))
            os.kill(moments.choice(pids), signal.SIGKILL)
            out, _ = process.communicate(timeout=20)
            assert "done" not in out
            assert process.returncode != 0
            assert wait_for_end(pids)
        for path in set(re.findall(r"/dev/shm/mpich_\w+", maps)):
            Path(path).unlink(missing_ok=True)  # MPICH does not remove its shared memory
        check_progress(saved, progress_of(file))
        saved = progress_of(file)
    with job(2, "mpi_fit.py", file) as process:
        out, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    result = json.loads(out.split("done ")[1])
    # the same certified optimum, after more steps than the last checkpoint had
    assert result["status"] == undisturbed.status == "converged"
    assert result["n_iter"] > saved[0] > 0
    best, worst = max(result["lower"], undisturbed.lower), min(result["value"], undisturbed.value)
    assert best <= worst * (1 + 1e-12)
    for value in (result["value"], undisturbed.value):
        assert value - best <= mpi_fit.TOL * value
