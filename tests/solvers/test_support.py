"""Every loss with every regularizer and solver: the optimum, or an error that names another solver."""

import itertools
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spl

import riskmin
from helpers import ALL_LOSSES, LIST_LOSSES, MANY_LOSSES, QUERIES, lengths, problem, risk_of
from reference import optimum
from riskmin import (
    L1,
    L2,
    SOLVERS,
    Auto,
    Box,
    Bundle,
    DualCoordinateAscent,
    Elastic,
    Entropy,
    Exponential,
    Hinge,
    InteriorPoint,
    Lbfgs,
    Logistic,
    Newton,
    Objective,
    Poisson,
    ProximalGradient,
    QNorm,
    Quadratic,
    ScipyMinimizer,
    Smoothing,
    Switching,
    linear_risk,
    minimize,
)
from riskmin.core import UnsupportedProblem


@cache
def regularizers(dim):
    """Regularizers for w of this length."""
    W = np.resize([0.5, 1.0, 2.0, 0.7], dim)
    special = {
        "L2": L2(),
        "L1": L1(),
        "Elastic": Elastic(0.3),
        "nonnegative L2": Box(L2()),
        "nonnegative L1": Box(L1()),
        "boxed Elastic": Box(Elastic(0.2), -0.5, 0.3),
        "boxed L1": Box(L1(), -1.0, 1.0),
        "Quadratic": Quadratic(np.diag(W) + np.full((dim, dim), 0.4)),
        "QNorm(1.5, 2)": QNorm(1.5, 2.0),
        "QNorm(3, 1.5)": QNorm(3.0, 1.5),
        "Entropy": Entropy(W),
        "free Entropy": Entropy(1.0, normalized=False),
        "balanced Entropy": Entropy(W, balanced=True),
        "free balanced Entropy": Entropy(0.5, normalized=False, balanced=True),
    }
    classes = {type(reg) for reg in special.values()}
    others = {name: reg for name, reg in riskmin.REGULARIZERS.items() if type(reg) not in classes}
    return special | others


REGULARIZERS = regularizers(4)
W, K = REGULARIZERS["Entropy"].prior, REGULARIZERS["Quadratic"].K
VARIANTS = {
    "weighted L2": L2(W),
    "weighted L1": L1(W),
    "weighted Elastic": Elastic(2.0, W),
    "sparse Quadratic": Quadratic(sp.csr_array(K)),
    "operator Quadratic": Quadratic(spl.aslinearoperator(K)),
}
# The methods of the papers are slow for small lam, as their theorems state; so are gradient steps.
SETTINGS = {
    "accelerated_gradient": (1.0, 1e-4),
    "bmrm": (0.5, 1e-5),
    "line_search_bmrm": (10.0, 1e-4),
    "excessive_gap": (1.0, 1e-4),
    "pegasos": (1.0, 3e-3),
    "dual_gauss_seidel": (0.1, 1e-5),
    "augmented_lagrangian": (0.1, 1e-5),
}
REFERENCE_ACCURACY = 2e-8
"""The accuracy of the reference optima."""
NAMES = "|".join(n for n in dir(riskmin) if hasattr(getattr(riskmin, n), "iterates"))


@cache
def reference(loss, name, lam, intercept):
    """The minimum of J by cvxpy; if that fails, by Bundle, or by Auto for multi-output intercepts."""
    X, y, weights = problem(loss)
    J = objective(loss, name, lam, intercept)
    sequence_lengths = lengths(len(y)) if loss.task == "tagging" else None
    best = optimum(loss, J.reg.penalized_part, X, y, weights, lam, intercept, QUERIES, sequence_lengths)
    if np.isfinite(best):
        return best
    return minimize(J, Auto() if intercept and loss in MANY_LOSSES else Bundle(), tol=1e-9).value


def objective(loss, name, lam, intercept):
    X, y, weights = problem(loss)
    risk = risk_of(loss, X, y, weights, fit_intercept=intercept)
    dim = risk.dim - getattr(risk, "n_intercepts", 0)
    return Objective(risk, (regularizers(dim) | VARIANTS)[name], lam)


def may_not_converge(solver, J):
    """Whether the solver may stall on nonsmooth losses: quasi-Newton methods, or too many proximal steps."""
    chosen = solver.choose(J)[0] if isinstance(solver, Auto) else solver
    return isinstance(chosen, (Lbfgs, ScipyMinimizer)) or chosen == Smoothing(ProximalGradient())


def failure(solver, loss, name, intercept):
    """A description of what is wrong; None if the solver finds the optimum or raises an error with advice."""
    lam, tol = SETTINGS.get(solver, (0.05, 1e-6))
    J = objective(loss, name, lam, intercept)
    may_stall = not loss.smooth and may_not_converge(SOLVERS[solver], J)  # the status then reports it
    try:
        result = minimize(J, SOLVERS[solver], tol=tol, max_iter=50 if may_stall else 5000)
    except (TypeError, ValueError) as error:
        names = re.search(rf"use .*\b({NAMES})\b", str(error))
        return None if names and "\n" not in str(error) else f"refuses with {error!s}"
    best = reference(loss, name, lam, intercept)
    slack = REFERENCE_ACCURACY * (1 + best)
    if not result.lower <= best + slack:
        return f"the bound {result.lower} is above the least J, {best}"
    if not result.value >= best - slack:
        return f"the value {result.value} is below the least J, {best}"
    if may_stall:
        return None
    if not result.value <= best * (1 + max(1e-5, tol)) + slack:
        return f"the value {result.value} is above the least J, {best}: {result.status}"
    if result.status != "converged" and best > REFERENCE_ACCURACY:
        return f"it ended as {result.status} with a gap of {result.gap / result.value:.1e}"
    return None


def failures(solver, losses, names, intercepts):
    """All failures of a solver on these problems."""
    results = {}
    for loss in losses:
        for k, name in enumerate(names):
            for intercept in intercepts if len(intercepts) == 2 else [bool(k % 2) != intercepts[0]]:
                supports_intercept = not loss.fixed_positive_count and loss.task != "tagging"
                message = failure(solver, loss, name, intercept and supports_intercept)
                if message is not None:
                    results[f"{loss!r}, {name}{', intercept' if intercept else ''}"] = message
    return results


@pytest.mark.parametrize("name", SOLVERS)
def test_reasons_are_those_of_the_errors(name):
    """`supports` returns None, or the text of the error that `iterates` raises."""
    solver = SOLVERS[name]
    for loss, reg in itertools.product((Hinge(), Logistic(), MANY_LOSSES[0], LIST_LOSSES[0]), REGULARIZERS):
        for intercept in (False, True) if loss is not LIST_LOSSES[0] else (False,):
            J = objective(loss, reg, 0.1, intercept)
            reason = solver.supports(J)
            if reason is not None:
                with pytest.raises(UnsupportedProblem) as raised:
                    next(iter(solver.iterates(J, J.reg.conjugate_grad(np.zeros(J.risk.dim)))))
                assert str(raised.value) == reason
            else:
                next(iter(solver.iterates(J, J.reg.conjugate_grad(np.zeros(J.risk.dim)))))


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_regularizer(solver):
    """Alternating with and without an intercept."""
    assert failures(solver, [Hinge()], REGULARIZERS, [False]) == {}
    assert failures(solver, [Logistic()], REGULARIZERS, [True]) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_variant_of_a_regularizer(solver):
    assert failures(solver, [Hinge(), Logistic(), Poisson()], VARIANTS, [False, True]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_nondecomposable_losses(solver):
    """Each with one regularizer, alternating with and without an intercept."""
    names = itertools.cycle(REGULARIZERS)
    for k, (loss, name) in enumerate(zip(LIST_LOSSES, names, strict=False)):
        assert failures(solver, [loss], [name], [k % 2 == 0]) == {}


@pytest.mark.exhaustive
def test_multi_output_losses():
    """Each with one regularizer, alternating with and without an intercept; all solvers are tested below."""
    for k, (loss, name) in enumerate(zip(MANY_LOSSES, itertools.cycle(REGULARIZERS), strict=False)):
        assert failures("auto", [loss], [name], [k % 2 == 0]) == {}


EVERY = [*ALL_LOSSES, *LIST_LOSSES, *MANY_LOSSES]


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_every_loss(loss):
    """With every fifth regularizer; with every tenth for further parameters of the same loss."""
    k = EVERY.index(loss)
    step = 5 if all(type(other) is not type(loss) for other in EVERY[:k]) else 10
    names, start = list(REGULARIZERS)[k % step :: step], k // 2 % 2 == 0
    results = {solver: failures(solver, [loss], names, [start]) for solver in SOLVERS}
    assert {solver: messages for solver, messages in results.items() if messages} == {}


@pytest.mark.slow
def test_exponentials_never_raise():
    """Far out, everything overflows: the status must report what was not reached."""
    rng = np.random.default_rng(0)
    X, y = 30 * rng.standard_normal((20, 4)), np.where(rng.random(20) > 0.5, 1.0, -1.0)
    for name in ("L2", "L1", "free Entropy", "free balanced Entropy", "QNorm(3, 1.5)"):
        J = Objective(linear_risk(X, y, Exponential()), REGULARIZERS[name], 1e-3)
        for solver in SOLVERS.values():
            try:
                result = minimize(J, solver, tol=1e-6, max_iter=30)
            except TypeError:
                continue
            assert 0 <= result.lower <= result.value
            assert result.gap <= 1e-6 * result.value or result.status != "converged"


@pytest.mark.parametrize(
    "reg", [Quadratic(np.eye(40)), Quadratic(sp.eye_array(40)), L1(np.ones(500)), Entropy(np.ones(99))]
)
def test_reprs_in_messages_are_one_line(reg):
    assert "\n" not in repr(reg)
    assert len(repr(reg)) < 80


@pytest.mark.slow
def test_the_support_page_is_up_to_date(monkeypatch):
    """`python -m docs.support` writes it."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from docs import support

    assert support.PAGE.read_text(encoding="utf-8") == support.page()


def test_auto_states_its_reason():
    X, y, _ = problem(Hinge())
    risks = {
        "dense": linear_risk(X, y, Hinge()),
        "sparse": linear_risk(sp.csr_array(X), y, Hinge()),
        "intercept": linear_risk(sp.csr_array(X), y, Hinge(), fit_intercept=True),
        "wide": linear_risk(np.hstack([X] * 20), y, Hinge()),
    }
    choices = {name: Auto().choose(Objective(risk, L2(), 0.1)) for name, risk in risks.items()}
    newton, hinge = Newton(), "Hinge is not smooth, and X is"
    assert choices == {
        "dense": (newton, f"{hinge} dense"),
        "sparse": (Switching(DualCoordinateAscent(), newton), f"{hinge} sparse"),
        "intercept": (newton, f"{hinge} small"),
        "wide": (Switching(DualCoordinateAscent(), newton), f"{hinge} wider than long"),
    }
    assert Auto().choose(Objective(risks["sparse"], L2(), 0.1), tol=1e-6)[0].tol == 1e-6
    assert Auto().choose(Objective(risks["sparse"], L1(), 0.1))[0] == InteriorPoint()
    local = linear_risk(X, y, Logistic(), fit_intercept=True)
    remote = replace(local, rows=None)
    chosen = [
        Auto().choose(Objective(risk, reg, 0.1)) for risk in (local, remote) for reg in (L1(), Box(L2()))
    ]
    assert [type(solver).__name__ for solver, _ in chosen] == [
        *["CoordinateDescent"] * 2,
        "OwlQn",
        "ProximalGradient",
    ]
    assert chosen[2][1] == "Logistic is smooth, L1 is not"
    assert Auto().choose(Objective(local, Entropy(), 0.1)) == (Bundle(), "Entropy is not smooth")
