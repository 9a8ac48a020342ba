"""Coordinate descent on working sets: optima, optimality conditions, storage formats, and its work."""

from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm


def violation(obj, w):
    """The largest distance of an entry of -grad R from the subgradients of lam Omega, by definition."""
    _, g, _ = obj(w)
    t = obj.reg.terms(w)
    ones = np.ones(len(w))
    s = -(g + obj.lam * t.square * w) / obj.lam
    low = np.where(w > 0, t.absolute, -t.absolute * ones)
    high = np.where(w < 0, -t.absolute, t.absolute * ones)
    low = np.where(w <= t.lower, -np.inf, low)
    high = np.where(w >= t.upper, np.inf, high)
    return np.maximum(np.maximum(low - s, s - high), 0.0).max()


# ---------------------------------------------------------------- optima


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 30),
    p=st.integers(1, 40),
    lam=st.floats(1e-4, 0.5),
    which=st.sampled_from([rm.L1(), rm.Elastic(), rm.Box(rm.L1(), -0.2, 0.4)]),
    loss=st.sampled_from([rm.Squared(), rm.Logistic(), rm.SquaredHinge()]),
    sparse=st.booleans(),
)
def test_the_solution_meets_the_optimality_conditions(seed, n, p, lam, which, loss, sparse):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.5)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    obj = rm.Objective(rm.linear_risk(sp.csr_array(X) if sparse else X, y, loss), which, lam)
    result = rm.minimize(obj, rm.CoordinateDescent(start=2), tol=1e-10, max_iter=500)
    assert result.gap <= 1e-8 * result.value
    # a step in one coordinate would gain slope^2 / (2 curvature), which is at most the gap
    largest = {rm.Squared: 1.0, rm.Logistic: 0.25, rm.SquaredHinge: 2.0}[type(loss)]
    curvature = largest * float((X * X).mean(0).max()) + lam
    assert violation(obj, result.w) <= max(1e-3, 2 * (2 * curvature * result.gap) ** 0.5 / lam)


# ---------------------------------------------------------------- the data
def wide(n=60, p=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.2)
    w = np.zeros(p)
    w[:5] = 3.0
    return X, np.where(X @ w + 0.1 * rng.standard_normal(n) > 0, 1.0, -1.0)


@pytest.mark.parametrize("loss", [rm.Squared(), rm.Logistic()], ids=repr)
def test_few_sparse_columns_take_few_steps(loss):
    """Each model is minimized until its slopes prove much: else it takes one or two more."""
    rng, n = np.random.default_rng(3), 10_000
    levels = np.array([0, 3, 11]) + np.column_stack([rng.integers(0, k, n) for k in (3, 8, 20)])
    X = sp.csr_array((np.ones(3 * n), levels.ravel(), np.arange(n + 1) * 3), shape=(n, 31))
    z = X @ rng.standard_normal(31)
    targets, signs = z + rng.standard_normal(n), np.where(z + rng.logistic(size=n) > 0, 1.0, -1.0)
    y = targets if loss == rm.Squared() else signs
    dense, sparse = (
        rm.Objective(rm.linear_risk(A, y, loss, fit_intercept=True), rm.L1(), 3e-4) for A in (X.toarray(), X)
    )
    result = rm.minimize(sparse, rm.CoordinateDescent(), tol=1e-6)
    assert result.status == "converged"
    best = rm.minimize(dense, rm.CoordinateDescent(), tol=1e-10)
    assert result.value == pytest.approx(best.value, rel=2e-6)
    assert result.n_iter <= (2 if loss == rm.Squared() else 4)


@pytest.mark.parametrize(("form", "intercept"), [(np.asarray, False), (sp.csr_array, True)])
def test_many_rows_have_an_exact_solution(form, intercept):
    """A sample of them may suffice for the first models; some have no weight."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 6)) * (rng.random((20_000, 6)) < 0.7)
    y = np.where(X[:, 0] - X[:, 1] + rng.standard_normal(20_000) > 0, 1.0, -1.0)
    weights = rng.integers(0, 3, 20_000).astype(float)
    risk = rm.linear_risk(form(X), y, rm.Logistic(), sample_weight=weights, fit_intercept=intercept)
    obj = rm.Objective(risk, rm.L1(), 1e-3)
    assert rm.minimize(obj, rm.CoordinateDescent(), tol=1e-10, max_iter=15).status == "converged"
    # A gap is quadratic in the violations of the conditions: these need a step more.
    result = rm.minimize(obj, rm.CoordinateDescent(), tol=0.0, atol=0.0, max_iter=15)
    assert result.gap <= 1e-10 * result.value
    # Of points with the same J up to rounding, any is the result: their violations are about 3e-6 lam.
    assert violation(obj, result.w) <= 5e-6


@pytest.mark.parametrize("intercept", [False, True])
def test_scaled_slopes_prove_more_than_scaled_cuts(intercept):
    """For L1 a cut is scaled into the box of the conjugate: scaling its slopes loses less."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 8))
    y = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(50)
    obj = rm.Objective(rm.linear_risk(X, y, rm.Squared(), fit_intercept=intercept), rm.L1(), 0.05)
    best = rm.minimize(obj, tol=1e-10)
    for size in (0.01, 0.1):
        w = best.w + size * rng.standard_normal(8)
        cut = next(rm.CoordinateDescent().iterates(obj, w)).cut
        assert obj.lower(obj.cut(w)) < obj.lower(cut) <= best.value
        for scale in (0.1, 1.0, 10.0):
            v = scale * rng.standard_normal(8)
            assert obj.risk(v)[0] >= cut.a @ v + cut.b


# ---------------------------------------------------------------- dependent columns
@pytest.mark.parametrize("reg", [rm.L1(), rm.Box(rm.L1(), -0.3, 0.2), rm.Box(rm.L1())], ids=repr)
def test_dependent_columns_in_any_units_meet_the_optimality_conditions(reg):
    """The Gram matrix is singular, and the columns have units 1e-3 to 1e3."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((40, 15))
    units = 10.0 ** rng.uniform(-3, 3, 22)
    X = np.hstack([X, X[:, :5] + X[:, 5:10], X[:, :2]]) * units
    y = X @ (rng.standard_normal(22) / units) + rng.standard_normal(40)
    inner = rm.L1(units)
    scaled = inner if isinstance(reg, rm.L1) else rm.Box(inner, reg.lower / units, reg.upper / units)
    obj = rm.Objective(rm.linear_risk(X, y, rm.Squared()), scaled, 0.1)
    result = rm.minimize(obj, rm.CoordinateDescent(), tol=1e-13, max_iter=100)
    assert 0 < np.count_nonzero(result.w) < 22
    assert np.all(scaled.prox(result.w, 0.0) == result.w)
    assert violation(obj, result.w) <= 1e-5 * units.max()
    assert result.gap <= 1e-12 * result.value


@pytest.mark.parametrize(
    ("start", "reg", "store"),
    [(0.0, rm.L1(), np.asarray), (1.0, rm.L1(), sp.csr_array), (1.0, rm.Elastic(0.1), np.asarray)],
)
def test_more_columns_than_rows_with_copies_and_zeros(start, reg, store):
    """All columns depend on any 12 of them; from w = 1, more are active than the matrix has rank."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((12, 60)) + 3 * rng.standard_normal((12, 1))
    X[:, 7], X[:, 8] = 0.0, X[:, 9]
    obj = rm.Objective(rm.linear_risk(store(X), rng.standard_normal(12), rm.Squared()), reg, 1e-3)
    result = rm.minimize(obj, rm.CoordinateDescent(), np.full(60, start), tol=1e-12)
    assert result.status == "converged"
    assert result.w[7] == 0
    assert 0 < np.count_nonzero(result.w) <= (12 if isinstance(reg, rm.L1) else 60)
    assert violation(obj, result.w) <= 1e-3


# ---------------------------------------------------------------- progress
@pytest.mark.parametrize(
    ("shape", "loss", "lam", "start"),
    [((60, 2000), rm.Logistic(), 0.05, 8), ((30, 3000), rm.Squared(), 1e-3, 64)],
)
def test_working_sets_are_small_and_zeros_are_exact(shape, loss, lam, start):
    """The matrix of a working set is not much larger than X, in which each column has few entries."""
    X, y = wide(*shape)
    result = rm.minimize(
        rm.Objective(rm.linear_risk(X, y, loss), rm.L1(), lam), rm.CoordinateDescent(start), tol=1e-6
    )
    assert result.status == "converged"
    assert max(row["working_set"] for row in result.trace) <= 200
    assert 0 < np.count_nonzero(result.w) <= shape[0]


def test_j_never_increases_and_w0_is_the_start():
    X, y = wide()
    obj = rm.Objective(rm.linear_risk(X, y, rm.SquaredHinge(), fit_intercept=True), rm.L1(), 0.02)
    best = rm.minimize(obj, rm.CoordinateDescent(), tol=1e-10)
    values = [it.value for it in islice(rm.CoordinateDescent().iterates(obj, np.ones(400)), 20)]
    assert all(b <= a * (1 + 1e-13) for a, b in pairwise(values))
    warm = rm.minimize(rm.Objective(obj.risk, rm.L1(), 0.019), rm.CoordinateDescent(), best.w, tol=1e-6)
    cold = rm.minimize(rm.Objective(obj.risk, rm.L1(), 0.019), rm.CoordinateDescent(), tol=1e-6)
    assert warm.n_iter < cold.n_iter


def test_many_sparse_nonzeros_are_counted_by_the_columns_visited():
    """On short columns a cycle costs less than a Gram matrix, and no other solver has to continue."""
    rng = np.random.default_rng(0)
    X = sp.csr_array(sp.random(800, 4000, 0.005, random_state=0))
    y = np.where(X @ rng.standard_normal(4000) + 0.1 * rng.standard_normal(800) > 0, 1.0, -1.0)
    risk = rm.linear_risk(X, y, rm.Logistic())
    result = rm.minimize(rm.Objective(risk, rm.L1(), 0.003 * rm.lam_max(risk, rm.L1())), tol=1e-6)
    assert result.status == "converged"
    assert np.count_nonzero(result.w) > 300
    assert "then" not in result.solver  # no fallback
    passes = [row["passes"] for row in result.trace]
    assert passes == sorted(passes)
    assert passes[-1] < sum(row["epochs"] for row in result.trace)  # a cycle visits a part of the columns
