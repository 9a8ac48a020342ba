"""What solvers and their settings refuse: one sentence each, with the cause and a remedy."""

from types import SimpleNamespace

import numpy as np
import pytest

import riskmin as rm
from everywhere import RemoteExecutor
from helpers import LIST_LOSSES, MANY_LOSSES, Problem, problem
from riskmin.core import UnsupportedProblem
from riskmin.losses import Smoothed

REMOTE = {"executor": RemoteExecutor(), "n_shards": 3}
COST = 3.0 - 3.0 * np.eye(3)


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


def run(solver, loss, reg=None, intercept=False, **settings):
    """A run on a small problem with this loss."""
    data = Problem(loss, reg or rm.L2(), lam=0.1, n=20, intercept=intercept)
    return lambda: rm.minimize(data.objective(**settings), solver)


def run_own(solver, loss):
    """A run with a loss of four required members at most."""
    return lambda: rm.minimize(
        rm.Objective(rm.linear_risk(np.eye(2), [1.0, 2.0], loss), rm.L2(), 0.1), solver
    )


def run_risk(solver, reg=None):
    return lambda: rm.minimize(rm.Objective(Bowl(), reg or rm.L2(), 0.1), solver)


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


def made(call, **settings):
    return lambda: call(**settings)


UNSUPPORTED = [
    # columns and rows one by one
    *(
        (run(rm.CoordinateDescent(), loss, rm.L1()), r"second derivative is finite.*use Bundle")
        for loss in (rm.Hinge(), rm.PowerHinge(p=1.0), rm.PowerHinge(p=1.5), rm.EpsilonInsensitive())
    ),
    (
        run(rm.CoordinateDescent(), rm.Logistic(), rm.QNorm()),
        r"sum over coordinates.*use ProximalGradient or Bundle",
    ),
    (run_risk(rm.CoordinateDescent(), rm.L1()), "rows or columns of X one by one"),
    (run(rm.DualCoordinateAscent(), rm.Poisson()), r"exact steps.*use Auto, or DualGaussSeidel"),
    (run(rm.DualCoordinateAscent(), rm.Hinge(), rm.L1()), r"exact steps.*use Auto, or DualGaussSeidel"),
    (run_own(rm.DualCoordinateAscent(), Square()), "gives no conjugate, which dual methods need: use Bundle"),
    (run_risk(rm.DualCoordinateAscent()), "DualCoordinateAscent visits rows"),
    (
        run(rm.DualCoordinateAscent(), rm.Hinge(), rm.L1(), **REMOTE),
        r"for remote rows.*: use Auto or Bundle$",
    ),
    (run(rm.DualCoordinateAscent(), rm.Poisson(), **REMOTE), r"for remote rows.*: use Auto or Bundle$"),
    (
        run(rm.DualCoordinateAscent(), rm.Hinge(), intercept=True, **REMOTE),
        r"for remote rows.*no intercept .*: use Auto or Bundle$",
    ),
    *((run(rm.Pegasos(batch_size=2), loss), "Pegasos visits rows") for loss in LIST_LOSSES),
    # several scores per row
    (run(rm.DualCoordinateAscent(), rm.Softmax()), "Lbfgs"),
    (run(rm.DualCoordinateAscent(), rm.MulticlassHinge(COST, rescaled=True)), "Bundle"),
    (run(rm.DualCoordinateAscent(), rm.MulticlassHinge(rescaled=True), intercept=True), "Bundle"),
    (run(rm.DualCoordinateAscent(), rm.MulticlassHinge(), rm.L1()), "Smoothing"),
    (
        run(rm.DualCoordinateAscent(), rm.MulticlassHinge(), rm.L2(np.arange(1.0, 13.0))),
        "one weight per feature: use Smoothing",
    ),
    (run(rm.InteriorPoint(max_size=9), rm.Softmax(), rm.L1(), intercept=True), "matrix of 15 weights"),
    (run(rm.InteriorPoint(), rm.MulticlassHinge(), rm.L1()), "Smoothing"),
    # smoothness
    (run_risk(rm.Smoothing()), "needs a risk that linear_risk makes"),
    (
        run(rm.Smoothing(), rm.Logistic()),
        r"Smoothing is for nonsmooth losses, and Logistic\(\) is smooth: use Lbfgs",
    ),
    (run_own(rm.Smoothing(), Worst()), "Worst cannot be smoothed: use Bundle"),
    (
        run(rm.Smoothing(rm.Lbfgs()), rm.RocArea(), rm.L1()),
        r"Lbfgs needs a smooth regularizer.*use ProximalGradient",
    ),
    *(
        (run(solver, rm.Hinge(), rm.L1()), r"needs a smooth loss, and Hinge\(.*\) is not: use Bundle")
        for solver in (rm.ProximalGradient(), rm.OwlQn())
    ),
    *(
        (run(rm.OwlQn(), rm.Logistic(), reg), r"OwlQn is for L1.* and Elastic.*: use")
        for reg in (rm.L2(), rm.Box(rm.L1()), rm.QNorm())
    ),
    (
        lambda: rm.Logistic().smoothed_value_grad(np.zeros(1), np.ones(1), np.ones(1), 0.1),
        r"cannot be smoothed.*use Bundle",
    ),
    # sizes and shapes of the problem
    (run(rm.InteriorPoint(), rm.Hinge(), rm.L2()), "use Newton"),
    (run(rm.InteriorPoint(), rm.Hinge(), rm.QNorm(1.5)), "use Bundle"),
    (run(rm.InteriorPoint(), rm.Hinge(), rm.Box(rm.L1(), 0.0, 0.0)), "lower < upper"),
    (run(rm.InteriorPoint(max_size=2), rm.Hinge(), rm.L1()), "raise max_size"),
    (run(rm.ContingencyTables(), rm.FBeta(), rm.L1()), "needs FBeta"),
    (run(rm.ContingencyTables(), rm.Hinge()), "needs FBeta"),
    (run(rm.ContingencyTables(max_size=2), rm.FBeta()), "at most 2 rows or columns"),
    *(
        (run(rm.SeparableForm(rm.DualCoordinateAscent()), loss), "SeparableForm needs local rows and Prbep")
        for loss in (rm.PrecisionAtK(6), rm.FBeta(), rm.Hinge())
    ),
    *(
        (
            run("augmented_lagrangian", loss, rm.Equality(rm.L2(), np.eye(1, dim))),
            "^Equality needs local rows, and a loss that is a sum over rows",
        )
        for loss, dim in ((rm.Softmax(), 12), (rm.MulticlassHinge(), 12), (rm.RocArea(), 4))
    ),
    # of several refusals the first is raised
    (
        run(rm.Fallback((rm.Lbfgs(), rm.Pegasos())), rm.Hinge(), rm.L1()),
        r"^Lbfgs needs a smooth regularizer such as L2\(\), not L1",
    ),
]
SETTINGS = [
    (made(rm.CoordinateDescent, start=0), "start"),
    (made(rm.DualCoordinateAscent, damping=2.0), "damping"),
    (made(rm.DualCoordinateAscent, seed=-1), "seed"),
    (made(rm.DualCoordinateAscent, local_epochs=0), "needs local_epochs to be a whole number >= 1, not 0"),
    (made(rm.DualGaussSeidel, damping=0.0), "damping"),
    (made(rm.DualGaussSeidel, damping=np.inf), "damping"),
    (made(rm.DualGaussSeidel, rate=-1.0), "rate"),
    (made(rm.AugmentedLagrangian, algorithm=1), "algorithm"),
    (made(rm.AugmentedLagrangian, mu=0.0), "mu"),
    (made(rm.AugmentedLagrangian, bias_rate=0.0), "bias_rate"),
    (made(rm.Fallback, solvers=()), "at least one"),
    (made(rm.Fallback, solvers=(rm.Bundle(),), tol=0.0), "tol"),
    (made(rm.OwlQn, memory=0), "whole number >= 1"),
    (made(rm.Smoothing, c_mu=0.0), "Smoothing needs c_mu > 0, not 0"),
    (made(rm.Smoothing, c_mu=float("nan")), "Smoothing needs c_mu > 0, not nan"),
    (
        made(rm.Smoothing, inner=rm.Hinge()),
        "is no solver: give an object with the method iterates, such as Lbfgs",
    ),
    (made(Smoothed, loss=rm.Hinge(), mu=0.0), "Smoothed needs mu > 0, not 0"),
    (made(rm.Switching, fast=rm.Lbfgs(), accurate=rm.Bundle(), tol=0.0), "tol"),
    (made(rm.Switching, fast=rm.Lbfgs(), accurate=rm.Bundle(), passes_per_digit=-1.0), "passes_per_digit"),
    (made(rm.minimize, objective=Problem().objective(), atol=-1.0), "atol"),
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
    (fit(rm.LinearClassifier("hinge", alpha=0)), "only 'squared', 'logistic', 'softmax' and 'poisson'"),
    (fit(rm.LinearRegressor("quantile", alpha=0)), "give alpha > 0, such as 1e-9"),
    (fit(rm.LinearRegressor("squared", alpha=0, positive=True)), "bounds the weights, too: give alpha > 0"),
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
            rm.Box(rm.L2(), -2, -0.5),
            rm.Box(rm.L1(), upper=[3.0, np.inf]),
            rm.LinearConstraints(rm.L2(), [[1.0, -1.0]], lower=0),
            rm.LinearConstraints(rm.Box(rm.L2(), -5), [[0.0, 0.0]], lower=-1),
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
ERRORS = [
    *((call, UnsupportedProblem, words) for call, words in UNSUPPORTED),
    *((call, (TypeError, ValueError), words) for call, words in [*SETTINGS, *DATA, *UNPENALIZED]),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS, ids=[f"{k}" for k in range(len(ERRORS))])
def test_errors_state_the_cause_and_a_remedy_in_one_line(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(rm.Hinge(), rm.L1(), n=20),
        Problem(rm.Poisson(), n=20),
        Problem(rm.Hinge(), n=20, intercept=True),
    ],
)
def test_auto_minimizes_what_dual_ascent_refuses_for_remote_rows(problem):
    result = rm.minimize(problem.objective(**REMOTE), rm.Auto(), tol=1e-2)
    assert result.status == "converged"


def test_a_loss_that_cannot_be_smoothed_says_so():
    assert not rm.Logistic().can_be_smoothed
    assert rm.Hinge().can_be_smoothed
