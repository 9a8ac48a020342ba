"""Regularization paths compared with cold starts: oracle calls and seconds for 13 values of lam.

    python -m benchmarks.path --data FOLDER [--only dense a9a] [--least 1e-6] [--seconds 20]

lam goes from 1 to 1e-6 in steps of sqrt(10), the gap to prove is 1e-3, and there is no intercept. `path` is
riskmin.path; the other rows change one thing each: warm starts keep only w, only the active cuts, or all
cuts, or the smallest lam comes first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import riskmin as rm
from benchmarks.harness.data import SETS
from benchmarks.harness.script import print_head, script_parser

TOL = 1e-3
LAMS = np.geomspace(1.0, 1e-6, 13)
SOLVERS = {"hinge": ("bundle", "dual"), "logistic": ("lbfgs", "dual")}


# ---------------------------------------------------------------- one thing changed
@dataclass(frozen=True)
class OnlyW:
    """A solver whose warm starts keep only w."""

    solver: Any

    def iterates(self, obj, w0):
        return self.solver.iterates(obj, w0)


@dataclass(frozen=True)
class OnlyActive(OnlyW):
    """A bundle method whose warm starts keep only the active cuts."""

    def warm_start(self, obj, state, before):
        used = np.flatnonzero(state["alpha"] > 0)
        active = {name: state[name][used] for name in ("A", "b", "alpha", "idle")}
        return self.solver.warm_start(obj, state | active | {"G": state["G"][np.ix_(used, used)]}, before)


def upwards(risk, lams, solver, **limits):
    """A path from the smallest lam upwards, by single fits that pass on their state."""
    last, results = {}, []
    for lam in lams[::-1]:
        obj = rm.Objective(risk, rm.L2(), lam)

        def record(iterate, row):
            last["iterate"] = iterate

        before, start = dict(last), solver
        if "iterate" in before:

            class Started:
                def iterates(self, obj, w0, before=before):
                    return solver.warm_start(obj, before["iterate"].state(), before["obj"])

            start = Started()
        results.append(rm.minimize(obj, start, callback=record, **limits))
        last["obj"] = obj
    return results[::-1]


def ways(name, risk, lams, limits):
    """Yield names, and functions that return the results in the order of lams."""
    solver = rm.get_solver(name)

    def walk(solver):
        return rm.path(risk, rm.L2(), lams, solver=solver, **limits)

    yield "cold starts", lambda: [rm.minimize(rm.Objective(risk, rm.L2(), v), solver, **limits) for v in lams]
    yield "path", lambda: walk(solver)
    yield "only w", lambda: walk(OnlyW(solver))
    if name == "bundle":
        yield "only cuts with weight", lambda: walk(OnlyActive(solver))
        yield "all cuts", lambda: walk(rm.Bundle(keep=10**6))
        yield "the smallest first", lambda: upwards(risk, lams, solver, **limits)


# ---------------------------------------------------------------- the table
def line(data, loss, solver, what, results, seconds, cold):
    calls = sum(result.trace[-1]["calls"] for result in results)
    epochs = sum(result.trace[-1].get("epochs", 0.0) for result in results)
    open_ = sum(result.status != "converged" for result in results)
    each = " ".join(f"{result.trace[-1]['calls']:.0f}" for result in results)
    share = "" if cold is None else f"{calls / cold[0]:.2f} / {seconds / cold[1]:.2f}"
    work = f"{calls:.0f}" + (f" ({epochs:.0f} epochs)" if epochs else "")
    print(
        f"| {data} | {loss} | {solver} | {what} | {work} | {seconds:.2f} s | {share} "
        f"| {each}{f' ({open_} not converged)' if open_ else ''} |",
        flush=True,
    )
    return calls, seconds


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["dense", "a9a", "rcv1 CCAT"], choices=SETS)
    parser.add_argument("--loss", nargs="*", default=list(SOLVERS))
    parser.add_argument("--solver", nargs="*", help="names of solvers  [default: all that suit the loss]")
    parser.add_argument("--least", type=float, default=1e-6, help="smallest lam")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit per fit")
    args = parser.parse_args()
    lams = LAMS[0.999 * args.least <= LAMS]
    limits = {"tol": TOL, "max_seconds": args.seconds}
    print_head("data | loss | solver | what | calls | time | share of cold: calls / time | calls of each")
    for data in args.only:
        try:
            X, y = SETS[data].read(args.data)
        except (rm.DataError, FileNotFoundError) as error:
            print(f"| {data} | left out: {error} |")
            continue
        for loss in args.loss:
            risk = rm.linear_risk(X, y, rm.get_loss(loss))
            for name in args.solver or SOLVERS[loss]:
                rm.minimize(rm.Objective(risk, rm.L2(), 1.0), name, max_iter=2)  # compile or load the kernels
                cold = None
                for what, run in ways(name, risk, lams, limits):
                    start = time.perf_counter()
                    results = run()
                    seconds = time.perf_counter() - start
                    totals = line(data, loss, name, what, results, seconds, cold)
                    cold = totals if cold is None else cold


if __name__ == "__main__":
    main()
