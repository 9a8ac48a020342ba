"""Dual ascent on remote rows: against its definition, cvxpy, the run on all rows, and other executors."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem
from riskmin.core import Shard, ShardCache
from riskmin.executors.base import Executor, SerialExecutor

slow = pytest.mark.slow


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


def remote(data, n_shards=3, executor=None):
    return data.objective(executor=executor or RemoteShards(), n_shards=n_shards)


@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Logistic()], ids=repr)
@pytest.mark.parametrize(
    "executor",
    [ForgetfulShards(), rm.Threads(n_workers=2), pytest.param(rm.Processes(n_workers=2), marks=slow)],
)
def test_lost_caches_threads_and_processes_do_not_change_the_bits(loss, executor):
    data, runs = Problem(loss, lam=1e-3, n=200, p=10, weighted=True, sparse=True), []
    for place in (RemoteShards(), executor):
        obj = remote(data, 5, place)
        obj = replace(obj, risk=replace(obj.risk, rows=None))
        steps = list(islice(rm.DualCoordinateAscent().iterates(obj, np.zeros(10)), 12))
        runs.append([(it.w.tobytes(), it.value, it.cut.a.tobytes(), it.cut.b, it.info) for it in steps])
    assert runs[0] == runs[1]


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
