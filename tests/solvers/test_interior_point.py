"""The interior-point method: optima by cvxpy, zeros, tables of any scale, rows and columns."""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem


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


# ---------------------------------------------------------------- several outputs
@pytest.mark.parametrize(("loss", "size"), [(rm.Softmax(), 5), (rm.MulticlassHinge(), 5)])
def test_several_outputs_reach_the_optimum_of_cvxpy(loss, size):
    """The same optimum in any units, with intercepts: the penalty factors are those of scaled columns."""
    units = np.logspace(-size, size, 4)
    data = Problem(loss, rm.L1(), intercept=True)
    # |w|_1 of the columns X s with the factors s is that of the columns X
    risk = rm.linear_risk(data.X * units + units, data.y, loss, fit_intercept=True)
    J = rm.Objective(risk, rm.L1(np.repeat(units, 3)), data.lam)
    data.check(
        rm.minimize(J, rm.InteriorPoint() if loss.smooth else rm.Smoothing(rm.InteriorPoint()), tol=1e-4),
        tol=1e-4,
    )
