"""The risk: its derivative, its cursors, its intercept, and what it refuses."""

from itertools import islice

import numpy as np
import pytest

from riskmin import (
    L2,
    Bmrm,
    Bundle,
    Hinge,
    Lbfgs,
    LineSearchBmrm,
    Objective,
    Poisson,
    SquaredHinge,
    linear_risk,
    minimize,
)


# ---------------------------------------------------------------- regressions
@pytest.mark.parametrize("solver", [Bundle(), Lbfgs()], ids=repr)
def test_the_intercept_of_steep_losses_is_bracketed_without_overflow(solver):
    """From far out, a Newton step in b lands at 1e119, where tangents meet at heights that mean nothing."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 10))
    z = X @ rng.standard_normal(10)
    obj = Objective(linear_risk(X, np.floor(np.exp(z)), Poisson(), fit_intercept=True), L2(), 0.01)
    result = minimize(obj, solver, 3 * rng.standard_normal(10), tol=1e-6)
    assert result.status == "converged"
    assert result.value < obj.value(np.zeros(10))


def test_calls_in_between_leave_a_cursor_alone():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), np.where(rng.random(40) < 0.5, 1.0, -1.0)
    obj = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), 0.01)
    quiet = minimize(obj, Bundle(), tol=1e-6)

    def curious(it, row):
        for _ in range(5):
            obj.value(it.w + 1)

    result = minimize(obj, Bundle(), tol=1e-6, callback=curious)
    assert result.value == quiet.value
    np.testing.assert_array_equal(result.w, quiet.w)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_cuts_from_far_out_are_cuts(scale, intercept):
    """There R and g @ w are huge and cancel, and the intercept is known up to a slack only."""
    rng = np.random.default_rng(1)
    X, y = scale * rng.standard_normal((20, 3)), np.where(rng.random(20) < 0.5, 1.0, -1.0)
    for loss in (Hinge(margin=2.5), SquaredHinge()):
        obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 1e-6)
        least = obj.risk(np.zeros(3))[0]
        for solver in (Bundle(), Bmrm(), LineSearchBmrm()):
            for it in islice(solver.iterates(obj, 1e3 * rng.standard_normal(3)), 10):
                assert it.cut.b <= least * (1 + 1e-9)
