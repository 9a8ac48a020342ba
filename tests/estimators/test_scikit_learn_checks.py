"""Estimators under scikit-learn's checks: clean, or with the failures that `riskmin.testing` declares."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import _num_samples

import riskmin as rm
from riskmin.testing import expected_failed_checks

WEIGHTS = {"check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"}


class OneSequence(rm.ChainTagger):
    """A tagger of one sequence, for checks that pass the rows of a matrix without lengths."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags

    def fit(self, X, y):
        return super().fit(X, y, lengths=[_num_samples(X)])

    def predict(self, X):
        return super().predict(X, lengths=[_num_samples(X)])

    def decision_function(self, X):
        return super().decision_function(X, lengths=[_num_samples(X)])

    def score(self, X, y):
        return super().score(X, y, lengths=[_num_samples(X)])


def expected(estimator):
    """The checks that must fail, and why."""
    if isinstance(estimator, OneSequence):
        checks = ["check_methods_sample_order_invariance", "check_methods_subset_invariance"]
        return dict.fromkeys(checks, "the labels of tokens depend on their neighbors")
    failed = expected_failed_checks(estimator)
    if getattr(estimator, "loss", "") in ("roc_area", "f1"):
        failed["check_class_weight_classifiers"] = "a pair has one row of each class: their weights cancel"
    if getattr(estimator, "loss", "") == "f1":
        failed["check_sample_weights_not_overwritten"] = "the loss counts rows, and says so"
    return failed


# The checks of weights ask for predictions equal to 1e-7, which some losses reach at a small tol only.
CENTRAL = [
    rm.LinearClassifier("logistic", standardize=True),
    rm.LinearRegressor(standardize=True, alpha=1e-1, tol=1e-10),
    rm.NoveltyDetector(),
    rm.OrdinalClassifier("squared"),
    rm.LinearQuantiles(),
    rm.LinearRanker("squared"),
]
ALSO = [
    rm.LinearRegressor("quantile", alpha=0),
    rm.LinearRegressorCV(l1_ratio=0.5, cv=2),
    rm.LinearClassifier(alpha=0.3),
    rm.LinearRegressorCV(alphas=[1e-1], cv=2, tol=1e-6),
    OneSequence(alpha=0.1, possible_states=False),
    rm.KernelClassifier("squared_hinge", alpha=1.0),
    rm.IncompleteCholesky("linear", rank=2, dtype="float32"),
]
OTHERS = [
    rm.LinearClassifier("softmax", class_weight="balanced", n_jobs=2),
    rm.LinearClassifier("logistic", regularizer=rm.Entropy(prior=0.5, balanced=True), alpha=0.1),
    rm.LinearClassifier(solver=rm.Smoothing(), class_weight="balanced", n_jobs=2),
    rm.LinearClassifier("logistic", solver=rm.Lbfgs(memory=5), warm_start=True),
    rm.LinearClassifier("roc_area", alpha=1e-2, tol=1e-6),
    rm.LinearClassifier("f1"),
    rm.LinearRegressor(rm.MultivariateSquared()),
    rm.LinearRegressor("poisson"),
    rm.LinearRegressor("huber", regularizer="qnorm:q=1.8", standardize=True, alpha=1e-1, tol=1e-10),
    rm.LinearClassifierCV("logistic", regularizer="elastic", alphas=[0.1], cv=2, tol=1e-6),
    rm.NoveltyDetector(solver="bundle", tol=1e-6, positive=True, alpha=0.1),
    rm.OrdinalClassifier(alpha=1e-2, tol=1e-6),
    rm.OrdinalClassifierCV("squared", alphas=[0.1], cv=2, tol=1e-6),
    rm.LinearRankerCV("squared", alphas=[0.1], cv=2, tol=1e-6),
    rm.LinearRanker(),
    rm.KernelRegressor("poisson"),
    rm.HierarchicalClassifier("softmax"),
]


@parametrize_with_checks(CENTRAL, expected_failed_checks=expected)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best alpha of")  # the checks draw noise
@parametrize_with_checks(ALSO, expected_failed_checks=expected)
def test_scikit_learn_checks_that_take_longer(estimator, check):
    check(estimator)


@pytest.mark.exhaustive
@parametrize_with_checks(OTHERS, expected_failed_checks=expected)
def test_scikit_learn_checks_of_other_estimators(estimator, check):
    check(estimator)


def test_expected_failures_have_reasons():
    for clean in (rm.LinearClassifier(), rm.OrdinalClassifier("absolute"), rm.LinearRanker("squared")):
        assert expected_failed_checks(clean) == {}
    balanced = rm.LinearClassifier(class_weight="balanced")
    for rounded in (rm.KernelClassifier(), rm.OrdinalClassifier(), balanced):
        assert set(expected_failed_checks(rounded)) == WEIGHTS
    assert set(expected_failed_checks(rm.LinearRegressor("poisson"))) == {"check_regressor_multioutput"}
    assert "qid" in expected_failed_checks(rm.LinearRanker())["check_fit_score_takes_y"]
    # a tag tells scikit-learn's checks which labels to draw
    assert rm.KernelRegressor("poisson").__sklearn_tags__().target_tags.positive_only
