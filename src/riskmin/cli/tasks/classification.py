"""Metrics of multiclass models: overall and per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from riskmin.cli.output import print_table
from riskmin.cli.tasks.measures import mean_loss
from riskmin.core import NDArray
from riskmin.core.messages import format_label
from riskmin.data.raw_tables.preparation import PreparedRows

PER_CLASS_METRICS = ("precision", "recall", "F1")


class WeightNames:
    """Names of the weights, "column, class", in the order of w (columns outer, classes inner)."""

    def __init__(self, columns: Sequence[str] | None, classes: NDArray) -> None:
        self.columns, self.classes = columns, [format_label(label) for label in classes.tolist()]

    def __getitem__(self, index: int) -> str:
        j, k = divmod(index, len(self.classes))
        column = f"column {j}" if self.columns is None else self.columns[j]
        return f"{column}, {self.classes[k]}"


def class_metrics(model: Any, rows: PreparedRows) -> dict[str, Any]:
    """Metrics over all classes, and for each class that the rows hold or the model predicts."""
    from sklearn import metrics

    y, y_pred, weights = rows.y, model.predict(rows.X), {"sample_weight": rows.weight}
    overall = {
        "accuracy": metrics.accuracy_score(y, y_pred, **weights),
        "balanced accuracy": metrics.balanced_accuracy_score(y, y_pred, **weights),
        "macro F1": metrics.f1_score(y, y_pred, average="macro", zero_division=0.0, **weights),
        "mean loss": mean_loss(model, rows.X, y, weight=rows.weight),
    }
    labels = np.union1d(y, y_pred)
    # arrays of precision, recall and F1, with one entry per label, and the number of rows of each
    each = list(
        metrics.precision_recall_fscore_support(y, y_pred, labels=labels, zero_division=0.0, **weights)
    )
    each[3] = np.array([np.count_nonzero(y == label) for label in labels])
    return {name: float(value) for name, value in overall.items()} | {
        "classes": {
            format_label(label): dict(zip(PER_CLASS_METRICS, map(float, row[:-1]), strict=True))
            | {"rows": int(row[-1])}
            for label, row in zip(labels.tolist(), np.transpose(each), strict=True)
        }
    }


def hierarchy_metrics(model: Any, rows: PreparedRows) -> dict[str, Any]:
    """The metrics of `class_metrics`, and the mean tree distance between true and predicted labels."""
    distance = float(model.tree_cost(rows.X, rows.y, rows.weight))
    return {"tree distance": distance} | class_metrics(model, rows)


def print_class_table(classes: dict[str, dict[str, Any]]) -> None:
    """Print one line per class."""
    shown = list(classes.items())
    # of many classes, only the n_worst with the lowest F1 are printed
    n_worst = 10
    if len(shown) > 30:
        shown = sorted(shown, key=lambda item: item[1]["F1"])[:n_worst]
        click.echo(f"  of {len(classes):,} classes, the {n_worst} with the lowest F1:")
    body = [
        [name, *(f"{row[metric]:.4f}" for metric in PER_CLASS_METRICS), f"{row['rows']:,}"]
        for name, row in shown
    ]
    print_table([["class", *PER_CLASS_METRICS, "rows"], *body])
