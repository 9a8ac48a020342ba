"""The bundle method with every regularizer: certified fits of nonsmooth losses, with shares of their time.

    python -m benchmarks.regularizers --data FOLDER [--only a9a dense rcv1] [--seconds 60]

Every line minimizes mean loss + lam Omega(w) without an intercept until a relative gap of 1e-3 is proved, and
prints the CPU time; set OMP_NUM_THREADS=1, so that waiting threads do not count. "program" is the share of
the master problem: a linear program (HiGHS) for L1 and its boxes, quadratic for L2, solved by Newton's method
for the others; "passes" is the share of the two products with X. The folder holds the svmlight files listed
in benchmarks/RESULTS.md; missing files are skipped.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import riskmin as rm
from benchmarks.harness.data import binary, rcv1_ccat
from benchmarks.harness.script import print_head, script_parser
from riskmin.problem.objective import ObjectiveCursor
from riskmin.solvers.bundle.cutting_planes import CuttingPlaneModel

REGULARIZERS = [
    rm.L2(),
    rm.L1(),
    rm.Elastic(),
    rm.Box(rm.L1(), -1.0, 1.0),
    rm.Box(rm.L2()),
    rm.Entropy(balanced=True),
    rm.Entropy(0.01, normalized=False, balanced=True),
    rm.QNorm(),
    rm.QNorm(1.1),
    rm.QNorm(3.0),
]


def dense(folder):
    """20000 rows of 100 features, a third of them relevant, with noise that grows with the first feature."""
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((20_000, 100)), rng.standard_normal(100) * (rng.random(100) < 0.3)
    return X, X @ w + (1 + 0.5 * np.abs(X[:, 0])) * rng.standard_normal(20_000)


SETS = {
    "a9a": (binary("a9a.train"), rm.Hinge(), REGULARIZERS, (1e-3, 1e-4)),
    "dense": (dense, rm.Quantile(0.5), [rm.L1()], (1e-1, 1e-2, 1e-3)),
    "rcv1 CCAT": (rcv1_ccat, rm.Hinge(), [rm.L1()], (1e-3, 3e-4, 1e-4)),
}


@contextmanager
def clocks(spent):
    """Accumulate the seconds of the master problem and of the passes over X."""
    watched = [
        (CuttingPlaneModel, "best_mixture", "program"),
        (CuttingPlaneModel, "add", "program"),
        (ObjectiveCursor, "__call__", "passes"),
        (ObjectiveCursor, "set_direction", "passes"),
    ]
    plain = [(kind, name, getattr(kind, name)) for kind, name, _ in watched]

    def timed(method, where):
        def run(*args):
            start = time.process_time()
            try:
                return method(*args)
            finally:
                spent[where] += time.process_time() - start

        return run

    for (kind, name, method), (_, _, where) in zip(plain, watched, strict=True):
        setattr(kind, name, timed(method, where))
    try:
        yield
    finally:
        for kind, name, method in plain:
            setattr(kind, name, method)


def line(name, X, y, loss, reg, lam, seconds):
    obj, spent = rm.Objective(rm.linear_risk(X, y, loss), reg, lam), defaultdict(float)
    rm.minimize(obj, rm.Bundle(), max_iter=2)  # compile or load the kernels
    with clocks(spent):
        start = time.process_time()
        result = rm.minimize(obj, rm.Bundle(), tol=1e-3, max_seconds=seconds)
        took = time.process_time() - start
    shown = f"{took:.2f} s" if result.status == "converged" else f"not in {took:.0f} s"
    parts = " | ".join(f"{spent[part] / took:.0%}" for part in ("program", "passes"))
    weights = int(np.sum(np.abs(result.w) > 1e-9 * np.abs(result.w).max()))
    return (
        f"| {name} | {type(loss).__name__} | {reg!r} | {lam:.0e} | {shown} | {result.gap / result.value:.1e} "
        f"| {result.n_iter} | {result.trace[-1]['cuts']} | {parts} | {weights} |"
    )


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SETS), choices=SETS)
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time limit per line")
    args = parser.parse_args()
    print_head(
        "| data | loss | regularizer | lam | CPU time | gap | steps | cuts | program | passes | weights |"
    )
    for name in args.only:
        read, loss, regs, lams = SETS[name]
        try:
            X, y = read(args.data)
        except (rm.data.DataError, FileNotFoundError) as error:
            print(f"| {name} | left out: {error} |")
            continue
        for reg in regs:
            for lam in lams:
                print(line(name, X, y, loss, reg, lam, args.seconds), flush=True)


if __name__ == "__main__":
    main()
