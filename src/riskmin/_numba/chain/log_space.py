"""Forward-backward over chains in logarithms, for transition scores of too large a range for scaling.

Forbidden transitions (score -inf) are allowed. Each token costs k x k exponentials per direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit
from riskmin._numba.exponential import exponential


@njit()
def log_domain_expectations(
    z: Any, y: Any, ends: Any, c: Any, dz: Any, value: Any,
    x: Any, alpha: Any, P: Any, low: Any, beta: Any,
) -> None:  # fmt: skip
    """Compute value[s] = log Z_s - score(y_s) per sequence and dz = sum_s c_s (marginals - counts of y_s).

    The layouts of z and dz are those of `forward_backward.expectations`.

    Workspaces: x and alpha (longest sequence, k), P (k * k, pairs of labels), low and beta (k).
    """
    n, k, first = len(y), z.shape[1], 0
    T, pairs = z[n : n + k], dz[n : n + k]
    for s in range(len(ends)):
        end = ends[s]
        if c[s] != 0:
            value[s] = _weights(z, y, first, end, x)
            # log Z = sum of the maxima + log of the sum of the remaining factors
            value[s] += _forward(x[: end - first], T, P, low, alpha)
            _backward(x[: end - first], T, P, low, alpha, beta, pairs, c[s], dz[first:end])
            # marginals of the first and last labels are those of the first and last token
            for b in range(k):
                dz[n + k, b] += dz[first, b]
                dz[n + k + 1, b] += dz[end - 1, b]
            subtract_label_counts(y, first, end, c[s], dz)
        first = end


@njit(inline="always")
def subtract_label_counts(y: Any, first: int, end: int, c: float, dz: Any) -> None:
    """Subtract c times the counts of y (tokens, transitions, first and last label) from dz."""
    n, k = len(y), dz.shape[1]
    for t in range(first, end):
        dz[t, y[t]] -= c
        if t > first:
            dz[n + y[t - 1], y[t]] -= c
    dz[n + k, y[first]] -= c
    dz[n + k + 1, y[end - 1]] -= c


@njit()
def exp_in_place(x: Any) -> None:
    """Replace x by e^x."""
    for i in range(len(x)):
        x[i] = exponential(x[i])


@njit()
def _weights(z: Any, y: Any, first: int, end: int, x: Any) -> float:
    """Write z_t - max z_t to x[t - first], and return the sum of these maxima minus the score of y.

    Scores of first and last labels are added to the first and last token.
    """
    n, k = len(y), z.shape[1]
    difference = 0.0
    for t in range(first, end):
        row = x[t - first]
        for b in range(k):
            row[b] = z[t, b]
            if t == first:
                row[b] += z[n + k, b]
            if t == end - 1:
                row[b] += z[n + k + 1, b]
        # the maxima enter log Z; the score of y is subtracted
        maximum = largest(row)
        difference += maximum - row[y[t]]
        if t > first:
            difference -= z[n + y[t - 1], y[t]]
        for b in range(k):
            row[b] -= maximum
    return difference


@njit()
def largest(x: Any) -> float:
    """Return the maximum of x; np.max takes a second more to compile."""
    maximum = -np.inf
    for b in range(len(x)):
        maximum = x[b] if x[b] > maximum else maximum
    return maximum


@njit()
def _forward(x: Any, T: Any, P: Any, low: Any, alpha: Any) -> float:
    """Fill alpha[t, b] = log sum over prefixes that end in b, minus its maximum over b; return log Z.

    alpha_t[b] = x_t[b] + log sum_a e^(alpha_{t-1}[a] + T[a, b]), by log-sum-exp: low[b] is the maximum over
    a.
    """
    k = len(T)
    for b in range(k):
        alpha[0, b] = x[0, b]
    logs = 0.0
    for t in range(1, len(x)):
        previous, current = alpha[t - 1], alpha[t]
        for b in range(k):
            low[b] = -np.inf
        for a in range(k):
            for b in range(k):
                # P[a, b] = alpha_{t-1}[a] + T[a, b], and its maximum over a
                v = previous[a] + T[a, b]
                P[a * k + b] = v
                low[b] = v if v > low[b] else low[b]
        for b in range(k):
            current[b] = 0.0
            # a label that no label leads to: avoid -inf - (-inf)
            low[b] = low[b] if low[b] > -np.inf else 0.0
        for a in range(k):
            for b in range(k):
                P[a * k + b] -= low[b]
        # all exponents are at most zero: nothing overflows
        exp_in_place(P)
        for a in range(k):
            for b in range(k):
                current[b] += P[a * k + b]
        for b in range(k):
            current[b] = np.log(current[b]) + low[b] + x[t, b]
        # shift by the maximum, so that alpha stays near zero; the shifts add up to log Z
        maximum = largest(current)
        logs += maximum
        for b in range(k):
            current[b] -= maximum
    for b in range(k):
        # log of the sum over the last token's labels
        low[b] = alpha[len(x) - 1, b]
    exp_in_place(low)
    total = 0.0
    for b in range(k):
        total += low[b]
    return logs + float(np.log(total))


@njit()
def _backward(x: Any, T: Any, P: Any, low: Any, alpha: Any, beta: Any, pairs: Any, c: float, dz: Any) -> None:
    """Write c times the marginals to dz, and add c times the pair marginals to pairs.

    beta_{t-1}[a] = log sum_b e^(T[a, b] + x_t[b] + beta_t[b]). P becomes p(next label b | label a), so that
    beta and the pair marginals p(a) p(b | a) come from the same k x k exponentials.
    """
    k, last = len(T), len(x) - 1
    for b in range(k):
        beta[b] = 0.0
    _marginals(alpha[last], beta, c, dz[last])
    for t in range(last, 0, -1):
        for b in range(k):
            beta[b] += x[t, b]
        for a in range(k):
            maximum = -np.inf
            for b in range(k):
                # log-sum-exp over the next label b
                v = T[a, b] + beta[b]
                P[a * k + b] = v
                maximum = v if v > maximum else maximum
            low[a] = maximum if maximum > -np.inf else 0.0
            for b in range(k):
                P[a * k + b] -= low[a]
        exp_in_place(P)
        for a in range(k):
            total = 0.0
            for b in range(k):
                total += P[a * k + b]
            # normalize to p(b | a); a label without successors has probability zero
            inverse = 1.0 / total if total > 0 else 0.0
            for b in range(k):
                P[a * k + b] *= inverse
            # log of sum_b e^(T[a, b] + x_t[b] + beta_t[b])
            beta[a] = low[a] + np.log(total)
        _marginals(alpha[t - 1], beta, c, dz[t - 1])
        for a in range(k):
            for b in range(k):
                # c p(y_{t-1} = a) p(y_t = b | y_{t-1} = a)
                pairs[a, b] += dz[t - 1, a] * P[a * k + b]


@njit()
def _marginals(alpha: Any, beta: Any, c: float, out: Any) -> None:
    """Compute out = c e^(alpha + beta) / sum e^(alpha + beta); shift beta so that it stays bounded."""
    for b in range(len(out)):
        out[b] = alpha[b] + beta[b]
    # a common shift of beta cancels in the marginals, and keeps the exponents at most zero
    maximum = largest(out)
    for b in range(len(out)):
        out[b] -= maximum
        beta[b] -= maximum
    exp_in_place(out)
    total = 0.0
    for b in range(len(out)):
        total += out[b]
    inverse = c / total
    for b in range(len(out)):
        out[b] *= inverse
