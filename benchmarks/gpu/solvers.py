"""Certified fits on a GPU: seconds to a proof, and what share of them the oracle takes.

    python -m benchmarks.gpu solvers [--rows 4000000] [--columns 512] [--host]

X is float32, Gaussian: isotropic, or with a spectrum from 1 to 1 / p, rotated. Times are medians of three
runs on the same risk, after a first one that compiles kernels. The oracle is the time of the kernels that
read X or evaluate losses, and GPU that of all kernels and copies: of one more run under torch's profiler, as
shares of the time without it. With --host, X is then copied to the CPU, for some fits by all its cores.
"""

from __future__ import annotations

import argparse
import time

import riskmin as rm

CASES = [
    (rm.Logistic(), rm.L2(), 1e-6, None),
    (rm.SquaredHinge(), rm.L2(), 1e-6, None),
    *((rm.Hinge(), rm.L2(), lam, None) for lam in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)),
    (rm.Hinge(), rm.L2(), 1e-6, rm.Bundle()),
    (rm.Quantile(0.9), rm.L2(), 1e-6, None),
    (rm.Logistic(), rm.L1(), 1e-3, rm.OwlQn()),
]
HOST_CASES = [(loss, rm.L2(), 1e-6, None) for loss in (rm.Logistic(), rm.Hinge())]
ORACLE = ("dense_rows", "line_sums", "many_points", "mixed_tangent", "score_cut", "add_parts")
"""The kernels of `riskmin._cuda`."""
MATRIX = ("gemm", "gather", "cutlass")
"""Parts of the names of kernels that form X' H X: they read X, too."""


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
    """Seconds, the result, and the milliseconds of kernels: those of the oracle, and all."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    risk, seconds = rm.linear_risk(X, y, loss), []

    def run():
        result = rm.minimize(rm.Objective(risk, reg, lam), solver, tol=tol, max_seconds=20)
        torch.cuda.synchronize()
        return result

    for _ in range(4 if X.is_cuda else 1):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    if not X.is_cuda:
        return seconds[0], result, 0.0, 0.0
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
    events = [(e.key, e.self_device_time_total / 1e6) for e in recorded.key_averages()]
    oracle = sum(t for name, t in events if name in ORACLE or any(part in name for part in MATRIX))
    return sorted(seconds[1:])[1], result, oracle, sum(t for _, t in events)


def torch_lbfgs(X, y, loss, lam, target):
    """Seconds until torch.optim.LBFGS, with a Wolfe line search, has an objective of at most `target`."""
    import torch

    labels = torch.asarray(y, device=X.device, dtype=X.dtype)
    function = torch.nn.functional.softplus if loss == rm.Logistic() else lambda t: torch.relu(1 + t)
    for _ in range(2):
        w = torch.zeros(X.shape[1], device=X.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([w], max_iter=1, history_size=20, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()  # noqa: B023
            value = function(-labels * (X @ w)).mean() + 0.5 * lam * (w @ w)  # noqa: B023
            value.backward()
            return value

        torch.cuda.synchronize()
        start = time.perf_counter()
        while time.perf_counter() - start < 5 and not float(optimizer.step(closure).detach()) <= target:
            pass
        seconds = time.perf_counter() - start
        if seconds > 5:
            break
    return seconds


def row(name, lam, tol, seconds, *others):
    print(f"| {name} | {lam:g} | {tol:g} | {seconds:.4f} | {' | '.join(map(str, others))} |", flush=True)


def fits(X, signs, targets, cases, tols, kind):
    for loss, reg, lam, solver in cases:
        y = targets if loss.task == "regression" else signs
        for tol in tols:
            seconds, result, oracle, gpu = fit(X, y, loss, reg, lam, solver, tol)
            shares = (f"{100 * part / seconds:.0f} %" if X.is_cuda else "" for part in (oracle, gpu))
            end = f"{result.status}, gap {result.gap / result.value:.1e}, {result.solver.split('(')[0]}"
            name = f"{kind}, {type(loss).__name__}, {type(reg).__name__}"
            row(name, lam, tol, seconds, result.n_iter, *shares, end)
            compared = loss in (rm.Logistic(), rm.Hinge()) and lam in (1e-2, 1e-6) and solver is None
            if compared and tol == 1e-3 and X.is_cuda:
                seconds = torch_lbfgs(X, y, loss, lam, result.lower * (1 + tol))
                row("the same by torch.optim.LBFGS, not proved", lam, tol, seconds, "", "", "", "")


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu solvers", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--host", action="store_true", help="the same fits by the cores of the host, too")
    options = parser.parse_args(arguments)
    print("| | lam | tol | s | iterations | oracle | GPU | solver |\n|" + " --- |" * 8, flush=True)
    for ill in (False, True):
        X, signs, targets = gaussian(options.rows, options.columns, ill)
        kind = "ill" if ill else "iso"
        fits(X, signs, targets, CASES, (1e-3, 1e-6), kind)
        if options.host:
            fits(X.cpu(), signs, targets, HOST_CASES, (1e-3,), f"{kind}, host")
        del X
