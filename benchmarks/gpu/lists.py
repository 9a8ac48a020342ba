"""Losses of whole lists and of many classes on a GPU: the loss alone, the oracle, and certified fits.

    python -m benchmarks.gpu lists [--scores 50000000] [--rows 4000000] [--columns 512]

The floor of the oracle is two reads of X at the bandwidth of a copy, for softmax two products by cuBLAS in
the precision of X. Fits are compared with torch.optim.LBFGS where torch has the loss.
"""

from __future__ import annotations

import argparse
import importlib.util
import time

import numpy as np

import riskmin as rm
from benchmarks.gpu.oracle import copy_bandwidth, milliseconds
from benchmarks.gpu.solvers import gaussian

PER_QUERY = 100


def losses_of_scores(n):
    """Milliseconds of value and gradient in the scores, for scores and labels on the device."""
    import torch

    torch.manual_seed(0)
    z, u = torch.randn(n, device="cuda", dtype=torch.float64), torch.rand(n, device="cuda")
    c = torch.full((n,), 1 / n, device="cuda", dtype=torch.float64)
    for share in (0.01, 0.1, 0.5):
        y = torch.where(u < share, 1.0, -1.0).double()
        ms = milliseconds(lambda: rm.RocArea().value_grad(z, y, c))  # noqa: B023
        print(f"| ROC area, {n:,} scores, {share:.0%} positive | {ms:.2f} |", flush=True)
    y = torch.where(u < 0.1, 1.0, -1.0).double()
    for loss in (rm.Prbep(), rm.FBeta(), rm.PrecisionAtK(1000)):
        ms = milliseconds(lambda: loss.value_grad(z, y, c))  # noqa: B023
        print(f"| {loss!r}, 10% positive | {ms:.2f} |", flush=True)
    ms = milliseconds(lambda: rm.Ordinal().value_grad(z, torch.floor(5 * u).double(), c))
    print(f"| ordinal, five grades | {ms:.2f} |", flush=True)
    n //= 10
    queries = torch.arange(n, device="cuda") // PER_QUERY
    y = torch.stack([torch.floor(5 * u[:n] ** 3), queries], dim=1).double()
    for loss in (rm.Ndcg(), rm.Ndcg(weights="discount")):
        ms = milliseconds(lambda: loss.value_grad(z[:n], y, c[:n]))  # noqa: B023
        print(f"| {loss!r}, {n:,} scores, {PER_QUERY} per query, five grades | {ms:.2f} |", flush=True)


def labels(loss, X, z, k):
    """Labels of a linear model: signs (a tenth positive), numbers, grades of queries, or classes."""
    import torch

    if loss.task == "regression":
        return z
    if loss.task == "multiclass":
        scores = X @ torch.randn(X.shape[1], k, device="cuda") / X.shape[1] ** 0.5
        return torch.argmax(scores + 0.5 * torch.randn_like(scores), dim=1).cpu().numpy().astype(float)
    some = z[:100_000]
    if loss.task == "classification":
        return np.sign(z - np.quantile(some, 0.9))
    return np.digitize(z, np.quantile(some, np.linspace(0, 1, k + 1)[1:-1]))


def torch_closure(X, y, loss, lam, W):
    """The objective in torch, or None if torch has no such loss."""
    import torch

    if isinstance(loss, rm.Softmax):
        target = torch.asarray(y, device="cuda", dtype=torch.int64)
        return lambda: torch.nn.functional.cross_entropy(X @ W, target) + 0.5 * lam * (W * W).sum()
    if isinstance(loss, rm.Quantile):
        target = torch.asarray(y, device="cuda", dtype=X.dtype)[:, None]

        def value():
            r = target - X @ W
            return torch.maximum(loss.level * r, (loss.level - 1) * r).mean() + 0.5 * lam * (W * W).sum()

        return value
    return None


def torch_lbfgs(X, y, loss, lam, k, target):
    """Seconds until torch.optim.LBFGS reaches an objective, or the least excess over it in five seconds."""
    import torch

    for _ in range(2):
        W = torch.zeros(X.shape[1], k, device="cuda", requires_grad=True)
        objective = torch_closure(X, y, loss, lam, W)
        if objective is None:
            return "no such loss"
        optimizer = torch.optim.LBFGS([W], max_iter=1, history_size=20, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()  # noqa: B023
            value = objective()  # noqa: B023
            value.backward()
            return value

        torch.cuda.synchronize()
        start, least = time.perf_counter(), np.inf
        while time.perf_counter() - start < 5 and not least <= target:
            least = min(least, float(optimizer.step(closure).detach()))
        seconds = time.perf_counter() - start
    return f"{seconds:.3f}" if least <= target else f"not in 5 s ({least / target - 1:.1e} above)"


def oracle_and_fit(X, y, loss, lam, qid, k, read):
    import torch

    risk = rm.linear_risk(X, y, loss, qid=qid)
    w = 0.1 * np.random.default_rng(1).standard_normal(risk.dim) / X.shape[1] ** 0.5
    call = milliseconds(lambda: risk(w), 3)
    for _ in range(2):  # the first run compiles kernels
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = rm.minimize(rm.Objective(risk, rm.L2(), lam), tol=1e-3, max_seconds=10)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if seconds > 3:
            break
    calls = int(result.trace[-1]["calls"])
    other = torch_lbfgs(X, y, loss, lam, k, result.lower * (1 + 1e-3))
    name = f"{loss!r}" + (f", {k} classes" if k > 1 else "")
    print(f"| {name} | {call:.1f} ({2 * read / call:.0%}) | {seconds:.3f} | {calls} | "
          f"{100 * calls * call / 1e3 / seconds:.0f} % | {result.status}, {result.gap / result.value:.1e}, "
          f"{result.solver.split('(')[0]} | {other} |", flush=True)  # fmt: skip


def products(X, k):
    """Milliseconds of X W and X' D by cuBLAS in the precision of X."""
    import torch

    W, D = torch.randn(X.shape[1], k, device="cuda"), torch.randn(X.shape[0], k, device="cuda")
    ms = milliseconds(lambda: (X @ W, X.T @ D), 3)
    print(f"| X W and X' D by cuBLAS in float32, k = {k} | {ms:.1f} | | | | | |", flush=True)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu lists", description=__doc__)
    parser.add_argument("--scores", type=int, default=50_000_000)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=512)
    options = parser.parse_args(arguments)
    losses_of_scores(options.scores)
    print(f"cuML is {'' if importlib.util.find_spec('cuml') else 'not '}installed")
    n, p = options.rows, options.columns
    read = 4 * n * p / copy_bandwidth(2**30) / 1e6
    X, _, z = gaussian(n, p, False)
    print("| | oracle, ms (of two reads) | fit, s | calls | oracle | | torch |\n|" + " --- |" * 7)
    for loss, lam, k in (
        (rm.RocArea(), 1e-4, 1),
        (rm.Quantile(0.9), 1e-4, 1),
        (rm.Ndcg(), 1e-2, 1),
        (rm.Softmax(), 1e-4, 10),
        (rm.Softmax(), 1e-4, 100),
    ):
        ranking = loss.task == "ranking"
        y = labels(loss, X, z, 5 if ranking else k)
        oracle_and_fit(X, y, loss, lam, np.arange(n) // PER_QUERY if ranking else None, k, read)
        if k > 1:
            products(X, k)
