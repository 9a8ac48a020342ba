"""Metrics of scores, compared with their definitions averaged over all orders of tied rows."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin
from helpers import refusals
from riskmin.metrics import (
    chunk_f1,
    expected_rank_utility_score,
    mean_ndcg_score,
    mrr_score,
    ndcg_per_query,
    prbep_score,
    precision_at_k_score,
    recall_at_k_score,
)

lists = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=6)
"""Grades and scores, many of which tie."""


def over_orders(y, z, measure):
    """The mean of a measure of ordered grades over all orders consistent with the scores."""
    values = [
        measure(y[list(p)]) for p in permutations(range(len(y))) if all(z[a] >= z[b] for a, b in pairwise(p))
    ]
    return np.mean(values)


def dcg(y, k):
    return sum((2.0**g - 1) / np.log2(2 + i) for i, g in enumerate(y[:k]))


def utility(y, half_life):
    return sum(g * 2.0 ** (-i / (half_life - 1)) for i, g in enumerate(y))


# ---------------------------------------------------------------- two classes
@given(lists, st.integers(1, 6))
def test_metrics_at_k(rows, k):
    y, z = np.array(rows).T
    y, k = (y > 1).astype(int), min(k, len(y))
    if not y.any():
        return
    hits = over_orders(y, z, lambda g: g[:k].sum())
    assert precision_at_k_score(y, z, k=k) == pytest.approx(hits / k)
    assert recall_at_k_score(y, z, k=k) == pytest.approx(hits / y.sum())
    assert prbep_score(y, z) == pytest.approx(over_orders(y, z, lambda g: g[: y.sum()].mean()))


@pytest.mark.parametrize("labels", [[0, 1], [-1.0, 1.0], [False, True], ["no", "yes"], [3, 7]])
def test_larger_label_is_positive(labels):
    y = np.array(labels)[[1, 0, 1, 0]]
    assert prbep_score(y, [4.0, 3.0, 2.0, 1.0]) == 0.5
    assert precision_at_k_score(y, [4.0, 3.0, 2.0, 1.0], k=1) == 1
    assert precision_at_k_score(y, [4.0, 3.0, 2.0, 1.0], k=1, pos_label=labels[0]) == 0


# ---------------------------------------------------------------- queries
@settings(deadline=None)
@given(st.lists(lists, min_size=1, max_size=3), st.integers(1, 4), st.randoms())
def test_ranking_metrics(queries, k, random):
    rows = [(g, z, q) for q, some in enumerate(queries) for g, z in some]
    random.shuffle(rows)  # the rows of a query need not be contiguous
    y, z, qid = np.array(rows).T
    some = [q for q in range(len(queries)) if y[qid == q].any()]
    if not some:
        with pytest.raises(ValueError, match="no query has a grade above 0"):
            mean_ndcg_score(y, z, qid=qid)
        return

    def mean(measure):
        """The mean over queries of the measure relative to that of the best order."""
        each = [
            over_orders(y[qid == q], z[qid == q], measure) / measure(np.sort(y[qid == q])[::-1]) for q in some
        ]
        return pytest.approx(np.mean(each))

    assert mean_ndcg_score(y, z, qid=qid, k=k) == mean(lambda g: dcg(g, k))
    assert mean_ndcg_score(y, z, qid=qid, k=None) == mean(lambda g: dcg(g, None))
    assert expected_rank_utility_score(y, z, qid=qid, half_life=3) == mean(lambda g: utility(g, 3))
    assert mrr_score(y, z, qid=qid) == mean(lambda g: 1 / (1 + np.flatnonzero(g)[0]))
    each = ndcg_per_query(y, z, qid, k=k)
    assert np.flatnonzero(np.isfinite(each)).tolist() == some
    np.testing.assert_allclose(np.nanmean(each), mean_ndcg_score(y, z, qid=qid, k=k))


@pytest.mark.parametrize("measure", [mean_ndcg_score, mrr_score, expected_rank_utility_score])
def test_weight_of_a_query_is_that_of_its_rows(measure):
    rng = np.random.default_rng(0)
    y, z, qid = rng.integers(0, 3, 60), rng.standard_normal(60), rng.integers(0, 8, 60)
    y[qid == 3] = 0
    weight = rng.integers(0, 3, 60)
    each = [measure(y[qid == q], z[qid == q], qid=np.zeros(np.sum(qid == q))) for q in range(8) if q != 3]
    means = [weight[qid == q].mean() for q in range(8) if q != 3]
    assert measure(y, z, qid=qid, sample_weight=weight) == pytest.approx(np.average(each, weights=means))
    with pytest.raises(ValueError, match="zero for every query that has a grade above 0"):
        measure(y, z, qid=qid, sample_weight=qid == 3)
    with pytest.raises(ValueError, match=r"sample_weight has shape \(1,\)"):
        measure(y, z, qid=qid, sample_weight=[1.0])


def test_queries_are_ordered_by_id():
    y, z, qid = [1, 0, 0, 1, 0], [2.0, 1.0, 2.0, 1.0, 0.0], ["b", "b", "a", "a", "c"]
    np.testing.assert_allclose(ndcg_per_query(y, z, qid), [1 / np.log2(3), 1.0, np.nan])


def test_grades_may_be_objects():
    y, z, qid = np.array([2, 0, 1], object), [3.0, 2.0, 1.0], [7, 7, 7]
    assert mean_ndcg_score(y, z, qid=qid) == mean_ndcg_score(y.astype(int), z, qid=qid)


def test_grades_may_be_large():
    """The gains overflow, but their ratios do not."""
    y, z, qid = [3000.0, 2999.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [0, 0, 1, 1]
    log3 = np.log2(3)
    np.testing.assert_allclose(ndcg_per_query(y, z, qid), [(0.5 + 1 / log3) / (1 + 0.5 / log3), 1 / log3])


# ---------------------------------------------------------------- errors
Z, ONE = [1.0, 2.0], [1, 1]
REFUSED = [
    (lambda: prbep_score([0, 0], Z), "y_true holds one class: give two"),
    (lambda: prbep_score([0, 1, 2], [1.0, 2.0, 3.0]), "y_true holds 3 classes: give two"),
    (lambda: prbep_score([0, 0], Z, pos_label=1), "y_true holds no 1"),
    (lambda: prbep_score([0, 1], [1.0]), r"y_true has shape \(2,\) and y_score \(1,\)"),
    (lambda: prbep_score([0, 1], [1.0, np.nan]), "y_score holds NaN"),
    (lambda: prbep_score([0, 1], ["a", "b"]), "y_score holds something else than numbers"),
    (lambda: precision_at_k_score([0, 1], Z, k=3), "k=3, but there are 2 rows"),
    *((lambda k=k: recall_at_k_score([0, 1], Z, k=k), f"k={k}, but there are 2 rows") for k in (0, None)),
    (lambda: mean_ndcg_score([0, 1], Z, qid=[1]), r"qid has shape \(1,\)"),
    (lambda: mean_ndcg_score([0, -1], Z, qid=ONE), "numbers >= 0"),
    (lambda: mrr_score(["a", "b"], Z, qid=ONE), "numbers >= 0"),
    (lambda: mrr_score(np.array(["a", 1], object), Z, qid=ONE), "numbers >= 0"),
    (lambda: mrr_score([0, 1], Z, qid=[1, np.nan]), "qid holds NaN"),
    (lambda: mrr_score([0, 1], Z, qid=[1, None]), "qid holds ids that cannot be compared"),
    (lambda: mrr_score([0, 0], Z, qid=ONE), "no query has a grade above 0"),
    (lambda: mean_ndcg_score([0, 1], Z, qid=ONE, k=0.5), "k=0.5, but it must be a whole"),
    (lambda: mean_ndcg_score([0, 1], Z, qid=ONE, k=np.inf), "k=inf, but it must be a whole"),
    (lambda: expected_rank_utility_score([0, 1], Z, qid=ONE, half_life=1), "above 1"),
    (lambda: chunk_f1([["O"]], []), "y_true has 1 sequences and y_pred 0"),
    (lambda: chunk_f1([["O"]], [["O", "O"]]), "sequence 0 has 1 true labels and 2 predicted"),
    (lambda: chunk_f1([["NN"]], [["O"]]), "'NN' marks no part of a chunk"),
    (lambda: chunk_f1(["O"], ["O"]), "must come in sequences"),
]
test_refusals = refusals((REFUSED, ValueError))


def test_the_package_has_its_metrics_without_a_further_import():
    assert riskmin.__getattr__("metrics") is riskmin.metrics
    assert "metrics" in dir(riskmin)
