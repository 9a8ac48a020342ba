r"""Quadratic programs over the nonnegative orthant: minimize :math:`\tfrac12 x^\top G x - g^\top x`."""

from __future__ import annotations

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import check_each


def solve_semidefinite(G: NDArray, g: NDArray) -> NDArray:
    """Return a solution of G x = g for a positive semidefinite G, with a ridge at the level of rounding."""
    # relative to each entry of the diagonal: units of the rows may differ
    return np.linalg.solve(G + np.diag(1e-14 * G.diagonal() + 1e-300), g)


def nonnegative_qp(
    G: NDArray, g: NDArray, x: NDArray, free: NDArray, *, tol: float = 1e-14, max_steps: int = 1000
) -> NDArray:
    """Minimize x @ G @ x / 2 - g @ x over x_i >= 0, by the active-set method of Lawson and Hanson.

    Parameters
    ----------
    G : (m, m) array
        Positive semidefinite, possibly singular.
    g : (m,) array
    x : (m,) array
        Starting point, nonnegative where it must be.
    free : (m,) array of bool
        The entries that may be negative.
    tol : float
        Relative accuracy of the optimality conditions.

    Returns
    -------
    (m,) array
        The minimizer.

    Examples
    --------
    >>> import numpy as np
    >>> G, g = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([2.0, -1.0])
    >>> nonnegative_qp(G, g, np.zeros(2), np.array([False, False])).round(6).tolist()
    [1.0, 0.0]
    >>> nonnegative_qp(G, g, np.zeros(2), np.array([False, True])).round(6).tolist()
    [1.666667, -1.333333]
    """
    x, support = x.copy(), free | (x > 0)
    if not len(x):
        return x
    refused, added = np.zeros(len(g), dtype=bool), -1
    norms = np.sqrt(np.maximum(G.diagonal(), 0.0))
    for _ in check_each(range(max_steps)):
        rows = np.flatnonzero(support)
        new = solve_semidefinite(G[np.ix_(rows, rows)], g[rows])
        leaving = np.flatnonzero((new <= 0) & ~free[rows])
        if len(leaving):
            # move towards the minimizer until the first entry reaches zero, and remove that one
            old = x[rows]
            ratio = old[leaving] / np.maximum(old[leaving] - new[leaving], 1e-300)
            first = rows[leaving[ratio.argmin()]]
            # one that leaves as soon as it entered did so by rounding: do not try it again
            refused[first] |= first == added and x[first] == 0
            x[rows] = old + min(1.0, float(ratio.min())) * (new - old)
            x[first], support[first] = 0.0, False
            continue
        x = np.zeros_like(x)
        x[rows] = new
        gain = g - G @ x
        # the rounding error of an entry grows with the norms of the two factors
        gain -= tol * (np.abs(g) + norms * float(norms @ np.abs(x)))
        gain[support | refused] = -np.inf
        added = int(gain.argmax())
        if gain[added] <= 0:
            break
        support[added] = True
    return x
