"""The functions of `shard_ops` for all shards of rows in one place, of which threads share the ranges.

A call of a thread waits for the interpreter's lock when it begins and when it ends, and with many threads and
short calls it waits longer than it computes. So the calling thread prepares everything, and each thread makes
a single call, in which it takes one range of rows after the other (see `_numba.shards.ranges`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskmin._numba import lazy_module
from riskmin.arrays.compressed import ROW_RANGE_FORMATS
from riskmin.arrays.dense import check_weight_count
from riskmin.arrays.memory_map import maps_exceed_budget
from riskmin.arrays.namespace import as_writable_view
from riskmin.core import Array, LinearMap, NDArray
from riskmin.core.deadline import MAX_KERNEL_OPERATIONS
from riskmin.executors.base import RANGE_FORMS, RowParts, RowRanges
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem import shard_ops
from riskmin.problem.compiled import row_loops
from riskmin.problem.compiled.tracing import TracedLoss

ROW_OPERATIONS = 4
"""Elementary operations of a row on cached scores: the loss of a row takes about as long as four entries."""

MIN_ENTRIES = 2**18
"""Rows with fewer stored entries in total are computed shard by shard."""

range_kernels = lazy_module("shards.ranges")
"""Return the module of loops over ranges."""


@dataclass(frozen=True)
class StoredRows:
    """What kernels read of rows in one format, and the steps in which sums over each range are added."""

    X: tuple[Any, ...]
    """The matrix: see `_numba.products` for the three formats."""
    y: NDArray
    c: NDArray
    loss_steps: NDArray
    """The rows of a block of a compiled loss, for each range."""
    product_steps: NDArray
    """Those of a product: all rows, except by columns, where sums are added block by block."""
    hessian_steps: NDArray
    """Those of two products one after the other."""

    @classmethod
    def from_ranges(cls, ranges: RowRanges) -> StoredRows | None:
        """The rows, if they are dense or CSR; None for others and for mapped ones. Cached with the rows."""
        cache = ranges.rows.cache
        if "stored" not in cache:
            cache["stored"] = cls._from_rows(ranges) if _is_stored(ranges) else None
        found: StoredRows | None = cache["stored"]
        return found

    @classmethod
    def _from_rows(cls, ranges: RowRanges) -> StoredRows:
        X: Any = ranges.rows.X
        parts = [as_writable_view(a) if isinstance(a, np.ndarray) else a for a in row_loops.stored_parts(X)]
        loss_steps = np.array([row_loops.rows_per_call(shard.X) for shard in ranges])
        if X.by_columns:
            product_steps = np.array([shard_ops.rows_per_block(shard.X, 1) for shard in ranges])
            steps = loss_steps, product_steps, product_steps
        else:
            steps = loss_steps, np.maximum(np.diff(ranges.ends), 1), loss_steps
        return cls(tuple(parts), *row_loops.labels(ranges.rows), *steps)


def _is_stored(ranges: RowRanges) -> bool:
    """Whether the rows are dense or CSR, in memory that is not mapped, and many enough."""
    X, y = ranges.rows.X, ranges.rows.y
    # shards that store a transpose, too, use it
    if maps_exceed_budget() or not all(isinstance(shard.X, ROW_RANGE_FORMATS) for shard in ranges):
        return False
    if not isinstance(y, np.ndarray) or y.ndim != 1 or y.dtype.kind not in "biuf":
        return False
    arrays = [a for a in row_loops.stored_parts(X) if not isinstance(a, int)]
    if not all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arrays):
        return False
    # ranges that are too long for one call are computed in chunks, between which time limits are checked
    longest = max(shard.X.nnz for shard in ranges)
    return X.nnz >= MIN_ENTRIES and 2 * longest <= MAX_KERNEL_OPERATIONS


class SharedRows(NamedTuple):
    """Rows in one place and the executor whose threads share them."""

    executor: Any
    ranges: RowRanges
    stored: StoredRows

    @property
    def ends(self) -> NDArray:
        """Range k has the rows ends[k] to ends[k + 1] - 1."""
        return self.ranges.ends

    @property
    def X(self) -> Any:
        """The matrix."""
        return self.ranges.rows.X

    @property
    def row_work(self) -> float:
        """The operations of an evaluation on cached scores."""
        return float(ROW_OPERATIONS * self.X.shape[0])

    @property
    def max_rows(self) -> int:
        """The rows of the longest range."""
        return int(np.diff(self.ends).max())

    def share(self, kernel: Any, *args: Any, work: float | None = None, memory: int = 0) -> None:
        """Call a loop over the ranges, by default one of a pass over X."""
        work = float(self.X.nnz) if work is None else work
        self.executor.share(kernel, args, len(self.ranges), work, memory)

    def results(self, p: int) -> NDArray:
        """An array with one row per range, of which p entries are used; no two rows share a cache line."""
        return np.empty((len(self.ranges), p + 8))

    def state(self, key: int) -> dict[str, Any]:
        """The cached scores of a cursor for all rows; raises if a shard has lost its part."""
        for shard in self.ranges:
            shard_ops.cursor_state(shard, key)
        return shard_ops.cursor_state(self.ranges.rows, key)


def form_of(f: Callable[..., Any]) -> Callable[[Any], Any]:
    """Register how threads compute a function of one shard for all ranges of shared rows."""

    def register(form: Any) -> Any:
        def of_executor(executor: Any, *args: Any, each: Sequence[Any] = ()) -> list[Any] | None:
            stored = StoredRows.from_ranges(executor.shards)
            if stored is None:
                return None
            shared = SharedRows(executor, executor.shards, stored)
            return form(shared, *args, *((each,) if len(each) else ()))  # type: ignore[no-any-return]

        RANGE_FORMS[f] = of_executor
        return form

    return register


def joined(each: Sequence[NDArray]) -> NDArray:
    """The vector of double precision whose parts belong to the shards."""
    vector = each.vector if isinstance(each, RowParts) else np.concatenate(each)
    return np.ascontiguousarray(vector, dtype=np.float64)


# ---------------------------------------------------------------- products
def _can_multiply(linear_map: LinearMap, w: Any) -> bool:
    """Whether the kernels are compiled for products of such a vector with X itself."""
    is_vector = isinstance(w, np.ndarray) and w.ndim == 1 and w.dtype == np.float64 and w.flags.c_contiguous
    return is_vector and linear_map.is_identity


def _fill_scores(rows: SharedRows, linear_map: LinearMap, w: Array, z: NDArray) -> list[float]:
    """Set z to the scores of all rows, and return the largest of each range."""
    largest = np.empty(len(rows.ranges))
    if _can_multiply(linear_map, w):
        check_weight_count(w, rows.X.shape[1])
        steps, X = rows.stored.product_steps, rows.stored.X
        rows.share(range_kernels().scores_of_ranges, rows.ends, steps, X, w, z, largest)
        return largest.tolist()

    def fill(k: int) -> float:
        part = z[rows.ends[k] : rows.ends[k + 1]]
        part[:] = shard_ops.scores(rows.ranges[k], linear_map, w)
        return shard_ops.max_abs(part)

    found: list[float] = rows.executor.map_local(fill, range(len(largest)))
    return found


def _keep(rows: SharedRows, key: int, name: str, values: NDArray) -> None:
    """Cache scores of a cursor for all rows, and views of them with the shards."""
    shard_ops.cursor_state(rows.ranges.rows, key)[name] = values
    for shard, part in zip(rows.ranges, RowParts(values, rows.ends), strict=True):
        shard_ops.cursor_state(shard, key)[name] = part


@form_of(shard_ops.cache_scores)
def cache_scores(
    rows: SharedRows, key: int, live: set[int], linear_map: LinearMap, w: Array
) -> list[float] | None:
    """`shard_ops.cache_scores` of each shard."""
    if shard_ops.has_score_matrix(linear_map):
        return None
    z = np.empty(rows.X.shape[0])
    largest = _fill_scores(rows, linear_map, w, z)
    for shard in (rows.ranges.rows, *rows.ranges):
        shard_ops.keep_state(shard, key, live, {})
    _keep(rows, key, "z", z)
    return largest


@form_of(shard_ops.set_direction)
def set_direction(rows: SharedRows, key: int, linear_map: LinearMap, d: Array) -> list[None] | None:
    """`shard_ops.set_direction` of each shard, in the memory of the last direction."""
    if shard_ops.has_score_matrix(linear_map):
        return None
    known = rows.state(key).get("dz")
    dz = np.empty(rows.X.shape[0]) if known is None else known
    _fill_scores(rows, linear_map, d, dz)
    if known is None:
        _keep(rows, key, "dz", dz)
    return [None] * len(rows.ranges)


@form_of(shard_ops.scores_into)
def scores_into(rows: SharedRows, linear_map: LinearMap, w: Array, each: Any) -> list[None] | None:
    """`shard_ops.scores_into` of each shard."""
    if shard_ops.has_score_matrix(linear_map) or not isinstance(each, RowParts):
        return None
    _fill_scores(rows, linear_map, w, each.vector)
    return [None] * len(rows.ranges)


@form_of(shard_ops.scatter)
def scatter(
    rows: SharedRows, linear_map: LinearMap, w: Array, each: Sequence[NDArray]
) -> list[tuple[NDArray]] | None:
    """`shard_ops.scatter` of each shard."""
    if not _can_multiply(linear_map, w):
        return None
    grads, p = rows.results(len(w)), len(w)
    steps, X = rows.stored.product_steps, rows.stored.X
    rows.share(range_kernels().pullback_of_ranges, rows.ends, steps, X, joined(each), p, grads)
    return [(grad,) for grad in grads[:, :p]]


@form_of(shard_ops.hessian_product)
def hessian_product(
    rows: SharedRows, linear_map: LinearMap, d: Array, each: Sequence[NDArray]
) -> list[tuple[NDArray]] | None:
    """`shard_ops.hessian_product` of each shard."""
    if not _can_multiply(linear_map, d):
        return None
    products, args = rows.results(len(d)), (rows.ends, rows.stored.hessian_steps, rows.stored.X, d)
    kernel = range_kernels().hessian_product_of_ranges
    rows.share(kernel, *args, joined(each), products, memory=rows.max_rows)
    return [(product,) for product in products[:, : len(d)]]


@form_of(shard_ops.value_grad)
def value_grad(
    rows: SharedRows, traced: Any, linear_map: LinearMap, w: Array
) -> list[tuple[float, NDArray]] | None:
    """`shard_ops.value_grad` of each shard."""
    if not (isinstance(traced, TracedLoss) and _can_multiply(linear_map, w)):
        return None
    check_weight_count(w, rows.X.shape[1])
    s, grads, out = rows.stored, rows.results(len(w)), np.zeros((len(rows.ranges), 8))
    args = rows.ends, s.loss_steps, s.X, w, s.y, s.c, *row_loops.program(traced.first), grads, out
    rows.share(range_kernels().value_grad_of_ranges, *args, memory=row_loops.scratch_length())
    return list(zip(out[:, 0].tolist(), grads[:, : len(w)], strict=True))


# ---------------------------------------------------------------- cached scores
@form_of(shard_ops.value_slopes)
def value_slopes(
    rows: SharedRows, key: int, traced: Any, linear_map: LinearMap, t: float, b: float
) -> list[tuple[float, float, float]] | None:
    """`shard_ops.value_slopes` of each shard."""
    if not isinstance(traced, TracedLoss):
        return None
    s, state, out = rows.stored, rows.state(key), np.zeros((len(rows.ranges), 8))
    line = state["z"], state.get("dz", state["z"]), float(t), float(b)
    args = rows.ends, *line, s.y, s.c, *row_loops.program(traced.first), out
    memory = row_loops.scratch_length()
    rows.share(range_kernels().line_sums_of_ranges, *args, work=rows.row_work, memory=memory)
    if "dz" not in state:
        out[:, 1] = 0.0
    return [(value, slope_t, slope_b) for value, slope_t, slope_b in out[:, :3].tolist()]


@form_of(shard_ops.pull_back)
def pull_back(
    rows: SharedRows, key: int, traced: Any, linear_map: LinearMap, w: Array, t: float,
    mix: list[tuple[float, float]],
) -> list[tuple[float, NDArray, float, float]] | None:  # fmt: skip
    """`shard_ops.pull_back` of each shard."""
    if not (isinstance(traced, TracedLoss) and _can_multiply(linear_map, w)):
        return None
    shifts, weights = np.array([b for b, _ in mix]), np.array([m for _, m in mix])
    s, state, p = rows.stored, rows.state(key), len(w)
    grads, out = rows.results(p), np.zeros((len(rows.ranges), 4))
    line = state["z"], state.get("dz", state["z"]), float(t), shifts, weights
    args = rows.ends, s.product_steps, s.X, *line, s.y, s.c, *row_loops.program(traced.first), p, grads, out
    memory = row_loops.scratch_length() + rows.max_rows
    rows.share(range_kernels().cut_of_ranges, *args, memory=memory)
    found = []
    for grad, (value, offset, size, cancellation) in zip(grads[:, :p], out.tolist(), strict=True):
        found.append((value, grad, CUT_ROUNDING * (size + (cancellation if t else 0.0)), offset))
    return found


@form_of(shard_ops.advance)
def advance(rows: SharedRows, key: int, linear_map: LinearMap, t: float) -> list[float] | None:
    """`shard_ops.advance` of each shard, in place: the scores are in the cache of the rows alone."""
    if shard_ops.has_score_matrix(linear_map):
        return None
    state, largest = rows.state(key), np.empty(len(rows.ranges))
    args = rows.ends, state["z"], state["dz"], float(t), largest
    rows.share(range_kernels().advance_ranges, *args, work=rows.row_work)
    return largest.tolist()


@form_of(shard_ops.is_finite)
def all_finite(rows: SharedRows) -> list[bool]:
    """`shard_ops.is_finite` of as many ranges of entries of equal length."""
    entries = rows.stored.X[-1] if rows.X.sparse else rows.stored.X[0].reshape(-1)
    ends = np.linspace(0, len(entries), len(rows.ranges) + 1).astype(np.int64)
    out = np.zeros(len(rows.ranges), dtype=bool)
    rows.share(range_kernels().finite_ranges, ends, entries, out)
    return out.tolist()
