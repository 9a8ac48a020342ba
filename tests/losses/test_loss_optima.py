"""Every loss against cvxpy and Clarabel: the bounds enclose the optimum at every iteration."""

import numpy as np
import pytest

import riskmin as rm
from helpers import ALL_LOSSES, COST, LIST_LOSSES, MANY_LOSSES, TREE_LOSSES, Problem

MANY = [*MANY_LOSSES, rm.MulticlassHinge(COST, rescaled=0.7, scaled_margin=True)]
RANKINGS = [
    rm.Ndcg(k=3, weights=rm.PositionWeights(power=0.5, k=2)),
    rm.Mrr(weights="discount"),
    rm.ExpectedRankUtility(1.5, weights="discount"),
]
each_loss = pytest.mark.parametrize(
    "loss", [*ALL_LOSSES, *LIST_LOSSES, *RANKINGS, *MANY, *TREE_LOSSES], ids=repr
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
    return result


def takes_intercept(loss):
    return loss.task != "tagging" and not loss.fixed_positive_count


@each_loss
def test_the_optimum_is_reached(loss):
    """By Auto with intercept and weights, and by the bundle method without; both on one if it has none."""
    intercept = takes_intercept(loss)
    weighted = Problem(loss, n=30, intercept=intercept, weighted=True)
    check(weighted, rm.Auto())
    check(Problem(loss, n=30, lam=0.05, seed=1) if intercept else weighted, rm.Bundle(), tol=1e-6)


def test_a_nearly_nonsmooth_loss():
    """Secant steps alone approach the curved part from one side only, and the line search failed."""
    for weighted in (False, True):
        check(Problem(rm.SmoothedHinge(mu=1e-3), n=15, lam=1e-4, weighted=weighted, seed=1), rm.Lbfgs())


def test_the_references_are_correct():
    """Ridge regression has a closed form, which checks both sides of the comparison."""
    problem = Problem(rm.Squared(), n=30)
    X, y = problem.X, problem.y
    w = np.linalg.solve(X.T @ X / 30 + 0.01 * np.eye(4), X.T @ y / 30)
    value = np.mean((X @ w - y) ** 2) / 2 + 0.005 * w @ w
    assert problem.optimum == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(check(problem, rm.Auto(), tol=1e-12).w, w, rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "solver"),
    [
        (rm.Softmax(), rm.Auto()),
        (rm.MulticlassHinge(), rm.Auto()),
        (rm.ChainCrf(), rm.Lbfgs()),
        (rm.ChainMaxMargin(), rm.Smoothing()),
    ],
    ids=repr,
)
def test_a_run_continues_from_its_checkpoint(loss, solver, tmp_path):
    problem = Problem(loss, lam=0.1, n=30, weighted=True, sparse=True, intercept=takes_intercept(loss))
    J, path = problem.objective(), tmp_path / "run"
    first = rm.minimize(J, solver, tol=1e-5, max_iter=2, checkpoint=path)
    resumed = rm.minimize(J, solver, tol=1e-5, checkpoint=path)
    problem.check(resumed, 1e-5)
    assert resumed.trace[: first.n_iter] == first.trace
    other = Problem(loss, lam=0.1, n=30, sparse=True).objective()
    with pytest.raises(ValueError, match="another"):
        rm.minimize(other, solver, checkpoint=path)


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
