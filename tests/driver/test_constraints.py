"""Constrained forms: optima by cvxpy, KKT conditions, certificates of infeasibility, units and bad input."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

import reference
import riskmin as rm

RNG = np.random.default_rng(7)
X = RNG.standard_normal((40, 5))
TRUE = np.array([1.0, 2.0, -1.0, 0.5, 0.0])
WIDE = RNG.standard_normal((15, 60))
SPARSE = np.zeros(60)
SPARSE[[3, 17, 40]] = [1.0, -2.0, 0.5]
FEATURES, P = RNG.standard_normal((80, 6)), RNG.random(80) ** 2
P = P / P.sum()


def best(rows, lower, upper, reg, intercept=False):
    """The minimum of Omega(w) for lower <= rows @ w + b <= upper by Clarabel, and w."""
    w, b = cp.Variable(rows.shape[1]), cp.Variable() if intercept else 0.0
    omega, domain = reference.omega(reg, w)
    z, low, high = rows @ w + b, np.isfinite(lower), np.isfinite(upper)
    limits = [z[low] >= lower[low]] * bool(low.any()) + [z[high] <= upper[high]] * bool(high.any())
    return cp.Problem(cp.Minimize(omega), [*limits, *domain]).solve(solver=cp.CLARABEL), w.value


def margins(y):
    """The bounds of scores with margins of at least one."""
    return np.where(y > 0, 1.0, -np.inf), np.where(y > 0, np.inf, -1.0)


def check_kkt(result, rows, gradient, lower, upper):
    """Stationarity, signs of the multipliers, complementarity."""
    u, z = result.multipliers, rows @ result.w + result.intercept
    np.testing.assert_allclose(gradient, -(u @ rows), atol=1e-4 * np.abs(gradient).max())
    inside = (z > lower + 1e-3) & (z < upper - 1e-3)
    assert np.abs(u[inside]).max(initial=0.0) <= 1e-6 * np.abs(u).max()
    assert (u[np.isinf(upper)] <= 0).all()
    assert (u[np.isinf(lower)] >= 0).all()


def check_farkas(result, rows, lower, upper, support=None):
    """For the multipliers u, u'z <= sum(u+ upper - u- lower) at feasible points, but u'X w is larger."""
    u = result.multipliers
    highest = sum(v * (hi if v > 0 else lo) for v, lo, hi in zip(u, lower, upper, strict=True) if v)
    # u' X w over the domain: at least -support(-X'u), or -|X'u| |w|
    least = -np.linalg.norm(u @ rows) * 0.99 * result.norm_bound if support is None else support(u @ rows)
    assert least > highest


# ---------------------------------------------------------------- hard margin
@pytest.mark.parametrize(
    ("unit", "form", "intercept"),
    [(1.0, sp.csr_array, True), (1.0, np.asarray, False), (1e-6, np.asarray, True), (1e6, np.asarray, False)],
)
def test_hard_margins_are_those_of_cvxpy(unit, form, intercept):
    y = np.sign(X @ TRUE + 0.3 * intercept)
    result = rm.hard_margin(form(unit * X), y, fit_intercept=intercept)
    minimum = best(X, *margins(y), rm.L2(), intercept)[0] / unit**2
    assert result.status == "converged"
    assert result.lower <= minimum * (1 + 1e-7)
    assert result.value == pytest.approx(minimum, rel=1e-5)
    assert (y * (unit * X @ result.w + result.intercept)).min() >= 1 - 1e-6
    check_kkt(result, unit * X, result.w, *margins(y))
    assert not intercept or abs(result.multipliers.sum()) <= 1e-6 * np.abs(result.multipliers).sum()


@pytest.mark.parametrize("intercept", [True, False])
def test_inseparable_classes_are_proved_to_be_so(intercept):
    y = np.where(np.random.default_rng(1).random(40) < 0.5, 1.0, -1.0)
    result = rm.hard_margin(X, y, fit_intercept=intercept)
    assert result.status == "infeasible"
    assert result.lower == np.inf
    assert result.norm_bound > 1e9
    assert f"{result.norm_bound:.3g}" in result.message
    check_farkas(result, X, *margins(y))
    assert not intercept or abs(result.multipliers.sum()) <= 1e-12 * np.abs(result.multipliers).sum()


# ---------------------------------------------------------------- basis pursuit
@pytest.mark.parametrize("units", [np.ones(15), np.geomspace(1e-6, 1e6, 15)], ids=["one", "many"])
def test_basis_pursuit_recovers_sparse_weights(units):
    result = rm.basis_pursuit(units[:, None] * WIDE, units * (WIDE @ SPARSE))
    assert result.status == "converged"
    assert result.lower <= 3.5 <= result.value * (1 + 1e-6)
    np.testing.assert_allclose(result.w, SPARSE, atol=1e-6)
    slopes = result.multipliers @ (units[:, None] * WIDE)  # -sign(w) where w != 0, else between -1 and 1
    assert np.abs(slopes).max() <= 1 + 1e-4
    np.testing.assert_allclose(slopes[[3, 17, 40]], [-1, 1, -1], atol=1e-4)


@pytest.mark.parametrize(
    "reg", [rm.L2(), rm.Quadratic(np.eye(60) + 0.1), rm.Elastic(0.5), rm.Box(rm.L1(), -1.5, 3.0)], ids=repr
)
def test_equalities_with_other_regularizers_have_the_optimum_of_cvxpy(reg):
    targets = WIDE @ SPARSE
    result = rm.basis_pursuit(WIDE, targets, reg)
    minimum, _ = best(WIDE, targets, targets, reg)
    assert result.status == "converged"
    assert result.value == pytest.approx(minimum, rel=1e-5)
    assert result.lower <= minimum * (1 + 1e-6)


def test_contradictory_targets_are_proved_to_be_so():
    y = np.random.default_rng(2).standard_normal(60)
    result = rm.basis_pursuit(WIDE.T, y)
    assert (result.status, result.lower) == ("infeasible", np.inf)
    check_farkas(result, WIDE.T, y, y)
    targets = np.concatenate([WIDE @ SPARSE] * 2)
    targets[4] += 1e-3  # two equal rows with targets that differ
    close = rm.basis_pursuit(np.vstack([WIDE, WIDE]), targets)
    assert close.status == "infeasible"
    check_farkas(close, np.vstack([WIDE, WIDE]), targets, targets)


# ---------------------------------------------------------------- maximum entropy
@pytest.mark.parametrize(
    ("width", "prior"),
    [
        (0.0, np.ones(80)),
        (0.05, np.arange(1.0, 81.0)),
        (np.array([0.0, 0.1, np.inf, 0.02, 0.0, 0.3]), np.arange(1.0, 81.0)),
    ],
    ids=["equalities", "boxes", "mixed"],
)
def test_distributions_are_those_of_cvxpy(width, prior):
    targets, mu = P @ FEATURES + 0.1, prior / prior.sum()
    uniform = np.ptp(prior) == 0
    result = rm.maximum_entropy(FEATURES, targets, width=width, prior=None if uniform else prior)
    minimum, w = best(FEATURES.T, targets - width, targets + width, rm.Entropy(mu))
    assert result.status == "converged"
    assert result.value == pytest.approx(minimum, rel=2e-5, abs=1e-7)
    assert result.lower <= minimum * (1 + 1e-5) + 1e-8
    np.testing.assert_allclose(result.w, w, atol=2e-5)
    assert np.all(np.abs(result.w @ FEATURES - targets) <= width + 1e-5)
    # a Gibbs distribution with the multipliers as its parameters
    gibbs = mu * np.exp(-FEATURES @ result.multipliers)
    np.testing.assert_allclose(result.w, gibbs / gibbs.sum(), rtol=1e-3)


def test_moments_in_other_units_give_the_same_distribution():
    units, offset = np.geomspace(1e-6, 1e6, 6), 1e3 * np.geomspace(1e-6, 1e6, 6)
    same, other = (rm.maximum_entropy(F, P @ F) for F in (FEATURES, FEATURES * units + offset))
    assert other.status == "converged"
    np.testing.assert_allclose(other.w, same.w, atol=1e-5)


def test_moments_outside_the_convex_hull_are_proved_to_be_so():
    """The multipliers separate the target from all outcomes: an exact proof, as the simplex is bounded."""
    targets = P @ FEATURES + 3
    result = rm.maximum_entropy(FEATURES, targets, width=0.5)
    assert (result.status, result.norm_bound) == ("infeasible", np.inf)
    check_farkas(result, FEATURES.T, targets - 0.5, targets + 0.5, support=np.min)
    die = np.arange(1.0, 5.0)[:, None]
    assert rm.maximum_entropy(die, [4.01]).status == "infeasible"
    edge = rm.maximum_entropy(die, [4.0])  # only one distribution
    assert edge.status == "converged"
    assert edge.w[3] == pytest.approx(1, abs=1e-5)


# ---------------------------------------------------------------- input
def test_mixed_bounds_are_equalities_boxes_and_none():
    rows = WIDE[:6]
    lower = np.array([1.0, -np.inf, 0.5, 0.0, -np.inf, -3.0])
    upper = np.array([1.0, -1.0, np.inf, 0.1, np.inf, -2.0])
    result = rm.minimize_constrained(rows, lower, upper, rm.L2())
    assert result.value == pytest.approx(best(rows, lower, upper, rm.L2())[0], rel=1e-5)
    check_kkt(result, rows, result.w, lower, upper)
    assert "at least" in result.message


def test_the_support_of_a_domain_is_the_largest_product():
    rng = np.random.default_rng(4)
    a = rng.standard_normal(4)
    lower, upper = np.array([-1.0, 0.0, -2.0, 1.0]), np.array([0.5, 3.0, 2.0, 1.0])
    for reg in (
        rm.Entropy(0.25),
        rm.Entropy([1.0, 2.0, 3.0, 4.0], balanced=True),
        rm.Box(rm.L2(), lower, upper),
    ):
        drawn = [a @ reg.prox(100 * rng.standard_normal(4), 0.0) for _ in range(300)]
        support = reg.domain_support(a)
        assert support - 0.1 * abs(support) <= max(drawn) <= support + 1e-9
    assert (rm.L2().domain_support(a), rm.L1().domain_support(0 * a)) == (np.inf, 0.0)
    assert rm.Entropy(1.0, normalized=False).domain_support(-np.abs(a)) == 0.0


# ---------------------------------------------------------------- values at feasible points
@pytest.mark.parametrize(("seed", "boxes"), [(seed, seed % 2 == 1) for seed in range(8)])
def test_the_value_is_that_of_a_feasible_point_in_any_units(seed, boxes):
    """The violation of a row may be small beside other targets, and still change the minimum."""
    rng = np.random.default_rng(seed)
    n, p = rng.integers(2, 5), rng.integers(6, 9)
    rows = rng.standard_normal((n, p)) * 10.0 ** rng.uniform(-3, 4, p) * 10.0 ** rng.uniform(-3, 4, (n, 1))
    z = rows @ (rng.standard_normal(p) * (rng.random(p) < 0.5))
    slack = 0.1 * np.abs(z) if boxes else 0.0
    result = rm.minimize_constrained(rows, z - slack, z + slack, rm.L1())
    assert result.status == "converged"
    assert result.value - result.lower <= 1e-6 * result.value
    scores = rows @ result.w
    excess = np.maximum(np.maximum(z - slack - scores, scores - z - slack), 0.0)
    assert np.all(excess <= 1e-9 * (np.abs(rows) @ np.abs(result.w) + np.abs(z)))
    # a linear program with columns and rows of the same size
    sizes = np.abs(rows).max(axis=1, keepdims=True)
    columns = np.abs(rows / sizes).max(axis=0)
    A, t, half = rows / sizes / columns, z / sizes[:, 0], slack / sizes[:, 0]
    both = np.hstack([A, -A])
    cost, bounds = np.tile(1 / columns, 2), np.concatenate([t + half, half - t])
    minimum = scipy.optimize.linprog(cost, np.vstack([both, -both]), bounds).fun
    assert result.value == pytest.approx(minimum, rel=1e-5)


@pytest.mark.parametrize("reg", [rm.L1(), rm.L2(), rm.Elastic(0.3)], ids=repr)
def test_a_run_that_starts_at_zero_proves_no_infeasibility(reg):
    """Every norm is large beside that of w = 0, at which a first step with a small penalty stays."""
    rng = np.random.default_rng(6)
    for _ in range(4):
        rows, w = rng.standard_normal((5, 18)), rng.standard_normal(18)
        assert rm.minimize_constrained(rows, rows @ w - 0.5, rows @ w + 0.5, reg).status == "converged"


def test_constrained_problems_end_at_their_time_limit():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((15, 20)) * 10.0 ** rng.uniform(-3, 4, 20)
    z = rows @ rng.standard_normal(20)
    signs = np.where(z > 0, 1.0, -1.0)
    results = [
        rm.minimize_constrained(rows, z, z, rm.L1(), max_seconds=0),
        rm.basis_pursuit(rows, z, max_seconds=0),
        rm.hard_margin(rows, signs, max_seconds=0),
        rm.maximum_entropy(rows, rows.mean(axis=0) + 1e-3, prior=rng.random(15) + 0.1, max_seconds=0),
    ]
    assert [result.status for result in results] == ["max_seconds"] * 4
    for result in results:
        assert np.isfinite(result.value)
        assert result.lower <= result.value
