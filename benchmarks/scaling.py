"""Time against the number of rows, and memory against the size of X.

    OMP_NUM_THREADS=1 python -m benchmarks.scaling [--table time memory] [--data FOLDER] [--plot FILE]

Time: CPU seconds of building the risk and of `minimize` with its defaults until a relative gap of tol is
proved, for doubling numbers of rows at fixed lam, as in Figure 5 of the BMRM paper. The slope is that of the
least-squares line of log(time) against log(rows); "last" is the slope of the two largest sizes. Synthetic
data, and covtype if the folder with covtype.svm.xz is given.

Memory: each case in a fresh process. The peak of resident memory during a fit of some seconds minus the
memory before it, which includes the data and the code (warmed up by a tiny fit), relative to the bytes of X.
Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.script import memory_bytes, script_parser
from benchmarks.kernels import size, sparse

LOSSES = ("hinge", "squared_hinge", "logistic", "roc_area", "quantile", "huber")
SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)


# ---------------------------------------------------------------- time against n
def dense_set(n=200_000, p=50):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    return X, X @ rng.standard_normal(p) / np.sqrt(p) + 0.5 * rng.standard_normal(n)


def sparse_set(n=100_000, p=20_000, row=40):
    X = sparse(n, p, row)
    X.data /= np.repeat(np.sqrt(np.add.reduceat(X.data**2, X.indptr[:-1])), np.diff(X.indptr))
    rng = np.random.default_rng(1)
    y = X @ rng.standard_normal(p) + 0.3 * rng.standard_normal(n)
    return X, y - np.median(y)


def covtype_set(folder):
    from benchmarks.sets import column_max_scale, signs

    X, y, *_ = rm.data.load(folder / "covtype.svm.xz")
    order = np.random.default_rng(0).permutation(X.shape[0])
    return column_max_scale(X)[order], signs(y, 2)[order]


def seconds(X, y, loss, lam, tol, limit):
    """CPU seconds until tol is proved, whether it was, and the solver."""
    start = time.process_time()
    J = rm.Objective(rm.linear_risk(X, y, loss), rm.L2(), lam)
    result = rm.minimize(J, tol=tol, max_seconds=limit)
    return time.process_time() - start, result.status == "converged", result.solver.split("(")[0]


def slope(rows, times):
    return float(np.polyfit(np.log(rows), np.log(times), 1)[0])


def time_table(args):
    sets = {"dense": dense_set, "sparse": sparse_set}
    if args.data is not None:
        sets["covtype"] = lambda: covtype_set(args.data)
    head = " | ".join(f"n / {round(1 / s)}" if s < 1 else "n" for s in SHARES)
    print(f"lam {args.lam:g}, tol {args.tol:g}; seconds\n")
    print(f"| data | n | loss | {head} | slope | last | solver |")
    print("|---|---|---|" + "---|" * (len(SHARES) + 3))
    lines = {}
    for name, make in sets.items():
        X, target = make()
        for loss in args.losses:
            if loss in ("quantile", "huber") and name == "covtype":
                continue  # covtype has class labels
            y = target if loss in ("quantile", "huber") else np.where(target > 0, 1.0, -1.0)
            rows = [int(s * X.shape[0]) for s in SHARES]
            seconds(X[: rows[0]], y[: rows[0]], loss, args.lam, 0.1, 60.0)  # compile the kernels
            runs = [
                min(
                    (
                        seconds(X[:n], y[:n], loss, args.lam, args.tol, args.seconds)
                        for _ in range(args.rounds)
                    ),
                    key=lambda r: r[0],
                )
                for n in rows
            ]
            times, proved, chosen = zip(*runs, strict=True)
            lines[f"{name}, {loss}"] = rows, times
            cells = [f"{t:.3g}" if ok else f"- ({t:.3g})" for t, ok in zip(times, proved, strict=True)]
            print(
                f"| {name} | {X.shape[0]} | {loss} | "
                + " | ".join(cells)
                + f" | {slope(rows, times):.2f} | {slope(rows[-2:], times[-2:]):.2f} "
                + f"| {', '.join(dict.fromkeys(chosen))} |",
                flush=True,
            )
    if args.plot is not None:
        plot(lines, args.plot)


def plot(lines, path):
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    for name, (rows, times) in lines.items():
        plt.loglog(rows, times, marker="o", label=f"{name} ({slope(rows, times):.2f})")
    plt.xlabel("rows")
    plt.ylabel("CPU seconds until the gap is proved")
    plt.legend(fontsize="x-small")
    plt.savefig(path, dpi=150)


# ---------------------------------------------------------------- memory
FORMATS = {
    "dense": lambda n: np.random.default_rng(0).standard_normal((n, 400)),
    "dense, float32": lambda n: np.random.default_rng(0).standard_normal((n, 400), np.float32),
    "Fortran order": lambda n: np.random.default_rng(0).standard_normal((400, n)).T,
    "CSR": lambda n: sparse(2 * n, 20_000, 100),
    "CSR, float32": lambda n: sparse(2 * n, 20_000, 100, np.float32),
    "CSR, 64-bit indices": lambda n: long_indices(sparse(2 * n, 20_000, 100)),
    "CSC": lambda n: sparse(2 * n, 20_000, 100).tocsc(),
}
SOLVERS = {
    "Bundle": ("hinge", "L2"),
    "Lbfgs": ("logistic", "L2"),
    "DualCoordinateAscent": ("hinge", "L2"),
    "Newton": ("hinge", "L2"),
    "Newton, smooth": ("logistic", "L2"),
    "CoordinateDescent": ("logistic", "L1"),
    "Auto": ("hinge", "L2"),
    "LinearClassifier": ("hinge", "l2"),
}


def long_indices(X):
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def fit(X, y, name, limit):
    loss, reg = SOLVERS[name]
    if name == "LinearClassifier":
        rm.LinearClassifier(loss, alpha=1e-4, max_seconds=limit).fit(X, y)
        return
    J = rm.Objective(
        rm.linear_risk(X, y, loss, fit_intercept=name != "DualCoordinateAscent"), getattr(rm, reg)(), 1e-4
    )
    rm.minimize(J, getattr(rm, name.partition(",")[0])(), tol=1e-3, max_seconds=limit)


def memory_case(form, name, limit):
    """Bytes of X, and the peak memory of a fit beyond them."""
    warnings.simplefilter("ignore")

    def labels(X):
        return np.where(np.arange(X.shape[0]) % 3 == 0, 1.0, -1.0)

    tiny = FORMATS[form](60)
    fit(tiny, labels(tiny), name, limit)
    X = FORMATS[form](50_000)
    y = labels(X)
    before = memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    fit(X, y, name, limit)
    return size(X) + (X.indptr.nbytes if sp.issparse(X) else 0), memory_bytes("VmHWM") - before, X.shape


def memory_table(args):
    print("| X | MB | " + " | ".join(args.solvers) + " |\n|---|---|" + "---|" * len(args.solvers))
    for form in FORMATS:
        cells, data_bytes = [], 0
        for name in args.solvers:
            call = f"memory_case({form!r}, {name!r}, {args.seconds})"
            code = f"from benchmarks.scaling import *; print(json.dumps({call}))"
            run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            if run.returncode:
                cells.append(run.stderr.strip().splitlines()[-1].split(":")[0])
                continue
            data_bytes, above, _ = json.loads(run.stdout)
            cells.append(f"{1 + above / data_bytes:.2f}")
        print(f"| {form} | {data_bytes / 1e6:.0f} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--table", nargs="+", choices=("time", "memory"), default=["time", "memory"])
    parser.add_argument("--data", type=Path, help="folder with covtype.svm.xz")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=LOSSES)
    parser.add_argument("--lam", type=float, default=1e-5)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--rounds", type=int, default=2, help="number of rounds; the smallest time counts")
    parser.add_argument("--seconds", type=float, default=10.0, help="limit of a fit")
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=list(SOLVERS))
    parser.add_argument("--plot", type=Path, help="write an image of time against rows (needs matplotlib)")
    args = parser.parse_args()
    for name, table in (("time", time_table), ("memory", memory_table)):
        if name in args.table:
            table(args)
            print()


if __name__ == "__main__":
    main()
