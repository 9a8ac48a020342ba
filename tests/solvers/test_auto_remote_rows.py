"""Remote rows: the solver that `Auto` chooses supports them."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from everywhere import RemoteExecutor
from riskmin import (
    L1,
    L2,
    Elastic,
    Entropy,
    Hinge,
    InMemoryPartition,
    LinearClassifier,
    Logistic,
    Objective,
    PartitionedMatrix,
    QNorm,
    Squared,
    linear_risk,
    minimize,
)
from riskmin.executors.dask.client import dask_client


@pytest.mark.parametrize("loss", [Hinge(), Logistic(), Squared()], ids=repr)
@pytest.mark.parametrize("reg", [L2(), L1(), Elastic(0.5), Entropy(), QNorm(1.5)], ids=repr)
def test_the_default_solver_supports_any_regularizer(loss, reg):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 3)), np.where(np.arange(20) % 3, 1.0, -1.0)
    local, remote = (
        minimize(Objective(linear_risk(X, y, loss, executor=executor, n_shards=2), reg, 0.1))
        for executor in (None, RemoteExecutor())
    )
    assert local.status == remote.status == "converged"
    assert max(local.lower, remote.lower) <= min(local.value, remote.value) * (1 + 1e-12)


def test_partitions_without_rows_are_left_out():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 3)), np.where(np.arange(20) % 3, 1.0, -1.0)
    parts = [
        InMemoryPartition(X[i:j], f"rows from {i}") for i, j in ((0, 0), (0, 7), (7, 7), (7, 20), (20, 20))
    ]
    partitioned = PartitionedMatrix(parts, executor=RemoteExecutor())
    assert [part.name for part in partitioned.parts] == ["rows from 0", "rows from 7"]
    model = LinearClassifier().fit(partitioned, y)
    np.testing.assert_array_equal(model.predict(partitioned), model.predict(X))
    with pytest.raises(ValueError, match="0 rows"):
        linear_risk(PartitionedMatrix([parts[0], parts[2]]), y[:0], Hinge())


@pytest.mark.slow
def test_the_client_does_not_log_that_the_scheduler_died(monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: SimpleNamespace(close=lambda timeout: None))
    log = logging.getLogger("distributed.client")
    before = log.level
    with dask_client("tcp://127.0.0.1:1"):
        assert not log.isEnabledFor(logging.ERROR)  # it would log a traceback before our error message
    assert log.level == before
