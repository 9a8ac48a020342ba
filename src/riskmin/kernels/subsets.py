"""Random subsets with given odds: the sums over all subsets of a size, and how often each row is taken."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit


@njit()
def _add(total: Any, x: float, rest: int) -> None:
    """One more row, of log odds x: sizes up to `rest` can now be had."""
    for r in range(min(rest, len(total) - 1), 0, -1):
        one, two = total[r], x + total[r - 1]
        high, low = max(one, two), min(one, two)
        total[r] = high + np.log1p(np.exp(low - high))


@njit(allocates=True)
def sizes(odds: Any, most: int, step: int) -> Any:
    """The sums over subsets of r rows of the product of their odds, r = 0, ..., most: all as logarithms.

    The elementary symmetric polynomials, of positive terms only. The first row of the answer is that of all
    rows, the others are those of the rows from `step`, 2 `step`, ... on.
    """
    n = len(odds)
    kept = np.full(((n + step - 1) // step + 1, most + 1), -np.inf)
    total = np.full(most + 1, -np.inf)
    total[0] = 0.0
    kept[-1] = total
    for i in range(n - 1, -1, -1):
        _add(total, odds[i], n - i)
        if i % step == 0:
            kept[i // step] = total
    return kept


@njit(allocates=True)
def chances(odds: Any, kept: Any, step: int, size: Any) -> Any:
    """How likely each row is to be taken, where `size` is the distribution of how many are.

    Rows are decided on one by one, given how many are still to be taken. Each decision may be off by
    rounding: what comes out is still the marginals of a distribution of that size, to the last digits.
    """
    n, most = len(odds), kept.shape[1] - 1
    left, found = size.copy(), np.zeros(n)
    block = np.empty((step, most + 1))
    for first in range(0, n, step):
        last = min(first + step, n)
        block[last - first - 1] = kept[first // step + 1]
        for i in range(last - 1, first, -1):
            block[i - first - 1] = block[i - first]
            _add(block[i - first - 1], odds[i], n - i)
        for i in range(first, last):
            after = block[i - first]
            for r in range(1, min(most, n - i) + 1):
                if left[r] > 0:
                    # by -inf where too few rows are left, so that this one must be taken
                    part = 1.0 / (1.0 + np.exp(after[r] - odds[i] - after[r - 1]))
                    taken = left[r] * part
                    found[i] += taken
                    left[r - 1] += taken
                    left[r] *= 1.0 - part
    return found
