"""Tables: CSV and TSV text, and Parquet. One column is the target, one called "qid" holds query ids."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import DataError, Dataset, PathLike, opened, quote

_TARGETS = ("target", "label", "y", "class")
_BLOCK = 65536  # rows to hold twice at most


class _Roles(NamedTuple):
    """Which column is what."""

    features: list[int]
    target: int | None
    qid: int | None


def _abbreviated(names: Sequence[str]) -> str:
    shown = list(names) if len(names) <= 8 else [*names[:6], "...", names[-1]]
    return ", ".join(shown) + (f" ({len(names)} in all)" if len(names) > 8 else "")


def assign(
    path: PathLike, names: list[str], target: str | int | None, n_features: int | None, require_labels: bool
) -> _Roles:
    """Tell target, query ids and features apart by the rules that `load` documents."""
    qid = names.index("qid") if "qid" in names and target != "qid" else None
    others = [i for i in range(len(names)) if i != qid]
    found: int | None = None
    if isinstance(target, str) and names.count(target) == 1:
        found = names.index(target)
    elif isinstance(target, str) and target in names:
        raise DataError(path, None, f"several columns are called {target!r}; give the index of the target")
    elif isinstance(target, int) and -len(names) <= target < len(names):
        found = target % len(names)
    elif target is None:
        found = next(
            (names.index(name) for name in _TARGETS if name in names), others[-1] if others else None
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
        problem = (
            f"{len(features)} features where {n_features} are expected; the columns are {_abbreviated(names)}"
        )
        raise DataError(path, None, problem)
    return _Roles(features, found, qid)


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


class _Table(NamedTuple):
    """A text table whose first row was seen."""

    path: PathLike
    delimiter: str
    names: list[str]
    header: bool

    @contextmanager
    def lines(self) -> Iterator[Iterator[str]]:
        """The lines of the file that are not blank."""
        with opened(self.path) as stream, _text(stream) as text:
            try:
                yield filter(_not_blank, text)
            except UnicodeDecodeError as error:
                raise DataError(self.path, None, f"it is not text in UTF-8 ({error}); convert it") from error


def _not_blank(line: str) -> bool:
    """Whether the line has a cell; tabs alone are empty cells."""
    return bool(line.strip(" \r\n"))


def _text(stream: Any) -> TextIO:
    return io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")


def _inspect(path: PathLike, tsv: bool) -> _Table:
    """Find the delimiter and the names of the columns."""
    table = _Table(path, "", [], False)
    with table.lines() as lines:
        first = next(lines, None)
        if first is None:
            raise DataError(path, None, "it has no rows; check that it is the right file")
        delimiter = _delimiter(first, tsv)
        cells = [
            cell.strip() for cell in next(csv.reader(itertools.chain([first], lines), delimiter=delimiter))
        ]
    header = any(_as_number(cell) is None for cell in cells)
    return _Table(path, delimiter, cells if header else [f"x{i}" for i in range(len(cells))], header)


def _blocks(
    table: _Table, encode: dict[str, int] | None, target: int | None
) -> Iterator[NDArray[np.float64]]:
    """The numbers in blocks of rows; the target as codes that `encode` collects, where it is given."""

    def code(cell: str) -> float:
        assert encode is not None
        return encode.setdefault(cell.strip(), len(encode))

    with table.lines() as lines:
        if table.header:
            next(csv.reader(lines, delimiter=table.delimiter))
        for first in lines:  # loadtxt warns where there is nothing to read
            block: NDArray[np.float64] = np.loadtxt(
                itertools.chain([first], lines),
                delimiter=table.delimiter,
                quotechar='"',
                comments=None,
                ndmin=2,
                max_rows=_BLOCK,
                converters=None if encode is None or target is None else {target: code},
            )
            if block.shape[1] != len(table.names):
                raise ValueError("ragged")
            yield block


def _read(table: _Table, roles: _Roles, dtype: Any, encode: dict[str, int] | None) -> Dataset:
    """Read a table whose target is a number, or a word where `encode` is given; ValueError if it is not."""
    X, y, qid = [], [], []
    for block in _blocks(table, encode, roles.target):
        if not np.isfinite(block).all():
            raise ValueError("not finite")
        with np.errstate(over="ignore"):
            X.append(block[:, roles.features].astype(dtype))
        if roles.target is not None:
            y.append(block[:, roles.target].copy())
        if roles.qid is not None:
            qid.append(whole(table.path, block[:, roles.qid]))
    if not X:
        raise DataError(table.path, None, "it has a header and no rows; check that it is the right file")
    names = [table.names[i] for i in roles.features] if table.header else None
    labels = np.concatenate(y) if y else None
    return Dataset(stack(X), labels, np.concatenate(qid) if qid else None, names)


def stack(blocks: list[NDArray[Any]]) -> NDArray[Any]:
    """Join blocks of rows, and let go of each once it is copied."""
    X = np.empty((sum(map(len, blocks)), blocks[0].shape[1]), blocks[0].dtype)
    stop = len(X)
    while blocks:
        block = blocks.pop()
        X[stop - len(block) : stop] = block
        stop -= len(block)
    return X


def whole(path: PathLike, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Query ids as integers."""
    if not (np.rint(numbers) == numbers).all() or not (np.abs(numbers) <= 2**53).all():
        raise DataError(path, None, 'the column "qid" is not of whole numbers; rename it if it is a feature')
    return numbers.astype(np.int64)


def _diagnose(table: _Table, roles: _Roles, cause: object) -> NoReturn:
    """Find the first cell that cannot be used, row by row: slow, but only once something is wrong."""
    with opened(table.path) as stream, _text(stream) as text:
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
                trouble = _trouble(cell.strip(), i == roles.target)
                if trouble is not None:
                    raise DataError(table.path, rows.line_num, f"column {quote(table.names[i])}: {trouble}")
    raise DataError(table.path, None, f"it cannot be read as a table ({cause}); correct the file")


def _trouble(cell: str, is_target: bool) -> str | None:
    """Why a cell cannot be used, if so."""
    if cell == "":
        return "the cell is empty; fill it in or leave out the row"
    number = _as_number(cell)
    if number is not None and not math.isfinite(number):
        return f"{quote(cell)} is not finite; replace the value or leave out the row"
    if number is None and not is_target:
        return f"{quote(cell)} is not a number; encode it, or leave out the column"
    return None


def _named(table: _Table, roles: _Roles, data: Dataset, words: list[str], require_labels: bool) -> Dataset:
    """Turn the codes of the labels into their words."""
    if words == [""] and not require_labels:
        return data._replace(y=None)
    if any(_trouble(word, is_target=True) for word in words):
        _diagnose(table, roles, "a label is missing")
    target = roles.target
    assert target is not None
    head = [name for i, name in enumerate(table.names) if i != target]
    if table.names[target] in words and all(_as_number(name) is not None for name in head):
        problem = "it reads as a row of data, but the first row must name the columns; add a header"
        raise DataError(table.path, 1, problem)
    return data._replace(y=np.array(words)[np.asarray(data.y, np.intp)])


def load_csv(
    path: PathLike,
    *,
    tsv: bool,
    target: str | int | None,
    n_features: int | None,
    dtype: np.dtype[Any],
    require_labels: bool,
) -> Dataset:
    """Read a text table; `load` has the rules."""
    table = _inspect(path, tsv)
    roles = assign(path, table.names, target, n_features, require_labels)
    try:
        data = _read(table, roles, dtype, None)
    except DataError:
        raise
    except ValueError as error:
        if roles.target is None:
            _diagnose(table, roles, error)
        encode: dict[str, int] = {}
        try:
            data = _read(table, roles, dtype, encode)
        except DataError:
            raise
        except ValueError as again:
            _diagnose(table, roles, again)
        data = _named(table, roles, data, list(encode), require_labels)
    if dtype != np.float64 and not np.isfinite(np.asarray(data.X)).all():
        raise DataError(path, None, f"a value is too large for {dtype}; use dtype float64")
    return data
