"""Plot the convergence of BMRM, smoothing and the default solver, for docs/multivariate.md.

    OMP_NUM_THREADS=1 python -m benchmarks.convergence --data FOLDER [--only roc_a9a prbep_c11] [--seconds 10]

ROC area on a9a at lam = 1e-4, PRBEP on rcv1 C11 at lam = 1e-6; CPU seconds of one thread. The left
panel shows J relative to the best value of any run, the right panel the certified gap. Runs end at a proved
1e-4 or at the time limit. Writes docs/img/roc_a9a.svg and docs/img/prbep_c11.svg, and prints the CPU seconds
and calls to 1 % and 0.1 %.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from docs.pictures import IMG, card, light_style

import riskmin as rm
from benchmarks.harness.script import print_head, script_parser
from benchmarks.sets import read
from benchmarks.watch import run, short
from riskmin.report import chart

CASES = {"roc_a9a": ("a9a", "roc_area", 1e-4), "prbep_c11": ("rcv1 C11", "prbep", 1e-6)}
NAMES = {"roc_area": "ROC area", "prbep": "PRBEP"}
SOLVERS = {"BMRM": ("lower", rm.Bmrm()), "Smoothing": ("gap", rm.Smoothing()), "default": ("value", None)}
SMALLEST_GAP = 1e-4


def thin(points, n_max=200):
    """At most `n_max` points, evenly spaced in log time, including the last."""
    if len(points) <= n_max:
        return points
    times = np.log([x for x, _ in points])
    index = np.searchsorted(times, np.linspace(times[0], times[-1], n_max))
    return [points[k] for k in sorted({*index.tolist(), len(points) - 1}) if k < len(points)]


def panel(title, runs, measure):
    """One panel with one line per solver."""
    lines = []
    for name, timed_run in runs.items():
        points = [(max(row.seconds, 1e-4), max(measure(row), 1e-16)) for row in timed_run.rows]
        lines.append(chart.ChartLine(SOLVERS[name][0], name, thin(points)))
    first = min(points[0][0] for _, _, points in lines)
    last = max(points[-1][0] for _, _, points in lines)
    x, y = chart.log_axis(first, last), chart.log_axis(SMALLEST_GAP, 1.0)
    return chart.draw_chart(title, x, y, lines, label="CPU seconds")


def picture(name, loss, lam, runs):
    best = min(timed_run.result.value for timed_run in runs.values())
    title = f"{NAMES[loss]} on {name}, lam = {lam:.0e}"
    left = panel(f"{title}: J above min J", runs, lambda row: row.value / best - 1)
    right = panel("Certified relative gap", runs, lambda row: (row.value - row.lower) / row.value)
    size = 'y="18" width="464" height="300"'
    return card(
        968,
        336,
        f"{title}: objective and certified gap against time",
        light_style(),
        left.replace("<svg", f'<svg x="14" {size}', 1) + right.replace("<svg", f'<svg x="490" {size}', 1),
    )


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU time limit per run")
    parser.add_argument("--out", type=Path, default=IMG, help="folder for the images")
    args = parser.parse_args()
    print_head("data | loss | lam | solver | to 1 % | to 0.1 % | proved 1 % | proved 0.1 %")
    for file in args.only:
        name, loss, lam = CASES[file]
        data = read(name, args.data)
        if data is None:
            continue
        risk = rm.linear_risk(data.X, data.y, loss)
        runs = {}
        for solver, (_, choice) in SOLVERS.items():
            for strength, seconds in ((1.0, 1.0), (lam, args.seconds)):  # the first compiles or loads kernels
                obj = rm.Objective(risk, rm.L2(), strength)
                runs[solver] = run(obj, lambda watch, choice=choice: choice, seconds, tol=SMALLEST_GAP)
        best = min(timed_run.result.value for timed_run in runs.values())
        for solver, timed_run in runs.items():
            cells = [timed_run.reached((1 + tol) * best) for tol in (1e-2, 1e-3)]
            cells += [timed_run.proved(tol) for tol in (1e-2, 1e-3)]
            entries = " | ".join(map(short, cells))
            print(f"| {name} | {loss} | {lam:.0e} | {solver} | {entries} |", flush=True)
        (args.out / f"{file}.svg").write_text(picture(name, loss, lam, runs), encoding="utf-8")


if __name__ == "__main__":
    main()
