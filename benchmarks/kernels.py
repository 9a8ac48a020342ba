"""One oracle pass over X against a plain copy of its bytes, SciPy's two passes, and two threads.

    python -m benchmarks.kernels

Synthetic data; milliseconds, the best of seven. The last table is what the stored transpose is decided by.
"""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from riskmin import linear


def best(f, rounds=7):
    f()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def sparse(n, p, row, seed=0):
    rng = np.random.default_rng(seed)
    indices = np.sort((p * rng.random((n, row)) ** 2).astype(np.int32), axis=1).ravel()
    return sp.csr_array((rng.random(n * row), indices, np.arange(0, n * row + 1, row)), shape=(n, p))


def passes(name, X):
    rng = np.random.default_rng(1)
    y, w = np.where(rng.random(X.shape[0]) < 0.5, 1.0, -1.0), 0.01 * rng.standard_normal(X.shape[1])
    n_bytes = X.data.nbytes + X.indices.nbytes if sp.issparse(X) else X.nbytes
    source, c = np.ones(n_bytes // 8), np.full(len(y), 1 / len(y))
    target = np.empty_like(source)
    serial = rm.linear_risk(X, y, rm.Hinge())
    threads = rm.linear_risk(X, y, rm.Hinge(), executor=rm.Threads(n_workers=2))
    row = [
        best(lambda: np.copyto(target, source)),
        best(lambda: X.T @ rm.Hinge().value_grad(X @ w, y, c)[1]),
        best(lambda: serial(w)),
        best(lambda: threads(w)),
    ]
    print(f"| {name} | {n_bytes / 1e6:.0f} | " + " | ".join(f"{t:.1f}" for t in row) + " |", flush=True)


def transpose(n, p, row):
    X = sparse(n, p, row)
    y, w = np.where(np.arange(n) % 2, 1.0, -1.0), np.full(p, 1e-3)
    times, kept = [], linear.WIDE
    for linear.WIDE in (2**60, 1):
        risk = rm.linear_risk(X, y, rm.Logistic())
        times.append(best(lambda risk=risk: risk(w), 4))
    linear.WIDE = kept
    print(f"| {n} x {p} | {n * row / p:.1f} | {times[0]:.0f} | {times[1]:.0f} |", flush=True)


def main():
    print("| data | MB | copy | NumPy/SciPy, two passes | one pass | one pass, 2 threads |")
    print("|---|---|---|---|---|---|")
    passes("dense 100000 x 100", np.random.default_rng(0).standard_normal((100_000, 100)))
    passes("sparse 400000 x 50, 12 a row", sparse(400_000, 50, 12))
    passes("sparse 200000 x 50000, 60 a row", sparse(200_000, 50_000, 60))
    print("\n| sparse data | numbers a column | scatter | stored transpose |\n|---|---|---|---|")
    for shape in ((40_000, 2**17, 120), (100_000, 2**20, 60), (400_000, 2**21, 50)):
        transpose(*shape)


if __name__ == "__main__":
    main()
