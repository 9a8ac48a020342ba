"""Random subsets with given odds: elementary symmetric polynomials, and inclusion probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


@njit()
def _include_row(total: Any, x: float, max_size: int) -> None:
    """Include one more row, of log odds x, in the log sums total[r] over subsets of r rows, r <= max_size.

    e_r <- e_r + odds e_{r-1}, in logarithms.
    """
    for r in range(min(max_size, len(total) - 1), 0, -1):
        without, with_row = total[r], x + total[r - 1]
        # log(e^high + e^low)
        high, low = max(without, with_row), min(without, with_row)
        total[r] = high + np.log1p(np.exp(low - high))


@njit(allocates=True)
def log_symmetric_polynomials(odds: Any, max_size: int, step: int) -> Any:
    """Return log e_r(odds) for r <= max_size: sums over subsets of r rows of the product of their odds.

    odds are given as logarithms; all terms are positive, so nothing cancels. Row 0 of the result is for all
    rows; row i for the rows from i * step on.
    """
    n = len(odds)
    checkpoints = np.full(((n + step - 1) // step + 1, max_size + 1), -np.inf)
    total = np.full(max_size + 1, -np.inf)
    total[0] = 0.0
    checkpoints[-1] = total
    for i in range(n - 1, -1, -1):
        # from the last row to the first; every `step`-th state is stored
        _include_row(total, odds[i], n - i)
        if i % step == 0:
            checkpoints[i // step] = total
    return checkpoints


@njit(allocates=True)
def inclusion_probabilities(odds: Any, checkpoints: Any, step: int, size: Any) -> Any:
    """Return the probability of each row to be in the subset, where `size` is the distribution of its size.

    Rows are decided one by one: if r rows are still to be taken, row i is taken with probability
    odds_i e_{r-1}(rows after i) / e_r(rows from i on). Despite rounding errors in these probabilities, the
    result is the marginals of a distribution over subsets of that size, up to the last digits. block
    recomputes the sums of `step` rows from the stored ones.
    """
    n, max_size = len(odds), checkpoints.shape[1] - 1
    remaining, probabilities = size.copy(), np.zeros(n)
    block = np.empty((step, max_size + 1))
    for first in range(0, n, step):
        last = min(first + step, n)
        block[last - first - 1] = checkpoints[first // step + 1]
        for i in range(last - 1, first, -1):
            # sums over the rows after each row of the block, from its end
            block[i - first - 1] = block[i - first]
            _include_row(block[i - first - 1], odds[i], n - i)
        for i in range(first, last):
            after = block[i - first]
            for r in range(1, min(max_size, n - i) + 1):
                if remaining[r] > 0:
                    # after[r] = -inf if fewer than r rows follow: this row must be taken, and inclusion = 1
                    inclusion = 1.0 / (1.0 + np.exp(after[r] - odds[i] - after[r - 1]))
                    taken = remaining[r] * inclusion
                    probabilities[i] += taken
                    # distribution of the number still to be taken, after row i
                    remaining[r - 1] += taken
                    remaining[r] *= 1.0 - inclusion
    return probabilities
