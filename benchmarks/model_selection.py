"""Paths and cross-validation beside scikit-learn and celer, and beside runs that each read the rows.

    OMP_NUM_THREADS=1 python -m benchmarks.model_selection [--rounds 5] [--only 1000x20 10000x50]

CPU seconds of one thread, interleaved; the least of all rounds counts. The data are drawn: neighboring
columns with correlation 1/2, ten true columns, R^2 about 2/3, an intercept. Every lam of ours is proved to a
relative gap of 1e-3. "Before" is the same call without joint runs and shared second moments.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness.machine import set_threads

set_threads(1)  # before NumPy is imported

import numpy as np  # noqa: E402
from sklearn.linear_model import (  # noqa: E402
    ElasticNetCV,
    LassoCV,
    LogisticRegressionCV,
    RidgeCV,
    lasso_path,
)

import riskmin as rm  # noqa: E402
from benchmarks.ablation.switches import SWITCHES, switched_off  # noqa: E402
from benchmarks.harness.script import print_head, script_parser  # noqa: E402

try:
    from celer import celer_path
except ImportError:  # its row is left out
    celer_path = None

SHAPES = ((1000, 20), (10_000, 50), (500, 200), (5000, 500))
LAMS, ALPHAS, FOLDS = 100, 13, 5
SHARED = SWITCHES["path: joint runs"]
Call = Callable[[], Any]


def draw(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    for j in range(1, p):
        X[:, j] = 0.5 * X[:, j - 1] + np.sqrt(0.75) * X[:, j]
    z = X[:, rng.choice(p, 10, replace=False)] @ rng.standard_normal(10)
    return X, z + 0.7 * z.std() * rng.standard_normal(n) + 3


def tasks(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, Call, dict[str, Call]]]:
    """The name of each task, ours, and those of the peers."""
    n, centered = len(y), X - X.mean(axis=0)
    F, t = np.asfortranarray(centered), y - y.mean()
    risk = rm.linear_risk(X, y, rm.Squared(), fit_intercept=True)
    lams = rm.lam_grid(risk, rm.L1(), LAMS)
    ridge = np.geomspace(1, 1e-6, ALPHAS)
    peers: dict[str, Call] = {"lasso_path": lambda: lasso_path(F, t, alphas=lams)}
    if celer_path is not None:
        peers["celer"] = lambda: celer_path(F, t, "lasso", alphas=lams)
    yield f"L1 path, {LAMS} lam", lambda: rm.path(risk, rm.L1(), lams), peers
    yield (
        f"L1, {LAMS} alphas x {FOLDS} folds",
        lambda: rm.LinearRegressorCV(regularizer="l1", alphas=lams, cv=FOLDS).fit(X, y),
        {"LassoCV": lambda: LassoCV(alphas=lams, cv=FOLDS).fit(X, y)},
    )
    elastic = rm.lam_grid(risk, rm.Elastic(), LAMS)
    yield (
        f"elastic net, {LAMS} alphas x {FOLDS} folds",
        lambda: rm.LinearRegressorCV(regularizer="elastic", alphas=elastic, cv=FOLDS).fit(X, y),
        {"ElasticNetCV": lambda: ElasticNetCV(alphas=2 * elastic, l1_ratio=0.5, cv=FOLDS).fit(X, y)},
    )
    yield (
        f"ridge, {ALPHAS} alphas x {FOLDS} folds",
        lambda: rm.LinearRegressorCV(alphas=ridge, cv=FOLDS).fit(X, y),
        {"RidgeCV, leave-one-out": lambda: RidgeCV(alphas=n * ridge).fit(X, y)},
    )
    signs = np.where(y > np.median(y), 1.0, -1.0)
    top = rm.lam_max(rm.linear_risk(X, signs, rm.Logistic(), fit_intercept=True), rm.L1())
    alphas = top * np.geomspace(1, 1e-3, 10)
    for reg, solver in (("l2", "lbfgs"), ("l1", "liblinear")):
        settings = {"Cs": 1 / (alphas * n * (1 - 1 / FOLDS)), "cv": FOLDS, "solver": solver}
        settings |= {"l1_ratios": (float(reg == "l1"),), "use_legacy_attributes": False}
        yield (
            f"logistic {reg.upper()}, 10 alphas x {FOLDS} folds",
            lambda reg=reg: rm.LinearClassifierCV("logistic", regularizer=reg, alphas=alphas, cv=FOLDS).fit(
                X, signs
            ),
            {f"LogisticRegressionCV {solver}": lambda s=settings: LogisticRegressionCV(**s).fit(X, signs)},
        )


def without(call: Call) -> Call:
    """The call with a run for each lam, which reads the rows."""

    def run() -> Any:
        with switched_off(SHARED):
            return call()

    return run


def least(calls: dict[str, Call], rounds: int, limit: float) -> dict[str, float]:
    """The least CPU milliseconds of each call; those above the limit run once after the first round."""
    best: dict[str, float] = {}
    for k in range(rounds + 1):
        for name, call in calls.items():
            if k > 1 and best[name] > limit:
                continue
            start = time.process_time()
            call()
            spent = 1e3 * (time.process_time() - start)
            # the first round loads kernels
            best[name] = min(best[name], spent) if k > 1 else spent
    return best


def main() -> None:
    parser = script_parser(__doc__)
    names = [f"{n}x{p}" for n, p in SHAPES]
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    parser.add_argument("--limit", type=float, default=1000.0, help="milliseconds; longer calls run twice")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print_head("rows x columns | task | ours, ms | before | peers, ms | fastest peer / ours")
    for (n, p), name in zip(SHAPES, names, strict=True):
        if name not in args.only:
            continue
        for task, ours, peers in tasks(*draw(n, p)):
            times = least({"ours": ours, "before": without(ours)} | peers, args.rounds, args.limit)
            mine, before = times.pop("ours"), times.pop("before")
            shown = ", ".join(f"{peer} {spent:.3g}" for peer, spent in times.items())
            ratio = min(times.values()) / mine
            print(f"| {n} x {p} | {task} | {mine:.3g} | {before:.3g} | {shown} | {ratio:.2g} |", flush=True)


if __name__ == "__main__":
    main()
