"""What all tests of executors share: one pair of processes, one Dask cluster and one MPI job per session."""

import re

import pytest

from dask_forks import Forks
from helpers import shards
from mpi_jobs import job, mpiexec
from riskmin import DaskExecutor, Processes, Serial, SparkExecutor, Threads


@pytest.fixture(scope="session")
def forks():
    """A process that forks Dask schedulers and workers."""
    pytest.importorskip("distributed")
    with Forks() as server:
        yield server


@pytest.fixture(scope="session")
def client(forks):
    """A client of two workers, each a process with one thread."""
    from distributed import Client

    _, address = forks.scheduler()
    for _ in range(2):
        forks.worker(address)
    with Client(address, set_as_default=False) as connected:
        connected.wait_for_workers(2)
        yield connected


slow = pytest.mark.slow
REMOTE = [
    pytest.param("processes", marks=slow),
    pytest.param("dask", marks=slow),
    pytest.param("spark", marks=slow),
]
KINDS = ["serial", "threads", *REMOTE]


@pytest.fixture(scope="session", params=KINDS)
def backend(request):
    """Each kind of executor."""
    if request.param == "dask":
        yield DaskExecutor(request.getfixturevalue("client"))
        return
    if request.param == "spark":
        executor = SparkExecutor(request.getfixturevalue("spark"))
        yield executor
        executor.close()
        return
    yield {"serial": Serial(), "threads": Threads(2), "processes": Processes(2)}[request.param]


@pytest.fixture(scope="session")
def placed(backend):
    """Five shards in each kind of executor."""
    executor = backend.place(shards())
    yield executor
    getattr(executor, "close", lambda: None)()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """All checks of mpi_checks.py on two ranks: what they print, and (passed, errors) by name."""
    if mpiexec() is None:
        pytest.skip("there is no mpiexec")
    with job(2, "mpi_checks.py", tmp_path_factory.mktemp("ranks")) as process:
        out, err = process.communicate(timeout=120)
    found = re.findall(r"^(passed|failed) (\w+) .*\n((?:    .*\n)*)", out, re.MULTILINE)
    return out, err, process.returncode, {name: (ends, errors) for ends, name, errors in found}
