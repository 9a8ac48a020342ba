"""Items that threads share in one compiled call: each thread takes the next one by an atomic counter.

Between two items a thread neither waits for the interpreter's lock nor for another thread. A loop over items
writes the result of each to its own place, so that results do not depend on who computes them:

    k = first_item(progress)
    while k >= 0:
        ...
        k = next_item(progress)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from riskmin._numba.compile_cache import njit

NEXT, END, N_DONE = 0, 8, 16
"""Places in `progress`: the next item, the end of the items, and the number of computed ones; each in its own
cache line, since all threads write to the first and the last."""
SPINS = 5_000
"""Reads of the counter before a thread waits otherwise: about 0.1 ms."""


def _fetch_add(typing: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        entry = builder.gep(struct.data, [args[1]])
        return builder.atomic_rmw("add", entry, args[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), codegen


fetch_add: Any = intrinsic(_fetch_add)
"""Add a number to a 64-bit integer of an array, in one step for all threads; return the one before."""


def new_progress(start: int, stop: int) -> Any:
    """Return the progress of the items start to stop - 1, of which none is taken yet."""
    progress = np.zeros(24, np.int64)
    progress[NEXT], progress[END] = start, stop
    return progress


@njit(inline="always")
def first_item(progress: Any) -> int:
    """Return the next item for this thread; -1 if none is left."""
    k = fetch_add(progress, NEXT, 1)
    return k if k < progress[END] else -1


@njit(inline="always")
def next_item(progress: Any) -> int:
    """Count the item of this thread as computed, and return its next one; -1 if none is left."""
    fetch_add(progress, N_DONE, 1)
    return first_item(progress)


@njit()
def wait_for_all(progress: Any, n_items: int) -> bool:
    """Return whether all items are computed, after a short time in which other threads may finish theirs."""
    n_spins = 0
    while fetch_add(progress, N_DONE, 0) < n_items and n_spins < SPINS:
        n_spins += 1
    return n_spins < SPINS


def stop(progress: Any) -> None:
    """Let no thread take another item."""
    progress[END] = 0
