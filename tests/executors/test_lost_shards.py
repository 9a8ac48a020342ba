"""Lost shard caches: when a worker dies, its rows are read again by another and the run continues."""

import pickle

import numpy as np
import pytest

import riskmin as rm
from helpers import Problem
from riskmin.core import ShardCache, ShardStateLost
from riskmin.executors.base import SerialExecutor

N, P = 30, 4


class Forgetful(SerialExecutor):
    """Before a random share of calls, replaces one shard by a shard with the same rows and an empty cache."""

    def __init__(self, shards=(), share=0.3):
        super().__init__(shards)
        self.share, self.rng, self.losses = share, np.random.default_rng(1), 0

    def __call__(self, shards):
        return Forgetful(shards, self.share)

    with_shards = __call__

    def map(self, f, *args, each=()):
        if self.rng.random() < self.share:
            k = self.rng.integers(len(self.shards))
            self.losses += 1
            self.shards[k] = self.shards[k]._replace(cache=ShardCache())
        return super().map(f, *args, each=each)


CASES = [
    (rm.Hinge(), rm.L2(), rm.Bundle(), True),
    (rm.Logistic(), rm.L2(), rm.Lbfgs(), True),
    (rm.Logistic(), rm.L1(), rm.OwlQn(), False),
    (rm.Softmax(), rm.L2(), rm.Lbfgs(), True),
    (rm.RocArea(), rm.L2(), rm.Smoothing(), False),
    (rm.Quantile(0.3), rm.L2(), rm.Smoothing(), True),  # its line search evaluates a second, smoothed loss
    (rm.MulticlassHinge(), rm.L2(), rm.Smoothing(), True),
    (rm.ChainCrf(), rm.L2(), rm.Lbfgs(), False),
]


def check_same_optimum(undisturbed, disturbed, tol):
    assert undisturbed.status == disturbed.status == "converged"
    assert abs(undisturbed.value - disturbed.value) <= tol * undisturbed.value
    assert max(undisturbed.lower, disturbed.lower) <= min(undisturbed.value, disturbed.value) * (1 + 1e-12)


@pytest.mark.parametrize(("loss", "reg", "solver", "intercept"), CASES, ids=repr)
def test_runs_survive_lost_caches(loss, reg, solver, intercept):
    rows = Problem(loss, reg, 0.1, n=N, p=P, intercept=intercept)
    objectives = [rows.objective(executor=executor, n_shards=4) for executor in (rm.Serial(), Forgetful())]
    check_same_optimum(*(rm.minimize(objective, solver, tol=1e-4) for objective in objectives), 1e-4)
    risk = objectives[1].risk
    assert getattr(risk, "risk", risk).executor.losses > 0


class Kinds:
    """A structured model of three classes, for both structured losses."""

    dim = 3 * P

    def joint_feature(self, x, y):
        return np.kron(np.eye(3)[y], x)

    def cost(self, y, other):
        return float(y != other)

    def loss_augmented_argmax(self, x, y, w):
        return int(np.argmax(w.reshape(3, P) @ x + (np.arange(3) != y)))

    def log_partition(self, x, w):
        p = np.exp(w.reshape(3, P) @ x)
        return float(np.log(p.sum())), np.outer(p / p.sum(), x).ravel()


@pytest.mark.parametrize(
    ("loss", "solver"), [("max_margin", rm.WorkingSet()), ("log", rm.Lbfgs())], ids=["max", "sum"]
)
def test_lost_structured_model_is_sent_again(loss, solver):
    rng = np.random.default_rng(0)
    xs = list(rng.standard_normal((N, P)))
    ys = [int(np.argmax(x[:3] + rng.standard_normal(3))) for x in xs]
    model, places = rm.Structured(Kinds(), loss), (rm.Serial(), Forgetful())
    risks = [model.risk(xs, ys, executor=executor, n_shards=4) for executor in places]
    results = [rm.minimize(rm.Objective(risk, rm.L2(), 0.1), solver, tol=1e-3) for risk in risks]
    check_same_optimum(*results, 1e-3)


class Amnesiac(SerialExecutor):
    """Empties the caches of all shards before every call."""

    def __call__(self, shards):
        return Amnesiac(shards)

    def map(self, f, *args, each=()):
        self.shards = [shard._replace(cache=ShardCache()) for shard in self.shards]
        return super().map(f, *args, each=each)


def test_cache_lost_repeatedly_raises():
    X, y = np.ones((4, 1)), np.array([1.0, -1.0, 1.0, 1.0])
    risk = rm.linear_risk(X, y, rm.Hinge(), executor=Amnesiac(), n_shards=2)
    with pytest.raises(ShardStateLost, match="scores of a point were lost 20 times in a row"):
        risk.cursor(np.zeros(1)).value_slope(0.0)
    risk = rm.Structured(Kinds(), "log").risk([np.ones(P)], [0], executor=Amnesiac(), check=False)
    with pytest.raises(ShardStateLost, match="model of a shard was lost 20 times in a row"):
        risk(np.zeros(Kinds.dim))


def test_copies_of_shards_have_empty_caches():
    shard = rm.linear_risk(np.eye(2), [1.0, -1.0], rm.Hinge()).executor.shards[0]
    shard.cache["k"] = 1
    assert pickle.loads(pickle.dumps(shard)).cache == {}
    assert isinstance(pickle.loads(pickle.dumps(shard)).cache, ShardCache)


# ---------------------------------------------------------------- parts
def test_partitioned_matrix():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, 3)), np.where(np.arange(9) % 2, 1.0, -1.0)
    parts = rm.PartitionedMatrix([rm.InMemoryPartition(X[:4], "one"), rm.InMemoryPartition(X[4:], "two")])
    assert (parts.shape, len(parts), parts.ends) == ((9, 3), 9, [0, 4, 9])
    w = rng.standard_normal(3)
    expected = rm.linear_risk(X, y, rm.Logistic())(w)
    risk = rm.linear_risk(parts, y, rm.Logistic(), executor=Forgetful(share=0.0))
    assert risk.rows is None or len(risk.rows.y) == 9
    np.testing.assert_allclose(risk(w)[1], expected[1], rtol=1e-12)
    with pytest.raises(ValueError, match="cannot be cut again"):
        parts.cut([0, 3, 9])
    with pytest.raises(ValueError, match="two has 2 columns, but one has 3"):
        rm.PartitionedMatrix([rm.InMemoryPartition(X, "one"), rm.InMemoryPartition(X[:, :2], "two")])
    with pytest.raises(ValueError, match="no parts"):
        rm.PartitionedMatrix([])
