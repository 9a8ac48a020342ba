"""Shards of a Dask cluster on the devices of its workers: tensors of torch on the CPU stand in for GPUs."""

import pickle

import numpy as np
import pytest

from riskmin import (
    L2,
    Bundle,
    DaskExecutor,
    Lbfgs,
    Logistic,
    Objective,
    RocArea,
    Serial,
    Softmax,
    linear_risk,
    minimize,
)
from riskmin.arrays.devices.gpu import why_no_gpu
from riskmin.problem import shard_ops


def library_of(shard):
    return type(shard.X.foreign).__module__, type(shard.y).__module__


@pytest.mark.slow
def test_each_worker_holds_its_shards_on_its_device():
    torch = pytest.importorskip("torch")
    distributed = pytest.importorskip("distributed")
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((120, 5)), rng.standard_normal(5)
    z = X @ w + rng.standard_normal(120)
    signs, classes = np.sign(z), np.digitize(z, [-1.0, 1.0]).astype(float)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as local,
        distributed.Client(local) as client,
    ):
        there = DaskExecutor(client, device=torch.asarray)
        for loss, y, solver in (
            (Logistic(), signs, Lbfgs()),
            (RocArea(), signs, Bundle()),
            (Softmax(), classes, Lbfgs()),
        ):
            risks = [linear_risk(X, y, loss, executor=e, n_shards=4) for e in (there, Serial())]
            assert set(risks[0].executor.map(library_of)) == {("torch", "torch")}
            found, expected = (minimize(Objective(risk, L2(), 1e-2), solver, tol=1e-2) for risk in risks)
            scores = risks[0].executor.map(shard_ops.scores, risks[0].linear_map, np.zeros(risks[0].dim))
            assert {type(z) for z in scores} == {np.ndarray}
            assert found.status == "converged"
            assert found.lower <= expected.value
            assert expected.lower <= found.value
        if why_no_gpu():
            with pytest.raises(Exception, match=r"device='cuda': CuPy .* or use the CPU"):
                linear_risk(X, signs, Logistic(), executor=DaskExecutor(client, device="cuda"))


def test_the_device_is_a_setting():
    executor = DaskExecutor("tcp://scheduler:8786", device="cuda:1")
    assert repr(executor) == "DaskExecutor('tcp://scheduler:8786', device='cuda:1')"
    assert pickle.loads(pickle.dumps(executor)).device == "cuda:1"
    with pytest.raises(ValueError, match="device='tpu' is no device: give 'cuda'"):
        DaskExecutor("tcp://scheduler:8786", device="tpu")
