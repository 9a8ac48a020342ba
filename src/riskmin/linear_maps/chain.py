"""The linear map of chain models: token emissions, transitions, starts and ends; decoding and marginals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csc_array

from riskmin._numba import lazy_module
from riskmin.arrays.sequences import tokens_of
from riskmin.core import Array, LinearMap, Matrix, NDArray
from riskmin.core.deadline import fill_in_chunks, scatter_in_chunks

_forward_backward = lazy_module("chain.forward_backward")
_viterbi = lazy_module("chain.viterbi")
_pair_kernels = lazy_module("chain.seen_pairs")


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

    def split(self, w: NDArray) -> tuple[Any, NDArray]:
        """Return the emission weights, of shape (k, p), and the rows of T, start and end."""
        W = w.reshape(-1, self.k)
        return W[: -self.shared].T, W[-self.shared :]

    def join(self, W: NDArray, tail: NDArray) -> NDArray:
        """Return w, given W (p, k) and the rows of T, start and end: the inverse of `split`."""
        return np.concatenate([W.reshape(-1), tail.reshape(-1)])

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


@dataclass(frozen=True)
class PairChainMap(ChainMap):
    r"""A `ChainMap` in which only some pairs of feature and label have an emission weight; others are zero.

    The order in w is that of the pairs, by feature and then by label, followed by T, start and end.

    Parameters
    ----------
    k : int
        The number of labels.
    pair_ends : (p + 1,) array of int
        The weights of feature f are those from ``pair_ends[f]`` to ``pair_ends[f + 1] - 1``.
    labels : (m,) array of int
        The label of each of the m emission weights.
    """

    pair_ends: NDArray = field(compare=False, repr=False)
    labels: NDArray = field(compare=False, repr=False)

    def dim(self, n_features: int) -> int:
        """Return the length of w."""
        return len(self.labels) + self.shared * self.k

    @property
    def pairs(self) -> tuple[NDArray, NDArray]:
        """The feature and the label of each emission weight."""
        return np.repeat(np.arange(len(self.pair_ends) - 1), np.diff(self.pair_ends)), self.labels

    def split(self, w: NDArray) -> tuple[Any, NDArray]:
        """Return the emission weights as a sparse array of shape (k, p), and the rows of T, start and end."""
        m, shape = len(self.labels), (self.k, len(self.pair_ends) - 1)
        return csc_array((w[:m], self.labels, self.pair_ends), shape=shape), w[m:].reshape(-1, self.k)

    def join(self, W: NDArray, tail: NDArray) -> NDArray:
        """Return w, given W (p, k) and the rows of T, start and end; other pairs are left out."""
        return np.concatenate([W[self.pairs], tail.reshape(-1)])

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        """Return the scores of tokens start to stop - 1, followed by the rows that all tokens share."""
        m, rows = len(self.labels), _csr_arrays(X)
        if rows is None:
            W = np.zeros((len(self.pair_ends) - 1, self.k))
            W[self.pairs] = w[:m]
            E = X.scores(W, start, stop)
        else:
            E, work = np.empty((stop - start, self.k)), self._work(rows, start, stop)
            parts = *rows, self.pair_ends, self.labels
            fill_in_chunks(_pair_kernels().pair_scores, parts, w, start, stop, E, work)
        return np.concatenate([E, w[m:].reshape(-1, self.k)])

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add the gradient in w to out."""
        m, rows, d = len(self.labels), _csr_arrays(X), dz[: -self.shared]
        if rows is None:
            D = np.zeros((len(self.pair_ends) - 1, self.k))
            X.pullback(d, start, stop, D)
            out[:m] += D[self.pairs]
        else:
            parts, work = (*rows, self.pair_ends, self.labels), self._work(rows, start, stop)
            scatter_in_chunks(_pair_kernels().pair_pullback, parts, d, start, stop, out, work)
        out[m:] += dz[-self.shared :].reshape(-1)

    def _work(self, rows: tuple[NDArray, ...], start: int, stop: int) -> float:
        """Return an upper bound of the number of multiplications for a range of rows."""
        return float(rows[0][stop] - rows[0][start]) * self.k


def _csr_arrays(X: Matrix) -> tuple[NDArray, NDArray, NDArray] | None:
    """Return row ends, columns and values of a matrix whose rows are sparse; None for others."""
    tokens = tokens_of(X)
    rows = None if tokens.by_columns else tokens.as_scipy()
    return None if rows is None else (rows.indptr, rows.indices, rows.data)


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
    _viterbi().most_violating_paths(z, y, ends, np.zeros(len(ends)), 0.0, 0.0, labels, z)
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
    _forward_backward().expectations(z, labels, ends, np.ones(len(ends)), dz, value)
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
