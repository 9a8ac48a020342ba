"""Conjugate gradients on the dual of ridge regression: the textbook's iterates, the rate, the optimum."""

from itertools import islice

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

import riskmin as rm

RNG = np.random.default_rng(4)
N, D, LAM = 60, 7, 1e-3
X = RNG.standard_normal((N, D)) * np.geomspace(0.1, 5, D) + 1
Y = X @ RNG.standard_normal(D) + RNG.standard_normal(N)
C = RNG.uniform(0, 2, N) * (RNG.random(N) > 0.1)
METRIC = np.diag(np.arange(1.0, D + 1)) + 0.3


def system(K):
    """A, b and the square roots of the weights c, written out."""
    root = np.sqrt(C / C.sum())
    A = np.eye(N) + root[:, None] * (X @ np.linalg.solve(K, X.T)) * root / LAM
    return A, -root * Y, root


def preconditioner(A):
    low = np.tril(A)  # D + L
    return low @ np.diag(1 / np.diag(A)) @ low.T


def objective(reg, form=np.asarray):
    return rm.Objective(rm.linear_risk(form(X), Y, rm.Squared(), sample_weight=C), reg, LAM)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("preconditioned", [True, False])
@pytest.mark.parametrize(
    ("reg", "K"),
    [
        (rm.L2(), np.eye(D)),
        (rm.L2(np.arange(1.0, D + 1)), np.diag(np.arange(1.0, D + 1))),
        (rm.Quadratic(METRIC), METRIC),
    ],
    ids=["L2", "weighted L2", "K"],
)
def test_iterates_are_those_of_the_textbook(reg, K, form, preconditioned):
    """With a symmetric Gauss-Seidel preconditioner, or without one."""
    A, b, root = system(K)
    M = preconditioner(A) if preconditioned else np.eye(N)
    beta = -root * Y  # the slopes of the loss at w = 0
    r = b - A @ beta
    z = np.linalg.solve(M, r)
    p = z.copy()
    solver = rm.DualConjugateGradient(preconditioned)
    for it in islice(solver.iterates(objective(reg, form), np.zeros(D)), 6):
        w = -np.linalg.solve(K, X.T @ (root * beta)) / LAM
        np.testing.assert_allclose(it.w, w, rtol=1e-6, atol=1e-8)
        step = (r @ z) / (p @ A @ p)
        beta, r, old = beta + step * p, r - step * (A @ p), r @ z
        z = np.linalg.solve(M, r)
        p = z + (r @ z) / old * p


@pytest.mark.parametrize("preconditioned", [True, False])
def test_the_error_falls_as_the_theorem_says(preconditioned):
    """In the norm of A, |e_k| <= 2 ((sqrt(kappa) - 1) / (sqrt(kappa) + 1))^k |e_0|; the gap is |e|^2 / 2."""
    A = system(np.eye(D))[0]
    M = preconditioner(A) if preconditioned else np.eye(N)
    values = scipy.linalg.eigh(A, M, eigvals_only=True)
    rate = (np.sqrt(values[-1] / values[0]) - 1) / (np.sqrt(values[-1] / values[0]) + 1)
    obj = objective(rm.L2())
    best = rm.minimize(obj, tol=1e-12).value
    steps = list(islice(rm.DualConjugateGradient(preconditioned).iterates(obj, np.zeros(D)), 12))
    dual = np.array([it.cut.b - it.cut.a @ it.cut.a / (2 * LAM) for it in steps])
    error = np.sqrt(2 * np.maximum(best - dual, 0.0))
    assert (error <= 2 * rate ** np.arange(len(error)) * error[0] + 1e-6 * np.sqrt(best)).all()


def test_the_preconditioner_saves_steps_on_wide_data():
    rng = np.random.default_rng(5)
    wide = rng.standard_normal((60, 200)) * np.geomspace(0.1, 10, 60)[:, None]
    obj = rm.Objective(rm.linear_risk(wide, rng.standard_normal(60), rm.Squared()), rm.L2(), LAM)
    solvers = rm.DualConjugateGradient(), rm.DualConjugateGradient(preconditioned=False), rm.DualGaussSeidel()
    fast, plain, rows = (rm.minimize(obj, solver, tol=1e-6).n_iter for solver in solvers)
    assert 4 * fast < plain
    assert fast < rows
