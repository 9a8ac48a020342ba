"""Executors within this process: serial, or on a pool of threads."""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.partitioned import LazyShard
from riskmin.core import Shard
from riskmin.core.blas_threads import limit_worker_to_one_thread
from riskmin.core.deadline import LIMIT_POLL_SECONDS, TimeLimit, check, current_limit
from riskmin.core.messages import is_whole_number
from riskmin.executors.base import (
    Backend,
    Executor,
    SerialExecutor,
    call_arguments,
    sum_arrays,
    sum_tuples,
)


def worker_count(n_workers: int | None) -> int:
    """Return the number of workers; None means one per core."""
    if n_workers is None:
        return os.cpu_count() or 1
    if not is_whole_number(n_workers, at_least=1):
        raise ValueError(f"n_workers={n_workers!r}: give a whole number >= 1, or None for one per core")
    return int(n_workers)


@dataclass(frozen=True)
class Serial(Backend):
    """Shards in this process, computed one after the other in the calling thread.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Serial, linear_risk
    >>> risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge(), executor=Serial())
    >>> risk(np.zeros(2))[0]
    1.0
    """

    is_local = True

    def place(self, shards: Sequence[Shard | LazyShard]) -> SerialExecutor:
        """Return an executor that holds these shards."""
        return SerialExecutor(shards)


@dataclass(frozen=True)
class Threads(Backend):
    """Shards in this process, computed in parallel on threads; the kernels and NumPy's loops release the GIL.

    Parameters
    ----------
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

    n_workers: int | None = None
    is_local = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_workers", worker_count(self.n_workers))

    def place(self, shards: Sequence[Shard | LazyShard]) -> ThreadExecutor:
        """Return an executor that holds these shards."""
        return ThreadExecutor(shards, worker_count(self.n_workers))


def _result(future: Future[Any]) -> Any:
    """Wait for the result of a call in another thread.

    The wait is in short intervals: Python runs the handler of a signal that the system delivered to another
    thread only between them.
    """
    while not future.done():
        with suppress(TimeoutError):
            return future.result(LIMIT_POLL_SECONDS)
    return future.result()


class ThreadExecutor(Executor):
    """Runs functions on the shards in a pool of threads."""

    PARALLEL_SUM_MIN_LENGTH = 2**16
    """Arrays of at least this many entries are added up on several threads."""

    is_local = True

    def __init__(self, shards: Sequence[Shard | LazyShard], n_workers: int) -> None:
        self.shards = [shard.load() for shard in shards]
        self.n_workers = n_workers

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

    def with_shards(self, shards: Sequence[Shard]) -> ThreadExecutor:
        """Return an executor with as many threads that holds other shards."""
        return ThreadExecutor(shards, self.n_workers)

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k], computed in parallel: one task per thread.

        Each thread takes the next shard when it is done with one, so that a slow one delays no other.
        """
        todo = call_arguments(len(self.shards), args, each)
        # a single call runs in the calling thread: a handover to another thread would take longer
        if len(todo) == 1:
            check()
            return [f(self.shards[0], *todo[0])]
        results: list[Any] = [None] * len(todo)
        waiting = deque(range(len(todo)))

        def work() -> None:
            while waiting:
                try:
                    k = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                results[k] = f(self.shards[k], *todo[k])

        self._run_on_all_threads(work, min(self.n_workers, len(todo)))
        return results

    def _run_on_all_threads(self, work: Callable[[], None], n_threads: int) -> None:
        """Call a function once on each of several threads, of which the calling one is the first."""
        # a separate limit with the same deadline, so that these calls alone can be stopped
        limit = TimeLimit(current_limit().deadline)
        futures = [self._pool.submit(limit.call, work) for _ in range(n_threads - 1)]
        try:
            limit.call(work)
            for future in futures:
                _result(future)
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
        if n < self.PARALLEL_SUM_MIN_LENGTH or self.n_workers == 1 or arrays[0].ndim > 1:
            return sum_arrays(arrays)
        # one range of entries per thread; each entry is added up in the same order as by sum_arrays
        ends = (
            np.linspace(0, n, min(self.n_workers, n // (self.PARALLEL_SUM_MIN_LENGTH // 2)) + 1)
            .astype(int)
            .tolist()
        )
        parts = self._pool.map(lambda i, j: sum_arrays([a[i:j] for a in arrays]), ends[:-1], ends[1:])
        return np.concatenate(list(parts))
