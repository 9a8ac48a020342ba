"""Estimators at their defaults beside scikit-learn's: one large fit, and ten alphas in five folds.

    OMP_NUM_THREADS=1 python -m benchmarks.estimators [--rounds 5]

CPU seconds of one thread, interleaved; the minimum of all rounds counts. The data are drawn: a linear model
with noise. Both sides solve the same problems, alpha = 1 / (C n); scikit-learn's stop at a gradient of 1e-4,
ours at a proved relative gap of 1e-3.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

from benchmarks.harness.script import print_head, script_parser
from riskmin import LinearClassifier, LinearClassifierCV

ALPHAS = np.geomspace(1e-6, 1e-1, 10)


def draw(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    return X, (X @ rng.standard_normal(p) + 3 * rng.standard_normal(n) > 0).astype(int)


def cases():
    """For each line of the table: its name, the data, and the two estimators."""
    X, y = draw(1_000_000, 20)
    yield "logistic, 1 000 000 x 20", X, y, LinearClassifier("logistic"), LogisticRegression()
    for n, p in ((5000, 30), (20_000, 100)):
        X, y = draw(n, p)
        theirs = LogisticRegressionCV(Cs=1 / (ALPHAS * n), cv=5, l1_ratios=(0,), use_legacy_attributes=False)
        ours = LinearClassifierCV("logistic", alphas=ALPHAS, cv=5)
        yield f"logistic, 10 alphas, 5 folds, {n} x {p}", X, y, ours, theirs


def seconds(model, X, y) -> float:
    start = time.process_time()
    model.fit(X, y)
    return time.process_time() - start


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    print_head("fit | ours, s | scikit-learn, s | scikit-learn / ours")
    for name, X, y, ours, theirs in cases():
        seconds(ours, X[:500], y[:500])  # load the kernels
        times = [[seconds(model, X, y) for model in (ours, theirs)] for _ in range(rounds)]
        a, b = (min(column) for column in zip(*times, strict=True))
        print(f"| {name} | {a:.3f} | {b:.3f} | {b / a:.2f} |", flush=True)


if __name__ == "__main__":
    main()
