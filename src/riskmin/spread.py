"""Rows that lie elsewhere, in parts: in files, on the workers of a cluster. Only labels and weights are here.

A part is read where its rows are needed, by the executor that holds it, and read again where that was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp

from riskmin.finite import check_finite, stored
from riskmin.matrices import Csr, as_matrix, with_transpose
from riskmin.sequences import Sequences
from riskmin.types import Array, Matrix, Memo, NDArray, Shard


@runtime_checkable
class Part(Protocol):
    """Rows in one place, which can be sent to where they are read: it is small, and can be pickled."""

    @property
    def name(self) -> str:
        """What messages call it, such as the file that it is in."""
        ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def numbers(self) -> int:
        """How many numbers are stored: rows times columns, or fewer of sparse ones."""
        ...

    @property
    def sparse(self) -> bool: ...

    def read(self) -> Any:
        """The rows, as anything that `as_matrix` takes."""
        ...


@runtime_checkable
class Source(Protocol):
    """All rows together in one place, from which any range is a part."""

    def part(self, start: int, stop: int) -> Part: ...

    def whole(self) -> Any:
        """All of them, as anything that `as_matrix` takes: mapped into memory, say."""
        ...


@dataclass(frozen=True)
class Spread:
    """Rows in parts, wherever they are: what `linear_risk` and the estimators take in the place of X.

    Parameters
    ----------
    parts : sequence of Part
        In the order of the labels; those of no rows are left out.
    executor : executor class or settings, optional
        Who computes, unless `linear_risk` is told otherwise.
    source : Source, optional
        Where the parts come from, if rows can be cut elsewhere too.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Local, Serial, Spread, linear_risk
    >>> X = Spread([Local(np.eye(2)), Local(np.ones((1, 2)))])
    >>> X.shape
    (3, 2)
    >>> linear_risk(X, np.array([1.0, -1.0, 1.0]), Hinge(), executor=Serial())(np.zeros(2))[0]
    1.0
    """

    parts: Sequence[Part]
    executor: Callable[[Sequence[Any]], Any] | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("there are no parts of X: give one at least")
        first = self.parts[0]
        for part in self.parts:
            if part.shape[1] != first.shape[1]:
                raise ValueError(
                    f"{part.name} has {part.shape[1]} columns, but {first.name} has {first.shape[1]}: "
                    "give parts of the same table"
                )
        # no shard is of no rows
        object.__setattr__(self, "parts", [part for part in self.parts if part.shape[0]] or [first])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, of all parts together."""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def ndim(self) -> int:
        """Two: it is a table."""
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, *_: Any, **__: Any) -> NDArray:
        raise TypeError(
            f"X is in {len(self.parts)} parts that may be elsewhere, but all of its rows are needed here: "
            "give X.whole(), if it fits into memory"
        )

    @property
    def numbers(self) -> int:
        """How many numbers are stored."""
        return sum(part.numbers for part in self.parts)

    @property
    def sparse(self) -> bool:
        """Whether zeros are not stored."""
        return any(part.sparse for part in self.parts)

    @property
    def ends(self) -> list[int]:
        """The first row of each part, and the number of rows."""
        return list(accumulate((part.shape[0] for part in self.parts), initial=0))

    def on(self, executor: Any) -> Spread:
        """The same rows with another executor."""
        return replace(self, executor=executor)

    def cut(self, ends: Sequence[int]) -> Spread:
        """With parts from one end to the next."""
        if list(ends) == self.ends:
            return self
        if self.source is None:
            raise ValueError(
                f"X comes in {len(self.parts)} parts that cannot be cut again: leave n_shards out, and where "
                "rows belong together, such as the tokens of a sequence, have them in one part"
            )
        return replace(self, parts=[self.source.part(int(i), int(j)) for i, j in pairwise(ends)])

    def whole(self) -> Any:
        """All rows here; of parts that come from one place, as that place gives them."""
        if self.source is not None:
            return self.source.whole()
        read = [part.read() for part in self.parts]
        if len(read) == 1:
            return read[0]
        return sp.vstack(read, format="csr") if self.sparse else np.concatenate(read)


@dataclass(frozen=True)
class Local:
    """A part that is in memory.

    Parameters
    ----------
    X : array, sparse matrix or frame
    name : str
        What messages call it.

    Examples
    --------
    >>> import numpy as np
    >>> Local(np.ones((3, 2)), "north").numbers
    6
    """

    X: Any
    name: str = "a part of X"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.X.shape[0], self.X.shape[1]

    @property
    def numbers(self) -> int:
        """How many numbers are stored."""
        return int(self.X.nnz) if self.sparse else self.shape[0] * self.shape[1]

    @property
    def sparse(self) -> bool:
        """Whether zeros are not stored."""
        return bool(sp.issparse(self.X))

    def read(self) -> Any:
        """The rows."""
        return self.X


@dataclass(frozen=True)
class Unread:
    """A shard to be: rows that are yet to be read, with their labels and weights.

    Parameters
    ----------
    part : Part
    y, c : array
        The labels and the weights of its rows.
    ends : array, optional
        Where its sequences end, if its rows are tokens.
    wide : bool
        Whether a sparse transpose is to be stored beside them.
    """

    part: Part
    y: Array
    c: Array
    ends: NDArray | None = None
    wide: bool = False

    def load(self) -> Shard:
        """Read the rows; a ValueError that names the part where they are not what they should be."""
        X = as_matrix(self.part.read())
        if X.shape != tuple(self.part.shape):
            raise ValueError(
                f"{self.part.name} has {X.shape[0]} rows and {X.shape[1]} columns, but had "
                f"{self.part.shape[0]} and {self.part.shape[1]} before: it was changed meanwhile; run again"
            )
        try:
            check_finite(X)
        except ValueError as error:
            raise ValueError(f"{self.part.name}: {error}") from None
        X = with_transpose(X) if self.wide and isinstance(X, Csr) else X
        return Shard(X if self.ends is None else Sequences(X, self.ends), self.y, self.c, Memo())


def loaded(shard: Shard | Unread) -> Shard:
    """The shard, read where it is not yet."""
    return shard.load() if isinstance(shard, Unread) else shard


@dataclass(frozen=True)
class Table:
    """What is known here of rows, wherever they are.

    Parameters
    ----------
    shape : (int, int)
    numbers : int
        How many are stored.
    sparse : bool
    y, c : array
        Labels and weights, of all rows.
    """

    shape: tuple[int, int]
    numbers: int
    sparse: bool
    y: Array
    c: Array

    @classmethod
    def of(cls, X: Matrix | Spread, y: Array, c: Array) -> Table:
        """Of rows that are here or elsewhere."""
        if isinstance(X, Spread):
            return cls(X.shape, X.numbers, X.sparse, y, c)
        inner: Any = getattr(X, "tokens", X)
        inner = getattr(inner, "csr", inner)
        numbers = stored(inner)
        dense = getattr(inner, "indptr", None) is None
        size = X.shape[0] * X.shape[1] if numbers is None else numbers.size
        return cls(X.shape, int(size), not dense, y, c)
