"""How the columns of a table are written: recognized by their cells, or asked for where two readings fit."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from riskmin.data.base import quote
from riskmin.data.raw_tables.columns import RawColumn
from riskmin.data.raw_tables.encoders import DateEncoder
from riskmin.data.raw_tables.reading import RawSource
from riskmin.data.raw_tables.written import PLAIN, NumberFormat


class NumberFormats(dict[str, NumberFormat]):
    """The formats of the numbers of each feature; text has the plain one.

    Parameters
    ----------
    source : RawSource
    given : NumberFormat or None
        The format of all columns whose cells fit it; None to recognize each.
    categorical : collection of str
        Columns that are no numbers.
    """

    def __init__(self, source: RawSource, given: NumberFormat | None, categorical: Collection[str]) -> None:
        self.source, self.given = source, given
        self.notes: list[str] = []
        """A note for each column whose format was recognized."""
        features = [column for column in source.rows.features if column.name not in categorical]
        super().__init__({column.name: PLAIN for column in source.rows.features})
        self |= {column.name: self._of(column) for column in features}
        target = source.rows.target
        known = target is not None and source.rows.y is not None and not target.missing.any()
        self.labels = self._of(target) if target is not None and known else PLAIN
        """The format of the labels."""
        if given is None:
            for other in {*self.values(), self.labels} - {PLAIN}:
                self._ask_where_another_fits(features, other)

    def _of(self, column: RawColumn) -> NumberFormat:
        """Return the format of a column; raise if there are two readings, or the given one does not fit."""
        if (
            self.given is not None
            and column.texts is not None
            and column.read_by(self.given.number) is not None
        ):
            return self.given
        if column.numbers is not None or not column.number_readings or column.date_readings:
            return PLAIN
        formats, word = list(column.number_readings), _example(column)
        row = column.row_of(word)
        values = [f"{one.number(word):.12g}" for one in formats]
        if len(formats) > 1 or self.given is not None:
            problem = f"{quote(word)} may be {' or '.join(values)}; say which by {_options(formats)}"
            raise self.source.error(column.name, problem, row)
        self.notes.append(
            f"column {quote(column.name)}: {quote(word)} is read as {values[0]}; if it is not, give "
            "--decimal or --thousands"
        )
        return formats[0]

    def _ask_where_another_fits(self, features: list[RawColumn], other: NumberFormat) -> None:
        """Raise if the format of one column gives other numbers in a column of plain numbers."""
        for column in features:
            if self[column.name] != PLAIN or column.numbers is None or column.texts is None:
                continue
            values = column.read_by(other.number)
            if values is None or np.array_equal(values, column.numbers, equal_nan=True):
                continue
            row = int(np.argmax((values != column.numbers) & ~column.missing))
            problem = (
                f"the cell may be {column.numbers[row]:.12g}, or {values[row]:.12g} as in other columns; say "
                f"which by {_options([PLAIN, other])}"
            )
            raise self.source.error(column.name, problem, row)


def _example(column: RawColumn) -> str:
    """Return the first text that its readings read differently, or else one with a separator."""
    words, formats = column.present_texts(), list(column.number_readings)
    differing = (word for word in words if len({one.number(word) for one in formats}) > 1)
    marked = (word for word in words if not word.lstrip("+-").isdigit())
    return next(differing, None) or next(marked, words[0])


def _options(formats: list[NumberFormat]) -> str:
    """Return the options that select formats, as they are written on the command line."""
    return ", or ".join(
        f"--decimal '{one.decimal}'" + (f" --thousands {one.thousands!r}" if one.thousands else "")
        for one in formats
    )


def date_encoder(column: RawColumn, dates: str | None, source: RawSource) -> DateEncoder:
    """Return the encoder of dates; raise if the day or the month may be first, and no option names it."""
    readings = column.date_readings
    orders = [dates] if dates in readings else list(readings)
    order = orders[0]
    if len(orders) > 1 and not np.array_equal(readings[order], readings[orders[1]], equal_nan=True):
        row = int(np.argmax(readings[order] != readings[orders[1]]))
        problem = "the date may have the day or the month first; say which by --dates dmy or --dates mdy"
        raise source.error(column.name, problem, row)
    return DateEncoder(column.name, order=order, origin=float(np.floor(np.nanmin(readings[order]))))
