"""Paths: each result is that of a cold start and certified by itself, for fewer calls, in any order."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from riskmin import (
    L1,
    L2,
    Absolute,
    Box,
    Bundle,
    DualGaussSeidel,
    Elastic,
    Entropy,
    Hinge,
    Lbfgs,
    Logistic,
    Objective,
    QNorm,
    Quadratic,
    Squared,
    lam_grid,
    lam_max,
    linear_risk,
    minimize,
    path,
)
from riskmin.core import Solver
from riskmin.problem.convexity import check
from riskmin.solvers.bundle.cutting_planes import CuttingPlaneModel

LAMS = [0.03, 1.0, 0.001, 0.3]


def risk_of(loss, n=120, p=6, seed=0, intercept=False):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * np.geomspace(1, 0.1, p)
    z = X @ rng.standard_normal(p) + 0.4 * rng.standard_normal(n) + 0.3
    y = z if getattr(loss, "task", "") == "regression" else np.where(z > 0, 1.0, -1.0)
    return linear_risk(X, y, loss, fit_intercept=intercept)


K = np.diag(np.arange(1.0, 7.0)) + 0.5
REGULARIZERS = [
    L2(),
    L2(weights=np.arange(1.0, 7.0)),
    L1(),
    Elastic(eps=0.3),
    Box(L1(), -0.5, 0.7),
    Box(L2(), 0.0),
    Entropy(prior=0.5, balanced=True),
    Entropy(prior=0.5, normalized=False, balanced=True),
    QNorm(q=1.5),
    Quadratic(K),
]


# ---------------------------------------------------------------- the same as from nothing
@pytest.mark.parametrize(
    ("reg", "intercept"), [(reg, False) for reg in REGULARIZERS] + [(L2(), True), (L1(), True)], ids=repr
)
def test_each_result_is_that_of_a_cold_start(reg, intercept):
    risk = risk_of(Hinge(), intercept=intercept)
    results = path(risk, reg, LAMS, tol=1e-5)
    for lam, result in zip(LAMS, results, strict=True):
        obj = Objective(risk, reg, lam)
        cold = minimize(obj, tol=1e-5)
        assert result.status == "converged"
        assert result.gap <= 1e-5 * result.value
        assert cold.lower <= result.value * (1 + 1e-9)
        assert result.lower <= cold.value * (1 + 1e-9)
        assert obj.value(result.w) == pytest.approx(result.value, rel=1e-9)
        assert obj.lower(result.cut) == pytest.approx(result.lower, rel=1e-9)
        assert result.trace[-1]["lam"] == lam


@pytest.mark.parametrize(
    ("loss", "reg", "solver"),
    [
        (Hinge(), L2(), Bundle()),
        (Hinge(), L1(), Bundle()),
        (Hinge(), L2(), DualGaussSeidel()),
        (Logistic(), L2(), Lbfgs()),
        (Squared(), Quadratic(K), Lbfgs()),
    ],
    ids=repr,
)
def test_what_is_known_saves_calls(loss, reg, solver):
    assert type(solver).warm_start is not Solver.warm_start
    risk = risk_of(loss, n=400)
    lams = np.geomspace(1, 1e-6, 13)
    walked = path(risk, reg, lams, solver=solver)
    cold = [minimize(Objective(risk, reg, lam), solver) for lam in lams]
    # dual ascent checks by a schedule of its own: what it works is epochs
    work = [sum(r.trace[-1].get("epochs", r.trace[-1]["calls"]) for r in found) for found in (walked, cold)]
    assert work[0] < 0.7 * work[1]


def test_the_bundle_needs_a_third_of_the_calls():
    """On dense rows with noisy labels, as in benchmarks/path.py."""
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((4000, 40)), rng.standard_normal(40)
    y = np.where(X @ w + 0.5 * np.linalg.norm(w) * rng.standard_normal(4000) > 0, 1.0, -1.0)
    risk, lams = linear_risk(X, y, Hinge()), np.geomspace(1, 1e-6, 13)
    walked = sum(r.trace[-1]["calls"] for r in path(risk, L2(), lams, solver=Bundle()))
    cold = sum(minimize(Objective(risk, L2(), lam), Bundle()).trace[-1]["calls"] for lam in lams)
    assert 3 * walked <= cold


def test_results_come_in_the_order_of_the_lams():
    risk = risk_of(Hinge())
    by_lam = {lam: path(risk, L2(), [lam], tol=1e-6)[0].value for lam in LAMS}
    for lams in (LAMS, LAMS[::-1], sorted(LAMS), [0.3, 0.3]):
        values = [result.value for result in path(risk, L2(), lams, tol=1e-6)]
        np.testing.assert_allclose(values, [by_lam[lam] for lam in lams], rtol=2e-6)
    assert path(risk, L2(), []) == []


def test_regularizers_of_a_path_may_differ():
    """From one program of the bundle to any other, and from one domain to another."""
    risk = risk_of(Hinge())
    lams = np.geomspace(0.3, 0.01, len(REGULARIZERS))
    results = path(risk, REGULARIZERS, lams, tol=1e-5)
    back = path(risk, REGULARIZERS[::-1], lams, tol=1e-5)
    for found, regs in ((results, REGULARIZERS), (back, REGULARIZERS[::-1])):
        for lam, reg, result in zip(lams, regs, found, strict=True):
            cold = minimize(Objective(risk, reg, lam), tol=1e-5)
            assert result.status == "converged"
            assert result.lower <= cold.value * (1 + 1e-9)
            assert cold.lower <= result.value * (1 + 1e-9)


def test_solvers_that_change_on_the_way_start_from_w():
    risk = risk_of(Logistic())
    results = path(risk, [L2(), L1(), L2()], [1e-1, 1e-2, 1e-3], tol=1e-4)
    assert [result.status for result in results] == ["converged"] * 3
    assert "Newton" in results[0].solver
    assert "Newton" not in results[1].solver
    assert "Newton" in results[2].solver


@pytest.mark.parametrize("reg", [L2(), L2(weights=[1.0, 3.0]), Quadratic(np.array([[2.0, 1.0], [1.0, 3.0]]))])
def test_inherited_cuts_have_the_program_of_fresh_ones(reg):
    """Rescaled for another lam, computed anew for another regularizer."""
    risk = linear_risk(np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, -1.0]]), np.array([1.0, -1.0, 1.0]), Hinge())
    before, steps = Objective(risk, reg, 0.5), []
    minimize(before, Bundle(), callback=lambda it, row: steps.append(it), tol=1e-9)
    state = steps[-1].state()
    for obj in (Objective(risk, reg, 0.02), Objective(risk, L2(), 0.02)):
        warm = CuttingPlaneModel.from_previous_run(Bundle(), obj, state, before)
        fresh = CuttingPlaneModel.empty(Bundle(), obj, state["w"])
        for a, b in zip(state["A"], state["b"], strict=True):
            fresh.add(type(steps[-1].cut)(a, b))
        np.testing.assert_allclose(warm.master.G, fresh.master.G, rtol=1e-12)
        assert obj.lower(warm.best_mixture()) == pytest.approx(obj.lower(fresh.best_mixture()), rel=1e-9)


# ---------------------------------------------------------------- an end before the end
def test_a_callback_ends_the_path_and_the_rest_is_still_bounded():
    risk = risk_of(Hinge())
    seen = []

    def second(iterate, row):
        seen.append(row["lam"])
        return row["lam"] < 1.0

    results = path(risk, L2(), LAMS, tol=1e-6, callback=second)
    assert set(seen) == {1.0, 0.3}
    assert [result.status for result in results] == ["interrupted", "converged", "interrupted", "interrupted"]
    for lam, result in zip(LAMS, results, strict=True):
        obj = Objective(risk, L2(), lam)
        least = minimize(obj, tol=1e-6).value
        assert result.lower <= least <= result.value * (1 + 1e-6)
        assert obj.value(result.w) == pytest.approx(result.value, rel=1e-9)
        assert obj.lower(result.cut) == pytest.approx(result.lower, rel=1e-9)
        assert result.gap == pytest.approx(result.trace[-1]["gap"])


class Rude:
    """A risk that is interrupted at one of its calls."""

    def __init__(self, risk, at):
        self.risk, self.at, self.calls, self.dim = risk, at, 0, risk.dim

    def __call__(self, w):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return self.risk(w)


@pytest.mark.parametrize("at", [4, 12, 20])
def test_ctrl_c_returns_what_is_done(at):
    risk = risk_of(Hinge())
    before = Rude(risk, -1)
    check(before, L2(), np.zeros(risk.dim))  # a risk of one's own is looked at before the first run
    results = path(Rude(risk, before.calls + at), [L2(), L2(), Entropy(prior=0.1), L1()], LAMS, tol=1e-6)
    assert "interrupted" in {result.status for result in results}
    for lam, reg, result in zip(LAMS, [L2(), L2(), Entropy(prior=0.1), L1()], results, strict=True):
        obj = Objective(risk, reg, lam)
        assert obj.value(result.w) == pytest.approx(result.value, rel=1e-6)
        assert result.lower <= minimize(obj, tol=1e-6).value * (1 + 1e-9)


def test_ctrl_c_before_anything_is_done_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        path(Rude(risk_of(Hinge()), 1), L2(), LAMS)


def test_limits_are_for_each():
    results = path(risk_of(Absolute()), L2(), [1e-3, 1e-4], tol=1e-9, max_iter=2)
    assert [(result.status, result.n_iter) for result in results] == [("max_iter", 2)] * 2


@pytest.mark.parametrize(
    ("reg", "lams", "message"),
    [
        ([L2()], [1.0, 2.0], "there are 1 regularizers for 2 lams: give one for each"),
        (L2(), [1.0, -1.0], "lam must be a finite number > 0, not -1.0"),
        (L2(), [np.nan], "lam must be a finite number > 0"),
    ],
)
def test_what_is_wrong_is_said(reg, lams, message):
    with pytest.raises(ValueError, match=message):
        path(risk_of(Hinge()), reg, lams)


# ---------------------------------------------------------------- lam_max
SPARSE = [
    L1(),
    L1(weights=np.arange(1.0, 7.0)),
    Elastic(eps=0.7),
    Box(L1(), -1.0, 2.0),
    Box(Elastic(eps=0.2), 0.0),
    Box(L1(), 0.1, 1.0),
    Box(L2(), 0.1, 1.0),
    Box(L1(weights=2.0), -3.0, -0.2),
]


@pytest.mark.parametrize("reg", SPARSE, ids=repr)
@pytest.mark.parametrize("loss", [Logistic(), Squared()], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_lam_max_is_where_the_least_regularizer_becomes_optimal(reg, loss, intercept):
    risk = risk_of(loss, intercept=intercept)
    top = lam_max(risk, reg)
    least = reg.conjugate_grad(np.zeros(risk.dim))
    above, below = (Objective(risk, reg, lam) for lam in (1.0001 * top, 0.98 * top))
    assert above.value(least) <= minimize(above, tol=1e-9).lower * (1 + 1e-8)
    found = minimize(below, tol=1e-9)
    assert found.value < below.value(least) * (1 - 1e-9)


@pytest.mark.parametrize("reg", [L2(), Quadratic(K), QNorm(), Entropy(), Box(L2(), -1.0, 1.0)], ids=repr)
def test_without_kinks_there_is_no_lam_max(reg):
    risk = risk_of(Logistic())
    with pytest.raises(ValueError, match="no lam_max: choose the largest lam yourself"):
        lam_max(risk, reg)
    np.testing.assert_allclose(lam_grid(risk, reg, 4), [1, 1e-2, 1e-4, 1e-6])


def test_grids_go_down_from_lam_max():
    risk = risk_of(Squared())
    np.testing.assert_allclose(lam_grid(risk, L1(), 3), lam_max(risk, L1()) * np.array([1, 10**-1.5, 1e-3]))
    flat = linear_risk(np.ones((2, 1)), np.zeros(2), Squared())
    assert lam_max(flat, L1()) == 0
    assert lam_grid(flat, L1(), 2).tolist() == [1.0, 1e-6]
    with pytest.raises(ValueError, match="at least one lam"):
        lam_grid(risk, L1(), 0)


# ---------------------------------------------------------------- any path at all
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    lams=st.lists(st.floats(1e-5, 10.0), min_size=1, max_size=6),
    regs=st.lists(st.sampled_from(REGULARIZERS), min_size=6, max_size=6),
    loss=st.sampled_from([Hinge(), Absolute(), Logistic(), Squared()]),
    intercept=st.booleans(),
)
def test_all_bounds_of_all_paths_are_bounds(seed, lams, regs, loss, intercept):
    risk = risk_of(loss, n=40, seed=seed, intercept=intercept)
    for lam, reg, result in zip(lams, regs, path(risk, regs[: len(lams)], lams, max_iter=300), strict=False):
        obj = Objective(risk, reg, lam)
        cold = minimize(obj, tol=1e-4, max_iter=300)
        assert result.lower <= cold.value * (1 + 1e-9)
        assert cold.lower <= result.value * (1 + 1e-9)
        assert obj.value(result.w) == pytest.approx(result.value, rel=1e-6, abs=1e-9)


def test_a_path_hands_over_for_its_own_tol_and_says_so():
    rng = np.random.default_rng(0)
    X = sp.csr_array(rng.standard_normal((200, 4)))
    risk = linear_risk(X, np.where(rng.random(200) < 0.5, 1.0, -1.0), Hinge())
    results = path(risk, L2(), [1e-2, 1e-4], tol=1e-5)
    assert [result.status for result in results] == ["converged"] * 2
    assert all("tol=1e-05)" in result.solver for result in results)
    assert all("DualGaussSeidel to the end" in r.solver or "steps, then" in r.solver for r in results)
