"""Newton's method on few rows and columns, against the general one, which takes any number of both."""

import numpy as np
import pytest

from riskmin import (
    L2,
    Absolute,
    EpsilonInsensitive,
    Hinge,
    Huber,
    Newton,
    Novelty,
    Objective,
    Quantile,
    Squared,
    SquaredHinge,
    linear_risk,
    minimize,
)
from riskmin.solvers.newton.small.smooth import SmallSmoothProblem
from riskmin.solvers.newton.small.stages import SmallProblem

LOSSES = [
    *(Hinge(), SquaredHinge(), Quantile(0.3), Absolute(), EpsilonInsensitive(0.2), Huber(0.01), Squared()),
    Novelty(),
]


def problem(loss, intercept, rng):
    """Rows of which some have no weight, columns of several sizes, labels far from 0."""
    n, p = 60, 5
    X = rng.standard_normal((n, p)) * [1, 10, 0.1, 1, 1] + [0, 30, 0, 0, 1]
    z = X @ [1, 0.1, 2, 0, -1] + rng.standard_normal(n)
    y = {"regression": 100 + z, "novelty": None}.get(loss.task, np.where(z > np.median(z), 1.0, -1.0))
    weight = np.where(np.arange(n) % 7, rng.random(n), 0.0)
    risk = linear_risk(X, y, loss, sample_weight=weight, fit_intercept=intercept and loss.task != "novelty")
    return Objective(risk, L2(np.linspace(1, 3, p)), 10 ** rng.uniform(-6, 0))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_it_finds_the_minimum_of_the_general_method(loss, intercept, monkeypatch):
    for seed in range(5):
        obj = problem(loss, intercept, np.random.default_rng(seed))
        # `SmallSmoothProblem` solves the squared loss, which needs one step and no smoothing
        assert SmallProblem.accepts(obj) is not loss.constant_curvature
        small = minimize(obj, Newton(), tol=1e-7)
        with monkeypatch.context() as patch:
            patch.setattr(SmallProblem, "MAX_ENTRIES", 0)
            patch.setattr(SmallSmoothProblem, "MAX_ENTRIES", 0)
            general = minimize(obj, Newton(), tol=1e-7)
        assert small.status == general.status == "converged"
        assert max(small.lower, general.lower) <= min(small.value, general.value)
        assert obj.value(small.w) == pytest.approx(small.value, rel=1e-12)


def test_iterates_are_the_ends_of_stages():
    X = np.random.default_rng(0).standard_normal((100, 20))
    y = np.where(X[:, 0] + X[:, 1] > 0.3, 1.0, -1.0)
    result = minimize(Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), 1e-3), Newton())
    mus = [row["mu"] for row in result.trace]
    assert mus == sorted(mus, reverse=True)
    assert len(set(mus[1:])) == len(mus) - 1 <= 9


def test_larger_problems_and_other_forms_are_left_to_the_general_method():
    X, y = np.ones((50, 3)), np.where(np.arange(50) % 2, 1.0, -1.0)
    obj = Objective(linear_risk(X, y, Hinge()), L2(), 0.1)
    assert SmallProblem.accepts(obj)
    assert not SmallProblem.accepts(obj, direct=2)
    assert not SmallProblem.accepts(Objective(linear_risk(X, y, "logistic"), L2(), 0.1))
    long = linear_risk(np.ones((SmallProblem.MAX_ENTRIES // 3 + 1, 3)), None, Novelty())
    assert not SmallProblem.accepts(Objective(long, L2(), 0.1))
