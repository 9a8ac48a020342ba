"""How well models of many classes do: all in all, and class by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from riskmin.cli.common import as_label, columns
from riskmin.cli.measures import loss_scores, mean_loss
from riskmin.types import NDArray

MOST_LINES, FEW = 30, 10
"""Tables of up to so many classes are printed whole; of others, the few classes that come out worst."""

_SHARES = ("precision", "recall", "F1")


class Names:
    """Names of weights, of a column and a class each, in the order in which they lie in w."""

    def __init__(self, columns: Sequence[str] | None, classes: NDArray) -> None:
        self.columns, self.classes = columns, [as_label(label) for label in classes.tolist()]

    def __getitem__(self, at: int) -> str:
        j, k = divmod(at, len(self.classes))
        column = f"column {j}" if self.columns is None else self.columns[j]
        return f"{column}, {self.classes[k]}"


def measures(model: Any, X: Any, y: Any, codes: NDArray) -> dict[str, Any]:
    """Measures of all classes together, and of each that the rows hold or the model predicts."""
    from sklearn import metrics

    said = model.predict(X)
    found = {
        "accuracy": metrics.accuracy_score(y, said),
        "balanced accuracy": metrics.balanced_accuracy_score(y, said),
        "macro F1": metrics.f1_score(y, said, average="macro", zero_division=0.0),
        "mean loss": mean_loss(model, loss_scores(model, X), codes),
    }
    labels = np.union1d(y, said)
    each = metrics.precision_recall_fscore_support(y, said, labels=labels, zero_division=0.0)
    return {name: float(value) for name, value in found.items()} | {
        "classes": {
            as_label(label): dict(zip(_SHARES, map(float, row[:-1]), strict=True)) | {"rows": int(row[-1])}
            for label, row in zip(labels.tolist(), np.transpose(each), strict=True)
        }
    }


def tree_measures(model: Any, X: Any, y: Any, codes: NDArray) -> dict[str, Any]:
    """The same of labels in a hierarchy, and how far apart in it they are."""
    return {"tree distance": float(model.tree_cost(X, y))} | measures(model, X, y, codes)


def say(classes: dict[str, dict[str, Any]]) -> None:
    """Print a line a class."""
    shown = list(classes.items())
    if len(shown) > MOST_LINES:
        shown = sorted(shown, key=lambda item: item[1]["F1"])[:FEW]
        click.echo(f"  of {len(classes):,} classes, the {FEW} with the least F1:")
    body = [[name, *(f"{one[share]:.4f}" for share in _SHARES), f"{one['rows']:,}"] for name, one in shown]
    columns([["class", *_SHARES, "rows"], *body])
