"""Lasso and L1 logistic regression: CPU seconds to 1e-3 and 1e-6 of the optimum, specialists beside.

    python -m benchmarks.lasso FOLDER [--only "lasso sparse" ...] [--seconds 10] [--rounds 3]

All minimize the same J(w) = mean loss + lam |w|_1 without an intercept, at fractions of the least lam for
which w = 0. Ours is measured twice: until J is within the tolerance of the optimum, as the peers are, with
all cuts and bounds computed on the way; and until that is *proved*. A peer climbs a ladder of tolerances and
iteration limits, each a cold start; its time is that of the first rung whose J is good enough. The optimum is
the lower bound of an untimed run of ours to 1e-9. Building the risk, and copying columns, is in our time; the
compilation of kernels, ours and others', is not: every peer is called once before. Peers that are not
installed are left out. Rounds alternate, all run in one thread, and the best of the rounds counts.
The folder holds rcv1_topics (see benchmarks/RESULTS.md).
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.data import power_law, rcv1_ccat

GOALS = (1e-3, 1e-6)


# ---------------------------------------------------------------- data
def dense(classes):
    """100k x 100, standardized; half of the features matter."""

    def read(folder):
        rng = np.random.default_rng(0)
        X, w = rng.standard_normal((100_000, 100)), rng.standard_normal(100)
        w[50:] = 0
        z = X @ w + 0.5 * np.linalg.norm(w) * rng.standard_normal(100_000)
        return (X - X.mean(0)) / X.std(0), np.where(z > 0, 1.0, -1.0) if classes else z

    return read


TASKS = {
    "lasso sparse": (power_law, rm.Squared(), (0.1, 0.01)),
    "lasso dense": (dense(False), rm.Squared(), (0.1, 0.001)),
    "L1-logistic rcv1": (rcv1_ccat, rm.Logistic(), (0.1, 0.01)),
    "L1-logistic dense": (dense(True), rm.Logistic(), (0.1, 0.001)),
}


# ---------------------------------------------------------------- peers
LADDER = [(t, m) for m in (20, 100, 1000) for t in (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)]


def sklearn_lasso(lam, n, tol, steps):
    from sklearn.linear_model import Lasso

    return Lasso(alpha=lam, fit_intercept=False, tol=tol, max_iter=steps)


def celer_lasso(lam, n, tol, steps):
    from celer import Lasso

    return Lasso(alpha=lam, fit_intercept=False, tol=tol, max_iter=steps)


def skglm_lasso(lam, n, tol, steps):
    from skglm import Lasso

    return Lasso(alpha=lam, fit_intercept=False, tol=tol, max_iter=steps)


def glum_lasso(lam, n, tol, steps):
    from glum import GeneralizedLinearRegressor as Glm

    return Glm(alpha=lam, l1_ratio=1, fit_intercept=False, gradient_tol=tol, max_iter=steps)


def snapml_lasso(lam, n, tol, steps):
    from snapml import LinearRegression

    return LinearRegression(penalty="l1", dual=False, regularizer=lam * n, tol=tol, max_iter=steps, n_jobs=1)


def liblinear_logistic(lam, n, tol, steps):
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(
        C=1 / (lam * n), l1_ratio=1, solver="liblinear", fit_intercept=False, tol=tol, max_iter=steps
    )


def celer_logistic(lam, n, tol, steps):
    from celer import LogisticRegression

    return LogisticRegression(C=1 / (lam * n), fit_intercept=False, tol=tol, max_iter=steps)


def skglm_logistic(lam, n, tol, steps):
    from skglm import SparseLogisticRegression

    return SparseLogisticRegression(alpha=lam, fit_intercept=False, tol=tol, max_iter=steps)


def glum_logistic(lam, n, tol, steps):
    from glum import GeneralizedLinearRegressor as Glm

    return Glm(
        family="binomial", alpha=lam, l1_ratio=1, fit_intercept=False, gradient_tol=tol, max_iter=steps
    )


def snapml_logistic(lam, n, tol, steps):
    from snapml import LogisticRegression

    return LogisticRegression(
        penalty="l1", dual=False, regularizer=lam * n, fit_intercept=False, tol=tol, max_iter=steps, n_jobs=1
    )


PEERS = {
    rm.Squared: {
        "scikit-learn": sklearn_lasso,
        "celer": celer_lasso,
        "skglm": skglm_lasso,
        "glum": glum_lasso,
        "snapml": snapml_lasso,
    },
    rm.Logistic: {
        "LIBLINEAR -s 6": liblinear_logistic,
        "celer": celer_logistic,
        "skglm": skglm_logistic,
        "glum": glum_logistic,
        "snapml": snapml_logistic,
    },
}


def labels(name, y):
    """Glum's binomial takes 0 and 1."""
    return (y > 0).astype(float) if name == "glum" and set(np.unique(y)) == {-1.0, 1.0} else y


def climb(name, make, X, y, obj, least, seconds):
    """For each goal, the time of the first rung that is good enough; inf where none is."""
    times, spent = dict.fromkeys(GOALS, np.inf), 0.0
    for tol, steps in LADDER:
        model = make(obj.lam, len(y), tol, steps)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a peer did not converge is what is measured
            model.fit(X, labels(name, y))
        took = time.process_time() - start
        spent += took
        off = obj.value(np.asarray(model.coef_, dtype=float).ravel()) / least - 1
        times = {goal: min(t, took) if off <= goal else t for goal, t in times.items()}
        if spent > seconds or np.isfinite(times[GOALS[-1]]):
            break
    return times


def ours(X, y, loss, lam, least):
    """The seconds until each goal is reached, and those until it is proved."""
    reached = {}
    start = time.process_time()

    def note(it, row):
        for goal in GOALS:
            if it.value <= least * (1 + goal):
                reached.setdefault(goal, time.process_time() - start)

    def fit(tol, callback):
        obj = rm.Objective(rm.linear_risk(X, y, loss), rm.L1(), lam)
        return rm.minimize(obj, rm.CoordinateDescent(), tol=tol, max_seconds=60, callback=callback)

    fit(GOALS[-1], note)
    proved = {}
    for goal in GOALS:
        start = time.process_time()
        assert fit(goal, None).status == "converged"
        proved[goal] = time.process_time() - start
    return {goal: reached.get(goal, np.inf) for goal in GOALS}, proved


# ---------------------------------------------------------------- the table
def best(rows):
    return {goal: min(row[goal] for row in rows) for goal in GOALS}


def cell(task, fraction, X, y, loss, seconds, rounds):
    risk = rm.linear_risk(X, y, loss)
    lam = fraction * float(np.abs(risk(np.zeros(X.shape[1]))[1]).max())
    obj = rm.Objective(risk, rm.L1(), lam)
    least = rm.minimize(obj, rm.CoordinateDescent(), tol=1e-9, max_seconds=60).lower
    peers = dict(usable(X, y, loss, lam))
    runs = {name: [] for name in ("riskmin", "riskmin, proved", *peers)}
    for _ in range(rounds):
        reached, proved = ours(X, y, loss, lam, least)
        runs["riskmin"].append(reached)
        runs["riskmin, proved"].append(proved)
        for name, (make, held) in peers.items():
            runs[name].append(climb(name, make, held, y, obj, least, seconds))
    for name, times in runs.items():
        line(task, fraction, name, best(times))


def usable(X, y, loss, lam):
    """The peers that are installed, each called once, with X as they take it."""
    held = sp.csr_matrix(X) if sp.issparse(X) else X  # some do not know sparse arrays
    for name, make in PEERS[type(loss)].items():
        if name == "glum" and X.shape[1] > 5000:
            continue  # it makes a p x p matrix
        try:
            model = make(lam, len(y), 0.1, 2)
        except ImportError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(held, labels(name, y))
        yield name, (make, held)


def line(task, fraction, name, times):
    shown = [f"{times[goal]:.3f}" if np.isfinite(times[goal]) else "-" for goal in GOALS]
    print(f"| {task} | {fraction:g} | {name} | {shown[0]} | {shown[1]} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seconds", type=float, default=10.0, help="the most time for a peer and cell")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| task | lam / lam_max | solver | CPU s to 1e-3 | CPU s to 1e-6 |\n|---|---|---|---|---|")
    for task in args.only:
        read, loss, fractions = TASKS[task]
        X, y = read(args.folder)
        for fraction in fractions:
            cell(task, fraction, X, y, loss, args.seconds, args.rounds)


if __name__ == "__main__":
    main()
