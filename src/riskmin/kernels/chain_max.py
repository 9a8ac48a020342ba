"""Best label sequences of chains: Viterbi, with Hamming costs, and the slack-rescaled maximum.

The scores z are as in `chain`. The way forward keeps maxima only; the way back finds by itself which labels
attained them, a column a token, so that the inner loops are sums and maxima and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.kernels.compiled import njit

FEW = 2**22
"""Up to this many numbers are kept for the way back; else those of every so many tokens, the rest anew."""


def worst_paths(z: Any, y: Any, ends: Any, c: Any, cost: float, slack: bool, path: Any, dz: Any) -> Any:
    """The y' of the largest loss of each sequence into path; the losses. c_s times their slopes go into dz.

    The loss is score(y') - score(y) + cost h, h the number of tokens where y' is not y; with slack, it is
    h (1 + score(y') - score(y)). y itself gives zero: what rounding puts below is that.
    """
    losses, best = np.empty(len(ends)), np.empty((int(np.diff(ends, prepend=0).max()), z.shape[1]))
    _worst_paths(z, y, ends, c, cost, True if slack else None, best, path, losses, dz)
    return losses


@njit()
def _worst_paths(
    z: Any, y: Any, ends: Any, c: Any, cost: float, slack: Any, best: Any, path: Any, losses: Any, dz: Any
) -> None:
    """If slack is None, the search for rescaled margins is not compiled."""
    n, first, every = len(y), 0, 0
    for s in range(len(ends)):
        end = ends[s]
        here, right, found, errors = z[first:end], y[first:end], path[first:end], 0.0
        if slack is None:
            viterbi(here, z[n:], right, cost, best, found)
        else:
            rescaled(here, z[n:], right, every, found)
        for t in range(len(right)):
            errors += found[t] != right[t]
        factor = 1.0 if slack is None else errors
        loss = cost * errors + factor * lead(here, z[n:], right, found)
        losses[s] = loss if loss > 0.0 else 0.0
        if loss > 0.0 and c[s] != 0.0:
            count(found, right, c[s] * factor, dz[first:end], dz[n:])
        first = end


@njit()
def viterbi(z: Any, tail: Any, y: Any, cost: float, best: Any, path: Any) -> None:
    """The best path of one sequence; in the tail are the scores of neighbours and of ends. Best is room."""
    m, k = z.shape
    for t in range(m):
        row, most, right = best[t], -np.inf, y[t]
        if t:
            _step(best[t - 1], tail, row)
        else:
            for b in range(k):
                row[b] = tail[k, b]
        for b in range(k):
            row[b] += z[t, b] + (tail[k + 1, b] if t == m - 1 else 0.0) + (b != right) * cost
            most = row[b] if row[b] > most else most
        for b in range(k):
            row[b] -= most if most > -np.inf else 0.0  # digits are kept, however long the sequence
    label = 0
    for t in range(m - 1, -1, -1):
        label = _best(best[t], tail, label, t < m - 1)
        path[t] = label


@njit(inline="always")
def _step(before: Any, T: Any, out: Any) -> None:
    """out[b] = max_a before[a] + T[a, b], four rows at a time; the last again, to make it four."""
    k = len(out)
    for b in range(k):
        out[b] = -np.inf
    for i in range(0, k, 4):
        j, p, q = min(i + 1, k - 1), min(i + 2, k - 1), min(i + 3, k - 1)
        a0, a1, a2, a3 = before[i], before[j], before[p], before[q]
        for b in range(k):
            v0, v1, v2, v3 = a0 + T[i, b], a1 + T[j, b], a2 + T[p, b], a3 + T[q, b]
            v0 = v0 if v0 > v1 else v1
            v2 = v2 if v2 > v3 else v3
            v0 = v0 if v0 > v2 else v2
            out[b] = v0 if v0 > out[b] else out[b]


@njit(inline="always")
def _best(before: Any, T: Any, label: int, followed: bool) -> int:
    """The first a of the largest before[a] + T[a, label], if that label follows."""
    found, most = 0, -np.inf
    for a in range(len(before)):
        v = before[a] + T[a, label] if followed else before[a]
        if v > most:
            found, most = a, v
    return found


@njit(allocates=True)
def rescaled(z: Any, tail: Any, y: Any, every: int, path: Any) -> None:
    """One sequence. Its best scores are kept of every so many tokens, and found anew between them.

    For each number of errors so far and each label, the best score up to a token: tokens x errors x labels.
    If every is 0, they are kept of all tokens or, where that would be much, of about a root of their number.
    """
    m, k = z.shape
    if every == 0:
        every = m if m * (m + 1) * k <= FEW else int(np.ceil(np.sqrt(m)))
    kept = np.full((-(-m // every), m + 1, k), -np.inf)
    spell = np.full((min(every, m), m + 1, k), -np.inf)
    for t in range(m):
        if t % every == 0:
            _advance(z, tail, y, t, spell[(t - 1) % every], kept[t // every])
            _copy(kept[t // every], spell[0])
        else:
            _advance(z, tail, y, t, spell[t % every - 1], spell[t % every])
    h, label, most = 0, y[m - 1], 0.0
    for errors in range(1, m + 1):
        for b in range(k):
            v = errors * (1 + spell[(m - 1) % every, errors, b])
            if v > most:
                h, label, most = errors, b, v
    for t in range(m - 1, -1, -1):
        path[t] = label
        if t == 0:
            break
        if t % every == 0:  # those of the spell before are needed now
            _copy(kept[t // every - 1], spell[0])
            for u in range(t - every + 1, t):
                _advance(z, tail, y, u, spell[u % every - 1], spell[u % every])
        h -= label != y[t]
        label = _best(spell[(t - 1) % every, h], tail, label, True)


@njit()
def _copy(one: Any, other: Any) -> None:
    for h in range(one.shape[0]):
        for b in range(one.shape[1]):
            other[h, b] = one[h, b]


@njit(allocates=True)
def _advance(z: Any, tail: Any, y: Any, t: int, before: Any, here: Any) -> None:
    """here[h, b]: the best score, less that of y, of the first t + 1 labels with h errors, the last b."""
    k, right = z.shape[1], y[t]
    for h in range(len(here)):
        for b in range(k):
            here[h, b] = -np.inf
    row, out = np.empty(k), np.empty(k)
    for b in range(k):
        row[b] = z[t, b]
        if t == 0:
            row[b] += tail[k, b]
        if t == len(y) - 1:
            row[b] += tail[k + 1, b]
    own = row[right]
    for b in range(k):
        row[b] -= own
    if t > 0:
        own = tail[y[t - 1], right]
    for h in range(t + 1):
        if t > 0:
            _step(before[h], tail, out)
        for b in range(k):
            out[b] = out[b] - own if t > 0 else 0.0
        here[h, right] = out[right] + row[right]
        for b in range(k):
            if b != right:
                here[h + 1, b] = out[b] + row[b]


@njit()
def lead(z: Any, tail: Any, y: Any, path: Any) -> Any:
    """Score of path - score of y, of one sequence."""
    k, total = z.shape[1], 0.0
    before, right = k, k  # in the tail, first labels come after the rows of all labels
    for t in range(len(y)):
        total += z[t, path[t]] - z[t, y[t]] + tail[before, path[t]] - tail[right, y[t]]
        before, right = path[t], y[t]
    return total + (tail[k + 1, before] - tail[k + 1, right])


@njit()
def count(path: Any, y: Any, x: float, dz: Any, tail: Any) -> None:
    """Add x (counts of path - counts of y), the slopes of x times `lead`; what is equal is left out."""
    k = tail.shape[1]
    before, right, equal = k, k, True
    for t in range(len(y)):
        same = path[t] == y[t]
        if not same:
            dz[t, path[t]] += x
            dz[t, y[t]] -= x
        if not (same and equal):
            tail[before, path[t]] += x
            tail[right, y[t]] -= x
        before, right, equal = path[t], y[t], same
    if not equal:
        tail[k + 1, before] += x
        tail[k + 1, right] -= x


@njit()
def counts(y: Any, path: Any, ends: Any, c: Any, dz: Any) -> None:
    """Dz += sum_s c_s (counts of path - counts of y)."""
    first, n = 0, len(y)
    for s in range(len(ends)):
        end = ends[s]
        if c[s] != 0.0:
            count(path[first:end], y[first:end], c[s], dz[first:end], dz[n:])
        first = end
