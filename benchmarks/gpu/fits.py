"""Certified fits of data on a GPU, compared with the same fits on the CPU of the same machine.

    python -m benchmarks.gpu fits [--rows 1000000] [--columns 200]

X is an array of torch or CuPy: the rows of the table differ only in the library and the device of X.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time

import numpy as np

from riskmin import (
    L1,
    L2,
    Box,
    Bundle,
    Elastic,
    Entropy,
    Hinge,
    Lbfgs,
    Logistic,
    MulticlassHinge,
    Objective,
    OwlQn,
    Prbep,
    ProximalGradient,
    QNorm,
    RocArea,
    Smoothing,
    Softmax,
    linear_risk,
    minimize,
)

CASES = [
    (Logistic(), L2(), 1e-4, Lbfgs()),
    (Logistic(), L1(), 1e-3, OwlQn()),
    (Logistic(), Box(Elastic(0.1)), 1e-3, ProximalGradient()),
    (Hinge(), L2(), 1e-4, Bundle()),
    (Hinge(), Elastic(0.1), 1e-3, Bundle()),
    (Hinge(), QNorm(1.5), 1e-3, Bundle()),
    (Hinge(), Entropy(0.01, normalized=False, balanced=True), 1e-3, Bundle()),
    (Logistic(), Entropy(0.01, balanced=True), 1e-3, ProximalGradient()),
    (Hinge(), L1(), 1e-3, Bundle()),
    (RocArea(), L2(), 1e-4, Smoothing()),
    (Prbep(), L2(), 1e-4, Smoothing()),
    (Softmax(), L2(), 1e-4, Lbfgs()),
    (MulticlassHinge(), L2(), 1e-4, Smoothing()),
]
CLASSES = 10


def devices():
    """Name and array constructor of every available library and device."""
    torch = importlib.import_module("torch")
    yield "torch, CPU", lambda a: torch.asarray(a), lambda: None
    if torch.cuda.is_available():
        yield "torch, GPU", lambda a: torch.asarray(a, device="cuda"), torch.cuda.synchronize
    try:
        cupy = importlib.import_module("cupy")
        cupy.cuda.runtime.getDeviceCount()
    except Exception:
        return
    yield "CuPy, GPU", cupy.asarray, cupy.cuda.Device().synchronize


def data(n, p):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    z = X @ rng.standard_normal(p) + 0.3 * np.sqrt(p) * rng.standard_normal(n)
    Z = X @ rng.standard_normal((p, CLASSES)) + 0.3 * np.sqrt(p) * rng.standard_normal((n, CLASSES))
    return X, np.where(z > 0, 1.0, -1.0), np.argmax(Z, axis=1).astype(float)


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu fits", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--losses", nargs="*", help="names such as RocArea Prbep  [default: all]")
    options = parser.parse_args(arguments)
    X, signs, classes = data(options.rows, options.columns)
    print(f"{options.rows:,} x {options.columns}, float64, certified 1e-3: seconds (iterations, objective)")
    for name, to_device, synchronize in devices():
        X_device = to_device(X)
        for loss, reg, lam, solver in CASES:
            if reg == L1() and solver == Bundle() and importlib.util.find_spec("highspy") is None:
                continue  # the linear program of the bundle is solved by HiGHS, on the CPU
            if options.losses and type(loss).__name__ not in options.losses:
                continue
            seconds = []
            for _ in range(2):  # the first run compiles kernels and allocates memory
                multiclass = loss.task == "multiclass"  # multiclass losses are fitted with intercepts
                risk = linear_risk(X_device, classes if multiclass else signs, loss, fit_intercept=multiclass)
                start = time.perf_counter()
                w0 = to_device(np.zeros(risk.dim))
                result = minimize(Objective(risk, reg, lam), solver, w0, max_seconds=60)
                synchronize()
                seconds.append(time.perf_counter() - start)
            print(
                f"{name:18} {type(loss).__name__:15} {reg!r:28} {type(solver).__name__:17} "
                f"{seconds[-1]:7.3f} ({result.n_iter}, {result.value:.6f}, {result.status})",
                flush=True,
            )
