"""A fingerprint of the data of a problem, so that a saved run is resumed on the data that it was made with.

That of rows is a sum of hashes, one per row, so that it does not depend on how the rows are partitioned or
stored: dense or sparse, float32 or float64, here or on workers. It takes one pass over X.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import accumulate
from operator import itemgetter
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays import is_foreign, to_numpy
from riskmin.deadline import check
from riskmin.maps import passing
from riskmin.matrices import Columns, Csc, Csr, Dense, Plain, Wide, as_scipy
from riskmin.mercer import Gram
from riskmin.objective import Objective
from riskmin.sequences import Sequences
from riskmin.shards import MOST_SCORES
from riskmin.types import Memo, NDArray, Shard

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: multiples of it are spread evenly."""
LABEL, WEIGHT, END = (np.uint64(k) for k in (2**61 + 1, 2**62 + 1, 2**63 + 1))
"""What tells labels, weights and ends of sequences from the numbers of a column."""
BLOCK = 2**18
"""Numbers that are hashed together."""


def fingerprint(obj: Objective) -> str:
    """A digest of all numbers of a problem: the rows, labels and weights, and the arrays of its parts.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, Objective, linear_risk
    >>> X, y = np.eye(3), np.array([1.0, -1.0, 1.0])
    >>> one = fingerprint(Objective(linear_risk(X, y, Hinge()), L2(), 0.1))
    >>> parts = fingerprint(Objective(linear_risk(X, y, Hinge(), n_shards=2), L2(), 0.1))
    >>> other = fingerprint(Objective(linear_risk(X, -y, Hinge()), L2(), 0.1))
    >>> one == parts, one == other
    (True, False)
    """
    digest = hashlib.sha256()
    for name, part in _parts((obj.risk, obj.reg), "", set()):
        digest.update(name.encode())
        digest.update(part)
    return digest.hexdigest()


# ---------------------------------------------------------------- what a problem is made of
def _parts(thing: Any, name: str, seen: set[int]) -> Iterator[tuple[str, bytes]]:
    """The arrays of an object, and those of its parts, each with a name; rows by where they are kept."""
    if isinstance(thing, (Memo, Shard, Gram, str, bytes, int, float)) or thing is None or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, np.ndarray) or sp.issparse(thing) or is_foreign(thing):
        yield name, _bytes(thing)
    elif hasattr(thing, "map") and hasattr(thing, "sum"):
        yield name, _of_rows(thing)
    else:
        for key, part in _members(thing):
            yield from _parts(part, f"{name}.{key}", seen)


def _members(thing: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an object by name; what it has computed of them is none."""
    if is_dataclass(thing) and not isinstance(thing, type):
        # of rows that may be elsewhere, labels and weights are where the rows are
        yield from ((f.name, getattr(thing, f.name, None)) for f in fields(thing) if f.name != "table")
    elif isinstance(thing, dict):
        yield from sorted(((str(key), part) for key, part in thing.items()), key=itemgetter(0))
    elif isinstance(thing, (list, tuple)):
        yield from ((str(k), part) for k, part in enumerate(thing))
    elif hasattr(thing, "__dict__") and not isinstance(thing, (type, ModuleType)):
        yield from sorted(vars(thing).items(), key=itemgetter(0))


def _bytes(a: Any) -> bytes:
    """The content of an array."""
    if sp.issparse(a):
        rows = _by_rows(a)
        return b"".join(_bytes(part) for part in (rows.indptr, rows.indices, rows.data))
    a = to_numpy(a)
    if a.dtype == object:
        return b""
    digest = hashlib.sha256(str((a.dtype.str, a.shape)).encode())
    digest.update(np.ascontiguousarray(a).data.cast("B") if a.size else b"")
    return digest.digest()


# ---------------------------------------------------------------- rows
def _of_rows(executor: Any) -> bytes:
    """The sum of the hashes of all rows, modulo 2^64, and how many there are."""
    lengths = executor.map(_length)
    starts = list(accumulate(lengths, initial=0))[:-1]
    found = sum(executor.map(of_shard, each=starts)) % 2**64
    return f"{sum(lengths)}:{found:016x}".encode()


def _length(shard: Shard) -> int:
    return len(shard.c)


def of_shard(shard: Shard, start: int) -> int:
    """The sum of the hashes of the rows of a shard, whose first row is that of number `start`."""
    n = len(shard.c)
    found = np.zeros(n, np.uint64)
    X: Any = shard.X
    if isinstance(X, Sequences):
        found[X.ends - 1] = END
        X = X.tokens
    X = X.X if isinstance(X, Gram) else X.csr if isinstance(X, Wide) else X
    _add_rows(X, found)
    for key, a in ((LABEL, shard.y), (WEIGHT, shard.c)):
        found += _numbers(a, n, key)
    places = np.arange(start + 1, start + n + 1).astype(np.uint64) * GOLDEN
    return int(_mixed(found + places).sum())


def _add_rows(X: Any, found: NDArray) -> None:
    """Add the hashes of the numbers of each row; zeros count for nothing, so that they need not be stored."""
    if isinstance(X, Csr):
        _add_compressed(X, found)
    elif isinstance(X, Csc) or sp.issparse(X):
        rows = _by_rows(as_scipy(X) if isinstance(X, Csc) else X)
        _add_compressed(Csr(rows.indptr, rows.indices, rows.data, rows.shape[1]), found)
    elif isinstance(X, (Dense, Columns, Plain)) or (isinstance(X, np.ndarray) and X.ndim == 2):
        n, p = X.shape
        keys, step = _keys(p), max(BLOCK // max(p, 1), 1)
        for i in passing(range(0, n, step)):
            check()
            found[i : i + step] += _hashed(_dense(X, i, i + step), keys).sum(axis=1, dtype=np.uint64)
    elif hasattr(X, "scores"):  # a matrix of the user's own says what it does, not what it holds
        w = np.random.default_rng(0).standard_normal(X.shape[1])
        for i in range(0, len(found), MOST_SCORES):
            j = min(i + MOST_SCORES, len(found))
            found[i:j] += _hashed(to_numpy(X.scores(w, i, j)), GOLDEN)


def _by_rows(X: Any) -> Any:
    return sp.csr_array(X)


def _dense(X: Any, i: int, j: int) -> NDArray:
    if isinstance(X, np.ndarray):
        return X[i:j]
    found: NDArray = X.T[:, i:j].T if isinstance(X, Columns) else to_numpy(X.X[i:j])
    return found


def _add_compressed(X: Csr, found: NDArray) -> None:
    n, p = X.shape
    keys = _keys(p)
    ends = np.asarray(X.indptr).astype(np.int64)
    step = max(int(BLOCK * n / max(ends[-1], 1)), 1)
    for i in passing(range(0, n, step)):
        check()
        j = min(i + step, n)
        at = slice(ends[i], ends[j])
        sums = np.zeros(ends[j] - ends[i] + 1, np.uint64)
        np.cumsum(_hashed(X.data[at], keys[X.indices[at]]), out=sums[1:])
        found[i:j] += np.diff(sums[ends[i : j + 1] - ends[i]])


def _numbers(a: Any, n: int, key: np.uint64) -> NDArray:
    """The hashes of an array with one or more numbers per row; 0 where it has none."""
    a = to_numpy(a) if is_foreign(a) else np.asarray(a)
    if a.dtype.kind not in "biuf" or a.shape[:1] != (n,):
        return np.zeros(n, np.uint64)
    found: NDArray = _hashed(a.reshape(n, -1), key + _keys(a[:1].size)).sum(axis=1, dtype=np.uint64)
    return found


def _keys(p: int) -> NDArray:
    """One per column."""
    return _mixed(np.arange(1, p + 1).astype(np.uint64) * GOLDEN)


def _hashed(x: NDArray, keys: Any) -> NDArray:
    """The hash of each number beside its key; 0 of zeros."""
    bits = np.ascontiguousarray(x, dtype=np.float64).view(np.uint64)
    found: NDArray = np.where(x == 0, np.uint64(0), _mixed(bits + keys))
    return found


def _mixed(x: NDArray) -> NDArray:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that mixes all bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray = x ^ (x >> np.uint64(31))
    return found
