"""Losses of break-even points as hinge losses with an intercept: the same risk, and the same minima."""

from __future__ import annotations

import numpy as np
import pytest

import riskmin as rm
from riskmin import L2, InterceptForm, Objective, linear_risk, minimize
from riskmin.core import UnsupportedProblem
from riskmin.solvers.unpenalized.intercept_form import SeparableProblem


def draw(n, p, n_positive, seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, p)), np.where(np.arange(n) < n_positive, 1.0, -1.0)
    return X + 0.4 * y[:, None], y


@pytest.mark.parametrize("n_positive", [1, 4, 9, 14])
@pytest.mark.parametrize("loss", [rm.Prbep(), rm.PrecisionAtK, rm.RecallAtK])
def test_the_separable_risk_is_the_same_function(loss, n_positive):
    X, y = draw(15, 3, n_positive)
    loss = loss if isinstance(loss, rm.Prbep) else loss(n_positive)
    obj = Objective(linear_risk(X, y, loss), L2(), lam=0.3)
    same = SeparableProblem.from_objective(obj)
    for w in np.random.default_rng(1).standard_normal((6, 3)) * [[0.1], [1], [1], [3], [10], [0]]:
        (value, slope), (other, _) = obj.risk(w), same.obj.risk(w)
        assert value == pytest.approx(same.factor * other, rel=1e-12)
        assert obj.value(w) == pytest.approx(same.factor * same.obj.value(w), rel=1e-12)
        # a subgradient of the separable form, times the factor, is one of the loss
        g = same.factor * same.obj.risk(w)[1]
        for v in w + np.random.default_rng(2).standard_normal((20, 3)):
            assert obj.risk(v)[0] >= value + g @ (v - w) - 1e-9
    assert slope.shape == (3,)


@pytest.mark.parametrize(("n", "p", "lam"), [(30, 80, 1e-4), (60, 5, 1e-3)])
def test_auto_reaches_the_minimum_of_the_cutting_planes(n, p, lam):
    X, y = draw(n, p, n // 3)
    obj = Objective(linear_risk(X, y, rm.Prbep()), L2(), lam)
    result = minimize(obj, tol=1e-7)
    assert result.status == "converged"
    assert result.solver.startswith("InterceptForm(")
    assert obj.value(result.w) == pytest.approx(result.value, rel=1e-12)
    planes = minimize(obj, rm.Bundle(), tol=1e-6, max_iter=2000)
    assert result.lower <= planes.value * (1 + 1e-12)
    assert planes.lower <= result.value * (1 + 1e-12)


def test_other_losses_have_no_such_form():
    X, y = draw(12, 2, 4)
    for loss in (rm.PrecisionAtK(3), rm.RocArea(), rm.FBeta(), rm.Hinge()):
        obj = Objective(linear_risk(X, y, loss), L2(), lam=0.1)
        assert SeparableProblem.from_objective(obj) is None
        with pytest.raises(UnsupportedProblem, match="InterceptForm needs local rows and a loss such as"):
            minimize(obj, InterceptForm(rm.DualCoordinateAscent()))


def test_weights_are_refused_as_by_the_loss_itself():
    X, y = draw(12, 2, 4)
    risk = linear_risk(X, y, rm.Prbep(), sample_weight=np.arange(1.0, 13.0))
    with pytest.raises(ValueError, match="Prbep counts rows"):
        minimize(Objective(risk, L2(), lam=0.1))


def test_a_run_continues_and_starts_warm(tmp_path):
    X, y = draw(40, 6, 13)
    obj = Objective(linear_risk(X, y, rm.Prbep()), L2(), lam=1e-2)
    solver, file = InterceptForm(rm.DualCoordinateAscent()), rm.Checkpoint(tmp_path / "run", every=0.0)
    whole = minimize(obj, solver, tol=1e-8)
    minimize(obj, solver, tol=1e-8, max_iter=2, checkpoint=file)
    resumed = minimize(obj, solver, tol=1e-8, checkpoint=file)
    np.testing.assert_array_equal(resumed.w, whole.w)
    for result in rm.path(obj.risk, L2(), [1e-1, 1e-2], tol=1e-6):
        assert result.status == "converged"
