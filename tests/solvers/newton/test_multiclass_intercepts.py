"""Intercepts of many classes in Newton's method and in bundles: the optima of others, hard tables, cuts."""

from itertools import islice, pairwise

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_iris, load_wine

import riskmin as rm
from helpers import COST
from riskmin.solvers.bundle.held_cuts import CenteredFrame, mean_squared_row_norm
from riskmin.solvers.newton.multi_output.score_problems import MultiOutputScoreProblem

KINKS = [rm.MulticlassHinge(), rm.MulticlassHinge(COST), rm.MulticlassHinge(COST, rescaled=True)]
TREE = rm.Tree.from_paths(["A/a", "A/b", "B"])
ANY = [rm.Softmax(), rm.MulticlassSquaredHinge(), rm.HierarchicalHinge(TREE), rm.HierarchicalSoftmax(TREE)]
NEWTON, BUNDLE = rm.SemismoothNewton(), rm.Bundle()
both = pytest.mark.parametrize("solver", [NEWTON, BUNDLE], ids=["newton", "bundle"])


def data(n=60, p=4, k=3, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n).astype(float)
    y[:k] = np.arange(k)
    X = rng.standard_normal((k, p))[y.astype(int)] + spread * rng.standard_normal((n, p)) + 3.0
    return X, y, rng.random(n) + 0.1


def conic(X, y, c, loss, lam, k):
    """The least J by an interior-point method; intercepts are not penalized."""
    own, cost = y.astype(int), np.ones((k, k)) - np.eye(k) if loss.cost is None else np.array(loss.cost)
    W, b = cp.Variable((X.shape[1], k)), cp.Variable((1, k))
    z = X @ W + np.ones((len(X), 1)) @ b
    right = cp.sum(cp.multiply(z, np.eye(k)[own]), axis=1, keepdims=True)
    ahead = z - right @ np.ones((1, k))
    slack = cp.multiply(cost[own], 1 + ahead) if loss.rescaled else cost[own] + ahead
    risk = (c / c.sum()) @ cp.max(slack, axis=1)
    J = cp.Problem(cp.Minimize(lam / 2 * cp.sum_squares(W) + risk))
    return J.solve(solver="CLARABEL")


# ---------------------------------------------------------------- the optimum
@both
@pytest.mark.parametrize("lam", [1e-1, 1e-4])
@pytest.mark.parametrize("loss", KINKS, ids=["plain", "cost", "rescaled"])
def test_the_optimum_is_that_of_a_conic_solver(loss, lam, solver):
    X, y, c = data()
    obj = rm.Objective(rm.linear_risk(X, y, loss, sample_weight=c, fit_intercept=True), rm.L2(), lam)
    result = rm.minimize(obj, solver, tol=1e-8)
    assert result.status == "converged"
    assert result.value == pytest.approx(conic(X, y, c, loss, lam, 3), rel=1e-6)


@both
@pytest.mark.parametrize("loss", KINKS, ids=["plain", "cost", "rescaled"])
def test_every_cut_lies_below_the_risk_and_has_no_slope_in_the_intercepts(loss, solver):
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


# ---------------------------------------------------------------- tables that are hard
def wide(n, p, k, seed=0):
    """More features than rows, which can be told apart."""
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
def test_newton_takes_raw_tables_of_all_kinds(table, lam):
    X, y = TABLES[table]()
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(), lam)
    result = rm.minimize(obj, NEWTON, tol=1e-5)
    assert result.status == "converged"
    assert result.n_iter < 300


@pytest.mark.parametrize("table", [name for name in TABLES if name != "wide"])
def test_bundles_take_raw_tables_of_all_kinds(table):
    X, y = TABLES[table]()
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(), 1e-4)
    ours = rm.minimize(obj, BUNDLE, tol=1e-6)
    assert ours.status == "converged"
    assert ours.value == pytest.approx(rm.minimize(obj, NEWTON, tol=1e-7).value, rel=2e-6)


@pytest.mark.slow
def test_many_classes_that_can_be_told_apart():
    X, y = load_digits(return_X_y=True)
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(), 1e-6)
    result = rm.minimize(obj, NEWTON)
    assert result.status == "converged"
    assert result.n_iter < 400


@both
def test_classes_without_rows_go_down_and_leave_no_slope(solver):
    X, y, c = data()
    risks = [
        rm.linear_risk(X, y, rm.MulticlassHinge(), sample_weight=c, fit_intercept=True, n_outputs=k)
        for k in (3, 5)
    ]
    few, many = (rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), solver, tol=1e-7) for risk in risks)
    assert many.status == "converged"
    # weights of these classes may be anything that lowers no row's loss: zero is best for the norm
    assert many.value <= few.value * (1 + 1e-6)


# ---------------------------------------------------------------- Newton's method
def test_sparse_rows_and_threads_make_no_difference():
    X, y, _ = data(200)
    values = []
    for rows, executor in ((X, None), (sp.csr_array(X), None), (np.asfortranarray(X), None), (X, rm.Threads)):
        how = {} if executor is None else {"executor": executor}
        risk = rm.linear_risk(rows, y, rm.MulticlassHinge(), fit_intercept=True, **how)
        values.append(rm.minimize(rm.Objective(risk, rm.L2(), 1e-4), NEWTON, tol=1e-9).value)
    assert np.ptp(values) <= 1e-8 * values[0]


def test_the_first_step_of_a_stage_is_that_of_the_faces_before():
    X, y, c = data(40)
    risk = rm.linear_risk(X, y, rm.MulticlassHinge(COST), sample_weight=c, fit_intercept=True)
    scores = MultiOutputScoreProblem.from_objective(NEWTON, rm.Objective(risk, rm.L2(), 1e-3))
    rng = np.random.default_rng(0)
    z, mu = rng.standard_normal((40, 3)), 0.5
    centre = scores.evaluate(z, 2.0, None, 0.0).dz
    slopes, bend = scores.face_model(z, mu, centre)
    curve = risk.loss.block_hessian(bend.dz, scores.y, scores.c, mu)
    # where no multiplier leaves its face, the model of the faces is exact
    near, at = 1e-9, slice(None)
    rows = np.flatnonzero(scores.evaluate(z, 2.0, None, 0.0).hessian_diagonal > 1)
    exact = scores.evaluate(
        near * z - (1 - near) * scores.loss.cost[scores.y.astype(int)], mu, centre, 0.0
    ).dz
    model = centre + near * curve.product(z + scores.loss.cost[scores.y.astype(int)], at)
    assert np.allclose(exact[rows], model[rows], atol=1e-12)
    assert np.allclose(slopes, centre + curve.product(z + scores.loss.cost[scores.y.astype(int)], at))
    assert scores.face_model(z, mu, np.zeros_like(z)) is None


def test_newton_goes_on_from_the_multipliers_of_dual_ascent():
    X, y, _ = data(150)
    obj = rm.Objective(rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True), rm.L2(), 1e-3)
    before = list(islice(rm.DualGaussSeidel().iterates(obj, np.zeros(obj.risk.dim)), 8))[-1]
    state = before.state()
    assert np.array_equal(next(NEWTON.warm_start(obj, state, obj)).w, before.w)
    scores = MultiOutputScoreProblem.from_objective(NEWTON, obj)
    centre = scores.c[:, None] * (state["beta"] - np.eye(3)[y.astype(int)])
    assert np.allclose(scores.saved_score_gradient(state), centre, atol=1e-12)
    result = rm.minimize(
        obj, rm.Switching(rm.DualGaussSeidel(), NEWTON, tol=1e-7, passes_per_digit=0.1), tol=1e-7
    )
    assert result.status == "converged"
    assert {row["solver"] for row in result.trace} == {1.0, 2.0}


# ---------------------------------------------------------------- bundles
REGS = [
    rm.L2(),
    rm.L1(),
    rm.Elastic(),
    rm.QNorm(),
    rm.Entropy(normalized=False, balanced=True),
    rm.Box(rm.L2(), -1.0, 1.0),
    rm.Box(rm.L1()),
]


@pytest.mark.parametrize("reg", REGS, ids=repr)
@pytest.mark.parametrize("loss", [rm.MulticlassHinge(COST), *ANY], ids=lambda loss: type(loss).__name__)
def test_bundles_take_any_loss_and_regularizer(loss, reg):
    X, y, c = data(40, 3)
    obj = rm.Objective(rm.linear_risk(X, y, loss, sample_weight=c, fit_intercept=True), reg, 1e-2)
    result = rm.minimize(obj, BUNDLE, tol=1e-6, max_iter=1000)
    assert result.status == "converged"
    other = rm.ProximalGradient() if loss.smooth else rm.Smoothing(rm.ProximalGradient())
    check = rm.minimize(obj, other, tol=1e-4, max_iter=300)
    assert result.lower <= check.value * (1 + 1e-9)
    assert check.lower <= result.value * (1 + 1e-9)


def test_frames_turn_cuts_and_points_and_back():
    X, y, c = data()
    risk = rm.linear_risk(X, y, rm.HierarchicalHinge(TREE), sample_weight=c, fit_intercept=True)
    rng = np.random.default_rng(0)
    w, a = rng.standard_normal(risk.dim), rng.standard_normal(risk.dim)
    frame = CenteredFrame.from_risk(risk, w)
    cut = rm.Cut(a, 0.3)
    inside, middle = frame.to_centered(cut), frame.mean_row_scores(w)
    assert inside.a[:-3] @ w[:-3] + inside.a[-3:] @ middle == pytest.approx(a @ w)
    assert np.allclose(frame.from_centered(inside).a, a)
    assert np.allclose(frame.from_mean_row_scores(w[:-3], middle), w)
    mean = (c / c.sum()) @ X
    assert np.allclose(
        middle - w[-3:], risk.linear_map.inner.scores(rm.as_matrix(mean[None, :]), w[:-3], 0, 1)[0]
    )


def test_lengths_are_those_of_rows_less_their_mean():
    rng = np.random.default_rng(0)
    X, y = 5 + rng.standard_normal((300, 200)), np.arange(300.0) % 3
    weights = np.repeat(np.full(200, 4.0), 3)
    for reg, want in ((rm.L2(), 200), (rm.L2(weights), 50)):
        obj = rm.Objective(rm.linear_risk(X, y, rm.Softmax(), fit_intercept=True), reg, 1e-2)
        assert mean_squared_row_norm(obj, np.zeros(obj.risk.dim)) == pytest.approx(want, rel=0.3)
    nothing = rm.linear_risk(np.ones((6, 2)), np.arange(6.0) % 3, rm.Softmax(), fit_intercept=True)
    assert mean_squared_row_norm(rm.Objective(nothing, rm.L2(), 1.0), np.zeros(9)) == pytest.approx(1.0)


@pytest.mark.parametrize("reg", [rm.L2(), rm.L1(), rm.Elastic()], ids=repr)
def test_a_saved_run_of_a_bundle_goes_on(reg):
    X, y, c = data()
    obj = rm.Objective(
        rm.linear_risk(X, y, rm.MulticlassHinge(), sample_weight=c, fit_intercept=True), reg, 1e-2
    )
    steps = list(islice(BUNDLE.iterates(obj, np.zeros(obj.risk.dim)), 9))
    for it, after in pairwise(steps):
        saved = {name: np.array(a, copy=True) for name, a in it.state().items()}
        again = next(BUNDLE.resume(obj, saved))
        np.testing.assert_allclose(again.w, after.w, rtol=1e-6, atol=1e-9)
        assert again.value == pytest.approx(after.value, rel=1e-9)


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


def test_bundles_take_rows_elsewhere():
    X, y, c = data(120)
    here, there = (
        rm.linear_risk(X, y, rm.MulticlassHinge(), sample_weight=c, fit_intercept=True, **how)
        for how in ({}, {"executor": rm.Processes(n_workers=2), "n_shards": 3})
    )
    try:
        values = [rm.minimize(rm.Objective(r, rm.L2(), 1e-3), BUNDLE, tol=1e-6).value for r in (here, there)]
    finally:
        there.executor.close()
    assert values[0] == pytest.approx(values[1], rel=2e-6)
