"""Certified fits on a GPU: seconds to a proof, and what share of them the oracle takes.

    python -m benchmarks.gpu solvers [--rows 4000000] [--columns 512]

X is float32, Gaussian: isotropic, or with a spectrum from 1 to 1 / p, rotated. Times are those of the second
of two runs on the same risk: the first one compiles kernels. The share of the oracle is the number of calls
times one read of X at the bandwidth of a copy.
"""

from __future__ import annotations

import argparse
import time

import riskmin as rm
from benchmarks.gpu.oracle import copy_bandwidth

CASES = [
    (rm.Logistic(), rm.L2(), 1e-6, None),
    (rm.SquaredHinge(), rm.L2(), 1e-6, None),
    (rm.Hinge(), rm.L2(), 1e-6, None),
    (rm.Hinge(), rm.L2(), 1e-2, None),
    (rm.Quantile(0.9), rm.L2(), 1e-6, None),
    (rm.Logistic(), rm.L1(), 1e-3, rm.OwlQn()),
]


def gaussian(n, p, ill):
    """Rows on the device, and labels of a linear model with noise."""
    import torch

    torch.manual_seed(0)
    X = torch.empty(n, p, device="cuda")
    spectrum = 1 / torch.arange(1, p + 1, device="cuda") if ill else torch.ones(p, device="cuda")
    Q = torch.linalg.qr(torch.randn(p, p, device="cuda"))[0]
    for part in X.split(max(2**27 // p, 1)):
        part.copy_(torch.randn(part.shape, device="cuda") * spectrum @ Q if ill else torch.randn(part.shape))
    w = Q.T @ (torch.randn(p, device="cuda") / spectrum) / p**0.5
    z = X @ w + torch.randn(n, device="cuda")
    return X, torch.sign(z).cpu().numpy().astype(float), z.cpu().numpy().astype(float)


def fit(X, y, loss, reg, lam, solver, tol):
    import torch

    risk = rm.linear_risk(X, y, loss)
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = rm.minimize(rm.Objective(risk, reg, lam), solver, tol=tol, max_seconds=20)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return seconds, result


def torch_lbfgs(X, y, lam, target):
    """Seconds until torch.optim.LBFGS, with a Wolfe line search, is within `target` of the logistic loss."""
    import torch

    labels = torch.asarray(y, device="cuda", dtype=X.dtype)
    for _ in range(2):
        w = torch.zeros(X.shape[1], device="cuda", requires_grad=True)
        optimizer = torch.optim.LBFGS([w], max_iter=1, history_size=20, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()  # noqa: B023
            value = torch.nn.functional.softplus(-labels * (X @ w)).mean() + 0.5 * lam * (w @ w)  # noqa: B023
            value.backward()
            return value

        torch.cuda.synchronize()
        start = time.perf_counter()
        while time.perf_counter() - start < 5 and not float(optimizer.step(closure).detach()) <= target:
            pass
        seconds = time.perf_counter() - start
    return seconds


def row(name, lam, tol, seconds, *others):
    print(f"| {name} | {lam:g} | {tol:g} | {seconds:.4f} | {' | '.join(map(str, others))} |", flush=True)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu solvers", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=512)
    options = parser.parse_args(arguments)
    read = 4 * options.rows * options.columns / copy_bandwidth(2**30) / 1e9
    print("| | lam | tol | s | iterations | calls | oracle | solver |\n|" + " --- |" * 8, flush=True)
    for ill in (False, True):
        X, signs, targets = gaussian(options.rows, options.columns, ill)
        for loss, reg, lam, solver in CASES:
            y = targets if loss.task == "regression" else signs
            for tol in (1e-3, 1e-6):
                seconds, result = fit(X, y, loss, reg, lam, solver, tol)
                calls = int(result.trace[-1]["calls"])
                name = f"{'ill' if ill else 'iso'}, {type(loss).__name__}, {type(reg).__name__}"
                end = f"{result.status}, gap {result.gap / result.value:.1e}, {result.solver.split('(')[0]}"
                row(
                    name,
                    lam,
                    tol,
                    seconds,
                    result.n_iter,
                    calls,
                    f"{100 * calls * read / seconds:.0f} %",
                    end,
                )
                if loss == rm.Logistic() and reg == rm.L2() and tol == 1e-3:
                    seconds = torch_lbfgs(X, y, lam, result.lower * (1 + tol))
                    row("the same by torch.optim.LBFGS, not proved", lam, tol, seconds, "", "", "", "")
        del X
