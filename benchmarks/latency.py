"""Small fits: CPU milliseconds of our estimators and of the nearest ones of scikit-learn, with intercepts.

    OMP_NUM_THREADS=1 python -m benchmarks.latency [--rounds 15] [--loss hinge ...] [--alpha 1e-3]

The median of the rounds, ours and theirs in turn, after two fits that load compiled code. Ours stop at a
certified relative gap of 1e-3, theirs by their own default tolerance; both minimize the same objective where
it exists there. `LinearSVC` penalizes its intercept; `QuantileRegressor` has an L1 penalty.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import numpy as np
from sklearn import linear_model, svm

from benchmarks.harness.script import print_head, script_parser
from riskmin import LinearClassifier, LinearRegressor

SHAPES = (100, 20), (150, 4), (1000, 20)


def cases(alpha: float, n: int) -> dict[str, tuple[Any, Any, str]]:
    """Our estimator, that of scikit-learn, and the kind of labels, by loss."""
    C = 1 / (alpha * n)
    hinge = svm.LinearSVC(loss="hinge", C=C, max_iter=10_000)
    logistic = linear_model.LogisticRegression(C=C)
    quantile = linear_model.QuantileRegressor(alpha=alpha)
    return {
        "hinge": (LinearClassifier("hinge", alpha=alpha), hinge, "sign"),
        "squared_hinge": (LinearClassifier("squared_hinge", alpha=alpha), svm.LinearSVC(C=C / 2), "sign"),
        "logistic": (LinearClassifier("logistic", alpha=alpha), logistic, "sign"),
        "multinomial": (LinearClassifier("logistic", alpha=alpha), logistic, "class"),
        "quantile": (LinearRegressor("quantile", alpha=alpha), quantile, "number"),
        "huber": (LinearRegressor("huber", alpha=alpha), linear_model.HuberRegressor(alpha=alpha), "number"),
        "squared": (LinearRegressor("squared", alpha=alpha), linear_model.Ridge(alpha * n), "number"),
        "poisson": (
            LinearRegressor("poisson", alpha=alpha),
            linear_model.PoissonRegressor(alpha=alpha),
            "count",
        ),
    }


def labels(n: int, p: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Gaussian rows, and labels of each kind from one noisy linear score."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    z = X @ rng.standard_normal(p) / p**0.5 + 0.5 * rng.standard_normal(n) + 0.3
    count = rng.poisson(np.exp(0.5 * z)).astype(float)
    return X, {"sign": z > 0, "class": np.digitize(z, [-0.5, 0.5]), "number": z, "count": count}


def in_turn(models: list[Any], X: np.ndarray, y: np.ndarray, rounds: int) -> list[float]:
    """The median CPU milliseconds of a fit of each model."""
    times: list[list[float]] = [[] for _ in models]
    for k in range(rounds + 2):
        for model, taken in zip(models, times, strict=True):
            start = time.process_time()
            model.fit(X, y)
            if k > 1:
                taken.append(1e3 * (time.process_time() - start))
    return [statistics.median(taken) for taken in times]


def main() -> None:
    parser = script_parser(__doc__)
    losses = list(cases(1e-3, 100))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--loss", action="append", choices=losses)
    parser.add_argument("--alpha", type=float, default=1e-3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print_head("loss | rows x columns | ours, ms | scikit-learn, ms | ours / theirs | iterations")
    for loss in args.loss or losses:
        for n, p in SHAPES:
            X, y = labels(n, p)
            ours, theirs, kind = cases(args.alpha, n)[loss]
            a, b = in_turn([ours, theirs], X, y[kind], args.rounds)
            name = type(theirs).__name__
            print(
                f"| {loss} | {n} x {p} | {a:.2f} | {b:.2f} ({name}) | {a / b:.1f} | {ours.n_iter_} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
