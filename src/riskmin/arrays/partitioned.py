"""Matrices whose rows are partitioned: in files, or on workers of a cluster. Labels and weights are local.

The executor reads a partition in the process that needs its rows, and reads it again if they were lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.compressed import with_transpose
from riskmin.arrays.finite import check_finite
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.sequences import Sequences
from riskmin.core import Array, Matrix, NDArray, Shard, ShardCache


@runtime_checkable
class Partition(Protocol):
    """A contiguous block of rows that any process can read: a small, picklable description."""

    @property
    def name(self) -> str:
        """The name used in messages, such as the file of the rows."""
        ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nnz(self) -> int:
        """The number of stored entries: rows times columns, or the nonzeros of a sparse matrix."""
        ...

    @property
    def sparse(self) -> bool: ...

    def read(self) -> Any:
        """Return the rows, in any form that `as_matrix` accepts."""
        ...


@runtime_checkable
class RowSource(Protocol):
    """A source of all rows, any range of which can be read as a partition."""

    def part(self, start: int, stop: int) -> Partition:
        """Return the rows from start to stop - 1."""
        ...

    def whole(self) -> Any:
        """Return all rows, in any form that `as_matrix` accepts: memory-mapped, for example."""
        ...


@dataclass(frozen=True)
class PartitionedMatrix:
    """A row-partitioned matrix, which `linear_risk` and the estimators accept as X.

    Parameters
    ----------
    parts : sequence of Partition
        In the order of the labels; empty ones are dropped.
    executor : Backend, optional
        The default executor of `linear_risk` for these rows: any `executor` that it takes.
    source : RowSource, optional
        The source from which the rows can be partitioned in other ways, if there is one.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, InMemoryPartition, Serial, PartitionedMatrix, linear_risk
    >>> X = PartitionedMatrix([InMemoryPartition(np.eye(2)), InMemoryPartition(np.ones((1, 2)))])
    >>> X.shape
    (3, 2)
    >>> linear_risk(X, np.array([1.0, -1.0, 1.0]), Hinge(), executor=Serial())(np.zeros(2))[0]
    1.0
    """

    parts: Sequence[Partition]
    executor: Any = None
    source: RowSource | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("X has no parts: give at least one")
        # all partitions must be rows of the same table
        first = self.parts[0]
        for part in self.parts:
            if part.shape[1] != first.shape[1]:
                raise ValueError(
                    f"{part.name} has {part.shape[1]} columns, but {first.name} has {first.shape[1]}: "
                    "give parts of the same table"
                )
        # empty partitions are dropped, since shards must not be empty; one is left if all are empty
        object.__setattr__(self, "parts", [part for part in self.parts if part.shape[0]] or [first])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of all partitions together."""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def ndim(self) -> int:
        """The number of dimensions: 2."""
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, *_: Any, **__: Any) -> NDArray:
        raise TypeError(
            f"X is in {len(self.parts)} parts that may be remote, but all of its rows are needed in this "
            "process: give X.whole(), if it fits into memory"
        )

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return sum(part.nnz for part in self.parts)

    @property
    def sparse(self) -> bool:
        """Whether only nonzeros are stored."""
        return any(part.sparse for part in self.parts)

    @property
    def ends(self) -> list[int]:
        """The first row of each partition, and the number of rows."""
        return list(accumulate((part.shape[0] for part in self.parts), initial=0))

    @property
    def one_block(self) -> bool:
        """Whether products read all rows at once: False."""
        return False

    @property
    def on_gpu(self) -> bool:
        """Whether products are computed by kernels of `_cuda` in this process: False."""
        return False

    @property
    def score_like(self) -> None:
        """An array of the library of scores, if that is not NumPy: None."""
        return

    def can_end_at(self, ends: NDArray) -> bool:
        """Whether partitions can be, or are, cut at some of these row numbers only."""
        return self.source is not None or bool(np.isin(self.ends[1:], ends).all())

    def with_executor(self, executor: Any) -> PartitionedMatrix:
        """Return the same rows with another executor."""
        return replace(self, executor=executor)

    def cut(self, ends: Sequence[int]) -> PartitionedMatrix:
        """Return the same rows, partitioned at other row numbers: ends[i] to ends[i + 1] is partition i."""
        if list(ends) == self.ends:
            return self
        # only a source can read arbitrary ranges of rows
        if self.source is None:
            raise ValueError(
                f"X comes in {len(self.parts)} parts that cannot be cut again: leave n_shards out, and if "
                "rows belong together, such as the tokens of a sequence, have them in one part"
            )
        return replace(self, parts=[self.source.part(int(i), int(j)) for i, j in pairwise(ends)])

    def whole(self) -> Any:
        """Return all rows, read into this process; from the source, if there is one."""
        if self.source is not None:
            return self.source.whole()
        blocks = [part.read() for part in self.parts]
        # concatenation copies: a single block is returned as it is
        if len(blocks) == 1:
            return blocks[0]
        return sp.vstack(blocks, format="csr") if self.sparse else np.concatenate(blocks)


def is_partitioned(X: Any) -> TypeGuard[PartitionedMatrix]:
    """Whether X is a `PartitionedMatrix`, whose rows need not be in this process."""
    return isinstance(X, PartitionedMatrix)


@dataclass(frozen=True)
class InMemoryPartition:
    """A partition that is in memory.

    Parameters
    ----------
    X : array, sparse matrix or frame
    name : str
        The name used in messages.

    Examples
    --------
    >>> import numpy as np
    >>> InMemoryPartition(np.ones((3, 2)), "north").nnz
    6
    """

    X: Any
    name: str = "a part of X"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.X.shape[0], self.X.shape[1]

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return int(self.X.nnz) if self.sparse else self.shape[0] * self.shape[1]

    @property
    def sparse(self) -> bool:
        """Whether only nonzeros are stored."""
        return bool(sp.issparse(self.X))

    def read(self) -> Any:
        """Return the rows."""
        return self.X


@dataclass(frozen=True)
class RereadPartition:
    """A partition that the process that needs it reads: its rows are ``pick(call())``, or ``call()``.

    Parameters
    ----------
    name : str
        The name used in messages.
    shape : (int, int)
    nnz : int
    sparse : bool
    call : callable
        Picklable, since it is sent to the process that needs the rows.
    pick : callable, optional
        Picklable, too.
    """

    name: str
    shape: tuple[int, int]
    nnz: int
    sparse: bool
    call: Callable[[], Any]
    pick: Callable[[Any], Any] | None = None

    def read(self) -> Any:
        """Read the rows."""
        return self.call() if self.pick is None else self.pick(self.call())


@dataclass(frozen=True)
class LazyShard:
    """A shard whose rows are not read yet, with their labels and weights.

    Parameters
    ----------
    part : Partition
    y, c : array
        The labels and the weights of its rows.
    ends : array, optional
        The ends of its sequences, if its rows are tokens.
    wide : bool
        Whether to store the transpose of a sparse matrix as well.
    """

    part: Partition
    y: Array
    c: Array
    ends: NDArray | None = None
    wide: bool = False

    def load(self) -> Shard:
        """Read the rows; raise a ValueError that names the partition if they are not as described."""
        X = as_matrix(self.part.read())
        # a file may have been rewritten since its shape was read
        if X.shape != tuple(self.part.shape):
            raise ValueError(
                f"{self.part.name} has {X.shape[0]} rows and {X.shape[1]} columns, but had "
                f"{self.part.shape[0]} and {self.part.shape[1]} before: the data changed meanwhile; run again"
            )
        # rows that are not local can only be checked where they are read
        try:
            check_finite(X)
        except ValueError as error:
            raise ValueError(f"{self.part.name}: {error}") from None
        X = with_transpose(X) if self.wide else X
        return Shard(X if self.ends is None else Sequences(X, self.ends), self.y, self.c, ShardCache())

    def without_cache(self) -> LazyShard:
        """Return the shard itself: it has no cache."""
        return self


@dataclass(frozen=True)
class RowMetadata:
    """Shape, labels and weights of rows, which may be remote.

    Parameters
    ----------
    shape : (int, int)
    nnz : int
        The number of stored entries.
    sparse : bool
    y, c : array
        Labels and weights of all rows.
    on_gpu : bool
        Whether the rows are computed by kernels of a GPU.
    one_pass : bool
        Whether these read X once for value and gradient.
    """

    shape: tuple[int, int]
    nnz: int
    sparse: bool
    y: Array
    c: Array
    on_gpu: bool = False
    one_pass: bool = False

    @classmethod
    def from_rows(cls, X: Matrix | PartitionedMatrix, y: Array, c: Array) -> RowMetadata:
        """Return the metadata of local or partitioned rows."""
        one_pass = X.on_gpu and cast(Any, X).one_pass
        return cls(X.shape, X.nnz, X.sparse, y, c, X.on_gpu, one_pass)
