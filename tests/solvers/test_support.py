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

import riskmin as rm
from helpers import ALL_LOSSES, LIST_LOSSES, MANY_LOSSES, QUERIES, Problem, lengths
from reference import optimum
from riskmin.core import UnsupportedProblem
from solver_cases import SETTINGS, W4, regularizers

K = np.diag(W4) + 0.4
VARIANTS = [
    *(rm.L2(W4), rm.L1(W4), rm.Elastic(2.0, W4)),
    *(rm.Quadratic(sp.csr_array(K)), rm.Quadratic(spl.aslinearoperator(K))),
]
"""Regularizers of four weights."""
REGULARIZERS = range(len(regularizers(4)))
"""By their numbers, since they depend on the number of weights."""
REFERENCE_ACCURACY = 2e-8
"""The accuracy of the reference optima."""
NAMES = "|".join(n for n in dir(rm) if hasattr(getattr(rm, n), "iterates"))


@cache
def objective(loss, name, lam, intercept):
    problem = Problem(loss, lam=lam, n=30, weighted=True, intercept=intercept)
    J = problem.objective()
    dim = J.risk.dim - getattr(J.risk, "n_intercepts", 0)
    return problem, replace(J, reg=[*regularizers(dim), *VARIANTS][name])


@cache
def reference(loss, name, lam, intercept):
    """The minimum of J by cvxpy; if that fails, by Bundle, or by Auto for multi-output intercepts."""
    problem, J = objective(loss, name, lam, intercept)
    sequence_lengths = lengths(problem.n) if loss.task == "tagging" else None
    data = problem.X, problem.y, problem.weights
    best = optimum(loss, J.reg.penalized_part, *data, lam, intercept, QUERIES, sequence_lengths)
    if np.isfinite(best):
        return best
    return rm.minimize(J, rm.Auto() if intercept and loss in MANY_LOSSES else rm.Bundle(), tol=1e-9).value


def may_not_converge(solver, J):
    """Whether the solver may stall on nonsmooth losses: quasi-Newton methods, or too many proximal steps."""
    chosen = solver.choose(J)[0] if isinstance(solver, rm.Auto) else solver
    return isinstance(chosen, (rm.Lbfgs, rm.ScipyMinimizer)) or chosen == rm.Smoothing(rm.ProximalGradient())


def refusal(solver, J, reason):
    """What is wrong with a refusal; None if it is raised, in one sentence, with the name of a solver."""
    with pytest.raises(UnsupportedProblem) as raised:
        next(iter(solver.iterates(J, J.reg.conjugate_grad(np.zeros(J.risk.dim)))))
    if str(raised.value) != reason:
        return f"refuses with {raised.value!s}, and supports says {reason!s}"
    names = re.search(rf"use .*\b({NAMES})\b", reason)
    return None if names and "\n" not in reason else f"refuses with {reason!s}"


def failure(solver, loss, name, intercept):
    """A description of what is wrong; None if the solver finds the optimum or raises an error with advice."""
    lam, tol = SETTINGS.get(solver, (0.05, 1e-6))
    _, J = objective(loss, name, lam, intercept)
    if (reason := rm.SOLVERS[solver].supports(J)) is not None:
        return refusal(rm.SOLVERS[solver], J, reason)
    may_stall = not loss.smooth and may_not_converge(rm.SOLVERS[solver], J)  # the status then reports it
    result = rm.minimize(J, rm.SOLVERS[solver], tol=tol, max_iter=50 if may_stall else 5000)
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


def failures(solver, cases):
    """All failures of a solver on these losses, regularizers and intercepts."""
    results = {}
    for loss, name, intercept in cases:
        supports_intercept = not loss.fixed_positive_count and loss.task != "tagging"
        message = failure(solver, loss, name, intercept and supports_intercept)
        if message is not None:
            results[f"{loss!r}, regularizer {name}{', intercept' if intercept else ''}"] = message
    return results


@pytest.mark.parametrize("solver", rm.SOLVERS)
def test_every_regularizer(solver):
    """Alternating with and without an intercept, for a loss that is smooth and one that is not."""
    losses = itertools.cycle(
        [(rm.Hinge(), False), (rm.Logistic(), True), (rm.Hinge(), True), (rm.Logistic(), False)]
    )
    cases = [
        (loss, name, b)
        for name, (loss, b) in zip(range(len(REGULARIZERS) + len(VARIANTS)), losses, strict=False)
    ]
    assert failures(solver, cases) == {}


@pytest.mark.parametrize("solver", rm.SOLVERS)
def test_other_scores_are_refused_in_the_words_of_supports(solver):
    """Several scores per row, and losses that are no sums over rows."""
    for k, (loss, name) in enumerate(itertools.product((MANY_LOSSES[0], LIST_LOSSES[0]), REGULARIZERS)):
        _, J = objective(loss, name, 0.1, loss is MANY_LOSSES[0] and k % 2 == 0)
        if (reason := rm.SOLVERS[solver].supports(J)) is not None:
            assert refusal(rm.SOLVERS[solver], J, reason) is None


@pytest.mark.slow
@pytest.mark.parametrize("solver", rm.SOLVERS)
def test_nondecomposable_losses(solver):
    """Each with one regularizer, alternating with and without an intercept."""
    pairs = zip(LIST_LOSSES, itertools.cycle(REGULARIZERS), strict=False)
    assert failures(solver, [(*pair, k % 2 == 1) for k, pair in enumerate(pairs)]) == {}


EVERY = [*ALL_LOSSES, *LIST_LOSSES, *MANY_LOSSES]


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", EVERY, ids=repr)
def test_every_loss(loss):
    """With every fifth regularizer; with every tenth for further parameters of the same loss."""
    k = EVERY.index(loss)
    step = 5 if all(type(other) is not type(loss) for other in EVERY[:k]) else 10
    names = list(REGULARIZERS)[k % step :: step]
    cases = [(loss, name, (i + k // 2) % 2 == 1) for i, name in enumerate(names)]
    results = {solver: failures(solver, cases) for solver in rm.SOLVERS}
    assert {solver: messages for solver, messages in results.items() if messages} == {}


@pytest.mark.slow
def test_exponentials_never_raise():
    """Far out, everything overflows: the status must report what was not reached."""
    rng = np.random.default_rng(0)
    X, y = 30 * rng.standard_normal((20, 4)), np.where(rng.random(20) > 0.5, 1.0, -1.0)
    free = (rm.Entropy(normalized=False, balanced=balanced) for balanced in (False, True))
    for reg in (rm.L2(), rm.L1(), *free, rm.QNorm(3.0, 1.5)):
        J = rm.Objective(rm.linear_risk(X, y, rm.Exponential()), reg, 1e-3)
        for solver in rm.SOLVERS.values():
            if solver.supports(J) is None:
                result = rm.minimize(J, solver, tol=1e-6, max_iter=30)
                assert 0 <= result.lower <= result.value
                assert result.gap <= 1e-6 * result.value or result.status != "converged"


@pytest.mark.parametrize(
    "reg",
    [rm.Quadratic(np.eye(40)), rm.Quadratic(sp.eye_array(40)), rm.L1(np.ones(500)), rm.Entropy(np.ones(99))],
)
def test_reprs_in_messages_are_one_line(reg):
    assert "\n" not in repr(reg)
    assert len(repr(reg)) < 80


@pytest.mark.slow
def test_the_pages_of_solvers_are_up_to_date(monkeypatch):
    """`python -m docs.support` writes them."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from docs import support

    assert support.PAGE.read_text(encoding="utf-8") == support.page()
    assert support.SOLVERS_PAGE.read_text(encoding="utf-8") == support.solvers_page()
