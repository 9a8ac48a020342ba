"""Default runs on raw tables: certified and optimal for every kind of loss, with the recorded work."""

import numpy as np
import pytest

import riskmin as rm
from helpers import Problem

UNITS = [1.0, 100.0, 1e-2, 1.0, 10.0, 1.0]
TOL = 1e-4
# loss, regularizer, whether there is an intercept, whether X is sparse, and the recorded passes over X
CASES = [
    (rm.Hinge(), rm.L2(), True, False, 25),
    (rm.Hinge(), rm.Box(rm.L2(), -1.0, 1.0), False, False, 6),
    (rm.SquaredHinge(), rm.L2(), True, True, 7),
    (rm.Logistic(), rm.L2(), True, False, 8),
    (rm.Logistic(), rm.Entropy(0.5), False, False, 10),
    (rm.Squared(), rm.Elastic(0.3), True, True, 3),
    (rm.Absolute(), rm.L2(), True, False, 25),
    (rm.Huber(), rm.L1(), False, True, 8),
    (rm.Quantile(0.8), rm.L2(), True, True, 25),
    (rm.Poisson(), rm.L2(), True, False, 5),
    (rm.RocArea(), rm.L2(), False, True, 28),
    (rm.FBeta(), rm.L2(), True, False, 24),
    (rm.Ordinal(), rm.L1(), False, False, 21),
    (rm.Ndcg(), rm.L2(), False, True, 20),
    (rm.Softmax(), rm.L2(), True, True, 7),
    (rm.MulticlassHinge(), rm.L2(), True, False, 34),
    (rm.MulticlassHinge(), rm.Box(rm.L2(), -1.0, 1.0), False, False, 91),
    (rm.ChainCrf(), rm.L2(), False, True, 126),
    (rm.ChainMaxMargin(), rm.L2(), False, False, 58),
]


@pytest.mark.parametrize(("loss", "reg", "intercept", "sparse", "passes"), CASES, ids=repr)
def test_runs_with_default_settings_are_certified_with_the_recorded_work(
    loss, reg, intercept, sparse, passes
):
    n = 12 if loss.task == "tagging" else 40
    problem = Problem(loss, reg, n=n, p=6, intercept=intercept, sparse=sparse, units=UNITS, seed=17)
    result = rm.minimize(problem.objective(), tol=TOL, max_iter=150)
    problem.check(result, TOL)
    assert result.trace[-1]["calls"] <= max(1.1 * passes, passes + 1)


def test_a_run_ends_at_the_first_gap_below_the_tolerance():
    result = rm.minimize(Problem(n=60, p=5).objective(), "bundle", tol=TOL)
    gaps = np.array([row["gap"] / row["value"] for row in result.trace])
    assert gaps[-1] <= TOL < gaps[:-1].min()
