"""Rounds with rows elsewhere: dual ascent by shards beside cutting planes and L-BFGS.

    python -m benchmarks.cocoa --data FOLDER [--only a9a "rcv1 CCAT"] [--losses hinge] [--most 300]

A cell has the work until a certified gap of 1e-2, 1e-3 and 1e-4 was reached, a dash where the limit came
first: how often the risk was asked for (oracle calls, or rounds of `DualGaussSeidel`), and after the stroke
how often all shards were called, with the looks of line searches. Then the CPU seconds of the whole run. Only
dual ascent depends on the number of shards. The shards are in this process (set OMP_NUM_THREADS=1), but no
solver may look at them. The folder holds the svmlight files that benchmarks/RESULTS.md names; missing ones
are left out.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

import riskmin as rm
from benchmarks import sets
from riskmin.executors.base import SerialExecutor

LAMS = (1e-2, 1e-3, 1e-4, 1e-5)
GAPS = (1e-2, 1e-3, 1e-4)


class Counted(SerialExecutor):
    """Shards of which every call counts."""

    calls = 0

    def map(self, f, *args, each=()):
        self.calls += 1
        return super().map(f, *args, each=each)


def rounds(obj, solver, most):
    """What each gap took."""
    value, lower, found = np.inf, 0.0, {}
    for it in islice(solver.iterates(obj, np.zeros(obj.risk.dim)), most):
        value, lower = min(value, it.value), max(lower, obj.lower(it.cut))
        for gap in GAPS:
            if value - lower <= gap * value:
                found.setdefault(gap, f"{obj.count.calls}/{obj.risk.executor.calls}")
        if len(found) == len(GAPS) or obj.count.calls >= most:
            break
    return " ".join(found.get(gap, "-") for gap in GAPS)


def cell(X, y, loss, lam, solver, n_shards, most):
    """The words for one solver."""
    risk = rm.linear_risk(X, y, loss, n_shards=n_shards)
    risk = replace(risk, rows=None, executor=Counted(risk.executor.shards))
    obj = rm.Objective(risk, rm.L2(), lam)
    start = time.process_time()
    said = rounds(obj, solver, most)
    return f"{said} ({time.process_time() - start:.1f} s)"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["a9a", "rcv1 CCAT", "covtype"], help="some of the sets")
    parser.add_argument("--losses", nargs="*", default=["hinge", "logistic"])
    parser.add_argument("--shards", type=int, nargs="*", default=[2, 8, 32])
    parser.add_argument("--most", type=int, default=300, help="the most rounds")
    args = parser.parse_args()
    shards = " | ".join(f"dual, {k} shards" for k in args.shards)
    print(f"| data | loss | lam | Bundle | Lbfgs | {shards} |\n|{'---|' * (5 + len(args.shards))}")
    for name in args.only:
        split = sets.read(name, args.data)
        if split is None:
            continue
        for loss in args.losses:
            small = split.X[:500], split.y[:500], loss, 1.0
            smooth = rm.get_loss(loss).smooth
            cell(*small, rm.DualGaussSeidel(), 2, 5)  # compiles or loads the kernels
            for lam in LAMS:
                case = split.X, split.y, loss, lam
                said = [cell(*case, rm.Bundle(), 8, args.most)]
                said.append(cell(*case, rm.Lbfgs(), 8, args.most) if smooth else "")
                said += [cell(*case, rm.DualGaussSeidel(), k, args.most) for k in args.shards]
                print(f"| {name} | {loss} | {lam:g} | {' | '.join(said)} |", flush=True)


if __name__ == "__main__":
    main()
