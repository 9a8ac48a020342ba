"""Estimators under scikit-learn's checks: clean, or with the failures that `riskmin.testing` declares."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from riskmin import (
    KernelClassifier,
    KernelRegressor,
    LinearClassifier,
    LinearRanker,
    LinearRegressor,
    OrdinalClassifier,
)
from riskmin.testing import expected_failed_checks


def test_expected_failures_have_reasons():
    weights = {
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    }
    for clean in (
        LinearClassifier(),
        LinearRegressor(),
        OrdinalClassifier("absolute"),
        LinearRanker("squared"),
    ):
        assert expected_failed_checks(clean) == {}
    for rounded in (KernelClassifier(), OrdinalClassifier(), LinearClassifier(class_weight="balanced")):
        assert set(expected_failed_checks(rounded)) == weights
    assert set(expected_failed_checks(LinearRegressor("poisson"))) == {"check_regressor_multioutput"}
    assert "qid" in expected_failed_checks(LinearRanker())["check_fit_score_takes_y"]
    # a tag tells scikit-learn's checks which labels to draw
    assert KernelRegressor("poisson").__sklearn_tags__().target_tags.positive_only


@pytest.mark.slow
@parametrize_with_checks(
    [OrdinalClassifier(), KernelClassifier(), KernelRegressor("poisson"), LinearRanker()],
    expected_failed_checks=expected_failed_checks,
)
def test_no_other_check_fails(estimator, check):
    check(estimator)
