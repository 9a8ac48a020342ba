"""Encoding of tokens, given as feature dicts or lists of attributes, as the rows of a CSR matrix.

Feature dicts have the meaning of CRFsuite's Python wrappers: a string value is an indicator with the name
"key:value", a number is the weight of "key", True is 1 and False is 0; nested dicts, lists and sets are
read likewise, with "key:" as a prefix of their names. A token that is a list or a set of strings has each of
them as an indicator.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from riskmin.core import NDArray

SEPARATOR = ":"


class FeatureEncoder:
    """Maps feature names to columns, and tokens to rows.

    Parameters
    ----------
    names : iterable of str, optional
        The known features, in the order of their columns. Others are ignored. Without names, every feature
        gets a column at its first occurrence.
    """

    UNKNOWN = -1
    """Column index of features unknown to the encoder."""

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self.index: dict[str, int] = {} if names is None else {name: j for j, name in enumerate(names)}
        self._grows = names is None

    def rows(self, sequences: Sequence[Any]) -> csr_matrix[Any]:
        """Return the tokens of all sequences as rows of a CSR matrix."""
        columns, ends, weighted = self._scan(sequences)
        # most features are indicators, of weight 1
        data = np.ones(len(columns))
        if weighted:
            positions = np.array([position for position, _, _ in weighted])
            data[positions] = weights = np.array([weight for _, weight, _ in weighted])
            if not np.isfinite(weights).all():
                self._raise_not_finite(
                    sequences, ends, weighted[int(np.flatnonzero(~np.isfinite(weights))[0])]
                )
        indices = np.array(columns, dtype=np.int32)
        indptr = np.concatenate([[0], ends]).astype(np.int64)
        # in prediction, entries of unknown features are dropped
        if not self._grows and len(indices):
            known = indices != self.UNKNOWN
            # indptr in terms of the entries that remain
            indptr = np.concatenate([[0], np.cumsum(known)])[indptr]
            indices, data = indices[known], data[known]
        X = csr_matrix((data, indices, indptr), shape=(len(ends), len(self.index)))
        # a feature that occurs twice in a token has the sum of its weights
        X.sum_duplicates()
        return X

    def _scan(self, sequences: Sequence[Any]) -> tuple[list[int], list[int], list[tuple[int, float, str]]]:
        """Return columns, the end of each token, and (position, weight, name) of the weights other than 1.

        This loop runs once per feature of each token, millions of times: a name is built only for a new
        value, and everything except strings in dicts is left to slower code.
        """
        columns: list[int] = []
        ends: list[int] = []
        weighted: list[tuple[int, float, str]] = []
        # column_of[key][value] is the column of the indicator "key:value"
        column_of: dict[Any, dict[str, int]] = {}
        add, end, column = columns.append, ends.append, self.column
        for number, sequence in enumerate(sequences):
            for token in sequence:
                if not isinstance(token, dict):
                    self._encode(token, "", columns, weighted, number)
                    end(len(columns))
                    continue
                for key, value in token.items():
                    if value.__class__ is str and key.__class__ is str:
                        try:
                            add(column_of[key][value])
                        except KeyError:
                            j = column_of.setdefault(key, {})[value] = column(f"{key}{SEPARATOR}{value}")
                            add(j)
                    else:
                        self._encode({key: value}, "", columns, weighted, number)
                end(len(columns))
        return columns, ends, weighted

    def column(self, name: str) -> int:
        """Return the column of a feature, a new one if the encoder was created without names."""
        if self._grows:
            return self.index.setdefault(name, len(self.index))
        return self.index.get(name, self.UNKNOWN)

    def _encode(
        self, token: Any, prefix: str, columns: list[int], weighted: list[tuple[int, float, str]], number: int
    ) -> None:
        """Append the columns and weights of a token, or of a value nested in one."""
        if not isinstance(token, (dict, list, tuple, set, frozenset)):
            raise ValueError(
                f"sequence {number} has the token {short_repr(token)}: give a dict of features, or a list of "
                "strings, per token"
            )
        # the order of a set is not reproducible between processes
        ordered = sorted(token, key=str) if isinstance(token, (set, frozenset)) else token
        for key in ordered:
            if not isinstance(key, str):
                raise ValueError(
                    f"sequence {number} has the feature {short_repr(key)}: features are named by strings"
                )
            value = token[key] if isinstance(token, dict) else 1.0
            name = prefix + key
            if isinstance(value, str):
                columns.append(self.column(f"{name}{SEPARATOR}{value}"))
            elif isinstance(value, (dict, list, tuple, set, frozenset)):
                self._encode(value, name + SEPARATOR, columns, weighted, number)
            elif isinstance(value, (numbers.Real, np.bool_)):
                weight = float(value)
                if weight != 0:  # features of weight 0 are not stored
                    if weight != 1:
                        weighted.append((len(columns), weight, name))
                    columns.append(self.column(name))
            else:
                raise ValueError(
                    f"sequence {number} has the value {short_repr(value)} for the feature {name!r}: "
                    "give a string, a number or a bool"
                )

    def _raise_not_finite(
        self, sequences: Sequence[Any], ends: list[int], entry: tuple[int, float, str]
    ) -> None:
        position, weight, name = entry
        # from the position of the entry to its token, and from there to its sequence
        token = int(np.searchsorted(ends, position, side="right"))
        sequence_ends = np.cumsum([len(sequence) for sequence in sequences])
        number = int(np.searchsorted(sequence_ends, token, side="right"))
        within = token - (int(sequence_ends[number - 1]) if number else 0)
        raise ValueError(
            f"token {within} of sequence {number} has the weight {weight} for the feature {name!r}: "
            "give finite numbers"
        )


def names_to_arrays(index: dict[str, int] | None) -> dict[str, NDArray]:
    """Return the feature names as one UTF-8 text, and the byte offset at which each of them ends."""
    if index is None:
        return {}
    # lone surrogates, which come from files that are not valid text, are preserved
    names = [name.encode("utf-8", "surrogatepass") for name in index]
    ends: NDArray = np.cumsum([len(name) for name in names], dtype=np.int64)
    return {"feature_text": np.frombuffer(b"".join(names), dtype=np.uint8), "feature_ends": ends}


def names_from_arrays(arrays: dict[str, NDArray], p: int) -> dict[str, int] | None:
    """Return the column of each name from the arrays of `names_to_arrays`; there must be p of them."""
    if "feature_ends" not in arrays:
        return None
    text, offsets = arrays["feature_text"].tobytes(), arrays["feature_ends"]
    if offsets.dtype != np.int64 or offsets.ndim != 1:
        raise ValueError(f"feature_ends is {offsets.dtype}{offsets.shape}, not a row of int64")
    ends = offsets.tolist()
    starts = [0, *ends[:-1]]
    names = [text[i:j].decode("utf-8", "surrogatepass") for i, j in zip(starts, ends, strict=True)]
    # fewer entries than names if a name occurs twice
    features = {name: j for j, name in enumerate(names)}
    if len(features) != p or len(names) != p:
        raise ValueError(f"it names {len(features)} features, but has {p}")
    return features


def drop_rare_features(
    X: csr_matrix[Any], names: list[str], min_count: int
) -> tuple[csr_matrix[Any], list[str]]:
    """Return the columns that at least `min_count` tokens have, and their names."""
    if min_count <= 1:
        return X, names
    keep = np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]) >= min_count)
    return X[:, keep], [names[j] for j in keep]


def short_repr(value: object) -> str:
    """Return the repr of a value, truncated to 40 characters for error messages."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]}..."
