"""Measures of scores that scikit-learn lacks: break-even point, the first k rows, rankings of queries.

Rows with equal scores have no order: all measures here are the mean over all orders of them. Higher is
better, and 1 is the best.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.types import NDArray


# ---------------------------------------------------------------- two classes
def prbep_score(y_true: Any, y_score: Any, *, pos_label: Any = None) -> float:
    r"""The precision/recall break-even point: the share of positives among the :math:`n_+` highest scores.

    With as many rows predicted positive as there are positive rows, precision and recall are the same.

    Parameters
    ----------
    y_true : (n,) array
        Labels of two classes.
    y_score : (n,) array
        Scores, the higher the more positive.
    pos_label : label, optional
        Which class is the positive one; the greater of the two by default.

    Returns
    -------
    float
        From 0 to 1.

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> prbep_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0])
    0.5
    """
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, int(positive.sum())) / int(positive.sum())


def precision_at_k_score(y_true: Any, y_score: Any, *, k: int = 10, pos_label: Any = None) -> float:
    """The share of positives among the k highest scores.

    Parameters
    ----------
    y_true, y_score, pos_label
        As in `prbep_score`.
    k : int
        How many rows are looked at; no more than there are.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> precision_at_k_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0], k=1)
    1.0
    """
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, _rows(k, len(z))) / int(k)


def recall_at_k_score(y_true: Any, y_score: Any, *, k: int = 10, pos_label: Any = None) -> float:
    """The share of all positives that is among the k highest scores.

    Parameters
    ----------
    y_true, y_score, pos_label
        As in `prbep_score`.
    k : int
        How many rows are looked at; no more than there are.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> recall_at_k_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0], k=3)
    1.0
    """
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, _rows(k, len(z))) / int(positive.sum())


def _hits(positive: NDArray, z: NDArray, k: int) -> float:
    """How many of the k highest are positive; of those that tie for the last places, their share."""
    last = np.partition(z, len(z) - k)[len(z) - k]
    above, level = z > last, z == last
    return float(positive[above].sum() + (k - above.sum()) * positive[level].mean())


def _rows(k: int, n: int) -> int:
    if k != int(k) or not 1 <= k <= n:
        raise ValueError(f"k={k!r}, but there are {n} rows: give a whole number from 1 to {n}")
    return int(k)


def _two_classes(y_true: Any, y_score: Any, pos_label: Any) -> tuple[NDArray, NDArray]:
    """Which rows are positive, and the scores."""
    y, z = _checked(y_true, y_score)
    classes = np.unique(y).tolist()
    if pos_label is None:
        if len(classes) > 2 or (len(classes) == 1 and classes[0] != 1):
            raise ValueError(f"y_true holds {len(classes)} classes: give two, or say which by pos_label")
        pos_label = classes[-1]
    positive: NDArray = y == pos_label
    if not positive.any():
        raise ValueError(f"y_true holds no {pos_label!r}: without positives the measure is not defined")
    return positive, z


def _checked(y_true: Any, y_score: Any) -> tuple[NDArray, NDArray]:
    y, z = np.asarray(y_true), np.asarray(y_score, dtype=np.float64)
    if y.ndim != 1 or y.shape != z.shape or not len(y):
        raise ValueError(f"y_true has shape {y.shape} and y_score {z.shape}: give one label and score a row")
    if np.isnan(z).any():
        raise ValueError("y_score holds NaN: a row without a score has no place in a ranking")
    return y, z


# ---------------------------------------------------------------- queries
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


def mean_ndcg_score(y_true: Any, y_score: Any, *, qid: Any, k: int | None = 10) -> float:
    """The mean of `ndcg_per_query` over the queries that have a grade above 0.

    Parameters
    ----------
    y_true, y_score, qid, k
        As in `ndcg_per_query`.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> round(mean_ndcg_score([2, 0, 1, 0, 1], [3.0, 2.0, 1.0, 1.0, 2.0], qid=[7, 7, 7, 9, 9]), 3)
    0.982
    """
    return _mean(ndcg_per_query(y_true, y_score, qid, k=k))


def mrr_score(y_true: Any, y_score: Any, *, qid: Any) -> float:
    """The mean reciprocal rank: 1 / the place of the first row with a grade above 0, mean over queries.

    Parameters
    ----------
    y_true, y_score, qid
        As in `ndcg_per_query`; queries without any grade above 0 are left out.

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
    _, first = np.unique(query[start[some]], return_index=True)
    found = [_first(int(rank[start[g]]), int(size[g]), int(right[g])) for g in some[first]]
    return _mean(np.array(found))


def expected_rank_utility_score(y_true: Any, y_score: Any, *, qid: Any, half_life: float = 5.0) -> float:
    r"""The expected utility of rankings, :math:`\sum_i y_i\, 2^{-(i - 1) / (h - 1)}` as a share of the best.

    A user looks at one row after the other, and at the one at place h with a chance of one half.

    Parameters
    ----------
    y_true, y_score, qid
        As in `ndcg_per_query`; queries without any grade above 0 are left out.
    half_life : float
        h, above 1.

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
    return _mean(_share(grades, z, query, lambda rank: np.exp2(-rank / (half_life - 1))))


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
    y, z = _checked(y_true, y_score)
    if y.dtype.kind not in "biuf" or not np.isfinite(y).all() or (y < 0).any():
        raise ValueError("y_true holds something else than numbers >= 0: grades are needed, 0 the lowest")
    ids = np.asarray(qid)
    if ids.shape != y.shape:
        raise ValueError(f"qid has shape {ids.shape}, but there are {len(y)} rows: give one query id a row")
    return y.astype(np.float64), z, np.unique(ids, return_inverse=True)[1]


def _whole(k: int | None) -> None:
    if k is not None and (k != int(k) or k < 1):
        raise ValueError(f"k={k!r}, but it must be a whole number >= 1, or None for all rows")


def _mean(found: NDArray) -> float:
    if not np.isfinite(found).any():
        raise ValueError("no query has a grade above 0, so that every ranking is as good as another")
    return float(np.nanmean(found))
