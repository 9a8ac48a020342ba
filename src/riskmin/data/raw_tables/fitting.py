"""How the preparation of a table is found on its training rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from riskmin.core.deadline import check_each
from riskmin.data.base import DataError, PathLike, quote
from riskmin.data.formats.text_table import ColumnRoles, abbreviated, assign_roles
from riskmin.data.loading import format_of
from riskmin.data.raw_tables.columns import RawColumn
from riskmin.data.raw_tables.encoders import CategoryEncoder, ColumnEncoder, NumberEncoder
from riskmin.data.raw_tables.preparation import (
    NUMBER_ROLES,
    ColumnRef,
    PreparedRows,
    TablePreparation,
    check_numbers,
    find_column,
    labels_written,
    number_columns,
)
from riskmin.data.raw_tables.reading import RawSource, RawTable, open_raw
from riskmin.data.raw_tables.recognition import NumberFormats, date_encoder
from riskmin.data.raw_tables.written import NumberFormat


@dataclass(frozen=True)
class TableOptions:
    """How columns of a table become features.

    Parameters
    ----------
    columns : sequence of str
        The features; empty for all columns that have no other role.
    drop : sequence of str
        Columns that are not features.
    categorical : sequence of str
        Columns that are categories even if they hold numbers.
    impute : {None, "mean", "median"}
        What replaces missing numbers; missing categories become a level of their own. None refuses both.
    weight : str, int or None
        The column of the row weights.
    offset, exposure : str, int or None
        The column that is added to the scores, as it is or by its logarithm.
    min_frequency : int or None
        Levels with fewer rows share one indicator; None for 1 % of the rows, and at most 10.
    thousands : {None, ",", ".", " ", "'"}
        What separates thousands in numbers, as in pandas' `read_csv`. Without it and `decimal`, the format
        of a column is recognized, and an error asks if there are two readings.
    decimal : {None, ".", ","}
        What separates decimals.
    dates : {None, "days", "dmy", "mdy", "drop"}
        "days" makes dates the number of days since the first; "dmy" and "mdy" do the same, with the day or
        the month first in dates such as 01/02/2024. "drop" leaves them out. None refuses them.
    """

    columns: Sequence[str] = ()
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    impute: str | None = None
    weight: ColumnRef = None
    offset: ColumnRef = None
    exposure: ColumnRef = None
    min_frequency: int | None = None
    thousands: str | None = None
    decimal: str | None = None
    dates: str | None = None

    def __post_init__(self) -> None:
        if self.dates not in (None, "days", "dmy", "mdy", "drop"):
            raise ValueError(f"dates={self.dates!r}: give 'days', 'dmy', 'mdy' or 'drop'")
        if self.offset is not None and self.exposure is not None:
            raise ValueError("the offset is one column, or the logarithm of an exposure: give one of the two")
        NumberFormat(self.decimal or ".", self.thousands or "")  # raises for other separators

    @property
    def numbers(self) -> dict[str, ColumnRef]:
        """The columns of one number per row, by their role."""
        return {role: getattr(self, role) for role in NUMBER_ROLES}

    @property
    def written(self) -> NumberFormat | None:
        """The format of numbers, if one is given."""
        if self.thousands is None and self.decimal is None:
            return None
        return NumberFormat(self.decimal or ".", self.thousands or "")


class FoundPreparation(NamedTuple):
    """The preparation of tables, with the rows on which it was found."""

    preparation: TablePreparation
    source: RawSource
    notes: tuple[str, ...]
    """A note for each column that carries no information and is left out."""


def prepare(
    paths: Sequence[PathLike],
    options: TableOptions,
    *,
    target: ColumnRef = None,
    qid: ColumnRef = None,
    require_labels: bool = True,
) -> PreparedRows:
    """Read tables with the same columns, find their preparation and apply it.

    Parameters
    ----------
    paths : sequence of paths
        CSV, TSV or Parquet.
    options : TableOptions
    target, qid, require_labels
        As for `load`.

    Returns
    -------
    PreparedRows
        With a note for each column that carries no information and is left out.
    """
    found = find_preparation(paths, options, target=target, qid=qid, require_labels=require_labels)
    made = found.preparation.transform(found.source)
    return made._replace(notes=(*found.notes, *made.notes))


def find_preparation(
    paths: Sequence[PathLike],
    options: TableOptions,
    *,
    target: ColumnRef = None,
    qid: ColumnRef = None,
    require_labels: bool = True,
) -> FoundPreparation:
    """Read tables with the same columns, and find their preparation: see `prepare`."""
    tables = [open_raw(path, format_of(path)) for path in paths]
    roles, numbers = _roles(tables[0], options, target, qid, require_labels)
    for table in tables[1:]:
        if table.names != tables[0].names:
            raise DataError(table.path, None, f"its columns are not those of {paths[0]}; give one table")
    parts = [table.read(roles, numbers, require_labels=require_labels) for table in tables]
    source = RawSource(tables, parts)
    check_numbers(source, options.numbers)
    encoders, notes, kept = [], [], []
    categorical = {*_names(options.categorical, tables[0].names)}
    formats = NumberFormats(source, options.written, categorical)
    source.rows = source.rows._replace(y=labels_written(source, formats.labels))
    for column in check_each(source.rows.features):
        encoder = _encoder(column, options, source, formats, categorical=column.name in categorical)
        if encoder is None:
            notes.append(f"column {quote(column.name)} is left out: {_why_left_out(column)}")
        else:
            encoders.append(encoder)
            kept.append(column)
    if not encoders:
        raise DataError(paths[0], None, "no column is left as a feature; check --columns and --drop")
    names = {
        role: None if i is None else tables[0].names[i]
        for role, i in {"target": roles.target, "qid": roles.qid, **numbers}.items()
    }
    preparation = TablePreparation(
        tuple(encoders), **names, has_names=tables[0].has_names, labels=formats.labels
    )
    source.rows = source.rows._replace(features=kept)
    return FoundPreparation(preparation, source, (*formats.notes, *notes))


def _why_left_out(column: RawColumn) -> str:
    """Say why a column is no feature."""
    if column.missing.all():
        return "all of its cells are missing"
    return "it holds dates" if column.date_readings else "all of its levels are rare"


def target_name(
    path: PathLike, target: ColumnRef, qid: ColumnRef, *, require_labels: bool = True
) -> str | None:
    """Return the name of the column of labels of a table, by the rules of `load`; None if it has no names."""
    table = open_raw(path, format_of(path))
    index = _roles(table, TableOptions(), target, qid, require_labels)[0].target
    return table.names[index] if table.has_names and index is not None else None


def _roles(
    table: RawTable, options: TableOptions, target: ColumnRef, qid: ColumnRef, require_labels: bool
) -> tuple[ColumnRoles, dict[str, int]]:
    """Assign the roles of the columns, and those of numbers of the rows, such as weights."""
    names, numbers = table.names, number_columns(table, options.numbers)
    dropped = {find_column(table, name, "to drop") for name in _names(options.drop, names)}
    given = [find_column(table, column, "", required=False) for column in (target, qid)]
    hidden = {*dropped, *numbers.values(), *table.index_columns} - {i for i in given if i is not None}
    kept = [i for i in range(len(names)) if i not in hidden]
    # a column given by its index in the file keeps its name, or else its position among those kept
    at_target, at_qid = (
        kept.index(i) if i is not None else column for i, column in zip(given, (target, qid), strict=True)
    )
    found = assign_roles(table.path, [names[i] for i in kept], at_target, at_qid, None, require_labels)
    features = [kept[i] for i in found.features]
    if options.columns:
        selected = {find_column(table, name, "a feature"): None for name in _names(options.columns, names)}
        known = set(features)
        for i in selected:
            if i not in known:
                assert i is not None
                problem = f"the column {names[i]!r} cannot be a feature: it has another role, or is dropped"
                raise DataError(table.path, None, problem)
        if not selected:
            raise DataError(
                table.path, None, "--columns names no column; write --columns A,B, or leave it out"
            )
        features = [i for i in features if i in selected]
    for name in _names(options.categorical, names):
        find_column(table, name, "categorical")
    for i in features:
        if names[i] not in table.positions:  # features are found by their names when rows are predicted
            raise DataError(table.path, None, f"several columns are called {names[i]!r}; rename all but one")
    target_index, qid_index = (None if i is None else kept[i] for i in (found.target, found.qid))
    return ColumnRoles(features, target_index, qid_index), numbers


def _names(texts: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of texts such as "a,b"; a text that is a name itself is not divided."""
    whole = {*texts} & {*names}
    return [
        name.strip()
        for text in texts
        for name in ([text] if text in whole else text.split(","))
        if name.strip()
    ]


# ---------------------------------------------------------------- encoders
def _encoder(
    column: RawColumn, options: TableOptions, source: RawSource, formats: NumberFormats, *, categorical: bool
) -> ColumnEncoder | None:
    """Return the encoder of a column; None if it carries no information."""
    name = column.name
    is_date = bool(column.date_readings) and not categorical
    if is_date and options.dates == "drop":
        return None
    if options.dates is None if is_date else column.type_name:
        _refuse_type(column, source)
    if column.missing.any() and options.impute is None:
        _refuse_missing(column, source)
    if column.missing.all():
        return None
    if categorical or (column.is_text and not is_date):
        return _category(column, options)
    encoder = (
        date_encoder(column, options.dates, source) if is_date else NumberEncoder(name, None, formats[name])
    )
    numbers = encoder.numbers(column)
    if numbers is None:
        problem, row = column.problem_as_number()
        remedy = f"correct it, or add --categorical {name} or --drop {name}"
        raise source.error(name, f"it {problem}, while others are; {remedy}", row)
    present = numbers[~np.isnan(numbers)]
    if np.isinf(present).any():
        row = int(np.argmax(np.isinf(numbers)))
        raise source.error(name, "the number is not finite; replace it or leave out the row", row)
    if options.impute is None:
        return encoder
    return replace(
        encoder, fill=float(np.median(present) if options.impute == "median" else np.mean(present))
    )


def _refuse_missing(column: RawColumn, source: RawSource) -> None:
    """Raise for missing cells; the message also names the other columns that have some."""
    count, n = int(column.missing.sum()), len(column)
    others = [c.name for c in source.rows.features if c.missing.any() and c.name != column.name]
    more = f", also some of {abbreviated(others)}" if others else ""
    problem = (
        f"the cell is empty ({count:,} of {n:,} are{more}); add --impute median, --drop {column.name}, or "
        "fill it in"
    )
    raise source.error(column.name, problem, int(np.argmax(column.missing)))


def _refuse_type(column: RawColumn, source: RawSource) -> None:
    """Raise for dates and for types without a meaning as a number."""
    name, date = column.name, next(iter(column.present_texts()), "")
    if column.date_readings:
        problem = (
            f"it holds dates or times, such as {quote(date)}; add --dates days, for days since the first, "
            f"--dates drop, or --drop {name}"
        )
        raise source.error(name, problem, column.row_of(date))
    problem = f"it is {column.type_name}, not a number; encode it, or add --drop {name}"
    raise source.error(name, problem, 0)


def _category(column: RawColumn, options: TableOptions) -> CategoryEncoder | None:
    """Return the encoder of a category, with rare levels together; None if all of them are rare."""
    n = len(column)
    least = options.min_frequency or min(10, math.ceil(n / 100))
    counts = np.bincount(column.codes[~column.missing], minlength=len(column.words))
    present = sorted((word, int(count)) for word, count in zip(column.words, counts, strict=True) if count)
    levels = tuple(word for word, count in present if count >= least)
    rare = tuple(word for word, count in present if count < least)
    if not levels:
        return None
    accepts_missing = options.impute is not None
    missing = accepts_missing and bool(column.missing.any())
    return CategoryEncoder(column.name, levels, rare, missing, accepts_missing)
