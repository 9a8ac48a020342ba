"""Cutting planes: optima by cvxpy, extreme values of lam, raw units, and models of contingency tables."""

from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

import riskmin as rm
from helpers import Problem
from solver_cases import BUNDLE_REGS


@pytest.mark.parametrize(
    ("reg", "lam"),
    [*((reg, 1e-6) for reg in BUNDLE_REGS[::2]), *((reg, 1e3) for reg in BUNDLE_REGS[1::4])],
    ids=lambda value: repr(value)[:50],
)
def test_extreme_regularization_strengths(reg, lam):
    """For the smallest lam, tolerances and exponentials are critical, and the gap must still close."""
    obj = Problem(rm.Hinge(), reg, lam=lam, n=60).objective()
    result = rm.minimize(obj, rm.Bundle(), tol=1e-5, max_iter=1000)
    assert result.status == "converged"
    for v in np.random.default_rng(0).standard_normal((20, 4)):
        assert result.lower <= obj.value(reg.prox(result.w + 0.1 * v, 0.0)) * (1 + 1e-12)


def test_inactive_cuts_are_pruned():
    """Not one by one, but before they become many."""
    obj = Problem(rm.Hinge(), rm.L1(), lam=1e-3, n=300).objective()
    steps = rm.Bundle(keep=3).iterates(obj, np.zeros(4))
    assert max(it.info["cuts"] for it, _ in zip(steps, range(40), strict=False)) <= 16


@pytest.mark.parametrize(
    ("reg", "lam"), [(rm.L1(), 1e-16), (rm.Box(rm.L1(), -1.0, 1.0), 1e-20), (rm.L1(), 1e-300)]
)
def test_a_linear_program_with_numbers_beyond_its_range(reg, lam):
    """For such a lam no proof is possible, but a finite point is returned without an error."""
    data = Problem(rm.Hinge(), reg, lam=lam, intercept=True)
    data.y[::7] *= -1  # no w separates them
    result = rm.minimize(data.objective(), rm.Bundle(), max_iter=15)
    assert 0 <= result.lower <= result.value < 1
    assert np.isfinite(result.w).all()


def test_a_linear_program_with_scaled_cuts():
    """For squares of large numbers, the bounds stay below the minimum."""
    rng = np.random.default_rng(0)
    X = 1e4 * rng.normal(size=(30, 3))
    y = 100 * X[:, 0] + 1e5 * rng.normal(size=30)
    obj = rm.Objective(rm.linear_risk(X, y, rm.Squared()), rm.L1(), 1e-6)
    result, reference = rm.minimize(obj, rm.Bundle(), max_iter=25), rm.minimize(obj, rm.CoordinateDescent())
    assert result.lower <= reference.value * (1 + 1e-9)
    assert result.value <= 1.01 * reference.value


# ---------------------------------------------------------------- weights that are hardly penalized
WEAK = 10.0 ** np.array([-18.0, -12.0, -6.0, 0.0])


class Planes:
    """max(0, A w + b) of tangents of |w - c|^2 / 2 + 10, which is bounded below in all directions."""

    dim = 4

    def __init__(self, seed, m=14):
        rng = np.random.default_rng(seed)
        points, center = rng.standard_normal((m, 4)), rng.standard_normal(4)
        self.A = points - center
        self.b = 10 + 0.5 * np.sum(self.A**2, axis=1) - np.sum(self.A * points, axis=1)

    def __call__(self, w):
        scores = np.append(self.A @ w + self.b, 0.0)
        k = np.argmax(scores)
        return float(scores[k]), np.append(self.A, np.zeros((1, 4)), axis=0)[k]


def exact_gap(planes, w, cut, weights):
    """The value at w less the bound of the cut for sum(weights w^2) / 2, in rational arithmetic."""
    A, b, w, a, weights = (np.vectorize(Fraction)(v) for v in (planes.A, planes.b, w, cut.a, weights))
    value = max(*(A @ w + b), Fraction(0)) + sum(weights * w * w) / 2
    return float(value), float(value - (Fraction(cut.b) - sum(a * a / weights) / 2))


@pytest.mark.parametrize("seed", range(5))
def test_nearly_unpenalized_weights_do_not_lose_the_minimizer(seed):
    planes = Planes(seed)
    result = rm.minimize(rm.Objective(planes, rm.L2(WEAK), 1.0), rm.Bundle(), tol=1e-9)
    assert result.status == "converged"
    value, gap = exact_gap(planes, result.w, result.cut, WEAK)
    assert result.value == pytest.approx(value, rel=1e-12)
    assert 0 <= gap <= 1.1e-9 * value + 1e-14


@pytest.mark.parametrize(
    ("reg", "tol"),
    [
        (rm.L1(WEAK), 1e-6),
        (rm.Elastic(1.0, WEAK), 1e-6),
        (rm.Box(rm.L1(WEAK), 0.0), 1e-6),
        (rm.Box(rm.L2(WEAK), -0.5, 0.5), 1e-3),  # the quadratic program of the bounds proves no more
    ],
    ids=["L1", "Elastic", "nonnegative L1", "boxed L2"],
)
def test_other_nearly_unpenalized_weights(reg, tol):
    obj = rm.Objective(Planes(3), reg, 1.0)
    result = rm.minimize(obj, rm.Bundle(), tol=tol, max_iter=100)
    assert result.status == "converged"
    for v in np.random.default_rng(0).standard_normal((100, 4)):
        assert result.lower <= obj.value(reg.prox(result.w + v, 0.0)) * (1 + 1e-12)
        assert result.cut.a @ v + result.cut.b <= obj.risk(v)[0] + 1e-9


@pytest.mark.parametrize("solver", [rm.LineSearchBmrm(), rm.Bmrm()], ids=repr)
def test_tangents_far_out_prove_no_false_bound(solver):
    """The slopes of two rows cancel in large columns, where a first step leads to weights of 1e12."""
    X = np.array([[2.6e7, 2.6e7, 5.7e-6, 5.7e-6], [2.6e7, 2.6e7, 2e-5, 2e-5]])
    obj = rm.Objective(rm.linear_risk(X, np.array([2.0, 1.0]), rm.Softmax(), n_outputs=3), rm.L2(), 5.6e-6)
    exact = rm.minimize(obj, rm.Newton(), tol=1e-9)
    assert exact.status == "converged"
    bounds = [obj.lower(it.cut) for it in islice(solver.iterates(obj, np.zeros(12)), 20)]
    assert max(bounds) <= exact.value
    # a saved state has the points of its cuts, not what was proved there
    *_, last = islice(solver.iterates(obj, np.zeros(12)), 5)
    again = islice(solver.resume(obj, last.state()), 5)
    assert max(obj.lower(it.cut) for it in again) <= exact.value
