"""The most violating rankings for weights of positions, by dynamic programming over grades."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


@njit(allocates=True)
def weighted_places(
    s: Any, gain: Any, tied: Any, blocks: Any, c: Any, discount: Any, chosen: Any, first: int, last: int,
    place: Any,
) -> None:  # fmt: skip
    """Fill place for the rows at the first len(c) positions of the ranking that maximizes its objective.

    The objective is the sum of c_i s - discount_i gain over positions i. The rows of a query are sorted by
    grade and score, highest first; its grades start at ``tied[blocks[q]:blocks[q + 1]]``. Only the chosen
    queries of the range are visited. Later positions have neither weight nor discount, and the places of the
    rows there are not changed.
    """
    for q in range(first, last):
        if chosen[q]:
            _interleave(s, gain, tied[blocks[q] : blocks[q + 1] + 1], c, discount, place)


@njit(inline="always")
def _interleave(s: Any, gain: Any, tied: Any, c: Any, discount: Any, place: Any) -> None:
    """Dynamic programming over how many rows of each grade are among the first positions.

    Rows of the same grade are in the order of their scores. A cell is a vector n of counts per grade,
    numbered by mixed radix with `stride`.
    """
    n_grades = len(tied) - 1
    n_top = min(len(c), tied[n_grades] - tied[0])
    max_count, stride, n = (
        np.empty(n_grades, np.int64),
        np.empty(n_grades, np.int64),
        np.empty(n_grades, np.int64),
    )
    cells = 1
    for g in range(n_grades - 1, -1, -1):
        max_count[g], stride[g], n[g] = min(tied[g + 1] - tied[g], n_top), cells, 0
        cells *= max_count[g] + 1
    best, last_grade = np.empty(cells), np.empty(cells, np.int64)
    best[0], best_value, end = 0.0, -np.inf, 0
    used = cell = 0
    while True:
        g = n_grades - 1
        # next vector n of counts with sum <= n_top, in lexicographic order
        while g >= 0 and (used == n_top or n[g] == max_count[g]):
            used, cell, n[g] = used - n[g], cell - n[g] * stride[g], 0
            g -= 1
        if g < 0:
            break
        used, cell, n[g] = used + 1, cell + stride[g], n[g] + 1
        found = False
        for g in range(n_grades):
            if n[g]:  # the row at the last of these positions is of this grade
                value = best[cell - stride[g]] - discount[used - 1] * gain[tied[g]]
                value += c[used - 1] * s[tied[g] + n[g] - 1]
                # every visited cell has a last grade, whatever its value is: scores may be infinite or NaN
                if not found or value > best[cell]:
                    best[cell], last_grade[cell], found = value, g, True
        if used == n_top and (end == 0 or best[cell] > best_value):
            best_value, end = best[cell], cell
    # backtrack: which grade took each place
    for used in range(n_top - 1, -1, -1):
        g = last_grade[end]
        place[tied[g] + end // stride[g] % (max_count[g] + 1) - 1] = used
        end -= stride[g]
