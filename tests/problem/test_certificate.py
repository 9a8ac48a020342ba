"""Cuts of multipliers against exact arithmetic: they are below the risk, and close to it."""

from fractions import Fraction

import numpy as np
import pytest
from benchmarks.campaign import exact
from benchmarks.campaign.problems import SINGLE_OUTPUT

import riskmin as rm
from riskmin.problem.certificate import balanced, multiplier_cut

each_loss = pytest.mark.parametrize("loss", SINGLE_OUTPUT, ids=repr)
DRAWS = 40


def drawn(loss, seed, n=12):
    """Labels that suit the loss, multipliers inside of their domains, and weights that sum to one."""
    rng = np.random.default_rng([seed, 7])
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    if loss.task == "regression":
        y = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4)
        y = rng.poisson(3.0, n).astype(float) if isinstance(loss, rm.Poisson) else y
    c, conjugate = rng.random(n), loss.conjugate(y)
    lower, upper = np.maximum(conjugate.lower, -2.0), np.minimum(conjugate.upper, 2.0)
    u = lower + rng.random(n) * (upper - lower)
    return conjugate, y, np.where(rng.random(n) < 0.5, u, 1e-9 * u), c / c.sum()


def number_type(loss):
    return Fraction if exact.rational(loss, rm.L2()) else exact.Decimal


def exactly(values, loss):
    return [exact.number(v, number_type(loss)) for v in values]


def height(a, b, v, loss):
    """a'v + b in exact arithmetic."""
    products = (s * t for s, t in zip(exactly(a, loss), exactly(v, loss), strict=True))
    return sum(products, exactly([b], loss)[0])


def gaps(loss):
    """Exact distances of the risk to cuts, at the scores where they touch it; and the sizes of the terms."""
    found = []
    for seed in range(DRAWS):
        conjugate, y, u, c = drawn(loss, seed)
        z = conjugate.grad(u)
        cut = multiplier_cut(c * u, conjugate, u, c, z=z)  # X is the identity
        with exact.precise():
            risk = exact.risk(loss, exactly(z, loss), exactly(y, loss), exactly(c, loss), None)
            gap = risk - height(cut.a, cut.b, z, loss)
        found.append((gap, float(abs(cut.b) + (c * abs(u)) @ (abs(z) + abs(y) + 1))))
    return found


@each_loss
def test_a_cut_of_multipliers_is_below_the_risk_exactly(loss):
    for gap, size in gaps(loss):
        assert gap >= 0
        assert gap <= 1e-12 * size


def test_a_cut_keeps_its_multipliers_and_rows_without_weight_need_none():
    conjugate, _, u, c = drawn(rm.Hinge(), 1)
    c[0], u[0] = 0.0, 5.0
    cut = multiplier_cut(c * u, conjugate, u, c)
    assert cut.u is u
    assert np.isfinite(cut.b)


# ---------------------------------------------------------------- an intercept
KINKED = [rm.Hinge(), rm.Absolute(), rm.Quantile(0.3), rm.EpsilonInsensitive(epsilon=0.25), rm.Novelty()]


def kinks(loss, y):
    margin = getattr(loss, "margin", 1.0)
    width = getattr(loss, "epsilon", 0.0)
    return {"Hinge": margin * y, "Novelty": 0 * y + 1.0}.get(
        type(loss).__name__, np.concatenate([y - width, y + width])
    )


def exact_best_intercept(loss, y, c):
    """The exact minimum over b of sum_i c_i l(b, y_i), which is at a kink, and the b where it is attained."""
    labels, weights = exactly(y, loss), exactly(c, loss)

    def value(b):
        return exact.risk(loss, [Fraction(float(b))] * len(y), labels, weights, None)

    best = min(kinks(loss, y), key=value)
    return value(best), best


@pytest.mark.parametrize("loss", KINKED, ids=repr)
def test_balanced_multipliers_bound_the_risk_for_every_intercept(loss):
    for seed in range(DRAWS):
        conjugate, y, u, c = drawn(loss, seed)
        minimum, _ = exact_best_intercept(loss, y, c)
        v = balanced(u, c, conjugate)
        assert np.all((v >= conjugate.lower) & (v <= conjugate.upper))
        assert abs(sum(s * t for s, t in zip(exactly(v, loss), exactly(c, loss), strict=True))) <= (
            2.0**-48 * (c @ abs(v))
        )
        # for w = 0 the cut is its offset, whatever the intercept
        assert Fraction(multiplier_cut(0 * v, conjugate, v, c).b) <= minimum


def bounds_of_rows_at_a_kink(loss):
    """The exact minimum over b and the bound of multipliers at it, whose sum rows at a kink make zero."""
    for seed in range(DRAWS):
        conjugate, y, _, c = drawn(loss, seed)
        minimum, b = exact_best_intercept(loss, y, c)
        # the slopes on both sides of b differ in rows that have a kink there
        left, right = (loss.value_grad(0 * y + b + h, y, np.ones(len(y)))[1] for h in (-1e-9, 1e-9))
        u = balanced(0.5 * (left + right), c, conjugate)
        yield minimum, Fraction(multiplier_cut(0 * u, conjugate, u, c).b), float(c @ abs(y))


@pytest.mark.parametrize("loss", KINKED[:4], ids=repr)
def test_multipliers_of_rows_at_a_kink_make_the_sum_zero(loss):
    for minimum, bound, size in bounds_of_rows_at_a_kink(loss):
        assert 0 <= minimum - bound <= 1e-12 * (minimum + size)


def test_multipliers_without_bounds_become_balanced_at_once():
    loss, rng = rm.Squared(), np.random.default_rng(0)
    y = 1e8 + rng.standard_normal(20)
    c = np.full(20, 0.05)
    u = balanced(-y, c, loss.conjugate(y))
    # the best constant is the mean: the exact multipliers are its residuals
    np.testing.assert_allclose(u, y.mean() - y, atol=1e-6)
