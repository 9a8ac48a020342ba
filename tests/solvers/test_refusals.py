"""What solvers and their settings refuse: one sentence each, with the cause and a remedy."""

from types import SimpleNamespace

import numpy as np
import pytest

from everywhere import RemoteExecutor
from helpers import LIST_LOSSES, MANY_LOSSES, Problem, problem
from riskmin import (
    L1,
    L2,
    AugmentedLagrangian,
    Auto,
    Box,
    Bundle,
    ContingencyTables,
    CoordinateDescent,
    DualCoordinateAscent,
    DualGaussSeidel,
    Entropy,
    EpsilonInsensitive,
    Equality,
    Fallback,
    FBeta,
    Hinge,
    InteriorPoint,
    Lbfgs,
    LinearClassifier,
    LinearConstraints,
    LinearRegressor,
    Logistic,
    MulticlassHinge,
    NoveltyDetector,
    Objective,
    OwlQn,
    PairwiseHinge,
    Pegasos,
    Poisson,
    PowerHinge,
    Prbep,
    PrecisionAtK,
    ProximalGradient,
    QNorm,
    Rbf,
    RocArea,
    SeparableForm,
    Smoothing,
    Softmax,
    Switching,
    kernel_risk,
    linear_risk,
    minimize,
)
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
    data = Problem(loss, reg or L2(), lam=0.1, n=20, intercept=intercept)
    return lambda: minimize(data.objective(**settings), solver)


def run_own(solver, loss):
    """A run with a loss of four required members at most."""
    return lambda: minimize(Objective(linear_risk(np.eye(2), [1.0, 2.0], loss), L2(), 0.1), solver)


def run_risk(solver, reg=None):
    return lambda: minimize(Objective(Bowl(), reg or L2(), 0.1), solver)


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
    return lambda: kernel_risk(X, y, loss, Rbf(1.0))


def weighted(loss, y, weights, qid=None):
    """A run by `Auto` on rows with weights."""
    X = np.random.default_rng(0).standard_normal((12, 2))
    return lambda: minimize(Objective(linear_risk(X, y, loss, sample_weight=weights, qid=qid), L2(), 0.1))


def made(call, **settings):
    return lambda: call(**settings)


UNSUPPORTED = [
    # columns and rows one by one
    *(
        (run(CoordinateDescent(), loss, L1()), r"second derivative is finite.*use Bundle")
        for loss in (Hinge(), PowerHinge(p=1.0), PowerHinge(p=1.5), EpsilonInsensitive())
    ),
    (run(CoordinateDescent(), Logistic(), QNorm()), r"sum over coordinates.*use ProximalGradient or Bundle"),
    (run_risk(CoordinateDescent(), L1()), "rows or columns of X one by one"),
    (run(DualCoordinateAscent(), Poisson()), r"exact steps.*use Auto, or DualGaussSeidel"),
    (run(DualCoordinateAscent(), Hinge(), L1()), r"exact steps.*use Auto, or DualGaussSeidel"),
    (run_own(DualCoordinateAscent(), Square()), "gives no conjugate, which dual methods need: use Bundle"),
    (run_risk(DualCoordinateAscent()), "DualCoordinateAscent visits rows"),
    (run(DualCoordinateAscent(), Hinge(), L1(), **REMOTE), r"for remote rows.*: use Auto or Bundle$"),
    (run(DualCoordinateAscent(), Poisson(), **REMOTE), r"for remote rows.*: use Auto or Bundle$"),
    (
        run(DualCoordinateAscent(), Hinge(), intercept=True, **REMOTE),
        r"for remote rows.*no intercept .*: use Auto or Bundle$",
    ),
    *((run(Pegasos(batch_size=2), loss), "Pegasos visits rows") for loss in LIST_LOSSES),
    # several scores per row
    (run(DualCoordinateAscent(), Softmax()), "Lbfgs"),
    (run(DualCoordinateAscent(), MulticlassHinge(COST, rescaled=True)), "Bundle"),
    (run(DualCoordinateAscent(), MulticlassHinge(rescaled=True), intercept=True), "Bundle"),
    (run(DualCoordinateAscent(), MulticlassHinge(), L1()), "Smoothing"),
    (
        run(DualCoordinateAscent(), MulticlassHinge(), L2(np.arange(1.0, 13.0))),
        "one weight per feature: use Smoothing",
    ),
    (run(InteriorPoint(max_size=9), Softmax(), L1(), intercept=True), "matrix of 15 weights"),
    (run(InteriorPoint(), MulticlassHinge(), L1()), "Smoothing"),
    # smoothness
    (run_risk(Smoothing()), "needs a risk that linear_risk makes"),
    (
        run(Smoothing(), Logistic()),
        r"Smoothing is for nonsmooth losses, and Logistic\(\) is smooth: use Lbfgs",
    ),
    (run_own(Smoothing(), Worst()), "Worst cannot be smoothed: use Bundle"),
    (run(Smoothing(Lbfgs()), RocArea(), L1()), r"Lbfgs needs a smooth regularizer.*use ProximalGradient"),
    *(
        (run(solver, Hinge(), L1()), r"needs a smooth loss, and Hinge\(.*\) is not: use Bundle")
        for solver in (ProximalGradient(), OwlQn())
    ),
    *(
        (run(OwlQn(), Logistic(), reg), r"OwlQn is for L1.* and Elastic.*: use")
        for reg in (L2(), Box(L1()), QNorm())
    ),
    (
        lambda: Logistic().smoothed_value_grad(np.zeros(1), np.ones(1), np.ones(1), 0.1),
        r"cannot be smoothed.*use Bundle",
    ),
    # sizes and shapes of the problem
    (run(InteriorPoint(), Hinge(), L2()), "use Newton"),
    (run(InteriorPoint(), Hinge(), QNorm(1.5)), "use Bundle"),
    (run(InteriorPoint(), Hinge(), Box(L1(), 0.0, 0.0)), "lower < upper"),
    (run(InteriorPoint(max_size=2), Hinge(), L1()), "raise max_size"),
    (run(ContingencyTables(), FBeta(), L1()), "needs FBeta"),
    (run(ContingencyTables(), Hinge()), "needs FBeta"),
    (run(ContingencyTables(max_size=2), FBeta()), "at most 2 rows or columns"),
    *(
        (run(SeparableForm(DualCoordinateAscent()), loss), "SeparableForm needs local rows and Prbep")
        for loss in (PrecisionAtK(6), FBeta(), Hinge())
    ),
    *(
        (
            run("augmented_lagrangian", loss, Equality(L2(), np.eye(1, dim))),
            "^Equality needs local rows, and a loss that is a sum over rows",
        )
        for loss, dim in ((Softmax(), 12), (MulticlassHinge(), 12), (RocArea(), 4))
    ),
    # of several refusals the first is raised
    (
        run(Fallback((Lbfgs(), Pegasos())), Hinge(), L1()),
        r"^Lbfgs needs a smooth regularizer such as L2\(\), not L1",
    ),
]
SETTINGS = [
    (made(CoordinateDescent, start=0), "start"),
    (made(DualCoordinateAscent, damping=2.0), "damping"),
    (made(DualCoordinateAscent, seed=-1), "seed"),
    (made(DualCoordinateAscent, local_epochs=0), "needs local_epochs to be a whole number >= 1, not 0"),
    (made(DualGaussSeidel, damping=0.0), "damping"),
    (made(DualGaussSeidel, damping=np.inf), "damping"),
    (made(DualGaussSeidel, rate=-1.0), "rate"),
    (made(AugmentedLagrangian, algorithm=1), "algorithm"),
    (made(AugmentedLagrangian, mu=0.0), "mu"),
    (made(AugmentedLagrangian, bias_rate=0.0), "bias_rate"),
    (made(Fallback, solvers=()), "at least one"),
    (made(Fallback, solvers=(Bundle(),), tol=0.0), "tol"),
    (made(OwlQn, memory=0), "whole number >= 1"),
    (made(Smoothing, c_mu=0.0), "Smoothing needs c_mu > 0, not 0"),
    (made(Smoothing, c_mu=float("nan")), "Smoothing needs c_mu > 0, not nan"),
    (made(Smoothing, inner=Hinge()), "is no solver: give an object with the method iterates, such as Lbfgs"),
    (made(Smoothed, loss=Hinge(), mu=0.0), "Smoothed needs mu > 0, not 0"),
    (made(Switching, fast=Lbfgs(), accurate=Bundle(), tol=0.0), "tol"),
    (made(Switching, fast=Lbfgs(), accurate=Bundle(), passes_per_digit=-1.0), "passes_per_digit"),
    (made(minimize, objective=Problem().objective(), atol=-1.0), "atol"),
]
DATA = [
    (run(None, PrecisionAtK(k=9), L1()), "PrecisionAtK needs k=9 rows"),
    (weighted(Prbep(), np.resize([1.0, -1.0, -1.0], 12), np.arange(1.0, 13.0)), "Prbep counts rows"),
    (
        weighted(
            PairwiseHinge(), np.append(1.0, np.zeros(11)), np.append(0.0, np.ones(11)), np.repeat([0, 1], 6)
        ),
        "needs a pair of rows that both have weight",
    ),
    *((of_several_scores(loss), "kernel_risk has one score per row") for loss in MANY_LOSSES),
]
UNPENALIZED = [
    (fit(LinearClassifier("hinge", alpha=0)), "only 'squared', 'logistic', 'softmax' and 'poisson'"),
    (fit(LinearRegressor("quantile", alpha=0)), "give alpha > 0, such as 1e-9"),
    (fit(LinearRegressor("squared", alpha=0, positive=True)), "bounds the weights, too: give alpha > 0"),
    (fit(LinearRegressor("squared", alpha=0, solver="lbfgs")), "leave solver out"),
    (fit(NoveltyDetector(alpha=0)), "alpha to be a finite number > 0"),
    (fit(LinearRegressor("squared", alpha=-1.0)), "alpha to be a finite number >= 0"),
    *(
        (fit_groups(model, y), r"there is no minimum, since weights grow .* give alpha > 0")
        for model, y in (
            (LinearClassifier("logistic", alpha=0), lambda group, x: x > 0),
            (LinearClassifier("logistic", alpha=0), lambda group, x: np.digitize(x, [-0.5, 0.5])),
            # one group is all of one class, or has no counts
            (LinearClassifier("logistic", alpha=0), lambda group, x: (group == 1) | (np.sin(99 * x) > 0)),
            (LinearRegressor("poisson", alpha=0), lambda group, x: (group == 0) * np.round(abs(3 * x))),
        )
    ),
    *(
        (
            fit(LinearRegressor("squared", alpha=0, regularizer=reg)),
            r"alpha=0 leaves out the penalty, but .*: give alpha > 0",
        )
        for reg in (
            Box(L2(), -2, -0.5),
            Box(L1(), upper=[3.0, np.inf]),
            LinearConstraints(L2(), [[1.0, -1.0]], lower=0),
            LinearConstraints(Box(L2(), -5), [[0.0, 0.0]], lower=-1),
            "entropy",
            Entropy(normalized=False),
            Entropy(prior=50.0, balanced=True),
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
    [Problem(Hinge(), L1(), n=20), Problem(Poisson(), n=20), Problem(Hinge(), n=20, intercept=True)],
)
def test_auto_minimizes_what_dual_ascent_refuses_for_remote_rows(problem):
    result = minimize(problem.objective(**REMOTE), Auto(), tol=1e-2)
    assert result.status == "converged"


def test_a_loss_that_cannot_be_smoothed_says_so():
    assert not Logistic().can_be_smoothed
    assert Hinge().can_be_smoothed
