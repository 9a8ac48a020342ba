"""Sentences from CoNLL files, one token per line, and standard features of the words around each token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from riskmin.core.deadline import check_each
from riskmin.data.base import DataError, PathLike, open_decompressed, quote
from riskmin.data.limits import MemoryBudget

_SPACE = re.compile(r"[ \t]+")  # other white space, such as a no-break space, may be part of a word


class Sentences(NamedTuple):
    """Sentences, as returned by `load_conll`.

    Attributes
    ----------
    tokens : list of lists of tuples of str
        For each sentence its tokens, each with the columns that are not the label.
    labels : list of lists of str, or None
        The labels of each sentence; None if the file has none.
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
    """Read sentences from a CoNLL file: one token per line, with columns separated by blanks or tabs.

    One or more blank lines end a sentence.

    Parameters
    ----------
    path : path
        Plain text, or compressed by gzip, xz or bzip2.
    target : int or None
        The index of the column of the labels, negative from the end: -1 is the last one. None if the file
        has no labels.
    n_columns : int, optional
        The expected number of columns besides the labels. A file with exactly this many columns has no
        labels, as a file to be tagged; `target` is then ignored.
    comments : bool, optional
        Whether lines that begin with # are comments. By default they are, unless they have as many columns
        as the tokens, since # may be a word.
    encoding : str
        Encoding of the text; older files are often in "latin-1".

    Returns
    -------
    Sentences

    Raises
    ------
    DataError
        With the file, the line, the cause and the remedy, for instance for a line with a missing column.

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
    # the number of columns of all tokens, with the label
    width = _width(path, lines, comments)
    label_index = _label_index(path, width, target, n_columns)
    # the last entry is the sentence that is being read; it stays empty after blank lines
    sentences: list[list[list[str]]] = [[]]
    for number, cells in enumerate(lines, 1):
        if not cells:
            if sentences[-1]:
                sentences.append([])
        elif cells[0].startswith("#") and (comments or (comments is None and len(cells) != width)):
            continue
        elif len(cells) != width:
            raise DataError(path, number, _wrong_width_problem(cells, width))
        else:
            sentences[-1].append(cells)
    if not sentences[-1]:
        sentences.pop()
    labels = (
        None
        if label_index is None
        else [[cells.pop(label_index) for cells in sentence] for sentence in sentences]
    )
    return Sentences([[tuple(cells) for cells in sentence] for sentence in sentences], labels)


def _lines(path: PathLike, encoding: str) -> list[list[str]]:
    """Return the cells of every line; an empty list for a blank line."""
    # utf-8-sig also skips a byte order mark
    name = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    memory_per_byte = 32  # bytes of memory that the parsed tokens take per byte of text
    with open_decompressed(path) as stream:
        # one byte more than the limit allows: a text of that length raises an error
        budget = MemoryBudget(path)
        raw = stream.read(budget.limit // memory_per_byte + 1)
        budget.require(memory_per_byte * len(raw))
        try:
            text = raw.decode(name)
        except UnicodeDecodeError as error:
            problem = f"it is not text in {encoding} ({error.reason}); save it so, or give its encoding"
            raise DataError(path, None, problem) from error
        except LookupError as error:
            raise ValueError(
                f"encoding={encoding!r} is not known: use one such as utf-8 or latin-1"
            ) from error
    # lines end at \n only, as editors count them, not at the other separators of str.splitlines
    stripped = (line.strip(" \t\r\f") for line in text.split("\n"))
    return [_SPACE.split(line) if line else [] for line in check_each(stripped)]


def _width(path: PathLike, lines: list[list[str]], comments: bool | None) -> int:
    """Return the number of columns: that of the first line that is certainly not a comment."""
    candidates = [cells for cells in lines if cells and not (comments and cells[0].startswith("#"))]
    if not candidates:
        raise DataError(path, None, "it has no tokens; check that it is the right file")
    return len(next((cells for cells in candidates if not cells[0].startswith("#")), candidates[0]))


def _label_index(path: PathLike, width: int, target: int | None, n_columns: int | None) -> int | None:
    """Return the index of the column of the labels, or None if there are none."""
    if n_columns is not None and width == n_columns:
        return None
    if n_columns is not None and width != n_columns + (target is not None):
        expected = f"{n_columns} columns, or {n_columns + 1} with labels"
        actual = f"{width} column{'s' if width > 1 else ''}"
        raise DataError(path, None, f"it has {actual} where {expected} are expected; check the file")
    if target is None:
        return None
    if not -width <= target < width:
        raise DataError(
            path, None, f"there is no column {target}: it has {width} columns; choose another target"
        )
    if width == 1:
        raise DataError(path, None, "it has one column: the labels need a column beside the words; add it")
    return target % width


def _wrong_width_problem(cells: list[str], width: int) -> str:
    """Describe a line with a wrong number of columns."""
    remedy = "add the missing columns, or get the file anew if it ends here"
    if len(cells) > width:
        remedy = "remove the extra columns, or the blanks within a cell"
    actual = f"{len(cells)} column{'s' if len(cells) > 1 else ''}"
    return f"{actual} where other tokens have {width}: {quote(' '.join(cells))}; {remedy}"


# ---------------------------------------------------------------- features
def window_features(sentence: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Return the words and tags around each token as features: CRFsuite's template for chunking.

    For the first column, the word: the words at positions -2 to 2, and the pairs of the word with the one
    before and the one after. For every other column, such as the part of speech: the tags at positions -2 to
    2, and all pairs and triples of neighbors among them. Features beyond the ends of the sentence are left
    out.

    Parameters
    ----------
    sentence : sequence of tuples of str
        The columns of each token, as returned by `load_conll`.

    Returns
    -------
    list of dicts
        The features of each token, in the form that `ChainTagger` accepts.

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
        # two positions before and after; cells are never empty, so "" marks positions beyond the sentence
        padded = ["", "", *column, "", ""]
        runs = {size: _runs(padded, size) for size in {size for _, size in spans}}
        for start, size in spans:
            keys.append("|".join(f"{name}[{k}]" for k in range(start, start + size)))
            columns.append(runs[size][start + 2 :])
    # in positions 2 to last, all windows are inside the sentence, so that no feature is empty
    last = len(sentence) - 3
    return [
        dict(zip(keys, cells, strict=True))
        if 2 <= position <= last
        else {key: cell for key, cell in zip(keys, cells, strict=True) if cell}
        for position, cells in enumerate(zip(*(column[: len(sentence)] for column in columns), strict=True))
    ]


_SINGLE = [(start, 1) for start in range(-2, 3)]
_WORD_SPANS = [*_SINGLE, (-1, 2), (0, 2)]
_TAG_SPANS = [*_SINGLE, *((start, 2) for start in range(-2, 2)), *((start, 3) for start in range(-2, 1))]
"""Runs of neighbors: position of the first one relative to the token, and their number."""


def _runs(cells: list[str], size: int) -> list[str]:
    """Join each cell and its successors, `size` in all, in one string; empty if one of them is empty."""
    if size == 1:
        return cells
    shifted = zip(*(cells[k:] for k in range(size)), strict=False)
    return ["|".join(run) if all(run) else "" for run in shifted]
