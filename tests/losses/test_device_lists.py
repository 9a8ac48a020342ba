"""Losses of whole lists in the library of the scores: without a copy to NumPy, and without Numba."""

import sys

import numpy as np
import pytest

from riskmin import FBeta, Ndcg, Ordinal, PositionWeights, Prbep, PrecisionAtK, RecallAtK, RocArea
from riskmin.losses.nondecomposable import grade_programs

torch = pytest.importorskip("torch")

LOSSES = [
    RocArea(),
    Ordinal(),
    Ordinal(costs=[[0], [1, 0], [2, 1, 0], [3, 2, 1, 0]]),
    Prbep(),
    FBeta(),
    FBeta(2.0),
    PrecisionAtK(50),
    RecallAtK(50),
    Ndcg(),
    Ndcg(k=3),
    Ndcg(weights="discount"),
    Ndcg(k=3, weights=PositionWeights(power=1, k=4)),
]
N = 5000


def labels_of(loss, rng, n):
    if loss.task == "classification":
        return np.where(rng.random(n) < 0.2, 1.0, -1.0)
    if loss.task == "ordinal":
        return rng.integers(0, 4, n).astype(float)
    # queries of 1 to about 60 rows, in any order; a few have fewer rows than k, or one grade only
    return np.column_stack([rng.integers(0, 4, n), (n // 20 * rng.random(n) ** 2).astype(int)]).astype(float)


@pytest.fixture
def on_a_device(monkeypatch):
    """Tensors refuse to become arrays of NumPy if they are as long as the scores, and Numba is not there."""

    def checked(name):
        given = getattr(torch.Tensor, name)

        def refuse(tensor, *args, **kwargs):
            assert tensor.numel() < N, f"{name} copies {tuple(tensor.shape)} numbers to the host"
            return given(tensor, *args, **kwargs)

        return refuse

    def start():
        for name in ("__array__", "numpy", "tolist", "cpu"):
            monkeypatch.setattr(torch.Tensor, name, checked(name))
        for name in [name for name in sys.modules if name.startswith(("riskmin._numba", "numba"))]:
            monkeypatch.setitem(sys.modules, name, None)

    yield start
    monkeypatch.undo()


WEIGHTED = [(loss, True) for loss in LOSSES if loss.task != "classification" or loss == RocArea()]


@pytest.mark.parametrize(("loss", "weighted"), [*((loss, False) for loss in LOSSES), *WEIGHTED], ids=repr)
def test_scores_stay_on_the_device(loss, weighted, on_a_device):
    rng = np.random.default_rng(3)
    y, z = labels_of(loss, rng, N), np.round(rng.standard_normal(N), 2)
    c = rng.dirichlet(np.ones(N)) if weighted else np.full(N, 1 / N)
    value, dz = loss.value_grad(z, y, c)
    tensors = [torch.tensor(a) for a in (z, y, c)]
    on_a_device()
    found, slopes = loss.value_grad(*tensors)
    if loss in (RocArea(), Ordinal(), Prbep()):
        loss.smoothed_value_grad(*tensors, 0.3)
    assert float(found) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(np.array([float(a) for a in slopes]), dz, rtol=1e-9, atol=1e-16)


def test_pairs_of_the_smaller_class_and_of_either_side():
    for share in (0.02, 0.5, 0.97):
        rng = np.random.default_rng(int(100 * share))
        z, y = 1e6 + np.round(3 * rng.standard_normal(300)), np.where(rng.random(300) < share, 1.0, -1.0)
        c = np.full(300, 1 / 300)
        value, dz = RocArea().value_grad(*map(torch.tensor, (z, y, c)))
        above, below = z[y > 0], z[y < 0]
        pairs = np.maximum(0, 1 - (above[:, None] - below))
        assert float(value) == pytest.approx(pairs.mean(), rel=1e-12)
        active = pairs > 0
        np.testing.assert_allclose(dz.numpy()[y > 0], -active.sum(1) / active.size, rtol=1e-12)
        np.testing.assert_allclose(dz.numpy()[y < 0], active.sum(0) / active.size, rtol=1e-12)
    with pytest.raises(ValueError, match="compares two classes"):
        RocArea().value_grad(torch.zeros(3), torch.ones(3), torch.ones(3) / 3)


def test_rankings_of_parts_of_the_queries_at_a_time(monkeypatch):
    rng, loss = np.random.default_rng(5), Ndcg(k=4)
    y, z = labels_of(loss, rng, 400), torch.tensor(rng.standard_normal(400))
    tensors = z, torch.tensor(y), torch.full((400,), 1 / 400, dtype=torch.float64)
    value, dz = loss.value_grad(*tensors)
    monkeypatch.setattr(grade_programs, "MAX_ENTRIES", 1000)
    other, du = loss.value_grad(*tensors)
    assert other == value
    assert torch.equal(du, dz)
    # too many states: NumPy finds the same rankings
    monkeypatch.setattr(grade_programs, "MAX_STATES", 1)
    other, du = loss.value_grad(*tensors)
    assert other == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(du.numpy(), dz.numpy(), atol=1e-14)
