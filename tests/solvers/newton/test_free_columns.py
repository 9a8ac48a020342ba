"""Newton's system of many columns of which a few, in large units, are nearly unpenalized."""

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import L2, Hinge, Newton, Objective, linear_risk, minimize
from riskmin.core import Hessian
from riskmin.problem.design_operator import DesignOperator
from riskmin.solvers.newton.linear_system import FreeColumns, NewtonSystem


def raw_table(seed=0, n=500, levels=(120, 80, 40)):
    """One-hot encoded categories, and numbers in other units, some far from zero."""
    rng = np.random.default_rng(seed)
    parts = []
    for k in levels:
        share = 1 / np.arange(1, k + 1)
        level = rng.choice(k, size=n, p=share / share.sum())
        parts.append(sp.csr_array((np.ones(n), (np.arange(n), level)), shape=(n, k)))
    numbers = rng.standard_normal((n, 4)) * [1e5, 1e6, 1.0, 1e-4] + [1e6, 0, 0, 1e-4]
    X = sp.csr_array(sp.hstack([*parts, sp.csr_array(numbers)]))
    w = np.concatenate([rng.standard_normal(sum(levels)), 1 / numbers.std(0)])
    z = X @ w
    return X, (z - z.mean()) / z.std() + 0.3 * rng.standard_normal(n)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_direction_solves_the_whole_system(intercept):
    X, y = raw_table()
    sizes = np.sqrt(np.maximum(X.multiply(X).sum(0), 1e-12))
    X = sp.csr_array(X @ sp.diags_array(1 / sizes))  # as preconditioned columns
    rng, (n, p) = np.random.default_rng(1), X.shape
    square, lam = np.where(np.arange(p) % 50, 1.0 + rng.random(p), 1e-9), 1e-3
    design = DesignOperator(linear_risk(X, y, "absolute"))
    h = np.where(rng.random(n) < 0.6, rng.random(n), 0.0)
    hessian = Hessian(h, (h / h.sum() ** 0.5,) if intercept else ())
    free, g = FreeColumns(design, L2(square)), rng.standard_normal(p)
    assert set(free.index) == set(range(0, p, 50))
    d, n_steps = free.solve(hessian, lam, g, 1e-9, 3000)
    H = np.diag(h) - (np.outer(h, h) / h.sum() if intercept else 0.0)
    A = X.T @ (H @ X.toarray()) + np.diag(lam * square)
    residual = A @ d + g
    assert n_steps < 3000
    others = np.setdiff1d(np.arange(p), free.index)
    assert np.linalg.norm(residual[others]) <= 1e-6
    assert np.abs(residual[free.index]).max() <= 1e-9 * np.abs(A[free.index]).max() * np.abs(d).max()


def test_equal_penalties_leave_no_column_free():
    X, y = raw_table()
    design = DesignOperator(linear_risk(X, y, "absolute"))
    assert not len(FreeColumns(design, L2()).index)
    assert not len(FreeColumns(design, L2(np.linspace(0.01, 1, X.shape[1]))).index)


def test_a_factorization_by_features_is_left_alone():
    X, y = raw_table()
    square = np.where(np.arange(X.shape[1]) < 3, 1e-9, 1.0)
    for direct, eliminated in ((10, True), (1000, False)):
        system = NewtonSystem(DesignOperator(linear_risk(X, y, "absolute")), L2(square), direct)
        h = np.random.default_rng(0).random(len(y))
        system._conjugate_gradients(Hessian(h), 1e-3, np.ones(X.shape[1]), 1e-3, 50)
        assert (system.free is not None) is eliminated


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["absolute", "quantile:level=0.9", Hinge()], ids=str)
def test_raw_numbers_beside_categories_are_certified(loss, intercept):
    """By conjugate gradients alone, whose residuals in these numbers left gaps of 0.1 to 1."""
    for seed in range(3):
        X, y = raw_table(seed)
        y = np.sign(y) if isinstance(loss, Hinge) else y
        obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 1e-4)
        result = minimize(obj, Newton(direct=1), tol=1e-3, max_iter=400)
        assert result.status == "converged"
        reference = minimize(obj, Newton(), tol=1e-6)
        assert reference.status == "converged"
        assert result.lower <= reference.value <= result.value * (1 + 1e-6)
