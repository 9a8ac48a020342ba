"""No alpha of a range scores better than the bound: against exact fits of values that were never computed."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold, ShuffleSplit

from helpers import refusals
from riskmin import L2, LinearClassifier, LinearClassifierCV, LinearRegressor, LinearRegressorCV, get_loss
from riskmin.estimators._common import range_search

RNG = np.random.default_rng(3)
N, P = 80, 4
X = RNG.standard_normal((N, P)) * [1.0, 20.0, 0.1, 1.0]
Z = X @ [1.0, 0.03, 3.0, 0.0] + 0.2
REAL = Z + RNG.standard_normal(N)
TARGETS = {"logistic": REAL > 0, "squared": REAL, "poisson": RNG.poisson(np.exp(Z / 2)).astype(float)}
WEIGHTS = RNG.uniform(0.1, 2.0, N)
CASES = [
    ("logistic", "accuracy", 0.0, {}),
    ("logistic", "accuracy", 0.0, {"standardize": True}),
    ("logistic", "neg_log_loss", 1e-2, {"standardize": True}),
    ("logistic", "accuracy", 0.05, {"fit_intercept": False}),
    ("squared", "r2", 1e-3, {"standardize": True}),
    ("squared", "neg_mean_squared_error", 1e-2, {}),
    ("squared", "neg_mean_absolute_error", 1e-2, {"standardize": True}),
    ("poisson", "neg_mean_poisson_deviance", 1e-2, {"standardize": True}),
    ("hinge", "accuracy", 0.03, {"standardize": True}),
    ("hinge", "accuracy", 0.05, {"fit_intercept": False}),
    ("squared_hinge", "accuracy", 0.03, {"standardize": True}),
    ("absolute", "neg_mean_absolute_error", 5e-2, {"standardize": True}),
    ("huber", "r2", 3e-2, {"standardize": True}),
]


def is_classifier(loss):
    return get_loss(loss).task == "classification"


def target(loss):
    return TARGETS[loss] if loss in TARGETS else TARGETS["logistic" if is_classifier(loss) else "squared"]


def score_at(loss, scoring, alpha, params, cv, weight):
    """The mean score of exact fits."""
    kind, y = (LinearClassifier if is_classifier(loss) else LinearRegressor), target(loss)
    scores = []
    for train, test in cv.split(X):
        rows = None if weight is None else weight[train]
        model = kind(loss, alpha=alpha, tol=1e-10, atol=0.0, **params).fit(X[train], y[train], rows)
        given = None if weight is None else weight[test]
        scores.append(get_scorer(scoring)(model, X[test], y[test], sample_weight=given))
    return np.mean(scores)


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize(("loss", "scoring", "eps", "params"), CASES)
def test_no_alpha_of_the_range_is_better(loss, scoring, eps, params, weight):
    kind = LinearClassifierCV if is_classifier(loss) else LinearRegressorCV
    cv = KFold(3, shuffle=True, random_state=0)
    search = kind(loss, alpha_range=(1e-3, 1.0), eps=eps, cv=cv, scoring=scoring, **params)
    search.fit(X, target(loss), weight)
    assert search.best_score_ <= search.score_bound_ <= search.best_score_ + eps + 1e-9
    at_best = score_at(loss, scoring, search.alpha_, params, cv, weight)
    assert search.best_score_ == pytest.approx(at_best, abs=1e-6)
    assert search.best_estimator_.alpha == search.alpha_
    lower, upper, bounds = search.range_bounds_.T
    np.testing.assert_allclose(lower[1:], upper[:-1], rtol=1e-12)  # the pieces cover the range
    assert (lower[0], upper[-1]) == pytest.approx((1e-3, 1.0))
    for alpha in np.exp(RNG.uniform(np.log(1e-3), 0.0, 12)):
        piece = np.searchsorted(upper, alpha)
        assert score_at(loss, scoring, alpha, params, cv, weight) <= bounds[piece] + 1e-7


def test_errors_of_the_hinge_are_bounded_without_a_margin():
    search = LinearClassifierCV("hinge", alpha_range=(1e-2, 1.0), standardize=True, cv=3)
    search.fit(X, TARGETS["logistic"])
    assert search.best_score_ == search.score_bound_
    grid = LinearClassifierCV("hinge", alphas=np.geomspace(1e-2, 1, 30), tol=1e-9, standardize=True, cv=3)
    assert grid.fit(X, TARGETS["logistic"]).best_score_ <= search.score_bound_


def test_what_remains_proved_is_said_where_bounds_are_too_loose(monkeypatch):
    monkeypatch.setattr(range_search, "MAX_VALUES", 20)  # as if bounds closed too slowly
    search = LinearRegressorCV("huber", alpha_range=(1e-3, 1.0), eps=1e-6, standardize=True, cv=3)
    with pytest.warns(ConvergenceWarning, match="proves that no alpha of the range scores above"):
        search.fit(X, REAL)
    assert len(search.alphas_) == 20
    assert search.score_bound_ > search.best_score_ + 1e-6
    for alpha in (2e-3, 0.03, 0.5):
        cv, params = KFold(3), {"standardize": True}
        assert score_at("huber", "r2", alpha, params, cv, None) <= search.score_bound_


def test_a_hold_out_set_and_limits():
    one = ShuffleSplit(1, random_state=0)
    search = LinearClassifierCV("logistic", alpha_range=(1e-2, 1.0), cv=one).fit(X, TARGETS["logistic"])
    assert search.scores_.shape == (1, len(search.alphas_))
    assert search.best_score_ == search.score_bound_ == search.scores_.max()


Y = TARGETS["logistic"]
RANGE = {"alpha_range": (1e-2, 1.0)}
REFUSED = [
    (lambda: LinearClassifierCV("roc_area", **RANGE).fit(X, Y), "one score per row"),
    (lambda: LinearRegressorCV("gamma", **RANGE).fit(X, REAL**2 + 1), "one score per row"),
    (
        lambda: LinearClassifierCV("hinge", **RANGE, scoring="neg_log_loss").fit(X, Y),
        "bounds of accuracy for",
    ),
    (lambda: LinearClassifierCV("hinge", regularizer=L2([0, 1, 1, 1]), **RANGE).fit(X, Y), "of all weights"),
    (lambda: LinearClassifierCV("logistic", **RANGE, scoring="f1").fit(X, Y), "not of 'f1'"),
    (lambda: LinearRegressorCV("squared", **RANGE).fit(X, REAL), "give eps > 0"),
    (lambda: LinearClassifierCV("logistic", **RANGE, eps=-1.0).fit(X, Y), "finite number >= 0"),
    (lambda: LinearClassifierCV("logistic", alpha_range=(1.0, 0.1)).fit(X, Y), "0 < low < high"),
    (lambda: LinearClassifierCV("logistic", regularizer="l1", **RANGE).fit(X, Y), "smooth penalty"),
    (lambda: LinearClassifierCV("logistic", cv="loo", **RANGE).fit(X, Y), "takes the place of alphas"),
    (lambda: LinearClassifierCV("logistic", cv="other").fit(X, Y), "give 'loo'"),
    (lambda: LinearClassifierCV("logistic", **RANGE).fit(X, np.arange(N) % 3), "two classes"),
]
test_refusals = refusals((REFUSED, ValueError))
