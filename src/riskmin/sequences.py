"""Sequences of tokens, or other rows that must stay together: a matrix of them, and the scores of chains."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from riskmin.matrices import CACHE_BYTES, Plain
from riskmin.types import Array, Matrix, NDArray


@cache
def _kernels() -> tuple[Any, Any]:
    from riskmin.kernels import chain, chain_max  # Numba is imported by the first use, not with the package

    return chain, chain_max


def cut_at(ends: NDArray, n_shards: int) -> NDArray:
    """Of all ends, those that cut the rows into about equal parts; and the first row.

    Examples
    --------
    >>> import numpy as np
    >>> cut_at(np.array([2, 3, 6]), 2).tolist()
    [0, 3, 6]
    """
    all_ends = np.append(0, ends)
    goals = np.linspace(0, all_ends[-1], n_shards + 1)[1:-1]
    above = np.searchsorted(all_ends, goals)
    nearer = goals - all_ends[above - 1] < all_ends[above] - goals
    found: NDArray = np.unique(np.concatenate([[0], all_ends[above - nearer], all_ends[-1:]]))
    return found


@dataclass(frozen=True)
class Sequences:
    """A matrix with a row a token, and where its sequences end.

    Parameters
    ----------
    tokens : Matrix
        The features.
    ends : (m,) array
        The rows before which the sequences end, in increasing order; the last is the number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.matrices import as_matrix
    >>> X = Sequences(as_matrix(np.eye(6)), np.array([2, 3, 6]))
    >>> X.shape, X.rows(2, 6).ends.tolist(), X.cut(2).tolist()
    ((6, 6), [1, 4], [0, 3, 6])
    """

    tokens: Matrix
    ends: NDArray = field(repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.tokens, Plain):
            raise ValueError(
                "chains are computed by NumPy: give X as an array of NumPy, or a sparse matrix of SciPy"
            )
        ends = np.asarray(self.ends, dtype=np.int64)
        if len(ends) == 0 or ends[-1] != self.tokens.shape[0] or np.any(np.diff(ends, prepend=0) < 1):
            raise ValueError(
                "sequences must have a token each and end with the last row: give increasing ends"
            )
        object.__setattr__(self, "ends", ends)

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens, features."""
        return self.tokens.shape

    @property
    def block_rows(self) -> int:
        """As many tokens as the matrix takes at a time."""
        return self.tokens.block_rows

    def blocks(self, columns: int) -> list[tuple[int, int]]:
        """Ranges of rows to take together: whole sequences, about a megabyte of features and scores.

        All of them where rows have one score: losses of groups of rows cost more by the call than by the row.
        """
        if getattr(self.tokens, "whole", False) or columns == 1:
            return [(0, self.shape[0])]
        a_token = CACHE_BYTES / self.tokens.block_rows + 8 * columns
        most = max(int(CACHE_BYTES / a_token), 1)
        found, first = [], 0
        while first < self.shape[0]:
            here = int(np.searchsorted(self.ends, first, side="right"))  # however long, one fits
            last = max(int(np.searchsorted(self.ends, first + most, side="right")) - 1, here)
            found.append((first, int(self.ends[last])))
            first = found[-1][1]
        return found

    def rows(self, start: int, stop: int) -> Sequences:
        """The sequences from one end to another."""
        tokens: Any = self.tokens
        ends = self.ends[(self.ends > start) & (self.ends <= stop)] - start
        return Sequences(tokens.rows(start, stop), ends)

    def cut(self, n_shards: int) -> NDArray:
        """Ends that cut the rows into about equal parts, in number as many as asked or as there are."""
        return cut_at(self.ends, n_shards)

    def scores(self, w: Array, start: int, stop: int) -> Array:
        """Those of the tokens."""
        return self.tokens.scores(w, start, stop)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        """Back to the features of the tokens."""
        self.tokens.pullback(dz, start, stop, out)


@dataclass(frozen=True)
class Chain:
    r"""The scores of chains: of each token's labels, of neighbouring labels, and of first and last labels.

    .. math:: s(y) = start_{y_1} + \sum_t (W^\top x_t)_{y_t} + \sum_t T_{y_t, y_{t+1}} + end_{y_n}

    In w they come in the order W (p, k), T (k, k), start (k), end (k). The scores of some tokens are an array
    with k columns: a row a token, then the rows of T, then start, then end.

    Parameters
    ----------
    k : int
        The number of labels.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.matrices import as_matrix
    >>> w = np.arange(1.0, 13.0)  # two features, two labels
    >>> Chain(2).scores(as_matrix(np.eye(2)), w, 1, 2).tolist()
    [[3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0], [11.0, 12.0]]
    """

    k: int

    @property
    def columns(self) -> int:
        """As many as there are labels."""
        return self.k

    @property
    def shared(self) -> int:
        """How many rows of the scores belong to all tokens."""
        return self.k + 2

    def dim(self, n_features: int) -> int:
        """The length of w."""
        return (n_features + self.shared) * self.k

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        """Those of the tokens from start to stop, then those that all tokens share."""
        W = w.reshape(-1, self.k)
        return np.concatenate([X.scores(W[: -self.shared], start, stop), W[-self.shared :]])

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add the slopes in w to out."""
        into = out.reshape(-1, self.k)  # a view: w is in one piece
        X.pullback(dz[: -self.shared], start, stop, into[: -self.shared])
        into[-self.shared :] += dz[-self.shared :]


def decode(E: NDArray, T: NDArray, start: NDArray, end: NDArray, ends: NDArray) -> NDArray:
    """The best labels of each sequence, by Viterbi's algorithm.

    Parameters
    ----------
    E : (n, k) array
        The scores of the labels of each token.
    T : (k, k) array
        The scores of neighbours, ``T[a, b]`` of b after a; -inf where that is not allowed.
    start, end : (k,) array
        The scores of first and last labels; -inf where they are not allowed.
    ends : (m,) array of int
        The rows before which the sequences end.

    Returns
    -------
    (n,) array of int

    Examples
    --------
    >>> import numpy as np
    >>> E = np.array([[1.0, 0.0], [0.0, 2.0], [1.5, 0.0]])
    >>> T = np.array([[0.0, -np.inf], [0.0, 0.0]])  # no 1 after a 0
    >>> decode(E, T, np.zeros(2), np.zeros(2), np.array([3]))
    array([1, 1, 0])
    """
    z, ends = _stacked(E, T, start, end, ends)
    y, path = np.zeros(len(E), dtype=np.int64), np.zeros(len(E), dtype=np.int64)
    if len(ends) == 0:
        return path
    _kernels()[1].worst_paths(z, y, ends, np.zeros(len(ends)), 0.0, False, path, z)  # by weight 0, z stays
    begins = np.append(0, ends[:-1])
    steps = T[path[:-1], path[1:]]
    steps[begins[1:] - 1] = 0.0
    allowed = E[np.arange(len(E)), path] + np.append(0.0, steps)
    allowed[begins] += start[path[begins]]
    allowed[ends - 1] += end[path[ends - 1]]
    if not np.all(allowed > -np.inf):
        s = int(np.searchsorted(ends, np.argmin(allowed), side="right"))
        raise ValueError(
            f"sequence {s} has no label sequence that is allowed: its scores, or those of transitions, rule "
            "all of them out"
        )
    return path


def marginals(E: NDArray, T: NDArray, start: NDArray, end: NDArray, ends: NDArray) -> NDArray:
    """The probability of each label of each token, given its whole sequence.

    Parameters
    ----------
    E, T, start, end, ends
        As for `decode`.

    Returns
    -------
    (n, k) array
        Rows of sum one.

    Examples
    --------
    >>> import numpy as np
    >>> E, T = np.zeros((2, 2)), np.array([[0.0, -np.inf], [0.0, 0.0]])  # 00, 10 and 11 are left
    >>> marginals(E, T, np.zeros(2), np.zeros(2), np.array([2])).round(4).tolist()
    [[0.3333, 0.6667], [0.6667, 0.3333]]
    """
    path = decode(E, T, start, end, ends)  # an allowed one, from which sums are counted
    z, ends = _stacked(E, T, start, end, ends)
    dz, value = np.zeros_like(z), np.zeros(len(ends))
    if len(ends) == 0:
        return dz[:0]
    _kernels()[0].expectations(z, path, ends, np.ones(len(ends)), dz, value)
    found: NDArray = dz[: len(E)]
    found[np.arange(len(E)), path] += 1.0
    return np.clip(found, 0.0, 1.0)


def _stacked(E: NDArray, T: NDArray, start: NDArray, end: NDArray, ends: NDArray) -> tuple[NDArray, NDArray]:
    """All scores in one array, as the kernels take them, and the ends."""
    z = np.concatenate([E, T, start[None], end[None]]).astype(np.float64, copy=False)
    return np.ascontiguousarray(z), np.asarray(ends, dtype=np.int64)
