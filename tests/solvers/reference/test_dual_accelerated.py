"""DualAccelerated: its rate with all constants, hard examples for cutting planes, projections."""

from itertools import islice

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import problem
from reference import optimum
from riskmin import (
    L1,
    L2,
    Absolute,
    Bmrm,
    Bundle,
    DualAccelerated,
    EpsilonInsensitive,
    Hinge,
    Huber,
    LineSearchBmrm,
    Logistic,
    Novelty,
    Objective,
    Prbep,
    Quantile,
    SmoothedHinge,
    SquaredHinge,
    linear_risk,
    minimize,
    path,
)
from riskmin.core import UnsupportedProblem
from riskmin.numerics.projections import project

PLAIN = DualAccelerated(restart=np.inf)
LOSSES = [
    Hinge(),
    Hinge(margin=2.5),
    Absolute(),
    Quantile(level=0.9),
    EpsilonInsensitive(epsilon=0.2),
    Huber(delta=0.3),
    SmoothedHinge(mu=0.5),
]


def objective(loss, lam=0.05, intercept=True, seed=0, reg=None):
    X, y, weights = problem(loss, seed=seed)
    risk = linear_risk(X, y, loss, sample_weight=weights, fit_intercept=intercept)
    return Objective(risk, reg or L2(), lam), X, y, weights / weights.sum()


def smoothness_constant(X, c, lam):
    """L: the largest eigenvalue of X' C X / lam."""
    return float(np.linalg.eigvalsh((c[:, None] * X).T @ X)[-1]) / lam


def half_squared_diameter(loss, y, c, center):
    """D: the largest half squared distance from the center within the bounds."""
    dual = loss.interval_conjugate(y)
    return 0.5 * float(c @ np.maximum((dual.upper - center) ** 2, (center - dual.lower) ** 2))


# ---------------------------------------------------------------- the theorem
@settings(max_examples=15, deadline=None)
@given(st.sampled_from(LOSSES), st.integers(0, 10**6), st.sampled_from([1e-4, 1e-2, 1.0]), st.booleans())
def test_the_gap_decreases_at_the_rate_of_the_theorem(loss, seed, lam, intercept):
    """J(w_k) - D(u_k) <= D / A_k <= 6 L D / (k + 1)^2."""
    J, X, y, c = objective(loss, lam, intercept, seed)
    L, rng = smoothness_constant(X, c, lam), np.random.default_rng(seed)
    steps = islice(PLAIN.iterates(J, rng.standard_normal(4)), 1, 60)
    for k, it in enumerate(steps, start=1):
        D = half_squared_diameter(loss, y, c, it.state()["center"])
        A = it.info["A"]
        assert (k + 1) ** 2 / (6 * L) * (1 - 1e-9) <= A
        assert it.value - J.lower(it.cut) <= D / A + 1e-11 * (1 + it.value)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(LOSSES[:5]), st.integers(0, 10**6), st.sampled_from([2.0, 100.0]))
def test_restarts_keep_the_order_of_the_number_of_steps(loss, seed, restart):
    """A gap of eps within sqrt(6 L D / eps) / (1 - restart^(-1/2)) steps, plus one for each restart."""
    J, X, y, c = objective(loss, 0.01, True, seed)
    dual = loss.interval_conjugate(y)
    D = 0.5 * float(c @ (dual.upper - dual.lower) ** 2)
    steps, best, restarts, A = DualAccelerated(restart).iterates(J, np.zeros(4)), np.inf, 0, 0.0
    for k, it in enumerate(islice(steps, 150)):
        restarts, A = restarts + (it.info["A"] < A), it.info["A"]
        best = min(best, it.value)
        eps = best - J.lower(it.cut)
        if eps > 1e-10 * best:
            bound = np.sqrt(6 * smoothness_constant(X, c, 0.01) * D / eps) / (1 - restart**-0.5)
            assert k <= bound + restarts + 1


# ---------------------------------------------------------------- C, theorems 2 and 5
def test_faster_than_line_search_bmrm_on_its_worst_case():
    """On the four points of theorem 2, ls-bmrm has a gap of order 1 / k, and this method one of 1 / k^2."""
    X, y = np.array([[-1.0], [-0.5], [0.5], [1.0]]), np.array([-1.0, -1.0, 1.0, 1.0])
    J = Objective(linear_risk(X, y, Hinge()), L2(), 1 / 16)
    L = 10 / 16 / (1 / 16)
    for k, it in enumerate(islice(PLAIN.iterates(J, np.zeros(1)), 1, 200), start=1):
        assert it.value >= 1 / 8 * (1 - 1e-12)
        assert it.value - J.lower(it.cut) <= 6 * L * 0.5 / (k + 1) ** 2
    k = 2000
    slow = min(it.value for it in islice(LineSearchBmrm().iterates(J, np.zeros(1)), k)) - 1 / 8
    fast = min(it.value for it in islice(PLAIN.iterates(J, np.zeros(1)), k)) - 1 / 8
    assert slow > 0.05 / k
    assert fast < 1e-3 * slow


@pytest.mark.parametrize("n", [25, 100])
def test_faster_than_bmrm_on_its_worst_case(n):
    """The example of theorem 5, on which qp-bmrm has a gap of 1 / (2 k) for n steps."""
    sign = np.where(np.arange(1, n + 1) % 2, -1.0, 1.0)
    X = sign[:, None] * np.hstack([np.full((n, 1), np.sqrt(n)), n * np.eye(n)])
    J = Objective(linear_risk(X, sign, Hinge()), L2(), 1.0)
    D, L = 0.5, smoothness_constant(X, np.full(n, 1 / n), 1.0)
    assert pytest.approx(2 * n) == L
    for k, it in enumerate(islice(PLAIN.iterates(J, np.zeros(n + 1)), 1, 3 * n), start=1):
        assert it.value - J.lower(it.cut) <= 6 * L * D / (k + 1) ** 2 + 1e-13
    result = minimize(J, DualAccelerated(), tol=1e-6)
    assert result.value == pytest.approx(1 / (4 * n), rel=1e-6)
    slow = minimize(J, Bmrm(), np.eye(n + 1)[0] / np.sqrt(n), tol=1e-6)
    assert slow.value == pytest.approx(result.value, rel=1e-5)


# ---------------------------------------------------------------- optima
@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_optima(loss, intercept):
    """With weights, some of them zero; also for sparse X."""
    J, X, y, c = objective(loss, 0.05, intercept)
    best = optimum(loss, L2(), X, y, c, 0.05, intercept)
    result = minimize(J, DualAccelerated(), tol=1e-7)
    assert result.status == "converged"
    assert result.value == pytest.approx(best, rel=2e-7)
    assert result.lower <= best * (1 + 1e-9)
    risk = linear_risk(sp.csr_array(X), y, loss, sample_weight=c, fit_intercept=intercept)
    sparse_result = minimize(Objective(risk, L2(), 0.05), DualAccelerated(), tol=1e-6)
    assert sparse_result.status == "converged"
    assert sparse_result.value == pytest.approx(best, rel=2e-6)


def test_weighted_features():
    J, *_ = objective(Hinge(), reg=L2(np.array([0.5, 1.0, 2.0, 0.7])))
    result, best = minimize(J, DualAccelerated(), tol=1e-7), minimize(J, Bundle(), tol=1e-9)
    assert result.status == "converged"
    assert result.value == pytest.approx(best.value, rel=2e-7)


def test_columns_in_fortran_order():
    X, y, _ = problem(Hinge())
    J = Objective(linear_risk(np.asfortranarray(X), y, Hinge(), fit_intercept=True), L2(), 0.05)
    assert minimize(J, DualAccelerated(), tol=1e-5).status == "converged"


def test_rows_without_labels():
    J = Objective(linear_risk(np.ones((1, 1)), None, Novelty()), L2(), 2.0)
    assert minimize(J, DualAccelerated(), tol=1e-8).value == pytest.approx(0.75, rel=1e-8)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [Hinge(), EpsilonInsensitive(epsilon=0.2)], ids=repr)
def test_iterates_are_valid(loss, intercept):
    """The value is J(w), cuts lie below R also at far points, and saved runs continue as before."""
    J, *_ = objective(loss, 0.05, intercept)
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30, 4)) * rng.exponential(30, (30, 1))
    risks = [J.risk(v)[0] for v in points]
    steps = list(islice(DualAccelerated(restart=4.0).iterates(J, np.ones(4)), 70))
    for it in steps[:5] + steps[-5:]:
        assert it.value == pytest.approx(J.value(it.w), rel=1e-12)
        assert all(it.cut.a @ v + it.cut.b <= r * (1 + 1e-12) for v, r in zip(points, risks, strict=True))
    for k in (0, 7, 31, 32, 60):
        saved = {name: np.array(a, copy=True) for name, a in steps[k].state().items()}
        resumed = next(DualAccelerated(restart=4.0).resume(J, saved))
        np.testing.assert_array_equal(resumed.w, steps[k + 1].w)
        assert resumed.value == steps[k + 1].value
        assert J.lower(resumed.cut) == J.lower(steps[k + 1].cut)


def test_high_accuracy():
    """Rounding neither stops the run early nor invalidates its bounds."""
    for loss in (Hinge(), Absolute()):
        J, *_ = objective(loss)
        result = minimize(J, DualAccelerated(), tol=1e-10, max_iter=5000)
        best = minimize(J, Bundle(), tol=1e-11, max_iter=3000)
        assert result.status == "converged"
        assert result.lower <= best.value * (1 + 1e-13)


def test_paths_start_from_their_neighbors():
    X, y, _ = problem(Hinge())
    results = path(linear_risk(X, y, Hinge()), L2(), [1.0, 0.3, 0.1], solver=DualAccelerated(), tol=1e-4)
    assert all(result.status == "converged" for result in results)


# ---------------------------------------------------------------- unsupported problems
@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge()], ids=repr)
def test_other_losses_are_refused(loss):
    with pytest.raises(
        UnsupportedProblem, match=r"needs a dual that is quadratic between bounds, unlike .*: use Bundle"
    ):
        minimize(objective(loss)[0], DualAccelerated())


def test_other_problems_are_refused():
    with pytest.raises(UnsupportedProblem, match=r"DualAccelerated needs L2\(\), not L1.*: use Bundle"):
        minimize(objective(Hinge(), reg=L1())[0], DualAccelerated())
    X, y, _ = problem(Hinge())
    with pytest.raises(UnsupportedProblem, match=r"DualAccelerated visits rows"):
        minimize(Objective(linear_risk(X, y, Prbep()), L2(), 0.1), DualAccelerated())
    for wrong in (1.0, 0.0, np.nan):
        with pytest.raises(ValueError, match=r"DualAccelerated needs restart > 1"):
            DualAccelerated(restart=wrong)


# ---------------------------------------------------------------- projections
@settings(max_examples=200, deadline=None)
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


def test_projections_equal_cvxpys():
    rng = np.random.default_rng(0)
    for n in (3, 40):
        t, c = 2 * rng.standard_normal(n), rng.random(n)
        lower, upper, total = -rng.random(n), rng.random(n), 0.1 * n * rng.random() - 0.05 * n
        u = cp.Variable(n)
        square = cp.Minimize(cp.sum(cp.multiply(c, cp.square(u - t))))
        bounds = [u >= lower, u <= upper, c @ u == 0.1 * total]
        options = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}
        cp.Problem(square, bounds).solve(solver=cp.CLARABEL, **options)
        np.testing.assert_allclose(project(t, c, lower, upper, 0.1 * total), u.value, atol=1e-6)


def test_projections_with_zero_weights_and_infeasible_sums():
    t, c = np.array([5.0, 0.3, -5.0]), np.array([0.0, 1.0, 1.0])
    np.testing.assert_allclose(project(t, c, -np.ones(3), np.ones(3)), [1.0, 1.0, -1.0])
    with pytest.raises(ValueError, match="the bounds allow sums from -2 to 2, not 3"):
        project(t, c, -np.ones(3), np.ones(3), 3.0)
