"""Solvers for smooth losses with any regularizer, for local and remote data: ProximalGradient and OwlQn."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import problem
from reference import optimum
from riskmin import (
    L1,
    L2,
    Box,
    Bundle,
    Elastic,
    Entropy,
    Exponential,
    Hinge,
    Huber,
    Logistic,
    Objective,
    OwlQn,
    Poisson,
    Processes,
    ProximalGradient,
    QNorm,
    Squared,
    SquaredHinge,
    linear_risk,
    minimize,
)
from riskmin.solvers.quasi_newton.owlqn import Orthant
from riskmin.testing import check_solver

W = np.array([0.5, 1.0, 2.0, 0.7])
SPARSE = [L1(), L1(W), Elastic(0.3), Elastic(2.0, W), Elastic(0.0)]
OTHERS = [Box(L1(W), -1.0, 1.0), Box(Elastic(0.2), -0.5, 0.3), QNorm(1.5, 2.0), Entropy(1.0, True, True)]
BOTH = [ProximalGradient(), OwlQn()]


def objective(loss, reg, lam=0.02, intercept=False, **settings):
    X, y, weights = problem(loss)
    return Objective(
        linear_risk(X, y, loss, sample_weight=weights, fit_intercept=intercept, **settings), reg, lam
    )


@pytest.mark.parametrize("solver", BOTH, ids=repr)
@pytest.mark.parametrize("reg", SPARSE, ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_sparse_regularizers(solver, reg, intercept):
    for loss in (Logistic(), Poisson()):
        X, y, weights = problem(loss)
        best = optimum(loss, reg, X, y, weights, 0.02, intercept)
        result = minimize(objective(loss, reg, intercept=intercept), solver, tol=1e-7)
        assert result.status == "converged"
        assert best == pytest.approx(result.value, rel=2e-7)
        assert result.lower <= best * (1 + 1e-9)


@pytest.mark.parametrize("reg", OTHERS, ids=repr)
def test_other_regularizers(reg):
    X, y, weights = problem(Logistic())
    result = minimize(objective(Logistic(), reg), ProximalGradient(), tol=1e-7)
    assert result.status == "converged"
    assert optimum(Logistic(), reg, X, y, weights, 0.02, False) == pytest.approx(result.value, rel=2e-7)


def test_contract():
    check_solver(ProximalGradient(), smooth=True)


@pytest.mark.parametrize("solver", BOTH, ids=repr)
@pytest.mark.parametrize("reg", [L1(), Elastic(0.3)], ids=repr)
def test_iterates_are_valid(solver, reg):
    """The value is J(w) and never increases, the cut lies below R, and a saved run continues as before."""
    J = objective(Logistic(), reg, intercept=True)
    rng = np.random.default_rng(0)
    points = rng.standard_normal((50, 4)) * rng.exponential(3, (50, 1))
    steps = list(islice(solver.iterates(J, np.ones(4)), 8))
    for it in steps:
        assert it.value == pytest.approx(J.value(it.w), rel=1e-12)
        assert all(it.cut.a @ v + it.cut.b <= J.risk(v)[0] + 1e-12 for v in points)
    assert all(b.value <= a.value * (1 + 1e-12) for a, b in pairwise(steps))
    for it, after in pairwise(steps):
        saved = {name: np.array(a, copy=True) for name, a in it.state().items()}
        resumed = next(solver.resume(J, saved))
        np.testing.assert_array_equal(resumed.w, after.w)
        assert resumed.value == after.value


@pytest.mark.parametrize("solver", BOTH, ids=repr)
def test_the_weights_are_sparse(solver):
    """Zeros are exact, not small numbers."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 200))
    y = np.sign(X[:, :3].sum(axis=1))
    J = Objective(linear_risk(X, y, Logistic()), L1(), 0.05)
    result = minimize(J, solver, tol=1e-6)
    assert result.status == "converged"
    slopes = np.abs(J.risk(result.w)[1])
    assert 3 <= (result.w != 0).sum() < 40
    assert np.all(slopes <= 0.05 * (1 + 1e-2))
    assert np.abs(slopes[result.w != 0] / 0.05 - 1).max() < 1e-2


@given(st.integers(0, 2**32 - 1))
def test_the_direction_of_steepest_descent_has_the_smallest_slope(seed):
    """By brute force: no direction of the same length has a smaller one-sided slope of g @ w + l |w|_1."""
    rng = np.random.default_rng(seed)
    w, g, l1 = rng.integers(-1, 2, 5).astype(float), rng.standard_normal(5), rng.uniform(0, 1, 5)
    orthant = Orthant.from_point(w, g, l1)

    def slope(d):
        return float(g @ d + l1 @ np.where(w == 0, np.abs(d), np.sign(w) * d))

    length = np.linalg.norm(orthant.steepest)
    assert slope(orthant.steepest) == pytest.approx(-(length**2), abs=1e-12)
    for d in rng.standard_normal((50, 5)):
        assert slope(length * d / np.linalg.norm(d)) >= slope(orthant.steepest) - 1e-12
    assert np.all(orthant.projected_step(10.0, rng.standard_normal(5)) * orthant.signs >= 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("solver", BOTH, ids=repr)
def test_data_in_other_processes(solver):
    """Rows in worker processes give the same weights."""
    remote = {"executor": Processes(n_workers=2), "n_shards": 3}
    for intercept in (False, True):
        local_result, remote_result = (
            minimize(objective(Huber(), Elastic(0.3), intercept=intercept, **settings), solver, tol=1e-8)
            for settings in ({}, remote)
        )
        np.testing.assert_allclose(local_result.w, remote_result.w, atol=1e-6)


@pytest.mark.parametrize("solver", BOTH, ids=repr)
def test_data_of_another_library(solver):
    """All arrays stay in that library, and the weights agree."""
    torch = pytest.importorskip("torch")
    X, y, _ = problem(Huber())
    for reg in (L1(), Elastic(0.3, W)):
        for intercept in (False, True):
            numpy_objective, torch_objective = (
                Objective(linear_risk(A, y, Huber(), fit_intercept=intercept), reg, 0.02)
                for A in (X, torch.tensor(X))
            )
            one = minimize(numpy_objective, solver, tol=1e-8)
            two = minimize(torch_objective, solver, torch.zeros(4, dtype=torch.float64), tol=1e-8)
            assert isinstance(two.w, torch.Tensor)
            assert two.status == "converged"
            np.testing.assert_allclose(one.w, two.w.numpy(), atol=1e-5)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.sampled_from(BOTH))
def test_any_scale(seed, log_scale, solver):
    """Data in any unit and lam weak or strong: the certified gap is reached."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20, 3)) * 10.0**log_scale
    y = np.where(rng.random(20) > 0.5, 1.0, -1.0)
    risk = linear_risk(X, y, SquaredHinge())
    lam = 10 ** rng.uniform(-2, 0) * np.abs(risk(np.zeros(3))[1]).max()
    result = minimize(Objective(risk, L1(), lam), solver, tol=1e-6)
    assert result.status == "converged"


@pytest.mark.parametrize("solver", BOTH, ids=repr)
def test_exponentials_that_overflow(solver):
    """A start from which the first step overflows."""
    X, y, _ = problem(Exponential())
    J = Objective(linear_risk(10 * X, y, Exponential()), Elastic(0.1), 0.1)
    result = minimize(J, solver, np.full(4, -1.0), tol=1e-6, max_iter=5000)
    assert result.lower <= result.value < np.inf
    assert result.value <= 2 * minimize(J, Bundle(), tol=1e-3).value


@pytest.mark.parametrize("solver", BOTH, ids=repr)
def test_a_start_at_the_minimum(solver):
    """With lam so large that zero is optimal, and with a risk of zero."""
    J = objective(Squared(), L1(), lam=1e3)
    result = minimize(J, solver, tol=1e-9)
    assert (result.status, result.n_iter) == ("converged", 1)
    assert not result.w.any()
    zero_risk = Objective(linear_risk(np.eye(4), np.zeros(4), Squared()), L1(), 1.0)
    assert minimize(zero_risk, solver, tol=1e-6).value == 0


def test_errors_name_an_alternative():
    for solver in BOTH:
        with pytest.raises(TypeError, match=r"needs a smooth loss, and Hinge\(.*\) is not: use Bundle"):
            minimize(objective(Hinge(), L1()), solver)
    for reg in (L2(), Box(L1()), QNorm()):
        with pytest.raises(TypeError, match=r"OwlQn is for L1.* and Elastic.*: use"):
            minimize(objective(Logistic(), reg), OwlQn())
    with pytest.raises(ValueError, match="whole number >= 1"):
        OwlQn(memory=0)


def test_a_user_risk_may_be_smooth():
    class Own:
        dim = 2

        def __call__(self, w):
            return float((w - 1) @ (w - 1)), 2 * (w - 1)

    for solver in BOTH:
        result = minimize(Objective(Own(), L1(), 0.5), solver, tol=1e-9)
        np.testing.assert_allclose(result.w, 0.75, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("solver", BOTH, ids=repr)
@pytest.mark.parametrize("fraction", [0.3, 0.03, 0.003])
@pytest.mark.parametrize("intercept", [False, True])
def test_sparse_classification_to_six_digits(solver, fraction, intercept):
    """Wide, correlated and badly scaled columns."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((200, 10)) @ rng.standard_normal((10, 300)) + 0.5 * rng.standard_normal(
        (200, 300)
    )
    X *= rng.uniform(0.1, 3, 300)
    y = np.where(X[:, :5].sum(axis=1) + rng.standard_normal(200) > 0, 1.0, -1.0)
    risk = linear_risk(X, y, Logistic(), fit_intercept=intercept)
    lam = fraction * np.abs(risk(np.zeros(300))[1]).max()
    result = minimize(Objective(risk, L1(), lam), solver, tol=1e-6, max_iter=50_000)
    assert result.status == "converged"
