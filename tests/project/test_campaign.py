"""The campaign: exact arithmetic compared with riskmin, and bounds compared with exact arithmetic."""

import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks.campaign.check import check, parts
from benchmarks.campaign.minimum import exact_minimum
from benchmarks.campaign.problems import MULTI_OUTPUT, NON_DECOMPOSABLE, SINGLE_OUTPUT, draw

import riskmin as rm
from helpers import Problem

ROOT = Path(__file__).parents[2]

# Seeds of problems that once had bounds above the minimum, wrong values or errors.
FORMER_FAILURES = [26, 64, 85, 678, 811, 9391, 10191, 100256, 2001241, 2003737]
SLOW_FORMER_FAILURES = [100014, 100139, 100457, 100494, 101012, 101489, 200244, 200805]
SLOW_FORMER_FAILURES += [300124, 400782, 1001909, 2000209]


@cache
def drawn():
    """The first problems of each loss."""
    by_loss = {}
    for seed in range(800):
        problem = draw(seed)
        if not problem.kernel:
            by_loss.setdefault(repr(problem.loss), []).append(problem)
    return by_loss


@pytest.mark.parametrize("loss", [*SINGLE_OUTPUT, *NON_DECOMPOSABLE, *MULTI_OUTPUT], ids=repr)
def test_exact_values_agree_with_the_library(loss):
    """Two independent implementations agree on J for every loss and most regularizers."""
    checked = 0
    for problem in drawn()[repr(loss)][:3]:
        try:
            J = problem.objective
        except ValueError:  # the labels are refused
            continue
        w = np.random.default_rng(1).standard_normal(J.risk.dim) / (1 + abs(problem.X).max())
        w = J.reg.prox(w, 0.0)
        exact = float(problem.value(*parts(problem, J, w)))
        assert J.value(w) == pytest.approx(exact, rel=1e-6, abs=1e-9 * (1 + abs(exact)))
        checked += 1
    assert checked


@pytest.mark.parametrize("loss", [rm.Hinge(), rm.SquaredHinge(), rm.Squared(), rm.Absolute()], ids=repr)
def test_exact_minimum_agrees_with_the_library(loss):
    checked = 0
    for problem in drawn()[repr(loss)]:
        one_class = len(set(problem.y)) == 1 and not isinstance(loss, rm.Squared | rm.Absolute)  # refused
        minimum = exact_minimum(problem) if checked < 2 and not one_class else None
        if minimum is not None:
            result = rm.minimize(problem.objective, tol=1e-9)
            assert Fraction(result.lower) <= minimum <= result.value * (1 + 1e-9) + 1e-12
            checked += 1
    assert checked


@pytest.mark.parametrize("seed", FORMER_FAILURES)
def test_problems_of_fixed_bugs(seed):
    assert check(seed).failures == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [*SLOW_FORMER_FAILURES, *range(6)])
def test_sample_of_the_campaign(seed):
    assert check(seed).failures == []


def test_bound_is_valid_after_a_large_decrease_of_the_objective():
    """J decreases to 1e-12 of its first value: the bound must not contain rounding errors of the latter."""
    X = np.array([[1.053728699684143], [-1.6771436929702759], [0.15706393122673035]])
    y, lam = np.array([-1.0, 1.0, -1.0]), 1.899855866468156e-12
    J = rm.Objective(rm.linear_risk(X, y, rm.Hinge(), fit_intercept=True), rm.L2(), lam)
    # at the minimum, the two closest rows of different classes are at their margins
    w = 2 / (Fraction(X[1, 0]) - Fraction(X[2, 0]))
    minimum = Fraction(lam) * w * w / 2
    for solver in ("dual_accelerated", "newton", "smoothing", "bundle", "auto"):
        result = rm.minimize(J, solver)
        assert Fraction(result.lower) <= minimum <= Fraction(result.value) * (1 + Fraction(1e-9))
        assert J.lower(result.cut) == pytest.approx(result.lower, rel=1e-12, abs=0)


def test_tight_bounds_are_proved():
    """The rounding allowance is small compared with relevant gaps."""
    rows = Problem(n=200, p=10)
    for loss in (rm.Hinge(), rm.Logistic(), rm.RocArea()):
        risk = rm.linear_risk(rows.X, rows.y, loss, fit_intercept=loss.separable)
        result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), tol=1e-11, atol=0.0, max_iter=2000)
        assert result.gap <= 1e-11 * result.value


@pytest.mark.parametrize(
    ("solver", "intercept"),
    [
        *((rm.Bundle(), True), (rm.Bmrm(), False), (rm.LineSearchBmrm(), True)),
        *((rm.KernelDual(), False), (rm.KernelDual(), True)),
    ],
)
def test_kernel_scores_follow_from_the_coefficients(solver, intercept):
    """Solvers update scores and coefficients separately: results refer to the coefficients alone."""
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((30, 2)) * 30)
    y = X[:, 0] * 1e-3 + rng.standard_normal(30)
    risk, reg = rm.kernel_risk(X, y, rm.Absolute(), rm.DotProduct(), fit_intercept=intercept)
    result = rm.minimize(rm.Objective(risk, reg, 1e-9), solver, tol=1e-9, max_iter=200)
    K = X @ X.T
    (z, beta), (gamma, cut_coefficients) = (np.split(half, 2) for half in (result.w, result.cut.a))
    for products, coefficients in ((z, beta), (cut_coefficients, gamma)):
        # rounding of one product, not of hundreds of updates
        rounding = 2e-16 * np.abs(K) @ np.abs(coefficients)
        assert np.all(np.abs(products - K @ coefficients) <= rounding)


def test_every_promise_names_a_test_that_is_there():
    page = (ROOT / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", page))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []
    targets = re.findall(r"`make ([\w-]+)`", page)
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
