"""Classifiers that optimize a metric: thresholds, certificates, and scoring in searches."""

import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import balanced_accuracy_score, fbeta_score, make_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import riskmin
from riskmin import (
    KernelClassifier,
    LinearClassifier,
    LinearClassifierCV,
    LinearRegressorCV,
    get_scorer,
    load_model,
    save_model,
)
from riskmin.core.persist import checksum, load_arrays, save_arrays
from riskmin.losses import FBeta, Prbep, PrecisionAtK, RecallAtK, RocArea, Smoothed, get_loss
from riskmin.metrics import prbep_score, precision_at_k_score, recall_at_k_score

COUNTING = ["prbep", "f1", "f_beta:beta=2", "precision_at_k:k=50", "recall_at_k:k=50"]
METRICS = ["roc_area", *COUNTING]


def expected_failures(estimator):
    """Checks of scikit-learn that need sample weights, which the loss does not support."""
    why = {"check_class_weight_classifiers": "a pair of rows has one of each class, so their weights cancel"}
    if estimator.loss != "roc_area":
        checks = [
            "check_class_weight_classifiers",
            "check_sample_weights_not_overwritten",
            "check_sample_weight_equivalence_on_dense_data",
            "check_sample_weight_equivalence_on_sparse_data",
        ]
        why = dict.fromkeys(checks, "the loss counts rows, and says so")
    return why


# On alpha and tol, see the comment in tests/estimators/test_estimators.py.
@pytest.mark.slow
@parametrize_with_checks(
    [LinearClassifier("roc_area", alpha=1e-2, tol=1e-6)], expected_failed_checks=expected_failures
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.exhaustive
@parametrize_with_checks(
    [LinearClassifier("f1"), LinearClassifierCV("roc_area", alphas=[1e-2, 1e-1], cv=2, tol=1e-6)],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_checks_of_other_estimators(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def noisy():
    """Two classes that are not separable: some labels are wrong."""
    X, y = load_breast_cancer(return_X_y=True)
    wrong = np.random.default_rng(0).random(len(y)) < 0.1
    return scale(X), np.where(wrong, 1 - y, y)


@pytest.fixture(scope="module")
def fits(noisy):
    return {loss: LinearClassifier(loss, alpha=1e-2).fit(*noisy) for loss in METRICS}


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


def every_threshold(z):
    return [z.min() - 1, *(np.unique(z) + 0.5)]


@given(rows, st.sampled_from([0.5, 1.0, 2.0]))
def test_threshold_maximizes_the_f_measure(rows, beta):
    z, y, c = scored(rows)
    threshold = FBeta(beta).cutoff(z, y, c)
    best = max(f_measure(y, z > t, beta) for t in every_threshold(z))
    assert f_measure(y, z > threshold, beta) == pytest.approx(best)
    assert threshold not in z


@given(rows)
def test_threshold_maximizes_the_balanced_accuracy(rows):
    z, y, c = scored(rows)
    best = max(balanced(y, z > t, c) for t in every_threshold(z))
    assert balanced(y, z > RocArea().cutoff(z, y, c), c) == pytest.approx(best)


@given(rows, st.integers(1, 9))
def test_threshold_for_count_with_ties(rows, k):
    z, y, c = scored(rows)
    for loss, count in [(Prbep(), np.sum(y > 0)), (PrecisionAtK(k), k), (RecallAtK(k), k)]:
        off = abs(np.sum(z > loss.cutoff(z, y, c)) - count)
        assert off == min(abs(np.sum(z > t) - count) for t in every_threshold(z))


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_thresholds_of_scores_of_any_size(size):
    z, y, c = size * np.array([1.0, 2.0, 3.0]), np.array([-1.0, 1.0, 1.0]), np.ones(3) / 3
    for loss in (FBeta(), Prbep(), RocArea(), PrecisionAtK(2)):
        assert np.sum(z > loss.cutoff(z, y, c)) == 2
    assert np.sum(z > PrecisionAtK(3).cutoff(z, y, c)) == 3


# ---------------------------------------------------------------- the fit
@pytest.mark.parametrize("loss", METRICS)
def test_objective_refers_to_scores_without_threshold(noisy, fits, loss):
    X, y = noisy
    model = fits[loss]
    signs, c = np.where(y == 1, 1.0, -1.0), np.full(len(y), 1 / len(y))
    z = model.decision_function(X) + model.threshold_
    value, _ = get_loss(loss).value_grad(z, signs, c)
    assert model.objective_ == pytest.approx(value + 0.005 * np.sum(model.coef_**2), rel=1e-9)
    assert 0 <= model.gap_ <= 1e-3 * model.objective_
    b = X @ model.coef_[0] - z
    np.testing.assert_allclose(b, b[0], atol=1e-9)
    if not loss.startswith("f"):
        assert b[0] == pytest.approx(0, abs=1e-9)  # J does not depend on the intercept, or there is none
    else:
        for shift in (-0.1, 0.1):
            other, _ = get_loss(loss).value_grad(z + shift, signs, c)
            assert other >= value


def test_predictions_maximize_the_metric(noisy, fits):
    X, y = noisy
    z = {loss: model.decision_function(X) for loss, model in fits.items()}
    predicted = {loss: z[loss] > 0 for loss in METRICS}
    for loss in METRICS:
        np.testing.assert_array_equal(fits[loss].predict(X), predicted[loss].astype(int))

    def best(loss, metric):
        return max(metric(y, z[loss] > t) for t in z[loss])

    for loss, beta in [("f1", 1.0), ("f_beta:beta=2", 2.0)]:
        score = fbeta_score(y, predicted[loss], beta=beta)
        assert score == pytest.approx(best(loss, partial(f_measure, beta=beta)))
    assert balanced_accuracy_score(y, predicted["roc_area"]) == pytest.approx(best("roc_area", balanced))
    assert predicted["prbep"].sum() == y.sum()
    assert predicted["precision_at_k:k=50"].sum() == predicted["recall_at_k:k=50"].sum() == 50


@pytest.mark.parametrize("loss", METRICS)
def test_threshold_is_zero_without_an_intercept(noisy, loss):
    X, y = noisy
    model = LinearClassifier(loss, alpha=1e-2, fit_intercept=False).fit(X, y)
    assert model.intercept_.tolist() == [0.0]
    assert model.threshold_ == 0
    np.testing.assert_allclose(model.decision_function(X), X @ model.coef_[0], atol=1e-12)


def test_threshold_is_zero_for_other_losses(noisy):
    model = LinearClassifier("hinge", alpha=1e-2).fit(*noisy)
    assert model.threshold_ == 0
    assert model.intercept_[0] != 0


# ---------------------------------------------------------------- weights
def test_pairwise_losses_support_weights(noisy):
    X, y = noisy
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    model = LinearClassifier("roc_area", alpha=0.1, tol=1e-8)
    weighted = clone(model).fit(X, y, sample_weight=weight)
    repeated = clone(model).fit(X.repeat(weight, axis=0), y.repeat(weight))
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-7)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-3)
    assert (weighted.predict(X) == repeated.predict(X)).mean() > 0.99
    plain, balanced = clone(model).fit(X, y), clone(model).set_params(class_weight="balanced").fit(X, y)
    assert balanced.objective_ == pytest.approx(plain.objective_, rel=1e-7)
    assert (balanced.predict(X) == plain.predict(X)).mean() > 0.99


@pytest.mark.parametrize("loss", COUNTING)
def test_losses_that_count_rows_refuse_weights(noisy, loss):
    X, y = noisy
    with pytest.raises(
        ValueError, match=r"counts rows, so all must weigh the same: fit without sample_weight"
    ):
        LinearClassifier(loss).fit(X, y, sample_weight=1 + y)
    with pytest.raises(ValueError, match=r"counts rows, so all must weigh the same.*class_weight"):
        LinearClassifier(loss, class_weight="balanced").fit(X, y)
    model = LinearClassifier(loss, alpha=1e-1)
    weighted_rows = np.arange(len(y)) % 3 > 0
    weighted_model = clone(model).fit(X, y, sample_weight=2.0 * weighted_rows)
    assert weighted_model.objective_ == pytest.approx(
        clone(model).fit(X[weighted_rows], y[weighted_rows]).objective_, rel=1e-3
    )
    assert weighted_model.n_samples_fit_ == len(y)
    assert clone(model).fit(X, y, sample_weight=np.full(len(y), 0.3)).weighted_


# ---------------------------------------------------------------- searches
SCORES = {
    "roc_area": lambda y, z: roc_auc_score(y, z),
    "prbep": lambda y, z: prbep_score(y, z),
    "f1": lambda y, z: fbeta_score(y, z > 0, beta=1),
    "f_beta:beta=2": lambda y, z: fbeta_score(y, z > 0, beta=2),
    "precision_at_k:k=50": lambda y, z: precision_at_k_score(y, z, k=50),
    "recall_at_k:k=50": lambda y, z: recall_at_k_score(y, z, k=50),
    "hinge": lambda y, z: np.mean(y == (z > 0)),
}


@pytest.mark.parametrize(
    "loss", [pytest.param(loss, marks=pytest.mark.slow if loss == "f_beta:beta=2" else ()) for loss in SCORES]
)
def test_a_search_scores_by_the_metric_of_the_loss(noisy, loss):
    X, y = noisy[0][::2], noisy[1][::2]
    folds = list(StratifiedKFold(2).split(X, y))
    search = LinearClassifierCV(loss, alphas=[1e-1, 1.0], cv=folds, tol=1e-4).fit(
        X, np.array(["no", "yes"])[y]
    )
    for k, (train, test) in enumerate(folds):
        for j, alpha in enumerate([1e-1, 1.0]):
            model = LinearClassifier(loss, alpha=alpha, tol=1e-4).fit(X[train], y[train])
            score = SCORES[loss](y[test], model.decision_function(X[test]))
            assert search.scores_[k, j] == pytest.approx(score, abs=0.02)
    best = search.best_estimator_
    assert search.threshold_ == best.threshold_
    np.testing.assert_array_equal(search.predict(X), best.predict(X))


@pytest.mark.parametrize("loss", ["f1", pytest.param("prbep", marks=pytest.mark.slow)])
def test_a_search_leaves_out_rows_without_weight(noisy, loss):
    X, y = noisy[0][::4], noisy[1][::4]
    weighted_rows, half = np.arange(len(y)) % 3 > 0, np.arange(len(y)) % 2 == 0
    search = LinearClassifierCV(loss, n_alphas=1, cv=[(half, ~half), (~half, half)])
    weighted = search.fit(X, y, sample_weight=0.5 * weighted_rows)
    folds = [(half[weighted_rows], ~half[weighted_rows]), (~half[weighted_rows], half[weighted_rows])]
    bare = clone(search).set_params(cv=folds).fit(X[weighted_rows], y[weighted_rows])
    np.testing.assert_array_equal(weighted.alphas_, bare.alphas_)
    np.testing.assert_allclose(weighted.scores_, bare.scores_, atol=1e-12)
    assert weighted.alpha_ == bare.alpha_


def test_weights_go_to_scorers_that_take_them(noisy):
    X, y = noisy[0][::8], noisy[1][::8]
    weight = 1.0 + np.arange(len(y)) % 2
    model = LinearClassifierCV(alphas=[1e-1], cv=2, scoring="prbep")
    assert 0 < model.fit(X, y, sample_weight=weight).best_score_ <= 1
    model.set_params(scoring=make_scorer(lambda y, predicted: np.mean(y == predicted)))
    assert 0 < model.fit(X, y, sample_weight=weight).best_score_ <= 1


def test_errors_name_the_fold(noisy):
    X, y = noisy
    search = LinearClassifierCV(alphas=[1e-1], cv=[(y < 1, y > 0)])
    with pytest.raises(ValueError, match=r"y holds only one class.*\(in fold 1 of 1; fewer folds may do\)"):
        search.fit(X, y)

    def refuse(model, X, y):
        raise ValueError("no score")

    # fewer folds do not help where all classes are in all folds, nor regressions
    with pytest.raises(ValueError, match=r"^no score \(in fold 1 of 2\)$"):
        LinearClassifierCV(alphas=[1e-1], cv=2, scoring=refuse).fit(X, y)
    with pytest.raises(ValueError, match=r"^no score \(in fold 1 of 2\)$"):
        LinearRegressorCV(alphas=[1e-1], cv=2, scoring=refuse).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"class_weight, or use the loss 'roc_area', which takes weights$"):
        LinearClassifierCV("f1", alphas=[1.0], class_weight="balanced").fit(X, y)
    with pytest.raises(ValueError, match="ndcg is no measure for classification: choose roc_area, prbep"):
        LinearClassifierCV(alphas=[1.0], scoring="ndcg").fit(X, y)


def test_f_measure_of_the_positive_class(noisy):
    X, y = noisy
    named = np.array(["no", "yes"])[y]
    model = LinearClassifier("f1", alpha=1e-2).fit(X, named)
    scorer = pickle.loads(pickle.dumps(get_scorer("f1")))
    assert scorer(model, X[y == 0], named[y == 0]) == 0  # without positive rows, the F measure is 0
    assert scorer(model, X, named) == pytest.approx(f_measure(y, model.predict(X) == "yes", 1.0))
    with pytest.raises(ValueError, match="F-beta is for two classes"):
        scorer(SimpleNamespace(classes_=np.arange(3)), X, y)


def test_scorers_by_name(noisy):
    X, y = noisy
    model = LinearClassifier("prbep", alpha=1e-2)
    named = np.array(["no", "yes"])[y]
    fitted = clone(model).fit(X, named)
    for name, measure in [
        ("prbep", prbep_score),
        ("precision_at_k:k=20", lambda y, z: precision_at_k_score(y, z, k=20)),
        ("recall_at_k", lambda y, z: recall_at_k_score(y, z, k=10)),
        ("roc_auc", roc_auc_score),
        ("roc_area", roc_auc_score),
        ("f1", lambda y, z: f_measure(y, z > 0, 1.0)),
        ("f_beta:beta=2", lambda y, z: f_measure(y, z > 0, 2.0)),
    ]:
        assert get_scorer(name)(fitted, X, named) == measure(y, fitted.decision_function(X))
    grid = {"alpha": [1e-2, 1.0], "loss": ["hinge", "prbep"]}
    search = GridSearchCV(model, grid, cv=2, scoring=get_scorer("prbep")).fit(X, named)
    assert search.best_score_ > 0.85
    ours = LinearClassifierCV(alphas=[1e-1], cv=3, scoring="prbep", tol=1e-6).fit(X, named)
    theirs = cross_val_score(
        LinearClassifier(alpha=1e-1, tol=1e-6), X, named, cv=3, scoring=get_scorer("prbep")
    )
    np.testing.assert_allclose(ours.scores_[:, 0], theirs, atol=0.01)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("accuracies", "there is no scorer named 'accuracies'; the names are roc_area, prbep, f1"),
        ("prbep:k=3", "Prbep has no parameter k; it has none"),
        ("ndcg:m=3", "Ndcg has no parameter m; it has k"),
        ("ndcg:k", "'ndcg:k' does not read as a scorer; write it like 'precision_at_k:k=50'"),
    ],
)
def test_errors_in_names_of_scorers(name, message):
    with pytest.raises(ValueError, match=message):
        get_scorer(name)


# ---------------------------------------------------------------- kernels and files
@pytest.mark.parametrize("loss", METRICS)
def test_kernel_machines_optimize_metrics(noisy, loss):
    X, y = noisy[0][::4], noisy[1][::4]
    loss = loss.replace("50", "20")
    model = KernelClassifier(loss, alpha=1e-2).fit(X, y)
    assert 0 <= model.gap_ <= 1e-3 * model.objective_
    predicted = model.predict(X)
    z = model.decision_function(X) + model.threshold_
    assert get_loss(loss).cutoff(z, 2.0 * y - 1, np.full(len(y), 1 / len(y))) == pytest.approx(
        model.threshold_, abs=1e-6
    )
    if loss.endswith("20"):
        assert predicted.sum() == 20
    else:
        assert balanced_accuracy_score(y, predicted) > 0.85


@pytest.mark.parametrize("kernel", ["linear", "precomputed"])
def test_kernel_machines_leave_out_rows_without_weight(noisy, kernel):
    X, y = noisy[0][::8], noisy[1][::8]
    weighted_rows = np.arange(len(y)) % 3 > 0
    given, few = (X, X) if kernel == "linear" else (X @ X.T, (X @ X.T)[:, weighted_rows])
    model = KernelClassifier("prbep", kernel=kernel, alpha=1e-1).fit(
        given, y, sample_weight=2.0 * weighted_rows
    )
    bare = KernelClassifier("prbep", kernel=kernel, alpha=1e-1).fit(few[weighted_rows], y[weighted_rows])
    assert model.objective_ == pytest.approx(bare.objective_, rel=1e-9)
    np.testing.assert_allclose(model.decision_function(given), bare.decision_function(few), atol=1e-9)
    assert weighted_rows[model.support_].all()


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *((LinearClassifier, loss) for loss in METRICS),
        (KernelClassifier, "roc_area"),
        (KernelClassifier, "f1"),
    ],
)
def test_files_keep_the_threshold(noisy, kind, loss, tmp_path):
    X, y = noisy[0][::4], noisy[1][::4]
    model = kind(loss, alpha=1e-1).fit(X, y)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.threshold_ == model.threshold_
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_old_files_without_threshold(noisy, tmp_path):
    model = LinearClassifier(alpha=1e-1).fit(*noisy)
    save_model(model, tmp_path / "model")
    arrays, meta = load_arrays(tmp_path / "model", "model")
    del meta["fitted"]["threshold"], meta["sha256"]
    save_arrays(tmp_path / "model", arrays, meta | {"sha256": checksum(arrays, meta)})
    loaded = load_model(tmp_path / "model")
    assert loaded.threshold_ == 0
    np.testing.assert_array_equal(loaded.predict(noisy[0]), model.predict(noisy[0]))


@pytest.mark.parametrize("inner", [RocArea(), Prbep()])
def test_thresholds_of_smoothed_losses(noisy, inner, tmp_path):
    X, y = noisy
    model = LinearClassifier(Smoothed(inner, mu=0.1), alpha=1e-2).fit(X, y)
    sharp = LinearClassifier(inner, alpha=1e-2).fit(X, y)
    assert model.lower_bound_ <= sharp.objective_
    assert model.result_.status == "converged"
    assert model.intercept_[0] == -model.threshold_
    assert abs(model.score(X, y) - sharp.score(X, y)) < 0.03
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").loss == model.loss
    search = LinearClassifierCV(Smoothed(inner, mu=0.1), alphas=[1e-1], cv=2).fit(X, y)
    peer = LinearClassifierCV(inner, alphas=[1e-1], cv=2).fit(X, y)
    assert search.best_score_ == pytest.approx(peer.best_score_, abs=0.03)


def test_solvers_agree(noisy):
    X, y = noisy
    for loss in ("roc_area", "prbep"):
        fits = [LinearClassifier(loss, alpha=0.1, solver=s).fit(X, y) for s in ("bundle", "smoothing")]
        assert max(m.lower_bound_ for m in fits) <= min(m.objective_ for m in fits)
    assert riskmin.LinearClassifier(RocArea(), alpha=0.1).fit(X, y).gap_ >= 0
