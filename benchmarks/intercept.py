"""What an unpenalized intercept costs: the same fits with and without one, to the same certified gap.

    python -m benchmarks.intercept [--sets tall text ...] [--tasks hinge ...] [--lam 1e-4] [--tol 1e-3]

CPU seconds of one thread, minimum of the rounds, with kernels compiled before the clock starts; `evaluations`
counts evaluations of the loss on all rows, in line searches and for intercepts. Labels are nearly balanced
and columns nearly centered, so that the best intercept is small: both problems are equally hard.
"""

from __future__ import annotations

import statistics
import time
import warnings
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.script import script_parser
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.risk import ScoreCursor

REGRESSION = ("quantile", "absolute", "epsilon_insensitive", "huber", "squared")
TASKS = (
    "hinge", "squared_hinge", "logistic", *REGRESSION, "poisson", "softmax", "multiclass_hinge",
    "l1_logistic", "l1_squared",
)  # fmt: skip


def dense(n: int, p: int, rng: Any) -> Any:
    """Normal entries."""
    return rng.standard_normal((n, p))


def sparse(n: int, p: int, rng: Any, per_row: int = 50) -> Any:
    """Uniformly placed positive entries, rows of norm about one."""
    indices = rng.integers(0, p, (n, per_row))
    data = rng.random(n * per_row) * (2 / per_row) ** 0.5
    X = sp.csr_array((data, indices.reshape(-1), np.arange(0, n * per_row + 1, per_row)), (n, p))
    X.sum_duplicates()
    return X


def text(n: int, p: int, rng: Any, per_row: int = 60) -> Any:
    """Column frequencies follow a power law, weighted by inverse document frequencies, rows of norm one."""
    indices = np.minimum(p * rng.random((n, per_row)) ** 3, p - 1).astype(np.int64)
    X = sp.csr_array(
        (np.ones(n * per_row), indices.reshape(-1), np.arange(0, n * per_row + 1, per_row)), (n, p)
    )
    X.sum_duplicates()
    counts = np.bincount(X.indices, minlength=p)
    X.data = X.data * np.log(n / np.maximum(counts, 1))[X.indices]
    norms = np.sqrt(X.multiply(X).sum(1))
    return sp.csr_array(X.multiply(1 / np.maximum(norms, 1e-12)[:, None]))


SETS = {
    "small": (dense, 5000, 20), "tall": (dense, 50_000, 50), "long": (dense, 400_000, 50),
    "sparse": (sparse, 100_000, 2000), "text": (text, 30_000, 20_000), "wide": (dense, 1000, 4000),
}  # fmt: skip


def labels(X: Any, loss: str, rng: Any) -> Any:
    """Labels of a linear model with noise of the size of the signal, and an intercept."""
    z = X @ rng.standard_normal(X.shape[1])
    z = (z - z.mean()) / z.std()
    noisy = z + rng.standard_normal(len(z)) + 0.3
    if loss in ("softmax", "multiclass_hinge"):
        return np.digitize(noisy, [-1.0, 0.3, 1.0]).astype(float)
    if loss == "poisson":
        return rng.poisson(np.exp(0.5 * z + 0.3)).astype(float)
    return noisy if loss in REGRESSION else np.where(noisy > 0, 1.0, -1.0)


@contextmanager
def counted(counts: dict[str, int]) -> Any:
    """Count the evaluations of the loss on all rows."""
    names = (DesignOperator, "map_row_ranges"), (ScoreCursor, "evaluate_at"), (ScoreCursor, "pull_back")
    originals = [getattr(owner, name) for owner, name in names]

    def counting(f: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            counts["evaluations"] += 1
            return f(*args)

        return wrapper

    for (owner, name), f in zip(names, originals, strict=True):
        setattr(owner, name, counting(f))
    try:
        yield
    finally:
        for (owner, name), f in zip(names, originals, strict=True):
            setattr(owner, name, f)


def fit(X: Any, y: Any, task: str, lam: float, tol: float, intercept: bool, limit: float) -> dict[str, Any]:
    """One fit: CPU seconds, steps, evaluations, the solver, and whether the gap was proved."""
    counts, loss = {"evaluations": 0}, task.removeprefix("l1_")
    with counted(counts):
        start = time.process_time()
        risk = rm.linear_risk(X, y, loss, fit_intercept=intercept)
        reg = rm.L1() if task.startswith("l1_") else rm.L2()
        result = rm.minimize(rm.Objective(risk, reg, lam), tol=tol, max_seconds=limit)
        risk.best_intercept(result.w)
        seconds = time.process_time() - start
    solver = result.solver.split("(")[0] + ("..." if ";" in result.solver else "")
    return {
        "s": seconds, "steps": result.n_iter, "evaluations": counts["evaluations"], "solver": solver,
        "proved": result.status == "converged",
    }  # fmt: skip


def compare(X: Any, y: Any, task: str, lam: float, tol: float, args: Any) -> list[dict[str, Any]]:
    """The fastest fit without an intercept, and with one."""
    runs: list[list[dict[str, Any]]] = [[], []]
    for _ in range(args.rounds):
        for intercept, done in zip((False, True), runs, strict=True):
            if not done or (done[0]["s"] < 2 and done[0]["proved"]):
                done.append(fit(X, y, task, lam, tol, intercept, args.limit))
    return [min(done, key=lambda r: r["s"]) for done in runs]


def cells(r: dict[str, Any]) -> str:
    """The cells of one fit."""
    seconds = f"{r['s']:.3f}{'' if r['proved'] else ' not proved'}"
    return f"{seconds} | {r['steps']} | {r['evaluations']} | {r['solver']}"


def summary(name: str, ratios: list[float]) -> str:
    """One line on the ratios of some fits."""
    above = sum(r > 2 for r in ratios)
    return f"{name}: median {statistics.median(ratios):.2f}, largest {max(ratios):.2f}, {above} above 2"


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--sets", nargs="+", default=["small", "tall", "sparse", "text"], choices=list(SETS))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--lam", nargs="+", type=float, default=[1e-2, 1e-4, 1e-6])
    parser.add_argument("--tol", nargs="+", type=float, default=[1e-3, 1e-6])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per fit")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    ratios: dict[str, list[float]] = {task: [] for task in args.tasks}
    head = "s | steps | evaluations | solver"
    print(f"| set | task | lam | tol | without: {head} | with: {head} | with / without |")
    print("| --- " * 13 + "|")
    for name in args.sets:
        make, n, p = SETS[name]
        X = make(n, p, np.random.default_rng(0))
        for task in args.tasks:
            y = labels(X, task.removeprefix("l1_"), np.random.default_rng(1))
            for intercept in (False, True):  # compiles the kernels
                fit(X[:300], y[:300], task, 1e-3, 1e-3, intercept, args.limit)
            for lam, tol in product(args.lam, args.tol):
                without, with_b = compare(X, y, task, lam, tol, args)
                ratios[task].append(with_b["s"] / without["s"])
                problem = f"{name} | {task} | {lam:g} | {tol:g}"
                print(
                    f"| {problem} | {cells(without)} | {cells(with_b)} | {ratios[task][-1]:.2f} |", flush=True
                )
    for task in args.tasks:
        print(summary(task, ratios[task]))
    print(summary("all", [r for each in ratios.values() for r in each]))


if __name__ == "__main__":
    main()
