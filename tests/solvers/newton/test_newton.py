"""Newton's method for smooth losses: optima, cuts, misleading samples, reused Hessians."""

from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize as reference

from riskmin import (
    L1,
    L2,
    EpsilonInsensitive,
    Exponential,
    FBeta,
    Hinge,
    Huber,
    Logistic,
    Newton,
    Objective,
    Poisson,
    PowerHinge,
    Quadratic,
    SmoothedHinge,
    Squared,
    SquaredHinge,
    Threads,
    check_solver,
    linear_risk,
    minimize,
)
from riskmin.core import Hessian, UnsupportedProblem
from riskmin.problem.design_operator import shard_gram_diagonal
from riskmin.problem.shard_ops import hessian_product
from riskmin.solvers.newton import hessian_reuse
from riskmin.solvers.newton.hessian_reuse import ReusedHessian
from riskmin.solvers.newton.small.smooth import SmallSmoothProblem
from riskmin.solvers.newton.small.stages import SmallProblem

LOSSES = [
    Logistic(),
    SquaredHinge(),
    SmoothedHinge(0.3),
    Squared(),
    Huber(0.5),
    Poisson(),
    Exponential(),
    EpsilonInsensitive(0.2, 2.0),
    PowerHinge(3.0),
]


def data(loss, n=60, p=4, seed=0):
    rng = np.random.default_rng(seed)
    X = np.round(rng.standard_normal((n, p)), 2)
    z = X @ rng.standard_normal(p) + rng.standard_normal(n)
    if isinstance(loss, Poisson):
        return X, rng.poisson(np.exp(np.clip(z, -3, 2))) * 1.0
    return X, np.where(z > 0.5, 1.0, -1.0) if loss.task == "classification" else z


def reference_optimum(loss, X, y, c, lam, intercept):
    """The minimum of J by SciPy, from the definition of J."""
    p = X.shape[1]

    def J(v):
        value, dz = loss.value_grad(X @ v[:p] + v[p] * intercept, y, c)
        slope = np.append(X.T @ dz + lam * v[:p], dz.sum() * intercept)
        return float(value) + lam / 2 * v[:p] @ v[:p], slope

    options = {"gtol": 1e-11, "ftol": 1e-16, "maxiter": 20_000, "maxfun": 40_000}
    return reference(J, np.zeros(p + 1), jac=True, method="L-BFGS-B", options=options).fun


def check_optimum(loss, lam, intercept, weighted):
    X, y = data(loss)
    weights = np.arange(60) % 4 if weighted else None
    risk = linear_risk(X, y, loss, sample_weight=weights, fit_intercept=intercept)
    result = minimize(Objective(risk, L2(), lam), Newton(), tol=1e-9)
    assert result.status == "converged"
    c = np.full(60, 1 / 60) if weights is None else weights / weights.sum()
    expected = reference_optimum(loss, X, y, c, lam, intercept)
    assert result.lower <= expected * (1 + 1e-12)
    assert abs(result.value - expected) <= 1e-8 * expected


@pytest.mark.parametrize("loss", [Logistic(), Poisson(), Huber(0.5)], ids=repr)
def test_the_optimum_equals_scipys(loss):
    check_optimum(loss, 1e-2, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("lam", [1e-1, 1e-4])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_optimum_equals_scipys_for_all_losses(loss, lam, intercept, weighted):
    check_optimum(loss, lam, intercept, weighted)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize(("intercept", "direct"), [(False, 2500), (True, 2500), (True, 1)])
def test_cuts_are_below_the_risk_everywhere(loss, intercept, direct):
    X, y = data(loss)
    obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 1e-4)
    rng = np.random.default_rng(1)
    points = [scale * rng.standard_normal(4) for scale in (0, 0.1, 1, 3) for _ in range(8)]
    risks = [obj.risk(v)[0] for v in points]
    for it in islice(Newton(direct).iterates(obj, rng.standard_normal(4)), 20):
        # an inexact intercept may raise J by a tenth of the gap
        excess = 0.1 * (it.value - obj.lower(it.cut)) if intercept else 0.0
        assert -1e-12 * (1 + it.value) <= it.value - obj.value(it.w) <= 1e-12 * (1 + it.value) + excess
        for v, risk in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= risk + 1e-11 * (1 + abs(risk))


@pytest.mark.slow
@pytest.mark.parametrize("solver", [Newton(), Newton(direct=1), Newton(sampled=False)], ids=repr)
def test_the_contract_of_solvers(solver):
    check_solver(solver, smooth=True)


# ---------------------------------------------------------------- data
@pytest.mark.slow
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("direct", [1, 2500])
@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge()], ids=repr)
def test_data_in_any_layout(loss, direct, intercept):
    X, y = data(loss, n=80, p=5)
    X = X.astype(np.float32).astype(float)
    forms = [X, np.asfortranarray(X), X.astype(np.float32), sp.csr_array(X), sp.csc_array(X)]
    runs = [
        minimize(
            Objective(linear_risk(A, y, loss, fit_intercept=intercept), L2(), 1e-3), Newton(direct), tol=1e-8
        )
        for A in forms
    ]
    assert all(run.status == "converged" for run in runs)
    assert np.ptp([run.value for run in runs]) <= 2e-8 * runs[0].value


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_threads_agree(sparse):
    X, y = data(Logistic(), n=400, p=6)
    X = sp.csr_array(X) if sparse else X
    risks = [
        linear_risk(X, y, Logistic(), fit_intercept=True, **settings)
        for settings in ({}, {"n_shards": 3, "executor": Threads(n_workers=2)})
    ]
    for direct in (1, 2500):
        one, two = (minimize(Objective(risk, L2(), 1e-3), Newton(direct), tol=1e-9) for risk in risks)
        assert two.status == "converged"
        assert abs(one.value - two.value) <= 2e-9 * one.value


@pytest.mark.slow
def test_quadratic_forms():
    X, y = data(Logistic())
    m = np.array([0.1, 1.0, 2.0, 5.0])
    runs = [
        minimize(Objective(linear_risk(X, y, Logistic()), reg, 1e-3), Newton(direct), tol=1e-9)
        for reg in (L2(m), Quadratic(np.diag(m)), Quadratic(sp.diags_array(m)))
        for direct in (1, 9)
    ]
    assert all(run.status == "converged" for run in runs)
    assert np.ptp([run.value for run in runs]) <= 2e-9 * runs[0].value


@pytest.mark.parametrize("sparse", [False, True])
def test_hessian_products_and_gram_diagonals(sparse):
    rng = np.random.default_rng(0)
    X, h, d = rng.standard_normal((50, 7)), rng.random(50), rng.standard_normal(7)
    risk = linear_risk(sp.csr_array(X) if sparse else X, np.zeros(50), Squared())
    (product,), (diagonal,) = (
        hessian_product(risk.rows, risk.linear_map, d, h),
        shard_gram_diagonal(risk.rows, h),
    )
    np.testing.assert_allclose(product, X.T @ (h * (X @ d)), rtol=1e-12)
    np.testing.assert_allclose(diagonal, h @ X**2, rtol=1e-12)


# ---------------------------------------------------------------- steps
def many_rows(n=8000, p=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * np.logspace(0, -1, p)
    y = np.where(X @ (3 * rng.standard_normal(p)) + rng.standard_normal(n) > 0, 1.0, -1.0)
    return X, y


def record_hessian_rows(monkeypatch, n=8000):
    """Record the number of rows of each Hessian that is formed, after the start on a sample."""
    n_rows, original = [], hessian_reuse.factorized

    def factorized(design, reg, lam, hessian):
        if design.shape[0] == n:
            n_rows.append(np.count_nonzero(hessian.diagonal))
        return original(design, reg, lam, hessian)

    monkeypatch.setattr(hessian_reuse, "factorized", factorized)
    return n_rows


def test_samples_suffice_for_many_rows(monkeypatch):
    monkeypatch.setattr(SmallSmoothProblem, "MAX_ENTRIES", 0)
    X, y = many_rows()
    n_rows = record_hessian_rows(monkeypatch)
    obj = Objective(linear_risk(X, y, Logistic()), L2(), 1e-5)
    result = minimize(obj, Newton(), tol=1e-8)
    assert result.status == "converged"
    assert max(n_rows) <= 2000
    assert result.n_iter <= 8


@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge()], ids=repr)
def test_misleading_samples_are_abandoned(loss, monkeypatch):
    """A few rows have large features of their own: most of the curvature, but rarely sampled."""
    monkeypatch.setattr(SmallProblem, "MAX_ENTRIES", 0)
    monkeypatch.setattr(SmallSmoothProblem, "MAX_ENTRIES", 0)
    rng = np.random.default_rng(0)
    X, y = many_rows()
    rare = rng.permutation(len(y))[:40]
    X = np.hstack([X, np.zeros((len(y), 10))])
    X[rare, 5 + np.arange(40) % 10] = 300 * rng.standard_normal(40)
    n_rows = record_hessian_rows(monkeypatch)
    obj = Objective(linear_risk(X, y, loss), L2(), 1e-6)
    result = minimize(obj, Newton(), tol=1e-6, max_iter=60)
    assert result.status == "converged"
    assert n_rows[0] <= 2000 < min(n_rows[1:])  # a quarter of the rows once, then all active rows
    unsampled = minimize(obj, Newton(sampled=False), tol=1e-6)
    assert abs(result.value - unsampled.value) <= 1e-6 * unsampled.value
    assert result.n_iter <= unsampled.n_iter + 3


def test_a_sample_with_other_curvature_is_not_trusted():
    X, _ = many_rows()
    reused = ReusedHessian(*_design_operator(X), L2(), 100, False, True, False)
    assert reused.sampled
    h = np.ones(len(X))
    reused.solve(Hessian(h), 1e-3, np.ones(5), 0.0)
    sampled_rows = np.flatnonzero(reused.hessian_diagonal)
    dz = np.ones(len(X))
    dz[sampled_rows] = 0.01  # the sample has hardly any curvature along this direction
    reused.check_direction(Hessian(h), dz, 1.0)
    assert not reused.sampled


def _design_operator(X):
    from riskmin.problem.design_operator import DesignOperator

    return (DesignOperator(linear_risk(X, np.zeros(len(X)), Squared())),)


def test_least_squares_take_one_step():
    X, y = data(Squared(), n=200, p=6)
    for intercept in (False, True):
        obj = Objective(linear_risk(X, y, Squared(), fit_intercept=intercept), L2(), 1e-6)
        assert minimize(obj, Newton(), tol=1e-10).n_iter <= 2  # the start, and the solution


def test_it_stalls_at_full_accuracy():
    X, y = data(Logistic())
    result = minimize(
        Objective(linear_risk(X, y, Logistic()), L2(), 1e-2), Newton(), tol=1e-300, max_iter=500
    )
    assert result.status == "stalled"
    assert 0 <= result.gap <= 1e-12 * result.value


# ---------------------------------------------------------------- resumption and unsupported problems
@pytest.mark.parametrize(
    ("n", "direct", "intercept"), [(100, 2500, True), (100, 1, False), (3000, 2500, False)]
)
def test_it_resumes_with_the_same_iterates(n, direct, intercept):
    X, y = data(Logistic(), n=n, p=5)
    obj = Objective(linear_risk(X, y, Logistic(), fit_intercept=intercept), L2(), 1e-4)
    solver = Newton(direct)
    steps = list(islice(solver.iterates(obj, np.zeros(5)), 8))
    for k in range(len(steps) - 1):
        state = {name: np.array(a, copy=True) for name, a in steps[k].state().items()}
        for it, after in zip(islice(solver.resume(obj, state), 3), steps[k + 1 :], strict=False):
            np.testing.assert_array_equal(it.w, after.w)
            assert (it.value, it.cut.b) == (after.value, after.cut.b)


def test_unsupported_problems_are_refused():
    X, y = data(Hinge())

    def run(risk, reg=None):
        Newton().iterates(Objective(risk, reg or L2(), 0.1), np.zeros(4))

    with pytest.raises(UnsupportedProblem, match="FBeta has none: use Bundle"):
        run(linear_risk(X, y, FBeta()))
    with pytest.raises(UnsupportedProblem, match=r"needs L2\(\) or Quadratic"):
        run(linear_risk(X, y, Logistic()), L1())
    with pytest.raises(UnsupportedProblem, match="needs a linear_risk"):
        run(lambda w: (0.0, w))
    with pytest.raises(ValueError, match="direct"):
        Newton(direct=0)


def test_an_intercept_without_a_minimum_is_refused():
    obj = Objective(linear_risk(np.ones((6, 2)), np.zeros(6), Poisson(), fit_intercept=True), L2(), 0.1)
    with pytest.raises(ValueError, match="falls for ever"):
        minimize(obj, Newton())


@pytest.mark.parametrize("sparse", [False, True])
def test_long_steps_on_counts_with_heavy_tails_do_not_increase_the_objective(sparse):
    """The first direction is a linear fit of y over its mean: scores of hundreds, and terms of 10^90."""
    rng = np.random.default_rng(4)
    X = np.column_stack([np.exp(2.5 * rng.standard_normal(4000)), rng.standard_normal((4000, 2))])
    y = rng.poisson(X[:, 0]).astype(float)
    risk = linear_risk(sp.csr_array(X) if sparse else X, y, Poisson(), fit_intercept=True)
    obj = Objective(risk, L2(), 1e-6)
    values = [it.value for it in islice(Newton().iterates(obj, np.zeros(3)), 30)]
    assert (np.diff(values) <= 1e-9 * np.array(values[:-1])).all()
    assert minimize(obj, Newton(), max_iter=100).status == "converged"
