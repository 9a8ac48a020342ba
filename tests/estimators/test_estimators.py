"""Estimators: scikit-learn's checks, the optima of its solvers, inputs and errors."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC, LinearSVR
from sklearn.utils.estimator_checks import parametrize_with_checks

import riskmin
from riskmin import LinearClassifier, LinearRegressor, NoveltyDetector, TrivialModelWarning
from riskmin.estimators._common import fit
from riskmin.solvers import SOLVERS, get_solver
from riskmin.testing import expected_failed_checks

# One of scikit-learn's checks requires that predictions after weighting and repeating rows agree to 1e-7.
CENTRAL = [
    LinearClassifier(),
    LinearClassifier("logistic"),
    LinearRegressor(),
    LinearRegressor("quantile"),
    NoveltyDetector(),
]
OTHERS = [
    LinearClassifier("squared_hinge"),
    LinearClassifier(regularizer="l1"),
    LinearClassifier(solver=riskmin.Smoothing(), class_weight="balanced", n_jobs=2),
    LinearClassifier("logistic", solver=riskmin.Lbfgs(memory=5), warm_start=True),
    LinearRegressor("huber"),
    LinearRegressor("epsilon_insensitive"),
    LinearRegressor("poisson"),
    NoveltyDetector(solver="bundle", tol=1e-6),
]


@parametrize_with_checks(CENTRAL, expected_failed_checks=expected_failed_checks)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("regularizer", ["l2", "l1"])
def test_weights_and_repeated_rows_give_the_same_bits(regularizer):
    """Also in another order, and where the minimum is not unique."""
    rng = np.random.default_rng(0)
    X, y, s = rng.normal(size=(40, 3)), rng.integers(0, 3, 40), rng.integers(0, 4, 40)
    order = rng.permutation(40)
    model = LinearClassifier("hinge", regularizer=regularizer, alpha=1e-3)
    one = clone(model).fit(X[order], y[order], s[order])
    many = clone(model).fit(np.repeat(X, s, axis=0), np.repeat(y, s))
    np.testing.assert_array_equal(one.coef_, many.coef_)
    np.testing.assert_array_equal(one.intercept_, many.intercept_)
    assert one.n_samples_fit_ == 40
    assert one.gap_ <= one.tol * one.objective_


@pytest.mark.exhaustive
@parametrize_with_checks(OTHERS, expected_failed_checks=expected_failed_checks)
def test_scikit_learn_checks_of_other_estimators(estimator, check):
    check(estimator)


# ---------------------------------------------------------------- data
@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    return StandardScaler().fit_transform(X), y / 10


def objective(loss, X, y, coef, intercept, alpha):
    """J by its formula, in NumPy."""
    z = X @ np.ravel(coef) + np.ravel(intercept)[0]
    return loss(z, y).mean() + alpha / 2 * np.sum(np.square(coef))


# ---------------------------------------------------------------- optima of other packages
HINGE = lambda z, y: np.maximum(0, 1 - y * z)  # noqa: E731
SQUARED_HINGE = lambda z, y: np.maximum(0, 1 - y * z) ** 2 / 2  # noqa: E731
LOGISTIC = lambda z, y: np.logaddexp(0, -y * z)  # noqa: E731
SQUARED = lambda z, y: (z - y) ** 2 / 2  # noqa: E731
PINBALL = lambda z, y: np.maximum(0.8 * (y - z), -0.2 * (y - z))  # noqa: E731
TUBE = lambda z, y: np.maximum(0, np.abs(z - y) - 0.1)  # noqa: E731
POISSON = lambda z, y: np.exp(z) - y * z + y * np.log(y) - y  # noqa: E731

CLASSIFIERS = [
    ("hinge", HINGE, 1e-2, lambda C: SVC(kernel="linear", C=C, tol=1e-6), 1.0),
    (
        "hinge",
        HINGE,
        1e-1,
        lambda C: LinearSVC(loss="hinge", C=C, fit_intercept=False, max_iter=100_000),
        1.0,
    ),
    ("squared_hinge", SQUARED_HINGE, 1e-2, lambda C: LinearSVC(C=C, fit_intercept=False), 0.5),
    ("logistic", LOGISTIC, 1e-3, lambda C: LogisticRegression(C=C, tol=1e-8, max_iter=1000), 1.0),
]


@pytest.mark.parametrize(("name", "loss", "alpha", "peer", "factor"), CLASSIFIERS)
def test_classifier_reaches_the_optimum_at_the_converted_C(cancer, name, loss, alpha, peer, factor):
    X, y = cancer
    theirs = peer(factor / (alpha * len(y))).fit(X, y)
    fit_intercept = getattr(theirs, "fit_intercept", True)
    ours = LinearClassifier(name, alpha=alpha, tol=1e-5, fit_intercept=fit_intercept).fit(X, y)
    signs = np.where(y == 1, 1.0, -1.0)
    J = objective(loss, X, signs, theirs.coef_, theirs.intercept_, alpha)
    assert ours.lower_bound_ <= J
    assert ours.objective_ <= J * (1 + 1e-5)
    assert ours.objective_ == pytest.approx(
        objective(loss, X, signs, ours.coef_, ours.intercept_, alpha), rel=1e-12
    )
    assert (ours.predict(X) == theirs.predict(X)).mean() > 0.99


REGRESSORS = [
    ("squared", SQUARED, 1e-2, lambda a, n: Ridge(alpha=a * n)),
    ("quantile:level=0.8", PINBALL, 1e-2, lambda a, n: QuantileRegressor(quantile=0.8, alpha=0)),
    ("epsilon_insensitive", TUBE, 1e-2, lambda a, n: LinearSVR(epsilon=0.1, C=1 / (a * n), max_iter=100_000)),
    ("poisson", POISSON, 1e-3, lambda a, n: PoissonRegressor(alpha=a, tol=1e-8, max_iter=1000)),
]


@pytest.mark.parametrize(("name", "loss", "alpha", "peer"), REGRESSORS)
def test_regressor_reaches_the_optimum_at_the_converted_alpha(diabetes, name, loss, alpha, peer):
    X, y = diabetes
    theirs = peer(alpha, len(y)).fit(X, y)
    ours = LinearRegressor(name, alpha=alpha, tol=1e-5).fit(X, y)
    J = objective(loss, X, y, theirs.coef_, theirs.intercept_, alpha)
    assert ours.lower_bound_ <= J
    assert ours.objective_ <= J * (1 + 1e-5)
    assert ours.objective_ == pytest.approx(
        objective(loss, X, y, ours.coef_, ours.intercept_, alpha), rel=1e-12
    )
    assert isinstance(ours.intercept_, float)


def test_poisson_predicts_means(diabetes):
    X, y = diabetes
    ours = LinearRegressor("poisson", alpha=1e-3, tol=1e-9).fit(X, y)
    theirs = PoissonRegressor(alpha=1e-3, tol=1e-8, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-4)


def test_ridge_coefficients(diabetes):
    X, y = diabetes
    ours = LinearRegressor(alpha=1e-2, tol=1e-12).fit(X, y)
    theirs = Ridge(alpha=1e-2 * len(y)).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y))


# ---------------------------------------------------------------- weights
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_integer_weights_are_repeated_rows(cancer, loss):
    X, y = cancer
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    weighted = LinearClassifier(loss, alpha=0.1, tol=1e-9).fit(X, y, sample_weight=weight)
    repeated = LinearClassifier(loss, alpha=0.1, tol=1e-9).fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-4)
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=2e-9)
    assert weighted.weighted_
    assert not repeated.weighted_


def test_class_weight_is_sample_weight(cancer):
    X, y = cancer
    weight = np.random.default_rng(0).uniform(size=len(y))
    model = LinearClassifier("logistic", alpha=0.01, tol=1e-9)
    by_class = clone(model).set_params(class_weight={0: 3.0}).fit(X, y, sample_weight=weight)
    by_row = clone(model).fit(X, y, sample_weight=weight * np.where(y == 0, 3.0, 1.0))
    np.testing.assert_allclose(by_class.coef_, by_row.coef_)


def test_balanced_class_weight_counts_weights_as_rows(cancer):
    X, y = cancer
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    model = LinearClassifier("logistic", alpha=0.01, tol=1e-9, class_weight="balanced")
    weighted = clone(model).fit(X, y, sample_weight=weight)
    repeated = clone(model).fit(X.repeat(weight, axis=0), y.repeat(weight))
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-8)
    plain = clone(model).fit(X, y)
    factors = len(y) / (2 * np.bincount(y))
    same = clone(model).set_params(class_weight=None).fit(X, y, sample_weight=factors[y])
    np.testing.assert_allclose(plain.coef_, same.coef_)


def test_rows_of_weight_zero_have_no_effect(cancer):
    X, y = cancer
    labels = y.astype(object).astype(str)
    labels[:20] = "a third class"
    weight = np.ones(len(y))
    weight[:20] = 0
    model = LinearClassifier("logistic", alpha=0.1, tol=1e-9).fit(X, labels, sample_weight=weight)
    without = LinearClassifier("logistic", alpha=0.1, tol=1e-9).fit(X[20:], labels[20:])
    assert model.classes_.tolist() == ["0", "1"]
    np.testing.assert_allclose(model.coef_, without.coef_, rtol=1e-6)


def test_intercept_is_the_midpoint_of_the_optimal_ones():
    # any b between 1 and 3 is a median of these labels
    X, y = np.zeros((4, 1)), np.array([0.0, 1.0, 3.0, 7.0])
    assert LinearRegressor("absolute", alpha=1.0).fit(X, y).intercept_ == pytest.approx(2.0)
    assert LinearRegressor("absolute", alpha=1.0).fit(X, y + 100).intercept_ == pytest.approx(102.0)
    signs = np.array([-1, 1, -1, 1])
    assert LinearClassifier(alpha=1.0).fit(X, signs).intercept_[0] == pytest.approx(0.0, abs=1e-9)


def test_bounds_are_valid_with_rows_at_nonsmooth_points():
    # separable, repeated rows: at the optimum every row with nonzero weight is on its margin
    rng = np.random.RandomState(42)
    X, y, weight = rng.rand(15, 30), rng.randint(0, 3, size=15) > 0, rng.randint(0, 5, size=15)
    fits = [
        LinearClassifier(solver=solver, tol=1e-6).fit(X.repeat(weight, axis=0), y.repeat(weight))
        for solver in ("bundle", "bmrm")
    ]
    fits += [LinearClassifier(tol=1e-6).fit(X, y, sample_weight=weight)]
    assert max(m.lower_bound_ for m in fits) <= min(m.objective_ for m in fits)


# ---------------------------------------------------------------- forms of X and y
def test_all_forms_of_X_give_the_same_model(cancer):
    X, y = cancer
    X = X.astype(np.float32)
    forms = [
        X.astype(np.float64),
        np.asfortranarray(X),
        X,
        sp.csr_array(X),
        sp.csc_array(X.astype(np.float64)),
        sp.csr_matrix(X),
        pd.DataFrame(X),
        pl.DataFrame(X),
    ]
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    first = LinearClassifier("logistic", alpha=0.01, tol=1e-9).fit(forms[0], y)
    for form in [*forms[1:], wide]:
        model = clone(first).fit(form, y)
        # scikit-learn converts frames of polars to float64
        double = form is forms[4] or isinstance(form, pl.DataFrame)
        assert model.coef_.dtype == (np.float64 if double else np.float32)
        assert model.objective_ == pytest.approx(first.objective_, rel=1e-8)
        np.testing.assert_allclose(model.coef_, first.coef_, rtol=1e-3, atol=1e-5)
        z = first.decision_function(forms[0])
        if not hasattr(form, "columns"):
            np.testing.assert_allclose(first.decision_function(form), z, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "form",
    [np.ascontiguousarray, np.asfortranarray, lambda X: X.astype(np.float32), sp.csr_array, sp.csc_matrix],
)
def test_X_is_not_copied(cancer, form, monkeypatch):
    seen = []

    def spy(X, *args, **kwargs):
        seen.append(X)
        return riskmin.linear_risk(X, *args, **kwargs)

    monkeypatch.setattr(fit, "linear_risk", spy)
    X = form(cancer[0])
    LinearClassifier(alpha=1.0).fit(X, cancer[1])
    stored = (lambda A: A.data) if sp.issparse(X) else (lambda A: A)
    assert np.shares_memory(stored(seen[0]), stored(X))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_feature_names(frame):
    X = {"height": [1.0, 2.0, 3.0, 4.5], "width": [0.0, 1.0, 0.5, 2.0]}
    y = ["low", "low", "high", "high"]
    model = LinearClassifier().fit(frame(X), y)
    assert model.feature_names_in_.tolist() == ["height", "width"]
    assert model.classes_.tolist() == ["high", "low"]
    assert model.predict(frame(X)).tolist() == y
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame({"width": X["width"], "height": X["height"]}))
    NoveltyDetector().fit(frame(X)).predict(frame(X))


@pytest.mark.parametrize("labels", [[-1, 1], [2.0, 7.0], [False, True], ["no", "yes"]])
def test_any_two_labels(cancer, labels):
    X, y = cancer
    model = LinearClassifier(alpha=0.1).fit(X, np.array(labels)[y])
    assert model.classes_.tolist() == labels
    assert model.coef_.shape == (1, X.shape[1])
    assert model.intercept_.shape == (1,)
    assert model.score(X, np.array(labels)[y]) > 0.95


def test_probabilities_belong_to_the_logistic_loss(cancer):
    X, y = cancer
    model = LinearClassifier("logistic", alpha=1e-3).fit(X, y)
    peer = LogisticRegression(C=1 / (1e-3 * len(y)), tol=1e-8, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), peer.predict_proba(X), atol=0.03)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(1.0)
    assert np.isfinite(model.predict_log_proba(1e4 * X)).all()
    assert not hasattr(LinearClassifier("hinge"), "predict_proba")
    assert hasattr(LinearClassifier(riskmin.Logistic()), "predict_log_proba")


# ---------------------------------------------------------------- scikit-learn's tools
@pytest.mark.slow
def test_pipeline_grid_search_and_routing(cancer):
    X, y = cancer
    pipe = make_pipeline(StandardScaler(), LinearClassifier())
    grid = {"linearclassifier__alpha": [0.01, 1.0], "linearclassifier__loss": ["hinge", riskmin.Logistic()]}
    search = GridSearchCV(pipe, grid, cv=2, n_jobs=2).fit(X, y)
    assert search.best_score_ > 0.95
    with sklearn.config_context(enable_metadata_routing=True):
        model = LinearClassifier().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        routed = GridSearchCV(model, {"alpha": [1.0]}, cv=2).fit(X, y, sample_weight=np.ones(len(y)))
    assert routed.best_estimator_.weighted_


def test_one_vs_rest():
    X, y = load_iris(return_X_y=True)
    model = OneVsRestClassifier(LinearClassifier("logistic")).fit(X, y)
    assert model.score(X, y) > 0.9
    assert [one.coef_.shape for one in model.estimators_] == [(1, 4)] * 3
    assert OneVsRestClassifier(LinearClassifier("exponential")).fit(X, y).score(X, y) > 0.9


def test_clone_pickle_and_joblib(cancer, tmp_path):
    X, y = cancer
    model = LinearClassifier(riskmin.Hinge(margin=2.0), alpha=0.1, solver=riskmin.Bundle(keep=5)).fit(X, y)
    assert clone(model).get_params() == model.get_params()
    joblib.dump(model, tmp_path / "model")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")):
        np.testing.assert_array_equal(copy.decision_function(X), model.decision_function(X))
        assert copy.gap_ == model.gap_


# ---------------------------------------------------------------- the fit
@pytest.mark.parametrize("model", [LinearClassifier(alpha=0.01), LinearRegressor("huber"), NoveltyDetector()])
def test_attributes_of_the_certificate(cancer, model):
    around = pytest.warns(TrivialModelWarning, match="rows lie on all sides of the origin")
    with around if isinstance(model, NoveltyDetector) else contextlib.nullcontext():
        model = clone(model).fit(*cancer)
    assert model.gap_ == model.objective_ - model.lower_bound_
    assert 0 <= model.gap_ <= 1e-3 * model.objective_
    assert model.result_.status == "converged"
    assert model.n_iter_ == model.result_.n_iter == len(model.result_.trace)
    assert isinstance(model.n_iter_, int)
    assert model.n_samples_fit_ == len(cancer[1])


def bound_by(monkeypatch, lower):
    """Replace the lower bound of every run."""

    def minimize(*args, **settings):
        result = riskmin.minimize(*args, **settings)
        return dataclasses.replace(result, lower=lower(result.value))

    monkeypatch.setattr(fit, "minimize", minimize)


@pytest.mark.parametrize("excess", [1e-6, 1.0])
def test_bound_above_the_objective_raises(cancer, monkeypatch, excess):
    bound_by(monkeypatch, lambda value: value * (1 + excess))
    with pytest.raises(RuntimeError, match=r"the certificate is false: the lower bound .* is above"):
        LinearClassifier(alpha=0.1).fit(*cancer)


def test_rounding_does_not_invalidate_the_certificate(cancer, monkeypatch):
    bound_by(monkeypatch, lambda value: value * (1 + 1e-10))
    LinearClassifier(alpha=0.1).fit(*cancer)
    bound_by(monkeypatch, lambda value: 1e-20)
    with pytest.warns(
        TrivialModelWarning, match="y is 1000 in every row"
    ):  # the intercept alone fits all rows
        model = LinearRegressor(alpha=1e-3).fit(np.eye(3), np.full(3, 1e3))
    assert model.objective_ < 1e-20


@pytest.mark.parametrize("model", CENTRAL)
def test_task_is_not_a_parameter(model):
    assert "task" not in model.get_params()
    assert model.task == clone(model).task
    assert model.task in ("classification", "regression", "novelty")


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_warm_start_needs_fewer_evaluations(cancer, loss):
    X, y = cancer
    model = LinearClassifier(loss, alpha=1e-2, warm_start=True).fit(X, y)
    cold = LinearClassifier(loss, alpha=0.8e-2).fit(X, y)
    warm = model.set_params(alpha=0.8e-2).fit(X, y)
    # an iteration of Newton's method on few rows is several steps
    assert sum(row["evaluations"] for row in warm.result_.trace) < sum(
        row["evaluations"] for row in cold.result_.trace
    )
    with pytest.raises(ValueError, match="30 features, but X has 29"):
        model.fit(X[:, :-1], y)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_n_jobs_does_not_change_results(loss):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50_000, 64))
    y = X[:, 0] + rng.standard_normal(len(X)) > 0
    one, two, all_ = (LinearClassifier(loss, alpha=0.1, tol=1e-2, n_jobs=n).fit(X, y) for n in (None, 2, -1))
    for other in (two, all_):
        np.testing.assert_array_equal(one.coef_, other.coef_)
        np.testing.assert_array_equal(one.intercept_, other.intercept_)
        assert (one.objective_, one.lower_bound_) == (other.objective_, other.lower_bound_)


class SquareRoot:
    """A user-defined loss, sqrt(1 + (z - y)^2) - 1."""

    separable = True

    def value_grad(self, z, y, c):
        r = z - y
        s = np.sqrt(1 + r * r)
        return c @ (s - 1), c * r / s


class Blocks(SquareRoot):
    separable = False


def test_user_defined_loss(diabetes):
    X, y = diabetes
    model = LinearRegressor(SquareRoot(), tol=1e-4).fit(X, y)
    assert model.gap_ <= 1e-4 * model.objective_
    assert model.score(X, y) > 0.45
    assert LinearClassifier(SquareRoot()).fit(X, y > 15).score(X, y > 15) > 0.7
    assert LinearRegressor(Blocks(), fit_intercept=False).fit(X, y).gap_ >= 0
    together = LinearRegressor(Blocks(), tol=1e-4).fit(X, y)
    assert together.lower_bound_ <= model.objective_ <= together.objective_ * (1 + 1e-4)
    assert together.intercept_ == pytest.approx(model.intercept_, rel=1e-2)


# those of chains and of contingency tables are for no loss of numbers
OF_ROWS = [name for name in SOLVERS if not name.startswith(("chain", "contingency"))]


@pytest.mark.parametrize("solver", [*OF_ROWS, riskmin.Bundle(keep=3), riskmin.Lbfgs()])
def test_every_solver_reaches_the_same_objective(diabetes, solver):
    X, y = diabetes
    # these need an absolute value in the regularizer
    reg = "elastic" if solver in ("owlqn", "interior_point") else "l2"
    # smoothing needs a nonsmooth loss, conjugate gradients the squared one
    loss = {"smoothing": "absolute", "excessive_gap": "absolute", "dual_conjugate_gradient": "squared"}.get(
        solver if isinstance(solver, str) else "", "huber"
    )
    # these need a problem without one
    intercept = solver not in ("dual", "dual_gauss_seidel", "excessive_gap", "dual_conjugate_gradient")
    y = y if intercept else y - y.mean()
    alpha = 0.1 if reg == "elastic" else 1.0  # at alpha = 1 all weights are zero
    problem = {"alpha": alpha, "regularizer": reg, "fit_intercept": intercept}
    model = LinearRegressor(loss, **problem, solver=solver).fit(X, y)
    best = LinearRegressor(loss, **problem, tol=1e-8).fit(X, y)
    assert model.lower_bound_ <= best.objective_ <= model.objective_ * (1 + 1e-8)
    if solver not in (None, "auto"):
        assert type(get_solver(solver)).__name__ in model.result_.solver


def test_callback_gets_every_iteration_and_can_stop(cancer):
    rows = []
    model = LinearClassifier(callback=lambda iterate, row: rows.append(row) or len(rows) == 3)
    with pytest.warns(ConvergenceWarning, match="status 'interrupted'.*fit again with warm_start=True"):
        model.fit(*cancer)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert model.n_iter_ == 3
    assert model.predict(cancer[0]).shape == cancer[1].shape


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (
            {"max_iter": 2},
            "status 'max_iter' at a certified relative gap of .*, above tol=0.001: raise max_iter",
        ),
        ({"max_seconds": 1e-9}, "status 'max_seconds' at .*: raise max_seconds"),
    ],
)
def test_fit_without_convergence_warns(cancer, limit, message):
    model = LinearClassifier(**limit)
    with pytest.warns(ConvergenceWarning, match=message) as caught:
        model.fit(*cancer)
    assert caught[0].filename == __file__
    assert model.gap_ > 1e-3 * model.objective_


def test_a_checkpoint_is_resumed(cancer, tmp_path):
    file = tmp_path / "run"
    with pytest.warns(ConvergenceWarning):
        LinearClassifier(checkpoint=file, max_iter=4).fit(*cancer)
    resumed = LinearClassifier(checkpoint=file).fit(*cancer)
    assert resumed.result_.trace[3]["iteration"] == 4
    assert resumed.objective_ == pytest.approx(LinearClassifier().fit(*cancer).objective_, rel=1e-3)


def test_verbose_shows_progress_and_calls_back(cancer, capfd, monkeypatch):
    monkeypatch.setattr("riskmin.report.progress.Progress.LOG_LINE_SECONDS", 0.0)
    monkeypatch.setattr(
        "riskmin.report.progress.Progress.LIVE_UPDATE_SECONDS", 0.0
    )  # otherwise a short fit prints nothing
    rows = []
    LinearClassifier(verbose=True, callback=lambda iterate, row: rows.append(row)).fit(*cancer)
    shown = capfd.readouterr()
    assert "gap" in shown.err
    assert not shown.out
    assert rows


# ---------------------------------------------------------------- novelty
def test_novelty_contamination_and_weights():
    X, digit = load_digits(return_X_y=True)
    X = X[digit == 0]
    model = NoveltyDetector(contamination=0.2).fit(X)
    assert (model.predict(X) == -1).sum() == int(0.2 * len(X))
    np.testing.assert_array_equal(model.decision_function(X), model.score_samples(X) - model.offset_)
    np.testing.assert_array_equal(model.fit_predict(X), model.predict(X))
    weight = np.zeros(len(X))
    weight[:50] = 2
    half = NoveltyDetector().fit(X, sample_weight=weight)
    assert (half.predict(X[:50]) == -1).sum() == 5
    assert not hasattr(half, "intercept_")


# ---------------------------------------------------------------- errors
GOOD_X, GOOD_Y = np.array([[1.0, 2.0], [0.0, 1.0], [2.0, 0.5]]), np.array([0, 1, 1])


def _with(value):
    X = GOOD_X.copy()
    X[1, 0] = value
    return X


@pytest.mark.parametrize(
    ("model", "X", "y", "message"),
    [
        (LinearClassifier(), _with(np.nan), GOOD_Y, r"X holds NaN or infinity \(row 1, column 0\)"),
        (
            LinearClassifier(),
            sp.csr_array(_with(np.inf)),
            GOOD_Y,
            r"X holds NaN or infinity \(row 1, column 0\)",
        ),
        (LinearRegressor(), GOOD_X, [1.0, np.nan, 2.0], "Input y contains NaN"),
        (LinearClassifier(), GOOD_X, [3, 3, 3], "y holds only one class, 3, but two are needed"),
        (
            LinearClassifier("exponential"),
            GOOD_X,
            [1, 2, 3],
            "Only binary.*use 'hinge', .*, or wrap the model in sklearn.multiclass",
        ),
        (LinearClassifier(), GOOD_X, [0.1, 0.2, 0.3], "Unknown label type: continuous"),
        (LinearClassifier(), np.empty((0, 2)), [], r"0 sample\(s\)"),
        (LinearRegressor("poisson"), GOOD_X, [1, -2, 3], "Poisson needs y >= 0, but y holds -2"),
        (
            LinearClassifier("squared"),
            GOOD_X,
            GOOD_Y,
            "Squared is a loss for regression.*: use LinearRegressor",
        ),
        (LinearRegressor("hinge"), GOOD_X, GOOD_Y, "a loss for classification.*: use LinearClassifier"),
        (LinearClassifier(riskmin.Novelty()), GOOD_X, GOOD_Y, "for novelty.*: use NoveltyDetector"),
        (LinearClassifier("hinges"), GOOD_X, GOOD_Y, "no loss named 'hinges'; the names are hinge, "),
        (LinearClassifier(riskmin.Hinge), GOOD_X, GOOD_Y, "Hinge is a class"),
        (
            LinearClassifier(solver="sgd"),
            GOOD_X,
            GOOD_Y,
            "no solver named 'sgd'; the names are accelerated_gradient, augmented_lagrangian, auto, bmrm",
        ),
        (LinearClassifier(solver=riskmin.Bundle), GOOD_X, GOOD_Y, "Bundle is a class, not a solver"),
        (
            LinearClassifier(alpha=-1),
            GOOD_X,
            GOOD_Y,
            "alpha=-1, but LinearClassifier needs alpha to be a finite",
        ),
        (LinearClassifier(tol=-1.0), GOOD_X, GOOD_Y, "tol=-1.0, but"),
        (LinearClassifier(max_iter=0), GOOD_X, GOOD_Y, "max_iter=0, but"),
        (LinearClassifier(max_iter=np.inf), GOOD_X, GOOD_Y, "max_iter=inf, but"),
        (LinearClassifier(n_jobs="a"), GOOD_X, GOOD_Y, "n_jobs='a', but .* None or an integer other than 0"),
        (LinearClassifier(n_jobs=0), GOOD_X, GOOD_Y, "n_jobs=0, but"),
        (LinearClassifier(max_seconds="1"), GOOD_X, GOOD_Y, "max_seconds='1', but"),
        (LinearClassifier(class_weight={0: 0.0}), GOOD_X, GOOD_Y, "both classes a finite weight > 0"),
        (NoveltyDetector(contamination=0.6), GOOD_X, None, r"contamination to be a number in \(0, 0.5\]"),
    ],
)
def test_errors_of_fit(model, X, y, message):
    with pytest.raises(ValueError, match=message) as caught:
        model.fit(X, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1.0, 1.0], "sample_weight has shape"),
        ([1.0, -1.0, 1.0], "weights must be >= 0"),
        ([-1.0, -1.0, -1.0], "weights must be >= 0"),
        ([-1.0, 1.0, 1.0], "weights must be >= 0"),
        ([np.nan, np.nan, 1.0], "sample_weight holds NaN, infinite or negative numbers"),
        ([np.inf, 1.0, 1.0], "sample_weight holds NaN, infinite or negative numbers"),
        ([0.0, 0.0, 0.0], "sample_weight is zero for every row"),
    ],
)
@pytest.mark.parametrize("model", [LinearClassifier(), LinearRegressor(), NoveltyDetector()])
def test_errors_in_weights(model, weight, message):
    with pytest.raises(ValueError, match=message):
        clone(model).fit(GOOD_X, GOOD_Y, sample_weight=weight)


def test_both_classes_must_have_weight():
    message = "y holds only one class, 0, in the rows whose weight is not zero"
    with pytest.raises(ValueError, match=message):
        LinearClassifier().fit(GOOD_X, GOOD_Y, sample_weight=[1.0, 0.0, 0.0])


def test_errors_in_predict():
    with pytest.raises(NotFittedError):
        LinearRegressor().predict(GOOD_X)
    model = LinearRegressor().fit(GOOD_X, GOOD_Y)
    with pytest.raises(ValueError, match=r"X holds NaN or infinity \(row 1, column 0\)"):
        model.predict(_with(np.nan))
    with pytest.raises(ValueError, match=r"X holds numbers too large to score \(row 1\)"):
        model.set_params(alpha=1e-9).fit(GOOD_X, 1e9 * GOOD_Y).predict(_with(1e308))
    with pytest.raises(ValueError, match="X has 1 features"):
        model.predict(GOOD_X[:, :1])


@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_columns_of_weight_zero_are_validated(form, bad):
    X = np.column_stack([GOOD_X, np.zeros(3)])  # a feature that is always zero has weight zero
    model = LinearClassifier(alpha=0.1).fit(form(X), GOOD_Y)
    assert model.coef_[0, 2] == 0
    X[1, 2] = bad
    with pytest.raises(ValueError, match=r"X holds NaN or infinity \(row 1, column 2\)"):
        model.predict(form(X))


def test_least_squares_with_a_tiny_alpha(diabetes):
    X, y = diabetes
    ours = LinearRegressor(alpha=1e-9, tol=1e-6).fit(X, y)
    assert ours.score(X, y) == pytest.approx(LinearRegression().fit(X, y).score(X, y), abs=1e-4)


def test_errors_name_rows_as_they_were_given():
    """Equal rows are merged before small fits."""
    X = np.random.default_rng(0).normal(size=(50, 3))
    X[20, 1] = np.nan
    with pytest.raises(ValueError, match="row 40, column 1"):
        LinearClassifier().fit(np.r_[X[:10], X[:10], X], np.arange(70) % 2)
    with pytest.raises(ValueError, match="y holds 'a', 'b', 'c'"):
        LinearRegressor().fit(np.eye(3), ["a", "b", "c"])
