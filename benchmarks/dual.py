"""DualGaussSeidel, certified, with LIBLINEAR's dual solvers beside it in one run.

    python -m benchmarks.dual --data FOLDER [--only a9a "rcv1 CCAT"] [--losses hinge] [--seconds 5]

Every cell minimizes the same J(w) = mean loss + lam |w|^2 / 2 without an intercept. Times are CPU seconds,
so that they can be compared on a busy machine; set OMP_NUM_THREADS=1. Ours is from the call to a relative
gap that is *proved*, preparation and certificate included. LIBLINEAR climbs a ladder of tolerances, each a
cold start; its time is that of the fastest rung whose J is within the tolerance of the best J known, its data
prepared before the clock starts. It proves nothing, so its user could not tell. It comes from the package
`liblinear-official` where that is installed, which gives up on a slow dual and turns to
Newton's method where it can, and from scikit-learn; the faster of the two counts.
The folder holds the svmlight files that benchmarks/RESULTS.md names; missing ones are left out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.data import SETS

LAMS, TOLS = (1e-2, 1e-4, 1e-6), (1e-3, 1e-6)
CLASSES, NUMBERS = ("hinge", "squared_hinge", "logistic"), ("epsilon_insensitive",)
NAMES = ("a9a", "w8a", "rcv1 CCAT", "covtype", "reg_mv", "reg_fried")
LADDER = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)


# ---------------------------------------------------------------- the peers
def liblinear(X, y, loss, lam):
    """Eps -> w by the package of LIBLINEAR's authors; None where it is not installed."""
    try:
        from liblinear.liblinearutil import parameter, problem, train
    except ImportError:
        return None
    prob = problem(y, sp.csr_matrix(X))
    kind = {
        "hinge": "-s 3",
        "squared_hinge": "-s 1",
        "logistic": "-s 7",
        "epsilon_insensitive": "-s 13 -p 0.1",
    }[loss]
    C = 1 / (lam * len(y)) * (0.5 if loss == "squared_hinge" else 1.0)  # ours carries the factor 1/2

    def fit(eps):
        model = train(prob, parameter(f"{kind} -c {C:.17g} -e {eps:g} -B -1 -q"))
        w = np.array(model.get_decfun()[0])
        return -w if loss in CLASSES and model.get_labels()[0] < 0 else w

    return fit


def scikit_learn(X, y, loss, lam):
    """Eps -> w by scikit-learn's LIBLINEAR, with as many iterations as it takes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC, LinearSVR

    C = 1 / (lam * len(y))
    how = {"fit_intercept": False, "max_iter": 100_000, "random_state": 0}

    def fit(eps):
        model = {
            "hinge": lambda: LinearSVC(loss="hinge", C=C, tol=eps, **how),
            "squared_hinge": lambda: LinearSVC(C=C / 2, tol=eps, dual=True, **how),
            "logistic": lambda: LogisticRegression(C=C, solver="liblinear", dual=True, tol=eps, **how),
            "epsilon_insensitive": lambda: LinearSVR(epsilon=0.1, C=C, tol=eps, **how),
        }[loss]()
        return model.fit(X, y).coef_.ravel()

    return fit


def climb(fit, obj, seconds):
    """(seconds, J) of each rung, until one takes too long."""
    rungs = []
    for eps in LADDER:
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            w = fit(eps)
        took = time.process_time() - start
        rungs.append((took, obj.value(w)))
        if took > seconds:
            break
    return rungs


# ---------------------------------------------------------------- a cell
def ours(X, y, loss, lam, tol, seconds, rounds):
    """The best time of some rounds, and the last result."""
    best = np.inf
    for _ in range(rounds):
        start = time.process_time()
        obj = rm.Objective(rm.linear_risk(X, y, rm.get_loss(loss)), rm.L2(), lam)
        late = lambda *_: time.process_time() - start > seconds  # noqa: B023, E731
        result = rm.minimize(obj, rm.DualGaussSeidel(), tol=tol, callback=late)
        best = min(best, time.process_time() - start)
        if best > 1:
            break
    return best, result


def cells(name, X, y, loss, lam, seconds, rounds):
    obj = rm.Objective(rm.linear_risk(X, y, rm.get_loss(loss)), rm.L2(), lam)
    mine = {tol: ours(X, y, loss, lam, tol, seconds, rounds) for tol in TOLS}
    fits = [make(X, y, loss, lam) for make in (liblinear, scikit_learn)]
    rungs = [rung for fit in fits if fit for _ in range(rounds) for rung in climb(fit, obj, seconds)]
    least = min([result.value for _, result in mine.values()] + [value for _, value in rungs])
    for tol, (took, result) in mine.items():
        there = [t for t, value in rungs if value <= least * (1 + tol)]
        gap = result.gap / result.value
        first = f"{took:.3f}" if result.status == "converged" else f"- ({gap:.0e})"
        nearest = min(value for _, value in rungs) / least - 1
        second = f"{min(there):.3f}" if there else f"- ({nearest:.0e})"
        ratio = f"{min(there) / took:.1f}" if there and result.status == "converged" else ""
        row = (
            name,
            loss,
            f"{lam:.0e}",
            f"{tol:.0e}",
            first,
            f"{result.trace[-1].get('epochs', 0):.1f}",
            second,
        )
        print(f"| {' | '.join(row)} | {ratio} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(NAMES))
    parser.add_argument("--losses", nargs="*", default=[*CLASSES, *NUMBERS])
    parser.add_argument("--seconds", type=float, default=5.0, help="the most time for a fit")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    print("| data | loss | lam | tol | ours, certified: s | epochs | LIBLINEAR: s | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.only:
        try:
            X, y = SETS[name].read(args.data)
        except (rm.DataError, FileNotFoundError) as error:
            print(f"| {name} | left out: {error} |")
            continue
        for loss in NUMBERS if name.startswith("reg_") else CLASSES:
            if loss in args.losses:
                ours(X, y, loss, 1.0, 1e-2, 1.0, 1)  # compiles or loads the kernels
                for lam in LAMS:
                    cells(name, X, y, loss, lam, args.seconds, args.rounds)


if __name__ == "__main__":
    main()
