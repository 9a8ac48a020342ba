"""Put the tests' modules on the path, restore signals, sample the sweeps, and define the `run` fixture."""

import math
import os
import random
import signal
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# A shell starts background jobs with SIGINT ignored, `nohup` ignores SIGHUP, and children inherit both:
# tests of interruption would wait forever.
if os.name == "posix" and threading.current_thread() is threading.main_thread():
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)


SLOW = (
    "owners/",
    "faults/",
    "executors/test_dask",
    "executors/test_mpi",
    "executors/test_spark",
    "spark/test_frames",
    "project/",
    "test_docs.py",
)
"""Tests of processes, clusters, benchmarks and pages, all of which `make test-slow` runs."""


def pytest_collection_modifyitems(config, items):
    """Mark the slow folders; keep sqrt(n) of n exhaustive cases, by a seed (``RISKMIN_SWEEPS=all``: all)."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder) and item.path.relative_to(folder).as_posix().startswith(SLOW):
            item.add_marker("slow")
    if os.environ.get("RISKMIN_SWEEPS") == "all":
        return
    sweeps = defaultdict(list)
    for item in items:
        if item.get_closest_marker("exhaustive"):
            sweeps[item.nodeid.partition("[")[0]].append(item.nodeid)
    # the seed is the name, so that all workers agree
    dropped = {
        case
        for name, cases in sweeps.items()
        for case in random.Random(name).sample(sorted(cases), len(cases) - round(math.sqrt(len(cases))))
    }
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in dropped])
    items[:] = [item for item in items if item.nodeid not in dropped]


@pytest.fixture
def run(capsys):
    """Run the command in this process; return its exit code, stdout and stderr."""
    from riskmin.cli import main

    def call(*args):
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Data and models for the tests of commands, which no test changes."""
    from command_files import write_files

    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="session")
def spark():
    """A Spark session with two worker processes of one core, for all tests of this process."""
    from spark_session import started

    with started() as session:
        yield session
