"""The label sequences (atoms) that dual ascent stores per sequence, and the optimization of their weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from riskmin._numba.chain.viterbi import add_count_difference, score_difference
from riskmin._numba.compile_cache import njit

ATOM_WEIGHT_FLOOR = 1e-15
"""Atom weights at most this large are set to zero."""


class Atoms(NamedTuple):
    """Atoms of all sequences: number, labels, weights, costs, factors and inner products.

    Shapes for m sequences, n tokens and q slots: n_dropped (1,), the number of atoms dropped for lack of a
    slot; used (m,), the number of slots in use; labels (q, n); alpha, cost, factor (m, q + 1); gram
    (m, q + 1, q + 1). In alpha, cost, factor and gram, the last slot belongs to the true labels y.
    """

    n_dropped: Any
    used: Any
    labels: Any
    alpha: Any
    cost: Any
    factor: Any
    gram: Any


class ChainWorkspace(NamedTuple):
    """Workspaces for the longest sequence and its atoms, overwritten by each visit.

    For m tokens and k labels: z, step, change (m + k + 2, k), the scores, the last step and the total change
    of the score gradients; best (m, k) and path (m,), the table and the result of Viterbi; values and old,
    the loss and the previous weight of each atom.
    """

    z: Any
    step: Any
    change: Any
    best: Any
    path: Any
    values: Any
    old: Any


@njit(inline="always")
def fill_gram_row(
    n_atoms: int, labels: Any, first: int, end: int, factor: Any, gram: Any, slot: int, y: Any, K: Any,
    products: Any, tail: Any,
) -> None:  # fmt: skip
    """Fill row and column `slot` of the Gram matrix of the atoms' score gradients.

    gram[slot, q] = factor_slot factor_q <phi(path_slot) - phi(y), phi(path_q) - phi(y)>, where K holds the
    inner products of the tokens. products (m, k) and tail are workspaces, zero on entry and on return.
    """
    m, k, path = len(y), products.shape[1], labels[slot, first:end]
    # counts of path - y: transitions, first and last label into tail
    add_count_difference(path, y, 1.0, products, tail)
    for t in range(m):
        if path[t] != y[t]:  # for tokens, K times the counts is needed instead of the counts
            products[t, path[t]] = products[t, y[t]] = 0.0
    # products[u] = sum_t K[t, u] (e_path[t] - e_y[t])
    for t in range(m):
        if path[t] != y[t]:
            for u in range(m):
                products[u, path[t]] += K[t * m + u]
                products[u, y[t]] -= K[t * m + u]
    for q in range(n_atoms):
        # <K counts_slot, counts_q> by the same sum as a score difference
        product = factor[slot] * factor[q] * score_difference(products, tail, y, labels[q, first:end])
        gram[slot, q] = gram[q, slot] = product
    # leave both workspaces zero for the next call
    for t in range(m):
        for b in range(k):
            products[t, b] = 0.0
    for a in range(k + 2):
        for b in range(k):
            tail[a, b] = 0.0


@njit(inline="always")
def optimize_weights(n_atoms: int, alpha: Any, gram: Any, v: Any, lam: float, y_slot: int) -> None:
    """Maximize the sequence's dual over the atom weights alpha by exact pair steps.

    Each step moves weight d from the atom of least value v with alpha > 0 to the one of largest value: d =
    lam (v_high - v_low) / |a_high - a_low|^2, at most alpha_low. It stops when the restricted duality gap
    max_q v_q - sum_q alpha_q v_q is 1 % of the one at entry, after 20 steps at most. Slot `y_slot` is that of
    the true labels y, whose value and inner products are zero.
    """
    initial_gap = np.inf
    for turn in range(20):
        y_weight, mean_value, high, low = 1.0, 0.0, y_slot, -1
        for q in range(n_atoms):
            # weight of y is what the atoms leave; mean value for the gap
            y_weight -= alpha[q]
            mean_value += alpha[q] * v[q]
            high = q if v[q] > v[high] else high
            if alpha[q] > 0 and (low < 0 or v[q] < v[low]):
                low = q
        alpha[y_slot] = y_weight
        # y has value 0, and gives weight away if all other values are positive
        if y_weight > ATOM_WEIGHT_FLOOR and (low < 0 or v[low] > 0):
            low = y_slot
        initial_gap = v[high] - mean_value if turn == 0 else initial_gap
        if high == low or v[high] - mean_value <= 1e-2 * initial_gap:
            break
        # squared distance of the two atoms' gradients, and the weight that can be moved
        distance, available = gram[high, high] + gram[low, low] - 2 * gram[high, low], alpha[low]
        # equal gradients: the dual is linear along the move, so all weight is moved
        move = lam * (v[high] - v[low]) / distance if distance > 0 else available
        move = available if available < move else move
        for q in range(n_atoms):
            # values change with w = -(1 / lam) sum_q alpha_q a_q
            v[q] -= move / lam * (gram[q, high] - gram[q, low])
        alpha[high] += move
        # exactly zero if all weight was moved: the slot becomes free for a new atom
        alpha[low] = alpha[low] - move if move < available else 0.0


@njit(inline="always")
def add_weight_change(
    n_atoms: int, labels: Any, first: int, end: int, alpha: Any, factor: Any, alpha_before: Any, y: Any,
    step: Any, tail: Any,
) -> bool:  # fmt: skip
    """Add (alpha - alpha_before) factor (counts of atom - counts of y) to step and tail.

    Returns whether any weight changed.
    """
    moved = False
    for q in range(n_atoms):
        # weights at the level of rounding errors become zero, which frees their slots
        alpha[q] = alpha[q] if alpha[q] > ATOM_WEIGHT_FLOOR else 0.0
        x = (alpha[q] - alpha_before[q]) * factor[q]
        if x != 0.0:
            add_count_difference(labels[q, first:end], y, x, step, tail)
            moved = True
    return moved
