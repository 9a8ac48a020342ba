"""Columns in any units, far from zero: the optimum is found and certified, and no problem stalls."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem, name_of, problem
from riskmin import L1, L2, Absolute, Hinge, Logistic, Squared

UNITS = np.array([1.0, 100.0, 1e-3, 10.0])
OFFSETS = np.array([5.0, 1000.0, 7.0, 0.0])


def badly_scaled(loss, n=40, **settings):
    """A problem with columns of different units, far from zero."""
    case = Problem(loss, n=n, units=UNITS, **settings)
    case.X = case.X + OFFSETS
    return case


@pytest.mark.parametrize(
    ("loss", "reg", "intercept"),
    [
        (Hinge(), L2(), True),
        (Hinge(), L2([1.0, 2.0, 3.0, 4.0]), False),
        (Absolute(), L1(), True),
        (Logistic(), rm.Elastic(0.2), True),
        (Squared(), rm.Quadratic(np.eye(4) + 0.2), True),
        (Absolute(), rm.Box(L2(), -9.0, 9.0), True),
        (Squared(), rm.QNorm(), False),
        (rm.Softmax(), L2(), True),
        (rm.MulticlassHinge(), L1(), False),
        (rm.MultivariateSquared(), L2(), True),
        (rm.RocArea(), L2(), False),
    ],
    ids=repr,
)
def test_the_optimum_and_its_cut_hold_in_the_units_of_the_data(loss, reg, intercept):
    case = badly_scaled(loss, n=25, reg=reg, intercept=intercept, sparse=not intercept)
    J = case.objective()
    result = rm.minimize(J, tol=1e-5)
    case.check(result, tol=1e-5)
    assert result.value == pytest.approx(J.value(result.w), rel=1e-9)
    assert result.lower == pytest.approx(J.lower(result.cut), rel=1e-9, abs=1e-12)
    rng, n_weights = np.random.default_rng(1), J.risk.dim - J.n_intercepts
    size = np.concatenate([np.repeat(0.1 / UNITS, n_weights // 4), np.ones(J.n_intercepts)])
    for u in size * rng.standard_normal((3, J.risk.dim)):
        assert J.risk(u)[0] >= result.cut.a @ u + result.cut.b - 1e-9


@pytest.mark.parametrize(
    ("loss", "labels", "form"),
    [
        (rm.Ndcg(), {"qid": np.repeat(np.arange(6), 5)}, sp.csr_array),
        (rm.Nu(Absolute(), 0.3), {"fit_intercept": True}, np.array),
    ],
    ids=repr,
)
def test_other_losses_have_the_value_of_the_same_columns_in_other_units(loss, labels, form):
    """With a penalty that changes units, too."""
    X, _, _ = problem(Hinge(), 30)
    y = np.random.default_rng(1).integers(0, 3, 30).astype(float)
    plain = rm.minimize(rm.Objective(rm.linear_risk(X, y, loss, **labels), L2(), 0.1), tol=1e-4)
    scaled = rm.linear_risk(form(X * UNITS + OFFSETS), y, loss, n_shards=3, **labels)
    result = rm.minimize(rm.Objective(scaled, L2(UNITS**2), 0.1), tol=1e-4)
    assert result.status == plain.status == "converged"
    assert result.lower <= plain.value * (1 + 1e-8)
    assert plain.lower <= result.value * (1 + 1e-8)


@pytest.mark.parametrize("loss", ["hinge", "logistic", "roc_area", "squared_hinge"])
def test_the_storage_order_does_not_change_the_fit(loss):
    case = badly_scaled(Hinge(), 100)
    one, two = (
        rm.LinearClassifier(loss, tol=1e-8).fit(Z, case.y) for Z in (case.X, np.asfortranarray(case.X))
    )
    assert one.objective_ == pytest.approx(two.objective_, rel=1e-8)
    np.testing.assert_allclose(one.coef_, two.coef_, rtol=1e-3, atol=1e-6 * abs(one.coef_).max())


@pytest.mark.slow
def test_tables_too_large_for_a_copy_are_centered_as_well():
    """Solvers that read rows or columns as stored need not converge, but their bounds are valid."""
    X, y, _ = problem(Logistic(), 4200, 2000)  # more than 2^23 entries
    X = X * np.resize(UNITS, 2000) + np.resize(OFFSETS, 2000)
    J, centered = (
        rm.Objective(rm.linear_risk(Z, y, Logistic(), fit_intercept=True), L2(), 0.1)
        for Z in (X, (X - X.mean(axis=0)))
    )
    best = rm.minimize(centered, tol=1e-6)
    for solver in (rm.Lbfgs(), rm.CoordinateDescent(), None):
        reads_rows = isinstance(solver, rm.CoordinateDescent)
        result = rm.minimize(J, solver, tol=1e-4, max_iter=5 if reads_rows else 3000)
        assert result.lower <= best.value * (1 + 1e-9)
        assert best.lower <= result.value * (1 + 1e-9)
        assert reads_rows or result.status == "converged"


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array])
@pytest.mark.parametrize(
    ("loss", "reg", "column"),
    [
        (Logistic(), L2(), lambda rng: 1e5 + rng.standard_normal(300)),
        (Squared(), L1(), lambda rng: 2000.0 + rng.integers(0, 20, 300)),  # a year beside indicators
        (Hinge(), L2(), lambda rng: 1e6 * rng.standard_normal(300)),
    ],
    ids=name_of,
)
def test_sparse_tables_with_one_full_column_are_certified(loss, reg, column, form):
    rng = np.random.default_rng(4)
    Z = rng.random((300, 30)) * (rng.random((300, 30)) < 0.1)
    y = np.where(Z[:, 1] + 0.1 * rng.standard_normal(300) > 0.05, 1.0, -1.0)
    Z[:, 0] = column(rng)
    dense, stored = (
        rm.minimize(rm.Objective(rm.linear_risk(M, y, loss, fit_intercept=True), reg, 1e-3), tol=1e-6)
        for M in (Z, form(Z))
    )
    assert dense.status == stored.status == "converged"
    assert stored.value == pytest.approx(dense.value, rel=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("executor", [rm.Threads(n_workers=2), rm.Processes(n_workers=2)])
def test_other_executors_agree(executor):
    case = badly_scaled(Hinge(), 400, lam=1e-3, intercept=True)
    one, two = (rm.minimize(case.objective(executor=e, n_shards=3)) for e in (None, executor))
    assert one.status == two.status == "converged"
    assert one.value == pytest.approx(two.value, rel=2e-3)


@pytest.mark.parametrize("solver", [None, rm.Bundle()], ids=repr)
def test_paths_are_certified(solver):
    risk, lams = badly_scaled(Hinge(), 100, intercept=True).objective().risk, [1e-1, 1e-3, 1e-5]
    for lam, result in zip(lams, rm.path(risk, L2(), lams, solver=solver, tol=1e-4), strict=True):
        single = rm.minimize(rm.Objective(risk, L2(), lam), tol=1e-6)
        assert result.status == "converged"
        assert result.value == pytest.approx(single.value, rel=3e-4)


@pytest.mark.filterwarnings("ignore:.*learned nothing")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("loss", ["squared", "huber", "absolute", "quantile:level=0.9"])
def test_regressors_in_any_unit_are_certified(loss, scale):
    rng = np.random.default_rng(6)
    X = rng.standard_normal((80, 5)) * scale * [1, 10, 100, 1e3, 1e-3] + 3 * scale
    y = 1e4 + 1e3 * (X[:, 0] / scale + rng.standard_normal(80))
    assert rm.LinearRegressor(loss).fit(X, y).result_.status == "converged"


@pytest.mark.parametrize(
    ("loss", "scale", "solver"),
    [
        (rm.Poisson(), np.logspace(0, 4, 5), None),
        (rm.Huber(), np.logspace(0, 6, 5), rm.Newton()),  # thousands of deltas: no row has curvature
    ],
    ids=["counts in the millions", "far from the quadratic part"],
)
def test_large_labels_are_certified(loss, scale, solver):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((300, 5)) * scale
    y = 1e5 * rng.standard_normal(300)
    if loss == rm.Poisson():
        y = rng.poisson(1e7 * np.exp(0.1 * X[:, 0])).astype(float)
    J = rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=loss == rm.Huber()), L2(), 1e-4)
    result = rm.minimize(J, solver, tol=1e-4)
    assert result.status == "converged"
    assert result.value < J.value(np.zeros(5))


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
    J = rm.Objective(rm.linear_risk(x[:, None], y, Squared(), fit_intercept=True), L1(), lam)
    result = rm.minimize(J, tol=1e-3)
    assert result.status == "converged"
    assert result.lower == J.lower(result.cut)
    assert Fraction(result.lower) <= minimum <= Fraction(result.value) + Fraction(1, 10**9)
    # rounding is allowed for where it is the whole of the gap, too
    assert Fraction(rm.minimize(J, tol=1e-14, max_iter=20).lower) <= minimum
