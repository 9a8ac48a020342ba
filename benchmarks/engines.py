"""Overhead of a round: w is sent to two workers, and each returns a gradient of the same length.

    OMP_NUM_THREADS=1 python -m benchmarks.engines [--floats 50000] [--rounds 300] [--only processes mpi dask]

The function that runs on the shards returns an existing array, so that the only computation is the sum of two
arrays. Printed are minimum and median in milliseconds, also for a single float, which is the latency. Ordered
sums are bitwise equal for all executors; the others sum at the workers first, or as MPI does. MPI is started
by the environment's mpiexec; Dask as a LocalCluster with processes, over TCP; Spark as a local-cluster of two
workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import riskmin as rm
from benchmarks.harness.script import print_head, script_parser
from riskmin.arrays.matrix import as_matrix

WORKERS = 2
ENGINES = ("serial", "threads", "processes", "mpi", "dask", "spark")


# ---------------------------------------------------------------- functions that run on the shards
def prepare(shard, floats):
    shard.cache["result"] = 1.0, np.random.default_rng(0).standard_normal(floats)


def stored_result(shard, w):
    return shard.cache["result"]


# ---------------------------------------------------------------- measurements
def shards(n=WORKERS):
    return [rm.Shard(as_matrix(np.ones((2, 2))), np.ones(2), np.ones(2), {}) for _ in range(n)]


def measure(executor, floats, rounds):
    """The seconds of each round."""
    executor.map(prepare, floats)
    w, times = np.random.default_rng(1).standard_normal(floats), []
    for k in range(rounds + 5):
        start = time.perf_counter()
        executor.sum(stored_result, w)
        if k >= 5:  # the first rounds allocate buffers and connect
            times.append(time.perf_counter() - start)
    return times


def latencies(executor, floats, rounds):
    """Minimum and median seconds, for one float and for `floats` floats."""
    seconds = [measure(executor, size, rounds) for size in (1, floats)]
    return [f(times) for times in seconds for f in (min, np.median)]


def mpiexec():
    """The mpiexec next to the Python executable, else the one on the path."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def on_ranks(module, *options, ranks=WORKERS):
    """Run an MPI job and return the JSON that rank 0 prints."""
    command = [mpiexec(), "-n", str(ranks), sys.executable, "-m", module, *map(str, options)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def rank(ordered, floats, rounds):
    """The program of one rank."""
    from riskmin.executors.mpi.executor import Spmd

    settings = Spmd(ordered=ordered)
    seconds = latencies(settings.place(shards()), floats, rounds)
    if settings.rank == 0:
        print(json.dumps(seconds))


def on_mpi(floats, rounds):
    for ordered in (True, False):
        options = ["--rank", "ordered" if ordered else "allreduce", "--floats", floats, "--rounds", rounds]
        yield f"`Spmd(ordered={ordered})`", on_ranks("benchmarks.engines", *options)


def on_dask(floats, rounds, workers=WORKERS, orders=(True, False)):
    from distributed import Client, LocalCluster

    from riskmin.executors.dask.executor import DaskExecutor

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for ordered in orders:
            executor = DaskExecutor(client, ordered=ordered)(shards(workers))
            yield f"`DaskExecutor(ordered={ordered})`", latencies(executor, floats, rounds)
            executor.close()


def on_spark(floats, rounds, numbers=(WORKERS,)):
    """Two worker processes of Spark, with cores for each of these numbers of tasks."""
    from benchmarks import spark

    session = spark.session(2, max(numbers) // 2)
    try:
        for n_tasks in numbers:
            executor = rm.SparkExecutor(session, n_workers=n_tasks, patience=300)
            yield "`SparkExecutor()`", latencies(executor.place(shards(n_tasks)), floats, rounds)
            executor.close()
    finally:
        session.stop()


def rows(only, floats, rounds):
    """Names of executors and their seconds."""
    local = {
        "serial": rm.Serial,
        "threads": rm.Threads(n_workers=WORKERS),
        "processes": rm.Processes(n_workers=WORKERS),
    }
    for name, settings in local.items():
        if name in only:
            executor = settings.place(shards())
            yield f"`{type(executor).__name__}`", latencies(executor, floats, rounds)
            del executor
    if "mpi" in only:
        yield from on_mpi(floats, rounds)
    if "dask" in only:
        yield from on_dask(floats, rounds)
    if "spark" in only:
        yield from on_spark(floats, rounds)


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--floats", type=int, default=50_000, help="the length of w")
    parser.add_argument("--rounds", type=int, default=300, help="number of rounds timed")
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--rank", choices=("ordered", "allreduce"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank == "ordered", args.floats, args.rounds)
        return
    print_head(f"executor | 1 float, minimum | median | {args.floats} floats, minimum | median")
    for name, times in rows(args.only, args.floats, args.rounds):
        print(f"| {name} | " + " | ".join(f"{1e3 * seconds:.2f}" for seconds in times) + " |", flush=True)


if __name__ == "__main__":
    main()
