"""Contingency table losses smoothed by entropy: values, gradients and cuts by enumeration, and fits."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riskmin import (
    L2,
    AcceleratedGradient,
    Bundle,
    FBeta,
    Objective,
    Prbep,
    PrecisionAtK,
    RecallAtK,
    Smoothed,
    Smoothing,
    linear_risk,
    minimize,
)
from riskmin._numba.sorting import subset_sums
from riskmin.core import UnsupportedProblem
from riskmin.losses.nondecomposable import entropy_smoothing as module
from riskmin.losses.nondecomposable.entropy_smoothing import entropic_smoothing, log_n_labelings

KINDS = [FBeta(), FBeta(beta=0.3), Prbep(), PrecisionAtK(k=1), PrecisionAtK(k=3), RecallAtK(k=2)]


def measure(loss, positives, misses, alarms):
    """Delta of a contingency table, by an independent formula; None if no labelling may have this table."""
    hits, predicted = positives - misses, positives - misses + alarms
    if isinstance(loss, FBeta):
        b = loss.beta**2
        return 1 - (1 + b) * hits / ((1 + b) * hits + b * misses + alarms)
    if isinstance(loss, Prbep):
        return misses / positives if misses == alarms else None
    if misses == alarms == 0:
        return 0.0
    if predicted != loss.k:
        return None
    return 1 - hits / (positives if isinstance(loss, RecallAtK) else loss.k)


def labellings(loss, y):
    """Each labelling that counts, with its Delta."""
    for signs in product([-1.0, 1.0], repeat=len(y)):
        other = np.array(signs)
        misses, alarms = int(((y > 0) & (other < 0)).sum()), int(((y < 0) & (other > 0)).sum())
        delta = measure(loss, int((y > 0).sum()), misses, alarms)
        if delta is not None:
            yield other, delta


def by_hand(loss, z, y, T):
    """R_T, its gradient, R, and the logarithm of the number of labellings, by enumeration."""
    slopes, deltas = zip(
        *(((other - y) / len(y), delta) for other, delta in labellings(loss, y)), strict=True
    )
    slopes, deltas = np.array(slopes), np.array(deltas)
    terms = slopes @ z + deltas
    p = np.exp((terms - terms.max()) / T)
    value = terms.max() + T * np.log(p.mean())
    return value, p @ slopes / p.sum(), terms.max(), np.log(len(deltas))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(3, 7),
    st.sampled_from([1e-4, 1e-2, 0.1, 1.0, 30.0]),
    st.integers(0, 2**32 - 1),
)
def test_all_labellings(loss, n, T, seed):
    """Value, gradient, R - T log N <= R_T <= R, and a tangent that plus its offset is below R everywhere."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(n) * rng.choice([0.1, 1.0, 10.0])
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    c = np.full(n, 1 / n)
    value, dz, offset = entropic_smoothing(loss, z, y, T)
    exact, grad, unsmoothed, log_count = by_hand(loss, z, y, T)
    assert value == pytest.approx(exact, abs=1e-12 * (1 + abs(z).max()))
    np.testing.assert_allclose(dz, grad, atol=1e-9)
    assert unsmoothed == pytest.approx(float(loss.value_grad(z, y, c)[0]), abs=1e-12)
    assert unsmoothed - T * log_count - 1e-10 <= value <= unsmoothed + 1e-10
    assert -1e-12 <= offset <= T * log_count + 1e-10
    for v in rng.standard_normal((20, n)) * rng.choice([0.1, 1.0, 100.0], (20, 1)):
        assert value + offset + dz @ (v - z) <= float(loss.value_grad(v, y, c)[0]) + 1e-12 * (
            1 + abs(v).max()
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", KINDS, ids=repr)
def test_twelve_rows(loss):
    rng = np.random.default_rng(0)
    for T in (1e-3, 0.1, 2.0):
        z, y = rng.standard_normal(12), np.where(np.arange(12) < 5, 1.0, -1.0)
        value, dz, _ = entropic_smoothing(loss, z, y, T)
        exact, grad, _, _ = by_hand(loss, z, y, T)
        assert value == pytest.approx(exact, abs=1e-12)
        np.testing.assert_allclose(dz, grad, atol=1e-10)


@pytest.mark.parametrize("loss", KINDS, ids=repr)
def test_the_number_of_labellings(loss):
    y = np.where(np.arange(9) < 4, 1.0, -1.0)
    misses, alarms, _ = loss.tables(4, 5)
    count = len(list(labellings(loss, y)))
    assert np.exp(log_n_labelings(misses, alarms, 4, 5)) == pytest.approx(count, rel=1e-12)


@pytest.mark.parametrize("loss", [FBeta(), Prbep(), PrecisionAtK(k=40), RecallAtK(k=150)], ids=repr)
def test_hundreds_of_rows(loss):
    """The gradient equals differences of the value; cuts are valid at any temperature, up to rounding."""
    rng = np.random.default_rng(1)
    n = 400
    z, y, c = rng.standard_normal(n), np.where(np.arange(n) < 150, 1.0, -1.0), np.full(n, 1 / n)
    d = rng.standard_normal(n)
    h = 1e-4
    ends = [entropic_smoothing(loss, z + s * d, y, 1e-3)[0] for s in (h, -h)]
    assert entropic_smoothing(loss, z, y, 1e-3)[1] @ d == pytest.approx(
        (ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-7
    )
    points = [z, 0 * z, 10 * y, *rng.standard_normal((5, n)), *(1e3 * rng.standard_normal((2, n)))]
    values = [float(loss.value_grad(v, y, c)[0]) for v in points]
    for T in (1e-9, 1e-6, 1e-4, 1e-2, 1.0, 1e4):
        for scale in (1.0, 1e4):
            value, dz, offset = entropic_smoothing(loss, scale * z, y, T)
            height = value + offset - scale * float(dz @ z)  # the mean of Delta, in [0, 1]
            assert -1e-12 * scale <= height <= 1 + 1e-12 * scale
            assert offset >= -1e-12 * scale
            for v, r in zip(points, values, strict=True):
                assert height + dz @ v <= r + 1e-13 * (scale + abs(v).max())


def test_inclusion_probabilities_are_those_of_a_distribution():
    """The probabilities lie in [0, 1] and sum to the expected subset size, however extreme the odds."""
    rng = np.random.default_rng(0)
    for scale in (1.0, 100.0, 1e6):
        odds = scale * rng.standard_normal(50)
        size = rng.random(51)
        size /= size.sum()
        for step in (1, 7, 50):
            polynomials = subset_sums.log_symmetric_polynomials(odds, 50, step)
            probabilities = subset_sums.inclusion_probabilities(odds, polynomials, step, size)
            assert probabilities.sum() == pytest.approx(size @ np.arange(51), rel=1e-14)
            assert probabilities.min() >= 0
            assert probabilities.max() <= 1 + 1e-14


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("inner", ["lbfgs", "accelerated"])
def test_a_certified_fit(inner, intercept):
    """F1 by smoothing reaches the optimum proved by Bundle."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 4))
    y = np.where(X @ [1.0, -1.0, 0.5, 0.0] + 0.7 * rng.standard_normal(120) > 0.8, 1.0, -1.0)
    J = Objective(linear_risk(X, y, FBeta(), fit_intercept=intercept), L2(), 0.02)
    best = minimize(J, Bundle(), tol=1e-6)
    solver = Smoothing() if inner == "lbfgs" else Smoothing(inner=AcceleratedGradient())
    result = minimize(J, solver, tol=1e-2 if intercept else 2e-3, max_iter=400)
    assert result.status == "converged"
    assert result.lower <= best.value
    assert best.lower <= result.value <= best.value + result.gap


@pytest.mark.slow
@pytest.mark.parametrize("loss", [FBeta(), PrecisionAtK(k=60), RecallAtK(k=30)], ids=repr)
@pytest.mark.parametrize("solver", [Smoothing(), Smoothing(inner=AcceleratedGradient())], ids=repr)
def test_certified_fits_of_300_rows(loss, solver):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 5))
    y = np.where(X[:, 0] - X[:, 1] + 0.7 * rng.standard_normal(300) > 0.9, 1.0, -1.0)
    J = Objective(linear_risk(X, y, loss), L2(), 0.01)
    best, result = minimize(J, Bundle(), tol=1e-7), minimize(J, solver, tol=1e-4, max_iter=600)
    assert result.status == "converged"
    assert result.value == pytest.approx(best.value, rel=1e-4)
    assert best.lower <= result.value
    assert result.lower <= best.value


def test_too_many_rows_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_DP_STEPS_PER_EVALUATION", 100)
    y = np.where(np.arange(40) < 15, 1.0, -1.0)
    message = r"FBeta takes 8.5e\+02 steps per evaluation .* on 40 rows.*: use Bundle$"
    with pytest.raises(UnsupportedProblem, match=message):
        Smoothed(FBeta(), 0.1).value_grad(np.zeros(40), y, np.full(40, 1 / 40))


def test_weights_must_be_equal():
    y = np.array([1.0, -1.0, 1.0])
    for loss in (FBeta(), PrecisionAtK(k=1)):
        with pytest.raises(ValueError, match="all must weigh the same"):
            loss.smoothed_value_grad(np.zeros(3), y, np.array([0.5, 0.25, 0.25]), 0.1)
    with pytest.raises(ValueError, match=r"PrecisionAtK needs k=5 rows, but there are 3: lower k"):
        PrecisionAtK(k=5).smoothed_value_grad(np.zeros(3), y, np.full(3, 1 / 3), 0.1)
