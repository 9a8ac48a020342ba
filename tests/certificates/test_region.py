"""Regions hold the optimum that Newton's method finds in extended precision, and state no more than is so."""

import numpy as np
import pytest
import scipy.sparse as sp
from benchmarks.claims import LONG, optimum

from helpers import refusals
from riskmin import (
    KernelClassifier,
    LinearClassifier,
    LinearClassifierCV,
    LinearRegressor,
    multipliers,
    optimum_region,
)

RNG = np.random.default_rng(0)
N, P = 90, 5
Z = RNG.standard_normal((N, P))
UNITS = np.array([1e-6, 1.0, 1e6, 1.0, 30.0])
SCORES = Z @ [1.0, -0.5, 0.0, 0.0, 0.3] + 0.3
TARGETS = {
    "logistic": np.where(SCORES + RNG.logistic(size=N) > 0, 1.0, -1.0),
    "squared": SCORES + RNG.standard_normal(N),
    "poisson": RNG.poisson(np.exp(SCORES)).astype(float),
}
TARGETS |= {"hinge": TARGETS["logistic"], "huber": TARGETS["squared"], "squared_hinge": TARGETS["logistic"]}
WEIGHTS = RNG.uniform(0.2, 3.0, N)
NEW = RNG.standard_normal((40, P)) * UNITS


def made(loss, **params):
    kind = LinearRegressor if loss in ("squared", "poisson", "huber") else LinearClassifier
    params = {"alpha": 1e-2, "regularizer": "l2", "standardize": True, "fit_intercept": True} | params
    X = Z * UNITS + [0.0, 10.0, 0.0, 0.0, 0.0]
    return kind(loss, **params), {"loss": loss, "params": params}, X, TARGETS[loss]


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-7])
@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ("logistic", {}),
        ("logistic", {"fit_intercept": False}),
        ("logistic", {"regularizer": "l1", "alpha": 0.05}),
        ("logistic", {"regularizer": "elastic:eps=1", "alpha": 0.05}),
        ("logistic", {"alpha": 1e-6}),
        ("squared", {}),
        ("squared", {"regularizer": "l1", "alpha": 0.1}),
        ("poisson", {}),
        ("poisson", {"regularizer": "l1", "alpha": 0.1}),
    ],
)
def test_the_optimum_is_inside(loss, settings, tol):
    model, facts, X, y = made(loss, tol=tol, **settings)
    model.fit(X, y, WEIGHTS)
    w, b, _ = optimum(facts, X, y, WEIGHTS)
    region = optimum_region(model, X, y, sample_weight=WEIGHTS)
    lower, upper = region.coef_interval().T
    assert np.all((lower <= w) & (w <= upper))
    assert np.all((upper - lower) * X.std(0) < 1e-6)  # whatever the tolerance of the model
    assert region.intercept_interval()[0] <= b <= region.intercept_interval()[1]
    lower, upper = region.decision_interval(NEW).T
    z = NEW.astype(LONG) @ w + b
    assert np.all((lower <= z) & (z <= upper))
    np.testing.assert_array_equal(region.zero, w == 0)
    np.testing.assert_array_equal(region.signs, np.sign(w))
    distances = np.abs(np.append(float(model._intercepts()[0]), np.ravel(model.coef_)) - np.append(b, w))
    assert np.all(region.distances >= distances[-len(region.distances) :])


@pytest.mark.parametrize("regularizer", ["l2", "elastic:eps=1"])
@pytest.mark.parametrize("loss", ["hinge", "huber", "squared_hinge"])
def test_the_ball_of_other_losses(loss, regularizer):
    model, _, X, y = made(loss, regularizer=regularizer, tol=1e-2, solver="bundle")
    tight = made(loss, regularizer=regularizer, tol=1e-11, atol=0.0)[0].fit(X, y)
    w, b = np.ravel(tight.coef_), float(tight._intercepts()[0])
    model.fit(X, y)
    region = optimum_region(model, X, y)
    slack = 1e-4
    lower, upper = region.coef_interval().T * X.std(0)
    assert np.all((lower - slack <= w * X.std(0)) & (w * X.std(0) <= upper + slack))
    lower, upper = region.decision_interval(X).T
    assert np.all((lower - slack <= X @ w + b) & (X @ w + b <= upper + slack))
    near = optimum_region(tight, X, y)
    assert np.all(np.ptp(near.coef_interval(), axis=1) < np.ptp(region.coef_interval(), axis=1))
    assert np.all(near.signs * region.signs >= 0)


def test_support_vectors_are_those_of_the_multipliers():
    model, _, X, y = made("hinge", tol=1e-9)
    region, u = optimum_region(model.fit(X, y), X, y), multipliers(model, X, y).u
    assert region.support.sum() > 10
    assert region.non_support.sum() > 10
    assert np.all(np.abs(u[region.support]) > 0)
    assert np.all(np.abs(u[region.non_support]) < 1e-6)
    assert not np.any(region.support & region.non_support)


def test_certain_predictions_are_those_of_the_optimum():
    model, _, X, y = made("hinge", tol=1e-2)
    labels, certain = optimum_region(model.fit(X, y), X, y).predict_certain(X)
    tight = made("hinge", tol=1e-9)[0].fit(X, y)
    np.testing.assert_array_equal(labels, model.predict(X))
    np.testing.assert_array_equal(labels[certain], tight.predict(X)[certain])
    assert 0.2 < certain.mean() < 1


def test_sparse_rows_searches_and_constant_columns():
    model, _, X, y = made("logistic", alpha=1e-3)
    X = np.column_stack([np.where(np.abs(Z) > 0.5, X, 0.0), np.ones(N)])
    dense = optimum_region(model.fit(X, y), X, y)
    rows = sp.csr_array(X)
    sparse = optimum_region(made("logistic", alpha=1e-3)[0].fit(rows, y), rows, y)
    for a, b in zip(dense.coef_interval().T, sparse.coef_interval().T, strict=True):
        np.testing.assert_allclose(a * X.std(0), b * X.std(0), atol=1e-8)
    search = LinearClassifierCV("logistic", alphas=[1e-3], cv=3, standardize=True).fit(X, y)
    np.testing.assert_allclose(optimum_region(search, X, y).coef_interval(), dense.coef_interval(), atol=1e-8)


@pytest.mark.parametrize("loss", ["poisson", "logistic"])
def test_an_offset_of_the_rows(loss):
    offset = RNG.uniform(-1.0, 1.0, N)
    model, _, X, y = made(loss, tol=1e-2)
    tight = made(loss, tol=1e-11, atol=0.0)[0].fit(X, y, offset=offset)
    model.fit(X, y, offset=offset)
    region = optimum_region(model, X, y, offset=offset)
    near = region.coef_interval().T * X.std(0)
    np.testing.assert_allclose(near, np.tile(np.ravel(tight.coef_) * X.std(0), (2, 1)), atol=1e-5)
    np.testing.assert_allclose(model.summary(X, y, offset=offset).proved[1:] * X.std(0)[:, None], near.T)
    assert np.ptp(near, axis=0).max() < 1e-8
    with pytest.raises(ValueError, match="offset of the fit"):
        optimum_region(model, X, y)


def test_the_standard_error_of_the_distance_is_that_of_the_summary():
    model, _, X, y = made("logistic", tol=1e-2)
    region = optimum_region(model.fit(X, y), X, y)
    summary = model.summary(X, y)
    assert region.standard_errors == pytest.approx(summary.precision)
    np.testing.assert_allclose(region.intervals, summary.proved)
    assert "It is proved that coefficients are within" in summary.note


X, Y = Z[:30], TARGETS["logistic"][:30]
REFUSED = [
    (
        lambda: optimum_region(LinearClassifier("hinge", regularizer="l1").fit(X, Y), X, Y),
        "the squares of all",
    ),
    (lambda: optimum_region(LinearClassifier("roc_area").fit(X, Y), X, Y), "no sum over rows"),
    (lambda: optimum_region(LinearClassifier("softmax").fit(X, Y), X, Y), "one score per row"),
    (lambda: optimum_region(KernelClassifier("hinge").fit(X, Y), X, Y), "one score per row"),
    (lambda: optimum_region(LinearClassifier("logistic").fit(X, Y), X, -Y), "give the X, y"),
    (lambda: optimum_region(LinearRegressor().fit(X, Y), X, Y).predict_certain(X), "decision_interval"),
]
test_refusals = refusals((REFUSED, ValueError))
