"""Huber's loss with a jointly estimated scale: against scikit-learn, in any units, with a certificate."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.linear_model import HuberRegressor

import riskmin as rm

N = 200
RNG = np.random.default_rng(0)
S = RNG.standard_normal((N, 3))
Y = S @ [1.0, -2.0, 0.0] + RNG.standard_t(1.5, N)


def of_scale(r, c, epsilon, scale):
    t = np.abs(r) / scale
    return c @ (scale + scale * np.where(t <= epsilon, t * t, 2 * epsilon * t - epsilon**2))


@pytest.mark.parametrize("epsilon", [1.05, 1.35, 4.0])
def test_the_scale_is_the_minimizer(epsilon):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        r, c = rng.standard_t(1.5, 30), rng.dirichlet(np.ones(30))
        r[: seed % 4] = 0.0
        loss = rm.HuberScale(epsilon)

        def at(s, r=r, c=c):
            return of_scale(r, c, epsilon, np.exp(s))

        found = minimize_scalar(at, bounds=(-16, 9), method="bounded")
        value, slopes = loss.value_grad(r, np.zeros(30), c)
        assert value == pytest.approx(found.fun, rel=1e-5)
        assert loss.scale(r, np.zeros(30), c) == pytest.approx(np.exp(found.x), rel=1e-3, abs=2e-4)
        # the dual: a is feasible, and attains the value
        a = slopes / c
        assert np.abs(a).max() <= 2 * epsilon * (1 + 1e-12)
        assert c @ a**2 <= 4 * (1 + 1e-9)
        assert slopes @ r == pytest.approx(value, rel=1e-12)


def test_a_fit_through_most_rows_has_the_scale_zero():
    """The loss has a kink there, and the bound is proved nevertheless."""
    y = S @ [1.0, 0.5, 0.0]
    y[::4] += 10 * RNG.standard_normal(50)
    model = rm.LinearRegressor("huber_scale", alpha=1e-9, tol=1e-3).fit(S, y)
    assert model.result_.status == "converged"
    np.testing.assert_allclose(model.coef_, [1.0, 0.5, 0.0], atol=5e-3)
    assert rm.HuberScale().scale(model.predict(S), y, np.full(N, 1 / N)) < 0.01


@pytest.mark.parametrize("alpha", [1e-6, 0.1])
@pytest.mark.parametrize("weight", [None, RNG.integers(0, 3, N).astype(float)], ids=["rows", "weights"])
def test_fits_are_those_of_scikit_learn(alpha, weight):
    total = N if weight is None else weight.sum()
    theirs = HuberRegressor(alpha=alpha * total / 2, max_iter=10_000, tol=1e-9).fit(S, Y, weight)
    model = rm.LinearRegressor("huber_scale", alpha=alpha, tol=1e-10).fit(S, Y, weight)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-4)
    assert model.intercept_ == pytest.approx(theirs.intercept_, abs=1e-4)
    c = np.full(N, 1 / N) if weight is None else weight / total
    assert rm.HuberScale().scale(model.predict(S), Y, c) == pytest.approx(theirs.scale_, rel=1e-4)
    assert rm.certify(model, S, Y, sample_weight=weight).status == "certified"


@pytest.mark.parametrize("units", [1e-6, 1.0, 1e8])
def test_the_units_of_y_and_of_columns_do_not_matter(units):
    """Where scikit-learn's fails. The loss has the units of y, and alpha those of 1 / y."""
    raw = S * [1e-4, 1.0, 1e6] + [0.0, 1e3, 1e8]
    settings = {"standardize": True, "tol": 1e-7}
    model = rm.LinearRegressor("huber_scale", alpha=1e-9 / units, **settings).fit(raw, Y * units)
    plain = rm.LinearRegressor("huber_scale", alpha=1e-9, **settings).fit(S, Y)
    assert model.result_.status == "converged"
    np.testing.assert_allclose(model.predict(raw) / units, plain.predict(S), atol=1e-2)


@pytest.mark.parametrize("solver", ["auto", "newton", "bundle", "smoothing"])
def test_solvers_agree(solver):
    risk = rm.linear_risk(S, Y, "huber_scale", fit_intercept=True)
    results = [rm.minimize(rm.Objective(risk, rm.L2(), 0.01), s, tol=1e-5) for s in (solver, "bmrm")]
    assert results[0].status == "converged"
    assert max(r.lower for r in results) <= min(r.value for r in results) * (1 + 1e-12)
