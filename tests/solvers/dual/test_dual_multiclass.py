"""Dual block ascent for the multiclass hinge: against cvxpy, brute force and LIBLINEAR."""

from itertools import islice, pairwise

import numpy as np
import pytest

from helpers import COST, Problem
from riskmin import L2, DualCoordinateAscent, MulticlassHinge, Objective, linear_risk, minimize, path


def rows(loss=None, **settings):
    """Rows of three classes with weights, some of them zero, and one without entries."""
    data = Problem(loss or MulticlassHinge(COST), p=6, weighted=True, **settings)
    data.X[np.abs(data.X) < 0.4] = 0.0
    data.X[3] = 0.0
    return data


def dual_value(obj, it):
    """The lower bound of the cut, without scaling it."""
    return it.cut.b - obj.lam * obj.reg.conjugate(-it.cut.a / obj.lam)


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

    reached = dual_value(obj, it)
    assert reached >= dual_value(obj, start) - 1e-12
    others = rng.dirichlet(np.full(6, 0.3), 3000)
    if damping == 1:
        assert reached >= gain(others).max() - 1e-12
        assert it.value - reached <= 1e-12 * (1 + it.value)
    assert reached <= it.value + 1e-12


# ---------------------------------------------------------------- a run


@pytest.mark.parametrize("sparse", [False, True])
def test_seeds_decide_and_saved_states_continue(sparse):
    obj = rows(MulticlassHinge(), lam=1e-4, sparse=sparse).objective()

    def steps(seed, count):
        return list(islice(DualCoordinateAscent(seed=seed).iterates(obj, np.zeros(obj.risk.dim)), count))

    one, again, other = steps(0, 25), steps(0, 5), steps(1, 5)
    assert np.array_equal(one[4].w, again[4].w)
    assert not np.array_equal(one[4].w, other[4].w)
    for k in (0, 4, 20):
        resumed = DualCoordinateAscent().resume(obj, one[k].state())
        for it, expected in zip(islice(resumed, 3), one[k + 1 :], strict=False):
            assert it.value == pytest.approx(expected.value, rel=1e-9)
            np.testing.assert_allclose(it.cut.a, expected.cut.a, atol=1e-9)


def test_a_path_starts_from_the_multipliers_of_its_neighbor():
    risk = rows(MulticlassHinge()).objective().risk
    lams = [1e-1, 1e-2, 1e-3]
    for lam, result in zip(
        lams, path(risk, L2(), lams, solver=DualCoordinateAscent(), tol=1e-7), strict=True
    ):
        cold = minimize(Objective(risk, L2(), lam), DualCoordinateAscent(), tol=1e-7)
        assert result.value == pytest.approx(cold.value, rel=1e-6)


# ---------------------------------------------------------------- intercepts
@pytest.mark.slow
def test_multipliers_optimal_for_one_center_continue_with_the_next():
    rng = np.random.default_rng(20)
    X, y = rng.normal(size=(48, 5)) * [0.3, 0.3, 0.5, 0.3, 2.0], rng.integers(2, size=48)
    risk = linear_risk(X, y, MulticlassHinge(), fit_intercept=True)
    assert minimize(Objective(risk, L2(), 1.0), DualCoordinateAscent(), tol=2e-5).status == "converged"
    assert minimize(Objective(risk, L2(), 0.1), DualCoordinateAscent(), tol=1e-17).status == "stalled"


def test_a_run_with_intercepts_resumes_with_its_center():
    J = rows(lam=0.02, intercept=True).objective()
    w0 = np.random.default_rng(1).standard_normal(6 * 3 + 3)
    steps = list(islice(DualCoordinateAscent().iterates(J, w0), 9))
    for it in steps:
        assert it.value == pytest.approx(J.value(it.w), rel=1e-10)
        assert not it.cut.a[-3:].any()
        assert J.lower(it.cut) <= it.value
    assert steps[-1].state()["center"].any()
    for it, after in list(pairwise(steps))[:5]:
        resumed = next(DualCoordinateAscent().resume(J, it.state()))
        np.testing.assert_allclose(resumed.w, after.w, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("lam", [0.86, 0.05])
def test_intercepts_of_classes_without_weight_do_not_affect_the_bound(lam):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((21, 3)), rng.integers(0, 4, 21)
    risk = linear_risk(X, y, MulticlassHinge(), sample_weight=1.0 * (y < 3), fit_intercept=True)
    result = minimize(Objective(risk, L2(), lam), DualCoordinateAscent(), tol=1e-5, max_iter=500)
    assert result.status == "converged"
