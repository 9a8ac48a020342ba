r"""Losses of the contingency table: break-even point, F-beta, precision and recall at k.

.. math:: R(z) = \max_{y'} \Delta(y', y) + \tfrac1n \sum_i z_i (y'_i - y_i)

bounds the measure :math:`\Delta` of the predicted signs from above (Joachims, ICML 2005). A table is known by
its misses and its alarms, and the best labelling with so many of them misses the lowest positive scores and
is alarmed by the highest negative ones, so a sort finds it.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import like, namespace
from riskmin.losses.cutoffs import best_f_beta, nearest
from riskmin.losses.entropic import soft_by_entropy
from riskmin.losses.labels import check_signs
from riskmin.sorting import order, prefix_sums, wider
from riskmin.types import Array, NDArray


def check_equal(loss: object, c: Array) -> None:
    """Raise where rows weigh differently: a table counts them."""
    xp = namespace(c)
    if float(xp.max(c)) > float(xp.min(c)) * (1 + 1e-6):
        raise ValueError(
            f"{type(loss).__name__} counts rows, so all must weigh the same: fit without sample_weight and "
            "class_weight, or use the loss 'roc_area', which takes weights"
        )


@dataclass(frozen=True)
class Sorted:
    """Positives, lowest score first, and negatives, highest first, with the sums of their first so many."""

    z: Array
    above: Array
    below: Array
    low: Array
    high: Array
    tops: Array
    """The scores of the negatives, highest first."""

    @classmethod
    def of(cls, loss: object, z: Array, y: Array, c: Array) -> Sorted:
        check_equal(loss, c)
        xp = namespace(z)
        wide = wider(z)
        above, below = xp.nonzero(y > 0)[0], xp.nonzero(y <= 0)[0]
        above, below = above[order(wide[above])], below[order(-wide[below])]
        tops = wide[below]
        return cls(z, above, below, prefix_sums(wide[above]), prefix_sums(tops), tops)

    def gain(self, misses: Any, alarms: Any) -> Array:
        """sum_i z_i (y'_i - y_i) / n of the best labelling with so many misses and alarms."""
        return 2 / len(self.z) * (self.high[alarms] - self.low[misses])

    def number(self, count: Array) -> Array:
        """Counts in float64: torch divides whole numbers in float32."""
        return namespace(count).astype(count, self.low.dtype)

    def slopes(self, misses: int, alarms: int) -> Array:
        """The subgradient of that labelling."""
        dz = namespace(self.z).zeros_like(self.z)
        dz[self.above[:misses]] = -2 / len(self.z)
        dz[self.below[:alarms]] = 2 / len(self.z)
        return dz


@dataclass(frozen=True)
class FBeta:
    r"""The F measure of precision and recall,

    .. math:: \Delta = 1 - \frac{(1 + \beta^2)\, hits}{(1 + \beta^2)\, hits + \beta^2\, misses + alarms}.

    For each number of misses the bound is concave in the alarms, so that the best number of them is bisected:
    O(n log n), most of it for the sort. Its smoothed form is that of a distribution over labellings, O(n^2).

    Parameters
    ----------
    beta : float
        How much more recall counts than precision, above 0; 1 is the F1 score.

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> import numpy as np
    >>> z, y = np.zeros(4), np.array([1.0, 1.0, -1.0, -1.0])
    >>> value, _ = FBeta().value_grad(z, y, np.ones(4) / 4)
    >>> float(value)  # nothing is known: all may be missed
    1.0
    """

    beta: float = 1.0

    separable = False
    smooth = False
    task = "classification"
    formula = "max over y' of 1 - F_beta + sum z (y' - y) / n"
    check_labels = check_signs

    def __post_init__(self) -> None:
        if not (self.beta > 0 and 0 < self.beta * self.beta < math.inf):
            raise ValueError(f"FBeta needs a beta > 0 whose square is a number, not {self.beta!r}")

    def cutoff(self, z: Array, y: Array, c: Array) -> float:
        """The threshold on scores for the largest F-beta of the rows above it."""
        return best_f_beta(z, y, self.beta)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The loss of the worst labelling, and a subgradient in z."""
        xp, s = namespace(z), Sorted.of(self, z, y, c)
        misses = counts(s.above, 0, len(s.above))
        hits = (1 + self.beta**2) * s.number(len(s.above) - misses)
        size = hits + self.beta**2 * s.number(misses)
        more = 2 / len(z) * s.tops  # what one alarm more gains, beside the measure
        alarms, most = xp.zeros_like(misses), xp.zeros_like(misses) + len(s.below)
        while bool(xp.any(alarms < most)):  # the first number of alarms that one more does not better
            mid = xp.minimum((alarms + most) // 2, most - 1)
            now = size + mid
            rises = (hits / (now * (now + 1)) + more[mid] > 0) & (alarms < most)
            alarms, most = xp.where(rises, mid + 1, alarms), xp.where(rises, most, xp.maximum(mid, alarms))
        values = 1 - hits / (size + alarms) + s.gain(misses, alarms)
        best = int(xp.argmax(values))
        return values[best], s.slopes(best, int(alarms[best]))

    def tables(self, n_above: int, n_below: int) -> tuple[NDArray, NDArray, NDArray]:
        """The misses, the alarms and the measure of each table there is."""
        misses, alarms = (a.ravel() for a in np.indices((n_above + 1, n_below + 1)))
        hits = (1 + self.beta**2) * (n_above - misses)
        return misses, alarms, 1 - hits / (hits + self.beta**2 * misses + alarms)

    def soft(self, z: Array, y: Array, c: Array, mu: float) -> tuple[Any, Array, Any]:
        """The loss smoothed by entropy, its gradient, and its lift: O(n^2), for a few thousand rows."""
        check_equal(self, c)
        return soft_by_entropy(self, z, y, mu)


@dataclass(frozen=True)
class PrecisionAtK:
    r"""Precision among the k highest scores, :math:`\Delta = 1 - hits / k` for labellings with k positives.

    The true labels count as a labelling too, of :math:`\Delta = 0`, so that the loss is never negative. It
    bounds the measure where k is the number of positives. For other k it is Joachims's loss all the same, but
    the true labels are not among those that it compares, and it only asks that positives score high:
    `RocArea` is then often the better choice, and a validation set decides.

    Parameters
    ----------
    k : int
        How many rows are looked at; no more than there are.

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> import numpy as np
    >>> z, y = np.array([2.0, 1.0, -1.0]), np.array([-1.0, 1.0, 1.0])
    >>> value, _ = PrecisionAtK(k=1).value_grad(z, y, np.ones(3) / 3)
    >>> round(float(value), 6)  # the first is none, and the lead is 2 / 3 of 2 - 1 - (-1)
    2.333333
    """

    k: int = 10

    separable = False
    smooth = False
    task = "classification"
    counted = True
    formula = "max over y' of 1 - hits / k + sum z (y' - y) / n"
    check_labels = check_signs

    def __post_init__(self) -> None:
        if not (isinstance(self.k, numbers.Real) and self.k >= 1 and self.k == int(self.k)):
            raise ValueError(f"{type(self).__name__} needs k to be a whole number >= 1, not {self.k!r}")
        object.__setattr__(self, "k", int(self.k))  # from a name's settings it comes as a float

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The loss of the worst labelling, and a subgradient in z."""
        xp, s = namespace(z), Sorted.of(self, z, y, c)
        hits = counts(s.above, *self._hits(len(s.above), len(s.below)))
        values = 1 - s.number(hits) / self._most(len(s.above)) + s.gain(len(s.above) - hits, self.k - hits)
        best = int(xp.argmax(values))
        if not float(values[best]) > 0:
            return 0.0 * values[best], xp.zeros_like(z)
        found = int(hits[best])
        return values[best], s.slopes(len(s.above) - found, self.k - found)

    def cutoff(self, z: Array, y: Array, c: Array) -> float:
        """The threshold on scores that k rows are above."""
        return nearest(z, self.k)

    def tables(self, n_above: int, n_below: int) -> tuple[NDArray, NDArray, NDArray]:
        """The misses, the alarms and the measure of each table with k positives, and of the true labels."""
        first, last = self._hits(n_above, n_below)
        hits = np.arange(first, last + 1)
        misses, alarms, delta = n_above - hits, self.k - hits, 1 - hits / self._most(n_above)
        if self.k == n_above:
            return misses, alarms, delta
        return np.append(misses, 0), np.append(alarms, 0), np.append(delta, 0.0)

    def soft(self, z: Array, y: Array, c: Array, mu: float) -> tuple[Any, Array, Any]:
        """The loss smoothed by entropy, its gradient, and its lift: O(n n+ + n k), for some thousand rows."""
        check_equal(self, c)
        return soft_by_entropy(self, z, y, mu)

    def _hits(self, n_above: int, n_below: int) -> tuple[int, int]:
        """The least and the largest number of hits."""
        n = n_above + n_below
        if self.k > n:
            raise ValueError(f"{type(self).__name__} looks at k={self.k} rows, but there are {n}: lower k")
        return max(0, self.k - n_below), min(self.k, n_above)

    def _most(self, n_above: int) -> int:
        return self.k


@dataclass(frozen=True)
class RecallAtK(PrecisionAtK):
    r"""Recall among the k highest scores, :math:`\Delta = 1 - hits / n_+` for labellings with k positives.

    As `PrecisionAtK` otherwise.

    Parameters
    ----------
    k : int
        How many rows are looked at; no more than there are.

    Examples
    --------
    >>> import numpy as np
    >>> z, y = np.array([2.0, 1.0, -1.0]), np.array([-1.0, 1.0, 1.0])
    >>> value, _ = RecallAtK(k=1).value_grad(z, y, np.ones(3) / 3)
    >>> round(float(value), 6)
    2.333333
    """

    formula = "max over y' of 1 - hits / n+ + sum z (y' - y) / n"

    def _most(self, n_above: int) -> int:
        return n_above


def counts(rows: Array, first: int, last: int) -> Array:
    """First, ..., last, where the rows are."""
    return like(np.arange(first, last + 1), rows)
