"""Dual ascent where rows are elsewhere: held to brute force, cvxpy, the run on all rows, and its contract."""

from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import optimum, problem
from riskmin import (
    L1,
    L2,
    Bundle,
    DualGaussSeidel,
    EpsilonInsensitive,
    Hinge,
    Huber,
    Logistic,
    Novelty,
    Objective,
    Poisson,
    Processes,
    Quantile,
    Squared,
    SquaredHinge,
    Switching,
    Threads,
    linear_risk,
    minimize,
    path,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.partitioned import materialize
from riskmin.core import Cut, Shard, ShardCache, UnsupportedProblem
from riskmin.executors.base import Executor, SerialExecutor
from riskmin.losses.conjugate import conjugate_of
from riskmin.solvers.dual import cocoa
from riskmin.solvers.dual.cocoa import Cocoa, RoundTask, sweep_shard

LOSSES = [
    Hinge(),
    SquaredHinge(),
    Logistic(),
    EpsilonInsensitive(0.2),
    Huber(),
    Quantile(0.9),
    Novelty(),
    Squared(),
]
slow = pytest.mark.slow
QUICK = [Hinge(), Logistic(), EpsilonInsensitive(0.2)]
each_loss = pytest.mark.parametrize(
    "loss", [loss if loss in QUICK else pytest.param(loss, marks=slow) for loss in LOSSES], ids=repr
)
NONE = np.empty(0)


class Elsewhere(Executor):
    """Shards that no solver may look at; their memos may be lost before each call."""

    forgets = False

    def __init__(self, shards=()):
        self.shards = [materialize(shard) for shard in shards]

    def __call__(self, shards):
        return type(self)(shards)

    def map(self, f, *args, each=()):
        if self.forgets:
            self.shards = [Shard(*shard[:3], ShardCache()) for shard in self.shards]
        return SerialExecutor(self.shards).map(f, *args, each=each)


class Forgetful(Elsewhere):
    forgets = True


def elsewhere(loss, lam=0.05, reg=None, n_shards=3, executor=None, data=None, **settings):
    X, y, weights = problem(loss) if data is None else data
    executor = Elsewhere() if executor is None else executor
    risk = linear_risk(X, y, loss, sample_weight=weights, executor=executor, n_shards=n_shards, **settings)
    return Objective(risk, reg or L2(), lam)


def bound(obj, cut):
    """The bound of a cut as it is, not shrunk."""
    return cut.b - obj.lam * obj.reg.conjugate(-cut.a / obj.lam)


def dual(obj, u):
    """The dual objective, from its definition."""
    (y, c), X = obj.risk.labels, np.vstack([shard.X.X for shard in obj.risk.executor.shards])
    conjugate = conjugate_of(obj.risk.loss, u, y)
    return bound(obj, Cut(X.T @ (c * u), -float(c @ conjugate)))


def starts(loss, y, rng):
    """Dual variables somewhere inside of their bounds: slopes of the loss."""
    z = 2 * rng.standard_normal((2, len(y)))
    one, two = (loss.value_grad(row, y, np.ones(len(y)))[1] for row in z)
    return 0.7 * one + 0.3 * two


# ---------------------------------------------------------------- a round
@each_loss
@pytest.mark.parametrize("weights", [1.0, np.array([0.5, 2.0, 1.0, 3.0])], ids=["plain", "weights"])
def test_a_round_gains_what_theory_says(loss, weights):
    """Going sigma / K of the way gains that part of what the shards gained by themselves, at least."""
    obj, rng = elsewhere(loss, lam=0.02, reg=L2(weights)), np.random.default_rng(1)
    (y, c), shards = obj.risk.labels, obj.risk.executor.shards
    u = starts(loss, y, rng)
    X = np.vstack([shard.X.X for shard in shards])
    w = obj.argmin(Cut(X.T @ (c * u), 0.0))
    scale, ends = NONE if obj.reg.unweighted else 1 / weights, np.cumsum([0, *(len(s.c) for s in shards)])
    for sigma in (1.0, 2.0, 3.0):
        task, gains, new, slope = RoundTask(loss, scale, obj.lam / sigma, 2, 1.0, True, True), [], [], 0.0
        for k, (i, j) in enumerate(pairwise(ends)):
            found, _, sums = sweep_shard(shards[k], task, w, w, (u[i:j], (0, 1, k)))
            before, after = (-c[i:j] @ conjugate_of(loss, v, y[i:j]) for v in (u[i:j], found))
            change = X[i:j].T @ (c[i:j] * (found - u[i:j]))
            bend = 2 * obj.reg.conjugate(change)
            assert sums.change_sq == pytest.approx(bend, rel=1e-9, abs=1e-15)
            assert sums.offset == pytest.approx(after, rel=1e-12)
            gains.append(after - before + w @ change - sigma / (2 * obj.lam) * bend)
            new.append(found)
            slope = slope + sums.slope
        new = np.concatenate(new)
        assert np.allclose(slope, X.T @ (c * new), rtol=1e-12, atol=1e-15)
        assert min(gains) > 0
        part = sigma / len(shards)
        assert dual(obj, u + part * (new - u)) - dual(obj, u) >= part * sum(gains) - 1e-14


def test_epochs_of_one_shard_are_those_of_all_rows():
    """With one shard and sigma = 1 the steps are those of a run on all rows, each the best one."""
    obj = elsewhere(Hinge(), n_shards=1)
    (y, c), (shard,) = obj.risk.labels, obj.risk.executor.shards
    task, u, X = RoundTask(Hinge(), NONE, obj.lam, 1, 1.0, False, False), np.zeros(len(y)), shard.X.X
    found, slopes, sums = sweep_shard(shard, task, np.zeros(4), np.ones(4), (u, (0,)))
    w = np.zeros(4)
    for i in np.flatnonzero(c):
        best = u[i] - (y[i] - X[i] @ w) / (c[i] / obj.lam * X[i] @ X[i])
        new = np.clip(best, *sorted((-y[i], 0.0)))
        w -= c[i] / obj.lam * (new - u[i]) * X[i]
        u[i] = new
    assert np.allclose(found[c > 0], u[c > 0], rtol=1e-10, atol=1e-12)
    value, grad = obj.risk(np.ones(4))
    assert sums.risk == pytest.approx(value)
    assert np.allclose(sums.grad, grad)
    assert np.allclose(X.T @ (c * slopes), grad)


# ---------------------------------------------------------------- a run
@each_loss
def test_bounds_never_fall_and_cuts_are_cuts(loss):
    rng = np.random.default_rng(0)
    for reg in (L2(), L2(np.array([0.5, 2.0, 1.0, 3.0]))):
        obj = elsewhere(loss, lam=0.01, reg=reg)
        points = [rng.standard_normal(4) * size for size in (0.1, 1.0, 10.0) for _ in range(5)]
        risks = [obj.risk(v)[0] for v in points]
        steps = list(islice(DualGaussSeidel(local_epochs=1).iterates(obj, np.zeros(4)), 20))
        bounds = [bound(obj, it.cut) for it in steps]
        assert all(b >= a - 1e-12 * (1 + abs(a)) for a, b in pairwise(bounds))
        for it in steps:
            assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
            for v, r in zip(points, risks, strict=True):
                assert it.cut.a @ v + it.cut.b <= r + 1e-12 * (1 + r)
            # the dual variables that it stands for bound no less; their weights are of sum one up to rounding
            assert dual(obj, (1 - 1e-15) * it.state()["u"]) >= bound(obj, it.cut) - 1e-12


@slow
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@each_loss
@pytest.mark.parametrize("n_shards", [1, 7, 30])
def test_the_optimum_is_that_of_cvxpy(loss, n_shards):
    X, y, weights = problem(loss)
    for lam in (0.5, 0.005):
        result = minimize(elsewhere(loss, lam, n_shards=n_shards), DualGaussSeidel(), tol=1e-7, max_iter=3000)
        assert result.status == "converged"
        least = optimum(loss, X, y, weights, lam, False)
        assert np.isnan(least) or result.lower - 1e-7 <= least <= result.value + 1e-7


@each_loss
def test_the_optimum_is_that_of_a_run_on_all_rows(loss):
    obj = elsewhere(loss)
    X, y, weights = problem(loss)
    here = Objective(linear_risk(X, y, loss, sample_weight=weights), L2(), obj.lam)
    one, other = (minimize(o, DualGaussSeidel(), tol=1e-6) for o in (obj, here))
    assert one.status == "converged"
    assert "sigma" in one.trace[-1]
    assert "sigma" not in other.trace[-1]
    assert max(one.lower, other.lower) <= min(one.value, other.value) * (1 + 1e-12)


def same(one, other):
    return all(
        np.array_equal(a.w, b.w) and a.value == b.value and np.array_equal(a.cut.a, b.cut.a)
        and a.cut.b == b.cut.b and a.info == b.info
        for a, b in zip(one, other, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_what_shards_remember_changes_no_bit(loss):
    runs = []
    for run in (Elsewhere(), Forgetful(), Threads(n_workers=2)):
        obj = elsewhere(loss, executor=run)
        obj = Objective(replace(obj.risk, rows=None), L2(), obj.lam)
        runs.append(list(islice(DualGaussSeidel().iterates(obj, np.zeros(4)), 8)))
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


@slow
def test_the_same_bits_in_processes():
    rng = np.random.default_rng(0)
    X = sp.csr_array(np.where(rng.random((400, 30)) < 0.2, rng.standard_normal((400, 30)), 0.0))
    y = np.where(X @ rng.standard_normal(30) + rng.standard_normal(400) > 0, 1.0, -1.0)
    executor = Processes(n_workers=2)
    for loss in (Hinge(), Logistic()):
        results = []
        for run in (Elsewhere(), executor):
            risk = linear_risk(X, y, loss, executor=run, n_shards=5)
            steps = DualGaussSeidel().iterates(Objective(risk, L2(), 1e-3), np.zeros(30))
            results.append(list(islice(steps, 12)))
        assert same(*results)


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_a_run_is_resumed(loss):
    obj, solver = elsewhere(loss, lam=0.01), DualGaussSeidel(local_epochs=1)
    steps = list(islice(solver.iterates(obj, np.ones(4)), 20))
    for k in (0, 1, 14):
        saved = {name: np.atleast_1d(np.array(a)) for name, a in steps[k].state().items()}
        assert same(islice(solver.resume(obj, saved), 4), steps[k + 1 : k + 5])


def test_a_run_is_resumed_where_rows_are_held_otherwise():
    away = elsewhere(Hinge(), lam=0.01)
    X, y, weights = problem(Hinge())
    here, solver = Objective(linear_risk(X, y, Hinge(), sample_weight=weights), L2(), 0.01), DualGaussSeidel()
    for one, other in ((away, here), (here, away)):
        last = list(islice(solver.iterates(one, np.zeros(4)), 8))[-1]
        first = next(solver.resume(other, last.state()))
        assert other.lower(first.cut) >= one.lower(last.cut) - 1e-12
    assert minimize(away, solver, tol=1e-8).status == "converged"


# ---------------------------------------------------------------- rows of all kinds
@pytest.mark.parametrize(
    "losses",
    [
        [Hinge()],
        pytest.param([Logistic(), SquaredHinge(), EpsilonInsensitive(0.1), Quantile(0.3)], marks=slow),
    ],
    ids=["Hinge", "others"],
)
def test_rows_of_zeros_empty_shards_and_weights_of_zero(losses):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.5)
    X[10:20] = 0.0
    weights = np.where(np.arange(40) // 5 == 5, 0.0, 1.0 + np.arange(40) % 3)
    for loss in losses:
        y = np.where(rng.random(40) < 0.5, 1.0, -1.0)
        whole = minimize(Objective(linear_risk(X, y, loss, sample_weight=weights), L2(), 0.03), tol=1e-9)
        for data in (X, sp.csr_array(X), sp.csc_array(X), np.asfortranarray(X)):
            obj = elsewhere(loss, 0.03, n_shards=8, data=(data, y, weights))
            held = obj.risk.executor
            none = Shard(as_matrix(data[:0]), y[:0], obj.risk.labels[1][:0], ShardCache())
            held.shards = [held.shards[0], none, *held.shards[1:]]
            result = minimize(obj, DualGaussSeidel(), tol=1e-6)
            assert result.status == "converged"
            assert result.lower <= whole.value * (1 + 1e-9)
            assert result.value >= whole.lower * (1 - 1e-9)
    nothing = elsewhere(Hinge(), data=(np.zeros((4, 2)), np.array([1.0, -1, 1, -1]), None), n_shards=2)
    assert minimize(nothing, DualGaussSeidel(), tol=1e-9).value == 1.0


def test_few_cuts_with_many_rows(monkeypatch):
    """Where dual variables are many, cuts become one sooner, and it takes longer."""
    monkeypatch.setattr(cocoa, "MAX_STORED_DUALS", 1)
    obj = elsewhere(Hinge(), lam=0.01)
    run = Cocoa.for_shard(DualGaussSeidel(), obj)
    steps = list(islice(run.start(np.zeros(4)), 60))
    assert len(run.pool.U) == 3
    best = minimize(obj, Bundle(), tol=1e-9).value
    assert best * (1 - 1e-3) <= bound(obj, steps[-1].cut) <= best * (1 + 1e-9)


# ---------------------------------------------------------------- with others
def test_it_goes_along_a_path_and_hands_over():
    obj = elsewhere(Hinge(), n_shards=4)
    lams = [1.0, 0.1, 0.01]
    for result, lam in zip(path(obj.risk, L2(), lams, solver=DualGaussSeidel(), tol=1e-6), lams, strict=True):
        assert result.status == "converged"
        exact = minimize(Objective(obj.risk, L2(), lam), Bundle(), tol=1e-8)
        assert result.value == pytest.approx(exact.value, rel=1e-5)
    both = Switching(DualGaussSeidel(local_epochs=1), Bundle(), tol=1e-7, passes_per_digit=0.1)
    result = minimize(replace(obj, lam=1e-4), both, tol=1e-7)
    assert result.status == "converged"
    assert {row["solver"] for row in result.trace} == {1.0, 2.0}


@pytest.mark.parametrize(
    ("loss", "reg", "settings"),
    [
        (Hinge(), L1(), {}),
        (Poisson(), L2(), {}),
        (Hinge(), L2(), {"fit_intercept": True}),
    ],
    ids=["L1", "Poisson", "intercept"],
)
def test_what_it_cannot_do_is_said(loss, reg, settings):
    obj = elsewhere(loss, reg=reg, **settings)
    with pytest.raises(UnsupportedProblem, match=r"for remote rows.*: use Auto or Bundle$"):
        DualGaussSeidel().iterates(obj, np.zeros(4))
    assert minimize(obj, tol=1e-2).status == "converged"


def test_settings_are_checked():
    with pytest.raises(ValueError, match="local_epochs must be a whole number >= 1, not 0"):
        DualGaussSeidel(local_epochs=0)
    with pytest.raises(UnsupportedProblem, match="exact steps"):
        DualGaussSeidel(step="gradient").iterates(elsewhere(Hinge()), np.zeros(4))
