"""The nu-trick: against brute force, cvxpy and LIBSVM's nu-machines, and its contract."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers import ALL_LOSSES, labels, problem
from riskmin import (
    L1,
    L2,
    Absolute,
    Bmrm,
    Bundle,
    Hinge,
    KernelClassifier,
    KernelRegressor,
    LinearClassifier,
    LinearRegressor,
    Nu,
    Objective,
    Poisson,
    Processes,
    Squared,
    Threads,
    get_solver,
    linear_risk,
    minimize,
)
from riskmin.losses import LOSSES
from riskmin.losses.nondecomposable.nu import tail_weights
from riskmin.solvers.base import local_rows_of
from riskmin.testing import check_loss


# ---------------------------------------------------------------- the loss
@pytest.mark.parametrize("nu", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("loss", [Hinge(), Absolute(), Squared()], ids=repr)
def test_contract(loss, nu):
    check_loss(Nu(loss, nu))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_contract_of_all_losses(loss):
    check_loss(Nu(loss, 0.4))


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_row_values_are_the_losses_of_single_rows(loss):
    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal(30)
    y, ones = labels(loss, z, rng), np.ones(1)
    expected = [float(loss.value_grad(z[i : i + 1], y[i : i + 1], ones)[0]) for i in range(30)]
    np.testing.assert_allclose(loss.values(z, y), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
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
    assert float(loss.value_grad(values, y, c)[0]) == pytest.approx(best, abs=1e-12)
    assert value(loss.threshold(values, y, c)) == pytest.approx(best, abs=1e-11)
    a, _ = tail_weights(values, c, nu)
    assert np.all((a >= 0) & (a <= c))
    assert a.sum() <= nu * (1 + 1e-12)


def test_losses_without_row_values_are_refused():
    class Cubed:
        separable = True
        task = "regression"

        def value_grad(self, z, y, c):
            m = np.abs(z - y)
            return c @ m**3 / 3, c * np.sign(z - y) * m**2

    with pytest.raises(TypeError, match=r"Cubed cannot return its loss per row.*values\(z, y\)"):
        Nu(Cubed(), 0.5)

    class WithValues(Cubed):
        def values(self, z, y):
            return np.abs(z - y) ** 3 / 3

    check_loss(WithValues())
    check_loss(Nu(WithValues(), 0.5))

    class WithWrongValues(Cubed):
        def values(self, z, y):
            return np.abs(z - y) ** 3

    with pytest.raises(AssertionError, match="for a row whose loss is"):
        check_loss(WithWrongValues())


@pytest.mark.slow  # for the import of torch
def test_torch_agrees():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    z, y, c = rng.standard_normal(20), rng.choice([-1.0, 1.0], 20), np.full(20, 0.05)
    value, dz = Nu(Hinge(), 0.33).value_grad(z, y, c)
    torch_value, grad = Nu(Hinge(), 0.33).value_grad(*(torch.as_tensor(a) for a in (z, y, c)))
    assert float(torch_value) == pytest.approx(float(value))
    np.testing.assert_allclose(grad.numpy(), dz)


@pytest.mark.parametrize("nu", [0.0, -0.1, 1.1, np.nan])
def test_nu_is_checked(nu):
    with pytest.raises(ValueError, match="0 < nu <= 1"):
        Nu(Hinge(), nu)


def test_invalid_arguments_are_refused():
    with pytest.raises(TypeError, match="sum over rows"):
        Nu(Nu(Hinge(), 0.5), 0.5)
    with pytest.raises(ValueError, match="Hinge needs labels"):
        linear_risk(np.eye(2), np.arange(2.0), Nu(Hinge(), 0.5))


# ---------------------------------------------------------------- the risk
def joint_optimum(loss, X, y, c, nu, lam, intercept):
    """The optimum by cvxpy, jointly over w, b and t."""
    cp = pytest.importorskip("cvxpy")
    w, t = cp.Variable(X.shape[1]), cp.Variable(nonneg=True)
    z = X @ w + (cp.Variable() if intercept else 0.0)
    row_losses = cp.abs(z - y) if isinstance(loss, Absolute) else cp.pos(1 - cp.multiply(y, z))
    J = lam / 2 * cp.sum_squares(w) + nu * t + c @ cp.pos(row_losses - t)
    program = cp.Problem(cp.Minimize(J))
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return float(program.value)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [Hinge(), Absolute()], ids=repr)
@pytest.mark.parametrize("nu", [0.15, 0.6])
def test_the_optimum_equals_cvxpys(loss, nu, intercept):
    X, y, weights = problem(loss, n=50)
    lam, c = 0.02, weights / weights.sum()
    risk = linear_risk(X, y, Nu(loss, nu), sample_weight=weights, fit_intercept=intercept)
    result = minimize(Objective(risk, L2(), lam), tol=1e-8)
    best = joint_optimum(loss, X, y, c, nu, lam, intercept)
    assert result.status == "converged"
    assert result.lower <= best * (1 + 1e-6)
    assert result.value == pytest.approx(best, rel=1e-6)
    assert "Bundle" in result.solver


@pytest.mark.parametrize("intercept", [False, True])
def test_cuts_lie_below_the_risk(intercept):
    X, y, weights = problem(Absolute(), n=40)
    risk = linear_risk(X, y, Nu(Absolute(), 0.3), sample_weight=weights, fit_intercept=intercept)
    obj, rng = Objective(risk, L2(), 0.1), np.random.default_rng(0)
    points = [s * rng.standard_normal(4) for s in (0.0, 0.1, 1.0, 10.0) for _ in range(5)]
    cuts = [obj.cut(v) for v in points]
    for v in points:
        value = risk(v)[0]
        assert max(float(cut.a @ v) + cut.b for cut in cuts) <= value * (1 + 1e-12)
        cut_at_v = obj.cut(v)
        assert float(cut_at_v.a @ v) + cut_at_v.b == pytest.approx(value, rel=1e-9)
    cursor = obj.cursor(points[7])
    cursor.set_direction(points[8])
    for t in (0.0, 0.5, 2.0):
        assert cursor.value_slope(t)[0] == pytest.approx(obj.value(points[7] + t * points[8]), rel=1e-11)


@pytest.mark.parametrize("nu", [0.1, 0.4, 0.8])
def test_the_tube_equals_that_of_nu_svr(nu):
    """LIBSVM minimizes |w|^2 / 2 + C (sum of the excess outside the tube + n nu t)."""
    from sklearn.svm import NuSVR

    rng = np.random.default_rng(5)
    n, C = 120, 0.5
    X = rng.standard_normal((n, 3))
    y = X @ [1.0, -2.0, 0.5] + 4.0 + rng.standard_normal(n)
    risk = linear_risk(X, y, Nu(Absolute(), nu), fit_intercept=True)
    obj = Objective(risk, L2(), 1 / (C * n))
    result = minimize(obj, tol=1e-9)
    libsvm = NuSVR(kernel="linear", nu=nu, C=C, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(result.w, libsvm.coef_[0], atol=1e-4)
    assert obj.value(libsvm.coef_[0]) == pytest.approx(result.value, rel=1e-6)
    z = X @ libsvm.coef_[0] + libsvm.intercept_[0]  # one of the best intercepts, which may form an interval
    value, _ = Nu(Absolute(), nu).value_grad(z, y, np.full(n, 1 / n))
    assert float(value) == pytest.approx(risk(libsvm.coef_[0])[0], rel=1e-6)
    outside = np.abs(X @ result.w + risk.best_intercept(result.w) - y) - risk.threshold(result.w)
    assert np.mean(outside > 1e-6) <= nu
    assert np.mean(outside >= -1e-6) >= nu


def test_the_direction_equals_that_of_nu_svc():
    """The length differs by a factor that depends on lam, as long as the threshold is less than 1."""
    from sklearn.svm import NuSVC

    X, y, _ = problem(Hinge(), n=80, seed=3)
    libsvm = NuSVC(kernel="linear", nu=0.5, tol=1e-9).fit(X, y).coef_[0]
    for lam in (1.0, 3.0):
        risk = linear_risk(X, y, Nu(Hinge(), 0.5), fit_intercept=True)
        result = minimize(Objective(risk, L2(), lam), tol=1e-10)
        assert 0 < risk.threshold(result.w) < 1
        np.testing.assert_allclose(
            result.w / np.linalg.norm(result.w), libsvm / np.linalg.norm(libsvm), atol=1e-4
        )


def test_with_few_rows_in_the_margin_it_is_the_usual_svm():
    X, y, _ = problem(Hinge(), n=60)
    unadapted = linear_risk(X, y, Hinge())
    lam = 0.01
    w = minimize(Objective(unadapted, L2(), lam), tol=1e-9).w
    fraction = float(np.mean(y * (X @ w) < 1))
    risk = replace(unadapted, loss=Nu(Hinge(), min(1.0, fraction + 0.1)))
    result = minimize(Objective(risk, L2(), lam), tol=1e-9)
    np.testing.assert_allclose(result.w, w, atol=1e-4)
    assert risk.threshold(result.w) == 0.0
    assert risk.best_intercept(result.w) == 0.0


def test_nu_one_is_the_unchanged_risk():
    X, y, weights = problem(Absolute())
    w = np.array([0.3, -0.2, 1.0, 0.0])
    for intercept in (False, True):
        unadapted = linear_risk(X, y, Absolute(), sample_weight=weights, fit_intercept=intercept)
        assert replace(unadapted, loss=Nu(Absolute(), 1.0))(w)[0] == pytest.approx(unadapted(w)[0], rel=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
def test_threads_and_shards_agree(intercept):
    X, y, _ = problem(Hinge(), n=60)
    results = []
    for options in ({}, {"n_shards": 4, "executor": Threads(n_workers=2)}):
        risk = linear_risk(X, y, Nu(Hinge(), 0.3), fit_intercept=intercept, **options)
        results.append(minimize(Objective(risk, L2(), 0.01), tol=1e-7))
    assert results[0].value == pytest.approx(results[1].value, rel=1e-6)
    assert {r.status for r in results} == {"converged"}


@pytest.mark.exhaustive
def test_processes():
    X, y, _ = problem(Hinge(), n=60)
    local = linear_risk(X, y, Nu(Hinge(), 0.3))
    remote = linear_risk(X, y, Nu(Hinge(), 0.3), n_shards=2, executor=Processes(n_workers=2))
    w = np.array([0.3, -0.2, 1.0, 0.0])
    assert remote(w)[0] == pytest.approx(local(w)[0], rel=1e-12)
    assert minimize(Objective(remote, L2(), 0.01)).status == "converged"
    remote.executor.close()


@pytest.mark.parametrize("solver", [Bmrm(), Bundle()], ids=repr)
def test_other_solvers_and_regularizers(solver):
    X, y, _ = problem(Absolute(), n=40)
    obj = Objective(linear_risk(X, y, Nu(Absolute(), 0.3)), L1(), 0.02)
    assert minimize(obj, solver, tol=1e-6, max_iter=2000).status == "converged"


def test_solvers_that_read_rows_refuse_nu_losses():
    X, y, _ = problem(Hinge())
    for risk in (linear_risk(X, y, Nu(Hinge(), 0.3)), linear_risk(X, y, Nu(Hinge(), 0.3))):
        with pytest.raises(TypeError, match="a loss that is a sum over rows"):
            local_rows_of(risk, get_solver("bundle"))


# ---------------------------------------------------------------- as a loss
def test_with_an_intercept_the_risk_is_adaptive():
    X, y, weights = problem(Absolute())
    settings = {"sample_weight": weights, "fit_intercept": True, "n_shards": 2}
    risk = linear_risk(X, y, Nu(Absolute(), 0.3), **settings)
    other = replace(linear_risk(X, y, Absolute(), **settings), loss=Nu(Absolute(), 0.3))
    w = np.array([0.3, -0.2, 1.0, 0.0])
    assert risk.intercept.profiled
    assert risk.loss == other.loss == Nu(Absolute(), 0.3)
    assert risk(w)[0] == other(w)[0]
    assert risk.with_zero_intercept()(w)[0] >= risk(w)[0]


def test_nu_is_converted_to_and_from_dicts():
    loss = Nu(Hinge(margin=2.0), 0.3)
    assert LOSSES.to_dict(loss) == {
        "name": "Nu",
        "params": {"loss": {"name": "Hinge", "params": {"margin": 2.0}}, "nu": 0.3},
    }
    assert LOSSES.from_dict(LOSSES.to_dict(loss)) == loss


def checked_risk(model, scores, y):
    """Check that nu bounds the fraction of rows above the threshold; return the risk."""
    c = np.full(len(y), 1 / len(y))
    loss, t = model.loss, model.loss.threshold(scores, y, c)
    values = loss.loss.values(scores, y)
    assert np.mean(values > t + 1e-5) <= loss.nu
    assert np.mean(values >= t - 1e-5) >= loss.nu
    return float(loss.value_grad(scores, y, c)[0])


def same_fit(model, libsvm, X, y):
    """The same function up to a constant, and an equally good intercept (the best may form an interval)."""
    predicted, expected = model.predict(X), libsvm.predict(X)
    np.testing.assert_allclose(predicted - predicted.mean(), expected - expected.mean(), atol=1e-4)
    assert checked_risk(model, expected, y) == pytest.approx(checked_risk(model, predicted, y), rel=1e-6)


def test_linear_models_equal_libsvm():
    from sklearn.svm import NuSVR

    rng = np.random.default_rng(5)
    X = rng.standard_normal((120, 3))
    y = X @ [1.0, -2.0, 0.5] + 4.0 + rng.standard_normal(120)
    model = LinearRegressor(Nu(Absolute(), 0.3), alpha=1 / 60, tol=1e-9).fit(X, y)
    libsvm = NuSVR(kernel="linear", nu=0.3, C=0.5, tol=1e-9).fit(X, y)
    same_fit(model, libsvm, X, y)
    risk = checked_risk(model, model.predict(X), y)
    assert model.objective_ == pytest.approx(risk + model.coef_ @ model.coef_ / 120, rel=1e-9)
    assert model.lower_bound_ <= model.objective_ * (1 + 1e-12)


def test_classifiers():
    X, y, _ = problem(Hinge(), n=80, seed=3)
    model = LinearClassifier(Nu(Hinge(), 0.6), alpha=0.05, tol=1e-8).fit(X, y)
    risk = checked_risk(model, model.decision_function(X), y)
    assert model.intercept_[0] != 0
    assert model.objective_ == pytest.approx(risk + 0.025 * np.sum(model.coef_**2), rel=1e-7)
    kernel = KernelClassifier(Nu(Hinge(), 0.6), kernel="linear", alpha=0.05, tol=1e-8).fit(X, y)
    assert kernel.objective_ == pytest.approx(model.objective_, rel=2e-8)
    without = LinearClassifier(Nu(Hinge(), 0.6), alpha=0.05, fit_intercept=False).fit(X, y)
    assert without.intercept_[0] == 0
    assert without.objective_ >= model.lower_bound_
    assert not hasattr(model, "predict_proba")


@pytest.mark.parametrize("nu", [0.2, 0.7])
def test_kernel_machines_equal_libsvm(nu):
    from sklearn.svm import NuSVR

    rng = np.random.default_rng(5)
    X = 3 * rng.random((80, 1))
    y = np.sin(2 * X[:, 0]) + 4.0 + 0.3 * rng.standard_normal(80)
    model = KernelRegressor(Nu(Absolute(), nu), gamma=1.0, alpha=1 / 80, tol=1e-8).fit(X, y)
    libsvm = NuSVR(gamma=1.0, nu=nu, C=1.0, tol=1e-9).fit(X, y)
    same_fit(model, libsvm, X, y)


def test_counts_are_predicted_as_counts():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = rng.poisson(np.exp(1 + X[:, 0]))
    model = LinearRegressor(Nu(Poisson(), 0.9), alpha=0.01).fit(X, y)
    assert model.predict(X).min() > 0
    assert np.corrcoef(np.log(model.predict(X)), X[:, 0])[0, 1] > 0.9


def test_the_task_is_that_of_the_inner_loss_or_undefined():
    class Own:
        separable = True

        def value_grad(self, z, y, c):
            return c @ abs(z - y), c * np.sign(z - y)

        def values(self, z, y):
            return abs(z - y)

    assert Nu(Hinge()).task == "classification"
    assert Nu(Own()).task is None
    X, y, _ = problem(Absolute())
    assert (
        LinearRegressor(Nu(Own())).fit(X, y).objective_
        == LinearRegressor(Nu(Absolute())).fit(X, y).objective_
    )
    with pytest.raises(ValueError, match="Nu is a loss for classification"):
        LinearRegressor(Nu(Hinge())).fit(X, y)
