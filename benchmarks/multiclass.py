"""Multiclass losses: CPU seconds to 1e-3, 1e-4 and 1e-6, compared with LIBLINEAR and scikit-learn.

    python -m benchmarks.multiclass FOLDER [--only usps letter] [--losses hinge] [--seconds 20] [--rounds 2]

All minimize the same J(W) = mean loss + lam |W|^2 / 2 without intercepts, with Crammer and Singer's hinge or
the softmax loss. riskmin is measured twice: until J is within the tolerance of the optimum, like the peers,
including the computation of cuts and bounds; and until that is *proved*. A peer is fitted from a cold start
with a sequence of tolerances or iteration limits; its time is that of the fastest setting whose J is good
enough. LIBLINEAR is its authors' package (-s 4) and scikit-learn's copy of it. The optimum is the lower bound
of an untimed run of riskmin, or the smallest J of all solvers if that run was cut short. The time of riskmin
includes building the risk but not compiling the kernels. Rounds are interleaved, all solvers run in one
thread, and the minimum over rounds counts.
The folder holds usps.train, letter, satimage and news20mc.train (see benchmarks/RESULTS.md); letter is
divided by its maximum, 15, the columns of satimage are standardized, and the rows of news20mc have norm one.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.script import print_head, script_parser
from riskmin.data import load

CHOLESKY_MAX_WEIGHTS = 5000
"""Largest number of weights for newton-cholesky, which forms the full Hessian."""
LAMS, GOALS = (1e-2, 1e-4, 1e-6), (1e-3, 1e-4, 1e-6)
LOSSES = {"hinge": rm.MulticlassHinge(), "softmax": rm.Softmax()}


# ---------------------------------------------------------------- data
def read(name, folder):
    """Rows and classes, numbered from 0."""
    whole = name in ("letter", "satimage")
    X, y, *_ = load(folder / f"{name}{'' if whole else '.train'}.svm.xz")
    y = np.unique(y, return_inverse=True)[1].astype(float)
    if name == "news20mc":
        X = sp.csr_array(X)
        length = np.sqrt((X * X).sum(axis=1))
        return sp.csr_array(sp.diags_array(1 / np.where(length, length, 1.0)) @ X), y
    X = X.toarray() if sp.issparse(X) else X
    if name == "satimage":
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X / (15 if name == "letter" else 1), y


# ---------------------------------------------------------------- peers: rung -> w
def liblinear(X, y, lam):
    from liblinear.liblinearutil import parameter, problem, train

    prob, n_classes = problem(y, sp.csr_matrix(X)), int(y.max()) + 1

    def fit(eps):
        model = train(prob, parameter(f"-s 4 -c {1 / (lam * len(y)):.17g} -e {eps:g} -q"))
        W = np.zeros((X.shape[1], n_classes))
        for k, label in enumerate(model.get_labels()):
            W[:, int(label)] = model.get_decfun(label_idx=k)[0]
        return W

    return fit, (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


def linear_svc(X, y, lam):
    from sklearn.svm import LinearSVC

    def fit(tol):
        model = LinearSVC(
            multi_class="crammer_singer", C=1 / (lam * len(y)), tol=tol, fit_intercept=False, max_iter=100_000
        )
        return _weights(model.fit(X, y))

    return fit, (1.0, 1e-1, 1e-2, 1e-3, 1e-4)


def logistic(solver, rungs):
    def make(X, y, lam):
        from sklearn.linear_model import LogisticRegression

        def fit(steps):
            how = {"fit_intercept": False, "tol": 1e-12, "max_iter": steps}
            return _weights(LogisticRegression(C=1 / (lam * len(y)), solver=solver, **how).fit(X, y))

        return fit, rungs

    return make


def _weights(model):
    coef = np.asarray(model.coef_, dtype=float)
    return coef.T if len(coef) > 1 else np.concatenate([-0.5 * coef, 0.5 * coef]).T


PEERS = {
    "hinge": {"LIBLINEAR -s 4": liblinear, "LinearSVC crammer_singer": linear_svc},
    "softmax": {
        "LogisticRegression lbfgs": logistic("lbfgs", (10, 20, 40, 70, 100, 150, 200, 300, 500, 800, 1200)),
        "LogisticRegression newton-cg": logistic("newton-cg", (2, 4, 6, 8, 10, 14, 20, 30)),
        "LogisticRegression newton-cholesky": logistic(
            "newton-cholesky", (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20)
        ),
    },
}


def climb(fit, rungs, obj, seconds):
    """(seconds, J) of each setting, until their total time exceeds the limit."""
    points, spent = [], 0.0
    for rung in rungs:
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # convergence warnings are expected
            W = fit(rung)
        points.append((time.process_time() - start, obj.value(np.ascontiguousarray(W).ravel())))
        spent += points[-1][0]
        if spent > seconds:
            break
    return points


# ---------------------------------------------------------------- ours
def ours(X, y, loss, lam, solver, seconds):
    """(seconds, J, lower bound) of each iterate, up to the last goal or the time limit."""
    rows, start = [], time.process_time()

    def record(it, row):
        rows.append((time.process_time() - start, row["value"], row["lower"]))
        return rows[-1][0] > seconds

    obj = rm.Objective(rm.linear_risk(X, y, loss), rm.L2(), lam)
    rm.minimize(obj, solver, tol=0.5 * GOALS[-1], callback=record)
    return rows


def times(rows, optimum):
    """First times at which J reaches each goal, and at which lower bounds prove it."""
    reached = {g: min((t for t, v, *_ in rows if v <= optimum * (1 + g)), default=np.inf) for g in GOALS}
    proved = {g: min((t for t, v, *b in rows if b and v - b[0] <= g * v), default=np.inf) for g in GOALS}
    return reached, proved


# ---------------------------------------------------------------- the table
def best(runs):
    return {g: min(run[g] for run in runs) for g in GOALS}


def cell(name, X, y, kind, lam, solvers, seconds, rounds):
    loss = LOSSES[kind]
    obj = rm.Objective(rm.linear_risk(X, y, loss), rm.L2(), lam)
    peers = dict(usable(X, y, kind, lam))
    our_runs, peer_runs = {s: [] for s in solvers}, {p: [] for p in peers}
    for _ in range(rounds):
        for s in our_runs:
            our_runs[s].append(ours(X, y, loss, lam, SOLVERS[s], seconds))
        for p, how in peers.items():
            peer_runs[p].append(climb(*how, obj, seconds))
    low = max(b for runs in our_runs.values() for rows in runs for *_, b in rows)
    all_runs = (*our_runs.values(), *peer_runs.values())
    optimum = min(v for runs in all_runs for rows in runs for _, v, *_ in rows)
    optimum = max(low, optimum * (1 - 1e-7)) if low < optimum * (1 - 1e-6) else low
    for s, runs in our_runs.items():
        times_by_goal = [times(rows, optimum) for rows in runs]
        line(name, kind, lam, f"riskmin {s}", best([r for r, _ in times_by_goal]))
        line(name, kind, lam, f"riskmin {s}, proved", best([p for _, p in times_by_goal]))
    for p, runs in peer_runs.items():
        line(name, kind, lam, p, best([times(rows, optimum)[0] for rows in runs]))


SOLVERS = {
    "ascent": rm.DualCoordinateAscent(),
    "smoothing": rm.Smoothing(),
    "lbfgs": rm.Lbfgs(),
    "newton": rm.Newton(),
}


def usable(X, y, kind, lam):
    """The installed peers, with X in their format."""
    data = sp.csr_matrix(X) if sp.issparse(X) else X
    large = X.shape[1] * (y.max() + 1) > CHOLESKY_MAX_WEIGHTS
    for name, make in PEERS[kind].items():
        if large and name.endswith("cholesky"):
            continue
        try:
            yield name, make(data, y, lam)
        except ImportError:
            continue


def line(name, kind, lam, who, times_by_goal):
    shown = [f"{times_by_goal[g]:.2f}" if np.isfinite(times_by_goal[g]) else "-" for g in GOALS]
    print(f"| {name} | {kind} | {lam:g} | {who} | {' | '.join(shown)} |", flush=True)


def main():
    parser = script_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=["usps", "letter", "satimage", "news20mc"])
    parser.add_argument("--losses", nargs="*", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--lams", nargs="*", type=float, default=list(LAMS))
    parser.add_argument("--smoothing", action="store_true", help="also measure Smoothing for the hinge")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit per solver and cell")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    print_head("data | loss | lam | solver | CPU s to 1e-3 | to 1e-4 | to 1e-6")
    for name in args.only:
        X, y = read(name, args.folder)
        for kind in args.losses:
            solvers = ["newton", *(["lbfgs"] if kind == "softmax" else ["ascent"])]
            solvers += ["smoothing"] * (args.smoothing and kind == "hinge")
            for s in solvers:
                ours(X, y, LOSSES[kind], 1e-2, SOLVERS[s], 0.5)  # compile or load the kernels
            for lam in args.lams:
                cell(name, X, y, kind, lam, solvers, args.seconds, args.rounds)


if __name__ == "__main__":
    main()
