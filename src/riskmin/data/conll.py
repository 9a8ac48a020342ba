"""Sentences from CoNLL files, a token a line, and the standard features of the words around each token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from riskmin.data.base import DataError, PathLike, opened, quote
from riskmin.data.limits import Room

_OBJECTS = 32
"""Bytes of memory that the tokens take, a byte of their text."""
_SPACE = re.compile(r"[ \t]+")  # other white space, such as a no-break space, may be part of a word


class Sentences(NamedTuple):
    """What `load_conll` returns.

    Attributes
    ----------
    tokens : list of lists of tuples of str
        For each sentence its tokens, each with the columns that are not the label.
    labels : list of lists of str, or None
        The labels of each sentence; None where the file has none.
    """

    tokens: list[list[tuple[str, ...]]]
    labels: list[list[str]] | None


def load_conll(
    path: PathLike,
    *,
    target: int | None = -1,
    n_columns: int | None = None,
    comments: bool | None = None,
    encoding: str = "utf-8",
) -> Sentences:
    """Read sentences from a CoNLL file: a token a line, its columns apart by blanks or tabs.

    A blank line ends a sentence; two of them end no more than one does.

    Parameters
    ----------
    path : path
        Plain text, or compressed by gzip, xz or bzip2.
    target : int or None
        The column of the labels, from 0 on, or from the end: -1 is the last one. None if there are none.
    n_columns : int, optional
        The number of columns to expect beside the label's. A file with exactly so many has no labels, as
        files to be tagged may; then `target` is not looked at.
    comments : bool, optional
        Whether lines that begin with # are comments. By default they are, unless they have as many columns
        as the tokens, for # is a word too.
    encoding : str
        Of the text; older files are often in "latin-1".

    Returns
    -------
    Sentences

    Raises
    ------
    DataError
        With the file, the line, the cause and the remedy: for a line with a column missing or too many.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "train.conll")
    ...     _ = path.write_text("He PRP B-NP\\nsits VBZ B-VP\\n\\nRain NN B-NP\\n")
    ...     tokens, labels = load_conll(path)
    >>> tokens
    [[('He', 'PRP'), ('sits', 'VBZ')], [('Rain', 'NN')]]
    >>> labels
    [['B-NP', 'B-VP'], ['B-NP']]
    """
    lines = _lines(path, encoding)
    width = _width(path, lines, comments)
    place = _label_place(path, width, target, n_columns)
    sentences: list[list[list[str]]] = [[]]
    for number, cells in enumerate(lines, 1):
        if not cells:
            if sentences[-1]:
                sentences.append([])
        elif cells[0].startswith("#") and (comments or (comments is None and len(cells) != width)):
            continue
        elif len(cells) != width:
            raise DataError(path, number, _misfit(cells, width))
        else:
            sentences[-1].append(cells)
    if not sentences[-1]:
        sentences.pop()
    labels = None if place is None else [[cells.pop(place) for cells in sentence] for sentence in sentences]
    return Sentences([[tuple(cells) for cells in sentence] for sentence in sentences], labels)


def _lines(path: PathLike, encoding: str) -> list[list[str]]:
    """The cells of every line; none where it is blank."""
    name = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    with opened(path) as stream:
        room = Room(path)
        raw = stream.read(room.most // _OBJECTS + 1)
        room.need(_OBJECTS * len(raw))
        try:
            text = raw.decode(name)
        except UnicodeDecodeError as error:
            problem = f"it is not text in {encoding} ({error.reason}); save it so, or give its encoding"
            raise DataError(path, None, problem) from error
        except LookupError as error:
            raise ValueError(
                f"encoding={encoding!r} is not known: use one such as utf-8 or latin-1"
            ) from error
    # the mark of a new line is \n alone: no editor counts others
    bare = (line.strip(" \t\r\f") for line in text.split("\n"))
    return [_SPACE.split(line) if line else [] for line in bare]


def _width(path: PathLike, lines: list[list[str]], comments: bool | None) -> int:
    """How many columns the tokens have: those of the first one that is no comment for sure."""
    doubtful = [cells for cells in lines if cells and not (comments and cells[0].startswith("#"))]
    if not doubtful:
        raise DataError(path, None, "it has no tokens; check that it is the right file")
    return len(next((cells for cells in doubtful if not cells[0].startswith("#")), doubtful[0]))


def _label_place(path: PathLike, width: int, target: int | None, n_columns: int | None) -> int | None:
    """The index of the labels, if there are any."""
    if n_columns is not None and width == n_columns:
        return None
    if n_columns is not None and width != n_columns + (target is not None):
        known = f"{n_columns} columns, or {n_columns + 1} with labels"
        has = f"{width} column{'s' if width > 1 else ''}"
        raise DataError(path, None, f"it has {has} where {known} are expected; check the file")
    if target is None:
        return None
    if not -width <= target < width:
        raise DataError(
            path, None, f"there is no column {target}: it has {width} columns; choose another target"
        )
    if width == 1:
        raise DataError(path, None, "it has one column: the labels need a column beside the words; add it")
    return target % width


def _misfit(cells: list[str], width: int) -> str:
    remedy = "add what is missing, or get the file anew if it ends here"
    if len(cells) > width:
        remedy = "remove what is too much, or the blanks within a cell"
    held = f"{len(cells)} column{'s' if len(cells) > 1 else ''}"
    return f"{held} where other tokens have {width}: {quote(' '.join(cells))}; {remedy}"


# ---------------------------------------------------------------- features
def window_features(sentence: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """The words and tags around each token: CRFsuite's template for chunking.

    For the first column, the word: those from two before to two after, and the pairs of the word with the one
    before and the one after. For every other column, such as the part of speech: those from two before to two
    after, and all the pairs and triples of neighbours among them. What would lie beyond the sentence is left
    out.

    Parameters
    ----------
    sentence : sequence of tuples of str
        The columns of each token, as `load_conll` gives them.

    Returns
    -------
    list of dicts
        For each token its features, as `ChainTagger` takes them.

    Examples
    --------
    >>> features = window_features([("He", "PRP"), ("sits", "VBZ")])
    >>> features[0]["w[0]"], features[0]["w[0]|w[1]"], features[1]["pos[-1]|pos[0]"]
    ('He', 'He|sits', 'PRP|VBZ')
    >>> "w[-1]" in features[0]
    False
    """
    keys: list[str] = []
    columns: list[list[str]] = []
    for number, column in enumerate(zip(*sentence, strict=True)):
        name = "w" if number == 0 else "pos" if number == 1 else f"pos{number}"
        spans = _WORD_SPANS if number == 0 else _TAG_SPANS
        padded = ["", "", *column, "", ""]  # no cell is empty, so that nothing else is
        runs = {size: _runs(padded, size) for size in {size for _, size in spans}}
        for start, size in spans:
            keys.append("|".join(f"{name}[{k}]" for k in range(start, start + size)))
            columns.append(runs[size][start + 2 :])
    last = len(sentence) - 3
    return [
        dict(zip(keys, cells, strict=True))
        if 2 <= at <= last
        else {key: cell for key, cell in zip(keys, cells, strict=True) if cell}
        for at, cells in enumerate(zip(*(column[: len(sentence)] for column in columns), strict=True))
    ]


_SINGLE = [(start, 1) for start in range(-2, 3)]
_WORD_SPANS = [*_SINGLE, (-1, 2), (0, 2)]
_TAG_SPANS = [*_SINGLE, *((start, 2) for start in range(-2, 2)), *((start, 3) for start in range(-2, 1))]
"""Where a run of neighbours starts, from the token on, and how many there are."""


def _runs(cells: list[str], size: int) -> list[str]:
    """The neighbours from each cell on, in one string; empty where one of them is."""
    if size == 1:
        return cells
    shifted = zip(*(cells[k:] for k in range(size)), strict=False)
    return ["|".join(run) if all(run) else "" for run in shifted]
