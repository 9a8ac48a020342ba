"""What regularizers, and solvers given regularizers, refuse: each error names cause and remedy."""

import math

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from helpers import refusals

GROUPS = ["b", "a", "b", "c", "a", "a"]
L2, INDEFINITE = rm.L2(), [[1.0, 2.0], [2.0, 1.0]]
ROWS = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]


class Own:
    """The 1-norm with a wrong gradient of its conjugate, which is not finite."""

    def value(self, w):
        return float(np.abs(w).sum())

    def prox(self, v, step):
        return np.sign(v) * np.maximum(np.abs(v) - step, 0.0)

    def conjugate(self, u):
        return 0.0 if np.all(np.abs(u) <= 1) else np.inf

    def conjugate_grad(self, u):
        return np.zeros_like(u)


def fit(reg, solver):
    risk = rm.linear_risk(np.eye(2), np.array([1.0, -1.0]), rm.Hinge())
    return lambda: rm.minimize(rm.Objective(risk, reg, 0.1), solver)


def regress(reg, p):
    return lambda: rm.LinearRegressor(regularizer=reg).fit(np.eye(p), np.arange(float(p)))


def constrained(reg=L2, A=ROWS, **bounds):
    return lambda: rm.LinearConstraints(reg, A, **bounds)


VALUES = [
    (lambda: rm.get_regularizer("l3"), "no regularizer named 'l3'; the names are l2, l1, elastic"),
    (
        lambda: rm.get_regularizer("elastic:epsilon=1"),
        "Elastic has no parameter epsilon: did you mean 'eps'. It has eps, w",
    ),
    (lambda: rm.get_regularizer("elastic:eps"), "write it like 'elastic:eps=0.5'"),
    (lambda: rm.get_regularizer(rm.L1), r"L1 is a class.*L1\(\)"),
    (lambda: rm.get_regularizer(3), "3 is not a regularizer"),
    (lambda: rm.L2(0.0), "L2 needs weights to be numbers >= 0, and one of them > 0, not 0.0"),
    (lambda: rm.L1([0.0, 0.0]), "L1 needs weights to be numbers >= 0, and one of them > 0"),
    (lambda: rm.L1([1.0, math.nan]), "L1 needs weights to be numbers >= 0"),
    (lambda: rm.Elastic(weights=-1), "Elastic needs weights to be numbers >= 0, .* not -1.0"),
    (lambda: rm.L2(math.inf), "L2 needs weights"),
    (lambda: rm.Elastic(-0.5), "Elastic needs eps to be a number >= 0, not -0.5"),
    (lambda: rm.Elastic(math.nan), "eps"),
    (lambda: rm.L2(np.ones(4)).value(np.ones(5)), r"weights has shape \(4,\), but w has 5 entries"),
    (lambda: rm.L1(np.ones((5, 1))).value(np.ones(5)), r"weights has shape \(5, 1\)"),
    (lambda: rm.Entropy(np.ones(4)).conjugate(np.ones(5)), "prior has shape"),
    (lambda: rm.Box(rm.L1(), np.zeros(3)).prox(np.ones(5), 1.0), "lower has shape"),
    (lambda: rm.Box(rm.L1(), 1.0, 0.0), "Box needs lower <= upper for every feature, not 1.0 and 0.0"),
    (lambda: rm.Box(rm.L1(), [0.0, 1.0], [1.0, 0.5]), "lower <= upper"),
    (lambda: rm.Box(rm.L1(), np.zeros(3), np.ones(4)), "bounds for 3 and for 4 features"),
    (lambda: rm.Box(rm.L1(), math.nan), "lower to be numbers below infinity"),
    (lambda: rm.Box(rm.L1(), 0.0, math.nan), "upper to be numbers above minus infinity"),
    (lambda: rm.Entropy(0.0), "Entropy needs prior to be numbers > 0"),
    (lambda: rm.Entropy([1.0, -1.0]), "Entropy needs prior to be numbers > 0"),
    (lambda: rm.Entropy(1e-200), "Entropy needs prior to be numbers > 0, from 1e-100"),
    (lambda: rm.QNorm(1.0), "QNorm needs q > 1 and power > 1"),
    (lambda: rm.QNorm(math.inf), "QNorm needs q > 1"),
    (lambda: rm.QNorm(2.0, 1.0), "power > 1"),
    (lambda: rm.Quadratic(np.ones((2, 3))), r"square K, not one of shape \(2, 3\)"),
    (lambda: rm.Quadratic(np.ones(3)), "square K"),
    (lambda: rm.Quadratic([[1.0, 2.0], [0.0, 1.0]]), r"symmetric and finite: give \(K \+ K.T\) / 2"),
    (lambda: rm.Quadratic(sp.csr_array([[1.0, 2.0], [0.0, 1.0]])), "symmetric"),
    (lambda: rm.Quadratic([[1.0, 0.0], [0.0, math.nan]]), "finite"),
    (lambda: rm.Quadratic([[math.inf, 0.0], [0.0, 1.0]]), "finite"),
    (lambda: rm.Quadratic(INDEFINITE).conjugate(np.ones(2)), "positive definite K: add a small"),
    (
        lambda: rm.Quadratic(sp.csr_array(INDEFINITE)).conjugate(np.ones(2)),
        "positive definite K: add a small",
    ),
    (lambda: rm.Quadratic(np.eye(3)).value(np.ones(2)), r"K has shape \(3, 3\), but w has 2 entries"),
    (lambda: rm.Quadratic(np.eye(3)).conjugate(np.ones(2)), r"K has shape \(3, 3\), but"),
    *(
        (lambda lam=lam: rm.Objective(None, rm.L2(), lam), "finite number > 0")
        for lam in (0.0, -1.0, np.inf, np.nan)
    ),
    (lambda: rm.GroupLasso(GROUPS, weights=[1.0, 2.0]), "3 groups: give a number, or one per group"),
    (lambda: rm.GroupLasso([[0, 1], [1, 0]]), "one number or string per feature"),
    (lambda: rm.GroupLasso(GROUPS, ridge=-1.0), "ridge to be a number >= 0"),
    (regress(rm.GroupLasso(GROUPS), 2), "groups has 6 entries, but w has 2: give one per entry"),
    (
        constrained(lower=[1.0, 0.0, -math.inf], upper=[math.inf, 1.0, 0.5]),
        "rows 0, 2 of A contradict each other; drop or relax one of them",
    ),
    (
        constrained(rm.Box(L2), [[1.0, 1.0]], upper=-1.0),
        "row 0 of A and the bounds of the weights contradict",
    ),
    (constrained(lower=[0.0, 2.0, 0.0], upper=1.0), "needs lower <= upper in every row"),
    (constrained(upper=[1.0, 2.0]), r"upper has shape \(2,\), but A has 3 rows"),
    (regress(rm.LinearConstraints(rm.L2(), ROWS, upper=1.0), 3), "A has 2 columns, but w has 3 entries"),
]
TYPES = [
    (lambda: rm.Box(rm.QNorm()), r"Box bounds L1\(\), L2\(\) or Elastic\(\), not QNorm"),
    (constrained(rm.L1(), upper=1.0), r"takes L2\(\), Elastic\(\) or a Box of one of them, not L1"),
    (fit(Own(), rm.Bundle()), "a finite conjugate.*Own.*ProximalGradient"),
    (fit(Own(), rm.Bmrm()), "a finite conjugate.*Own.*ProximalGradient"),
    (fit(Own(), rm.Lbfgs()), "smooth regularizer"),
    (fit(Own(), rm.ProximalGradient()), "use Smoothing"),
    (fit(rm.L1(), rm.LineSearchBmrm()), r"LineSearchBmrm needs a differentiable conjugate, not that of L1"),
]


test_refusals = refusals((VALUES, ValueError), (TYPES, TypeError))
