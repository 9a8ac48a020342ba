"""Hessians of smoothed losses in the scores, for Newton's method: diagonal - low rank - pair blocks."""

from __future__ import annotations

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Hessian, PairBlock
from riskmin.numerics.sorting import prefix_sums, ranks_in_sorted


def hessian_product(hessian: Hessian, V: Array) -> Array:
    """Return the product H V, for V of shape (n,) or (n, k)."""
    column = (slice(None), *(None,) * (V.ndim - 1))
    out = hessian.diagonal[column] * V
    # minus the rank-one terms s s'
    for s in hessian.low_rank:
        out = out - s[column] * (s @ V)
    # minus W (rows above) and W' (rows below)
    for block in hessian.pair_blocks:
        product_above, product_below = pair_block_products(block, V)
        out[block.above] = out[block.above] - product_above
        out[block.below] = out[block.below] - product_below
    return out


def pair_block_products(block: PairBlock, V: Array) -> tuple[Array, Array]:
    """Return W V for the rows above and W' V for the rows below.

    Each row of W is constant (times p_i q_j) on a range, so that a product is a difference of prefix sums:
    O(n) per column of V.
    """
    above, p, below, q, first, last = block
    column = (slice(None), *(None,) * (V.ndim - 1))
    # row i above: p_i times the sum of q_j v_j over first_i <= j < last_i
    sums = prefix_sums(q[column] * V[below])
    product_above = p[column] * (sums[last] - sums[first])
    first, last = transposed_ranges(block)
    # row j below: q_j times the sum of p_i v_i over the rows above whose range contains j
    sums = prefix_sums(p[column] * V[above])
    return product_above, q[column] * (sums[last] - sums[first])


def transposed_ranges(block: PairBlock) -> tuple[Array, Array]:
    """Return the ranges of W': for each row below, the first and last (exclusive) row above."""
    # j is in the range of i iff first_i <= j < last_i; both ends are nondecreasing, so binary search
    rows = namespace(block.first).arange(len(block.below))
    return ranks_in_sorted(block.last, rows, side="right"), ranks_in_sorted(block.first, rows, side="right")
