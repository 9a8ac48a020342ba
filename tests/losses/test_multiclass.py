"""Multi-output losses: their smoothed forms, intercepts, many classes, hard data, other libraries."""

import gc
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import COST, MANY_LOSSES, K, problem
from riskmin.problem.objective import Cut

CLASSES = [
    *(loss for loss in MANY_LOSSES if loss.task == "multiclass"),
    rm.MulticlassHinge(COST, rescaled=0.5),  # between margin and slack rescaling
    rm.MulticlassHinge(COST, rescaled=0.7, scaled_margin=True),
]


@pytest.mark.parametrize("loss", [loss for loss in CLASSES if not loss.smooth], ids=repr)
def test_smoothed_margin_losses_equal_a_quadratic_program_per_row(loss):
    import cvxpy as cp

    rng = np.random.default_rng(2)
    z, y, c = rng.standard_normal((6, K)), np.arange(6.0) % K, rng.random(6)
    cost = (1 - np.eye(K) if loss.cost is None else loss.cost)[y.astype(int)]
    lead = z - z[np.arange(6), y.astype(int)][:, None]
    factor = cost ** float(loss.rescaled)
    slack = factor * lead + (factor if loss.scaled_margin else 1) * cost
    for mu in (0.1, 2.0):
        beta = cp.Variable((6, K), nonneg=True)
        square = mu / 2 * (c @ cp.sum(cp.square(beta), axis=1))
        objective = cp.Maximize(c @ cp.sum(cp.multiply(slack, beta), axis=1) - square)
        program = cp.Problem(objective, [cp.sum(beta, axis=1) == 1])
        program.solve(solver=cp.CLARABEL)
        value, _, offset = loss.smoothed_value_grad(z, y, c, mu)
        assert float(value) == pytest.approx(program.value, abs=1e-7)
        assert float(offset) == pytest.approx(square.value, abs=1e-5)
    assert float(loss.smoothed_value_grad(z, y, c, 1e-9)[0]) == pytest.approx(
        float(loss.value_grad(z, y, c)[0]), abs=1e-8
    )


# ---------------------------------------------------------------- intercepts
@st.composite
def classes(draw):
    """A risk with intercepts: random costs, zero or tiny weights, missing classes."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    k, n, p = draw(st.integers(2, 5)), draw(st.integers(2, 12)), draw(st.integers(1, 3))
    y = rng.integers(0, k, n).astype(float)
    y[:2] = rng.permutation(k)[:2]
    weights = rng.random(n) * 10.0 ** draw(st.sampled_from([0, -8, -150])) ** (y == y[0])
    if draw(st.booleans()):
        weights[y == y[1]] = 0.0
    assume(weights.sum() > 0)
    cost = rng.random((k, k)) * (rng.random((k, k)) < draw(st.sampled_from([0.5, 1.0]))) * (1 - np.eye(k))
    kind = draw(st.sampled_from([rm.Softmax(), rm.MulticlassSquaredHinge(), None]))
    loss = kind or rm.MulticlassHinge(draw(st.sampled_from([None, cost])), draw(st.booleans()))
    X = rng.standard_normal((n, p))
    settings = {"sample_weight": weights, "fit_intercept": True, "n_outputs": k}
    return rm.linear_risk(X, y, loss, **settings), rng


@settings(max_examples=30, deadline=None)
@given(classes(), st.sampled_from([0.1, 1.0, 30.0, 1e4]))
def test_projected_cuts_are_cuts_with_zero_slope_in_the_intercepts(risk_rng, scale):
    risk, rng = risk_rng
    k = risk.n_intercepts
    w = scale * rng.standard_normal(risk.dim)
    value, grad = risk(w)
    tangent = Cut(grad, value - grad @ w)
    cut = risk.project_out_intercepts(tangent)
    assert np.all(cut.a[-k:] == 0)
    for scale_ in (0.0, 1.0, 1e3):
        for v in scale_ * rng.standard_normal((8, risk.dim)):
            risk_at_v = risk(v)[0]
            slack = 1e-11 * (1 + risk_at_v + abs(tangent.b) + np.abs(cut.a) @ np.abs(v))
            assert cut.a @ v + cut.b <= risk_at_v + slack
    twice = risk.project_out_intercepts(cut)  # a second projection changes nothing
    np.testing.assert_allclose(twice.a, cut.a, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(
    "loss", [rm.Softmax(), rm.MulticlassHinge(COST), rm.MulticlassSquaredHinge()], ids=repr
)
@pytest.mark.parametrize("lam", [1e-6, 1e4])
def test_intercepts_of_separable_data(loss, lam):
    """Intercepts may become large; the lower bounds stay below the value found."""
    rng = np.random.default_rng(3)
    y = np.arange(12.0) % K
    X = 5 * np.eye(K)[y.astype(int)] + 0.1 * rng.standard_normal((12, K))
    X = np.column_stack([X, np.zeros(12)])  # a column of zeros, and each row twice
    X, y = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    J = rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=True), rm.L2(), lam)
    result = rm.minimize(J, tol=1e-4, max_iter=500)
    assert 0 <= result.lower <= result.value <= J.value(np.zeros(J.risk.dim)) * (1 + 1e-12)
    assert result.status == "converged" or lam < 1
    for max_iter in (1, 2):
        short_run = rm.minimize(J, w0=rng.standard_normal(J.risk.dim), max_iter=max_iter)
        assert short_run.lower <= result.value * (1 + 1e-12)


@pytest.mark.parametrize("intercept", [False, True])
def test_lam_max_is_where_all_weights_become_zero(intercept):
    X, y, weights = problem(rm.Softmax())
    risk = rm.linear_risk(X, y, rm.Softmax(), sample_weight=weights, fit_intercept=intercept)
    largest = rm.lam_max(risk, rm.L1())
    for lam, all_zero in ((1.001 * largest, True), (0.98 * largest, False)):
        result = rm.minimize(rm.Objective(risk, rm.L1(), lam), tol=1e-7)
        assert (result.status, bool(np.all(result.w[: 4 * K] == 0))) == ("converged", all_zero)


# ---------------------------------------------------------------- numbers of classes
def test_the_scores_of_many_classes_are_not_all_stored():
    """All scores take 34 megabytes, and those of a block of rows one."""
    n, p, k = 2**11, 20, 2**11 + 1
    rng = np.random.default_rng(6)
    X, y = sp.random_array((n, p), density=0.05, format="csr", rng=rng), np.arange(float(n))
    risk = rm.linear_risk(X, y, rm.Softmax(), fit_intercept=True, n_shards=1, n_outputs=k)
    w, d = rng.standard_normal((2, risk.dim))
    cursor = risk.cursor(w)
    cursor.set_direction(d)
    gc.collect()
    tracemalloc.start()
    value, grad = risk(w)
    slope = cursor.value_slope(0.0)[1]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.5 * 8 * n * k
    Z = X @ w[:-k].reshape(p, k) + w[-k:]
    expected, dz = rm.Softmax().value_grad(Z, y, np.full(n, 1 / n))
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(grad, np.append(X.T @ dz, dz.sum(0)), atol=1e-12)
    assert slope == pytest.approx(grad @ d, rel=1e-9)


def test_the_weights_of_classes_without_rows_are_all_alike():
    """With more classes than rows."""
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((40, 6)), np.arange(40.0) % 30
    J = rm.Objective(rm.linear_risk(X, y, rm.Softmax(), n_outputs=100), rm.L2(), 0.01)
    result = rm.minimize(J, tol=1e-5)
    W = result.w.reshape(6, 100)
    assert result.status == "converged"
    np.testing.assert_allclose(W[:, 30:], W[:, 30:31] + 0 * W[:, 30:], atol=1e-3)


# ---------------------------------------------------------------- odd problems
def test_denormal_slopes_in_an_intercept_are_projected_out():
    risk = rm.linear_risk(np.array([[0.5], [0.6], [-0.6]]), np.arange(3.0), rm.Softmax(), fit_intercept=True)
    cut = risk.project_out_intercepts(Cut(np.array([-0.2, 0.2, 6e-320, -1 / 3, 1 / 3, 1e-319]), 0.0))
    assert np.all(np.isfinite(cut.a))
    assert np.all(cut.a[-3:] == 0)


@pytest.mark.parametrize("loss", [rm.Softmax(), rm.MulticlassHinge(), rm.MulticlassSquaredHinge()], ids=repr)
def test_a_single_class_is_accepted_if_the_number_of_classes_is_given(loss):
    """As when a model is certified on some of its rows."""
    X, w = np.array([[1.0, 2.0], [3.0, -1.0]]), np.random.default_rng(0).standard_normal(6)
    risk = rm.linear_risk(X, np.ones(2), loss, n_outputs=3)
    assert risk(w)[0] == pytest.approx(loss.value_grad(X @ w.reshape(2, 3), np.ones(2), np.full(2, 0.5))[0])
    assert rm.minimize(rm.Objective(risk, rm.L2(), 0.1), tol=1e-4).status == "converged"


# ---------------------------------------------------------------- optimized intercepts
def test_intercepts_are_optimized_without_a_pass_over_X():
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((60, 3)), rng.integers(0, 4, 60).astype(float)
    risk = rm.linear_risk(X, y, rm.Softmax(), fit_intercept=True, n_shards=3)
    cursor = risk.cursor(rng.standard_normal(risk.dim))
    value, grad, _ = cursor.evaluate()
    w = cursor.w
    for _ in range(3):
        cursor.optimize_intercepts()
    optimized, slope, _ = cursor.evaluate()
    assert np.array_equal(cursor.w[:-4], w[:-4])  # the weights are unchanged
    assert optimized < value
    assert abs(slope[-4:]).max() <= 1e-4 * abs(grad[-4:]).max()
    fresh_value, fresh_grad = risk(cursor.w)  # the cached scores and evaluation belong to the new w
    assert fresh_value == pytest.approx(optimized, rel=1e-12)
    np.testing.assert_allclose(slope, fresh_grad, atol=1e-12)
