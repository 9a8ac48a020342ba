"""Dual ascent for max-margin chains, one sequence at a time (block-coordinate Frank-Wolfe with stored atoms).

The dual variable of a sequence is a distribution over label sequences. Each sequence stores the label
sequences that have had weight in it, its atoms; the remaining weight is on the true labels y. A visit
computes the token scores, then repeats: the most violating label sequence becomes an atom, and the weights of
the atoms are optimized. All of this is cheap: scores are updated by the inner products of the sequence's
tokens, and the weights w change only at the end of the visit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from riskmin._numba.chain.active_sequences import add_weight_change, fill_gram_row, optimize_weights
from riskmin._numba.chain.viterbi import rescaled_path, score_difference, viterbi
from riskmin._numba.compile_cache import njit


class TokenRows(NamedTuple):
    """The rows of X in CSR form; for dense rows, indices are those of one row and dense is 1."""

    indptr: Any
    indices: Any
    data: Any
    dense: int


class ChainData(NamedTuple):
    """Labels y (n,), ends (m,) and weights c (m,) of the sequences, and the inner products of their tokens.

    gram concatenates the (tokens x tokens) Gram matrices, flat; that of sequence s begins at offsets[s].
    """

    y: Any
    ends: Any
    c: Any
    gram: Any
    offsets: Any


@njit()
def token_gram_matrices(
    indptr: Any, indices: Any, data: Any, dense: int, ends: Any, begin: int, end: int, offset: int, x: Any,
    out: Any,
) -> None:  # fmt: skip
    """Fill out with the Gram matrices <x_t, x_u> of the tokens of sequences begin to end - 1.

    The matrix of the first sequence begins at out[offset]. x (one entry per feature, zeros) is a workspace:
    each token is scattered into it once.
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
                    # x holds token t; symmetric, so only u <= t is computed
                    total += data[i] * x[indices[i - start * dense]]
                out[offset + t * m + u] = out[offset + u * m + t] = total
            for i in range(lo, hi):
                x[indices[i - lo * dense]] = 0.0
        first, offset = ends[s], offset + m * m


@njit(fastmath={"contract"})
def ascend_sequences(
    indptr: Any, indices: Any, data: Any, dense: int,
    all_y: Any, ends: Any, weights: Any, grams: Any, offsets: Any,
    n_dropped: Any, used: Any, labels: Any, all_alpha: Any, costs: Any, factors: Any, products: Any,
    all_z: Any, all_step: Any, all_change: Any, best: Any, all_path: Any, v: Any, alpha_before: Any,
    w: Any, lam: float, order: Any, powers: Any, turns: Any, gaps: Any,
) -> None:  # fmt: skip
    """Visit the sequences in the given order, and store the duality gap of each on arrival in gaps.

    The first four lines of parameters are the fields of `TokenRows`, `ChainData`, `Atoms` and
    `ChainWorkspace`. An atom q of sequence s has the value v_q = cost_q + factor_q (score(q) - score(y)),
    with cost c_s h for its Hamming distance h, and factor c_s, or c_s h^beta for rescaled margins; the gap is
    max(0, max_q' v_q') - sum_q alpha_q v_q. powers is the table of `error_powers`; turns is None for one
    turn. Where they are None, unused code is not compiled.
    """
    y_slot, every = all_alpha.shape[1] - 1, 0
    for i in range(len(order)):
        s = order[i]
        first, end = ends[s - 1] if s else 0, ends[s]
        m, c, n_atoms = end - first, weights[s], used[s]
        y, K = all_y[first:end], grams[offsets[s] :]
        z, tail, path = all_z[:m], all_z[m:], all_path[:m]
        step, step_tail, change, change_tail = all_step[:m], all_step[m:], all_change[:m], all_change[m:]
        alpha, factor, gram = all_alpha[s], factors[s], products[s]
        # scores of this sequence's tokens at the current w
        _scores(indptr, indices, data, dense, w, first, z, tail)
        gap = v[y_slot] = 0.0
        for q in range(n_atoms):
            # value of each atom at the current w
            v[q] = costs[s, q] + factor[q] * score_difference(z, tail, y, labels[q, first:end])
            gap -= alpha[q] * v[q]
        for turn in range(1 if turns is None else turns):
            if powers is None:
                viterbi(z, tail, y, 1.0, best, path)
            else:
                rescaled_path(z, tail, y, powers, every, path)
            errors, largest_value, slot = 0, 0.0, n_atoms
            for t in range(m):
                errors += path[t] != y[t]
            scale = c if powers is None else c * powers[errors]
            loss = c * errors + scale * score_difference(z, tail, y, path)
            if turn == 0:
                gap += loss if loss > 0.0 else 0.0
            # a new atom replaces the atom of weight zero and least value, if there is one
            for q in range(n_atoms):
                alpha_before[q], largest_value = alpha[q], v[q] if v[q] > largest_value else largest_value
                slot = q if alpha[q] == 0.0 and (slot == n_atoms or v[q] < v[slot]) else slot
            # it is new only if it exceeds all stored atoms by more than rounding
            is_new = loss > largest_value + 1e-13 * (c + abs(loss))
            if is_new and slot == y_slot:
                # no free slot: the caller enlarges the arrays after the epoch
                n_dropped[0] += 1
            elif is_new:
                n_atoms = n_atoms if slot < n_atoms else n_atoms + 1
                for t in range(m):
                    labels[slot, first + t] = path[t]
                alpha[slot] = alpha_before[slot] = 0.0
                costs[s, slot], factor[slot], v[slot] = c * errors, scale, loss
                fill_gram_row(n_atoms, labels, first, end, factor, gram, slot, y, K, step, step_tail)
            if turn and not (is_new and slot < y_slot):
                break
            optimize_weights(n_atoms, alpha, gram, v, lam, y_slot)
            # with one turn, the change goes to w directly; with more, scores are updated first
            if turns is None:
                add_weight_change(
                    n_atoms, labels, first, end, alpha, factor, alpha_before, y, change, change_tail
                )
            elif add_weight_change(
                n_atoms, labels, first, end, alpha, factor, alpha_before, y, step, step_tail
            ):
                _update_scores(z, tail, step, step_tail, change, change_tail, K, 1.0 / lam)
            else:
                break
        gaps[s], used[s] = gap, n_atoms
        _update_weights(indptr, indices, data, dense, w, first, change, change_tail, 1.0 / lam)


@njit(inline="always")
def _scores(indptr: Any, indices: Any, data: Any, dense: int, w: Any, first: int, z: Any, tail: Any) -> None:
    """Compute z = X_s W for the tokens of a sequence, and copy the last k + 2 rows of W to tail."""
    m, k = z.shape
    for t in range(m):
        lo, hi, z_row = indptr[first + t], indptr[first + t + 1], z[t]
        for b in range(k):
            z_row[b] = 0.0
        for i in range(lo, hi):
            x, row = data[i], w[indices[i - lo * dense]]
            for b in range(k):
                z_row[b] += x * row[b]
    # the rows of W that all tokens share: transitions, first-label and last-label scores
    for a in range(k + 2):
        for b in range(k):
            tail[a, b] = w[len(w) - k - 2 + a, b]


@njit(inline="always")
def _update_weights(
    indptr: Any, indices: Any, data: Any, dense: int, w: Any, first: int, change: Any, tail: Any, scale: float
) -> None:
    """Compute W -= scale X_s' change, and set change to zero; tokens without a change are skipped."""
    m, k = change.shape
    for t in range(m):
        total, row_change = 0.0, change[t]
        for b in range(k):
            row_change[b] *= scale
            total += abs(row_change[b])
        if total > 0:
            lo, hi = indptr[first + t], indptr[first + t + 1]
            for i in range(lo, hi):
                x, row = data[i], w[indices[i - lo * dense]]
                for b in range(k):
                    row[b] -= x * row_change[b]
            for b in range(k):
                row_change[b] = 0.0
    # the shared rows of W: transitions, first-label and last-label scores
    for a in range(k + 2):
        for b in range(k):
            w[len(w) - k - 2 + a, b] -= scale * tail[a, b]
            tail[a, b] = 0.0


@njit(inline="always")
def _update_scores(
    z: Any, tail: Any, step: Any, step_tail: Any, change: Any, change_tail: Any, K: Any, scale: float
) -> None:
    """Update the scores of the sequence after a step: z -= scale K step.

    The step is added to change and set to zero.
    """
    m, k = z.shape
    # z_t -= scale sum_u <x_t, x_u> step_u, by the Gram matrix K of the tokens
    for u in range(m):
        for t in range(m):
            x, z_row, step_row = K[t * m + u] * scale, z[t], step[u]
            if x != 0.0:
                for b in range(k):
                    z_row[b] -= x * step_row[b]
    # accumulate the step for the update of W, and clear it for the next turn
    for t in range(m):
        for b in range(k):
            change[t, b] += step[t, b]
            step[t, b] = 0.0
    for a in range(k + 2):
        for b in range(k):
            tail[a, b] -= scale * step_tail[a, b]
            change_tail[a, b] += step_tail[a, b]
            step_tail[a, b] = 0.0
