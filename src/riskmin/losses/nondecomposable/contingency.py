r"""Losses of the contingency table: F-beta, precision and recall at k.

.. math:: R(z) = \max_{y'} \Delta(y', y) + \tfrac1n \sum_i z_i (y'_i - y_i)

is an upper bound of the measure :math:`\Delta` of the predicted signs (Joachims, ICML 2005). A contingency
table is given by its false negatives (misses) and false positives (alarms). Among the labelings y' with given
numbers of both, the maximizer misses the positives of lowest score and predicts positive for the negatives of
highest score, so that one sort finds the maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array, NDArray
from riskmin.core.messages import check_whole
from riskmin.losses.base import Loss
from riskmin.losses.labels import check_signs
from riskmin.losses.margin import Hinge
from riskmin.losses.nondecomposable.entropy_smoothing import smoothed_by_entropy
from riskmin.losses.thresholds import best_f_beta_threshold, threshold_for_count
from riskmin.numerics.sorting import as_float64, prefix_sums, stable_argsort


def check_equal_weights(loss: object, c: Array) -> None:
    """Raise a ValueError if rows have different weights: a contingency table counts rows."""
    # a tolerance: equal weights that were normalized may differ by rounding
    xp = namespace(c)
    if float(xp.max(c)) > float(xp.min(c)) * (1 + 1e-6):
        raise ValueError(
            f"{type(loss).__name__} counts rows, so all must weigh the same: fit without sample_weight and "
            "class_weight, or use the loss 'roc_area', which takes weights"
        )


def break_even_form(loss: object, y: Array, c: Array) -> tuple[Loss, float] | None:
    r"""Return the hinge loss and the factor of :math:`2 \min_b \sum_i c_i \max(0, \rho - y_i (z_i + b))`.

    With :math:`\rho = n / (4 n_+)` it is the loss of as many alarms as misses, :math:`\Delta = misses / n_+`:
    by duality of linear programs, :math:`\tfrac2n \max_\beta \sum_i \beta_i (\rho - y_i z_i)` with
    multipliers in [0, 1] whose sums over positives and negatives are equal, which has integer solutions.
    """
    check_equal_weights(loss, c)
    n_positive = int((y > 0).sum())
    return (Hinge(len(y) / (4 * n_positive)), 2.0) if 0 < n_positive < len(y) else None


class WorstTables(NamedTuple):
    """Contingency tables with their measure and objective; one of them has the largest objective of all."""

    misses: Array
    alarms: Array
    delta: Array
    values: Array


@dataclass(frozen=True)
class SortedScores:
    """Positives sorted by increasing score, negatives by decreasing score, with prefix sums of the scores."""

    z: Array
    positives: Array
    """The indices of the positive rows, lowest score first."""
    negatives: Array
    """The indices of the negative rows, highest score first."""
    positive_sums: Array
    negative_sums: Array
    negative_scores: Array
    """The scores of the negatives, highest first."""

    @classmethod
    def from_scores(cls, loss: object, z: Array, y: Array, c: Array) -> SortedScores:
        check_equal_weights(loss, c)
        xp = namespace(z)
        # float64: prefix sums of float32 scores would lose digits
        wide = as_float64(z)
        positives, negatives = xp.nonzero(y > 0)[0], xp.nonzero(y <= 0)[0]
        positives = positives[stable_argsort(wide[positives])]
        negatives = negatives[stable_argsort(-wide[negatives])]
        negative_scores = wide[negatives]
        return cls(
            z,
            positives,
            negatives,
            prefix_sums(wide[positives]),
            prefix_sums(negative_scores),
            negative_scores,
        )

    def score_gain(self, misses: Any, alarms: Any) -> Array:
        """Return the largest sum_i z_i (y'_i - y_i) / n over labelings with these misses and alarms."""
        # an alarm adds 2 z_i / n, a miss subtracts 2 z_i / n
        return 2 / len(self.z) * (self.negative_sums[alarms] - self.positive_sums[misses])

    def as_float(self, count: Array) -> Array:
        """Return counts in the dtype of the sums, float64: torch divides integers in float32."""
        return namespace(count).astype(count, self.positive_sums.dtype)

    def subgradient(self, misses: int, alarms: int) -> Array:
        """Return the subgradient in z of the maximizing labeling, (y' - y) / n."""
        # y' - y is -2 for a miss, +2 for an alarm, else 0
        dz = namespace(self.z).zeros_like(self.z)
        dz[self.positives[:misses]] = -2 / len(self.z)
        dz[self.negatives[:alarms]] = 2 / len(self.z)
        return dz


@dataclass(frozen=True)
class FBeta(Loss):
    r"""The F-beta measure of precision and recall,

    .. math:: \Delta = 1 - \frac{(1 + \beta^2)\, hits}{(1 + \beta^2)\, hits + \beta^2\, misses + alarms}.

    For each number of misses the objective is concave in the number of alarms, whose maximizer is found by
    bisection: O(n log n), dominated by the sort. The smoothed form, a distribution over labelings, takes
    O(n^2).

    Parameters
    ----------
    beta : float
        The weight of recall relative to precision, above 0; 1 is the F1 score.

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> import numpy as np
    >>> z, y = np.zeros(4), np.array([1.0, 1.0, -1.0, -1.0])
    >>> value, _ = FBeta().value_grad(z, y, np.ones(4) / 4)
    >>> float(value)  # with zero scores, the worst labeling misses all positives
    1.0
    """

    beta: float = 1.0

    separable = False
    task = "classification"
    formula = "max over y' of 1 - F_beta + sum z (y' - y) / n"
    check_labels = check_signs

    def __post_init__(self) -> None:
        if not (self.beta > 0 and 0 < self.beta * self.beta < math.inf):
            raise ValueError(f"FBeta needs a beta > 0 whose square is a number, not {self.beta!r}")

    def cutoff(self, z: Array, y: Array, c: Array) -> float:
        """Return the threshold on scores with the largest F-beta."""
        return best_f_beta_threshold(z, y, self.beta)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the largest objective over labelings and a subgradient in z."""
        s = SortedScores.from_scores(self, z, y, c)
        tables = self._worst_tables(s)
        best = int(namespace(z).argmax(tables.values))
        return tables.values[best], s.subgradient(best, int(tables.alarms[best]))

    def worst_tables(self, z: Array, y: Array, c: Array) -> WorstTables:
        """Return the number of alarms with the largest objective for each number of misses."""
        return self._worst_tables(SortedScores.from_scores(self, z, y, c))

    def _worst_tables(self, s: SortedScores) -> WorstTables:
        xp, z = namespace(s.z), s.z
        # all numbers of misses at once; hits is (1 + beta^2) times the number of hits
        misses = count_range(s.positives, 0, len(s.positives))
        hits = (1 + self.beta**2) * s.as_float(len(s.positives) - misses)
        base = hits + self.beta**2 * s.as_float(misses)
        # the change of sum z (y' - y) / n by one more alarm
        alarm_gain = 2 / len(z) * s.negative_scores
        alarms, upper = xp.zeros_like(misses), xp.zeros_like(misses) + len(s.negatives)
        # bisect, for all numbers of misses at once, for the first number of alarms at which one more
        # does not increase the objective: Delta changes by hits / (D (D + 1)) for the denominator D
        while bool(xp.any(alarms < upper)):
            mid = xp.minimum((alarms + upper) // 2, upper - 1)
            denominator = base + mid
            improves = (hits / (denominator * (denominator + 1)) + alarm_gain[mid] > 0) & (alarms < upper)
            alarms, upper = (
                xp.where(improves, mid + 1, alarms),
                xp.where(improves, upper, xp.maximum(mid, alarms)),
            )
        delta = 1 - hits / (base + alarms)
        return WorstTables(misses, alarms, delta, delta + s.score_gain(misses, alarms))

    def tables(self, n_positive: int, n_negative: int) -> tuple[NDArray, NDArray, NDArray]:
        """Return the misses, the alarms and Delta of every possible contingency table."""
        # all (n+ + 1)(n- + 1) pairs of misses and alarms
        misses, alarms = (a.ravel() for a in np.indices((n_positive + 1, n_negative + 1)))
        hits = (1 + self.beta**2) * (n_positive - misses)
        return misses, alarms, 1 - hits / (hits + self.beta**2 * misses + alarms)

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the entropy-smoothed loss, its gradient, and the minorant offset.

        It takes O(n^2) steps, which suits up to a few thousand rows.
        """
        check_equal_weights(self, c)
        return smoothed_by_entropy(self, z, y, mu)


@dataclass(frozen=True)
class PrecisionAtK(Loss):
    r"""Precision among the k highest scores, :math:`\Delta = 1 - hits / k` for labelings with k positives.

    The true labels are included as a labeling with :math:`\Delta = 0`, so that the loss is nonnegative. The
    loss bounds the measure if k is the number of positives. For other k it is still Joachims's loss, but the
    true labels are not among the labelings with k positives, and the loss only requires high scores of the
    positives: `RocArea` is then often the better choice; compare them on a validation set.

    Parameters
    ----------
    k : int
        The number of highest scores that count; at most the number of rows.

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> import numpy as np
    >>> z, y = np.array([2.0, 1.0, -1.0]), np.array([-1.0, 1.0, 1.0])
    >>> value, _ = PrecisionAtK(k=1).value_grad(z, y, np.ones(3) / 3)
    >>> round(float(value), 6)  # no hit costs 1; the scores add 2 / 3 of 2 - 1 - (-1)
    2.333333
    """

    k: int = 10

    separable = False
    task = "classification"
    fixed_positive_count = True
    formula = "max over y' of 1 - hits / k + sum z (y' - y) / n"
    check_labels = check_signs

    def __post_init__(self) -> None:
        check_whole(self, "k")
        object.__setattr__(self, "min_rows", self.k)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the largest objective over labelings and a subgradient in z."""
        xp, s = namespace(z), SortedScores.from_scores(self, z, y, c)
        tables = self._worst_tables(s)
        best = int(xp.argmax(tables.values))
        # the true labels have the objective 0
        if not float(tables.values[best]) > 0:
            return 0.0 * tables.values[best], xp.zeros_like(z)
        return tables.values[best], s.subgradient(int(tables.misses[best]), int(tables.alarms[best]))

    def worst_tables(self, z: Array, y: Array, c: Array) -> WorstTables:
        """Return the table of each possible number of hits, without that of the true labels."""
        return self._worst_tables(SortedScores.from_scores(self, z, y, c))

    def _worst_tables(self, s: SortedScores) -> WorstTables:
        hits = count_range(s.positives, *self._hits(len(s.positives), len(s.negatives)))
        # labelings with k positives: h hits, n+ - h misses and k - h alarms
        misses, alarms = len(s.positives) - hits, self.k - hits
        delta = 1 - s.as_float(hits) / self._delta_denominator(len(s.positives))
        return WorstTables(misses, alarms, delta, delta + s.score_gain(misses, alarms))

    def intercept_form(self, y: Array, c: Array) -> tuple[Loss, float] | None:
        """Return twice a hinge loss, if k is the number of positives."""
        return break_even_form(self, y, c) if self.k == int((y > 0).sum()) else None

    def cutoff(self, z: Array, y: Array, c: Array) -> float:
        """Return the threshold on scores that k rows exceed."""
        return threshold_for_count(z, self.k)

    def tables(self, n_positive: int, n_negative: int) -> tuple[NDArray, NDArray, NDArray]:
        """Return misses, alarms and Delta of the tables with k predicted positives and of the true labels."""
        first, last = self._hits(n_positive, n_negative)
        hits = np.arange(first, last + 1)
        misses = n_positive - hits
        alarms = self.k - hits
        delta = 1 - hits / self._delta_denominator(n_positive)
        # if k = n+, the true labels are among the tables already
        if self.k == n_positive:
            return misses, alarms, delta
        return np.append(misses, 0), np.append(alarms, 0), np.append(delta, 0.0)

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the entropy-smoothed loss, its gradient, and the minorant offset.

        It takes O(n n+ + n k) steps, which suits up to a few thousand rows.
        """
        check_equal_weights(self, c)
        return smoothed_by_entropy(self, z, y, mu)

    def _hits(self, n_positive: int, n_negative: int) -> tuple[int, int]:
        """Return the smallest and the largest possible number of hits."""
        n = n_positive + n_negative
        if self.k > n:
            raise ValueError(f"{type(self).__name__} needs k={self.k} rows, but there are {n}: lower k")
        # k positives are predicted, of which at most n- are alarms and at most n+ hits
        return max(0, self.k - n_negative), min(self.k, n_positive)

    def _delta_denominator(self, n_positive: int) -> int:
        """Return the divisor of the hits in Delta."""
        return self.k


@dataclass(frozen=True)
class RecallAtK(PrecisionAtK):
    r"""Recall among the k highest scores, :math:`\Delta = 1 - hits / n_+` for labelings with k positives.

    Apart from the measure it is `PrecisionAtK`.

    Parameters
    ----------
    k : int
        The number of highest scores that count; at most the number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> z, y = np.array([2.0, 1.0, -1.0]), np.array([-1.0, 1.0, 1.0])
    >>> value, _ = RecallAtK(k=1).value_grad(z, y, np.ones(3) / 3)
    >>> round(float(value), 6)
    2.333333
    """

    formula = "max over y' of 1 - hits / n+ + sum z (y' - y) / n"

    def _delta_denominator(self, n_positive: int) -> int:
        return n_positive


def count_range(like_rows: Array, first: int, last: int) -> Array:
    """Return the integers first, ..., last in the array library and on the device of the given array."""
    return as_array_like(np.arange(first, last + 1), like_rows)
