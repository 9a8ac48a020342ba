"""Dual ascent for margins of chains, a sequence at a time.

Each sequence keeps the label sequences, its atoms, that have had some weight in its dual variable, a
distribution; the rest of it is on the right labels. A visit scores the tokens, then takes turns: the worst
label sequence becomes an atom, and weight moves between atoms until none is worse than another that has some.
All of that is small: scores follow from the inner products of the sequence's own tokens, and only in the end
the weights w are changed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from riskmin.kernels.chain_atoms import add, balance
from riskmin.kernels.chain_max import best_paths, contrasts, rescaled_paths


class Tokens(NamedTuple):
    """The rows of X, sparse or dense (then `width` is their length and indices are not looked at)."""

    indptr: Any
    indices: Any
    data: Any
    width: int


class Problem(NamedTuple):
    """Labels, ends and weights of the sequences; inner products of their tokens, one after the other."""

    y: Any
    ends: Any
    c: Any
    gram: Any
    places: Any


@njit(cache=True, nogil=True)
def grams(rows: Any, ends: Any, n_features: int, places: Any, begin: int, end: int, out: Any) -> None:
    """The inner products of the tokens of some sequences, each token spread out among all features once."""
    x = np.zeros(n_features)
    for s in range(begin, end):
        first = ends[s - 1] if s else 0
        m = ends[s] - first
        K = out[places[s] : places[s] + m * m].reshape(m, m)
        for t in range(m):
            lo, hi = rows.indptr[first + t], rows.indptr[first + t + 1]
            for i in range(lo, hi):
                x[i - lo if rows.width else rows.indices[i]] += rows.data[i]
            for u in range(t + 1):
                K[t, u] = K[u, t] = _product(rows, first + u, x)
            for i in range(lo, hi):
                x[i - lo if rows.width else rows.indices[i]] = 0.0


@njit(cache=True, nogil=True)
def _product(rows: Any, t: int, x: Any) -> float:
    lo, hi = rows.indptr[t], rows.indptr[t + 1]
    total = 0.0
    for i in range(lo, hi):
        total += rows.data[i] * x[i - lo if rows.width else rows.indices[i]]
    return total


@njit(cache=True, nogil=True)
def ascend(
    rows: Any, known: Any, atoms: Any, w: Any, lam: float, order: Any, turns: int, rescaled: bool, gaps: Any
) -> None:
    """Visit the sequences in that order, and note their gaps as they were found."""
    for s in order:
        first = known.ends[s - 1] if s else 0
        m = known.ends[s] - first
        z, change = _scores(rows, w, first, m), np.zeros((m + w.shape[1] + 2, w.shape[1]))
        gaps[s] = _visit(known, atoms, z, change, lam, s, turns, rescaled)
        _pull(rows, w, change, first, m, 1.0 / lam)


@njit(cache=True, nogil=True)
def _visit(
    known: Any, atoms: Any, z: Any, change: Any, lam: float, s: int, turns: int, rescaled: bool
) -> float:
    """Take turns at a sequence of scores z, and add up how its slopes change; its gap, as it was."""
    first = known.ends[s - 1] if s else 0
    m, c = known.ends[s] - first, known.c[s]
    y, end = known.y[first : first + m], np.array([m])
    K = known.gram[known.places[s] : known.places[s] + m * m].reshape(m, m)
    L, alpha = atoms.labels[:, first : first + m], atoms.alpha[s]
    path, lead, errors, step = np.empty(m, np.int64), np.empty(1), np.empty(1), np.empty_like(z)
    v = np.zeros(len(alpha) + 1)  # what each atom says the loss is; in the end, what the right labels say
    for q in range(atoms.used[s]):
        contrasts(z, y, L[q], end, lead, errors)
        v[q] = atoms.cost[s, q] + atoms.factor[s, q] * lead[0]
    gap = 0.0
    for turn in range(turns):
        if rescaled:
            rescaled_paths(z, y, end, path)
        else:
            best_paths(z, y, end, 1.0, path)
        contrasts(z, y, path, end, lead, errors)
        factor = c * (errors[0] if rescaled else 1.0)
        worst = c * errors[0] + factor * lead[0]
        if turn == 0:
            gap = max(worst, 0.0)
            for q in range(atoms.used[s]):
                gap -= alpha[q] * v[q]
        known_worst = 0.0
        for q in range(atoms.used[s]):
            known_worst = max(known_worst, v[q])
        fresh = worst > known_worst + 1e-13 * (c + abs(worst))
        fresh = fresh and add(atoms, s, L, path, c * errors[0], factor, worst, v, y, K, z.shape[1])
        if turn and not fresh:
            break
        _clear(step)
        if not balance(atoms, s, L, v, lam, y, step):
            break
        for t in range(len(step)):
            for b in range(step.shape[1]):
                change[t, b] += step[t, b]
        if turn + 1 < turns:
            _follow(z, step, K, 1.0 / lam)
    return gap


@njit(cache=True, nogil=True)
def _clear(x: Any) -> None:
    for t in range(x.shape[0]):
        for b in range(x.shape[1]):
            x[t, b] = 0.0


@njit(cache=True, nogil=True, fastmath={"contract"})
def _scores(rows: Any, w: Any, first: int, m: int) -> Any:
    """The scores of a sequence, and those that all share."""
    k = w.shape[1]
    z = np.zeros((m + k + 2, k))
    for t in range(m):
        lo, hi = rows.indptr[first + t], rows.indptr[first + t + 1]
        for i in range(lo, hi):
            x, row = rows.data[i], w[i - lo if rows.width else rows.indices[i]]
            for b in range(k):
                z[t, b] += x * row[b]
    for a in range(k + 2):
        for b in range(k):
            z[m + a, b] = w[len(w) - k - 2 + a, b]
    return z


@njit(cache=True, nogil=True, fastmath={"contract"})
def _pull(rows: Any, w: Any, change: Any, first: int, m: int, scale: float) -> None:
    """W follows the slopes, by minus their change, scaled; most tokens have none."""
    k = w.shape[1]
    for t in range(m):
        some = 0.0
        for b in range(k):
            change[t, b] *= scale
            some += abs(change[t, b])
        if some > 0:
            lo, hi = rows.indptr[first + t], rows.indptr[first + t + 1]
            for i in range(lo, hi):
                x, row = rows.data[i], w[i - lo if rows.width else rows.indices[i]]
                for b in range(k):
                    row[b] -= x * change[t, b]
    for a in range(k + 2):
        for b in range(k):
            w[len(w) - k - 2 + a, b] -= scale * change[m + a, b]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _follow(z: Any, step: Any, K: Any, scale: float) -> None:
    """The scores of the sequence after a step, by the inner products of its tokens."""
    m, k = len(K), z.shape[1]
    for u in range(m):
        for t in range(m):
            x = K[t, u] * scale
            if x != 0.0:
                for b in range(k):
                    z[t, b] -= x * step[u, b]
    for a in range(m, m + k + 2):
        for b in range(k):
            z[a, b] -= scale * step[a, b]
