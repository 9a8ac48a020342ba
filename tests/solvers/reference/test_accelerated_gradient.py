"""AcceleratedGradient: the rate of its theorem, optima by cvxpy, and smoothed losses."""

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
    AcceleratedGradient,
    Box,
    Bundle,
    CoordinateDescent,
    Elastic,
    Entropy,
    Exponential,
    Hinge,
    Huber,
    Logistic,
    Newton,
    Objective,
    Poisson,
    Prbep,
    QNorm,
    Quadratic,
    RocArea,
    SmoothedHinge,
    Smoothing,
    Squared,
    linear_risk,
    minimize,
    path,
)
from riskmin.core import UnsupportedProblem
from riskmin.testing import check_solver

W = np.array([0.5, 1.0, 2.0, 0.7])
REGULARIZERS = [
    L2(W),
    L1(W),
    Elastic(0.3),
    Box(L1(W), -1.0, 1.0),
    Box(L2()),
    Quadratic(np.diag(W) + 0.4),
    QNorm(1.5, 2.0),
    Entropy(1.0, True, True),
]


def objective(loss, reg, lam=0.02, intercept=False):
    X, y, weights = problem(loss)
    return Objective(linear_risk(X, y, loss, sample_weight=weights, fit_intercept=intercept), reg, lam)


# ---------------------------------------------------------------- Nesterov 2007, theorem 6
@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1.3, 2.0, 5.0]),
    st.sampled_from([1.0, 1.1, 2.0]),
    st.booleans(),
)
def test_the_rate_of_the_theorem(seed, gamma_u, gamma_d, strong):
    """For least squares, J(w_k) - J* <= |w0 - w*|^2 / (2 A_k), and A_k grows at the rate of the theorem."""
    rng = np.random.default_rng(seed)
    n, p = 20, 6
    X = rng.standard_normal((n, p)) * 10 ** rng.uniform(-1.5, 0.5, p)
    y, lam = X @ rng.standard_normal(p) + rng.standard_normal(n), 10 ** rng.uniform(-4, 0)
    J = Objective(linear_risk(X, y, Squared()), L2() if strong else L1(), lam)
    star = minimize(J, CoordinateDescent(), tol=1e-12)
    L = float(np.linalg.eigvalsh(X.T @ X / n)[-1])
    w0 = rng.standard_normal(p)
    distance_sq = float((w0 - star.w) @ (w0 - star.w))
    steps = islice(AcceleratedGradient(gamma_u, gamma_d).iterates(J, w0), 1, 80)
    for k, it in enumerate(steps, start=1):
        if not np.array_equal(it.state()["start"], w0):
            break  # a restart begins another run
        quadratic_rate = k**2 / (2 * gamma_u * L)
        growth = 1 + np.sqrt(lam / (2 * gamma_u * L)) if strong else 1.0
        A = it.info["A"]
        assert max(quadratic_rate, 2 / (gamma_u * L) * growth ** (2 * (k - 1))) * (1 - 1e-9) <= A
        assert it.value - star.value <= distance_sq / (2 * A) + star.gap + 1e-12 * (1 + star.value)
        if strong:  # the mixture of all cuts proves it, with the distance of its own minimizer from w0
            minimizer_distance_sq = float(((w0 + it.state()["mean"] / lam) ** 2).sum())
            assert it.value - J.lower(it.cut) <= minimizer_distance_sq / (2 * A) + 1e-11 * (1 + it.value)


def test_strong_convexity_gives_a_linear_rate():
    """The gap decreases by a constant factor, determined by the square root of the condition number."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 10)) * np.geomspace(1, 0.05, 10)
    J = Objective(linear_risk(X, X.sum(axis=1) + rng.standard_normal(100), Squared()), L2(), 0.01)
    gaps = [it.value - J.lower(it.cut) for it in islice(AcceleratedGradient().iterates(J, np.zeros(10)), 121)]
    assert gaps[60] < 1e-4 * gaps[0]
    assert gaps[120] < 1e-4 * gaps[60]


# ---------------------------------------------------------------- optima
def check_optimum(loss, reg, intercept):
    X, y, weights = problem(loss)
    best = optimum(loss, reg, X, y, weights, 0.02, intercept)
    result = minimize(objective(loss, reg, intercept=intercept), AcceleratedGradient(), tol=1e-7)
    assert result.status == "converged"
    assert best == pytest.approx(result.value, rel=2e-7)
    assert result.lower <= best * (1 + 1e-9)


@pytest.mark.parametrize("reg", REGULARIZERS, ids=repr)
def test_optima(reg):
    check_optimum(Logistic(), reg, False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reg", REGULARIZERS, ids=repr)
def test_more_optima(reg):
    for loss in (Logistic(), Poisson()):
        check_optimum(loss, reg, True)


def test_contract():
    check_solver(AcceleratedGradient(), smooth=True)


@pytest.mark.parametrize("reg", [L2(), L1(), Elastic(0.3)], ids=repr)
def test_iterates_are_valid(reg):
    """The value is J(w), the cut lies below R, and a saved run continues as before."""
    J = objective(Logistic(), reg, intercept=True)
    rng = np.random.default_rng(0)
    points = rng.standard_normal((50, 4)) * rng.exponential(3, (50, 1))
    steps = list(islice(AcceleratedGradient().iterates(J, np.ones(4)), 10))
    for it in steps:
        assert it.value == pytest.approx(J.value(it.w), rel=1e-12)
        assert all(it.cut.a @ v + it.cut.b <= J.risk(v)[0] + 1e-12 for v in points)
    for it, after in pairwise(steps):
        saved = {name: np.array(a, copy=True) for name, a in it.state().items()}
        resumed = next(AcceleratedGradient().resume(J, saved))
        np.testing.assert_array_equal(resumed.w, after.w)
        assert resumed.value == after.value
        assert J.lower(resumed.cut) == pytest.approx(J.lower(after.cut), rel=1e-12)


@pytest.mark.parametrize("loss", [Logistic(), Squared()], ids=repr)
def test_a_gap_is_proved_at_a_small_lam(loss):
    """At lam = 1e-6, as in section 5.5.3 of paper D: the optimum is that of Newton's method."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((200, 10)) * np.logspace(0, -1, 10)
    z = X @ rng.standard_normal(10) + rng.standard_normal(200)
    J = Objective(linear_risk(X, np.sign(z) if loss.task == "classification" else z, loss), L2(), 1e-6)
    result, star = minimize(J, AcceleratedGradient(), tol=1e-4), minimize(J, Newton(), tol=1e-9)
    assert result.status == star.status == "converged"
    assert result.gap <= 1e-4 * result.value
    assert result.lower <= star.value * (1 + 1e-9)
    assert star.value <= result.value * (1 + 1e-9)


def test_a_gap_of_a_smoothed_loss_is_proved_at_a_small_lam():
    """The setting of the paper: an area under the ROC curve, smoothed, and lam = 1e-6."""
    rng = np.random.default_rng(9)
    X, y = rng.standard_normal((150, 6)), np.repeat([1.0, -1.0], [40, 110])
    X[:40, :2] += 0.7
    J = Objective(linear_risk(X, y, RocArea()), L2(), 1e-6)
    result = minimize(J, Smoothing(inner=AcceleratedGradient()), tol=1e-2)
    assert result.status == "converged"
    assert result.lower <= minimize(J, Newton(), tol=1e-6).value <= result.value * (1 + 1e-6)


def test_it_stalls_at_full_accuracy():
    """With a tolerance below rounding error, it ends by itself near the optimum."""
    for intercept in (False, True):
        J = objective(Logistic(), L2(), intercept=intercept)
        result = minimize(J, AcceleratedGradient(), tol=1e-300, max_iter=5000)
        assert result.status == "stalled"
        assert result.gap <= 1e-10 * result.value


def test_nearly_nonsmooth_losses():
    """Where the risk is linear, curvature is only rounding error and must not raise L, nor lead to cycles."""
    for loss, reg, intercept in [
        (SmoothedHinge(1e-3), L1(), True),
        (SmoothedHinge(1e-3), Elastic(0.3), False),
        (Huber(0.05), L2(), True),
    ]:
        result = minimize(
            objective(loss, reg, 0.05, intercept), AcceleratedGradient(), tol=1e-6, max_iter=3000
        )
        assert result.status == "converged"


def test_exponentials_do_not_overflow():
    rng = np.random.default_rng(0)
    X, y = 30 * rng.standard_normal((20, 4)), np.where(rng.random(20) > 0.5, 1.0, -1.0)
    J = Objective(linear_risk(X, y, Exponential()), L2(), 1e-3)
    result = minimize(J, AcceleratedGradient(), tol=1e-4, max_iter=50)
    assert 0 <= result.lower <= result.value < np.inf


def test_a_start_outside_the_domain_is_projected():
    J = objective(Logistic(), Box(L2(), -0.1, 0.1))
    assert np.isfinite(next(AcceleratedGradient().iterates(J, np.full(4, 9.0))).value)


# ---------------------------------------------------------------- nonsmooth losses
@pytest.mark.parametrize(
    ("loss", "reg"), [(Hinge(), L2()), (Hinge(), Elastic(0.3)), (RocArea(), L2()), (Prbep(), L2())], ids=repr
)
def test_smoothed_losses_are_certified(loss, reg):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4))
    y = np.where(X @ W + rng.standard_normal(60) > 0.5, 1.0, -1.0)
    intercept = isinstance(loss, Hinge)
    J = Objective(linear_risk(X, y, loss, fit_intercept=intercept), reg, 0.02)
    best = minimize(J, Bundle(), tol=1e-8)
    result = minimize(J, Smoothing(inner=AcceleratedGradient()), tol=1e-4, max_iter=1000)
    assert result.status == "converged"
    assert result.lower <= best.value
    assert best.lower <= result.value <= best.value * (1 + 1.1e-4)


def test_smoothing_continues_from_a_saved_state():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), np.where(rng.random(40) < 0.4, 1.0, -1.0)
    J, solver = Objective(linear_risk(X, y, RocArea()), L2(), 0.05), Smoothing(inner=AcceleratedGradient())
    for it, after in pairwise(islice(solver.iterates(J, np.ones(3)), 12)):
        resumed = next(solver.resume(J, {name: np.array(a) for name, a in it.state().items()}))
        if resumed.info["mu"] == after.info["mu"]:
            np.testing.assert_array_equal(resumed.w, after.w)
        assert J.lower(resumed.cut) <= resumed.value


def test_paths_start_from_their_neighbors():
    X, y, _ = problem(Logistic())
    results = path(linear_risk(X, y, Logistic()), L2(), [1.0, 0.3, 0.1], solver=AcceleratedGradient())
    assert all(result.status == "converged" for result in results)


# ---------------------------------------------------------------- unsupported problems
def test_nonsmooth_losses_are_refused():
    with pytest.raises(UnsupportedProblem, match=r"AcceleratedGradient needs a smooth loss.*use Bundle"):
        minimize(objective(Hinge(), L2()), AcceleratedGradient())


@pytest.mark.parametrize(
    "wrong", [{"gamma_u": 1.0}, {"gamma_u": np.inf}, {"gamma_d": 0.9}, {"gamma_d": np.nan}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=r"AcceleratedGradient needs a finite gamma_[ud] >"):
        AcceleratedGradient(**wrong)
