"""Ordinal classification: optimal thresholds, the order of grades, and decisions."""

from itertools import combinations_with_replacement

import numpy as np
import pandas as pd
import polars as pl
import pytest
from estimator_cases import GRADE, X, fitted
from hypothesis import given, settings
from hypothesis import strategies as st

from riskmin import OrdinalClassifier, load_model, save_model

COSTS = {"absolute": lambda a, b: np.abs(a - b), "zero_one": lambda a, b: (a != b).astype(float)}
NAMES = np.array(["poor", "fair", "good"])


# ---------------------------------------------------------------- thresholds
@pytest.mark.parametrize("metric", COSTS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3), st.integers(1, 3)), min_size=2, max_size=8)
)
def test_thresholds_are_optimal(metric, rows):
    """For scores that are the only column, whose order the weight keeps."""
    x, y, weight = np.array(rows, dtype=float).T
    grade = np.unique(y, return_inverse=True)[1]
    if grade.max() == 0 or len(np.unique(x)) == 1:
        return
    model = OrdinalClassifier("squared", metric=metric, alpha=1e-3, fit_intercept=True)
    try:
        model.fit(x[:, None], grade, weight)
    except UserWarning:
        return  # the scores carry no information
    z = model.score_samples(x[:, None])

    def cost(t):
        return weight @ COSTS[metric](np.searchsorted(t, z), grade) / weight.sum()

    cuts = model.thresholds_
    assert cuts.shape == (grade.max(),)
    assert (np.diff(cuts) >= 0).all()
    levels = np.unique(z)
    places = [levels[0] - 1, *(levels[:-1] + levels[1:]) / 2, levels[-1] + 1]
    best = min(cost(np.array(t)) for t in combinations_with_replacement(places, grade.max()))
    assert cost(cuts) == pytest.approx(best, abs=1e-12)
    assert not np.isin(cuts, z).any()


def test_thresholds_of_separated_grades_are_midpoints():
    x, y = np.array([[0.0], [1.0], [2.0], [4.0]]), [0, 0, 1, 2]
    model = OrdinalClassifier(alpha=1e-2).fit(x, y)
    np.testing.assert_allclose(model.thresholds_, model.score_samples([[1.5], [3.0]]))


# ---------------------------------------------------------------- the fit
def test_the_decision_agrees_with_the_prediction():
    model = fitted("grades")
    decision = model.decision_function(X)
    assert decision.shape == (len(X), 3)
    np.testing.assert_array_equal(decision.argmax(axis=1), model.predict(X))
    assert (decision.max(axis=1) >= 0).all()
    assert model.intercept_ == 0
    two = OrdinalClassifier(alpha=0.1).fit(X, GRADE > 0)
    np.testing.assert_array_equal(two.decision_function(X) > 0, two.predict(X))


# ---------------------------------------------------------------- labels
@pytest.mark.parametrize("order", [NAMES.tolist(), tuple(NAMES), NAMES, ["dire", *NAMES]])
def test_the_order_of_named_grades(order, tmp_path):
    named = OrdinalClassifier(order=order, alpha=0.1).fit(X, NAMES[GRADE])
    numbered = OrdinalClassifier(alpha=0.1).fit(X, GRADE)
    assert named.classes_.tolist() == NAMES.tolist()
    np.testing.assert_array_equal(named.predict(X), NAMES[numbered.predict(X)])
    save_model(named, tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(X), named.predict(X))


def test_ordered_categorical_columns():
    named, order = NAMES[GRADE], NAMES.tolist()
    twin = OrdinalClassifier(order=order, alpha=0.1).fit(X, named)
    columns = [
        pd.Series(pd.Categorical(named, categories=[*order, "best"], ordered=True)),
        pl.Series(named).cast(pl.Enum(order)),
    ]
    for column in columns:
        model = OrdinalClassifier(alpha=0.1).fit(X, column)
        assert model.classes_.tolist() == order
        np.testing.assert_array_equal(model.predict(X), twin.predict(X))
    backwards = OrdinalClassifier(order=order[::-1], alpha=0.1).fit(X, columns[0])
    assert backwards.classes_.tolist() == order[::-1]
    for column in (pd.Series(pd.Categorical(named, categories=order)), pl.Series(named).cast(pl.Categorical)):
        assert OrdinalClassifier(alpha=0.1).fit(X, column).classes_.tolist() == sorted(order)


def test_grades_that_are_no_integers():
    whole, half = (OrdinalClassifier(alpha=0.1).fit(X, GRADE / size + 0.5) for size in (1.0, 2.0))
    assert half.classes_.tolist() == [0.5, 1.0, 1.5]
    assert half.objective_ == whole.objective_
    right, weight = whole.predict(X) == GRADE + 0.5, np.arange(len(X)) % 3
    assert half.score(X, GRADE / 2 + 0.5) == np.mean(right) > 0.4
    assert half.score(X, GRADE / 2 + 0.5, weight) == pytest.approx(np.average(right, weights=weight))
