r"""Losses of the contingency table smoothed by entropy: a maximum over distributions of labelings.

.. math:: R_T(z) = T \log \frac1N \sum_{y'} \exp \frac{\Delta(y', y) + \sum_i z_i (y'_i - y_i) / n}T
          \;\le\; R(z)

over N labelings y'. Its gradient is the mean of :math:`(y' - y) / n` under the Gibbs distribution p, which is
proportional to the exponentials. The mean under p of the numerator of the exponent is
:math:`R_T(z) + T (\log N - H(p)) \le R(z)`, so that the tangent plus the offset :math:`T (\log N - H(p))` is
a cut of R. A table is given by its misses (false negatives) and alarms (false positives), so that sums over
all labelings are sums over tables of products of elementary symmetric polynomials (Zhang, Saha and
Vishwanathan, NIPS 2010, section 5.1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba import lazy_module
from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.core import Array, NDArray, UnsupportedProblem

MAX_DP_STEPS_PER_EVALUATION = 5000**2
"""Limit on the dynamic programming steps of one evaluation: about half a second."""


_kernels = lazy_module("sorting.subset_sums")


def entropic_smoothing(loss: Any, z: Array, y: Array, temperature: float) -> tuple[float, Array, float]:
    r"""Return the loss smoothed by the entropy of labelings, its gradient in z, and the minorant offset.

    It takes :math:`O(n_+^2 + n_-^2)` steps, fewer if only few misses or alarms are possible.

    Parameters
    ----------
    loss : FBeta, Prbep, PrecisionAtK, RecallAtK or a custom loss
        With a method ``tables(n_above, n_below)`` that returns the misses, the alarms and the
        :math:`\Delta` of every contingency table that a labeling may have.
    z, y : (n,) arrays
        Scores, and labels -1 and +1; all rows have the same weight.
    temperature : float
        T > 0: the smoothed loss is at most :math:`T \log N` below the loss.

    Returns
    -------
    value : float
    dz : (n,) array
    minorant_offset : float
        :math:`T (\log N - H(p)) \ge 0`.
    """
    scores, positive = np.asarray(to_numpy(z), np.float64), np.asarray(to_numpy(y)) > 0
    n = len(scores)
    misses, alarms, delta = loss.tables(int(positive.sum()), int(n - positive.sum()))
    # the dynamic program takes (rows of a class) x (largest subset size) steps for each class
    steps = int(positive.sum()) * int(misses.max()) + int(n - positive.sum()) * int(alarms.max())
    if steps > MAX_DP_STEPS_PER_EVALUATION:
        raise UnsupportedProblem(
            f"{type(loss).__name__} takes {steps:.1e} steps per evaluation to be smoothed on {n} rows, and "
            f"at most {MAX_DP_STEPS_PER_EVALUATION:.1e} are allowed: use Bundle"
        )
    # flipping the label of row i changes the exponent by -+ 2 z_i / (n T)
    log_odds = 2 / (n * temperature) * scores
    misses_of = SubsetSums(-log_odds[positive], int(misses.max()))
    alarms_of = SubsetSums(log_odds[~positive], int(alarms.max()))
    # log of the sum of the exponentials over all labelings with a given table
    log_weights = delta / temperature + misses_of.sums[misses] + alarms_of.sums[alarms]
    # normalize by the largest exponent: exp cannot overflow
    largest = float(log_weights.max())
    probability = np.exp(log_weights - largest)
    total = float(probability.sum())
    probability /= total
    value = temperature * (
        largest + math.log(total) - log_n_labelings(misses, alarms, len(misses_of), len(alarms_of))
    )
    # the mean of (y' - y) / n: -2 / n times the probability of a miss, 2 / n times that of an alarm
    dz = np.empty(n)
    dz[positive] = -2 / n * misses_of.inclusion_probabilities(np.bincount(misses, probability))
    dz[~positive] = 2 / n * alarms_of.inclusion_probabilities(np.bincount(alarms, probability))
    # the mean of the numerator under p, minus the value: T (log N - H(p))
    offset = float(probability @ delta) + float(dz @ scores) - value
    return value, namespace(z).astype(as_array_like(dz, z), z.dtype), offset


class SubsetSums:
    """Log-sums over the subsets of mislabeled rows of one class, by the size of the subset.

    `sums[m]` is the logarithm of the elementary symmetric polynomial of degree m of exp(odds).
    """

    def __init__(self, odds: NDArray, max_size: int) -> None:
        self.odds, self.step = odds, max(1, math.isqrt(len(odds)))
        # partial results for every step-th row, step = sqrt(n): the backward pass recomputes the others
        self.checkpoints = _kernels().log_symmetric_polynomials(odds, max_size, self.step)
        self.sums = self.checkpoints[0]

    def __len__(self) -> int:
        return len(self.odds)

    def inclusion_probabilities(self, size: NDArray) -> NDArray:
        """Return the probability of each row to be mislabeled, given the distribution of the subset size."""
        result: NDArray = _kernels().inclusion_probabilities(self.odds, self.checkpoints, self.step, size)
        return result


def log_n_labelings(misses: NDArray, alarms: NDArray, n_positive: int, n_negative: int) -> float:
    """Return the logarithm of the number of labelings that have one of these tables."""
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, max(n_positive, n_negative) + 1)))])
    # log of binomial(n+, misses) binomial(n-, alarms)
    log_count = factorial[n_positive] - factorial[misses] - factorial[n_positive - misses]
    log_count = log_count + factorial[n_negative] - factorial[alarms] - factorial[n_negative - alarms]
    largest = float(log_count.max())
    return largest + math.log(float(np.exp(log_count - largest).sum()))


def smoothed_by_entropy(loss: Any, z: Array, y: Array, mu: float) -> tuple[float, Array, float]:
    """Return `entropic_smoothing` at the temperature for which the smoothing error is at most mu / 2.

    That is the bound of the error that quadratic smoothing with parameter mu has.
    """
    n_positive = int((np.asarray(to_numpy(y)) > 0).sum())
    misses, alarms, _ = loss.tables(n_positive, len(y) - n_positive)
    log_count = log_n_labelings(misses, alarms, n_positive, len(y) - n_positive)
    return entropic_smoothing(loss, z, y, 0.5 * mu / log_count if log_count > 0 else mu)
