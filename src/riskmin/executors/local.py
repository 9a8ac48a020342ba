"""Executors within this process: serial, or on a pool of threads."""

from __future__ import annotations

import math
import numbers
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.partitioned import LazyShard, materialize
from riskmin.core import Shard
from riskmin.core.blas_threads import limit_worker_to_one_thread
from riskmin.core.deadline import LIMIT_POLL_SECONDS, TimeLimit, check, check_each, current_limit

PARALLEL_SUM_MIN_LENGTH = 2**16
"""Arrays of at least this many entries are added up on several threads."""


def worker_count(n_workers: int | None) -> int:
    """Return the number of workers; None means one per core."""
    if n_workers is None:
        return os.cpu_count() or 1
    if isinstance(n_workers, bool) or not isinstance(n_workers, numbers.Integral) or n_workers < 1:
        raise ValueError(f"n_workers={n_workers!r}: give a whole number >= 1, or None for one per core")
    return int(n_workers)


def check_shards(name: str, shards: Any) -> None:
    """Raise a TypeError if a number of workers was given in the place of the shards."""
    if isinstance(shards, numbers.Integral):
        raise TypeError(f"{name}({shards}): to set the number of workers, write {name}(n_workers={shards})")


def call_arguments(n: int, args: tuple[Any, ...], each: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the arguments of the call on each of n shards."""
    return [(*args, e) for e in each] if len(each) else [args] * n


def sum_arrays(arrays: Sequence[Any]) -> Any:
    """Return the sum of two or more arrays, added in order."""
    # the first sum is a new array, so that no term is changed by the additions in place
    result = arrays[0] + arrays[1]
    for a in arrays[2:]:
        # in place if the types agree: allocating a new array would cost as much as the sum
        if getattr(result, "dtype", None) == getattr(a, "dtype", 0):
            result += a
        else:
            result = result + a
    return result


def sum_tuples(
    parts: Sequence[tuple[Any, ...]], reduce: Callable[[Sequence[Any]], Any] = sum_arrays
) -> tuple[Any, ...]:
    """Add tuples entry by entry, in order; floats by `math.fsum`, whose result is the same in any order."""
    # one tuple per shard; entry k of the result is the sum of their entries k
    if len(parts) == 1:
        return parts[0]
    return tuple(math.fsum(p) if isinstance(p[0], float) else reduce(p) for p in zip(*parts, strict=True))


class Serial:
    """Executor that calls a function on one shard after the other, in the calling thread.

    Parameters
    ----------
    shards : sequence of Shard
        Set by `linear_risk` when an executor without shards is passed to it.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Serial, linear_risk
    >>> risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge(), executor=Serial())
    >>> risk(np.zeros(2))[0]
    1.0
    """

    blas_threads: int | None = 1
    """Number of BLAS threads during a fit; None leaves the setting of the libraries unchanged."""

    def __init__(self, shards: Sequence[Shard | LazyShard] = ()) -> None:
        self.shards = [materialize(shard) for shard in shards]

    def __call__(self, shards: Sequence[Shard | LazyShard]) -> Serial:
        """Return an executor with the same settings that holds these shards."""
        return Serial(shards)

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k]."""
        todo = call_arguments(len(self.shards), args, each)
        if len(todo) == len(self.shards) == 1:
            check()
            return [f(self.shards[0], *todo[0])]
        return [f(s, *a) for s, a in check_each(zip(self.shards, todo, strict=True))]

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the tuples of `map`, in shard order."""
        return sum_tuples(self.map(f, *args, each=each))


def _result(future: Future[Any]) -> Any:
    """Wait for the result of a call in another thread.

    The wait is in short intervals: Python runs the handler of a signal that the system delivered to another
    thread only between them.
    """
    while not future.done():
        with suppress(TimeoutError):
            return future.result(LIMIT_POLL_SECONDS)
    return future.result()


class Threads:
    """Executor that runs shards in parallel on threads; the kernels and NumPy's loops release the GIL.

    Parameters
    ----------
    shards : sequence of Shard
        Set by `linear_risk` when an executor without shards is passed to it.
    n_workers : int, optional
        Number of threads; one per core by default. Results are bitwise the same for any number.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Threads, linear_risk
    >>> X, y = np.ones((4, 1)), np.array([1.0, -1.0, 1.0, 1.0])
    >>> risk = linear_risk(X, y, Hinge(), executor=Threads(n_workers=2), n_shards=2)
    >>> risk(np.array([0.5]))[0]
    0.75
    """

    def __init__(self, shards: Sequence[Shard | LazyShard] = (), *, n_workers: int | None = None) -> None:
        check_shards("Threads", shards)
        self.shards = [materialize(shard) for shard in shards]
        self.n_workers = worker_count(n_workers)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(
            self.n_workers, thread_name_prefix="riskmin", initializer=limit_worker_to_one_thread
        )
        # without this, threads would accumulate over many fits
        weakref.finalize(self, pool.shutdown, wait=False)
        return pool

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the pool: a copy starts its own."""
        return {"shards": self.shards, "n_workers": self.n_workers}

    def __call__(self, shards: Sequence[Shard | LazyShard]) -> Threads:
        """Return an executor with the same settings that holds these shards."""
        return Threads(shards, n_workers=self.n_workers)

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k], computed in parallel."""
        todo = call_arguments(len(self.shards), args, each)
        # a single call runs in the calling thread: a handover to another thread would take longer
        if len(todo) == 1:
            check()
            return [f(self.shards[0], *todo[0])]
        # a separate limit with the same deadline, so that these calls alone can be stopped
        limit = TimeLimit(current_limit().deadline)
        futures = [self._pool.submit(limit.call, f, s, *a) for s, a in zip(self.shards, todo, strict=True)]
        try:
            return [_result(future) for future in futures]
        except BaseException:
            # an expired deadline stops the running calls; wait for them, since the caller may use the shards
            limit.deadline = -math.inf
            for future in futures:
                future.cancel()
            wait(futures)
            raise

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the tuples of `map`, in shard order."""
        return sum_tuples(self.map(f, *args, each=each), self._total)

    def _total(self, arrays: Sequence[Any]) -> Any:
        """Return the sum of arrays in order; long ones by ranges in parallel, with bitwise the same result.

        Multi-dimensional arrays are added up by the calling thread.
        """
        n = arrays[0].size if isinstance(arrays[0], np.ndarray) else 0
        if n < PARALLEL_SUM_MIN_LENGTH or self.n_workers == 1 or arrays[0].ndim > 1:
            return sum_arrays(arrays)
        # one range of entries per thread; each entry is added up in the same order as by sum_arrays
        ends = (
            np.linspace(0, n, min(self.n_workers, n // (PARALLEL_SUM_MIN_LENGTH // 2)) + 1)
            .astype(int)
            .tolist()
        )
        parts = self._pool.map(lambda i, j: sum_arrays([a[i:j] for a in arrays]), ends[:-1], ends[1:])
        return np.concatenate(list(parts))
