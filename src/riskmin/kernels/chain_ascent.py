"""Dual ascent for margins of chains, a sequence at a time.

Each sequence keeps the label sequences, its atoms, that have had some weight in its dual variable, a
distribution; the rest of it is on the right labels. A visit scores the tokens, then takes turns: the worst
label sequence becomes an atom, and weight moves between atoms until none is worse than another that has some.
All of that is small: scores follow from the inner products of the sequence's own tokens, and only in the end
the weights w are changed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from riskmin.kernels.chain_atoms import balance, follow, multiply
from riskmin.kernels.chain_max import lead, rescaled, viterbi
from riskmin.kernels.compiled import njit


class Tokens(NamedTuple):
    """The rows of X, sparse, or dense: then indices are those of one row, and dense is 1."""

    indptr: Any
    indices: Any
    data: Any
    dense: int


class Problem(NamedTuple):
    """Labels, ends and weights of the sequences; inner products of their tokens, one after the other."""

    y: Any
    ends: Any
    c: Any
    gram: Any
    places: Any


@njit()
def grams(
    indptr: Any, indices: Any, data: Any, dense: int, ends: Any, begin: int, end: int, at: int, x: Any,
    out: Any,
) -> None:  # fmt: skip
    """The inner products of the tokens of some sequences, each token spread out among all features once.

    Those of the first one belong at that place. x are zeros, one a feature.
    """
    first = ends[begin - 1] if begin else 0
    for s in range(begin, end):
        m = ends[s] - first
        for t in range(m):
            lo, hi = indptr[first + t], indptr[first + t + 1]
            for i in range(lo, hi):
                x[indices[i - lo * dense]] += data[i]
            for u in range(t + 1):
                start, total = indptr[first + u], 0.0
                for i in range(start, indptr[first + u + 1]):
                    total += data[i] * x[indices[i - start * dense]]
                out[at + t * m + u] = out[at + u * m + t] = total
            for i in range(lo, hi):
                x[indices[i - lo * dense]] = 0.0
        first, at = ends[s], at + m * m


@njit(fastmath={"contract"})
def ascend(
    indptr: Any, indices: Any, data: Any, dense: int,
    all_y: Any, ends: Any, weights: Any, grams: Any, places: Any,
    full: Any, used: Any, labels: Any, all_alpha: Any, costs: Any, factors: Any, products: Any,
    all_z: Any, all_step: Any, all_change: Any, best: Any, all_path: Any, v: Any, old: Any,
    w: Any, lam: float, order: Any, slack: Any, turns: Any, gaps: Any,
) -> None:  # fmt: skip
    """Visit the sequences in that order, and note their gaps as they were found.

    The first rows are those of `Tokens`, `Problem`, `Atoms` and `Room`. Slack is None where margins are not
    rescaled, and turns where there is but one: what is not needed is not compiled.
    """
    none, every = all_alpha.shape[1] - 1, 0
    for i in range(len(order)):
        s = order[i]
        first, end = ends[s - 1] if s else 0, ends[s]
        m, c, many = end - first, weights[s], used[s]
        y, K = all_y[first:end], grams[places[s] :]
        z, tail, path = all_z[:m], all_z[m:], all_path[:m]
        step, step_tail, change, change_tail = all_step[:m], all_step[m:], all_change[:m], all_change[m:]
        alpha, factor, gram = all_alpha[s], factors[s], products[s]
        _scores(indptr, indices, data, dense, w, first, z, tail)
        gap = v[none] = 0.0
        for q in range(many):
            v[q] = costs[s, q] + factor[q] * lead(z, tail, y, labels[q, first:end])
            gap -= alpha[q] * v[q]
        for turn in range(1 if turns is None else turns):
            if slack is None:
                viterbi(z, tail, y, 1.0, best, path)
            else:
                rescaled(z, tail, y, every, path)
            errors, most, at = 0.0, 0.0, many
            for t in range(m):
                errors += path[t] != y[t]
            scale = c if slack is None else c * errors
            worst = c * errors + scale * lead(z, tail, y, path)
            if turn == 0:
                gap += worst if worst > 0.0 else 0.0
            for q in range(many):  # a new atom goes to the place of the one without weight that says least
                old[q], most = alpha[q], v[q] if v[q] > most else most
                at = q if alpha[q] == 0.0 and (at == many or v[q] < v[at]) else at
            fresh = worst > most + 1e-13 * (c + abs(worst))
            if fresh and at == none:
                full[0] += 1
            elif fresh:
                many = many if at < many else many + 1
                for t in range(m):
                    labels[at, first + t] = path[t]
                alpha[at] = old[at] = 0.0
                costs[s, at], factor[at], v[at] = c * errors, scale, worst
                multiply(many, labels, first, end, factor, gram, at, y, K, step, step_tail)
            if turn and not (fresh and at < none):
                break
            balance(many, alpha, gram, v, lam, none)
            if turns is None:
                follow(many, labels, first, end, alpha, factor, old, y, change, change_tail)
            elif follow(many, labels, first, end, alpha, factor, old, y, step, step_tail):
                _look_on(z, tail, step, step_tail, change, change_tail, K, 1.0 / lam)
            else:
                break
        gaps[s], used[s] = gap, many
        _pull(indptr, indices, data, dense, w, first, change, change_tail, 1.0 / lam)


@njit(inline="always")
def _scores(indptr: Any, indices: Any, data: Any, dense: int, w: Any, first: int, z: Any, tail: Any) -> None:
    """The scores of a sequence, and those that all share."""
    m, k = z.shape
    for t in range(m):
        lo, hi, line = indptr[first + t], indptr[first + t + 1], z[t]
        for b in range(k):
            line[b] = 0.0
        for i in range(lo, hi):
            x, row = data[i], w[indices[i - lo * dense]]
            for b in range(k):
                line[b] += x * row[b]
    for a in range(k + 2):
        for b in range(k):
            tail[a, b] = w[len(w) - k - 2 + a, b]


@njit(inline="always")
def _pull(
    indptr: Any, indices: Any, data: Any, dense: int, w: Any, first: int, change: Any, tail: Any, scale: float
) -> None:
    """W follows the slopes, by minus their change, scaled, which is zero then; most tokens have none."""
    m, k = change.shape
    for t in range(m):
        some, line = 0.0, change[t]
        for b in range(k):
            line[b] *= scale
            some += abs(line[b])
        if some > 0:
            lo, hi = indptr[first + t], indptr[first + t + 1]
            for i in range(lo, hi):
                x, row = data[i], w[indices[i - lo * dense]]
                for b in range(k):
                    row[b] -= x * line[b]
            for b in range(k):
                line[b] = 0.0
    for a in range(k + 2):
        for b in range(k):
            w[len(w) - k - 2 + a, b] -= scale * tail[a, b]
            tail[a, b] = 0.0


@njit(inline="always")
def _look_on(
    z: Any, tail: Any, step: Any, step_tail: Any, change: Any, change_tail: Any, K: Any, scale: float
) -> None:
    """The scores of the sequence after a step, by the inner products of its tokens.

    The step is added to the change, and zero then.
    """
    m, k = z.shape
    for u in range(m):
        for t in range(m):
            x, line, row = K[t * m + u] * scale, z[t], step[u]
            if x != 0.0:
                for b in range(k):
                    line[b] -= x * row[b]
    for t in range(m):
        for b in range(k):
            change[t, b] += step[t, b]
            step[t, b] = 0.0
    for a in range(k + 2):
        for b in range(k):
            tail[a, b] -= scale * step_tail[a, b]
            change_tail[a, b] += step_tail[a, b]
            step_tail[a, b] = 0.0
