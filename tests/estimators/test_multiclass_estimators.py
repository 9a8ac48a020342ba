"""Multiclass and multi-output estimators: optima of other packages, weights, files, the command."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, MultiTaskLasso, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import riskmin
from riskmin import (
    L1,
    L2,
    KernelClassifier,
    KernelRegressor,
    LinearClassifier,
    LinearClassifierCV,
    LinearRegressor,
    LinearRegressorCV,
    MulticlassHinge,
    MulticlassSquaredHinge,
    MultivariateSquared,
    Objective,
    OrdinalClassifier,
    Softmax,
    TrivialModelWarning,
    lam_max,
    linear_risk,
    load_model,
    minimize,
    save_model,
)
from riskmin.cli import main
from riskmin.core.persist import FileError
from riskmin.estimators._common.outputs import combine_results

X, Y = load_iris(return_X_y=True)
X = scale(X)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
COST = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 1.0], [3.0, 2.0, 0.0]])

D, PROGRESS = load_diabetes(return_X_y=True)
D = scale(D)
TARGETS = np.column_stack([PROGRESS / 50, D[:, 2] + 0.1 * D[:, 0] ** 2, np.abs(D[:, 8])])


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


MULTICLASS_MODELS = [
    LinearClassifier("softmax", class_weight="balanced", n_jobs=2),
    LinearClassifier("squared_hinge"),
    LinearClassifier("multiclass_hinge"),
    LinearRegressor(MultivariateSquared()),
    LinearRegressor("huber", alpha=1e-2, regularizer="l1"),
]


@pytest.mark.exhaustive
@parametrize_with_checks(MULTICLASS_MODELS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def objective(loss, model, X, y, alpha):
    """J of a multiclass model by its formula, from the attributes coef_ and intercept_."""
    z = X @ model.coef_.T + model.intercept_
    z_true = z[np.arange(len(y)), y][:, None]
    ahead = z - z_true
    other = np.arange(z.shape[1]) != y[:, None]
    value = {
        "hinge": lambda: (ahead + other).max(axis=1),
        "squared_hinge": lambda: (np.maximum(0, 1 + ahead) ** 2 / 2 * other).sum(axis=1),
        "logistic": lambda: np.log(np.exp(ahead).sum(axis=1)),
        "cost": lambda: (COST[y] + ahead).max(axis=1),
        "rescaled": lambda: (COST[y] * (1 + ahead)).max(axis=1),
    }[loss]()
    return value.mean() + alpha / 2 * (model.coef_**2).sum()


# ---------------------------------------------------------------- classes
@pytest.mark.parametrize("fit_intercept", [True, slow(False)])
def test_logistic_agrees_with_multinomial_regression(fit_intercept):
    alpha = 1e-2
    ours = LinearClassifier("logistic", alpha=alpha, tol=1e-12, fit_intercept=fit_intercept).fit(X, NAMES)
    theirs = LogisticRegression(
        C=1 / (alpha * len(Y)), tol=1e-10, max_iter=10_000, fit_intercept=fit_intercept
    ).fit(X, NAMES)
    assert ours.coef_.shape == (3, 4)
    assert ours.intercept_.shape == (3,)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    assert ours.classes_.tolist() == theirs.classes_.tolist()
    assert ours.lower_bound_ <= objective("logistic", theirs, X, Y, alpha)


@pytest.mark.slow
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_digits_agree_with_multinomial_regression(form):
    Z, digit = load_digits(return_X_y=True)
    Z, digit = Z[:300] / 16, digit[:300]
    alpha = 1e-2
    ours = LinearClassifier("logistic", alpha=alpha, tol=1e-10).fit(form(Z), digit)
    theirs = LogisticRegression(C=1 / (alpha * len(digit)), tol=1e-9, max_iter=10_000).fit(Z, digit)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    J = objective("logistic", theirs, Z, digit, alpha)
    assert ours.lower_bound_ <= J
    assert ours.objective_ <= J * (1 + 1e-9)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        slow("hinge", "hinge"),
        ("squared_hinge", "squared_hinge"),
        slow("logistic", "logistic"),
        slow(MulticlassHinge(COST), "cost"),
        slow(MulticlassHinge(COST, rescaled=True), "rescaled"),
    ],
)
def test_objective_agrees_with_the_attributes(loss, name):
    model = LinearClassifier(loss, alpha=0.1).fit(X, Y)
    assert model.objective_ == pytest.approx(objective(name, model, X, Y, 0.1), rel=1e-12)
    assert 0 <= model.gap_ <= model.tol * model.objective_
    z = model.decision_function(X)
    np.testing.assert_allclose(z, X @ model.coef_.T + model.intercept_, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), np.argmax(z, axis=1))
    moved = clone(model).fit(X, Y)
    moved.coef_ = moved.coef_ + 0.05 * np.random.default_rng(0).normal(size=(3, 4))
    assert objective(name, moved, X, Y, 0.1) >= model.lower_bound_


@pytest.mark.slow
def test_binary_losses_are_replaced_by_multiclass_losses():
    def of(loss, **more):
        return LinearClassifier(loss, alpha=0.1, **more).fit(X, Y).objective_

    assert of("hinge") == of("multiclass_hinge") == of(MulticlassHinge(1 - np.eye(3)))
    assert of("squared_hinge") == of(MulticlassSquaredHinge())
    assert of("logistic") == of(Softmax())
    assert of("hinge:margin=2", tol=1e-6) == pytest.approx(
        of(MulticlassHinge(2 * (1 - np.eye(3))), tol=1e-6), rel=2e-6
    )


@pytest.mark.slow
def test_two_classes_with_one_score_each():
    # for given w = v_1 - v_0, the minimum of |v_0|^2 + |v_1|^2 is |w|^2 / 2, at v_1 = -v_0 = w / 2: two
    # scores with alpha are equivalent to one score with alpha / 2
    two = Y < 2
    A, y = X[two] + np.random.default_rng(0).normal(size=(100, 4)), NAMES[two]
    for multiclass, one in (("softmax", "logistic"), ("multiclass_squared_hinge", "squared_hinge")):
        pair = LinearClassifier(multiclass, alpha=0.1, tol=1e-12).fit(A, y)
        single = LinearClassifier(one, alpha=0.05, tol=1e-12).fit(A, y)
        assert pair.objective_ == pytest.approx(single.objective_, rel=1e-10)
        assert pair.coef_.shape == (1, 4)
        assert pair.intercept_.shape == (1,)
        np.testing.assert_allclose(pair.coef_, single.coef_, atol=1e-5)
        np.testing.assert_allclose(pair.intercept_, single.intercept_, atol=1e-5)
        assert pair.decision_function(A).shape == (100,)
        np.testing.assert_array_equal(pair.predict(A), single.predict(A))
        both = pair.result_.w[:8].reshape(4, 2)
        np.testing.assert_allclose(both[:, 0], -both[:, 1], atol=1e-6)
        np.testing.assert_allclose(both[:, 1] - both[:, 0], pair.coef_[0])
    proba = LinearClassifier("softmax", alpha=0.1, tol=1e-12).fit(A, y).predict_proba(A)
    np.testing.assert_allclose(
        proba, LinearClassifier("logistic", alpha=0.05, tol=1e-12).fit(A, y).predict_proba(A), atol=1e-5
    )


def test_probabilities():
    model = LinearClassifier("logistic", alpha=1e-3).fit(X, NAMES)
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), p)
    np.testing.assert_array_equal(model.classes_[np.argmax(p, axis=1)], model.predict(X))
    assert np.isfinite(model.predict_log_proba(1e4 * X)).all()
    assert hasattr(LinearClassifier(Softmax()), "predict_proba")
    assert not hasattr(LinearClassifier("multiclass_hinge"), "predict_proba")


@pytest.mark.slow
def test_weights_of_classes_and_rows():
    weight = np.random.default_rng(0).integers(0, 3, len(Y))
    model = LinearClassifier("logistic", alpha=0.01, tol=1e-10)
    by_class = clone(model).set_params(class_weight={0: 3.0, 2: 0.5}).fit(X, Y, sample_weight=weight)
    by_row = clone(model).fit(X, Y, sample_weight=weight * np.array([3.0, 1.0, 0.5])[Y])
    np.testing.assert_allclose(by_class.coef_, by_row.coef_)
    balanced = clone(model).set_params(class_weight="balanced").fit(X[30:], Y[30:])
    factors = len(Y[30:]) / (3 * np.bincount(Y[30:]))
    same = clone(model).fit(X[30:], Y[30:], sample_weight=factors[Y[30:]])
    # the weights differ by rounding, and a gap of 1e-10 allows for differences of 1e-5
    np.testing.assert_allclose(balanced.coef_, same.coef_, rtol=1e-6)
    weighted = clone(model).fit(X, Y, sample_weight=weight)
    repeated = clone(model).fit(X.repeat(weight, axis=0), Y.repeat(weight))
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-9)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-4)


@pytest.mark.slow
def test_classes_without_weight_are_left_out():
    names = np.concatenate([NAMES, np.full(10, "a fourth")])
    Z = np.vstack([X, 7 * np.ones((10, 4))])
    weight = np.concatenate([np.ones(150), np.zeros(10)])
    model = LinearClassifier("logistic", alpha=0.1, tol=1e-10)
    a, b = clone(model).fit(Z, names, sample_weight=weight), clone(model).fit(X, NAMES)
    assert a.classes_.tolist() == b.classes_.tolist()
    np.testing.assert_allclose(a.coef_, b.coef_, atol=1e-6)
    two = clone(model).fit(X, NAMES, sample_weight=(Y > 0) * 1.0)
    assert two.classes_.tolist() == ["versicolor", "virginica"]
    assert two.coef_.shape == (1, 4)  # two classes, so one score per row


@pytest.mark.slow
def test_cost_matrix_is_in_the_order_of_the_classes():
    dear = np.array([[0.0, 1.0, 1.0], [9.0, 0.0, 9.0], [1.0, 1.0, 0.0]])
    A = X[:, :2]  # features with little information
    model = LinearClassifier(MulticlassHinge(dear), alpha=1e-2).fit(A, NAMES)
    plain = LinearClassifier("hinge", alpha=1e-2).fit(A, NAMES)
    missed = [((m.predict(A) != "versicolor") & (NAMES == "versicolor")).sum() for m in (model, plain)]
    assert missed[0] < missed[1] / 2


@pytest.mark.parametrize("loss", ["logistic", slow("hinge")])
def test_forms_of_X_and_names(loss):
    models = {
        name: LinearClassifier(loss, alpha=0.1, tol=1e-6).fit(form, NAMES)
        for name, form in {
            "C": X,
            "F": np.asfortranarray(X),
            "csr": sp.csr_array(X),
            "csc": sp.csc_array(X),
            "float32": X.astype(np.float32),
            "frame": pd.DataFrame(X, columns=list("abcd")),
        }.items()
    }
    for name, model in models.items():
        assert model.objective_ == pytest.approx(models["C"].objective_, rel=3e-6), name
    assert models["frame"].feature_names_in_.tolist() == list("abcd")
    z = models["C"].decision_function(X)
    for form in (sp.csr_array, sp.csc_array, np.asfortranarray):
        np.testing.assert_allclose(models["C"].decision_function(form(X)), z, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize(
    "settings",
    [
        {"regularizer": "l1"},
        {"regularizer": "elastic:eps=0.5"},
        {"positive": True},
        {"regularizer": "l1", "positive": True},
        {"regularizer": "l1", "fit_intercept": False},
        {"positive": True, "fit_intercept": False},
    ],
)
def test_regularizers(loss, settings):
    model = LinearClassifier(loss, alpha=0.05, **settings).fit(X, Y)
    assert model.result_.status == "converged"
    if settings.get("positive"):
        assert (model.coef_ >= 0).all()
    if settings.get("regularizer") == "l1" and loss == "logistic":
        assert 0 < np.count_nonzero(model.coef_) < 12


@pytest.mark.slow
def test_warm_start_callback_checkpoint_and_limits(tmp_path):
    model = LinearClassifier("logistic", alpha=1e-3, tol=1e-6, warm_start=True).fit(X, Y)
    first = model.n_iter_
    assert model.fit(X, Y).n_iter_ < first
    with pytest.raises(ValueError, match="which had 15 weights, but this one has 10"):
        model.set_params(loss="softmax").fit(X[:100], Y[:100])
    seen = []
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        LinearClassifier("logistic", alpha=1e-3, callback=lambda it, row: seen.append(it.w) or True).fit(X, Y)
    assert seen[0].shape == (15,)
    run = LinearClassifier("logistic", alpha=1e-3, tol=1e-6, checkpoint=tmp_path / "run", max_iter=2)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        run.fit(X, Y)
    assert run.set_params(max_iter=1000).fit(X, Y).n_iter_ > 2


@pytest.mark.slow
def test_search_over_alphas():
    model = LinearClassifierCV("logistic", alphas=[1.0, 1e-2, 1e-4], cv=3, tol=1e-6).fit(X, NAMES)
    grid = GridSearchCV(LinearClassifier("logistic", tol=1e-6), {"alpha": [1.0, 1e-2, 1e-4]}, cv=3)
    grid.fit(X, NAMES)
    np.testing.assert_allclose(model.scores_.mean(axis=0), grid.cv_results_["mean_test_score"], atol=0.01)
    assert model.coef_.shape == (3, 4)
    assert model.score(X, NAMES) > 0.95


@pytest.mark.parametrize("loss", [Softmax(), slow(MulticlassSquaredHinge()), slow(MulticlassHinge())])
def test_largest_alpha_of_a_path(loss):
    rows = np.r_[0:150, 0:30, 60:70]  # classes of different sizes
    risk = linear_risk(X[rows], Y[rows].astype(float), loss, fit_intercept=True)
    top = lam_max(risk, L1())
    above, below = (minimize(Objective(risk, L1(), f * top), tol=1e-6) for f in (1.01, 0.97))
    assert not above.w[:-3].any()
    assert below.w[:-3].any() or not loss.smooth  # for nonsmooth losses, lam_max is an upper bound


# ---------------------------------------------------------------- outputs
def test_multi_output_squared_loss_agrees_with_ridge():
    alpha = 1e-2
    model = LinearRegressor(alpha=alpha, tol=1e-12).fit(D, TARGETS)
    ridge = Ridge(alpha=alpha * len(D)).fit(D, TARGETS)
    np.testing.assert_allclose(model.coef_, ridge.coef_, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, ridge.intercept_, atol=1e-6)
    np.testing.assert_allclose(model.predict(D), D @ model.coef_.T + model.intercept_)
    each = [LinearRegressor(alpha=alpha, tol=1e-12).fit(D, y).objective_ for y in TARGETS.T]
    assert model.objective_ == pytest.approx(sum(each), rel=1e-10)


@pytest.mark.parametrize(
    ("loss", "reg"), [("squared", "l1"), slow("huber", "l2"), slow("poisson", "l2"), slow("absolute", "l2")]
)
def test_other_losses_are_one_problem_per_output(loss, reg):
    Z = np.abs(TARGETS)
    model = LinearRegressor(loss, alpha=1e-2, regularizer=reg).fit(D, Z)
    each = [LinearRegressor(loss, alpha=1e-2, regularizer=reg).fit(D, z) for z in Z.T]
    assert model.coef_.shape == (3, 10)
    for k, one in enumerate(each):
        np.testing.assert_array_equal(model.coef_[k], one.coef_)
        assert model.intercept_[k] == one.intercept_
        np.testing.assert_allclose(model.predict(D)[:, k], one.predict(D), atol=1e-12)
    for name in ("objective_", "lower_bound_", "gap_"):
        assert getattr(model, name) == pytest.approx(sum(getattr(one, name) for one in each), rel=1e-9)
    assert model.gap_ <= model.tol * model.objective_
    assert model.n_iter_ == max(one.n_iter_ for one in each)
    assert [row.get("output") for row in model.result_.trace] == [0, 1, 2, None]


@pytest.mark.slow
def test_combined_cut_bounds_the_sum_of_problems():
    # the combined cut must be a cut of the sum of the risks
    from riskmin.regularizers import get_regularizer

    rng = np.random.default_rng(0)
    for reg in (L2(), L1(), get_regularizer("elastic:eps=0.5")):
        risks = [linear_risk(D, y, "absolute") for y in TARGETS.T]
        result = combine_results([minimize(Objective(r, reg, 0.01), tol=1e-2) for r in risks], reg, 0.01)

        class Sum:
            dim = 30

            def __call__(self, w, risks=risks):
                values = [r(v)[0] for r, v in zip(risks, w.reshape(10, 3).T, strict=True)]
                return sum(values), None

        J = Objective(Sum(), reg, 0.01)
        assert J.lower(result.cut) == pytest.approx(result.lower, rel=1e-9)
        assert Sum()(result.w)[0] + 0.01 * reg.value(result.w) == pytest.approx(result.value, rel=1e-9)
        for size in (0.1, 1.0, 10.0):
            v = result.w + size * rng.normal(size=30)
            assert result.cut.a @ v + result.cut.b <= Sum()(v)[0] + 1e-9


@pytest.mark.slow
def test_joint_outputs():
    M = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    model = LinearRegressor(MultivariateSquared(M), alpha=0.1, tol=1e-12).fit(D, TARGETS)
    off = model.predict(D) - TARGETS
    J = np.einsum("ni,ij,nj->n", off, M, off).mean() / 2 + 0.1 / 2 * (model.coef_**2).sum()
    assert model.objective_ == pytest.approx(J, rel=1e-12)
    np.testing.assert_allclose(off.mean(axis=0) @ M, 0, atol=1e-9)
    slope = D.T @ off @ M / len(D) + 0.1 * model.coef_.T
    np.testing.assert_allclose(slope, 0, atol=1e-5)


@pytest.mark.slow
def test_one_output_in_any_shape():
    y = TARGETS[:, 0]
    flat, column = (LinearRegressor("squared", alpha=0.1, tol=1e-12).fit(D, z) for z in (y, y[:, None]))
    multi = LinearRegressor(MultivariateSquared(), alpha=0.1, tol=1e-12).fit(D, y)
    assert (flat.coef_.shape, column.coef_.shape, multi.coef_.shape) == ((10,), (1, 10), (10,))
    assert (flat.predict(D).shape, column.predict(D).shape, multi.predict(D).shape) == (
        (442,),
        (442, 1),
        (442,),
    )
    np.testing.assert_allclose(column.coef_[0], flat.coef_, atol=1e-6)
    np.testing.assert_allclose(multi.predict(D), flat.predict(D), atol=1e-6)
    assert isinstance(multi.intercept_, float)


@pytest.mark.slow
def test_limits_apply_to_all_outputs_together(tmp_path):
    seen = []

    def stop(iterate, row):
        seen.append(row["iteration"])
        return len(seen) == 3

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = LinearRegressor("absolute", alpha=1e-3, callback=stop).fit(D, TARGETS)
    assert model.result_.trace[0]["iteration"] == 3
    assert [row["iteration"] for row in model.result_.trace[1:3]] == [1, 1]
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        LinearRegressor("absolute", alpha=1e-6, tol=0, max_seconds=0.05).fit(D, TARGETS)
    save = LinearRegressor("huber", alpha=1e-3, checkpoint=tmp_path / "run").fit(D, TARGETS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.0", "run.1", "run.2"]
    again = clone(save).fit(D, TARGETS)
    assert again.objective_ == pytest.approx(save.objective_, rel=1e-12)
    warm = LinearRegressor("huber", alpha=1e-3, warm_start=True).fit(D, TARGETS)
    assert warm.fit(D, TARGETS).n_iter_ <= 2
    with pytest.raises(ValueError, match="was not of 2 outputs"):
        warm.fit(D, TARGETS[:, :2])


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "reg"), [("squared", "l2"), ("huber", "l1")])
def test_search_over_alphas_for_outputs(loss, reg):
    alphas = [1.0, 1e-1, 1e-2]
    model = LinearRegressorCV(loss, alphas=alphas, cv=3, regularizer=reg, tol=1e-6).fit(D, TARGETS)
    grid = GridSearchCV(LinearRegressor(loss, regularizer=reg, tol=1e-6), {"alpha": alphas}, cv=3)
    with pytest.warns(TrivialModelWarning, match="alpha=1 is too") if reg == "l1" else nullcontext():
        grid.fit(D, TARGETS)
    np.testing.assert_allclose(model.scores_.mean(axis=0), grid.cv_results_["mean_test_score"], atol=1e-3)
    assert model.predict(D).shape == TARGETS.shape


@pytest.mark.slow
def test_default_alphas_of_outputs_start_at_zero_weights():
    model = LinearRegressorCV("huber", n_alphas=2, cv=2, regularizer="l1").fit(D, TARGETS)
    with pytest.warns(TrivialModelWarning, match="is too large"):
        top = LinearRegressor("huber", alpha=1.001 * model.alphas_[0], regularizer="l1").fit(D, TARGETS)
    assert not top.coef_.any()
    assert (
        LinearRegressor("huber", alpha=0.9 * model.alphas_[0], regularizer="l1").fit(D, TARGETS).coef_.any()
    )
    assert MultiTaskLasso(alpha=100.0).fit(D, TARGETS).coef_.shape == top.coef_.shape


# ---------------------------------------------------------------- files
@pytest.mark.parametrize(
    ("model", "X", "y"),
    [
        (LinearClassifier("logistic", alpha=0.1, class_weight={"setosa": 2.0}), X, NAMES),
        (LinearClassifier(MulticlassHinge(COST, rescaled=True), alpha=0.1, fit_intercept=False), X, Y),
        (LinearClassifier("softmax", alpha=0.1), X[:100], NAMES[:100]),
        (LinearRegressor(MultivariateSquared(np.diag([1.0, 2.0, 3.0]))), D, TARGETS),
        (LinearRegressor("huber", fit_intercept=False), D, TARGETS),
    ],
)
def test_save_and_load_round_trip(model, X, y, tmp_path):
    model = clone(model).fit(X, y)
    save_model(model, tmp_path / "m")
    again = load_model(tmp_path / "m")
    np.testing.assert_array_equal(again.coef_, model.coef_)
    np.testing.assert_array_equal(again.intercept_, model.intercept_)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert (again.objective_, again.lower_bound_, again.loss) == (
        model.objective_,
        model.lower_bound_,
        model.loss,
    )
    assert again.set_params(warm_start=True).fit(X, y).n_iter_ <= model.n_iter_


def test_invalid_files(tmp_path):
    from riskmin.core.persist import checksum, load_arrays, save_arrays

    save_model(LinearClassifier("logistic", alpha=0.1).fit(X, NAMES), tmp_path / "m")
    changes = [
        (lambda fitted: fitted["classes"].update(values=["a", "b"]), "2 classes for 3 scores per row"),
        (lambda fitted: fitted.update(outputs=4), "coef is float64"),
        (lambda fitted: fitted.update(intercepts=False), "coef is float64"),
        (lambda fitted: fitted.pop("outputs"), "coef is float64"),
    ]
    for change, message in changes:
        arrays, meta = load_arrays(tmp_path / "m", "model")
        meta.pop("sha256")
        change(meta["fitted"])
        save_arrays(tmp_path / "other", arrays, meta | {"sha256": checksum(arrays, meta)})
        with pytest.raises(FileError, match=message):
            load_model(tmp_path / "other")


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("model", "X", "y", "message"),
    [
        (LinearClassifier("exponential"), X, Y, r"takes two classes, not 3; use 'hinge', .*OneVsRest"),
        (LinearClassifier("squared_hinge:margin=2"), X, Y, r"SquaredHinge\(margin=2.0\) takes two classes"),
        (LinearClassifier("roc_area"), X, Y, "takes two classes, not 3"),
        (LinearClassifier(MulticlassHinge(1 - np.eye(4))), X, Y, "cost is for 4 classes, but y has 3"),
        (LinearClassifier(MulticlassHinge(COST)), X[:100], Y[:100], "cost is for 3 classes, but y has 2"),
        (LinearClassifier(), X, np.array(["a", 1, None], object)[Y], r"kinds \(NoneType, int, str\): make"),
        (LinearClassifier(class_weight={0: 0.0}), X, Y, "all classes a finite weight > 0"),
        (LinearClassifier("logistic", solver="dual"), X, Y, "Dual"),
        (LinearRegressor("softmax"), X, Y, "Softmax is a loss for multiclass.*use LinearClassifier"),
        (KernelClassifier("softmax"), X, Y, "Softmax is a loss for multiclass, not for classification"),
        (KernelClassifier("roc_area"), X, Y, "Only binary.*wrap the model in sklearn.multiclass"),
        (KernelRegressor(MultivariateSquared()), X, Y, "a multi-output loss: use LinearRegressor"),
        (OrdinalClassifier(MultivariateSquared()), X, Y, "a multi-output loss"),
        (LinearRegressor(MultivariateSquared(np.eye(2))), D, TARGETS, "M is for 2 outputs, but y has 3"),
        (LinearRegressor(), D, sp.csr_array(TARGETS), "y is a sparse matrix: give an array"),
        (LinearRegressor("poisson"), D, TARGETS - 3, "Poisson needs y >= 0"),
    ],
)
def test_errors_name_the_cause_and_the_remedy(model, X, y, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        model.fit(X, y)
    assert "\n" not in str(caught.value)


def test_hierarchical_losses_have_a_separate_estimator():
    tree = riskmin.Tree.from_parents({"a": None, "b": None, "c": None}, ["a", "b", "c"])
    with pytest.raises(ValueError, match="use HierarchicalClassifier"):
        LinearClassifier(riskmin.HierarchicalSoftmax(tree)).fit(X, Y)


# ---------------------------------------------------------------- the command
@pytest.fixture
def table(tmp_path):
    path = tmp_path / "iris.csv"
    pd.DataFrame(X, columns=list("abcd")).assign(kind=NAMES).to_csv(path, index=False)
    return path


def run(capsys, *args):
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


def test_command_with_several_classes(table, tmp_path, capsys):
    model = tmp_path / "m"
    code, out, _ = run(capsys, "fit", table, "--loss", "logistic", "--lam", "0.01", "-o", model)
    assert code == 0
    assert "150 rows x 4 columns, 3 classes" in out
    fitted, frame = load_model(model), pd.DataFrame(X, columns=list("abcd"))
    assert fitted.objective_ == pytest.approx(objective("logistic", fitted, X, Y, 0.01), rel=1e-9)
    code, out, _ = run(capsys, "predict", model, table)
    assert out.split() == fitted.predict(frame).tolist()
    code, out, _ = run(capsys, "predict", model, table, "--proba")
    np.testing.assert_allclose(np.loadtxt(out.splitlines()), fitted.predict_proba(frame))
    code, out, _ = run(capsys, "predict", model, table, "--scores")
    np.testing.assert_allclose(np.loadtxt(out.splitlines()), fitted.decision_function(frame))
    code, out, _ = run(capsys, "evaluate", model, table)
    assert "macro F1" in out
    assert "versicolor" in out
    metrics = json.loads(run(capsys, "evaluate", model, table, "--json")[1])
    assert metrics["accuracy"] == pytest.approx(fitted.score(frame, NAMES))
    assert metrics["classes"]["setosa"]["rows"] == 50
    code, out, _ = run(capsys, "certify", model, table, "--json", "--quiet")
    assert (code, json.loads(out)["verdict"]) == (0, "certified")


@pytest.mark.slow
def test_changed_multiclass_models_are_refuted(table, tmp_path, capsys):
    from riskmin.core.persist import checksum, load_arrays, save_arrays

    run(capsys, "fit", table, "--loss", "softmax", "--lam", "0.01", "-o", tmp_path / "m")

    def shift_weight(arrays, meta):
        arrays["coef"][3] += 0.1

    def shift_intercept(arrays, meta):
        arrays["coef"][-1] += 0.1

    def lift(arrays, meta):
        meta["claim"]["b"] += 0.01
        meta["claim"]["lower_bound"] += 0.01

    def tilt(arrays, meta):  # a cut with a slope in an intercept bounds nothing
        arrays["cut"][-1] += 1e-3
        arrays["cut"][-2] -= 1e-3

    def swap(arrays, meta):
        values = meta["fitted"]["classes"]["values"]
        values[0], values[1] = values[1], values[0]

    changes = {
        shift_weight: 1,
        shift_intercept: 1,
        lift: 1,
        tilt: 1,
        swap: 2,
    }  # swapped classes are not a valid model
    for change, expected in changes.items():
        arrays, meta = load_arrays(tmp_path / "m", "model")
        arrays = {name: array.copy() for name, array in arrays.items()}
        meta.pop("sha256")
        change(arrays, meta)
        save_arrays(tmp_path / "other", arrays, meta | {"sha256": checksum(arrays, meta)})
        code, _, err = run(capsys, "certify", tmp_path / "other", table, "--quiet")
        assert code == expected, change.__name__
        assert ("refuted" if code == 1 else "not sorted") in err


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "multiclass_hinge:rescaled=1"])
def test_command_with_other_losses(loss, table, tmp_path, capsys):
    model, page = tmp_path / "m", tmp_path / "page.html"
    assert run(capsys, "fit", table, "--loss", loss, "--lam", "0.1", "-o", model, "--report", page)[0] == 0
    assert run(capsys, "certify", model, table, "--quiet")[0] == 0
    more = ("--loss", loss, "--reg", "l1", "--n-lams", 2)
    code, out, _ = run(capsys, "path", table, *more, "-o", page)
    assert code == 0
    assert "virginica" in page.read_text(encoding="utf-8")
    assert out.splitlines()[2].split()[3] == "0"  # all weights are zero at the largest lam
    more = ("--loss", loss, "--lams", "1,0.1")
    assert run(capsys, "cv", table, *more, "--folds", 2, "-o", model)[0] == 0


@pytest.mark.slow
def test_command_names_multiclass_losses(table, tmp_path, capsys):
    code, _, err = run(capsys, "fit", table, "--loss", "exponential", "-o", tmp_path / "m")
    assert code == 2
    assert "3 classes (setosa, versicolor, virginica), but exponential takes two: choose hinge" in err
    run(capsys, "fit", table, "--loss", "logistic", "-o", tmp_path / "m")
    other = tmp_path / "other.csv"
    pd.DataFrame(X, columns=list("abcd")).assign(kind="iris").to_csv(other, index=False)
    code, _, err = run(capsys, "evaluate", tmp_path / "m", other)
    assert code == 2
    assert "the label iris is none of the model's, setosa, versicolor, virginica" in err


@pytest.mark.slow
def test_command_predicts_several_outputs(tmp_path, capsys):
    model = LinearRegressor(alpha=0.1).fit(D, TARGETS)
    save_model(model, tmp_path / "m")
    np.savez(tmp_path / "d.npz", X=D, y=TARGETS[:, 0])
    code, out, _ = run(capsys, "predict", tmp_path / "m", tmp_path / "d.npz")
    assert code == 0
    np.testing.assert_allclose(np.loadtxt(out.splitlines()), model.predict(D))
    for command in ("evaluate", "certify"):
        code, _, err = run(capsys, command, tmp_path / "m", tmp_path / "d.npz")
        assert code == 2
        assert "predicts 3 numbers per row" in err
