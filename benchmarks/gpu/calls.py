"""Whole calls on a GPU, as a user makes them: the risk, a run, a fit, predictions and a certificate.

    python -m benchmarks.gpu calls [--repeat 3]

Rows and labels are float32 tensors of torch on the device. Wall seconds, the least of the repetitions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import riskmin

SHAPES = ((4_000_000, 512), (40_000_000, 30), (200_000, 64))
LOSSES: dict[str, Any] = {"logistic": riskmin.Logistic(), "hinge": riskmin.Hinge()}


def best_time(call: Callable[[], Any], repeat: int) -> float:
    """Return the least wall time of some calls, each until the device is idle."""
    import torch

    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(n: int, p: int, repeat: int) -> None:
    """Print a row for each loss of rows of one shape."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(0)
    X = torch.randn(n, p, device="cuda", generator=generator)
    w = torch.randn(p, device="cuda", generator=generator) / p**0.5
    s = X @ w + torch.randn(n, device="cuda", generator=generator)
    y, signs = (s > 0).float(), 2 * (s > 0).float() - 1
    for name, loss in LOSSES.items():
        model = riskmin.LinearClassifier(name, alpha=1e-4).fit(X, y)

        def risk(loss: Any = loss) -> Any:
            return riskmin.linear_risk(X, signs, loss, fit_intercept=True)

        def run(risk: Callable[[], Any] = risk) -> Any:
            return riskmin.minimize(riskmin.Objective(risk(), riskmin.L2(), 1e-4))

        calls = (risk, run, lambda m=model: m.fit(X, y), lambda m=model: m.predict(X))
        times = [best_time(call, repeat) for call in (*calls, lambda m=model: riskmin.certify(m, X, y))]
        figures = " | ".join(f"{t:.4f}" for t in times)
        print(f"| {name}, {n:,} x {p} | {figures} | {model.gap_ / model.objective_:.1e} |", flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu calls", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args(argv)
    print("| | `linear_risk` | with `minimize` | `fit` | `predict` | `certify` | gap |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for n, p in SHAPES:
        measure(n, p, given.repeat)
    return 0
