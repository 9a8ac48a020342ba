"""Files of any format as streams of rows: a piece at a time, so that none need fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from riskmin.data.base import DataError, Dataset, Meter, PathLike, opened
from riskmin.data.tables import Wanted
from riskmin.sparse import sound

_ROWS = 2**14  # of data in memory, in a piece at most


class Piece(NamedTuple):
    """Some rows: dense, or their values, their columns and where each row ends among these."""

    X: NDArray[Any] | tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    y: NDArray[Any] | None
    qid: NDArray[Any] | None
    first: int = 0
    """The number of the first column, as far as is known by now: 1, and in a later piece perhaps 0."""


class Again(Exception):
    """What was read as numbers is words: the stream starts again."""


class Stream(Protocol):
    """Rows, piece by piece. All but `share` is known at the end only."""

    sparse: bool
    columns: int
    names: list[str] | None
    classes: list[str] | None
    """The words that labels are codes of; None where labels are numbers, or words themselves."""
    queries: NDArray[Any] | None
    """The ids that the query ids are codes of; None where they are not codes."""

    def __iter__(self) -> Iterator[Piece]: ...

    @property
    def share(self) -> float:
        """How much was read, from 0 to 1."""
        ...


class _Plain:
    """What a stream has where nothing is special."""

    sparse = False
    columns = 0
    names: list[str] | None = None
    classes: list[str] | None = None
    queries: NDArray[Any] | None = None
    share = 0.0


class SvmlightStream(_Plain):
    """Rows of svmlight text."""

    sparse = True

    def __init__(
        self,
        path: PathLike,
        n_features: int | None,
        dtype: np.dtype[Any],
        zero_based: bool | Literal["auto"],
        require_labels: bool,
    ) -> None:
        from riskmin.data.svmlight import Reader

        self.path, self.meter, self.columns = path, Meter(), n_features or 0
        self.reader = Reader(str(path), n_features, dtype, zero_based, False, require_labels)

    @property
    def share(self) -> float:  # type: ignore[override]
        """By the bytes of the file."""
        return self.meter.share

    def __iter__(self) -> Iterator[Piece]:
        from riskmin.data import svmlight

        reader = self.reader
        with opened(self.path, self.meter) as file:
            for text in svmlight.chunks(file, svmlight.CHUNK, reader.room):
                rows = reader.read(text)
                if len(rows.ends):
                    y = None if reader.bare else rows.labels
                    X = rows.values, rows.indices, rows.ends
                    yield Piece(X, y, rows.qids, int(reader.from_one))
        self.columns = reader.width


class TableStream(_Plain):
    """Rows of CSV or TSV. Labels are read as numbers; if they are none, `Again`, and then as words."""

    def __init__(self, path: PathLike, wanted: Wanted, dtype: np.dtype[Any], *, tsv: bool) -> None:
        from riskmin.data.tables import assign, inspect_table

        self.meter = Meter()
        self.table = inspect_table(path, tsv)._replace(meter=self.meter)
        self.roles = assign(path, self.table.names, *wanted)
        self.dtype, self.required, self.words = dtype, wanted[-1], False
        self.columns = len(self.roles.features)
        if self.table.header:
            self.names = [self.table.names[i] for i in self.roles.features]

    @property
    def share(self) -> float:  # type: ignore[override]
        """By the bytes of the file."""
        return self.meter.share

    def __iter__(self) -> Iterator[Piece]:
        from riskmin.data.tables import check_words, diagnose, ids_of, pieces

        codes: dict[int, dict[str, int]] = {i: {} for i in self._coded()}
        try:
            for X, y, qid in pieces(self.table, self.roles, self.dtype, codes):
                yield Piece(X, y, qid)
        except DataError:
            raise
        except ValueError as error:
            if self.words or self.roles.target is None:
                diagnose(self.table, self.roles, error)
            self.words = True
            raise Again from error
        if self.words and self.roles.target is not None:
            self.classes = list(codes[self.roles.target])
            if self.classes != [""] or self.required:  # else there are no labels
                check_words(self.table, self.roles, self.classes)
        if self.roles.qid is not None:
            self.queries = ids_of(self.table, self.roles, list(codes[self.roles.qid]))

    def _coded(self) -> Iterable[int]:
        """The columns of words."""
        return [i for i in (self.roles.qid, self.roles.target if self.words else None) if i is not None]


class ParquetStream(_Plain):
    """Rows of Parquet."""

    def __init__(self, path: PathLike, wanted: Wanted, dtype: np.dtype[Any]) -> None:
        from riskmin.data.parquet import ParquetRows

        self.rows = ParquetRows(path, wanted, dtype)
        self.names, self.columns = self.rows.columns, len(self.rows.roles.features)

    def __iter__(self) -> Iterator[Piece]:
        done = 0
        for piece in self.rows.pieces():
            done += piece.X.shape[0]
            self.share = done / self.rows.n
            yield Piece(piece.X, piece.y, piece.qid)  # type: ignore[arg-type]


class DataStream(_Plain):
    """Rows that are in memory, or come from a program: data sets with the same columns."""

    def __init__(self, parts: Iterable[Any], dtype: np.dtype[Any], names: list[str] | None = None) -> None:
        self.parts, self.dtype, self.names = iter(parts), dtype, names
        self.first = self._next()
        if self.first is None:
            raise ValueError("there are no rows to save: give one data set at least")
        self.columns, self.sparse = self.first.X.shape[1], bool(sp.issparse(self.first.X))
        self.names = self.first.feature_names or names
        if self.names is not None and not all(isinstance(name, str) for name in self.names):
            raise ValueError("feature_names holds something that is no string: make strings of all names")
        if self.names is not None and len(self.names) != self.columns:
            raise ValueError(f"there are {len(self.names)} feature_names for {self.columns} columns")

    def _next(self) -> Dataset | None:
        part = next(self.parts, None)
        if part is None:
            return None
        X: Any
        X, y, *more = part
        X = sound(X).tocsr() if sp.issparse(X) else np.asarray(X)
        return Dataset(X, None if y is None else np.asarray(y), *more)

    def __iter__(self) -> Iterator[Piece]:
        part, self.first = self.first, None
        while part is not None:
            n, p = part.X.shape
            if p != self.columns or bool(sp.issparse(part.X)) != self.sparse:
                raise ValueError(
                    f"some rows have {p} columns{' and are sparse' if sp.issparse(part.X) else ''}, but the "
                    f"first have {self.columns}: give rows of the same kind"
                )
            step = min(_ROWS, max(2**22 // max(p, 1), 1)) if not self.sparse else _ROWS
            for i in range(0, n, step):
                self.share = i / n
                yield self._piece(part, i, min(i + step, n))
            part = self._next()

    def _piece(self, part: Dataset, i: int, j: int) -> Piece:
        y, qid = (None if a is None else a[i:j] for a in (part.y, part.qid))
        with np.errstate(over="ignore"):
            X: Any = part.X[i:j].astype(self.dtype)
        if self.sparse:
            X.sum_duplicates()
        if not np.isfinite(X.data if self.sparse else X).all():
            raise ValueError(f"rows {i} to {j} of X are not all finite as {self.dtype}: replace such values")
        return Piece((X.data, X.indices, X.indptr[1:]) if self.sparse else X, y, qid)  # type: ignore[arg-type]


def stream_of(
    path: PathLike,
    kind: str,
    wanted: Wanted,
    dtype: np.dtype[Any],
    zero_based: bool | Literal["auto"],
) -> Stream:
    """The rows of a file of that format; `load` has the rules."""
    if kind == "svmlight":
        return SvmlightStream(path, wanted[2], dtype, zero_based, wanted[3])
    if kind == "parquet":
        return ParquetStream(path, wanted, dtype)
    if kind == "npz":
        from riskmin.data.npz import load_npz

        data = load_npz(path, n_features=wanted[2], dtype=dtype, require_labels=wanted[3])
        return DataStream([data], dtype)
    if kind in ("csv", "tsv"):
        return TableStream(path, wanted, dtype, tsv=kind == "tsv")
    raise DataError(
        Path(path), None, f"a file of the format {kind!r} cannot be converted; it is stored already"
    )
