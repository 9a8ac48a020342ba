"""An interrupted run resumes from its checkpoint and reaches the same certificate as an uninterrupted one."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import riskmin


def main() -> None:
    X, digit = load_digits(return_X_y=True)
    y = np.where(digit % 2 == 0, 1.0, -1.0)
    risk = riskmin.linear_risk(X / 16, y, riskmin.Hinge(), fit_intercept=True)
    J = riskmin.Objective(risk, riskmin.L2(), lam=1e-3)

    solver, tol = riskmin.Bundle(), 1e-6
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "even-or-odd.ckpt")
        short = riskmin.minimize(J, solver, tol=tol, max_iter=10, checkpoint=path)
        resumed = riskmin.minimize(J, solver, tol=tol, checkpoint=path)
    uninterrupted = riskmin.minimize(J, solver, tol=tol)
    for name, run in {"stopped": short, "resumed": resumed, "uninterrupted": uninterrupted}.items():
        print(
            f"{name:13}  {run.n_iter:3} iterations  {run.lower:.6f} <= min J <= {run.value:.6f}  {run.status}"
        )


if __name__ == "__main__":
    main()
