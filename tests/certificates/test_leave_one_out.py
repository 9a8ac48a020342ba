"""Predictions without a row are those of models that were fitted without it, and removal is a fit."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import LeaveOneGroupOut, LeaveOneOut, cross_val_predict

from helpers import refusals
from riskmin import LinearClassifier, LinearRegressor, optimum_region

RNG = np.random.default_rng(1)
N, P = 60, 3
Z = RNG.standard_normal((N, P))
Z[0] = [8.0, 0.0, 0.0]  # a row of high leverage
SCORES = Z @ [1.0, -0.7, 0.0] + 0.3
LABELS = np.where(SCORES + 2 * RNG.logistic(size=N) > 0, "yes", "no")
TARGETS = {
    "logistic": LABELS,
    "hinge": LABELS,
    "squared_hinge": LABELS,
    "squared": SCORES + RNG.standard_normal(N),
    "huber": SCORES + RNG.standard_normal(N),
    "poisson": RNG.poisson(np.exp(SCORES / 3)).astype(float),
}
WEIGHTS = RNG.uniform(0.2, 3.0, N)
GROUPS = RNG.integers(0, 9, N)


def model_of(loss, **params):
    kind = LinearRegressor if loss in ("squared", "poisson", "huber") else LinearClassifier
    return kind(loss, **({"alpha": 1e-2} | params))


def exact_scores(model, X, y, weight=None, groups=None):
    """The scores of each row by a tight fit without its group, and how exact they are."""
    scores, slack = np.zeros(N), np.zeros(N)
    for group in (
        np.arange(N)[:, None] if groups is None else [np.flatnonzero(groups == g) for g in set(groups)]
    ):
        rest = np.setdiff1d(np.arange(N), group)
        tight = clone(model).set_params(tol=1e-9, atol=0.0)
        tight.fit(X[rest], y[rest], None if weight is None else weight[rest])
        region = optimum_region(
            tight, X[rest], y[rest], sample_weight=None if weight is None else weight[rest]
        )
        lower, upper = region.decision_interval(X[group]).T
        scores[group], slack[group] = (lower + upper) / 2, (upper - lower) / 2
    return scores, slack


@pytest.mark.parametrize(
    ("loss", "params"),
    [
        ("logistic", {}),
        ("logistic", {"standardize": True}),
        ("logistic", {"alpha": 1e-5, "fit_intercept": False}),
        ("logistic", {"class_weight": {"no": 1.0, "yes": 3.0}, "standardize": True}),
        ("logistic", {"class_weight": "balanced"}),
        ("logistic", {"regularizer": "elastic"}),
        ("squared", {}),
        ("squared", {"standardize": True}),
        ("poisson", {}),
        ("poisson", {"alpha": 1e-5, "standardize": True}),
        ("hinge", {"alpha": 0.1, "tol": 1e-6}),
        ("huber", {"tol": 1e-6}),
        ("squared_hinge", {"alpha": 0.3, "tol": 0.1, "standardize": True}),
    ],
)
@pytest.mark.parametrize("given", ["rows", "weights", "groups"])
def test_scores_are_those_without_the_row(loss, params, given):
    model, y = model_of(loss, **params), TARGETS[loss]
    X = Z * [1.0, 100.0, 0.01] + [0.0, 50.0, 0.0] if params.get("standardize") else Z
    weight, groups = WEIGHTS if given == "weights" else None, GROUPS if given == "groups" else None
    found = model.fit(X, y, weight).leave_one_out(X, y, weight, groups=groups)
    scores, slack = exact_scores(model, X, y, weight, groups)
    assert np.all(np.abs(found.scores - scores) <= found.bounds + slack)
    certain = np.abs(scores) > slack
    if model.task == "classification":
        np.testing.assert_array_equal(found.labels[certain], np.where(scores > 0, "yes", "no")[certain])
    elif loss in ("squared", "poisson"):
        expected = np.exp(found.scores) if loss == "poisson" else found.scores
        np.testing.assert_allclose(found.labels, expected)
        assert found.bounds.max() <= 1e-2
    if loss in ("squared", "poisson", "logistic") and not {"class_weight", "regularizer"} & set(params):
        assert found.refitted.mean() < 0.3  # most rows need no fit


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_labels_are_those_of_cross_val_predict(groups):
    cv = LeaveOneOut() if groups is None else LeaveOneGroupOut()
    model = LinearClassifier("logistic", alpha=1e-2, tol=1e-8, standardize=True)
    theirs = cross_val_predict(model, Z, LABELS, cv=cv, groups=groups)
    found = model.fit(Z, LABELS).leave_one_out(Z, LABELS, groups=groups)
    np.testing.assert_array_equal(found.labels, theirs)
    classes = np.digitize(SCORES, [-0.5, 0.8])
    several = LinearClassifier("softmax", alpha=1e-1, tol=1e-8).fit(Z, classes)
    found = several.leave_one_out(Z, classes, groups=groups)
    np.testing.assert_array_equal(found.labels, cross_val_predict(several, Z, classes, cv=cv, groups=groups))
    assert found.scores.shape == (N, 3)


def test_hinge_fits_rows_that_matter_only():
    model = LinearClassifier("hinge", alpha=1e-2, tol=1e-8).fit(Z, np.where(SCORES > 0, 1, 0))
    found = model.leave_one_out(Z, np.where(SCORES > 0, 1, 0))
    assert 0 < found.refitted.sum() < N / 2


def test_a_model_without_rows_is_fitted_to_the_others():
    table = pd.DataFrame(Z, columns=["a", "b", "c"])
    model = LinearClassifier("logistic", alpha=1e-2, tol=1e-7).fit(table, LABELS, WEIGHTS)
    coef = model.coef_.copy()
    mask = np.arange(N) % 5 == 0
    rest = table[~mask], LABELS[~mask], WEIGHTS[~mask]
    fresh = LinearClassifier("logistic", alpha=1e-2, tol=1e-7).fit(*rest)
    for rows in (mask, np.flatnonzero(mask)):
        less = model.without(rows, table, LABELS, WEIGHTS)
        assert less.result_.status == "converged"
        assert less.objective_ == pytest.approx(fresh.objective_, rel=1e-6)
        assert less.n_samples_fit_ == N - mask.sum()
        assert less.get_params() == model.get_params()
        # J of the old weights without the rows: computed from the formula
        z = np.where(rest[1] == "yes", 1.0, -1.0) * (rest[0].to_numpy() @ coef[0] + model.intercept_[0])
        c = rest[2] / rest[2].sum()
        old = c @ np.logaddexp(0, -z) + 1e-2 * coef[0] @ coef[0] / 2
        assert less.previous_gap_ == pytest.approx(old - less.lower_bound_, rel=1e-6)
    np.testing.assert_array_equal(model.coef_, coef)


MODEL = LinearClassifier("logistic").fit(Z, LABELS)
ONE = np.where(np.arange(N) == 3, "yes", "no")
REFUSED = [
    (lambda: MODEL.leave_one_out(Z, LABELS, tol=0.0), "needs a number > 0"),
    (lambda: MODEL.leave_one_out(Z, LABELS, groups=[1, 2]), "give the group of each row"),
    (lambda: MODEL.leave_one_out(Z, LABELS, groups=np.ones(N)), "all rows are of one group"),
    (lambda: MODEL.leave_one_out(Z[::-1], LABELS), "give the X, y"),
    (lambda: LinearClassifier("logistic").fit(Z, ONE).leave_one_out(Z, ONE), "a class has rows in one group"),
    (lambda: MODEL.without([], Z, LABELS), "no row"),
    (lambda: MODEL.without(np.arange(N), Z, LABELS), "all rows"),
]
test_refusals = refusals((REFUSED, ValueError))
