"""Classifiers that optimize a metric: thresholds, and scoring in searches."""

import pickle

import numpy as np
import pytest
from estimator_cases import HIGH, ONCE, WEIGHT, N, X, close_minima
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import fbeta_score, make_scorer, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from riskmin import KernelClassifier, LinearClassifier, LinearClassifierCV, get_scorer
from riskmin.losses import FBeta, Prbep, PrecisionAtK, RecallAtK, RocArea, Smoothed, get_loss
from riskmin.metrics import prbep_score, precision_at_k_score, recall_at_k_score

METRICS = ["roc_area", "prbep", "f1", "f_beta:beta=2", "precision_at_k:k=20", "recall_at_k:k=20"]
Y = HIGH.astype(int)
NAMED = np.array(["no", "yes"])[Y]


def f_measure(y, predicted, beta):
    """The F measure by its formula: scikit-learn's function is slow for many thresholds."""
    y = y > 0
    return (1 + beta**2) * np.sum(y & predicted) / (beta**2 * np.sum(y) + np.sum(predicted))


def balanced(y, predicted, c=1.0):
    y, c = y > 0, c * np.ones(len(y))
    return 0.5 * (c[y & predicted].sum() / c[y].sum() + c[~y & ~predicted].sum() / c[~y].sum())


# ---------------------------------------------------------------- cutoffs
rows = st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.integers(1, 3)), min_size=2, max_size=9)


def scored(rows):
    z, y, c = np.array(rows, dtype=float).T
    y[0], y[1] = 1, 0  # both classes occur
    return z, np.where(y > 0, 1.0, -1.0), c / c.sum()


@settings(deadline=None)
@given(rows, st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 9))
def test_the_threshold_is_the_best_of_all(rows, beta, k):
    z, y, c = scored(rows)
    every = [z.min() - 1, *(np.unique(z) + 0.5)]
    threshold = FBeta(beta).cutoff(z, y, c)
    best = max(f_measure(y, z > t, beta) for t in every)
    assert f_measure(y, z > threshold, beta) == pytest.approx(best)
    assert threshold not in z
    best = max(balanced(y, z > t, c) for t in every)
    assert balanced(y, z > RocArea().cutoff(z, y, c), c) == pytest.approx(best)
    for loss, count in [(Prbep(), np.sum(y > 0)), (PrecisionAtK(k), k), (RecallAtK(k), k)]:
        off = abs(np.sum(z > loss.cutoff(z, y, c)) - count)
        assert off == min(abs(np.sum(z > t) - count) for t in every)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_thresholds_of_scores_of_any_size(size):
    z, y, c = size * np.array([1.0, 2.0, 3.0]), np.array([-1.0, 1.0, 1.0]), np.ones(3) / 3
    for loss in (FBeta(), Prbep(), RocArea(), PrecisionAtK(2)):
        assert np.sum(z > loss.cutoff(z, y, c)) == 2
    assert np.sum(z > PrecisionAtK(3).cutoff(z, y, c)) == 3


# ---------------------------------------------------------------- the fit
@pytest.mark.parametrize("loss", METRICS)
def test_the_objective_is_that_of_scores_without_the_threshold(loss):
    model = LinearClassifier(loss, alpha=0.2).fit(X, Y)
    signs, c = 2.0 * Y - 1, np.full(N, 1 / N)
    z = model.decision_function(X) + model.threshold_
    value, _ = get_loss(loss).value_grad(z, signs, c)
    assert model.objective_ == pytest.approx(value + 0.1 * np.sum(model.coef_**2), rel=1e-9)
    b = z - X @ model.coef_[0]
    np.testing.assert_allclose(b, b[0], atol=1e-9)
    if loss.startswith("f"):
        for shift in (-0.1, 0.1):
            assert get_loss(loss).value_grad(z + shift, signs, c)[0] >= value
    else:
        assert b[0] == pytest.approx(0, abs=1e-9)  # J does not depend on the intercept, or there is none
    without = LinearClassifier(loss, alpha=0.2, fit_intercept=False).fit(X, Y)
    assert (without.intercept_.tolist(), without.threshold_) == ([0.0], 0)
    np.testing.assert_allclose(without.decision_function(X), X @ without.coef_[0], atol=1e-12)


@pytest.mark.parametrize("loss", METRICS)
@pytest.mark.parametrize("kind", [LinearClassifier, KernelClassifier])
def test_predictions_are_by_the_best_threshold(kind, loss):
    model = kind(loss, alpha=0.2).fit(X, Y)
    z = model.decision_function(X)
    np.testing.assert_array_equal(model.predict(X), (z > 0).astype(int))
    best = get_loss(loss).cutoff(z + model.threshold_, 2.0 * Y - 1, np.full(N, 1 / N))
    np.testing.assert_array_equal(z > 0, z + model.threshold_ > best)
    assert kind("hinge", alpha=0.2).fit(X, Y).threshold_ == 0


@pytest.mark.parametrize("kernel", ["linear", "precomputed"])
def test_kernel_machines_leave_out_rows_without_weight(kernel):
    keep = ONCE > 0
    given, few = (X, X) if kernel == "linear" else (X @ X.T, (X @ X.T)[:, keep])
    model = KernelClassifier("prbep", kernel=kernel, alpha=0.1).fit(given, Y, sample_weight=2.0 * keep)
    bare = KernelClassifier("prbep", kernel=kernel, alpha=0.1).fit(few[keep], Y[keep])
    assert model.objective_ == pytest.approx(bare.objective_, rel=1e-9)
    np.testing.assert_allclose(model.decision_function(given), bare.decision_function(few), atol=1e-9)
    assert keep[model.support_].all()


def test_class_weights_cancel_in_pairs_of_classes():
    model = LinearClassifier("roc_area", alpha=0.1, tol=1e-8).fit(X, Y)
    other = LinearClassifier("roc_area", alpha=0.1, tol=1e-8, class_weight="balanced").fit(X, Y)
    assert other.objective_ == pytest.approx(model.objective_, rel=1e-7)
    assert (other.predict(X) == model.predict(X)).mean() > 0.95


@pytest.mark.parametrize("inner", [RocArea(), Prbep()])
def test_thresholds_of_smoothed_losses(inner):
    model = LinearClassifier(Smoothed(inner, mu=0.1), alpha=0.1).fit(X, Y)
    sharp, other = (LinearClassifier(inner, alpha=0.1, solver=s).fit(X, Y) for s in ("bundle", "smoothing"))
    close_minima(sharp, other)
    assert model.lower_bound_ <= sharp.objective_
    assert model.intercept_[0] == -model.threshold_
    assert abs(model.score(X, Y) - sharp.score(X, Y)) < 0.1


# ---------------------------------------------------------------- searches
SCORES = {
    "roc_area": roc_auc_score,
    "prbep": prbep_score,
    "f1": lambda y, z: fbeta_score(y, z > 0, beta=1),
    "f_beta:beta=2": lambda y, z: fbeta_score(y, z > 0, beta=2),
    "precision_at_k:k=10": lambda y, z: precision_at_k_score(y, z, k=10),
    "recall_at_k:k=10": lambda y, z: recall_at_k_score(y, z, k=10),
}
ACCURACY = {"hinge": lambda y, z: np.mean(y == (z > 0))}


@pytest.mark.parametrize("loss", SCORES | ACCURACY)
def test_a_search_scores_by_the_metric_of_the_loss(loss):
    folds = list(StratifiedKFold(2).split(X, Y))
    search = LinearClassifierCV(loss, alphas=[2.0], cv=folds).fit(X, NAMED)
    for k, (train, test) in enumerate(folds):
        model = LinearClassifier(loss, alpha=2.0).fit(X[train], Y[train])
        score = (SCORES | ACCURACY)[loss](Y[test], model.decision_function(X[test]))
        assert search.scores_[k, 0] == pytest.approx(score, abs=0.02)
    assert search.threshold_ == search.best_estimator_.threshold_
    np.testing.assert_array_equal(search.predict(X), search.best_estimator_.predict(X))


def test_a_search_leaves_out_rows_without_weight():
    keep, half = ONCE > 0, np.arange(N) % 2 == 0
    search = LinearClassifierCV("f1", alphas=[3.0], cv=[(half, ~half), (~half, half)])
    weighted = search.fit(X, Y, sample_weight=0.5 * keep)
    few = half[keep]
    bare = LinearClassifierCV("f1", alphas=[3.0], cv=[(few, ~few), (~few, few)]).fit(X[keep], Y[keep])
    np.testing.assert_allclose(weighted.scores_, bare.scores_, atol=1e-12)


def test_weights_go_to_scorers_that_take_them():
    for scoring in ("prbep", make_scorer(lambda y, predicted: np.mean(y == predicted))):
        model = LinearClassifierCV(alphas=[0.1], cv=2, scoring=scoring).fit(X, Y, sample_weight=1 + WEIGHT)
        assert 0 < model.best_score_ <= 1


def test_the_f_measure_is_that_of_the_positive_class():
    model = LinearClassifier("f1", alpha=1.0).fit(X, NAMED)
    scorer = pickle.loads(pickle.dumps(get_scorer("f1")))
    assert scorer(model, X[Y == 0], NAMED[Y == 0]) == 0  # without positive rows, the F measure is 0
    assert scorer(model, X, NAMED) == pytest.approx(f_measure(Y, model.predict(X) == "yes", 1.0))


def test_scorers_by_name():
    fitted = LinearClassifier("prbep", alpha=0.1).fit(X, NAMED)
    defaults = {"recall_at_k": SCORES["recall_at_k:k=10"], "roc_auc": roc_auc_score}
    for name, measure in (SCORES | defaults).items():
        assert get_scorer(name)(fitted, X, NAMED) == measure(Y, fitted.decision_function(X))
