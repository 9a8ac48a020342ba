"""Certified fits of real data, with scikit-learn's solvers (LIBLINEAR, L-BFGS) beside them in one run.

    python -m benchmarks.certified --data FOLDER [--only a9a covtype] [--seconds 20] [--json FILE]

Every cell minimizes the same J(w) = mean loss + lam |w|^2 / 2 without an intercept. Ours runs with its
defaults until a relative gap of 1e-3 is *proved*. A peer climbs a ladder of tolerances and iteration limits,
each a cold start; its time is that of the first rung whose J is within 1e-3 of the best J known (it proves
nothing, so its user could not tell). Fits alternate, and each cell keeps the best of its rounds.
The folder holds the svmlight files that benchmarks/RESULTS.md names; missing ones are left out.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from riskmin.data import load, load_svmlight

TOL = 1e-3
LAMS = (1e-2, 1e-4, 1e-6)
CLASSES, NUMBERS = ("hinge", "logistic"), ("epsilon_insensitive", "squared")


# ---------------------------------------------------------------- data
def column_max_scale(X):
    top = abs(sp.csc_array(X)).max(axis=0).toarray().ravel()
    return sp.csr_array(X @ sp.diags_array(1 / np.where(top, top, 1.0)))


def binary(name):
    def read(folder):
        X, y, *_ = load(folder / f"{name}.svm.xz")
        return X, np.where(y > 0, 1.0, -1.0)

    return read


def covtype(folder):
    X, y, *_ = load(folder / "covtype.svm.xz")
    return column_max_scale(X), np.where(y == 2, 1.0, -1.0)


def rcv1_ccat(folder):
    rows = (folder / "rcv1_topics.labels.txt").read_text().splitlines()
    ccat = [row.split()[1] for row in rows if not row.startswith("#")].index("CCAT")
    parts = [
        load_svmlight(folder / f"rcv1_topics.{part}.svm.xz", n_features=47236, multilabel=True)
        for part in ("train", "test")
    ]
    y = np.array([1.0 if ccat in labels else -1.0 for part in parts for labels in part.y])
    return sp.vstack([part.X for part in parts]).tocsr(), y


def regression(name):
    def read(folder):
        X, y, *_ = load(folder / f"{name}.svm.xz")
        X = X.toarray()
        return (X - X.mean(0)) / np.where(X.std(0), X.std(0), 1.0), (y - y.mean()) / y.std()

    return read


def dense(folder):
    """Synthetic, standardized, the labels half noise: the shape on which coordinate ascent is weak."""
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((100_000, 100)), rng.standard_normal(100)
    y = np.where(X @ w + 0.5 * np.linalg.norm(w) * rng.standard_normal(100_000) > 0, 1.0, -1.0)
    return (X - X.mean(0)) / X.std(0), y


SETS = {
    "a9a": (binary("a9a.train"), CLASSES),
    "w8a": (binary("w8a.train"), CLASSES),
    "rcv1 CCAT": (rcv1_ccat, CLASSES),
    "covtype": (covtype, CLASSES),
    "dense": (dense, CLASSES),
    "reg_mv": (regression("reg_mv"), NUMBERS),
    "reg_fried": (regression("reg_fried"), NUMBERS),
}


# ---------------------------------------------------------------- peers
def rungs(loss, lam, n):
    """(name, fit(X, y) -> w) from loose to tight."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC, LinearSVR

    C = 1 / (lam * n)
    ladder = [(t, m) for m in (1_000, 10_000, 100_000) for t in (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)]
    if loss == "hinge":
        return "LinearSVC", [
            LinearSVC(loss="hinge", C=C, fit_intercept=False, tol=t, max_iter=m) for t, m in ladder
        ]
    if loss == "logistic":
        return "LogisticRegression", [
            LogisticRegression(C=C, fit_intercept=False, tol=t, max_iter=m) for t, m in ladder
        ]
    if loss == "squared":  # ours carries the factor 1/2
        return "Ridge", [Ridge(alpha=lam * n, fit_intercept=False, tol=t) for t in (1e-1, 1e-3, 1e-6)]
    return "LinearSVR", [
        LinearSVR(epsilon=0.1, C=C, fit_intercept=False, tol=t, max_iter=m) for t, m in ladder
    ]


def climb(models, X, y, obj, good, seconds):
    """The time of the first rung that is good enough, or None and the best that was reached."""
    best, spent = np.inf, 0.0
    for model in models:
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a peer did not converge is what is measured
            model.fit(X, y)
        took = time.perf_counter() - start
        spent += took
        best = min(best, obj.value(model.coef_.ravel()))
        if best <= good:
            return took, best
        if spent > seconds:
            break
    return None, best


# ---------------------------------------------------------------- the table
def cell(name, X, y, loss, lam, seconds, rounds):
    obj = rm.Objective(rm.linear_risk(X, y, rm.get_loss(loss)), rm.L2(), lam)
    best = rm.minimize(obj, tol=1e-5, max_seconds=seconds).value  # the best known, not timed
    ours, theirs = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        risk = rm.linear_risk(X, y, rm.get_loss(loss))
        result = rm.minimize(rm.Objective(risk, rm.L2(), lam), tol=TOL, max_seconds=seconds)
        ours.append(time.perf_counter() - start)
        peer, models = rungs(loss, lam, len(y))
        took, reached = climb(models, X, y, obj, best * (1 + TOL), seconds)
        theirs.append((took, reached))
        if max(ours[-1], took or seconds) > 2:
            break
    times = [t for t, _ in theirs if t is not None]
    return {
        "data": name,
        "loss": loss,
        "lam": lam,
        "status": result.status,
        "seconds": min(ours),
        "gap": result.gap / result.value,
        "iterations": result.n_iter,
        "calls": result.trace[-1]["calls"],
        "value": result.value,
        "lower": result.lower,
        "solver": result.solver,
        "peer": peer,
        "peer_seconds": min(times) if times else None,
        "peer_gap": min(v for _, v in theirs) / best - 1,
    }


def line(row):
    ours = f"{row['seconds']:.3f} s"
    if row["status"] != "converged":
        ours = f"not in {row['seconds']:.0f} s (gap {row['gap']:.0e})"
    theirs = (
        f"{row['peer_seconds']:.3f} s" if row["peer_seconds"] is not None else f"- ({row['peer_gap']:.0e})"
    )
    ratio = (
        f"{row['peer_seconds'] / row['seconds']:.1f}"
        if row["status"] == "converged" and row["peer_seconds"]
        else ""
    )
    return (
        f"| {row['data']} | {row['loss']} | {row['lam']:.0e} | {ours} | {row['gap']:.1e} "
        f"| {row['iterations']} | {row['peer']} | {theirs} | {ratio} |"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--seconds", type=float, default=20.0, help="the most time for a cell and side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print("| data | loss | lam | ours, certified 1e-3 | gap proved | steps | peer | peer, to 1e-3 | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in args.only:
        read, losses = SETS[name]
        try:
            X, y = read(args.data)
        except (rm.data.DataError, FileNotFoundError) as error:
            print(f"| {name} | left out: {error} |")
            continue
        for loss in losses:
            rm.minimize(  # compiles or loads the kernels
                rm.Objective(rm.linear_risk(X, y, rm.get_loss(loss)), rm.L2(), 1.0), max_iter=2
            )
            for lam in LAMS:
                rows.append(cell(name, X, y, loss, lam, args.seconds, args.rounds))
                print(line(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
