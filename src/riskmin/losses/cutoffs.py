"""Thresholds on scores: where a metric is best, and where a list can be parted at all."""

from __future__ import annotations

import numpy as np

from riskmin.sorting import order, prefix_sums
from riskmin.types import NDArray

TIED = 1e-10
"""Scores that differ by less, relative to the largest, are the same: equal rows must stay together."""


def partings(z: NDArray) -> NDArray:
    """How many of the lowest scores a threshold can part from the rest: of equal ones, all or none.

    Examples
    --------
    >>> partings(np.array([1.0, 2.0, 2.0, 5.0])).tolist()
    [0, 1, 3, 4]
    """
    apart = np.diff(z) > TIED * np.abs(z).max()
    found: NDArray = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(z)]])
    return found


def middle(z: NDArray, count: int) -> float:
    """The threshold that so many of the sorted scores are not above: the middle between two of them.

    Beyond all of them, it is a margin of one away.

    Examples
    --------
    >>> middle(np.array([1.0, 2.0, 5.0]), 2), middle(np.array([1.0, 2.0, 5.0]), 0)
    (3.5, 0.0)
    """
    if count == 0:
        return float(z[0] - max(1.0, TIED * abs(z[0])))
    if count == len(z):
        return float(z[-1] + max(1.0, TIED * abs(z[-1])))
    return float(0.5 * z[count - 1] + 0.5 * z[count])


def nearest(z: NDArray, positives: int) -> float:
    """The threshold that so many scores are above, or as near to it as equal scores allow.

    Examples
    --------
    >>> nearest(np.array([3.0, 1.0, 2.0, 4.0]), 1)
    3.5
    """
    z = np.sort(np.asarray(z, dtype=np.float64))
    counts = partings(z)
    return middle(z, int(counts[np.argmin(np.abs(len(z) - counts - positives))]))


def best_f_beta(z: NDArray, y: NDArray, beta: float) -> float:
    """The threshold above which to predict positives for the largest F-beta.

    Examples
    --------
    >>> best_f_beta(np.array([3.0, 1.0, 2.0, 0.0]), np.array([1.0, 1.0, -1.0, -1.0]), 1.0)
    0.5
    """
    rows = order(z)
    z, positive = z[rows], (y[rows] > 0).astype(np.float64)
    counts, missed = partings(z), prefix_sums(positive)
    hits, said = missed[-1] - missed[counts], len(z) - counts
    f = (1 + beta**2) * hits / (beta**2 * missed[-1] + said)
    return middle(z, int(counts[np.argmax(np.round(f, 12))]))


def best_balanced(z: NDArray, y: NDArray, c: NDArray) -> float:
    """The threshold with the largest sum of sensitivity and specificity, Youden's.

    Examples
    --------
    >>> z, y = np.array([3.0, 1.0, 2.0, 0.0]), np.array([1.0, 1.0, -1.0, -1.0])
    >>> best_balanced(z, y, np.ones(4) / 4)
    0.5
    """
    rows = order(z)
    z, positive, c = z[rows], y[rows] > 0, c[rows]
    counts, missed, right = partings(z), prefix_sums(c * positive), prefix_sums(c * ~positive)
    youden = right[counts] / right[-1] - missed[counts] / missed[-1]
    return middle(z, int(counts[np.argmax(np.round(youden, 12))]))  # ties are the same in any last bits
