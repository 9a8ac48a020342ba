"""Kernel support vector machines compared with scikit-learn's SVC (LIBSVM), and incomplete Cholesky factors.

    python -m benchmarks.kernel --data FOLDER [--only usps letter] [--rows 10000] [--tol 1e-4]

Every cell minimizes J(f, b) = lam |f|^2 / 2 + mean hinge with an RBF kernel (gamma "scale") and an intercept,
lam = 1 / (C n). riskmin runs until a relative gap of tol is *proved*; SVC has its default tolerance. Both may
cache 200 MB of the kernel matrix. The last column is how far J of SVC's solution is above riskmin's lower
bound; SVC itself proves none. The factor is measured in a fresh process (on Linux), so that the peak memory
is that of the factor alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.script import memory_bytes, script_parser
from riskmin.data import load

CACHE = 200


# ---------------------------------------------------------------- data
def usps(folder, rows):
    """Digit 0 against the rest, both parts together."""
    parts = [load(folder / f"usps.{part}.svm.xz") for part in ("train", "test")]
    X, y = sp.vstack([p.X for p in parts]).toarray(), np.concatenate([p.y for p in parts])
    return X[:rows], np.where(y == np.unique(y)[0], 1.0, -1.0)[:rows]


def letter(folder, rows):
    """The first thirteen letters against the others."""
    X, y, *_ = load(folder / "letter.svm.xz")
    some = np.random.default_rng(0).permutation(len(y))[:rows]
    return X[some].toarray(), np.where(y[some] <= np.unique(y)[12], 1.0, -1.0)


def covtype(folder, rows):
    """Class 2 against the rest, columns divided by their largest magnitude."""
    X, y, *_ = load(folder / "covtype.svm.xz")
    some = np.random.default_rng(0).permutation(len(y))[:rows]
    X = X[some].toarray()
    return X / np.maximum(abs(X).max(0), 1e-12), np.where(y[some] == 2, 1.0, -1.0)


SETS = {"usps": usps, "letter": letter, "covtype": covtype}


# ---------------------------------------------------------------- cells
def svc_objective(model, X, y, alpha):
    """J of SVC's function and intercept."""
    z = model.decision_function(X)
    half = 0.5 * alpha * float(model.dual_coef_[0] @ (z[model.support_] - model.intercept_[0]))
    return half + float(np.maximum(0.0, 1 - y * z).mean())


def cell(name, X, y, C, tol):
    from sklearn.svm import SVC

    alpha, gamma = 1 / (C * len(y)), 1 / (X.shape[1] * X.var())
    start = time.perf_counter()
    ours = rm.KernelClassifier(gamma=gamma, alpha=alpha, tol=tol, cache_size=CACHE).fit(X, y)
    middle = time.perf_counter()
    theirs = SVC(C=C, gamma=gamma, cache_size=CACHE).fit(X, y)
    end = time.perf_counter()
    above = svc_objective(theirs, X, y, alpha) / ours.lower_bound_ - 1
    last = ours.result_.trace[-1]
    proved, size = ours.gap_ / ours.objective_, len(ours.support_)
    print(
        f"| {name} | {C:g} | {middle - start:.2f} s | {proved:.1e} | {ours.objective_:.6f} | {size} "
        f"| {last['rows']} | {end - middle:.2f} s | {above:.1e} |",
        flush=True,
    )


def factor(rows, rank, columns, dtype):
    """Time and memory of one factor, of normally distributed rows."""
    X = np.random.default_rng(0).standard_normal((rows, columns))
    warm = rm.IncompleteCholesky(gamma=1 / columns, rank=64).fit(X[:500])
    warm.transform(X[:10])
    before = memory_bytes("VmRSS") / 2**20
    start = time.perf_counter()
    chol = rm.IncompleteCholesky(gamma=1 / columns, rank=rank, tol=0.0, dtype=dtype)
    L = chol.fit_transform(X)
    took = time.perf_counter() - start
    peak = memory_bytes("VmHWM") / 2**20 - before
    print(
        f"| {rows} x {rank}, {dtype} | {took:.1f} s | {L.nbytes / 2**20:.0f} MiB | {peak:.0f} MiB "
        f"| {chol.residual_:.2f} |",
        flush=True,
    )


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SETS), choices=SETS)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--factor", nargs=4, help="rows, rank, columns and dtype of a single factor")
    args = parser.parse_args()
    if args.factor:
        *sizes, dtype = args.factor
        factor(*map(int, sizes), dtype)
        return
    rm.KernelClassifier().fit(np.eye(4), [0, 1, 0, 1])  # compile or load the kernels
    if args.data is not None:
        print(
            "| data | C | ours, certified | gap proved | J | support | rows of K computed | SVC "
            "| its J above the bound |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for name in args.only:
            try:
                X, y = SETS[name](args.data, args.rows)
            except (rm.DataError, FileNotFoundError) as error:
                print(f"| {name} | left out: {error} |")
                continue
            for C in (1.0, 100.0):
                cell(name, X, y, C, args.tol)
    print("\n| factor | time | its size | peak memory above the data | residual trace |")
    print("|---|---|---|---|---|", flush=True)
    for size in (("40000", "1000", "10", "float64"), ("40000", "1000", "10", "float32")):
        subprocess.run([sys.executable, "-m", "benchmarks.kernel", "--factor", *size], check=True)


if __name__ == "__main__":
    main()
