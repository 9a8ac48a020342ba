"""Offsets of the rows in `fit`, `predict`, `score`, `certify`, `summary`, `multipliers` and searches."""

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_poisson_deviance
from sklearn.model_selection import KFold

import riskmin as rm
from helpers import refusals
from riskmin.estimators import load_model, save_model

N, P = 300, 3
RNG = np.random.default_rng(0)
X, YEARS = RNG.standard_normal((N, P)), RNG.uniform(0.2, 5.0, N)
OFFSET = np.log(YEARS)
COUNTS = RNG.poisson(YEARS * np.exp(X @ [0.4, -0.3, 0.0])).astype(float)
SICK = np.where(X @ [1.0, -1.0, 0.0] + OFFSET + RNG.logistic(size=N) > 0, "yes", "no")


@pytest.mark.parametrize(
    ("family", "loss", "y"), [("Poisson", "poisson", COUNTS), ("Binomial", "logistic", SICK)]
)
def test_fits_are_those_of_statsmodels(family, loss, y):
    sm = pytest.importorskip("statsmodels.api")
    kind = rm.LinearRegressor if loss == "poisson" else rm.LinearClassifier
    model = kind(loss, alpha=0, tol=1e-12).fit(X, y, offset=OFFSET)
    D, response = sm.add_constant(X), y if loss == "poisson" else y == "yes"
    theirs = sm.GLM(response, D, getattr(sm.families, family)(), offset=OFFSET).fit(tol=1e-14)
    np.testing.assert_allclose(
        [np.ravel(model.intercept_)[0], *np.ravel(model.coef_)], theirs.params, atol=1e-6
    )
    mean = (
        model.predict(X, offset=OFFSET) if loss == "poisson" else model.predict_proba(X, offset=OFFSET)[:, 1]
    )
    np.testing.assert_allclose(mean, theirs.predict(D, offset=OFFSET), rtol=1e-5)
    summary = model.summary(X, y, offset=OFFSET)
    np.testing.assert_allclose(summary.std_err, theirs.bse, rtol=1e-5)


def test_an_offset_of_least_squares_is_subtracted_from_the_labels():
    model = rm.LinearRegressor(alpha=0).fit(X, COUNTS, offset=OFFSET)
    reference = LinearRegression().fit(X, COUNTS - OFFSET)
    np.testing.assert_allclose(model.coef_, reference.coef_, rtol=1e-9)
    np.testing.assert_allclose(model.predict(X, offset=OFFSET), reference.predict(X) + OFFSET, rtol=1e-9)
    np.testing.assert_allclose(model.predict(X), reference.predict(X), rtol=1e-9)


MODELS = [
    (rm.LinearRegressor("poisson", alpha=1e-3), COUNTS),
    (rm.LinearRegressor("quantile:level=0.7", alpha=1e-3), COUNTS),
    (rm.LinearClassifier("logistic", alpha=1e-3), SICK),
    (rm.LinearClassifier("hinge", alpha=1e-2, standardize=True), SICK),
]


@pytest.mark.parametrize(
    ("model", "y"), MODELS, ids=lambda value: repr(value) if hasattr(value, "fit") else "y"
)
def test_certificates_multipliers_and_files(model, y, tmp_path):
    model = sklearn.clone(model).fit(X, y, offset=OFFSET)
    assert rm.certify(model, X, y, offset=OFFSET).status == "certified"
    refuted = rm.certify(model, X, y)
    assert (refuted.status, "as claimed" in refuted.reason) == ("refuted", True)
    found = rm.multipliers(model, X, y, offset=OFFSET)
    assert found.gap <= 1.01 * model.gap_
    assert found.value == pytest.approx(model.objective_, rel=1e-9)
    save_model(model, tmp_path / "m")
    np.testing.assert_array_equal(
        load_model(tmp_path / "m").predict(X, offset=OFFSET), model.predict(X, offset=OFFSET)
    )
    assert model.score(X, y, offset=OFFSET) > model.score(X, y)
    # a column is an offset, too; a number shifts the intercept alone
    np.testing.assert_allclose(
        sklearn.clone(model).fit(X, y, offset=OFFSET[:, None]).coef_, model.coef_, rtol=1e-12
    )
    shifted = sklearn.clone(model).set_params(tol=1e-6).fit(X, y, offset=3.0)
    plain = sklearn.clone(model).set_params(tol=1e-6).fit(X, y)
    assert shifted.objective_ == pytest.approx(plain.objective_, rel=1e-5)


@pytest.mark.parametrize(("loss", "y"), [("poisson", COUNTS), ("squared", COUNTS), ("hinge", SICK)])
def test_regions_hold_the_optimum_at_the_offset(loss, y):
    kind = rm.LinearClassifier if loss == "hinge" else rm.LinearRegressor
    model, exact = (kind(loss, alpha=1e-2, tol=tol).fit(X, y, offset=OFFSET) for tol in (1e-4, 1e-11))
    region = rm.optimum_region(model, X, y, offset=OFFSET)
    lower, upper = region.coef_interval().T
    w = np.ravel(exact.coef_)
    assert (lower <= w + 1e-5).all()
    assert (w - 1e-5 <= upper).all()
    plain = np.ravel(kind(loss, alpha=1e-2).fit(X, y).coef_)
    assert loss == "hinge" or ((plain < lower) | (plain > upper)).any()
    found = rm.multipliers(exact, X, y, offset=OFFSET)
    assert (np.abs(found.u[region.support]) > 0).all()
    if loss == "poisson":
        proved = model.summary(X, y, offset=OFFSET).proved
        assert (proved[1:, 0] <= w + 1e-5).all()
        assert (w - 1e-5 <= proved[1:, 1]).all()
    with pytest.raises(ValueError, match="sample_weight and offset of the fit"):
        rm.optimum_region(model, X, y)


def test_rows_with_other_offsets_are_other_rows():
    """Equal rows are fitted as one; the offset is a part of a row."""
    twice, y = np.tile(X[:40], (2, 1)), np.tile(COUNTS[:40], 2)
    model = rm.LinearRegressor("poisson", alpha=1e-2)
    once = sklearn.clone(model).fit(X[:40], COUNTS[:40], np.full(40, 2.0), offset=OFFSET[:40])
    np.testing.assert_array_equal(model.fit(twice, y, offset=np.tile(OFFSET[:40], 2)).coef_, once.coef_)
    other = np.append(OFFSET[:40], OFFSET[:40] + 1)
    model = sklearn.clone(model).set_params(tol=1e-9).fit(twice, y, offset=other)
    far = rm.Objective(rm.linear_risk(twice, y, "poisson", fit_intercept=True, offset=other), rm.L2(), 1e-2)
    assert model.objective_ == pytest.approx(rm.minimize(far, "bundle", tol=1e-9).value, rel=1e-8)


@pytest.mark.parametrize("scoring", [None, "neg_mean_poisson_deviance"])
def test_searches_score_predictions_at_the_offset(scoring):
    model = rm.LinearRegressorCV("poisson", alphas=[1e-2], cv=KFold(3), scoring=scoring, tol=1e-6)
    model.fit(X, COUNTS, offset=OFFSET)
    for (train, test), score in zip(KFold(3).split(X), model.scores_[:, 0], strict=True):
        single = rm.LinearRegressor("poisson", alpha=1e-2, tol=1e-6)
        single.fit(X[train], COUNTS[train], offset=OFFSET[train])
        rates = single.predict(X[test], offset=OFFSET[test])
        theirs = -mean_poisson_deviance(COUNTS[test], rates)
        if scoring is None:
            theirs = single.score(X[test], COUNTS[test], offset=OFFSET[test])
        assert score == pytest.approx(theirs, rel=1e-3)
    by_folds = rm.LinearClassifierCV("logistic", alphas=[1e-3], cv=3).fit(X, SICK, offset=OFFSET)
    assert (
        by_folds.best_score_ > rm.LinearClassifierCV("logistic", alphas=[1e-3], cv=3).fit(X, SICK).best_score_
    )
    certified = rm.certify(by_folds.best_estimator_, X, SICK, offset=OFFSET)
    assert certified.status == "certified"


def test_offsets_are_metadata_of_scikit_learn():
    with sklearn.config_context(enable_metadata_routing=True):
        model = rm.LinearRegressor("poisson").set_fit_request(offset=True).set_score_request(offset=True)
        scores = sklearn.model_selection.cross_val_score(model, X, COUNTS, cv=3, params={"offset": OFFSET})
    expected = []
    for train, test in KFold(3).split(X):
        single = rm.LinearRegressor("poisson").fit(X[train], COUNTS[train], offset=OFFSET[train])
        expected.append(single.score(X[test], COUNTS[test], offset=OFFSET[test]))
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


BOTH, FITTED = np.c_[COUNTS, COUNTS], rm.LinearRegressor("poisson").fit(X, COUNTS)
REFUSED = [
    (lambda: rm.LinearRegressor().fit(X, BOTH, offset=OFFSET), "offset is for one output"),
    (lambda: rm.LinearRegressor("poisson").fit(X, COUNTS, offset=OFFSET[1:]), "one number per row"),
    (lambda: rm.LinearClassifier("f1").fit(X, SICK, offset=OFFSET), "FBeta is no sum over rows"),
    (lambda: FITTED.predict(X, offset=OFFSET[:2]), r"shape \(2,\), but X has 300 rows"),
    (lambda: rm.LinearRegressor().fit(X, BOTH).predict(X, offset=OFFSET), "the model has 2: leave it out"),
    (lambda: FITTED.summary(X, COUNTS, offset=OFFSET), "sample_weight and offset of the fit"),
]
test_refusals = refusals((REFUSED, ValueError))
