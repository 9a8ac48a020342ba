"""SciPy's methods with riskmin's certificate."""

import threading

import numpy as np

import riskmin as rm

METHODS = list(rm.ScipyMinimizer.LIMITS)
RNG = np.random.default_rng(4)
X = RNG.standard_normal((120, 4)) + np.array([0.0, 3.0, 0.0, 0.0])
Y = np.where(X @ [1.0, 0.2, -1.0, 0.0] + 0.5 * RNG.standard_normal(120) > 0.6, 1.0, -1.0)


def working():
    return [thread for thread in threading.enumerate() if thread.name == "scipy-minimizer"]


def test_nonsmooth_losses_end_with_a_valid_bound():
    obj = rm.Objective(rm.linear_risk(X, Y, rm.Hinge()), rm.L2(), 1e-3)
    best = rm.minimize(obj, tol=1e-9).value
    for method in METHODS:
        result = rm.minimize(obj, rm.ScipyMinimizer(method), tol=1e-12, max_iter=300)
        assert result.lower <= best * (1 + 1e-9) <= result.value * (1 + 2e-9)
        assert result.status != "converged" or result.gap <= 1e-12 * result.value


def test_a_run_that_is_stopped_leaves_no_thread():
    steps = rm.ScipyMinimizer().iterates(
        rm.Objective(rm.linear_risk(X, Y, rm.Logistic()), rm.L2(), 1e-2), np.zeros(4)
    )
    next(steps)
    assert len(working()) == 1
    steps.close()
    assert not working()
