"""Coordinate descent on working sets: optima, optimality conditions, and its columns and Gram matrices."""

from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import problem
from riskmin import (
    L1,
    L2,
    Box,
    CoordinateDescent,
    Elastic,
    EpsilonInsensitive,
    Exponential,
    Hinge,
    Huber,
    Logistic,
    Objective,
    Poisson,
    PowerHinge,
    QNorm,
    SmoothedHinge,
    Squared,
    SquaredHinge,
    check_solver,
    linear_risk,
    minimize,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.core import Shard
from riskmin.problem.scored_point import PointEvaluator
from riskmin.solvers.base import local_rows_of
from riskmin.solvers.coordinate import columns, subproblem
from riskmin.solvers.coordinate.active_set import active_set_search, one_sided_slopes, solve_free_coordinates
from riskmin.solvers.coordinate.quadratic_model import ColumnGram

LOSSES = [
    Squared(),
    Logistic(),
    SquaredHinge(),
    SmoothedHinge(),
    Huber(),
    Huber(delta=0.05),
    Poisson(),
    Exponential(),
    EpsilonInsensitive(power=2.0),
    PowerHinge(p=2.0),
    PowerHinge(p=3.0, margin=2.0),
]
REGS = [
    L1(),
    L1(np.linspace(0.5, 2.0, 6)),
    Elastic(),
    Box(L1()),
    Box(Elastic(), -0.5, 0.3),
    L2(),
    Box(L2(), np.linspace(-0.3, 0.0, 6), 0.1),
]


def optimum(loss, X, y, weights, reg, lam, intercept):
    """The minimum of J by cvxpy and Clarabel."""
    import cvxpy as cp

    c = np.full(len(X), 1 / len(X)) if weights is None else weights / weights.sum()
    w, b = cp.Variable(X.shape[1]), cp.Variable() if intercept else 0.0
    z = X @ w + b
    m, r = cp.multiply(y, z), z - y
    row_losses = {
        Squared: lambda: cp.square(r) / 2,
        Logistic: lambda: cp.logistic(-m),
        SquaredHinge: lambda: cp.square(cp.pos(loss.margin - m)) / 2,
        PowerHinge: lambda: cp.power(cp.pos(loss.margin - m), loss.p) / loss.p,
        SmoothedHinge: lambda: cp.huber(cp.pos(1 - m) / loss.mu, 1) * loss.mu / 2,
        Huber: lambda: cp.huber(r, loss.delta) / 2,
        Poisson: lambda: cp.exp(z) - m + y * np.log(np.where(y > 0, y, 1.0)) - y,
        Exponential: lambda: cp.exp(-m),
        EpsilonInsensitive: lambda: cp.square(cp.pos(cp.abs(r) - loss.epsilon)) / 2,
    }[type(loss)]()
    t = reg.terms(np.zeros(X.shape[1]))
    ones = np.ones(X.shape[1])
    omega = cp.sum(cp.multiply(t.absolute * ones, cp.abs(w)))
    omega += cp.sum(cp.multiply(t.square * ones / 2, cp.square(w)))
    lower, upper = t.lower * ones, t.upper * ones
    bounds = [w[j] >= lower[j] for j in np.flatnonzero(lower > -np.inf)]
    bounds += [w[j] <= upper[j] for j in np.flatnonzero(upper < np.inf)]
    program = cp.Problem(cp.Minimize(lam * omega + c @ row_losses), bounds)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert program.status == "optimal"
    return float(program.value)


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


def compare(loss, reg, lam, intercept, weighted, seed=0):
    X, y, weights = problem(loss, n=40, p=6, seed=seed)
    weights = weights if weighted else None
    obj = Objective(linear_risk(X, y, loss, sample_weight=weights, fit_intercept=intercept), reg, lam)
    result = minimize(obj, CoordinateDescent(), tol=1e-9, max_iter=300)
    expected = optimum(loss, X, y, weights, reg, lam, intercept)
    assert result.status == "converged"
    assert result.value == pytest.approx(expected, rel=1e-6)
    assert result.lower <= expected * (1 + 1e-8)


# ---------------------------------------------------------------- optima
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_reaches_the_optimum(loss):
    k = LOSSES.index(loss)
    for i in (k, k + 3):
        compare(loss, REGS[i % len(REGS)], 0.03, intercept=bool(i % 2), weighted=bool(i % 3))


@pytest.mark.slow
@pytest.mark.parametrize("reg", REGS, ids=repr)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_reaches_the_optimum_of_every_pair(loss, reg):
    for intercept in (False, True):
        compare(loss, reg, 0.05, intercept, weighted=True, seed=1)
    compare(loss, reg, 0.005, True, weighted=False, seed=2)


def test_the_contract_of_solvers():
    check_solver(CoordinateDescent(), smooth=True)
    check_solver(CoordinateDescent(start=1), smooth=True)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(2, 30),
    p=st.integers(1, 40),
    lam=st.floats(1e-4, 0.5),
    which=st.sampled_from([L1(), Elastic(), Box(L1(), -0.2, 0.4)]),
    loss=st.sampled_from([Squared(), Logistic(), SquaredHinge()]),
    sparse=st.booleans(),
)
def test_the_solution_meets_the_optimality_conditions(seed, n, p, lam, which, loss, sparse):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.5)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    obj = Objective(linear_risk(sp.csr_array(X) if sparse else X, y, loss), which, lam)
    result = minimize(obj, CoordinateDescent(start=2), tol=1e-10, max_iter=500)
    assert result.gap <= 1e-8 * result.value
    # a step in one coordinate would gain slope^2 / (2 curvature), which is at most the gap
    curvature = {Squared: 1.0, Logistic: 0.25, SquaredHinge: 2.0}[type(loss)] * float(
        (X * X).mean(0).max()
    ) + lam
    assert violation(obj, result.w) <= max(1e-3, 2 * (2 * curvature * result.gap) ** 0.5 / lam)


def test_agrees_with_scikit_learn():
    from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression

    X, y, _ = problem(Squared(), n=60, p=8)
    lasso = Lasso(alpha=0.1, tol=1e-12, max_iter=100_000).fit(X, y)
    result = minimize(
        Objective(linear_risk(X, y, Squared(), fit_intercept=True), L1(), 0.1), CoordinateDescent(), tol=1e-12
    )
    np.testing.assert_allclose(result.w, lasso.coef_, atol=1e-6)
    alpha, l1_ratio = 0.1, 0.7
    net = ElasticNet(alpha=alpha, l1_ratio=l1_ratio, tol=1e-12, max_iter=100_000).fit(X, y)
    obj = Objective(
        linear_risk(X, y, Squared(), fit_intercept=True),
        Elastic(l1_ratio / (1 - l1_ratio)),
        alpha * (1 - l1_ratio),
    )
    np.testing.assert_allclose(minimize(obj, CoordinateDescent(), tol=1e-12).w, net.coef_, atol=1e-6)

    X, y, _ = problem(Logistic(), n=60, p=8)
    lam = 0.02
    model = LogisticRegression(
        C=1 / (60 * lam), l1_ratio=1.0, solver="saga", fit_intercept=False, tol=1e-10, max_iter=100_000
    ).fit(X, y)
    result = minimize(Objective(linear_risk(X, y, Logistic()), L1(), lam), CoordinateDescent(), tol=1e-12)
    np.testing.assert_allclose(result.w, model.coef_[0], atol=1e-5)


# ---------------------------------------------------------------- the data
def wide(n=60, p=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.2)
    w = np.zeros(p)
    w[:5] = 3.0
    return X, np.where(X @ w + 0.1 * rng.standard_normal(n) > 0, 1.0, -1.0)


FORMS = {
    "C order": lambda X: X,
    "Fortran order": np.asfortranarray,
    "CSR": sp.csr_array,
    "CSC": sp.csc_array,
    "float32": lambda X: X.astype(np.float32),
    "CSR, float32": lambda X: sp.csr_array(X.astype(np.float32)),
}


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
def test_storage_formats_agree(loss, intercept):
    X, y = wide()
    X = X.astype(np.float32).astype(float)
    results = {}
    for name, form in FORMS.items():
        obj = Objective(linear_risk(form(X), y, loss, fit_intercept=intercept), L1(), 0.02)
        results[name] = minimize(obj, CoordinateDescent(), tol=1e-11)
        assert results[name].status == "converged"
    for result in results.values():
        assert result.value == pytest.approx(results["C order"].value, rel=1e-10)
        np.testing.assert_allclose(result.w, results["C order"].w, atol=1e-4)


@pytest.mark.parametrize("form", ["C order", "Fortran order", "CSR"])
@pytest.mark.parametrize("intercept", [False, True])
def test_without_gram_matrices(form, intercept, monkeypatch):
    X, y = wide(p=50)
    results = []
    for max_columns in (columns.GRAM_MAX_COLUMNS, 0):
        monkeypatch.setattr(columns, "GRAM_MAX_COLUMNS", max_columns)
        obj = Objective(linear_risk(FORMS[form](X), y, Logistic(), fit_intercept=intercept), Elastic(), 0.02)
        results.append(minimize(obj, CoordinateDescent(), tol=1e-9))
    assert [r.status for r in results] == ["converged"] * 2
    assert results[0].value == pytest.approx(results[1].value, rel=1e-8)


@pytest.mark.parametrize("max_cycles", [columns.SparseColumns.DIRECT_GRAM_MAX_CYCLES, -1])
@pytest.mark.parametrize("form", ["C order", "Fortran order", "CSR", "CSC"])
def test_gram_matrices_equal_their_definition(form, max_cycles, monkeypatch):
    """From rows or from copied columns, also if some are already cached, and with duplicate entries."""
    monkeypatch.setattr(columns.SparseColumns, "DIRECT_GRAM_MAX_CYCLES", max_cycles)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 12)) * (rng.random((3000, 12)) < 0.4)
    d, columns_, r = rng.random(3000), np.array([7, 1, 3, 10, 0]), rng.standard_normal(3000)
    stored = FORMS[form](X)
    if sp.issparse(stored):
        coo = stored.tocoo()
        duplicated = tuple(np.tile(k, 2) for k in coo.coords)
        with_duplicates = sp.coo_array((np.concatenate([coo.data, 2 * coo.data]), duplicated), X.shape)
        stored, X = _unsummed(with_duplicates, stored.format), 3 * X
    source = columns.columns_of(Shard(as_matrix(stored), None, None, {}))
    if sp.issparse(stored):
        source.store.fetch(columns_, np.array([5]))
    expected = X[:, columns_].T @ (d[:, None] * X[:, columns_])
    np.testing.assert_allclose(source.gram_rows(columns_, 0, ColumnGram(d)), expected, atol=1e-9)
    np.testing.assert_allclose(source.gram_rows(columns_, 2, ColumnGram(d)), expected[2:], atol=1e-9)
    np.testing.assert_allclose(
        source.gram_rows(np.arange(12), 0, ColumnGram(d)), X.T @ (d[:, None] * X), atol=1e-9
    )
    np.testing.assert_allclose(source.pull_back(columns_, r), X[:, columns_].T @ r, atol=1e-9)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=repr)
def test_few_sparse_columns_are_not_copied(loss, intercept, monkeypatch):
    """Their Gram matrix is formed from the rows, and a model on it minimized until its slopes prove much."""
    rng, n = np.random.default_rng(3), 10_000
    first = np.array([0, 3, 11])
    levels = first + np.column_stack([rng.integers(0, k, n) for k in (3, 8, 20)])
    X = sp.csr_array((np.ones(3 * n), levels.ravel(), np.arange(n + 1) * 3), shape=(n, 31))
    z = X @ rng.standard_normal(31)
    y = z + rng.standard_normal(n) if loss == Squared() else np.where(z + rng.logistic(size=n) > 0, 1.0, -1.0)
    risks = [linear_risk(A, y, loss, fit_intercept=intercept) for A in (X.toarray(), X)]
    dense = minimize(Objective(risks[0], L1(), 3e-4), CoordinateDescent(), tol=1e-10)
    monkeypatch.setattr(columns.ColumnStore, "fetch", lambda *_: pytest.fail("columns were copied"))
    result = minimize(Objective(risks[1], L1(), 3e-4), CoordinateDescent(), tol=1e-6)
    assert result.status == "converged"
    assert result.value == pytest.approx(dense.value, rel=2e-6)
    # Minimized to a share of the largest violation only, models prove this one or two steps later.
    assert result.n_iter <= (2 if loss == Squared() else 4)


def _unsummed(coo, form):
    """CSR or CSC with duplicates that are not summed."""
    major = coo.coords[0 if form == "csr" else 1]
    minor = coo.coords[1 if form == "csr" else 0]
    order = np.argsort(major, kind="stable")
    ends = np.searchsorted(major[order], np.arange(coo.shape[0 if form == "csr" else 1] + 1))
    kind = sp.csr_array if form == "csr" else sp.csc_array
    return kind((coo.data[order], minor[order].astype(np.int32), ends.astype(np.int32)), shape=coo.shape)


def test_a_sample_of_rows_suffices_for_a_model():
    """With many rows, the first Gram matrices use a sample; the solution is exact all the same."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 8))
    y = np.where(X[:, 0] - X[:, 1] + rng.standard_normal(20_000) > 0, 1.0, -1.0)
    obj = Objective(linear_risk(X, y, Logistic()), L1(), 1e-3)
    assert minimize(obj, CoordinateDescent(), tol=1e-11, max_iter=15).status == "converged"
    # A gap is quadratic in the violations of the conditions: these need a step more.
    result = minimize(obj, CoordinateDescent(), tol=0.0, atol=0.0, max_iter=15)
    assert result.gap <= 1e-11 * result.value
    assert violation(obj, result.w) <= 1e-6


@pytest.mark.slow
def test_many_rows_start_from_a_sample(monkeypatch):
    """It takes fewer steps over all rows, with zero weights, an intercept or none, dense or sparse X."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((24_000, 6)) * (rng.random((24_000, 6)) < 0.7)
    y = np.where(X[:, 0] - X[:, 1] + rng.standard_normal(24_000) > 0, 1.0, -1.0)
    weights = rng.integers(0, 3, 24_000).astype(float)
    steps = {}
    for min_ratio in (subproblem.CoordinateProblem.SAMPLE_MIN_ROW_RATIO, 10**9):
        monkeypatch.setattr(subproblem.CoordinateProblem, "SAMPLE_MIN_ROW_RATIO", min_ratio)
        for form in (np.asarray, sp.csr_array):
            for intercept in (False, True):
                risk = linear_risk(form(X), y, Logistic(), sample_weight=weights, fit_intercept=intercept)
                result = minimize(Objective(risk, L1(), 1e-3), CoordinateDescent(), tol=1e-9)
                assert result.status == "converged"
                steps[min_ratio, form, intercept] = result
    for (min_ratio, *case), result in steps.items():
        unsampled = steps[10**9, *case]
        assert result.value == pytest.approx(unsampled.value, rel=2e-9)
        assert min_ratio == 10**9 or result.n_iter < unsampled.n_iter


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_slopes_of_a_model_give_a_cut(loss):
    """For any model: its slopes are projected onto the domain of the conjugate."""
    X, y, weights = problem(loss, n=30, p=6)
    weights[:3] = 0.0
    obj = Objective(linear_risk(X, y, loss, sample_weight=weights), L1(), 0.1)
    rows, _, free = local_rows_of(obj.risk, None)
    points, rng = PointEvaluator(obj, rows, loss, free), np.random.default_rng(0)
    for size in (0.1, 1.0, 10.0):
        u = points.feasible_slopes(size * rows.c * rng.standard_normal(30))
        cut = points._cut_from_slopes(u, X.T @ (rows.c * u), np.zeros(30))
        for scale in (0.01, 0.3, 3.0):
            v = scale * rng.standard_normal(6)
            assert obj.risk(v)[0] >= cut.a @ v + cut.b


def test_scaled_slopes_prove_more_than_scaled_cuts():
    """For L1 a cut is scaled into the box of the conjugate: scaling its slopes loses less."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 8))
    y = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(50)
    for intercept in (False, True):
        obj = Objective(linear_risk(X, y, Squared(), fit_intercept=intercept), L1(), 0.05)
        best = minimize(obj, tol=1e-10)
        rows, loss, free = local_rows_of(obj.risk, None)
        points = PointEvaluator(obj, rows, loss, free)
        for size in (0.01, 0.1):
            w = best.w + size * rng.standard_normal(8)
            cut = points.evaluate(points.with_scores(w)).cut
            assert obj.lower(obj.cut(w)) < obj.lower(cut) <= best.value
            for scale in (0.1, 1.0, 10.0):
                v = scale * rng.standard_normal(8)
                assert obj.risk(v)[0] >= cut.a @ v + cut.b


# ---------------------------------------------------------------- progress
@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (-0.3, 0.2), (0.0, np.inf)])
def test_active_sets_find_the_minimum_over_dependent_columns(bounds):
    """The optimality conditions hold although the matrix is singular and columns have units 1e-3 to 1e3."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((40, 15))
    X = np.hstack([X, X[:, :5] + X[:, 5:10], X[:, :2]]) * 10.0 ** rng.uniform(-3, 3, 22)
    G, g = X.T @ X, X.T @ rng.standard_normal(40)
    scale = np.sqrt(G.diagonal())
    ends = np.outer(bounds, 1 / scale)
    terms = np.stack([0.4 * scale, np.zeros(22), *ends])
    w, slope = np.zeros(22), g.copy()
    assert active_set_search(G, slope, w, terms, 1e-9 * scale.min(), 22)
    assert ((w >= ends[0]) & (w <= ends[1])).all()
    assert 0 < np.count_nonzero(w) < 22
    np.testing.assert_allclose(slope, g + G @ w, rtol=0, atol=1e-9 * scale.max())
    right, left = one_sided_slopes(w, g + G @ w, terms)
    assert (np.maximum(right, left) <= 1e-8 * scale).all()


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize("square", [0.0, 0.1])
def test_active_sets_of_more_columns_than_rows(start, square):
    """All columns depend on any 12 of them; from w = 1, more are active than the matrix has rank."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((12, 60)) + 3 * rng.standard_normal((12, 1))
    X[:, 7] = 0.0
    G, g, w = X.T @ X, X.T @ rng.standard_normal(12), np.full(60, start)
    terms = np.stack([np.full(60, 0.01), np.full(60, square), np.full(60, -np.inf), np.full(60, np.inf)])
    slope = g + G @ w
    assert active_set_search(G, slope, w, terms, 1e-9, 12, 1e-11)
    assert w[7] == 0
    assert 0 < np.count_nonzero(w) <= (12 if square == 0 else 60)
    right, left = one_sided_slopes(w, g + G @ w, terms)
    assert (np.maximum(right, left) <= 1e-8).all()


def test_nearly_dependent_columns_take_few_steps():
    """As in spectra: cycles alone take hundreds of steps, since weights move along with their neighbors."""
    rng = np.random.default_rng(3)
    X = np.cumsum(rng.standard_normal((100, 60)), axis=1) + 10 * rng.standard_normal((100, 1))
    y = X[:, 5] - X[:, 40] + 0.1 * rng.standard_normal(100)
    risk = linear_risk(X / X.std(axis=0), y / y.std(), Squared())
    lam = 1e-3 * float(np.abs(risk(np.zeros(60))[1]).max())
    result = minimize(Objective(risk, L1(), lam), CoordinateDescent(), tol=1e-8)
    assert result.status == "converged"
    assert result.n_iter <= 12


def test_working_sets_are_small_and_zeros_are_exact():
    X, y = wide(p=2000)
    result = minimize(
        Objective(linear_risk(X, y, Logistic()), L1(), 0.05), CoordinateDescent(start=8), tol=1e-9
    )
    assert result.status == "converged"
    assert max(row["working_set"] for row in result.trace) < 200
    assert 0 < np.count_nonzero(result.w) < 60


def test_working_sets_of_few_rows_are_small():
    """The matrix of a working set is not much larger than X, in which each column has few entries."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 3000))
    y = X[:, :5].sum(1) + rng.standard_normal(30)
    result = minimize(Objective(linear_risk(X, y, Squared()), L1(), 1e-3), CoordinateDescent(), tol=1e-6)
    assert result.status == "converged"
    assert 64 <= max(row["working_set"] for row in result.trace) <= 200


def test_gram_matrices_of_few_rows_are_not_extended(monkeypatch):
    """With few rows, the matrix of a working set is computed anew, since copies of old columns cost more."""
    sizes, add = [], ColumnGram.add_columns

    def add_and_record(self, columns_, source):
        add(self, columns_, source)
        sizes.append((len(columns_), len(self.columns)))

    monkeypatch.setattr(ColumnGram, "add_columns", add_and_record)
    rng = np.random.default_rng(0)
    for n, extended in ((40, False), (4000, True)):
        X = rng.standard_normal((n, 6)) @ rng.standard_normal((6, 600)) + rng.standard_normal((n, 600))
        y = X[:, :9].sum(1) + rng.standard_normal(n)
        sizes.clear()
        obj = Objective(linear_risk(X, y, Squared()), L1(), 1e-3)
        assert minimize(obj, CoordinateDescent(), tol=1e-6).status == "converged"
        assert len(sizes) > 1
        assert any(kept > asked for asked, kept in sizes) == extended


def test_j_never_increases_and_w0_is_the_start():
    X, y = wide()
    obj = Objective(linear_risk(X, y, SquaredHinge(), fit_intercept=True), L1(), 0.02)
    best = minimize(obj, CoordinateDescent(), tol=1e-10)
    values = [it.value for it in islice(CoordinateDescent().iterates(obj, np.ones(400)), 20)]
    assert all(b <= a * (1 + 1e-13) for a, b in pairwise(values))
    warm = minimize(Objective(obj.risk, L1(), 0.019), CoordinateDescent(), best.w, tol=1e-6)
    cold = minimize(Objective(obj.risk, L1(), 0.019), CoordinateDescent(), tol=1e-6)
    assert warm.n_iter < cold.n_iter


def test_columns_of_zeros_and_copies():
    """Zero columns get w_j = 0 from any start; copies have no unique w."""
    X, y = wide(p=30)
    X = np.hstack([X, X, np.zeros((60, 2))])
    for form in (np.asarray, sp.csr_array):
        obj = Objective(linear_risk(form(X), y, Squared()), L1(), 1e-3)
        result = minimize(obj, CoordinateDescent(), np.ones(62), tol=1e-9)
        assert result.status == "converged"
        assert not result.w[60:].any()


def test_a_saved_state_continues():
    X, y = wide()
    obj = Objective(linear_risk(X, y, Logistic(), fit_intercept=True), L1(), 0.01)
    steps = list(islice(CoordinateDescent().iterates(obj, np.zeros(400)), 4))
    state = {k: v.copy() for k, v in steps[1].state().items()}
    resumed = list(islice(CoordinateDescent().resume(obj, state), 2))
    for one, other in zip(resumed, steps[2:], strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-6)


def test_it_stops_at_the_minimum():
    """At lam_max the minimizer is w = 0, and no step is taken."""
    X, y = wide()
    risk = linear_risk(X, y, Squared())
    lam = abs(risk(np.zeros(400))[1]).max() * 1.001
    steps = list(CoordinateDescent().iterates(Objective(risk, L1(), lam), np.zeros(400)))
    assert len(steps) == 1


# ---------------------------------------------------------------- unsupported problems
def test_unsupported_problems_are_refused():
    X, y = wide(p=5)
    w0 = np.zeros(5)
    for loss in (Hinge(), PowerHinge(p=1.0), PowerHinge(p=1.5), EpsilonInsensitive()):
        with pytest.raises(TypeError, match=r"second derivative is finite.*use Bundle"):
            next(CoordinateDescent().iterates(Objective(linear_risk(X, y, loss), L1(), 0.1), w0))
    with pytest.raises(TypeError, match=r"sum over coordinates.*use ProximalGradient or Bundle"):
        next(CoordinateDescent().iterates(Objective(linear_risk(X, y, Logistic()), QNorm(), 0.1), w0))
    with pytest.raises(TypeError, match="rows or columns of X one by one"):
        next(CoordinateDescent().iterates(Objective(_Bowl(), L1(), 0.1), w0))
    with pytest.raises(ValueError, match="start"):
        CoordinateDescent(start=0)
    assert rm.get_solver("coordinate_descent") == CoordinateDescent()


class _Bowl:
    dim = 5

    def __call__(self, w):
        return 0.5 * float(w @ w), w


def test_systems_that_leave_a_coordinate_unchanged():
    """Its step is zero, and must not be a divisor."""
    w, g = np.array([1.0, 1.0]), np.array([1.0, -0.1])
    terms = np.array([[0.1, 0.1], [0.0, 0.0], [-np.inf, -np.inf], [np.inf, np.inf]])
    solve_free_coordinates(np.eye(2), g, w, terms)
    assert w.tolist() == pytest.approx([0.0, 1.0])
    assert g.tolist() == pytest.approx([0.0, -0.1])


def test_many_sparse_nonzeros_need_neither_gram_matrices_nor_other_solvers():
    """On short columns a cycle costs less than m^2: no Gram matrix is formed, and work is counted as such."""
    rng = np.random.default_rng(0)
    X = sp.csr_array(sp.random(800, 4000, 0.005, random_state=0))
    y = np.where(X @ rng.standard_normal(4000) + 0.1 * rng.standard_normal(800) > 0, 1.0, -1.0)
    risk = linear_risk(X, y, Logistic())
    obj = Objective(risk, L1(), 0.003 * rm.lam_max(risk, L1()))
    result = minimize(obj, tol=1e-6)
    assert result.status == "converged"
    assert np.count_nonzero(result.w) > 300
    assert "then" not in result.solver  # no fallback
    passes = [row["passes"] for row in result.trace]
    assert passes == sorted(passes)
    assert passes[-1] < sum(row["epochs"] for row in result.trace)  # a cycle visits a part of the columns
    source = columns.columns_of(risk.rows)
    model_columns = np.flatnonzero(result.w)
    source.store.fetch(model_columns, model_columns)
    assert source._gram_cost(source.store.kernel_arrays(model_columns)) > 200
