"""Best label sequences of chains: Viterbi with Hamming costs, and the maximum with rescaled margins.

The scores z have the layout of `forward_backward`; the tail of z is its last k + 2 rows: transitions (k
rows), first-label scores, last-label scores. The forward pass stores maxima only. The backward pass
recomputes which label attained each maximum, one column per token, so that the inner loops contain only sums
and maxima.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin._numba.compile_cache import njit


def most_violating_paths(
    z: Any, y: Any, ends: Any, c: Any, cost: float, beta: float, path: Any, dz: Any
) -> Any:
    """Fill path with the y' of largest loss per sequence; add c_s times gradients to dz; return losses.

    The loss is score(y') - score(y) + cost h, where h is the Hamming distance of y' and y; with beta > 0 it
    is h^beta (score(y') - score(y)) + h. y' = y gives zero, so values that rounding puts below zero become
    zero.
    """
    longest = int(np.diff(ends, prepend=0).max())
    losses, best = np.empty(len(ends)), np.empty((longest, z.shape[1]))
    _most_violating_paths(z, y, ends, c, cost, error_powers(longest, beta), best, path, losses, dz)
    return losses


def error_powers(longest: int, beta: float) -> Any:
    """Return the table h^beta for h = 0 to the length of a sequence; None for beta = 0, without rescaling."""
    return np.arange(longest + 1.0) ** float(beta) if beta else None


@njit()
def _most_violating_paths(
    z: Any, y: Any, ends: Any, c: Any, cost: float, powers: Any, best: Any, path: Any, losses: Any, dz: Any
) -> None:
    """Compute losses, path and dz of `most_violating_paths`, sequence by sequence.

    If powers is None, the rescaled search is not compiled. best is a workspace of the longest sequence.
    """
    n, first, every = len(y), 0, 0
    for s in range(len(ends)):
        end = ends[s]
        z_s, y_s, path_s, errors = z[first:end], y[first:end], path[first:end], 0
        if powers is None:
            viterbi(z_s, z[n:], y_s, cost, best, path_s)
        else:
            rescaled_path(z_s, z[n:], y_s, powers, every, path_s)
        for t in range(len(y_s)):
            errors += path_s[t] != y_s[t]
        # margin rescaling: cost h + difference; with beta (called with cost = 1): h + h^beta difference
        factor = 1.0 if powers is None else powers[errors]
        # y itself has loss 0, so a negative value is a rounding error
        loss = cost * errors + factor * score_difference(z_s, z[n:], y_s, path_s)
        losses[s] = loss if loss > 0.0 else 0.0
        if loss > 0.0 and c[s] != 0.0:
            add_count_difference(path_s, y_s, c[s] * factor, dz[first:end], dz[n:])
        first = end


@njit()
def viterbi(z: Any, tail: Any, y: Any, cost: float, best: Any, path: Any) -> None:
    """Fill path with argmax over y' of score(y') + cost * (Hamming distance of y' and y), for one sequence.

    best is a workspace (m, k): best[t, b] = max over prefixes that end in b, minus its maximum over b.
    """
    m, k = z.shape
    for t in range(m):
        row, maximum, y_t = best[t], -np.inf, y[t]
        if t:
            _max_plus_product(best[t - 1], tail, row)
        else:
            for b in range(k):
                row[b] = tail[k, b]
        for b in range(k):
            row[b] += z[t, b] + (tail[k + 1, b] if t == m - 1 else 0.0) + (b != y_t) * cost
            maximum = row[b] if row[b] > maximum else maximum
        for b in range(k):
            # subtracting the maximum keeps all digits in long sequences
            row[b] -= maximum if maximum > -np.inf else 0.0
    # backward: the label that attained the maximum at each token
    label = 0
    for t in range(m - 1, -1, -1):
        label = _argmax_label(best[t], tail, label, t < m - 1)
        path[t] = label


@njit(inline="always")
def _max_plus_product(before: Any, T: Any, out: Any) -> None:
    """Compute out[b] = max_a before[a] + T[a, b], four rows of T at a time.

    The last row is repeated where k is not a multiple of four.
    """
    k = len(out)
    for b in range(k):
        out[b] = -np.inf
    for i in range(0, k, 4):
        # pairwise maxima, without branches
        j, p, q = min(i + 1, k - 1), min(i + 2, k - 1), min(i + 3, k - 1)
        a0, a1, a2, a3 = before[i], before[j], before[p], before[q]
        for b in range(k):
            v0, v1, v2, v3 = a0 + T[i, b], a1 + T[j, b], a2 + T[p, b], a3 + T[q, b]
            v0 = v0 if v0 > v1 else v1
            v2 = v2 if v2 > v3 else v3
            v0 = v0 if v0 > v2 else v2
            out[b] = v0 if v0 > out[b] else out[b]


@njit(inline="always")
def _argmax_label(before: Any, T: Any, label: int, followed: bool) -> int:
    """Return the first a that maximizes before[a] + T[a, label], or before[a] if no label follows."""
    argmax, maximum = 0, -np.inf
    for a in range(len(before)):
        v = before[a] + T[a, label] if followed else before[a]
        if v > maximum:
            argmax, maximum = a, v
    return argmax


@njit(allocates=True)
def rescaled_path(z: Any, tail: Any, y: Any, powers: Any, every: int, path: Any) -> None:
    """Fill path with argmax over y' of h(y')^beta (score(y') - score(y)) + h(y'), for one sequence.

    powers is the table of `error_powers`. Dynamic programming over tokens x number of errors x labels: for
    each number of errors so far and each label, the best score of a prefix. Tables of every `every`-th token
    are stored, and those in between recomputed in the backward pass; every = 0 chooses all tokens, or about
    sqrt(m) of them if the table is large.
    """
    m, k = z.shape
    if every == 0:
        # a large forward table is stored for some tokens, and the backward pass recomputes those in between
        every = m if m * (m + 1) * k <= 2**22 else int(np.ceil(np.sqrt(m)))
    # checkpoints[i]: the table of token i * every; segment[j]: the table of token i * every + j
    checkpoints = np.full((-(-m // every), m + 1, k), -np.inf)
    segment = np.full((min(every, m), m + 1, k), -np.inf)
    # forward: the tables of all tokens, of which every `every`-th is stored as a checkpoint
    for t in range(m):
        if t % every == 0:
            _advance(z, tail, y, t, segment[(t - 1) % every], checkpoints[t // every])
            _copy(checkpoints[t // every], segment[0])
        else:
            _advance(z, tail, y, t, segment[t % every - 1], segment[t % every])
    # the best number of errors and last label; h = 0 is y itself, with loss 0
    h, label, maximum = 0, y[m - 1], 0.0
    for errors in range(1, m + 1):
        for b in range(k):
            # h^beta difference + h, as a product that is h (1 + difference) for beta = 1
            v = powers[errors] * (errors / powers[errors] + segment[(m - 1) % every, errors, b])
            if v > maximum:
                h, label, maximum = errors, b, v
    # backward: the label at t, the number of errors before t, then the best label there
    for t in range(m - 1, -1, -1):
        path[t] = label
        if t == 0:
            break
        if t % every == 0:  # the backward pass enters the previous segment: recompute its tables
            _copy(checkpoints[t // every - 1], segment[0])
            for u in range(t - every + 1, t):
                _advance(z, tail, y, u, segment[u % every - 1], segment[u % every])
        # number of errors before token t
        h -= label != y[t]
        label = _argmax_label(segment[(t - 1) % every, h], tail, label, True)


@njit()
def _copy(source: Any, target: Any) -> None:
    """Copy the table source to target."""
    for h in range(source.shape[0]):
        for b in range(source.shape[1]):
            target[h, b] = source[h, b]


@njit(allocates=True)
def _advance(z: Any, tail: Any, y: Any, t: int, before: Any, current: Any) -> None:
    """Compute current[h, b]: the best score, minus that of y, of t + 1 labels with h errors and last label b.

    before is the table of token t - 1. A wrong label at t moves from h to h + 1 errors.
    """
    k, y_t = z.shape[1], y[t]
    for h in range(len(current)):
        for b in range(k):
            current[h, b] = -np.inf
    # row: scores of token t, including those of first and last labels; out: best prefix scores
    row, out = np.empty(k), np.empty(k)
    for b in range(k):
        row[b] = z[t, b]
        if t == 0:
            row[b] += tail[k, b]
        if t == len(y) - 1:
            row[b] += tail[k + 1, b]
    # token scores relative to that of the true label
    y_score = row[y_t]
    for b in range(k):
        row[b] -= y_score
    # from here on the score of the true transition into t
    if t > 0:
        y_score = tail[y[t - 1], y_t]
    for h in range(t + 1):
        if t > 0:
            _max_plus_product(before[h], tail, out)
        for b in range(k):
            out[b] = out[b] - y_score if t > 0 else 0.0
        # the true label keeps the number of errors, any other adds one
        current[h, y_t] = out[y_t] + row[y_t]
        for b in range(k):
            if b != y_t:
                current[h + 1, b] = out[b] + row[b]


@njit()
def score_difference(z: Any, tail: Any, y: Any, path: Any) -> Any:
    """Return score(path) - score(y) of one sequence."""
    k, total = z.shape[1], 0.0
    # row k of the tail holds the first-label scores: a virtual label before the first token
    before, y_before = k, k
    for t in range(len(y)):
        total += z[t, path[t]] - z[t, y[t]] + tail[before, path[t]] - tail[y_before, y[t]]
        before, y_before = path[t], y[t]
    return total + (tail[k + 1, before] - tail[k + 1, y_before])


@njit()
def add_count_difference(path: Any, y: Any, x: float, dz: Any, tail: Any) -> None:
    """Add x (counts of path - counts of y) to dz (tokens) and tail: the gradient of x `score_difference`.

    Tokens and transitions where path and y agree cancel and are skipped.
    """
    k = tail.shape[1]
    # row k of the tail belongs to a virtual label before the first token, as in `score_difference`
    before, y_before, same_before = k, k, True
    for t in range(len(y)):
        same = path[t] == y[t]
        if not same:
            dz[t, path[t]] += x
            dz[t, y[t]] -= x
        if not (same and same_before):
            tail[before, path[t]] += x
            tail[y_before, y[t]] -= x
        before, y_before, same_before = path[t], y[t], same
    if not same_before:
        tail[k + 1, before] += x
        tail[k + 1, y_before] -= x


@njit()
def add_count_differences(y: Any, path: Any, ends: Any, c: Any, dz: Any) -> None:
    """Add sum_s c_s (counts of path_s - counts of y_s) to dz."""
    first, n = 0, len(y)
    for s in range(len(ends)):
        end = ends[s]
        if c[s] != 0.0:
            add_count_difference(path[first:end], y[first:end], c[s], dz[first:end], dz[n:])
        first = end
