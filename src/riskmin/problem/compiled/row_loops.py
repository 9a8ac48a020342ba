"""The functions of a shard for traced losses: compiled loops over its rows, without the interpreter's lock.

They do what the functions of `shard_ops` of the same purpose do with array code. The order of their sums
depends on the shard alone, so that results are the same for any number of threads, processes or workers.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np

from riskmin._numba import lazy_module
from riskmin.arrays.compressed import ROW_RANGE_FORMATS
from riskmin.arrays.dense import check_weight_count
from riskmin.arrays.memory_map import maps_exceed_budget, release_between
from riskmin.core import Array, LinearMap, NDArray, Shard
from riskmin.core.deadline import check, check_each, chunk_ranges
from riskmin.problem.compiled.tracing import RowProgram, TracedLoss, sampled_rows

PARTS_OF_BLOCK = 4
"""Blocks of rows have this share of those of array code, which are larger since it pays for calls."""

_thread = threading.local()
"""The scratch memory of each thread."""


_kernels = lazy_module("traced")


def agrees_with_array_code(traced: TracedLoss, y: NDArray, c: NDArray) -> bool:
    """Whether a compiled loss has the values, slopes and offsets of its array code on a sample of rows."""
    y, c = (np.array(a, dtype=np.float64) for a in sampled_rows(y, c))
    rows = Shard(None, y, c, {})  # type: ignore[arg-type]

    def compiled(z: NDArray) -> NDArray:
        sums = line_sums(rows, traced, z, None, 0.0, 0.0)
        slopes, _ = mixed_tangent(rows, traced, z, None, 0.0, [(0.0, 1.0)])
        return np.array([sums[0], sums[3], *slopes])

    try:
        with np.errstate(all="ignore"):
            return traced.agrees_with(compiled, y, c)
    # no Numba on this machine, an operation that it does not compile, or scores that the array code refuses
    except Exception:
        return False


@lru_cache(maxsize=64)
def program(program: RowProgram) -> tuple[NDArray, int]:
    """The parameters of a program and the address of its compiled block of rows."""
    k = _kernels()
    address = k.block_address(k.block_source(program.lines, len(program.parameters), program.outputs))
    return np.array(program.parameters or (0.0,)), address


def scratch_length() -> int:
    """The numbers of scratch memory that a compiled loss needs."""
    return int(_kernels().SCRATCH_LENGTH)


def scratch() -> NDArray:
    """The scratch memory of this thread."""
    if not hasattr(_thread, "scratch"):
        _thread.scratch = _kernels().scratch_memory()
    memory: NDArray = _thread.scratch
    return memory


def labels(shard: Shard) -> tuple[NDArray, NDArray]:
    """Labels and weights in double precision, contiguous; cached with the shard."""
    if "labels" not in shard.cache:
        y, c = shard.y, shard.c
        usable = y.dtype == np.float64 and y.flags.c_contiguous and y.flags.writeable
        y = y if usable else np.array(y, dtype=np.float64)
        shard.cache["labels"] = y, np.ascontiguousarray(c, dtype=np.float64)
    found: tuple[NDArray, NDArray] = shard.cache["labels"]
    return found


def line_sums(
    shard: Shard,
    traced: TracedLoss,
    z: NDArray,
    dz: NDArray | None,
    t: float,
    b: float,
    *,
    second: bool = False,
) -> NDArray:
    """The loss at z + t dz + b and its derivatives in t and b, in the slots of `_numba.traced`.

    Those are the value, the slopes in t and b, the minorant offset, the sum of the absolute slopes, and the
    second derivatives in t t, t b and b b, which are 0 unless asked for.
    """
    check()
    parameters, address = program(traced.second if second else traced.first)
    out, (y, c) = np.zeros(8), labels(shard)
    direction = z if dz is None else dz
    _kernels().line_sums(z, direction, t, b, y, c, parameters, address, second, scratch(), out)
    if dz is None:
        out[[1, 5, 6]] = 0.0
    return out


def mixed_tangent(
    shard: Shard, traced: TracedLoss, z: NDArray, dz: NDArray | None, t: float, mix: list[tuple[float, float]]
) -> tuple[NDArray, NDArray]:
    """The mixture of gradients in the scores z + t dz + b, for the pairs (b, weight) of mix, and four sums.

    The sums: the loss, the minorant offset, sum |g| (|z + t dz| + max |b|) and sum |g| (|z| + |t dz|).
    """
    check()
    parameters, address = program(traced.first)
    slopes, out, (y, c) = np.empty(len(z)), np.zeros(4), labels(shard)
    shifts, weights = np.array([b for b, _ in mix]), np.array([m for _, m in mix])
    direction = z if dz is None else dz
    _kernels().mixed_tangent(
        z, direction, t, shifts, weights, y, c, parameters, address, scratch(), slopes, out
    )
    return slopes, out


# ---------------------------------------------------------------- one pass over X
def value_grad(shard: Shard, traced: TracedLoss, linear_map: LinearMap, w: Array) -> tuple[float, Array]:
    """The loss of the shard's rows and its gradient in w: in one pass where the format allows it."""
    inner: Any = linear_map
    by_blocks = isinstance(shard.X, ROW_RANGE_FORMATS)
    if by_blocks and inner.is_identity:
        grad, sums = _one_pass(shard, traced, w, 0.0)
    elif by_blocks and inner.standardized and inner.inner.is_identity:
        # shifted and scaled columns: z = X (s w) - m'(s w), with the adjoint s (X' dz - m (1' dz))
        scaled = inner.scaled(w)
        grad, sums = _one_pass(shard, traced, scaled, -float(inner.offset(scaled)))
        grad = inner.scaled(grad - inner.shift * float(sums[2]))
    else:
        z, grad = linear_map.scores(shard.X, w, 0, shard.X.shape[0]), np.zeros_like(w)
        slopes, sums = mixed_tangent(shard, traced, z, None, 0.0, [(0.0, 1.0)])
        linear_map.pullback(shard.X, slopes, 0, len(slopes), grad)
    return float(sums[0]), grad


def _one_pass(shard: Shard, traced: TracedLoss, w: NDArray, b: float) -> tuple[NDArray, NDArray]:
    """The gradient X' dz at the scores X w + b, and sums over rows in the slots of `line_sums`."""
    X: Any = shard.X
    n, p = X.shape
    check_weight_count(w, p)
    parameters, address = program(traced.first)
    parts = stored_parts(X)
    grad, out, (y, c) = np.zeros(p), np.zeros(8), labels(shard)
    w = np.ascontiguousarray(w, dtype=np.float64)
    rows = rows_per_call(X)
    # a call ends at a multiple of the block, so that time limits and the release of memory change no sum
    step = rows * PARTS_OF_BLOCK
    small = ((i, min(i + step, n)) for i in check_each(range(0, n, step)))
    ranges = small if maps_exceed_budget() else chunk_ranges(0, n, 2 * X.nnz, multiple=rows)
    for i, j in release_between(ranges):
        _kernels().value_grad(parts, w, b, y, c, parameters, address, i, j, rows, scratch(), grad, out)
    return grad, out


def rows_per_call(X: Any) -> int:
    """The rows of a block of a compiled loss: a function of X alone, so that sums have the same order."""
    return int(max(min(X.block_rows // PARTS_OF_BLOCK, _kernels().MAX_BLOCK_ROWS), 16))


def stored_parts(X: Any) -> tuple[Any, ...]:
    """What kernels read of a matrix: see `_numba.products` for the three formats."""
    if X.sparse:
        return X.indptr, X.indices, X.data
    parts: tuple[Any, ...] = X.flat() if X.by_columns else (X.X,)
    return parts
