"""Speed of one pass over X, and of its two halves, relative to a memory copy of the same size.

    OMP_NUM_THREADS=1 python -m benchmarks.kernels [--threads 1 2] [--rounds 9] [--only NAME ...]

Synthetic data; wall time, minimum of interleaved rounds. GB/s count the bytes of X once (for sparse X: values
and indices), also for the copy, which reads and writes each byte: 100 % is a pass that takes as long as a
copy with the same number of threads. A pass uses each entry twice, but reads it only once from memory and
then from a cache.

`--table transpose` measures when a stored transpose pays off, `--table gram` the products X'HX.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.script import print_head, script_parser
from riskmin.arrays.matrix import as_matrix
from riskmin.problem import linear_risk
from riskmin.problem.shard_ops import scatter, scores


def best(calls, rounds):
    """Minimum seconds of each call, in interleaved rounds."""
    minima = [np.inf] * len(calls)
    for f in calls:
        f()
    for _ in range(rounds):
        for k, f in enumerate(calls):
            start = time.perf_counter()
            f()
            minima[k] = min(minima[k], time.perf_counter() - start)
    return minima


def sparse(n, p, row, dtype=np.float64, seed=0):
    """About `row` distinct entries per row; the first columns have the most entries."""
    rng = np.random.default_rng(seed)
    indices = np.sort((p * rng.random((n, row)) ** 2).astype(np.int32), axis=1)
    keep = np.ones(indices.shape, bool)
    keep[:, 1:] = indices[:, 1:] != indices[:, :-1]
    indptr = np.concatenate([[0], np.cumsum(keep.sum(1))]).astype(np.int32)
    return sp.csr_array((rng.random(indptr[-1]).astype(dtype), indices[keep], indptr), shape=(n, p))


def dense(n, p, dtype=np.float64, order="C"):
    return np.asarray(np.random.default_rng(0).standard_normal((n, p)), dtype=dtype, order=order)


DATA = {
    "dense, 100 columns": lambda: dense(200_000, 100),
    "dense, 100 columns, float32": lambda: dense(200_000, 100, np.float32),
    "dense, 1000 columns": lambda: dense(20_000, 1000),
    "Fortran order, 100 columns": lambda: dense(200_000, 100, order="F"),
    "sparse, 50 columns, 10 a row": lambda: sparse(800_000, 50, 12),
    "sparse, 50 000 columns, 60 a row": lambda: sparse(200_000, 50_000, 60),
    "sparse, 50 000 columns, 60 a row, float32": lambda: sparse(200_000, 50_000, 60, np.float32),
    "sparse, 131 072 columns, 120 a row": lambda: sparse(100_000, 2**17, 120),
    "sparse, 1 048 576 columns, 60 a row": lambda: sparse(200_000, 2**20, 60),
    "by columns, 50 000 columns, 60 a row": lambda: sparse(200_000, 50_000, 60).tocsc(),
}


def size(X):
    return X.data.nbytes + X.indices.nbytes if sp.issparse(X) else X.nbytes


def copies(n_bytes, threads):
    """A copy of `n_bytes` bytes, one part per thread."""
    source = np.ones(n_bytes // 8)
    target = np.empty_like(source)
    if threads == 1:
        return lambda: np.copyto(target, source)
    pool = ThreadPoolExecutor(threads)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    return lambda: list(pool.map(lambda part: np.copyto(*part), parts))


def passes(name, X, threads, rounds):
    rng = np.random.default_rng(1)
    y, w = np.where(rng.random(X.shape[0]) < 0.5, 1.0, -1.0), 0.01 * rng.standard_normal(X.shape[1])
    executor = rm.Serial() if threads == 1 else rm.Threads(n_workers=threads)
    risks = [rm.linear_risk(X, y, loss, executor=executor) for loss in (rm.Hinge(), rm.Logistic())]
    placed, linear_map = risks[0].executor, risks[0].linear_map
    dz = [rng.standard_normal(len(shard.c)) for shard in placed.shards]
    calls = [
        copies(size(X), threads),
        *(lambda risk=risk: risk(w) for risk in risks),
        lambda: placed.map(scores, linear_map, w),
        lambda: placed.sum(scatter, linear_map, w, each=dz),
    ]
    copy, *times = best(calls, rounds)
    cells = [f"{size(X) / t / 1e9:.1f} ({copy / t:.0%})" for t in times]
    print(
        f"| {name} | {size(X) / 1e6:.0f} | {threads} | {size(X) / copy / 1e9:.1f} | "
        + " | ".join(cells)
        + " |",
        flush=True,
    )


def transpose(rounds):
    print_head("sparse data | nnz per column | scatter, ms | stored transpose, ms")
    for n, p, row in ((40_000, 2**17, 120), (100_000, 2**20, 60), (400_000, 2**21, 50)):
        X, original, risks = sparse(n, p, row), linear_risk.TRANSPOSE_FROM_COLUMNS, []
        y, w = np.where(np.arange(n) % 2, 1.0, -1.0), np.full(p, 1e-3)
        for linear_risk.TRANSPOSE_FROM_COLUMNS in (2**60, 1):
            risks.append(rm.linear_risk(X, y, rm.Logistic()))
        linear_risk.TRANSPOSE_FROM_COLUMNS = original
        times = best([lambda risk=risk, w=w: risk(w) for risk in risks], rounds)
        print(f"| {n} x {p} | {X.nnz / p:.1f} | {1e3 * times[0]:.0f} | {1e3 * times[1]:.0f} |", flush=True)


def gram(rounds):
    from riskmin._numba.gram import csr_gram

    print_head("X'HX | products | ms | products per ns")
    for name, X in (
        ("sparse, 100 columns, 12 per row", sparse(400_000, 100, 12)),
        ("sparse, 2000 columns, 60 per row", sparse(40_000, 2000, 60)),
    ):
        M, out, h = as_matrix(X), np.zeros((X.shape[1], X.shape[1])), np.ones(X.shape[0])
        (t,) = best([lambda M=M, h=h, out=out: csr_gram(M.indptr, M.indices, M.data, h, out)], rounds)
        lengths = np.diff(X.indptr).astype(float)
        products = (lengths * (lengths + 1) / 2).sum()
        print(f"| {name} | {products / 1e6:.0f} M | {1e3 * t:.1f} | {products / t / 1e9:.2f} |", flush=True)
    X = dense(200_000, 100)
    (t,) = best([lambda: X.T @ X], rounds)
    n = 50 * X.size
    print(f"| dense, 100 columns (BLAS) | {n / 1e6:.0f} M | {1e3 * t:.1f} | {n / t / 1e9:.2f} |")


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument(
        "--table", nargs="+", choices=("passes", "transpose", "gram"), default=["passes", "transpose", "gram"]
    )
    args = parser.parse_args()
    if "passes" in args.table:
        print_head(
            "| X | MB | threads | copy, GB/s | hinge, one pass | logistic, one pass | scores | pullback |"
        )
        for name in args.only:
            X = DATA[name]()
            for threads in args.threads:
                passes(name, X, threads, args.rounds)
    for table, f in (("transpose", transpose), ("gram", gram)):
        if table in args.table:
            print()
            f(args.rounds)


if __name__ == "__main__":
    main()
