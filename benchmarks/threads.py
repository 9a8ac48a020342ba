"""Time and memory against the number of threads.

    OMP_NUM_THREADS=1 python -m benchmarks.threads [--quick] [--threads 1 2 4 8 16] [--json FILE]

Bandwidth: bytes per second of reading one large array, by a compiled sum on each thread, the upper limit of
any pass over X. Oracle: wall milliseconds of one call of the risk (value and gradient, one pass over X), the
best of several, and its GB/s as a share of that bandwidth; "line" is one evaluation on cached scores. Fits:
wall seconds of building the risk and of `minimize` until a relative gap of 1e-3 is proved; the objective must
have the same bits for all numbers of threads, and the solvers run the same steps. Memory: each number of
threads in a fresh process, the peak of resident memory above that before the fit, in MB. Every process
compiles before the clock starts. Run it on a machine without other load: the figures are wall times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import riskmin as rm

FITS = {
    "dense logistic, Newton": ("dense", "logistic", "newton"),
    "dense hinge, Newton": ("dense", "hinge", "newton"),
    "dense logistic, L-BFGS": ("dense", "logistic", "lbfgs"),
    "dense hinge, Bundle": ("dense", "hinge", "bundle"),
    "sparse logistic, L-BFGS": ("sparse", "logistic", "lbfgs"),
    "sparse logistic, Newton": ("sparse", "logistic", "newton"),
    "sparse hinge, dual ascent": ("sparse", "hinge", "dual"),
}
ORACLES = [(kind, loss) for kind in ("dense", "sparse") for loss in ("hinge", "logistic")]
TOL, LAM = 1e-3, 1e-5
COMPILING_ROWS = 200_000
"""Rows of the fit that compiles: enough for two threads to share them."""


# ---------------------------------------------------------------- data
def rows(kind, quick):
    """X and y: dense 1M x 100 or sparse 400k x 50k with 75 entries per row, half as many rows if quick."""
    rng = np.random.default_rng(0)
    if kind == "dense":
        n, p = (500_000 if quick else 1_000_000), 100
        X = rng.standard_normal((n, p))
        return X, np.sign(X @ rng.standard_normal(p) / 3 + rng.standard_normal(n))
    n, p, row = (200_000 if quick else 400_000), 50_000, 75
    indices = (p * rng.uniform(size=n * row) ** 3).astype(np.int32)  # frequent and rare columns
    data = rng.uniform(0.5, 1.5, n * row) / np.sqrt(row)
    X = sp.csr_array((data, indices, np.arange(0, n * row + 1, row, dtype=np.int32)), shape=(n, p))
    X.sum_duplicates()
    z = X @ rng.standard_normal(p)
    return X, np.sign(z + z.std() * rng.standard_normal(n) - np.median(z))


def stored_bytes(X):
    """The bytes that one pass over X reads."""
    return X.nbytes if isinstance(X, np.ndarray) else X.data.nbytes + X.indices.nbytes + X.indptr.nbytes


# ---------------------------------------------------------------- measurements
def best_of(f, seconds):
    """The minimum wall seconds of a call, within about a number of seconds."""
    f()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def bandwidth(n_threads, megabytes, seconds):
    """GB/s of reading one array of doubles by several threads."""
    from concurrent.futures import ThreadPoolExecutor

    import numba

    @numba.njit(nogil=True, fastmath=True)
    def total(a):
        s = 0.0
        for i in range(len(a)):
            s += a[i]
        return s

    a = np.ones(megabytes * 2**17)
    total(a[:8])
    parts = np.array_split(a, n_threads)
    with ThreadPoolExecutor(n_threads) as pool:
        return a.nbytes / best_of(lambda: list(pool.map(total, parts)), seconds) / 1e9


def oracle(X, y, loss, n_threads, seconds):
    """Wall seconds of an oracle call, and of an evaluation on cached scores."""
    risk = rm.linear_risk(X, y, loss, executor=rm.Threads(n_workers=n_threads))
    w = np.random.default_rng(1).standard_normal(X.shape[1]) / np.sqrt(X.shape[1])
    cursor = risk.cursor(w)
    cursor.set_direction(-w)
    return best_of(lambda: risk(w), seconds), best_of(lambda: cursor.value_slope(0.5), seconds / 4)


def fit(X, y, loss, solver, n_threads):
    """Build the risk and minimize; the result."""
    risk = rm.linear_risk(X, y, loss, executor=rm.Threads(n_workers=n_threads))
    return rm.minimize(rm.Objective(risk, rm.L2(), LAM), solver, tol=TOL, max_seconds=120)


def peak_memory(kind, loss, solver, n_threads, quick):
    """MB of resident memory that a fit in a fresh process takes beyond the data and the code."""
    command = [sys.executable, "-m", "benchmarks.threads", "--memory", kind, loss, solver, str(n_threads)]
    done = subprocess.run(
        command + ["--quick"] * quick, capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    return float(done.stdout.split()[-1])


def measure_memory(kind, loss, solver, n_threads, quick):
    """Print the peak of resident memory during a fit, sampled, above that before it, in MB."""
    X, y = rows(kind, quick)
    part = slice(0, COMPILING_ROWS)
    fit(X[part], y[part], loss, solver, n_threads)  # compiles
    before, peak, done = resident(), [0.0], threading.Event()

    def watch():
        while not done.wait(0.005):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    fit(X, y, loss, solver, n_threads)
    done.set()
    watcher.join()
    print(f"{(peak[0] - before) / 1e6:.0f}")


def resident():
    """Bytes of resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------- tables
def table(title, counts, lines):
    """Print a table of Markdown: one line per case, one column per number of threads."""
    print(f"\n{title}\n\n| | " + " | ".join(f"{k}" for k in counts) + " |")
    print("| --- |" + " --- |" * len(counts))
    for name, cells in lines:
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def oracle_tables(results, counts, quick):
    seconds = 0.5 if quick else 2.0
    reads = {k: bandwidth(k, 512 if quick else 2048, seconds) for k in counts}
    results["bandwidth"] = reads
    table("Read bandwidth, GB/s", counts, [("", [f"{reads[k]:.1f}" for k in counts])])
    times, shares, line_times = [], [], []
    for kind, loss in ORACLES:
        X, y = rows(kind, quick)
        name, size = f"{kind} {loss}", stored_bytes(X)
        measured = {k: oracle(X, y, loss, k, seconds) for k in counts}
        results[name] = measured
        times.append((name, [f"{1e3 * measured[k][0]:.1f}" for k in counts]))
        line_times.append((name, [f"{1e3 * measured[k][1]:.2f}" for k in counts]))
        rates = {k: size / measured[k][0] / 1e9 for k in counts}
        shares.append((name, [f"{rates[k]:.1f} ({100 * rates[k] / reads[k]:.0f} %)" for k in counts]))
        del X, y
    table("Oracle, ms", counts, times)
    table("Oracle, GB/s (share of the read bandwidth)", counts, shares)
    table("Evaluation on cached scores, ms", counts, line_times)


def fit_table(results, counts, quick):
    lines, speedups, cached = [], [], {}
    for name, (kind, loss, solver) in FITS.items():
        if kind not in cached:
            cached = {kind: rows(kind, quick)}
        X, y = cached[kind]
        fit(X[:COMPILING_ROWS], y[:COMPILING_ROWS], loss, solver, 2)  # compiles
        seconds, bits = {}, set()
        for k in counts:
            times = []
            for _ in range(2 if quick else 5):
                start = time.perf_counter()
                result = fit(X, y, loss, solver, k)
                times.append(time.perf_counter() - start)
                bits.add((result.value, result.status))
            seconds[k] = min(times)
        status = ", ".join(sorted({s for _, s in bits}))
        same = "same bits" if len(bits) == 1 else f"{len(bits)} DIFFERENT RESULTS"
        results[name] = seconds
        lines.append((f"{name} ({status}, {same})", [f"{seconds[k]:.3f}" for k in counts]))
        speedups.append((name, [f"{seconds[counts[0]] / seconds[k]:.1f}" for k in counts]))
    table("Fits, s", counts, lines)
    table(f"Speedup of fits over {counts[0]} thread(s)", counts, speedups)


def memory_table(results, counts, quick):
    cases = [("dense", "logistic", "newton"), ("sparse", "logistic", "lbfgs")]
    lines = []
    for case in cases:
        peaks = {k: peak_memory(*case, k, quick) for k in counts}
        results[" ".join(case) + ", MB"] = peaks
        lines.append((" ".join(case), [f"{peaks[k]:.0f}" for k in counts]))
    table("Peak memory of a fit beyond the data, MB", counts, lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="half the rows, fewer repetitions")
    parser.add_argument("--threads", type=int, nargs="+", default=None, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write all results to a file")
    parser.add_argument("--memory", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        *case, n_threads = options.memory
        measure_memory(*case, int(n_threads), options.quick)
        return
    cores = os.cpu_count() or 1
    counts = options.threads or [k for k in (1, 2, 4, 8, 16) if k <= max(cores, 2)]
    print(f"{cores} cores; tol {TOL}, lam {LAM}; columns are numbers of threads")
    results = {}
    oracle_tables(results, counts, options.quick)
    fit_table(results, counts, options.quick)
    memory_table(results, [counts[0], counts[-1]] if options.quick else counts, options.quick)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
