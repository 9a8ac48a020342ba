"""Paths: each result equals that of a cold start and is certified, with fewer calls, in any order."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem
from riskmin.core import Hessian
from solver_cases import BUNDLE_REGS, METRIC, W4

LAMS = [0.03, 1.0, 0.001, 0.3]


def risk_of(loss, n=80, **settings):
    return Problem(loss, n=n, p=4, units=np.geomspace(1, 0.1, 4), **settings).objective().risk


def check(result, obj, tol=1e-5):
    """Check the bounds of a result against those of a cold start."""
    cold = rm.minimize(obj, tol=tol)
    assert cold.lower <= result.value * (1 + 1e-9)
    assert result.lower <= cold.value * (1 + 1e-9)
    assert obj.value(result.w) == pytest.approx(result.value, rel=1e-6)
    assert obj.lower(result.cut) == pytest.approx(result.lower, rel=1e-6, abs=1e-12)


# ---------------------------------------------------------------- agreement with cold starts
@pytest.mark.parametrize("intercept", [False, True])
def test_regularizers_of_a_path_may_differ(intercept):
    """Warm starts between all kinds of master problems and domains, from large lams to small and back."""
    risk = risk_of(rm.Hinge(), intercept=intercept)
    regs, lams = BUNDLE_REGS, np.geomspace(0.3, 0.01, len(BUNDLE_REGS))
    if intercept:
        regs, lams = regs[::-1], lams[::-1]
    for lam, reg, result in zip(lams, regs, rm.path(risk, regs, lams, tol=1e-3), strict=True):
        assert result.status == "converged"
        assert result.gap <= 1e-3 * result.value
        assert result.trace[-1]["lam"] == lam
        check(result, rm.Objective(risk, reg, lam), 1e-3)


@pytest.mark.parametrize(
    ("loss", "reg", "solver", "share"),
    [
        (rm.Hinge(), rm.L2(), rm.Bundle(), 0.75),
        (rm.Hinge(), rm.L1(), rm.Bundle(), 0.75),
        (rm.Hinge(), rm.L2(), rm.DualCoordinateAscent(), 0.75),
        (rm.Logistic(), rm.L2(), rm.Lbfgs(), 0.75),
        (rm.Logistic(), rm.L2(), rm.Newton(), 0.9),
        (rm.Squared(), rm.Quadratic(METRIC), rm.Lbfgs(), 0.75),
    ],
    ids=repr,
)
def test_warm_starts_save_calls(loss, reg, solver, share):
    risk = risk_of(loss, n=150)
    lams = np.geomspace(1, 1e-4, 7)
    warm = rm.path(risk, reg, lams, solver=solver)
    cold = [rm.minimize(rm.Objective(risk, reg, lam), solver) for lam in lams]
    # dual ascent evaluates J on its own schedule, so its work is measured in epochs
    work = [sum(r.trace[-1].get("epochs", r.trace[-1]["calls"]) for r in results) for results in (warm, cold)]
    assert work[0] < share * work[1]


def test_results_are_in_the_order_of_the_lams():
    risk = risk_of(rm.Hinge())
    by_lam = {lam: rm.path(risk, rm.L2(), [lam], tol=1e-6)[0].value for lam in LAMS}
    for lams in (LAMS, LAMS[::-1], sorted(LAMS), [0.3, 0.3]):
        values = [result.value for result in rm.path(risk, rm.L2(), lams, tol=1e-6)]
        np.testing.assert_allclose(values, [by_lam[lam] for lam in lams], rtol=2e-6)
    assert rm.path(risk, rm.L2(), []) == []


def test_the_solver_may_change_along_the_path():
    """`Auto` chooses for each regularizer, and for the tolerance of the path."""
    results = rm.path(risk_of(rm.Logistic()), [rm.L2(), rm.L1(), rm.L2()], [1e-1, 1e-2, 1e-3], tol=1e-4)
    assert [result.status for result in results] == ["converged"] * 3
    assert results[0].solver == results[2].solver != results[1].solver
    rng = np.random.default_rng(0)
    X = sp.random_array((300, 150), density=0.05, rng=rng, format="csr")
    J = rm.Objective(rm.linear_risk(X, np.where(rng.random(300) < 0.5, 1.0, -1.0), rm.Hinge()), rm.L2(), 1e-6)
    turns = [
        [row["solver_index"] for row in result.trace]
        for result in (
            rm.path(J.risk, J.reg, [J.lam], tol=1e-6)[0],
            rm.minimize(J, tol=1e-6),
            rm.minimize(J, rm.Auto().portfolio(J, 0.5)[0], tol=1e-6),
        )
    ]
    assert turns[0] == turns[1] != turns[2]


# ---------------------------------------------------------------- interrupted paths
def test_callback_ends_the_path_with_valid_bounds():
    risk = risk_of(rm.Hinge())
    lams_seen = []

    def second(iterate, row):
        lams_seen.append(row["lam"])
        return row["lam"] < 1.0

    results = rm.path(risk, rm.L2(), LAMS, tol=1e-6, callback=second)
    assert set(lams_seen) == {1.0, 0.3}
    assert [result.status for result in results] == ["interrupted", "converged", "interrupted", "interrupted"]
    for lam, result in zip(LAMS, results, strict=True):
        check(result, rm.Objective(risk, rm.L2(), lam))
        assert result.gap == pytest.approx(result.trace[-1]["gap"])


class InterruptedRisk:
    """A risk that raises KeyboardInterrupt at one of its calls."""

    def __init__(self, risk, interrupt_at=-1):
        self.risk, self.interrupt_at, self.calls, self.dim = risk, interrupt_at, 0, risk.dim

    def __call__(self, w):
        self.calls += 1
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt
        return self.risk(w)


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_ctrl_c_returns_valid_results(share):
    """In the second half of the calls, so that the checks before the first run are over."""
    risk, regs = risk_of(rm.Hinge()), [rm.L2(), rm.L2(), rm.Entropy(prior=0.1), rm.L1()]
    whole = InterruptedRisk(risk)
    rm.path(whole, regs, LAMS, tol=1e-6)
    results = rm.path(InterruptedRisk(risk, int(share * whole.calls)), regs, LAMS, tol=1e-6)
    assert "interrupted" in {result.status for result in results}
    for lam, reg, result in zip(LAMS, regs, results, strict=True):
        obj = rm.Objective(risk, reg, lam)
        assert obj.value(result.w) == pytest.approx(result.value, rel=1e-6)
        assert result.lower <= rm.minimize(obj, tol=1e-6).value * (1 + 1e-9)


def test_ctrl_c_before_the_first_result_propagates():
    with pytest.raises(KeyboardInterrupt):
        rm.path(InterruptedRisk(risk_of(rm.Hinge()), 1), rm.L2(), LAMS)


def test_limits_apply_to_each_fit():
    results = rm.path(risk_of(rm.Absolute()), rm.L2(), [1e-3, 1e-4], tol=1e-9, max_iter=2)
    assert [(result.status, result.n_iter) for result in results] == [("max_iter", 2)] * 2


# ---------------------------------------------------------------- lam_max
SPARSE = [
    (rm.L1(), rm.Logistic(), True),
    (rm.L1(W4), rm.Squared(), False),
    (rm.Elastic(eps=0.7), rm.Logistic(), False),
    (rm.Box(rm.L1(), -1.0, 2.0), rm.Squared(), True),
    (rm.Box(rm.Elastic(eps=0.2), 0.0), rm.Logistic(), True),
    (rm.Box(rm.L1(), 0.1, 1.0), rm.Squared(), True),
    (rm.Box(rm.L2(), 0.1, 1.0), rm.Logistic(), False),
    (rm.Box(rm.L1(weights=2.0), -3.0, -0.2), rm.Squared(), False),
]


@pytest.mark.parametrize(("reg", "loss", "intercept"), SPARSE, ids=repr)
def test_lam_max_is_the_smallest_lam_with_the_trivial_solution(reg, loss, intercept):
    risk = risk_of(loss, intercept=intercept)
    top = rm.lam_max(risk, reg)
    minimizer_of_reg = reg.conjugate_grad(np.zeros(risk.dim))
    above, below = (rm.Objective(risk, reg, lam) for lam in (1.0001 * top, 0.98 * top))
    assert above.value(minimizer_of_reg) <= rm.minimize(above, tol=1e-9).lower * (1 + 1e-8)
    result = rm.minimize(below, tol=1e-9)
    assert result.value < below.value(minimizer_of_reg) * (1 - 1e-9)


def test_grids_decrease_from_lam_max():
    risk = risk_of(rm.Squared())
    np.testing.assert_allclose(
        rm.lam_grid(risk, rm.L1(), 3), rm.lam_max(risk, rm.L1()) * np.array([1, 10**-1.5, 1e-3])
    )
    np.testing.assert_allclose(rm.lam_grid(risk, rm.L2(), 4), [1, 1e-2, 1e-4, 1e-6])  # without a lam_max
    flat = rm.linear_risk(np.ones((2, 1)), np.zeros(2), rm.Squared())
    assert rm.lam_max(flat, rm.L1()) == 0
    assert rm.lam_grid(flat, rm.L1(), 2).tolist() == [1.0, 1e-6]


# ---------------------------------------------------------------- all lam of a range
@pytest.mark.parametrize("reg", [rm.L2(), rm.L1(), rm.Elastic(0.5)], ids=repr)
@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Logistic(), rm.Absolute()], ids=repr)
def test_a_path_within_eps_covers_all_lam(loss, reg):
    eps, risk = 0.02, risk_of(loss, intercept=True)
    results = rm.path(risk, reg, [1e-3, 0.3], eps=eps)
    lams = [result.trace[-1]["lam"] for result in results]
    assert (lams[0], lams[-1]) == (0.3, 1e-3)
    assert lams == sorted(lams, reverse=True)
    assert len(lams) < 40
    for lam in np.exp(np.random.default_rng(0).uniform(np.log(1e-3), np.log(0.3), 20)):
        obj = rm.Objective(risk, reg, lam)
        result = results[max(k for k, at in enumerate(lams) if at >= lam)]  # of the next larger lam
        value = obj.value(result.w)
        assert value - rm.minimize(obj, tol=1e-6).lower <= eps * value * (1 + 1e-3)
    with pytest.raises(ValueError, match="give a number > 0, one regularizer"):
        rm.path(risk, [reg, reg], [1e-3, 0.3], eps=eps)


@dataclass(frozen=True)
class Less(rm.SquaredHinge):
    """A multiple of the squared hinge, with the conjugate of the whole loss, whose bounds are too high."""

    def value_grad(self, z, y, c):
        value, gradient = super().value_grad(z, y, c)
        return 0.9 * value, 0.9 * gradient

    def values(self, z, y):
        return 0.9 * super().values(z, y)

    def hessian(self, z, y, c, mu=0.0, center=None):
        return Hessian(0.9 * super().hessian(z, y, c).diagonal)


@pytest.mark.parametrize("reg", [rm.L1(), rm.L2()], ids=repr)
def test_a_wrong_conjugate_of_a_users_loss_certifies_nothing(reg):
    risk, lams = risk_of(Less()), [1e-1, 1e-2, 1e-3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = rm.path(risk, reg, lams, tol=0.2)
    for lam, result in zip(lams, results, strict=True):
        # the same minimum as that of the loss without the factor
        best = rm.minimize(rm.Objective(risk_of(rm.SquaredHinge()), reg, lam / 0.9), tol=1e-9).value
        assert result.lower <= 0.9 * best * (1 + 1e-8)
