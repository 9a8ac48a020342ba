"""Every loss against cvxpy and Clarabel: the value is the optimum, and no lower bound exceeds it."""

import warnings
from functools import cache

import numpy as np
import pytest

from helpers import ALL_LOSSES, problem
from reference import optimum
from riskmin import (
    L2,
    Auto,
    Bmrm,
    Bundle,
    Hinge,
    Lbfgs,
    LineSearchBmrm,
    Objective,
    SmoothedHinge,
    Squared,
    Threads,
    linear_risk,
    minimize,
)

SOLVERS = [Auto(), Bundle()]


def slow_if_zero_optimum(loss):
    """The perceptron's optimum is often 0, which no relative gap can prove: it runs all iterations."""
    return pytest.param(loss, marks=pytest.mark.slow) if loss == Hinge(margin=0.0) else loss


each_loss = pytest.mark.parametrize("loss", [slow_if_zero_optimum(loss) for loss in ALL_LOSSES], ids=repr)
each_variant = pytest.mark.parametrize(
    ("intercept", "weighted"), [(False, False), (True, False), (False, True), (True, True)]
)


@cache
def reference(loss, seed, n, weighted, lam, intercept):
    X, y, weights = problem(loss, n=n, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of cvxpy
        return optimum(loss, L2(), X, y, weights if weighted else None, lam, intercept)


def check(loss, solver, *, lam, intercept, weighted, seed=0, n=30, tol=1e-7, **settings):
    X, y, weights = problem(loss, n=n, seed=seed)
    best = reference(loss, seed, n, weighted, lam, intercept)
    assert best >= -1e-9
    risk = linear_risk(
        X, y, loss, sample_weight=weights if weighted else None, fit_intercept=intercept, **settings
    )
    # start away from zero, where some of the losses are minimal
    w0 = np.random.default_rng(seed).standard_normal(X.shape[1])
    result = minimize(Objective(risk, L2(), lam), solver, w0, tol=tol, max_iter=3000)
    accuracy = 1e-9 + 1e-9 * best  # the accuracy of Clarabel
    for row in result.trace:
        assert row["lower"] <= best + accuracy
        assert row["value"] >= best - accuracy
    assert result.value <= best * (1 + max(10 * tol, 1e-6)) + accuracy
    if best > 1e-8:
        assert result.status == "converged"
    return result


@each_loss
@each_variant
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_reaches_the_optimum(loss, intercept, weighted, solver):
    check(loss, solver, lam=0.01, intercept=intercept, weighted=weighted)


@each_loss
@pytest.mark.parametrize("lam", [1e-4, 10.0])
def test_weak_and_strong_regularization(loss, lam):
    for intercept in (False, True):
        check(loss, Auto(), lam=lam, intercept=intercept, weighted=True)


@each_loss
def test_the_methods_of_the_papers(loss):
    check(loss, Bmrm(), lam=1.0, intercept=True, weighted=True, tol=1e-5)
    check(loss, LineSearchBmrm(), lam=10.0, intercept=False, weighted=True, tol=1e-3)


def test_a_nearly_nonsmooth_loss():
    """Secant steps alone approach the curved part from one side only, and the line search failed."""
    for weighted in (False, True):
        check(SmoothedHinge(mu=1e-3), Lbfgs(), lam=1e-4, intercept=False, weighted=weighted, seed=1, n=15)


def test_the_references_are_correct():
    """Ridge regression has a closed form, which checks both sides of the comparison."""
    X, y, _ = problem(Squared())
    w = np.linalg.solve(X.T @ X / 30 + 0.01 * np.eye(4), X.T @ y / 30)
    value = np.mean((X @ w - y) ** 2) / 2 + 0.005 * w @ w
    assert reference(Squared(), 0, 30, False, 0.01, False) == pytest.approx(value, rel=1e-9)
    result = check(Squared(), Auto(), lam=0.01, intercept=False, weighted=False, tol=1e-12)
    np.testing.assert_allclose(result.w, w, rtol=1e-5)


@pytest.mark.exhaustive
@each_loss
@each_variant
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_all_combinations(loss, intercept, weighted, solver):
    for seed, n, lam in ((1, 15, 1e-4), (2, 60, 1e-3), (1, 15, 0.1), (2, 60, 10.0)):
        check(loss, solver, lam=lam, intercept=intercept, weighted=weighted, seed=seed, n=n)
    check(
        loss, solver, lam=0.01, intercept=intercept, weighted=weighted, seed=3, executor=Threads, n_shards=4
    )


@pytest.mark.slow
@each_loss
@each_variant
@pytest.mark.parametrize(
    ("solver", "tol"), [(Bmrm(), 1e-5), (Bmrm(floor=True), 1e-5), (LineSearchBmrm(), 1e-3)]
)
def test_the_methods_of_the_papers_in_all_combinations(loss, intercept, weighted, solver, tol):
    for lam in (1.0, 10.0):
        check(loss, solver, lam=lam, intercept=intercept, weighted=weighted, seed=1, tol=tol)
