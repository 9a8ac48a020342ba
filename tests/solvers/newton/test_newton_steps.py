"""Newton's method: how much work runs take, where they start and end, and where their rows are."""

from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from everywhere import RemoteExecutor
from helpers import Problem, labels
from riskmin import L2, Newton, Objective, Quadratic, linear_risk, minimize


def calls(result):
    """The number of evaluations of J, which each read X."""
    return result.trace[-1]["calls"]


# ---------------------------------------------------------------- least squares
def sparse_columns(n=300, p=450, seed=0):
    """Columns of different sizes, with few entries."""
    rng = np.random.default_rng(seed)
    X = sp.random_array((n, p), density=0.02, rng=rng, format="csr", data_sampler=rng.standard_normal)
    return sp.csr_array(X @ sp.diags_array(np.geomspace(0.3, 3, p)))


def ridge(X, lam, intercept, seed=0):
    """The objective of weighted rows, a penalty per column; its minimizer and minimum by a dense system."""
    rng, (n, p) = np.random.default_rng(seed), X.shape
    y, weights = X @ rng.standard_normal(p) + 5 + rng.standard_normal(n), rng.integers(0, 3, n).astype(float)
    risk = linear_risk(X, y, rm.Squared(), sample_weight=weights, fit_intercept=intercept)
    square, c = np.linspace(0.5, 2, p), weights / weights.sum()
    D = X.toarray() if sp.issparse(X) else X
    D, t = (D - c @ D, y - c @ y) if intercept else (D, y)
    w = np.linalg.solve(D.T @ (c[:, None] * D) + np.diag(lam * square), D.T @ (c * t))
    minimum = 0.5 * float(c @ (D @ w - t) ** 2) + lam / 2 * float(square @ w**2)
    return Objective(risk, L2(square), lam), w, minimum


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(200, 6), (40, 1000), (300, 150)])
def test_least_squares_take_one_step(shape, intercept):
    """And a second one, which removes the rounding of the first where lam is small."""
    obj, w, minimum = ridge(np.random.default_rng(1).standard_normal(shape), 1e-6, intercept)
    result = minimize(obj, Newton(), tol=1e-8)
    assert result.status == "converged"
    assert calls(result) <= 4
    assert result.value == pytest.approx(minimum, rel=1e-8)
    np.testing.assert_allclose(result.w, w, atol=1e-3 * np.linalg.norm(w))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("lam", [1e-2, 1e-6])
def test_least_squares_without_a_matrix(intercept, lam):
    """One run of conjugate gradients: few evaluations, and the dense minimizer."""
    obj, w, minimum = ridge(sparse_columns(), lam, intercept)
    result = minimize(obj, Newton(direct=1), tol=1e-9)
    assert result.status == "converged"
    assert calls(result) <= 20
    assert result.lower <= minimum * (1 + 1e-12)
    assert minimum * (1 - 1e-12) <= result.value <= minimum * (1 + 1e-9)
    assert np.linalg.norm(result.w - w) <= 1e-3 * np.linalg.norm(w)
    first, *rest = islice(Newton(direct=1).iterates(obj, np.zeros(len(w))), 4)
    state = {name: a.copy() for name, a in first.state().items()}
    for it, again in zip(rest, Newton(direct=1).resume(obj, state), strict=False):
        np.testing.assert_array_equal(it.w, again.w)
        assert it.value == again.value


# ---------------------------------------------------------------- numbers of evaluations
CALLS = [
    (rm.Logistic(), 15),
    (rm.SquaredHinge(), 15),
    (rm.SmoothedHinge(0.3), 30),
    (rm.Poisson(), 20),
    (rm.Hinge(), 60),
    (rm.Absolute(), 60),
    (rm.RocArea(), 35),
    (rm.Ordinal(), 35),
    (rm.Prbep(), 70),
    (rm.Softmax(), 25),
    (rm.MulticlassSquaredHinge(), 25),
    (rm.MulticlassHinge(), 90),
]


@pytest.mark.parametrize(("loss", "most"), CALLS, ids=repr)
def test_a_small_lam_takes_few_evaluations(loss, most):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((2000, 20)) * np.logspace(0, -1, 20)
    z = X @ rng.standard_normal(20) + rng.standard_normal(2000)
    y = np.clip(np.floor(z + 2), 0, 3) if loss.task == "ordinal" else labels(loss, z - 0.5, rng)
    result = minimize(Objective(linear_risk(X, y, loss), L2(), 1e-6), Newton(), tol=1e-6)
    assert result.status == "converged"
    assert calls(result) <= most


@pytest.mark.parametrize("loss", [rm.MulticlassHinge(), rm.Softmax()], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_a_large_lam_takes_few_evaluations(loss, intercept):
    """The minimum is near w = 0, where all classes have the same scores."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 4)), np.arange(30) % 3.0
    result = minimize(
        Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 1e4), Newton(), tol=1e-6
    )
    assert result.status == "converged"
    assert calls(result) <= 10


def separable_classes(n=60, p=300):
    """More columns than rows, and scores that grow without bound as lam vanishes."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, p)), np.arange(n) % 4.0


@pytest.mark.parametrize(
    ("loss", "most"),
    [(rm.Softmax(), 20), (rm.MulticlassSquaredHinge(), 180), (rm.MulticlassHinge(), 100)],
    ids=repr,
)
@pytest.mark.parametrize("direct", [1, 2500])
def test_few_rows_of_several_outputs(loss, most, direct):
    """By the matrix of the rows, or by conjugate gradients alone: the same minimum, without many steps."""
    obj = Objective(linear_risk(*separable_classes(), loss, fit_intercept=True), L2(), 1e-4)
    result = minimize(obj, Newton(direct=direct), tol=1e-6)
    bundle = minimize(obj, rm.Lbfgs() if loss.smooth else rm.DualCoordinateAscent(), tol=1e-4)
    assert result.status == bundle.status == "converged"
    assert calls(result) <= most
    assert result.lower <= bundle.value
    assert bundle.lower <= result.value


def rare_columns(n=8000):
    """A few rows have large features of their own: most of the curvature, but rarely sampled."""
    rng = np.random.default_rng(0)
    X = np.hstack([rng.standard_normal((n, 5)) * np.logspace(0, -1, 5), np.zeros((n, 10))])
    y = labels(rm.Hinge(), X[:, :5] @ (3 * rng.standard_normal(5)), rng)
    X[rng.permutation(n)[:40], 5 + np.arange(40) % 10] = 300 * rng.standard_normal(40)
    return X, y


@pytest.mark.parametrize("loss", [rm.Logistic(), rm.SquaredHinge()], ids=repr)
@pytest.mark.parametrize("reg", [L2(), Quadratic(np.eye(15))], ids=["L2", "Quadratic"])
def test_misleading_samples_of_the_rows_cost_little(loss, reg):
    obj = Objective(linear_risk(*rare_columns(), loss), reg, 1e-6)
    result, unsampled = (minimize(obj, Newton(sampled=sampled), tol=1e-6) for sampled in (True, False))
    assert result.status == unsampled.status == "converged"
    assert result.lower <= unsampled.value
    assert unsampled.lower <= result.value
    assert calls(result) <= calls(unsampled) + 3


@pytest.mark.parametrize("intercept", [False, True])
def test_samples_of_many_rows_save_evaluations_on_all_rows(intercept):
    rng = np.random.default_rng(0)
    n = 2**20 // 3 + 1  # a pass over fewer entries costs less than a sample
    X = rng.standard_normal((n, 3)) * [1, 10, 0.1]
    y = X @ [1, 0.1, 2] + rng.standard_t(2, n)
    obj = Objective(linear_risk(X, y, rm.Absolute(), fit_intercept=intercept), Quadratic(np.eye(3)), 1e-6)
    result, unsampled = (minimize(obj, Newton(sampled=sampled), tol=1e-6) for sampled in (True, False))
    assert result.status == unsampled.status == "converged"
    assert calls(result) < calls(unsampled)


# ---------------------------------------------------------------- starts and ends
def steps_to(gap, obj, iterates):
    """The Newton steps until a gap is proved."""
    steps = 0
    for it in iterates:
        steps += it.info["evaluations"]
        if it.value - obj.lower(it.cut) < gap:
            return steps
    raise AssertionError("the gap was not proved")


@pytest.mark.parametrize(
    "problem",
    [Problem(n=100, lam=1e-4), Problem(rm.MulticlassHinge(), n=80, lam=1e-3, intercept=True)],
    ids=lambda problem: repr(problem.loss),
)
def test_it_starts_from_the_multipliers_of_dual_ascent(problem):
    obj = problem.objective()
    zero = np.zeros(obj.risk.dim)
    dual = rm.DualCoordinateAscent().iterates(obj, zero)
    last = next(it for it in dual if it.value - obj.lower(it.cut) <= 1e-3 * it.value)
    cold, warm = (
        steps_to(1e-6, obj, run)
        for run in (Newton().iterates(obj, zero), Newton().warm_start(obj, last.state(), obj))
    )
    assert warm < 0.75 * cold


# ---------------------------------------------------------------- places of the rows


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("direct", "sparse"), [(2500, False), (1, True)])
@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Logistic()], ids=repr)
def test_rows_in_any_place_give_the_same_bits(loss, sparse, direct, intercept):
    problem = Problem(loss, n=600, p=5, lam=1e-4, intercept=intercept, sparse=sparse)
    here, threads, there = (
        minimize(problem.objective(executor=executor, n_shards=3), Newton(direct), tol=1e-8)
        for executor in (rm.Serial(), rm.Threads(n_workers=2), RemoteExecutor())
    )
    assert here.status == "converged"
    for other in (threads, there):
        np.testing.assert_array_equal(here.w, other.w)
        assert (here.value, here.lower) == (other.value, other.lower)
