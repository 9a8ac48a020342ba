"""Ranking losses: the definitions by brute force over all rankings, queries, smoothed forms."""

import contextlib
from itertools import product

import numpy as np
import pytest

import riskmin as rm
from helpers import RANKED
from reference import pairs, position_weights, rankings

RANKINGS = [
    rm.Ndcg(),
    rm.Ndcg(k=1),
    rm.Ndcg(k=3),
    rm.Ndcg(k=5),
    rm.Mrr(),
    rm.ExpectedRankUtility(),
    rm.ExpectedRankUtility(1.5),
    *RANKED,
]
SMOOTHED = [rm.Mrr(), rm.Ndcg(k=3, weights="discount"), rm.ExpectedRankUtility(1.5, weights="discount")]
each_ranking = pytest.mark.parametrize("loss", RANKINGS, ids=repr)
each_loss = pytest.mark.parametrize("loss", [*RANKINGS, rm.PairwiseHinge()], ids=repr)


# ---------------------------------------------------------------- definitions
def queries(loss, y, c):
    """The rows and the weight of each query that counts."""
    grades = y[:, 0] > 0 if isinstance(loss, rm.Mrr) else y[:, 0]
    parts = [np.flatnonzero(y[:, 1] == k) for k in np.unique(y[:, 1])]
    parts = [rows for rows in parts if len(set(grades[rows])) > 1]
    weights = np.array([c[rows].mean() for rows in parts])
    return list(zip(parts, weights / weights.sum(), strict=True))


def by_brute_force(loss, z, y, c):
    """The mean over queries of the maximum over all rankings."""
    total = 0.0
    for rows, weight in queries(loss, y, c):
        deltas, slopes = rankings(loss, y[rows, 0])
        total += weight * np.max(deltas + slopes @ z[rows])
    return total


def case(seed, max_rows=6, n_queries=3, grades=4, tied=False, scale=1.0):
    """Scores, labels of interleaved queries, at least one of which has two grades, and weights."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, max_rows + 1, n_queries)
    sizes[0] = max(sizes[0], 2)
    ids = np.repeat(np.arange(n_queries), sizes)
    y = np.column_stack([rng.integers(0, grades, len(ids)), ids]).astype(float)
    y[:2, 0] = 0, 1
    y = rng.permutation(y)
    z = rng.integers(-1, 2, len(y)) if tied else rng.standard_normal(len(y))
    return scale * z, y, rng.dirichlet(np.ones(len(y)))


# ---------------------------------------------------------------- values
@each_ranking
def test_lists_equal_brute_force(loss):
    for seed in range(6):
        z, y, c = case(seed, max_rows=6, tied=seed % 2 == 0, scale=[0.1, 1.0, 5.0][seed % 3])
        value, dz = loss.value_grad(z, y, c)
        assert value == pytest.approx(by_brute_force(loss, z, y, c), abs=1e-12)
        for size in (1e-3, 1.0, 30.0):
            u = z + size * np.random.default_rng(seed).standard_normal(len(z))
            assert by_brute_force(loss, u, y, c) >= value + dz @ (u - z) - 1e-12


def own_grades(rng, n):
    """Queries of ten rows, each with a grade of its own: dynamic programs over grades are too large."""
    return np.column_stack([rng.permutation(n) / 7.0, np.arange(n) // 10]).astype(float)


OF_OWN_GRADES = [rm.Ndcg(), rm.Ndcg(weights=0.5), rm.ExpectedRankUtility()]


@pytest.mark.parametrize("loss", OF_OWN_GRADES, ids=repr)
def test_the_contract_holds_where_every_row_has_a_grade_of_its_own(loss):
    rm.check_loss(loss, labels=own_grades)


@pytest.mark.slow
@pytest.mark.parametrize("loss", OF_OWN_GRADES[:2], ids=repr)
def test_nine_rows_with_grades_of_their_own_equal_brute_force(loss):
    rng = np.random.default_rng(0)
    y, c = np.column_stack([rng.permutation(9) / 4.0, np.zeros(9)]), np.full(9, 1 / 9)
    deltas, slopes = rankings(loss, y[:, 0])
    for scale in (0.2, 2.0):
        z = scale * rng.standard_normal(9)
        value, dz = loss.value_grad(z, y, c)
        assert value == pytest.approx(np.max(deltas + slopes @ z), abs=1e-12)
        assert np.min(abs(slopes - dz).max(axis=1)) <= 1e-12


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0, 7.0])
def test_pairwise_hinge_equals_its_definition(mu):
    for seed in range(6):
        rows, grades = (9, 6) if seed else (200, 10**6)
        z, y, c = case(seed, max_rows=rows, grades=grades, tied=seed % 2 == 1)
        value, dz, offset = rm.PairwiseHinge().smoothed_value_grad(z, y, c, mu)
        for rows, weight in queries(rm.PairwiseHinge(), y, c):
            one, slopes, one_offset = pairs(rm.PairwiseHinge(), z[rows], y[rows, 0], c[rows], mu)
            value, offset = value - weight * one, offset - weight * one_offset
            dz[rows] -= weight * slopes
        np.testing.assert_allclose([value, offset, *dz], 0, atol=1e-13)


@each_ranking
def test_losses_bound_their_metric_and_vanish_where_grades_are_far_apart(loss):
    z, y, c = case(7, max_rows=6, n_queries=5)
    metric_loss = 0.0
    for rows, weight in queries(loss, y, c):
        deltas, _ = rankings(loss, y[rows[np.argsort(-z[rows])], 0])
        metric_loss += weight * deltas[0]  # the order as it is
    assert loss.value_grad(z, y, c)[0] >= metric_loss - 1e-12
    cut_off = loss.weights and (isinstance(loss, rm.Ndcg) or getattr(loss.weights, "k", None))
    if not cut_off or loss == rm.Ndcg(weights=0.5):  # weights that are zero beyond k keep no row in its place
        apart = 1e6 * (y[:, 0] > 0 if isinstance(loss, rm.Mrr) else y[:, 0])
        assert loss.value_grad(apart, y, c)[0] == pytest.approx(0, abs=1e-9)


# ---------------------------------------------------------------- queries
def test_gains_depend_on_their_own_query_only_and_may_have_any_size():
    """A grade of 3000 in another query does not change a gain of 2^1 - 1."""
    one = rm.Ndcg().value_grad(np.zeros(2), np.array([[1.0, 0], [0, 0]]), np.full(2, 0.5))[0]
    y = np.array([[1.0, 0], [0, 0], [3000, 1], [0, 1], [1e-20, 2], [0, 2]])
    value, _ = rm.Ndcg().value_grad(np.zeros(6), y, np.full(6, 1 / 6))
    assert value == pytest.approx(one, rel=1e-12)
    y = np.array([[3000.0, 0], [2999, 0], [0, 0]])
    value, _ = rm.Ndcg().value_grad(np.zeros(3), y, np.ones(3) / 3)
    D = 1 / np.log2([2, 3, 4])
    assert value == pytest.approx(1 - (D[2] + 0.5 * D[1]) / (D[0] + 0.5 * D[1]), rel=1e-12)


@each_loss
def test_scores_that_are_not_finite_give_a_value_that_is_not(loss):
    """Compiled loops stay within their arrays, whatever the order of the scores is."""
    for bad in (np.nan, np.inf, -np.inf):
        z, y, c = case(2, max_rows=8)
        z[::2] = bad
        with np.errstate(all="ignore"), contextlib.suppress(ValueError):
            assert not loss.value_grad(z, y, c)[0] < np.inf


@pytest.mark.parametrize("loss", [rm.Ndcg(3), *RANKED[::4], rm.Mrr(), rm.ExpectedRankUtility()], ids=repr)
@pytest.mark.parametrize("together", [True, False])
def test_any_number_of_shards_gives_the_risk_of_all_rows(loss, together):
    """Queries in one piece, and in several; one has a single grade, and may be alone in a shard."""
    rng, sizes = np.random.default_rng(5), [1, 7, 3, 12, 2, 9, 4]
    n, qid = sum(sizes), np.repeat(["b", "a", "g", "c", "e", "d", "f"], sizes)
    X, y, weight = rng.standard_normal((n, 3)), rng.integers(0, 3, n), rng.random(n)
    y[11:23] = 1
    order = np.arange(n) if together else rng.permutation(n)
    X, y, weight, qid = X[order], y[order], weight[order], qid[order]
    labels = np.column_stack([y, np.unique(qid, return_inverse=True)[1]]).astype(float)
    w, c = rng.standard_normal(3), weight / weight.sum()
    (value, dz), (moved, du) = (loss.value_grad(X @ v, labels, c) for v in (w, w + 0.3))
    for n_shards in (1, 2, 5, n):
        risk = rm.linear_risk(X, y, loss, qid=qid, sample_weight=weight, n_shards=n_shards)
        result = risk(w)
        np.testing.assert_allclose(result[0], value, rtol=1e-12)
        np.testing.assert_allclose(result[1], X.T @ dz, rtol=1e-9, atol=1e-12)
        cursor = risk.cursor(w)
        cursor.set_direction(np.ones(3))
        np.testing.assert_allclose(cursor.value_slope(0.3), (moved, du @ X.sum(1)), rtol=1e-9, atol=1e-12)


def test_rankings_of_tensors_with_many_grades_in_many_places():
    torch, rng = pytest.importorskip("torch"), np.random.default_rng(5)
    y, z = np.column_stack([rng.integers(0, 4, 80), np.zeros(80)]).astype(float), rng.standard_normal(80)
    c = np.full(80, 1 / 80)
    value, dz = rm.Ndcg(k=60).value_grad(z, y, c)
    other, du = rm.Ndcg(k=60).value_grad(*map(torch.tensor, (z, y, c)))
    assert float(other) == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(du.numpy(), dz, atol=1e-14)


# ---------------------------------------------------------------- weights of positions
def test_weights_that_decrease_linearly_are_those_of_pairs_but_for_differences_within_grades():
    """c_i = -i / P adds half the mean absolute difference of the rows of a grade to the default."""

    class Linear(rm.PositionWeights):
        def values(self, n):
            return -np.arange(n) / 6  # two rows of grade 1, three of grade 0: P = 6

    y = np.array([[1.0, 0], [1, 0], [0, 0], [0, 0], [0, 0]])
    z, c = np.array([0.3, -0.1, 0.2, 0.5, -1.0]), np.full(5, 0.2)
    within = (abs(z[0] - z[1]) + abs(z[2] - z[3]) + abs(z[2] - z[4]) + abs(z[3] - z[4])) / 2 / 6
    expected = rm.Ndcg().value_grad(z, y, c)[0] + within
    assert rm.Ndcg(weights=Linear()).value_grad(z, y, c)[0] == pytest.approx(expected, abs=1e-12)


# ---------------------------------------------------------------- smoothed rankings
def test_rankings_with_the_weights_of_their_metric_can_be_smoothed():
    assert all(loss.can_be_smoothed for loss in [*SMOOTHED, rm.PairwiseHinge()])
    assert not any(loss.can_be_smoothed for loss in RANKINGS if loss not in SMOOTHED)


@pytest.mark.parametrize("mu", [0.05, 1.0])
@pytest.mark.parametrize("loss", SMOOTHED[1:], ids=repr)
def test_projections_are_the_maximum_over_the_convex_hull_of_rankings(loss, mu):
    """By a quadratic program over distributions of rankings: its multipliers are their mean weights."""
    import cvxpy as cp

    z, y, c = case(1, max_rows=4, n_queries=2)
    goal = 0.0
    for rows, weight in queries(loss, y, c):
        deltas, slopes = rankings(loss, y[rows, 0])
        a, levels = position_weights(loss, len(rows)), y[rows, 0]
        # slopes are weights less those of the ideal ranking, whose mean is over the rows of a grade
        ideal = a[np.argsort(np.argsort(-levels, kind="stable"), kind="stable")]
        ideal = np.array([ideal[levels == level].mean() for level in levels])
        share = cp.Variable(len(deltas), nonneg=True)
        square = mu / 2 * cp.sum_squares(slopes.T @ share + ideal - a.mean())
        problem = cp.Problem(cp.Maximize((deltas + slopes @ z[rows]) @ share - square), [cp.sum(share) == 1])
        goal += weight * problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11)
    assert loss.smoothed_value_grad(z, y, c, mu)[0] == pytest.approx(goal, abs=1e-7)


def test_the_smoothed_reciprocal_rank_is_the_sum_over_all_fronts_and_orders():
    y = np.array([[1.0, 0], [0, 0], [2, 0], [0, 0], [0, 0]])
    z, mu, c = np.array([0.3, 0.8, -0.5, 0.1, -0.2]), 0.7, np.full(5, 0.2)
    relevant, others = z[y[:, 0] > 0], z[y[:, 0] == 0]
    lead, terms = (others[:, None] - relevant) / 6, []
    for front in product([0, 1], repeat=3):
        for order in product([0, 1], repeat=6):
            order = np.array(order).reshape(3, 2)
            if not np.any(order[np.array(front) == 1]):  # one order, all inverted, for rows in front
                inverted = np.maximum(order, np.array(front)[:, None])
                terms.append(1 - 1 / (1 + sum(front)) + np.sum(inverted * lead))
    terms = np.array(terms)
    assert len(terms) == 5**3
    T = 0.5 * mu / np.log(len(terms))
    value, _, offset = rm.Mrr().smoothed_value_grad(z, y, c, mu)
    assert value == pytest.approx(T * np.log(np.mean(np.exp(terms / T))), abs=1e-12)
    p = np.exp(terms / T) / np.sum(np.exp(terms / T))
    assert value + offset == pytest.approx(p @ terms, abs=1e-12)
    assert rm.Mrr().value_grad(z, y, c)[0] == pytest.approx(terms.max(), abs=1e-12)
