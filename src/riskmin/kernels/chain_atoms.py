"""The label sequences that dual ascent keeps for each sequence, and how weight moves between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from riskmin.kernels.compiled import njit

PAIRS = 20
"""At most so many moves of weight a turn."""
TINY = 1e-15
"""Less weight than this is none."""


class Atoms(NamedTuple):
    """Of each sequence: how many atoms, their labels, weights, costs, factors and inner products.

    `full` counts atoms that found no place.
    """

    full: Any
    used: Any
    labels: Any
    alpha: Any
    cost: Any
    factor: Any
    gram: Any


@njit()
def add(
    atoms: Any,
    s: int,
    L: Any,
    path: Any,
    cost: float,
    factor: float,
    worst: float,
    v: Any,
    y: Any,
    K: Any,
    k: int,
) -> bool:
    """A new atom, in the place of one without weight if there is one; whether it found a place."""
    at = used = atoms.used[s]
    for q in range(used):
        if atoms.alpha[s, q] == 0.0 and (at == used or v[q] < v[at]):
            at = q
    if at == len(v) - 1:
        atoms.full[0] += 1
        return False
    if at == used:
        atoms.used[s] += 1
    for t in range(len(path)):
        L[at, t] = path[t]
    atoms.alpha[s, at] = 0.0
    atoms.cost[s, at], atoms.factor[s, at], v[at] = cost, factor, worst
    _products(atoms, s, L, at, y, K, k)
    return True


@njit()
def _products(atoms: Any, s: int, L: Any, at: int, y: Any, K: Any, k: int) -> None:
    """The inner products of an atom's slopes with those of all atoms."""
    m, path = len(y), L[at]
    near, tail = np.zeros((m, k)), np.zeros((k + 2, k))
    for t in range(m):
        if path[t] != y[t]:
            for u in range(m):
                near[u, path[t]] += K[u, t]
                near[u, y[t]] -= K[u, t]
    _count(path, y, 1.0, tail)
    for q in range(atoms.used[s]):
        other, total = L[q], 0.0
        for t in range(m):
            total += near[t, other[t]] - near[t, y[t]]
            if t:
                total += tail[other[t - 1], other[t]] - tail[y[t - 1], y[t]]
        total += tail[k, other[0]] - tail[k, y[0]] + tail[k + 1, other[m - 1]] - tail[k + 1, y[m - 1]]
        total *= atoms.factor[s, at] * atoms.factor[s, q]
        atoms.gram[s, at, q] = atoms.gram[s, q, at] = total


@njit()
def _count(path: Any, y: Any, x: float, tail: Any) -> None:
    """X times what path counts of neighbours, first and last labels, less what y counts."""
    m, k = len(y), tail.shape[1]
    tail[k, path[0]] += x
    tail[k, y[0]] -= x
    tail[k + 1, path[m - 1]] += x
    tail[k + 1, y[m - 1]] -= x
    for t in range(1, m):
        tail[path[t - 1], path[t]] += x
        tail[y[t - 1], y[t]] -= x


@njit()
def balance(atoms: Any, s: int, L: Any, v: Any, lam: float, y: Any, step: Any) -> bool:
    """Move weight from the atom that says least to the one that says most, until little is to be gained.

    What has changed of the slopes is added to step; whether anything has.
    """
    used, none = atoms.used[s], len(v) - 1
    G, alpha = atoms.gram[s], atoms.alpha[s]
    old, first = alpha.copy(), np.inf
    for turn in range(PAIRS):
        right, own, high, low = 1.0, 0.0, none, -1
        for q in range(used):
            right -= alpha[q]
            own += alpha[q] * v[q]
            high = q if v[q] > v[high] else high
            if alpha[q] > 0 and (low < 0 or v[q] < v[low]):
                low = q
        if right > TINY and (low < 0 or v[low] > 0):
            low = none
        first = v[high] - own if turn == 0 else first
        if high == low or v[high] - own <= 1e-2 * first:
            break
        near = _distance(G, high, low, none)
        have = right if low == none else alpha[low]
        move = min(have, lam * (v[high] - v[low]) / near) if near > 0 else have
        shift = move / lam
        for q in range(used):
            there, here = G[q, high] if high != none else 0.0, G[q, low] if low != none else 0.0
            v[q] -= shift * (there - here)
        if high != none:
            alpha[high] += move
        if low != none:
            alpha[low] = alpha[low] - move if move < have else 0.0
    moved = False
    for q in range(used):
        alpha[q] = alpha[q] if alpha[q] > TINY else 0.0
        x = (alpha[q] - old[q]) * atoms.factor[s, q]
        if x != 0.0:
            moved = True
            _slopes(L[q], y, x, step)
    return moved


@njit()
def _distance(G: Any, p: int, q: int, none: int) -> float:
    """The square of the distance of two atoms' slopes; those of the right labels are zero."""
    if p == none or q == none:
        p = q if p == none else p
        return float(G[p, p])
    return float(G[p, p] + G[q, q] - 2 * G[p, q])


@njit()
def _slopes(path: Any, y: Any, x: float, out: Any) -> None:
    """Add x times the slopes of an atom."""
    m = len(y)
    for t in range(m):
        if path[t] != y[t]:
            out[t, path[t]] += x
            out[t, y[t]] -= x
    _count(path, y, x, out[m:])


@njit()
def slopes(known: Any, atoms: Any, dz: Any) -> float:
    """The slopes of all sequences in dz, and what their atoms cost: the cut that the weights are."""
    n, cost = len(known.y), 0.0
    for s in range(len(known.ends)):
        first = known.ends[s - 1] if s else 0
        y, L = known.y[first : known.ends[s]], atoms.labels[:, first : known.ends[s]]
        for q in range(atoms.used[s]):
            x = atoms.alpha[s, q] * atoms.factor[s, q]
            if x != 0.0:
                cost += atoms.alpha[s, q] * atoms.cost[s, q]
                for t in range(len(y)):
                    if L[q, t] != y[t]:
                        dz[first + t, L[q, t]] += x
                        dz[first + t, y[t]] -= x
                _count(L[q], y, x, dz[n:])
    return cost


@njit()
def revive(known: Any, atoms: Any, rescaled: bool) -> None:
    """Costs and factors of atoms of which the labels are known."""
    for s in range(len(known.ends)):
        first = known.ends[s - 1] if s else 0
        for q in range(atoms.used[s]):
            errors = 0
            for t in range(first, known.ends[s]):
                errors += atoms.labels[q, t] != known.y[t]
            atoms.cost[s, q] = known.c[s] * errors
            atoms.factor[s, q] = known.c[s] * (errors if rescaled else 1.0)
