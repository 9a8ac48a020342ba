"""The confusion matrix of the chunks that a tagger marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from riskmin.core import NDArray
from riskmin.core.plots import new_axes
from riskmin.metrics import chunk_confusion

Normalize = Literal["true", "pred"] | None
"""What the numbers of a row or column are divided by."""


class ChunkConfusionDisplay:
    """How many chunks of each type are predicted as which type, or not found at all.

    Parameters
    ----------
    confusion_matrix : (k + 1, k + 1) array
        As `riskmin.metrics.chunk_confusion` returns it: true types in rows, predicted ones in columns, and
        chunks without a counterpart in the last row and column.
    display_labels : sequence of str
        The k types.

    Attributes
    ----------
    ax_, figure_, im_ : matplotlib objects
        Set by `plot`.

    Examples
    --------
    >>> from riskmin import ChunkConfusionDisplay
    >>> y_true, y_pred = [["B-NP", "O", "B-VP", "O"]], [["B-NP", "O", "B-NP", "B-VP"]]
    >>> display = ChunkConfusionDisplay.from_predictions(y_true, y_pred, plot=False)
    >>> display.most_confused(1)
    [('VP', 'NP', 1)]
    """

    NONE = "none"
    """The label of chunks without a counterpart."""

    def __init__(self, confusion_matrix: Any, display_labels: Sequence[str]) -> None:
        self.confusion_matrix: NDArray = np.asarray(confusion_matrix)
        self.display_labels = [str(label) for label in display_labels]
        size = len(self.display_labels) + 1
        if self.confusion_matrix.shape != (size, size):
            raise ValueError(
                f"a matrix of shape {self.confusion_matrix.shape} for {size - 1} types: give one row and one "
                "column per type, and one for chunks without a counterpart"
            )

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, normalize: Normalize = None, ax: Any = None, plot: bool = True
    ) -> ChunkConfusionDisplay:
        """Predict the labels of sequences by a fitted tagger.

        Parameters
        ----------
        estimator : fitted `ChainTagger`
        X : list of sequences
        y : list of sequences of labels
            The true labels, such as "B-NP", "I-NP" and "O".
        normalize : {"true", "pred"} or None
            Draw shares of the true chunks, of the predicted ones, or numbers.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        return cls.from_predictions(y, estimator.predict(X), normalize=normalize, ax=ax, plot=plot)

    @classmethod
    def from_predictions(
        cls, y_true: Any, y_pred: Any, *, normalize: Normalize = None, ax: Any = None, plot: bool = True
    ) -> ChunkConfusionDisplay:
        """Compare given labels.

        Parameters
        ----------
        y_true, y_pred : list of sequences of labels
            Such as "B-NP", "I-NP" and "O".
        normalize : {"true", "pred"} or None
            Draw shares of the true chunks, of the predicted ones, or numbers.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        types, table = chunk_confusion(y_true, y_pred)
        display = cls(table, [kind or "-" for kind in types])
        return display.plot(normalize=normalize, ax=ax) if plot else display

    def most_confused(self, n: int = 10) -> list[tuple[str, str, int]]:
        """Return the n most frequent errors: the true type, the predicted type, and their number.

        A type is "none" where a chunk was missed, or predicted where there is none.
        """
        names = [*self.display_labels, self.NONE]
        errors = self.confusion_matrix * ~np.eye(len(names), dtype=bool)
        largest = np.argsort(-errors, axis=None, kind="stable")[:n].tolist()
        pairs = [divmod(j, len(names)) for j in largest]
        return [(names[t], names[p], int(errors[t, p])) for t, p in pairs if errors[t, p] > 0]

    def plot(self, *, normalize: Normalize = None, ax: Any = None) -> ChunkConfusionDisplay:
        """Draw the matrix as an image with the numbers in its cells.

        Parameters
        ----------
        normalize : {"true", "pred"} or None
            Draw shares of the true chunks, of the predicted ones, or numbers.
        ax : matplotlib axes, optional
            By default those of a new figure.
        """
        if normalize not in (None, "true", "pred"):
            raise ValueError(f"normalize={normalize!r}, but it must be 'true', 'pred' or None")
        (ax,) = new_axes() if ax is None else (ax,)
        names, shown = [*self.display_labels, self.NONE], self.confusion_matrix.astype(float)
        if normalize is not None:
            totals = shown.sum(axis=1 if normalize == "true" else 0, keepdims=True)
            shown = shown / np.maximum(totals, 1.0)  # a type without chunks has shares of zero
        self.im_ = ax.imshow(shown, cmap="Blues")
        for (t, p), value in np.ndenumerate(shown):
            if value > 0:
                color = "white" if value > shown.max() / 2 else "black"
                text = f"{value:.2f}" if normalize else f"{int(value):,}"
                ax.text(p, t, text, ha="center", va="center", color=color)
        ax.set_xticks(range(len(names)), names, rotation=45, ha="right")
        ax.set_yticks(range(len(names)), names)
        ax.set(xlabel="predicted chunk", ylabel="true chunk", title="Confusion of chunks")
        self.ax_, self.figure_ = ax, ax.figure
        return self
