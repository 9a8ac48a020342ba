"""Encoders of single columns: numbers with a value for missing cells, categories as indicators (one-hot)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import quote
from riskmin.data.raw_tables.columns import RawColumn, level_of
from riskmin.data.raw_tables.reading import RawSource
from riskmin.data.raw_tables.written import DATE_ORDERS, PLAIN, NumberFormat, days_of

RARE, MISSING_LEVEL = "(rare)", "(missing)"
"""Names of the indicators of rare levels and of missing cells."""


class Encoded(NamedTuple):
    """Entries of the columns of X that one column of a table gives."""

    values: NDArray[np.float64]
    """One number per row; those of a category are 1, or 0 for an unseen level."""
    positions: NDArray[np.intp] | None
    """For a category, which of its columns of X has the entry; None for a number."""
    unseen: tuple[int, str] | None = None
    """The number of rows whose level did not occur in training, and one of these levels."""


@dataclass(frozen=True)
class NumberEncoder:
    """A column of numbers.

    Parameters
    ----------
    name : str
    fill : float or None
        The number for missing cells; None if they are refused.
    written : NumberFormat
        How numbers are written in files of text.
    """

    kind: ClassVar[str] = "number"

    name: str
    fill: float | None = None
    written: NumberFormat = PLAIN

    @property
    def feature_names(self) -> list[str]:
        """The names of its columns of X."""
        return [self.name]

    def encode(self, column: RawColumn, source: RawSource) -> Encoded:
        """Return the entries; raise for text, infinite numbers, and missing cells without `fill`."""
        numbers = self.numbers(column)
        if numbers is None:
            problem, row = self.problem(column)
            raise source.error(self.name, f"it {problem}, but it was numeric in training; correct it", row)
        if np.isinf(numbers).any():
            row = int(np.argmax(np.isinf(numbers)))
            raise source.error(self.name, "the number is not finite; replace it or leave out the row", row)
        if not np.isnan(numbers).any():
            return Encoded(numbers, None)
        if self.fill is None:
            row = int(np.argmax(np.isnan(numbers)))
            problem = "the cell is empty, which the model does not take; fill it in, or fit with --impute"
            raise source.error(self.name, problem, row)
        return Encoded(np.where(np.isnan(numbers), self.fill, numbers), None)

    def numbers(self, column: RawColumn) -> NDArray[np.float64] | None:
        """Return the cells as numbers, NaN where missing; None if some are none."""
        is_plain = self.written == PLAIN or column.texts is None
        return column.numbers if is_plain else column.read_by(self.written.number)

    def problem(self, column: RawColumn) -> tuple[str, int]:
        """Describe the first cell that is no number, with its row."""
        if self.written == PLAIN or column.type_name:
            return column.problem_as_number()
        word = next(word for word in column.present_texts() if self.written.number(word) is None)
        like = 1234.5
        example = f"{like:,}".translate({ord(","): self.written.thousands, ord("."): self.written.decimal})
        return f"holds {quote(word)}, which is not written like {quote(example)}", column.row_of(word)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {"kind": self.kind, "name": self.name, "fill": self.fill, **asdict(self.written)}


@dataclass(frozen=True)
class DateEncoder(NumberEncoder):
    """A column of dates or times, as the number of days since the first date of training.

    Parameters
    ----------
    order : {"ymd", "dmy", "mdy", "time"}
        The order of year, month and day; "time" for times of the day, whose unit is a day.
    origin : float
        The days from 1970-01-01 to the date that is 0.
    """

    kind: ClassVar[str] = "date"

    order: str = "ymd"
    origin: float = 0.0

    def numbers(self, column: RawColumn) -> NDArray[np.float64] | None:
        """Return the days since the first date of training."""
        if column.missing.all():
            return np.full(len(column), np.nan)
        days = column.date_readings.get(self.order)
        return None if days is None else days - self.origin

    def problem(self, column: RawColumn) -> tuple[str, int]:
        """Describe the first cell that is no date, with its row."""
        words = column.present_texts()
        word = next((word for word in words if days_of(word, self.order) is None), words[0])
        return f"holds {quote(word)}, which is no date of the form {self.order}", column.row_of(word)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return super().to_dict() | {"order": self.order, "origin": self.origin}


@dataclass(frozen=True)
class CategoryEncoder:
    """A column of categories, with one indicator (0 or 1) per level.

    Parameters
    ----------
    name : str
    levels : tuple of str
        The levels that have an indicator of their own.
    rare : tuple of str
        The levels that share one indicator. Levels that did not occur in training have it, too, if it
        exists; otherwise all of their indicators are 0.
    missing : bool
        Whether missing cells have an indicator.
    accepts_missing : bool
        Whether missing cells without an indicator count as an unseen level; otherwise they are refused.
    """

    kind: ClassVar[str] = "category"

    name: str
    levels: tuple[str, ...]
    rare: tuple[str, ...] = ()
    missing: bool = False
    accepts_missing: bool = False

    @property
    def feature_names(self) -> list[str]:
        """The names of its columns of X."""
        more = [RARE] * bool(self.rare) + [MISSING_LEVEL] * self.missing
        return [f"{self.name}={level}" for level in (*self.levels, *more)]

    def encode(self, column: RawColumn, source: RawSource) -> Encoded:
        """Return the entries; raise for missing cells if there were none in training."""
        if column.type_name:
            problem = f"it is {column.type_name}, but it was text in training; correct it"
            raise source.error(self.name, problem, 0)
        if column.missing.any() and not (self.missing or self.accepts_missing):
            row = int(np.argmax(column.missing))
            problem = "the cell is empty, and none was in training; fill it in, or fit with --impute"
            raise source.error(self.name, problem, row)
        n_levels = len(self.levels)
        known = {level_of(level): k for k, level in enumerate(self.levels)}
        known |= dict.fromkeys(map(level_of, self.rare), n_levels)
        # -1 for a text that did not occur in training; the last entry is for missing cells, code -1
        of_missing = n_levels + bool(self.rare) if self.missing else -1
        positions = np.array([*(known.get(word, -1) for word in column.words), of_missing], np.intp)
        positions = positions[column.codes]
        unseen = positions < 0
        found = None
        if unseen.any():
            code = int(column.codes[np.argmax(unseen)])
            found = int(unseen.sum()), column.words[code] if code >= 0 else ""
            positions[unseen] = n_levels if self.rare else 0
        return Encoded(np.where(unseen & (not self.rare), 0.0, 1.0), positions, found)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {
            "kind": self.kind,
            "name": self.name,
            "levels": list(self.levels),
            "rare": list(self.rare),
            "missing": self.missing,
            "accepts_missing": self.accepts_missing,
        }


ColumnEncoder: TypeAlias = NumberEncoder | CategoryEncoder


def number_format(record: dict[str, Any]) -> NumberFormat:
    """Return the format of numbers in a record; plain numbers are the default."""
    return NumberFormat(str(record.get("decimal", ".")), str(record.get("thousands", "")))


def encoder_from_dict(record: dict[str, Any]) -> ColumnEncoder:
    """Return the encoder that `to_dict` wrote; raise a ValueError if the record is not sound."""
    name, kind = record["name"], record["kind"]
    if type(name) is not str:
        raise ValueError("a column of its table has no name")
    if kind in (NumberEncoder.kind, DateEncoder.kind):
        fill, origin, order = record["fill"], record.get("origin", 0.0), record.get("order", "ymd")
        if any(type(value) not in (int, float) or not np.isfinite(value) for value in (fill or 0.0, origin)):
            raise ValueError(f"the value for missing cells of {name!r} is no finite number")
        fill = None if fill is None else float(fill)
        if kind == NumberEncoder.kind:
            return NumberEncoder(name, fill, number_format(record))
        if order not in DATE_ORDERS:
            raise ValueError(f"the dates of {name!r} are of an unknown form, {order!r}")
        return DateEncoder(name, fill, order=order, origin=float(origin))
    if kind != CategoryEncoder.kind:
        raise ValueError(f"the column {name!r} of its table is of an unknown kind, {kind!r}")
    levels, rare, missing, accepts = (record[key] for key in ("levels", "rare", "missing", "accepts_missing"))
    if (
        type(missing) is not bool
        or type(accepts) is not bool
        or any(type(level) is not str for level in [*levels, *rare])
    ):
        raise ValueError(f"the levels of the column {name!r} are not all strings")
    if len({*levels, *rare}) < len(levels) + len(rare):
        raise ValueError(f"the levels of the column {name!r} are not each named once")
    return CategoryEncoder(name, tuple(levels), tuple(rare), missing, accepts)
