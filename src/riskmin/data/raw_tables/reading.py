"""Readers of raw tables: CSV and TSV, by pyarrow where it pays, and Parquet."""

from __future__ import annotations

import csv
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import DataError, PathLike, check_query_ids, concatenated, quote
from riskmin.data.formats.arrow_csv import ArrowCsvReader
from riskmin.data.formats.parquet import ParquetRows, exact_ids, read_column
from riskmin.data.formats.tables import parse_query_ids
from riskmin.data.formats.text_table import ColumnRoles, TextTable, as_number, inspect_table, is_not_blank
from riskmin.data.limits import MemoryBudget
from riskmin.data.raw_tables.columns import RawColumn, joined


class RawRows(NamedTuple):
    """The columns of a table that have a role."""

    features: list[RawColumn]
    y: NDArray[Any] | None
    qid: NDArray[Any] | None
    numbers: dict[str, NDArray[np.float64]]
    """The numbers of the rows by their role: "weight", "offset" and "exposure"."""
    target: RawColumn | None = None
    """The labels of a file of text, as they are written."""

    @property
    def offset(self) -> NDArray[np.float64] | None:
        """What is added to the scores of the rows: their offset, or the logarithm of their exposure."""
        exposure = self.numbers.get("exposure")
        return self.numbers.get("offset") if exposure is None else np.log(exposure)


class RawTable(ABC):
    """A file of named columns that are read as they are."""

    path: PathLike
    names: list[str]
    has_names: bool = True
    """Whether the file names its columns."""
    index_columns: Collection[int] = ()
    """Columns of pandas' index, which are no features unless they are named."""

    @cached_property
    def positions(self) -> dict[str, int]:
        """The index of each name, except of names that several columns have."""
        counts = Counter(self.names)
        return {name: i for i, name in enumerate(self.names) if counts[name] == 1}

    @abstractmethod
    def read(self, roles: ColumnRoles, numbers: Mapping[str, int], *, require_labels: bool) -> RawRows:
        """Read the columns that have a role; missing labels are allowed if labels are not required.

        `numbers` are the columns of weights, and of what else there is of a number per row.
        """

    def line_of(self, row: int) -> int | None:
        """Return the line of a row, both counted from 1; None if the file has no lines."""
        return None

    def error(self, column: str, problem: str, row: int | None = None) -> DataError:
        """Return the error about a column, at a row counted from 0."""
        line = None if row is None else self.line_of(row + 1)
        where = f"row {row + 1}, " if row is not None and line is None else ""
        return DataError(self.path, line, f"{where}column {quote(column)}: {problem}")


class RawSource:
    """The rows of one table or of several, with the same columns.

    Parameters
    ----------
    tables : sequence of RawTable
    parts : sequence of RawRows
        The rows of each table.
    """

    def __init__(self, tables: Sequence[RawTable], parts: Sequence[RawRows]) -> None:
        self.tables, self.path = tables, tables[0].path
        self.ends = np.cumsum([len(part.features[0]) for part in parts]).tolist()
        columns = zip(*(part.features for part in parts), strict=True)
        y, qid = (
            concatenated([str(table.path) for table in tables], name, [getattr(part, name) for part in parts])
            for name in ("y", "qid")
        )
        numbers = {name: np.concatenate([part.numbers[name] for part in parts]) for name in parts[0].numbers}
        targets = [part.target for part in parts if part.target is not None]
        target = joined(targets) if len(targets) == len(parts) else None
        self.rows = RawRows([joined(column) for column in columns], y, qid, numbers, target)

    def error(self, column: str, problem: str, row: int) -> DataError:
        """Return the error about a column at a row of all tables, counted from 0."""
        k = next(k for k, end in enumerate(self.ends) if row < end)
        return self.tables[k].error(column, problem, row - (self.ends[k - 1] if k else 0))


def open_raw(path: PathLike, kind: str) -> RawTable:
    """Open a table whose format is "csv", "tsv" or "parquet"."""
    return RawParquet(path) if kind == "parquet" else RawText(path, tsv=kind == "tsv")


class RawText(RawTable):
    """A CSV or TSV file."""

    def __init__(self, path: PathLike, *, tsv: bool) -> None:
        self.path, self.table = path, inspect_table(path, tsv)
        self.names, self.has_names = self.table.names, self.table.header

    def read(self, roles: ColumnRoles, numbers: Mapping[str, int], *, require_labels: bool) -> RawRows:
        roles_of_rows = (roles.target, roles.qid, *numbers.values())
        columns = sorted({*roles.features, *(i for i in roles_of_rows if i is not None)})
        coded = _codes(self.table, columns)
        features = [RawColumn.of_text(self.names[i], *coded[i]) for i in roles.features]
        y = qid = target = None
        if roles.target is not None:
            target = RawColumn.of_text(self.names[roles.target], *coded[roles.target])
            y = self._labels(roles.target, *coded[roles.target], required=require_labels)
        if roles.qid is not None:
            codes, words = self._present(roles.qid, *coded[roles.qid])
            qid = parse_query_ids(self.path, self.names[roles.qid], words)[codes]
        read = {name: self._numbers(i, *self._present(i, *coded[i])) for name, i in numbers.items()}
        return RawRows(features, y, qid, read, target)

    def _labels(
        self, i: int, codes: NDArray[np.intp], words: list[str], *, required: bool
    ) -> NDArray[Any] | None:
        if not required and "" in words:
            return None
        codes, words = self._present(i, codes, words)
        if all(as_number(word) is not None for word in words):
            return self._numbers(i, codes, words)
        texts: NDArray[Any] = np.array(words)[codes]
        return texts

    def _present(
        self, i: int, codes: NDArray[np.intp], words: list[str]
    ) -> tuple[NDArray[np.intp], list[str]]:
        """Return codes and words; raise if a cell is empty."""
        if "" in words:
            row = int(np.argmax(codes == words.index("")))
            raise self.error(self.names[i], "the cell is empty; fill it in or leave out the row", row)
        return codes, words

    def _numbers(self, i: int, codes: NDArray[np.intp], words: list[str]) -> NDArray[np.float64]:
        """Return finite numbers; raise for the first text that is none."""
        numbers = [as_number(word) for word in words]
        for k, (word, number) in enumerate(zip(words, numbers, strict=True)):
            if number is None or not np.isfinite(number):
                row = int(np.argmax(codes == k))
                raise self.error(self.names[i], f"{quote(word)} is not a finite number; replace it", row)
        values: NDArray[np.float64] = np.array(numbers, np.float64)[codes]
        return values

    def line_of(self, row: int) -> int | None:
        with self.table.text() as text:
            reader = csv.reader(text, delimiter=self.table.delimiter)
            rows = (cells for cells in reader if not _is_blank(cells))
            wanted = row - 1 + int(self.table.header)
            next(itertools.islice(rows, wanted, wanted + 1), None)
            return reader.line_num


def _is_blank(cells: list[str]) -> bool:
    return len(cells) <= 1 and not is_not_blank("".join(cells))


Coded = dict[int, tuple[NDArray[np.intp], list[str]]]
"""For each column the code of each row, and the texts of the codes."""


def _codes(table: TextTable, columns: list[int]) -> Coded:
    """Return columns as codes of their texts; by pyarrow if it accepts the table."""
    if ArrowCsvReader.accepts(table):
        try:
            return _codes_by_arrow(table, columns)
        except DataError:
            raise
        except ValueError:  # the other reader reports what is wrong, and where
            pass
    words: dict[int, dict[str, int]] = {i: {} for i in columns}
    blocks: list[list[Any]] = [[] for _ in columns]
    budget = MemoryBudget(table.path)
    with table.text() as text:
        reader = csv.reader(text, delimiter=table.delimiter)
        rows = (cells for cells in reader if not _is_blank(cells))
        if table.header:
            next(rows)
        while chunk := list(itertools.islice(rows, table.block_rows)):
            _check_lengths(table, chunk)
            for block, i in zip(blocks, columns, strict=True):
                known, n_known = words[i], len(words[i])
                coded = [known.setdefault(cells[i].strip(), len(known)) for cells in chunk]
                new = itertools.islice(known, n_known, None)
                # 8 bytes per code; about 100 for the entry of a new text
                budget.reserve(8 * len(chunk) + sum(100 + 4 * len(word) for word in new))
                block.append(np.array(coded, np.intp))
    return _joined_codes(table, columns, blocks, words)


def _check_lengths(table: TextTable, chunk: list[list[str]]) -> None:
    """Raise if a row has another number of cells than the first; the file is read again for its line."""
    if all(len(cells) == len(table.names) for cells in chunk):
        return
    with table.text() as text:
        reader = csv.reader(text, delimiter=table.delimiter)
        for cells in reader:
            if not _is_blank(cells) and len(cells) != len(table.names):
                problem = f"{len(cells)} cells where {len(table.names)} are expected; correct the row"
                raise DataError(table.path, reader.line_num, problem)


def _codes_by_arrow(table: TextTable, columns: list[int]) -> Coded:
    """Return columns as codes of their texts, read by pyarrow; a ValueError if it does not accept them."""
    words: dict[int, dict[str, int]] = {i: {} for i in range(len(table.names))}
    reader = ArrowCsvReader(table, ColumnRoles(columns, None, None), np.float64, words)
    blocks: list[list[Any]] = [[] for _ in columns]
    budget, n_words = MemoryBudget(table.path), 0
    for batch in reader.coded_batches(columns):
        for block, codes in zip(blocks, batch, strict=True):
            block.append(codes)
        n_before, n_words = n_words, sum(map(len, words.values()))
        budget.reserve(sum(codes.nbytes for codes in batch) + 200 * (n_words - n_before))
    return _joined_codes(table, columns, blocks, words)


def _joined_codes(
    table: TextTable, columns: Sequence[int], blocks: list[list[Any]], words: dict[int, dict[str, int]]
) -> Coded:
    if not blocks or not blocks[0]:
        raise DataError(table.path, None, "it has a header and no rows; check that it is the right file")
    return {i: (np.concatenate(block), list(words[i])) for i, block in zip(columns, blocks, strict=True)}


class RawParquet(RawTable):
    """A Parquet file."""

    def __init__(self, path: PathLike) -> None:
        self.path = path
        self.rows = ParquetRows(path, (None, None, None, True), np.dtype(np.float64))
        self.names = self.rows.names
        self.index_columns = set(range(len(self.names))) - set(self.rows.usable)

    def read(self, roles: ColumnRoles, numbers: Mapping[str, int], *, require_labels: bool) -> RawRows:
        MemoryBudget(self.path).require(8 * self.rows.n * (len(roles.features) + 1))
        features: list[list[RawColumn]] = [[] for _ in roles.features]
        y: list[NDArray[Any] | None] = []
        qid: list[NDArray[Any]] = []
        read: dict[str, list[NDArray[Any]]] = {name: [] for name in numbers}
        for batch, start in self.rows.record_batches():
            for parts, i in zip(features, roles.features, strict=True):
                parts.append(_arrow_column(self.names[i], batch.column(i)))
            if (t := roles.target) is not None:
                unlabeled = not require_labels and batch.column(t).null_count > 0
                y.append(
                    None
                    if unlabeled
                    else read_column(self.path, self.names[t], batch.column(t), start, words=True)
                )
            if (q := roles.qid) is not None:
                ids = exact_ids(self.path, self.names[q], batch.column(q), start)
                qid.append(check_query_ids(self.path, self.names[q], ids))
            for name, i in numbers.items():
                read[name].append(read_column(self.path, self.names[i], batch.column(i), start))
        labels = [part for part in y if part is not None]
        return RawRows(
            [joined(parts) for parts in features],
            np.concatenate(labels) if labels and len(labels) == len(y) else None,
            np.concatenate(qid) if qid else None,
            {name: np.concatenate(parts) for name, parts in read.items()},
        )


def _arrow_column(name: str, column: Any) -> RawColumn:
    """Return a column of Arrow as numbers, or as text; any other type is only named."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        # the texts of null cells are those of missing ones in CSV
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        words = [*(word or "" for word in encoded.dictionary.to_pylist()), ""]
        return RawColumn.of_text(name, codes.astype(np.intp), [word.strip() for word in words])
    if pa.types.is_null(kind):  # no cell has a value
        return RawColumn.of_numbers(name, np.full(len(column), np.nan))
    dense = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_boolean(kind):
        codes = dense.cast(pa.int8()).fill_null(2).to_numpy(zero_copy_only=False)
        return RawColumn.of_text(name, codes.astype(np.intp), ["False", "True", ""])
    number_types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not any(test(kind) for test in number_types):
        is_date = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        texts = (dense.cast(pa.string()) if is_date else pa.array([""] * len(dense))).dictionary_encode()
        codes = texts.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp)
        return RawColumn(name, (codes, texts.dictionary.to_pylist()), None, str(column.type))
    cells = dense.to_numpy(zero_copy_only=False)  # null cells are NaN, or None among objects
    return RawColumn.of_numbers(
        name,
        np.array([np.nan if cell is None else cell for cell in cells], np.float64)
        if cells.dtype == object
        else cells.astype(np.float64),
    )
