"""Default runs on raw tables: certified and optimal for every kind of loss, with the recorded work."""

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
# loss, regularizer, whether there is an intercept, whether X is sparse, and the recorded passes over X
CASES = [
    (Hinge(), L2(), True, False, 25),
    (Hinge(), Box(L2(), -1.0, 1.0), False, False, 6),
    (SquaredHinge(), L2(), True, True, 7),
    (Logistic(), L2(), True, False, 8),
    (Logistic(), Entropy(0.5), False, False, 10),
    (Squared(), Elastic(0.3), True, True, 3),
    (Absolute(), L2(), True, False, 25),
    (Huber(), L1(), False, True, 8),
    (Quantile(0.8), L2(), True, True, 25),
    (Poisson(), L2(), True, False, 5),
    (RocArea(), L2(), False, True, 14),
    (FBeta(), L2(), True, False, 2),
    (Ordinal(), L1(), False, False, 21),
    (Ndcg(), L2(), False, True, 20),
    (Softmax(), L2(), True, True, 7),
    (MulticlassHinge(), L2(), True, False, 34),
    (MulticlassHinge(), Box(L2(), -1.0, 1.0), False, False, 91),
    (ChainCrf(), L2(), False, True, 126),
    (ChainMaxMargin(), L2(), False, False, 58),
]


@pytest.mark.parametrize(("loss", "reg", "intercept", "sparse", "passes"), CASES, ids=repr)
def test_runs_with_default_settings_are_certified_with_the_recorded_work(
    loss, reg, intercept, sparse, passes
):
    n = 12 if loss.task == "tagging" else 40
    problem = Problem(loss, reg, n=n, p=6, intercept=intercept, sparse=sparse, units=UNITS, seed=17)
    result = minimize(problem.objective(), tol=TOL, max_iter=150)
    problem.check(result, TOL)
    assert result.trace[-1]["calls"] <= max(1.1 * passes, passes + 1)


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
