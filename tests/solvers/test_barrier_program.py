"""Cutting planes in raw units: the master problem of nearly unpenalized weights, and whole fits."""

from fractions import Fraction

import numpy as np
import pytest

from riskmin import (
    L1,
    L2,
    Box,
    Bundle,
    Elastic,
    ExpectedRankUtility,
    FBeta,
    Mrr,
    Ndcg,
    Objective,
    PrecisionAtK,
    RocArea,
    linear_risk,
    minimize,
)
from riskmin.solvers.bundle.barrier_program import BarrierProgram
from riskmin.solvers.bundle.cutting_planes import CuttingPlaneModel

WEAK = 10.0 ** np.array([-18.0, -12.0, -6.0, 0.0])


def drawn_cuts(seed, m=14, p=4):
    """Tangents of |w - c|^2 / 2 + 10: their maximum is positive, and bounded below in all directions."""
    rng = np.random.default_rng(seed)
    points, center = rng.standard_normal((m, p)), rng.standard_normal(p)
    A = points - center
    return A, 10 + 0.5 * np.sum(A * A, axis=1) - np.sum(A * points, axis=1)


def exact_gap(A, b, alpha, w, weights):
    """max(0, A w + b) + weights w^2 / 2 less the bound of the multipliers, in rational arithmetic."""
    A, b, alpha, w, weights = (np.vectorize(Fraction)(v) for v in (A, b, alpha, w, weights))
    a = alpha @ A
    value = max(*(A @ w + b), Fraction(0)) + sum(weights * w * w) / 2
    return float(value), float(value - (alpha @ b - sum(a * a / weights) / 2))


@pytest.mark.parametrize("seed", range(5))
def test_nearly_unpenalized_weights_do_not_lose_the_minimizer(seed):
    A, b = drawn_cuts(seed)
    reg = L2(WEAK)
    alpha, w = BarrierProgram(reg, 1.0, 4).solve(A, b, np.zeros(4), 0.0)
    assert alpha.min() >= 0
    assert alpha.sum() <= 1 + 1e-12
    value, gap = exact_gap(A, b, alpha, w, WEAK)
    assert 0 <= gap <= 1e-9 * value + 1e-14


@pytest.mark.parametrize("reg", [L1(WEAK), Elastic(1.0, WEAK), Box(L2(WEAK), -0.5, 0.5), Box(L1(WEAK), 0.0)])
def test_other_separable_regularizers(reg):
    A, b = drawn_cuts(3)
    alpha, w = BarrierProgram(reg, 1.0, 4).solve(A, b, np.zeros(4), 0.0)
    obj = Objective(linear_risk(A, (-1.0) ** np.arange(len(b)), RocArea()), reg, 1.0)
    lower = obj.lower(CuttingPlaneModel(None, A, b, alpha, 0 * b).mixture())
    value = max(float(np.max(A @ w + b)), 0.0) + reg.value(w)
    assert -1e-12 * value <= value - lower <= 1e-6 * value


def in_raw_units(seed, n=60, p=8):
    """Rows, grades and queries; the units of the columns differ by up to twelve orders of magnitude."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, p))
    s = Z @ rng.standard_normal(p) + rng.standard_normal(n)
    X = (Z + rng.choice([0.0, 1.0, 1000.0], p)) * 10.0 ** rng.uniform(-6, 6, p)
    return X, np.digitize(s, np.quantile(s, [0.6, 0.85])).astype(float), np.sort(rng.integers(0, 5, n))


def certified(X, y, loss, reg, **settings):
    """Whether the defaults prove 1e-3, with a bound that no other point contradicts."""
    obj = Objective(linear_risk(X, y, loss, **settings), reg, 1e-6)
    result = minimize(obj)
    other = minimize(obj, tol=1e-5, max_iter=60)
    assert result.lower <= other.value * (1 + 1e-9)
    assert result.value <= obj.value(np.zeros(X.shape[1]))
    return result.status == "converged"


@pytest.mark.parametrize("reg", [L2(), L1()])
@pytest.mark.parametrize(
    "loss", [Ndcg(), Mrr(), ExpectedRankUtility(), Ndcg(weights="discount")], ids=lambda loss: repr(loss)
)
def test_rankings_in_raw_units_are_certified(loss, reg):
    for seed in range(2):
        X, y, qid = in_raw_units(seed)
        assert certified(X, y, loss, reg, qid=qid)


@pytest.mark.parametrize("reg", [L2(), L1()])
@pytest.mark.parametrize("loss", [FBeta(), PrecisionAtK(5), RocArea()], ids=lambda loss: repr(loss))
def test_lists_in_raw_units_are_certified(loss, reg):
    for seed in range(2):
        X, y, _ = in_raw_units(seed)
        assert certified(X, np.where(y > 0, 1.0, -1.0), loss, reg)


def test_other_problems_keep_the_active_set_method():
    X, y, qid = in_raw_units(0)
    obj = Objective(linear_risk((X - X.mean(0)) / X.std(0), y, Ndcg(), qid=qid), L2(), 1e-3)
    model = CuttingPlaneModel.empty(obj, np.zeros(8))
    for it in Bundle().iterates(obj, np.zeros(8)):
        model.add(obj(it.w).cut)
        model.best_mixture(it.w, it.value)
        if it.info["cuts"] > 12:
            break
    assert not model.by_barrier
