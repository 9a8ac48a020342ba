"""Columns of a table before any preparation: numbers, or text by codes, with missing cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import quote
from riskmin.data.formats.text_table import as_number
from riskmin.data.raw_tables.written import DATE_ORDERS, FORMATS, NumberFormat, days_of, looks_like_number

MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "NaN", "nan", "-nan", "-NaN", "NULL", "null", "None", "<NA>", "#N/A", "#NA", "?"]
)
"""Texts of a feature that count as missing: those of pandas, and the "?" of the UCI repository."""

_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_BOOLEANS = {"true": "True", "TRUE": "True", "false": "False", "FALSE": "False"}


def level_of(word: str) -> str:
    """Return the level of a text, which does not depend on the program that wrote it.

    pandas writes 2020 as 2020.0 if a cell of the column is missing, and R writes True as TRUE. Other numbers
    are levels as they are: 1.10 may be a version, and 007 a code.

    Examples
    --------
    >>> [level_of(word) for word in ("2020.0", "007", "1.10", "TRUE", "Rome")]
    ['2020', '007', '1.10', 'True', 'Rome']
    """
    whole = _WHOLE.fullmatch(word)
    return _BOOLEANS.get(word, word) if whole is None else whole[1]


def spellings(level: str) -> list[str]:
    """Return the texts of a level that programs write, itself included.

    Examples
    --------
    >>> spellings("2020"), spellings("True"), spellings("Rome")
    (['2020', '2020.0'], ['True', 'true', 'TRUE'], ['Rome'])
    """
    more = [word for word, other in _BOOLEANS.items() if other == level]
    return [level, *more, *([f"{level}.0"] if level_of(f"{level}.0") == level else [])]


def _of_boolean(word: str) -> float:
    return float(level_of(word) == "True")


@dataclass(frozen=True)
class RawColumn:
    """A column of a table.

    Parameters
    ----------
    name : str
    texts : (codes, words), or None
        For each row the index of its text among the distinct ones, -1 for a missing cell; None for a column
        of numbers, whose texts are made where they are needed.
    numbers : (n,) array of float, or None
        The cells as numbers, NaN where missing; None if some are not numbers.
    type_name : str
        The type in a file that declares one and that holds neither numbers nor text.
    """

    name: str
    texts: tuple[NDArray[np.intp], list[str]] | None
    numbers: NDArray[np.float64] | None = None
    type_name: str = ""

    @classmethod
    def of_text(cls, name: str, codes: NDArray[np.intp], words: Sequence[str]) -> RawColumn:
        """Return the column of texts; it has numbers if all of its texts are, except the missing ones.

        A column of True and False has the numbers 1 and 0, as in Parquet.

        Examples
        --------
        >>> RawColumn.of_text("age", np.array([0, 1, 0]), ["31", "NA"]).numbers
        array([31., nan, 31.])
        """
        is_missing = np.array([word in MISSING for word in words], dtype=bool)
        column = cls(name, (np.where(is_missing[codes], -1, codes), list(words)))
        pairs = list(zip(words, is_missing.tolist(), strict=True))
        is_boolean = all(missing or level_of(word) in _BOOLEANS.values() for word, missing in pairs)
        to_number = _of_boolean if is_boolean else float
        try:
            values = [np.nan if missing else to_number(word) for word, missing in pairs]
        except ValueError:
            return column
        if any("_" in word for word in words):  # float accepts 1_000, `as_number` does not
            return column
        return replace(column, numbers=np.array(values, np.float64)[codes])

    @classmethod
    def of_numbers(cls, name: str, numbers: NDArray[np.float64]) -> RawColumn:
        """Return the column of numbers, with NaN for missing cells; its texts are those of the numbers.

        Examples
        --------
        >>> RawColumn.of_numbers("floor", np.array([2.0, np.nan, 1.5])).words
        ['1.5', '2']
        """
        return cls(name, None, numbers)

    def __len__(self) -> int:
        return len(self.codes if self.numbers is None else self.numbers)

    @property
    def codes(self) -> NDArray[np.intp]:
        """The code of the text of each row; -1 for a missing cell."""
        return self._coded[0]

    @property
    def words(self) -> list[str]:
        """The texts of the codes: levels, each once."""
        return self._coded[1]

    @cached_property
    def _coded(self) -> tuple[NDArray[np.intp], list[str]]:
        if self.texts is not None:
            codes, words = self.texts
            levels: dict[str, int] = {}
            shared = [levels.setdefault(level_of(word), len(levels)) for word in words]
            return np.array([*shared, -1], np.intp)[codes], list(levels)  # code -1 is the last entry
        assert self.numbers is not None
        present = ~np.isnan(self.numbers)
        values, inverse = np.unique(self.numbers[present], return_inverse=True)
        codes = np.full(len(present), -1, np.intp)
        codes[present] = inverse
        # whole numbers without exponent, as integers are written; + 0.0 turns -0.0 into 0.0
        words = [f"{v + 0.0:.0f}" if v.is_integer() else repr(v) for v in values.tolist()]
        return codes, words

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells are missing."""
        missing: NDArray[np.bool_] = self.codes < 0 if self.numbers is None else np.isnan(self.numbers)
        return missing

    @property
    def is_text(self) -> bool:
        """Whether no text is a number, so that the column holds categories."""
        return self.numbers is None and not self.type_name and self.first_number is None

    @property
    def first_number(self) -> str | None:
        """The first text that is a number, if any."""
        return next((word for word in self.present_texts() if looks_like_number(word)), None)

    @property
    def first_text(self) -> str | None:
        """The first text that is not a number, if any."""
        return next((word for word in self.present_texts() if as_number(word) is None), None)

    def present_texts(self) -> list[str]:
        """Return the texts that occur, as they are written, without the missing ones."""
        codes, words = self._written
        return [words[k] for k in np.unique(codes[codes >= 0]).tolist()]

    @property
    def _written(self) -> tuple[NDArray[np.intp], list[str]]:
        """Codes and texts as they are written; those of numbers are made."""
        return self._coded if self.texts is None else self.texts

    def read_by(self, convert: Callable[[str], float | None]) -> NDArray[np.float64] | None:
        """Return the numbers of all texts, NaN for missing cells; None if one of them has none."""
        codes, words = self._written
        values = np.full(len(words) + 1, np.nan)  # code -1 is the last entry
        for k in np.unique(codes[codes >= 0]).tolist():
            value = convert(words[k])
            if value is None:
                return None
            values[k] = value
        read: NDArray[np.float64] = values[codes]
        return read

    @cached_property
    def number_readings(self) -> dict[NumberFormat, NDArray[np.float64]]:
        """The formats in which all texts are numbers, one for each different reading."""
        found: dict[bytes, tuple[NumberFormat, NDArray[np.float64]]] = {}
        if self.texts is None or self.missing.all():
            return {}
        for one in FORMATS:
            values = self.read_by(one.number)
            if values is not None:
                found.setdefault(values.tobytes(), (one, values))
        return dict(found.values())

    @cached_property
    def date_readings(self) -> dict[str, NDArray[np.float64]]:
        """The orders of year, month and day in which all texts are dates, with the days since 1970."""
        if self.texts is None or self.missing.all() or self.numbers is not None:
            return {}
        read = {order: self.read_by(partial(days_of, order=order)) for order in DATE_ORDERS}
        return {order: values for order, values in read.items() if values is not None}

    def row_of(self, word: str) -> int:
        """Return the first row that holds a text."""
        codes, words = self._written
        return int(np.argmax(codes == words.index(word)))

    def problem_as_number(self) -> tuple[str, int]:
        """Describe why the column is not numeric, with the row; for an error."""
        word = self.first_text
        if word is None:
            return f"is {self.type_name}", 0
        return f"holds {quote(word)}, which is no number", self.row_of(word)


def joined(parts: Sequence[RawColumn]) -> RawColumn:
    """Return one column of the rows of several, whose names are equal.

    Examples
    --------
    >>> one = RawColumn.of_text("city", np.array([0, 1]), ["Rome", "Oslo"])
    >>> other = RawColumn.of_text("city", np.array([0, 0]), ["Oslo"])
    >>> joined([one, other]).codes
    array([0, 1, 1, 1])
    """
    if len(parts) == 1:
        return parts[0]
    type_name = next((part.type_name for part in parts if part.type_name), "")
    all_numbers = [part.numbers for part in parts if part.numbers is not None]
    numbers = np.concatenate(all_numbers) if len(all_numbers) == len(parts) else None
    if numbers is not None and all(part.texts is None for part in parts):
        return RawColumn(parts[0].name, None, numbers)
    words: dict[str, int] = {}
    codes: list[Any] = []
    for part_codes, part_words in (part._written for part in parts):
        shared = np.array([*(words.setdefault(word, len(words)) for word in part_words), -1], np.intp)
        codes.append(shared[part_codes])  # code -1 is the last entry
    return RawColumn(parts[0].name, (np.concatenate(codes), list(words)), numbers, type_name)
