"""The contract of executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.executors import Serial
from riskmin.intercept import Profiled
from riskmin.linear import make_shards
from riskmin.losses import Hinge, Logistic, Softmax
from riskmin.matrices import as_matrix
from riskmin.risk import Risk
from riskmin.scorers import Linear, Multiclass, WithOnes
from riskmin.testing.base import require
from riskmin.types import Array, Executor, NDArray, Shard


def _tell(shard: Shard, what: str) -> tuple[int, str]:
    return shard.X.shape[0], what


def _add(shard: Shard, k: float, each: NDArray) -> tuple[float, NDArray]:
    return float(shard.c.sum()), k * each


def _remember(shard: Shard, k: int) -> None:
    shard.memo["k"] = k + shard.memo.get("k", 0)


def _recall(shard: Shard) -> int:
    return int(shard.memo["k"])


def _fail(shard: Shard, n_rows: int) -> None:
    if shard.X.shape[0] == n_rows:
        raise ZeroDivisionError("on purpose")


def check_executor(executor: Callable[[Sequence[Shard]], Executor], *, seed: int = 0) -> None:
    """Check that an executor gives the bits that `Serial` gives, and holds its shards in order.

    Parameters
    ----------
    executor : callable
        What `linear_risk` takes: an executor's class, or its settings; called with the shards, it returns
        the executor that holds them.
    seed : int
        The seed of the random data.

    Raises
    ------
    AssertionError
        Names the property that fails.

    Examples
    --------
    >>> from riskmin import Threads
    >>> check_executor(Threads(n_workers=2))
    """
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((53, 7)), np.where(rng.random(53) < 0.5, 1.0, -1.0)
    c = rng.random(53)
    c /= c.sum()
    sparse = sp.csr_array(np.where(rng.random(X.shape) < 0.3, X, 0.0))
    for data in (X, np.asfortranarray(X, dtype=np.float32), sparse, sparse.tocsc()):
        shards = make_shards(as_matrix(data), y, c, 5)
        theirs = executor(shards)
        _check_calls(theirs, shards)
        _check_bits(theirs, shards, rng)
    classes = make_shards(as_matrix(X), np.arange(53.0) % 3, c, 5)
    _check_many(executor(classes), classes, rng)


def _check_calls(ours: Executor, shards: Sequence[Shard]) -> None:
    """`map` and `sum`: their order, arguments, memos and errors."""
    rows = [s.X.shape[0] for s in shards]
    said = ours.map(_tell, "hello")
    require([tuple(s) for s in said] == [(n, "hello") for n in rows], ours, f"map is out of order: {said}")
    for size in (1, 30_000):
        each = [np.arange(size) + 0.1 * k for k in range(len(shards))]
        want = Serial(shards).sum(_add, 1 / 3, each=each)
        got = ours.sum(_add, 1 / 3, each=each)
        same = got[0] == want[0] and np.array_equal(got[1], want[1])
        require(same, ours, f"the sum of arrays of length {size} is not that of Serial, bit for bit")
    for _ in range(2):
        ours.map(_remember, 1)
    require(set(ours.map(_recall)) == {2}, ours, "a shard's memo does not last from call to call")
    try:
        ours.map(_fail, rows[-1])
    except ZeroDivisionError:
        pass
    else:
        require(False, ours, "an exception at a shard is lost")
    require([n for n, _ in ours.map(_tell, "")] == rows, ours, "an exception at a shard leaves it unusable")


def _check_bits(ours: Executor, shards: Sequence[Shard], rng: np.random.Generator) -> None:
    """The risk, with and without an intercept, along a line, and with kept scores."""
    p = shards[0].X.shape[1]
    w, d = rng.standard_normal((2, p))
    for loss in (Hinge(), Logistic()):
        here, there = (Risk(loss, Linear(), e, p) for e in (ours, Serial(shards)))
        require(_equal(here(w), there(w)), ours, f"the risk of {loss!r} is not that of Serial, bit for bit")
        same = _equal(Profiled(here)(w), Profiled(there)(w))
        require(same, ours, f"the risk of {loss!r} with an intercept is not that of Serial, bit for bit")
        _check_line(ours, here, there, w, d)


def _check_many(ours: Executor, shards: Sequence[Shard], rng: np.random.Generator) -> None:
    """The same with many scores a row, and intercepts in w."""
    scorer = WithOnes(Multiclass(3))
    dim = scorer.dim(shards[0].X.shape[1])
    here, there = (Risk(Softmax(), scorer, e, dim) for e in (ours, Serial(shards)))
    w, d = rng.standard_normal((2, dim))
    require(_equal(here(w), there(w)), ours, "the risk of Softmax() is not that of Serial, bit for bit")
    _check_line(ours, here, there, w, d)


def _check_line(ours: Executor, here: Risk, there: Risk, w: Array, d: Array) -> None:
    """A line search by both."""
    looks = []
    for risk in (here, there):
        at = risk.cursor(w)
        at.aim(d)
        line = [at.along(t) for t in (0.0, 0.5, 2.0)]
        at.move(0.5)
        looks.append((np.array(line), at.value_grad()[1]))
    require(_equal(*looks), ours, f"a line search on {here.loss!r} is not that of Serial, bit for bit")


def _equal(a: tuple[Any, Array], b: tuple[Any, Array]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
