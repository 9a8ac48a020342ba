"""The functions of `shard_ops` for groups of shards: one compiled call for all shards of a group.

Threads call them instead of those of one shard. A call of a thread waits for the interpreter's lock when it
begins and when it ends, and with many threads and short calls it waits longer than it computes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from riskmin.arrays.dense import check_weight_count
from riskmin.arrays.memory_map import maps_exceed_budget
from riskmin.core import Array, LinearMap, NDArray, Shard
from riskmin.core.deadline import MAX_KERNEL_OPERATIONS, check
from riskmin.executors.base import GROUP_FUNCTIONS, GroupFunction
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem import shard_ops
from riskmin.problem.compiled import row_loops
from riskmin.problem.compiled.tracing import TracedLoss

ROW_OPERATIONS = 4
"""Elementary operations of a row on cached scores: the loss of a row takes about as long as four entries."""

MIN_ENTRIES = 2**20
"""Shards with fewer stored entries in total are too few to form groups."""

_thread = threading.local()
"""The slopes of the rows of a group, which each thread keeps: new memory would take longer than they do."""


@cache
def _kernels() -> Any:
    from riskmin._numba.shards import tables  # Numba is imported by the first call, not with the package

    return tables


def address(a: NDArray) -> int:
    """The address of the first entry of an array."""
    first: int = a.__array_interface__["data"][0]
    return first


def addresses(arrays: Sequence[NDArray]) -> NDArray:
    """The addresses of arrays; they must outlive their use."""
    return np.array([address(a) for a in arrays], dtype=np.int64)


class ShardTable:
    """Shards, and a table with the addresses of their arrays (see `_numba.shards.tables`)."""

    def __init__(self, shards: Sequence[Shard], labels: list[Any], table: NDArray) -> None:
        self.shards, self.labels, self.table = shards, labels, table
        self.known: dict[str, tuple[list[Any], NDArray]] = {}
        """The last arrays of a name, by weak references, and their addresses."""

    @classmethod
    def prepare(cls, shards: Sequence[Shard]) -> ShardTable | None:
        """The table of shards in one format, dense in C order or CSR; None for others and for mapped ones."""
        if maps_exceed_budget() or not _same_format(shards):
            return None
        sizes = [shard.X.nnz for shard in shards]
        # shards that are too large for one call are computed in chunks, between which time limits are checked
        if sum(sizes) < MIN_ENTRIES or 2 * max(sizes) > MAX_KERNEL_OPERATIONS:
            return None
        # the arrays of labels and weights may be copies, which the table keeps
        labels = [row_loops.labels(shard) for shard in shards]
        return cls(shards, labels, np.array([_table_row(*pair) for pair in zip(shards, labels, strict=True)]))

    def __getitem__(self, part: slice) -> ShardTable:
        return ShardTable(self.shards[part], self.labels[part], self.table[part])

    @property
    def like(self) -> tuple[NDArray, ...]:
        """Arrays of the types of those of all shards."""
        X: Any = self.shards[0].X
        return (X.indptr, X.indices, X.data) if X.sparse else (X.X,)

    def kernel(self, name: str) -> Any:
        """The loop over shards of this format."""
        return getattr(_kernels(), f"{'csr' if self.shards[0].X.sparse else 'dense'}_{name}_of_shards")

    @property
    def n_rows(self) -> int:
        return int(self.table[:, _kernels().N_ROWS].sum())

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


def _same_format(shards: Sequence[Shard]) -> bool:
    """Whether all shards are dense in C order, or CSR, with entries of the same type."""
    formats = set()
    for y, X in ((shard.y, shard.X) for shard in shards):
        if not X.has_row_ranges or X.by_columns or X.sequence_ends is not None:
            return False
        if not isinstance(y, np.ndarray) or y.ndim != 1 or y.dtype.kind not in "biuf":
            return False
        arrays: tuple[Any, ...] = (X.indptr, X.indices, X.data) if X.sparse else (X.X,)  # type: ignore[attr-defined]
        if not all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arrays):
            return False
        formats.add((X.shape[1], *(a.dtype for a in arrays)))
    return len(formats) == 1


def _table_row(shard: Shard, labels: tuple[NDArray, NDArray]) -> list[int]:
    """The row of a shard, in the order of the columns of `_numba.shards.tables`."""
    X: Any = shard.X
    arrays = (X.data, X.indices, X.indptr) if X.sparse else (X.X,)
    places = [address(a) for a in (*labels, *arrays)]
    return [X.shape[0], X.nnz, row_loops.rows_per_call(X), *places, *[0] * (5 - len(places))]


def entry_work(table: ShardTable) -> float:
    """The operations of a pass over X."""
    return float(table.table[:, _kernels().N_ENTRIES].sum())


def row_work(table: ShardTable) -> float:
    """The operations of an evaluation on cached scores."""
    return float(ROW_OPERATIONS * table.n_rows)


# ---------------------------------------------------------------- cached scores
def _line(shards: ShardTable, states: list[dict[str, Any]]) -> tuple[NDArray, NDArray]:
    """The addresses of the scores and of those of the direction; where there is none, the scores again."""
    z = shards.addresses("z", [s["z"] for s in states])
    return z, shards.addresses("dz", [s["dz"] for s in states]) if "dz" in states[0] else z


def _line_sums(
    shards: ShardTable, key: int, traced: TracedLoss, t: float, b: float, second: bool
) -> list[list[float]]:
    """`row_loops.line_sums` of each shard."""
    check()
    states = shards.states(key)
    program = row_loops.program(traced.second if second else traced.first)
    out, memory = np.zeros((len(states), 8)), row_loops.scratch()
    line = *_line(shards, states), float(t), float(b)
    _kernels().line_sums_of_shards(shards.table, *line, *program, second, memory, out)
    if "dz" not in states[0]:
        out[:, [1, 5, 6]] = 0.0
    return list(out.tolist())


def value_slopes(
    shards: ShardTable, key: int, traced: TracedLoss, linear_map: LinearMap, t: float, b: float, each: Any
) -> list[tuple[float, float, float]]:
    """`shard_ops.value_slopes` of each shard."""
    return [(s[0], s[1], s[2]) for s in _line_sums(shards, key, traced, t, b, second=False)]


def second_derivatives(
    shards: ShardTable, key: int, traced: TracedLoss, t: float, b: float, each: Any
) -> list[tuple[float, ...]]:
    """`shard_ops.second_derivatives` of each shard."""
    return [(*s[:3], *s[5:], s[4]) for s in _line_sums(shards, key, traced, t, b, second=True)]


def _mixed_tangents(
    shards: ShardTable, key: int, traced: TracedLoss, t: float, mix: list[tuple[float, float]]
) -> tuple[NDArray, list[list[float]]]:
    """The addresses of the slopes of each shard, in the memory of this thread, and the sums of its cut."""
    z, dz = _line(shards, shards.states(key))
    parameters, function = row_loops.program(traced.first)
    shifts, weights = np.array([b for b, _ in mix]), np.array([m for _, m in mix])
    lengths, out = shards.table[:, _kernels().N_ROWS], np.zeros((len(z), 4))
    slopes = _slopes(shards.n_rows)
    _kernels().mixed_tangents_of_shards(
        shards.table, z, dz, float(t), shifts, weights, parameters, function, row_loops.scratch(), slopes, out
    )
    # 8 bytes per slope
    return address(slopes) + 8 * (np.cumsum(lengths) - lengths), out.tolist()


def _slopes(n: int) -> NDArray:
    """Memory of this thread for one slope per row."""
    if len(getattr(_thread, "slopes", ())) < n:
        _thread.slopes = np.empty(n)
    memory: NDArray = _thread.slopes
    return memory


def pull_back(
    shards: ShardTable, key: int, traced: TracedLoss, linear_map: LinearMap, w: Array, t: float,
    mix: list[tuple[float, float]], each: Any,
) -> list[tuple[float, Array, float, float]]:  # fmt: skip
    """`shard_ops.pull_back` of each shard."""
    check()
    dz, sums = _mixed_tangents(shards, key, traced, t, mix)
    grads = np.zeros((len(dz), len(w)))
    shards.kernel("pullback")(shards.table, *shards.like, dz, grads)
    results = []
    for grad, (value, offset, size, cancellation) in zip(grads, sums, strict=True):
        results.append((value, grad, CUT_ROUNDING * (size + (cancellation if t else 0.0)), offset))
    return results


def advance(shards: ShardTable, key: int, linear_map: LinearMap, t: float, each: Any) -> list[float]:
    """`shard_ops.advance` of each shard, in place: the scores are in the cache of the shard alone."""
    states, largest = shards.states(key), np.empty(len(shards.shards))
    _kernels().advance_shards(shards.table, *_line(shards, states), float(t), largest)
    return list(largest.tolist())


# ---------------------------------------------------------------- products
def _scores_of(shards: ShardTable, w: Array, out: NDArray) -> list[float]:
    """Set the arrays at these addresses to the scores of w; return the largest of each shard."""
    check()
    check_weight_count(w, shards.shards[0].X.shape[1])
    largest = np.empty(len(out))
    shards.kernel("scores")(shards.table, *shards.like, w, out, largest)
    return list(largest.tolist())


def cache_scores(
    shards: ShardTable, key: int, live: set[int], linear_map: LinearMap, w: Array, each: Any
) -> list[float]:
    """`shard_ops.cache_scores` of each shard."""
    out = [np.empty(len(shard.c)) for shard in shards.shards]
    largest = _scores_of(shards, w, addresses(out))
    for shard, z in zip(shards.shards, out, strict=True):
        shard_ops.keep_state(shard, key, live, {"z": z})
    return largest


def set_direction(shards: ShardTable, key: int, linear_map: LinearMap, d: Array, each: Any) -> list[None]:
    """`shard_ops.set_direction` of each shard, in the memory of the last direction."""
    states = shards.states(key)
    out = [s["dz"] if "dz" in s else np.empty(len(s["z"])) for s in states]
    _scores_of(shards, d, shards.addresses("dz", out))
    for state, dz in zip(states, out, strict=True):
        state["dz"] = dz
    return [None] * len(states)


def scores_into(shards: ShardTable, linear_map: LinearMap, w: Array, each: Sequence[NDArray]) -> list[None]:
    """`shard_ops.scores_into` of each shard."""
    _scores_of(shards, w, addresses(each))
    return [None] * len(each)


def scatter(
    shards: ShardTable, linear_map: LinearMap, w: Array, each: Sequence[NDArray]
) -> list[tuple[Array]]:
    """`shard_ops.scatter` of each shard."""
    check()
    slopes = [np.ascontiguousarray(dz, dtype=np.float64) for dz in each]
    grads = np.zeros((len(slopes), len(w)))
    shards.kernel("pullback")(shards.table, *shards.like, addresses(slopes), grads)
    return [(grad,) for grad in grads]


def value_grad(
    shards: ShardTable, traced: TracedLoss, linear_map: LinearMap, w: Array, each: Any
) -> list[tuple[float, Array]]:
    """`shard_ops.value_grad` of each shard."""
    check()
    check_weight_count(w, shards.shards[0].X.shape[1])
    parameters, function = row_loops.program(traced.first)
    grads, out = np.zeros((len(shards.shards), len(w))), np.zeros((len(shards.shards), 8))
    shards.kernel("value_grad")(
        shards.table, *shards.like, w, parameters, function, row_loops.scratch(), grads, out
    )
    return list(zip(out[:, 0].tolist(), grads, strict=True))


def hessian_product(
    shards: ShardTable, linear_map: LinearMap, d: Array, each: Sequence[NDArray]
) -> list[tuple[Array]]:
    """`shard_ops.hessian_product` of each shard."""
    check()
    curvatures = [np.ascontiguousarray(h, dtype=np.float64) for h in each]
    products = np.zeros((len(curvatures), len(d)))
    shards.kernel("hessian_product")(
        shards.table, *shards.like, d, addresses(curvatures), row_loops.scratch(), products
    )
    return [(product,) for product in products]


# ---------------------------------------------------------------- which arguments they take
def _can_multiply(linear_map: LinearMap, w: Any) -> bool:
    """Whether the kernels are compiled for products of such a vector with X itself."""
    is_vector = isinstance(w, np.ndarray) and w.ndim == 1 and w.dtype == np.float64 and w.flags.c_contiguous
    return is_vector and linear_map.is_identity


def _register(f: Any, run: Any, work: Any, accepts: Any) -> None:
    GROUP_FUNCTIONS[f] = GroupFunction(ShardTable.prepare, work, accepts, run)


_register(
    shard_ops.value_slopes,
    value_slopes,
    row_work,
    lambda key, loss, linear_map, t, b: isinstance(loss, TracedLoss),
)
_register(
    shard_ops.second_derivatives,
    second_derivatives,
    row_work,
    lambda key, loss, t, b: isinstance(loss, TracedLoss),
)
_register(
    shard_ops.advance,
    advance,
    row_work,
    lambda key, linear_map, t: not shard_ops.has_score_matrix(linear_map),
)
_register(
    shard_ops.pull_back,
    pull_back,
    entry_work,
    lambda key, loss, linear_map, w, t, mix: isinstance(loss, TracedLoss) and _can_multiply(linear_map, w),
)
_register(
    shard_ops.value_grad,
    value_grad,
    entry_work,
    lambda loss, linear_map, w: isinstance(loss, TracedLoss) and _can_multiply(linear_map, w),
)
_register(
    shard_ops.cache_scores,
    cache_scores,
    entry_work,
    lambda key, live, linear_map, w: _can_multiply(linear_map, w),
)
_register(
    shard_ops.set_direction,
    set_direction,
    entry_work,
    lambda key, linear_map, d: _can_multiply(linear_map, d),
)
_register(shard_ops.scores_into, scores_into, entry_work, _can_multiply)
_register(shard_ops.scatter, scatter, entry_work, _can_multiply)
_register(shard_ops.hessian_product, hessian_product, entry_work, _can_multiply)
