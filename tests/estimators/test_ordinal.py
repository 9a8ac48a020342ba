"""Ordinal classification: optimal thresholds, scikit-learn's checks, labels and errors."""

from itertools import combinations_with_replacement

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.metrics import make_scorer, mean_absolute_error
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import riskmin
from riskmin import Ordinal, OrdinalClassifier, load_model, save_model
from riskmin.core.persist import FileError, checksum, load_arrays, save_arrays
from riskmin.estimators.ordinal import thresholds


# On alpha and tol, see the comment in tests/estimators/test_estimators.py.
@pytest.mark.slow
@parametrize_with_checks([OrdinalClassifier(alpha=1e-2, tol=1e-6)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [OrdinalClassifier("absolute", metric="zero_one", alpha=1e-2, tol=1e-10), OrdinalClassifier("squared")]
)
def test_scikit_learn_checks_of_other_estimators(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def graded():
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X), np.digitize(y, [90, 140, 200])


# ---------------------------------------------------------------- thresholds
COSTS = {"absolute": lambda a, b: np.abs(a - b), "zero_one": lambda a, b: (a != b).astype(float)}


@pytest.mark.parametrize("metric", COSTS)
@given(
    rows=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3), st.integers(1, 3)), min_size=2, max_size=8)
)
def test_thresholds_are_optimal(metric, rows):
    z, y, weight = np.array(rows).T
    z, (labels, grade) = z.astype(float), np.unique(y, return_inverse=True)
    weight = weight / weight.sum()

    def cost(t):
        return weight @ COSTS[metric](np.searchsorted(t, z), grade)

    cuts_found = thresholds(z, grade, weight, metric)
    assert cuts_found.shape == (len(labels) - 1,)
    assert (np.diff(cuts_found) >= 0).all()
    places = [z.min() - 1, *(np.unique(z) + 0.5)]
    best = min(cost(np.array(t)) for t in combinations_with_replacement(places, len(labels) - 1))
    assert cost(cuts_found) == pytest.approx(best, abs=1e-12)
    assert not np.isin(cuts_found, z).any()
    twice = np.repeat(np.arange(len(z)), 2)
    np.testing.assert_allclose(thresholds(z[twice], grade[twice], weight[twice] / 2, metric), cuts_found)


def test_thresholds_of_separated_grades_are_midpoints():
    cuts_found = thresholds(np.array([0.0, 1.0, 2.0, 4.0]), np.array([0, 0, 1, 2]), None, "absolute")
    assert cuts_found.tolist() == [1.5, 3.0]


def test_thresholds_minimize_the_training_error(graded):
    X, y = graded
    by = {metric: OrdinalClassifier(metric=metric).fit(X, y) for metric in COSTS}
    np.testing.assert_array_equal(by["absolute"].coef_, by["zero_one"].coef_)
    error = {m: [COSTS[k](by[m].predict(X), y).mean() for k in COSTS] for m in COSTS}
    assert error["absolute"][0] <= error["zero_one"][0]
    assert error["zero_one"][1] <= error["absolute"][1]
    z, model = by["absolute"].score_samples(X), by["absolute"]
    for step in (-0.1, 0.1):
        moved = np.searchsorted(model.thresholds_ + step, z)
        assert np.abs(moved - y).mean() >= error["absolute"][0]


# ---------------------------------------------------------------- the fit
def test_objective_is_the_mean_hinge_over_pairs(graded):
    X, y = graded
    model = OrdinalClassifier(alpha=0.1, tol=1e-6).fit(X, y)
    z = model.score_samples(X)
    pairs = np.maximum(0, 1 - (z[:, None] - z))[y[:, None] > y]
    assert model.objective_ == pytest.approx(pairs.mean() + 0.05 * model.coef_ @ model.coef_, rel=1e-10)
    assert 0 <= model.gap_ <= 1e-6 * model.objective_
    assert model.intercept_ == 0
    assert model.n_samples_fit_ == len(y)


@pytest.mark.parametrize(
    "loss", ["ordinal", Ordinal(costs=[[0], [1, 0], [2, 1, 0], [3, 2, 1, 0]]), "absolute"]
)
def test_grades_are_better_than_a_constant(graded, loss):
    X, y = graded
    model = OrdinalClassifier(loss, alpha=1e-2)
    error = -cross_val_score(model, X, y, cv=3, scoring="neg_mean_absolute_error")
    assert error.mean() < 0.8 * np.abs(y - np.median(y)).mean()


def test_the_decision_agrees_with_the_prediction(graded):
    X, y = graded
    model = OrdinalClassifier().fit(X, y)
    decision = model.decision_function(X)
    assert decision.shape == (len(y), 4)
    np.testing.assert_array_equal(decision.argmax(axis=1), model.predict(X))
    np.testing.assert_array_equal(decision.max(axis=1) >= 0, True)
    two = OrdinalClassifier().fit(X, y > 1)
    np.testing.assert_array_equal(two.decision_function(X) > 0, two.predict(X))


def test_weights_are_repeated_rows(graded):
    X, y = graded
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    weighted = OrdinalClassifier(alpha=0.1, tol=1e-8).fit(X, y, sample_weight=weight)
    repeated = OrdinalClassifier(alpha=0.1, tol=1e-8).fit(X.repeat(weight, axis=0), y.repeat(weight))
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-7)
    assert (weighted.predict(X) == repeated.predict(X)).mean() > 0.99
    assert weighted.weighted_
    assert weighted.n_samples_fit_ == len(y)


def test_grades_without_weight_are_left_out(graded):
    X, y = graded
    model = OrdinalClassifier().fit(X, y, sample_weight=(y != 2).astype(float))
    assert model.classes_.tolist() == [0, 1, 3]
    assert model.thresholds_.shape == (2,)


# ---------------------------------------------------------------- labels
NAMES = np.array(["poor", "fair", "good", "excellent"])


@pytest.mark.parametrize("order", [NAMES.tolist(), tuple(NAMES), NAMES, ["dire", *NAMES]])
def test_order_of_string_grades(graded, order, tmp_path):
    X, y = graded
    named = OrdinalClassifier(order=order).fit(X, NAMES[y])
    numbered = OrdinalClassifier().fit(X, y)
    assert named.classes_.tolist() == NAMES.tolist()
    np.testing.assert_array_equal(named.predict(X), NAMES[numbered.predict(X)])
    save_model(named, tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(X), named.predict(X))


@pytest.mark.parametrize(("labels", "form"), [([-2, 5, 6, 10], np.asarray), (list("abcd"), pd.Series)])
def test_any_sorted_labels_are_grades(graded, labels, form):
    X, y = graded
    model = OrdinalClassifier().fit(X, form(np.array(labels)[y]))
    assert model.classes_.tolist() == labels
    assert model.score(X, np.array(labels)[y]) > 0.4


# ---------------------------------------------------------------- tools
def test_ordered_categorical_columns(graded, tmp_path):
    X, y = graded
    words = np.array(["mild", "fair", "serious", "grave"])
    named, order = words[y % 4], words.tolist()
    twin = OrdinalClassifier(order=order, alpha=1e-2).fit(X, named)
    columns = [
        pd.Series(pd.Categorical(named, categories=[*order, "dead"], ordered=True)),
        pl.Series(named).cast(pl.Enum(order)),
    ]
    for column in columns:
        model = OrdinalClassifier(alpha=1e-2).fit(X, column)
        assert model.classes_.tolist() == order
        np.testing.assert_array_equal(model.predict(X), twin.predict(X))
    assert OrdinalClassifier(order=order[::-1]).fit(X, columns[0]).classes_.tolist() == order[::-1]
    for column in (pd.Series(pd.Categorical(named, categories=order)), pl.Series(named).cast(pl.Categorical)):
        assert OrdinalClassifier(alpha=1e-2).fit(X, column).classes_.tolist() == sorted(order)


def test_noninteger_grades(graded):
    X, y = graded
    whole, half = (OrdinalClassifier(alpha=1e-2).fit(X, y / size + 0.5) for size in (1.0, 2.0))
    assert half.classes_.tolist() == (np.unique(y) / 2 + 0.5).tolist()
    assert half.objective_ == whole.objective_
    assert half.score(X, y / 2 + 0.5) == np.mean(whole.predict(X) == y + 0.5) > 0.4
    weight = np.arange(len(y)) % 3
    assert half.score(X, y / 2 + 0.5, weight) == pytest.approx(
        np.average(whole.predict(X) == y + 0.5, weights=weight)
    )


def test_pipelines_and_searches(graded):
    X, y = graded
    model = make_pipeline(StandardScaler(), OrdinalClassifier())
    grid = {"ordinalclassifier__alpha": [1e-3, 1.0], "ordinalclassifier__metric": ["absolute", "zero_one"]}
    scoring = make_scorer(mean_absolute_error, greater_is_better=False)
    search = GridSearchCV(model, grid, cv=2, scoring=scoring).fit(X, y)
    assert -search.best_score_ < 0.75


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array, pd.DataFrame, np.asfortranarray])
def test_all_forms_of_X(graded, form):
    X, y = graded
    first, model = (OrdinalClassifier(alpha=0.1, tol=1e-8).fit(f(X), y) for f in (np.asarray, form))
    assert (model.predict(form(X)) == first.predict(X)).mean() > 0.99


@pytest.mark.parametrize(
    "loss", ["ordinal", Ordinal(costs=[[0], [1, 0], [1, 1, 0], [1, 1, 1, 0]]), "huber:delta=0.5"]
)
def test_a_file_keeps_the_model(graded, loss, tmp_path):
    X, y = graded
    model = OrdinalClassifier(loss, metric="zero_one", solver=riskmin.Bundle(keep=50)).fit(X, y)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(loaded.thresholds_, model.thresholds_)
    assert (loaded.objective_, loaded.lower_bound_) == (model.objective_, model.lower_bound_)
    assert clone(loaded).fit(X, y).gap_ >= 0


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([0.0, 2.0, 1.0], "its thresholds decrease"),
        ([0.0, 1.0], "it has 4 classes, not 3"),
        ([0.0, None, 1.0], "threshold is None, not a finite number"),
    ],
)
def test_files_with_invalid_thresholds(graded, cuts, message, tmp_path):
    save_model(OrdinalClassifier().fit(*graded), tmp_path / "model")
    arrays, meta = load_arrays(tmp_path / "model", "model")
    meta["fitted"]["thresholds"] = cuts
    del meta["sha256"]
    save_arrays(tmp_path / "model", arrays, meta | {"sha256": checksum(arrays, meta)})
    with pytest.raises(FileError, match=f"is not a sound riskmin model: {message}"):
        load_model(tmp_path / "model")


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (OrdinalClassifier(), [1, 1, 1], "y holds only one class, 1, but two are needed"),
        (OrdinalClassifier(), [0.1, 0.2, 0.3], "Unknown label type: continuous"),
        (
            OrdinalClassifier("hinge"),
            [0, 1, 2],
            "a loss for classification, not for ordinal: use LinearClass",
        ),
        (OrdinalClassifier(metric="squared"), [0, 1, 2], "the metrics are absolute and zero_one"),
        (OrdinalClassifier(order=[0, 1]), [0, 1, 2], "must name every grade once, but y holds 2"),
        (
            OrdinalClassifier(order=[0, 1, 2, 1]),
            [0, 1, 2],
            "must name every grade once, but one occurs twice",
        ),
        (
            OrdinalClassifier(Ordinal(costs=[[0], [1, 0]])),
            [0, 1, 2],
            "costs has 2 rows, but y holds 3 grades",
        ),
    ],
)
def test_errors(model, y, message):
    with pytest.raises(ValueError, match=message) as caught:
        model.fit(np.eye(3), y)
    assert "\n" not in str(caught.value)


def test_other_estimators_recommend_this_one():
    with pytest.raises(ValueError, match="a loss for ordinal, not for regression: use OrdinalClassifier"):
        riskmin.LinearRegressor("ordinal").fit(np.eye(3), [0, 1, 2])
    with pytest.raises(NotFittedError):
        OrdinalClassifier().predict(np.eye(3))
