"""Measures of phrases that labels mark token by token, counted as the CoNLL shared tasks count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

PARTS = frozenset("BIOESLU")
"""What a label may begin with: L and U are other letters for E and S."""


class ChunkCount(NamedTuple):
    """How many chunks there are, were found, and are right: those with the same ends and the same type."""

    true: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """The share of the found chunks that is right; 0 if none was found."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of the true chunks that was found; 0 if there are none."""
        return self.correct / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of the two: twice the right ones, over all true and all found ones."""
        return 2 * self.correct / (self.true + self.predicted) if self.true + self.predicted else 0.0


def chunks(labels: Iterable[str]) -> list[tuple[int, int, str]]:
    """The chunks that the labels of one sequence mark.

    A chunk of type X begins at B-X, and also at I-X after O, after another type, or at the start; it goes on
    over I-X. E-X ends it, and S-X is one by itself. O is outside. That is conlleval's reading of any such
    labels, IOB1 and BIO alike, even where they are not well-formed.

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
    found: list[tuple[int, int, str]] = []
    start, kind, at = -1, "", -1  # start < 0: outside
    for at, label in enumerate(labels):
        part, type_ = _parsed(label)
        goes_on = start >= 0 and part in "IEL" and type_ == kind
        if start >= 0 and not goes_on:
            found.append((start, at, kind))
            start = -1
        if part != "O" and not goes_on:
            start, kind = at, type_
        if part in "ELSU":
            found.append((start, at + 1, kind))
            start = -1
    if start >= 0:
        found.append((start, at + 1, kind))
    return found


def chunk_counts(y_true: Sequence[Any], y_pred: Sequence[Any]) -> dict[str, ChunkCount]:
    """The counts of true, found and right chunks, by type.

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
    true: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    if len(y_true) != len(y_pred):
        raise ValueError(
            f"y_true has {len(y_true)} sequences and y_pred {len(y_pred)}: "
            "give the labels of the same sequences"
        )
    for number, (there, said) in enumerate(zip(y_true, y_pred, strict=True)):
        if isinstance(there, str) or isinstance(said, str):
            raise ValueError("the labels must come in sequences: give a list of labels for each")
        if len(there) != len(said):
            raise ValueError(
                f"sequence {number} has {len(there)} true labels and {len(said)} predicted: "
                "give one of both a token"
            )
        here, found = chunks(there), chunks(said)
        true.update(kind for *_, kind in here)
        predicted.update(kind for *_, kind in found)
        correct.update(kind for *_, kind in set(here) & set(found))
    kinds = sorted(true.keys() | predicted.keys())
    return {kind: ChunkCount(true[kind], predicted[kind], correct[kind]) for kind in kinds}


def overall(counts: dict[str, ChunkCount]) -> ChunkCount:
    """All types together.

    Examples
    --------
    >>> overall({"NP": ChunkCount(3, 2, 1), "VP": ChunkCount(1, 1, 1)})
    ChunkCount(true=4, predicted=3, correct=2)
    """
    return ChunkCount(*(sum(count[k] for count in counts.values()) for k in range(3)))


def chunk_f1(y_true: Sequence[Any], y_pred: Sequence[Any]) -> float:
    r"""The F1 of chunks, as conlleval counts them: of all types together.

    .. math:: F_1 = \frac{2\, |T \cap P|}{|T| + |P|},

    where T and P are the sets of the chunks that the true and the predicted labels mark. A chunk is right
    only if both its ends and its type are.

    Parameters
    ----------
    y_true, y_pred : list of sequences of str
        The labels of each sequence, such as "B-NP", "I-NP" and "O": BIO, IOB1 or BIOES (see `chunks`).

    Returns
    -------
    float
        From 0 to 1; 0 if there is no chunk at all.

    References
    ----------
    E. Tjong Kim Sang and S. Buchholz, Introduction to the CoNLL-2000 shared task: chunking, CoNLL 2000.

    Examples
    --------
    >>> chunk_f1([["B-NP", "I-NP", "O", "B-VP"]], [["B-NP", "I-NP", "O", "B-NP"]])
    0.5

    Of a tagger, in a search: ``GridSearchCV(tagger, grid, scoring=make_scorer(chunk_f1))``.
    """
    return overall(chunk_counts(y_true, y_pred)).f1


def _parsed(label: Any) -> tuple[str, str]:
    """The part of a chunk that a label stands for, and the type of the chunk."""
    part, _, kind = str(label).partition("-")
    if part not in PARTS or (part == "O" and kind):
        raise ValueError(f"{str(label)!r} marks no part of a chunk: use labels such as B-NP, I-NP and O")
    return part, kind
