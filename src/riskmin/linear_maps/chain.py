"""The linear map of chain models: token emissions, transitions, starts and ends; decoding and marginals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from riskmin.core import Array, LinearMap, Matrix, NDArray


@cache
def _kernels() -> tuple[Any, Any]:
    from riskmin._numba.chain import (
        forward_backward,
        viterbi,  # Numba is imported by the first use, not with the package
    )

    return forward_backward, viterbi


@dataclass(frozen=True)
class ChainMap(LinearMap):
    r"""The scores of chains: of each token's labels, of adjacent labels, and of first and last labels.

    .. math:: s(y) = start_{y_1} + \sum_t (W^\top x_t)_{y_t} + \sum_t T_{y_t, y_{t+1}} + end_{y_n}

    The order in w is W (p, k), T (k, k), start (k), end (k). The scores of a range of tokens are an array
    with k columns: one row per token, then the rows of T, then start, then end.

    Parameters
    ----------
    k : int
        The number of labels.
    """

    k: int

    @property
    def columns(self) -> int:
        """The number of labels."""
        return self.k

    @property
    def shared(self) -> int:  # type: ignore[override]
        """The number of rows of scores that all tokens share: T, start and end."""
        return self.k + 2

    def dim(self, n_features: int) -> int:
        """Return the length of w."""
        return (n_features + self.shared) * self.k

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        """Return the scores of tokens start to stop - 1, followed by the rows that all tokens share."""
        W = w.reshape(-1, self.k)
        return np.concatenate([X.scores(W[: -self.shared], start, stop), W[-self.shared :]])

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add the gradient in w to out."""
        grad = out.reshape(-1, self.k)  # a view, since w is contiguous
        X.pullback(dz[: -self.shared], start, stop, grad[: -self.shared])
        # T, start and end are scores and weights at the same time: their map is the identity
        grad[-self.shared :] += dz[-self.shared :]


def decode(E: NDArray, T: NDArray, start: NDArray, end: NDArray, ends: NDArray) -> NDArray:
    """Return the label sequence of the largest score for each sequence, by the Viterbi algorithm.

    Parameters
    ----------
    E : (n, k) array
        The scores of the labels of each token.
    T : (k, k) array
        The scores of adjacent labels, ``T[a, b]`` of b after a; -inf where that is not allowed.
    start, end : (k,) array
        The scores of first and last labels; -inf where they are not allowed.
    ends : (m,) array of int
        The row after the last row of each sequence.

    Returns
    -------
    (n,) array of int
    """
    z, ends = _stack_scores(E, T, start, end, ends)
    # with cost 0, the most violating path is the path of the largest score, whatever the reference y
    y, labels = np.zeros(len(E), dtype=np.int64), np.zeros(len(E), dtype=np.int64)
    if len(ends) == 0:
        return labels
    # with weights of zero, the kernel adds nothing to z, its gradient argument
    _kernels()[1].most_violating_paths(z, y, ends, np.zeros(len(ends)), 0.0, 0.0, labels, z)
    starts = np.append(0, ends[:-1])
    transitions = T[labels[:-1], labels[1:]]
    # no transition between the last token of a sequence and the first of the next
    transitions[starts[1:] - 1] = 0.0
    # -inf marks labels that are not allowed: by their own score, or by the transition before them
    label_scores = E[np.arange(len(E)), labels] + np.append(0.0, transitions)
    label_scores[starts] += start[labels[starts]]
    label_scores[ends - 1] += end[labels[ends - 1]]
    if not np.all(label_scores > -np.inf):
        s = int(np.searchsorted(ends, np.argmin(label_scores), side="right"))
        raise ValueError(
            f"sequence {s} has no label sequence that is allowed: its scores, or those of transitions, rule "
            "all of them out"
        )
    return labels


def marginals(E: NDArray, T: NDArray, start: NDArray, end: NDArray, ends: NDArray) -> NDArray:
    """Return the probability of each label of each token, given its whole sequence.

    Parameters
    ----------
    E, T, start, end, ends
        See `decode`.

    Returns
    -------
    (n, k) array
        Each row sums to one.
    """
    # the kernel's gradient is the expectation minus the indicators of a reference path: an allowed one
    labels = decode(E, T, start, end, ends)
    z, ends = _stack_scores(E, T, start, end, ends)
    dz, value = np.zeros_like(z), np.zeros(len(ends))
    if len(ends) == 0:
        return dz[:0]
    _kernels()[0].expectations(z, labels, ends, np.ones(len(ends)), dz, value)
    # adding the indicators of the path again leaves the expectations, which are the marginals
    probabilities: NDArray = dz[: len(E)]
    probabilities[np.arange(len(E)), labels] += 1.0
    return np.clip(probabilities, 0.0, 1.0)


def _stack_scores(
    E: NDArray, T: NDArray, start: NDArray, end: NDArray, ends: NDArray
) -> tuple[NDArray, NDArray]:
    """Return all scores in one array, in the layout of the kernels, and the ends as int64."""
    z = np.concatenate([E, T, start[None], end[None]]).astype(np.float64, copy=False)
    return np.ascontiguousarray(z), np.asarray(ends, dtype=np.int64)
