"""The experiment of Zhang, Saha and Vishwanathan, Smoothing multivariate performance measures (JMLR 2012).

    OMP_NUM_THREADS=1 python -m benchmarks.papers.d_multivariate --data FOLDER
        [--only a9a w8a] [--losses prbep roc_area] [--lams 1e-2 1e-4 1e-6] [--seconds 8] [--json FILE]
        [--also smoothing newton bundle]

Time to come within 1 % of min J, for PRBEP and ROC area: CPU seconds of one thread, and in parentheses the
number of oracle calls (values with gradients).

- BMRM: `Bmrm()`, one cut per step;
- SMS: L-BFGS on the smoothed J with the paper's fixed mu = 10 eps / D, eps = 0.001;
- AGM: `AcceleratedGradient` instead of L-BFGS, for one lam;
- ours: `minimize` with its defaults; also the time until 1 % is *proved*, which the others do not do;
- solvers named by --also, to compare candidates for the default: until J is reached, without the proof.

min J is the best value of any run; "known to" is its distance from the best lower bound. If that is more than
1 %, the order of arrival is unknown, and the cell is left out of the final summary. Therefore riskmin
continues to a proved 1e-4, within the same time limit. A dash means not reached within the limit, followed by
the final distance from min J. The test score is that of riskmin, in %. With --json, cells in the file are not
run again.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

import riskmin as rm
from benchmarks.harness.script import script_parser
from benchmarks.sets import SETS, read
from benchmarks.watch import Sms, paper_mu, run
from riskmin.metrics import prbep_score

LOSSES = ("prbep", "roc_area")
LAMS = (1e-2, 1e-4, 1e-6)
AGM_LAM = 1e-4
SHORT = 0.3
"""Runs shorter than this many seconds are repeated three times, and the fastest counts."""
PAPER = {  # test scores for the three lams, for data from the same source
    ("w8a", "prbep"): (67.64, 76.64, 79.56),
    ("w8a", "roc_area"): (97.88, 98.86, 98.99),
    ("rcv1 CCAT", "prbep"): (89.94, 94.11, 94.44),
    ("rcv1 CCAT", "roc_area"): (96.49, 98.28, 98.69),
    ("news20", "prbep"): (84.21, 97.24, 97.24),
    ("news20", "roc_area"): (91.51, 99.51, 99.39),
}


def solvers(loss, lam, also=()):
    """Factories of the solvers by their names in the table, the default solver first."""
    mu = paper_mu(loss)
    factories = {
        "ours": lambda watch: None,
        "BMRM": lambda watch: rm.Bmrm(),
        "SMS": lambda watch: Sms(mu, watch=watch),
    }
    if lam == AGM_LAM and hasattr(rm, "AcceleratedGradient"):
        factories["AGM"] = lambda watch: Sms(mu, rm.AcceleratedGradient(), watch)
    return factories | {name: lambda watch, name=name: rm.get_solver(name) for name in also}


def timed(obj, make, seconds, goal, tol=0.0):
    """The fastest of three runs, or a single run if it is long."""
    runs = [run(obj, make, seconds, goal, tol)]
    while len(runs) < 3 and runs[-1].rows[-1].seconds < SHORT:
        runs.append(run(obj, make, seconds, goal, tol))
    return min(runs, key=lambda r: r.rows[-1].seconds)


def score(loss, w, data):
    """The score on the test part, in %."""
    z = data.T @ w
    if loss == "roc_area":
        return 100 * float(roc_auc_score(data.t > 0, z))
    return 100 * prbep_score(data.t, z)


def cell(name, data, loss, lam, seconds, also=()):
    obj = rm.Objective(rm.linear_risk(data.X, data.y, loss), rm.L2(), lam)
    runs, goal = {}, 0.0
    for solver, make in solvers(loss, lam, also).items():
        runs[solver] = timed(obj, make, seconds, goal, tol=0.0 if goal else 1e-4)
        goal = (
            goal or 1.01 * runs["ours"].result.lower
        )  # slightly below 1.01 min J, since the lower bound is below min J
    best = min(r.result.value for r in runs.values())
    lower = max(r.result.lower for r in runs.values())
    row = {"data": name, "loss": loss, "lam": lam, "best": best, "known": 1 - lower / best}
    for solver, timed_run in runs.items():
        row[solver] = timed_run.reached(1.01 * best)
        row[f"{solver} end"] = timed_run.result.value / best - 1
    row["proved"] = runs["ours"].proved(0.01)
    row["gap"] = runs["ours"].result.gap / runs["ours"].result.value
    row["solver"] = runs["ours"].result.solver
    row["score"] = score(loss, runs["ours"].result.w, data)
    return row


def entry(row, solver):
    """Seconds and calls, or the final distance from min J."""
    if solver not in row:
        return ""
    reached = row[solver]
    return f"- (+{row[f'{solver} end']:.1%})" if reached is None else f"{reached[0]:.3g} ({reached[1]})"


def line(row, also=()):
    proved = row["proved"]
    proved = f"- (gap {row['gap']:.0e})" if proved is None else f"{proved[0]:.3g} ({proved[1]})"
    paper = PAPER.get((row["data"], row["loss"]))
    paper = f"{paper[LAMS.index(row['lam'])]:.2f}" if paper and row["lam"] in LAMS else ""
    times = " | ".join(entry(row, solver) for solver in ("BMRM", "SMS", "AGM", "ours"))
    return (
        f"| {row['data']} | {row['loss']} | {row['lam']:.0e} | {row['best']:.6g} | {row['known']:.0e} "
        f"| {times} | {proved} | {row['score']:.2f} | {paper} |"
    ) + "".join(f" {entry(row, solver)} |" for solver in also)


def summary(rows):
    """Print pairwise comparisons in numbers of cells; a solver that did not reach the goal is slower."""

    def seconds(row, solver):
        return row[solver][0] if row[solver] else np.inf

    def compared(a, b, cells):
        better = sum(seconds(row, a) < seconds(row, b) for row in cells)
        worse = sum(seconds(row, a) > seconds(row, b) for row in cells)
        ratios = [np.log(seconds(row, b) / seconds(row, a)) for row in cells if row[a] and row[b]]
        mean = f"{np.exp(np.mean(ratios)):.1f}" if ratios else "-"
        return f"{better} : {worse}, {mean} times as fast where both reach the goal"

    every, rows = rows, [row for row in rows if row["known"] <= 0.01]
    print(f"\nOf {len(every)} cells, min J is known to 1 % in {len(rows)}:\n")
    for a, b in (("SMS", "BMRM"), ("ours", "BMRM"), ("ours", "SMS")):
        print(f"- cells in which {a} is faster and slower than {b}: {compared(a, b, rows)}")
        for lam in LAMS:
            print(f"  - lam {lam:g}: {compared(a, b, [row for row in rows if row['lam'] == lam])}")
    proved = sum(row["proved"] is not None for row in rows)
    print(f"- 1 % proved by ours in {proved} cells of {len(rows)}")
    for name in sorted({row["solver"] for row in every}):
        print(f"- ours was {name} in {sum(row['solver'] == name for row in every)} of all cells")


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SETS), choices=SETS)
    parser.add_argument("--losses", nargs="*", default=list(LOSSES), choices=LOSSES)
    parser.add_argument("--lams", nargs="*", type=float, default=list(LAMS))
    parser.add_argument("--seconds", type=float, default=8.0, help="CPU time limit per cell and solver")
    parser.add_argument("--also", nargs="*", default=[], help="names of further solvers, one column each")
    parser.add_argument("--json", type=Path, help="file of finished cells, which are not run again")
    args = parser.parse_args()
    finished = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    rows = []
    more = "".join(f" {name} |" for name in args.also)
    print(
        "| data | loss | lam | min J | known to | BMRM | SMS | AGM | ours | ours, proved | test | paper |"
        + more
    )
    print("|---" * (12 + len(args.also)) + "|")
    for name in args.only:
        cells = [(name, loss, lam) for loss in args.losses for lam in args.lams]
        done = {(row["data"], row["loss"], row["lam"]): row for row in finished}
        data = None if all(key in done for key in cells) else read(name, args.data)
        for key in cells:
            if key not in done:
                if data is None:
                    continue
                _, loss, lam = key
                if lam == args.lams[0]:  # compile or load the kernels
                    small = rm.Objective(rm.linear_risk(data.X, data.y, loss), rm.L2(), 1.0)
                    for make in solvers(loss, AGM_LAM, args.also).values():
                        run(small, make, 1.0, tol=0.1)
                done[key] = cell(name, data, loss, lam, args.seconds, args.also)
                finished.append(done[key])
                if args.json:
                    args.json.write_text(json.dumps(finished, indent=1))
            rows.append(done[key])
            print(line(done[key], args.also), flush=True)
    if rows:
        summary(rows)


if __name__ == "__main__":
    main()
