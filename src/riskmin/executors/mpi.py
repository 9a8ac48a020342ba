"""Shards on the ranks of an MPI job: every rank runs the same program, and computes for its own shards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from riskmin.executors.local import add, calls, total
from riskmin.executors.ranks import Line, mark
from riskmin.spread import Local, Spread, Unread, loaded
from riskmin.types import NDArray, Shard

T = TypeVar("T")

LONG = 2**10
"""Arrays of so many numbers are added up in ranges, each at one rank."""


class _Apart(NamedTuple):
    """Stands for a long array in a letter: such arrays take another way."""

    shape: tuple[int, ...]


def _long(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.size >= LONG and x.dtype == np.float64


def _name(f: Callable[..., Any]) -> str:
    return str(getattr(f, "__name__", type(f).__name__))


def _joined(arrays: Sequence[NDArray]) -> NDArray:
    """One after the other."""
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0]).ravel()
    return np.concatenate([a.ravel() for a in arrays])


def _summed(rows: list[NDArray], n: int) -> NDArray:
    """The sum of what this rank has; it may have nothing."""
    if len(rows) > 1:
        found: NDArray = total(rows)
        return found
    return rows[0] if rows else np.zeros(n)


@dataclass(frozen=True)
class Rows:
    """A part of X that is in the memory of one rank."""

    X: Any = field(repr=False)
    name: str
    rank: int
    shape: tuple[int, int]
    numbers: int
    sparse: bool

    def read(self) -> Any:
        """The rows, on their rank."""
        if self.X is None:
            raise ValueError(f"{self.name} is in the memory of that rank only: fit with the same Spmd")
        return self.X


class Spmd:
    """Shards on the ranks of an MPI job (single program, multiple data): `mpiexec -n 8 python script.py`.

    Every rank runs the same script with the same solver, reads and computes for its share of the shards, and
    gets the same results. Sums are taken over all ranks.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        ``MPI.COMM_WORLD`` by default.
    ordered : bool
        Add up in the order of the shards: the same bits as `Serial`, with any number of ranks. Or else as MPI
        does, the shards of each rank first: it sends less, and rounds otherwise.

    Examples
    --------
    A script as for one process, but for the executor, which `linear_risk` and the estimators take:

    >>> from riskmin import Spmd
    >>> Spmd(ordered=False)
    Spmd(ordered=False)
    """

    def __init__(self, comm: Any = None, *, ordered: bool = True) -> None:
        self.comm, self.ordered = comm, ordered
        self.owner: list[int] = []
        self.shards: list[Shard] = []
        self._line: Line | None = None

    def __repr__(self) -> str:
        return f"Spmd(ordered={self.ordered})"

    def __deepcopy__(self, memo: Any) -> Spmd:
        """Settings can be copied; shards and ranks cannot."""
        return self._settings()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.owner or self.comm is not None:
            raise TypeError("Spmd with shards or a communicator cannot be pickled: pickle Spmd() alone")
        return partial(Spmd, ordered=self.ordered), ()

    def _settings(self) -> Spmd:
        copy = Spmd(self.comm, ordered=self.ordered)
        copy._line = self._line
        return copy

    def __call__(self, shards: Sequence[Shard | Unread]) -> Spmd:
        """An executor with the same settings that holds these shards, each rank its own."""
        line, held, n = self.line, self._settings(), len(shards)
        parts = [getattr(shard, "part", None) for shard in shards]
        held.owner = [getattr(part, "rank", k * line.size // n) for k, part in enumerate(parts)]
        known = [x for shard in shards for x in (shard.y, shard.c)]
        own = [s for s, rank in zip(shards, held.owner, strict=True) if rank == line.rank]
        name = "shards in order" if self.ordered else "shards"
        line.exchange(name, mark([float(n), *known]), lambda: held.shards.extend(loaded(s) for s in own))
        return held

    # ------------------------------------------------------------ ranks
    @property
    def ranks(self) -> Any:
        """The communicator."""
        if self.comm is None:
            try:
                from mpi4py import MPI
            except (ImportError, RuntimeError) as error:
                raise ImportError(
                    f"Spmd needs mpi4py and an MPI, such as mpich ({error}): pip install riskmin[mpi] mpich"
                ) from None
            self.comm = MPI.COMM_WORLD
        return self.comm

    @property
    def line(self) -> Line:
        """The line to the other ranks."""
        if self._line is None:
            self._line = Line(self.ranks)
        return self._line

    @property
    def rank(self) -> int:
        """Which rank this is, from 0 on."""
        return self.line.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.line.size

    def agree(self, f: Callable[[], T]) -> T:
        """What f gives at rank 0, at all; what it raises at any rank is raised at all."""
        found: T = self.line.exchange("agreement", 0, f)[0]
        return found

    def once(self, f: Callable[[], T]) -> T:
        """What f gives at rank 0, which alone calls it, at all ranks: for writing files."""
        return self.agree(f if self.rank == 0 else lambda: None)  # type: ignore[return-value]

    def together(self) -> contextlib.AbstractContextManager[None]:
        """A block that all ranks leave alike: an error at one, or Ctrl-C, is raised at all."""
        return self.line.together()

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """A block in which rank 0 alone is heard."""
        if self.rank == 0:
            yield
            return
        with (
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            yield

    # ------------------------------------------------------------ rows that ranks have
    def spread(self, X: Any) -> Spread:
        """The rows that each rank has, as the rows of one table, in the order of the ranks.

        Parameters
        ----------
        X : array, sparse matrix or frame
            This rank's rows; there may be none, with as many columns as the others'.
        """
        line = self.line

        def outline() -> tuple[Any, ...]:
            local = Local(X if hasattr(X, "shape") else np.asarray(X))
            return local.shape, local.numbers, local.sparse

        found = line.exchange("spread", 0, outline)
        parts = [
            Rows(X if k == line.rank else None, f"X of rank {k}", k, shape, numbers, sparse)
            for k, (shape, numbers, sparse) in enumerate(found)
        ]
        Spread(parts)  # which refuses other columns, also of ranks without rows
        return Spread([part for part in parts if part.shape[0]] or parts[:1], self)

    def gathered(self, y: Any) -> NDArray | None:
        """The labels (or weights, or ids of queries) that each rank has, all of them at all ranks.

        Parameters
        ----------
        y : array or None
            Those of this rank's rows; None where no rank has any.
        """
        found = self.line.exchange("gathered", 0, lambda: None if y is None else np.asarray(y))
        without = [k for k, part in enumerate(found) if part is None]
        if len(without) == len(found):
            return None
        if without:
            raise ValueError(f"rank {without[0]} gives None and others give arrays: give one at each rank")
        return np.concatenate(found)

    # ------------------------------------------------------------ calls
    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """[f(shard_k, *args, each_k) for k], those of each rank there, and all of them here."""
        replies = self.line.exchange(_name(f), mark(args), lambda: self._own(f, args, each))
        return [x for reply in replies for x in reply]

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The tuples of `map`, added up: in shard order, or as MPI does."""
        if self.size == 1 or len(self.owner) == 1:
            return add(self.map(f, *args, each=each))
        own: list[tuple[Any, ...]] = []

        def work() -> list[tuple[Any, ...]]:
            own.extend(self._own(f, args, each))
            return [tuple(_Apart(x.shape) if _long(x) else x for x in found) for found in own]

        replies = self.line.exchange(_name(f), mark(args), work)
        told = [x for reply in replies for x in reply]
        shapes = [x.shape for x in told[0] if isinstance(x, _Apart)]
        if any([x.shape for x in t if isinstance(x, _Apart)] != shapes for t in told):
            raise ValueError("shards gave arrays of different shapes, which cannot be added up")
        if not shapes:
            return add(told)
        sizes = [int(np.prod(shape)) for shape in shapes]
        with self.line.no_way_back():
            joint = self._joint([_joined([x for x in found if _long(x)]) for found in own], sum(sizes))
        ends = np.cumsum([0, *sizes])
        arrays = (joint[i:j].reshape(shape) for (i, j), shape in zip(pairwise(ends), shapes, strict=True))
        return add(told, lambda x: next(arrays) if isinstance(x[0], _Apart) else total(x))

    def _own(self, f: Callable[..., Any], args: tuple[Any, ...], each: Sequence[Any]) -> list[Any]:
        """The replies of this rank's shards."""
        todo = calls(len(self.owner), args, each)
        mine = [a for a, rank in zip(todo, self.owner, strict=True) if rank == self.rank]
        return [f(shard, *a) for shard, a in zip(self.shards, mine, strict=True)]

    def _joint(self, rows: list[NDArray], n: int) -> NDArray:
        """Arrays of n numbers, one a shard, added up.

        In order, each rank adds a range of them, and all get all. As MPI does, a range is either added up at
        one rank, or by pairs of ranks that add the same two numbers: the same bits at all ranks too.
        """
        line, comm = self.line, self.line.comm
        found: NDArray = line.room.take(8 * n).view(np.float64)
        if not self.ordered:
            comm.Allreduce(_summed(rows, n), found)
            return found
        ends = np.linspace(0, n, line.size + 1).astype(int).tolist()
        widths = np.diff(ends)
        width, counts = int(widths[line.rank]), np.bincount(self.owner, minlength=line.size)
        there = line.room.take(8 * n * len(rows)).view(np.float64)
        here = line.room.take(8 * width * len(self.owner)).view(np.float64).reshape(len(self.owner), width)
        np.concatenate([row[i:j] for i, j in pairwise(ends) for row in rows] or [there], out=there)
        comm.Alltoallv([there, len(rows) * widths], [here, counts * width])
        for row in here[1:]:
            here[0] += row
        comm.Allgatherv(here[0], [found, widths])
        return found
