"""Products with the pairs of quasi-Newton methods, by ranges of columns that threads share.

The order of the sums is that of the ranges, which depend on the number of columns alone.
"""

from __future__ import annotations

from typing import Any

from riskmin._numba.compile_cache import njit
from riskmin._numba.newton.row_vectors import inner
from riskmin._numba.shards.items import next_item


@njit()
def products_of_ranges(progress: Any, memory: Any, ends: Any, A: Any, B: Any, out: Any) -> None:
    """Set out[k] to A B', of columns ends[k] to ends[k + 1] - 1."""
    k = next_item(progress)
    while k >= 0:
        for i in range(len(A)):
            for j in range(len(B)):
                out[k, i, j] = inner(A[i][ends[k] : ends[k + 1]], B[j][ends[k] : ends[k + 1]])
        k = next_item(progress)


@njit(fastmath={"contract"})
def mixture_of_ranges(
    progress: Any, memory: Any, ends: Any, x: Any, A: Any, scale: float, g: Any, out: Any
) -> None:
    """Set out to x A + scale g."""
    k = next_item(progress)
    while k >= 0:
        start, stop = ends[k], ends[k + 1]
        for j in range(start, stop):
            out[j] = scale * g[j]
        for i in range(len(A)):
            row, factor = A[i], x[i]
            for j in range(start, stop):
                out[j] += factor * row[j]
        k = next_item(progress)
