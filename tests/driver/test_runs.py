"""Runs with default settings on raw tables: certified and optimal for every kind of loss, in few steps."""

import numpy as np
import pytest

from helpers import Problem
from riskmin import (
    L1,
    L2,
    Absolute,
    Box,
    ChainCrf,
    ChainMaxMargin,
    Elastic,
    Entropy,
    FBeta,
    Hinge,
    Huber,
    Logistic,
    MulticlassHinge,
    Ndcg,
    Objective,
    Ordinal,
    Poisson,
    Quantile,
    RocArea,
    Softmax,
    Squared,
    SquaredHinge,
    kernel_risk,
    minimize,
)

UNITS = [1.0, 100.0, 1e-2, 1.0, 10.0, 1.0]
TOL = 1e-4
# loss, regularizer, whether there is an intercept, and whether X is sparse
CASES = [
    (Hinge(), L2(), True, False),
    (Hinge(), Box(L2(), -1.0, 1.0), False, False),
    (SquaredHinge(), L2(), True, True),
    (Logistic(), L2(), True, False),
    (Logistic(), Entropy(0.5), False, False),
    (Squared(), Elastic(0.3), True, True),
    (Absolute(), L2(), True, False),
    (Huber(), L1(), False, True),
    (Quantile(0.8), L2(), True, True),
    (Poisson(), L2(), True, False),
    (RocArea(), L2(), False, True),
    (FBeta(), L2(), True, False),
    (Ordinal(), L1(), False, False),
    (Ndcg(), L2(), False, True),
    (Softmax(), L2(), True, True),
    (MulticlassHinge(), L2(), True, False),
    (MulticlassHinge(), Box(L2(), -1.0, 1.0), False, False),
    (ChainCrf(), L2(), False, True),
    (ChainMaxMargin(), L2(), False, False),
]


@pytest.mark.parametrize(("loss", "reg", "intercept", "sparse"), CASES, ids=repr)
def test_runs_with_default_settings_are_certified(loss, reg, intercept, sparse):
    n = 12 if loss.task == "tagging" else 40
    problem = Problem(loss, reg, n=n, p=6, intercept=intercept, sparse=sparse, units=UNITS, seed=17)
    problem.check(minimize(problem.objective(), tol=TOL, max_iter=150), TOL)


@pytest.mark.parametrize(("loss", "intercept"), [(Hinge(), False), (Squared(), True)], ids=repr)
def test_runs_in_feature_space_are_certified(loss, intercept):
    """With the linear kernel, whose minimum is that of a linear model."""
    problem = Problem(loss, intercept=intercept)
    risk, norm = kernel_risk(problem.X, problem.y, loss, "linear", fit_intercept=intercept)
    problem.check(minimize(Objective(risk, norm, problem.lam), tol=TOL, max_iter=150), TOL)


def test_a_run_ends_at_the_first_gap_below_the_tolerance():
    result = minimize(Problem(n=60, p=5).objective(), "bundle", tol=TOL)
    gaps = np.array([row["gap"] / row["value"] for row in result.trace])
    assert gaps[-1] <= TOL < gaps[:-1].min()
