"""Streams of rows from files of any format, chunk by chunk, so that the data need not fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from riskmin.arrays.sparse_checks import validated_sparse
from riskmin.core.messages import extra_hint
from riskmin.data.base import DataError, Dataset, PathLike, ReadProgress, open_decompressed
from riskmin.data.formats.text_table import ColumnSelection


class RowChunk(NamedTuple):
    """A chunk of rows: dense, or (values, column indices, end of each row in the values)."""

    X: NDArray[Any] | tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    y: NDArray[Any] | None
    qid: NDArray[Any] | None
    index_base: int = 0
    """Index of the first column, as far as known: 1, until an index 0 occurs in a later chunk."""


class RestartStream(Exception):
    """Raised when labels turn out to be strings, or need another reader: the stream must be read again."""


class RowStream(Protocol):
    """Iterable of chunks of rows; its attributes, except the progress, are final after the last chunk."""

    sparse: bool
    columns: int
    names: list[str] | None
    classes: list[str] | None
    """Class names that integer labels refer to; None if labels are numbers or the strings themselves."""
    queries: NDArray[Any] | None
    """Ids that integer query codes refer to; None if the chunks hold the ids themselves."""

    def __iter__(self) -> Iterator[RowChunk]: ...

    @property
    def fraction_read(self) -> float:
        """Fraction that was read, from 0 to 1."""
        ...


class _StreamDefaults:
    """Default attributes of a stream."""

    sparse = False
    columns = 0
    names: list[str] | None = None
    classes: list[str] | None = None
    queries: NDArray[Any] | None = None
    fraction_read = 0.0


class SvmlightStream(_StreamDefaults):
    """Stream of svmlight text."""

    sparse = True

    def __init__(
        self,
        path: PathLike,
        n_features: int | None,
        dtype: np.dtype[Any],
        zero_based: bool | Literal["auto"],
        require_labels: bool,
        chunk_bytes: int | None = None,
    ) -> None:
        from riskmin.data.formats.svmlight import SvmlightReader

        self.path, self.meter, self.columns = path, ReadProgress(), n_features or 0
        self.chunk_bytes = chunk_bytes
        self.reader = SvmlightReader(str(path), n_features, dtype, zero_based, False, require_labels)

    @property
    def fraction_read(self) -> float:  # type: ignore[override]
        """Fraction of the bytes of the file that was read."""
        return self.meter.fraction_read

    def __iter__(self) -> Iterator[RowChunk]:
        from riskmin.data.formats import svmlight

        reader, size = self.reader, self.chunk_bytes or svmlight.CHUNK_BYTES
        with open_decompressed(self.path, self.meter) as file:
            for text in svmlight.text_chunks(file, size, reader.budget):
                rows = reader.read(text)
                # a chunk may have comments and blank lines only
                if len(rows.ends):
                    y = None if reader.unlabeled else rows.labels
                    X = rows.values, rows.indices, rows.ends
                    yield RowChunk(X, y, rows.qids, int(reader.one_based))
        self.columns = reader.width


class TableStream(_StreamDefaults):
    """Stream of CSV or TSV; labels are read as numbers, or after `RestartStream` as strings.

    Where pyarrow does not accept the table, both are tried once more without it.
    """

    def __init__(
        self,
        path: PathLike,
        selection: ColumnSelection,
        dtype: np.dtype[Any],
        *,
        tsv: bool,
        chunk_bytes: int | None = None,
    ) -> None:
        from riskmin.data.formats.arrow_csv import ArrowCsvReader
        from riskmin.data.formats.text_table import assign_roles, inspect_table

        self.meter = ReadProgress()
        self.table = inspect_table(path, tsv)._replace(meter=self.meter, chunk_bytes=chunk_bytes)
        self.roles = assign_roles(path, self.table.names, *selection)
        self.dtype, self.labels_required, self.string_labels = dtype, selection[-1], False
        self.columns, self.arrow = len(self.roles.features), ArrowCsvReader.accepts(self.table)
        if self.table.header:
            self.names = [self.table.names[i] for i in self.roles.features]

    @property
    def fraction_read(self) -> float:  # type: ignore[override]
        """Fraction of the bytes of the file that was read."""
        return self.meter.fraction_read

    def __iter__(self) -> Iterator[RowChunk]:
        from riskmin.data.formats.tables import (
            all_numbers,
            check_class_names,
            query_ids_of,
            raise_first_bad_cell,
            row_blocks,
        )

        # for each column of strings, the code of each distinct string
        codes: dict[int, dict[str, int]] = {i: {} for i in self._string_columns()}
        try:
            for X, y, qid in row_blocks(self.table, self.roles, self.dtype, codes, arrow=self.arrow):
                yield RowChunk(X, y, qid)
        except DataError:
            raise
        except ValueError as error:
            # a cell is not a number: it may be a label, unless labels are read as strings already
            last = self.string_labels or self.roles.target is None
            if last and not self.arrow:
                raise_first_bad_cell(self.table, self.roles, error)
            self._restart(arrow=self.arrow and not last, string_labels=not last)
        if self.string_labels and self.roles.target is not None:
            self.classes = list(codes[self.roles.target])
            if self.arrow and all_numbers(self.classes):
                self._restart(arrow=False, string_labels=False)
            if self.classes != [""] or self.labels_required:  # an empty column means that there are no labels
                check_class_names(self.table, self.roles, self.classes)
        if self.roles.qid is not None:
            self.queries = query_ids_of(self.table, self.roles, list(codes[self.roles.qid]))

    def _restart(self, *, arrow: bool, string_labels: bool) -> NoReturn:
        """Read the stream again: labels as numbers or strings, by pyarrow or by the reader of all tables."""
        self.arrow, self.string_labels, self.classes = arrow, string_labels, None
        raise RestartStream

    def _string_columns(self) -> Iterable[int]:
        """Indices of the columns that are read as strings."""
        return [
            i for i in (self.roles.qid, self.roles.target if self.string_labels else None) if i is not None
        ]


class ParquetStream(_StreamDefaults):
    """Stream of a Parquet file."""

    def __init__(self, path: PathLike, selection: ColumnSelection, dtype: np.dtype[Any]) -> None:
        from riskmin.data.formats.parquet import ParquetRows

        self.rows = ParquetRows(path, selection, dtype)
        self.names, self.columns = self.rows.columns, len(self.rows.roles.features)

    def __iter__(self) -> Iterator[RowChunk]:
        rows_read = 0
        for batch in self.rows.batches():
            rows_read += batch.X.shape[0]
            self.fraction_read = rows_read / self.rows.n
            yield RowChunk(batch.X, batch.y, batch.qid)  # type: ignore[arg-type]


class ArrowStream(_StreamDefaults):
    """Stream of record batches of Arrow, which DuckDB, polars, pandas and pyarrow export."""

    NAME = "the table"

    def __init__(self, source: Any, selection: ColumnSelection, dtype: np.dtype[Any]) -> None:
        from riskmin.data.formats.text_table import assign_roles

        self.table_names, self.batches = _record_batches(source)
        self.roles, self.dtype = assign_roles(self.NAME, self.table_names, *selection), dtype
        self.names, self.columns = (
            [self.table_names[i] for i in self.roles.features],
            len(self.roles.features),
        )

    def __iter__(self) -> Iterator[RowChunk]:
        from riskmin.data.formats.parquet import batch_dataset, batch_rows

        start, step = 0, batch_rows(len(self.table_names))
        for batch in self.batches:
            for i in range(0, batch.num_rows, step):
                rows = batch.slice(i, step)
                X, y, qid, _ = batch_dataset(self.NAME, self.table_names, self.roles, rows, start, self.dtype)
                yield RowChunk(X, y, qid)  # type: ignore[arg-type]
                start += rows.num_rows
        if not start:
            raise DataError(self.NAME, None, "it has no rows; check its filters")


def is_table(source: Any) -> bool:
    """Whether an object can be read as record batches of Arrow, or is a lazy frame of polars."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "collect_batches")


def _record_batches(source: Any) -> tuple[list[str], Iterable[Any]]:
    """Return the names of the columns of a table, and its record batches, computed as they are read."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(ArrowStream.NAME, None, f"Arrow needs pyarrow: {extra_hint('parquet')}") from error
    if hasattr(source, "collect_batches"):
        batches = (batch for frame in source.collect_batches() for batch in frame.to_arrow().to_batches())
        return list(source.collect_schema().names()), batches
    reader = pa.RecordBatchReader.from_stream(source)
    return list(reader.schema.names), reader


class DatasetStream(_StreamDefaults):
    """Stream of data sets with the same columns, from an iterable."""

    _CHUNK_ROWS = 2**14  # rows per chunk of data in memory, at most

    def __init__(self, parts: Iterable[Any], dtype: np.dtype[Any], names: list[str] | None = None) -> None:
        self.parts, self.dtype, self.names = iter(parts), dtype, names
        # the first part determines the number of columns and whether X is sparse
        self.first_part = self._next()
        if self.first_part is None:
            raise ValueError("there are no rows to save: give one data set at least")
        self.columns, self.sparse = self.first_part.X.shape[1], bool(sp.issparse(self.first_part.X))
        self.names = self.first_part.feature_names or names
        if self.names is not None and not all(isinstance(name, str) for name in self.names):
            raise ValueError(
                "feature_names holds an entry that is not a string: convert all names to strings"
            )
        if self.names is not None and len(self.names) != self.columns:
            raise ValueError(f"there are {len(self.names)} feature_names for {self.columns} columns")

    def _next(self) -> Dataset | None:
        """Return the next data set with X as CSR or array; None at the end."""
        part = next(self.parts, None)
        if part is None:
            return None
        X: Any
        X, y, *qid_and_names = part
        X = validated_sparse(X).tocsr() if sp.issparse(X) else np.asarray(X)
        return Dataset(X, None if y is None else np.asarray(y), *qid_and_names)

    def __iter__(self) -> Iterator[RowChunk]:
        part, self.first_part = self.first_part, None
        while part is not None:
            n, p = part.X.shape
            if p != self.columns or bool(sp.issparse(part.X)) != self.sparse:
                raise ValueError(
                    f"some rows have {p} columns{' and are sparse' if sp.issparse(part.X) else ''}, but the "
                    f"first have {self.columns}: give rows of the same kind"
                )
            # at most 2^22 entries per dense chunk
            step = min(self._CHUNK_ROWS, max(2**22 // max(p, 1), 1)) if not self.sparse else self._CHUNK_ROWS
            for i in range(0, n, step):
                self.fraction_read = i / n
                yield self._chunk(part, i, min(i + step, n))
            part = self._next()

    def _chunk(self, part: Dataset, i: int, j: int) -> RowChunk:
        """Return the rows i to j - 1 of a data set; raise a ValueError if they are not finite."""
        y, qid = (None if a is None else a[i:j] for a in (part.y, part.qid))
        # values that overflow in float32 become infinite and are reported below
        with np.errstate(over="ignore"):
            X: Any = part.X[i:j].astype(self.dtype)
        if self.sparse:
            X.sum_duplicates()
        if not np.isfinite(X.data if self.sparse else X).all():
            raise ValueError(f"rows {i} to {j} of X are not all finite as {self.dtype}: replace such values")
        return RowChunk((X.data, X.indices, X.indptr[1:]) if self.sparse else X, y, qid)  # type: ignore[arg-type]


def open_stream(
    path: PathLike,
    kind: str,
    selection: ColumnSelection,
    dtype: np.dtype[Any],
    zero_based: bool | Literal["auto"],
    chunk_bytes: int | None = None,
) -> RowStream:
    """Return the stream of a file of this format; see `load`."""
    if kind == "svmlight":
        return SvmlightStream(path, selection[2], dtype, zero_based, selection[3], chunk_bytes)
    if kind == "parquet":
        return ParquetStream(path, selection, dtype)
    if kind == "npz":
        from riskmin.data.formats.npz import load_npz

        data = load_npz(path, n_features=selection[2], dtype=dtype, require_labels=selection[3])
        return DatasetStream([data], dtype)
    if kind in ("csv", "tsv"):
        return TableStream(path, selection, dtype, tsv=kind == "tsv", chunk_bytes=chunk_bytes)
    raise DataError(
        Path(path), None, f"a file of the format {kind!r} cannot be converted; it is stored already"
    )
