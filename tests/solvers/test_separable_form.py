"""Break-even points and pairs as separable losses: the same minima as those of the losses themselves."""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from riskmin import L2, Objective, linear_risk, minimize


def draw(n, p, n_positive, seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, p)), np.where(np.arange(n) < n_positive, 1.0, -1.0)
    return X + 0.4 * y[:, None], y


@pytest.mark.parametrize(("n", "p", "lam"), [(30, 80, 1e-4), (60, 5, 1e-3)])
def test_auto_reaches_the_minimum_of_the_cutting_planes(n, p, lam):
    X, y = draw(n, p, n // 3)
    obj = Objective(linear_risk(X, y, rm.Prbep()), L2(), lam)
    result = minimize(obj, tol=1e-7)
    assert result.status == "converged"
    assert obj.value(result.w) == pytest.approx(result.value, rel=1e-12)
    planes = minimize(obj, rm.Bundle(), tol=1e-4, max_iter=500)
    assert result.lower <= planes.value * (1 + 1e-12)
    assert planes.lower <= result.value * (1 + 1e-12)


@pytest.mark.parametrize("lam", [1e-2, 1e-6])
def test_auto_certifies_the_roc_area_of_fewer_rows_than_columns(lam):
    X, y = draw(40, 120, 15)
    result = minimize(Objective(linear_risk(sp.csr_array(X), y, rm.RocArea()), L2(), lam), tol=1e-6)
    assert result.status == "converged"


def test_auto_certifies_pairs_in_other_units():
    """Where the penalty of a column is below rounding, cutting planes lose their minimizer."""
    rng = np.random.default_rng(1)
    X = np.round(rng.standard_normal((30, 20)) * 10.0 ** rng.uniform(-6, 6, 20), 6)
    X += 10.0 ** rng.uniform(-3, 4, 20)
    risk = linear_risk(X, rng.integers(0, 3, 30), rm.PairwiseHinge(), qid=np.sort(rng.integers(0, 5, 30)))
    assert minimize(Objective(risk, L2(), 1e-6), tol=1e-3).status == "converged"


def test_pairs_are_formed_up_to_a_number():
    y = draw(12, 2, 4)[1]
    assert rm.RocArea().pairs(y, np.ones(12), 31) is None  # of 4 x 8 pairs
    assert rm.RocArea().pairs(y, np.ones(12), 32) is not None
