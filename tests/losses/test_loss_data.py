"""The risk of a loss of each family: the same for every storage format, executor, library and repetition."""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import COST, TREE_LOSSES, Problem, risk_of

FAMILIES = [
    rm.Softmax(),
    rm.MulticlassHinge(COST),
    rm.MultivariateSquared(),
    *TREE_LOSSES[:2],
    rm.Nu(rm.Absolute(), 0.3),
    rm.RocArea(),
    rm.Ordinal(),
    rm.Prbep(),
    rm.FBeta(),
    rm.PrecisionAtK(3),
    rm.Ndcg(k=3),
    rm.Ndcg(weights="discount"),
    rm.ChainCrf(),
    rm.ChainMaxMargin(),
    rm.ChainMaxMargin(rescaled=True),
]
FITTED = [rm.Hinge(), rm.Logistic(), *FAMILIES[1:4], rm.RocArea(), rm.Prbep(), rm.FBeta()]
each_family = pytest.mark.parametrize("loss", FAMILIES, ids=repr)


class Data(Problem):
    """Rows with zeros, weights, and the queries or the sequences that the loss takes."""

    def __init__(self, loss):
        super().__init__(loss, n=24, weighted=True, lam=0.1)
        self.X = np.where(np.random.default_rng(0).random(self.X.shape) < 0.3, 0.0, self.X)

    def risk(self, X=None, **settings):
        return risk_of(self.loss, self.X if X is None else X, self.y, self.weights, **settings)


@each_family
def test_formats_and_shards_give_the_same_risk(loss):
    data = Data(loss)
    reference = data.risk()
    w, d = np.random.default_rng(1).standard_normal((2, reference.dim))
    (value, grad), (moved, slope) = reference(w), reference(w + 0.3 * d)
    narrow = data.X.astype(np.float32)
    for X in (data.X, np.asfortranarray(data.X), sp.csr_array(data.X), sp.csc_array(data.X), narrow):
        risk, tol = data.risk(X, n_shards=3), 1e-12 if X.dtype == np.float64 else 1e-5
        np.testing.assert_allclose([risk(w)[0], *risk(w)[1]], [value, *grad], rtol=tol, atol=tol)
        cursor = risk.cursor(w)
        cursor.set_direction(d)
        np.testing.assert_allclose(cursor.value_slope(0.3), (moved, slope @ d), rtol=10 * tol, atol=10 * tol)
        cursor.advance(0.3)
        np.testing.assert_allclose(cursor.evaluate().gradient, slope, rtol=10 * tol, atol=10 * tol)


@each_family
def test_executors_give_the_same_bits(loss):
    data = Data(loss)
    serial, threads = (data.risk(n_shards=3, executor=e) for e in (None, rm.Threads(n_workers=2)))
    w = np.random.default_rng(2).standard_normal(serial.dim)
    assert np.hstack(serial(w)).tobytes() == np.hstack(threads(w)).tobytes()


@pytest.mark.parametrize("loss", [loss for loss in FAMILIES if loss.task != "tagging"], ids=repr)
def test_tensors_give_the_same_risk(loss):
    torch, data = pytest.importorskip("torch"), Data(loss)
    w = np.random.default_rng(5).standard_normal(data.risk().dim)
    (value, grad), (other, slope) = data.risk()(w), data.risk(torch.as_tensor(data.X))(torch.as_tensor(w))
    assert other == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(slope.numpy(), grad, atol=1e-12)


@pytest.mark.parametrize("loss", FITTED, ids=repr)
def test_fits_on_tensors_have_the_optimum_of_numpy(loss):
    """And the weights are of the library of the start."""
    torch, data = pytest.importorskip("torch"), Data(loss)
    settings = {"fit_intercept": loss == rm.Hinge()}
    arrays, tensors = (data.risk(X, **settings) for X in (data.X, torch.as_tensor(data.X)))
    one = rm.minimize(rm.Objective(arrays, rm.L2(), 0.1), tol=1e-5)
    for w0 in (None, torch.zeros(tensors.dim, dtype=torch.float64)):
        two = rm.minimize(rm.Objective(tensors, rm.L2(), 0.1), None, w0, tol=1e-5)
        assert one.status == two.status == "converged"
        assert isinstance(two.w, np.ndarray if w0 is None else torch.Tensor)
        assert max(one.lower, two.lower) <= min(one.value, two.value) * (1 + 1e-9)
