r"""Losses of pairs of rows: the area under the ROC curve and ordinal regression.

.. math:: R(z) = \sum_{y_i > y_j} p_{ij} \max(0,\, 1 - (z_i - z_j)), \qquad \sum_{y_i > y_j} p_{ij} = 1.

They are not sums over rows, but value and subgradient take O(n log n) with a sort, also for the smoothed
losses (algorithm 4 of Zhang, Saha and Vishwanathan, JMLR 13, 2012): in sorted order, the rows with which a
row forms active pairs are a range, and sums over ranges are differences of prefix sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.devices.gpu import as_cupy, from_cupy, on_stream_of, runs_kernels
from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array, Hessian, NDArray, PairBlock
from riskmin.losses.base import Loss
from riskmin.losses.hessian import pair_block_products
from riskmin.losses.labels import check_grades, check_signs
from riskmin.losses.thresholds import best_balanced_threshold
from riskmin.numerics.sorting import as_float64, prefix_sums, ranks_in_sorted, stable_argsort

ONE_CLASS_MESSAGE = "RocArea compares two classes, but all rows of one weigh 0: give it some weight"


def smoothed_pair_hinges(
    low: Array, p: Array, s: Array, q: Array, mu: float
) -> tuple[Any, Array, Array, Any]:
    r"""Return the smoothed hinge of all pairs of two sorted lists, its gradients in both, and the offset.

    .. math:: \sum_{ij} p_i q_j \max_{0 \le \beta \le 1} \beta (s_j - low_i) - \tfrac\mu2 \beta^2

    A pair has :math:`\beta > 0` if :math:`s_j > low_i`, and :math:`\beta = 1` if :math:`s_j > low_i + \mu`.
    Both gradients use the same comparisons of the same floating-point numbers, so that they belong to the
    same multipliers. The minorant offset is the sum of the terms :math:`\tfrac\mu2 \beta^2`.
    """
    xp = namespace(low)
    high = low + mu
    # over_i: number of s_j <= low_i + mu; under_j: number of low_i + mu < s_j (pairs with beta = 1)
    over, under = ranks_in_sorted(s, high, side="right"), ranks_in_sorted(high, s, side="left")
    mass, weight = prefix_sums(q), prefix_sums(p)
    # sums of beta over the pairs of a row, in either list
    beta, gamma = mass[-1] - mass[over], weight[under]
    offset = 0.0
    if mu:
        first, last = ranks_in_sorted(s, low, side="right"), ranks_in_sorted(low, s, side="left")
        h, (k, r), (m, t) = split_into_cells(mu, s, low)
        # pairs with 0 < beta < 1, beta = (s_j - low_i) / mu: the range of low_i may extend into the next
        # cell, where s_j - low_i = r_j - t_i + h; the range of s_j may begin in the cell before. next_cell
        # and same_cell are the indices at which the next cell, and the cell of s_j itself, begin.
        next_cell = xp.clip(ranks_in_sorted(s, h * (m + 1), side="left"), first, over)
        same_cell = xp.clip(ranks_in_sorted(low, h * k, side="left"), under, last)
        moments, second_moments = prefix_sums(q * r), prefix_sums(q * r * r)
        w0, w1, w2 = (sums[over] - sums[first] for sums in (mass, moments, second_moments))
        n0, n1 = (sums[over] - sums[next_cell] for sums in (mass, moments))
        # sums over the ranges of q (s_j - low_i)^2, then of q (s_j - low_i), from the moments of r
        square_sums = w2 - 2 * t * w1 + t * t * w0 + h * (2 * n1 + (h - 2 * t) * n0)
        offset = p @ (0.5 / mu * square_sums + 0.5 * mu * beta)
        beta = beta + (w1 - t * w0 + h * n0) / mu
        moments = prefix_sums(p * t)
        ramp = r * (weight[last] - weight[under]) - (moments[last] - moments[under])
        gamma = gamma + (ramp + h * (weight[same_cell] - weight[under])) / mu
    # relative to a central score: products of large numbers would cancel
    center = s[len(s) // 2]
    low, s = low - center, s - center
    # 0.0 - x: no negative zeros
    grad_low, grad_s = 0.0 - p * beta, q * gamma
    return grad_low @ low + grad_s @ s - offset, grad_low, grad_s, offset


def pair_list(
    parts: Iterator[tuple[Array, Array, Array, Array]], total: Any, limit: int
) -> tuple[NDArray, NDArray, NDArray] | None:
    """Return both rows and the weight of each pair of the parts; None for more than `limit` pairs."""
    listed: list[tuple[NDArray, NDArray, NDArray]] = []
    for above, p, below, q in parts:
        limit -= len(above) * len(below)
        if limit < 0:
            return None
        weights = (p[:, None] * q[None, :]).reshape(-1) / total
        listed.append((np.repeat(above, len(below)), np.tile(below, len(above)), weights))
    above, below, c = (np.concatenate(arrays) for arrays in zip(*listed, strict=True))
    return above, below, c


def split_into_cells(mu: float, *lists: Array) -> tuple[Any, ...]:
    """Return the cell width h and, for each list, the cell numbers k and remainders r, z = h k + r.

    Numbers that differ by up to mu are in the same or in adjacent cells. Sums of the remainders keep digits
    that sums of the numbers themselves lose if mu is small: divided by mu, that rounding error would change
    the multipliers notably and make their cut invalid.
    """
    # between 2 mu and 4 mu; a power of two makes the split exact
    h = 2.0 ** (math.frexp(mu)[1] + 1)
    cell_numbers = [namespace(z).floor(z / h) for z in lists]
    return h, *((k, z - h * k) for k, z in zip(cell_numbers, lists, strict=True))


def _pair_hinges_sum(
    z: Array, parts: Iterator[tuple[Array, Array, Array, Array]], mu: float
) -> tuple[Any, Array, Any]:
    """Return the sum of the hinges over the parts, its gradient and its minorant offset.

    A part is (rows above, weights, rows below, weights), both lists of rows sorted by z; it stands for all
    pairs of a row above and a row below.
    """
    value, offset, dz = 0.0, 0.0, namespace(z).zeros_like(z)
    for above, p, below, q in parts:
        part_value, grad_above, grad_below, part_offset = smoothed_pair_hinges(
            z[above] - 1, p, z[below], q, mu
        )
        value, offset = value + part_value, offset + part_offset
        dz[above] = dz[above] + grad_above
        dz[below] = dz[below] + grad_below
    return value, dz, offset


def _minority_lookup(z: Array, y: Array) -> tuple[Any, Array]:
    """Return the mean hinge over the pairs of two classes and its gradient: one sort, of the smaller class.

    Each row of the larger class is looked up among the sorted scores of the smaller one. The sums over pairs
    of a row are counts: of lower scores for a row that is looked up, and of such rows for a sorted one.
    """
    xp, positive = namespace(z), y > 0
    n_above = int(xp.count_nonzero(positive))
    n_below = len(z) - n_above
    if not n_above * n_below:
        raise ValueError(ONE_CLASS_MESSAGE)
    above = n_above <= n_below
    rows = xp.nonzero(positive if above else ~positive)[0]
    # a pair is active if s > low = z - 1: the same comparison of the same numbers for either class
    listed = z[rows] - int(above)
    order = stable_argsort(listed)
    rows, listed = rows[order], listed[order]
    many, counts, product = _active_pairs(z, y, listed, above)
    # rows with more than i sorted numbers before them, or with i at most
    before = xp.cumulative_sum(counts)[: len(rows)]
    few = xp.astype(n_below - before if above else before, z.dtype)
    share = (1 if above else -1) / (n_above * n_below)
    dz = share * many
    dz[rows] = -share * few
    return share * (product - few @ (listed - listed[len(rows) // 2])), dz


def _active_pairs(z: Array, y: Array, listed: Array, above: bool) -> tuple[Array, Array, Any]:
    """Return the active pairs of each row that is not listed; their counts by rank; and pairs times scores.

    `listed` are the sorted scores of the positives less 1 if `above`, else those of the negatives. Scores are
    relative to the middle of the listed ones.
    """
    if runs_kernels(z):
        from riskmin._cuda import lists

        with on_stream_of(z):
            found = lists.active_pairs(as_cupy(z), as_cupy(y), as_cupy(listed), above=above)
            many, counts, product = (from_cupy(a, z) for a in found)
            return many, counts, product
    xp, n = namespace(z), len(listed)
    x, skipped = z - int(not above), (y > 0) == above
    # the number of low < s, or of s <= low
    rank = ranks_in_sorted(listed, x, side="left" if above else "right")
    # rows of the sorted class are counted behind all ranks
    counts = xp.bincount(xp.where(skipped, n + 1, rank), minlength=n + 2)
    many = xp.astype(xp.where(skipped, 0, rank if above else n - rank), z.dtype)
    return many, counts, many @ (x - listed[n // 2])


def _pair_hinges_hessian(
    z: Array, parts: Iterator[tuple[Array, Array, Array, Array]], mu: float, total: Any
) -> Hessian:
    """Return the Hessian of `_pair_hinges_sum` / total.

    A pair with 0 < beta < 1 contributes p q / (mu total) times [[1, -1], [-1, 1]]: the diagonal has the row
    sums of W and W', and the pair blocks W and W' are subtracted.
    """
    xp, pair_blocks = namespace(z), []
    diagonal = xp.zeros_like(z)
    for above, p, below, q in parts:
        low, s = z[above] - 1, z[below]
        # the rows below with 0 < beta < 1 are a range: low_i < s_j <= low_i + mu
        first, last = ranks_in_sorted(s, low, side="right"), ranks_in_sorted(s, low + mu, side="right")
        pair_blocks.append(PairBlock(above, p / (mu * total), below, q, first, last))
        sums_above, sums_below = pair_block_products(pair_blocks[-1], xp.ones_like(z))
        diagonal[above] = diagonal[above] + sums_above
        diagonal[below] = diagonal[below] + sums_below
    return Hessian(diagonal, (), tuple(pair_blocks))


@dataclass(frozen=True)
class RocArea(Loss):
    r"""The mean hinge loss of pairs of a positive and a negative row, an upper bound of 1 - AUC,

    .. math:: R(z) = \frac{1}{n_+ n_-} \sum_{y_i > y_j} \max(0,\, 1 - (z_i - z_j)).

    With weights, a pair has the weight :math:`c_i c_j`. The loss does not depend on an intercept.

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.array([0.5, 2.0, 0.0]), np.array([1.0, 1.0, -1.0]), np.ones(3) / 3
    >>> value, dz = RocArea().value_grad(z, y, c)
    >>> round(float(value), 6), dz.tolist()
    (0.25, [-0.5, 0.0, 0.5])
    """

    separable = False
    task = "classification"
    formula = "mean of max(0, 1 - (z_i - z_j)) over y_i > y_j"
    shift_invariant = True
    check_labels = check_signs

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the weighted mean over pairs and a subgradient in z."""
        return self.smoothed_value_grad(z, y, c, 0.0)[:2]

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the mean of the smoothed hinges of pairs, its gradient, and the minorant offset."""
        xp, wide = namespace(z), as_float64(z)
        # arrays of NumPy are merged by compiled loops, which is faster than lookups
        if xp is not np and not mu and float(xp.min(c)) == float(xp.max(c)):
            value, dz = _minority_lookup(wide, y)
            return value, xp.astype(dz, z.dtype), 0.0
        value, dz, offset = _pair_hinges_sum(wide, self._parts(wide, y, as_float64(c)), mu)
        return value, xp.astype(dz, z.dtype), offset

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the Hessian of the smoothed loss: that of the pairs with multipliers between 0 and 1."""
        if not mu:
            return None
        wide = as_float64(z)
        return _pair_hinges_hessian(wide, self._parts(wide, y, as_float64(c)), mu, 1.0)

    def pairs(self, y: Array, c: Array, limit: int) -> tuple[NDArray, NDArray, NDArray] | None:
        """Return the pairs of a positive and a negative row, if there are at most `limit`."""
        return pair_list(self._parts(np.zeros(len(y)), y, c), 1.0, limit)

    def _parts(self, z: Array, y: Array, c: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Yield the pairs in the form that `_pair_hinges_sum` takes."""
        xp = namespace(z)
        above, below = xp.nonzero(y > 0)[0], xp.nonzero(y <= 0)[0]
        above, below = above[stable_argsort(z[above])], below[stable_argsort(z[below])]
        p, q = c[above], c[below]
        if not float(xp.sum(p)) * float(xp.sum(q)) > 0:
            raise ValueError(ONE_CLASS_MESSAGE)
        # normalized per class, so that the weights of all pairs have sum one
        yield above, p / xp.sum(p), below, q / xp.sum(q)

    def cutoff(self, z: Array, y: Array, c: Array) -> float:
        """Return the threshold on scores with the best balanced accuracy; the AUC itself defines none."""
        return best_balanced_threshold(z, y, c)


@dataclass(frozen=True)
class Ordinal(Loss):
    r"""Ordinal regression: the mean hinge loss of all pairs of rows of different grades,

    .. math:: R(z) = \sum_{y_i > y_j} C(y_i, y_j)\, c_i c_j \max(0,\, 1 - (z_i - z_j))
              \Big/ \sum_{y_i > y_j} C(y_i, y_j)\, c_i c_j.

    The labels are grades: any numbers, higher is better. For g grades it takes O(n log n) plus O(n log g), or
    O(n g) with costs. The loss does not depend on an intercept.

    Parameters
    ----------
    costs : (g, g) nested sequence, optional
        ``costs[k][h]`` is the cost of a pair of the k-th lowest and the h-th lowest grade, h < k; the other
        entries are ignored. By default all pairs have the same cost.

    References
    ----------
    T. Joachims, Training linear SVMs in linear time, KDD 2006.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.array([0.0, 1.5, 3.0]), np.array([1.0, 2.0, 3.0]), np.ones(3) / 3
    >>> value, _ = Ordinal().value_grad(z, y, c)
    >>> round(float(value), 6)  # all pairs have a margin of at least 1
    0.0
    >>> value, _ = Ordinal(costs=[[0], [1, 0], [2, 1, 0]]).value_grad(0.5 * z, y, c)
    >>> round(float(value), 6)  # adjacent grades have a margin of 0.75, and half of the costs
    0.125
    """

    costs: Any = None

    separable = False
    task = "ordinal"
    formula = "mean of max(0, 1 - (z_i - z_j)) over y_i > y_j"
    shift_invariant = True
    check_labels = check_grades

    def __post_init__(self) -> None:
        if self.costs is None:
            return
        try:
            rows = tuple(tuple(float(cost) for cost in row) for row in self.costs)
        except TypeError:  # a number instead of a nested sequence
            rows = ()
        below = [cost for k, row in enumerate(rows) for cost in row[:k]]
        long_enough = all(len(row) >= k for k, row in enumerate(rows))
        if not (long_enough and all(0 <= cost < math.inf for cost in below) and any(below)):
            raise ValueError(
                "costs needs one row per grade, costs[k][h] >= 0 for h < k, and one of them above 0"
            )
        object.__setattr__(self, "costs", rows)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the weighted mean over pairs and a subgradient in z."""
        return self.smoothed_value_grad(z, y, c, 0.0)[:2]

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the mean of the smoothed hinges of pairs, its gradient, and the minorant offset."""
        wide = as_float64(z)
        parts, total = self._parts(wide, y, as_float64(c))
        value, dz, offset = _pair_hinges_sum(wide, parts, mu)
        return value / total, namespace(z).astype(dz / total, z.dtype), offset / total

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the Hessian of the smoothed loss: that of the pairs with multipliers between 0 and 1."""
        if not mu:
            return None
        wide = as_float64(z)
        parts, total = self._parts(wide, y, as_float64(c))
        return _pair_hinges_hessian(wide, parts, mu, total)

    def pairs(self, y: Array, c: Array, limit: int) -> tuple[NDArray, NDArray, NDArray] | None:
        """Return the pairs of different grades, if there are at most `limit`."""
        return pair_list(*self._parts(np.zeros(len(y)), y, c), limit)

    def _parts(self, z: Array, y: Array, c: Array) -> tuple[Iterator[tuple[Array, Array, Array, Array]], Any]:
        """Return the pairs in the form that `_pair_hinges_sum` takes, and their total weight."""
        xp = namespace(z)
        grades, grade = xp.unique_inverse(y)
        rows = stable_argsort(z)
        if self.costs is None:
            by_grade = stable_argsort(y)
            parts = self._halves(rows, grade, c)
            # sum over rows of c_i times the weight of all rows of lower grades
            lower = ranks_in_sorted(y[by_grade], y[by_grade], side="left")
            total = c[by_grade] @ prefix_sums(c[by_grade])[lower]
        else:
            parts = self._grades(rows, grade, c)
            sums = xp.stack([xp.sum(c[grade == k]) for k in range(len(grades))])
            # sum_kh C(k, h) (weight of grade k) (weight of grade h)
            total = sums @ (self._table(sums) @ sums)
        if not float(total) > 0:
            raise ValueError(f"no pair of grades in y has a weight above 0: check {self!r} and the weights")
        return parts, total

    def _halves(self, rows: Array, grade: Array, c: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Yield the pairs of the upper with the lower half of the grades, then recursively of each half."""
        # rows stay sorted by z in each half: one sort serves all log g levels
        stack = [(rows, 0, int(grade.max()) + 1)]
        while stack:
            rows, lo, hi = stack.pop()
            if hi - lo > 1:
                midpoint = (lo + hi) // 2
                high = grade[rows] >= midpoint
                above, below = rows[high], rows[~high]
                stack += [(above, midpoint, hi), (below, lo, midpoint)]
                yield above, c[above], below, c[below]

    def _grades(self, rows: Array, grade: Array, c: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Yield the pairs of each grade with all lower ones, whose weights are multiplied by the costs."""
        levels = grade[rows]
        for k, cost in enumerate(self._table(c[: int(grade.max()) + 1])):
            # lower grades of cost 0 are left out
            above, below = rows[levels == k], rows[(levels < k) & (cost[levels] > 0)]
            if len(below):
                yield above, c[above], below, c[below] * cost[grade[below]]

    def _table(self, sums: Array) -> Array:
        """Return the costs as a lower triangular matrix in the array library of `sums` (one per grade)."""
        n_grades = len(sums)
        if len(self.costs) != n_grades:
            raise ValueError(
                f"costs has {len(self.costs)} rows, but y holds {n_grades} grades: give one row per grade"
            )
        table = np.array([[*row[:k], *[0.0] * (n_grades - k)] for k, row in enumerate(self.costs)])
        return as_array_like(table, sums)
