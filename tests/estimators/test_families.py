"""Generalized linear models by name, against statsmodels and scikit-learn."""

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.linear_model import GammaRegressor, TweedieRegressor

import riskmin as rm

N, P = 400, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, P)) * [1.0, 1e-3, 1e4] + [0.0, 0.0, 5e4]
Z = 0.3 * RNG.standard_normal(N) + X @ [0.4, -300.0, 2e-5] - 1
MEAN = np.exp(Z)
AMOUNT = RNG.gamma(2.0, MEAN / 2)
CLAIMS = np.array([RNG.gamma(2.0, 1.0, k).sum() for k in RNG.poisson(MEAN)])
COUNT = RNG.negative_binomial(2, 2 / (2 + MEAN)).astype(float)
SICK = Z + RNG.standard_normal(N) > 0
WEIGHT = RNG.integers(0, 3, N).astype(float)
OFFSET = RNG.uniform(-1.0, 1.0, N)
LOG = sm.families.links.Log()
FAMILIES = {
    "gamma": (AMOUNT, sm.families.Gamma(LOG)),
    "tweedie:power=1.5": (CLAIMS, sm.families.Tweedie(LOG, var_power=1.5)),
    "tweedie:power=1.2": (CLAIMS, sm.families.Tweedie(LOG, var_power=1.2)),
    "negative_binomial:dispersion=0.5": (COUNT, sm.families.NegativeBinomial(LOG, alpha=0.5)),
    "poisson": (COUNT, sm.families.Poisson()),
}


GIVEN = [{}, {"sample_weight": WEIGHT}, {"offset": OFFSET}]


@pytest.mark.parametrize("given", GIVEN, ids=["rows", "weights", "offset"])
@pytest.mark.parametrize("name", FAMILIES)
def test_fits_without_a_penalty_are_those_of_statsmodels(name, given):
    y, family = FAMILIES[name]
    model = rm.LinearRegressor(name, alpha=0, tol=1e-12).fit(X, y, **given)
    assert model.result_.status == "converged"
    S = (X - X.mean(0)) / X.std(0)
    theirs = sm.GLM(
        y, sm.add_constant(S), family, offset=given.get("offset"), freq_weights=given.get("sample_weight")
    ).fit(tol=1e-14, maxiter=200)
    np.testing.assert_allclose(model.coef_ * X.std(0), theirs.params[1:], rtol=1e-5, atol=1e-7)
    offset = {"offset": given["offset"]} if "offset" in given else {}
    np.testing.assert_allclose(model.predict(X, **offset), theirs.fittedvalues, rtol=1e-5)
    # J is half the mean deviance
    total = given.get("sample_weight", np.ones(N)).sum()
    assert model.objective_ == pytest.approx(theirs.deviance / (2 * total), rel=1e-9)


@pytest.mark.parametrize("alpha", [1e-3, 1.0])
@pytest.mark.parametrize(
    ("name", "y", "theirs"),
    [
        ("gamma", AMOUNT, GammaRegressor),
        ("tweedie:power=1.5", CLAIMS, lambda **k: TweedieRegressor(power=1.5, link="log", **k)),
    ],
)
def test_fits_with_a_penalty_are_those_of_scikit_learn(name, y, theirs, alpha):
    S = (X - X.mean(0)) / X.std(0)
    model = rm.LinearRegressor(name, alpha=alpha, tol=1e-12).fit(S, y, WEIGHT)
    reference = theirs(alpha=alpha, tol=1e-10, max_iter=10_000, solver="newton-cholesky").fit(S, y, WEIGHT)
    np.testing.assert_allclose(model.coef_, reference.coef_, rtol=1e-5, atol=1e-7)
    assert model.intercept_ == pytest.approx(reference.intercept_, abs=1e-6)
    assert rm.certify(model, S, y, sample_weight=WEIGHT).status == "certified"


def test_probit_is_that_of_statsmodels():
    S = (X - X.mean(0)) / X.std(0)
    model = rm.LinearClassifier("probit", alpha=1e-12, tol=1e-12).fit(S, SICK)
    theirs = sm.Probit(SICK, sm.add_constant(S)).fit(disp=0, tol=1e-14)
    np.testing.assert_allclose([*model.intercept_, *model.coef_[0]], theirs.params, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.predict_proba(S)[:, 1], theirs.predict(), rtol=1e-5)
    np.testing.assert_allclose(model.predict_log_proba(S), np.log(model.predict_proba(S)), rtol=1e-9)
    np.testing.assert_allclose(model.summary(S, SICK).std_err, theirs.bse, rtol=1e-5)
    assert rm.certify(model, S, SICK).status == "certified"


@pytest.mark.parametrize("level", [0.1, 0.8])
def test_expectiles_are_the_fixed_point_of_weighted_least_squares(level):
    """Newey and Powell: least squares with the weight 1 - q of rows below the prediction, q of others."""
    D = sm.add_constant((X - X.mean(0)) / X.std(0))
    model = rm.LinearRegressor("expectile", alpha=1e-12, tol=1e-12).set_params(loss=rm.Expectile(level))
    model.fit(D[:, 1:], AMOUNT)
    beta = np.zeros(P + 1)
    for _ in range(100):
        weight = np.where(D @ beta > AMOUNT, 1 - level, level)
        beta = sm.WLS(AMOUNT, D, weight).fit().params
    np.testing.assert_allclose([model.intercept_, *model.coef_], beta, rtol=1e-6)


def test_raw_columns_and_default_settings(tmp_path):
    """Units from 1e-3 to 1e4, an offset of the column of 5e4, amounts in the millions."""
    for name, (y, _) in FAMILIES.items():
        model = rm.LinearRegressor(name).fit(X, y * 1e6 if "binomial" not in name else y)
        assert model.result_.status == "converged"
        assert (model.predict(X) > 0).all()
        rm.save_model(model, tmp_path / "m")
        np.testing.assert_array_equal(rm.load_model(tmp_path / "m").predict(X), model.predict(X))
