"""Break-even points and pairs as separable losses: the same risk, and the same minima."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from riskmin import L2, Objective, SeparableForm, linear_risk, minimize
from riskmin.core import UnsupportedProblem
from riskmin.solvers.transformed.separable_form import PairProblem, SeparableProblem


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
    assert result.solver.startswith("SeparableForm(")
    assert obj.value(result.w) == pytest.approx(result.value, rel=1e-12)
    planes = minimize(obj, rm.Bundle(), tol=1e-6, max_iter=2000)
    assert result.lower <= planes.value * (1 + 1e-12)
    assert planes.lower <= result.value * (1 + 1e-12)


GRADES, QUERIES = np.arange(12.0) % 3, np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3])
PAIR_LOSSES = {
    rm.RocArea(): np.where(np.arange(12) < 5, 1.0, -1.0),
    rm.Ordinal(): GRADES,
    rm.Ordinal(costs=[[0], [1, 0], [3, 1, 0]]): GRADES,
    rm.PairwiseHinge(): GRADES,
}


@pytest.mark.parametrize(("p", "sparse"), [(30, False), (30, True), (5, False)])
@pytest.mark.parametrize(("loss", "y"), PAIR_LOSSES.items(), ids=lambda each: type(each).__name__)
def test_the_risk_of_the_pairs_is_the_same_function(loss, y, p, sparse):
    X, _ = draw(12, p, 5)
    X = sp.csr_array(X * (X > 0.5)) if sparse else X
    # the pairs of the last query have no weight
    c, qid = np.append(np.arange(1.0, 12.0), 0.0), QUERIES if loss.task == "ranking" else None
    risk = linear_risk(X, y, loss, sample_weight=c, qid=qid)
    obj = Objective(risk, L2(np.linspace(0.5, 2.0, p)), lam=0.3)
    same = PairProblem.from_objective(obj)
    rng = np.random.default_rng(1)
    for v in rng.standard_normal((5, min(12, p))) * [[0.1], [1], [3], [10], [0]]:
        w = same.weights(v)
        np.testing.assert_allclose(same.start(w), v, atol=1e-12)
        assert obj.value(w) == pytest.approx(same.factor * same.obj.value(v), rel=1e-10)
        # the cut of the pairs bounds the risk at all weights, not only at those in the span of the rows
        cut = same.obj.cut(v)
        a, b = same.factor * same.slope(cut.a), same.factor * cut.b
        for u in [w, *(w + rng.standard_normal((10, p)))]:
            assert risk(u)[0] >= a @ u + b - 1e-9
        assert risk(w)[0] == pytest.approx(a @ w + b, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("lam", [1e-2, 1e-6])
def test_auto_certifies_the_roc_area_of_fewer_rows_than_columns(lam):
    X, y = draw(40, 120, 15)
    result = minimize(Objective(linear_risk(X, y, rm.RocArea()), L2(), lam), tol=1e-6)
    assert result.status == "converged"
    assert "few pairs" in result.solver


@pytest.mark.parametrize("lam", [1e-3, 1e-6])
def test_auto_certifies_pairs_in_other_units(lam):
    """Where the penalty of a column is below rounding, cutting planes lose their minimizer."""
    rng = np.random.default_rng(1)
    X = np.round(rng.standard_normal((40, 30)) * 10.0 ** rng.uniform(-6, 6, 30), 6)
    X += 10.0 ** rng.uniform(-3, 4, 30)
    risk = linear_risk(X, rng.integers(0, 3, 40), rm.PairwiseHinge(), qid=np.sort(rng.integers(0, 5, 40)))
    assert minimize(Objective(risk, L2(), lam), tol=1e-3).status == "converged"


def test_other_losses_have_no_such_form():
    X, y = draw(12, 2, 4)
    for loss in (rm.PrecisionAtK(3), rm.FBeta(), rm.Hinge()):
        obj = Objective(linear_risk(X, y, loss), L2(), lam=0.1)
        assert SeparableProblem.from_objective(obj) is None
        with pytest.raises(UnsupportedProblem, match="SeparableForm needs local rows and Prbep"):
            minimize(obj, SeparableForm(rm.DualCoordinateAscent()))
    assert rm.RocArea().pairs(y, np.ones(12), 31) is None  # of 4 x 8 pairs


def test_weights_are_refused_as_by_the_loss_itself():
    X, y = draw(12, 2, 4)
    risk = linear_risk(X, y, rm.Prbep(), sample_weight=np.arange(1.0, 13.0))
    with pytest.raises(ValueError, match="Prbep counts rows"):
        minimize(Objective(risk, L2(), lam=0.1))


def test_no_pair_with_weight_is_reported_by_the_loss():
    X, grades = draw(12, 2, 4)[0], np.append(1.0, np.zeros(11))
    weight, qid = np.append(0.0, np.ones(11)), np.repeat([0, 1], 6)
    risk = linear_risk(X, grades, rm.PairwiseHinge(), sample_weight=weight, qid=qid)
    with pytest.raises(ValueError, match="needs a pair of rows that both have weight"):
        minimize(Objective(risk, L2(), lam=0.1))


@pytest.mark.parametrize(("loss", "p"), [(rm.Prbep(), 6), (rm.RocArea(), 60)])
def test_a_run_continues_and_starts_warm(loss, p, tmp_path):
    X, y = draw(40, p, 13)
    obj = Objective(linear_risk(X, y, loss), L2(), lam=1e-2)
    solver, file = SeparableForm(rm.DualCoordinateAscent()), rm.Checkpoint(tmp_path / "run", every=0.0)
    whole = minimize(obj, solver, tol=1e-8)
    minimize(obj, solver, tol=1e-8, max_iter=2, checkpoint=file)
    resumed = minimize(obj, solver, tol=1e-8, checkpoint=file)
    np.testing.assert_array_equal(resumed.w, whole.w)
    for result in rm.path(obj.risk, L2(), [1e-2, 1e-4], tol=1e-6):
        assert result.status == "converged"
