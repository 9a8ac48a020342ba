"""Cox's partial likelihood: against statsmodels, by the definition, and in raw units."""

import numpy as np
import pytest
from statsmodels.duration.hazard_regression import PHReg

import riskmin as rm

N, P = 300, 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, P))
UNITS, OFFSET = np.array([1e-6, 1.0, 1e6, 1e3]), np.array([0.0, 50.0, 1e7, 0.0])
HAZARD = np.exp(X @ [0.5, -0.4, 0.2, 0.0])
DEATH, END = np.ceil(20 * RNG.exponential(size=N) / HAZARD), np.ceil(30 * RNG.exponential(size=N))
EVENT, TIME = DEATH <= END, np.minimum(DEATH, END)  # with ties, also of events with ends of observation
Y = np.where(EVENT, TIME, -TIME)
WEIGHT = RNG.integers(0, 3, N).astype(float)


def saturated(c):
    """sum_k d_k log d_k over the times of events, which makes the least loss zero."""
    d = np.bincount(TIME[EVENT].astype(int), c[EVENT])
    return float(d[d > 0] @ np.log(d[d > 0]))


def test_fits_without_a_penalty_are_those_of_statsmodels():
    model = rm.LinearRegressor("cox", alpha=0, tol=1e-12).fit(X * UNITS + OFFSET, Y)
    theirs = PHReg(TIME, X, status=EVENT, ties="breslow").fit(disp=0)
    assert model.result_.status == "converged"
    assert model.intercept_ == 0
    np.testing.assert_allclose(model.coef_ * UNITS, theirs.params, rtol=1e-5, atol=1e-7)
    # n J is minus the log-likelihood, up to that of the saturated model
    assert N * model.objective_ == pytest.approx(-theirs.llf - saturated(np.ones(N)), rel=1e-9)
    scores = model.predict(X * UNITS + OFFSET)
    expected = X @ theirs.params
    np.testing.assert_allclose(scores - scores.mean(), expected - expected.mean(), rtol=1e-4, atol=1e-6)


def test_weights_are_repetitions():
    model = rm.LinearRegressor("cox", alpha=0, tol=1e-11).fit(X, Y, WEIGHT)
    many = np.repeat(np.arange(N), WEIGHT.astype(int))
    repeated = rm.LinearRegressor("cox", alpha=0, tol=1e-11).fit(X[many], Y[many])
    np.testing.assert_allclose(model.coef_, repeated.coef_, rtol=1e-5, atol=1e-7)
    assert model.objective_ == pytest.approx(repeated.objective_, rel=1e-9)
    theirs = PHReg(TIME[many], X[many], status=EVENT[many], ties="breslow").fit(disp=0)
    np.testing.assert_allclose(model.coef_, theirs.params, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reg", ["l2", "l1", rm.Elastic(eps=0.5), rm.Box(rm.L2(), 0.0)], ids=str)
def test_penalties_are_certified_and_independent_of_units(reg, tmp_path):
    settings = {"alpha": 1e-2, "regularizer": reg, "standardize": True, "tol": 1e-6}
    model = rm.LinearRegressor("cox", **settings).fit(X * UNITS + OFFSET, Y)
    plain = rm.LinearRegressor("cox", **settings).fit(X, Y)
    assert model.result_.status == "converged"
    assert model.objective_ == pytest.approx(plain.objective_, rel=1e-5)
    rm.save_model(model, tmp_path / "m")
    raw = X * UNITS + OFFSET
    assert rm.certify(rm.load_model(tmp_path / "m"), raw, Y).status == "certified"


def test_scores_that_are_far_apart_are_no_overflow():
    """exp(z) is zero or infinite there, and the shares of those at risk are not."""
    z = np.linspace(-2000, 2000, N)
    y, c = np.where(np.arange(N) % 3, 1.0, -1.0) * np.arange(1.0, N + 1), np.full(N, 1 / N)
    value, dz = rm.Cox().value_grad(z, y, c)
    assert np.isfinite(value)
    assert abs(dz.sum()) < 1e-12
    direct = sum(np.logaddexp.reduce(z[abs(y) >= y[i]]) - z[i] for i in np.flatnonzero(y > 0))
    assert value == pytest.approx(direct / N, rel=1e-12)
    assert np.isfinite(rm.Cox().hessian(z, y, c).diagonal).all()


def test_rows_censored_before_the_first_event_do_not_matter():
    y = np.where(Y < 0, -0.5, Y)
    model = rm.LinearRegressor("cox", alpha=1e-3, tol=1e-10).fit(X, y)
    other = rm.LinearRegressor("cox", alpha=1e-3, tol=1e-10).fit(np.where(y[:, None] < 0, 1e3, X), y)
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-4)


@pytest.mark.parametrize(("y", "words"), [(-TIME, "needs an event"), (0 * TIME, "times above 0")])
def test_times_that_are_none_are_refused(y, words):
    with pytest.raises(ValueError, match=words):
        rm.LinearRegressor("cox").fit(X, y)
