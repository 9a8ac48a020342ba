"""Multiclass intercepts in Newton's method and bundle methods: reference optima, hard tables, cuts."""

from itertools import islice, pairwise

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_iris, load_wine

import riskmin as rm
from helpers import COST
from riskmin.solvers.bundle.stored_cuts import CenteredFrame, mean_squared_row_norm
from riskmin.solvers.newton.newton import choose_score_problem

NONSMOOTH = [rm.MulticlassHinge(), rm.MulticlassHinge(COST), rm.MulticlassHinge(COST, rescaled=True)]
TREE = rm.Tree.from_paths(["A/a", "A/b", "B"])
ANY = [rm.Softmax(), rm.MulticlassSquaredHinge(), rm.HierarchicalHinge(TREE), rm.HierarchicalSoftmax(TREE)]
NEWTON, BUNDLE = rm.Newton(), rm.Bundle()
each_solver = pytest.mark.parametrize("solver", [NEWTON, BUNDLE], ids=["newton", "bundle"])


def data(n=60, p=4, k=3, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n).astype(float)
    y[:k] = np.arange(k)
    X = rng.standard_normal((k, p))[y.astype(int)] + spread * rng.standard_normal((n, p)) + 3.0
    return X, y, rng.random(n) + 0.1


def conic(X, y, c, loss, lam, k):
    """The minimum of J by an interior-point method, with unpenalized intercepts."""
    labels, cost = y.astype(int), np.ones((k, k)) - np.eye(k) if loss.cost is None else np.array(loss.cost)
    W, b = cp.Variable((X.shape[1], k)), cp.Variable((1, k))
    z = X @ W + np.ones((len(X), 1)) @ b
    true_score = cp.sum(cp.multiply(z, np.eye(k)[labels]), axis=1, keepdims=True)
    lead = z - true_score @ np.ones((1, k))
    slack = cp.multiply(cost[labels], 1 + lead) if loss.rescaled else cost[labels] + lead
    risk = (c / c.sum()) @ cp.max(slack, axis=1)
    J = cp.Problem(cp.Minimize(lam / 2 * cp.sum_squares(W) + risk))
    return J.solve(solver="CLARABEL")


# ---------------------------------------------------------------- the optimum
@each_solver
@pytest.mark.parametrize("lam", [1e-1, 1e-4])
@pytest.mark.parametrize("loss", NONSMOOTH, ids=["plain", "cost", "rescaled"])
def test_the_optimum_equals_that_of_a_conic_solver(loss, lam, solver):
    X, y, c = data()
    obj = rm.Objective(rm.linear_risk(X, y, loss, sample_weight=c, fit_intercept=True), rm.L2(), lam)
    result = rm.minimize(obj, solver, tol=1e-8)
    assert result.status == "converged"
    assert result.value == pytest.approx(conic(X, y, c, loss, lam, 3), rel=1e-6)


@each_solver
@pytest.mark.parametrize("loss", NONSMOOTH, ids=["plain", "cost", "rescaled"])
def test_every_cut_lies_below_the_risk_with_zero_slope_in_the_intercepts(loss, solver):
    X, y, c = data(seed=1)
    obj = rm.Objective(rm.linear_risk(X, y, loss, sample_weight=c, fit_intercept=True), rm.L2(), 1e-3)
    rng = np.random.default_rng(3)
    points = [s * rng.standard_normal(obj.risk.dim) for s in (0.0, 0.1, 1.0, 10.0) for _ in range(4)]
    risks = [obj.risk(v)[0] for v in points]
    for it in islice(solver.iterates(obj, np.zeros(obj.risk.dim)), 15):
        assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
        assert not it.cut.a[-3:].any()
        for v, r in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= r + 1e-11 * (1 + r)


# ---------------------------------------------------------------- hard tables
def wide(n, p, k, seed=0):
    """More features than rows, so that the rows are separable."""
    return data(n, p, k, seed, 2.0)[:2]


def rare():
    X, y, _ = data(150, 5, 3, spread=2.0)
    y[0], y[1], y[2] = 3.0, 4.0, 4.0
    return X, y


def twice():
    X, y, _ = data(150, 4, 3, spread=2.0)
    return np.hstack([X, X, X[:, :2]]), y


TABLES = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "rare": rare,
    "duplicates": twice,
    "wide": lambda: wide(30, 80, 4),
    "separable": lambda: data(150, 4, 4, spread=0.02)[:2],
}


@pytest.mark.parametrize("lam", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("table", TABLES)
def test_newton_solves_unscaled_tables(table, lam):
    X, y = TABLES[table]()
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(), lam)
    result = rm.minimize(obj, NEWTON, tol=1e-5)
    assert result.status == "converged"
    assert result.n_iter < 300


@pytest.mark.parametrize("table", [name for name in TABLES if name != "wide"])
def test_bundle_solves_unscaled_tables(table):
    X, y = TABLES[table]()
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(), 1e-4)
    result = rm.minimize(obj, BUNDLE, tol=1e-6)
    assert result.status == "converged"
    assert result.value == pytest.approx(rm.minimize(obj, NEWTON, tol=1e-7).value, rel=2e-6)


@pytest.mark.exhaustive
def test_many_separable_classes():
    X, y = load_digits(return_X_y=True)
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(), 1e-6)
    result = rm.minimize(obj, NEWTON)
    assert result.status == "converged"
    assert result.n_iter < 400


@each_solver
def test_classes_without_rows_do_not_increase_the_optimum(solver):
    X, y, c = data()
    risks = [
        rm.linear_risk(X, y, rm.MulticlassHinge(), sample_weight=c, fit_intercept=True, n_outputs=k)
        for k in (3, 5)
    ]
    present, with_empty = (rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), solver, tol=1e-7) for risk in risks)
    assert with_empty.status == "converged"
    # zero weights for the empty classes are feasible, so the optimum does not increase
    assert with_empty.value <= present.value * (1 + 1e-6)


# ---------------------------------------------------------------- Newton's method
def test_sparse_rows_and_threads_agree():
    X, y, _ = data(200)
    values = []
    for rows, executor in ((X, None), (sp.csr_array(X), None), (np.asfortranarray(X), None), (X, rm.Threads)):
        settings = {} if executor is None else {"executor": executor}
        risk = rm.linear_risk(rows, y, rm.MulticlassHinge(), fit_intercept=True, **settings)
        values.append(rm.minimize(rm.Objective(risk, rm.L2(), 1e-4), NEWTON, tol=1e-9).value)
    assert np.ptp(values) <= 1e-8 * values[0]


def test_the_face_model_of_a_stage_is_exact_on_the_faces():
    X, y, c = data(40)
    risk = rm.linear_risk(X, y, rm.MulticlassHinge(COST), sample_weight=c, fit_intercept=True)
    scores = choose_score_problem(rm.Objective(risk, rm.L2(), 1e-3))
    rng = np.random.default_rng(0)
    z, mu = rng.standard_normal((40, 3)), 0.5
    center = scores.evaluate(z, 2.0, None, 0.0).dz
    slopes, evaluation = scores.face_model(z, mu, center)
    hessian = risk.loss.block_hessian(evaluation.dz, scores.y, scores.c, mu)
    # where no multiplier leaves its face, the model is exact
    step, every = 1e-9, slice(None)
    rows = np.flatnonzero(scores.evaluate(z, 2.0, None, 0.0).hessian_diagonal > 1)
    exact = scores.evaluate(
        step * z - (1 - step) * scores.loss.cost[scores.y.astype(int)], mu, center, 0.0
    ).dz
    model = center + step * hessian.product(z + scores.loss.cost[scores.y.astype(int)], every)
    assert np.allclose(exact[rows], model[rows], atol=1e-12)
    assert np.allclose(slopes, center + hessian.product(z + scores.loss.cost[scores.y.astype(int)], every))
    assert scores.face_model(z, mu, np.zeros_like(z)) is None


def test_newton_continues_from_the_multipliers_of_dual_ascent():
    X, y, _ = data(150)
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(), 1e-3)
    before = list(islice(rm.DualCoordinateAscent().iterates(obj, np.zeros(obj.risk.dim)), 8))[-1]
    state = before.state()
    assert np.array_equal(next(NEWTON.warm_start(obj, state, obj)).w, before.w)
    scores = choose_score_problem(obj)
    center = scores.c[:, None] * (state["beta"] - np.eye(3)[y.astype(int)])
    assert np.allclose(scores.saved_score_gradient(state), center, atol=1e-12)
    result = rm.minimize(
        obj, rm.Switching(rm.DualCoordinateAscent(), NEWTON, tol=1e-7, passes_per_digit=0.1), tol=1e-7
    )
    assert result.status == "converged"
    assert {row["solver"] for row in result.trace} == {1.0, 2.0}


# ---------------------------------------------------------------- bundle methods
REGS = [
    rm.L2(),
    rm.L1(),
    rm.Elastic(),
    rm.QNorm(),
    rm.Entropy(normalized=False, balanced=True),
    rm.Box(rm.L2(), -1.0, 1.0),
    rm.Box(rm.L1()),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("reg", REGS, ids=repr)
@pytest.mark.parametrize("loss", [rm.MulticlassHinge(COST), *ANY], ids=lambda loss: type(loss).__name__)
def test_bundle_supports_any_loss_and_regularizer(loss, reg):
    X, y, c = data(40, 3)
    obj = rm.Objective(rm.linear_risk(X, y, loss, sample_weight=c, fit_intercept=True), reg, 1e-2)
    result = rm.minimize(obj, BUNDLE, tol=1e-6, max_iter=1000)
    assert result.status == "converged"
    other = rm.ProximalGradient() if loss.smooth else rm.Smoothing(rm.ProximalGradient())
    check = rm.minimize(obj, other, tol=1e-4, max_iter=300)
    assert result.lower <= check.value * (1 + 1e-9)
    assert check.lower <= result.value * (1 + 1e-9)


def test_centered_frames_map_cuts_and_points_and_back():
    X, y, c = data()
    risk = rm.linear_risk(X, y, rm.HierarchicalHinge(TREE), sample_weight=c, fit_intercept=True)
    rng = np.random.default_rng(0)
    w, a = rng.standard_normal(risk.dim), rng.standard_normal(risk.dim)
    frame = CenteredFrame.from_risk(risk, w)
    cut = rm.Cut(a, 0.3)
    centered_cut, mean_scores = frame.to_centered(cut), frame.mean_row_scores(w)
    assert centered_cut.a[:-3] @ w[:-3] + centered_cut.a[-3:] @ mean_scores == pytest.approx(a @ w)
    assert np.allclose(frame.from_centered(centered_cut).a, a)
    assert np.allclose(frame.from_mean_row_scores(w[:-3], mean_scores), w)
    mean = (c / c.sum()) @ X
    assert np.allclose(
        mean_scores - w[-3:], risk.linear_map.inner.scores(rm.as_matrix(mean[None, :]), w[:-3], 0, 1)[0]
    )


def test_row_norms_are_those_of_centered_rows():
    rng = np.random.default_rng(0)
    X, y = 5 + rng.standard_normal((300, 200)), np.arange(300.0) % 3
    weights = np.repeat(np.full(200, 4.0), 3)
    for reg, expected in ((rm.L2(), 200), (rm.L2(weights), 50)):
        obj = rm.Objective(rm.linear_risk(X, y, rm.Softmax(), fit_intercept=True), reg, 1e-2)
        assert mean_squared_row_norm(obj, np.zeros(obj.risk.dim)) == pytest.approx(expected, rel=0.3)
    constant = rm.linear_risk(np.ones((6, 2)), np.arange(6.0) % 3, rm.Softmax(), fit_intercept=True)
    assert mean_squared_row_norm(rm.Objective(constant, rm.L2(), 1.0), np.zeros(9)) == pytest.approx(1.0)


@pytest.mark.parametrize("reg", [rm.L2(), rm.L1(), rm.Elastic()], ids=repr)
def test_a_saved_bundle_run_continues(reg):
    X, y, c = data()
    obj = rm.Objective(
        rm.linear_risk(X, y, rm.MulticlassHinge(), sample_weight=c, fit_intercept=True), reg, 1e-2
    )
    steps = list(islice(BUNDLE.iterates(obj, np.zeros(obj.risk.dim)), 9))
    for it, after in pairwise(steps):
        saved = {name: np.array(a, copy=True) for name, a in it.state().items()}
        resumed = next(BUNDLE.resume(obj, saved))
        np.testing.assert_allclose(resumed.w, after.w, rtol=1e-6, atol=1e-9)
        assert resumed.value == pytest.approx(after.value, rel=1e-9)


def test_paths_of_bundles_keep_their_cuts():
    X, y, c = data()
    risk = rm.linear_risk(X, y, rm.MulticlassHinge(), sample_weight=c, fit_intercept=True)
    lams = [1e-1, 1e-2, 1e-3]
    runs = rm.path(risk, rm.L2(), lams, solver=BUNDLE, tol=1e-6)
    colds = [rm.minimize(rm.Objective(risk, rm.L2(), lam), BUNDLE, tol=1e-6) for lam in lams]
    for run, cold in zip(runs, colds, strict=True):
        assert run.status == "converged"
        assert run.value == pytest.approx(cold.value, rel=2e-6)
    assert sum(run.n_iter for run in runs) < sum(cold.n_iter for cold in colds)


def test_bundle_supports_remote_rows():
    X, y, c = data(120)
    local, remote = (
        rm.linear_risk(X, y, rm.MulticlassHinge(), sample_weight=c, fit_intercept=True, **settings)
        for settings in ({}, {"executor": rm.Processes(n_workers=2), "n_shards": 3})
    )
    try:
        values = [
            rm.minimize(rm.Objective(r, rm.L2(), 1e-3), BUNDLE, tol=1e-6).value for r in (local, remote)
        ]
    finally:
        remote.executor.close()
    assert values[0] == pytest.approx(values[1], rel=2e-6)
