"""Chunk metrics: phrases marked by token labels, counted as in the CoNLL shared tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray

CHUNK_PREFIXES = frozenset("BIOESLU")
"""Prefixes of labels; L and U are synonyms of E and S."""


class ChunkCount(NamedTuple):
    """Numbers of true, predicted and correct chunks; correct ones agree in both ends and in the type."""

    true: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """The fraction of predicted chunks that are correct; 0 if none was predicted."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The fraction of true chunks that were predicted; 0 if there are none."""
        return self.correct / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, 2 correct / (true + predicted)."""
        return 2 * self.correct / (self.true + self.predicted) if self.true + self.predicted else 0.0


def chunks(labels: Iterable[str]) -> list[tuple[int, int, str]]:
    """The chunks marked by the labels of one sequence.

    A chunk of type X begins at B-X, and also at I-X after O, after another type, or at the start; I-X
    continues it, E-X ends it, and S-X is a chunk of one token. O is outside of chunks. This is conlleval's
    interpretation, for IOB1 and BIO alike, even of labels that are not well-formed.

    Parameters
    ----------
    labels : iterable of str
        Such as "B-NP"; the type may be missing.

    Returns
    -------
    list of (start, stop, type)
        The tokens start, ..., stop - 1.

    Examples
    --------
    >>> chunks(["I-NP", "I-NP", "B-NP", "O", "I-VP"])
    [(0, 2, 'NP'), (2, 3, 'NP'), (4, 5, 'VP')]
    """
    result: list[tuple[int, int, str]] = []
    start, kind, token = -1, "", -1  # start < 0: outside of a chunk
    for token, label in enumerate(labels):
        prefix, type_ = _parse_label(label)
        # inside a chunk, I and E (or L) of the same type continue it; any other label ends it
        continues = start >= 0 and prefix in "IEL" and type_ == kind
        if start >= 0 and not continues:
            result.append((start, token, kind))
            start = -1
        if prefix != "O" and not continues:
            start, kind = token, type_
        # E and L end a chunk, S and U are a chunk of one token
        if prefix in "ELSU":
            result.append((start, token + 1, kind))
            start = -1
    # a chunk that lasts until the end of the sequence
    if start >= 0:
        result.append((start, token + 1, kind))
    return result


def chunk_counts(y_true: Sequence[Any], y_pred: Sequence[Any]) -> dict[str, ChunkCount]:
    """Numbers of true, predicted and correct chunks by type.

    Parameters
    ----------
    y_true, y_pred : list of sequences of str
        The labels of each sequence, see `chunks`.

    Returns
    -------
    dict of ChunkCount
        By type, in alphabetical order.

    Examples
    --------
    >>> counts = chunk_counts([["B-NP", "O", "B-VP"]], [["B-NP", "O", "B-NP"]])
    >>> counts["NP"].precision, counts["NP"].recall, counts["VP"]
    (0.5, 1.0, ChunkCount(true=1, predicted=0, correct=0))
    """
    kinds, table = chunk_confusion(y_true, y_pred)
    return {
        kind: ChunkCount(int(table[k].sum()), int(table[:, k].sum()), int(table[k, k]))
        for k, kind in enumerate(kinds)
    }


def chunk_confusion(y_true: Sequence[Any], y_pred: Sequence[Any]) -> tuple[list[str], NDArray]:
    r"""The confusion matrix of chunks: entry (t, p) counts chunks of type t that are predicted as type p.

    A true and a predicted chunk are compared if both of their ends agree. The last row and the last column
    are for chunks without a counterpart: predicted ones in the row, true ones in the column. So the sum of
    row t is the number of true chunks of type t, and that of column p the number of predicted ones.

    Parameters
    ----------
    y_true, y_pred : list of sequences of str
        The labels of each sequence, such as "B-NP", "I-NP" and "O".

    Returns
    -------
    types : list of str
        The k types of chunks, in alphabetical order.
    table : (k + 1, k + 1) array of int

    Examples
    --------
    >>> types, table = chunk_confusion([["B-NP", "O", "B-VP", "O"]], [["B-NP", "O", "B-NP", "B-VP"]])
    >>> types
    ['NP', 'VP']
    >>> table
    array([[1, 0, 0],
           [1, 0, 0],
           [0, 1, 0]])
    """
    if len(y_true) != len(y_pred):
        raise ValueError(
            f"y_true has {len(y_true)} sequences and y_pred {len(y_pred)}: "
            "give the labels of the same sequences"
        )
    pairs: Counter[tuple[str | None, str | None]] = Counter()
    for number, (true_labels, pred_labels) in enumerate(zip(y_true, y_pred, strict=True)):
        if isinstance(true_labels, str) or isinstance(pred_labels, str):
            raise ValueError("the labels must come in sequences: give a list of labels for each")
        if len(true_labels) != len(pred_labels):
            raise ValueError(
                f"sequence {number} has {len(true_labels)} true labels and {len(pred_labels)} predicted: "
                "give one of both per token"
            )
        # the type of the chunk at each pair of ends; None where there is none
        true, pred = (
            {chunk[:2]: chunk[2] for chunk in chunks(labels)} for labels in (true_labels, pred_labels)
        )
        pairs.update((true.get(ends), pred.get(ends)) for ends in true.keys() | pred.keys())
    kinds = sorted({kind for pair in pairs for kind in pair if kind is not None})
    index: dict[str | None, int] = {kind: k for k, kind in enumerate(kinds)} | {None: len(kinds)}
    table = np.zeros((len(kinds) + 1, len(kinds) + 1), dtype=int)
    for (true_kind, pred_kind), count in pairs.items():
        table[index[true_kind], index[pred_kind]] = count
    return kinds, table


def sum_counts(counts: dict[str, ChunkCount]) -> ChunkCount:
    """Sum the counts over all types.

    Examples
    --------
    >>> sum_counts({"NP": ChunkCount(3, 2, 1), "VP": ChunkCount(1, 1, 1)})
    ChunkCount(true=4, predicted=3, correct=2)
    """
    return ChunkCount(*(sum(count[k] for count in counts.values()) for k in range(3)))


def chunk_f1(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
    r"""The F1 score of chunks over all types, as computed by conlleval.

    .. math:: F_1 = \frac{2\, |T \cap P|}{|T| + |P|},

    where T and P are the sets of chunks marked by the true and by the predicted labels. A predicted chunk is
    correct only if both its ends and its type are.

    Parameters
    ----------
    y_true, y_pred : list of sequences of str
        The labels of each sequence, such as "B-NP", "I-NP" and "O": BIO, IOB1 or BIOES (see `chunks`).

    Returns
    -------
    float
        Between 0 and 1; 0 if there are no chunks.

    References
    ----------
    E. Tjong Kim Sang and S. Buchholz, Introduction to the CoNLL-2000 shared task: chunking, CoNLL 2000.

    Examples
    --------
    >>> chunk_f1([["B-NP", "I-NP", "O", "B-VP"]], [["B-NP", "I-NP", "O", "B-NP"]])
    0.5

    As the scorer of a search over taggers: ``GridSearchCV(tagger, grid, scoring=make_scorer(chunk_f1))``.
    """
    return sum_counts(chunk_counts(y_true, y_pred)).f1


def _parse_label(label: Any) -> tuple[str, str]:
    """Split a label such as "B-NP" into its prefix and the type of the chunk."""
    prefix, _, kind = str(label).partition("-")
    if prefix not in CHUNK_PREFIXES or (prefix == "O" and kind):
        raise ValueError(f"{str(label)!r} marks no part of a chunk: use labels such as B-NP, I-NP and O")
    return prefix, kind
