"""Every loss against cvxpy and Clarabel: the bounds enclose the optimum at every iteration."""

import numpy as np
import pytest

import riskmin as rm
from helpers import ALL_LOSSES, COST, LIST_LOSSES, MANY_LOSSES, RANKED, TREE_LOSSES, Problem

MANY = [*MANY_LOSSES, rm.MulticlassHinge(COST, rescaled=0.7, scaled_margin=True)]
each_loss = pytest.mark.parametrize(
    "loss", [*ALL_LOSSES, *LIST_LOSSES, *RANKED, *MANY, *TREE_LOSSES], ids=repr
)


def check(problem, solver, tol=1e-7, **settings):
    """Start away from zero, where some of the losses are minimal; all bounds must enclose the optimum."""
    J = problem.objective(**settings)
    w0 = np.random.default_rng(problem.seed).standard_normal(J.risk.dim)
    result = rm.minimize(J, solver, w0, tol=tol, max_iter=3000)
    slack = 2e-8 * max(1.0, problem.optimum)
    for row in result.trace:
        assert row["lower"] <= problem.optimum + slack
        assert row["value"] >= problem.optimum - slack
    if problem.optimum > 1e-8:  # no relative gap can prove an optimum of 0
        problem.check(result, max(tol, 1e-6))


def takes_intercept(loss):
    return loss.task != "tagging" and not loss.fixed_positive_count


@each_loss
def test_the_optimum_is_reached(loss):
    """By Auto with intercept and weights, and by the bundle method without; both on one if it has none.

    Lists are smoothed, too.
    """
    intercept = takes_intercept(loss)
    weighted = Problem(loss, n=30, intercept=intercept, weighted=True)
    check(weighted, rm.Auto())
    check(Problem(loss, n=30, lam=0.05, seed=1) if intercept else weighted, rm.Bundle(), tol=1e-6)
    if loss.can_be_smoothed and not loss.separable:
        check(Problem(loss, lam=0.05), rm.Smoothing(), tol=1e-3, n_shards=2)


def test_a_nearly_nonsmooth_loss():
    """Secant steps alone approach the curved part from one side only, and the line search failed."""
    for weighted in (False, True):
        check(Problem(rm.SmoothedHinge(mu=1e-3), n=15, lam=1e-4, weighted=weighted, seed=1), rm.Lbfgs())


@pytest.mark.exhaustive
@each_loss
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
def test_all_combinations(loss, weighted, lam):
    for solver in (rm.Auto(), rm.Bundle()):
        problem = Problem(loss, lam=lam, n=45, weighted=weighted, seed=2, intercept=takes_intercept(loss))
        check(problem, solver, tol=1e-6, executor=rm.Threads, n_shards=4)
    if loss in ALL_LOSSES and lam >= 1:
        for solver, tol in ((rm.Bmrm(), 1e-5), (rm.Bmrm(floor=True), 1e-5), (rm.LineSearchBmrm(), 1e-3)):
            check(problem, solver, tol=tol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", MANY, ids=repr)
@pytest.mark.parametrize("reg", [rm.L1(), rm.Elastic(0.3)], ids=repr)
def test_several_outputs_with_sparse_weights(loss, reg):
    check(Problem(loss, reg, lam=0.05, intercept=loss.task != "tagging", seed=1), rm.Auto(), tol=1e-5)
