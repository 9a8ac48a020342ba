"""`KernelClassifier` of several classes: one certified problem per class."""

import json

import numpy as np
import pandas as pd
import pytest
import sklearn.multiclass
import sklearn.svm
from estimator_cases import KINDS, X, fitted
from sklearn.exceptions import ConvergenceWarning

from riskmin import KernelClassifier, certify, save_model


def test_scores_are_those_of_one_support_vector_machine_per_class():
    model = KernelClassifier("hinge", gamma=0.5, alpha=1e-2, tol=1e-7).fit(X, KINDS)
    svm = sklearn.svm.SVC(C=1 / (1e-2 * len(X)), gamma=0.5, tol=1e-7)
    theirs = sklearn.multiclass.OneVsRestClassifier(svm).fit(X, KINDS)
    np.testing.assert_allclose(model.decision_function(X), theirs.decision_function(X), atol=1e-2)
    assert (model.predict(X) == theirs.predict(X)).mean() > 0.98
    assert model.dual_coef_.shape == (3, len(model.support_))
    np.testing.assert_array_equal(model.support_vectors_, X[model.support_])


def test_every_class_has_a_certificate_and_the_sum_has_one():
    model = KernelClassifier("squared_hinge", alpha=1e-2).fit(X, KINDS)
    singles = model.estimators_
    for single, label in zip(singles, model.classes_, strict=True):
        assert single.gap_ <= model.tol * single.objective_
        assert certify(single, X, label == KINDS).status == "certified"
    assert model.objective_ == pytest.approx(sum(single.objective_ for single in singles))
    assert model.lower_bound_ == pytest.approx(sum(single.lower_bound_ for single in singles))
    page = model._repr_html_()
    assert page.count("riskmin-certificate") == 4
    assert "certificate of a/c against the rest" in page


def test_probabilities_are_normalized():
    model = fitted("kernel of classes")
    expected = 1 / (1 + np.exp(-model.decision_function(X)))
    np.testing.assert_allclose(model.predict_proba(X), expected / expected.sum(axis=1, keepdims=True))


def test_the_command_prints_the_loss_of_the_objective(tmp_path, run):
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = KernelClassifier("hinge", kernel="linear", alpha=0.1).fit(frame, KINDS)
    save_model(model, tmp_path / "m")
    frame.assign(kind=KINDS).to_csv(tmp_path / "data.csv", index=False)
    printed = json.loads(run("evaluate", tmp_path / "m", tmp_path / "data.csv", "--json")[1])
    # |f|^2 of a linear kernel is that of the weights
    penalty = 0.05 * np.sum((model.dual_coef_ @ model.support_vectors_) ** 2)
    assert printed["mean loss"] + penalty == pytest.approx(model.objective_, rel=1e-6)


def test_limits_and_warm_starts_apply_to_all_classes():
    model = KernelClassifier("logistic", alpha=1e-2, warm_start=True).fit(X, KINDS)
    first = model.n_iter_
    assert model.fit(X, KINDS).n_iter_ <= min(first, 1)
    assert model.fit(X, KINDS == "d").decision_function(X).ndim == 1  # two classes again
    assert not hasattr(model, "estimators_")
    stopped = KernelClassifier("logistic", alpha=1e-6, tol=1e-9, callback=lambda iterate, row: True)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        stopped.fit(X, KINDS)
    assert stopped.decision_function(X).shape == (len(X), 3)
