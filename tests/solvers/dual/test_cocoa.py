"""Dual ascent on remote rows: against brute force, cvxpy, the run on all rows, and its contract."""

from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import problem
from reference import optimum
from riskmin import (
    L1,
    L2,
    Bundle,
    DualCoordinateAscent,
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
from riskmin.core import Cut, Shard, ShardCache, UnsupportedProblem
from riskmin.executors.base import Executor, SerialExecutor
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


class RemoteShards(Executor):
    """Shards that solvers cannot read; their caches may be lost before each call."""

    forgets = False

    def __init__(self, shards=()):
        self.shards = [shard.load() for shard in shards]

    def __call__(self, shards):
        return type(self)(shards)

    def map(self, f, *args, each=()):
        if self.forgets:
            self.shards = [Shard(*shard[:3], ShardCache()) for shard in self.shards]
        return SerialExecutor(self.shards).map(f, *args, each=each)


class ForgetfulShards(RemoteShards):
    forgets = True


def remote_objective(loss, lam=0.05, reg=None, n_shards=3, executor=None, data=None, **settings):
    X, y, weights = problem(loss) if data is None else data
    executor = RemoteShards() if executor is None else executor
    risk = linear_risk(X, y, loss, sample_weight=weights, executor=executor, n_shards=n_shards, **settings)
    return Objective(risk, reg or L2(), lam)


def bound(obj, cut):
    """The lower bound of a cut, without scaling it."""
    return cut.b - obj.lam * obj.reg.conjugate(-cut.a / obj.lam)


def dual(obj, u):
    """The dual objective, by its definition."""
    (y, c), X = obj.risk.labels, np.vstack([shard.X.X for shard in obj.risk.executor.shards])
    conjugate = obj.risk.loss.conjugate(y).value(u)
    return bound(obj, Cut(X.T @ (c * u), -float(c @ conjugate)))


def starts(loss, y, rng):
    """Feasible dual variables: slopes of the loss."""
    z = 2 * rng.standard_normal((2, len(y)))
    one, two = (loss.value_grad(row, y, np.ones(len(y)))[1] for row in z)
    return 0.7 * one + 0.3 * two


# ---------------------------------------------------------------- a round
@each_loss
@pytest.mark.parametrize("weights", [1.0, np.array([0.5, 2.0, 1.0, 3.0])], ids=["plain", "weights"])
def test_a_round_gains_at_least_what_theory_guarantees(loss, weights):
    """A step of sigma / K towards the new point gains at least that fraction of the gains of the shards."""
    obj, rng = remote_objective(loss, lam=0.02, reg=L2(weights)), np.random.default_rng(1)
    (y, c), shards = obj.risk.labels, obj.risk.executor.shards
    u = starts(loss, y, rng)
    X = np.vstack([shard.X.X for shard in shards])
    w = obj.argmin(Cut(X.T @ (c * u), 0.0))
    scale, ends = NONE if obj.reg.unweighted else 1 / weights, np.cumsum([0, *(len(s.c) for s in shards)])
    for sigma in (1.0, 2.0, 3.0):
        task, gains, new, slope = RoundTask(loss, scale, obj.lam / sigma, 2, 1.0, True, True), [], [], 0.0
        for k, (i, j) in enumerate(pairwise(ends)):
            multipliers, _, sums = sweep_shard(shards[k], task, w, w, (u[i:j], (0, 1, k)))
            before, after = (-c[i:j] @ loss.conjugate(y[i:j]).value(v) for v in (u[i:j], multipliers))
            change = X[i:j].T @ (c[i:j] * (multipliers - u[i:j]))
            change_norm_sq = 2 * obj.reg.conjugate(change)
            assert sums.change_sq == pytest.approx(change_norm_sq, rel=1e-9, abs=1e-15)
            assert sums.offset == pytest.approx(after, rel=1e-12)
            gains.append(after - before + w @ change - sigma / (2 * obj.lam) * change_norm_sq)
            new.append(multipliers)
            slope = slope + sums.slope
        new = np.concatenate(new)
        assert np.allclose(slope, X.T @ (c * new), rtol=1e-12, atol=1e-15)
        assert min(gains) > 0
        fraction = sigma / len(shards)
        assert dual(obj, u + fraction * (new - u)) - dual(obj, u) >= fraction * sum(gains) - 1e-14


def test_epochs_of_one_shard_equal_those_on_all_rows():
    """With one shard and sigma = 1 the steps equal those of a run on all rows, each of them optimal."""
    obj = remote_objective(Hinge(), n_shards=1)
    (y, c), (shard,) = obj.risk.labels, obj.risk.executor.shards
    task, u, X = RoundTask(Hinge(), NONE, obj.lam, 1, 1.0, False, False), np.zeros(len(y)), shard.X.X
    multipliers, slopes, sums = sweep_shard(shard, task, np.zeros(4), np.ones(4), (u, (0,)))
    w = np.zeros(4)
    for i in np.flatnonzero(c):
        best = u[i] - (y[i] - X[i] @ w) / (c[i] / obj.lam * X[i] @ X[i])
        new = np.clip(best, *sorted((-y[i], 0.0)))
        w -= c[i] / obj.lam * (new - u[i]) * X[i]
        u[i] = new
    assert np.allclose(multipliers[c > 0], u[c > 0], rtol=1e-10, atol=1e-12)
    value, grad = obj.risk(np.ones(4))
    assert sums.risk == pytest.approx(value)
    assert np.allclose(sums.grad, grad)
    assert np.allclose(X.T @ (c * slopes), grad)


# ---------------------------------------------------------------- a run
@each_loss
def test_bounds_never_decrease_and_cuts_are_valid(loss):
    rng = np.random.default_rng(0)
    for reg in (L2(), L2(np.array([0.5, 2.0, 1.0, 3.0]))):
        obj = remote_objective(loss, lam=0.01, reg=reg)
        points = [rng.standard_normal(4) * size for size in (0.1, 1.0, 10.0) for _ in range(5)]
        risks = [obj.risk(v)[0] for v in points]
        steps = list(islice(DualCoordinateAscent(local_epochs=1).iterates(obj, np.zeros(4)), 20))
        bounds = [bound(obj, it.cut) for it in steps]
        assert all(b >= a - 1e-12 * (1 + abs(a)) for a, b in pairwise(bounds))
        for it in steps:
            assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
            for v, r in zip(points, risks, strict=True):
                assert it.cut.a @ v + it.cut.b <= r + 1e-12 * (1 + r)
            # its dual variables give at least this bound; their weights sum to one up to rounding
            assert dual(obj, (1 - 1e-15) * it.state()["u"]) >= bound(obj, it.cut) - 1e-12


@slow
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@each_loss
@pytest.mark.parametrize("n_shards", [1, 7, 30])
def test_the_optimum_equals_cvxpys(loss, n_shards):
    X, y, weights = problem(loss)
    for lam in (0.5, 0.005):
        result = minimize(
            remote_objective(loss, lam, n_shards=n_shards), DualCoordinateAscent(), tol=1e-7, max_iter=3000
        )
        assert result.status == "converged"
        expected = optimum(loss, L2(), X, y, weights, lam, False)
        assert np.isnan(expected) or result.lower - 1e-7 <= expected <= result.value + 1e-7


@each_loss
def test_the_optimum_equals_that_of_a_run_on_all_rows(loss):
    obj = remote_objective(loss)
    X, y, weights = problem(loss)
    local = Objective(linear_risk(X, y, loss, sample_weight=weights), L2(), obj.lam)
    remote_result, local_result = (minimize(o, DualCoordinateAscent(), tol=1e-6) for o in (obj, local))
    assert remote_result.status == "converged"
    assert "sigma" in remote_result.trace[-1]
    assert "sigma" not in local_result.trace[-1]
    assert max(remote_result.lower, local_result.lower) <= min(remote_result.value, local_result.value) * (
        1 + 1e-12
    )


def same(one, other):
    return all(
        np.array_equal(a.w, b.w) and a.value == b.value and np.array_equal(a.cut.a, b.cut.a)
        and a.cut.b == b.cut.b and a.info == b.info
        for a, b in zip(one, other, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_lost_caches_do_not_change_the_bits(loss):
    runs = []
    for run in (RemoteShards(), ForgetfulShards(), Threads(n_workers=2)):
        obj = remote_objective(loss, executor=run)
        obj = Objective(replace(obj.risk, rows=None), L2(), obj.lam)
        runs.append(list(islice(DualCoordinateAscent().iterates(obj, np.zeros(4)), 8)))
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


@slow
def test_processes_give_the_same_bits():
    rng = np.random.default_rng(0)
    X = sp.csr_array(np.where(rng.random((400, 30)) < 0.2, rng.standard_normal((400, 30)), 0.0))
    y = np.where(X @ rng.standard_normal(30) + rng.standard_normal(400) > 0, 1.0, -1.0)
    executor = Processes(n_workers=2)
    for loss in (Hinge(), Logistic()):
        results = []
        for run in (RemoteShards(), executor):
            risk = linear_risk(X, y, loss, executor=run, n_shards=5)
            steps = DualCoordinateAscent().iterates(Objective(risk, L2(), 1e-3), np.zeros(30))
            results.append(list(islice(steps, 12)))
        assert same(*results)


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
def test_a_run_is_resumed(loss):
    obj, solver = remote_objective(loss, lam=0.01), DualCoordinateAscent(local_epochs=1)
    steps = list(islice(solver.iterates(obj, np.ones(4)), 20))
    for k in (0, 1, 14):
        saved = {name: np.atleast_1d(np.array(a)) for name, a in steps[k].state().items()}
        assert same(islice(solver.resume(obj, saved), 4), steps[k + 1 : k + 5])


def test_a_run_is_resumed_with_rows_moved():
    remote = remote_objective(Hinge(), lam=0.01)
    X, y, weights = problem(Hinge())
    local = Objective(linear_risk(X, y, Hinge(), sample_weight=weights), L2(), 0.01)
    solver = DualCoordinateAscent()
    for source, target in ((remote, local), (local, remote)):
        last = list(islice(solver.iterates(source, np.zeros(4)), 8))[-1]
        first = next(solver.resume(target, last.state()))
        assert target.lower(first.cut) >= source.lower(last.cut) - 1e-12
    assert minimize(remote, solver, tol=1e-8).status == "converged"


# ---------------------------------------------------------------- rows of all kinds
@pytest.mark.parametrize(
    "losses",
    [
        [Hinge()],
        pytest.param([Logistic(), SquaredHinge(), EpsilonInsensitive(0.1), Quantile(0.3)], marks=slow),
    ],
    ids=["Hinge", "others"],
)
def test_zero_rows_empty_shards_and_zero_weights(losses):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 3)) * (rng.random((40, 3)) < 0.5)
    X[10:20] = 0.0
    weights = np.where(np.arange(40) // 5 == 5, 0.0, 1.0 + np.arange(40) % 3)
    for loss in losses:
        y = np.where(rng.random(40) < 0.5, 1.0, -1.0)
        reference = minimize(Objective(linear_risk(X, y, loss, sample_weight=weights), L2(), 0.03), tol=1e-9)
        for data in (X, sp.csr_array(X), sp.csc_array(X), np.asfortranarray(X)):
            obj = remote_objective(loss, 0.03, n_shards=8, data=(data, y, weights))
            executor = obj.risk.executor
            empty = Shard(as_matrix(data[:0]), y[:0], obj.risk.labels[1][:0], ShardCache())
            executor.shards = [executor.shards[0], empty, *executor.shards[1:]]
            result = minimize(obj, DualCoordinateAscent(), tol=1e-6)
            assert result.status == "converged"
            assert result.lower <= reference.value * (1 + 1e-9)
            assert result.value >= reference.lower * (1 - 1e-9)
    zeros = remote_objective(Hinge(), data=(np.zeros((4, 2)), np.array([1.0, -1, 1, -1]), None), n_shards=2)
    assert minimize(zeros, DualCoordinateAscent(), tol=1e-9).value == 1.0


def test_few_cuts_with_many_rows(monkeypatch):
    """With many dual variables, cuts are aggregated sooner, and convergence is slower."""
    monkeypatch.setattr(cocoa, "LIMITS", replace(cocoa.LIMITS, stored_duals=1))
    obj = remote_objective(Hinge(), lam=0.01)
    run = Cocoa.for_shard(DualCoordinateAscent(), obj)
    steps = list(islice(run.start(np.zeros(4)), 60))
    assert len(run.pool.U) == 3
    best = minimize(obj, Bundle(), tol=1e-9).value
    assert best * (1 - 1e-3) <= bound(obj, steps[-1].cut) <= best * (1 + 1e-9)


# ---------------------------------------------------------------- with other components
def test_paths_and_switching():
    obj = remote_objective(Hinge(), n_shards=4)
    lams = [1.0, 0.1, 0.01]
    for result, lam in zip(
        path(obj.risk, L2(), lams, solver=DualCoordinateAscent(), tol=1e-6), lams, strict=True
    ):
        assert result.status == "converged"
        exact = minimize(Objective(obj.risk, L2(), lam), Bundle(), tol=1e-8)
        assert result.value == pytest.approx(exact.value, rel=1e-5)
    switching = Switching(DualCoordinateAscent(local_epochs=1), Bundle(), tol=1e-7, passes_per_digit=0.1)
    result = minimize(replace(obj, lam=1e-4), switching, tol=1e-7)
    assert result.status == "converged"
    assert {row["solver"] for row in result.trace} == {1.0, 2.0}


@pytest.mark.parametrize(
    ("loss", "reg", "settings"),
    [(Hinge(), L1(), {}), (Poisson(), L2(), {}), (Hinge(), L2(), {"fit_intercept": True})],
    ids=["L1", "Poisson", "intercept"],
)
def test_unsupported_problems_are_refused(loss, reg, settings):
    obj = remote_objective(loss, reg=reg, **settings)
    with pytest.raises(UnsupportedProblem, match=r"for remote rows.*: use Auto or Bundle$"):
        DualCoordinateAscent().iterates(obj, np.zeros(4))
    assert minimize(obj, tol=1e-2).status == "converged"


def test_settings_are_checked():
    with pytest.raises(ValueError, match="needs local_epochs to be a whole number >= 1, not 0"):
        DualCoordinateAscent(local_epochs=0)
