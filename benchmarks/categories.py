"""Fits of drawn raw tables: categories of up to thousands of levels beside numbers in any unit.

    OMP_NUM_THREADS=1 python -m benchmarks.categories [--tables 10] [--seed 0] [--seconds 6]
        [--loss hinge ...] [--classes]

Each table has 200 to 20 000 rows, four categories of 3 to 2500 levels, of which some are frequent, one-hot
encoded into sparse rows, and five columns of numbers in units from 1e-6 to 1e6, half of them with an offset
of 1e-6 to 1e6. Labels are a linear function of all columns with noise; those of regressions have units, too.
Every loss is fitted with and without an intercept for lam = 1e-2 and 1e-5 until a gap of 1e-3 is proved, or
for so many CPU seconds. Fits that fail are printed at once: not proved, or worse than w = 0.

With --classes, tables have 60 to 1200 rows, 2 to 18 columns and 3 to 9 classes. Every other one has levels of
people and money, 1e4 to 1e9, times ratios near one; the others have correlated columns in units of 1e-6 to
1e10, half of them with an offset. `LinearClassifier` is fitted with its default settings.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness.script import print_head, script_parser

LABELS = {
    **dict.fromkeys(("squared", "huber", "absolute", "quantile:level=0.9", "epsilon_insensitive"), "numbers"),
    **dict.fromkeys(("logistic", "squared_hinge", "hinge"), "signs"),
    "poisson": "counts",
}
"""The losses, and the labels they take."""


def draw(seed: int) -> tuple[Any, dict[str, Any]]:
    """A table, and its labels by kind."""
    rng = np.random.default_rng(seed)
    n, levels = int(rng.integers(200, 20_000)), rng.integers(3, 2500, 4)
    parts = []
    for k in levels:
        share = 1 / np.arange(1, k + 1) ** 1.1
        level = rng.choice(k, size=n, p=share / share.sum())
        parts.append(sp.csr_array((np.ones(n), (np.arange(n), level)), shape=(n, k)))
    units, offsets = 10 ** rng.uniform(-6, 6, 5), 10 ** rng.uniform(-6, 6, 5) * (rng.random(5) < 0.5)
    numbers = rng.standard_normal((n, 5)) * units + offsets
    X = sp.csr_array(sp.hstack([*parts, sp.csr_array(numbers)]))
    z = X @ np.concatenate([rng.standard_normal(levels.sum()), rng.standard_normal(5) / numbers.std(0)])
    z = (z - z.mean()) / z.std()
    signs = np.where(z + 0.5 * rng.standard_normal(n) > 0, 1.0, -1.0)
    targets = (z + 0.3 * rng.standard_normal(n)) * 10 ** rng.uniform(-3, 3) + 10 ** rng.uniform(-3, 3)
    counts = rng.poisson(np.exp(0.7 * z)).astype(float)
    return X, {"signs": signs, "numbers": targets, "counts": counts}


def draw_classes(seed: int) -> tuple[Any, Any]:
    """A table in raw units, and its classes."""
    rng = np.random.default_rng(seed)
    n, p, k = (int(rng.integers(*limits)) for limits in ((60, 1200), (2, 19), (3, 10)))
    if seed % 2:
        Z = rng.standard_normal((n, p)) @ (np.eye(p) + 0.5 * rng.standard_normal((p, p)))
        X = Z * 10 ** rng.uniform(-6, 10, p) + 10 ** rng.uniform(-6, 10, p) * (rng.random(p) < 0.5)
        return X, (Z @ rng.standard_normal((p, k)) + 2 * rng.standard_normal((n, k))).argmax(axis=1)
    level = np.exp(rng.normal(0, 2, n))
    X = np.round(level[:, None] * np.exp(rng.normal(0, 0.2, (n, p))) * 10 ** rng.uniform(4, 9, p))
    size = np.log(level) + rng.normal(0, 0.5, n)
    return X, np.searchsorted(np.quantile(size, np.arange(1, k) / k), size)


def fit_classes(X: Any, y: Any, loss: str, seconds: float) -> tuple[str, Any, float]:
    """What is wrong with a default fit of several classes, or "", its result, and its CPU seconds."""
    start = time.process_time()
    model = rm.LinearClassifier(loss, callback=lambda *_: time.process_time() - start > seconds)
    result = model.fit(X, y).result_
    took = time.process_time() - start
    if result.status != "converged":
        return f"not proved ({result.status})", result, took
    worse = result.value > result.trace[0]["value"] * (1 + 1e-12)
    return "worse than the first point" if worse else "", result, took


def count_classes(tables: range, seconds: float) -> None:
    """Print the certified fits of tables of several classes, and their CPU seconds."""
    for loss in ("hinge", "logistic", "squared_hinge"):  # the first fit compiles
        fit_classes(*draw_classes(0), loss, 60.0)
    print_head("loss | fits | certified | CPU seconds | largest")
    for loss in ("hinge", "logistic", "squared_hinge"):
        times, certified = [], 0
        for seed in tables:
            X, y = draw_classes(seed)
            wrong, result, took = fit_classes(X, y, loss, seconds)
            times.append(took)
            certified += not wrong
            if wrong:
                print(
                    f"table {seed}, {X.shape[0]} x {X.shape[1]}, {loss}: {wrong}, gap {result.gap:.1e}",
                    flush=True,
                )
        print(f"| {loss} | {len(times)} | {certified} | {sum(times):.1f} | {max(times):.2f} |", flush=True)


def fit(X: Any, y: Any, loss: str, intercept: bool, lam: float, seconds: float) -> tuple[str, Any, float]:
    """What is wrong with a fit, or "", its result, and its CPU seconds."""
    start = time.process_time()
    risk = rm.linear_risk(X, y, loss, fit_intercept=intercept)
    result = rm.minimize(
        rm.Objective(risk, rm.L2(), lam), callback=lambda *_: time.process_time() - start > seconds
    )
    took = time.process_time() - start
    if result.status != "converged":
        return f"not proved ({result.status})", result, took
    worse = result.value > risk(np.zeros(X.shape[1]))[0] * (1 + 1e-12)
    return "worse than w = 0" if worse else "", result, took


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--loss", action="append", choices=list(LABELS))
    parser.add_argument("--classes", action="store_true")
    args = parser.parse_args()
    if args.classes:
        count_classes(range(args.seed, args.seed + args.tables), args.seconds)
        return
    fits: Counter[str] = Counter()
    certified: Counter[str] = Counter()
    for seed in range(args.seed, args.seed + args.tables):
        X, labels = draw(seed)
        cases = [
            (loss, b, lam) for loss in args.loss or LABELS for b in (False, True) for lam in (1e-2, 1e-5)
        ]
        for loss, intercept, lam in cases:
            wrong, result, took = fit(X, labels[LABELS[loss]], loss, intercept, lam, args.seconds)
            fits[loss] += 1
            certified[loss] += not wrong
            if wrong:
                name = f"table {seed}, {X.shape[0]} x {X.shape[1]}, {loss}{', b' * intercept}, lam {lam:g}"
                print(f"{name}: {wrong}, gap {result.gap / result.value:.1e}, {took:.1f} s", flush=True)
    print_head("loss | fits | certified")
    for loss, total in fits.items():
        print(f"| {loss} | {total} | {certified[loss]} |")
    print(f"| **all** | {fits.total()} | {certified.total()} |")


if __name__ == "__main__":
    main()
