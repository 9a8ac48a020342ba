"""Numbers and dates as people write them: 1,234.50, 1.234,50, 1 234,5, 31.12.2024, 12/31/24 5:30 pm."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any

from riskmin.data.formats.text_table import as_number

_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'"})
"""Spaces and the apostrophe of typesetting, which separate thousands like the plain ones."""


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are written.

    Parameters
    ----------
    decimal : {".", ","}
    thousands : {"", ",", ".", " ", "'"}
        What separates groups of digits; a group has three, or two before the last one, as in India.

    Examples
    --------
    >>> NumberFormat(",", ".").number("1.234,50"), NumberFormat(thousands=",").number("12,34,567")
    (1234.5, 1234567.0)
    >>> NumberFormat(thousands=",").number("3,5") is None
    True
    """

    decimal: str = "."
    thousands: str = ""

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise ValueError(f"decimal={self.decimal!r}: give '.' or ','")
        if self.thousands not in ("", ",", ".", " ", "'") or self.thousands == self.decimal:
            raise ValueError(
                f"thousands={self.thousands!r}: give ',', '.', ' ' or \"'\", but not the decimal separator"
            )

    def number(self, word: str) -> float | None:
        """Return the number of a text, or None."""
        whole, _, fraction = word.translate(_SPACES).partition(self.decimal)
        if self.thousands and self.thousands in whole:
            mark = re.escape(self.thousands)
            if not re.fullmatch(rf"[+-]?[1-9]\d{{0,2}}(?:{mark}\d{{2,3}})*{mark}\d{{3}}", whole):
                return None
            whole = whole.replace(self.thousands, "")
        if re.search(r"[., ']", whole + fraction):  # a separator of another format
            return None
        return as_number(f"{whole}.{fraction}" if fraction else whole)


FORMATS = tuple(
    NumberFormat(decimal, thousands)
    for decimal in ".,"
    for thousands in ("", ",", ".", " ", "'")
    if thousands != decimal
)
"""All formats; the first one is plain."""
PLAIN = FORMATS[0]


def looks_like_number(word: str) -> bool:
    """Whether a text is a number in some format."""
    return any(one.number(word) is not None for one in FORMATS)


# ---------------------------------------------------------------- dates
_TIME = r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?\s*([ap]m)?\s*(z|[+-]\d{2}:?\d{2})?"
_PATTERNS = {
    "ymd": r"(?P<y>\d{4})([-/.])(?P<m>\d\d?)\2(?P<d>\d\d?)(?:[t ](?P<time>.+))?",
    "dmy": r"(?P<d>\d\d?)([-/.])(?P<m>\d\d?)\2(?P<y>\d{4}|\d\d)(?:[t ](?P<time>.+))?",
    # no country writes the month first with points
    "mdy": r"(?P<m>\d\d?)([-/])(?P<d>\d\d?)\2(?P<y>\d{4}|\d\d)(?:[t ](?P<time>.+))?",
    "time": r"(?P<time>\d\d?:.+)",
}
DATE_ORDERS = tuple(_PATTERNS)
"""The orders of year, month and day, and times of the day without a date."""
_EPOCH = dt.date(1970, 1, 1).toordinal()


def days_of(word: str, order: str) -> float | None:
    """Return the days since 1970-01-01 of a date, or the fraction of a day of a time; None if it is none.

    Examples
    --------
    >>> days_of("2024-12-31", "ymd"), days_of("12/31/24 6:00 pm", "mdy"), days_of("31.12.2024", "mdy")
    (20088.0, 20088.75, None)
    """
    found = re.fullmatch(_PATTERNS[order], word, re.IGNORECASE)
    if found is None:
        return None
    parts: dict[str, Any] = found.groupdict()
    try:
        days = 0.0 if parts["time"] is None else _seconds(parts["time"]) / 86400
        if order != "time":
            days += dt.date(_year(parts["y"]), int(parts["m"]), int(parts["d"])).toordinal() - _EPOCH
    except ValueError:  # there is no such day, or no such time
        return None
    return days


def _year(text: str) -> int:
    """Return the year; two digits from 69 on are of the last century, as in POSIX."""
    return int(text) + (0 if len(text) == 4 else 1900 if int(text) >= 69 else 2000)


def _seconds(text: str) -> float:
    """Return the seconds of a time since midnight, in UTC if it has an offset."""
    found = re.fullmatch(_TIME, text, re.IGNORECASE)
    if found is None:
        raise ValueError("it is no time")
    hours, minutes, seconds, half, offset = found.groups()
    hour = int(hours)
    if half is not None and not 1 <= hour <= 12:
        raise ValueError("hours of half a day are 1 to 12")
    if half is not None:
        hour = hour % 12 + 12 * (half.lower() == "pm")
    dt.time(hour, int(minutes), int(float(seconds or 0)))  # raises if there is no such time
    shift = 0
    if offset is not None and offset.lower() != "z":
        shift = (60 * int(offset[1:3]) + int(offset[-2:])) * (-1 if offset[0] == "-" else 1)
    return 3600 * hour + 60 * (int(minutes) - shift) + float(seconds or 0)
