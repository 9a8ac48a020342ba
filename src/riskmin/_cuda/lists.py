"""Losses of all scores at once on the device: softmax, and lookups among sorted scores (see lists.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._cuda.kernels import add_parts, compiled, cupy, n_multiprocessors

THREADS = 256
BINS = 2**20
"""Bins of a lookup: about one sorted number each."""


def _blocks(work: int) -> int:
    """Return the number of blocks: up to eight per multiprocessor."""
    resident = 8 * n_multiprocessors(cupy().cuda.runtime.getDevice())
    return max(min(resident, -(-work // THREADS)), 1)


def softmax(z: Any, y: Any, c: Any) -> tuple[Any, Any]:
    """Return the sum of c (log sum_j exp z_j - z_y) over the rows of z (n, k), and its gradient."""
    xp, (n, k) = cupy(), z.shape
    lanes = min(1 << max(k - 1, 1).bit_length(), 32)
    function = compiled("softmax_rows", "lists", "", f"-DK={k}", f"-DL={lanes}", *_macros())
    blocks, dz = _blocks(n * lanes), xp.empty((n, k))
    part = xp.empty(blocks)
    function((blocks,), (THREADS,), (z, y, c, dz, part, np.int64(n)))
    return add_parts(part, blocks, 1)[0], dz


def active_pairs(z: Any, y: Any, listed: Any, *, above: bool) -> tuple[Any, Any, Any]:
    """Return, per row of the class that is not listed, its active pairs; their counts by rank; and a sum.

    `listed` are the sorted scores of the other class: the positives less 1 if `above`, else the negatives.
    The sum is that of pairs times scores, relative to the middle of the listed ones.
    """
    xp, n, m = cupy(), len(z), len(listed)
    macros = *_macros(), f"-DABOVE={int(above)}"
    table = xp.empty(BINS + 1, dtype=np.int32)
    fill = compiled("bin_table", "lists", "", *macros)
    fill((-(-(m + 1) // THREADS),), (THREADS,), (listed, np.int32(m), table))
    blocks, pairs, counts = _blocks(n), xp.empty(n), xp.zeros(m + 1, dtype=np.int32)
    part = xp.empty(blocks)
    arguments = z, y, listed, np.int32(m), table, pairs, counts, part, np.int64(n)
    compiled("look_up", "lists", "", *macros)((blocks,), (THREADS,), arguments)
    return pairs, counts, add_parts(part, blocks, 1)[0]


def best_rankings(
    table: tuple[Any, Any, Any], share: Any, sizes: Any, layers: Any, discount: Any, c: Any
) -> Any:
    """Return the rows at the first k positions of each query, as grade * k + number in its grade; else -1.

    The table has scores, what they pass, of shape (queries, grades, k), and gains (queries, grades); c are
    the weights of positions, or None for pairs.
    """
    xp, (n, grades, k) = cupy(), table[0].shape
    macros = f"-DGRADES={grades}", f"-DPLACES={k}", f"-DPAIRS={int(c is None)}"
    function = compiled("best_rankings", "lists", "", *_macros(), *macros)
    starts = np.cumsum([0, *(len(layer.counts) for layer in layers)])
    states = [np.concatenate([layer[i] for layer in layers]) for i in range(2)]
    shared = ranking_bytes(layers, grades, k)
    function.max_dynamic_shared_size_bytes = shared
    chosen = xp.empty((n, k), dtype=np.int32)
    arguments = (
        *table, share, sizes, xp.asarray(discount), xp.asarray(discount if c is None else c),
        xp.asarray(states[0].astype(np.uint8)), xp.asarray(states[1].astype(np.int32)),
        xp.asarray(starts.astype(np.int32)), np.int32(max(np.diff(starts))), chosen,
    )  # fmt: skip
    function((n,), (THREADS,), arguments, shared_mem=shared)
    return chosen


def ranking_bytes(layers: Any, grades: int, k: int) -> int:
    """Return the shared memory of a block of `best_rankings`: its table, two layers, and all choices."""
    states = [len(layer.counts) for layer in layers]
    numbers = grades * k * (2 + grades * (k + 1)) + 2 * max(states)
    return 8 * numbers + -(-sum(states) // 8) * 8


def _macros() -> tuple[str, str]:
    return f"-DTPB={THREADS}", f"-DBINS={BINS}"
