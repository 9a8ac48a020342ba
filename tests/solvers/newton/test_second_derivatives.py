"""What losses give Newton's method: second derivatives, and the cuts of given multipliers."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import K, labels
from riskmin.core import Hessian

COSTS = ((0.0,), (1.0, 0.0), (2.0, 0.5, 0.0), (3.0, 0.0, 1.0, 0.0))
PAIRS = [rm.RocArea(), rm.Ordinal(), rm.Ordinal(costs=COSTS)]
ROWS = [rm.Prbep(), rm.Hinge(), rm.Absolute(), rm.Quantile(0.3), rm.EpsilonInsensitive(0.4)]
COST = ((0.0, 2.0, 1.0), (1.0, 0.0, 0.5), (3.0, 1.0, 0.0))
OUTPUTS = [
    *(rm.Softmax(), rm.MulticlassSquaredHinge(), rm.MultivariateSquared([[2.0, 1, 0], [1, 3, 1], [0, 1, 1]])),
    *(rm.MulticlassHinge(), rm.MulticlassHinge(COST), rm.MulticlassHinge(COST, rescaled=True)),
    *(rm.MulticlassHinge(COST, rescaled=0.5), rm.MulticlassHinge(COST, rescaled=True, scaled_margin=True)),
]


def dense(hessian: Hessian):
    """H = diag(h) - sum s s' - sum (W + W'), entry by entry."""
    H = np.diag(hessian.diagonal) - sum(np.outer(s, s) for s in hessian.low_rank)
    for above, p, below, q, first, last in hessian.pair_blocks:
        W = np.zeros_like(H)
        for i, row in enumerate(above):
            for j in range(first[i], last[i]):
                W[row, below[j]] = p[i] * q[j]
        H = H - W - W.T
    return H


def drawn(loss, rng, n=25):
    z = 2 * rng.standard_normal(n)
    y = rng.permutation(np.arange(n) % 4.0) if loss.task == "ordinal" else labels(loss, z, rng)
    c = np.ones(n) if isinstance(loss, rm.Prbep) else rng.random(n) + 0.1
    return z, y, c / c.sum()


@pytest.mark.parametrize("loss", [*PAIRS, *ROWS], ids=repr)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), mu=st.floats(0.05, 3), moved=st.booleans())
def test_hessians_are_derivatives_of_the_gradient(loss, seed, mu, moved):
    rng = np.random.default_rng(seed)
    z, y, c = drawn(loss, rng)
    elsewhere, d, step = rng.standard_normal(len(z)), rng.standard_normal(len(z)), 1e-7
    # losses of pairs have too many multipliers to store as a center
    center = loss.smoothed_value_grad(elsewhere, y, c, 0.5)[1] if moved and loss not in PAIRS else None
    H = dense(loss.hessian(z, y, c, mu, center))
    forward, backward = (loss.smoothed_value_grad(z + t * d, y, c, mu, center)[1] for t in (step, -step))
    # a piecewise quadratic function: exact unless the step crosses a breakpoint of the gradient
    error = np.abs((forward - backward) / (2 * step) - H @ d)
    assert np.sum(error > 1e-6 * (1 + abs(H).max())) <= 2
    np.testing.assert_allclose(H, H.T, atol=1e-15)
    assert np.linalg.eigvalsh(H).min() > -1e-12


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), mu=st.floats(0.05, 3))
def test_the_hessian_of_pairs_equals_brute_force(seed, mu):
    z, y, c = drawn(PAIRS[2], np.random.default_rng(seed), 20)
    H, total = np.zeros((20, 20)), 0.0
    for i, j in np.argwhere(y[:, None] > y):
        weight = COSTS[int(y[i])][int(y[j])] * c[i] * c[j]
        total += weight
        if 0 < 1 - (z[i] - z[j]) <= mu:
            e = np.zeros(20)
            e[i], e[j] = 1, -1
            H += weight / mu * np.outer(e, e)
    np.testing.assert_allclose(dense(PAIRS[2].hessian(z, y, c, mu)), H / total, atol=1e-12)


@pytest.mark.parametrize("loss", OUTPUTS, ids=repr)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_products_of_several_outputs_are_differences_of_gradients(loss, seed):
    rng = np.random.default_rng(seed)
    z, c, V = rng.standard_normal((5, K)), rng.random(5), rng.standard_normal((5, K))
    y, h = labels(loss, rng.standard_normal(5), rng), 1e-7
    mu = 0.0 if loss.smooth else 0.7

    def slopes(z):
        return loss.smoothed_value_grad(z, y, c, mu)[1] if mu else loss.value_grad(z, y, c)[1]

    hessian = loss.block_hessian(slopes(z), y, c, mu)
    product, left, right = hessian.product(V, slice(None)), slopes(z - h * V), slopes(z + h * V)
    same_face = np.array_equal(left > 0, right > 0)  # no multiplier leaves its face on the way
    assert not same_face or np.allclose(product, (right - left) / (2 * h), atol=1e-5)
    units = [hessian.product(np.tile(e, (5, 1)), slice(None))[:, j] for j, e in enumerate(np.eye(K))]
    assert np.allclose(hessian.diagonal, np.array(units).T)


@pytest.mark.parametrize("loss", OUTPUTS[:2] + OUTPUTS[3:4], ids=repr)
def test_cuts_of_multipliers_are_below_the_loss(loss):
    rng = np.random.default_rng(0)
    y, c = rng.integers(0, 4, 30).astype(float), rng.random(30)
    dz, offset, _ = loss.multiplier_cut(rng.standard_normal((30, 4)) * c[:, None], y, c)
    assert np.abs(dz.sum(axis=1)).max() < 1e-12
    for size in (0.0, 0.1, 1.0, 10.0):
        z = size * rng.standard_normal((30, 4))
        assert float(offset) + float((dz * z).sum()) <= float(loss.value_grad(z, y, c)[0]) + 1e-12


def test_products_of_rows_read_once_have_the_bits_of_two_products():
    rng = np.random.default_rng(0)
    matrix = rm.as_matrix(sp.random_array((300, 70), density=0.15, rng=rng, format="csr"))
    d, h, twice = rng.standard_normal(70), rng.random(300) * (rng.random(300) > 0.3), np.zeros(70)
    matrix.pullback(h * matrix.scores(d, 0, 300), 0, 300, twice)
    assert np.array_equal(matrix.hessian_product(d, h), twice)
