r"""Weights of the positions of a ranking: the ranking losses of Teo et al. as linear assignment problems.

.. math:: R_q(z) = \max_\pi\; \Delta(\pi) + \sum_i c_i\, (z_{\pi(i)} - z_i), \qquad c_1 \ge c_2 \ge \dots,

for rows that are numbered by decreasing grade. In the ranking by z the sum is nonnegative, so that this is an
upper bound of :math:`\Delta`. Rows of the same grade could be numbered in any order: here the factor of
:math:`-z_i` is the mean of the weights over the positions of its grade. In the maximizing ranking these rows
are in the order of their scores, so differences of scores within a grade are penalized. The default of the
losses in :mod:`riskmin.losses.nondecomposable.ranking`, equal weights of pairs, has no such term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array, NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.core.deadline import check_each, chunk_ranges
from riskmin.core.messages import check_whole, is_number
from riskmin.losses.nondecomposable.by_query import QueryRows, dynamic_programs, group_means, lexsort_rows
from riskmin.losses.nondecomposable.grade_programs import best_places


@dataclass(frozen=True)
class PositionWeights:
    r"""Weights of the positions i = 1, 2, ... of a ranking, :math:`c_i = (i + shift)^{-power}`.

    They are a parameter of `Ndcg`, `Mrr` and `ExpectedRankUtility`.

    Parameters
    ----------
    power : float
        Above 0.
    shift : float
        At least 0.
    k : int, optional
        Truncate the weights: those of the positions after k are zero.

    References
    ----------
    C. H. Teo, Q. Le, A. Smola, S. V. N. Vishwanathan, A scalable modular convex solver for regularized risk
    minimization, KDD 2007, section 3.1. Q. Le, A. Smola, Direct optimization of ranking measures, 2007.

    Examples
    --------
    >>> PositionWeights(power=1, shift=1, k=2).values(3).tolist()
    [0.5, 0.3333333333333333, 0.0]
    """

    power: float = 0.5
    shift: float = 0.0
    k: int | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.power) and 0 < self.power < math.inf):
            raise ValueError(f"the weights of positions need a finite power > 0, not {self.power!r}")
        if not (is_number(self.shift) and 0 <= self.shift < math.inf):
            raise ValueError(f"PositionWeights needs a finite shift >= 0, not {self.shift!r}")
        check_whole(self, "k", optional=True)

    def values(self, n: int) -> NDArray:
        """Return the weights of the first n positions."""
        i = np.arange(1.0, n + 1)
        return np.where(i <= (n if self.k is None else self.k), (i + self.shift) ** -self.power, 0.0)


Weights = PositionWeights | Literal["discount"] | float | None
"""None: of pairs; a number: a power of the position; "discount": the discounts of the metric."""


def check_weights(weights: Any) -> PositionWeights | Literal["discount"] | None:
    """Return the `weights` of a ranking loss, with `PositionWeights` for a number."""
    if weights is None or isinstance(weights, PositionWeights):
        return weights
    if is_number(weights):
        return PositionWeights(power=weights)
    if weights == "discount":
        return "discount"
    raise ValueError(
        f"weights={weights!r}: give None, 'discount', a power of the position, or PositionWeights(...)"
    )


def position_weights(weights: Any, discount: NDArray) -> NDArray:
    """Return the weights of all positions as an array of the length of the discounts."""
    return discount if weights == "discount" else weights.values(len(discount))


def assigned_slopes(q: QueryRows, s: Array, order: Array, places: Array, c: NDArray) -> Array:
    """Return the slopes c_p(d) - mean c of the grade of d, in the order of the rows of q.

    `order` sorts the rows by query, grade and score, and `places` has their positions in that order.
    """
    slopes, weights = namespace(s).empty_like(s), as_array_like(c, s)
    slopes[order] = weights[places] - q.tie_means(weights[q.position])
    # rows of the same grade and score may be exchanged
    return group_means(slopes, order, q.query, q.grade, s)


def worst_places(q: QueryRows, s: Array, gain: Array, discount: NDArray, c: NDArray) -> Array:
    r"""Return the positions p of the rows that maximize :math:`\sum_d c_{p(d)} s_d - discount_{p(d)} gain_d`.

    The rows of a query are sorted by grade and score. A sort suffices where the weights are the discounts;
    else each query is solved by dynamic programming over its grades or as a linear assignment problem, O(m^3)
    for m rows, whichever takes fewer steps.
    """
    if c is discount:
        # discounts times (s - gain): the larger the difference, the earlier the position
        places = namespace(s).empty_like(q.position)
        places[lexsort_rows(-(s - gain), q.query)] = q.position
        return places
    # positions after k have neither weight nor discount, so that all of them are the same
    k = int(np.count_nonzero((c != 0) | (discount != 0)))
    if namespace(s) is not np:
        return namespace(s).clip(best_places(q, s, gain, discount[:k], c[:k]), 0, len(c) - 1)
    linear_sum_assignment = scipy_module("optimize").linear_sum_assignment

    from riskmin._numba.sorting.weighted_places import weighted_places

    blocks, steps, by_dp = dynamic_programs(q, k)
    places = np.full(len(s), min(k, len(c) - 1))
    # 4 elementary operations per step
    for piece in chunk_ranges(0, len(by_dp), 4 * steps):
        weighted_places(s, gain, q.group_starts, blocks, c[:k], discount[:k], by_dp, *piece, places)
    # SciPy does not release the interpreter lock in this function: threads would not help
    for n in check_each(np.flatnonzero(~by_dp)):
        rows = slice(q.starts[n], q.starts[n + 1])
        size = rows.stop - rows.start
        objective = np.outer(c[:size], s[rows]) - np.outer(discount[:size], gain[rows])
        positions, chosen = linear_sum_assignment(objective, maximize=True)
        places[rows][chosen] = positions
    return places
