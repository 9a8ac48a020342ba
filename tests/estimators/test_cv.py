"""Cross-validated estimators: scikit-learn's checks, and the scores and choices of a grid search."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import parametrize_with_checks

from riskmin import L1, Box, LinearClassifier, LinearClassifierCV, LinearRegressorCV, load_model, save_model

FEW = [LinearRegressorCV(alphas=[1e-2, 1e-1], cv=3, tol=1e-6)]
# The second estimator, with three classes, has a larger tol: a check allows too few iterations.
MORE = [
    LinearClassifierCV(alphas=[1e-2, 1e-1], cv=3, tol=1e-6),
    LinearClassifierCV("logistic", regularizer="elastic", alphas=[0.1], cv=2, tol=1e-6),
    LinearRegressorCV("huber", regularizer="l1", n_alphas=2, cv=2, tol=1e-6, n_jobs=2),
]


@parametrize_with_checks(FEW)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.exhaustive
@parametrize_with_checks(MORE)
def test_scikit_learn_checks_of_other_estimators(estimator, check):
    check(estimator)


# ---------------------------------------------------------------- comparison with a plain search
@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), np.where(y == 1, "benign", "malignant")


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    return scale(X), y / 10


ALPHAS = [1e-3, 1e-1, 1e-2]


@pytest.mark.parametrize("scoring", [None, "neg_log_loss"])
def test_classifier_scores_agree_with_grid_search(cancer, scoring):
    X, y = cancer
    ours = LinearClassifierCV("logistic", alphas=ALPHAS, cv=3, scoring=scoring, tol=1e-7).fit(X, y)
    grid = {"alpha": ALPHAS}
    theirs = GridSearchCV(LinearClassifier("logistic", tol=1e-7), grid, cv=3, scoring=scoring).fit(X, y)
    splits = [theirs.cv_results_[f"split{k}_test_score"] for k in range(3)]
    np.testing.assert_allclose(ours.scores_, splits, atol=1e-4)
    assert ours.alpha_ == theirs.best_params_["alpha"]
    assert ours.alphas_.tolist() == ALPHAS
    assert ours.best_score_ == pytest.approx(theirs.best_score_, abs=1e-4)
    best = theirs.best_estimator_
    assert ours.objective_ == pytest.approx(best.objective_, rel=1e-6)
    assert (ours.predict(X) == best.predict(X)).mean() > 0.99
    assert ours.classes_.tolist() == ["benign", "malignant"]


def test_regressor_agrees_with_lasso_cv(diabetes):
    X, y = diabetes
    folds = KFold(3, shuffle=True, random_state=0)
    theirs = LassoCV(cv=folds, alphas=np.geomspace(1.0, 1e-1, 3), tol=1e-8).fit(X, y)
    ours = LinearRegressorCV(
        regularizer="l1", alphas=theirs.alphas_, cv=folds, scoring="neg_mean_squared_error", tol=1e-6
    ).fit(X, y)
    np.testing.assert_allclose(-ours.scores_.T, theirs.mse_path_, rtol=2e-3)
    assert ours.alpha_ == pytest.approx(theirs.alpha_)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-2)


def test_default_grid_starts_at_zero_weights(diabetes):
    X, y = diabetes
    model = LinearRegressorCV(regularizer=L1(), n_alphas=4, cv=3).fit(X, y)
    top = np.abs(X.T @ (y - y.mean())).max() / len(y)
    np.testing.assert_allclose(model.alphas_, np.geomspace(top, top / 1000, 4))
    plain = LinearRegressorCV(n_alphas=3, cv=3).fit(X, y)
    np.testing.assert_allclose(plain.alphas_, [1, 1e-3, 1e-6])


def test_ties_choose_the_largest_alpha(diabetes):
    X, y = diabetes

    def same(model, X, y):
        return 1.0

    assert LinearRegressorCV(alphas=[1e-2, 1.0, 1e-1], cv=2, scoring=same).fit(X, y).alpha_ == 1.0


def test_threads_and_sparse_rows_change_nothing(cancer):
    X, y = cancer[0][:200, :10], cancer[1][:200]
    one, two = (LinearClassifierCV(alphas=ALPHAS, cv=3, n_jobs=n).fit(X, y) for n in (1, 2))
    assert np.array_equal(one.scores_, two.scores_)
    assert np.array_equal(one.coef_, two.coef_)
    sparse = LinearClassifierCV(alphas=ALPHAS, cv=3).fit(sp.csr_array(X), y)
    np.testing.assert_allclose(sparse.scores_, one.scores_, atol=0.02)


def test_weights_are_repetitions_in_fits_and_scores(diabetes):
    X, y = diabetes[0][:60], diabetes[1][:60]
    weight = np.arange(60) % 3
    folds = np.arange(60) % 2
    model = LinearRegressorCV(alphas=ALPHAS, tol=1e-9)
    weighted = model.set_params(cv=GroupKFold(2)).fit(X, y, sample_weight=weight, groups=folds)
    again = np.repeat(np.arange(60), weight)
    repeated = LinearRegressorCV(alphas=ALPHAS, tol=1e-9, cv=GroupKFold(2))
    repeated.fit(X[again], y[again], groups=folds[again])
    by_fold = np.argsort(weighted.scores_[:, 0]), np.argsort(repeated.scores_[:, 0])
    np.testing.assert_allclose(weighted.scores_[by_fold[0]], repeated.scores_[by_fold[1]], rtol=1e-4)
    assert weighted.weighted_
    assert not repeated.weighted_


def test_groups_stay_together(cancer):
    X, y = cancer[0][:200], cancer[1][:200]
    groups = np.arange(200) // 20
    ours = LinearClassifierCV(alphas=[1e-2], cv=GroupKFold(5)).fit(X, y, groups=groups)
    theirs = cross_val_score(LinearClassifier(alpha=1e-2), X, y, cv=GroupKFold(5), groups=groups)
    np.testing.assert_allclose(ours.scores_[:, 0], theirs, atol=1e-2)


def test_the_best_model_can_be_saved(cancer, tmp_path):
    X = pd.DataFrame(cancer[0][:, :5], columns=list("abcde"))
    model = LinearClassifierCV(alphas=[1e-2], cv=3, regularizer=Box(L1(), -1.0, 1.0)).fit(X, cancer[1])
    save_model(model.best_estimator_, tmp_path / "model")
    back = load_model(tmp_path / "model")
    assert back.feature_names_in_.tolist() == list("abcde")
    assert back.regularizer == Box(L1(), -1.0, 1.0)
    assert np.array_equal(back.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="LinearClassifierCV cannot be saved: save its best_estimator_"):
        save_model(model, tmp_path / "model")


# ---------------------------------------------------------------- errors and warnings
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alphas": []}, "needs finite numbers > 0"),
        ({"alphas": [1.0, -1.0]}, "needs finite numbers > 0"),
        ({"n_alphas": 0}, "n_alphas=0, but LinearRegressorCV needs n_alphas to be an integer >= 1"),
        ({"tol": -1.0}, "tol=-1.0"),
        ({"regularizer": "lasso"}, "there is no regularizer named 'lasso'"),
        ({"loss": "hinge"}, "use LinearClassifier"),
        ({"scoring": lambda model, X, y: np.nan}, "no alpha has a score in any fold"),
    ],
)
def test_errors(diabetes, change, message):
    model = LinearRegressorCV(cv=2).set_params(**change)
    with pytest.raises(ValueError, match=message):
        model.fit(*diabetes)


def test_folds_that_do_not_converge_are_counted(diabetes):
    model = LinearRegressorCV("absolute", alphas=[1e-6, 1e-5], cv=2, max_iter=1)
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(*diabetes)
    folds, last = (str(warning.message) for warning in caught)
    assert "4 of 4 fits of the folds of LinearRegressorCV did not reach tol=0.001" in folds
    assert "LinearRegressor stopped with status 'max_iter'" in last


def test_interrupted_search_raises(diabetes, monkeypatch):
    calls = []

    def impatient(self, *args):
        calls.append(self)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return scores(self, *args)

    from riskmin.problem.risk import ScoreCursor

    scores = ScoreCursor.evaluate_at
    monkeypatch.setattr(ScoreCursor, "evaluate_at", impatient)
    model = LinearRegressorCV(alphas=ALPHAS, cv=2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(*diabetes)
    assert not hasattr(model, "alpha_")
