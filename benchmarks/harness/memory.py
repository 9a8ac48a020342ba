"""Memory of a fit beyond its data, measured in a separate process per solver.

    python -m benchmarks.harness.memory FILE TASK LAM SOLVER TOL STEPS SECONDS

FILE holds X and y. The result is the peak of resident memory during the fit minus the resident memory before
it, which includes the interpreter, the packages, kernels compiled by a few steps, and X in the solver's
format.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

STATUS = Path("/proc/self/status")


def save(X, y, file):
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr} if sp.issparse(X) else {"X": X}
    np.savez(file, y=y, shape=X.shape, **parts)


def load(file):
    with np.load(file) as arrays:
        if "X" in arrays:
            return arrays["X"], arrays["y"]
        parts = (arrays["data"], arrays["indices"], arrays["indptr"])
        return sp.csr_array(parts, shape=tuple(arrays["shape"])), arrays["y"]


def resident(which):
    """VmRSS or VmHWM in bytes; without /proc, the peak of the process for both."""
    if STATUS.exists():
        return 1024 * int(re.search(rf"{which}:\s*(\d+)", STATUS.read_text()).group(1))
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_peak():
    """Reset the peak to the present memory, if the system supports it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def measure(X, y, task, lam, name, rung, seconds):
    """Bytes before the fit, and the peak of the bytes added by it."""
    from benchmarks.harness.peers import PEERS
    from benchmarks.harness.racers import LEVELS, Mine, Problem, Theirs

    problem = Problem(task, X, y, lam, seconds)
    racer = Theirs(PEERS[name]) if name in PEERS else Mine(name)
    racer.warm_up(problem)
    mine = isinstance(racer, Mine)
    fit = partial(racer.race, problem, 0.0) if mine else partial(racer.climb, problem, rung)
    forget_peak()
    before = resident("VmRSS")
    fit()
    return {"before": before, "more": max(0, resident("VmHWM") - before), "level": LEVELS[-1]}


def add(cell, X, y, seconds):
    """Measure each solver of a cell that reached some level."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        save(X, y, file)
        for name, result in cell["solvers"].items():
            rung = min(result["rungs"], key=lambda one: one["J"]) if result["kind"] == "peer" else {}
            at = [
                cell["task"],
                repr(cell["strength"]),
                name,
                repr(rung.get("tol", 0.0)),
                str(rung.get("steps", 0)),
            ]
            command = [sys.executable, "-m", "benchmarks.harness.memory", str(file), *at, str(seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                result["memory"] = json.loads(done.stdout.splitlines()[-1])


def main():
    from benchmarks.harness.peers import Rung
    from benchmarks.harness.tasks import TASKS

    file, task, lam, name, tol, steps, seconds = sys.argv[1:]
    X, y = load(file)
    rung = Rung(float(tol), int(steps))
    print(json.dumps(measure(X, y, TASKS[task], float(lam), name, rung, float(seconds))))


if __name__ == "__main__":
    main()
