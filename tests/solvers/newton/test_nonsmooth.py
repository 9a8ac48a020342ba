"""Newton's method for nonsmooth losses: second derivatives, optima, certificates, numbers of steps."""

from dataclasses import replace
from itertools import islice

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from riskmin import (
    L1,
    L2,
    Absolute,
    Auto,
    Bundle,
    DualCoordinateAscent,
    EpsilonInsensitive,
    FBeta,
    Hinge,
    Huber,
    Lbfgs,
    Logistic,
    Newton,
    Objective,
    Ordinal,
    Prbep,
    ProfiledIntercept,
    Quadratic,
    Quantile,
    RocArea,
    SeparableForm,
    Serial,
    Squared,
    SquaredHinge,
    Threads,
    check_solver,
    linear_risk,
    minimize,
)
from riskmin.core import Hessian, PairBlock, UnsupportedProblem
from riskmin.losses.hessian import hessian_product
from riskmin.problem.design_operator import DesignOperator
from riskmin.solvers.newton.active_rows import ActiveRows
from riskmin.solvers.newton.linear_system import (
    NewtonSystem,
    conjugate_gradients,
    subtract_low_rank_and_pairs,
)
from riskmin.solvers.newton.piecewise_quadratic import PiecewiseQuadratic
from riskmin.solvers.newton.score_problem import ScoreProblem
from riskmin.solvers.newton.small.stages import SmallProblem
from riskmin.solvers.newton.subsampling import sampled_objective

PAIRS = [RocArea(), Ordinal(), Ordinal(costs=[[0], [1, 0], [2, 0.5, 0], [3, 0, 1, 0]])]
ROWS = [Prbep(), Hinge(), Absolute(), Quantile(0.3), EpsilonInsensitive(0.4)]


def labels(loss, z, rng):
    if loss.task == "ordinal":
        y = np.clip(np.floor(z + rng.standard_normal(len(z))) + 2, 0, 3)
        y[:4] = np.arange(4)
    elif loss.task == "classification":
        y = np.where(z + rng.standard_normal(len(z)) > 0.5, 1.0, -1.0)
        y[:2] = 1, -1
    else:
        y = z + rng.standard_normal(len(z))
    return y


def weights(loss, n, rng):
    c = np.ones(n) if isinstance(loss, Prbep) else rng.random(n) + 0.1
    return c / c.sum()


def data(loss, n=40, p=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return X, labels(loss, X @ rng.standard_normal(p), rng)


# ---------------------------------------------------------------- second derivatives
@pytest.mark.parametrize("loss", [*PAIRS, *ROWS], ids=repr)
@pytest.mark.parametrize("moved", [False, True])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), mu=st.floats(0.05, 3))
def test_hessians_are_derivatives_of_the_gradient(loss, moved, seed, mu):
    rng = np.random.default_rng(seed)
    n = 25
    z = 2 * rng.standard_normal(n)
    y, c = labels(loss, z, rng), weights(loss, n, rng)
    center = (
        loss.smoothed_value_grad(rng.standard_normal(n), y, c, 0.5)[1]
        if moved and loss not in PAIRS
        else None
    )
    H = hessian_product(loss.hessian(z, y, c, mu, center), np.eye(n))
    d = rng.standard_normal(n)
    step = 1e-7
    forward, backward = (loss.smoothed_value_grad(z + t * d, y, c, mu, center)[1] for t in (step, -step))
    # a piecewise quadratic function: exact unless the step crosses a breakpoint of the gradient
    error = np.abs((forward - backward) / (2 * step) - H @ d)
    assert np.sum(error > 1e-6 * (1 + abs(H).max())) <= 2
    np.testing.assert_allclose(H, H.T, atol=1e-15)
    assert np.linalg.eigvalsh(H).min() > -1e-12


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), mu=st.floats(0.05, 3))
def test_the_hessian_of_pairs_equals_brute_force(seed, mu):
    rng = np.random.default_rng(seed)
    n, costs = 20, np.array(PAIRS[2].costs, dtype=object)
    z, y, c = 1.5 * rng.standard_normal(n), rng.integers(0, 4, n) * 1.0, rng.random(n) + 0.1
    y[:4] = np.arange(4)
    H, total = np.zeros((n, n)), 0.0
    for i in range(n):
        for j in range(n):
            if y[i] > y[j]:
                weight = costs[int(y[i])][int(y[j])] * c[i] * c[j]
                total += weight
                if 0 < 1 - (z[i] - z[j]) <= mu:
                    e = np.zeros(n)
                    e[i], e[j] = 1, -1
                    H += weight / mu * np.outer(e, e)
    np.testing.assert_allclose(
        hessian_product(PAIRS[2].hessian(z, y, c, mu), np.eye(n)), H / total, atol=1e-12
    )


def design_operator(X):
    return DesignOperator(linear_risk(X, np.zeros(X.shape[0]), Absolute()))


def layouts(X):
    S = sp.csr_array(X)
    double = sp.csr_array((np.repeat(S.data / 2, 2), np.repeat(S.indices, 2), 2 * S.indptr), shape=X.shape)
    return [X, np.asfortranarray(X), X.astype(np.float32), S, sp.csc_array(X), double]


@pytest.mark.parametrize("k", range(6))
def test_products_equal_those_of_dense_matrices(k):
    rng = np.random.default_rng(k)
    n, p = 60, 7
    X = np.round(rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.5), 2)
    rows = rng.permutation(n)
    above, below = rows[:20], rows[20:]
    first = np.sort(rng.integers(0, 40, 20))
    last = np.maximum(first, np.sort(rng.integers(0, 41, 20)))
    pair_block = PairBlock(above, rng.random(20), below, rng.random(40), first, last)
    second_block = PairBlock(
        below[:30], rng.random(30), above, rng.random(20), np.zeros(30, int), np.full(30, 5)
    )
    h = rng.random(n) * (rng.random(n) < 0.7)
    hessian = Hessian(h, (rng.random(n), rng.random(n)), (pair_block, second_block))
    expected = X.T @ hessian_product(hessian, X)
    W = np.zeros((n, n))
    for i in range(20):
        for j in range(first[i], last[i]):
            W[above[i], below[j]] = pair_block.p[i] * pair_block.q[j]
    np.testing.assert_allclose(
        hessian_product(Hessian(0 * h, (), (pair_block,)), X), -(W + W.T) @ X, atol=1e-12
    )
    rows = design_operator(layouts(X)[k])
    result = subtract_low_rank_and_pairs(rows.gram(hessian.diagonal), rows, hessian)
    tol = 1e-5 if k == 2 else 1e-12
    np.testing.assert_allclose(np.triu(result), np.triu(expected), atol=tol)


def test_conjugate_gradients_end_at_the_requested_residual():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, 20))
    A, g = A.T @ A + 0.1 * np.eye(20), rng.standard_normal(20)
    for tol in (1.0, 1e-2, 1e-9):
        d, n_iter = conjugate_gradients(lambda v: A @ v, g, tol, 100)
        assert n_iter < 100
        assert np.linalg.norm(A @ d - g) <= 1.01 * tol
        assert tol >= np.linalg.norm(g) or d @ g > 0


@pytest.mark.parametrize("loss", [RocArea(), Ordinal(), Prbep(), Hinge()], ids=repr)
@pytest.mark.parametrize("sparse", [False, True])
def test_all_solvers_of_the_linear_system_agree(loss, sparse):
    rng = np.random.default_rng(0)
    n, p, lam = 50, 30, 1e-3
    X = np.round(rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.5), 2)
    z = X @ rng.standard_normal(p)
    hessian = loss.hessian(z, labels(loss, z, rng), np.full(n, 1 / n), 0.3)
    assert 0 < np.count_nonzero(hessian.diagonal) < n
    m, g = rng.random(p) + 0.5, rng.standard_normal(p)
    rows = design_operator(sp.csr_array(X) if sparse else X)
    expected = -np.linalg.solve(lam * np.diag(m) + X.T @ hessian_product(hessian, X), g)
    system = NewtonSystem(rows, L2(m), 100)
    for d in (
        system._solve_by_rows(hessian, lam, g),
        system._solve_by_features(hessian, lam, g),
        NewtonSystem(rows, L2(m), 1).solve(hessian, lam, g, 1e-12),
        NewtonSystem(rows, Quadratic(np.diag(m)), 100, steps=1e9).solve(hessian, lam, g, 1.0),
    ):
        np.testing.assert_allclose(d, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_systems_of_active_rows(wide, sparse):
    rng = np.random.default_rng(1)
    n, p, lam = (40, 90, 1e-2) if wide else (90, 12, 1e-2)
    X = np.round(rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.4), 2)
    h = rng.random(n) * (rng.random(n) < 0.3)
    m, g = rng.random(p) + 0.5, rng.standard_normal(p)
    rows = design_operator(sp.csr_array(X) if sparse else X).gather(np.flatnonzero(h))
    for hessian in (Hessian(h), Hessian(h, (h / h.sum() ** 0.5,))):  # the second is that of an intercept
        A = lam * np.diag(m) + X.T @ hessian_product(hessian, X)
        for tol in (1e-2, 1e-10):
            d, n_iter = ActiveRows(rows, hessian, m).solve(lam, g, tol, 500)
            assert n_iter < 500
            assert np.linalg.norm(A @ d + g) <= tol * (1 + 1e-6) + 1e-12


# ---------------------------------------------------------------- kernels
@pytest.mark.parametrize("loss", [*ROWS[1:], Huber(0.3), SquaredHinge(), Squared()], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_compiled_and_array_evaluations_agree(loss, intercept):
    rng = np.random.default_rng(2)
    n = 80
    z, dz = 1.5 * rng.standard_normal((2, n))
    risk = linear_risk(
        rng.standard_normal((n, 2)), labels(loss, z, rng), loss, sample_weight=np.arange(n) % 4
    )
    kernels, arrays = PiecewiseQuadratic(risk, intercept), ScoreProblem(risk, intercept)
    mu = 0.0 if loss.smooth else 0.7
    first = arrays.evaluate(rng.standard_normal(n), 0.4, None, 0.0).dz
    for center in (None,) if loss.smooth else (None, first):
        compiled, expected = (s.evaluate(z, mu, center, 0.0) for s in (kernels, arrays))
        np.testing.assert_allclose(compiled.dz, expected.dz, atol=1e-9)
        np.testing.assert_allclose(
            [compiled.risk, compiled.offset, compiled.b],
            [expected.risk, expected.offset, expected.b],
            atol=1e-7,
        )
        H, K = (
            hessian_product(s.hessian(evaluation, z, mu, center), np.eye(n))
            for s, evaluation in ((kernels, compiled), (arrays, expected))
        )
        np.testing.assert_allclose(H, K, atol=1e-6)
        if intercept:
            assert abs(compiled.dz.sum()) <= 1e-13
        start = float(expected.dz @ dz)
        d = -np.sign(start) * dz
        t, b, _ = kernels.line_search(z, d, mu, center, compiled.b, lambda t: (0.01 * t, 0.01), -abs(start))
        at_end = arrays.evaluate(z + t * d, mu, center, 0.0)
        assert b == pytest.approx(at_end.b, abs=0.05 * intercept)
        slope = at_end.dz @ d + 0.01 * t
        assert abs(slope) <= 0.06 * abs(start)


def test_threads_give_the_same_bits():
    X, y = data(Hinge(), n=300, p=4)
    runs = [
        minimize(
            Objective(linear_risk(X, y, Hinge(), executor=executor, n_shards=3), L2(), 1e-5),
            Newton(),
            tol=1e-6,
        )
        for executor in (Serial(), Threads(n_workers=2))
    ]
    np.testing.assert_array_equal(runs[0].w, runs[1].w)
    assert runs[0].trace[-1]["gap"] == runs[1].trace[-1]["gap"]


@pytest.mark.parametrize("intercept", [False, True])
def test_sampled_starts_save_steps(intercept, monkeypatch):
    monkeypatch.setattr(SmallProblem, "MAX_ENTRIES", 0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 3)) * [1, 10, 0.1]
    risk = linear_risk(X, X @ [1, 0.1, 2] + rng.standard_t(2, 4000), Absolute(), fit_intercept=intercept)
    obj = Objective(risk, L2(), 1e-6)
    assert sampled_objective(obj, 16).risk.dim == 3
    assert sampled_objective(obj, 64) is None  # 62 rows are too few for three columns
    cold = Newton()
    runs = [minimize(obj, cold, w0, tol=1e-6) for w0 in (None, 1e-9 * np.ones(3))]
    assert [run.status for run in runs] == ["converged"] * 2
    assert runs[0].n_iter < runs[1].n_iter


def test_it_starts_from_the_multipliers_of_dual_ascent():
    X, y = data(Hinge(), n=200, p=5)
    obj = Objective(linear_risk(X, y, Hinge()), L2(), 1e-4)
    last = list(islice(DualCoordinateAscent().iterates(obj, np.zeros(5)), 4))[-1]
    cold, warm = (
        Newton().iterates(obj, np.zeros(5)),
        Newton().warm_start(obj, last.state(), obj),
    )
    n_steps = [
        next(k for k, it in enumerate(run) if it.value - obj.lower(it.cut) < 1e-6) for run in (cold, warm)
    ]
    assert n_steps[1] < n_steps[0]


# ---------------------------------------------------------------- optima
def reference_optimum(loss, X, y, lam):
    """The minimum of J by cvxpy, each loss from its definition."""
    w = cp.Variable(X.shape[1])
    z, n = X @ w, len(y)
    if loss.task == "ordinal" or isinstance(loss, RocArea):
        pairs = np.array([(i, j) for i in range(n) for j in range(n) if y[i] > y[j]])
        grades = np.unique(y, return_inverse=True)[1]
        cost = np.ones(len(pairs))
        if getattr(loss, "costs", None) is not None:
            cost = np.array([loss.costs[grades[i]][grades[j]] for i, j in pairs])
        risk = cost @ cp.pos(1 - z[pairs[:, 0]] + z[pairs[:, 1]]) / cost.sum()
    elif isinstance(loss, Prbep):  # the largest sum of k positive and k negative terms
        n_positive = int((y > 0).sum())
        parts = [cp.Constant(0.0)]
        for k in range(1, min(n_positive, n - n_positive) + 1):
            gain = cp.sum_largest(-z[y > 0], k) + cp.sum_largest(z[y < 0], k)
            parts.append(k / n_positive + 2 / n * gain)
        risk = cp.max(cp.hstack(parts))
    else:
        from reference import losses

        risk = cp.sum(losses(loss, z, y)) / n
    program = cp.Problem(cp.Minimize(lam / 2 * cp.sum_squares(w) + risk))
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return float(program.value)


@pytest.mark.parametrize("lam", [1e-1, 1e-4])
@pytest.mark.parametrize("loss", [*PAIRS, *ROWS], ids=repr)
def test_the_optimum_equals_cvxpys(loss, lam):
    X, y = data(loss)
    result = minimize(Objective(linear_risk(X, y, loss), L2(), lam), Newton(), tol=1e-7)
    assert result.status == "converged"
    best = reference_optimum(loss, X, y, lam)
    assert result.lower <= best + 1e-8
    assert abs(result.value - best) <= 2e-7 * best + 1e-8


@pytest.mark.parametrize("loss", [RocArea(), Prbep(), Hinge(), Quantile(0.3)], ids=repr)
@pytest.mark.parametrize("direct", [1, 2500])
def test_cuts_are_below_the_risk_everywhere(loss, direct):
    X, y = data(loss, n=60, p=4)
    obj = Objective(linear_risk(X, y, loss), L2(), 1e-4)
    rng = np.random.default_rng(1)
    points = [scale * rng.standard_normal(4) for scale in (0, 0.1, 1, 10, 1e3) for _ in range(8)]
    risks = [obj.risk(v)[0] for v in points]
    for it in islice(Newton(direct).iterates(obj, rng.standard_normal(4)), 40):
        assert abs(it.value - obj.value(it.w)) <= 1e-12 * it.value
        for v, risk in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= risk + 1e-11 * (1 + abs(risk))


def test_the_contract_of_solvers():
    check_solver(Newton())
    check_solver(Newton(direct=1))


@pytest.mark.parametrize("layout", range(5))
@pytest.mark.parametrize("loss", [RocArea(), Prbep(), Hinge()], ids=repr)
def test_data_in_any_layout(loss, layout):
    X, y = data(loss, n=80, p=5)
    X = X.astype(np.float32).astype(float)
    values = [
        minimize(Objective(linear_risk(A, y, loss), L2(), 1e-3), Newton(), tol=1e-6)
        for A in (X, layouts(X)[layout])
    ]
    assert values[1].status == "converged"
    assert abs(values[0].value - values[1].value) <= 2e-6 * values[0].value


def test_weights_and_quadratic_forms():
    X, y = data(Hinge(), n=60, p=4)
    m = np.array([0.1, 1.0, 2.0, 5.0])
    for loss in (Hinge(), RocArea()):
        risk = linear_risk(X, y, loss, sample_weight=np.arange(60) % 4)
        runs = [
            minimize(Objective(risk, reg, 1e-3), Newton(direct), tol=1e-7)
            for reg in (L2(m), Quadratic(np.diag(m)), Quadratic(sp.diags_array(m)))
            for direct in (1, 9)
        ]
        assert all(run.status == "converged" for run in runs)
        assert np.ptp([run.value for run in runs]) <= 2e-7 * runs[0].value


# ---------------------------------------------------------------- steps
def midsize(loss, n=2000, p=20):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, p)) * np.logspace(0, -1, p)
    return X, labels(loss, X @ rng.standard_normal(p), rng)


@pytest.mark.parametrize(
    ("loss", "max_iter"),
    [(RocArea(), 35), (Ordinal(), 35), (Prbep(), 70), (Hinge(), 60), (Absolute(), 50)],
    ids=repr,
)
def test_a_small_lam_takes_few_steps(loss, max_iter):
    X, y = midsize(loss)
    result = minimize(Objective(linear_risk(X, y, loss), L2(), 1e-6), Newton(), tol=1e-6, max_iter=max_iter)
    assert result.status == "converged"


def test_smooth_losses_take_newton_steps_without_smoothing():
    for loss in (Logistic(), SquaredHinge(), Squared()):
        X, y = midsize(Hinge())
        result = minimize(Objective(linear_risk(X, y, loss), L2(), 1e-6), Newton(), tol=1e-8, max_iter=15)
        assert result.status == "converged"
        assert all(row["mu"] == 0 for row in result.trace)


def test_it_stalls_at_full_accuracy():
    X, y = data(Hinge(), n=30, p=2)
    for loss in (Hinge(), RocArea(), Prbep()):
        obj = Objective(linear_risk(X, y, loss), L2(), 1e-2)
        result = minimize(obj, Newton(), tol=1e-300, max_iter=2000)
        assert result.status == "stalled"
        assert 0 <= result.gap <= 1e-10 * result.value


def test_a_risk_with_zero_features():
    obj = Objective(linear_risk(np.zeros((6, 2)), np.array([1.0, -1] * 3), RocArea()), L2(), 0.1)
    result = minimize(obj, Newton(), tol=1e-9)
    assert result.status == "converged"
    assert result.value == 1.0


# ---------------------------------------------------------------- resumption and unsupported problems
@pytest.mark.parametrize("loss", [RocArea(), Prbep(), Hinge()], ids=repr)
@pytest.mark.parametrize(("intercept", "p"), [(False, 5), (True, 5), (False, 120)])
def test_it_resumes_with_the_same_iterates(loss, intercept, p):
    X, y = data(loss, n=100, p=p)
    obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 1e-4)
    solver = Newton()
    steps = list(islice(solver.iterates(obj, np.zeros(p)), 30))
    for k in (0, 1, 7, 20):
        state = {name: np.array(a, copy=True) for name, a in steps[k].state().items()}
        for it, after in zip(islice(solver.resume(obj, state), 5), steps[k + 1 :], strict=False):
            np.testing.assert_array_equal(it.w, after.w)
            assert (it.value, it.cut.b, it.info["mu"]) == (after.value, after.cut.b, after.info["mu"])


def test_unsupported_problems_are_refused():
    X, y = data(Hinge())

    def run(risk, reg=None):
        next(Newton().iterates(Objective(risk, reg or L2(), 0.1), np.zeros(3)))

    with pytest.raises(UnsupportedProblem, match="use Bundle"):
        run(linear_risk(X, y, FBeta()))
    with pytest.raises(UnsupportedProblem, match=r"needs L2\(\) or Quadratic"):
        run(linear_risk(X, y, Hinge()), L1())
    with pytest.raises(UnsupportedProblem, match="use Auto, Smoothing or Bundle"):
        run(lambda w: (0.0, w))
    with pytest.raises(ValueError, match="direct"):
        Newton(direct=0)


@pytest.mark.parametrize("direct", [1, 2500])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_remote_rows_give_the_same_bits(loss, sparse, direct):
    rng = np.random.default_rng(3)
    X = np.round(rng.standard_normal((2000, 5)) * (rng.random((2000, 5)) < 0.6), 2)
    y = np.where(X.sum(1) + rng.standard_normal(2000) > 0, 1.0, -1.0)
    for intercept in (False, True):
        local = linear_risk(sp.csr_array(X) if sparse else X, y, loss, n_shards=3)
        results = []
        for inner in (local, replace(local, rows=None)):
            risk = replace(inner, intercept=ProfiledIntercept()) if intercept else inner
            results.append(minimize(Objective(risk, L2(), 1e-4), Newton(direct), tol=1e-8))
        local_result, remote_result = results
        assert local_result.status == "converged"
        np.testing.assert_array_equal(local_result.w, remote_result.w)
        assert (local_result.value, local_result.lower) == (remote_result.value, remote_result.lower)


def test_auto_chooses_bundle_on_wide_data_where_few_cuts_suffice():
    rng = np.random.default_rng(0)
    X = sp.random_array((60, 3000), density=0.01, rng=rng, format="csr")
    risk = linear_risk(X, np.where(np.arange(60) < 20, 1.0, -1.0), RocArea())
    square = float(np.sum(risk(np.zeros(3000))[1] ** 2))
    picks = [Auto().choose(Objective(risk, L2(), lam))[0] for lam in (square, 1e-6 * square)]
    assert isinstance(picks[0], Bundle)
    assert isinstance(picks[1], SeparableForm)


def test_break_even_points_of_small_separable_data():
    """For separable classes and tiny lam, few multipliers lie strictly between their bounds."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 30))
    risk = linear_risk(X, np.where(X[:, 0] + X[:, 1] > 0.5, 1.0, -1.0), Prbep())
    result = minimize(Objective(risk, L2(), lam=1e-6), tol=1e-3, max_iter=500)
    assert result.status == "converged"
    assert result.solver.startswith("SeparableForm")


def test_a_start_with_zero_loss():
    """The solution for a larger lam may have zero loss, but it does not minimize J."""
    X = np.array([[0.0, 3.0], [1.0, 0.0], [2.0, 0.0], [4.0, 4.0], [2.0, 3.0], [3.0, 2.0]])
    risk = linear_risk(X, np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]), RocArea())
    before = minimize(Objective(risk, L2(), 0.1), Newton(), tol=1e-9)
    result = minimize(Objective(risk, L2(), 0.01), Newton(), before.w, tol=1e-6)
    assert result.status == "converged"


@pytest.mark.parametrize("seed", [14, 17])
def test_numerically_singular_row_systems_are_solved_otherwise(seed):
    rng = np.random.default_rng(seed)
    X = 1e6 * rng.standard_normal((8, 16))
    X[4:] = X[:4]
    y = 1e3 * rng.standard_normal(8)
    risk = linear_risk(X, y, EpsilonInsensitive(0.5), fit_intercept=True)
    result = minimize(Objective(risk, L2(), lam=1e-10), Newton(), tol=1e-3, max_iter=200)
    assert result.status == "converged"


def test_systems_without_active_rows_contain_only_the_penalty(capfd):
    design = DesignOperator(linear_risk(np.ones((2, 3)), np.array([1.0, -1.0]), Hinge()))
    d = NewtonSystem(design, L2(), 2500)._solve_by_rows(Hessian(np.zeros(2)), 0.5, np.array([1.0, -2.0, 0.0]))
    assert d.tolist() == [-2.0, 4.0, 0.0]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("p", [1, 100])
def test_a_matrix_without_entries_is_supported(p):
    risk = linear_risk(sp.csr_array((4, p)), np.array([1.0, -1.0, 1.0, 1.0]), Logistic(), fit_intercept=True)
    result = minimize(Objective(risk, L2(), lam=0.1), Newton(), w0=np.ones(p), tol=0.0, max_iter=20)
    assert result.value == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))


def test_auto_chooses_by_the_metadata_of_remote_rows():
    X, y = sp.csr_array(np.eye(4)), np.array([1.0, -1.0, 1.0, 1.0])
    wide = sp.csr_array(np.eye(4, 3000))

    def pick(X, loss, **settings):
        risk = linear_risk(X, y, loss, **settings)
        remote = replace(risk, rows=None)
        return type(Auto().choose(Objective(remote, L2(), 0.1))[0])

    assert pick(X, Hinge()) is pick(X, Hinge(), fit_intercept=True) is Newton
    assert pick(X, Logistic()) is Newton
    assert pick(wide, Hinge()) is DualCoordinateAscent
    assert pick(wide, Hinge(), fit_intercept=True) is Bundle
    assert pick(wide, Logistic()) is Lbfgs
