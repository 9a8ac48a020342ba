"""Loops over shards that threads share: each thread takes the interpreter's lock once for all of its shards.

A table has one row of integers per shard, in the columns below: its numbers of rows and entries, and the
addresses of its arrays. Addresses of arrays that change from call to call, such as cached scores, are
vectors with one entry per shard. Each loop calls the loop over the rows of a shard, so that results have the
same bits as those of one call per shard.

Each loop gets the progress of the shards (see `items`) and the memory of its thread. There are three formats:
dense in C order, dense by columns, and CSR. `like` are arrays of the types of those of all shards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from riskmin._numba.compile_cache import njit
from riskmin._numba.gram import columns_gram, dense_gram
from riskmin._numba.products import (
    columns_pullback,
    columns_scores,
    csr_pullback,
    csr_scores,
    dense_pullback,
    dense_scores,
)
from riskmin._numba.shards.items import next_item
from riskmin._numba.traced import (
    SCRATCH_LENGTH,
    columns_value_grad,
    csr_value_grad,
    dense_value_grad,
    line_sums,
    mixed_tangent,
)

N_ROWS, N_ENTRIES, BLOCK_ROWS, PRODUCT_ROWS, LABELS, WEIGHTS, VALUES, INDICES, ROW_ENDS, STEP = range(10)
"""Columns of a table. Compiled losses take blocks of BLOCK_ROWS rows, and products by columns blocks of
PRODUCT_ROWS; CSR has the addresses of column indices and row ends, and format by columns the distance STEP
of two columns, with the number of entries from the first to the last one."""


def _array_at(context: Any, builder: Any, kind: Any, address: Any, shape: list[Any]) -> Any:
    """Build an array in C order at an address; no function returns one, since kernels count no references."""
    array = context.make_array(kind)(context, builder)
    size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    # bytes between two entries of the last axis, and of those before it
    strides = [size]
    for n in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], n))
    populate: Any = arrayobj.populate_array
    populate(
        array,
        data=builder.inttoptr(address, array.data.type),
        shape=shape,
        strides=strides,
        itemsize=size,
        meminfo=None,
    )
    return array._getvalue()


def _at(typing: Any, like: Any, address: Any, n: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _array_at(context, builder, signature.return_type, args[1], [args[2]])

    return types.Array(like.dtype, 1, "C")(like, types.int64, types.int64), codegen


def _matrix_at(typing: Any, like: Any, address: Any, n: Any, p: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _array_at(context, builder, signature.return_type, args[1], [args[2], args[3]])

    result = types.Array(like.dtype, 2, "C")
    return result(like, types.int64, types.int64, types.int64), codegen


at: Any = intrinsic(_at)
"""The n entries at an address, of the type of the entries of an array."""
matrix_at: Any = intrinsic(_matrix_at)
"""The n x p entries at an address, in C order, of the type of the entries of an array."""


# ---------------------------------------------------------------- cached scores
@njit()
def line_sums_of_shards(
    progress: Any, memory: Any,
    table: Any, z: Any, dz: Any, t: float, b: float, k: Any, address: int, second: bool,
    out: Any,
) -> None:  # fmt: skip
    """Add the loss at z + t dz + b of shard s and its derivatives in t and b to out[s]."""
    s = next_item(progress)
    while s >= 0:
        n, row = table[s, N_ROWS], table[s]
        y, c = at(k, row[LABELS], n), at(k, row[WEIGHTS], n)
        line_sums(at(k, z[s], n), at(k, dz[s], n), t, b, y, c, k, address, second, memory, out[s])
        s = next_item(progress)


@njit(inline="always")
def _mixed_tangent(
    row: Any, z: int, dz: int, t: float, shifts: Any, mix: Any, k: Any, address: int, memory: Any, out: Any
) -> Any:
    """Return sum_j mix_j of the gradients at z + t dz + shifts_j of a shard, in the memory of this thread."""
    n = row[N_ROWS]
    y, c, part = at(k, row[LABELS], n), at(k, row[WEIGHTS], n), memory[SCRATCH_LENGTH : SCRATCH_LENGTH + n]
    mixed_tangent(at(k, z, n), at(k, dz, n), t, shifts, mix, y, c, k, address, memory, part, out)
    return part


@njit()
def advance_shards(progress: Any, memory: Any, table: Any, z: Any, dz: Any, t: float, largest: Any) -> None:
    """Set z to z + t dz, rounded after each operation, and largest[s] to max |z| of shard s."""
    s = next_item(progress)
    while s >= 0:
        n = table[s, N_ROWS]
        scores, step = at(largest, z[s], n), at(largest, dz[s], n)
        for i in range(n):
            scores[i] = scores[i] + t * step[i]
        largest[s] = _max_abs(scores)
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


# ---------------------------------------------------------------- the products of a shard
@njit(inline="always")
def _csr(row: Any, like: Any) -> Any:
    """The row ends, columns and values of a shard."""
    indptr, indices, data = like
    ends = at(indptr, row[ROW_ENDS], row[N_ROWS] + 1)
    return ends, at(indices, row[INDICES], row[N_ENTRIES]), at(data, row[VALUES], row[N_ENTRIES])


@njit(inline="always")
def _dense(row: Any, like: Any, p: int) -> Any:
    """The rows of a shard in C order."""
    return matrix_at(like[0], row[VALUES], row[N_ROWS], p)


@njit(inline="always")
def _columns(row: Any, like: Any) -> Any:
    """The entries of a shard from its first to its last column."""
    return at(like[0], row[VALUES], row[N_ENTRIES])


@njit()
def _columns_pullback(T: Any, row: Any, dz: Any, grad: Any) -> None:
    """Add X' dz of a shard by columns to grad, block by block, as array code does."""
    for i in range(0, row[N_ROWS], row[PRODUCT_ROWS]):
        j = min(i + row[PRODUCT_ROWS], row[N_ROWS])
        columns_pullback(T, row[STEP], dz[i:j], i, j, grad)


# ---------------------------------------------------------------- scores
@njit()
def dense_scores_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, w: Any, z: Any, largest: Any
) -> None:
    """Set z to X w and largest[s] to max |z| of shard s."""
    s = next_item(progress)
    while s >= 0:
        n, scores = table[s, N_ROWS], at(w, z[s], table[s, N_ROWS])
        dense_scores(_dense(table[s], like, len(w)), w, 0, n, scores)
        largest[s] = _max_abs(scores)
        s = next_item(progress)


@njit()
def columns_scores_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, w: Any, z: Any, largest: Any
) -> None:
    """Do the same for dense matrices by columns, in blocks of rows that stay in cache."""
    s = next_item(progress)
    while s >= 0:
        n, row, scores = table[s, N_ROWS], table[s], at(w, z[s], table[s, N_ROWS])
        for i in range(0, n, row[PRODUCT_ROWS]):
            j = min(i + row[PRODUCT_ROWS], n)
            columns_scores(_columns(row, like), row[STEP], w, i, j, scores[i:j])
        largest[s] = _max_abs(scores)
        s = next_item(progress)


@njit()
def csr_scores_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, w: Any, z: Any, largest: Any
) -> None:
    """Do the same for CSR matrices."""
    s = next_item(progress)
    while s >= 0:
        n, scores = table[s, N_ROWS], at(w, z[s], table[s, N_ROWS])
        ends, columns, values = _csr(table[s], like)
        csr_scores(ends, columns, values, w, 0, n, scores)
        largest[s] = _max_abs(scores)
        s = next_item(progress)


# ---------------------------------------------------------------- adjoints
@njit()
def dense_pullback_of_shards(progress: Any, memory: Any, table: Any, like: Any, dz: Any, grads: Any) -> None:
    """Add X' dz of shard s to grads[s]; dz are addresses."""
    s = next_item(progress)
    while s >= 0:
        n, X = table[s, N_ROWS], _dense(table[s], like, grads.shape[1])
        dense_pullback(X, at(grads, dz[s], n), 0, n, grads[s])
        s = next_item(progress)


@njit()
def columns_pullback_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, dz: Any, grads: Any
) -> None:
    """Do the same for dense matrices by columns."""
    s = next_item(progress)
    while s >= 0:
        row = table[s]
        _columns_pullback(_columns(row, like), row, at(grads, dz[s], row[N_ROWS]), grads[s])
        s = next_item(progress)


@njit()
def csr_pullback_of_shards(progress: Any, memory: Any, table: Any, like: Any, dz: Any, grads: Any) -> None:
    """Do the same for CSR matrices."""
    s = next_item(progress)
    while s >= 0:
        n = table[s, N_ROWS]
        ends, columns, values = _csr(table[s], like)
        csr_pullback(ends, columns, values, at(grads, dz[s], n), 0, n, grads[s])
        s = next_item(progress)


@njit()
def dense_cut_of_shards(
    progress: Any, memory: Any,
    table: Any, like: Any, z: Any, dz: Any, t: float, shifts: Any, mix: Any, k: Any,
    address: int, grads: Any, out: Any,
) -> None:  # fmt: skip
    """Add a mixture of tangents of shard s to grads[s], and its sums to out[s]."""
    s = next_item(progress)
    while s >= 0:
        row, n = table[s], table[s, N_ROWS]
        part = _mixed_tangent(row, z[s], dz[s], t, shifts, mix, k, address, memory, out[s])
        dense_pullback(_dense(row, like, grads.shape[1]), part, 0, n, grads[s])
        s = next_item(progress)


@njit()
def columns_cut_of_shards(
    progress: Any, memory: Any,
    table: Any, like: Any, z: Any, dz: Any, t: float, shifts: Any, mix: Any, k: Any,
    address: int, grads: Any, out: Any,
) -> None:  # fmt: skip
    """Do the same for dense matrices by columns."""
    s = next_item(progress)
    while s >= 0:
        row = table[s]
        part = _mixed_tangent(row, z[s], dz[s], t, shifts, mix, k, address, memory, out[s])
        _columns_pullback(_columns(row, like), row, part, grads[s])
        s = next_item(progress)


@njit()
def csr_cut_of_shards(
    progress: Any, memory: Any,
    table: Any, like: Any, z: Any, dz: Any, t: float, shifts: Any, mix: Any, k: Any,
    address: int, grads: Any, out: Any,
) -> None:  # fmt: skip
    """Do the same for CSR matrices."""
    s = next_item(progress)
    while s >= 0:
        row, n = table[s], table[s, N_ROWS]
        part = _mixed_tangent(row, z[s], dz[s], t, shifts, mix, k, address, memory, out[s])
        ends, columns, values = _csr(row, like)
        csr_pullback(ends, columns, values, part, 0, n, grads[s])
        s = next_item(progress)


# ---------------------------------------------------------------- one pass over X
@njit()
def _scale(z: Any, h: Any, start: int, stop: int) -> None:
    """Multiply the scores of rows start to stop - 1 by h."""
    for i in range(start, stop):
        z[i - start] *= h[i]


@njit()
def dense_hessian_product_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, d: Any, h: Any, products: Any
) -> None:
    """Add X' diag(h) X d of shard s to products[s]; h are addresses."""
    s = next_item(progress)
    while s >= 0:
        n, row, curvatures = table[s, N_ROWS], table[s], at(d, h[s], table[s, N_ROWS])
        X = _dense(row, like, len(d))
        for i in range(0, n, row[BLOCK_ROWS]):
            j = min(i + row[BLOCK_ROWS], n)
            dense_scores(X, d, i, j, memory)
            _scale(memory, curvatures, i, j)
            dense_pullback(X, memory, i, j, products[s])
        s = next_item(progress)


@njit()
def columns_hessian_product_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, d: Any, h: Any, products: Any
) -> None:
    """Do the same for dense matrices by columns."""
    s = next_item(progress)
    while s >= 0:
        n, row, curvatures = table[s, N_ROWS], table[s], at(d, h[s], table[s, N_ROWS])
        T = _columns(row, like)
        for i in range(0, n, row[PRODUCT_ROWS]):
            j = min(i + row[PRODUCT_ROWS], n)
            columns_scores(T, row[STEP], d, i, j, memory[: j - i])
            _scale(memory, curvatures, i, j)
            columns_pullback(T, row[STEP], memory, i, j, products[s])
        s = next_item(progress)


@njit()
def csr_hessian_product_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, d: Any, h: Any, products: Any
) -> None:
    """Do the same for CSR matrices."""
    s = next_item(progress)
    while s >= 0:
        n, row, curvatures = table[s, N_ROWS], table[s], at(d, h[s], table[s, N_ROWS])
        ends, columns, values = _csr(row, like)
        for i in range(0, n, row[BLOCK_ROWS]):
            j = min(i + row[BLOCK_ROWS], n)
            csr_scores(ends, columns, values, d, i, j, memory)
            _scale(memory, curvatures, i, j)
            csr_pullback(ends, columns, values, memory, i, j, products[s])
        s = next_item(progress)


@njit()
def dense_value_grad_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, w: Any, k: Any, address: int, grads: Any, out: Any
) -> None:
    """Add the loss of shard s at X w, and its gradient, to out[s] and grads[s]."""
    s = next_item(progress)
    while s >= 0:
        n, rows, row = table[s, N_ROWS], table[s, BLOCK_ROWS], table[s]
        y, c = at(w, row[LABELS], n), at(w, row[WEIGHTS], n)
        X = _dense(row, like, len(w))
        dense_value_grad(X, w, 0.0, y, c, k, address, 0, n, rows, memory, grads[s], out[s])
        s = next_item(progress)


@njit()
def columns_value_grad_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, w: Any, k: Any, address: int, grads: Any, out: Any
) -> None:
    """Do the same for dense matrices by columns."""
    s = next_item(progress)
    while s >= 0:
        n, rows, row = table[s, N_ROWS], table[s, BLOCK_ROWS], table[s]
        y, c = at(w, row[LABELS], n), at(w, row[WEIGHTS], n)
        T = _columns(row, like)
        columns_value_grad(T, row[STEP], w, 0.0, y, c, k, address, 0, n, rows, memory, grads[s], out[s])
        s = next_item(progress)


@njit()
def csr_value_grad_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, w: Any, k: Any, address: int, grads: Any, out: Any
) -> None:
    """Do the same for CSR matrices."""
    s = next_item(progress)
    while s >= 0:
        n, rows, row = table[s, N_ROWS], table[s, BLOCK_ROWS], table[s]
        y, c = at(w, row[LABELS], n), at(w, row[WEIGHTS], n)
        ends, columns, values = _csr(row, like)
        csr_value_grad(ends, columns, values, w, 0.0, y, c, k, address, 0, n, rows, memory, grads[s], out[s])
        s = next_item(progress)


# ---------------------------------------------------------------- Gram matrices, and a check
@njit()
def dense_gram_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, h: Any, syrk: int, block_rows: int, grams: Any
) -> None:
    """Add the upper triangle of X' diag(h) X of shard s to grams[s]; h are addresses."""
    s = next_item(progress)
    while s >= 0:
        n, X = table[s, N_ROWS], _dense(table[s], like, grams.shape[1])
        dense_gram(X, at(grams, h[s], n), 0, n, syrk, memory, block_rows, grams[s])
        s = next_item(progress)


@njit()
def columns_gram_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, h: Any, syrk: int, block_rows: int, grams: Any
) -> None:
    """Do the same for dense matrices by columns."""
    s = next_item(progress)
    while s >= 0:
        row, n = table[s], table[s, N_ROWS]
        T = _columns(row, like)
        columns_gram(T, row[STEP], at(grams, h[s], n), 0, n, syrk, memory, block_rows, grams[s])
        s = next_item(progress)


@njit(fastmath={"reassoc"})
def _all_finite(values: Any) -> bool:
    """Whether no entry is NaN or infinite: such an entry times 0 is NaN, and so is any sum with it."""
    total = 0.0
    for i in range(len(values)):
        total += 0.0 * values[i]
    return total == 0.0


@njit()
def finite_shards(progress: Any, memory: Any, table: Any, values: Any, out: Any) -> None:
    """Set out[s] to whether all stored entries of shard s are finite."""
    s = next_item(progress)
    while s >= 0:
        n, step, entries = table[s, N_ROWS], table[s, STEP], at(values, table[s, VALUES], table[s, N_ENTRIES])
        if step == 0:
            out[s] = _all_finite(entries)
        else:  # by columns, between which are rows of other shards
            out[s] = True
            for j in range(0, len(entries), step):
                out[s] &= _all_finite(entries[j : j + n])
        s = next_item(progress)


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
