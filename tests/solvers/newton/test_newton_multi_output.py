"""Newton's method for multi-output losses: second derivatives, linear systems, cuts, optima."""

from itertools import islice, pairwise

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm
from riskmin.core import UnsupportedProblem
from riskmin.losses.block_hessian import simplex_face_hessian
from riskmin.problem.design_operator import DesignOperator
from riskmin.solvers.newton.multi_output import newton_system
from riskmin.solvers.newton.multi_output import preconditioners as inverse
from riskmin.solvers.newton.multi_output.newton_system import HessianInputs, MultiOutputNewtonSystem
from riskmin.solvers.newton.newton import choose_score_problem

COST = np.array([[0, 2, 1.0], [1, 0, 0.5], [3, 1, 0]])
SMOOTH = [rm.Softmax(), rm.MulticlassSquaredHinge()]
NONSMOOTH = [
    rm.MulticlassHinge(),
    rm.MulticlassHinge(COST),
    rm.MulticlassHinge(COST, rescaled=True),
    rm.MulticlassHinge(COST, rescaled=0.5),
    rm.MulticlassHinge(COST, rescaled=True, scaled_margin=True),
]


def data(seed=0, n=60, p=4, k=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = np.argmax(X @ rng.standard_normal((p, k)) + rng.standard_normal((n, k)), axis=1).astype(float)
    return X, y, rng


def objective(loss, lam=1e-3, intercept=False, seed=0, sparse=False, n=60):
    X, y, rng = data(seed, n)
    if isinstance(loss, rm.MultivariateSquared):
        y = X @ rng.standard_normal((4, 3)) + rng.standard_normal((n, 3)) + 1
    c = rng.random(n)
    risk = rm.linear_risk(sp.csr_array(X) if sparse else X, y, loss, fit_intercept=intercept, sample_weight=c)
    return rm.Objective(risk, rm.L2(), lam)


def dense_hessian(obj, slopes):
    """The Hessian of the Newton system, column by column, by the linear map and the loss alone."""
    risk, rows = obj.risk, obj.risk.rows
    hessian = risk.loss.block_hessian(slopes.dz, rows.y, rows.c, slopes.mu)
    columns = []
    for e in np.eye(risk.dim):
        out = np.zeros(risk.dim)
        z = risk.linear_map.scores(rows.X, e, 0, len(rows.c))
        risk.linear_map.pullback(rows.X, hessian.product(z, slice(None)), 0, len(rows.c), out)
        columns.append(out)
    return np.array(columns)


# ---------------------------------------------------------------- second derivatives
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(range(8)))
def test_hessian_products_are_differences_of_gradients(seed, which):
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((3, 3))
    loss = [*SMOOTH, *NONSMOOTH, rm.MultivariateSquared(M @ M.T)][which]
    z, c, V = rng.standard_normal((5, 3)), rng.random(5), rng.standard_normal((5, 3))
    y = rng.standard_normal((5, 3)) if which == 7 else rng.integers(0, 3, 5).astype(float)
    mu, h = (0.7 if loss in NONSMOOTH else 0.0), 1e-7

    def slopes(z):
        return loss.smoothed_value_grad(z, y, c, mu)[1] if mu else loss.value_grad(z, y, c)[1]

    hessian = loss.block_hessian(slopes(z), y, c, mu)
    product, left, right = hessian.product(V, slice(None)), slopes(z - h * V), slopes(z + h * V)
    same_face = np.array_equal(left > 0, right > 0)  # no multiplier leaves its face on the way
    assert not same_face or np.allclose(product, (right - left) / (2 * h), atol=1e-5)
    units = [hessian.product(np.tile(e, (5, 1)), slice(None))[:, j] for j, e in enumerate(np.eye(3))]
    assert np.allclose(hessian.diagonal, np.array(units).T)


def test_face_hessians_are_sums_of_squares():
    rng = np.random.default_rng(0)
    face, size = (rng.random((8, 5)) < 0.6).astype(float), rng.random(8)
    face[:, 0] = 1.0
    rows, U = simplex_face_hessian(face, size).factors()
    for i in range(8):
        S = face[i]
        assert np.allclose(
            U[rows == i].T @ U[rows == i], size[i] * (np.diag(S) - np.outer(S, S) / S.sum()), atol=1e-12
        )


# ---------------------------------------------------------------- the linear system
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("loss", "intercept"),
    [
        (rm.Softmax(), False),
        (rm.Softmax(), True),
        (rm.MulticlassHinge(), False),
        (rm.MulticlassHinge(), True),
        (rm.MultivariateSquared(), False),
        (rm.MultivariateSquared(), True),
    ],
)
@pytest.mark.parametrize("weights", [None, np.array([0.1, 1.0, 5.0, 30.0])])
def test_directions_solve_the_linear_system(loss, intercept, sparse, weights):
    reg = rm.L2() if weights is None else rm.L2(np.repeat(weights, 3))
    obj = rm.Objective(objective(loss, 1e-2, intercept, sparse=sparse).risk, reg, 1e-2)
    mu = 0.0 if loss.smooth else 0.5
    scores = choose_score_problem(obj)
    w = np.random.default_rng(1).standard_normal(obj.risk.dim)
    evaluation = scores.evaluate(scores.design.forward(w), mu, None, 0.0)
    slopes = scores.hessian(evaluation, None, mu, None)
    system = MultiOutputNewtonSystem(scores.design, obj.reg, 2500)
    penalty = obj.lam * system._penalty_weights(
        w, mu
    )  # for nonsmooth losses, intercepts are penalized slightly
    H = dense_hessian(obj, slopes) + np.diag(penalty)
    g = scores.design.adjoint(evaluation.dz) + obj.lam * obj.reg.grad(w)
    d = MultiOutputNewtonSystem(scores.design, obj.reg, 2500).solve(slopes, obj.lam, g, 0.0)
    assert np.linalg.norm(H @ d + g) <= 0.2 * np.linalg.norm(g) + 1e-12
    # with the Hessian itself as preconditioner, a single step is exact
    active, P = system._active_rows(slopes, slopes.active_rows), penalty.reshape(-1, 3)
    if not intercept or not isinstance(loss, rm.Softmax):
        assert np.allclose(H @ inverse.exact_feature_solver(active, P)(g), g, atol=1e-8)
    if isinstance(loss, rm.MulticlassHinge) and not sparse:
        assert inverse.row_solver_cost(active, P, 2500) < np.inf
        assert np.allclose(H @ inverse.exact_row_solver(active, P)(g), g, atol=1e-8)
    for preconditioner in (
        inverse.diagonal_preconditioner,
        inverse.shared_preconditioner,
        inverse.per_class_preconditioner,
    ):
        assert g @ preconditioner(active, P)(g) > 0


# ---------------------------------------------------------------- runs
@pytest.mark.parametrize(
    ("loss", "intercept"),
    [
        (rm.Softmax(), False),
        (rm.Softmax(), True),
        (rm.MulticlassSquaredHinge(), True),
        (rm.MulticlassHinge(COST), False),
        (rm.MulticlassHinge(COST), True),
        (rm.MulticlassHinge(COST, rescaled=True), False),
        (rm.MulticlassHinge(COST, rescaled=True), True),
        (rm.MulticlassHinge(COST, rescaled=0.3), True),
        (rm.MulticlassHinge(COST, rescaled=0.7, scaled_margin=True), True),
        (rm.MultivariateSquared(np.eye(3) + 1), True),
    ],
)
def test_every_cut_lies_below_the_risk(loss, intercept):
    obj = objective(loss, 1e-3, intercept)
    rng = np.random.default_rng(3)
    points = [s * rng.standard_normal(obj.risk.dim) for s in (0.0, 0.1, 1.0, 10.0) for _ in range(4)]
    risks = [obj.risk(v)[0] for v in points]
    for _, it in zip(range(12), rm.Newton().iterates(obj, np.zeros(obj.risk.dim)), strict=False):
        assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
        for v, r in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= r + 1e-12 * (1 + r)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("lam", [1e-1, 1e-5])
@pytest.mark.parametrize("loss", SMOOTH)
def test_smooth_losses_reach_the_optimum_of_another_solver(loss, lam, intercept):
    obj = objective(loss, lam, intercept)
    result = rm.minimize(obj, rm.Newton(), tol=1e-9)
    other = rm.minimize(obj, rm.Lbfgs(), tol=1e-7, max_iter=5000)
    assert result.status == "converged"
    assert result.n_iter <= 30
    assert result.lower <= other.value * (1 + 1e-12)
    assert result.value >= other.lower * (1 - 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("lam", [1e-1, 1e-4])
@pytest.mark.parametrize("loss", NONSMOOTH)
def test_nonsmooth_losses_reach_the_optimum_of_a_conic_solver(loss, lam):
    X, y, _ = data(2, 40)
    k, is_label = 3, np.arange(3.0) == y[:, None]
    cost = np.ones((k, k)) - np.eye(k) if loss.cost is None else loss.cost
    W = cp.Variable((4, k))
    Z = X @ W
    lead = Z - cp.sum(cp.multiply(Z, is_label.astype(float)), axis=1, keepdims=True) @ np.ones((1, k))
    D = cost[y.astype(int)]
    factor = D ** float(loss.rescaled)
    slack = cp.multiply(factor, lead) + (factor if loss.scaled_margin else 1) * D
    program = cp.Problem(cp.Minimize(cp.sum(cp.max(slack, axis=1)) / 40 + lam / 2 * cp.sum_squares(W)))
    program.solve(solver="CLARABEL")
    obj = rm.Objective(rm.linear_risk(X, y, loss), rm.L2(), lam)
    result = rm.minimize(obj, rm.Newton(), tol=1e-8)
    assert result.status == "converged"
    assert result.value == pytest.approx(program.value, rel=1e-6)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [rm.Softmax(), rm.MulticlassHinge()])
def test_a_saved_run_continues(loss, intercept):
    obj, solver = objective(loss, 1e-3, intercept), rm.Newton()
    steps = [it for _, it in zip(range(8), solver.iterates(obj, np.zeros(obj.risk.dim)), strict=False)]
    for it, after in pairwise(steps):
        saved = {name: np.atleast_1d(np.array(a, copy=True)) for name, a in it.state().items()}
        first = next(solver.resume(obj, saved))
        np.testing.assert_allclose(first.w, after.w, rtol=1e-9, atol=1e-12)
        assert first.value == pytest.approx(after.value, rel=1e-9)


def test_threads_and_column_storage_agree():
    X, y, _ = data(4, 300)
    values = []
    for rows, executor in ((X, None), (np.asfortranarray(X), None), (X, rm.Threads)):
        risk = rm.linear_risk(rows, y, rm.Softmax(), **({} if executor is None else {"executor": executor}))
        values.append(rm.minimize(rm.Objective(risk, rm.L2(), 1e-4), rm.Newton(), tol=1e-10).value)
    assert np.ptp(values) <= 1e-10 * values[0]


def test_a_smooth_run_that_has_converged_can_be_resumed():
    obj = objective(rm.Softmax(), 1e-3, True)
    one = rm.minimize(obj, rm.Newton(), tol=1e-8)
    assert one.status == "converged"
    saved = {name: np.atleast_1d(a) for name, a in next(rm.Newton().iterates(obj, one.w)).state().items()}
    after = islice(rm.Newton().resume(obj, saved), 20)
    assert all(it.value <= one.value * (1 + 1e-12) for it in after)


def test_unsupported_problems_are_refused():
    X, y, _ = data()
    for reg, loss in ((rm.L1(), rm.Softmax()), (rm.Quadratic(np.eye(12)), rm.MulticlassHinge())):
        obj = rm.Objective(rm.linear_risk(X, y, loss), reg, 0.1)
        with pytest.raises(UnsupportedProblem, match="use"):
            next(rm.Newton().iterates(obj, np.zeros(obj.risk.dim)))


def test_rows_with_negligible_curvature_are_dropped_and_taken_back(monkeypatch):
    X, _, rng = data(5, 400)
    obj = rm.Objective(rm.linear_risk(X, np.argmax(X[:, :3], axis=1) * 1.0, rm.Softmax()), rm.L2(), 1e-6)
    scores = choose_score_problem(obj)
    W = np.zeros((4, 3))
    W[:3] = 20 * np.eye(3)
    evaluation = scores.evaluate(scores.design.forward(W.ravel()), 0.0, None, 0.0)
    system = MultiOutputNewtonSystem(scores.design, obj.reg, 2500)
    slopes = HessianInputs(evaluation.dz, 0.0)
    all_rows = system._active_rows(slopes, None)
    kept_rows = system._without_negligible_rows(all_rows, slopes)
    assert kept_rows.X.shape[0] < 0.8 * 400
    total = all_rows.hessian.diagonal.sum()
    assert kept_rows.hessian.diagonal.sum() >= 0.99 * total
    monkeypatch.setattr(
        newton_system.MultiOutputNewtonSystem, "DROPPED_HESSIAN_SHARE", 0.9
    )  # far too many dropped rows, which is detected and reduced
    g = rng.standard_normal(12)
    g -= np.repeat(g.reshape(4, 3).mean(axis=1), 3)
    d = system.solve(slopes, obj.lam, g, 0.0)
    H = dense_hessian(obj, slopes) + obj.lam * np.eye(12)
    assert np.linalg.norm(H @ d + g) <= 0.2 * np.linalg.norm(g)
    assert system.n_drop_reductions


@pytest.mark.parametrize("seed", [2, 10, 18])
def test_intercepts_without_curvature_do_not_make_conjugate_gradients_diverge(seed):
    X = sp.csr_array(np.random.default_rng(seed).standard_normal((6, 45)))
    risk = rm.linear_risk(X, np.array([1, 3, 4, 3, 0, 4]), rm.MulticlassSquaredHinge(), fit_intercept=True)
    result = rm.minimize(rm.Objective(risk, rm.L2(), lam=1e-3), rm.Newton(), tol=1e-4, max_iter=50)
    assert result.status == "converged"


def test_systems_without_curvature_have_a_finite_solution():
    risk = rm.linear_risk(np.eye(4, 2), np.array([1, 0, 2, 1]), rm.Softmax(), fit_intercept=True)
    g = np.append(np.ones(6), [1.0, -1.0, 0.0])
    system = MultiOutputNewtonSystem(DesignOperator(risk), rm.Objective(risk, rm.L2(), lam=1e-5).reg, 2500)
    d = system.solve(HessianInputs(np.zeros((4, 3)), 0.0), 1e-5, g, 0.0)
    assert np.isfinite(d).all()
    assert g @ d <= 0
