"""The nu-trick: against brute force, Clarabel and LIBSVM's nu-machines, and its contract."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.svm import NuSVC, NuSVR

import riskmin as rm
from helpers import ALL_LOSSES, Problem, problem, refusals
from riskmin import Absolute, Hinge, Nu


# ---------------------------------------------------------------- the loss
@pytest.mark.slow
@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_contract_of_all_losses(loss):
    rm.check_loss(Nu(loss, 0.4))


@settings(max_examples=40, deadline=None)
@given(
    arrays(float, 8, elements=st.integers(0, 5).map(float)),  # with ties
    arrays(float, 8, elements=st.integers(0, 3).map(float)),
    st.floats(0.01, 1.0),
)
def test_the_threshold_is_optimal(values, weights, nu):
    weights[0] += 1.0
    c = weights / weights.sum()

    def value(t):
        return nu * t + c @ np.maximum(values - t, 0.0)

    best = min(value(t) for t in [0.0, *values])  # convex and piecewise linear: minimal at a breakpoint
    loss, y = Nu(Absolute(), nu), np.zeros(8)
    found, slopes = loss.value_grad(values, y, c)
    assert float(found) == pytest.approx(best, abs=1e-12)
    assert value(loss.threshold(values, y, c)) == pytest.approx(best, abs=1e-11)
    # the slopes of absolute values are the weights of the rows above the threshold
    assert np.all((slopes >= 0) & (slopes <= c))
    assert slopes.sum() <= nu * (1 + 1e-12)


class Cubed:
    separable = True
    task = "regression"

    def value_grad(self, z, y, c):
        m = np.abs(z - y)
        return c @ m**3 / 3, c * np.sign(z - y) * m**2


class WithValues(Cubed):
    def values(self, z, y):
        return np.abs(z - y) ** 3 / 3


def test_an_own_loss_needs_values_of_its_rows():
    rm.check_loss(WithValues())
    rm.check_loss(Nu(WithValues(), 0.5))


ADAPTED = Problem(Nu(Hinge(), 0.3), data=problem(Hinge()))
REFUSED = [
    (lambda: Nu(Cubed(), 0.5), r"Cubed cannot return its loss per row.*values\(z, y\)"),
    *((lambda nu=nu: Nu(Hinge(), nu), "0 < nu <= 1") for nu in (0.0, -0.1, 1.1, np.nan)),
    (lambda: Nu(Nu(Hinge(), 0.5), 0.5), "sum over rows"),
    (lambda: rm.linear_risk(np.eye(2), np.arange(2.0), Nu(Hinge(), 0.5)), "Hinge needs labels"),
    (lambda: rm.minimize(ADAPTED.objective(), "dual"), "a loss that is a sum over rows"),
    (lambda: rm.LinearRegressor(Nu(Hinge())).fit(*problem(Absolute())[:2]), "is a loss for classification"),
]
test_refusals = refusals((REFUSED, (TypeError, ValueError)))


def test_the_task_is_that_of_the_inner_loss_or_undefined():
    assert Nu(Hinge()).task == "classification"
    own = Nu(type("Own", (WithValues,), {"task": None})(), 0.5)
    assert own.task is None
    X, y, _ = problem(Absolute())
    one, two = (rm.LinearRegressor(loss, alpha=0.1).fit(X, y) for loss in (own, Nu(WithValues(), 0.5)))
    assert one.objective_ == two.objective_


# ---------------------------------------------------------------- the risk
@pytest.mark.parametrize(
    ("loss", "nu", "intercept"),
    [(Hinge(), 0.15, True), (Hinge(), 0.6, False), (Absolute(), 0.15, False), (Absolute(), 0.6, True)],
    ids=repr,
)
def test_the_optimum_equals_clarabels(loss, nu, intercept):
    case = Problem(Nu(loss, nu), lam=0.02, data=problem(loss, 40), weighted=True, intercept=intercept)
    case.check(rm.minimize(case.objective(), tol=1e-7), tol=1e-7)


def test_few_rows_in_the_margin_and_nu_one_give_the_unchanged_problem():
    case = Problem(Hinge(), n=60)
    w = rm.minimize(case.objective(), tol=1e-9).w
    fraction = float(np.mean(case.y * (case.X @ w) < 1))
    risk = replace(case.objective().risk, loss=Nu(Hinge(), min(1.0, fraction + 0.1)))
    result = rm.minimize(rm.Objective(risk, rm.L2(), case.lam), tol=1e-9)
    np.testing.assert_allclose(result.w, w, atol=1e-4)
    assert risk.threshold(result.w) == risk.best_intercept(result.w) == 0.0
    for intercept in (False, True):
        unadapted = Problem(Absolute(), weighted=True, intercept=intercept).objective(n_shards=2).risk
        adapted = replace(unadapted, loss=Nu(Absolute(), 1.0))
        assert adapted(w)[0] == pytest.approx(unadapted(w)[0], rel=1e-12)
        assert adapted.with_zero_intercept()(w)[0] >= adapted(w)[0] * (1 - 1e-12)


# ---------------------------------------------------------------- estimators
def checked_risk(model, scores, y):
    """Check that nu bounds the fraction of rows above the threshold; return the risk."""
    c = np.full(len(y), 1 / len(y))
    loss, t = model.loss, model.loss.threshold(scores, y, c)
    values = loss.loss.values(scores, y)
    assert np.mean(values > t + 1e-5) <= loss.nu
    assert np.mean(values >= t - 1e-5) >= loss.nu
    return float(loss.value_grad(scores, y, c)[0])


def linear_rows():
    X, y, _ = problem(Absolute(), 120, 3)
    return X, y + 4.0


def curved_rows():
    rng = np.random.default_rng(5)
    X = 3 * rng.random((80, 1))
    return X, np.sin(2 * X[:, 0]) + 4.0 + 0.3 * rng.standard_normal(80)


@pytest.mark.parametrize(
    ("rows", "model", "libsvm"),
    [
        *(
            (
                linear_rows,
                rm.LinearRegressor(Nu(Absolute(), nu), alpha=1 / 60, tol=1e-9),
                NuSVR(kernel="linear", nu=nu, C=0.5, tol=1e-9),
            )
            for nu in (0.1, 0.4, 0.8)
        ),
        (
            curved_rows,
            rm.KernelRegressor(Nu(Absolute(), 0.7), gamma=1.0, alpha=1 / 80, tol=1e-8),
            NuSVR(gamma=1.0, nu=0.7, C=1.0, tol=1e-9),
        ),
    ],
)
def test_tubes_equal_those_of_nu_svr(rows, model, libsvm):
    """LIBSVM minimizes |w|^2 / 2 + C (sum of the excess outside the tube + n nu t).

    The functions are equal up to a constant, and the intercepts equally good: the best may form an interval.
    """
    X, y = rows()
    predicted, expected = model.fit(X, y).predict(X), libsvm.fit(X, y).predict(X)
    np.testing.assert_allclose(predicted - predicted.mean(), expected - expected.mean(), atol=1e-4)
    risk = checked_risk(model, predicted, y)
    assert checked_risk(model, expected, y) == pytest.approx(risk, rel=1e-6)
    assert model.lower_bound_ <= model.objective_ * (1 + 1e-12)
    if rows is linear_rows:
        assert model.objective_ == pytest.approx(risk + model.coef_ @ model.coef_ / 120, rel=1e-9)


def test_the_direction_equals_that_of_nu_svc():
    """The length differs by a factor that depends on lam, as long as the threshold is less than 1."""
    X, y, _ = problem(Hinge(), n=80, seed=3)
    libsvm = NuSVC(kernel="linear", nu=0.5, tol=1e-9).fit(X, y).coef_[0]
    for lam in (1.0, 3.0):
        risk = rm.linear_risk(X, y, Nu(Hinge(), 0.5), fit_intercept=True)
        w = rm.minimize(rm.Objective(risk, rm.L2(), lam), tol=1e-10).w
        assert 0 < risk.threshold(w) < 1
        np.testing.assert_allclose(w / np.linalg.norm(w), libsvm / np.linalg.norm(libsvm), atol=1e-4)


def test_counts_are_predicted_as_counts():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = rng.poisson(np.exp(1 + X[:, 0]))
    model = rm.LinearRegressor(Nu(rm.Poisson(), 0.9), alpha=0.01).fit(X, y)
    assert model.predict(X).min() > 0
    assert np.corrcoef(np.log(model.predict(X)), X[:, 0])[0, 1] > 0.9
