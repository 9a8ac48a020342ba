"""Tokens as rows of numbers: feature dicts, lists of attributes and matrices, into one CSR matrix.

A feature dict is read as CRFsuite's Python wrappers read it: the string value of a key is an indicator with
the name "key:value", a number is the weight of "key", True is 1 and False is 0; a dict, list or set within
is read likewise, and its names follow the key's. A token that is a list or a set of strings has each of
them as an indicator.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from riskmin.types import NDArray

SEPARATOR = ":"
UNKNOWN = -1
"""The column of a feature that was not seen in training."""


class Tokens(NamedTuple):
    """The tokens of all sequences, one row each."""

    X: Any
    lengths: NDArray
    flat: bool
    """Whether they came as a matrix: then labels are one array too."""


class Encoder:
    """Features by name, and the rows of tokens that have them.

    Parameters
    ----------
    names : iterable of str, optional
        The features that are known, in the order of their columns. Others are left out of the rows;
        without names every feature gets a column when it is first seen.
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self.index: dict[str, int] = {} if names is None else {name: j for j, name in enumerate(names)}
        self._grows = names is None

    def rows(self, sequences: Sequence[Any]) -> csr_matrix[Any]:
        """The tokens of all sequences as rows."""
        columns, ends, odd = self._scan(sequences)
        data = np.ones(len(columns))
        if odd:
            at = np.array([place for place, _, _ in odd])
            data[at] = weights = np.array([weight for _, weight, _ in odd])
            if not np.isfinite(weights).all():
                self._refuse(sequences, ends, odd[int(np.flatnonzero(~np.isfinite(weights))[0])])
        indices = np.array(columns, dtype=np.int32)
        indptr = np.concatenate([[0], ends]).astype(np.int64)
        if not self._grows and len(indices):
            known = indices != UNKNOWN
            indptr = np.concatenate([[0], np.cumsum(known)])[indptr]
            indices, data = indices[known], data[known]
        X = csr_matrix((data, indices, indptr), shape=(len(ends), len(self.index)))
        X.sum_duplicates()
        return X

    def _scan(self, sequences: Sequence[Any]) -> tuple[list[int], list[int], list[tuple[int, float, str]]]:
        """Columns, where each token ends, and (place, weight, name) of the weights that are not 1.

        This loop runs once a feature of a token, millions of times: the names are put together only where a
        value is new, and everything but strings in dicts is left to slower code.
        """
        columns: list[int] = []
        ends: list[int] = []
        odd: list[tuple[int, float, str]] = []
        tables: dict[Any, dict[str, int]] = {}
        add, end, column = columns.append, ends.append, self.column
        for number, sequence in enumerate(sequences):
            for token in sequence:
                if not isinstance(token, dict):
                    self._slow(token, "", columns, odd, number)
                    end(len(columns))
                    continue
                for key, value in token.items():
                    if value.__class__ is str and key.__class__ is str:
                        try:
                            add(tables[key][value])
                        except KeyError:
                            j = tables.setdefault(key, {})[value] = column(f"{key}{SEPARATOR}{value}")
                            add(j)
                    else:
                        self._slow({key: value}, "", columns, odd, number)
                end(len(columns))
        return columns, ends, odd

    def column(self, name: str) -> int:
        """The column of a feature."""
        if self._grows:
            return self.index.setdefault(name, len(self.index))
        return self.index.get(name, UNKNOWN)

    def _slow(
        self, token: Any, prefix: str, columns: list[int], odd: list[tuple[int, float, str]], number: int
    ) -> None:
        """Read a token, or what is nested in one."""
        if not isinstance(token, (dict, list, tuple, set, frozenset)):
            raise ValueError(
                f"sequence {number} has the token {_short(token)}: give a dict of features a token, "
                "or a list of strings"
            )
        ordered = sorted(token, key=str) if isinstance(token, (set, frozenset)) else token
        for key in ordered:
            if not isinstance(key, str):
                raise ValueError(
                    f"sequence {number} has the feature {_short(key)}: features are named by strings"
                )
            value = token[key] if isinstance(token, dict) else 1.0
            name = prefix + key
            if isinstance(value, str):
                columns.append(self.column(f"{name}{SEPARATOR}{value}"))
            elif isinstance(value, (dict, list, tuple, set, frozenset)):
                self._slow(value, name + SEPARATOR, columns, odd, number)
            elif isinstance(value, (numbers.Real, np.bool_)):
                weight = float(value)
                if weight != 0:  # a feature that is off has no place
                    if weight != 1:
                        odd.append((len(columns), weight, name))
                    columns.append(self.column(name))
            else:
                raise ValueError(
                    f"sequence {number} has the value {_short(value)} for the feature {name!r}: "
                    "give a string, a number or a bool"
                )

    def _refuse(self, sequences: Sequence[Any], ends: list[int], culprit: tuple[int, float, str]) -> None:
        place, weight, name = culprit
        token = int(np.searchsorted(ends, place, side="right"))
        lasts = np.cumsum([len(sequence) for sequence in sequences])
        number = int(np.searchsorted(lasts, token, side="right"))
        within = token - (int(lasts[number - 1]) if number else 0)
        raise ValueError(
            f"token {within} of sequence {number} has the weight {weight} for the feature {name!r}: "
            "give finite numbers"
        )


def frequent(X: csr_matrix[Any], names: list[str], min_count: int) -> tuple[csr_matrix[Any], list[str]]:
    """The columns that so many tokens have, and their names."""
    if min_count <= 1:
        return X, names
    keep = np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]) >= min_count)
    return X[:, keep], [names[j] for j in keep]


def _short(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 40 else f"{text[:36]}..."


# ---------------------------------------------------------------- what belongs together
def sequences_of(X: Any) -> list[Any]:
    """A list of sequences of tokens, each of which has a length."""
    if isinstance(X, (str, bytes, dict)) or not hasattr(X, "__iter__"):
        raise ValueError(
            f"X is {_short(X)}: give a list of sequences, each a list of feature dicts, "
            "or a matrix with lengths"
        )
    found = list(X)
    for number, sequence in enumerate(found):
        if isinstance(sequence, (str, bytes, dict)) or not hasattr(sequence, "__len__"):
            raise ValueError(
                f"sequence {number} is {_short(sequence)}: give a list of tokens, each a dict of features"
            )
    return found


def check_lengths(lengths: Any, n_tokens: int) -> NDArray:
    """The lengths of the sequences whose tokens are the rows of a matrix."""
    found: NDArray = np.asarray(lengths)
    if found.ndim != 1 or found.dtype.kind not in "iu" or (found < 0).any():
        raise ValueError(
            "lengths must be whole numbers >= 0: give the number of tokens of each sequence, in order"
        )
    if int(found.sum()) != n_tokens:
        raise ValueError(
            f"lengths sum to {int(found.sum()):,}, but X has {n_tokens:,} rows: give the number of tokens of "
            "each sequence, in order"
        )
    return found.astype(np.int64)


def label_codes(labels: Iterable[Any], classes: Sequence[Any], *, where: str = "y") -> NDArray:
    """The places of labels among the classes; raise where one is none of them."""
    place = {label: j for j, label in enumerate(classes)}
    try:
        return np.array([place[label] for label in labels], dtype=np.float64)
    except KeyError as error:
        known = ", ".join(map(str, classes[:6])) + (", ..." if len(classes) > 6 else "")
        raise ValueError(
            f"{where} holds the label {error.args[0]!r}, which is none of the model's ({known}): "
            "fit on data that hold it, or drop it"
        ) from None
    except TypeError:
        raise ValueError(f"{where} holds labels that are lists or dicts: give one label a token") from None


def flat_labels(y: Any, tokens: Tokens) -> list[Any]:
    """One label a token, of all sequences in order; raise where they do not match, and say where."""
    if y is None:
        raise ValueError("y is None: give a label for every token")
    if tokens.flat and not _nested(y):
        flat: list[Any] = np.asarray(y).tolist() if not isinstance(y, list) else list(y)
        if len(flat) != tokens.X.shape[0]:
            raise ValueError(
                f"y has {len(flat):,} labels, but X has {tokens.X.shape[0]:,} rows: give one a token"
            )
        return flat
    if not _nested(y):
        raise ValueError(
            "y must hold a list of labels for each sequence: give as many lists as X has sequences"
        )
    if len(y) != len(tokens.lengths):
        raise ValueError(
            f"X has {len(tokens.lengths):,} sequences, but y has {len(y):,}: give labels for each"
        )
    for number, (labels, length) in enumerate(zip(y, tokens.lengths.tolist(), strict=True)):
        if len(labels) != length:
            raise ValueError(
                f"sequence {number} has {length} tokens, but {len(labels)} labels: give one label a token"
            )
    return [label for labels in y for label in (labels.tolist() if hasattr(labels, "tolist") else labels)]


def _nested(y: Any) -> bool:
    """Whether y is a sequence of sequences of labels."""
    return len(y) > 0 and all(hasattr(one, "__len__") and not isinstance(one, (str, bytes)) for one in y)
