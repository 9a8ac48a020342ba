"""Sums over all label sequences of chains: log partition functions and marginals by forward-backward.

All scores of a chain are in one array z with k columns: n rows of token scores (one row per token), then the
k rows of transition scores (row a: from label a), then one row of first-label scores, then one row of
last-label scores. Sequences are stored one after the other; sequence s ends before row ``ends[s]``.

Probabilities are rescaled at every token, which costs one exponential per token and label and none per pair
of labels. If the transition scores differ by at most 300 this is exact for any token
scores: any label can follow any other with a factor of at least e^-300, so the forward and backward factors
of a token's labels differ by at most e^300, and terms that underflow, below e^-708, do not change any
marginal. For a larger range the same sums are taken in logarithms (`log_space`), about five times slower.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin._numba.chain.log_space import log_domain_expectations, subtract_label_counts
from riskmin._numba.compile_cache import njit
from riskmin._numba.exponential import exponential


def expectations(z: Any, y: Any, ends: Any, c: Any, dz: Any, value: Any) -> None:
    """Compute value[s] = log Z_s - score(y_s) per sequence and dz = sum_s c_s (marginals - counts of y_s).

    dz has the layout of z and comes in as zeros; sequences of weight c_s = 0 are skipped. This function is
    not compiled itself, so that only the branch in use is compiled.
    """
    n, k = len(y), z.shape[1]
    low, high = float(z[n : n + k].min()), float(z[n : n + k].max())
    longest = int(np.diff(ends, prepend=0).max())
    # forbidden transitions (-inf) and a range too large for scaled probabilities need the log-domain sums
    if -math.inf < low and high - low <= 300.0:
        factors = np.exp(z[n : n + k] - high)
        # `_product` takes four rows at a time: pad with rows of zeros to a multiple of four
        padded = -(-k // 4) * 4
        forward, backward, pairs = np.zeros((padded, k)), np.zeros((padded, k)), np.zeros((k, k))
        forward[:k], backward[:k] = factors, factors.T
        weight, alpha = np.empty((longest, k)), np.zeros((longest, padded))
        g, beta = np.zeros(padded), np.empty(k)
        _scaled(
            z, y, ends, c, dz, value, high, forward, backward, weight, weight.ravel(), alpha, g, beta, pairs
        )
        # the kernel leaves out the transition factors, which are the same for all tokens
        dz[n : n + k] += pairs * factors
    else:
        x, alpha, P = np.empty((longest, k)), np.empty((longest, k)), np.empty(k * k)
        log_domain_expectations(z, y, ends, c, dz, value, x, alpha, P, np.empty(k), np.empty(k))


@njit(fastmath={"contract"})
def _scaled(
    z: Any, y: Any, ends: Any, c: Any, dz: Any, value: Any, top: float, forward: Any, backward: Any,
    weight: Any, flat: Any, alpha: Any, g: Any, beta: Any, pairs: Any,
) -> None:  # fmt: skip
    """Forward-backward in scaled probabilities, as `expectations`; top is the largest transition score.

    forward[a, b] = e^(T[a, b] - top), padded with rows of zeros, and backward is its
    transpose. pairs[a, b] accumulates the pair marginals without the factor e^(T[a, b] - top), which the
    caller applies. The other arrays are workspaces for the longest sequence: weight (m, k), flat (the same
    memory as weight), alpha (m, padded k), g (padded k) and beta (k).
    """
    n, k, first = len(y), z.shape[1], 0
    for s in range(len(ends)):
        end, m = ends[s], ends[s] - first
        if c[s] != 0:
            log_scale = _weights(z, y, first, end, top, weight)
            # token factors e^(z_t - max z_t), in (0, 1], in one vectorized loop
            for i in range(m * k):
                flat[i] = exponential(flat[i])
            value[s] = log_scale + _forward(weight, forward, alpha, m)
            _backward(weight, backward, alpha, g, beta, pairs, c[s], dz[first:end])
            for b in range(k):
                # marginals of the first and last labels are those of the first and last token
                dz[n + k, b] += dz[first, b]
                dz[n + k + 1, b] += dz[end - 1, b]
            subtract_label_counts(y, first, end, c[s], dz)
        first = end


@njit(inline="always")
def _weights(z: Any, y: Any, first: int, end: int, top: float, weight: Any) -> float:
    """Write z_t - max z_t to weight[t - first], and return the sum of these maxima minus the score of y.

    Scores of first and last labels are added to the first and last token; each transition counts as top.
    """
    n, k, difference = len(y), z.shape[1], 0.0
    for t in range(first, end):
        row, maximum = weight[t - first], -np.inf
        for b in range(k):
            v = z[t, b]
            if t == first:
                v += z[n + k, b]
            if t == end - 1:
                v += z[n + k + 1, b]
            row[b] = v
            maximum = v if v > maximum else maximum
        # the maxima enter log Z, and the score of y is subtracted
        difference += maximum - row[y[t]]
        if t > first:
            difference += top - z[n + y[t - 1], y[t]]
        for b in range(k):
            row[b] -= maximum
    return difference


@njit(fastmath={"contract"})
def _product(a: Any, M: Any, out: Any) -> None:
    """Compute out = a @ M, four rows of M at a time: a quarter of the loads and stores of out."""
    for b in range(len(out)):
        out[b] = 0.0
    for i in range(0, len(M), 4):
        a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
        for b in range(len(out)):
            out[b] += a0 * M[i, b] + a1 * M[i + 1, b] + a2 * M[i + 2, b] + a3 * M[i + 3, b]


@njit(fastmath={"contract", "reassoc", "nsz"})
def _dot(a: Any, b: Any) -> float:
    """Return a[:len(b)] @ b."""
    s = 0.0
    for i in range(len(b)):
        s += a[i] * b[i]
    return s


@njit(inline="always")
def _forward(weight: Any, forward: Any, alpha: Any, m: int) -> float:
    """Fill alpha[t, b] = p(label b at t | scores up to t), and return log of the product of all scales.

    alpha_t = (alpha_{t-1} @ forward) * weight_t / total_t. The logarithm is taken only when the
    product of the totals leaves [1e-150, 1e150], not once per token.
    """
    logs, scale, k = 0.0, 1.0, weight.shape[1]
    for t in range(m):
        w, row = weight[t], alpha[t, :k]
        if t:
            _product(alpha[t - 1], forward, row)
        else:
            for b in range(k):
                row[b] = 1.0
        # normalize: the totals multiply to Z, relative to the maxima taken out by `_weights`
        total = _dot(row, w)
        inverse = 1.0 / total
        for b in range(k):
            row[b] *= w[b] * inverse
        scale *= total
        # one logarithm for many tokens, before the product can over- or underflow
        if not 1e-150 < scale < 1e150:
            logs, scale = logs + math.log(scale), 1.0
    return logs + math.log(scale)


@njit(inline="always")
def _backward(
    weight: Any, backward: Any, alpha: Any, g: Any, beta: Any, pairs: Any, c: float, dz: Any
) -> None:
    """Write c times the marginals to dz, and add the pair sums, without transition factors, to pairs.

    beta_{t-1} = backward.T @ (weight_t * beta_t), scaled such that the marginals alpha * beta of each
    token sum to one: rounding errors do not accumulate along the sequence.
    """
    k, last = len(beta), len(dz) - 1
    # no score follows the last token: beta = 1, and its marginals are alpha
    for b in range(k):
        beta[b] = 1.0
        dz[last, b] = c * alpha[last, b]
    for t in range(last, 0, -1):
        w, row = weight[t], alpha[t - 1, :k]
        for b in range(k):
            # message from token t to t - 1
            g[b] = w[b] * beta[b]
        _product(g, backward, beta)
        # sum_b alpha_{t-1}[b] beta_{t-1}[b] = 1 after scaling
        inverse = 1.0 / _dot(row, beta)
        for b in range(k):
            beta[b] *= inverse
            dz[t - 1, b] = c * row[b] * beta[b]
            # the same scale for the messages, which become the second factor of the pair marginals
            g[b] *= c * inverse
        for a in range(k):
            v = row[a]
            for b in range(k):
                # c p(y_{t-1} = a, y_t = b) without the factor e^(T[a, b] - top)
                pairs[a, b] += v * g[b]
