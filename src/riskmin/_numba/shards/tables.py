"""Loops over several shards in one call, so that a thread takes the interpreter's lock once for all of them.

A table has one row of integers per shard, in the columns below: its numbers of rows and entries, and the
addresses of its arrays. Addresses of arrays that change from call to call, such as cached scores, are
vectors with one entry per shard. Each loop calls the loop over the rows of a shard, so that results have the
same bits as those of one call per shard.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from riskmin._numba.compile_cache import njit
from riskmin._numba.products import csr_pullback, csr_scores, dense_pullback, dense_scores
from riskmin._numba.traced import csr_value_grad, dense_value_grad, line_sums, mixed_tangent

N_ROWS, N_ENTRIES, BLOCK_ROWS, LABELS, WEIGHTS, VALUES, INDICES, ROW_ENDS = range(8)
"""Columns of a table; dense rows have no indices and row ends."""


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
    table: Any, z: Any, dz: Any, t: float, b: float, k: Any, address: int, second: bool,
    scratch: Any, out: Any,
) -> None:  # fmt: skip
    """Add the loss at z + t dz + b of shard s and its derivatives in t and b to out[s]."""
    for s in range(len(table)):
        n, row = table[s, N_ROWS], table[s]
        y, c = at(k, row[LABELS], n), at(k, row[WEIGHTS], n)
        line_sums(at(k, z[s], n), at(k, dz[s], n), t, b, y, c, k, address, second, scratch, out[s])


@njit()
def mixed_tangents_of_shards(
    table: Any, z: Any, dz: Any, t: float, shifts: Any, mix: Any, k: Any, address: int,
    scratch: Any, slopes: Any, out: Any,
) -> None:  # fmt: skip
    """Set slopes, shard after shard, to sum_j mix_j of the gradients at z + t dz + shifts_j."""
    start = 0
    for s in range(len(table)):
        n, row = table[s, N_ROWS], table[s]
        y, c, part = at(k, row[LABELS], n), at(k, row[WEIGHTS], n), slopes[start : start + n]
        scores, step = at(k, z[s], n), at(k, dz[s], n)
        mixed_tangent(scores, step, t, shifts, mix, y, c, k, address, scratch, part, out[s])
        start += n


@njit()
def advance_shards(table: Any, z: Any, dz: Any, t: float, largest: Any) -> None:
    """Set z to z + t dz, rounded after each operation, and largest[s] to max |z| of shard s."""
    for s in range(len(table)):
        n = table[s, N_ROWS]
        scores, step = at(largest, z[s], n), at(largest, dz[s], n)
        for i in range(n):
            scores[i] = scores[i] + t * step[i]
        largest[s] = _max_abs(scores)


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
def dense_scores_of_shards(table: Any, X: Any, w: Any, z: Any, largest: Any) -> None:
    """Set z to X w and largest[s] to max |z| of shard s; X in C order, with entries like those given."""
    for s in range(len(table)):
        n, scores = table[s, N_ROWS], at(w, z[s], table[s, N_ROWS])
        dense_scores(matrix_at(X, table[s, VALUES], n, len(w)), w, 0, n, scores)
        largest[s] = _max_abs(scores)


@njit()
def csr_scores_of_shards(
    table: Any, indptr: Any, indices: Any, data: Any, w: Any, z: Any, largest: Any
) -> None:
    """Set z to X w and largest[s] to max |z| of shard s, for CSR matrices with entries like those given."""
    for s in range(len(table)):
        n, scores = table[s, N_ROWS], at(w, z[s], table[s, N_ROWS])
        ends, columns, values = _csr(table[s], indptr, indices, data)
        csr_scores(ends, columns, values, w, 0, n, scores)
        largest[s] = _max_abs(scores)


@njit()
def dense_pullback_of_shards(table: Any, X: Any, dz: Any, grads: Any) -> None:
    """Add X' dz of shard s to grads[s]; dz are addresses."""
    for s in range(len(table)):
        n, p = table[s, N_ROWS], grads.shape[1]
        dense_pullback(matrix_at(X, table[s, VALUES], n, p), at(grads, dz[s], n), 0, n, grads[s])


@njit()
def csr_pullback_of_shards(table: Any, indptr: Any, indices: Any, data: Any, dz: Any, grads: Any) -> None:
    """Add X' dz of shard s to grads[s], for CSR matrices; dz are addresses."""
    for s in range(len(table)):
        n = table[s, N_ROWS]
        ends, columns, values = _csr(table[s], indptr, indices, data)
        csr_pullback(ends, columns, values, at(grads, dz[s], n), 0, n, grads[s])


@njit(inline="always")
def _csr(row: Any, indptr: Any, indices: Any, data: Any) -> Any:
    """The row ends, columns and values of a shard."""
    ends = at(indptr, row[ROW_ENDS], row[N_ROWS] + 1)
    return ends, at(indices, row[INDICES], row[N_ENTRIES]), at(data, row[VALUES], row[N_ENTRIES])


# ---------------------------------------------------------------- one pass over X
@njit()
def dense_hessian_product_of_shards(table: Any, X: Any, d: Any, h: Any, scratch: Any, products: Any) -> None:
    """Add X' diag(h) X d of shard s to products[s]; h are addresses, X in C order."""
    for s in range(len(table)):
        n, p, curvatures = table[s, N_ROWS], len(d), at(d, h[s], table[s, N_ROWS])
        rows = matrix_at(X, table[s, VALUES], n, p)
        for i in range(0, n, table[s, BLOCK_ROWS]):
            j = min(i + table[s, BLOCK_ROWS], n)
            dense_scores(rows, d, i, j, scratch)
            for k in range(j - i):
                scratch[k] *= curvatures[i + k]
            dense_pullback(rows, scratch, i, j, products[s])


@njit()
def csr_hessian_product_of_shards(
    table: Any, indptr: Any, indices: Any, data: Any, d: Any, h: Any, scratch: Any, products: Any
) -> None:
    """Do the same for CSR matrices."""
    for s in range(len(table)):
        n, curvatures = table[s, N_ROWS], at(d, h[s], table[s, N_ROWS])
        ends, columns, values = _csr(table[s], indptr, indices, data)
        for i in range(0, n, table[s, BLOCK_ROWS]):
            j = min(i + table[s, BLOCK_ROWS], n)
            csr_scores(ends, columns, values, d, i, j, scratch)
            for k in range(j - i):
                scratch[k] *= curvatures[i + k]
            csr_pullback(ends, columns, values, scratch, i, j, products[s])


@njit()
def dense_value_grad_of_shards(
    table: Any, X: Any, w: Any, k: Any, address: int, scratch: Any, grads: Any, out: Any
) -> None:
    """Add the loss of shard s at X w, and its gradient, to out[s] and grads[s]; X in C order."""
    for s in range(len(table)):
        n, rows, row = table[s, N_ROWS], table[s, BLOCK_ROWS], table[s]
        y, c = at(w, row[LABELS], n), at(w, row[WEIGHTS], n)
        part = matrix_at(X, row[VALUES], n, len(w))
        dense_value_grad(part, w, 0.0, y, c, k, address, 0, n, rows, scratch, grads[s], out[s])


@njit()
def csr_value_grad_of_shards(
    table: Any, indptr: Any, indices: Any, data: Any, w: Any, k: Any, address: int, scratch: Any,
    grads: Any, out: Any,
) -> None:  # fmt: skip
    """Do the same for CSR matrices."""
    for s in range(len(table)):
        n, rows, row = table[s, N_ROWS], table[s, BLOCK_ROWS], table[s]
        y, c = at(w, row[LABELS], n), at(w, row[WEIGHTS], n)
        ends, columns, values = _csr(row, indptr, indices, data)
        csr_value_grad(ends, columns, values, w, 0.0, y, c, k, address, 0, n, rows, scratch, grads[s], out[s])
