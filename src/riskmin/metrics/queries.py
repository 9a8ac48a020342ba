"""Measures of rankings of queries: cumulative gains, the first relevant row, expected utility."""

from __future__ import annotations

import contextlib
import numbers
from typing import Any

import numpy as np

from riskmin.losses.labels import queries
from riskmin.metrics.checks import checked
from riskmin.types import NDArray


def ndcg_per_query(y_true: Any, y_score: Any, qid: Any, *, k: int | None = 10) -> NDArray:
    r"""The normalized discounted cumulative gain of each query,

    .. math:: \frac{DCG}{\max DCG}, \qquad DCG = \sum_{i \le k} \frac{2^{y_i} - 1}{\log_2(1 + i)},

    where :math:`y_i` is the grade of the i-th highest row. scikit-learn's ``ndcg_score`` has the grades
    themselves for gains, and takes queries that have all the same number of rows.

    Parameters
    ----------
    y_true : (n,) array
        Grades >= 0.
    y_score : (n,) array
        Scores, the highest first.
    qid : (n,) array
        The id of its query for each row, in any order.
    k : int or None
        How many rows of each query are looked at; None for all.

    Returns
    -------
    (q,) array
        From 0 to 1, in the sorted order of the ids; NaN for queries without any grade above 0, which no
        ranking serves better than another. (LETOR's tools count those as 0: ``np.nan_to_num``.)

    Examples
    --------
    >>> ndcg_per_query([2, 0, 1, 0, 1], [3.0, 2.0, 1.0, 1.0, 2.0], [7, 7, 7, 9, 9]).round(3).tolist()
    [0.964, 1.0]
    """
    grades, z, query = _queries(y_true, y_score, qid)
    _whole(k)

    def discount(rank: NDArray) -> NDArray:
        found: NDArray = np.where(rank < (k or np.inf), 1 / np.log2(2 + rank), 0.0)
        return found

    top = np.zeros(query.max() + 1)
    np.maximum.at(top, query, grades)  # 2^y may overflow, and only ratios within a query matter
    return _share(np.exp2(grades - top[query]) - np.exp2(-top[query]), z, query, discount)


def mean_ndcg_score(
    y_true: Any, y_score: Any, *, qid: Any = None, k: int | None = 10, sample_weight: Any = None
) -> float:
    """The mean of `ndcg_per_query` over the queries that have a grade above 0.

    Parameters
    ----------
    y_true, y_score, qid, k
        As in `ndcg_per_query`.
    sample_weight : (n,) array, optional
        A query weighs as its rows do on average.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> round(mean_ndcg_score([2, 0, 1, 0, 1], [3.0, 2.0, 1.0, 1.0, 2.0], qid=[7, 7, 7, 9, 9]), 3)
    0.982
    """
    return _mean(ndcg_per_query(y_true, y_score, qid, k=k), qid, sample_weight)


def mrr_score(y_true: Any, y_score: Any, *, qid: Any = None, sample_weight: Any = None) -> float:
    """The mean reciprocal rank: 1 / the place of the first row with a grade above 0, mean over queries.

    Parameters
    ----------
    y_true, y_score, qid
        As in `ndcg_per_query`; queries without any grade above 0 are left out.
    sample_weight : (n,) array, optional
        A query weighs as its rows do on average.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> mrr_score([2, 0, 1, 0, 1], [3.0, 2.0, 1.0, 2.0, 1.0], qid=[7, 7, 7, 9, 9])
    0.75
    """
    grades, z, query = _queries(y_true, y_score, qid)
    rows = np.lexsort([-z, query])
    z, query, good = z[rows], query[rows], grades[rows] > 0
    start, size, rank = _levels(z, query)
    right = np.add.reduceat(good.astype(np.int64), start)
    some = np.flatnonzero(right)
    queries, first = np.unique(query[start[some]], return_index=True)
    found = np.full(query[-1] + 1, np.nan)
    found[queries] = [_first(int(rank[start[g]]), int(size[g]), int(right[g])) for g in some[first]]
    return _mean(found, qid, sample_weight)


def expected_rank_utility_score(
    y_true: Any, y_score: Any, *, qid: Any = None, half_life: float = 5.0, sample_weight: Any = None
) -> float:
    r"""The expected utility of rankings, :math:`\sum_i y_i\, 2^{-(i - 1) / (h - 1)}` as a share of the best.

    A user looks at one row after the other, and at the one at place h with a chance of one half.

    Parameters
    ----------
    y_true, y_score, qid
        As in `ndcg_per_query`; queries without any grade above 0 are left out.
    half_life : float
        h, above 1.
    sample_weight : (n,) array, optional
        A query weighs as its rows do on average.

    Returns
    -------
    float
        From 0 to 1, mean over queries.

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
    grades, z, query = _queries(y_true, y_score, qid)
    found = _share(grades, z, query, lambda rank: np.exp2(-rank / (half_life - 1)))
    return _mean(found, qid, sample_weight)


def _share(gains: NDArray, z: NDArray, query: NDArray, discount: Any) -> NDArray:
    """Per query, the discounted gains of the scores' order as a share of those of the best order."""

    def total(by: NDArray) -> NDArray:
        rows = np.lexsort([-by, query])
        start, size, rank = _levels(by[rows], query[rows])
        means = np.add.reduceat(discount(rank), start) / size
        return np.bincount(query[rows], np.repeat(means, size) * gains[rows])

    best = total(gains)
    shares: NDArray = np.divide(total(z), best, out=np.full(len(best), np.nan), where=best > 0)
    return shares


def _levels(z: NDArray, query: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Of sorted rows: where each run of equal scores of a query starts, how long it is, and all places."""
    n = len(z)
    other = np.concatenate([[True], query[1:] != query[:-1]])
    start = np.flatnonzero(other | np.concatenate([[True], z[1:] != z[:-1]]))
    rank = np.arange(n) - np.maximum.accumulate(np.where(other, np.arange(n), 0))
    return start, np.diff(start, append=n), rank


def _first(above: int, size: int, right: int) -> float:
    """The mean of 1 / place of the first right row of a run, over all orders of it."""
    mean, chance = 0.0, right / size
    for j in range(size - right + 1):
        mean += chance / (above + j + 1)
        if j < size - right:
            chance *= (size - right - j) / (size - 1 - j)
    return mean


def _queries(y_true: Any, y_score: Any, qid: Any) -> tuple[NDArray, NDArray, NDArray]:
    """Grades, scores, and the number of each row's query."""
    y, z = checked(y_true, y_score)
    if y.dtype.kind == "O":  # as columns of data frames may be; what is no number has its say below
        with contextlib.suppress(TypeError, ValueError):
            y = y.astype(np.float64)
    if y.dtype.kind not in "biuf" or not np.isfinite(y).all() or (y < 0).any():
        raise ValueError(
            "y_true holds something else than numbers >= 0: grades are needed, 0 for rows of no use; "
            "subtract the lowest from all"
        )
    return y.astype(np.float64), z, queries(qid, len(y))


def _whole(k: int | None) -> None:
    if k is not None and not (isinstance(k, numbers.Real) and 1 <= k < np.inf and k == int(k)):
        raise ValueError(f"k={k!r}, but it must be a whole number >= 1, or None for all rows")


def _mean(found: NDArray, qid: Any, sample_weight: Any) -> float:
    """The weighted mean over the queries that have a measure."""
    some = np.isfinite(found)
    if not some.any():
        raise ValueError("no query has a grade above 0, so that every ranking is as good as another")
    if sample_weight is None:
        return float(found[some].mean())
    weight: NDArray = np.asarray(sample_weight, dtype=np.float64)
    query = queries(qid, np.size(qid))
    if weight.shape != query.shape or not (weight >= 0).all():
        raise ValueError(f"sample_weight has shape {weight.shape}: give one weight >= 0 a row")
    each = (np.bincount(query, weight) / np.bincount(query))[some]
    if not each.sum() > 0:
        raise ValueError("sample_weight is zero for every query that has a grade above 0: give one some")
    return float(each @ found[some] / each.sum())
