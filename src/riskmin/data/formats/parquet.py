"""Reader of Parquet files, in batches of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from riskmin.core.deadline import OutOfTime
from riskmin.core.messages import extra_hint
from riskmin.core.persist import parse_nested
from riskmin.data.base import (
    DataError,
    Dataset,
    PathLike,
    UnpreparedColumn,
    cast_finite,
    check_query_ids,
    open_decompressed,
)
from riskmin.data.formats.npz import in_memory
from riskmin.data.formats.text_table import ColumnRoles, ColumnSelection, assign_roles
from riskmin.data.limits import MemoryBudget


def batch_rows(n_columns: int) -> int:
    """Return the rows of a batch: at most 2^16, and 2^22 cells."""
    return max(min(2**16, 2**22 // max(n_columns, 1)), 1)


@dataclass(frozen=True)
class ParquetRows:
    """A Parquet file that is read in batches of rows."""

    path: PathLike
    selection: ColumnSelection
    dtype: np.dtype[Any]

    @contextmanager
    def _parsed(self) -> Iterator[None]:
        """Block of calls to Arrow, whose errors for a broken file are of many types."""
        try:
            yield
        except (DataError, OutOfTime, MemoryError):
            raise
        except Exception as error:
            problem = f"it is broken: it cannot be read as Parquet ({error}); write it anew"
            raise DataError(self.path, None, problem) from error

    def _opened(self, stream: Any) -> Any:
        """Open the file, after checking that its largest row group fits into memory."""
        import pyarrow.parquet as pq

        # reading in batches still needs the memory of a row group
        budget = MemoryBudget(self.path)
        with self._parsed():
            file = pq.ParquetFile(in_memory(stream, budget))
            n_groups = file.metadata.num_row_groups
            budget.require(
                max((file.metadata.row_group(i).total_byte_size for i in range(n_groups)), default=0)
            )
            return file

    @cached_property
    def _schema(self) -> tuple[list[str], int, set[str]]:
        """Names of the columns, number of rows, and names of the columns of pandas' index."""
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise DataError(self.path, None, f"Parquet needs pyarrow: {extra_hint('parquet')}") from error
        with open_decompressed(self.path) as stream:
            file = self._opened(stream)
            with self._parsed():
                names, n = list(file.schema_arrow.names), int(file.metadata.num_rows)
                index = _pandas_index(file.schema_arrow.metadata)
        if n <= 0:
            raise DataError(self.path, None, "it has no rows; check that it is the right file")
        return names, n, index

    @cached_property
    def usable(self) -> list[int]:
        """Columns that may have a role: all but pandas' index, unless the selection names that."""
        names, _, index = self._schema
        return [i for i, name in enumerate(names) if name not in index or name in self.selection[:2]]

    @cached_property
    def roles(self) -> ColumnRoles:
        """Roles of the columns: features, target and query ids."""
        usable = self.usable
        found = assign_roles(self.path, [self._schema[0][i] for i in usable], *self.selection)
        target, qid = (None if i is None else usable[i] for i in found[1:])
        return ColumnRoles([usable[i] for i in found.features], target, qid)

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return self._schema[0]

    @property
    def n(self) -> int:
        """Number of rows."""
        return self._schema[1]

    @property
    def columns(self) -> list[str]:
        """Names of the features."""
        return [self._schema[0][i] for i in self.roles.features]

    def batches(self) -> Iterator[Dataset]:
        """Yield all rows, in batches."""
        for batch, start in self.record_batches():
            yield batch_dataset(self.path, self.names, self.roles, batch, start, self.dtype)

    def record_batches(self) -> Iterator[tuple[Any, int]]:
        """Yield Arrow's batches of all columns, and the first row of each."""
        batch_size, start = batch_rows(len(self._schema[0])), 0
        with open_decompressed(self.path) as stream:
            file = self._opened(stream)
            with self._parsed():
                batches = file.iter_batches(batch_size=batch_size)
            while (batch := self._next(batches)) is not None:
                # a damaged file may have other columns, or more rows, than its metadata
                if list(batch.schema.names) != self._schema[0] or start + len(batch) > self.n:
                    raise DataError(self.path, None, "it is broken: its parts disagree; write it anew")
                yield batch, start
                start += len(batch)
        if start != self.n:
            raise DataError(self.path, None, f"it is broken: {start} rows of {self.n}; write it anew")

    def _next(self, batches: Any) -> Any:
        """Return the next batch, after checking its offsets and indices; None at the end."""
        with self._parsed():
            batch = next(batches, None)
            if batch is not None:
                batch.validate(full=True)
            return batch


def batch_dataset(
    path: PathLike, names: list[str], roles: ColumnRoles, batch: Any, start: int, dtype: np.dtype[Any]
) -> Dataset:
    """Convert a batch whose first row is row `start` of the table."""
    X = np.empty((len(batch), len(roles.features)), dtype)
    for k, i in enumerate(roles.features):
        with np.errstate(over="ignore"):
            X[:, k] = read_column(path, names[i], batch.column(i), start)
    # labels may be strings; query ids are read exactly
    y = qid = None
    if (t := roles.target) is not None:
        y = read_column(path, names[t], batch.column(t), start, words=True)
    if (q := roles.qid) is not None:
        qid = check_query_ids(path, names[q], exact_ids(path, names[q], batch.column(q), start))
    return Dataset(cast_finite(path, X, dtype, start), y, qid)


def _pandas_index(metadata: dict[bytes, bytes] | None) -> set[str]:
    """Names of the columns that pandas wrote for its index, by the metadata of the schema."""
    try:
        pandas = parse_nested(json.loads, (metadata or {}).get(b"pandas", b"{}"))
        columns = pandas.get("index_columns", [])
        # an index of consecutive numbers is described by an object instead, and has no column
        return {name for name in columns if isinstance(name, str)}
    except (ValueError, AttributeError, TypeError):  # metadata that pandas did not write
        return set()


def load_parquet(path: PathLike, selection: ColumnSelection, dtype: np.dtype[Any]) -> Dataset:
    """Read a Parquet file; see `load`."""
    rows = ParquetRows(path, selection, dtype)
    # X and the labels
    MemoryBudget(path).require(rows.n * (len(rows.roles.features) + 1) * dtype.itemsize)
    X = np.empty((rows.n, len(rows.roles.features)), dtype)
    y, qid, start = [], [], 0
    for batch in rows.batches():
        X[start : start + len(batch.X)] = batch.X
        start += len(batch.X)
        if batch.y is not None:
            y.append(np.asarray(batch.y))
        if batch.qid is not None:
            qid.append(batch.qid)
    ids = np.concatenate(qid) if qid else None
    return Dataset(X, np.concatenate(y) if y else None, ids, rows.columns)


def exact_ids(path: PathLike, name: str, column: Any, start: int) -> NDArray[Any]:
    """Return query ids; integers are not converted to float64, which cannot represent the largest ones."""
    import pyarrow as pa

    if pa.types.is_integer(column.type) and not column.null_count:
        integers: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return integers
    return read_column(path, name, column, start, words=True)


def read_column(path: PathLike, name: str, column: Any, start: int, words: bool = False) -> NDArray[Any]:
    """Return a column as float64, or, with `words`, a column of text as strings."""
    import pyarrow as pa

    # features may be prepared: see `riskmin.data.raw_tables`
    error_type = DataError if words else UnpreparedColumn
    if column.null_count:
        row = start + 1 + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise error_type(
            path, None, f"row {row}, column {name!r}: the cell is empty; fill it in or leave out the row"
        )
    # of a dictionary-encoded column, the type of its values
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        if words:
            return np.array(column.to_pylist(), np.str_)
        raise error_type(path, None, f"the column {name!r} is text; encode it as numbers, or leave it out")
    try:
        cells = column.to_numpy(zero_copy_only=False)
        # dates and time differences would be converted to their number of nanoseconds
        if cells.dtype.kind in "mM":
            raise TypeError("dates would pass for nanoseconds")
        numbers: NDArray[np.float64] = cells.astype(np.float64)
    except (TypeError, ValueError, ArithmeticError, pa.ArrowException) as error:
        problem = f"the column {name!r} is {column.type}, not a number; encode it, or leave it out"
        raise error_type(path, None, problem) from error
    if not words and np.isnan(numbers).any():
        row = start + 1 + int(np.argmax(np.isnan(numbers)))
        raise error_type(
            path, None, f"row {row}, column {name!r}: NaN is not finite; fill it in or leave out the row"
        )
    if words and not np.isfinite(numbers).all():
        raise DataError(path, None, f"the column {name!r} is not finite; leave out those rows")
    return numbers
