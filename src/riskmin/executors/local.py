"""Executors within this process: serial, or on a pool of threads."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from riskmin.arrays.partitioned import LazyShard
from riskmin.core import Shard
from riskmin.core.deadline import TimeLimit, current_limit
from riskmin.core.messages import is_whole_number
from riskmin.executors.base import (
    GROUP_FUNCTIONS,
    Backend,
    Executor,
    GroupFunction,
    SerialExecutor,
    call_arguments,
    even_slices,
    sum_arrays,
    sum_tuples,
)
from riskmin.executors.team import JointCall, Team


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


class ThreadExecutor(Executor):
    """Runs functions on the shards in a team of threads."""

    MIN_WORK_PER_THREAD = 2**18
    """A thread is woken for at least this many elementary operations: fewer take less time than waking it."""
    MAX_GROUP_WORK = 2**22
    """Groups have at most this many operations, or one shard: time limits are checked between them."""

    is_local = True

    def __init__(self, shards: Sequence[Shard | LazyShard], n_workers: int, team: Team | None = None) -> None:
        self.shards = [shard.load() for shard in shards]
        self.n_workers = n_workers
        self._team = team or Team(n_workers - 1)
        self._prepared: dict[Callable[..., Any], Any] = {}
        self._plans: dict[GroupFunction, tuple[int, list[tuple[Any, slice]]]] = {}
        """For each function of groups: the number of threads, and the groups with their ranges of shards."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without threads and prepared shards: a copy makes its own."""
        return {"shards": self.shards, "n_workers": self.n_workers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ThreadExecutor.__init__(self, **state)

    def with_shards(self, shards: Sequence[Shard]) -> ThreadExecutor:
        """Return an executor with the same threads that holds other shards."""
        return ThreadExecutor(shards, self.n_workers, self._team)

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k], computed in parallel: one task per thread.

        Each thread takes the next shard when it is done with one, so that a slow one delays no other; or the
        next group of shards, if the function can be computed for a group.
        """
        grouped = GROUP_FUNCTIONS.get(f) if len(self.shards) > 1 else None
        if grouped is not None and grouped.accepts(*args):
            n_threads, groups = self._plan(grouped)
            if groups:
                parts = self._run_on_threads(
                    lambda group: grouped.run(group[0], *args, each=each[group[1]]), groups, n_threads
                )
                return list(chain.from_iterable(parts))
        todo = call_arguments(len(self.shards), args, each)
        # a shard with its arguments is one item
        calls = [(s, *a) for s, a in zip(self.shards, todo, strict=True)]
        return self.map_local(lambda call: f(*call), calls)

    def _plan(self, grouped: GroupFunction) -> tuple[int, list[tuple[Any, slice]]]:
        """Return the number of threads for a function, and its groups; none if the shards do not fit."""
        if grouped not in self._plans:
            if grouped.prepare not in self._prepared:
                self._prepared[grouped.prepare] = grouped.prepare(self.shards)
            prepared = self._prepared[grouped.prepare]
            if prepared is None:
                self._plans[grouped] = 0, []
                return self._plans[grouped]
            work = grouped.work(prepared)
            n_threads = self.useful_threads(work)
            # long work in twice as many groups as threads, so that one that starts late delays no other
            n_groups = n_threads * (1 + (work >= 8 * n_threads * self.MIN_WORK_PER_THREAD))
            n_groups = min(max(n_groups, -int(-work // self.MAX_GROUP_WORK)), len(self.shards))
            parts = even_slices(len(self.shards), n_groups)
            self._plans[grouped] = n_threads, [(prepared[part], part) for part in parts]
        return self._plans[grouped]

    def useful_threads(self, work: float) -> int:
        """Return the number of threads for a number of elementary operations, at least one."""
        return int(min(self.n_workers, max(work // self.MIN_WORK_PER_THREAD, 1)))

    def map_local(self, f: Callable[[Any], Any], items: Sequence[Any], work: float = math.inf) -> list[Any]:
        """Return [f(item)] of items in this process, in parallel if there is enough work."""
        return self._run_on_threads(f, items, self.useful_threads(work))

    def _run_on_threads(self, f: Callable[[Any], Any], items: Sequence[Any], n_threads: int) -> list[Any]:
        """Return [f(item)] of items, computed by at most this many threads."""
        # a single call runs in the calling thread: a handover to another thread would take longer
        if len(items) == 1 or n_threads == 1:
            return super().map_local(f, items)
        results: list[Any] = [None] * len(items)
        waiting = deque(range(len(items)))

        def work() -> None:
            while waiting:
                try:
                    k = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                results[k] = f(items[k])

        self._run_together(work, min(n_threads, len(items)))
        return results

    def _run_together(self, work: Callable[[], None], n_threads: int) -> None:
        """Call a function once on each of several threads, of which the calling one is the first."""
        # a separate limit with the same deadline, so that these calls alone can be stopped
        limit, errors = TimeLimit(current_limit().deadline), []

        def guarded() -> None:
            try:
                limit.call(work)
            except BaseException as error:
                # an expired deadline stops the other threads, whose errors then come after this one
                errors.append(error)
                limit.deadline = -math.inf

        call = JointCall(guarded)
        try:
            self._team.invite(call, n_threads - 1)
            guarded()
            call.close()
        except BaseException as error:  # Ctrl-C while waiting
            errors.append(error)
            limit.deadline = -math.inf
            # wait for all, since the caller may use the shards
            call.close()
        if errors:
            raise errors[0]

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the tuples of `map`, in shard order."""
        return sum_tuples(self.map(f, *args, each=each), self._total)

    def _total(self, arrays: Sequence[Any]) -> Any:
        """Return the sum of arrays in order; long ones by ranges in parallel, with the same bits."""
        first = arrays[0]
        n = first.size if isinstance(first, np.ndarray) and first.flags.c_contiguous else 0
        n_ranges = self.useful_threads(n * len(arrays))
        if n_ranges == 1:
            return sum_arrays(arrays)
        # one range of entries per thread; each entry is added up in the same order as by sum_arrays
        total, flat = np.empty_like(first), [a.reshape(-1) for a in arrays]

        def add(part: slice) -> None:
            total.reshape(-1)[part] = sum_arrays([a[part] for a in flat])

        self.map_local(add, even_slices(n, n_ranges))
        return total
