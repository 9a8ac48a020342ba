"""Losses of one score per row: what they are besides their formula, and their limits."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_tweedie_deviance

import riskmin as rm


def at(loss, z, y=1.0):
    """The loss and its slope for one row."""
    value, dz = loss.value_grad(np.array([z]), np.array([y]), np.ones(1))
    return float(value), float(dz[0])


@pytest.mark.parametrize("mu", [0.01, 0.5, 2.0])
def test_the_smoothed_hinge_is_the_maximum_over_the_dual(mu):
    a = np.linspace(0.0, 1.0, 100_001)
    for z in (-1.5, 0.3, 0.995, 1.0, 2.0):
        dual = a * (1 - z) - mu / 2 * a**2
        value, slope = at(rm.SmoothedHinge(mu), z)
        assert value == pytest.approx(np.max(dual), abs=1e-9)
        assert -slope == pytest.approx(a[np.argmax(dual)], abs=1e-4)


@pytest.mark.parametrize("y", [0.0, 1.0, 7.0, 1e4])
def test_poisson_is_zero_at_the_logarithm_of_the_label(y):
    value, slope = at(rm.Poisson(), math.log(y) if y else -800.0, y)
    assert value == pytest.approx(0.0, abs=1e-15 * max(1.0, y))
    assert slope == pytest.approx(0.0, abs=1e-14 * max(1.0, y))


FAMILIES = [rm.Gamma(), rm.Tweedie(1.2), rm.Tweedie(1.9), rm.NegativeBinomial(0.3), rm.NegativeBinomial(4.0)]


@pytest.mark.parametrize("loss", FAMILIES, ids=repr)
def test_families_are_half_the_deviance(loss):
    """Of scikit-learn's, and of scipy's distribution of counts; zero at the logarithm of the label."""
    rng = np.random.default_rng(0)
    y, z = rng.gamma(1.5, 3.0, 50).round() + (not isinstance(loss, rm.NegativeBinomial)), rng.normal(size=50)
    if isinstance(loss, rm.NegativeBinomial):
        r = 1 / loss.dispersion
        log_p, best = (scipy.stats.nbinom.logpmf(y, r, r / (r + np.exp(s))) for s in (z, np.log(y + 1e-300)))
        expected = best - log_p
    else:
        power = getattr(loss, "power", 2.0)
        expected = [
            mean_tweedie_deviance([a], [np.exp(s)], power=power) / 2 for a, s in zip(y, z, strict=True)
        ]
    np.testing.assert_allclose(loss.values(z, y), expected, rtol=1e-11, atol=1e-12)
    value, slope = at(loss, math.log(7.0), 7.0)
    assert (value, slope) == (pytest.approx(0.0, abs=1e-13), pytest.approx(0.0, abs=1e-13))


def test_tweedie_is_between_poisson_and_gamma():
    z, y = np.linspace(-2, 2, 9), np.linspace(0.5, 4.0, 9)
    for power, end in ((1 + 1e-7, rm.Poisson()), (2 - 1e-7, rm.Gamma())):
        np.testing.assert_allclose(rm.Tweedie(power).values(z, y), end.values(z, y), atol=1e-6)
    small = rm.NegativeBinomial(dispersion=1e-7)
    np.testing.assert_allclose(small.values(z, y), rm.Poisson().values(z, y), atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.floats(-37, 1e3), st.sampled_from([-1.0, 1.0]))
def test_probit_is_exact_at_every_score(m, y):
    value, slope = at(rm.Probit(), y * m, y)
    log_p = scipy.stats.norm.logcdf(m)
    assert value == pytest.approx(-log_p, rel=1e-13)
    assert slope == pytest.approx(-y * math.exp(scipy.stats.norm.logpdf(m) - log_p), rel=1e-11, abs=1e-300)
    assert at(rm.Probit(), -1e8 * y, y) == pytest.approx((5e15, -y * 1e8), rel=1e-12)


def test_expectiles_are_those_of_scipy():
    y, c = np.random.default_rng(0).gamma(2.0, size=40), np.random.default_rng(1).uniform(size=40)
    for level in (0.1, 0.5, 0.9):
        risk = rm.linear_risk(np.zeros((40, 1)), y, rm.Expectile(level), sample_weight=c, fit_intercept=True)
        expected = scipy.stats.expectile(y, level, weights=c)
        assert risk.best_intercept(np.zeros(1)) == pytest.approx(expected, rel=1e-9)
    z = np.linspace(0, 3, 40)
    np.testing.assert_array_equal(rm.Expectile(0.5).values(z, y), rm.Squared().values(z, y))


@settings(max_examples=50, deadline=None)
@given(st.floats(-700, 700), st.sampled_from([-1.0, 1.0]))
def test_logistic_is_exact_at_every_score(z, y):
    value, slope = at(rm.Logistic(), z, y)
    e = math.exp(-abs(z))
    assert value == pytest.approx(math.log1p(e) + max(0.0, -y * z), rel=1e-14, abs=1e-300)
    assert slope == pytest.approx(-y * (e if y * z > 0 else 1.0) / (1 + e), rel=1e-14, abs=1e-300)


@pytest.mark.parametrize(("loss", "sign"), [(rm.Exponential(), -1.0), (rm.Poisson(), 1.0)], ids=repr)
def test_exponentials_are_continued_from_below_past_the_cap(loss, sign):
    for t in [350.0, 400.0, 700.0]:
        value, slope = at(loss, sign * t)
        exact = math.exp(t)
        assert value <= exact * (1 + 1e-12)
        assert (value == pytest.approx(exact, rel=1e-12)) == (t == 350.0)
        assert 0 < sign * slope <= exact
        beyond = at(loss, sign * (t + 1e-3))[0]
        assert beyond - value == pytest.approx(1e-3 * sign * slope, rel=1e-3)  # the tangent, or close to it


@pytest.mark.parametrize(
    ("loss", "z", "y", "low", "high"),
    [
        (rm.Hinge(), 1.0, 1.0, -1.0, 0.0),
        (rm.PowerHinge(p=1.0), 1.0, 1.0, -1.0, 0.0),
        (rm.Novelty(), 1.0, 0.0, -1.0, 0.0),
        (rm.Absolute(), 2.0, 2.0, -1.0, 1.0),
        (rm.Quantile(0.9), 2.0, 2.0, -0.9, 0.1),
        (rm.EpsilonInsensitive(0.5), 2.5, 2.0, 0.0, 1.0),
        (rm.EpsilonInsensitive(0.0), 2.0, 2.0, -1.0, 1.0),
    ],
    ids=repr,
)
def test_at_nonsmooth_points_the_slope_is_a_subgradient(loss, z, y, low, high):
    value, slope = at(loss, z, y)
    assert value == 0.0
    assert low - 1e-12 <= slope <= high + 1e-12
