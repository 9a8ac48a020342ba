"""Mercer kernels: their matrices, feature space, dual ascent, kernel machines, incomplete Cholesky."""

from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import cross_val_score

import riskmin as rm
from helpers import ALL_LOSSES, problem, ticking_clock
from reference import optimum

KERNELS = {
    "rbf": rm.Rbf(0.3),
    "linear": rm.DotProduct(),
    "poly": rm.Polynomial(degree=2, gamma=0.5, coef0=1.0),
}


def objective(loss, kernel=KERNELS["rbf"], n=40, lam=0.01, seed=0, weighted=True, **settings):
    """J of some rows in feature space, with the rows, labels and weights."""
    X, y, weights = problem(loss, n, 3, seed)
    weights = weights if weighted else None
    J = rm.Objective(*rm.kernel_risk(X, y, loss, kernel, sample_weight=weights, **settings), lam=lam)
    return J, X, y, weights


def function(K, beta):
    """The function with these coefficients, as a pair."""
    return np.concatenate([K @ beta, beta]) / np.sqrt(2)


def coefficients(w):
    return np.sqrt(2) * w[len(w) // 2 :]


def features(K):
    """Rows whose inner products are K, for solvers without kernels."""
    values, vectors = np.linalg.eigh(K)
    return vectors * np.sqrt(np.maximum(values, 0.0))


# ---------------------------------------------------------------- kernels and their matrices
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("as_rows", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_kernels_equal_scikit_learns(name, as_rows):
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((7, 4)), rng.standard_normal((5, 4))
    A[abs(A) < 0.7] = 0.0
    parameters = {"rbf": {"gamma": 0.3}, "linear": {}, "poly": {"degree": 2, "gamma": 0.5, "coef0": 1.0}}
    k, expected = KERNELS[name], pairwise_kernels(A, B, name, **parameters[name])
    np.testing.assert_allclose(k(as_rows(A), as_rows(B)), expected, atol=1e-12)
    np.testing.assert_allclose(k.diagonal(as_rows(A)), np.diag(k(A, A)), atol=1e-12)


class Ramp:
    """A user-defined loss without a conjugate."""

    separable = True
    smooth = False

    def value_grad(self, z, y, c):
        return rm.Hinge().value_grad(z, y, c)


def test_each_risk_gets_a_supported_solver():
    J, X, y, _ = objective(rm.Hinge())
    own = rm.Objective(*rm.kernel_risk(X, y, Ramp()), lam=0.1)
    assert rm.minimize(own).solver == "Bundle(keep=20): Ramp is a convex function with subgradients"
    linear = rm.Objective(rm.linear_risk(X, y, "hinge"), rm.L2(), lam=0.1)
    for obj, solver, words in (
        (own, rm.KernelDual(), "Ramp gives no conjugate"),
        (linear, rm.KernelDual(), "minimizes a kernel_risk"),
        (J, rm.Lbfgs(), None),
    ):
        with pytest.raises(TypeError, match=words):
            rm.minimize(obj, solver)


# ---------------------------------------------------------------- feature space
def test_pairs_have_the_inner_products_of_feature_space():
    rng = np.random.default_rng(0)
    J, X, y, _ = objective(rm.Squared(), n=12, weighted=False)
    K, risk, reg = KERNELS["rbf"](X, X), J.risk, J.reg
    beta, other = rng.standard_normal((2, 12))
    w, v = function(K, beta), function(K, other)
    value, a = risk(w)
    gamma = (K @ beta - y) / 12
    assert value == pytest.approx(0.5 * np.mean((K @ beta - y) ** 2), rel=1e-12)
    assert a @ v == pytest.approx(gamma @ K @ other, rel=1e-10)
    assert reg.value(w) == pytest.approx(0.5 * beta @ K @ beta, rel=1e-12)
    # Fenchel-Young: equality where u is the gradient that belongs to w
    u = reg.conjugate_grad(w)
    assert reg.value(w) + reg.conjugate(u) == pytest.approx(u @ w, rel=1e-12)
    value_slope = reg.line(w, v)
    difference = (reg.value(w + 0.701 * v) - reg.value(w + 0.699 * v)) / 0.002
    assert value_slope(0.7)[0] == pytest.approx(reg.value(w + 0.7 * v), rel=1e-12)
    assert value_slope(0.7)[1] == pytest.approx(difference, rel=1e-8)
    np.testing.assert_array_equal(coefficients(reg.prox(w, 1.0)), 0.5 * coefficients(w))


def trivial(loss):
    """Whether an intercept alone would make the loss zero."""
    return isinstance(loss, rm.Novelty) or getattr(loss, "margin", 1.0) == 0


FAST = [(rm.Hinge(), True), (rm.Logistic(), False), (rm.EpsilonInsensitive(), True), (rm.Squared(), False)]
FEW = rm.Hinge(), rm.Logistic(), rm.Absolute(), rm.Poisson()
SLOW = [
    *((loss, not trivial(loss), "rbf", 1) for loss in ALL_LOSSES if loss.conjugate(np.ones(1)) is not None),
    *((loss, True, kernel, 2) for loss in FEW for kernel in ("linear", "poly")),
]


@pytest.mark.parametrize(
    ("loss", "intercept", "kernel", "seed"),
    [*((*case, "rbf", 0) for case in FAST), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
    ids=repr,
)
def test_the_optimum_equals_clarabels(loss, intercept, kernel, seed):
    J, X, y, weights = objective(loss, KERNELS[kernel], seed=seed, fit_intercept=intercept)
    K = KERNELS[kernel](X, X)
    best = optimum(loss, rm.L2(), features(K), y, weights, 0.01, intercept)
    for solver in (rm.KernelDual(), rm.KernelDual(block=7), rm.Bundle()):
        result = rm.minimize(J, solver, tol=1e-6, max_iter=5000)
        assert result.status == "converged", (solver, result.gap / result.value)
        assert result.lower <= result.value
        if not np.isnan(best):
            assert result.lower <= best + 1e-7 * (1 + abs(best)), solver
            assert result.value >= best - 1e-7 * (1 + abs(best)), solver
        z = K @ coefficients(result.w)
        np.testing.assert_allclose(z, np.sqrt(2) * result.w[: len(y)], atol=1e-9 * (1 + abs(z).max()))


# ---------------------------------------------------------------- dual coordinate ascent
@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 12),
    st.sampled_from([rm.Hinge(), rm.SquaredHinge(), rm.Absolute(), rm.EpsilonInsensitive(0.3), rm.Squared()]),
    st.booleans(),
    st.integers(1, 5),
)
def test_blocks_of_any_size_reach_the_optimum_of_singular_problems(seed, n, loss, intercept, block):
    """Rows that repeat, rows without weight, and kernels of a rank lower than the number of rows."""
    X, y, weights = problem(loss, n, 2, seed)
    X[n // 2 :] = X[: n - n // 2].round(1)
    risk, reg = rm.kernel_risk(X, y, loss, "linear", sample_weight=weights, fit_intercept=intercept)
    J = rm.Objective(risk, reg, 0.1)
    result = rm.minimize(J, rm.KernelDual(block=block), tol=1e-7)
    best = rm.minimize(
        rm.Objective(rm.linear_risk(X, y, loss, sample_weight=weights, fit_intercept=intercept), rm.L2(), 0.1)
    )
    assert result.status == "converged"
    assert result.lower <= best.value * (1 + 1e-9) + 1e-12
    assert best.lower <= result.value * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("loss", "intercept"),
    [
        (rm.Hinge(), True),
        (rm.Logistic(), False),
        *((loss, True) for loss in (rm.Poisson(), rm.PowerHinge(1.5))),
    ],
    ids=repr,
)
def test_iterates_of_the_dual_are_valid(loss, intercept):
    J, X, _, _ = objective(loss, fit_intercept=intercept)
    K, risk, reg = KERNELS["rbf"](X, X), J.risk, J.reg
    sizes = [[0.0], [0.1], [1.0], [3.0]]
    points = [function(K, b) for b in np.random.default_rng(0).standard_normal((4, 40)) * sizes]
    points.append(rm.minimize(J, rm.Bundle(), tol=1e-3).w)
    heights, lowers = [risk(v)[0] for v in points], []
    for it in islice(rm.KernelDual(block=8).iterates(J, np.zeros(80)), 20):
        assert it.value == pytest.approx(J.value(it.w), rel=1e-9)
        for v, height in zip(points, heights, strict=True):
            assert it.cut.a @ v + it.cut.b <= height * (1 + 1e-9)
        if intercept:
            assert abs(it.cut.a[:40].sum()) < 1e-14
        lowers.append(it.cut.b - 0.01 * reg.conjugate(it.cut.a / -0.01))
    assert all(b >= a - 1e-12 for a, b in pairwise(lowers))  # exact steps never decrease the bound
    assert lowers[-1] > lowers[0]


def test_a_start_is_used():
    J = objective(rm.Hinge(), rm.Rbf(1.0), n=60, lam=1e-2, weighted=False, fit_intercept=True)[0]
    solved = rm.minimize(J, rm.KernelDual(), tol=1e-8)
    restarted = rm.minimize(J, rm.KernelDual(), solved.w, tol=1e-7)
    assert restarted.n_iter <= 2
    outside = function(np.zeros((60, 60)), np.full(60, 1e6))  # not a dual feasible point
    assert rm.minimize(J, rm.KernelDual(), outside, tol=1e-7).status == "converged"


def test_rows_are_computed_once_if_they_fit_and_any_cache_gives_the_same_fit():
    X, y, _ = problem(rm.Hinge(), 100, 3)
    results = []
    for form, cache_bytes in ((np.asarray, 2**28), (np.asarray, 1), (sp.csr_array, 1)):
        settings = {"fit_intercept": True, "cache_bytes": cache_bytes}
        risk, reg = rm.kernel_risk(form(X), y, "hinge", rm.Rbf(1.0), **settings)
        results.append(rm.minimize(rm.Objective(risk, reg, 1e-2), rm.KernelDual(block=8), tol=1e-4))
        assert results[-1].status == "converged"
        assert results[-1].n_iter > 10  # each of them uses a block of rows
    assert results[0].trace[-2]["rows"] < 2 * 100
    assert [r.value for r in results] == pytest.approx([results[0].value] * 3, rel=2e-4)


@pytest.mark.parametrize("small", [1e-12, 1e-9, 1e-7, 1e-4])
def test_the_conjugate_of_tiny_slopes_is_exact(small):
    """Otherwise bounds of tiny risks exceed them: computing 1 - a loses digits of a."""
    series = small * np.log(small) - small + small**2 / 2 + small**3 / 6 + small**4 / 12
    for y in (1.0, -1.0):
        conjugate = rm.Logistic().conjugate(np.array([y])).value(np.array([-y * small]))
        np.testing.assert_allclose(conjugate, series, rtol=4e-16)
    ends = rm.Logistic().conjugate(np.ones(4)).value(np.array([0.0, -1.0, -1.1, 0.1]))
    np.testing.assert_array_equal(ends, [0.0, 0.0, np.inf, np.inf])


@pytest.mark.parametrize("heavy", [1e3, 1e5, 1e7])
def test_bounds_of_tiny_risks_are_below_them(heavy):
    X, y, _ = problem(rm.Logistic(), 50, 3)
    options = {"sample_weight": np.where(y < 0, heavy, 1 / heavy), "fit_intercept": True}
    J = rm.Objective(*rm.kernel_risk(X, y, "logistic", rm.Rbf(0.5), **options), lam=0.1)
    for it in islice(rm.KernelDual().iterates(J, np.zeros(100)), 3):
        assert it.value < 1e-4
        assert J.lower(it.cut) <= it.value * (1 + 1e-13)
    assert rm.minimize(J, rm.KernelDual(), tol=1e-12).status == "converged"


@pytest.mark.parametrize("p", [1.1, 1.5, 3.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_powers_with_a_flat_conjugate_do_not_stall(p, intercept):
    """Their conjugates have no curvature at zero: a quadratic model there leads to far too large steps."""
    for seed, lam in ((3, 2.4), (25, 0.11)):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((rng.integers(3, 40), rng.integers(1, 5)))
        y = np.where(X[:, 0] + 0.5 * rng.standard_normal(len(X)) > 0, 1.0, -1.0)
        y[:2] = 1.0, -1.0
        obj = rm.Objective(*rm.kernel_risk(X, y, rm.PowerHinge(p), "linear", fit_intercept=intercept), lam)
        assert rm.minimize(obj, rm.KernelDual(), tol=1e-6, max_iter=400).status == "converged"


# ---------------------------------------------------------------- estimators
@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return ((X - X.mean(0)) / X.std(0))[:300], y[:300]


def test_one_kernel_in_several_forms(cancer):
    X, y = cancer
    n = 200
    assert rm.KernelClassifier().fit(X[:n], y[:n]).kernel_.gamma == pytest.approx(1 / (30 * X[:n].var()))
    model = rm.KernelClassifier(gamma=0.03, alpha=1e-3, tol=1e-6).fit(X[:n], y[:n])
    K, z = rm.Rbf(0.03)(X, X), model.decision_function(X)
    own = clone(model).set_params(kernel=lambda A, B: pairwise_kernels(A, B, "rbf", gamma=0.03))
    precomputed = clone(model).set_params(kernel="precomputed")
    for other, train, rows in (
        (own, X[:n], X),
        (clone(model), sp.csr_array(X[:n]), sp.csr_array(X)),
        (precomputed, K[:n, :n], K[:, :n]),
        (clone(model).set_params(cache_size=0.01), X[:n], X),
    ):
        assert other.fit(train, y[:n]).objective_ == pytest.approx(model.objective_, rel=2e-6)
        np.testing.assert_allclose(other.decision_function(rows), z, atol=0.02)
    assert cross_val_score(precomputed, K, y, cv=2).mean() > 0.9  # folds select rows and columns
    with pytest.raises(ValueError, match="had 200 rows"):
        model.set_params(warm_start=True).fit(X, y)


# ---------------------------------------------------------------- incomplete Cholesky
@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.sampled_from([1e-1, 1e-3, 0.0]))
@settings(max_examples=15, deadline=None)
def test_the_factor_has_the_reported_residual(seed, n, tol):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    X[n // 2] = X[0]  # duplicate rows
    K = rm.Rbf(rng.choice([0.1, 10.0]))(X, X)
    factor = rm.IncompleteCholesky("precomputed", rank=n, tol=tol)
    L = factor.fit_transform(K)
    pivots, remainder = factor.pivots_, K - L @ L.T
    assert np.linalg.eigvalsh(remainder)[0] > -1e-10  # the factor never exceeds K
    assert np.trace(remainder) / n == pytest.approx(factor.residual_, abs=1e-10)
    assert factor.residual_ <= max(tol, 1e-12 * n)
    assert len(set(pivots)) == len(pivots) == L.shape[1]
    np.testing.assert_allclose(L[pivots] @ L.T, K[pivots], atol=1e-9)  # exact in the rows of the pivots
    shorter = max(1, len(pivots) - 1)
    assert rm.IncompleteCholesky("precomputed", rank=shorter, tol=0.0).fit_transform(K).shape[1] <= shorter


def test_blocks_of_pivots_are_nearly_as_good_as_greedy_pivots():
    X = np.random.default_rng(0).standard_normal((300, 5))
    K = rm.Rbf(0.1)(X, X)
    for rank in (20, 100):
        residual, L = np.ones(300), np.zeros((300, rank))
        for j in range(rank):  # one pivot at a time
            i = np.argmax(residual)
            L[:, j] = (K[i] - L[:, :j] @ L[i, :j]) / np.sqrt(residual[i])
            residual = np.maximum(residual - L[:, j] ** 2, 0.0)
        blocked = rm.IncompleteCholesky("precomputed", rank=rank, tol=0.0).fit(K).residual_
        assert blocked <= 1.25 * residual.sum() / 300


@pytest.mark.parametrize("kernel", ["rbf", "linear", "precomputed", "poly"])
def test_features_reproduce_the_kernel(cancer, kernel):
    X, n = cancer[0], 120
    transformer = rm.IncompleteCholesky(kernel, coef0=1.0, gamma=0.05, tol=1e-10)
    named = "rbf" if kernel == "precomputed" else kernel
    full = pairwise_kernels(X, X, named, filter_params=True, gamma=0.05, coef0=1.0)
    rows = (full[:n, :n], full[n:, :n]) if kernel == "precomputed" else (X[:n], X[n:])
    L, M = transformer.fit_transform(rows[0]), transformer.transform(rows[1])
    size, pivots = np.abs(full).max(), transformer.pivots_
    np.testing.assert_allclose(L @ L.T, full[:n, :n], atol=1e-6 * size)
    np.testing.assert_allclose(M @ L[pivots].T, full[n:, pivots], atol=1e-6 * size)
    np.testing.assert_allclose(transformer.transform(rows[0]), L, atol=1e-4 * np.sqrt(size))
    assert transformer.residual_ <= 1e-10
    assert L.shape[1] == len(pivots) == transformer.triangle_.shape[0]


def test_features_in_single_precision(cancer):
    X, _ = cancer
    single = rm.IncompleteCholesky(gamma=0.05, rank=50, dtype="float32")
    L = single.fit_transform(X)
    assert (L.dtype, L.shape) == (np.float32, (300, 50))
    assert single.transform(sp.csr_array(X)).dtype == np.float32
    double = rm.IncompleteCholesky(gamma=0.05, rank=50).fit(X)
    assert single.residual_ == pytest.approx(double.residual_, rel=1e-2)
    np.testing.assert_allclose(single.transform(X), L, atol=1e-3)


def test_zero_rows_have_no_features():
    zeros = rm.IncompleteCholesky("linear").fit(np.zeros((4, 2)))
    assert zeros.transform(np.ones((3, 2))).shape == (3, 0)


def test_an_incomplete_cholesky_factor_ends_at_its_time_limit():
    X = np.random.default_rng(0).standard_normal((300, 4))
    with ticking_clock() as clock:
        L = rm.IncompleteCholesky(gamma=1.0, tol=1e-10, max_seconds=2 * clock.TICK).fit(X)
    whole = rm.IncompleteCholesky(gamma=1.0, tol=1e-10).fit(X)
    assert 0 < len(L.pivots_) < len(whole.pivots_)
    assert L.residual_ > 1e-10 >= whole.residual_
    assert L.pivots_.tolist() == whole.pivots_[: len(L.pivots_)].tolist()
