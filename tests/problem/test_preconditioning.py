"""Preconditioned variables: values, cuts and bounds agree, and no problem stalls because of its units."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin.problem.preconditioning as preconditioning
from riskmin import (
    L1,
    L2,
    Absolute,
    AugmentedLagrangian,
    Box,
    Bundle,
    CoordinateDescent,
    Elastic,
    Hinge,
    Huber,
    Lbfgs,
    LinearClassifier,
    LinearRegressor,
    Logistic,
    MulticlassHinge,
    MultivariateSquared,
    Ndcg,
    Newton,
    Nu,
    Objective,
    Poisson,
    Processes,
    QNorm,
    Quadratic,
    RocArea,
    Softmax,
    Squared,
    Threads,
    linear_risk,
    minimize,
    path,
)
from riskmin.core.limits import LIMITS
from riskmin.driver.loop import precondition
from riskmin.linear_maps.linear import Standardized
from riskmin.problem.preconditioning import preconditioner

UNITS = np.array([1.0, 100.0, 1e-3, 10.0])


def badly_scaled(n=60, seed=0):
    """Columns of different units, far from zero, with labels +1 and -1."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, 4))
    y = np.where(Z @ [1.0, -1.0, 0.5, 0.0] + 0.3 * rng.standard_normal(n) > 0, 1.0, -1.0)
    return Z * UNITS + [5.0, 1000.0, 7.0, 0.0], y


def targets(loss, X, y):
    if isinstance(loss, (Softmax, MulticlassHinge)):
        return (y > 0) + (X[:, 1] > 1050.0).astype(float)
    return np.stack([y, X[:, 0]], 1) if isinstance(loss, MultivariateSquared) else y


PROBLEMS = [
    (Hinge(), True),
    (Hinge(), False),
    (RocArea(), False),
    (Softmax(), True),
    (MulticlassHinge(), False),
    (MulticlassHinge(), True),
    (Nu(Absolute(), 0.3), True),
    (MultivariateSquared(), True),
]
REGULARIZERS = [L2(), L2([1.0, 2.0, 3.0, 4.0]), L1(), Elastic(0.2), Box(L2(), -9.0, 9.0), QNorm()]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(("loss", "intercept"), PROBLEMS)
@pytest.mark.parametrize("reg", REGULARIZERS, ids=repr)
def test_values_cuts_and_bounds_agree(loss, intercept, reg, stored, monkeypatch):
    if not stored:
        monkeypatch.setattr(preconditioning, "LIMITS", replace(LIMITS, copy_max_entries=0))
    X, y = badly_scaled()
    risk = linear_risk(X, targets(loss, X, y), loss, fit_intercept=intercept)
    if isinstance(getattr(reg, "weights", 1.0), np.ndarray) and risk.dim > 4:
        pytest.skip("weights are one per entry of w")
    J = Objective(risk, reg, 0.01)
    k = J.n_intercepts
    change = preconditioner(J)
    if change is None:
        assert isinstance(reg, QNorm)
        assert not intercept
        return
    transformed = change.objective(J)
    if transformed is None:
        assert isinstance(loss, MultivariateSquared)  # its own linear map centers columns already
        assert not stored
        return
    rng = np.random.default_rng(1)
    size = np.concatenate([np.repeat(0.1 / UNITS, (risk.dim - k) // 4), np.ones(k)])
    for _ in range(3):
        w = np.clip(size * rng.standard_normal(risk.dim), -9.0, 9.0)
        v = change.to_preconditioned(w, k)
        np.testing.assert_allclose(change.to_original(v, k), w, rtol=1e-12, atol=1e-12)
        value, _, cut = J(w)
        transformed_value, _, other = transformed(v)
        mapped = change.cut(other, k)
        assert transformed_value == pytest.approx(value, rel=1e-9)
        assert transformed.lower(other) == pytest.approx(J.lower(cut), rel=1e-6, abs=1e-9)
        assert J.lower(mapped) == pytest.approx(transformed.lower(other), rel=1e-9, abs=1e-12)
        u = np.clip(size * rng.standard_normal(risk.dim), -9.0, 9.0)
        assert J.risk(u)[0] >= mapped.a @ u + mapped.b - 1e-9  # it is a cut of the original risk


def test_centered_columns_of_equal_size_are_unchanged():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((50, 4)), np.sign(rng.standard_normal(50))
    assert preconditioner(Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), 1e-3)) is None
    # without an intercept a shift would change J
    change = preconditioner(Objective(linear_risk(X + 100.0, y, Hinge()), L2(), 1e-3))
    assert change is None or not change.shift.any()


@pytest.mark.slow
@pytest.mark.parametrize("solver", [None, "bundle", "lbfgs"])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
@pytest.mark.parametrize("offset", [100.0, 1e6])
def test_a_shift_of_the_columns_does_not_change_the_optimum(loss, offset, solver):
    if solver == "lbfgs" and isinstance(loss, Hinge):
        pytest.skip("lbfgs is for smooth losses")
    rng = np.random.default_rng(2)
    X = rng.standard_normal((40, 60))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    original, shifted = (
        minimize(Objective(linear_risk(Z, y, loss, fit_intercept=True), L2(), 1e-3), solver, tol=1e-6)
        for Z in (X, X + offset)
    )
    assert original.status == shifted.status == "converged"
    assert shifted.value == pytest.approx(original.value, rel=3e-6)
    assert shifted.lower <= original.value
    assert original.lower <= shifted.value


@pytest.mark.parametrize("loss", ["hinge", "logistic", "roc_area", "squared_hinge"])
def test_the_storage_order_does_not_change_the_fit(loss):
    X, y = badly_scaled(200)
    fits = [LinearClassifier(loss, tol=1e-8).fit(Z, y) for Z in (X, np.asfortranarray(X))]
    assert fits[0].objective_ == pytest.approx(fits[1].objective_, rel=1e-8)
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, rtol=1e-3, atol=1e-6 * abs(fits[0].coef_).max())


@pytest.mark.parametrize(
    "solver",
    [Newton(), Lbfgs(), Bundle(), AugmentedLagrangian(), CoordinateDescent(), None],
    ids=repr,
)
def test_large_tables_are_centered_without_a_copy(solver, monkeypatch):
    monkeypatch.setattr(preconditioning, "LIMITS", replace(LIMITS, copy_max_entries=0))
    X, y = badly_scaled(3000)
    J = Objective(linear_risk(X, y, Logistic(), fit_intercept=True), L2(), 1e-4)
    problem = precondition(J)
    assert isinstance(problem.obj.risk.linear_map, Standardized)
    reads_rows = isinstance(
        solver, (AugmentedLagrangian, CoordinateDescent)
    )  # these read rows or columns as stored
    result = minimize(J, solver, tol=1e-5, max_iter=100 if reads_rows else 3000)
    best = minimize(J, "newton", tol=1e-9)
    assert result.lower <= best.value * (1 + 1e-12)
    assert reads_rows or result.status == "converged"


@pytest.mark.parametrize("X", [sp.csr_array, sp.csc_array])
def test_sparse_tables_with_a_column_far_from_zero_are_certified(X):
    rng = np.random.default_rng(4)
    Z = rng.random((300, 30)) * (rng.random((300, 30)) < 0.1)
    y = np.where(Z[:, 1] + 0.1 * rng.standard_normal(300) > 0.05, 1.0, -1.0)
    Z[:, 0] = 1e5 + rng.standard_normal(300)
    dense, sparse = (
        minimize(Objective(linear_risk(M, y, Logistic(), fit_intercept=True), L2(), 1e-3), tol=1e-6)
        for M in (Z, X(Z))
    )
    assert dense.status == sparse.status == "converged"
    assert sparse.value == pytest.approx(dense.value, rel=2e-6)


def test_sparse_columns_are_scaled_and_remain_sparse():
    rng = np.random.default_rng(5)
    Z = rng.standard_normal((200, 20)) * (rng.random((200, 20)) < 0.2)
    Z[:, 0] *= 1e6
    J = Objective(linear_risk(sp.csr_array(Z), np.sign(Z[:, 1] + 0.1), Hinge()), L2(), 1e-3)
    problem = precondition(J)
    assert problem.change is not None
    assert type(problem.obj.risk.rows.X).__name__ == "Csr"
    assert minimize(J, tol=1e-6).status == "converged"


@pytest.mark.slow
@pytest.mark.parametrize(
    "executor", [Threads(n_workers=2), Processes(n_workers=2)], ids=["threads", "processes"]
)
def test_other_executors_agree(executor):
    X, y = badly_scaled(400)
    results = [
        minimize(
            Objective(linear_risk(X, y, Hinge(), fit_intercept=True, executor=e, n_shards=3), L2(), 1e-3)
        )
        for e in (None, executor)
    ]
    assert all(result.status == "converged" for result in results)
    assert results[0].value == pytest.approx(results[1].value, rel=2e-3)


def test_a_path_uses_the_same_variables_throughout():
    X, y = badly_scaled(200)
    risk = linear_risk(X, y, Hinge(), fit_intercept=True)
    lams = [1e-1, 1e-3, 1e-5]
    for solver in (None, Bundle()):
        for lam, result in zip(lams, path(risk, L2(), lams, solver=solver, tol=1e-5), strict=True):
            single = minimize(Objective(risk, L2(), lam), tol=1e-6)
            assert result.status == "converged"
            assert result.value == pytest.approx(single.value, rel=3e-5)


def test_quadratic_forms_are_transformed():
    X, y = badly_scaled()
    K = np.eye(4) + 0.2
    J = Objective(linear_risk(X, y, Squared(), fit_intercept=True), Quadratic(K), 1e-3)
    change = preconditioner(J)
    w = np.array([0.1, 0.001, 3.0, 0.2])
    assert change.objective(J).value(change.to_preconditioned(w)) == pytest.approx(J.value(w), rel=1e-12)


@pytest.mark.filterwarnings("ignore::riskmin.estimators._common.trivial.TrivialModelWarning")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("loss", ["squared", "huber", "absolute", "quantile:level=0.9"])
def test_regressors_in_any_unit_are_certified(loss, scale):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((80, 5)) * scale * [1, 10, 100, 1e3, 1e-3] + 3 * scale
    y = 1e4 + 1e3 * (X[:, 0] / scale + rng.standard_normal(80))
    model = LinearRegressor(loss).fit(X, y)
    assert model.result_.status == "converged"


def test_counts_in_the_millions_are_certified_without_an_intercept():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((300, 5)) * [1, 10, 100, 1e3, 1e4]
    y = rng.poisson(1e7 * np.exp(0.1 * X[:, 0])).astype(float)
    J = Objective(linear_risk(X, y, Poisson()), L2(), 1e-4)
    result = minimize(J)
    assert result.status == "converged"
    assert result.value < J.value(np.zeros(5))


def test_huber_far_from_its_quadratic_part_is_certified():
    rng = np.random.default_rng(8)
    X = rng.standard_normal((60, 8)) * np.logspace(0, 6, 8)
    y = 1e5 * rng.standard_normal(60)  # thousands of deltas: no row has curvature
    J = Objective(linear_risk(X, y, Huber(), fit_intercept=True), L2(), 1e-4)
    assert minimize(J, Newton(), tol=1e-4).status == "converged"


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array])
def test_a_sparse_table_with_one_full_column_far_from_zero_stays_sparse(form):
    """A year beside indicators: only the year is centered, so that solvers of local rows still apply."""
    rng = np.random.default_rng(0)
    levels = sp.csr_array((np.ones(300), (np.arange(300), rng.integers(0, 60, 300))), shape=(300, 60))
    years = 2000.0 + rng.integers(0, 20, 300)
    X = form(sp.hstack([levels, years[:, None]]))
    y = levels @ rng.standard_normal(60) + 0.1 * (years - 2010)
    obj = Objective(linear_risk(X, y, Squared(), fit_intercept=True), L1(), lam=1e-3)
    change = preconditioner(obj)
    assert np.flatnonzero(change.shift).tolist() == [60]
    changed = change.objective(obj).risk.rows.X
    dense = (X.toarray() - change.shift) * change.scale
    np.testing.assert_allclose(changed.as_scipy().toarray(), dense, rtol=1e-12)
    assert len(changed.data) <= X.nnz + np.count_nonzero(years == change.shift[60])
    full = X.toarray() - change.shift  # the same problem, dense
    same = minimize(Objective(linear_risk(full, y, Squared(), fit_intercept=True), L1(), lam=1e-3), tol=1e-8)
    result = minimize(obj, tol=1e-8)
    assert "CoordinateDescent" in result.solver
    assert result.value == pytest.approx(same.value, rel=1e-7)


@pytest.mark.parametrize(
    ("unit", "offset"), [(1e-6, 1e5), (1e6, 0.0), (1e6, 1e3), (1e6, 1e5), (1e9, 0.0), (1e9, 1e3)]
)
def test_bounds_have_the_rounding_of_centered_columns(unit, offset):
    """Far from zero, slopes of raw columns round by more than lam; the minimum is known exactly.

    In units of 1e9, those of centered columns round by a percent of lam, too.
    """
    rng, lam = np.random.default_rng(int(offset)), 1e-4
    x = (rng.normal(size=40) + offset) * unit
    y = x / unit + rng.normal(size=40)
    X, Y = [Fraction(v) for v in x.tolist()], [Fraction(v) for v in y.tolist()]
    mean_x, mean_y = sum(X) / 40, sum(Y) / 40
    xx, xy, yy = (
        sum((s - m) * (t - k) for s, t in zip(S, T, strict=True)) / 40
        for S, m, T, k in ((X, mean_x, X, mean_x), (X, mean_x, Y, mean_y), (Y, mean_y, Y, mean_y))
    )
    minimum = yy / 2 - max(abs(xy) - Fraction(lam), 0) ** 2 / (2 * xx)
    J = Objective(linear_risk(x[:, None], y, Squared(), fit_intercept=True), L1(), lam)
    result = minimize(J, tol=1e-3)
    assert result.status == "converged"
    assert result.lower == J.lower(result.cut)
    assert Fraction(result.lower) <= minimum <= Fraction(result.value) + Fraction(1, 10**9)
    # rounding is allowed for where it is the whole of the gap, too
    assert Fraction(minimize(J, tol=1e-14, max_iter=50).lower) <= minimum


@pytest.mark.parametrize("form", [np.array, sp.csr_array])
def test_rows_that_are_grouped_by_query_are_preconditioned(form):
    X, _ = badly_scaled()
    rng = np.random.default_rng(1)
    y, qid = rng.integers(0, 3, 60).astype(float), np.repeat(np.arange(6), 10)
    problem = precondition(Objective(linear_risk(form(X), y, Ndcg(), qid=qid, n_shards=3), L2(), 1e-3))
    assert problem.change is not None
    assert (problem.change.shift != 0).all()
    v = rng.standard_normal(4)
    w = problem.change.to_original(v)
    assert problem.obj.value(v) == pytest.approx(problem.original.value(w), rel=1e-9)
    cut = problem.change.cut(problem.obj.cut(v))
    np.testing.assert_allclose(cut.a, problem.original.cut(w).a, rtol=1e-7, atol=1e-9)


def test_a_solver_state_is_resumed_in_the_variables_of_its_run():
    X, y = badly_scaled()
    pairs = precondition(Objective(linear_risk(X, y, RocArea()), L2(), 1e-3))
    assert pairs.in_variables(pairs.variables) is pairs
    assert pairs.in_variables("original").change is None
    assert pairs.in_variables("another checksum") is None
