"""SciPy's methods with riskmin's certificate."""

import threading

import numpy as np

import riskmin as rm
from helpers import Problem


def working():
    return [thread for thread in threading.enumerate() if thread.name == "scipy-minimizer"]


def test_nonsmooth_losses_end_with_a_valid_bound():
    obj = Problem(lam=1e-3, n=120).objective()
    best = rm.minimize(obj, tol=1e-9).value
    for method in rm.ScipyMinimizer.LIMITS:
        result = rm.minimize(obj, rm.ScipyMinimizer(method), tol=1e-12, max_iter=300)
        assert result.lower <= best * (1 + 1e-9) <= result.value * (1 + 2e-9)
        assert result.status != "converged" or result.gap <= 1e-12 * result.value


def test_a_run_that_is_stopped_leaves_no_thread():
    steps = rm.ScipyMinimizer().iterates(Problem(rm.Logistic()).objective(), np.zeros(4))
    next(steps)
    assert len(working()) == 1
    steps.close()
    assert not working()
