r"""The small program of bundle methods: maximize :math:`b^\top x - \tfrac12 x^\top G x` on the simplex."""

from __future__ import annotations

import numpy as np

from riskmin.deadline import checking
from riskmin.types import NDArray

FAR = 1e100
RIDGE = 1e-14
"""Relative to each entry of G: nothing much smaller than their rounding errors means anything."""


def _equality(G: NDArray, b: NDArray, rows: NDArray, ref: int) -> NDArray:
    """The maximizer over the x that live on these rows, under sum(x) = 1 alone; its entries there.

    The weight of one point is eliminated, so that what is solved is singular only where the points are
    affinely dependent, not as soon as they outnumber their dimensions; a ridge sees to that case.
    """
    r = rows[ref]
    rest = rows[rows != r]
    H, to_ref, own = G[rest[:, None], rest], G[rest, r], G[r, r]
    # by row and column: what is rounding to a steep point is all that there is to a flat one
    ridge = RIDGE * (H.diagonal() + own) + 1e-300
    H -= to_ref
    H -= (to_ref - own)[:, None]
    H.flat[:: len(rest) + 1] += ridge
    weights = np.linalg.solve(H, b[rest] - b[r] - to_ref + own)
    weights = np.clip(weights, -FAR, FAR)  # where G is zero, infinitely far: the direction is what counts
    return np.insert(weights, ref, 1 - weights.sum())


def simplex_qp(G: NDArray, b: NDArray, x: NDArray, *, tol: float = 1e-13, max_steps: int = 1000) -> NDArray:
    """Maximize b @ x - x @ G @ x / 2 over x >= 0, sum(x) = 1, by an active set warm-started at x.

    Parameters
    ----------
    G : (m, m) array
        Positive semidefinite, may be singular: a ridge at the level of rounding makes it definite.
    b : (m,) array
    x : (m,) array
        A point of the simplex; the start.
    tol : float
        Relative accuracy of the optimality conditions.

    Returns
    -------
    (m,) array
        Always a point of the simplex, whatever the rounding: so a valid mixture of cuts.

    Examples
    --------
    >>> import numpy as np
    >>> simplex_qp(np.diag([1.0, 1.0]), np.zeros(2), np.array([1.0, 0.0]))
    array([0.5, 0.5])
    """
    x = np.maximum(x, 0.0)
    x = x / x.sum()
    norms = np.sqrt(np.maximum(G.diagonal(), 0.0))
    inside, refused = x > 0, np.zeros(len(b), dtype=bool)
    value, added = -np.inf, -1
    for _ in checking(range(max_steps)):
        rows = np.flatnonzero(inside)
        new = _equality(G, b, rows, int(x[rows].argmax()))
        if new.min() > 0:
            x = np.zeros_like(x)
            x[rows] = new / new.sum()
            gain = b - G @ x
            now, nu = float((b + gain) @ x) / 2, float(gain @ x)
            if now > value:
                value, refused = now, np.zeros_like(refused)
            elif added >= 0:
                refused[added] = True  # it was let in and brought nothing: rounding, so not again
            gain[inside | refused] = -np.inf
            added = int(gain.argmax())
            # what an entry of b - G x is worth: its rounding errors grow with the two norms in it
            if gain[added] <= nu + tol * (abs(b[added]) + norms[added] * float(norms @ x)):
                break
            inside[added] = True
        else:  # go towards it until the first weight is used up, and drop that one
            old, away = x[rows], np.flatnonzero(new <= 0)
            ratio = old[away] / np.maximum(old[away] - new[away], 1e-300)
            k = int(ratio.argmin())
            x[rows] = np.maximum(old + min(1.0, float(ratio[k])) * (new - old), 0.0)
            x[rows[away[k]]], inside[rows[away[k]]] = 0.0, False
            x /= x.sum()
    return x
