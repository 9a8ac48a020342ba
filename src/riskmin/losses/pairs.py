r"""Losses of pairs of rows: the area under the ROC curve, and ordinal regression.

.. math:: R(z) = \sum_{y_i > y_j} p_{ij} \max(0,\, 1 - (z_i - z_j)), \qquad \sum_{y_i > y_j} p_{ij} = 1.

They are no sums over rows, but a sort finds value and subgradient in O(n log n), and the smoothed ones
(algorithm 4 of Zhang, Saha and Vishwanathan, JMLR 13, 2012) too: in sorted order, the rows that a row makes
pairs with are a range, of which prefix sums tell the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import like, namespace
from riskmin.losses.bends import through
from riskmin.losses.cutoffs import best_balanced
from riskmin.losses.labels import check_grades, check_signs
from riskmin.sorting import order, prefix_sums, ranks, wider
from riskmin.types import Array, Bend, Window


def hinge_of_pairs(low: Array, p: Array, s: Array, q: Array, mu: float) -> tuple[Any, Array, Array, Any]:
    r"""The smoothed hinge of all pairs of two sorted lists, its slopes in both, and its lift.

    .. math:: \sum_{ij} p_i q_j \max_{0 \le \beta \le 1} \beta (s_j - low_i) - \tfrac\mu2 \beta^2

    A pair has :math:`\beta > 0` where :math:`s_j > low_i`, and :math:`\beta = 1` where
    :math:`s_j > low_i + \mu`. The same comparisons of the same numbers serve both slopes, so that they
    belong to the same multipliers. The lift is what the squares took off.
    """
    xp = namespace(low)
    high = low + mu
    over, under = ranks(s, high, side="right"), ranks(high, s, side="left")
    mass, weight = prefix_sums(q), prefix_sums(p)
    beta, gamma = mass[-1] - mass[over], weight[under]  # sums of multipliers, by row of either list
    lift = 0.0
    if mu:
        first, last = ranks(s, low, side="right"), ranks(low, s, side="left")
        h, (k, r), (m, t) = cells(mu, s, low)
        # from low on, a range reaches into the next cell, and down from s into the one before
        beyond = xp.clip(ranks(s, h * (m + 1), side="left"), first, over)
        here = xp.clip(ranks(low, h * k, side="left"), under, last)
        moment, square = prefix_sums(q * r), prefix_sums(q * r * r)
        w0, w1, w2 = (sums[over] - sums[first] for sums in (mass, moment, square))
        n0, n1 = (sums[over] - sums[beyond] for sums in (mass, moment))
        squares = w2 - 2 * t * w1 + t * t * w0 + h * (2 * n1 + (h - 2 * t) * n0)
        lift = p @ (0.5 / mu * squares + 0.5 * mu * beta)
        beta = beta + (w1 - t * w0 + h * n0) / mu
        moment = prefix_sums(p * t)
        ramp = r * (weight[last] - weight[under]) - (moment[last] - moment[under])
        gamma = gamma + (ramp + h * (weight[here] - weight[under])) / mu
    middle = s[len(s) // 2]  # far from zero, products would cancel
    low, s = low - middle, s - middle
    down, up = 0.0 - p * beta, q * gamma  # zeros without a sign
    return down @ low + up @ s - lift, down, up, lift


def cells(mu: float, *lists: Array) -> tuple[Any, ...]:
    """The width of cells, and of each list the numbers of the cells and the places within these.

    Differences of up to mu are differences of such places, and of one cell more at most. Sums of places keep
    digits that sums of the numbers themselves lose where mu is small: over mu, rounding would be no small
    change of the multipliers, and a cut made of them false.

    Examples
    --------
    >>> import numpy as np
    >>> h, (k, r) = cells(0.25, np.array([0.125, 7.25]))
    >>> float(h), k.tolist(), r.tolist()
    (1.0, [0.0, 7.0], [0.125, 0.25])
    """
    h = 2.0 ** (math.frexp(mu)[1] + 1)  # 2 mu to 4 mu; by powers of two, all of this is exact
    numbers = [namespace(z).floor(z / h) for z in lists]
    return h, *((k, z - h * k) for k, z in zip(numbers, lists, strict=True))


def _sum_of_hinges(
    z: Array, parts: Iterator[tuple[Array, Array, Array, Array]], mu: float
) -> tuple[Any, Array, Any]:
    """The hinges of all pairs of (rows, weights, lower rows, weights), each sorted by z, added up."""
    value, lift, dz = 0.0, 0.0, namespace(z).zeros_like(z)
    for above, p, below, q in parts:
        v, down, up, more = hinge_of_pairs(z[above] - 1, p, z[below], q, mu)
        value, lift = value + v, lift + more
        dz[above] = dz[above] + down
        dz[below] = dz[below] + up
    return value, dz, lift


def _bend_of_hinges(
    z: Array, parts: Iterator[tuple[Array, Array, Array, Array]], mu: float, total: Any
) -> Bend:
    """The second derivatives of `_sum_of_hinges` / total: of the pairs with multipliers between 0 and 1."""
    xp, windows = namespace(z), []
    diagonal = xp.zeros_like(z)
    for above, p, below, q in parts:
        low, s = z[above] - 1, z[below]
        first, last = ranks(s, low, side="right"), ranks(s, low + mu, side="right")
        windows.append(Window(above, p / (mu * total), below, q, first, last))
        here, there = through(windows[-1], xp.ones_like(z))
        diagonal[above] = diagonal[above] + here
        diagonal[below] = diagonal[below] + there
    return Bend(diagonal, (), tuple(windows))


@dataclass(frozen=True)
class RocArea:
    r"""The mean hinge of pairs of a positive and a negative row, above 1 less the area under the ROC curve,

    .. math:: R(z) = \frac{1}{n_+ n_-} \sum_{y_i > y_j} \max(0,\, 1 - (z_i - z_j)).

    A pair weighs :math:`c_i c_j`. An intercept changes nothing.

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
    smooth = False
    task = "classification"
    formula = "mean of max(0, 1 - (z_i - z_j)) over y_i > y_j"
    invariant = True
    check_labels = check_signs

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The weighted mean over pairs, and a subgradient in z."""
        return self.soft(z, y, c, 0.0)[:2]

    def soft(self, z: Array, y: Array, c: Array, mu: float) -> tuple[Any, Array, Any]:
        """The mean over pairs of smoothed hinges, its gradient, and its lift."""
        wide = wider(z)
        value, dz, lift = _sum_of_hinges(wide, self._parts(wide, y, wider(c)), mu)
        return value, namespace(z).astype(dz, z.dtype), lift

    def bend(self, z: Array, y: Array, c: Array, mu: float) -> Bend:
        """The second derivatives of the smoothed loss: of the pairs that are neither met nor missed."""
        wide = wider(z)
        return _bend_of_hinges(wide, self._parts(wide, y, wider(c)), mu, 1.0)

    def _parts(self, z: Array, y: Array, c: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        """The pairs, as `_sum_of_hinges` takes them."""
        xp = namespace(z)
        above, below = xp.nonzero(y > 0)[0], xp.nonzero(y <= 0)[0]
        above, below = above[order(z[above])], below[order(z[below])]
        p, q = c[above], c[below]
        if not float(xp.sum(p)) * float(xp.sum(q)) > 0:
            raise ValueError("RocArea compares two classes, but all rows of one weigh 0: give it some weight")
        yield above, p / xp.sum(p), below, q / xp.sum(q)

    def cutoff(self, z: Array, y: Array, c: Array) -> float:
        """The threshold on scores with the best balanced accuracy, since the area itself knows of none."""
        return best_balanced(z, y, c)


@dataclass(frozen=True)
class Ordinal:
    r"""Ordinal regression: the mean hinge of all pairs of rows of different grades,

    .. math:: R(z) = \sum_{y_i > y_j} C(y_i, y_j)\, c_i c_j \max(0,\, 1 - (z_i - z_j))
              \Big/ \sum_{y_i > y_j} C(y_i, y_j)\, c_i c_j.

    The labels are grades, any numbers of which a higher one is better. For g grades it takes O(n log n) and
    O(n log g) more, or O(n g) with costs. An intercept changes nothing.

    Parameters
    ----------
    costs : (g, g) nested sequence, optional
        ``costs[k][h]`` is how much a pair of the k-th lowest and the h-th lowest grade counts, h < k; the
        other entries do not matter. All pairs count alike by default.

    References
    ----------
    T. Joachims, Training linear SVMs in linear time, KDD 2006.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.array([0.0, 1.5, 3.0]), np.array([1.0, 2.0, 3.0]), np.ones(3) / 3
    >>> value, _ = Ordinal().value_grad(z, y, c)
    >>> round(float(value), 6)  # all pairs are a margin apart
    0.0
    >>> value, _ = Ordinal(costs=[[0], [1, 0], [2, 1, 0]]).value_grad(0.5 * z, y, c)
    >>> round(float(value), 6)  # the two pairs of neighbours lack a quarter each, and have half of the costs
    0.125
    """

    costs: Any = None

    separable = False
    smooth = False
    task = "ordinal"
    formula = "mean of max(0, 1 - (z_i - z_j)) over y_i > y_j"
    invariant = True
    check_labels = check_grades

    def __post_init__(self) -> None:
        if self.costs is None:
            return
        try:
            rows = tuple(tuple(float(cost) for cost in row) for row in self.costs)
        except TypeError:  # a number instead of a table
            rows = ()
        below = [cost for k, row in enumerate(rows) for cost in row[:k]]
        enough = all(len(row) >= k for k, row in enumerate(rows))
        if not (enough and all(0 <= cost < math.inf for cost in below) and any(below)):
            raise ValueError("costs needs a row a grade, costs[k][h] >= 0 for h < k, and one of them above 0")
        object.__setattr__(self, "costs", rows)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The weighted mean over pairs, and a subgradient in z."""
        return self.soft(z, y, c, 0.0)[:2]

    def soft(self, z: Array, y: Array, c: Array, mu: float) -> tuple[Any, Array, Any]:
        """The mean over pairs of smoothed hinges, its gradient, and its lift."""
        wide = wider(z)
        parts, total = self._parts(wide, y, wider(c))
        value, dz, lift = _sum_of_hinges(wide, parts, mu)
        return value / total, namespace(z).astype(dz / total, z.dtype), lift / total

    def bend(self, z: Array, y: Array, c: Array, mu: float) -> Bend:
        """The second derivatives of the smoothed loss: of the pairs that are neither met nor missed."""
        wide = wider(z)
        parts, total = self._parts(wide, y, wider(c))
        return _bend_of_hinges(wide, parts, mu, total)

    def _parts(self, z: Array, y: Array, c: Array) -> tuple[Iterator[tuple[Array, Array, Array, Array]], Any]:
        """The pairs, as `_sum_of_hinges` takes them, and what they weigh together."""
        xp = namespace(z)
        grades, grade = xp.unique_inverse(y)
        rows = order(z)
        if self.costs is None:
            by = order(y)
            parts = self._halves(rows, grade, c)
            total = c[by] @ prefix_sums(c[by])[ranks(y[by], y[by], side="left")]  # each row with all below
        else:
            parts = self._grades(rows, grade, c)
            sums = xp.stack([xp.sum(c[grade == k]) for k in range(len(grades))])
            total = sums @ (self._table(sums) @ sums)
        if not float(total) > 0:
            raise ValueError(f"no pair of grades in y has a weight above 0: look at {self!r} and the weights")
        return parts, total

    def _halves(self, rows: Array, grade: Array, c: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        """The upper half of the grades with the lower half, then each half within itself."""
        todo = [(rows, 0, int(grade.max()) + 1)]
        while todo:
            rows, lo, hi = todo.pop()
            if hi - lo > 1:
                middle = (lo + hi) // 2
                high = grade[rows] >= middle
                above, below = rows[high], rows[~high]
                todo += [(above, middle, hi), (below, lo, middle)]
                yield above, c[above], below, c[below]

    def _grades(self, rows: Array, grade: Array, c: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Each grade with all below it, which weigh as they cost."""
        levels = grade[rows]
        for k, cost in enumerate(self._table(c[: int(grade.max()) + 1])):
            above, below = rows[levels == k], rows[(levels < k) & (cost[levels] > 0)]
            if len(below):
                yield above, c[above], below, c[below] * cost[grade[below]]

    def _table(self, sums: Array) -> Array:
        """The costs as a matrix, zero above the diagonal, in the library of the sums of the grades."""
        many = len(sums)
        if len(self.costs) != many:
            raise ValueError(f"costs has {len(self.costs)} rows, but y holds {many} grades: give one a grade")
        table = np.array([[*row[:k], *[0.0] * (many - k)] for k, row in enumerate(self.costs)])
        return like(table, sums)
