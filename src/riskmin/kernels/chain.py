"""Sums over all label sequences of chains: log partition functions and marginals, forward and backward.

Everything a chain is scored by is one array z: a row of k scores a token, then the k rows of the transitions
(row a: from label a), then the scores of first labels, then those of last labels. Sequences lie one after
the other, the s-th ending before row ``ends[s]``.

Probabilities are scaled at every token, which needs an exponential a token and label and none a pair of
labels. With transitions that differ by no more than `SPREAD` this is exact whatever the other scores are:
any label can follow any other at a price of e^-300, so what a token's labels have before them and behind
them differs by no more than e^300, and what falls below the smallest number, e^-708, is no part of any
marginal. With wider transitions the same sums are taken in logarithms (`chain_logs`), some five times slower.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.kernels.chain_logs import expectations_in_logs, take_off_counts
from riskmin.kernels.compiled import njit
from riskmin.kernels.exponential import exponential

SPREAD = 300.0


def expectations(z: Any, y: Any, ends: Any, c: Any, dz: Any, value: Any) -> None:
    """value[s] = log Z - score of y, of each sequence; dz = sum_s c_s (marginals - counts of y).

    dz comes in as zeros; sequences of weight zero are passed over. Not compiled itself, so that no more is
    compiled than is needed.
    """
    n, k = len(y), z.shape[1]
    low, high = float(z[n : n + k].min()), float(z[n : n + k].max())
    longest = int(np.diff(ends, prepend=0).max())
    if -math.inf < low and high - low <= SPREAD:
        factors = np.exp(z[n : n + k] - high)
        wide = -(-k // 4) * 4  # rows of zeros make their number a multiple of four
        there, back, pairs = np.zeros((wide, k)), np.zeros((wide, k)), np.zeros((k, k))
        there[:k], back[:k] = factors, factors.T
        weight, room = np.empty((longest, k)), (np.zeros((longest, wide)), np.zeros(wide), np.empty(k))
        _scaled(z, y, ends, c, dz, value, high, there, back, weight, weight.ravel(), *room, pairs)
        dz[n : n + k] += pairs * factors
    else:
        x, alpha, P = np.empty((longest, k)), np.empty((longest, k)), np.empty(k * k)
        expectations_in_logs(z, y, ends, c, dz, value, x, alpha, P, np.empty(k), np.empty(k))


@njit(fastmath={"contract"})
def _scaled(
    z: Any, y: Any, ends: Any, c: Any, dz: Any, value: Any, top: float, there: Any, back: Any,
    weight: Any, flat: Any, alpha: Any, g: Any, beta: Any, pairs: Any,
) -> None:  # fmt: skip
    """The sums in scaled probabilities, for transitions of at most top.

    `there` has the factors of transitions, and `back` their transpose; they are left out of `pairs`. What
    follows is room; `flat` is the same as `weight`.
    """
    n, k, first = len(y), z.shape[1], 0
    for s in range(len(ends)):
        end, m = ends[s], ends[s] - first
        if c[s] != 0:
            above = _weights(z, y, first, end, top, weight)
            for i in range(m * k):
                flat[i] = exponential(flat[i])
            value[s] = above + _forward(weight, there, alpha, m)
            _backward(weight, back, alpha, g, beta, pairs, c[s], dz[first:end])
            for b in range(k):
                dz[n + k, b] += dz[first, b]
                dz[n + k + 1, b] += dz[end - 1, b]
            take_off_counts(y, first, end, c[s], dz)
        first = end


@njit(inline="always")
def _weights(z: Any, y: Any, first: int, end: int, top: float, weight: Any) -> float:
    """The scores of a sequence's tokens less their maxima, and by how much those are above y's score."""
    n, k, above = len(y), z.shape[1], 0.0
    for t in range(first, end):
        row, most = weight[t - first], -np.inf
        for b in range(k):
            v = z[t, b]
            if t == first:
                v += z[n + k, b]
            if t == end - 1:
                v += z[n + k + 1, b]
            row[b] = v
            most = v if v > most else most
        above += most - row[y[t]]
        if t > first:
            above += top - z[n + y[t - 1], y[t]]
        for b in range(k):
            row[b] -= most
    return above


@njit(fastmath={"contract"})
def _product(a: Any, M: Any, out: Any) -> None:
    """Out = a @ M, four rows at a time: a quarter of the loads and stores of out."""
    for b in range(len(out)):
        out[b] = 0.0
    for i in range(0, len(M), 4):
        a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
        for b in range(len(out)):
            out[b] += a0 * M[i, b] + a1 * M[i + 1, b] + a2 * M[i + 2, b] + a3 * M[i + 3, b]


@njit(fastmath={"contract", "reassoc", "nsz"})
def _dot(a: Any, b: Any) -> float:
    s = 0.0
    for i in range(len(b)):
        s += a[i] * b[i]
    return s


@njit(inline="always")
def _forward(weight: Any, there: Any, alpha: Any, m: int) -> float:
    """alpha[t]: the probabilities of the labels of token t, given what is before; and the log of their scale.

    The scales multiply up to a few hundred binary orders before a logarithm is taken of them.
    """
    logs, scale, k = 0.0, 1.0, weight.shape[1]
    for t in range(m):
        w, row = weight[t], alpha[t, :k]
        if t:
            _product(alpha[t - 1], there, row)
        else:
            for b in range(k):
                row[b] = 1.0
        total = _dot(row, w)
        share = 1.0 / total
        for b in range(k):
            row[b] *= w[b] * share
        scale *= total
        if not 1e-150 < scale < 1e150:
            logs, scale = logs + math.log(scale), 1.0
    return logs + math.log(scale)


@njit(inline="always")
def _backward(weight: Any, back: Any, alpha: Any, g: Any, beta: Any, pairs: Any, c: float, dz: Any) -> None:
    """The marginals into dz, and the sums over neighbours into pairs, but for the factors of transitions.

    Each token's marginals are made to sum to one, so that rounding does not add up along the sequence.
    """
    k, last = len(beta), len(dz) - 1
    for b in range(k):
        beta[b] = 1.0
        dz[last, b] = c * alpha[last, b]
    for t in range(last, 0, -1):
        w, row = weight[t], alpha[t - 1, :k]
        for b in range(k):
            g[b] = w[b] * beta[b]
        _product(g, back, beta)
        share = 1.0 / _dot(row, beta)
        for b in range(k):
            beta[b] *= share
            dz[t - 1, b] = c * row[b] * beta[b]
            g[b] *= c * share
        for a in range(k):
            v = row[a]
            for b in range(k):
                pairs[a, b] += v * g[b]
