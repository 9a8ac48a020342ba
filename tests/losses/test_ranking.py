"""Ranking losses: the definitions by brute force, the oracles, and certified fits."""

import contextlib
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin.losses.nondecomposable.by_query as by_query
from riskmin import (
    L2,
    Bundle,
    ExpectedRankUtility,
    Mrr,
    Ndcg,
    Objective,
    PairwiseHinge,
    PositionWeights,
    Smoothing,
    check_loss,
    linear_risk,
    minimize,
)
from riskmin.core import UnsupportedProblem

PAIRED = [Ndcg(), Ndcg(k=1), Ndcg(k=2), Ndcg(k=3), Mrr(), ExpectedRankUtility(), ExpectedRankUtility(1.5)]
WEIGHTED = [
    Ndcg(weights=0.5),
    Ndcg(k=2, weights=PositionWeights(power=1, shift=1)),
    Ndcg(k=3, weights=PositionWeights(power=0.5, k=2)),
    Ndcg(k=3, weights="discount"),
    Mrr(weights=PositionWeights(power=1, shift=1)),
    Mrr(weights="discount"),
    ExpectedRankUtility(weights=PositionWeights(power=0.5, k=3)),
    ExpectedRankUtility(1.5, weights="discount"),
]
RANKINGS = [*PAIRED, *WEIGHTED]
LOSSES = [*RANKINGS, PairwiseHinge()]
each_ranking = pytest.mark.parametrize("loss", RANKINGS, ids=repr)
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def by_lists(loss):
    """Whether the worst rankings are found by tables or assignments, and not by a sort."""
    return not isinstance(loss, Mrr) and loss.weights != "discount"


# ---------------------------------------------------------------- definitions
def delta(loss, grades):
    """1 minus the metric of the grades in the order of a ranking."""
    i = np.arange(1, len(grades) + 1)
    if isinstance(loss, Mrr):
        return 1 - 1 / i[grades > 0][0]
    if isinstance(loss, Ndcg):
        gains, discounts = 2.0**grades - 1, np.where(i <= loss.k, 1 / np.log2(i + 1), 0)
    else:
        gains, discounts = grades, 0.5 ** ((i - 1) / (loss.half_life - 1))
    return 1 - discounts @ gains / (discounts @ np.sort(gains)[::-1])


def weights_of(loss, m):
    """The weights c_i of positions, written down again."""
    i, name = np.arange(1.0, m + 1), loss.weights
    if name == "discount":
        if isinstance(loss, Ndcg):
            return np.where(i <= loss.k, 1 / np.log2(i + 1), 0)
        return 1 / i if isinstance(loss, Mrr) else 0.5 ** ((i - 1) / (loss.half_life - 1))
    return np.where(i <= (name.k or m), 1 / (i + name.shift) ** name.power, 0)


def weighted_corners(loss, grades):
    """Delta of every ranking, and the weights of its rows less the mean over all ideal rankings."""
    levels, c = (grades > 0).astype(float) if isinstance(loss, Mrr) else grades, weights_of(loss, len(grades))
    orders = np.array(list(permutations(range(len(grades)))))
    slopes = np.empty(orders.shape)
    np.put_along_axis(slopes, orders, np.broadcast_to(c, orders.shape), axis=1)
    ideal = np.all(np.diff(levels[orders], axis=1) <= 0, axis=1)
    deltas = [delta(loss, grades[order]) for order in orders]
    return list(zip(deltas, slopes - slopes[ideal].mean(axis=0), strict=True))


def corners(loss, grades):
    """Delta of every ranking, and the gradient of its lead with respect to the scores."""
    if loss.weights is not None:
        return weighted_corners(loss, grades)
    levels = (grades > 0).astype(float) if isinstance(loss, Mrr) else grades
    pairs, rankings = np.sum(levels[:, None] > levels), []
    for order in map(list, permutations(range(len(grades)))):
        slope = np.zeros(len(grades))
        for first, second in combinations(order, 2):
            if levels[second] > levels[first]:
                slope[[first, second]] += np.array([1, -1]) / pairs
        rankings.append((delta(loss, grades[order]), slope))
    return rankings


def queries(loss, y, c):
    """The rows and the weight of each query that counts."""
    grades = y[:, 0] > 0 if isinstance(loss, Mrr) else y[:, 0]
    parts = [np.flatnonzero(y[:, 1] == k) for k in np.unique(y[:, 1])]
    parts = [rows for rows in parts if len(set(grades[rows])) > 1]
    weights = np.array([c[rows].mean() for rows in parts])
    return list(zip(parts, weights / weights.sum(), strict=True))


def by_brute_force(loss, z, y, c):
    """The mean over queries of the maximum over all rankings."""
    return sum(
        weight * max(d + slope @ z[rows] for d, slope in corners(loss, y[rows, 0]))
        for rows, weight in queries(loss, y, c)
    )


def by_pairs(z, y, c, mu):
    """The pairwise hinge, its gradient and its minorant offset, pair by pair."""
    value, offset, dz = 0.0, 0.0, np.zeros(len(z))
    for rows, weight in queries(PairwiseHinge(), y, c):
        pairs = [(i, j) for i in rows for j in rows if y[i, 0] > y[j, 0]]
        total = sum(c[i] * c[j] for i, j in pairs)
        for i, j in pairs:
            t, share = z[j] - (z[i] - 1), weight * c[i] * c[j] / total
            beta = min(max(t / mu, 0.0), 1.0) if mu else float(t > 0)
            value += share * (beta * t - 0.5 * mu * beta**2)
            offset += share * 0.5 * mu * beta**2
            dz[i] -= share * beta
            dz[j] += share * beta
    return value, dz, offset


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
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "path"),
    [
        (loss, path)
        for loss in RANKINGS
        for path in ("table", "assignment")
        if path == "table" or by_lists(loss)
    ],
    ids=repr,
)
def test_lists_equal_brute_force(loss, path, monkeypatch):
    if path == "assignment":
        monkeypatch.setattr(by_query, "LIMITS", replace(by_query.LIMITS, dp_max_table_entries=1))
    for seed in range(12):
        z, y, c = case(seed, max_rows=5, tied=seed % 2 == 0, scale=[0.1, 1.0, 5.0][seed % 3])
        value, dz = loss.value_grad(z, y, c)
        assert value == pytest.approx(by_brute_force(loss, z, y, c), abs=1e-12)
        for size in (1e-3, 1.0, 30.0):
            u = z + size * np.random.default_rng(seed).standard_normal(len(z))
            assert by_brute_force(loss, u, y, c) >= value + dz @ (u - z) - 1e-12


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([*RANKINGS, Ndcg(k=4), Ndcg(k=5), Ndcg(k=6)]), st.booleans())
def test_lists_equal_brute_force_of_six_rows(seed, loss, tied):
    z, y, c = case(seed, max_rows=6, n_queries=2, tied=tied, scale=10.0 ** (seed % 3 - 1))
    assert loss.value_grad(z, y, c)[0] == pytest.approx(by_brute_force(loss, z, y, c), abs=1e-12)


@pytest.mark.parametrize(
    "loss", [Ndcg(), Ndcg(k=3), Ndcg(k=25), ExpectedRankUtility(), *filter(by_lists, WEIGHTED)], ids=repr
)
@pytest.mark.parametrize("grades", [2, 3, 5])
def test_table_and_assignment_agree(loss, grades, monkeypatch):
    for seed in range(4):
        z, y, c = case(seed, max_rows=30, n_queries=5, grades=grades, scale=[0.2, 2.0][seed % 2])
        monkeypatch.setattr(by_query, "DP_ALWAYS_BELOW_STEPS", 2**40)
        value, dz = loss.value_grad(z, y, c)
        with monkeypatch.context() as patch:
            patch.setattr(by_query, "LIMITS", replace(by_query.LIMITS, dp_max_table_entries=1))
            other, du = loss.value_grad(z, y, c)
        assert value == pytest.approx(other, abs=1e-12)
        np.testing.assert_allclose(dz, du, atol=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0, 7.0])
def test_pairwise_hinge_equals_its_definition(mu):
    for seed in range(12):
        z, y, c = case(seed, max_rows=9, grades=6, tied=seed % 2 == 0)
        value, dz, offset = PairwiseHinge().smoothed_value_grad(z, y, c, mu)
        expected, du, expected_offset = by_pairs(z, y, c, mu)
        assert (value, offset) == (
            pytest.approx(expected, abs=1e-13),
            pytest.approx(expected_offset, abs=1e-13),
        )
        np.testing.assert_allclose(dz, du, atol=1e-13)


def test_pairwise_hinge_of_one_query_is_the_ordinal_loss():
    from riskmin import Ordinal

    rng = np.random.default_rng(0)
    z, grades, c = rng.standard_normal(3000), rng.standard_normal(3000), rng.dirichlet(np.ones(3000))
    value, dz, offset = PairwiseHinge().smoothed_value_grad(z, np.column_stack([grades, 0 * z]), c, 0.3)
    expected, du, expected_offset = Ordinal().smoothed_value_grad(z, grades, c, 0.3)
    assert (value, offset) == (
        pytest.approx(float(expected), rel=1e-10),
        pytest.approx(float(expected_offset), rel=1e-10),
    )
    np.testing.assert_allclose(dz, du, atol=1e-13)


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_ndcg_bounds_the_metric_of_scikit_learn(k):
    from sklearn.metrics import ndcg_score

    z, y, c = case(k, max_rows=20, n_queries=6)
    scores = [
        (weight, ndcg_score([2 ** y[rows, 0] - 1], [z[rows]], k=k)) for rows, weight in queries(Ndcg(), y, c)
    ]
    metric_loss = sum(weight * (1 - score) for weight, score in scores)
    assert Ndcg(k=k).value_grad(z, y, c)[0] >= metric_loss - 1e-12
    separated = 1e6 * y[:, 0]  # all pairs in order, and far apart
    assert Ndcg(k=k).value_grad(separated, y, c)[0] == pytest.approx(0, abs=1e-9)


# ---------------------------------------------------------------- the contract
def ranks(rng, n):
    return np.column_stack([rng.integers(0, 4, n), rng.integers(0, 5, n)]).astype(float)


@each_loss
def test_contract(loss):
    check_loss(loss, labels=ranks)


@each_loss
def test_order_and_ids_of_queries_do_not_matter(loss):
    for tied in (False, True):
        z, y, c = case(3, max_rows=8, n_queries=4, tied=tied)
        value, dz = loss.value_grad(z, y, c)
        p = np.random.default_rng(0).permutation(len(z))
        other, du = loss.value_grad(z[p], np.column_stack([y[p, 0], 7 - y[p, 1]]), c[p])
        assert other == pytest.approx(value, abs=1e-13)
        np.testing.assert_allclose(du, dz[p], atol=1e-13)


@each_loss
def test_queries_have_the_mean_weight_of_their_rows_and_trivial_ones_are_left_out(loss):
    y = np.array([[1.0, 0], [0, 0], [2, 1], [0, 1], [0, 1], [1, 2], [1, 2]])
    z = np.array([0.0, 0.3, 0.1, 0.2, -0.5, 9.0, -9.0])
    separate = [
        loss.value_grad(z[y[:, 1] == k], y[y[:, 1] == k], np.ones(s) / s)[0] for k, s in [(0, 2), (1, 3)]
    ]
    value, dz = loss.value_grad(z, y, np.ones(7) / 7)
    assert value == pytest.approx(np.mean(separate), abs=1e-14)
    assert not dz[5:].any()
    value, _ = loss.value_grad(z, y, np.array([3.0, 3, 1, 1, 1, 1, 1]) / 11)
    assert value == pytest.approx((3 * separate[0] + separate[1]) / 4, abs=1e-14)
    with pytest.raises(ValueError, match="weight"):
        loss.value_grad(z, y, np.array([0.0, 0, 0, 0, 0, 1, 1]))


@each_loss
def test_shifts_within_a_query_do_not_change_the_loss(loss):
    z, y, c = case(5, max_rows=8)
    value, dz = loss.value_grad(z, y, c)
    assert loss.value_grad(z + 3 * y[:, 1], y, c)[0] == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(np.bincount(y[:, 1].astype(int), dz), 0, atol=1e-14)


@each_loss
def test_torch_scores_give_torch_gradients(loss):
    torch = pytest.importorskip("torch")
    z, y, c = case(1, max_rows=8)
    value, dz = loss.value_grad(z, y, c)
    for dtype, tol in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        tensors = [torch.tensor(a, dtype=dtype) for a in (z, y, c)]
        other, du = loss.value_grad(*tensors)
        assert du.dtype == dtype
        assert float(other) == pytest.approx(value, abs=tol)
        np.testing.assert_allclose(du.numpy(), dz, atol=tol)


def test_gains_depend_on_their_own_query_only():
    """A grade of 3000 in another query does not change a gain of 2^1 - 1."""
    z, c = np.zeros(2), np.full(2, 0.5)
    one = Ndcg().value_grad(z, np.array([[1.0, 0], [0, 0]]), c)[0]
    y = np.array([[1.0, 0], [0, 0], [3000, 1], [0, 1], [1e-20, 2], [0, 2]])
    value, _ = Ndcg().value_grad(np.zeros(6), y, np.full(6, 1 / 6))
    assert value == pytest.approx(one, rel=1e-12)


def test_grades_may_have_any_size():
    y = np.array([[3000.0, 0], [2999, 0], [0, 0]])
    value, _ = Ndcg().value_grad(np.zeros(3), y, np.ones(3) / 3)
    D = 1 / np.log2([2, 3, 4])
    assert value == pytest.approx(1 - (D[2] + 0.5 * D[1]) / (D[0] + 0.5 * D[1]), rel=1e-12)


@each_loss
def test_scores_that_are_not_finite_give_a_value_that_is_not(loss):
    """The kernels stay within their arrays, whatever the order of the scores is."""
    for bad in (np.nan, np.inf, -np.inf):
        z, y, c = case(2, max_rows=8)
        z[::2] = bad
        with np.errstate(all="ignore"), contextlib.suppress(ValueError):
            assert not loss.value_grad(z, y, c)[0] < np.inf


def test_nan_in_rows_of_queries_is_refused():
    X = np.arange(12.0).reshape(6, 2)
    X[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"X holds NaN or infinity \(row 4, column 1\)"):
        linear_risk(X, np.arange(6.0), Ndcg(), qid=[0, 0, 0, 1, 1, 1])


# ---------------------------------------------------------------- fits
def data(seed=0, n_queries=12, max_rows=4, p=5):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_queries), rng.integers(2, max_rows + 1, n_queries))
    X = rng.standard_normal((len(ids), p))
    y = np.clip(np.round(X @ rng.standard_normal(p) + rng.standard_normal(len(ids))), 0, 3)
    return X, y, ids


def optimum(loss, X, y, ids, lam):
    """The minimum of J by cvxpy, from the definitions."""
    import cvxpy as cp

    w, c = cp.Variable(X.shape[1]), np.full(len(X), 1 / len(X))
    labels, parts = np.column_stack([y, ids]).astype(float), []
    for rows, weight in queries(loss, labels, c):
        if isinstance(loss, PairwiseHinge):
            D = np.array([X[i] - X[j] for i in rows for j in rows if y[i] > y[j]])
            parts.append(weight / len(D) * cp.sum(cp.pos(1 - D @ w)))
        else:
            deltas, slopes = map(np.array, zip(*corners(loss, y[rows]), strict=True))
            parts.append(weight * cp.max(deltas + (slopes @ X[rows]) @ w))
    problem = cp.Problem(cp.Minimize(lam / 2 * cp.sum_squares(w) + sum(parts)))
    return problem.solve(solver=cp.CLARABEL)


@pytest.mark.parametrize(
    "loss", [Ndcg(k=2), *WEIGHTED[:5:2], Mrr(), ExpectedRankUtility(), PairwiseHinge()], ids=repr
)
def test_fits_are_certified(loss):
    X, y, ids = data()
    J = Objective(linear_risk(X, y, loss, qid=ids), L2(), lam=0.05)
    minimum, result = optimum(loss, X, y, ids, 0.05), minimize(J, Bundle(), tol=1e-6)
    assert result.status == "converged"
    assert result.lower - 1e-7 <= minimum <= result.value + 1e-7
    with_intercept = minimize(
        Objective(linear_risk(X, y, loss, qid=ids, fit_intercept=True), L2(), 0.05), tol=1e-6
    )
    assert with_intercept.value == pytest.approx(minimum, rel=2e-6)


def test_weights_bound_the_metric_and_vanish_at_equal_scores_within_grades():
    """The value is at least 1 - metric of the ranking by z, and zero where grades are far apart."""
    for loss in WEIGHTED:
        z, y, c = case(7, max_rows=7, n_queries=5)
        metric_loss = sum(
            weight * delta(loss, y[rows[np.argsort(-z[rows])], 0]) for rows, weight in queries(loss, y, c)
        )
        assert loss.value_grad(z, y, c)[0] >= metric_loss - 1e-12
        truncated = isinstance(loss.weights, PositionWeights) and loss.weights.k is not None
        if not truncated and not (isinstance(loss, Ndcg) and loss.weights == "discount"):
            apart = 1e6 * (y[:, 0] > 0 if isinstance(loss, Mrr) else y[:, 0])
            assert loss.value_grad(apart, y, c)[0] == pytest.approx(0, abs=1e-9)


def test_weights_that_decrease_linearly_are_those_of_pairs_but_for_differences_within_grades():
    """c_i = -i / P adds half the mean absolute difference of the rows of a grade to the default."""

    class Linear(PositionWeights):
        def values(self, n):
            return -np.arange(n) / 6  # two rows of grade 1, three of grade 0: P = 6

    y = np.array([[1.0, 0], [1, 0], [0, 0], [0, 0], [0, 0]])
    z, c = np.array([0.3, -0.1, 0.2, 0.5, -1.0]), np.full(5, 0.2)
    within = (abs(z[0] - z[1]) + abs(z[2] - z[3]) + abs(z[2] - z[4]) + abs(z[3] - z[4])) / 2 / 6
    expected = Ndcg().value_grad(z, y, c)[0] + within
    assert Ndcg(weights=Linear()).value_grad(z, y, c)[0] == pytest.approx(expected, abs=1e-12)


def test_weights_are_settings():
    from riskmin import LOSSES as NAMES
    from riskmin import get_loss

    assert get_loss("ndcg:k=5,weights=0.5") == Ndcg(5, PositionWeights(power=0.5))
    for loss in WEIGHTED:
        assert NAMES.from_dict(NAMES.to_dict(loss)) == loss


def test_smoothing_certifies_the_pairwise_hinge():
    X, y, ids = data(1)
    J = Objective(linear_risk(X, y, PairwiseHinge(), qid=ids), L2(), lam=0.05)
    minimum, result = optimum(PairwiseHinge(), X, y, ids, 0.05), minimize(J, Smoothing(), tol=1e-5)
    assert result.status == "converged"
    assert result.lower - 1e-7 <= minimum <= result.value + 1e-7


SMOOTHED = [loss for loss in RANKINGS if loss.can_be_smoothed]


def test_some_rankings_can_be_smoothed():
    assert [type(loss) for loss in SMOOTHED] == [Mrr, Ndcg, ExpectedRankUtility]
    X, y, ids = data()
    for loss in (Ndcg(), Ndcg(weights=0.5), Mrr(weights="discount")):
        with pytest.raises(UnsupportedProblem, match="cannot be smoothed"):
            minimize(Objective(linear_risk(X, y, loss, qid=ids), L2(), 1.0), Smoothing())
        with pytest.raises(UnsupportedProblem, match=r"cannot be smoothed: use Bundle, or .*discount"):
            loss.smoothed_value_grad(*case(0), 0.1)


@pytest.mark.parametrize("mu", [0.05, 1.0])
@pytest.mark.parametrize("loss", [loss for loss in SMOOTHED if loss.weights], ids=repr)
def test_projections_are_the_maximum_over_the_convex_hull_of_rankings(loss, mu):
    """By a quadratic program over distributions of rankings: its multipliers are their mean weights."""
    import cvxpy as cp

    for seed in range(3):
        z, y, c = case(seed, max_rows=5, n_queries=2, tied=seed == 0)
        goal = 0.0
        for rows, weight in queries(loss, y, c):
            deltas, slopes = map(np.array, zip(*corners(loss, y[rows, 0]), strict=True))
            share = cp.Variable(len(deltas), nonneg=True)
            a = weights_of(loss, len(rows))
            # slopes are weights less those of the ideal ranking: the first term of the mean
            ideal = np.array(a)[np.argsort(np.argsort(-y[rows, 0], kind="stable"), kind="stable")]
            levels = y[rows, 0]
            ideal = np.array([ideal[levels == level].mean() for level in levels])
            p = slopes.T @ share + ideal
            problem = cp.Problem(
                cp.Maximize((deltas + slopes @ z[rows]) @ share - mu / 2 * cp.sum_squares(p - a.mean())),
                [cp.sum(share) == 1],
            )
            goal += weight * problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11)
        assert loss.smoothed_value_grad(z, y, c, mu)[0] == pytest.approx(goal, abs=1e-7)


def test_the_smoothed_reciprocal_rank_is_the_sum_over_all_fronts_and_orders():
    from itertools import product

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
    value, _, offset = Mrr().smoothed_value_grad(z, y, c, mu)
    assert value == pytest.approx(T * np.log(np.mean(np.exp(terms / T))), abs=1e-12)
    p = np.exp(terms / T) / np.sum(np.exp(terms / T))
    assert value + offset == pytest.approx(p @ terms, abs=1e-12)
    assert Mrr().value_grad(z, y, c)[0] == pytest.approx(terms.max(), abs=1e-12)


@pytest.mark.parametrize("loss", SMOOTHED, ids=repr)
def test_smoothed_rankings_are_close_and_their_raised_tangents_are_cuts(loss):
    rng = np.random.default_rng(3)
    for seed in range(6):
        z, y, c = case(seed, max_rows=12, n_queries=4, tied=seed == 0, scale=[0.1, 1.0, 1e4][seed % 3])
        true = loss.value_grad(z, y, c)[0]
        for mu in (1e-8, 1e-3, 0.3, 10.0):
            value, dz, offset = loss.smoothed_value_grad(z, y, c, mu)
            a = weights_of(loss, 12) if loss.weights else np.zeros(1)
            error = mu / 2 * (np.sum((a - a.mean()) ** 2) if loss.weights else 1)
            assert true - error - 1e-9 * (1 + true) <= value <= true + 1e-9 * (1 + true)
            assert -1e-12 <= offset <= error + 1e-9 * (1 + true)
            for size in (1e-3, 1.0, 1e3):
                u = z + size * rng.standard_normal(len(z))
                assert loss.value_grad(u, y, c)[0] >= value + offset + dz @ (u - z) - 1e-9 * (1 + true + size)


@pytest.mark.parametrize("loss", SMOOTHED, ids=repr)
@pytest.mark.parametrize("together", [True, False])
def test_smoothing_certifies_rankings(loss, together):
    """Queries in one piece are evaluated within shards."""
    X, y, ids = data(1)
    order = np.arange(len(y)) if together else np.random.default_rng(0).permutation(len(y))
    J = Objective(linear_risk(X[order], y[order], loss, qid=ids[order], n_shards=2), L2(), lam=0.02)
    minimum, result = optimum(loss, X, y, ids, 0.02), minimize(J, Smoothing(), tol=1e-5)
    assert result.status == "converged"
    assert result.lower - 1e-7 <= minimum <= result.value + 1e-7


# ---------------------------------------------------------------- messages
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Ndcg(k=0), "whole number"),
        (lambda: Ndcg(k=2.5), "whole number"),
        (lambda: ExpectedRankUtility(half_life=1.0), "half_life > 1"),
        (lambda: Ndcg(weights="linear"), "give None, 'discount'"),
        (lambda: Mrr(weights=-1.0), "power > 0"),
        (lambda: PositionWeights(shift=-1), "shift >= 0"),
        (lambda: PositionWeights(k=0.5), "whole number >= 1 or None"),
        (lambda: Ndcg().check_labels(np.zeros((3, 2))), "two different grades"),
        (lambda: PairwiseHinge().check_labels(np.array([[1.0, 0], [0, 1]])), "two different grades"),
        (lambda: Mrr().check_labels(np.array([[1.0, 0], [2, 0]])), "grade 0"),
        (lambda: Ndcg().check_labels(np.array([[-1.0, 0], [2, 0]])), "grades >= 0"),
        (lambda: Ndcg().check_labels(np.array([[np.nan, 0], [2, 0]])), "NaN"),
        (lambda: Ndcg().check_labels(np.array([np.inf, 2.0])), "qid"),
        (lambda: PairwiseHinge().check_labels(np.array([[np.inf, 0], [2, 0]])), "finite"),
    ],
)
def test_messages_name_the_cause(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_settings_of_names():
    from riskmin import get_loss

    assert get_loss("ndcg:k=5") == Ndcg(k=5)
    assert get_loss("expected_rank_utility:half_life=3") == ExpectedRankUtility(half_life=3.0)


def test_query_ids_that_cannot_be_compared():
    X, y = np.eye(3), np.array([0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="cannot be compared"):
        linear_risk(X, y, Ndcg(), qid=np.array([1, "a", None], dtype=object))


# ---------------------------------------------------------------- whole queries in a shard
@pytest.mark.parametrize("loss", [Ndcg(), Ndcg(3), *WEIGHTED[::4], Mrr(), ExpectedRankUtility()], ids=repr)
@pytest.mark.parametrize("together", [True, False])
def test_contiguous_queries_are_evaluated_within_shards(loss, together):
    rng = np.random.default_rng(5)
    sizes = [1, 7, 3, 12, 2, 9, 4]
    n, qid = sum(sizes), np.repeat(["b", "a", "g", "c", "e", "d", "f"], sizes)
    X, y, weight = rng.standard_normal((n, 3)), rng.integers(0, 3, n), rng.random(n)
    y[11:23] = 1  # a query with a single grade, sometimes alone in a shard
    if not together:
        order = rng.permutation(n)
        X, y, weight, qid = X[order], y[order], weight[order], qid[order]
    reference = linear_risk(X, y, loss, qid=qid, sample_weight=weight, n_shards=1)
    grades, c = reference.labels
    for n_shards in (1, 2, 5, n):
        risk = linear_risk(X, y, loss, qid=qid, sample_weight=weight, n_shards=n_shards)
        assert risk.loss.separable == together
        for w in rng.standard_normal((3, 3)):
            value, dz = loss.value_grad(X @ w, grades, c)
            result = risk(w)
            np.testing.assert_allclose(result[0], value, rtol=1e-12)
            np.testing.assert_allclose(result[1], X.T @ dz, rtol=1e-9, atol=1e-12)
            cursor = risk.cursor(w)
            cursor.set_direction(np.ones(3))
            moved = loss.value_grad(X @ (w + 0.3), grades, c)
            np.testing.assert_allclose(
                cursor.value_slope(0.3), (moved[0], moved[1] @ X.sum(1)), rtol=1e-9, atol=1e-12
            )
