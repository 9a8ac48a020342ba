"""The label sequences that dual ascent keeps for each sequence, and how weight moves between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from riskmin.kernels.chain_max import count, lead
from riskmin.kernels.compiled import njit

PAIRS = 20
"""At most so many moves of weight a turn."""
TINY = 1e-15
"""Less weight than this is none."""


class Atoms(NamedTuple):
    """Of each sequence: how many atoms, their labels, weights, costs, factors and inner products.

    `full` counts atoms that found no place. In the last place, but for labels, are the right labels.
    """

    full: Any
    used: Any
    labels: Any
    alpha: Any
    cost: Any
    factor: Any
    gram: Any


class Room(NamedTuple):
    """For what is computed of the longest sequence and of its atoms, anew at each visit."""

    z: Any
    step: Any
    change: Any
    best: Any
    path: Any
    values: Any
    old: Any


@njit(inline="always")
def multiply(
    many: int, labels: Any, first: int, end: int, factor: Any, gram: Any, at: int, y: Any, K: Any,
    near: Any, tail: Any,
) -> None:  # fmt: skip
    """The inner products of an atom's slopes with those of all; the last two are room, zeros on both ends."""
    m, k, path = len(y), near.shape[1], labels[at, first:end]
    count(path, y, 1.0, near, tail)
    for t in range(m):
        if path[t] != y[t]:  # of tokens not the slopes are needed, but their products
            near[t, path[t]] = near[t, y[t]] = 0.0
    for t in range(m):
        if path[t] != y[t]:
            for u in range(m):
                near[u, path[t]] += K[t * m + u]
                near[u, y[t]] -= K[t * m + u]
    for q in range(many):
        product = factor[at] * factor[q] * lead(near, tail, y, labels[q, first:end])
        gram[at, q] = gram[q, at] = product
    for t in range(m):
        for b in range(k):
            near[t, b] = 0.0
    for a in range(k + 2):
        for b in range(k):
            tail[a, b] = 0.0


@njit(inline="always")
def balance(many: int, alpha: Any, gram: Any, v: Any, lam: float, none: int) -> None:
    """Move weight from the atom that says least to the one that says most, until little is to be gained.

    The right labels have the place `none`, in which all products are zero.
    """
    first = np.inf
    for turn in range(PAIRS):
        right, own, high, low = 1.0, 0.0, none, -1
        for q in range(many):
            right -= alpha[q]
            own += alpha[q] * v[q]
            high = q if v[q] > v[high] else high
            if alpha[q] > 0 and (low < 0 or v[q] < v[low]):
                low = q
        alpha[none] = right
        if right > TINY and (low < 0 or v[low] > 0):
            low = none
        first = v[high] - own if turn == 0 else first
        if high == low or v[high] - own <= 1e-2 * first:
            break
        near, have = gram[high, high] + gram[low, low] - 2 * gram[high, low], alpha[low]
        move = lam * (v[high] - v[low]) / near if near > 0 else have
        move = have if have < move else move
        for q in range(many):
            v[q] -= move / lam * (gram[q, high] - gram[q, low])
        alpha[high] += move
        alpha[low] = alpha[low] - move if move < have else 0.0


@njit(inline="always")
def follow(
    many: int, labels: Any, first: int, end: int, alpha: Any, factor: Any, old: Any, y: Any, step: Any,
    tail: Any,
) -> bool:  # fmt: skip
    """Add to the step how slopes change as weights have; whether they do."""
    moved = False
    for q in range(many):
        alpha[q] = alpha[q] if alpha[q] > TINY else 0.0
        x = (alpha[q] - old[q]) * factor[q]
        if x != 0.0:
            count(labels[q, first:end], y, x, step, tail)
            moved = True
    return moved
