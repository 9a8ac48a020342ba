"""`riskmin.certify`: false claims are refuted; the contract of estimators has the true ones."""

import dataclasses
import warnings

import numpy as np
import pytest
from estimator_cases import HIGH, X, fitted

from riskmin import LinearRegressor, certify

SETTINGS = [{}, {"atol": 1e-8}, {"atol": 0.0}, {"alpha": 0}]
ZERO = [(loss, count, one) for loss, count in [("poisson", 7), ("squared", 7)] for one in SETTINGS]
ZERO += [("poisson", 3e6, {}), pytest.param("poisson", 3e6, {"atol": 0.0}, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("loss", "count", "settings"), ZERO)
def test_objectives_that_are_zero_up_to_rounding_are_certified(loss, count, settings):
    """The terms of the loss cancel, so that J has no relative precision: it may be negative."""
    rows = np.random.default_rng(0).standard_normal((20, 3))
    y = np.full(20, float(count))
    for more in ({}, {"sample_weight": np.arange(20) % 3 + 0.0}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LinearRegressor(loss, **({"alpha": 1e-3} | settings)).fit(rows, y, **more)
        certification = certify(model, rows, y, **more)
        assert certification.status == "certified", certification.reason
        # no relative gap of an objective of 0 is proved, but nothing is refuted
        assert certify(model, rows, y, tol=1e-3, **more).status != "refuted"


def test_false_claims_are_refuted_without_a_proof():
    certification = certify(fitted("hinge"), X, HIGH[::-1])
    assert certification.status == "refuted"
    assert "as claimed" in certification.reason
    assert (certification.proof, certification.lower) == (None, -np.inf)
    rows, y = np.random.default_rng(0).standard_normal((40, 3)), np.full(40, 5.0)
    with pytest.warns(match="learned nothing"):  # the objective is zero
        model = LinearRegressor("poisson", alpha=1e-3).fit(rows, y)
    model.coef_ = model.coef_ + 0.01
    model.result_ = dataclasses.replace(model.result_, w=model.result_.w + 0.01)
    assert certify(model, rows, y).status == "refuted"


def test_the_run_that_proved_a_certificate_counts_as_converged():
    """A callback stops it once the claim is proved: that is no interruption."""
    model = fitted("hinge")
    for settings in ({}, {"tol": 0.1}):
        certification = certify(model, X, HIGH, **settings)
        assert certification
        assert certification.proof.status == "converged"
        assert "interrupted" not in repr(certification)
    certification = certify(model, X, HIGH, max_iter=1, tol=1e-12)
    assert not certification
    assert certification.proof.status != "converged"
