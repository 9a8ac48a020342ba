"""Losses of one score per row: what they are besides their formula, and their limits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm


def at(loss, z, y=1.0):
    """The loss and its slope for one row."""
    value, dz = loss.value_grad(np.array([z]), np.array([y]), np.ones(1))
    return float(value), float(dz[0])


@pytest.mark.parametrize("delta", [0.01, 1.0, 3.0])
def test_huber_is_the_envelope_of_the_absolute_value(delta):
    grid = np.linspace(-4.0, 4.0, 80_001)
    for r in (-2.7, -0.4, 0.0, 0.9, 3.5):  # the infimal convolution, on a grid of u
        expected = np.min((r - grid) ** 2 / 2 + delta * np.abs(grid))
        assert at(rm.Huber(delta), r, 0.0)[0] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("mu", [0.01, 0.5, 2.0])
def test_the_smoothed_hinge_is_the_maximum_over_the_dual(mu):
    a = np.linspace(0.0, 1.0, 100_001)
    for z in (-1.5, 0.3, 0.995, 1.0, 2.0):
        dual = a * (1 - z) - mu / 2 * a**2
        value, slope = at(rm.SmoothedHinge(mu), z)
        assert value == pytest.approx(np.max(dual), abs=1e-9)
        assert -slope == pytest.approx(a[np.argmax(dual)], abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=15, unique=True),
    st.sampled_from([0.11, 0.37, 0.5, 0.93]),
)
def test_the_quantile_loss_is_minimized_by_the_sample_quantile(labels, level):
    y, ones = np.array(labels, dtype=float), np.ones(len(labels))
    values = [float(rm.Quantile(level).value_grad(np.full_like(y, z), y, ones)[0]) for z in y]
    best = labels.index(int(np.quantile(y, level, method="inverted_cdf")))
    assert min(values) == pytest.approx(values[best])


@pytest.mark.parametrize("y", [0.0, 1.0, 7.0, 1e4])
def test_poisson_is_zero_at_the_logarithm_of_the_label(y):
    value, slope = at(rm.Poisson(), math.log(y) if y else -800.0, y)
    assert value == pytest.approx(0.0, abs=1e-15 * max(1.0, y))
    assert slope == pytest.approx(0.0, abs=1e-14 * max(1.0, y))


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
