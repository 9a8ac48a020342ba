"""Reader of text tables (CSV, TSV): by pyarrow where it pays, else by NumPy; errors name line and column."""

from __future__ import annotations

import csv
import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import DataError, Dataset, PathLike, UnpreparedColumn, check_query_ids, quote
from riskmin.data.formats.arrow_csv import ArrowCsvReader
from riskmin.data.formats.text_table import (
    ColumnRoles,
    ColumnSelection,
    RowBlock,
    TextTable,
    as_number,
    assign_roles,
    inspect_table,
    is_not_blank,
)
from riskmin.data.limits import MemoryBudget


def _blocks(table: TextTable, codes: dict[int, dict[str, int]]) -> Iterator[NDArray[np.float64]]:
    """Yield blocks of rows as float64; the dicts in `codes` encode the strings of some columns."""
    # loadtxt converts the strings of these columns to codes, numbered in order of appearance
    converters: dict[int | str, Any] = {i: functools.partial(_code, words) for i, words in codes.items()}
    with table.text() as text:
        lines: Iterator[str] = filter(is_not_blank, text)
        if table.header:
            next(csv.reader(lines, delimiter=table.delimiter))
        # one line is read ahead, since loadtxt warns about input without lines
        for first in lines:
            block: NDArray[np.float64] = np.loadtxt(
                itertools.chain([first], lines),
                delimiter=table.delimiter,
                quotechar='"',
                comments=None,
                ndmin=2,
                max_rows=table.block_rows,
                converters=converters or None,
            )
            if block.shape[1] != len(table.names):
                raise ValueError("ragged")
            yield block


def _code(words: dict[str, int], cell: str) -> float:
    """Return the code of a string; a new one gets the next code."""
    return words.setdefault(cell.strip(), len(words))


def row_blocks(
    table: TextTable, roles: ColumnRoles, dtype: Any, codes: dict[int, dict[str, int]], *, arrow: bool = False
) -> Iterator[RowBlock]:
    """Yield the rows in blocks, read by pyarrow or here; a bad cell is a ValueError."""
    reader: Any = ArrowCsvReader if arrow else _finite_blocks
    empty = True
    for block in reader(table, roles, dtype, codes):
        empty = False
        yield block
    if empty:
        raise DataError(table.path, None, "it has a header and no rows; check that it is the right file")


def _finite_blocks(
    table: TextTable, roles: ColumnRoles, dtype: Any, codes: dict[int, dict[str, int]]
) -> Iterator[RowBlock]:
    """Yield the rows in blocks."""
    for block in _blocks(table, codes):
        # the caller turns a ValueError into an error with the line and the column
        if not np.isfinite(block).all():
            raise ValueError("not finite")
        with np.errstate(over="ignore"):
            X = block[:, roles.features].astype(dtype)
        if dtype != np.float64 and not np.isfinite(X).all():
            raise DataError(table.path, None, f"a value is too large for {dtype}; use dtype float64")
        y = None if roles.target is None else block[:, roles.target].copy()
        yield X, y, None if roles.qid is None else block[:, roles.qid].astype(np.intp)


def _read(
    table: TextTable, roles: ColumnRoles, dtype: Any, labels: dict[str, int] | None, *, arrow: bool
) -> Dataset:
    """Read a table whose labels are numbers, or with `labels`, which collects their codes, strings.

    Raises a ValueError if a cell is not as expected.
    """
    X, y, qid, budget = [], [], [], MemoryBudget(table.path)
    codes: dict[int, dict[str, int]] = {} if roles.qid is None else {roles.qid: {}}
    if labels is not None and roles.target is not None:
        codes[roles.target] = labels
    for block, block_labels, ids in row_blocks(table, roles, dtype, codes, arrow=arrow):
        # X, and 8 bytes each for the label and the query code of a row
        budget.reserve(block.nbytes + 16 * len(block))
        X.append(block)
        if block_labels is not None:
            y.append(block_labels)
        if ids is not None:
            qid.append(ids)
    names = [table.names[i] for i in roles.features] if table.header else None
    query_ids = (
        None if roles.qid is None else query_ids_of(table, roles, list(codes[roles.qid]))[np.concatenate(qid)]
    )
    return Dataset(stack(X), np.concatenate(y) if y else None, query_ids, names)


def stack(blocks: list[NDArray[Any]]) -> NDArray[Any]:
    """Join blocks of rows, and free each once it is copied."""
    # from the last block to the first, since list.pop from the end is O(1)
    X = np.empty((sum(map(len, blocks)), blocks[0].shape[1]), blocks[0].dtype)
    stop = len(X)
    while blocks:
        block = blocks.pop()
        X[stop - len(block) : stop] = block
        stop -= len(block)
    return X


def query_ids_of(table: TextTable, roles: ColumnRoles, words: list[str]) -> NDArray[Any]:
    """Return query ids from their text: exact int64 if all are numbers, else strings."""
    if any(_cell_problem(word, text_allowed=True) for word in words):
        raise_first_bad_cell(table, roles, "a query id is missing")
    assert roles.qid is not None
    return parse_query_ids(table.path, table.names[roles.qid], words)


def parse_query_ids(path: PathLike, name: str, words: list[str]) -> NDArray[Any]:
    """Return query ids from text without missing ones: exact int64 if all are numbers, else strings."""
    ids: NDArray[Any] = np.array(words)
    # int first: float64 would round integers beyond 2^53
    if all_numbers(words):
        try:
            ids = np.array([int(word) for word in words], np.int64)
        except (ValueError, OverflowError):
            ids = np.array([float(word) for word in words])
    return check_query_ids(path, name, ids)


def raise_first_bad_cell(table: TextTable, roles: ColumnRoles, cause: object) -> NoReturn:
    """Raise a DataError for the first bad cell, found row by row; slow, but only used after an error."""
    with table.text() as text:
        rows = csv.reader(text, delimiter=table.delimiter)
        header = table.header
        for row in rows:
            if not is_not_blank("".join(row)) and len(row) <= 1:
                continue
            # the first row that is not blank is the header
            if header:
                header = False
                continue
            if len(row) != len(table.names):
                problem = f"{len(row)} cells where {len(table.names)} are expected; correct the row"
                raise DataError(table.path, rows.line_num, problem)
            for i, cell in enumerate(row):
                has_role = i in (roles.target, roles.qid)
                cell_problem = _cell_problem(cell.strip(), has_role)
                if cell_problem is not None:
                    kind = DataError if has_role else UnpreparedColumn
                    raise kind(table.path, rows.line_num, f"column {quote(table.names[i])}: {cell_problem}")
    raise DataError(table.path, None, f"it cannot be read as a table ({cause}); correct the file")


def _cell_problem(cell: str, text_allowed: bool) -> str | None:
    """Describe why a cell cannot be used; None if it can."""
    if cell == "":
        return "the cell is empty; fill it in or leave out the row"
    number = as_number(cell)
    if number is not None and not math.isfinite(number):
        return f"{quote(cell)} is not finite; replace the value or leave out the row"
    if number is None and not text_allowed:
        return f"{quote(cell)} is not a number; encode it, or leave out the column"
    return None


def check_class_names(table: TextTable, roles: ColumnRoles, words: list[str]) -> None:
    """Raise a DataError if a label is missing, or if one of them is the name of their column."""
    if any(_cell_problem(word, text_allowed=True) for word in words):
        raise_first_bad_cell(table, roles, "a label is missing")
    target = roles.target
    assert target is not None
    # a first row such as "1.5,2.0,cat", whose last cell is also a label, is data without a header
    other_names = [name for i, name in enumerate(table.names) if i != target]
    if table.names[target] in words and all(as_number(name) is not None for name in other_names):
        problem = "it reads as a row of data, but the first row must name the columns; add a header"
        raise DataError(table.path, 1, problem)


def _with_class_names(
    table: TextTable, roles: ColumnRoles, data: Dataset, words: list[str], require_labels: bool
) -> Dataset:
    """Replace the codes of the labels by their strings."""
    if words == [""] and not require_labels:
        return data._replace(y=None)
    check_class_names(table, roles, words)
    return data._replace(y=np.array(words)[np.asarray(data.y, np.intp)])


def all_numbers(words: Iterable[str]) -> bool:
    """Whether all strings are numbers: then labels are not strings, whatever pyarrow takes them for."""
    return all(as_number(word) is not None for word in words)


def _read_by_arrow(
    table: TextTable, roles: ColumnRoles, dtype: Any, *, require_labels: bool
) -> Dataset | None:
    """Read a table by pyarrow; None if it does not accept it."""
    attempts: list[dict[str, int] | None] = [None, {}]  # labels as numbers, then as strings
    for codes in attempts:
        try:
            data = _read(table, roles, dtype, codes, arrow=True)
        except DataError:
            raise
        except ValueError:
            continue
        if codes is None:
            return data
        if roles.target is not None and not all_numbers(codes):
            return _with_class_names(table, roles, data, list(codes), require_labels)
    return None


def load_csv(
    path: PathLike,
    selection: ColumnSelection,
    dtype: np.dtype[Any],
    *,
    tsv: bool,
    chunk_bytes: int | None = None,
) -> Dataset:
    """Read a text table; see `load`."""
    table = inspect_table(path, tsv)._replace(chunk_bytes=chunk_bytes)
    roles = assign_roles(path, table.names, *selection)
    if ArrowCsvReader.accepts(table):
        fast = _read_by_arrow(table, roles, dtype, require_labels=selection[-1])
        if fast is not None:
            return fast
    # first with labels as numbers; if a cell is not a number, once more with labels as strings
    try:
        data = _read(table, roles, dtype, None, arrow=False)
    except DataError:
        raise
    except ValueError as error:
        if roles.target is None:
            raise_first_bad_cell(table, roles, error)
        codes: dict[str, int] = {}
        try:
            data = _read(table, roles, dtype, codes, arrow=False)
        except DataError:
            raise
        except ValueError as second_error:
            raise_first_bad_cell(table, roles, second_error)
        data = _with_class_names(table, roles, data, list(codes), require_labels=selection[-1])
    return data
