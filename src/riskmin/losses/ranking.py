r"""Losses of rankings: of the rows of each query, which are to be in the order of their grades.

.. math:: R_q(z) = \max_\pi\; \Delta(\pi) + \frac{1}{P} \sum_{y_i > y_j,\ \pi\ puts\ j\ before\ i} (z_j - z_i)

for the P pairs of different grades bounds the loss :math:`\Delta` of the ranking by z from above, as that has
all of its pairs in the order of z. It is zero where each pair is so far apart that no wrong ranking pays.
With the places :math:`p(d)` of the rows in :math:`\pi`, and :math:`p^*(d)` in the ideal ranking in which rows
of the same grade are in the order of z, this is a linear assignment:

.. math:: R_q(z) = \max_\pi\; \Delta(\pi) + \frac{1}{P} \sum_d (p^*(d) - p(d))\, z_d,

since pairs of the same grade in the order of z, which the best ranking has, cancel. This is the loss of Le
and Smola (Direct optimization of ranking measures, 2007) with weights of places that fall by the same from
each to the next. With other weights, such pairs do not cancel, and any spread of scores within a grade costs:
where most rows have the same grade, the best w is then zero.

R is the mean over the queries that have different grades; the others say nothing, and are left out. A query
weighs as its rows do on average. Rows of the same query, grade and score have the same slope, so that it does
not depend on the order of the rows.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import like, to_numpy
from riskmin.blas import scipy
from riskmin.deadline import checking, pieces
from riskmin.losses.pairs import cells
from riskmin.losses.queries import Queries, arranged, averaged, check_gains, check_ranks, check_relevance
from riskmin.types import Array, NDArray

TRY = 8
"""Elementary operations of a step of dynamic programming."""
FEW, MOST = 2**12, 2**20
"""Dynamic programming is for queries of less than FEW or m^3 steps, and for tables of less than MOST."""


@dataclass(frozen=True)
class Ndcg:
    r"""Normalized discounted cumulative gain of the first k places, :math:`\Delta = 1 - DCG / DCG_{ideal}`,

    .. math:: DCG = \sum_{i \le k} \frac{2^{y_{\pi(i)}} - 1}{\log_2(i + 1)}, \qquad
              R_q(z) = \max_\pi\; \Delta(\pi) + \frac{1}{P} \sum_{\pi\ inverts\ y_i > y_j} (z_j - z_i),

    a mean over queries q with their P pairs of different grades. The labels are grades >= 0, and each row has
    a query. An intercept changes nothing. With few grades, it takes O(n log n) and k^g steps or less for each
    query of g grades; with many, O(m^3) for a query of m rows.

    Parameters
    ----------
    k : int
        How many places are looked at.

    References
    ----------
    Q. Le, A. Smola, Direct optimization of ranking measures, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[2.0, 0], [0, 0], [0, 0], [1, 1], [0, 1]])  # grades, and numbers of queries
    >>> value, dz = Ndcg().value_grad(np.array([3.0, 0, 0, 0, 0]), y, np.ones(5) / 5)
    >>> round(float(value), 3), dz.round(3).tolist()  # half of what the second place of query 1 costs
    (0.185, [0.0, 0.0, 0.0, -0.5, 0.5])
    """

    k: int = 10

    separable = False
    smooth = False
    task = "ranking"
    formula = "mean of max over rankings of 1 - NDCG@k + lead"
    invariant = True
    relevant = False
    check_labels = check_gains

    def __post_init__(self) -> None:
        if not (isinstance(self.k, numbers.Real) and self.k >= 1 and self.k == int(self.k)):
            raise ValueError(f"Ndcg needs k to be a whole number >= 1, not {self.k!r}")
        object.__setattr__(self, "k", int(self.k))  # from a name's settings it comes as a float

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The mean over queries, and a subgradient in z."""
        return self.at(Queries.of(self, y, c), z)

    def at(self, q: Queries, z: Array) -> tuple[Any, Array]:
        """The same of some queries: their part of the mean."""
        i = np.arange(1.0, q.most + 1)
        top = q.grade[q.starts[:-1]][q.query]  # 2^y may overflow, and only ratios within a query matter
        gain = -np.exp2(q.grade - top) * np.expm1(-math.log(2) * q.grade)
        return _worst(q, z, gain, np.where(i <= self.k, 1 / np.log2(i + 1), 0.0))


@dataclass(frozen=True)
class ExpectedRankUtility:
    r"""Expected rank utility, where the patience of readers halves every few places,

    .. math:: \Delta = 1 - ERU / ERU_{ideal}, \qquad
              ERU = \sum_i y_{\pi(i)}\, 2^{-(i - 1) / (half\_life - 1)}, \qquad
              R_q(z) = \max_\pi\; \Delta(\pi) + \frac{1}{P} \sum_{\pi\ inverts\ y_i > y_j} (z_j - z_i),

    a mean over queries q with their P pairs of different grades. The labels are grades >= 0, and each row has
    a query. An intercept changes nothing. A query of m rows takes O(m^3), or less if it has few grades.

    Parameters
    ----------
    half_life : float
        The place that half of the readers reach; above 1.

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
    (0.5, [-1.0, 1.0])
    """

    half_life: float = 5.0

    separable = False
    smooth = False
    task = "ranking"
    formula = "mean of max over rankings of 1 - utility + lead"
    invariant = True
    relevant = False
    check_labels = check_gains

    def __post_init__(self) -> None:
        if not 1 < self.half_life < math.inf:
            raise ValueError(f"ExpectedRankUtility needs a finite half_life > 1, not {self.half_life!r}")

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The mean over queries, and a subgradient in z."""
        return self.at(Queries.of(self, y, c), z)

    def at(self, q: Queries, z: Array) -> tuple[Any, Array]:
        """The same of some queries: their part of the mean."""
        return _worst(q, z, q.grade, np.exp2(-np.arange(q.most) / (self.half_life - 1)))


@dataclass(frozen=True)
class Mrr:
    r"""Mean reciprocal rank: :math:`\Delta = 1 - 1 / r` for the rank r of the first relevant row,

    .. math:: R_q(z) = \max_\pi\; 1 - \frac{1}{r(\pi)} +
              \frac{1}{P} \sum_{\pi\ inverts\ y_i > y_j} (z_j - z_i),

    a mean over queries q with their P pairs of a relevant row, of a grade above 0, and another. Each row
    has a query. An intercept changes nothing. :math:`\Delta` is no sum over places; but for each r, the worst
    ranking has the r - 1 highest irrelevant rows in front and all others in order, and a walk over r finds
    the worst of these: O(n log n).

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[1.0, 0], [0, 0]])
    >>> value, dz = Mrr().value_grad(np.array([0.25, 0.0]), y, np.ones(2) / 2)
    >>> float(value), dz.tolist()  # 1 / 2 for second place, less 0.25
    (0.25, [-1.0, 1.0])
    """

    separable = False
    smooth = False
    task = "ranking"
    formula = "mean of max over rankings of 1 - 1 / rank + lead"
    invariant = True
    relevant = True
    check_labels = check_relevance

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The mean over queries, and a subgradient in z."""
        return self.at(Queries.of(self, y, c, relevant=True), z)

    def at(self, q: Queries, z: Array) -> tuple[Any, Array]:
        """The same of some queries: their part of the mean."""
        from riskmin.kernels.ranking import worst_first  # Numba is imported with the first call

        s, splits = q.scores(z), q.tied[1:-1:2]  # where the irrelevant rows of each query start
        order = arranged(-s, -q.grade, q.query)
        front = np.empty(len(splits), np.int64)
        worst_first(s[order], q.starts, splits, 1 / q.pairs, front)
        behind = (q.grade == 1) | (np.arange(len(s)) >= (splits + front)[q.query])
        slope = _slopes(q, s, order, behind)
        each = q.weight[q.query] * slope
        return float(each @ s + q.weight @ (1 - 1 / (front + 1))), _back(q.rows, each, z)


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
        order = arranged(s, q.query)
        weights = to_numpy(c).astype(np.float64)[q.rows[order]] / np.where(q.mean > 0, q.mean, 1.0)[q.query]
        h = cells(mu)[0] if mu else 1.0
        found = hinges_of_queries(s[order], weights, q.ranks[order], q.starts, float(mu), h)
        value, lift, pairs, dz = found
        each = np.where(pairs > 0, q.weight, 0.0)
        if not each.sum() > 0:
            raise ValueError(
                "PairwiseHinge finds no pair of rows that both have weight: give more rows weight"
            )
        each = each / each.sum() / np.where(pairs > 0, pairs, 1.0)
        return float(each @ value), _back(q.rows[order], dz * each[q.query], z), float(each @ lift)


def _worst(q: Queries, z: Array, gain: NDArray, discount: NDArray) -> tuple[float, Array]:
    """The worst rankings for the loss of gains and discounts, an ideal ranking's sum of which is 1."""
    s, ideal = q.scores(z), discount[q.place]
    gain = gain / q.total(ideal * gain)[q.query]
    order = arranged(-s, -q.grade, q.query)  # rows of a grade are where they were: only s has moved
    front = _front(q, s[order], gain, discount)
    slope, each = _slopes(q, s, order, front), q.weight[q.query]
    lost = (ideal - np.append(discount, 0.0)[front]) * gain
    return float(each @ (slope * s + lost)), _back(q.rows, each * slope, z)


def _front(q: Queries, s: NDArray, gain: NDArray, discount: NDArray) -> NDArray:
    """The places of the sorted rows in the worst rankings, as far as they have a discount; else the next.

    Either by dynamic programming over the numbers of rows of each grade that are in front, or by an
    assignment of rows to places, whichever takes fewer steps.
    """
    linear_sum_assignment, gammaln = scipy("optimize").linear_sum_assignment, scipy("special").gammaln

    from riskmin.kernels.ranking import worst_places

    k, share = int(np.count_nonzero(discount)), 1 / q.pairs
    blocks = np.searchsorted(q.tied, q.starts)
    table = np.add.reduceat(np.log(np.minimum(np.diff(q.tied), k) + 1.0), blocks[:-1])
    grades, size = np.diff(blocks), np.diff(q.starts)
    simplex = (
        gammaln(np.minimum(k, size) + grades + 1) - gammaln(np.minimum(k, size) + 1) - gammaln(grades + 1)
    )
    steps = np.minimum(table, simplex) + np.log(grades)
    few = (steps < np.maximum(3 * np.log(size), math.log(FEW))) & (table < math.log(MOST))
    front = np.full(len(s), k)
    for piece in pieces(0, len(few), TRY * float(np.exp(steps[few]).sum())):
        worst_places(s, gain, q.tied, blocks, share, discount[:k], few, *piece, front)
    # SciPy holds the interpreter's lock meanwhile, so threads do not help
    for n in checking(np.flatnonzero(~few)):
        here = slice(q.starts[n], q.starts[n + 1])
        places = np.arange(size[n])
        gains = np.outer(-share[n] * places, s[here]) - np.outer(discount[: size[n]], gain[here])
        at, chosen = linear_sum_assignment(gains, maximize=True)
        front[here][chosen] = np.minimum(at, k)
    return front


def _slopes(q: Queries, s: NDArray, order: NDArray, front: NDArray) -> NDArray:
    """By how many places rows lie behind where they belong, over the number of pairs.

    The order sorts them by query, grade and score; front says, in that order, which are before others.
    """
    place, ahead = np.empty_like(q.place), np.empty_like(front)
    ahead[order] = front
    best = place.copy()
    best[order] = q.place
    place[arranged(-s, ahead, q.query)] = q.place
    return averaged((best - place) / q.pairs[q.query], order, q.query, q.grade, s)


def _back(rows: NDArray, slope: NDArray, z: Array) -> Array:
    """The slopes of the rows, and zero for all others, as z is."""
    dz = np.zeros(len(z))
    dz[rows] = slope
    return dz.astype(z.dtype) if isinstance(z, np.ndarray) else like(dz, z)
