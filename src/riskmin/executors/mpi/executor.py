"""Shards on the ranks of an MPI job: every rank runs the same program and computes on its own shards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from riskmin.arrays.partitioned import InMemoryPartition, LazyShard, PartitionedMatrix
from riskmin.core import NDArray, Shard
from riskmin.core.messages import extra_hint
from riskmin.executors.base import Backend, Coordination, Executor, call_arguments, sum_arrays, sum_tuples
from riskmin.executors.mpi.collective import Communicator, arguments_checksum

T = TypeVar("T")


class _LongArray(NamedTuple):
    """Placeholder of a long array in a message: long arrays are reduced separately."""

    shape: tuple[int, ...]


def _is_long(x: Any) -> bool:
    """Whether x is an array long enough to be reduced by ranges, one range per rank."""
    return isinstance(x, np.ndarray) and x.size >= 2**10 and x.dtype == np.float64


def _name(f: Callable[..., Any]) -> str:
    return str(getattr(f, "__name__", type(f).__name__))


def _concatenated(arrays: Sequence[NDArray]) -> NDArray:
    """Return the entries of all arrays in one vector."""
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0]).ravel()
    return np.concatenate([a.ravel() for a in arrays])


def _local_sum(rows: list[NDArray], n: int) -> NDArray:
    """Return the sum of this rank's vectors, each of n entries; zero if it has none."""
    if len(rows) > 1:
        result: NDArray = sum_arrays(rows)
        return result
    return rows[0] if rows else np.zeros(n)


@dataclass(frozen=True)
class RankPartition:
    """Partition of X that is in the memory of one rank; `X` is None on the other ranks."""

    X: Any = field(repr=False)
    name: str
    rank: int
    shape: tuple[int, int]
    nnz: int
    sparse: bool

    def read(self) -> Any:
        """Return the rows; only possible on the rank that holds them."""
        if self.X is None:
            raise ValueError(f"{self.name} is in the memory of that rank only: fit with the same Spmd")
        return self.X


class Spmd(Backend, Coordination):
    """Shards on the ranks of an MPI job (single program, multiple data).

    Every rank of ``mpiexec -n 8 python script.py`` runs the same script with the same solver, reads its own
    shards and computes on them. Sums are taken over all ranks, so that all get the same results.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        ``MPI.COMM_WORLD`` by default.
    ordered : bool
        Add up in the order of the shards: bitwise the same as `Serial`, for any number of ranks. If False,
        each rank adds up its shards, and MPI_Allreduce adds up these sums: less is sent, but the last bits
        of a sum may differ.

    Examples
    --------
    The script differs from one for a single process only in the argument `executor` of `linear_risk` or of an
    estimator:

    >>> from riskmin import Spmd
    >>> Spmd(ordered=False)
    Spmd(ordered=False)
    """

    single_process = False

    def __init__(self, comm: Any = None, *, ordered: bool = True) -> None:
        self.comm, self.ordered = comm, ordered
        self._communicator: Communicator | None = None

    def __repr__(self) -> str:
        return f"Spmd(ordered={self.ordered})"

    def __deepcopy__(self, memo: Any) -> Spmd:
        """Return a copy that shares the communicator."""
        copy = Spmd(self.comm, ordered=self.ordered)
        copy._communicator = self._communicator
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        if self.comm is not None:
            raise TypeError("Spmd with a communicator cannot be pickled: pickle Spmd() alone")
        return partial(Spmd, ordered=self.ordered), ()

    def place(self, shards: Sequence[Shard | LazyShard]) -> SpmdExecutor:
        """Return an executor that holds these shards, on each rank its own."""
        return SpmdExecutor(self, shards)

    # ------------------------------------------------------------ ranks
    @property
    def ranks(self) -> Any:
        """The mpi4py communicator."""
        if self.comm is None:
            try:
                from mpi4py import MPI
            except (ImportError, RuntimeError) as error:
                raise ImportError(
                    f"Spmd needs mpi4py and an MPI, such as mpich ({error}): {extra_hint('mpi', 'mpich')}"
                ) from None
            self.comm = MPI.COMM_WORLD
        return self.comm

    @property
    def communicator(self) -> Communicator:
        """Checked message exchange with the other ranks."""
        if self._communicator is None:
            self._communicator = Communicator(self.ranks)
        return self._communicator

    @property
    def coordination(self) -> Coordination:  # type: ignore[override]
        """The backend itself coordinates the ranks."""
        return self

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        return self.communicator.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.communicator.size

    @property
    def is_root(self) -> bool:  # type: ignore[override]
        """Whether this process has rank 0."""
        return self.rank == 0

    def broadcast_from_root(self, f: Callable[[], T]) -> T:
        """Call f on every rank and return the result of rank 0 on all; an error on one is raised on all."""
        result: T = self.communicator.exchange("agreement", 0, f)[0]
        return result

    def on_root(self, f: Callable[[], T]) -> T:
        """Call f on rank 0 only, for instance to write a file, and return its result on all ranks."""
        return self.broadcast_from_root(f if self.is_root else lambda: None)  # type: ignore[return-value]

    def synchronized(self) -> contextlib.AbstractContextManager[None]:
        """Block that all ranks leave in the same way: an error or Ctrl-C on one is raised on all."""
        return self.communicator.synchronized()

    @contextlib.contextmanager
    def root_output_only(self) -> Iterator[None]:
        """Block in which only rank 0 prints."""
        if self.is_root:
            yield
            return
        with (
            Path(os.devnull).open("w") as null,
            contextlib.redirect_stdout(null),
            contextlib.redirect_stderr(null),
        ):
            yield

    # ------------------------------------------------------------ rows of the ranks
    def partition(self, X: Any) -> PartitionedMatrix:
        """Return the rows of all ranks as one partitioned matrix, in the order of the ranks.

        Parameters
        ----------
        X : array, sparse matrix or dataframe
            The rows of this rank: zero or more, with the same columns on all ranks.
        """
        communicator = self.communicator

        def describe() -> tuple[Any, ...]:
            local = InMemoryPartition(X if hasattr(X, "shape") else np.asarray(X))
            return local.shape, local.nnz, local.sparse

        descriptions = communicator.exchange("partition", 0, describe)
        parts = [
            RankPartition(X if k == communicator.rank else None, f"X of rank {k}", k, shape, nnz, sparse)
            for k, (shape, nnz, sparse) in enumerate(descriptions)
        ]
        PartitionedMatrix(parts)  # raises if the columns of a rank differ, also of one without rows
        return PartitionedMatrix([part for part in parts if part.shape[0]] or parts[:1], self)

    def gather_labels(self, y: Any) -> NDArray | None:
        """Return the labels (or weights, or query ids) of all ranks, concatenated, on every rank.

        Parameters
        ----------
        y : array or None
            The labels of this rank's rows; None if no rank has any.
        """
        arrays = self.communicator.exchange("gathered", 0, lambda: None if y is None else np.asarray(y))
        missing = [k for k, array in enumerate(arrays) if array is None]
        if len(missing) == len(arrays):
            return None
        if missing:
            raise ValueError(f"rank {missing[0]} gives None and others give arrays: give one at each rank")
        return np.concatenate(arrays)


class SpmdExecutor(Executor):
    """Shards of this rank, with the communicator of an `Spmd`; sums are taken over all ranks."""

    def __init__(self, backend: Spmd, shards: Sequence[Shard | LazyShard]) -> None:
        self.communicator, self.ordered = backend.communicator, backend.ordered
        self.coordination = backend
        communicator, n = self.communicator, len(shards)
        # a partition in the memory of a rank stays there; other shards are assigned in contiguous ranges
        self.owner = [
            getattr(shard.part, "rank", k * communicator.size // n) for k, shard in enumerate(shards)
        ]
        # all ranks must have the same labels and weights, which the checksum verifies
        vectors = [x for shard in shards for x in (shard.y, shard.c)]
        local = [s for s, rank in zip(shards, self.owner, strict=True) if rank == communicator.rank]
        self.shards: list[Shard] = []
        communicator.exchange(
            "shards in order" if self.ordered else "shards",
            arguments_checksum([float(n), *vectors]),
            lambda: self.shards.extend(shard.load() for shard in local),
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("shards on MPI ranks cannot be pickled: pickle Spmd() alone, and make the risk anew")

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k] on all ranks; each rank computes those of its shards."""
        # the exchange returns the results in the order of the ranks, which is that of the shards
        rank_results = self.communicator.exchange(
            _name(f), arguments_checksum(args), lambda: self._local_results(f, args, each)
        )
        return [x for results in rank_results for x in results]

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sum of the tuples of `map`: in shard order, or with ``ordered=False`` in MPI's order."""
        if self.communicator.size == 1 or len(self.owner) == 1:
            return sum_tuples(self.map(f, *args, each=each))
        local: list[tuple[Any, ...]] = []

        # first exchange: short entries, and placeholders of the long arrays, which stay in `local`
        def work() -> list[tuple[Any, ...]]:
            local.extend(self._local_results(f, args, each))
            return [tuple(_LongArray(x.shape) if _is_long(x) else x for x in term) for term in local]

        replies = self.communicator.exchange(_name(f), arguments_checksum(args), work)
        terms = [x for reply in replies for x in reply]
        # the placeholders of all terms must agree, or the reduction would add up different entries
        shapes = [x.shape for x in terms[0] if isinstance(x, _LongArray)]
        if any([x.shape for x in term if isinstance(x, _LongArray)] != shapes for term in terms):
            raise ValueError("shards gave arrays of different shapes, which cannot be added up")
        if not shapes:
            return sum_tuples(terms)
        sizes = [int(np.prod(shape)) for shape in shapes]
        # then the long arrays: those of one shard are joined, so that one reduction serves all of them
        with self.communicator.abort_on_error():
            joint = self._reduced(
                [_concatenated([x for x in term if _is_long(x)]) for term in local], sum(sizes)
            )
        # cut the joint sum into the arrays, which take the places of their placeholders in order
        ends = np.cumsum([0, *sizes])
        arrays = (joint[i:j].reshape(shape) for (i, j), shape in zip(pairwise(ends), shapes, strict=True))
        return sum_tuples(terms, lambda x: next(arrays) if isinstance(x[0], _LongArray) else sum_arrays(x))

    def _local_results(self, f: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Any]) -> list[Any]:
        """Return the results of f on this rank's shards."""
        todo = call_arguments(len(self.owner), args, each)
        local_args = [a for a, rank in zip(todo, self.owner, strict=True) if rank == self.communicator.rank]
        return [f(shard, *a) for shard, a in zip(self.shards, local_args, strict=True)]

    def _reduced(self, vectors: list[NDArray], n: int) -> NDArray:
        """Return the sum over all shards of vectors of n entries, bitwise the same on all ranks.

        With `ordered`, each rank receives one range of the vectors of all shards, adds it up in shard order,
        and sends it to all ranks. Otherwise `MPI_Allreduce` adds up the local sums; MPI adds a range either
        on one rank, or by pairs of ranks that add the same two numbers, so that all ranks get the same bits.
        """
        communicator, comm = self.communicator, self.communicator.comm
        result: NDArray = communicator.buffer_pool.acquire(8 * n).view(np.float64)
        if not self.ordered:
            comm.Allreduce(_local_sum(vectors, n), result)
            return result
        # rank r adds up the entries ends[r] to ends[r + 1] of the vectors of all shards
        ends = np.linspace(0, n, communicator.size + 1).astype(int).tolist()
        widths = np.diff(ends)
        width, counts = int(widths[communicator.rank]), np.bincount(self.owner, minlength=communicator.size)
        outgoing = communicator.buffer_pool.acquire(8 * n * len(vectors)).view(np.float64)
        incoming = (
            communicator.buffer_pool.acquire(8 * width * len(self.owner))
            .view(np.float64)
            .reshape(len(self.owner), width)
        )
        # sent: for each rank, its range of every local vector; received: this rank's range of every vector,
        # (shards, width), in the order of the ranks and so of the shards
        np.concatenate(
            [vector[i:j] for i, j in pairwise(ends) for vector in vectors] or [outgoing], out=outgoing
        )
        comm.Alltoallv([outgoing, len(vectors) * widths], [incoming, counts * width])
        for vector in incoming[1:]:
            incoming[0] += vector
        comm.Allgatherv(incoming[0], [result, widths])
        return result
