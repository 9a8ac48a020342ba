"""Reader of text tables (CSV, TSV), and the roles of columns (target, query ids, features) in any table."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import (
    DataError,
    Dataset,
    PathLike,
    ReadProgress,
    check_query_ids,
    open_decompressed,
    quote,
)
from riskmin.data.limits import MemoryBudget

_TARGET_NAMES = ("target", "label", "y", "class")
_BLOCK_MAX_ROWS = 65536  # rows per block, at most; a block is held twice
_BLOCK_MAX_CELLS = 2**22  # cells per block, at most

ColumnSelection: TypeAlias = tuple[str | int | None, str | int | None, int | None, bool]
"""Parameters of `load` that select columns: target, qid, n_features, require_labels."""


RowBlock: TypeAlias = tuple[NDArray[Any], NDArray[np.float64] | None, NDArray[np.intp] | None]
"""X, labels and query ids of a block of rows; strings are codes."""


class ColumnRoles(NamedTuple):
    """Roles of the columns, by index."""

    features: list[int]
    target: int | None
    qid: int | None


def _abbreviated(names: Sequence[str]) -> str:
    shown = list(names) if len(names) <= 8 else [*names[:6], "...", names[-1]]
    return ", ".join(shown) + (f" ({len(names)} in all)" if len(names) > 8 else "")


def _column_index(path: PathLike, names: list[str], column: str | int | None, role: str) -> int | None:
    """Return the index of a column given by name or index, or None if it does not exist."""
    if isinstance(column, str) and names.count(column) > 1:
        raise DataError(path, None, f"several columns are called {column!r}; give the index of the {role}")
    if isinstance(column, int):
        return column % len(names) if -len(names) <= column < len(names) else None
    return names.index(column) if column in names else None


def _query_column(
    path: PathLike, names: list[str], target: str | int | None, qid: str | int | None
) -> int | None:
    """Return the index of the column of query ids, or None if there is none."""
    index = _column_index(path, names, "qid" if qid is None else qid, "query ids")
    if index is None and qid is not None:
        raise DataError(path, None, f"there is no column {qid!r}; the columns are {_abbreviated(names)}")
    # a column called "qid" that is named as the target is not used for query ids
    if index is None or index != _column_index(path, names, target, "target"):
        return index
    if qid is not None:
        raise DataError(path, None, f"the column {names[index]!r} is both target and qid; name two columns")
    return None


def assign_roles(
    path: PathLike,
    names: list[str],
    target: str | int | None,
    qid: str | int | None,
    n_features: int | None,
    require_labels: bool,
) -> ColumnRoles:
    """Assign the roles of the columns by the rules that `load` documents."""
    ids = _query_column(path, names, target, qid)
    others = [i for i in range(len(names)) if i != ids]
    label_index = _column_index(path, names, target, "target")
    # without a given target: the first known name, else the last column
    if target is None:
        label_index = next(
            (names.index(name) for name in _TARGET_NAMES if name in [names[i] for i in others]),
            others[-1] if others else None,
        )
        if (
            not require_labels
            and n_features is None
            and label_index is not None
            and names[label_index] not in _TARGET_NAMES
        ):
            label_index = None  # the last column may be a feature
    # a table to predict on, with exactly the features of the model
    if not require_labels and n_features == len(others):
        label_index = None
    elif label_index is None and target is not None and require_labels:
        raise DataError(path, None, f"there is no column {target!r}; the columns are {_abbreviated(names)}")
    features = [i for i in others if i != label_index]
    if not features:
        raise DataError(
            path, None, "there is no feature beside the target; check the delimiter and the target"
        )
    if n_features is not None and len(features) != n_features:
        too_many = len(features) > n_features
        problem = (
            f"{len(features)} features where {n_features} are expected; the columns are {_abbreviated(names)}"
            + (
                ": say which is the target and which the qid"
                if too_many
                else ": check that it is the right file"
            )
        )
        raise DataError(path, None, problem)
    return ColumnRoles(features, label_index, ids)


def _as_number(cell: str) -> float | None:
    """Return the number in a cell, or None; 1_000, which Python accepts but other readers do not, is none."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _delimiter(line: str, tsv: bool) -> str:
    if tsv:
        return "\t"
    unquoted = "".join(line.split('"')[::2])  # the text outside of quotes
    return max(",;\t", key=unquoted.count)


class TextTable(NamedTuple):
    """A text table, with its delimiter and the names of its columns."""

    path: PathLike
    delimiter: str
    names: list[str]
    header: bool
    meter: ReadProgress | None = None

    @property
    def block_rows(self) -> int:
        """The number of rows per block, by which a store is divided: the same for all readers."""
        return max(min(_BLOCK_MAX_ROWS, _BLOCK_MAX_CELLS // len(self.names)), 1)

    @contextmanager
    def text(self) -> Iterator[Lines]:
        """Open the file as lines of text."""
        with open_decompressed(self.path, self.meter) as stream, _text(stream) as text:
            lines = Lines(text, MemoryBudget(self.path))
            try:
                yield lines
            except UnicodeDecodeError as error:
                raise DataError(self.path, None, f"it is not text in UTF-8 ({error}); convert it") from error
            except csv.Error as error:
                problem = f"it is broken: {error}: a quote may not be closed; correct the file"
                raise DataError(self.path, lines.number, problem) from error

    @contextmanager
    def lines(self) -> Iterator[Iterator[str]]:
        """Open the file as lines of text, without the blank ones."""
        with self.text() as lines:
            yield filter(_not_blank, lines)


class Lines:
    """Lines of a text; a single line or quoted cell must fit into the memory limit."""

    _LINE_CHARACTERS = 2**20  # characters read at a time

    def __init__(self, text: TextIO, budget: MemoryBudget) -> None:
        self.text, self.budget = text, budget
        self.number = 0
        """Number of the current line, or of the line in which a quoted cell began."""

    def __iter__(self) -> Iterator[str]:
        quoted, read, budget, number = False, self.text.readline, self.budget, 0
        while line := read(self._LINE_CHARACTERS):
            number += 1
            if len(line) == self._LINE_CHARACTERS:
                line = self._whole_line(line)
            # an odd number of quotes opens or closes a quoted cell; an escaped quote is doubled, so even
            if '"' in line and line.count('"') % 2:
                quoted = not quoted
                self.number = number
            if quoted:
                budget.reserve(4 * len(line))  # readers keep four bytes per character
            else:
                budget.used, self.number = 0, number
            yield line

    def _whole_line(self, line: str) -> str:
        """Read the rest of a long line, and return all of it."""
        parts = [line]
        while len(parts[-1]) == self._LINE_CHARACTERS and not parts[-1].endswith(("\n", "\r")):
            self.budget.reserve(4 * self._LINE_CHARACTERS)
            parts.append(self.text.readline(self._LINE_CHARACTERS))
        return "".join(parts)


def _not_blank(line: str) -> bool:
    """Whether a line is not blank; a line of tabs has empty cells."""
    return bool(line.strip(" \r\n"))


def _text(stream: Any) -> TextIO:
    return io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")


def inspect_table(path: PathLike, tsv: bool) -> TextTable:
    """Read the first row to find the delimiter and the names of the columns."""
    table = TextTable(path, "", [], False)
    with table.lines() as lines:
        first = next(lines, None)
        if first is None:
            raise DataError(path, None, "it has no rows; check that it is the right file")
        delimiter = _delimiter(first, tsv)
        cells = [
            cell.strip() for cell in next(csv.reader(itertools.chain([first], lines), delimiter=delimiter))
        ]
    # a first row of numbers only is data: then columns are called x0, x1, ...
    header = any(_as_number(cell) is None for cell in cells)
    return TextTable(path, delimiter, cells if header else [f"x{i}" for i in range(len(cells))], header)


def _blocks(table: TextTable, codes: dict[int, dict[str, int]]) -> Iterator[NDArray[np.float64]]:
    """Yield blocks of rows as float64; the dicts in `codes` encode the strings of some columns."""
    # loadtxt converts the strings of these columns to codes, numbered in order of appearance
    converters: dict[int | str, Any] = {i: functools.partial(_code, words) for i, words in codes.items()}
    with table.text() as text:
        lines: Iterator[str] = filter(_not_blank, text)
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
    from riskmin.data.formats.arrow_csv import ArrowCsvReader

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
    ids: NDArray[Any] = np.array(words)
    # int first: float64 would round integers beyond 2^53
    if all_numbers(words):
        try:
            ids = np.array([int(word) for word in words], np.int64)
        except (ValueError, OverflowError):
            ids = np.array([float(word) for word in words])
    return check_query_ids(table.path, table.names[roles.qid], ids)


def raise_first_bad_cell(table: TextTable, roles: ColumnRoles, cause: object) -> NoReturn:
    """Raise a DataError for the first bad cell, found row by row; slow, but only used after an error."""
    with table.text() as text:
        rows = csv.reader(text, delimiter=table.delimiter)
        header = table.header
        for row in rows:
            if not _not_blank("".join(row)) and len(row) <= 1:
                continue
            # the first row that is not blank is the header
            if header:
                header = False
                continue
            if len(row) != len(table.names):
                problem = f"{len(row)} cells where {len(table.names)} are expected; correct the row"
                raise DataError(table.path, rows.line_num, problem)
            for i, cell in enumerate(row):
                cell_problem = _cell_problem(cell.strip(), i in (roles.target, roles.qid))
                if cell_problem is not None:
                    raise DataError(
                        table.path, rows.line_num, f"column {quote(table.names[i])}: {cell_problem}"
                    )
    raise DataError(table.path, None, f"it cannot be read as a table ({cause}); correct the file")


def _cell_problem(cell: str, text_allowed: bool) -> str | None:
    """Describe why a cell cannot be used; None if it can."""
    if cell == "":
        return "the cell is empty; fill it in or leave out the row"
    number = _as_number(cell)
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
    if table.names[target] in words and all(_as_number(name) is not None for name in other_names):
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


def uses_arrow(table: TextTable) -> bool:
    """Whether pyarrow is tried first: it is installed, and the file so large that importing it pays."""
    from riskmin.data.formats.arrow_csv import ArrowCsvReader

    return ArrowCsvReader.accepts(table)


def all_numbers(words: Iterable[str]) -> bool:
    """Whether all strings are numbers: then labels are not strings, whatever pyarrow takes them for."""
    return all(_as_number(word) is not None for word in words)


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


def load_csv(path: PathLike, selection: ColumnSelection, dtype: np.dtype[Any], *, tsv: bool) -> Dataset:
    """Read a text table; see `load`."""
    table = inspect_table(path, tsv)
    roles = assign_roles(path, table.names, *selection)
    if uses_arrow(table) and (fast := _read_by_arrow(table, roles, dtype, require_labels=selection[-1])):
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
