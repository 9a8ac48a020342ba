"""Fallback: a stall does not end a run, the best point and bound are kept, and the solvers are reported."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import Problem
from riskmin import (
    L2,
    Absolute,
    Auto,
    Bundle,
    ChainMaxMargin,
    Fallback,
    Hinge,
    Lbfgs,
    Logistic,
    MulticlassHinge,
    Newton,
    Objective,
    Quantile,
    Softmax,
    linear_risk,
    minimize,
)
from riskmin.core import Cut, Iterate, UnsupportedProblem


def objective(loss=None, lam=1e-3):
    return Problem(loss or Hinge(), lam=lam, n=80, p=3, intercept=True).objective()


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
    def iterates(self, obj, w0):
        value, _, cut = obj(w0)
        yield Iterate(w0, value, cut)
        raise np.linalg.LinAlgError("singular")


@pytest.mark.parametrize("first", [Stuck(), Stuck(3), Refuses(), Breaks()], ids=repr)
def test_the_next_solver_continues_after_a_stall(first):
    data = Problem(lam=1e-3, n=80, p=3, intercept=True)
    data.check(minimize(data.objective(), Fallback((first, Bundle()), 1e-6), tol=1e-6))


def test_the_best_point_and_bound_are_passed_on():
    start_values = []

    @dataclass(frozen=True)
    class RecordsStart:
        def iterates(self, obj, w0):
            start_values.append(obj.value(w0))
            yield from Stuck(1).iterates(obj, w0)

    solver = Fallback((Lbfgs(), RecordsStart(), Stuck(2)), 1e-14)
    result = minimize(objective(Logistic()), solver, tol=0.0, atol=0.0, max_iter=200)
    assert start_values[0] == pytest.approx(result.value, rel=1e-9)
    assert result.value - result.lower <= 1e-9 * result.value


def test_a_run_ends_when_no_solver_makes_progress():
    result = minimize(objective(), Fallback((Stuck(2), Stuck(3)), 1e-6), tol=1e-6)
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
    result = minimize(objective(), Fallback((Creeps(), Creeps()), 1e-6, trial=10), tol=1e-6)
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

    obj = objective(Logistic(), lam=0.1)
    result = minimize(obj, Fallback((LateBounds(), Stuck()), 1e-3, trial=10))
    assert result.status == "converged"


def test_several_solvers_are_reported_only_if_used():
    single = minimize(objective(Logistic()), Auto())
    assert "then" not in single.solver
    several = minimize(objective(), Fallback((Stuck(3), Bundle()), 1e-3))
    assert "Stuck for 3 steps, then Bundle for" in several.solver


def test_a_resumed_run_continues_with_the_current_solver(tmp_path):
    obj, solver = objective(Absolute(), lam=1e-4), Fallback((Lbfgs(), Bundle()), 1e-7)
    uninterrupted = minimize(obj, solver, tol=1e-7)
    indices = [row["solver_index"] for row in uninterrupted.trace]
    assert set(indices) == {1.0, 2.0}
    for stop in (indices.index(2.0) - 2, indices.index(2.0) + 3):
        file = tmp_path / f"run{stop}"
        minimize(obj, solver, tol=1e-7, max_iter=stop, checkpoint=file)
        resumed = minimize(obj, solver, tol=1e-7, checkpoint=file)
        assert resumed.status == "converged"
        assert resumed.trace[stop]["solver_index"] == indices[stop]
        assert resumed.value == pytest.approx(uninterrupted.value, rel=2e-7)


def test_the_first_solver_of_a_switching_is_judged_there_and_the_second_by_its_own_work():
    """Dual ascent makes 500 passes: more than the trial, at a slow rate."""

    @dataclass(frozen=True)
    class TwoStages:
        def iterates(self, obj, w0):
            value, _, _ = obj(w0)
            for k in range(50):
                cut = Cut(0.0 * w0, 0.001 * k * value)
                yield Iterate(w0, value, cut, {"epochs": 10.0 * k, "solver": 1.0})
            for k in range(50, 60):
                yield Iterate(w0, value, Cut(0.0 * w0, 0.001 * k * value), {"solver": 2.0})

    steps = Fallback((TwoStages(), Bundle()), 1e-6).iterates(objective(), np.zeros(3))
    indices = [next(steps).info["solver_index"] for _ in range(61)]
    assert indices == [1.0] * 60 + [2.0]


def test_short_chains_at_a_small_lam_take_few_steps():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((15, 6)), rng.integers(0, 3, 15).astype(float)
    risk = linear_risk(X, y, ChainMaxMargin(), lengths=[4, 5, 6])
    result = minimize(Objective(risk, L2(), 1e-4))
    assert result.status == "converged"
    assert result.n_iter < 1000


# ---------------------------------------------------------------- other guarantees of the driver
def test_no_result_is_worse_than_w0():
    @dataclass(frozen=True)
    class Far:
        def iterates(self, obj, w0):
            w = w0 + 1e3
            value, _, cut = obj(w)
            yield Iterate(w, value, cut)

    obj = objective()
    result = minimize(obj, Far())
    assert result.status == "stalled"
    assert result.value == obj.value(np.zeros(3))
    assert result.lower <= result.value


def test_a_sample_of_one_class_does_not_end_the_run():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 2))
    y = np.full(20_000, -1.0)
    y[7] = 1.0  # in none of the samples
    for loss in (Logistic(), Hinge()):
        J = Objective(linear_risk(X, y, loss, fit_intercept=True), L2(), 1e-4)
        assert minimize(J, Newton() if isinstance(loss, Logistic) else None).status == "converged"


def test_the_absolute_tolerance_applies_where_j_nearly_vanishes():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)) * 1e6
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    J = Objective(linear_risk(X, y, Logistic()), L2(), 1e-8)
    result = minimize(J, tol=1e-7)
    assert (result.status, result.criterion) == ("converged", "atol")
    assert result.gap <= 1e-13 * J.value(np.zeros(3))
    strict = minimize(J, tol=1e-7, atol=0.0, max_iter=50)
    assert strict.criterion != "atol"
    assert minimize(objective(), tol=1e-3).criterion == "tol"
    assert minimize(objective(), tol=1e-15, atol=0.5).criterion == "atol"


def test_few_nearly_parallel_rows_take_few_steps():
    # columns far from 0 make the rows nearly parallel: dual ascent and cutting planes stall at a gap of 99 %
    rng = np.random.default_rng(5)
    X = rng.standard_normal((16, 150)) + 100 * rng.standard_normal(150)
    y = rng.standard_normal(16)
    result = minimize(Objective(linear_risk(X, y, Quantile(0.25)), L2(), 1e-5), max_iter=100)
    assert result.status == "converged"


def test_few_weights_of_several_classes_take_few_steps():
    # at this lam, dual ascent, cutting planes and smoothing together make 1400 steps in vain
    rng = np.random.default_rng(24)
    X = rng.standard_normal((100, 20)) * 10 ** rng.uniform(-3, 3, 20)
    X = sp.csr_array(np.where(rng.uniform(size=X.shape) < 0.3, X, 0.0))
    y = rng.integers(0, 12, 100)
    risk = linear_risk(X, y, MulticlassHinge(), fit_intercept=True, n_outputs=12)
    result = minimize(Objective(risk, L2(), 2e-6), tol=1e-5, max_iter=300)
    assert result.status == "converged"


@pytest.mark.parametrize("units", [0.0, 6.0])
def test_fewer_rows_than_columns_of_several_classes(units):
    rng = np.random.default_rng(7)
    X = np.logspace(-units, units, 120) * (rng.standard_normal((60, 120)) + 100 * (units > 0))
    risk = linear_risk(X, rng.integers(0, 4, 60), Softmax(), fit_intercept=True)
    assert minimize(Objective(risk, L2(), 1e-3), max_iter=100).status == "converged"
