r"""The master problem of bundle methods: maximize :math:`b^\top x - \tfrac12 x^\top G x` over the simplex."""

from __future__ import annotations

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import check_each


def _maximize_on_support(G: NDArray, b: NDArray, rows: NDArray, ref: int) -> NDArray:
    """Return the maximizer over x supported on `rows` under sum(x) = 1 alone, as its entries there.

    The weight of the row `rows[ref]` is eliminated. The reduced system is then singular only where the points
    are affinely dependent, not as soon as they outnumber their dimensions; a ridge handles that case.
    """
    r = rows[ref]
    others = rows[rows != r]
    H, to_ref, ref_ref = G[others[:, None], others], G[others, r], G[r, r]
    # One ridge per row: entries of G differ by many orders of magnitude between steep and flat cuts.
    # relative to the entries of G, at the level of their rounding errors
    ridge = 1e-14 * (H.diagonal() + ref_ref) + 1e-300
    # with x_ref = 1 - sum of the others: H_ij = G_ij - G_i,ref - G_ref,j + G_ref,ref
    H -= to_ref
    H -= (to_ref - ref_ref)[:, None]
    H.flat[:: len(others) + 1] += ridge
    weights = np.linalg.solve(H, b[others] - b[r] - to_ref + ref_ref)
    # Where G is zero the weights are infinite: only their direction matters.
    largest = 1e100
    weights = np.clip(weights, -largest, largest)
    return np.insert(weights, ref, 1 - weights.sum())


def simplex_qp(G: NDArray, b: NDArray, x: NDArray, *, tol: float = 1e-13, max_steps: int = 1000) -> NDArray:
    """Maximize b @ x - x @ G @ x / 2 over x >= 0, sum(x) = 1, by an active-set method started at x.

    Parameters
    ----------
    G : (m, m) array
        Positive semidefinite, possibly singular: a ridge at the level of rounding makes it definite.
    b : (m,) array
    x : (m,) array
        Starting point on the simplex.
    tol : float
        Relative accuracy of the optimality conditions.

    Returns
    -------
    (m,) array
        A point of the simplex for any rounding errors, hence a valid mixture of cuts.
    """
    x = np.maximum(x, 0.0)
    x = x / x.sum()
    norms = np.sqrt(np.maximum(G.diagonal(), 0.0))
    active, refused = x > 0, np.zeros(len(b), dtype=bool)
    value, added = -np.inf, -1
    for _ in check_each(range(max_steps)):
        rows = np.flatnonzero(active)
        new = _maximize_on_support(G, b, rows, int(x[rows].argmax()))
        if new.min() > 0:
            x = np.zeros_like(x)
            x[rows] = new / new.sum()
            # gain is the gradient of the objective; nu is the multiplier of sum(x) = 1.
            gain = b - G @ x
            new_value, nu = float((b + gain) @ x) / 2, float(gain @ x)
            if new_value > value:
                value, refused = new_value, np.zeros_like(refused)
            elif added >= 0:
                # It entered the active set without a gain, by rounding: do not try it again.
                refused[added] = True
            gain[active | refused] = -np.inf
            added = int(gain.argmax())
            # Tolerance of an entry of b - G x: its rounding error grows with the norms of the two factors.
            if gain[added] <= nu + tol * (abs(b[added]) + norms[added] * float(norms @ x)):
                break
            active[added] = True
        else:
            # Move towards the maximizer until the first weight reaches zero, and remove that one.
            old, leaving = x[rows], np.flatnonzero(new <= 0)
            ratio = old[leaving] / np.maximum(old[leaving] - new[leaving], 1e-300)
            k = int(ratio.argmin())
            x[rows] = np.maximum(old + min(1.0, float(ratio[k])) * (new - old), 0.0)
            x[rows[leaving[k]]], active[rows[leaving[k]]] = 0.0, False
            x /= x.sum()
    return x
