"""DualAccelerated: its rate with all constants, hard examples for cutting planes, projections."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import Problem
from riskmin.numerics.projections import project
from solver_cases import CORNERS

PLAIN = rm.DualAccelerated(restart=np.inf)
LOSSES = [*(loss for loss in CORNERS if loss != rm.Novelty()), rm.Huber(delta=0.3), rm.SmoothedHinge(mu=0.5)]


def drawn(loss, lam=0.05, **settings):
    return Problem(loss, lam=lam, n=30, weighted=True, **settings)


def smoothness_constant(X, c, lam):
    """L: the largest eigenvalue of X' C X / lam."""
    return float(np.linalg.eigvalsh((c[:, None] * X).T @ X)[-1]) / lam


def half_squared_diameter(loss, y, c, center):
    """D: the largest half squared distance from the center within the bounds."""
    dual = loss.interval_conjugate(y)
    return 0.5 * float(c @ np.maximum((dual.upper - center) ** 2, (center - dual.lower) ** 2))


# ---------------------------------------------------------------- the theorem
@settings(max_examples=10, deadline=None)
@given(st.sampled_from(LOSSES), st.integers(0, 10**6), st.sampled_from([1e-4, 1e-2, 1.0]), st.booleans())
def test_the_gap_decreases_at_the_rate_of_the_theorem(loss, seed, lam, intercept):
    """J(w_k) - D(u_k) <= D / A_k <= 6 L D / (k + 1)^2."""
    case = drawn(loss, lam, intercept=intercept, seed=seed)
    J, c = case.objective(), case.weights / case.weights.sum()
    L, rng = smoothness_constant(case.X, c, lam), np.random.default_rng(seed)
    steps = islice(PLAIN.iterates(J, rng.standard_normal(4)), 1, 40)
    for k, it in enumerate(steps, start=1):
        D = half_squared_diameter(loss, case.y, c, it.state()["center"])
        A = it.info["A"]
        assert (k + 1) ** 2 / (6 * L) * (1 - 1e-9) <= A
        assert it.value - J.lower(it.cut) <= D / A + 1e-11 * (1 + it.value)


@settings(max_examples=4, deadline=None)
@given(st.sampled_from(LOSSES[:5]), st.integers(0, 10**6), st.sampled_from([2.0, 100.0]))
def test_restarts_keep_the_order_of_the_number_of_steps(loss, seed, restart):
    """A gap of eps within sqrt(6 L D / eps) / (1 - restart^(-1/2)) steps, plus one for each restart."""
    case = drawn(loss, 0.01, intercept=True, seed=seed)
    J, c = case.objective(), case.weights / case.weights.sum()
    dual = loss.interval_conjugate(case.y)
    D = 0.5 * float(c @ (dual.upper - dual.lower) ** 2)
    steps, best, restarts, A = rm.DualAccelerated(restart).iterates(J, np.zeros(4)), np.inf, 0, 0.0
    for k, it in enumerate(islice(steps, 100)):
        restarts, A = restarts + (it.info["A"] < A), it.info["A"]
        best = min(best, it.value)
        eps = best - J.lower(it.cut)
        if eps > 1e-10 * best:
            bound = np.sqrt(6 * smoothness_constant(case.X, c, 0.01) * D / eps) / (1 - restart**-0.5)
            assert k <= bound + restarts + 1


# ---------------------------------------------------------------- C, theorems 2 and 5
def test_faster_than_line_search_bmrm_on_its_worst_case():
    """On the four points of theorem 2, ls-bmrm has a gap of order 1 / k, and this method one of 1 / k^2."""
    X, y = np.array([[-1.0], [-0.5], [0.5], [1.0]]), np.array([-1.0, -1.0, 1.0, 1.0])
    J = rm.Objective(rm.linear_risk(X, y, rm.Hinge()), rm.L2(), 1 / 16)
    L = 10 / 16 / (1 / 16)
    for k, it in enumerate(islice(PLAIN.iterates(J, np.zeros(1)), 1, 200), start=1):
        assert it.value >= 1 / 8 * (1 - 1e-12)
        assert it.value - J.lower(it.cut) <= 6 * L * 0.5 / (k + 1) ** 2
    k = 500
    slow = min(it.value for it in islice(rm.LineSearchBmrm().iterates(J, np.zeros(1)), k)) - 1 / 8
    fast = min(it.value for it in islice(PLAIN.iterates(J, np.zeros(1)), k)) - 1 / 8
    assert slow > 0.05 / k
    assert fast < 0.02 * slow


@pytest.mark.parametrize("n", [25, 60])
def test_faster_than_bmrm_on_its_worst_case(n):
    """The example of theorem 5, on which qp-bmrm has a gap of 1 / (2 k) for n steps."""
    sign = np.where(np.arange(1, n + 1) % 2, -1.0, 1.0)
    X = sign[:, None] * np.hstack([np.full((n, 1), np.sqrt(n)), n * np.eye(n)])
    J = rm.Objective(rm.linear_risk(X, sign, rm.Hinge()), rm.L2(), 1.0)
    D, L = 0.5, smoothness_constant(X, np.full(n, 1 / n), 1.0)
    assert pytest.approx(2 * n) == L
    for k, it in enumerate(islice(PLAIN.iterates(J, np.zeros(n + 1)), 1, 3 * n), start=1):
        assert it.value - J.lower(it.cut) <= 6 * L * D / (k + 1) ** 2 + 1e-13
    result = rm.minimize(J, rm.DualAccelerated(), tol=1e-6)
    assert result.value == pytest.approx(1 / (4 * n), rel=1e-6)
    slow = rm.minimize(J, rm.Bmrm(), np.eye(n + 1)[0] / np.sqrt(n), tol=1e-6)
    assert slow.value == pytest.approx(result.value, rel=1e-5)


# ---------------------------------------------------------------- optima


def test_rows_without_labels():
    J = rm.Objective(rm.linear_risk(np.ones((1, 1)), None, rm.Novelty()), rm.L2(), 2.0)
    assert rm.minimize(J, rm.DualAccelerated(), tol=1e-8).value == pytest.approx(0.75, rel=1e-8)


# ---------------------------------------------------------------- projections
@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 100.0]), st.booleans())
def test_projections_meet_the_optimality_conditions(n, seed, scale, ties):
    """Within the bounds, with the given sum, and t shifted by a constant except at the bounds."""
    rng = np.random.default_rng(seed)
    t, c = scale * rng.standard_normal(n), rng.random(n) + 0.01
    t = np.round(t) if ties else t
    lower, upper = -rng.integers(0, 3, n).astype(float), rng.integers(0, 3, n).astype(float)
    total = 0.0 if ties else float(rng.uniform(c @ lower, c @ upper))
    u = project(t, c, lower, upper, total)
    assert np.all((lower <= u) & (u <= upper))
    assert abs(c @ u - total) <= 1e-14 * (1 + c @ abs(u))
    inside = t[(lower < u) & (u < upper)] - u[(lower < u) & (u < upper)]
    lowest_shift = max([*(t - lower)[(u == lower) & (u < upper)], *inside], default=-np.inf)
    highest_shift = min([*(t - upper)[(u == upper) & (u > lower)], *inside], default=np.inf)
    assert lowest_shift <= highest_shift + 1e-11 * scale  # some shift between the two gives u


def test_projections_with_zero_weights_and_infeasible_sums():
    t, c = np.array([5.0, 0.3, -5.0]), np.array([0.0, 1.0, 1.0])
    np.testing.assert_allclose(project(t, c, -np.ones(3), np.ones(3)), [1.0, 1.0, -1.0])
    with pytest.raises(ValueError, match="the bounds allow sums from -2 to 2, not 3"):
        project(t, c, -np.ones(3), np.ones(3), 3.0)
