"""Compare the solvers from which `Auto` may select: CPU seconds to a certified gap of 1e-3.

    python -m benchmarks.auto --data FOLDER [--only a9a "rcv1 CCAT"] [--seconds 20] [--lists]

CPU seconds of one thread (set OMP_NUM_THREADS=1), one run per solver; if the time limit is reached first, the
gap is printed instead. A star marks the solver that `Auto` selects; if it is none of those listed, its run is
printed last. Only the last case has an intercept. With --lists, the losses are non-decomposable ones, on data
sets of which some have many columns. The folder holds the svmlight files listed in benchmarks/RESULTS.md;
missing files are skipped.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import riskmin as rm
from benchmarks import sets
from benchmarks.harness.data import SETS

LAMS = (1e-2, 1e-4, 1e-6)
CASES = [  # loss, regularizer, intercept, solvers
    ("hinge", rm.L2(), False, ("dual", "bundle", "newton")),
    ("hinge", rm.Elastic(), False, ("dual_gauss_seidel", "bundle")),
    ("logistic", rm.L2(), False, ("lbfgs", "dual", "newton")),
    ("squared_hinge", rm.L2(), False, ("lbfgs", "dual", "newton")),
    ("logistic", rm.L1(), False, ("coordinate_descent", "owlqn", "proximal_gradient")),
    ("logistic", rm.Entropy(balanced=True), False, ("bundle", "proximal_gradient")),
    ("hinge", rm.L2(), True, ("augmented_lagrangian", "bundle", "newton")),
]
METRIC_CASES = [(loss, rm.L2(), False, ("bundle", "smoothing", "newton")) for loss in ("roc_area", "prbep")]


def read(name, folder, lists):
    """Read X and labels +-1 of a data set."""
    if not lists:
        return SETS[name].read(folder)
    split = sets.read(name, folder)
    if split is None:
        raise FileNotFoundError(f"{name} is not in the folder")
    return split.X, split.y


def cell(X, y, case, lam, seconds):
    """One table entry per solver."""
    loss, reg, intercept, solvers = case
    cells = []
    risk = rm.linear_risk(X, y, loss, fit_intercept=intercept)
    selected, _ = rm.Auto().choose(rm.Objective(risk, reg, lam))
    listed = {name: rm.get_solver(name) for name in solvers}
    for name in (*solvers, *(() if selected in listed.values() else ("auto",))):
        obj = rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=intercept), reg, lam)
        star = "*" if selected == listed.get(name, selected) else ""
        start = time.process_time()
        result = rm.minimize(obj, name, max_seconds=seconds)
        spent = time.process_time() - start
        gap = "" if result.status == "converged" else f" (gap {result.gap / result.value:.0e})"
        cells.append(f"{name}{star} {spent:.2f}{gap}")
    return ", ".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="some of the sets")
    parser.add_argument("--lists", action="store_true", help="use non-decomposable losses")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit per run")
    args = parser.parse_args()
    print("| data | problem | lam | CPU s to a proved 1e-3 |\n|---|---|---|---|")
    usual = list(sets.SETS) if args.lists else ["a9a", "w8a", "rcv1 CCAT", "covtype", "dense"]
    for name in args.only or usual:
        try:
            X, y = read(name, args.data, args.lists)
        except (rm.data.DataError, FileNotFoundError) as error:
            print(f"| {name} | left out: {error} |")
            continue
        for case in METRIC_CASES if args.lists else CASES:
            cell(X[:500], y[:500], case, 1.0, 5.0)  # compile or load the kernels
            problem = f"{case[0]}, {case[1]!r}" + (", intercept" if case[2] else "")
            for lam in LAMS:
                print(f"| {name} | {problem} | {lam:g} | {cell(X, y, case, lam, args.seconds)} |", flush=True)


if __name__ == "__main__":
    main()
