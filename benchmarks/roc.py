"""ROC area: riskmin compared with cutting planes, dlib's ranking SVM and stochastic gradients, at equal J.

    OMP_NUM_THREADS=1 python -m benchmarks.roc --data FOLDER
        [--only "rcv1 CCAT" dense20k calls] [--lams 1e-4 1e-6] [--seconds 8] [--json FILE]

J(w) = lam |w|^2 / 2 + the mean over pairs of max(0, 1 - (z_i - z_j)). CPU seconds of one thread until J is
within 1e-2 and 1e-3 of the best known value; for riskmin also until that is *proved*.

- Bmrm: the algorithm of SVM-perf, one cut per step, as implemented in riskmin;
- SMS: L-BFGS on the smoothed J with the fixed mu of Zhang et al. (2012);
- dlib: `svm_rank_trainer_sparse`, if dlib can be imported; cold starts with decreasing epsilon; the
  time is that of the first epsilon that is good enough;
- SGD: stochastic gradients as in LibAUC, over all pairs of b positives and b negatives drawn at each step,
  compiled, with averaging. The best of a grid of b and step sizes; the time of the other settings and of
  evaluating J is not counted.

"calls" is the time of one value with subgradient for 10 million scores, a tenth of them positive.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.data import dense, rcv1_ccat
from benchmarks.harness.script import print_head, script_parser
from benchmarks.watch import Sms, Watch, paper_mu, run

GOALS = (1e-2, 1e-3)
ETAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
BATCHES = (8, 64)


# ---------------------------------------------------------------- data
SETS = {"rcv1 CCAT": rcv1_ccat, "dense20k": lambda folder: dense(n=20_000)}


class Times(NamedTuple):
    """The first time at which each goal was met, and the best J."""

    seconds: list[float | None]
    best: float
    setting: str = ""


def first_times(points, goals):
    """First times at which J is at most each goal, from (seconds, J) in order of time."""
    return [next((s for s, value in points if value <= goal), None) for goal in goals]


# ---------------------------------------------------------------- stochastic gradients
@numba.njit(cache=True)
def sgd(data, indices, indptr, pairs, state, lam, eta, margins):  # pragma: no cover - compiled
    """One step per row of `pairs`: its first half are positives, its second half negatives.

    w = s v, and the sum of all iterates is u + a v, so that the cost of a step is that of its rows.
    """
    v, u, numbers = state
    s, a, t = numbers
    half = pairs.shape[1] // 2
    dz = np.empty(2 * half)
    for rows in pairs:
        t += 1.0
        rate = eta / (1.0 + eta * lam * t)
        for k in range(2 * half):
            z = 0.0
            for m in range(indptr[rows[k]], indptr[rows[k] + 1]):
                z += data[m] * v[indices[m]]
            margins[k] = s * z
        dz[:] = 0.0
        for i in range(half):
            for j in range(half, 2 * half):
                if margins[i] - margins[j] < 1.0:
                    dz[i] += 1.0
                    dz[j] -= 1.0
        s *= 1.0 - rate * lam
        for k in range(2 * half):
            if dz[k] != 0.0:
                step = rate * dz[k] / (half * half * s)
                for m in range(indptr[rows[k]], indptr[rows[k] + 1]):
                    v[indices[m]] += step * data[m]
                    u[indices[m]] -= a * step * data[m]
        a += s
    numbers[0], numbers[1], numbers[2] = s, a, t


def stochastic(X, y, lam, eta, b, seconds, J):
    """(seconds, J) after passes: the smaller J of the last point and of the average of the last passes."""
    rng = np.random.default_rng(0)
    X = sp.csr_array(X)
    above, below = np.flatnonzero(y > 0), np.flatnonzero(y < 0)
    v, u, numbers = np.zeros(X.shape[1]), np.zeros(X.shape[1]), np.array([1.0, 0.0, 0.0])
    margins, n_steps, done = np.empty(2 * b), max(1, len(y) // (2 * b)), 0
    due = 1  # next pass after which J is evaluated: first every pass, then in steps of 5 %
    fresh = 0.0  # the step at which the average starts
    watch, points = Watch(), []
    while watch.seconds() < seconds:
        pairs = np.hstack([rng.choice(above, (n_steps, b)), rng.choice(below, (n_steps, b))])
        sgd(X.data, X.indices, X.indptr, pairs, (v, u, numbers), lam, eta, margins)
        done += 1
        if done >= due:
            with watch.paused():
                s, a, t = numbers
                points.append((watch.seconds(), min(J(s * v), J((u + a * v) / (t - fresh)))))
            due = max(due + 1, round(1.05 * done))
        if done & (done - 1) == 0:  # restart the average at powers of two
            u, fresh = np.zeros_like(u), numbers[2]
            numbers[1] = 0.0
    return points


def best_sgd(X, y, lam, seconds, J, best):
    """The best of the grid for each goal."""
    mean_square = float(np.mean(np.asarray((sp.csr_array(X) ** 2).sum(axis=1))))
    stochastic(X, y, lam, 1.0, 1, 0.01, J)  # compile the kernel
    runs = []
    for b in BATCHES:
        for eta in ETAS:
            points = stochastic(X, y, lam, eta / mean_square, b, seconds, J)
            runs.append((points, f"b {b}, eta {eta:g} / mean x·x"))
    times, tuned = [], ""
    for goal in GOALS:
        reached = [(first_times(points, [(1 + goal) * best])[0], setting) for points, setting in runs]
        reached = [one for one in reached if one[0] is not None]
        times.append(min(reached)[0] if reached else None)
        tuned = min(reached)[1] if reached else tuned
    value = min(value for points, _ in runs for _, value in points)
    return Times(times, value, tuned)


# ---------------------------------------------------------------- dlib
def best_dlib(X, y, lam, seconds, J, best):
    """Decreasing epsilon; None if dlib is not installed."""
    try:
        import dlib
    except ImportError:
        return None
    X = sp.csr_array(X)
    ranks = dlib.sparse_ranking_pair()
    for part, rows in ((ranks.relevant, X[y > 0]), (ranks.nonrelevant, X[y < 0])):
        for k in range(rows.shape[0]):
            lo, hi = rows.indptr[k], rows.indptr[k + 1]
            cells = zip(rows.indices[lo:hi], rows.data[lo:hi], strict=True)
            part.append(dlib.sparse_vector([dlib.pair(int(j), float(x)) for j, x in cells]))
    points, spent = [], 0.0
    for epsilon in (0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5):
        trainer = dlib.svm_rank_trainer_sparse()
        trainer.c, trainer.epsilon = 1 / lam, epsilon
        start = time.process_time()
        model = trainer.train(ranks)
        took = time.process_time() - start
        spent += took
        w = np.zeros(X.shape[1])
        for cell in model.weights:
            w[cell.first] = cell.second
        points.append((took, J(w)))
        if points[-1][1] <= (1 + GOALS[-1]) * best or spent > seconds:
            break
    return Times(first_times(points, [(1 + goal) * best for goal in GOALS]), min(v for _, v in points))


# ---------------------------------------------------------------- the tables
def cell(name, X, y, lam, seconds):
    obj = rm.Objective(rm.linear_risk(X, y, "roc_area"), rm.L2(), lam)
    run(rm.Objective(obj.risk, rm.L2(), 1.0), lambda watch: None, 1.0, tol=0.1)  # compile or load the kernels
    ours = run(obj, lambda watch: None, seconds, tol=1e-4)
    goal = (1 + GOALS[-1]) * ours.result.lower
    runs = {
        "ours": ours,
        "Bmrm": run(obj, lambda watch: rm.Bmrm(), seconds, goal),
        "SMS": run(obj, lambda watch: Sms(paper_mu("roc_area"), watch=watch), seconds, goal),
    }
    best = min(r.result.value for r in runs.values())
    lower = max(r.result.lower for r in runs.values())
    goals = [(1 + goal) * best for goal in GOALS]
    results = {
        who: Times([row.seconds if (row := r.reached(goal)) else None for goal in goals], r.result.value)
        for who, r in runs.items()
    }
    proved = [row.seconds if (row := ours.proved(goal)) else None for goal in GOALS]
    results["ours, proved"] = Times(proved, ours.result.value, ours.result.solver)
    results["dlib"] = best_dlib(X, y, lam, seconds, obj.value, best)
    results["SGD"] = best_sgd(X, y, lam, seconds / 2, obj.value, best)
    return [
        {
            "data": name,
            "lam": lam,
            "solver": who,
            "seconds": times.seconds if times else None,
            "end": times.best / best - 1 if times else None,
            "setting": times.setting if times else "not installed",
            "best": best,
            "known": 1 - lower / best,
        }
        for who, times in results.items()
    ]


def line(row):
    times = row["seconds"] or [None, None]
    seconds = " | ".join("-" if t is None else f"{t:.3g}" for t in times)
    end = "" if row["end"] is None else f"{max(row['end'], 0):.0e}"
    return f"| {row['data']} | {row['lam']:.0e} | {row['solver']} | {seconds} | {end} | {row['setting']} |"


def calls(n):
    """Print the time of one value with subgradient of each loss, for n scores."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n) < 0.1, 1.0, -1.0)
    z, c = rng.standard_normal(n) + y, np.full(n, 1 / n)
    grades = rng.integers(0, 5, n).astype(float)
    losses = {
        "RocArea()": (rm.RocArea().value_grad, y),
        "RocArea(), smoothed": (lambda *args: rm.RocArea().smoothed_value_grad(*args, 0.02), y),
        "Prbep()": (rm.Prbep().value_grad, y),
        "Prbep(), smoothed": (lambda *args: rm.Prbep().smoothed_value_grad(*args, 0.01), y),
        "FBeta()": (rm.FBeta().value_grad, y),
        "PrecisionAtK(k=1000)": (rm.PrecisionAtK(k=1000).value_grad, y),
        "RecallAtK(k=1000)": (rm.RecallAtK(k=1000).value_grad, y),
        "Ordinal(), 5 grades": (rm.Ordinal().value_grad, grades),
    }
    print(f"\n| loss | CPU s for {n:,} scores |\n|---|---|")
    rows = []
    for name, (oracle, labels) in losses.items():
        oracle(z[:20_000], labels[:20_000], np.full(20_000, 1 / 20_000))  # compile or load the kernels
        took = []
        for _ in range(2):
            start = time.process_time()
            oracle(z, labels, c)
            took.append(time.process_time() - start)
        rows.append({"loss": name, "n": n, "seconds": min(took)})
        print(f"| `{name}` | {min(took):.2f} |", flush=True)
    return rows


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the svmlight files; not needed for calls")
    parser.add_argument("--only", nargs="*", default=[*SETS, "calls"], choices=[*SETS, "calls"])
    parser.add_argument("--lams", nargs="*", type=float, default=[1e-4, 1e-6])
    parser.add_argument("--seconds", type=float, default=8.0, help="CPU time limit per cell and solver")
    parser.add_argument("--scores", type=int, default=10_000_000, help="number of scores for calls")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.data is None and "rcv1 CCAT" in args.only:
        parser.error("rcv1 CCAT needs --data, a folder of svmlight files")
    rows = []
    for name in args.only:
        if name == "calls":
            continue
        try:
            X, y = SETS[name](args.data)
        except FileNotFoundError as error:
            print(f"{name} left out: {error}")
            continue
        for lam in args.lams:
            new = cell(name, X, y, lam, args.seconds)
            rows += new
            print(f"\n{name}, lam {lam:.0e}: min J {new[0]['best']:.6g}, known to {new[0]['known']:.0e}\n")
            print_head("data | lam | solver | to 1e-2 | to 1e-3 | above min J at its end |")
            print("\n".join(line(row) for row in new), flush=True)
    if "calls" in args.only:
        rows += calls(args.scores)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
