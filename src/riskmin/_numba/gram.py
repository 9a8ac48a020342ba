r"""The products :math:`X^\top H X` of Newton's method: for diagonal H, and for pair blocks over sorted rows.

The windows of sorted rows slide: each sum follows from the one before by adding the rows that enter and
subtracting the rows that leave, so that a row is visited at most twice, however many windows contain it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from riskmin._numba.compile_cache import njit


# ---------------------------------------------------------------- dense rows, by BLAS
def _call_syrk(
    typing: Any, address: Any, transposed: Any, p: Any, m: Any, Y: Any, distance: Any, out: Any
) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ir: Any = cgutils.ir  # type: ignore[attr-defined]
        alloca: Any = cgutils.alloca_once_value
        char, i32, double = ir.IntType(8), ir.IntType(32), ir.DoubleType()

        def by_reference(value: Any) -> Any:
            return alloca(builder, value)

        def data(position: int) -> Any:
            return context.make_array(signature.args[position])(context, builder, args[position]).data

        # the upper triangle of out in C order is the lower one in Fortran's order
        trans = builder.select(args[1], char(ord("T")), char(ord("N")))
        sizes = [by_reference(builder.trunc(args[k], i32)) for k in (2, 3, 5)]
        one = by_reference(double(1.0))
        kinds = [char, char, i32, i32, double, double, i32, double, double, i32]
        kind = ir.FunctionType(ir.VoidType(), [k.as_pointer() for k in kinds])
        operands = [by_reference(char(ord("L"))), by_reference(trans), sizes[0], sizes[1], one, data(4)]
        operands += [sizes[2], one, data(6), sizes[0]]
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), operands)
        return context.get_dummy_value()

    sizes = types.int64, types.int64, Y, types.int64
    return types.void(types.int64, types.boolean, *sizes, out), codegen


call_syrk: Any = intrinsic(_call_syrk)
"""Add the upper triangle of Y' Y to out, of shape (p, p), by the function dsyrk of BLAS at an address.

Row k of Y begins at k * distance, for m rows of p entries; or transposed, column j at j * distance.
"""


def syrk_address() -> int:
    """Return the address of dsyrk, from SciPy's BLAS."""
    address: int = get_cython_function_address("scipy.linalg.cython_blas", "dsyrk")
    return address


@njit()
def dense_gram(
    X: Any, h: Any, start: int, stop: int, syrk: int, memory: Any, block_rows: int, out: Any
) -> None:
    """Add the upper triangle of X' diag(h) X = Y' Y to out, for the rows start to stop - 1 in C order.

    Y = diag(h)^1/2 X has the rows with h != 0, block by block in the memory of block_rows rows.
    """
    p, m = X.shape[1], 0
    for i in range(start, stop):
        if h[i] != 0.0:
            root, row = math.sqrt(h[i]), memory[m * p : (m + 1) * p]
            for j in range(p):
                row[j] = X[i, j] * root
            m += 1
            if m == block_rows:
                call_syrk(syrk, False, p, m, memory, p, out)
                m = 0
    if m:
        call_syrk(syrk, False, p, m, memory, p, out)


@njit()
def columns_gram(
    T: Any, step: int, h: Any, start: int, stop: int, syrk: int, memory: Any, block_rows: int, out: Any
) -> None:
    """Do the same where column j of X begins at T[j * step]; the memory holds columns of block_rows entries.

    The positions of the rows with h != 0 come first in the memory, then Y.
    """
    p, rows, Y = len(out), memory[:block_rows], memory[block_rows:]
    i = start
    while i < stop:
        m = 0
        while i < stop and m < block_rows:
            if h[i] != 0.0:
                rows[m] = i
                m += 1
            i += 1
        for j in range(p):
            column, scaled = T[j * step : j * step + stop], Y[j * block_rows : j * block_rows + m]
            for k in range(m):
                position = int(rows[k])
                scaled[k] = column[position] * math.sqrt(h[position])
        if m:
            call_syrk(syrk, True, p, m, Y, block_rows, out)


@njit()
def gram(X: Any, h: Any, start: int, stop: int, syrk: int, memory: Any, block_rows: int, out: Any) -> None:
    """Do what these two do, for X = (matrix,) in C order, or (entries, step) by columns."""
    if len(X) == 1:
        dense_gram(X[0], h, start, stop, syrk, memory, block_rows, out)
    else:
        columns_gram(X[0], X[1], h, start, stop, syrk, memory, block_rows, out)


# ---------------------------------------------------------------- sparse rows, and pair blocks
@njit(fastmath={"contract"})
def csr_gram(indptr: Any, indices: Any, data: Any, h: Any, out: Any) -> None:
    """Add the upper triangle of sum_i h_i x_i x_i' to out."""
    for i in range(np.uintp(len(h))):
        if h[i] != 0.0:
            end = np.uintp(indptr[i + np.uintp(1)])
            for k in range(np.uintp(indptr[i]), end):
                column, v = indices[k], h[i] * data[k]
                out_row = out[column]
                out_row[column] += v * data[k]
                for m in range(k + np.uintp(1), end):
                    out_row[indices[m]] += v * data[m]


@njit(fastmath={"contract"})
def csr_gram_diagonal(indptr: Any, indices: Any, data: Any, h: Any, out: Any) -> None:
    """Add the diagonal of X' diag(h) X to out."""
    for i in range(np.uintp(len(h))):
        if h[i] != 0.0:
            for k in range(np.uintp(indptr[i]), np.uintp(indptr[i + np.uintp(1)])):
                out[indices[k]] += h[i] * data[k] * data[k]


@njit(fastmath={"contract"})
def csr_pair_block_gram(
    indptr: Any,
    indices: Any,
    data: Any,
    rows: Any,
    p: Any,
    others: Any,
    q: Any,
    first: Any,
    last: Any,
    ends: Any,
    window: Any,
    out: Any,
) -> None:
    """Add sum_i p_i x_rows[i] (sum of q_j x_others[j] for first_i <= j < last_i)' to out.

    first and last are nondecreasing. window, the sum over the current window, and ends, its range, are zero
    at the first call and go from call to call.
    """
    n = out.shape[1]
    start, stop = ends[0], ends[1]
    for i in range(len(rows)):
        if first[i] == last[i] or p[i] == 0.0:
            continue
        if first[i] >= stop:  # the windows do not overlap: start from zero
            for k in range(n):
                window[k] = 0.0
            start = stop = first[i]
        # rows that enter the window
        for j in range(stop, last[i]):
            for k in range(np.uintp(indptr[others[j]]), np.uintp(indptr[others[j] + 1])):
                window[indices[k]] += q[j] * data[k]
        # rows that leave it
        for j in range(start, first[i]):
            for k in range(np.uintp(indptr[others[j]]), np.uintp(indptr[others[j] + 1])):
                window[indices[k]] -= q[j] * data[k]
        start, stop = first[i], last[i]
        for k in range(np.uintp(indptr[rows[i]]), np.uintp(indptr[rows[i] + 1])):
            # rank-one update p_i x_i window'
            v, out_row = p[i] * data[k], out[indices[k]]
            for m in range(n):
                out_row[m] += v * window[m]
    ends[0], ends[1] = start, stop


@njit(fastmath={"contract"})
def dense_window_sums(
    X: Any, others: Any, q: Any, first: Any, last: Any, ends: Any, window: Any, out: Any
) -> None:
    """Compute out_i = sum of q_j x_others[j] for first_i <= j < last_i.

    ends and window go from call to call, as in `csr_pair_block_gram`.
    """
    n = X.shape[1]
    start, stop = ends[0], ends[1]
    for i in range(len(first)):
        # rows that enter the window, then rows that leave it
        for j in range(stop, last[i]):
            for k in range(n):
                window[k] += q[j] * X[others[j], k]
        for j in range(start, first[i]):
            for k in range(n):
                window[k] -= q[j] * X[others[j], k]
        start, stop = first[i], last[i]
        for k in range(n):
            out[i, k] = window[k]
    ends[0], ends[1] = start, stop
