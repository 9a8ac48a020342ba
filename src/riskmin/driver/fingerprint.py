"""Fingerprint of the data of a problem, so that a saved run is resumed only with the same data.

The fingerprint of the rows is a sum of hashes, one per row, so that it does not depend on how the rows are
partitioned or stored: dense or sparse, float32 or float64, local or on workers. It takes one pass over X.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import singledispatch
from itertools import accumulate
from operator import itemgetter
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.memory_map import release_between
from riskmin.arrays.namespace import as_array_like, is_foreign, to_numpy
from riskmin.arrays.sequences import Sequences, tokens_of
from riskmin.core import Array, Matrix, NDArray, Shard, ShardCache
from riskmin.core.deadline import check
from riskmin.core.limits import LIMITS
from riskmin.executors import Executor
from riskmin.problem.kernel.mercer import KernelMatrix
from riskmin.problem.objective import Objective
from riskmin.problem.objective import is_foreign as user_defined

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: its multiples modulo 2^64 are evenly distributed."""
LABEL_KEY, WEIGHT_KEY, SEQUENCE_END_KEY = (np.uint64(k) for k in (2**61 + 1, 2**62 + 1, 2**63 + 1))
"""Keys that distinguish labels, weights and ends of sequences from the entries of X in the hash."""


def fingerprint(obj: Objective) -> str:
    """Return the SHA-256 of all numbers of a problem: rows, labels, weights, and arrays of its components."""
    digest = hashlib.sha256()
    for path, content in _components((obj.risk.source, obj.reg), "", set()):
        digest.update(path.encode())
        digest.update(content)
    return digest.hexdigest()


PROBE_SIZES = (0.1, 1.0)
"""Sizes of the weights of the points at which user-defined risks are compared."""


def probe(obj: Objective, w: Array) -> list[float | None]:
    """Return values of a user-defined risk at points in the library of w, which stand for its data.

    Its data may be in any objects, such as the examples of `Structured`. Values that are not finite are None.
    """
    if not user_defined(obj.risk):
        return []
    draw = np.random.default_rng(0).standard_normal(len(w))
    values = [float(obj.risk.evaluate(as_array_like(size * draw, w)).value) for size in PROBE_SIZES]
    return [v if math.isfinite(v) else None for v in values]


# ---------------------------------------------------------------- components of a problem
# The digest covers the attribute names on the path to each array.
def _components(obj: Any, path: str, visited: set[int]) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of each array within an object; an executor's rows are one item."""
    if id(obj) in visited:
        return
    visited.add(id(obj))
    content = _content(obj)
    if content is not None:
        yield path, content
        return
    for key, member in _members(obj):
        yield from _components(member, f"{path}.{key}", visited)


@singledispatch
def _content(obj: Any) -> bytes | None:
    """Return the digest of an array or of an executor's rows; None for any other object."""
    return _bytes(obj) if is_foreign(obj) else None


@singledispatch
def _members(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of an object by name: fields of dataclasses, items of containers, or attributes."""
    if is_dataclass(obj):
        named = [(f.name, vars(obj).get(f.name)) for f in fields(obj)]
        # labels and weights are hashed with the rows, which may be on other processes
        yield from ((name, member) for name, member in named if name != "row_metadata")
        return
    with suppress(TypeError):  # an object of slots has no `vars`
        yield from sorted(vars(obj).items(), key=itemgetter(0))


@_members.register
def _(obj: dict) -> Iterator[tuple[str, Any]]:  # type: ignore[type-arg]
    yield from sorted(((str(key), member) for key, member in obj.items()), key=itemgetter(0))


@_members.register
def _(obj: list | tuple) -> Iterator[tuple[str, Any]]:  # type: ignore[type-arg]
    yield from ((str(k), member) for k, member in enumerate(obj))


@_members.register
def _(
    obj: ShardCache | Shard | KernelMatrix | str | bytes | int | float | type | ModuleType | None,
) -> Iterator[tuple[str, Any]]:
    return iter(())


@_content.register(sp.sparray)
@_content.register(sp.spmatrix)
def _(a: Any) -> bytes:
    csr = sp.csr_array(a)
    return b"".join(_bytes(array) for array in (csr.indptr, csr.indices, csr.data))


@_content.register(np.ndarray)
def _bytes(a: Any) -> bytes:
    """Return the digest of an array's dtype, shape and content."""
    a = to_numpy(a)
    if a.dtype == object:
        return b""
    digest = hashlib.sha256(str((a.dtype.str, a.shape)).encode())
    digest.update(np.ascontiguousarray(a).data.cast("B") if a.size else b"")
    return digest.digest()


# ---------------------------------------------------------------- rows
@_content.register
def _(executor: Executor) -> bytes:
    """Return the number of rows and the sum of their hashes modulo 2^64."""
    lengths = executor.map(shard_rows)
    # rows are numbered across shards, so that the sum does not depend on the partition
    starts = list(accumulate(lengths, initial=0))[:-1]
    total = sum(executor.map(shard_hash, each=starts)) % 2**64
    return f"{sum(lengths)}:{total:016x}".encode()


def shard_rows(shard: Shard) -> int:
    """Return the number of rows of a shard."""
    return len(shard.c)


def shard_hash(shard: Shard, start: int) -> int:
    """Return the sum of the hashes of the rows of a shard whose first row has the number `start`.

    The hash of row i is mix(sum over its entries of mix(bits + key of the column) + (i + 1) GOLDEN), with the
    label and the weight as further entries; sums are modulo 2^64.
    """
    n = len(shard.c)
    hashes = row_hashes(shard.X, n)
    for key, values in ((LABEL_KEY, shard.y), (WEIGHT_KEY, shard.c)):
        hashes += _hash_rows(values, n, key)
    positions = np.arange(start + 1, start + n + 1).astype(np.uint64) * GOLDEN
    return int(_mixed(hashes + positions).sum())


def row_hashes(X: Any, n: int) -> NDArray:
    """Return a hash per row of n rows, which depends on its entries alone."""
    hashes = np.zeros(n, np.uint64)
    _add_rows(X, hashes)
    return hashes


@singledispatch
def _add_rows(X: Any, hashes: NDArray) -> None:
    """Add the hashes of the entries of each row; zeros add nothing, so that they need not be stored."""
    # objects that are no rows of numbers, such as the examples of a structured model, are not hashed


@_add_rows.register
def _(X: Matrix, hashes: NDArray) -> None:
    if isinstance(X, Sequences):
        hashes[X.ends - 1] += SEQUENCE_END_KEY
    X = tokens_of(X)
    if X.sparse:
        _add_rows(X.as_scipy(), hashes)
    elif X.array is not None or isinstance(X, ForeignArray):
        _add_dense(X.X if isinstance(X, ForeignArray) else X.array, hashes)
    else:  # a user-defined matrix gives products only: hash X w for a fixed random w
        w = np.random.default_rng(0).standard_normal(X.shape[1])
        for i in range(0, len(hashes), LIMITS.block_max_scores):
            j = min(i + LIMITS.block_max_scores, len(hashes))
            hashes[i:j] += _hashed(to_numpy(X.scores(w, i, j)), GOLDEN)


@_add_rows.register
def _(X: KernelMatrix, hashes: NDArray) -> None:
    _add_rows(X.X, hashes)


@_add_rows.register(np.ndarray)
def _add_dense(X: Any, hashes: NDArray) -> None:
    """Add the hashes of the entries of a dense matrix of any array library."""
    if X.ndim != 2:  # for a user-defined kernel, not of rows
        return
    n, p = X.shape
    keys, step = _keys(p), max(LIMITS.hash_block_entries // max(p, 1), 1)
    for i in release_between(range(0, n, step)):
        check()
        hashes[i : i + step] += _hashed(to_numpy(X[i : i + step]), keys).sum(axis=1, dtype=np.uint64)


@_add_rows.register(sp.sparray)
@_add_rows.register(sp.spmatrix)
def _(X: Any, hashes: NDArray) -> None:
    rows = sp.csr_array(X)
    n, p = rows.shape
    keys = _keys(p)
    ends = rows.indptr.astype(np.int64)
    step = max(int(LIMITS.hash_block_entries * n / max(ends[-1], 1)), 1)
    for i in release_between(range(0, n, step)):
        check()
        j = min(i + step, n)
        entries = slice(ends[i], ends[j])
        sums = np.zeros(ends[j] - ends[i] + 1, np.uint64)
        # sums of a row as differences of cumulative sums: exact, since addition is modulo 2^64
        np.cumsum(_hashed(rows.data[entries], keys[rows.indices[entries]]), out=sums[1:])
        hashes[i:j] += np.diff(sums[ends[i : j + 1] - ends[i]])


def _hash_rows(values: Any, n: int, key: np.uint64) -> NDArray:
    """Return one hash per row of an array with one or more numbers per row; zeros for any other array."""
    values = to_numpy(values) if is_foreign(values) else np.asarray(values)
    if values.dtype.kind not in "biuf" or values.shape[:1] != (n,):
        return np.zeros(n, np.uint64)
    hashes: NDArray = _hashed(values.reshape(n, -1), key + _keys(values[:1].size)).sum(
        axis=1, dtype=np.uint64
    )
    return hashes


def _keys(p: int) -> NDArray:
    """Return one pseudo-random key per column."""
    return _mixed(np.arange(1, p + 1).astype(np.uint64) * GOLDEN)


def _hashed(x: NDArray, keys: Any) -> NDArray:
    """Return the hash of each number with its key; 0 for zeros."""
    # float32 values are converted exactly, so both types give the same hash; -0.0 counts as 0, too
    bits = np.ascontiguousarray(x, dtype=np.float64).view(np.uint64)
    hashes: NDArray = np.where(x == 0, np.uint64(0), _mixed(bits + keys))
    return hashes


def _mixed(x: NDArray) -> NDArray:
    """Output function of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that mixes all bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray = x ^ (x >> np.uint64(31))
    return mixed
