"""Test for memory leaks: ten thousand fits in one process, and ten thousand iterations in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.soak [--fits 10000] [--iterations 10000] [--out soak.json]

Estimators of all kinds are fitted to small data in turn; resident memory (RSS, from /proc/self/statm) is
sampled every few dozen fits. The first fifth is ignored, since caches fill; for the remaining samples the
slope of the least-squares line is printed, in MB per thousand fits, and the largest RSS. The same is measured
for one run of `LineSearchBmrm` with a checkpoint that never reaches its tolerance: only its trace grows, by
one row per iteration.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import riskmin as rm

WARM = 0.2
"""Share of a run in which caches may still fill."""
SAMPLES = 200
"""Number of memory samples."""


def resident() -> float:
    """Resident memory in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def slope(steps: list[int], memory: list[float]) -> float:
    """Slope in MB per thousand steps, without the first part.

    Examples
    --------
    >>> round(slope(list(range(0, 1000, 10)), [50.0 + 0.002 * k for k in range(0, 1000, 10)]), 6)
    2.0
    """
    first = int(WARM * len(steps))
    return float(1000 * np.polyfit(steps[first:], memory[first:], 1)[0])


def estimators():
    """Pairs of an estimator and its training data."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5))
    z = X @ np.array([2.0, -1.0, 0.5, 0.0, 1.0])
    y, grades = np.where(z > 0, 1, 0), np.digitize(z, [-1.0, 1.0])
    qid = np.repeat(np.arange(10), 6)
    words = [[{"word": str(w)} for w in rng.integers(4, size=5)] for _ in range(4)]
    tags = [["B" if t["word"] in "01" else "O" for t in sequence] for sequence in words]
    return [
        (rm.LinearClassifier("hinge", alpha=1e-2), (X, y), {}),
        (rm.LinearClassifier("logistic", alpha=1e-2, solver="lbfgs"), (sp.csr_array(X), y), {}),
        (
            rm.LinearClassifier("squared_hinge", alpha=1e-2, solver="dual", fit_intercept=False),
            (X.astype(np.float32), y),
            {},
        ),
        (rm.LinearClassifier("softmax", alpha=1e-2), (X, grades), {}),
        (rm.LinearClassifier("roc_area", alpha=1e-1, solver="bundle"), (X, y), {}),
        (rm.LinearClassifier("logistic", alpha=1e-2, regularizer="l1"), (X, y), {}),
        (rm.LinearRegressor("huber", alpha=1e-2), (np.asfortranarray(X), z), {}),
        (rm.LinearRegressor("quantile:level=0.9", alpha=1e-2), (X, z), {}),
        (rm.LinearRegressor("squared", alpha=1e-2, standardize=True), (X + 100.0, z), {}),
        (rm.KernelClassifier(alpha=1e-2), (X, y), {}),
        (rm.OrdinalClassifier(alpha=1e-1), (X, grades), {}),
        (rm.LinearRanker(alpha=1e-1), (X, grades), {"qid": qid}),
        (rm.NoveltyDetector(alpha=1e-1), (X,), {}),
        (rm.ChainTagger("crf", alpha=1e-1), (words, tags), {}),
    ]


def fits(count: int) -> dict[str, float]:
    """Fit the estimators in turn, `count` fits in total."""
    kinds, steps, memory, began = estimators(), [], [], time.perf_counter()
    every = max(count // SAMPLES, 1)
    for k in range(count):
        model, data, more = kinds[k % len(kinds)]
        model.fit(*data, **more)
        if k % every == 0:
            gc.collect()
            steps.append(k)
            memory.append(resident())
    return _summary("fits", count, steps, memory, began)


def iterations(solver: object, count: int) -> dict[str, float]:
    """Run `count` iterations of one run, with a checkpoint."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((200, 30))
    y = np.where(X @ rng.standard_normal(30) + 5 * rng.standard_normal(200) > 0, 1.0, -1.0)
    J = rm.Objective(rm.linear_risk(X, y, "hinge"), rm.L2(), 1e-7)
    steps, memory, began, every = [], [], time.perf_counter(), max(count // SAMPLES, 1)

    def sample(it: rm.Iterate, row: dict[str, float]) -> None:
        if row["iteration"] % every == 0:
            steps.append(int(row["iteration"]))
            memory.append(resident())

    with tempfile.TemporaryDirectory() as folder:
        file = rm.Checkpoint(Path(folder) / "run.checkpoint", every=5)
        rm.minimize(J, solver, tol=0.0, atol=0.0, max_iter=count, callback=sample, checkpoint=file)
    return _summary(f"iterations of {solver!r}", count, steps, memory, began)


def _summary(what: str, count: int, steps: list[int], memory: list[float], began: float) -> dict[str, float]:
    seconds = time.perf_counter() - began
    results = {"slope_mb_per_1000": slope(steps, memory), "first_mb": memory[0], "most_mb": max(memory)}
    print(
        f"{what}: {count} in {seconds:.0f} s; {results['slope_mb_per_1000']:+.3f} MB per thousand, ", end=""
    )
    print(f"RSS {memory[0]:.0f} MB at first, {max(memory):.0f} MB at most", flush=True)
    return results | {"count": count, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--fits", type=int, default=10_000)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {"fits": fits(args.fits)}
    results["iterations"] = iterations(rm.LineSearchBmrm(), args.iterations)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
