"""Loops over shards that threads share: each thread takes the interpreter's lock once for all of its shards.

A table has one row of integers per shard, in the columns below: its numbers of rows and entries, and the
addresses of its arrays. Addresses of arrays that change from call to call, such as cached scores, are
vectors with one entry per shard. Each loop calls the loop over the rows of a shard, so that results have the
same bits as those of one call per shard.

Each loop gets the progress of the shards (see `items`) and the memory of its thread. `like` is a matrix as
in `products`, in one of three formats: that of all shards, for which Numba compiles the loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from riskmin._numba.compile_cache import njit
from riskmin._numba.gram import csr_gram_diagonal, gram
from riskmin._numba.products import pullback, scores
from riskmin._numba.shards.items import next_item
from riskmin._numba.traced import SCRATCH_LENGTH, line_sums, mixed_tangent, value_grad

(
    N_ROWS, N_COLUMNS, N_ENTRIES, LOSS_ROWS, PRODUCT_ROWS, HESSIAN_ROWS,
    LABELS, WEIGHTS, VALUES, INDICES, ROW_ENDS, STEP,
) = range(12)  # fmt: skip
"""Columns of a table. Compiled losses take blocks of LOSS_ROWS rows, products blocks of PRODUCT_ROWS, and two
products one after the other blocks of HESSIAN_ROWS. CSR has the addresses of column indices and row ends, and
format by columns the distance STEP of two columns, with the number of entries from the first to the last."""


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


def _matrix_at(typing: Any, like: Any, row: Any) -> Any:
    vectors: list[Any] = [types.Array(part.dtype, 1, "C") for part in like if isinstance(part, types.Array)]
    if len(like) == 3:
        places, kinds = [ROW_ENDS, INDICES, VALUES], vectors
    elif len(like) == 2:
        places, kinds = [VALUES], [*vectors, types.int64]
    else:
        places, kinds = [VALUES], [types.Array(like[0].dtype, 2, "C")]
    make_type: Any = types.Tuple
    result = make_type(kinds)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ir: Any = cgutils.ir  # type: ignore[attr-defined]
        data = context.make_array(signature.args[1])(context, builder, args[1]).data

        def number(k: int) -> Any:
            return builder.load(builder.gep(data, [ir.IntType(64)(k)]))

        shapes = {
            ROW_ENDS: [builder.add(number(N_ROWS), ir.IntType(64)(1))],
            INDICES: [number(N_ENTRIES)],
            VALUES: [number(N_ROWS), number(N_COLUMNS)] if len(like) == 1 else [number(N_ENTRIES)],
        }
        parts = [
            _array_at(context, builder, kind, number(place), shapes[place])
            for kind, place in zip(kinds, places, strict=False)
        ]
        parts += [number(STEP)] if len(like) == 2 else []
        return context.make_tuple(builder, signature.return_type, parts)

    return result(like, row), codegen


at: Any = intrinsic(_at)
"""The n entries at an address, of the type of the entries of an array."""
matrix_at: Any = intrinsic(_matrix_at)
"""The matrix of a row of a table, in the format of a matrix (see `products`)."""


@njit()
def _clear(a: Any) -> None:
    """Set all entries to zero: by the thread that adds to them, and not by the calling one before."""
    for i in range(len(a)):
        a[i] = 0.0


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


# ---------------------------------------------------------------- products
@njit()
def _pullback(X: Any, row: Any, dz: Any, grad: Any) -> None:
    """Set grad to X' dz of a shard, block by block, as array code does."""
    _clear(grad)
    for i in range(0, row[N_ROWS], row[PRODUCT_ROWS]):
        j = min(i + row[PRODUCT_ROWS], row[N_ROWS])
        pullback(X, dz[i:j], i, j, grad)


@njit()
def scores_of_shards(progress: Any, memory: Any, table: Any, like: Any, w: Any, z: Any, largest: Any) -> None:
    """Set z to X w, in blocks of rows that stay in cache, and largest[s] to max |z| of shard s."""
    s = next_item(progress)
    while s >= 0:
        row, n = table[s], table[s, N_ROWS]
        X, out = matrix_at(like, row), at(w, z[s], n)
        for i in range(0, n, row[PRODUCT_ROWS]):
            j = min(i + row[PRODUCT_ROWS], n)
            scores(X, w, i, j, out[i:j])
        largest[s] = _max_abs(out)
        s = next_item(progress)


@njit()
def pullback_of_shards(progress: Any, memory: Any, table: Any, like: Any, dz: Any, grads: Any) -> None:
    """Set the first entries of grads[s] to X' dz of shard s; dz are addresses."""
    s = next_item(progress)
    while s >= 0:
        row = table[s]
        _pullback(matrix_at(like, row), row, at(grads, dz[s], row[N_ROWS]), grads[s][: row[N_COLUMNS]])
        s = next_item(progress)


@njit()
def cut_of_shards(
    progress: Any, memory: Any,
    table: Any, like: Any, z: Any, dz: Any, t: float, shifts: Any, mix: Any, k: Any,
    address: int, grads: Any, out: Any,
) -> None:  # fmt: skip
    """Set the first entries of grads[s] to a mixture of tangents of shard s, and add its sums to out[s]."""
    s = next_item(progress)
    while s >= 0:
        row = table[s]
        part = _mixed_tangent(row, z[s], dz[s], t, shifts, mix, k, address, memory, out[s])
        _pullback(matrix_at(like, row), row, part, grads[s][: row[N_COLUMNS]])
        s = next_item(progress)


# ---------------------------------------------------------------- one pass over X
@njit()
def _scale(z: Any, h: Any, start: int, stop: int) -> None:
    """Multiply the scores of rows start to stop - 1 by h."""
    for i in range(start, stop):
        z[i - start] *= h[i]


@njit()
def hessian_product_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, d: Any, h: Any, products: Any
) -> None:
    """Set the first entries of products[s] to X' diag(h) X d of shard s; h are addresses."""
    s = next_item(progress)
    while s >= 0:
        row, n, product = table[s], table[s, N_ROWS], products[s][: len(d)]
        X, curvatures = matrix_at(like, row), at(d, h[s], n)
        _clear(product)
        for i in range(0, n, row[HESSIAN_ROWS]):
            j = min(i + row[HESSIAN_ROWS], n)
            scores(X, d, i, j, memory)
            _scale(memory, curvatures, i, j)
            pullback(X, memory, i, j, product)
        s = next_item(progress)


@njit()
def value_grad_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, w: Any, k: Any, address: int, grads: Any, out: Any
) -> None:
    """Add the loss of shard s at X w to out[s], and set the first entries of grads[s] to its gradient."""
    s = next_item(progress)
    while s >= 0:
        row, n, grad = table[s], table[s, N_ROWS], grads[s][: len(w)]
        X, y, c = matrix_at(like, row), at(w, row[LABELS], n), at(w, row[WEIGHTS], n)
        _clear(grad)
        value_grad(X, w, 0.0, y, c, k, address, 0, n, row[LOSS_ROWS], memory, grad, out[s])
        s = next_item(progress)


# ---------------------------------------------------------------- Gram matrices, and a check
@njit()
def gram_of_shards(
    progress: Any, memory: Any, table: Any, like: Any, h: Any, syrk: int, block_rows: int, grams: Any
) -> None:
    """Set grams[s] to the upper triangle of X' diag(h) X of shard s of dense rows; h are addresses."""
    s = next_item(progress)
    while s >= 0:
        n = table[s, N_ROWS]
        for j in range(grams.shape[1]):
            _clear(grams[s, j])
        gram(matrix_at(like, table[s]), at(grams, h[s], n), 0, n, syrk, memory, block_rows, grams[s])
        s = next_item(progress)


@njit()
def gram_diagonal_of_shards(progress: Any, memory: Any, table: Any, like: Any, h: Any, out: Any) -> None:
    """Set the first entries of out[s] to the diagonal of X' diag(h) X of shard s in CSR; h are addresses."""
    s = next_item(progress)
    while s >= 0:
        row = table[s]
        X, diagonal = matrix_at(like, row), out[s][: row[N_COLUMNS]]
        _clear(diagonal)
        csr_gram_diagonal(X[0], X[1], X[2], at(out, h[s], row[N_ROWS]), diagonal)
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
