r"""Ranking losses: the rows of each query should be ranked in the order of their grades.

.. math:: R_q(z) = \max_\pi\; \Delta(\pi) + \frac{1}{P} \sum_{y_i > y_j,\ \pi\ puts\ j\ before\ i} (z_j - z_i)

with the P pairs of different grades of a query is an upper bound of the loss :math:`\Delta` of the ranking by
z, because in that ranking all terms of the sum are nonnegative. It is zero if the scores of each pair are so
far apart that no other ranking has a larger objective. With the positions :math:`p(d)` of the rows in
:math:`\pi`, and :math:`p^*(d)` in the ideal ranking in which rows of the same grade are in the order of z,
this is a linear assignment problem:

.. math:: R_q(z) = \max_\pi\; \Delta(\pi) + \frac{1}{P} \sum_d (p^*(d) - p(d))\, z_d,

because pairs of the same grade are in the order of z in the maximizing ranking and cancel. This is the loss
of Le and Smola (Direct optimization of ranking measures, 2007) with position weights that decrease linearly.
Other position weights are a parameter, see :mod:`riskmin.losses.nondecomposable.position_weights`: with them,
pairs of the same grade do not cancel, and differences of scores within a grade are penalized.

R is the mean over the queries that have different grades; the others are left out. The weight of a query is
the mean weight of its rows. Rows of the same query, grade and score get the same entry of the subgradient, so
that the result does not depend on the order of the rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.core import Array, NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.core.deadline import check_each, chunk_ranges
from riskmin.core.messages import check_whole
from riskmin.losses.base import Loss
from riskmin.losses.nondecomposable.by_query import (
    QueryLoss,
    QueryRows,
    check_nonnegative_grades,
    check_ranking_labels,
    check_relevance_labels,
    dynamic_programs,
    group_means,
    lexsort_rows,
)
from riskmin.losses.nondecomposable.grade_programs import best_places, can_be_enumerated
from riskmin.losses.nondecomposable.pairwise import split_into_cells
from riskmin.losses.nondecomposable.position_weights import (
    Weights,
    assigned_slopes,
    check_weights,
    position_weights,
    worst_places,
)
from riskmin.losses.nondecomposable.smoothed_rankings import smoothed_by_projection, smoothed_first_rank


class DiscountedLoss(QueryLoss):
    """A ranking loss with Delta = 1 - sum over positions of discount times gain, relative to the ideal."""

    weights: Any

    @abstractmethod
    def gains_and_discounts(self, q: QueryRows) -> tuple[Array, NDArray]:
        """Return the gains of the rows, up to a factor per query, and the discounts in NumPy."""

    def value_grad_of_queries(self, q: QueryRows, z: Array) -> tuple[Any, Array]:
        """Return the contribution of these queries to the mean, and a subgradient in z."""
        q = q if namespace(q.rows) is np or self._stays(q) else q.on_host()
        return _worst_rankings(q, z, *_normalized(q, *self.gains_and_discounts(q)), self.weights)

    def _stays(self, q: QueryRows) -> bool:
        """Whether rankings are found in the library of the labels: by a sort, or as there are few states."""
        discount = self.gains_and_discounts(q)[1]
        c = discount if self.weights is None else position_weights(self.weights, discount)
        by_sort = self.weights is not None and c is discount
        return by_sort or can_be_enumerated(q, int(np.count_nonzero((c != 0) | (discount != 0))))

    def smoothed_of_queries(self, q: QueryRows, z: Array, mu: float) -> tuple[Any, Array, Any]:
        """Return the contribution of these queries to the smoothed mean, its gradient and minorant offset."""
        if not self.can_be_smoothed:
            return super().smoothed_of_queries(q, z, mu)
        q = q.on_host()
        gain, discount = _normalized(q, *self.gains_and_discounts(q))
        value, slopes, offset = smoothed_by_projection(q, q.scores(z), gain, discount, mu)
        return value, q.scattered(slopes, z), offset

    @property
    def can_be_smoothed(self) -> bool:
        """Whether the weights of the positions are the discounts: a sort finds the maximum then."""
        return bool(self.weights == "discount")


@dataclass(frozen=True, repr=False)
class Ndcg(DiscountedLoss):
    r"""Normalized discounted cumulative gain of the top k positions, :math:`\Delta = 1 - DCG / DCG_{ideal}`,

    .. math:: DCG = \sum_{i \le k} \frac{2^{y_{\pi(i)}} - 1}{\log_2(i + 1)}, \qquad
              R_q(z) = \max_\pi\; \Delta(\pi) + \frac{1}{P} \sum_{\pi\ inverts\ y_i > y_j} (z_j - z_i),

    averaged over the queries q, with P the number of pairs of different grades. The labels are grades >= 0,
    and each row belongs to a query. The loss does not depend on an intercept. With few grades, it takes
    O(n log n) plus at most k^g steps per query of g grades; with many grades, O(m^3) per query of m rows.

    With `weights` :math:`c_i` of positions, the ranking loss of Teo et al., a linear assignment problem,

    .. math:: R_q(z) = \max_\pi\; \Delta(\pi) + \sum_i c_i\, (z_{\pi(i)} - z_i),

    for rows that are numbered by decreasing grade. It takes O(m^3) per query, less if it has
    few grades, and O(n log n) with "discount".

    Parameters
    ----------
    k : int
        The number of top positions that count.
    weights : PositionWeights, float or "discount", optional
        The weights :math:`c_i`; a number is the power of `PositionWeights`, and "discount" stands for the
        discounts :math:`1 / \log_2(i + 1)` of the metric. By default, inverted pairs have equal weights.

    References
    ----------
    Q. Le, A. Smola, Direct optimization of ranking measures, 2007. C. H. Teo, Q. Le, A. Smola,
    S. V. N. Vishwanathan, A scalable modular convex solver for regularized risk minimization, KDD 2007.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[2.0, 0], [0, 0], [0, 0], [1, 1], [0, 1]])  # grades, and numbers of queries
    >>> value, dz = Ndcg().value_grad(np.array([3.0, 0, 0, 0, 0]), y, np.ones(5) / 5)
    >>> round(float(value), 3), dz.round(3).tolist()  # half of 1 - 1 / log2(3), the cost of query 1
    (0.185, [0.0, 0.0, 0.0, -0.5, 0.5])
    >>> round(float(Ndcg(weights=0.5).value_grad(np.array([3.0, 0, 0, 0, 0]), y, np.ones(5) / 5)[0]), 3)
    0.185
    """

    k: int = 10
    weights: Weights = None

    formula = "mean of max over rankings of 1 - NDCG@k + lead"
    check_labels = check_nonnegative_grades

    def __post_init__(self) -> None:
        check_whole(self, "k")
        object.__setattr__(self, "weights", check_weights(self.weights))

    def gains_and_discounts(self, q: QueryRows) -> tuple[Array, NDArray]:
        """Return the gains 2^y - 1 and the discounts 1 / log2(i + 1) of the first k positions."""
        i = np.arange(1.0, q.max_rows + 1)
        # the gain 2^y - 1 over 2^(largest y of the query): 2^y may overflow, and only ratios matter
        xp, top = namespace(q.grade), q.grade[q.starts[:-1]][q.query]
        gain = -xp.exp2(q.grade - top) * xp.expm1(-math.log(2) * q.grade)
        return gain, np.where(i <= self.k, 1 / np.log2(i + 1), 0.0)


@dataclass(frozen=True, repr=False)
class ExpectedRankUtility(DiscountedLoss):
    r"""Expected rank utility: the utility of a position decreases exponentially with its rank,

    .. math:: \Delta = 1 - ERU / ERU_{ideal}, \qquad
              ERU = \sum_i y_{\pi(i)}\, 2^{-(i - 1) / (half\_life - 1)}, \qquad
              R_q(z) = \max_\pi\; \Delta(\pi) + \frac{1}{P} \sum_{\pi\ inverts\ y_i > y_j} (z_j - z_i),

    averaged over the queries q, with P the number of pairs of different grades. The labels are grades >= 0,
    and each row belongs to a query. The loss does not depend on an intercept. A query of m rows takes O(m^3),
    or less if it has few grades. With `weights`, it is a linear assignment problem as for `Ndcg`.

    Parameters
    ----------
    half_life : float
        The rank at which the utility is half of that of the first position; above 1.
    weights : PositionWeights, float or "discount", optional
        Weights of positions, as for `Ndcg`; "discount" stands for the powers of 2 of the metric.

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
    weights: Weights = None

    formula = "mean of max over rankings of 1 - utility + lead"
    check_labels = check_nonnegative_grades

    def __post_init__(self) -> None:
        if not 1 < self.half_life < math.inf:
            raise ValueError(f"ExpectedRankUtility needs a finite half_life > 1, not {self.half_life!r}")
        object.__setattr__(self, "weights", check_weights(self.weights))

    def gains_and_discounts(self, q: QueryRows) -> tuple[Array, NDArray]:
        """Return the grades, and powers of 2 that halve every half_life - 1 positions."""
        return q.grade, np.exp2(-np.arange(q.max_rows) / (self.half_life - 1))


@dataclass(frozen=True, repr=False)
class Mrr(QueryLoss):
    r"""Mean reciprocal rank: :math:`\Delta = 1 - 1 / r` for the rank r of the first relevant row,

    .. math:: R_q(z) = \max_\pi\; 1 - \frac{1}{r(\pi)} +
              \frac{1}{P} \sum_{\pi\ inverts\ y_i > y_j} (z_j - z_i),

    averaged over the queries q, with P the number of pairs of a relevant row (grade above 0) and an
    irrelevant one. Each row belongs to a query. The loss does not depend on an intercept. :math:`\Delta` is
    not a sum over positions; but for each r, the maximizing ranking has the r - 1 irrelevant rows of highest
    score first and all others in order, and a loop over r finds the maximum: O(n log n). With `weights` of
    positions as for `Ndcg`, it takes O(m^2) per query of m rows.

    Parameters
    ----------
    weights : PositionWeights, float or "discount", optional
        Weights of positions, as for `Ndcg`; "discount" stands for :math:`1 / i`.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([[1.0, 0], [0, 0]])
    >>> value, dz = Mrr().value_grad(np.array([0.25, 0.0]), y, np.ones(2) / 2)
    >>> float(value), dz.tolist()  # 1 / 2 for the second position, minus 0.25
    (0.25, [-1.0, 1.0])
    """

    weights: Weights = None

    formula = "mean of max over rankings of 1 - 1 / rank + lead"
    relevant = True
    check_labels = check_relevance_labels

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", check_weights(self.weights))

    def value_grad_of_queries(self, q: QueryRows, z: Array) -> tuple[Any, Array]:
        """Return the contribution of these queries to the mean, and a subgradient in z."""
        from riskmin._numba.sorting import ranked_lists  # Numba is imported with the first call

        q = q.on_host()
        s, irrelevant_starts = q.scores(z), q.group_starts[1:-1:2]
        # per query the relevant rows, then the irrelevant ones, both by decreasing score
        order = lexsort_rows(-s, -q.grade, q.query)
        # the number of irrelevant rows in front of the first relevant one, per query
        n_front = np.empty(len(irrelevant_starts), np.int64)
        if self.weights is None:
            ranked_lists.most_violating_first(
                s[order], q.starts, irrelevant_starts, 1 / q.pair_counts, n_front
            )
        else:
            c = position_weights(self.weights, 1 / np.arange(1.0, q.max_rows + 1))
            ranked_lists.most_violating_weighted_first(s[order], q.starts, irrelevant_starts, c, n_front)
        # irrelevant rows in front of the first relevant one, then all others
        behind = (q.grade == 1) | (np.arange(len(s)) >= (irrelevant_starts + n_front)[q.query])
        if self.weights is None:
            differences = _place_differences(q, s, order, behind)
        else:
            places = np.empty_like(q.position)
            places[lexsort_rows(-s[order], behind, q.query)] = q.position
            differences = assigned_slopes(q, s, order, places, c)
        gradient = q.weight[q.query] * differences
        return float(gradient @ s + q.weight @ (1 - 1 / (n_front + 1))), q.scattered(gradient, z)

    def smoothed_of_queries(self, q: QueryRows, z: Array, mu: float) -> tuple[Any, Array, Any]:
        """Return the contribution of these queries to the smoothed mean, its gradient and minorant offset."""
        if not self.can_be_smoothed:
            return super().smoothed_of_queries(q, z, mu)
        q = q.on_host()
        value, slopes, offset = smoothed_first_rank(q, q.scores(z), mu)
        return value, q.scattered(slopes, z), offset

    @property
    def can_be_smoothed(self) -> bool:
        """Whether pairs have equal weights."""
        return self.weights is None


@dataclass(frozen=True)
class PairwiseHinge(Loss):
    r"""The mean hinge loss of the pairs of rows of a query that have different grades,

    .. math:: R_q(z) = \sum_{y_i > y_j} c_i c_j \max(0,\, 1 - (z_i - z_j)) \Big/ \sum_{y_i > y_j} c_i c_j,

    with the weights :math:`c_i` of the rows, averaged over queries. The labels are grades (any numbers,
    higher is better), and each row belongs to a query. It takes O(n log n) plus O(n log g) for g grades. The
    loss does not depend on an intercept.

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
    task = "ranking"
    formula = "mean of max(0, 1 - (z_i - z_j)), by query"
    shift_invariant = True
    check_labels = check_ranking_labels

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the mean over queries and a subgradient in z."""
        return self.smoothed_value_grad(z, y, c, 0.0)[:2]

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the mean over queries of smoothed hinges, its gradient, and the minorant offset."""
        from riskmin._numba.sorting.ranked_lists import (
            query_pair_hinges,  # Numba is imported with the first call
        )

        q = QueryRows.from_labels(self, y, c).on_host()
        # exact scores, not centered: a shift would round them and move the breakpoints of the hinges
        s = to_numpy(z).astype(np.float64)[q.rows]
        order = lexsort_rows(s, q.query)
        # weights of the rows relative to the mean weight of their query
        row_weights = (
            to_numpy(c).astype(np.float64)[q.rows[order]] / np.where(q.mean > 0, q.mean, 1.0)[q.query]
        )
        h = split_into_cells(mu)[0] if mu else 1.0
        value, offset, pairs, dz = query_pair_hinges(
            s[order], row_weights, q.grade_ranks[order], q.starts, float(mu), h
        )
        # queries whose pairs have no weight are left out of the mean
        query_weight = np.where(pairs > 0, q.weight, 0.0)
        if not query_weight.sum() > 0:
            raise ValueError(
                "PairwiseHinge needs a pair of rows that both have weight: give more rows weight"
            )
        query_weight = query_weight / query_weight.sum() / np.where(pairs > 0, pairs, 1.0)
        return (
            float(query_weight @ value),
            replace(q, rows=q.rows[order]).scattered(dz * query_weight[q.query], z),
            float(query_weight @ offset),
        )

    def pairs(self, y: Array, c: Array, limit: int) -> tuple[NDArray, NDArray, NDArray] | None:
        """Return the pairs of different grades of a query, if queries have at most `limit` pairs of rows."""
        q, c = QueryRows.from_labels(self, y, c).on_host(), to_numpy(c)
        if int(q.sizes @ q.sizes) // 2 > limit:
            return None
        listed, total = [], 0.0
        for i, j, weight in zip(q.starts, q.starts[1:], q.weight, strict=False):
            grade, rows = q.grade[i:j], q.rows[i:j]
            above, below = np.nonzero(grade[:, None] > grade)
            products = c[rows[above]] * c[rows[below]]
            # queries whose pairs have no weight are left out of the mean
            if products.sum() > 0:
                listed.append((rows[above], rows[below], weight * products / products.sum()))
                total += weight
        if not listed:  # which the loss itself reports
            return None
        above, below, weights = (np.concatenate(arrays) for arrays in zip(*listed, strict=True))
        return above, below, weights / total


def _normalized(q: QueryRows, gain: Array, discount: NDArray) -> tuple[Array, NDArray]:
    """Return the gains, normalized such that the ideal ranking of each query has the sum 1, and discounts."""
    # in the order of decreasing grades, the position of a row is its ideal one
    ideal = as_array_like(discount, gain)[q.position]
    return gain / q.query_sums(ideal * gain)[q.query], discount


def _worst_rankings(
    q: QueryRows, z: Array, gain: Array, discount: NDArray, weights: Weights
) -> tuple[float, Array]:
    """Return value and subgradient of the loss with Delta = 1 - sum of discount times normalized gain."""
    s, discounts = q.scores(z), as_array_like(np.append(discount, 0.0), gain)
    # within a grade by decreasing score; grades stay in place
    order = lexsort_rows(-s, -q.grade, q.query)
    if weights is None:
        places = _worst_places(q, s[order], gain, discount)
        differences = _place_differences(q, s, order, places)
    else:
        c = position_weights(weights, discount)
        places = worst_places(q, s[order], gain, discount, c)
        differences = assigned_slopes(q, s, order, places, c)
    weight = q.weight[q.query]
    # Delta per row; place k, behind all discounted positions, has discount 0
    delta = (discounts[q.position] - discounts[places]) * gain
    return float(weight @ (differences * s + delta)), q.scattered(weight * differences, z)


def _worst_places(q: QueryRows, s: Array, gain: Array, discount: NDArray) -> Array:
    """Return the positions of the sorted rows in the maximizing rankings; k for positions without discount.

    Each query is solved by dynamic programming over the number of rows of each grade in front, or as a
    linear assignment problem of rows to positions, whichever takes fewer steps.
    """
    k = int(np.count_nonzero(discount))
    if namespace(s) is not np:
        return best_places(q, s, gain, discount[:k], None)
    linear_sum_assignment = scipy_module("optimize").linear_sum_assignment

    from riskmin._numba.sorting.ranked_lists import most_violating_places

    pair_weight = 1 / q.pair_counts
    blocks, steps, by_dp = dynamic_programs(q, k)
    size = np.diff(q.starts)
    places = np.full(len(s), k)
    # 8 elementary operations per step of dynamic programming
    for piece in chunk_ranges(0, len(by_dp), 8 * steps):
        most_violating_places(
            s, gain, q.group_starts, blocks, pair_weight, discount[:k], by_dp, *piece, places
        )
    # SciPy does not release the interpreter lock in this function: threads would not help
    for n in check_each(np.flatnonzero(~by_dp)):
        query_rows = slice(q.starts[n], q.starts[n + 1])
        # objective of putting a row (column) at a position (row of the matrix)
        score_terms = np.outer(-pair_weight[n] * np.arange(size[n]), s[query_rows])
        objective = score_terms - np.outer(discount[: size[n]], gain[query_rows])
        positions, chosen = linear_sum_assignment(objective, maximize=True)
        places[query_rows][chosen] = np.minimum(positions, k)
    return places


def _place_differences(q: QueryRows, s: Array, order: Array, front: Array) -> Array:
    """Return (p*(d) - p(d)) / P per row: ideal minus actual position, over the number of pairs.

    `order` sorts the rows by query, grade and score, which is the ideal ranking. `front` gives, in that
    order, the sort keys of the maximizing ranking; rows with equal keys are ranked by score.
    """
    xp = namespace(s)
    actual, ideal, front_of_row = (xp.empty_like(a) for a in (q.position, q.position, front))
    front_of_row[order] = front
    ideal[order] = q.position
    # positions in the maximizing ranking: by `front`, then by score
    actual[lexsort_rows(-s, front_of_row, q.query)] = q.position
    return group_means((ideal - actual) / q.pair_counts[q.query], order, q.query, q.grade, s)
