"""Solvers for sparse weights: ProximalGradient, OwlQn and InteriorPoint."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import Problem

BOTH = [rm.ProximalGradient(), rm.OwlQn()]
both_solvers = pytest.mark.parametrize("solver", BOTH, ids=repr)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-3, 3), st.sampled_from(BOTH))
def test_any_scale(seed, log_scale, solver):
    """Data in any unit and lam weak or strong: the certified gap is reached."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20, 3)) * 10.0**log_scale
    y = np.where(rng.random(20) > 0.5, 1.0, -1.0)
    risk = rm.linear_risk(X, y, rm.SquaredHinge())
    lam = 10 ** rng.uniform(-2, 0) * np.abs(risk(np.zeros(3))[1]).max()
    assert rm.minimize(rm.Objective(risk, rm.L1(), lam), solver, tol=1e-6).status == "converged"


@both_solvers
def test_exponentials_that_overflow(solver):
    """A start from which the first step overflows."""
    J = Problem(rm.Exponential(), rm.Elastic(0.1), lam=0.1, n=30, units=10.0).objective()
    result = rm.minimize(J, solver, np.full(4, -1.0), tol=1e-6, max_iter=1000)
    assert result.lower <= result.value < np.inf
    assert result.value <= 2 * rm.minimize(J, rm.Bundle(), tol=1e-3).value


@pytest.mark.parametrize("solver", [*BOTH, rm.CoordinateDescent()], ids=repr)
def test_a_start_at_the_minimum(solver):
    """With lam so large that zero is optimal, and with a risk of zero."""
    result = rm.minimize(Problem(rm.Squared(), rm.L1(), lam=1e3).objective(), solver, tol=1e-9)
    assert (result.status, result.n_iter) == ("converged", 1)
    assert not result.w.any()
    zero_risk = rm.Objective(rm.linear_risk(np.eye(4), np.zeros(4), rm.Squared()), rm.L1(), 1.0)
    assert rm.minimize(zero_risk, solver, tol=1e-6).value == 0


@both_solvers
def test_a_user_risk_may_be_smooth(solver):
    class Own:
        dim = 2

        def __call__(self, w):
            return float((w - 1) @ (w - 1)), 2 * (w - 1)

    result = rm.minimize(rm.Objective(Own(), rm.L1(), 0.5), solver, tol=1e-9)
    np.testing.assert_allclose(result.w, 0.75, atol=1e-6)


# ---------------------------------------------------------------- the interior-point method
@pytest.mark.parametrize("X", [np.eye(40)[:25], sp.eye_array(40, format="csr")[:25]], ids=["dense", "sparse"])
@pytest.mark.parametrize("loss", [rm.Absolute(), rm.Squared(), rm.Hinge()], ids=repr)
def test_weights_that_are_zero_at_the_minimum_are_zero(loss, X):
    y = np.where(np.arange(25) % 3 == 0, 2.0, -0.5)
    y = np.sign(y) if loss.task == "classification" else y
    # without coupling of the rows, w_i moves if the slope of row i at 0 exceeds lam
    lam = 1.5 / 25
    result = rm.minimize(rm.Objective(rm.linear_risk(X, y, loss), rm.L1(), lam), rm.InteriorPoint(), tol=1e-6)
    slopes = np.abs(loss.value_grad(np.zeros(25), y, np.full(25, 1 / 25))[1])
    assert result.status == "converged"
    np.testing.assert_array_equal(result.w[:25] != 0, slopes > lam)
    assert not result.w[25:].any()


@pytest.mark.parametrize("loss", [rm.Softmax(), rm.MulticlassHinge()], ids=repr)
def test_several_outputs_reach_the_optimum_of_cvxpy(loss):
    """The same optimum in any units, with intercepts: the penalty factors are those of scaled columns."""
    units = np.logspace(-5, 5, 4)
    data = Problem(loss, rm.L1(), intercept=True)
    # |w|_1 of the columns X s with the factors s is that of the columns X
    risk = rm.linear_risk(data.X * units + units, data.y, loss, fit_intercept=True)
    J = rm.Objective(risk, rm.L1(np.repeat(units, 3)), data.lam)
    solver = rm.InteriorPoint() if loss.smooth else rm.Smoothing(rm.InteriorPoint())
    data.check(rm.minimize(J, solver, tol=1e-4), tol=1e-4)
