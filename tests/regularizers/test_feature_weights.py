"""Weights of features for multi-output models: equivalent to features divided by their square roots."""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm

P, K = 5, 3
WEIGHTS = np.array([0.04, 0.5, 1.0, 3.0, 25.0])
EACH = np.repeat(WEIGHTS, K)
SMOOTH, NONSMOOTH = [rm.Softmax(), rm.MulticlassSquaredHinge()], [rm.MulticlassHinge()]
CASES = [
    *((loss, solver) for loss in SMOOTH for solver in (rm.Newton(), rm.Lbfgs())),
    *((loss, rm.Bundle()) for loss in (*SMOOTH, *NONSMOOTH)),
    *((rm.MulticlassHinge(), s) for s in (rm.Newton(), rm.DualCoordinateAscent(), rm.Smoothing())),
    (rm.MulticlassHinge(rescaled=True), rm.Newton()),
]


def data(n=45, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % K * 1.0
    return rng.standard_normal((K, P))[y.astype(int)] + rng.standard_normal((n, P)) + 1.0, y


@pytest.mark.exhaustive
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("loss", "solver"), CASES, ids=lambda v: type(v).__name__)
def test_weights_equal_features_divided_by_their_roots(loss, solver, intercept, sparse):
    X, y = data()
    form = sp.csr_array if sparse else np.asarray
    # nearly equal cuts limit the accuracy of a bundle's master problem to a gap of 1e-9 or so
    tol = {rm.Smoothing: 2e-9, rm.Bundle: 1e-8}.get(type(solver), 1e-10)
    weighted, scaled = (
        rm.minimize(
            rm.Objective(rm.linear_risk(form(rows), y, loss, fit_intercept=intercept), reg, 1e-2),
            solver,
            tol=tol,
            max_iter=3000,
        )
        for rows, reg in ((X, rm.L2(EACH)), (X / np.sqrt(WEIGHTS), rm.L2()))
    )
    assert weighted.status == scaled.status == "converged"
    assert weighted.value == pytest.approx(scaled.value, rel=1e-9 + tol)
    weights = P * K
    np.testing.assert_allclose(weighted.w[:weights] * np.sqrt(EACH), scaled.w[:weights], atol=2e-3)


def test_newton_accepts_a_weight_per_output():
    X, y = data()
    m = np.random.default_rng(0).uniform(0.1, 10.0, P * K)
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(m), 1e-2)
    newton, bundle = (rm.minimize(obj, s, tol=1e-8) for s in (rm.Newton(), rm.Bundle()))
    assert newton.status == bundle.status == "converged"
    assert newton.value == pytest.approx(bundle.value, rel=1e-7)


# ---------------------------------------------------------------- estimators
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_classifiers_accept_one_weight_per_feature(loss):
    X, y = data()
    weighted = rm.LinearClassifier(loss, alpha=1e-2, regularizer=rm.L2(WEIGHTS), tol=1e-9).fit(X, y)
    scaled = rm.LinearClassifier(loss, alpha=1e-2, tol=1e-9).fit(X / np.sqrt(WEIGHTS), y)
    assert weighted.objective_ == pytest.approx(scaled.objective_, rel=1e-8)
    repeated = rm.LinearClassifier(loss, alpha=1e-2, regularizer=rm.L2(EACH), tol=1e-9).fit(X, y)
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-8)


def test_other_estimators_accept_one_weight_per_feature():
    X, y = data()
    tree = rm.HierarchicalClassifier(regularizer=rm.L2(WEIGHTS), alpha=1e-2, separator="/")
    assert tree.fit(X, np.array(["a/x", "a/y", "b"])[y.astype(int)]).result_.status == "converged"
    Y = np.column_stack([X[:, 0], X[:, 1] ** 2])
    weighted = rm.LinearRegressor("squared", alpha=0.1, regularizer=rm.L2(WEIGHTS), tol=1e-9).fit(X, Y)
    scaled = rm.LinearRegressor("squared", alpha=0.1, tol=1e-9).fit(X / np.sqrt(WEIGHTS), Y)
    assert weighted.objective_ == pytest.approx(scaled.objective_, rel=1e-8)
    search = rm.LinearClassifierCV("logistic", regularizer=rm.L1(WEIGHTS), alphas=3, cv=3).fit(X, y)
    assert search.coef_.shape == (K, P)


def test_a_box_is_finite_without_bounds_only():
    none = np.full(2, np.inf)
    assert rm.Box(rm.L2(), -none, none).is_finite(2)
    assert not rm.Box(rm.L2(), np.array([-np.inf, 0.0]), none).is_finite(2)
    assert not rm.Box(rm.L2(), -none, np.array([0.0, np.inf])).is_finite(2)
