"""Small examples of the parts of `riskmin.losses`."""

import numpy as np

from riskmin import FBeta, Mrr, PrecisionAtK
from riskmin.losses import Hinge, formula
from riskmin.losses.base import OffsetSmoothed, as_loss
from riskmin.losses.block_hessian import (
    scaled_face_hessian,
    simplex_face_hessian,
    simplex_hessian,
    star_hessian,
)
from riskmin.losses.chain import SequenceBatch
from riskmin.losses.hessian import Hessian, hessian_product, separable_hessian
from riskmin.losses.multiclass import one_hot
from riskmin.losses.nondecomposable.by_query import (
    QueryRows,
    QuerySeparable,
    group_means,
    lexsort_rows,
    query_ends,
)
from riskmin.losses.nondecomposable.entropy_smoothing import (
    entropic_smoothing,
    log_n_labelings,
    smoothed_by_entropy,
)
from riskmin.losses.nondecomposable.pairwise import split_into_cells
from riskmin.losses.thresholds import (
    best_balanced_threshold,
    best_f_beta_threshold,
    distinct_cuts,
    midpoint_threshold,
    threshold_for_count,
)


def test_formula():
    assert formula(Hinge()) == "max(0, margin - y z)"


def test_loss_hessian():
    assert Hinge().hessian(np.array([0.5, 2.0]), np.ones(2), np.full(2, 0.5), mu=1.0).diagonal.tolist() == [
        0.5,
        0.0,
    ]


def test_as_loss():
    class Mine:
        def value_grad(self, z, y, c):
            return c @ (z - y) ** 2, 2 * c * (z - y)

    loss = as_loss(Mine())
    assert type(loss).__name__ == "Mine"
    assert loss.separable
    assert not (loss.smooth)
    assert not (loss.has_hessian)


def test_offset_smoothed():
    z, y, c = np.array([0.5, 2.0]), np.ones(2), np.full(2, 0.5)
    value, dz, offset = OffsetSmoothed(Hinge(), mu=1.0).offset_tangent(z, y, c)
    assert float(value) == 0.0625
    assert dz.tolist() == [-0.25, 0.0]
    assert float(offset) == 0.0625


def test_block_hessian():
    H = simplex_hessian(np.array([[0.5, 0.5]]), np.ones(1))
    assert H.diagonal.tolist() == [[0.25, 0.25]]
    assert H.product(np.array([[1.0, 0.0]]), slice(1)).tolist() == [[0.25, -0.25]]


def test_block_hessian_total():
    H = simplex_hessian(np.array([[0.5, 0.5], [0.75, 0.25]]), np.array([1.0, 16.0]))
    assert H.total().tolist() == H._replace(block_sum=None).total().tolist()


def test_simplex_hessian():
    assert simplex_hessian(np.array([[0.25, 0.75]]), np.full(1, 16.0)).product(
        np.eye(2)[:1], slice(1)
    ).tolist() == [[3.0, -3.0]]


def test_star_hessian():
    H = star_hessian(np.array([[2.0, 0.0, 3.0]]), np.array([[0.0, 1.0, 0.0]]))
    assert H.diagonal.tolist() == [[2.0, 5.0, 3.0]]
    assert H.product(np.eye(3)[1:2], slice(1)).tolist() == [[-2.0, 5.0, -3.0]]


def test_simplex_face_hessian():
    H = simplex_face_hessian(np.array([[1.0, 1.0, 0.0, 1.0]]), np.ones(1))
    rows, U = H.factors()
    assert rows.tolist() == [0, 0]
    assert (U.T @ U).round(6)[1].tolist() == [-0.333333, 0.666667, 0.0, -0.333333]
    assert H.diagonal.round(6).tolist() == [[0.666667, 0.666667, 0.0, 0.666667]]


def test_scaled_face_hessian():
    factor, true_class = np.array([[0.0, 3.0]]), np.array([[1.0, 0.0]])
    H = scaled_face_hessian(np.ones((1, 2)), factor, true_class, np.ones(1))
    assert H.product(np.array([[0.0, 1.0]]), slice(1)).tolist() == [[-4.5, 4.5]]


def test_sequence_batch():
    y = np.array([[1.0, 5], [0, 5], [1, 7]])
    batch = SequenceBatch.from_arrays(None, np.zeros((7, 2)), y, np.array([0.25, 0.25, 0.75]))
    assert batch.y.tolist() == [1, 0, 1]
    assert batch.ends.tolist() == [2, 3]
    assert batch.c.tolist() == [0.25, 0.75]


def test_separable_hessian():
    assert hessian_product(separable_hessian(np.array([1.0, 3.0]), True), np.ones(2)).round(6).tolist() == [
        0.0,
        0.0,
    ]


def test_hessian_product():
    assert hessian_product(Hessian(np.ones(2), (np.full(2, 0.5**0.5),)), np.array([1.0, 0.0])).round(
        6
    ).tolist() == [0.5, -0.5]


def test_one_hot():
    assert one_hot(np.array([1.0, 0.0]), np.zeros((2, 3))).tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_distinct_cuts():
    assert distinct_cuts(np.array([1.0, 2.0, 2.0, 5.0])).tolist() == [0, 1, 3, 4]


def test_midpoint_threshold():
    assert midpoint_threshold(np.array([1.0, 2.0, 5.0]), 2) == 3.5
    assert midpoint_threshold(np.array([1.0, 2.0, 5.0]), 0) == 0.0


def test_threshold_for_count():
    assert threshold_for_count(np.array([3.0, 1.0, 2.0, 4.0]), 1) == 3.5


def test_best_f_beta_threshold():
    assert best_f_beta_threshold(np.array([3.0, 1.0, 2.0, 0.0]), np.array([1.0, 1.0, -1.0, -1.0]), 1.0) == 0.5


def test_best_balanced_threshold():
    z, y = np.array([3.0, 1.0, 2.0, 0.0]), np.array([1.0, 1.0, -1.0, -1.0])
    assert best_balanced_threshold(z, y, np.ones(4) / 4) == 0.5


def test_query_rows():
    y = np.array([[0.0, 7], [1, 5], [2, 7], [1, 5]])
    q = QueryRows.from_labels(None, y, np.ones(4))
    assert q.rows.tolist() == [2, 0]
    assert q.starts.tolist() == [0, 2]
    assert q.weight.tolist() == [1.0]


def test_query_separable():
    y, c = np.array([[1.0, 0], [0, 0], [1, 1], [0, 1]]), np.ones(4) / 4
    z = np.array([0.25, 0.0, 1.0, 0.0])
    whole, parts = Mrr(), QuerySeparable.from_labels(Mrr(), y, c)
    halves = slice(0, 2), slice(2, 4)
    assert float(whole.value_grad(z, y, c)[0]) == 0.125
    assert [float(parts.value_grad(z[s], y[s], c[s])[0]) for s in halves] == [0.125, 0.0]


def test_query_ends():
    assert query_ends(np.array([[0.0, 1], [2, 1], [1, 0]])).tolist() == [2, 3]
    assert query_ends(np.array([[0.0, 1], [2, 0], [1, 1]])) is None


def test_lexsort_rows():
    assert lexsort_rows(np.array([2.0, 1.0, 0.0]), np.array([0, 0, 1])).tolist() == [1, 0, 2]


def test_group_means():
    assert group_means(np.array([1.0, 2, 5]), np.array([1, 0, 2]), np.array([7, 5, 7])).tolist() == [
        3.0,
        2.0,
        3.0,
    ]


def test_entropic_smoothing():
    z, y = np.array([1.0, -1.0, 0.5]), np.array([1.0, 1.0, -1.0])
    value, _, offset = entropic_smoothing(FBeta(), z, y, temperature=0.1)
    exact, _ = FBeta().value_grad(z, y, np.ones(3) / 3)
    assert round(float(exact), 4) == 1.5
    assert round(value, 4) == 1.3105
    assert round(value + offset, 4) == 1.4682


def test_log_n_labelings():
    assert round(float(np.exp(log_n_labelings(np.array([0, 1]), np.array([0, 1]), 2, 3))), 6) == 7.0


def test_smoothed_by_entropy():
    z, y = np.array([1.0, -1.0, 0.5]), np.array([1.0, 1.0, -1.0])
    value, _, offset = smoothed_by_entropy(PrecisionAtK(k=1), z, y, mu=0.5)
    exact, _ = PrecisionAtK(k=1).value_grad(z, y, np.ones(3) / 3)
    assert bool(exact - 0.25 <= value <= exact)
    assert bool(0 <= offset <= 0.25)


def test_split_into_cells():
    h, (k, r) = split_into_cells(0.25, np.array([0.125, 7.25]))
    assert float(h) == 1.0
    assert k.tolist() == [0.0, 7.0]
    assert r.tolist() == [0.125, 0.25]
