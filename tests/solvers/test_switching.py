"""Switching from one solver to another that is faster."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest

import riskmin as rm
from helpers import Problem


def hard():
    """A problem with many epochs for dual ascent, since lam is tiny."""
    return Problem(lam=1e-5, n=120, p=5).objective()


@dataclass(frozen=True)
class Falls:
    """A solver whose gap decreases by a factor in each pass, on any problem; its point is always w0."""

    factor: float
    rows: int = 1000

    def iterates(self, obj, w0):
        value, _, _ = obj(w0)
        zero = np.zeros_like(w0)
        for k in range(self.rows):
            obj.count.calls += 1
            # not a cut of the risk, which is not checked here
            cut = rm.Cut(zero, value * (1 - 0.9 * self.factor**k))
            yield rm.Iterate(w0, value, cut, {})


def switched(solver, obj, max_iterates=200):
    """The number of iterates before the second solver takes over; None if it does not."""
    steps = islice(solver.iterates(obj, np.zeros(obj.risk.dim)), max_iterates)
    return next((k for k, it in enumerate(steps) if it.info["solver"] == 2), None)


def test_it_switches_after_a_stall_and_not_during_fast_progress():
    obj = hard()
    stalls = rm.Switching(Falls(0.999), rm.Bundle(), passes_per_digit=8.0)
    assert 2 <= switched(stalls, obj) <= 8
    fast = rm.Switching(Falls(0.1), rm.Bundle(), passes_per_digit=8.0)
    assert switched(fast, obj, 14) is None
    # 10 passes per digit: worth switching to a solver that needs one, but not to one that needs 100
    slow = Falls(10**-0.1)
    assert switched(rm.Switching(slow, rm.Bundle(), tol=1e-6, passes_per_digit=1.0), obj) is not None
    assert switched(rm.Switching(slow, rm.Bundle(), tol=1e-6, passes_per_digit=100.0), obj, 60) is None


@pytest.mark.parametrize(
    ("loss", "intercept"), [(rm.Hinge(), True), (rm.Hinge(), False), (rm.Absolute(), True)], ids=repr
)
def test_dual_ascent_stays_where_the_bound_rises_before_the_gap_falls(loss, intercept):
    """With fewer rows than columns the gap is nearly J for many epochs, and then falls fast."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 200))
    y = np.where(X[:, 0] + rng.standard_normal(60) > 0, 1.0, -1.0)
    obj = rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=intercept), rm.L2(), 1e-6)
    result = rm.minimize(obj, rm.Switching(rm.DualCoordinateAscent(), rm.Newton(), tol=1e-6), tol=1e-6)
    assert result.status == "converged"
    assert {row["solver"] for row in result.trace} == {1.0}


def test_a_first_solver_that_ends_is_followed_by_the_second():
    obj = hard()
    assert switched(rm.Switching(Falls(0.1, rows=3), rm.Bundle()), obj) == 3
    assert switched(rm.Switching(Falls(0.1, rows=0), rm.Bundle()), obj) == 0


def test_a_resumed_run_continues_across_the_switch():
    obj = hard()
    solver = rm.Switching(rm.DualCoordinateAscent(), rm.Newton(), tol=1e-6)
    steps = list(islice(solver.iterates(obj, np.zeros(5)), 12))
    switch = next(k for k, it in enumerate(steps) if it.info["solver"] == 2)
    assert 1 < switch < 10
    for k in (1, switch - 1, switch, switch + 1):
        state = {name: np.atleast_1d(np.array(a)) for name, a in steps[k].state().items()}
        resumed = list(islice(solver.resume(obj, state), len(steps) - k - 1))
        for one, other in zip(steps[k + 1 :], resumed, strict=True):
            assert one.info["solver"] == other.info["solver"]
            assert one.value == pytest.approx(other.value, rel=1e-9)
            # the best cut of before is not taken from the state
            assert obj.lower(other.cut) <= obj.lower(one.cut) * (1 + 1e-6) + 1e-9


def test_solvers_without_a_warm_start_or_a_state():
    obj = Problem(rm.Logistic(), lam=0.05).objective()
    result = rm.minimize(
        obj, rm.Switching(Falls(1.0, rows=8), rm.Lbfgs(), passes_per_digit=8.0), tol=1e-9, max_iter=200
    )
    assert result.trace[-1]["solver"] == 2
    assert next(rm.Switching(Falls(1.0), rm.Lbfgs()).iterates(obj, np.zeros(4))).state is None
