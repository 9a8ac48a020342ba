"""What solvers and their settings refuse: one sentence each, with the cause and a remedy."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import riskmin as rm
from helpers import LIST_LOSSES, MANY_LOSSES, TREE, Problem, problem, refusals
from riskmin.core import UnsupportedProblem
from riskmin.losses import Smoothed
from solver_cases import FREE, REMOTE


class Worst:
    """The largest residual: a nonsmooth loss with the required methods only."""

    separable = False

    def value_grad(self, z, y, c):
        k = np.argmax(np.abs(z - y))
        dz = np.zeros_like(z)
        dz[k] = np.sign(z[k] - y[k])
        return np.abs(z[k] - y[k]), dz


class Square:
    """A sum over rows without a conjugate."""

    separable = True

    def value_grad(self, z, y, c):
        return c @ z**2, 2 * c * z


class Bowl:
    """A risk that `linear_risk` did not make."""

    dim = 4

    def __call__(self, w):
        return 0.5 * float(w @ w), w


def run(solver, loss, reg=None, intercept=False, place=None):
    """A run on a small problem with this loss."""
    data = Problem(loss, reg or rm.L2(), lam=0.1, n=20, intercept=intercept)
    return lambda: rm.minimize(data.objective(**(place or {})), solver)


def run_own(solver, loss):
    """A run with a loss of four required members at most."""
    risk = rm.linear_risk(np.eye(2), [1.0, 2.0], loss)
    return lambda: rm.minimize(rm.Objective(risk, rm.L2(), 0.1), solver)


def run_risk(solver, reg=None):
    return lambda: rm.minimize(rm.Objective(Bowl(), reg or rm.L2(), 0.1), solver)


def run_tensor(solver, loss):
    """A run on rows of another library, which must be installed."""

    def call():
        data = Problem(loss)
        data.X = pytest.importorskip("torch").asarray(data.X)
        rm.minimize(data.objective(), solver)

    return call


def run_kernel(solver):
    X, y, _ = problem(rm.Logistic())
    return lambda: rm.minimize(rm.Objective(*rm.kernel_risk(X, y, rm.Logistic()), 0.1), solver)


def online(**changes):
    X, y, _ = problem(rm.Hinge(), n=20)
    return lambda: rm.online(**({"X": X, "y": y, "reg": rm.L2()} | changes))


def partial_fit(classes=None, y=None, again=None):
    """A first part with classes, and perhaps another of one row."""
    X, signs, _ = problem(rm.Hinge(), n=20)

    def call():
        model = rm.OnlineClassifier().partial_fit(X, signs, classes)
        model.partial_fit(X[:1], y, again)

    return call


def fit(model):
    """A fit on two columns."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    return lambda: model.fit(X, X[:, 0] > 0.2)


def fit_groups(model, labels_of):
    """A fit on a column of two groups and one of numbers; the labels are a function of both."""
    group, x = np.repeat([0.0, 1.0], 50), np.random.default_rng(0).normal(size=100)
    return lambda: model.fit(np.column_stack([group, x]), labels_of(group, x))


def of_several_scores(loss):
    X, y, _ = problem(loss)
    return lambda: rm.kernel_risk(X, y, loss, rm.Rbf(1.0))


def weighted(loss, y, weights, qid=None):
    """A run by `Auto` on rows with weights."""
    X = np.random.default_rng(0).standard_normal((12, 2))
    return lambda: rm.minimize(
        rm.Objective(rm.linear_risk(X, y, loss, sample_weight=weights, qid=qid), rm.L2(), 0.1)
    )


# the solver, the words, and the losses with their regularizers, an intercept, and the place of the rows
UNSUPPORTED = [
    # columns and rows one by one
    (
        "coordinate_descent",
        r"second derivative is finite.*use Bundle",
        *((loss, rm.L1()) for loss in (rm.Hinge(), *map(rm.PowerHinge, (1.0, 1.5)), rm.EpsilonInsensitive())),
    ),
    ("coordinate_descent", r"sum over coord.*use ProximalGradient or Bundle", (rm.Logistic(), rm.QNorm())),
    ("dual", r"exact steps.*use Auto, or DualGaussSeidel", (rm.Poisson(),), (rm.Hinge(), rm.L1())),
    (
        "dual",
        r"for remote rows.*: use Auto or Bundle$",
        *((rm.Hinge(), rm.L1(), False, REMOTE), (rm.Poisson(), None, False, REMOTE)),
    ),
    ("dual", r"for remote rows.*no intercept .*: use Auto or Bundle$", (rm.Hinge(), None, True, REMOTE)),
    (rm.Pegasos(batch_size=2), "Pegasos visits rows", *((loss,) for loss in LIST_LOSSES)),
    # several scores per row
    ("dual", "Lbfgs", (rm.Softmax(),)),
    ("dual", "Bundle", (rm.MulticlassHinge(3.0 - 3.0 * np.eye(3), rescaled=True),)),
    ("dual", "Bundle", (rm.MulticlassHinge(rescaled=True), None, True)),
    ("dual", "Smoothing", (rm.MulticlassHinge(), rm.L1())),
    ("dual", "one weight per feature: use Smoothing", (rm.MulticlassHinge(), rm.L2(np.arange(1.0, 13.0)))),
    (rm.InteriorPoint(max_size=9), "matrix of 15 weights", (rm.Softmax(), rm.L1(), True)),
    ("interior_point", "Smoothing", (rm.MulticlassHinge(), rm.L1())),
    # smoothness
    ("smoothing", r"for nonsmooth losses, and Logistic\(\) is smooth: use Lbfgs", (rm.Logistic(),)),
    (rm.Smoothing(rm.Lbfgs()), r"a smooth regularizer.*use ProximalGradient", (rm.RocArea(), rm.L1())),
    *(
        (solver, r"needs a smooth loss, and Hinge\(.*\) is not: use Bundle", (rm.Hinge(), rm.L1()))
        for solver in ("proximal_gradient", "owlqn")
    ),
    (
        "owlqn",
        r"OwlQn is for L1.* and Elastic.*: use",
        *((rm.Logistic(), reg) for reg in (rm.L2(), rm.Box(rm.L1()), rm.QNorm())),
    ),
    # sizes and shapes of the problem
    ("interior_point", "use Newton", (rm.Hinge(), rm.L2())),
    ("interior_point", "use Bundle", (rm.Hinge(), rm.QNorm(1.5))),
    ("interior_point", "lower < upper", (rm.Hinge(), rm.Box(rm.L1(), 0.0, 0.0))),
    (rm.InteriorPoint(max_size=2), "raise max_size", (rm.Hinge(), rm.L1())),
    ("contingency_tables", "needs FBeta", (rm.FBeta(), rm.L1()), (rm.Hinge(),)),
    (rm.ContingencyTables(max_size=2), "at most 2 rows or columns", (rm.FBeta(),)),
    (
        rm.SeparableForm(rm.DualCoordinateAscent()),
        "SeparableForm needs local rows and Prbep",
        *((rm.PrecisionAtK(6),), (rm.FBeta(),), (rm.Hinge(),)),
    ),
    (
        "augmented_lagrangian",
        "^Equality needs local rows, and a loss that is a sum over rows",
        *((loss, rm.Equality(rm.L2(), np.eye(1, 12))) for loss in (rm.Softmax(), rm.MulticlassHinge())),
        (rm.RocArea(), FREE),
    ),
    # of several refusals the first is raised
    (
        rm.Portfolio((rm.Lbfgs(), rm.Pegasos())),
        r"^Lbfgs needs a smooth regularizer such as L2\(\), not L1",
        (rm.Hinge(), rm.L1()),
    ),
    # Newton's method
    ("newton", "FBeta has none: use Bundle", (rm.FBeta(),)),
    ("newton", r"needs L2\(\) or Quadratic", (rm.Hinge(), rm.L1())),
    ("newton", "no second derivatives .* use Lbfgs", (rm.HierarchicalHinge(TREE),)),
    ("newton", r"L2.*use", (rm.Softmax(), rm.L1()), (rm.MulticlassHinge(), rm.Quadratic(np.eye(12)))),
    # methods of papers
    ("augmented_lagrangian", "use DualGaussSeidel$", (rm.Hinge(), rm.Elastic(0.1))),
    (
        "dual_gauss_seidel",
        "use AugmentedLagrangian or Bundle$",
        *((rm.Hinge(), reg, True) for reg in (rm.L2(), FREE)),
    ),
    ("accelerated_gradient", r"AcceleratedGradient needs a smooth loss.*use Bundle", (rm.Hinge(),)),
    (
        "dual_accelerated",
        r"needs a dual that is quadratic between bounds, unlike .*: use Bundle",
        *((rm.Logistic(),), (rm.SquaredHinge(),)),
    ),
    ("dual_accelerated", r"DualAccelerated needs L2\(\), not L1.*: use Bundle", (rm.Hinge(), rm.L1())),
    ("dual_accelerated", "DualAccelerated visits rows", (rm.Prbep(),)),
    (
        "dual_conjugate_gradient",
        r"use .*Newton",
        *((rm.Hinge(),), (rm.Squared(), rm.L1()), (rm.Squared(), None, True)),
    ),
    ("excessive_gap", r"L2.*use Bundle", (rm.ChainMaxMargin(), rm.L1())),
    ("excessive_gap", "use DualAccelerated", (rm.Hinge(), None, True)),
    ("excessive_gap", "use Bundle", (rm.ChainMaxMargin(rescaled=True),)),
    (rm.Pegasos(batch_size=5), "without an intercept", (rm.Hinge(), None, True)),
    ("pegasos", "L2 and Quadratic", (rm.Hinge(), rm.L1())),
    ("scipy", "a regularizer with a gradient: use Auto", (rm.Logistic(), rm.L1())),
    (
        "dual_gauss_seidel",
        r"transfer function, which .* has not: use CoordinateDescent",
        *((rm.Hinge(), reg) for reg in (rm.L1(), rm.Box(rm.L1(), -1.0, 1.0))),
    ),
]
OTHER_RISKS = [
    (run_risk("coordinate_descent", rm.L1()), "rows or columns of X one by one"),
    (run_risk("dual"), "DualCoordinateAscent visits rows"),
    (run_risk("smoothing"), "needs a risk that linear_risk makes"),
    (run_risk("newton"), "needs a linear_risk, .*: use Auto, Smoothing or Bundle"),
    (run_own("dual", Square()), "gives no conjugate, which dual methods need: use Bundle"),
    (run_own("smoothing", Worst()), "Worst cannot be smoothed: use Bundle"),
    (run_kernel("scipy"), "not of a kernel: use KernelDual"),
    (run_tensor("newton", rm.RocArea()), "loss of single rows, not RocArea"),
    *(
        (run_tensor(solver, rm.Hinge()), "X is one of torch or CuPy: use Auto, Newton")
        for solver in ("dual", "coordinate_descent")
    ),
    (
        lambda: rm.Logistic().smoothed_value_grad(np.zeros(1), np.ones(1), np.ones(1), 0.1),
        r"cannot be smoothed.*use Bundle",
    ),
]
COUNTS = [
    (partial(a, **{name: bad}), f"{a.__name__} needs {name} to be a whole number >= 1, not")
    for a, name in ((rm.Lbfgs, "memory"), (rm.Bundle, "keep"))
    for bad in (0, -1, 2.5, True, "3", None, np.nan)
]
# the setting, the words, and the wrong values
SETTINGS = [
    (rm.CoordinateDescent, "start", "start", 0),
    (rm.DualCoordinateAscent, "damping", "damping", 2.0),
    (rm.DualCoordinateAscent, "seed", "seed", -1),
    (rm.DualCoordinateAscent, "local_epochs", "needs local_epochs to be a whole number >= 1, not 0", 0),
    (rm.DualGaussSeidel, "damping", "damping", 0.0, np.inf),
    (rm.DualGaussSeidel, "rate", "rate", -1.0),
    (rm.AugmentedLagrangian, "algorithm", "algorithm", 1),
    (rm.AugmentedLagrangian, "mu", "mu", 0.0),
    (rm.AugmentedLagrangian, "bias_rate", "bias_rate", 0.0),
    (rm.Portfolio, "solvers", "at least one", ()),
    (partial(rm.Portfolio, (rm.Bundle(),)), "tol", "tol", 0.0),
    (rm.OwlQn, "memory", "whole number >= 1", 0),
    (rm.Smoothing, "c_mu", "Smoothing needs c_mu > 0, not (0|nan)", 0.0, np.nan),
    (
        rm.Smoothing,
        "inner",
        "is no solver: give an object with the method iterates, such as Lbfgs",
        rm.Hinge(),
    ),
    (partial(Smoothed, rm.Hinge()), "mu", "Smoothed needs mu > 0, not 0", 0.0),
    (rm.Newton, "direct", "direct", 0),
    (rm.Newton, "mu_decrease", "mu_decrease between 0 and 1, not 1.0", 1.0),
    (rm.AcceleratedGradient, "gamma_u", "needs a finite gamma_u >", 1.0, np.inf),
    (rm.AcceleratedGradient, "gamma_d", "needs a finite gamma_d >", 0.9, np.nan),
    (rm.DualAccelerated, "restart", "needs restart > 1", 1.0, 0.0, np.nan),
    (rm.Pegasos, "batch_size", "whole number", 0, 2.5),
    (rm.Pegasos, "seed", "whole number", -1),
    (rm.ScipyMinimizer, "method", "not one of L-BFGS-B", "Nelder-Mead"),
    (partial(rm.Equality, rm.L1()), "C", "L2", np.ones(3)),
    (partial(rm.Equality, rm.L2()), "C", "independent", np.ones((2, 3))),
]
DATA = [
    (run(None, rm.PrecisionAtK(k=9), rm.L1()), "PrecisionAtK needs k=9 rows"),
    (weighted(rm.Prbep(), np.resize([1.0, -1.0, -1.0], 12), np.arange(1.0, 13.0)), "Prbep counts rows"),
    (
        weighted(
            rm.PairwiseHinge(),
            np.append(1.0, np.zeros(11)),
            np.append(0.0, np.ones(11)),
            np.repeat([0, 1], 6),
        ),
        "needs a pair of rows that both have weight",
    ),
    *((of_several_scores(loss), "kernel_risk has one score per row") for loss in MANY_LOSSES),
]
UNPENALIZED = [
    (fit(rm.LinearClassifier("probit", alpha=0)), "Probit has no proof: give alpha > 0, such as 1e-9"),
    (fit(rm.LinearClassifier("roc_area", alpha=0)), "RocArea has no proof: give alpha > 0, such as 1e-9"),
    (fit(rm.LinearClassifier("logistic", alpha=0, positive=True)), "bounds of the weights of Logistic"),
    (fit(rm.LinearRegressor("squared", alpha=0, solver="lbfgs")), "leave solver out"),
    (fit(rm.NoveltyDetector(alpha=0)), "alpha to be a finite number > 0"),
    (fit(rm.LinearRegressor("squared", alpha=-1.0)), "alpha to be a finite number >= 0"),
    *(
        (fit_groups(model, y), r"there is no minimum, since weights grow .* give alpha > 0")
        for model, y in (
            (rm.LinearClassifier("logistic", alpha=0), lambda group, x: x > 0),
            (rm.LinearClassifier("logistic", alpha=0), lambda group, x: np.digitize(x, [-0.5, 0.5])),
            # one group is all of one class, or has no counts
            (rm.LinearClassifier("logistic", alpha=0), lambda group, x: (group == 1) | (np.sin(99 * x) > 0)),
            (rm.LinearRegressor("poisson", alpha=0), lambda group, x: (group == 0) * np.round(abs(3 * x))),
        )
    ),
    *(
        (
            fit(rm.LinearRegressor("squared", alpha=0, regularizer=reg)),
            r"alpha=0 leaves out the penalty, but .*: give alpha > 0",
        )
        for reg in (
            "entropy",
            rm.Entropy(normalized=False),
            rm.Entropy(prior=50.0, balanced=True),
            SimpleNamespace(
                value=lambda w: 0.0 if w[0] <= w[1] else np.inf,
                prox=lambda v, step: v,
                conjugate=lambda u: 0.0,
                conjugate_grad=lambda u: 0 * u,
            ),
        )
    ),
]
ONLINE = [
    (online(rate=0.0), "rate"),
    (online(epochs=0), "epochs"),
    (online(y=np.arange(20.0)), "OnlineClassifier"),
    (online(y=np.ones(3)), "one label per row"),
    (online(v0=np.zeros(9)), "one number per column"),
    (online(reg=rm.L1()), "transfer function"),
    *(
        (fit(rm.OnlineClassifier(**wrong)), *wrong)
        for wrong in ({"rate": -1}, {"epochs": 1.5}, {"max_seconds": -1})
    ),
    (partial_fit(), "give classes"),
    (partial_fit([-1.0, 1.0], [3.0]), "not among"),
    (partial_fit([-1.0, 1.0], [1.0], [1.0, 2.0]), "differs"),
]
WRONG = TypeError, ValueError
test_refusals = refusals(
    ([(run(a, *case), words) for a, words, *cases in UNSUPPORTED for case in cases], UnsupportedProblem),
    (OTHER_RISKS, UnsupportedProblem),
    (COUNTS, ValueError),
    ([(partial(a, **{name: bad}), words) for a, name, words, *values in SETTINGS for bad in values], WRONG),
    ([*DATA, *UNPENALIZED, *ONLINE], WRONG),
)
