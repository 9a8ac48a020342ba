r"""Losses of rankings: of the rows of each query, which are to be in the order of their grades.

.. math:: R_q(z) = \max_\pi\; \Delta(\pi) + \sum_i c_i z_{\pi(i)} - \sum_d \bar c_d z_d

bounds the loss :math:`\Delta` of the ranking by z from above, for any decreasing :math:`c_1 \ge c_2 \ge
\dots`: :math:`\pi(i)` is the row in place i, and :math:`\bar c_d` is the mean of the :math:`c_i` over the
places that rows of d's grade have in an ideal ranking. So rows of the same grade are all treated alike, and
:math:`R_q` is the mean over all ideal rankings of what Le and Smola (Direct optimization of ranking measures,
2007) define for one. R is the mean over the queries that have different grades; the others say nothing, and
are left out. A query weighs as its rows do on average. Rows of the same query, grade and score have the same
subgradient, so that it does not depend on the order of the rows.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from riskmin.arrays import like, to_numpy
from riskmin.losses.queries import Queries, averaged, check_gains, check_ranks, check_relevance
from riskmin.types import Array, NDArray


@dataclass(frozen=True)
class Ndcg:
    r"""Normalized discounted cumulative gain of the first k places, :math:`\Delta = 1 - DCG / DCG_{ideal}`,

    .. math:: DCG = \sum_{i \le k} \frac{2^{y_{\pi(i)}} - 1}{\log_2(i + 1)}, \qquad
              R_q(z) = \max_\pi\; \Delta(\pi) + \sum_{i \le k} c_i z_{\pi(i)} - \sum_d \bar c_d z_d,

    a mean over queries. The labels are grades >= 0, and each row has a query. An intercept changes nothing.

    Parameters
    ----------
    k : int
        How many places are looked at.
    decay : float, optional
        The weights are :math:`c_i = i^{-decay} - (k + 1)^{-decay}`, and the worst ranking is the solution of
        an assignment problem of k places for each query. By default they are the discounts :math:`1 /
        \log_2(i + 1)`, so that a sort finds it, in O(n log n).

    References
    ----------
    Q. Le, A. Smola, Direct optimization of ranking measures, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[2.0, 0], [0, 0], [0, 0], [1, 1], [0, 1]])  # grades, and numbers of queries
    >>> value, dz = Ndcg().value_grad(np.array([3.0, 0, 0, 0, 0]), y, np.ones(5) / 5)
    >>> round(float(value), 3), dz.round(3).tolist()  # half of what the second place of query 1 costs
    (0.185, [0.0, 0.0, 0.0, -0.185, 0.185])
    """

    k: int = 10
    decay: float | None = None

    separable = False
    smooth = False
    task = "ranking"
    formula = "mean of max over rankings of 1 - NDCG@k + lead"
    invariant = True
    check_labels = check_gains

    def __post_init__(self) -> None:
        if not (isinstance(self.k, numbers.Real) and self.k >= 1 and self.k == int(self.k)):
            raise ValueError(f"Ndcg needs k to be a whole number >= 1, not {self.k!r}")
        object.__setattr__(self, "k", int(self.k))  # from a name's settings it comes as a float
        _check_decay(self, self.decay)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The mean over queries, and a subgradient in z."""
        q = Queries.of(self, y, c)
        i = np.arange(1.0, q.most + 1)
        top = np.max(q.grade)  # 2^y may overflow, and only ratios matter
        gain = np.exp2(q.grade - top) - np.exp2(-top)
        discount = np.where(i <= self.k, 1 / np.log2(i + 1), 0.0)
        if self.decay is None:
            return _worst(q, z, gain, discount, None)
        return _worst(q, z, gain, discount, np.maximum(i**-self.decay - (self.k + 1) ** -self.decay, 0.0))


@dataclass(frozen=True)
class ExpectedRankUtility:
    r"""Expected rank utility, of which a reader's patience halves every few places,

    .. math:: \Delta = 1 - ERU / ERU_{ideal}, \qquad
              ERU = \sum_i y_{\pi(i)}\, 2^{-(i - 1) / (half\_life - 1)}, \qquad
              R_q(z) = \max_\pi\; \Delta(\pi) + \sum_i c_i z_{\pi(i)} - \sum_d \bar c_d z_d,

    a mean over queries. The labels are grades >= 0, and each row has a query. An intercept changes nothing.

    Parameters
    ----------
    half_life : float
        The place that half of the readers reach; above 1.
    decay : float, optional
        The weights are :math:`c_i = i^{-decay}`, and the worst ranking is the solution of an assignment
        problem of all rows for each query, O(m^3) for m rows. By default they are the discounts
        :math:`2^{-(i - 1) / (half\_life - 1)}`, so that a sort finds it, in O(n log n).

    References
    ----------
    J. Breese, D. Heckerman, C. Kadie, Empirical analysis of predictive algorithms for collaborative
    filtering, UAI 1998.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[1.0, 0], [0, 0]])
    >>> value, dz = ExpectedRankUtility(half_life=2).value_grad(np.zeros(2), y, np.ones(2) / 2)
    >>> float(value), dz.tolist()
    (0.5, [-0.5, 0.5])
    """

    half_life: float = 5.0
    decay: float | None = None

    separable = False
    smooth = False
    task = "ranking"
    formula = "mean of max over rankings of 1 - utility + lead"
    invariant = True
    check_labels = check_gains

    def __post_init__(self) -> None:
        if not 1 < self.half_life < math.inf:
            raise ValueError(f"ExpectedRankUtility needs a finite half_life > 1, not {self.half_life!r}")
        _check_decay(self, self.decay)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The mean over queries, and a subgradient in z."""
        q = Queries.of(self, y, c)
        i = np.arange(1.0, q.most + 1)
        discount = np.exp2((1 - i) / (self.half_life - 1))
        return _worst(q, z, q.grade, discount, None if self.decay is None else i**-self.decay)


@dataclass(frozen=True)
class Mrr:
    r"""Mean reciprocal rank: :math:`\Delta = 1 - 1 / r` for the rank r of the first relevant row,

    .. math:: R_q(z) = \max_\pi\; 1 - \frac{1}{r(\pi)} + \sum_i c_i z_{\pi(i)} - \sum_d \bar c_d z_d,

    a mean over queries. A row is relevant if its grade is above 0, and each row has a query. An intercept
    changes nothing. :math:`\Delta` is no sum over places; but for each r, the best ranking has the r - 1
    highest irrelevant rows in front and all others in order, and a walk over r finds the best of these.

    Parameters
    ----------
    decay : float
        The weights are :math:`c_i = i^{-decay}`.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[1.0, 0], [0, 0]])
    >>> value, dz = Mrr().value_grad(np.array([0.5, 0.0]), y, np.ones(2) / 2)
    >>> float(value), dz.tolist()  # 1 / 2 for second place, less half of 0.5
    (0.25, [-0.5, 0.5])
    """

    decay: float = 1.0

    separable = False
    smooth = False
    task = "ranking"
    formula = "mean of max over rankings of 1 - 1 / rank + lead"
    invariant = True
    check_labels = check_relevance

    def __post_init__(self) -> None:
        _check_decay(self, self.decay)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The mean over queries, and a subgradient in z."""
        from riskmin.kernels.ranking import worst_first  # Numba is imported with the first call

        q = Queries.of(self, y, c, relevant=True)
        s, weight = q.scores(z), np.arange(1.0, q.most + 1) ** -self.decay
        order = np.lexsort((-s, -q.grade, q.query))
        splits = q.tied[1:-1:2]  # where the irrelevant rows of each query start
        front = worst_first(s[order], q.starts, splits, weight)
        behind = np.ones(len(s), bool)
        behind[order] = (q.grade == 1) | (np.arange(len(s)) >= (splits + front)[q.query])
        place = np.empty_like(q.place)
        place[np.lexsort((-s, behind, q.query))] = q.place
        lead = averaged(weight[place], order, q.query, q.grade, s)
        slope = (lead - q.shared(weight[q.place])) * q.weight[q.query]
        return float(slope @ s + q.weight @ (1 - 1 / (front + 1))), _back(q.rows, slope, z)


@dataclass(frozen=True)
class PairwiseHinge:
    r"""The mean hinge of the pairs of rows of a query that have different grades,

    .. math:: R_q(z) = \sum_{y_i > y_j} c_i c_j \max(0,\, 1 - (z_i - z_j)) \Big/ \sum_{y_i > y_j} c_i c_j,

    for the weights :math:`c_i` of the rows, and the mean of that over queries. The labels are grades, any
    numbers of which a higher one is better, and each row has a query. O(n log n), and O(n log g) more for g
    grades. An intercept changes nothing.

    References
    ----------
    T. Joachims, Optimizing search engines using clickthrough data, KDD 2002.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[1.0, 0], [0, 0], [3, 1], [2, 1]])
    >>> value, dz = PairwiseHinge().value_grad(np.array([0.0, 0, 5, 0]), y, np.ones(4) / 4)
    >>> float(value), dz.tolist()
    (0.5, [-0.5, 0.5, 0.0, 0.0])
    """

    separable = False
    smooth = False
    task = "ranking"
    formula = "mean of max(0, 1 - (z_i - z_j)), by query"
    invariant = True
    check_labels = check_ranks

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The mean over queries, and a subgradient in z."""
        return self.soft(z, y, c, 0.0)[:2]

    def soft(self, z: Array, y: Array, c: Array, mu: float) -> tuple[Any, Array, Any]:
        """The same with smoothed hinges, its gradient, and its lift."""
        from riskmin.kernels.ranking import hinges_of_queries  # Numba is imported with the first call

        q = Queries.of(self, y, c)
        s = to_numpy(z).astype(np.float64)[q.rows]  # to the last bit: a shift would move the kinks
        order = np.lexsort((s, q.query))
        weights = to_numpy(c).astype(np.float64)[q.rows[order]] / np.where(q.mean > 0, q.mean, 1.0)[q.query]
        found = hinges_of_queries(s[order], weights, q.ranks[order], q.starts, float(mu))
        value, lift, pairs, dz = found
        each = np.where(pairs > 0, q.weight, 0.0)
        if not each.sum() > 0:
            raise ValueError(
                "PairwiseHinge finds no pair of rows that both have weight: give more rows weight"
            )
        each = each / each.sum() / np.where(pairs > 0, pairs, 1.0)
        return float(each @ value), _back(q.rows[order], dz * each[q.query], z), float(each @ lift)


def _check_decay(loss: object, decay: float | None) -> None:
    if decay is not None and not 0 < decay < math.inf:
        raise ValueError(f"{type(loss).__name__} needs a finite decay > 0, not {decay!r}")


def _worst(
    q: Queries, z: Array, gain: NDArray, discount: NDArray, weight: NDArray | None
) -> tuple[float, Array]:
    """The worst rankings for the loss of gains and discounts, an ideal ranking's sum of which is 1."""
    s, ideal = q.scores(z), discount[q.place]
    gain = gain / q.total(ideal * gain)[q.query]
    if weight is None:  # c_i z - D_i g = D_i (z - g): sorted lists have the largest sum of products
        weight, key = discount, gain - s
        order, place = np.lexsort((key, q.query)), np.empty_like(q.place)
        place[order] = q.place
        lost = lead = averaged(discount[place], order, q.query, key)
    else:
        order = np.lexsort((-s, -q.grade, q.query))
        place = _assigned(q, s, gain, discount, weight, order)
        lost, lead = discount[place], averaged(weight[place], order, q.query, q.grade, s)
    slope, each = lead - q.shared(weight[q.place]), q.weight[q.query]
    return float(each @ (slope * s + (ideal - lost) * gain)), _back(q.rows, slope * each, z)


def _assigned(
    q: Queries, s: NDArray, gain: NDArray, discount: NDArray, weight: NDArray, order: NDArray
) -> NDArray:
    """The places of the rows in each query's best assignment of c_i z - D_i g.

    Places without discount and weight are all the same, and of the rows of a grade those of the highest
    scores are in the first places: only k of each grade can be in the k places that count.
    """
    k = int(np.count_nonzero((discount > 0) | (weight > 0)))
    rows = order[np.arange(len(s)) - np.repeat(q.tied[:-1], np.diff(q.tied)) < k]
    ends = np.searchsorted(q.query[rows], np.arange(len(q.starts)))
    place = np.full(len(s), min(k, q.most - 1))
    # SciPy holds the interpreter's lock meanwhile, so threads would not help
    for (start, end), size in zip(pairwise(ends), np.diff(q.starts), strict=True):
        here, few = rows[start:end], min(k, int(size))
        total = np.outer(weight[:few], s[here]) - np.outer(discount[:few], gain[here])
        at, chosen = linear_sum_assignment(total, maximize=True)
        place[here[chosen]] = at
    return place


def _back(rows: NDArray, slope: NDArray, z: Array) -> Array:
    """The slopes of the rows, and zero for all others, as z is."""
    dz = np.zeros(len(z))
    dz[rows] = slope
    return dz.astype(z.dtype) if isinstance(z, np.ndarray) else like(dz, z)
