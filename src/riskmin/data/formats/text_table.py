"""A text table (CSV, TSV): its lines, its columns and their roles (target, query ids, features)."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from riskmin.core.messages import unknown_name
from riskmin.data.base import DataError, PathLike, ReadProgress, open_decompressed
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


def abbreviated(names: Sequence[str]) -> str:
    """List names for a message, of many only some."""
    shown = list(names) if len(names) <= 8 else [*names[:6], "...", names[-1]]
    return ", ".join(shown) + (f" ({len(names)} in all)" if len(names) > 8 else "")


def missing_column(
    path: PathLike, names: Sequence[str], column: str | int, use: str = "", taken: Collection[str] = ()
) -> DataError:
    """Return the error about a column that a table does not have.

    `use` says what it is for, and columns that are `taken` for another use were not meant.
    """
    problem, known = f"there is no column {column!r}{use and f' ({use})'}", set(taken)
    others = [name for name in names if name not in known]
    return DataError(
        path, None, unknown_name(problem, column, others, f"the columns are {abbreviated(names)}")
    )


def column_index(path: PathLike, names: list[str], column: str | int | None, role: str) -> int | None:
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
    index = column_index(path, names, "qid" if qid is None else qid, "query ids")
    if index is None and qid is not None:
        raise missing_column(path, names, qid)
    # a column called "qid" that is named as the target is not used for query ids
    if index is None or index != column_index(path, names, target, "target"):
        return index
    if qid is not None:
        raise DataError(path, None, f"the column {names[index]!r} is both target and qid; name two columns")
    return None


def default_target(names: Sequence[str]) -> str | None:
    """Return the target among columns that are no features: by the known names, or if there is only one."""
    return next((name for name in _TARGET_NAMES if name in names), names[0] if len(names) == 1 else None)


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
    label_index = column_index(path, names, target, "target")
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
        raise missing_column(path, names, target)
    features = [i for i in others if i != label_index]
    if not features:
        raise DataError(
            path, None, "there is no feature beside the target; check the delimiter and the target"
        )
    if n_features is not None and len(features) != n_features:
        too_many = len(features) > n_features
        problem = (
            f"{len(features)} features where {n_features} are expected; the columns are {abbreviated(names)}"
            + (
                ": say which is the target and which the qid"
                if too_many
                else ": check that it is the right file"
            )
        )
        raise DataError(path, None, problem)
    check_distinct_names(path, [names[i] for i in features])
    return ColumnRoles(features, label_index, ids)


def check_distinct_names(path: PathLike, names: Sequence[str]) -> None:
    """Raise if two features have the same name: they are found by their names when rows are predicted."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(path, None, f"several columns are called {name!r}; rename all but one")
        seen.add(name)


def as_number(cell: str) -> float | None:
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
    chunk_bytes: int | None = None
    """As for `load`."""

    @property
    def block_rows(self) -> int:
        """The number of rows per block, by which a store is divided: the same for all readers."""
        cells = _BLOCK_MAX_CELLS if self.chunk_bytes is None else self.chunk_bytes // 8
        return max(min(_BLOCK_MAX_ROWS, cells // len(self.names)), 1)

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
            yield filter(is_not_blank, lines)


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


def is_not_blank(line: str) -> bool:
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
    header = any(as_number(cell) is None for cell in cells)
    return TextTable(path, delimiter, cells if header else [f"x{i}" for i in range(len(cells))], header)
