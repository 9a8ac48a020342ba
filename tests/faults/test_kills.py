"""Processes killed at counted points: files are old or new, and runs are resumed.

These tests run a few kills of each kind; `make kills` runs 200 per kind and signal.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

HERE = Path(__file__).parents[1]


def kill(kills, *kinds):
    """Run kills of these kinds in a separate single-threaded process; returns how many signals were sent."""
    modules = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    options = [option for kind in kinds for option in ("--kind", kind)]
    completed = subprocess.run(
        [sys.executable, "-m", "faults.kills", "--kills", str(kills), "--seed", "3", *options],
        capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": modules, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    return json.loads(completed.stdout.splitlines()[-1])["struck, and all intact or resumed"]


def test_kills():
    struck = kill(3, "convert --force svmlight", "checkpoint Lbfgs")
    assert struck == {"SIGKILL": 6, "SIGTERM": 6, "SIGINT": 6, "power": 3}


@pytest.mark.exhaustive
def test_kills_of_workers_and_their_driver():
    struck = kill(2, "worker of Processes", "driver of Processes", "model", "fit", "checkpoint Auto")
    assert struck == {"SIGKILL": 10, "SIGTERM": 10, "SIGINT": 10, "power": 4}


@pytest.mark.exhaustive
def test_lost_content_is_detected():
    """A file written in place is neither old nor new after a kill."""
    code = (
        "import contextlib, pathlib, signal, random\n"
        "from faults import kills\n"
        "import riskmin.core.atomic_files as files\n"
        "@contextlib.contextmanager\n"
        "def in_place(path):\n"
        "    pathlib.Path(path).unlink(missing_ok=True)\n"
        "    with files.create(pathlib.Path(path)) as file: yield file\n"
        "files.atomic_write = in_place\n"
        "for k in range(40): kills.kill_operation('text', signal.SIGKILL, random.Random(k))\n"
    )
    modules = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": modules},
    )  # fmt: skip
    assert completed.returncode == 1
    assert "out.txt is neither old nor new" in completed.stderr
