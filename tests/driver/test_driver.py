"""The driver: its results are correct, whatever the solver, the oracle or the user do."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import ALL_LOSSES, labels
from riskmin import (
    L1,
    L2,
    Absolute,
    Auto,
    Bmrm,
    Bundle,
    Cut,
    Exponential,
    Hinge,
    Iterate,
    Lbfgs,
    LineSearchBmrm,
    Logistic,
    Objective,
    Poisson,
    Squared,
    linear_risk,
    minimize,
)
from riskmin.driver import run
from riskmin.problem.convexity import check
from riskmin.solvers.base import loss_of
from riskmin.testing import check_solver

ALL_SOLVERS = [Bundle(), Bundle(keep=1), Lbfgs(), Bmrm(), Bmrm(floor=True), LineSearchBmrm(), Auto()]
each_solver = pytest.mark.parametrize("solver", ALL_SOLVERS, ids=repr)


def objective(loss=None, lam=0.01, n=60, p=5, seed=0, **settings):
    loss = loss or Hinge()
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = labels(loss, X @ rng.standard_normal(p), rng)
    return Objective(linear_risk(X, y, loss, **settings), L2(), lam)


# ---------------------------------------------------------------- the contract of solvers
@pytest.mark.parametrize("solver", [Bundle(), Bundle(keep=1), Bmrm(), Bmrm(floor=True), Auto()], ids=repr)
def test_contract(solver):
    check_solver(solver)


def test_contract_of_the_others():
    check_solver(Lbfgs(), smooth=True)
    check_solver(Lbfgs(memory=1), smooth=True)
    check_solver(LineSearchBmrm(), tol=1e-2)


@dataclass(frozen=True)
class Broken:
    """Gradient descent with one deliberate fault."""

    fault: str

    def iterates(self, obj, w0):
        w = w0 if self.fault == "changes w0" else w0.copy()
        step = 0.0 if self.fault == "stays" else 0.5
        rng = np.random.default_rng()
        while True:
            value, g, cut = obj(w)
            if self.fault == "value too low":
                value *= 0.999
            if self.fault == "value of another point":
                value = obj.value(w - 0.1 * g)
            if self.fault == "cut too high":
                cut = Cut(cut.a, cut.b + 1e-3)
            if self.fault == "slope of J":
                cut = Cut(cut.a + obj.lam * w, cut.b)
            yield Iterate(w.copy(), value, cut)
            w -= step * (g + obj.lam * w)
            if self.fault == "random":
                w += 1e-9 * rng.standard_normal(len(w))

    def resume(self, obj, state):
        return self.iterates(obj, state["w"])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("changes w0", "w0 was changed"),
        ("value too low", "claims J ="),
        ("value of another point", "claims J ="),
        ("cut too high", "the cut of iterate"),
        ("slope of J", "the cut of iterate"),
        ("stays", "ended as stalled"),
        ("random", "differ"),
        ("none", "have no state"),
    ],
)
def test_contract_refuses(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_solver(Broken(fault), smooth=True, tol=1e-2)


# ---------------------------------------------------------------- status
@each_solver
def test_converged_runs_have_a_proved_gap(solver):
    obj = objective(Logistic() if solver == Lbfgs() else Hinge(), lam=0.1)
    result = minimize(obj, solver, tol=1e-3)
    assert result.status == "converged"
    assert 0 <= result.gap <= 1e-3 * result.value
    assert result.gap == result.value - result.lower
    assert result.value == obj.value(result.w)
    assert result.lower == pytest.approx(obj.lower(result.cut), rel=1e-12)
    assert result.n_iter == len(result.trace) == result.trace[-1]["iteration"]


def test_max_iter():
    result = minimize(objective(), Bundle(), tol=1e-9, max_iter=3)
    assert result.status == "max_iter"
    assert result.n_iter == 3
    assert result.gap > 1e-9 * result.value


def test_max_seconds():
    slow = Slow(objective().risk, 0.02)
    result = minimize(Objective(slow, L2(), 1e-6), Bmrm(), tol=1e-12, max_seconds=0.3)
    assert result.status == "max_seconds"
    assert result.trace[-1]["seconds"] >= 0.3


@dataclass(frozen=True)
class Slow:
    """An oracle that sleeps in each call."""

    inner: object
    seconds: float

    @property
    def dim(self):
        return self.inner.dim

    def __call__(self, w):
        time.sleep(self.seconds)
        return self.inner(w)


def test_solver_that_ends_early_is_stalled():
    class Once:
        def iterates(self, obj, w0):
            value, _, cut = obj(w0)
            yield Iterate(w0, value, cut)

    result = minimize(objective(), Once(), tol=1e-6)
    assert result.status == "stalled"
    assert result.n_iter == 1


def test_solver_without_progress_is_stalled():
    class Stuck:
        def iterates(self, obj, w0):
            value, _, cut = obj(w0)
            while True:
                yield Iterate(w0, value, cut)

    result = minimize(objective(), Stuck(), tol=1e-6)
    assert result.status == "stalled"
    assert 100 <= result.n_iter < 110


@pytest.mark.slow
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("solver", [Bundle(), Lbfgs()], ids=repr)
def test_tol_zero_ends(solver, intercept):
    for loss in (Hinge(), Logistic(), Squared(), Absolute()):
        if isinstance(solver, Lbfgs) and not loss.smooth:
            continue
        result = minimize(objective(loss, fit_intercept=intercept), solver, tol=0.0, max_iter=5000)
        assert result.status in ("stalled", "converged")
        assert 0 <= result.gap <= 1e-8 * result.value


@pytest.mark.parametrize("settings", [{"tol": -1}, {"tol": np.nan}, {"max_iter": 0}])
def test_limits_are_checked(settings):
    with pytest.raises(ValueError, match="must be"):
        minimize(objective(), **settings)


# ---------------------------------------------------------------- callbacks, w0 and Ctrl-C
def test_callback_gets_each_row_and_can_stop():
    rows = []

    def callback(it, row):
        rows.append(row)
        assert it.w.shape == (5,)
        return len(rows) == 4

    result = minimize(objective(), Bundle(), tol=1e-9, callback=callback)
    assert result.status == "interrupted"
    assert rows == result.trace
    assert len(rows) == 4


def test_callback_does_not_override_convergence():
    result = minimize(
        objective(), Bundle(), tol=0.1, callback=lambda it, row: row["gap"] <= 0.1 * row["value"]
    )
    assert result.status == "converged"


def test_exceptions_of_the_callback_propagate():
    with pytest.raises(ZeroDivisionError):
        minimize(objective(), callback=lambda it, row: 1 / 0)


@each_solver
def test_w0_is_used_and_not_modified(solver):
    obj = objective(Logistic())
    w0 = np.arange(5.0)
    original, points = w0.copy(), []
    first = minimize(obj, solver, w0, max_iter=1, callback=lambda it, row: points.append(it.w))
    np.testing.assert_array_equal(w0, original)
    np.testing.assert_array_equal(points[0], original)
    assert obj.value(original) > obj.value(np.zeros(5)) == first.value  # the result is never worse than w = 0
    best = minimize(obj, Lbfgs(), tol=1e-10)
    if not isinstance(solver, (Bmrm, LineSearchBmrm)):
        assert minimize(obj, solver, best.w, tol=1e-6).n_iter <= 30


def test_w0_of_other_dtypes_and_shapes():
    obj = objective(Squared())
    expected = minimize(obj, tol=1e-10)
    for w0 in (np.ones(5, dtype=np.float32), np.ones(5, dtype=int), np.ones((5, 2))[:, 0]):
        assert minimize(obj, w0=w0, tol=1e-10).value == pytest.approx(expected.value, rel=1e-9)
    for w0 in (np.ones(4), np.ones((5, 1)), np.float64(1.0)):
        with pytest.raises((ValueError, AttributeError), match=r"w0|shape"):
            minimize(obj, w0=np.asarray(w0))


@dataclass
class Interrupting:
    """An oracle that raises KeyboardInterrupt at one call."""

    risk: object
    call: int
    calls: list = field(default_factory=list)

    @property
    def dim(self):
        return self.risk.dim

    def __call__(self, w):
        self.calls.append(1)
        if len(self.calls) == self.call:
            raise KeyboardInterrupt
        return self.risk(w)


def calls_before_the_run(risk):
    """Number of calls of a user-defined risk in the check before a run."""
    counted = Interrupting(risk, -1)
    check(counted, L2(), np.zeros(risk.dim))
    return len(counted.calls)


@pytest.mark.parametrize("solver", [Bundle(), Bmrm(), Lbfgs()], ids=repr)
def test_ctrl_c_returns_the_best_so_far(solver):
    risk = objective(Logistic()).risk
    result = minimize(
        Objective(Interrupting(risk, calls_before_the_run(risk) + 6), L2(), 1e-4), solver, tol=1e-12
    )
    assert result.status == "interrupted"
    assert result.n_iter >= 1
    assert result.value == pytest.approx(Objective(risk, L2(), 1e-4).value(result.w))
    for first in (1, calls_before_the_run(risk) + 1):
        with pytest.raises(KeyboardInterrupt):  # there is no result yet
            minimize(Objective(Interrupting(risk, first), L2(), 1e-4), solver)


def test_sigint_in_a_process():
    script = """
        import time, numpy as np, riskmin
        rng = np.random.default_rng(0)
        X, y = rng.standard_normal((500, 50)), np.where(rng.random(500) < 0.5, 1.0, -1.0)
        obj = riskmin.Objective(riskmin.linear_risk(X, y, riskmin.Hinge()), riskmin.L2(), 1e-9)
        def callback(it, row):
            if row["iteration"] == 2:
                print("running", flush=True)
            time.sleep(0.001)
        result = riskmin.minimize(obj, riskmin.LineSearchBmrm(), tol=0, max_iter=10**9, callback=callback)
        print(result.status, result.lower <= result.value)
    """
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "running\n"
    os.kill(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=30)
    assert out == "interrupted True\n"
    assert run.returncode == 0


# ---------------------------------------------------------------- the trace
@each_solver
@pytest.mark.parametrize("intercept", [False, True])
def test_bounds_are_monotone_and_rows_complete(solver, intercept):
    obj = objective(Logistic(), fit_intercept=intercept)
    result = minimize(obj, solver, np.full(5, 2.0), tol=1e-4, max_iter=300)
    keys = {"iteration", "seconds", "calls", "value", "lower", "gap"}
    for k, row in enumerate(result.trace):
        assert keys <= row.keys()
        assert row["iteration"] == k + 1
        assert row["gap"] == row["value"] - row["lower"] >= 0
    for one, two in zip(result.trace, result.trace[1:], strict=False):
        assert two["lower"] >= one["lower"] * (1 - 1e-12)
        assert two["value"] <= one["value"] * (1 + 1e-9)
        assert two["calls"] >= one["calls"]
        assert two["seconds"] >= one["seconds"]


def test_interrupted_run_returns_the_value_at_w():
    obj = objective(fit_intercept=True, lam=1e-4)
    result = minimize(obj, Bundle(), tol=1e-9, callback=lambda it, row: row["iteration"] == 6)
    assert result.status == "interrupted"
    assert result.value == pytest.approx(obj.value(result.w), rel=1e-14)
    assert result.trace[-1]["value"] == result.value


def test_ctrl_c_during_the_final_evaluation_keeps_the_trace(tmp_path):
    """Ctrl-C during the reevaluation of J at the end of the run."""
    obj, calls = objective(), []
    uninterrupted, before = minimize(obj, Bmrm(), tol=1e-6), calls_before_the_run(obj.risk)

    class Risk:
        dim = obj.risk.dim

        def __call__(self, w):
            calls.append(0)
            if len(calls) == before + uninterrupted.n_iter + 1:
                raise KeyboardInterrupt
            return obj.risk(w)

    broken = Objective(Risk(), L2(), obj.lam)
    result = minimize(broken, Bmrm(), tol=1e-6, checkpoint=tmp_path / "run")
    assert result.status == "interrupted"
    assert all(
        {"iteration", "seconds", "calls", "value", "lower", "gap"} <= row.keys() for row in result.trace
    )
    assert minimize(broken, Bmrm(), tol=1e-6, checkpoint=tmp_path / "run").status == "converged"


def test_ctrl_c_while_resuming_returns_the_saved_result(tmp_path):
    obj = objective()
    first = minimize(obj, Bundle(), tol=1e-9, max_iter=4, checkpoint=tmp_path / "run")

    class Interrupted(type(obj.risk)):
        def cursor(self, w):
            raise KeyboardInterrupt

    risk = Interrupted(obj.risk.loss, obj.risk.linear_map, obj.risk.executor, obj.risk.dim)
    result = minimize(Objective(risk, L2(), obj.lam), Bundle(), tol=1e-9, checkpoint=tmp_path / "run")
    assert result.status == "interrupted"
    assert result.value == pytest.approx(first.value, rel=1e-12)


@pytest.mark.slow
def test_gaps_below_rounding_are_not_proved():
    for seed in range(20):
        obj = objective(Logistic(), seed=seed)
        result = minimize(obj, Lbfgs(), tol=1e-16)
        if result.status == "converged":
            assert obj.lower(result.cut) <= result.value


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_bundle_values_do_not_increase(seed):
    """Steep losses far from the minimum, where a bracket may end at worse points than the starting point."""
    obj = objective(Exponential(), lam=1e-4, seed=seed, fit_intercept=True)
    w0 = np.random.default_rng(seed).standard_normal(5)
    values = [it.value for it in islice(Bundle().iterates(obj, w0), 25)]
    assert all(new <= old * (1 + 1e-9) for old, new in pairwise(values))
    assert minimize(obj, Bundle(), w0, tol=1e-6).status == "converged"


def test_calls_are_counted_per_run():
    obj = objective()
    one, two = minimize(obj, Bundle()), minimize(obj, Bundle())
    assert one.trace[-1]["calls"] == two.trace[-1]["calls"]
    assert obj.count.calls == 0


def test_result_names_the_solver_and_the_reason():
    assert minimize(objective(), Bundle(keep=7)).solver == "Bundle(keep=7)"
    assert minimize(objective(Logistic())).solver.startswith("Newton(")
    assert minimize(objective(Logistic())).solver.endswith(": Logistic is smooth, and has second derivatives")
    assert minimize(objective(), Auto()).solver.startswith("Newton(): Hinge ")
    anonymous = minimize(Objective(Slow(objective().risk, 0), L2(), 0.1))
    assert anonymous.solver.startswith("Bundle(keep=20): Slow ")


# ---------------------------------------------------------------- wrong oracles
@dataclass(frozen=True)
class WrongSign:
    """A risk whose gradient has the wrong sign."""

    risk: object

    @property
    def dim(self):
        return self.risk.dim

    def __call__(self, w):
        value, grad = self.risk(w)
        return value, -grad


@dataclass(frozen=True)
class Waves:
    """A risk that is not convex."""

    dim: int = 2

    def __call__(self, w):
        return float(2 + np.sin(3 * w).sum()), 3 * np.cos(3 * w)


@pytest.fixture
def unchecked(monkeypatch):
    """Disable the check before the run, to test the checks during the run."""
    monkeypatch.setattr("riskmin.driver.loop.check", lambda *_: None)


def test_wrong_oracle_raises_before_the_run():
    with pytest.raises(ValueError, match="the risk WrongSign is not convex, or its gradient is wrong: it is"):
        minimize(Objective(WrongSign(objective(Logistic()).risk), L2(), 0.01))
    with pytest.raises(ValueError, match="the risk Waves is not convex, or its gradient is wrong: it is"):
        minimize(Objective(Waves(), L2(), 0.01))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("solver", [Bundle(), Bmrm(), LineSearchBmrm(), Lbfgs()], ids=repr)
def test_wrong_oracle_is_not_certified(solver):
    risk = objective(Logistic()).risk
    for w0 in np.random.default_rng(0).standard_normal((5, 5)):
        result = minimize(Objective(WrongSign(risk), L2(), 0.01), solver, w0, tol=1e-3, max_iter=200)
        assert (result.status, result.lower) == ("stalled", 0)
        assert result.note.startswith("the risk WrongSign is not convex, or its gradient is wrong: it is ")


def test_refuted_bound_is_discarded():
    """The first iterate has a false bound, and the second a value below it."""

    class Liar:
        def iterates(self, obj, w0):
            value, _, cut = obj(w0)
            yield Iterate(w0, value, Cut(0 * w0, 0.9 * value))
            while True:
                yield Iterate(best.w, best.value, cut)

    obj = objective()
    best = minimize(obj, tol=1e-6)
    result = minimize(obj, Liar(), tol=1e-3)
    assert result.status == "stalled"
    assert result.lower == 0
    assert obj.lower(result.cut) == 0


@pytest.mark.usefixtures("unchecked")
def test_nonconvex_risk_is_not_certified():
    for seed in range(10):
        w0 = np.random.default_rng(seed).standard_normal(2)
        obj = Objective(Waves(), L2(), 0.01)
        result = minimize(obj, Bundle(), w0, tol=1e-3, max_iter=200)
        assert (result.status, result.lower) == ("stalled", 0)
        assert "Waves is not convex" in result.note
        assert result.value == pytest.approx(obj.value(result.w))


# ---------------------------------------------------------------- a minimum of zero
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("solver", [Bundle(), Bmrm(), LineSearchBmrm(), Lbfgs()], ids=repr)
def test_the_perceptron_on_separable_data(solver, intercept):
    """The minimum is J(0) = 0: reached at once from w = 0, and approximately from elsewhere."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 3)), np.where(np.arange(30) % 2 == 0, 1.0, -1.0)
    X[:, 0] = y * (1 + rng.random(30))
    obj = Objective(linear_risk(X, y, Hinge(margin=0.0), fit_intercept=intercept), L2(), 0.1)
    result = minimize(obj, solver)
    assert (result.status, result.value, result.lower) == ("converged", 0.0, 0.0)
    result = minimize(obj, solver, np.ones(3), max_iter=500)
    assert result.lower == pytest.approx(0, abs=1e-12)
    assert result.value <= 0.1


# ---------------------------------------------------------------- difficult problems
@st.composite
def difficult_problems(draw):
    """Any loss, on data with various numerical difficulties."""
    loss = draw(st.sampled_from(ALL_LOSSES))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, p = draw(st.sampled_from([2, 3, 7, 30])), draw(st.sampled_from([1, 2, 5, 12]))
    X = rng.standard_normal((n, p))
    y = labels(loss, X @ rng.standard_normal(p), rng)
    weights = None
    match draw(
        st.sampled_from(["plain", "constant", "zero", "scale", "scales", "twice", "separable", "one"])
    ):
        case "constant":
            X[:, 0] = draw(st.sampled_from([1.0, 1e6, -3.0]))
        case "zero":
            X[:, -1] = 0.0
        case "scale":
            X *= 10.0 ** draw(st.integers(-8, 8))
        case "scales":
            X *= 10.0 ** rng.uniform(-8, 8, p)
        case "twice":
            X, y = np.repeat(X, 2, axis=0), np.repeat(y, 2)
        case "separable":
            X[:, 0] = y * (1 + rng.random(n))
        case "one":
            weights = np.where(np.arange(n) == 0, draw(st.sampled_from([1.0, 1e-300, 1e300])), 0.0)
    lam = 10.0 ** draw(st.integers(-10, 6))
    w0 = draw(st.sampled_from([0.0, 1.0, 1e3])) * rng.standard_normal(p)
    X = sp.csr_array(X) if draw(st.booleans()) else X
    risk = linear_risk(X, y, loss, sample_weight=weights, fit_intercept=draw(st.booleans()))
    return Objective(risk, L2(), lam), w0


UNBOUNDED = (Exponential(), Logistic(), Poisson())
"""Losses that may decrease indefinitely as the intercept grows."""


def certify(obj, w0, solvers, max_iter):
    """Check that no lower bound exceeds a value of another solver, and that there are no warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            results = [minimize(obj, s, w0, tol=1e-5, max_iter=max_iter) for s in solvers]
        except ValueError as error:  # all weight on one class, or on counts of zero
            if "no best intercept exists" in str(error) and loss_of(obj.risk) in UNBOUNDED:
                return
            raise
    scale = max(obj.value(np.zeros(obj.risk.dim)), obj.value(w0), 1.0)  # labels are of order one
    for one in results:
        assert np.isfinite(one.w).all()
        assert -1e-14 * scale <= one.lower <= one.value < np.inf
        assert obj.value(one.w) == pytest.approx(one.value, rel=1e-9, abs=1e-12 * scale)
        for two in results:
            assert one.lower <= two.value * (1 + 1e-9) + 1e-11 * scale


@pytest.mark.slow
@settings(deadline=None, max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck))
@given(difficult_problems())
def test_difficult_problems_have_valid_certificates(problem):
    certify(*problem, [Bundle(), Auto()], max_iter=50)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
@given(difficult_problems())
def test_difficult_problems_with_every_solver(problem):
    certify(*problem, [Bundle(), Lbfgs(), Bmrm(), LineSearchBmrm()], max_iter=60)


def test_each_cut_has_a_rounding_error_of_its_own(monkeypatch):
    """A cut that rounding makes worthless takes nothing off the bound of another."""
    poor = Cut(np.array([-0.5]), 0.374)
    monkeypatch.setattr(run, "rounding_allowance", lambda obj, w, cut: 0.1 if cut.b == poor.b else 1e-12)

    class PoorCut:
        def iterates(self, obj, w0):
            # J = w^2 / 2 + (w - 1)^2 / 2, with the minimum 1/4 at 1/2; the cut there has the offset 0.375
            for _ in range(5):
                yield Iterate(np.array([0.5]), 0.25, poor)

    risk = linear_risk(np.ones((2, 1)), np.ones(2), Squared())
    result = minimize(Objective(risk, L2(), lam=1.0), PoorCut(), tol=1e-2)
    assert result.status == "converged"
    assert 0.25 - 1e-9 <= result.lower <= 0.25


@pytest.mark.parametrize("loss", ["softmax", "multiclass_hinge"])
def test_no_result_is_worse_than_the_best_constant_scores(loss):
    """Rare classes, intercepts in w, and a run that ends at once."""
    y = np.repeat(np.arange(5), [900, 60, 30, 8, 2])
    X = np.random.default_rng(0).normal(size=(1000, 3)) * [1e6, 1.0, 1e-6] + [1e9, 0.0, 5.0]
    p = np.bincount(y) / 1000
    best = -p @ np.log(p) if loss == "softmax" else 2 * (1 - p[0])  # margins of 1 for the first class
    result = minimize(Objective(linear_risk(X, y, loss, fit_intercept=True), L1(), 1e-4), max_iter=1)
    assert result.lower <= result.value <= best * (1 + 1e-9)
