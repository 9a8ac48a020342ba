"""A fit that fault tests kill at any moment and resume from its checkpoint.

`mpiexec -n 2 python mpi_fit.py FILE` runs one fit on ranks. `python mpi_fit.py` forks one fit for each line
"EXECUTOR FILE" of stdin, so that modules are imported only once.
"""

import json
import os
import sys
import time

if len(sys.argv) > 1:
    from mpi4py import MPI as MPI  # first: if a rank exits before MPI is initialized, the others wait forever

import numpy as np

import riskmin as rm
from riskmin.executors import as_backend

TOL = 1e-6
PAUSE = 0.005


class Rows:
    """A matrix in plain NumPy: importing the compiled ones takes as long as the fit."""

    block_rows = 100

    def __init__(self, X):
        self.X, self.shape = X, X.shape

    def scores(self, w, start, stop):
        return self.X[start:stop] @ w

    def pullback(self, dz, start, stop, out):
        out += dz @ self.X[start:stop]


def objective(executor):
    """Four shards of 100 rows each, with a regularization strength that needs some hundred steps."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 40))
    y = np.where(X[:, 0] + rng.standard_normal(400) > 0, 1.0, -1.0)
    c = np.full(100, 1 / 400)
    shards = [rm.Shard(rm.as_matrix(Rows(X[k : k + 100])), y[k : k + 100], c, {}) for k in range(0, 400, 100)]
    return rm.Objective(
        rm.Risk(rm.Hinge(), rm.SingleOutput(), as_backend(executor).place(shards), 40), rm.L2(), 1e-5
    )


def fit(executor, file):
    """Print when the fit starts, pause at each step, and print the result."""
    started = []

    def callback(it, row):
        if not started:
            started.append(print(f"<go {os.getpid()}>", flush=True))
        time.sleep(PAUSE)

    obj = objective(executor)
    result = rm.minimize(
        obj, rm.Bundle(), tol=TOL, callback=callback, checkpoint=rm.Checkpoint(file, every=0.0)
    )
    if getattr(obj.risk.executor, "rank", 0) == 0:
        names = ("status", "value", "lower", "n_iter")
        # in one call, since lines of two ranks may mix otherwise
        sys.stdout.write(f"done {json.dumps({name: getattr(result, name) for name in names})}\n")
        sys.stdout.flush()


def serve():
    """Fork a fit for each line, and print its exit code."""
    executors = {
        "serial": rm.Serial(),
        "threads": rm.Threads(n_workers=2),
        "processes": rm.Processes(n_workers=2),
    }
    for line in sys.stdin:
        kind, file = line.split()
        pid = os.fork()
        if pid == 0:
            fit(executors[kind], file)
            sys.exit()
        print("over", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        from riskmin import Spmd

        fit(Spmd(), sys.argv[1])
    else:
        serve()
