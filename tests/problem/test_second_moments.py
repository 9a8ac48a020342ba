"""Second moments of rows: they add up, and squared errors are quadratic forms, up to a stated rounding."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from riskmin import L2, Objective, Squared, linear_risk
from riskmin.problem.second_moments import SecondMoments, center_of, total

rng = np.random.default_rng(3)
N, P = 60, 4
X = rng.normal(size=(N, P)) * [1e-6, 1.0, 1e3, 1e6] + [0.0, 5.0, -1e5, 1e7]
Y = X @ [2e6, 1.0, 1e-3, -1e-6] + rng.normal(size=N) + 40.0
C = rng.random(N)
LAYOUTS = {"C": X, "Fortran": np.asfortranarray(X), "single": X.astype(np.float32)}


def moments(X, y, c, intercept, parts):
    center = center_of(X, y, intercept)
    cuts = np.linspace(0, len(y), parts + 1).astype(int)
    return total(
        [
            SecondMoments.of_rows(X[i:j], y[i:j], None if c is None else c[i:j], center)
            for i, j in pairwise(cuts)
        ]
    )


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weight", [None, C], ids=["equal", "weighted"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_risk_is_that_of_the_rows(layout, weight, intercept, parts):
    rows = LAYOUTS[layout]
    quadratic = moments(rows, Y, weight, intercept, parts).risk(intercept)
    risk = linear_risk(rows, Y, Squared(), sample_weight=weight, fit_intercept=intercept)
    for _ in range(3):
        w = rng.normal(size=P) / X.std(axis=0)
        value = quadratic.R0 - quadratic.q @ w + 0.5 * w @ quadratic.G @ w
        assert value == pytest.approx(risk(w)[0], rel=1e-7)
        slope = quadratic.G @ w - quadratic.q
        np.testing.assert_allclose(slope, risk(w)[1], rtol=1e-5, atol=1e-7 * np.abs(slope).max())
        b, raised = quadratic.intercepts(w[None])
        assert b[0] == pytest.approx(risk.best_intercept(w), rel=1e-8, abs=1e-8)
        assert 0 <= raised[0] < 1e-10


def exact(X, y, c, w, b):
    """Sum of weighted squared errors in rational numbers."""
    w, b = [Fraction(float(v)) for v in w], Fraction(float(b))
    total = Fraction(0)
    for x, t, weight in zip(X, y, c, strict=True):
        z = b + sum(Fraction(float(v)) * u for v, u in zip(x, w, strict=True))
        total += Fraction(float(weight)) * (Fraction(float(t)) - z) ** 2
    return total


def test_squared_errors_are_within_their_rounding():
    """Also those of a nearly exact fit, where most digits are lost."""
    errors = []
    w = np.linalg.lstsq(X - X.mean(axis=0), Y - Y.mean(), rcond=None)[0]
    for y in (Y, X @ w + 1e-6 * rng.normal(size=N)):
        all_rows = moments(X, y, C, True, 2)
        b = all_rows.risk(True).intercepts(w[None])[0]
        squares, rounding = all_rows.squared_errors(w[None], b)
        errors.append(
            float(abs(Fraction(float(squares[0])) - exact(X, y, C, w, b[0])) / Fraction(float(rounding[0])))
        )
    assert 0 < max(errors) < 1


def test_parts_about_different_numbers_do_not_add_up():
    a = SecondMoments.of_rows(X, Y, None, center_of(X, Y, True))
    with pytest.raises(ValueError, match="different numbers"):
        a + SecondMoments.of_rows(X, Y, None, np.zeros(P + 1))


def test_a_fit_without_an_intercept_is_about_zero():
    quadratic = moments(X, Y, None, False, 1).risk(False)
    assert quadratic.means is None
    w = np.zeros(P)
    assert pytest.approx(Objective(linear_risk(X, Y, Squared()), L2(), 1.0).value(w)) == quadratic.R0
