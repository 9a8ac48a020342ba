"""Loops over ranges of rows that threads share: a thread takes the interpreter's lock once for its ranges.

Range k has the rows ends[k] to ends[k + 1] - 1 of X, a matrix as in `products`, and of every vector with one
entry per row. Each loop calls the loop over the rows of a range and writes to a place of that range alone, so
that results have the bits of one call per range, whichever thread makes it.

Each loop gets the progress of the ranges (see `items`) and the memory of its thread. Blocks of rows that stay
in cache have steps[k] rows, a function of range k alone, since sums are added block by block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from riskmin._numba.compile_cache import njit
from riskmin._numba.gram import csr_gram_diagonal, gram
from riskmin._numba.products import pullback, scores
from riskmin._numba.shards.items import next_item
from riskmin._numba.traced import SCRATCH_LENGTH, line_sums, mixed_tangent, value_grad


@njit()
def _clear(a: Any) -> None:
    """Set all entries to zero: by the thread that adds to them, and not by the calling one before."""
    for i in range(len(a)):
        a[i] = 0.0


# ---------------------------------------------------------------- cached scores
@njit()
def line_sums_of_ranges(
    progress: Any, memory: Any,
    ends: Any, z: Any, dz: Any, t: float, b: float, y: Any, c: Any, k: Any, address: int, out: Any,
) -> None:  # fmt: skip
    """Add the loss at z + t dz + b of range s and its slopes in t and b to out[s]."""
    s = next_item(progress)
    while s >= 0:
        i, j = ends[s], ends[s + 1]
        line_sums(z[i:j], dz[i:j], t, b, y[i:j], c[i:j], k, address, False, memory, out[s])
        s = next_item(progress)


@njit()
def advance_ranges(progress: Any, memory: Any, ends: Any, z: Any, dz: Any, t: float, largest: Any) -> None:
    """Set z to z + t dz, rounded after each operation, and largest[s] to max |z| of range s."""
    s = next_item(progress)
    while s >= 0:
        for i in range(ends[s], ends[s + 1]):
            z[i] = z[i] + t * dz[i]
        largest[s] = _max_abs(z[ends[s] : ends[s + 1]])
        s = next_item(progress)


@njit()
def _max_abs(z: Any) -> float:
    """max_i |z_i|, NaN where an entry is, 0 without entries."""
    largest = 0.0
    is_nan = False
    for i in range(len(z)):
        is_nan |= z[i] != z[i]
        largest = max(largest, abs(z[i]))
    return np.nan if is_nan else largest


# ---------------------------------------------------------------- products
@njit()
def scores_of_ranges(
    progress: Any, memory: Any, ends: Any, steps: Any, X: Any, w: Any, z: Any, largest: Any
) -> None:
    """Set z to X w, and largest[s] to max |z| of range s."""
    s = next_item(progress)
    while s >= 0:
        for i in range(ends[s], ends[s + 1], steps[s]):
            j = min(i + steps[s], ends[s + 1])
            scores(X, w, i, j, z[i:j])
        largest[s] = _max_abs(z[ends[s] : ends[s + 1]])
        s = next_item(progress)


@njit()
def _pullback(X: Any, dz: Any, start: int, stop: int, step: int, grad: Any) -> None:
    """Set grad to X' dz of rows start to stop - 1, of which dz has one entry each."""
    _clear(grad)
    for i in range(start, stop, step):
        j = min(i + step, stop)
        pullback(X, dz[i - start : j - start], i, j, grad)


@njit()
def pullback_of_ranges(
    progress: Any, memory: Any, ends: Any, steps: Any, X: Any, dz: Any, p: int, grads: Any
) -> None:
    """Set the first p entries of grads[s] to X' dz of range s."""
    s = next_item(progress)
    while s >= 0:
        i, j = ends[s], ends[s + 1]
        _pullback(X, dz[i:j], i, j, steps[s], grads[s][:p])
        s = next_item(progress)


@njit()
def cut_of_ranges(
    progress: Any, memory: Any,
    ends: Any, steps: Any, X: Any, z: Any, dz: Any, t: float, shifts: Any, mix: Any, y: Any, c: Any, k: Any,
    address: int, p: int, grads: Any, out: Any,
) -> None:  # fmt: skip
    """Set the first p entries of grads[s] to sum_j mix_j of the gradients at z + t dz + shifts_j of range s.

    The sums of a cut are added to out[s]. The slopes of a range are in memory of this thread, and still in
    cache when X' multiplies them.
    """
    s = next_item(progress)
    while s >= 0:
        i, j = ends[s], ends[s + 1]
        slopes = memory[SCRATCH_LENGTH : SCRATCH_LENGTH + j - i]
        mixed_tangent(z[i:j], dz[i:j], t, shifts, mix, y[i:j], c[i:j], k, address, memory, slopes, out[s])
        _pullback(X, slopes, i, j, steps[s], grads[s][:p])
        s = next_item(progress)


# ---------------------------------------------------------------- one pass over X
@njit()
def hessian_product_of_ranges(
    progress: Any, memory: Any, ends: Any, steps: Any, X: Any, d: Any, h: Any, products: Any
) -> None:
    """Set the first entries of products[s] to X' diag(h) X d of range s."""
    s = next_item(progress)
    while s >= 0:
        product = products[s][: len(d)]
        _clear(product)
        for i in range(ends[s], ends[s + 1], steps[s]):
            j = min(i + steps[s], ends[s + 1])
            scores(X, d, i, j, memory)
            for m in range(i, j):
                memory[m - i] *= h[m]
            pullback(X, memory, i, j, product)
        s = next_item(progress)


@njit()
def value_grad_of_ranges(
    progress: Any, memory: Any,
    ends: Any, steps: Any, X: Any, w: Any, y: Any, c: Any, k: Any, address: int, grads: Any, out: Any,
) -> None:  # fmt: skip
    """Add the loss of range s at X w to out[s], and set the first entries of grads[s] to its gradient."""
    s = next_item(progress)
    while s >= 0:
        i, j, grad = ends[s], ends[s + 1], grads[s][: len(w)]
        _clear(grad)
        value_grad(X, w, 0.0, y, c, k, address, i, j, steps[s], memory, grad, out[s])
        s = next_item(progress)


# ---------------------------------------------------------------- Gram matrices, a check and a sum
@njit()
def gram_of_ranges(
    progress: Any, memory: Any, ends: Any, X: Any, h: Any, syrk: int, block_rows: int, grams: Any
) -> None:
    """Set grams[s] to the upper triangle of X' diag(h) X of range s of dense rows."""
    s = next_item(progress)
    while s >= 0:
        for j in range(grams.shape[1]):
            _clear(grams[s, j])
        gram(X, h, ends[s], ends[s + 1], syrk, memory, block_rows, grams[s])
        s = next_item(progress)


@njit()
def gram_diagonal_of_ranges(progress: Any, memory: Any, ends: Any, X: Any, h: Any, p: int, out: Any) -> None:
    """Set the first p entries of out[s] to the diagonal of X' diag(h) X of range s in CSR."""
    s = next_item(progress)
    while s >= 0:
        i, j, diagonal = ends[s], ends[s + 1], out[s][:p]
        _clear(diagonal)
        csr_gram_diagonal(X[0][i : j + 1], X[1], X[2], h[i:j], diagonal)
        s = next_item(progress)


@njit(fastmath={"reassoc"})
def _all_finite(values: Any) -> bool:
    """Whether no entry is NaN or infinite: such an entry times 0 is NaN, and so is any sum with it."""
    total = 0.0
    for i in range(len(values)):
        total += 0.0 * values[i]
    return total == 0.0


@njit()
def finite_ranges(progress: Any, memory: Any, ends: Any, values: Any, out: Any) -> None:
    """Set out[s] to whether all entries of range s of some values are finite."""
    s = next_item(progress)
    while s >= 0:
        out[s] = _all_finite(values[ends[s] : ends[s + 1]])
        s = next_item(progress)


def _at(typing: Any, like: Any, address: Any, n: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.return_type)(context, builder)
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(like.dtype)))
        data = builder.inttoptr(args[1], array.data.type)
        populate: Any = arrayobj.populate_array
        populate(array, data=data, shape=[args[2]], strides=[size], itemsize=size, meminfo=None)
        return array._getvalue()

    return types.Array(like.dtype, 1, "C")(like, types.int64, types.int64), codegen


at: Any = intrinsic(_at)
"""The n entries at an address, of the type of the entries of an array."""


@njit()
def sum_in_order(progress: Any, memory: Any, ends: Any, places: Any, total: Any) -> None:
    """Set total[ends[k] : ends[k + 1]] to the sums of the arrays at these addresses, added in order."""
    k = next_item(progress)
    while k >= 0:
        part = total[ends[k] : ends[k + 1]]
        first = at(total, places[0], len(total))[ends[k] : ends[k + 1]]
        for i in range(len(part)):
            part[i] = first[i]
        for m in range(1, len(places)):
            term = at(total, places[m], len(total))[ends[k] : ends[k + 1]]
            for i in range(len(part)):
                part[i] += term[i]
        k = next_item(progress)
