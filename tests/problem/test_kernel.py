"""Mercer kernels: their matrices, feature space, dual ascent, kernel machines, incomplete Cholesky."""

from __future__ import annotations

import pickle
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC, SVR
from sklearn.utils.estimator_checks import parametrize_with_checks

from helpers import ALL_LOSSES, WITHIN_TOL, labels, ticking_clock
from reference import optimum
from riskmin import (
    L2,
    Absolute,
    Bmrm,
    Bundle,
    Checkpoint,
    DotProduct,
    EpsilonInsensitive,
    Exponential,
    FileError,
    Hinge,
    IncompleteCholesky,
    KernelClassifier,
    KernelDual,
    KernelRegressor,
    Lbfgs,
    LinearClassifier,
    LineSearchBmrm,
    Logistic,
    Novelty,
    Objective,
    Poisson,
    Polynomial,
    PowerHinge,
    Rbf,
    Squared,
    get_solver,
    kernel_risk,
    linear_risk,
    minimize,
)
from riskmin._numba.dual import kernel_sweep as steps
from riskmin.problem.kernel.incomplete_cholesky import incomplete_cholesky
from riskmin.problem.kernel.mercer import KernelMatrix, kernel_diagonal
from riskmin.problem.kernel.rkhs import RkhsNorm, as_pair, coefficients, swap_halves

KERNELS = {"rbf": Rbf(0.3), "linear": DotProduct(), "poly": Polynomial(degree=2, gamma=0.5, coef0=1.0)}


def data(loss, n=40, p=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = labels(loss, 2 * np.sin(2 * X @ rng.standard_normal(p)), rng)
    weights = rng.integers(0, 4, n) * rng.random(n)
    weights[:2] = 1.0
    return X, y, weights


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
    k = KERNELS[name]
    np.testing.assert_allclose(
        k(as_rows(A), as_rows(B)), pairwise_kernels(A, B, name, **parameters[name]), atol=1e-12
    )
    np.testing.assert_allclose(k.diagonal(as_rows(A)), np.diag(k(A, A)), atol=1e-12)
    np.testing.assert_allclose(kernel_diagonal(lambda a, b: k(a, b), A), np.diag(k(A, A)), atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [lambda: Rbf(0.0), lambda: Polynomial(degree=0), lambda: Polynomial(coef0=-1.0), lambda: Rbf(np.inf)],
)
def test_invalid_kernels_are_refused(make):
    with pytest.raises(ValueError, match=r"needs gamma|not a Mercer kernel"):
        make()


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=64, unique=True), min_size=1, max_size=6),
    st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_a_small_cache_does_not_change_the_rows(requests, sparse):
    """For any sequence of requests, the rows are correct, and no more are cached than fit."""
    X = np.random.default_rng(0).standard_normal((100, 2))
    K = Rbf(1.0)(X, X)
    gram = KernelMatrix(Rbf(1.0), sp.csr_array(X) if sparse else X, cache_bytes=1)
    for rows in map(np.array, requests):
        np.testing.assert_allclose(gram.store[gram.slots(rows)], K[rows], atol=1e-13)
        np.testing.assert_allclose(gram.block(rows), K[np.ix_(rows, rows)], atol=1e-13)
        cached = np.flatnonzero(gram.slot_of >= 0)
        assert sorted(gram.row_in[gram.row_in >= 0]) == sorted(cached)
    v = np.where(np.arange(100) % 3, 0.0, 1.0)
    np.testing.assert_allclose(gram.product(v), K @ v, atol=1e-12)
    out = np.zeros(100)
    gram.add_rows(np.arange(100), v, out)
    np.testing.assert_allclose(out, K @ v, atol=1e-12)
    assert gram.store.shape == (64, 100)


def test_rows_are_computed_once_if_they_fit():
    X, y, _ = data(Hinge(), 200)
    J = Objective(*kernel_risk(X, y, "hinge", Rbf(1.0), fit_intercept=True), lam=1e-4)
    result = minimize(J, KernelDual(block=16), tol=1e-5)
    assert result.status == "converged"
    assert result.n_iter > 20  # each of them uses a block of rows
    assert result.trace[-2]["rows"] < 2 * 200


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda A, B: np.ones((2, 2)), "a row for each of A"),
        (lambda A, B: np.full((A.shape[0], B.shape[0]), np.nan), "NaN or infinity"),
        ("precomputed", "square matrix"),
        ("rbff", "give a callable"),
    ],
)
def test_bad_kernels_are_refused(kernel, message):
    with pytest.raises(ValueError, match=message):
        kernel_risk(np.ones((3, 1)), np.array([1.0, -1.0, 1.0]), "hinge", kernel)


def test_bad_matrices_are_refused():
    y = np.array([1.0, -1.0])
    with pytest.raises(ValueError, match="symmetric"):
        kernel_risk(np.array([[1.0, 2.0], [0.0, 1.0]]), y, "hinge", "precomputed")
    with pytest.raises(ValueError, match="row 1, column 0"):
        kernel_risk(np.array([[1.0], [np.nan]]), y, "hinge")
    with pytest.raises(ValueError, match="two dimensions"):
        kernel_risk(np.array([1.0, 2.0]), y, "hinge")
    with pytest.raises(ValueError, match="0 rows"):
        kernel_risk(np.empty((0, 2)), [], "hinge")


def test_kernels_of_strings():
    words = np.array(["bread", "bred", "sword", "words"])

    def n_shared_letters(A, B):
        return np.array([[float(len(set(a) & set(b))) for b in B] for a in A])

    J = Objective(*kernel_risk(words, np.array([1.0, 1.0, -1.0, -1.0]), "hinge", n_shared_letters), lam=0.01)
    result = minimize(J, tol=1e-6)
    assert result.status == "converged"
    assert result.value < 0.2


# ---------------------------------------------------------------- feature space
def test_pairs_have_the_inner_products_of_feature_space():
    rng = np.random.default_rng(0)
    X, y, _ = data(Squared(), 12)
    K = KERNELS["rbf"](X, X)
    risk, reg = kernel_risk(X, y, "squared", KERNELS["rbf"])
    beta, other = rng.standard_normal((2, 12))
    w, v = as_pair(K @ beta, beta), as_pair(K @ other, other)
    value, a = risk(w)
    gamma = (K @ beta - y) / 12
    np.testing.assert_allclose(a, as_pair(gamma, K @ gamma), atol=1e-12)
    assert value == pytest.approx(0.5 * np.mean((K @ beta - y) ** 2), rel=1e-12)
    assert a @ v == pytest.approx(gamma @ K @ other, rel=1e-10)
    assert reg.value(w) == pytest.approx(0.5 * beta @ K @ beta, rel=1e-12)
    assert reg.inverse_metric_product(np.stack([a, swap_halves(w)]), a) == pytest.approx(
        [gamma @ K @ gamma, beta @ K @ gamma], rel=1e-10
    )
    # Fenchel-Young: equality where u is the gradient that belongs to w
    u = reg.conjugate_grad(w)
    assert reg.value(w) + reg.conjugate(u) == pytest.approx(u @ w, rel=1e-12)
    value_slope = reg.line(w, v)
    assert value_slope(0.7)[0] == pytest.approx(reg.value(w + 0.7 * v), rel=1e-12)
    assert value_slope(0.7)[1] == pytest.approx(
        (reg.value(w + 0.701 * v) - reg.value(w + 0.699 * v)) / 0.002, rel=1e-8
    )
    np.testing.assert_array_equal(coefficients(reg.prox(w, 1.0)), 0.5 * coefficients(w))


def slow(*cases):
    """Mark the cases of a test as slow."""
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize("solver", [Bundle(), KernelDual(), *slow(Bmrm(), LineSearchBmrm())], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_the_linear_kernel_gives_the_linear_problem(solver, intercept, loss):
    X, y, weights = data(loss)
    options = {"sample_weight": weights, "fit_intercept": intercept}
    kernel = Objective(*kernel_risk(X, y, loss, "linear", **options), lam=0.05)
    linear = Objective(linear_risk(X, y, loss, **options), L2(), lam=0.05)
    one, two = minimize(kernel, solver, tol=1e-4), minimize(linear, tol=1e-8)
    assert one.status == "converged"
    assert one.lower <= two.value * (1 + 1e-9)
    assert two.lower <= one.value * (1 + 1e-9)
    w = X.T @ coefficients(one.w)
    assert linear.value(w) == pytest.approx(one.value, rel=1e-9)


def check_optimum(loss, intercept, kernel, seed):
    X, y, weights = data(loss, seed=seed)
    K = KERNELS[kernel](X, X)
    best = optimum(loss, L2(), features(K), y, weights, 0.01, intercept)
    J = Objective(
        *kernel_risk(X, y, loss, KERNELS[kernel], sample_weight=weights, fit_intercept=intercept), lam=0.01
    )
    for solver in (KernelDual(), KernelDual(block=7), Bundle()):
        result = minimize(J, solver, tol=1e-6, max_iter=5000)
        assert result.status == "converged", (solver, result.gap / result.value)
        assert result.lower <= result.value
        if not np.isnan(best):
            assert result.lower <= best + 1e-7 * (1 + abs(best)), solver
            assert result.value >= best - 1e-7 * (1 + abs(best)), solver
        z = K @ coefficients(result.w)
        np.testing.assert_allclose(z, np.sqrt(2) * result.w[: len(y)], atol=1e-9 * (1 + abs(z).max()))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [Hinge(), Logistic(), *slow(EpsilonInsensitive(), Squared())], ids=repr)
def test_the_optimum_equals_cvxpys(loss, intercept):
    check_optimum(loss, intercept, "rbf", 0)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
def test_the_optimum_equals_cvxpys_for_every_loss(loss, intercept):
    if isinstance(loss, Novelty) and intercept:
        pytest.skip("an intercept alone makes the loss zero")
    if intercept and getattr(loss, "margin", 1.0) == 0:
        pytest.skip("zero is the optimum")
    check_optimum(loss, intercept, "rbf", 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", [Hinge(), Logistic(), Absolute(), Poisson()], ids=repr)
@pytest.mark.parametrize("kernel", ["linear", "poly"])
def test_the_optimum_equals_cvxpys_for_other_kernels(kernel, loss):
    check_optimum(loss, True, kernel, 2)


# ---------------------------------------------------------------- dual coordinate ascent
@st.composite
def programs(draw):
    """Small block programs with nonsmooth points, curvature, fixed rows and singular matrices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q = draw(st.integers(1, 8))
    A = rng.standard_normal((q, draw(st.integers(1, q))))
    s = rng.standard_normal(q)
    lower = np.where(rng.random(q) < 0.2, 0.0, -rng.random(q))
    upper = np.where(rng.random(q) < 0.2, 0.0, rng.random(q))
    epsilon = draw(st.sampled_from([0.0, 0.5])) * rng.random(q)
    square = draw(st.sampled_from([0.0, 1.0])) * rng.random(q)
    return A @ A.T, s, lower, upper, epsilon, square


@given(programs(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_block_programs_are_solved(program, paired):
    """To the optimality conditions: no change of a row, or of a pair of rows, decreases the objective."""
    H, s, lower, upper, epsilon, square = program
    gamma, g = np.zeros(len(s)), s.copy()
    step = steps.pair_steps if paired else steps.single_steps
    workspace = np.empty((3 if paired else 4, len(s)))
    for _ in range(50):
        step(
            H,
            H.diagonal().copy(),
            g,
            gamma,
            lower,
            upper,
            epsilon,
            square,
            0.01,
            0,
            2000,
            np.zeros(1),
            *workspace,
        )
    assert ((gamma >= lower) & (gamma <= upper)).all()
    np.testing.assert_allclose(g, H @ gamma + s, atol=1e-10)
    slope = g + square * gamma
    up = np.where(gamma < upper, slope + np.where(gamma >= 0, epsilon, -epsilon), np.inf)
    down = np.where(gamma > lower, slope + np.where(gamma > 0, epsilon, -epsilon), -np.inf)
    if paired:
        assert abs(gamma.sum()) < 1e-12
        assert down.max() - up.min() < 1e-6
    else:
        assert max(down.max(), -up.min()) < 1e-6


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    "loss", [Hinge(), Logistic(), *slow(Absolute(), Poisson(), PowerHinge(1.5))], ids=repr
)
def test_iterates_of_the_dual_are_valid(loss, intercept):
    X, y, weights = data(loss)
    K = KERNELS["rbf"](X, X)
    risk, reg = kernel_risk(X, y, loss, KERNELS["rbf"], sample_weight=weights, fit_intercept=intercept)
    J = Objective(risk, reg, 0.01)
    rng = np.random.default_rng(0)
    points = [as_pair(K @ b, b) for b in rng.standard_normal((10, 40)) * [[0.0], *[[0.1], [1.0], [3.0]] * 3]]
    points.append(minimize(J, Bundle(), tol=1e-4).w)
    lowers = []
    for it in islice(KernelDual(block=8).iterates(J, np.zeros(80)), 25):
        assert it.value == pytest.approx(J.value(it.w), rel=1e-9)
        for v in points:
            assert it.cut.a @ v + it.cut.b <= risk(v)[0] * (1 + 1e-9)
        if intercept:
            assert abs(it.cut.a[:40].sum()) < 1e-14
        lowers.append(it.cut.b - 0.01 * reg.conjugate(it.cut.a / -0.01))
    assert all(b >= a - 1e-12 for a, b in pairwise(lowers))  # exact steps never decrease the bound
    assert lowers[-1] > lowers[0]


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_runs_are_resumed(loss, tmp_path):
    X, y, _ = data(loss, 100)
    J = Objective(*kernel_risk(X, y, loss, Rbf(1.0), fit_intercept=True), lam=1e-3)
    checkpoint = Checkpoint(tmp_path / "run")
    first = minimize(J, KernelDual(block=8), tol=1e-6, max_iter=5, checkpoint=checkpoint)
    second = minimize(J, KernelDual(block=8), tol=1e-6, checkpoint=checkpoint)
    assert (first.status, second.status) == ("max_iter", "converged")
    assert second.value <= first.value
    other = Objective(*kernel_risk(X, y, loss, Rbf(2.0), fit_intercept=True), lam=1e-3)
    with pytest.raises(FileError, match="another problem"):
        minimize(other, KernelDual(block=8), checkpoint=checkpoint)
    scaled = Objective(*kernel_risk(2 * X, y, loss, Rbf(1.0), fit_intercept=True), lam=1e-3)
    with pytest.raises(FileError, match="another problem"):
        minimize(scaled, KernelDual(block=8), checkpoint=checkpoint)


def test_a_start_is_used():
    X, y, _ = data(Hinge(), 100)
    J = Objective(*kernel_risk(X, y, "hinge", Rbf(1.0), fit_intercept=True), lam=1e-3)
    solved = minimize(J, KernelDual(), tol=1e-8)
    restarted = minimize(J, KernelDual(), solved.w, tol=1e-7)
    assert restarted.n_iter <= 2
    outside = as_pair(np.zeros(100), np.full(100, 1e6))  # not a dual feasible point
    assert minimize(J, KernelDual(), outside, tol=1e-7).status == "converged"


class Ramp:
    """A user-defined loss without a conjugate."""

    separable = True
    smooth = False

    def value_grad(self, z, y, c):
        return Hinge().value_grad(z, y, c)


def test_each_risk_gets_a_supported_solver():
    X, y, _ = data(Hinge())
    user_objective = Objective(*kernel_risk(X, y, Ramp()), lam=0.1)
    assert minimize(user_objective).solver == "Bundle(keep=20): a kernel, and Ramp has no conjugate"
    with pytest.raises(TypeError, match="Ramp gives no conjugate"):
        minimize(user_objective, KernelDual())
    with pytest.raises(TypeError, match="minimizes a kernel_risk"):
        minimize(Objective(linear_risk(X, y, "hinge"), L2(), lam=0.1), KernelDual())
    with pytest.raises(TypeError):
        minimize(Objective(*kernel_risk(X, y, "logistic"), lam=0.1), Lbfgs())
    with pytest.raises(ValueError, match="block"):
        KernelDual(block=0)


# ---------------------------------------------------------------- estimators
# One of the checks requires predictions equal to 1e-7 for weighted and for repeated rows: two fits
# within tol of the optimum are that close if tol is small compared with alpha.
@parametrize_with_checks([KernelClassifier(alpha=1e-2, tol=1e-9)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        KernelClassifier("squared_hinge", alpha=1.0, tol=1e-13),
        KernelClassifier("logistic", alpha=0.1, tol=1e-13),
        KernelRegressor(alpha=1.0, tol=1e-13),
        IncompleteCholesky(),
        IncompleteCholesky("linear", rank=2, dtype="float32"),
    ],
    # on three classes, each against the rest, fits differ by 1e-8 to 1e-7
    expected_failed_checks=lambda m: WITHIN_TOL if isinstance(m, KernelClassifier) else {},
)
def test_scikit_learn_checks_of_other_estimators(estimator, check):
    check(estimator)


@pytest.mark.parametrize("small", [1e-12, 1e-9, 1e-7, 1e-4])
def test_the_conjugate_of_tiny_slopes_is_exact(small):
    """Otherwise bounds of tiny risks exceed them: computing 1 - a loses digits of a."""
    series = small * np.log(small) - small + small**2 / 2 + small**3 / 6 + small**4 / 12
    for y in (1.0, -1.0):
        conjugate = Logistic().conjugate(np.array([y])).value(np.array([-y * small]))
        np.testing.assert_allclose(conjugate, series, rtol=4e-16)
    ends = Logistic().conjugate(np.ones(4)).value(np.array([0.0, -1.0, -1.1, 0.1]))
    np.testing.assert_array_equal(ends, [0.0, 0.0, np.inf, np.inf])


@pytest.mark.parametrize("heavy", [1e3, 1e5, 1e7])
def test_bounds_of_tiny_risks_are_below_them(heavy):
    X, y, _ = data(Logistic(), 50)
    options = {"sample_weight": np.where(y < 0, heavy, 1 / heavy), "fit_intercept": True}
    J = Objective(*kernel_risk(X, y, "logistic", Rbf(0.5), **options), lam=0.1)
    for it in islice(KernelDual().iterates(J, np.zeros(100)), 3):
        assert it.value < 1e-4
        assert J.lower(it.cut) <= it.value * (1 + 1e-13)
    assert minimize(J, KernelDual(), tol=1e-12).status == "converged"


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.mean(0)) / X.std(0), y


def objective_of(model, X, y, alpha, K):
    """J at the solution of another library, with its intercept."""
    beta = np.zeros(len(y))
    beta[model.support_] = model.dual_coef_.ravel()
    signs = np.where(y > 0, 1.0, -1.0)
    z = K @ beta + model.intercept_[0]
    return 0.5 * alpha * beta @ K @ beta + np.maximum(0, 1 - signs * z).mean()


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_classifiers_equal_scikit_learns_svc(cancer, C):
    X, y = cancer
    alpha = 1 / (C * len(y))
    model = KernelClassifier(gamma=0.03, alpha=alpha, tol=1e-6).fit(X, y)
    svc = SVC(C=C, gamma=0.03, tol=1e-6).fit(X, y)
    K = Rbf(0.03)(X, X)
    assert objective_of(svc, X, y, alpha, K) == pytest.approx(model.objective_, rel=1e-5)
    assert objective_of(model, X, y, alpha, K) == pytest.approx(model.objective_, rel=1e-9)
    np.testing.assert_allclose(model.decision_function(X), svc.decision_function(X), atol=0.02)
    assert model.lower_bound_ <= objective_of(svc, X, y, alpha, K)


def test_regressors_equal_scikit_learns():
    X, y = load_diabetes(return_X_y=True)
    y = (y - y.mean()) / y.std()
    n = len(y)
    model = KernelRegressor("epsilon_insensitive:epsilon=0.2", gamma=20.0, alpha=1 / n, tol=1e-8).fit(X, y)
    reference_model = SVR(epsilon=0.2, gamma=20.0, C=1.0, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(model.predict(X), reference_model.predict(X), atol=1e-3)
    model = KernelRegressor(gamma=20.0, alpha=1 / n, fit_intercept=False, tol=1e-11).fit(X, y)
    reference_model = KernelRidge(alpha=1.0, kernel="rbf", gamma=20.0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), reference_model.predict(X), atol=1e-5)


def test_one_kernel_in_several_forms(cancer):
    X, y = cancer
    gamma = 1 / (X.shape[1] * X.var())
    model = KernelClassifier(alpha=1e-3, tol=1e-6).fit(X[:400], y[:400])
    assert model.kernel_.gamma == pytest.approx(1 / (X.shape[1] * X[:400].var()))
    model = KernelClassifier(gamma=gamma, alpha=1e-3, tol=1e-6).fit(X[:400], y[:400])
    z = model.decision_function(X)
    callable_kernel = clone(model).set_params(kernel=lambda A, B: pairwise_kernels(A, B, "rbf", gamma=gamma))
    sparse = clone(model).fit(sp.csr_array(X[:400]), y[:400])
    K = Rbf(gamma)(X, X)
    precomputed = clone(model).set_params(kernel="precomputed").fit(K[:400, :400], y[:400])
    for other, rows in (
        (callable_kernel.fit(X[:400], y[:400]), X),
        (sparse, sp.csr_array(X)),
        (precomputed, K[:, :400]),
    ):
        assert other.objective_ == pytest.approx(model.objective_, rel=2e-6)
        np.testing.assert_allclose(other.decision_function(rows), z, atol=0.02)
    assert cross_val_score(precomputed, K, y).mean() > 0.9  # folds select rows and columns
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.decision_function(X), z)


def test_probabilities_weights_and_searches(cancer):
    X, y = cancer
    weights = np.where(np.arange(len(y)) % 3, 1.0, 0.0)
    model = KernelClassifier("logistic", alpha=1e-2, gamma=0.03, tol=1e-8)
    one = clone(model).fit(X, y, weights)
    two = clone(model).fit(X[weights > 0], y[weights > 0])
    assert one.objective_ == pytest.approx(two.objective_, rel=1e-7)
    np.testing.assert_allclose(one.predict_proba(X), two.predict_proba(X), atol=1e-3)
    np.testing.assert_allclose(np.exp(one.predict_log_proba(X)), one.predict_proba(X), atol=1e-12)
    assert not hasattr(KernelClassifier(), "predict_proba")
    class_weighted = clone(model).set_params(class_weight={0: 1.0, 1: 3.0}).fit(X, y)
    row_weighted = clone(model).fit(X, y, np.where(y, 3.0, 1.0))
    assert class_weighted.objective_ == pytest.approx(row_weighted.objective_, rel=1e-7)
    search = GridSearchCV(KernelClassifier(), {"alpha": [1e-1, 1e-3]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.93


def test_limits_warm_starts_and_errors(cancer):
    X, y = cancer
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = KernelClassifier(alpha=1e-6, tol=1e-6, max_iter=1, warm_start=True).fit(X, y)
    values = []
    model.set_params(max_iter=1000, callback=lambda it, row: values.append(row["value"])).fit(X, y)
    assert model.gap_ <= 1e-6 * model.objective_
    model.fit(X, y)
    assert model.n_iter_ <= 2
    with pytest.raises(ValueError, match="had 569 rows"):
        model.fit(X[:100], y[:100])
    for kernel, message in (("sigmoid", "no Mercer kernel"), ("rbff", "one of"), (3, "neither a callable")):
        with pytest.raises(ValueError, match=message):
            KernelClassifier(kernel=kernel).fit(X, y)
    for wrong in ({"gamma": -1.0}, {"gamma": "big"}, {"cache_size": 0}, {"alpha": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            KernelClassifier(**wrong).fit(X, y)
    bundle = KernelClassifier(alpha=1e-2, solver="bundle").fit(X, y)
    assert isinstance(get_solver("bundle"), Bundle)
    assert bundle.result_.solver.startswith("Bundle")


def test_a_tiny_cache_gives_the_same_fit():
    X, y = make_moons(300, noise=0.2, random_state=0)
    small, large = (KernelClassifier(alpha=1e-4, cache_size=m, tol=1e-6).fit(X, y) for m in (0.01, 100))
    assert small.objective_ == pytest.approx(large.objective_, rel=2e-6)


def test_counts_and_exponentials():
    rng = np.random.default_rng(0)
    X = rng.random((150, 2))
    y = rng.poisson(np.exp(1 + np.sin(6 * X[:, 0])))
    model = KernelRegressor("poisson", gamma=10.0, alpha=1e-2, tol=1e-6).fit(X, y)
    assert model.predict(X).mean() == pytest.approx(
        y.mean(), rel=1e-3
    )  # the optimality condition of the intercept
    signs = np.where(y > y.mean(), 1, 0)
    assert KernelClassifier(Exponential(), gamma=10.0, alpha=1e-3).fit(X, signs).score(X, signs) > 0.7


# ---------------------------------------------------------------- incomplete Cholesky
@given(st.integers(0, 2**32 - 1), st.integers(2, 90), st.sampled_from([1e-1, 1e-3, 0.0]))
@settings(max_examples=20, deadline=None)
def test_the_factor_has_the_reported_residual(seed, n, tol):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    X[n // 2] = X[0]  # duplicate rows
    K = Rbf(rng.choice([0.1, 10.0]))(X, X)
    T, pivots, residual = incomplete_cholesky(lambda i: K[i], np.diag(K).copy(), rank=n, tol=tol)
    remainder = K - T.T @ T
    assert np.linalg.eigvalsh(remainder)[0] > -1e-10  # the factor never exceeds K
    assert np.trace(remainder) / n == pytest.approx(residual, abs=1e-10)
    assert residual <= max(tol, 1e-12 * n)
    assert len(set(pivots)) == len(pivots) == len(T)
    np.testing.assert_allclose(T[:, pivots].T @ T, K[pivots], atol=1e-9)  # exact in the rows of the pivots
    shorter = incomplete_cholesky(lambda i: K[i], np.diag(K).copy(), rank=max(1, len(T) - 1), tol=0.0)
    assert len(shorter.T) <= max(1, len(T) - 1)


def test_blocks_of_pivots_are_nearly_as_good_as_greedy_pivots():
    X = np.random.default_rng(0).standard_normal((600, 5))
    K = Rbf(0.1)(X, X)
    for rank in (20, 100, 300):
        residual, L = np.ones(600), np.zeros((600, rank))
        for j in range(rank):  # one pivot at a time
            i = np.argmax(residual)
            L[:, j] = (K[i] - L[:, :j] @ L[i, :j]) / np.sqrt(residual[i])
            residual = np.maximum(residual - L[:, j] ** 2, 0.0)
        blocked = incomplete_cholesky(lambda i: K[i], np.ones(600), rank=rank, tol=0.0).residual
        assert blocked <= 1.25 * residual.sum() / 600


@pytest.mark.parametrize(
    "kernel", ["rbf", "linear", "precomputed", pytest.param("poly", marks=pytest.mark.slow)]
)
def test_features_reproduce_the_kernel(cancer, kernel):
    X, _ = cancer
    transformer = IncompleteCholesky(kernel, coef0=1.0, gamma=0.05, tol=1e-10)
    full = pairwise_kernels(
        X, X, "rbf" if kernel == "precomputed" else kernel, filter_params=True, gamma=0.05, coef0=1.0
    )
    rows = (full[:300, :300], full[300:, :300]) if kernel == "precomputed" else (X[:300], X[300:])
    L = transformer.fit_transform(rows[0])
    M = transformer.transform(rows[1])
    size = np.abs(full).max()
    np.testing.assert_allclose(L @ L.T, full[:300, :300], atol=1e-6 * size)
    np.testing.assert_allclose(
        M @ L[transformer.pivots_].T, full[300:, transformer.pivots_], atol=1e-6 * size
    )
    np.testing.assert_allclose(transformer.transform(rows[0]), L, atol=1e-4 * np.sqrt(size))
    assert transformer.residual_ <= 1e-10
    assert L.shape[1] == len(transformer.pivots_) == transformer.triangle_.shape[0]


@pytest.mark.exhaustive
def test_a_linear_model_on_the_features_is_a_kernel_machine(cancer):
    X, y = cancer
    kernel = KernelClassifier(gamma=0.03, alpha=1e-2, tol=1e-6).fit(X, y)
    L = IncompleteCholesky(gamma=0.03, tol=1e-8).fit_transform(X)
    linear = LinearClassifier(alpha=1e-2, tol=1e-6).fit(L, y)
    assert linear.objective_ == pytest.approx(kernel.objective_, rel=1e-4)


def test_features_in_single_precision(cancer):
    X, _ = cancer
    single = IncompleteCholesky(gamma=0.05, rank=50, dtype="float32")
    L = single.fit_transform(X)
    assert (L.dtype, L.shape) == (np.float32, (569, 50))
    assert single.transform(sp.csr_array(X)).dtype == np.float32
    double = IncompleteCholesky(gamma=0.05, rank=50).fit(X)
    assert single.residual_ == pytest.approx(double.residual_, rel=1e-2)
    np.testing.assert_allclose(single.transform(X), L, atol=1e-3)
    for wrong in ({"rank": 0}, {"tol": -1.0}, {"dtype": "int8"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            IncompleteCholesky(**wrong).fit(X)


def test_zero_rows_have_no_features():
    zeros = IncompleteCholesky("linear").fit(np.zeros((4, 2)))
    assert zeros.transform(np.ones((3, 2))).shape == (3, 0)
    assert RkhsNorm().scale(J_cut(), 1.0) == 1.0


def J_cut():
    from riskmin import Cut

    return Cut(np.zeros(4), 0.5)


@pytest.mark.parametrize("p", [1.1, 1.5, 3.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_powers_with_a_flat_conjugate_do_not_stall(p, intercept):
    """Their conjugates have no curvature at zero: a quadratic model there leads to far too large steps."""
    for seed, lam in ((3, 2.4), (25, 0.11), (53, 0.13)):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((rng.integers(3, 40), rng.integers(1, 5)))
        y = np.where(X[:, 0] + 0.5 * rng.standard_normal(len(X)) > 0, 1.0, -1.0)
        y[:2] = 1.0, -1.0
        obj = Objective(*kernel_risk(X, y, PowerHinge(p), "linear", fit_intercept=intercept), lam)
        assert minimize(obj, KernelDual(), tol=1e-6, max_iter=400).status == "converged"


def test_an_incomplete_cholesky_factor_ends_at_its_time_limit():
    X = np.random.default_rng(0).standard_normal((300, 4))
    with ticking_clock() as clock:
        L = IncompleteCholesky(gamma=1.0, tol=1e-10, max_seconds=2 * clock.TICK).fit(X)
    whole = IncompleteCholesky(gamma=1.0, tol=1e-10).fit(X)
    assert 0 < len(L.pivots_) < len(whole.pivots_)
    assert L.residual_ > 1e-10 >= whole.residual_
    assert L.pivots_.tolist() == whole.pivots_[: len(L.pivots_)].tolist()
    with pytest.raises(ValueError, match="max_seconds"):
        IncompleteCholesky(max_seconds=0).fit(X)
