"""Matrices whose rows are grouped in sequences, such as the tokens of sentences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.core import Array, Matrix, NDArray
from riskmin.core.limits import LIMITS


def even_sequence_ends(ends: NDArray, n_shards: int) -> NDArray:
    """Return 0 and the sequence ends that cut the rows into shards of about equal size."""
    all_ends = np.append(0, ends)
    # cuts into equal numbers of rows, then moved to sequence ends
    targets = np.linspace(0, all_ends[-1], n_shards + 1)[1:-1]
    next_end = np.searchsorted(all_ends, targets)
    # of the two sequence ends around each target, the nearer one
    previous_is_nearer = targets - all_ends[next_end - 1] < all_ends[next_end] - targets
    cuts: NDArray = np.unique(np.concatenate([[0], all_ends[next_end - previous_is_nearer], all_ends[-1:]]))
    return cuts


@dataclass(frozen=True)
class Sequences(Matrix):
    """A matrix with one row per token, and the ends of its sequences.

    Parameters
    ----------
    tokens : Matrix
        The features.
    ends : (m,) array
        The row after the last row of each sequence, in increasing order; the last is the number of rows.
    """

    tokens: Matrix
    ends: NDArray = field(repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.tokens, ForeignArray):
            raise ValueError("chains are computed by NumPy: give X as a NumPy array or a SciPy sparse matrix")
        ends = np.asarray(self.ends, dtype=np.int64)
        if len(ends) == 0 or ends[-1] != self.tokens.shape[0] or np.any(np.diff(ends, prepend=0) < 1):
            raise ValueError(
                "sequences must have a token each and end with the last row: give increasing ends"
            )
        object.__setattr__(self, "ends", ends)

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens and features."""
        return self.tokens.shape

    @property
    def block_rows(self) -> int:
        """The block size of the underlying matrix, in tokens."""
        return self.tokens.block_rows

    @property
    def nnz(self) -> int:
        """The number of stored entries of the features."""
        return self.tokens.nnz

    def blocks(self, columns: int) -> list[tuple[int, int]]:
        """Return ranges of rows to score together: whole sequences, about a megabyte of features and scores.

        With one score per row it is a single range of all rows: losses of groups of rows cost more per call
        than per row.
        """
        if self.tokens.one_block or columns == 1:
            return [(0, self.shape[0])]
        # the features of a token, by the block size of the matrix, and its scores
        bytes_per_token = LIMITS.block_bytes / self.tokens.block_rows + 8 * columns
        n_max = max(int(LIMITS.block_bytes / bytes_per_token), 1)
        ranges, first = [], 0
        while first < self.shape[0]:
            # at least the next sequence, even if it exceeds the block size
            first_sequence = int(np.searchsorted(self.ends, first, side="right"))
            last = max(int(np.searchsorted(self.ends, first + n_max, side="right")) - 1, first_sequence)
            ranges.append((first, int(self.ends[last])))
            first = ranges[-1][1]
        return ranges

    def rows(self, start: int, stop: int) -> Sequences:
        """Return the sequences in a range of rows that begins and ends at sequence ends."""
        ends = self.ends[(self.ends > start) & (self.ends <= stop)] - start
        return Sequences(self.tokens.rows(start, stop), ends)

    def shard_ends(self, n_shards: int) -> NDArray:
        """Return the sequence ends that cut the rows into at most n_shards parts of about equal size."""
        return even_sequence_ends(self.ends, n_shards)

    def absolute(self, start: int, stop: int) -> Sequences | None:
        """Return the sequences in a range of rows with the absolute values of their features."""
        part = self.rows(start, stop)
        tokens = part.tokens.absolute(0, part.shape[0])
        return None if tokens is None else Sequences(tokens, part.ends)

    def scores(self, w: Array, start: int, stop: int) -> Array:
        """Return the scores of tokens."""
        return self.tokens.scores(w, start, stop)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add the gradient in the weights of the tokens' features to out."""
        self.tokens.pullback(dz, start, stop, out)


def tokens_of(X: Matrix) -> Matrix:
    """Return the rows of features of tokens; X itself, if its rows are not grouped in sequences."""
    return X.tokens if isinstance(X, Sequences) else X
