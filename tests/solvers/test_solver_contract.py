"""The contract of solvers, for every registered one and for others with settings of their own."""

from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem, name_of
from riskmin.executors import Executor, as_backend
from solver_cases import CASES, DUALS, FIRST, KINDS, REGISTERED, raw_bound

each_case = pytest.mark.parametrize("case", CASES, ids=repr)
each_solver = pytest.mark.parametrize("case", FIRST, ids=repr)


def saved(iterate):
    """The state as it is read from a file, in which arrays have at least one axis."""
    return {key: np.atleast_1d(np.array(value)) for key, value in iterate.state().items()}


@each_case
def test_the_minimum_is_certified(case):
    J, problem = case.objective, case.problem
    result = rm.minimize(J, case.solver, tol=case.tol, max_iter=5000)
    if problem.optimum > 1e-8:  # no relative gap can prove an optimum of 0
        problem.check(result, case.tol)
    assert result.value == pytest.approx(J.value(result.w), rel=1e-9, abs=1e-15)
    assert result.lower == pytest.approx(J.lower(result.cut), rel=1e-9, abs=1e-15)
    assert [row["iteration"] for row in result.trace] == list(range(1, result.n_iter + 1))
    for before, after in pairwise(result.trace):
        assert all(after[name] >= before[name] for name in ("lower", "calls", "seconds"))
        assert after["value"] <= before["value"] * (1 + 1e-9)
        assert after["gap"] == after["value"] - after["lower"] >= 0
    slack = 1e-8 * max(1.0, problem.optimum)
    assert all(row["lower"] - slack <= problem.optimum <= row["value"] + slack for row in result.trace)


@each_case
def test_iterates_are_valid_and_a_saved_state_continues(case):
    """Values may exceed J by a tenth of the gap before, where an intercept is not minimized further.

    A saved state continues with the next iterate, or with one that is no worse than the saved one; a smoothed
    stage may end at a saved state. That of dual ascent continues to the last bit where rows have one score.
    """
    J, solver, rng = case.objective, case.solver, np.random.default_rng(0)
    w0 = J.reg.prox(0.3 * rng.standard_normal(J.risk.dim), 0.0)
    points = [size * rng.standard_normal(len(w0)) for size in (0.0, 0.1, 1.0, 10.0) for _ in range(2)]
    risks, start = [J.risk(v)[0] for v in points], w0.copy()
    run = solver.iterates(J, w0)
    early = next(run)
    state = saved(early) if solver.resumable else {}
    steps = [early, *islice(run, 7)]
    assert np.array_equal(w0, start)
    # a state is written while the solver continues
    assert all(np.array_equal(a, saved(early)[name]) for name, a in state.items())
    gaps = [max(0.0, it.value - J.lower(it.cut)) for it in steps]
    for it, before, gap in zip(steps, [np.inf, *gaps], gaps, strict=False):
        value = J.value(it.w)
        excess = 0.1 * max(before, gap) if case.problem.intercept else 0.0
        rounding = 1e-10 * (1 + abs(value))
        assert -rounding <= it.value - value <= excess + rounding
        assert not it.cut.a[J.risk.dim - getattr(J.risk, "n_intercepts", 0) :].any()  # it would bound nothing
        for v, risk in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= risk + 1e-10 * (1 + risk)
    if not case.problem.intercept and isinstance(
        solver, rm.DualCoordinateAscent | rm.DualGaussSeidel | rm.ChainAscent
    ):
        bounds = [raw_bound(J, it) for it in steps][1:]  # the first bound precedes the scaling
        assert all(b >= a - 1e-9 * (1 + abs(a)) for a, b in pairwise(bounds))
    for it, after in list(pairwise(steps))[::3] if solver.resumable else ():
        first = next(solver.resume(J, saved(it)), it)
        if first.info.get("mu") != after.info.get("mu"):
            continue
        same = np.allclose(first.w, after.w, rtol=1e-6, atol=1e-6)
        if isinstance(solver, rm.DualCoordinateAscent) and not case.problem.loss.multi_output:
            assert first.w.tobytes() == after.w.tobytes()
            assert (first.cut.a.tobytes(), first.cut.b) == (after.cut.a.tobytes(), after.cut.b)
        no_worse = first.value <= it.value + 1e-9 * (1 + abs(it.value))
        assert same or (
            no_worse and (case.problem.intercept or not isinstance(solver, rm.DualCoordinateAscent))
        )


def bits(solver, J, count=6):
    steps = islice(solver.iterates(J, np.zeros(J.risk.dim)), count)
    return [(it.w.tobytes(), it.value, it.cut.a.tobytes(), it.cut.b) for it in steps]


@each_solver
def test_runs_agree_to_the_last_bit(case):
    assert bits(case.solver, case.objective) == bits(case.solver, case.objective)


def test_long_pairs_of_lbfgs_have_the_same_bits_on_threads():
    data = Problem(rm.Logistic(), n=6, p=40_000, lam=10.0)
    one, two = (data.objective(executor=a, n_shards=2) for a in (rm.Serial(), rm.Threads(n_workers=2)))
    assert bits(rm.Lbfgs(), one) == bits(rm.Lbfgs(), two)


@pytest.mark.parametrize("case", [*FIRST, *DUALS[::4]], ids=repr)
def test_a_path_from_a_larger_lam_ends_at_the_minimum(case):
    J = case.objective
    _, result = rm.path(J.risk, J.reg, [3 * J.lam, J.lam], solver=case.solver, tol=case.tol, max_iter=5000)
    case.problem.check(result, case.tol)


@pytest.mark.parametrize("kind", ["hinge", "multiclass hinge"])
def test_seeds_decide_the_order_of_the_rows(kind):
    J = KINDS[kind].objective()
    one, two = (bits(rm.DualCoordinateAscent(seed=seed), J) for seed in (1, 2))
    assert one[1] != two[1]
    one, two = (bits(rm.DualCoordinateAscent(seed=seed, shuffle=False), J) for seed in (1, 2))
    assert one == two


def in_parts(stored):
    """Entries in three parts, which SciPy sums: steps by the squares of the parts would be too long."""

    def in_three_parts(X):
        A = stored(X)
        parts = np.repeat(A.data / 3, 3), np.repeat(A.indices, 3), 3 * A.indptr
        return stored(parts, shape=X.shape)

    return in_three_parts


STORES = [sp.csr_array, np.asfortranarray, np.float32, in_parts(sp.csr_array), in_parts(sp.csc_array)]


@pytest.mark.parametrize("store", STORES, ids=name_of)
@pytest.mark.parametrize("case", [cases[0] for cases in REGISTERED.values()], ids=repr)
def test_all_storage_formats_have_the_same_minimum(case, store):
    stored = replace(case.problem)
    stored.X = store(case.problem.X)
    J = stored.objective()
    if case.solver.supports(J) is None:
        result = rm.minimize(J, case.solver, tol=case.tol, max_iter=5000)
        slack = 1e-6 if store is np.float32 else 1e-8
        assert result.status == "converged"
        assert result.lower - slack <= case.problem.optimum <= result.value + slack


@each_solver
def test_any_start_leads_to_valid_bounds_and_none_to_a_point_worse_than_zero(case):
    J, optimum = case.objective, case.problem.optimum
    for w0 in (rm.minimize(J, tol=1e-7).w, np.full(J.risk.dim, 3.0)):
        result = rm.minimize(J, case.solver, w0, max_iter=2)
        assert optimum <= result.value * (1 + 1e-8)
        assert result.value <= J.value(np.zeros(J.risk.dim)) * (1 + 1e-12)
        assert result.lower <= optimum * (1 + 1e-8)


@pytest.mark.parametrize(
    ("solver", "loss", "lam"),
    [
        *((a, rm.Logistic(), 0.05) for a in (rm.ProximalGradient(), rm.OwlQn(), rm.CoordinateDescent(8))),
        *((rm.Bundle(), rm.Hinge(), 0.1), (rm.InteriorPoint(), rm.Hinge(), 1e-3)),
    ],
    ids=repr,
)
def test_few_of_many_weights_are_not_zero(solver, loss, lam):
    """Zeros are exact, not small numbers, and the slopes meet the optimality conditions."""
    X = np.random.default_rng(0).standard_normal((60, 200))
    J = rm.Objective(rm.linear_risk(X, np.sign(X[:, :3].sum(axis=1)), loss), rm.L1(), lam)
    result = rm.minimize(J, solver, tol=1e-6 if loss.smooth else 1e-3)
    assert result.status == "converged"
    assert 3 <= np.count_nonzero(result.w) <= 60  # at a vertex of the polyhedron, one per row
    slopes = np.abs(J.risk(result.w)[1]) if loss.smooth else np.abs(result.cut.a)
    assert np.all(slopes <= lam * (1 + (1e-2 if loss.smooth else 1e-6)))
    assert not loss.smooth or np.abs(slopes[result.w != 0] / lam - 1).max() < 1e-2


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


def remote(case, calls):
    return case.problem.objective(executor=Fails(calls), n_shards=2)


REMOTE = [case for case in FIRST if case.solver.supports(remote(case, 100)) is None]


@pytest.mark.parametrize("case", REMOTE, ids=repr)
@pytest.mark.parametrize("calls", [0, 3])
def test_a_failure_of_the_oracle_ends_the_run_with_its_own_error(case, calls):
    with pytest.raises(ConnectionError, match="the rows cannot be reached"):
        rm.minimize(remote(case, calls), case.solver, tol=1e-12)
