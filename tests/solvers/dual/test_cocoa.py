"""Dual ascent on remote rows: against its definition, cvxpy, the run on all rows, and other executors."""

from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem
from riskmin.core import Cut, Shard, ShardCache
from riskmin.executors.base import Executor, SerialExecutor

slow = pytest.mark.slow
QUICK = [rm.Hinge(), rm.Logistic(), rm.EpsilonInsensitive(0.2)]
OTHERS = [rm.SquaredHinge(), rm.Huber(), rm.Quantile(0.9), rm.Novelty(), rm.Squared()]
each_loss = pytest.mark.parametrize(
    "loss", [*QUICK, *(pytest.param(loss, marks=slow) for loss in OTHERS)], ids=repr
)


class RemoteShards(Executor):
    """Shards that solvers cannot read; their caches may be lost before each call, and one may be empty."""

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


def bound(obj, cut):
    """The lower bound of a cut, without scaling it."""
    return cut.b - obj.lam * obj.reg.conjugate(-cut.a / obj.lam)


def remote(data, n_shards=3, executor=None):
    return data.objective(executor=executor or RemoteShards(), n_shards=n_shards)


# ---------------------------------------------------------------- a run
@each_loss
@pytest.mark.parametrize("n_shards", [1, 3])
def test_bounds_never_decrease_and_cuts_are_valid(loss, n_shards):
    rng = np.random.default_rng(0)
    reg = rm.L2() if n_shards == 1 else rm.L2(np.array([0.5, 2.0, 1.0, 3.0]))
    data = Problem(loss, reg, n=30, weighted=True)
    obj, c = remote(data, n_shards), data.weights / data.weights.sum()
    points = [rng.standard_normal(4) * size for size in (0.1, 1.0, 10.0) for _ in range(5)]
    risks = [obj.risk(v)[0] for v in points]
    steps = list(islice(rm.DualCoordinateAscent(local_epochs=1).iterates(obj, np.zeros(4)), 12))
    assert all(bound(obj, b.cut) >= bound(obj, a.cut) * (1 - 1e-12) - 1e-12 for a, b in pairwise(steps))
    assert bound(obj, steps[-1].cut) > bound(obj, steps[0].cut)
    for it in steps:
        assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
        for v, r in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= r + 1e-12 * (1 + r)
        # its dual variables give at least this bound; their weights sum to one up to rounding
        u = (1 - 1e-15) * it.state()["u"]
        dual = Cut(data.X.T @ (c * u), -float(c @ loss.conjugate(data.y).value(u)))
        assert bound(obj, dual) >= bound(obj, it.cut) - 1e-12


def same(one, other):
    return all(
        np.array_equal(a.w, b.w) and a.value == b.value and np.array_equal(a.cut.a, b.cut.a)
        and a.cut.b == b.cut.b and a.info == b.info
        for a, b in zip(one, other, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Logistic()], ids=repr)
def test_lost_caches_and_threads_do_not_change_the_bits(loss):
    runs, data = [], Problem(loss, lam=0.05, n=30, weighted=True)
    for executor in (RemoteShards(), ForgetfulShards(), rm.Threads(n_workers=2)):
        obj = remote(data, executor=executor)
        obj = replace(obj, risk=replace(obj.risk, rows=None))
        runs.append(list(islice(rm.DualCoordinateAscent().iterates(obj, np.zeros(4)), 8)))
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


@slow
def test_processes_give_the_same_bits():
    data = Problem(rm.Logistic(), lam=1e-3, n=200, p=10, sparse=True)
    one, other = (
        islice(rm.DualCoordinateAscent().iterates(remote(data, 5, executor), np.zeros(10)), 12)
        for executor in (RemoteShards(), rm.Processes(n_workers=2))
    )
    assert same(one, other)


@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Logistic()], ids=repr)
def test_a_resumed_run_is_bit_equal(loss):
    obj, solver = remote(Problem(loss, n=30, weighted=True)), rm.DualCoordinateAscent(local_epochs=1)
    steps = list(islice(solver.iterates(obj, np.ones(4)), 20))
    for k in (0, 1, 14):
        saved = {name: np.atleast_1d(np.array(a)) for name, a in steps[k].state().items()}
        assert same(islice(solver.resume(obj, saved), 4), steps[k + 1 : k + 5])


def test_a_run_is_resumed_with_rows_moved():
    data, solver = Problem(rm.Hinge(), n=30, weighted=True), rm.DualCoordinateAscent()
    there, here = remote(data), data.objective()
    for source, target in ((there, here), (here, there)):
        last = list(islice(solver.iterates(source, np.zeros(4)), 8))[-1]
        first = next(solver.resume(target, last.state()))
        assert target.lower(first.cut) >= source.lower(last.cut) - 1e-12


# ---------------------------------------------------------------- rows of all kinds
@pytest.mark.parametrize("store", [np.asarray, sp.csr_array, sp.csc_array, np.asfortranarray])
@pytest.mark.parametrize(
    "loss",
    [rm.Hinge(), *(pytest.param(loss, marks=slow) for loss in (rm.Logistic(), rm.Quantile(0.3)))],
    ids=repr,
)
def test_zero_rows_empty_shards_and_zero_weights(loss, store):
    data = Problem(loss, lam=0.03, p=3)
    data.X = data.X * (np.abs(data.X) > 0.6)
    data.X[10:20] = 0.0
    data.weights = np.where(np.arange(40) // 5 == 5, 0.0, 1.0 + np.arange(40) % 3)
    stored = replace(data)
    stored.X, stored.weights = store(data.X), data.weights
    obj = remote(stored, n_shards=8)
    shards = obj.risk.executor.shards
    shards.insert(1, Shard(rm.as_matrix(store(data.X[:0])), data.y[:0], np.zeros(0), ShardCache()))
    data.check(rm.minimize(obj, rm.DualCoordinateAscent(), tol=1e-6))


def test_rows_of_zeros_only():
    risk = rm.linear_risk(np.zeros((4, 2)), [1.0, -1, 1, -1], rm.Hinge(), executor=RemoteShards(), n_shards=2)
    assert rm.minimize(rm.Objective(risk, rm.L2(), 0.05), rm.DualCoordinateAscent(), tol=1e-9).value == 1.0


# ---------------------------------------------------------------- with other components
def test_paths_and_switching():
    obj = remote(Problem(rm.Hinge(), n=30, weighted=True), n_shards=4)
    lams = [1.0, 0.1, 0.01]
    runs = rm.path(obj.risk, rm.L2(), lams, solver=rm.DualCoordinateAscent(), tol=1e-5)
    for result, lam in zip(runs, lams, strict=True):
        assert result.status == "converged"
        exact = rm.minimize(replace(obj, lam=lam), rm.Bundle(), tol=1e-8)
        assert result.value == pytest.approx(exact.value, rel=2e-5)
    switching = rm.Switching(
        rm.DualCoordinateAscent(local_epochs=1), rm.Bundle(), tol=1e-7, passes_per_digit=0.1
    )
    result = rm.minimize(replace(obj, lam=1e-4), switching, tol=1e-7)
    assert result.status == "converged"
    assert {row["solver"] for row in result.trace} == {1.0, 2.0}
