"""A solver that stalls, fails or refuses ends its own turn: the next one continues from the best point."""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import LIST_LOSSES, MANY_LOSSES, Problem, problem, risk_of
from riskmin.core import Cut, Iterate, Solver, SolverFailed, UnsupportedProblem
from solver_cases import regularizers


def objective(loss=None, lam=1e-3):
    return Problem(loss or rm.Hinge(), lam=lam, n=80, p=3, intercept=True).objective()


@dataclass(frozen=True)
class Stuck:
    """Yields the same point forever, or a number of times."""

    times: int = 10**9

    def iterates(self, obj, w0):
        value, _, cut = obj(w0)
        for _ in range(self.times):
            yield Iterate(w0, value, Cut(0.0 * cut.a, 0.0))


@dataclass(frozen=True)
class Refuses:
    def iterates(self, obj, w0):
        raise UnsupportedProblem("not for me")


@dataclass(frozen=True)
class Breaks:
    """Takes some steps of a bundle method, then raises an exception."""

    steps: int
    error: type[Exception] = IndexError

    def iterates(self, obj, w0):
        if self.steps:
            yield from islice(rm.Bundle().iterates(obj, w0), self.steps)
        raise self.error("index 7 is out of bounds")


class Silent:
    """Yields nothing."""

    def iterates(self, obj, w0):
        return iter(())


@pytest.mark.parametrize("first", [Stuck(), Stuck(3), Refuses(), Breaks(1, np.linalg.LinAlgError)], ids=repr)
def test_the_next_solver_continues_after_a_stall(first):
    data = Problem(lam=1e-3, n=80, p=3, intercept=True)
    data.check(rm.minimize(data.objective(), rm.Portfolio((first, rm.Bundle()), 1e-6), tol=1e-6))


def test_the_best_point_and_bound_are_passed_on():
    start_values = []

    @dataclass(frozen=True)
    class RecordsStart:
        def iterates(self, obj, w0):
            start_values.append(obj.value(w0))
            yield from Stuck(1).iterates(obj, w0)

    solver = rm.Portfolio((rm.Lbfgs(), RecordsStart(), Stuck(2)), 1e-14)
    result = rm.minimize(objective(rm.Logistic()), solver, tol=0.0, atol=0.0, max_iter=200)
    assert start_values[0] == pytest.approx(result.value, rel=1e-9)
    assert result.value - result.lower <= 1e-9 * result.value


def test_a_run_ends_when_no_solver_makes_progress():
    result = rm.minimize(objective(), rm.Portfolio((Stuck(2), Stuck(3)), 1e-6), tol=1e-6)
    assert result.status == "stalled"
    assert result.n_iter == 5


@dataclass(frozen=True)
class Creeps:
    """Raises the bound by a billionth of J in each step."""

    def iterates(self, obj, w0):
        value, _, cut = obj(w0)
        for k in range(10**9):
            yield Iterate(w0, value, Cut(0.0 * cut.a, 1e-9 * k * value), {"passes": float(k)})


def test_a_run_ends_when_more_and_more_work_gains_nearly_nothing():
    result = rm.minimize(objective(), rm.Portfolio((Creeps(), Creeps()), 1e-6, trial=10), tol=1e-6)
    assert result.status == "stalled"
    assert result.n_iter < 100


def test_a_run_goes_on_while_the_value_decreases_without_a_bound():
    @dataclass(frozen=True)
    class LateBounds:
        def iterates(self, obj, w):
            for k in range(10**9):
                value, gradient, cut = obj(w)
                yield Iterate(w, value, cut if k > 250 else Cut(0.0 * cut.a, 0.0))
                w = w - 0.05 * (gradient + obj.lam * w)

    obj = objective(rm.Logistic(), lam=0.1)
    result = rm.minimize(obj, rm.Portfolio((LateBounds(), Stuck()), 1e-3, trial=10))
    assert result.status == "converged"


def test_several_solvers_are_reported_only_if_used():
    single = rm.minimize(objective(rm.Logistic()), rm.Auto())
    assert "then" not in single.solver
    several = rm.minimize(objective(), rm.Portfolio((Stuck(3), rm.Bundle()), 1e-3))
    assert "Stuck for 3 steps, then Bundle for" in several.solver


def test_a_resumed_run_continues_with_the_current_solver(tmp_path):
    obj, solver = objective(rm.Absolute(), lam=1e-4), rm.Portfolio((rm.Lbfgs(), rm.Bundle()), 1e-6)
    uninterrupted = rm.minimize(obj, solver, tol=1e-6)
    indices = [row["solver_index"] for row in uninterrupted.trace]
    assert set(indices) == {1.0, 2.0}
    for stop in (indices.index(2.0) - 2, indices.index(2.0) + 3):
        file = tmp_path / f"run{stop}"
        rm.minimize(obj, solver, tol=1e-6, max_iter=stop, checkpoint=file)
        resumed = rm.minimize(obj, solver, tol=1e-6, checkpoint=file)
        assert resumed.status == "converged"
        assert resumed.trace[stop]["solver_index"] == indices[stop]
        assert resumed.value == pytest.approx(uninterrupted.value, rel=2e-6)


# ---------------------------------------------------------------- a successor whose cost is known
@dataclass(frozen=True)
class Falls(Solver):
    """A solver whose gap decreases by a factor in each pass, on any problem; its point is always w0."""

    factor: float
    rows: int = 1000

    def iterates(self, obj, w0):
        value, _, _ = obj(w0)
        zero = np.zeros_like(w0)
        for k in range(self.rows):
            obj.count.calls += 1
            # not a cut of the risk, which is not checked here
            yield Iterate(w0, value, Cut(zero, value * (1 - 0.9 * self.factor**k)))


@dataclass(frozen=True)
class Needs(Solver):
    """A bundle method that says how many passes it needs for a digit."""

    passes: float

    def iterates(self, obj, w0):
        return rm.Bundle().iterates(obj, w0)

    def passes_per_digit(self, obj):
        return self.passes


def turned(solver, max_iterates=200):
    """The number of iterates before the second solver takes over; None if it does not."""
    steps = islice(solver.iterates(objective(), np.zeros(3)), max_iterates)
    return next((k for k, it in enumerate(steps) if it.info["solver_index"] == 2), None)


def test_a_solver_is_compared_with_what_the_next_one_needs():
    assert 2 <= turned(rm.Portfolio((Falls(0.999), Needs(8.0)))) <= 8
    assert turned(rm.Portfolio((Falls(0.1), Needs(8.0))), 14) is None
    # 10 passes per digit: worth a solver that needs one, but not one that needs 100
    slow = Falls(10**-0.1)
    assert turned(rm.Portfolio((slow, Needs(1.0)), 1e-6)) is not None
    assert turned(rm.Portfolio((slow, Needs(100.0)), 1e-6), 60) is None


def test_a_first_solver_that_ends_is_followed_by_the_second():
    assert turned(rm.Portfolio((Falls(0.1, rows=3), rm.Bundle()))) == 3
    assert turned(rm.Portfolio((Falls(0.1, rows=0), rm.Bundle()))) == 0


@pytest.mark.parametrize(
    ("loss", "intercept"), [(rm.Hinge(), True), (rm.Hinge(), False), (rm.Absolute(), True)], ids=repr
)
def test_dual_ascent_stays_where_the_bound_rises_before_the_gap_falls(loss, intercept):
    """With fewer rows than columns the gap is nearly J for many epochs, and then falls fast."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 200))
    y = np.where(X[:, 0] + rng.standard_normal(60) > 0, 1.0, -1.0)
    obj = rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=intercept), rm.L2(), 1e-6)
    result = rm.minimize(obj, rm.Portfolio((rm.DualCoordinateAscent(), rm.Newton()), 1e-6), tol=1e-6)
    assert result.status == "converged"
    assert {row["solver_index"] for row in result.trace} == {1.0}


def test_a_resumed_run_goes_from_solver_to_solver_at_the_same_iterates():
    """With a tiny lam, dual ascent needs many epochs."""
    obj = Problem(lam=1e-5, n=120, p=5).objective()
    solver = rm.Portfolio((rm.DualCoordinateAscent(), rm.Newton()), 1e-6)
    steps = list(islice(solver.iterates(obj, np.zeros(5)), 12))
    turn = next(k for k, it in enumerate(steps) if it.info["solver_index"] == 2)
    assert 1 < turn < 10
    for k in (1, turn - 1, turn, turn + 1):
        state = {name: np.atleast_1d(np.array(a)) for name, a in steps[k].state().items()}
        resumed = list(islice(solver.resume(obj, state), len(steps) - k - 1))
        for one, other in zip(steps[k + 1 :], resumed, strict=True):
            assert one.info["solver_index"] == other.info["solver_index"]
            assert one.value == pytest.approx(other.value, rel=1e-9)
            # the best cut of before is not taken from the state
            assert obj.lower(other.cut) <= obj.lower(one.cut) * (1 + 1e-6) + 1e-9


# ---------------------------------------------------------------- failures
@pytest.mark.parametrize("steps", [0, 2])
def test_the_next_solver_continues_after_an_exception(steps):
    with pytest.warns(SolverFailed, match="Breaks failed") as caught:
        result = rm.minimize(Problem().objective(), rm.Portfolio((Breaks(steps), rm.Bundle())))
    assert result.status == "converged"
    assert "Breaks failed (IndexError: index 7 is out of bounds)" in result.solver
    assert isinstance(caught[0].message.__cause__, IndexError)


@pytest.mark.parametrize(
    ("solver", "error"),
    [
        *((rm.Portfolio((Breaks(2, error), rm.Bundle())), error) for error in (MemoryError, OSError)),
        (rm.Portfolio((Breaks(2), rm.Bundle())), SolverFailed),  # where warnings are errors
        (Breaks(2), IndexError),
    ],
    ids=repr,
)
def test_errors_of_the_system_and_of_a_solver_alone_end_the_run(solver, error):
    with pytest.raises(error):
        rm.minimize(Problem().objective(), solver)


# ---------------------------------------------------------------- runs without an iterate
@pytest.mark.parametrize(
    ("solver", "reg"),
    [
        (Silent(), rm.L2()),
        (Silent(), rm.Entropy()),
        (rm.Portfolio((Silent(),)), rm.L1()),
        (rm.Portfolio((Silent(),)), rm.GroupLasso([0, 0, 1, 1])),
    ],
)
def test_a_run_without_an_iterate_has_its_start(solver, reg):
    J = Problem(reg=reg).objective()
    result = rm.minimize(J, solver)
    assert result.status == "stalled"
    assert 0 <= result.lower <= result.value == pytest.approx(J.value(result.w))
    assert len(result.trace) == 1


# ---------------------------------------------------------------- other guarantees of the driver
def test_the_absolute_tolerance_applies_where_j_nearly_vanishes():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)) * 1e6
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    J = rm.Objective(rm.linear_risk(X, y, rm.Logistic()), rm.L2(), 1e-8)
    result = rm.minimize(J, tol=1e-7)
    assert (result.status, result.criterion) == ("converged", "atol")
    assert result.gap <= 1e-13 * J.value(np.zeros(3))
    strict = rm.minimize(J, tol=1e-7, atol=0.0, max_iter=50)
    assert strict.criterion != "atol"
    assert rm.minimize(objective(), tol=1e-3).criterion == "tol"
    assert rm.minimize(objective(), tol=1e-15, atol=0.5).criterion == "atol"


# ---------------------------------------------------------------- the causes of exceptions
@pytest.mark.parametrize("loss", [*MANY_LOSSES, *LIST_LOSSES], ids=repr)
def test_group_lasso_without_ridge_has_a_solver_or_a_refusal(loss):
    J = Problem(loss, lam=0.3, n=20, weighted=True).objective()
    J = replace(J, reg=rm.GroupLasso(np.arange(J.risk.dim) // 2))
    try:
        result = rm.minimize(J, tol=3e-2, max_iter=2000)
    except UnsupportedProblem as error:
        assert not loss.can_be_smoothed
        assert str(error).endswith("add a small multiple of L2 to it")  # noqa: PT017
        return
    assert result.status == "converged"


@pytest.mark.parametrize("size", [1e-9, 1e11, 1e13])
@pytest.mark.parametrize(
    ("loss", "reg"), [(rm.Squared(), rm.L1()), (rm.Absolute(), rm.Box(rm.L1()))], ids=repr
)
def test_linear_programs_are_solved_in_units_of_the_objective(size, loss, reg):
    """HiGHS takes no bounds of 1e20 or more, and its tolerances are absolute."""
    data, power = Problem(loss, reg, lam=0.05, n=30, intercept=True), 2 if loss == rm.Squared() else 1
    risk = rm.linear_risk(data.X, size * data.y, loss, fit_intercept=True)
    result = rm.minimize(rm.Objective(risk, reg, 0.05 * size ** (power - 1)), rm.Bundle(), tol=1e-5)
    assert result.status == "converged"
    assert result.value == pytest.approx(data.optimum * size**power, rel=1.1e-5)


@pytest.mark.parametrize(("shape", "far"), [((5, 6), -1e8), ((30, 2), 1e3), ((30, 2), 1e8)])
def test_a_start_without_second_derivatives_is_no_obstacle(shape, far):
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal(shape), np.resize([1.0, -1.0], shape[0])
    J = rm.Objective(rm.linear_risk(X, y, rm.Logistic(), fit_intercept=True), rm.Elastic(0.3), 0.1)
    assert rm.minimize(J, rm.InteriorPoint(), np.full(shape[1], far)).status == "converged"


# ---------------------------------------------------------------- a sample of all combinations


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_any_combination_has_a_proof_or_a_refusal(seed):
    """Losses, regularizers, solvers, storages, units and starts, drawn at random."""
    rng = np.random.default_rng(seed)
    losses = [loss for loss in rm.LOSSES.values() if getattr(loss, "k", 1) in (None, 1)]
    solvers = [None, *rm.SOLVERS.values()]
    for _ in range(3):
        loss = losses[rng.integers(len(losses))]
        X, y, weights = problem(loss, n=12, seed=int(rng.integers(100)))
        X = X * 10.0 ** rng.uniform(-2, 9 * rng.integers(2), X.shape[1])
        X = sp.csr_array(X) if rng.random() < 0.3 else X.astype(np.float32) if rng.random() < 0.4 else X
        risk = risk_of(loss, X, y, weights if rng.random() < 0.5 else None)
        regs = regularizers(risk.dim)
        J = rm.Objective(risk, regs[rng.integers(len(regs))], 10 ** rng.uniform(-3, 0))
        w0 = J.reg.prox(1e-3 * rng.standard_normal(risk.dim), 0.0) if rng.random() < 0.5 else None
        try:
            result = rm.minimize(J, solvers[rng.integers(len(solvers))], w0, max_iter=50)
        except UnsupportedProblem as error:
            assert "\n" not in str(error)  # noqa: PT017
            continue
        other = rm.minimize(J, max_iter=50)
        size = max(result.value, other.value)
        assert max(result.lower, other.lower) <= min(result.value, other.value) + 1e-9 * size
        at_zero = J.value(np.zeros(risk.dim))
        assert np.isfinite(result.value)
        assert result.value <= at_zero * (1 + 1e-9)
