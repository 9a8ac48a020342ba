"""The contract of executors: a `Backend` has settings and places shards, an `Executor` computes on them.

`SerialExecutor` is the reference: every other executor reproduces its results bit for bit.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np

from riskmin._numba import lazy_module
from riskmin.arrays.compressed import with_transpose
from riskmin.arrays.partitioned import InMemoryPartition, LazyShard, Partition, RereadPartition
from riskmin.core import NDArray, Shard, ShardCache, has_method
from riskmin.core.deadline import MAX_KERNEL_OPERATIONS, check, check_each
from riskmin.core.messages import one_line

T = TypeVar("T")


# ---------------------------------------------------------------- processes that agree
class Coordination:
    """The processes that run the same program; all of them call each of these methods, in the same order.

    Decisions that depend on clocks, files or the user must be the same in all processes (ranks) of a run: one
    decides, and broadcasts its decision to the others. The defaults are those of a single process.
    """

    single_process: bool = True
    is_root: bool = True
    """Whether this process is the one that prints and writes files."""

    def broadcast_from_root(self, f: Callable[[], T]) -> T:
        """Call f in every process and return the root's result in all; an error of one is raised in all."""
        return f()

    def on_root(self, f: Callable[[], T]) -> T:
        """Call f in the root only, for instance to write a file, and return its result in all processes."""
        return f()

    def synchronized(self) -> AbstractContextManager[None]:
        """Block that all processes leave in the same way: an error or Ctrl-C in one is raised in all."""
        return nullcontext()


def coordination_of(risk: Any) -> Coordination:
    """Return the coordination of a risk: that of its executor, or that of a single process."""
    executor = risk.executor
    return Coordination() if executor is None else executor.coordination


def blas_threads_of(risk: Any) -> int | None:
    """Return the number of BLAS threads during a fit of a risk; None if it has no executor.

    One per worker of the executor: the workers are the threads of a fit. A number that depended on the number
    of workers would change the rounding of sums, and results would differ in their last bits.
    """
    executor = risk.executor
    return None if executor is None else executor.blas_threads


# ---------------------------------------------------------------- sums in order
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


# ---------------------------------------------------------------- compiled loops over items
def even_slices(n: int, n_parts: int) -> list[slice]:
    """Return consecutive ranges of nearly equal length that make up n items."""
    return [slice(k * n // n_parts, (k + 1) * n // n_parts) for k in range(n_parts)]


items = lazy_module("shards.items")
"""Return the module of items that threads share."""


_thread = threading.local()
"""Memory that each thread keeps: new memory would take longer than its use."""


def thread_memory(n: int) -> NDArray:
    """Return memory of this thread for at least n numbers."""
    if len(getattr(_thread, "memory", ())) <= n:
        _thread.memory = np.empty(n + 1)
    memory: NDArray = _thread.memory
    return memory


def parts_in_time(n_items: int, work: float, n_threads: int) -> list[slice]:
    """Return ranges of items, between which time limits are checked, of a number of operations in all."""
    n_parts = math.ceil(work / (n_threads * MAX_KERNEL_OPERATIONS))
    return even_slices(n_items, min(max(n_parts, 1), max(n_items // n_threads, 1)))


class RowRanges(list[Shard]):
    """Shards that are consecutive ranges of rows in one place: views of the rows as a whole.

    Parameters
    ----------
    rows : Shard
        The rows as a whole.
    ends : (n_shards + 1,) array
        Shard k has the rows ends[k] to ends[k + 1] - 1.
    wide : bool
        Whether each shard also stores the transpose of its rows.
    """

    def __init__(self, rows: Shard, ends: NDArray, *, wide: bool = False) -> None:
        X, y, c, _ = rows
        parts: list[Any] = [X] if len(ends) == 2 else [X.rows(i, j) for i, j in pairwise(ends.tolist())]
        parts = [with_transpose(part) for part in parts] if wide else parts
        ranges = zip(parts, pairwise(ends.tolist()), strict=True)
        super().__init__(Shard(part, y[i:j], c[i:j], ShardCache()) for part, (i, j) in ranges)
        self.rows, self.ends, self.wide = rows, ends, wide

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the rows once; the copy has views of its own."""
        return partial(type(self), wide=self.wide), (self.rows, self.ends)


class RowParts(list[Any]):
    """The entries of a vector that belong to each shard, as views, with the vector."""

    def __init__(self, vector: Any, ends: NDArray) -> None:
        super().__init__(vector[i:j] for i, j in pairwise(ends.tolist()))
        self.vector = vector


RANGE_FORMS: dict[Callable[..., Any], Callable[..., list[Any] | None]] = {}
"""How threads compute a function of one shard for all `RowRanges`, in one compiled call each.

Calls of one shard each would wait for the interpreter's lock. A form takes the executor and the arguments of
`Executor.map`, and returns its results, with the same bits; None if the rows or the arguments do not fit.
"""


QUICK_FUNCTIONS: set[Callable[..., Any]] = set()
"""Functions that compute little per shard: threads would mostly wait for the interpreter's lock."""


def shard_length(shard: Shard) -> int:
    """Return the number of rows of a shard."""
    return len(shard.c)


QUICK_FUNCTIONS.add(shard_length)


def row_ends(executor: Executor) -> list[int]:
    """Return the row numbers at which the shards begin, and the number of rows."""
    return list(accumulate(executor.map(shard_length), initial=0))


# ---------------------------------------------------------------- executors
class Executor(ABC):
    """Holds the shards, local or remote, and runs top-level functions on them.

    Only `map` is required. An executor in this process declares ``is_local = True``: then solvers that visit
    rows or columns one by one (`CoordinateDescent`, dual coordinate ascent) are available, too.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Executor, Hinge, linear_risk
    >>> class Reversed(Executor):
    ...     is_local = True
    ...     def __init__(self, shards):
    ...         self.shards = shards
    ...     def map(self, f, *args, each=()):
    ...         calls = [(s, *args, *each[k : k + 1]) for k, s in enumerate(self.shards)]
    ...         return [f(*call) for call in reversed(calls)][::-1]
    >>> linear_risk(np.eye(2), [1.0, -1.0], Hinge(), executor=Reversed, n_shards=2)(np.zeros(2))[0]
    1.0
    """

    is_local: bool = False
    """Whether the shards are in this process, so that solvers may visit their rows."""
    coordination: Coordination = Coordination()
    """How the processes that run this program agree on decisions; a single process decides by itself."""
    blas_threads: int | None = 1
    """Number of BLAS threads during a fit; None leaves the setting of the libraries unchanged."""
    can_gather: bool = True
    """Whether scores and labels of single rows may be sent to this process: not by data owners."""
    raises_values: bool = False
    """Whether values may be above the exact ones, each by another amount: the lowest of a point holds."""
    compiles_losses: bool = True
    """Whether shards take compiled losses: their rows are in NumPy or SciPy, or on a GPU."""

    def stall_note(self) -> str:
        """Return why sums of this executor may have ended a run as ``stalled``, and the remedy; "" if not."""
        return ""

    @abstractmethod
    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return ``[f(shard_k, *args, each_k) for k]``, in shard order."""

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the tuples of `map`, added in shard order (reproducible rounding)."""
        return sum_tuples(self.map(f, *args, each=each))

    def map_local(self, f: Callable[[Any], Any], items: Sequence[Any], work: float = math.inf) -> list[Any]:
        """Return [f(item)] of items in this process, in parallel if the executor has threads.

        `work` is the number of elementary operations of all items: little work runs on fewer threads.
        """
        return [f(item) for item in check_each(items)]

    def useful_threads(self, work: float) -> int:
        """Return how many threads `map_local` uses for a number of elementary operations."""
        return 1

    def share(self, loop: Any, args: tuple[Any, ...], n_items: int, work: float, memory: int = 0) -> None:
        """Call ``loop(progress, memory, *args)``, a compiled loop over items, which threads share.

        `work` is the number of elementary operations of all items, and `memory` the numbers for each thread.
        """
        own, new_progress = thread_memory(memory), items().new_progress
        if work <= MAX_KERNEL_OPERATIONS:
            check()
            loop(new_progress(0, n_items), own, *args)
            return
        for part in check_each(parts_in_time(n_items, work, 1)):
            loop(new_progress(part.start, part.stop), own, *args)

    def total(self, arrays: Sequence[Any]) -> Any:
        """Return the sum of arrays of this process, added in order."""
        return sum_arrays(arrays) if len(arrays) > 1 else arrays[0]

    def with_shards(self, shards: Sequence[Shard]) -> Executor:
        """Return an executor with the same settings that holds other shards in this process."""
        return SerialExecutor(shards)


class SerialExecutor(Executor):
    """Calls a function on one shard after the other, in the calling thread.

    Parameters
    ----------
    shards : sequence of Shard or LazyShard
    blas_threads : int or None
        See `Executor`.
    """

    is_local = True

    def __init__(self, shards: Sequence[Shard | LazyShard] = (), *, blas_threads: int | None = 1) -> None:
        self.shards = shards if isinstance(shards, RowRanges) else [shard.load() for shard in shards]
        self.blas_threads = blas_threads

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k]."""
        if len(self.shards) == 1 and len(each) <= 1:
            check()
            return [f(self.shards[0], *args, *each)]
        todo = call_arguments(len(self.shards), args, each)
        return [f(s, *a) for s, a in check_each(zip(self.shards, todo, strict=True))]


class ForeignExecutor(Executor):
    """Adapter of an object with a method `map`, and perhaps `sum` and attributes of `Executor`."""

    def __init__(self, inner: Any, backend: Backend) -> None:
        self.inner, self.backend, self.is_local = inner, backend, backend.is_local
        for name in ("sum", "is_local", "coordination", "blas_threads"):
            setattr(self, name, getattr(inner, name, getattr(self, name)))

    def __repr__(self) -> str:
        return repr(self.inner)

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return ``[f(shard_k, *args, each_k) for k]``, in shard order."""
        results: list[Any] = self.inner.map(f, *args, each=each)
        return results

    def with_shards(self, shards: Sequence[Shard]) -> Executor:
        """Return an executor made in the same way that holds other shards."""
        return self.backend.place(shards)


# ---------------------------------------------------------------- backends
class Backend(ABC):
    """Settings of an executor: `place` makes one that holds the given shards.

    The other methods read files as partitions of X, for `load_partitioned`. By default, a local backend reads
    them at once and holds the results; in other backends each process reads those that it needs, again.

    Examples
    --------
    >>> from riskmin import Shard, Threads, as_matrix
    >>> shards = [Shard(as_matrix([[1.0], [2.0]]), [1.0, -1.0], [0.5, 0.5], {})]
    >>> Threads(n_workers=2).place(shards).map(lambda shard: shard.X.shape)
    [(2, 1)]
    """

    is_local: bool = False
    """Whether the executors of this backend hold the rows in this process."""
    device: Any = None
    """Where the processes that hold the shards put them, as in `DaskExecutor`; None if not on a device."""
    coordination: Coordination = Coordination()
    """How the processes that run this program agree on decisions; a single process decides by itself."""
    partition_class: type[Any] = RereadPartition
    """The class of partitions that are not in this process."""

    @abstractmethod
    def place(self, shards: Sequence[Shard | LazyShard]) -> Executor:
        """Return an executor that holds these shards; only those of a partitioned X are not read yet."""

    def persist(self, f: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Run f(item) where the rows will be, and return handles of the results."""
        return [f(item) if self.is_local else partial(f, item) for item in items]

    def apply(self, handles: Sequence[Any], g: Callable[[Any], Any]) -> list[Any]:
        """Return [g(result)] for each handle; only this is sent to this process."""
        return [g(handle if self.is_local else handle()) for handle in handles]

    def part(
        self,
        handle: Any,
        name: str,
        shape: tuple[int, int],
        nnz: int,
        sparse: bool,
        pick: Callable[[Any], Any] | None = None,
    ) -> Partition:
        """Return a partition of X whose rows are ``pick(result)``, or the result itself."""
        if not self.is_local:
            partition: Partition = self.partition_class(name, shape, nnz, sparse, handle, pick)
            return partition
        return InMemoryPartition(handle if pick is None else pick(handle), name)


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


class ForeignBackend(Backend):
    """Backend whose executors are made by an executor class, or by any other function of the shards."""

    def __init__(self, make: Callable[[Sequence[Any]], Any], is_local: bool = False) -> None:
        self.make, self.is_local = make, is_local

    def place(self, shards: Sequence[Shard | LazyShard]) -> Executor:
        """Return an executor that holds these shards; one that is not derived from `Executor` is adapted."""
        executor = self.make(shards)
        if isinstance(executor, Executor):
            return executor
        if not has_method(executor, "map"):
            raise TypeError(
                f"{one_line(repr(executor))} has no method map(f, *args, each=()): derive it from `Executor`"
            )
        return ForeignExecutor(executor, self)


def as_backend(executor: Any) -> Backend:
    """Return the backend that the argument `executor` of `linear_risk` names.

    That is a `Backend` or a class of them, an object with a method `place`, or a function of the shards that
    returns an executor, such as a class with `map` and `sum`.
    """
    if isinstance(executor, Backend):
        return executor
    if isinstance(executor, type) and Backend in executor.__mro__:
        return executor()  # type: ignore[no-any-return]
    make = executor.place if has_method(executor, "place") else executor
    if not callable(make):
        raise TypeError(f"executor={executor!r} is no executor: give one such as Threads(n_workers=2)")
    return ForeignBackend(make, bool(getattr(executor, "is_local", False)))
