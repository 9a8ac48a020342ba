"""Dual block ascent for the multiclass hinge: steps of one row, and intercepts."""

from itertools import islice

import numpy as np
import pytest

from riskmin import L2, DualCoordinateAscent, MulticlassHinge, Objective, linear_risk, minimize
from solver_cases import raw_bound


# ---------------------------------------------------------------- one row
@pytest.mark.parametrize("lam", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("damping", [1.0, 0.5, 1.7])
def test_a_step_moves_a_row_to_its_best_multipliers(damping, lam):
    """With one row, a full step maximizes the dual over the simplex; other steps increase it."""
    rng = np.random.default_rng(1)
    cost = 3 * rng.random((6, 6)) * (1 - np.eye(6))
    # the other rows have no weight
    risk = linear_risk(np.eye(6), np.arange(6.0), MulticlassHinge(cost), sample_weight=np.eye(6)[0])
    obj = Objective(risk, L2(), lam)
    start, it = islice(DualCoordinateAscent(damping=damping).iterates(obj, rng.standard_normal(36)), 2)

    def gain(beta):
        return beta @ cost[0] - ((beta - np.eye(6)[0]) ** 2).sum(axis=-1) / (2 * lam)

    reached = raw_bound(obj, it)
    assert reached >= raw_bound(obj, start) - 1e-12
    others = rng.dirichlet(np.full(6, 0.3), 3000)
    if damping == 1:
        assert reached >= gain(others).max() - 1e-12
        assert it.value - reached <= 1e-12 * (1 + it.value)
    assert reached <= it.value + 1e-12


# ---------------------------------------------------------------- intercepts
@pytest.mark.slow
def test_multipliers_optimal_for_one_center_continue_with_the_next():
    rng = np.random.default_rng(20)
    X, y = rng.normal(size=(48, 5)) * [0.3, 0.3, 0.5, 0.3, 2.0], rng.integers(2, size=48)
    risk = linear_risk(X, y, MulticlassHinge(), fit_intercept=True)
    assert minimize(Objective(risk, L2(), 1.0), DualCoordinateAscent(), tol=2e-5).status == "converged"
    assert minimize(Objective(risk, L2(), 0.1), DualCoordinateAscent(), tol=1e-17).status == "stalled"
