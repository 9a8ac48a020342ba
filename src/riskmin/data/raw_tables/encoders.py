"""Encoders of single columns: numbers with a value for missing cells, categories as indicators (one-hot)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from riskmin.data.raw_tables.columns import RawColumn, level_of
from riskmin.data.raw_tables.reading import RawSource

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
    """

    kind: ClassVar[str] = "number"

    name: str
    fill: float | None = None

    @property
    def feature_names(self) -> list[str]:
        """The names of its columns of X."""
        return [self.name]

    def encode(self, column: RawColumn, source: RawSource) -> Encoded:
        """Return the entries; raise for text, infinite numbers, and missing cells without `fill`."""
        if column.numbers is None:
            problem, row = column.problem_as_number()
            raise source.error(self.name, f"it {problem}, but it was numeric in training; correct it", row)
        numbers = column.numbers
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

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {"kind": self.kind, "name": self.name, "fill": self.fill}


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


def encoder_from_dict(record: dict[str, Any]) -> ColumnEncoder:
    """Return the encoder that `to_dict` wrote; raise a ValueError if the record is not sound."""
    name, kind = record["name"], record["kind"]
    if type(name) is not str:
        raise ValueError("a column of its table has no name")
    if kind == NumberEncoder.kind:
        fill = record["fill"]
        if fill is not None and not (type(fill) in (int, float) and np.isfinite(fill)):
            raise ValueError(f"the value for missing cells of {name!r} is no finite number")
        return NumberEncoder(name, None if fill is None else float(fill))
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
