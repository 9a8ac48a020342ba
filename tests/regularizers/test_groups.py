"""The group lasso: its contract, cvxpy's optimum, several outputs, estimators and their files."""

import numpy as np
import pytest

from reference import optimum
from riskmin import (
    L1,
    Bundle,
    GroupLasso,
    Hinge,
    LinearClassifier,
    LinearRegressor,
    Logistic,
    Objective,
    ProximalGradient,
    Smoothing,
    Softmax,
    Squared,
    certify,
    linear_risk,
    load_model,
    minimize,
    save_model,
)
from riskmin.testing import check_regularizer

GROUPS = ["b", "a", "b", "c", "a", "a"]
INSTANCES = [
    GroupLasso(GROUPS),
    GroupLasso(GROUPS, weights=[1e-3, 2.0, 50.0]),
    GroupLasso(GROUPS, ridge=0.5),
    GroupLasso(GROUPS, weights=0.7, ridge=1e-2),
]


def data(seed=0, n=60):
    """Rows of which the third group has no effect."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    return X, X @ [1.0, 0.5, -1.0, 0.0, 0.3, 0.3] + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("reg", INSTANCES, ids=repr)
def test_contract(reg):
    check_regularizer(reg, 6)


def test_single_features_are_the_lasso():
    w = np.random.default_rng(0).normal(size=5)
    groups, lasso = GroupLasso(np.arange(5), weights=[1.0, 2.0, 0.3, 1.0, 4.0]), L1([1.0, 2.0, 0.3, 1.0, 4.0])
    assert groups.value(w) == pytest.approx(lasso.value(w))
    np.testing.assert_allclose(groups.prox(w, 0.4), lasso.prox(w, 0.4))
    assert groups.conjugate(0.2 * w) == lasso.conjugate(0.2 * w)
    assert groups.conjugate(9 * np.ones(5)) == lasso.conjugate(9 * np.ones(5)) == np.inf


@pytest.mark.parametrize("reg", INSTANCES[2:], ids=repr)
def test_hessian_of_the_conjugate_is_the_derivative_of_its_gradient(reg):
    rng = np.random.default_rng(1)
    u, A, h = 2 * rng.normal(size=6), rng.normal(size=(3, 6)), 1e-6
    grad = reg.conjugate_grad
    J = np.stack([(grad(u + h * e) - grad(u - h * e)) / (2 * h) for e in np.eye(6)])
    np.testing.assert_allclose(reg.conjugate_hessian_product(u, A), A @ J @ A.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "reg", "solver"),
    [
        (Squared(), INSTANCES[0], ProximalGradient()),
        (Squared(), INSTANCES[1], None),
        (Logistic(), INSTANCES[2], ProximalGradient()),
        (Logistic(), INSTANCES[3], Bundle()),
        (Hinge(), INSTANCES[2], Bundle()),
        (Hinge(), INSTANCES[0], Smoothing(ProximalGradient())),
        (Hinge(), INSTANCES[0], None),
    ],
)
def test_the_bounds_enclose_the_optimum_of_cvxpy(loss, reg, solver):
    X, y = data()
    y = y if loss.task == "regression" else np.sign(y)
    exact = optimum(loss, reg, X, y, None, 0.05, True)
    tol = 1e-3 if loss == Hinge() and not reg.ridge else 1e-6
    result = minimize(Objective(linear_risk(X, y, loss, fit_intercept=True), reg, 0.05), solver, tol=tol)
    assert result.status == "converged"
    assert result.lower - 1e-8 <= exact <= result.value + 1e-8
    assert result.gap <= tol * result.value


def test_groups_of_several_classes_hold_the_weights_of_all_classes():
    X, y = data()
    labels, reg = np.digitize(y, [-0.5, 0.5]), GroupLasso(GROUPS)
    model = LinearClassifier("logistic", regularizer=reg, alpha=0.12, tol=1e-6).fit(X, labels)
    repeated = GroupLasso(np.repeat(reg.groups, 3))
    exact = optimum(Softmax(), repeated, X, labels.astype(float), None, 0.12, True)
    assert model.lower_bound_ - 1e-8 <= exact <= model.objective_ + 1e-8
    assert (model.coef_[:, 3] == 0).all()  # the group "c"
    assert model.coef_[:, 0].any()


def test_estimators_standardize_save_and_certify(tmp_path):
    X, y = data()
    X = X * [1e-6, 1e6, 1.0, 1e3, 1e-2, 1.0] + [0.0, 1e6, 10.0, 0.0, 0.0, 0.0]
    model = LinearRegressor("squared", regularizer=GroupLasso(GROUPS), alpha=0.05, standardize=True).fit(X, y)
    scaled = (X - X.mean(0)) / X.std(0)
    exact = optimum(Squared(), GroupLasso(GROUPS), scaled, y, None, 0.05, True)
    assert model.lower_bound_ - 1e-8 <= exact <= model.objective_ + 1e-8
    assert model.coef_[3] == 0
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.regularizer == model.regularizer
    assert certify(loaded, X, y).status == "certified"


def test_errors_name_the_remedy():
    with pytest.raises(ValueError, match="3 groups: give a number, or one per group"):
        GroupLasso(GROUPS, weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="one number or string per feature"):
        GroupLasso([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="ridge to be a number >= 0"):
        GroupLasso(GROUPS, ridge=-1.0)
    with pytest.raises(ValueError, match="groups has 6 entries, but w has 2: give one per entry"):
        LinearRegressor(regularizer=GroupLasso(GROUPS)).fit(np.eye(2), [0.0, 1.0])
