"""Regularizers without a Hessian of their conjugate, or known by their conjugate alone, in bundle methods."""

import pickle

import cvxpy as cp
import numpy as np
import pytest

from riskmin import (
    L2,
    Absolute,
    Bmrm,
    Bundle,
    Elastic,
    Entropy,
    Hinge,
    Logistic,
    Objective,
    QNorm,
    linear_risk,
    minimize,
)
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.from_conjugate import as_regularizer

RNG = np.random.default_rng(2)
X = RNG.standard_normal((50, 4))
Y = np.where(X[:, 0] + RNG.standard_normal(50) > 0, 1.0, -1.0)


class LogCosh:
    """Omega*(u) = sum_j log cosh u_j, so that Omega is finite in the cube |w_j| <= 1 only."""

    def conjugate(self, u):
        a = np.abs(u)
        return float((a + np.log1p(np.exp(-2 * a)) - np.log(2)).sum())

    def conjugate_grad(self, u):
        return np.tanh(u)


class ConjugateOnly:
    """What paper B needs of a regularizer."""

    def __init__(self, reg):
        self.reg = reg

    def conjugate(self, u):
        return self.reg.conjugate(u)

    def conjugate_grad(self, u):
        return self.reg.conjugate_grad(u)


class FourMethods(ConjugateOnly):
    def value(self, w):
        return self.reg.value(w)

    def prox(self, v, step):
        return self.reg.prox(v, step)


@pytest.mark.parametrize("solver", [Bundle(), Bmrm()], ids=repr)
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
@pytest.mark.parametrize(
    "reg", [L2(), QNorm(1.5, 2.0), Elastic(0.3), Entropy(0.25), Entropy(1.0, normalized=False)], ids=repr
)
def test_the_optimum_is_that_of_the_regularizer_with_all_formulas(reg, loss, solver):
    risk = linear_risk(X, Y, loss)
    best = minimize(Objective(risk, reg, 0.05), tol=1e-9).value
    for given in (FourMethods(reg), ConjugateOnly(reg)):
        result = minimize(Objective(risk, given, 0.05), solver, tol=1e-6)
        assert result.status == "converged"
        assert result.lower - 2e-9 * best <= best <= result.value * (1 + 2e-9)


def test_a_new_regularizer_by_its_conjugate_has_the_optimum_of_cvxpy():
    """Omega(w) = sum_j ((1 + w_j) log(1 + w_j) + (1 - w_j) log(1 - w_j)) / 2 is never written down."""
    result = minimize(Objective(linear_risk(X, Y, Absolute()), LogCosh(), 0.02), Bundle(), tol=1e-7)
    w = cp.Variable(4)
    omega = -cp.sum(cp.entr(1 + w) + cp.entr(1 - w)) / 2
    problem = cp.Problem(cp.Minimize(0.02 * omega + cp.sum(cp.abs(X @ w - Y)) / len(Y)))
    best = problem.solve(solver=cp.CLARABEL)
    assert result.status == "converged"
    assert result.value == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(result.w, w.value, atol=1e-3)


def test_value_subgradient_and_prox_are_those_of_the_formula():
    reg = as_regularizer(LogCosh())
    for _ in range(20):
        v, step = 2 * RNG.standard_normal(4), float(10 ** RNG.uniform(-0.3, 1))
        w = np.tanh(v)
        value = float(((1 + w) * np.log1p(w) + (1 - w) * np.log1p(-w)).sum()) / 2
        assert reg.value(w) == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(reg.grad(w), v, rtol=1e-6)
        p = reg.prox(v, step)  # (v - p) / step is the gradient of Omega at p
        np.testing.assert_allclose(step * np.arctanh(p), v - p, rtol=1e-6, atol=1e-8)
    assert reg.value(np.array([0.5, 1.01, 0.0, 0.0])) == np.inf
    np.testing.assert_allclose(reg.prox(np.array([0.5, 3.0, -4.0, 0.0]), 0.0), [0.5, 1, -1, 0], atol=1e-3)
    assert pickle.loads(pickle.dumps(reg)).value(w) == pytest.approx(value)


def test_differences_are_the_hessian_of_the_conjugate():
    A = RNG.standard_normal((3, 4))
    for reg in (QNorm(1.5, 2.0), Entropy(0.25), L2([1.0, 2.0, 3.0, 4.0])):
        u = RNG.standard_normal(4)
        exact = reg.conjugate_hessian_product(u, A) if reg.has_conjugate_hessian else A / reg.weights @ A.T
        np.testing.assert_allclose(
            Regularizer.conjugate_hessian_product(reg, u, A), exact, rtol=1e-6, atol=1e-8
        )
