"""Forward and backward sums over chains in logarithms, for transitions too wide to be scaled.

Forbidden transitions, of score -inf, are fine too. A block of k x k exponentials a token and direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit
from riskmin.kernels.exponential import exponential


@njit()
def expectations_in_logs(
    z: Any, y: Any, ends: Any, c: Any, dz: Any, value: Any,
    x: Any, alpha: Any, P: Any, low: Any, beta: Any,
) -> None:  # fmt: skip
    """value[s] = log Z - score of y; dz = sum_s c_s (marginals - counts of y).

    The last five are room: for the longest sequence, for pairs of labels, and for labels.
    """
    n, k, first = len(y), z.shape[1], 0
    T, pairs = z[n : n + k], dz[n : n + k]
    for s in range(len(ends)):
        end = ends[s]
        if c[s] != 0:
            value[s] = _weights(z, y, first, end, x)
            value[s] += _forward(x[: end - first], T, P, low, alpha)
            _backward(x[: end - first], T, P, low, alpha, beta, pairs, c[s], dz[first:end])
            for b in range(k):
                dz[n + k, b] += dz[first, b]
                dz[n + k + 1, b] += dz[end - 1, b]
            take_off_counts(y, first, end, c[s], dz)
        first = end


@njit(inline="always")
def take_off_counts(y: Any, first: int, end: int, c: float, dz: Any) -> None:
    """What the labels y of a sequence themselves count for."""
    n, k = len(y), dz.shape[1]
    for t in range(first, end):
        dz[t, y[t]] -= c
        if t > first:
            dz[n + y[t - 1], y[t]] -= c
    dz[n + k, y[first]] -= c
    dz[n + k + 1, y[end - 1]] -= c


@njit()
def exponentials(x: Any) -> None:
    """e^x in place of x."""
    for i in range(len(x)):
        x[i] = exponential(x[i])


@njit()
def _weights(z: Any, y: Any, first: int, end: int, x: Any) -> float:
    """The scores of a sequence's tokens less their maxima, and by how much those are above y's score."""
    n, k = len(y), z.shape[1]
    above = 0.0
    for t in range(first, end):
        row = x[t - first]
        for b in range(k):
            row[b] = z[t, b]
            if t == first:
                row[b] += z[n + k, b]
            if t == end - 1:
                row[b] += z[n + k + 1, b]
        most = largest(row)
        above += most - row[y[t]]
        if t > first:
            above -= z[n + y[t - 1], y[t]]
        for b in range(k):
            row[b] -= most
    return above


@njit()
def largest(x: Any) -> float:
    """The maximum; NumPy's own takes a second more to compile."""
    most = -np.inf
    for b in range(len(x)):
        most = x[b] if x[b] > most else most
    return most


@njit()
def _forward(x: Any, T: Any, P: Any, low: Any, alpha: Any) -> float:
    """alpha[t]: the logarithms of sums up to token t, less their maximum; and the log of the whole sum."""
    k = len(T)
    for b in range(k):
        alpha[0, b] = x[0, b]
    logs = 0.0
    for t in range(1, len(x)):
        before, here = alpha[t - 1], alpha[t]
        for b in range(k):
            low[b] = -np.inf
        for a in range(k):
            for b in range(k):
                v = before[a] + T[a, b]
                P[a * k + b] = v
                low[b] = v if v > low[b] else low[b]
        for b in range(k):
            here[b] = 0.0
            low[b] = low[b] if low[b] > -np.inf else 0.0  # a label that nothing leads to
        for a in range(k):
            for b in range(k):
                P[a * k + b] -= low[b]
        exponentials(P)
        for a in range(k):
            for b in range(k):
                here[b] += P[a * k + b]
        for b in range(k):
            here[b] = np.log(here[b]) + low[b] + x[t, b]
        most = largest(here)
        logs += most
        for b in range(k):
            here[b] -= most
    for b in range(k):
        low[b] = alpha[len(x) - 1, b]
    exponentials(low)
    total = 0.0
    for b in range(k):
        total += low[b]
    return logs + float(np.log(total))


@njit()
def _backward(x: Any, T: Any, P: Any, low: Any, alpha: Any, beta: Any, pairs: Any, c: float, dz: Any) -> None:
    """The marginals into dz, and the sums over neighbours into pairs.

    P becomes the probabilities of the next label given the one here, so that both come from one block of
    exponentials.
    """
    k, last = len(T), len(x) - 1
    for b in range(k):
        beta[b] = 0.0
    _marginals(alpha[last], beta, c, dz[last])
    for t in range(last, 0, -1):
        for b in range(k):
            beta[b] += x[t, b]
        for a in range(k):
            most = -np.inf
            for b in range(k):
                v = T[a, b] + beta[b]
                P[a * k + b] = v
                most = v if v > most else most
            low[a] = most if most > -np.inf else 0.0
            for b in range(k):
                P[a * k + b] -= low[a]
        exponentials(P)
        for a in range(k):
            total = 0.0
            for b in range(k):
                total += P[a * k + b]
            share = 1.0 / total if total > 0 else 0.0
            for b in range(k):
                P[a * k + b] *= share
            beta[a] = low[a] + np.log(total)
        _marginals(alpha[t - 1], beta, c, dz[t - 1])
        for a in range(k):
            for b in range(k):
                pairs[a, b] += dz[t - 1, a] * P[a * k + b]


@njit()
def _marginals(alpha: Any, beta: Any, c: float, out: Any) -> None:
    """Out = e^(alpha + beta), scaled to sum c; beta is shifted, so that it does not grow along the way."""
    for b in range(len(out)):
        out[b] = alpha[b] + beta[b]
    most = largest(out)
    for b in range(len(out)):
        out[b] -= most
        beta[b] -= most
    exponentials(out)
    total = 0.0
    for b in range(len(out)):
        total += out[b]
    share = c / total
    for b in range(len(out)):
        out[b] *= share
