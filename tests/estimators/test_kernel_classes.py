"""`KernelClassifier` of several classes: one certified problem per class."""

import numpy as np
import pytest
import sklearn.multiclass
import sklearn.svm
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks

import riskmin
from helpers import WITHIN_TOL
from riskmin import KernelClassifier, certify, load_model, save_model
from riskmin.estimators.certification import cut_lower_bound

X, Y = load_iris(return_X_y=True)
X, Y = X[::2], np.array(["setosa", "versicolor", "virginica"])[Y[::2]]


@parametrize_with_checks(
    [KernelClassifier("logistic", alpha=0.1, tol=1e-6)], expected_failed_checks=lambda m: WITHIN_TOL
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_scores_are_those_of_one_support_vector_machine_per_class():
    model = KernelClassifier("hinge", gamma=0.5, alpha=1e-2, tol=1e-7).fit(X, Y)
    svm = sklearn.svm.SVC(C=1 / (1e-2 * len(Y)), gamma=0.5, tol=1e-7)
    theirs = sklearn.multiclass.OneVsRestClassifier(svm).fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), theirs.decision_function(X), atol=1e-2)
    assert (model.predict(X) == theirs.predict(X)).mean() > 0.98
    assert model.dual_coef_.shape == (3, len(model.support_))
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])


def test_every_class_has_a_certificate_and_the_sum_has_one():
    model = KernelClassifier("squared_hinge", alpha=1e-2).fit(X, Y)
    singles = model.estimators_
    for single, label in zip(singles, model.classes_, strict=True):
        assert single.gap_ <= model.tol * single.objective_
        assert certify(single, X, label == Y).status == "certified"
    assert model.objective_ == pytest.approx(sum(single.objective_ for single in singles))
    assert model.lower_bound_ == pytest.approx(sum(single.lower_bound_ for single in singles))
    # by the combined cut, in code that is independent of the solvers'
    assert cut_lower_bound(model) == pytest.approx(model.lower_bound_, rel=1e-9)
    with pytest.raises(ValueError, match=r"certify model\.estimators_"):
        certify(model, X, Y)
    page = model._repr_html_()
    assert page.count("riskmin-certificate") == 4
    assert "certificate of virginica against the rest" in page


def test_weights_of_classes_are_weights_of_rows():
    factors = {"setosa": 1.0, "versicolor": 3.0, "virginica": 0.5}
    by_class = KernelClassifier("logistic", gamma=0.3, class_weight=factors, alpha=1e-2, tol=1e-8).fit(X, Y)
    weight = np.array([factors[label] for label in Y])
    by_row = KernelClassifier("logistic", gamma=0.3, alpha=1e-2, tol=1e-8).fit(X, Y, weight)
    np.testing.assert_allclose(by_class.decision_function(X), by_row.decision_function(X), atol=1e-3)
    assert (by_class.weighted_, by_row.weighted_) == (False, True)
    # a class without weight is left out
    two = KernelClassifier("logistic").fit(X, Y, (Y != "setosa").astype(float))
    assert two.classes_.tolist() == ["versicolor", "virginica"]


def test_probabilities_are_normalized():
    model = KernelClassifier("logistic", alpha=1e-3).fit(X, Y)
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    expected = 1 / (1 + np.exp(-model.decision_function(X)))
    np.testing.assert_allclose(p, expected / expected.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), p)
    far = model.predict_log_proba(1e3 + X[:2])
    assert np.isfinite(far).all()


@pytest.mark.parametrize("kernel", ["rbf", "precomputed"])
def test_files_hold_all_classes(kernel, tmp_path):
    rows = X @ X.T if kernel == "precomputed" else X
    model = KernelClassifier("hinge", kernel=kernel, alpha=1e-2).fit(rows, Y)
    save_model(model, tmp_path / "one")
    loaded = load_model(tmp_path / "one")
    np.testing.assert_allclose(loaded.decision_function(rows), model.decision_function(rows), rtol=1e-12)
    np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))
    assert loaded.lower_bound_ == model.lower_bound_
    # the loss of the file's scores is that of J: `riskmin evaluate` prints it
    labels, _ = loaded._targets(Y, len(Y), None)
    value, _ = loaded._fitted_loss().value_grad(
        loaded._loss_scores(rows), labels, np.full(len(Y), 1 / len(Y))
    )
    penalty = model.alpha * model._penalty().value(model.result_.w)
    assert value + penalty == pytest.approx(model.objective_, rel=1e-9)
    save_model(loaded, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_limits_and_warm_starts_apply_to_all_classes():
    model = KernelClassifier("logistic", alpha=1e-3, warm_start=True).fit(X, Y)
    first = model.n_iter_
    assert model.fit(X, Y).n_iter_ <= min(first, 1)
    assert model.fit(X, Y == "setosa").decision_function(X).ndim == 1  # two classes again
    assert not hasattr(model, "estimators_")
    stopped = KernelClassifier("logistic", alpha=1e-6, tol=1e-9, callback=lambda iterate, row: True)
    with pytest.warns(sklearn.exceptions.ConvergenceWarning, match="interrupted"):
        stopped.fit(X, Y)
    assert stopped.decision_function(X).shape == (len(X), 3)
    assert riskmin.KernelRegressor(alpha=1e-2).fit(X, X[:, 0]).predict(X).shape == (len(X),)
