"""Shards that forget: rows are read anew elsewhere when a worker dies, and a run goes on."""

import pickle

import numpy as np
import pytest

from riskmin import (
    L1,
    L2,
    Bundle,
    ChainCrf,
    Hinge,
    Lbfgs,
    Local,
    Logistic,
    Objective,
    OwlQn,
    RocArea,
    Serial,
    Smoothing,
    Softmax,
    Spread,
    linear_risk,
    minimize,
)
from riskmin.types import Lost, Memo

N, P = 60, 4


class Forgetful(Serial):
    """Before every fifth call or so, a shard is another one with the same rows; or in the middle of it."""

    def __init__(self, shards=(), share=0.3):
        super().__init__(shards)
        self.share, self.rng, self.losses = share, np.random.default_rng(1), 0

    def __call__(self, shards):
        return Forgetful(shards, self.share)

    def map(self, f, *args, each=()):
        if self.rng.random() < self.share:
            k = self.rng.integers(len(self.shards))
            self.losses += 1
            self.shards[k] = self.shards[k]._replace(memo=Memo())
        return super().map(f, *args, each=each)


CASES = [
    (Hinge(), L2(), Bundle(), False),
    (Hinge(), L2(), Bundle(), True),
    (Logistic(), L2(), Lbfgs(), True),
    (Logistic(), L1(), OwlQn(), False),
    (Softmax(), L2(), Lbfgs(), True),
    (RocArea(), L2(), Smoothing(), False),
    (ChainCrf(), L2(), Lbfgs(), False),
]


@pytest.mark.parametrize(("loss", "reg", "solver", "intercept"), CASES, ids=repr)
def test_a_run_survives_what_shards_forget(loss, reg, solver, intercept):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, P))
    score = X[:, 0] + rng.standard_normal(N)
    many = isinstance(loss, (Softmax, ChainCrf))
    y = np.digitize(score, [-0.5, 0.5]).astype(float) if many else np.where(score > 0, 1.0, -1.0)
    more = {"lengths": [3] * (N // 3)} if isinstance(loss, ChainCrf) else {}
    results = []
    for executor in (Serial(), Forgetful()):
        risk = linear_risk(X, y, loss, fit_intercept=intercept, executor=executor, n_shards=4, **more)
        results.append(minimize(Objective(risk, reg, 0.01), solver, tol=1e-5))
    held = getattr(risk, "risk", risk).executor
    assert held.losses > 0
    calm, stormy = results
    assert calm.status == stormy.status == "converged"
    assert abs(calm.value - stormy.value) <= 1e-5 * calm.value
    assert stormy.lower <= calm.value * (1 + 1e-12)
    assert calm.lower <= stormy.value * (1 + 1e-12)


def test_what_is_lost_every_time_is_an_error():
    X, y = np.ones((4, 1)), np.array([1.0, -1.0, 1.0, 1.0])
    risk = linear_risk(X, y, Hinge(), executor=Serial(), n_shards=2)
    at = risk.cursor(np.zeros(1))

    class Amnesiac(Serial):
        def map(self, f, *args, each=()):
            self.shards = [shard._replace(memo=Memo()) for shard in self.shards]
            return super().map(f, *args, each=each)

    object.__setattr__(risk, "executor", Amnesiac(risk.executor.shards))
    with pytest.raises(Lost, match="in a row"):
        at.along(0.0)


def test_copies_of_shards_remember_nothing():
    shard = linear_risk(np.eye(2), [1.0, -1.0], Hinge()).executor.shards[0]
    shard.memo["k"] = 1
    assert pickle.loads(pickle.dumps(shard)).memo == {}
    assert isinstance(pickle.loads(pickle.dumps(shard)).memo, Memo)


# ---------------------------------------------------------------- parts
def test_parts_are_rows():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, 3)), np.where(np.arange(9) % 2, 1.0, -1.0)
    parts = Spread([Local(X[:4], "one"), Local(X[4:], "two")])
    assert (parts.shape, len(parts), parts.ends) == ((9, 3), 9, [0, 4, 9])
    w = rng.standard_normal(3)
    here = linear_risk(X, y, Logistic())(w)
    there = linear_risk(parts, y, Logistic(), executor=Forgetful(share=0.0))
    assert there.rows is None or len(there.rows.y) == 9
    np.testing.assert_allclose(there(w)[1], here[1], rtol=1e-12)
    with pytest.raises(ValueError, match="cannot be cut again"):
        parts.cut([0, 3, 9])
    with pytest.raises(ValueError, match="two has 2 columns, but one has 3"):
        Spread([Local(X, "one"), Local(X[:, :2], "two")])
    with pytest.raises(ValueError, match="no parts"):
        Spread([])
