"""The risk: its derivative, its cursors, its intercept, and what it refuses."""

import numpy as np
import pytest

from riskmin import L2, Bundle, Hinge, Lbfgs, Objective, Poisson, linear_risk, minimize


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
