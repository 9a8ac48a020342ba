"""An executor within this process: its shards are computed on a pool of threads."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.partitioned import LazyShard
from riskmin.core import Shard
from riskmin.core.deadline import TimeLimit, check_each, current_limit
from riskmin.core.messages import is_whole_number, one_line
from riskmin.executors.base import (
    QUICK_FUNCTIONS,
    RANGE_FORMS,
    Backend,
    Executor,
    RowRanges,
    call_arguments,
    items,
    parts_in_time,
    sum_tuples,
    thread_memory,
)
from riskmin.executors.team import JointCall, Team


def worker_count(n_workers: int | None) -> int:
    """Return the number of workers; None means one per core."""
    if n_workers is None:
        return os.cpu_count() or 1
    if not is_whole_number(n_workers, at_least=1):
        raise ValueError(
            f"n_workers={one_line(repr(n_workers))}: give a whole number >= 1, or None for one per core"
        )
    return int(n_workers)


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

    is_local = True

    def __init__(self, shards: Sequence[Shard | LazyShard], n_workers: int, team: Team | None = None) -> None:
        self.shards = shards if isinstance(shards, RowRanges) else [shard.load() for shard in shards]
        self.n_workers = n_workers
        self._team = team or Team(n_workers - 1)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without threads: a copy makes its own."""
        return {"shards": self.shards, "n_workers": self.n_workers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ThreadExecutor.__init__(self, **state)

    def with_shards(self, shards: Sequence[Shard]) -> ThreadExecutor:
        """Return an executor with the same threads that holds other shards."""
        return ThreadExecutor(shards, self.n_workers, self._team)

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k], computed in parallel.

        Each thread takes the next shard when it is done with one, so that a slow one delays no other: in one
        compiled call for all of them, if there is one, else in one call of Python per shard.
        """
        if len(self.shards) > 1 and isinstance(self.shards, RowRanges) and f in RANGE_FORMS:
            results = RANGE_FORMS[f](self, *args, each=each)
            if results is not None:
                return results
        todo = call_arguments(len(self.shards), args, each)
        # a shard with its arguments is one item
        calls = [(s, *a) for s, a in zip(self.shards, todo, strict=True)]
        return self._run_on_threads(
            lambda call: f(*call), calls, 1 if f in QUICK_FUNCTIONS else self.n_workers
        )

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
            try:
                raise errors[0]
            finally:
                errors.clear()  # an error refers to this frame: a cycle, which would keep the threads

    def share(self, loop: Any, args: tuple[Any, ...], n_items: int, work: float, memory: int = 0) -> None:
        """Call loop(progress, memory, *args), a compiled loop over items, on several threads."""
        n_threads = min(self.useful_threads(work), n_items)
        if n_threads == 1:
            super().share(loop, args, n_items, work, memory)
            return
        for part in check_each(parts_in_time(n_items, work, n_threads)):
            progress = items().new_progress(part.start, part.stop)
            if not self._team.compiled.call(loop, progress, args, memory, n_threads):
                # the threads are busy with a call of another fit
                loop(progress, thread_memory(memory), *args)

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the tuples of `map`, in shard order."""
        return sum_tuples(self.map(f, *args, each=each), self.total)

    def total(self, arrays: Sequence[Any]) -> Any:
        """Return the sum of arrays in order; long ones by ranges in parallel, with the same bits."""
        first, work = arrays[0], 0.0
        if all(isinstance(a, np.ndarray) and a.dtype == np.float64 and a.flags.c_contiguous for a in arrays):
            work = float(first.size * len(arrays))
        n_threads = self.useful_threads(work)
        if n_threads == 1:
            return super().total(arrays)
        # ranges of entries, each of which is added up in the same order as by sum_arrays
        from riskmin._numba.shards.ranges import sum_in_order

        total, n_ranges = np.empty(first.shape), 4 * n_threads
        places = np.array([a.__array_interface__["data"][0] for a in arrays])
        ends = np.linspace(0, first.size, n_ranges + 1).astype(np.int64)
        self.share(sum_in_order, (ends, places, total.reshape(-1)), n_ranges, work)
        return total
