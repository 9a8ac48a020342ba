"""Fits of a Spark DataFrame on two workers beside MLlib: seconds, objective reached, and its proved gap.

    python -m benchmarks.spark [--rows 200000] [--columns 50] [--repeat 3] [--markdown]

Both fit the same Parquet folder by `local-cluster[2,1,1024]` at their default tolerances, in turns. J is
computed here from the rows, for both: lam Omega(w) + R(w, b), with the penalty of MLlib without
standardization. The gap is J less the lower bound that riskmin proves, relative to J. CPU seconds are those
of all processes of the session, Java and Python, since other work on the machine changes the time of a fit.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import riskmin as rm
from benchmarks.harness.script import print_head, script_parser
from riskmin.core import NDArray
from riskmin.spark import SparkEstimator

LAM, L1_RATIO = 1e-3, 0.5
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(workers: int = 2, cores: int = 1) -> Any:
    """A session of Spark with real worker processes of 1 GB each."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local-cluster[{workers},{cores},1024]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    started = builder.config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", "")).getOrCreate()
    started.sparkContext.setLogLevel("OFF")
    return started


# ---------------------------------------------------------------- data and fits
def write_rows(folder: Path, n: int, p: int) -> tuple[NDArray, NDArray, NDArray]:
    """Write 16 Parquet files with a column of arrays, and two of labels; return X and both labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p)) * np.geomspace(0.1, 3, p)
    z = X @ (rng.standard_normal(p) * (rng.random(p) < 0.5)) / np.sqrt(p)
    label = (z + rng.logistic(size=n) > 1).astype(float)
    target = z + rng.standard_t(3, size=n)
    target /= target.std(ddof=1)  # MLlib divides lam by this deviation for L2
    for k, rows in enumerate(np.array_split(np.arange(n), 16)):
        features = pa.FixedSizeListArray.from_arrays(X[rows].ravel(), p).cast(pa.list_(pa.float64()))
        table = pa.table({"features": features, "label": label[rows], "target": target[rows]})
        pq.write_table(table, folder / f"{k:02}.parquet")
    return X, label, target


class Task(NamedTuple):
    """A problem that riskmin solves, and MLlib, if it can."""

    name: str
    ours: Any
    label: str
    theirs: Callable[[], Any] | None


def tasks() -> list[Task]:
    from pyspark.ml.classification import LinearSVC, LogisticRegression
    from pyspark.ml.regression import LinearRegression

    elastic = {"alpha": LAM * (1 - L1_RATIO), "regularizer": rm.Elastic(L1_RATIO / (1 - L1_RATIO))}
    l2 = {"alpha": LAM, "regularizer": "l2"}
    plain = {"regParam": LAM, "standardization": False}
    net = plain | {"elasticNetParam": L1_RATIO}
    found = []
    for name, settings, more in (("L2", l2, plain), ("elastic net", elastic, net)):
        logistic, squared = (
            rm.LinearClassifier("logistic", **settings),
            rm.LinearRegressor("squared", **settings),
        )
        lines = partial(LinearRegression, labelCol="target", **more)
        found += [
            Task(f"logistic, {name}", logistic, "label", partial(LogisticRegression, **more)),
            Task(f"least squares, {name}", squared, "target", lines),
        ]
    quantile = rm.LinearRegressor("quantile:level=0.9", **l2)
    return [
        *found,
        Task("linear SVC", rm.LinearClassifier("hinge", **l2), "label", partial(LinearSVC, **plain)),
        Task("quantile 0.9, L2", quantile, "target", None),
        Task("ROC area, L2", rm.LinearClassifier("roc_area", **l2), "label", None),
    ]


def objective(task: Task, X: NDArray, y: NDArray, w: NDArray, b: float) -> float:
    """J at (w, b), from the rows in this process."""
    from riskmin.losses import get_loss
    from riskmin.regularizers import get_regularizer

    model = task.ours
    signs = np.where(y > 0, 1.0, -1.0) if task.label == "label" else y
    risk = rm.linear_risk(np.column_stack([X, np.ones(len(y))]), signs, get_loss(model.loss))
    penalty = get_regularizer(model.regularizer) if isinstance(model.regularizer, str) else model.regularizer
    return float(model.alpha * penalty.value(w) + risk(np.append(w, b))[0])


def cpu_seconds() -> float:
    """CPU seconds of this process and all that it started."""
    import psutil

    me = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in [me, *me.children(recursive=True)])


def timed(f: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return f(), its seconds, and its CPU seconds."""
    start, used = time.perf_counter(), cpu_seconds()
    result = f()
    return result, time.perf_counter() - start, cpu_seconds() - used


def cells(task: Task, frames: Any, data: tuple[NDArray, NDArray, NDArray], repeat: int) -> list[str]:
    """Return the cells of the table: medians of the times, and J and gap of the last fits."""
    X, label, target = data
    y = label if task.label == "label" else target
    arrays, vectors = frames
    ours = SparkEstimator(task.ours, label=task.label)
    times: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for _ in range(repeat):
        model, *spent = timed(lambda: ours.fit(arrays).estimator_)
        times["ours"].append(tuple(spent))
        if task.theirs is not None:
            fitted, *spent = timed(lambda: task.theirs().fit(vectors))
            times["theirs"].append(tuple(spent))
    lower = model.lower_bound_

    def row(kind: str, J: float) -> list[str]:
        seconds, cpu = np.median(times[kind], axis=0)
        return [f"{seconds:.1f}", f"{cpu:.1f}", f"{J:.6f}", f"{(J - lower) / J:.1e}"]

    result = row("ours", objective(task, X, y, np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])))
    if task.theirs is None:
        return [*result, "", "", "", ""]
    return result + row("theirs", objective(task, X, y, fitted.coefficients.toArray(), fitted.intercept))


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    spark = session()
    try:
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql.functions import col

        with tempfile.TemporaryDirectory() as folder:
            data = write_rows(Path(folder), args.rows, args.columns)
            arrays = spark.read.parquet(folder)
            vectors = arrays.withColumn("features", array_to_vector(col("features")))
            print_head("problem | s | CPU s | J | proved gap | MLlib s | CPU s | J | gap, by our bound")
            for task in tasks():
                row = cells(task, (arrays, vectors), data, args.repeat)
                print(f"| {task.name} | " + " | ".join(row) + " |", flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
