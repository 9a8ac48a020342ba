"""Dual block ascent for the multiclass hinge: against cvxpy, brute force and LIBLINEAR."""

from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L1,
    L2,
    Auto,
    DualCoordinateAscent,
    MulticlassHinge,
    Newton,
    Objective,
    Smoothing,
    Softmax,
    linear_risk,
    minimize,
    path,
)
from riskmin._numba.dual import multiclass_sweep as kernels
from riskmin.core import UnsupportedProblem
from riskmin.numerics.simplex import project_onto_simplex, project_onto_simplex_generic
from riskmin.solvers import facts
from riskmin.solvers.costs import CostModel
from riskmin.solvers.dual.multiclass import MulticlassAscent


def problem(n=40, p=6, k=5, seed=0, costly=True):
    """Overlapping rows of five classes, with an empty row, zero weights, and random costs."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n).astype(float)
    X = rng.standard_normal((n, p)) + 1.2 * rng.standard_normal((k, p))[y.astype(int)]
    X[np.abs(X) < 0.4] = 0.0
    X[3] = 0.0
    weights = rng.uniform(0.2, 2.0, n)
    weights[5:7] = 0.0
    cost = rng.uniform(0.0, 3.0, (k, k)) if costly else np.ones((k, k))
    np.fill_diagonal(cost, 0.0)
    return X, y, weights, cost


def objective(lam=0.02, sparse=False, seed=0, costly=True, **sizes):
    X, y, weights, cost = problem(seed=seed, costly=costly, **sizes)
    loss = MulticlassHinge(cost if costly else None)
    data = sp.csr_array(X) if sparse else X
    return Objective(linear_risk(data, y, loss, sample_weight=weights, n_outputs=len(cost)), L2(), lam)


def optimum(X, y, weights, cost, lam, intercept=False):
    import cvxpy as cp

    c, labels = weights / weights.sum(), y.astype(int)
    W = cp.Variable((X.shape[1], len(cost)))
    b = cp.Variable((1, len(cost))) if intercept else np.zeros((1, len(cost)))
    z = X @ W + np.ones((len(X), 1)) @ b
    true_score = cp.sum(cp.multiply(z, np.eye(len(cost))[labels]), axis=1)
    slack = cp.max(cost[labels] + z, axis=1) - true_score
    J = cp.Problem(cp.Minimize(lam / 2 * cp.sum_squares(W) + c @ slack))
    return J.solve(solver="CLARABEL")


# ---------------------------------------------------------------- one row
@pytest.mark.parametrize("k", [2, 3, 20])
def test_projections_equal_the_definition(k):
    rng = np.random.default_rng(k)
    v = rng.standard_normal((300, k)) * np.exp(3 * rng.standard_normal((300, 1)))
    v[0], v[1] = 0.0, 1e200 * v[1]
    projected = project_onto_simplex(v)
    np.testing.assert_allclose(projected, project_onto_simplex_generic(v), atol=1e-14)
    assert (projected >= 0).all()
    np.testing.assert_allclose(projected.sum(axis=1), 1.0, atol=1e-14)
    # nearest: no feasible direction e_j - projected leads closer
    residual = v[2:] - projected[2:]
    size = np.abs(residual).max(axis=1)
    assert (
        (residual - (residual * projected[2:]).sum(axis=1, keepdims=True)).max(axis=1) <= 1e-12 * (1 + size)
    ).all()


@pytest.mark.parametrize("damping", [1.0, 0.5, 1.7])
def test_a_step_moves_a_row_to_its_best_multipliers(damping):
    rng = np.random.default_rng(1)
    for curvature in (1e-3, 1.0, 50.0):
        beta = project_onto_simplex(rng.standard_normal((1, 6)))
        old, slack = beta[0].copy(), rng.standard_normal(6)
        change, workspace, k = np.zeros(6), np.zeros(6), np.uintp(6)
        moved = kernels.row_step(beta[0], slack - slack.max(), k, curvature, damping, change, workspace)
        assert moved == (beta[0] != old).any()

        def gain(b, curvature=curvature, old=old, slack=slack):
            return slack @ b - 0.5 * curvature * ((b - old) ** 2).sum()

        full = project_onto_simplex((old + slack / curvature)[None])[0]
        assert beta[0].sum() == pytest.approx(1.0, abs=1e-14)
        assert (beta >= 0).all()
        np.testing.assert_allclose(change, beta[0] - old, atol=1e-15)
        if damping == 1:
            np.testing.assert_allclose(beta[0], full, atol=1e-14)
            others = project_onto_simplex(full + 0.1 * rng.standard_normal((200, 6)))
            assert all(gain(full) >= gain(b) - 1e-12 for b in others)
        else:
            assert gain(beta[0]) >= gain(old) - 1e-14


# ---------------------------------------------------------------- a run
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("lam", [0.3, 1e-3])
def test_the_optimum_equals_cvxpys(lam, seed):
    X, y, weights, cost = problem(seed=seed)
    best = optimum(X, y, weights, cost, lam)
    for sparse in (False, True):
        obj = objective(lam, sparse, seed)
        result = minimize(obj, DualCoordinateAscent(), tol=1e-8)
        assert result.status == "converged"
        assert result.value == pytest.approx(obj.value(result.w), rel=1e-12)
        assert result.value == pytest.approx(best, rel=1e-6)
        assert result.lower <= best * (1 + 1e-7)


def test_cuts_are_below_the_risk_and_the_bound_never_decreases():
    obj, rng = objective(1e-3), np.random.default_rng(0)
    points = [s * rng.standard_normal(obj.risk.dim) for s in (0.01, 1.0, 100.0) for _ in range(5)]
    bounds = []
    for it in islice(DualCoordinateAscent().iterates(obj, np.zeros(obj.risk.dim)), 25):
        assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
        for v in [*points, it.w]:
            assert it.cut.a @ v + it.cut.b <= obj.risk(v)[0] + 1e-13
        bounds.append(it.cut.b - obj.lam * obj.reg.conjugate(-it.cut.a / obj.lam))
    assert all(b >= a - 1e-14 for a, b in pairwise(bounds[1:]))  # the first bound precedes the scaling


def test_runs_are_reproducible():
    for sparse in (False, True):
        runs = [
            minimize(objective(1e-3, sparse), DualCoordinateAscent(seed=s), max_iter=6) for s in (0, 0, 1)
        ]
        assert np.array_equal(runs[0].w, runs[1].w)
        assert not np.array_equal(runs[0].w, runs[2].w)


def test_a_saved_state_continues():
    for sparse in (False, True):
        obj = objective(1e-4, sparse, costly=False)
        steps = list(islice(DualCoordinateAscent().iterates(obj, np.zeros(obj.risk.dim)), 30))
        for k in (0, 4, 20):
            resumed = DualCoordinateAscent().resume(obj, steps[k].state())
            for it, expected in zip(islice(resumed, 3), steps[k + 1 :], strict=False):
                assert it.value == pytest.approx(expected.value, rel=1e-9)
                np.testing.assert_allclose(it.cut.a, expected.cut.a, atol=1e-9)


def test_settings_do_not_change_the_optimum():
    expected = minimize(objective(1e-2), DualCoordinateAscent(), tol=1e-9).value
    start = np.random.default_rng(0).standard_normal(30)
    for solver in (
        DualCoordinateAscent(shrink=False),
        DualCoordinateAscent(shuffle=False),
        DualCoordinateAscent(damping=1.5),
    ):
        result = minimize(objective(1e-2, sparse=True), solver, tol=1e-8, w0=start)
        assert result.status == "converged"
        assert result.value == pytest.approx(expected, rel=1e-7)


def test_a_path_starts_from_the_multipliers_of_its_neighbor():
    risk = objective(costly=False).risk
    lams = [1e-1, 1e-2, 1e-3]
    runs = list(path(risk, L2(), lams, solver=DualCoordinateAscent(), tol=1e-7))
    for lam, result in zip(lams, runs, strict=True):
        cold = minimize(Objective(risk, L2(), lam), DualCoordinateAscent(), tol=1e-7)
        assert result.value == pytest.approx(cold.value, rel=1e-6)


def test_climbing_faces_increases_the_bound():
    obj = objective(1e-4, n=120, costly=False)
    run = MulticlassAscent.create(DualCoordinateAscent(), obj)
    steps = run.start(np.zeros(obj.risk.dim))
    cut = [next(steps) for _ in range(8)][-1].cut
    before = obj.lower(cut)
    run.visits, run.checks_to_climb, run.climb_delay = 1e9, 0.0, 0.0
    run._climb(run._scores(run._weight_vector()))
    _, _, cut = run._check(run._weight_vector())
    after = obj.lower(cut)
    assert after > before
    np.testing.assert_allclose(run._weight_vector(), obj.argmin(cut), rtol=1e-9, atol=1e-9)


def test_unsupported_problems_are_refused_with_advice():
    X, y, _, cost = problem()
    for loss, reg, settings, word in (
        (Softmax(), L2(), {}, "Lbfgs"),
        (MulticlassHinge(cost, rescaled=True), L2(), {}, "Bundle"),
        (MulticlassHinge(rescaled=True), L2(), {"fit_intercept": True}, "Bundle"),
        (MulticlassHinge(), L1(), {}, "Smoothing"),
        (MulticlassHinge(), L2(np.arange(1.0, 31.0)), {}, "one weight per feature: use Smoothing"),
    ):
        with pytest.raises(UnsupportedProblem, match=word):
            minimize(Objective(linear_risk(X, y, loss, **settings), reg, 0.1), DualCoordinateAscent())


def test_auto_chooses_it_where_supported():
    X, y, _, _ = problem()
    for fit_intercept, rows in ((False, X), (True, sp.csr_array(X))):
        risk = linear_risk(rows, y, MulticlassHinge(), fit_intercept=fit_intercept)
        assert isinstance(Auto().choose(Objective(risk, L2(), 1.0))[0], DualCoordinateAscent)
    dense = Objective(linear_risk(X, y, MulticlassHinge(), fit_intercept=True), L2(), 1.0)
    assert isinstance(Auto().choose(dense)[0], Newton)
    hard = Objective(linear_risk(X, y, MulticlassHinge()), L2(), 1e-6)
    assert isinstance(Auto().choose(hard)[0], Newton)


def test_auto_chooses_smoothing_for_large_rows_or_too_many_multipliers(monkeypatch):
    X, y, _, _ = problem(costly=False)
    with_intercepts, without = (
        Objective(linear_risk(sp.csr_array(1e4 * X), y, MulticlassHinge(), fit_intercept=b), L2(), 0.1)
        for b in (True, False)
    )
    assert isinstance(Auto().choose(with_intercepts)[0], Smoothing)
    assert isinstance(Auto().choose(without)[0], DualCoordinateAscent)
    monkeypatch.setattr(facts, "COSTS", CostModel(dual_max_multipliers=len(y) * 5 - 1))
    assert isinstance(Auto().choose(without)[0], Smoothing)


def test_the_optimum_equals_liblinears():
    train = pytest.importorskip("liblinear.liblinearutil")
    X, y, _, _ = problem(n=300, p=8)
    lam, k = 1e-2, 5
    model = train.train(
        train.problem(y, sp.csr_matrix(X)), train.parameter(f"-s 4 -c {1 / (lam * len(y)):.17g} -e 1e-6 -q")
    )
    W = np.zeros((X.shape[1], k))
    for index, label in enumerate(model.get_labels()):
        W[:, int(label)] = model.get_decfun(label_idx=index)[0]
    obj = Objective(linear_risk(X, y, MulticlassHinge()), L2(), lam)
    result = minimize(obj, DualCoordinateAscent(), tol=1e-7)
    assert result.lower <= obj.value(W.ravel()) <= result.value * (1 + 1e-5)


# ---------------------------------------------------------------- intercepts
@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("lam", [1.0, 0.02, 1e-4])
def test_proximal_centers_of_intercepts_lead_to_the_optimum(sparse, lam):
    X, y, weights, cost = problem()
    data = sp.csr_array(X) if sparse else X
    risk = linear_risk(data, y, MulticlassHinge(cost), sample_weight=weights, fit_intercept=True)
    result = minimize(Objective(risk, L2(), lam), DualCoordinateAscent(), tol=1e-7)
    expected = optimum(X, y, weights, cost, lam, intercept=True)
    assert result.status == "converged"
    assert result.lower <= expected * (1 + 1e-7)
    assert result.value == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_multipliers_optimal_for_one_center_continue_with_the_next():
    rng = np.random.default_rng(20)
    X, y = rng.normal(size=(48, 5)) * [0.3, 0.3, 0.5, 0.3, 2.0], rng.integers(2, size=48)
    risk = linear_risk(X, y, MulticlassHinge(), fit_intercept=True)
    assert minimize(Objective(risk, L2(), 1.0), DualCoordinateAscent(), tol=2e-5).status == "converged"
    assert minimize(Objective(risk, L2(), 0.1), DualCoordinateAscent(), tol=1e-17).status == "stalled"


def test_a_run_with_intercepts_resumes_with_its_center():
    X, y, _, cost = problem()
    w0 = np.random.default_rng(1).standard_normal(X.shape[1] * 5 + 5)
    J = Objective(linear_risk(X, y, MulticlassHinge(cost), fit_intercept=True), L2(), 0.02)
    steps = list(islice(DualCoordinateAscent().iterates(J, w0), 9))
    for it in steps:
        assert it.value == pytest.approx(J.value(it.w), rel=1e-10)
        assert not it.cut.a[-5:].any()
        assert J.lower(it.cut) <= it.value
    assert steps[-1].state()["center"].any()
    resumed = next(DualCoordinateAscent().resume(J, steps[-2].state()))
    np.testing.assert_allclose(resumed.w, steps[-1].w, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("lam", [0.86, 0.05])
def test_intercepts_of_classes_without_weight_do_not_affect_the_bound(lam):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((21, 3)), rng.integers(0, 4, 21)
    risk = linear_risk(X, y, MulticlassHinge(), sample_weight=1.0 * (y < 3), fit_intercept=True)
    assert (
        minimize(Objective(risk, L2(), lam), DualCoordinateAscent(), tol=1e-6, max_iter=500).status
        == "converged"
    )
