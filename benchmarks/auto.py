"""What `Auto` could pick: the solvers that take a problem, beside each other, to a certified gap of 1e-3.

    python -m benchmarks.auto --data FOLDER [--only a9a "rcv1 CCAT"] [--seconds 20] [--lists]

CPU seconds of one thread (set OMP_NUM_THREADS=1), one run each; a gap where the limit was reached before the
tolerance. The star is what `Auto` picks, and where that is none of these, its own run is the last. No
intercept, but for the last case. With --lists it is the losses of pairs and tables, on sets of which some are
wide. The folder holds the svmlight files that benchmarks/RESULTS.md names; missing ones are left out.
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
    ("hinge", rm.Elastic(), False, ("dual", "bundle")),
    ("logistic", rm.L2(), False, ("lbfgs", "dual", "newton")),
    ("squared_hinge", rm.L2(), False, ("lbfgs", "dual", "newton")),
    ("logistic", rm.L1(), False, ("coordinate_descent", "owlqn", "proximal_gradient")),
    ("logistic", rm.Entropy(balanced=True), False, ("bundle", "proximal_gradient")),
    ("hinge", rm.L2(), True, ("dual", "bundle", "newton")),
]
LISTS = [(loss, rm.L2(), False, ("bundle", "smoothing", "newton")) for loss in ("roc_area", "prbep")]


def read(name, folder, lists):
    """The rows and signs of a set."""
    if not lists:
        return SETS[name].read(folder)
    found = sets.read(name, folder)
    if found is None:
        raise FileNotFoundError(f"{name} is not in the folder")
    return found.X, found.y


def cell(X, y, case, lam, seconds):
    """A word for each solver."""
    loss, reg, intercept, solvers = case
    said = []
    pick, _ = rm.Auto().choose(rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=intercept), reg, lam))
    own = {name: rm.get_solver(name) for name in solvers}
    for name in (*solvers, *(() if pick in own.values() else ("auto",))):
        obj = rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=intercept), reg, lam)
        picked = "*" if pick == own.get(name, pick) else ""
        start = time.process_time()
        result = rm.minimize(obj, name, max_seconds=seconds)
        spent = time.process_time() - start
        gap = "" if result.status == "converged" else f" (gap {result.gap / result.value:.0e})"
        said.append(f"{name}{picked} {spent:.2f}{gap}")
    return ", ".join(said)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="some of the sets")
    parser.add_argument("--lists", action="store_true", help="losses of pairs and tables")
    parser.add_argument("--seconds", type=float, default=20.0, help="the most time for a run")
    args = parser.parse_args()
    print("| data | problem | lam | CPU s to a proved 1e-3 |\n|---|---|---|---|")
    usual = list(sets.SETS) if args.lists else ["a9a", "w8a", "rcv1 CCAT", "covtype", "dense"]
    for name in args.only or usual:
        try:
            X, y = read(name, args.data, args.lists)
        except (rm.data.DataError, FileNotFoundError) as error:
            print(f"| {name} | left out: {error} |")
            continue
        for case in LISTS if args.lists else CASES:
            cell(X[:500], y[:500], case, 1.0, 5.0)  # compiles or loads the kernels
            problem = f"{case[0]}, {case[1]!r}" + (", intercept" if case[2] else "")
            for lam in LAMS:
                print(f"| {name} | {problem} | {lam:g} | {cell(X, y, case, lam, args.seconds)} |", flush=True)


if __name__ == "__main__":
    main()
