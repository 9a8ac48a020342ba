"""Every loss with every regularizer and solver: the optimum, or a sentence that names another solver."""

import itertools
import re
from dataclasses import replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
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
    DualGaussSeidel,
    Elastic,
    Entropy,
    Exponential,
    Hinge,
    Lbfgs,
    Logistic,
    Objective,
    Poisson,
    ProximalGradient,
    QNorm,
    Quadratic,
    SemismoothNewton,
    Smoothing,
    Switching,
    linear_risk,
    minimize,
)


@cache
def regularizers(dim):
    """For w of that length."""
    W = np.resize([0.5, 1.0, 2.0, 0.7], dim)
    return {
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


REGULARIZERS = regularizers(4)
W, K = REGULARIZERS["Entropy"].prior, REGULARIZERS["Quadratic"].K
VARIANTS = {
    "weighted L2": L2(W),
    "weighted L1": L1(W),
    "weighted Elastic": Elastic(2.0, W),
    "sparse Quadratic": Quadratic(sp.csr_array(K)),
    "operator Quadratic": Quadratic(spl.aslinearoperator(K)),
}
# The methods of the papers are slow where lam is small, as their theorems say; so are gradient steps.
SETTINGS = {
    "accelerated_gradient": (1.0, 1e-4),
    "bmrm": (0.5, 1e-5),
    "line_search_bmrm": (10.0, 1e-4),
    "dual": (0.1, 1e-5),
}
TRUST = 2e-8
"""How well the reference is known."""
NAMES = "|".join(n for n in dir(riskmin) if hasattr(getattr(riskmin, n), "iterates"))


@cache
def reference(loss, name, lam, intercept):
    """The least J by cvxpy; where that gives up, by Bundle, or by what Auto picks where that does not do."""
    X, y, weights = problem(loss)
    J = objective(loss, name, lam, intercept)
    many = lengths(len(y)) if loss.task == "tagging" else None
    best = optimum(loss, J.reg.penalized_part, X, y, weights, lam, intercept, QUERIES, many)
    if np.isfinite(best):
        return best
    return minimize(J, Auto() if intercept and loss in MANY_LOSSES else Bundle(), tol=1e-9).value


def objective(loss, name, lam, intercept):
    X, y, weights = problem(loss)
    risk = risk_of(loss, X, y, weights, fit_intercept=intercept)
    dim = risk.dim - getattr(risk, "n_intercepts", 0)
    return Objective(risk, (regularizers(dim) | VARIANTS)[name], lam)


def stalls(solver, J):
    """Whether kinks stop the solver: L-BFGS by itself; or gradient steps are too many, bounds in the way."""
    picked = solver.choose(J)[0] if isinstance(solver, Auto) else solver
    return isinstance(picked, Lbfgs) or picked == Smoothing(ProximalGradient())


def verdict(solver, loss, name, intercept):
    """What is wrong; None if the solver finds the optimum, or says in one sentence what to use instead."""
    lam, tol = SETTINGS.get(solver, (0.05, 1e-6))
    J = objective(loss, name, lam, intercept)
    may_stall = not loss.smooth and stalls(SOLVERS[solver], J)  # and says so
    try:
        result = minimize(J, SOLVERS[solver], tol=tol, max_iter=50 if may_stall else 5000)
    except (TypeError, ValueError) as error:
        names = re.search(rf"use .*\b({NAMES})\b", str(error))
        return None if names and "\n" not in str(error) else f"refuses with {error!s}"
    best = reference(loss, name, lam, intercept)
    slack = TRUST * (1 + best)
    if not result.lower <= best + slack:
        return f"the bound {result.lower} is above the least J, {best}"
    if not result.value >= best - slack:
        return f"the value {result.value} is below the least J, {best}"
    if may_stall:
        return None
    if not result.value <= best * (1 + max(1e-5, tol)) + slack:
        return f"the value {result.value} is above the least J, {best}: {result.status}"
    if result.status != "converged" and best > TRUST:
        return f"it ended as {result.status} with a gap of {result.gap / result.value:.1e}"
    return None


def verdicts(solver, losses, names, intercepts):
    """All that is wrong with a solver on these problems."""
    found = {}
    for loss in losses:
        for k, name in enumerate(names):
            for intercept in intercepts if len(intercepts) == 2 else [bool(k % 2) != intercepts[0]]:
                can = not loss.fixed_positive_count and loss.task != "tagging"
                wrong = verdict(solver, loss, name, intercept and can)
                if wrong is not None:
                    found[f"{loss!r}, {name}{', intercept' if intercept else ''}"] = wrong
    return found


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_regularizer(solver):
    """By turns with an intercept and without."""
    assert verdicts(solver, [Hinge()], REGULARIZERS, [False]) == {}
    assert verdicts(solver, [Logistic()], REGULARIZERS, [True]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_variant_of_a_regularizer(solver):
    assert verdicts(solver, [Hinge(), Logistic(), Poisson()], VARIANTS, [False, True]) == {}


@pytest.mark.parametrize("solver", SOLVERS)
def test_losses_of_lists(solver):
    """Each with one regularizer, by turns with an intercept and without."""
    names = itertools.cycle(REGULARIZERS)
    for k, (loss, name) in enumerate(zip(LIST_LOSSES, names, strict=False)):
        assert verdicts(solver, [loss], [name], [k % 2 == 0]) == {}


@pytest.mark.slow
def test_losses_of_many_scores():
    """Each with one regularizer, by turns with an intercept and without; with every solver below."""
    for k, (loss, name) in enumerate(zip(MANY_LOSSES, itertools.cycle(REGULARIZERS), strict=False)):
        assert verdicts("auto", [loss], [name], [k % 2 == 0]) == {}


EVERY = [*ALL_LOSSES, *LIST_LOSSES, *MANY_LOSSES]


@pytest.mark.slow
@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_every_loss(loss):
    """With every other regularizer, by turns; of a loss with other parameters, with every fourth."""
    k = EVERY.index(loss)
    step = 2 if all(type(other) is not type(loss) for other in EVERY[:k]) else 4
    names, start = list(REGULARIZERS)[k % step :: step], k // 2 % 2 == 0
    found = {solver: verdicts(solver, [loss], names, [start]) for solver in SOLVERS}
    assert {solver: wrong for solver, wrong in found.items() if wrong} == {}


def test_exponentials_never_end_in_an_error():
    """Far out, everything overflows: what is not reached must be said by the status."""
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
def test_what_ends_up_in_messages_is_one_line(reg):
    assert "\n" not in repr(reg)
    assert len(repr(reg)) < 80


@pytest.mark.slow
def test_the_page_is_up_to_date():
    """`python -m docs.support` writes it."""
    spec = spec_from_file_location("support", Path(__file__).parents[2] / "docs" / "support.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page()


def test_auto_says_why():
    X, y, _ = problem(Hinge())
    kinks = {
        "dense": linear_risk(X, y, Hinge()),
        "sparse": linear_risk(sp.csr_array(X), y, Hinge()),
        "intercept": linear_risk(sp.csr_array(X), y, Hinge(), fit_intercept=True),
        "wide": linear_risk(np.hstack([X] * 20), y, Hinge()),
    }
    said = {name: Auto().choose(Objective(risk, L2(), 0.1)) for name, risk in kinks.items()}
    newton, hinge = SemismoothNewton(), "Hinge is not smooth, and X is"
    assert said == {
        "dense": (newton, f"{hinge} dense"),
        "sparse": (Switching(DualGaussSeidel(), newton), f"{hinge} sparse"),
        "intercept": (newton, f"{hinge} not wide"),
        "wide": (DualGaussSeidel(), f"{hinge} wider than long"),
    }
    assert Auto().choose(Objective(kinks["sparse"], L2(), 0.1), tol=1e-6)[0].tol == 1e-6
    assert Auto().choose(Objective(kinks["sparse"], L1(), 0.1))[0] == Bundle()
    here = linear_risk(X, y, Logistic(), fit_intercept=True)
    there = replace(here, risk=replace(here.risk, rows=None))
    chosen = [Auto().choose(Objective(risk, reg, 0.1)) for risk in (here, there) for reg in (L1(), Box(L2()))]
    assert [type(solver).__name__ for solver, _ in chosen] == [
        *["CoordinateDescent"] * 2,
        "OwlQn",
        "ProximalGradient",
    ]
    assert chosen[2][1] == "Logistic is smooth, L1 is not"
    assert Auto().choose(Objective(here, Entropy(), 0.1)) == (Bundle(), "Entropy is not smooth")
