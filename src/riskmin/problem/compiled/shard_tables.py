"""The functions of `shard_ops` for all shards at once: threads share the shards in one compiled call each.

A call of a thread waits for the interpreter's lock when it begins and when it ends, and with many threads and
short calls it waits longer than it computes. So the calling thread prepares everything, and each thread makes
a single call, in which it takes one shard after the other (see `_numba.shards.items`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from riskmin.arrays.dense import check_weight_count
from riskmin.arrays.memory_map import maps_exceed_budget
from riskmin.core import Array, LinearMap, NDArray, Shard
from riskmin.core.deadline import MAX_KERNEL_OPERATIONS
from riskmin.executors.base import COMPILED_FUNCTIONS, CompiledFunction, SharedCall
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem import shard_ops
from riskmin.problem.compiled import row_loops
from riskmin.problem.compiled.tracing import TracedLoss

ROW_OPERATIONS = 4
"""Elementary operations of a row on cached scores: the loss of a row takes about as long as four entries."""

MIN_ENTRIES = 2**18
"""Shards with fewer stored entries in total are computed one by one."""


@cache
def table_kernels() -> Any:
    """The module of loops over shards."""
    from riskmin._numba.shards import tables  # Numba is imported by the first call, not with the package

    return tables


def address(a: NDArray) -> int:
    """The address of the first entry of an array."""
    first: int = a.__array_interface__["data"][0]
    return first


class RowParts(list[Any]):
    """The entries of a vector that belong to each shard: views, with addresses that follow from the vector's.

    To ask each of 64 views for its address takes longer than a thread needs for a short product.
    """

    def __init__(self, vector: Any, ends: NDArray) -> None:
        super().__init__([vector[i:j] for i, j in pairwise(ends.tolist())])
        self.vector, self.ends = vector, ends

    @property
    def is_contiguous(self) -> bool:
        """Whether the vector has adjacent numbers of double precision."""
        a = self.vector
        return isinstance(a, np.ndarray) and a.dtype == np.float64 and a.ndim == 1 and a.flags.c_contiguous

    def addresses(self) -> NDArray:
        """The addresses of the parts."""
        found: NDArray = address(self.vector) + self.vector.itemsize * self.ends[:-1]
        return found


def addresses(arrays: Sequence[NDArray]) -> NDArray:
    """The addresses of arrays; they must outlive their use."""
    if isinstance(arrays, RowParts) and arrays.is_contiguous:
        return arrays.addresses()
    return np.array([address(a) for a in arrays], dtype=np.int64)


class ShardTable:
    """Shards, and a table with the addresses of their arrays (see `_numba.shards.tables`)."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        # the arrays of labels and weights may be copies, which the table keeps
        self.labels = [row_loops.labels(shard) for shard in shards]
        self.table = np.array([_table_row(*pair) for pair in zip(shards, self.labels, strict=True)])
        self.entry_work = float(sum(shard.X.nnz for shard in shards))
        """The operations of a pass over X."""
        self.row_work = float(ROW_OPERATIONS * self.table[:, table_kernels().N_ROWS].sum())
        """The operations of an evaluation on cached scores."""
        self.max_rows = int(self.table[:, table_kernels().N_ROWS].max())
        self.known: dict[str, tuple[list[Any], NDArray]] = {}
        """The last arrays of a name, by weak references, and their addresses."""

    @classmethod
    def prepare(cls, shards: Sequence[Shard]) -> ShardTable | None:
        """The table of shards in one format, dense or CSR; None for others and for mapped ones."""
        if maps_exceed_budget() or not _same_format(shards):
            return None
        sizes = [shard.X.nnz for shard in shards]
        # shards that are too large for one call are computed in chunks, between which time limits are checked
        if sum(sizes) < MIN_ENTRIES or 2 * max(sizes) > MAX_KERNEL_OPERATIONS:
            return None
        return cls(shards)

    @cached_property
    def like(self) -> tuple[Any, ...]:
        """What kernels read of the first shard: it has the types of all."""
        return row_loops.stored_parts(self.shards[0].X)

    def rows_of_results(self, n: int) -> tuple[NDArray, list[NDArray]]:
        """An array with one row per shard for n numbers, and these; no two rows share a cache line."""
        rows = np.empty((len(self.shards), n + 8))
        return rows, list(rows[:, :n])

    def addresses(self, name: str, arrays: list[NDArray]) -> NDArray:
        """The addresses of one array per shard, which are often those of the last call."""
        last, found = self.known.get(name, ([], None))
        if found is None or not all(ref() is a for ref, a in zip(last, arrays, strict=True)):
            found = addresses(arrays)
            self.known[name] = [weakref.ref(a) for a in arrays], found
        return found

    def states(self, key: int) -> list[dict[str, Any]]:
        """The cached state of a cursor on each shard."""
        return [shard_ops.cursor_state(shard, key) for shard in self.shards]

    def __len__(self) -> int:
        return len(self.shards)


def _same_format(shards: Sequence[Shard]) -> bool:
    """Whether all shards are dense in the same order, or CSR, with entries of the same type."""
    formats = set()
    for y, X in ((shard.y, shard.X) for shard in shards):
        if not X.has_row_ranges or X.sequence_ends is not None:
            return False
        if not isinstance(y, np.ndarray) or y.ndim != 1 or y.dtype.kind not in "biuf":
            return False
        arrays = [a for a in row_loops.stored_parts(X) if not isinstance(a, int)]
        if not all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arrays):
            return False
        formats.add((X.shape[1], X.by_columns, *(a.dtype for a in arrays)))
    return len(formats) == 1


def _table_row(shard: Shard, labels: tuple[NDArray, NDArray]) -> list[int]:
    """The row of a shard, in the order of the columns of `_numba.shards.tables`."""
    X: Any = shard.X
    y, c = (address(a) for a in labels)
    parts, n = row_loops.stored_parts(X), X.shape[0]
    entries = len(parts[0]) if X.by_columns else X.nnz
    # by columns, array code takes blocks of rows, in the order of which their products are added up
    loss_rows, block_rows = row_loops.rows_per_call(X), shard_ops.rows_per_block(X, 1)
    blocks = (loss_rows, block_rows, block_rows) if X.by_columns else (loss_rows, max(n, 1), loss_rows)
    head = [*X.shape, entries, *blocks, y, c]
    if X.sparse:
        ends, indices, values = (address(part) for part in parts)
        return [*head, values, indices, ends, 0]
    return [*head, address(parts[0]), 0, 0, parts[1] if X.by_columns else 0]


# ---------------------------------------------------------------- cached scores
def _line(shards: ShardTable, states: list[dict[str, Any]]) -> tuple[NDArray, NDArray]:
    """The addresses of the scores and of those of the direction; where there is none, the scores again."""
    z = shards.addresses("z", [s["z"] for s in states])
    return z, shards.addresses("dz", [s["dz"] for s in states]) if "dz" in states[0] else z


def _line_sums(
    shards: ShardTable, key: int, traced: TracedLoss, t: float, b: float, second: bool, pick: Any
) -> SharedCall:
    """`row_loops.line_sums` of each shard."""
    states = shards.states(key)
    program = row_loops.program(traced.second if second else traced.first)
    out = np.zeros((len(states), 8))
    args = shards.table, *_line(shards, states), float(t), float(b), *program, second, out

    def results() -> list[Any]:
        if "dz" not in states[0]:
            out[:, [1, 5, 6]] = 0.0
        return [pick(s) for s in out.tolist()]

    return SharedCall(table_kernels().line_sums_of_shards, args, results, row_loops.scratch_length())


def value_slopes(
    shards: ShardTable, key: int, traced: TracedLoss, linear_map: LinearMap, t: float, b: float, each: Any
) -> SharedCall:
    """`shard_ops.value_slopes` of each shard."""
    return _line_sums(shards, key, traced, t, b, False, lambda s: (s[0], s[1], s[2]))


def second_derivatives(
    shards: ShardTable, key: int, traced: TracedLoss, t: float, b: float, each: Any
) -> SharedCall:
    """`shard_ops.second_derivatives` of each shard."""
    return _line_sums(shards, key, traced, t, b, True, lambda s: (*s[:3], *s[5:], s[4]))


def pull_back(
    shards: ShardTable, key: int, traced: TracedLoss, linear_map: LinearMap, w: Array, t: float,
    mix: list[tuple[float, float]], each: Any,
) -> SharedCall:  # fmt: skip
    """`shard_ops.pull_back` of each shard: its slopes are in cache when X' multiplies them."""
    shifts, weights = np.array([b for b, _ in mix]), np.array([m for _, m in mix])
    (grads, parts), out = shards.rows_of_results(len(w)), np.zeros((len(shards), 4))
    line = *_line(shards, shards.states(key)), float(t), shifts, weights
    args = shards.table, shards.like, *line, *row_loops.program(traced.first), grads, out

    def results() -> list[tuple[float, Array, float, float]]:
        found = []
        for grad, (value, offset, size, cancellation) in zip(parts, out.tolist(), strict=True):
            found.append((value, grad, CUT_ROUNDING * (size + (cancellation if t else 0.0)), offset))
        return found

    memory = row_loops.scratch_length() + shards.max_rows
    return SharedCall(table_kernels().cut_of_shards, args, results, memory)


def advance(shards: ShardTable, key: int, linear_map: LinearMap, t: float, each: Any) -> SharedCall:
    """`shard_ops.advance` of each shard, in place: the scores are in the cache of the shard alone."""
    largest = np.empty(len(shards))
    args = shards.table, *_line(shards, shards.states(key)), float(t), largest
    return SharedCall(table_kernels().advance_shards, args, largest.tolist)


# ---------------------------------------------------------------- products
def _scores_of(shards: ShardTable, w: Array, out: NDArray, results: Any) -> SharedCall:
    """Set the arrays at these addresses to the scores of w; `results` gets the largest of each shard."""
    check_weight_count(w, shards.shards[0].X.shape[1])
    largest = np.empty(len(out))
    args = shards.table, shards.like, w, out, largest
    return SharedCall(table_kernels().scores_of_shards, args, lambda: results(largest.tolist()))


def cache_scores(
    shards: ShardTable, key: int, live: set[int], linear_map: LinearMap, w: Array, each: Any
) -> SharedCall:
    """`shard_ops.cache_scores` of each shard."""
    out = [np.empty(len(shard.c)) for shard in shards.shards]

    def keep(largest: list[float]) -> list[float]:
        for shard, z in zip(shards.shards, out, strict=True):
            shard_ops.keep_state(shard, key, live, {"z": z})
        return largest

    return _scores_of(shards, w, addresses(out), keep)


def set_direction(shards: ShardTable, key: int, linear_map: LinearMap, d: Array, each: Any) -> SharedCall:
    """`shard_ops.set_direction` of each shard, in the memory of the last direction."""
    states = shards.states(key)
    out = [s["dz"] if "dz" in s else np.empty(len(s["z"])) for s in states]

    def keep(largest: list[float]) -> list[None]:
        for state, dz in zip(states, out, strict=True):
            state["dz"] = dz
        return [None] * len(states)

    return _scores_of(shards, d, shards.addresses("dz", out), keep)


def scores_into(shards: ShardTable, linear_map: LinearMap, w: Array, each: Sequence[NDArray]) -> SharedCall:
    """`shard_ops.scores_into` of each shard."""
    return _scores_of(shards, w, addresses(each), lambda largest: [None] * len(each))


def scatter(shards: ShardTable, linear_map: LinearMap, w: Array, each: Sequence[NDArray]) -> SharedCall:
    """`shard_ops.scatter` of each shard."""
    slopes = contiguous(each)
    grads, parts = shards.rows_of_results(len(w))
    args = shards.table, shards.like, addresses(slopes), grads
    return SharedCall(table_kernels().pullback_of_shards, args, lambda: [(g,) for g in parts], kept=slopes)


def contiguous(each: Sequence[NDArray]) -> list[NDArray]:
    """Vectors of double precision whose entries are adjacent."""
    if isinstance(each, RowParts) and each.is_contiguous:
        return each
    return [np.ascontiguousarray(a, dtype=np.float64) for a in each]


def value_grad(
    shards: ShardTable, traced: TracedLoss, linear_map: LinearMap, w: Array, each: Any
) -> SharedCall:
    """`shard_ops.value_grad` of each shard."""
    check_weight_count(w, shards.shards[0].X.shape[1])
    (grads, parts), out = shards.rows_of_results(len(w)), np.zeros((len(shards), 8))
    args = shards.table, shards.like, w, *row_loops.program(traced.first), grads, out
    return SharedCall(
        table_kernels().value_grad_of_shards,
        args,
        lambda: list(zip(out[:, 0].tolist(), parts, strict=True)),
        row_loops.scratch_length(),
    )


def hessian_product(
    shards: ShardTable, linear_map: LinearMap, d: Array, each: Sequence[NDArray]
) -> SharedCall:
    """`shard_ops.hessian_product` of each shard."""
    curvatures = contiguous(each)
    products, parts = shards.rows_of_results(len(d))
    args = shards.table, shards.like, d, addresses(curvatures), products
    return SharedCall(
        table_kernels().hessian_product_of_shards,
        args,
        lambda: [(product,) for product in parts],
        shards.max_rows,
        curvatures,
    )


def all_finite(shards: ShardTable, each: Any) -> SharedCall:
    """`shard_ops.is_finite` of each shard."""
    out, values = np.zeros(len(shards), dtype=bool), shards.like[-1 if shards.shards[0].X.sparse else 0]
    args = shards.table, values.reshape(-1), out
    return SharedCall(table_kernels().finite_shards, args, out.tolist)


# ---------------------------------------------------------------- which arguments they take
def _can_multiply(linear_map: LinearMap, w: Any) -> bool:
    """Whether the kernels are compiled for products of such a vector with X itself."""
    is_vector = isinstance(w, np.ndarray) and w.ndim == 1 and w.dtype == np.float64 and w.flags.c_contiguous
    return is_vector and linear_map.is_identity


def by_entries(table: ShardTable) -> float:
    """The operations of a pass over X."""
    return table.entry_work


def by_rows(table: ShardTable) -> float:
    """The operations of an evaluation on cached scores."""
    return table.row_work


def register(f: Any, begin: Any, work: Any, accepts: Any) -> None:
    """Let threads compute a function of one shard for all shards at once."""
    COMPILED_FUNCTIONS[f] = CompiledFunction(ShardTable.prepare, work, accepts, begin)


register(
    shard_ops.value_slopes,
    value_slopes,
    by_rows,
    lambda key, loss, linear_map, t, b: isinstance(loss, TracedLoss),
)
register(
    shard_ops.second_derivatives,
    second_derivatives,
    by_rows,
    lambda key, loss, t, b: isinstance(loss, TracedLoss),
)
register(
    shard_ops.advance,
    advance,
    by_rows,
    lambda key, linear_map, t: not shard_ops.has_score_matrix(linear_map),
)
register(
    shard_ops.pull_back,
    pull_back,
    by_entries,
    lambda key, loss, linear_map, w, t, mix: isinstance(loss, TracedLoss) and _can_multiply(linear_map, w),
)
register(
    shard_ops.value_grad,
    value_grad,
    by_entries,
    lambda loss, linear_map, w: isinstance(loss, TracedLoss) and _can_multiply(linear_map, w),
)
register(
    shard_ops.cache_scores,
    cache_scores,
    by_entries,
    lambda key, live, linear_map, w: _can_multiply(linear_map, w),
)
register(
    shard_ops.set_direction,
    set_direction,
    by_entries,
    lambda key, linear_map, d: _can_multiply(linear_map, d),
)
register(shard_ops.scores_into, scores_into, by_entries, _can_multiply)
register(shard_ops.scatter, scatter, by_entries, _can_multiply)
register(shard_ops.hessian_product, hessian_product, by_entries, _can_multiply)
register(shard_ops.is_finite, all_finite, by_entries, lambda: True)
