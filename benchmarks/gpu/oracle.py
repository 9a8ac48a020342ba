"""The time of an oracle call on a GPU, as a share of the time in which the bytes of X are copied.

    python -m benchmarks.gpu oracle [--gigabytes 8] [--sparse-rows 20000000]

The floor is the bytes of X once, for sparse X twice, over the bandwidth of a copy (bytes read and written),
measured in the same run. Times are medians of calls between CUDA events, after a first call.
"""

from __future__ import annotations

import argparse

import numpy as np

import riskmin as rm
from benchmarks.harness.script import print_head
from riskmin.arrays.matrix import as_matrix
from riskmin.problem.compiled import device_loops
from riskmin.problem.compiled.tracing import trace_loss

DENSE = [
    ("float32", 512), ("float32", 28), ("float32", 50), ("float32", 100), ("float32", 128), ("float32", 499),
    ("float32", 1024), ("float32", 2048), ("float32", 8192), ("float32", 16384), ("float64", 100),
    ("float64", 512), ("bfloat16", 512), ("float16", 512),
]  # fmt: skip
LOSSES = [
    rm.Logistic(), rm.Hinge(), rm.SquaredHinge(), rm.Exponential(), rm.Squared(), rm.Absolute(),
    rm.Quantile(0.9), rm.EpsilonInsensitive(), rm.Huber(), rm.Poisson(),
]  # fmt: skip


def milliseconds(call, repeats=7):
    import torch

    call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for first, last in events:
        first.record()
        call()
        last.record()
    torch.cuda.synchronize()
    return sorted(first.elapsed_time(last) for first, last in events)[repeats // 2]


def copy_bandwidth(entries):
    """Gigabytes per second that a copy on the device reads and writes."""
    import torch

    source = torch.empty(entries, device="cuda")
    target = torch.empty_like(source)
    return 2 * 4 * entries / milliseconds(lambda: target.copy_(source)) / 1e6


def row(name, ms, n_bytes, bandwidth):
    print(f"| {name} | {ms:.3f} | {100 * n_bytes / bandwidth / 1e6 / ms:.0f} % |", flush=True)


def labels(loss, n):
    rng = np.random.default_rng(0)
    return rng.poisson(1.0, n).astype(float) if loss.task == "regression" else np.sign(rng.random(n) - 0.4)


def dense(options, bandwidth):
    import torch

    for storage, p in DENSE:
        kind = getattr(torch, storage)
        n = int(options.gigabytes * 1e9) // (p * kind.itemsize)
        X = torch.empty(n, p, device="cuda", dtype=kind)
        for part in X.split(max(2**27 // p, 1)):
            part.copy_(torch.randn(part.shape, device="cuda"))
        main = (storage, p) == DENSE[0]
        w = np.random.default_rng(1).standard_normal(p) / p**0.5
        for loss in LOSSES if main else LOSSES[:2]:
            time_loss(X, loss, w, bandwidth, main and loss == rm.Logistic())
        del X, part


def time_loss(X, loss, w, bandwidth, more):
    n, p = X.shape
    risk = rm.linear_risk(X, labels(loss, n), loss)
    traced, shard = risk.compiled(loss), risk.executor.shards[0]
    # the kernels alone: a call of the risk adds the copy of the gradient to the host
    kernels, rows = shard.X.kernels, device_loops.labels(shard)
    point, code = device_loops.as_cupy(w)[None, :], device_loops._code(traced.first)
    ms = milliseconds(lambda: kernels.value_grad(point, 0.0, rows, code))
    row(f"{str(X.dtype)[6:]} {n:,} x {p}, {loss!r}", ms, X.nbytes, bandwidth)
    if loss == rm.Logistic():
        row("  the risk, with w and gradient in NumPy", milliseconds(lambda: risk(w)), X.nbytes, bandwidth)
    if more:
        for k in (2, 4, 8):
            points = point.repeat(k, axis=0)
            ms = milliseconds(lambda: kernels.value_grad(points, 0.0, rows, code))  # noqa: B023
            row(f"  {k} w in one pass", ms, X.nbytes, bandwidth)
        line_search(shard, n)


def line_search(shard, n):
    import torch

    z, d = torch.randn(2, n, device="cuda", dtype=torch.float64)
    traced = trace_loss(rm.Logistic())
    points = np.linspace(0, 1, 16)
    ms = milliseconds(lambda: device_loops.line_values(shard, traced, z, d, points))
    one = milliseconds(lambda: device_loops.line_sums(shard, traced, z, d, 0.5, 0.0))
    print(f"| line search, 16 points; one point | {ms:.3f}; {one:.3f} | |", flush=True)


def power_law_csr(n, p, per_row):
    """Rows of `per_row` entries in columns of frequencies 1 / (j + 50), as CSR of CuPy."""
    import cupy
    import cupyx.scipy.sparse as cusp

    rng = cupy.random.default_rng(0)
    indices, data = cupy.empty(n * per_row, dtype=cupy.int32), cupy.empty(n * per_row, dtype=cupy.float32)
    for i in range(0, len(data), 2**27):
        u = rng.random(min(2**27, len(data) - i))
        indices[i : i + len(u)] = 50 * ((p + 50) / 50) ** u - 50
        data[i : i + len(u)] = rng.standard_normal(len(u), dtype=cupy.float32)
    cupy.minimum(indices, p - 1, out=indices)
    indptr = cupy.arange(n + 1, dtype=cupy.int64) * per_row
    X = cusp.csr_matrix((1, p), dtype=cupy.float32)
    # without the check for duplicates, which would sort 1.5e9 entries
    X._shape, X.data, X.indices, X.indptr = (n, p), data, indices, indptr
    return X


def sparse(options, bandwidth):
    import time

    import cupy

    n, p, per_row = options.sparse_rows, 1_000_000, 75
    X = power_law_csr(n, p, per_row)
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    M = as_matrix(X)
    cupy.cuda.Device().synchronize()
    print(
        f"| sparse {n:,} x {per_row} a row, {p:,} columns: layout | {time.perf_counter() - start:.2f} s | |"
    )
    size, kernels = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes, M.kernels
    del X
    cupy.get_default_memory_pool().free_all_blocks()
    w, g = cupy.random.standard_normal(p), cupy.random.standard_normal(n)
    forward, back = milliseconds(lambda: kernels.scores(w)), milliseconds(lambda: kernels.pullback(g))
    row("  X w, of one read", forward, size, bandwidth)
    row("  X' g, of one read", back, size, bandwidth)
    row("  both, of two reads", forward + back, 2 * size, bandwidth)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu oracle", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=8.192, help="size of dense X  [default: 8.192]")
    parser.add_argument("--sparse-rows", type=int, default=20_000_000)
    options = parser.parse_args(arguments)
    bandwidth = copy_bandwidth(2**31)
    print_head(f"copy {bandwidth:.0f} GB/s | ms | of the floor")
    sparse(options, bandwidth)
    dense(options, bandwidth)
