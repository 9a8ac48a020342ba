"""Processes killed at counted points: files are old or new, and runs are resumed.

These tests run a few kills of some kinds; `make kills` runs 200 per kind and signal.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from faults.families import FAMILIES, rows_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

HERE = Path(__file__).parents[1]
MODULES = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))


def run(*arguments):
    """Run Python on the tests' modules, in a process without threads: exit code, stdout and stderr."""
    environment = os.environ | {"PYTHONPATH": MODULES, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    return done.returncode, done.stdout, done.stderr


def test_kills():
    kinds = (
        "convert --force svmlight",
        "model",
        "fit",
        "checkpoint lbfgs on squared",
        "checkpoint auto on ROC area",
    )
    options = [option for kind in kinds for option in ("--kind", kind)]
    code, out, err = run("-m", "faults.kills", "--kills", "1", "--seed", "3", *options)
    assert (code, err) == (0, "")
    struck = json.loads(out.splitlines()[-1])["struck, and all intact or resumed"]
    assert struck == {"SIGKILL": 5, "SIGTERM": 5, "SIGINT": 5, "power": 3}


WITH_WORKERS = """
import os, signal, sys
import numpy as np

def pid(shard, message):
    return os.getpid()

def callback(it, row):
    pids = workers.map(pid, np.ones(100_000))
    if row["iteration"] == 1:
        os.kill(pids[0], signal.SIGINT)  # it is for the driver: workers go on
    else:
        print(*(open(f"/proc/{p}/maps").read() for p in (os.getpid(), *pids)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    import riskmin as rm
    from faults.families import FAMILIES

    problem = FAMILIES["bundle on squared"].case.problem
    objective = problem.objective(executor=rm.Processes(n_workers=2), n_shards=2)
    workers = objective.risk.executor
    rm.minimize(objective, rm.Bundle(), callback=callback, checkpoint=rm.Checkpoint(sys.argv[1], every=0.0))
"""


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="no listing of shared memory on this system")
def test_the_workers_of_a_killed_driver_end_and_its_run_is_resumed(tmp_path):
    """The output of the driver ends with the last process that holds it; no shared memory remains."""
    (tmp_path / "script.py").write_text(WITH_WORKERS)
    code, out, err = run(str(tmp_path / "script.py"), str(tmp_path / "run"))
    assert code == -9, err
    used = set(re.findall(r"/dev/shm/psm_\S+", out))
    assert used
    assert not any(Path(path).exists() for path in used)
    family = FAMILIES["bundle on squared"]
    assert rows_of(tmp_path / "run") >= 1
    result = family.run(tmp_path / "run")
    family.check(result)
    assert result.n_iter >= 2
