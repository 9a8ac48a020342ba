"""What the methods of the papers do not solve, and the sentences that name what does."""

import numpy as np
import pytest

import riskmin as rm
from riskmin import L1, L2, Hinge, Logistic, Objective, Squared, linear_risk, minimize
from riskmin.core import UnsupportedProblem

RNG = np.random.default_rng(0)
X, Y, K = RNG.standard_normal((20, 4)), np.where(np.arange(20) % 2, 1.0, -1.0), np.arange(20.0) % 3
KERNEL_RISK, KERNEL_REG = rm.kernel_risk(X, Y, Logistic())


def run(solver, loss, reg=None, y=Y, **settings):
    return minimize(Objective(linear_risk(X, y, loss, **settings), reg or L2(), 0.1), solver)


def online(**changes):
    return rm.online(**({"X": X, "y": Y, "reg": L2()} | changes))


def partial_fit(y, classes=None, again=()):
    model = rm.OnlineClassifier().partial_fit(X, y, classes)
    for arguments in again:
        model.partial_fit(X[:1], *arguments)


SMOOTH, BIAS = rm.AcceleratedGradient(), rm.DualAccelerated()
RIDGE, GAP, ASCENT = rm.DualConjugateGradient(), rm.ExcessiveGap(), rm.DualGaussSeidel()
PROBLEMS = [
    (SMOOTH, (Hinge(),), {}, r"AcceleratedGradient needs a smooth loss.*use Bundle"),
    *(
        (BIAS, (loss,), {}, r"needs a dual that is quadratic between bounds, unlike .*: use Bundle")
        for loss in (Logistic(), rm.SquaredHinge())
    ),
    (BIAS, (Hinge(), L1()), {}, r"DualAccelerated needs L2\(\), not L1.*: use Bundle"),
    (BIAS, (rm.Prbep(),), {}, "DualAccelerated visits rows"),
    (RIDGE, (Hinge(),), {}, r"use .*Newton"),
    (RIDGE, (Squared(), L1()), {}, r"use .*Newton"),
    (RIDGE, (Squared(),), {"fit_intercept": True}, r"use .*Newton"),
    (GAP, (rm.ChainMaxMargin(), L1(), K), {"lengths": [8, 12]}, r"L2.*use Bundle"),
    (GAP, (Hinge(),), {"fit_intercept": True}, "use DualAccelerated"),
    (GAP, (rm.ChainMaxMargin(rescaled=True), None, K), {"lengths": [8, 12]}, "use Bundle"),
    (rm.Pegasos(batch_size=5), (Hinge(),), {"fit_intercept": True}, "without an intercept"),
    (rm.Pegasos(), (Hinge(), L1()), {}, "L2 and Quadratic"),
    (rm.ScipyMinimizer(), (Logistic(), L1()), {}, "a regularizer with a gradient: use Auto"),
]


@pytest.mark.parametrize(("solver", "problem", "settings", "words"), PROBLEMS)
def test_unsupported_problems_name_a_solver(solver, problem, settings, words):
    with pytest.raises(UnsupportedProblem, match=words):
        run(solver, *problem, **settings)


CALLS = [
    (
        lambda: minimize(Objective(KERNEL_RISK, KERNEL_REG, 0.1), rm.ScipyMinimizer()),
        UnsupportedProblem,
        "not of a kernel: use KernelDual",
    ),
    *(
        (
            lambda reg=reg: minimize(Objective(linear_risk(X, Y, Hinge()), reg, 0.1), ASCENT, np.zeros(4)),
            TypeError,
            r"transfer function, which .* has not: use CoordinateDescent",
        )
        for reg in (L1(), rm.Box(L1(), -1.0, 1.0))
    ),
    *(
        (lambda wrong=wrong: rm.AcceleratedGradient(**wrong), ValueError, "needs a finite gamma_[ud] >")
        for wrong in ({"gamma_u": 1.0}, {"gamma_u": np.inf}, {"gamma_d": 0.9}, {"gamma_d": np.nan})
    ),
    *(
        (lambda wrong=wrong: rm.DualAccelerated(restart=wrong), ValueError, "needs restart > 1")
        for wrong in (1.0, 0.0, np.nan)
    ),
    *(
        (lambda wrong=wrong: rm.Pegasos(**wrong), ValueError, "whole number")
        for wrong in ({"batch_size": 0}, {"batch_size": 2.5}, {"seed": -1})
    ),
    (lambda: rm.ScipyMinimizer("Nelder-Mead"), ValueError, "not one of L-BFGS-B"),
    (lambda: rm.Equality(L1(), np.ones(3)), TypeError, "L2"),
    (lambda: rm.Equality(L2(), np.ones((2, 3))), ValueError, "independent"),
    (lambda: online(rate=0.0), ValueError, "rate"),
    (lambda: online(epochs=0), ValueError, "epochs"),
    (lambda: online(y=np.arange(20.0)), ValueError, "OnlineClassifier"),
    (lambda: online(y=np.ones(3)), ValueError, "one label per row"),
    (lambda: online(v0=np.zeros(9)), ValueError, "one number per column"),
    (lambda: online(reg=L1()), TypeError, "transfer function"),
    (lambda: rm.OnlineClassifier(rate=-1).fit(X, Y), ValueError, "rate"),
    (lambda: rm.OnlineClassifier(epochs=1.5).fit(X, Y), ValueError, "epochs"),
    (lambda: rm.OnlineClassifier(max_seconds=-1).fit(X, Y), ValueError, "max_seconds"),
    (lambda: partial_fit(Y), ValueError, "give classes"),
    (lambda: partial_fit(Y, [-1.0, 1.0], [([3.0],)]), ValueError, "not among"),
    (lambda: partial_fit(Y, [-1.0, 1.0], [(Y[:1], [1.0, 2.0])]), ValueError, "differs"),
]


@pytest.mark.parametrize(("call", "error", "words"), CALLS)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
