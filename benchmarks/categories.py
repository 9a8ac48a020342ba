"""Fits of drawn raw tables: categories of up to thousands of levels beside numbers in any unit.

    OMP_NUM_THREADS=1 python -m benchmarks.categories [--tables 10] [--seed 0] [--seconds 6]
        [--loss hinge ...]

Each table has 200 to 20 000 rows, four categories of 3 to 2500 levels, of which some are frequent, one-hot
encoded into sparse rows, and five columns of numbers in units from 1e-6 to 1e6, half of them with an offset
of 1e-6 to 1e6. Labels are a linear function of all columns with noise; those of regressions have units, too.
Every loss is fitted with and without an intercept for lam = 1e-2 and 1e-5 until a gap of 1e-3 is proved, or
for so many CPU seconds. Fits that fail are printed at once: not proved, or worse than w = 0.
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
    args = parser.parse_args()
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
