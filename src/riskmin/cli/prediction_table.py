"""Predictions as CSV: columns of the data that identify the rows, the prediction, scores, probabilities."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from riskmin.cli.inputs import ColumnRef
from riskmin.cli.tables import TABLE_FORMATS
from riskmin.cli.tasks.base import TASK_BEHAVIORS
from riskmin.core.messages import format_label
from riskmin.data import format_of
from riskmin.data.formats.text_table import ColumnRoles
from riskmin.data.raw_tables.preparation import find_column
from riskmin.data.raw_tables.reading import open_raw


class NamedColumn(NamedTuple):
    """A column of the output: its name, and one text per row."""

    name: str
    cells: Sequence[str]


def id_columns(path: Path, names: Sequence[ColumnRef], n_rows: int) -> list[NamedColumn]:
    """Return columns of a table as they are written; empty where a cell is missing."""
    if not names:
        return []
    if format_of(path) not in TABLE_FORMATS:
        raise ValueError(f"--id names a column of a table, but {path} is {format_of(path)}: leave it out")
    table = open_raw(path, format_of(path))
    places = [find_column(table, name, "the ids") for name in names]
    roles = ColumnRoles([i for i in places if i is not None], None, None)
    columns = []
    for column in table.read(roles, {}, require_labels=False).features:
        codes, words = (column.codes, column.words) if column.texts is None else column.texts
        if len(codes) != n_rows:
            raise ValueError(f"{path} changed while it was read: it had {n_rows:,} rows, now {len(codes):,}")
        columns.append(NamedColumn(column.name, np.array([*words, ""], object)[codes].tolist()))
    return columns


def prediction_columns(model: Any, X: Any, *, scores: bool, proba: bool) -> list[NamedColumn]:
    """Return the predictions of rows, and with the flags their scores and probabilities, one per class."""
    task = TASK_BEHAVIORS[model.task]
    predicted = [line.split("\t") for line in task.predictions(model, X)]
    columns = _named("prediction", zip(*predicted, strict=True), range(len(predicted[0]) if predicted else 1))
    for given, name, values in (
        (scores, "score", task.scores),
        (proba, "probability", lambda model, X: model.predict_proba(X)),
    ):
        if given:
            numbers = values(model, X)
            texts = [map(repr, column) for column in numbers.reshape(len(numbers), -1).T.tolist()]
            classes = vars(model).get("classes_", range(len(texts)))
            columns += _named(name, texts, [format_label(label) for label in list(classes)])
    return columns


def _named(name: str, columns: Any, labels: Sequence[Any]) -> list[NamedColumn]:
    """Return one column by its name, or several by the name and their labels."""
    texts = [list(column) for column in columns]
    names = [name] if len(texts) == 1 else [f"{name} {label}" for label in labels]
    return [NamedColumn(*pair) for pair in zip(names, texts, strict=True)]


def csv_lines(columns: Sequence[NamedColumn], *, header: bool) -> str:
    """Return the rows of columns as CSV, with a line of their names first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow([column.name for column in columns])
    writer.writerows(zip(*(column.cells for column in columns), strict=True))
    return text.getvalue()
