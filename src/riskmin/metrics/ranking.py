"""Ranking metrics over queries: NDCG, mean reciprocal rank, expected rank utility."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.messages import is_whole
from riskmin.losses.labels import encode_queries
from riskmin.metrics.checks import check_labels_scores


def ndcg_per_query(y_true: Any, y_score: Any, qid: Any, *, k: int | None = 10) -> NDArray:
    r"""The normalized discounted cumulative gain of each query,

    .. math:: \frac{DCG}{\max DCG}, \qquad DCG = \sum_{i \le k} \frac{2^{y_i} - 1}{\log_2(1 + i)},

    where :math:`y_i` is the grade of the row with the i-th highest score. scikit-learn's ``ndcg_score`` uses
    the grades themselves as gains, and requires the same number of rows in all queries.

    Parameters
    ----------
    y_true : (n,) array
        Grades >= 0.
    y_score : (n,) array
        Scores; the highest ranks first.
    qid : (n,) array
        The query id of each row, in any order.
    k : int or None
        The number of highest-ranked rows per query that count; None for all.

    Returns
    -------
    (q,) array
        Between 0 and 1, in the sorted order of the ids; NaN for queries without a grade above 0, for which
        all rankings are equal. (LETOR's tools count those as 0: ``np.nan_to_num``.)

    Examples
    --------
    >>> ndcg_per_query([2, 0, 1, 0, 1], [3.0, 2.0, 1.0, 1.0, 2.0], [7, 7, 7, 9, 9]).round(3).tolist()
    [0.964, 1.0]
    """
    grades, z, query = _check_grades(y_true, y_score, qid)
    _check_cutoff(k)

    # ranks are counted from 0, so that i = rank + 1
    def discount(rank: NDArray) -> NDArray:
        weight: NDArray = np.where(rank < (k or np.inf), 1 / np.log2(2 + rank), 0.0)
        return weight

    top = np.zeros(query.max() + 1)
    # 2^y may overflow; only ratios within a query matter, so gains are divided by 2^(highest grade)
    np.maximum.at(top, query, grades)
    return _fraction_of_best(np.exp2(grades - top[query]) - np.exp2(-top[query]), z, query, discount)


def mean_ndcg_score(
    y_true: Any, y_score: Any, *, qid: Any = None, k: int | None = 10, sample_weight: Any = None
) -> float:
    """The mean of `ndcg_per_query` over the queries with a grade above 0.

    Parameters
    ----------
    y_true, y_score, qid, k
        As in `ndcg_per_query`.
    sample_weight : (n,) array, optional
        The weight of a query is the mean weight of its rows.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> round(mean_ndcg_score([2, 0, 1, 0, 1], [3.0, 2.0, 1.0, 1.0, 2.0], qid=[7, 7, 7, 9, 9]), 3)
    0.982
    """
    return _mean_over_queries(ndcg_per_query(y_true, y_score, qid, k=k), qid, sample_weight)


def mrr_score(y_true: Any, y_score: Any, *, qid: Any = None, sample_weight: Any = None) -> float:
    """The mean reciprocal rank: the mean over queries of 1 / the rank of the first row with a grade above 0.

    Parameters
    ----------
    y_true, y_score, qid
        As in `ndcg_per_query`; queries without a grade above 0 are left out.
    sample_weight : (n,) array, optional
        The weight of a query is the mean weight of its rows.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> mrr_score([2, 0, 1, 0, 1], [3.0, 2.0, 1.0, 2.0, 1.0], qid=[7, 7, 7, 9, 9])
    0.75
    """
    grades, z, query = _check_grades(y_true, y_score, qid)
    # sorted by query, then by descending score; only the first tied group with a relevant row counts
    rows = np.lexsort([-z, query])
    z, query, relevant = z[rows], query[rows], grades[rows] > 0
    start, size, rank = _tied_groups(z, query)
    n_relevant = np.add.reduceat(relevant.astype(np.int64), start)
    groups = np.flatnonzero(n_relevant)
    # np.unique returns the first group of each query
    queries, first = np.unique(query[start[groups]], return_index=True)
    reciprocal = np.full(query[-1] + 1, np.nan)
    reciprocal[queries] = [
        _mean_reciprocal_rank(int(rank[start[g]]), int(size[g]), int(n_relevant[g])) for g in groups[first]
    ]
    return _mean_over_queries(reciprocal, qid, sample_weight)


def expected_rank_utility_score(
    y_true: Any, y_score: Any, *, qid: Any = None, half_life: float = 5.0, sample_weight: Any = None
) -> float:
    r"""The expected utility of rankings, :math:`\sum_i y_i\, 2^{-(i - 1) / (h - 1)}`, relative to the best.

    A user views one row after the other, and views the row at rank h with probability 1/2.

    Parameters
    ----------
    y_true, y_score, qid
        As in `ndcg_per_query`; queries without a grade above 0 are left out.
    half_life : float
        h, greater than 1.
    sample_weight : (n,) array, optional
        The weight of a query is the mean weight of its rows.

    Returns
    -------
    float
        Between 0 and 1, the mean over queries.

    References
    ----------
    J. S. Breese, D. Heckerman, C. Kadie, Empirical analysis of predictive algorithms for collaborative
    filtering, UAI 1998.

    Examples
    --------
    >>> expected_rank_utility_score([0, 1], [2.0, 1.0], qid=[7, 7], half_life=2.0)
    0.5
    """
    if not half_life > 1:
        raise ValueError(f"half_life={half_life!r}, but it must be above 1")
    grades, z, query = _check_grades(y_true, y_score, qid)
    utility = _fraction_of_best(grades, z, query, lambda rank: np.exp2(-rank / (half_life - 1)))
    return _mean_over_queries(utility, qid, sample_weight)


def _fraction_of_best(gains: NDArray, z: NDArray, query: NDArray, discount: Any) -> NDArray:
    """Per query, the sum of discounted gains in the order of the scores, divided by that in the best order.

    Tied rows share the mean of the discounts of their ranks.
    """

    def total(by: NDArray) -> NDArray:
        rows = np.lexsort([-by, query])
        start, size, rank = _tied_groups(by[rows], query[rows])
        # the mean discount of the ranks of each tied group
        means = np.add.reduceat(discount(rank), start) / size
        return np.bincount(query[rows], np.repeat(means, size) * gains[rows])

    # the best order is that of the gains; NaN for queries in which all gains are 0
    best = total(gains)
    ratio: NDArray = np.divide(total(z), best, out=np.full(len(best), np.nan), where=best > 0)
    return ratio


def _tied_groups(z: NDArray, query: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """For sorted rows: the start and the size of each group of tied scores within a query, and all ranks.

    Ranks are counted from 0 within each query.
    """
    n = len(z)
    new_query = np.concatenate([[True], query[1:] != query[:-1]])
    start = np.flatnonzero(new_query | np.concatenate([[True], z[1:] != z[:-1]]))
    # the row number minus the number of the first row of its query
    rank = np.arange(n) - np.maximum.accumulate(np.where(new_query, np.arange(n), 0))
    return start, np.diff(start, append=n), rank


def _mean_reciprocal_rank(above: int, size: int, n_relevant: int) -> float:
    """The mean of 1 / rank of the first relevant row of a tied group, over all orders of the group.

    `above` rows rank before the group, which has `size` rows, `n_relevant` of them relevant.
    """
    # probability that the first relevant row is the j-th of the group, from 0, by the recursion
    # P(j + 1) = P(j) (size - n_relevant - j) / (size - 1 - j)
    mean, probability = 0.0, n_relevant / size
    for j in range(size - n_relevant + 1):
        mean += probability / (above + j + 1)
        if j < size - n_relevant:
            probability *= (size - n_relevant - j) / (size - 1 - j)
    return mean


def _check_grades(y_true: Any, y_score: Any, qid: Any) -> tuple[NDArray, NDArray, NDArray]:
    """Return grades, scores and the query index of each row; raise if grades are not numbers >= 0."""
    y, z = check_labels_scores(y_true, y_score)
    if y.dtype.kind == "O":  # as in data frames; entries that are not numbers are reported below
        with contextlib.suppress(TypeError, ValueError):
            y = y.astype(np.float64)
    if y.dtype.kind not in "biuf" or not np.isfinite(y).all() or (y < 0).any():
        raise ValueError(
            "y_true holds something else than numbers >= 0: grades are needed, 0 for rows of no use; "
            "subtract the lowest from all"
        )
    return y.astype(np.float64), z, encode_queries(qid, len(y))


def _check_cutoff(k: int | None) -> None:
    if k is not None and not is_whole(k, at_least=1):
        raise ValueError(f"k={k!r}, but it must be a whole number >= 1, or None for all rows")


def _mean_over_queries(metric: NDArray, qid: Any, sample_weight: Any) -> float:
    """The weighted mean over the queries for which the metric is defined (not NaN)."""
    defined = np.isfinite(metric)
    if not defined.any():
        raise ValueError("no query has a grade above 0, so that every ranking is as good as another")
    if sample_weight is None:
        return float(metric[defined].mean())
    weight: NDArray = np.asarray(sample_weight, dtype=np.float64)
    query = encode_queries(qid, np.size(qid))
    if weight.shape != query.shape or not (weight >= 0).all():
        raise ValueError(f"sample_weight has shape {weight.shape}: give one weight >= 0 per row")
    # the weight of a query is the mean weight of its rows
    query_weight = (np.bincount(query, weight) / np.bincount(query))[defined]
    if not query_weight.sum() > 0:
        raise ValueError("sample_weight is zero for every query that has a grade above 0: make one positive")
    return float(query_weight @ metric[defined] / query_weight.sum())
