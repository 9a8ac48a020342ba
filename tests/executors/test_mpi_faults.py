"""Processes killed by SIGKILL at random moments of a fit: no checkpoint is lost and nothing leaks."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mpi_fit
from mpi_jobs import HERE, environment, job, mpiexec
from riskmin import Bundle, Serial, minimize
from riskmin.core.persist import load_arrays

pytestmark = pytest.mark.slow

KILLS = 2
SHARED = Path("/dev/shm")


@pytest.fixture(scope="module")
def undisturbed():
    return minimize(mpi_fit.objective(Serial), Bundle(), tol=mpi_fit.TOL)


class Progress:
    """The progress saved in a checkpoint, which must never decrease."""

    def __init__(self, file):
        self.file, self.rows, self.value, self.lower, self.grew = file, 0, float("inf"), 0.0, 0

    def check(self):
        if not self.file.exists():
            assert self.rows == 0
            return
        arrays, meta = load_arrays(self.file, "checkpoint")
        rows = len(arrays["trace"])
        assert rows >= self.rows
        value, lower = (arrays["trace"][-1, meta["keys"].index(key)] for key in ("value", "lower"))
        # A resumed run sums the same rows over other ranks: the last bits may differ.
        assert value <= self.value * (1 + 1e-12)
        assert lower >= self.lower * (1 - 1e-12)
        self.grew += rows > self.rows
        self.rows, self.value, self.lower = rows, value, lower


def check_end(result, undisturbed, progress):
    """Check for the same certified optimum, after more steps than the last checkpoint had."""
    assert result["status"] == undisturbed.status == "converged"
    assert result["n_iter"] > progress.rows > 0
    best, worst = max(result["lower"], undisturbed.lower), min(result["value"], undisturbed.value)
    assert best <= worst * (1 + 1e-12)
    for value in (result["value"], undisturbed.value):
        assert value - best <= mpi_fit.TOL * value
    assert progress.grew >= 1


def alive(pid):
    """Whether a process runs; zombies do not count."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def wait_for_end(pids, seconds=10.0):
    """Whether all these processes end within the given seconds."""
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.005)
    return not any(map(alive, pids))


def children_and_segments(*pids):
    """The children of the processes, and the shared memory that all of them have mapped."""
    children = [int(c) for pid in pids for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in (*pids, *children))
    return children, {SHARED / name for name in re.findall(r"/dev/shm/((?:psm|mpich)_\S+)", maps)}


def wait_for_start(process, n):
    """The pids of a fit, once it takes steps."""
    pids = []
    for line in process.stdout:
        pids += [int(pid) for pid in re.findall(r"<go (\d+)>", line)]  # mpiexec may join lines of two ranks
        if len(pids) == n:
            return pids
    raise AssertionError(process.stderr.read())


# ---------------------------------------------------------------- a rank
@pytest.mark.exhaustive
@pytest.mark.skipif(mpiexec() is None, reason="there is no mpiexec")
def test_fit_resumes_after_killed_ranks(tmp_path, undisturbed):
    moments, progress = random.Random(1), Progress(tmp_path / "run")
    for _ in range(KILLS):
        with job(2, "mpi_fit.py", progress.file) as process:
            pids = wait_for_start(process, 2)
            _, used = children_and_segments(*pids)
            time.sleep(moments.uniform(0, 0.1))
            os.kill(moments.choice(pids), signal.SIGKILL)
            out, _ = process.communicate(timeout=20)
            assert "done" not in out
            assert process.returncode != 0
            assert wait_for_end(pids)
        for path in used:
            path.unlink(missing_ok=True)  # MPICH does not remove its shared memory
        progress.check()
    with job(2, "mpi_fit.py", progress.file) as process:
        out, err = process.communicate(timeout=40)
    assert process.returncode == 0, err
    check_end(json.loads(out.split("done ")[1]), undisturbed, progress)


# ---------------------------------------------------------------- the driver
@pytest.fixture
def forks():
    """A process that has imported everything and forks fits."""
    process = subprocess.Popen(
        [sys.executable, HERE / "mpi_fit.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    yield process
    process.communicate(timeout=20)


def request(process, kind, file):
    process.stdin.write(f"{kind} {file}\n")
    process.stdin.flush()


@pytest.mark.skipif(not SHARED.exists(), reason="no listing of shared memory on this system")
def test_fit_resumes_after_killed_drivers(tmp_path, undisturbed, forks):
    moments, progress = random.Random(2), Progress(tmp_path / "run")
    for kind in ["threads", "processes"]:
        request(forks, kind, progress.file)
        (pid,) = wait_for_start(forks, 1)
        children, used = children_and_segments(pid)
        assert (len(children) >= 2) == (kind == "processes")
        time.sleep(moments.uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
        assert forks.stdout.readline() == "over -9\n"
        assert wait_for_end(children)
        assert not any(path.exists() for path in used)
        progress.check()
    request(forks, "serial", progress.file)
    wait_for_start(forks, 1)
    check_end(json.loads(forks.stdout.readline().removeprefix("done ")), undisturbed, progress)
    assert forks.stdout.readline() == "over 0\n"
