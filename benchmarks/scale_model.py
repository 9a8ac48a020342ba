"""Model of the cost of a round on a large cluster: the tables of docs/scaling.md.

`write` measures the constants on this machine and saves them in scale_constants.json; `tables` predicts from
them.
"""

from __future__ import annotations

import json
import time
from itertools import product
from pathlib import Path

import numpy as np

import riskmin as rm
from riskmin.executors.base import sum_arrays

FILE = Path(__file__).with_name("scale_constants.json")
BANDWIDTH = 1.25e9
"""Assumed bandwidth of a machine in bytes per second, full duplex (10 Gbit/s). All else is measured."""
TERABYTE, WORKERS = 1e12, 1000
TREE_BROADCAST_BYTES = 2**25
"""Bytes of w times workers above which Dask sends w to one worker, and from there to the others."""
CONSTANTS = {
    "dense": "a pass over X, dense float32, 1000 columns: per stored entry",
    "sparse": "a pass over X, sparse float32, a million columns, 100 entries per row: per stored entry",
    "add": "adding a gradient to a sum: per float",
    "bundle": "`Bundle`, its own part of an iteration: per float of w",
    "lbfgs": "`Lbfgs`, its own part of an iteration: per float of w",
    "roc_area": "`RocArea`, value and gradient in the scores: per row",
    "mpi": "`Spmd`, a round between two ranks",
    "dask": "`DaskExecutor`, a round with two workers",
    "dask_worker": "the same, per additional worker (eight workers on two cores)",
    "spark": "`SparkExecutor`, a round with two tasks",
    "spark_task": "the same, per additional task (eight tasks on two cores)",
    "lbfgs_rounds": "logistic, `Lbfgs`, 20 000 dense rows, 1000 columns, lam 0.01, tol 1e-3: rounds",
    "lbfgs_gradients": "of these with a gradient",
    "bundle_rounds": "hinge, `Bundle`, the same rows: rounds",
    "bundle_gradients": "of these with a gradient",
}


# ---------------------------------------------------------------- constants
def fastest(f, rounds=7):
    """Minimum CPU seconds of a call, after a first call that compiles."""
    f()
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        f()
        times.append(time.thread_time() - start)
    return min(times)


def pass_over(X):
    """Seconds per stored entry for value and gradient of the hinge loss, with all rows active."""
    y = np.where(np.arange(X.shape[0]) % 2, 1.0, -1.0)
    risk, w = rm.linear_risk(X, y, "hinge", n_shards=1), np.zeros(X.shape[1])
    return fastest(lambda: risk(w)) / (X.nnz if hasattr(X, "nnz") else X.size)


def solver_step(solver, p=1_000_000, iterations=30):
    """Seconds of a solver's own computation, per iteration and float of w."""
    from benchmarks.kernels import sparse
    from benchmarks.scale import Metered

    X = sparse(200, p, 50)
    y = np.where(np.arange(200) % 2, 1.0, -1.0)
    risk = rm.linear_risk(X, y, rm.Logistic(), executor=Metered(rm.Serial), n_shards=1)
    risk.executor.clear()
    result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-4), solver, tol=0.0, max_iter=iterations)
    return risk.executor.solver_seconds / result.n_iter / p


def loss_seconds(loss, y, n):
    z, c = np.random.default_rng(0).standard_normal(n), np.full(n, 1 / n)
    return fastest(lambda: loss.value_grad(z, y, c), 3) / n


def rounds_of(loss, solver):
    """Number of rounds of a fit whose rows are not in this process, and of those with a gradient."""
    from benchmarks.scale import Metered, drawn

    X, z, *_ = drawn()
    y, long = np.where(z > 0, 1.0, -1.0), []

    class Gradients(Metered):
        def __call__(self, shards):
            return Gradients(self.executor, super().__call__(shards).placed)

        def _call(self, method, f, args, each):
            before = self.floats
            result = super()._call(method, f, args, each)
            long.append(self.floats - before >= X.shape[1])
            return result

    risk = rm.linear_risk(X, y, loss, executor=Gradients(rm.Serial), fit_intercept=True)
    result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-2), solver, tol=1e-3)
    assert result.status == "converged", result
    return len(long), sum(long)


def measured():
    from benchmarks import engines
    from benchmarks.kernels import dense, sparse

    arrays = [np.ones(1_000_000) for _ in range(8)]
    n = 1_000_000
    rounds = dict(engines.on_mpi(1, 200))
    two, eight = (next(engines.on_dask(1, 200, workers, [True]))[1][0] for workers in (2, 8))
    pair, octet = (times[0] for _, times in engines.on_spark(1, 200, (2, 8)))
    lbfgs, bundle = rounds_of("logistic", rm.Lbfgs()), rounds_of("hinge", rm.Bundle())
    return {
        "dense": pass_over(dense(20_000, 1000, np.float32)),
        "sparse": pass_over(sparse(100_000, 1_000_000, 100, np.float32)),
        "add": fastest(lambda: sum_arrays(arrays)) / 7 / 1_000_000,
        "bundle": solver_step(rm.Bundle()),
        "lbfgs": solver_step(rm.Lbfgs()),
        "roc_area": loss_seconds(rm.RocArea(), np.where(np.arange(n) % 10, -1.0, 1.0), n),
        "mpi": rounds["`Spmd(ordered=True)`"][0],
        "dask": two,
        "dask_worker": (eight - two) / 6,
        "spark": pair,
        "spark_task": (octet - pair) / 6,
        "lbfgs_rounds": lbfgs[0],
        "lbfgs_gradients": lbfgs[1],
        "bundle_rounds": bundle[0],
        "bundle_gradients": bundle[1],
    }


def write():
    """Measure the constants, and save them with three digits."""
    values = {
        name: value if isinstance(value, int) else float(f"{value:.3g}") for name, value in measured().items()
    }
    FILE.write_text(json.dumps(values, indent=2) + "\n")
    print(constants_table(values))


def constants():
    return json.loads(FILE.read_text())


# ---------------------------------------------------------------- predictions
DATA = {
    "dense": {"p": 1000, "row": 4 * 1000, "nnz": 1000},
    "sparse": {"p": 1_000_000, "row": 8 * 100 + 8, "nnz": 100},  # values, indices, row pointer
}


def round_of(k, kind, engine, pairs, workers=WORKERS, n=None, solver="bundle"):
    """The parts of the critical path of one round, in seconds; n rows, a terabyte by default."""
    data = DATA[kind]
    n, p = TERABYTE / data["row"] if n is None else n, data["p"]
    parts = {"pass": k[kind] * data["nnz"] * n / workers}
    rounds = 2 if pairs else 1
    if engine != "MPI":
        latency, more = {"Dask": ("dask", "dask_worker"), "Spark": ("spark", "spark_task")}[engine]
        parts["latency"] = rounds * (k[latency] + k[more] * (workers - 2))
        tree = engine == "Dask" and 8 * p * workers > TREE_BROADCAST_BYTES
        down = rounds * 8 * p * (np.log2(workers) if tree else workers)
        parts["network"] = (8 * p * workers + down + (16 * n if pairs else 0)) / BANDWIDTH
        parts["sum"] = k["add"] * p * workers
    else:
        parts["latency"] = rounds * k["mpi"] * np.log2(workers)
        parts["network"] = (16 * p + (8 * n if pairs else 0)) / BANDWIDTH
        parts["sum"] = k["add"] * p
    parts["loss"] = k["roc_area"] * n if pairs else 0.0
    parts["solver"] = k[solver] * p
    return parts


def seconds(x):
    return "" if x == 0 else f"{x:.2g}" if x < 10 else f"{x:.0f}"


def rounds_table(k):
    head = "X | workers | executor | loss | pass | latency | network | sum | loss of all rows | solver | all"
    lines = [f"| {head} | longest |", "| --- |" + " --- |" * 11]
    cases = [
        (kind, WORKERS, by, pairs)
        for kind in DATA
        for pairs in (False, True)
        for by in ("Dask", "Spark", "MPI")
    ]
    cases += [(kind, 100, "Dask", False) for kind in DATA]
    for kind, workers, engine, pairs in cases:
        parts = round_of(k, kind, engine, pairs, workers)
        cells = [seconds(x) for x in (*parts.values(), sum(parts.values()))]
        loss = "ROC area" if pairs else "hinge"
        longest = max(parts, key=parts.get)
        lines.append(f"| {kind} | {workers} | {engine} | {loss} | " + " | ".join(cells) + f" | {longest} |")
    return "\n".join(lines)


def size(x):
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if x >= unit:
            return f"{x / unit:.3g} {name}"
    return f"{x:.0f} B"


def bytes_table():
    lines = [
        "| X | rows | w to a worker, and a gradient back: each | gradients into one driver | scores, or an "
        "n-vector | labels and weights |",
        "| --- |" + " --- |" * 5,
    ]
    for kind, data in DATA.items():
        n, p = TERABYTE / data["row"], data["p"]
        cells = [f"{n:.3g}", *map(size, (8 * p, 8 * p * WORKERS, 8 * n, 16 * n))]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def constants_table(k):
    def value(x):
        if isinstance(x, int):
            return str(x)
        return f"{1e9 * x:.3g} ns" if x < 1e-5 else f"{1e3 * x:.3g} ms"

    rows = [f"| {text} | {value(k[name])} |" for name, text in CONSTANTS.items()]
    return "\n".join(["| what | time |", "| --- | --- |", *rows])


PLAN = [(1e9, 10), (1e9, 1000), (1e11, 10), (1e11, 1000)]
"""Numbers of rows and of workers."""


def fit_of(k, engine, solver, n, workers):
    """The parts of the critical path of a fit of dense rows, in seconds.

    A gradient comes with one product X d for a line search, half a pass; all rounds have the
    latency.
    """
    parts = round_of(k, "dense", engine, False, workers, n, solver)
    latency = k[f"{solver}_rounds"] * parts.pop("latency")
    return {"latency": latency} | {
        name: k[f"{solver}_gradients"] * x * (1.5 if name == "pass" else 1) for name, x in parts.items()
    }


def plan_table(k):
    """Whole fits of dense rows with 1000 columns in float32."""
    head = "rows | workers | X, each worker | labels and weights | problem | rounds | gradients"
    lines = [
        f"| {head} | into the driver | a pass | Spark | Dask | MPI | longest, Spark |",
        "| --- |" + " --- |" * 12,
    ]
    data = DATA["dense"]
    for (n, workers), (problem, solver) in product(PLAN, (("logistic", "lbfgs"), ("hinge", "bundle"))):
        fits = [fit_of(k, engine, solver, n, workers) for engine in ("Spark", "Dask", "MPI")]
        gradients, driver = k[f"{solver}_gradients"], 8 * data["p"] * workers
        counts = [str(workers), size(n * data["row"] / workers), size(16 * n), problem]
        counts += [str(k[f"{solver}_rounds"]), str(gradients), size(gradients * driver)]
        one_pass = seconds(round_of(k, "dense", "Spark", False, workers, n)["pass"])
        totals = [seconds(sum(parts.values())) for parts in fits]
        lines.append(
            "| " + " | ".join([f"{n:.0e}", *counts, one_pass, *totals, max(fits[0], key=fits[0].get)]) + " |"
        )
    return "\n".join(lines)


def tables():
    """All tables of the page, separated by blank lines."""
    k = constants()
    return "\n\n".join([constants_table(k), bytes_table(), rounds_table(k), plan_table(k)])
