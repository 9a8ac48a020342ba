"""Items that threads share in one compiled call: each thread takes the next one by an atomic counter.

Between two items a thread neither waits for the interpreter's lock nor for another thread. A loop over items
writes the result of each to its own place, so that results do not depend on who computes them:

    k = next_item(progress)
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

NEXT, END = 0, 8
"""Places in `progress`: the next item and the end of the items, in separate cache lines."""


def _fetch_add(typing: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        entry = builder.gep(struct.data, [args[1]])
        return builder.atomic_rmw("add", entry, args[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), codegen


fetch_add: Any = intrinsic(_fetch_add)
"""Add a number to a 64-bit integer of an array, in one step for all threads; return the one before."""


def _load(typing: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load_atomic(builder.gep(struct.data, [args[1]]), "seq_cst", 8)

    return types.int64(array, types.int64), codegen


load: Any = intrinsic(_load)
"""Read a 64-bit integer of an array that other threads change."""


def new_progress(start: int, stop: int) -> Any:
    """Return the progress of the items start to stop - 1, of which none is taken yet."""
    progress = np.zeros(16, np.int64)
    progress[NEXT], progress[END] = start, stop
    return progress


@njit(inline="always")
def next_item(progress: Any) -> int:
    """Return the next item for this thread; -1 if none is left."""
    k = fetch_add(progress, NEXT, 1)
    return k if k < progress[END] else -1
