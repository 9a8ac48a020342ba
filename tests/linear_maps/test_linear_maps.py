"""The contract of linear maps: scores of any rows by their formula, and the adjoint."""

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import TREE
from riskmin.arrays.matrix import as_matrix
from riskmin.linear_maps.chain import ChainMap, PairChainMap
from riskmin.linear_maps.linear import (
    Centered,
    MultiOutput,
    SingleOutput,
    Standardized,
    TreePaths,
    WithIntercept,
)

P, K = 4, 3
MEAN, SCALE = np.array([2.0, -1.0, 0.0, 0.5]), np.array([10.0, 0.1, 1.0, 3.0])
PATHS = np.array([[0.0, 1, 1], [0, 1, 0], [0, 1, 0], [1, 0, 0]])
"""Which labels (columns) sum the score of which node (rows C, C15, C151, M)."""

FEATURES, LABELS = np.array([0, 0, 1, 3, 3]), np.array([0, 2, 1, 0, 1])
"""The pairs of feature and label that have a weight."""


def of_pairs(X, w):
    W = np.zeros((P, K))
    W[FEATURES, LABELS] = w[:5]
    return np.vstack([X @ W, w[5:].reshape(-1, K)])


MAPS = {
    "single": (SingleOutput(), lambda X, w: X @ w),
    "several": (MultiOutput(K), lambda X, w: X @ w.reshape(P, K)),
    "intercept": (WithIntercept(MultiOutput(K)), lambda X, w: X @ w[: P * K].reshape(P, K) + w[P * K :]),
    "centered": (Centered(MultiOutput(K), MEAN), lambda X, w: (X - MEAN) @ w.reshape(P, K)),
    "standardized": (Standardized(SingleOutput(), MEAN, SCALE), lambda X, w: (X - MEAN) * SCALE @ w),
    "tree": (TreePaths(TREE), lambda X, w: X @ w.reshape(P, 4) @ PATHS),
    "chain": (ChainMap(K), lambda X, w: np.vstack([X @ w[: P * K].reshape(P, K), w[P * K :].reshape(-1, K)])),
    "pairs": (PairChainMap(K, np.array([0, 2, 3, 3, 5]), LABELS), of_pairs),
}


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize(("linear_map", "formula"), MAPS.values(), ids=MAPS)
def test_scores_and_their_adjoint(linear_map, formula, form):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((9, P))
    matrix, w = as_matrix(form(X)), rng.standard_normal(linear_map.dim(P))
    for start, stop in ((0, 9), (2, 7), (4, 4)):
        z = linear_map.scores(matrix, w, start, stop)
        np.testing.assert_allclose(z, formula(X[start:stop], w), atol=1e-12)
        assert z.shape[0] == stop - start + linear_map.shared
        assert z.shape[1:] == (() if linear_map.columns == 1 else (linear_map.columns,))
        dz, out = rng.standard_normal(z.shape), np.ones(len(w))
        unchanged = dz.copy()
        linear_map.pullback(matrix, dz, start, stop, out)  # adds to out
        assert np.sum(z * dz) == pytest.approx((out - 1) @ w, rel=1e-11, abs=1e-12)
        assert np.array_equal(dz, unchanged)


def test_a_gradient_in_the_weights_of_labels_is_one_in_those_of_nodes():
    rng = np.random.default_rng(1)
    w, V = rng.standard_normal(P * 4), rng.standard_normal((P, K))
    assert np.sum(w.reshape(P, 4) @ PATHS * V) == pytest.approx(TreePaths(TREE).grad_from_outputs(V) @ w)
