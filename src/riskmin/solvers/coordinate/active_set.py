r"""Minimize a quadratic model and a separable penalty by linear systems over the w_j that are not zero,

.. math:: \min_w\; g^\top w + \tfrac12 w^\top G w + \sum_j absolute_j |w_j| + \tfrac12 square_j w_j^2,
          \qquad lower \le w \le upper.

The rows of `terms` are absolute, square, lower and upper. g is the gradient of the smooth part without the
squares, and is updated along with w.
"""

from __future__ import annotations

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import check

ACTIVE_SET_BATCH, ACTIVE_SET_STEPS_PER_CALL = 32, 20
"""Coordinates that enter an active set at once, and steps between two checks of the deadline."""
GRAM_ROUNDING = 1e-11
"""A bound on the rounding of G, relative to its diagonal."""
ACTIVE_SET_WORK = 200
"""Multiplications per entry of G after which cycles are tried: so many of these take as long."""


def active_set_search(
    G: NDArray, g: NDArray, w: NDArray, terms: NDArray, tol: float, max_active: int
) -> bool:
    """Minimize a model on its Gram matrix, in place, by an active set of w_j and their signs.

    Each step solves for the active w_j, up to the first that changes its sign, which leaves; when all of them
    are optimal, those with the largest violations enter. Returns False if it takes too many steps, or many
    more than `max_active`, the rank of G.

    References
    ----------
    H. Lee, A. Battle, R. Raina, A. Y. Ng, Efficient sparse coding algorithms, NIPS 2006.
    """
    from riskmin._numba.coordinate import active_set as loops  # Numba is imported on first use

    absolute, _, lower, upper = terms
    # Some more than the rank, for the w_j in exchange for which others leave.
    size, given = min(len(w), max_active + ACTIVE_SET_BATCH), (w.copy(), g.copy())
    empty = G.diagonal() <= 0
    if empty.any():
        w[empty] = np.clip(0.0, lower, upper)[empty]
    active = ((w != 0) | (absolute == 0)) & (w > lower) & (w < upper) & ~empty
    factor = np.zeros(size, np.int64), np.zeros((size, size))
    from_zero = not _append_all(G, terms, *factor, np.flatnonzero(active))
    if from_zero:
        # Cycles leave more than the rank, of which most would leave one by one.
        w[absolute > 0] = np.clip(0.0, lower, upper)[absolute > 0]
        g += G @ (w - given[0])
        active &= absolute == 0
        if not _append_all(G, terms, *factor, np.flatnonzero(active)):
            w[:], g[:] = given
            return False
    status = np.where(empty, np.int8(loops.EMPTY), active)
    state = np.array([np.count_nonzero(active), ACTIVE_SET_BATCH, 0])
    data = G, g, w, terms, np.sign(w), status, *factor, np.empty(size), tol, GRAM_ROUNDING
    result, work, m = loops.CONTINUE, 0.0, len(w)
    while result == loops.CONTINUE and work <= ACTIVE_SET_WORK * float(m) ** 2:
        check()
        result = loops.active_set_steps(*data, ACTIVE_SET_STEPS_PER_CALL, state)
        # Each step solves two triangular systems, and updates g.
        work += float(ACTIVE_SET_STEPS_PER_CALL * (state[0] + 1) * (state[0] + m))
    done = result == loops.DONE and bool(np.isfinite(g).all())
    if not done and (from_zero or not np.isfinite(g).all()):
        w[:], g[:] = given
    return done


def _append_all(G: NDArray, terms: NDArray, index: NDArray, L: NDArray, columns: NDArray) -> bool:
    """Factorize the matrix of the columns; return False if they are too many, or dependent."""
    from riskmin._numba.coordinate import active_set as loops

    append = loops.append_active
    return len(columns) <= len(L) and all(
        append(G, terms, index, L, k, j, GRAM_ROUNDING) for k, j in enumerate(columns)
    )


def one_sided_slopes(w: NDArray, g: NDArray, terms: NDArray) -> tuple[NDArray, NDArray]:
    """Return how fast a model falls to the right and to the left of each w_j; minus infinity at a bound.

    At w_j = 0 the derivative of |w_j| is 1 to the right and -1 to the left.
    """
    absolute, square, lower, upper = terms
    smooth = g + square * w
    # w + 0.0 and 0.0 - w turn -0.0 into 0.0, whose sign is positive
    right = np.where(w < upper, -smooth - np.copysign(absolute, w + 0.0), -np.inf)
    left = np.where(w > lower, smooth - np.copysign(absolute, 0.0 - w), -np.inf)
    return right, left
