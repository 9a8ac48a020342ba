"""Checks of the contract of solvers."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from riskmin.core import Array, Iterate, Solver, as_solver
from riskmin.driver.loop import minimize
from riskmin.losses import Absolute, Hinge, Logistic, Novelty, Poisson, Squared, SquaredHinge
from riskmin.losses.base import Loss
from riskmin.problem.linear_risk import linear_risk
from riskmin.problem.objective import Objective
from riskmin.regularizers import L2
from riskmin.solvers.bundle.bundle import Bundle
from riskmin.testing.base import Rng, require

BOUND_ROUNDING_RTOL = 1e-9
"""Relative error of bounds and values that is attributed to rounding."""


class _SolvedProblem(NamedTuple):
    """A small problem whose minimum is known to lie in [lower, upper]."""

    name: str
    obj: Objective
    lower: float
    upper: float


def check_solver(
    solver: Solver,
    *,
    smooth: bool = False,
    nonsmooth: bool = False,
    tol: float = 1e-4,
    max_iter: int = 10_000,
    seed: int = 0,
) -> None:
    """Check that a solver converges, and that its iterates have correct values and valid cuts.

    The checks run on a few small problems with known minima: each iterate's value must be J at its point (or
    exceed it by at most a tenth of the gap), and its cut must lie below the risk everywhere; the certified
    gap must reach tol and contain the known minimum; w0 must not be modified; two runs must agree to the
    last bit; and a resumable solver must continue from its saved state. Problems that it does not
    support, by its method `supports`, are left out.

    Parameters
    ----------
    solver : Solver
        The solver to check; it must support `L2`.
    smooth : bool
        Check smooth losses only, for solvers that do not support nonsmooth ones.
    nonsmooth : bool
        Check nonsmooth losses only, for solvers that do not support smooth ones.
    tol : float
        The relative certified gap that must be reached.
    max_iter : int
        The limit of iterations.
    seed : int
        The seed of the random problems.

    Raises
    ------
    AssertionError
        Names the property that fails, and the problem.

    Examples
    --------
    >>> from riskmin import Lbfgs
    >>> check_solver(Lbfgs(), smooth=True)
    """
    rng = np.random.default_rng(seed)
    cases = [c for c in _solved_problems(rng, smooth, nonsmooth) if as_solver(solver).supports(c.obj) is None]
    require(bool(cases), solver, "it supports none of the problems")
    for case in cases:
        w0 = rng.standard_normal(case.obj.risk.dim)
        _check_iterates(solver, case, w0, rng)
        _check_run(solver, case, w0, tol, max_iter)
        if as_solver(solver).resumable:
            _check_resumption(solver, case, w0)


# ---------------------------------------------------------------- the problems
def _solved_problems(rng: Rng, smooth: bool, nonsmooth: bool) -> list[_SolvedProblem]:
    n, p = 30, 4
    X = rng.standard_normal((n, p))
    z = X @ rng.standard_normal(p) + 0.5 * rng.standard_normal(n)
    # labels for classification, and counts for the Poisson loss
    y, counts = np.where(z > 0, 1.0, -1.0), np.minimum(np.floor(np.exp(z)), 9.0)
    cases = []
    if not nonsmooth:
        cases = [
            _ridge_regression(X, z, 0.1),
            _solve(Logistic(), X, y, 0.01, False),
            _solve(SquaredHinge(), X, y, 0.1, True),
            _solve(Poisson(), X, counts, 0.1, True),
        ]
    if smooth:
        return cases
    # max(0, 1 - w) + w^2 has its minimum 3/4 at w = 1/2
    one = Objective(linear_risk(np.ones((1, 1)), None, Novelty()), L2(), 2.0)
    return [
        *cases,
        _SolvedProblem("max(0, 1 - w) + w^2", one, 0.75, 0.75),
        _solve(Hinge(), X, y, 0.01, False),
        _solve(Hinge(), np.repeat(X, 2, axis=1), y, 0.1, True),
        _solve(Absolute(), X, z, 0.1, True),
    ]


def _ridge_regression(X: Array, y: Array, lam: float) -> _SolvedProblem:
    """Ridge regression, solved by the normal equations."""
    n, p = X.shape
    w = np.linalg.solve(X.T @ X / n + lam * np.eye(p), X.T @ y / n)
    minimum = 0.5 * float(np.mean((X @ w - y) ** 2)) + 0.5 * lam * float(w @ w)
    return _SolvedProblem(
        "ridge regression", Objective(linear_risk(X, y, Squared()), L2(), lam), minimum, minimum
    )


def _solve(loss: Loss, X: Array, y: Array, lam: float, intercept: bool) -> _SolvedProblem:
    """A problem whose minimum is bracketed by a long run of the bundle method."""
    obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), lam)
    best = minimize(obj, Bundle(), tol=1e-9, max_iter=3000)
    name = f"{loss!r}, lam={lam:g}{', intercept' if intercept else ''}"
    return _SolvedProblem(name, obj, best.lower, best.value)


# ---------------------------------------------------------------- the properties
def _check_iterates(solver: Solver, case: _SolvedProblem, w0: Array, rng: Rng) -> None:
    """Check values and cuts of the first iterates, as the solver yields them."""
    obj, w0_copy = case.obj, w0.copy()
    # a cut is compared with the risk at 0, at random points of three sizes, and near the minimizer
    points = [rng.standard_normal(len(w0)) * scale for scale in (0.0, 0.1, 1.0, 10.0) for _ in range(5)]
    points.append(minimize(obj, Bundle(), tol=1e-6, max_iter=3000).w)
    risks = [obj.risk(v)[0] for v in points]
    for k, it in enumerate(islice(solver.iterates(obj, w0), 15)):
        where = f"iterate {k} of {case.name}"
        value = obj.value(it.w)
        for v, r in zip(points, risks, strict=True):
            bound = float(it.cut.a @ v) + it.cut.b
            wrong = f"the cut of {where} is {bound:.12g} at a point where the risk is {r:.12g}"
            require(bound <= r + BOUND_ROUNDING_RTOL * (1 + abs(r)), solver, wrong)
        wrong = f"{where} claims J = {it.value:.15g}, but it is {value:.15g}"
        # inexact values may exceed J by a tenth of the gap
        highest = value + 0.1 * max(0.0, value - obj.lower(it.cut))
        require(it.value >= value or _equal_within_rounding(it.value, value), solver, wrong)
        require(it.value <= highest or _equal_within_rounding(it.value, highest), solver, wrong)
    require(np.array_equal(w0, w0_copy), solver, f"w0 was changed on {case.name}")


def _check_run(solver: Solver, case: _SolvedProblem, w0: Array, tol: float, max_iter: int) -> None:
    """Check that a run converges, that its gap contains the minimum, and that a second run is identical."""
    one, two = (minimize(case.obj, solver, w0, tol=tol, max_iter=max_iter) for _ in range(2))
    # [lower, upper] holds the minimum: a bound may not exceed upper, a value not fall below lower
    rounding = BOUND_ROUNDING_RTOL * (1 + case.upper)
    ended = f"{case.name} ended as {one.status} after {one.n_iter} iterations with a gap of {one.gap:.3g}"
    require(one.status == "converged", solver, ended)
    require(0 <= one.gap <= tol * one.value, solver, f"the gap of {case.name} is {one.gap:.3g}")
    wrong = f"the bound {one.lower:.12g} of {case.name} is above its minimum, {case.upper:.12g}"
    require(one.lower <= case.upper + rounding, solver, wrong)
    wrong = f"the value {one.value:.12g} of {case.name} is below its minimum, {case.lower:.12g}"
    require(one.value >= case.lower - rounding, solver, wrong)
    same = np.array_equal(one.w, two.w) and one.value == two.value and one.lower == two.lower
    require(same, solver, f"two runs on {case.name} differ")


def _check_resumption(solver: Solver, case: _SolvedProblem, w0: Array) -> None:
    """Check that a resumed run continues with the next iterate, or with one no worse than the saved one."""
    steps = list(islice(solver.iterates(case.obj, w0), 6))
    for k, (it, after) in enumerate(pairwise(steps)):
        require(it.state is not None, solver, "it has a resume method, but its iterates have no state")
        assert it.state is not None
        # arrays read from a file have at least one axis
        saved = {name: np.atleast_1d(np.array(a, copy=True)) for name, a in it.state().items()}
        first = next(as_solver(solver).resume(case.obj, saved))  # type: ignore[arg-type]
        wrong = f"resumed at iterate {k} of {case.name}, it continues differently from the first run"
        no_worse = first.value <= it.value or _equal_within_rounding(first.value, it.value)
        require(no_worse or _same_point(first, after), solver, wrong)


def _same_point(one: Iterate, other: Iterate) -> bool:
    """Whether two iterates agree up to rounding: cached and recomputed scores differ in the last bits."""
    return bool(np.allclose(one.w, other.w, rtol=1e-6, atol=1e-6))


def _equal_within_rounding(a: float, b: float) -> bool:
    return abs(a - b) <= BOUND_ROUNDING_RTOL * (1 + abs(b))
