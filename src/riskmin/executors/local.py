"""Executors in this process: one after the other, or on threads."""

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

from riskmin.blas import one_each
from riskmin.deadline import GLANCE, Limit, check, checking, current
from riskmin.spread import Unread, loaded
from riskmin.types import Shard

LONG = 2**16
"""Sums of arrays from this length on are worth a thread's while."""


def worker_count(n_workers: int | None) -> int:
    """How many workers: one a core where the user does not say."""
    if n_workers is None:
        return os.cpu_count() or 1
    if isinstance(n_workers, bool) or not isinstance(n_workers, numbers.Integral) or n_workers < 1:
        raise ValueError(f"n_workers={n_workers!r}: give a whole number >= 1, or None for one a core")
    return int(n_workers)


def check_shards(name: str, shards: Any) -> None:
    """Raise where a number of workers was given in the place of the shards."""
    if isinstance(shards, numbers.Integral):
        raise TypeError(f"{name}({shards}): for so many workers, write {name}(n_workers={shards})")


def calls(n: int, args: tuple[Any, ...], each: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The arguments of the call on each of n shards."""
    return [(*args, e) for e in each] if len(each) else [args] * n


def total(arrays: Sequence[Any]) -> Any:
    """Arrays added up in order."""
    found = arrays[0] + arrays[1]
    for a in arrays[2:]:
        if getattr(found, "dtype", None) == getattr(a, "dtype", 0):
            found += a  # a new array each time would cost as much as the sum
        else:
            found = found + a
    return found


def add(parts: Sequence[tuple[Any, ...]], total: Callable[[Sequence[Any]], Any] = total) -> tuple[Any, ...]:
    """Tuples added up entry by entry, in order; floats exactly rounded, so that no order matters to them."""
    if len(parts) == 1:
        return parts[0]
    return tuple(math.fsum(p) if isinstance(p[0], float) else total(p) for p in zip(*parts, strict=True))


class Serial:
    """One shard after the other, in this thread.

    Parameters
    ----------
    shards : sequence of Shard
        `linear_risk` fills it in when the executor is passed to it without.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Serial, linear_risk
    >>> risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge(), executor=Serial())
    >>> risk(np.zeros(2))[0]
    1.0
    """

    blas_threads: int | None = 1
    """How many threads the libraries of linear algebra take during a fit; None leaves them alone."""

    def __init__(self, shards: Sequence[Shard | Unread] = ()) -> None:
        self.shards = [loaded(shard) for shard in shards]

    def __call__(self, shards: Sequence[Shard | Unread]) -> Serial:
        """An executor with the same settings that holds these shards."""
        return Serial(shards)

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """[f(shard_k, *args, each_k) for k]."""
        todo = calls(len(self.shards), args, each)
        if len(todo) == len(self.shards) == 1:
            check()
            return [f(self.shards[0], *todo[0])]
        return [f(s, *a) for s, a in checking(zip(self.shards, todo, strict=True))]

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The tuples of `map`, added up in shard order."""
        return add(self.map(f, *args, each=each))


def _result(future: Future[Any]) -> Any:
    """What a call in another thread gave, once it is there.

    Waited for in short turns: a signal that the system hands to another thread is seen between two of them.
    """
    while not future.done():
        with suppress(TimeoutError):
            return future.result(GLANCE)
    return future.result()


class Threads:
    """Shards side by side on threads: the kernels and NumPy's loops release the interpreter's lock.

    Parameters
    ----------
    shards : sequence of Shard
        `linear_risk` fills it in when the executor is passed to it without.
    n_workers : int, optional
        How many threads; one a core by default. It changes no bit of any result.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Threads, linear_risk
    >>> X, y = np.ones((4, 1)), np.array([1.0, -1.0, 1.0, 1.0])
    >>> risk = linear_risk(X, y, Hinge(), executor=Threads(n_workers=2), n_shards=2)
    >>> risk(np.array([0.5]))[0]
    0.75
    """

    def __init__(self, shards: Sequence[Shard | Unread] = (), *, n_workers: int | None = None) -> None:
        check_shards("Threads", shards)
        self.shards = [loaded(shard) for shard in shards]
        self.n_workers = worker_count(n_workers)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(self.n_workers, thread_name_prefix="riskmin", initializer=one_each)
        weakref.finalize(self, pool.shutdown, wait=False)  # else threads pile up over many fits
        return pool

    def __getstate__(self) -> dict[str, Any]:
        """All but the pool: a copy starts its own."""
        return {"shards": self.shards, "n_workers": self.n_workers}

    def __call__(self, shards: Sequence[Shard | Unread]) -> Threads:
        """An executor with the same settings that holds these shards."""
        return Threads(shards, n_workers=self.n_workers)

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """[f(shard_k, *args, each_k) for k], side by side."""
        todo = calls(len(self.shards), args, each)
        if len(todo) == 1:  # no thread is faster than none
            check()
            return [f(self.shards[0], *todo[0])]
        limit = Limit(current().at)  # that of these calls alone, under which they can be stopped
        found = [self._pool.submit(limit.call, f, s, *a) for s, a in zip(self.shards, todo, strict=True)]
        try:
            return [_result(future) for future in found]
        except BaseException:
            # whatever comes next may use the shards, so that no call must still be at work on them
            limit.at = -math.inf
            for future in found:
                future.cancel()
            wait(found)
            raise

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The tuples of `map`, added up in shard order."""
        return add(self.map(f, *args, each=each), self._total)

    def _total(self, arrays: Sequence[Any]) -> Any:
        """Arrays added up in order; long ones by ranges side by side, which changes no bit of the sum."""
        n = arrays[0].size if isinstance(arrays[0], np.ndarray) else 0
        if n < LONG or self.n_workers == 1 or arrays[0].ndim > 1:
            return total(arrays)
        ends = np.linspace(0, n, min(self.n_workers, n // (LONG // 2)) + 1).astype(int).tolist()
        parts = self._pool.map(lambda i, j: total([a[i:j] for a in arrays]), ends[:-1], ends[1:])
        return np.concatenate(list(parts))
