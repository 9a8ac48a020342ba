"""Conversion of raw data frames to numbers: `Table`, unscaled, and its target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

LEVELS = 20
"""Categorical columns with more levels than this are left out."""
CLASSES = 30
"""Labels with more levels than this are not treated as classes."""
MISSING = 0.2
"""Columns with a larger share of missing entries are dropped, before rows with missing entries."""
ROWS, COLUMNS = 50_000, 2000
"""Largest number of rows, beyond which rows are sampled, and of columns."""
DATE = r"\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[-/]\d\d?[-/]\d{2,4}|[A-Z][a-z]{2} \d\d? \d{4}"
MARKS = ("?", "", "NA", "<null>", "NaN", "nan", "null", "None")


@dataclass(frozen=True)
class Table:
    """Rows X, unscaled, their labels y, and the task: "classes" or "numbers"."""

    name: str
    X: np.ndarray
    y: np.ndarray
    task: str

    @property
    def n_classes(self) -> int:
        return len(np.unique(self.y)) if self.task == "classes" else 0

    @property
    def counts(self) -> bool:
        """Whether the labels are counts: nonnegative integers, not only 0 and 1."""
        return bool(
            self.task == "numbers"
            and (self.y >= 0).all()
            and (self.y == np.round(self.y)).all()
            and 2 <= self.y.max() <= 1e6
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that does not depend on the order of rows and columns or on the names of classes."""
        if self.task == "classes":
            number = np.unique(self.y, return_inverse=True)[1]
            label_sums = [*np.bincount(number), *np.bincount(number, self.X.sum(axis=1))]
        else:
            label_sums = [self.y.sum()]
        sums = (f"{s:.6g}" for s in np.sort(self.X.sum(axis=0)))
        return (*self.X.shape, *sums, *(f"{t:.6g}" for t in np.sort(label_sums)))


def in_other_units(table: Table, seed: int) -> Table:
    """The table with columns scaled by factors from 1e-6 to 1e6 and shifted far from zero."""
    rng = np.random.default_rng([seed, len(table.y), table.X.shape[1]])
    p = table.X.shape[1]
    units = 10.0 ** rng.uniform(-6, 6, p)
    offsets = np.std(table.X, axis=0) * rng.choice([0.0, 1.0, 1000.0], p)
    return replace(table, name=f"{table.name} in other units", X=(table.X + offsets) * units)


def numeric(column: pd.Series) -> pd.Series:
    """The column as numbers, with NaN for missing entries, if all other entries are numeric."""
    if types.is_bool_dtype(column):
        return column.astype(float)
    if types.is_numeric_dtype(column):
        return column.astype(float).replace([np.inf, -np.inf], np.nan)
    if types.is_datetime64_any_dtype(column):
        return column
    words = column.astype(object).map(lambda v: v.strip() if isinstance(v, str) else v)
    words = words.where(~words.isin(MARKS), None)
    numbers = pd.to_numeric(words, errors="coerce").astype(float)
    return words.astype(object) if (numbers.isna() & words.notna()).any() else numbers


def is_date(column: pd.Series) -> bool:
    if types.is_datetime64_any_dtype(column):
        return True
    words = column.dropna()
    return bool(not is_number(column) and len(words) and words.astype(str).str.match(DATE).all())


def is_number(column: pd.Series) -> bool:
    return bool(types.is_float_dtype(column))


def cleaned(frame: pd.DataFrame) -> pd.DataFrame:
    """Numeric and categorical columns only, without dates and columns with many missing entries."""
    columns = {str(name): numeric(frame.iloc[:, j]) for j, name in enumerate(frame.columns)}
    columns_kept = {
        name: column
        for name, column in columns.items()
        if not is_date(column) and column.isna().mean() <= MISSING
    }
    return pd.DataFrame(columns_kept, index=frame.index)


def encoded(features: pd.DataFrame) -> np.ndarray:
    """Numeric columns unchanged, and categorical columns one-hot encoded."""
    parts = []
    for name in features:
        column = features[name]
        if is_number(column):
            parts.append(column.to_numpy()[:, None])
        elif column.nunique() <= LEVELS:
            words = column.astype(str).to_numpy()
            parts.append((words[:, None] == np.unique(words)).astype(float))
    return np.hstack(parts) if parts else np.empty((len(features), 0))


def table(name: str, frame: pd.DataFrame, target: str, task: str | None = None) -> Table | None:
    """The table of a clean frame with one column as target; None if there is nothing to fit."""
    if target not in frame:
        return None
    complete = frame.dropna()
    return arrays(name, encoded(complete.drop(columns=target)), complete[target], task)


def arrays(name: str, X: np.ndarray, y: Any, task: str | None = None) -> Table | None:
    """The table of X and y, with sampled rows if there are too many."""
    y = pd.Series(np.ravel(y))
    if len(y) < 10 or not 1 <= X.shape[1] <= COLUMNS or y.nunique() < 2:
        return None
    task = task or ("classes" if classes(y) else "numbers")
    if task == "classes" and y.nunique() > CLASSES:
        task = "numbers"
    if task == "numbers" and not types.is_numeric_dtype(y):
        return None
    if len(y) > ROWS:
        drawn = np.sort(np.random.default_rng(0).choice(len(y), ROWS, replace=False))
        X, y = X[drawn], y.iloc[drawn]
    labels = y.to_numpy(dtype=float) if types.is_numeric_dtype(y) else y.astype(str).to_numpy(dtype=str)
    return Table(name, np.ascontiguousarray(X, dtype=np.float64), labels, task)


def classes(y: pd.Series) -> bool:
    """Whether an undocumented column holds classes: words, or a few integers with many rows each."""
    levels = y.nunique()
    if not types.is_numeric_dtype(y):
        return bool(2 <= levels <= min(CLASSES, len(y) / 2))
    return bool(2 <= levels <= min(CLASSES, len(y) / 5) and (y == np.round(y)).all())


def all_of(name: str, frame: pd.DataFrame, target: str | None = None) -> Iterator[Table | None]:
    """The tables of a frame: for the given target or the last numeric column, and for each class column.

    Integer columns are classes only if they have two values: others may have any meaning.
    """
    frame = cleaned(frame)
    numbers = [c for c in frame if is_number(frame[c]) and frame[c].nunique() > 2]
    target = target if target in frame else numbers[-1] if numbers else None
    if target is not None:
        yield table(name, frame, target)
    for column in frame:
        values = frame[column]
        is_class = values.nunique() == 2 if is_number(values) else classes(values.dropna())
        if column != target and is_class:
            yield table(f"{name}:{column}", frame, column, "classes")
