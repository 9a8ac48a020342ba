"""Compiled blocks of traced losses, and the loops over rows that call them.

A traced loss is compiled once, as a C function of a block of rows: it reads scores, labels and weights and
writes values, slopes, offsets and second derivatives, one operation of the array code after the other, in
double precision without contraction, so that the compiler vectorizes it and its results have the bits of the
array code (those of exp and log up to rounding). The loops over X and over cached scores get its address, so
that each is compiled once per storage format for all losses. None of them holds the interpreter's lock.

The scratch memory of a block has `STRIDE` entries for each of its rows `SCORES` to `CURVATURES`: constant
distances show the compiler that they do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from riskmin._numba.compile_cache import KernelCache, import_generated, njit, private_options
from riskmin._numba.products import pullback, scores

MAX_BLOCK_ROWS = 1024
STRIDE = MAX_BLOCK_ROWS + 8
"""No multiple of 4096 bytes, so that the rows of the scratch memory fall into different sets of the cache."""
SCORES, VALUES, SLOPES, OFFSETS, CURVATURES = range(5)
SCRATCH_LENGTH = 5 * STRIDE
VALUE, SLOPE_T, SLOPE_B, OFFSET, ABS_SLOPE, CURVATURE_T, CURVATURE_TB, CURVATURE_B = range(8)
"""Slots of the sums over rows at z + t dz + b: the loss, its first and second derivatives in t and b."""
MIX_VALUE, MIX_OFFSET, MIX_SIZE, MIX_CANCELLATION = range(4)
"""Slots of `mixed_tangent`: the loss, the minorant offset, and the sizes of the terms that cancel."""

TEMPLATE = '''"""A loss, traced from its array code."""
import math
import numpy as np
from riskmin._numba.exponential import exp, log, log1p


def block(n, s, ys, cs, k):
{parameters}
    for i in range(n):
        z, y, c = s[i], ys[i], cs[i]
{lines}
        s[{stride} + i] = {outputs[0]}
        s[{stride} * 2 + i] = {outputs[1]}
        s[{stride} * 3 + i] = {outputs[2]}
        s[{stride} * 4 + i] = {outputs[3]}
'''


# ---------------------------------------------------------------- the function of a block
def block_source(lines: Sequence[str], n_parameters: int, outputs: Sequence[str]) -> str:
    """Return the source of the function of a block of rows."""
    return TEMPLATE.format(
        parameters="\n".join(f"    k{j} = k[{j}]" for j in range(n_parameters)),
        lines="\n".join(f"        {line}" for line in lines),
        stride=STRIDE,
        outputs=outputs,
    )


@cache
def block_address(source: str) -> int:
    """Return the address of the compiled function of a block of rows; the code is in the cache on disk."""
    function = import_generated(source, "traced").block
    number = types.CPointer(types.float64)  # type: ignore[no-untyped-call]
    signature = (types.int64, number, number, number, number), types.void
    options = {"error_model": "numpy", "nopython": True, **private_options(_nrt=False)}
    compiled: Any = CFunc(function, signature, {}, options)
    compiled._cache = KernelCache(function)
    compiled.compile()
    _compiled.append(compiled)
    return int(compiled.address)


_compiled: list[Any] = []
"""The compiled functions, whose code lives as long as they do."""


def _call_block(typing: Any, address: Any, n: Any, scratch: Any, y: Any, c: Any, start: Any, k: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ir: Any = cgutils.ir  # type: ignore[attr-defined]

        def data(position: int) -> Any:
            return context.make_array(signature.args[position])(context, builder, args[position]).data

        double, i64 = ir.DoubleType().as_pointer(), ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [i64, double, double, double, double])
        function = builder.inttoptr(args[0], kind.as_pointer())
        labels, weights = builder.gep(data(3), [args[5]]), builder.gep(data(4), [args[5]])
        builder.call(function, [args[1], data(2), labels, weights, data(6)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, scratch, y, c, types.int64, k), codegen


call_block: Any = intrinsic(_call_block)
"""Call the function at an address on n rows, from row `start` of y and c on."""


# ---------------------------------------------------------------- sums over a block
@njit()
def _shift(z: Any, dz: Any, t: float, b: float, start: int, n: int, scratch: Any) -> None:
    """Set the scores to (z + t dz) + b, rounded after each operation as in the array code."""
    if t == 0.0:
        for i in range(n):
            scratch[i] = z[start + i] + b
        return
    for i in range(n):
        scratch[i] = (z[start + i] + t * dz[start + i]) + b


@njit(fastmath={"contract", "reassoc", "nsz"})
def _add_sums(scratch: Any, n: int, out: Any) -> None:
    """Add the sums of values, slopes, offsets and absolute slopes of a block to out."""
    value = slope = offset = abs_slope = 0.0
    for i in range(n):
        value += scratch[STRIDE + i]
        slope += scratch[STRIDE * 2 + i]
        offset += scratch[STRIDE * 3 + i]
        abs_slope += abs(scratch[STRIDE * 2 + i])
    out[VALUE] += value
    out[SLOPE_B] += slope
    out[OFFSET] += offset
    out[ABS_SLOPE] += abs_slope


@njit(fastmath={"contract", "reassoc", "nsz"})
def _add_slopes(scratch: Any, dz: Any, start: int, n: int, second: bool, out: Any) -> None:
    """Add the slope in t, and second derivatives, of a block to out."""
    slope = tt = tb = bb = 0.0
    for i in range(n):
        slope += scratch[STRIDE * 2 + i] * dz[start + i]
    out[SLOPE_T] += slope
    if second:
        for i in range(n):
            h, d = scratch[STRIDE * 4 + i], dz[start + i]
            tt += h * d * d
            tb += h * d
            bb += h
        out[CURVATURE_T] += tt
        out[CURVATURE_TB] += tb
        out[CURVATURE_B] += bb


# ---------------------------------------------------------------- cached scores
@njit()
def line_sums(
    z: Any, dz: Any, t: float, b: float, y: Any, c: Any, k: Any, address: int, second: bool,
    scratch: Any, out: Any,
) -> None:  # fmt: skip
    """Add the loss at z + t dz + b and its derivatives in t and b to out, in the slots above."""
    for start in range(0, len(z), MAX_BLOCK_ROWS):
        n = min(MAX_BLOCK_ROWS, len(z) - start)
        _shift(z, dz, t, b, start, n, scratch)
        call_block(address, n, scratch, y, c, start, k)
        _add_sums(scratch, n, out)
        _add_slopes(scratch, dz, start, n, second, out)


@njit(fastmath={"contract", "reassoc", "nsz"})
def _add_sizes(z: Any, dz: Any, t: float, shift: float, start: int, n: int, slopes: Any, out: Any) -> None:
    """Add sum |g| (|z + t dz| + shift) and sum |g| (|z| + |t dz|) of a block to out."""
    size = cancellation = 0.0
    for i in range(start, start + n):
        step, g = t * dz[i], abs(slopes[i])
        size += g * (abs(z[i] + step) + shift)
        cancellation += g * (abs(z[i]) + abs(step))
    out[MIX_SIZE] += size
    out[MIX_CANCELLATION] += cancellation


@njit(fastmath={"reassoc", "nsz"})
def _mix(scratch: Any, weight: float, start: int, n: int, slopes: Any, out: Any) -> None:
    """Add the tangents of a block, times a weight, to slopes and out."""
    value = offset = 0.0
    for i in range(n):
        value += scratch[STRIDE + i]
        offset += scratch[STRIDE * 3 + i]
        slopes[start + i] += weight * scratch[STRIDE * 2 + i]
    out[MIX_VALUE] += weight * value
    out[MIX_OFFSET] += weight * offset


@njit()
def mixed_tangent(
    z: Any, dz: Any, t: float, shifts: Any, mix: Any, y: Any, c: Any, k: Any, address: int,
    scratch: Any, slopes: Any, out: Any,
) -> None:  # fmt: skip
    """Set slopes to sum_j mix_j of the gradients at z + t dz + shifts_j, and add the sums of a cut to out."""
    largest = 0.0
    for j in range(len(shifts)):
        largest = max(largest, abs(shifts[j]))
    for start in range(0, len(z), MAX_BLOCK_ROWS):
        n = min(MAX_BLOCK_ROWS, len(z) - start)
        for i in range(start, start + n):
            slopes[i] = 0.0
        for j in range(len(shifts)):
            _shift(z, dz, t, shifts[j], start, n, scratch)
            call_block(address, n, scratch, y, c, start, k)
            _mix(scratch, mix[j], start, n, slopes, out)
        _add_sizes(z, dz, t, largest, start, n, slopes, out)


# ---------------------------------------------------------------- one pass over X
@njit()
def _finish_scores(scratch: Any, n: int, b: float) -> None:
    """Add b to the scores of a block."""
    if b != 0.0:
        for i in range(n):
            scratch[i] += b


@njit()
def value_grad(
    X: Any, w: Any, b: float, y: Any, c: Any, k: Any, address: int, start: int, stop: int, rows: int,
    scratch: Any, grad: Any, out: Any,
) -> None:  # fmt: skip
    """Add the loss of rows start to stop - 1 at X w + b, and its gradient, to out and grad."""
    for i in range(start, stop, rows):
        n = min(rows, stop - i)
        scores(X, w, i, i + n, scratch)
        _finish_scores(scratch, n, b)
        call_block(address, n, scratch, y, c, i, k)
        _add_sums(scratch, n, out)
        pullback(X, scratch[2 * STRIDE :], i, i + n, grad)


def scratch_memory() -> Any:
    """Return scratch memory for one block of rows."""
    return np.empty(SCRATCH_LENGTH)
