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


@njit()
def best_paths(z: Any, y: Any, ends: Any, cost: float, path: Any) -> None:
    """The y' of the largest score(y') + cost h into path, h the number of tokens where y' is not y."""
    n, k = len(y), z.shape[1]
    T, columns = _padded(z[n : n + k])
    longest = ends[0]
    for s in range(1, len(ends)):
        longest = max(longest, ends[s] - ends[s - 1])
    best, zeros = np.full((longest, len(T)), -np.inf), np.zeros(k)
    for s in range(len(ends)):
        first = ends[s - 1] if s else 0
        for t in range(first, ends[s]):
            row = best[t - first, :k]
            if t > first:
                _step(best[t - first - 1], T, row)
            else:
                for b in range(k):
                    row[b] = z[n + k, b]
            most = -np.inf
            for b in range(k):
                row[b] += z[t, b] + (z[n + k + 1, b] if t == ends[s] - 1 else 0.0) + (b != y[t]) * cost
                most = row[b] if row[b] > most else most
            for b in range(k):
                row[b] -= most if most > -np.inf else 0.0  # digits are kept, however long the sequence
        label = _best(best[ends[s] - 1 - first], zeros)
        path[ends[s] - 1] = label
        for t in range(ends[s] - 1, first, -1):
            label = _best(best[t - first - 1], columns[label])
            path[t - 1] = label


@njit()
def _padded(T: Any) -> Any:
    """T with rows of -inf below, up to a multiple of four, and its columns one after the other."""
    k = len(T)
    rows, columns = np.full((-(-k // 4) * 4, k), -np.inf), np.empty((k, k))
    for a in range(k):
        for b in range(k):
            rows[a, b] = columns[b, a] = T[a, b]
    return rows, columns


@njit()
def _step(before: Any, T: Any, out: Any) -> None:
    """out[b] = max_a before[a] + T[a, b], four rows at a time."""
    for b in range(len(out)):
        out[b] = -np.inf
    for i in range(0, len(T), 4):
        a0, a1, a2, a3 = before[i], before[i + 1], before[i + 2], before[i + 3]
        for b in range(len(out)):
            v0, v1, v2, v3 = a0 + T[i, b], a1 + T[i + 1, b], a2 + T[i + 2, b], a3 + T[i + 3, b]
            v0 = v0 if v0 > v1 else v1
            v2 = v2 if v2 > v3 else v3
            v0 = v0 if v0 > v2 else v2
            out[b] = v0 if v0 > out[b] else out[b]


@njit()
def _best(before: Any, column: Any) -> int:
    """The first a of the largest before[a] + column[a]."""
    found, most = 0, -np.inf
    for a in range(len(column)):
        v = before[a] + column[a]
        if v > most:
            found, most = a, v
    return found


@njit()
def rescaled_paths(z: Any, y: Any, ends: Any, path: Any) -> None:
    """The y' of the largest h (1 + score(y') - score(y)) into path, h the number of tokens where y' is not y.

    For each number of errors so far and each label, the best score up to a token: tokens x errors x labels.
    """
    n, k = len(y), z.shape[1]
    T, columns = _padded(z[n : n + k])
    for s in range(len(ends)):
        first = ends[s - 1] if s else 0
        m = ends[s] - first
        every = m if m * (m + 1) * len(T) <= FEW else int(np.ceil(np.sqrt(m)))
        _rescaled(z, T, columns, y, first, ends[s], every, path)


@njit()
def _rescaled(z: Any, T: Any, columns: Any, y: Any, first: int, end: int, every: int, path: Any) -> None:
    """One sequence. Its best scores are kept of every so many tokens, and found anew between them."""
    m, k = end - first, z.shape[1]
    kept = np.full((-(-m // every), m + 1, len(T)), -np.inf)
    spell = np.full((min(every, m), m + 1, len(T)), -np.inf)
    for t in range(m):
        if t % every == 0:
            _advance(z, T, y, first, end, t, spell[(t - 1) % every], kept[t // every])
            _copy(kept[t // every], spell[0])
        else:
            _advance(z, T, y, first, end, t, spell[t % every - 1], spell[t % every])
    h, label, most = 0, y[end - 1], 0.0
    for errors in range(1, m + 1):
        for b in range(k):
            v = errors * (1 + spell[(m - 1) % every, errors, b])
            if v > most:
                h, label, most = errors, b, v
    for t in range(m - 1, -1, -1):
        path[first + t] = label
        if t == 0:
            break
        if t % every == 0:  # those of the spell before are needed now
            _copy(kept[t // every - 1], spell[0])
            for u in range(t - every + 1, t):
                _advance(z, T, y, first, end, u, spell[u % every - 1], spell[u % every])
        h -= label != y[first + t]
        label = _best(spell[(t - 1) % every, h], columns[label])


@njit()
def _copy(one: Any, other: Any) -> None:
    for h in range(one.shape[0]):
        for b in range(one.shape[1]):
            other[h, b] = one[h, b]


@njit()
def _advance(z: Any, T: Any, y: Any, first: int, end: int, t: int, before: Any, here: Any) -> None:
    """here[h, b]: the best score, less that of y, of the first t + 1 labels with h errors, the last b."""
    n, k, at = len(y), z.shape[1], first + t
    for h in range(len(here)):
        for b in range(k):
            here[h, b] = -np.inf
    right = y[at]
    row, out = np.empty(k), np.empty(k)
    for b in range(k):
        row[b] = z[at, b]
        if t == 0:
            row[b] += z[n + k, b]
        if at == end - 1:
            row[b] += z[n + k + 1, b]
    own = row[right]
    for b in range(k):
        row[b] -= own
    if t > 0:
        own = T[y[at - 1], right]
    for h in range(t + 1):
        if t > 0:
            _step(before[h], T, out)
        for b in range(k):
            out[b] = out[b] - own if t > 0 else 0.0
        here[h, right] = out[right] + row[right]
        for b in range(k):
            if b != right:
                here[h + 1, b] = out[b] + row[b]


@njit()
def contrasts(z: Any, y: Any, path: Any, ends: Any, lead: Any, errors: Any) -> None:
    """lead[s] = score of path - score of y, errors[s] = where they differ: sequence by sequence."""
    n, k = len(y), z.shape[1]
    for s in range(len(ends)):
        first = ends[s - 1] if s else 0
        last = ends[s] - 1
        lead[s] = z[n + k, path[first]] - z[n + k, y[first]]
        lead[s] += z[n + k + 1, path[last]] - z[n + k + 1, y[last]]
        errors[s] = 0
        for t in range(first, ends[s]):
            lead[s] += z[t, path[t]] - z[t, y[t]]
            errors[s] += path[t] != y[t]
            if t > first:
                lead[s] += z[n + path[t - 1], path[t]] - z[n + y[t - 1], y[t]]


@njit()
def contrast_counts(y: Any, path: Any, ends: Any, c: Any, dz: Any) -> None:
    """Dz += sum_s c_s (counts of path - counts of y): the slopes of `contrasts`."""
    n, k = len(y), dz.shape[1]
    for s in range(len(ends)):
        first = ends[s - 1] if s else 0
        if c[s] != 0:
            last = ends[s] - 1
            dz[n + k, path[first]] += c[s]
            dz[n + k, y[first]] -= c[s]
            dz[n + k + 1, path[last]] += c[s]
            dz[n + k + 1, y[last]] -= c[s]
            for t in range(first, ends[s]):
                if path[t] != y[t]:
                    dz[t, path[t]] += c[s]
                    dz[t, y[t]] -= c[s]
                if t > first and (path[t - 1] != y[t - 1] or path[t] != y[t]):
                    dz[n + path[t - 1], path[t]] += c[s]
                    dz[n + y[t - 1], y[t]] -= c[s]
