"""Rounds of communication with remote rows: CoCoA+ against cutting planes and L-BFGS.

    python -m benchmarks.cocoa --data FOLDER [--only a9a "rcv1 CCAT"] [--losses hinge] [--most 300]

A table entry is the work until a certified gap of 1e-2, 1e-3 and 1e-4, or a dash if the limit was reached
first: the number of evaluations of the risk (or rounds of `DualCoordinateAscent`), and after the slash the
number of calls of all shards, line searches included. Then follow the CPU seconds of the whole run. Only dual
ascent depends on the number of shards. The shards are in this process (set OMP_NUM_THREADS=1), but solvers
treat their rows as remote. The folder holds the svmlight files listed in benchmarks/RESULTS.md; missing files
are skipped.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

import riskmin as rm
from benchmarks import sets
from benchmarks.harness.script import script_parser
from riskmin.executors.base import SerialExecutor

LAMS = (1e-2, 1e-3, 1e-4, 1e-5)
GAPS = (1e-2, 1e-3, 1e-4)


class Counted(SerialExecutor):
    """A serial executor that counts its calls."""

    calls = 0

    def map(self, f, *args, each=()):
        self.calls += 1
        return super().map(f, *args, each=each)


def rounds(obj, solver, max_rounds):
    """The work until each gap was proved."""
    value, lower, work = np.inf, 0.0, {}
    for it in islice(solver.iterates(obj, np.zeros(obj.risk.dim)), max_rounds):
        value, lower = min(value, it.value), max(lower, obj.lower(it.cut))
        for gap in GAPS:
            if value - lower <= gap * value:
                work.setdefault(gap, f"{obj.count.calls}/{obj.risk.executor.calls}")
        if len(work) == len(GAPS) or obj.count.calls >= max_rounds:
            break
    return " ".join(work.get(gap, "-") for gap in GAPS)


def cell(X, y, loss, lam, solver, n_shards, max_rounds):
    """The table entry of one solver."""
    risk = rm.linear_risk(X, y, loss, n_shards=n_shards)
    risk = replace(risk, rows=None, executor=Counted(risk.executor.shards))
    obj = rm.Objective(risk, rm.L2(), lam)
    start = time.process_time()
    entry = rounds(obj, solver, max_rounds)
    return f"{entry} ({time.process_time() - start:.1f} s)"


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["a9a", "rcv1 CCAT", "covtype"], choices=sets.SETS)
    parser.add_argument("--losses", nargs="*", default=["hinge", "logistic"])
    parser.add_argument("--shards", type=int, nargs="*", default=[2, 8, 32])
    parser.add_argument("--most", type=int, default=300, help="maximum number of rounds")
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
            cell(*small, rm.DualCoordinateAscent(), 2, 5)  # compile or load the kernels
            for lam in LAMS:
                case = split.X, split.y, loss, lam
                entries = [cell(*case, rm.Bundle(), 8, args.most)]
                entries.append(cell(*case, rm.Lbfgs(), 8, args.most) if smooth else "")
                entries += [cell(*case, rm.DualCoordinateAscent(), k, args.most) for k in args.shards]
                print(f"| {name} | {loss} | {lam:g} | {' | '.join(entries)} |", flush=True)


if __name__ == "__main__":
    main()
