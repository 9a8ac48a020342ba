"""A fit that fault tests kill at any moment and resume: `mpiexec -n 2 python mpi_fit.py CHECKPOINT`."""

import json
import os
import sys
import time

if __name__ == "__main__":
    from mpi4py import MPI as MPI  # first: if a rank exits before MPI is initialized, the others wait forever

import riskmin as rm
from helpers import Problem

TOL = 1e-6
PAUSE = 0.005


def objective(executor):
    """Four shards of 100 rows each, with a regularization strength that needs some hundred steps."""
    return Problem(lam=1e-5, n=400, p=40).objective(executor=executor, n_shards=4)


def fit(executor, file):
    """Print when the fit starts, pause at each step, and print the result."""
    started = []

    def callback(it, row):
        if not started:
            started.append(print(f"<go {os.getpid()}>", flush=True))
        time.sleep(PAUSE)

    save = rm.Checkpoint(file, every=0.0)
    result = rm.minimize(objective(executor), rm.Bundle(), tol=TOL, callback=callback, checkpoint=save)
    if executor.rank == 0:
        names = ("status", "value", "lower", "n_iter")
        # in one call, since lines of two ranks may mix otherwise
        sys.stdout.write(f"done {json.dumps({name: getattr(result, name) for name in names})}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    fit(rm.Spmd(), sys.argv[1])
