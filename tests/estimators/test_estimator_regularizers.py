"""Estimators with regularizers other than L2: scikit-learn's checks, optima of other packages, files."""

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import parametrize_with_checks

from riskmin import (
    L1,
    L2,
    REGULARIZERS,
    Box,
    Elastic,
    Entropy,
    LinearClassifier,
    LinearConstraints,
    LinearRegressor,
    NoveltyDetector,
    Quadratic,
    TrivialModelWarning,
    get_regularizer,
    load_model,
    save_model,
)

CHECKED = [
    LinearClassifier(regularizer="elastic:eps=0.1", alpha=0.1),
    LinearRegressor(regularizer=L1(), alpha=1e-2),
    LinearRegressor("huber", regularizer="qnorm:q=1.5", alpha=0.1),
    NoveltyDetector(positive=True, alpha=0.1),
    LinearClassifier("logistic", regularizer=Entropy(prior=0.5, balanced=True), alpha=0.1),
]


@pytest.mark.exhaustive
@parametrize_with_checks(CHECKED)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    return scale(X), y / 10


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), y


# ---------------------------------------------------------------- optima of other packages
@pytest.mark.parametrize("positive", [False, True])
def test_l1_agrees_with_lasso(diabetes, positive):
    X, y = diabetes
    theirs = Lasso(alpha=0.3, positive=positive, tol=1e-10).fit(X, y)
    ours = LinearRegressor(regularizer="l1", alpha=0.3, positive=positive, tol=1e-7).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=5e-3)
    assert ours.intercept_ == pytest.approx(theirs.intercept_)
    assert ours.gap_ <= 1e-7 * ours.objective_
    if positive:
        assert (ours.coef_ >= 0).all()


def test_elastic_agrees_with_elastic_net(diabetes):
    X, y = diabetes
    theirs = ElasticNet(alpha=0.5, l1_ratio=0.6, tol=1e-10).fit(X, y)
    ours = LinearRegressor(regularizer="elastic:eps=1.5", alpha=0.2, tol=1e-7).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=5e-3)


def test_sparse_logistic_regression_with_converted_C(cancer):
    X, y = cancer
    settings = {"solver": "saga", "tol": 1e-6, "max_iter": 20_000, "fit_intercept": False}
    theirs = LogisticRegression(l1_ratio=1.0, C=1 / (0.02 * len(y)), **settings).fit(X, y)
    ours = LinearClassifier("logistic", regularizer="l1", alpha=0.02, fit_intercept=False, tol=1e-6).fit(X, y)
    w, z = theirs.coef_[0], np.where(y == 1, 1, -1) * (X @ theirs.coef_[0])
    J = np.logaddexp(0, -z).mean() + 0.02 * np.abs(w).sum()
    assert ours.objective_ == pytest.approx(J, rel=1e-4)
    assert ours.lower_bound_ <= J


@pytest.mark.parametrize(
    "reg", ["l1", "elastic", "qnorm", "entropy", Box(L2(), -0.1, 0.1), Quadratic(np.diag(np.arange(1.0, 31)))]
)
def test_objective_agrees_with_its_formula(cancer, reg):
    X, y = cancer
    model = LinearClassifier(regularizer=reg, alpha=0.05).fit(X, y)
    z = np.where(y == 1, 1, -1) * (X @ model.coef_[0] + model.intercept_[0])
    J = np.maximum(0, 1 - z).mean() + 0.05 * get_regularizer(reg).value(model.coef_[0])
    assert model.objective_ == pytest.approx(J, rel=1e-9)
    assert 0 <= model.gap_ <= 1e-3 * model.objective_


# ---------------------------------------------------------------- parameters
def test_positive(cancer):
    for reg in ("l1", L2(), Elastic(eps=0.1)):
        with pytest.warns(TrivialModelWarning, match="positive=True leaves out the weights that would help"):
            model = LinearClassifier(regularizer=reg, positive=True).fit(*cancer)
        assert (model.coef_ >= 0).all()
        assert clone(model).get_params()["positive"]
    with pytest.raises(ValueError, match="positive=True bounds L1, L2 and Elastic, not Entropy"):
        LinearClassifier(regularizer="entropy", positive=True).fit(*cancer)
    increasing = LinearConstraints(L2(), np.diff(np.eye(cancer[0].shape[1]), axis=0), lower=0)
    with pytest.raises(ValueError, match=r"such as LinearConstraints\(Box\(L2\(\), 0\), A, \.\.\.\)$"):
        LinearClassifier(regularizer=increasing, positive=True).fit(*cancer)


@pytest.mark.parametrize(
    ("reg", "message"),
    [
        ("lasso", "there is no regularizer named 'lasso'; the names are l2, l1"),
        (L1, "L1 is a class, not a regularizer; give an instance: L1()"),
        (3, "3 is not a regularizer: pass an object such as L1()"),
        (L1(weights=[1.0, 2.0]), "weights has shape"),
    ],
)
def test_invalid_regularizers_raise(cancer, reg, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        LinearClassifier(regularizer=reg).fit(*cancer)


def test_a_warm_start_may_change_the_regularizer(cancer):
    X, y = cancer
    model = LinearClassifier(warm_start=True, alpha=1e-2).fit(X, y)
    assert (model.coef_ < 0).any()
    with pytest.warns(TrivialModelWarning, match="positive=True leaves out"):
        model.set_params(positive=True).fit(X, y)
    assert (model.coef_ >= 0).all()
    with pytest.warns(TrivialModelWarning, match="positive=True leaves out"):
        fresh = LinearClassifier(alpha=1e-2, positive=True).fit(X, y)
    assert model.objective_ == pytest.approx(fresh.objective_, rel=2e-3)


# ---------------------------------------------------------------- files
@pytest.mark.parametrize("reg", ["l2", "elastic:eps=2", Box(L1(weights=2.0), -1.0), Entropy(balanced=True)])
def test_files_keep_the_regularizer(diabetes, tmp_path, reg):
    X, y = diabetes
    model = LinearRegressor(regularizer=reg, alpha=0.1).fit(X, y)
    save_model(model, tmp_path / "model")
    back = load_model(tmp_path / "model")
    assert back.regularizer == reg
    assert type(back.regularizer) is type(reg)
    assert back.fit(X, y).objective_ == model.objective_


def test_unsupported_regularizers_are_not_saved(diabetes, tmp_path):
    model = LinearRegressor(regularizer=Quadratic(np.eye(10))).fit(*diabetes)
    with pytest.raises(ValueError, match="Quadratic holds a matrix, which is not written to model files"):
        save_model(model, tmp_path / "model")

    class Mine(L1):
        pass

    model = LinearRegressor(regularizer=Mine()).fit(*diabetes)
    with pytest.raises(
        ValueError, match="Mine is a regularizer of your own, and code is not written to files"
    ):
        save_model(model, tmp_path / "model")


# ---------------------------------------------------------------- documentation
@pytest.mark.parametrize(("page", "column"), [("docs/reference.md", 1), ("docs/regularizers.md", 0)])
def test_the_tables_list_every_regularizer(page, column):
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    first = "| regularizer |" if page == "docs/reference.md" else "| name |"
    rows = text[text.index(first) :].partition("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", row)[1 + column] for row in rows]
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert listed == list(REGULARIZERS)
