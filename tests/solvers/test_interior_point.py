"""The interior-point method: optima by cvxpy, zeros, tables of any scale, rows and columns."""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem, labels

LOSSES = [
    rm.Hinge(),
    rm.SquaredHinge(),
    rm.Absolute(),
    rm.Quantile(0.2),
    rm.EpsilonInsensitive(0.3),
    rm.Huber(),
    rm.Squared(),
]
SMOOTH = [rm.Logistic(), rm.Poisson(), rm.Exponential()]


def raw_table(seed, n=60, p=8):
    """Columns of sizes from 1e-6 to 1e6, far from zero, two of them collinear, one constant."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) + rng.uniform(-3, 3, p)
    X[:, -1], X[:, -2] = X[:, 0] + 2 * X[:, 1], 1.0
    z = X @ rng.standard_normal(p) + rng.standard_normal(n)
    return X * 10.0 ** rng.uniform(-6, 6, p), z - z.mean()


@pytest.mark.parametrize("loss", [*LOSSES, *SMOOTH], ids=repr)
def test_scales_of_columns_hardly_matter(loss):
    """First-order methods take thousands of steps on such tables, or never end."""
    k = [*LOSSES, *SMOOTH].index(loss)
    shape = [(60, 8), (12, 20)][k % 2]
    X, z = raw_table(k, *shape)
    y = labels(loss, z, np.random.default_rng(0))
    risk = rm.linear_risk(X, y, loss, fit_intercept=True)
    result = rm.minimize(rm.Objective(risk, rm.L1(), 1e-4), rm.InteriorPoint(), tol=1e-3, max_iter=60)
    assert result.status == "converged"
    assert result.lower <= result.value <= risk(np.zeros(shape[1]))[0] * (1 + 1e-12)


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


def test_many_small_weights_are_set_to_zero_together():
    rng = np.random.default_rng(0)
    X, z = rng.standard_normal((40, 300)), rng.standard_normal(40)
    result = rm.minimize(
        rm.Objective(rm.linear_risk(X, np.sign(z), rm.Hinge()), rm.L1(), 1e-3), rm.InteriorPoint()
    )
    # a vertex of the polyhedron: at most one weight per row, and some slack at a gap of 0.1 %
    assert result.status == "converged"
    assert np.count_nonzero(result.w) <= 60


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


@pytest.mark.parametrize("loss", [rm.Softmax(), rm.MulticlassHinge()])
def test_several_outputs_need_few_steps_on_raw_tables(loss):
    """Columns of units from 1e-6 to 1e6, far from zero, at the defaults."""
    X = raw_table(1)[0]
    rng = np.random.default_rng(1)
    y = np.argmax((X - X.mean(0)) / (X.std(0) + 1e-300) @ rng.normal(size=(X.shape[1], 3)), axis=1)
    result = rm.minimize(rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=True), rm.L1(), 1e-4))
    assert result.status == "converged"
    assert result.n_iter < 150
