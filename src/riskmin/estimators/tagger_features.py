"""Tokens as rows of numbers: feature dicts, lists of attributes and matrices, into one CSR matrix.

A feature dict is read as CRFsuite's Python wrappers read it: the string value of a key is an indicator with
the name "key:value", a number is the weight of "key", True is 1 and False is 0; a dict, list or set within
is read likewise, and its names follow the key's. A token that is a list or a set of strings has each of
them as an indicator.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

SEPARATOR = ":"
UNKNOWN = -1
"""The column of a feature that was not seen in training."""


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
                f"sequence {number} has the token {short(token)}: give a dict of features a token, "
                "or a list of strings"
            )
        ordered = sorted(token, key=str) if isinstance(token, (set, frozenset)) else token
        for key in ordered:
            if not isinstance(key, str):
                raise ValueError(
                    f"sequence {number} has the feature {short(key)}: features are named by strings"
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
                    f"sequence {number} has the value {short(value)} for the feature {name!r}: "
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


def short(thing: object) -> str:
    """A thing as an error message shows it."""
    text = repr(thing)
    return text if len(text) <= 40 else f"{text[:36]}..."
