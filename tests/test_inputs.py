"""No fit, prediction, certificate or check changes one bit of its inputs, in any storage.

Sparse data with unsorted or duplicate entries give the result of their canonical form.
"""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin
from helpers import ALL_LOSSES, LIST_LOSSES, MANY_LOSSES, lengths, problem, risk_of
from riskmin import L1, L2, SOLVERS, Hinge, Logistic, Objective, Softmax, linear_risk, minimize
from riskmin.core import UnsupportedProblem
from riskmin.testing import check_inputs
from riskmin.testing.inputs import bits, storages

SPARSE = "CSR", "CSR, duplicates", "CSC", "CSC, duplicates"


def sparse_problem(loss, n=60, p=7):
    """A problem with zeros in X, and offsets and scales of the columns that solvers take out."""
    X, y, weights = problem(loss, n, p)
    rng = np.random.default_rng(1)
    shape = X.shape
    X = np.where(rng.random(shape) < 0.5, X * 10.0 ** rng.integers(-1, 2, p) + rng.integers(0, 3, p), 0.0)
    return X, y, weights


def run(X, y, weights, w0, *, loss, solver=None, reg=None, max_iter=20, **settings):
    """The point, value and bound of a run; None where the solver does not support the problem."""
    J = Objective(risk_of(loss, X, y, weights, **settings), reg or L2(np.linspace(1, 2, len(w0))), 0.1)
    try:
        result = minimize(J, solver, w0, tol=1e-6, max_iter=max_iter)
    except UnsupportedProblem:
        return None
    return np.concatenate([result.w, [result.value, result.lower]])


def check_run(loss, formats=(), **settings):
    X, y, weights = sparse_problem(loss)
    w0 = np.full(risk_of(loss, X, y, weights).dim, 0.01)
    check_inputs(run, X, y, weights, w0, loss=loss, formats=formats, **settings)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("loss", [Hinge(), Logistic(), Softmax()], ids=repr)
def test_solvers_change_nothing(name, loss):
    check_run(loss, solver=SOLVERS[name])


@pytest.mark.parametrize("loss", [*ALL_LOSSES, *MANY_LOSSES, *LIST_LOSSES], ids=repr)
def test_default_runs_of_every_loss_change_nothing(loss):
    check_run(loss, formats=SPARSE)


@pytest.mark.parametrize("name", riskmin.REGULARIZERS)
def test_default_runs_of_every_regularizer_change_nothing(name):
    check_run(Logistic(), formats=SPARSE, reg=riskmin.REGULARIZERS[name])
