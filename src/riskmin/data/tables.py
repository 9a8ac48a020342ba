"""Tables: CSV and TSV text, and Parquet. One column is the target, another may hold query ids."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import DataError, Dataset, Meter, PathLike, opened, quote, whole
from riskmin.data.limits import Room

_TARGETS = ("target", "label", "y", "class")
_LINE = 2**20  # characters of a line to read at a time
_BLOCK = 65536  # rows to hold twice at most
_MOST_CELLS = 2**22  # to hold twice at most

Wanted: TypeAlias = tuple[str | int | None, str | int | None, int | None, bool]
"""What the caller of `load` says of the columns: target, qid, n_features, require_labels."""


class Roles(NamedTuple):
    """Which column is what."""

    features: list[int]
    target: int | None
    qid: int | None


def _abbreviated(names: Sequence[str]) -> str:
    shown = list(names) if len(names) <= 8 else [*names[:6], "...", names[-1]]
    return ", ".join(shown) + (f" ({len(names)} in all)" if len(names) > 8 else "")


def _place(path: PathLike, names: list[str], column: str | int | None, what: str) -> int | None:
    """The index of a column that is named by the caller, if it is there."""
    if isinstance(column, str) and names.count(column) > 1:
        raise DataError(path, None, f"several columns are called {column!r}; give the index of the {what}")
    if isinstance(column, int):
        return column % len(names) if -len(names) <= column < len(names) else None
    return names.index(column) if column in names else None


def _queries(path: PathLike, names: list[str], target: str | int | None, qid: str | int | None) -> int | None:
    """The index of the column of query ids, if there is one."""
    found = _place(path, names, "qid" if qid is None else qid, "query ids")
    if found is None and qid is not None:
        raise DataError(path, None, f"there is no column {qid!r}; the columns are {_abbreviated(names)}")
    if found is None or found != _place(path, names, target, "target"):
        return found
    if qid is not None:
        raise DataError(path, None, f"the column {names[found]!r} is both target and qid; name two columns")
    return None


def assign(
    path: PathLike,
    names: list[str],
    target: str | int | None,
    qid: str | int | None,
    n_features: int | None,
    require_labels: bool,
) -> Roles:
    """Tell target, query ids and features apart by the rules that `load` documents."""
    ids = _queries(path, names, target, qid)
    others = [i for i in range(len(names)) if i != ids]
    found = _place(path, names, target, "target")
    if target is None:
        found = next(
            (names.index(name) for name in _TARGETS if name in [names[i] for i in others]),
            others[-1] if others else None,
        )
        if not require_labels and n_features is None and found is not None and names[found] not in _TARGETS:
            found = None  # nothing says that the last column is no feature
    if not require_labels and n_features == len(others):
        found = None
    elif found is None and target is not None and require_labels:
        raise DataError(path, None, f"there is no column {target!r}; the columns are {_abbreviated(names)}")
    features = [i for i in others if i != found]
    if not features:
        raise DataError(
            path, None, "there is no feature beside the target; check the delimiter and the target"
        )
    if n_features is not None and len(features) != n_features:
        many = len(features) > n_features
        problem = (
            f"{len(features)} features where {n_features} are expected; the columns are {_abbreviated(names)}"
            + (": say which is the target and which the qid" if many else ": check that it is the right file")
        )
        raise DataError(path, None, problem)
    return Roles(features, found, ids)


def _as_number(cell: str) -> float | None:
    """The number in a cell; None if it is none (Python's float takes 1_000, which no other reader does)."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _delimiter(line: str, tsv: bool) -> str:
    if tsv:
        return "\t"
    bare = "".join(line.split('"')[::2])  # what stands outside of quotes
    return max(",;\t", key=bare.count)


class Table(NamedTuple):
    """A text table whose first row was seen."""

    path: PathLike
    delimiter: str
    names: list[str]
    header: bool
    meter: Meter | None = None

    @contextmanager
    def text(self) -> Iterator[Lines]:
        """The lines of the file."""
        with opened(self.path, self.meter) as stream, _text(stream) as text:
            lines = Lines(text, Room(self.path))
            try:
                yield lines
            except UnicodeDecodeError as error:
                raise DataError(self.path, None, f"it is not text in UTF-8 ({error}); convert it") from error
            except csv.Error as error:
                problem = f"it is broken: {error}: a quote may not be closed; correct the file"
                raise DataError(self.path, lines.number, problem) from error

    @contextmanager
    def lines(self) -> Iterator[Iterator[str]]:
        """The lines of the file that are not blank."""
        with self.text() as lines:
            yield filter(_not_blank, lines)


class Lines:
    """The lines of a text. What is held of it at once, a line or a cell in quotes, must fit into memory."""

    def __init__(self, text: TextIO, room: Room) -> None:
        self.text, self.room = text, room
        self.number = 0
        """The line, or the one that the quotes were opened in."""

    def __iter__(self) -> Iterator[str]:
        quoted, read, room, number = False, self.text.readline, self.room, 0
        while line := read(_LINE):
            number += 1
            if len(line) == _LINE:
                line = self._long(line)
            if '"' in line and line.count('"') % 2:
                quoted = not quoted
                self.number = number
            if quoted:
                room.take(4 * len(line))  # readers keep four bytes a character
            else:
                room.held, self.number = 0, number
            yield line

    def _long(self, line: str) -> str:
        """The whole of a line."""
        parts = [line]
        while len(parts[-1]) == _LINE and not parts[-1].endswith(("\n", "\r")):
            self.room.take(4 * _LINE)
            parts.append(self.text.readline(_LINE))
        return "".join(parts)


def _not_blank(line: str) -> bool:
    """Whether the line has a cell; tabs alone are empty cells."""
    return bool(line.strip(" \r\n"))


def _text(stream: Any) -> TextIO:
    return io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")


def inspect_table(path: PathLike, tsv: bool) -> Table:
    """Find the delimiter and the names of the columns."""
    table = Table(path, "", [], False)
    with table.lines() as lines:
        first = next(lines, None)
        if first is None:
            raise DataError(path, None, "it has no rows; check that it is the right file")
        delimiter = _delimiter(first, tsv)
        cells = [
            cell.strip() for cell in next(csv.reader(itertools.chain([first], lines), delimiter=delimiter))
        ]
    header = any(_as_number(cell) is None for cell in cells)
    return Table(path, delimiter, cells if header else [f"x{i}" for i in range(len(cells))], header)


def _blocks(table: Table, codes: dict[int, dict[str, int]]) -> Iterator[NDArray[np.float64]]:
    """The numbers in blocks of rows; the words of some columns as codes, which are collected."""
    coders: dict[int | str, Any] = {i: functools.partial(_code, words) for i, words in codes.items()}
    most = max(min(_BLOCK, _MOST_CELLS // len(table.names)), 1)
    with table.text() as text:
        lines: Iterator[str] = filter(_not_blank, text)
        if table.header:
            next(csv.reader(lines, delimiter=table.delimiter))
        for first in lines:  # loadtxt warns where there is nothing to read
            block: NDArray[np.float64] = np.loadtxt(
                itertools.chain([first], lines),
                delimiter=table.delimiter,
                quotechar='"',
                comments=None,
                ndmin=2,
                max_rows=most,
                converters=coders or None,
            )
            if block.shape[1] != len(table.names):
                raise ValueError("ragged")
            yield block


def _code(words: dict[str, int], cell: str) -> float:
    """The number of a word, the next one if it is new."""
    return words.setdefault(cell.strip(), len(words))


def pieces(
    table: Table, roles: Roles, dtype: Any, codes: dict[int, dict[str, int]]
) -> Iterator[tuple[NDArray[Any], NDArray[np.float64] | None, NDArray[np.intp] | None]]:
    """X, labels and query ids in blocks of rows, words as codes; ValueError if something is no number."""
    empty = True
    for block in _blocks(table, codes):
        empty = False
        if not np.isfinite(block).all():
            raise ValueError("not finite")
        with np.errstate(over="ignore"):
            X = block[:, roles.features].astype(dtype)
        if dtype != np.float64 and not np.isfinite(X).all():
            raise DataError(table.path, None, f"a value is too large for {dtype}; use dtype float64")
        y = None if roles.target is None else block[:, roles.target].copy()
        yield X, y, None if roles.qid is None else block[:, roles.qid].astype(np.intp)
    if empty:
        raise DataError(table.path, None, "it has a header and no rows; check that it is the right file")


def _read(table: Table, roles: Roles, dtype: Any, labels: dict[str, int] | None) -> Dataset:
    """Read a table whose target is a number, or a word where `labels` is given; ValueError if it is not."""
    X, y, qid, room = [], [], [], Room(table.path)
    codes: dict[int, dict[str, int]] = {} if roles.qid is None else {roles.qid: {}}
    if labels is not None and roles.target is not None:
        codes[roles.target] = labels
    for rows, found, ids in pieces(table, roles, dtype, codes):
        room.take(rows.nbytes + 16 * len(rows))
        X.append(rows)
        if found is not None:
            y.append(found)
        if ids is not None:
            qid.append(ids)
    names = [table.names[i] for i in roles.features] if table.header else None
    numbers = None if roles.qid is None else ids_of(table, roles, list(codes[roles.qid]))[np.concatenate(qid)]
    return Dataset(stack(X), np.concatenate(y) if y else None, numbers, names)


def stack(blocks: list[NDArray[Any]]) -> NDArray[Any]:
    """Join blocks of rows, and let go of each once it is copied."""
    X = np.empty((sum(map(len, blocks)), blocks[0].shape[1]), blocks[0].dtype)
    stop = len(X)
    while blocks:
        block = blocks.pop()
        X[stop - len(block) : stop] = block
        stop -= len(block)
    return X


def ids_of(table: Table, roles: Roles, words: list[str]) -> NDArray[Any]:
    """The query ids that words stand for: numbers if all of them are, integers exact however large."""
    if any(_trouble(word, wordy=True) for word in words):
        diagnose(table, roles, "a query id is missing")
    assert roles.qid is not None
    ids: NDArray[Any] = np.array(words)
    if all(_as_number(word) is not None for word in words):
        try:
            ids = np.array([int(word) for word in words], np.int64)
        except (ValueError, OverflowError):
            ids = np.array([float(word) for word in words])
    return whole(table.path, table.names[roles.qid], ids)


def diagnose(table: Table, roles: Roles, cause: object) -> NoReturn:
    """Find the first cell that cannot be used, row by row: slow, but only once something is wrong."""
    with table.text() as text:
        rows = csv.reader(text, delimiter=table.delimiter)
        header = table.header
        for row in rows:
            if not _not_blank("".join(row)) and len(row) <= 1:
                continue
            if header:
                header = False
                continue
            if len(row) != len(table.names):
                problem = f"{len(row)} cells where {len(table.names)} are expected; correct the row"
                raise DataError(table.path, rows.line_num, problem)
            for i, cell in enumerate(row):
                trouble = _trouble(cell.strip(), i in (roles.target, roles.qid))
                if trouble is not None:
                    raise DataError(table.path, rows.line_num, f"column {quote(table.names[i])}: {trouble}")
    raise DataError(table.path, None, f"it cannot be read as a table ({cause}); correct the file")


def _trouble(cell: str, wordy: bool) -> str | None:
    """Why a cell cannot be used, if so."""
    if cell == "":
        return "the cell is empty; fill it in or leave out the row"
    number = _as_number(cell)
    if number is not None and not math.isfinite(number):
        return f"{quote(cell)} is not finite; replace the value or leave out the row"
    if number is None and not wordy:
        return f"{quote(cell)} is not a number; encode it, or leave out the column"
    return None


def check_words(table: Table, roles: Roles, words: list[str]) -> None:
    """Raise if labels are missing, or if one of them is the name of their column."""
    if any(_trouble(word, wordy=True) for word in words):
        diagnose(table, roles, "a label is missing")
    target = roles.target
    assert target is not None
    head = [name for i, name in enumerate(table.names) if i != target]
    if table.names[target] in words and all(_as_number(name) is not None for name in head):
        problem = "it reads as a row of data, but the first row must name the columns; add a header"
        raise DataError(table.path, 1, problem)


def _named(table: Table, roles: Roles, data: Dataset, words: list[str], require_labels: bool) -> Dataset:
    """Turn the codes of the labels into their words."""
    if words == [""] and not require_labels:
        return data._replace(y=None)
    check_words(table, roles, words)
    return data._replace(y=np.array(words)[np.asarray(data.y, np.intp)])


def load_csv(path: PathLike, wanted: Wanted, dtype: np.dtype[Any], *, tsv: bool) -> Dataset:
    """Read a text table; `load` has the rules."""
    table = inspect_table(path, tsv)
    roles = assign(path, table.names, *wanted)
    try:
        data = _read(table, roles, dtype, None)
    except DataError:
        raise
    except ValueError as error:
        if roles.target is None:
            diagnose(table, roles, error)
        encode: dict[str, int] = {}
        try:
            data = _read(table, roles, dtype, encode)
        except DataError:
            raise
        except ValueError as again:
            diagnose(table, roles, again)
        data = _named(table, roles, data, list(encode), require_labels=wanted[-1])
    return data
