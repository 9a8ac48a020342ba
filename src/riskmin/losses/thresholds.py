"""Thresholds on scores: the distinct ones, and the best one for a metric."""

from __future__ import annotations

import numpy as np

from riskmin.core import NDArray
from riskmin.numerics.sorting import prefix_sums, stable_argsort

SCORE_TIE_TOLERANCE = 1e-10
"""Scores that differ by less, relative to the largest absolute score, count as equal.

Equal rows may get scores that differ by rounding; a threshold must not separate them.
"""


def distinct_cuts(z: NDArray) -> NDArray:
    """Return the possible numbers of scores below a threshold, for sorted scores z; ties stay together."""
    distinct = np.diff(z) > SCORE_TIE_TOLERANCE * np.abs(z).max()
    result: NDArray = np.concatenate([[0], np.flatnonzero(distinct) + 1, [len(z)]])
    return result


def midpoint_threshold(z: NDArray, count: int) -> float:
    """Return the threshold with `count` of the sorted scores z below: the midpoint of two adjacent scores.

    Below or above all scores, it has distance one from the nearest (or more, for huge scores).
    """
    # outside of all scores: a distance of one, or more where one is below the tie tolerance
    if count == 0:
        return float(z[0] - max(1.0, SCORE_TIE_TOLERANCE * abs(z[0])))
    if count == len(z):
        return float(z[-1] + max(1.0, SCORE_TIE_TOLERANCE * abs(z[-1])))
    return float(0.5 * z[count - 1] + 0.5 * z[count])


def threshold_for_count(z: NDArray, positives: int) -> float:
    """Return the threshold that `positives` scores exceed, or the nearest number that ties allow."""
    z = np.sort(np.asarray(z, dtype=np.float64))
    counts = distinct_cuts(z)
    return midpoint_threshold(z, int(counts[np.argmin(np.abs(len(z) - counts - positives))]))


def best_f_beta_threshold(z: NDArray, y: NDArray, beta: float) -> float:
    """Return the threshold with the largest F-beta of predicting positive above it."""
    rows = stable_argsort(z)
    # missed[m] is the number of positives among the m lowest scores
    z, positive = z[rows], (y[rows] > 0).astype(np.float64)
    counts, missed = distinct_cuts(z), prefix_sums(positive)
    hits, predicted = missed[-1] - missed[counts], len(z) - counts
    # F = (1 + beta^2) hits / (beta^2 positives + predicted positives)
    f = (1 + beta**2) * hits / (beta**2 * missed[-1] + predicted)
    return midpoint_threshold(z, int(counts[np.argmax(np.round(f, 12))]))


def best_balanced_threshold(z: NDArray, y: NDArray, c: NDArray) -> float:
    """Return the threshold with the largest sum of sensitivity and specificity (Youden's J)."""
    rows = stable_argsort(z)
    z, positive, c = z[rows], y[rows] > 0, c[rows]
    counts, missed, rejected = distinct_cuts(z), prefix_sums(c * positive), prefix_sums(c * ~positive)
    # specificity - (1 - sensitivity)
    youden = rejected[counts] / rejected[-1] - missed[counts] / missed[-1]
    # rounding to 12 digits: ties are resolved in the same way whatever the last bits
    return midpoint_threshold(z, int(counts[np.argmax(np.round(youden, 12))]))
