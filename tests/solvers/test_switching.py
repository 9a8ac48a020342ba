"""One solver that goes on where another falls behind."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import problem
from riskmin import (
    L2,
    Bundle,
    Cut,
    DualGaussSeidel,
    Hinge,
    Iterate,
    Lbfgs,
    Logistic,
    Objective,
    SemismoothNewton,
    Switching,
    check_solver,
    linear_risk,
    minimize,
)


def hard(sparse=False):
    """Many epochs for dual ascent: lam is tiny."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 5))
    y = np.where(X[:, 0] + rng.standard_normal(120) > 0, 1.0, -1.0)
    return Objective(linear_risk(sp.csr_array(X) if sparse else X, y, Hinge()), L2(), 1e-5)


@dataclass(frozen=True)
class Falls:
    """A solver whose gap falls by a factor each pass, whatever the problem; its point is always 0."""

    factor: float
    rows: int = 1000

    def iterates(self, obj, w0):
        value, _, _ = obj(w0)
        zero = np.zeros_like(w0)
        for k in range(self.rows):
            obj.count.calls += 1
            cut = Cut(zero, value * (1 - 0.9 * self.factor**k))  # no cut of the risk, but none asks
            yield Iterate(w0, value, cut, {})


def switched(solver, obj, most=200):
    """After how many iterates the second solver takes over; None if it does not."""
    steps = islice(solver.iterates(obj, np.zeros(obj.risk.dim)), most)
    return next((k for k, it in enumerate(steps) if it.info["solver"] == 2), None)


def test_it_changes_where_the_first_stalls_and_not_where_it_falls_fast():
    obj = hard()
    stalls = Switching(Falls(0.999), Bundle(), passes_per_digit=8.0)
    assert 2 <= switched(stalls, obj) <= 8
    fast = Switching(Falls(0.1), Bundle(), passes_per_digit=8.0)
    assert switched(fast, obj, 14) is None
    # 10 passes a digit: worth it for a second solver that takes one, and not for one that takes 100
    slow = Falls(10**-0.1)
    assert switched(Switching(slow, Bundle(), tol=1e-6, passes_per_digit=1.0), obj) is not None
    assert switched(Switching(slow, Bundle(), tol=1e-6, passes_per_digit=100.0), obj, 60) is None


def test_a_first_solver_that_ends_is_followed_by_the_second():
    obj = hard()
    assert switched(Switching(Falls(0.1, rows=3), Bundle()), obj) == 3
    assert switched(Switching(Falls(0.1, rows=0), Bundle()), obj) == 0


def test_it_gets_to_the_optimum_and_says_nothing_false_on_the_way():
    obj = hard()
    best = minimize(obj, Bundle(), tol=1e-8).value
    result = minimize(obj, Switching(DualGaussSeidel(), SemismoothNewton(), tol=1e-7), tol=1e-7)
    assert result.status == "converged"
    assert result.value == pytest.approx(best, rel=1e-6)
    assert [row["solver"] for row in result.trace] == sorted(row["solver"] for row in result.trace)
    assert {row["solver"] for row in result.trace} == {1.0, 2.0}
    assert all(row["lower"] <= best * (1 + 1e-6) for row in result.trace)
    assert result.n_iter < minimize(obj, DualGaussSeidel(), tol=1e-7, max_iter=500).trace[-1]["epochs"]


@pytest.mark.parametrize("sparse", [False, True])
def test_bounds_never_fall_after_the_change(sparse):
    obj = hard(sparse)
    steps = list(
        islice(Switching(DualGaussSeidel(), SemismoothNewton(), 1e-6).iterates(obj, np.zeros(5)), 20)
    )
    late = [obj.lower(it.cut) for it in steps if it.info["solver"] == 2]
    assert len(late) > 3
    assert np.all(np.diff(late) >= 0)
    assert late[0] >= max(obj.lower(it.cut) for it in steps if it.info["solver"] == 1)


def test_a_resumed_run_goes_on_across_the_change():
    obj = hard()
    solver = Switching(DualGaussSeidel(), SemismoothNewton(), tol=1e-6)
    steps = list(islice(solver.iterates(obj, np.zeros(5)), 12))
    change = next(k for k, it in enumerate(steps) if it.info["solver"] == 2)
    assert 1 < change < 10
    for k in (1, change - 1, change, change + 1):
        state = {name: np.atleast_1d(np.array(a)) for name, a in steps[k].state().items()}
        again = list(islice(solver.resume(obj, state), len(steps) - k - 1))
        for one, other in zip(steps[k + 1 :], again, strict=True):
            assert one.info["solver"] == other.info["solver"]
            assert one.value == pytest.approx(other.value, rel=1e-9)
            assert obj.lower(one.cut) == pytest.approx(obj.lower(other.cut), rel=1e-6, abs=1e-9)


def test_a_run_gives_the_same_bits_each_time():
    obj = hard(sparse=True)
    runs = [minimize(obj, Switching(DualGaussSeidel(), SemismoothNewton()), tol=1e-6) for _ in range(2)]
    assert np.array_equal(runs[0].w, runs[1].w)
    assert runs[0].lower == runs[1].lower


def test_solvers_without_a_warm_start_or_a_state_will_do():
    X, y, weights = problem(Logistic())
    obj = Objective(linear_risk(X, y, Logistic(), sample_weight=weights), L2(), 0.05)
    result = minimize(
        obj, Switching(Falls(1.0, rows=8), Lbfgs(), passes_per_digit=8.0), tol=1e-9, max_iter=200
    )
    assert result.trace[-1]["solver"] == 2
    assert next(Switching(Falls(1.0), Lbfgs()).iterates(obj, np.zeros(4))).state is None


def test_settings_are_checked():
    with pytest.raises(ValueError, match="tol"):
        Switching(DualGaussSeidel(), SemismoothNewton(), tol=0.0)
    with pytest.raises(ValueError, match="passes_per_digit"):
        Switching(DualGaussSeidel(), SemismoothNewton(), passes_per_digit=-1.0)


@pytest.mark.slow
def test_it_meets_the_contract():
    check_solver(Switching(DualGaussSeidel(), Bundle()))
    check_solver(
        Switching(DualGaussSeidel(), SemismoothNewton(), passes_per_digit=0.1), nonsmooth=True, seed=1
    )
