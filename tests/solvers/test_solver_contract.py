"""The contract of solvers, for every registered one and a few with other settings."""

from dataclasses import replace
from functools import cache
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem
from riskmin.executors import Executor, as_backend

OTHERS = {
    "coordinate descent from one column": (rm.CoordinateDescent(start=1), ["logistic", "squared, L1"]),
    "dual without shrinking": (
        rm.DualCoordinateAscent(shrink=False, shuffle=False, damping=1.3),
        ["hinge", "logistic"],
    ),
    "fallback": (rm.Fallback((rm.Lbfgs(), rm.Bundle()), 1e-6), ["absolute", "softmax"]),
    "separable form": (rm.SeparableForm(rm.DualCoordinateAscent()), ["break-even point", "ROC area"]),
    "smoothing with L1": (rm.Smoothing(rm.OwlQn()), ["hinge, L1"]),
    "smoothing with proximal steps": (rm.Smoothing(rm.ProximalGradient()), ["hinge", "ROC area"]),
    "switching": (
        rm.Switching(rm.DualCoordinateAscent(), rm.Newton(), passes_per_digit=0.1),
        ["hinge", "absolute"],
    ),
}
"""Solvers with other settings, and the cases for them."""
INSTANCES = rm.SOLVERS | {name: solver for name, (solver, _) in OTHERS.items()}
SETTINGS = {
    "accelerated_gradient": (0.5, 1e-4),
    "augmented_lagrangian": (0.5, 1e-4),
    "bmrm": (0.5, 1e-5),
    "dual_accelerated": (1.0, 1e-4),
    "dual_gauss_seidel": (0.5, 1e-5),
    "excessive_gap": (1.0, 1e-3),
    "line_search_bmrm": (1.0, 1e-2),
    "pegasos": (1.0, 3e-3),
    "smoothing with L1": (0.05, 1e-4),
    "smoothing": (0.05, 1e-4),
    "smoothing with proximal steps": (0.05, 1e-3),
}
"""lam and tol where they are not 0.05 and 1e-6: these methods are slow for small lam, as theorems state."""
CASES = {
    "squared": Problem(rm.Squared(), n=30),
    "hinge": Problem(rm.Hinge(), n=30, weighted=True),
    "logistic": Problem(rm.Logistic(), n=30, intercept=True, weighted=True),
    "absolute": Problem(rm.Absolute(), n=30, intercept=True),
    "squared, L1": Problem(rm.Squared(), rm.L1(), n=30, intercept=True),
    "hinge, L1": Problem(rm.Hinge(), rm.L1(), n=30),
    "absolute, L1": Problem(rm.Absolute(), rm.L1(), n=30, intercept=True),
    "logistic, L1": Problem(rm.Logistic(), rm.L1(), n=30, intercept=True),
    "softmax": Problem(rm.Softmax(), n=24, p=3, intercept=True),
    "multiclass hinge": Problem(rm.MulticlassHinge(), n=24, p=3, weighted=True),
    "chains": Problem(rm.ChainMaxMargin(), n=12, p=2),
    "F-beta": Problem(rm.FBeta(), p=3),
    "break-even point": Problem(rm.Prbep(), p=3),
    "ROC area": Problem(rm.RocArea(), p=3, weighted=True),
}
DESCENT = {"lbfgs", "scipy"}
"""Methods that accept nonsmooth losses, and may end at a point where the slope jumps."""


def supported(name, case):
    """Whether the minimum is to be certified."""
    problem = CASES[case]
    if name in DESCENT and not problem.loss.smooth:
        return False
    if name in OTHERS:
        return case in OTHERS[name][1]
    return INSTANCES[name].supports(problem.objective()) is None


PAIRS = [(name, case) for name in INSTANCES for case in CASES if supported(name, case)]
each_pair = pytest.mark.parametrize(("name", "case"), PAIRS)
FIRST_CASES = dict(reversed(PAIRS))
each_solver = pytest.mark.parametrize(("name", "case"), FIRST_CASES.items())


@cache
def problem_at(lam, case):
    """The problem, with its optimum computed once."""
    return replace(CASES[case], lam=lam)


def problem_of(name, case):
    return problem_at(SETTINGS.get(name, (0.05, 1e-6))[0], case)


def tolerance(name):
    return SETTINGS.get(name, (0.05, 1e-6))[1]


def saved(iterate):
    """The state as it is read from a file, in which arrays have at least one axis."""
    return {key: np.atleast_1d(np.array(value)) for key, value in iterate.state().items()}


def test_every_solver_has_a_case():
    assert {name for name, _ in PAIRS} == set(INSTANCES)


@each_pair
def test_the_minimum_is_certified(name, case):
    problem = problem_of(name, case)
    J = problem.objective()
    result = rm.minimize(J, INSTANCES[name], tol=tolerance(name), max_iter=5000)
    problem.check(result, tolerance(name))
    assert result.value == pytest.approx(J.value(result.w), rel=1e-9)
    assert result.lower == pytest.approx(J.lower(result.cut), rel=1e-9)
    for before, after in pairwise(result.trace):
        assert after["lower"] >= before["lower"]
    assert all(row["lower"] <= problem.optimum * (1 + 1e-8) for row in result.trace)


@each_pair
def test_values_are_those_of_j_and_cuts_are_below_the_risk(name, case):
    """Values may exceed J by a tenth of the gap, where an intercept is not minimized further."""
    J, rng = problem_of(name, case).objective(), np.random.default_rng(0)
    w0 = 0.3 * rng.standard_normal(J.risk.dim)
    points = [scale * rng.standard_normal(len(w0)) for scale in (0.0, 0.1, 1.0, 10.0) for _ in range(2)]
    risks = [J.risk(v)[0] for v in points]
    start = w0.copy()
    steps = list(islice(INSTANCES[name].iterates(J, w0), 7))
    for it in steps:
        value = J.value(it.w)
        rounding = 1e-9 * (1 + abs(value))
        assert -rounding <= it.value - value <= 0.1 * max(0.0, it.value - J.lower(it.cut)) + rounding
        for v, risk in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= risk + 1e-9 * (1 + risk)
    assert np.array_equal(w0, start)


@each_solver
def test_runs_agree_to_the_last_bit(name, case):
    J = problem_of(name, case).objective()
    one, two = (list(islice(INSTANCES[name].iterates(J, np.zeros(J.risk.dim)), 6)) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert a.w.tobytes() == b.w.tobytes()
        assert a.cut.a.tobytes() == b.cut.a.tobytes()
        assert (a.value, a.cut.b) == (b.value, b.cut.b)


@pytest.mark.parametrize(("name", "case"), [pair for pair in PAIRS if INSTANCES[pair[0]].resumable])
def test_a_saved_state_continues(name, case):
    """With the next iterate, or with one that is no worse than the saved one."""
    solver, J = INSTANCES[name], problem_of(name, case).objective()
    steps = list(islice(solver.iterates(J, np.full(J.risk.dim, 0.1)), 5))
    for it, after in list(pairwise(steps))[::3]:
        first = next(solver.resume(J, saved(it)))
        same = np.allclose(first.w, after.w, rtol=1e-6, atol=1e-6)
        assert same or first.value <= it.value + 1e-9 * (1 + abs(it.value))


def in_parts(stored):
    """Entries in three parts, which SciPy sums: steps by the squares of the parts would be too long."""

    def store(X):
        A = stored(X)
        parts = np.repeat(A.data / 3, 3), np.repeat(A.indices, 3), 3 * A.indptr
        return stored(parts, shape=X.shape)

    return store


STORES = [sp.csr_array, np.asfortranarray, np.float32, in_parts(sp.csr_array), in_parts(sp.csc_array)]


@pytest.mark.parametrize("name", rm.SOLVERS)
def test_all_storage_formats_have_the_same_minimum(name):
    problem = problem_of(name, FIRST_CASES[name])
    for store in STORES:
        same = replace(problem)
        same.X = store(problem.X)
        J = same.objective()
        if INSTANCES[name].supports(J) is not None:
            continue
        result = rm.minimize(J, INSTANCES[name], tol=tolerance(name), max_iter=5000)
        slack = 1e-6 if store is np.float32 else 1e-8
        assert result.status == "converged"
        assert result.lower - slack <= problem.optimum <= result.value + slack


@each_solver
def test_any_start_leads_to_valid_bounds_and_none_to_a_point_worse_than_zero(name, case):
    problem = problem_of(name, case)
    J = problem.objective()
    for w0 in (rm.minimize(J, tol=1e-7).w, np.full(J.risk.dim, 3.0)):
        result = rm.minimize(J, INSTANCES[name], w0, max_iter=2)
        assert problem.optimum <= result.value * (1 + 1e-8)
        assert result.value <= J.value(np.zeros(J.risk.dim)) * (1 + 1e-12)
        assert result.lower <= problem.optimum * (1 + 1e-8)


class Fails(Executor):
    """An executor whose connection is lost after some calls."""

    def __init__(self, calls, shards=()):
        self.calls, self.placed = calls, as_backend(rm.Serial).place(shards) if shards else None

    def __call__(self, shards):
        return Fails(self.calls, shards)

    def map(self, f, *args, each=()):
        self.calls -= 1
        if self.calls < 0:
            raise ConnectionError("the rows cannot be reached")
        return self.placed.map(f, *args, each=each)


REMOTE = [
    (name, case)
    for name, case in FIRST_CASES.items()
    if INSTANCES[name].supports(CASES[case].objective(executor=Fails(100), n_shards=2)) is None
]


@pytest.mark.parametrize(("name", "case"), REMOTE)
@pytest.mark.parametrize("calls", [0, 3])
def test_a_failure_of_the_oracle_ends_the_run_with_its_own_error(name, case, calls):
    J = problem_of(name, case).objective(executor=Fails(calls), n_shards=2)
    with pytest.raises(ConnectionError, match="the rows cannot be reached"):
        rm.minimize(J, INSTANCES[name], tol=1e-12)
