"""The driver: its results are correct, whatever the solver, the oracle or the user do."""

import signal
import threading
import warnings
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import ALL_LOSSES, MANY_LOSSES, Problem, labels, refusals, ticking_clock
from riskmin.driver import run
from riskmin.testing import check_solver

X = np.random.default_rng(0).standard_normal((40, 5))


def objective(loss=None, **settings):
    return Problem(loss or rm.Hinge(), n=60, p=5, **settings).objective()


# ---------------------------------------------------------------- the contract of solvers


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
                cut = rm.Cut(cut.a, cut.b + 1e-3)
            if self.fault == "slope of J":
                cut = rm.Cut(cut.a + obj.lam * w, cut.b)
            yield rm.Iterate(w.copy(), value, cut)
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


def test_contract_accepts_a_solver_of_nonsmooth_losses_that_resumes():
    check_solver(rm.Bundle(keep=2), nonsmooth=True, tol=1e-3)


REFUSED = [
    *((lambda tol=tol: rm.minimize(objective(), tol=tol), "tol must be") for tol in (-1, np.nan)),
    (lambda: rm.minimize(objective(), atol=-1), "atol must be"),
    (lambda: rm.minimize(objective(), max_iter=0), "max_iter must be"),
    (lambda: rm.minimize(objective(), max_seconds=-1), "max_seconds must be"),
    *((lambda w0=w0: rm.minimize(objective(), w0=w0), r"w0|shape") for w0 in (np.ones(4), np.ones((5, 1)))),
    (
        lambda: rm.path(objective().risk, [rm.L2()], [1.0, 2.0]),
        "1 regularizers for 2 lams: give one for each",
    ),
    (lambda: rm.path(objective().risk, rm.L2(), [1.0, -1.0]), "lam must be a finite number > 0, not -1.0"),
    (lambda: rm.path(objective().risk, rm.L2(), [np.nan]), "lam must be a finite number > 0"),
    (lambda: rm.lam_grid(objective().risk, rm.L1(), 0), "at least one lam"),
    *(
        (lambda reg=reg: rm.lam_max(objective().risk, reg), "no lam_max: choose the largest lam yourself")
        for reg in (rm.L2(), rm.Quadratic(np.eye(5)), rm.QNorm(), rm.Entropy(), rm.Box(rm.L2(), -1.0, 1.0))
    ),
    (lambda: rm.minimize_constrained(X, 1.0, 0.0, rm.L2()), "lower bound is above the upper"),
    (lambda: rm.minimize_constrained(X, np.inf, np.inf, rm.L2()), "target is infinite"),
    (lambda: rm.minimize_constrained(X, -np.inf, np.inf, rm.L2()), "no constraints"),
    (lambda: rm.hard_margin(X, np.arange(40.0)), "-1"),
    (lambda: rm.maximum_entropy(X, np.zeros(5), prior=np.zeros(40)), "40 numbers above 0"),
    (lambda: rm.maximum_entropy(X, np.zeros(5), width=-1.0), "width must be >= 0"),
]
test_refusals = refusals((REFUSED, ValueError))


# ---------------------------------------------------------------- results and traces


def test_w0_of_other_dtypes_and_strides():
    obj = objective(rm.Squared())
    expected = rm.minimize(obj, tol=1e-10)
    for w0 in (np.ones(5, dtype=np.float32), np.ones(5, dtype=int), np.ones((5, 2))[:, 0]):
        assert rm.minimize(obj, w0=w0, tol=1e-10).value == pytest.approx(expected.value, rel=1e-9)


def test_calls_are_counted_per_run():
    obj = objective()
    one, two = rm.minimize(obj, rm.Bundle()), rm.minimize(obj, rm.Bundle())
    assert one.trace[-1]["calls"] == two.trace[-1]["calls"]
    assert obj.count.calls == 0


def test_the_result_names_the_solver_and_the_reason():
    assert rm.minimize(objective(), rm.Bundle(keep=7)).solver == "Bundle(keep=7)"
    assert rm.minimize(objective(rm.Logistic())).solver.endswith(
        ": Logistic is smooth, with second derivatives"
    )
    reason = "Hinge can be smoothed, with second derivatives"
    assert rm.Auto().choose(objective())[1] == reason
    assert rm.minimize(objective(), rm.Auto()).solver.endswith(f": {reason}")
    anonymous = rm.minimize(rm.Objective(OwnRisk(objective().risk), rm.L2(), 0.1))
    assert anonymous.solver.startswith("Bundle(keep=20): OwnRisk ")


@pytest.mark.parametrize("loss", ["softmax", "multiclass_hinge"])
def test_no_result_is_worse_than_the_best_constant_scores(loss):
    """Rare classes, intercepts in w, and a run that ends at once."""
    y = np.repeat(np.arange(5), [900, 60, 30, 8, 2])
    X = np.random.default_rng(0).normal(size=(1000, 3)) * [1e6, 1.0, 1e-6] + [1e9, 0.0, 5.0]
    p = np.bincount(y) / 1000
    best = -p @ np.log(p) if loss == "softmax" else 2 * (1 - p[0])  # margins of 1 for the first class
    result = rm.minimize(
        rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=True), rm.L1(), 1e-4), max_iter=1
    )
    assert result.lower <= result.value <= best * (1 + 1e-9)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("solver", [rm.Bundle(), rm.Bmrm(), rm.LineSearchBmrm(), rm.Lbfgs()], ids=repr)
def test_the_perceptron_on_separable_data(solver, intercept):
    """The minimum is J(0) = 0: reached at once from w = 0, and approximately from elsewhere."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 3)), np.where(np.arange(30) % 2 == 0, 1.0, -1.0)
    X[:, 0] = y * (1 + rng.random(30))
    obj = rm.Objective(rm.linear_risk(X, y, rm.Hinge(margin=0.0), fit_intercept=intercept), rm.L2(), 0.1)
    result = rm.minimize(obj, solver)
    assert (result.status, result.value, result.lower) == ("converged", 0.0, 0.0)
    result = rm.minimize(obj, solver, np.ones(3), max_iter=100)
    assert result.lower == pytest.approx(0, abs=1e-12)
    assert result.value <= 0.1


# ---------------------------------------------------------------- how runs end
@dataclass
class Repeat:
    """A solver that yields the value and the cut at w0 a number of times."""

    times: float

    def iterates(self, obj, w0):
        value, _, cut = obj(w0)
        while self.times > 0:
            self.times -= 1
            yield rm.Iterate(w0, value, cut)


@pytest.mark.parametrize(("times", "n_iter"), [(1, range(1, 2)), (np.inf, range(100, 110))])
def test_solvers_that_end_early_or_make_no_progress_are_stalled(times, n_iter):
    result = rm.minimize(objective(), Repeat(times), tol=1e-6)
    assert result.status == "stalled"
    assert result.n_iter in n_iter


@dataclass
class Elsewhere(Repeat):
    """A solver whose cut is that of w = 0, and whose points are not."""

    def iterates(self, obj, w0):
        cut = obj(0 * w0).cut
        for it in super().iterates(obj, w0 + 1):
            yield it._replace(cut=cut)


@pytest.mark.parametrize("times", [1, np.inf])
def test_a_bound_that_proves_the_minimum_at_zero_certifies_zero(times):
    """Whatever points the solver stays at: the model with w = 0 is within tol."""
    obj = rm.Objective(rm.linear_risk(X, np.where(X[:, 0] > 0, 1.0, -1.0), rm.Hinge()), rm.L1(), 10.0)
    result = rm.minimize(obj, Elsewhere(times), tol=1e-6)
    assert (result.status, result.criterion) == ("converged", "tol")
    assert result.value == pytest.approx(1.0)
    assert not result.w.any()
    assert result.n_iter < 50


def test_limits_of_iterations_and_seconds():
    result = rm.minimize(objective(), rm.Bundle(), tol=1e-9, max_iter=3)
    assert (result.status, result.n_iter) == ("max_iter", 3)
    assert result.gap > 1e-9 * result.value
    with ticking_clock():
        result = rm.minimize(objective(lam=1e-6), rm.Bmrm(), tol=1e-12, max_seconds=0.3)
    assert result.status == "max_seconds"
    assert result.trace[-1]["seconds"] >= 0.3


@pytest.mark.parametrize(
    ("solver", "loss", "intercept", "gap"),
    [
        (rm.Bundle(), rm.Hinge(), True, 1e-8),
        (rm.Bundle(), rm.Absolute(), False, 1e-8),
        (rm.Lbfgs(), rm.Logistic(), True, 1e-8),
        (rm.Newton(), rm.Logistic(), False, 1e-10),
        (rm.Newton(), rm.RocArea(), False, 1e-10),
        (rm.AcceleratedGradient(), rm.Logistic(), True, 1e-10),
    ],
    ids=repr,
)
def test_runs_end_at_full_accuracy(solver, loss, intercept, gap):
    lam = 0.5 if solver == rm.AcceleratedGradient() else 1e-2
    result = rm.minimize(objective(loss, intercept=intercept, lam=lam), solver, tol=0.0, max_iter=5000)
    assert result.status == "stalled"
    assert 0 <= result.gap <= gap * result.value


def test_callback_gets_each_row_and_can_stop():
    rows, obj = [], objective(intercept=True, lam=1e-4)

    def callback(it, row):
        rows.append(row)
        assert it.w.shape == (5,)
        return len(rows) == 4

    result = rm.minimize(obj, rm.Bundle(), tol=1e-9, callback=callback)
    assert result.status == "interrupted"
    assert rows == result.trace
    assert len(rows) == 4
    assert result.value == pytest.approx(obj.value(result.w), rel=1e-14)
    assert result.trace[-1]["value"] == result.value
    with pytest.raises(ZeroDivisionError):  # its errors are raised
        rm.minimize(obj, callback=lambda it, row: 1 / 0)
    ended = rm.minimize(obj, rm.Bundle(), tol=0.1, callback=lambda it, row: row["gap"] <= 0.1 * row["value"])
    assert ended.status == "converged"


# ---------------------------------------------------------------- Ctrl-C
@dataclass
class OwnRisk:
    """A risk of the user's own, which counts its calls and can be interrupted or spoiled."""

    risk: object
    interrupt_at: int = -1
    sign: float = 1.0
    calls: list = field(default_factory=list)

    @property
    def dim(self):
        return self.risk.dim

    def __call__(self, w):
        self.calls.append(1)
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        value, grad = self.risk(w)
        return value, self.sign * grad


@dataclass(frozen=True)
class Starting:
    """A solver that calls a function when its run starts, after the checks of the risk."""

    solver: object
    at_start: object

    def iterates(self, obj, w0):
        self.at_start()
        yield from self.solver.iterates(obj, w0)


def calls_before_the_run(risk):
    """Number of calls of a user-defined risk in the checks before a run."""
    counted, counts = OwnRisk(risk), []
    rm.minimize(
        rm.Objective(counted, rm.L2(), 1e-4), Starting(rm.Bmrm(), lambda: counts.append(len(counted.calls)))
    )
    return counts[0]


@pytest.mark.parametrize("solver", [rm.Bundle(), rm.Bmrm(), rm.Lbfgs()], ids=repr)
def test_ctrl_c_returns_the_best_so_far(solver):
    risk = objective(rm.Logistic()).risk
    before = calls_before_the_run(risk)
    result = rm.minimize(rm.Objective(OwnRisk(risk, before + 6), rm.L2(), 1e-4), solver, tol=1e-12)
    assert result.status == "interrupted"
    assert result.n_iter >= 1
    assert result.value == pytest.approx(rm.Objective(risk, rm.L2(), 1e-4).value(result.w))
    for first in (1, before + 1):
        with pytest.raises(KeyboardInterrupt):  # there is no result yet
            rm.minimize(rm.Objective(OwnRisk(risk, first), rm.L2(), 1e-4), solver)


def test_a_signal_of_the_terminal_returns_the_best_so_far():
    def strike(it, row):
        if row["iteration"] == 4:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    result = rm.minimize(objective(lam=1e-9), rm.LineSearchBmrm(), tol=0, callback=strike)
    assert (result.status, result.n_iter) == ("interrupted", 4)
    assert result.lower <= result.value
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_during_the_final_evaluation_keeps_the_trace(tmp_path):
    """Ctrl-C during the reevaluation of J at the end of the run."""
    obj, calls = objective(), []
    last = calls_before_the_run(obj.risk) + rm.minimize(obj, rm.Bmrm(), tol=1e-6).n_iter + 1

    class Risk:  # without a state, which would be part of its data
        dim = obj.risk.dim

        def __call__(self, w):
            calls.append(0)
            if len(calls) == last:
                raise KeyboardInterrupt
            return obj.risk(w)

    broken = rm.Objective(Risk(), rm.L2(), obj.lam)
    result = rm.minimize(broken, rm.Bmrm(), tol=1e-6, checkpoint=tmp_path / "run")
    assert result.status == "interrupted"
    assert all(row.keys() >= {"value", "lower", "gap", "calls"} for row in result.trace)
    assert rm.minimize(broken, rm.Bmrm(), tol=1e-6, checkpoint=tmp_path / "run").status == "converged"


def test_ctrl_c_while_resuming_returns_the_saved_result(tmp_path):
    obj = objective()
    first = rm.minimize(obj, rm.Bundle(), tol=1e-9, max_iter=4, checkpoint=tmp_path / "run")

    class Interrupted(type(obj.risk)):
        def cursor(self, w):
            raise KeyboardInterrupt

    risk = Interrupted(obj.risk.loss, obj.risk.linear_map, obj.risk.executor, obj.risk.dim)
    result = rm.minimize(
        rm.Objective(risk, rm.L2(), obj.lam), rm.Bundle(), tol=1e-9, checkpoint=tmp_path / "run"
    )
    assert result.status == "interrupted"
    assert result.value == pytest.approx(first.value, rel=1e-12)


# ---------------------------------------------------------------- wrong oracles


def spoiled(risk):
    """Spoil a risk: the checks before the run have passed."""
    risk.sign = -1.0


@pytest.mark.parametrize("solver", [rm.Bundle(), rm.Bmrm(), rm.LineSearchBmrm(), rm.Lbfgs()], ids=repr)
def test_an_oracle_that_is_wrong_in_the_run_is_not_certified(solver):
    right = objective(rm.Logistic()).risk
    for w0 in np.random.default_rng(0).standard_normal((3, 5)):
        risk = OwnRisk(right)
        wrong = Starting(solver, lambda risk=risk: spoiled(risk))
        result = rm.minimize(rm.Objective(risk, rm.L2(), 0.01), wrong, w0, tol=1e-3, max_iter=200)
        assert (result.status, result.lower) == ("stalled", 0)
        assert result.note.startswith("the risk OwnRisk is not convex, or its gradient is wrong: it is ")


def test_a_refuted_bound_is_discarded():
    """The first iterate has a false bound, and the second a value below it."""

    class Liar:
        def iterates(self, obj, w0):
            value, _, cut = obj(w0)
            yield rm.Iterate(w0, value, rm.Cut(0 * w0, 0.9 * value))
            while True:
                yield rm.Iterate(best.w, best.value, cut)

    obj = objective()
    best = rm.minimize(obj, tol=1e-6)
    result = rm.minimize(obj, Liar(), tol=1e-3)
    assert result.status == "stalled"
    assert result.lower == 0
    assert obj.lower(result.cut) == 0


def test_each_cut_has_a_rounding_error_of_its_own(monkeypatch):
    """A cut that rounding makes worthless takes nothing off the bound of another."""
    poor = rm.Cut(np.array([-0.5]), 0.374)
    # no data give a valid cut near the optimum such an error
    monkeypatch.setattr(
        run, "rounding_allowance", lambda obj, w, b, cut: (0.1 if cut.b == poor.b else 1e-12, 0.0)
    )

    class PoorCut:
        def iterates(self, obj, w0):
            # J = w^2 / 2 + (w - 1)^2 / 2, with the minimum 1/4 at 1/2; the cut there has the offset 0.375
            for _ in range(5):
                yield rm.Iterate(np.array([0.5]), 0.25, poor)

    risk = rm.linear_risk(np.ones((2, 1)), np.ones(2), rm.Squared())
    result = rm.minimize(rm.Objective(risk, rm.L2(), lam=1.0), PoorCut(), tol=1e-2)
    assert result.status == "converged"
    assert 0.25 - 1e-9 <= result.lower <= 0.25


# ---------------------------------------------------------------- difficult problems
@pytest.mark.parametrize("seed", range(2))
def test_bundle_values_do_not_increase(seed):
    """Steep losses far from the minimum, where a bracket may end at worse points than the starting point."""
    obj = objective(rm.Exponential(), lam=1e-4, seed=seed, intercept=True)
    w0 = np.random.default_rng(seed).standard_normal(5)
    values = [it.value for it in islice(rm.Bundle().iterates(obj, w0), 25)]
    assert all(new <= old * (1 + 1e-9) for old, new in pairwise(values))
    assert rm.minimize(obj, rm.Bundle(), w0, tol=1e-2).status == "converged"


CLASSES = [loss for loss in MANY_LOSSES if loss.task == "multiclass"]


@st.composite
def difficult_problems(draw):
    """Any loss, on data with various numerical difficulties."""
    loss = draw(st.sampled_from([*ALL_LOSSES, *CLASSES]))
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
    X = sp.csr_array(X) if draw(st.booleans()) else X
    risk = rm.linear_risk(X, y, loss, sample_weight=weights, fit_intercept=draw(st.booleans()))
    w0 = draw(st.sampled_from([0.0, 1.0, 1e3])) * rng.standard_normal(risk.dim)
    return loss, rm.Objective(risk, rm.L2(), lam), w0


UNBOUNDED = (rm.Exponential(), rm.Logistic(), rm.Poisson())
"""Losses that may decrease indefinitely as the intercept grows."""


def certify(loss, obj, w0, solvers, max_iter):
    """Check that no lower bound exceeds a value of another solver, and that there are no warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            results = [
                rm.minimize(obj, solver, w0, tol=1e-5, max_iter=max_iter)
                for solver in solvers
                if solver.supports(obj) is None
            ]
        except ValueError as error:  # all weight on one class, or on counts of zero
            if "no best intercept exists" in str(error) and loss in UNBOUNDED:
                return
            raise
    scale = max(obj.value(np.zeros(obj.risk.dim)), obj.value(w0), 1.0)  # labels are of order one
    for one in results:
        assert np.isfinite(one.w).all()
        assert -1e-14 * scale <= one.lower <= one.value < np.inf
        assert obj.value(one.w) == pytest.approx(one.value, rel=1e-9, abs=1e-12 * scale)
        for two in results:
            assert one.lower <= two.value * (1 + 1e-9) + 1e-11 * scale


@settings(deadline=None, max_examples=20, derandomize=True, suppress_health_check=list(HealthCheck))
@given(difficult_problems())
def test_difficult_problems_have_valid_certificates(problem):
    certify(*problem, [rm.Auto(), rm.Bundle(), rm.Lbfgs(), rm.Bmrm(), rm.LineSearchBmrm()], max_iter=60)
